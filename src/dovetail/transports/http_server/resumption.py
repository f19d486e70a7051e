"""Responses and readers of handshake sessions, whose events can be read again after a lost connection.

A stream has at most one reader: the reply to the POST that opened it, or a GET that came for the rest.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any

from dovetail.errors import ConnectionLost
from dovetail.protocol import sse
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.http_checks import Refusal
from dovetail.protocol.limits import ServerLimits
from dovetail.transports.http_server.event_log import EventLog, EventStream
from dovetail.transports.http_server.handshake_session import HandshakeSession
from dovetail.transports.http_server.http_request import EndpointRequest, Headers, Receive, Send
from dovetail.transports.http_server.http_response import ResponseWriter
from dovetail.transports.spool import SLICE_BYTES


class SessionResponseWriter(ResponseWriter):
    """A reply whose events can be fetched again, and whose connection can be let go before it is complete."""

    __slots__ = ("_event_log", "_is_released", "_receive", "_session", "_stream", "_watch_task")

    def __init__(
        self, request: EndpointRequest, session: HandshakeSession, limits: ServerLimits, event_log: EventLog
    ) -> None:
        super().__init__(
            request.send, request.response_mode, request.cors_headers, limits.keep_alive_interval, event_log.budget
        )
        self._receive = request.receive
        self._event_log = event_log
        self._session = session
        self._stream: EventStream | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self._is_released = False

    def attach(self, exchange: Exchange, is_stateful: bool) -> None:
        """Give an exchange its two facts."""
        exchange.emit = self.emit
        if is_stateful and self._mode != "json":
            exchange.ask = self._ask_client
            if self._session.has_priming_events:  # older clients do not come back, and were promised that streams last
                exchange.close_stream = self.release_connection

    async def _ask_client(self, method: str, params: dict[str, Any]) -> Any:
        """Ask the client on this reply's stream, and notice if the client leaves meanwhile."""
        if self.is_ended:
            raise ConnectionLost("The call has been answered: nothing can be asked on its reply any more")
        if not self.is_streaming:
            await self.open_stream()
        assert self._stream is not None
        if self._watch_task is None:
            self._watch_task = asyncio.get_running_loop().create_task(self._watch_disconnect(self._stream))
        return await self._session.ask_client(self._stream, self.emit, method, params)

    async def _watch_disconnect(self, stream: EventStream) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if stream.reader is self:
            stream.detach(self)
            self._is_released = True
            self._stop_keep_alive()

    def _build_first_event(self) -> bytes:
        self._stream = self._session.open_stream(self._event_log)
        self._stream.attach(self)
        return sse.encode_event(b"", id=self._stream.allocate_id()) if self._session.has_priming_events else b""

    async def emit(self, data: bytes) -> None:
        """Say something before the result, wherever the client now reads."""
        if self._stream is None or self._stream.reader is self:
            await super().emit(data)
        elif not self.is_ended:
            self._stream.append(data)

    def finish(self, data: bytes, status: int = 200, headers: Headers | None = None) -> Awaitable[None]:
        """Give the result, wherever the client now reads."""
        if self._stream is not None and self._stream.reader is not self:
            self._stream.append(data)
            return self._await_and_end(self._end_response())
        if self._mode == "sse" and not self.is_streaming and status == 200 and len(data) <= SLICE_BYTES:
            return self._finish_complete_stream(data)
        final_write = super().finish(data, status, headers)
        return self._await_and_end(final_write) if self.is_streaming or self._mode == "sse" else final_write

    async def _finish_complete_stream(self, data: bytes) -> None:
        """A stream of the result and nothing else: complete before its first byte leaves."""
        if not self.is_ended:
            self.is_streaming = True
            self._stop_sending()
            events = self._session.store_response(self._event_log, data)
            await self._send(self._build_stream_start())
            await self._send({"type": "http.response.body", "body": events})

    async def end(self) -> None:
        """End without a result."""
        is_reader = self._stream is None or self._stream.reader is self
        await self._await_and_end(super().end() if is_reader else self._end_response())

    async def _await_and_end(self, final_write: Awaitable[None]) -> None:
        try:
            await final_write
        finally:
            if self._stream is not None:
                self._end_stream(self._stream)

    async def _end_response(self) -> None:
        """Someone else reads the stream now: nothing more comes on this connection."""
        self.abandon()
        if not self._is_released:
            self._is_released = True
            await self._write(b"", has_more=False)

    async def release_connection(self, retry_ms: int) -> None:
        """Close the connection, not the stream: the client comes back for the rest after a while."""
        if not self.is_streaming:
            await self.open_stream()
        stream = self._stream
        if stream is None or stream.reader is not self:
            return
        await self._write(sse.encode_event(b"", id=stream.allocate_id(), retry=retry_ms))
        stream.detach(self)
        self._is_released = True
        self._stop_keep_alive()
        await self._write(b"", has_more=False)

    def drop(self) -> None:
        """Whoever made this reply is gone: end it, and its stream, without a word."""
        self.abandon()
        if self._stream is not None:
            self._end_stream(self._stream)

    def _end_stream(self, stream: EventStream) -> None:
        if self._watch_task is not None:
            self._watch_task.cancel()
        stream.detach(self)
        stream.finish()

    def _encode_event(self, data: bytes) -> bytes:
        assert self._stream is not None
        return self._stream.append(data)


class EventStreamReader:
    """A GET that follows a stream until it ends, the client leaves or must prove itself anew, or another takes over."""

    def __init__(
        self, stream: EventStream, send: Send, receive: Receive, limits: ServerLimits, valid_for: float | None = None
    ) -> None:
        self._stream = stream
        self._send = send
        self._receive = receive
        self._limits = limits
        self._valid_for = valid_for
        self._is_disconnected = False
        self._is_expired = False

    async def write(self, data: bytes) -> None:
        """Send one piece."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def run(self, position: int) -> None:
        """Send everything after the place, then what comes."""
        stream = self._stream
        loop = asyncio.get_running_loop()
        watch_task = loop.create_task(self._watch_disconnect())
        expiry_timer = None if self._valid_for is None else loop.call_later(self._valid_for, self._expire)
        try:
            while not self._is_disconnected and not self._is_expired and stream.reader is self:
                stream.wakeup.clear()
                events = stream.read_after(position)
                if events is None:
                    break  # too slow: what it missed is gone, so it must notice
                for number, event in events:
                    await self.write(event)
                    position = number
                if stream.is_done and not stream.read_after(position):
                    break
                if not events:
                    await self._wait()
        finally:
            watch_task.cancel()
            if expiry_timer is not None:
                expiry_timer.cancel()
        if not self._is_disconnected:
            await self._send({"type": "http.response.body", "body": b""})

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._limits.keep_alive_interval):
                await self._stream.wakeup.wait()
        except TimeoutError:
            await self.write(sse.encode_comment())

    def _expire(self) -> None:
        self._is_expired = True
        self._stream.wakeup.set()

    async def _watch_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._is_disconnected = True
        self._stream.wakeup.set()


def find_resume_point(session: HandshakeSession, last_event_id: bytes) -> tuple[EventStream, int]:
    """The stream an event id belongs to, and its place there; only ever a stream of the same session."""
    name, _, number = last_event_id.decode("latin-1").rpartition("-")
    stream = session.get_stream(name)
    if stream is None or not number.isascii() or not number.isdecimal() or len(number) > 12:
        raise Refusal(400, "Last-Event-ID names no event of this session")
    if stream.read_after(int(number)) is None:
        raise Refusal(400, "The events after Last-Event-ID are no longer kept")
    return stream, int(number)
