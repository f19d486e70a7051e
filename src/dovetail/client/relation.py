"""A client's relation with its server over all conversations: begun from any task, ended from any, told of changes.

Knows no transport: it is given a function that makes a channel. May be opened in one task and closed in another, used
by many tasks, and called from the loops of other threads; its work is done on the loop it was opened on.
"""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Self, TypeVar

from dovetail.client.answering import EVERYTHING, Answering, ElicitHandler, Relay, RootsGiven, SampleHandler
from dovetail.client.conversation import Conversation
from dovetail.client.keeping import Keeper
from dovetail.client.listening import ACKNOWLEDGED, KINDS, Listening
from dovetail.client.mailbox import Mailbox
from dovetail.client.opening import Identity
from dovetail.client.options import check_level, check_middleware, check_roots, expect, expect_callable
from dovetail.client.remembering import Remembering
from dovetail.client.requesting import Requesting
from dovetail.errors import ResultError, TransportError
from dovetail.protocol.around import Middleware, checked
from dovetail.protocol.channel import Channel
from dovetail.protocol.exchange import Caller
from dovetail.protocol.limits import ClientLimits, Timeouts
from dovetail.protocol.probe import Era
from dovetail.protocol.recording import Tap
from dovetail.protocol.stats import ClientStats
from dovetail.wire.elicitation import ElicitationCompleteParams
from dovetail.wire.incoming import body, plain
from dovetail.wire.lifecycle import ClientCapabilities, Implementation, ServerCapabilities
from dovetail.wire.logs import LoggingLevel, LoggingMessageParams
from dovetail.wire.shape import replace

T = TypeVar("T")

VISITED = "notifications/elicitation/complete"


class Relation:
    """One server, over all conversations with it."""

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
        expect("cache", cache, bool, "True or False")
        expect("check_results", check_results, bool, "True or False")
        self.name = name
        self.timeouts = timeouts or Timeouts()
        self.limits = limits or ClientLimits()
        self.log_relay: Callable[[dict[str, Any]], None] | None = None
        self.taps: list[Tap] = []  # told of every message, as long as they stand here
        # Told when a connection is lost, with the reason, and with None when one is open.
        self.on_connection: Callable[[TransportError | None], None] | None = None
        self._on_log = on_log
        self._answering = Answering(elicit=elicit, elicit_url=elicit_url, sample=sample, roots=roots)
        extra = capabilities or ClientCapabilities()
        identity = Identity(
            client=client,
            capabilities=replace(
                self._answering.capabilities(), experimental=extra.experimental, extensions=extra.extensions
            ),
            level=log_level or ("info" if on_log is not None else None),
        )
        self._remembering = Remembering(
            dial, self._converse, identity, self.timeouts, key=key, revision=revision, era=era
        )
        self._mailbox = Mailbox(self.limits.waiting)
        self._listeners: set[Listening] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Task[None] | None = None
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

    def _relaying(
        self,
        questions: Relay,
        logs: Callable[[dict[str, Any]], None],
        own: Callable[[], bool] | None,
        *,
        announced: bool,
    ) -> None:
        self._answering.relay = questions
        if self._on_log is None or own is not None:
            self.log_relay = logs
        identity = self._remembering.identity
        if own is not None:
            self._answering.own = own
            if announced:
                level = identity.level or "info"
                self._remembering.identity = replace(identity, level=level, handshake=EVERYTHING)
            return
        level = identity.level or ("info" if self._on_log is None else None)
        given = identity.capabilities
        told = self._answering.capabilities()
        self._remembering.identity = replace(
            identity,
            level=level,
            capabilities=replace(told, experimental=given.experimental, extensions=given.extensions),
        )

    def _caller(self) -> Caller:
        return Caller(
            self.revision or "",
            self._requesting.stateless,
            self._remembering.identity.capabilities,
            client=self._remembering.identity.client,
        )

    # Opening and closing

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Open the conversation now; otherwise the first request does."""
        while self._closing is not None:  # then the loop is forgotten, and so it may be another
            await self._here(self._closed)
        self._keeper.reopen()
        await self._here(self._keeper.ready)

    async def close(self) -> None:
        """Leave the server. From any task or thread, as often as you like; `connect` opens it again."""
        await self._here(self._leave)

    async def _closed(self) -> None:
        if self._closing is not None:
            await asyncio.wait([self._closing])

    async def _leave(self) -> None:
        """All who close share one closing; who is cancelled meanwhile hastens it."""
        closing = self._closing
        if closing is None:
            closing = self._closing = asyncio.get_running_loop().create_task(self._close())
            closing.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            await asyncio.sleep(0)  # so that it has begun, and goes on to its end also when it is cancelled
            await asyncio.wait([closing])
        except asyncio.CancelledError:
            if not closing.cancelling():
                closing.cancel()
                await asyncio.wait([closing], timeout=self.timeouts.close)
            raise
        if not closing.cancelled():
            closing.result()

    async def _close(self) -> None:
        try:
            tasks = [task for listening in tuple(self._listeners) if (task := listening.leave()) is not None]
            if tasks:
                await asyncio.wait(tasks, timeout=self.timeouts.close)
        finally:
            try:
                await self._keeper.close()
            finally:
                self._mailbox.close()
                self._requesting.forget()
                self._loop = self._closing = None

    def _here(self, work: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> Awaitable[T]:
        """Do something on the loop this client lives on. Not a coroutine: that would be one more on every road."""
        loop = asyncio.get_running_loop()
        process = os.getpid()
        if self._loop is None or self._loop.is_closed() or self._process != process:
            if self._loop is not None:
                self._abandon()
            self._loop, self._process = loop, process
        if self._loop is loop:
            return work(*args)
        if not self._loop.is_running():
            raise RuntimeError("this client was opened on another event loop, which is not running; close it there")
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(*args), self._loop))

    def _abandon(self) -> None:
        """Forget everything that lived on an event loop which is gone."""
        self._keeper.abandon()
        self._mailbox.abandon()
        for listening in self._listeners:
            listening.abandon()
        self._listeners.clear()
        self._requesting.forget()
        self._closing = None

    async def _open(self) -> Conversation:
        conversation = await self._remembering.open(self._keeper.clocks)
        self._requesting.renew()
        self._opened = conversation
        if self.on_connection is not None:
            self.on_connection(None)
        return conversation

    def _lost(self, conversation: Conversation) -> None:
        if self.on_connection is not None and conversation is self._opened:
            self.on_connection(conversation.why_lost)

    def _converse(self, channel: Channel) -> Conversation:
        return Conversation(
            channel,
            self.name,
            self._answering,
            self._mailbox,
            questions=self.limits.questions,
            heard=self._heard,
            missed=self._missed,
            waiting=self._keeper.clocks,
            taps=self.taps,
            on_lost=self._lost,
        )

    def _heard(self, method: str, params: Any) -> None:
        """A notification that belongs to no request of its own."""
        if method in KINDS or method == ACKNOWLEDGED:
            self._requesting.heard(method)
            for listening in tuple(self._listeners):
                listening.hear(method, params)
        elif method == VISITED:
            with contextlib.suppress(ResultError):
                self._requesting.visiting.over(body(params, ElicitationCompleteParams, method).elicitation_id)
        elif method == "notifications/message":
            if self.log_relay is not None:
                self.log_relay(plain(params))
            if self._on_log is not None:
                with contextlib.suppress(ResultError):
                    self._mailbox.call(self._on_log, body(params, LoggingMessageParams, method))

    def _missed(self) -> None:
        """There was a gap: whatever the server tells of unasked may have changed."""
        for method in KINDS:
            self._requesting.heard(method)
        for listening in tuple(self._listeners):
            listening.missed()

    # What is known of the server

    def stats(self) -> ClientStats:
        """Return what is open or running now. Any thread may call this. All counts are 0 when nothing is left."""
        current = self._keeper.current
        return ClientStats(
            connections=0 if current is None else 1,
            running_requests=0 if current is None else current.running,
            open_questions=self._answering.open,
            subscriptions=len(self._listeners),
            queued_callbacks=self._mailbox.queued,
        )

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

    @property
    def left_out(self) -> list[str]:
        """What is missing from the lists read so far, since it was malformed, and why."""
        return self._requesting.unlisted.told()
