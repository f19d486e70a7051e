"""Pages a server wants visited before it serves a request: an error of 2025-11 says so.

The user is asked as ever, and the request sent again when the visit is over or has had its time.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from dovetail.client.answering import Answering
from dovetail.errors import AnswerError, Declined, Dismissed, MCPError, MethodNotFound, PeerError, ProtocolError
from dovetail.protocol.limits import ClientLimits
from dovetail.wire.codec import convert
from dovetail.wire.elicitation import ElicitParams

URL_REQUIRED: Final = -32042

_UNHANDLED: Final = "pass elicit_url= to the client: the server wants a page visited first"


class Visiting:
    """The visits a user is asked for."""

    def __init__(self, name: str, answering: Answering, limits: ClientLimits, patience: float) -> None:
        self._name = name
        self._answering = answering
        self._limits = limits
        self._patience = patience
        self._under_way: dict[str, asyncio.Event] = {}

    def over(self, id: str) -> None:
        """The server says that a visit is over."""
        visit = self._under_way.get(id)
        if visit is not None:
            visit.set()

    async def through(self, refusal: PeerError, step: str, send: Callable[[], Awaitable[Any]]) -> Any:
        """What `send` brings, once the server is content with the visits it asks for."""
        agreed: set[str] = set()
        for _ in range(self._limits.rounds):
            try:
                await self._visit(refusal, agreed)
            except MCPError as exc:
                raise exc.at(server=self._name, step=step) from exc.__cause__
            try:
                return await send()
            except PeerError as again:
                if again.code != URL_REQUIRED:
                    raise
                refusal = again
        raise AnswerError(f"it wanted pages visited in more than {self._limits.rounds} rounds").at(
            server=self._name, step=step
        )

    async def _visit(self, refusal: PeerError, agreed: set[str]) -> None:
        wanted = _wanted(refusal)
        if len(wanted) > self._limits.questions:
            raise AnswerError(f"it asked {len(wanted)} questions at once")
        # It may be over before the user has said so.
        visits = {one.elicitation_id: asyncio.Event() for one in wanted if one.elicitation_id is not None}
        self._under_way |= visits
        try:
            for one in wanted:
                if one.elicitation_id not in agreed:
                    await self._ask(one, refusal)
            agreed.update(visits)
            with contextlib.suppress(TimeoutError):  # not every server says when it is over
                async with asyncio.timeout(self._patience):
                    for visit in visits.values():
                        await visit.wait()
        finally:
            for id in visits:
                self._under_way.pop(id, None)

    async def _ask(self, question: ElicitParams, refusal: PeerError) -> None:
        try:
            given = await self._answering.elicited(question)
        except MethodNotFound:
            raise refusal.at(hint=_UNHANDLED) from None
        except ProtocolError as exc:
            raise AnswerError(exc.message) from None
        if given.action != "accept":
            raise Declined() if given.action == "decline" else Dismissed()


def _wanted(refusal: PeerError) -> list[ElicitParams]:
    """The visits an error asks for; the error itself if it does not say."""
    try:
        listed: Any = refusal.data["elicitations"]
        found = [convert(one, ElicitParams) for one in listed]
    except (TypeError, KeyError, ValueError, msgspec.ValidationError, MCPError):
        raise refusal from None
    if not found or any(one.mode != "url" for one in found):
        raise refusal
    return found
