"""Fakes for the transport tests: a service that does what the test says, and ASGI requests without a server."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from dovetail.cluster.cluster_worker import ClusterWorker
from dovetail.protocol.exchange import ChangeListener, IncomingExchange
from dovetail.protocol.limits import ServerLimits
from dovetail.protocol.sse import ServerSentEvent, SSEParser
from dovetail.wire.base import Result
from dovetail.wire.content import TextContent
from dovetail.wire.lifecycle import Implementation, ListChangedCapability, ResourcesCapability, ServerCapabilities
from dovetail.wire.methods import REQUESTS
from dovetail.wire.revisions import REVISIONS
from dovetail.wire.tools import CallToolResult

NEWEST, LATEST_HANDSHAKE, BATCHING, FIRST, DRAFT = "2026-07-28", "2025-11-25", "2025-03-26", "2024-11-05", "draft"
TIMEOUT_S = 60.0
VERSION = "io.modelcontextprotocol/protocolVersion"
META = {VERSION: NEWEST, "io.modelcontextprotocol/clientCapabilities": {}}

Work = Callable[[IncomingExchange], Awaitable[Result | bytes]]


def text_result(text: str) -> CallToolResult:
    """Return a result with this text."""
    return CallToolResult(content=[TextContent(text=text)])


async def echo(exchange: IncomingExchange) -> Result:
    return text_result(str(exchange.params.get("text", "")))


async def wait_until(condition: Callable[[], Any]) -> None:
    """Wait until a condition is true."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - what is looked at sets no event
            await asyncio.sleep(0.001)


async def run_pending_callbacks(turns: int = 10) -> None:
    """Run the event loop for some turns, so that all ready callbacks run."""
    for _ in range(turns):
        await asyncio.sleep(0)


class FakeService:
    """A service that runs the function of the test for each exchange."""

    def __init__(self, work: Work = echo, *, protocol_versions: tuple[str, ...] = REVISIONS, **limits: Any) -> None:
        self.implementation = Implementation(name="stand", version="1")
        self.instructions: str | None = None
        self.refresh_description: Callable[[], Awaitable[None]] | None = None
        self.protocol_versions = protocol_versions
        self.requests = REQUESTS
        self.limits = ServerLimits(**limits)
        self.recorder = None
        self.cluster: ClusterWorker | None = None
        self.work = work
        self.listeners: list[ChangeListener] = []
        self.seen: list[IncomingExchange] = []

    def capabilities(self) -> ServerCapabilities:
        return ServerCapabilities(
            logging={},
            tools=ListChangedCapability(list_changed=True),
            resources=ResourcesCapability(subscribe=True, list_changed=True),
        )

    def receive_notification(self, exchange: IncomingExchange) -> None:
        pass

    async def handle(self, exchange: IncomingExchange) -> Result | bytes:
        self.seen.append(exchange)
        return await self.work(exchange)

    def can_receive_updates(self, uri: str, principal: Any) -> bool:
        return True

    def can_subscribe(self, uri: str, principal: str | None) -> bool:
        return True

    def watch_resource(self, uri: str, principal: str | None, origin: str | None) -> None:
        return None

    def subscribe(self, listener: ChangeListener) -> Callable[[], None]:
        self.listeners.append(listener)

        def stop() -> None:
            if listener in self.listeners:
                self.listeners.remove(listener)

        return stop

    def publish(self, method: str, uri: str | None = None) -> None:
        for listener in tuple(self.listeners):
            if listener.is_subscribed(method, uri):
                listener.deliver(method, uri)


class PausedWork:
    """Work that starts, waits for the test, and records its outcome, by the text of the request."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.outcomes: dict[str, str] = {}
        self._release_events: dict[str, asyncio.Event] = {}

    def _release_event(self, name: str) -> asyncio.Event:
        return self._release_events.setdefault(name, asyncio.Event())

    def release(self, *names: str) -> None:
        for name in names:
            self._release_event(name).set()

    async def __call__(self, exchange: IncomingExchange) -> Result:
        name = str(exchange.params.get("text", exchange.id))
        self.started.append(name)
        try:
            await self._release_event(name).wait()
        except asyncio.CancelledError:
            self.outcomes[name] = exchange.verdict or "cancelled from outside"
            raise
        self.outcomes[name] = "done"
        return text_result(name)


# Messages


def request(method: str = "tools/call", id: Any = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def stateless_request(method: str = "tools/call", id: Any = 1, **params: Any) -> dict[str, Any]:
    return request(method, id, **({"name": "echo"} if method == "tools/call" else {}) | params, _meta=META)


def create_notification(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def initialize(revision: str = LATEST_HANDSHAKE, id: Any = 0, **changes: Any) -> dict[str, Any]:
    given = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    return request("initialize", id, **given | changes)


INITIALIZED = create_notification("notifications/initialized")


def mirror_headers(message: dict[str, Any]) -> dict[str, str]:
    """Return the headers that mirror a stateless message."""
    params = message.get("params") or {}
    name = params.get("name") or params.get("uri")
    headers = {"mcp-protocol-version": NEWEST, "mcp-method": message["method"]}
    return headers | ({} if name is None else {"mcp-name": name})


# HTTP without a server


class AsgiRequest:
    """One HTTP request to an ASGI app, running or complete. It checks that the app follows ASGI."""

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
        self._disconnected = asyncio.Event()
        self._parser = SSEParser()
        self.sent: list[dict[str, Any]] = []
        self.body = b""
        self.events: list[ServerSentEvent] = []
        self.complete = False
        self.writable = asyncio.Event()
        self.writable.set()
        self.task = asyncio.create_task(app(self.scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self.coming:
            return self.coming.pop(0)
        await self._disconnected.wait()
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

    def disconnect(self) -> None:
        """Close the connection as the client."""
        self._disconnected.set()

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
        """Return the messages so far, from a stream or from one JSON document."""
        if not self.sent:
            return []
        if self.streaming:
            return [json.loads(event.data) for event in self.events if event.data]
        return [json.loads(self.body)] if self.body else []

    @property
    def last(self) -> Any:
        return self.messages[-1]

    async def wait_done(self) -> "AsgiRequest":
        """Wait until the request is complete."""
        async with asyncio.timeout(TIMEOUT_S):
            await self.task
        assert self.complete or self._disconnected.is_set(), "the reply was never completed"
        return self


def _headers(method: str, given: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    plain = {"host": "localhost:8000", "accept": "application/json, text/event-stream"}
    typed = plain | ({"content-type": "application/json"} if method == "POST" else {})
    return [(name.encode(), value.encode()) for name, value in (typed | dict(given)).items() if value is not ...]


def start_post(app: Any, message: Any, headers: Mapping[str, Any] | None = None, **scope: Any) -> AsgiRequest:
    """Start to POST a message. A stateless one gets its mirrored headers."""
    of_era = type(message) is dict and VERSION in ((message.get("params") or {}).get("_meta") or {})
    return AsgiRequest(
        app,
        body=json.dumps(message).encode(),
        headers=(mirror_headers(message) if of_era else {}) | dict(headers or {}),
        **scope,
    )


async def post(app: Any, message: Any, headers: Mapping[str, Any] | None = None, **scope: Any) -> AsgiRequest:
    """POST a message, and wait for the end of the response."""
    return await start_post(app, message, headers, **scope).wait_done()


async def open_session(
    app: Any, revision: str = LATEST_HANDSHAKE, *, ready: bool = True, **changes: Any
) -> dict[str, str]:
    """Open a session, and return its headers."""
    scope = {name: changes.pop(name) for name in ("client",) if name in changes}
    extra = changes.pop("headers", {})
    answer = await post(app, initialize(revision, **changes), extra, **scope)
    assert answer.last["result"]["protocolVersion"] == revision
    headers = {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": revision} | extra
    if ready:
        assert (await post(app, INITIALIZED, headers, **scope)).status == 202
    return headers
