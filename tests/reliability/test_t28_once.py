"""T28: a tool runs at most once for each call, whatever happens to the network or to the server's process.

Every call has a name of its own, which the tool counts. Retries are on, as they are for everyone.
"""

import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import FAULTS
from lab import figure
from test_t27_network import behind_a_proxy

from dovetail import Client, ClientLimits, MCPError, Timeouts
from transports.scene import until

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
    figure(f"T28 calls under random faults, {era}; run twice: 0; answered", len(answered), f"of {calls}")


@pytest.mark.parametrize("era", ["stateless", "handshake"])
async def test_random_faults(era: str) -> None:
    await faulty(era, 300, 28)


@pytest.mark.soak
@pytest.mark.parametrize("era", ["stateless", "handshake"])
async def test_random_faults_for_long(era: str) -> None:
    for seed in range(4):
        await faulty(era, 5000, seed)


MORTAL = Path(__file__).parents[1] / "client" / "mortal.py"


async def killed(file: Path, kills: int) -> None:
    """A process killed in the middle of its calls: each is answered or reported, none runs twice, none stays behind."""
    chance = random.Random(kills)
    pids: set[int] = set()
    sent = 0
    options: dict[str, Any] = {"limits": ClientLimits(reconnect_after=0.01), "timeouts": Timeouts(call=10)}
    async with Client([sys.executable, str(MORTAL), str(file)], **options) as client:
        for _ in range(kills):
            pid = await client.call("pid", into=int)
            pids.add(pid)
            outcomes = 0
            for number in range(chance.randint(1, 4)):
                if number == 0:
                    os.kill(pid, signal.SIGKILL)
                sent += 1
                try:
                    await client.call("run", name=f"n{sent}")
                except MCPError:
                    outcomes += 1
            assert outcomes <= 1  # the one that was on its way
    ran = executed(file)
    assert not ran or max(ran.values()) == 1
    assert len(pids) == kills
    await until(lambda: not any(_alive(pid) for pid in pids))
    figure("T28 kills of a process during calls; survivors, run twice: 0, 0; calls", sent, f"for {kills} kills")


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
