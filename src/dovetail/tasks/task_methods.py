"""The methods of the tasks extension, described once for servers, gateways and clients."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from dovetail.protocol.exchange import Exchange
from dovetail.protocol.interfaces.extension import Extension
from dovetail.tasks.task_messages import (
    TASKS_EXTENSION,
    CancelTaskParams,
    CancelTaskResult,
    DetailedTask,
    GetTaskParams,
    UpdateTaskParams,
    UpdateTaskResult,
)
from dovetail.wire.base import Params
from dovetail.wire.methods import Method
from dovetail.wire.revisions import STATELESS_REVISIONS


def _create_row(name: str, params: type[Params], result: Any) -> Method:
    return Method(
        name=name,
        params=params,
        result=result,
        since=STATELESS_REVISIONS[0],
        name_parameter="taskId",
        extension=TASKS_EXTENSION,
    )


GET_TASK: Final = _create_row("tasks/get", GetTaskParams, DetailedTask)
UPDATE_TASK: Final = _create_row("tasks/update", UpdateTaskParams, UpdateTaskResult)
CANCEL_TASK: Final = _create_row("tasks/cancel", CancelTaskParams, CancelTaskResult)


def add_task_methods(
    extension: Extension,
    get: Callable[[GetTaskParams, Exchange], Awaitable[DetailedTask]],
    update: Callable[[UpdateTaskParams, Exchange], Awaitable[UpdateTaskResult]],
    cancel: Callable[[CancelTaskParams, Exchange], Awaitable[CancelTaskResult]],
) -> None:
    """Add tasks/get, tasks/update and tasks/cancel to an extension. The functions handle the requests."""
    functions: list[tuple[Method, Callable[[Any, Exchange], Awaitable[Any]]]] = [
        (GET_TASK, get),
        (UPDATE_TASK, update),
        (CANCEL_TASK, cancel),
    ]
    for row, function in functions:
        extension.method(row.name, since=row.since, name_parameter=row.name_parameter)(function)
