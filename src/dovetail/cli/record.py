"""`dovetail record`: what a server offers, and how it answers, kept in a file."""

import shlex
from collections.abc import Awaitable, Callable
from typing import Any

import click

from dovetail.cli import text
from dovetail.cli.arguments import read_arguments
from dovetail.cli.call import find_tool
from dovetail.cli.list import KINDS, listed
from dovetail.cli.speaking import Spoken, converse
from dovetail.cli.targets import asked, options
from dovetail.testing.traffic import Traffic


@click.command("record")
@options()
@click.option("-o", "--output", type=click.Path(dir_okay=False), required=True, help="The file.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@click.option("-d", "--do", "steps", multiple=True, metavar="STEP", help='"call TOOL a=1", "read URI", "prompt NAME".')
@click.option("--steps", "script", type=click.File(), help="A file of steps, one a line; - for stdin.")
@click.pass_context
def command(ctx: click.Context, output: str, force: bool, steps: tuple[str, ...], script: Any, **given: Any) -> int:
    """Record what a server offers, and how it answers to some steps; secrets are masked.

    A step that fails ends it; what was said until then is in the file.

    \b
    dovetail record server.py -o server.jsonl
    dovetail record server.py -o server.jsonl --do "call forecast city=Oslo" --do "read city://oslo"
    """
    text.refuse_overwriting(output, force)
    traffic = Traffic(ctx.params["words"][0] if ctx.params["words"] else "")
    given_steps = [*steps, *(line for line in (script or ()) if line.strip() and not line.startswith("#"))]
    wanted = [_step(step) for step in given_steps]

    async def work(spoken: Spoken) -> None:
        try:
            for kind in KINDS:
                await listed(spoken.client, kind)
            for verb, words in wanted:
                await _STEPS[verb](spoken, *words)
        finally:
            traffic.save(output)  # also what there was before a step failed
        spoken.print(
            {"file": output, "frames": len(traffic.frames)}, lambda: f"{len(traffic.frames)} messages in {output}"
        )

    return converse(asked(ctx, **given), work, taps=[traffic.note], cache=False)


async def _call(spoken: Spoken, name: str, *words: str) -> None:
    tool = await find_tool(spoken, name)
    await spoken.client.call_tool(name, read_arguments(words, tool.input_schema))


async def _read(spoken: Spoken, uri: str) -> None:
    await spoken.client.read_resource(uri)


async def _prompt(spoken: Spoken, name: str, *words: str) -> None:
    await spoken.client.get_prompt(name, read_arguments(words, {}))


_STEPS: dict[str, Callable[..., Awaitable[None]]] = {"call": _call, "read": _read, "prompt": _prompt}


def _step(said: str) -> tuple[str, list[str]]:
    try:
        parts = shlex.split(said)
    except ValueError as exc:
        raise click.UsageError(f"the step {said.strip()!r} cannot be read: {exc}") from None
    verb, words = "".join(parts[:1]), parts[1:]
    if verb not in _STEPS or not words:
        raise click.UsageError(f"a step is call, read or prompt and what of it, not {said.strip()!r}")
    if verb == "read" and len(words) > 1:
        raise click.UsageError(f"a step reads one resource, not {said.strip()!r}")
    return verb, words
