"""Model: the interface of a language model, with one method in the protocol's own types."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from dovetail.wire.base import Struct
from dovetail.wire.content import SamplingContent
from dovetail.wire.sampling import ModelPreferences, SamplingMessage, ToolChoice
from dovetail.wire.tools import Tool


class Usage(Struct, frozen=True, kw_only=True):
    """What one reply took, in tokens; and in dollars, where the model's price is known."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None


class ModelReply(Struct, frozen=True, kw_only=True):
    """What a model said: text and calls of tools, in order."""

    content: list[SamplingContent]
    model: str
    stop_reason: str | None = None
    usage: Usage = Usage()
    invalid_calls: Mapping[str, str] = {}  # why the arguments of a call could not be read, by the id of the call


class Model(Protocol):
    """A language model.

    One with an attribute `price`, dollars for a million tokens in and out, can be given a budget in dollars.
    """

    async def create_message(
        self,
        messages: Sequence[SamplingMessage],
        tools: Sequence[Tool] = (),
        *,
        max_tokens: int = 1024,
        system_prompt: str | None = None,
        temperature: float | None = None,
        stop_sequences: Sequence[str] = (),
        tool_choice: ToolChoice | None = None,
        model_preferences: ModelPreferences | None = None,
    ) -> ModelReply:
        """The next message of the conversation."""
        ...
