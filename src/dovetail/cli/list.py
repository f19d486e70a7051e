"""`dovetail list`: what a server offers, or which servers are configured."""

from typing import Any

import click

from dovetail.cli import text
from dovetail.cli.arguments import meant
from dovetail.cli.speaking import Spoken, converse
from dovetail.cli.targets import Asked, asked, options
from dovetail.connect import Client
from dovetail.protocol.resolving import named, required

KINDS = ("tools", "resources", "templates", "prompts")


@click.command("list")
@options("[tools|resources|templates|prompts]...")
@click.pass_context
def command(ctx: click.Context, **given: Any) -> int:
    """List what a server offers: everything, or the kinds named.

    Without a target: the servers in the configurations of the known hosts.

    \b
    dovetail list
    dovetail list server.py
    dovetail list https://example.com/mcp tools
    """
    line = asked(ctx, **given)
    if not (line.words or line.command or line.module):
        return _configured(line)

    async def work(spoken: Spoken) -> None:
        for word in spoken.words:
            if word not in KINDS:
                raise click.UsageError(f"{word!r} is no kind of thing.{meant(word, KINDS)}")
        found = {kind: await listed(spoken.client, kind) for kind in spoken.words or KINDS}
        spoken.print(found, lambda: _shown(found))
        if spoken.muted and not any(found.values()):
            await spoken.client.close()  # all that it said is here then
            for said in spoken.client.last_words:
                text.note(said)

    return converse(line, work)


async def listed(client: Client, kind: str) -> list[Any]:
    """Everything of one kind; nothing where the server does not know the kind."""
    able = client.capabilities
    match kind:
        case "tools" if able.tools is not None:
            return await client.list_tools()
        case "resources" if able.resources is not None:
            return await client.list_resources()
        case "templates" if able.resources is not None:
            return await client.list_resource_templates()
        case "prompts" if able.prompts is not None:
            return await client.list_prompts()
        case _:
            return []


def _shown(found: dict[str, list[Any]]) -> str:
    parts = [part for kind, items in found.items() if (part := _table(kind, items))]
    return "\n\n".join(parts) or "nothing"


def _table(kind: str, items: list[Any]) -> str:
    match kind:
        case "tools":
            rows = [(one.name, _arguments(one.input_schema), _first(one.description)) for one in items]
            return text.table(rows, ("tool", "arguments", "description"))
        case "resources":
            rows = [(one.uri, one.name, _first(one.description)) for one in items]
            return text.table(rows, ("resource", "name", "description"))
        case "templates":
            rows = [(one.uri_template, one.name, _first(one.description)) for one in items]
            return text.table(rows, ("template", "name", "description"))
        case _:
            rows = [(one.name, _of_prompt(one), _first(one.description)) for one in items]
            return text.table(rows, ("prompt", "arguments", "description"))


def _of_prompt(prompt: Any) -> str:
    return " ".join(_spelled(one.name, one.required) for one in prompt.arguments or ())


def _arguments(schema: dict[str, Any]) -> str:
    needed = required(schema)
    return " ".join(_spelled(name, name in needed) for name in named(schema))


def _spelled(name: str, needed: bool | None) -> str:
    return name if needed else f"[{name}]"


def _first(description: str | None) -> str:
    return (description or "").strip().split("\n", 1)[0]


def _configured(line: Asked) -> int:
    from dovetail.host.config import read_known

    entries, problems = read_known()
    found = [
        {"name": one.name, "source": one.source, "target": one.spelled(), "file": str(one.path), "enabled": one.enabled}
        for one in entries
    ]
    if line.json:
        click.echo(text.document(found))
    else:
        rows = [(str(one["name"]), str(one["source"]), str(one["target"])) for one in found]
        click.echo(text.table(rows, ("server", "configured in", "target")) or "no server is configured")
    for problem in problems:
        text.note(f"{problem.path}: {problem.text}")
    return 0
