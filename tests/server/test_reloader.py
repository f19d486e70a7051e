"""Test restarting a program when its files change, while its clients stay connected."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail import Client

pytestmark = [pytest.mark.timeout(60), pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")]

PROGRAM = """
import os
from dovetail import Server

app = Server("changing")


@app.tool
def version() -> str:
    return "{version}"


@app.tool
def process() -> int:
    return os.getpid()


@app.tool
def die() -> None:
    os._exit(3)


{more}
app.run({options}, reload=True)
"""
PATIENCE = 20.0


def write(file: Path, version: str, options: str = '"stdio"', more: str = "") -> None:
    file.write_text(PROGRAM.format(version=version, options=options, more=more))
    # A file system whose clock is coarse must not hide the change.
    stamp = os.stat(file).st_mtime_ns + 10**9
    os.utime(file, ns=(stamp, stamp))


async def until_it_says(client: Client, version: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while await client.call("version") != version:  # noqa: ASYNC110 - what is awaited is another process
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_a_stdio_client_stays_connected(tmp_path: Path, revision: str) -> None:
    file = tmp_path / "program.py"
    write(file, "one")
    # In a handshake a server says what it has; later on a client says what it wants to hear of.
    kinds = {"tools"} if revision == "2025-11-25" else {"tools", "prompts", "resources"}
    async with Client([sys.executable, str(file)], protocol_version=revision) as client:
        assert await client.call("version") == "one"
        before = await client.call("process")
        async with client.listen() as changes:
            for version in ("one and a half", "two"):
                write(file, version, more="app.add_tool(lambda: 1, name='late')\n")
                async with asyncio.timeout(PATIENCE):
                    heard = [await anext(aiter(changes)) for _ in kinds]
                assert {one.kind for one in heard} == kinds
                assert not any(one.maybe_missed for one in heard)
        await until_it_says(client, "two")
        assert await client.call("process") != before
        assert "late" in {tool.name for tool in await client.list_tools()}


SETTINGS = """
from dovetail import Context

@app.resource("note://a")
def note() -> str:
    return "a"

@app.tool
async def touch(ctx: Context) -> str:
    app.notify_resource_updated("note://a")
    await ctx.debug("touched")
    return "{version}"
"""


async def test_subscriptions_and_the_level_of_a_session_stay(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    write(file, "one", more=SETTINGS)
    logged: list[str] = []
    async with (
        Client(
            [sys.executable, str(file)],
            protocol_version="2025-11-25",
            log_level="debug",
            log_handler=lambda one: logged.append(str(one.data)),
        ) as client,
        client.listen(tools=False, resources=False, prompts=False, uris=["note://a"]) as changes,
    ):
        feed = aiter(changes)
        write(file, "two", more=SETTINGS)
        await until_it_says(client, "two")
        logged.clear()
        await client.call("touch")
        change = await asyncio.wait_for(anext(feed), PATIENCE)
        assert change.uri == "note://a"
    assert logged == ["touched"]


async def test_a_mistake_is_reported_and_fixed(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    write(file, "one")
    async with Client([sys.executable, str(file)]) as client:
        assert await client.call("version") == "one"
        write(file, "broken", more="this is not Python\n")
        with pytest.raises(Exception, match="-32603"):
            await until_it_says(client, "never")
        write(file, "three")
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    if await client.call("version") == "three":
                        break
                except Exception:
                    await asyncio.sleep(0.05)


async def test_over_http_clients_are_served_during_a_reload(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    write(file, "one", '"http", port=0')
    command = [sys.executable, str(file)]
    process = await asyncio.to_thread(subprocess.Popen, command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = await asyncio.to_thread(process.stderr.readline)
        url = line.rsplit(" ", 1)[1].strip()
        async with Client(url) as client:
            assert await client.call("version") == "one"
            write(file, "two", '"http", port=0')
            await until_it_says(client, "two")
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, PATIENCE)
        assert process.stderr is not None
        process.stderr.close()


def test_without_a_program_to_restart() -> None:
    code = "from dovetail import Server\nServer('x').run('tcp', port=0, reload=True)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ran.returncode != 0
    assert "reload" in ran.stderr.splitlines()[-1]
