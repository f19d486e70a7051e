"""Test the JSON types of Python annotations."""

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import NoneType
from typing import Annotated, Any, Literal, NewType, NotRequired, TypedDict

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta
from typing_extensions import TypeAliasType

from dovetail.server.parameters.annotations import (
    build_schema,
    build_schemas,
    convert_value,
    get_default_factories,
    to_json,
)
from dovetail.server.parameters.signature import InvalidArguments, compile_signature
from dovetail.server.parameters.type_hints import is_subclass_of, list_alternatives, unwrap_annotation
from dovetail.server.parameters.unknown_fields import compile_unknown_field_check
from support.mentions import values


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(msgspec.Struct):
    """A place on the map."""

    x: int
    y: int = 0


class Tree(msgspec.Struct):
    name: str
    children: list["Tree"] = []


class Ping(msgspec.Struct, tag="ping"):
    count: int


class Pong(msgspec.Struct, tag="pong"):
    count: int


class Lost(msgspec.Struct):
    x: "Nowhere"  # noqa: F821  # pyright: ignore[reportUndefinedVariable]


@dataclass
class Basket:
    items: list[str] = field(default_factory=list)
    owner: str = "nobody"


class Row(TypedDict):
    id: int
    tags: list[str]


def test_references_are_written_out_and_class_names_are_no_titles() -> None:
    assert build_schema(list[Point]) == {
        "type": "array",
        "items": {
            "description": "A place on the map.",
            "type": "object",
            "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
            "required": ["x"],
            "additionalProperties": False,
        },
    }


def test_an_argument_is_closed_and_a_result_may_have_more_some_day() -> None:
    assert build_schema(Basket)["additionalProperties"] is False
    assert "additionalProperties" not in build_schema(Basket, output=True)


def test_a_title_the_author_gave_stays() -> None:
    assert build_schema(Annotated[Point, Meta(title="Where")])["title"] == "Where"
    assert build_schema(Annotated[int, Meta(title="How many", examples=[3])]) == {
        "type": "integer",
        "title": "How many",
        "examples": [3],
    }


def test_the_description_at_the_place_of_use_wins() -> None:
    assert build_schema(Annotated[Point, Meta(description="Start.")])["description"] == "Start."


def test_a_recursive_type_keeps_one_definition_and_an_open_root() -> None:
    schema = build_schema(Tree)
    assert schema["type"] == "object"
    assert schema["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
    assert list(schema["$defs"]) == ["Tree"]
    validator = jsonschema_rs.validator_for(schema)
    assert validator.is_valid({"name": "a", "children": [{"name": "b"}]})
    assert not validator.is_valid({"name": "a", "children": [{"nome": "b"}]})


def test_a_type_beside_a_recursive_one_is_still_written_out() -> None:
    (tree, point), shared = build_schemas([Tree, Point])
    assert tree == {"$ref": "#/$defs/Tree"}
    assert point["type"] == "object"
    assert list(shared) == ["Tree"]


def test_tagged_unions_carry_no_discriminator() -> None:
    schema = build_schema(Ping | Pong)
    assert list(schema) == ["anyOf"]
    assert schema["anyOf"][0]["properties"]["type"] == {"type": "string", "enum": ["ping"]}


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (Color, {"type": "string", "enum": ["red", "blue"]}),
        (Level, {"type": "integer", "enum": [1, 2]}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a", 1], {"enum": ["a", 1]}),
        (Path, {"type": "string"}),
        (Path | None, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        (Any, {}),
        (Annotated[str, Meta(extra_json_schema={"x-own": "A"})], {"type": "string", "x-own": "A"}),
        (Basket, {"type": "object", "properties": {"items": {"type": "array", "items": {"type": "string"}},
                                                   "owner": {"type": "string", "default": "nobody"}},
                  "additionalProperties": False}),
    ],
)  # fmt: skip
def test_schema_of(kind: Any, schema: dict[str, Any]) -> None:
    assert build_schema(kind) == schema


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (complex, "complex"),
        (object, "object"),
        (Point | Tree, "tag"),
        (Point | dict[str, int], "tag"),
        (bytes | str, "str-like"),
        (Lost, "`Nowhere`"),
    ],
)
def test_a_type_without_json_form_is_refused_in_one_line(kind: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says) as refusal:
        build_schema(kind)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (int, 3.0, 3),
        (list[int], [1.0, 2], [1, 2]),
        (dict[int, str], {"1": "a"}, {1: "a"}),
        (Path, "a/b", Path("a/b")),
        (list[PurePosixPath], ["a"], [PurePosixPath("a")]),
        (Path, Path("a"), Path("a")),
        (dict[int, Path], {"1": Path("a")}, {1: Path("a")}),
        (Point, {"x": 1.0}, Point(1)),
        (Point, Point(1), Point(1)),
        (Color, "red", Color.RED),
    ],
)
def test_read_as(kind: Any, given: Any, value: Any) -> None:
    read = convert_value(kind, given)
    assert read == value
    assert type(read) is type(value)


def test_only_lax_reading_takes_text_for_numbers() -> None:
    assert convert_value(int, "3", lax=True) == 3
    assert convert_value(bool, "true", lax=True) is True
    with pytest.raises(ValueError, match=values("int", "str")):
        convert_value(int, "3")


@pytest.mark.parametrize(
    ("kind", "given", "named"),
    [
        (int, 3.5, ("int", "float")),
        (list[Point], [{"x": 1}, {"x": "secret"}], ("[1].x", "int", "str")),
        (Row, {"id": 1}, ("tags",)),
        (Color, "secret", ()),
        (Literal["a"], "secret", ()),
        (Ping | Pong, {"type": "secret"}, ("type",)),
        (dict[int, int], {"secret": 1}, ("int", "str")),
        (Path, 3, ("Path", "int")),
    ],
)
def test_a_misfit_says_where_and_why_but_never_what(kind: Any, given: Any, named: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=values(*named)) as refusal:
        convert_value(kind, given)
    assert "secret" not in str(refusal.value)


def test_reading_without_end_is_a_misfit() -> None:
    deep: dict[str, Any] = {"name": "x"}
    for _ in range(200_000):
        deep = {"name": "x", "children": [deep]}
    with pytest.raises(ValueError, match=r"\S"):
        convert_value(Tree, deep)


class Text(str):
    __slots__ = ()


class Number(float):
    __slots__ = ()


class Count(int):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Point(1), b'{"x":1,"y":0}'),
        ({1: "a", "b": None}, b'{"1":"a","b":null}'),
        ((1, [2.5]), b"[1,[2.5]]"),
        (Path("a"), b'"a"'),
        (Color.RED, b'"red"'),
        (["null"], b'["null"]'),
        ([Text("a"), Number(1.5), Count(2)], b'["a",1.5,2]'),
        (None, b"null"),
    ],
)
def test_to_json(value: Any, text: bytes) -> None:
    assert to_json(value)[1] == text


def _cycle() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (math.nan, ("NaN", "$")),
        ({"a": [1, math.nan]}, ("NaN", "$.a[1]")),
        ({"$": (math.inf,)}, ("Infinity", "$.$[0]")),
        (Basket(owner=-math.inf), ("Infinity", "$.owner")),  # pyright: ignore[reportArgumentType]
        (_cycle(), ()),
        ("\ud800", ()),
        ({"\udfff": 1}, ()),
        ({(1, 2): 3}, ()),
        ({None: 3}, ()),
    ],
)
def test_a_value_without_json_form_is_refused(value: Any, named: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=values(*named)):
        to_json(value)


@pytest.mark.parametrize("value", [object(), 1j, {"a": {}.keys()}, (item for item in "ab")])
def test_a_type_without_json_form_is_named(value: Any) -> None:
    with pytest.raises(TypeError, match=r"`(object|complex|dict_keys|generator)`"):
        to_json(value)


def test_default_factories_are_found_by_wire_name() -> None:
    class Renamed(msgspec.Struct, rename="camel"):
        some_tags: list[str] = msgspec.field(default_factory=lambda: ["a"])
        plain: int = 3

    assert get_default_factories(Basket)["items"]() == []
    assert {name: make() for name, make in get_default_factories(Renamed).items()} == {"someTags": ["a"]}
    assert get_default_factories(int) == {}


def test_peeling_and_alternatives() -> None:
    identifier = NewType("identifier", int)
    assert unwrap_annotation(Annotated[identifier, "x"]) is int
    assert unwrap_annotation(NotRequired[Annotated[int, "x"]]) is int
    assert unwrap_annotation(TypeAliasType("Alias", int)) is int
    assert unwrap_annotation(None) is NoneType
    assert list_alternatives(Annotated[int | None, "x"] | Annotated[str, "y"]) == [int, NoneType, str]
    assert list_alternatives(list[int]) == [list[int]]
    assert is_subclass_of(list[int], list)
    assert not is_subclass_of(3, int)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
        ["", "a", "red", "blue", "1", "ping"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["x", "y", "id", "tags", "name", "children", "count", "type", "1"]), inner, max_size=4
    ),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    [
        int, float, str, bool, Color, Level, Literal["a", "red"], int | None, list[int], dict[str, float], Point, Row,
        Tree, Ping | Pong, tuple[int, str], int | str, Annotated[int, Meta(ge=0, lt=5)],
        Annotated[str, Meta(min_length=1)],
    ],
)  # fmt: skip
@given(value=_json)
def test_what_is_read_is_what_the_schema_describes(kind: Any, value: Any) -> None:
    schema = build_schema(kind)
    fits = jsonschema_rs.validator_for(schema).is_valid(value)
    knows = compile_unknown_field_check({"properties": {"value": schema}, "$defs": schema.get("$defs", {})})
    try:
        convert_value(kind, value)
    except ValueError:
        assert not fits
    else:
        assert fits == (knows is None or knows({"value": value}))


@given(value=_json)
def test_json_is_its_own_json(value: Any) -> None:
    data, text = to_json(value)
    assert data == value
    assert msgspec.json.decode(text) == value


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@pytest.mark.parametrize(
    ("kind", "value", "seen"),
    [
        (Iterable[int], [1, 2], [1, 2]),
        (Iterable[int] | None, [1], [1]),
        (Annotated[Iterable[str], "words"], ["a"], ["a"]),
        (TypeAliasType("Numbers", list[int]), [1], [1]),
        (TypeAliasType("Numbers", list[int]) | None, None, None),
        (Rights, 2, Rights.WRITE),
        (Rights, 3, Rights.READ | Rights.WRITE),
    ],
)
def test_arguments_in_other_words(kind: Any, value: Any, seen: Any) -> None:
    def function(x: Any) -> None: ...

    function.__annotations__["x"] = kind
    signature = compile_signature(function, context_type=int)
    assert signature.bind({"x": value}, None)[0] == (seen,)
    with pytest.raises(InvalidArguments):
        signature.bind({"x": {"no": 1}}, None)
    with pytest.raises(InvalidArguments):
        signature.bind({"x": 8}, None)
