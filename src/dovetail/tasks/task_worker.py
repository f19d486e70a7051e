"""Run tasks in this process: claim a task, run its function, renew its lease, and store its outcome.

A worker works with every task store and every engine. It never runs a task without a lease. If it loses the lease, it
cancels the function and stores nothing.
"""

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import Any, Final, Literal, TypeAlias

from dovetail.errors import InternalError, ProtocolError
from dovetail.log import ThrottledLog, log, log_and_suppress
from dovetail.tasks.task_record import TaskRecord, TaskStoreUnavailable, TaskUnreadable, is_final
from dovetail.tasks.task_rules import (
    SERVER_STOPPED,
    ask_client,
    cancel_task,
    complete_task,
    continue_task,
    fail_task,
    park_task,
    release_task,
    withdraw_requests,
)
from dovetail.tasks.task_slots import NoStartLimits, StartLimits, TaskSlots, acquire_all, release_all
from dovetail.tasks.task_store import StopSignal, TaskEngine, TaskStore, change_task
from dovetail.wire.base import Struct
from dovetail.wire.input_required import InputRequest

_RENEWALS_PER_LEASE: Final = 3
_SUBMIT_BATCH: Final = 100
_EXPIRE_INTERVAL_S: Final = 60.0
_STORE_RETRY_DELAY_S: Final = 0.5
_ENGINE_RESTART_DELAY_S: Final = 1.0

_outcome_warning: Final = ThrottledLog()

StopReason: TypeAlias = Literal["cancelled", "lease lost"]
Edit: TypeAlias = Callable[[TaskRecord], TaskRecord]


class LeaseLost(Exception):
    """Raised if a worker has lost the lease of a task. Another worker may run the task."""


class TaskParked(BaseException):
    """Raised to stop a function that waits too long for an answer. The function runs again with the answer.

    It is a BaseException, so that `except Exception` in the function does not catch it.
    """


class WorkerOptions(Struct, kw_only=True, frozen=True):
    """The times of a worker, in seconds."""

    lease_seconds: float = 30.0  # A worker is lost if it does not renew its lease for this time.
    due_interval: float = 1.0  # The time between two searches for tasks that are due.
    park_after: float = 60.0  # A function that waits this long for an answer is stopped. The answer starts it again.


DEFAULT_OPTIONS: Final = WorkerOptions()


class TaskRun:
    """A run of a task in this process. The function of the task changes the record through this object."""

    def __init__(self, store: TaskStore, record: TaskRecord, options: WorkerOptions) -> None:
        assert record.lease is not None
        self.record = record  # the newest version of the record that this worker knows
        self.holder = record.lease.holder
        self.stop_reason: StopReason | None = None
        self.keys: dict[str, str] = {}  # Maps the key that the function uses for a question to the key in the record.
        self._store = store
        self._options = options
        self._task: asyncio.Task[Edit] | None = None
        self._owner: asyncio.Task[Any] | None = None  # the task that calls `execute`
        self._waits: set[asyncio.Timeout] = set()
        self._is_parking = False

    async def change(self, edit: Edit) -> TaskRecord:
        """Change the record with a pure function, which may run several times.

        If the store cannot be used now, try again for `lease_seconds`.

        Raises:
            LeaseLost: another worker has the task, or the task has ended.
        """
        deadline = time.monotonic() + self._options.lease_seconds
        while True:
            try:
                return await self.try_change(edit)
            except TaskStoreUnavailable:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_STORE_RETRY_DELAY_S)

    async def try_change(self, edit: Edit) -> TaskRecord:
        """Change the record like `change`, but raise TaskStoreUnavailable if the store cannot be used now."""

        def edit_own(record: TaskRecord) -> TaskRecord:
            if not self._has_lease(record):
                raise LeaseLost
            return edit(record)

        record = await change_task(self._store, self.record.id, edit_own)
        if record is None:
            raise LeaseLost
        self.record = record
        return record

    async def ask(self, requests: Mapping[str, InputRequest]) -> dict[str, Any]:
        """Ask the client and wait for the answers. Return the answers as JSON, with the same keys as `requests`.

        If the answers take too long, raise TaskParked. The function runs again when the answers have arrived.
        """
        keys: list[str] = []

        def add_requests(record: TaskRecord) -> TaskRecord:
            changed, keys[:] = ask_client(record, requests, time.time())
            return changed

        await self.change(add_requests)
        self.keys |= dict(zip(requests, keys, strict=True))
        try:
            if any(self.record.inputs[key].is_open for key in keys):
                await self._wait_for_answers(keys)
        except asyncio.CancelledError:
            if self.stop_reason is None and not self._is_parking and not self._is_cancelled():
                # The function no longer waits for the answer, for example because of a timeout in its code.
                await asyncio.shield(self._withdraw(keys))
            raise
        # Store that the task is running again before the function continues.
        record = await self.change(lambda record: continue_task(record, time.time()))
        return {wanted: record.inputs[key].response for wanted, key in zip(requests, keys, strict=True)}

    def _is_cancelled(self) -> bool:
        return self._owner is not None and self._owner.cancelling() > 0

    async def _withdraw(self, keys: list[str]) -> None:
        def edit(record: TaskRecord) -> TaskRecord:
            now = time.time()
            return continue_task(withdraw_requests(record, keys, now), now)

        with contextlib.suppress(LeaseLost):
            await self.change(edit)

    async def _wait_for_answers(self, keys: list[str]) -> None:
        wait = asyncio.timeout(0 if self._is_parking else self._options.park_after)
        try:
            async with wait:
                self._waits.add(wait)
                with self._store.watch([self.record.id]) as changed_ids:
                    async for id in changed_ids:
                        record = await self._store.get(id)
                        if record is None or not self._has_lease(record):
                            raise LeaseLost
                        if not any(record.inputs[key].is_open for key in keys):
                            return
        except TimeoutError:
            raise TaskParked from None
        finally:
            self._waits.discard(wait)

    def park(self) -> None:
        """Stop the function as soon as it waits for an answer, or now if it waits already."""
        self._is_parking = True
        for wait in self._waits:
            with contextlib.suppress(RuntimeError):  # The wait has just ended.
                wait.reschedule(asyncio.get_running_loop().time())

    def stop(self, reason: StopReason) -> None:
        """Cancel the function. If it was stopped before, keep the first reason."""
        if self.stop_reason is None and self._task is not None:
            self.stop_reason = reason
            self._task.cancel()

    def check(self, record: TaskRecord | None) -> None:
        """Stop the function if its task should be cancelled, or if another worker has the task."""
        if record is None or not self._has_lease(record):
            self.stop("lease lost")
        elif record.is_cancel_requested:
            self.stop("cancelled")

    async def execute(self, function: "TaskFunction") -> None:
        """Run the function and store its outcome. If this coroutine is cancelled, call `release_task`."""
        self._owner = asyncio.current_task()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._task = tasks.create_task(self._call(function))
                monitor = tasks.create_task(self._monitor())
                self._task.add_done_callback(lambda _: monitor.cancel())
        finally:
            # Store the outcome even if the server stops, because the function may have returned a result in time.
            await self._store_outcome(self._get_outcome())

    def _get_outcome(self) -> Edit:
        if self._task is None or not self._task.done() or self._task.cancelled():
            return lambda record: release_task(record, SERVER_STOPPED, time.time())
        return self._task.result()

    async def _call(self, function: "TaskFunction") -> Edit:
        """Call the function. Return an edit that stores the outcome in the record."""
        try:
            result = await function(self)
        except asyncio.CancelledError:
            if self.stop_reason is None:  # The server stops.
                raise
            return lambda record: cancel_task(record, time.time())
        except TaskParked:
            return lambda record: park_task(record, time.time())
        except LeaseLost:
            return lambda record: record  # `try_change` notices the lost lease, and stores nothing.
        except ProtocolError as exc:
            error = exc
            return lambda record: fail_task(record, error, time.time())
        except Exception:
            log.exception("the function of a task failed")
            return lambda record: fail_task(record, InternalError("Internal error"), time.time())
        return lambda record: complete_task(record, result, time.time())

    async def _monitor(self) -> None:
        """Check the record after each change, because another process may have cancelled or claimed the task."""
        with self._store.watch([self.record.id]) as changed_ids:
            async for id in changed_ids:
                with log_and_suppress(Exception):  # The next renewal checks the record again.
                    self.check(await self._store.get(id))

    async def _store_outcome(self, edit: Edit) -> None:
        """Store the outcome. While the store cannot be used, for example because the disk is full, try again.

        If the server has stopped the function, or the store has a bug, give up after `lease_seconds`. If the store is
        damaged, or if the server stops while the outcome waits, give up at once.
        """
        lease_seconds = self._options.lease_seconds
        deadline = time.monotonic() + lease_seconds if self._is_cancelled() else math.inf
        problem: Exception | str = "the store has not answered"
        try:
            while True:
                try:
                    await self.try_change(edit)
                    return
                except LeaseLost:
                    problem, deadline = "another worker has the task, or the task has ended", 0.0
                except TaskUnreadable as exc:
                    problem, deadline = exc, 0.0
                except TaskStoreUnavailable as exc:
                    problem = exc
                    _outcome_warning.log("the outcome of a task cannot be stored yet: %s", exc)
                except Exception as exc:
                    problem = exc
                    if edit is not _fail_to_store:
                        log.error("the outcome of a task cannot be stored", exc_info=exc)
                        edit, deadline = _fail_to_store, min(deadline, time.monotonic() + lease_seconds)
                if time.monotonic() > deadline:
                    log.error("the outcome of a task could not be stored and is lost: %s", problem)
                    return
                await asyncio.sleep(_STORE_RETRY_DELAY_S)
        except asyncio.CancelledError:
            log.error("the server stopped before the outcome of a task was stored: %s", problem)
            raise

    def _has_lease(self, record: TaskRecord) -> bool:
        return record.lease is not None and record.lease.holder == self.holder


def _fail_to_store(record: TaskRecord) -> TaskRecord:
    return fail_task(record, InternalError("The outcome of the task cannot be stored"), time.time())


# Runs the function of a task, and returns the result of the call as JSON.
TaskFunction: TypeAlias = Callable[[TaskRun], Awaitable[dict[str, Any]]]


class TaskWorker:
    """Runs the tasks of one server in this process."""

    def __init__(
        self,
        store: TaskStore,
        engine: TaskEngine,
        server: str,
        function: TaskFunction,
        options: WorkerOptions = DEFAULT_OPTIONS,
        start_limits: StartLimits | None = None,
        *,
        searches: bool = True,
        runs_tasks: bool = True,
    ) -> None:
        self._store = store
        self._engine = engine
        self._server = server
        self._function = function
        self._options = options
        self._start_limits = start_limits or NoStartLimits()
        self._searches = searches  # whether the worker searches the store for tasks that are due
        # If False, other processes run the submitted tasks. Calls that became tasks while they ran still run here.
        self._runs_tasks = runs_tasks
        self._runs: dict[str, TaskRun] = {}
        self._waiting_ids: set[str] = set()  # the tasks that wait for a slot
        self._worker_id = os.urandom(8).hex()
        self._claim_numbers = count(1)
        self._engine_warning = ThrottledLog()
        self._store_warning = ThrottledLog()
        # Maps each task that may still wait in the engine to the time when it was submitted.
        self._submitted_at: dict[str, float] = {}
        self._take_over_from = 0.0  # Before this time, the worker does not take over tasks of other workers.

    def create_holder(self) -> str:
        """Return a new name for the holder of a lease. Each claim needs a new name."""
        return f"{self._worker_id}-{next(self._claim_numbers)}"

    async def serve(self, stop: StopSignal) -> None:
        """Run tasks until `stop` is set. Then wait for running tasks, and cancel those that take too long."""
        async with asyncio.TaskGroup() as tasks:
            maintenance = tasks.create_task(self._maintain())
            parking = tasks.create_task(self._park_at_stop(stop))
            try:
                await self._serve_engine(stop)
            finally:
                maintenance.cancel()
                parking.cancel()

    async def _serve_engine(self, stop: StopSignal) -> None:
        while not stop.is_set():
            try:
                await self._engine.serve(self.run if self._runs_tasks else None, stop)
            except Exception as exc:
                self._engine_warning.log("the task engine has failed and starts again: %s", exc, exc_info=exc)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), _ENGINE_RESTART_DELAY_S)
            else:
                await stop.wait()  # If the engine runs no tasks in this process, `serve` may return at once.

    async def submit(self, id: str) -> bool:
        """Send a task to the engine. Return False if the engine fails. The worker then submits the task again later."""
        try:
            await self._engine.submit(id)
        except Exception as exc:
            self._engine_warning.log("the task engine cannot be used now: %s", exc)
            return False
        self._submitted_at[id] = time.time()
        return True

    async def run(self, id: str) -> None:
        """Wait for the slots of a task, and then claim and run it. Do nothing if the task is not due."""
        self._submitted_at.pop(id, None)
        if id in self._runs or id in self._waiting_ids:
            return
        self._waiting_ids.add(id)
        try:
            slots = await self._wait_for_slots(id)
        except TaskStoreUnavailable as exc:
            self._handle_outage(exc)
            return
        finally:
            self._waiting_ids.discard(id)
        if slots is None:
            return
        try:
            record = await self._store.claim(id, self.create_holder(), time.time(), self._options.lease_seconds)
            if record is not None:
                await self.run_claimed(record, self._function)
        except TaskStoreUnavailable as exc:
            self._handle_outage(exc)
        finally:
            release_all(slots)

    def _handle_outage(self, exc: TaskStoreUnavailable) -> None:
        self._store_warning.log("the task store cannot be used now: %s", exc)
        self._delay_takeovers()

    def _delay_takeovers(self) -> None:
        """Take over no tasks for a while, so that other workers can renew their leases and store their outcomes."""
        self._take_over_from = time.time() + self._options.lease_seconds

    async def _wait_for_slots(self, id: str) -> Sequence[TaskSlots] | None:
        """Wait until a task can start. Return None if the task does not exist or has ended, or if the server stops.

        Also return None if the task has a lease and the worker must not take over tasks now.
        """
        try:
            record = await self._store.get(id)
        except TaskUnreadable:
            return ()  # `claim` handles records that cannot be read.
        if record is None or is_final(record.status):
            return None
        if record.lease is not None and time.time() < self._take_over_from:
            return None
        if record.server != self._server:
            self._engine_warning.log(
                "ignored a task of the server %r. Each server needs its own queue in the task engine", record.server
            )
            return None
        slots = self._start_limits.list_slots(record)
        return slots if await acquire_all(slots) else None

    async def run_claimed(self, record: TaskRecord, function: TaskFunction) -> None:
        """Run a task whose lease this worker already has, for example a call that started in the foreground."""
        run = self._runs[record.id] = TaskRun(self._store, record, self._options)
        try:
            await run.execute(function)
        finally:
            del self._runs[record.id]

    async def _park_at_stop(self, stop: StopSignal) -> None:
        """Release the tasks that wait for an answer, so that they do not delay the stop of the server."""
        await stop.wait()
        self._start_limits.close()
        for run in [*self._runs.values()]:
            run.park()

    async def _maintain(self) -> None:
        """Renew leases, submit tasks that are due, and delete expired tasks."""
        interval = min(self._options.due_interval, self._options.lease_seconds / _RENEWALS_PER_LEASE)
        last_tick, next_renewal, next_expiry = time.time(), 0.0, 0.0
        while True:
            now = time.time()
            if now - last_tick > interval + self._options.lease_seconds / 2:
                self._delay_takeovers()  # Much time has passed, so the machine was asleep or overloaded.
            elif now < last_tick:  # The clock was set back, so the planned times are too far in the future.
                next_renewal = next_expiry = self._take_over_from = 0.0
            last_tick = now
            try:
                if now >= next_renewal:
                    await self._renew(now)
                    next_renewal = now + self._options.lease_seconds / _RENEWALS_PER_LEASE - interval / 2
                if self._searches:
                    await self._submit_due(now)
                if now >= max(next_expiry, self._take_over_from):
                    await self._store.expire(now)
                    next_expiry = now + _EXPIRE_INTERVAL_S
            except TaskStoreUnavailable as exc:
                self._handle_outage(exc)
            except Exception as exc:  # A bug in a store must not stop the worker.
                self._store_warning.log("the task store has failed: %s", exc, exc_info=exc)
            await asyncio.sleep(interval)

    async def _renew(self, now: float) -> None:
        holders = {id: run.holder for id, run in self._runs.items()}
        held = await self._store.renew(holders, now, self._options.lease_seconds)
        for id, holder in holders.items():
            run = self._runs.get(id)
            if run is not None and run.holder == holder:
                if id not in held:
                    run.check(await self._store.get(id))
                elif held[id]:
                    run.stop("cancelled")

    async def _submit_due(self, now: float) -> None:
        """Submit the tasks that are due, except those that were submitted a short time ago."""
        ids = await self._store.list_due(self._server, now, _SUBMIT_BATCH)
        self._submitted_at = {id: self._submitted_at[id] for id in ids if id in self._submitted_at}
        for id in ids:
            is_waiting = now - self._submitted_at.get(id, 0.0) < self._options.lease_seconds
            is_waiting = is_waiting or id in self._runs or id in self._waiting_ids
            if not is_waiting and not await self.submit(id):
                return
