"""Test that five servers work while six others on the same host are broken, each in a different way."""

import asyncio
import statistics
import sys
import time
from pathlib import Path

import pytest

from dovetail import MCPError, Policy
from dovetail.host.host import Host
from dovetail.host.server_settings import ServerSettings
from reliability.harness import measure_cpu_unit, record_measurement
from support.polling import wait_until

CALLS = 60  # of each good server
GOOD = [f"good{number}" for number in range(5)]

GOOD_PROGRAM = """
import sys
from dovetail import Server
app = Server(sys.argv[1])

@app.tool
async def echo(text: str) -> str:
    return sys.argv[1] + " " + text

app.run()
"""

# One program, broken in a way of your choice. It speaks the handshake by hand, as such servers do.
BAD_PROGRAM = """
import json, os, sys, time
how = sys.argv[1]
if how == "never":
    time.sleep(1000)
def send(**message): sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n"); sys.stdout.flush()
for line in sys.stdin:
    message = json.loads(line)
    method, id = message.get("method"), message.get("id")
    if method == "initialize":
        send(id=id, result={"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
             "serverInfo": {"name": how, "version": "1"}})
    elif method == "tools/list":
        send(id=id, result={"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]})
    elif method == "tools/call":
        if how == "hangs":
            continue
        if how == "crashes":
            os._exit(9)
        if how == "junk":
            for _ in range(2000):
                sys.stdout.write("Traceback (most recent call last): \\x1b[31m nothing here is JSON " * 3 + "\\n")
            sys.stdout.flush()
        if how == "huge":
            sys.stdout.write('{"jsonrpc": "2.0", "id": %s, "result": {"content": [{"type": "text", "text": "' % id)
            for _ in range(50):
                sys.stdout.write("x" * 1_000_000)
            sys.stdout.write('"}]}}\\n')
            sys.stdout.flush()
            continue
        if how == "lies":
            for wrong in (id + 1, id + 2, str(id), -1, 0, None, 1.5):
                send(id=wrong, result={"content": [{"type": "text", "text": "not yours"}]})
            continue
        send(id=id, result={"content": [{"type": "text", "text": how}]})
    elif method is not None and id is not None:
        send(id=id, error={"code": -32601, "message": "no"})
"""

BAD = ("never", "hangs", "crashes", "junk", "huge", "lies")


def add(host: Host, folder: Path, name: str) -> None:
    program = folder / ("bad_program.py" if name in BAD else "good_program.py")
    command = [sys.executable, "-u", str(program), name]
    if name in BAD:
        settings = ServerSettings(start_timeout=5.0, restart_delay=0.2, max_restart_delay=1.0)
        host.add(name, command, settings=settings, protocol_version="handshake")
    else:
        host.add(name, command)


async def measured(host: Host) -> list[float]:
    """How long each call of each good server took, all of them in use at once."""
    times: list[float] = []

    async def use(name: str) -> None:
        for number in range(CALLS):
            began = time.perf_counter()
            result = await host.call(f"{name}.echo", {"text": str(number)})
            times.append(time.perf_counter() - began)
            assert result.content[0].text == f"{name} {number}"

    async with asyncio.TaskGroup() as group:
        for name in GOOD:
            group.create_task(use(name))
    return times


@pytest.mark.timeout(180)
async def test_the_good_ones_answer_in_their_normal_time(tmp_path: Path) -> None:
    (tmp_path / "good_program.py").write_text(GOOD_PROGRAM)
    (tmp_path / "bad_program.py").write_text(BAD_PROGRAM)
    outcomes: dict[str, set[str]] = {name: set() for name in BAD}
    async with Host(policy=Policy("allow", limits={"*": {"timeout": 2}}), ready_timeout=3.0) as host:
        for name in GOOD:
            add(host, tmp_path, name)
        await host.list_tools()
        alone = await measured(host)
        for name in BAD:
            add(host, tmp_path, name)

        async def misuse(name: str) -> None:
            while True:
                try:
                    result = await host.call(f"{name}.echo", {})
                    outcomes[name].add(result.content[0].text)
                except MCPError as exc:
                    outcomes[name].add(type(exc).__name__)
                await asyncio.sleep(0.05)

        bad = [asyncio.create_task(misuse(name)) for name in BAD]
        began = time.perf_counter()
        tools = await host.list_tools()
        listing = time.perf_counter() - began
        assert set(GOOD) <= {tool.server for tool in tools}
        beside = await measured(host)
        await wait_until(lambda: all(outcomes[name] for name in BAD), 60.0)
        during = await measured(host)
        for task in bad:
            task.cancel()
        await asyncio.wait(bad)
        states = {member.name: member.state for member in host.servers}
        began = time.perf_counter()
    closing = time.perf_counter() - began
    assert {states[name] for name in GOOD} == {"ready"}
    assert states["never"] in ("failed", "starting")
    assert outcomes["junk"] == {"junk"}
    for name in ("never", "hangs", "crashes", "huge", "lies"):
        assert not outcomes[name] & {"not yours", name}, outcomes
    usual, worst = statistics.median(alone), statistics.median([*beside, *during])
    record_measurement("median call of a good server alone", usual * 1000, "ms")
    record_measurement("median call beside six broken servers", worst * 1000, "ms")
    record_measurement("slowest call beside six broken servers", max(*beside, *during) * 1000, "ms")
    record_measurement("list with six broken servers", listing, "s")
    record_measurement("shutdown with six broken servers", closing, "s")
    assert worst < 10 * usual + 3 * measure_cpu_unit()
