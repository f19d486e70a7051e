"""`dovetail run`: serve a server, one's own or another that is to be reached in another way."""

import contextlib
import os
import runpy
import sys
from typing import Any

import click
from click.core import ParameterSource

from dovetail.cli import error_report
from dovetail.cli.error_report import translate_options
from dovetail.cli.server_loader import find_server, has_object_name, is_plain_program, load_server, report_user_errors
from dovetail.cli.target_argument import (
    TargetOptions,
    build_client_options,
    make_absolute,
    parse_env,
    read_target_options,
    target_options,
)
from dovetail.wire.base import replace


@click.command("run")
@target_options(session=())
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
    **params: Any,
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
    options = read_target_options(ctx, **params)
    if not (http or sse):
        _reject_http_options(ctx)
    is_http, is_file = http or sse, bool(options.args and options.args[0].endswith(".py") and not options.command)
    is_plain = is_file and is_plain_program(options.args[0])
    if not (is_plain and is_http):
        options = _apply_process_options(options, reload)
    app = None
    if not is_plain and not options.command:
        with contextlib.redirect_stdout(sys.stderr):  # what a program prints while it is read is not for the client
            app = _load_own_server(options.args, options.module)
    if app is None and is_file and not is_http:
        app = _run_as_program(options.args[0], is_plain)
        if app is None:
            return 0
    app = app or create_proxy_server(options)
    try:
        if not is_http:
            app.run(reload=reload)
            return 0
        http_options: dict[str, Any] = {} if workers == 1 else {"workers": workers, "sessions": False}
        if public_url is not None:
            http_options["public_url"] = public_url
        if sse and workers > 1:
            raise click.UsageError("clients of 2024 need sessions, which several workers do not share")
        if sse:
            click.echo("clients of 2024 find it at /sse of the same host", err=True)
        app.run("http", host=host, port=port, path=path, allow_anonymous=anonymous, reload=reload, **http_options)
    except Exception as exc:
        from dovetail.server.lifespan import print_failure

        if print_failure(exc):
            raise click.exceptions.Exit(error_report.EXIT_CONNECT) from None
        if isinstance(exc, ValueError | OSError):
            raise click.UsageError(translate_options(str(exc))) from None
        raise
    return 0


def _reject_http_options(ctx: click.Context) -> None:
    for name in ("host", "port", "path", "public_url", "workers", "anonymous"):
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} is only for --http or --sse")


def _apply_process_options(options: TargetOptions, reload: bool) -> TargetOptions:
    """The same, after what is said of a command was done to this process, which is to be the server."""
    target_arg = options.args[0] if options.args and not options.module else ""
    if options.command or not (options.module or target_arg.endswith(".py") or has_object_name(target_arg)):
        return options
    if options.headers or options.auth is not None:
        raise click.UsageError("--header and --auth are for a server that is reached, not for a file or a module")
    os.environ.update(parse_env(options.env))
    if options.cwd is None:
        return options
    if reload:
        raise click.UsageError("--cwd does not go with --reload: start it there")
    args = [make_absolute(target_arg)] if target_arg else []
    os.chdir(options.cwd)
    return replace(options, args=[*args, *options.args[1:]], env=(), cwd=None)


def _load_own_server(args: Any, module: str | None) -> Any:
    if module is not None:
        server = load_server(None, module)
        if server is None:
            raise click.UsageError(f"{module!r} holds no dovetail Server")
        return server
    if args and (args[0].endswith(".py") or has_object_name(args[0])):
        return load_server(args[0], None)
    return None


def _run_as_program(file: str, is_plain: bool) -> Any:
    """Run a file; a server that it leaves behind, if it is not known to have served one."""
    sys.argv = [file]
    if is_plain:
        sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    with report_user_errors():
        namespace = runpy.run_path(file, run_name="__main__")
    return find_server(namespace, None, file) if is_plain else None


def create_proxy_server(options: Any) -> Any:
    """A server that offers what another one does."""
    from dovetail.client.targets import Client
    from dovetail.server.runners import Server

    target, extra_args = options.split_target()
    if extra_args:
        raise click.UsageError(f"{extra_args[0]!r} is too much")
    try:
        client = Client(target, **build_client_options(options, target))  # its questions go to whoever calls
    except (FileNotFoundError, TypeError, ValueError) as exc:
        raise click.UsageError(str(exc)) from None
    app = Server(client.name)
    app.mount(client)
    return app
