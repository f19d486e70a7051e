"""Hearing of changes: the same call in both eras, taken up again whenever the connection was lost.

After such a gap everything listened to is told once more, because nobody knows what was missed.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from math import inf
from typing import Any, Literal, Self

from dovetail.client.clock import Clock
from dovetail.client.conversation import Conversation
from dovetail.client.keeping import TRANSIENT, Keeper
from dovetail.errors import (
    CannotConnect,
    CannotStart,
    Disconnected,
    HttpError,
    MCPError,
    MethodNotFound,
    NotMCP,
    NotOffered,
    PeerError,
    RequestTimeout,
    ResultError,
)
from dovetail.protocol.backoff import backoff
from dovetail.protocol.channel import Request
from dovetail.protocol.limits import ClientLimits
from dovetail.protocol.speaking import Speaker
from dovetail.protocol.topics import PROMPTS, RESOURCES, TOOLS, UPDATED, honoured, matcher
from dovetail.wire.incoming import body
from dovetail.wire.jsonrpc import Id
from dovetail.wire.meta import SUBSCRIPTION_ID
from dovetail.wire.shape import Params, Struct
from dovetail.wire.subscriptions import AcknowledgedParams, SubscriptionFilter

Kind = Literal["tools", "prompts", "resources", "resource"]

KINDS: dict[str, Kind] = {TOOLS: "tools", PROMPTS: "prompts", RESOURCES: "resources", UPDATED: "resource"}
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"

# What may be otherwise at the next attempt.
_PASSING = (Disconnected, CannotConnect, CannotStart, HttpError, RequestTimeout, NotMCP)


class Change(Struct, frozen=True):
    """Something changed: one of the lists, or the resource at `uri`."""

    kind: Kind
    uri: str | None = None
    missed: bool = False  # not heard from the server: the connection was lost, and it may have changed meanwhile


class Notice(Params):
    """Any notice of change."""

    uri: str | None = None


class Listening:
    """Changes as they happen: `async for change in ...`, within `async with` to know when it has begun."""

    def __init__(
        self,
        keeper: Keeper,
        wanted: SubscriptionFilter,
        limits: ClientLimits,
        patience: float,
        listeners: "set[Listening]",
        here: Callable[..., Awaitable[Any]],
        stale: Callable[[str], None],
    ) -> None:
        self._keeper = keeper
        self._wanted = wanted
        self._limits = limits
        self._patience = patience
        self._listeners = listeners
        self._here = here  # does something on the client's own loop
        self._stale = stale  # told which notices may have been missed
        self._matches = matcher(wanted)
        self._changes: dict[tuple[Kind, str | None], Change] = {}
        self._news = asyncio.Event()
        self._begun: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._failed: Exception | None = None
        self._id: Id | None = None
        self._silence: asyncio.Timeout | None = None  # runs until the server confirms
        self._since = inf  # when it did
        self._entered = False
        self._over = False
        self._leaving = False
        self._heard = 0
        self.honoured: SubscriptionFilter | None = None  # what the server agreed to

    # For the user

    async def __aenter__(self) -> Self:
        self._entered = True
        await self._here(self._begin)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def __aiter__(self) -> AsyncIterator[Change]:
        try:
            await self._here(self._begin)
            while (change := await self._here(self._next)) is not None:
                yield change
        finally:
            if not self._entered:
                await self.aclose()

    async def _next(self) -> Change | None:
        """The next change, waited for; None when it is over."""
        while not self._changes and not self._over:
            if self._failed is not None:
                raise self._failed
            self._news.clear()
            await self._news.wait()
        return self._changes.pop(next(iter(self._changes))) if self._changes else None

    async def aclose(self) -> None:
        """Stop listening."""
        await self._here(self._end)

    async def _end(self) -> None:
        task = self._stop()
        if task is not None:
            await asyncio.wait([task], timeout=self._patience)

    def leave(self) -> asyncio.Task[None] | None:
        """Stop because the client leaves the server, which then need not be told; what is left to wait for."""
        self._leaving = True
        return self._stop()

    def abandon(self) -> None:
        """It is over: the event loop it lived on is gone, and nobody there can be told."""
        self._over = True
        self._task = None

    def _stop(self) -> asyncio.Task[None] | None:
        self._over = True
        self._news.set()
        self._listeners.discard(self)
        task, self._task = self._task, None
        if task is None or task.done():
            return None
        task.cancel()
        return task

    # From one connection to the next

    async def _begin(self) -> None:
        if self._begun is None:
            loop = asyncio.get_running_loop()
            self._begun = loop.create_future()
            self._begun.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._listeners.add(self)
            self._task = loop.create_task(self._run())
        await asyncio.shield(self._begun)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        fruitless = 0
        while not self._over:
            heard, self._since = self._heard, inf
            why: MCPError | None = None
            try:
                await self._listen(await self._keeper.ready())
            except _PASSING as exc:
                if self.honoured is None or (isinstance(exc, HttpError) and exc.status not in TRANSIENT):
                    self._fail(exc)
                    return
                why = exc
            except MCPError as exc:
                self._fail(_not_offered(exc) if isinstance(exc, PeerError) else exc)
                return
            except Exception as exc:  # whoever waits for changes must not wait for a task that is no more
                self._fail(exc)
                return
            # A stream that lasted is no vain attempt: proxies end quiet ones every few minutes.
            lasted = loop.time() - self._since >= self._limits.reconnect_most
            fruitless = 0 if lasted or self._heard != heard else fruitless + 1
            if fruitless > self._limits.reconnects:
                error = Disconnected(f"the server ended the stream {fruitless} times without saying anything")
                error.__cause__ = why
                self._fail(error)
                return
            wait = backoff(self._limits.reconnect_after, fruitless, self._limits.reconnect_most)
            await asyncio.sleep(wait * random.uniform(1.0, 1.2))

    def _fail(self, exc: Exception) -> None:
        self._failed = exc
        self._news.set()
        if self._begun is not None and not self._begun.done():
            self._begun.set_exception(exc)

    # What is heard

    def hear(self, method: str, params: Any) -> None:
        """A notice came to the client; it may be for this listener."""
        try:
            if method == ACKNOWLEDGED:
                told = body(params, AcknowledgedParams, method)
                if (told.meta or {}).get(SUBSCRIPTION_ID) == self._id:
                    if self._silence is not None and not self._silence.expired():
                        self._silence.reschedule(None)
                    self._agreed(told.notifications)
                return
            notice = body(params, Notice, method)
        except ResultError:
            return
        id = (notice.meta or {}).get(SUBSCRIPTION_ID)
        if id == self._id if id is not None else self._matches(method, notice.uri):
            self._heard += 1
            self._note(Change(KINDS[method], notice.uri))

    def missed(self) -> None:
        """There was a gap in what was heard."""
        if self.honoured is not None:
            self._missed()

    def _agreed(self, agreed: SubscriptionFilter) -> None:
        again = self.honoured is not None
        self.honoured = agreed
        self._since = asyncio.get_running_loop().time()
        if self._begun is not None and not self._begun.done():
            self._begun.set_result(None)
        if again:
            self._missed()

    def _missed(self) -> None:
        for method, kind in KINDS.items():
            if self._matches(method, None):
                self._stale(method)
                self._note(Change(kind, missed=True))
        for uri in self._wanted.resource_subscriptions or ():
            self._stale(UPDATED)
            self._note(Change("resource", uri, missed=True))

    def _note(self, change: Change) -> None:
        """Those not yet taken are told once each, and the oldest give way."""
        if not change.missed or (change.kind, change.uri) not in self._changes:
            self._changes[change.kind, change.uri] = change  # what was heard says more than what may be
        if len(self._changes) > self._limits.waiting:
            del self._changes[next(iter(self._changes))]
        self._news.set()

    # One connection's worth of listening

    async def _listen(self, conversation: Conversation) -> None:
        if conversation.speaker is not None and conversation.speaker.stateless:
            await self._stream(conversation, conversation.speaker)
        else:
            await self._subscribe(conversation)

    async def _stream(self, conversation: Conversation, speaker: Speaker) -> None:
        method, params = "subscriptions/listen", {"notifications": self._wanted}
        self._id = id = conversation.next_id()
        request = Request(id, method, speaker.request(id, method, params), speaker.headers(method, params), True)
        try:
            # A server must say at once what it will tell of. spec: subscriptions#acknowledgment
            async with asyncio.timeout(self._patience) as self._silence:
                await conversation.exchange(request, Clock())
        except TimeoutError:
            why = f"the server did not confirm within {self._patience:g} s that it tells of changes"
            raise RequestTimeout(why).at(server=conversation.name, step=method) from None
        finally:
            self._silence = None

    async def _subscribe(self, conversation: Conversation) -> None:
        """A handshake server tells of its lists unasked, of a resource when it was asked to."""
        agreed = honoured(self._wanted, conversation.capabilities)
        uris = agreed.resource_subscriptions or []
        if self._wanted.resource_subscriptions and not uris:
            raise NotOffered("the server does not offer to tell when a resource changes").at(server=conversation.name)
        if not await conversation.channel.hearing():
            raise NotOffered("the server has no stream on which it could tell of changes").at(server=conversation.name)
        asked: list[str] = []
        try:
            for uri in uris:
                conversation.subscribed[uri] += 1
                asked.append(uri)
                await self._say(conversation, "resources/subscribe", uri)
            self._agreed(agreed)
            await conversation.gone.wait()
        finally:
            for uri in asked:
                conversation.subscribed[uri] -= 1
                if conversation.why_lost is None and conversation.subscribed[uri] <= 0 and not self._leaving:
                    with contextlib.suppress(MCPError):
                        await self._say(conversation, "resources/unsubscribe", uri)

    async def _say(self, conversation: Conversation, method: str, uri: str) -> None:
        await conversation.request(method, {"uri": uri}, Clock(self._patience, self._patience))


def _not_offered(exc: PeerError) -> MCPError:
    if exc.code != MethodNotFound.code:
        return exc
    return NotOffered("the server does not offer to tell of changes").at(server=exc.server, step=exc.step)
