"""Test a host while its servers are killed: no call is mixed up, lost silently or run twice, and no process remains."""

import asyncio
import contextlib
import gc
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from dovetail import MCPError, Policy, testing
from dovetail.host import ServerSettings
from dovetail.host.host import Host
from dovetail.server.server import Server
from reliability.harness import MiB, record_measurement
from support.polling import wait_until

PROGRAM = """
import asyncio, os, sys
from dovetail import Context, Server
name, book = sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
app = Server(name)

def note(word: str, token: str) -> None:
    os.write(book, f"{word} {token} {os.getpid()}\\n".encode())

note("pid", name)

@app.tool
async def work(token: str, steps: int, ctx: Context) -> str:
    note("ran", token)
    for step in range(steps):
        await ctx.progress(step + 1, steps, token)
        await asyncio.sleep(0.001)
    return f"{name} {token}"

@app.tool
async def ask(token: str, ctx: Context) -> str:
    said = await ctx.elicit(token, str)
    note("ran", token)
    return f"{name} {token} {said}"

app.run()
"""


class Tally:
    """What was asked for, and what came of it."""

    def __init__(self) -> None:
        self.answered: set[str] = set()
        self.failed: Counter[str] = Counter()
        self.cancelled: set[str] = set()
        self.crossed: list[Any] = []
        self.kills = 0


def book(path: Path) -> tuple[Counter[str], list[int]]:
    """How often each call ran, and the processes there were."""
    lines = [line.split() for line in path.read_text().splitlines()]
    ran = Counter(token for word, token, _ in lines if word == "ran")
    return ran, [int(pid) for word, _, pid in lines if word == "pid"]


async def scripted(host: Host, path: Path, mark: str, count: int, dice: random.Random) -> Tally:
    tally = Tally()
    names = [member.name for member in host.servers]
    numbers = iter(range(count))

    async def one(number: int) -> None:
        name, token = dice.choice(names), f"{mark}{number}"

        def told(_: float, __: float | None, message: str | None) -> None:
            if message != token:
                tally.crossed.append((token, message))

        asks = dice.random() < 0.15
        arguments: dict[str, Any] = {"token": token} | ({} if asks else {"steps": dice.randrange(5)})
        call = asyncio.create_task(host.call(f"{name}.{'ask' if asks else 'work'}", arguments, progress_handler=told))
        if dice.random() < 0.05:
            await asyncio.sleep(dice.random() * 0.01)
            call.cancel()
        await asyncio.wait([call])
        if call.cancelled():
            tally.cancelled.add(token)
        elif (exc := call.exception()) is not None:
            assert isinstance(exc, MCPError), exc
            tally.failed[type(exc).__name__] += 1
        else:
            expected = f"{name} {token}" + (f" answer to {token}" if asks else "")
            if call.result().content[0].text != expected:
                tally.crossed.append((token, call.result()))
            tally.answered.add(token)

    async def mischief() -> None:
        victims = [pid for pid in book(path)[1] if alive(pid)]
        if victims and dice.random() < 0.9:
            with contextlib.suppress(ProcessLookupError):
                os.kill(dice.choice(victims), signal.SIGKILL)
            tally.kills += 1
        else:
            with contextlib.suppress(MCPError):
                await host.restart(dice.choice(names))

    async def worker() -> None:
        for number in numbers:
            await one(number)
            if dice.random() < 0.02:
                await host.list_tools()
            if dice.random() < 0.04:
                await mischief()

    async with asyncio.TaskGroup() as group:
        for _ in range(16):
            group.create_task(worker())
    return tally


async def chaos(folder: Path, count: int, seed: int) -> None:
    program, path = folder / "chaos_program.py", folder / "book"
    program.write_text(PROGRAM)
    path.touch()
    dice = random.Random(seed)
    local = Server("local")

    @local.tool
    async def work(token: str, steps: int) -> str:
        await asyncio.sleep(0)
        return f"local {token}"

    @local.tool
    async def ask(token: str) -> str:
        return f"local {token} answer to {token}"

    def consent(request: Any) -> Any:
        return {"value": f"answer to {request.details['message']}"}

    process = psutil.Process()
    defaults = ServerSettings(restart_delay=0.01, max_restart_delay=0.2, max_restarts=4, idle_timeout=2.0)
    async with testing.serve(local, transport="http") as url:
        async with Host(policy=Policy("allow"), consent=consent, defaults=defaults) as host:
            names = [f"s{number}" for number in range(4)]
            for number, name in enumerate(names):
                era = "handshake" if number % 2 else "stateless"
                host.add(name, [sys.executable, "-u", str(program), name, str(path)], protocol_version=era)
            host.add("local", url)
            names.append("local")
            await scripted(host, path, "warm", count // 4, dice)  # what is made once is made now
            gc.collect()
            before = process.memory_info().rss
            tally = await scripted(host, path, "t", count, dice)
            gc.collect()
            grown = process.memory_info().rss - before
            for name in names:  # and afterwards everything works
                await host.restart(name)
                result = await host.call(f"{name}.work", {"token": f"after-{name}", "steps": 1})
                assert result.content[0].text == f"{name} after-{name}"
        tasks = [task for task in asyncio.all_tasks() if "member" in repr(task.get_coro())]
        assert tasks == []
    ran, pids = book(path)
    await wait_until(lambda: not [pid for pid in pids if alive(pid)])
    twice = [token for token, times in ran.items() if times > 1]
    record_measurement("chaos: calls", count, "calls")
    record_measurement("chaos: kills", tally.kills, "kills")
    record_measurement("chaos: failed, and said so", sum(tally.failed.values()), "calls")
    record_measurement("chaos: crossed, run twice, processes left", len(tally.crossed) + len(twice), "")
    record_measurement("chaos: memory grown", grown / MiB, "MiB")
    assert tally.crossed == []
    assert twice == []
    assert tally.kills > 0
    assert len(tally.answered) + sum(tally.failed.values()) + len(tally.cancelled) == count
    assert len(tally.answered) > count / 2
    assert grown < 30 * MiB


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.timeout(300)
async def test_a_short_run(tmp_path: Path) -> None:
    await chaos(tmp_path, 600, seed=7)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_a_long_run(tmp_path: Path) -> None:
    await chaos(tmp_path, 20_000, seed=int.from_bytes(os.urandom(4)))
