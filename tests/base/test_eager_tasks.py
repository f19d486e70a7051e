"""Test eager tasks: they start at once, each in a task, without interfering with earlier ones.

Most tests also run as if the loop could not enter tasks, so that each coroutine gets a plain task.
"""

import asyncio
import asyncio.tasks
import contextvars
import gc
import runpy
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from dovetail import Server, eager_tasks
from dovetail.eager_tasks import EagerTaskStarter, can_enter_tasks
from support.driver import STATELESS, connect

Work = Coroutine[Any, Any, None]
NAME: contextvars.ContextVar[str] = contextvars.ContextVar("NAME", default="nobody")
LOOPS = [asyncio.SelectorEventLoop, uvloop.Loop]

only_entered = pytest.mark.parametrize("enters_tasks", [True], indirect=True)


@pytest.fixture(params=[True, False], ids=["entered", "plain"], autouse=True)
def enters_tasks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run a test with this loop, and again as if the loop could not enter tasks."""
    if not request.param:
        monkeypatch.setattr(eager_tasks, "can_enter_tasks", lambda loop: False)
    return request.param


async def ready(starter: EagerTaskStarter) -> None:
    """The first work of a starter gets a task of its own; from then on one stands by."""

    async def nothing() -> None:
        pass

    await starter.start(nothing())
    await asyncio.sleep(0)


async def from_the_loop(starter: EagerTaskStarter, *works: Work) -> list[asyncio.Task[None]]:
    """Start works as a transport does: called by the loop, within no task."""
    started: asyncio.Future[list[asyncio.Task[None]]] = asyncio.get_running_loop().create_future()

    def start() -> None:
        started.set_result([starter.start(work) for work in works])

    asyncio.get_running_loop().call_soon(start)
    return await started


def running(test: Callable[[EagerTaskStarter], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        starter = EagerTaskStarter()
        await ready(starter)
        await test(starter)
        starter.close()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main(), debug=True)


@only_entered
def test_work_that_does_not_wait_is_done_before_start_returns() -> None:
    async def test(starter: EagerTaskStarter) -> None:
        done: list[int] = []

        async def work(number: int) -> None:
            done.append(number)

        def start() -> None:
            for number in range(3):
                starter.start(work(number))
                assert done[-1] == number

        asyncio.get_running_loop().call_soon(start)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert done == [0, 1, 2]

    running(test)


def test_work_that_waits_has_one_task_from_its_first_step_to_its_last() -> None:
    async def test(starter: EagerTaskStarter) -> None:
        seen: list[asyncio.Task[Any] | None] = []

        async def work() -> None:
            seen.append(asyncio.current_task())
            await asyncio.sleep(0)
            seen.append(asyncio.current_task())
            await asyncio.sleep(0.001)
            seen.append(asyncio.current_task())

        (task,) = await from_the_loop(starter, work())
        await task
        assert seen == [task] * 3

    running(test)


def test_works_that_wait_do_so_side_by_side() -> None:
    async def test(starter: EagerTaskStarter) -> None:
        meeting = asyncio.Barrier(4)

        async def work() -> None:
            await meeting.wait()

        tasks = await from_the_loop(starter, *(work() for _ in range(4)))
        assert len(set(tasks)) == 4
        await asyncio.wait_for(asyncio.gather(*tasks), 1)

    running(test)


@only_entered
def test_within_another_task_work_has_one_of_its_own_from_the_first_step() -> None:
    async def test(starter: EagerTaskStarter) -> None:
        seen: list[asyncio.Task[Any] | None] = []
        ours = asyncio.current_task()

        async def work() -> None:
            seen.append(asyncio.current_task())
            await asyncio.sleep(0)
            seen.append(asyncio.current_task())

        task = starter.start(work())
        assert seen == [task]
        assert asyncio.current_task() is ours is not task
        await task
        assert seen == [task] * 2

    running(test)


@only_entered
def test_work_that_starts_other_work_in_its_first_step_keeps_its_task() -> None:
    async def test(starter: EagerTaskStarter) -> None:
        seen: list[tuple[str, asyncio.Task[Any] | None]] = []
        begun: list[asyncio.Task[None]] = []

        async def work(name: str) -> None:
            seen.append((name, asyncio.current_task()))
            if name == "outer":
                begun.append(starter.start(work("inner")))
            await asyncio.sleep(0)
            seen.append((name, asyncio.current_task()))

        outer = starter.start(work("outer"))
        (inner,) = begun
        await asyncio.wait_for(asyncio.gather(outer, inner), 1)
        assert outer is not inner
        assert sorted(seen, key=lambda one: one[0]) == [("inner", inner)] * 2 + [("outer", outer)] * 2

    running(test)


def test_every_work_has_a_context_of_its_own() -> None:
    async def test(starter: EagerTaskStarter) -> None:
        seen: list[str] = []

        async def work(name: str, wait: bool) -> None:
            seen.append(NAME.get())
            NAME.set(name)
            if wait:
                await asyncio.sleep(0)
            seen.append(NAME.get())

        tasks = await from_the_loop(starter, work("first", False), work("second", True))
        await tasks[1]
        await from_the_loop(starter, work("third", False))
        assert seen == ["nobody", "first", "nobody", "second", "nobody", "third"]
        assert NAME.get() == "nobody"

    running(test)


def test_work_has_the_context_of_the_starter_and_not_of_its_caller() -> None:
    async def main() -> None:
        seen: list[str] = []

        async def work() -> None:
            seen.append(NAME.get())

        NAME.set("server")
        starter = EagerTaskStarter(contextvars.copy_context())
        NAME.set("caller")
        await starter.start(work())
        await asyncio.sleep(0)
        starter.start(work())
        await asyncio.sleep(0)
        starter.close()
        assert seen == ["server", "server"]

    asyncio.run(main())


def test_work_that_changes_its_task_leaves_no_trace_for_the_next() -> None:
    async def test(starter: EagerTaskStarter) -> None:
        called: list[str] = []

        async def change() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.set_name("changed")
            task.add_done_callback(lambda ended: called.append("cancelled" if ended.cancelled() else "done"))

        async def wait() -> None:
            await asyncio.sleep(0)
            called.append("waited")

        tasks = await from_the_loop(starter, change(), wait())
        await tasks[1]
        assert tasks[1].get_name() != "changed"
        assert called == ["done", "waited"]

    running(test)


def test_timeouts_and_groups_entered_in_the_first_step_hold_later() -> None:
    async def test(starter: EagerTaskStarter) -> None:
        said: list[str] = []

        async def fail() -> None:
            raise ValueError

        async def work() -> None:
            try:
                async with asyncio.timeout(0.001):
                    await asyncio.sleep(10)
            except TimeoutError:
                said.append("timeout")
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(fail())
                    await asyncio.sleep(10)
            except* ValueError:
                said.append("group")

        (task,) = await from_the_loop(starter, work())
        await task
        assert said == ["timeout", "group"]
        assert not task.cancelling()

    running(test)


def test_a_group_entered_in_the_first_step_sees_a_failing_child() -> None:
    async def test(starter: EagerTaskStarter) -> None:
        said: list[str] = []

        async def fail() -> None:
            raise ValueError

        async def work() -> None:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(fail())
                    await asyncio.sleep(10)
            except* ValueError:
                said.append("group")

        (task,) = await from_the_loop(starter, work())
        await task
        assert said == ["group"]

    running(test)


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_cancelling_reaches_work_that_waits(turns: int) -> None:
    async def test(starter: EagerTaskStarter) -> None:
        said: list[str] = []

        async def work() -> None:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                said.append("cancelled")
                raise

        (task,) = await from_the_loop(starter, work())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert said == ["cancelled"]

    running(test)


@only_entered
def test_cancelling_at_once_reaches_work_that_waits() -> None:
    async def test(starter: EagerTaskStarter) -> None:
        said: list[str] = []

        async def work() -> None:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                said.append("cancelled")

        def start() -> None:
            task = starter.start(work())
            task.cancel()
            task.add_done_callback(lambda _: said.append("done"))

        asyncio.get_running_loop().call_soon(start)
        for _ in range(5):
            await asyncio.sleep(0)
        assert said == ["cancelled", "done"]

    running(test)


def test_work_that_cancels_itself_is_cancelled_where_it_next_waits() -> None:
    async def test(starter: EagerTaskStarter) -> None:
        said: list[str] = []

        async def work() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                said.append("cancelled")
            await asyncio.sleep(0)
            said.append("went on")

        (task,) = await from_the_loop(starter, work())
        await task
        assert said == ["cancelled", "went on"]

    running(test)


@pytest.mark.parametrize("regrets", [False, True])
def test_work_that_cancels_itself_and_ends_spoils_nothing_for_the_next(regrets: bool) -> None:
    async def test(starter: EagerTaskStarter) -> None:
        said: list[str] = []

        async def rude() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            if regrets:
                task.uncancel()

        async def next_one() -> None:
            await asyncio.sleep(0)
            said.append("served")

        tasks = await from_the_loop(starter, rude(), next_one())
        assert tasks[0] is not tasks[1]
        await tasks[1]
        assert said == ["served"]

    running(test)


def test_what_work_raises_is_its_tasks(caplog: pytest.LogCaptureFixture) -> None:
    async def test(starter: EagerTaskStarter) -> None:
        async def work() -> None:
            await asyncio.sleep(0)
            raise KeyError("lost")

        (task,) = await from_the_loop(starter, work())
        with pytest.raises(KeyError):
            await task

    running(test)
    assert not caplog.records


def test_closing_leaves_what_was_started_alone() -> None:
    async def test(starter: EagerTaskStarter) -> None:
        done: list[str] = []

        async def work() -> None:
            await asyncio.sleep(0.001)
            done.append("done")

        (task,) = await from_the_loop(starter, work())
        starter.close()
        await task
        assert done == ["done"]

    running(test)


def test_a_starter_that_is_closed_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        starter = EagerTaskStarter()
        starter.close()
        await ready(starter)
        starter.close()

    asyncio.run(main())
    gc.collect()
    assert not caplog.records


# Whether the loop can enter tasks


def create_loop(loop_type: type[asyncio.AbstractEventLoop]) -> asyncio.AbstractEventLoop:
    """Create a loop of a new type, so that the type is tried again."""
    return type("NewLoop", (loop_type,), {})()


def try_loop(loop_type: type[asyncio.AbstractEventLoop], check: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    with asyncio.Runner(loop_factory=lambda: create_loop(loop_type)) as runner:
        return runner.run(check())


@only_entered
@pytest.mark.parametrize("loop_type", LOOPS)
def test_this_python_can_enter_tasks_within_a_task_and_without(loop_type: type[asyncio.AbstractEventLoop]) -> None:
    async def check_within() -> bool:
        task = asyncio.current_task()
        can_enter = can_enter_tasks(asyncio.get_running_loop())
        assert asyncio.current_task() is task
        return can_enter

    async def check_without() -> bool:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[tuple[bool, object]] = loop.create_future()
        loop.call_soon(lambda: answer.set_result((can_enter_tasks(loop), asyncio.current_task())))
        can_enter, task = await answer
        assert task is None
        return can_enter

    assert try_loop(loop_type, check_within) is True
    assert try_loop(loop_type, check_without) is True


def do_nothing(*_: Any) -> None:
    pass


def reject(*_: Any) -> None:
    raise RuntimeError("asyncio has changed")


@only_entered
@pytest.mark.parametrize("loop_type", LOOPS)
@pytest.mark.parametrize("replacement", [do_nothing, reject])
def test_plain_tasks_are_used_if_entering_a_task_does_not_work(
    loop_type: type[asyncio.AbstractEventLoop],
    replacement: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> list[str]:
        task = asyncio.current_task()
        starters = [EagerTaskStarter(), EagerTaskStarter()]
        assert asyncio.current_task() is task
        seen: list[str] = []

        async def work() -> None:
            seen.append("started")

        starters[0].acquire()
        await asyncio.sleep(0)
        first = starters[0].start(work())
        assert seen == []
        await first
        starters[0].release()
        return seen

    monkeypatch.setattr(eager_tasks, "_enter_task", replacement)
    monkeypatch.setattr(eager_tasks, "_leave_task", replacement)
    assert try_loop(loop_type, main) == ["started"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@only_entered
def test_plain_tasks_are_used_if_asyncio_lacks_the_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(asyncio.tasks, "_enter_task")
    names = runpy.run_path(eager_tasks.__file__)

    async def main() -> bool:
        return names["can_enter_tasks"](asyncio.get_running_loop())

    assert asyncio.run(main()) is False


@pytest.mark.parametrize("transport", ["http", "pipe", "memory"])
@pytest.mark.parametrize("loop_type", LOOPS)
def test_a_server_answers_either_way(transport: str, loop_type: type[asyncio.AbstractEventLoop]) -> None:
    app = Server("either way")

    @app.tool
    async def double(number: int, wait: bool) -> int:
        """Double a number, perhaps after a wait."""
        if wait:
            await asyncio.sleep(0.001)
        assert asyncio.current_task() is not None
        return 2 * number

    async def main() -> list[Any]:
        async with connect(app, transport=transport, revision=STATELESS) as peer:
            calls = [
                peer.request("tools/call", {"name": "double", "arguments": {"number": number, "wait": wait}})
                for number in range(3)
                for wait in (False, True)
            ]
            return [result["structuredContent"]["result"] for result in await asyncio.gather(*calls)]

    assert try_loop(loop_type, main) == [0, 0, 2, 2, 4, 4]
