"""Test `dovetail cluster` with a real Redis server."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from cluster.recorder import Recorder
from dovetail.cli.main import cli
from dovetail.cluster import Cluster
from dovetail.protocol.interfaces.shared_state import CLOCK_MARGIN_S, HistoryLost, SharedState
from support.redis_servers import RedisServer


@pytest.fixture
def redis_server(tmp_path: Path) -> Generator[RedisServer]:
    with RedisServer(tmp_path) as server:
        yield server


async def invoke(*args: str) -> tuple[int, str]:
    """Run a command in this process. Return the exit code and stdout."""

    def run() -> tuple[int, str]:
        result = CliRunner().invoke(cli, ["cluster", *args], standalone_mode=False)
        if isinstance(result.exception, click.UsageError):
            return 2, result.stdout
        if isinstance(result.exception, click.exceptions.Exit):
            return result.exception.exit_code, result.stdout
        assert result.exception is None, result.exception
        return result.return_value or 0, result.stdout

    return await asyncio.to_thread(run)


@asynccontextmanager
async def run_worker(
    server: RedisServer, name: str = "tickets", prefix: str = "dovetail"
) -> AsyncGenerator[SharedState]:
    backend = Cluster(server.url, prefix).__shared_state__(name, ())
    await backend.start(Recorder())
    yield backend
    await backend.close()


async def read_status(server: RedisServer, *options: str) -> Any:
    code, out = await invoke("status", server.url, "--json", *options)
    assert code == 0
    return json.loads(out)


async def test_the_status_shows_the_servers_and_workers(redis_server: RedisServer) -> None:
    begin = time.time()
    async with run_worker(redis_server) as backend, run_worker(redis_server), run_worker(redis_server, "[a]*"):
        status = await read_status(redis_server)
        assert [(entry["server"], entry["worker_count"]) for entry in status["servers"]] == [
            ("[a]*", 1),
            ("tickets", 2),
        ]
        assert status["problems"] == []
        (entry,) = (await read_status(redis_server, "--server", "tickets"))["servers"]
        assert entry["epoch"] == backend.get_status().epoch
        assert begin - 1 <= entry["since"] <= time.time() + 1
        assert entry["is_confirmed"] is False
        code, out = await invoke("status", redis_server.url)
        assert (code, out.splitlines()[2].split()[:2]) == (0, ["tickets", "2"])
    assert (await read_status(redis_server, "--prefix", "other"))["servers"] == []


async def test_servers_with_similar_names_are_apart(redis_server: RedisServer) -> None:
    names = [("prod:a", "b"), ("prod", "a:b"), ("prod", "x{1}"), ("prod", "x(1)"), ("prod", "x%7B1%7D")]
    async with AsyncExitStack() as stack:
        backends = [await stack.enter_async_context(run_worker(redis_server, *reversed(name))) for name in names]
        for index, backend in enumerate(backends):
            await backend.write("a", b"%d" % index, 60)
        assert [value and value.data for value in [await backend.read("a") for backend in backends]] == [
            b"%d" % index for index in range(len(names))
        ]
        for prefix in ("prod:a", "prod"):
            status = await read_status(redis_server, "--prefix", prefix)
            expected = sorted(name for own_prefix, name in names if own_prefix == prefix)
            assert [(entry["server"], entry["worker_count"]) for entry in status["servers"]] == [
                (name, 1) for name in expected
            ]


async def test_the_status_shows_problems_of_redis(redis_server: RedisServer) -> None:
    redis_server.execute("CONFIG", "SET", "maxmemory", "1gb")
    redis_server.execute("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    (problem,) = (await read_status(redis_server))["problems"]
    assert "allkeys-lru" in problem


async def test_a_confirmed_loss_lets_older_ids_be_used_once(redis_server: RedisServer) -> None:
    async with run_worker(redis_server) as backend, run_worker(redis_server) as other:
        old_epoch, valid_from = backend.get_status().epoch, time.time()
        assert await backend.use_once("a", valid_from, 60, epoch=old_epoch)
        redis_server.execute("FLUSHALL")
        for epoch in (old_epoch, ""):
            with pytest.raises(HistoryLost):
                await backend.use_once("b", valid_from, 60, epoch=epoch)
        assert await invoke("confirm-loss", redis_server.url, "--server", "tickets") == (8, "")  # There is no terminal.
        assert (await invoke("confirm-loss", redis_server.url, "--server", "tickets", "--yes"))[0] == 0
        assert (await read_status(redis_server))["servers"][0]["is_confirmed"] is True
        assert await backend.use_once("b", valid_from, 60, epoch=old_epoch)
        assert await other.use_once("c", valid_from - 3600, 60)
        for id in ("b", "c"):
            for worker in (backend, other):
                assert not await worker.use_once(id, valid_from, 60, epoch=old_epoch)
        # The confirmation does not apply to the next loss.
        redis_server.execute("FLUSHALL")
        with pytest.raises(HistoryLost):
            await backend.use_once("d", valid_from, 60, epoch=old_epoch)
        assert (await read_status(redis_server))["servers"][0]["is_confirmed"] is False


async def test_a_confirmed_restart_does_not_confirm_an_earlier_loss(redis_server: RedisServer) -> None:
    async with run_worker(redis_server) as backend:
        used_at = time.time()
        old_epoch = backend.get_status().epoch
        assert await backend.use_once("used", used_at, 600, epoch=old_epoch)
        redis_server.execute("FLUSHALL")
        with pytest.raises(HistoryLost):  # The worker learns the new epoch.
            await backend.use_once("used", used_at, 600, epoch=old_epoch)
        # Another loss. This time Redis keeps its records, and the operator knows that.
        created_at = time.time() + CLOCK_MARGIN_S  # as if the ID was created a minute after the first loss
        with redis_server.connect() as connection:
            connection.hset("{dovetail:tickets}:epoch", "run", "0" * 40)
        second_epoch = backend.get_status().epoch
        with pytest.raises(HistoryLost):
            await backend.use_once("later", created_at, 600, epoch=second_epoch)
        assert (await invoke("confirm-loss", redis_server.url, "--server", "tickets", "--yes"))[0] == 0
        with pytest.raises(HistoryLost):
            await backend.use_once("used", used_at, 600, epoch=old_epoch)
        assert await backend.use_once("later", created_at, 600, epoch=second_epoch)


async def test_a_loss_without_a_question_is_confirmed_for_one_server(redis_server: RedisServer) -> None:
    async with run_worker(redis_server), run_worker(redis_server, "reports"):
        assert await invoke("confirm-loss", redis_server.url, "--yes") == (2, "")
        for confirmed in (["reports"], []):
            code, out = await invoke("confirm-loss", redis_server.url, "--server", "reports", "--yes", "--json")
            assert (code, json.loads(out)) == (0, {"confirmed": confirmed})
        servers = (await read_status(redis_server))["servers"]
        assert [server["is_confirmed"] for server in servers] == [True, False]


@pytest.mark.parametrize("command", ["status", "confirm-loss"])
async def test_wrong_arguments(command: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOVETAIL_CLUSTER", raising=False)
    for args in ((), ("local",), ("http://127.0.0.1",), (redis_server.url, "--server", "missing")):
        assert await invoke(command, *args) == (2, "")
    monkeypatch.setenv("DOVETAIL_CLUSTER", redis_server.url)
    assert (await invoke(command))[0] == 0
    redis_server.kill()
    assert await invoke(command) == (3, "")
    redis_server.start()
