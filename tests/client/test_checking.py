"""Checking a stranger's value against a stranger's schema: verdicts, refusals, and the words for both."""

from typing import Any

import pytest

from dovetail.client.checking import SchemaLimits, Unusable, compile_schema, with_defaults


def verdict(schema: Any, value: Any, **limits: int) -> str | None:
    return compile_schema(schema, limits=SchemaLimits(**limits)).check(value)


def refusal(schema: Any, value: Any = None, **limits: int) -> str:
    with pytest.raises(Unusable) as caught:
        verdict(schema, value, **limits)
    return str(caught.value)


def doubling(keyword: str, levels: int) -> dict[str, Any]:
    homes: dict[str, Any] = {f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**homes, f"d{levels}": {"type": "integer"}}}


def test_a_value_that_fits_has_no_reason() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    checker = compile_schema(schema)
    assert checker.check({"n": 1}) is None
    assert checker.check({"n": "x"}) == 'n: the value is not of type "integer"'
    assert checker.check({}) == '"n" is a required property'


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_references_that_double_are_refused(keyword: str) -> None:
    assert "too costly" in refusal(doubling(keyword, 30), 1)
    bomb = doubling(keyword, 30)
    assert "too costly" in refusal({"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": bomb["$defs"]}, {})


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"not": {"$ref": "#/$defs/a"}}}},
    ],
)
def test_circles_at_one_place_are_refused(schema: dict[str, Any]) -> None:
    assert "without an end" in refusal(schema, 1)


def test_nothing_is_fetched() -> None:
    for ref in ("http://127.0.0.1:9/x", "https://a/b#/c", "file:///etc/passwd", "other.json", "//a/b", "#/nowhere"):
        assert "refers" in refusal({"$ref": ref}, 1)


def test_defaults_are_filled_in() -> None:
    schema = {"properties": {"a": {"default": 1}, "b": {"default": [2]}, "c": {"type": "string"}}}
    answer = {"a": 5}
    assert with_defaults(schema, answer) == {"a": 5, "b": [2]}
    assert answer == {"a": 5}
