"""Responses and readers of stored streams. A client can read the events of a reply again at any worker of a cluster.

A stream has at most one reader, which is the response to the POST that opened it or to a GET that resumes it.
"""

import asyncio
import os
from collections.abc import Awaitable, Sequence
from contextlib import aclosing
from typing import Final

from dovetail.cluster.background_work import wait_before_retry
from dovetail.cluster.sessions.stored_stream import (
    EventPosition,
    StoredStream,
    StreamEnded,
    StreamOwner,
    encode_header,
    encode_loss,
)
from dovetail.eager_tasks import EagerTaskStarter
from dovetail.protocol import sse
from dovetail.protocol.interfaces.shared_state import SharedState, SharedStateUnavailable, StreamEvent, WorkerLost
from dovetail.transports.http1.server_request import Headers, Send
from dovetail.transports.http_server.http_request import EndpointRequest
from dovetail.transports.http_server.sessions.handshake_session import HandshakeSession
from dovetail.transports.http_server.sessions.session_writer import SessionWriter
from dovetail.transports.http_server.streams.http_response import send_spool
from dovetail.transports.http_server.streams.shared_timer import SharedTimer
from dovetail.transports.http_server.streams.stream_response import StreamResponse
from dovetail.transports.spool import SLICE_BYTES, create_spool
from dovetail.wire.jsonrpc import RequestId

_MAX_FAILED_ENDS: Final = 3
_END_RETRY_DELAY_S: Final = 1.0


class StoredResponseWriter(SessionWriter[StreamOwner, StoredStream]):
    """Writes a response whose events are stored before they are sent.

    A response that does not become an event stream is not stored.
    """

    __slots__ = (
        "_gone_reader",
        "_has_client",
        "_is_batch",
        "_reading_worker",
    )

    def __init__(
        self, owner: StreamOwner, request: EndpointRequest, session: HandshakeSession, ids: Sequence[RequestId]
    ) -> None:
        super().__init__(owner, request, session, ids)
        self._is_batch = type(request.message) is list
        self._reading_worker: str | None = None  # the worker at which the client reads the stream now
        self._gone_reader: str | None = None  # the reader at another connection that left last
        self._has_client = True  # False after the client has disconnected, or has resumed the stream elsewhere

    def _handle_disconnect(self) -> None:
        self._is_complete = True
        self._detach_client()

    def _detach_client(self) -> None:
        if self._has_client:
            self._has_client = False
            self._stop_timer()
            self._remove_reader()
            if self._stream is not None and self._stream.remote_reader is None:
                self._stream.unread_since = asyncio.get_running_loop().time()

    @property
    def reading_worker(self) -> str | None:
        """Return the worker that has a reader of the stream, or None if the client reads this response or nothing."""
        return None if self._stream is None or self._stream.remote_reader is None else self._reading_worker

    def set_remote_reader(self, reader: str, worker: str) -> None:
        """Stop sending, because the client reads the stream at another connection."""
        assert self._stream is not None
        if reader == self._gone_reader:
            return  # The same message has arrived twice.
        self._stream.remote_reader = reader
        self._reading_worker = worker
        self._stream.unread_since = None
        self._detach_client()
        if not self._is_complete and not self._write_lock.locked():
            self._is_complete = True
            self._owner.run_in_background(self._send_end())

    def handle_reader_gone(self, reader: str | None = None) -> None:
        """Note that a reader at another worker has left. If `reader` is None, that worker is lost."""
        stream = self._stream
        if stream is not None and stream.remote_reader is not None and reader in (None, stream.remote_reader):
            self._gone_reader, stream.remote_reader = stream.remote_reader, None
            stream.unread_since = asyncio.get_running_loop().time()

    def close(self) -> None:
        """Do nothing, because the end of the session cancels the call, and the response ends with the call."""

    def _open(self) -> StoredStream:
        self.is_streaming = True
        self._write_lock = asyncio.Lock()
        header = encode_header(self._ids, self._session.revision, is_batch=self._is_batch)
        session_id = self._session.handshake.caller.session_id
        stream = StoredStream(self._owner.create_stream_name(), session_id, header, self._owner)
        self._stream = stream
        self._owner.writers[stream.key] = self
        if self._session.readers is None:
            self._session.readers = set()
        self._session.readers.add(self)
        return stream

    def _remove_reader(self) -> None:
        if self._session.readers is not None:
            self._session.readers.discard(self)

    async def open_stream(self, first_event: bytes = b"") -> None:
        """Turn the response into an event stream that starts with `first_event`."""
        stream = self._open()
        async with self._write_lock:  # A result must not be written before the headers.
            if self._session.has_priming_events:
                first_event = sse.encode_event(b"", id=await stream.append(b"")) + first_event
            await self._send(self._build_stream_start())
            if first_event:
                await self._send({"type": "http.response.body", "body": first_event, "more_body": True})
        if self._has_client:
            self._start_keep_alive()

    async def emit(self, data: bytes) -> None:
        """Send a message to the client before the result."""
        if self._mode == "json" or self.is_ended:
            return
        if not self.is_streaming:
            await self.open_stream()
        await self._store_and_send(data)

    def finish(self, data: bytes, status: int = 200, headers: Headers | None = None) -> Awaitable[None]:
        """Send the result to the client, and end the response."""
        if self.is_streaming:
            return self._finish_stored(data)
        if self._mode == "sse" and status == 200:
            return self._finish_complete_stream(data)
        return super().finish(data, status, headers)

    async def _finish_stored(self, data: bytes) -> None:
        if not self.is_ended:
            self._stop_sending()
            try:
                await self._store_and_send(data, is_last=True)
            finally:
                self._close_stream()

    async def _finish_complete_stream(self, data: bytes) -> None:
        if self.is_ended:
            return
        self._stop_sending()
        stream = self._open()
        try:
            events = sse.encode_event(data, id=await stream.append(data, is_last=True))
            del data
            if self._session.has_priming_events:
                events = sse.encode_event(b"", id=str(EventPosition(stream.name, 0))) + events
            await self._send(self._build_stream_start())
            await self._send_body(events, has_more=False)
        finally:
            self._close_stream()

    async def end(self) -> None:
        """End the response without a result."""
        if self.is_ended:
            return
        if not self.is_streaming and self._mode == "json":
            await super().end()
            return
        self._stop_sending()
        if not self.is_streaming:
            self.is_streaming = True
            await self._send(self._build_stream_start())
            await self._send_end()
            return
        try:
            await self._store_and_send(b"", is_last=True)
        finally:
            self._close_stream()

    async def _store_and_send(self, data: bytes, *, is_last: bool = False) -> None:
        stream = self._stream
        assert stream is not None
        async with self._write_lock:
            id = None
            try:
                id = await stream.append(data, is_last=is_last)
            except StreamEnded:  # The client has already received an error from another worker.
                self._detach_client()
                is_last = True
            if self._has_client:
                event = sse.encode_event(data, id=id) if data or not is_last else b""
                del data
                await self._send_body(event, has_more=not is_last)
            elif is_last and not self._is_complete:
                await self._send_body(b"", has_more=False)

    async def _send_body(self, data: bytes, *, has_more: bool) -> None:
        self._is_complete = not has_more
        if len(data) <= SLICE_BYTES:
            await self._send({"type": "http.response.body", "body": data, "more_body": has_more})
        else:
            spool = create_spool(data, self._budget)
            del data
            await send_spool(self._send, spool, has_more=has_more)

    async def _send_end(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    async def release_connection(self, retry_ms: int) -> None:
        """Close the connection but keep the stream. The client reconnects after `retry_ms` milliseconds and reads the
        rest.
        """
        if not self.is_streaming:
            await self.open_stream()
        stream = self._stream
        assert stream is not None
        async with self._write_lock:
            if not self._has_client or stream.is_done:
                return
            event = sse.encode_event(b"", id=await stream.append(b""), retry=retry_ms)
            self._detach_client()
            await self._send_body(event, has_more=False)

    def drop(self) -> None:
        """End the response without sending more data. A reader of the stream gets an error."""
        self.abandon()
        if self._stream is not None and not self._stream.is_done:
            self._owner.run_in_background(self._store_loss(self._stream))

    async def _store_loss(self, stream: StoredStream) -> None:
        try:
            async with self._write_lock:
                if not stream.is_done:
                    await stream.append(encode_loss(stream.header), is_last=True)
        except StreamEnded:
            pass
        finally:
            self._close_stream()

    def _close_stream(self) -> None:
        self._stop_watching()
        self._remove_reader()
        if self._stream is not None:
            self._owner.writers.pop(self._stream.key, None)


class StoredStreamReader:
    """Sends a stored stream as the response to a GET request, and waits for its new events.

    The response also ends with the stream, and when another reader replaces it.
    """

    def __init__(
        self,
        state: SharedState,
        name: str,
        key: str,
        position: int,
        send: Send,
        keep_alive: SharedTimer,
        starter: EagerTaskStarter,
    ) -> None:
        self.id = os.urandom(8).hex()
        self._state = state
        self._name = name
        self._key = key
        self._position = position  # the number of the event that was read last
        self._failed_ends = 0  # how often the stream of a lost worker could not be ended
        self._events: asyncio.Queue[bytes] = asyncio.Queue(1)  # the event that was read and not sent yet
        self._has_read_all = False
        self._response = StreamResponse(send, keep_alive, starter, self._send_events)

    def close(self) -> None:
        """End the response."""
        self._response.close()

    async def run(self, request: EndpointRequest) -> None:
        """Send all stored events after the start position, and then each new event."""
        read_task = asyncio.get_running_loop().create_task(self._read_events())
        try:
            await self._response.run(request)
        finally:
            read_task.cancel()
            await asyncio.wait([read_task])
        if not read_task.cancelled() and (error := read_task.exception()) is not None:
            raise error

    async def _send_events(self) -> None:
        while not self._events.empty() and self._response.is_open:
            await self._response.write(self._events.get_nowait())
        if self._has_read_all:
            self._response.close()

    async def _read_events(self) -> None:
        try:
            failures = 0
            while True:
                try:
                    async with aclosing(self._state.follow(self._key, self._position)) as events:
                        async for event in events:
                            await self._add_event(event)
                            failures = 0
                    return  # The stream has ended, or was deleted.
                except WorkerLost as exc:
                    if await self._end_lost_stream(exc):
                        return
                except SharedStateUnavailable:
                    await wait_before_retry(failures)
                    failures += 1
        finally:
            self._has_read_all = True
            self._response.wake()

    async def _end_lost_stream(self, lost: WorkerLost) -> bool:
        """End the stream of a lost worker with an error. Return whether this reader has already sent the error.

        The reader sends the error itself if the shared state is full, because the error cannot be stored then.
        """
        error = encode_loss(lost.header)
        try:
            await self._state.end_lost_stream(self._key, error)
        except SharedStateUnavailable:
            self._failed_ends += 1
            if self._failed_ends < _MAX_FAILED_ENDS:
                await asyncio.sleep(_END_RETRY_DELAY_S)
                return False
            await self._add_event(StreamEvent(self._position + 1, error, True), is_stored=False)
            return True
        return False

    async def _add_event(self, event: StreamEvent, *, is_stored: bool = True) -> None:
        if event.data:  # An event without data only has an ID, and the client has this ID already.
            id = str(EventPosition(self._name, event.number, is_stored))
            await self._events.put(sse.encode_event(event.data, id=id))
            self._response.wake()
        self._position = event.number
