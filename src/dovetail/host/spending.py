"""Spending: what an agent has used, and what it may still use. Pure; what nobody counted is estimated."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias

from dovetail.errors import ModelError
from dovetail.host.models.model import Model, Reply, Usage
from dovetail.host.models.telling import blocks, words
from dovetail.host.offers import BYTES_A_TOKEN
from dovetail.wire.codec import encode
from dovetail.wire.content import TextContent, ToolResultContent, ToolUseContent
from dovetail.wire.sampling import SamplingMessage
from dovetail.wire.shape import UNSET, Struct, replace

_A_PICTURE: Final = 1_600  # tokens; makers count pictures by their size on a screen, not in bytes
_LEAST: Final = 16  # tokens of a reply; some makers refuse to be asked for less
_MILLION: Final = 1_000_000

Price: TypeAlias = tuple[float, float]  # dollars for a million tokens, in and out


class Spent(Struct, frozen=True, kw_only=True):
    """What an agent has used since it was made; `usd` is None where the price of the model is not known."""

    input: int = 0
    output: int = 0
    usd: float | None = 0.0
    turns: int = 0
    calls: Mapping[str, int] = {}  # by the full name of the tool

    @property
    def tokens(self) -> int:
        """Both ways."""
        return self.input + self.output

    def plus(self, usage: Usage) -> "Spent":
        """With one reply more."""
        usd = None if self.usd is None or usage.usd is None else self.usd + usage.usd
        return replace(
            self, input=self.input + usage.input, output=self.output + usage.output, usd=usd, turns=self.turns + 1
        )


class Budget:
    """What may be used in all, and how long a reply may be at most."""

    def __init__(self, model: Model, reply: int, tokens: int | None, usd: float | None) -> None:
        self._price: Price | None = getattr(model, "price", None)
        self._reply = reply
        self._tokens = tokens
        self._usd = usd
        if usd is not None and self._price is None:
            raise ModelError("budget_usd needs a model whose price is known").at(hint="Variant(name, price=(…, …))")

    def room(self, spent: Spent, put: int) -> int | Literal["tokens", "money"]:
        """How many tokens the next reply may have if so many are put to the model; or what there is too little of."""
        most = self._reply
        if self._tokens is not None:
            most = min(most, self._tokens - spent.tokens - put)
            if most < min(_LEAST, self._reply):
                return "tokens"
        if self._usd is not None:
            most = min(most, self._affordable(spent, put, most))
            if most < min(_LEAST, self._reply):
                return "money"
        return most

    def _affordable(self, spent: Spent, put: int, most: int) -> int:
        assert self._price is not None
        assert self._usd is not None
        left = self._usd - (spent.usd or 0.0) - put * self._price[0] / _MILLION
        if left <= 0:
            return 0
        return most if self._price[1] == 0 else int(left * _MILLION / self._price[1])

    def taken(self, reply: Reply, put: int) -> Usage:
        """What a reply took, by its own count or by ours."""
        used = reply.usage
        got = used.output or size((SamplingMessage(role="assistant", content=[*reply.content]),))
        used = Usage(input=used.input or put, output=got, usd=used.usd)
        if self._price is None or used.usd:
            return used
        return replace(used, usd=(used.input * self._price[0] + used.output * self._price[1]) / _MILLION)


def size(messages: Iterable[SamplingMessage], system: str | None = None) -> int:
    """About how many tokens a conversation has."""
    return _tokens((system or "").encode()) + sum(_block(one) for message in messages for one in blocks(message))


def _block(block: Any) -> int:
    match block:
        case TextContent():
            return _tokens(block.text.encode())
        case ToolUseContent():
            return _tokens(encode((block.name, block.input)))
        case ToolResultContent():
            return _result(block)
        case _:
            return _A_PICTURE


def _result(result: ToolResultContent) -> int:
    said = words(result.content)
    if not said and result.structured_content is not UNSET:
        return _tokens(encode(result.structured_content))
    return _tokens(said.encode()) + _A_PICTURE * sum(one.type == "image" for one in result.content)


def _tokens(told: bytes) -> int:
    return -(-len(told) // BYTES_A_TOKEN)
