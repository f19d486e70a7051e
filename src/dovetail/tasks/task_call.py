"""The running call of a task: it stores questions, steps and progress in the record of the task.

A call that runs in the foreground sends progress instead, so that its client keeps waiting.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any, Final

from dovetail.protocol.exchange import IncomingExchange
from dovetail.protocol.request_state import RequestState
from dovetail.tasks.task_record import TaskRecord, TaskStoreUnavailable
from dovetail.tasks.task_rules import report_progress, save_once_value, save_round
from dovetail.tasks.task_worker import Edit, LeaseLost, TaskParked, TaskRun
from dovetail.wire.base import replace
from dovetail.wire.input_required import InputRequest
from dovetail.wire.progress import ProgressParams

_PROGRESS_INTERVAL_S: Final = 0.5  # The progress of a task is stored at most once in this time.
_MAX_PROGRESS_INTERVAL_S: Final = 5.0
_MIN_IDLE_FACTOR: Final = 20  # At most a twentieth of the time is spent on storing progress.
_HEARTBEAT_INTERVAL_S: Final = 5.0
_HEARTBEAT_STEP: Final = 1e-6  # This step is too small to change the progress that users see.


class TaskToolCall:
    """A tool call that runs as a task. The context of the call uses this object to change the task record.

    A call that starts in the foreground has no run until it becomes a task.
    """

    __slots__ = ("_next_report_at", "_progress", "_report_task", "_run", "round_state", "starts_in_foreground")

    def __init__(self, run: TaskRun | None = None) -> None:
        self._run = run
        self.starts_in_foreground = run is None
        self.round_state: RequestState | None = None if run is None else _read_round_state(run.record)
        self._progress: tuple[str, float, float | None] | None = None  # the newest progress, if it is not stored yet
        self._report_task: asyncio.Task[None] | None = None
        self._next_report_at = 0.0

    @property
    def is_task(self) -> bool:
        return self._run is not None

    @property
    def attempt(self) -> int:
        return 1 if self._run is None else self._run.record.attempt

    async def become_task(self, run: TaskRun) -> None:
        """Continue as a task. From now on, questions and steps are stored in the task record."""
        self._run = run
        # Some steps may have ended while the record was stored, so store their values, too.
        once_values = {} if self.round_state is None else dict(self.round_state.once_values)
        if once_values.keys() - run.record.once_values:
            await self._change(lambda record: replace(record, once_values=once_values | record.once_values))

    def close(self) -> None:
        """Stop reporting progress, because the call has ended."""
        if self._report_task is not None:
            self._report_task.cancel()

    async def ask(self, requests: Mapping[str, InputRequest]) -> dict[str, Any] | None:
        run = self._get_run()
        try:
            return await run.ask(requests)
        except TaskParked:
            return None
        except LeaseLost:
            raise _stop_run(run) from None

    async def save_once_value(self, key: str, value: Any) -> None:
        await self._change(lambda record: save_once_value(record, key, value, time.time()))

    async def save_round(self, responses: Mapping[str, Any], author_state: str | None) -> None:
        keys = [self._get_run().keys[key] for key in responses]
        await self._change(lambda record: save_round(record, responses, author_state, keys, time.time()))

    async def report_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Store the progress. If the function reports often, only the newest progress is stored."""
        text = message or (f"{progress:g}" if total is None else f"{progress:g} of {total:g}")
        self._progress = (text, progress, total)
        if self._report_task is None or self._report_task.done():
            loop = asyncio.get_running_loop()
            if loop.time() >= self._next_report_at:
                await self._store_progress()
                return
            self._report_task = loop.create_task(self._store_progress(self._next_report_at - loop.time()))
        # Let the event loop run, so that the worker can renew its lease even if the function never waits.
        await asyncio.sleep(0)

    async def _store_progress(self, delay: float = 0.0) -> None:
        if delay > 0:
            await asyncio.sleep(delay)
        if self._progress is None:
            return
        (text, progress, total), self._progress = self._progress, None
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        self._next_report_at = started_at + _PROGRESS_INTERVAL_S
        # An error while progress is stored must not stop the function. If the lease is lost, the worker stops it.
        with contextlib.suppress(TaskStoreUnavailable, LeaseLost):
            await self._get_run().try_change(
                lambda record: report_progress(record, time.time(), message=text, progress=progress, total=total)
            )
        # A change writes the whole record. After a slow change, wait longer before the next one.
        duration = loop.time() - started_at
        idle_s = min(_MAX_PROGRESS_INTERVAL_S, _MIN_IDLE_FACTOR * duration)
        self._next_report_at = max(self._next_report_at, started_at + idle_s)

    async def _change(self, edit: Edit) -> None:
        run = self._get_run()
        try:
            await run.change(edit)
        except LeaseLost:
            raise _stop_run(run) from None

    def _get_run(self) -> TaskRun:
        assert self._run is not None
        return self._run


class Heartbeat:
    """Sends progress while a call runs in the foreground. Many hosts stop a call that is silent for 60 seconds."""

    __slots__ = ("_exchange", "_task", "_timer")

    def __init__(self, exchange: IncomingExchange) -> None:
        self._exchange = exchange
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_HEARTBEAT_INTERVAL_S, self._send_soon)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _send_soon(self) -> None:
        if self._exchange.is_task:
            return
        # While a message waits, the client may not be reading, so no further message is sent.
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._send())
        self.start()

    async def _send(self) -> None:
        exchange = self._exchange
        token, last_progress = exchange.progress_token, exchange.last_progress
        if token is None:
            return
        # Each message must report more progress than the last message, which the function may have sent.
        # spec: progress#progress-flow
        exchange.last_progress = 0.0 if last_progress is None else last_progress + _HEARTBEAT_STEP
        params = ProgressParams(progress_token=token, progress=exchange.last_progress)
        await exchange.notify("notifications/progress", params)


def _read_round_state(record: TaskRecord) -> RequestState:
    return RequestState(
        input_responses=dict(record.input_responses),
        request_digests=dict(record.request_digests),
        once_values=dict(record.once_values),
        author_state=record.author_state,
    )


def _stop_run(run: TaskRun) -> asyncio.CancelledError:
    """Stop a function whose worker has lost the lease, because another worker may run the task."""
    run.stop("lease lost")
    return asyncio.CancelledError()
