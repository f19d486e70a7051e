"""Grants: what the user agreed to, and exactly what for: this server, this definition, such arguments, until then.

A grant holds for the command or URL it was given for and for the definition the user saw; if either changes, it is
void without anybody having to notice.
"""

import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Self

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

    @classmethod
    def from_request(
        cls,
        request: PolicyRequest,
        fingerprint: str,
        *,
        scope: Scope = "once",
        expires_in: float | None = None,
        exact_arguments: bool | Iterable[str] = False,
    ) -> Self:
        """Create a grant for a request. `expires_in` is in seconds.

        exact_arguments: True limits it to the same arguments. Names limit it to arguments of the same names and types,
        and those named to the same value.
        """
        now = time.time()
        arguments = request.arguments or {}
        exact_names = arguments if exact_arguments is True else exact_arguments
        return cls(
            scope=scope,
            server=request.server,
            identity=request.server_identity,
            tool=request.tool,
            kind=request.kind,
            caller=request.caller,
            fingerprint=fingerprint,
            arguments=None if exact_names is False else build_argument_shape(arguments, exact_names),
            project=request.project if scope == "project" else "",
            granted_at=now,
            expires_at=None if expires_in is None else now + expires_in,
        )

    def is_expired(self, now: float) -> bool:
        """Return whether it no longer applies at this time."""
        return self.expires_at is not None and now >= self.expires_at


def covers(grant: Grant, request: PolicyRequest, fingerprint: str, now: float) -> bool:
    """Return whether the user agreed to this request."""
    return (
        bool(grant.identity)
        and (grant.identity, grant.tool, grant.kind) == (request.server_identity, request.tool, request.kind)
        and grant.caller == request.caller
        and grant.fingerprint == fingerprint
        and not grant.is_expired(now)
        and (grant.scope != "project" or (bool(grant.project) and grant.project == request.project))
        and (grant.arguments is None or matches_shape(grant.arguments, request.arguments or {}))
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
        """Store a grant and return it with its id. Raise ValueError if it has no server identity."""
        if not grant.identity:
            raise ValueError("a grant needs the identity of its server")
        added = replace(grant, id=secrets.token_hex(8))
        self._document_for(added).change(lambda document: document.setdefault("grants", []).append(to_plain(added)))
        return added

    def find(self, request: PolicyRequest, fingerprint: str) -> Grant | None:
        """Return the grant that covers a request. A grant for `once` is used up by that, by one process only."""
        now = time.time()
        for store in (self._session_document, self._stored_document):
            for candidate in _parse_grants(store.read()):
                if covers(candidate, request, fingerprint, now) and (
                    candidate.scope != "once" or _use_once(store, candidate)
                ):
                    return candidate
        return None

    def revoke(self, id: str | None = None, *, server: str | None = None, tool: str | None = None) -> int:
        """Remove grants by id, server or tool. Return how many were removed."""
        if id is None and server is None and tool is None:
            raise ValueError("revoke() needs an id, a server or a tool")

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

    def list(self) -> "list[Grant]":
        """Return the grants that have not expired, oldest first."""
        now = time.time()
        active = [
            candidate
            for store in (self._session_document, self._stored_document)
            for candidate in _parse_grants(store.read())
            if not candidate.is_expired(now)
        ]
        return sorted(active, key=lambda candidate: (candidate.granted_at, candidate.id))

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
