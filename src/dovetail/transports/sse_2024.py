"""The deprecated pair of the first revision: a GET whose event stream carries everything the server says, and a POST
address, named in its first event, for everything the client says. All of it is here and nowhere else.

spec: handshake/transports#http-with-sse
"""

import asyncio
import secrets
from collections import deque
from urllib.parse import parse_qs

from dovetail.protocol import sse
from dovetail.protocol.exchange import Service
from dovetail.protocol.http import Refusal
from dovetail.protocol.principal import Principal
from dovetail.transports.duplex import Duplex
from dovetail.transports.reply import STREAM_HEADERS, send_body
from dovetail.transports.request import Receive, Request, Send

_STALL = 1024 * 1024  # bytes waiting for a reader, beyond which nothing more is taken from it


class OldTransport:
    """The two addresses, below the endpoint's path and beside it."""

    def __init__(self, service: Service, path: str) -> None:
        self._service = service
        self._limits = service.limits
        under = path.rstrip("/")
        self._streams = {"/sse": "/messages", f"{under}/sse": f"{under}/messages"}
        self._posts = frozenset(self._streams.values())
        self._open: dict[str, _Connection] = {}

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._open)

    def serves(self, path: str) -> bool:
        """Whether a path is one of ours."""
        return path in self._streams or path in self._posts

    async def admit(self, path: str, request: Request) -> None:
        """Before a message is read: know whose it is, and wait while more lies in its stream than a reader takes."""
        if path in self._posts and request.method == "POST":
            await self._connection(request).room()

    async def serve(self, path: str, request: Request, body: bytes) -> None:
        """One request to either address."""
        if path in self._streams:
            if request.method != "GET":
                raise Refusal(405, "Open the stream with GET", [(b"allow", b"GET")])
            root = request.scope.get("root_path") or ""
            await self._stream(root + self._streams[path], request)
        elif request.method != "POST":
            raise Refusal(405, "Send messages with POST", [(b"allow", b"POST")])
        else:
            connection = self._connection(request)
            connection.lasts(request.lasts)
            connection.duplex.speaks(request.principal)
            connection.duplex.receive(body)
            await send_body(request.send, 202, request.cors, b"")

    async def _stream(self, address: str, request: Request) -> None:
        if len(self._open) >= self._limits.sessions:
            raise Refusal(503, "Too many sessions", [(b"retry-after", b"60")])
        origin = request.principal or request.address
        mine = sum(one.duplex.origin == origin for one in self._open.values())
        if origin is not None and mine >= self._limits.streams:
            raise Refusal(429, "Too many streams", [(b"retry-after", b"5")])
        connection, send = _Connection(self._service, request.principal), request.send
        connection.duplex.origin = origin
        connection.lasts(request.lasts)
        id = secrets.token_urlsafe(24)
        self._open[id] = connection
        try:
            headers = [*STREAM_HEADERS, *request.cors]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await _write(send, sse.event(f"{address}?session_id={id}".encode(), name="endpoint"))
            await connection.run(request.receive, send, self._limits.keep_alive)
        finally:
            del self._open[id]
            await connection.duplex.close()

    def _connection(self, request: Request) -> "_Connection":
        query = parse_qs(request.scope.get("query_string", b"").decode("latin-1"))
        names = query.get("session_id") or query.get("sessionId") or [""]
        connection = self._open.get(names[0])
        if connection is None or connection.principal != request.principal:
            raise Refusal(404, "There is no such session; open a stream with GET")
        return connection

    async def close(self) -> None:
        """End all streams."""
        for connection in list(self._open.values()):
            connection.end()


class _Connection:
    """One client: a Duplex that writes into an event stream."""

    def __init__(self, service: Service, principal: Principal | None) -> None:
        self.principal = principal
        self.duplex = Duplex(service, self._queue, drain=self.room, principal=principal, on_shutdown=self.end)
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._wake = asyncio.Event()
        self._sent = asyncio.Event()
        self._ended = False
        self._lapse: asyncio.TimerHandle | None = None

    def _queue(self, data: bytes) -> None:
        self._waiting.append(data)
        self._size += len(data)
        self._wake.set()

    async def room(self) -> None:
        """Wait until the reader has taken most of what waits for it."""
        while self._size > _STALL and not self._ended:
            self._sent.clear()
            await self._sent.wait()

    def lasts(self, seconds: float | None) -> None:
        """End when the caller's newest proof does: each message may bring another."""
        if self._lapse is not None:
            self._lapse.cancel()
        self._lapse = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self.end)

    def end(self) -> None:
        """No more is to be sent."""
        self.lasts(None)
        self._ended = True
        self._wake.set()
        self._sent.set()

    async def run(self, receive: Receive, send: Send, keep_alive: float) -> None:
        """Send what is queued until the client leaves."""
        watch = asyncio.get_running_loop().create_task(self._look(receive))
        try:
            while not self._ended or self._waiting:
                while self._waiting:
                    data = self._waiting.popleft()
                    await _write(send, sse.event(data, name="message"))
                    self._size -= len(data)
                    self._sent.set()
                self._wake.clear()
                if not self._ended:
                    await self._wait(send, keep_alive)
        finally:
            self.end()
            watch.cancel()
        await send({"type": "http.response.body", "body": b""})

    async def _wait(self, send: Send, keep_alive: float) -> None:
        try:
            async with asyncio.timeout(keep_alive):
                await self._wake.wait()
        except TimeoutError:
            await _write(send, sse.comment())

    async def _look(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._waiting.clear()
        self.end()


async def _write(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})
