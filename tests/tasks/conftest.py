"""Fixtures for tests of tasks: task stores of every kind, and real Redis servers."""

import os
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dovetail.tasks.redis_task_store import RedisTaskStore
from dovetail.tasks.sqlite_task_store import SQLiteTaskStore
from support.redis_servers import EACH_KIND, RedisServer, run_redis_servers

KEY = "a secret key of this test"

# Opens a task store. All stores of a test share their tasks.
OpenStore = Callable[..., Any]


@pytest.fixture(scope="module")
def redis_servers(tmp_path_factory: pytest.TempPathFactory) -> Generator[Callable[[str], RedisServer]]:
    """Yield a function that returns the server of a kind. Tests use different prefixes."""
    with run_redis_servers(lambda: tmp_path_factory.mktemp("r")) as get_server:
        yield get_server


@pytest.fixture
async def open_stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenStore]:
    """Return a function that opens a store of one kind. Stores of one kind share their tasks."""
    prefix = f"test-{os.urandom(6).hex()}"
    async with AsyncExitStack() as stores:

        def open_store(kind: str, **options: Any) -> Any:
            if kind in ("file", "memory"):
                store: Any = SQLiteTaskStore(":memory:" if kind == "memory" else tmp_path / "tasks.sqlite", **options)
            else:
                server: RedisServer = request.getfixturevalue("redis_servers")(kind)
                store = RedisTaskStore(server.url, prefix=prefix, **options)
            stores.push_async_callback(store.close)
            return store

        yield open_store


@pytest.fixture(params=["file", *EACH_KIND])
def open_store(request: pytest.FixtureRequest, open_stores: OpenStore) -> OpenStore:
    """Return a function that opens stores that several processes can share."""
    return partial(open_stores, request.param)


@pytest.fixture(params=["file", "memory", "sealed file", "sealed valkey", *EACH_KIND[1:]])
def store(request: pytest.FixtureRequest, open_stores: OpenStore) -> Any:
    """Return a store of each kind, with and without encryption."""
    is_sealed = request.param.startswith("sealed ")
    return open_stores(request.param.removeprefix("sealed "), secret_keys=[KEY] if is_sealed else [])
