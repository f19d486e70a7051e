"""The state of one user or one session, which functions keep between calls."""

from typing import Any, Final, Literal, TypeAlias, TypeVar, overload

from dovetail.keys import build_key
from dovetail.protocol.interfaces.state_store import StateStore
from dovetail.protocol.limits import MiB
from dovetail.protocol.versioned_codec import add_format, remove_format
from dovetail.wire.codec import convert, decode, encode, to_plain

MAX_KEY_CHARS: Final = 256
MAX_VALUE_BYTES: Final = MiB

_NAME_FORMAT: Final = "2"  # the format version of the names under which values are stored

StateKind: TypeAlias = Literal["user", "session"]
T = TypeVar("T")


class CallState:
    """Values that a function keeps for its user or session: `ctx.user_state` and `ctx.session_state`.

    Keys are strings, and values are JSON.
    """

    __slots__ = ("_default_ttl", "_kind", "_owner", "_server", "_store")

    def __init__(
        self, _store: StateStore, _server: str, _kind: StateKind, _owner: str, _default_ttl: float | None = None, /
    ) -> None:
        self._store = _store
        self._server = _server  # The key contains the server name, so that several servers can share one store.
        self._kind: StateKind = _kind
        self._owner = _owner
        self._default_ttl = _default_ttl

    @overload
    async def get(self, key: str, default: object = None, *, into: type[T]) -> T: ...
    @overload
    async def get(self, key: str, default: object = None, *, into: None = None) -> Any: ...
    async def get(self, key: str, default: object = None, *, into: Any = None) -> Any:
        """Return a value, or the default if there is none.

        Args:
            default: The result if there is no value.
            into: The type to convert the value to. If None, the value is plain JSON.
        """
        data = await self._store.get(self._get_name(key))
        if data is None:
            return default
        encoded_value = remove_format(data)
        if encoded_value is None:
            raise ValueError(f"the state {key!r} has an unknown format, which a newer version may have written")
        value = decode(encoded_value)
        return value if into is None else convert(value, into, label=f"state {key}")

    async def set(self, key: str, value: object, *, ttl: float | None = None) -> None:
        """Store a value.

        Args:
            ttl: Seconds until the value is deleted. By default, the state of a user stays, and the state of a session
                is deleted with the session.
        """
        data = add_format(encode(to_plain(value)))
        if len(data) > MAX_VALUE_BYTES:
            raise ValueError(f"the state {key!r} is larger than {MAX_VALUE_BYTES} bytes")
        if ttl is not None and ttl <= 0:
            raise ValueError(f"ttl must be a positive number of seconds, not {ttl!r}")
        await self._store.set(self._get_name(key), data, self._default_ttl if ttl is None else ttl)

    async def delete(self, key: str) -> None:
        """Delete a value. If there is none, do nothing."""
        await self._store.delete(self._get_name(key))

    def _get_name(self, key: str) -> str:
        if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_CHARS:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"a key must be a string of 1 to {MAX_KEY_CHARS} characters, not {key!r}")
        return build_key(_NAME_FORMAT, self._server, self._kind, self._owner, key)
