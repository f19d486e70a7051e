"""Test pydantic types and annotated-types constraints: which library parses them, and what it accepts."""

import subprocess
import sys
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import annotated_types as at
import attrs
import msgspec
import pydantic
import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PositiveInt,
    SecretStr,
    computed_field,
    field_validator,
)
from typing_extensions import TypedDict

from dovetail import Server
from dovetail.server.parameters.annotations import to_json
from dovetail.server.parameters.argument_messages import MismatchError
from dovetail.server.parameters.library_choice import resolve_types
from dovetail.server.parameters.pydantic_types import PydanticType
from dovetail.server.parameters.signature import InvalidArguments, compile_signature
from server.direct_client import Client, error_text
from support.mentions import mentions, values


class Nobody:
    pass


class Item(BaseModel):
    """One line of an order."""

    sku: str = Field(pattern="^[A-Z]{3}$", description="Three letters.")
    amount: PositiveInt = 1

    @field_validator("sku")
    @classmethod
    def known(cls, sku: str) -> str:
        if sku == "XXX":
            raise ValueError("no longer sold")
        return sku


class Order(BaseModel):
    items: list[Item]
    gift: bool = Field(default=False, alias="isGift")

    @computed_field
    @property
    def size(self) -> int:
        return len(self.items)


class Node(BaseModel):
    name: str
    children: list["Node"] = []


@pydantic.dataclasses.dataclass
class Pair:
    left: Annotated[int, Field(ge=0)]
    right: int = 0


@dataclass
class Plain:
    share: Annotated[float, at.Interval(ge=0, le=1)]


class Row(TypedDict):
    n: Annotated[int, at.Gt(0)]


def is_even(value: int) -> bool:
    return value % 2 == 0


def bound(kind: Any, value: Any) -> Any:
    def run(x: Any) -> Any:
        return x

    run.__annotations__["x"] = kind
    args, kwargs = compile_signature(run, context_type=Nobody).bind({"x": value}, None)
    return run(*args, **kwargs)


def schema(kind: Any) -> Any:
    def run(x: Any) -> Any: ...

    run.__annotations__["x"] = kind
    return compile_signature(run, context_type=Nobody).schema["properties"]["x"]


@pytest.mark.parametrize(
    ("kind", "shown", "good", "bad"),
    [
        (Annotated[int, at.Gt(0)], {"type": "integer", "exclusiveMinimum": 0}, 1, 0),
        (Annotated[int, at.Ge(1), at.Lt(9)], {"type": "integer", "minimum": 1, "exclusiveMaximum": 9}, 8, 9),
        (Annotated[float, at.Interval(ge=0, le=1)], {"type": "number", "minimum": 0, "maximum": 1}, 0.5, 2.0),
        (Annotated[int, at.MultipleOf(5)], {"type": "integer", "multipleOf": 5}, 10, 11),
        (Annotated[str, at.Len(2, 3)], {"type": "string", "minLength": 2, "maxLength": 3}, "ab", "a"),
        (Annotated[list[int], at.MinLen(1)], {"type": "array", "items": {"type": "integer"}, "minItems": 1}, [1], []),
        (Annotated[str | None, at.MaxLen(1)],
         {"anyOf": [{"type": "string", "maxLength": 1}, {"type": "null"}]}, "a", "ab"),
        (list[Annotated[int, at.Gt(0)]],
         {"type": "array", "items": {"type": "integer", "exclusiveMinimum": 0}}, [1], [0]),
        (Annotated[int, at.Predicate(is_even)], {"type": "integer"}, 2, 3),
        (Annotated[int, at.Predicate(is_even)] | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}, 2, 3),
        (PositiveInt, {"type": "integer", "exclusiveMinimum": 0}, 3, 0),
        (Annotated[int, Field(ge=2, description="Two.")],
         {"type": "integer", "minimum": 2, "description": "Two."}, 2, 1),
        (Annotated[int, "Three.", Field(ge=3)], {"type": "integer", "minimum": 3, "description": "Three."}, 3, 1),
    ],
)  # fmt: skip
def test_constraints_are_shown_and_kept(kind: Any, shown: Any, good: Any, bad: Any) -> None:
    assert schema(kind) == shown
    assert bound(kind, good) == good
    with pytest.raises(InvalidArguments, match="`x"):
        bound(kind, bad)


def test_constraints_on_types_msgspec_cannot_compare() -> None:
    kind = Annotated[Decimal, at.Gt(0)]
    assert bound(kind, "0.5") == Decimal("0.5")
    with pytest.raises(InvalidArguments, match=values("x", 0)):
        bound(kind, "-1")
    with pytest.raises(InvalidArguments, match=values("x", "2020-01-01")):
        bound(Annotated[date, at.Ge(date(2020, 1, 1))], "2019-12-31")


def test_a_model_is_read_and_described_by_pydantic() -> None:
    order = bound(Order, {"items": [{"sku": "ABC"}], "isGift": True})
    assert order == Order(items=[Item(sku="ABC", amount=1)], isGift=True)
    assert schema(Order) == {
        "type": "object",
        "properties": {
            "items": {
                "type": "array",
                "items": {
                    "description": "One line of an order.",
                    "type": "object",
                    "properties": {
                        "sku": {"type": "string", "pattern": "^[A-Z]{3}$", "description": "Three letters."},
                        "amount": {"type": "integer", "exclusiveMinimum": 0, "default": 1},
                    },
                    "required": ["sku"],
                    "additionalProperties": False,
                },
            },
            "isGift": {"type": "boolean", "default": False},
        },
        "required": ["items"],
    }


def test_all_mistakes_in_a_model_are_reported_at_once() -> None:
    given = {"items": [{"sku": "XXX", "amount": 0}, {"sku": 7}]}
    with pytest.raises(InvalidArguments) as caught:
        bound(Order, given)
    for place in ("`x.items[0].sku`: value error, no longer sold", "`x.items[0].amount`: ", "`x.items[1].sku`: "):
        assert place in str(caught.value)


def test_a_recursive_model_keeps_one_definition() -> None:
    def plant(tree: Node, other: Node | None = None) -> None: ...

    made = compile_signature(plant, context_type=Nobody).schema
    assert made["properties"]["tree"] == {"$ref": "#/$defs/Node"}
    assert made["$defs"]["Node"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert bound(Node, {"name": "a", "children": [{"name": "b"}]}).children[0].name == "b"


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (Pair, {"left": 1}, Pair(1)),
        (Plain, {"share": 0.5}, Plain(0.5)),
        (Row, {"n": 1}, {"n": 1}),
        (list[Item], [{"sku": "ABC"}], [Item(sku="ABC")]),
        (dict[str, Item | None], {"a": None}, {"a": None}),
        (Item | None, None, None),
        (Item | int, 4, 4),
        (Item | int, {"sku": "ABC"}, Item(sku="ABC")),
        (SecretStr, "s", SecretStr("s")),
        (Literal["b", "a"] | None, "a", "a"),
    ],
)
def test_where_they_may_stand(kind: Any, given: Any, value: Any) -> None:
    assert bound(kind, given) == value


@pytest.mark.parametrize(("kind", "given"), [(Pair, {"left": -1}), (Plain, {"share": 2}), (Row, {"n": 0})])
def test_constraints_inside_a_class_are_kept_too(kind: Any, given: Any) -> None:
    with pytest.raises(InvalidArguments, match="`x"):
        bound(kind, given)


def test_a_field_written_as_a_default() -> None:
    def run(n: int = Field(ge=1, description="How many."), tag: str = Field("x", max_length=3)) -> Any:
        return n, tag

    signature = compile_signature(run, context_type=Nobody)
    assert signature.schema["required"] == ["n"]
    assert signature.schema["properties"]["n"] == {"type": "integer", "minimum": 1, "description": "How many."}
    assert signature.schema["properties"]["tag"] == {"type": "string", "maxLength": 3, "default": "x"}
    assert signature.bind({"n": 2}, None)[0] == (2, "x")
    with pytest.raises(InvalidArguments, match=r"`n`: .*1.*`tag`: .*3"):
        signature.bind({"n": 0, "tag": "long"}, None)


def test_a_default_factory_runs_in_each_call_and_not_before() -> None:
    numbers = iter(range(10))

    def run(n: int = Field(default_factory=lambda: next(numbers)), tag: str = Field(default_factory=str)) -> Any:
        return n, tag

    signature = compile_signature(run, context_type=Nobody)
    assert "required" not in signature.schema
    assert all("default" not in member for member in signature.schema["properties"].values())
    assert [signature.bind({}, None)[0] for _ in range(2)] == [(0, ""), (1, "")]
    assert signature.bind({"n": 7, "tag": "a"}, None)[0] == (7, "a")


def test_a_default_factory_may_use_the_other_arguments() -> None:
    def run(first: str, full: str = Field(default_factory=lambda data: data["first"] + "!")) -> Any:
        return first, full

    assert compile_signature(run, context_type=Nobody).bind({"first": "ada"}, None)[0] == ("ada", "ada!")


def test_additional_arguments_are_read_as_they_are_described() -> None:
    def run(item: Item, data: bytes, **files: bytes) -> None: ...

    signature = compile_signature(run, context_type=Nobody)
    assert signature.schema["additionalProperties"] == signature.schema["properties"]["data"]
    args, kwargs = signature.bind({"item": {"sku": "ABC"}, "data": "+/8=", "logo": "+/8="}, None)
    assert kwargs == {"logo": b"\xfb\xff"} == {"logo": args[1]}


def test_a_constraint_that_no_library_checks_is_refused() -> None:
    @attrs.define
    class Box:
        width: Annotated[int, at.Gt(0)]

    class Slot(msgspec.Struct):
        width: Annotated[int, Field(gt=0)]

    for kind in (Box, Slot):
        with pytest.raises(TypeError, match=values("width")):
            schema(kind)


def test_what_msgspec_understands_is_left_alone() -> None:
    class Point(NamedTuple):
        x: Annotated[int, msgspec.Meta(gt=0)]

    for kind in (int, list[Point], dict[str, Point | None], Annotated[int, msgspec.Meta(ge=1)], Literal["a"], Any):
        library, types = resolve_types({"x": kind})
        assert library == "msgspec"
        assert types["x"] is kind


async def test_models_as_results() -> None:
    app = Server("shop")

    @app.tool
    def order(n: int) -> Order:
        return Order(items=[Item(sku="ABC", amount=n)])

    @app.tool
    def orders() -> list[Order]:
        return [Order(items=[])]

    @app.tool
    def wrong() -> Order:
        return {"items": 3}  # pyright: ignore[reportReturnType]

    client = Client(app)
    result = await client.call("order", {"n": 2})
    value = {"items": [{"sku": "ABC", "amount": 2}], "isGift": False, "size": 1}
    assert result["structuredContent"] == value
    assert (await client.call("orders"))["structuredContent"] == {"result": [{"items": [], "isGift": False, "size": 0}]}
    assert mentions(error_text(await client.call("wrong")), "wrong")
    listed = {one["name"]: one for one in (await client.request("tools/list"))["tools"]}
    assert listed["order"]["outputSchema"]["required"] == ["items", "size"]


async def test_a_model_as_a_form() -> None:
    class Seat(BaseModel):
        row: int = Field(ge=1, description="Counted from the front.")
        window: bool = True

    from dovetail.server.parameters.elicitation_form import compile_form

    form = compile_form(Seat)
    assert form.schema["properties"]["row"]["description"] == "Counted from the front."
    assert form.read({"row": 3}) == Seat(row=3)
    with pytest.raises(ValueError, match="row"):
        form.read({"row": 0})


def test_pydantic_is_not_loaded_for_those_who_do_not_use_it() -> None:
    program = (
        "import sys, annotated_types as at; from typing import Annotated\n"
        "from dovetail import Server; app = Server('x')\n"
        "app.add_tool(lambda a: a, name='f')\n"
        "def g(n: Annotated[int, at.Gt(0)]) -> int: return n\n"
        "app.add_tool(g); print('pydantic' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "False"


class Counted(BaseModel):
    number: int = 1
    share: float | str = 0.5
    sure: bool = False
    either: int | bool = 0
    inner: "list[Counted]" = []
    by: Annotated[int, Field(ge=0)] = 0


def test_pydantic_does_not_accept_a_boolean_as_a_number() -> None:
    fits = {"sure": True, "either": True, "inner": [{"sure": False, "number": 2}]}
    assert bound(Counted, fits).inner[0].number == 2
    with pytest.raises(InvalidArguments) as caught:
        bound(Counted, {"number": True, "share": False, "inner": [{}, {"by": True}]})
    for place, kind in {"x.number": "int", "x.share": "float | str", "x.inner[1].by": "int"}.items():
        assert f"`{place}`: expected `{kind}`, got `bool`" in str(caught.value)


def test_a_boolean_is_not_a_number_for_a_parameter_with_a_field() -> None:
    with pytest.raises(InvalidArguments, match=values("int", "bool")):
        bound(Annotated[int, Field(ge=0)], True)


class Place(msgspec.Struct):
    name: str


@attrs.define
class Crate:
    width: int


class Slot(msgspec.Struct):
    item: Item


@dataclass
class Bounded:
    number: Annotated[int, msgspec.Meta(ge=1)]


@dataclass
class Parcel:
    """A parcel.

    Attributes:
        item: The item in it.
    """

    item: Item
    data: bytes = b""


class Shade(Enum):
    RED = "red"
    BLUE = "blue"


class Score(NamedTuple):
    points: int
    name: str = "x"


class Exact(BaseModel):
    model_config = ConfigDict(strict=True)
    day: date
    size: tuple[int, int]


def with_struct(order: Order, place: Place) -> None: ...
def with_attrs(order: Order, crates: list[Crate]) -> None: ...
def with_field(count: Annotated[int, Field(ge=1)], place: Place | None = None) -> None: ...
def with_meta_in_a_class(order: Order, bounded: Bounded) -> None: ...
def with_time_zone(order: Order, when: Annotated[datetime, msgspec.Meta(tz=True)]) -> None: ...
def with_predicate(even: Annotated[int, at.Predicate(is_even)], place: Place) -> None: ...
def with_others(order: Order, **places: Place) -> None: ...
def with_struct_inside(slot: Slot) -> None: ...


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (with_struct, ("order", "pydantic", "Order", "place", "msgspec", "Place")),
        (with_attrs, ("order", "pydantic", "Order", "crates", "msgspec", "Crate")),
        (with_field, ("count", "pydantic", "Field", "place", "msgspec", "Place")),
        (with_meta_in_a_class, ("order", "pydantic", "Order", "bounded", "msgspec", "Bounded.number")),
        (with_time_zone, ("order", "pydantic", "Order", "when", "msgspec", "Meta")),
        (with_predicate, ("even", "pydantic", "Predicate", "place", "msgspec", "Place")),
        (with_others, ("order", "pydantic", "Order", "places", "msgspec", "Place")),
        (with_struct_inside, ("slot", "pydantic", "Item", "slot", "msgspec", "Slot")),
    ],
)
def test_a_signature_that_needs_both_libraries_is_refused(function: Any, named: tuple[str, ...]) -> None:
    with pytest.raises(TypeError, match=values(function.__name__, *named)):
        compile_signature(function, context_type=Nobody)


def test_a_result_that_needs_both_libraries_is_refused() -> None:
    app = Server("shop")

    def find() -> Order | Place: ...

    with pytest.raises(TypeError, match=values("Order", "pydantic", "Place", "msgspec")):
        app.add_tool(find)


async def test_arguments_and_result_may_use_different_libraries() -> None:
    app = Server("shop")

    @app.tool
    def locate(item: Item) -> Place:
        return Place(item.sku)

    @app.tool
    def pick(place: Place) -> Item:
        return Item(sku=place.name)

    client = Client(app)
    assert (await client.call("locate", {"item": {"sku": "ABC"}}))["structuredContent"] == {"name": "ABC"}
    assert (await client.call("pick", {"place": {"name": "ABC"}}))["structuredContent"] == {"sku": "ABC", "amount": 1}


def test_pydantic_reads_the_types_beside_a_model() -> None:
    def run(
        item: Item, parcel: Parcel, shade: Shade, score: Score, exact: Exact, data: bytes, path: Path, **prices: Decimal
    ) -> None: ...

    signature = compile_signature(run, context_type=Nobody)
    args, kwargs = signature.bind(
        {
            "item": {"sku": "ABC"},
            "parcel": {"item": {"sku": "DEF"}, "data": "aGk="},
            "shade": "blue",
            "score": [3],
            "exact": {"day": "2026-07-28", "size": [1, 2]},
            "data": "+/8=",
            "path": "a/b",
            "tea": "1.5",
        },
        None,
    )
    assert args == (
        Item(sku="ABC"),
        Parcel(Item(sku="DEF"), b"hi"),
        Shade.BLUE,
        Score(3),
        Exact(day=date(2026, 7, 28), size=(1, 2)),
        b"\xfb\xff",
        Path("a/b"),
    )
    assert kwargs == {"tea": Decimal("1.5")}
    parcel = signature.schema["properties"]["parcel"]
    assert parcel["description"] == "A parcel."
    assert parcel["properties"]["item"]["description"] == "The item in it."
    assert signature.schema["properties"]["score"]["items"]


def test_notes_of_msgspec_and_descriptions_count_beside_a_model() -> None:
    def run(
        item: Item,
        count: Annotated[int, msgspec.Meta(ge=1, extra_json_schema={"x-unit": "kg"})],
        names: list[Annotated[str, msgspec.Meta(min_length=2)]],
        note: Annotated[str, "A note."] = "",
    ) -> None:
        """Run.

        Args:
            item: What to run.
        """

    signature = compile_signature(run, context_type=Nobody)
    properties = signature.schema["properties"]
    assert properties["item"]["description"] == "What to run."
    assert properties["count"] == {"type": "integer", "minimum": 1, "x-unit": "kg"}
    assert properties["names"] == {"type": "array", "items": {"type": "string", "minLength": 2}}
    assert properties["note"] == {"type": "string", "description": "A note.", "default": ""}
    with pytest.raises(InvalidArguments, match=values("count", 1, "names[0]", 2)):
        signature.bind({"item": {"sku": "ABC"}, "count": 0, "names": ["a"]}, None)


@pytest.mark.parametrize(
    ("arguments", "places"),
    [
        ({"item": {"sku": "ABC"}}, ["Missing: `day`"]),
        ({"item": {"sku": "ABC"}, "day": "2026-07-28", "dya": 1}, ["Unknown: `dya`"]),
        ({"item": {"sku": "ABC", "amuont": 2}, "day": "x"}, ["`item`: ", "did you mean `amount`?", "`day`: "]),
        ({"item": {"sku": 7}, "day": "2026-07-28"}, ["`item.sku`: "]),
        ({"item": "x", "day": 5}, ["`item`: ", "`day`: "]),
    ],
)
def test_every_mistake_has_its_location_in_every_library(arguments: Any, places: list[str]) -> None:
    def run(item: Item | int, day: date) -> None: ...

    with pytest.raises(InvalidArguments) as caught:
        compile_signature(run, context_type=Nobody).bind(arguments, None)
    text = str(caught.value)
    assert all(place in text for place in places)
    # An alternative of a union is not a place.
    assert text.count("`: ") == sum(place.endswith("`: ") for place in places)


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


@pytest.mark.parametrize("given", [{"kind": "secret"}, {}])
def test_a_wrong_tag_is_answered_with_the_right_ones(given: Any) -> None:
    with pytest.raises(InvalidArguments, match=values("x.kind", "cat", "dog")) as caught:
        bound(Annotated[Cat | Dog, Field(discriminator="kind")], given)
    assert "secret" not in str(caught.value)


async def test_a_result_is_written_as_its_schema_says() -> None:
    app = Server("shop")

    @app.tool
    def prices() -> list[Annotated[Decimal, PlainSerializer(float, return_type=float)]]:
        return [Decimal("1.5")]

    @app.tool
    def items() -> list[Item]:
        return [{"sku": "ABC"}]  # pyright: ignore[reportReturnType]

    client = Client(app)
    assert (await client.call("prices"))["structuredContent"] == {"result": [1.5]}
    assert (await client.call("items"))["structuredContent"] == {"result": [{"sku": "ABC", "amount": 1}]}


def test_a_constraint_that_msgspec_does_not_have_needs_pydantic() -> None:
    program = (
        "import sys, annotated_types as at; from typing import Annotated; sys.modules['pydantic'] = None\n"
        "from dovetail import Server; app = Server('x')\n"
        "def g(n: Annotated[int, at.Predicate(bool)]) -> int: return n\n"
        "try: app.add_tool(g)\n"
        "except TypeError as exc: print(exc)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert mentions(run.stdout, "n", "pydantic", "Predicate")


def test_a_value_that_pydantic_cannot_write_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        to_json([Field()])


@pytest.mark.parametrize(("value", "reason"), [("\ud800", "surrogate"), ("deep", "deeply|recursion")])
def test_a_value_that_is_not_json_has_one_reason(value: Any, reason: str) -> None:
    if value == "deep":
        for _ in range(100_000):
            value = [value]
    with pytest.raises(MismatchError, match=reason):
        PydanticType(Any).read(value)
