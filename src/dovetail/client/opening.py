"""Opening a conversation: reach the server, find out what it speaks, agree on a revision.

Drives the pure machine of `protocol.probe`. A server that stays silent is tried the older way beside the newer one, so
that a slow start is never taken for an answer; one that dies of the question is started again and not asked.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final

from dovetail.client.clock import Clock
from dovetail.client.conversation import Conversation
from dovetail.errors import (
    CannotStart,
    Disconnected,
    HttpError,
    InternalError,
    MCPError,
    MethodNotFound,
    NotMCP,
    PeerError,
    RequestTimeout,
    ResultError,
    clip,
)
from dovetail.protocol.channel import Channel, Request
from dovetail.protocol.limits import Timeouts
from dovetail.protocol.probe import DISCOVER, INITIALIZE, Era, Probe
from dovetail.protocol.speaking import Speaker, opening
from dovetail.wire.incoming import body
from dovetail.wire.lifecycle import (
    ClientCapabilities,
    DiscoverResult,
    Implementation,
    InitializeResult,
    RootsCapability,
)
from dovetail.wire.logs import LoggingLevel
from dovetail.wire.meta import SERVER_INFO
from dovetail.wire.revisions import stateless
from dovetail.wire.shape import Struct, replace

log = logging.getLogger("dovetail")

# What a server of an older transport answers to a POST it does not expect. spec: streamable-http#backward-compatibility
_OLDER = frozenset({400, 404, 405})
# What stands before a server, or is wrong with this caller, says nothing about what the server speaks.
_NOT_THE_SERVER = frozenset({407, 408, 429, 502, 503, 504})


class Identity(Struct, frozen=True, kw_only=True):
    """Who this client says it is."""

    client: Implementation
    capabilities: ClientCapabilities
    handshake: ClientCapabilities | None = None  # for servers told once for all, where others than this client ask too
    level: LoggingLevel | None = None

    def speaker(self, revision: str) -> Speaker:
        """Its way of speaking a revision; a stateless server is told nothing of roots, it asks."""
        capabilities = self.capabilities
        if stateless(revision) and capabilities.roots is not None:
            capabilities = replace(capabilities, roots=RootsCapability())
        return Speaker(revision, self.client, capabilities, self.level)


class Opening:
    """One attempt to open a conversation."""

    def __init__(
        self,
        dial: Callable[[], Channel],
        converse: Callable[[Channel], Conversation],
        identity: Identity,
        timeouts: Timeouts,
        clock: Clock,
        *,
        revision: str | None,
        era: Era | None,
    ) -> None:
        self._dial = dial
        self._converse = converse
        self._identity = identity
        self._timeouts = timeouts
        self._clock = clock
        self._probe = Probe(revision, era)
        self._loop = asyncio.get_running_loop()
        self._conversation = converse(dial())
        self._died: Disconnected | None = None  # when it was asked what it speaks
        self._spoken = False  # a handshake was begun on this connection: what follows must be of its era
        self.certain = True  # whether what was found out is all the server speaks

    async def run(self) -> Conversation:
        """An open conversation, or one exception that says why not; nothing is left behind then."""
        try:
            await self._conversation.channel.open(self._conversation)
            while self._probe.send is not None:
                if self._probe.send == INITIALIZE:
                    await self._initialize()
                    continue
                if self._spoken and not self._conversation.channel.mirrors:
                    self._probe.insist()
                    await self._afresh(self._dial())
                await self._discover()
            return self._conversation
        except BaseException as caught:
            exc = self._timed_out(caught)
            await asyncio.shield(self._abandon())
            if isinstance(exc, Disconnected):
                exc.sent = False  # what it was opened for was not
            if isinstance(exc, MCPError):
                located = exc.at(server=self._conversation.name, step=self._probe.send)
                raise _explained(located, self._conversation) from exc.__cause__
            raise

    def _timed_out(self, exc: BaseException) -> BaseException:
        """What ended the opening: if that was its own clock, the exception that says so."""
        if not isinstance(exc, asyncio.CancelledError) or not self._clock.is_why():
            return exc
        late = RequestTimeout(f"the server was not ready within {self._timeouts.initialize:g} s")
        return late.at(**self._conversation.channel.facts())

    async def _afresh(self, channel: Channel) -> None:
        """Give up the conversation for another."""
        await self._abandon()
        self._conversation = self._converse(channel)
        self._spoken = False
        await self._conversation.channel.open(self._conversation)

    async def _abandon(self) -> None:
        with contextlib.suppress(MCPError):  # what went wrong before is what matters
            await self._conversation.close()

    # The stateless era

    async def _discover(self) -> None:
        asking = self._loop.create_task(self._ask(DISCOVER))
        try:
            if self._probe.handshake_too and not self._conversation.channel.mirrors:
                await asyncio.wait([asking], timeout=self._timeouts.probe)
                if not asking.done():
                    await self._race(asking)
                    return
            await self._answered(asking)
        except Disconnected as exc:
            if not self._probe.handshake_too:
                raise
            self._died = exc
            self._probe.fall_back()  # it may have died of the question
            await self._afresh(self._dial())
        finally:
            asking.cancel()

    async def _answered(self, asking: "asyncio.Future[Any]") -> None:
        try:
            result = body(await asking, DiscoverResult, DISCOVER)
            self._probe.discovered(result)
            if self._probe.send is None:
                self._settle(result, _implementation((result.meta or {}).get(SERVER_INFO)))
        except PeerError as exc:
            if not self._probe.refused(exc.code, exc.data):
                raise
            if exc.code == InternalError.code:  # as any refusal, but perhaps not meant as one
                told = "%s failed to say what it speaks (%s), so an older revision is tried"
                log.warning(told, self._conversation.name, clip(exc.message, 200))
        except (HttpError, NotMCP, ResultError) as exc:
            if exc.status in _NOT_THE_SERVER or not self._probe.handshake_too:
                raise
            self._probe.fall_back()

    async def _race(self, discovering: "asyncio.Future[Any]") -> None:
        """Both ways at once. A session that opens is the one, whatever else the server may speak: a connection is of
        one era. One that does not is given up for the other way, on a connection of its own.
        """
        self._probe.fall_back()
        opening = self._loop.create_task(self._initialize())
        try:
            await asyncio.wait([discovering, opening], return_when=asyncio.FIRST_COMPLETED)
            if opening.done() and opening.exception() is not None:
                await asyncio.wait([discovering])
            elif not opening.done():
                await asyncio.wait([opening], timeout=self._timeouts.probe if _well(discovering) else None)
            if not _well(discovering):
                await opening
            elif not _well(opening):
                self._probe.discovered(body(discovering.result(), DiscoverResult, DISCOVER), settles=False)
            else:
                self.certain = self._probe.send is not None
        finally:
            discovering.cancel()
            opening.cancel()
            await asyncio.wait([discovering, opening])

    # The handshake era

    async def _initialize(self) -> None:
        try:
            raw = await self._ask(INITIALIZE)
        except (PeerError, HttpError, NotMCP) as exc:
            if isinstance(exc, PeerError) and self._probe.counter_offered(exc.data):
                return
            if isinstance(exc, PeerError) and self._died is not None:
                raise self._died from None  # not of the question: it does not know the older one
            older = self._conversation.channel.older() if exc.status in _OLDER else None
            if older is None:
                raise
            await self._by_older(older, exc)
            return
        result = body(raw, InitializeResult, INITIALIZE)
        self._probe.initialized(result.protocol_version)
        self._settle(result, result.server_info)
        await self._conversation.tell("notifications/initialized")
        await self._conversation.channel.settled(result.protocol_version)

    async def _by_older(self, older: Channel, first: MCPError) -> None:
        try:
            await self._afresh(older)
        except MCPError:
            raise first from None  # what the newer transport said is what a user expects to read

    def _settle(self, result: DiscoverResult | InitializeResult, server: Implementation | None) -> None:
        conversation = self._conversation
        conversation.speaker = self._identity.speaker(self._probe.revision)
        conversation.capabilities = result.capabilities
        conversation.instructions = result.instructions
        conversation.server = server

    async def _ask(self, method: str) -> Any:
        id = self._conversation.next_id()
        revision = self._probe.revision
        self._spoken = self._spoken or method == INITIALIZE
        if method == DISCOVER:
            speaker = self._identity.speaker(revision)
            request = Request(id, method, speaker.request(id, method, {}), speaker.headers(method, {}), stateless=True)
        else:
            client, capabilities = self._identity.client, self._identity.handshake or self._identity.capabilities
            request = Request(id, method, opening(revision, client, capabilities, id))
        return await self._conversation.exchange(request, Clock())


def _well(task: "asyncio.Future[Any]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _implementation(given: Any) -> Implementation | None:
    try:
        return Implementation(name=str(given["name"]), version=str(given["version"]), title=given.get("title"))
    except (TypeError, KeyError, AttributeError):
        return None


_ONLY_MESSAGES: Final = "is it an MCP server? If so, its stdout must carry nothing but messages: let it print to stderr"


def _doubt(conversation: Conversation) -> str:
    """What to ask of something that says what is no message."""
    if (conversation.first_junk or "").startswith("HTTP/"):
        return "it speaks HTTP: is its address an http:// one?"
    return _ONLY_MESSAGES if "exit_code" in conversation.channel.facts() else "is it an MCP server?"


def _explained(exc: MCPError, conversation: Conversation) -> MCPError:
    if isinstance(exc, Disconnected) and exc.exit_code is not None:
        exc = CannotStart(f"{exc.args[0]} before it could be used").at(
            server=exc.server, step=exc.step, exit_code=exc.exit_code, stderr=exc.stderr, hint=exc.hint
        )
    if isinstance(exc, CannotStart | Disconnected | RequestTimeout) and conversation.first_junk is not None:
        exc.args = (f"{exc.args[0]}; it wrote {clip(conversation.first_junk, 200)!r}, which is no message",)
        exc.at(hint=_doubt(conversation))
    if isinstance(exc, RequestTimeout):
        exc.at(hint="is it an MCP server? If it needs longer to start, give timeouts=Timeouts(initialize=...)")
    if isinstance(exc, PeerError) and exc.code == MethodNotFound.code:
        exc.at(hint="is it an MCP server? It knows no way to begin a conversation")
    return exc.at(hint=conversation.channel.advice()) if isinstance(exc, CannotStart) else exc
