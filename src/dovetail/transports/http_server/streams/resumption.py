"""Responses and readers of sessions. A client can read their events again after a lost connection.

A stream has at most one reader, which is the response to the POST that opened it or to a GET that resumes it.
"""

from collections.abc import Awaitable
from typing import Protocol

from dovetail.eager_tasks import EagerTaskStarter
from dovetail.protocol import sse
from dovetail.protocol.http_checks import Refusal
from dovetail.transports.http1.server_request import Headers, Send
from dovetail.transports.http_server.sessions.handshake_session import HandshakeSession
from dovetail.transports.http_server.sessions.session_writer import SessionWriter, WriterOwner
from dovetail.transports.http_server.streams.event_log import EventLog, EventStream
from dovetail.transports.http_server.streams.shared_timer import SharedTimer
from dovetail.transports.http_server.streams.stream_response import StreamResponse
from dovetail.transports.spool import SLICE_BYTES


class EventLogOwner(WriterOwner, Protocol):
    """The part of an endpoint whose responses store their events in the memory of this process."""

    event_log: EventLog


class SessionResponseWriter(SessionWriter[EventLogOwner, EventStream]):
    """Writes a response that the client can read again after a disconnect."""

    __slots__ = ()

    def _handle_disconnect(self) -> None:
        if self._stream is not None and self._stream.reader is self:
            self._stream.detach(self)
            self._is_complete = True
            self._stop_timer()

    def _build_first_event(self) -> bytes:
        self._stream = self._session.open_stream(self._owner.event_log)
        self._stream.attach(self)
        return sse.encode_event(b"", id=self._stream.allocate_id()) if self._session.has_priming_events else b""

    async def emit(self, data: bytes) -> None:
        """Send a message to the client before the result."""
        if self._stream is None or self._stream.reader is self:
            await super().emit(data)
        elif not self.is_ended:
            self._stream.append(data)

    def finish(self, data: bytes, status: int = 200, headers: Headers | None = None) -> Awaitable[None]:
        """Send the result to the client, and end the response."""
        if self._stream is not None and self._stream.reader is not self:
            self._stream.append(data)
            return self._await_and_end(self._end_response())
        if self._mode == "sse" and not self.is_streaming and status == 200 and len(data) <= SLICE_BYTES:
            return self._finish_complete_stream(data)
        final_write = super().finish(data, status, headers)
        return self._await_and_end(final_write) if self.is_streaming or self._mode == "sse" else final_write

    async def _finish_complete_stream(self, data: bytes) -> None:
        if not self.is_ended:
            self.is_streaming = True
            self._stop_sending()
            events = self._session.store_response(self._owner.event_log, data)
            await self._respond_stream(events)

    async def end(self) -> None:
        """End the response without a result."""
        is_reader = self._stream is None or self._stream.reader is self
        await self._await_and_end(super().end() if is_reader else self._end_response())

    async def _await_and_end(self, final_write: Awaitable[None]) -> None:
        try:
            await final_write
        finally:
            if self._stream is not None:
                self._end_stream(self._stream)

    async def _end_response(self) -> None:
        self.abandon()
        if not self._is_complete:
            self._is_complete = True
            await self._write(b"", has_more=False)

    async def release_connection(self, retry_ms: int) -> None:
        """Close the connection but keep the stream. The client reconnects after `retry_ms` milliseconds and reads the
        rest.
        """
        if not self.is_streaming:
            await self.open_stream()
        stream = self._stream
        if stream is None or stream.reader is not self:
            return
        await self._write(sse.encode_event(b"", id=stream.allocate_id(), retry=retry_ms))
        stream.detach(self)
        self._is_complete = True
        self._stop_timer()
        await self._write(b"", has_more=False)

    def drop(self) -> None:
        """End the response and its stream without sending more data."""
        self.abandon()
        if self._stream is not None:
            self._end_stream(self._stream)

    def _end_stream(self, stream: EventStream) -> None:
        self._stop_watching()
        stream.detach(self)
        stream.finish()

    def _encode_event(self, data: bytes) -> bytes:
        assert self._stream is not None
        return self._stream.append(data)


class EventStreamReader:
    """Sends an event stream as the response to a GET request.

    The response also ends with the stream, and when another GET replaces it. The reader writes events at once. While
    the client does not read, events wait in the event log.
    """

    __slots__ = ("_position", "_stream", "response")

    def __init__(
        self, stream: EventStream, position: int, send: Send, keep_alive: SharedTimer, starter: EagerTaskStarter
    ) -> None:
        self._stream = stream
        self._position = position  # the number of the event that was sent last
        self.response = StreamResponse(send, keep_alive, starter, self._send_events)

    async def _send_events(self) -> None:
        """Send the new events of the stream. Stop if another reader has replaced this reader."""
        stream = self._stream
        while self.response.is_open and stream.reader is self:
            events = stream.read_after(self._position)
            if events is None:
                break  # The client read too slowly and missed events, so the stream ends.
            for number, event in events:
                await self.response.write(event)
                self._position = number
            if not events:
                if stream.is_done:
                    break
                return
        self.response.close()


def find_resume_point(session: HandshakeSession, last_event_id: bytes) -> tuple[EventStream, int]:
    """Return the stream and the event number for an event ID. Raise Refusal if this session does not have the event."""
    name, _, number = last_event_id.decode("latin-1").rpartition("-")
    stream = session.get_stream(name)
    if stream is None or not number.isascii() or not number.isdecimal() or len(number) > 12:
        raise Refusal(400, "Last-Event-ID is not the ID of an event in this session")
    if stream.read_after(int(number)) is None:
        raise Refusal(400, "The events after Last-Event-ID have been deleted")
    return stream, int(number)
