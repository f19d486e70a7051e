"""The interface of stores for `Context.user_state` and `Context.session_state`."""

from typing import Protocol


class StateStore(Protocol):
    """Stores values by name. Several processes may use the same store."""

    async def get(self, name: str) -> bytes | None:
        """Return a value, or None if there is no value or it has expired."""
        ...

    async def set(self, name: str, data: bytes, ttl: float | None) -> None:
        """Store a value for `ttl` seconds. None means that it does not expire."""
        ...

    async def delete(self, name: str) -> None:
        """Delete a value. Do nothing if there is none."""
        ...
