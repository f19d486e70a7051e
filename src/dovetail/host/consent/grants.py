"""Grants: the stored consent of the user.

A grant applies to one server and one definition. It can be limited to certain arguments and to a time. A grant
no longer applies if the server's command or URL changes, or if the definition differs from the one that the user saw.
"""

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

from dovetail.errors import InvalidParams
from dovetail.host.consent.consent import RENAMED_KINDS, Scope
from dovetail.host.policy.policy import PolicyRequest
from dovetail.protocol.uri_key import uri_key
from dovetail.storage import Document, SharedDocument, rename_fields
from dovetail.wire.base import Struct, replace
from dovetail.wire.codec import convert, encode_canonical, to_plain

_MAX_CALLERS: Final = 16_384
_MAX_SESSION_GRANTS_PER_CALLER: Final = 256

# A key contains the server, the caller, the kind of request, the item name, and a digest of exact arguments.
_Key: TypeAlias = tuple[str, str, str, str, bytes | None]

_TYPE_NAMES: Final = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


class Grant(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The user's stored permission for certain requests."""

    id: str = ""  # the ID, which the store assigns
    scope: Scope  # "once", "session", "project" or "always"
    server: str  # the name of the server
    identity: str  # a digest of the server's command or URL
    tool: str  # the name of the tool or prompt, or the URI of the resource
    kind: str = "tool.call"  # the kind of request that is allowed
    caller: str = ""  # the ID of the gateway caller, or "" for the user of the host
    fingerprint: str = ""  # the fingerprint of the tool definition that the user saw
    arguments: dict[str, Any] | None = None  # the only arguments that are allowed, or None for all arguments
    project: str = ""  # the project in which the grant is valid
    granted_at: float = 0.0  # when the user answered, in seconds since 1970
    expires_at: float | None = None  # when the grant expires, in seconds since 1970, or None for never

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
            scope: How long the grant applies: "once", "session", "project" or "always".
            expires_in: Seconds until the grant expires. None creates a grant that never expires.
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
        # Two servers may use different accounts at the same URL, so the server names must also match.
        and (grant.server, grant.identity) == (request.server, request.server_identity)
        and grant.kind == request.kind
        and _normalize_name(grant.kind, grant.tool) == _normalize_name(request.kind, request.tool)
        and grant.caller == request.caller
        and grant.fingerprint == fingerprint
        and not grant.is_expired(now)
        and (grant.scope != "project" or (bool(grant.project) and grant.project == request.project))
        and (grant.arguments is None or matches_shape(grant.arguments, request.arguments or {}))
    )


def build_argument_shape(arguments: Mapping[str, Any], exact_names: Iterable[str] = ()) -> dict[str, Any]:
    """Return a dict with the type of each argument.

    For names in `exact_names`, return the value instead of the type.
    """
    fixed_names = set(exact_names)
    if unknown := fixed_names - arguments.keys():
        raise ValueError(f"exact_arguments contains an unknown argument: {', '.join(sorted(unknown))}")
    return {
        name: {"const": value} if name in fixed_names else {"type": _get_type_name(value)}
        for name, value in arguments.items()
    }


def matches_shape(shape: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """Return whether arguments have only the names, types and values that a shape allows.

    A shape contains the names of arguments with their types or values.
    """
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
    """Replace the field and kind names of file format version 1 with the current names."""
    records = document.get("grants")
    rename_fields(records, {"shape": "arguments", "granted": "granted_at", "expires": "expires_at"})
    for record in records or ():
        if isinstance(record, dict) and record.get("kind") in RENAMED_KINDS:
            record["kind"] = RENAMED_KINDS[record["kind"]]


class _GrantIndex:
    def __init__(self, grants: Iterable[Grant] = ()) -> None:
        self._grants: dict[int, Grant] = {}  # by identity
        self._grants_by_key: dict[_Key, list[Grant]] = {}
        self._has_exact_arguments = False  # True if a grant is limited to certain arguments
        for grant in grants:
            self.add(grant)

    def __len__(self) -> int:
        return len(self._grants)

    def __iter__(self) -> Iterator[Grant]:
        return iter(tuple(self._grants.values()))

    def add(self, grant: Grant) -> None:
        key = _get_key(grant)
        self._grants[id(grant)] = grant
        self._grants_by_key.setdefault(key, []).append(grant)
        self._has_exact_arguments = self._has_exact_arguments or key[-1] is not None

    def remove(self, grant: Grant) -> None:
        del self._grants[id(grant)]
        key = _get_key(grant)
        self._grants_by_key[key] = [other for other in self._grants_by_key[key] if other is not grant]
        if not self._grants_by_key[key]:
            del self._grants_by_key[key]

    def list_equal(self, grant: Grant) -> "list[Grant]":
        subject = _get_subject(grant)
        return [other for other in self._grants_by_key.get(_get_key(grant), ()) if _get_subject(other) == subject]

    def find(self, request: PolicyRequest) -> Iterator[Grant]:
        identity, caller, name = request.server_identity, request.caller, _normalize_name(request.kind, request.tool)
        yield from self._grants_by_key.get((identity, caller, request.kind, name, None), ())
        if self._has_exact_arguments:
            digest = _hash_arguments(request.arguments or {})
            yield from self._grants_by_key.get((identity, caller, request.kind, name, digest), ())


def _get_key(grant: Grant) -> _Key:
    constraints = grant.arguments
    digest = None
    if constraints is not None and all(isinstance(one, Mapping) and "const" in one for one in constraints.values()):
        digest = _hash_arguments({name: constraint["const"] for name, constraint in constraints.items()})
    return grant.identity, grant.caller, grant.kind, _normalize_name(grant.kind, grant.tool), digest


def _hash_arguments(arguments: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(encode_canonical(arguments)).digest()


def _normalize_name(kind: str, name: str) -> str:
    return uri_key(name) if kind in ("resource.read", "skill.tools") else name


class GrantStore:
    """Stores the user's grants. Grants for a session are in memory, all others in a file.

    Args:
        path: The path of the file. None keeps all grants in memory.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._stored_document = SharedDocument(path, (_use_current_names,))
        self._stored_document.read()  # If the file cannot be used, this call raises the error now and not later.
        # Maps each caller to its session grants. The most recent caller is last.
        self._session_grants: dict[str, _GrantIndex] = {}
        self._lock = threading.Lock()
        self._on_revoke: Callable[[str | None, str | None, str | None], None] | None = None
        # The index of the stored grants, and the records from which the index was built.
        self._index = _GrantIndex()
        self._indexed_records: tuple[Any, int] = (None, 0)

    @property
    def path(self) -> Path | None:
        """Return the path of the file, or None if all grants are in memory."""
        return self._stored_document.path

    def add(self, grant: Grant) -> Grant:
        """Store a grant and return it with its ID. Raise ValueError if it has no server identity."""
        if not grant.identity:
            raise ValueError("a grant must have a server identity")
        added = replace(grant, id=secrets.token_hex(8))
        if added.scope == "session":
            self._add_session_grant(added)
        else:
            self._stored_document.change(lambda document: document.setdefault("grants", []).append(to_plain(added)))
        return added

    def _add_session_grant(self, grant: Grant) -> None:
        """Add a grant in memory.

        A caller with too many grants loses its oldest grant. If there are too many callers, the caller
        whose last grant is oldest loses all its grants. The user of the host keeps all grants in this case.
        """
        now = time.time()
        with self._lock:
            grants = self._session_grants.pop(grant.caller, None) or _GrantIndex()
            self._session_grants[grant.caller] = grants
            replaced = grants.list_equal(grant)
            # Expired grants are removed only from time to time, because the search for them is slow.
            if len(grants) % _MAX_SESSION_GRANTS_PER_CALLER == 0:
                replaced += [other for other in grants if other.is_expired(now) and other not in replaced]
            for other in replaced:
                grants.remove(other)
            grants.add(grant)
            if grant.caller and len(grants) > _MAX_SESSION_GRANTS_PER_CALLER:
                grants.remove(next(iter(grants)))
            if len(self._session_grants) > _MAX_CALLERS:
                del self._session_grants[next(caller for caller in self._session_grants if caller)]

    def find(self, request: PolicyRequest, fingerprint: str) -> Grant | None:
        """Return the grant that covers a request, or None. A `once` grant is removed, so that it is used only once."""
        for candidate in self._find_covering(request, fingerprint):
            if candidate.scope != "once" or _use_once(self._stored_document, candidate):
                return candidate
        return None

    def _find_covering(self, request: PolicyRequest, fingerprint: str) -> Iterator[Grant]:
        now = time.time()
        for index in (self._session_grants.get(request.caller), self._get_index()):
            for candidate in () if index is None else index.find(request):
                if covers(candidate, request, fingerprint, now):
                    yield candidate

    def _get_index(self) -> _GrantIndex:
        records = self._stored_document.read().get("grants") or []
        if self._indexed_records[0] is not records or self._indexed_records[1] != len(records):
            self._index, self._indexed_records = _GrantIndex(_parse_grants(records)), (records, len(records))
        return self._index

    def revoke(self, id: str | None = None, *, server: str | None = None, tool: str | None = None) -> int:
        """Remove grants by ID, server or tool. Return how many were removed.

        Args:
            id: The ID of one grant.
            server: The name of the server.
            tool: The name of the tool.
        """
        if id is None and server is None and tool is None:
            raise ValueError("revoke() requires an id, a server or a tool")

        criteria = [
            (name, value) for name, value in (("id", id), ("server", server), ("tool", tool)) if value is not None
        ]

        def matches(record: Mapping[str, Any]) -> bool:
            kind = record.get("kind", "tool.call")
            return all(
                record.get(name) == value
                or (name == "tool" and _normalize_name(kind, str(record.get(name))) == _normalize_name(kind, value))
                for name, value in criteria
            )

        def edit(document: Document) -> int:
            existing = [*document.get("grants", ())]
            document["grants"] = [record for record in existing if not matches(record)]
            return len(existing) - len(document["grants"])

        with self._lock:
            count = 0
            for grants in self._session_grants.values():
                revoked = [grant for grant in grants if matches(to_plain(grant))]
                for grant in revoked:
                    grants.remove(grant)
                count += len(revoked)
        if self._on_revoke is not None:
            self._on_revoke(id, server, tool)
        return count + self._stored_document.change(edit)

    def list(self) -> "list[Grant]":
        """Return the grants that have not expired, oldest first."""
        now = time.time()
        session_grants = [grant for grants in tuple(self._session_grants.values()) for grant in grants]
        active = [candidate for candidate in (*session_grants, *self._get_index()) if not candidate.is_expired(now)]
        return sorted(active, key=lambda candidate: (candidate.granted_at, candidate.id))


def list_session_grants(store: GrantStore, caller: str) -> "list[Grant]":
    """Return the session grants of one caller."""
    return [*store._session_grants.get(caller, ())]  # pyright: ignore[reportPrivateUsage]


def replace_session_grants(store: GrantStore, caller: str, grants: "Iterable[Grant]") -> None:
    """Replace the session grants of one caller."""
    index = _GrantIndex(grants)
    with store._lock:  # pyright: ignore[reportPrivateUsage]
        session_grants = store._session_grants  # pyright: ignore[reportPrivateUsage]
        session_grants.pop(caller, None)
        if len(index):
            session_grants[caller] = index
            if len(session_grants) > _MAX_CALLERS:
                del session_grants[next(caller for caller in session_grants if caller)]


def on_revoke(store: GrantStore, callback: Callable[[str | None, str | None, str | None], None]) -> None:
    """Call a function whenever grants are revoked. Its arguments are the ID, server and tool of the revocation."""
    store._on_revoke = callback  # pyright: ignore[reportPrivateUsage]


def peek_grant(store: GrantStore, request: PolicyRequest, fingerprint: str) -> Grant | None:
    """Return a grant that covers a request, or None. Unlike `find`, do not remove a `once` grant."""
    return next(store._find_covering(request, fingerprint), None)  # pyright: ignore[reportPrivateUsage]


def _get_subject(grant: Grant) -> Grant:
    return replace(grant, id="", granted_at=0.0, expires_at=None)


def _parse_grants(records: Iterable[Any]) -> "list[Grant]":
    """Parse the grants in a file. Skip invalid records, so that they allow nothing."""
    grants: list[Grant] = []
    for record in records:
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
