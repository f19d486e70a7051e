"""`dovetail run`: serve a server object, or any target over another transport."""

import contextlib
import os
import runpy
import sys
from collections.abc import AsyncGenerator
from typing import Any, Literal

import click
from click.core import ParameterSource

from dovetail.cli import error_report
from dovetail.cli.error_report import describe_listen_error
from dovetail.cli.listener_options import (
    WorkerCount,
    cluster_option,
    keep_alive_option,
    listener_options,
    log_level_option,
    read_listener_options,
    reject_without_http,
    report_cluster_errors,
)
from dovetail.cli.server_loader import find_server, has_object_name, is_plain_program, load_server, report_user_errors
from dovetail.cli.target_argument import (
    TargetOptions,
    build_client_options,
    environment_options,
    make_absolute,
    parse_env,
    read_target_options,
    target_options,
)
from dovetail.errors import MCPError
from dovetail.log import log_and_suppress
from dovetail.wire.base import replace


@click.command("run")
@target_options(session=())
@environment_options
@click.option("-v", "--verbose", is_flag=True, help="Show log messages and stderr of the server.")
@click.option("--http", is_flag=True, help="Serve over HTTP.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=int, default=8000, show_default=True, help="Port to listen on. 0 picks a free port.")
@click.option("--path", default="/mcp", show_default=True, help="URL path of the endpoint.")
@click.option("--public-url", help="URL that clients use, if behind a proxy.")
@click.option(
    "--workers", type=WorkerCount(), metavar="N", default=1, help='Number of processes, or "auto". Defaults to 1.'
)
@cluster_option
@listener_options
@keep_alive_option
@click.option("--health", is_flag=True, help="Serve /live and /ready for health checks.")
@click.option("--allow-anonymous", is_flag=True, help="Accept clients without authentication.")
@click.option("--reload", is_flag=True, help="Restart when a source file changes.")
@click.option("--check", is_flag=True, help="Check the server and exit.")
@click.option("--check-lifespan", is_flag=True, help="Check the server, start and stop its lifespan, and exit.")
@click.option("--list-restricted", is_flag=True, hidden=True, help="Also list items that require scopes.")
@log_level_option
@click.pass_context
def command(
    ctx: click.Context,
    http: bool,
    host: str,
    port: int,
    path: str,
    public_url: str | None,
    workers: int | Literal["auto"],
    allowed_hosts: tuple[str, ...],
    ssl_certfile: str | None,
    ssl_keyfile: str | None,
    keep_alive: float | None,
    health: bool,
    allow_anonymous: bool,
    reload: bool,
    check: bool,
    check_lifespan: bool,
    list_restricted: bool,
    **params: Any,
) -> int:
    """Run a server over stdio or HTTP.

    Serves the Server object of a file or a module. A file without a Server runs as a program. For any other target,
    connects as a client and serves the items of the target: a URL over stdio, a command over HTTP, or an old server to
    new clients. Options that the file passes to app.run are ignored. To use these options, run the file with Python.

    \b
    dovetail run server.py
    dovetail run server.py:app --http --port 8000
    dovetail run server.py --http --workers auto
    dovetail run server.py --with pandas
    dovetail run -m package.server --reload
    dovetail run https://example.com/mcp
    dovetail run --http -- uvx mcp-server-time
    """
    options = read_target_options(ctx, **params)
    _prepare_process(options, list_restricted=list_restricted)
    http_options: dict[str, Any] | None = None
    if not http:
        reject_without_http(ctx, _HTTP_OPTIONS)
    else:
        http_options = read_listener_options(allowed_hosts, ssl_certfile, ssl_keyfile)
        http_options |= {"host": host, "port": port, "path": path, "public_url": public_url}
        http_options |= {"health": health, "allow_anonymous": allow_anonymous}
    if check or check_lifespan:
        return _check(options, http_options, starts_lifespan=check_lifespan)
    if http and workers != 1 and _run_workers(host, port, workers, reload=reload):
        return 0
    is_file = bool(options.args and options.args[0].endswith(".py") and not options.command)
    is_plain = is_file and is_plain_program(options.args[0])
    if not (is_plain and http):
        options = _apply_process_options(options, reload)
    app = None if is_plain else _load_target(options)
    if app is None and is_file and not http:
        app = _run_as_program(options.args[0], is_plain)
        if app is None:
            return 0
    if app is None:
        app = create_proxy_server(options)
    else:
        _check_cluster(ctx, app)
    if keep_alive is not None:
        _set_idle_timeout(app, keep_alive)
    _serve(app, http_options, reload=reload)
    return 0


def _prepare_process(options: TargetOptions, *, list_restricted: bool) -> None:
    """Enter the environment of the script, and set what servers of this process list."""
    if (environment := options.describe_environment()) is not None:
        from dovetail.cli.script_environment import enter_environment

        enter_environment(environment)
    if list_restricted:
        from dovetail.server.server_options import LISTS_RESTRICTED

        LISTS_RESTRICTED.set(True)


def _load_target(options: TargetOptions) -> Any:
    if options.command:
        return None
    # Only MCP messages may be written to stdout.
    with contextlib.redirect_stdout(sys.stderr):
        return _load_own_server(options.args, options.module)


def _serve(app: Any, http_options: dict[str, Any] | None, *, reload: bool) -> None:
    """Run the server until it ends. Raise UsageError for an error that the user can fix."""
    try:
        if http_options is None:
            app.run(reload=reload)
            return
        with report_cluster_errors():
            app.run("http", reload=reload, **http_options)
    except (click.ClickException, click.exceptions.Exit):
        raise
    except Exception as exc:
        from dovetail.server.dispatch.lifespan import print_failure
        from dovetail.server.runners import ExposedAddress

        if print_failure(exc):
            raise click.exceptions.Exit(error_report.EXIT_CONNECT) from None
        if isinstance(exc, ExposedAddress) and http_options is not None:
            raise click.UsageError(
                f"other machines can connect to {http_options['host']} without authentication. Add auth= to the "
                "server, or pass --allow-anonymous"
            ) from None
        if isinstance(exc, ValueError | OSError):
            raise click.UsageError(describe_listen_error(exc)) from None
        raise


_HTTP_OPTIONS = (
    *("host", "port", "path", "public_url", "workers", "cluster", "health", "allow_anonymous"),
    *("allowed_hosts", "ssl_certfile", "ssl_keyfile", "keep_alive"),
)


def _check(options: TargetOptions, http_options: dict[str, Any] | None, *, starts_lifespan: bool) -> int:
    """Check the server of a file or a module without serving it."""
    from dovetail.cli.server_check import check_server

    is_plain = bool(options.args) and options.module is None and is_plain_program(options.args[0])
    options = options if options.command or is_plain else _apply_process_options(options, reload=False)
    with contextlib.redirect_stdout(sys.stderr):
        app = None if options.command or is_plain else _load_own_server(options.args, options.module)
    if app is None:
        raise click.UsageError(
            "--check requires a file or a module with a dovetail Server. For other servers, use `dovetail doctor`"
        )
    try:
        return check_server(app, http_options, starts_lifespan=starts_lifespan)
    except Exception as exc:
        from dovetail.server.dispatch.lifespan import print_failure

        if print_failure(exc):
            raise click.exceptions.Exit(error_report.EXIT_CONNECT) from None
        raise


def _check_cluster(ctx: click.Context, app: Any) -> None:
    from dovetail.server.server import get_dispatcher

    if ctx.get_parameter_source("cluster") is ParameterSource.COMMANDLINE and get_dispatcher(app).cluster is not None:
        raise click.UsageError("the server has cluster= already. Remove it, or leave out --cluster")


def _set_idle_timeout(app: Any, seconds: float) -> None:
    from dovetail.server.server import get_dispatcher

    dispatcher = get_dispatcher(app)
    dispatcher.limits = replace(dispatcher.limits, idle_timeout=seconds)


def _run_workers(host: str, port: int, workers: int | Literal["auto"], *, reload: bool) -> bool:
    """Serve with several processes that run this command. Return False in each of these processes."""
    from dovetail.server import runners
    from dovetail.server.workers import is_spawned_worker

    if is_spawned_worker():
        return False
    if reload:
        raise click.UsageError("--reload cannot be combined with --workers. Use one process while you develop")
    try:
        runners.run_workers([sys.executable, *sys.orig_argv[1:]], host, port, workers)
    except (ValueError, OSError) as exc:
        raise click.UsageError(describe_listen_error(exc)) from None
    return True


def _apply_process_options(options: TargetOptions, reload: bool) -> TargetOptions:
    """Apply --env and --cwd if the server runs in this process. Return the remaining options."""
    target_arg = options.args[0] if options.args and not options.module else ""
    if options.command or not (options.module or target_arg.endswith(".py") or has_object_name(target_arg)):
        return options
    if options.headers or options.auth is not None:
        raise click.UsageError("--header and --auth require a URL, not a file or a module")
    os.environ.update(parse_env(options.env))
    if options.cwd is None:
        return options
    if reload:
        raise click.UsageError("--cwd cannot be combined with --reload. Change to that directory first")
    args = [make_absolute(target_arg)] if target_arg else []
    os.chdir(options.cwd)
    return replace(options, args=[*args, *options.args[1:]], env=(), cwd=None)


def _load_own_server(args: Any, module: str | None) -> Any:
    if module is not None:
        server = load_server(None, module)
        if server is None:
            raise click.UsageError(f"the module {module!r} does not contain a dovetail Server")
        return server
    if args and (args[0].endswith(".py") or has_object_name(args[0])):
        return load_server(args[0], None)
    return None


def _run_as_program(file: str, is_plain: bool) -> Any:
    """Run a file as a program. If the program ends without serving its Server object, return the object."""
    sys.argv = [file]
    if is_plain:
        sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    with report_user_errors():
        namespace = runpy.run_path(file, run_name="__main__")
    return find_server(namespace, None, file) if is_plain else None


def create_proxy_server(options: Any) -> Any:
    """Create a server that forwards every request to the target."""
    from dovetail.client.client import Client
    from dovetail.server.server import Server, describe_as, get_dispatcher

    target, _ = options.split_target()
    try:
        # The client has no elicitation handler, so the proxy forwards elicitations to the caller.
        client = Client(target, **build_client_options(options, target))
    except (FileNotFoundError, TypeError, ValueError) as exc:
        raise click.UsageError(str(exc)) from None

    async def copy_description() -> None:
        # Errors are ignored here, because the first request tries to connect again and reports its error.
        with log_and_suppress(MCPError):
            await client.connect()
            describe_as(app, client.server_info, client.instructions)

    @contextlib.asynccontextmanager
    async def connect() -> AsyncGenerator[None]:
        await copy_description()
        yield

    app = Server(client.name, lifespan=connect)
    app.mount(client)
    get_dispatcher(app).set_description_source(copy_description)
    return app
