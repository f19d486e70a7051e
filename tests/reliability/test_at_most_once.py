"""A tool runs at most once for each call, whatever happens to the network or the server process.

Every call has a unique name, which the tool counts. Retries are on, as by default.
"""

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import FAULTS
from harness import record_measurement
from test_network_faults import behind_a_proxy

from dovetail import Client, ClientLimits, MCPError, Timeouts
from dovetail.errors import OutcomeUnknown
from support.fake_service import wait_until

PLAN = [*FAULTS[:-1], "busy", *([""] * 4)]


async def faulty(era: str, calls: int, seed: int) -> None:
    chance = random.Random(seed)
    ran: list[str] = []
    answered: list[str] = []
    told: Counter[str] = Counter()
    async with behind_a_proxy(era, ran) as (client, proxy):
        for number in range(calls):
            if fault := chance.choice(PLAN):
                proxy.armed.append(fault)
            try:
                answered.append(await client.call("run", name=str(number)))
            except MCPError as exc:
                told[type(exc).__name__] += 1
            proxy.armed.clear()
    times = Counter(ran)
    assert max(times.values()) == 1, [name for name, count in times.items() if count > 1]
    assert all(times[name] == 1 for name in answered)
    assert len(answered) + told.total() == calls
    assert len(answered) > calls // 5
    record_measurement(f"calls under random faults, {era}; run twice: 0; answered", len(answered), f"of {calls}")


@pytest.mark.parametrize("era", ["stateless", "handshake"])
async def test_random_faults(era: str) -> None:
    await faulty(era, 300, 28)


@pytest.mark.soak
@pytest.mark.parametrize("era", ["stateless", "handshake"])
async def test_random_faults_for_long(era: str) -> None:
    for seed in range(4):
        await faulty(era, 5000, seed)


MORTAL = Path(__file__).parents[1] / "client" / "crashing_server.py"


async def killed(file: Path, kills: int) -> None:
    """A process killed in the middle of its calls, or between two: each is answered or reported, none runs twice."""
    chance = random.Random(kills)
    pids: set[int] = set()
    answered: list[str] = []
    interrupted: list[str] = []
    options: dict[str, Any] = {"limits": ClientLimits(reconnect_delay=0.01), "timeout": Timeouts(call=10)}
    async with Client([sys.executable, str(MORTAL), str(file)], **options) as client:
        for kill in range(kills):
            pid = await client.call("pid", into=int)
            pids.add(pid)
            if kill % 3 == 0:
                os.kill(pid, signal.SIGKILL)
            else:
                interrupted.append(f"held{kill}")
                await _killed_at_work(client, pid, file, interrupted[-1])
            lost = 0
            for name in (f"n{kill}.{number}" for number in range(chance.randint(1, 4))):
                try:
                    await client.call("run", name=name)
                    answered.append(name)
                except MCPError:
                    lost += 1
            assert lost <= (kill % 3 == 0)  # the one that was on its way
    ran = executed(file)
    assert max(ran.values()) == 1, [name for name, count in ran.items() if count > 1]
    assert ran.keys() >= {*answered, *interrupted}
    assert len(interrupted) >= kills // 2
    assert len(pids) == kills
    await wait_until(lambda: not any(_alive(pid) for pid in pids))
    record_measurement(
        "kills of a process during calls; survivors, run twice: 0, 0; calls", ran.total(), f"for {kills} kills"
    )


async def _killed_at_work(client: Client, pid: int, file: Path, name: str) -> None:
    """Kill the process when the tool has left its mark and not yet answered."""
    calling = asyncio.get_running_loop().create_task(client.call("run", name=name, hold=True))
    await wait_until(lambda: executed(file)[name])
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(OutcomeUnknown):
        await calling


def executed(file: Path) -> Counter[str]:
    return Counter(file.read_text().split() if file.exists() else ())


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_process_killed_during_calls(tmp_path: Path) -> None:
    await killed(tmp_path / "ran", 15)


@pytest.mark.soak
async def test_a_process_killed_200_times(tmp_path: Path) -> None:
    await killed(tmp_path / "ran", 200)
