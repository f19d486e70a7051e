"""Connections of the HTTP+SSE transport of 2024 in a cluster. A POST can reach another worker than the event stream.

The ID of a connection contains the worker that has its stream. Every worker sends the messages of clients there.
"""

import os
import time
from typing import Final

from dovetail.cluster.sessions.caller_limits import StreamPlaces
from dovetail.cluster.sessions.sealed_session_id import hash_principal
from dovetail.protocol.http_checks import create_unavailable_refusal
from dovetail.protocol.interfaces.shared_state import Message, MessageReceiver, SharedStateUnavailable, SharedWorker
from dovetail.protocol.limits import ServerLimits
from dovetail.protocol.principal import Principal, SavedPrincipal, restore_principal, save_principal
from dovetail.protocol.sealer import Sealer, UnsealError
from dovetail.protocol.versioned_codec import VersionedCodec
from dovetail.wire.base import Struct

_KIND: Final = "sse-2024"
_KEY_BYTES: Final = 16


class ConnectionAddress(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The worker that has a connection, the name of the connection there, and its caller."""

    worker: str
    key: str
    principal_digest: str | None = None


class ForwardedMessage(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The message of a client, and who sent it. The body of the POST follows after a line break."""

    key: str
    principal: SavedPrincipal | None = None
    owner: str | None = None  # the principal as text
    expires_at: float | None = None  # when the credentials expire, in seconds since 1970


_addresses: Final = VersionedCodec(ConnectionAddress)
_heads: Final = VersionedCodec(ForwardedMessage)


class SSE2024Router:
    """Sends the messages of clients to the worker that has their event stream."""

    def __init__(self, cluster: SharedWorker, server_name: str, limits: ServerLimits, receive: MessageReceiver) -> None:
        self._cluster = cluster
        self._sealer = Sealer(cluster.secret_keys, purpose="HTTP+SSE connection")
        self._context = server_name.encode()
        self._lifetime = limits.session_lifetime
        self._receive = receive
        self.count_stream = StreamPlaces(cluster, limits.max_streams_per_principal).take
        self._has_handler = False

    def create_id(self, principal: Principal | None) -> tuple[str, str]:
        """Return a key for a new connection of this worker, and its ID for the client."""
        if not self._has_handler:
            self._has_handler = True
            self._cluster.add_handler(_KIND, self._handle_message)
        key = os.urandom(_KEY_BYTES).hex()
        address = ConnectionAddress(worker=self._cluster.name, key=key, principal_digest=hash_principal(principal))
        return key, self._sealer.seal_text(_addresses.encode(address), self._context, time.time() + self._lifetime)

    def read_id(self, id: str, principal: Principal | None) -> tuple[str, str] | None:
        """Return the worker and the key of a connection. Return None if it is not a connection of this caller."""
        try:
            address = _addresses.decode(self._sealer.open_text(id, self._context, time.time()))
        except UnsealError:
            return None
        if address is None or address.principal_digest != hash_principal(principal):
            return None
        return address.worker, address.key

    def is_own(self, worker: str) -> bool:
        """Return whether a name is that of this worker."""
        return worker == self._cluster.name

    async def forward(
        self, worker: str, key: str, principal: Principal | None, valid_for: float | None, body: bytes
    ) -> bool:
        """Send a message to the worker of a connection. Return False if this worker has ended.

        Messages for this worker also go through the back end, so that the messages of a client keep their order.
        """
        head = ForwardedMessage(
            key=key,
            principal=None if principal is None else save_principal(principal),
            owner=None if principal is None else str(principal),
            expires_at=None if valid_for is None else time.time() + valid_for,
        )
        try:
            return await self._cluster.state.send(worker, _KIND, _heads.encode(head) + b"\n" + body)
        except SharedStateUnavailable as exc:
            if self.is_own(worker):
                self._receive(key, principal, valid_for, body)
                return True
            raise create_unavailable_refusal(exc.retry_after) from None

    def _handle_message(self, message: Message) -> None:
        encoded_head, _, body = message.body.partition(b"\n")
        head = _heads.decode(encoded_head)
        if head is None:
            return  # A newer release has sent the message.
        principal = None if head.principal is None else restore_principal(head.principal, head.owner)
        valid_for = None if head.expires_at is None else max(0.0, head.expires_at - time.time())
        self._receive(head.key, principal, valid_for, body)
