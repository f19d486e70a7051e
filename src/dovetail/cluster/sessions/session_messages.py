"""Messages between the workers of a cluster about one session."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from dovetail.cluster.sessions.session_copies import SessionCopies
from dovetail.protocol.interfaces.shared_state import Message, SharedStateUnavailable, SharedWorker
from dovetail.protocol.versioned_codec import VersionedCodec
from dovetail.transports.http_server.sessions.handshake_session import HandshakeSession
from dovetail.wire.base import Struct
from dovetail.wire.jsonrpc import RequestId


class SessionMessage(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A message between workers about one session."""

    session: str  # the key of the session
    data: msgspec.Raw = msgspec.Raw(b"null")  # the message of the client
    record: bytes = b""  # the record of the session, with the version of its format
    id: RequestId = ""  # the ID of the request to cancel, or of the message to acknowledge
    version: int = 0  # the version of the record


RemoveHandler: TypeAlias = Callable[[], None]

_messages: Final = VersionedCodec(SessionMessage)
encode_message: Final = _messages.encode
decode_message: Final = _messages.decode


class SessionMessenger:
    """Sends messages about sessions to other workers, and passes their messages to handlers."""

    def __init__(self, cluster: SharedWorker, copies: SessionCopies) -> None:
        self._cluster = cluster
        self._copies = copies

    @property
    def worker(self) -> str:
        """Return the name of this worker."""
        return self._cluster.name

    def add_handler(self, kind: str, handler: Callable[[HandshakeSession, SessionMessage], None]) -> RemoveHandler:
        """Handle the messages of one kind about sessions of which this worker has a copy."""

        def receive(message: Message) -> None:
            body = decode_message(message.body)
            session = None if body is None else self._copies.get_by_key(body.session)
            if body is not None and session is not None:
                handler(session, body)

        return self._cluster.add_handler(kind, receive)

    async def send(self, worker: str, kind: str, message: SessionMessage) -> bool:
        """Send a message to one worker. Return False if this worker has ended.

        Raises:
            SharedStateUnavailable: The message cannot be sent now.
        """
        return await self._cluster.state.send(worker, kind, encode_message(message))

    async def send_to_others(self, kind: str, message: SessionMessage) -> None:
        """Send a message to all other workers, if possible.

        The change log is not used, because clients could fill it this way.
        """
        with contextlib.suppress(SharedStateUnavailable):
            workers = await self._cluster.state.list_workers()
            await asyncio.gather(*(self.try_send(worker, kind, message) for worker in workers - {self.worker}))

    async def try_send(self, worker: str, kind: str, message: SessionMessage) -> None:
        """Send a message to one worker, if possible."""
        with contextlib.suppress(SharedStateUnavailable):
            await self.send(worker, kind, message)
