"""One HTTP/1.1 connection of a client: bytes out, a reply in, one request at a time.

It knows no pool, no proxy and no TLS; whoever opened the connection hears when a reply is complete and when the
connection is lost.
"""

import asyncio
import select
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from io import BytesIO
from typing import Self, cast

import httptools

from dovetail.errors import TransportError
from dovetail.protocol.limits import FetchLimits
from dovetail.transports.inflate import BadReply, Inflater, TooLarge

_PIECE = 64  # what a queued piece of a body weighs beside its bytes

_LINGER = 0.5  # for the end of a reply nobody wants more of


class Broken(TransportError):
    """The connection died. `sent`: something of the request may have left; `head`: the head of the reply had come."""

    def __init__(self, message: str, *, sent: bool, head: bool) -> None:
        super().__init__(message)
        self.sent = sent
        self.head = head


class Reply:
    """A reply whose head has arrived. The body is read whole with `read`, or piece by piece by iterating."""

    __slots__ = (
        "_connection", "_done", "_fault", "_inflater", "_limits", "_loop", "_queue", "_queued", "_waiter", "headers",
        "status", "url",
    )  # fmt: skip

    def __init__(self, url: str, connection: "Connection", loop: asyncio.AbstractEventLoop) -> None:
        self.url = url
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self._connection: Connection | None = connection
        self._limits = connection.limits
        self._loop = loop
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._done = False
        self._fault: TransportError | None = None
        self._inflater: Inflater | None = None
        # Who waits: first for the head, then for a piece of the body.
        self._waiter: asyncio.Future[None] | None = None

    async def read(self) -> bytes:
        """The whole body.

        Raises:
            TooLarge: it is larger than the limit.
            Broken, BadReply: it did not come to its end.
        """
        if self._inflater is None:
            declared = int(self.headers.get(b"content-length", 0))
            if declared > self._limits.body and not self._done:
                raise self._give_up(TooLarge(f"The reply is longer than {self._limits.body} bytes: {declared}"))
            if self._done and len(self._queue) == 1 and len(self._queue[0]) <= self._limits.body:
                return self._take()
        body = BytesIO()
        async for piece in self:
            if body.tell() + len(piece) > self._limits.body:
                raise self._give_up(TooLarge(f"The reply is longer than {self._limits.body} bytes"))
            body.write(piece)
        return body.getvalue()

    def chunks(self) -> AsyncIterator[bytes]:
        """The body in pieces as they come, decompressed; the sum is not limited."""
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while not (piece := self._piece()):
            if self._fault is not None:
                raise self._fault
            if self._done:
                raise StopAsyncIteration
            await self.wait()
        return piece

    def close(self) -> None:
        """Want no more. If the body is not complete, the connection is dropped, which cancels the request."""
        if self._connection is not None:
            self._connection.drop("was closed by this side")
        self._queue.clear()
        self._queued = 0

    def release(self) -> None:
        """Want no more, but keep the connection if the rest comes at once, as the end of a stream does."""
        if self._connection is not None:
            self._loop.call_later(_LINGER, self.close)

    # What the connection and whoever sends call.

    async def wait(self) -> None:
        """Until something happened: the head, a piece, the end, a fault. Cancelling this cancels the request."""
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._waiter = None

    def begin(self, status: int) -> None:
        """The head is complete."""
        self.status = status
        coding = self.headers.get(b"content-encoding", b"identity").lower()
        if coding in (b"gzip", b"x-gzip", b"deflate"):
            self._inflater = Inflater(gzip=coding != b"deflate", limits=self._limits)
        elif coding not in (b"identity", b""):
            raise BadReply("The reply is encoded in a way that was not asked for")
        self._wake()

    def put(self, piece: bytes) -> bool:
        """A piece of the body; says whether that is enough for now."""
        self._queue.append(piece)
        self._queued += len(piece) + _PIECE
        self._wake()
        return self._queued > self._limits.queued

    def end(self) -> None:
        """The body is complete."""
        self._connection = None
        self._done = True
        self._wake()

    def fail(self, fault: TransportError) -> None:
        """The rest will not come."""
        self._connection = None
        self._fault = fault
        self._wake()

    @property
    def fault(self) -> TransportError | None:
        return self._fault

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _take(self) -> bytes:
        piece = self._queue.popleft()
        self._queued -= len(piece) + _PIECE
        if self._connection is not None and self._queued <= self._limits.queued // 2:
            self._connection.resume()
        return piece

    def _piece(self) -> bytes:
        inflater = self._inflater
        if inflater is None:
            return self._take() if self._queue else b""
        try:
            while not (piece := inflater.take()) and self._queue:
                inflater.give(self._take())
            if not piece and self._done:
                inflater.check_end()
        except TransportError as fault:
            raise self._give_up(fault) from None
        return piece

    def _give_up(self, fault: TransportError) -> TransportError:
        self.close()
        self._done = False
        self._fault = fault
        return fault


class Connection(asyncio.Protocol):
    """One connection. `done` is called when a reply is complete, with whether another request may follow."""

    __slots__ = (
        "_bodiless", "_closed", "_count", "_done", "_fault", "_loop", "_lost", "_parser", "_paused", "_poll", "_quiet",
        "_reply", "_reusable", "_size", "_spoilt", "_transport", "_until_end", "idle_since", "limits",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: FetchLimits,
        done: Callable[["Connection", bool], None],
        lost: Callable[["Connection"], None],
    ) -> None:
        self.limits = limits
        self.idle_since = 0.0
        self._loop = loop
        self._done = done
        self._lost = lost
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._poll: Callable[[], bool] = bool
        self._reply: Reply | None = None
        self._closed = False
        self._paused = False
        self._spoilt = False
        self._fault: TransportError | None = None
        self._bodiless = False
        self._until_end = False
        self._reusable = False
        self._size = 0
        self._count = 0
        self._quiet = 0

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    @property
    def dead(self) -> bool:
        """Whether a quiet connection has ended or said something unasked, also if the loop has yet to tell us."""
        return self._closed or self.transport.is_closing() or self._poll()

    async def send(self, request: bytes, url: str, *, bodiless: bool = False) -> Reply:
        """Write a request in one piece and wait for the head of the reply. `bodiless`: a body cannot follow it."""
        if self._closed or self.transport.is_closing():
            self.abort()
            raise Broken("The connection was closed before the request", sent=False, head=False)
        self._reply = reply = Reply(url, self, self._loop)
        self._bodiless = bodiless
        self._size = self._count = self._quiet = 0
        self.transport.write(request)
        while not reply.status:
            await reply.wait()
            if reply.fault is not None and not reply.status:
                raise reply.fault
        return reply

    def abort(self) -> None:
        """Close without another word."""
        self._closed = True
        self._reply = None
        if self._transport is not None:
            self._transport.abort()

    def drop(self, how: str) -> None:
        """Close, and let whoever waits for a reply know how that came."""
        if self._reply is not None:
            head = self._reply.status > 0
            where = "in the middle of the reply" if head else "before it replied"
            self._fail(Broken(f"The connection {how} {where}", sent=True, head=head))
        else:
            self.abort()

    def resume(self) -> None:
        """Read on."""
        if self._paused:
            self._paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    # asyncio calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._poll = _poll(transport.get_extra_info("socket").fileno())

    def data_received(self, data: bytes) -> None:
        if self._reply is None or self._parser is None:
            self.abort()
            return
        self._quiet += len(data)
        fault = None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._spoilt = True
            fault = self._fault or BadReply(f"The reply is not well-formed HTTP: {error}")
        if self._quiet > self.limits.header_block and fault is None:
            fault = TooLarge(f"The reply has more than {self.limits.header_block} bytes of headers")
        if not self._reply:
            # Complete. What came behind it, if anything did, nobody asked for.
            self._finish()
        elif fault is not None:
            self._fail(fault)

    def eof_received(self) -> None:
        if self._reply is not None and self._until_end:
            self._complete()
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._parser = None  # which refers to this object
        self.drop("was lost" if exc is not None else "was closed by the server")
        self._lost(self)

    # The parser calls these.

    def on_message_begin(self) -> None:
        if self._reply is None:
            self._spoilt = True

    def on_header(self, name: bytes, value: bytes) -> None:
        reply = self._reply
        if reply is None or reply.status:
            return  # a trailer
        self._size += len(name) + len(value) + 4
        self._count += 1
        if self._size > self.limits.header_block:
            self._refuse(TooLarge(f"The reply has more than {self.limits.header_block} bytes of headers"))
        if self._count > self.limits.headers:
            self._refuse(TooLarge(f"The reply has more than {self.limits.headers} headers"))
        name = name.lower()
        known = reply.headers.get(name)
        reply.headers[name] = value if known is None else known + b", " + value

    def on_headers_complete(self) -> None:
        reply, parser = self._reply, self._parser
        if reply is None or parser is None:
            return
        status = parser.get_status_code()
        if not parser.get_http_version().startswith("1.") or status < 100 or status == 101:
            self._refuse(BadReply("The reply is not HTTP/1.1"))
        if status < 200:
            reply.headers.clear()
            return
        coding = reply.headers.get(b"transfer-encoding")
        if coding is not None and coding.lower() != b"chunked":
            self._refuse(BadReply("The reply has a transfer encoding that is not chunked"))
        self._reusable = parser.should_keep_alive()
        self._until_end = coding is None and b"content-length" not in reply.headers
        try:
            reply.begin(status)
        except BadReply as fault:
            self._refuse(fault)
        self._quiet = 0
        if self._bodiless:
            self._reusable = False
            self._complete()

    def on_body(self, piece: bytes) -> None:
        self._quiet = 0
        if self._reply is None:
            self._spoilt = True
        elif self._reply.put(piece) and not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._reply is not None and self._reply.status:
            self._complete()

    def _complete(self) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.end()

    def _finish(self) -> None:
        self.resume()
        if self._spoilt:
            self.abort()
        self._done(self, self._reusable and not self._closed and not self.transport.get_write_buffer_size())

    def _fail(self, fault: TransportError) -> None:
        reply = self._reply
        self.abort()
        if reply is not None:
            reply.fail(fault)

    def _refuse(self, fault: TransportError) -> None:
        self._fault = fault
        raise fault


if sys.platform == "win32":

    def _poll(number: int) -> Callable[[], bool]:
        """A function that says, without waiting, whether there is something to read from this socket."""
        return lambda: bool(select.select([number], [], [], 0)[0])

else:

    def _poll(number: int) -> Callable[[], bool]:
        """A function that says, without waiting, whether there is something to read from this socket."""
        poll = select.poll()
        poll.register(number, select.POLLIN)
        return lambda: bool(poll.poll(0))
