"""Test the engine on Docket in one process: delivery, foreign and forged messages, and its options."""

import asyncio
import os
import pickle
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import redis

from dovetail import Client, Server
from dovetail.cluster.redis.redis_connection import parse_redis_url
from dovetail.extensions import DocketEngine, TaskOptions
from dovetail.tasks import docket_engine
from support.redis_servers import RedisServer


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("r")) as server:
        yield server


def create_app(server: RedisServer, name: str, queue: str, runs: list[str]) -> Server:
    app = Server(name, tasks=TaskOptions(store=server.url, engine=DocketEngine(server.url, queue)))

    @app.tool(task=True)
    async def greet(who: str) -> str:
        """Greet."""
        runs.append(who)
        return f"Hello {who}"

    return app


async def wait_for_warning(caplog: pytest.LogCaptureFixture) -> None:
    while not any(record.name == "dovetail" and record.levelname == "WARNING" for record in caplog.records):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_a_task_runs_and_docket_keeps_nothing_of_it(redis_server: RedisServer) -> None:
    runs: list[str] = []
    async with Client(create_app(redis_server, "a", "queue-a", runs)) as client:
        async with asyncio.timeout(10):
            assert await asyncio.gather(*(client.call("greet", who=f"{n}") for n in range(5))) == [
                f"Hello {n}" for n in range(5)
            ]
    assert sorted(runs) == [f"{n}" for n in range(5)]
    with redis.Redis(unix_socket_path=redis_server.path) as connection:
        assert [key for key in connection.scan_iter("dovetail:queue-a:*") if b"runs" in key] == []
        assert connection.xlen("dovetail:queue-a:stream") == 0


async def test_a_task_of_another_server_in_the_queue_is_not_run(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[str] = []
    app = create_app(redis_server, "mine", "shared", runs)
    other = Server(
        "other",
        tasks=TaskOptions(store=redis_server.url, engine=DocketEngine(redis_server.url, "shared"), workers_only=True),
    )

    @other.tool(task=True)
    async def greet(who: str) -> str:
        """Greet from another server."""
        return who

    async with Client(other) as other_client:
        handle = await other_client.start_task("greet", {"who": "foreign"})
        async with Client(app) as client, asyncio.timeout(10):
            assert await client.call("greet", who="me") == "Hello me"
            await wait_for_warning(caplog)
            assert await client.call("greet", who="you") == "Hello you"
        assert (await handle.refresh()).status == "working"
    assert runs == ["me", "you"]


class Forged:
    """An object whose pickled form creates a file when it is read."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (self.path,))


@pytest.mark.parametrize("field", ["args", "kwargs"])
async def test_a_forged_message_runs_no_code(
    redis_server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, field: str
) -> None:
    target, runs = tmp_path / "forged", list[str]()
    message = {
        "key": "k",
        "when": "2026-01-01T00:00:00+00:00",
        "function": "run_task",
        "args": pickle.dumps(("an-id",)),
        "kwargs": pickle.dumps({}),
        "attempt": "1",
        "generation": "0",
    }
    async with Client(create_app(redis_server, "forged", f"forged-{field}", runs)) as client:
        async with asyncio.timeout(10):
            assert await client.call("greet", who="first") == "Hello first"
            with redis.Redis(unix_socket_path=redis_server.path) as connection:
                connection.xadd(f"dovetail:forged-{field}:stream", message | {field: pickle.dumps(Forged(str(target)))})
            await wait_for_warning(caplog)
            assert await client.call("greet", who="second") == "Hello second"
    assert not target.exists()
    assert runs == ["first", "second"]


def test_other_users_of_docket_in_the_process_are_not_affected(redis_server: RedisServer) -> None:
    import docket.execution

    DocketEngine(redis_server.url, "any")
    data = docket.execution.cloudpickle.dumps(({1, 2}, Path("x")))
    assert docket.execution.cloudpickle.loads(data) == ({1, 2}, Path("x"))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("http://127.0.0.1", "q"), ValueError),
        (("redis://127.0.0.1", ""), ValueError),
        (("redis://127.0.0.1", "a{b"), ValueError),
        (("redis://127.0.0.1", 7), TypeError),
    ],
)
def test_wrong_options_are_refused(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        DocketEngine(*arguments)


def test_the_concurrency_must_be_positive() -> None:
    with pytest.raises(ValueError, match="max_concurrency"):
        DocketEngine("redis://127.0.0.1", "q", max_concurrency=0)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://127.0.0.1", "redis://127.0.0.1:6379/0"),
        ("redis://u:p%40ss@host:1/2", "redis://u:p%40ss@host:1/2"),
        ("rediss://[::1]:7/1?ca_file=/ca.pem", "rediss://[::1]:7/1?ssl_ca_certs=%2Fca.pem"),
        ("unix:///run/redis.sock?db=3", "unix:///run/redis.sock?db=3"),
        (
            "redis+sentinel://u:p@a:1,b:2/main/3?sentinel_password=s",
            "redis+sentinel://u:p@a:1,b:2/main/3?sentinel_password=s",
        ),
    ],
)
def test_the_url_is_translated_for_docket(url: str, expected: str) -> None:
    assert docket_engine._format_docket_url(parse_redis_url(url)) == expected
