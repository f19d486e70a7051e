"""Test killing a server at random moments with many calls in flight: no call hangs or runs twice, and each is answered
or reported.
"""

import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness import record_measurement

from dovetail import Client, ClientLimits, MCPError, Timeouts
from dovetail.errors import ConnectError, ConnectionLost, OutcomeUnknown, ProcessStartError

VICTIM = Path(__file__).parent / "killable_server.py"
CALLERS = 8
LIMIT = 10.0  # of one call, as the client is told
BEYOND = 10.0  # what opening again may add
QUICK = ClientLimits(reconnect_delay=0.01)

ERAS = ["stateless", "handshake"]


def command(marks: Path, era: str, *more: str) -> list[str]:
    return [sys.executable, "-I", "-S", str(VICTIM), str(marks), era, *more]


class Log:
    """What the victims wrote: who they were, and what they ran."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    @property
    def lines(self) -> list[str]:
        return self.path.read_text(encoding="utf-8").split("\n")

    @property
    def pids(self) -> list[int]:
        return [int(line.removeprefix("pid ")) for line in self.lines if line.startswith("pid ")]

    @property
    def ran(self) -> Counter[str]:
        return Counter(line for line in self.lines if line and not line.startswith("pid "))


class Outcomes:
    """How the calls ended."""

    def __init__(self) -> None:
        self.answered: list[str] = []
        self.told: dict[str, MCPError] = {}
        self.longest = 0.0

    async def call(self, client: Client, token: str, wait: float) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(LIMIT + BEYOND):
                assert await client.call("mark", token=token, wait=wait) == token
            self.answered.append(token)
        except MCPError as exc:
            self.told[token] = exc
        self.longest = max(self.longest, loop.time() - began)

    def check(self, log: Log, kills: int) -> None:
        ran = log.ran
        assert not {token: times for token, times in ran.items() if times > 1}
        assert set(self.answered) <= ran.keys()
        for token, exc in self.told.items():
            assert isinstance(exc, OutcomeUnknown | ProcessStartError | ConnectError | ConnectionLost), (token, exc)
            if not isinstance(exc, OutcomeUnknown):  # which alone says that it may have run
                assert token not in ran, (token, exc)
        assert len(log.pids) >= kills
        assert self.answered
        assert any(isinstance(exc, OutcomeUnknown) for exc in self.told.values())


async def storm(client: Client, kill_one: Callable[[], Any], kills: int, seed: int) -> Outcomes:
    """Callers call without a pause while servers die."""
    chance = random.Random(seed)
    outcomes = Outcomes()
    over = asyncio.Event()

    async def caller(name: int) -> None:
        number = 0
        while not over.is_set():
            number += 1
            await outcomes.call(client, f"{name}-{number}", chance.choice((0.0, 0.001, 0.02, 0.1)))
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for name in range(CALLERS):
            group.create_task(caller(name))
        for _ in range(kills):
            await asyncio.sleep(chance.uniform(0.0, 0.12))
            await kill_one()
        await asyncio.sleep(0.2)
        over.set()
    await outcomes.call(client, "afterwards", 0.0)
    assert "afterwards" in outcomes.answered
    return outcomes


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(BEYOND):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def related() -> set[int]:
    """Every process that runs the victim, wherever it hangs."""
    found: set[int] = set()
    for process in psutil.process_iter(["cmdline"]):
        if str(VICTIM) in (process.info["cmdline"] or []):
            found.add(process.pid)
    return found


def alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def report(row: str, kills: int, outcomes: Outcomes, log: Log) -> None:
    record_measurement(f"{row}, kills", kills, "")
    record_measurement(f"{row}, calls answered", len(outcomes.answered), "")
    for kind, count in sorted(Counter(type(exc).__name__ for exc in outcomes.told.values()).items()):
        record_measurement(f"{row}, calls told {kind}", count, "")
    record_measurement(f"{row}, ran more than once", sum(times > 1 for times in log.ran.values()), "")
    record_measurement(f"{row}, longest call", outcomes.longest, "s")


async def storm_over_stdio(tmp_path: Path, era: str, kills: int) -> None:
    log = Log(tmp_path / "marks.txt")
    client = Client(command(log.path, era), timeout=Timeouts(call=LIMIT), limits=QUICK)
    dead: set[int] = set()

    async def kill_newest() -> None:
        await until(lambda: log.pids and log.pids[-1] not in dead)
        dead.add(log.pids[-1])
        with contextlib.suppress(ProcessLookupError):
            os.kill(log.pids[-1], signal.SIGKILL)

    async with client:
        outcomes = await storm(client, kill_newest, kills, seed=kills)
    outcomes.check(log, kills)
    assert not [pid for pid in log.pids if alive(pid)]
    report(f"stdio {era}", kills, outcomes, log)


@contextlib.asynccontextmanager
async def supervised(log: Log, era: str) -> AsyncGenerator[tuple[str, Callable[[], Any]]]:
    """A victim over HTTP, and a way to kill it; it is started again at the same port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process: Any = None

    async def start() -> None:
        nonlocal process
        process = await asyncio.create_subprocess_exec(*command(log.path, era, str(port)))
        await until(lambda: _listens(port))

    async def kill() -> None:
        process.kill()
        await process.wait()
        await start()

    try:
        await start()
        yield f"http://127.0.0.1:{port}/mcp", kill
    finally:
        if process is not None:
            process.kill()
            await process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def storm_over_http(tmp_path: Path, era: str, kills: int) -> None:
    log = Log(tmp_path / "marks.txt")
    async with supervised(log, era) as (url, kill):
        client = Client(url, timeout=Timeouts(call=LIMIT), limits=QUICK)
        async with client:
            outcomes = await storm(client, kill, kills, seed=kills)
        assert client.protocol_version is None
    outcomes.check(log, kills)
    report(f"HTTP {era}", kills, outcomes, log)


@pytest.mark.parametrize("era", ERAS)
async def test_a_process_killed_at_random(tmp_path: Path, era: str) -> None:
    await storm_over_stdio(tmp_path, era, 20)
    assert not related()


@pytest.mark.parametrize("era", ERAS)
async def test_an_http_server_killed_at_random(tmp_path: Path, era: str) -> None:
    await storm_over_http(tmp_path, era, 12)


@pytest.mark.soak
@pytest.mark.parametrize("era", ERAS)
async def test_a_process_killed_two_hundred_times(tmp_path: Path, era: str) -> None:
    await storm_over_stdio(tmp_path, era, 200)
    assert not related()


@pytest.mark.soak
@pytest.mark.parametrize("era", ERAS)
async def test_an_http_server_killed_two_hundred_times(tmp_path: Path, era: str) -> None:
    await storm_over_http(tmp_path, era, 200)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP], ids=lambda one: one.name)
async def test_nothing_outlives_a_program_that_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    holder = [sys.executable, str(VICTIM.with_name("idle_client.py")), str(tmp_path / "marks.txt")]
    process = await asyncio.create_subprocess_exec(*holder, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    child, grandchild = map(int, (await asyncio.wait_for(process.stdout.readline(), 30)).split())
    assert alive(child)
    assert alive(grandchild)
    await until(lambda: "3" in (tmp_path / "marks.txt").read_text(encoding="utf-8").split())
    process.send_signal(number)
    await process.wait()
    await until(lambda: not alive(child) and not alive(grandchild))
    await until(lambda: not related())
