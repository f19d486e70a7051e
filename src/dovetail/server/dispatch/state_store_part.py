"""The store for `ctx.user_state` and `ctx.session_state` of one server."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.protocol.interfaces.state_store import StateStore
from dovetail.server.dispatch.parts import Position, ServerPart

if TYPE_CHECKING:
    from dovetail.protocol.interfaces.shared_state import SharedWorker


class StateStorePart(ServerPart):
    """Opens the store when a function uses its state, or when the server starts if the author chose the store."""

    position = Position.PROCESS

    def __init__(
        self, option: StateStore | str | Path | None, get_cluster: "Callable[[], SharedWorker | None]"
    ) -> None:
        self._option = option
        self._get_cluster = get_cluster
        self._store: StateStore | None = None

    def open(self) -> StateStore:
        """Return the store. The first call opens it."""
        if self._store is None:
            from dovetail.server.state_stores import create_state_store

            self._store = create_state_store(self._option, self._get_cluster())
        return self._store

    async def start(self) -> None:
        self.open()  # Fail now, not in the first call, if the file cannot be used.
