"""Agent: a model that uses a host's tools until it has an answer, told event by event.

Every call goes by the policy and the user, as any call of the host does. What was refused, or failed, the model reads.
"""

import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Collection, Mapping
from contextlib import aclosing
from typing import Any, ClassVar, Final, Literal, TypeAlias

from dovetail.errors import MCPError, NotOffered, PolicyError
from dovetail.host.catalog import Catalog
from dovetail.host.host import Host
from dovetail.host.inbox import DurableConsent, Waiting
from dovetail.host.models.model import Model, Reply
from dovetail.host.offers import Offered
from dovetail.host.searching import CALL, OWN, inner_call, looked_up, searching
from dovetail.host.spending import Budget, Spent, size
from dovetail.host.turns import Turn, turn_of
from dovetail.server.tool import error_result
from dovetail.wire.content import TextContent, ToolUseContent
from dovetail.wire.sampling import SamplingMessage
from dovetail.wire.shape import Struct, replace
from dovetail.wire.tools import CallToolResult, Tool

_CATALOG: Final = 8_000  # tokens of tools a conversation begins with; more than that is searched
_REPLY: Final = 4_096  # tokens of one reply

# Why an agent stopped: the model had done, or a limit was reached, or somebody has to answer first.
Reason: TypeAlias = Literal["finished", "turns", "tokens", "money", "cut", "paused"]


class Said(Struct, frozen=True, kw_only=True):
    """The model said something."""

    type: ClassVar[Literal["text"]] = "text"
    text: str


class Called(Struct, frozen=True, kw_only=True):
    """The model wants a tool called; `tool` is its full name."""

    type: ClassVar[Literal["call"]] = "call"
    id: str
    tool: str
    arguments: Mapping[str, Any]


class Answered(Struct, frozen=True, kw_only=True):
    """A call has a result, which may be that it was refused (`denied` says why) or that it failed."""

    type: ClassVar[Literal["result"]] = "result"
    id: str
    tool: str
    result: CallToolResult
    seconds: float = 0.0
    denied: str | None = None


class Paused(Struct, frozen=True, kw_only=True):
    """A call waits for somebody's answer: go on with `agent.resume(ticket, answer)`."""

    type: ClassVar[Literal["paused"]] = "paused"
    id: str
    tool: str
    ticket: str


class Done(Struct, frozen=True, kw_only=True):
    """The end, for now."""

    type: ClassVar[Literal["done"]] = "done"
    reason: Reason
    text: str  # what the model said last
    usage: Spent


AgentEvent: TypeAlias = Said | Called | Answered | Paused | Done


class Agent:
    """A model and the tools of a host, or of some of its `servers`.

    max_turns: replies of the model to one prompt. budget_tokens, budget_usd: what it may use as long as it lives, by an
    estimate of what is put to the model: no reply is asked for beyond that. What servers ask of a model by sampling is
    not in it. catalog_tokens: if the tools take more than that, three that search stand for them.
    """

    def __init__(
        self,
        host: Host,
        model: Model,
        *,
        servers: Collection[str] | None = None,
        system: str | None = None,
        max_turns: int = 12,
        max_tokens: int = _REPLY,
        budget_tokens: int | None = None,
        budget_usd: float | None = None,
        catalog_tokens: int = _CATALOG,
    ) -> None:
        if isinstance(servers, str):
            raise TypeError(f"servers= is a list of names: [{servers!r}]")
        self.host = host
        self.model = model
        self.messages: list[SamplingMessage] = []  # the conversation so far; every call in it has its result
        self.spent = Spent()
        self._servers = servers
        self._system = system
        self._max_turns = max_turns
        self._left = max_turns
        self._budget = Budget(model, max_tokens, budget_tokens, budget_usd)
        self._catalog_tokens = catalog_tokens
        self._turn: Turn | None = None  # whose calls have not all got their results
        self._ids: set[str] = set()  # of all calls
        self._text = ""

    async def run(self, prompt: str) -> AsyncGenerator[AgentEvent]:
        """What happens until the model has answered; the conversation goes on with the next prompt."""
        self._left_behind()
        if self._turn is not None:
            raise RuntimeError(f"a call waits for an answer: resume({next(iter(self._turn.waiting))!r}, ...)")
        self._left = self._max_turns
        self.messages.append(SamplingMessage(role="user", content=TextContent(text=prompt)))
        async with aclosing(self._go_on()) as events:
            async for event in events:
                yield event

    async def resume(self, ticket: str, answer: Any) -> AsyncGenerator[AgentEvent]:
        """Answer what a call waits for, as `host.answer` takes it, and go on."""
        turn = self._turn
        if turn is None or ticket not in turn.waiting:
            raise NotOffered(f"no call waits under the ticket {ticket!r}")
        call = turn.waiting.pop(ticket)
        try:
            event = await self._answered(turn, call, self.host.answer(ticket, answer))
        except (TypeError, ValueError):  # that was no answer
            turn.waiting[ticket] = call
            raise
        finally:
            self._left_behind()
        if event is not None:
            yield event
        if turn.waiting:
            for event in self._paused(turn):
                yield event
            return
        async with aclosing(self._go_on()) as events:
            async for event in events:
                yield event

    # Turns

    async def _go_on(self) -> AsyncGenerator[AgentEvent]:
        while self._left > 0:
            known = await self._known()
            shown = searching(known) if known.tokens > self._catalog_tokens else known
            put = size(self.messages, self._system) + shown.tokens
            most = self._budget.room(self.spent, put)
            if isinstance(most, str):
                yield self._done(most)
                return
            reply = await self._asked(shown, put, most)
            turn = self._turn = turn_of(reply, self._ids)
            try:
                async for event in self._played(turn, known):
                    yield event
            finally:
                self._left_behind()
            if turn.waiting:
                for event in self._paused(turn):
                    yield event
                return
            if not turn.calls:
                yield self._done("cut" if reply.stop_reason == "maxTokens" else "finished")
                return
        yield self._done("turns")

    async def _played(self, turn: Turn, known: Catalog) -> AsyncGenerator[AgentEvent]:
        for block in turn.content:
            if isinstance(block, TextContent):
                self._text = block.text
                yield Said(text=block.text)
        for call in turn.calls:
            async for event in self._called(turn, call, known):
                yield event

    def _left_behind(self) -> None:
        """A turn that is over, or was interrupted, joins the conversation; one that waits for somebody stays."""
        turn = self._turn
        if turn is None:
            return
        turn.interrupt()
        if not turn.waiting:
            self._turn = None
            self.messages += turn.messages()

    async def _known(self) -> Catalog:
        catalog = await self.host.catalog()
        if self._servers is None:
            return catalog
        return catalog.only(one.full for one in catalog.tools if one.server in self._servers)

    async def _asked(self, shown: Catalog, put: int, most: int) -> Reply:
        self._left -= 1
        reply = await self.model.reply(
            self.messages, [_tool(one) for one in shown.tools], max_tokens=most, system=self._system
        )
        self.spent = self.spent.plus(self._budget.taken(reply, put))
        return reply

    def _done(self, reason: Reason) -> Done:
        return Done(reason=reason, text=self._text, usage=self.spent)

    def _paused(self, turn: Turn) -> list[AgentEvent]:
        waits = [Paused(id=call.id, tool=call.name, ticket=ticket) for ticket, call in turn.waiting.items()]
        return [*waits, self._done("paused")]

    # Calls

    async def _called(self, turn: Turn, call: ToolUseContent, known: Catalog) -> AsyncGenerator[AgentEvent]:
        if call.id in turn.unread:
            yield self._finish(turn, call, error_result(turn.unread[call.id]))
            return
        try:
            name, arguments, found = self._meant(call, known)
        except MCPError as exc:
            yield self._finish(turn, call, error_result(str(exc.args[0])))
            return
        meant = replace(call, name=name)
        yield Called(id=call.id, tool=name, arguments=arguments)
        if found is not None:
            yield self._finish(turn, meant, found)
            return
        self.spent = replace(self.spent, calls=Counter(self.spent.calls) + Counter([name]))
        turn.begun.add(call.id)
        wait = not isinstance(self.host.desk.broker, DurableConsent)
        event = await self._answered(turn, meant, self.host.call(name, arguments, wait=wait))
        if event is not None:
            yield event

    def _meant(self, call: ToolUseContent, known: Catalog) -> tuple[str, dict[str, Any], CallToolResult | None]:
        """The tool, its arguments, and the result if it is one of those that search."""
        own = OWN.get(call.name)
        if own is not None and own != CALL:
            return call.name, call.input, looked_up(known, own, call.input)
        name, arguments = inner_call(call.input) if own == CALL else (call.name, call.input)
        tool = known.find(name)
        if tool is None:
            raise NotOffered(f"There is no tool {name!r}.")
        return tool.full, arguments, None

    async def _answered(self, turn: Turn, call: ToolUseContent, work: Awaitable[Any]) -> Answered | None:
        """The event of a call that ended; None if it waits."""
        started = time.monotonic()
        denied: str | None = None
        try:
            result = await work
        except PolicyError as exc:
            denied = str(exc.args[0])
            result = error_result(f"This was not allowed: {denied}")
        except MCPError as exc:
            result = error_result(str(exc.args[0]) if exc.args else type(exc).__name__)
        if isinstance(result, Waiting):
            turn.waiting[result.ticket] = call
            return None
        if result is None:
            result = error_result("This was answered elsewhere; what came of it is not known here.")
        return self._finish(turn, call, result, time.monotonic() - started, denied)

    def _finish(
        self,
        turn: Turn,
        call: ToolUseContent,
        result: CallToolResult,
        seconds: float = 0.0,
        denied: str | None = None,
    ) -> Answered:
        turn.finish(call, result)
        return Answered(id=call.id, tool=call.name, result=result, seconds=seconds, denied=denied)


def _tool(offered: Offered) -> Tool:
    return replace(offered.declaration, name=offered.exposed)
