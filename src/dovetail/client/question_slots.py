"""Limit the open input requests of a server that the callers of a mount have not answered.

A connection allows a limited number of open input requests. If the limit is reached, the oldest input request of the
caller with the most open input requests is dropped, so that no caller can block the others.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from dovetail.errors import ServerBusy
from dovetail.protocol.exchange import IncomingExchange


def get_question_owner(exchange: IncomingExchange) -> str:
    """Return the ID of the caller whose limit applies to the input requests of this request."""
    return exchange.origin or exchange.caller.principal or exchange.caller.session_id


class QuestionSlots:
    """Limits the number of input requests that are open at once."""

    def __init__(self, max_questions: int) -> None:
        self._max_questions = max_questions
        self._owner_by_task: dict[asyncio.Task[Any], str] = {}  # The oldest task is first.

    async def run(self, owner: str, question: Coroutine[Any, Any, Any]) -> Any:
        """Send an input request and return the answer. Raise ServerBusy if a newer input request replaces this one."""
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
        [(owner, _)] = Counter(self._owner_by_task.values()).most_common(1)
        oldest = next(task for task, task_owner in self._owner_by_task.items() if task_owner == owner)
        del self._owner_by_task[oldest]
        oldest.cancel()
