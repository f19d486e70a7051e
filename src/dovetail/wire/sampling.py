"""sampling/createMessage: a server's request to the client's model.

Holds no opinion on which model answers; the preferences are advice.
"""

from typing import Any, Literal

from dovetail.wire.base import Params, Result, WireStruct, field
from dovetail.wire.content import Role, SamplingContent
from dovetail.wire.tools import Tool


class ModelHint(WireStruct):
    """Part of a model's name."""

    name: str | None = None


class ModelPreferences(WireStruct):
    """What matters in the choice of a model; priorities run from 0 to 1."""

    hints: list[ModelHint] | None = None
    cost_priority: float | None = None
    speed_priority: float | None = None
    intelligence_priority: float | None = None


class ToolChoice(WireStruct):
    """Whether the model may, must or must not call tools; since 2025-11."""

    mode: Literal["auto", "required", "none"] = "auto"


class SamplingMessage(WireStruct):
    """One turn of the conversation put to the model."""

    role: Role
    content: SamplingContent | list[SamplingContent]  # a list, and tool blocks, since 2025-11
    meta: dict[str, Any] | None = field(name="_meta", default=None)  # since 2025-11


class CreateMessageRequestParams(Params):
    """The conversation, and how the model should go on."""

    messages: list[SamplingMessage]
    max_tokens: int
    model_preferences: ModelPreferences | None = None
    system_prompt: str | None = None
    include_context: Literal["none", "thisServer", "allServers"] | None = None
    temperature: float | None = None
    stop_sequences: list[str] | None = None
    metadata: dict[str, Any] | None = None
    tools: list[Tool] | None = None  # since 2025-11
    tool_choice: ToolChoice | None = None  # since 2025-11


class CreateMessageResult(Result):
    """What the model said."""

    role: Role
    content: SamplingContent | list[SamplingContent]  # a list, and tool blocks, since 2025-11
    model: str
    stop_reason: str | None = None
