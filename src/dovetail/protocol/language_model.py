"""Model: what a host needs of a language model. One method, in the protocol's own shapes."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from dovetail.wire.base import Struct
from dovetail.wire.content import SamplingContent
from dovetail.wire.sampling import ModelPreferences, SamplingMessage, ToolChoice
from dovetail.wire.tools import Tool


class Usage(Struct, frozen=True, kw_only=True):
    """What one reply took, in tokens; and in dollars, where the model's price is known."""

    input: int = 0
    output: int = 0
    usd: float | None = None


class Reply(Struct, frozen=True, kw_only=True):
    """What a model said: text and calls of tools, in order."""

    content: list[SamplingContent]
    model: str
    stop_reason: str | None = None
    usage: Usage = Usage()
    unread: Mapping[str, str] = {}  # why the arguments of a call could not be read, by the id of the call


class Model(Protocol):
    """A language model.

    One with an attribute `price`, dollars for a million tokens in and out, can be given a budget in dollars.
    """

    async def reply(
        self,
        messages: Sequence[SamplingMessage],
        tools: Sequence[Tool] = (),
        *,
        max_tokens: int = 1024,
        system: str | None = None,
        temperature: float | None = None,
        stop: Sequence[str] = (),
        choice: ToolChoice | None = None,
        preferences: ModelPreferences | None = None,
    ) -> Reply:
        """The next message of the conversation."""
        ...
