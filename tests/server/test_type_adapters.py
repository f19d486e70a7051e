"""Annotations of annotated-types and pydantic: kept, shown in the schema, and read by whoever understands them."""

import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple

import annotated_types as at
import attrs
import msgspec
import pydantic
import pytest
from pydantic import BaseModel, Field, PositiveInt, SecretStr, computed_field, field_validator
from typing_extensions import TypedDict

from dovetail import Server
from dovetail.server.parameters import pydantic_types
from dovetail.server.parameters.annotations import convert_value
from dovetail.server.parameters.foreign_types import MismatchError
from dovetail.server.parameters.signature import InvalidArguments, compile_signature
from dovetail.server.parameters.type_adapters import adapt
from mentions import mentions, values
from server.direct_client import Client, error_text


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


def test_everything_wrong_with_a_model_is_told_at_once() -> None:
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
    with pytest.raises(InvalidArguments, match=r"`n`: .*greater than or equal to 1.*`tag`: "):
        signature.bind({"n": 0, "tag": "long"}, None)


def test_what_nobody_would_keep_is_refused() -> None:
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
        assert adapt(kind) is kind


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
    assert (await client.call("orders"))["structuredContent"] == [{"items": [], "isGift": False, "size": 0}]
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


def test_a_boolean_is_no_number_for_pydantic_either() -> None:
    fits = {"sure": True, "either": True, "inner": [{"sure": False, "number": 2}]}
    assert pydantic_types.validate(Counted, fits).inner[0].number == 2
    with pytest.raises(MismatchError) as caught:
        pydantic_types.validate(Counted, {"number": True, "share": False, "inner": [{}, {"by": True}]})
    assert [where for where, _ in caught.value.mismatches] == [("number",), ("share",), ("inner", 1, "by")]
    for (_, why), kind in zip(caught.value.mismatches, ("int", "float | str", "int"), strict=True):
        assert mentions(why, kind, "bool")


def test_a_boolean_is_no_number_where_a_parameter_has_a_field() -> None:
    with pytest.raises(ValueError, match=values("int", "bool")):
        convert_value(adapt(Annotated[int, Field(ge=0)]), True)
