"""A proxy between a client and a server that records the traffic and forwards all bytes unchanged.

Over stdio, the proxy connects this process's streams to a child process. Over HTTP, it connects a local address to a
remote address.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from dovetail.errors import TransportError
from dovetail.protocol.http_checks import HostFilter, Refusal, collect_headers
from dovetail.protocol.interfaces.message_tap import Recorder
from dovetail.protocol.limits import ServerLimits
from dovetail.recording.trace import ResponseRecorder, number_exchanges
from dovetail.transports.http_client.http1_connection import COOKIE_SEPARATOR
from dovetail.transports.http_client.http_client import HTTPClient
from dovetail.transports.pipes import read_into
from dovetail.transports.process.child_process import ChildProcess

_CHUNK_BYTES: Final = 65536
_MAX_BODY_BYTES: Final = ServerLimits().max_body_bytes  # By default, servers reject bodies above this size.
_MAX_LINE_BYTES: Final = 64 * 1024 * 1024


class LineWatcher:
    """Splits a byte stream into lines and passes each line to a callback."""

    def __init__(self, on_line: Callable[[bytes], None]) -> None:
        self._on_line = on_line
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data
        if b"\n" not in data:
            if len(self._buffer) > _MAX_LINE_BYTES:
                # A line above this length cannot be an MCP message.
                self._buffer.clear()
            return
        *lines, rest = bytes(self._buffer).split(b"\n")
        self._buffer = bytearray(rest)
        for line in lines:
            if line.strip():
                self._on_line(line)


class _ChildOutput(asyncio.Protocol):
    def __init__(self, sink: int, recorder: Recorder) -> None:
        self._sink = sink
        self._line_watcher = LineWatcher(lambda line: recorder("client", line, ()))
        self.writable = asyncio.Event()
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        remaining = data
        while remaining:
            remaining = remaining[os.write(self._sink, remaining) :]
        self._line_watcher.feed(data)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()


async def proxy_streams(
    command: Sequence[str], source: int, sink: int, recorder: Recorder, stderr: Any = "inherit", **options: Any
) -> int:
    """Run a command and forward messages between the command and two file descriptors. Return the exit code."""
    loop = asyncio.get_running_loop()
    output = _ChildOutput(sink, recorder)
    child = await ChildProcess.start(command, output, stderr=stderr, **options)
    reader = asyncio.StreamReader()
    pipe = await read_into(reader, os.dup(source))
    feed_task = loop.create_task(_feed(reader, child, output, LineWatcher(lambda line: recorder("server", line, ()))))
    exit_task = loop.create_task(child.wait_exited())
    try:
        await asyncio.wait((feed_task, exit_task), return_when=asyncio.FIRST_COMPLETED)
    finally:
        feed_task.cancel()
        await asyncio.wait((feed_task,))
        pipe.close()
        await child.stop()
    return await exit_task


async def _feed(
    reader: asyncio.StreamReader, child: ChildProcess, output: _ChildOutput, line_watcher: LineWatcher
) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        await output.writable.wait()
        child.stdin.write(data)
        line_watcher.feed(data)


# The proxy does not forward headers that apply to one connection only (RFC 9110, section 7.6.1),
# and headers that each connection needs with its own value, such as Host.
_UNFORWARDED_HEADERS: Final = frozenset(
    b"host connection keep-alive proxy-connection proxy-authorization te trailer transfer-encoding upgrade "
    b"content-length accept-encoding content-encoding expect".split()
)


class RecordingProxy:
    """An ASGI application that forwards requests to another server and records them.

    Only programs on this machine can use it.

    `headers` contains the user's credentials. The proxy sends them only to one path, and web pages of other origins
    cannot use the proxy. spec: streamable-http#security-endpoint
    """

    def __init__(self, url: str, recorder: Recorder, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        parts = urlsplit(url)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._path = parts.path or "/"
        self._query = parts.query
        self._gate = HostFilter((), (), None)
        self._create_recorder = number_exchanges(recorder)
        self._headers = [*headers]
        self._http_client = HTTPClient()

    async def close(self) -> None:
        """Close the connections."""
        await self._http_client.close()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle an ASGI request."""
        if scope["type"] != "http":
            return
        try:
            self._gate.check(collect_headers(scope["headers"]), None)
        except Refusal as exc:
            await _send_error(send, exc.status, str(exc))
            return
        body = await _read_body(receive)
        if body is None:
            await _send_error(send, 413, f"the body must be at most {_MAX_BODY_BYTES} bytes")
            return
        path = scope["raw_path"].decode("latin-1") if scope.get("raw_path") else scope["path"]
        is_target_path = path == self._path
        query = scope["query_string"].decode("latin-1") or (self._query if is_target_path else "")
        extra_headers = self._headers if is_target_path else []
        excluded = _UNFORWARDED_HEADERS | {name.lower() for name, _ in extra_headers}
        headers = [(name, value) for name, value in scope["headers"] if name.lower() not in excluded]
        recorder = self._create_recorder()
        if body and is_target_path:
            recorder("server", body, headers)
        url = f"{self._origin}{path}{'?' + query if query else ''}"
        try:
            response = await self._http_client.fetch(scope["method"], url, [*headers, *extra_headers], body)
        except TransportError as exc:
            await _send_error(send, 502, str(exc))
            return
        response_recorder = ResponseRecorder(recorder) if is_target_path else None

        async def forward(message: dict[str, Any]) -> None:
            await send(message)
            if response_recorder is not None:
                response_recorder.record(message)

        response_headers = [
            (name, line)
            for name, value in response.headers.items()
            if name not in _UNFORWARDED_HEADERS
            for line in value.split(COOKIE_SEPARATOR)
        ]
        await forward({"type": "http.response.start", "status": response.status, "headers": response_headers})
        await _run_while_connected(receive, _forward_body(response, forward))


async def _forward_body(response: Any, forward: Callable[[dict[str, Any]], Any]) -> None:
    try:
        async for piece in response.chunks():
            await forward({"type": "http.response.body", "body": piece, "more_body": True})
        await forward({"type": "http.response.body", "body": b""})
    except TransportError:
        # The remote server did not complete its response, so this response stays incomplete, too.
        return


async def _run_while_connected(receive: Any, coroutine: Coroutine[Any, Any, None]) -> None:
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(coroutine), loop.create_task(receive())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _read_body(receive: Any) -> bytes | None:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > _MAX_BODY_BYTES:
            return None
        if not message.get("more_body"):
            return bytes(body)


async def _send_error(send: Any, status: int, reason: str) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": reason.encode()})
