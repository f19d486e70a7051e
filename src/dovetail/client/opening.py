"""Opening a conversation: reach the server, find out what it speaks, agree on a revision.

Drives the pure machine of `protocol.probe`. A server that stays silent is tried the older way beside the newer one, so
that a slow start is never taken for an answer; one that dies of the question is started again and not asked.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from dovetail.client.clock import Clock
from dovetail.client.conversation import Conversation
from dovetail.errors import (
    CannotStart,
    Disconnected,
    HttpError,
    MCPError,
    NotMCP,
    PeerError,
    RequestTimeout,
    ResultError,
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
        *,
        revision: str | None,
        era: Era | None,
    ) -> None:
        self._dial = dial
        self._converse = converse
        self._identity = identity
        self._timeouts = timeouts
        self._probe = Probe(revision, era)
        self._loop = asyncio.get_running_loop()
        self._conversation = converse(dial())
        self._died: Disconnected | None = None  # when it was asked what it speaks

    async def run(self) -> Conversation:
        """An open conversation, or one exception that says why not; nothing is left behind then."""
        try:
            await self._reach()
            while self._probe.send is not None:
                await (self._discover() if self._probe.send == DISCOVER else self._initialize())
            return self._conversation
        except BaseException as exc:
            await asyncio.shield(self._abandon())
            if isinstance(exc, Disconnected):
                exc.sent = False  # what it was opened for was not
            if isinstance(exc, MCPError):
                raise _explained(exc.at(server=self._conversation.name, step=self._probe.send)) from exc.__cause__
            raise

    async def _reach(self) -> None:
        try:
            async with asyncio.timeout(self._timeouts.initialize):
                await self._conversation.channel.open(self._conversation)
        except TimeoutError:
            raise RequestTimeout(f"the server was not reached within {self._timeouts.initialize:g} s") from None

    async def _afresh(self, channel: Channel) -> None:
        """Give up the conversation for another."""
        await self._abandon()
        self._conversation = self._converse(channel)
        await self._reach()

    async def _abandon(self) -> None:
        with contextlib.suppress(MCPError):  # what went wrong before is what matters
            await self._conversation.close()

    # The stateless era

    async def _discover(self) -> None:
        probe = self._probe
        asking = self._loop.create_task(self._ask(DISCOVER))
        try:
            if probe.handshake_too and not self._conversation.channel.mirrors:
                await asyncio.wait([asking], timeout=self._timeouts.probe)
                if not asking.done():
                    await self._race(asking)
                    return
            self._discovered(await asking)
        except PeerError as exc:
            if not probe.refused(exc.code, exc.data):
                raise
        except (HttpError, NotMCP, ResultError) as exc:
            if exc.status in _NOT_THE_SERVER or not probe.handshake_too:
                raise
            probe.fall_back()
        except Disconnected as exc:
            if not probe.handshake_too:
                raise
            self._died = exc
            probe.fall_back()  # it may have died of the question
            await self._afresh(self._dial())
        finally:
            asking.cancel()

    def _discovered(self, raw: Any) -> None:
        result = body(raw, DiscoverResult, DISCOVER)
        self._probe.discovered(result)
        if self._probe.send is None:
            info = _implementation((result.meta or {}).get(SERVER_INFO))
            self._settle(result, info)

    async def _race(self, discovering: "asyncio.Future[Any]") -> None:
        """Both ways at once: whichever the server understands is the one."""
        self._probe.fall_back()
        opening = self._loop.create_task(self._initialize())
        try:
            await asyncio.wait([discovering, opening], return_when=asyncio.FIRST_COMPLETED)
            if opening.done() and opening.exception() is not None:
                await asyncio.wait([discovering])
            if discovering.done() and discovering.exception() is None:
                self._discovered(discovering.result())
            else:
                await opening
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
        if method == DISCOVER:
            speaker = self._identity.speaker(revision)
            request = Request(id, method, speaker.request(id, method, {}), speaker.headers(method, {}), stateless=True)
        else:
            client, capabilities = self._identity.client, self._identity.handshake or self._identity.capabilities
            request = Request(id, method, opening(revision, client, capabilities, id))
        limit = self._timeouts.initialize
        return await self._conversation.exchange(request, Clock(limit, limit, None))


def _implementation(given: Any) -> Implementation | None:
    try:
        return Implementation(name=str(given["name"]), version=str(given["version"]), title=given.get("title"))
    except (TypeError, KeyError, AttributeError):
        return None


def _explained(exc: MCPError) -> MCPError:
    if isinstance(exc, Disconnected) and exc.exit_code is not None:
        return CannotStart(f"the server ended with exit code {exc.exit_code} before it could be used").at(
            server=exc.server, step=exc.step, exit_code=exc.exit_code, stderr=exc.stderr, hint=exc.hint
        )
    return exc
