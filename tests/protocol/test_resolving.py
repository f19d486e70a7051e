"""Schemas of others are read as they are meant, and no schema keeps the reader for ever."""

from typing import Any

import pytest

from dovetail.protocol.profiles import PROFILES, RULES, fitted, refusals
from dovetail.protocol.resolving import EVERYTHING, NOTHING, as_object, listed, named, number, required, resolved, types


def test_booleans_stand_for_objects() -> None:
    assert as_object(True) == EVERYTHING
    assert as_object(False) == NOTHING
    assert as_object("no schema") == EVERYTHING
    assert as_object({"type": "string"}) == {"type": "string"}


def test_references_and_parts_are_taken_together() -> None:
    root = {"$defs": {"a/b": {"type": "object", "properties": {"x": True}, "required": ["x"]}}}
    schema = {
        "$ref": "#/$defs/a~1b",
        "allOf": [{"properties": {"y": True}, "required": ["y", "x"]}],
        "description": "both",
    }
    assert resolved(schema, root) == {
        "type": "object",
        "description": "both",
        "properties": {"x": True, "y": True},
        "required": ["y", "x"],
    }


def test_references_that_lead_nowhere_say_nothing() -> None:
    root = {"$defs": {"loop": {"allOf": [{"$ref": "#/$defs/loop"}, {"$ref": "#/$defs/loop"}]}}}
    for reference in ("#/$defs/none", "#/$defs/loop", "https://elsewhere.example/", "#/$defs/loop/allOf/0/x"):
        assert resolved({"$ref": reference}, root) == EVERYTHING


@pytest.mark.parametrize("part", [True, False])
def test_profiles_take_booleans(part: Any) -> None:
    schema = {
        "type": "object",
        "$defs": {"any": part},
        "properties": {"a": part, "b": {"anyOf": [part, {"type": "null"}]}, "c": {"$ref": "#/$defs/any"}},
    }
    for rules in RULES:
        assert isinstance([*refusals(rules, "name", None, schema)], list)
    for profile in PROFILES:
        assert fitted(profile, schema)["properties"].keys() == {"a", "b", "c"}


def test_a_member_that_is_something_else_says_nothing() -> None:
    for wrong in (5, "x", None, True, [1], {"a": 1}):
        schema: dict[str, Any] = dict.fromkeys(("properties", "required", "type", "anyOf", "minItems"), wrong)
        assert named(schema) == ({"a": 1} if wrong == {"a": 1} else {})
        assert listed(schema, "anyOf") == ([1] if wrong == [1] else [])
        assert required(schema) == types(schema) == []
        assert number(schema, "minItems") == (wrong if wrong in (5, True) else 0)
    assert types({"type": ["weird", None, "null"]}) == ["null"]
    assert types({"type": "string"}) == ["string"]
    assert required({"required": ["a", [], 1]}) == ["a"]
