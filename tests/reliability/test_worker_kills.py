"""Workers of a cluster are killed under load. Every call is answered or reported as lost, nothing runs twice, and
sessions go on.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from harness import record_measurement

from cluster.history import History, find_violations
from cluster.load import LoadClient, open_clients, run_load
from cluster.server_pool import ServerPool, run_servers
from dovetail import Client, MCPError, Timeouts
from dovetail.errors import OutcomeUnknown
from support.redis_servers import RedisServer
from support.routers import run_router

pytestmark = pytest.mark.timeout(300)

WORKERS = 4
CALL_TIMEOUT_S = 30.0  # Calls of our client end earlier, with a result or an error that names the loss.


@pytest.fixture
def redis_server(tmp_path: Path) -> Generator[RedisServer]:
    with RedisServer(tmp_path) as server:
        yield server


class DovetailCaller:
    """A client of dovetail behind the router, which makes calls of unknown effect."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self.answered: list[str] = []
        self.lost: dict[str, MCPError] = {}
        self.longest = 0.0
        self.client = Client(
            url, protocol_version="handshake", elicitation_handler=self._answer, timeout=Timeouts(call=CALL_TIMEOUT_S)
        )

    async def _answer(self, params: Any) -> Any:
        return {"value": f"answer-{params.message}"}

    async def run(self, is_done: asyncio.Event) -> None:
        chance = random.Random(self.name)
        number = 0
        async with self.client:
            while not is_done.is_set():
                number += 1
                await self._call(f"{self.name}-{number}", chance)
            await self.client.call("echo", token=f"{self.name}-last")  # The session goes on.

    async def _call(self, token: str, chance: random.Random) -> None:
        begin = time.monotonic()
        try:
            tool = chance.choice(("echo", "wait", "ask", "climb"))
            arguments: dict[str, Any] = {
                "wait": {"seconds": chance.choice((0.01, 0.1, 0.3))},
                "climb": {"steps": 3, "pause": 0.05},
            }.get(tool, {})
            text = await self.client.call(tool, token=token, **arguments)
            assert text.startswith(token)
            self.answered.append(token)
        except MCPError as exc:
            self.lost[token] = exc
        self.longest = max(self.longest, time.monotonic() - begin)


async def kill_workers(pool: ServerPool, seconds: int) -> int:
    """Kill one worker each second, and start a successor at the same address."""
    chance = random.Random(seconds)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    for number in range(seconds):
        await asyncio.sleep(max(0.0, begin + number + 1 - loop.time()))
        while len(ready := [worker for worker in pool.workers if worker.is_listening]) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # On a busy machine, successors need more than a second.
        worker = chance.choice(ready)
        worker.kill()
        worker.start()
    while not all(worker.is_listening for worker in pool.workers):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return seconds


async def check_kills(folder: Path, seconds: int, cluster: str) -> None:
    history = History()
    is_done = asyncio.Event()
    with run_servers(folder, WORKERS, cluster=cluster) as pool:
        async with (
            run_router(pool.addresses) as router,
            open_clients(pool.addresses, history, 6, expects_loss=True) as clients,
            asyncio.TaskGroup() as group,
        ):
            callers = [DovetailCaller(router.url, f"d{number}") for number in range(3)]
            tasks = [group.create_task(caller.run(is_done)) for caller in callers]
            load = group.create_task(run_load(clients, is_done.is_set, pause=0.02))
            kills = await kill_workers(pool, seconds)
            is_done.set()
            await asyncio.gather(*tasks, load)
        effects = pool.read_effects()
        check_callers(callers, effects)
        own_effects = Counter({key: count for key, count in effects.items() if not key[0].startswith("d")})
        assert find_violations(history, own_effects) == []
        assert pool.read_errors() == []
    report("local" if cluster == "local" else "Redis", kills, history, clients, callers)


def check_callers(callers: list[DovetailCaller], effects: Counter[tuple[str, str]]) -> None:
    counts = Counter({token: count for (token, _), count in effects.items()})
    for caller in callers:
        assert len(caller.answered) > len(caller.lost)
        assert all(counts[token] == 1 for token in caller.answered)
        for token, exc in caller.lost.items():
            # Only this error says that the call may have had an effect.
            assert isinstance(exc, OutcomeUnknown) or not counts[token], (token, exc)
            assert counts[token] <= 1
        assert caller.longest < CALL_TIMEOUT_S


def report(
    cluster: str, kills: int, history: History, clients: list[LoadClient], callers: list[DovetailCaller]
) -> None:
    row = f"{cluster}"
    record_measurement(f"{row}, kills", kills, "")
    record_measurement(f"{row}, raw operations answered", history.count("answered"), "")
    record_measurement(f"{row}, raw operations reported as lost", history.count("lost"), "")
    record_measurement(f"{row}, calls of dovetail answered", sum(len(caller.answered) for caller in callers), "")
    for kind, count in Counter(type(exc).__name__ for caller in callers for exc in caller.lost.values()).items():
        record_measurement(f"{row}, calls of dovetail that raised {kind}", count, "")
    record_measurement(f"{row}, longest call of dovetail", max(caller.longest for caller in callers), "s")
    record_measurement(f"{row}, streams continued", sum(client.resume_count for client in clients), "")


async def test_one_worker_killed_each_second(tmp_path: Path, redis_server: RedisServer) -> None:
    await check_kills(tmp_path, 10, redis_server.url)


@pytest.mark.soak
async def test_one_worker_killed_each_second_for_a_minute(tmp_path: Path, redis_server: RedisServer) -> None:
    await check_kills(tmp_path, 60, redis_server.url)


@pytest.mark.soak
async def test_one_local_worker_killed_each_second_for_a_minute(tmp_path: Path) -> None:
    await check_kills(tmp_path, 60, "local")
