"""Create the entry that `dovetail install` writes to the configuration of a host, from the target of a command."""

import os
import re
import shutil
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

import click

from dovetail.cli.server_loader import split_object_name
from dovetail.cli.target_argument import MISSING_TARGET, TargetOptions, find_config_entry, make_absolute, parse_pairs
from dovetail.host.config.host_formats import HOST_FORMATS, REFERENCE_PATTERN, HostFormat
from dovetail.host.config.server_entry import ServerConfig
from dovetail.protocol.http_checks import LOOPBACK
from dovetail.wire.base import replace

_NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


def create_config_entry(
    options: TargetOptions, name: str | None, host: str, transport: Literal["http", "sse"] | None = None
) -> ServerConfig:
    """Create a configuration entry for a host from the target of a command.

    If `transport` is None, the target determines the transport.
    """
    if options.command:
        entry = _create_entry(
            name or _suggest_name(options.command),
            options,
            command=_find_program(options.command[0]),
            args=[*options.command[1:]],
        )
    elif options.module is not None:
        args = ["-m", "dovetail", "run", *options.environment_args, "-m", options.module]
        folder = options.cwd or os.getcwd()
        entry = _create_entry(name or options.module, options, command=sys.executable, args=args, cwd=folder)
    elif not options.args:
        raise click.UsageError(MISSING_TARGET)
    else:
        entry = _create_entry_for_target(options.args[0], name, options)
    if options.headers and entry.url is None:
        raise click.UsageError("--header requires a URL, not a command")
    if (options.env or options.cwd is not None) and entry.url is not None:
        raise click.UsageError("--env and --cwd require a command, not a URL")
    if not _NAME_PATTERN.fullmatch(entry.name):
        raise click.UsageError(f"invalid server name {entry.name!r}. Pass another name with --name")
    if transport is not None and entry.url is None:
        raise click.UsageError("--transport requires a URL, not a command")
    return _adapt_to_host(entry if transport is None else replace(entry, transport=transport), host)


def _create_entry_for_target(target_arg: str, name: str | None, options: TargetOptions) -> ServerConfig:
    if target_arg.startswith(("http://", "https://")):
        parts = urlsplit(target_arg)
        transport = "sse" if parts.path.rstrip("/").endswith("/sse") else "http"
        return _create_entry(name or _suggest_url_name(parts), options, url=target_arg, transport=transport)
    path = Path(split_object_name(target_arg)[0])
    if path.suffix in (".js", ".mjs"):
        return _create_entry(
            name or path.stem, options, command=_find_program("node"), args=[make_absolute(target_arg)]
        )
    if path.suffix == ".py":
        return _create_entry(
            name or path.stem,
            options,
            command=sys.executable,
            args=["-m", "dovetail", "run", *options.environment_args, make_absolute(target_arg)],
        )
    entry = find_config_entry(target_arg)
    return replace(entry, name=name or entry.name, **_get_overrides(options, entry))


def _suggest_url_name(parts: SplitResult) -> str:
    """Suggest a server name for a URL: the first part of the host name, or the IP address with dashes."""
    host = parts.hostname or ""
    if host in LOOPBACK:
        return "localhost"
    try:
        return re.sub(r"[.:]+", "-", str(ip_address(host))).strip("-")
    except ValueError:
        return host.partition(".")[0]


def _get_overrides(options: TargetOptions, entry: ServerConfig) -> dict[str, Any]:
    overrides: dict[str, Any] = {
        "env": entry.env | dict(_parse_variable(variable) for variable in options.env),
        "headers": entry.headers | parse_pairs(options.headers, ":", "--header"),
    }
    return overrides | ({"cwd": str(Path(options.cwd).resolve())} if options.cwd is not None else {})


def _create_entry(name: str, options: TargetOptions, **fields: Any) -> ServerConfig:
    entry = ServerConfig(name=name, source="", path=Path(), **fields)
    return replace(entry, **_get_overrides(options, entry))


def _parse_variable(option: str) -> tuple[str, str]:
    name, separator, value = option.partition("=")
    return name, value if separator else f"${{{name}}}"


def _adapt_to_host(entry: ServerConfig, host: str) -> ServerConfig:
    """Change an entry for a host. For example, if the host does not support URLs, replace the URL with a command."""
    host_format = HOST_FORMATS[host]
    changes: dict[str, Any] = {}
    if entry.url is not None and (
        host_format.url_key is None or (entry.transport == "sse" and not host_format.supports_sse)
    ):
        if entry.headers:
            raise click.UsageError(f"{host_format.title} starts a command for this URL, so it cannot send headers")
        changes = {"url": None, "command": sys.executable, "args": ["-m", "dovetail", "run", entry.url]}
    env = {name: f"${{{name}}}" for name in entry.env_passthrough} | entry.env
    passthrough: list[str] = []
    if host_format.passthrough_key is not None:
        passthrough = [name for name, value in env.items() if _get_reference_name(value) == name]
        env = {name: value for name, value in env.items() if name not in passthrough}
    env = {name: _convert_references(value, host_format, "--env") for name, value in env.items()}
    headers = {
        # For Codex, `format_entry` converts the headers that contain variables.
        name: value if host == "codex" else _convert_references(value, host_format, "--header")
        for name, value in entry.headers.items()
    }
    return replace(entry, env=env, env_passthrough=passthrough, headers=headers, **changes)


def _get_reference_name(value: str) -> str | None:
    match = REFERENCE_PATTERN.fullmatch(value)
    return None if match is None else match[1]


def _convert_references(value: str, host_format: HostFormat, option: str) -> str:
    match = REFERENCE_PATTERN.search(value)
    if match is None:
        return value
    if host_format.reference_format is None:
        example = f"--env {match[1]}=VALUE" if option == "--env" else "the header with its value"
        raise click.UsageError(f"{host_format.title} cannot read environment variables. Pass {example}")
    reference = host_format.reference_format
    return REFERENCE_PATTERN.sub(lambda reference_match: reference % reference_match[1], value)


def _find_program(program: str) -> str:
    return shutil.which(program) or program


def _suggest_name(command: Any) -> str:
    """Suggest a server name for a command. For a runner such as npx, use the name of the package."""
    program = Path(command[0]).stem
    if program in ("uvx", "npx", "bunx", "pipx", "node", "python", "python3", "docker"):
        candidates = [arg for arg in command[1:] if not arg.startswith("-") and arg != "run"]
        program = candidates[0] if candidates else program
    return Path(program.rpartition("@")[0] or program).stem
