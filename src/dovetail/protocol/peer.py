"""Peer: one end of a conversation in which both sides may ask. It keeps the ids apart and matches answers to questions.

Pure: whoever waits for an answer gives a token and gets it back with the answer.
"""

from typing import Any, Generic, TypeVar

from dovetail.errors import PeerError
from dovetail.wire import jsonrpc
from dovetail.wire.jsonrpc import Id

Token = TypeVar("Token")


class Peer(Generic[Token]):
    """The questions this side has asked and not yet had answered."""

    __slots__ = ("_next", "_open")

    def __init__(self) -> None:
        self._next = 0
        self._open: dict[Id, Token] = {}

    @property
    def open_questions(self) -> int:
        """How many questions wait for an answer."""
        return len(self._open)

    def ask(self, token: Token, method: str, params: dict[str, Any]) -> tuple[Id, bytes]:
        """A request with a fresh id, and the bytes to send."""
        self._next += 1
        self._open[self._next] = token
        return self._next, jsonrpc.request(self._next, method, params)

    def answered(self, message: dict[str, Any]) -> tuple[Token, Any] | None:
        """Whose question a response answers, and the result or PeerError; None if nobody asked."""
        id = message.get("id")
        token = self._open.pop(id, None) if type(id) is int else None
        if token is None:
            return None
        error = message.get("error")
        if error is None:
            return token, message["result"]
        return token, PeerError(error["code"], error["message"], error.get("data"))

    def forget(self, id: Id) -> bool:
        """Stop waiting; whether the question was still open."""
        return self._open.pop(id, None) is not None

    def drain(self) -> list[Token]:
        """Everyone still waiting, at the end of the conversation."""
        waiting = list(self._open.values())
        self._open.clear()
        return waiting
