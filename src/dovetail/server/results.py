"""Convert return values of functions to tool results, resource contents and prompt messages.

A tool has no output schema if its return annotation is one of these:

- no annotation, Any, str or None
- content blocks, media (images, audio, files, paths, bytes) and tables, alone, in a union or in a list. A list of only
  paths or bytes has a schema, however
- lists and tuples without item types
- complete results

The content of the result then depends on the returned value, but a `str` function must not return None. A tool with any
other annotation has a schema. Its value is sent twice: as structured content, and as JSON text in one content block. If
the value does not match the schema, the call fails.

Structured content that is not an object is wrapped as `{"result": ...}`, unless the server sends bare values. Its
schema is wrapped in the same way. The functions of the user never see the wrapped form.
"""

import base64
import contextlib
import functools
import operator
import typing
from collections.abc import Callable, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from dovetail.errors import InvalidParams, MCPError
from dovetail.protocol.downgrade import must_wrap, wrap_schema
from dovetail.server.input_requests import InputRequired
from dovetail.server.media import BYTES_TYPES, File, build_block, build_file_contents, is_media_type, to_media
from dovetail.server.parameters.annotations import (
    build_schema,
    convert_value,
    decode_hook,
    is_table_type,
    to_json,
)
from dovetail.server.parameters.argument_messages import MismatchError
from dovetail.server.parameters.library_choice import resolve_types
from dovetail.server.parameters.signature import has_pattern, make_validator
from dovetail.server.parameters.type_hints import is_path_type, iter_reachable_types, list_alternatives
from dovetail.wire.base import UNSET, Struct, replace
from dovetail.wire.codec import convert, encode, to_plain
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

if TYPE_CHECKING:
    from dovetail.server.parameters.pydantic_types import PydanticType

ToolResult: TypeAlias = CallToolResult | InputRequiredResult

# Which results are wrapped in an object: none, only the values that are not objects, or all.
# The mode "all" is used if a schema allows both objects and null.
Wrapping: TypeAlias = Literal["none", "values", "all"]

_BLOCK_TYPES: Final = (TextContent, ImageContent, AudioContent, ResourceLink, EmbeddedResource)
_RESULT_TYPES: Final = (CallToolResult, InputRequiredResult)
_ROLES: Final = typing.get_args(Role)
_TYPES_WITHOUT_SCHEMA: Final = (Any, str, NoneType, list, list[Any], tuple, tuple[Any, ...])


class Output(Struct, frozen=True):
    """The output schema of a tool, and the function that converts its return values to results."""

    schema: dict[str, Any] | None
    to_result: Callable[[Any], ToolResult]


def compile_output(annotation: Any, *, where: str = "", wrap_results: bool = True) -> Output:
    """Create a tool's output schema, and a function that converts returned values, from the return annotation.

    `wrap_results` wraps structured content that is not an object.

    Raises:
        TypeError: the annotation cannot be represented in JSON. The message starts with `where`.
    """
    # Complete results, such as CallToolResult, are not part of the output schema.
    members = list_alternatives(annotation)
    value_types = [member for member in members if member not in _RESULT_TYPES and member is not InputRequired]
    if value_types == [str]:
        return _build_plain_output(_convert_text, wrap_results)
    if any(_is_block_list(member) for member in value_types):
        return _build_plain_output(_convert_blocks, wrap_results)
    if (
        Any in value_types
        or any(_is_block_type(member) for member in value_types)
        or all(kind in _TYPES_WITHOUT_SCHEMA for kind in value_types)
    ):
        return _build_plain_output(_convert_value, wrap_results)
    value_type = annotation if value_types == members else functools.reduce(operator.or_, value_types)
    try:
        library, translated_types = resolve_types({"": value_type})
        value_type = translated_types[""]
        if library == "pydantic":
            from dovetail.server.parameters.pydantic_types import PydanticType

            pydantic_type = PydanticType(value_type, output=True)
            wrapping = _choose_wrapping(pydantic_type.schema, wrap_results)
            return _build_output(pydantic_type.schema, wrapping, _make_pydantic_converter(pydantic_type, wrapping))
        schema = build_schema(value_type, output=True)
        wrapping = _choose_wrapping(schema, wrap_results)
        return _build_output(schema, wrapping, _make_checked_converter(value_type, schema, wrapping))
    except TypeError as exc:
        raise TypeError(f"{where}: result: {exc}" if where else f"result: {exc}") from None


def build_output(schema: dict[str, Any], validator: Any, *, wrap_results: bool = True) -> Output:
    """Create the function that converts returned values, and checks them against a custom output schema."""
    wrapping = _choose_wrapping(schema, wrap_results)
    build_result = _build_wrapped_result if wrapping == "all" else _build_structured_result

    def require_valid(data: Any) -> None:  # spec: tools#output-schema
        for error in validator.iter_errors(data):
            # This import is here because only invalid results need it.
            from dovetail.server.parameters.custom_schema import format_error

            raise ValueError(f"the result does not match the output schema: {format_error(error)}")

    def to_result(value: Any) -> ToolResult:
        if isinstance(value, CallToolResult) and not value.is_error:
            if value.structured_content is UNSET:
                raise ValueError("the result has no structured content, but the tool has an output schema")
            require_valid(to_json(value.structured_content)[0])
        if isinstance(value, _RESULT_TYPES):
            return _check_result(value, wrapping)
        data, text = to_json(value)
        require_valid(data)
        return build_result(data, text)

    return _build_output(schema, wrapping, to_result)


def _choose_wrapping(schema: dict[str, Any], wrap_results: bool) -> Wrapping:
    return "none" if not wrap_results else "all" if must_wrap(schema) else "values"


def _build_output(schema: dict[str, Any], wrapping: Wrapping, to_result: Callable[[Any], ToolResult]) -> Output:
    return Output(wrap_schema(schema) if wrapping == "all" else schema, to_result)


def _build_plain_output(convert: Callable[..., ToolResult], wrap_results: bool) -> Output:
    return Output(None, convert if wrap_results else functools.partial(convert, wrapping="none"))


def to_resource_contents(value: Any, uri: str, mime_type: str | None) -> list[ResourceContents]:
    """Convert the return value of a resource function. It can be text, bytes, contents, a list, or any JSON value."""
    items = typing.cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) and value else [value]
    contents = [_to_contents(item, uri, mime_type) for item in items]
    if all(content is not None for content in contents):
        return [content for content in contents if content is not None]
    text = to_json(value)[1].decode()
    return [ResourceContents(uri=uri, mime_type=mime_type or "application/json", text=text)]


def to_prompt_messages(value: Any) -> list[PromptMessage] | GetPromptResult:
    """Convert the return value of a prompt function to messages.

    The value can be text, a content block, a message, a list of these, or a complete result. A message is a
    PromptMessage, a dict with `role` and `content`, or a tuple of role and content.
    """
    if isinstance(value, GetPromptResult):
        return replace(value, messages=[_to_message(message) for message in value.messages])
    is_list = isinstance(value, (list, tuple)) and not _is_role_pair(value)
    items = typing.cast("Sequence[Any]", value) if is_list else [value]
    return [_to_message(item) for item in items]


def build_failure_result(exc: MCPError) -> CallToolResult:
    """Create an error result for the model. It contains the message or the content blocks of an exception."""
    message: Any = exc.args[0] if exc.args else ""
    if isinstance(message, _BLOCK_TYPES):
        message = [message]
    parts = typing.cast("Sequence[Any]", message) if isinstance(message, list | tuple) else [str(exc)]
    return CallToolResult(content=[_to_block(part) for part in parts], is_error=True)


def check_read_result(value: ReadResourceResult) -> ReadResourceResult:
    """Return the result of a resource function. Raise TypeError if the result cannot be sent."""
    for contents in value.contents:
        _check_block(contents)
    return value


def _is_block_list(annotation: Any) -> bool:
    if typing.get_origin(annotation) not in (list, tuple, Sequence):
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
    """Return whether list items of this type are plain values, such as file names. Other items are content blocks."""
    return annotation in (str, *BYTES_TYPES) or is_path_type(annotation)


def _convert_text(value: Any, wrapping: Wrapping = "values") -> ToolResult:
    if type(value) is str:
        return CallToolResult(content=[TextContent(text=value if value.isascii() else _to_encodable_text(value))])
    # The function probably lacks a `return` statement.
    if value is None:
        raise ValueError("the result does not match its annotation: expected `str`, got `null`")
    return _convert_value(value, wrapping)


def _convert_blocks(value: Any, wrapping: Wrapping = "values") -> ToolResult:
    # With an annotation of content blocks, an empty list means that there is no content.
    if isinstance(value, (list, tuple)) and not value:
        return CallToolResult(content=[])
    return _convert_value(value, wrapping)


def _convert_value(value: Any, wrapping: Wrapping = "values") -> ToolResult:
    if value is None:
        return CallToolResult(content=[])
    if isinstance(value, _RESULT_TYPES):
        return _check_result(value, wrapping)
    if (block := _to_block_or_none(value)) is not None:
        return CallToolResult(content=[block])
    if isinstance(value, (list, tuple)) and value:
        items = typing.cast("Sequence[Any]", value)
        all_text = all(isinstance(item, str) for item in items)
        if all_text or any(_is_block_type(type(item)) and not _may_be_value(type(item)) for item in items):
            return CallToolResult(content=[_to_block_or_none(item) or _to_json_block(item) for item in items])
    data, text = to_json(value)
    if wrapping == "none" or type(data) is dict:
        return _build_structured_result(data, text)
    return _build_wrapped_result(data, text)


def _make_checked_converter(annotation: Any, schema: dict[str, Any], wrapping: Wrapping) -> Callable[[Any], ToolResult]:
    # msgspec is faster than schema validation. It is not used if it would run user code or slow patterns.
    check = _SchemaCheck(schema) if _runs_code(annotation) or has_pattern(schema) else None
    build_result = _build_wrapped_result if wrapping == "all" else _build_structured_result

    # If the type is exactly int or bool, no check is needed.
    plain_type = annotation if annotation in (int, bool) else None

    def to_result(value: Any) -> ToolResult:
        if type(value) is plain_type:
            return build_result(value, encode(value))
        if isinstance(value, _RESULT_TYPES):
            return _check_result(value, wrapping)
        data, text = to_json(value)
        # The fields of an object may have wrong values, so the encoded data is checked.
        # spec: tools#output-schema
        if check is not None:
            check.require_valid(data)
            return build_result(data, text)
        try:
            msgspec.convert(data, annotation, dec_hook=decode_hook)
        except (msgspec.ValidationError, RecursionError):
            _check_leniently(annotation, data)
        return build_result(data, text)

    return to_result


def _runs_code(annotation: Any) -> bool:
    """Return whether user code would run if data were converted to this type."""
    return any(
        hasattr(part, "__post_init__") or hasattr(part, "__attrs_attrs__")
        for part in iter_reachable_types([annotation])
    )


def _make_pydantic_converter(pydantic_type: "PydanticType", wrapping: Wrapping) -> Callable[[Any], ToolResult]:
    check = _SchemaCheck(pydantic_type.schema)
    build_result = _build_wrapped_result if wrapping == "all" else _build_structured_result

    def to_result(value: Any) -> ToolResult:
        if isinstance(value, _RESULT_TYPES):
            return _check_result(value, wrapping)
        data, text = to_json(pydantic_type.dump(_read_pydantic_value(pydantic_type, value)))
        # pydantic does not check instances again, but their fields may have changed. spec: tools#output-schema
        check.require_valid(data)
        return build_result(data, text)

    return to_result


def _read_pydantic_value(pydantic_type: "PydanticType", value: Any) -> Any:
    with contextlib.suppress(MismatchError):
        return pydantic_type.convert(value)
    try:
        return pydantic_type.read(to_json(value)[0])
    except MismatchError as exc:
        raise ValueError(f"the result does not match its annotation: {exc}") from None


def _check_leniently(annotation: Any, data: Any) -> None:
    """Check data that `msgspec.convert` has rejected. This check is less strict for integers and object keys."""
    try:
        convert_value(annotation, data)
    except ValueError as exc:
        raise ValueError(
            f"the result does not match its annotation: {_add_location(annotation, data, str(exc))}"
        ) from None


def _add_location(annotation: Any, data: Any, reason: str) -> str:
    """Add the path of the wrong value to the message, because msgspec leaves out the path."""
    if "[...]" not in reason:
        return reason
    # This import is here because only invalid results need the module.
    from dovetail.server.parameters.argument_errors import find_mismatches

    schema = build_schema(annotation, output=True)
    return next(find_mismatches(schema, data, schema.get("$defs", {}), ""), reason)


class _SchemaCheck:
    """Checks data against a published schema. The first check creates the validator."""

    __slots__ = ("_schema", "_validator")

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._validator: Any = None

    def require_valid(self, data: Any) -> None:
        """Raise ValueError if the data does not match the schema. The error message contains no values."""
        if self._validator is None:
            self._validator = make_validator(self._schema)
        if self._validator.is_valid(data):
            return
        # This import is here because only invalid results need the module.
        from dovetail.server.parameters.custom_schema import format_error

        error = next(iter(self._validator.iter_errors(data)))
        raise ValueError(f"the result does not match its annotation: {format_error(error)}")


def _build_structured_result(data: Any, text: bytes) -> CallToolResult:
    # The text is for clients that ignore structured content. spec: tools#structured-content
    return CallToolResult(content=[TextContent(text=text.decode())], structured_content=data)


def _build_wrapped_result(data: Any, text: bytes) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text.decode())], structured_content={"result": data})


def _to_block_or_none(value: Any) -> ContentBlock | None:
    """Convert a value to a content block. Return None if the value should be sent as JSON."""
    if isinstance(value, str):
        return TextContent(text=_to_encodable_text(value))
    if isinstance(value, ResourceContents):
        return EmbeddedResource(resource=_check_block(value))
    if isinstance(value, _BLOCK_TYPES):
        return _check_block(value)
    media = to_media(value)
    return None if media is None else build_block(media)


def _check_result(result: ToolResult, wrapping: Wrapping) -> ToolResult:
    """Check a `CallToolResult` of the user's function. Convert strings to content blocks, and wrap structured content.

    Raise TypeError if the result is invalid.
    """
    if not isinstance(result, CallToolResult):
        return result
    content: Any = result.content
    if not isinstance(content, (list, tuple)):
        raise TypeError(
            f"the content of a CallToolResult must be a list of content blocks, not `{type(content).__qualname__}`"
        )
    if type(result.is_error) is not bool:
        raise TypeError(f"is_error of a CallToolResult must be True or False, not {result.is_error!r}")
    blocks = [_to_block(part) for part in typing.cast("Sequence[Any]", content)]
    is_unchanged = all(new is old for new, old in zip(blocks, typing.cast("Sequence[Any]", content), strict=True))
    if not is_unchanged:
        result = replace(result, content=blocks)
    structured = result.structured_content
    if structured is UNSET or wrapping == "none":
        return result
    # An error result does not have to match the output schema.
    if wrapping == "all" and not result.is_error:
        return replace(result, structured_content={"result": structured})
    if type(structured) is dict or type(to_json(structured)[0]) is dict:
        return result
    return replace(result, structured_content={"result": structured})


def _to_block(value: Any) -> ContentBlock:
    if isinstance(value, dict) and "type" in value:
        try:
            return convert(value, typing.cast("type[Any]", ContentBlock), label="block")
        except InvalidParams as exc:
            raise TypeError(f"invalid content block: {exc.message}") from None
    block = _to_block_or_none(value)
    if block is None:
        raise TypeError(f"content must be a string or a content block, not `{type(value).__qualname__}`")
    return block


def _check_block(block: Any) -> Any:
    if type(block) is TextContent and type(block.text) is str and block.annotations is None and block.meta is None:
        return block
    try:
        convert(to_plain(block), type(block), label=type(block).__name__)
    except (InvalidParams, TypeError) as exc:
        raise TypeError(f"invalid {type(block).__name__}: {exc}") from None
    return block


def _to_json_block(value: Any) -> ContentBlock:
    return TextContent(text=to_json(value)[1].decode())


def _to_encodable_text(text: str) -> str:
    """Return a plain string. Raise ValueError if it contains half of a surrogate pair, which cannot be sent."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("the result is not valid JSON: a string contains half a surrogate pair") from None
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
        raise ValueError(f"the role of a message must be 'user' or 'assistant', not {role!r}")
    return PromptMessage(role=role, content=_to_block(content))


def _to_user_message(value: Any) -> PromptMessage:
    if (block := _to_block_or_none(value)) is not None:
        return PromptMessage(role="user", content=block)
    raise TypeError(
        f"a prompt cannot return `{type(value).__qualname__}`. Return text, content blocks, PromptMessage "
        "or a list of these types"
    )
