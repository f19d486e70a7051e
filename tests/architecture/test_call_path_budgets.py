"""Limit how many of our functions and stack frames one request may use in a server or a client.

The limits are in `budgets.toml`. The tests count functions without naming them, so that you can rename, merge and move
them.
"""

import asyncio
import contextlib
import inspect
import json
import operator
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import pytest

from dovetail import Client, Host, Policy, Server
from dovetail.extensions import TaskConfig, TaskOptions
from dovetail.protocol.interfaces.client_transport import EncodedRequest
from dovetail.testing import serve
from dovetail.wire.raw_message import RawMessage
from support.processes import run_service

TIMEOUT_S = 10.0
CALLS = 25  # timers run during calls that a busy machine delays, but not during each of them
MAX_ROUND_TRIPS = 200
STATELESS, HANDSHAKE = "2026-07-28", "2025-11-25"
META = {"io.modelcontextprotocol/protocolVersion": STATELESS, "io.modelcontextprotocol/clientCapabilities": {}}

Call = Callable[[], Awaitable[Any]]


BUDGETS = tomllib.loads(Path(__file__).with_name("budgets.toml").read_text(encoding="utf-8"))


class Cost(NamedTuple):
    frames: int  # frames of ours on the stack when the user's function starts
    way_in: int  # different functions of ours that run before it
    way_out: int  # different functions of ours that run after it, until the response is written


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


def check_budget(section: str, path: str, costs: Sequence[NamedTuple]) -> None:
    """Compare the least costs of several calls with the limits, because timers run during some calls."""
    cost = {name: min(counts) for name, counts in zip(costs[0]._fields, zip(*costs, strict=True), strict=True)}
    budget = BUDGETS[section][path]
    assert all(count <= budget[name] for name, count in cost.items()), (
        f"{path} needs {cost}, and [{section}] in budgets.toml allows {budget}. "
        "A commit that raises a limit gives the reason in its message."
    )


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
    headers = await open_session(partial(post, app), era)

    async def call() -> Any:
        return (await post(app, CALL[era], headers))[0]

    yield call


async def open_session(post: Callable[..., Any], era: str) -> dict[str, str]:
    """Return the headers of a call."""
    if era == "stateless":
        return {"mcp-protocol-version": STATELESS, "mcp-method": "tools/call", "mcp-name": "add"}
    _, received = await post(INITIALIZE, {})
    headers = {"mcp-session-id": received["mcp-session-id"], "mcp-protocol-version": HANDSHAKE}
    await post(INITIALIZED, headers)
    return headers


@contextlib.asynccontextmanager
async def own_http(server: Server, era: str, folder: Path) -> AsyncIterator[Call]:
    """The HTTP server of dovetail."""
    async with serve(server, transport="http") as url:
        address = urlsplit(str(url))
        reader, writer = await asyncio.open_connection(address.hostname, address.port)

        async def send(body: bytes, headers: dict[str, str]) -> tuple[Any, dict[str, str]]:
            headers = {"host": address.netloc, "content-type": "application/json"} | headers
            lines = [f"{name}: {value}" for name, value in {**headers, "content-length": len(body)}.items()]
            writer.write("\r\n".join(["POST /mcp HTTP/1.1", *lines, "", ""]).encode() + body)
            _, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            received = dict(line.lower().split(": ", 1) for line in lines if line)
            if "mcp-session-id" in received:  # it distinguishes case
                received["mcp-session-id"] = next(
                    line[16:] for line in lines if line.lower().startswith("mcp-session-id")
                )
            content = await reader.readexactly(int(received.get("content-length", 0)))
            return json.loads(content or b"null"), received

        headers = await open_session(send, era)

        async def call() -> Any:
            return (await send(CALL[era], headers))[0]

        yield call
        writer.close()


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


TRANSPORTS = {"http": http, "own_http": own_http, "socket": socket}


def create_server_with_tasks() -> Server:
    """Create a server with tools that run as tasks, beside the tool that the tests call."""
    app = Server("budgets", tasks=TaskOptions(store=":memory:"))
    app.add_tool(lambda: None, name="task", task=True)
    app.add_tool(lambda: None, name="later", task=TaskConfig(after=1.0))
    return app


@pytest.mark.parametrize("create", [lambda: Server("budgets"), create_server_with_tasks], ids=["plain", "tasks"])
@pytest.mark.parametrize("path", BUDGETS["calls_of_a_server"])
async def test_a_call_stays_within_its_budget(path: str, create: Callable[[], Server], tmp_path: Path) -> None:
    transport, era = path.split()
    counter = Counter(create())
    async with asyncio.timeout(TIMEOUT_S), TRANSPORTS[transport](counter.app, era, tmp_path) as call:
        await counter.count(call)  # the first call may compile and import
        costs = [await counter.count(call) for _ in range(CALLS)]
    await counter.app.stop()
    check_budget("calls_of_a_server", path, costs)


# The round trip of a client, without its transport


class RoundTrip(NamedTuple):
    frames: int  # the greatest number of frames of ours on the stack
    functions: int  # different functions of ours that run


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
@pytest.mark.parametrize("path", BUDGETS["requests_of_a_client"])
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
    check_budget("requests_of_a_client", path, costs)


# The round trip of a call to a server in another process


PROGRAM = """
import sys
from dovetail import Server

app = Server("budgets")

@app.tool
async def add(a: int, b: int) -> int:
    return a + b

app.run("http", port=0) if "http" in sys.argv else app.run()
"""


@contextlib.asynccontextmanager
async def call_with_client(program: Path | str) -> AsyncIterator[Call]:
    async with Client(program) as client:

        async def call() -> Any:
            assert (await client.call_tool("add", TOOL_CALL["arguments"])).structured_content in (3, {"result": 3})

        yield call


@contextlib.asynccontextmanager
async def call_over_http(program: Path) -> AsyncIterator[Call]:
    with run_service([sys.executable, str(program), "http"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        async with call_with_client(process.stderr.readline().split()[-1]) as call:
            yield call


@contextlib.asynccontextmanager
async def open_host(program: Path) -> AsyncIterator[Host]:
    async with Host(policy=Policy("allow")) as host:
        host.add("far", program)
        yield host


@contextlib.asynccontextmanager
async def call_host(program: Path) -> AsyncIterator[Call]:
    async with open_host(program) as host:

        async def call() -> Any:
            result = await host.call("far.add", TOOL_CALL["arguments"])
            assert result.structured_content in (3, {"result": 3})

        yield call


@contextlib.asynccontextmanager
async def call_gateway(program: Path, capabilities: dict[str, Any] | None = None) -> AsyncIterator[Call]:
    meta = META | {"io.modelcontextprotocol/clientCapabilities": capabilities or {}}
    body = request("tools/call", TOOL_CALL | {"name": "far__add", "_meta": meta})
    headers = {"mcp-protocol-version": STATELESS, "mcp-method": "tools/call", "mcp-name": "far__add"}
    async with open_host(program) as host:
        app = host.asgi()

        async def call() -> Any:
            result = (await post(app, body, headers))[0]["result"]
            assert result["structuredContent"] in (3, {"result": 3})

        yield call
        await app.close()


# The caller declares the tasks extension, as every client of dovetail does. The server has no tasks.
CALLERS = {
    "stdio": call_with_client,
    "http": call_over_http,
    "host": call_host,
    "gateway": call_gateway,
    "gateway with tasks": partial(call_gateway, capabilities={"extensions": {"io.modelcontextprotocol/tasks": {}}}),
}


@pytest.mark.parametrize("path", BUDGETS["calls_to_another_process"])
async def test_a_call_to_another_process_stays_within_its_budget(path: str, tmp_path: Path) -> None:
    program = tmp_path / "far.py"
    program.write_text(PROGRAM)
    budget = BUDGETS["calls_to_another_process"][path].values()
    async with asyncio.timeout(TIMEOUT_S), CALLERS[path](program) as call:
        await count_round_trip(call)  # the first call may compile, import and start
        costs = [await count_round_trip(call)]
        # On a busy machine, timers run during a slow call. Some call is fast.
        while any(map(operator.gt, map(min, zip(*costs, strict=True)), budget)) and len(costs) < MAX_ROUND_TRIPS:
            costs.append(await count_round_trip(call))
    check_budget("calls_to_another_process", path, costs)


async def test_a_call_that_becomes_a_task_stays_within_its_budget() -> None:
    """The client and the server are in this process: the call creates the task, a worker runs it, the client waits."""
    app = Server("budgets", tasks=TaskOptions(store=":memory:"))

    @app.tool(task=True)
    async def add(a: int, b: int) -> int:
        return a + b

    async with asyncio.timeout(TIMEOUT_S), Client(app, protocol_version=STATELESS) as client:

        async def call() -> None:
            assert (await client.call_tool("add", TOOL_CALL["arguments"])).structured_content == {"result": 3}

        await call()  # the first one may compile and import
        costs = [await count_round_trip(call) for _ in range(CALLS)]
    await app.stop()
    check_budget("calls_in_one_process", "task", costs)
