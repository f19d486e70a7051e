"""Test the task worker and the local engine: outcomes, leases, cancellation, questions, limits and the end."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.recorder import wait_until
from dovetail.errors import InvalidParams
from dovetail.tasks.local_engine import LocalEngine
from dovetail.tasks.sqlite_task_store import SQLiteTaskStore
from dovetail.tasks.task_record import TaskLease, TaskRecord, TaskStoreUnavailable, TaskUnreadable, is_final
from dovetail.tasks.task_rules import WORKER_LOST, answer_requests, report_progress, request_cancel, save_once_value
from dovetail.tasks.task_store import TaskEngine, TaskStore, change_task
from dovetail.tasks.task_worker import LeaseLost, TaskRun, TaskWorker, WorkerOptions
from dovetail.wire.base import replace
from dovetail.wire.input_required import InputRequest
from support.task_records import SERVER, make_record

RESULT: dict[str, Any] = {"content": []}
FAST = WorkerOptions(lease_seconds=30.0, due_interval=0.01, park_after=30.0)

Function = Callable[[TaskRun], Awaitable[dict[str, Any]]]


def ask(run: TaskRun, key: str) -> Awaitable[dict[str, Any]]:
    return run.ask({key: InputRequest(method="elicitation/create", params={"message": key})})


def answer(**names: str) -> Callable[[TaskRecord], TaskRecord]:
    responses = {key: {"action": "accept", "content": {"name": name}} for key, name in names.items()}
    return lambda record: answer_requests(record, responses, time.time())


def cancel(record: TaskRecord) -> TaskRecord:
    return request_cancel(record, time.time())


async def wait_for(store: TaskStore, id: str, condition: Callable[[TaskRecord], bool]) -> TaskRecord:
    async with asyncio.timeout(30):
        with store.watch([id]) as changed_ids:
            async for _ in changed_ids:
                record = await store.get(id)
                assert record is not None
                if condition(record):
                    return record
    raise AssertionError


async def wait_for_end(store: TaskStore, id: str) -> TaskRecord:
    return await wait_for(store, id, lambda record: is_final(record.status))


async def wait_for_question(store: TaskStore, id: str) -> TaskRecord:
    return await wait_for(store, id, lambda record: record.status == "input_required")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteTaskStore]:
    store = SQLiteTaskStore(tmp_path / "tasks.sqlite", poll_interval=0.005)
    yield store
    await store.close()


@contextlib.asynccontextmanager
async def serve(
    store: TaskStore, function: Function, options: WorkerOptions = FAST, **engine_options: Any
) -> AsyncIterator[TaskEngine]:
    engine, stop = LocalEngine(**({"drain_timeout": 0.0} | engine_options)), asyncio.Event()
    worker = TaskWorker(store, engine, SERVER, function, options)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.serve(stop))
        try:
            yield engine
        finally:
            stop.set()


async def submit(store: TaskStore, engine: TaskEngine, **fields: Any) -> str:
    record = make_record(**fields)
    await store.create(record)
    await engine.submit(record.id)
    return record.id


# Outcomes


async def test_the_result_of_the_function_is_stored(store: SQLiteTaskStore) -> None:
    async def function(run: TaskRun) -> dict[str, Any]:
        await run.change(lambda record: report_progress(record, time.time(), message="half"))
        await run.change(lambda record: save_once_value(record, "step", 7, time.time()))
        return {"content": [run.record.arguments["a"]]}

    async with serve(store, function) as engine:
        record = await wait_for_end(store, await submit(store, engine, arguments={"a": 1}))
    assert (record.status, record.result, record.attempt) == ("completed", {"content": [1]}, 1)
    assert (record.status_message, record.once_values) == ("half", {"step": 7})


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InvalidParams("no such file", {"x": 1}), -32602, "no such file"),
        (ValueError("secret"), -32603, "Internal error"),
    ],
)
async def test_an_error_fails_the_task_and_hides_internals(
    store: SQLiteTaskStore, error: Exception, code: int, message: str
) -> None:
    async def function(run: TaskRun) -> dict[str, Any]:
        raise error

    async with serve(store, function) as engine:
        record = await wait_for_end(store, await submit(store, engine))
    assert record.status == "failed"
    assert record.error is not None
    assert (record.error.code, record.error.message) == (code, message)


async def test_a_task_that_was_never_submitted_is_found(store: SQLiteTaskStore) -> None:
    async def function(run: TaskRun) -> dict[str, Any]:
        return RESULT

    record = make_record()
    await store.create(record)
    async with serve(store, function):
        assert (await wait_for_end(store, record.id)).status == "completed"


async def test_expired_tasks_are_deleted(store: SQLiteTaskStore) -> None:
    async def function(run: TaskRun) -> dict[str, Any]:
        return RESULT

    record = make_record(now=time.time() - 5000, status="completed", result=RESULT)
    await store.create(record)
    async with serve(store, function), asyncio.timeout(30):
        with store.watch([record.id]) as changed_ids:
            async for _ in changed_ids:
                if await store.get(record.id) is None:
                    break


async def test_the_outcome_is_stored_when_the_store_is_usable_again(
    store: SQLiteTaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.tasks.task_worker._STORE_RETRY_DELAY_S", 0.001)
    change, failures = store.change, [TaskStoreUnavailable("locked")] * 3

    async def fail_first(record: TaskRecord) -> TaskRecord:
        if failures:
            raise failures.pop()
        return await change(record)

    async def function(run: TaskRun) -> dict[str, Any]:
        monkeypatch.setattr(store, "change", fail_first)
        return RESULT

    async with serve(store, function) as engine:
        record = await wait_for_end(store, await submit(store, engine))
    assert (record.status, failures) == ("completed", [])


WRITES = ("create", "change", "claim", "renew", "expire")
READS = ("get", "list_due")


class Outage:
    """A store whose writes fail while `is_on` is True, as if the disk was full. Its reads can fail, too."""

    def __init__(
        self, store: SQLiteTaskStore, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...] = WRITES
    ) -> None:
        self.is_on = False
        self.failed_names: list[str] = []
        for name in names:
            monkeypatch.setattr(store, name, self._wrap(name, getattr(store, name)))
        monkeypatch.setattr("dovetail.tasks.task_worker._STORE_RETRY_DELAY_S", 0.001)

    def _wrap(self, name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def write(*args: Any) -> Any:
            if self.is_on and (name != "renew" or args[0]):  # Without leases, a renewal writes nothing.
                self.failed_names.append(name)
                raise TaskStoreUnavailable("database or disk is full")
            return await method(*args)

        return write


async def test_an_outcome_survives_an_outage_that_is_longer_than_its_lease(
    store: SQLiteTaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = Outage(store, monkeypatch)

    async def function(run: TaskRun) -> dict[str, Any]:
        outage.is_on = True
        return RESULT

    lease_seconds = 0.2
    async with serve(store, function, WorkerOptions(lease_seconds=lease_seconds, due_interval=0.01)) as engine:
        id = await submit(store, engine)
        await wait_until(lambda: outage.is_on)
        # The outage is longer than the lease of the task.
        await asyncio.sleep(2 * lease_seconds)
        record = await store.get(id)
        assert record is not None
        assert record.lease is not None
        assert (record.status, record.lease.expires_at < time.time()) == ("working", True)
        outage.is_on = False
        record = await wait_for_end(store, id)
    assert (record.status, record.result, record.attempt) == ("completed", RESULT, 1)


@pytest.mark.parametrize(
    ("names", "failed_name"),
    [(("claim",), "claim"), (WRITES, "expire"), (READS, "list_due"), (WRITES + READS, "list_due")],
)
async def test_a_worker_waits_for_the_outcomes_of_others_after_an_outage(
    store: SQLiteTaskStore, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], failed_name: str
) -> None:
    outage, searches = Outage(store, monkeypatch, names), 0
    list_due = store.list_due

    async def count_searches(*args: Any) -> list[str]:
        nonlocal searches
        searches += 1
        return await list_due(*args)

    monkeypatch.setattr(store, "list_due", count_searches)
    lease = TaskLease(holder="other", expires_at=time.time() - 1)
    record = make_record(phase="running", attempt=1, lease=lease)
    await store.create(record)
    outage.is_on = True

    async def function(run: TaskRun) -> dict[str, Any]:
        assert run.record.id != record.id
        return RESULT

    async with serve(store, function) as engine:
        await wait_until(lambda: failed_name in outage.failed_names)
        outage.is_on, seen = False, searches
        await engine.submit(record.id)  # An engine may deliver the ID at any time.
        await wait_until(lambda: searches > seen + 3)
        found = await store.get(record.id)
        assert found is not None
        assert (found.status, found.lease) == ("working", lease)
        new_record = make_record()
        await store.create(new_record)
        assert (await wait_for_end(store, new_record.id)).status == "completed"


async def test_a_task_of_a_lost_worker_is_taken_over_some_time_after_an_outage(
    store: SQLiteTaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = Outage(store, monkeypatch, WRITES + READS)
    record = make_record(phase="running", attempt=1, lease=TaskLease(holder="other", expires_at=time.time() - 1))
    await store.create(record)
    outage.is_on = True
    async with serve(store, run_nothing, WorkerOptions(lease_seconds=0.1, due_interval=0.01)):
        await wait_until(lambda: "list_due" in outage.failed_names)
        outage.is_on = False
        found = await wait_for_end(store, record.id)
    assert (found.status, found.status_message) == ("failed", WORKER_LOST)


def has_error(caplog: pytest.LogCaptureFixture) -> bool:
    return any(record.levelname == "ERROR" for record in caplog.records)


async def test_an_outcome_that_is_lost_with_the_lease_is_logged(
    store: SQLiteTaskStore, caplog: pytest.LogCaptureFixture
) -> None:
    async def function(run: TaskRun) -> dict[str, Any]:
        assert await store.claim(run.record.id, "other", time.time() + 31, 30.0) is None
        return RESULT

    async with serve(store, function) as engine:
        record = await wait_for_end(store, await submit(store, engine))
        await wait_until(lambda: has_error(caplog))
    assert (record.status, record.result) == ("failed", None)


async def test_an_outcome_whose_write_is_cancelled_is_logged(
    store: SQLiteTaskStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_writing = asyncio.Event()

    async def hang(record: TaskRecord) -> TaskRecord:
        is_writing.set()
        await asyncio.Event().wait()
        return record

    async def function(run: TaskRun) -> dict[str, Any]:
        monkeypatch.setattr(store, "change", hang)
        return RESULT

    async with serve(store, function) as engine:
        await submit(store, engine)
        await is_writing.wait()
    assert has_error(caplog)


async def test_an_outcome_does_not_wait_for_a_damaged_store(
    store: SQLiteTaskStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    change, runs = store.change, 0

    async def fail_first(record: TaskRecord) -> TaskRecord:
        if runs == 1:
            raise TaskUnreadable("damaged")
        return await change(record)

    async def function(run: TaskRun) -> dict[str, Any]:
        nonlocal runs
        runs += 1
        return RESULT

    monkeypatch.setattr(store, "change", fail_first)
    async with serve(store, function, max_concurrency=1) as engine:
        await submit(store, engine)
        second_id = await submit(store, engine)
        assert (await wait_for_end(store, second_id)).status == "completed"
    assert has_error(caplog)


async def test_a_task_fails_if_its_outcome_cannot_be_stored_after_a_long_outage(
    store: SQLiteTaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.tasks.task_worker._STORE_RETRY_DELAY_S", 0.001)
    change, errors, lease_seconds = store.change, [ValueError("a bug"), TaskStoreUnavailable("locked")], 0.2

    async def fail_first(record: TaskRecord) -> TaskRecord:
        if errors:
            await asyncio.sleep(2 * lease_seconds)
            raise errors.pop()
        return await change(record)

    async def function(run: TaskRun) -> dict[str, Any]:
        monkeypatch.setattr(store, "change", fail_first)
        return RESULT

    async with serve(store, function, WorkerOptions(lease_seconds=lease_seconds, due_interval=0.01)) as engine:
        record = await wait_for_end(store, await submit(store, engine))
    assert (record.status, record.error and record.error.code, errors) == ("failed", -32603, [])
    assert record.status_message != WORKER_LOST


async def test_a_worker_ends_although_an_outcome_cannot_be_stored(
    store: SQLiteTaskStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outage = Outage(store, monkeypatch)

    async def function(run: TaskRun) -> dict[str, Any]:
        outage.is_on = True
        return RESULT

    async with serve(store, function) as engine:
        await submit(store, engine)
        await wait_until(lambda: "change" in outage.failed_names)
    assert any(record.levelname == "ERROR" and "disk is full" in record.getMessage() for record in caplog.records)


# Several workers and leases


async def test_each_task_runs_once_although_it_is_submitted_often(store: SQLiteTaskStore) -> None:
    runs: list[str] = []

    async def function(run: TaskRun) -> dict[str, Any]:
        runs.append(run.record.id)
        await asyncio.sleep(0.01)
        return RESULT

    async with serve(store, function) as first, serve(store, function) as second:
        ids = [await submit(store, first) for _ in range(10)]
        for id in ids * 3:
            await second.submit(id)
            await first.submit(id)
        for id in ids:
            await wait_for_end(store, id)
    assert sorted(runs) == sorted(ids)


async def test_a_lease_is_renewed_while_the_function_runs(store: SQLiteTaskStore) -> None:
    is_renewed, renew = asyncio.Event(), store.renew

    async def count_renewals(*args: Any) -> dict[str, bool]:
        held = await renew(*args)
        if held:
            is_renewed.set()
        return held

    store.renew = count_renewals  # type: ignore[method-assign]

    async def function(run: TaskRun) -> dict[str, Any]:
        await is_renewed.wait()
        return RESULT

    options = WorkerOptions(lease_seconds=1.0, due_interval=0.01)
    async with serve(store, function, options) as engine:
        record = await wait_for_end(store, await submit(store, engine))
    assert (record.status, record.attempt) == ("completed", 1)


async def test_a_worker_that_lost_its_lease_stops_and_stores_nothing(store: SQLiteTaskStore) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def function(run: TaskRun) -> dict[str, Any]:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            with pytest.raises(LeaseLost):
                await run.change(lambda record: replace(record, status_message="late"))
            stopped.set()
        return RESULT

    async with serve(store, function) as engine:
        id = await submit(store, engine, max_retries=1)
        await started.wait()
        assert await store.claim(id, "other", time.time() + 31, 30.0) is not None
        await stopped.wait()
    record = await store.get(id)
    assert record is not None
    assert (record.status, record.status_message, record.attempt) == ("working", None, 2)
    assert record.lease is not None
    assert record.lease.holder == "other"


# Cancel


@pytest.mark.parametrize("is_same_process", [True, False])
async def test_a_cancelled_task_stops_at_once(store: SQLiteTaskStore, tmp_path: Path, is_same_process: bool) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def function(run: TaskRun) -> dict[str, Any]:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return RESULT

    other = store if is_same_process else SQLiteTaskStore(tmp_path / "tasks.sqlite")
    # The next renewal of the lease would be too late for the time limit of this test.
    options = WorkerOptions(lease_seconds=600.0, due_interval=0.01)
    async with serve(store, function, options) as engine:
        id = await submit(store, engine)
        await started.wait()
        await change_task(other, id, cancel)
        await stopped.wait()
        assert (await wait_for_end(store, id)).status == "cancelled"
    await other.close()


async def test_a_renewal_stops_a_cancelled_task_if_the_store_reports_no_changes(
    store: SQLiteTaskStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, watch, started = SQLiteTaskStore(tmp_path / "tasks.sqlite"), store.watch, asyncio.Event()
    monkeypatch.setattr(store, "watch", lambda ids: watch(["unknown"]))

    async def function(run: TaskRun) -> dict[str, Any]:
        started.set()
        await asyncio.Event().wait()
        return RESULT

    options = WorkerOptions(lease_seconds=1.0, due_interval=0.01)
    async with serve(store, function, options) as engine:
        id = await submit(store, engine)
        await started.wait()
        await change_task(other, id, cancel)
        assert (await wait_for_end(other, id)).status == "cancelled"
    await other.close()


async def test_a_task_that_is_cancelled_before_its_start_never_starts(store: SQLiteTaskStore) -> None:
    runs: list[str] = []

    async def function(run: TaskRun) -> dict[str, Any]:
        runs.append(run.record.id)
        return RESULT

    record = make_record()
    await store.create(record)
    await change_task(store, record.id, cancel)
    async with serve(store, function) as engine:
        await engine.submit(record.id)
        other = await submit(store, engine)
        await wait_for_end(store, other)
    assert runs == [other]


async def test_a_function_may_finish_although_it_was_cancelled(store: SQLiteTaskStore) -> None:
    started = asyncio.Event()

    async def function(run: TaskRun) -> dict[str, Any]:
        started.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return RESULT

    async with serve(store, function) as engine:
        id = await submit(store, engine)
        await started.wait()
        await change_task(store, id, cancel)
        assert (await wait_for_end(store, id)).status == "completed"


# Questions


async def test_a_function_waits_for_its_answers(store: SQLiteTaskStore) -> None:
    runs: list[int] = []

    async def function(run: TaskRun) -> dict[str, Any]:
        runs.append(run.record.attempt)
        first, second = await asyncio.gather(ask(run, "a"), ask(run, "b"))
        # If the worker is lost from now on, this counts as a lost run.
        stored = await store.get(run.record.id)
        assert stored is not None
        assert (stored.phase, stored.status) == ("running", "working")
        return first | second

    async with serve(store, function) as engine:
        id = await submit(store, engine)
        await wait_for(store, id, lambda record: len(record.inputs) == 2)
        record = await change_task(store, id, answer(a="Ada"))
        assert record is not None
        assert record.status == "input_required"
        await change_task(store, id, answer(b="Bob"))
        record = await wait_for_end(store, id)
    assert record.result is not None
    assert [record.result[key]["content"]["name"] for key in "ab"] == ["Ada", "Bob"]
    assert runs == [1]


async def test_a_parked_task_runs_again_after_the_answer_and_this_is_not_a_retry(store: SQLiteTaskStore) -> None:
    runs: list[int] = []

    async def function(run: TaskRun) -> dict[str, Any]:
        runs.append(run.record.attempt)
        return (await ask(run, "a")) | (await ask(run, "b"))

    options = WorkerOptions(lease_seconds=30.0, due_interval=0.01, park_after=0.0)
    async with serve(store, function, options) as engine:
        id = await submit(store, engine)
        for key in "ab":
            parked = await wait_for(store, id, lambda record, key=key: record.lease is None and key in record.inputs)
            assert (parked.status, parked.phase) == ("input_required", "waiting")
            await change_task(store, id, answer(**{key: key}))
        record = await wait_for_end(store, id)
    assert (record.status, record.attempt, runs) == ("completed", 1, [1, 1, 1])


async def test_a_task_that_waits_can_be_cancelled(store: SQLiteTaskStore) -> None:
    async def function(run: TaskRun) -> dict[str, Any]:
        return await ask(run, "a")

    async with serve(store, function) as engine:
        id = await submit(store, engine)
        await wait_for_question(store, id)
        await change_task(store, id, cancel)
        assert (await wait_for_end(store, id)).status == "cancelled"


# Limits and the end


async def test_only_some_tasks_run_at_the_same_time(store: SQLiteTaskStore) -> None:
    running, highest, may_end = 0, 0, asyncio.Event()

    async def function(run: TaskRun) -> dict[str, Any]:
        nonlocal running, highest
        running += 1
        highest = max(highest, running)
        if running == 3:
            may_end.set()
        await may_end.wait()
        running -= 1
        return RESULT

    async with serve(store, function, max_concurrency=3) as engine:
        ids = [await submit(store, engine) for _ in range(12)]
        for id in ids:
            await wait_for_end(store, id)
    assert highest == 3


async def test_the_end_waits_for_running_tasks_and_starts_no_others(store: SQLiteTaskStore) -> None:
    started, may_end = asyncio.Event(), asyncio.Event()

    async def function(run: TaskRun) -> dict[str, Any]:
        started.set()
        await may_end.wait()
        return RESULT

    async with serve(store, function, max_concurrency=1, drain_timeout=30.0) as engine:
        running, waiting = await submit(store, engine), await submit(store, engine)
        await started.wait()
        asyncio.get_running_loop().call_later(0.02, may_end.set)
    records = [await store.get(running), await store.get(waiting)]
    assert [record and (record.status, record.attempt) for record in records] == [("completed", 1), ("working", 0)]


@pytest.mark.parametrize(("max_retries", "status"), [(0, "failed"), (1, "working")])
async def test_the_end_cancels_tasks_that_run_too_long(store: SQLiteTaskStore, max_retries: int, status: str) -> None:
    started = asyncio.Event()

    async def function(run: TaskRun) -> dict[str, Any]:
        started.set()
        await asyncio.Event().wait()
        return RESULT

    async with serve(store, function) as engine:
        id = await submit(store, engine, max_retries=max_retries)
        await started.wait()
    record = await store.get(id)
    assert record is not None
    assert (record.status, record.lease) == (status, None)
    due = await store.list_due(SERVER, time.time() + 1, 10)
    assert due == ([] if max_retries == 0 else [id])


async def test_the_end_hands_over_a_task_that_waits_without_delay(store: SQLiteTaskStore) -> None:
    async def function(run: TaskRun) -> dict[str, Any]:
        return await ask(run, "a")

    async with serve(store, function, drain_timeout=50.0) as engine:
        id = await submit(store, engine)
        await wait_for_question(store, id)
    parked = await store.get(id)
    assert parked is not None
    assert (parked.status, parked.lease) == ("input_required", None)
    async with serve(store, function):
        await change_task(store, id, answer(a="Ada"))
        record = await wait_for_end(store, id)
    assert (record.status, record.attempt) == ("completed", 1)


# Processes

HANGING_WORKER = """
import asyncio, sys
sys.path.insert(0, sys.argv[2])
from dovetail.tasks.local_engine import LocalEngine
from dovetail.tasks.sqlite_task_store import SQLiteTaskStore
from dovetail.tasks.task_worker import TaskWorker, WorkerOptions
from dovetail.wire.input_required import InputRequest
from support.task_records import SERVER

async def function(run):
    if run.record.arguments:
        await run.ask({"a": InputRequest(method="elicitation/create", params={"message": "a"})})
    print("started", flush=True)
    await asyncio.Event().wait()

options = WorkerOptions(lease_seconds=1.0, due_interval=0.01)
worker = TaskWorker(SQLiteTaskStore(sys.argv[1]), LocalEngine(), SERVER, function, options)
asyncio.run(worker.serve(asyncio.Event()))
"""


def start_hanging_worker(path: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HANGING_WORKER, str(path), str(Path(__file__).parents[1])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="platform: Windows has no SIGKILL")
async def test_tasks_of_a_killed_process_end_as_promised(store: SQLiteTaskStore, tmp_path: Path) -> None:
    once, retried, asking = make_record(), make_record(max_retries=1), make_record(arguments={"ask": True})
    for record in (once, retried, asking):
        await store.create(record)
    runs: list[tuple[str, int]] = []

    async def function(run: TaskRun) -> dict[str, Any]:
        runs.append((run.record.id, run.record.attempt))
        return await ask(run, "a") if run.record.arguments else RESULT

    with start_hanging_worker(tmp_path / "tasks.sqlite") as process:
        assert process.stdout is not None
        for _ in (once, retried):
            assert await asyncio.to_thread(process.stdout.readline) == "started\n"
        await wait_for_question(store, asking.id)
        process.kill()
    await change_task(store, asking.id, answer(a="Ada"))
    async with serve(store, function):
        ends = [await wait_for_end(store, record.id) for record in (once, retried, asking)]
    assert [(record.status, record.attempt) for record in ends] == [("failed", 1), ("completed", 2), ("completed", 1)]
    assert ends[0].error is not None
    assert (ends[0].error.code, ends[0].error.message) == (-32603, WORKER_LOST)
    assert sorted(runs) == sorted([(retried.id, 2), (asking.id, 1)])


# Engines outside the process


class RecordingEngine:
    """An engine that only records what is submitted, and fails while `error` is set."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.submitted_ids: list[str] = []

    async def submit(self, id: str) -> None:
        self.submitted_ids.append(id)
        if self.error is not None:
            raise self.error

    async def serve(self, run: Callable[[str], Awaitable[None]], stop: asyncio.Event) -> None:
        await stop.wait()


async def count_sweeps(store: SQLiteTaskStore, count: int, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Return an event that is set when the worker has looked for due tasks this often."""
    done, list_due, calls = asyncio.Event(), store.list_due, 0

    async def list_and_count(*args: Any) -> list[str]:
        nonlocal calls
        calls += 1
        if calls > count:
            done.set()
        return await list_due(*args)

    monkeypatch.setattr(store, "list_due", list_and_count)
    return done


@pytest.mark.parametrize(("lease_seconds", "is_repeated"), [(3600.0, False), (0.02, True)])
async def test_a_task_that_waits_in_the_engine_is_submitted_again_only_after_a_long_time(
    store: SQLiteTaskStore, monkeypatch: pytest.MonkeyPatch, lease_seconds: float, is_repeated: bool
) -> None:
    engine, record, stop = RecordingEngine(), make_record(), asyncio.Event()
    await store.create(record)
    done = await count_sweeps(store, 10, monkeypatch)
    options = WorkerOptions(lease_seconds=lease_seconds, due_interval=0.005)
    worker = TaskWorker(store, engine, SERVER, run_nothing, options)
    serving = asyncio.create_task(worker.serve(stop))
    async with asyncio.timeout(30):
        await done.wait()
    stop.set()
    await serving
    assert {*engine.submitted_ids} == {record.id}
    assert (len(engine.submitted_ids) > 1) == is_repeated


async def test_an_engine_that_fails_is_used_again(store: SQLiteTaskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, record, stop = RecordingEngine(ConnectionError("no broker")), make_record(), asyncio.Event()
    await store.create(record)
    worker = TaskWorker(store, engine, SERVER, run_nothing, FAST)
    assert not await worker.submit(record.id)
    done = await count_sweeps(store, 3, monkeypatch)
    serving = asyncio.create_task(worker.serve(stop))
    async with asyncio.timeout(30):
        await done.wait()
    assert len(engine.submitted_ids) >= 3
    engine.error = None
    assert await worker.submit(record.id)
    stop.set()
    await serving


async def run_nothing(run: TaskRun) -> dict[str, Any]:
    raise AssertionError
