"""What a client takes from one conversation into the next: how the server is opened, and what it was asked to tell.

The era found out spares a server the question what it speaks; the log level and subscriptions of a handshake session
end with it, so they are asked for again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from dovetail.client.clock import Clock, Clocks
from dovetail.client.conversation import Conversation
from dovetail.client.opening import Identity, Opening
from dovetail.errors import AuthError, CannotConnect, MCPError, PeerError, RequestTimeout, clip
from dovetail.protocol.channel import Channel
from dovetail.protocol.limits import Timeouts
from dovetail.protocol.probe import Era, check_wishes
from dovetail.wire.logs import LoggingLevel

log = logging.getLogger("dovetail")

# The eras of servers met before, by where they are: a server is asked once what it speaks, not at every opening.
_ERAS: dict[str, Era] = {}
_REMEMBERED = 1024

Converse = Callable[[Channel], Conversation]


class Remembering:
    """Opens conversations with one server, each as the last one was left."""

    def __init__(
        self,
        dial: Callable[[], Channel],
        converse: Converse,
        identity: Identity,
        timeouts: Timeouts,
        *,
        key: str | None,
        revision: str | None,
        era: Era | None,
    ) -> None:
        check_wishes(revision, era)
        self.identity = identity
        self.subscriptions: set[str] = set()  # those that are no listener's
        self._dial = dial
        self._converse = converse
        self._timeouts = timeouts
        self._key = key if revision is None and era is None else None
        self._revision = revision
        self._era: Era | None = era

    async def open(self, clocks: Clocks) -> Conversation:
        """A conversation, ready for requests; one limit is over all it takes."""
        limit = self._timeouts.initialize
        clock = Clock(limit, limit)
        clocks.start(clock, clock)
        try:
            conversation = await self._met(clock)
        finally:
            clocks.stop(clock)
        try:
            await self._restore(conversation, clock)
        except BaseException:
            await asyncio.shield(conversation.close())
            raise
        return conversation

    async def _met(self, clock: Clock) -> Conversation:
        key = self._key
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
        return Opening(
            self._dial, self._converse, self.identity, self._timeouts, clock, revision=self._revision, era=era
        )

    async def _restore(self, conversation: Conversation, clock: Clock) -> None:
        """A stateless request says by itself what it wants; a handshake session is told once."""
        if conversation.speaker is None or conversation.speaker.stateless:
            return
        if self.identity.level is not None and conversation.capabilities.logging is not None:
            await self._ask_for_logs(conversation, self.identity.level, clock)
        if self.subscriptions:
            await conversation.channel.hearing()
        for uri in sorted(self.subscriptions):
            conversation.subscribed[uri] += 1
            try:
                await conversation.request("resources/subscribe", {"uri": uri}, clock)
            except PeerError as exc:
                log.warning("%s no longer tells when %s changes: %s", conversation.name, clip(uri), clip(exc.message))

    async def _ask_for_logs(self, conversation: Conversation, level: LoggingLevel, clock: Clock) -> None:
        with contextlib.suppress(PeerError):  # without its logs the server is still of use
            await conversation.request("logging/setLevel", {"level": level}, clock)
