"""Standing between a client and a server without being either: bytes are passed on as they come, and told to a tap.

Over standard streams between this process's own and a child's; over HTTP between an address here and one elsewhere.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from dovetail.errors import TransportError
from dovetail.protocol.http import Gate, Refusal, collect
from dovetail.protocol.recording import Tap
from dovetail.transports.fetch import Fetcher
from dovetail.transports.pipes import read_into
from dovetail.transports.process import Child
from dovetail.transports.tracing import Replies, exchanges

_CHUNK: Final = 65536
_LINE: Final = 64 * 1024 * 1024


class Spotted:
    """Cuts what passes into lines, and tells of each."""

    def __init__(self, tell: Callable[[bytes], None]) -> None:
        self._tell = tell
        self._held = bytearray()

    def see(self, data: bytes) -> None:
        """Some bytes that pass."""
        self._held += data
        if b"\n" not in data:
            if len(self._held) > _LINE:
                self._held.clear()  # what is no message need not be told
            return
        *lines, rest = bytes(self._held).split(b"\n")
        self._held = bytearray(rest)
        for line in lines:
            if line.strip():
                self._tell(line)


class _Output(asyncio.Protocol):
    """What a child writes, on its way to this process's client."""

    def __init__(self, sink: int, tap: Tap) -> None:
        self._sink = sink
        self._spotted = Spotted(lambda line: tap("client", line, ()))
        self.writable = asyncio.Event()
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        left = data
        while left:
            left = left[os.write(self._sink, left) :]
        self._spotted.see(data)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()


async def pass_streams(
    command: Sequence[str], source: int, sink: int, tap: Tap, stderr: Any = "inherit", **options: Any
) -> int:
    """Run a command between these descriptors until either side ends; how the command ended."""
    loop = asyncio.get_running_loop()
    output = _Output(sink, tap)
    child = await Child.start(command, output, stderr=stderr, **options)
    reader = asyncio.StreamReader()
    pipe = await read_into(reader, os.dup(source))
    reading = loop.create_task(_feed(reader, child, output, Spotted(lambda line: tap("server", line, ()))))
    ended = loop.create_task(child.exited())
    try:
        await asyncio.wait((reading, ended), return_when=asyncio.FIRST_COMPLETED)
    finally:
        reading.cancel()
        await asyncio.wait((reading,))
        pipe.close()
        await child.stop()
    return await ended


async def _feed(reader: asyncio.StreamReader, child: Child, output: _Output, spotted: Spotted) -> None:
    while data := await reader.read(_CHUNK):
        await output.writable.wait()
        child.stdin.write(data)
        spotted.see(data)


# Headers that belong to one connection, and what each side writes for itself. RFC 9110, section 7.6.1.
_NOT_PASSED: Final = frozenset(
    b"host connection keep-alive proxy-connection proxy-authorization te trailer transfer-encoding upgrade "
    b"content-length accept-encoding content-encoding expect".split()
)


class Passing:
    """An ASGI application that is another server's stand-in, for programs of this machine.

    The headers given are credentials of the user's: they go to the one path they are meant for, and no page of another
    origin may use them. spec: streamable-http#security-endpoint
    """

    def __init__(self, url: str, tap: Tap, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        parts = urlsplit(url)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._path = parts.path or "/"
        self._query = parts.query
        self._gate = Gate((), (), None)
        self._begun = exchanges(tap)
        self._headers = [*headers]
        self._fetcher = Fetcher()

    async def close(self) -> None:
        """Let go of the connections."""
        await self._fetcher.close()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI."""
        if scope["type"] != "http":
            return
        try:
            self._gate.check(collect(scope["headers"]), None)
        except Refusal as exc:
            await _refuse(send, exc.status, str(exc))
            return
        body = await _whole(receive)
        path = scope["raw_path"].decode("latin-1") if scope.get("raw_path") else scope["path"]
        here = path == self._path
        query = scope["query_string"].decode("latin-1") or (self._query if here else "")
        own = self._headers if here else []
        left_out = _NOT_PASSED | {name.lower() for name, _ in own}
        headers = [(name, value) for name, value in scope["headers"] if name.lower() not in left_out]
        tap = self._begun()
        if body and here:
            tap("server", body, headers)
        url = f"{self._origin}{path}{'?' + query if query else ''}"
        try:
            reply = await self._fetcher.fetch(scope["method"], url, [*headers, *own], body)
        except TransportError as exc:
            await _refuse(send, 502, str(exc))
            return
        seen = Replies(tap) if here else None

        async def passed(message: dict[str, Any]) -> None:
            await send(message)
            if seen is not None:
                seen.note(message)

        kept = [(name, value) for name, value in reply.headers.items() if name.lower() not in _NOT_PASSED]
        await passed({"type": "http.response.start", "status": reply.status, "headers": kept})
        await _while_there(receive, _body(reply, passed))


async def _body(reply: Any, passed: Callable[[dict[str, Any]], Any]) -> None:
    try:
        async for piece in reply.chunks():
            await passed({"type": "http.response.body", "body": piece, "more_body": True})
        await passed({"type": "http.response.body", "body": b""})
    except TransportError:
        return  # the reply ends as the other one did, unfinished


async def _while_there(receive: Any, work: Coroutine[Any, Any, None]) -> None:
    """Do some work for as long as the client is there."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(work), loop.create_task(receive())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _whole(receive: Any) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return bytes(body)


async def _refuse(send: Any, status: int, why: str) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": why.encode()})
