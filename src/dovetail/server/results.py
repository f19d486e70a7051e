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
from dovetail.server.input_requests import InputRequired
from dovetail.server.media import BYTES_TYPES, File, build_block, build_file_contents, is_media_type, to_media
from dovetail.server.parameters.annotations import (
    build_schema,
    convert_value,
    is_path_type,
    is_table_type,
    list_alternatives,
    to_json,
)
from dovetail.server.parameters.foreign_types import may_need_adapters
from dovetail.wire.base import UNSET, Struct, replace
from dovetail.wire.codec import convert, to_plain
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
from dovetail.wire.input_required import InputRequiredResult
from dovetail.wire.prompts import GetPromptResult, PromptMessage
from dovetail.wire.resources import ReadResourceResult
from dovetail.wire.tools import CallToolResult

ToolResult: TypeAlias = CallToolResult | InputRequiredResult

_BLOCK_TYPES: Final = (TextContent, ImageContent, AudioContent, ResourceLink, EmbeddedResource)
_RESULT_TYPES: Final = (CallToolResult, InputRequiredResult)
_ROLES: Final = typing.get_args(Role)
_TYPES_WITHOUT_SCHEMA: Final = (Any, str, NoneType, list, list[Any], tuple, tuple[Any, ...])


class Output(Struct, frozen=True):
    """How the results of one tool are published: `schema`, if they have one, and `shape`, which makes them."""

    schema: dict[str, Any] | None
    to_result: Callable[[Any], ToolResult]


def compile_output(annotation: Any, *, where: str = "") -> Output:
    """Reads the annotation of a tool's result once.

    Raises:
        TypeError: it has no JSON form; the text begins with `where`.
    """
    # A union with whole results leaves the author the last word; the schema speaks of its other members.
    members = list_alternatives(annotation)
    value_types = [member for member in members if member not in _RESULT_TYPES and member is not InputRequired]
    if value_types == [str]:
        return Output(None, _convert_text)
    if any(_is_block_list(member) for member in value_types):
        return Output(None, _convert_blocks)
    if (
        Any in value_types
        or any(_is_block_type(member) for member in value_types)
        or all(kind in _TYPES_WITHOUT_SCHEMA for kind in value_types)
    ):
        return Output(None, _convert_value)
    value_type = annotation if value_types == members else functools.reduce(operator.or_, value_types)
    try:
        if may_need_adapters():
            from dovetail.server.parameters.type_adapters import adapt

            value_type = adapt(value_type)
        return Output(build_schema(value_type, output=True), _make_checked_converter(value_type))
    except TypeError as exc:
        raise TypeError(f"{where}: result: {exc}" if where else f"result: {exc}") from None


def build_output(schema: dict[str, Any], validator: Any) -> Output:
    """The output of a tool whose author gave the schema; results are held against it by the validator."""

    def to_result(value: Any) -> ToolResult:
        result = _check_result(value) if isinstance(value, _RESULT_TYPES) else _build_structured_result(*to_json(value))
        if isinstance(result, CallToolResult) and not result.is_error:
            if result.structured_content is UNSET:
                raise ValueError("the result has no structured content, but the tool has an output schema")
            # spec: tools#output-schema
            for error in validator.iter_errors(to_json(result.structured_content)[0]):
                from dovetail.server.parameters.custom_schema import format_error  # which made the validator

                raise ValueError(f"the result does not fit the output schema: {format_error(error)}")
        return result

    return Output(schema, to_result)


def to_resource_contents(value: Any, uri: str, mime_type: str | None) -> list[ResourceContents]:
    """What a resource function returned: text, bytes, contents, a list of these, or any value with a JSON form."""
    items = typing.cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) and value else [value]
    contents = [_to_contents(item, uri, mime_type) for item in items]
    if all(content is not None for content in contents):
        return [content for content in contents if content is not None]
    text = to_json(value)[1].decode()
    return [ResourceContents(uri=uri, mime_type=mime_type or "application/json", text=text)]


def to_prompt_messages(value: Any) -> list[PromptMessage] | GetPromptResult:
    """What a prompt function returned: text, a content block, a message, a list of these, or the whole result.

    A message is a PromptMessage, a dict of `role` and `content`, or a tuple of the two.
    """
    if isinstance(value, GetPromptResult):
        return replace(value, messages=[_to_message(message) for message in value.messages])
    is_list = isinstance(value, (list, tuple)) and not _is_role_pair(value)
    items = typing.cast("Sequence[Any]", value) if is_list else [value]
    return [_to_message(item) for item in items]


def build_failure_result(exc: MCPError) -> CallToolResult:
    """An error for the model to read, which says a text or content blocks."""
    message: Any = exc.args[0] if exc.args else ""
    if isinstance(message, _BLOCK_TYPES):
        message = [message]
    parts = typing.cast("Sequence[Any]", message) if isinstance(message, list | tuple) else [str(exc)]
    return CallToolResult(content=[_to_block(part) for part in parts], is_error=True)


def check_read_result(value: ReadResourceResult) -> ReadResourceResult:
    """A whole result of a resource, if it can be sent. TypeError if not."""
    for contents in value.contents:
        _check_block(contents)
    return value


def _is_block_list(annotation: Any) -> bool:
    """Whether the annotation is a list or tuple made for content: texts perhaps, but at least one kind of block."""
    if typing.get_origin(annotation) not in (list, tuple):
        return False
    members = [
        member
        for argument in typing.get_args(annotation)
        for member in list_alternatives(argument)
        if member is not Ellipsis
    ]
    return any(_is_block_type(member) and not _may_be_value(member) for member in members)


def _is_block_type(annotation: Any) -> bool:
    return (
        annotation in (*_BLOCK_TYPES, ResourceContents, *BYTES_TYPES)
        or is_media_type(annotation)
        or is_table_type(annotation)
    )


def _may_be_value(annotation: Any) -> bool:
    """Whether a list of these is a list of values: names of files, say, not the files."""
    return annotation in (str, *BYTES_TYPES) or is_path_type(annotation)


def _convert_text(value: Any) -> ToolResult:
    if type(value) is str:
        return CallToolResult(content=[TextContent(text=value if value.isascii() else _to_encodable_text(value))])
    if value is None:  # most likely a `return` was forgotten
        raise ValueError("the result does not fit its annotation: expected `str`, got `null`")
    return _convert_value(value)


def _convert_blocks(value: Any) -> ToolResult:
    # Only the annotation tells that an empty list is no content rather than a value.
    return CallToolResult(content=[]) if isinstance(value, (list, tuple)) and not value else _convert_value(value)


def _convert_value(value: Any) -> ToolResult:
    """Without a schema the value decides."""
    if value is None:
        return CallToolResult(content=[])
    if isinstance(value, _RESULT_TYPES):
        return _check_result(value)
    if (block := _to_block_or_none(value)) is not None:
        return CallToolResult(content=[block])
    if isinstance(value, (list, tuple)) and value:
        items = typing.cast("Sequence[Any]", value)
        all_text = all(isinstance(item, str) for item in items)
        if all_text or any(_is_block_type(type(item)) and not _may_be_value(type(item)) for item in items):
            return CallToolResult(content=[_to_block_or_none(item) or _to_json_block(item) for item in items])
    return _build_structured_result(*to_json(value))


def _make_checked_converter(annotation: Any) -> Callable[[Any], ToolResult]:
    def to_result(value: Any) -> ToolResult:
        if isinstance(value, _RESULT_TYPES):
            return _check_result(value)
        data, text = to_json(value)
        # spec: tools#output-schema
        if type(value) is not annotation:
            _check_value(annotation, value, data)
        return _build_structured_result(data, text)

    return to_result


def _check_value(annotation: Any, value: Any, data: Any) -> None:
    try:
        convert_value(annotation, value)
    except ValueError:
        _check_json(annotation, data)


def _check_json(annotation: Any, data: Any) -> None:
    """For a value of another class, it is its JSON that has to fit."""
    try:
        convert_value(annotation, data)
    except ValueError as exc:
        raise ValueError(
            f"the result does not fit its annotation: {_add_location(annotation, data, str(exc))}"
        ) from None


def _add_location(annotation: Any, data: Any, reason: str) -> str:
    """The reason with the key where it stands, which msgspec leaves open."""
    if "[...]" not in reason:
        return reason
    from dovetail.server.parameters.argument_errors import find_mismatches  # only mistaken results pay for it

    schema = build_schema(annotation, output=True)
    message = next(find_mismatches(schema, data, schema.get("$defs", {}), ""), reason)
    return message.replace("`.", "`", 1)


def _build_structured_result(data: Any, text: bytes) -> CallToolResult:
    # Clients that do not read structured content find the same in the text. spec: tools#structured-content
    return CallToolResult(content=[TextContent(text=text.decode())], structured_content=data)


def _to_block_or_none(value: Any) -> ContentBlock | None:
    """A value that is content by itself; None for one that has to become JSON."""
    if isinstance(value, str):
        return TextContent(text=_to_encodable_text(value))
    if isinstance(value, ResourceContents):
        return EmbeddedResource(resource=_check_block(value))
    if isinstance(value, _BLOCK_TYPES):
        return _check_block(value)
    media = to_media(value)
    return None if media is None else build_block(media)


def _check_result(result: ToolResult) -> ToolResult:
    """A result made by hand, its texts as blocks. TypeError if it could not be sent."""
    if not isinstance(result, CallToolResult):
        return result
    content: Any = result.content
    if not isinstance(content, (list, tuple)):
        raise TypeError(f"the content of a CallToolResult is a list of blocks, not `{type(content).__qualname__}`")
    if type(result.is_error) is not bool:
        raise TypeError(f"is_error of a CallToolResult is True or False, not {result.is_error!r}")
    blocks = [_to_block(part) for part in typing.cast("Sequence[Any]", content)]
    is_unchanged = all(new is old for new, old in zip(blocks, typing.cast("Sequence[Any]", content), strict=True))
    return result if is_unchanged else replace(result, content=blocks)


def _to_block(value: Any) -> ContentBlock:
    """A block, or what becomes one by itself. TypeError for anything else."""
    if isinstance(value, dict) and "type" in value:
        try:
            return convert(value, typing.cast("type[Any]", ContentBlock), label="block")
        except InvalidParams as exc:
            raise TypeError(f"a content block is malformed: {exc.message}") from None
    block = _to_block_or_none(value)
    if block is None:
        raise TypeError(f"`{type(value).__qualname__}` is no content: expected a text or a content block")
    return block


def _check_block(block: Any) -> Any:
    """A block made by hand, if its members are what they have to be. TypeError if not."""
    if type(block) is TextContent and type(block.text) is str and block.annotations is None and block.meta is None:
        return block
    try:
        convert(to_plain(block), type(block), label=type(block).__name__)
    except (InvalidParams, TypeError) as exc:
        raise TypeError(f"a {type(block).__name__} is malformed: {exc}") from None
    return block


def _to_json_block(value: Any) -> ContentBlock:
    return TextContent(text=to_json(value)[1].decode())


def _to_encodable_text(text: str) -> str:
    """The text as a plain str that can be sent: half a surrogate pair, as file names may hold, would fail only then."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("not JSON: a text contains half a surrogate pair") from None
    return text if type(text) is str else str.__str__(text)


def _to_contents(value: Any, uri: str, mime_type: str | None) -> ResourceContents | None:
    if isinstance(value, ResourceContents):
        return _check_block(value)
    if isinstance(value, str):
        return ResourceContents(uri=uri, mime_type=mime_type, text=_to_encodable_text(value))
    if isinstance(value, BYTES_TYPES):
        return ResourceContents(uri=uri, mime_type=mime_type, blob=base64.b64encode(value).decode())
    media = to_media(value)
    if media is None:
        return None
    file = media if isinstance(media, File) else File(media.data, mime_type=media.mime_type)
    return build_file_contents(file, uri, mime_type)


def _is_role_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(typing.cast("tuple[Any, ...]", value)) == 2 and value[0] in _ROLES


def _to_message(value: Any) -> PromptMessage:
    if isinstance(value, PromptMessage):
        role, content = value.role, value.content
    elif isinstance(value, dict) and value.keys() == {"role", "content"}:
        role, content = value["role"], value["content"]
    elif _is_role_pair(value):
        role, content = value
    else:
        return _to_user_message(value)
    if role not in _ROLES:
        raise ValueError(f"a message is said by 'user' or 'assistant', not by {role!r}")
    return PromptMessage(role=role, content=_to_block(content))


def _to_user_message(value: Any) -> PromptMessage:
    if (block := _to_block_or_none(value)) is not None:
        return PromptMessage(role="user", content=block)
    raise TypeError(
        f"a prompt returned `{type(value).__qualname__}`: return text, content blocks, PromptMessage or a list of them"
    )
