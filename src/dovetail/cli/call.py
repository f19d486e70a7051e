"""`dovetail call`: call a tool."""

import base64
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import click

from dovetail.cli import exits, text
from dovetail.cli.arguments import meant, read_arguments
from dovetail.cli.speaking import Spoken, converse
from dovetail.cli.targets import asked, options
from dovetail.client.values import value_of
from dovetail.errors import PeerError, ResultError, ToolError
from dovetail.wire.content import EmbeddedResource, ResourceLink, TextContent
from dovetail.wire.shape import UNSET
from dovetail.wire.tools import CallToolResult, Tool

_NOT_THERE: Final = (-32601, -32602, -32003)  # what servers say of a tool they do not have
_MASKED: Final = " has the details under "


@click.command("call")
@options("TOOL", "[NAME=VALUE]...")
@click.option("-i", "--input", "document", metavar="JSON", help="All arguments as one object; @FILE; - for stdin.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), help="Write the image, sound, bytes or else text here."
)
@click.option("--force", is_flag=True, help="Write over files that are there.")
@click.pass_context
def command(ctx: click.Context, document: str | None, output: str | None, force: bool, **given: Any) -> int:
    """Call a tool.

    Values are read as the tool's schema asks; NAME:=JSON gives one as JSON, NAME=@FILE the text of a file. Questions of
    the server are asked at the terminal, or answered by --answer.

    \b
    dovetail call server.py forecast city=Oslo days=3
    dovetail call https://example.com/mcp search query=@question.txt limit:=5
    dovetail call plot.py chart kind=bar -o chart.png
    dovetail call convert_time time=12:00 -- uvx mcp-server-time
    """
    if output is not None:
        text.refuse_overwriting(output, force)

    async def work(spoken: Spoken) -> int:
        if not spoken.words:
            raise click.UsageError("which tool?")
        name, *words = spoken.words
        known = {tool.name: tool for tool in await spoken.client.list_tools()}
        arguments = read_arguments(words, known[name].input_schema if name in known else {}, document)
        try:
            result = await spoken.client.call_tool(name, arguments, progress=spoken.bar.show)
        except PeerError as exc:
            # What a list leaves out may be there for a token with more scopes, so the server is asked.
            if name in known or exc.code not in _NOT_THERE:
                raise
            raise _no_tool(name, known) from None
        spoken.bar.clear()
        if spoken.json:
            click.echo(text.document(result))
        elif result.is_error:
            click.echo(text.safe(shown(result)), err=True)
        else:
            _pour(shown(result))
        if result.is_error and name not in known:  # some servers call a tool that is not there a failure of it
            click.echo(f"The server lists no tool {name!r}.{meant(name, known)}", err=True)
        if result.is_error and spoken.muted and _MASKED in shown(result):
            text.note("-v shows the server's log")
        if output is not None and not result.is_error:
            _write(result, output, force)
        return exits.TOOL if result.is_error else exits.OK

    return converse(asked(ctx, **given), work)


def _pour(said: str) -> None:
    """The text as it is; but what comes after it begins a line."""
    text.pour(said if said.endswith("\n") or sys.stdout.isatty() else said + "\n")


def _write(result: CallToolResult, output: str, force: bool) -> None:
    """Each piece of bytes into a file, the second and further ones numbered; the text if there are none."""
    found = [piece for block in result.content if (piece := _bytes(block)) is not None]
    place = Path(output)
    for number, piece in enumerate(found or [shown(result).encode()], 1):
        file = place if number == 1 else place.with_stem(f"{place.stem}-{number}")
        text.refuse_overwriting(str(file), force)
        file.write_bytes(piece)
        text.note(f"wrote {len(piece)} bytes to {file}")


def _bytes(block: Any) -> bytes | None:
    inner = block.resource.blob if isinstance(block, EmbeddedResource) else getattr(block, "data", None)
    try:
        return base64.b64decode(inner, validate=True) if inner is not None else None
    except ValueError:
        raise ResultError("the result holds bytes that are not written as base64") from None


async def find_tool(spoken: Spoken, name: str) -> Tool:
    """A tool by its name."""
    known = {tool.name: tool for tool in await spoken.client.list_tools()}
    if name not in known:
        raise _no_tool(name, known)
    return known[name]


def _no_tool(name: str, known: Iterable[str]) -> click.UsageError:
    return click.UsageError(f"the server has no tool {name!r}.{meant(name, known)}")


def shown(result: CallToolResult) -> str:
    """A result for people: its text, else its value; what is no text is told in a line."""
    parts = [block_shown(block) for block in result.content]
    if any(parts):
        return "\n".join(parts)
    if result.structured_content is UNSET:
        return ""
    try:
        return text.document(value_of(result, wraps=False))
    except ToolError as exc:
        return str(exc)


def block_shown(block: Any) -> str:
    """One piece of content for people."""
    match block:
        case TextContent():
            return block.text
        case ResourceLink():
            return f"[link to {block.uri}]"
        case EmbeddedResource():
            inner = block.resource
            return inner.text if inner.text is not None else f"[{inner.mime_type or 'bytes'} at {inner.uri}]"
        case _:
            return f"[{block.type}, {block.mime_type}, {len(block.data) * 3 // 4} bytes]"
