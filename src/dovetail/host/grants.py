"""Grants: what the user agreed to, and exactly what for: this server, this definition, such arguments, until then.

A grant holds for the command or URL it was given for and for the definition the user saw; if either changes, it is
void without anybody having to notice.
"""

import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from dovetail.errors import InvalidParams
from dovetail.host.consent import Scope
from dovetail.host.ledger import Document, Ledger
from dovetail.host.policy import Question
from dovetail.wire.codec import canonical, convert, plain
from dovetail.wire.shape import Struct, replace

_TYPES: Final = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


class Grant(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One agreement."""

    id: str = ""  # given when it is added
    scope: Scope
    server: str
    identity: str
    tool: str
    kind: str = "tool.call"
    caller: str = ""
    fingerprint: str = ""
    shape: dict[str, Any] | None = None  # None: whatever the arguments
    project: str = ""
    granted: float = 0.0
    expires: float | None = None  # None: never

    def covers(self, question: Question, fingerprint: str, now: float) -> bool:
        """Whether the user agreed to this."""
        return (
            bool(self.identity)
            and (self.identity, self.tool, self.kind) == (question.identity, question.tool, question.kind)
            and self.caller == question.caller
            and self.fingerprint == fingerprint
            and not self.over(now)
            and (self.scope != "project" or (bool(self.project) and self.project == question.project))
            and (self.shape is None or fits(self.shape, question.arguments or {}))
        )

    def over(self, now: float) -> bool:
        """Whether its time has passed."""
        return self.expires is not None and now >= self.expires


def grant(
    question: Question,
    fingerprint: str,
    now: float,
    *,
    scope: Scope = "once",
    seconds: float | None = None,
    exact: Iterable[str] | None = None,
) -> Grant:
    """The grant for a question. `exact`: only for arguments of this shape, those named here with the same value."""
    return Grant(
        scope=scope,
        server=question.server,
        identity=question.identity,
        tool=question.tool,
        kind=question.kind,
        caller=question.caller,
        fingerprint=fingerprint,
        shape=None if exact is None else shape_of(question.arguments or {}, exact),
        project=question.project if scope == "project" else "",
        granted=now,
        expires=None if seconds is None else now + seconds,
    )


def shape_of(arguments: Mapping[str, Any], exact: Iterable[str] = ()) -> dict[str, Any]:
    """The names and types of arguments; those in `exact` with their value."""
    same = set(exact)
    if unknown := same - arguments.keys():
        raise ValueError(f"there is no argument {', '.join(sorted(unknown))}")
    return {name: {"const": value} if name in same else {"type": _type(value)} for name, value in arguments.items()}


def fits(shape: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """Whether arguments have a shape: no other names, the same types, the same values where they are named."""
    if not arguments.keys() <= shape.keys():
        return False
    for name, part in shape.items():
        if "const" in part:
            if name not in arguments or canonical(arguments[name]) != canonical(part["const"]):
                return False
        elif name in arguments and _type(arguments[name]) != part.get("type"):
            return False
    return True


def _type(value: Any) -> str:
    return _TYPES.get(type(value), "null")


class Grants:
    """All grants of a user: those of this run in memory, all others in a file, if there is one."""

    def __init__(self, path: str | Path | None = None) -> None:
        self._file = Ledger(path)
        self._run = Ledger()

    @property
    def path(self) -> Path | None:
        """The file, if there is one."""
        return self._file.path

    def add(self, grant: Grant) -> Grant:
        """Remember a grant; the same with its id. ValueError for one that says nothing of whom it is for."""
        if not grant.identity:
            raise ValueError("a grant is for a server of known identity")
        made = replace(grant, id=secrets.token_hex(8))
        self._home(made).change(lambda document: document.setdefault("grants", []).append(plain(made)))
        return made

    def find(self, question: Question, fingerprint: str, now: float) -> Grant | None:
        """The grant that covers a question. One given for once is gone with that; of several processes one gets it."""
        for home in (self._run, self._file):
            for one in _read(home.read()):
                if one.covers(question, fingerprint, now) and (one.scope != "once" or _taken(home, one)):
                    return one
        return None

    def revoke(self, id: str | None = None, *, server: str | None = None, tool: str | None = None) -> int:
        """Take grants back, by id, or all of a server or a tool; how many."""
        if id is None and server is None and tool is None:
            raise ValueError("which grants? Give an id, a server or a tool")

        def edit(document: Document) -> int:
            wanted = (("id", id), ("server", server), ("tool", tool))
            before = [*document.get("grants", ())]
            document["grants"] = [
                one for one in before if any(value is not None and one.get(name) != value for name, value in wanted)
            ]
            return len(before) - len(document["grants"])

        return self._run.change(edit) + self._file.change(edit)

    def list(self, now: float) -> "list[Grant]":
        """The grants that still hold, oldest first."""
        found = [one for home in (self._run, self._file) for one in _read(home.read()) if not one.over(now)]
        return sorted(found, key=lambda one: (one.granted, one.id))

    def prune(self, now: float) -> None:
        """Forget those whose time has passed."""

        def edit(document: Document) -> None:
            document["grants"] = [plain(one) for one in _read(document) if not one.over(now)]

        self._run.change(edit)
        self._file.change(edit)

    def _home(self, grant: Grant) -> Ledger:
        return self._run if grant.scope == "session" else self._file


def _read(document: Document) -> "list[Grant]":
    """The grants of a document; what is none is nobody's agreement."""
    found: list[Grant] = []
    for one in document.get("grants") or ():
        try:
            found.append(convert(one, Grant))
        except InvalidParams:
            continue
    return found


def _taken(home: Ledger, grant: Grant) -> bool:
    def edit(document: Document) -> bool:
        kept = [one for one in document.get("grants", ()) if one.get("id") != grant.id]
        gone = len(kept) < len(document.get("grants", ()))
        document["grants"] = kept
        return gone

    return home.change(edit)
