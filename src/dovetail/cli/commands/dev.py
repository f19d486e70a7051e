"""`dovetail dev`: run a server and restart it when files change."""

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any, Final

import click

from dovetail.cli.command_runner import run_to_exit_code
from dovetail.cli.error_report import describe_listen_error
from dovetail.cli.listener_options import (
    listener_options,
    log_level_option,
    read_listener_options,
    reject_without_http,
)
from dovetail.cli.server_loader import split_object_name
from dovetail.cli.target_argument import (
    DOVETAIL_COMMAND,
    PROCESS_OPTIONS,
    ProcessSpec,
    TargetOptions,
    environment_options,
    get_target_url,
    locate_target,
    read_target_options,
    target_options,
)
from dovetail.protocol.redaction import mask_secrets, mask_text
from dovetail.terminal import output

_ARROWS: Final = {"server": "→", "client": "←"}
_MAX_INVALID_BYTES: Final = 4096  # Only this many bytes of an invalid line are printed.


@click.command("dev")
@target_options(connection=PROCESS_OPTIONS, session=())
@environment_options
@click.option("--http", is_flag=True, help="Serve over HTTP.")
@click.option("--port", type=int, default=8000, show_default=True, help="Port to listen on. 0 picks a free port.")
@click.option(
    "--reload-dir", "reload_dirs", multiple=True, type=click.Path(exists=True), help="Directory to watch. Repeatable."
)
@listener_options
@log_level_option
@click.option("-q", "--quiet", is_flag=True, help="Do not print messages.")
@click.pass_context
def command(
    ctx: click.Context,
    http: bool,
    port: int,
    reload_dirs: tuple[str, ...],
    allowed_hosts: tuple[str, ...],
    ssl_certfile: str | None,
    ssl_keyfile: str | None,
    quiet: bool,
    **params: Any,
) -> int:
    """Run a server and restart it when files change.

    The client stays connected. Over stdio, the client gets a notification that the lists have changed, keeps its
    subscriptions, and every message is printed on stderr. Secrets in the messages are masked. Configure this command in
    a host instead of the server.

    \b
    dovetail dev server.py
    dovetail dev server.py --http --port 8000
    dovetail dev --reload-dir src -- node server.js
    """
    from dovetail.server.reloader import SourceFiles, relay_stdio, supervise
    from dovetail.transports.stdio_server import isolate_streams

    options = read_target_options(ctx, **params)
    if not http:
        reject_without_http(ctx, ("port", "allowed_hosts", "ssl_certfile", "ssl_keyfile"))
    read_listener_options(allowed_hosts, ssl_certfile, ssl_keyfile)
    program, source_folder = _locate_program(options)
    argv, process_options = program.command, {"env": program.env, "cwd": program.cwd}
    files = SourceFiles([Path(path) for path in reload_dirs] or [source_folder])
    output.print_note(f"watching {len(files)} {'file' if len(files) == 1 else 'files'}")
    if not files:
        output.print_note("no file can cause a restart. Pass the directory of the source files with --reload-dir")
    if http:
        from dovetail.transports.http1.http_listener import bind_socket

        if argv[: len(DOVETAIL_COMMAND)] != [*DOVETAIL_COMMAND]:
            raise click.UsageError("--http requires a file or a module")
        try:
            listener = bind_socket("127.0.0.1", port)
        except OSError as exc:
            raise click.UsageError(describe_listen_error(exc)) from None
        server_args = ["--http", "--port", str(listener.getsockname()[1])]
        server_args += [arg for name in allowed_hosts for arg in ("--allowed-host", name)]
        for option, path in (("--ssl-certfile", ssl_certfile), ("--ssl-keyfile", ssl_keyfile)):
            server_args += [option, os.path.abspath(path)] if path is not None else []
        supervise(listener, [*argv, *server_args], files, **process_options)
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


def _locate_program(options: TargetOptions) -> tuple[ProcessSpec, Path]:
    target, _ = options.split_target()
    if isinstance(target, dict) or get_target_url(target) is not None:
        raise click.UsageError("`dovetail dev` requires a file, a module or a command")
    process_spec = locate_target(options, target)
    assert isinstance(process_spec, ProcessSpec)
    if options.command or options.module:
        return process_spec, Path(options.cwd or Path.cwd())
    file, _ = split_object_name(options.args[0])
    return process_spec, Path(file).resolve().parent


class MessagePrinter:
    """Prints MCP messages, one per line. Secrets are masked, because hosts save stderr in log files."""

    def __init__(self) -> None:
        # Maps the receiver and ID of each open request to the method and the sending time.
        self._pending_requests: dict[tuple[str, str], tuple[str, float]] = {}

    def print_message(self, receiver: str, data: bytes, headers: Any = ()) -> None:
        """Print one message, or each message of a batch."""
        messages = _parse_messages(data)
        if messages is None:
            start = data[:_MAX_INVALID_BYTES].decode("utf-8", "replace")
            output.print_note(output.escape_line(f"? {mask_text(start.rstrip())}"))
            return
        for message in messages:
            if message.get("method") is not None:
                self._print_request(receiver, message)
            else:
                self._print_response(receiver, message)

    def _print_request(self, receiver: str, message: dict[str, Any]) -> None:
        method, params = message["method"], message.get("params")
        if isinstance(params, dict):
            params = {name: value for name, value in params.items() if name != "_meta"}
        if "id" in message:
            self._pending_requests[receiver, json.dumps(message["id"])] = (method, time.perf_counter())
        elif method == "notifications/cancelled" and isinstance(params, dict):
            self._pending_requests.pop((receiver, json.dumps(params.get("requestId"))), None)
        text = f"{_ARROWS[receiver]} {method} {_format_value(params) if params else ''}"
        output.print_note(output.escape_line(text.rstrip()))

    def _print_response(self, receiver: str, message: dict[str, Any]) -> None:
        sender = "client" if receiver == "server" else "server"
        request = self._pending_requests.pop((sender, json.dumps(message.get("id"))), None)
        words = [_ARROWS[receiver]]
        if request is not None:
            method, started_at = request
            words += [method, f"{(time.perf_counter() - started_at) * 1000:.1f} ms"]
        body = message.get("error") or message.get("result")
        is_error = "error" in message or (isinstance(body, dict) and body.get("isError"))
        summary = output.escape_line(" ".join([*words, _format_value(body)]))
        click.echo(output.style(summary, err=True, fg="red" if is_error else None, dim=not is_error), err=True)


def _format_value(value: Any) -> str:
    return json.dumps(mask_secrets(value), ensure_ascii=False)


def _parse_messages(data: bytes) -> list[dict[str, Any]] | None:
    try:
        decoded = json.loads(data)
    except (ValueError, RecursionError):
        return None
    messages = decoded if isinstance(decoded, list) else [decoded]
    return messages if messages and all(isinstance(message, dict) for message in messages) else None
