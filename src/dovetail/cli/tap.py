"""`dovetail tap`: sit between a real host and a server, and record what they say."""

import asyncio
import contextlib
import signal
from typing import Any

import click

from dovetail.cli import text
from dovetail.cli.speaking import finished
from dovetail.cli.targets import Address, Asked, Program, asked, options, reached
from dovetail.protocol.recording import Tap


@click.command("tap")
@options(talk=())
@click.option("-o", "--output", type=click.Path(dir_okay=False), required=True, help="The file; it is added to.")
@click.option(
    "--port", type=int, default=0, show_default=True, help="Where to stand before a URL; 0 takes a free port."
)
@click.pass_context
def command(ctx: click.Context, output: str, port: int, **given: Any) -> int:
    """Sit between a host and a server and record every message, with its time; secrets are masked.

    Put it into the host's configuration in place of the server: before a command it speaks over stdio and passes every
    byte on; before a URL it listens on this machine.

    \b
    dovetail tap -o time.jsonl -- uvx mcp-server-time
    dovetail tap https://example.com/mcp -o far.jsonl --port 8100
    """
    from dovetail.transports.tracing import Trace

    line = asked(ctx, **given)
    target, words = line.split()
    if words:
        raise click.UsageError(f"{words[0]!r} is too much")
    found = reached(line, target)
    try:
        trace = Trace(output, found.url if isinstance(found, Address) else (line.words or found.command)[0])
    except OSError as exc:
        raise click.UsageError(exc.strerror or str(exc)) from None
    if isinstance(found, Address):
        return _before_url(found, line, trace.tap, port)
    return _before_command(found, line, trace.tap)


def _before_command(program: Program, line: Asked, tap: Tap) -> int:
    from dovetail.transports.passing import pass_streams
    from dovetail.transports.stdio import private_streams

    command, options = program.command, {"env": program.env, "inherit": "all", "cwd": program.cwd}
    options["stderr"] = text.overheard()
    with private_streams() as (source, sink):

        async def run() -> int:
            this = asyncio.current_task()
            assert this is not None
            with contextlib.suppress(NotImplementedError):
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
            try:
                return await pass_streams(command, source, sink, tap, **options)
            except asyncio.CancelledError:
                return 0

        return finished(run, line.json)


def _before_url(found: Address, line: Asked, tap: Tap, port: int) -> int:
    from urllib.parse import urlsplit

    import uvicorn

    from dovetail.transports.passing import Passing
    from dovetail.transports.web import bound_socket

    url, headers = found.url, [(name.lower().encode(), value.encode()) for name, value in found.headers.items()]
    try:
        listener = bound_socket("127.0.0.1", port)
    except OSError as exc:
        raise click.UsageError(str(exc)) from None
    here = f"http://127.0.0.1:{listener.getsockname()[1]}{urlsplit(url).path}"
    text.note(f"{url} is at {here}")

    async def run() -> None:
        application = Passing(url, tap, headers)
        config = uvicorn.Config(application, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
        try:
            await uvicorn.Server(config).serve([listener])
        finally:
            await application.close()

    return finished(run, line.json)
