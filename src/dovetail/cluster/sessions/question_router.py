"""Questions to the clients of a cluster. Answers, progress and cancellations can arrive at any worker.

The ID of a question names the worker that waits, so every worker can send the answer there.
"""

import contextlib
import os
from typing import Any, Final

import msgspec

from dovetail.cluster.sessions.routed_id import RoutedIds
from dovetail.cluster.sessions.session_copies import get_copy
from dovetail.cluster.sessions.session_messages import RemoveHandler, SessionMessage, SessionMessenger
from dovetail.errors import ParseError
from dovetail.protocol.exchange import Service
from dovetail.protocol.http_checks import create_unavailable_refusal
from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable
from dovetail.transports.http_server.sessions.handshake_session import HandshakeSession
from dovetail.wire.codec import decode, encode
from dovetail.wire.jsonrpc import MAX_ID_BYTES, RequestId
from dovetail.wire.meta import PROGRESS_TOKEN

_QUESTION_BYTES: Final = 8
_MAX_CANCELS_PER_SECOND: Final = 10  # Each cancellation goes to all workers.

_ANSWER: Final = "session-answer"
_PROGRESS: Final = "session-progress"
_CANCEL: Final = "session-cancel"


class QuestionRouter:
    """Passes the messages of clients to the worker that waits for them."""

    def __init__(self, service: Service, messenger: SessionMessenger, ids: RoutedIds) -> None:
        self._service = service
        self._messenger = messenger
        self._ids = ids

    def start(self) -> list[RemoveHandler]:
        """Receive the messages of other workers. Return the functions that stop this."""
        return [
            self._messenger.add_handler(_ANSWER, self._receive_answer),
            self._messenger.add_handler(_PROGRESS, self._receive_progress),
            self._messenger.add_handler(_CANCEL, self._receive_cancel),
        ]

    def create_question_id(self, session: HandshakeSession) -> str:
        """Return the ID of a request to a client. It is random, because a copy of a session does not know the IDs of
        earlier copies.
        """
        name = os.urandom(_QUESTION_BYTES).hex()
        return self._ids.create(self._messenger.worker, session.handshake.caller.session_id, name)

    def create_progress_token(self, session: HandshakeSession, token: RequestId) -> str:
        """Return a progress token from which every worker learns which worker waits for the progress."""
        return self._ids.create(self._messenger.worker, session.handshake.caller.session_id, f"p{token}")

    async def handle_response(self, session: HandshakeSession, message: dict[str, Any]) -> None:
        """Pass the client's response to the worker that asked. Ignore responses to unknown requests."""
        await self._route(session, message.get("id"), _ANSWER, message)

    async def handle_progress(self, session: HandshakeSession, message: dict[str, Any]) -> bool:
        """Pass a progress notification to the worker that asked. Return True if this worker must handle it."""
        params = message.get("params") or {}
        # The draft of the protocol has the ID of the request instead of a token.
        return await self._route(session, params.get("requestId", params.get(PROGRESS_TOKEN)), _PROGRESS, message)

    async def _route(self, session: HandshakeSession, id: object, kind: str, message: dict[str, Any]) -> bool:
        key = session.handshake.caller.session_id
        route = self._ids.read(id, key)
        if route is None:
            return False
        if route[0] != self._messenger.worker:
            try:
                await self._messenger.send(
                    route[0], kind, SessionMessage(session=key, data=msgspec.Raw(encode(message)))
                )
            except SharedStateUnavailable as exc:
                raise create_unavailable_refusal(exc.retry_after) from None
            return False
        if kind == _ANSWER:
            session.handle_response(message)
        return True

    def read_progress_token(self, session: HandshakeSession, params: dict[str, Any]) -> dict[str, Any]:
        """Replace a token of `create_progress_token` by the token of the function that waits for the progress."""
        route = self._ids.read(params.get(PROGRESS_TOKEN), session.handshake.caller.session_id)
        return params if route is None else params | {PROGRESS_TOKEN: route[1].removeprefix("p")}

    async def cancel(self, session: HandshakeSession, id: object) -> None:
        """Cancel a request at the worker that runs it."""
        copy = get_copy(session)
        if session.cancel(id) or not isinstance(id, int | str):
            return
        if isinstance(id, str) and len(id) > MAX_ID_BYTES:
            return  # No request has this ID.
        second = int(session.loop.time())
        if second != copy.cancel_second:
            copy.cancel_second, copy.cancel_count = second, 0
        copy.cancel_count += 1
        if copy.cancel_count <= _MAX_CANCELS_PER_SECOND:
            # If the back end is away, the cancellation is lost. A client cannot rely on it anyway.
            await self._messenger.send_to_others(_CANCEL, SessionMessage(session=copy.identity.key, id=id))

    def _receive_answer(self, session: HandshakeSession, message: SessionMessage) -> None:
        with contextlib.suppress(ParseError):
            session.handle_response(decode(bytes(message.data)))

    def _receive_progress(self, session: HandshakeSession, message: SessionMessage) -> None:
        with contextlib.suppress(ParseError):
            exchange = session.handshake.admit_notification(decode(bytes(message.data)))
            exchange.params = session.read_progress(exchange.params)
            exchange.origin = exchange.caller.principal or session.address
            exchange.size = len(bytes(message.data))
            self._service.receive_notification(exchange)

    def _receive_cancel(self, session: HandshakeSession, message: SessionMessage) -> None:
        session.cancel(message.id)
