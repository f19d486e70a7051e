"""Test rate limits that the workers of a cluster share."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from dovetail import Client, Server
from dovetail.cluster.memory_backend import MemoryBackend
from dovetail.cluster.shared_rate_limiter import SharedRateLimiter
from dovetail.errors import RateLimited
from dovetail.middleware import RateLimit
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable

KEYS = ["a key with enough bytes"]
PER_S = 1000.0  # so long that no event becomes free during a test


class FailingBackend(MemoryBackend):
    """A back end whose limits can fail."""

    is_away = False

    async def take(self, name: str, rate: float, burst: float, cost: float = 1.0) -> float:
        if self.is_away:
            raise SharedStateUnavailable("away")
        return await super().take(name, rate, burst, cost)


def create_server(backend: MemoryBackend, *middleware: Any) -> Server:
    app = Server("test", cluster=backend, secret_keys=KEYS, middleware=middleware)
    app.add_tool(lambda: "done", name="work")
    return app


@asynccontextmanager
async def connect(*servers: Server) -> AsyncIterator[list[Client]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Client(server)) for server in servers]


async def count_calls(client: Client, tool: str = "work", attempts: int = 20) -> int:
    """Return how many calls were allowed."""
    count = 0
    for _ in range(attempts):
        try:
            await client.call(tool)
        except RateLimited:
            continue
        count += 1
    return count


def get_key(exchange: Exchange) -> str:
    return "caller"


async def test_all_workers_count_together() -> None:
    backend = FailingBackend()
    servers = [
        create_server(worker, RateLimit(6, per=PER_S, key=get_key)) for worker in (backend, FailingBackend(backend))
    ]
    async with connect(*servers) as (first, second):
        for client in (first, second):
            for _ in range(3):
                await client.call("work")
        assert [await count_calls(first), await count_calls(second)] == [0, 0]


async def test_two_limits_of_a_server_count_separately() -> None:
    app = create_server(FailingBackend(), RateLimit(5, per=PER_S, key=get_key), RateLimit(3, per=PER_S, key=get_key))
    async with connect(app) as (client,):
        assert await count_calls(client) == 3


async def test_a_worker_allows_its_share_while_the_back_end_is_away() -> None:
    first = FailingBackend()
    second = FailingBackend(first)
    servers = [create_server(worker, RateLimit(10, per=PER_S, key=get_key)) for worker in (first, second)]
    async with connect(*servers) as (client, other):
        first.is_away = second.is_away = True
        assert [await count_calls(client), await count_calls(other)] == [5, 5]
        first.is_away = second.is_away = False
        assert await count_calls(client) == 10


async def test_a_share_allows_at_least_one_event_at_once() -> None:
    backend = FailingBackend()
    others = [FailingBackend(backend) for _ in range(3)]
    limiter = SharedRateLimiter(backend, "limit", 1, 4.0)
    async with AsyncExitStack() as stack:
        for worker in (backend, *others):
            await worker.start(NoListener())
            stack.push_async_callback(worker.close)
        backend.is_away = True
        assert [await limiter.take("a", now) for now in (0.0, 0.0, 8.0, 16.0)] == [0.0, 16.0, 8.0, 0.0]


class NoListener:
    def receive(self, message: Any) -> None: ...

    def handle_gap(self) -> None: ...


async def test_a_limit_of_a_mounted_server_counts_all_workers() -> None:
    backend = FailingBackend()
    servers: list[Server] = []
    for worker in (backend, FailingBackend(backend)):
        inner = Server("inner", middleware=[RateLimit(4, per=PER_S, key=get_key)])
        inner.add_tool(lambda: "done", name="inner_work")
        servers.append(app := create_server(worker))
        app.mount(inner)
    async with connect(*servers) as (first, second):
        assert await count_calls(first, "inner_work", 3) == 3
        assert await count_calls(second, "inner_work") == 1


async def test_middleware_that_is_added_later_shares_its_limit() -> None:
    backend = FailingBackend()
    servers = [create_server(worker) for worker in (backend, FailingBackend(backend))]
    async with connect(*servers) as (first, second):
        for server in servers:
            server.middleware(RateLimit(4, per=PER_S, key=get_key))
        assert await count_calls(first, attempts=3) == 3
        assert await count_calls(second) == 1


async def test_a_client_waits_for_its_own_limit() -> None:
    limit = RateLimit(1000)
    app = Server("test")
    app.add_tool(lambda: "done", name="work")
    async with Client(app, middleware=[limit]) as client:
        assert await client.call("work") == "done"


@pytest.mark.parametrize("max_count", [0, -1])
async def test_a_limit_of_zero_allows_nothing(max_count: float) -> None:
    assert await SharedRateLimiter(FailingBackend(), "limit", max_count, 60.0).take("a", 0.0) == 60.0
