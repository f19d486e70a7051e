"""Agent: a loop that lets a model use the tools of a host until it has an answer, reported as events.

Every call goes by the policy and the user, as any call of the host does. What was refused, or failed, the model reads.
"""

import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Collection, Mapping
from contextlib import aclosing
from typing import Any, ClassVar, Final, Literal, TypeAlias
from uuid import uuid4

from dovetail.agent.budget import AgentUsage, Budget, add_reply, estimate_message_tokens
from dovetail.errors import MCPError, NotSupported, PolicyError
from dovetail.host.catalog import Catalog
from dovetail.host.catalog_item import CatalogEntry
from dovetail.host.consent.inbox import DurableConsent, PendingCall
from dovetail.host.host import Host, get_parts
from dovetail.host.search_tools import (
    CALL_TOOL,
    SEARCH_TOOL_BY_NAME,
    create_search_catalog,
    parse_inner_call,
    run_search_tool,
)
from dovetail.protocol.language_model import Model, ModelReply
from dovetail.server.tool import build_error_result
from dovetail.wire.base import Struct, field, replace
from dovetail.wire.content import SamplingContent, TextContent, ToolResultContent, ToolUseContent
from dovetail.wire.sampling import SamplingMessage
from dovetail.wire.tools import CallToolResult, Tool


class Turn(Struct, kw_only=True):
    """The calls of one reply, in order: those that have a result, those that wait, and those still to be made."""

    content: list[SamplingContent]
    invalid_calls: dict[str, str]  # why a call cannot be made, by its id
    started_ids: set[str] = field(default_factory=set[str])
    results: dict[str, ToolResultContent] = field(default_factory=dict[str, ToolResultContent])
    waiting_by_ticket: dict[str, ToolUseContent] = field(default_factory=dict[str, ToolUseContent])  # by ticket

    @property
    def calls(self) -> list[ToolUseContent]:
        """What the model wants called."""
        return [block for block in self.content if isinstance(block, ToolUseContent)]

    def finish(self, call: ToolUseContent, result: CallToolResult) -> None:
        """A call has its result."""
        self.results[call.id] = ToolResultContent(
            tool_use_id=call.id,
            content=result.content,
            structured_content=result.structured_content,
            is_error=bool(result.is_error),
        )

    def interrupt(self) -> None:
        """Whatever has no result, and waits for nobody, gets none any more: the model must know what may have run."""
        waiting_ids = {call.id for call in self.waiting_by_ticket.values()}
        for call in self.calls:
            if call.id not in self.results and call.id not in waiting_ids:
                self.finish(call, build_error_result(_MAY_HAVE_RUN if call.id in self.started_ids else _NOT_MADE))

    def to_messages(self) -> list[SamplingMessage]:
        """What joins the conversation once every call has its result."""
        if not self.content:
            return []  # makers refuse a message that holds nothing
        assistant_message = SamplingMessage(role="assistant", content=[*self.content])
        results = [self.results[call.id] for call in self.calls]
        return [assistant_message, SamplingMessage(role="user", content=[*results])] if results else [assistant_message]


_MAY_HAVE_RUN = "This call was interrupted: it may have run, and what came of it is not known."
_NOT_MADE = "This call was not made: the conversation was interrupted before."


def create_turn(reply: ModelReply, used_ids: set[str]) -> Turn:
    """The turn of a reply. Some makers leave the id of a call empty, or use one twice: such a call gets one of its own.

    `taken` has the ids of the conversation, and gets the new ones.
    """
    turn = Turn(content=[], invalid_calls={})
    for block in reply.content:
        if isinstance(block, ToolUseContent):
            original_id, block = block.id, _ensure_unique_id(block, used_ids)
            if (problem := _explain_invalid_call(original_id, reply)) is not None:
                turn.invalid_calls[block.id] = problem
        turn.content.append(block)
    return turn


def _ensure_unique_id(call: ToolUseContent, used_ids: set[str]) -> ToolUseContent:
    if not call.id or call.id in used_ids:
        call = replace(call, id=f"call_{uuid4().hex}")
    used_ids.add(call.id)
    return call


def _explain_invalid_call(call_id: str, reply: ModelReply) -> str | None:
    if call_id in reply.invalid_calls:
        return f"The call could not be read: {reply.invalid_calls[call_id]}"
    if reply.stop_reason == "maxTokens":
        return "The call was cut off: the reply became too long."
    return None


_DEFAULT_MAX_CATALOG_TOKENS: Final = 8_000  # tokens of tools a conversation begins with; more than that is searched
_DEFAULT_MAX_REPLY_TOKENS: Final = 4_096  # tokens of one reply

FinishReason: TypeAlias = Literal["completed", "max_turns", "token_budget", "cost_budget", "max_tokens", "paused"]


class TextEvent(Struct, frozen=True, kw_only=True):
    """The model said something."""

    type: ClassVar[Literal["text"]] = "text"
    text: str


class ToolCallEvent(Struct, frozen=True, kw_only=True):
    """The model wants a tool called; `tool` is its full name."""

    type: ClassVar[Literal["tool_call"]] = "tool_call"
    id: str
    tool: str
    arguments: Mapping[str, Any]


class ToolResultEvent(Struct, frozen=True, kw_only=True):
    """A call has a result, which may be that it was denied (`denied_reason` says why) or that it failed."""

    type: ClassVar[Literal["tool_result"]] = "tool_result"
    id: str
    tool: str
    result: CallToolResult
    duration: float = 0.0
    denied_reason: str | None = None


class PausedEvent(Struct, frozen=True, kw_only=True):
    """A call waits for somebody's answer: go on with `agent.resume(ticket, answer)`."""

    type: ClassVar[Literal["paused"]] = "paused"
    id: str
    tool: str
    ticket: str


class FinishedEvent(Struct, frozen=True, kw_only=True):
    """The end, for now."""

    type: ClassVar[Literal["finished"]] = "finished"
    reason: FinishReason
    text: str  # what the model said last
    usage: AgentUsage


AgentEvent: TypeAlias = TextEvent | ToolCallEvent | ToolResultEvent | PausedEvent | FinishedEvent


class Agent:
    """A model and the tools of a host, or of some of its `servers`.

    max_turns: replies of the model to one prompt. budget_tokens, budget_usd: what it may use as long as it lives, by an
    estimate of what is put to the model: no reply is asked for beyond that. What servers ask of a model by sampling is
    not in it. max_catalog_tokens: if the tools take more than that, three that search stand for them.
    """

    def __init__(
        self,
        host: Host,
        model: Model,
        *,
        servers: Collection[str] | None = None,
        system_prompt: str | None = None,
        max_turns: int = 12,
        max_tokens: int = _DEFAULT_MAX_REPLY_TOKENS,
        budget_tokens: int | None = None,
        budget_usd: float | None = None,
        max_catalog_tokens: int = _DEFAULT_MAX_CATALOG_TOKENS,
    ) -> None:
        if isinstance(servers, str):
            raise TypeError(f"servers= is a list of names: [{servers!r}]")
        self.host = host
        self.model = model
        self.messages: list[SamplingMessage] = []  # the conversation so far; every call in it has its result
        self.usage = AgentUsage()
        self._servers = servers
        self._system_prompt = system_prompt
        self._max_turns = max_turns
        self._turns_left = max_turns
        self._budget = Budget(model, max_tokens, budget_tokens, budget_usd)
        self._max_catalog_tokens = max_catalog_tokens
        self._turn: Turn | None = None  # whose calls have not all got their results
        self._call_ids: set[str] = set()  # of all calls
        self._last_text = ""

    async def run(self, prompt: str) -> AsyncGenerator[AgentEvent]:
        """What happens until the model has answered; the conversation goes on with the next prompt."""
        self._close_turn()
        if self._turn is not None:
            raise RuntimeError(f"a call waits for an answer: resume({next(iter(self._turn.waiting_by_ticket))!r}, ...)")
        self._turns_left = self._max_turns
        self.messages.append(SamplingMessage(role="user", content=TextContent(text=prompt)))
        async with aclosing(self._run_turns()) as events:
            async for event in events:
                yield event

    async def resume(self, ticket: str, answer: Any) -> AsyncGenerator[AgentEvent]:
        """Answer what a call waits for, as `host.answer` takes it, and go on."""
        turn = self._turn
        if turn is None or ticket not in turn.waiting_by_ticket:
            raise NotSupported(f"no call waits under the ticket {ticket!r}")
        call = turn.waiting_by_ticket.pop(ticket)
        try:
            event = await self._await_result(turn, call, self.host.answer(ticket, answer))
        except (TypeError, ValueError):  # that was no answer
            turn.waiting_by_ticket[ticket] = call
            raise
        finally:
            self._close_turn()
        if event is not None:
            yield event
        if turn.waiting_by_ticket:
            for event in self._paused_events(turn):
                yield event
            return
        async with aclosing(self._run_turns()) as events:
            async for event in events:
                yield event

    # Turns

    async def _run_turns(self) -> AsyncGenerator[AgentEvent]:
        while self._turns_left > 0:
            catalog = await self._load_catalog()
            visible_catalog = create_search_catalog(catalog) if catalog.tokens > self._max_catalog_tokens else catalog
            input_tokens = estimate_message_tokens(self.messages, self._system_prompt) + visible_catalog.tokens
            max_tokens = self._budget.get_reply_limit(self.usage, input_tokens)
            if isinstance(max_tokens, str):
                yield self._finished_event(max_tokens)
                return
            reply = await self._request_reply(visible_catalog, input_tokens, max_tokens)
            turn = self._turn = create_turn(reply, self._call_ids)
            try:
                async for event in self._play_turn(turn, catalog):
                    yield event
            finally:
                self._close_turn()
            if turn.waiting_by_ticket:
                for event in self._paused_events(turn):
                    yield event
                return
            if not turn.calls:
                yield self._finished_event("max_tokens" if reply.stop_reason == "maxTokens" else "completed")
                return
        yield self._finished_event("max_turns")

    async def _play_turn(self, turn: Turn, catalog: Catalog) -> AsyncGenerator[AgentEvent]:
        for block in turn.content:
            if isinstance(block, TextContent):
                self._last_text = block.text
                yield TextEvent(text=block.text)
        for call in turn.calls:
            async for event in self._run_call(turn, call, catalog):
                yield event

    def _close_turn(self) -> None:
        """A turn that is over, or was interrupted, joins the conversation; one that waits for somebody stays."""
        turn = self._turn
        if turn is None:
            return
        turn.interrupt()
        if not turn.waiting_by_ticket:
            self._turn = None
            self.messages += turn.to_messages()

    async def _load_catalog(self) -> Catalog:
        catalog = await self.host.catalog()
        if self._servers is None:
            return catalog
        return catalog.filter(entry.full_name for entry in catalog.tools if entry.server in self._servers)

    async def _request_reply(self, catalog: Catalog, input_tokens: int, max_tokens: int) -> ModelReply:
        self._turns_left -= 1
        reply = await self.model.create_message(
            self.messages,
            [_to_model_tool(entry) for entry in catalog.tools],
            max_tokens=max_tokens,
            system_prompt=self._system_prompt,
        )
        self.usage = add_reply(self.usage, self._budget.measure_usage(reply, input_tokens))
        return reply

    def _finished_event(self, reason: FinishReason) -> FinishedEvent:
        return FinishedEvent(reason=reason, text=self._last_text, usage=self.usage)

    def _paused_events(self, turn: Turn) -> list[AgentEvent]:
        events = [
            PausedEvent(id=call.id, tool=call.name, ticket=ticket) for ticket, call in turn.waiting_by_ticket.items()
        ]
        return [*events, self._finished_event("paused")]

    # Calls

    async def _run_call(self, turn: Turn, call: ToolUseContent, catalog: Catalog) -> AsyncGenerator[AgentEvent]:
        if call.id in turn.invalid_calls:
            yield self._finish_call(turn, call, build_error_result(turn.invalid_calls[call.id]))
            return
        try:
            name, arguments, search_result = self._resolve_call(call, catalog)
        except MCPError as exc:
            yield self._finish_call(turn, call, build_error_result(str(exc.args[0])))
            return
        resolved_call = replace(call, name=name)
        yield ToolCallEvent(id=call.id, tool=name, arguments=arguments)
        if search_result is not None:
            yield self._finish_call(turn, resolved_call, search_result)
            return
        self.usage = replace(self.usage, tool_calls=Counter(self.usage.tool_calls) + Counter([name]))
        turn.started_ids.add(call.id)
        wait = not isinstance(get_parts(self.host).authorizer.consent_handler, DurableConsent)
        event = await self._await_result(turn, resolved_call, self.host.call(name, arguments, wait=wait))
        if event is not None:
            yield event

    def _resolve_call(
        self, call: ToolUseContent, catalog: Catalog
    ) -> tuple[str, dict[str, Any], CallToolResult | None]:
        """The tool, its arguments, and the result if it is one of those that search."""
        search_tool = SEARCH_TOOL_BY_NAME.get(call.name)
        if search_tool is not None and search_tool != CALL_TOOL:
            return call.name, call.input, run_search_tool(catalog, search_tool, call.input)
        name, arguments = parse_inner_call(call.input) if search_tool == CALL_TOOL else (call.name, call.input)
        tool = catalog.find(name)
        if tool is None:
            raise NotSupported(f"There is no tool {name!r}.")
        return tool.full_name, arguments, None

    async def _await_result(
        self, turn: Turn, call: ToolUseContent, operation: Awaitable[Any]
    ) -> ToolResultEvent | None:
        """The event of a call that ended; None if it waits."""
        started = time.monotonic()
        denied_reason: str | None = None
        try:
            result = await operation
        except PolicyError as exc:
            denied_reason = str(exc.args[0])
            result = build_error_result(f"This was not allowed: {denied_reason}")
        except MCPError as exc:
            result = build_error_result(str(exc.args[0]) if exc.args else type(exc).__name__)
        if isinstance(result, PendingCall):
            turn.waiting_by_ticket[result.ticket] = call
            return None
        if result is None:
            result = build_error_result("This was answered elsewhere; what came of it is not known here.")
        return self._finish_call(turn, call, result, time.monotonic() - started, denied_reason)

    def _finish_call(
        self,
        turn: Turn,
        call: ToolUseContent,
        result: CallToolResult,
        duration: float = 0.0,
        denied_reason: str | None = None,
    ) -> ToolResultEvent:
        turn.finish(call, result)
        return ToolResultEvent(
            id=call.id, tool=call.name, result=result, duration=duration, denied_reason=denied_reason
        )


def _to_model_tool(entry: CatalogEntry) -> Tool:
    return replace(entry.definition, name=entry.model_name)
