"""Model: the interface of a language model, with one method that uses the protocol's types."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from dovetail.wire.base import Struct
from dovetail.wire.content import SamplingContent
from dovetail.wire.sampling import ModelPreferences, SamplingMessage, ToolChoice
from dovetail.wire.tools import Tool


class Usage(Struct, frozen=True, kw_only=True):
    """The tokens and cost of one model reply."""

    input_tokens: int = 0  # tokens sent to the model
    output_tokens: int = 0  # tokens of the reply
    cost_usd: float | None = None  # cost in dollars, or None if the price is unknown


class ModelReply(Struct, frozen=True, kw_only=True):
    """The reply of a model."""

    content: list[SamplingContent]  # text and tool calls, in order
    model: str  # the name of the model
    stop_reason: str | None = None  # why the model stopped
    usage: Usage = Usage()  # the tokens and the cost
    invalid_calls: Mapping[str, str] = {}  # by call ID, why the arguments of a call are invalid


class Model(Protocol):
    """A language model.

    Add an attribute `price` (dollars per million input and output tokens) to use a budget in dollars.
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
        """Return the next message of a conversation.

        Args:
            tools: Tools that the model may call.
            max_tokens: The largest number of tokens in the reply.
            system_prompt: The system prompt.
            temperature: Randomness of the reply. With None, the provider decides.
            stop_sequences: Texts at which the model stops.
            tool_choice: Whether the model may, must or must not call a tool.
            model_preferences: Which model to choose, if there are several.
        """
        ...
