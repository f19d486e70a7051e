"""Whether requests leave objects behind at servers and clients. `CASES` lists the kinds of requests."""

import asyncio
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from live_objects import count_live_objects, create_counted_server
from live_requests import HTTP_KINDS, KINDS, REVISIONS, SOCKET_KINDS, Kind, RequestKinds, connect

from dovetail import Client, Server
from dovetail.server.server import get_dispatcher
from dovetail.transports.http1.http_listener import bind_socket
from support.full_server import TESTS, run_target, server_command

WARM_UP_COUNT = 5
COUNT = 20
MAX_GROWTH = COUNT // 2  # A leak is at least one object for each request.
TIMEOUT_S = 10.0

CountObjects = Callable[[], Awaitable[Counter[str]]]

# The other kinds take the same path as over Unix sockets and with our HTTP server.
STREAM_KINDS: list[Kind] = [
    RequestKinds.streamed,
    RequestKinds.listen,
    RequestKinds.cancelled_stream,
    RequestKinds.asking,
    RequestKinds.disconnected,
]
HANDSHAKE_WAYS = ("cluster", "sse")
KINDS_BY_WAY: dict[str, list[Kind]] = {
    "memory": [*KINDS, RequestKinds.reconnected],
    "unix": SOCKET_KINDS,
    "tcp": STREAM_KINDS,
    "http": HTTP_KINDS,
    "uvicorn": [*STREAM_KINDS, RequestKinds.route],
    "cluster": SOCKET_KINDS,
    "mounted": SOCKET_KINDS,
    "sse": [*KINDS, RequestKinds.reconnected],
}
CASES = [
    pytest.param(
        way,
        era,
        kind,
        id=f"{way}-{era}-{kind.__name__}",
        marks=[pytest.mark.interop] if way == "uvicorn" else [],
    )
    for way, kinds in KINDS_BY_WAY.items()
    for era in REVISIONS
    for kind in kinds
    if era == "handshake" or way not in HANDSHAKE_WAYS
]


@pytest.fixture(autouse=True)
def disable_log() -> Iterator[None]:
    """Write no log, because pytest keeps each record with its exception."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@asynccontextmanager
async def serve(way: str, folder: Path) -> AsyncIterator[Any]:
    app = create_counted_server(cluster_folder=folder if way == "cluster" else None)
    if way == "uvicorn":
        serving = run_in_uvicorn(app)
    elif way == "mounted":
        serving = run_mounted(app)
    else:
        serving = run_target("http" if way == "cluster" else way, app)
    async with serving as target:
        yield target


@asynccontextmanager
async def run_mounted(app: Server) -> AsyncIterator[Any]:
    """Mount the server over HTTP on another server."""
    front = Server("front", limits=get_dispatcher(app).limits)
    async with run_target("http", app) as inner_target:
        front.mount(Client(inner_target, protocol_version=REVISIONS["handshake"]))
        async with run_target("http", front) as target:
            yield target


@asynccontextmanager
async def run_in_uvicorn(app: Server) -> AsyncIterator[str]:
    uvicorn = pytest.importorskip("uvicorn")
    web = uvicorn.Server(uvicorn.Config(app.asgi(), log_level="critical", loop="asyncio"))
    listener = bind_socket("127.0.0.1", 0)
    task = asyncio.create_task(web._serve([listener]))  # `serve` would also handle signals.
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    finally:
        web.should_exit = True
        await task


async def count_here() -> Counter[str]:
    return count_live_objects()


async def find_growth(work: Callable[[], Awaitable[None]], count_objects: CountObjects) -> dict[str, int]:
    """Repeat the work. Return the types that have more objects than before, unless these objects end soon."""
    for _ in range(WARM_UP_COUNT):
        await work()
    before = await count_objects()
    for _ in range(COUNT):
        await work()
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        growth = {name: count for name, count in (await count_objects() - before).items() if count >= MAX_GROWTH}
        if not growth or time.monotonic() > deadline:
            return growth
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(("way", "era", "kind"), CASES)
async def test_requests_leave_no_objects_behind(way: str, era: str, kind: Kind, tmp_path: Path) -> None:
    async with serve(way, tmp_path) as target, connect(target, REVISIONS[era]) as client:
        requests = RequestKinds(client, target, REVISIONS[era])
        assert await find_growth(lambda: kind(requests), count_here) == {}


@pytest.mark.parametrize("era", REVISIONS)
async def test_requests_to_a_process_leave_no_objects_behind(era: str) -> None:
    """Count the objects in both processes."""
    env = {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    async with connect(server_command(create_counted_server), REVISIONS[era], env=env) as client:
        requests = RequestKinds(client, None, REVISIONS[era])

        async def count_both() -> Counter[str]:
            return count_live_objects() + Counter(await client.call("census", into=dict[str, int]))

        for kind in KINDS:
            growth = await find_growth(lambda kind=kind: kind(requests), count_both)
            assert (kind.__name__, growth) == (kind.__name__, {})
