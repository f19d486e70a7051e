"""tools/list and tools/call.

Schemas are plain dicts: this module neither reads nor checks them.
"""

from typing import Any

from dovetail.wire.base import UNSET, CacheableResult, Params, Result, WireStruct, field
from dovetail.wire.content import ContentBlock, Icon


class ToolAnnotations(WireStruct):
    """Hints about a tool's behaviour, None where its author said nothing; since 2025-03."""

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class Tool(WireStruct):
    """A tool as a client sees it."""

    name: str
    title: str | None = None  # since 2025-06
    description: str | None = None
    icons: list[Icon] | None = None  # since 2025-11
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None = None  # since 2025-06
    annotations: ToolAnnotations | None = None  # since 2025-03
    execution: dict[str, Any] | None = None  # 2025-11 only
    meta: dict[str, Any] | None = field(name="_meta", default=None)  # since 2025-06


class ListToolsResult(CacheableResult):
    """One page of tools."""

    tools: list[Tool]
    next_cursor: str | None = None


class CallToolParams(Params):
    """Which tool, with which arguments, and the answers to what it asked before."""

    name: str
    arguments: dict[str, Any] | None = None
    input_responses: dict[str, Any] | None = None  # since 2026-07
    request_state: str | None = None  # since 2026-07


class CallToolResult(Result):
    """What a tool answered; a failure of the tool itself is told by `is_error`."""

    content: list[ContentBlock]
    structured_content: Any = UNSET  # since 2025-06; any JSON value, null included, since 2026-07
    is_error: bool = False
