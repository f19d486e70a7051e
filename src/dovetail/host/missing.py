"""What to say of a name that means no server or no tool, or more than one: what was meant, or why it is not there."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from dovetail.errors import clip
from dovetail.host.catalog import Catalog
from dovetail.host.entries import Problem
from dovetail.host.member import Member


def explain_unknown_server(name: str, servers: Iterable[Member], problems: Sequence[Problem]) -> str:
    """Why there is no server of a name."""
    message = f"there is no server {clip(name)}"
    for problem in problems:
        if problem.severe and problem.text.startswith(f"{name}: "):
            return f"{message}: {problem.text.removeprefix(f'{name}: ')}"
    names = [server.name for server in servers]
    return message + (suggest_name(name, names) or f"; there are: {', '.join(names) or 'none'}")


def explain_unknown_tool(name: str, catalog: Catalog, servers: Sequence[Member], problems: Sequence[Problem]) -> str:
    """Why a name means no tool of any server."""
    server, dot, _ = name.partition(".")
    if dot:
        return explain_unknown_server(server, servers, problems)
    full_names = [tool.full for tool in catalog.tools if tool.name == name]
    if full_names:
        return f"several servers have a tool {clip(name)}: {', '.join(full_names)}"
    message = f"there is no tool {clip(name)}"
    matches = get_close_matches(name, {tool.name for tool in catalog.tools}, 1)
    if matches:
        return f"{message}; did you mean {' or '.join(tool.full for tool in catalog.tools if tool.name in matches)}?"
    failed_servers = [
        managed_server
        for managed_server in servers
        if managed_server.reason is not None and "tool" not in managed_server.known
    ]
    return "; ".join(
        [
            message,
            *(
                f"{managed_server.name} could not be asked: {_format_reason(managed_server)}"
                for managed_server in failed_servers
            ),
        ]
    )


def suggest_name(name: str, candidates: Iterable[str]) -> str:
    """What was meant by a name, to be put behind that there is none."""
    matches = get_close_matches(name, [*candidates], 1)
    return f"; did you mean {matches[0]}?" if matches else ""


def _format_reason(managed_server: Member) -> str:
    return clip(
        str(
            managed_server.reason.args[0]
            if managed_server.reason and managed_server.reason.args
            else managed_server.state
        )
    )
