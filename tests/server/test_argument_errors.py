"""Test arguments: values sent as text are converted, and all mistakes are reported at once."""

import datetime
import decimal
import uuid
from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Any, Literal

import msgspec
import pytest

from dovetail import Server
from dovetail.server.parameters.annotations import build_schema, convert_value
from dovetail.server.parameters.argument_errors import find_mismatches, repair_arguments
from dovetail.server.parameters.argument_messages import MAX_TEXT_BYTES
from dovetail.server.parameters.signature import InvalidArguments, compile_signature
from server.direct_client import Client, error_text
from support.mentions import mentions, values


class Nobody:
    pass


@dataclass
class Leg:
    start: str
    km: Annotated[int, msgspec.Meta(ge=1)]
    mode: Literal["car", "bus"] = "car"


@dataclass
class Trip:
    legs: list[Leg]
    day: date | None = None
    tags: dict[str, int] = field(default_factory=dict)


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    width: int = 0


class Tree(msgspec.Struct):
    name: str
    children: list["Tree"] = []


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (int, "3", 3),
        (int, " 3 ", 3),
        (float, "1.5", 1.5),
        (bool, "true", True),
        (int | None, "null", None),
        (list[int], "[1, 2]", [1, 2]),
        (list[int], ["1", "2"], [1, 2]),
        (dict[str, int], '{"a": "1"}', {"a": 1}),
        (Leg, '{"start": "a", "km": 2}', {"start": "a", "km": 2}),
        (list[Leg], ['{"start": "a", "km": "2"}'], [{"start": "a", "km": 2}]),
        (Tree, {"name": "a", "children": '[{"name": "b"}]'}, {"name": "a", "children": [{"name": "b"}]}),
        (Literal[1, 2], "2", 2),
    ],
)
def test_text_is_decoded_where_no_text_may_stand(kind: Any, given: Any, value: Any) -> None:
    schema = build_schema(kind)
    assert repair_arguments(schema, given) == value
    assert repair_arguments(schema, value) is value


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (str, "3"),
        (str | int, "3"),
        (Any, "[1]"),
        (str | list[str], '["a"]'),
        (Leg, {"start": "12", "km": 1}),
        (date, "2024-01-01"),
        (int, "three"),
        (int, "[1]"),
        (list[int], '{"a": 1}'),
        (dict[str, Any], {"a": "[1]"}),
        (int, '{"a": 1, "a": 2}'),
        (int, "\ud800"),
        (list[int], "[" * 70 + "]" * 70),
    ],
)
def test_nothing_else_is_touched(kind: Any, given: Any) -> None:
    assert repair_arguments(build_schema(kind), given) is given


def refusal(function: Any, given: dict[str, Any]) -> str:
    with pytest.raises(InvalidArguments) as caught:
        compile_signature(function, context_type=Nobody).bind(given, None)
    return str(caught.value)


def move(steps: list[Leg], days: dict[int, str] | None = None) -> None: ...


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "steps"),
        ({"steps": [], "ste`ps": 1}, "ste`ps"),
        ({"steps": 7}, "steps"),
        ({"steps": [{"start": "a", "km": "far"}]}, "steps[0].km"),
        ({"steps": [], "days": {"monday": "x"}}, "days"),
    ],
)
def test_an_error_names_the_first_invalid_field(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        compile_signature(move, context_type=Nobody).bind(given, None)
    assert caught.value.field == field
    renamed = caught.value.rename_arguments(lambda name: name.upper())
    assert renamed.field == field.replace(field.split("[")[0], field.split("[")[0].upper())
    assert caught.value.rename_arguments(lambda _: None).field is None


def plan(trip: Trip, seats: int, box: Closed | None = None, **more: int) -> None: ...


def test_every_misfit_is_named_however_deep() -> None:
    legs = [{"start": 3, "km": 0}, {"km": 2, "mode": "van"}, "x"]
    text = refusal(
        plan, {"trip": {"legs": legs, "day": "soon", "tags": {"a": None}}, "box": {"widht": 1}, "other": "a"}
    )
    assert mentions(
        text,
        *("seats", "trip.legs[0].start", "str", "int", "trip.legs[0].km", 1, "trip.legs[1].start"),
        *("trip.legs[1].mode", "car", "bus", "trip.legs[2]", "object", "trip.day", "1999-12-31"),
        *("trip.tags.a", "int", "null", "box", "widht", "width", "other", "int", "str"),
    )


def test_an_error_of_the_type_is_reported_when_all_else_is_valid() -> None:
    text = refusal(plan, {"trip": {"legs": [], "day": "soon"}, "seats": 1})
    assert mentions(text, "trip.day", "1999-12-31")


def test_mended_arguments_reach_every_kind_of_parameter() -> None:
    def run(a: int, *, b: list[int], **more: int) -> Any:
        return a, b, more

    args, kwargs = compile_signature(run, context_type=Nobody).bind({"a": "1", "b": "[2]", "c": "3"}, None)
    assert run(*args, **kwargs) == (1, [2], {"c": 3})


def test_a_refusal_stays_short() -> None:
    text = refusal(plan, {"trip": {"legs": [{"start": 1, "km": "x" * 500}] * 500}, "seats": "y" * 5000})
    assert len(text.encode()) <= MAX_TEXT_BYTES
    assert "xxxx" not in text
    assert "yyyy" not in text


class Add(msgspec.Struct, tag="add"):
    left: "Add | Negate | int"
    right: "Add | Negate | int"


class Negate(msgspec.Struct, tag="negate"):
    left: "Add | Negate | int"


def calculate(tree: Add | Negate) -> None: ...


def test_of_several_kinds_of_object_the_one_named_is_meant() -> None:
    text = refusal(calculate, {"tree": {"type": "negate", "left": {"type": "add", "left": 1, "right": "x"}}})
    assert mentions(text, "tree.left.right", "object | int", "str")
    signature = compile_signature(calculate, context_type=Nobody)
    given = {"tree": {"type": "negate", "left": '{"type": "add", "left": "1", "right": 2}'}}
    assert signature.bind(given, None)[0] == (Negate(Add(1, 2)),)


def test_a_deep_value_with_alternatives_on_each_level_is_explained_in_bounded_time() -> None:
    either = {"anyOf": [{"$ref": "#/$defs/L"}, {"$ref": "#/$defs/R"}]}
    shared = {name: {"type": "object", "properties": {"a": either}, "required": [name]} for name in "LR"}
    value: Any = {}
    for _ in range(50):
        value = {"a": value}
    assert len([*find_mismatches(either, value, shared, "x")]) == 51


def test_patterns_and_mending_go_together() -> None:
    def run(code: Annotated[str, msgspec.Meta(pattern="^[a-z]+$")], n: list[int]) -> Any:
        return code, n

    signature = compile_signature(run, context_type=Nobody)
    assert signature.bind({"code": "a", "n": "[1]"}, None)[0] == ("a", [1])
    with pytest.raises(InvalidArguments, match=values("n", "array", "int", "code", "^[a-z]+$")):
        signature.bind({"code": "A", "n": 3}, None)


async def test_a_schema_of_the_authors_own_is_treated_alike() -> None:
    app = Server("x")
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}, "required": ["n"]}

    @app.tool(input_schema=schema)
    def run(arguments: dict[str, Any]) -> str:
        return repr(arguments)

    client = Client(app)
    assert (await client.call("run", {"n": "3", "s": "4"}))["content"][0]["text"] == "{'n': 3, 's': '4'}"
    assert mentions(error_text(await client.call("run", {"n": "three"})), "n", "int", "str")


async def test_a_schema_of_the_authors_own_is_explained_in_the_same_words() -> None:
    line = {"type": "object", "properties": {"sku": {"type": "string"}}, "required": ["sku"]}
    properties = {
        "lines": {"type": "array", "items": line},
        "code": {"type": "string", "pattern": "^a+$"},
        "size": {"enum": ["s", "m"]},
        "count": {"type": ["integer", "null"], "minimum": 3},
    }
    app = Server("x")
    app.add_tool(
        lambda arguments: "",
        name="run",
        input_schema={
            "type": "object",
            "properties": properties,
            "required": ["who"],
            "additionalProperties": False,
        },
    )
    given = {"lines": [{}, {"sku": 7}], "code": "secret", "size": "xl", "count": 1, "colour": 1}
    said = error_text(await Client(app).call("run", given))
    for named in (
        ("who",),
        ("colour",),
        ("lines[0].sku",),
        ("lines[1].sku", "str", "int"),
        ("code", "^a+$"),
        ("size", "s", "m"),
        ("count", 3),
    ):
        assert mentions(said, *named)
    assert "secret" not in said


class One(msgspec.Struct, tag_field="kind", tag="one"):
    a: int


class Two(msgspec.Struct, tag_field="kind", tag="two"):
    b: int


@pytest.mark.parametrize(
    ("kind", "value", "named"),
    [
        (One | Two, {"kind": "three", "a": 1}, ("x.kind", "one", "two")),
        (One | Two, {"a": 1}, ("x.kind", "one", "two")),
        (One | Two, {"kind": "two"}, ("x.b",)),
        (list[One | Two], [{"kind": []}], ("x[0].kind", "one", "two")),
        (Literal["a", 1, None], "b", ("x", "a", "1", "null")),
        (Literal["a", "b"], "c", ("x", "a", "b")),
    ],
)
async def test_all_that_may_be_meant_is_named(kind: Any, value: Any, named: tuple[str, ...]) -> None:
    def run(x: Any) -> str:
        return "x"

    run.__annotations__["x"] = kind
    app = Server("x")
    app.add_tool(run)
    assert mentions(error_text(await Client(app).call("run", {"x": value})), *named)


@pytest.mark.parametrize(
    ("kind", "example"),
    [
        (datetime.datetime, "1999-12-31T09:30:00Z"),
        (datetime.time, "09:30:00"),
        (datetime.timedelta, "PT1H30M"),
        (uuid.UUID, "UUID"),
        (decimal.Decimal, "12.50"),
        (bytes, "base64"),
    ],
)
def test_a_value_with_a_text_form_is_explained_by_an_example(kind: Any, example: str) -> None:
    def run(x: Any) -> None: ...

    run.__annotations__["x"] = kind
    assert mentions(refusal(run, {"x": "%"}), "x", example)


def test_the_examples_fit() -> None:
    for kind, text in (
        (datetime.datetime, "1999-12-31T09:30:00Z"),
        (datetime.time, "09:30:00"),
        (datetime.timedelta, "PT1H30M"),
        (uuid.UUID, "6f1c2b7a-e64d-4c3a-9f1c-2b7ae64d0a51"),
        (decimal.Decimal, "12.50"),
        (bytes, "aGVsbG8="),
    ):
        assert isinstance(convert_value(kind, text), kind)


def test_a_pattern_error_names_the_location_of_the_text() -> None:
    def run(codes: list[Annotated[str, msgspec.Meta(pattern="^[a-z]+$")]]) -> None: ...

    assert mentions(refusal(run, {"codes": ["a", "B"]}), "codes[1]", "^[a-z]+$")


async def test_prompts_take_structured_arguments_as_text() -> None:
    app = Server("x")

    @app.prompt
    def go(trip: Trip, days: int) -> str:
        return f"{trip.legs[0].start} {days}"

    got = await Client(app).request(
        "prompts/get", {"name": "go", "arguments": {"trip": '{"legs": [{"start": "a", "km": 1}]}', "days": "2"}}
    )
    assert got["messages"][0]["content"]["text"] == "a 2"
