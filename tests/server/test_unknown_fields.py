"""Test that unknown fields are refused at every level, with a suggestion."""

from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import attrs
import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass

from dovetail.server.parameters.signature import InvalidArguments, compile_signature
from dovetail.server.parameters.unknown_fields import compile_unknown_field_check
from support.mentions import mentions


class Nobody: ...


@dataclass
class Plain:
    street: str
    number: int = 0


class Keyed(TypedDict, total=False):
    street: str
    number: int


class Quick(msgspec.Struct, rename="camel"):
    street: str
    house_number: int = 0


@attrs.define
class Short:
    street: str
    number: int = 0


class Model(BaseModel):
    street: str
    number: int = 0
    plain: Plain | None = None


@pydantic_dataclass
class Checked:
    street: str
    number: Annotated[int, Field(ge=0)] = 0


class Lenient(Model):
    model_config = ConfigDict(extra="ignore")


class Collecting(Model):
    model_config = ConfigDict(extra="allow")


class Aliased(BaseModel):
    street: str = Field(alias="Street")


class Renaming(BaseModel):
    street: str

    @model_validator(mode="before")
    @classmethod
    def _older(cls, value: Any) -> Any:
        return {"street": value.get("road", value.get("street"))}


class Cat(msgspec.Struct, tag="cat"):
    lives: int = 9


class Dog(msgspec.Struct, tag="dog"):
    tricks: int = 0


class Tree(msgspec.Struct):
    name: str
    below: "list[Tree]" = []


def bound(kind: Any, value: Any) -> Any:
    def run(x: Any) -> None: ...

    run.__annotations__["x"] = kind
    ((found,), _) = compile_signature(run, context_type=Nobody).bind({"x": value}, None)
    return found


def refusal(kind: Any, value: Any) -> str:
    with pytest.raises(InvalidArguments) as caught:
        bound(kind, value)
    return str(caught.value)


@pytest.mark.parametrize("kind", [Plain, Keyed, Short, Model, Checked])
def test_a_wrong_name_is_reported_with_a_suggestion(kind: Any) -> None:
    assert mentions(refusal(kind, {"street": "A", "nubmer": 3}), "x", "nubmer", "number")
    assert bound(kind, {"street": "A", "number": 3})


def test_names_are_those_of_the_wire() -> None:
    assert bound(Quick, {"street": "A", "houseNumber": 3}) == Quick("A", 3)
    assert mentions(refusal(Quick, {"street": "A", "house_number": 3}), "house_number", "houseNumber")


@pytest.mark.parametrize(
    ("kind", "value", "place"),
    [
        (list[Plain], [{"street": "A"}, {"street": "B", "zip": 1}], "x[1]"),
        (dict[str, Plain], {"home": {"street": "A", "zip": 1}}, "x.home"),
        (Plain | None, {"street": "A", "zip": 1}, "x"),
        (int | list[Plain], [{"street": "A", "zip": 1}], "x[0]"),
        (tuple[int, Plain], [1, {"street": "A", "zip": 1}], "x[1]"),
        (Tree, {"name": "a", "below": [{"name": "b", "below": [{"name": "c", "zip": 1}]}]}, "x.below[0].below[0]"),
        (Model, {"street": "A", "plain": {"street": "A", "zip": 1}}, "x.plain"),
        (Cat | Dog, {"type": "cat", "zip": 1}, "x"),
        (Plain | Model, {"street": "A", "zip": 1}, "x"),
    ],
)
def test_at_every_level(kind: Any, value: Any, place: str) -> None:
    assert f"`{place}`: unknown `zip`" in refusal(kind, value)


@pytest.mark.parametrize("kind", [Plain, Model])
def test_inside_additional_arguments(kind: Any) -> None:
    def run(number: int = 0, **places: kind) -> None: ...

    signature = compile_signature(run, context_type=Nobody)
    _, places = signature.bind({"number": 1, "home": {"street": "A"}}, None)
    assert places["home"].street == "A"
    with pytest.raises(InvalidArguments, match=r"`home`: unknown `zip`"):
        signature.bind({"number": 1, "home": {"street": "A", "zip": 1}}, None)


def test_of_several_kinds_the_one_that_is_meant_counts() -> None:
    assert "`x`: unknown `tricks`" in refusal(Cat | Dog, {"type": "cat", "tricks": 1})
    assert bound(Cat | Dog, {"type": "dog", "tricks": 1}) == Dog(1)


def test_an_object_written_as_text_is_closed_too() -> None:
    assert "`x`: unknown `zip`" in refusal(Plain, '{"street": "A", "zip": 1}')


def test_all_mistakes_are_reported_at_once() -> None:
    text = refusal(Model, {"streat": "A", "number": "many", "plain": {"street": 1, "zip": 2}})
    for named in (("x.street",), ("x.number",), ("x", "streat", "street"), ("x.plain", "zip")):
        assert mentions(text, *named)


def test_what_pydantic_reads_in_its_own_way_is_not_held_against_a_call() -> None:
    class Meeting(BaseModel):
        when: Annotated[Any, Field(json_schema_extra={"type": "string", "format": "date-time"})]
        seats: int = Field(ge=1)

    text = refusal(Meeting, {"when": "tomorrow", "seats": 0})
    assert mentions(text, "x.seats", 1)
    assert "x.when" not in text


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Lenient, {"street": "A", "zip": 1}),
        (Collecting, {"street": "A", "zip": 1}),
        (Aliased, {"street": "A"}),
        (Renaming, {"road": "A"}),
        (dict[str, Any], {"zip": 1}),
        (Any, {"zip": 1}),
    ],
)
def test_what_may_have_more_members_is_left_open(kind: Any, value: Any) -> None:
    assert bound(kind, value)


def test_arguments_without_objects_inside_need_no_look() -> None:
    assert (
        compile_unknown_field_check(
            {"properties": {"a": {"type": "integer"}, "b": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}
        )
        is None
    )
    assert compile_unknown_field_check({"properties": {"a": {"type": "array", "items": {"type": "object"}}}}) is None
