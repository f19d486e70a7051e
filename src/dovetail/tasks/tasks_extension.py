"""The tasks extension of a server: its methods, and the worker that runs tasks while the server runs.

The extension knows nothing about tools. The server passes the function that runs a stored call.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dovetail.backoff import compute_backoff
from dovetail.errors import InternalError, InvalidParams, ServerBusy
from dovetail.log import ThrottledLog, log
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.interfaces.extension import Extension
from dovetail.protocol.principal import Principal
from dovetail.storage import MEMORY
from dovetail.tasks import task_worker
from dovetail.tasks.local_engine import LocalEngine
from dovetail.tasks.sqlite_task_store import SQLiteTaskStore, create_default_path
from dovetail.tasks.task_messages import (
    TASKS_EXTENSION,
    CancelTaskParams,
    CancelTaskResult,
    DetailedTask,
    GetTaskParams,
    TaskNotificationParams,
    UpdateTaskParams,
    UpdateTaskResult,
    build_detailed_task,
    build_notification,
)
from dovetail.tasks.task_methods import add_task_methods
from dovetail.tasks.task_options import TaskOptions, is_redis_url
from dovetail.tasks.task_record import TaskEncrypted, TaskLease, TaskRecord, TaskStoreUnavailable
from dovetail.tasks.task_rules import (
    CheckAnswer,
    answer_requests,
    cancel_task,
    compute_due_at,
    extend_shown_expiry,
    is_expired,
    request_cancel,
)
from dovetail.tasks.task_slots import StartLimits
from dovetail.tasks.task_store import TaskLimits, TaskStore, TaskStoreFull, change_task
from dovetail.tasks.task_subscription import add_task_subscription
from dovetail.tasks.task_worker import TaskFunction, TaskWorker

if TYPE_CHECKING:
    from dovetail.tasks.redis_task_store import RedisTaskStore

_MAX_WAITING_TASKS: Final = 10_000  # the maximum number of tasks that run or wait for slots in one process
_STDIO_DRAIN_TIMEOUT_S: Final = 0.2
_HAND_OVER_TIMEOUT_S: Final = 2.0  # the time in which stopped tasks must store their outcome
_STORE_UNAVAILABLE: Final = "The task store cannot be used now"
_FIRST_RETRY_DELAY_S: Final = 0.1
_MAX_RETRY_DELAY_S: Final = 2.0

_unavailable_log: Final = ThrottledLog(logging.ERROR)


class RunningWorker:
    """The worker of one event loop."""

    def __init__(self, worker: TaskWorker) -> None:
        self.worker = worker
        self.runs: set[asyncio.Task[None]] = set()  # calls that started in the foreground and became tasks
        self.stop = asyncio.Event()
        self.task: asyncio.Task[None] | None = None  # the task that runs the worker

    @property
    def has_ended(self) -> bool:
        """Return whether the worker has stopped because of an error."""
        return self.task is not None and self.task.done()

    def continue_call(self, record: TaskRecord, function: TaskFunction) -> None:
        """Run a task whose function has started in the foreground."""
        run = asyncio.get_running_loop().create_task(self.worker.run_claimed(record, function))
        self.runs.add(run)
        run.add_done_callback(self.runs.discard)
        run.add_done_callback(_log_failure)


class TasksExtension:
    """The tasks of one server.

    Args:
        server: The name of the server.
        options: The options of the server for tasks.
        secret_keys: Keys that encrypt the records in a file.
        keeps_tasks: Returns whether the server outlives its clients. It returns False for a server over stdio, and None
            for one that has only clients in this process. Both run only tasks that their clients create or ask for.
        run: Runs the stored call of a task.
        check_answer: Raises ValueError if an answer does not fit its question. The question then stays open.
        check_access: Raises InsufficientScope if a principal lacks scopes for a tool.
        create_start_limits: Returns the limits on running tasks in one event loop.
        drain_timeout: Seconds to wait for running tasks when the server stops.
        create_shared_store: Creates the default store of a server that runs on several machines, or returns None.
    """

    def __init__(
        self,
        server: str,
        options: TaskOptions,
        *,
        secret_keys: Sequence[str | bytes],
        keeps_tasks: Callable[[], bool | None],
        run: TaskFunction,
        check_answer: CheckAnswer,
        check_access: Callable[[str, Principal | None], None],
        create_start_limits: Callable[[], StartLimits],
        drain_timeout: float,
        create_shared_store: Callable[[], TaskStore | None] = lambda: None,
    ) -> None:
        self.options = options
        self._is_worker = False  # True if this process only runs tasks and answers no clients
        self._server = server
        self._secret_keys = secret_keys
        self._keeps_tasks = keeps_tasks
        self._run = run
        self._check_answer = check_answer
        self._check_access = check_access
        self._create_start_limits = create_start_limits
        self._drain_timeout_s = drain_timeout
        self._create_shared_store = create_shared_store
        self._limits = TaskLimits(max_tasks=options.max_tasks, max_tasks_per_owner=options.max_tasks_per_principal)
        self._opened_store: TaskStore | None = None
        self._owns_store = False  # whether this extension has opened a file or connections
        self._workers: dict[asyncio.AbstractEventLoop, RunningWorker] = {}
        self.extension = Extension(TASKS_EXTENSION, requires_client=True)
        add_task_methods(self.extension, self._get_task, self._update_task, self._cancel_task)
        add_task_subscription(self.extension, self._find, self._watch)
        self.extension.lifespan(self._serve)

    @property
    def store(self) -> TaskStore:
        """The task store. It is opened when it is first used."""
        if self._opened_store is None:
            store = self.options.store
            if store is None and self._keeps_tasks():
                store = self._create_shared_store() or create_default_path(self._server)
                self._owns_store = True
            elif store is None:
                store = MEMORY
            if isinstance(store, str | Path):
                self._owns_store = str(store) != MEMORY
                store = open_task_store(store, self._secret_keys)
            self._opened_store = store
        return self._opened_store

    def become_worker(self, drain_timeout: float) -> None:
        """Run tasks in this process, even if other processes only submit them.

        Args:
            drain_timeout: Seconds to wait for running tasks when the process stops.
        """
        self._is_worker, self._drain_timeout_s = True, drain_timeout

    def get_worker(self) -> RunningWorker | None:
        """Return the worker of this event loop, or None if the server is not running in this loop."""
        running = self._workers.get(asyncio.get_running_loop())
        return None if running is None or running.stop.is_set() or running.has_ended else running

    def create_lease(self, worker: TaskWorker) -> TaskLease:
        """Return the lease of a new task that already runs in this process."""
        lease_seconds = task_worker.DEFAULT_OPTIONS.lease_seconds
        return TaskLease(holder=worker.create_holder(), expires_at=time.time() + lease_seconds)

    async def create(self, record: TaskRecord) -> None:
        """Store the record of a new task."""
        try:
            await self.store.create(record, self._limits)
        except TaskStoreFull as exc:
            raise ServerBusy(f"The call cannot become a task now, because {exc}", self._get_retry_after()) from None
        except TaskStoreUnavailable as exc:
            raise _log_unavailable(exc) from None
        except asyncio.CancelledError:
            # The record may be stored, but the caller never gets the ID, so cancel the task.
            await asyncio.shield(self.discard(record.id))
            raise

    async def discard(self, id: str) -> None:
        """Cancel a task whose ID no client knows."""
        with contextlib.suppress(TaskStoreUnavailable):
            await change_task(self.store, id, lambda record: cancel_task(record, time.time()))

    def _get_retry_after(self) -> float:
        return max(1.0, min(60.0, self.options.ttl / 10))

    async def _get_task(self, params: GetTaskParams, exchange: Exchange) -> DetailedTask:
        record, now = await self._find(params.task_id, exchange), time.time()
        due_at = compute_due_at(record)
        if due_at is not None and due_at <= now and not self._keeps_tasks():
            await self._submit(record.id)
        return build_detailed_task(extend_shown_expiry(record, now))

    async def _update_task(self, params: UpdateTaskParams, exchange: Exchange) -> UpdateTaskResult:
        record = await self._find(params.task_id, exchange)
        changed = await self._change(
            record.id,
            lambda record: answer_requests(record, params.input_responses, time.time(), self._check_answer),
        )
        if changed.status == "working" and changed.lease is None:
            await self._submit(record.id)
        return UpdateTaskResult()

    async def _cancel_task(self, params: CancelTaskParams, exchange: Exchange) -> CancelTaskResult:
        record = await self._find(params.task_id, exchange)
        await self._change(record.id, lambda record: request_cancel(record, time.time()))
        return CancelTaskResult()

    async def _watch(self, ids: Sequence[str], _: Exchange) -> AsyncGenerator[TaskNotificationParams]:
        versions: dict[str, int] = {}
        with self.store.watch(ids) as changed_ids:
            async for id in changed_ids:
                record = await self._read_when_available(id)
                if record is not None and versions.get(id) != record.version:
                    versions[id] = record.version
                    yield build_notification(extend_shown_expiry(record, time.time()))

    async def _read_when_available(self, id: str) -> TaskRecord | None:
        """Read a task. While the store cannot be used, wait and try again."""
        failures = 0
        while True:
            try:
                return await self.store.get(id)
            except TaskEncrypted:
                raise
            except TaskStoreUnavailable as exc:
                _unavailable_log.log("%s: %s", _STORE_UNAVAILABLE, exc)
                await asyncio.sleep(compute_backoff(_FIRST_RETRY_DELAY_S, failures, _MAX_RETRY_DELAY_S))
                failures += 1

    async def _find(self, id: str, exchange: Exchange) -> TaskRecord:
        """Return a task of the caller. A task that has expired or belongs to another caller counts as unknown."""
        try:
            record = await self.store.get(id) if id.isascii() else None
        except TaskEncrypted as exc:
            log.error("cannot read a task: %s", exc)
            raise InternalError("This task cannot be read with the secret keys of the server") from None
        except TaskStoreUnavailable as exc:
            raise _log_unavailable(exc) from None
        if (
            record is None
            or record.server != self._server
            or record.owner != get_owner(exchange)
            or is_expired(record, time.time())
        ):
            raise _create_unknown_error()
        self._check_access(record.tool, exchange.caller.principal)
        return record

    async def _change(self, id: str, edit: Callable[[TaskRecord], TaskRecord]) -> TaskRecord:
        try:
            record = await change_task(self.store, id, edit)
        except TaskStoreUnavailable as exc:
            raise _log_unavailable(exc) from None
        if record is None:
            raise _create_unknown_error()
        return record

    async def _submit(self, id: str) -> None:
        """Send a task to a worker. If this fails, a worker finds the task in the store."""
        running = self.get_worker()
        if running is not None:
            await running.worker.submit(id)

    @asynccontextmanager
    async def _serve(self) -> AsyncGenerator[None]:
        loop = asyncio.get_running_loop()
        drain_timeout_s = self._drain_timeout_s
        if self._keeps_tasks() is False:
            # Release the tasks quickly, because the client will soon kill this process.
            drain_timeout_s = min(drain_timeout_s, _STDIO_DRAIN_TIMEOUT_S)
        engine = self.options.engine or LocalEngine(max_concurrency=_MAX_WAITING_TASKS, drain_timeout=drain_timeout_s)
        self._forget_memory()
        runs_tasks = self._is_worker or not self.options.workers_only
        worker = TaskWorker(
            self.store,
            engine,
            self._server,
            self._run,
            task_worker.DEFAULT_OPTIONS,
            self._create_start_limits(),
            searches=runs_tasks and bool(self._keeps_tasks()),
            runs_tasks=runs_tasks,
        )
        running = self._workers[loop] = RunningWorker(worker)
        task = running.task = loop.create_task(worker.serve(running.stop))
        task.add_done_callback(_log_failure)
        try:
            yield
        finally:
            running.stop.set()
            try:
                await self._stop_worker(task, running, drain_timeout_s)
            finally:
                del self._workers[loop]
                await self._close_store()

    async def _stop_worker(
        self, worker_task: "asyncio.Task[None]", running: RunningWorker, drain_timeout_s: float
    ) -> None:
        """Wait for running tasks for a limited time, and cancel the rest."""
        await asyncio.wait([worker_task, *running.runs], timeout=drain_timeout_s)
        for run in running.runs:
            run.cancel()
        await asyncio.wait([worker_task, *running.runs], timeout=_HAND_OVER_TIMEOUT_S)
        worker_task.cancel()
        await asyncio.wait([worker_task], timeout=_HAND_OVER_TIMEOUT_S)

    def _forget_memory(self) -> None:
        """Drop the store in memory if tasks must now survive the process. The next use of `store` then opens a file."""
        is_in_memory = self._opened_store is not None and not self._owns_store
        if self.options.store is None and is_in_memory and self._keeps_tasks() and not self._workers:
            self._opened_store = None

    async def _close_store(self) -> None:
        """Close the file or the connections that this extension opened.

        Tasks in memory stay until the server object is deleted.
        """
        if self._opened_store is not None and self._owns_store and not self._workers:
            await self._opened_store.close()


def open_task_store(store: str | Path, secret_keys: Sequence[str | bytes]) -> "SQLiteTaskStore | RedisTaskStore":
    """Open a store by its path or URL."""
    if is_redis_url(store):
        from dovetail.tasks.redis_task_store import RedisTaskStore

        return RedisTaskStore(str(store), secret_keys=secret_keys)
    return SQLiteTaskStore(store, secret_keys=secret_keys)


def get_owner(exchange: Exchange) -> str | None:
    """Return the principal that owns the caller's tasks, or None for an anonymous caller."""
    principal = exchange.caller.principal
    return None if principal is None else str(principal)


def _create_unknown_error() -> InvalidParams:
    return InvalidParams("Unknown task: it does not exist, has expired, or belongs to another caller")


def _log_unavailable(exc: TaskStoreUnavailable) -> InternalError:
    _unavailable_log.log("%s: %s", _STORE_UNAVAILABLE, exc)
    return InternalError(_STORE_UNAVAILABLE)


def _log_failure(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled() and (exc := task.exception()) is not None:
        log.error("the task worker has stopped because of an error", exc_info=exc)
