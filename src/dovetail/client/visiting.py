"""Pages a server wants visited before it serves a request: an error of 2025-11 says so.

The user is asked as ever, and the request sent again when the visit is over or has had its time.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from dovetail.client.answering import InputHandlers
from dovetail.errors import AnswerError, Declined, Dismissed, MCPError, MethodNotFound, PeerError, ProtocolError
from dovetail.protocol.limits import ClientLimits
from dovetail.wire.codec import convert
from dovetail.wire.elicitation import ElicitParams

URL_ELICITATION_REQUIRED: Final = -32042

_MISSING_HANDLER_HINT: Final = "pass elicit_url= to the client: the server wants a page visited first"


class URLElicitations:
    """The visits a user is asked for."""

    def __init__(self, name: str, handlers: InputHandlers, limits: ClientLimits, completion_timeout: float) -> None:
        self._name = name
        self._handlers = handlers
        self._limits = limits
        self._completion_timeout = completion_timeout
        self._pending_events: dict[str, asyncio.Event] = {}

    def mark_complete(self, id: str) -> None:
        """The server says that a visit is over."""
        event = self._pending_events.get(id)
        if event is not None:
            event.set()

    async def elicit_and_retry(self, error: PeerError, step: str, send: Callable[[], Awaitable[Any]]) -> Any:
        """What `send` brings, once the server is content with the visits it asks for."""
        accepted_ids: set[str] = set()
        for _ in range(self._limits.rounds):
            try:
                await self._elicit_all(error, accepted_ids)
            except MCPError as exc:
                raise exc.at(server=self._name, step=step) from exc.__cause__
            try:
                return await send()
            except PeerError as again:
                if again.code != URL_ELICITATION_REQUIRED:
                    raise
                error = again
        raise AnswerError(f"it wanted pages visited in more than {self._limits.rounds} rounds").at(
            server=self._name, step=step
        )

    async def _elicit_all(self, error: PeerError, accepted_ids: set[str]) -> None:
        elicitations = _read_elicitations(error)
        if len(elicitations) > self._limits.questions:
            raise AnswerError(f"it asked {len(elicitations)} questions at once")
        # It may be over before the user has said so.
        events = {
            elicitation.elicitation_id: asyncio.Event()
            for elicitation in elicitations
            if elicitation.elicitation_id is not None
        }
        self._pending_events |= events
        try:
            for elicitation in elicitations:
                if elicitation.elicitation_id not in accepted_ids:
                    await self._elicit(elicitation, error)
            accepted_ids.update(events)
            with contextlib.suppress(TimeoutError):  # not every server says when it is over
                async with asyncio.timeout(self._completion_timeout):
                    for event in events.values():
                        await event.wait()
        finally:
            for id in events:
                self._pending_events.pop(id, None)

    async def _elicit(self, elicitation: ElicitParams, error: PeerError) -> None:
        try:
            result = await self._handlers.elicit(elicitation)
        except MethodNotFound:
            raise error.at(hint=_MISSING_HANDLER_HINT) from None
        except ProtocolError as exc:
            raise AnswerError(exc.message) from None
        if result.action != "accept":
            raise Declined() if result.action == "decline" else Dismissed()


def _read_elicitations(error: PeerError) -> list[ElicitParams]:
    """The visits an error asks for; the error itself if it does not say."""
    try:
        items: Any = error.data["elicitations"]
        elicitations = [convert(item, ElicitParams) for item in items]
    except (TypeError, KeyError, ValueError, msgspec.ValidationError, MCPError):
        raise error from None
    if not elicitations or any(elicitation.mode != "url" for elicitation in elicitations):
        raise error
    return elicitations
