"""`dovetail worker`: run the tasks of a server in a process without a transport."""

import sys
from functools import partial
from typing import Any, Final

import click

from dovetail.cli import error_report
from dovetail.cli.listener_options import cluster_option, log_level_option
from dovetail.cli.server_loader import load_server
from dovetail.cli.target_argument import TargetOptions
from dovetail.cli.task_stores import is_python_file
from dovetail.storage import MEMORY
from dovetail.tasks.task_record import TaskStoreUnavailable
from dovetail.terminal import output

_DEFAULT_DRAIN_TIMEOUT_S: Final = 25.0


@click.command("worker")
@click.argument("server_arg", metavar="SERVER", required=False)
@click.option("-m", "--module", help="Python module that contains the server.")
@cluster_option
@click.option(
    "--drain-timeout",
    type=click.FloatRange(0),
    default=_DEFAULT_DRAIN_TIMEOUT_S,
    show_default=True,
    help="Seconds that tasks may continue after SIGTERM.",
)
@log_level_option
def command(server_arg: str | None, module: str | None, drain_timeout: float) -> int:
    """Run tasks of a server without HTTP.

    Runs the tasks that other processes of the server have stored. Start one worker or more on each machine that should
    run tasks. All processes must use the same task store, for example a Redis server. SERVER is a Python file.

    On SIGTERM, takes no further tasks and waits for the running ones. Tasks that have not ended then start again in
    another worker if max_retries allows it. Otherwise they fail.

    \b
    dovetail worker server.py
    dovetail worker -m package.server --drain-timeout 120
    dovetail worker server.py --cluster redis://:password@10.0.0.5:6379
    """
    options = TargetOptions(args=(server_arg,) if server_arg else (), module=module)
    if (environment := options.describe_environment()) is not None:
        from dovetail.cli.script_environment import enter_environment

        enter_environment(environment)
    server = _load(server_arg, module)
    from dovetail.server.runners import run_in_process, serve_tasks
    from dovetail.server.server import prepare_task_worker

    try:
        prepared = prepare_task_worker(server, drain_timeout)
    except (ImportError, ValueError, OSError) as exc:
        raise click.UsageError(str(exc)) from None
    if prepared is None:
        raise click.UsageError(f"the server {server.name!r} has no tools that run as tasks. Add task=True to a tool")
    runnable, store = prepared
    store_name = getattr(store, "location", "its task store")
    if store_name == MEMORY:
        raise click.UsageError(
            f"the server {server.name!r} keeps its tasks in memory, so no other process can run them. Set "
            "TaskOptions(store=...) to a file or a Redis URL"
        )

    async def serve(watchdog: Any) -> None:
        await store.list_due(server.name, 0.0, 1)  # Report an unreachable store before the process starts.
        announce = partial(_announce, f"{server.name} runs tasks from {store_name}")
        await serve_tasks(runnable, drain_timeout=drain_timeout, announce=announce, watchdog=watchdog)

    try:
        run_in_process(serve)
    except TaskStoreUnavailable as exc:
        output.print_error(f"cannot use the tasks in {store_name}: {exc}")
        raise click.exceptions.Exit(error_report.EXIT_CONNECT) from None
    except Exception as exc:
        from dovetail.server.dispatch.lifespan import print_failure

        if print_failure(exc):
            raise click.exceptions.Exit(error_report.EXIT_CONNECT) from None
        raise
    return error_report.EXIT_OK


def _load(server_arg: str | None, module: str | None) -> Any:
    if server_arg is None and module is None:
        raise click.UsageError("missing argument: SERVER. Pass the Python file of a server")
    if server_arg is not None and module is not None:
        raise click.UsageError(f"unexpected argument: {server_arg}")
    if server_arg is not None and not is_python_file(server_arg):
        raise click.UsageError(f"SERVER must be a Python file, such as server.py or server.py:app, not {server_arg!r}")
    server = load_server(server_arg, module)
    if server is None:
        raise click.UsageError(f"no Server in {server_arg or module!r}")
    return server


def _announce(message: str) -> None:
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()
