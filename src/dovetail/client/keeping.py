"""Keeping a conversation open: opened once for all who wait, opened again after a loss, closed from anywhere.

Here it is decided what may be sent a second time. A request that may already have run is repeated only if that is safe;
otherwise its caller is told that it was interrupted.
"""

import asyncio
import contextlib
import contextvars
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from dovetail.client.clock import Clock, Clocks, Progress
from dovetail.client.conversation import Conversation
from dovetail.errors import (
    CannotConnect,
    Disconnected,
    HttpError,
    Interrupted,
    MCPError,
    RateLimited,
    RequestTimeout,
    TransportError,
)
from dovetail.protocol.backoff import backoff
from dovetail.protocol.channel import Headers, step
from dovetail.protocol.limits import ClientLimits
from dovetail.wire.shape import Struct

# What a proxy or a busy server says when the same request may succeed a moment later.
TRANSIENT: Final = frozenset({429, 502, 503, 504})

_FIRST_WAIT: Final = 0.2
_LONGEST_WAIT: Final = 5.0
_ENDING: Final = 10.0  # more than it takes to end a process that will not be ended

Open = Callable[[], Any]


class Sending(Struct, frozen=True, kw_only=True):
    """How one request is sent."""

    idle: float
    total: float
    progress: Progress | None = None
    meta: Mapping[str, Any] | None = None
    safe: bool = False  # whether it may be sent again though it may have run


class Keeper:
    """The one conversation a client has at a time."""

    def __init__(self, name: str, open: Open, limits: ClientLimits) -> None:
        self._name = name
        self._open = open
        self._limits = limits
        self._current: Conversation | None = None
        self._opening: asyncio.Task[Conversation] | None = None
        self._ending: set[asyncio.Task[Conversation]] = set()  # openings given up, which may still have a child to end
        self._waiters = 0
        self._failures = 0
        self._not_before = 0.0
        self._closed = False
        # A connection belongs to the client, not to the request that happens to open it: what comes in on it must not
        # be taken for that request's.
        self._context = contextvars.copy_context()
        self._clocks: Clocks | None = None
        self.opened = 0  # how often a conversation has been opened

    @property
    def current(self) -> Conversation | None:
        """The conversation, if one is open."""
        found = self._current
        return found if found is not None and found.why_lost is None else None

    @property
    def clocks(self) -> Clocks:
        """The clocks of those who wait for a conversation to be opened, and of the opening itself."""
        if self._clocks is None or self._clocks.loop is not asyncio.get_running_loop():
            self._clocks = Clocks()
        return self._clocks

    async def ready(self, clock: Clock | None = None) -> Conversation:
        """An open conversation; all who wait for one share one attempt, each for as long as its clock allows."""
        found = self._current
        if found is not None and found.why_lost is None:
            return found
        if self._closed:
            raise self._shut()
        opening = self._opening
        if opening is None or opening.done():
            opening = self._opening = asyncio.get_running_loop().create_task(
                self._reopen(), context=self._context.copy()
            )
            opening.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await self._opened_by(opening, clock)
        except asyncio.CancelledError:
            if opening in self._ending:  # the loop may end with whoever was cancelled, and must not before the child
                await asyncio.wait([opening], timeout=_ENDING)
            raise

    async def _opened_by(self, opening: asyncio.Task[Conversation], clock: Clock | None) -> Conversation:
        self._waiters += 1
        if clock is not None:
            self.clocks.start(clock, clock)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if clock is not None and clock.is_why():  # the opening goes on, for whoever calls next
                raise RequestTimeout(f"{clock.verdict()}: the connection was still being opened") from None
            task = asyncio.current_task()
            if opening.cancelled() and task is not None and not task.cancelling():
                raise self._shut() from None  # it was not this task that was cancelled
            if self._waiters == 1 and self._opening is opening:
                self._give_up(opening)  # nobody else wants it
            raise
        finally:
            self._waiters -= 1
            if clock is not None:
                self.clocks.stop(clock)

    def _give_up(self, opening: asyncio.Task[Conversation]) -> None:
        self._opening = None
        if not opening.done():
            self._ending.add(opening)
            opening.add_done_callback(self._ending.discard)
            opening.cancel()

    def _shut(self) -> Disconnected:
        error = Disconnected("the client is closed").at(server=self._name, hint="open it again with connect()")
        error.sent = False
        return error

    async def _reopen(self) -> Conversation:
        loop = asyncio.get_running_loop()
        lost, self._current = self._current, None
        if lost is not None:
            with contextlib.suppress(MCPError):
                await lost.close()
        await asyncio.sleep(max(0.0, self._not_before - loop.time()))
        try:
            conversation = await self._open()
        except MCPError:
            self._failures += 1
            wait = backoff(self._limits.reconnect_after, self._failures - 1, _LONGEST_WAIT)
            self._not_before = loop.time() + wait
            raise
        self._failures = 0
        self._not_before = loop.time() + self._limits.reconnect_after
        self._current = conversation
        self.opened += 1
        return conversation

    async def request(self, method: str, params: Any, sending: Sending, headers: Headers = ()) -> Any:
        """The raw result of a request, through losses and busy moments where repeating is safe."""
        clock = Clock(sending.idle, sending.total, sending.progress)  # one for all attempts and what is between them
        attempt = 0
        while True:
            conversation = self._current
            try:
                if conversation is None or conversation.why_lost is not None:
                    conversation = await self.ready(clock)
                return await conversation.request(method, params, clock, meta=sending.meta, headers=headers)
            except (TransportError, RateLimited) as exc:
                attempt += 1
                wait = self._pause(exc, attempt, sending.safe)
                if wait is None or clock.leaves_less_than(wait):
                    raise _told(exc.at(server=self._name, step=step(method, params)), sending.safe) from exc.__cause__
            await asyncio.sleep(wait)

    def _pause(self, exc: MCPError, attempt: int, safe: bool) -> float | None:
        """How long to wait before the same request is sent again; None if it must not be."""
        if attempt > self._limits.retries or isinstance(exc, RequestTimeout) or self._closed:
            return None
        if isinstance(exc, Disconnected):
            return _again(attempt) if safe or not exc.sent else None
        if isinstance(exc, CannotConnect):
            return _again(attempt) if self.opened else None  # it was there before: it may be starting again
        if safe and (isinstance(exc, RateLimited) or exc.status in TRANSIENT):
            asked = exc.retry_after if isinstance(exc, RateLimited | HttpError) else None
            return _again(attempt) if asked is None else min(asked, _LONGEST_WAIT)
        return None

    async def close(self) -> None:
        """Leave the server; nothing is opened after this until `reopen`."""
        self._closed = True
        if not self._failures:
            self._not_before = 0.0  # whoever left on purpose may come back at once
        if self._opening is not None:
            self._give_up(self._opening)
        try:
            if self._ending:
                await asyncio.wait(self._ending)
        finally:
            if self._clocks is not None:
                self._clocks.close()
            current, self._current = self._current, None
            if current is not None:
                await current.close()

    def reopen(self) -> None:
        """Allow a closed client to be used again, at once: nothing was lost."""
        if self._closed:
            self._closed = False
            self._not_before = 0.0

    def abandon(self) -> None:
        """Forget the conversation: the event loop it lived on is gone, and everything on it."""
        self._current = self._opening = self._clocks = None
        self._ending.clear()
        self._waiters = 0


def _again(attempt: int) -> float:
    # Jitter, because many callers lose the same server at the same moment.
    return backoff(_FIRST_WAIT, attempt - 1, _LONGEST_WAIT) * random.uniform(0.5, 1.0)


def _told(exc: MCPError, safe: bool) -> MCPError:
    """A lost connection, told to the caller of a request that may have run."""
    if safe or not isinstance(exc, Disconnected) or not exc.sent or isinstance(exc, Interrupted):
        return exc
    return Interrupted(f"{exc.args[0]}; the request had been sent and may have run: it was not repeated").at(
        server=exc.server,
        step=exc.step,
        revision=exc.revision,
        exit_code=exc.exit_code,
        stderr=exc.stderr,
        hint=exc.hint
        or "look whether it took effect before calling again, or use call_tool(..., retry=True) if it may run twice",
    )
