"""The interface of a language model."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from dovetail.wire.base import Struct
from dovetail.wire.content import SamplingContent
from dovetail.wire.sampling import ModelPreferences, SamplingMessage, ToolChoice
from dovetail.wire.tools import Tool


class Usage(Struct, frozen=True, kw_only=True):
    """The tokens and cost of one model reply."""

    input_tokens: int = 0  # the number of tokens that were sent to the model
    output_tokens: int = 0  # the number of tokens in the reply
    cost_usd: float | None = None  # the cost in US dollars, or None if the price is unknown


class ModelReply(Struct, frozen=True, kw_only=True):
    """The reply of a model."""

    content: list[SamplingContent]  # the text and the tool calls, in order
    model: str  # the name of the model
    stop_reason: str | None = None  # the reason why the model stopped
    usage: Usage = Usage()  # the tokens and the cost of the reply
    invalid_calls: Mapping[str, str] = {}  # maps the ID of each invalid tool call to the reason


class Model(Protocol):
    """A language model.

    To use a budget in dollars, add an attribute `price` with the dollars per million input and output tokens.
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
            tools: The tools that the model may call.
            max_tokens: The largest number of tokens in the reply.
            system_prompt: The system prompt.
            temperature: The randomness of the reply. None uses the default of the provider.
            stop_sequences: The texts at which the model stops.
            tool_choice: Whether the model may, must or must not call a tool.
            model_preferences: The preferences for choosing a model, if there are several.
        """
        ...
