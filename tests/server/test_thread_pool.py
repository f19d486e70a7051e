"""Test the thread pool: bounded, fair between callers, and every outcome is returned."""

import asyncio
import contextlib
import contextvars
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from dovetail.errors import ServerBusy
from dovetail.protocol.limits import CallerBusy, ServerLimits
from dovetail.server import thread_pool
from dovetail.server.thread_pool import ThreadPool

PATIENCE = 10.0


class Gate:
    """A function that blocks its thread until opened, and counts those inside."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.inside = 0
        self.most = 0
        self._lock = threading.Lock()

    def __call__(self, value: Any = None) -> Any:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        try:
            assert self.open.wait(PATIENCE)
        finally:
            with self._lock:
                self.inside -= 1
        return value

    async def holds(self, count: int) -> None:
        await until(lambda: self.inside == count)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110 - a thread sets no event of the loop's
            await asyncio.sleep(0.001)


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


def crew(**limits: Any) -> ThreadPool:
    return ThreadPool(ServerLimits(**limits))


async def run(
    crew: ThreadPool, function: Callable[..., Any], *args: Any, origin: str | None = None, **kwargs: Any
) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await crew.run(function, args, kwargs, origin)


async def test_a_value_comes_back_from_a_daemon() -> None:
    def work(a: int, *, b: int) -> tuple[int, bool, str]:
        current = threading.current_thread()
        return a + b, current.daemon, current.name

    assert await run(crew(), work, 1, b=2) == (3, True, "dovetail-sync")


async def test_the_context_goes_along_and_does_not_come_back() -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")
    name.set("somebody")

    def work() -> str:
        before = name.get()
        name.set("changed")
        return before

    assert await run(crew(), work) == "somebody"
    assert name.get() == "somebody"


async def test_an_exception_comes_back_as_it_is() -> None:
    raised = ValueError("no")

    def work() -> None:
        raise raised

    with pytest.raises(ValueError, match="no") as caught:
        await run(crew(), work)
    assert caught.value is raised


@pytest.mark.parametrize("kind", [StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
async def test_what_would_break_the_loop_comes_back_wrapped(kind: type[BaseException]) -> None:
    def work() -> None:
        raise kind("out")

    with pytest.raises(RuntimeError, match=kind.__name__) as caught:
        await run(crew(), work)
    assert isinstance(caught.value.__cause__, kind)


async def test_no_more_threads_than_allowed_and_all_work_is_done(gate: Gate) -> None:
    small = crew(max_threads=3, max_thread_queue=50, thread_queue_timeout=PATIENCE)
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(run(small, gate, number)) for number in range(20)]
        await gate.holds(3)
        gate.open.set()
    assert [call.result() for call in calls] == list(range(20))
    assert gate.most == 3


async def test_a_thread_is_used_again(gate: Gate) -> None:
    small, seen = crew(max_threads=8), set()
    for _ in range(20):
        seen.add(await run(small, threading.get_ident))
        await until(lambda: not small.busy)
    assert len(seen) == 1


async def test_an_idle_thread_keeps_nothing_of_its_last_call() -> None:
    class Value:
        pass

    references: list[weakref.ref[Value]] = []

    def create(argument: Value) -> Value:
        value = Value()
        references.extend([weakref.ref(argument), weakref.ref(value)])
        return value

    pool = crew()
    await pool.run(create, (Value(),), {}, None)
    assert len(references) == 2
    await until(lambda: all(reference() is None for reference in references))


async def test_idle_threads_go_home(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    monkeypatch.setattr(thread_pool, "_IDLE_TIMEOUT_S", 0.01)  # private: nobody should wait for the real time
    others, small = set(threading.enumerate()), crew(max_threads=4)
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(run(small, gate))
        await gate.holds(4)
        gate.open.set()
    await until(lambda: not [one for one in set(threading.enumerate()) - others if one.name == "dovetail-sync"])
    assert not small.busy
    assert await run(small, lambda: "again") == "again"


async def test_the_line_has_an_end(gate: Gate) -> None:
    small = crew(max_threads=1, max_thread_queue=2, thread_queue_timeout=PATIENCE)
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(run(small, gate, 0))]
        await gate.holds(1)
        calls += [group.create_task(run(small, gate, number)) for number in (1, 2)]
        await asyncio.sleep(0)  # both wait for the thread now
        with pytest.raises(ServerBusy):
            await run(small, gate, 3)
        gate.open.set()
    assert [call.result() for call in calls] == [0, 1, 2]


async def test_a_long_wait_for_a_thread_raises_and_never_runs(gate: Gate) -> None:
    small, ran = crew(max_threads=1, thread_queue_timeout=0.2), []
    async with asyncio.TaskGroup() as group:
        group.create_task(run(small, gate))
        await gate.holds(1)
        with pytest.raises(ServerBusy) as caught:
            await run(small, lambda: ran.append(1))
        gate.open.set()
    assert caught.value.retry_after == 0.2
    assert await run_until_it_fits(small, lambda: "next") == "next"
    assert not ran


async def run_until_it_fits(pool: ThreadPool, function: Callable[[], str]) -> str:
    """Repeat a call while no thread becomes free in time, because a busy machine starts threads late."""
    while True:
        with contextlib.suppress(ServerBusy):
            return await run(pool, function)


async def test_a_running_call_does_not_time_out_in_the_queue(gate: Gate) -> None:
    small = crew(max_threads=1, thread_queue_timeout=0.2)
    call = asyncio.create_task(run(small, gate, "done"))
    await gate.holds(1)
    other = asyncio.create_task(run(small, gate))
    with pytest.raises(ServerBusy):
        await other
    gate.open.set()
    assert await call == "done"


async def test_half_of_the_crew_is_for_others(gate: Gate) -> None:
    small = crew(max_threads=4, thread_queue_timeout=PATIENCE)
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(run(small, gate, origin="greedy"))
        await gate.holds(2)
        with pytest.raises(ServerBusy) as caught:
            await run(small, gate, origin="greedy")
        assert isinstance(caught.value, CallerBusy)
        group.create_task(run(small, gate, origin="modest"))
        group.create_task(run(small, gate, origin=None))
        await gate.holds(4)
        gate.open.set()
    assert await run(small, lambda: "free again", origin="greedy") == "free again"
    await until(lambda: not small.busy)


async def test_a_crew_of_one_serves_everyone_in_turn(gate: Gate) -> None:
    small = crew(max_threads=1)
    gate.open.set()
    assert [await run(small, gate, number, origin="one") for number in range(3)] == [0, 1, 2]


async def test_what_was_given_up_before_it_began_does_not_begin(gate: Gate) -> None:
    small, ran = crew(max_threads=1, thread_queue_timeout=PATIENCE), []
    async with asyncio.TaskGroup() as group:
        group.create_task(run(small, gate))
        await gate.holds(1)
        unwanted = asyncio.create_task(run(small, lambda: ran.append(1)))
        await asyncio.sleep(0)  # it waits for the thread now
        unwanted.cancel()
        with pytest.raises(asyncio.CancelledError):
            await unwanted
        gate.open.set()
    assert await run(small, lambda: "next") == "next"
    assert not ran


async def test_what_is_given_up_while_it_runs_ends_unheard(gate: Gate) -> None:
    small = crew(max_threads=1)
    unwanted = asyncio.create_task(run(small, gate))
    await gate.holds(1)
    unwanted.cancel()
    with pytest.raises(asyncio.CancelledError):
        await unwanted
    gate.open.set()
    assert await run(small, lambda: "next") == "next"


def test_a_thread_survives_the_loop_it_worked_for() -> None:
    small, gate = crew(max_threads=1), Gate()

    async def leave_something_running() -> None:
        asyncio.create_task(run(small, gate))  # noqa: RUF006
        await gate.holds(1)

    asyncio.run(leave_something_running())
    gate.open.set()
    assert asyncio.run(run(small, lambda: "another loop")) == "another loop"


def test_a_blocked_thread_does_not_hold_the_process_up() -> None:
    small, gate = crew(max_threads=1), Gate()

    async def leave() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await small.run(gate, (), {}, None)

    began = time.monotonic()
    asyncio.run(leave())
    assert time.monotonic() - began < PATIENCE / 2
    gate.open.set()
