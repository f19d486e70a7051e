"""Each kind of request to the server in `live_objects`, as a method that sends one request and waits for its end."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias

import pytest

from dovetail import Client, MCPError, ToolError
from support.full_server import NEWEST_HANDSHAKE, STATELESS

TIMEOUT_S = 30.0

Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Kind: TypeAlias = "Callable[[RequestKinds], Awaitable[None]]"


@asynccontextmanager
async def connect(target: Any, revision: str, **options: Any) -> AsyncIterator[Client]:
    """Open a client that answers questions."""
    answer = {"value": "this one"}
    client = Client(target, protocol_version=revision, elicitation_handler=lambda _: answer, cache=False, **options)
    async with client:
        yield client


class RequestKinds:
    """The requests of one client. Some kinds use connections without a client."""

    def __init__(self, client: Client, target: Any, revision: str) -> None:
        self._client = client
        self._target = target
        self._revision = revision
        self._is_http = isinstance(target, str) and target.startswith("http")

    async def plain(self) -> None:
        assert await self._client.call("echo", text="x") == "x"

    async def thread(self) -> None:
        assert await self._client.call("shout", text="x") == "x"

    async def streamed(self) -> None:
        await self._call_with_progress("report")

    async def streamed_later(self) -> None:
        await self._call_with_progress("report_later")

    async def _call_with_progress(self, tool: str) -> None:
        heard: list[Any] = []
        await self._client.call_tool(tool, progress_handler=lambda *progress: heard.append(progress))
        assert len(heard) == 1

    async def listen(self) -> None:
        async with self._client.listen(uris=["note://fixed"]) as changes:
            await self._client.call("touch")
            assert (await anext(aiter(changes))).uri == "note://fixed"

    async def cancelled(self) -> None:
        await self._cancel(reports=False)

    async def cancelled_stream(self) -> None:
        await self._cancel(reports=True)

    async def _cancel(self, *, reports: bool) -> None:
        async with self._wait_for_start():
            call = asyncio.create_task(
                self._client.call_tool("wait", {"reports": reports}, progress_handler=lambda *_: None)
            )
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call

    @asynccontextmanager
    async def _wait_for_start(self) -> AsyncIterator[None]:
        """Wait at the end until the tool `wait` has started once more."""
        before = await self._client.call("get_started", into=int)
        yield
        async with asyncio.timeout(TIMEOUT_S):
            while await self._client.call("get_started", into=int) == before:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def refused(self) -> None:
        with pytest.raises(MCPError):
            await self._client.call("unknown")
        if self._is_http:
            async with self._send_http("POST", {"content-type": "text/plain"}, b"{") as (reader, _):
                assert b" 415 " in await reader.readline()

    async def failed(self) -> None:
        with pytest.raises(ToolError):
            await self._client.call("fail")

    async def asking(self) -> None:
        assert await self._client.call("ask") == "this one"

    async def task(self) -> None:
        assert await self._client.call("work") == "done"

    async def reconnected(self) -> None:
        async with connect(self._target, self._revision) as client:
            assert await client.call("echo", text="x") == "x"

    async def route(self) -> None:
        async with self._send_http("GET", {}, path="/page") as (reader, _):
            assert b" 200 " in await reader.readline()

    async def disconnected(self) -> None:
        """Lose the connection of a call that has reported progress."""
        async with self._wait_for_start(), AsyncExitStack() as stack:
            if self._is_http:
                await self._start_http_call(stack)
            else:
                await self._start_call(stack)
            # In the handshake era, a call over HTTP continues without its client.
            stack.push_async_callback(self._client.call, "release")

    async def _start_call(self, stack: AsyncExitStack) -> None:
        """Send a call on a socket, and abort the connection at the end."""
        reader, writer = await stack.enter_async_context(self._open_socket())
        stack.callback(writer.transport.abort)
        writer.writelines(message + b"\n" for message in [*self._encode_opening(), self._encode_call()])
        await _read_until(reader, b"notifications/progress")

    async def _start_http_call(self, stack: AsyncExitStack) -> None:
        """Open a session if the era has sessions, send a call, and abort its connection at the end."""
        headers = {"mcp-protocol-version": self._revision}
        if self._revision == STATELESS:
            headers |= {"mcp-method": "tools/call", "mcp-name": "wait"}
        for message in self._encode_opening():
            async with self._send_http("POST", headers, message) as (reader, _):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                if "mcp-session-id: " in head:
                    headers["mcp-session-id"] = head.partition("mcp-session-id: ")[2].split()[0]
        if "mcp-session-id" in headers:
            stack.push_async_callback(self._end_session, headers)
        reader, writer = await stack.enter_async_context(self._send_http("POST", headers, self._encode_call()))
        stack.callback(writer.transport.abort)
        await _read_until(reader, b"notifications/progress")

    async def _end_session(self, headers: dict[str, str]) -> None:
        async with self._send_http("DELETE", headers) as (reader, _):
            assert b" 204 " in await reader.readline()

    def _encode_opening(self) -> list[bytes]:
        if self._revision == STATELESS:
            return []
        client_info = {"name": "raw", "version": "1"}
        params = {"protocolVersion": self._revision, "capabilities": {}, "clientInfo": client_info}
        return [_encode("initialize", params, 1), _encode("notifications/initialized")]

    def _encode_call(self) -> bytes:
        meta: dict[str, Any] = {"progressToken": "p"}
        if self._revision == STATELESS:
            meta["io.modelcontextprotocol/protocolVersion"] = STATELESS
            meta["io.modelcontextprotocol/clientCapabilities"] = {}
        return _encode("tools/call", {"name": "wait", "arguments": {"reports": True}, "_meta": meta}, 2)

    @asynccontextmanager
    async def _send_http(
        self, method: str, headers: dict[str, str], body: bytes = b"", path: str = "/mcp"
    ) -> AsyncIterator[Streams]:
        all_headers = {
            "host": "127.0.0.1",
            "connection": "close",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "content-length": str(len(body)),
        } | headers
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in all_headers.items())]
        async with self._open_socket() as (reader, writer):
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            yield reader, writer

    @asynccontextmanager
    async def _open_socket(self) -> AsyncIterator[Streams]:
        if self._target.startswith("unix:"):
            reader, writer = await asyncio.open_unix_connection(self._target.removeprefix("unix:"))
        else:
            port = int(self._target.split("://")[1].partition(":")[2].partition("/")[0])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def _read_until(reader: asyncio.StreamReader, text: bytes) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while text not in (line := await reader.readline()):
            assert line, "the connection has ended"


def _encode(method: str, params: dict[str, Any] | None = None, id: int | None = None) -> bytes:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        message["params"] = params
    if id is not None:
        message["id"] = id
    return json.dumps(message).encode()


REVISIONS = {"stateless": STATELESS, "handshake": NEWEST_HANDSHAKE}
KINDS: list[Kind] = [
    RequestKinds.plain,
    RequestKinds.thread,
    RequestKinds.streamed,
    RequestKinds.streamed_later,
    RequestKinds.listen,
    RequestKinds.cancelled,
    RequestKinds.cancelled_stream,
    RequestKinds.refused,
    RequestKinds.failed,
    RequestKinds.asking,
    RequestKinds.task,
]
SOCKET_KINDS: list[Kind] = [*KINDS, RequestKinds.reconnected, RequestKinds.disconnected]
HTTP_KINDS: list[Kind] = [*SOCKET_KINDS, RequestKinds.route]
