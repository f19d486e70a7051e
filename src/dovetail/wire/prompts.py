"""The types of prompts/list and prompts/get.

The values of arguments are strings, as in the specification. The server converts them to the types of its function.
"""

from typing import Any

from dovetail.wire.base import CacheableResult, Params, Result, WireStruct, field
from dovetail.wire.content import ContentBlock, Icon, Role


class PromptArgument(WireStruct):
    """One argument of a prompt."""

    name: str
    title: str | None = None  # added in protocol version 2025-06
    description: str | None = None
    required: bool = False


class Prompt(WireStruct):
    """The definition of a prompt."""

    name: str
    title: str | None = None  # added in protocol version 2025-06
    description: str | None = None
    icons: list[Icon] | None = None  # added in protocol version 2025-11
    arguments: list[PromptArgument] | None = None
    meta: dict[str, Any] | None = field(name="_meta", default=None)  # added in protocol version 2025-06


class PromptMessage(WireStruct):
    """One message of a prompt."""

    role: Role
    content: ContentBlock


class ListPromptsResult(CacheableResult):
    """The result of prompts/list, with one page of prompts."""

    prompts: list[Prompt]
    next_cursor: str | None = None


class GetPromptParams(Params):
    """The parameters of prompts/get, with the name, arguments, and answers to earlier input requests."""

    name: str
    arguments: dict[str, str] | None = None
    input_responses: dict[str, Any] | None = None  # added in protocol version 2026-07
    request_state: str | None = None  # added in protocol version 2026-07


class GetPromptResult(Result):
    """The result of prompts/get, with the messages of a prompt."""

    messages: list[PromptMessage]
    description: str | None = None
