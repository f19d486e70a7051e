"""Test a server in another process, over stdio and over a Unix socket."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

import dovetail
from core.library_server import HelloParams, hello, say_hello
from core.server_process import ENV, PROGRAM, start_server
from dovetail import Client, ClientLimits, ToolError
from dovetail.errors import ConnectionLost


async def test_a_client_starts_a_server(era: str) -> None:
    async with Client(PROGRAM, protocol_version=era, env=ENV, extensions=[hello]) as client:
        process_id, package = await client.call("describe_process", into=tuple[int, str])
        assert process_id != os.getpid()
        assert package == dovetail.__path__[0]
        assert client.server_info is not None
        assert (client.server_info.name, client.server_info.version) == ("library", "1.2")
        assert client.instructions == "Be quiet."
        numbers = [*range(20)]
        assert await asyncio.gather(*(client.call("echo", text=str(number)) for number in numbers)) == [
            str(number) for number in numbers
        ]
        with pytest.raises(ToolError):
            await client.call("find", number=3)
        assert await client.read("library://books/1") == "Emma"
        assert len((await client.get_prompt("review", {"book": "Emma"})).messages) == 2
        assert (await client.request(say_hello, HelloParams(first_name="Ada"))).greeting == "Hello, Ada!"


async def test_a_client_starts_a_lost_server_again() -> None:
    limits = ClientLimits(reconnect_delay=0.01)
    async with Client([sys.executable, str(PROGRAM)], env=ENV, limits=limits) as client:
        await client.list_tools()
        with pytest.raises(ConnectionLost):
            await client.call("end_process")
        assert await client.call("find", number=1) == "Emma"


async def test_a_unix_socket(era: str, tmp_path: Path) -> None:
    with start_server("unix", str(tmp_path / "s")):
        async with Client(f"unix:{tmp_path / 's'}", protocol_version=era) as client:
            assert await client.call("find", number=2) == "Dracula"
