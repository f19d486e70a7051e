"""What the authorization server stores: values by kind and key with an expiry. Secrets are stored as hashes."""

from typing import Any, Final, Protocol, TypeVar

import msgspec

from dovetail.wire.base import Struct, field

T = TypeVar("T")

# What can be fetched again: where there is no room, the first to end makes some.
REFETCHABLE_KINDS: Final = frozenset({"client document", "client keys"})

MAX_ENTRIES: Final = 20_000  # of one kind; more than that is somebody trying


class StoreFull(Exception):
    """There is no more room for things of this kind."""


class AuthorizationStore(Protocol):
    """Stores the data of an authorization server. A value is gone once its time `until` has come.

    Several processes can share a store. `add`, `take` and `swap` must be atomic: one of several callers succeeds.
    """

    def get(self, kind: str, key: str, now: float) -> bytes | None:
        """Return the value, or None."""
        ...

    def put(self, kind: str, key: str, value: bytes, until: float, now: float) -> None:
        """Store a value, and replace an existing one."""
        ...

    def add(self, kind: str, key: str, value: bytes, until: float, now: float) -> bytes | None:
        """Store a value if there is none, and return None. Otherwise return the existing value."""
        ...

    def take(self, kind: str, key: str, now: float) -> bytes | None:
        """Remove the value and return it."""
        ...

    def swap(self, kind: str, key: str, old: bytes, value: bytes, until: float, now: float) -> bool:
        """Replace the value if it is still `old`, and return True. Otherwise return False."""
        ...

    def all(self, kind: str, now: float) -> list[tuple[str, bytes]]:
        """Return every key of a kind, with its value."""
        ...


class InMemoryStore:
    """Everything in memory; gone with the process."""

    def __init__(self) -> None:
        self._records: dict[str, dict[str, tuple[float, bytes]]] = {}

    def get(self, kind: str, key: str, now: float) -> bytes | None:
        """The value, if it is there."""
        until, value = self._records.get(kind, {}).get(key, (0.0, b""))
        return value if now < until else None

    def put(self, kind: str, key: str, value: bytes, until: float, now: float) -> None:
        """Remember a value."""
        records = self._records.setdefault(kind, {})
        if len(records) >= MAX_ENTRIES and key not in records:
            for expired_key in [name for name, (end, _) in records.items() if end <= now]:
                del records[expired_key]
            if len(records) >= MAX_ENTRIES and kind not in REFETCHABLE_KINDS:
                raise StoreFull(kind)
            if len(records) >= MAX_ENTRIES:
                del records[min(records, key=lambda name: records[name][0])]
        records[key] = (until, value)

    def add(self, kind: str, key: str, value: bytes, until: float, now: float) -> bytes | None:
        """Remember a value if there is none; None, or what was there."""
        existing = self.get(kind, key, now)
        if existing is None:
            self.put(kind, key, value, until, now)
        return existing

    def take(self, kind: str, key: str, now: float) -> bytes | None:
        """The value, which is gone with that."""
        until, value = self._records.get(kind, {}).pop(key, (0.0, b""))
        return value if now < until else None

    def swap(self, kind: str, key: str, old: bytes, value: bytes, until: float, now: float) -> bool:
        """Put a value where the old one still is."""
        if self.get(kind, key, now) != old:
            return False
        self._records[kind][key] = (until, value)
        return True

    def all(self, kind: str, now: float) -> list[tuple[str, bytes]]:
        """Every key of a kind, with its value."""
        return [(key, value) for key, (until, value) in self._records.get(kind, {}).items() if now < until]


class ClientRecord(Struct, frozen=True, kw_only=True):
    """A client as this server knows it."""

    client_id: str
    client_name: str = ""
    redirect_uris: tuple[str, ...] = ()
    grant_types: tuple[str, ...] = ("authorization_code", "refresh_token")
    method: str = "none"  # how it proves who it is at the token endpoint
    secret_mark: str | None = None
    jwks: dict[str, Any] | None = None  # its public keys, or where they are
    jwks_uri: str | None = None
    scopes: tuple[str, ...] = ()  # of a program that acts for itself
    by_document: bool = False  # its id is the address of the document that describes it


class AuthorizationRequest(Struct, frozen=True, kw_only=True):
    """An authorization request, from its arrival to the code."""

    client_id: str
    redirect_uri: str
    state: str | None = None
    challenge: str
    resource: str
    scopes: tuple[str, ...] = ()
    browser: str  # the mark of the cookie of the browser it came by
    csrf: str
    until: float


class ProviderLogin(Struct, frozen=True, kw_only=True):
    """A consented request while its user is at the provider upstream."""

    asked: AuthorizationRequest
    verifier: str


class TokenGrant(Struct, frozen=True, kw_only=True):
    """What a user allowed a client: all tokens that come of it are one family, and end together."""

    family: str
    client_id: str
    subject: str
    resource: str
    scopes: tuple[str, ...] = ()
    claims: dict[str, Any] = field(default_factory=dict)
    jkt: str | None = None  # the key its tokens are bound to
    upstream: str | None = None  # the provider's tokens, sealed


class TokenFamily(Struct, frozen=True, kw_only=True):
    """A grant that lives, and which of its refresh tokens is the one that is good."""

    grant: TokenGrant
    since: float
    code: str = ""  # the mark of the code it came of
    root: str = ""  # the mark of what all its refresh tokens have in common,
    current: str = ""  # and of what only the newest has
    renewable: float = 0.0  # until then


class AuthorizationCode(Struct, frozen=True, kw_only=True):
    """A grant that waits to be fetched."""

    grant: TokenGrant
    redirect_uri: str
    challenge: str


def encode_record(value: Struct) -> bytes:
    """A value as it is stored."""
    return msgspec.json.encode(value)


def decode_record(data: bytes | None, record_type: type[T]) -> T | None:
    """A stored value; None if there is none, or not of this kind."""
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=record_type)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
