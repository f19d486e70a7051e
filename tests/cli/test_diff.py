"""Test that `dovetail diff` lists every difference and marks the breaking ones."""

from typing import Any

import pytest

from dovetail.cli.commands.diff import compare_items

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}


def tool(properties: dict[str, Any] | None = None, required: list[str] | None = None, **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties or {}, "required": required or []}
    return {"t": {"name": "t", "inputSchema": schema, **more}}


def nested(*names: str) -> dict[str, Any]:
    return tool({"o": {"type": "object", "properties": dict.fromkeys(names, TEXT)}})


@pytest.mark.parametrize(
    ("old", "new", "kind", "values", "breaks"),
    [
        (tool(), {}, "removed", [], True),
        ({}, tool(), "added", [], False),
        (tool({"a": TEXT}), tool(), "removed", ["argument", "`a`"], True),
        (tool(), tool({"a": TEXT}), "added", ["argument", "`a`"], False),
        (tool(), tool({"a": TEXT}, ["a"]), "added", ["`a`", "required"], True),
        (tool({"a": TEXT}), tool({"a": TEXT}, ["a"]), "changed", ["`a`", "required"], True),
        (tool({"a": TEXT}), tool({"a": NUMBER}), "changed", ["type", "`a`", "string", "integer"], True),
        (tool({"a": TEXT}), tool({"a": {"anyOf": [TEXT, NUMBER]}}), "changed", ["`a`", "string", "integer"], False),
        (tool({"a": {"enum": ["x", "y"]}}), tool({"a": {"enum": ["x"]}}), "changed", ["`a`", "'y'"], True),
        (tool({"a": TEXT}), tool({"a": TEXT | {"maxLength": 3}}), "changed", ["maxLength", "`a`", "3"], True),
        (tool({"a": TEXT}), tool({"a": TEXT | {"description": "d"}}), "description", ["description", "`a`"], False),
        (tool({"a": {"items": TEXT}}), tool({"a": {"items": NUMBER}}), "changed", ["`a.items`", "string"], True),
        (tool(description="a"), tool(description="b"), "description", ["description"], False),
        (tool(_meta={"x": 1}), tool(), "description", ["meta"], False),
        (tool(annotations={"readOnlyHint": True}), tool(), "changed", ["annotations", "readOnlyHint"], False),
        (tool(outputSchema={"properties": {"a": TEXT}}), tool(), "removed", ["output schema"], True),
        (tool(), tool(outputSchema={"properties": {"a": TEXT}}), "added", ["output schema"], False),
        (nested("a"), nested(), "removed", ["`o.a`"], True),
        ({"t": {"arguments": [{"name": "a"}]}}, {"t": {"arguments": [{"name": "a", "required": True}]}}, "changed",
         ["`a`", "required"], True),
        ({"t": {"arguments": [{"name": "required"}]}}, {"t": {"arguments": []}}, "removed", ["`required`"], True),
        ({"t": {"arguments": []}}, {"t": {"arguments": [{"name": "a", "required": True}]}}, "added",
         ["`a`", "required"], True),
    ],
)  # fmt: skip
def test_a_difference_is_one_entry(old: Any, new: Any, kind: str, values: list[str], breaks: bool) -> None:
    (entry,) = compare_items("tool", old, new)
    assert (entry.kind, entry.item, entry.is_breaking) == (kind, "tool t", breaks)
    assert [value for value in values if value not in entry.message] == []


def test_equal_items_have_no_entries() -> None:
    assert [*compare_items("tool", tool({"a": TEXT}), tool({"a": TEXT}))] == []
