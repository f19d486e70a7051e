"""Calls of tools that become tasks. It connects the tasks extension with the registry and the dispatcher of a server.

A worker runs the stored call with the dispatcher, so middleware, access rules and dependencies work as in the
foreground. Middleware wraps the request that creates a task, and then each run of the task.
"""

import copy
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from dovetail.errors import InternalError, MissingClientCapability
from dovetail.extensions.tasks.task_messages import TASKS_EXTENSION, CreateTaskResult, build_create_result
from dovetail.extensions.tasks.task_options import TaskConfig, TaskOptions
from dovetail.extensions.tasks.task_worker import TaskParked, TaskRun
from dovetail.extensions.tasks.tasks_extension import RunningWorker, TasksExtension, get_owner
from dovetail.protocol.exchange import IncomingExchange, check_result_size
from dovetail.protocol.limits import ServerLimits
from dovetail.protocol.request_state import RequestState
from dovetail.protocol.task_store import (
    TaskRecord,
    create_task_id,
    report_progress,
    restore_caller,
    save_caller,
    save_once_value,
    save_round,
)
from dovetail.server.invocation import Runner
from dovetail.server.registry import Registry
from dovetail.server.tool import Tool
from dovetail.wire.base import Result
from dovetail.wire.codec import decode, encode_canonical, to_plain
from dovetail.wire.input_required import InputRequest, InputRequiredResult
from dovetail.wire.meta import PROGRESS_TOKEN

_CALL_METHOD: Final = "tools/call"
_TRACE_PARENT: Final = "traceparent"
_REQUIRED_CAPABILITY: Final = {"extensions": {TASKS_EXTENSION: {}}}

HandleInBackground = Callable[[IncomingExchange], Awaitable[Result | bytes]]
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
                raise MissingClientCapability(_REQUIRED_CAPABILITY)
            return None
        worker = self._tasks.get_worker()
        if worker is None or self.config.after is not None:
            return None
        # A caller learns at once that its arguments are wrong.
        tool.signature.bind(arguments, None)
        round_state = open_round_state(exchange) if _continues_round(exchange) else None
        return await self._tasks.create(exchange, tool, self, arguments, round_state, worker)

    def get_runner(self, exchange: IncomingExchange, tool: Tool) -> Runner:
        """Return the runner of the tool. A task may have another timeout than a call in the foreground."""
        if exchange.task_call is None or self.config.timeout is None:
            return tool.runner
        if self._runner is None:
            self._runner = copy.copy(tool.runner)
            self._runner.timeout = self.config.timeout
        return self._runner

    def get_digest(self, tool: Tool) -> str:
        """Return a digest of everything on which the stored arguments and the result of a task depend."""
        if self._digest is None:
            definition = [tool.name, tool.version, tool.signature.schema, tool.output.schema]
            self._digest = hashlib.sha256(encode_canonical(definition)).hexdigest()
        return self._digest


class ToolTasks:
    """Turns calls of one server into tasks, and runs the stored calls."""

    def __init__(
        self,
        server_name: str,
        registry: Registry,
        options: TaskOptions,
        *,
        limits: ServerLimits,
        secret_keys: Sequence[str | bytes],
        keeps_tasks: Callable[[], bool],
        handle_in_background: HandleInBackground,
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
            drain_timeout=limits.drain_timeout,
        )
        self.options = options
        self.extension = self._tasks.extension
        self.get_worker = self._tasks.get_worker

    def is_declared(self, exchange: IncomingExchange) -> bool:
        """Return whether the client of a call accepts a task as its result."""
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
        await worker.worker.submit(record.id)
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
        trace_parent = meta.get(_TRACE_PARENT)
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
            traceparent=trace_parent if isinstance(trace_parent, str) else None,
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
        """Run the stored call of a task, and return its result as JSON."""
        record = run.record
        self._check_unchanged(record)
        params = {"name": record.tool, "arguments": record.arguments, "_meta": record.request_meta}
        exchange = IncomingExchange(
            0,
            _CALL_METHOD,
            params,
            record.request_meta,
            restore_caller(record),
            origin=record.owner,
            task_call=TaskToolCall(run),
        )
        return self._read_result(exchange, await self._handle_in_background(exchange))

    def _check_unchanged(self, record: TaskRecord) -> None:
        """Raise InternalError if the arguments of a task were made for another version of its tool."""
        tool = self._registry.tools.get(record.tool)
        if tool is None or tool.task is None:
            raise InternalError(f"The tool {record.tool} does not exist any more, or does not run as a task any more")
        if tool.task.get_digest(tool) != record.tool_digest:
            raise InternalError(f"The tool {record.tool} has changed since this task was created. Call it again")

    def _read_result(self, exchange: IncomingExchange, result: Result | bytes) -> dict[str, Any]:
        if isinstance(result, InputRequiredResult):
            raise TaskParked
        check_result_size(exchange, result, self._limits.max_result_bytes)
        return decode(result) if isinstance(result, bytes) else to_plain(result)


class TaskToolCall:
    """A call of a tool that runs as a task. The context of the call uses it to change the record of the task."""

    __slots__ = ("_run", "round_state")

    def __init__(self, run: TaskRun) -> None:
        record = run.record
        self._run = run
        self.round_state: RequestState | None = RequestState(
            input_responses=dict(record.input_responses),
            request_digests=dict(record.request_digests),
            once_values=dict(record.once_values),
            author_state=record.author_state,
        )

    @property
    def is_task(self) -> bool:
        return True

    @property
    def attempt(self) -> int:
        return self._run.record.attempt

    async def ask(self, requests: Mapping[str, InputRequest]) -> dict[str, Any] | None:
        try:
            return await self._run.ask(requests)
        except TaskParked:
            return None

    async def save_once_value(self, key: str, value: Any) -> None:
        await self._run.change(lambda record: save_once_value(record, key, value, time.time()))

    async def save_round(self, responses: Mapping[str, Any], author_state: str | None) -> None:
        keys = [self._run.keys[key] for key in responses]
        await self._run.change(lambda record: save_round(record, responses, author_state, keys, time.time()))

    async def report_progress(self, progress: float, total: float | None, message: str | None) -> None:
        text = message or (f"{progress:g}" if total is None else f"{progress:g} of {total:g}")
        await self._run.change(
            lambda record: report_progress(record, time.time(), message=text, progress=progress, total=total)
        )


def _is_direct(exchange: IncomingExchange) -> bool:
    """Return whether a client of a stateless version sent this request itself to this server."""
    return exchange.caller.is_stateless and not exchange.mount_path and exchange.parent is None


def _continues_round(exchange: IncomingExchange) -> bool:
    return "requestState" in exchange.params or "inputResponses" in exchange.params
