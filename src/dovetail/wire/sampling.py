"""The types of sampling/createMessage, with which a server sends a request to the client's model.

The client chooses the model. The preferences of the server are only hints.
"""

from typing import Any, Literal

from dovetail.error_context import clip
from dovetail.wire.base import Params, Result, WireStruct, field
from dovetail.wire.content import Role, SamplingContent, ToolResultContent, ToolUseContent
from dovetail.wire.tools import Tool


class ModelHint(WireStruct):
    """A model that the server prefers. `name` may be only a part of the full model name."""

    name: str | None = None


class ModelPreferences(WireStruct):
    """The preferences of a server for the choice of a model. Priorities range from 0 to 1."""

    hints: list[ModelHint] | None = None
    cost_priority: float | None = None
    speed_priority: float | None = None
    intelligence_priority: float | None = None


class ToolChoice(WireStruct):
    """Whether the model may, must or must not call tools. Added in protocol version 2025-11."""

    mode: Literal["auto", "required", "none"] = "auto"


class SamplingMessage(WireStruct):
    """One message in a conversation with a model."""

    role: Role
    content: SamplingContent | list[SamplingContent]  # lists and tool blocks were added in protocol version 2025-11
    meta: dict[str, Any] | None = field(name="_meta", default=None)  # added in protocol version 2025-11


class CreateMessageRequestParams(Params):
    """The parameters of sampling/createMessage, with the conversation and the model settings."""

    messages: list[SamplingMessage]
    max_tokens: int
    model_preferences: ModelPreferences | None = None
    system_prompt: str | None = None
    include_context: Literal["none", "thisServer", "allServers"] | None = None
    temperature: float | None = None
    stop_sequences: list[str] | None = None
    metadata: dict[str, Any] | None = None
    tools: list[Tool] | None = None  # added in protocol version 2025-11
    tool_choice: ToolChoice | None = None  # added in protocol version 2025-11


class CreateMessageResult(Result):
    """The result of sampling/createMessage, with the model's reply."""

    role: Role
    content: SamplingContent | list[SamplingContent]  # lists and tool blocks were added in protocol version 2025-11
    model: str
    stop_reason: str | None = None


def check_tool_results(messages: list[SamplingMessage]) -> list[SamplingMessage]:
    """Return the messages. Raise ValueError if a tool result is missing or in the wrong message.

    Each tool use must have its result in the next message, and results must not be mixed with other content.
    spec: sampling#tool-result-messages
    """
    open_ids: list[str] = []
    for index, message in enumerate(messages):
        blocks = message.content if isinstance(message.content, list) else [message.content]
        result_ids = [block.tool_use_id for block in blocks if isinstance(block, ToolResultContent)]
        if result_ids and (len(result_ids) != len(blocks) or message.role != "user"):
            raise ValueError(
                f"message {index} mixes tool results with other content. Put tool results in a separate user message"
            )
        if sorted(result_ids) != sorted(open_ids):
            raise ValueError(
                f"message {index} must contain exactly one result for each tool use of the previous message"
            )
        open_ids = [block.id for block in blocks if isinstance(block, ToolUseContent)]
    if open_ids:
        raise ValueError(f"the last message contains tool uses without results: {', '.join(map(clip, open_ids))}")
    return messages
