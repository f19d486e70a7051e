"""A server whose tasks a test controls, and a client that sends task requests. Both use only messages."""

import itertools
from typing import Any

from dovetail import Client, Server
from dovetail.errors import InvalidParams, MissingClientCapability
from dovetail.extensions import Extension
from dovetail.protocol.exchange import Exchange
from dovetail.tasks.task_messages import (
    TASKS_EXTENSION,
    CancelTaskParams,
    CancelTaskResult,
    CreateTaskResult,
    DetailedTask,
    GetTaskParams,
    UpdateTaskParams,
    UpdateTaskResult,
)
from dovetail.tasks.task_record import TaskError
from dovetail.types import ClientCapabilities
from dovetail.wire.input_required import InputRequest

CREATED_AT = "2026-01-01T00:00:00.000Z"


def create_task(id: str, status: Any = "working", **fields: Any) -> DetailedTask:
    """Return a task with the time fields that every task has."""
    return DetailedTask(
        task_id=id,
        status=status,
        created_at=CREATED_AT,
        last_updated_at=CREATED_AT,
        ttl_ms=60_000,
        poll_interval_ms=50,
        **fields,
    )


class TaskUpstream(Server):
    """A server with the tools `slow`, which may become a task, and `required`, which runs only as a task."""

    def __init__(self, name: str = "far", prefix: str = "secret-id") -> None:
        self.tasks: dict[str, DetailedTask] = {}
        self.cancelled: list[str] = []
        self.answers: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.capabilities_seen: list[ClientCapabilities] = []
        self._ids = (f"{prefix}-{number}" for number in itertools.count(1))
        self.extension = Extension(TASKS_EXTENSION, requires_client=True)
        self.extension.add_result_type("tools/call", "task", CreateTaskResult)
        self.extension.middleware(self._create)
        for method, function in (
            ("tasks/get", self._get),
            ("tasks/update", self._update),
            ("tasks/cancel", self._cancel),
        ):
            self.extension.method(method, since="2026-07-28", name_parameter="taskId")(function)
        super().__init__(name, extensions=[self.extension])
        self.tool(_slow, name="slow")
        self.tool(_slow, name="required")
        self.tool(_slow, name="plain", read_only=True)

    async def _create(self, exchange: Exchange, call_next: Any) -> Any:
        name = exchange.params.get("name")
        if exchange.method != "tools/call" or name == "plain":
            return await call_next(exchange)
        self.calls.append(exchange.params)
        self.capabilities_seen.append(exchange.caller.client_capabilities)
        if self.extension.get_client_settings(exchange) is None:
            if name == "required":
                raise MissingClientCapability({"extensions": {TASKS_EXTENSION: {}}})
            return await call_next(exchange)
        id = next(self._ids)
        self.tasks[id] = create_task(id)
        return CreateTaskResult(
            task_id=id,
            status="working",
            created_at=CREATED_AT,
            last_updated_at=CREATED_AT,
            ttl_ms=60_000,
            poll_interval_ms=50,
        )

    def _check(self, id: str) -> DetailedTask:
        if id not in self.tasks:
            raise InvalidParams("unknown task")
        return self.tasks[id]

    async def _get(self, params: GetTaskParams, exchange: Exchange) -> DetailedTask:
        return self._check(params.task_id)

    async def _update(self, params: UpdateTaskParams, exchange: Exchange) -> UpdateTaskResult:
        self._check(params.task_id)
        self.answers.append(params.input_responses)
        task = self.tasks[params.task_id]
        left = {key: value for key, value in (task.input_requests or {}).items() if key not in params.input_responses}
        self.tasks[params.task_id] = (
            create_task(params.task_id, "input_required", input_requests=left) if left else create_task(params.task_id)
        )
        return UpdateTaskResult()

    async def _cancel(self, params: CancelTaskParams, exchange: Exchange) -> CancelTaskResult:
        self._check(params.task_id)
        self.cancelled.append(params.task_id)
        self.tasks[params.task_id] = create_task(params.task_id, "cancelled")
        return CancelTaskResult()

    @property
    def last_id(self) -> str:
        """Return the ID of the newest task."""
        return [*self.tasks][-1]

    def complete(self, text: str = "done", id: str | None = None, **result: Any) -> None:
        """End a task with a result."""
        id = id or self.last_id
        self.tasks[id] = create_task(id, "completed", result={"content": [{"type": "text", "text": text}], **result})

    def fail(self, code: int, message: str) -> None:
        """End the newest task with an error."""
        self.tasks[self.last_id] = create_task(self.last_id, "failed", error=TaskError(code=code, message=message))

    def ask(self, **requests: InputRequest) -> None:
        """Add questions to the newest task."""
        self.tasks[self.last_id] = create_task(self.last_id, "input_required", input_requests=requests)


async def _slow(text: str = "") -> str:
    """Return a text."""
    return f"foreground {text}"


class TaskRequests:
    """Sends the requests of the tasks extension with a client, and returns messages as they are."""

    def __init__(self) -> None:
        self.extension = Extension(TASKS_EXTENSION)
        self._methods = {
            name: self.extension.method(f"tasks/{name}", since="2026-07-28", name_parameter="taskId")(function)
            for name, function in (("get", _get), ("update", _update), ("cancel", _cancel))
        }

    async def start(self, client: Client, tool: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call a tool, and return its result as JSON."""
        return await client.request("tools/call", {"name": tool, "arguments": arguments or {}})

    async def get(self, client: Client, id: str) -> DetailedTask:
        """Send tasks/get."""
        return await client.request(self._methods["get"], GetTaskParams(task_id=id))

    async def update(self, client: Client, id: str, **responses: Any) -> UpdateTaskResult:
        """Send tasks/update."""
        return await client.request(self._methods["update"], UpdateTaskParams(task_id=id, input_responses=responses))

    async def cancel(self, client: Client, id: str) -> CancelTaskResult:
        """Send tasks/cancel."""
        return await client.request(self._methods["cancel"], CancelTaskParams(task_id=id))


async def _get(params: GetTaskParams, exchange: Exchange) -> DetailedTask:
    raise NotImplementedError


async def _update(params: UpdateTaskParams, exchange: Exchange) -> UpdateTaskResult:
    raise NotImplementedError


async def _cancel(params: CancelTaskParams, exchange: Exchange) -> CancelTaskResult:
    raise NotImplementedError
