"""tools/list and tools/call.

Schemas are plain dicts. This module does not check schemas.
"""

from typing import Any

from dovetail.wire.base import UNSET, CacheableResult, Params, Result, WireStruct, field
from dovetail.wire.content import ContentBlock, Icon


class ToolAnnotations(WireStruct):
    """Hints about how a tool behaves. None means that there is no hint. Added in protocol version 2025-03."""

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class Tool(WireStruct):
    """The definition of a tool."""

    name: str
    title: str | None = None  # added in protocol version 2025-06
    description: str | None = None
    icons: list[Icon] | None = None  # added in protocol version 2025-11
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None = None  # added in protocol version 2025-06
    annotations: ToolAnnotations | None = None  # added in protocol version 2025-03
    execution: dict[str, Any] | None = None  # only in protocol version 2025-11
    meta: dict[str, Any] | None = field(name="_meta", default=None)  # added in protocol version 2025-06


class ListToolsResult(CacheableResult):
    """One page of tools."""

    tools: list[Tool]
    next_cursor: str | None = None


class CallToolParams(Params):
    """The parameters of tools/call: name, arguments, and answers to earlier input requests."""

    name: str
    arguments: dict[str, Any] | None = None
    input_responses: dict[str, Any] | None = None  # added in protocol version 2026-07
    request_state: str | None = None  # added in protocol version 2026-07


class CallToolResult(Result):
    """The result of a tool. `is_error` means that the tool failed."""

    content: list[ContentBlock]
    # Added in protocol version 2025-06. Any JSON value, including null, since 2026-07.
    structured_content: Any = UNSET
    is_error: bool = False
