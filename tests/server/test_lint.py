"""Test schemas of many signatures against the rules of OpenAI, Gemini and Anthropic, and the lint report."""

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import annotated_types as at
import attrs
import jsonschema_rs
import msgspec
import pydantic
import pytest
from msgspec import Meta

from dovetail import Context, Server
from dovetail.schemas.provider_rules import PROFILES, PROVIDER_RULES, UNMODIFIED_RULE_SETS, find_violations, fit_schema
from dovetail.server.items.tool import Tool
from server.direct_client import Client, error_text, text
from support.mentions import mentions


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    S = 1
    L = 3


@dataclass
class Point:
    """A place."""

    x: float
    y: float = 0.0
    tags: list[str] = field(default_factory=list)


class Row(TypedDict, total=False):
    id: int
    note: str


class Pair(NamedTuple):
    left: int
    right: str = "r"


@attrs.define
class Box:
    width: int
    inner: Point | None = None


class Tree(msgspec.Struct):
    name: str
    children: list["Tree"] = []


class Left(msgspec.Struct, tag="left"):
    n: int


class Right(msgspec.Struct, tag="right"):
    s: str


class Item(pydantic.BaseModel):
    sku: str = pydantic.Field(pattern="^[A-Z]+$", max_length=8)
    amount: int = pydantic.Field(1, gt=0)
    kind: Literal["a"] = "a"


class Nest(pydantic.BaseModel):
    item: Item
    more: list["Nest"] = []
    extra: dict[str, Item] = {}


# fmt: off
def s01() -> None: ...
def s02(a: str) -> None: ...
def s03(a: int, b: float, c: bool) -> None: ...
def s04(a: str = "x", b: int = 3) -> None: ...
def s05(a: str | None = None) -> None: ...
def s06(a: int | str) -> None: ...
def s07(a: int | str | None) -> None: ...
def s08(a: Any) -> None: ...
def s09(a) -> None: ...
def s10(a: None) -> None: ...
def s11(a: Literal["x", "y"]) -> None: ...
def s12(a: Literal[1, 2] = 1) -> None: ...
def s13(a: Literal["x", 1]) -> None: ...
def s14(a: Literal["x"] | None = None) -> None: ...
def s15(a: Color, b: Size) -> None: ...
def s16(a: list[str], b: list[list[int]]) -> None: ...
def s17(a: list, b: dict) -> None: ...
def s18(a: set[int], b: frozenset[str]) -> None: ...
def s19(a: tuple[int, str], b: tuple[float, ...]) -> None: ...
def s20(a: dict[str, int], b: dict[str, Any]) -> None: ...
def s21(a: dict[str, Point]) -> None: ...
def s22(a: datetime, b: date, c: time, d: timedelta) -> None: ...
def s23(a: UUID, b: Decimal, c: Path, d: bytes) -> None: ...
def s24(a: Point) -> None: ...
def s25(a: Point | None = None, b: list[Point] = []) -> None: ...  # noqa: B006
def s26(a: Row) -> None: ...
def s27(a: Pair) -> None: ...
def s28(a: Box) -> None: ...
def s29(a: Tree) -> None: ...
def s30(a: list[Tree] | None = None) -> None: ...
def s31(a: Left | Right) -> None: ...
def s32(a: Item) -> None: ...
def s33(a: list[Item], b: Item | None = None) -> None: ...
def s34(a: Nest) -> None: ...
def s35(a: Annotated[int, Meta(ge=1, le=9)], b: Annotated[float, Meta(gt=0, lt=1, multiple_of=0.25)]) -> None: ...
def s36(a: Annotated[str, Meta(min_length=2, max_length=5, pattern="^a")]) -> None: ...
def s37(a: Annotated[list[int], at.Len(2, 4)], b: Annotated[int, at.Gt(0)], c: Annotated[str, "Words."]) -> None: ...
def s38(a: int, ctx: Context, *, b: str = "x") -> None: ...
def s39(a: int, **more: str) -> None: ...
def s40(a: dict[Annotated[str, Meta(pattern="^k")], int], b: Annotated[Decimal, at.Ge(0)]) -> None: ...
def s41(a: Item | int | None = None) -> None: ...
# fmt: on

SIGNATURES = [value for name, value in sorted(globals().items()) if name.startswith("s") and name[1:].isdigit()]


def schema(function: Callable[..., Any]) -> dict[str, Any]:
    return Tool(function).declaration.input_schema


def test_there_are_forty() -> None:
    assert len(SIGNATURES) >= 40


@pytest.mark.parametrize("function", SIGNATURES)
def test_published_schemas_are_taken_as_they_are(function: Callable[..., Any]) -> None:
    made = schema(function)
    assert [(rules, *find_violations(rules, function.__name__, "A tool.", made)) for rules in UNMODIFIED_RULE_SETS] == [
        (rules,) for rules in UNMODIFIED_RULE_SETS
    ]
    assert "title" not in {key for one in nodes(made) for key in one}
    jsonschema_rs.validator_for(made)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("function", SIGNATURES)
def test_profiles_make_schemas_that_even_strict_rules_take(function: Callable[..., Any], profile: str) -> None:
    made = fit_schema(profile, schema(function))
    assert [*find_violations(PROFILES[profile], function.__name__, "A tool.", made)] == []
    jsonschema_rs.validator_for(made)


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if isinstance(value.get("type"), str):
            yield value
        for one in value.values():
            yield from nodes(one)
    elif isinstance(value, list):
        for one in value:
            yield from nodes(one)


@pytest.mark.parametrize(
    ("rules", "parameter", "says"),
    [
        ("openai", {"type": "array"}, "items"),
        ("openai-strict", {"type": "string", "minLength": 1}, "minLength"),
        ("openai-strict", {"type": "integer"}, "required"),
        ("openai-strict", {"type": "integer"}, "additionalProperties"),
        ("gemini-openapi", {"type": "string", "format": "uuid"}, "uuid"),
        ("gemini-openapi", {"enum": [1], "type": "integer"}, "`a`"),
        ("gemini-openapi", {"$ref": "#/$defs/A"}, "`a`"),
        ("gemini-openapi", {"type": "object"}, "properties"),
        ("gemini-openapi", {}, "type"),
        ("anthropic-strict", {"type": "array", "minItems": 2}, "minItems"),
    ],
)
def test_every_rule_refuses_something(rules: str, parameter: dict[str, Any], says: str) -> None:
    given = {"type": "object", "properties": {"a": parameter}}
    assert any(mentions(line, says) for line in find_violations(rules, "tool", None, given))


@pytest.mark.parametrize(
    ("rules", "given", "says"),
    [
        ("openai", {"type": "object", "anyOf": []}, "anyOf"),
        ("openai", {"type": "string"}, "object"),
        ("gemini", {"type": "object", "properties": {"a-b": {}}}, "a-b"),
        ("anthropic", {"type": "object", "properties": {"a b": {}}}, "a b"),
        ("anthropic-strict", schema(s29), "Tree"),
    ],
)
def test_rules_on_the_whole(rules: str, given: dict[str, Any], says: str) -> None:
    assert any(mentions(line, says) for line in find_violations(rules, "tool", None, given))


def test_names_and_descriptions_have_rules_too() -> None:
    empty = {"type": "object"}
    assert "[A-Za-z0-9_-]{1,64}" in next(find_violations("openai", "a.b", None, empty))
    assert [*find_violations("gemini", "a.b", None, empty)] == []
    assert "1024" in next(find_violations("openai", "a", "x" * 1025, empty))


def order(
    item: str,
    sizes: list[Size],
    spot: tuple[int, int],
    more: dict[str, int],
    tree: Tree,
    n: Annotated[int, at.Gt(0)] = 1,
) -> str:
    """Order.

    Args:
        item: What.
        colour: No longer a parameter.
    """
    return f"{item} {[size.name for size in sizes]} {spot} {more} {tree.children[0].children[0].name} {n}"


@pytest.mark.parametrize("profile", PROFILES)
async def test_what_a_model_makes_of_a_fitted_schema_is_understood(profile: str) -> None:
    app = Server("shop", schema_profile=profile)
    app.add_tool(order)
    client = Client(app)
    (tool,) = (await client.request("tools/list"))["tools"]
    published = tool["inputSchema"]
    inmost: Any = {"name": "c", "children": []}
    if profile != "openai":
        inmost = '{"name": "c"}'
    given = {
        "item": "x",
        "sizes": ["1", "3"] if profile == "gemini" else [1, 3],
        "spot": [1, 2],
        "more": '{"a": 1}',
        "tree": {"name": "a", "children": [{"name": "b", "children": [inmost]}]},
    }
    if profile == "openai":
        given["n"] = None
    jsonschema_rs.validator_for(published).validate(given)
    assert text(await client.call("order", given)) == "x ['S', 'L'] (1, 2) {'a': 1} c 1"
    assert "`n`" in error_text(await client.call("order", given | {"n": 0}))


def test_keywords_unknown_to_a_provider_move_to_the_description() -> None:
    made = fit_schema("anthropic", schema(s36))
    assert made["properties"]["a"] == {"type": "string", "description": "(pattern ^a; minLength 2; maxLength 5)"}
    assert fit_schema("gemini", schema(s05))["properties"]["a"] == {"type": "string", "nullable": True, "default": None}
    assert fit_schema("gemini", schema(s37))["properties"]["b"] == {"type": "integer", "minimum": 1}


def test_the_report() -> None:
    app = Server("shop")
    app.add_tool(order)
    app.add_tool(lambda: None, name="a.b")
    first, second = app.lint()
    assert (first.name, second.name) == ("order", "a.b")
    assert 100 < first.tokens < 300
    assert second.tokens < 40
    for name in ("colour", "sizes", "spot", "more", "n"):
        assert any(mentions(finding.message, name) for finding in first.issues)
    assert len(first.issues) == 5
    assert [finding.rule for finding in second.issues] == ["openai", "anthropic", "description"]
    for finding in second.issues[:2]:
        assert "[A-Za-z0-9_-]{1,64}" in finding.message
    assert any(finding.rule == "gemini-openapi" for finding in app.lint("gemini-openapi")[0].issues)
    with pytest.raises(ValueError, match="cohere"):
        app.lint("cohere")
    with pytest.raises(ValueError, match="openai, gemini, anthropic"):
        Server("x", schema_profile="cohere")
    assert set(PROFILES.values()) <= set(PROVIDER_RULES)


def test_a_server_may_tell_at_registration(caplog: pytest.LogCaptureFixture) -> None:
    def documented(item: str) -> str:
        """Find an item.

        Args:
            item: Its name.
        """
        return item

    quiet, telling = Server("quiet"), Server("telling", debug=True)
    for app in (quiet, telling):
        app.add_tool(documented)
    quiet.add_tool(order)
    assert not caplog.records
    telling.add_tool(order)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("dovetail", "WARNING")
    said = record.getMessage()
    assert said.startswith(f"order ({__file__}:")
    assert mentions(said, "tokens", "sizes")
