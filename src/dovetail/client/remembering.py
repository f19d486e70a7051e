"""What a client takes from one conversation into the next: how the server is opened, and what it was asked to tell.

The era found out spares a server the question what it speaks; the log level and subscriptions of a handshake session
end with it, so they are asked for again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from dovetail.client.clock import DeadlineTimer, RequestDeadline
from dovetail.client.conversation import Connection
from dovetail.client.opening import ClientIdentity, ConnectionAttempt
from dovetail.errors import AuthError, CannotConnect, MCPError, PeerError, RequestTimeout, clip
from dovetail.protocol.channel import ClientTransport
from dovetail.protocol.limits import Timeouts
from dovetail.protocol.probe import Era, check_revision_and_era
from dovetail.wire.logs import LoggingLevel

log = logging.getLogger("dovetail")

# The eras of servers met before, by where they are: a server is asked once what it speaks, not at every opening.
_KNOWN_ERAS: dict[str, Era] = {}
_MAX_KNOWN_ERAS = 1024

CreateConnection = Callable[[ClientTransport], Connection]


class Connector:
    """Opens conversations with one server, each as the last one was left."""

    def __init__(
        self,
        create_transport: Callable[[], ClientTransport],
        create_connection: CreateConnection,
        identity: ClientIdentity,
        timeouts: Timeouts,
        *,
        key: str | None,
        revision: str | None,
        era: Era | None,
    ) -> None:
        check_revision_and_era(revision, era)
        self.identity = identity
        self.resource_subscriptions: set[str] = set()  # those that are no listener's
        self._create_transport = create_transport
        self._create_connection = create_connection
        self._timeouts = timeouts
        self._key = key if revision is None and era is None else None
        self._revision = revision
        self._era: Era | None = era

    async def open(self, deadlines: DeadlineTimer) -> Connection:
        """A conversation, ready for requests; one limit is over all it takes."""
        timeout = self._timeouts.initialize
        deadline = RequestDeadline(timeout, timeout)
        deadlines.start(deadline, deadline)
        try:
            connection = await self._connect(deadline)
        finally:
            deadlines.stop(deadline)
        try:
            await self._restore(connection, deadline)
        except BaseException:
            await asyncio.shield(connection.close())
            raise
        return connection

    async def _connect(self, deadline: RequestDeadline) -> Connection:
        key = self._key
        known_era = None if key is None else _KNOWN_ERAS.get(key)
        attempt = self._create_attempt(known_era or self._era, deadline)
        try:
            connection = await attempt.run()
        except MCPError as exc:
            if known_era is None or isinstance(exc, CannotConnect | AuthError):
                raise
            _KNOWN_ERAS.pop(key or "", None)  # it may have become another server
            if isinstance(exc, RequestTimeout):
                raise
            attempt = self._create_attempt(None, deadline)
            connection = await attempt.run()
        encoder = connection.encoder
        if key is not None and encoder is not None and attempt.is_certain and len(_KNOWN_ERAS) < _MAX_KNOWN_ERAS:
            _KNOWN_ERAS[key] = "stateless" if encoder.is_stateless else "handshake"
        return connection

    def _create_attempt(self, era: Era | None, deadline: RequestDeadline) -> ConnectionAttempt:
        return ConnectionAttempt(
            self._create_transport,
            self._create_connection,
            self.identity,
            self._timeouts,
            deadline,
            revision=self._revision,
            era=era,
        )

    async def _restore(self, connection: Connection, deadline: RequestDeadline) -> None:
        """A stateless request says by itself what it wants; a handshake session is told once."""
        if connection.encoder is None or connection.encoder.is_stateless:
            return
        if self.identity.log_level is not None and connection.server_capabilities.logging is not None:
            await self._request_logs(connection, self.identity.log_level, deadline)
        if self.resource_subscriptions:
            await connection.transport.wait_until_listening()
        for uri in sorted(self.resource_subscriptions):
            connection.subscriber_counts[uri] += 1
            try:
                await connection.request("resources/subscribe", {"uri": uri}, deadline)
            except PeerError as exc:
                log.warning("%s no longer tells when %s changes: %s", connection.name, clip(uri), clip(exc.message))

    async def _request_logs(self, connection: Connection, level: LoggingLevel, deadline: RequestDeadline) -> None:
        with contextlib.suppress(PeerError):  # without its logs the server is still of use
            await connection.request("logging/setLevel", {"level": level}, deadline)
