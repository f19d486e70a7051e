"""Calls of tools that become tasks. This module connects the tasks extension with the registry and the dispatcher.

A worker runs the stored call with the dispatcher, so middleware, access rules and dependencies work as in the
foreground. Middleware wraps the request that creates a task, and then each run of the task.
"""

import asyncio
import copy
import hashlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from dovetail.errors import InternalError, MissingClientCapability, ProtocolError
from dovetail.log import log
from dovetail.protocol.exchange import IncomingExchange, check_result_size
from dovetail.protocol.limits import ServerLimits
from dovetail.protocol.middleware import Handler
from dovetail.protocol.principal import Principal
from dovetail.protocol.request_state import RequestState
from dovetail.server.dispatch.parts import Handlers, Position, ServerPart
from dovetail.server.input_requests import check_form_answer
from dovetail.server.invocation import Runner
from dovetail.server.items.registry import Registry
from dovetail.server.items.tool import Tool
from dovetail.server.thread_pool import ThreadPool
from dovetail.tasks.task_call import Heartbeat, TaskToolCall
from dovetail.tasks.task_messages import TASKS_EXTENSION, CreateTaskResult, build_create_result
from dovetail.tasks.task_options import TaskConfig, TaskOptions
from dovetail.tasks.task_record import TaskRecord, create_task_id, restore_caller, save_caller
from dovetail.tasks.task_slots import TaskSlots
from dovetail.tasks.task_store import TaskStore
from dovetail.tasks.task_worker import TaskParked, TaskRun
from dovetail.tasks.tasks_extension import RunningWorker, TasksExtension, get_owner
from dovetail.wire.base import Result, replace
from dovetail.wire.codec import decode, encode_canonical, to_plain
from dovetail.wire.input_required import InputRequiredResult
from dovetail.wire.meta import PROGRESS_TOKEN

_CALL_METHOD: Final = "tools/call"
_MAX_RUNNING_TASKS: Final = 1_000  # At most this many tasks run in one event loop.
_MAX_THREAD_QUEUE: Final = 1_000_000
_THREAD_QUEUE_TIMEOUT_S: Final = 365 * 86_400.0
# If this many calls have become tasks and still run, further calls stay in the foreground.
_MAX_SWITCHED_CALLS: Final = 1_000

HandleInBackground = Callable[[IncomingExchange], Coroutine[Any, Any, Result | bytes]]
OpenRoundState = Callable[[IncomingExchange], RequestState]


class ToolTask:
    """The option `task=` of one tool. It decides whether a call becomes a task."""

    __slots__ = ("_digest", "_runner", "_tasks", "config")

    def __init__(self, tasks: "ToolTasks", config: TaskConfig) -> None:
        self._tasks = tasks
        self.config = config
        self._digest: str | None = None
        self._runner: Runner | None = None

    async def start(
        self, exchange: IncomingExchange, tool: Tool, arguments: dict[str, Any], open_round_state: OpenRoundState
    ) -> CreateTaskResult | None:
        """Create a task for a call. Return None if the call runs in the foreground, or is a task already.

        Raises:
            MissingClientCapability: the tool requires a client that supports tasks.
        """
        if exchange.task_call is not None:
            return None
        if not self._tasks.is_declared(exchange):
            if self.config.required and _is_direct(exchange):
                raise MissingClientCapability({"extensions": {TASKS_EXTENSION: {}}})
            return None
        worker = self._tasks.get_worker()
        if worker is None or self.config.after is not None:
            return None
        # Check the arguments before the task is created, so that the caller gets an error at once.
        tool.signature.bind(arguments, None)
        round_state = open_round_state(exchange) if _continues_round(exchange) else None
        return await self._tasks.create(exchange, tool, self, arguments, round_state, worker)

    def get_runner(self, exchange: IncomingExchange, tool: Tool) -> Runner:
        """Return the runner of the tool. In a task, the runner may have a different timeout."""
        if exchange.task_call is None or self.config.timeout is None:
            return tool.runner
        if self._runner is None:
            self._runner = copy.copy(tool.runner)
            self._runner.timeout = self.config.timeout
        return self._runner

    def get_thread_pool(self, exchange: IncomingExchange) -> ThreadPool | None:
        """Return the thread pool for tasks. It is separate, so that long tasks do not use up the threads for calls."""
        task_call = exchange.task_call
        if task_call is None:
            return None
        return self._tasks.foreground_thread_pool if task_call.starts_in_foreground else self._tasks.thread_pool

    @contextmanager
    def report_alive(self, exchange: IncomingExchange) -> Generator[None]:
        """Send progress while the call runs in the foreground, so that the client keeps waiting."""
        if exchange.is_task or exchange.progress_token is None:
            yield
            return
        heartbeat = Heartbeat(exchange)
        heartbeat.start()
        try:
            yield
        finally:
            heartbeat.stop()

    def get_digest(self, tool: Tool) -> str:
        """Return a digest of the tool's name, version and schemas."""
        if self._digest is None:
            definition = [tool.name, tool.version, tool.signature.schema, tool.output.schema]
            self._digest = hashlib.sha256(encode_canonical(definition)).hexdigest()
        return self._digest


class ToolStartLimits:
    """Limits the running tasks of one event loop: in total, in threads, and for each tool."""

    def __init__(self, registry: Registry, max_threads: int) -> None:
        self._registry = registry
        self._running = TaskSlots(_MAX_RUNNING_TASKS)
        self._threads = TaskSlots(max_threads)
        self._by_tool: dict[str, TaskSlots] = {}

    def list_slots(self, record: TaskRecord) -> Sequence[TaskSlots]:
        """Return the slots that a task must have before it runs."""
        tool = self._registry.tools.get(record.tool)
        if tool is None:
            return ()
        runner = tool.runner
        shared_slots = self._running if runner.is_async or not runner.run_in_thread else self._threads
        if runner.max_concurrency is None:
            return (shared_slots,)
        own_slots = self._by_tool.setdefault(tool.name, TaskSlots(runner.max_concurrency))
        # A task gets the slot of its tool first. While it waits for this slot, it holds no slot that other tools need.
        return (own_slots, shared_slots)

    def close(self) -> None:
        """Refuse all slots from now on, because the server stops."""
        for slots in (self._running, self._threads, *self._by_tool.values()):
            slots.close()


class ToolTasks(ServerPart):
    """Turns calls of one server into tasks, and runs the stored calls."""

    position = Position.CALLS

    def __init__(
        self,
        server_name: str,
        registry: Registry,
        options: TaskOptions,
        *,
        limits: ServerLimits,
        secret_keys: Sequence[str | bytes],
        keeps_tasks: Callable[[], bool | None],
        check_access: Callable[[str, Principal | None], None],
        handle_in_background: HandleInBackground,
        create_shared_store: Callable[[], TaskStore | None] = lambda: None,
    ) -> None:
        self._server_name = server_name
        self._registry = registry
        self._limits = limits
        self._handle_in_background = handle_in_background
        self._tasks = TasksExtension(
            server_name,
            options,
            secret_keys=secret_keys,
            keeps_tasks=keeps_tasks,
            run=self._run,
            check_answer=check_form_answer,
            check_access=check_access,
            create_start_limits=lambda: ToolStartLimits(registry, limits.max_threads),
            # The server waits for running calls, and then for tasks. Both waits must fit into the shutdown timeout.
            drain_timeout=min(limits.drain_timeout, max(0.0, limits.shutdown_timeout - limits.drain_timeout - 1.0)),
            create_shared_store=create_shared_store,
        )
        self.options = options
        self.extension = self._tasks.extension
        self.get_worker = self._tasks.get_worker
        # If no thread becomes free, a normal call fails, but a task keeps waiting.
        # Calls that start in the foreground use another pool, so that they take no threads from tasks.
        pool_limits = replace(limits, max_thread_queue=_MAX_THREAD_QUEUE, thread_queue_timeout=_THREAD_QUEUE_TIMEOUT_S)
        self.thread_pool = ThreadPool(pool_limits)
        self.foreground_thread_pool = ThreadPool(pool_limits)
        self._switched_tools: tuple[str, ...] = ()  # the tools whose calls start in the foreground

    @property
    def store(self) -> TaskStore:
        """The task store of the server."""
        return self._tasks.store

    def become_worker(self, drain_timeout: float) -> None:
        """Run tasks in this process, even with `TaskOptions(workers_only=True)`."""
        self._tasks.become_worker(drain_timeout)

    def create_support(self, config: TaskConfig) -> ToolTask:
        """Return the object that turns calls of one tool into tasks."""
        return ToolTask(self, config)

    def add_switched_tool(self, name: str) -> bool:
        """Add a tool whose calls start in the foreground. Return whether it is the first one."""
        is_first = not self._switched_tools
        if name not in self._switched_tools:
            self._switched_tools = (*self._switched_tools, name)
        return is_first

    def rewrite(self, handlers: Handlers) -> Handlers:
        """Return handlers that start the calls of some tools in the foreground.

        Only a client can receive a task, so this does not apply to calls of functions and mounting servers.
        """
        call_tool = handlers["tools/call"]

        def handle_call(exchange: IncomingExchange) -> Awaitable[Result | bytes]:
            is_switched = (
                exchange.params.get("name") in self._switched_tools
                and exchange.task_call is None
                and exchange.parent is None
                and not exchange.is_forwarded
            )
            return self._call(exchange, call_tool) if is_switched else call_tool(exchange)

        return {**handlers, "tools/call": handle_call}

    def is_declared(self, exchange: IncomingExchange) -> bool:
        """Return whether the client accepts a task as the result of a call."""
        return exchange.caller.is_stateless and self.extension.get_client_settings(exchange) is not None

    async def create(
        self,
        exchange: IncomingExchange,
        tool: Tool,
        tool_task: ToolTask,
        arguments: dict[str, Any],
        round_state: RequestState | None,
        worker: RunningWorker,
    ) -> CreateTaskResult:
        """Store a call, and send it to a worker."""
        record = self._build_record(exchange, tool, tool_task, arguments, round_state)
        await self._tasks.create(record)
        try:
            await worker.worker.submit(record.id)
        except asyncio.CancelledError:
            await asyncio.shield(self._tasks.discard(record.id))
            raise
        return build_create_result(record)

    async def _call(self, exchange: IncomingExchange, handler: Handler) -> Result | bytes:
        """Start a call in the foreground. If it takes longer than `TaskConfig.after`, turn it into a task."""
        tool, worker = self._registry.tools.get(exchange.params["name"]), self.get_worker()
        task_support = None if tool is None else tool.task
        if (
            tool is None
            or not isinstance(task_support, ToolTask)
            or task_support.config.after is None
            or worker is None
            or not self.is_declared(exchange)
        ):
            return await handler(exchange)
        task_call = TaskToolCall()
        detached = exchange.create_detached(task_call)
        running_call = asyncio.get_running_loop().create_task(self._handle_in_background(detached))
        detached.task = running_call
        try:
            await asyncio.wait([running_call], timeout=task_support.config.after)
            if not running_call.done() and len(worker.runs) < _MAX_SWITCHED_CALLS:
                created_task = await self._switch(detached, running_call, task_call, tool, task_support, worker)
                if created_task is not None:
                    return created_task
            return await running_call
        except asyncio.CancelledError:
            # The caller has cancelled the call, or the call took too long. Stop the function with this reason.
            detached.end(exchange.verdict or "cancelled")
            await asyncio.gather(running_call, return_exceptions=True)
            raise

    async def _switch(
        self,
        exchange: IncomingExchange,
        running_call: "asyncio.Task[Result | bytes]",
        task_call: TaskToolCall,
        tool: Tool,
        tool_task: ToolTask,
        worker: RunningWorker,
    ) -> CreateTaskResult | None:
        """Turn a running call into a task of this process. Return None if the task cannot be stored."""
        record = replace(
            self._build_record(
                exchange, tool, tool_task, exchange.params.get("arguments") or {}, task_call.round_state
            ),
            phase="running",
            attempt=1,
            lease=self._tasks.create_lease(worker.worker),
        )
        try:
            await self._tasks.create(record)
        except ProtocolError as exc:
            log.warning("a call of %s stays in the foreground: %s", tool.name, exc)
            return None

        async def continue_call(run: TaskRun) -> dict[str, Any]:
            try:
                await task_call.become_task(run)
                return self._read_result(exchange, await running_call)
            finally:
                running_call.cancel()
                task_call.close()

        worker.continue_call(record, continue_call)
        return build_create_result(record)

    def _build_record(
        self,
        exchange: IncomingExchange,
        tool: Tool,
        tool_task: ToolTask,
        arguments: dict[str, Any],
        round_state: RequestState | None,
    ) -> TaskRecord:
        options, config, now = self._tasks.options, tool_task.config, time.time()
        ttl = config.ttl or options.ttl
        meta = {name: value for name, value in exchange.meta.items() if name != PROGRESS_TOKEN}
        state = round_state or RequestState(input_responses={}, request_digests={}, once_values={})
        return TaskRecord(
            id=create_task_id(),
            server=self._server_name,
            owner=get_owner(exchange),
            caller=save_caller(exchange.caller),
            tool=tool.name,
            tool_digest=tool_task.get_digest(tool),
            arguments=arguments,
            request_meta=meta,
            created_at=now,
            updated_at=now,
            expires_at=now + ttl,
            retention=ttl,
            poll_interval=options.poll_interval,
            once_values=dict(state.once_values),
            input_responses=dict(state.input_responses),
            request_digests=dict(state.request_digests),
            author_state=state.author_state,
            max_retries=config.max_retries,
        )

    async def _run(self, run: TaskRun) -> dict[str, Any]:
        record = run.record
        self._check_unchanged(record)
        params = {"name": record.tool, "arguments": record.arguments, "_meta": record.request_meta}
        exchange = IncomingExchange(
            0,
            _CALL_METHOD,
            params,
            record.request_meta,
            restore_caller(record),
            task_call=(task_call := TaskToolCall(run)),
        )
        try:
            return self._read_result(exchange, await self._handle_in_background(exchange))
        finally:
            task_call.close()

    def _check_unchanged(self, record: TaskRecord) -> None:
        """Raise InternalError if the tool has changed since the task was created."""
        tool = self._registry.tools.get(record.tool)
        if tool is None or tool.task is None:
            raise InternalError(f"The tool {record.tool} no longer exists or no longer runs as a task")
        if tool.task.get_digest(tool) != record.tool_digest:
            raise InternalError(f"The tool {record.tool} has changed since this task was created. Call it again")

    def _read_result(self, exchange: IncomingExchange, result: Result | bytes) -> dict[str, Any]:
        if isinstance(result, InputRequiredResult):
            raise TaskParked
        check_result_size(exchange, result, self._limits.max_result_bytes)
        return decode(result) if isinstance(result, bytes) else to_plain(result)


def _is_direct(exchange: IncomingExchange) -> bool:
    """Return whether this request comes from a stateless client, and not through another server."""
    return exchange.caller.is_stateless and not exchange.is_forwarded and exchange.parent is None


def _continues_round(exchange: IncomingExchange) -> bool:
    return "requestState" in exchange.params or "inputResponses" in exchange.params
