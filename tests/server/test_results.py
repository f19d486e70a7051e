"""Test the results that return values become."""

import enum
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import jsonschema_rs
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Meta

from dovetail.server.results import Output, compile_output, to_prompt_messages, to_resource_contents
from dovetail.wire.base import UNSET
from dovetail.wire.codec import encode
from dovetail.wire.content import (
    AudioContent,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
)
from dovetail.wire.input_required import InputRequiredResult
from dovetail.wire.prompts import GetPromptResult, PromptMessage
from dovetail.wire.tools import CallToolResult
from support.mentions import values

IMAGE = ImageContent(data="aGk=", mime_type="image/png")
LINK = ResourceLink(uri="file:///a", name="a")
CONTENTS = ResourceContents(uri="file:///a", text="a")


@dataclass
class Day:
    date: date
    high: float


@dataclass
class Holiday(Day):
    name: str = ""


class Point(msgspec.Struct, rename="camel"):
    x_axis: int
    note: str | None = None


class Row(TypedDict):
    id: int
    at: date


class Pair(NamedTuple):
    left: int
    right: str


class Color(enum.StrEnum):
    RED = "red"


def bare(annotation: Any, **options: Any) -> Output:
    """Compile an output without wrapping, as `Server(wrap_results=False)` does."""
    return compile_output(annotation, wrap_results=False, **options)


def shaped(annotation: Any, value: Any) -> CallToolResult:
    result = bare(annotation).to_result(value)
    assert isinstance(result, CallToolResult)
    return result


def text(*texts: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=one) for one in texts])


def structured(data: Any, json: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=json)], structured_content=data)


# Annotations without a schema.


@pytest.mark.parametrize(
    "annotation",
    [
        Any,
        str,
        None,
        type(None),
        bytes,
        str | None,
        Annotated[str, "a text"],
        TextContent,
        ContentBlock,
        list[ContentBlock],
        list[str | ImageContent],
        tuple[str, ImageContent],
        tuple[ImageContent, ...],
        Sequence[TextContent | ImageContent],
        str | ImageContent | None,
        int | ImageContent,
        ResourceContents,
        EmbeddedResource | None,
        CallToolResult,
        InputRequiredResult,
        CallToolResult | InputRequiredResult,
        str | CallToolResult,
    ],
)
def test_these_annotations_have_no_schema(annotation: Any) -> None:
    assert bare(annotation).schema is None


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ("hello", text("hello")),
        ("", text("")),
        ("snow ☃", text("snow ☃")),
        (IMAGE, CallToolResult(content=[IMAGE])),
        (CONTENTS, CallToolResult(content=[EmbeddedResource(resource=CONTENTS)])),
        (["a", IMAGE, LINK], CallToolResult(content=[TextContent(text="a"), IMAGE, LINK])),
        (("a", "b"), text("a", "b")),
        ({"a": 1}, structured({"a": 1}, '{"a":1}')),
        ([1, "a"], structured([1, "a"], '[1,"a"]')),
        ([], structured([], "[]")),
        (3, structured(3, "3")),
        (True, structured(True, "true")),
        (Point(1), structured({"xAxis": 1, "note": None}, '{"xAxis":1,"note":null}')),
        (Pair(1, "a"), structured((1, "a"), '[1,"a"]')),
    ],
)
def test_without_a_schema_the_value_decides(value: Any, result: CallToolResult) -> None:
    assert shaped(Any, value) == result
    assert shaped(str, value) == result


def test_none_is_empty_content_unless_text_was_promised() -> None:
    for kind in (Any, None, str | None):
        assert shaped(kind, None) == CallToolResult(content=[])
    with pytest.raises(ValueError, match=values("str", "null")):
        shaped(str, None)


def test_an_invalid_value_in_a_result_is_reported_with_its_key() -> None:
    with pytest.raises(ValueError, match=values("a", "int", "str")):
        shaped(dict[str, int], {"a": "x"})
    with pytest.raises(ValueError, match=values("a[1]", "int", "str")):
        shaped(dict[str, list[int]], {"a": [1, "x"]})


def test_a_text_that_is_more_than_text_becomes_plain() -> None:
    (block,) = shaped(Any, Color.RED).content
    assert isinstance(block, TextContent)
    assert type(block.text) is str
    assert block.text == "red"


def test_plain_text_carries_no_structured_content() -> None:
    assert shaped(str, "a").structured_content is UNSET
    assert shaped(None, None).structured_content is UNSET


def test_an_empty_list_annotated_as_blocks_has_no_content() -> None:
    assert shaped(list[ContentBlock], []) == CallToolResult(content=[])
    assert shaped(tuple[ImageContent, ...] | None, ()) == CallToolResult(content=[])
    assert shaped(list[ContentBlock], [IMAGE]) == CallToolResult(content=[IMAGE])
    assert shaped(Sequence[ContentBlock], [IMAGE]) == CallToolResult(content=[IMAGE])


@pytest.mark.parametrize("annotation", [Any, str, CallToolResult, Day, int, Day | CallToolResult, list[int]])
def test_whole_results_pass_unchanged(annotation: Any) -> None:
    for result in (CallToolResult(content=[IMAGE], is_error=True), InputRequiredResult(request_state="s")):
        assert bare(annotation).to_result(result) is result


@pytest.mark.parametrize("value", [b"a", bytearray(b"a"), memoryview(b"a")])
@pytest.mark.parametrize("annotation", [Any, bytes, str])
def test_bytes_of_no_known_kind_are_a_file(annotation: Any, value: Any) -> None:
    contents = ResourceContents(uri="file:///data", mime_type="application/octet-stream", blob="YQ==")
    assert bare(annotation).to_result(value) == CallToolResult(content=[EmbeddedResource(resource=contents)])


def test_an_unencodable_value_is_named() -> None:
    with pytest.raises(TypeError, match=values("object")):
        shaped(Any, object())
    with pytest.raises(TypeError, match=values("generator")):
        shaped(Any, (item for item in "ab"))


@pytest.mark.parametrize("value", ["\ud800", ["a", "\udc80"], TextContent])
def test_what_cannot_be_sent_is_refused_here(value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        shaped(Any, value)


# Annotations with one.


@pytest.mark.parametrize(
    ("annotation", "value", "data"),
    [
        (int, 3, 3),
        (float, 3, 3),
        (bool, False, False),
        (Color, Color.RED, "red"),
        (Literal["a"], "a", "a"),
        (list[str], ["a"], ["a"]),
        (list[str], [], []),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (dict[int, Path], {1: Path("a")}, {"1": "a"}),
        (Day, Day(date(2024, 1, 1), 2.0), {"date": "2024-01-01", "high": 2.0}),
        (Day, {"date": "2024-01-01", "high": 2}, {"date": "2024-01-01", "high": 2}),
        (Day, Holiday(date(2024, 1, 1), 2.0, "x"), {"date": "2024-01-01", "high": 2.0, "name": "x"}),
        (list[Day], [Day(date(2024, 1, 1), 2.0)], [{"date": "2024-01-01", "high": 2.0}]),
        (Row, {"id": 1, "at": date(2024, 1, 1)}, {"id": 1, "at": "2024-01-01"}),
        (Pair, Pair(1, "a"), (1, "a")),
        (Point | None, None, None),
        (Point | None, Point(1), {"xAxis": 1, "note": None}),
        (Point | CallToolResult, Point(1), {"xAxis": 1, "note": None}),
        (Annotated[int, Meta(ge=1)], 1, 1),
        (Sequence[int], [1], [1]),
    ],
)
def test_structured_values_travel_as_data_and_as_text(annotation: Any, value: Any, data: Any) -> None:
    output = bare(annotation)
    assert output.schema is not None
    result = output.to_result(value)
    assert result == structured(data, encode(data).decode())
    jsonschema_rs.validate(output.schema, msgspec.json.decode(encode(data)))


def test_the_schema_may_be_of_any_type() -> None:
    assert bare(int).schema == {"type": "integer"}
    assert bare(list[int]).schema == {"type": "array", "items": {"type": "integer"}}
    assert bare(int | None).schema == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert bare(Annotated[int, Meta(description="How many.")]).schema == {
        "type": "integer",
        "description": "How many.",
    }


def test_the_schema_of_a_union_speaks_only_of_values() -> None:
    assert bare(int | CallToolResult | InputRequiredResult).schema == {"type": "integer"}


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "3"),
        (int, True),
        (int, None),
        (Row, {"id": 1}),
        (Row, {"id": "1", "at": date(2024, 1, 1)}),
        (Day, {"date": "tomorrow", "high": 1}),
        (Day, Point(1)),
        (list[Day], [{"high": 1}]),
        (list[str], "abc"),
        (Literal["a"], "b"),
        (Annotated[int, Meta(ge=1)], 0),
        (dict[str, int], IMAGE),
    ],
)
def test_a_value_that_breaks_the_published_schema_is_an_error(annotation: Any, value: Any) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        bare(annotation).to_result(value)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": [1.0, math.nan]}, values("NaN", "$.a[1]")),
        ({"a": [math.inf]}, values("Infinity", "$.a[0]")),
        ({"a": ["\ud800"]}, r"\S"),
        ({(1,): []}, r"\S"),
    ],
)
def test_a_value_that_is_not_json_is_refused(value: Any, says: str) -> None:
    for annotation in (Any, dict[Any, Any], dict[Any, list[Any]]):
        with pytest.raises(ValueError, match=says):
            shaped(annotation, value)


def test_an_annotation_without_json_form_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match=values("result", "complex")):
        bare(complex)
    with pytest.raises(TypeError, match=r"^run \(a\.py:3\): result: .*`tag`"):
        bare(Day | Point, where="run (a.py:3)")


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_ANY: Output = bare(Any)


def has_json_form(value: Any) -> bool:
    """Return whether a value can be sent: not if it contains NaN, an infinity or a lone surrogate."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return False
    return True


@given(_json)
@example("\ud800")
@example({"\ud800": [math.inf]})
def test_any_json_is_sent_or_refused(value: Any) -> None:
    if not has_json_form(value):
        with pytest.raises(ValueError, match=r"\S"):
            _ANY.to_result(value)
        return
    result = _ANY.to_result(value)
    assert isinstance(result, CallToolResult)
    sent = msgspec.json.decode(encode(result))
    if result.structured_content is not UNSET:
        assert sent["structuredContent"] == value
        assert msgspec.json.decode(sent["content"][0]["text"]) == value


# Resources.


@pytest.mark.parametrize(
    ("value", "mime_type", "contents"),
    [
        ("a", None, [ResourceContents(uri="u", text="a")]),
        ("", "text/plain", [ResourceContents(uri="u", mime_type="text/plain", text="")]),
        (b"\xff", "image/png", [ResourceContents(uri="u", mime_type="image/png", blob="/w==")]),
        (bytearray(b"hi"), None, [ResourceContents(uri="u", blob="aGk=")]),
        (CONTENTS, "text/plain", [CONTENTS]),
        ([CONTENTS, "a"], None, [CONTENTS, ResourceContents(uri="u", text="a")]),
        ({"a": 1}, None, [ResourceContents(uri="u", mime_type="application/json", text='{"a":1}')]),
        ({"a": 1}, "application/x", [ResourceContents(uri="u", mime_type="application/x", text='{"a":1}')]),
        ([], None, [ResourceContents(uri="u", mime_type="application/json", text="[]")]),
        ([1, "a"], None, [ResourceContents(uri="u", mime_type="application/json", text='[1,"a"]')]),
        (None, None, [ResourceContents(uri="u", mime_type="application/json", text="null")]),
        (Point(1), None, [ResourceContents(uri="u", mime_type="application/json", text='{"xAxis":1,"note":null}')]),
    ],
)
def test_resource_contents(value: Any, mime_type: str | None, contents: list[ResourceContents]) -> None:
    assert to_resource_contents(value, "u", mime_type) == contents


def test_resources_that_cannot_be_sent() -> None:
    with pytest.raises(ValueError, match=r"\S"):
        to_resource_contents("\ud800", "u", None)
    with pytest.raises(ValueError, match="NaN"):
        to_resource_contents([math.nan], "u", None)
    with pytest.raises(TypeError, match="`object`"):
        to_resource_contents(object(), "u", None)


# Prompts.


def test_prompt_messages() -> None:
    said = PromptMessage(role="assistant", content=TextContent(text="b"))
    assert to_prompt_messages("a") == [PromptMessage(role="user", content=TextContent(text="a"))]
    assert to_prompt_messages(IMAGE) == [PromptMessage(role="user", content=IMAGE)]
    assert to_prompt_messages(said) == [said]
    assert to_prompt_messages(["a", said, CONTENTS]) == [
        PromptMessage(role="user", content=TextContent(text="a")),
        said,
        PromptMessage(role="user", content=EmbeddedResource(resource=CONTENTS)),
    ]
    assert to_prompt_messages(()) == []


def test_a_whole_prompt_passes() -> None:
    whole = GetPromptResult(messages=[], description="d")
    assert to_prompt_messages(whole) == whole


SAID = PromptMessage(role="assistant", content=TextContent(text="hi"))


@pytest.mark.parametrize(
    "value",
    [
        SAID,
        {"role": "assistant", "content": "hi"},
        {"role": "assistant", "content": {"type": "text", "text": "hi"}},
        {"role": "assistant", "content": TextContent(text="hi")},
        [{"role": "assistant", "content": "hi"}],
        ("assistant", "hi"),
        [("assistant", "hi")],
        PromptMessage(role="assistant", content="hi"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_messages_may_be_said_in_several_ways(value: Any) -> None:
    assert to_prompt_messages(value) == [SAID]
    if isinstance(value, list):
        assert to_prompt_messages(GetPromptResult(messages=value)) == GetPromptResult(messages=[SAID])


def test_two_texts_are_two_messages() -> None:
    assert [one.role for one in to_prompt_messages(["assistant", "x"])] == ["user", "user"]  # pyright: ignore[reportUnknownVariableType, reportGeneralTypeIssues]
    assert [one.role for one in to_prompt_messages(("a", "x"))] == ["user", "user"]  # pyright: ignore[reportUnknownVariableType, reportGeneralTypeIssues]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (PromptMessage(role="system", content=TextContent(text="x")), "system"),  # pyright: ignore[reportArgumentType]
        ({"role": "system", "content": "x"}, "system"),
        ({"role": "user", "content": 3}, values("int")),
        ({"role": "user", "content": {"type": "text"}}, values("text")),
        (PromptMessage(role="user", content=TextContent(text=3)), "TextContent"),  # pyright: ignore[reportArgumentType]
        (GetPromptResult(messages=[PromptMessage(role="system", content="x")]), "system"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_messages_that_cannot_be_sent_are_refused(value: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        to_prompt_messages(value)


def test_results_made_by_hand_are_made_whole() -> None:
    made = CallToolResult(content=["hi", IMAGE])  # pyright: ignore[reportArgumentType]
    for annotation in (Any, str, CallToolResult, int):
        assert shaped(annotation, made).content == [TextContent(text="hi"), IMAGE]
    sound = CallToolResult(content=[TextContent(text="hi")], is_error=True)
    assert shaped(Any, sound) is sound


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (CallToolResult(content="hi"), values("str")),  # pyright: ignore[reportArgumentType]
        (CallToolResult(content=[3]), values("int")),  # pyright: ignore[reportArgumentType]
        (CallToolResult(content=[TextContent(text=3)]), "TextContent"),  # pyright: ignore[reportArgumentType]
        (CallToolResult(content=[], is_error="no"), "True.*False.*'no'"),  # pyright: ignore[reportArgumentType]
        (TextContent(text=3), "TextContent"),  # pyright: ignore[reportArgumentType]
        ([ImageContent(data=b"x", mime_type=3)], "ImageContent"),  # pyright: ignore[reportArgumentType]
        (ResourceContents(uri=3, text="x"), "ResourceContents"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_results_that_cannot_be_sent_are_refused(value: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        shaped(Any, value)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(None, "NoneType"), (3, "int"), ({"role": "user"}, "dict"), ([["a"]], "list"), (["a", 3], "int")],
)
def test_a_prompt_of_anything_else_is_refused(value: Any, kind: str) -> None:
    with pytest.raises(TypeError, match=values(kind)):
        to_prompt_messages(value)


def test_every_block_is_known() -> None:
    sound = AudioContent(data="aGk=", mime_type="audio/wav")
    embedded = EmbeddedResource(resource=CONTENTS)
    blocks: list[ContentBlock] = [TextContent(text="a"), IMAGE, sound, LINK, embedded]
    assert shaped(Any, blocks).content == blocks


# Wrapped values.


@pytest.mark.parametrize(
    ("annotation", "value"),
    [(int, 3), (list[int], [1]), (int | None, None), (Row | None, {"id": 1, "at": "2026-01-02"}), (Any, [1]), (Any, 3)],
)
def test_a_value_that_is_not_an_object_is_wrapped(annotation: Any, value: Any) -> None:
    output = compile_output(annotation)
    result = output.to_result(value)
    assert result == structured({"result": value}, encode(value).decode())
    if output.schema is not None:
        jsonschema_rs.validate(output.schema, {"result": value})


@pytest.mark.parametrize(("annotation", "value"), [(dict[str, int], {"a": 1}), (Any, {"a": 1}), (Any, {"result": 1})])
def test_an_object_is_not_wrapped(annotation: Any, value: Any) -> None:
    output = compile_output(annotation)
    assert output.to_result(value) == structured(value, encode(value).decode())
    assert output.schema == bare(annotation).schema


def test_the_wrapped_schema_has_one_required_property() -> None:
    assert compile_output(int).schema == {
        "type": "object",
        "properties": {"result": {"type": "integer"}},
        "required": ["result"],
        "x-fastmcp-wrap-result": True,
    }


@pytest.mark.parametrize(
    ("annotation", "content", "is_error", "wrapped"),
    [
        (int | CallToolResult, 3, False, {"result": 3}),
        (Point | CallToolResult | None, {"xAxis": 1}, False, {"result": {"xAxis": 1}}),
        (int | CallToolResult, {"code": 3}, True, {"code": 3}),
        (int | CallToolResult, 3, True, {"result": 3}),
        (CallToolResult, [1], False, {"result": [1]}),
        (CallToolResult, {"a": 1}, False, {"a": 1}),
        (CallToolResult, Point(1), False, Point(1)),
        (CallToolResult, UNSET, False, UNSET),
    ],
)
def test_structured_content_made_by_hand_is_wrapped_too(
    annotation: Any, content: Any, is_error: bool, wrapped: Any
) -> None:
    made = CallToolResult(content=[], structured_content=content, is_error=is_error)
    result = compile_output(annotation).to_result(made)
    assert isinstance(result, CallToolResult)
    assert result.structured_content == wrapped
