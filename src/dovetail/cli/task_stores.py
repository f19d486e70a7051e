"""Find and open the task stores that a command shows. A command never creates a store."""

import contextlib
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast
from urllib.parse import unquote

import click

from dovetail.cli.server_loader import load_server, split_object_name
from dovetail.cli.tool_arguments import suggest_names
from dovetail.storage import MEMORY, get_data_dir
from dovetail.tasks.sqlite_task_store import SQLiteTaskStore, get_default_path
from dovetail.tasks.task_options import is_redis_url
from dovetail.tasks.task_record import TaskEncrypted, TaskRecord, TaskStatus, TaskStoreUnavailable
from dovetail.tasks.task_store import TaskStore
from dovetail.wire.base import Struct

SHORT_ID_CHARS: Final = 12  # In lists, an ID is shortened to this many characters.
_MAX_SUGGESTIONS: Final = 100  # Shell completion suggests at most this many tasks.

F = TypeVar("F", bound=Callable[..., Any])


class StoreOptions(Struct, frozen=True, kw_only=True):
    """The arguments and options of a command that opens a task store."""

    args: Sequence[str] = ()  # The positional arguments of the command, including the server.
    module: str | None = None
    store: str | None = None
    json: bool = False

    def split_server(self) -> tuple[str | None, list[str]]:
        """Return the name or the file of the server, and the remaining arguments.

        With --module or --store, the first argument is a server only if it is a Python file.
        """
        args = [*self.args]
        if not args or ((self.module or self.store) and not is_python_file(args[0])):
            return None, args
        return args[0], args[1:]


def store_options(*metavars: str) -> Callable[[F], F]:
    """Add the SERVER argument and the options of a task store to a command."""
    decorators = (
        click.argument("args", nargs=-1, metavar=" ".join(("[SERVER]", *metavars))),
        click.option("--store", metavar="FILE|URL", help="File or Redis server with the tasks."),
        click.option("-m", "--module", help="Python module that contains the server."),
        click.option("--json", is_flag=True, help="Print JSON."),
    )

    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def is_python_file(arg: str) -> bool:
    """Return whether an argument has the form `file.py` or `file.py:object`."""
    return split_object_name(arg)[0].endswith(".py")


class FoundTasks(NamedTuple):
    """The tasks of a store. If some tasks cannot be read, `problem` contains the reason."""

    records: list[TaskRecord]
    problem: str | None


class OperatorStore(TaskStore, Protocol):
    """A task store that can list its tasks."""

    @property
    def location(self) -> str: ...
    async def list_ids(
        self, *, prefix: str = "", statuses: Collection[TaskStatus] = (), limit: int = 100
    ) -> list[str]: ...


class TaskFile:
    """A task store, with the name of the store in messages."""

    def __init__(self, name: str, store: "OperatorStore", has_keys: bool) -> None:
        self.name = name
        self.store = store
        self._has_keys = has_keys  # whether the secret keys of the server are known

    async def list(self, limit: int, statuses: Sequence[TaskStatus] = ()) -> FoundTasks:
        """Return tasks, newest first."""
        records: list[TaskRecord] = []
        problem = None
        for id in await self.store.list_ids(statuses=statuses, limit=limit):
            try:
                record = await self.store.get(id)
            except TaskStoreUnavailable as exc:
                problem = self.explain(exc)
            else:
                records += [record] if record is not None else []
        return FoundTasks(records, problem)

    async def find(self, id_prefix: str) -> TaskRecord:
        """Return the task whose ID starts with `id_prefix`. Raise UsageError unless exactly one task matches."""
        ids = await self.store.list_ids(prefix=id_prefix, limit=2) if id_prefix else []
        if len(ids) > 1 and id_prefix not in ids:
            raise click.UsageError(f"several tasks have an ID that starts with {id_prefix!r}. Pass more characters")
        record = await self.get(id_prefix if id_prefix in ids else ids[0]) if ids else None
        if record is None:
            raise click.UsageError(f"unknown task {id_prefix!r} in {self.name}")
        return record

    async def get(self, id: str) -> TaskRecord | None:
        """Return a task, or None if it was deleted."""
        try:
            return await self.store.get(id)
        except TaskStoreUnavailable as exc:
            raise click.UsageError(self.explain(exc)) from None

    def explain(self, exc: TaskStoreUnavailable) -> str:
        """Return a message for the operator."""
        if isinstance(exc, TaskEncrypted) and self._has_keys:
            return f"tasks in {self.name} cannot be read with the secret keys of the server: {exc}"
        if isinstance(exc, TaskEncrypted):
            return (
                f"the tasks in {self.name} are encrypted. Pass the Python file of the server, which has the secret keys"
            )
        return f"cannot read a task in {self.name}: {exc}"


@contextlib.asynccontextmanager
async def open_task_file(options: StoreOptions) -> AsyncGenerator[tuple[TaskFile, list[str]]]:
    """Open the store of a server. Return the store and the remaining arguments."""
    server_arg, args = options.split_server()
    if server_arg is None and options.store is None and options.module is None:
        raise click.UsageError(
            "missing argument: SERVER. Pass the name or the Python file of a server, or --store FILE"
        )
    async with _open(_locate(options, server_arg)) as task_file:
        yield task_file, args


@contextlib.asynccontextmanager
async def open_task_files(options: StoreOptions) -> AsyncGenerator[list[TaskFile]]:
    """Open the store of a server, or the stores of all servers in the data directory."""
    server_arg, args = options.split_server()
    if args:
        raise click.UsageError(f"unexpected argument: {args[0]}")
    async with contextlib.AsyncExitStack() as stack:
        if server_arg is None and options.store is None and options.module is None:
            sources: list[_Source | OperatorStore] = [_Source(path) for path in _list_default_paths()]
        else:
            sources = [_locate(options, server_arg)]
        yield [await stack.enter_async_context(_open(source)) for source in sources]


async def list_known_ids(options: StoreOptions) -> dict[str, TaskRecord]:
    """Return the newest tasks for shell completion, as a dict with their IDs. This never runs the user's code."""
    server_arg, _ = options.split_server()
    if options.module is not None or (server_arg is not None and is_python_file(server_arg)):
        return {}
    async with open_task_file(options) as (task_file, _):
        return {record.id: record for record in (await task_file.list(_MAX_SUGGESTIONS)).records}


def list_server_names() -> list[str]:
    """Return the names of the servers that have a store in the data directory."""
    return [unquote(path.stem) for path in _list_default_paths()]


class _Source(NamedTuple):
    location: str | Path  # a file or the URL of a Redis server
    secret_keys: Sequence[str | bytes] = ()


def _locate(options: StoreOptions, server_arg: str | None) -> _Source | OperatorStore:
    if options.module is not None or (server_arg is not None and is_python_file(server_arg)):
        return _read_server(server_arg, options)
    if options.store is not None:
        return _Source(options.store)
    assert server_arg is not None
    if "://" in server_arg:
        raise click.UsageError(f"SERVER must be the name or the Python file of a server, not the URL {server_arg}")
    path = get_default_path(server_arg)
    if not path.is_file():
        raise click.UsageError(
            f"{path} does not exist{suggest_names(server_arg, list_server_names())}. If the server has another store, "
            "pass its Python file, or --store FILE"
        )
    return _Source(path)


def _read_server(server_arg: str | None, options: StoreOptions) -> _Source | OperatorStore:
    from dovetail.server.server import get_task_settings

    name = server_arg or options.module
    server = load_server(server_arg, options.module)
    if server is None:
        raise click.UsageError(f"no Server in {name!r}")
    settings = get_task_settings(server)
    if settings is None:
        raise click.UsageError(f"the server {server.name!r} in {name!r} has no tools that run as tasks")
    server_store, secret_keys = settings
    store = options.store or server_store or get_default_path(server.name)
    if isinstance(store, str | Path) and str(store) != MEMORY:
        return _Source(store, secret_keys)
    if not hasattr(store, "list_ids"):
        raise click.UsageError(f"the task store of the server {server.name!r} cannot list its tasks")
    return cast("OperatorStore", store)


def _list_default_paths() -> list[Path]:
    return sorted((get_data_dir() / "tasks").glob("*.sqlite"))


@contextlib.asynccontextmanager
async def _open(source: _Source | OperatorStore) -> AsyncGenerator[TaskFile]:
    if not isinstance(source, _Source):
        name, store, has_keys = "the store of the server", source, True
    else:
        store, has_keys = _open_source(source), bool(source.secret_keys)
        name = store.location
    task_file = TaskFile(name, store, has_keys)
    try:
        yield task_file
    except TaskStoreUnavailable as exc:
        raise click.UsageError(task_file.explain(exc)) from None
    finally:
        await store.close()


def _open_source(source: _Source) -> OperatorStore:
    if not is_redis_url(source.location):
        _check_file(Path(source.location))
        return SQLiteTaskStore(source.location, secret_keys=source.secret_keys)
    from dovetail.tasks.redis_task_store import RedisTaskStore

    try:
        return RedisTaskStore(str(source.location), secret_keys=source.secret_keys)
    except (ValueError, ImportError) as exc:
        raise click.UsageError(str(exc)) from None


def _check_file(path: Path) -> None:
    """Raise UsageError if a file does not exist or is empty, because the store would create its tables."""
    if not path.exists():
        raise click.UsageError(f"file not found: {str(path)!r}")
    if path.stat().st_size == 0:
        raise click.UsageError(f"{path} is not a task store of dovetail")
