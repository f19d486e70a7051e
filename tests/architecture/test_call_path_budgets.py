"""Limit how many of our functions and stack frames one request may use in a server or a client.

The tests count functions without naming them, so that you can rename, merge and move them. If a change needs a larger
budget, explain it here.
"""

import asyncio
import contextlib
import inspect
import json
import operator
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import msgspec
import pytest

from dovetail import Client, Host, Policy, Server
from dovetail.extensions import TaskConfig, TaskOptions
from dovetail.protocol.interfaces.client_transport import EncodedRequest
from dovetail.wire.raw_message import RawMessage

TIMEOUT_S = 10.0
CALLS = 25  # timers run during calls that a busy machine delays, but not during each of them
MAX_ROUND_TRIPS = 200
STATELESS, HANDSHAKE = "2026-07-28", "2025-11-25"
META = {"io.modelcontextprotocol/protocolVersion": STATELESS, "io.modelcontextprotocol/clientCapabilities": {}}

Call = Callable[[], Awaitable[Any]]


class Cost(NamedTuple):
    frames: int  # frames of ours on the stack when the user's function starts
    way_in: int  # different functions of ours that run before it
    way_out: int  # different functions of ours that run after it, until the response is written


# The design wants at most 6 frames and 30 functions on the way in over HTTP, 33 with a handshake session. The session
# does not reach that yet: its limit is today's count, 35. The design has no figures for Unix sockets (for stdio, which
# shares all but the reading of bytes, it has 11 and 24) and none for the way out. These limits are today's counts, too.
BUDGETS = {
    "http stateless": Cost(6, 30, 10),
    "http handshake": Cost(6, 35, 13),
    "socket stateless": Cost(12, 25, 10),
    "socket handshake": Cost(12, 23, 12),
}


def is_ours(frame: FrameType) -> bool:
    # Comprehensions and lambdas are frames in some versions of Python and not in others.
    return frame.f_globals.get("__name__", "").startswith("dovetail.") and "<" not in frame.f_code.co_name


class Counter:
    """A profiler that collects the functions that are entered, and a tool that splits them into way in and way out."""

    def __init__(self, app: Server) -> None:
        self.app = app
        self.app.add_tool(self.add)
        self.frames = 0
        self.way_in: set[CodeType] = set()
        self.way_out: set[CodeType] = set()
        self._entered = self.way_in

    async def add(self, a: int, b: int) -> int:
        frame = inspect.currentframe()
        while frame is not None:
            self.frames += is_ours(frame)
            frame = frame.f_back
        self._entered = self.way_out
        return a + b

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and is_ours(frame):
            self._entered.add(frame.f_code)

    async def count(self, call: Call) -> Cost:
        self.frames, self.way_in, self.way_out = 0, set(), set()
        self._entered = self.way_in
        previous = sys.getprofile()
        sys.setprofile(self.profile)
        try:
            response = await call()
        finally:
            sys.setprofile(previous)
        assert response["result"]["structuredContent"] in (3, {"result": 3})
        return Cost(self.frames, len(self.way_in), len(self.way_out))


def request(method: str, params: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


TOOL_CALL = {"name": "add", "arguments": {"a": 1, "b": 2}}
CALL = {"stateless": request("tools/call", TOOL_CALL | {"_meta": META}), "handshake": request("tools/call", TOOL_CALL)}
INITIALIZE = request(
    "initialize",
    {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
)
INITIALIZED = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'


async def post(app: Any, body: bytes, headers: dict[str, str]) -> tuple[Any, dict[str, str]]:
    """Call the ASGI application in this process; return the JSON body and the headers of its response."""
    sent: list[dict[str, Any]] = []
    unread = [{"type": "http.request", "body": body, "more_body": False}]
    headers = {"host": "localhost", "content-type": "application/json"} | headers
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/mcp",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 5),
        "server": ("127.0.0.1", 8000),
    }

    async def receive() -> dict[str, Any]:
        if not unread:
            await asyncio.Event().wait()  # the client neither sends more nor disconnects
        return unread.pop()

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    await app(scope, receive, send)
    start, *bodies = sent
    content = b"".join(event["body"] for event in bodies)
    return json.loads(content or b"null"), {name.decode(): value.decode() for name, value in start["headers"]}


@contextlib.asynccontextmanager
async def http(server: Server, era: str, folder: Path) -> AsyncIterator[Call]:
    app = server.asgi()
    if era == "stateless":
        headers = {"mcp-protocol-version": STATELESS, "mcp-method": "tools/call", "mcp-name": "add"}
    else:
        _, received = await post(app, INITIALIZE, {})
        headers = {"mcp-session-id": received["mcp-session-id"], "mcp-protocol-version": HANDSHAKE}
        await post(app, INITIALIZED, headers)

    async def call() -> Any:
        return (await post(app, CALL[era], headers))[0]

    yield call


@contextlib.asynccontextmanager
async def socket(server: Server, era: str, folder: Path) -> AsyncIterator[Call]:
    """A Unix socket: the line protocol of stdio, without another process."""
    path = folder / "socket"
    serving = asyncio.create_task(server.serve("unix", path=str(path)))
    while not path.exists():  # noqa: ASYNC110 - the server sets no event
        await asyncio.sleep(0.01)
    reader, writer = await asyncio.open_unix_connection(path)

    async def call() -> Any:
        writer.write(CALL[era] + b"\n")
        return json.loads(await reader.readline())

    if era == "handshake":
        writer.write(INITIALIZE + b"\n")
        await reader.readline()
        writer.write(INITIALIZED + b"\n")
    yield call
    writer.close()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


TRANSPORTS = {"http": http, "socket": socket}


def create_server_with_tasks() -> Server:
    """Create a server with tools that run as tasks, beside the tool that the tests call."""
    app = Server("budgets", tasks=TaskOptions(store=":memory:"))
    app.add_tool(lambda: None, name="task", task=True)
    app.add_tool(lambda: None, name="later", task=TaskConfig(after=1.0))
    return app


@pytest.mark.parametrize("create", [lambda: Server("budgets"), create_server_with_tasks], ids=["plain", "tasks"])
@pytest.mark.parametrize("path", BUDGETS)
async def test_a_call_stays_within_its_budget(path: str, create: Callable[[], Server], tmp_path: Path) -> None:
    transport, era = path.split()
    counter = Counter(create())
    async with asyncio.timeout(TIMEOUT_S), TRANSPORTS[transport](counter.app, era, tmp_path) as call:
        await counter.count(call)  # the first call may compile and import
        costs = [await counter.count(call) for _ in range(CALLS)]
    await counter.app.stop()
    cost = Cost(*map(min, zip(*costs, strict=True)))
    budget = BUDGETS[path]
    assert all(count <= limit for count, limit in zip(cost, budget, strict=True)), f"{path}: {cost}, budget {budget}"


# The round trip of a client, without its transport


class RoundTrip(NamedTuple):
    frames: int  # the greatest number of frames of ours on the stack
    functions: int  # different functions of ours that run


# The last row has no figures in the design. Its limits are today's counts: a result that is checked against a schema.
CLIENT_BUDGETS = {
    "call_tool": RoundTrip(5, 24),
    "list_tools": RoundTrip(6, 28),
    "call_tool, with an output schema": RoundTrip(7, 28),
}

RESULTS: dict[str, Any] = {
    "server/discover": {"supportedVersions": [STATELESS], "capabilities": {"tools": {}}},
    "initialize": {
        "protocolVersion": HANDSHAKE,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "test", "version": "1"},
    },
    "tools/list": {
        "tools": [
            {
                "name": "add",
                "inputSchema": {"type": "object"},
                "outputSchema": {"type": "object", "properties": {"result": {"type": "integer"}}},
            }
        ]
    },
    "tools/call": {"content": [], "structuredContent": {"result": 3}},
}


class ScriptedTransport:
    """Answers each request at once, with no function of ours."""

    has_headers = True

    async def open(self, receiver: Any) -> None:
        pass

    async def exchange(self, request: EncodedRequest) -> RawMessage:
        result = RESULTS[request.method] | ({"resultType": "complete"} if request.is_stateless else {})
        return msgspec.json.decode(json.dumps({"id": request.id, "result": result}), type=RawMessage)

    def is_answered(self, id: object) -> bool:
        return False

    def cancel(self, request: EncodedRequest, reason: str) -> bytes | None:
        return None

    async def send_message(self, body: bytes, headers: Any = ()) -> None:
        pass

    async def complete_handshake(self, revision: str) -> None:
        pass

    async def wait_until_listening(self) -> bool:
        return True

    async def close(self) -> None:
        pass

    def create_fallback(self) -> None:
        return None

    def suggest_fix(self) -> None:
        return None

    def get_diagnostics(self, since: float | None = None) -> dict[str, Any]:
        return {}


async def count_round_trip(call: Call) -> RoundTrip:
    deepest, entered = 0, set[CodeType]()

    def profile(frame: FrameType | None, event: str, argument: Any) -> None:
        nonlocal deepest
        if event == "call" and frame is not None and is_ours(frame):
            entered.add(frame.f_code)
            frames = 0
            while frame is not None:
                frames += is_ours(frame)
                frame = frame.f_back
            deepest = max(deepest, frames)

    previous = sys.getprofile()
    sys.setprofile(profile)
    try:
        await call()
    finally:
        sys.setprofile(previous)
    return RoundTrip(deepest, len(entered))


@pytest.mark.parametrize("protocol_version", [STATELESS, HANDSHAKE])
@pytest.mark.parametrize("path", CLIENT_BUDGETS)
async def test_a_request_of_a_client_stays_within_its_budget(path: str, protocol_version: str) -> None:
    async with Client(ScriptedTransport(), protocol_version=protocol_version) as client, asyncio.timeout(TIMEOUT_S):
        if "schema" in path:
            await client.list_tools()

        async def call() -> None:
            if path == "list_tools":
                assert [tool.name for tool in await client.list_tools()] == ["add"]
            else:
                assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"result": 3}

        await call()  # the first one may compile and import
        costs = [await count_round_trip(call) for _ in range(CALLS)]
    cost = RoundTrip(*map(min, zip(*costs, strict=True)))
    budget = CLIENT_BUDGETS[path]
    assert all(count <= limit for count, limit in zip(cost, budget, strict=True)), f"{path}: {cost}, budget {budget}"


# The whole way of a call through a host, to a server in another process and back.


# The policy allows the call, and nobody listens to events: no consent, no audit log.
ROUND_TRIPS = {"host": RoundTrip(8, 50), "gateway": RoundTrip(12, 80), "gateway with tasks": RoundTrip(12, 81)}

PROGRAM = """
from dovetail import Server

app = Server("budgets")

@app.tool
async def add(a: int, b: int) -> int:
    return a + b

app.run()
"""


@contextlib.asynccontextmanager
async def call_host(host: Host) -> AsyncIterator[Call]:
    async def call() -> Any:
        result = await host.call("far.add", TOOL_CALL["arguments"])
        assert result.structured_content in (3, {"result": 3})

    yield call


@contextlib.asynccontextmanager
async def call_gateway(host: Host, capabilities: dict[str, Any] | None = None) -> AsyncIterator[Call]:
    app = host.asgi()
    meta = META | {"io.modelcontextprotocol/clientCapabilities": capabilities or {}}
    body = request("tools/call", TOOL_CALL | {"name": "far__add", "_meta": meta})
    headers = {"mcp-protocol-version": STATELESS, "mcp-method": "tools/call", "mcp-name": "far__add"}

    async def call() -> Any:
        result = (await post(app, body, headers))[0]["result"]
        assert result["structuredContent"] in (3, {"result": 3})

    yield call
    await app.close()


# The caller declares the tasks extension, as every client of dovetail does. The server has no tasks.
CALLERS = {
    "host": call_host,
    "gateway": call_gateway,
    "gateway with tasks": partial(call_gateway, capabilities={"extensions": {"io.modelcontextprotocol/tasks": {}}}),
}


@pytest.mark.parametrize("path", ROUND_TRIPS)
async def test_a_call_of_a_host_stays_within_its_budget(path: str, tmp_path: Path) -> None:
    program = tmp_path / "far.py"
    program.write_text(PROGRAM)
    host = Host(policy=Policy("allow"))
    host.add("far", program)
    async with asyncio.timeout(TIMEOUT_S), host, CALLERS[path](host) as call:
        await count_round_trip(call)  # the first call may compile, import and start
        budget, costs = ROUND_TRIPS[path], [await count_round_trip(call)]
        # On a busy machine, timers run during a slow call. Some call is fast.
        while any(map(operator.gt, map(min, zip(*costs, strict=True)), budget)) and len(costs) < MAX_ROUND_TRIPS:
            costs.append(await count_round_trip(call))
    cost = RoundTrip(*map(min, zip(*costs, strict=True)))
    assert all(count <= limit for count, limit in zip(cost, budget, strict=True)), f"{path}: {cost}, budget {budget}"
