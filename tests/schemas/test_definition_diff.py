"""What changed is named, and what breaks callers is told from what does not."""

import re
from typing import Any

import pytest

from dovetail.schemas.definition_diff import diff_definitions


def tool(properties: dict[str, Any] | None = None, required: list[str] | None = None, **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties or {}, "required": required or []}
    return {"t": {"name": "t", "inputSchema": schema, **more}}


TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
EITHER = {"anyOf": [TEXT, NUMBER]}


@pytest.mark.parametrize(
    ("old", "new", "kind", "values", "breaks"),
    [
        (tool(), {}, "removed", [], True),
        ({}, tool(), "added", [], False),
        (tool({"a": TEXT}), tool(), "removed", ["`a`"], True),
        (tool(), tool({"a": TEXT}), "added", ["`a`"], False),
        (tool(), tool({"a": TEXT}, ["a"]), "added", ["`a`", "required"], True),
        (tool({"a": TEXT}), tool({"a": TEXT}, ["a"]), "changed", ["`a`", "required"], True),
        (tool({"a": TEXT}), tool({"a": NUMBER}), "changed", ["string", "integer"], True),
        (tool({"a": TEXT}), tool({"a": EITHER}), "changed", ["string", "integer"], False),
        (tool({"a": EITHER}), tool({"a": TEXT}), "changed", ["string", "integer"], True),
        (tool({"a": {"enum": ["x", "y"]}}), tool({"a": {"enum": ["x"]}}), "changed", ["'y'"], True),
        (tool({"a": {"enum": ["x"]}}), tool({"a": {"enum": ["x", "y"]}}), "changed", ["'y'"], False),
        (tool({"a": {}}), tool({"a": NUMBER}), "changed", ["integer"], True),
        (tool({"a": TEXT}), tool({"a": {}}), "changed", ["string"], False),
        (tool({"a": True}), tool({"a": TEXT}), "changed", ["string"], True),
        (tool({"a": False}), tool({"a": TEXT}), "changed", ["string"], False),
        (tool({"a": {"anyOf": [True, TEXT]}}), tool({"a": TEXT}), "changed", ["string"], True),
        (tool({"a": NUMBER}), tool({"a": {"type": "number"}}), "changed", ["integer", "number"], False),
        (tool({"a": {"type": "number"}}), tool({"a": NUMBER}), "changed", ["number", "integer"], True),
        (tool({"a": TEXT}), tool({"a": TEXT | {"maxLength": 3}}), "changed", ["`a`"], True),
        (tool({"a": TEXT}), tool({"a": TEXT | {"description": "d"}}), "description", ["`a`"], False),
        (tool(description="a"), tool(description="b"), "description", ["description"], False),
        (tool(annotations={"readOnlyHint": True}), tool(annotations={}), "changed", ["annotations"], False),
        (tool(outputSchema={"properties": {"a": TEXT}}), tool(), "removed", [], True),
        (tool(), tool(outputSchema={"properties": {"a": TEXT}}), "added", [], False),
        (
            tool(outputSchema={"properties": {"a": TEXT}, "required": ["a"]}),
            tool(outputSchema={"properties": {"a": TEXT}}),
            "changed",
            ["`a`"],
            True,
        ),
        (
            tool({"o": {"type": "object", "properties": {"a": TEXT}}}),
            tool({"o": {"type": "object", "properties": {}}}),
            "removed",
            ["`o.a`"],
            True,
        ),
        (
            {"p": {"name": "p", "arguments": [{"name": "a"}]}},
            {"p": {"name": "p", "arguments": [{"name": "a", "required": True}]}},
            "changed",
            ["`a`", "required"],
            True,
        ),
    ],
)
def test_differences(old: Any, new: Any, kind: str, values: list[str], breaks: bool) -> None:
    (found,) = diff_definitions("tool", old, new)
    assert (found.kind, found.item, found.is_breaking) == (kind, f"tool {next(iter(old or new))}", breaks)
    assert found.message
    assert not [value for value in values if value not in found.message]


MANY = {"type": "array", "items": TEXT}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (TEXT, {"type": ["string", "null"], "maxLength": 3}),
        (MANY, {"type": ["array", "null"], "items": NUMBER}),
        ({"type": "string", "enum": ["a", "b"]}, {"type": ["string", "null"], "enum": ["a"]}),
    ],
)
def test_a_wider_type_does_not_hide_narrower_rules(old: Any, new: Any) -> None:
    wider, narrower = diff_definitions("tool", tool({"a": old}), tool({"a": new}))
    assert not wider.is_breaking
    assert narrower.is_breaking


def test_a_wider_type_alone_breaks_nobody() -> None:
    (found,) = diff_definitions("tool", tool({"a": TEXT | {"maxLength": 3}}), tool({"a": EITHER | {"maxLength": 3}}))
    assert not found.is_breaking


def test_what_is_gone_is_told_in_order() -> None:
    names = ["e", "d", "c", "b", "a"]
    found = diff_definitions("tool", tool(dict.fromkeys(names, TEXT)), tool())
    assert [re.findall("`(.)`", one.message) for one in found] == [[name] for name in sorted(names)]


def test_what_is_the_same_is_not_named() -> None:
    assert not [*diff_definitions("tool", tool({"a": TEXT}), tool({"a": TEXT}))]
