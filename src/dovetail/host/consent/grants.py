"""Grants: what the user agreed to, and exactly what for: this server, this definition, such arguments, until then.

A grant holds for the command or URL it was given for and for the definition the user saw; if either changes, it is
void without anybody having to notice.
"""

import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from dovetail.errors import InvalidParams
from dovetail.host.consent.consent import Scope
from dovetail.host.policy.policy import PolicyRequest
from dovetail.storage import Document, SharedDocument
from dovetail.wire.base import Struct, replace
from dovetail.wire.codec import convert, encode_canonical, to_plain

_TYPE_NAMES: Final = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


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
    arguments: dict[str, Any] | None = None  # None: whatever the arguments
    project: str = ""
    granted_at: float = 0.0
    expires_at: float | None = None  # None: never

    def covers(self, request: PolicyRequest, fingerprint: str, now: float) -> bool:
        """Whether the user agreed to this."""
        return (
            bool(self.identity)
            and (self.identity, self.tool, self.kind) == (request.server_identity, request.tool, request.kind)
            and self.caller == request.caller
            and self.fingerprint == fingerprint
            and not self.is_expired(now)
            and (self.scope != "project" or (bool(self.project) and self.project == request.project))
            and (self.arguments is None or matches_shape(self.arguments, request.arguments or {}))
        )

    def is_expired(self, now: float) -> bool:
        """Whether its time has passed."""
        return self.expires_at is not None and now >= self.expires_at


def grant(
    request: PolicyRequest,
    fingerprint: str,
    now: float,
    *,
    scope: Scope = "once",
    ttl: float | None = None,
    exact_names: Iterable[str] | None = None,
) -> Grant:
    """The grant for a question. `exact`: only for arguments of this shape, those named here with the same value."""
    return Grant(
        scope=scope,
        server=request.server,
        identity=request.server_identity,
        tool=request.tool,
        kind=request.kind,
        caller=request.caller,
        fingerprint=fingerprint,
        arguments=None if exact_names is None else build_argument_shape(request.arguments or {}, exact_names),
        project=request.project if scope == "project" else "",
        granted_at=now,
        expires_at=None if ttl is None else now + ttl,
    )


def build_argument_shape(arguments: Mapping[str, Any], exact_names: Iterable[str] = ()) -> dict[str, Any]:
    """The names and types of arguments; those in `exact` with their value."""
    fixed_names = set(exact_names)
    if unknown := fixed_names - arguments.keys():
        raise ValueError(f"there is no argument {', '.join(sorted(unknown))}")
    return {
        name: {"const": value} if name in fixed_names else {"type": _get_type_name(value)}
        for name, value in arguments.items()
    }


def matches_shape(shape: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """Whether arguments have a shape: no other names, the same types, the same values where they are named."""
    if not arguments.keys() <= shape.keys():
        return False
    for name, constraint in shape.items():
        if "const" in constraint:
            if name not in arguments or encode_canonical(arguments[name]) != encode_canonical(constraint["const"]):
                return False
        elif name in arguments and _get_type_name(arguments[name]) != constraint.get("type"):
            return False
    return True


def _get_type_name(value: Any) -> str:
    return _TYPE_NAMES.get(type(value), "null")


class GrantStore:
    """All grants of a user: those of this run in memory, all others in a file, if there is one."""

    def __init__(self, path: str | Path | None = None) -> None:
        self._stored_document = SharedDocument(path)
        self._session_document = SharedDocument()

    @property
    def path(self) -> Path | None:
        """The file, if there is one."""
        return self._stored_document.path

    def add(self, grant: Grant) -> Grant:
        """Remember a grant; the same with its id. ValueError for one that says nothing of whom it is for."""
        if not grant.identity:
            raise ValueError("a grant is for a server of known identity")
        added = replace(grant, id=secrets.token_hex(8))
        self._document_for(added).change(lambda document: document.setdefault("grants", []).append(to_plain(added)))
        return added

    def find(self, request: PolicyRequest, fingerprint: str, now: float) -> Grant | None:
        """The grant that covers a question. One given for once is gone with that; of several processes one gets it."""
        for store in (self._session_document, self._stored_document):
            for candidate in _parse_grants(store.read()):
                if candidate.covers(request, fingerprint, now) and (
                    candidate.scope != "once" or _use_once(store, candidate)
                ):
                    return candidate
        return None

    def revoke(self, id: str | None = None, *, server: str | None = None, tool: str | None = None) -> int:
        """Take grants back, by id, or all of a server or a tool; how many."""
        if id is None and server is None and tool is None:
            raise ValueError("which grants? Give an id, a server or a tool")

        def edit(document: Document) -> int:
            criteria = (("id", id), ("server", server), ("tool", tool))
            existing = [*document.get("grants", ())]
            document["grants"] = [
                record
                for record in existing
                if any(value is not None and record.get(name) != value for name, value in criteria)
            ]
            return len(existing) - len(document["grants"])

        return self._session_document.change(edit) + self._stored_document.change(edit)

    def list(self, now: float) -> "list[Grant]":
        """The grants that still hold, oldest first."""
        active = [
            candidate
            for store in (self._session_document, self._stored_document)
            for candidate in _parse_grants(store.read())
            if not candidate.is_expired(now)
        ]
        return sorted(active, key=lambda candidate: (candidate.granted_at, candidate.id))

    def prune(self, now: float) -> None:
        """Forget those whose time has passed."""

        def edit(document: Document) -> None:
            document["grants"] = [
                to_plain(candidate) for candidate in _parse_grants(document) if not candidate.is_expired(now)
            ]

        self._session_document.change(edit)
        self._stored_document.change(edit)

    def _document_for(self, grant: Grant) -> SharedDocument:
        return self._session_document if grant.scope == "session" else self._stored_document


def _parse_grants(document: Document) -> "list[Grant]":
    """The grants of a document; what is none is nobody's agreement."""
    grants: list[Grant] = []
    for record in document.get("grants") or ():
        try:
            grants.append(convert(record, Grant))
        except InvalidParams:
            continue
    return grants


def _use_once(store: SharedDocument, grant: Grant) -> bool:
    def edit(document: Document) -> bool:
        remaining = [record for record in document.get("grants", ()) if record.get("id") != grant.id]
        was_removed = len(remaining) < len(document.get("grants", ()))
        document["grants"] = remaining
        return was_removed

    return store.change(edit)
