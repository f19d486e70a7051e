"""`dovetail replay`: a recording asked again of a server, and the answers compared."""

import difflib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import click

from dovetail.cli import exits, text
from dovetail.cli.recordings import read_recording
from dovetail.cli.speaking import Spoken, converse
from dovetail.cli.targets import asked, options
from dovetail.errors import Declined, PeerError
from dovetail.protocol.playback import IDLE, OPENING, Turn, alike, given_answers, has_mask, revision_of, turns
from dovetail.protocol.recording import masked
from dovetail.wire.elicitation import ElicitParams
from dovetail.wire.shape import replace

# What differs from one run to the next, or from one revision to another, and means nothing.
_VOLATILE = frozenset({"_meta", "resultType", "ttlMs", "cacheScope", "requestState", "nextCursor"})


@click.command("replay")
@options("RECORDING")
@click.option("--ignore", multiple=True, metavar="MEMBER", help="A member whose value may differ.")
@click.pass_context
def command(ctx: click.Context, ignore: tuple[str, ...], **given: Any) -> int:
    """Ask a server again what a recording asked, and compare the answers; exits with 6 if one differs.

    The revision is the one spoken then, unless another is asked for.

    \b
    dovetail replay server.py server.jsonl
    dovetail replay https://example.com/mcp server.jsonl --ignore time
    """
    line = asked(ctx, **given)
    if len(line.words) != (1 if line.command or line.module else 2):
        raise click.UsageError("give a target and a recording")
    parts = read_recording(line.words[-1])
    todo = [turn for turn in turns(parts) if turn.answer is not None and turn.method not in (*OPENING, *IDLE)]
    if not todo:
        raise click.UsageError(f"{line.words[-1]}: nothing was asked there")
    answers = iter(given_answers(parts, "elicitation/create"))

    def answer(_: ElicitParams) -> Any:
        said: dict[str, Any] = next(answers, None) or {}
        if said.get("action") != "accept":
            raise Declined
        return said.get("content") or {}

    async def work(spoken: Spoken) -> int:
        found = [one async for one in _compared(spoken, todo, frozenset(ignore) | _VOLATILE)]
        unlike = [_told(turn) for turn in todo if has_mask(turn.params)]
        said = {"asked": len(todo), "different": found, "masked": unlike}
        spoken.print(said, lambda: _shown(len(todo), found))
        for one in () if spoken.json else unlike:
            text.note(f"asked with a secret masked, as it was recorded, so the answer may be another: {one}")
        return exits.CONTRACT if found else exits.OK

    as_then = line.revision or (None if line.era else revision_of(turns(parts)))
    return converse(replace(line, words=line.words[:-1], revision=as_then), work, elicit=answer)


async def _compared(spoken: Spoken, todo: list[Turn], ignored: frozenset[str]) -> AsyncIterator[Any]:
    state: Any = None
    for turn in todo:
        params = turn.params | ({"requestState": state} if "requestState" in turn.params else {})
        try:
            result = await spoken.client.request(turn.method, params)
            state = result.get("requestState") if isinstance(result, dict) else None
            now: Any = {"result": _steady(result, ignored)}
        except PeerError as exc:
            now = {"error": {"code": exc.code, "message": exc.message}}
        before, now = _before(turn, ignored), masked(now)
        if not alike(before, now):
            yield {"method": turn.method, "params": turn.params, "recorded": before, "now": now}


def _before(turn: Turn, ignored: frozenset[str]) -> Any:
    answer = turn.answer or {}
    if "error" in answer:
        return {"error": {name: answer["error"].get(name) for name in ("code", "message")}}
    return {"result": _steady(answer.get("result"), ignored)}


def _steady(value: Any, ignored: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {name: _steady(one, ignored) for name, one in value.items() if name not in ignored}
    return [_steady(one, ignored) for one in value] if isinstance(value, list) else value


def _shown(asked: int, found: list[dict[str, Any]]) -> str:
    if not found:
        return f"all {asked} answers are as recorded"
    parts = [f"{len(found)} of {asked} answers differ"]
    for one in found:
        parts.append(text.style(text.line(f"{one['method']} {_json(one['params'])}"), bold=True))
        parts += _lines(one["recorded"], one["now"])
    return "\n".join(parts)


def _told(turn: Turn) -> str:
    return text.line(f"{turn.method} {_json(turn.params)}")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _lines(before: Any, now: Any) -> Iterator[str]:
    old, new = (json.dumps(one, indent=1, sort_keys=True, ensure_ascii=False).splitlines() for one in (before, now))
    colours = {"-": "red", "+": "green"}
    for line in difflib.unified_diff(old, new, "recorded", "now", lineterm="", n=2):
        yield text.style(text.line(line), fg=colours.get(line[0]))
