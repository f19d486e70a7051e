"""What a function returned, as what a client receives: tool results, resource contents, prompt messages.

One rule for tools. No annotation, Any, str, None, content blocks, media (pictures, sounds, files, a path, bytes),
tables, mixes of these, lists of anything and whole results have no schema: the value decides, but that a promised text
is not None. Every other annotation has a schema, and its value travels twice: structured, and as its JSON text in one
block. Invariant: a published schema is kept, or it fails.
"""

import base64
import functools
import operator
import typing
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any, Final, TypeAlias

from dovetail.errors import InvalidParams, MCPError
from dovetail.server.asking import InputRequired
from dovetail.server.foreign import may_be_noted
from dovetail.server.media import BYTES, File, is_media, to_media
from dovetail.server.schema import alternatives, is_path, is_table, read_as, schema_of, to_json
from dovetail.wire.codec import convert, plain
from dovetail.wire.content import (
    AudioContent,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    Role,
    TextContent,
)
from dovetail.wire.inputs import InputRequiredResult
from dovetail.wire.prompts import GetPromptResult, PromptMessage
from dovetail.wire.resources import ReadResourceResult
from dovetail.wire.shape import UNSET, Struct, replace
from dovetail.wire.tools import CallToolResult

ToolResult: TypeAlias = CallToolResult | InputRequiredResult

_BLOCKS: Final = (TextContent, ImageContent, AudioContent, ResourceLink, EmbeddedResource)
_RESULTS: Final = (CallToolResult, InputRequiredResult)
_ROLES: Final = typing.get_args(Role)
_SCHEMALESS: Final = (Any, str, NoneType, list, list[Any], tuple, tuple[Any, ...])


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
    if Any in values or any(_is_block(kind) for kind in values) or all(kind in _SCHEMALESS for kind in values):
        return Output(None, _shape)
    described = annotation if values == kinds else functools.reduce(operator.or_, values)
    try:
        if may_be_noted():
            from dovetail.server.adapting import adapt

            described = adapt(described)
        return Output(schema_of(described, output=True), _checked(described))
    except TypeError as exc:
        raise TypeError(f"{where}: result: {exc}" if where else f"result: {exc}") from None


def output_of(schema: dict[str, Any], validator: Any) -> Output:
    """The output of a tool whose author gave the schema; results are held against it by the validator."""

    def shape(value: Any) -> ToolResult:
        result = _whole(value) if isinstance(value, _RESULTS) else _structured(*to_json(value))
        if isinstance(result, CallToolResult) and not result.is_error:
            if result.structured_content is UNSET:
                raise ValueError("the result has no structured content, but the tool has an output schema")
            # spec: tools#output-schema
            for error in validator.iter_errors(to_json(result.structured_content)[0]):
                from dovetail.server.verbatim import problem  # which made the validator

                raise ValueError(f"the result does not fit the output schema: {problem(error)}")
        return result

    return Output(schema, shape)


def resource_contents(value: Any, uri: str, mime_type: str | None) -> list[ResourceContents]:
    """What a resource function returned: text, bytes, contents, a list of these, or any value with a JSON form."""
    items = typing.cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) and value else [value]
    found = [_contents(item, uri, mime_type) for item in items]
    if all(one is not None for one in found):
        return [one for one in found if one is not None]
    text = to_json(value)[1].decode()
    return [ResourceContents(uri=uri, mime_type=mime_type or "application/json", text=text)]


def prompt_messages(value: Any) -> list[PromptMessage] | GetPromptResult:
    """What a prompt function returned: text, a content block, a message, a list of these, or the whole result.

    A message is a PromptMessage, a dict of `role` and `content`, or a tuple of the two.
    """
    if isinstance(value, GetPromptResult):
        return replace(value, messages=[_message(one) for one in value.messages])
    several = isinstance(value, (list, tuple)) and not _is_pair(value)
    items = typing.cast("Sequence[Any]", value) if several else [value]
    return [_message(item) for item in items]


def failure(exc: MCPError) -> CallToolResult:
    """An error for the model to read, which says a text or content blocks."""
    said: Any = exc.args[0] if exc.args else ""
    if isinstance(said, _BLOCKS):
        said = [said]
    parts = typing.cast("Sequence[Any]", said) if isinstance(said, list | tuple) else [str(exc)]
    return CallToolResult(content=[_block_of(one) for one in parts], is_error=True)


def read_result(value: ReadResourceResult) -> ReadResourceResult:
    """A whole result of a resource, if it can be sent. TypeError if not."""
    for one in value.contents:
        _sound(one)
    return value


def _is_blocks(kind: Any) -> bool:
    """Whether the annotation is a list or tuple made for content: texts perhaps, but at least one kind of block."""
    if typing.get_origin(kind) not in (list, tuple):
        return False
    members = [found for item in typing.get_args(kind) for found in alternatives(item) if found is not Ellipsis]
    return any(_is_block(member) and not _may_be_value(member) for member in members)


def _is_block(kind: Any) -> bool:
    return kind in (*_BLOCKS, ResourceContents, *BYTES) or is_media(kind) or is_table(kind)


def _may_be_value(kind: Any) -> bool:
    """Whether a list of these is a list of values: names of files, say, not the files."""
    return kind in (str, *BYTES) or is_path(kind)


def _shape_text(value: Any) -> ToolResult:
    if type(value) is str:
        return CallToolResult(content=[TextContent(text=value if value.isascii() else _sayable(value))])
    if value is None:  # most likely a `return` was forgotten
        raise ValueError("the result does not fit its annotation: expected `str`, got `null`")
    return _shape(value)


def _shape_blocks(value: Any) -> ToolResult:
    # Only the annotation tells that an empty list is no content rather than a value.
    return CallToolResult(content=[]) if isinstance(value, (list, tuple)) and not value else _shape(value)


def _shape(value: Any) -> ToolResult:
    """Without a schema the value decides."""
    if value is None:
        return CallToolResult(content=[])
    if isinstance(value, _RESULTS):
        return _whole(value)
    if (block := _block(value)) is not None:
        return CallToolResult(content=[block])
    if isinstance(value, (list, tuple)) and value:
        items = typing.cast("Sequence[Any]", value)
        texts = all(isinstance(item, str) for item in items)
        if texts or any(_is_block(type(item)) and not _may_be_value(type(item)) for item in items):
            return CallToolResult(content=[_block(item) or _json_block(item) for item in items])
    return _structured(*to_json(value))


def _checked(annotation: Any) -> Callable[[Any], ToolResult]:
    def shape(value: Any) -> ToolResult:
        if isinstance(value, _RESULTS):
            return _whole(value)
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
        raise ValueError(f"the result does not fit its annotation: {_located(annotation, data, str(exc))}") from None


def _located(annotation: Any, data: Any, why: str) -> str:
    """The reason with the key where it stands, which msgspec leaves open."""
    if "[...]" not in why:
        return why
    from dovetail.server.arguments import misfits  # only mistaken results pay for it

    schema = schema_of(annotation, output=True)
    line = next(misfits(schema, data, schema.get("$defs", {}), ""), why)
    return line.replace("`.", "`", 1)


def _structured(data: Any, text: bytes) -> CallToolResult:
    # Clients that do not read structured content find the same in the text. spec: tools#structured-content
    return CallToolResult(content=[TextContent(text=text.decode())], structured_content=data)


def _block(value: Any) -> ContentBlock | None:
    """A value that is content by itself; None for one that has to become JSON."""
    if isinstance(value, str):
        return TextContent(text=_sayable(value))
    if isinstance(value, ResourceContents):
        return EmbeddedResource(resource=_sound(value))
    if isinstance(value, _BLOCKS):
        return _sound(value)
    media = to_media(value)
    return None if media is None else media.block()


def _whole(result: ToolResult) -> ToolResult:
    """A result made by hand, its texts as blocks. TypeError if it could not be sent."""
    if not isinstance(result, CallToolResult):
        return result
    given: Any = result.content
    if not isinstance(given, (list, tuple)):
        raise TypeError(f"the content of a CallToolResult is a list of blocks, not `{type(given).__qualname__}`")
    if type(result.is_error) is not bool:
        raise TypeError(f"is_error of a CallToolResult is True or False, not {result.is_error!r}")
    blocks = [_block_of(one) for one in typing.cast("Sequence[Any]", given)]
    same = all(new is old for new, old in zip(blocks, typing.cast("Sequence[Any]", given), strict=True))
    return result if same else replace(result, content=blocks)


def _block_of(value: Any) -> ContentBlock:
    """A block, or what becomes one by itself. TypeError for anything else."""
    if isinstance(value, dict) and "type" in value:
        try:
            return convert(value, typing.cast("type[Any]", ContentBlock), what="block")
        except InvalidParams as exc:
            raise TypeError(f"a content block is malformed: {exc.message}") from None
    block = _block(value)
    if block is None:
        raise TypeError(f"`{type(value).__qualname__}` is no content: expected a text or a content block")
    return block


def _sound(block: Any) -> Any:
    """A block made by hand, if its members are what they have to be. TypeError if not."""
    if type(block) is TextContent and type(block.text) is str and block.annotations is None and block.meta is None:
        return block
    try:
        convert(plain(block), type(block), what=type(block).__name__)
    except (InvalidParams, TypeError) as exc:
        raise TypeError(f"a {type(block).__name__} is malformed: {exc}") from None
    return block


def _json_block(value: Any) -> ContentBlock:
    return TextContent(text=to_json(value)[1].decode())


def _sayable(text: str) -> str:
    """The text as a plain str that can be sent: half a surrogate pair, as file names may hold, would fail only then."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("not JSON: a text contains half a surrogate pair") from None
    return text if type(text) is str else str.__str__(text)


def _contents(value: Any, uri: str, mime_type: str | None) -> ResourceContents | None:
    if isinstance(value, ResourceContents):
        return _sound(value)
    if isinstance(value, str):
        return ResourceContents(uri=uri, mime_type=mime_type, text=_sayable(value))
    if isinstance(value, BYTES):
        return ResourceContents(uri=uri, mime_type=mime_type, blob=base64.b64encode(value).decode())
    media = to_media(value)
    if media is None:
        return None
    file = media if isinstance(media, File) else File(media.data, mime_type=media.mime_type)
    return file.contents(uri, mime_type)


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(typing.cast("tuple[Any, ...]", value)) == 2 and value[0] in _ROLES


def _message(value: Any) -> PromptMessage:
    if isinstance(value, PromptMessage):
        role, said = value.role, value.content
    elif isinstance(value, dict) and value.keys() == {"role", "content"}:
        role, said = value["role"], value["content"]
    elif _is_pair(value):
        role, said = value
    else:
        return _user_message(value)
    if role not in _ROLES:
        raise ValueError(f"a message is said by 'user' or 'assistant', not by {role!r}")
    return PromptMessage(role=role, content=_block_of(said))


def _user_message(value: Any) -> PromptMessage:
    if (block := _block(value)) is not None:
        return PromptMessage(role="user", content=block)
    raise TypeError(
        f"a prompt returned `{type(value).__qualname__}`: return text, content blocks, PromptMessage or a list of them"
    )
