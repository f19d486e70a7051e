"""A connection of our HTTP server that checks its state after everything it handles, and fails if it is illegal."""

import asyncio
from math import inf
from typing import Any

from dovetail.transports.http1 import http_listener
from dovetail.transports.http1.connection_state import TRANSITIONS, ConnectionState
from dovetail.transports.http1.http1_protocol import HTTP1Protocol
from dovetail.transports.http1.http1_request import HTTP1Request

_READING = (ConnectionState.IDLE, ConnectionState.HEAD, ConnectionState.BODY)


class CheckedConnection(HTTP1Protocol):
    """A connection with legal states and transitions only."""

    _checked_state = HTTP1Protocol.state

    def connection_made(self, transport: Any) -> None:
        self._checked_transport: asyncio.Transport = transport
        super().connection_made(transport)

    def handle_data(self, data: bytes) -> None:
        super().handle_data(data)
        self._check()

    def take_turn(self) -> None:
        super().take_turn()
        self._check()

    def handle_timeout(self) -> None:
        super().handle_timeout()
        self._check()

    def _check(self) -> None:
        state, transport, current = self.state, self._checked_transport, self.current
        if transport.is_closing() or self.has_turn:
            return
        if current is not None:
            is_waiting = not current.is_body_complete and not current.is_full
            assert transport.is_reading() or not is_waiting, f"a request waits for its body in {state}"
            return
        assert not self.has_more, f"requests wait in {state}, but nothing will handle them"
        assert self.deadline < inf, f"no deadline in {state}"
        assert state not in _READING or transport.is_reading(), f"the server does not read in {state}"

    def finish_request(self, request: HTTP1Request) -> None:
        assert request is self.current, "a response to another request"
        super().finish_request(request)


def _get_state(connection: CheckedConnection) -> ConnectionState:
    return connection._checked_state


def _set_state(connection: CheckedConnection, state: ConnectionState) -> None:
    old_state = connection._checked_state
    assert state is old_state or state in TRANSITIONS[old_state], f"illegal transition from {old_state} to {state}"
    connection._checked_state = state


CheckedConnection.state = property(_get_state, _set_state)  # pyright: ignore[reportAttributeAccessIssue]


def check_connections() -> None:
    """Make the HTTP servers of this process check their connections."""
    http_listener.HTTP1Protocol = CheckedConnection
