"""Test that a flow runner performs its own actions and those with a handler."""

import asyncio
import threading
import time
from typing import Any

import pytest

from dovetail.auth.flow_runner import FlowRunner
from dovetail.oauth.flow import AcquireLock, Await, CheckUserActive, FetchUntrusted, Flow, Now, Pause, ShowCode


async def check_user(action: CheckUserActive) -> bool:
    return action.subject == "ada"


async def test_a_flow_gets_the_result_of_each_action() -> None:
    def flow() -> Flow[list[Any]]:
        now = yield Now()
        paused = yield Pause(0.0)
        awaited = yield Await(asyncio.sleep(0, "awaited"))
        return [now, paused, awaited, (yield CheckUserActive("ada")), (yield CheckUserActive("bob"))]

    for in_thread in (False, True):
        now, *results = await FlowRunner({CheckUserActive: check_user}).run(flow(), in_thread=in_thread)
        assert now == pytest.approx(time.time(), abs=60)
        assert results == [None, "awaited", True, False]


@pytest.mark.parametrize("action", [ShowCode("https://x.example", "1"), FetchUntrusted("https://x.example")])
async def test_an_action_without_a_handler_is_an_error(action: Any) -> None:
    def flow() -> Flow[None]:
        yield action

    with pytest.raises(TypeError, match=type(action).__name__):
        await FlowRunner({CheckUserActive: check_user}).run(flow())


async def test_the_exception_of_a_flow_or_a_handler_is_raised() -> None:
    async def fail(action: ShowCode) -> None:
        raise KeyError(action.code)

    def failing_flow() -> Flow[None]:
        yield Now()
        raise ZeroDivisionError

    def asking_flow() -> Flow[None]:
        yield ShowCode("https://x.example", "1")

    runner = FlowRunner({ShowCode: fail})
    with pytest.raises(ZeroDivisionError):
        await runner.run(failing_flow(), in_thread=True)
    with pytest.raises(KeyError):
        await runner.run(asking_flow())


def create_locked_flow(steps: list[str], name: str, *, fails: bool = False) -> Flow[None]:
    yield AcquireLock()
    steps.append(f"{name} begins")
    yield Pause(0.001)
    steps.append(f"{name} ends")
    if fails:
        raise ZeroDivisionError


def test_one_flow_at_a_time_is_behind_the_lock() -> None:
    runner = FlowRunner({})

    async def run_both() -> list[str]:
        steps: list[str] = []
        flows = create_locked_flow(steps, "first", fails=True), create_locked_flow(steps, "second")
        results = await asyncio.gather(*map(runner.run, flows), return_exceptions=True)
        assert [type(result) for result in results] == [ZeroDivisionError, type(None)]
        return steps

    for _ in range(2):  # a runner outlives an event loop
        assert asyncio.run(run_both()) == ["first begins", "first ends", "second begins", "second ends"]


async def test_steps_in_a_thread_run_one_at_a_time() -> None:
    running, most, threads = 0, 0, set[int]()

    def flow() -> Flow[None]:
        nonlocal running, most
        for _ in range(5):
            running += 1
            most = max(most, running)
            threads.add(threading.get_ident())
            time.sleep(0.001)
            running -= 1
            yield Pause(0.0)

    runner = FlowRunner({})
    await asyncio.gather(*(runner.run(flow(), in_thread=True) for _ in range(4)))
    assert most == 1
    assert threading.get_ident() not in threads
