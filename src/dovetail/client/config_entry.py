"""Entries of an mcp.json: the command or the URL of one server, with the key names of any known host.

Clients, configuration files and the identity of a server all read entries here, so that they mean the same server.
Nothing is converted. The callers check the types of the values.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from dovetail.error_context import clip, describe_value

_URL_KEYS: Final = ("url", "httpUrl", "serverUrl", "uri")
_ENV_KEYS: Final = ("env", "environment", "envs")


class EntryParts(NamedTuple):
    """The command or URL of an mcp.json entry, exactly as written."""

    command: Any  # the program, or None
    args: Any
    env: Any
    url: Any  # None if the entry has a command


def select_entry(config: Mapping[str, Any]) -> tuple[str | None, Mapping[str, Any]]:
    """Return the name and the entry of the only server in an mcp.json. If `config` itself is an entry, the name is
    None.
    """
    servers = config.get("mcpServers") or config.get("servers")
    if not isinstance(servers, Mapping):
        return None, config
    if len(servers) != 1:
        raise ValueError(f"the configuration contains {len(servers)} servers. Pass only one of its entries")
    ((name, entry),) = servers.items()
    if not isinstance(entry, Mapping):
        raise ValueError(
            f"the entry {clip(str(name))!r} of the mcp.json must be an object, not {describe_value(entry)}"
        )
    return str(name), entry


def read_entry(entry: Mapping[str, Any]) -> EntryParts:
    """Return the command or URL of an mcp.json entry. If the entry has both, use the command."""
    command, args = entry.get("command") or entry.get("cmd"), entry.get("args") or []
    env = _get_first(entry, _ENV_KEYS)
    if isinstance(command, Mapping):  # Older versions of Zed store the command as an object.
        env = _merge(command.get("env"), env)
        command, args = command.get("path"), command.get("args") or []
    if isinstance(command, list) and command:  # opencode stores the command and its arguments in one list.
        command, args = command[0], [*command[1:], *args] if isinstance(args, list) else args
    return EntryParts(command, args, env, None if isinstance(command, str) else _get_first(entry, _URL_KEYS))


def _get_first(entry: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((entry[name] for name in names if entry.get(name)), None)


def _merge(inner: Any, outer: Any) -> Any:
    """Merge two mappings. If a value is not a mapping, return that value, so that the caller can reject it."""
    if isinstance(inner, Mapping) and isinstance(outer, Mapping):
        return {**inner, **outer}
    return inner if outer is None or not (inner is None or isinstance(inner, Mapping)) else outer
