"""What a function returned, as what a client receives: tool results, resource contents, prompt messages.

One rule for tools. No annotation, Any, str, None, bytes, content blocks, lists and mixes of blocks, lists of anything
and whole results have no schema: the value decides. Every other annotation has a schema, and its value travels twice:
structured, and as its JSON text in one block. Invariant: a published schema is kept, or it fails.
"""

import base64
import functools
import operator
import typing
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any, Final, TypeAlias

from dovetail.errors import clip
from dovetail.server.asking import InputRequired
from dovetail.server.schema import alternatives, read_as, schema_of, to_json
from dovetail.wire.content import (
    AudioContent,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
)
from dovetail.wire.inputs import InputRequiredResult
from dovetail.wire.prompts import GetPromptResult, PromptMessage
from dovetail.wire.shape import UNSET, Struct
from dovetail.wire.tools import CallToolResult

ToolResult: TypeAlias = CallToolResult | InputRequiredResult

_BLOCKS: Final = (TextContent, ImageContent, AudioContent, ResourceLink, EmbeddedResource, ResourceContents)
_RESULTS: Final = (CallToolResult, InputRequiredResult)
_BYTES: Final = (bytes, bytearray, memoryview)
_SCHEMALESS: Final = (Any, str, NoneType, *_BYTES, list, list[Any], tuple, tuple[Any, ...])
_BYTES_TEXT: Final = (
    "a tool returned bytes, which do not say what they are: return ImageContent, AudioContent or EmbeddedResource"
)


class Output(Struct, frozen=True):
    """How the results of one tool are published: `schema`, if they have one, and `shape`, which makes them."""

    schema: dict[str, Any] | None
    shape: Callable[[Any], ToolResult]


def compile_output(annotation: Any, *, where: str = "") -> Output:
    """Reads the annotation of a tool's result once.

    Raises:
        TypeError: it has no JSON form; the text begins with `where`.
    """
    # A union with whole results leaves the author the last word; the schema speaks of its other members.
    kinds = alternatives(annotation)
    values = [kind for kind in kinds if kind not in _RESULTS and kind is not InputRequired]
    if values == [str]:
        return Output(None, _shape_text)
    if any(_is_blocks(kind) for kind in values):
        return Output(None, _shape_blocks)
    if Any in values or any(kind in _BLOCKS for kind in values) or all(kind in _SCHEMALESS for kind in values):
        return Output(None, _shape)
    described = annotation if values == kinds else functools.reduce(operator.or_, values)
    try:
        return Output(schema_of(described), _checked(described))
    except TypeError as exc:
        raise TypeError(f"{where}: result: {exc}" if where else f"result: {exc}") from None


def output_of(schema: dict[str, Any], validator: Any) -> Output:
    """The output of a tool whose author gave the schema; results are held against it by the validator."""

    def shape(value: Any) -> ToolResult:
        result = value if isinstance(value, _RESULTS) else _structured(*to_json(value))
        if isinstance(result, CallToolResult) and not result.is_error:
            if result.structured_content is UNSET:
                raise ValueError("the result has no structured content, but the tool has an output schema")
            # spec: tools#output-schema
            for error in validator.iter_errors(to_json(result.structured_content)[0]):
                raise ValueError(f"the result does not fit the output schema: {clip(error.message)}")
        return result

    return Output(schema, shape)


def resource_contents(value: Any, uri: str, mime_type: str | None) -> list[ResourceContents]:
    """What a resource function returned: text, bytes, contents, a list of these, or any value with a JSON form."""
    items = typing.cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) and value else [value]
    if all(isinstance(item, (str, ResourceContents, *_BYTES)) for item in items):
        return [_contents(item, uri, mime_type) for item in items]
    text = to_json(value)[1].decode()
    return [ResourceContents(uri=uri, mime_type=mime_type or "application/json", text=text)]


def prompt_messages(value: Any) -> list[PromptMessage] | GetPromptResult:
    """What a prompt function returned: text, a content block, a message, a list of these, or the whole result."""
    if isinstance(value, GetPromptResult):
        return value
    items = typing.cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else [value]
    return [item if isinstance(item, PromptMessage) else _user_message(item) for item in items]


def _is_blocks(kind: Any) -> bool:
    """Whether the annotation is a list or tuple made for content: texts perhaps, but at least one kind of block."""
    if typing.get_origin(kind) not in (list, tuple):
        return False
    members = [found for item in typing.get_args(kind) for found in alternatives(item) if found is not Ellipsis]
    return any(member in _BLOCKS for member in members) and all(member in (str, *_BLOCKS) for member in members)


def _shape_text(value: Any) -> ToolResult:
    if type(value) is str:
        return CallToolResult(content=[TextContent(text=value if value.isascii() else _sayable(value))])
    return _shape(value)


def _shape_blocks(value: Any) -> ToolResult:
    # Only the annotation tells that an empty list is no content rather than a value.
    return CallToolResult(content=[]) if isinstance(value, (list, tuple)) and not value else _shape(value)


def _shape(value: Any) -> ToolResult:
    """Without a schema the value decides."""
    if value is None:
        return CallToolResult(content=[])
    if isinstance(value, _RESULTS):
        return value
    if isinstance(value, (str, *_BLOCKS)):
        return CallToolResult(content=[_block(value)])
    if isinstance(value, _BYTES):
        raise TypeError(_BYTES_TEXT)
    if isinstance(value, (list, tuple)) and value:
        items = typing.cast("Sequence[Any]", value)
        if all(isinstance(item, (str, *_BLOCKS)) for item in items):
            return CallToolResult(content=[_block(item) for item in items])
    return _structured(*to_json(value))


def _checked(annotation: Any) -> Callable[[Any], ToolResult]:
    def shape(value: Any) -> ToolResult:
        if isinstance(value, _RESULTS):
            return value
        data, text = to_json(value)
        # spec: tools#output-schema
        if type(value) is not annotation:
            _check(annotation, value, data)
        return _structured(data, text)

    return shape


def _check(annotation: Any, value: Any, data: Any) -> None:
    try:
        read_as(annotation, value)
    except ValueError:
        _check_json(annotation, data)


def _check_json(annotation: Any, data: Any) -> None:
    """For a value of another class, it is its JSON that has to fit."""
    try:
        read_as(annotation, data)
    except ValueError as exc:
        raise ValueError(f"the result does not fit its annotation: {exc}") from None


def _structured(data: Any, text: bytes) -> CallToolResult:
    # Clients that do not read structured content find the same in the text. spec: tools#structured-content
    return CallToolResult(content=[TextContent(text=text.decode())], structured_content=data)


def _block(value: str | ContentBlock | ResourceContents) -> ContentBlock:
    if isinstance(value, str):
        return TextContent(text=_sayable(value))
    return EmbeddedResource(resource=value) if isinstance(value, ResourceContents) else value


def _sayable(text: str) -> str:
    """The text as a plain str that can be sent: half a surrogate pair, as file names may hold, would fail only then."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("not JSON: a text contains half a surrogate pair") from None
    return text if type(text) is str else str.__str__(text)


def _contents(value: Any, uri: str, mime_type: str | None) -> ResourceContents:
    if isinstance(value, ResourceContents):
        return value
    if isinstance(value, str):
        return ResourceContents(uri=uri, mime_type=mime_type, text=_sayable(value))
    return ResourceContents(uri=uri, mime_type=mime_type, blob=base64.b64encode(value).decode())


def _user_message(value: Any) -> PromptMessage:
    if isinstance(value, (str, *_BLOCKS)):
        return PromptMessage(role="user", content=_block(value))
    raise TypeError(
        f"a prompt returned `{type(value).__qualname__}`: return text, content blocks, PromptMessage or a list of them"
    )
