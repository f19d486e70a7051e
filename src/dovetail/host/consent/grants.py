"""Grants: stored answers of the user.

A grant applies to one server and one definition. It can be limited to certain arguments and to a time. If the command
or URL of the server changes, or the definition that the user saw, the grant no longer applies.
"""

import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from dovetail.errors import InvalidParams
from dovetail.host.consent.consent import RENAMED_KINDS, Scope
from dovetail.host.policy.policy import PolicyRequest
from dovetail.storage import Document, SharedDocument, rename_fields
from dovetail.wire.base import Struct, replace
from dovetail.wire.codec import convert, encode_canonical, to_plain

_TYPE_NAMES: Final = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


class Grant(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stored answer: the user allowed these requests."""

    id: str = ""  # set by the store
    scope: Scope  # "once", "session", "project" or "always"
    server: str  # the name of the server
    identity: str  # a digest of the server's command or URL
    tool: str  # the name of the tool or prompt, or the URI of the resource
    kind: str = "tool.call"  # the kind of request that is allowed
    caller: str = ""  # the gateway caller. Empty for the user of the host
    fingerprint: str = ""  # fingerprint of the tool definition that the user saw
    arguments: dict[str, Any] | None = None  # None allows all arguments. Otherwise only these
    project: str = ""  # the project in which the grant is valid
    granted_at: float = 0.0  # when the user answered, in seconds since 1970
    expires_at: float | None = None  # in seconds since 1970. None means that the grant never expires

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
        """Create a grant for a request that the user allowed.

        Args:
            scope: "once", "session", "project" or "always".
            expires_in: Seconds until the grant expires. None never expires.
            exact_arguments: True limits the grant to the same arguments. A list of names requires the same values only
                for these arguments. All other arguments must have the same names and types.
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
        """Return whether the grant has expired at this time."""
        return self.expires_at is not None and now >= self.expires_at


def covers(grant: Grant, request: PolicyRequest, fingerprint: str, now: float) -> bool:
    """Return whether the grant allows this request."""
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
    """Return the type of each argument by name. For names in `exact_names`, return the value instead."""
    fixed_names = set(exact_names)
    if unknown := fixed_names - arguments.keys():
        raise ValueError(f"unknown argument: {', '.join(sorted(unknown))}")
    return {
        name: {"const": value} if name in fixed_names else {"type": _get_type_name(value)}
        for name, value in arguments.items()
    }


def matches_shape(shape: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """Return whether arguments have the same names and types as a shape, and the values that it requires."""
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


def _use_current_names(document: Document) -> None:
    """Rename fields and kinds of format 1. Under its old name, a limit would have no effect."""
    records = document.get("grants")
    rename_fields(records, {"shape": "arguments", "granted": "granted_at", "expires": "expires_at"})
    for record in records or ():
        if isinstance(record, dict) and record.get("kind") in RENAMED_KINDS:
            record["kind"] = RENAMED_KINDS[record["kind"]]


class GrantStore:
    """Stores the user's grants. Grants for a session are in memory, all others in a file.

    Args:
        path: The file. None keeps all grants in memory.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._stored_document = SharedDocument(path, (_use_current_names,))
        self._stored_document.read()  # raise an error now if the file cannot be used
        self._session_document = SharedDocument()

    @property
    def path(self) -> Path | None:
        """Return the file, or None."""
        return self._stored_document.path

    def add(self, grant: Grant) -> Grant:
        """Store a grant and return it with its ID. Raise ValueError if it has no server identity."""
        if not grant.identity:
            raise ValueError("a grant must have a server identity")
        added = replace(grant, id=secrets.token_hex(8))
        self._document_for(added).change(lambda document: document.setdefault("grants", []).append(to_plain(added)))
        return added

    def find(self, request: PolicyRequest, fingerprint: str) -> Grant | None:
        """Return the grant that allows a request, or None. A `once` grant is removed, so that it is used only once."""
        now = time.time()
        for store in (self._session_document, self._stored_document):
            for candidate in _parse_grants(store.read()):
                if covers(candidate, request, fingerprint, now) and (
                    candidate.scope != "once" or _use_once(store, candidate)
                ):
                    return candidate
        return None

    def revoke(self, id: str | None = None, *, server: str | None = None, tool: str | None = None) -> int:
        """Remove grants by ID, server or tool. Return how many were removed.

        Args:
            id: The id of one grant.
            server: The name of the server.
            tool: The name of the tool.
        """
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
    """Read the grants from a document. Ignore invalid ones, so that they allow nothing."""
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
