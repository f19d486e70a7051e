"""prompts/list and prompts/get.

Argument values are text, as the specification has them; converting is the server's work.
"""

from typing import Any

from dovetail.wire.base import CacheableResult, Params, Result, WireStruct, field
from dovetail.wire.content import ContentBlock, Icon, Role


class PromptArgument(WireStruct):
    """One blank in a prompt."""

    name: str
    title: str | None = None  # since 2025-06
    description: str | None = None
    required: bool = False


class Prompt(WireStruct):
    """A prompt as a client sees it."""

    name: str
    title: str | None = None  # since 2025-06
    description: str | None = None
    icons: list[Icon] | None = None  # since 2025-11
    arguments: list[PromptArgument] | None = None
    meta: dict[str, Any] | None = field(name="_meta", default=None)  # since 2025-06


class PromptMessage(WireStruct):
    """One message of a filled-in prompt."""

    role: Role
    content: ContentBlock


class ListPromptsResult(CacheableResult):
    """One page of prompts."""

    prompts: list[Prompt]
    next_cursor: str | None = None


class GetPromptParams(Params):
    """Which prompt, how to fill it in, and the answers to what it asked before."""

    name: str
    arguments: dict[str, str] | None = None
    input_responses: dict[str, Any] | None = None  # since 2026-07
    request_state: str | None = None  # since 2026-07


class GetPromptResult(Result):
    """The prompt, filled in."""

    messages: list[PromptMessage]
    description: str | None = None
