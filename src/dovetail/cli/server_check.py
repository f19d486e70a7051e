"""The check of `dovetail run --check`, which does not serve requests."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import click

from dovetail.cli import error_report
from dovetail.protocol.item_kinds import ITEM_KINDS
from dovetail.terminal import output
from dovetail.wire.codec import encode


class Problem(NamedTuple):
    """An error or a warning about a server."""

    item: str
    message: str
    is_error: bool = True


def check_server(app: Any, http_options: Mapping[str, Any] | None, *, starts_lifespan: bool) -> int:
    """Print the problems of a server, and return the exit code.

    `http_options` contains the options of `Server.run("http")`. None means that the server uses stdio.
    """
    from dovetail.server.server import get_dispatcher

    registry = get_dispatcher(app).registry
    items = {kind: registry.list_registered(kind) for kind in ITEM_KINDS}
    problems = [*_check_items(items), *_check_http_options(app, http_options)]
    registry.warn_unused_rules()
    if starts_lifespan:
        asyncio.run(_start_and_stop(app))
    for problem in problems:
        label = "error" if problem.is_error else "warning"
        click.echo(f"{label}: {output.escape_line(problem.item)}: {output.escape_line(problem.message)}")
    errors = sum(problem.is_error for problem in problems)
    counts = {kind: len(names) for kind, names in items.items() if names}
    counts |= {"error": errors, "warning": len(problems) - errors}
    summary = ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts.items())
    click.echo(f"{output.escape_line(app.name)}: {summary}")
    return error_report.EXIT_VALIDATION if errors else error_report.EXIT_OK


def _check_items(items: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
    from dovetail.cli.item_lint import lint_tools, merge_issues

    if not any(items.values()):
        yield Problem("server", "it has no tools, resources or prompts", is_error=False)
    for kind, definitions in items.items():
        for name, definition in definitions.items():
            try:
                encode(definition)
            except (TypeError, ValueError, OverflowError, RecursionError) as exc:
                yield Problem(f"{kind} {name}", f"its definition cannot be sent as JSON: {exc}")
                return
            if kind != "tool" and not definition.description:
                yield Problem(f"{kind} {name}", "it has no description", is_error=False)
    for report in lint_tools([*items["tool"].values()]):
        for issue in merge_issues(report.issues):
            is_error = {*issue.rule.split(", ")} != {"description"}
            yield Problem(f"tool {report.name}", f"{issue.message} ({issue.rule})", is_error=is_error)


def _check_http_options(app: Any, http_options: Mapping[str, Any] | None) -> Iterator[Problem]:
    if http_options is None:
        return
    from dovetail.server.runners import check_exposure
    from dovetail.server.server import get_auth
    from dovetail.server.server_options import ASGIOptions, check_run_options
    from dovetail.transports.http1.forwarded_addresses import read_trusted_proxies

    # The command has already loaded the certificate. Check only its dates here.
    certificate = http_options.get("ssl_certfile")
    if certificate is not None:
        from dovetail.transports.http1.tls_context import describe_validity_problem

        problem = describe_validity_problem(certificate)
        if problem is not None:
            yield Problem("options", problem, is_error=False)
    try:
        read_trusted_proxies()
        check_run_options("run", "http", http_options)
        check_exposure(http_options["host"], http_options["allow_anonymous"] or get_auth(app) is not None)
        app.asgi(**{name: value for name, value in http_options.items() if name in ASGIOptions.__annotations__})
    except (TypeError, ValueError, OSError) as exc:
        yield Problem("options", error_report.translate_options(str(exc)))


async def _start_and_stop(app: Any) -> None:
    try:
        await app.start()
    finally:
        await app.stop()
