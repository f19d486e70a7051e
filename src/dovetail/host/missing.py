"""What to say of a name that means no server or no tool, or more than one: what was meant, or why it is not there."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from dovetail.errors import clip
from dovetail.host.catalog import Catalog
from dovetail.host.entries import Problem
from dovetail.host.member import Member


def no_server(name: str, members: Iterable[Member], problems: Sequence[Problem]) -> str:
    """Why there is no server of a name."""
    told = f"there is no server {clip(name)}"
    for one in problems:
        if one.severe and one.text.startswith(f"{name}: "):
            return f"{told}: {one.text.removeprefix(f'{name}: ')}"
    known = [member.name for member in members]
    return told + (meant(name, known) or f"; there are: {', '.join(known) or 'none'}")


def no_tool(name: str, catalog: Catalog, members: Sequence[Member], problems: Sequence[Problem]) -> str:
    """Why a name means no tool of any server."""
    server, dot, _ = name.partition(".")
    if dot:
        return no_server(server, members, problems)
    same = [one.full for one in catalog.tools if one.name == name]
    if same:
        return f"several servers have a tool {clip(name)}: {', '.join(same)}"
    told = f"there is no tool {clip(name)}"
    close = get_close_matches(name, {one.name for one in catalog.tools}, 1)
    if close:
        return f"{told}; did you mean {' or '.join(one.full for one in catalog.tools if one.name in close)}?"
    silent = [one for one in members if one.reason is not None and "tool" not in one.known]
    return "; ".join([told, *(f"{one.name} could not be asked: {_reason(one)}" for one in silent)])


def meant(name: str, known: Iterable[str]) -> str:
    """What was meant by a name, to be put behind that there is none."""
    close = get_close_matches(name, [*known], 1)
    return f"; did you mean {close[0]}?" if close else ""


def _reason(member: Member) -> str:
    return clip(str(member.reason.args[0] if member.reason and member.reason.args else member.state))
