"""What a word on a command line may become: commands, options, targets, and what a target offers.

A target is asked what it offers when the key is pressed, for a few seconds at most, and its answer remembered for a
minute. Nothing a shell would take for more than a word is ever suggested.
"""

import asyncio
import hashlib
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from dovetail.cli.targets import Asked, client_options

_PATIENCE = 5.0
_REMEMBERED = 60.0
_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
_FILES = (".py", ".jsonl", ".json", ".js", ".mjs", ".ts")


class Word(NamedTuple):
    """A suggestion, and a few words about it."""

    text: str
    told: str = ""


def suggest(shell: str, commands: click.Group, told: Mapping[str, str]) -> None:
    """Answer a shell: one suggestion a line. `told` is what is said of each command."""
    line, point = os.environ.get("COMP_LINE", ""), int(os.environ.get("COMP_POINT") or 0)
    typed = _split(line[:point])[-1]
    for word in suggestions(line, point, commands, told):
        text = word.text
        if shell == "bash":
            # bash takes a word apart at these, and wants only what follows the last of them.
            text = text[max(typed.rfind("="), typed.rfind(":")) + 1 :]
        more = f"\t{word.told}" if word.told and shell == "fish" else ""
        sys.stdout.write(f"{text}{more}\n")


def suggestions(line: str, point: int, commands: click.Group, told: Mapping[str, str]) -> Iterator[Word]:
    """What the word at this point of a line may become."""
    *before, typed = _split(line[:point])
    after = _split(line[point:])
    command = after[after.index("--") + 1 :] if "--" in after else []
    if "--" not in before:
        first = [Word(name, said) for name, said in told.items()]
        for word in _words(commands, first, before[1:], typed, [one for one in command if one]):
            if word.text.startswith(typed) and _PLAIN.fullmatch(word.text):
                yield Word(word.text, word.told.split("\n")[0][:80])


def _split(line: str) -> list[str]:
    """The words of a line; the last one is the one being typed, and may be empty."""
    for end in ("", '"', "'"):
        try:
            words = shlex.split(line + end)
        except ValueError:
            continue
        return [*words, ""] if not end and (not line or line[-1].isspace()) else words or [""]
    return [""]


def _words(group: click.Group, first: list[Word], before: list[str], typed: str, after: list[str]) -> Iterable[Word]:
    while before and not before[0].startswith("-"):
        found = group.get_command(click.Context(group), before[0])
        if found is None:
            return []
        before = before[1:]
        if not isinstance(found, click.Group):
            return _of_command(found, before, typed, after)
        group, first = found, [Word(name, one.get_short_help_str(80)) for name, one in found.commands.items()]
    return first


def _of_command(command: click.Command, before: list[str], typed: str, after: list[str]) -> Iterable[Word]:
    options = [one for one in command.params if isinstance(one, click.Option)]
    if typed.startswith("-"):
        return [Word(max(one.opts, key=len), one.help or "") for one in options]
    if before and (given := next((one for one in options if before[-1] in one.opts and not one.is_flag), None)):
        return _values(given, typed)
    ctx = command.make_context(command.name, [*before], obj=after, resilient_parsing=True)
    words: tuple[str, ...] = ctx.params.get("words") or ()
    if "words" not in ctx.params:
        return _places(typed)
    known = {name: value for name, value in ctx.params.items() if name in Asked.__struct_fields__}
    line = Asked(command=after, **known)
    place = len(words) if after or line.module else len(words) - 1
    if place < 0:
        return [*_places(typed), *_configured()]
    return _offered(command.name or "", line, words[len(words) - place :], typed)


def _values(option: click.Option, typed: str) -> Iterable[Word]:
    if isinstance(option.type, click.Choice):
        return [Word(str(one)) for one in option.type.choices]
    return _places(typed, every=True) if isinstance(option.type, click.Path | click.File) else []


def _places(typed: str, *, every: bool = False) -> Iterator[Word]:
    """Files that may be a target, and folders on the way to them."""
    folder, _, start = typed.rpartition("/")
    head = f"{folder}/" if "/" in typed else ""
    try:
        found = sorted(os.scandir(head or "."), key=lambda one: one.name)
    except OSError:
        return
    for one in found:
        if one.name.startswith(start or ".") == bool(start):
            if one.is_dir():
                yield Word(f"{head}{one.name}/")
            elif every or one.name.endswith(_FILES):
                yield Word(f"{head}{one.name}")


def _configured() -> Iterator[Word]:
    from dovetail.host.config import read_known

    for one in read_known()[0]:
        yield Word(one.name, one.source)


# What a target offers

_SOURCES = {
    "call": "tools", "bench": "tools", "prompt": "prompts", "complete": "prompts", "read": "resources",
    "listen": "resources",
}  # fmt: skip


def _offered(command: str, line: Asked, words: tuple[str, ...], typed: str) -> Iterable[Word]:
    if command == "list":
        return [Word(one) for one in ("tools", "resources", "templates", "prompts")]
    if command == "diff":
        return [*_places(typed), *_configured()] if not words else []
    if command == "replay":
        return _places(typed)
    source = _SOURCES.get(command)
    if source is None:
        return []
    found = _remembered(line).get(source) or {}
    if not words:
        return [Word(name, one["told"]) for name, one in found.items()]
    arguments: dict[str, Any] = (found.get(words[0]) or {}).get("arguments") or {}
    name, mark, _ = typed.partition("=")
    if mark:
        return [Word(f"{name}={value}") for value in arguments.get(name) or ()]
    used = {word.partition("=")[0] for word in words[1:]}
    return [Word(f"{one}=") for one in arguments if one not in used]


def _remembered(line: Asked) -> dict[str, Any]:
    place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dovetail" / "completion"
    file = place / f"{hashlib.sha256(repr((line, os.getcwd(), _stamp(line))).encode()).hexdigest()[:32]}.json"
    try:
        if time.time() - file.stat().st_mtime < _REMEMBERED:
            return json.loads(file.read_bytes())
    except (OSError, ValueError):
        pass
    found = asyncio.run(_ask(line))
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in place.iterdir():
            if time.time() - old.stat().st_mtime > _REMEMBERED:
                old.unlink()
        file.write_text(json.dumps(found), encoding="utf-8")
    except OSError:
        pass
    return found


def _stamp(line: Asked) -> float:
    """When a target that is a file was last written."""
    try:
        return os.stat(line.words[0].partition(":")[0]).st_mtime if line.words else 0.0
    except OSError:
        return 0.0


async def _ask(line: Asked) -> dict[str, Any]:
    from dovetail.cli.list import listed
    from dovetail.connect import Client
    from dovetail.errors import MCPError

    try:
        target, _ = line.split()
        async with asyncio.timeout(_PATIENCE), Client(target, **client_options(line, target)) as client:
            return {
                "tools": {one.name: _about(one, _of_tool(one)) for one in await listed(client, "tools")},
                "prompts": {one.name: _about(one, _of_prompt(one)) for one in await listed(client, "prompts")},
                "resources": {one.uri: _about(one, {}) for one in await listed(client, "resources")},
            }
    except (MCPError, click.UsageError, TimeoutError, OSError, ValueError, TypeError):
        return {}


def _about(one: Any, arguments: dict[str, list[str]]) -> dict[str, Any]:
    from dovetail.cli import text

    return {"told": text.line(one.description or ""), "arguments": arguments}


def _of_tool(tool: Any) -> dict[str, list[str]]:
    from dovetail.protocol.resolving import named, resolved

    schema = tool.input_schema
    return {name: [*_choices(rule, schema)] for name, rule in named(resolved(schema, schema)).items()}


def _choices(given: Any, root: Mapping[str, Any], depth: int = 8) -> Iterator[str]:
    from dovetail.protocol.resolving import listed, resolved

    rule = resolved(given, root)
    if rule.get("type") == "boolean":
        yield from ("true", "false")
    for one in listed(rule, "enum"):
        yield str(one)
    for part in listed(rule, "anyOf") if depth else ():
        yield from _choices(part, root, depth - 1)


def _of_prompt(prompt: Any) -> dict[str, list[str]]:
    return {one.name: [] for one in prompt.arguments or ()}
