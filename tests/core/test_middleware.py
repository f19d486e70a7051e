"""Test middleware of servers and clients: users' own, and the ready-made ones."""

import asyncio
import functools
from typing import Any

import pytest

from dovetail import Client, RemoteError, Server
from dovetail.errors import InvalidParams, RateLimited
from dovetail.middleware import CallNext, Exchange, LogRequests, RateLimit, ResponseCache, ResponseLimit, Timing


async def ban(exchange: Exchange, call_next: CallNext) -> Any:
    exchange.meta["com.example/banned"] = True
    return await call_next(exchange)


async def test_middleware_of_a_server_sees_what_that_of_a_client_adds(target: Server | str, era: str) -> None:
    async with Client(target, protocol_version=era, middleware=[ban]) as client:
        with pytest.raises(RemoteError, match="You are banned") as caught:
            await client.call("echo", text="hi")
        assert caught.value.code == InvalidParams.code


async def test_the_order_of_middleware() -> None:
    names: list[str] = []
    app = Server("s")
    app.add_tool(lambda: "done", name="work")

    def add(name: str) -> None:
        @app.middleware
        async def note(exchange: Exchange, call_next: CallNext) -> Any:
            names.append(name)
            result = await call_next(exchange)
            names.append(name)
            return result

    add("outer")
    add("inner")
    async with Client(app, protocol_version="stateless") as client:
        await client.connect()
        names.clear()
        assert await client.call("work") == "done"
    assert names == ["outer", "inner", "inner", "outer"]
    await app.stop()


async def test_ready_made_middleware(caplog: pytest.LogCaptureFixture) -> None:
    timing, calls = Timing(), 0
    app = Server(
        "s", middleware=[timing, LogRequests(), RateLimit(20, per=60), ResponseLimit(1000), ResponseCache(["count"])]
    )

    @app.tool
    async def count() -> int:
        nonlocal calls
        calls += 1
        return calls

    @app.tool
    async def fill() -> str:
        return "x" * 5000

    async with Client(app) as client:
        assert [await client.call("count") for _ in range(2)] == [1, 1]
        assert len(await client.call("fill")) < 2000
        with pytest.raises(RateLimited):
            await asyncio.gather(*(client.call("count") for _ in range(20)))
    assert timing["tools/call", "fill"].count == 1
    await app.stop()


class Counter:
    async def __call__(self, exchange: Exchange, call_next: CallNext) -> Any:
        return await call_next(exchange)


class PlainCounter:
    def __call__(self, exchange: Exchange, call_next: CallNext) -> None: ...


class OnlyCreated:
    def __init__(self, exchange: Exchange, call_next: CallNext) -> None: ...


def forget(exchange: Exchange, call_next: CallNext) -> None: ...


async def take_one(exchange: Exchange) -> Any: ...


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (ban, None),
        (functools.partial(ban), None),
        (Counter(), None),
        (lambda exchange, call_next: call_next(exchange), None),
        (forget, "it must be `async def`"),
        (PlainCounter(), "it must be `async def`"),
        (OnlyCreated, "it must be `async def`"),
        (take_one, "it must take two arguments"),
    ],
)
def test_middleware_returns_an_awaitable(function: Any, problem: str | None) -> None:
    app = Server("s")
    if problem is None:
        app.middleware(function)
    else:
        with pytest.raises(TypeError, match=f"invalid middleware .*{problem}"):
            app.middleware(function)
