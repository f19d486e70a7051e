"""`dovetail run`: serve a server, one's own or another that is to be reached in another way."""

import contextlib
import os
import runpy
import sys
from typing import Any

import click
from click.core import ParameterSource

from dovetail.cli import exits
from dovetail.cli.advice import spelled
from dovetail.cli.loading import found_in, is_program, load_server, names_object, users_code
from dovetail.cli.targets import Asked, asked, client_options, options, variables, whole
from dovetail.wire.shape import replace


@click.command("run")
@options(talk=())
@click.option("-v", "--verbose", is_flag=True, help="Show the server's stderr, and tracebacks of internal errors.")
@click.option("--http", is_flag=True, help="Serve over HTTP.")
@click.option("--sse", is_flag=True, help="Serve over HTTP, and tell where clients of 2024 find it.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=int, default=8000, show_default=True, help="0 takes a free one.")
@click.option("--path", default="/mcp", show_default=True, help="Where on the host.")
@click.option("--public-url", help="The address clients use, if a proxy stands in front.")
@click.option("--workers", type=int, default=1, show_default=True, help="Processes; more than one has no sessions.")
@click.option("--anonymous", is_flag=True, help="Serve everyone who reaches the host.")
@click.option("--reload", is_flag=True, help="Start anew when a file changes.")
@click.pass_context
def command(
    ctx: click.Context,
    http: bool,
    sse: bool,
    host: str,
    port: int,
    path: str,
    public_url: str | None,
    workers: int,
    anonymous: bool,
    reload: bool,
    **given: Any,
) -> int:
    """Serve a server: over stdio, or with --http.

    A file or a module is served as it is, any other target is reached as a client and offered here: a URL on stdio, a
    command over HTTP, an old server to new clients. A file without a Server in it is run as a program, and so, at
    once, is one that neither imports dovetail nor asks for its __name__. Options that the
    file itself gives to app.run are not read: how it is served is said here; for those without an option here, run the
    file with Python.

    \b
    dovetail run server.py
    dovetail run server.py:app --http --port 8000
    dovetail run -m package.server --reload
    dovetail run https://example.com/mcp
    dovetail run --http -- uvx mcp-server-time
    """
    line = asked(ctx, **given)
    if not (http or sse):
        _refuse_web_options(ctx)
    web, file = http or sse, bool(line.words and line.words[0].endswith(".py") and not line.command)
    speaks = file and is_program(line.words[0])
    if not (speaks and web):
        line = _placed(line, reload)
    app = None
    if not speaks and not line.command:
        with contextlib.redirect_stdout(sys.stderr):  # what a program prints while it is read is not for the client
            app = _own(line.words, line.module)
    if app is None and file and not web:
        app = _as_program(line.words[0], speaks)
        if app is None:
            return 0
    app = app or offered(line)
    try:
        if not web:
            app.run(reload=reload)
            return 0
        more: dict[str, Any] = {} if workers == 1 else {"workers": workers, "sessions": False}
        if public_url is not None:
            more["public_url"] = public_url
        if sse and workers > 1:
            raise click.UsageError("clients of 2024 need sessions, which several workers do not share")
        if sse:
            click.echo("clients of 2024 find it at /sse of the same host", err=True)
        app.run("http", host=host, port=port, path=path, anonymous=anonymous, reload=reload, **more)
    except Exception as exc:
        from dovetail.server.life import print_failure

        if print_failure(exc):
            raise click.exceptions.Exit(exits.CONNECT) from None
        if isinstance(exc, ValueError | OSError):
            raise click.UsageError(spelled(str(exc))) from None
        raise
    return 0


def _refuse_web_options(ctx: click.Context) -> None:
    for name in ("host", "port", "path", "public_url", "workers", "anonymous"):
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} is only for --http or --sse")


def _placed(line: Asked, reload: bool) -> Asked:
    """The same, after what is said of a command was done to this process, which is to be the server."""
    word = line.words[0] if line.words and not line.module else ""
    if line.command or not (line.module or word.endswith(".py") or names_object(word)):
        return line
    if line.headers or line.auth is not None:
        raise click.UsageError("--header and --auth are for a server that is reached, not for a file or a module")
    os.environ.update(variables(line.env))
    if line.cwd is None:
        return line
    if reload:
        raise click.UsageError("--cwd does not go with --reload: start it there")
    words = [whole(word)] if word else []
    os.chdir(line.cwd)
    return replace(line, words=[*words, *line.words[1:]], env=(), cwd=None)


def _own(words: Any, module: str | None) -> Any:
    if module is not None:
        found = load_server(None, module)
        if found is None:
            raise click.UsageError(f"{module!r} holds no dovetail Server")
        return found
    if words and (words[0].endswith(".py") or names_object(words[0])):
        return load_server(words[0], None)
    return None


def _as_program(file: str, speaks: bool) -> Any:
    """Run a file; a server that it leaves behind, if it is not known to have served one."""
    sys.argv = [file]
    if speaks:
        sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    with users_code():
        left = runpy.run_path(file, run_name="__main__")
    return found_in(left, None, file) if speaks else None


def offered(line: Any) -> Any:
    """A server that offers what another one does."""
    from dovetail.connect import Client
    from dovetail.serve import Server

    target, words = line.split()
    if words:
        raise click.UsageError(f"{words[0]!r} is too much")
    try:
        client = Client(target, **client_options(line, target))  # its questions go to whoever calls
    except (FileNotFoundError, TypeError, ValueError) as exc:
        raise click.UsageError(str(exc)) from None
    app = Server(client.name)
    app.mount(client)
    return app
