"""`dovetail dev`: run a server and restart it when files change."""

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

import click

from dovetail.cli.command_runner import run_to_exit_code
from dovetail.cli.server_loader import has_object_name
from dovetail.cli.target_argument import (
    DOVETAIL_COMMAND,
    PROCESS_OPTIONS,
    ProcessSpec,
    TargetOptions,
    get_target_url,
    locate_target,
    read_target_options,
    target_options,
)
from dovetail.terminal import output


@click.command("dev")
@target_options(connection=PROCESS_OPTIONS, session=())
@click.option("--http", is_flag=True, help="Serve over HTTP.")
@click.option("--port", type=int, default=8000, show_default=True, help="Port to listen on. 0 picks a free port.")
@click.option(
    "--reload-dir", "reload_dirs", multiple=True, type=click.Path(exists=True), help="Directory to watch. Repeatable."
)
@click.option("-q", "--quiet", is_flag=True, help="Do not print messages.")
@click.pass_context
def command(ctx: click.Context, http: bool, port: int, reload_dirs: tuple[str, ...], quiet: bool, **params: Any) -> int:
    """Run a server and restart it when files change.

    The client stays connected. Over stdio, the client gets a notification that the lists have changed, keeps its
    subscriptions, and every message is printed on stderr. Configure this command in a host instead of the server.

    \b
    dovetail dev server.py
    dovetail dev server.py --http --port 8000
    dovetail dev --reload-dir src -- node server.js
    """
    from dovetail.server.reloader import SourceFiles, relay_stdio, supervise
    from dovetail.transports.stdio_server import isolate_streams

    options = read_target_options(ctx, **params)
    program, source_folder = _get_process_spec(options)
    argv, process_options = program.command, {"env": program.env, "cwd": program.cwd}
    files = SourceFiles([Path(path) for path in reload_dirs] or [source_folder])
    output.print_note(f"watching {len(files)} {'file' if len(files) == 1 else 'files'}")
    if http:
        from dovetail.transports.http_server.uvicorn_server import bind_socket

        if argv[: len(DOVETAIL_COMMAND)] != [*DOVETAIL_COMMAND]:
            raise click.UsageError("--http requires a file or a module")
        try:
            listener = bind_socket("127.0.0.1", port)
        except OSError as exc:
            raise click.UsageError(str(exc)) from None
        supervise(listener, [*argv, "--http", "--port", str(listener.getsockname()[1])], files, **process_options)
        return 0
    recorder = None if quiet else MessagePrinter().print_message
    with isolate_streams() as (source, sink), contextlib.suppress(KeyboardInterrupt):
        return run_to_exit_code(
            lambda: relay_stdio(
                os.dup(source), sink, argv, files, recorder, stderr=output.get_stderr_target(), **process_options
            ),
            False,
        )
    return 0


def _get_process_spec(options: TargetOptions) -> tuple[ProcessSpec, Path]:
    """Return the command that starts the server, and the directory to watch for changes."""
    target, extra_args = options.split_target()
    if extra_args:
        raise click.UsageError(f"unexpected argument: {extra_args[0]}")
    if isinstance(target, dict) or get_target_url(target) is not None:
        raise click.UsageError("`dovetail dev` requires a file, a module or a command")
    process_spec = locate_target(options, target)
    assert isinstance(process_spec, ProcessSpec)
    if options.command or options.module:
        return process_spec, Path(options.cwd or Path.cwd())
    file = options.args[0].rpartition(":")[0] if has_object_name(options.args[0]) else options.args[0]
    return process_spec, Path(file).resolve().parent


class MessagePrinter:
    """Prints MCP messages, one per line."""

    def __init__(self) -> None:
        self._pending_requests: dict[Any, tuple[str, float]] = {}

    def print_message(self, receiver: str, data: bytes, _: Any = ()) -> None:
        message = _parse_message(data)
        if message is None:
            output.print_note(f"? {data.decode('utf-8', 'replace')}")
            return
        arrow = "→" if receiver == "server" else "←"
        method, id = message.get("method"), json.dumps(message.get("id"))
        if method is not None:
            self._pending_requests[receiver, id] = (method, time.perf_counter())
            params = message.get("params")
            if isinstance(params, dict):
                params = {name: value for name, value in params.items() if name != "_meta"}
            output.print_note(
                output.escape_line(
                    f"{arrow} {method} {json.dumps(params, ensure_ascii=False) if params else ''}".rstrip()
                )
            )
            return
        request_method, started_at = self._pending_requests.pop(
            ("client" if receiver == "server" else "server", id), ("", 0.0)
        )
        duration_ms = (time.perf_counter() - started_at) * 1000
        body = message.get("error") or message.get("result")
        is_error = "error" in message or (isinstance(body, dict) and body.get("isError"))
        summary = output.escape_line(
            f"{arrow} {request_method} {duration_ms:.1f} ms {json.dumps(body, ensure_ascii=False)}"
        )
        click.echo(output.style(summary, err=True, fg="red" if is_error else None, dim=not is_error), err=True)


def _parse_message(data: bytes) -> dict[str, Any] | None:
    """Decode an MCP message. Return None if the data is invalid."""
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None
