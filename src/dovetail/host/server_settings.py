"""The settings and states of one server of a host, and the identity of a target."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from dovetail.client.config_entry import read_entry, select_entry
from dovetail.client.targets import CommandTarget, HTTPTarget, Target
from dovetail.host.policy.quotas import ToolLimits
from dovetail.protocol.limits import Timeouts
from dovetail.wire.base import Struct
from dovetail.wire.codec import encode_canonical
from dovetail.wire.roots import Root

ServerState: TypeAlias = Literal["idle", "starting", "ready", "degraded", "unauthorized", "failed", "disabled"]


class ServerSettings(Struct, frozen=True, kw_only=True):
    """Settings for one server of a host. Times are in seconds."""

    trusted: bool = False  # True if the policy may rely on the tool annotations of this server
    include_tools: Sequence[str] = ("*",)  # globs for the names of the tools to offer
    exclude_tools: Sequence[str] = ()  # globs for the names of the tools to leave out
    start: Literal["lazy", "eager"] = "lazy"  # "lazy" starts the server on first use, "eager" when the host opens
    start_timeout: float = 30.0  # the maximum seconds for starting the server
    timeouts: Timeouts | None = None  # the timeouts for requests to the server
    # The roots that the server may see, or None for the roots of the host.
    roots: Sequence[str | Path | Root] | None = None
    limits: ToolLimits = ToolLimits()  # the limits for each tool, in addition to the limits in the policy
    idle_timeout: float | None = None  # seconds without use after which the server is stopped, or None for never
    list_timeout: float = 10.0  # the maximum seconds for listing tools, resources and prompts
    list_ttl: float = 60.0  # seconds to cache a list if the server does not report changes
    restart_delay: float = 1.0  # seconds before the first restart. Each failure doubles the delay
    max_restart_delay: float = 60.0  # the maximum seconds between two starts
    max_restarts: int = 5  # after this many failures in a row, the delay is `max_restart_delay`

    def __post_init__(self) -> None:
        for name in ("include_tools", "exclude_tools", "roots"):
            if isinstance(value := getattr(self, name), str):
                raise TypeError(f"the setting {name} must be a list of strings, not {value!r}")
        for name in ("start_timeout", "list_timeout"):
            if getattr(self, name) <= 0:
                raise ValueError(f"the setting {name} must be greater than 0")
        if str(self.start) not in ("lazy", "eager"):
            raise ValueError(f'start must be "lazy" or "eager", not {self.start!r}')


def compute_server_id(target: Target) -> str:
    """Return a digest of a target. References such as `${API_KEY}` are not replaced by their values.

    Headers are left out, because they identify the client and not the server.

    Args:
        target: Any target of a client.
    """
    return compute_project_server_id(target, "")


def compute_project_server_id(target: Target, origin: str) -> str:
    """Return a digest of a target and of the project file that defines the target."""
    return hashlib.sha256(encode_canonical([_describe_target(target), origin])).hexdigest()[:32]


def _describe_target(target: Any) -> Any:
    match target:
        case str() | Path():
            return {"target": str(target)}
        case list() | tuple():
            return {"command": str(target[0]) if target else "", "args": [str(arg) for arg in target[1:]]}
        case HTTPTarget():
            return {"target": target.url}
        case CommandTarget():
            program, *args = target.command
            entry = {"command": program, "args": args, "env": target.env, "cwd": target.cwd and str(target.cwd)}
            return _describe_target(entry)
        case Mapping():
            return _describe_entry(select_entry(target)[1])
        case _:  # The target is an object such as a `Server`.
            return {"object": f"{type(target).__module__}.{type(target).__qualname__}", "name": _get_name(target)}


def _describe_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    parts = read_entry(entry)
    if parts.url is not None:
        return {"target": str(parts.url)}
    process = {
        "command": parts.command, "args": parts.args, "env": parts.env,
        "envFile": entry.get("envFile"), "cwd": entry.get("cwd"),
    }  # fmt: skip
    return {name: value for name, value in process.items() if value}


def _get_name(target: Any) -> str:
    name = getattr(target, "name", "")
    return name if isinstance(name, str) else ""
