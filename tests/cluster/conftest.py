"""Fixtures for the back ends of shared state: real servers, and workers in this process."""

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from cluster.recorder import Recorder
from dovetail.cluster.local.local_backend import LocalBackend
from dovetail.cluster.memory_backend import MemoryBackend
from dovetail.cluster.redis import redis_link
from dovetail.cluster.redis.redis_backend import RedisBackend
from dovetail.protocol.interfaces.shared_state import SharedState
from support.redis_servers import EACH_KIND, RedisServer, run_redis_servers

# Starts a worker in this process, and returns its back end and what its listener records.
StartWorker = Callable[..., Awaitable[tuple[SharedState, Recorder]]]

# Starts a worker in this process with the Redis server that the test may stop.
Start = Callable[..., Awaitable[tuple[RedisBackend, Recorder]]]

LIFETIME_S = 2.0  # the lifetime of a heartbeat in tests about lost workers

KINDS = ["memory", "local", *EACH_KIND]


@pytest.fixture(scope="module")
def redis_servers(tmp_path_factory: pytest.TempPathFactory) -> Generator[Callable[[str], RedisServer]]:
    """Yield a function that returns the server of a kind. Tests use different prefixes."""
    with run_redis_servers(lambda: tmp_path_factory.mktemp("r")) as get_server:
        yield get_server


@pytest.fixture
def redis_server(tmp_path: Path) -> Generator[RedisServer]:
    """Yield a server that one test may stop, pause or fill."""
    with RedisServer(tmp_path) as server:
        yield server


@pytest.fixture
async def start(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Start]:
    """Yield a function that starts workers with the server that a test may stop."""
    monkeypatch.setattr(redis_link, "HEARTBEAT_TTL_S", LIFETIME_S)
    backends: list[RedisBackend] = []

    async def start(url: str = redis_server.url, **options: Any) -> tuple[RedisBackend, Recorder]:
        backend, recorder = RedisBackend(url, **({"prefix": "test", "timeout": 0.5} | options)), Recorder()
        backends.append(backend)
        await backend.start(recorder)
        return backend, recorder

    yield start
    for backend in backends:
        await backend.close()


@pytest.fixture
def private_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("w")
    folder.chmod(0o700)
    return folder


@pytest.fixture
async def start_worker(request: pytest.FixtureRequest, private_folder: Path) -> AsyncGenerator[StartWorker]:
    """Yield a function that starts workers of the kind in the test's parameter. All workers of a test share state."""
    kind, prefix = request.param, f"test-{os.urandom(6).hex()}"
    url = "" if kind in ("memory", "local") else request.getfixturevalue("redis_servers")(kind).url
    backends: list[Any] = []

    async def start(**options: Any) -> tuple[SharedState, Recorder]:
        if kind == "memory":
            backend: Any = MemoryBackend(*backends[:1], **options)
        elif kind == "local":
            backend = LocalBackend(private_folder, **options)
        else:
            backend = RedisBackend(url, prefix=prefix, **options)
        backends.append(backend)
        recorder = Recorder()
        await backend.start(recorder)
        return backend, recorder

    yield start
    for backend in backends:
        await backend.close()


def each_backend(function: Any) -> Any:
    """Run a test with every back end."""
    return pytest.mark.parametrize("start_worker", KINDS, indirect=True)(function)


def each_encrypting_backend(function: Any) -> Any:
    """Run a test with every back end that stores data outside the process."""
    return pytest.mark.parametrize("start_worker", KINDS[1:], indirect=True)(function)
