"""The store of a cluster for the state that functions keep between calls."""

import contextlib
from collections.abc import Generator
from typing import Final

from dovetail.errors import ServerBusy
from dovetail.protocol.interfaces.shared_state import SharedState, SharedStateUnavailable

_FOREVER_S: Final = 10 * 365 * 86400.0


class ClusterStateStore:
    """Keeps state in the shared state of the workers of a cluster."""

    def __init__(self, state: SharedState) -> None:
        self._state = state

    async def get(self, name: str) -> bytes | None:
        """Return a value, or None if there is no value or it has expired."""
        with _convert_errors():
            stored = await self._state.read(f"state {name}")
        return None if stored is None else stored.data

    async def set(self, name: str, data: bytes, ttl: float | None) -> None:
        """Store a value for `ttl` seconds. None means that it does not expire."""
        with _convert_errors():
            await self._state.write(f"state {name}", data, _FOREVER_S if ttl is None else ttl)

    async def delete(self, name: str) -> None:
        """Delete a value. Do nothing if there is none."""
        with _convert_errors():
            await self._state.delete(f"state {name}")


@contextlib.contextmanager
def _convert_errors() -> Generator[None]:
    try:
        yield
    except SharedStateUnavailable as exc:
        raise ServerBusy("The state cannot be used at the moment", exc.retry_after) from exc
