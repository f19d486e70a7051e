"""The road of one tools/call over each transport: the functions of ours it passes, in order, and how deep it goes.

The lists stand in road.txt. Changing the road is allowed, silently is not: DOVETAIL_ROAD=write rewrites the file.
"""

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from dovetail import Server

GOLDEN = Path(__file__).with_name("road.txt")
DEEPEST = 7  # coroutines of ours between the transport and the author's function
PATIENCE = 10.0
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}

Call = Callable[[], Awaitable[Any]]


class Recorder:
    """Hears of every function that is entered; a coroutine that goes on after a wait is not entered again."""

    def __init__(self) -> None:
        self.road: list[str] = []
        self._frames: set[FrameType] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        # Comprehensions and lambdas are frames in some versions of Python and not in others.
        if event == "call" and module.startswith("dovetail.") and "<" not in frame.f_code.co_name:
            if frame not in self._frames:
                self.road.append(f"{module.removeprefix('dovetail.')}:{frame.f_code.co_qualname}")
            self._frames.add(frame)


def depth() -> int:
    """How many coroutines of ours wait for the one who asks."""
    count, frame = 0, inspect.currentframe()
    while frame is not None:
        ours = frame.f_globals.get("__name__", "").startswith("dovetail.")
        count += ours and bool(frame.f_code.co_flags & inspect.CO_COROUTINE)
        frame = frame.f_back
    return count


class Scene:
    """A server with one tool, which notes how deep it was called."""

    def __init__(self) -> None:
        self.app = Server("road")
        self.depths: list[int] = []
        self.app.add_tool(self.add)

    async def add(self, a: int, b: int) -> int:
        self.depths.append(depth())
        return a + b


def message(*, modern: bool) -> bytes:
    params: dict[str, Any] = {"name": "add", "arguments": {"a": 1, "b": 2}} | ({"_meta": META} if modern else {})
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


async def over_memory(scene: Scene) -> Call:
    answers: asyncio.Queue[bytes] = asyncio.Queue()
    link = scene.app.link(answers.put_nowait)

    async def call() -> Any:
        link.receive(message(modern=True))
        return json.loads(await answers.get())

    return call


async def visit(app: Any, body: bytes, headers: dict[str, str]) -> tuple[Any, dict[str, str]]:
    sent: list[dict[str, Any]] = []
    given = {"host": "localhost", "content-type": "application/json"} | headers
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/mcp",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "client": ("127.0.0.1", 5),
        "server": ("127.0.0.1", 8000),
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(one: dict[str, Any]) -> None:
        sent.append(one)

    await app(scope, receive, send)
    start, *bodies = sent
    answer = b"".join(one["body"] for one in bodies)
    return json.loads(answer or b"null"), {name.decode(): value.decode() for name, value in start["headers"]}


async def over_http(scene: Scene) -> Call:
    app = scene.app.asgi()
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "add"}

    async def call() -> Any:
        return (await visit(app, message(modern=True), headers))[0]

    return call


async def over_a_session(scene: Scene) -> Call:
    app = scene.app.asgi()
    _, headers = await visit(app, json.dumps(INITIALIZE).encode(), {})
    session = {"mcp-session-id": headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
    await visit(app, b'{"jsonrpc":"2.0","method":"notifications/initialized"}', session)

    async def call() -> Any:
        return (await visit(app, message(modern=False), session))[0]

    return call


TRANSPORTS = {"memory": over_memory, "http": over_http, "session": over_a_session}


async def travelled(transport: str) -> tuple[list[str], int]:
    """The road of a call that is not the first, and the depth of its author's function."""
    scene, recorder = Scene(), Recorder()
    call = await TRANSPORTS[transport](scene)
    async with asyncio.timeout(PATIENCE):
        first = await call()
        before = sys.getprofile()
        sys.setprofile(recorder)
        try:
            second = await call()
        finally:
            sys.setprofile(before)
    assert first["result"]["structuredContent"] in (3, {"result": 3})
    assert second == first
    assert len(scene.depths) == 2
    return recorder.road, scene.depths[1]


def golden() -> dict[str, list[str]]:
    roads: dict[str, list[str]] = {}
    for line in GOLDEN.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            roads[line[2:]] = []
        elif line:
            roads[list(roads)[-1]].append(line)
    return roads


def keep(transport: str, road: list[str]) -> None:
    roads = (golden() if GOLDEN.exists() else {}) | {transport: road}
    blocks = ["\n".join([f"# {name}", *roads[name]]) for name in TRANSPORTS if name in roads]
    GOLDEN.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_road_is_the_one_on_the_map(transport: str) -> None:
    road, _ = await travelled(transport)
    if os.environ.get("DOVETAIL_ROAD") == "write":
        keep(transport, road)
    assert road == golden()[transport]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_authors_function_is_not_far_away(transport: str) -> None:
    _, deep = await travelled(transport)
    assert deep <= DEEPEST
