"""The types of tools/list and tools/call.

Schemas are plain dicts. This module does not check schemas.
"""

from typing import Any, Final

from dovetail.wire.base import UNSET, CacheableResult, Params, Result, WireStruct, field
from dovetail.wire.content import ContentBlock, Icon

# With this keyword in an output schema, results are wrapped as `{"result": ...}`. fastmcp uses the same keyword.
WRAPPED_RESULT_KEYWORD: Final = "x-fastmcp-wrap-result"


class ToolAnnotations(WireStruct):
    """Hints about the behavior of a tool. None means that the server gave no hint. Added in protocol version
    2025-03.
    """

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
    """The result of tools/list, with one page of tools."""

    tools: list[Tool]
    next_cursor: str | None = None


class CallToolParams(Params):
    """The parameters of tools/call, with the name, arguments, and answers to earlier input requests."""

    name: str
    arguments: dict[str, Any] | None = None
    input_responses: dict[str, Any] | None = None  # added in protocol version 2026-07
    request_state: str | None = None  # added in protocol version 2026-07


class CallToolResult(Result):
    """The result of tools/call. `is_error` is True if the tool failed."""

    content: list[ContentBlock]
    # Structured content was added in protocol version 2025-06. Since 2026-07, it can be any JSON value, including null.
    structured_content: Any = UNSET
    is_error: bool = False

    @property
    def text(self) -> str:
        """The text of all text blocks, separated by newlines."""
        from dovetail.wire.tool_value import join_texts  # This import is here because servers do not need the module.

        return join_texts(self.content)

    @property
    def data(self) -> Any:
        """The value that the tool returned: its structured content, or else its text, or else its content blocks."""
        from dovetail.wire.tool_value import get_value

        return get_value(self.structured_content, self.content, self.meta, is_wrapped=None)
