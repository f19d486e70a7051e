"""Test calling every kind of function, and its errors."""

import functools
import threading
from typing import Any

import pytest

from dovetail import Server
from dovetail.protocol.limits import ServerLimits
from dovetail.server.invocation import Runner, get_description
from dovetail.server.thread_pool import ThreadPool
from server.direct_client import Client


async def coroutine(a: int, b: int = 0) -> tuple[int, int]:
    """Waits for nothing."""
    return threading.get_ident(), a + b


def plain(a: int, b: int = 0) -> tuple[int, int]:
    return threading.get_ident(), a + b


class Callables:
    """Has both kinds."""

    async def coroutine(self, a: int, b: int = 0) -> tuple[int, int]:
        return await coroutine(a, b)

    def plain(self, a: int, b: int = 0) -> tuple[int, int]:
        return plain(a, b)


class Waiting:
    """Is called and waits."""

    async def __call__(self, a: int, b: int = 0) -> tuple[int, int]:
        return await coroutine(a, b)


class Working:
    """Is called."""

    def __call__(self, a: int, b: int = 0) -> tuple[int, int]:
        return plain(a, b)


def wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner


IN_THE_LOOP = {
    "a coroutine function": coroutine,
    "its partial": functools.partial(coroutine, b=2),
    "a partial of a partial": functools.partial(functools.partial(coroutine), b=2),
    "a method": Callables().coroutine,
    "an object": Waiting(),
    "a partial of an object": functools.partial(Waiting(), b=2),
}
IN_A_THREAD = {
    "a function": plain,
    "its partial": functools.partial(plain, b=2),
    "a method": Callables().plain,
    "an object": Working(),
    "a wrapped function": wrapped(plain),
}


@pytest.mark.parametrize("function", IN_THE_LOOP.values(), ids=IN_THE_LOOP)
async def test_what_waits_runs_in_the_loop(function: Any) -> None:
    runner = Runner(function)
    assert runner.is_async
    assert await runner.run((1,), {"b": 2}, ThreadPool(ServerLimits()), None) == (threading.get_ident(), 3)


@pytest.mark.parametrize("function", IN_A_THREAD.values(), ids=IN_A_THREAD)
async def test_what_does_not_wait_runs_in_a_thread(function: Any) -> None:
    runner = Runner(function)
    thread, value = await runner.run((1,), {"b": 2}, ThreadPool(ServerLimits()), None)
    assert (thread != threading.get_ident(), value) == (True, 3)


@pytest.mark.parametrize("function", IN_A_THREAD.values(), ids=IN_A_THREAD)
async def test_what_is_declared_quick_runs_where_it_is(function: Any) -> None:
    runner = Runner(function, run_in_thread=False)
    assert await runner.run((1,), {"b": 2}, ThreadPool(ServerLimits()), None) == (threading.get_ident(), 3)


@pytest.mark.parametrize("function", [lambda: 1 / 0, functools.partial(lambda x: 1 / x, 0)])
@pytest.mark.parametrize("run_in_thread", [True, False])
async def test_what_a_function_raises_is_raised(function: Any, run_in_thread: bool) -> None:
    with pytest.raises(ZeroDivisionError):
        await Runner(function, run_in_thread=run_in_thread).run((), {}, ThreadPool(ServerLimits()), None)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "5"])
def test_a_time_limit_is_a_time(timeout: Any) -> None:
    assert Runner(plain, timeout=0.5).timeout == 0.5
    with pytest.raises(ValueError, match="timeout"):
        Runner(plain, timeout=timeout)


def test_a_function_speaks_for_itself() -> None:
    assert get_description(coroutine) == "Waits for nothing."
    assert get_description(plain) is None
    assert get_description(Waiting()) == "Is called and waits."
    assert get_description(wrapped(coroutine)) == "Waits for nothing."


def test_a_partial_speaks_for_the_function_in_it_and_not_for_partials() -> None:
    assert get_description(functools.partial(coroutine, b=2)) == "Waits for nothing."
    assert get_description(functools.partial(functools.partial(plain), b=2)) is None


async def test_a_coroutine_function_behind_a_plain_decorator_is_awaited() -> None:
    app = Server("x")
    app.add_tool(wrapped(coroutine), name="plain", max_concurrency=1)
    app.add_tool(wrapped(wrapped(coroutine)), name="quick", run_in_thread=False)
    for name in ("plain", "quick"):
        result = await Client(app).call(name, {"a": 1, "b": 2})
        assert result["structuredContent"] == {"result": [threading.get_ident(), 3]}
