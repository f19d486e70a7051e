"""The messages of the tasks extension, and functions that create them from a task record. This module does no I/O.

The extension exists only in stateless protocol versions. `ttlMs` is sent even if it is null.
"""

import datetime
from typing import Annotated, Any, Final

from msgspec import Meta

from dovetail.tasks.task_record import TaskError, TaskRecord, TaskStatus
from dovetail.tasks.task_rules import get_open_requests
from dovetail.wire.base import EmptyResult, Params, Result
from dovetail.wire.input_required import InputRequest
from dovetail.wire.lifecycle import TASKS_EXTENSION as TASKS_EXTENSION

TASK_RESULT_TYPE: Final = "task"  # the `resultType` of a call that became a task

Milliseconds = Annotated[int, Meta(gt=0)]


class Task(Result):
    """The state of a task, without its questions and its outcome."""

    task_id: str
    status: TaskStatus
    status_message: str | None = None
    created_at: str  # ISO 8601
    last_updated_at: str  # ISO 8601
    ttl_ms: Milliseconds | None  # The server keeps the task for this time after its creation. None for no limit.
    poll_interval_ms: Milliseconds | None = None


class CreateTaskResult(Task):
    """The result of a call that became a task."""


class DetailedTask(Task):
    """The state of a task, with its open questions, its result or its error. This is the result of tasks/get."""

    input_requests: dict[str, InputRequest] | None = None  # all open questions, if the status is "input_required"
    result: dict[str, Any] | None = None  # the result of the call, if the status is "completed"
    error: TaskError | None = None  # the error of the call, if the status is "failed"


class GetTaskParams(Params):
    """The parameters of tasks/get."""

    task_id: str


class UpdateTaskParams(Params):
    """The parameters of tasks/update. The server ignores answers to questions that are not open."""

    task_id: str
    input_responses: dict[str, Any]


class UpdateTaskResult(EmptyResult):
    """The empty result of tasks/update."""


class CancelTaskParams(Params):
    """The parameters of tasks/cancel."""

    task_id: str


class CancelTaskResult(EmptyResult):
    """The empty result of tasks/cancel."""


class TaskNotificationParams(Params):
    """The parameters of notifications/tasks, with the fields of `DetailedTask`."""

    task_id: str
    status: TaskStatus
    status_message: str | None = None
    created_at: str
    last_updated_at: str
    ttl_ms: Milliseconds | None
    poll_interval_ms: Milliseconds | None = None
    input_requests: dict[str, InputRequest] | None = None
    result: dict[str, Any] | None = None
    error: TaskError | None = None


def build_create_result(record: TaskRecord) -> CreateTaskResult:
    """Return the result of the call that created a task."""
    return CreateTaskResult(result_type=TASK_RESULT_TYPE, **_list_fields(record))


def build_detailed_task(record: TaskRecord) -> DetailedTask:
    """Return the result of tasks/get for a record."""
    return DetailedTask(**_list_fields(record), **_list_details(record))


def build_notification(record: TaskRecord) -> TaskNotificationParams:
    """Return the parameters of notifications/tasks. They have the same fields as the result of tasks/get."""
    return TaskNotificationParams(**_list_fields(record), **_list_details(record))


def _list_fields(record: TaskRecord) -> dict[str, Any]:
    ttl = None if record.expires_at is None else record.expires_at - record.created_at
    return {
        "task_id": record.id,
        "status": record.status,
        "status_message": record.status_message,
        "created_at": _format_time(record.created_at),
        "last_updated_at": _format_time(record.updated_at),
        "ttl_ms": _to_milliseconds(ttl),
        "poll_interval_ms": _to_milliseconds(record.poll_interval),
    }


def _list_details(record: TaskRecord) -> dict[str, Any]:
    match record.status:
        case "input_required":
            return {"input_requests": get_open_requests(record)}
        case "completed":
            # Some clients decode this result like a response to tools/call, which requires `resultType`.
            return {"result": {"resultType": "complete", **(record.result or {})}}
        case "failed":
            return {"error": record.error}
        case _:
            return {}


def _format_time(seconds: float) -> str:
    time = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _to_milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else max(1, round(seconds * 1000))
