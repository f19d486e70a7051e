"""Peer: one end of a conversation in which both sides may ask. It keeps the ids apart and matches answers to questions.

Pure: whoever waits for an answer gives a token and gets it back with the answer.
"""

from typing import Any, Generic, TypeVar

from dovetail.errors import PeerError
from dovetail.wire import jsonrpc
from dovetail.wire.jsonrpc import RequestId

Waiter = TypeVar("Waiter")


class PendingRequests(Generic[Waiter]):
    """The questions this side has asked and not yet had answered."""

    __slots__ = ("_last_id", "_waiters")

    def __init__(self) -> None:
        self._last_id = 0
        self._waiters: dict[RequestId, Waiter] = {}

    @property
    def open_questions(self) -> int:
        """How many questions wait for an answer."""
        return len(self._waiters)

    def create_request(self, waiter: Waiter, method: str, params: dict[str, Any]) -> tuple[RequestId, bytes]:
        """A request with a fresh id, and the bytes to send."""
        self._last_id += 1
        self._waiters[self._last_id] = waiter
        return self._last_id, jsonrpc.encode_request(self._last_id, method, params)

    def match_response(self, message: dict[str, Any]) -> tuple[Waiter, Any] | None:
        """Whose question a response answers, and the result or PeerError; None if nobody asked."""
        id = message.get("id")
        waiter = self._waiters.pop(id, None) if type(id) is int else None
        if waiter is None:
            return None
        error = message.get("error")
        if error is None:
            return waiter, message["result"]
        return waiter, PeerError(error["code"], error["message"], error.get("data"))

    def discard(self, id: RequestId) -> bool:
        """Stop waiting; whether the question was still open."""
        return self._waiters.pop(id, None) is not None

    def drain(self) -> list[Waiter]:
        """Everyone still waiting, at the end of the conversation."""
        waiters = list(self._waiters.values())
        self._waiters.clear()
        return waiters
