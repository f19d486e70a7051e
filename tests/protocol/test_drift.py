"""What changed is named, and what breaks callers is told from what does not."""

from typing import Any

import pytest

from dovetail.protocol.drift import differences


def tool(properties: dict[str, Any] | None = None, required: list[str] | None = None, **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties or {}, "required": required or []}
    return {"t": {"name": "t", "inputSchema": schema, **more}}


TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
EITHER = {"anyOf": [TEXT, NUMBER]}


@pytest.mark.parametrize(
    ("old", "new", "said", "breaks"),
    [
        (tool(), {}, "is gone", True),
        ({}, tool(), "is new", False),
        (tool({"a": TEXT}), tool(), "`a` is gone", True),
        (tool(), tool({"a": TEXT}), "`a` is new", False),
        (tool(), tool({"a": TEXT}, ["a"]), "`a` is new, and required", True),
        (tool({"a": TEXT}), tool({"a": TEXT}, ["a"]), "`a` is now required", True),
        (tool({"a": TEXT}), tool({"a": NUMBER}), "was string and is integer", True),
        (tool({"a": TEXT}), tool({"a": EITHER}), "is integer or string", False),
        (tool({"a": EITHER}), tool({"a": TEXT}), "is string", True),
        (tool({"a": {"enum": ["x", "y"]}}), tool({"a": {"enum": ["x"]}}), "without 'y'", True),
        (tool({"a": {"enum": ["x"]}}), tool({"a": {"enum": ["x", "y"]}}), "with 'y'", False),
        (tool({"a": TEXT}), tool({"a": TEXT | {"maxLength": 3}}), "the rules for `a`", True),
        (tool({"a": TEXT}), tool({"a": TEXT | {"description": "d"}}), "described otherwise", False),
        (tool(description="a"), tool(description="b"), "its description", False),
        (tool(annotations={"readOnlyHint": True}), tool(annotations={}), "its annotations", False),
        (tool(outputSchema={"properties": {"a": TEXT}}), tool(), "no longer says", True),
        (tool(), tool(outputSchema={"properties": {"a": TEXT}}), "now says", False),
        (
            tool(outputSchema={"properties": {"a": TEXT}, "required": ["a"]}),
            tool(outputSchema={"properties": {"a": TEXT}}),
            "may now be missing",
            True,
        ),
        (
            tool({"o": {"type": "object", "properties": {"a": TEXT}}}),
            tool({"o": {"type": "object", "properties": {}}}),
            "`o.a` is gone",
            True,
        ),
        (
            {"p": {"name": "p", "arguments": [{"name": "a"}]}},
            {"p": {"name": "p", "arguments": [{"name": "a", "required": True}]}},
            "`a` is now required",
            True,
        ),
    ],
)
def test_differences(old: Any, new: Any, said: str, breaks: bool) -> None:
    (found,) = differences("tool", old, new)
    assert said in found.text
    assert found.breaks is breaks


def test_what_is_the_same_is_not_named() -> None:
    assert not [*differences("tool", tool({"a": TEXT}), tool({"a": TEXT}))]
