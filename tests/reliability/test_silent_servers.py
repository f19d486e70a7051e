"""A server that stops responding, at any step, delays its client only until the configured timeout."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from harness import record_measurement

from dovetail import Client, MCPError, Timeouts
from dovetail.errors import RequestTimeout
from support.scripted_server import (
    ERAS,
    SILENCE,
    STREAM_HEAD,
    Messages,
    ScriptedServer,
    create_notification,
    serve_on_socket,
    serve_over_http,
)

LIMIT = 0.4
SHORT = Timeouts(connect=LIMIT, discover=0.1, initialize=LIMIT, call=LIMIT, request=LIMIT)
BOUND = 3.0  # this machine has other users
HEAD_ONLY = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
HALF = HEAD_ONLY + b'{"jsonrpc":"2.0",'


async def pinging(_: Any) -> AsyncIterator[bytes]:
    """A stream that is never silent and never says anything."""
    yield STREAM_HEAD
    while True:
        yield b": ping\n\n"
        await asyncio.sleep(0.02)


def quiet_steps(era: str) -> dict[str, str]:
    opening = {"stateless": ["server/discover"], "handshake": ["server/discover", "initialize"]}[era]
    return dict.fromkeys(opening, "opening") | {
        "tools/list": "list",
        "tools/call": "call",
        "resources/read": "read",
    }


CASES = [
    (where, era, method, step, silence)
    for where, on in (("socket", serve_on_socket), ("web", serve_over_http))
    for era in ERAS
    for method, step in quiet_steps(era).items()
    for silence in ([SILENCE] if on is serve_on_socket else [SILENCE, HEAD_ONLY, HALF])
    if not (era == "handshake" and method == "server/discover")  # after which the handshake is simply tried
]


@pytest.mark.parametrize(("where", "era", "method", "step", "silence"), CASES)
async def test_silent_at_a_step(where: str, era: str, method: str, step: str, silence: Any) -> None:
    reactions = {method: silence}
    if step == "opening":
        reactions["initialize"] = reactions["server/discover"] = silence
    script = ScriptedServer(era, reactions)
    on = serve_on_socket if where == "socket" else serve_over_http
    async with on(script) as at:
        client = Client(at, name="it", timeout=SHORT)
        began = time.monotonic()
        with pytest.raises(RequestTimeout) as caught:
            await asked(client, step)
        took = time.monotonic() - began
        assert took < 2 * LIMIT + BOUND
        assert caught.value.server == "it"
        assert caught.value.step is not None
        record_measurement(f"{where} {era} {method} {step}", took, f"s at a limit of {LIMIT} s")
        script.reactions = {}
        await client.connect()
        assert await client.call("go") == "ok"
        await client.close()


async def asked(client: Client, step: str) -> Any:
    await client.connect()
    match step:
        case "list":
            return await client.list_tools()
        case "read":
            return await client.read("a")
        case _:
            return await client.call("go")


@pytest.mark.parametrize("era", ERAS)
async def test_pings_are_no_answer(era: str) -> None:
    async with (
        serve_over_http(ScriptedServer(era, {"tools/call": pinging})) as at,
        Client(at, timeout=SHORT) as client,
    ):
        with pytest.raises(RequestTimeout):
            await asyncio.wait_for(client.call("go"), 10)


async def test_progress_without_an_end_ends_at_the_total() -> None:
    ticks = Messages([create_notification("notifications/progress", progressToken=1, progress=n) for n in range(3)])
    async with (
        serve_on_socket(ScriptedServer("handshake", {"tools/call": ticks})) as at,
        Client(at, timeout=SHORT) as client,
    ):
        with pytest.raises(RequestTimeout):
            await client.call_tool("go", timeout=LIMIT, total_timeout=2 * LIMIT)


@pytest.mark.parametrize("era", [None, *ERAS])
async def test_a_process_that_never_speaks(era: Any) -> None:
    client = Client([sys.executable, "-c", "import sys; sys.stdin.read()"], protocol_version=era, timeout=SHORT)
    began = time.monotonic()
    with pytest.raises(RequestTimeout):
        await client.connect()
    assert time.monotonic() - began < 2 * LIMIT + BOUND
    await client.close()


async def test_a_port_that_takes_connections_and_reads_nothing() -> None:
    over = asyncio.Event()
    gone: list[asyncio.Task[Any]] = []

    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        gone.append(task)
        await over.wait()
        writer.close()

    server = await asyncio.start_server(ignore, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for at in (f"http://127.0.0.1:{port}/mcp", f"tcp://127.0.0.1:{port}"):
        with pytest.raises(MCPError):
            async with asyncio.timeout(10):
                await Client(at, timeout=SHORT).connect()
    server.close()
    over.set()
    await asyncio.wait(gone)
