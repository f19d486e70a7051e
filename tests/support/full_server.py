"""A server with something of everything, and a client that reaches it in every way and revision.

What its tools saw is asked for with a tool (`record`), so that the same test serves a server in another process.
"""

import asyncio
import inspect
import os
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from dovetail import Client, Context, InputRequired, Server, ToolAnnotations, ToolError
from dovetail.server.server import get_dispatcher
from dovetail.transports.socket_server import serve_socket
from dovetail.types import Root
from support.driver import DRAFT, HANDSHAKE, REVISIONS, STATELESS, serve

TESTS = Path(__file__).parents[1]
TIMEOUT_S = 5.0

TRANSPORTS = ("memory", "stdio", "unix", "tcp", "http", "sse")
NEWEST_HANDSHAKE = HANDSHAKE[-1]

# Every revision over one transport of each kind in this process; both eras also over TCP and with a process.
FAST_TRANSPORT_CASES = [
    (way, revision)
    for way in ("memory", "unix", "http", "sse")
    for revision in REVISIONS
    if way != "sse" or revision != STATELESS
]
SLOW_TRANSPORT_CASES = [(way, revision) for way in ("tcp", "stdio") for revision in (STATELESS, NEWEST_HANDSHAKE)]
ERA_CASES = [one for one in FAST_TRANSPORT_CASES if one[1] in (STATELESS, NEWEST_HANDSHAKE)] + SLOW_TRANSPORT_CASES


def is_stateless(revision: str) -> bool:
    return revision == STATELESS


class Seat(msgspec.Struct):
    row: int
    window: bool = True
    meal: Literal["fish", "none"] = "none"


def create_full_server() -> Server:
    """The server."""
    app = Server("everything", version="1.2", instructions="Try it all.", page_size=4)
    seen: Counter[str] = Counter()

    @app.tool
    async def echo(text: str) -> str:
        seen["echo"] += 1
        return text

    @app.tool
    async def add(a: int, b: int = 1) -> int:
        return a + b

    @app.tool
    async def point() -> Seat:
        return Seat(7)

    @app.tool
    async def failing(why: str) -> str:
        raise ToolError(why)

    @app.tool
    async def wait(name: str) -> str:
        """Never ends by itself."""
        seen[f"{name} begun"] += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen[f"{name} cancelled"] += 1
            raise
        return "never"

    @app.tool
    async def count(to: int, ctx: Context, pause: float = 0.0) -> int:
        for number in range(1, to + 1):
            await ctx.progress(number, total=to, message=f"step {number}")
            await asyncio.sleep(pause)
        return to

    @app.tool
    async def speak(ctx: Context) -> str:
        await ctx.debug("quiet")
        await ctx.warning({"loud": True})
        return "said"

    @app.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def record() -> dict[str, int]:
        return dict(seen)

    @app.tool
    async def change(ctx: Context, uri: str | None = None) -> None:
        app.notify_tools_changed() if uri is None else app.notify_resource_updated(uri)

    @app.tool
    async def book(ctx: Context) -> str:
        seen["book"] += 1
        seat = await ctx.elicit("Which seat?", Seat)
        return f"row {seat.row}, {'window' if seat.window else 'aisle'}, {seat.meal}"

    @app.tool
    async def visit(url: str, ctx: Context) -> str:
        await ctx.elicit_url("Pay here", url)
        return "paid"

    @app.tool
    async def think(ctx: Context) -> str:
        result = await ctx.sample("What is it?", max_tokens=10)
        content: Any = result.content
        return content.text if not isinstance(content, list) else content[0].text

    @app.tool
    async def roots(ctx: Context) -> list[str]:
        found: list[Root] = await ctx.list_roots()
        return [root.uri for root in found]

    @app.tool
    async def stubborn(rounds: int, ctx: Context) -> str | InputRequired:
        """Asks again and again."""
        for number in range(rounds):
            await ctx.elicit(f"Question {number}", Seat)
        return "satisfied"

    @app.tool
    async def die() -> str:
        os._exit(3)

    @app.resource("note://{name}")
    def note(name: str) -> str:
        return f"about {name}"

    @app.resource("file:///logo")
    def logo() -> bytes:
        return b"\x00\x01"

    for number in range(9):
        app.add_resource(_page(number), f"page://{number}")

    @app.prompt
    def packing(city: str) -> str:
        return f"What to pack for {city}?"

    @app.completion("packing", "city")
    def cities(value: str) -> list[str]:
        return [city for city in ("Oslo", "Osaka", "Rome") if city.startswith(value)]

    return app


def _page(number: int) -> Callable[[], str]:
    return lambda: f"text {number}"


def server_command(factory: Callable[[], Server] = create_full_server) -> list[str]:
    """A command that serves what a function at the top of a module makes."""
    return [
        sys.executable,
        str(Path(__file__).with_name("run_server.py")),
        inspect.getfile(factory),
        factory.__name__,
        "stdio",
    ]


@asynccontextmanager
async def run_target(
    way: str, app: Server | None = None, factory: Callable[[], Server] = create_full_server, **options: Any
) -> AsyncIterator[Any]:
    """What to give to a client."""
    if way == "stdio":
        yield server_command(factory)
        return
    server = app or factory()
    if way == "memory":
        try:
            yield server
        finally:
            await server.stop()
    elif way in ("http", "sse"):
        async with serve(server, **options) as web:
            yield f"http://127.0.0.1:{web.port}/{'mcp' if way == 'http' else 'sse'}"
    else:
        await server.start()
        try:
            with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:
                path = str(Path(folder) / "s") if way == "unix" else None
                async with serve_socket(get_dispatcher(server), path=path) as door:
                    yield f"unix:{path}" if path else f"tcp://127.0.0.1:{door.sockets[0].getsockname()[1]}"
        finally:
            await server.stop()


@asynccontextmanager
async def connect_client(
    way: str, revision: str | None = None, app: Server | None = None, **options: Any
) -> AsyncIterator[Client]:
    """A client, connected."""
    env = {"env": {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}} if way == "stdio" else {}
    async with (
        run_target(way, app) as given,
        Client(given, protocol_version=revision, name="it", **env, **options) as client,
    ):
        yield client


async def wait_for_record(client: Client, what: str, times: int = 1) -> int:
    """Wait until the server has seen something so often; how often it has."""
    async with asyncio.timeout(TIMEOUT_S):
        while (found := (await client.call("record", into=dict[str, int])).get(what, 0)) < times:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return found


__all__ = [
    "DRAFT",
    "ERA_CASES",
    "FAST_TRANSPORT_CASES",
    "HANDSHAKE",
    "REVISIONS",
    "SLOW_TRANSPORT_CASES",
    "STATELESS",
    "Seat",
    "connect_client",
    "run_target",
    "server_command",
]
