"""Test reading third-party schemas as intended and in bounded time."""

from typing import Any

import pytest

from dovetail.schemas.provider_rules import PROFILES, PROVIDER_RULES, find_violations, fit_schema
from dovetail.schemas.reader import (
    ANY_SCHEMA,
    NEVER_SCHEMA,
    as_object,
    get_list,
    get_mapping,
    get_number,
    get_required,
    get_types,
    resolve_schema,
)


def test_booleans_stand_for_objects() -> None:
    assert as_object(True) == ANY_SCHEMA
    assert as_object(False) == NEVER_SCHEMA
    assert as_object("no schema") == ANY_SCHEMA
    assert as_object({"type": "string"}) == {"type": "string"}


def test_references_and_parts_are_taken_together() -> None:
    root = {"$defs": {"a/b": {"type": "object", "properties": {"x": True}, "required": ["x"]}}}
    schema = {
        "$ref": "#/$defs/a~1b",
        "allOf": [{"properties": {"y": True}, "required": ["y", "x"]}],
        "description": "both",
    }
    assert resolve_schema(schema, root) == {
        "type": "object",
        "description": "both",
        "properties": {"x": True, "y": True},
        "required": ["y", "x"],
    }


def test_references_that_lead_nowhere_say_nothing() -> None:
    root = {"$defs": {"loop": {"allOf": [{"$ref": "#/$defs/loop"}, {"$ref": "#/$defs/loop"}]}}}
    for reference in ("#/$defs/none", "#/$defs/loop", "https://elsewhere.example/", "#/$defs/loop/allOf/0/x"):
        assert resolve_schema({"$ref": reference}, root) == ANY_SCHEMA


@pytest.mark.parametrize("part", [True, False])
def test_profiles_take_booleans(part: Any) -> None:
    schema = {
        "type": "object",
        "$defs": {"any": part},
        "properties": {"a": part, "b": {"anyOf": [part, {"type": "null"}]}, "c": {"$ref": "#/$defs/any"}},
    }
    for rules in PROVIDER_RULES:
        assert isinstance([*find_violations(rules, "name", None, schema)], list)
    for profile in PROFILES:
        assert fit_schema(profile, schema)["properties"].keys() == {"a", "b", "c"}


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
@pytest.mark.parametrize("wrong", [None, 5, "x", [], {"a": 1}])
def test_alternatives_that_are_no_list_are_left_out(profile: Any, keyword: str, wrong: Any) -> None:
    def fit(part: dict[str, Any]) -> Any:
        return fit_schema(profile, {"type": "object", "properties": {"a": part}})

    for part in (
        {"type": "string"},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "object"},
        {"enum": ["b"]},
    ):
        assert fit(part | {keyword: wrong}) == fit(part)


def test_a_member_that_is_something_else_says_nothing() -> None:
    for wrong in (5, "x", None, True, [1], {"a": 1}):
        schema: dict[str, Any] = dict.fromkeys(("properties", "required", "type", "anyOf", "minItems"), wrong)
        assert get_mapping(schema) == ({"a": 1} if wrong == {"a": 1} else {})
        assert get_list(schema, "anyOf") == ([1] if wrong == [1] else [])
        assert get_required(schema) == get_types(schema) == []
        assert get_number(schema, "minItems") == (wrong if wrong in (5, True) else 0)
    assert get_types({"type": ["weird", None, "null"]}) == ["null"]
    assert get_types({"type": "string"}) == ["string"]
    assert get_required({"required": ["a", [], 1]}) == ["a"]


def test_nested_branches_share_the_steps() -> None:
    definitions: dict[str, Any] = {
        f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 60} for level in range(9)
    }
    root = {"$defs": {**definitions, "d9": {"title": "end"}}}
    resolve_schema({"$ref": "#/$defs/d0"}, root)  # This ends.
    many = resolve_schema({"allOf": [{"properties": {f"p{index}": True}} for index in range(60)]}, root)
    assert len(get_mapping(many)) == 60
