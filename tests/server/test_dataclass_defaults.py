"""Test that a decoded dataclass has the same defaults as a constructed one."""

from dataclasses import asdict, dataclass, field
from typing import Any, Generic, TypedDict, TypeVar

import attrs
import msgspec
import pytest

from dovetail.server.parameters.dataclass_defaults import make_default_filler
from dovetail.server.parameters.signature import compile_signature


class Nobody: ...


@dataclass
class Leg:
    start: str
    km: int = 1
    stops: list[str] = field(default_factory=list)
    mode: str = "car"


@dataclass(frozen=True)
class Trip:
    legs: list[Leg]
    name: str = "unnamed"


@dataclass(slots=True)
class Slotted:
    a: int
    b: int = 2


class Holder(msgspec.Struct):
    leg: Leg


@attrs.define
class Pair:
    legs: tuple[Leg, Leg]


T = TypeVar("T")


@dataclass
class Box(Generic[T]):
    item: T
    spare: Leg | None = None


class Keyed(TypedDict):
    leg: Leg


def bound(kind: Any, value: Any) -> Any:
    def run(x: Any) -> None: ...

    run.__annotations__["x"] = kind
    ((found,), _) = compile_signature(run, context_type=Nobody).bind({"x": value}, None)
    return found


@pytest.mark.parametrize(
    ("kind", "value", "pick"),
    [
        (Leg, {"start": "A"}, lambda x: x),
        (Leg | None, {"start": "A"}, lambda x: x),
        (list[Leg], [{"start": "A"}], lambda x: x[0]),
        (dict[str, list[Leg]], {"a": [{"start": "A"}]}, lambda x: x["a"][0]),
        (Trip, {"legs": [{"start": "A"}]}, lambda x: x.legs[0]),
        (Holder, {"leg": {"start": "A"}}, lambda x: x.leg),
        (Box[Leg], {"item": {"start": "A"}}, lambda x: x.item),
        (Box[int], {"item": 1, "spare": {"start": "A"}}, lambda x: x.spare),
        (Keyed, {"leg": {"start": "A"}}, lambda x: x["leg"]),
        (Pair, {"legs": [{"start": "A"}, {"start": "B"}]}, lambda x: x.legs[0]),
    ],
)
def test_what_was_not_said_is_there_in_the_order_of_the_fields(kind: Any, value: Any, pick: Any) -> None:
    leg = pick(bound(kind, value))
    assert list(vars(leg).items()) == [("start", "A"), ("km", 1), ("stops", []), ("mode", "car")]
    assert msgspec.to_builtins(leg) == asdict(leg)


def test_what_was_said_stays_and_a_frozen_one_is_filled_too() -> None:
    trip = bound(Trip, {"legs": [{"start": "A", "mode": "bus"}]})
    assert trip == Trip([Leg("A", mode="bus")])
    assert vars(trip)["name"] == "unnamed"


def test_where_nothing_can_be_missing_nothing_is_done() -> None:
    assert make_default_filler({"a": int, "b": list[Slotted], "c": dict[str, Any], "d": "Leg"}) is None
    assert make_default_filler({"a": int, "b": Leg}) is not None
