"""The option `--cluster`, and the type of `--workers`."""

import contextlib
import os
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import click

from dovetail.cli import error_report
from dovetail.terminal import output

F = TypeVar("F", bound=Callable[..., Any])


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
    from dovetail.cluster.cluster_setup import CLUSTER_VARIABLE, check_environment

    if ctx.resilient_parsing:
        return
    try:
        if url is not None:
            from dovetail.cluster import Cluster

            Cluster(url)
            os.environ[CLUSTER_VARIABLE] = url
        check_environment()
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
