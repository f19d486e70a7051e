"""The options of tasks: `TaskConfig` for one tool, and `TaskOptions` for a server."""

import math
from pathlib import Path
from typing import Any

from dovetail.error_context import check_type, describe_value
from dovetail.tasks.task_store import TaskEngine, TaskStore
from dovetail.wire.base import Struct


class TaskConfig(Struct, frozen=True, kw_only=True):
    """How calls of a tool become tasks: `@app.tool(task=TaskConfig(...))`. Times are in seconds."""

    # A call that takes longer than this becomes a task. A shorter call returns its result.
    # If None, every call becomes a task at once.
    after: float | None = None
    # After the task has ended, clients can read its result for this time. Defaults to `TaskOptions.ttl`.
    ttl: float | None = None
    # If a worker is lost, the function may start again this many times. Set it only if the tool may run twice.
    max_retries: int = 0
    # The maximum time of one run. Waiting for answers does not count. Defaults to the `timeout=` of the tool.
    timeout: float | None = None
    # If True, the tool refuses clients of protocol version 2026-07 that do not support tasks.
    # If False, the tool runs in the foreground for clients that do not support tasks.
    required: bool = False

    def __post_init__(self) -> None:
        _check_seconds("after", self.after, allow_zero=True)
        _check_seconds("ttl", self.ttl)
        _check_seconds("timeout", self.timeout)
        _check_count("max_retries", self.max_retries, 0)
        check_type("required", self.required, bool, "True or False")


class TaskOptions(Struct, frozen=True, kw_only=True):
    """The options for all tasks of a server: `Server(tasks=TaskOptions(...))`. Each option has a default."""

    # A task store, the URL of a Redis server, the path of a SQLite file, or ":memory:" to store nothing on disk.
    # Each store needs its own file.
    # By default, a server over stdio keeps its tasks in memory.
    # An HTTP server uses a SQLite file in the user's data directory. Each server name has its own file.
    # A server with `cluster="redis://..."` uses the same Redis server.
    store: TaskStore | str | Path | None = None
    engine: TaskEngine | None = None  # Carries tasks to workers. By default, each process runs its own tasks.
    workers_only: bool = False  # Run tasks only in the processes of `dovetail worker`, not in the server.
    ttl: float = 3600.0  # Clients can read the result of a task for this many seconds after its end.
    poll_interval: float = 1.0  # Clients should wait this many seconds between two requests about a task.
    max_tasks: int = 100_000  # The maximum number of tasks in the store. Further calls get the error 429.
    max_tasks_per_principal: int = 1_000  # The maximum number of unfinished tasks of one principal.

    def __post_init__(self) -> None:
        _check_seconds("ttl", self.ttl)
        _check_seconds("poll_interval", self.poll_interval)
        _check_count("max_tasks", self.max_tasks, 1)
        _check_count("max_tasks_per_principal", self.max_tasks_per_principal, 1)
        if self.store is not None and not isinstance(self.store, str | Path) and not hasattr(self.store, "claim"):
            raise TypeError(
                f"store must be a TaskStore, a Redis URL or the path of a file, not {describe_value(self.store)}"
            )
        if is_redis_url(self.store):
            from dovetail.cluster.redis.redis_connection import parse_redis_url

            parse_redis_url(str(self.store))
        check_type("workers_only", self.workers_only, bool, "True or False")
        if self.engine is not None and not hasattr(self.engine, "submit"):
            raise TypeError(f"engine must be a TaskEngine, not {describe_value(self.engine)}")

    def __repr__(self) -> str:
        """Return the options without the password of a Redis URL."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        if is_redis_url(self.store):
            from dovetail.cluster.redis.redis_connection import parse_redis_url

            values["store"] = str(parse_redis_url(str(self.store)))
        return f"TaskOptions({', '.join(f'{name}={value!r}' for name, value in values.items())})"


def is_redis_url(store: object) -> bool:
    """Return whether a store is the URL of a Redis server, and not the path of a file."""
    return isinstance(store, str) and "://" in store


def read_task_option(task: Any) -> TaskConfig:
    """Return the value of `task=` as a TaskConfig. Raise TypeError if it is not valid."""
    match task:
        case True:
            return TaskConfig()
        case "required":
            return TaskConfig(required=True)
        case TaskConfig():
            return task
        case _:
            raise TypeError(f"task= must be True, False, 'required' or a TaskConfig(...), not {describe_value(task)}")


def _check_seconds(name: str, value: Any, *, allow_zero: bool = False) -> None:
    if value is None:
        return
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number of seconds, not {describe_value(value)}")
    if not math.isfinite(value) or value < 0 or (value == 0 and not allow_zero):
        raise ValueError(f"{name} must be a {'' if allow_zero else 'positive '}number of seconds, not {value!r}")


def _check_count(name: str, value: Any, minimum: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, not {describe_value(value)}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, not {value}")
