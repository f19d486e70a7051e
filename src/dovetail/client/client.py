"""Client: one typed coroutine per method, whatever the server speaks and however it is reached.

Knows no transport: it is given a function that makes a channel. May be opened in one task and closed in another, used
by many tasks, and called from the loops of other threads; its work is done on the loop it was opened on.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar, overload

from dovetail.client.answering import EVERYTHING, Answering, ElicitHandler, Relay, RootsGiven, SampleHandler
from dovetail.client.clock import Clock, Progress
from dovetail.client.conversation import Conversation
from dovetail.client.keeping import Keeper
from dovetail.client.listening import ACKNOWLEDGED, KINDS, Listening
from dovetail.client.mailbox import Mailbox
from dovetail.client.opening import Identity, Opening
from dovetail.client.options import (
    check_level,
    check_middleware,
    check_roots,
    check_times,
    expect,
    expect_callable,
)
from dovetail.client.requesting import CALL, PLAIN, Options, Requesting
from dovetail.client.rounds import Pending
from dovetail.client.values import contents_of, says_unknown, value_as, value_of
from dovetail.errors import (
    AuthError,
    CannotConnect,
    MCPError,
    NotOffered,
    PeerError,
    RequestTimeout,
    ResultError,
    TransportError,
)
from dovetail.protocol.around import Middleware, checked
from dovetail.protocol.channel import Channel
from dovetail.protocol.exchange import Caller
from dovetail.protocol.limits import ClientLimits, Timeouts
from dovetail.protocol.mounting import Mountable
from dovetail.protocol.probe import Era, check_wishes
from dovetail.protocol.recording import Tap
from dovetail.wire.completion import Completion
from dovetail.wire.incoming import body, plain
from dovetail.wire.inputs import InputRequest
from dovetail.wire.lifecycle import (
    ClientCapabilities,
    DiscoverResult,
    Implementation,
    RootsCapability,
    ServerCapabilities,
)
from dovetail.wire.logs import LoggingLevel, LoggingMessageParams
from dovetail.wire.meta import CLIENT_CAPABILITIES
from dovetail.wire.methods import METHODS
from dovetail.wire.prompts import GetPromptResult, ListPromptsResult, Prompt
from dovetail.wire.resources import (
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
)
from dovetail.wire.shape import replace
from dovetail.wire.subscriptions import SubscriptionFilter
from dovetail.wire.tools import CallToolResult, ListToolsResult, Tool

T = TypeVar("T")

# The eras of servers met before, by where they are: a server is asked once what it speaks, not at every opening.
_ERAS: dict[str, Era] = {}
_REMEMBERED = 1024


class Client:
    """The caller's side of one server."""

    def __init__(
        self,
        dial: Callable[[], Channel],
        *,
        name: str,
        key: str | None,
        client: Implementation,
        revision: str | None = None,
        era: Era | None = None,
        elicit: ElicitHandler | None = None,
        elicit_url: ElicitHandler | None = None,
        sample: SampleHandler | None = None,
        roots: RootsGiven | None = None,
        on_log: Callable[[LoggingMessageParams], Any] | None = None,
        log_level: LoggingLevel | None = None,
        capabilities: ClientCapabilities | None = None,
        timeouts: Timeouts | None = None,
        limits: ClientLimits | None = None,
        cache: bool = True,
        check_results: bool = True,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        check_wishes(revision, era)
        for option, function in (
            ("elicit", elicit),
            ("elicit_url", elicit_url),
            ("sample", sample),
            ("on_log", on_log),
        ):
            expect_callable(option, function)
        check_level("log_level=", log_level)
        check_roots(roots)
        check_middleware(middleware)
        expect("client", client, Implementation, "an Implementation(name=..., version=...)")
        expect("capabilities", capabilities, ClientCapabilities, "a ClientCapabilities(...)")
        expect("timeouts", timeouts, Timeouts, "a Timeouts(...): seconds for each kind of waiting")
        expect("limits", limits, ClientLimits, "a ClientLimits(...)")
        expect("cache", cache, bool, "True or False")
        expect("check_results", check_results, bool, "True or False")
        self.name = name
        self.timeouts = timeouts or Timeouts()
        self.limits = limits or ClientLimits()
        self.log_relay: Callable[[dict[str, Any]], None] | None = None
        self.taps: list[Tap] = []  # told of every message, as long as they stand here
        # Told when a connection is lost, with the reason, and with None when one is open.
        self.on_connection: Callable[[TransportError | None], None] | None = None
        self._dial = dial
        self._key = key
        self._revision = revision
        self._era: Era | None = era
        self._on_log = on_log
        self._answering = Answering(elicit=elicit, elicit_url=elicit_url, sample=sample, roots=roots)
        extra = capabilities or ClientCapabilities()
        self._identity = Identity(
            client=client,
            capabilities=replace(
                self._answering.capabilities(), experimental=extra.experimental, extensions=extra.extensions
            ),
            level=log_level or ("info" if on_log is not None else None),
        )
        self._mailbox = Mailbox(self.limits.waiting)
        self._listeners: set[Listening] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0  # whose loop it is
        self._keeper = Keeper(name, self._open, self.limits)
        self._opened: Conversation | None = None  # the last
        self._requesting = Requesting(
            name,
            self._keeper,
            self._answering,
            self.timeouts,
            self.limits,
            cache=cache,
            check_results=check_results,
        )
        self._middleware: list[Middleware] = []
        for function in middleware:
            self.middleware(function)

    def middleware(self, function: Middleware) -> Middleware:
        """Put a function around every request: `async def around(exchange, proceed)`, awaiting `proceed(exchange)`.

        It sees the result as its type, or a Pending. What opens the conversation does not come by here, nor does a
        result that is still fresh.
        """
        self._middleware.append(checked(function))
        self._requesting.surround(self._middleware, self._caller)
        return function

    def mountable(self, *, shared: bool = False) -> Mountable:
        """The server behind this client, as another one mounts it: `app.mount(Client(...), "prefix")`.

        Its questions and log messages then go to whoever called, unless this client has handlers for them. `shared`:
        the handlers are only for what this client itself requests.
        """
        from dovetail.client.forwarding import Forwarding

        return Forwarding(self, self._requesting, self._mailbox, self._relaying, shared=shared)

    def _relaying(
        self, questions: Relay, logs: Callable[[dict[str, Any]], None], own: Callable[[], bool] | None
    ) -> None:
        self._answering.relay = questions
        if self._on_log is None or own is not None:
            self.log_relay = logs
        if own is not None:
            self._answering.own = own
            level = self._identity.level or "info"
            self._identity = replace(self._identity, level=level, handshake=EVERYTHING)
            return
        level = self._identity.level or ("info" if self._on_log is None else None)
        given = self._identity.capabilities
        told = self._answering.capabilities()
        self._identity = replace(
            self._identity,
            level=level,
            capabilities=replace(told, experimental=given.experimental, extensions=given.extensions),
        )

    def _caller(self) -> Caller:
        return Caller(
            self.revision or "",
            self._requesting.stateless,
            self._identity.capabilities,
            client=self._identity.client,
        )

    # Opening and closing

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Open the conversation now; otherwise the first request does."""
        self._keeper.reopen()
        await self._here(self._keeper.ready)

    async def close(self) -> None:
        """Leave the server. From any task or thread, as often as you like; `connect` opens it again."""
        await self._here(self._close)

    async def _close(self) -> None:
        for listening in tuple(self._listeners):
            await listening.aclose()
        await self._keeper.close()
        self._mailbox.close()
        self._requesting.forget()
        self._loop = None

    async def _here(self, work: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Do something on the loop this client lives on."""
        loop = asyncio.get_running_loop()
        process = os.getpid()
        if self._loop is None or self._loop.is_closed() or self._process != process:
            if self._loop is not None:
                self._keeper.abandon()
                self._requesting.forget()
            self._loop, self._process = loop, process
        if self._loop is loop:
            return await work(*args)
        if not self._loop.is_running():
            raise RuntimeError("this client was opened on another event loop, which is not running; close it there")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(*args), self._loop))

    async def _open(self) -> Conversation:
        limit = self.timeouts.initialize
        clock, clocks = Clock(limit, limit), self._keeper.clocks
        clocks.start(clock, clock)
        try:
            conversation = await self._met(clock)
        finally:
            clocks.stop(clock)
        self._requesting.forget()
        if self._identity.level is not None:
            try:
                await self._ask_for_logs(conversation, self._identity.level, clock)
            except BaseException:
                await asyncio.shield(conversation.close())
                raise
        self._opened = conversation
        if self.on_connection is not None:
            self.on_connection(None)
        return conversation

    def _lost(self, conversation: Conversation) -> None:
        if self.on_connection is not None and conversation is self._opened:
            self.on_connection(conversation.why_lost)

    async def _met(self, clock: Clock) -> Conversation:
        """A conversation with the server, opened as it was the last time if that is known."""
        key = self._key if self._revision is None and self._era is None else None
        remembered = None if key is None else _ERAS.get(key)
        opening = self._attempt(remembered or self._era, clock)
        try:
            conversation = await opening.run()
        except MCPError as exc:
            if remembered is None or isinstance(exc, CannotConnect | AuthError):
                raise
            _ERAS.pop(key or "", None)  # it may have become another server
            if isinstance(exc, RequestTimeout):
                raise
            opening = self._attempt(None, clock)
            conversation = await opening.run()
        speaker = conversation.speaker
        if key is not None and speaker is not None and opening.certain and len(_ERAS) < _REMEMBERED:
            _ERAS[key] = "stateless" if speaker.stateless else "handshake"
        return conversation

    def _attempt(self, era: Era | None, clock: Clock) -> Opening:
        def converse(channel: Channel) -> Conversation:
            return Conversation(
                channel,
                self.name,
                self._answering,
                self._mailbox,
                questions=self.limits.questions,
                heard=self._heard,
                waiting=self._keeper.clocks,
                taps=self.taps,
                on_lost=self._lost,
            )

        return Opening(self._dial, converse, self._identity, self.timeouts, clock, revision=self._revision, era=era)

    async def _ask_for_logs(self, conversation: Conversation, level: LoggingLevel, clock: Clock) -> None:
        """A stateless request carries the level with it; a handshake session is told once."""
        speaker = conversation.speaker
        if speaker is not None and not speaker.stateless and conversation.capabilities.logging is not None:
            with contextlib.suppress(PeerError):  # without its logs the server is still of use
                await conversation.request("logging/setLevel", {"level": level}, clock)

    def _heard(self, method: str, params: Any) -> None:
        """A notification that belongs to no request of its own."""
        if method in KINDS or method == ACKNOWLEDGED:
            self._requesting.heard(method)
            for listening in tuple(self._listeners):
                listening.hear(method, params)
        elif method == "notifications/message":
            if self.log_relay is not None:
                self.log_relay(plain(params))
            if self._on_log is not None:
                with contextlib.suppress(ResultError):
                    self._mailbox.call(self._on_log, body(params, LoggingMessageParams, method))

    # What is known of the server

    @property
    def connected(self) -> bool:
        """Whether a conversation is open."""
        return self._keeper.current is not None

    @property
    def revision(self) -> str | None:
        """The revision being spoken."""
        current = self._keeper.current
        return None if current is None else current.revision

    @property
    def server(self) -> Implementation | None:
        """Who the server says it is."""
        current = self._keeper.current
        return None if current is None else current.server

    @property
    def capabilities(self) -> ServerCapabilities:
        """What the server declared."""
        current = self._keeper.current
        return ServerCapabilities() if current is None else current.capabilities

    @property
    def instructions(self) -> str | None:
        """How the server wants to be used."""
        current = self._keeper.current
        return None if current is None else current.instructions

    @property
    def noise(self) -> int:
        """How many times the server wrote something that is no message."""
        current = self._keeper.current
        return 0 if current is None else current.junk_seen

    async def discover(self) -> DiscoverResult:
        """What the server speaks and can do."""
        await self._here(self._keeper.ready)
        if self._requesting.stateless:
            return await self._here(self._requesting.cached, METHODS["server/discover"], {})
        return DiscoverResult(
            supported_versions=[self.revision or ""], capabilities=self.capabilities, instructions=self.instructions
        )

    async def ping(self) -> None:
        """Ask for a sign of life."""
        await self._here(self._keeper.ready)
        method = "server/discover" if self._requesting.stateless else "ping"
        await self._here(self._requesting.once, METHODS[method], {})

    # Tools

    async def list_tools(self) -> list[Tool]:
        """All tools."""
        return await self._here(self._requesting.list_tools)

    async def list_tools_page(self, cursor: str | None = None) -> ListToolsResult:
        """One page of tools."""
        page = await self._here(self._requesting.page, "tools/list", "tools", Tool, cursor)
        requesting = self._requesting
        return replace(page, tools=requesting.tools.usable(page.tools, self.name, mirrors=requesting.mirrors))

    @overload
    async def call(self, tool: str, /, *, into: type[T], **arguments: Any) -> T: ...
    @overload
    async def call(self, tool: str, /, **arguments: Any) -> Any: ...
    async def call(self, tool: str, /, *_others: Any, into: Any = None, **arguments: Any) -> Any:
        """Call a tool and get its value; ToolError if it failed.

        `into`: the type the value is to have. For options, or an argument called `into`, use `call_tool`.
        """
        if _others:
            raise TypeError(
                f"arguments are given by name: call({tool!r}, name=value), call({tool!r}, **arguments), or "
                f"call_tool({tool!r}, arguments)"
            )
        result = await self.call_tool(tool, arguments)
        if result.is_error and (missing := says_unknown(result, tool)) is not None:
            raise self._requesting.advised(missing, CALL.name, {"name": tool}) from None
        known = self._requesting.tools.get(tool)
        wraps = not self._requesting.stateless or (known is not None and known.wraps)
        try:
            return value_of(result, wraps=wraps) if into is None else value_as(result, into, wraps=wraps)
        except MCPError as exc:
            raise self._requesting.located(exc, CALL.name, {"name": tool}) from None

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        total: float | None = None,
        progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
        retry: bool | None = None,
    ) -> CallToolResult:
        """Call a tool and get its whole result, also one that says it failed.

        `timeout` counts from the last sign of life, `total` from the beginning. `progress(done, total, message)` is
        called on the way. `retry=True`: it may run twice; else only what the tool declares harmless is repeated.
        """
        options = _options(timeout, total, progress, meta, retry)
        if type(arguments) is not dict:
            expect("arguments", arguments, Mapping, "a dict")
        params = {"name": name, "arguments": dict(arguments or {})}
        return await self._here(self._requesting.through, CALL, params, options)

    async def start_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        total: float | None = None,
        progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
        retry: bool | None = None,
    ) -> CallToolResult | Pending:
        """As `call_tool`, but questions come back as a Pending, to be answered with `resume`, here or elsewhere.

        No handlers are needed: without any, the server is told that everything may be asked. A handshake server cannot
        wait like that: its questions go to the handlers as ever.
        """
        options = _options(timeout, total, progress, await self._declaring(meta), retry)
        if type(arguments) is not dict:
            expect("arguments", arguments, Mapping, "a dict")
        params = {"name": name, "arguments": dict(arguments or {})}
        return await self._here(self._requesting.once, CALL, params, options)

    async def resume(
        self,
        pending: Pending,
        answers: Mapping[str, Any],
        *,
        timeout: float | None = None,
        total: float | None = None,
        progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Any:
        """Go on with what was pending: the result of its method, or a further Pending."""
        expect("pending", pending, Pending, "a Pending")
        expect("answers", answers, Mapping, "a dict: an answer for each key of pending.questions")
        options = _options(timeout, total, progress, await self._declaring(meta), None)
        row, params = METHODS[pending.method], pending.answered(answers)
        return await self._here(self._requesting.once, row, params, options, pending.rounds)

    async def answer(self, questions: Mapping[str, InputRequest]) -> dict[str, Any]:
        """What the handlers answer to questions of a Pending, for those who resume it themselves."""
        return await self._here(self._answering.answer_all, questions)

    async def _declaring(self, meta: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """What goes with a request whose questions come back: with no handlers, all may be asked."""
        await self._here(self._keeper.ready)
        if not self._requesting.stateless or self._answering.capabilities() != ClientCapabilities():
            return meta
        given = self._identity.capabilities
        told = replace(
            EVERYTHING, roots=RootsCapability(), experimental=given.experimental, extensions=given.extensions
        )
        return {CLIENT_CAPABILITIES: told, **(meta or {})}

    # Resources

    async def list_resources(self) -> list[Resource]:
        """All resources."""
        return await self._here(self._requesting.whole, "resources/list", "resources", Resource)

    async def list_resources_page(self, cursor: str | None = None) -> ListResourcesResult:
        """One page of resources."""
        return await self._here(self._requesting.page, "resources/list", "resources", Resource, cursor)

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        """All resource templates."""
        method, field = "resources/templates/list", "resource_templates"
        return await self._here(self._requesting.whole, method, field, ResourceTemplate)

    async def list_resource_templates_page(self, cursor: str | None = None) -> ListResourceTemplatesResult:
        """One page of resource templates."""
        method, field = "resources/templates/list", "resource_templates"
        return await self._here(self._requesting.page, method, field, ResourceTemplate, cursor)

    async def read(self, uri: str) -> Any:
        """What a resource holds: text or bytes, or a list of them where it has several parts."""
        return contents_of(await self.read_resource(uri))

    async def read_resource(
        self, uri: str, *, timeout: float | None = None, meta: Mapping[str, Any] | None = None
    ) -> ReadResourceResult:
        """The whole result of reading a resource."""
        options = _options(timeout, None, None, meta, None)
        return await self._here(self._requesting.cached, METHODS["resources/read"], {"uri": uri}, options)

    # Prompts and completion

    async def list_prompts(self) -> list[Prompt]:
        """All prompts."""
        return await self._here(self._requesting.whole, "prompts/list", "prompts", Prompt)

    async def list_prompts_page(self, cursor: str | None = None) -> ListPromptsResult:
        """One page of prompts."""
        return await self._here(self._requesting.page, "prompts/list", "prompts", Prompt, cursor)

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> GetPromptResult:
        """A prompt, filled in."""
        expect("arguments", arguments, Mapping, "a dict")
        params: dict[str, Any] = {"name": name}
        if arguments:
            params["arguments"] = dict(arguments)
        options = _options(timeout, None, None, meta, None)
        return await self._here(self._requesting.through, METHODS["prompts/get"], params, options)

    async def complete(
        self,
        argument: str,
        value: str,
        *,
        prompt: str | None = None,
        template: str | None = None,
        context: Mapping[str, str] | None = None,
    ) -> Completion:
        """Suggestions for an argument of a prompt, or of a resource template, of which `value` has been typed."""
        if (prompt is None) == (template is None):
            raise ValueError("give either prompt= or template=")
        ref = {"type": "ref/prompt", "name": prompt} if template is None else {"type": "ref/resource", "uri": template}
        params: dict[str, Any] = {"ref": ref, "argument": {"name": argument, "value": value}}
        if context:
            params["context"] = {"arguments": dict(context)}
        result = await self._here(self._requesting.once, METHODS["completion/complete"], params)
        return result.completion

    # Changes and the rest

    def listen(
        self,
        *,
        tools: bool | None = None,
        prompts: bool | None = None,
        resources: bool | None = None,
        uris: Iterable[str] = (),
    ) -> Listening:
        """Hear of changes: of the lists that are set to True and of the resources at these URIs; of all lists if you
        name nothing, or only what you do not want.

        Use it as `async for change in client.listen(...)`; within `async with` you know when it has begun.
        """
        found = [uris] if isinstance(uris, str) else [*uris]
        others = not (tools or prompts or resources or found)  # whether a list that is not named is wanted
        wanted = SubscriptionFilter(
            tools_list_changed=others if tools is None else tools,
            prompts_list_changed=others if prompts is None else prompts,
            resources_list_changed=others if resources is None else resources,
            resource_subscriptions=found or None,
        )
        return Listening(
            self._keeper, wanted, self.limits, self.timeouts.read, self._listeners, self._here, self._requesting.heard
        )

    async def subscribe(self, uri: str) -> None:
        """Ask a handshake server to tell when a resource changes; `listen` does this on every revision."""
        conversation = await self._here(self._keeper.ready)
        if not self._requesting.stateless:
            await self._here(conversation.channel.hearing)
        await self._handshake_only("resources/subscribe", {"uri": uri})

    async def unsubscribe(self, uri: str) -> None:
        """Take back `subscribe`."""
        await self._handshake_only("resources/unsubscribe", {"uri": uri})

    async def set_log_level(self, level: LoggingLevel) -> None:
        """The least severity of the log messages wanted from now on."""
        check_level("level", level)
        conversation = await self._here(self._keeper.ready)
        self._identity = replace(self._identity, level=level)
        if conversation.speaker is not None and conversation.speaker.stateless:
            conversation.speaker = self._identity.speaker(conversation.speaker.revision)
        else:
            await self._handshake_only("logging/setLevel", {"level": level})

    async def roots_changed(self) -> None:
        """Tell the server that the roots are others now; a stateless server asks for them each time anyway."""
        conversation = await self._here(self._keeper.ready)
        if not self._requesting.stateless:
            await self._here(conversation.tell, "notifications/roots/list_changed")

    async def shutdown(self) -> None:
        """Ask a handshake server to end the session, then leave it."""
        await self._here(self._keeper.ready)
        if self._requesting.stateless:
            raise self._requesting.located(NotOffered("shutdown is not part of this revision"), "shutdown")
        await self.request("shutdown")  # whose result is null
        await self.close()

    async def _handshake_only(self, method: str, params: dict[str, Any]) -> None:
        await self._here(self._keeper.ready)
        if self._requesting.stateless:
            error = NotOffered(f"{method} is not part of this revision").at(hint=_INSTEAD.get(method))
            raise self._requesting.located(error, method, params)
        await self._here(self._requesting.once, METHODS[method], params)

    async def request(
        self, method: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Any:
        """Any request at all, for extensions: the result as plain JSON. It is never repeated."""
        return await self._here(self._requesting.any, method, dict(params or {}), timeout)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Any notification at all, for extensions."""
        conversation = await self._here(self._keeper.ready)
        await self._here(conversation.tell, method, dict(params or {}))


_INSTEAD = {
    "resources/subscribe": "listen(uris=[...]) tells of changes in every revision",
    "resources/unsubscribe": "listen(uris=[...]) tells of changes in every revision",
}


def _options(
    timeout: float | None,
    total: float | None,
    progress: Progress | None,
    meta: Mapping[str, Any] | None,
    retry: bool | None,
) -> Options:
    if timeout is None and total is None and progress is None and meta is None and retry is None:
        return PLAIN
    check_times(timeout=timeout, total=total)
    expect_callable("progress", progress)
    expect("meta", meta, Mapping, "a dict")
    return Options(timeout=timeout, total=total, progress=progress, meta=meta, retry=retry)
