"""The store of the authorization server. It holds values by kind and key, each with an expiry. Secrets are stored as
hashes.
"""

from typing import Any, Final, Protocol, TypeVar

import msgspec

from dovetail.wire.base import Struct, field

T = TypeVar("T")

# The server can fetch entries of these kinds again. If the store is full, it removes the entry that expires first.
REFETCHABLE_KINDS: Final = frozenset({"client document", "client keys"})

MAX_ENTRIES: Final = 20_000  # limit for each kind. Normal use stays far below


class StoreFull(Exception):
    """The store has no room for more entries of this kind."""


class AuthorizationStore(Protocol):
    """Stores the data of an authorization server. A value expires at its time `until`.

    Several processes can share a store. `add`, `take` and `swap` must be atomic: if several processes call one at once,
    only one succeeds.
    """

    def get(self, kind: str, key: str, now: float) -> bytes | None:
        """Return the value, or None if there is no value."""
        ...

    def put(self, kind: str, key: str, value: bytes, until: float, now: float) -> None:
        """Store a value. Replace an existing value."""
        ...

    def add(self, kind: str, key: str, value: bytes, until: float, now: float) -> bytes | None:
        """Store a value if the key has none, and return None. Otherwise return the existing value."""
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
    """Stores all data in memory until the process ends."""

    def __init__(self) -> None:
        self._records: dict[str, dict[str, tuple[float, bytes]]] = {}

    def get(self, kind: str, key: str, now: float) -> bytes | None:
        """Return the value, or None if there is no value."""
        until, value = self._records.get(kind, {}).get(key, (0.0, b""))
        return value if now < until else None

    def put(self, kind: str, key: str, value: bytes, until: float, now: float) -> None:
        """Store a value."""
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
        """Store a value if the key has none, and return None. Otherwise return the existing value."""
        existing = self.get(kind, key, now)
        if existing is None:
            self.put(kind, key, value, until, now)
        return existing

    def take(self, kind: str, key: str, now: float) -> bytes | None:
        """Remove the value and return it."""
        until, value = self._records.get(kind, {}).pop(key, (0.0, b""))
        return value if now < until else None

    def swap(self, kind: str, key: str, old: bytes, value: bytes, until: float, now: float) -> bool:
        """Replace the value if it is still `old`, and return True. Otherwise return False."""
        if self.get(kind, key, now) != old:
            return False
        self._records[kind][key] = (until, value)
        return True

    def all(self, kind: str, now: float) -> list[tuple[str, bytes]]:
        """Return every key of a kind, with its value."""
        return [(key, value) for key, (until, value) in self._records.get(kind, {}).items() if now < until]


class ClientRecord(Struct, frozen=True, kw_only=True):
    """A registered client."""

    client_id: str
    client_name: str = ""
    redirect_uris: tuple[str, ...] = ()
    grant_types: tuple[str, ...] = ("authorization_code", "refresh_token")
    method: str = "none"  # authentication method at the token endpoint
    secret_mark: str | None = None
    jwks: dict[str, Any] | None = None  # public keys of the client. `jwks_uri` is the URL of the keys
    jwks_uri: str | None = None
    scopes: tuple[str, ...] = ()  # scopes of a program that acts for itself
    by_document: bool = False  # whether the client id is the URL of a metadata document


class AuthorizationRequest(Struct, frozen=True, kw_only=True):
    """An authorization request. It exists until the server issues the code."""

    client_id: str
    redirect_uri: str
    state: str | None = None
    challenge: str
    resource: str
    scopes: tuple[str, ...] = ()
    browser: str  # hash of the browser's cookie
    csrf: str
    until: float


class ProviderLogin(Struct, frozen=True, kw_only=True):
    """A request whose user has consented and is logging in at the upstream provider."""

    asked: AuthorizationRequest
    verifier: str


class TokenGrant(Struct, frozen=True, kw_only=True):
    """The access that a user gave a client. All tokens of a grant form a family, and revoking one ends all of them."""

    family: str
    client_id: str
    subject: str
    resource: str
    scopes: tuple[str, ...] = ()
    claims: dict[str, Any] = field(default_factory=dict)
    jkt: str | None = None  # thumbprint of the key to which the tokens are bound
    upstream: str | None = None  # sealed tokens of the upstream provider


class TokenFamily(Struct, frozen=True, kw_only=True):
    """An active grant with its current refresh token."""

    grant: TokenGrant
    since: float
    code: str = ""  # hash of the code from which the family was created
    root: str = ""  # hash of the part that all refresh tokens of the family share
    current: str = ""  # hash of the newest refresh token
    renewable: float = 0.0  # time until which the family can be renewed


class AuthorizationCode(Struct, frozen=True, kw_only=True):
    """An authorization code with its grant. The client has not redeemed the code yet."""

    grant: TokenGrant
    redirect_uri: str
    challenge: str


def encode_record(value: Struct) -> bytes:
    """Encode a value for the store."""
    return msgspec.json.encode(value)


def decode_record(data: bytes | None, record_type: type[T]) -> T | None:
    """Decode a stored value. Return None if the data is None or has another type."""
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=record_type)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
