"""`dovetail call`: call a tool."""

import sys
from typing import Any

import click

from dovetail.cli import exits, text
from dovetail.cli.arguments import read_arguments
from dovetail.cli.speaking import converse
from dovetail.cli.targets import asked, options
from dovetail.client.values import value_of
from dovetail.connect import Client
from dovetail.errors import ToolError
from dovetail.wire.content import EmbeddedResource, ResourceLink, TextContent
from dovetail.wire.shape import UNSET
from dovetail.wire.tools import CallToolResult


@click.command("call")
@options
@click.option(
    "-i", "--input", "document", metavar="JSON", help="All arguments as one JSON object, @file, or - for stdin."
)
@click.pass_context
def command(ctx: click.Context, document: str | None, **given: Any) -> int:
    """Call a tool: TARGET TOOL [NAME=VALUE ...].

    \b
    dovetail call server.py forecast city=Oslo days=3
    dovetail call https://example.com/mcp search query=@question.txt limit:=5
    dovetail call convert_time time=12:00 -- uvx mcp-server-time
    """
    line = asked(ctx, **given)

    async def work(client: Client, words: list[str]) -> int:
        if not words:
            raise click.UsageError("which tool?")
        name, *rest = words
        known = {tool.name: tool for tool in await client.list_tools()}
        if name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"the server has no tool {text.line(name)!r}.{hint}")
        arguments = read_arguments(rest, known[name].input_schema, document)
        result = await client.call_tool(name, arguments, progress=_progress())
        click.echo(
            text.document(result) if line.json else text.safe(shown(result)), err=result.is_error and not line.json
        )
        return exits.TOOL if result.is_error else exits.OK

    return converse(line, work)


def shown(result: CallToolResult) -> str:
    """A result for people: its text, else its value; what is no text is told in a line."""
    parts = [_block(block) for block in result.content]
    if parts and any(parts):
        return "\n".join(parts)
    if result.structured_content is UNSET:
        return ""
    try:
        return text.document(value_of(result, wraps=False))
    except ToolError as exc:
        return str(exc)


def _block(block: Any) -> str:
    match block:
        case TextContent():
            return block.text
        case ResourceLink():
            return f"[link to {block.uri}]"
        case EmbeddedResource():
            inner = block.resource
            return inner.text if inner.text is not None else f"[{inner.mime_type or 'data'} at {inner.uri}]"
        case _:
            return f"[{block.type}, {block.mime_type}, {len(block.data) * 3 // 4} bytes]"


def _progress() -> Any:
    """A bar on a terminal; nothing where nobody looks."""
    if not sys.stderr.isatty():
        return None

    def show(done: float, total: float | None, message: str | None) -> None:
        share = f"{done:g} of {total:g}" if total else f"{done:g}"
        bar = "█" * int(20 * min(1.0, done / total)) if total else ""
        sys.stderr.write(f"\r\x1b[K{bar:<20} {share} {text.line(message or '')[:60]}")
        if total and done >= total:
            sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()

    return show
