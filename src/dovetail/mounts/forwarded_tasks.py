"""Calls that a mounted client forwards, and that its server runs as tasks."""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from dovetail.errors import InternalError, InvalidResult, MCPError, MissingClientCapability, RemoteError, TaskCancelled
from dovetail.protocol.client_messages import get_required_capabilities
from dovetail.protocol.exchange import Caller
from dovetail.tasks.client_tasks import CallTimeout, ClientTasks
from dovetail.tasks.task_messages import (
    TASK_RESULT_TYPE,
    TASKS_EXTENSION,
    CreateTaskResult,
    DetailedTask,
    Task,
)
from dovetail.tasks.task_record import is_final
from dovetail.wire.base import Result, replace
from dovetail.wire.input_required import InputRequest
from dovetail.wire.lifecycle import ClientCapabilities
from dovetail.wire.raw_message import decode_body

AnswerRequests: TypeAlias = Callable[[Mapping[str, InputRequest]], Awaitable[dict[str, Any]]]
ReportProgress: TypeAlias = Callable[[float, float | None, str | None], Awaitable[None]]

_MAX_TASK_ID_CHARS: Final = 2048  # The ID is sent in an HTTP header.
_REPORT_INTERVAL_S: Final = 5.0  # Many hosts stop a call that is silent for 60 seconds.
# Searching for this pattern is faster than decoding each result. The pattern also matches escaped letters,
# because the result type may be written with them.
_OTHER_RESULT_TYPE: Final = re.compile(rb'"resultType"\s*+:\s*+"(?!complete"|input_required")|\\u00[4-7]')


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
    if _OTHER_RESULT_TYPE.search(raw) is None:
        return None
    label = "the result of tools/call"
    if decode_body(raw, Result, label).result_type != TASK_RESULT_TYPE:
        return None
    task = decode_body(raw, CreateTaskResult, label)
    if not task.task_id or len(task.task_id) > _MAX_TASK_ID_CHARS:
        raise InvalidResult(f"{label} has a task ID that is empty or longer than {_MAX_TASK_ID_CHARS} characters")
    return task


async def wait_for_task(
    tasks: ClientTasks, created: CreateTaskResult, answer: AnswerRequests, report: ReportProgress, timeout: float
) -> dict[str, Any]:
    """Wait until a task has ended, and return the result of the call as JSON. On failure, cancel the task.

    Report progress after each change, and every few seconds, so that the caller keeps waiting. Time that users need for
    their answers does not count toward the timeout.
    """
    limit, changed = CallTimeout(None, timeout), asyncio.Event()

    async def answer_in_time(requests: Mapping[str, InputRequest]) -> dict[str, Any]:
        with limit.pause():
            return await answer(requests)

    def handle_change(_: Task) -> None:
        limit.record_progress()
        changed.set()

    async def report_states() -> None:
        count = 0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REPORT_INTERVAL_S):
                    await changed.wait()
            changed.clear()
            count += 1
            await report(count, None, task.state.status_message)

    task = tasks.create_task(created, answer_in_time)
    reporter = asyncio.get_running_loop().create_task(report_states())
    try:
        async with limit:
            await tasks.wait(task, handle_change)
    except TaskCancelled:
        raise InternalError("The server cancelled the task") from None
    except (asyncio.CancelledError, MCPError):
        if not is_final(task.state.status):
            await tasks.cancel_abandoned(task)
        raise
    finally:
        reporter.cancel()
    # `wait` has checked the result. The original JSON is returned, because it may have fields unknown to dovetail.
    assert isinstance(task.state, DetailedTask)
    return task.state.result or {}
