"""Test the errors of a client and a server that cannot do what was asked."""

import asyncio
import sys

import pytest

from dovetail import Client, MCPError, RemoteError, Server, ServerLimits, Timeouts, TransportError
from dovetail.errors import ConnectError, ProcessStartError, RequestTimeout, VersionNegotiationError


async def test_an_unknown_method(client: Client) -> None:
    with pytest.raises(RemoteError) as caught:
        await client.request("com.example/unknown")
    assert caught.value.code == -32601


async def test_a_call_that_takes_too_long(client: Client) -> None:
    with pytest.raises(RequestTimeout):
        await client.call_tool("read_forever", timeout=0.05)
    assert await client.call("echo", text="hi") == "hi"


async def test_the_limit_of_the_server_for_a_call() -> None:
    app = Server("s", limits=ServerLimits(call_timeout=0.05))

    @app.tool
    async def read_forever() -> str:
        await asyncio.Event().wait()
        return "never"

    async with Client(app) as client:
        with pytest.raises(MCPError):
            await client.call("read_forever")
    await app.stop()


async def test_a_version_that_the_server_does_not_serve() -> None:
    app = Server("s", protocol_versions=["2025-11-25"])
    with pytest.raises(VersionNegotiationError):
        async with Client(app, protocol_version="stateless"):
            pass
    await app.stop()


async def test_a_server_that_is_not_there() -> None:
    with pytest.raises(ConnectError):
        async with Client("http://127.0.0.1:1/mcp", timeout=Timeouts(connect=2)):
            pass


async def test_a_process_that_ends_at_once() -> None:
    with pytest.raises(ProcessStartError) as caught:
        async with Client([sys.executable, "-c", "raise SystemExit('no key')"]):
            pass
    assert isinstance(caught.value, TransportError)
    assert caught.value.exit_code == 1
    assert "no key" in str(caught.value)
