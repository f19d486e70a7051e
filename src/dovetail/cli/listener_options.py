"""The logging, host name, TLS, connection and cluster options of commands that start a server."""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

import click

from dovetail.cli import error_report
from dovetail.cli.target_argument import PositiveNumber
from dovetail.terminal import output

F = TypeVar("F", bound=Callable[..., Any])

LOG_LEVEL_VARIABLE: Final = "DOVETAIL_LOG_LEVEL"
_LOG_LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_level_option(function: F) -> F:
    """Add the option `--log-level`. An environment variable passes the level to child processes."""
    return click.option(
        "--log-level",
        type=click.Choice(_LOG_LEVELS, case_sensitive=False),
        envvar=LOG_LEVEL_VARIABLE,
        expose_value=False,
        callback=_set_log_level,
        help="Log messages from this level on to stderr.",
    )(function)


def _set_log_level(ctx: click.Context, param: click.Parameter, level: str | None) -> None:
    if level is None or ctx.resilient_parsing:
        return
    os.environ[LOG_LEVEL_VARIABLE] = level
    logging.getLogger().setLevel(level.upper())
    logging.getLogger("dovetail").setLevel(level.upper())
    # Python uses this handler only if the server has not configured logging.
    logging.lastResort = handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_LOG_FORMAT))


def listener_options(function: F) -> F:
    """Add the options for host names and TLS. `read_listener_options` checks their values."""
    pem_file = click.Path(exists=True, dir_okay=False)
    options = (
        click.option(
            "--allowed-host",
            "allowed_hosts",
            multiple=True,
            metavar="NAME",
            help="Additional host name that clients may use. Repeatable.",
        ),
        click.option("--ssl-certfile", type=pem_file, help="PEM file of the certificate, for HTTPS."),
        click.option("--ssl-keyfile", type=pem_file, help="PEM file of the private key, for HTTPS."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def read_listener_options(
    allowed_hosts: tuple[str, ...], ssl_certfile: str | None, ssl_keyfile: str | None
) -> dict[str, Any]:
    """Return the options for `Server.run("http")`. Raise UsageError if the certificate cannot be used."""
    options: dict[str, Any] = {"allowed_hosts": allowed_hosts} if allowed_hosts else {}
    if ssl_certfile is None and ssl_keyfile is not None:
        raise click.UsageError("--ssl-keyfile requires --ssl-certfile")
    if ssl_certfile is not None:
        _check_certificate(ssl_certfile, ssl_keyfile)
        options |= {"ssl_certfile": ssl_certfile, "ssl_keyfile": ssl_keyfile}
    return options


def _check_certificate(certfile: str, keyfile: str | None) -> None:
    from dovetail.transports.http1.tls_context import create_tls_context

    try:
        create_tls_context(certfile, keyfile)
    except ValueError as exc:
        raise click.UsageError(str(exc).replace("ssl_keyfile", "--ssl-keyfile")) from None


def keep_alive_option(function: F) -> F:
    """Add the option `--keep-alive`, which replaces `ServerLimits.idle_timeout`."""
    return click.option(
        "--keep-alive", type=PositiveNumber(), metavar="SECONDS", help="Time that an idle connection stays open."
    )(function)


def reject_without_http(ctx: click.Context, names: tuple[str, ...]) -> None:
    """Raise UsageError if the user passed one of these options, which only work over HTTP."""
    for param in ctx.command.params:
        source = click.core.ParameterSource.COMMANDLINE
        if param.name in names and ctx.get_parameter_source(param.name) is source:
            raise click.UsageError(f"{max(param.opts, key=len)} requires --http")


def cluster_option(function: F) -> F:
    """Add the option `--cluster`. It is stored in the environment, so that servers and worker processes find it."""
    return click.option(
        "--cluster",
        metavar="URL",
        expose_value=False,
        callback=_store_cluster,
        help='Where workers share state: "local" or a Redis URL.',
    )(function)


def _store_cluster(ctx: click.Context, param: click.Parameter, url: str | None) -> None:
    from dovetail.server.attachments import find_default_cluster
    from dovetail.server.environment import CLUSTER_VARIABLE, read_secret_keys

    if ctx.resilient_parsing:
        return
    try:
        if url is not None:
            from dovetail.cluster import Cluster

            Cluster(url)
            os.environ[CLUSTER_VARIABLE] = url
        find_default_cluster()  # The environment may name another cluster, or contain invalid keys.
        read_secret_keys()
    except ValueError as exc:
        if url is None:
            raise click.UsageError(str(exc)) from None
        raise click.BadParameter(str(exc), ctx, param) from None


@contextlib.contextmanager
def report_cluster_errors() -> Generator[None]:
    """Exit with a message if the server cannot join its cluster."""
    from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable

    try:
        yield
    except SharedStateUnavailable as exc:
        output.print_error(f"the server cannot start: {exc}")
        raise click.exceptions.Exit(error_report.EXIT_CONNECT) from None
    except ImportError as exc:
        if exc.name != "redis":
            raise
        raise click.UsageError(str(exc)) from None


class WorkerCount(click.IntRange):
    """A number of worker processes, or "auto"."""

    name = "number|auto"

    def __init__(self) -> None:
        super().__init__(min=1)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number or "auto". Fail if the value is neither."""
        return value if value == "auto" else super().convert(value, param, ctx)
