"""Test forms: flat types as requested schemas, and answers as values."""

import enum
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, NotRequired, TypedDict

import attrs
import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from dovetail.server.parameters.elicitation_form import compile_form
from support.mentions import values
from support.official_schemas import load_schema, needs_schema


class Seat(enum.Enum):
    WINDOW = "w"
    EXTRA_LEG_ROOM = "x"
    AisleSeat = "a"


class Same(enum.StrEnum):
    yes = "yes"
    no = "no"


class Count(enum.IntEnum):
    ONE = 1


@dataclass
class Booking:
    """A seat on a flight."""

    name: Annotated[str, Meta(min_length=2, max_length=50, title="Name", description="As in the passport.")]
    bags: Annotated[int, Meta(gt=0, le=3)]
    day: date
    email: Annotated[str, Meta(extra_json_schema={"format": "email"})] | None
    at: datetime | None = None
    weight: Annotated[float, Meta(ge=0, lt=100)] = 1.5
    insured: bool = False
    seat: Seat = Seat.AisleSeat
    meal: Literal["vegan", "meat", "fish"] = "meat"
    extras: Annotated[list[Seat], Meta(min_length=1, max_length=2)] = field(default_factory=lambda: [Seat.WINDOW])
    days: set[Literal["sun", "mon"]] = field(default_factory=lambda: {"mon"})


def test_every_kind_of_field() -> None:
    options = [
        {"const": "w", "title": "Window"},
        {"const": "x", "title": "Extra leg room"},
        {"const": "a", "title": "AisleSeat"},
    ]
    assert compile_form(Booking).schema == {
        "type": "object",
        "properties": {
            "name": {
                "type": "string",
                "title": "Name",
                "description": "As in the passport.",
                "minLength": 2,
                "maxLength": 50,
            },
            "bags": {"type": "integer", "minimum": 1, "maximum": 3},
            "day": {"type": "string", "format": "date"},
            "email": {"type": "string", "format": "email"},
            "at": {"type": "string", "format": "date-time"},
            "weight": {"type": "number", "minimum": 0, "default": 1.5},
            "insured": {"type": "boolean", "default": False},
            "seat": {"type": "string", "oneOf": options, "default": "a"},
            "meal": {"type": "string", "enum": ["vegan", "meat", "fish"], "default": "meat"},
            "extras": {
                "type": "array",
                "minItems": 1,
                "maxItems": 2,
                "items": {"anyOf": options},
                "default": ["w"],
            },
            "days": {"type": "array", "items": {"type": "string", "enum": ["sun", "mon"]}, "default": ["mon"]},
        },
        "required": ["name", "bags", "day"],
    }


def test_the_answer_is_a_value_of_the_type() -> None:
    content = {"name": "Ada", "bags": 1.0, "day": "2024-05-06", "seat": "w", "extras": ["x"], "days": ["sun", "sun"]}
    assert compile_form(Booking).read(content) == Booking(
        "Ada", 1, date(2024, 5, 6), None, seat=Seat.WINDOW, extras=[Seat.EXTRA_LEG_ROOM], days={"sun"}
    )


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "A"}, "name"),
        ({"name": None}, "name"),
        ({"bags": 0}, "bags"),
        ({"bags": "1"}, "bags"),
        ({"day": "tomorrow"}, "day"),
        ({"weight": 100}, "weight"),
        ({"seat": "secret"}, "seat"),
        ({"extras": []}, "extras"),
        ({"extras": ["secret"]}, "extras[0]"),
        ({"days": "sun"}, "days"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=values(field)) as refusal:
        compile_form(Booking).read({"name": "Ada", "bags": 1, "day": "2024-05-06", **change})
    assert "secret" not in str(refusal.value)


def test_no_answer_is_refused_unless_nothing_is_required() -> None:
    with pytest.raises(ValueError, match=values("name")):
        compile_form(Booking).read(None)

    @dataclass
    class Free:
        note: str = "none"
        more: str | None = None

    assert compile_form(Free).schema["properties"]["more"] == {"type": "string"}
    assert "required" not in compile_form(Free).schema
    assert compile_form(Free).read(None) == Free()


class Struct(msgspec.Struct, rename="camel"):
    kind: ClassVar[str] = "struct"
    first_seat: Seat
    last_seat: Literal["b", "a"] = "a"
    notes: list[Same] = []


class Typed(TypedDict):
    first: Seat
    last: NotRequired[Literal["b", "a"]]
    at: NotRequired[datetime]


class Named(NamedTuple):
    first: Seat
    last: Literal["b", "a"] = "a"
    more: list[Same] = []  # noqa: RUF012


@attrs.define
class Attrs:
    first: Seat
    last: Literal["b", "a"] = "a"
    more: list[Same] = attrs.field(factory=lambda: [Same.no])


def test_structs_use_their_wire_names() -> None:
    form = compile_form(Struct)
    assert list(form.schema["properties"]) == ["firstSeat", "lastSeat", "notes"]
    assert form.schema["properties"]["firstSeat"]["oneOf"][0] == {"const": "w", "title": "Window"}
    assert form.schema["properties"]["lastSeat"] == {"type": "string", "enum": ["b", "a"], "default": "a"}
    assert form.schema["properties"]["notes"]["items"] == {"type": "string", "enum": ["yes", "no"]}
    assert form.read({"firstSeat": "w"}) == Struct(Seat.WINDOW)


def test_the_tag_of_a_struct_is_not_asked_for() -> None:
    class Tagged(msgspec.Struct, tag="seat"):
        row: int

    assert compile_form(Tagged).schema == {
        "type": "object",
        "properties": {"row": {"type": "integer"}},
        "required": ["row"],
    }
    assert compile_form(Tagged).read({"row": 3}) == Tagged(3)


def test_typed_dicts() -> None:
    form = compile_form(Typed)
    assert form.schema["properties"]["last"] == {"type": "string", "enum": ["b", "a"]}
    assert form.schema["properties"]["at"] == {"type": "string", "format": "date-time"}
    assert form.schema["required"] == ["first"]
    assert form.read({"first": "w"}) == {"first": Seat.WINDOW}


def test_named_tuples_are_forms_with_names() -> None:
    form = compile_form(Named)
    assert form.schema["properties"]["last"] == {"type": "string", "enum": ["b", "a"], "default": "a"}
    assert form.schema["properties"]["more"]["default"] == []
    assert form.schema["required"] == ["first"]
    assert form.read({"first": "w"}) == Named(Seat.WINDOW)
    assert isinstance(form.read({"first": "w"}), Named)


def test_attrs_classes() -> None:
    form = compile_form(Attrs)
    assert form.schema["properties"]["more"]["default"] == ["no"]
    assert form.read({"first": "w", "last": "b"}) == Attrs(Seat.WINDOW, "b", [Same.no])


@pytest.mark.parametrize(
    ("kind", "schema", "content", "value"),
    [
        (str, {"type": "string"}, "a", "a"),
        (int, {"type": "integer"}, 3.0, 3),
        (float, {"type": "number"}, 3, 3.0),
        (bool, {"type": "boolean"}, True, True),
        (date, {"type": "string", "format": "date"}, "2024-01-01", date(2024, 1, 1)),
        (Decimal, {"type": "string"}, "1.5", Decimal("1.5")),
        (Path, {"type": "string"}, "a", Path("a")),
        (Literal["b", "a"], {"type": "string", "enum": ["b", "a"]}, "b", "b"),
        (Same, {"type": "string", "enum": ["yes", "no"]}, "no", Same.no),
        (list[Literal["b", "a"]], {"type": "array", "items": {"type": "string", "enum": ["b", "a"]}}, ["a"], ["a"]),
        (Annotated[int, Meta(ge=1, description="n")], {"type": "integer", "minimum": 1, "description": "n"}, 1, 1),
        (Annotated[str, "no matter"], {"type": "string"}, "a", "a"),
        (Annotated[int, Meta(lt=5)], {"type": "integer", "maximum": 4}, 4, 4),
    ],
)
def test_a_single_primitive(kind: Any, schema: dict[str, Any], content: Any, value: Any) -> None:
    form = compile_form(kind)
    assert form.schema == {"type": "object", "properties": {"value": schema}, "required": ["value"]}
    read = form.read({"value": content})
    assert read == value
    assert type(read) is type(value)
    with pytest.raises(ValueError, match=values("value")):
        form.read({})


def test_an_optional_primitive_may_be_left_blank() -> None:
    for kind in (int | None, Literal["a", None], Seat | None):
        form = compile_form(kind)
        assert "required" not in form.schema
        assert form.read(None) is None
    assert compile_form(Literal["a", None]).schema["properties"]["value"] == {"type": "string", "enum": ["a"]}


@dataclass
class Nested:
    fine: int
    inner: Typed


@dataclass
class Loose:
    anything: Any


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (Nested, "Nested.inner"),
        (Loose, "Loose.anything"),
        (list[str], "list[str].value"),
        (list[Count], "value"),
        (dict[str, int], "value"),
        (Count, "Count.value"),
        (Literal[1, 2], "value"),
        (int | str, "value"),
        (bytes, "bytes.value"),
        (tuple[int, int], "value"),
        (list[Typed], "value"),
        (dict, "dict.value"),
        (object, "object"),
    ],
)
def test_what_no_form_can_hold_is_refused_by_name(kind: Any, named: str) -> None:
    with pytest.raises(TypeError, match=values(named)):
        compile_form(kind)


def test_an_unresolvable_type_is_refused_by_name() -> None:
    class Lost:
        x: "Nowhere"  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

    with pytest.raises(TypeError, match=values("Lost", "Nowhere")):
        compile_form(Lost)


def test_a_class_is_compiled_once() -> None:
    assert compile_form(Booking) is compile_form(Booking)
    ordered = compile_form(Literal["a", "b"]).schema, compile_form(Literal["b", "a"]).schema
    assert [schema["properties"]["value"]["enum"] for schema in ordered] == [["a", "b"], ["b", "a"]]


# Schemas of the author's own.

OWN: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 3},
        "age": {"type": "integer", "minimum": 18, "maximum": 99},
        "rate": {"type": "number"},
        "sure": {"type": "boolean"},
        "color": {"type": "string", "enum": ["red", "blue"]},
        "legacy": {"type": "string", "enum": ["a"], "enumNames": ["A"]},
        "seat": {"type": "string", "oneOf": [{"const": "w", "title": "Window"}]},
        "many": {"type": "array", "minItems": 1, "items": {"type": "string", "enum": ["a", "b"]}},
        "titled": {"type": "array", "maxItems": 1, "items": {"anyOf": [{"const": "w", "title": "Window"}]}},
    },
    "required": ["name"],
}


def test_a_schema_is_taken_as_it_is() -> None:
    form = compile_form(OWN)
    assert form.schema is OWN
    content = {
        "name": "Ada", "age": 20.0, "rate": 1, "sure": False, "color": "red", "legacy": "a", "seat": "w", "many": ["a"],
        "titled": ["w"], "unasked": [1],
    }  # fmt: skip
    assert form.read(content) == content


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"name": 3}, ("name", "string")),
        ({"name": "A"}, ("name", "minLength", 2)),
        ({"name": "Adam"}, ("name", "maxLength", 3)),
        ({"age": 17}, ("age", "minimum", 18)),
        ({"age": 100}, ("age", "maximum", 99)),
        ({"age": 20.5}, ("age", "integer")),
        ({"age": True}, ("age", "integer")),
        ({"rate": "1"}, ("rate", "number")),
        ({"rate": False}, ("rate", "number")),
        ({"sure": 1}, ("sure", "boolean")),
        ({"color": "green"}, ("color",)),
        ({"seat": "Window"}, ("seat",)),
        ({"many": "a"}, ("many", "array")),
        ({"many": []}, ("many", "minItems", 1)),
        ({"many": ["a", "c"]}, ("many",)),
        ({"titled": ["x"]}, ("titled",)),
        ({"titled": ["w", "w"]}, ("titled", "maxItems", 1)),
    ],
)
def test_an_answer_is_held_against_the_schema(change: dict[str, Any], named: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=values(*named)):
        compile_form(OWN).read({"name": "Ada", **change})


def test_what_the_schema_requires_must_be_there() -> None:
    with pytest.raises(ValueError, match=values("name")):
        compile_form(OWN).read(None)


_values = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "ab", "red", "a", "w"])


@given(st.dictionaries(st.sampled_from(list(OWN["properties"])), _values | st.lists(_values, max_size=3)))
def test_reading_agrees_with_the_schema(content: dict[str, Any]) -> None:
    fits = jsonschema_rs.validator_for(OWN).is_valid(content)
    try:
        compile_form(OWN).read(content)
    except ValueError:
        assert not fits
    else:
        assert fits


# The specification.


@needs_schema("2026-07-28")
@pytest.mark.parametrize("kind", [Booking, Struct, Typed, Named, Attrs, bool, Seat, list[Seat], Seat | None, OWN])
def test_every_form_is_one_the_specification_allows(kind: Any) -> None:
    official = load_schema("2026-07-28")
    validator = jsonschema_rs.validator_for(
        {"$ref": "#/$defs/ElicitRequestFormParams", "$defs": official["$defs"], "$schema": official["$schema"]}
    )
    form = {"message": "m", "requestedSchema": compile_form(kind).schema}
    assert [error.message for error in validator.iter_errors(form)] == []


TITLED = [{"const": "a", "title": "A"}]


@pytest.mark.parametrize(
    ("field", "is_flat"),
    [
        ({"type": "string"}, True),
        ({"type": "string", "oneOf": TITLED}, True),
        ({"type": "string", "oneOf": [{"title": "A"}]}, False),
        ({"type": "string", "oneOf": {}}, False),
        ({"type": "string", "items": {}}, False),
        ({"type": "string", "items": {}, "oneOf": TITLED}, False),
        ({"type": "string", "properties": {}}, False),
        ({"type": "object"}, False),
        ({"type": "array", "items": {"type": "string", "enum": ["a"]}}, True),
        ({"type": "array", "items": {"anyOf": TITLED}}, True),
        ({"type": "array", "items": {"type": "string"}}, False),
        ({"type": "array", "items": {"enum": ["a"]}, "oneOf": TITLED}, False),
        ({"type": "array"}, False),
        ("string", False),
    ],
)
def test_a_field_of_a_schema_is_flat(field: Any, is_flat: bool) -> None:
    schema = {"type": "object", "properties": {"field": field}}
    if is_flat:
        assert compile_form(schema).schema == schema
    else:
        with pytest.raises(ValueError, match="field `field` of a form must be"):
            compile_form(schema)
