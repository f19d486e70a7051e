"""The session of one client on an HTTP server, in protocol versions with a handshake.

A session holds the client's identity, its running calls, its streams and the open requests to the client. An idle
session is small, because rarely used parts are created on first use.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from dovetail.errors import ConnectionLost
from dovetail.protocol.exchange import IncomingExchange, Service
from dovetail.protocol.handshake import HandshakeState, ResourceWatcher, encode_change
from dovetail.protocol.limits import CallerBusy
from dovetail.protocol.principal import Principal
from dovetail.protocol.subscription_filter import RESOURCE_UPDATED, get_declared_list_methods
from dovetail.transports.client_requests import ClientRequests
from dovetail.transports.http_server.streams.event_log import EventLog, EventStream
from dovetail.wire.jsonrpc import RequestId
from dovetail.wire.meta import PROGRESS_TOKEN
from dovetail.wire.revisions import NEWEST_HANDSHAKE_REVISION, is_older

STANDALONE_STREAM: Final = "0"  # the stream for messages that are not part of a response
_MAX_PENDING_NOTIFICATIONS: Final = 16


class QuestionStream(Protocol):
    """A stream on which a request to the client is sent."""

    unread_since: float | None  # the time when the last reader left, or None if there is a reader


class SessionReader(Protocol):
    """A response that reads the streams of a shared session."""

    def close(self) -> None:
        """End the response."""
        ...


class QuestionIds(Protocol):
    """Creates the IDs of requests to the client of a shared session."""

    def create_question_id(self, session: "HandshakeSession") -> str: ...
    def create_progress_token(self, session: "HandshakeSession", token: RequestId) -> str: ...
    def read_progress_token(self, session: "HandshakeSession", params: dict[str, Any]) -> dict[str, Any]: ...


class HandshakeSession:
    """The session of one client, in a protocol version with a handshake.

    If several workers share the session, this is one worker's copy of it.
    """

    __slots__ = (
        "_client_requests",
        "_next_stream_number",
        "_pending_changes",
        "_pending_notifications",
        "_read_streams",
        "_request_streams",
        "_stop_listening",
        "_stream_principal",
        "_streams_by_name",
        "address",
        "created_at",
        "handshake",
        "has_priming_events",
        "id",
        "is_closed",
        "last_used_at",
        "loop",
        "question_ids",
        "readers",
        "running_exchanges",
        "service",
        "store_data",
    )

    def __init__(
        self,
        id: str,
        handshake: HandshakeState,
        address: str | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.id = id
        self.handshake = handshake
        # True if each stream starts with an event that has only an ID. Older clients fail on such an event.
        self.has_priming_events = not is_older(handshake.caller.protocol_version, NEWEST_HANDSHAKE_REVISION)
        self.address = address
        self.loop = loop  # the event loop that opened the session
        self.created_at = self.last_used_at = loop.time()
        self.is_closed = False
        self.running_exchanges: set[IncomingExchange] | None = None
        self._pending_notifications: list[bytes] | None = None
        self._pending_changes: dict[tuple[str, str | None], None] | None = None
        self._client_requests: ClientRequests | None = None
        self._request_streams: dict[asyncio.Future[Any], QuestionStream] | None = (
            None  # the stream on which each request to the client is sent
        )
        self._streams_by_name: dict[str, EventStream] | None = None
        self._read_streams: set[EventStream] | None = None  # the streams that have a reader
        self._next_stream_number = 1
        self._stop_listening: Callable[[], None] | None = None
        self.service: Service | None = None  # the service, set when the handshake is complete
        self._stream_principal: Principal | None = None  # the caller that opened the GET stream
        # The rest is only used by a store whose sessions several workers share.
        self.store_data: object = None  # what the store keeps with the session
        self.question_ids: QuestionIds | None = None
        self.readers: set[SessionReader] | None = None  # the open responses that read streams of the session

    @property
    def revision(self) -> str:
        """Return the negotiated protocol version."""
        return self.handshake.caller.protocol_version

    @property
    def is_idle(self) -> bool:
        """Return whether the session is idle. An idle session has no running call, and no client reads its streams.

        A call that waits for the client does not count as running.
        """
        is_working = self.running_exchanges and any(not exchange.questions for exchange in self.running_exchanges)
        return not is_working and not self._read_streams and not self.readers

    @property
    def _streams(self) -> Mapping[str, EventStream]:
        return self._streams_by_name or {}

    @property
    def reader_count(self) -> int:
        """Return the number of streams with a reader."""
        return len(self._read_streams or ()) + len(self.readers or ())

    def mark_ready(self, service: Service) -> None:
        """Mark the handshake as complete, and listen for changes."""
        if not self.handshake.is_ready:
            self.handshake.is_ready = True
            self.service = service
            self._stop_listening = service.subscribe(self)

    def is_subscribed(self, method: str, uri: str | None) -> bool:
        """Return whether the client has subscribed to a change."""
        return self.handshake.is_subscribed(method, uri)

    def deliver(self, method: str, uri: str | None) -> None:
        """Send a change on the GET stream. If the stream is not open, send the change once it opens."""
        stream = self._streams.get(STANDALONE_STREAM)
        for subscribed_uri in self.handshake.get_subscribed_uris(uri):
            if stream is None or stream.reader is None:
                self._pending_changes = self._pending_changes or {}
                self._pending_changes[method, subscribed_uri] = None
            elif self._can_receive(subscribed_uri):
                stream.append(encode_change(method, subscribed_uri))

    def deliver_all(self) -> None:
        """Send every change to which the client has subscribed, because some changes were missed."""
        if self.service is not None:
            for method in get_declared_list_methods(self.service.capabilities()):
                self.deliver(method, None)
            for key in tuple(self.handshake.subscriptions or ()):
                self.deliver(RESOURCE_UPDATED, key)

    def send_to_session(self, session_id: str, method: str, message: bytes) -> bool:
        """Send a notification on the GET stream. Return False if the notification is for another session.

        If the stream is not open, keep the newest notifications and send them later.
        """
        if self.handshake.caller.session_id != session_id:
            return False
        if not self.handshake.accepts_notification(method):
            return True
        stream = self._streams.get(STANDALONE_STREAM)
        if stream is None or stream.reader is None:
            self._pending_notifications = [*(self._pending_notifications or ()), message][-_MAX_PENDING_NOTIFICATIONS:]
        else:
            stream.append(message)
        return True

    def _can_receive(self, uri: str | None) -> bool:
        """Return whether the caller that opened the GET stream may receive a change.

        The token of this caller may have fewer scopes than when the caller subscribed.
        """
        if uri is None or self._stream_principal is None or self.service is None:
            return True
        return self.service.can_receive_updates(uri, self._stream_principal)

    def send_pending(self, stream: EventStream, principal: Principal | None) -> None:
        """Send the notifications that waited for the GET stream. `principal` is the caller that opened the stream."""
        self._stream_principal = principal
        for method, uri in self._pending_changes or {}:
            if self._can_receive(uri):
                stream.append(encode_change(method, uri))
        for notification in self._pending_notifications or ():
            stream.append(notification)
        self._pending_changes = self._pending_notifications = None

    def get_stream(self, name: str) -> EventStream | None:
        """Return the stream with this name, or None."""
        return self._streams.get(name)

    def open_stream(self, event_log: EventLog, name: str | None = None) -> EventStream:
        """Open a new stream in the session."""
        if name is None:
            name = str(self._next_stream_number)
            self._next_stream_number += 1
        if self._streams_by_name is None or self._read_streams is None:
            self._streams_by_name, self._read_streams = {}, set()
        stream = EventStream(name, event_log, self._streams_by_name, self._read_streams)
        self._streams_by_name[name] = stream
        return stream

    def store_response(self, event_log: EventLog, data: bytes) -> bytes:
        """Store a response as a finished stream and return its encoded events."""
        stream = self.open_stream(event_log)
        return stream.store_complete(data, self.loop.time(), has_priming_event=self.has_priming_events)

    def drop_old_streams(self, now: float, max_age: float) -> None:
        """Delete streams that ended more than `max_age` seconds ago."""
        streams = self._streams_by_name or {}
        for name, stream in tuple(streams.items()):
            if stream.ended_at is not None and now - stream.ended_at > max_age:
                streams.pop(name).clear()

    async def ask_client(
        self, stream: QuestionStream, emit: Callable[[bytes], Awaitable[None]], method: str, params: dict[str, Any]
    ) -> Any:
        """Send a request to the client on an open response stream. The client answers with another POST."""
        if self.is_closed:
            raise ConnectionLost("The session ended")
        if self._client_requests is None:
            self._client_requests = self._create_client_requests()
        self._request_streams = self._request_streams or {}
        if self.question_ids is not None and (token := (params.get("_meta") or {}).get(PROGRESS_TOKEN)) is not None:
            token = self.question_ids.create_progress_token(self, token)
            params = params | {"_meta": params["_meta"] | {PROGRESS_TOKEN: token}}
        id, data, future = self._client_requests.create(method, params)
        self._request_streams[future] = stream
        try:
            await emit(data)
            return await future
        finally:
            del self._request_streams[future]
            if (cancellation := self._client_requests.abandon(id)) is not None:
                await emit(cancellation)

    def _create_client_requests(self) -> ClientRequests:
        question_ids = self.question_ids
        if question_ids is None:
            return ClientRequests()
        return ClientRequests(lambda: question_ids.create_question_id(self))

    def read_progress(self, params: dict[str, Any]) -> dict[str, Any]:
        """Convert the parameters of a progress notification to the format of the newest protocol version."""
        if self._client_requests is not None:
            params = self._client_requests.read_progress(params)
        return params if self.question_ids is None else self.question_ids.read_progress_token(self, params)

    def end_unread_requests(self, now: float, max_age: float) -> None:
        """Fail a request to the client if the stream of the request had no reader for `max_age` seconds."""
        for future, stream in (self._request_streams or {}).items():
            if stream.unread_since is not None and now - stream.unread_since > max_age and not future.done():
                future.set_exception(ConnectionLost("The client disconnected before it answered"))

    def handle_response(self, message: dict[str, Any]) -> None:
        """Handle the client's response to a request of the server."""
        if self._client_requests is not None:
            self._client_requests.handle_response(message)

    def add_running(self, exchange: IncomingExchange, max_calls: int) -> None:
        """Add a running request. Raise CallerBusy if too many requests are running in the session."""
        if self.running_exchanges is None:
            self.running_exchanges = set()
        if len(self.running_exchanges) >= max_calls:
            raise CallerBusy("Too many requests are running in this session")
        self.running_exchanges.add(exchange)

    def cancel(self, id: Any) -> bool:
        """Cancel the running request with this ID. Return whether there is one."""
        is_running = False
        for exchange in tuple(self.running_exchanges or ()):
            if exchange.id == id and type(exchange.id) is type(id):
                is_running = True
                exchange.end("cancelled")
        return is_running

    def start_watching(self, service: Service, principal: Principal | None, origin: str | None) -> None:
        """Watch the subscribed resources of mounted servers.

        Of several workers, only the one with the GET stream calls this method.
        """
        self.handshake.watcher = ResourceWatcher(service, principal, origin)
        self.handshake.update_watches()

    def stop_watching(self) -> None:
        """Stop watching the subscribed resources of mounted servers."""
        self.handshake.stop_watching()

    def close(self) -> None:
        """End all calls, requests and streams of the session."""
        self.is_closed = True
        self.handshake.close()
        if self._stop_listening is not None:
            self._stop_listening()
        if self._client_requests is not None:
            self._client_requests.close("The session ended")
        for exchange in tuple(self.running_exchanges or ()):
            exchange.end("cancelled")
        for reader in tuple(self.readers or ()):
            reader.close()
        # `finish` may delete streams, so the loop uses a copy.
        for stream in tuple(self._streams.values()):
            stream.finish()
            if stream.reader is None:
                stream.clear()  # No client can resume a stream of a closed session.
