"""Test compiled functions: their schemas and the arguments they receive."""

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar
from uuid import UUID

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from dovetail.errors import ToolError
from dovetail.server.parameters.argument_messages import MAX_TEXT_BYTES
from dovetail.server.parameters.signature import InvalidArguments, Signature, compile_signature
from support.mentions import mentions, values

T = TypeVar("T")


class Context(Generic[T]):
    pass


if TYPE_CHECKING:
    Unknown = int

CONTEXT: Context[Any] = Context()


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Tree(msgspec.Struct):
    name: str
    children: list["Tree"] = []


@dataclass
class Day:
    date: date
    high: float


class Row(TypedDict):
    id: int


class Pair(NamedTuple):
    left: int
    right: str = "r"


@attrs.define
class Box:
    width: int


def compiled(function: Any, **options: Any) -> Signature:
    return compile_signature(function, context_type=Context, **options)


def call(function: Any, arguments: dict[str, Any] | None, **options: Any) -> Any:
    args, kwargs = compiled(function, **options).bind(arguments, CONTEXT)
    return function(*args, **kwargs)


def refusal(function: Any, arguments: dict[str, Any], **options: Any) -> str:
    with pytest.raises(InvalidArguments) as caught:
        compiled(function, **options).bind(arguments, CONTEXT)
    return str(caught.value)


# The schema.


def test_the_schema_is_flat_ordered_and_closed() -> None:
    def forecast(
        city: Annotated[str, Meta(description="Any language.")], days: int = 3, unit: str | None = None
    ) -> str:
        raise NotImplementedError

    signature = compiled(forecast)
    assert signature.schema == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Any language."},
            "days": {"type": "integer", "default": 3},
            "unit": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        },
        "required": ["city"],
        "additionalProperties": False,
    }
    assert list(signature.schema["properties"]) == ["city", "days", "unit"]
    assert signature.parameters == ("city", "days", "unit")
    assert signature.defaults == {"days": 3, "unit": None}
    assert signature.context is None
    assert signature.returns is str


def test_a_function_without_parameters() -> None:
    def now(): ...  # pyright: ignore[reportUnknownParameterType]

    signature = compiled(now)
    assert signature.schema == {"type": "object", "properties": {}, "additionalProperties": False}
    assert signature.bind(None, CONTEXT) == ((), {})
    assert signature.returns is Any


def test_constraints_titles_and_further_keywords_reach_the_schema() -> None:
    def run(
        region: Annotated[str, Meta(title="Region", examples=["eu"], extra_json_schema={"x-mcp-header": "Region"})],
        limit: Annotated[int, Meta(ge=1, le=10)] = 5,
    ) -> None: ...

    assert compiled(run).schema["properties"] == {
        "region": {"type": "string", "title": "Region", "examples": ["eu"], "x-mcp-header": "Region"},
        "limit": {"type": "integer", "minimum": 1, "maximum": 10, "default": 5},
    }


def test_text_in_annotated_is_the_description() -> None:
    class Doc:
        documentation = "In days."

    def plan(
        city: Annotated[str, "Where to."], days: Annotated[int, Meta(ge=1), Doc()], other: Annotated[int, 7]
    ) -> None: ...

    properties = compiled(plan).schema["properties"]
    assert properties["city"] == {"type": "string", "description": "Where to."}
    assert properties["days"] == {"type": "integer", "minimum": 1, "description": "In days."}
    assert properties["other"] == {"type": "integer"}


def test_a_datetime_has_a_format_in_the_schema() -> None:
    def remind(at: datetime, until: Annotated[datetime | None, "End."] = None, day: date | None = None) -> None: ...

    properties = compiled(remind).schema["properties"]
    assert properties["at"] == {"type": "string", "format": "date-time"}
    assert properties["until"]["anyOf"][0] == {"type": "string", "format": "date-time"}
    assert properties["until"]["description"] == "End."
    assert properties["day"]["anyOf"][0] == {"type": "string", "format": "date"}


def test_nested_types_are_written_out_and_recursive_ones_shared() -> None:
    def plant(spot: Point, tree: Tree, trees: list[Tree]) -> None: ...

    schema = compiled(plant).schema
    assert schema["properties"]["spot"]["properties"]["x"] == {"type": "integer"}
    assert schema["properties"]["tree"] == {"$ref": "#/$defs/Tree"}
    assert schema["properties"]["trees"] == {"type": "array", "items": {"$ref": "#/$defs/Tree"}}
    assert list(schema["$defs"]) == ["Tree"]


def test_only_defaults_with_a_json_form_are_shown() -> None:
    marker: Any = object()

    def run(
        a: Color = Color.RED, b: Any = marker, c: float = float("nan"), d: Path = Path("x"), e: list[int] = [1]  # noqa: B006
    ) -> None: ...  # fmt: skip

    properties = compiled(run).schema["properties"]
    assert [properties[name].get("default", "none") for name in "abcde"] == ["red", "none", "none", "x", [1]]
    assert call(run, {}) is None
    assert compiled(run).bind({}, CONTEXT)[0][1] is marker


def test_no_annotation_means_anything() -> None:
    def run(a, b=3):  # pyright: ignore  # noqa: PGH003
        return a, b  # pyright: ignore  # noqa: PGH003

    assert compiled(run).schema["properties"] == {"a": {}, "b": {"default": 3}}
    assert call(run, {"a": {"x": [1]}, "b": None}) == ({"x": [1]}, None)


def test_an_object_is_anything() -> None:
    def run(a: object, b: object = None) -> None: ...

    assert compiled(run).schema["properties"] == {"a": {}, "b": {"default": None}}
    assert compiled(run).bind({"a": [1]}, None)[0] == ([1], None)


def test_a_parameter_that_defaults_to_none_may_be_none() -> None:
    def run(a: int = None, b: Annotated[str, Meta(min_length=1)] = None) -> Any:  # pyright: ignore[reportArgumentType]  # noqa: RUF013
        return a, b

    assert call(run, {"a": None, "b": None}) == (None, None)
    assert "`a`" in refusal(run, {"a": "x"})


def test_choices_are_offered_for_completion() -> None:
    def run(
        a: Literal["z", "y"],
        b: Color | None,
        c: bool,
        d: Size,
        e: Literal[1, True, None],
        f: str,
        g: list[Color],
        h: int | bool,
    ) -> None: ...

    assert compiled(run).choices == {
        "a": ("z", "y"),
        "b": ("red", "blue"),
        "c": ("true", "false"),
        "d": ("1", "2"),
        "e": ("1", "true"),
    }


# Binding.


@pytest.mark.parametrize(
    ("kind", "json", "value"),
    [
        (int, 3, 3),
        (int, 3.0, 3),
        (float, 3, 3.0),
        (bool, True, True),
        (str | int, "a", "a"),
        (int | None, None, None),
        (Literal["a", "b"], "b", "b"),
        (Color, "red", Color.RED),
        (Day, {"date": "2024-02-29", "high": 1}, Day(date(2024, 2, 29), 1.0)),
        (Row, {"id": 1}, {"id": 1}),
        (Pair, [1], Pair(1)),
        (Point, {"x": 1}, Point(1)),
        (Box, {"width": 2}, Box(2)),
        (datetime, "2024-01-02T03:04:05", datetime(2024, 1, 2, 3, 4, 5)),
        (UUID, "12345678-1234-5678-1234-567812345678", UUID("12345678-1234-5678-1234-567812345678")),
        (Decimal, "1.10", Decimal("1.10")),
        (bytes, "aGk=", b"hi"),
        (set[int], [1, 1], {1}),
        (tuple[int, str], [1, "a"], (1, "a")),
        (dict[int, float], {"1": 2}, {1: 2.0}),
        (Path, "a/b", Path("a/b")),
        (Path | None, None, None),
        (Tree, {"name": "a", "children": [{"name": "b"}]}, Tree("a", [Tree("b")])),
    ],
)
def test_json_becomes_the_annotated_type(kind: Any, json: Any, value: Any) -> None:
    def run(x: Any) -> Any:
        return x

    run.__annotations__["x"] = kind
    bound = call(run, {"x": json})
    assert bound == value
    assert type(bound) is type(value)


@pytest.mark.parametrize(
    ("kind", "value"), [(int, "three"), (str, 3), (bool, 1), (int, True), (float, "x"), (int, 3.5)]
)
def test_tools_take_no_text_for_numbers_nor_the_reverse(kind: Any, value: Any) -> None:
    def run(x: Any) -> Any: ...

    run.__annotations__["x"] = kind
    assert mentions(refusal(run, {"x": value}), "x", kind.__name__)


def test_lax_reading_for_prompts_and_templates() -> None:
    def run(n: int, f: float, b: bool, s: str, size: Size, day: date, where: Path) -> Any:
        return n, f, b, s, size, day, where

    given = {"n": "3", "f": "1.5", "b": "true", "s": "7", "size": "2", "day": "2024-01-01", "where": "x"}
    assert call(run, given, lax=True) == (3, 1.5, True, "7", Size.LARGE, date(2024, 1, 1), Path("x"))
    assert mentions(refusal(run, {**given, "n": "three"}, lax=True), "n", "int")


def test_every_kind_of_parameter_is_passed_as_it_wants() -> None:
    def run(a: int, /, b: int, ctx: Context[Any], c: int = 3, *, d: int, e: int = 5) -> Any:
        return a, b, ctx, c, d, e

    assert call(run, {"d": 4, "b": 2, "a": 1}) == (1, 2, CONTEXT, 3, 4, 5)
    assert compiled(run).parameters == ("a", "b", "c", "d", "e")
    assert compiled(run).context == "ctx"


def _first(ctx: Context[Any], a: int) -> Any:
    return ctx, a


def _last(a: int, ctx: Context[Any] | None = None) -> Any:
    return ctx, a


def _bare(a: int, ctx: Context) -> Any:  # pyright: ignore[reportMissingTypeArgument, reportUnknownParameterType]
    return ctx, a


def _noted(a: int, /, ctx: Annotated[Context[Any], "who asks"]) -> Any:
    return ctx, a


def _keyword(a: int, *, ctx: Context[Any]) -> Any:
    return ctx, a


def _quoted(a: int, ctx: "Context[Any] | None") -> Any:
    return ctx, a


@pytest.mark.parametrize("function", [_first, _last, _bare, _noted, _keyword, _quoted])
def test_the_context_is_filled_in_and_invisible(function: Callable[..., Any]) -> None:
    assert call(function, {"a": 1}) == (CONTEXT, 1)
    assert list(compiled(function).schema["properties"]) == ["a"]
    assert "Unknown: `ctx`" in refusal(function, {"a": 1, "ctx": 2})


def test_a_context_imported_for_the_type_checker_only() -> None:
    namespace: dict[str, Any] = {}
    exec("def run(a: 'int', ctx: 'Context'): return a, ctx", namespace)  # noqa: S102
    assert call(namespace["run"], {"a": 1}) == (1, CONTEXT)


def test_further_keywords_accept_any_argument() -> None:
    def run(a: int, ctx: Context[Any], **rest: Any) -> Any:
        return a, ctx, rest

    assert compiled(run).schema["additionalProperties"] is True
    assert call(run, {"a": 1, "b": [2], "not a name": 3}) == (1, CONTEXT, {"b": [2], "not a name": 3})
    assert "Missing: `a`" in refusal(run, {"b": 1})


def test_further_keywords_have_a_type() -> None:
    def run(a: str, **rest: int) -> Any:
        return a, rest

    assert compiled(run).schema["additionalProperties"] == {"type": "integer"}
    assert call(run, {"a": "x", "b": 2.0}) == ("x", {"b": 2})
    assert mentions(refusal(run, {"a": "x", "b": "y"}), "b", "int", "str")


def test_further_keywords_cannot_replace_what_the_server_fills_in() -> None:
    def run(ctx: Context[Any], user: str = "nobody", **rest: Any) -> Any: ...

    assert "Unknown: `ctx`" in refusal(run, {"ctx": "forged"})
    assert "Unknown: `user`" in refusal(run, {"user": "root"}, skip={"user"})


def test_skipped_parameters_are_left_to_the_caller() -> None:
    def run(a: int, uri: str, b: int = 2, ctx: Context[Any] | None = None) -> Any:
        return a, uri, b, ctx

    signature = compiled(run, skip={"uri"})
    assert signature.parameters == ("a", "b")
    args, kwargs = signature.bind({"a": 1}, CONTEXT)
    assert run(*args, uri="u", **kwargs) == (1, "u", 2, CONTEXT)


def test_a_mutable_default_is_not_shared_between_calls() -> None:
    def run(a: list[int] = [], b: dict[str, int] = {}, c: set[int] = {1}, d: Point = Point(1)) -> Any:  # noqa: B006, B008
        a.append(1)
        return a, b, c, d

    assert call(run, {}) == call(run, {}) == ([1], {}, {1}, Point(1))


class Service:
    def method(self, a: int, ctx: Context[Any]) -> Any:
        return self, a, ctx

    @classmethod
    def make(cls, a: int) -> Any:
        return cls, a

    @staticmethod
    def plain(a: int) -> Any:
        return a

    def __call__(self, a: "int", b: "str" = "b") -> Any:
        return a, b


def test_methods_and_callables() -> None:
    service = Service()
    assert call(service.method, {"a": 1}) == (service, 1, CONTEXT)
    assert call(service.make, {"a": 1}) == (Service, 1)
    assert call(Service.plain, {"a": 1}) == 1
    assert call(Service.__dict__["plain"], {"a": 1}) == 1
    assert call(service, {"a": 1}) == (1, "b")
    assert "`a`" in refusal(service, {"a": "x"})


def test_partials_keep_what_is_still_open() -> None:
    def run(a: int, b: int, ctx: Context[Any], c: int = 3) -> Any:
        return a, b, ctx, c

    assert call(functools.partial(run, 10), {"b": 2}) == (10, 2, CONTEXT, 3)
    assert call(functools.partial(run, b=20), {"a": 1}) == (1, 20, CONTEXT, 3)
    assert call(functools.partial(run, b=20), {"a": 1, "b": 2}) == (1, 2, CONTEXT, 3)


def test_decorated_functions_show_what_is_inside() -> None:
    def run(a: int, b: str = "b") -> Any:
        return a, b

    @functools.wraps(run)
    def around(*args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    assert call(around, {"a": 1}) == (1, "b")
    assert compiled(around).parameters == ("a", "b")


def test_parameter_names_that_mean_something_to_python_classes() -> None:
    def run(self: int, cls: int, fields: int, name: int, type: int) -> Any:
        return self, cls, fields, name, type

    assert call(run, {"self": 1, "cls": 2, "fields": 3, "name": 4, "type": 5}) == (1, 2, 3, 4, 5)


# Refusals at registration.


def _star(a: int, *rest: int) -> None: ...


def _complex(a: int, z: complex) -> None: ...


def _union(shape: Point | Tree) -> None: ...


def _two(a: Context[Any], b: Context[Any]) -> None: ...


def _nowhere(a: "Unknown") -> None: ...


def _broken(a: "int[") -> None: ...  # pyright: ignore  # noqa: F722, PGH003


def _typed_rest(**rest: complex) -> None: ...


def _function(a: Callable[[int], int]) -> None: ...


def _no_type(a: 5 = None) -> None: ...  # pyright: ignore  # noqa: PGH003


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (_star, ("*rest",)),
        (_complex, ("z", "complex")),
        (_union, ("shape", "tag")),
        (_two, ("b", "a")),
        (_nowhere, ("Unknown",)),
        (_broken, ()),
        (_typed_rest, ("**",)),
        (_no_type, ("a",)),
        (_function, ()),
    ],
)
def test_a_function_json_cannot_fill_is_refused_with_its_place(function: Any, named: tuple[str, ...]) -> None:
    with pytest.raises(TypeError) as caught:
        compiled(function)
    text = str(caught.value)
    place = f"{function.__name__} ({__file__}:{function.__code__.co_firstlineno})"
    assert mentions(text, place, *named)


def test_a_value_that_is_not_a_function_is_refused() -> None:
    for thing in (Point, 3, dict):
        with pytest.raises(TypeError):
            compiled(thing)
    with pytest.raises(TypeError, match=values("max")):
        compiled(max)


def test_a_positional_only_parameter_cannot_follow_one_left_out() -> None:
    def run(a: int, b: int, /) -> None: ...

    for skip in ({"a"}, {"b"}):
        with pytest.raises(TypeError, match=values("run")):
            compiled(run, skip=skip)


# Refusals of a call.


def _book(
    city: str, days: int, color: Color = Color.RED, spot: Point | None = None, tags: list[int] | None = None
) -> None: ...


def test_a_refusal_tells_everything_at_once() -> None:
    text = refusal(_book, {"citty": "Oslo", "days": "three", "color": "green", "spot": {"x": "y"}, "tags": [1, None]})
    assert mentions(
        text,
        *("city", "citty", "city", "days", "int", "str", "color", "red", "blue"),
        *("spot.x", "int", "str", "tags[1]", "int", "null"),
    )


def test_a_refusal_is_for_the_model() -> None:
    assert issubclass(InvalidArguments, ToolError)


def test_a_refusal_never_repeats_values() -> None:
    secret = "hunter2"
    text = refusal(
        _book, {"city": {secret: secret}, "days": secret, "color": secret, "spot": {"x": secret}, "tags": [secret]}
    )
    assert secret not in text


def test_a_refusal_is_short_however_bad_the_call() -> None:
    text = refusal(_book, {f"{'n' * 500}{index}": "v" * 10_000 for index in range(5_000)})
    assert mentions(text, 4980)
    assert "n" * 65 not in text
    assert len(text.encode()) <= MAX_TEXT_BYTES


def test_a_refusal_of_wide_names_is_cut_between_characters() -> None:
    text = refusal(_book, {f"{'名' * 60}{index}": 1 for index in range(30)})
    assert MAX_TEXT_BYTES - 3 <= len(text.encode()) <= MAX_TEXT_BYTES
    assert text.endswith("…")


def test_control_characters_in_names_are_escaped() -> None:
    text = refusal(_book, {"city": "a", "days": 1, "x\n\x1b[31m": 1})
    assert text.isprintable()


def test_a_value_nested_without_end_is_refused() -> None:
    def run(tree: Tree, a: int) -> None: ...

    deep: dict[str, Any] = {"name": "x"}
    for _ in range(5000):
        deep = {"name": "x", "children": [deep]}
    assert mentions(refusal(run, {"tree": deep, "a": 1}), "tree")


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_BOOK = compiled(_book)


@given(st.dictionaries(st.sampled_from(["city", "days", "color", "spot", "tags", "cty"]) | st.text(), _json))
def test_any_call_is_bound_or_refused(arguments: dict[str, Any]) -> None:
    try:
        args, kwargs = _BOOK.bind(arguments, None)
    except InvalidArguments as exc:
        text = str(exc)
        assert len("Invalid arguments.") < len(text) <= len(text.encode()) <= MAX_TEXT_BYTES
    else:
        assert not kwargs
        assert isinstance(args[0], str)
        assert type(args[1]) is int
        assert isinstance(args[2], Color)
