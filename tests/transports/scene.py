"""What the tests of transports play against: a service that does what the test says, and an ASGI server in the hand."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from dovetail.protocol.exchange import Exchange, Listener
from dovetail.protocol.limits import Limits
from dovetail.protocol.sse import Event, Parser
from dovetail.wire.content import TextContent
from dovetail.wire.lifecycle import Implementation, ListChangedCapability, ResourcesCapability, ServerCapabilities
from dovetail.wire.revisions import REVISIONS
from dovetail.wire.shape import Result
from dovetail.wire.tools import CallToolResult

NEWEST, LAST, BATCHING, FIRST, DRAFT = "2026-07-28", "2025-11-25", "2025-03-26", "2024-11-05", "draft"
PATIENCE = 10.0
VERSION = "io.modelcontextprotocol/protocolVersion"
META = {VERSION: NEWEST, "io.modelcontextprotocol/clientCapabilities": {}}

Work = Callable[[Exchange], Awaitable[Result | bytes]]


def said(text: str) -> CallToolResult:
    """A result that says this."""
    return CallToolResult(content=[TextContent(text=text)])


async def echo(exchange: Exchange) -> Result:
    return said(str(exchange.params.get("text", "")))


async def until(true: Callable[[], Any]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110 - what is looked at sets no event
            await asyncio.sleep(0.001)


async def settled(turns: int = 10) -> None:
    """Let everything happen that can happen without anything from outside."""
    for _ in range(turns):
        await asyncio.sleep(0)


class Stand:
    """A service. Each exchange is worked on by the function the test gave."""

    def __init__(self, work: Work = echo, *, revisions: tuple[str, ...] = REVISIONS, **limits: Any) -> None:
        self.implementation = Implementation(name="stand", version="1")
        self.instructions = None
        self.revisions = revisions
        self.limits = Limits(**limits)
        self.tap = None
        self.work = work
        self.listeners: list[Listener] = []
        self.seen: list[Exchange] = []

    def capabilities(self) -> ServerCapabilities:
        return ServerCapabilities(
            logging={},
            tools=ListChangedCapability(list_changed=True),
            resources=ResourcesCapability(subscribe=True, list_changed=True),
        )

    async def handle(self, exchange: Exchange) -> Result | bytes:
        self.seen.append(exchange)
        return await self.work(exchange)

    def readable(self, uri: str, principal: str | None) -> bool:
        return True

    def listen(self, listener: Listener) -> Callable[[], None]:
        self.listeners.append(listener)

        def stop() -> None:
            if listener in self.listeners:
                self.listeners.remove(listener)

        return stop

    def publish(self, method: str, uri: str | None = None) -> None:
        for listener in tuple(self.listeners):
            if listener.wants(method, uri):
                listener.deliver(method, uri)


class Held:
    """Work that begins, waits for the test, and remembers how it ended; by the text of the request."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.ends: dict[str, str] = {}
        self._free: dict[str, asyncio.Event] = {}

    def _gate(self, name: str) -> asyncio.Event:
        return self._free.setdefault(name, asyncio.Event())

    def release(self, *names: str) -> None:
        for name in names:
            self._gate(name).set()

    async def __call__(self, exchange: Exchange) -> Result:
        name = str(exchange.params.get("text", exchange.id))
        self.began.append(name)
        try:
            await self._gate(name).wait()
        except asyncio.CancelledError:
            self.ends[name] = exchange.verdict or "cancelled from outside"
            raise
        self.ends[name] = "done"
        return said(name)


# Messages


def request(method: str = "tools/call", id: Any = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def modern(method: str = "tools/call", id: Any = 1, **params: Any) -> dict[str, Any]:
    return request(method, id, **({"name": "echo"} if method == "tools/call" else {}) | params, _meta=META)


def notice(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def initialize(revision: str = LAST, id: Any = 0, **changes: Any) -> dict[str, Any]:
    given = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    return request("initialize", id, **given | changes)


INITIALIZED = notice("notifications/initialized")


def mirrored(message: dict[str, Any]) -> dict[str, str]:
    """The headers that repeat a modern message."""
    params = message.get("params") or {}
    name = params.get("name") or params.get("uri")
    headers = {"mcp-protocol-version": NEWEST, "mcp-method": message["method"]}
    return headers | ({} if name is None else {"mcp-name": name})


# HTTP without a server


class Visit:
    """One HTTP request to an ASGI application, in progress or over; checks that the application keeps to ASGI."""

    def __init__(
        self,
        app: Any,
        method: str = "POST",
        path: str = "/mcp",
        body: bytes | list[bytes] = b"",
        headers: Mapping[str, str] | list[tuple[bytes, bytes]] | None = None,
        **scope: Any,
    ) -> None:
        given = headers if isinstance(headers, list) else _headers(method, headers or {})
        self.scope = {
            "type": "http",
            "method": method,
            "path": path,
            "root_path": "",
            "query_string": b"",
            "headers": given,
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 8000),
        } | scope
        pieces = [body] if isinstance(body, bytes) else body
        self.coming = [
            {"type": "http.request", "body": piece, "more_body": place + 1 < len(pieces)}
            for place, piece in enumerate(pieces)
        ]
        self._gone = asyncio.Event()
        self._parser = Parser()
        self.sent: list[dict[str, Any]] = []
        self.body = b""
        self.events: list[Event] = []
        self.complete = False
        self.writable = asyncio.Event()
        self.writable.set()
        self.task = asyncio.create_task(app(self.scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self.coming:
            return self.coming.pop(0)
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        await self.writable.wait()
        assert not self.complete, "something was sent after the end"
        assert (message["type"] == "http.response.start") == (not self.sent), "a reply starts once"
        self.sent.append(message)
        if message["type"] == "http.response.body":
            self.body += message["body"]
            if self.streaming:
                self.events += self._parser.feed(message["body"])
            self.complete = not message.get("more_body", False)
        if self.complete and "content-length" in self.headers:
            assert int(self.headers["content-length"]) == len(self.body)

    def leave(self) -> None:
        """The client closes the connection."""
        self._gone.set()

    @property
    def status(self) -> int:
        return self.sent[0]["status"]

    @property
    def headers(self) -> dict[str, str]:
        listed = [(name.decode(), value.decode()) for name, value in self.sent[0]["headers"]]
        assert len(dict(listed)) == len(listed), "a header was sent twice"
        return dict(listed)

    @property
    def streaming(self) -> bool:
        return self.headers.get("content-type") == "text/event-stream"

    @property
    def messages(self) -> list[Any]:
        """What came so far, from a stream or as one document."""
        if not self.sent:
            return []
        if self.streaming:
            return [json.loads(event.data) for event in self.events if event.data]
        return [json.loads(self.body)] if self.body else []

    @property
    def last(self) -> Any:
        return self.messages[-1]

    async def done(self) -> "Visit":
        """Wait for the end of it."""
        async with asyncio.timeout(PATIENCE):
            await self.task
        assert self.complete or self._gone.is_set(), "the reply was never completed"
        return self


def _headers(method: str, given: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    plain = {"host": "localhost:8000", "accept": "application/json, text/event-stream"}
    typed = plain | ({"content-type": "application/json"} if method == "POST" else {})
    return [(name.encode(), value.encode()) for name, value in (typed | dict(given)).items() if value is not ...]


def visit(app: Any, message: Any, headers: Mapping[str, Any] | None = None, **scope: Any) -> Visit:
    """Begin to POST a message; a modern one brings its mirrored headers."""
    of_era = type(message) is dict and VERSION in ((message.get("params") or {}).get("_meta") or {})
    return Visit(
        app,
        body=json.dumps(message).encode(),
        headers=(mirrored(message) if of_era else {}) | dict(headers or {}),
        **scope,
    )


async def post(app: Any, message: Any, headers: Mapping[str, Any] | None = None, **scope: Any) -> Visit:
    """POST a message and wait for the end of the reply."""
    return await visit(app, message, headers, **scope).done()


async def opened(app: Any, revision: str = LAST, *, ready: bool = True, **changes: Any) -> dict[str, str]:
    """The headers of a session that has just been opened."""
    scope = {name: changes.pop(name) for name in ("client",) if name in changes}
    extra = changes.pop("headers", {})
    answer = await post(app, initialize(revision, **changes), extra, **scope)
    assert answer.last["result"]["protocolVersion"] == revision
    headers = {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": revision} | extra
    if ready:
        assert (await post(app, INITIALIZED, headers, **scope)).status == 202
    return headers
