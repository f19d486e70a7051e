"""Token usage of an agent, and its remaining budget. Token counts that a provider does not report are estimated."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias

from dovetail.agent.models.provider_messages import format_content, get_blocks
from dovetail.error_context import add_context
from dovetail.errors import ModelError
from dovetail.protocol.interfaces.language_model import Model, ModelReply, Usage
from dovetail.protocol.limits import BYTES_PER_TOKEN
from dovetail.wire.base import UNSET, Struct, replace
from dovetail.wire.codec import encode
from dovetail.wire.content import TextContent, ToolResultContent, ToolUseContent
from dovetail.wire.sampling import SamplingMessage

# This number is an estimate. The real number of tokens depends on the size of the image in pixels.
_TOKENS_PER_IMAGE: Final = 1_600
_MIN_REPLY_TOKENS: Final = 16  # Some model providers reject a limit below this number of tokens.
_TOKENS_PER_PRICE: Final = 1_000_000

Price: TypeAlias = tuple[float, float]  # A price is in dollars per million input tokens and per million output tokens.


class AgentUsage(Struct, frozen=True, kw_only=True):
    """The tokens, cost and calls that an agent has used since it was created."""

    input_tokens: int = 0  # The tokens sent to the model.
    output_tokens: int = 0  # The tokens in the replies of the model.
    cost_usd: float | None = 0.0  # The cost in dollars, or None if the price of the model is unknown.
    turns: int = 0  # The number of model replies.
    tool_calls: Mapping[str, int] = {}  # Maps the full name of each tool to the number of calls.

    @property
    def total_tokens(self) -> int:
        """Return the sum of input and output tokens."""
        return self.input_tokens + self.output_tokens


def add_reply(total: AgentUsage, usage: Usage) -> AgentUsage:
    cost_usd = None if total.cost_usd is None or usage.cost_usd is None else total.cost_usd + usage.cost_usd
    return replace(
        total,
        input_tokens=total.input_tokens + usage.input_tokens,
        output_tokens=total.output_tokens + usage.output_tokens,
        cost_usd=cost_usd,
        turns=total.turns + 1,
    )


class Budget:
    """The token and dollar limits of an agent, and the maximum length of a reply."""

    def __init__(self, model: Model, max_reply_tokens: int, max_tokens: int | None, max_cost_usd: float | None) -> None:
        self._price: Price | None = getattr(model, "price", None)
        self._max_reply_tokens = max_reply_tokens
        self._max_tokens = max_tokens
        self._max_cost_usd = max_cost_usd
        if max_cost_usd is not None and self._price is None:
            raise add_context(
                ModelError("budget_usd requires a model with a known price"), hint="pass ModelInfo(name, price=(…, …))"
            )

    def get_reply_limit(self, usage: AgentUsage, input_tokens: int) -> int | Literal["token_budget", "cost_budget"]:
        """Return the token limit for the next reply.

        If the agent has used up a budget, return the name of that budget.
        """
        max_tokens = self._max_reply_tokens
        if self._max_tokens is not None:
            max_tokens = min(max_tokens, self._max_tokens - usage.total_tokens - input_tokens)
            if max_tokens < min(_MIN_REPLY_TOKENS, self._max_reply_tokens):
                return "token_budget"
        if self._max_cost_usd is not None:
            max_tokens = min(max_tokens, self._get_affordable_tokens(usage, input_tokens, max_tokens))
            if max_tokens < min(_MIN_REPLY_TOKENS, self._max_reply_tokens):
                return "cost_budget"
        return max_tokens

    def _get_affordable_tokens(self, usage: AgentUsage, input_tokens: int, max_tokens: int) -> int:
        assert self._price is not None
        assert self._max_cost_usd is not None
        remaining_usd = self._max_cost_usd - (usage.cost_usd or 0.0) - input_tokens * self._price[0] / _TOKENS_PER_PRICE
        if remaining_usd <= 0:
            return 0
        return max_tokens if self._price[1] == 0 else int(remaining_usd * _TOKENS_PER_PRICE / self._price[1])

    def measure_usage(self, reply: ModelReply, input_tokens: int) -> Usage:
        """Return the token usage of a reply. If the provider does not report the usage, estimate it."""
        usage = reply.usage
        output_tokens = usage.output_tokens or estimate_message_tokens(
            (SamplingMessage(role="assistant", content=[*reply.content]),)
        )
        usage = Usage(
            input_tokens=usage.input_tokens or input_tokens, output_tokens=output_tokens, cost_usd=usage.cost_usd
        )
        if self._price is None or usage.cost_usd:
            return usage
        cost_usd = (usage.input_tokens * self._price[0] + usage.output_tokens * self._price[1]) / _TOKENS_PER_PRICE
        return replace(usage, cost_usd=cost_usd)


def estimate_message_tokens(messages: Iterable[SamplingMessage], system_prompt: str | None = None) -> int:
    """Estimate the number of tokens in a conversation."""
    return _to_token_count((system_prompt or "").encode()) + sum(
        _estimate_block(block) for message in messages for block in get_blocks(message)
    )


def _estimate_block(block: Any) -> int:
    match block:
        case TextContent():
            return _to_token_count(block.text.encode())
        case ToolUseContent():
            return _to_token_count(encode((block.name, block.input)))
        case ToolResultContent():
            return _estimate_result(block)
        case _:
            return _TOKENS_PER_IMAGE


def _estimate_result(result: ToolResultContent) -> int:
    text = format_content(result.content)
    if not text and result.structured_content is not UNSET:
        return _to_token_count(encode(result.structured_content))
    return _to_token_count(text.encode()) + _TOKENS_PER_IMAGE * sum(block.type == "image" for block in result.content)


def _to_token_count(encoded: bytes) -> int:
    return -(-len(encoded) // BYTES_PER_TOKEN)
