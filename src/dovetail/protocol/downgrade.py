"""The newest values as older revisions can say them: a list of small functions, each naming what it serves.

A value is never changed, always copied. What an older revision cannot say at all is said as text, or dropped where
it was only a hint.
"""

from collections.abc import Callable
from typing import Any, Final

from dovetail.errors import MissingCapability, PromptNotFound, ProtocolError, ResourceNotFound, ToolNotFound
from dovetail.wire import jsonrpc
from dovetail.wire.codec import plain
from dovetail.wire.content import AudioContent, ContentBlock, ResourceLink, TextContent
from dovetail.wire.jsonrpc import Id
from dovetail.wire.lifecycle import Implementation, ServerCapabilities
from dovetail.wire.prompts import GetPromptResult, ListPromptsResult, PromptArgument
from dovetail.wire.resources import ReadResourceResult
from dovetail.wire.revisions import (
    DRAFT,
    R_2025_03_26,
    R_2025_06_18,
    R_2025_11_25,
    REVISIONS,
    older,
    stateless,
)
from dovetail.wire.shape import UNSET, Result, replace
from dovetail.wire.tools import CallToolResult, ListToolsResult, Tool

# Those that have every kind of content.
_SAYS_ALL: Final = frozenset(one for one in REVISIONS if not older(one, R_2025_11_25))

# Draft dialect: errors have codes of their own.
_DRAFT_CODES: Final[dict[type[ProtocolError], int]] = {
    ResourceNotFound: -32002,
    ToolNotFound: -32003,
    PromptNotFound: -32004,
}
DRAFT_CANCELLED: Final = -32000
DRAFT_DUPLICATE_ID: Final = -32001
_RESOURCE_NOT_FOUND: Final = -32002


def code(revision: str, exc: ProtocolError) -> int:
    """The code a revision gives this error."""
    if stateless(revision):
        return exc.code
    if revision == DRAFT and type(exc) in _DRAFT_CODES:
        return _DRAFT_CODES[type(exc)]
    if isinstance(exc, ResourceNotFound):
        return _RESOURCE_NOT_FOUND
    # No handshake revision has a code for it. spec: basic#error-codes
    return -32602 if isinstance(exc, MissingCapability) else exc.code


def notice(revision: str, id: Id, method: str, params: Any) -> bytes:
    """A notification in the revision's own shape."""
    if method == "notifications/progress" and params is not None:
        if revision == DRAFT:
            params = _draft_progress(id, plain(params))
        elif older(revision, R_2025_03_26):
            params = {name: value for name, value in plain(params).items() if name != "message"}
    return jsonrpc.notice(method, params)


def _draft_progress(id: Id, params: dict[str, Any]) -> dict[str, Any]:
    progress: dict[str, Any] = {"current": params["progress"]}
    progress |= {name: params[name] for name in ("total", "message") if name in params}
    return {"requestId": id, "progress": progress}


def question(revision: str, method: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A question to the client as the revision asks it; MissingCapability where it cannot."""
    match method:
        case "elicitation/create":
            return _elicitation(revision, params)
        case "sampling/createMessage":
            return method, _sampling(revision, params)
        case _:
            return method, params


def _elicitation(revision: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    if revision == DRAFT:
        return "elicitation/createDialog", params
    if older(revision, R_2025_06_18):
        raise MissingCapability({"elicitation": {}})
    if older(revision, R_2025_11_25):
        if params.get("mode") == "url":
            raise MissingCapability({"elicitation": {"url": {}}})
        schema = dict(params["requestedSchema"])
        schema["properties"] = {name: _titles_aside(rule) for name, rule in schema["properties"].items()}
        return "elicitation/create", {"message": params["message"], "requestedSchema": schema}
    if params.get("mode") == "url" and not stateless(revision):
        from secrets import token_urlsafe  # only servers that ask pay for it

        return "elicitation/create", params | {"elicitationId": params.get("elicitationId") or token_urlsafe(16)}
    return "elicitation/create", params


def _titles_aside(rule: dict[str, Any]) -> dict[str, Any]:
    """Before 2025-11: choices with titles are `enum` and `enumNames`; several choices at once cannot be asked for."""
    if rule.get("type") == "array":
        raise MissingCapability({"elicitation": {}})
    if "oneOf" not in rule:
        return rule
    kept = {name: value for name, value in rule.items() if name != "oneOf"}
    choices = rule["oneOf"]
    return kept | {"enum": [one["const"] for one in choices], "enumNames": [one["title"] for one in choices]}


def _sampling(revision: str, params: dict[str, Any]) -> dict[str, Any]:
    if stateless(revision):
        return params
    if not older(revision, R_2025_11_25):
        return params | {"messages": [_boxed(message) for message in params["messages"]]}
    if "tools" in params or "toolChoice" in params:
        raise MissingCapability({"sampling": {"tools": {}}})
    return params | {"messages": [one for message in params["messages"] for one in _single(revision, message)]}


def _boxed(message: dict[str, Any]) -> dict[str, Any]:
    """Before 2026-07 structured content is an object, in the result of a model's tool too."""
    content = message["content"]
    if isinstance(content, list):
        return message | {"content": [_boxed({"content": block})["content"] for block in content]}
    found = content.get("structuredContent", {})
    return message if type(found) is dict else message | {"content": content | {"structuredContent": {"result": found}}}


def _single(revision: str, message: dict[str, Any]) -> list[dict[str, Any]]:
    """Before 2025-11 a message holds one block: several become several messages."""
    content = message["content"]
    blocks: list[dict[str, Any]] = content if isinstance(content, list) else [content]
    for block in blocks:
        if block["type"] in ("tool_use", "tool_result"):
            raise MissingCapability({"sampling": {"tools": {}}})
        if block["type"] == "audio" and older(revision, R_2025_03_26):
            raise MissingCapability({"sampling": {}})
    return [{"role": message["role"], "content": block} for block in blocks]


def implementation(revision: str, ours: Implementation) -> Implementation:
    """Who we are, in the words the revision has for it."""
    if older(revision, R_2025_06_18):
        return Implementation(name=ours.name, version=ours.version)
    if older(revision, R_2025_11_25):
        return Implementation(name=ours.name, version=ours.version, title=ours.title)
    return ours


def capabilities(revision: str, ours: ServerCapabilities) -> ServerCapabilities:
    """What we offer, as far as the revision knows it."""
    if older(revision, R_2025_03_26):
        ours = replace(ours, completions=None)
    return ours if stateless(revision) else replace(ours, extensions=None)


def result(revision: str, method: str, value: Result, *, wraps: bool = False) -> Result:
    """A result as a handshake revision expects it; `wraps` if the schema of its structured content is wrapped."""
    if wraps and isinstance(value, CallToolResult) and value.structured_content is not UNSET:
        value = replace(value, structured_content={"result": value.structured_content})
    change = _RESULTS.get(method)
    return value if change is None else change(revision, value)


def is_wrapped(schema: dict[str, Any] | None) -> bool:
    """Whether an output schema is wrapped for handshake revisions, because it admits more than objects."""
    return schema is not None and schema.get("type") != "object"


def _call_tool(revision: str, value: CallToolResult) -> Result:
    structured = value.structured_content
    if structured is not UNSET and type(structured) is not dict:
        value = replace(value, structured_content={"result": structured})
    if revision in _SAYS_ALL:
        return value
    value = replace(value, content=[_block(revision, block) for block in value.content])
    return replace(value, structured_content=UNSET) if older(revision, R_2025_06_18) else value


def _block(revision: str, block: ContentBlock) -> ContentBlock:
    match block:
        case ResourceLink() if older(revision, R_2025_06_18):
            return TextContent(text=f"{block.title or block.name}: {block.uri}")
        case ResourceLink() if block.icons and older(revision, R_2025_11_25):
            return replace(block, icons=None)
        case AudioContent() if older(revision, R_2025_03_26):
            return TextContent(text=f"[audio, {block.mime_type}, not shown in this protocol version]")
        case _:
            return block


def _get_prompt(revision: str, value: GetPromptResult) -> Result:
    if not older(revision, R_2025_11_25):
        return value
    return replace(value, messages=[replace(one, content=_block(revision, one.content)) for one in value.messages])


def _list_tools(revision: str, value: ListToolsResult) -> Result:
    return replace(value, tools=[_tool(revision, tool) for tool in value.tools], **_NO_LIFETIME)


def _tool(revision: str, tool: Tool) -> Tool:
    if older(revision, R_2025_06_18):
        annotations = None if older(revision, R_2025_03_26) else tool.annotations
        return Tool(
            name=tool.name, description=tool.description, input_schema=tool.input_schema, annotations=annotations
        )
    changes: dict[str, Any] = {"icons": None} if older(revision, R_2025_11_25) else {}
    if tool.output_schema is not None and is_wrapped(tool.output_schema):
        changes["output_schema"] = _wrapped(tool.output_schema)
    return replace(tool, **changes) if changes else tool


def _wrapped(schema: dict[str, Any]) -> dict[str, Any]:
    """Before 2026-07 structured content is an object: any other value stands under `result`."""
    inner = {name: value for name, value in schema.items() if name not in ("$defs", "$schema")}
    outer: dict[str, Any] = {"type": "object", "properties": {"result": inner}, "required": ["result"]}
    return outer | {name: schema[name] for name in ("$defs", "$schema") if name in schema}


_NO_LIFETIME: Final[dict[str, Any]] = {"ttl_ms": None, "cache_scope": None}


def _describing(field: str) -> Callable[[str, Any], Result]:
    """Lists of things that gained a title and `_meta` in 2025-06 and icons in 2025-11."""

    def change(revision: str, value: Any) -> Result:
        lost: dict[str, Any] = {"icons": None} if older(revision, R_2025_11_25) else {}
        if older(revision, R_2025_06_18):
            lost |= {"title": None, "meta": None}
        items = getattr(value, field)
        shorter = [replace(item, **lost) for item in items] if lost else items
        return replace(value, **{field: shorter}, **_NO_LIFETIME)

    return change


def _list_prompts(revision: str, value: ListPromptsResult) -> Result:
    if older(revision, R_2025_06_18):
        value = replace(value, prompts=[replace(one, arguments=_untitled(one.arguments)) for one in value.prompts])
    return _describing("prompts")(revision, value)


def _untitled(arguments: list[PromptArgument] | None) -> list[PromptArgument] | None:
    return arguments and [replace(one, title=None) for one in arguments]


def _mortal(revision: str, value: ReadResourceResult) -> Result:
    return replace(value, **_NO_LIFETIME) if value.ttl_ms is not None or value.cache_scope is not None else value


_RESULTS: Final[dict[str, Callable[[str, Any], Result]]] = {
    "tools/call": _call_tool,
    "tools/list": _list_tools,
    "prompts/get": _get_prompt,
    "prompts/list": _list_prompts,
    "resources/list": _describing("resources"),
    "resources/templates/list": _describing("resource_templates"),
    "resources/read": _mortal,
}
