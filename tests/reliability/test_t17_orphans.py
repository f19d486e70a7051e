"""T17: no process stays behind when the client closes or is killed; the server has children of its own."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from calling import command, environment
from lab import figure

from dovetail import Client
from transports.scene import until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="platform: process groups")

FAMILY = """
import json, os, signal, subprocess, sys
stubborn = "import signal, time\\nfor s in (15, 1, 2): signal.signal(s, signal.SIG_IGN)\\ntime.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", stubborn], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}\\n")
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m: continue
    r = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "resultType": "complete"}
    if m["method"] == "tools/call":
        r = {"content": [{"type": "text", "text": "ok"}], "resultType": "complete"}
    print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}), flush=True)
if sys.argv[2] == "deaf":
    import time; time.sleep(600)
"""


def family(file: Path, manner: str) -> list[str]:
    return [sys.executable, "-c", FAMILY, str(file), manner]


def alive(file: Path) -> list[int]:
    """Who of the family still lives; zombies are dead."""
    found: list[int] = []
    for pid in map(int, file.read_text().split()):
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.mark.parametrize("manner", ["polite", "deaf"])
async def test_closing_leaves_nobody(manner: str, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    async with Client(family(file, manner)) as client:
        assert await client.call("go") == "ok"
        assert len(alive(file)) == 2
    assert alive(file) == []


@pytest.mark.parametrize("manner", ["polite", "deaf"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_client_that_is_killed_leaves_nobody(how: signal.Signals, manner: str, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    job: dict[str, Any] = {"target": family(file, manner), "what": "hold"}
    process = await asyncio.create_subprocess_exec(
        *command(job), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, env=environment()
    )
    assert process.stdout is not None
    async with asyncio.timeout(15):
        assert json.loads(await process.stdout.readline()) == {"up": True}
        assert len(alive(file)) == 2
        process.send_signal(how)
        await process.wait()
    await until(lambda: not alive(file))
    figure(f"T17 survivors of a client ended by {how.name}, {manner}", len(alive(file)), "")


async def test_a_server_that_dies_takes_its_children_along(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    async with Client(family(file, "polite")) as client:
        os.kill(alive(file)[0], signal.SIGKILL)
        await until(lambda: not client.connected)
        await until(lambda: not alive(file))


async def test_opening_and_closing_leaves_no_task_and_no_descriptor(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    me = psutil.Process()

    async def round_trip() -> None:
        async with Client(family(file, "polite")) as client:
            await client.call("go")

    await round_trip()
    tasks, descriptors = len(asyncio.all_tasks()), me.num_fds()
    for _ in range(8):
        await round_trip()
        assert alive(file) == []
    assert len(asyncio.all_tasks()) == tasks
    assert me.num_fds() <= descriptors
    assert not me.children()
