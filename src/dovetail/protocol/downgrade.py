"""Convert messages of the newest protocol version for older versions.

The functions copy values and never change them. A value that an older version cannot express becomes text. Hints
that it does not have are dropped.
"""

from collections.abc import Callable, Collection
from typing import Any, Final

from dovetail.errors import (
    HeaderMismatch,
    InternalError,
    MissingClientCapability,
    PromptNotFound,
    ProtocolError,
    ResourceNotFound,
    ToolNotFound,
    UnsupportedProtocolVersion,
    URLElicitationRequired,
)
from dovetail.wire import jsonrpc
from dovetail.wire.base import UNSET, Result, replace
from dovetail.wire.codec import to_plain
from dovetail.wire.content import AudioContent, ContentBlock, ResourceLink, TextContent
from dovetail.wire.jsonrpc import RequestId
from dovetail.wire.lifecycle import ClientCapabilities, Implementation, ServerCapabilities
from dovetail.wire.methods import METHODS
from dovetail.wire.prompts import GetPromptResult, ListPromptsResult, PromptArgument
from dovetail.wire.resources import ReadResourceResult
from dovetail.wire.revisions import DRAFT, R_2025_03_26, R_2025_06_18, R_2025_11_25, REVISIONS, is_older, is_stateless
from dovetail.wire.tools import WRAPPED_RESULT_KEYWORD, CallToolResult, ListToolsResult, Tool

# These protocol versions have every type of content block.
_FULL_CONTENT_REVISIONS: Final = frozenset(revision for revision in REVISIONS if not is_older(revision, R_2025_11_25))

# The draft version has different error codes.
_DRAFT_CODES: Final[dict[type[ProtocolError], int]] = {
    ResourceNotFound: -32002,
    ToolNotFound: -32003,
    PromptNotFound: -32004,
}
DRAFT_CANCELLED: Final = -32000
DRAFT_DUPLICATE_ID: Final = -32001
_HANDSHAKE_RESOURCE_NOT_FOUND: Final = -32002

# Stateless protocol versions reserve these error codes for the specification.
_RESERVED_CODES: Final = range(-32099, -32019)
_SPECIFIED_CODES: Final = frozenset(
    {HeaderMismatch.code, MissingClientCapability.code, UnsupportedProtocolVersion.code}
)


def get_error_code(revision: str, exc: ProtocolError) -> int:
    """Return the JSON-RPC error code that a protocol version uses for an exception."""
    if isinstance(exc, URLElicitationRequired) and not METHODS["notifications/elicitation/complete"].exists_in(
        revision
    ):
        return -32602
    if is_stateless(revision):
        return _replace_reserved_code(exc.code)
    if revision == DRAFT and type(exc) in _DRAFT_CODES:
        return _DRAFT_CODES[type(exc)]
    if isinstance(exc, ResourceNotFound):
        return _HANDSHAKE_RESOURCE_NOT_FOUND
    # Handshake versions have no error code for a missing capability. spec: basic#error-codes
    return -32602 if isinstance(exc, MissingClientCapability) else exc.code


def _replace_reserved_code(code: int) -> int:
    """Replace an error code that stateless protocol versions do not allow. spec: basic#error-codes"""
    if code == _HANDSHAKE_RESOURCE_NOT_FOUND:
        return ResourceNotFound.code
    return InternalError.code if code in _RESERVED_CODES and code not in _SPECIFIED_CODES else code


def encode_notification(revision: str, id: RequestId, method: str, params: Any) -> bytes:
    """Encode a notification for a protocol version."""
    if method == "notifications/progress" and params is not None:
        if revision == DRAFT:
            params = _draft_progress(id, to_plain(params))
        elif is_older(revision, R_2025_03_26):
            params = {name: value for name, value in to_plain(params).items() if name != "message"}
    return jsonrpc.encode_notification(method, params)


def _draft_progress(id: RequestId, params: dict[str, Any]) -> dict[str, Any]:
    progress: dict[str, Any] = {"current": params["progress"]}
    progress |= {name: params[name] for name in ("total", "message") if name in params}
    return {"requestId": id, "progress": progress}


def downgrade_request(revision: str, method: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Convert a server's request to the format of the client's protocol version.

    Raise MissingClientCapability if the version does not have this request.
    """
    match method:
        case "elicitation/create":
            return _downgrade_elicitation(revision, params)
        case "sampling/createMessage":
            return method, _downgrade_sampling(revision, params)
        case _:
            return method, params


def _downgrade_elicitation(revision: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    if revision == DRAFT:
        return "elicitation/createDialog", params
    if is_older(revision, R_2025_06_18):
        raise MissingClientCapability({"elicitation": {}})
    if is_older(revision, R_2025_11_25):
        if params.get("mode") == "url":
            raise MissingClientCapability({"elicitation": {"url": {}}})
        schema = dict(params["requestedSchema"])
        schema["properties"] = {name: _convert_titled_choices(rule) for name, rule in schema["properties"].items()}
        return "elicitation/create", {"message": params["message"], "requestedSchema": schema}
    if params.get("mode") == "url" and not is_stateless(revision):
        from secrets import token_urlsafe  # This import is here because few servers need the module.

        return "elicitation/create", params | {"elicitationId": params.get("elicitationId") or token_urlsafe(16)}
    return "elicitation/create", params


def _convert_titled_choices(property_schema: dict[str, Any]) -> dict[str, Any]:
    """Convert choices with titles to `enum` and `enumNames`, for versions before 2025-11-25.

    These versions do not support multiple choice.
    """
    if property_schema.get("type") == "array":
        raise MissingClientCapability({"elicitation": {}})
    if "oneOf" not in property_schema:
        return property_schema
    rest = {name: value for name, value in property_schema.items() if name != "oneOf"}
    choices = property_schema["oneOf"]
    return rest | {"enum": [choice["const"] for choice in choices], "enumNames": [one["title"] for one in choices]}


def _downgrade_sampling(revision: str, params: dict[str, Any]) -> dict[str, Any]:
    if is_stateless(revision):
        return params
    if not is_older(revision, R_2025_11_25):
        return params | {"messages": [_wrap_structured_content(message) for message in params["messages"]]}
    if "tools" in params or "toolChoice" in params:
        raise MissingClientCapability({"sampling": {"tools": {}}})
    return params | {
        "messages": [
            single_message for message in params["messages"] for single_message in _split_message(revision, message)
        ]
    }


def allows_sampling_context(revision: str, capabilities: ClientCapabilities) -> bool:
    """Return whether a sampling request may have `includeContext`.

    Since 2025-11-25, the client must declare this capability. spec: sampling#capabilities
    """
    if is_older(revision, R_2025_11_25):
        return True
    return capabilities.sampling is not None and capabilities.sampling.context is not None


def _wrap_structured_content(message: dict[str, Any]) -> dict[str, Any]:
    """Put structured content into an object `{"result": ...}`, for versions before 2026-07-28."""
    content = message["content"]
    if isinstance(content, list):
        return message | {"content": [_wrap_structured_content({"content": block})["content"] for block in content]}
    structured = content.get("structuredContent", {})
    return (
        message
        if type(structured) is dict
        else message | {"content": content | {"structuredContent": {"result": structured}}}
    )


def _split_message(revision: str, message: dict[str, Any]) -> list[dict[str, Any]]:
    """Split a message into one message per content block, for versions before 2025-11-25."""
    content = message["content"]
    blocks: list[dict[str, Any]] = content if isinstance(content, list) else [content]
    for block in blocks:
        if block["type"] in ("tool_use", "tool_result"):
            raise MissingClientCapability({"sampling": {"tools": {}}})
        if block["type"] == "audio" and is_older(revision, R_2025_03_26):
            raise MissingClientCapability({"sampling": {}})
    return [{"role": message["role"], "content": block} for block in blocks]


def downgrade_implementation(revision: str, info: Implementation) -> Implementation:
    """Return the program's name and version. Remove fields that the protocol version does not support."""
    if is_older(revision, R_2025_06_18):
        return Implementation(name=info.name, version=info.version)
    if is_older(revision, R_2025_11_25):
        return Implementation(name=info.name, version=info.version, title=info.title)
    return info


def downgrade_capabilities(
    revision: str, declared: ServerCapabilities, extensions: Collection[str | None] = ()
) -> ServerCapabilities:
    """Return the capabilities that exist in a protocol version.

    `extensions` contains the identifiers of the extensions to declare in a version with a handshake.
    """
    if is_older(revision, R_2025_03_26):
        declared = replace(declared, completions=None)
    if is_stateless(revision) or declared.extensions is None:
        return declared
    kept = {identifier: value for identifier, value in declared.extensions.items() if identifier in extensions}
    return replace(declared, extensions=kept or None)


def downgrade_result(revision: str, method: str, value: Result, *, wrap_structured: bool = False) -> Result:
    """Convert a result for a handshake version. `wrap_structured` puts structured content into an object."""
    if value.result_type is not None:  # Results from stateless servers have this field.
        value = replace(value, result_type=None)
    if wrap_structured and isinstance(value, CallToolResult) and value.structured_content is not UNSET:
        value = replace(value, structured_content={"result": value.structured_content})
    convert = _CONVERTERS.get(method)
    return value if convert is None else convert(revision, value)


def must_wrap(schema: dict[str, Any] | None) -> bool:
    """Return whether results with this output schema must be wrapped as `{"result": ...}`.

    Only objects are sent unchanged.
    """
    return schema is not None and schema.get("type") != "object"


def _downgrade_tool_result(revision: str, value: CallToolResult) -> Result:
    structured = value.structured_content
    if structured is not UNSET and type(structured) is not dict:
        value = replace(value, structured_content={"result": structured})
    if revision in _FULL_CONTENT_REVISIONS:
        return value
    value = replace(value, content=[_downgrade_block(revision, block) for block in value.content])
    return replace(value, structured_content=UNSET) if is_older(revision, R_2025_06_18) else value


def _downgrade_block(revision: str, block: ContentBlock) -> ContentBlock:
    match block:
        case ResourceLink() if is_older(revision, R_2025_06_18):
            return TextContent(text=f"{block.title or block.name}: {block.uri}")
        case ResourceLink() if block.icons and is_older(revision, R_2025_11_25):
            return replace(block, icons=None)
        case AudioContent() if is_older(revision, R_2025_03_26):
            return TextContent(text=f"[audio, {block.mime_type}, not shown in this protocol version]")
        case _:
            return _drop_last_modified(block) if is_older(revision, R_2025_06_18) else block


def _drop_last_modified(item: Any) -> Any:
    if item.annotations is None or item.annotations.last_modified is None:
        return item
    return replace(item, annotations=replace(item.annotations, last_modified=None))


def _downgrade_prompt(revision: str, value: GetPromptResult) -> Result:
    if not is_older(revision, R_2025_11_25):
        return value
    return replace(
        value,
        messages=[replace(message, content=_downgrade_block(revision, message.content)) for message in value.messages],
    )


def _downgrade_tools(revision: str, value: ListToolsResult) -> Result:
    return replace(value, tools=[_downgrade_tool(revision, tool) for tool in value.tools], **_NO_CACHE_HINT)


def _downgrade_tool(revision: str, tool: Tool) -> Tool:
    if is_older(revision, R_2025_06_18):
        annotations = None if is_older(revision, R_2025_03_26) else tool.annotations
        return Tool(
            name=tool.name, description=tool.description, input_schema=tool.input_schema, annotations=annotations
        )
    changes: dict[str, Any] = {"icons": None} if is_older(revision, R_2025_11_25) else {}
    if tool.output_schema is not None and must_wrap(tool.output_schema):
        changes["output_schema"] = wrap_schema(tool.output_schema)
    return replace(tool, **changes) if changes else tool


def wrap_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema for an object `{"result": ...}`. The parameter is the schema of the member `result`."""
    moved_names = ("$schema",) if "$id" in schema else ("$defs", "$schema")
    inner = {name: value for name, value in schema.items() if name not in moved_names}
    outer: dict[str, Any] = {"type": "object", "properties": {"result": inner}, "required": ["result"]}
    outer |= {name: schema[name] for name in moved_names if name in schema}
    # If a schema has an `$id`, its references stay valid when the schema is moved.
    return (outer if "$id" in schema else _move_references(outer)) | {WRAPPED_RESULT_KEYWORD: True}


def _move_references(node: Any) -> Any:
    """Adapt the references in a schema, because the schema becomes the property `result` of another schema."""
    if isinstance(node, list):
        return [_move_references(item) for item in node]
    if not isinstance(node, dict):
        return node
    moved = {name: _move_references(value) for name, value in node.items()}
    reference = moved.get("$ref")
    if type(reference) is str and reference.partition("/")[0] == "#" and not reference.startswith("#/$defs/"):
        moved["$ref"] = f"#/properties/result{reference[1:]}"
    return moved


_NO_CACHE_HINT: Final[dict[str, Any]] = {"ttl_ms": None, "cache_scope": None}


def _create_list_converter(field: str) -> Callable[[str, Any], Result]:
    """Return a function that converts the items of a list.

    `title` and `_meta` exist since 2025-06-18, and icons since 2025-11-25.
    """

    def convert(revision: str, value: Any) -> Result:
        dropped_fields: dict[str, Any] = {"icons": None} if is_older(revision, R_2025_11_25) else {}
        if is_older(revision, R_2025_06_18):
            dropped_fields |= {"title": None, "meta": None}
        items = getattr(value, field)
        if field != "prompts" and is_older(revision, R_2025_06_18):
            items = [_drop_last_modified(item) for item in items]
        converted = [replace(item, **dropped_fields) for item in items] if dropped_fields else items
        return replace(value, **{field: converted}, **_NO_CACHE_HINT)

    return convert


def _downgrade_prompts(revision: str, value: ListPromptsResult) -> Result:
    if is_older(revision, R_2025_06_18):
        value = replace(
            value, prompts=[replace(prompt, arguments=_drop_titles(prompt.arguments)) for prompt in value.prompts]
        )
    return _create_list_converter("prompts")(revision, value)


def _drop_titles(arguments: list[PromptArgument] | None) -> list[PromptArgument] | None:
    return arguments and [replace(argument, title=None) for argument in arguments]


def _drop_cache_hint(revision: str, value: ReadResourceResult) -> Result:
    return replace(value, **_NO_CACHE_HINT) if value.ttl_ms is not None or value.cache_scope is not None else value


_CONVERTERS: Final[dict[str, Callable[[str, Any], Result]]] = {
    "tools/call": _downgrade_tool_result,
    "tools/list": _downgrade_tools,
    "prompts/get": _downgrade_prompt,
    "prompts/list": _downgrade_prompts,
    "resources/list": _create_list_converter("resources"),
    "resources/templates/list": _create_list_converter("resource_templates"),
    "resources/read": _drop_cache_hint,
}
