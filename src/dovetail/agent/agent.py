"""An agent, which lets a model use the tools of a host until the model has an answer, and yields events.

The host's policy and consent apply to every call. The model is informed which calls were denied or failed.
"""

import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Collection, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias
from uuid import uuid4

from dovetail.agent.budget import AgentUsage, Budget, add_reply, estimate_message_tokens
from dovetail.errors import MCPError, NotSupported, PolicyError
from dovetail.host.catalog import Catalog
from dovetail.host.catalog_item import CatalogEntry
from dovetail.host.consent.consent import ConsentAnswer, ShortAnswer
from dovetail.host.consent.inbox import CallAwaitingConsent, FileConsent
from dovetail.host.host import Host, call_for_agent, get_parts
from dovetail.host.search_tools import (
    SEARCH_TOOL_BY_NAME,
    SKILL_TOOL_NAMES,
    create_search_catalog,
    run_search_tool,
)
from dovetail.protocol.interfaces.language_model import Model, ModelReply
from dovetail.search.tool_search import CALL_TOOL, parse_inner_call
from dovetail.server.items.tool import build_error_result
from dovetail.wire.base import Struct, field, replace
from dovetail.wire.content import SamplingContent, TextContent, ToolResultContent, ToolUseContent
from dovetail.wire.sampling import SamplingMessage
from dovetail.wire.tools import CallToolResult, Tool

if TYPE_CHECKING:
    from dovetail.agent.skill_tool import SkillTool
    from dovetail.host.skill_permissions import SkillToolPermissions


class Turn(Struct, kw_only=True):
    """The tool calls of one model reply. A call is finished, waits for the user, or has not started."""

    content: list[SamplingContent]
    invalid_calls: dict[str, str]  # Maps the ID of each invalid call to the reason why it cannot run.
    started_ids: set[str] = field(default_factory=set[str])
    results: dict[str, ToolResultContent] = field(default_factory=dict[str, ToolResultContent])
    # The calls that wait for the user's answer. The keys are tickets.
    waiting_by_ticket: dict[str, ToolUseContent] = field(default_factory=dict[str, ToolUseContent])

    @property
    def calls(self) -> list[ToolUseContent]:
        """Return the tool calls in the model's reply."""
        return [block for block in self.content if isinstance(block, ToolUseContent)]

    def finish(self, call: ToolUseContent, result: CallToolResult) -> None:
        """Store the result of a tool call."""
        self.results[call.id] = ToolResultContent(
            tool_use_id=call.id,
            content=result.content,
            structured_content=result.structured_content,
            is_error=bool(result.is_error),
        )

    def interrupt(self) -> None:
        """End every call that has no result, except calls that wait for the user.

        The error result says whether the call may have run.
        """
        waiting_ids = {call.id for call in self.waiting_by_ticket.values()}
        for call in self.calls:
            if call.id not in self.results and call.id not in waiting_ids:
                self.finish(call, build_error_result(_MAY_HAVE_RUN if call.id in self.started_ids else _NOT_MADE))

    def to_messages(self) -> list[SamplingMessage]:
        """Return the messages to add to the conversation. All calls must have results."""
        if not self.content:
            # Model providers reject an empty message.
            return []
        assistant_message = SamplingMessage(role="assistant", content=[*self.content])
        results = [self.results[call.id] for call in self.calls]
        return [assistant_message, SamplingMessage(role="user", content=[*results])] if results else [assistant_message]


_MAY_HAVE_RUN = "This call was interrupted. It may have run, and its result is unknown."
_NOT_MADE = "This call did not run, because the conversation was interrupted before it."


def create_turn(reply: ModelReply, used_ids: set[str]) -> Turn:
    """Create the turn for a model reply. Calls with an empty or repeated ID get a new ID.

    `used_ids` contains the IDs of all calls in the conversation. The IDs of the new calls are added to it.
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
        return f"The call could not be parsed: {reply.invalid_calls[call_id]}"
    if reply.stop_reason == "maxTokens":
        return "The call was cut off because the reply became too long."
    return None


# If the tool definitions need more tokens than this, the model gets search tools instead.
_DEFAULT_MAX_CATALOG_TOKENS: Final = 8_000
_DEFAULT_MAX_REPLY_TOKENS: Final = 4_096  # the maximum number of tokens in one reply

FinishReason: TypeAlias = Literal["completed", "max_turns", "token_budget", "cost_budget", "max_tokens", "paused"]


class TextEvent(Struct, frozen=True, kw_only=True):
    """Text that the model has written."""

    type: ClassVar[Literal["text"]] = "text"
    text: str  # The text of the model.


class ToolCallEvent(Struct, frozen=True, kw_only=True):
    """A tool call that the model made."""

    type: ClassVar[Literal["tool_call"]] = "tool_call"
    id: str  # The ID of the call.
    tool: str  # The full name of the tool.
    arguments: Mapping[str, Any]  # The arguments of the call.


class ToolResultEvent(Struct, frozen=True, kw_only=True):
    """The result of a tool call."""

    type: ClassVar[Literal["tool_result"]] = "tool_result"
    id: str  # The ID of the call.
    tool: str  # The full name of the tool.
    result: CallToolResult  # The result of the tool, which may be an error.
    duration: float = 0.0  # The duration of the call in seconds.
    denied_reason: str | None = None  # The reason why the call was denied, or None if the call ran.


class PausedEvent(Struct, frozen=True, kw_only=True):
    """A tool call that waits for the user's answer. Continue with `agent.resume(ticket, answer)`."""

    type: ClassVar[Literal["paused"]] = "paused"
    id: str  # The ID of the call.
    tool: str  # The full name of the tool.
    ticket: str  # The ticket to pass to `Agent.resume`.


class FinishedEvent(Struct, frozen=True, kw_only=True):
    """The last event of a run, with the reason why the run has ended."""

    type: ClassVar[Literal["finished"]] = "finished"
    reason: FinishReason  # The reason why the agent finished, such as "completed" or "max_turns".
    text: str  # The last text of the model.
    usage: AgentUsage  # Tokens, cost and tool calls since the agent was created.


# An event of `Agent.run` or `Agent.resume`.
AgentEvent: TypeAlias = TextEvent | ToolCallEvent | ToolResultEvent | PausedEvent | FinishedEvent


class Agent:
    """A model that uses the tools of a host.

    Args:
        host: The host whose tools the model uses.
        model: The model that answers prompts.
        servers: The names of the servers that the agent may use. If None, the agent may use all servers.
        system_prompt: The system prompt for the model.
        max_turns: The maximum number of model replies to one prompt.
        max_tokens: The maximum number of tokens in one reply.
        budget_tokens: The maximum number of tokens for all prompts together. Sampling requests of servers do not
            count.
        budget_usd: The maximum cost in dollars for all prompts together. The model must have a price.
        max_catalog_tokens: The maximum number of tokens for all tool definitions. If the definitions need more, the
            model gets three search tools instead.
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
            raise TypeError(f"servers= must be a list of names. Write servers=[{servers!r}]")
        self.host = host
        self.model = model
        # The messages of the conversation. Every tool call in them has a result.
        self.messages: list[SamplingMessage] = []
        self.usage = AgentUsage()
        self._servers = servers
        self._system_prompt = system_prompt
        self._max_turns = max_turns
        self._turns_left = max_turns
        self._budget = Budget(model, max_tokens, budget_tokens, budget_usd)
        self._max_catalog_tokens = max_catalog_tokens
        self._turn: Turn | None = None  # The model reply whose tool calls are running.
        self._call_ids: set[str] = set()
        self._last_text = ""
        self._skill_tool: SkillTool | None = None  # None until the first prompt
        self._skill_permissions: SkillToolPermissions | None = None  # None until the first prompt

    async def run(self, prompt: str) -> AsyncGenerator[AgentEvent]:
        """Send a prompt to the model and yield events until the model has answered.

        Each prompt continues the conversation.
        """
        self._close_turn()
        if self._turn is not None:
            raise RuntimeError(
                f"a tool call waits for an answer. Call resume({next(iter(self._turn.waiting_by_ticket))!r}, ...) first"
            )
        self._turns_left = self._max_turns
        await self._load_skills()
        self.messages.append(SamplingMessage(role="user", content=TextContent(text=prompt)))
        async with aclosing(self._run_turns()) as events:
            async for event in events:
                yield event

    async def resume(self, ticket: str, answer: ConsentAnswer | ShortAnswer) -> AsyncGenerator[AgentEvent]:
        """Answer a paused tool call, and yield the events that follow. `Host.answer` lists the possible answers."""
        turn = self._turn
        if turn is None or ticket not in turn.waiting_by_ticket:
            raise NotSupported(f"no tool call is waiting for the ticket {ticket!r}")
        call = turn.waiting_by_ticket.pop(ticket)
        try:
            event = await self._await_result(turn, call, self.host.answer(ticket, answer))
        except (TypeError, ValueError):
            # If the answer is invalid, the call keeps waiting for another answer.
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

    async def _run_turns(self) -> AsyncGenerator[AgentEvent]:
        while self._turns_left > 0:
            catalog = await self._load_catalog()
            visible_catalog = create_search_catalog(catalog) if catalog.tokens > self._max_catalog_tokens else catalog
            if self._skill_tool is not None and (skill_entry := self._skill_tool.get_entry()) is not None:
                visible_catalog = replace(visible_catalog, tools=(*visible_catalog.tools, skill_entry))
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

    async def _load_skills(self) -> None:
        """List the skills that the agent may use. Unchanged skills keep the user's consent."""
        from dovetail.agent.skill_tool import SkillTool
        from dovetail.host.skill_permissions import SkillToolPermissions

        skills = [
            skill
            for skill in await self.host.list_skills()
            if self._servers is None or not skill.server or skill.server in self._servers
        ]
        self._skill_tool = (self._skill_tool or SkillTool()).update(skills)
        if self._skill_permissions is None:
            self._skill_permissions = SkillToolPermissions(get_parts(self.host))
        self._skill_permissions.start_run(skills)

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

    async def _run_call(self, turn: Turn, call: ToolUseContent, catalog: Catalog) -> AsyncGenerator[AgentEvent]:
        if call.id in turn.invalid_calls:
            yield self._finish_call(turn, call, build_error_result(turn.invalid_calls[call.id]))
            return
        if call.name in SKILL_TOOL_NAMES and self._skill_tool is not None:
            async for event in self._load_skill(turn, replace(call, name=SKILL_TOOL_NAMES[0]), catalog):
                yield event
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
        event = await self._await_result(turn, resolved_call, self._call_tool(name, arguments))
        if event is not None:
            yield event

    def _call_tool(self, name: str, arguments: Mapping[str, Any]) -> Awaitable[Any]:
        permissions = self._skill_permissions
        if permissions is None or permissions.is_empty:
            return self.host.call(name, arguments, wait=self._should_wait)
        return call_for_agent(
            self.host, name, arguments, wait=self._should_wait, find_permission=permissions.find_reason
        )

    @property
    def _should_wait(self) -> bool:
        return not isinstance(get_parts(self.host).authorizer.consent_handler, FileConsent)

    async def _load_skill(self, turn: Turn, call: ToolUseContent, catalog: Catalog) -> AsyncGenerator[AgentEvent]:
        assert self._skill_tool is not None
        assert self._skill_permissions is not None
        yield ToolCallEvent(id=call.id, tool=call.name, arguments=call.input)
        self.usage = replace(self.usage, tool_calls=Counter(self.usage.tool_calls) + Counter([call.name]))
        turn.started_ids.add(call.id)
        loading = self._skill_tool.run(call.input, catalog.tools, self._skill_permissions, wait=self._should_wait)
        event = await self._await_result(turn, call, loading)
        if event is not None:
            yield event

    def _resolve_call(
        self, call: ToolUseContent, catalog: Catalog
    ) -> tuple[str, dict[str, Any], CallToolResult | None]:
        """Return the tool name and the arguments of a call.

        If the call searches the catalog, also return the search result.
        """
        search_tool = SEARCH_TOOL_BY_NAME.get(call.name)
        if search_tool is not None and search_tool != CALL_TOOL:
            return call.name, call.input, run_search_tool(catalog, search_tool, call.input)
        name, arguments = parse_inner_call(call.input) if search_tool == CALL_TOOL else (call.name, call.input)
        tool = catalog.find(name)
        if tool is None:
            raise NotSupported(f"Unknown tool {name!r}.")
        return tool.full_name, arguments, None

    async def _await_result(
        self, turn: Turn, call: ToolUseContent, operation: Awaitable[Any]
    ) -> ToolResultEvent | None:
        started = time.monotonic()
        denied_reason: str | None = None
        try:
            result = await operation
        except PolicyError as exc:
            denied_reason = str(exc.args[0])
            result = build_error_result(f"This call was denied: {denied_reason}")
        except MCPError as exc:
            result = build_error_result(str(exc.args[0]) if exc.args else type(exc).__name__)
        if isinstance(result, CallAwaitingConsent):
            turn.waiting_by_ticket[result.ticket] = call
            return None
        if result is None:
            result = build_error_result(
                "The user answered this call outside this conversation, so its result is unknown."
            )
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
