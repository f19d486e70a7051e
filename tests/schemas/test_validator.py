"""Test validating untrusted values against untrusted schemas, and the error messages."""

import json
import socket
import subprocess
import sys
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.error_context import clip
from dovetail.schemas.validator import SchemaLimits, UnusableSchema, apply_defaults, compile_schema
from support.mentions import mentions

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"


def verdict(schema: Any, value: Any, **limits: int) -> str | None:
    return compile_schema(schema, limits=SchemaLimits(**limits)).find_error(value)


def refusal(schema: Any, value: Any = None, **limits: int) -> str:
    with pytest.raises(UnusableSchema) as caught:
        verdict(schema, value, **limits)
    assert len(str(caught.value)) <= 512
    assert str(caught.value).isprintable()
    return str(caught.value)


def doubling(keyword: str, levels: int) -> dict[str, Any]:
    homes: dict[str, Any] = {f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**homes, f"d{levels}": {"type": "integer"}}}


def nested(depth: int, name: str = "a", inmost: Any = 1) -> Any:
    value = inmost
    for _ in range(depth):
        value = {name: value}
    return value


# Verdicts.


def test_a_value_that_fits_has_no_reason() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    checker = compile_schema(schema)
    assert checker.find_error({"n": 1}) is None
    assert mentions(checker.find_error({"n": "x"}), "n", "integer")
    assert mentions(checker.find_error({}), "n")


@pytest.mark.parametrize(
    ("schema", "fits", "fails"),
    [
        ({"$schema": DRAFT_2020, "prefixItems": [{"type": "string"}], "items": False}, ["a"], ["a", "b"]),
        ({"$schema": DRAFT_2019, "items": [{"type": "string"}], "additionalItems": False}, ["a"], ["a", "b"]),
        ({"$schema": DRAFT_7, "items": [{"type": "string"}], "additionalItems": False}, ["a"], [1]),
        ({"$schema": DRAFT_7, "dependencies": {"a": ["b"], "c": {"required": ["d"]}}}, {"a": 1, "b": 1}, {"c": 1}),
        ({"$schema": DRAFT_7, "dependencies": {"a": ["b"]}}, {}, {"a": 1}),
        # A $ref of draft 7 hides what stands beside it.
        (
            {"$schema": DRAFT_7, "$ref": "#/definitions/s", "minLength": 9, "definitions": {"s": {"type": "string"}}},
            "a",
            1,
        ),
        ({"$ref": "#/$defs/s", "minLength": 2, "$defs": {"s": {"type": "string"}}}, "ab", "a"),
        ({"$ref": "#/definitions/s", "definitions": {"s": {"type": "string"}}}, "ab", 1),
        ({"$ref": "#s", "$defs": {"x": {"$anchor": "s", "type": "string"}}}, "ab", 1),
        (
            {"$id": "https://a.example/b", "$ref": "https://a.example/b#/$defs/s", "$defs": {"s": {"type": "null"}}},
            None,
            1,
        ),
        ({"$ref": "https://a.example/s", "$defs": {"s": {"$id": "https://a.example/s", "type": "null"}}}, None, 1),
        (
            {
                "$id": "https://a.example/x/",
                "$ref": "s#t",
                "$defs": {"s": {"$id": "s", "$defs": {"t": {"$anchor": "t", "type": "null"}}}},
            },
            None,
            1,
        ),
        ({"$id": "urn:example:b", "$ref": "#/$defs/s", "$defs": {"s": {"type": "null"}}}, None, 1),
        (
            {
                "properties": {"a/b~c": {"type": "null"}},
                "allOf": [{"additionalProperties": {"$ref": "#/properties/a~1b~0c"}}],
            },
            {"x": None},
            {"x": 1},
        ),
        (
            {"properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}}},
            nested(20, "next", {"v": 1}),
            nested(20, "next", {"v": "x"}),
        ),
        ({"allOf": [{"properties": {"a": True}}], "unevaluatedProperties": False}, {"a": 1}, {"b": 1}),
        (
            {"properties": {"$ref": {"type": "string"}, "$id": {"type": "string"}, "enum": {"type": "string"}}},
            {"$ref": "x"},
            {"enum": 1},
        ),
        ({"const": {"$ref": "http://elsewhere.example"}}, {"$ref": "http://elsewhere.example"}, {}),
        ({"uniqueItems": True}, [1, 2, [1], "1"], [1, 1.0]),
        ({"type": "string", "pattern": "^(a+)+$"}, "aaa", "a" * 30 + "!"),
    ],
)
def test_each_dialect_is_judged_by_its_own_rules(schema: dict[str, Any], fits: Any, fails: Any) -> None:
    checker = compile_schema(schema)
    assert checker.find_error(fits) is None
    assert checker.find_error(fails) is not None


def test_what_only_describes_is_not_asserted() -> None:
    for dialect in (DRAFT_7, DRAFT_2019, DRAFT_2020):
        schema = {
            "$schema": dialect,
            "format": "email",
            "contentEncoding": "base64",
            "contentMediaType": "application/json",
        }
        assert verdict(schema, "not any of them") is None
    assert (
        verdict({"default": 5, "examples": [{"$ref": "http://x.example"}], "x-more": {"$ref": "no:where"}}, 1) is None
    )


SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "b", "ab"]) | st.floats(-2, 2)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from("abc")
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
REFS = st.sampled_from(["#/$defs/x", "#/$defs/y", "#/$defs/z"])


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES,
            "enum": st.lists(VALUES, min_size=1, max_size=3),
            "const": VALUES,
            "minimum": st.integers(-2, 2),
            "multipleOf": st.sampled_from([2, 0.5]),
            "minLength": st.integers(0, 2),
            "pattern": st.sampled_from(["a", "^b$"]),
            "maxItems": st.integers(0, 3),
            "uniqueItems": st.booleans(),
            "required": st.lists(NAMES, unique=True),
            "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, unique=True), max_size=2),
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "additionalProperties": inner,
            "patternProperties": st.dictionaries(st.sampled_from(["a", "^[bc]"]), inner, max_size=2),
            "propertyNames": inner,
            "prefixItems": some,
            "items": inner,
            "contains": inner,
            "allOf": some,
            "anyOf": some,
            "oneOf": some,
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "dependentSchemas": st.dictionaries(NAMES, inner, max_size=2),
            "unevaluatedProperties": inner,
            "unevaluatedItems": inner,
            "title": st.just("t"),
            "default": VALUES,
        },
    )


def schemas(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(st.booleans() | leaves, keywords, max_leaves=6)


PLAIN = st.fixed_dictionaries({"type": TYPES})
WHOLE = st.builds(
    lambda root, x, y, z: {**root, "$defs": {"x": x, "y": y, "z": z}},
    keywords(schemas(PLAIN | st.builds(lambda ref: {"$ref": ref}, REFS))),
    schemas(PLAIN),
    schemas(PLAIN | st.just({"$ref": "#/$defs/x"})),
    schemas(PLAIN | st.just({"$ref": "#/$defs/y"})),
)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(schema=WHOLE, value=VALUES)
def test_the_verdict_is_the_validators_own(schema: dict[str, Any], value: Any) -> None:
    plain = jsonschema_rs.Draft202012Validator(schema, pattern_options=jsonschema_rs.RegexOptions())
    assert (verdict(schema, value, max_cost=10**12) is None) == plain.is_valid(value)


# References.


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"not": {"$ref": "#/$defs/a"}}}},
        {"properties": {"x": {"if": {"$ref": "#/properties/x"}}}},
    ],
)
def test_circles_at_one_place_are_refused(schema: dict[str, Any]) -> None:
    refusal(schema, 1)


def test_nothing_is_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as canary:
        canary.settimeout(0.2)
        at = f"127.0.0.1:{canary.getsockname()[1]}"
        for ref in (
            f"http://{at}/x", f"https://{at}/x#/y", f"//{at}/x", "file:///etc/passwd", "other.json", "/etc/passwd",
            "https://json-schema.org/draft/2020-12/schema", "http://[", "#/nowhere", "#nowhere", "#/type",
        ):  # fmt: skip
            refusal({"type": "object", "properties": {"a": {"$ref": ref}}}, {})
        refusal({"$id": f"http://{at}/a", "$ref": f"http://{at}/b"}, {})
        refusal({"$schema": f"http://{at}/dialect"}, {})
        with pytest.raises(TimeoutError):
            canary.accept()


@pytest.mark.parametrize("keyword", ["$dynamicRef", "$recursiveRef"])
def test_references_without_a_fixed_target_are_refused(keyword: str) -> None:
    assert keyword in refusal({"properties": {"a": {keyword: "#"}}}, {})


@pytest.mark.parametrize("dialect", [5, "draft-04", "http://json-schema.org/draft-04/schema#", "x\n" * 500])
def test_unknown_dialects_are_refused(dialect: Any) -> None:
    assert "unknown dialect" in refusal({"$schema": dialect})


# Cost.


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_references_that_double_are_refused_when_compiled(keyword: str) -> None:
    with pytest.raises(UnusableSchema):
        compile_schema(doubling(keyword, 30))
    inside = {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": doubling(keyword, 30)["$defs"]}
    with pytest.raises(UnusableSchema):
        compile_schema(inside)
    assert verdict(doubling("allOf", 5), 1) is None


def test_definitions_shared_by_many_places_cost_nothing_extra() -> None:
    """Each level names the next one twice, but for different members."""
    homes: dict[str, Any] = {
        f"d{n}": {"properties": {name: {"$ref": f"#/$defs/d{n + 1}"} for name in "ab"}} for n in range(40)
    }
    assert verdict({"$ref": "#/$defs/d0", "$defs": {**homes, "d40": {"type": "integer"}}}, nested(40)) is None


def branching(keyword: str) -> dict[str, Any]:
    return {"$defs": {"n": {"properties": {"a": {keyword: [{"$ref": "#/$defs/n"}] * 2}}}}, "$ref": "#/$defs/n"}


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_recursion_that_branches_is_bounded_by_the_depth_of_the_value(keyword: str) -> None:
    checker = compile_schema(branching(keyword))
    assert checker.find_error(nested(5)) is None or keyword == "oneOf"
    with pytest.raises(UnusableSchema):
        checker.find_error(nested(40))


def unevaluated(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"properties": {"a": {"type": "integer"}}}
    for _ in range(levels):
        schema = {"allOf": [schema], "unevaluatedProperties": False}
    return schema


FLOATS = [number + 0.5 for number in range(1000)]
LARGE = [10**30 + number for number in range(2000)]
BOMBS: dict[str, tuple[Any, Any]] = {
    "unevaluated in unevaluated": (unevaluated(20), {"a": 1}),
    "enum of floats": ({"items": {"enum": FLOATS}}, FLOATS * 10),
    "enum of arrays": ({"items": {"enum": [[number] for number in range(2000)]}}, [[1999]] * 5000),
    "constants to choose from": ({"items": {"oneOf": [{"const": n} for n in range(1500)]}}, [1499] * 5000),
    "unique large integers": ({"uniqueItems": True}, LARGE),
    "unique large integers in arrays": ({"uniqueItems": True}, [[number] for number in LARGE]),
    "fractions of far numbers": ({"items": {"multipleOf": 1e-300}}, [1e300] * 5000),
    "fractions": ({"items": {"multipleOf": 0.01}}, [0.07] * 45_000),
    "comparisons with far numbers": ({"items": {"minimum": 1e-300}}, [1e-290] * 45_000),
    "large numbers": ({"type": "integer"}, 10**60),
    "patterns that cannot decide": ({"items": {"pattern": "[01]*1[01]{300}2"}}, ["0110" * 10_000] * 3),
    "patterns on names": (
        {"patternProperties": {f"[01]*1[01]{{{n}}}2": True for n in range(80, 100)}},
        {f"{n:020b}": 1 for n in range(5000)},
    ),
    "names to look at": ({"propertyNames": {"enum": FLOATS}}, {str(n): 1 for n in range(2000)}),
    "schemas to choose from": (
        {"items": {"anyOf": [{"properties": {"a": {"const": n}}, "required": ["a"]} for n in range(600)]}},
        [{"a": 599}] * 3000,
    ),
    "conditions": (
        {
            "items": {
                "allOf": [{"if": {"properties": {"a": {"const": n}}}, "then": {"required": ["b"]}} for n in range(450)]
            }
        },
        [{"a": 1}] * 6000,
    ),
    "things to contain": ({"allOf": [{"contains": {"const": n}} for n in range(600)]}, list(range(2000))),
    "unique at every level": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"uniqueItems": True, "items": {"$ref": "#/$defs/a"}}}},
        json.loads("[" * 60 + ",".join(map(str, range(20_000))) + "]" * 60),
    ),
    "very many values": ({"items": {"type": "integer"}}, [1] * 500_000),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_would_take_long_is_refused(name: str) -> None:
    schema, value = BOMBS[name]
    refusal(schema, value)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (
            {"type": "object", "properties": {"text": {"type": "string", "minLength": 1}}},
            {"text": "word, " * 3_500_000},
        ),
        (
            {
                "items": {
                    "type": "object",
                    "required": [*"abcdefgh"],
                    "properties": {name: {"type": "string"} for name in "abcdefgh"},
                }
            },
            [dict.fromkeys("abcdefgh", "v, " * 130) for _ in range(6000)],
        ),
        ({"items": {"type": "string", "pattern": "^[a-z0-9-]{1,64}$"}}, ["0123-4567-89ab-cdef"] * 10_000),
        ({"items": {"enum": [f"country-{n}" for n in range(300)]}}, ["country-299"] * 20_000),
        ({"items": {"type": "integer", "minimum": 0, "maximum": 10**9}, "uniqueItems": True}, list(range(30_000))),
        ({"items": {"type": "number", "minimum": 0, "maximum": 1}}, [0.25] * 20_000),
    ],
)
def test_large_honest_values_are_checked(schema: dict[str, Any], value: Any) -> None:
    assert verdict(schema, value) is None


def test_the_cost_is_that_of_the_value_not_only_of_the_schema() -> None:
    """A wide union at the top is met once, however long the list beside it."""
    schema = {
        "properties": {
            "kind": {"oneOf": [{"const": number} for number in range(1000)]},
            "rows": {"items": {"type": "integer"}},
        }
    }
    assert verdict(schema, {"kind": 999, "rows": list(range(20_000))}) is None


def test_a_checker_forgets_what_it_was_shown() -> None:
    """Ever new shapes of values do not fill the memory."""
    homes = {f"d{n}": {"properties": {str(m): {"$ref": f"#/$defs/d{m}"} for m in range(40)}} for n in range(40)}
    checker = compile_schema({"anyOf": [{"$ref": f"#/$defs/d{n}"} for n in range(40)], "$defs": homes})
    for first in range(40):
        for second in range(30):
            assert checker.find_error({str(first): {str(second): {"5": {"6": 1}}}}) is None
    # Private: what it remembers shows nowhere else.
    assert checker._cost_estimator._entry_count < 100_000  # pyright: ignore[reportPrivateUsage]


# Limits.


def test_the_size_of_a_schema_is_limited() -> None:
    schema = {"description": ""}
    fits = 1000 - len(json.dumps(schema, separators=(",", ":")))
    assert verdict({"description": "x" * fits}, 1, max_bytes=1000) is None
    refusal({"description": "x" * (fits + 1)}, 1, max_bytes=1000)
    refusal({"description": "x" * 256 * 1024})


def test_the_depth_of_a_schema_is_limited() -> None:
    assert verdict(nested(9, "not", {}), 1, max_depth=10) is not None
    assert mentions(refusal(nested(10, "not", {}), 1, max_depth=10), 10)
    refusal(nested(5000, "not", {}))
    refusal({"default": nested(100)})


def test_the_depth_of_a_value_is_limited() -> None:
    assert verdict({}, nested(10), max_depth=10) is None
    assert mentions(refusal({}, nested(11), max_depth=10), 10)


def test_counts_are_limited() -> None:
    assert verdict({"allOf": [{} for _ in range(9)]}, 1, max_schemas=10) is None
    assert mentions(refusal({"allOf": [{} for _ in range(10)]}, max_schemas=10), 10, "subschemas")
    assert verdict({"enum": [[1]] * 5}, [1], max_values=10) is None
    assert mentions(refusal({"enum": [[1]] * 6}, max_values=10), 10, "values")
    assert mentions(refusal({"enum": list(range(20_000))}), "values")
    assert verdict({"allOf": [{"pattern": "a"}] * 3}, "a", max_patterns=3) is None
    assert mentions(refusal({"allOf": [{"pattern": str(n)} for n in range(4)]}, max_patterns=3), 3, "patterns")
    assert verdict({"pattern": "aaaa"}, 1, max_pattern_chars=4) is None
    assert mentions(refusal({"pattern": "aaaaa"}, max_pattern_chars=4), "pattern", 4)


def test_the_cost_of_a_check_is_limited_exactly() -> None:
    schema, value = {"items": {"type": "integer"}}, [1, 2, 3]

    def fits(cost: int) -> bool:
        try:
            return verdict(schema, value, max_cost=cost) is None
        except UnusableSchema:
            return False

    least = next(cost for cost in range(10_000) if fits(cost))
    assert least > len(value)
    assert all(fits(cost) for cost in range(least, least + 50))
    refusal(schema, value, max_cost=least - 1)


@pytest.mark.parametrize(
    "schema",
    [
        {"required": [10**30 + number for number in range(7000)]},
        {"type": [10**30 + number for number in range(7000)]},
        {"dependentRequired": {"a": [10**30 + number for number in range(7000)]}},
        {"$schema": DRAFT_7, "dependencies": {"a": [10**30 + number for number in range(7000)]}},
        {"$defs": {str(number): {"$id": f"{number}/"} for number in range(2000)}},
        {"$id": "https://a.example/" + "x" * 1024},
    ],
)
def test_a_schema_that_is_slow_to_compile_is_refused(schema: dict[str, Any]) -> None:
    """The meta-schema wants some lists to be without duplicates, and names without end could be joined."""
    refusal(schema)


# What is not a schema, and what is said about it.


@pytest.mark.parametrize(
    "schema",
    [
        None, [], "x", True, {"properties": 5}, {"properties": {"a": 5}}, {"allOf": {}}, {"allOf": [1]}, {"items": 5},
        {"type": "nothing"}, {"minLength": -1}, {"$ref": 5}, {"pattern": 5}, {"enum": 5},
        {"required": "a"},
        {"dependencies": 5}, {"not": None}, {"x": object()},
    ],
)  # fmt: skip
def test_what_is_not_a_schema_is_refused(schema: Any) -> None:
    refusal(schema)


@pytest.mark.parametrize(
    "pattern", ["(", "(?=a)b", r"(a)\1", "((a{1,999}){1,999}){1,999}", "x\n(", "(" * 1000, "(" * 499 + "a" + ")" * 499]
)
def test_a_pattern_beyond_the_linear_engine_is_named(pattern: str) -> None:
    assert clip(pattern) in refusal({"properties": {"a": {"pattern": pattern}}})
    assert clip(pattern) in refusal({"patternProperties": {pattern: {}}})


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"additionalProperties": {"type": "integer"}}, {"\x1b[31m\n\r\u202e": "x"}),
        ({"additionalProperties": {"type": "integer"}}, {"k" * 100_000: "x"}),
        ({"required": ["k\n" * 10_000]}, {}),
        ({"enum": ["x" * 10_000, "y\x00"]}, "z" * 10_000),
        ({"const": [1] * 5000}, "z" * 10_000),
        ({"additionalProperties": False}, {f"k{n}\x07": 1 for n in range(1000)}),
        ({"pattern": "\u202e{1,10}"}, "x" * 50_000),
        ({"not": {"description": "\x1b" * 10_000}}, 1),
        ({"properties": {"a": {"$ref": "#"}}, "type": "object"}, nested(60, "a", "\x9b" * 5000)),
        ({"anyOf": [{"const": "x" * 500}] * 100}, "z" * 5000),
    ],
)
def test_reasons_are_one_short_harmless_line(schema: dict[str, Any], value: Any) -> None:
    said = verdict(schema, value)
    assert said is not None
    assert 0 < len(said) <= 512
    assert said.isprintable()
    assert "zzz" not in said


def test_the_reason_for_a_huge_value_is_not_looked_for() -> None:
    """Saying where would copy the value once for each alternative."""
    schema = {"properties": {"rows": {"anyOf": [{"maxItems": number} for number in range(50)]}}}
    large = verdict(schema, {"rows": [1] * 10_000})
    assert large
    assert "rows" not in large
    assert mentions(verdict(schema, {"rows": [1] * 60}), "rows", "anyOf")


# Defaults.


def test_defaults_are_filled_in() -> None:
    schema = {
        "properties": {"a": {"default": 1}, "b": {"default": [2]}, "c": {"type": "string"}, "d": {"default": None}}
    }
    answer = {"a": 5}
    filled = apply_defaults(schema, answer)
    assert filled == {"a": 5, "b": [2], "d": None}
    assert answer == {"a": 5}
    filled["b"].append(3)
    assert apply_defaults(schema, {}) == {"a": 1, "b": [2], "d": None}


def test_an_answer_given_is_kept() -> None:
    assert apply_defaults({"properties": {"a": {"default": 1}}}, {"a": None, "z": 0}) == {"a": None, "z": 0}


@pytest.mark.parametrize("schema", [None, [], {}, {"properties": []}, {"properties": {"a": True, "b": 5, "c": {}}}])
def test_a_form_without_defaults_adds_nothing(schema: Any) -> None:
    assert apply_defaults(schema, {"x": 1}) == {"x": 1}


def test_the_validator_is_loaded_by_the_first_schema_only() -> None:
    program = (
        "import sys, dovetail.schemas.validator as c; assert 'jsonschema_rs' not in sys.modules; "
        "c.apply_defaults({}, {}); assert 'jsonschema_rs' not in sys.modules; "
        "c.compile_schema({}); assert 'jsonschema_rs' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
