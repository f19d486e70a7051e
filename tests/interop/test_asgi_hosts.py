"""Test the ASGI app under third-party servers and frameworks, with the official client."""

import asyncio
import importlib.util
import os
import signal
import socket
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="mcp, the official SDK, is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")

import anyio
import mcp_types as types
from mcp import Client
from mcp.client.sse import sse_client

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(60),
    # The peer warns of whatever the newest revision has deprecated.
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]

HOSTS = {
    "uvicorn-h11": ["uvicorn", "--http", "h11", "--loop", "asyncio", "--port", "{port}"],
    "uvicorn-httptools": ["uvicorn", "--http", "httptools", "--port", "{port}"],
    "hypercorn": ["hypercorn", "--bind", "127.0.0.1:{port}"],
    "granian": ["granian", "--interface", "asgi", "--port", "{port}"],
}

LEAVES = {"uvicorn": -signal.SIGTERM}  # it cleans up, then lets the signal have its way


@pytest.fixture(scope="module")
def serve(start: Callable[..., Any]) -> Callable[..., str]:
    """Start a host with an application of `asgi_apps.py`; the address it can be reached at."""

    def serve(host: str, application: str) -> str:
        module, *options = HOSTS[host]
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
        options = [option.format(port=_free_port()) for option in options]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
        command = [sys.executable, "-m", module, f"asgi_apps:{application}", *options]
        return start(command, environment, leaves=LEAVES.get(module, 0)).url

    return serve


@pytest.fixture(scope="module", params=HOSTS)
def address(request: pytest.FixtureRequest, serve: Callable[..., str]) -> str:
    return serve(request.param, "alone") + "/mcp"


@pytest.fixture(scope="module")
def side_by_side(serve: Callable[..., str]) -> str:
    return serve("uvicorn-h11", "side_by_side")


@pytest.fixture(params=["auto", "legacy"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


# Any server


async def test_calls(address: str, mode: str) -> None:
    async with Client(address, mode=mode) as client:
        assert _text(await client.call_tool("greet", {"name": "x" * 300_000})) == f"Hello, {'x' * 300_000}!"
        results = await asyncio.gather(*(client.call_tool("add", {"a": n, "b": n}) for n in range(20)))
        assert [_text(result) for result in results] == [str(2 * n) for n in range(20)]


async def test_messages_on_the_way(address: str, mode: str, inbox: Any) -> None:
    async def heard(progress: float, total: float | None, message: str | None) -> None:
        inbox.put(progress)

    async def fill_in(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"value": True})

    async with Client(address, mode=mode, elicitation_callback=fill_in) as client:
        await client.call_tool("climb", {"steps": 3}, progress_callback=heard)
        assert await inbox.take_many(3) == [1, 2, 3]
        assert _text(await client.call_tool("persist")) == "You said True."
        assert _text(await client.call_tool("pause")) == "Back again."


async def test_progress_comes_while_the_work_goes_on(
    address: str, mode: str, inbox: Any, request: pytest.FixtureRequest
) -> None:
    label = request.node.name

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        inbox.put(message)

    async with Client(address, mode=mode) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.call_tool("hang", {"label": label}, progress_callback=heard))
            assert await inbox.take() == "hanging"
            tasks.cancel_scope.cancel()  # by a closed connection in the one era, by a message in the other
        assert _text(await client.call_tool("await_stopped", {"label": label})) == f"{label} was stopped"


async def test_changes(address: str, mode: str, inbox: Any) -> None:
    async def heard(message: Any) -> None:
        inbox.put(message)

    uri = "city://Oslo/profile"
    async with Client(address, mode=mode, message_handler=heard) as client:
        if mode == "legacy":
            await client.subscribe_resource(uri)
            await client.call_tool("touch", {"name": "Oslo"})
            assert isinstance(await inbox.take(), types.ResourceUpdatedNotification)
        else:
            async with client.listen(resource_subscriptions=[uri]) as subscription, asyncio.timeout(20):
                await client.call_tool("touch", {"name": "Oslo"})
                assert (await anext(subscription)).uri == uri


async def test_the_transport_of_2024(address: str) -> None:
    async with Client(sse_client(address.removesuffix("/mcp") + "/sse"), mode="legacy") as client:
        assert _text(await client.call_tool("add", {"a": 1})) == "2"


# Inside another application


async def test_mounted_under_a_prefix_without_lifespan(side_by_side: str, mode: str, inbox: Any) -> None:
    async def heard(progress: float, total: float | None, message: str | None) -> None:
        inbox.put(progress)

    async with Client(side_by_side + "/one/mcp", mode=mode) as client:
        assert _text(await client.call_tool("greet", {"name": "Ada"})) == "Hello, Ada!"
        await client.call_tool("climb", {"steps": 2}, progress_callback=heard)
        assert await inbox.take_many(2) == [1, 2]


async def test_mounted_at_the_prefix_itself(side_by_side: str, mode: str) -> None:
    for address in (f"{side_by_side}/two/deep/", f"{side_by_side}/two/deep"):
        async with Client(address, mode=mode) as client:
            # Entered by the first call, once for all.
            assert _text(await client.call_tool("greet", {"name": "Ada"})) == "Good day, Ada, from database 1."


async def test_two_servers_side_by_side(side_by_side: str, mode: str) -> None:
    one, two = Client(side_by_side + "/one/mcp", mode=mode), Client(side_by_side + "/two/deep/", mode=mode)
    async with one, two:
        first, second = await asyncio.gather(*(client.call_tool("greet", {"name": "Ada"}) for client in (one, two)))
        assert _text(first) == "Hello, Ada!"
        assert _text(second).startswith("Good day, Ada")
        assert [tool.name for tool in (await two.list_tools()).tools] == ["greet"]


def test_the_pages_around(side_by_side: str) -> None:
    with urllib.request.urlopen(side_by_side + "/", timeout=20) as response:
        assert response.read() == b"a page"


async def test_the_transport_of_2024_under_a_prefix(side_by_side: str) -> None:
    async with Client(sse_client(side_by_side + "/one/sse"), mode="legacy") as client:
        assert _text(await client.call_tool("add", {"a": 1})) == "2"


@pytest.mark.parametrize("host", HOSTS)
async def test_lifespan(serve: Callable[..., str], host: str) -> None:
    async with Client(serve(host, "lively") + "/mcp") as client:
        assert _text(await client.call_tool("greet", {"name": "Ada"})) == "Good day, Ada, from database 1."


def _text(result: types.CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
