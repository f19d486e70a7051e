"""Running a command against a server: one loop, one client, errors as an exit status and a few words."""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import click

from dovetail.cli import exits, text
from dovetail.cli.targets import Asked, client_options
from dovetail.connect import Client
from dovetail.errors import Declined, MCPError
from dovetail.wire.elicitation import ElicitParams
from dovetail.wire.logs import LoggingMessageParams

Work = Callable[[Client, list[str]], Awaitable[int | None]]


def converse(given: Asked, work: Work, **more: Any) -> int:
    """Open a client to the target, do the work, and say how it ended."""
    target, words = given.split()
    made = client_options(given) | more
    if sys.stdin.isatty() and sys.stderr.isatty():
        made.setdefault("elicit", ask_form)
        made.setdefault("elicit_url", ask_visit)
    if given.verbose:
        made.setdefault("on_log", show_log)

    async def run() -> int | None:
        async with Client(target, **made) as client:
            return await work(client, words)

    try:
        return asyncio.run(run()) or exits.OK
    except MCPError as exc:
        report(exc, given.json)
        return exits.code_of(exc)
    except (FileNotFoundError, TypeError, ValueError) as exc:
        raise click.UsageError(str(exc)) from None


def report(exc: MCPError, as_json: bool) -> None:
    """An error, on stderr: for people, or as one JSON document."""
    if as_json:
        facts = {
            name: getattr(exc, name)
            for name in ("server", "step", "revision", "status", "exit_code", "stderr", "hint", "code")
            if getattr(exc, name, None) is not None
        }
        click.echo(
            text.document({"error": type(exc).__name__, "message": str(exc.args[0]) if exc.args else "", **facts}),
            err=True,
        )
    else:
        text.fail(str(exc))


def show_log(entry: LoggingMessageParams) -> None:
    """A log message of the server."""
    text.note(f"[{entry.level}] {entry.data}")


def ask_form(question: ElicitParams) -> dict[str, Any]:
    """A form, at the terminal: each field by itself, its default offered."""
    click.echo(text.safe(question.message), err=True)
    schema = question.requested_schema or {}
    answer: dict[str, Any] = {}
    required = schema.get("required") or []
    for name, rule in (schema.get("properties") or {}).items():
        value = _ask_field(str(name), rule, name in required)
        if value is not None:
            answer[name] = value
    if not click.confirm("Send this?", default=True, err=True):
        raise Declined
    return answer


def _ask_field(name: str, rule: dict[str, Any], required: bool) -> Any:
    label = text.line(str(rule.get("title") or name))
    if rule.get("description"):
        text.note("  " + text.line(str(rule["description"])))
    kinds = {"integer": int, "number": float, "boolean": bool}
    kind: Any = kinds.get(str(rule.get("type")), str)
    if rule.get("enum"):
        kind = click.Choice([str(one) for one in rule["enum"]])
    default = rule.get("default", None if required else "")
    value = click.prompt(label, type=kind if default != "" else str, default=default, err=True)
    if value == "" and not required:
        return None
    with contextlib.suppress(ValueError):
        return kinds.get(str(rule.get("type")), str)(value)
    return value


def ask_visit(question: ElicitParams) -> bool:
    """A page to visit: shown in full, opened by nobody but the user."""
    click.echo(text.safe(question.message), err=True)
    click.echo("  " + text.line(question.url or ""), err=True)
    return click.confirm("Did you finish there?", default=False, err=True)
