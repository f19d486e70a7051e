"""Storage of the authorization server: values by kind and key, each with an expiry time.

Secrets are stored as hashes.
"""

from heapq import nsmallest
from typing import Any, Final, Protocol, TypeVar

import msgspec

from dovetail.protocol.versioned_codec import keep_unknown_members
from dovetail.wire.base import Struct, field
from dovetail.wire.codec import encode

T = TypeVar("T")

# If the store is full, entries of these kinds are removed, because the server can fetch the entries again.
REFETCHABLE_KINDS: Final = frozenset({"client document", "client keys"})

MAX_ENTRIES: Final = 20_000  # The store holds at most this many entries of each kind. Normal use needs far fewer.
_EVICTED_SHARE: Final = 100  # If the store is full, one of every 100 entries is removed.


class StoreFull(Exception):
    """Raised if the store already contains the maximum number of entries of one kind."""


class StoreUnavailable(Exception):
    """Raised if the store cannot be used now, for example because its file is locked or the disk is full."""


class AuthorizationStore(Protocol):
    """Stores the data of an authorization server. Each value expires at the time `until`.

    Several processes can share a store. `add`, `take`, `swap` and `use_once` must be atomic: if several processes call
    one of them at once, only one succeeds. Raise StoreUnavailable if the store cannot be used now.
    """

    async def get(self, kind: str, key: str, now: float) -> bytes | None:
        """Return the value, or None if the key has no value."""
        ...

    async def put(self, kind: str, key: str, value: bytes, until: float, now: float) -> None:
        """Store a value. If the key already has a value, replace it."""
        ...

    async def add(self, kind: str, key: str, value: bytes, until: float, now: float) -> bytes | None:
        """Store a value if the key is new, and return None. Otherwise return the existing value."""
        ...

    async def take(self, kind: str, key: str, now: float) -> bytes | None:
        """Remove a value and return it."""
        ...

    async def swap(self, kind: str, key: str, old: bytes, value: bytes, until: float, now: float) -> bool:
        """Replace a value if it equals `old`. Return True if the value was replaced."""
        ...

    async def use_once(self, kind: str, key: str, since: float, until: float, now: float) -> bool:
        """Record the use of an ID until it expires. Return True if this is the first use.

        `since` is the earliest time at which the ID can have been used. If the store has lost records since then,
        return False.
        """
        ...


class InMemoryStore:
    """A store that keeps all data in memory until the process ends."""

    def __init__(self) -> None:
        self._records: dict[str, dict[str, tuple[float, bytes]]] = {}
        # Maps each kind without free space to the earliest expiry time of its entries.
        self._next_expiry: dict[str, float] = {}

    async def get(self, kind: str, key: str, now: float) -> bytes | None:
        """Return the value, or None if the key has no value."""
        until, value = self._records.get(kind, {}).get(key, (0.0, b""))
        return value if now < until else None

    async def put(self, kind: str, key: str, value: bytes, until: float, now: float) -> None:
        """Store a value."""
        records = self._records.setdefault(kind, {})
        if len(records) >= MAX_ENTRIES and key not in records:
            self._make_room(kind, records, now)
        records[key] = (until, value)

    def _make_room(self, kind: str, records: dict[str, tuple[float, bytes]], now: float) -> None:
        if now < self._next_expiry.get(kind, 0.0):
            raise StoreFull(kind)
        for expired_key in [name for name, (until, _) in records.items() if until <= now]:
            del records[expired_key]
        if len(records) < MAX_ENTRIES:
            return
        if kind not in REFETCHABLE_KINDS:
            self._next_expiry[kind] = min(until for until, _ in records.values())
            raise StoreFull(kind)
        for name in nsmallest(max(1, MAX_ENTRIES // _EVICTED_SHARE), records, key=lambda name: records[name][0]):
            del records[name]

    async def add(self, kind: str, key: str, value: bytes, until: float, now: float) -> bytes | None:
        """Store a value if the key is new, and return None. Otherwise return the existing value."""
        existing = await self.get(kind, key, now)
        if existing is None:
            await self.put(kind, key, value, until, now)
        return existing

    async def take(self, kind: str, key: str, now: float) -> bytes | None:
        """Remove a value and return it."""
        until, value = self._records.get(kind, {}).pop(key, (0.0, b""))
        return value if now < until else None

    async def swap(self, kind: str, key: str, old: bytes, value: bytes, until: float, now: float) -> bool:
        """Replace a value if it equals `old`. Return True if the value was replaced."""
        if await self.get(kind, key, now) != old:
            return False
        self._records[kind][key] = (until, value)
        return True

    async def use_once(self, kind: str, key: str, since: float, until: float, now: float) -> bool:
        """Record the use of an ID until it expires. Return True if this is the first use."""
        return await self.add(kind, key, b"1", until, now) is None


class UserIndex(Struct, frozen=True, kw_only=True):
    """The codes and token families of one user. The index may name records that do not exist any more."""

    # The keys have the form "kind key", and the values are expiry times.
    entries: dict[str, float] = field(default_factory=dict[str, float])


class ClientRecord(Struct, frozen=True, kw_only=True):
    """A registered client."""

    client_id: str
    client_name: str = ""
    redirect_uris: tuple[str, ...] = ()
    grant_types: tuple[str, ...] = ("authorization_code", "refresh_token")
    method: str = "none"  # how the client authenticates at the token endpoint
    secret_mark: str | None = None
    jwks: dict[str, Any] | None = None  # The client's public keys, or None if `jwks_uri` is set.
    jwks_uri: str | None = None
    scopes: tuple[str, ...] = ()  # the scopes that the client can get without a user
    by_document: bool = False  # True if the client ID is the URL of a metadata document


class RegisteredClient(ClientRecord, frozen=True, kw_only=True):
    """A client from the store, with its stored value. The value may have members that this release does not know."""

    stored_value: bytes


class AuthorizationRequest(Struct, frozen=True, kw_only=True):
    """An authorization request for which no code has been issued yet."""

    client_id: str
    redirect_uri: str
    state: str | None = None
    challenge: str
    resource: str
    scopes: tuple[str, ...] = ()
    browser: str  # Hash of a cookie in the user's browser.
    csrf: str
    until: float


class ProviderLogin(Struct, frozen=True, kw_only=True):
    """A login that waits for the upstream provider. The user has already allowed the client."""

    asked: AuthorizationRequest
    verifier: str


class TokenGrant(Struct, frozen=True, kw_only=True):
    """The access that a user gave to a client. All tokens of a grant are valid or revoked together."""

    family: str
    client_id: str
    subject: str
    resource: str
    scopes: tuple[str, ...] = ()
    claims: dict[str, Any] = field(default_factory=dict)
    jkt: str | None = None  # Thumbprint of the DPoP key to which the tokens are bound.
    upstream: str | None = None  # Encrypted tokens of the upstream provider.


class TokenFamily(Struct, frozen=True, kw_only=True):
    """An active grant with its newest refresh token."""

    grant: TokenGrant
    since: float
    code: str = ""  # Hash of the authorization code that started the grant.
    root: str = ""  # Hash of the common part of the grant's refresh tokens.
    current: str = ""  # Hash of the newest refresh token.
    renewable: float = 0.0  # The grant can be renewed until this time.
    indexed_until: float = 0.0  # The index of the user contains the grant until this time.


class AuthorizationCode(Struct, frozen=True, kw_only=True):
    """An authorization code that the client has not used yet, with its grant."""

    grant: TokenGrant
    redirect_uri: str
    challenge: str


def encode_record(value: Struct, stored: bytes | None = None) -> bytes:
    """Encode a value. If it replaces a stored value, keep the members of that value that this release does not know."""
    data = encode(value)
    previous = decode_record(stored, type(value))
    if stored is None or previous is None:
        return data
    return keep_unknown_members(data, encode(previous), stored)


def decode_record(data: bytes | None, record_type: type[T]) -> T | None:
    """Decode a stored value. Return None if the value is missing or is not a `record_type`."""
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=record_type)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def add_stored_value(client: ClientRecord, stored_value: bytes | None) -> ClientRecord:
    """Return a client with its stored value. The value is needed to store the client again with a later expiry time."""
    if stored_value is None:
        return client
    return RegisteredClient(
        **{name: getattr(client, name) for name in client.__struct_fields__}, stored_value=stored_value
    )
