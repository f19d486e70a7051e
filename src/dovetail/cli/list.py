"""`dovetail list`: what a server offers."""

from typing import Any

import click

from dovetail.cli import text
from dovetail.cli.speaking import converse
from dovetail.cli.targets import asked, options
from dovetail.connect import Client

KINDS = ("tools", "resources", "templates", "prompts")


@click.command("list")
@options
@click.pass_context
def command(ctx: click.Context, **given: Any) -> int:
    """List what a server offers: tools, resources, templates, prompts; all, or the kinds named.

    \b
    dovetail list server.py
    dovetail list https://example.com/mcp tools
    """
    line = asked(ctx, **given)

    async def work(client: Client, words: list[str]) -> int:
        for word in words:
            if word not in KINDS:
                raise click.UsageError(f"{word!r} is none of {', '.join(KINDS)}")
        found = {kind: await _listed(client, kind) for kind in KINDS if not words or kind in words}
        click.echo(text.document(found) if line.json else _shown(found))
        return 0

    return converse(line, work)


async def _listed(client: Client, kind: str) -> list[Any]:
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
            rows = [
                (one.name, " ".join(_spelled(a.name, a.required) for a in one.arguments or ()), _first(one.description))
                for one in items
            ]
            return text.table(rows, ("prompt", "arguments", "description"))


def _arguments(schema: dict[str, Any]) -> str:
    required = schema.get("required") or ()
    return " ".join(_spelled(name, name in required) for name in schema.get("properties") or {})


def _spelled(name: str, required: bool) -> str:
    return name if required else f"[{name}]"


def _first(description: str | None) -> str:
    return (description or "").strip().split("\n", 1)[0]
