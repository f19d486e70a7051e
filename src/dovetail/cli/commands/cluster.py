"""`dovetail cluster`: show the workers of a cluster on Redis, and accept single-use IDs again after a loss."""

import os
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import click

from dovetail.cli import error_report
from dovetail.cli.command_runner import LogPrinter, run_to_exit_code
from dovetail.terminal import output
from dovetail.wire.codec import to_plain

if TYPE_CHECKING:
    from dovetail.cluster.redis.redis_deployments import Deployment, RedisDeployments

_TIMEOUT_S: Final = 5.0
_HEADERS: Final = ("server", "workers", "nothing lost since", "older single-use IDs")


def _target_options(function: Any) -> Any:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option("--prefix", default="dovetail", show_default=True, help="Prefix of the cluster."),
        click.option("--server", metavar="NAME", help="Name of the server. Defaults to all servers."),
        click.argument("url", required=False),
    ):
        function = option(function)
    return function


@click.group("cluster")
def command() -> None:
    """Show a cluster on Redis, or confirm a loss.

    URL is the address of Redis, as in `dovetail run --cluster`. It defaults to DOVETAIL_CLUSTER, which keeps a password
    out of the list of processes.
    """


@command.command("status")
@_target_options
def show_status(url: str | None, server: str | None, prefix: str, as_json: bool) -> int:
    """Show workers, lost records and problems.

    \b
    dovetail cluster status redis://127.0.0.1:6379
    """

    async def run(deployments: "RedisDeployments") -> int:
        found, problems = await _find(deployments, server), await deployments.find_problems()
        if as_json:
            click.echo(output.format_json({"servers": to_plain(found), "problems": problems}))
        else:
            click.echo(output.format_table(map(_format_cells, found), _HEADERS) or "no servers")
            for problem in problems:
                output.print_note(problem)
        return error_report.EXIT_OK

    return _run(url, prefix, run, as_json=as_json)


@command.command("confirm-loss")
@_target_options
@click.option("--yes", is_flag=True, help="Do not ask. Needs --server.")
def confirm_loss(url: str | None, server: str | None, prefix: str, as_json: bool, yes: bool) -> int:
    """Accept single-use IDs from before a loss again.

    After Redis has lost records, DPoP proofs, consent answers and login codes from before are refused, because they may
    have been used. Confirm the loss only if the list of used IDs is complete, or if all earlier IDs have expired.
    Otherwise an ID could be used twice.

    \b
    dovetail cluster confirm-loss redis://127.0.0.1:6379 --server tickets
    """

    if yes and server is None:
        raise click.UsageError("--yes requires --server NAME, because it skips the question for one server only")

    async def run(deployments: "RedisDeployments") -> int:
        confirmed: list[Deployment] = []
        for deployment in await _find(deployments, server):
            question = (
                f"Accept single-use IDs of {output.escape_line(deployment.server)} from before "
                f"{_format_time(deployment.since)}? An ID that was used before the loss could be used again."
            )
            if deployment.is_confirmed or not (yes or _ask(question)):
                continue
            if not await deployments.confirm_loss(deployment):
                output.print_error(f"Redis has lost records of {deployment.server} again. Check it, and try again")
                return error_report.EXIT_VALIDATION
            confirmed.append(deployment)
        if as_json:
            click.echo(output.format_json({"confirmed": [deployment.server for deployment in confirmed]}))
        for deployment in () if as_json else confirmed:
            name, since = output.escape_line(deployment.server), _format_time(deployment.since)
            click.echo(f"{name}: accepts single-use IDs from before {since}")
        if not confirmed and not as_json:
            click.echo("nothing to confirm")
        return error_report.EXIT_OK

    return _run(url, prefix, run, as_json=as_json)


def _ask(question: str) -> bool:
    if not output.is_interactive():
        output.print_error("cannot ask for confirmation without a terminal. Pass --yes")
        raise click.exceptions.Exit(error_report.EXIT_INPUT_NEEDED)
    return click.confirm(question)


async def _find(deployments: "RedisDeployments", server: str | None) -> "list[Deployment]":
    if server is None:
        return await deployments.list_all()
    deployment = await deployments.read(server)
    if deployment is None:
        raise click.UsageError(f"unknown server {server!r}. Run `dovetail cluster status` to list all servers")
    return [deployment]


def _format_cells(deployment: "Deployment") -> tuple[str, ...]:
    uses = "accepted, because the loss was confirmed" if deployment.is_confirmed else "refused"
    return deployment.server, str(deployment.worker_count), _format_time(deployment.since), uses


def _format_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _run(url: str | None, prefix: str, run: "Callable[[RedisDeployments], Awaitable[int]]", *, as_json: bool) -> int:
    from dovetail.cluster import Cluster
    from dovetail.cluster.redis.redis_connection import parse_redis_url
    from dovetail.cluster.redis.redis_deployments import open_deployments
    from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable
    from dovetail.server.environment import CLUSTER_VARIABLE

    url = url or os.environ.get(CLUSTER_VARIABLE)
    if not url:
        raise click.UsageError(f"missing argument: URL. Pass the address of Redis, or set {CLUSTER_VARIABLE}")
    try:
        if Cluster(url, prefix).is_local:
            raise click.UsageError("a local cluster has no status. Pass the URL of a Redis server")
        address = parse_redis_url(url)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from None

    async def connect() -> int:
        try:
            async with open_deployments(address, prefix, _TIMEOUT_S) as deployments:
                return await run(deployments)
        except SharedStateUnavailable as exc:
            output.print_error(f"cannot use {address}: {exc}")
            return error_report.EXIT_CONNECT
        except ImportError as exc:
            raise click.UsageError(str(exc)) from None

    with LogPrinter(False):
        return run_to_exit_code(connect, as_json)
