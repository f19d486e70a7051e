"""Limit the open input requests of a server that the callers of a mount have not answered.

A connection allows a limited number of open input requests. If the limit is reached, the oldest input request of the
caller with the most open input requests is dropped, so that no caller can block the others.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable
from typing import Any, NamedTuple

from dovetail.errors import ServerBusy
from dovetail.protocol.exchange import IncomingExchange


class QuestionOwner(NamedTuple):
    """The caller to whom a question belongs. An origin can have several sessions."""

    origin: str  # the principal or the address, or the session if both are unknown
    session_id: str = ""


def get_question_owner(exchange: IncomingExchange) -> QuestionOwner:
    """Return the caller that owns the questions of a request."""
    caller = exchange.caller
    return QuestionOwner(exchange.origin or caller.principal or caller.session_id, caller.session_id)


def find_largest_owner(owners: Iterable[QuestionOwner]) -> QuestionOwner:
    """Find the principal or address with the most questions.

    Return its session with the most questions.
    """
    counts = Counter(owners)
    counts_by_origin: Counter[str] = Counter()
    for owner, count in counts.items():
        counts_by_origin[owner.origin] += count
    [(origin, _)] = counts_by_origin.most_common(1)
    return max((owner for owner in counts if owner.origin == origin), key=counts.__getitem__)


class QuestionSlots:
    """Limits the number of input requests that are open at once."""

    def __init__(self, max_questions: int) -> None:
        self._max_questions = max_questions
        self._owner_by_task: dict[asyncio.Task[Any], QuestionOwner] = {}  # The oldest task is first.

    async def run(self, owner: QuestionOwner, question: Coroutine[Any, Any, Any]) -> Any:
        """Send an input request and return the answer. Raise ServerBusy if the request is dropped."""
        if len(self._owner_by_task) >= self._max_questions:
            self._drop_question()
        task = asyncio.get_running_loop().create_task(question)
        self._owner_by_task[task] = owner
        try:
            return await task
        except asyncio.CancelledError:
            if task not in self._owner_by_task:
                raise ServerBusy("Too many input requests are open") from None
            raise
        finally:
            self._owner_by_task.pop(task, None)

    def _drop_question(self) -> None:
        largest_owner = find_largest_owner(self._owner_by_task.values())
        oldest = next(task for task, owner in self._owner_by_task.items() if owner == largest_owner)
        del self._owner_by_task[oldest]
        oldest.cancel()
