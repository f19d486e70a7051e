"""Shell completion of commands, options, targets, and the tools and arguments of a target.

When you press Tab, dovetail connects only to a URL or to a server in the user's own configuration files. The server
has a few seconds to list its items, and the lists are cached for a minute. No other program is started, because the
user has not pressed Enter yet. For a program, the last `dovetail list` or `call` has stored the items. Each suggestion
is a single word for the shell.
"""

import asyncio
import hashlib
import json
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from dovetail.cli.target_argument import (
    TARGET_SUFFIXES,
    TargetOptions,
    build_client_options,
    can_connect_unasked,
    qualify_names,
)
from dovetail.errors import MCPError

_REQUEST_TIMEOUT_S = 5.0
_CACHE_TTL_S = 60.0
_MEMORY_TTL_S = 30 * 24 * 3600.0  # the seconds for which the items of a server are cached
_SHELL_SAFE_PATTERN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)


class Candidate(NamedTuple):
    """A word that shell completion suggests, with a short description."""

    text: str
    description: str = ""


def print_candidates(shell: str, commands: click.Group, descriptions: Mapping[str, str]) -> None:
    """Print one suggestion per line for shell completion. `descriptions` maps each command to its summary."""
    line, cursor = os.environ.get("COMP_LINE", ""), int(os.environ.get("COMP_POINT") or 0)
    prefix = _split_line(line[:cursor])[-1]
    for candidate in list_candidates(line, cursor, commands, descriptions):
        text = candidate.text
        if shell == "bash":
            # bash splits words at "=" and ":", so only the part after the last separator is printed.
            text = text[max(prefix.rfind("="), prefix.rfind(":")) + 1 :]
        suffix = f"\t{candidate.description}" if candidate.description and shell == "fish" else ""
        sys.stdout.write(f"{text}{suffix}\n")


def list_candidates(
    line: str, cursor: int, commands: click.Group, descriptions: Mapping[str, str]
) -> Iterator[Candidate]:
    """Yield suggestions for the word at the cursor."""
    *preceding, prefix = _split_line(line[:cursor])
    following = _split_line(line[cursor:])
    target_command = following[following.index("--") + 1 :] if "--" in following else []
    if "--" not in preceding:
        command_candidates = [Candidate(name, description) for name, description in descriptions.items()]
        for candidate in _complete_line(
            commands, command_candidates, preceding[1:], prefix, [arg for arg in target_command if arg]
        ):
            # Names from a server that look like options are not suggested.
            if candidate.text.startswith("-") and not prefix.startswith("-"):
                continue
            if candidate.text.startswith(prefix) and _SHELL_SAFE_PATTERN.fullmatch(candidate.text):
                yield Candidate(candidate.text, candidate.description.split("\n")[0][:80])


def _split_line(line: str) -> list[str]:
    """Split a command line into words. The last word is the word that the user is typing."""
    for closing_quote in ("", '"', "'"):
        try:
            tokens = shlex.split(line + closing_quote)
        except ValueError:
            continue
        return [*tokens, ""] if not closing_quote and (not line or line[-1].isspace()) else tokens or [""]
    return [""]


def _complete_line(
    group: click.Group,
    command_candidates: list[Candidate],
    preceding: list[str],
    prefix: str,
    target_command: list[str],
) -> Iterable[Candidate]:
    names: list[str] = []
    while preceding and not preceding[0].startswith("-"):
        subcommand = group.get_command(click.Context(group), preceding[0])
        if subcommand is None:
            return []
        names.append(preceding[0])
        preceding = preceding[1:]
        if not isinstance(subcommand, click.Group):
            return _complete_command(" ".join(names), subcommand, preceding, prefix, target_command)
        group, command_candidates = (
            subcommand,
            [
                Candidate(name, nested_command.get_short_help_str(80))
                for name, nested_command in subcommand.commands.items()
            ],
        )
    return command_candidates


def _complete_command(
    name: str, command: click.Command, preceding: list[str], prefix: str, target_command: list[str]
) -> Iterable[Candidate]:
    options = [option for option in command.params if isinstance(option, click.Option)]
    if prefix.startswith("-"):
        return [Candidate(max(option.opts, key=len), option.help or "") for option in options]
    if preceding and (
        current_option := next(
            (option for option in options if preceding[-1] in option.opts and not option.is_flag), None
        )
    ):
        return _complete_value(current_option, prefix)
    ctx = command.make_context(command.name, [*preceding], obj=target_command, resilient_parsing=True)
    args: tuple[str, ...] = ctx.params.get("args") or ()
    if name == "uninstall":
        return _list_configured_servers()
    if "args" not in ctx.params:
        return _list_files(prefix)
    if name.startswith("tasks "):
        return _complete_tasks(name, ctx.params, prefix)
    known_params = {name: value for name, value in ctx.params.items() if name in TargetOptions.__struct_fields__}
    target_options = TargetOptions(command=target_command, **known_params)
    argument_count = len(args) if target_command or target_options.module else len(args) - 1
    if argument_count < 0:
        return [*_list_files(prefix), *_list_configured_servers()]
    return _complete_arguments(name, target_options, args[len(args) - argument_count :], prefix)


def _complete_value(option: click.Option, prefix: str) -> Iterable[Candidate]:
    if isinstance(option.type, click.Choice):
        return [Candidate(str(choice)) for choice in option.type.choices]
    return _list_files(prefix, all_files=True) if isinstance(option.type, click.Path) else []


def _list_files(prefix: str, *, all_files: bool = False) -> Iterator[Candidate]:
    folder, _, name_prefix = prefix.rpartition("/")
    folder_prefix = f"{folder}/" if "/" in prefix else ""
    try:
        dir_entries = sorted(os.scandir(folder_prefix or "."), key=lambda dir_entry: dir_entry.name)
    except OSError:
        return
    for dir_entry in dir_entries:
        if dir_entry.name.startswith(name_prefix or ".") == bool(name_prefix):
            if dir_entry.is_dir():
                yield Candidate(f"{folder_prefix}{dir_entry.name}/")
            elif all_files or dir_entry.name.endswith(TARGET_SUFFIXES):
                yield Candidate(f"{folder_prefix}{dir_entry.name}")


def _list_configured_servers() -> Iterator[Candidate]:
    from dovetail.host.config.config_files import discover_configs

    entries = discover_configs()[0]
    for entry, name in zip(entries, qualify_names(entries), strict=True):
        yield Candidate(name, entry.source)


# The kind of item that shell completion suggests for each command.

_ITEM_KINDS = {
    "call": "tools", "bench": "tools", "prompt": "prompts", "complete": "prompts", "read": "resources",
    "listen": "resources", "skills show": "skills", "skills verify": "skills", "skills pull": "skills",
}  # fmt: skip


def _complete_arguments(
    command: str, target_options: TargetOptions, args: tuple[str, ...], prefix: str
) -> Iterable[Candidate]:
    if command == "list":
        return [Candidate(kind) for kind in ("tools", "resources", "templates", "prompts")]
    if command == "diff":
        return [*_list_files(prefix), *_list_configured_servers()] if not args else []
    if command == "replay":
        return _list_files(prefix)
    item_kind = _ITEM_KINDS.get(command)
    return [] if item_kind is None else _complete_items(command, item_kind, target_options, args, prefix)


def _complete_items(
    command: str, item_kind: str, target_options: TargetOptions, args: tuple[str, ...], prefix: str
) -> Iterable[Candidate]:
    items = _load_items(target_options).get(item_kind) or {}
    if not args:
        return [Candidate(name, item["description"]) for name, item in items.items()]
    if command == "skills pull":
        return _list_files(prefix) if len(args) == 1 else []
    arguments: dict[str, Any] = (items.get(args[0]) or {}).get("arguments") or {}
    if item_kind == "skills":
        return [Candidate(path) for path in arguments] if command == "skills show" and len(args) == 1 else []
    name, separator, _ = prefix.partition("=")
    if separator:
        return [Candidate(f"{name}={value}") for value in arguments.get(name) or ()]
    used_names = {arg.partition("=")[0] for arg in args[1:]}
    return [Candidate(f"{argument}=") for argument in arguments if argument not in used_names]


def _complete_tasks(command: str, params: Mapping[str, Any], prefix: str) -> Iterable[Candidate]:
    from dovetail.cli.task_stores import SHORT_ID_CHARS, StoreOptions, list_known_ids, list_server_names

    fields = {name: value for name, value in params.items() if name in StoreOptions.__struct_fields__}
    options = StoreOptions(**fields)
    if not (options.args or options.store or options.module):
        return [*_list_files(prefix), *map(Candidate, list_server_names())]
    if command == "tasks list":
        return []
    try:
        records = asyncio.run(list_known_ids(options))
    except (MCPError, click.UsageError, OSError, ValueError):
        return []
    return [Candidate(id[:SHORT_ID_CHARS], f"{record.tool} {record.status}") for id, record in records.items()]


def _load_items(target_options: TargetOptions) -> dict[str, Any]:
    file = _get_memory_file(target_options)
    items, age = _read_memory(file)
    if age < _CACHE_TTL_S or not can_connect_unasked(target_options):
        return items
    items = asyncio.run(_fetch_items(target_options))
    _write_memory(file, items)
    return items


def remember_items(target_options: TargetOptions, items_by_kind: Mapping[str, Sequence[Any]]) -> None:
    """Store the items of a server, so that shell completion can suggest them without starting the server."""
    try:
        file = _get_memory_file(target_options)
    except (OSError, RuntimeError):  # The current directory was deleted, or the user has no home directory.
        return
    items, age = _read_memory(file)
    new_items = {kind: _describe_items(kind, items) for kind, items in items_by_kind.items() if kind in _KIND_NAMES}
    if items | new_items != items or age > _MEMORY_TTL_S / 2:
        _write_memory(file, items | new_items)


def _get_memory_file(target_options: TargetOptions) -> Path:
    from dovetail.storage import get_cache_dir

    is_named = not target_options.command and target_options.module is None
    key = (
        list(target_options.command) or target_options.module or list(target_options.args[:1]),
        is_named,
        *(list(getattr(target_options, name)) for name in ("headers", "env")),
        target_options.auth,
        target_options.cwd,
        os.getcwd(),
    )
    return get_cache_dir() / "completion" / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}.json"


def _read_memory(file: Path) -> tuple[dict[str, Any], float]:
    try:
        return json.loads(file.read_bytes()), time.time() - file.stat().st_mtime
    except (OSError, ValueError):
        return {}, math.inf


def _write_memory(file: Path, items: dict[str, Any]) -> None:
    from dovetail.storage import make_private_dir, replace_file

    try:
        make_private_dir(file.parent)
        for old_file in file.parent.iterdir():
            if time.time() - old_file.stat().st_mtime > _MEMORY_TTL_S:
                old_file.unlink()
        replace_file(file, json.dumps(items).encode())
    except OSError:
        pass


async def _fetch_items(target_options: TargetOptions) -> dict[str, Any]:
    from dovetail.cli.command_runner import list_items
    from dovetail.client.client import Client

    try:
        target, _ = target_options.split_target(should_prompt=False)
        async with (
            asyncio.timeout(_REQUEST_TIMEOUT_S),
            Client(target, **build_client_options(target_options, target)) as client,
        ):
            return {kind: _describe_items(kind, await list_items(client, kind)) for kind in _KIND_NAMES}
    except (MCPError, click.UsageError, TimeoutError, OSError, ValueError, TypeError):
        return {}


_KIND_NAMES = ("tools", "prompts", "resources", "skills")


def _describe_items(kind: str, items: Sequence[Any]) -> dict[str, Any]:
    match kind:
        case "tools":
            return {tool.name: _describe_item(tool, _list_tool_arguments(tool)) for tool in items}
        case "prompts":
            return {prompt.name: _describe_item(prompt, _list_prompt_arguments(prompt)) for prompt in items}
        case "skills":
            return {skill.name: _describe_item(skill, {path: [] for path in skill.files}) for skill in items}
        case _:
            return {resource.uri: _describe_item(resource, {}) for resource in items}


def _describe_item(item: Any, arguments: dict[str, list[str]]) -> dict[str, Any]:
    from dovetail.terminal import output

    return {"description": output.escape_line(item.description or ""), "arguments": arguments}


def _list_tool_arguments(tool: Any) -> dict[str, list[str]]:
    from dovetail.schemas.reader import get_mapping, resolve_schema

    schema = tool.input_schema
    return {
        name: [*_iter_choices(property_schema, schema)]
        for name, property_schema in get_mapping(resolve_schema(schema, schema)).items()
    }


def _iter_choices(property_schema: Any, root: Mapping[str, Any], depth: int = 8) -> Iterator[str]:
    from dovetail.schemas.reader import get_list, resolve_schema

    resolved_schema = resolve_schema(property_schema, root)
    if resolved_schema.get("type") == "boolean":
        yield from ("true", "false")
    for value in get_list(resolved_schema, "enum"):
        yield str(value)
    for alternative in get_list(resolved_schema, "anyOf") if depth else ():
        yield from _iter_choices(alternative, root, depth - 1)


def _list_prompt_arguments(prompt: Any) -> dict[str, list[str]]:
    return {argument.name: [] for argument in prompt.arguments or ()}
