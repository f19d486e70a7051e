"""How a host treats one server, the states of a server, and which server a target is."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from dovetail.client.targets import CommandTarget, HTTPTarget, Target
from dovetail.host.policy.quotas import ToolLimits
from dovetail.protocol.limits import Timeouts
from dovetail.wire.base import Struct
from dovetail.wire.codec import encode_canonical
from dovetail.wire.roots import Root

ServerState: TypeAlias = Literal["idle", "starting", "ready", "degraded", "unauthorized", "failed", "disabled"]


class ServerSettings(Struct, frozen=True, kw_only=True):
    """How a host treats one server. Times are in seconds."""

    trusted: bool = False  # whether a policy believes the annotations of its tools
    include_tools: Sequence[str] = ("*",)  # globs of tool names
    exclude_tools: Sequence[str] = ()
    start: Literal["lazy", "eager"] = "lazy"
    start_timeout: float = 30.0
    timeouts: Timeouts | None = None  # of the client's requests
    roots: Sequence[str | Path | Root] | None = None  # None: the roots of the host
    limits: ToolLimits = ToolLimits()  # of each tool, in addition to the limits of the policy
    idle_timeout: float | None = None  # stop the server if it is unused for so long
    list_timeout: float = 10.0
    list_ttl: float = 60.0  # of a list, if the server does not send change notices
    restart_delay: float = 1.0  # doubles with each failed start
    max_restart_delay: float = 60.0
    max_restarts: int = 5  # after so many failures in a row, wait `max_restart_delay` between attempts

    def __post_init__(self) -> None:
        for name in ("include_tools", "exclude_tools", "roots"):
            if isinstance(value := getattr(self, name), str):
                raise TypeError(f"{name} must be a list, not {value!r}")
        for name in ("start_timeout", "list_timeout"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be greater than 0")
        if str(self.start) not in ("lazy", "eager"):
            raise ValueError(f'start must be "lazy" or "eager", not {self.start!r}')


_PROCESS_KEYS: Final = ("command", "args", "env", "cwd")


def identify_server(target: Target) -> str:
    """Return the digest of a target as written. References are not resolved, so it holds no secret.

    Headers are left out: they identify the client, not the server.
    """
    return identify_project_server(target, "")


def identify_project_server(target: Target, origin: str) -> str:
    """Return the digest of a target of a project's file. The same target in another file is another server."""
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
        case Mapping() if target.get("url"):
            return {"target": str(target["url"])}
        case Mapping():
            return {name: target[name] for name in _PROCESS_KEYS if target.get(name)}
        case _:  # an object of this process, which nobody else can put there
            return {"object": f"{type(target).__module__}.{type(target).__qualname__}", "name": _get_name(target)}


def _get_name(target: Any) -> str:
    name = getattr(target, "name", "")
    return name if isinstance(name, str) else ""
