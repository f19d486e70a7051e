"""`dovetail diff`: two servers, or two recordings, or one of each: what the second offers differently."""

from typing import Any

import click

from dovetail.cli import exits, text
from dovetail.cli.list import KINDS, listed
from dovetail.cli.recordings import read_recording
from dovetail.cli.speaking import client_for, finished, logged
from dovetail.cli.targets import Asked, asked, client_options, options
from dovetail.protocol.drift import Difference, differences
from dovetail.protocol.playback import revision_of, turns
from dovetail.wire.codec import plain
from dovetail.wire.shape import replace

_KEYS = {"tools": "name", "resources": "uri", "templates": "uriTemplate", "prompts": "name"}


@click.command("diff")
@options("[TARGET]")
@click.option("--strict", is_flag=True, help="Exit with 6 at any difference.")
@click.pass_context
def command(ctx: click.Context, strict: bool, **given: Any) -> int:
    """Compare what two targets offer; exits with 6 if something breaks those who rely on the first.

    \b
    dovetail diff server.jsonl server.py
    dovetail diff https://example.com/mcp https://staging.example.com/mcp
    dovetail diff time.jsonl -- uvx mcp-server-time
    """
    line = asked(ctx, **given)
    old, new = _sides(line)

    async def run() -> int:
        before, after = await _offered(old), await _offered(new)
        found = [one for kind in KINDS for one in differences(kind.removesuffix("s"), before[kind], after[kind])]
        click.echo(text.document(found) if line.json else _shown(found))
        return exits.CONTRACT if any(strict or one.breaks for one in found) else exits.OK

    with logged(line.verbose):
        return finished(run, line.json)


def _sides(line: Asked) -> tuple[Asked, Asked]:
    """Both targets, to be spoken to in one revision: that of a recording, where one is compared."""
    words = line.words
    recording = next((word for word in words if word.endswith(".jsonl")), None)
    if recording is not None and line.revision is None and line.era is None:
        line = replace(line, revision=revision_of(turns(read_recording(recording))))
    if (line.command or line.module) and len(words) == 1:
        return replace(line, words=words, command=(), module=None), replace(line, words=())
    if len(words) == 2 and not (line.command or line.module):
        return replace(line, words=words[:1]), replace(line, words=words[1:])
    raise click.UsageError("give two targets")


async def _offered(line: Asked) -> dict[str, dict[str, Any]]:
    target, _ = line.split()
    async with client_for(target, client_options(line, target)) as client:
        found: dict[str, dict[str, Any]] = {}
        for kind in KINDS:
            items: list[dict[str, Any]] = [plain(one) for one in await listed(client, kind)]
            found[kind] = {str(one[_KEYS[kind]]): one for one in items}
        return found


_MARKS = {"removed": ("-", "red"), "added": ("+", "green"), "changed": ("~", "yellow"), "words": ("~", None)}


def _shown(found: list[Difference]) -> str:
    if not found:
        return "no difference"
    return "\n".join(map(_row, found))


def _row(one: Difference) -> str:
    mark, colour = _MARKS[one.kind]
    told = f"{mark} {text.line(one.what)}: {text.line(one.text)}{' (breaks callers)' if one.breaks else ''}"
    return text.style(told, fg=colour)
