"""The field `taskIds` of a subscription filter. Servers and gateways use this module with different functions."""

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias

from dovetail.errors import InsufficientScope, InvalidParams
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.interfaces.extension import Extension, ExtensionSubscription
from dovetail.tasks.task_messages import TaskNotificationParams
from dovetail.wire.base import Params

TASK_IDS_FIELD: Final = "taskIds"
TASK_NOTIFICATION: Final = "notifications/tasks"

_MAX_IDS: Final = 1000
MAX_ID_CHARS: Final = 6 * 1024  # The ID must fit into an HTTP header of 8 KiB. A gateway encrypts IDs into long ones.
_MAX_TOTAL_CHARS: Final = 256 * 1024

# Finds a task of the caller. Raises InvalidParams or InsufficientScope if the caller may not read the task.
FindTask: TypeAlias = Callable[[str, Exchange], Awaitable[object]]
# Yields the present state of each task, and then each new state.
WatchTasks: TypeAlias = Callable[[Sequence[str], Exchange], AsyncGenerator[TaskNotificationParams, None]]


def add_task_subscription(extension: Extension, find: FindTask, watch: WatchTasks) -> None:
    """Let callers subscribe to their own tasks with `taskIds` in `subscriptions/listen`."""

    async def subscribe(requested: Any, exchange: Exchange) -> ExtensionSubscription:
        ids: list[str] = []
        for id in _read_ids(requested):
            with contextlib.suppress(InvalidParams, InsufficientScope):
                await find(id, exchange)
                ids.append(id)
        return ExtensionSubscription(accepted=[*ids], notifications=_convert(watch(ids, exchange)))

    extension.subscription(TASK_IDS_FIELD)(subscribe)


async def _convert(tasks: AsyncGenerator[TaskNotificationParams, None]) -> AsyncGenerator[tuple[str, Params], None]:
    try:
        async for task in tasks:
            yield TASK_NOTIFICATION, task
    finally:
        await tasks.aclose()


def _read_ids(requested: Any) -> list[str]:
    field = f"notifications.{TASK_IDS_FIELD}"
    if not isinstance(requested, list) or not all(isinstance(id, str) for id in requested):
        raise InvalidParams(f"Invalid params: {field} must be a list of strings", {"field": field})
    ids: list[str] = list(dict.fromkeys(requested))
    if len(ids) > _MAX_IDS or sum(map(len, ids)) > _MAX_TOTAL_CHARS or any(len(id) > MAX_ID_CHARS for id in ids):
        limits = f"{_MAX_IDS} IDs and {_MAX_TOTAL_CHARS} characters, with {MAX_ID_CHARS} characters in one ID"
        raise InvalidParams(f"Invalid params: {field} can have at most {limits}", {"field": field})
    return ids
