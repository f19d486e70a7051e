"""The GET stream of a session in a cluster. It sends the changes of all workers, and notifications for the session.

Event IDs are positions in the change log of the cluster. Any worker can therefore resume the stream, and send what the
client has missed, each change once.
"""

import os
from collections.abc import Iterable
from typing import Final

from dovetail.cluster.change_messages import CHANGE, SESSION_NOTICE, read_change, read_session_notice
from dovetail.eager_tasks import EagerTaskStarter
from dovetail.protocol import sse
from dovetail.protocol.exchange import Service
from dovetail.protocol.handshake import encode_change
from dovetail.protocol.interfaces.shared_state import Message, is_later_cursor
from dovetail.protocol.principal import Principal
from dovetail.protocol.subscription_filter import EVERYTHING, RESOURCE_UPDATED, get_declared_list_methods
from dovetail.transports.http1.server_request import Send
from dovetail.transports.http_server.http_request import EndpointRequest
from dovetail.transports.http_server.sessions.handshake_session import HandshakeSession
from dovetail.transports.http_server.streams.shared_timer import SharedTimer
from dovetail.transports.http_server.streams.stream_response import StreamResponse
from dovetail.wire.base import Struct

_ID_PREFIX: Final = "c-"  # Event IDs of replies start with the name of a worker, which has no hyphen.
_MAX_EARLY_CHANGES: Final = 1000
_MAX_NOTIFICATIONS: Final = 16  # If a client does not read, the newest notifications for its session are kept.


def build_event_id(cursor: str) -> str:
    """Return the event ID for a position in the change log."""
    return _ID_PREFIX + cursor


def parse_event_id(event_id: str) -> str | None:
    """Return the position in the change log that an event ID names. Return None if the ID belongs to a reply."""
    return event_id.removeprefix(_ID_PREFIX) if event_id.startswith(_ID_PREFIX) else None


class _Notice(Struct):
    method: str
    uri: str | None
    cursor: str | None  # the position in the change log, or None if the log was not available
    notification: str | None = None  # the notification for the session, or None for a change


class NoticeStream:
    """The open GET stream of a session at this worker."""

    def __init__(
        self,
        session: HandshakeSession,
        service: Service,
        principal: Principal | None,
        send: Send,
        keep_alive: SharedTimer,
        starter: EagerTaskStarter,
        worker: str,
        endpoint: str,
    ) -> None:
        self.id = f"{endpoint}.{os.urandom(8).hex()}"
        self.session = session
        self._service = service
        self._principal = principal  # the caller that opened the stream
        self._own_worker = worker
        self._pending: dict[tuple[str, str | None], _Notice] = {}  # the notices to send. The same change waits once
        # Changes that were sent during an outage. The log delivers them again.
        self._early_changes: set[tuple[str, str | None]] = set()
        # While the stream reads the log, it keeps new messages here.
        self._buffer: list[Message] | None = []
        self._heard = ""  # the position up to which the stream has received all messages
        self._sent = ""  # the position in the last event ID that was sent
        self._response = StreamResponse(send, keep_alive, starter, self._send_pending, self._encode_comment)

    @property
    def position(self) -> str:
        """Return the position in the change log up to which the client has received all changes."""
        return self._sent if self._pending else self._heard

    def close(self) -> None:
        """End the response."""
        self._response.close()

    def start_at(self, cursor: str) -> None:
        """Set the position in the change log up to which the client knows all changes."""
        self._heard = self._sent = cursor

    def load(self, messages: Iterable[Message] | None) -> None:
        """Add the messages that the client has missed, or None if they are not in the change log any more."""
        buffered, self._buffer = self._buffer or [], None
        if messages is None:
            self._add_everything(self._heard)
        else:
            for message in messages:
                if message.kind in (CHANGE, SESSION_NOTICE):
                    self._handle(message)
        for message in buffered:
            self.receive(message)
        self._response.wake()

    def receive(self, message: Message) -> None:
        """Handle a message of the change log."""
        if self._buffer is not None:
            self._buffer.append(message)
        elif message.cursor is None or is_later_cursor(message.cursor, self._heard):
            # This worker may receive messages later than the worker from which the client already has them.
            self._handle(message)
            if self._pending:
                self._response.wake()

    def _handle(self, message: Message) -> None:
        if message.kind == SESSION_NOTICE:
            self._handle_session_notice(message)
        else:
            self._handle_change(message)
        if message.cursor is not None:
            self._heard = message.cursor

    def _handle_change(self, message: Message) -> None:
        change = read_change(message)
        key = change.method, change.uri
        if change.method == EVERYTHING:
            self._early_changes.clear()  # This message may replace the messages about these changes.
            self._add_everything(message.cursor)
            return
        if message.sender == self._own_worker:
            if message.cursor is None:
                self._add_early(key)
            elif key in self._early_changes:
                self._early_changes.discard(key)
                return
        if self.session.handshake.is_subscribed(change.method, change.uri):
            self._add(_Notice(change.method, change.uri, message.cursor), key)

    def _handle_session_notice(self, message: Message) -> None:
        notice = read_session_notice(message)
        handshake = self.session.handshake
        if notice is None or notice.session_id != handshake.caller.session_id:
            return
        key = SESSION_NOTICE, notice.notification
        if message.cursor is None:
            self._add_early(key)
        elif key in self._early_changes:
            self._early_changes.discard(key)
            return
        if handshake.accepts_notification(notice.method):
            self._add(_Notice(notice.method, None, message.cursor, notice.notification), key)
            notifications = [other for other in self._pending if other[0] == SESSION_NOTICE]
            if len(notifications) > _MAX_NOTIFICATIONS:
                del self._pending[notifications[0]]

    def _add_early(self, key: tuple[str, str | None]) -> None:
        if len(self._early_changes) >= _MAX_EARLY_CHANGES:
            self._early_changes.clear()  # The client hears these changes twice.
        self._early_changes.add(key)

    def _add_everything(self, cursor: str | None) -> None:
        handshake = self.session.handshake
        if handshake.is_ready:
            for method in sorted(get_declared_list_methods(self._service.capabilities())):
                self._add(_Notice(method, None, cursor), (method, None))
            for uri in tuple(handshake.subscriptions or ()):
                self._add(_Notice(RESOURCE_UPDATED, uri, cursor), (RESOURCE_UPDATED, uri))

    def _add(self, notice: _Notice, key: tuple[str, str | None]) -> None:
        self._pending.pop(key, None)  # The notices stay in the order of their positions.
        self._pending[key] = notice

    async def run(self, request: EndpointRequest) -> None:
        """Send the notices until the response ends."""
        has_first_event = self.session.has_priming_events and self._sent
        await self._response.run(request, self._encode_position() if has_first_event else b"")

    async def _send_pending(self) -> None:
        while self._pending and self._buffer is None and self._response.is_open:
            await self._send_notice(self._pending.pop(next(iter(self._pending))))

    async def _send_notice(self, notice: _Notice) -> None:
        if notice.notification is not None:
            events = [notice.notification.encode()]
        else:
            uris = self.session.handshake.get_subscribed_uris(notice.uri)
            events = [encode_change(notice.method, uri) for uri in uris if self._can_receive(uri)]
        last = len(events) - 1
        for index, event in enumerate(events):
            # Only the last event has an ID. If the client misses one of the events, it gets all of them again.
            has_id = notice.cursor is not None and index == last
            await self._response.write(
                sse.encode_event(event, id=build_event_id(notice.cursor or "") if has_id else None)
            )
        if notice.cursor is not None:
            self._sent = notice.cursor

    def _encode_comment(self) -> bytes:
        if not self.session.has_priming_events or self._heard == self._sent:
            return sse.encode_comment()
        # The client can resume here, even if the log has dropped older messages meanwhile.
        self._sent = self._heard
        return self._encode_position()

    def _encode_position(self) -> bytes:
        return sse.encode_event(b"", id=build_event_id(self._sent))

    def _can_receive(self, uri: str | None) -> bool:
        """Return whether the caller that opened the stream may receive a change.

        The token of this caller may have fewer scopes than when the caller subscribed.
        """
        return uri is None or self._principal is None or self._service.can_receive_updates(uri, self._principal)
