"""Test that differences are found at their path, and that breaking ones are marked."""

from typing import Any

import pytest

from dovetail.schemas.definition_diff import Difference, find_differences, is_breaking


def tool(properties: dict[str, Any] | None = None, required: list[str] | None = None, **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties or {}, "required": required or []}
    return {"name": "t", "inputSchema": schema, **more}


def find(old: Any, new: Any) -> list[Difference]:
    return [*find_differences(old, new)]


TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
EITHER = {"anyOf": [TEXT, NUMBER]}
A = "inputSchema/properties/a"
OUT = "outputSchema/properties/a"
OBJECT = {"type": "object", "properties": {"a": TEXT}}


@pytest.mark.parametrize(
    ("old", "new", "path", "effect", "breaks"),
    [
        (tool({"a": TEXT}), tool(), A, "narrower", True),
        (tool(), tool({"a": TEXT}), A, "wider", False),
        (tool(), tool({"a": TEXT}, ["a"]), A, "narrower", True),
        (tool({"a": TEXT}, ["a"]), tool(), A, "narrower", True),
        (tool({"a": TEXT}), tool({"a": TEXT}, ["a"]), "inputSchema/required", "narrower", True),
        (tool({"a": TEXT}, ["a"]), tool({"a": TEXT}), "inputSchema/required", "wider", False),
        (tool({"a": TEXT}), tool({"a": NUMBER}), f"{A}/type", "mixed", True),
        (tool({"a": TEXT}), tool({"a": EITHER}), f"{A}/anyOf", "wider", False),
        (tool({"a": EITHER}), tool({"a": TEXT}), f"{A}/anyOf", "narrower", True),
        (tool({"a": TEXT}), tool({"a": TEXT | {"oneOf": [{"maxLength": 3}]}}), f"{A}/oneOf", "unknown", True),
        (tool({"a": {"enum": ["x", "y"]}}), tool({"a": {"enum": ["x"]}}), f"{A}/enum", "narrower", True),
        (tool({"a": {"enum": ["x"]}}), tool({"a": {"enum": ["x", "y"]}}), f"{A}/enum", "wider", False),
        (tool({"a": {"enum": ["number"]}}), tool({"a": {"enum": ["integer"]}}), f"{A}/enum", "mixed", True),
        (tool({"a": {"enum": ["x", "y"]}}), tool({"a": {"enum": ["y", "x"]}}), f"{A}/enum", "same", False),
        (tool({"a": {}}), tool({"a": NUMBER}), f"{A}/type", "narrower", True),
        (tool({"a": TEXT}), tool({"a": {}}), f"{A}/type", "wider", False),
        (tool({"a": True}), tool({"a": TEXT}), A, "narrower", True),
        (tool({"a": False}), tool({"a": TEXT}), A, "wider", False),
        (tool({"a": TEXT}), tool({"a": False}), A, "narrower", True),
        (tool({"a": TEXT}), tool({"a": True}), A, "wider", False),
        (tool({"a": {"anyOf": [True, TEXT]}}), tool({"a": TEXT}), f"{A}/anyOf", "narrower", True),
        (tool({"a": NUMBER}), tool({"a": {"type": "number"}}), f"{A}/type", "wider", False),
        (tool({"a": {"type": "number"}}), tool({"a": NUMBER}), f"{A}/type", "narrower", True),
        (tool({"a": TEXT}), tool({"a": TEXT | {"maxLength": 3}}), f"{A}/maxLength", "narrower", True),
        (tool({"a": TEXT | {"maxLength": 3}}), tool({"a": TEXT}), f"{A}/maxLength", "wider", False),
        (tool({"a": TEXT | {"maxLength": 3}}), tool({"a": TEXT | {"maxLength": 9}}), f"{A}/maxLength", "wider", False),
        (tool({"a": TEXT | {"pattern": "a"}}), tool({"a": TEXT | {"pattern": "b"}}), f"{A}/pattern", "unknown", True),
        (tool({"a": {"items": TEXT}}), tool({"a": {"items": NUMBER}}), f"{A}/items/type", "mixed", True),
        (tool({"a": TEXT}), tool({"a": TEXT | {"if": {"minLength": 1}}}), f"{A}/if", "unknown", True),
        (tool({"a": TEXT}), tool({"a": TEXT | {"description": "d"}}), f"{A}/description", "text", False),
        (tool({"a": TEXT | {"maxLength": 3}}), tool({"a": EITHER | {"maxLength": 3}}), f"{A}/anyOf", "wider", False),
        (tool(description="a"), tool(description="b"), "description", "text", False),
        (tool(description="a b"), tool(description="a  b "), "description", "same", False),
        (tool(annotations={"readOnlyHint": True}), tool(), "annotations/readOnlyHint", "unknown", False),
        (tool(mimeType="text/plain"), tool(mimeType="text/html"), "mimeType", "text", True),
        (tool(outputSchema=OBJECT), tool(), "outputSchema", "wider", True),
        (tool(), tool(outputSchema=OBJECT), "outputSchema", "narrower", False),
        (tool(outputSchema=OBJECT), tool(outputSchema=OBJECT | {"properties": {}}), OUT, "narrower", True),
        (tool(outputSchema=OBJECT | {"properties": {}}), tool(outputSchema=OBJECT), OUT, "wider", False),
        (tool(outputSchema=OBJECT | {"required": ["a"]}), tool(outputSchema=OBJECT), "outputSchema/required",
         "wider", True),
        (tool(outputSchema=OBJECT), tool(outputSchema=OBJECT | {"properties": {"a": {}}}), f"{OUT}/type", "wider",
         True),
        (tool({"o": OBJECT}), tool({"o": OBJECT | {"properties": {}}}), "inputSchema/properties/o/properties/a",
         "narrower", True),
        ({"arguments": [{"name": "a"}]}, {"arguments": [{"name": "a", "required": True}]}, "arguments/required",
         "narrower", True),
        ({"arguments": [{"name": "a"}]}, {"arguments": []}, "arguments/a", "narrower", True),
        ({"arguments": []}, {"arguments": [{"name": "a"}]}, "arguments/a", "wider", False),
        ({"arguments": [{"name": "a"}]}, {"arguments": [{"name": "a", "description": "d"}]},
         "arguments/a/description", "text", False),
        ({"arguments": [{"name": "a"}]}, {"arguments": [{"name": "a"}, {"name": "a"}]}, "arguments", "text", False),
    ],
)  # fmt: skip
def test_each_difference_has_its_path_and_effect(old: Any, new: Any, path: str, effect: str, breaks: bool) -> None:
    (difference,) = find(old, new)
    assert ("/".join(difference.path), difference.effect, is_breaking(difference)) == (path, effect, breaks)


MANY = {"type": "array", "items": TEXT}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (TEXT, {"type": ["string", "null"], "maxLength": 3}),
        (MANY, {"type": ["array", "null"], "items": NUMBER}),
        ({"type": "string", "enum": ["a", "b"]}, {"type": ["string", "null"], "enum": ["a"]}),
        (TEXT, EITHER | {"maxLength": 3}),
    ],
)
def test_a_wider_type_does_not_hide_narrower_rules(old: Any, new: Any) -> None:
    assert sorted(map(is_breaking, find(tool({"a": old}), tool({"a": new})))) == [False, True]


def test_alternatives_include_the_constraints_of_the_single_schema() -> None:
    short_text = TEXT | {"maxLength": 3, "description": "d"}
    optional = {"anyOf": [TEXT | {"maxLength": 3}, {"type": "null"}], "description": "d"}
    assert [difference.effect for difference in find(tool({"a": short_text}), tool({"a": optional}))] == ["wider"]
    assert any(map(is_breaking, find(tool({"a": TEXT}), tool({"a": optional}))))


def test_differences_come_in_order() -> None:
    names = ["e", "d", "c", "b", "a"]
    removed = find(tool(dict.fromkeys(names, TEXT)), tool())
    assert [difference.path[-1] for difference in removed] == sorted(names)


def test_equal_definitions_have_no_differences() -> None:
    assert find(tool({"a": TEXT}), tool({"a": dict(reversed(TEXT.items()))})) == []
