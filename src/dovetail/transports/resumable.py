"""Replies and readers of handshake sessions, whose events can be fetched again after a lost connection.

A stream has at most one reader: the reply to the POST that opened it, or a GET that came for the rest.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any

from dovetail.errors import Disconnected
from dovetail.protocol import sse
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.http import Refusal
from dovetail.protocol.limits import Limits
from dovetail.transports.reply import Reply
from dovetail.transports.request import Headers, Receive, Request, Send
from dovetail.transports.session import Session
from dovetail.transports.spool import SLICE
from dovetail.transports.streams import Shelf, Stream


class SessionReply(Reply):
    """A reply whose events can be fetched again, and whose connection can be let go before it is complete."""

    __slots__ = ("_left", "_receive", "_session", "_shelf", "_stream", "_watch")

    def __init__(self, request: Request, session: Session, limits: Limits, shelf: Shelf) -> None:
        super().__init__(request.send, request.mode, request.cors, limits.keep_alive, shelf.budget)
        self._receive = request.receive
        self._shelf = shelf
        self._session = session
        self._stream: Stream | None = None
        self._watch: asyncio.Task[None] | None = None
        self._left = False

    def serves(self, exchange: Exchange, stateful: bool) -> None:
        """Give an exchange its two facts."""
        exchange.emit = self.emit
        if stateful and self._mode != "json":
            exchange.ask = self._ask
            if self._session.primes:  # older clients do not come back, and were promised that streams last
                exchange.close_stream = self.let_go

    async def _ask(self, method: str, params: dict[str, Any]) -> Any:
        """Ask the client on this reply's stream, and notice if the client leaves meanwhile."""
        if self.ended:
            raise Disconnected("The call has been answered: nothing can be asked on its reply any more")
        if not self.streaming:
            await self.open()
        assert self._stream is not None
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._look(self._stream))
        return await self._session.ask(self._stream, self.emit, method, params)

    async def _look(self, stream: Stream) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if stream.reader is self:
            stream.detach(self)
            self._left = True
            self._quiet()

    def _opening(self) -> bytes:
        self._stream = self._session.open_stream(self._shelf)
        self._stream.attach(self)
        return sse.event(b"", id=self._stream.number()) if self._session.primes else b""

    async def emit(self, data: bytes) -> None:
        """Say something before the result, wherever the client now reads."""
        if self._stream is None or self._stream.reader is self:
            await super().emit(data)
        elif not self.ended:
            self._stream.append(data)

    def finish(self, data: bytes, status: int = 200, headers: Headers | None = None) -> Awaitable[None]:
        """Give the result, wherever the client now reads."""
        if self._stream is not None and self._stream.reader is not self:
            self._stream.append(data)
            return self._and_end(self._hang_up())
        if self._mode == "sse" and not self.streaming and status == 200 and len(data) <= SLICE:
            return self._sole(data)
        last = super().finish(data, status, headers)
        return self._and_end(last) if self.streaming or self._mode == "sse" else last

    async def _sole(self, data: bytes) -> None:
        """A stream of the result and nothing else: complete before its first byte leaves."""
        if not self.ended:
            self.streaming = True
            self._stop_sending()
            events = self._session.keep(self._shelf, data)
            await self._send(self._stream_start())
            await self._send({"type": "http.response.body", "body": events})

    async def end(self) -> None:
        """End without a result."""
        read_here = self._stream is None or self._stream.reader is self
        await self._and_end(super().end() if read_here else self._hang_up())

    async def _and_end(self, last: Awaitable[None]) -> None:
        try:
            await last
        finally:
            if self._stream is not None:
                self._end_stream(self._stream)

    async def _hang_up(self) -> None:
        """Someone else reads the stream now: nothing more comes on this connection."""
        self.abandon()
        if not self._left:
            self._left = True
            await self._write(b"", more=False)

    async def let_go(self, retry_ms: int) -> None:
        """Close the connection, not the stream: the client comes back for the rest after a while."""
        if not self.streaming:
            await self.open()
        stream = self._stream
        if stream is None or stream.reader is not self:
            return
        await self._write(sse.event(b"", id=stream.number(), retry=retry_ms))
        stream.detach(self)
        self._left = True
        self._quiet()
        await self._write(b"", more=False)

    def drop(self) -> None:
        """Whoever made this reply is gone: end it, and its stream, without a word."""
        self.abandon()
        if self._stream is not None:
            self._end_stream(self._stream)

    def _end_stream(self, stream: Stream) -> None:
        if self._watch is not None:
            self._watch.cancel()
        stream.detach(self)
        stream.finish()

    def _event(self, data: bytes) -> bytes:
        assert self._stream is not None
        return self._stream.append(data)


class Reader:
    """A GET that follows a stream until it ends, the client leaves or must prove itself anew, or another takes over."""

    def __init__(
        self, stream: Stream, send: Send, receive: Receive, limits: Limits, lasts: float | None = None
    ) -> None:
        self._stream = stream
        self._send = send
        self._receive = receive
        self._limits = limits
        self._lasts = lasts
        self._gone = False
        self._over = False

    async def write(self, data: bytes) -> None:
        """Send one piece."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def run(self, place: int) -> None:
        """Send everything after the place, then what comes."""
        stream = self._stream
        loop = asyncio.get_running_loop()
        watch = loop.create_task(self._look())
        lapse = None if self._lasts is None else loop.call_later(self._lasts, self._lapse)
        try:
            while not self._gone and not self._over and stream.reader is self:
                stream.wake.clear()
                events = stream.after(place)
                if events is None:
                    break  # too slow: what it missed is gone, so it must notice
                for number, event in events:
                    await self.write(event)
                    place = number
                if stream.done and not stream.after(place):
                    break
                if not events:
                    await self._wait()
        finally:
            watch.cancel()
            if lapse is not None:
                lapse.cancel()
        if not self._gone:
            await self._send({"type": "http.response.body", "body": b""})

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._limits.keep_alive):
                await self._stream.wake.wait()
        except TimeoutError:
            await self.write(sse.comment())

    def _lapse(self) -> None:
        self._over = True
        self._stream.wake.set()

    async def _look(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._stream.wake.set()


def resumed(session: Session, last: bytes) -> tuple[Stream, int]:
    """The stream an event id belongs to, and its place there; only ever a stream of the same session."""
    name, _, number = last.decode("latin-1").rpartition("-")
    stream = session.stream(name)
    if stream is None or not number.isascii() or not number.isdecimal() or len(number) > 12:
        raise Refusal(400, "Last-Event-ID names no event of this session")
    if stream.after(int(number)) is None:
        raise Refusal(400, "The events after Last-Event-ID are no longer kept")
    return stream, int(number)
