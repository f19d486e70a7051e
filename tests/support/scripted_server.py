"""Scripted servers with exact bytes: messages as lines on a socket, or HTTP. They use no code of the project.

    script = ScriptedServer("handshake", {"tools/call": lambda message: Messages([NOTIFICATION, RESULT])})
    async with serve_on_socket(script) as target: ...     # "tcp://127.0.0.1:4711"
    async with serve_over_http(script) as url: ...        # "http://127.0.0.1:4711/mcp"

A reaction is a value, or a function of the message that returns or awaits one:
    dict        the result of the request
    ErrorReply  an error response
    bytes       raw bytes (over HTTP the whole response with its head)
    generator   an asynchronous one, over HTTP: the pieces of the whole response. Then the connection is closed
    Messages    several messages in order, over HTTP an event stream
    SILENCE     no response
    CLOSE, RST  close or reset the connection
Methods without a reaction get the default response of the era.
"""

import asyncio
import contextlib
import inspect
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

STATELESS = "2026-07-28"
LATEST_HANDSHAKE = "2025-11-25"
ERAS = ("stateless", "handshake")
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"

SILENCE, CLOSE, RST = object(), object(), object()


@dataclass(frozen=True)
class ErrorReply:
    """An error response."""

    code: int
    message: str = "no"
    data: Any = None
    status: int = 200


class Messages(list[Any]):
    """Several messages: dicts with a method are notifications or requests, bytes are raw, all others are results."""


def tool_definition(name: str = "echo", **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


def text_result(value: str = "ok", **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}], "resultType": "complete", **more}


CAPABILITIES = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "logging": {},
    "completions": {},
}


def _default_reactions(era: str) -> dict[str, Any]:
    common: dict[str, Any] = {
        "tools/list": {"tools": [tool_definition()], "resultType": "complete"},
        "tools/call": text_result(),
        "resources/list": {"resources": [], "resultType": "complete"},
        "resources/templates/list": {"resourceTemplates": [], "resultType": "complete"},
        "prompts/list": {"prompts": [], "resultType": "complete"},
    }
    if era == "stateless":
        discovered = {"supportedVersions": [STATELESS], "capabilities": CAPABILITIES, "resultType": "complete"}
        return common | {
            "server/discover": discovered,
            "initialize": ErrorReply(-32022, "older", {"supported": [STATELESS]}),
        }
    info = {"name": "stand-in", "version": "1"}
    methods = ("ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe")
    empty: dict[str, Any] = {method: {} for method in methods}
    initialized = {"protocolVersion": LATEST_HANDSHAKE, "capabilities": CAPABILITIES, "serverInfo": info}
    return common | empty | {"initialize": initialized, "server/discover": ErrorReply(-32601, "what?")}


@dataclass
class ScriptedServer:
    """The reactions of a server, and the messages it received."""

    era: str = "stateless"
    reactions: Mapping[str, Any] = field(default_factory=dict[str, Any])
    session: str | None = None  # over HTTP, the session id in the response to initialize
    http_get_reaction: Any = None  # over HTTP, the reaction to a GET
    http_delete_reaction: Any = b"HTTP/1.1 204 Said\r\ncontent-length: 0\r\n\r\n"  # over HTTP, the reaction to a DELETE
    received: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    heads: list[tuple[str, dict[str, str]]] = field(default_factory=list[tuple[str, dict[str, str]]])
    connections: int = 0

    async def react(self, message: dict[str, Any]) -> Any:
        self.received.append(message)
        method = message.get("method", "")
        reaction = self.reactions.get(method, _default_reactions(self.era).get(method, ErrorReply(-32601, "unknown")))
        return await resolve_reaction(reaction, message)

    def count(self, method: str) -> int:
        """Return how many messages of a method arrived."""
        return sum(message.get("method") == method for message in self.received)


async def resolve_reaction(reaction: Any, *args: Any) -> Any:
    value = reaction(*args) if callable(reaction) else reaction
    return await value if inspect.isawaitable(value) else value


def create_response(message: Mapping[str, Any], reaction: Any) -> Any:
    """Return the response for a reaction."""
    if (
        isinstance(reaction, bytes)
        or "method" in get_reaction_keys(reaction)
        or "jsonrpc" in get_reaction_keys(reaction)
    ):
        return reaction
    if isinstance(reaction, ErrorReply):
        error = {"code": reaction.code, "message": reaction.message}
        if reaction.data is not None:
            error["data"] = reaction.data
        return {"jsonrpc": "2.0", "id": message["id"], "error": error}
    return {"jsonrpc": "2.0", "id": message["id"], "result": reaction}


def get_reaction_keys(reaction: Any) -> Any:
    return reaction if isinstance(reaction, dict) else ()


def encode_message(message: Any) -> bytes:
    if isinstance(message, bytes):
        return message
    return json.dumps({"jsonrpc": "2.0"} | message).encode()


def create_notification(method: str, **params: Any) -> dict[str, Any]:
    return {"method": method, "params": params}


# Lines


@asynccontextmanager
async def serve_on_socket(script: ScriptedServer) -> AsyncIterator[str]:
    """Serve the script on a TCP socket."""
    async with _listen(lambda reader, writer: _serve_lines(script, reader, writer)) as port:
        yield f"tcp://127.0.0.1:{port}"


async def _serve_lines(script: ScriptedServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    script.connections += 1
    running: set[asyncio.Task[None]] = set()
    async with asyncio.TaskGroup() as group:
        while line := await reader.readline():
            task = group.create_task(_answer_line(script, json.loads(line), writer))
            running.add(task)
            task.add_done_callback(running.discard)
        for task in tuple(running):
            task.cancel()


async def _answer_line(script: ScriptedServer, message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    reaction = await script.react(message)
    if "id" not in message or "method" not in message or reaction is SILENCE:
        return
    if reaction in (CLOSE, RST):
        close_connection(writer, reset=reaction is RST)
        return
    for item in reaction if isinstance(reaction, Messages) else [reaction]:
        writer.write(item if isinstance(item, bytes) else encode_message(create_response(message, item)) + b"\n")
        with contextlib.suppress(ConnectionError):
            await writer.drain()


# HTTP


@asynccontextmanager
async def serve_over_http(script: ScriptedServer) -> AsyncIterator[str]:
    """Serve the script over HTTP, with one URL for everything."""
    async with _listen(lambda reader, writer: _serve_http(script, reader, writer)) as port:
        yield f"http://127.0.0.1:{port}/mcp"


async def _serve_http(script: ScriptedServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    script.connections += 1
    while (head := await _read_head(reader)) is not None:
        method, headers = head
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        script.heads.append((method, headers))
        reply = await _create_reply(script, method, body)
        if reply is SILENCE:
            await reader.read()
            return
        if reply in (CLOSE, RST):
            close_connection(writer, reset=reply is RST)
            return
        if isinstance(reply, AsyncIterator):
            async for piece in reply:
                writer.write(piece)
                await writer.drain()
            return
        for piece in reply if isinstance(reply, list) else [reply]:
            writer.write(piece)
            await writer.drain()
        if b"connection: close" in (reply[0] if isinstance(reply, list) else reply):
            close_connection(writer)
            return


async def _read_head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]] | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    return first.split()[0], {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


async def _create_reply(script: ScriptedServer, method: str, body: bytes) -> Any:
    if method == "DELETE":
        return await resolve_reaction(script.http_delete_reaction, {})
    if method == "GET":
        reaction = (
            await resolve_reaction(script.http_get_reaction)
            if script.http_get_reaction is not None
            else encode_http_reply(b"", status=405)
        )
        return encode_event_stream(reaction, {}) if isinstance(reaction, Messages) else reaction
    message = json.loads(body)
    reaction = await script.react(message)
    if isinstance(reaction, bytes | AsyncIterator) or any(reaction is marker for marker in (SILENCE, CLOSE, RST)):
        return reaction
    if "id" not in message or "method" not in message:
        return encode_http_reply(b"", status=202)
    if isinstance(reaction, Messages):
        return encode_event_stream(reaction, message)
    extra = {"mcp-session-id": script.session} if script.session and message["method"] == "initialize" else {}
    status = reaction.status if isinstance(reaction, ErrorReply) else 200
    return encode_http_reply(encode_message(create_response(message, reaction)), status=status, **extra)


def encode_http_reply(body: bytes, *, status: int = 200, kind: str = "application/json", **headers: str) -> bytes:
    """Encode a whole response. Underscores in header names become hyphens."""
    all_headers = {"content-type": kind, "content-length": str(len(body))} | headers
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in all_headers.items())
    return f"HTTP/1.1 {status} Said\r\n{lines}\r\n".encode() + body


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-store\r\nconnection: close\r\n\r\n"
)


def encode_event_stream(messages: Messages, request: Mapping[str, Any]) -> list[bytes]:
    """Encode an event stream that ends with the connection."""
    events = [
        item if isinstance(item, bytes) else encode_event(encode_message(create_response(request, item)))
        for item in messages
    ]
    return [STREAM_HEAD, *events]


def encode_event(data: bytes, **fields: str) -> bytes:
    lines = "".join(f"{name}: {value}\n" for name, value in fields.items()).encode()
    return lines + b"data: " + data + b"\n\n"


# Sockets


@asynccontextmanager
async def _listen(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    tasks: set[asyncio.Task[Any]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await serve(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=64 * 1024 * 1024)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def close_connection(writer: asyncio.StreamWriter, *, reset: bool = False) -> None:
    """Close or reset a connection."""
    if reset:
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.close()
