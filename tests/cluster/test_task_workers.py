"""Test tasks in worker processes with Redis: killed workers, an emptied Redis, orderly stops, and answers."""

import asyncio
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client, Server
from dovetail.cluster import Cluster
from dovetail.errors import RemoteError, TaskCancelled, TaskLost
from dovetail.tasks import docket_engine, task_worker, tasks_extension
from support.redis_servers import RedisServer

PROGRAM = Path(__file__).with_name("task_program.py")
ENGINES = ["store", "docket"]
ON_DOCKET = pytest.mark.parametrize("engine", ["docket"], indirect=True)
TIMEOUT_S = 20.0
RECOVERY_S = 5.0


class Deployment:
    """A Redis server, worker processes, and a server in this process that only submits tasks."""

    def __init__(self, folder: Path, redis: RedisServer) -> None:
        self.redis = redis
        self.workers: list[subprocess.Popen[str]] = []
        self._steps = folder / "steps"
        self._steps.touch()

    def start_worker(self, *options: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "dovetail", "worker", str(PROGRAM), *options]
        worker = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.workers.append(worker)
        return worker

    async def wait_until_ready(self) -> None:
        for worker in self.workers:
            assert worker.stderr is not None
            line = await asyncio.to_thread(worker.stderr.readline)
            assert "runs tasks from unix:" in line

    def read_steps(self) -> list[tuple[str, str, int, int]]:
        """Return the step, the key, the attempt and the process of each line."""
        lines = [line.split() for line in self._steps.read_text().splitlines()]
        return [(step, key, int(attempt), int(process_id)) for step, key, attempt, process_id in lines]

    def count(self, step: str) -> Counter[str]:
        return Counter(key for name, key, *_ in self.read_steps() if name == step)

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.communicate()


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def deployment(
    engine: str, tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Deployment]:
    monkeypatch.setenv("TASKS_URL", redis_server.url)
    monkeypatch.setenv("TASKS_STEPS", str(tmp_path / "steps"))
    monkeypatch.setenv("TASKS_ENGINE", engine)
    deployment = Deployment(tmp_path, redis_server)
    yield deployment
    deployment.close()


@pytest.fixture
def app(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(task_worker, "DEFAULT_OPTIONS", task_worker.DEFAULT_OPTIONS)
    monkeypatch.setattr(docket_engine, "_REDELIVERY_S", 1.0)
    monkeypatch.setattr(tasks_extension, "_HAND_OVER_TIMEOUT_S", 0.5)
    spec = importlib.util.spec_from_file_location("task_program", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.app


async def read_outcome(handle: Any) -> str:
    try:
        return (await handle).content[0].text
    except RemoteError as exc:
        return str(exc.code)


async def test_the_tasks_of_a_killed_worker_finish_on_the_other_or_are_reported_as_lost(
    deployment: Deployment, app: Server
) -> None:
    deployment.start_worker()
    deployment.start_worker()
    async with Client(app) as client:
        once = [f"once-{number}" for number in range(6)]
        retried = [f"retry-{number}" for number in range(6)]
        tools = {"run_once": once, "retry": retried}
        handles = {
            key: await client.start_task(tool, {"key": key, "seconds": 0.4})
            for tool, keys in tools.items()
            for key in keys
        }
        await deployment.wait_until_ready()
        await deployment.wait_for(lambda: len(deployment.count("start")) == 12)
        killed_id = deployment.read_steps()[0][3]
        os.kill(killed_id, signal.SIGKILL)
        async with asyncio.timeout(TIMEOUT_S):
            outcomes = {key: await read_outcome(handle) for key, handle in handles.items()}
    steps = deployment.read_steps()
    ended = {key for step, key, *_ in steps if step == "end"}
    started_by_killed = {key for step, key, attempt, process_id in steps if process_id == killed_id}
    # A function without retries never starts twice. Its task is completed, or reported as lost.
    assert max(deployment.count("start")[key] for key in once) == 1
    for key in once:
        assert outcomes[key] in (key, "-32603")
        assert outcomes[key] == key or key in started_by_killed
        assert outcomes[key] == "-32603" or key in ended
    # A function with retries always ends.
    assert {key: outcomes[key] for key in retried} == {key: key for key in retried}
    assert killed_id not in {process_id for _, _, attempt, process_id in steps if attempt > 1}


@ON_DOCKET
async def test_after_a_flush_every_task_is_lost_and_none_starts_again(deployment: Deployment, app: Server) -> None:
    deployment.start_worker()
    await deployment.wait_until_ready()
    async with Client(app) as client:
        arguments = [{"key": f"{number}", "seconds": 0.3} for number in range(4)]
        handles = [await client.start_task(tool, values) for values in arguments for tool in ("run_once", "retry")]
        await deployment.wait_for(lambda: sum(deployment.count("start").values()) == 8)
        deployment.redis.execute("FLUSHALL")
        for handle in handles:
            assert handle.reference is not None
            with pytest.raises(TaskLost):
                await client.get_task(handle.reference)
            with pytest.raises(TaskLost):
                await handle
        # New tasks work at once. When they have ended, a task that starts again would have started, too.
        async with asyncio.timeout(TIMEOUT_S):
            assert await client.call("run_once", key="new", seconds=1.0) == "new"
        # The worker continues after a restart of Redis, too.
        await asyncio.to_thread(deployment.redis.kill)
        await asyncio.to_thread(deployment.redis.start)
        async with asyncio.timeout(RECOVERY_S):
            outcome = None
            while outcome is None:
                with contextlib.suppress(RemoteError):  # The first call may find the old connection.
                    outcome = await client.call("run_once", key="last", seconds=0)
            assert outcome == "last"
    assert deployment.count("start") == {**{f"{number}": 2 for number in range(4)}, "new": 1, "last": 1}


@ON_DOCKET
async def test_a_stopping_worker_finishes_what_ends_in_time_and_hands_over_the_rest(
    deployment: Deployment, app: Server
) -> None:
    worker = deployment.start_worker("--drain-timeout", "0.5")
    await deployment.wait_until_ready()
    async with Client(app) as client:
        calls = {"short": ("run_once", 0.2), "long": ("run_once", 60), "retried": ("retry", 60)}
        handles = {
            key: await client.start_task(tool, {"key": key, "seconds": seconds})
            for key, (tool, seconds) in calls.items()
        }
        await deployment.wait_for(lambda: len(deployment.count("start")) == 3)
        worker.terminate()
        # The stopping worker takes no further task.
        handles["late"] = await client.start_task("run_once", {"key": "late", "seconds": 0})
        assert await asyncio.to_thread(worker.wait, TIMEOUT_S) == 0
        assert "late" not in deployment.count("start")
        other = deployment.start_worker()
        async with asyncio.timeout(TIMEOUT_S):
            outcomes = {key: await read_outcome(handle) for key, handle in handles.items()}
    assert outcomes == {"short": "short", "long": "-32603", "retried": "retried", "late": "late"}
    assert deployment.count("start") == {"short": 1, "long": 1, "retried": 2, "late": 1}
    assert {process_id for step, key, _, process_id in deployment.read_steps() if key == "late"} == {other.pid}


@ON_DOCKET
async def test_a_client_of_the_server_answers_and_cancels_tasks_in_a_worker(
    deployment: Deployment, app: Server
) -> None:
    deployment.start_worker()
    await deployment.wait_until_ready()

    async def answer(*_: Any) -> Any:
        return {"value": "blue"}

    async with Client(app, elicitation_handler=answer) as client, asyncio.timeout(TIMEOUT_S):
        assert await client.call("ask", key="a") == "blue"
        handle = await client.start_task("run_once", {"key": "long", "seconds": 60})
        await deployment.wait_for(lambda: deployment.count("start")["long"] == 1)
        await handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle


@ON_DOCKET
async def test_docket_carries_nothing_but_ids(deployment: Deployment, app: Server) -> None:
    import redis

    async with Client(app) as client:
        handle = await client.start_task("run_once", {"key": "a-plain-argument", "seconds": 0})
        with redis.Redis(unix_socket_path=deployment.redis.path) as connection:
            messages = connection.xrange("dovetail:working:stream")
        assert len(messages) == 1
        assert b"a-plain-argument" not in b"".join(messages[0][1].values())
        deployment.start_worker()
        async with asyncio.timeout(TIMEOUT_S):
            assert await read_outcome(handle) == "a-plain-argument"


async def test_the_servers_of_a_cluster_share_their_tasks(redis_server: RedisServer) -> None:
    import redis

    def create_server() -> Server:
        app = Server(
            "clustered", cluster=Cluster(redis_server.url, prefix="staging"), secret_keys=["a key of this cluster"]
        )

        @app.tool(task=True)
        async def greet(who: str) -> str:
            """Greet."""
            return f"Hello {who}"

        return app

    first, second = create_server(), create_server()
    await first.start()
    await second.start()
    try:
        async with Client(first) as client, Client(second) as other, asyncio.timeout(TIMEOUT_S):
            handle = await client.start_task("greet", {"who": "Ada"})
            assert handle.reference is not None
            assert await read_outcome(await other.get_task(handle.reference)) == "Hello Ada"
        with redis.Redis(unix_socket_path=redis_server.path) as connection:
            assert len([*connection.scan_iter("{staging}:tasks:task:*")]) == 1
    finally:
        await first.stop()
        await second.stop()
