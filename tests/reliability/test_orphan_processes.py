"""No process remains after the client closes or is killed, or after the parent of a server's workers is killed."""

import asyncio
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from client_process import command, environment
from harness import record_measurement

from dovetail import Client
from support.fake_service import wait_until

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
async def test_closing_leaves_no_process(manner: str, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    async with Client(family(file, manner)) as client:
        assert await client.call("go") == "ok"
        assert len(alive(file)) == 2
    assert alive(file) == []


@pytest.mark.parametrize("manner", ["polite", "deaf"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_client_that_is_killed_leaves_no_process(how: signal.Signals, manner: str, tmp_path: Path) -> None:
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
    await wait_until(lambda: not alive(file))
    record_measurement(f"survivors of a client ended by {how.name}, {manner}", len(alive(file)), "")


async def test_a_server_that_dies_takes_its_children_along(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    async with Client(family(file, "polite")) as client:
        os.kill(alive(file)[0], signal.SIGKILL)
        await wait_until(lambda: not client.is_connected)
        await wait_until(lambda: not alive(file))


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


WORKERS = """
import asyncio, sys
from dovetail import Server, ServerLimits

app = Server("workers", limits=ServerLimits(drain_timeout=0.2))

@app.tool
async def forever() -> None:
    sys.stderr.write("in a call\\n")
    await asyncio.Event().wait()

app.run("http", port=int(sys.argv[1]), workers=2, sessions=False)
"""
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}


def start_workers(port: int) -> tuple["subprocess.Popen[str]", int]:
    """The parent of two workers, and its port, once it serves."""
    command = [sys.executable, "-c", WORKERS, str(port)]
    parent = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment())
    assert parent.stderr is not None
    line = parent.stderr.readline()
    assert "http://127.0.0.1:" in line, line + parent.stderr.read()
    return parent, int(line.rpartition(":")[2].partition("/")[0])


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_workers_end_when_their_parent_is_killed_and_the_port_is_free(busy: bool) -> None:
    parent, port = start_workers(0)
    workers = psutil.Process(parent.pid).children()
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        assert len(workers) == 2
        assert parent.stderr is not None
        if busy:
            params = {"name": "forever", "arguments": {}, "_meta": META}
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            headers = {
                "accept": "application/json, text/event-stream",
                "content-type": "application/json",
                "mcp-protocol-version": "2026-07-28",
                "mcp-method": "tools/call",
                "mcp-name": "forever",
            }
            client.request("POST", "/mcp", json.dumps(message), headers)
            assert parent.stderr.readline() == "in a call\n"
        parent.kill()
        parent.wait(60)
        left = psutil.wait_procs(workers, 60)[1]
        record_measurement(f"workers left of a parent ended by SIGKILL, {'busy' if busy else 'idle'}", len(left), "")
        assert not left
    finally:
        client.close()
        for worker in (parent, *workers):
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
        parent.wait(60)
        if parent.stderr is not None:
            parent.stderr.close()
    again, _ = start_workers(port)
    assert again.stderr is not None
    again.terminate()
    assert again.wait(60) == 0
    again.stderr.close()
