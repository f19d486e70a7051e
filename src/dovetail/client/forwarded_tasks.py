"""Tasks of a server that a client forwards requests to, on behalf of the callers of another server.

The requests declare the capabilities of the caller and the tasks extension. Task IDs are those of the server.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from dovetail.client.request_sender import RequestOptions, RequestSender
from dovetail.errors import (
    InternalError,
    InvalidResult,
    MCPError,
    MissingClientCapability,
    RemoteError,
    RequestTimeout,
    TransportError,
)
from dovetail.extensions.tasks.task_messages import (
    TASK_RESULT_TYPE,
    TASKS_EXTENSION,
    CancelTaskParams,
    CancelTaskResult,
    CreateTaskResult,
    DetailedTask,
    GetTaskParams,
    Task,
    UpdateTaskParams,
    UpdateTaskResult,
)
from dovetail.protocol.client_messages import get_required_capabilities
from dovetail.protocol.exchange import Caller
from dovetail.protocol.task_store import is_final
from dovetail.wire.base import UNSET, Params, Result, replace
from dovetail.wire.input_required import InputRequest
from dovetail.wire.lifecycle import ClientCapabilities
from dovetail.wire.meta import CLIENT_CAPABILITIES
from dovetail.wire.methods import Method
from dovetail.wire.raw_message import decode_body
from dovetail.wire.revisions import STATELESS_REVISIONS

AnswerRequests: TypeAlias = Callable[[Mapping[str, InputRequest]], Awaitable[Mapping[str, Any]]]
ReportTask: TypeAlias = Callable[[Task], Awaitable[None]]

MAX_TASK_ID_CHARS: Final = 2048  # The ID is sent in an HTTP header.
_DEFAULT_POLL_S: Final = 1.0
_MIN_POLL_S: Final = 0.05
_MAX_POLL_S: Final = 60.0
_MAX_OUTAGE_S: Final = 30.0  # For this many seconds, a server may be unreachable while a caller waits for its task.
_MEMBER_BY_STATUS: Final = {"input_required": "input_requests", "completed": "result", "failed": "error"}


def _create_row(name: str, params: type[Params], result: type[Result]) -> Method:
    return Method(
        name=name,
        params=params,
        result=result,
        since=STATELESS_REVISIONS[0],
        name_parameter="taskId",
        extension=TASKS_EXTENSION,
    )


_GET: Final = _create_row("tasks/get", GetTaskParams, DetailedTask)
_UPDATE: Final = _create_row("tasks/update", UpdateTaskParams, UpdateTaskResult)
_CANCEL: Final = _create_row("tasks/cancel", CancelTaskParams, CancelTaskResult)


def declares_tasks(caller: Caller) -> bool:
    """Return whether a caller accepts a task as the result of a call."""
    extensions = caller.client_capabilities.extensions
    return caller.is_stateless and isinstance((extensions or {}).get(TASKS_EXTENSION), dict)


def add_tasks(capabilities: ClientCapabilities) -> ClientCapabilities:
    """Return a copy of the capabilities in which tasks are the only extension."""
    return replace(capabilities, extensions={TASKS_EXTENSION: {}})


def requires_tasks(error: MCPError) -> bool:
    """Return whether a server refused a call because the client did not declare the tasks extension."""
    if not isinstance(error, RemoteError) or error.code != MissingClientCapability.code:
        return False
    extensions = get_required_capabilities(error.data).get("extensions")
    return isinstance(extensions, dict) and TASKS_EXTENSION in extensions


def decode_created_task(raw: bytes) -> CreateTaskResult | None:
    """Decode the result of a call if the call became a task. Otherwise return None."""
    label = "the result of tools/call"
    if decode_body(raw, Result, label).result_type != TASK_RESULT_TYPE:
        return None
    task = decode_body(raw, CreateTaskResult, label)
    if not task.task_id or len(task.task_id) > MAX_TASK_ID_CHARS:
        raise InvalidResult(f"{label} has a task ID that is empty or longer than {MAX_TASK_ID_CHARS} characters")
    return task


def get_poll_interval(task: Task) -> float:
    """Return how many seconds to wait before the next request for a task."""
    seconds = _DEFAULT_POLL_S if task.poll_interval_ms is None else task.poll_interval_ms / 1000
    return min(max(seconds, _MIN_POLL_S), _MAX_POLL_S)


class ForwardedTasks:
    """Sends the task requests of one caller to a server."""

    def __init__(self, sender: RequestSender, caller: Caller) -> None:
        self._sender = sender
        # Each of these requests has the same effect if it is sent twice.
        meta = {CLIENT_CAPABILITIES: add_tasks(caller.client_capabilities)}
        self._options = RequestOptions(meta=meta, retry=True)

    async def get(self, task_id: str) -> DetailedTask:
        """Return the state of a task. Leave out members that do not belong to its status.

        Raises:
            InvalidResult: the member that belongs to the status is missing.
        """
        task: DetailedTask = await self._sender.send(_GET, {"taskId": task_id}, self._options)
        member = _MEMBER_BY_STATUS.get(task.status)
        if member is not None and getattr(task, member) is None:
            raise InvalidResult(f"the result of tasks/get has the status {task.status!r}, but no {member}")
        return replace(task, meta=None, **{other: None for other in _MEMBER_BY_STATUS.values() if other != member})

    async def update(self, task_id: str, responses: Mapping[str, Any]) -> None:
        """Send answers to the questions of a task."""
        await self._sender.send(_UPDATE, {"taskId": task_id, "inputResponses": dict(responses)}, self._options)

    async def cancel(self, task_id: str) -> None:
        """Ask the server to cancel a task."""
        await self._sender.send(_CANCEL, {"taskId": task_id}, self._options)

    async def wait(self, created: Task, answer: AnswerRequests, report: ReportTask, timeout: float) -> dict[str, Any]:
        """Wait until a task has ended, and return the result of the call. Report all states except the last one.

        Time that users need for their answers does not count toward the timeout.

        Raises:
            RemoteError: the task has failed.
            RequestTimeout: the task has not ended in time.
        """
        loop = asyncio.get_running_loop()
        deadline, interval = loop.time() + timeout, get_poll_interval(created)
        answered_keys: set[str] = set()
        while True:
            remaining = deadline - loop.time()
            if remaining <= 0:
                raise RequestTimeout(f"the task has not ended within {timeout:g} s")
            await asyncio.sleep(min(interval, remaining))
            task = await self._get_despite_outage(created.task_id)
            if is_final(task.status):
                return _get_result(task)
            await report(task)
            requests = {
                key: request for key, request in (task.input_requests or {}).items() if key not in answered_keys
            }
            if requests:
                asked_at = loop.time()
                await self.update(created.task_id, await answer(requests))
                deadline += loop.time() - asked_at
                answered_keys |= requests.keys()
            interval = get_poll_interval(task)

    async def _get_despite_outage(self, task_id: str) -> DetailedTask:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + _MAX_OUTAGE_S
        while True:
            try:
                return await self.get(task_id)
            except TransportError:
                if loop.time() > give_up_at:
                    raise
            await asyncio.sleep(_DEFAULT_POLL_S)


def _get_result(task: DetailedTask) -> dict[str, Any]:
    if task.error is not None:
        data = None if task.error.data is UNSET else task.error.data
        raise RemoteError(task.error.code, task.error.message, data)
    if task.result is None:
        raise InternalError("The server cancelled the task")
    return task.result
