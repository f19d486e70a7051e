"""`dovetail tap`: record traffic between a host and a server."""

import asyncio
import contextlib
import signal
from typing import Any

import click

from dovetail.cli.command_runner import run_to_exit_code
from dovetail.cli.error_report import describe_listen_error
from dovetail.cli.target_argument import (
    EndpointSpec,
    ProcessSpec,
    TargetOptions,
    locate_target,
    read_target_options,
    target_options,
)
from dovetail.protocol.interfaces.message_tap import Recorder
from dovetail.protocol.redaction import strip_url
from dovetail.terminal import output as text


@click.command("tap")
@target_options(session=())
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), required=True, help="Recording file. Appends if it exists."
)
@click.option("--port", type=int, default=0, show_default=True, help="Port to listen on. 0 picks a free port.")
@click.pass_context
def command(ctx: click.Context, output: str, port: int, **params: Any) -> int:
    """Record traffic between a host and a server.

    Configure this command in the host instead of the server. The command forwards and records every message, with
    secrets masked. A command target is served over stdio, a URL target on a local port.

    \b
    dovetail tap -o time.jsonl -- uvx mcp-server-time
    dovetail tap https://example.com/mcp -o remote.jsonl --port 8100
    """
    from dovetail.recording.trace import RecordingWriter

    options = read_target_options(ctx, **params)
    target, _ = options.split_target()
    location = locate_target(options, target)
    try:
        recording = RecordingWriter(
            output, location.url if isinstance(location, EndpointSpec) else (options.args or location.command)[0]
        )
    except OSError as exc:
        raise click.UsageError(exc.strerror or str(exc)) from None
    if isinstance(location, EndpointSpec):
        return _proxy_url(location, options, recording.record, port)
    return _proxy_command(location, options, recording.record)


def _proxy_command(process_spec: ProcessSpec, target_options: TargetOptions, recorder: Recorder) -> int:
    from dovetail.recording.recording_proxy import proxy_streams
    from dovetail.transports.stdio_server import isolate_streams

    argv, options = process_spec.command, {"env": process_spec.env, "inherit": "all", "cwd": process_spec.cwd}
    options["stderr"] = text.get_stderr_target()
    with isolate_streams() as (source, sink):

        async def run() -> int:
            current_task = asyncio.current_task()
            assert current_task is not None
            with contextlib.suppress(NotImplementedError):
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, current_task.cancel)
            try:
                return await proxy_streams(argv, source, sink, recorder, **options)
            except asyncio.CancelledError:
                return 0

        return run_to_exit_code(run, target_options.json)


def _proxy_url(endpoint: EndpointSpec, target_options: TargetOptions, recorder: Recorder, port: int) -> int:
    from urllib.parse import urlsplit

    from dovetail.protocol.limits import ServerLimits
    from dovetail.recording.recording_proxy import RecordingProxy
    from dovetail.transports.http1.http_listener import HTTPServer, bind_socket

    url, headers = endpoint.url, [(name.lower().encode(), value.encode()) for name, value in endpoint.headers.items()]
    try:
        listener = bind_socket("127.0.0.1", port)
    except OSError as exc:
        raise click.UsageError(describe_listen_error(exc)) from None
    local_url = f"http://127.0.0.1:{listener.getsockname()[1]}{urlsplit(url).path}"
    text.print_note(f"{strip_url(url)} is at {local_url}")

    async def run() -> None:
        application = RecordingProxy(url, recorder, headers)
        http_server, stop = HTTPServer(application, ServerLimits(drain_timeout=0.0)), asyncio.Event()
        for signum in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(NotImplementedError):
                asyncio.get_running_loop().add_signal_handler(signum, stop.set)
        await http_server.start(listener)
        try:
            await stop.wait()
        finally:
            await http_server.stop(application.close)

    return run_to_exit_code(run, target_options.json)
