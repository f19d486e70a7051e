"""`dovetail tasks`: list, show, watch and cancel the tasks in a task store."""

import asyncio
import shutil
import sys
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, get_args

import click

from dovetail.cli import error_report
from dovetail.cli.command_runner import LogPrinter, run_to_exit_code
from dovetail.cli.task_stores import (
    SHORT_ID_CHARS,
    StoreOptions,
    TaskFile,
    open_task_file,
    open_task_files,
    store_options,
)
from dovetail.protocol.redaction import mask_secrets, mask_text
from dovetail.tasks.task_record import TaskRecord, TaskStatus, is_final
from dovetail.tasks.task_rules import get_open_requests, has_valid_lease, request_cancel
from dovetail.tasks.task_store import change_task
from dovetail.terminal import output
from dovetail.terminal.style import has_cursor
from dovetail.wire.codec import to_plain

_STATUSES: Final[tuple[TaskStatus, ...]] = get_args(TaskStatus)
_OPEN_STATUSES: Final[tuple[TaskStatus, ...]] = tuple(status for status in _STATUSES if not is_final(status))
_WATCH_INTERVAL_S: Final = 0.2
_MAX_WATCHED: Final = 200
_HEADERS: Final = ("task", "tool", "status", "progress", "updated", "message")


@click.group("tasks")
def command() -> None:
    """List, show, watch and cancel tasks.

    These commands are for the operator of a server. They read the file in which the server stores its tasks. SERVER is
    the name of a server, or its Python file. ID is the start of a task ID, as `list` shows it.

    If a server has secret keys, its tasks are encrypted. Then pass its Python file.
    """


@command.command("list")
@store_options()
@click.option("--status", "statuses", multiple=True, type=click.Choice(_STATUSES), help="Status to list. Repeatable.")
@click.option(
    "-n", "--limit", type=click.IntRange(1), default=50, show_default=True, help="Maximum number of tasks per store."
)
def list_tasks(statuses: tuple[TaskStatus, ...], limit: int, **params: Any) -> int:
    """List tasks, newest first.

    Without SERVER, lists the tasks of all servers that use the data directory.

    \b
    dovetail tasks list
    dovetail tasks list server.py --status failed
    dovetail tasks list --store /var/lib/reports/tasks.sqlite
    """
    options = StoreOptions(**params)

    async def run() -> int:
        async with open_task_files(options) as task_files:
            found = [await task_file.list(limit, statuses) for task_file in task_files]
        records = [record for tasks in found for record in tasks.records]
        problems = [tasks.problem for tasks in found if tasks.problem is not None]
        if options.json:
            click.echo(output.format_json({"tasks": [*map(_describe, records)], "problems": problems}))
        else:
            rows = [(record.server, *_format_cells(record)) for record in records]
            if rows or not problems:
                click.echo(output.format_table(rows, ("server", *_HEADERS)) or "no tasks")
        for problem in problems:
            output.print_note(problem)
        return error_report.EXIT_USAGE if problems else error_report.EXIT_OK

    return _run(run, options)


@command.command("show")
@store_options("ID")
@click.option("--values", is_flag=True, help="Show arguments, answers and the result. Secrets are masked.")
def show_task(values: bool, **params: Any) -> int:
    """Show a task.

    Arguments, answers and results may be confidential, so they are shown only with --values.

    \b
    dovetail tasks show reports 3f9a
    dovetail tasks show server.py 3f9a --values --json
    """
    options = StoreOptions(**params)

    async def run() -> None:
        async with open_task_file(options) as (task_file, args):
            record = await task_file.find(_read_id(args))
        description = _describe(record) | (_describe_values(record) if values else {})
        click.echo(output.format_json(description) if options.json else _format_task(record, values))

    return _run(run, options)


@command.command("watch")
@store_options("[ID]")
def watch_tasks(**params: Any) -> int:
    """Show the progress of tasks as it changes.

    With ID, ends when the task ends. Exits with 5 if the task failed or was cancelled. Without ID, shows all tasks that
    have not ended. If stdout is not a terminal, prints one line per change. With --json, each line is an object.

    \b
    dovetail tasks watch reports
    dovetail tasks watch reports 3f9a
    """
    options = StoreOptions(**params)

    async def run() -> int:
        async with open_task_file(options) as (task_file, args):
            id = (await task_file.find(_read_id(args))).id if args else None
            if id is None:
                output.print_note("watching. Press Ctrl-C to stop")
            view = _choose_view(options.json)
            records: dict[str, TaskRecord] = {}
            async for record in _follow(task_file, id):
                records[record.id] = record
                if len(records) > _MAX_WATCHED:
                    del records[next(iter(records))]
                view.show(record, [*records.values()])
        return _get_exit_code(records.get(id) if id is not None else None)

    return _run(run, options)


@command.command("cancel")
@store_options("ID...")
def cancel_tasks(**params: Any) -> int:
    """Cancel tasks.

    If a worker runs the task, the worker stops its function. A task that has ended does not change.

    \b
    dovetail tasks cancel reports 3f9a
    """
    options = StoreOptions(**params)

    async def run() -> None:
        async with open_task_file(options) as (task_file, args):
            if not args:
                raise click.UsageError("missing argument: ID")
            found = [await task_file.find(id_prefix) for id_prefix in args]
            cancelled = [await _cancel(task_file, record) for record in found]
        if options.json:
            click.echo(output.format_json({"tasks": [*map(_describe, cancelled)]}))
        else:
            for before, after in zip(found, cancelled, strict=True):
                click.echo(f"{_shorten(after.id)}: {_format_cancel(before, after)}")

    return _run(run, options)


def _run(run: Any, options: StoreOptions) -> int:
    with LogPrinter(False):
        return run_to_exit_code(run, options.json)


def _read_id(args: Sequence[str]) -> str:
    if not args:
        raise click.UsageError("missing argument: ID")
    if len(args) > 1:
        raise click.UsageError(f"unexpected argument: {args[1]}")
    return args[0]


async def _follow(task_file: TaskFile, id: str | None) -> AsyncIterator[TaskRecord]:
    """Yield each task that has changed. If `id` is set, yield only this task until it has ended or is deleted."""
    versions: dict[str, int] = {}
    while True:
        if id is None:
            tasks = await task_file.list(_MAX_WATCHED, _OPEN_STATUSES)
            ids = dict.fromkeys([*versions, *reversed([record.id for record in tasks.records])])
        else:
            ids = {id: None}
        for watched_id in ids:
            record = await task_file.get(watched_id)
            if record is None:
                versions.pop(watched_id, None)
            elif versions.get(watched_id) != record.version:
                versions[watched_id] = record.version
                yield record
            if record is None or is_final(record.status):
                versions.pop(watched_id, None)
                if id is not None:
                    return
        await asyncio.sleep(_WATCH_INTERVAL_S)


class _LineView:
    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json

    def show(self, record: TaskRecord, records: Sequence[TaskRecord]) -> None:
        if self._as_json:
            click.echo(output.format_json_line(_describe(record)))
        else:
            click.echo("  ".join(output.escape_line(cell) for cell in _format_cells(record) if cell))
        sys.stdout.flush()


class _TableView:
    def __init__(self) -> None:
        self._drawn_rows = 0

    def show(self, record: TaskRecord, records: Sequence[TaskRecord]) -> None:
        size = shutil.get_terminal_size()
        table = output.format_table(map(_format_cells, records[-max(1, size.lines - 3) :]), _HEADERS)
        # In a narrow terminal, a task needs several lines. A display that is higher than the screen cannot be redrawn.
        rows = table.split("\n")[-max(1, size.lines - 1) :]
        start = f"\x1b[{self._drawn_rows}A\x1b[J" if self._drawn_rows else ""
        sys.stdout.write("\n".join([f"{start}{rows[0]}", *rows[1:], ""]))
        sys.stdout.flush()
        self._drawn_rows = len(rows)


def _choose_view(as_json: bool) -> _LineView | _TableView:
    return _TableView() if has_cursor() and not as_json else _LineView(as_json)


async def _cancel(task_file: TaskFile, record: TaskRecord) -> TaskRecord:
    changed = await change_task(task_file.store, record.id, lambda current: request_cancel(current, time.time()))
    if changed is None:
        raise click.UsageError(f"the task {_shorten(record.id)} was deleted")
    return changed


def _format_cancel(before: TaskRecord, after: TaskRecord) -> str:
    if not is_final(after.status):
        return "its worker cancels it"
    is_new = after.status == "cancelled" and before.status != "cancelled"
    return after.status if is_new else f"already {after.status}"


def _get_exit_code(record: TaskRecord | None) -> int:
    if record is None or (record.status == "completed" and not _is_error(record)):
        return error_report.EXIT_OK
    return error_report.EXIT_TOOL_ERROR


def _is_error(record: TaskRecord) -> bool:
    """Return whether the result of a task is a tool error."""
    return record.result is not None and record.result.get("isError") is True


def _format_status(record: TaskRecord) -> str:
    if record.is_cancel_requested and not is_final(record.status):
        return "cancelling"
    return f"{record.status} (error)" if _is_error(record) else record.status


def _shorten(id: str) -> str:
    return id[:SHORT_ID_CHARS]


def _describe(record: TaskRecord) -> dict[str, Any]:
    error = record.error
    return {
        "id": record.id,
        "server": record.server,
        "tool": record.tool,
        "owner": record.owner,
        "status": record.status,
        "is_error": _is_error(record),
        "status_message": None if record.status_message is None else mask_text(record.status_message),
        "progress": record.progress,
        "progress_total": record.progress_total,
        "attempt": record.attempt,
        "max_retries": record.max_retries,
        "open_requests": {key: request.method for key, request in get_open_requests(record).items()},
        "is_cancel_requested": record.is_cancel_requested,
        "is_running": has_valid_lease(record, time.time()),
        "error": None if error is None else {"code": error.code, "message": mask_text(error.message)},
        "created_at": record.created_at,
        "updated_at": record.updated_at,
        "expires_at": record.expires_at,
    }


def _describe_values(record: TaskRecord) -> dict[str, Any]:
    values: dict[str, Any] = {"arguments": record.arguments, "inputs": record.inputs, "result": record.result}
    if record.error is not None:
        values["error"] = record.error
    return mask_secrets(to_plain(values))


def _format_cells(record: TaskRecord) -> tuple[str, ...]:
    message = mask_text(record.status_message or "")
    if not message and record.status == "input_required":
        message = f"waits for {', '.join(request.method for request in get_open_requests(record).values())}"
    return (
        _shorten(record.id),
        record.tool,
        _format_status(record),
        _format_progress(record),
        _format_time(record.updated_at),
        message,
    )


def _format_progress(record: TaskRecord) -> str:
    if record.progress is None:
        return ""
    return f"{record.progress:g}" + (f" of {record.progress_total:g}" if record.progress_total is not None else "")


def _format_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _format_task(record: TaskRecord, has_values: bool) -> str:
    description = _describe(record)
    error = description["error"]
    fields = {
        "id": record.id,
        "server": record.server,
        "tool": record.tool,
        "owner": record.owner,
        "status": _format_status(record),
        "message": description["status_message"],
        "error": None if error is None else f"{error['code']} {error['message']}",
        "progress": _format_progress(record),
        "attempt": f"{record.attempt} of {record.max_retries + 1}",
        "waits for": ", ".join(f"{key} ({method})" for key, method in description["open_requests"].items()),
        "created": _format_time(record.created_at),
        "updated": _format_time(record.updated_at),
        "expires": "never" if record.expires_at is None else _format_time(record.expires_at),
    }
    lines = [f"{name}: {output.escape_full_line(value)}" for name, value in fields.items() if value]
    if has_values:
        for name, value in _describe_values(record).items():
            lines += [f"{name}: {output.format_json(value)}"] if value is not None and name != "error" else []
    return output.fit_to_stdout("\n".join(lines))
