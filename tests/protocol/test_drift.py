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
        (tool({"a": {}}), tool({"a": NUMBER}), "was anything and is integer", True),
        (tool({"a": TEXT}), tool({"a": {}}), "was string and is anything", False),
        (tool({"a": True}), tool({"a": TEXT}), "was anything and is string", True),
        (tool({"a": False}), tool({"a": TEXT}), "was nothing and is string", False),
        (tool({"a": {"anyOf": [True, TEXT]}}), tool({"a": TEXT}), "was anything and is string", True),
        (tool({"a": NUMBER}), tool({"a": {"type": "number"}}), "was integer and is number", False),
        (tool({"a": {"type": "number"}}), tool({"a": NUMBER}), "was number and is integer", True),
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
    wider, narrower = differences("tool", tool({"a": old}), tool({"a": new}))
    assert not wider.breaks
    assert narrower.breaks


def test_a_wider_type_alone_breaks_nobody() -> None:
    (found,) = differences("tool", tool({"a": TEXT | {"maxLength": 3}}), tool({"a": EITHER | {"maxLength": 3}}))
    assert not found.breaks


def test_what_is_gone_is_told_in_order() -> None:
    names = ["e", "d", "c", "b", "a"]
    found = differences("tool", tool(dict.fromkeys(names, TEXT)), tool())
    assert [one.text for one in found] == [f"the argument `{name}` is gone" for name in sorted(names)]


def test_what_is_the_same_is_not_named() -> None:
    assert not [*differences("tool", tool({"a": TEXT}), tool({"a": TEXT}))]
