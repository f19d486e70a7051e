"""QuestionSlots: the questions of a server that the callers behind a mount have not answered.

A connection allows a limited number of open questions. If all slots are taken, the caller with the most open questions
loses its oldest one, so that no caller can use up the slots of the others.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from dovetail.errors import ServerBusy
from dovetail.protocol.exchange import IncomingExchange


def get_question_owner(exchange: IncomingExchange) -> str:
    """Return the caller to which the questions of a request count."""
    return exchange.origin or exchange.caller.principal or exchange.caller.session_id


class QuestionSlots:
    """Limits how many questions are open at once."""

    def __init__(self, max_questions: int) -> None:
        self._max_questions = max_questions
        self._owner_by_task: dict[asyncio.Task[Any], str] = {}  # oldest first

    async def run(self, owner: str, question: Coroutine[Any, Any, Any]) -> Any:
        """Ask a question and return the answer. Raise ServerBusy if another question needs the slot."""
        if len(self._owner_by_task) >= self._max_questions:
            self._drop_question()
        task = asyncio.get_running_loop().create_task(question)
        self._owner_by_task[task] = owner
        try:
            return await task
        except asyncio.CancelledError:
            if task not in self._owner_by_task:
                raise ServerBusy("Too many questions are open") from None
            raise
        finally:
            self._owner_by_task.pop(task, None)

    def _drop_question(self) -> None:
        [(owner, _)] = Counter(self._owner_by_task.values()).most_common(1)
        oldest = next(task for task, task_owner in self._owner_by_task.items() if task_owner == owner)
        del self._owner_by_task[oldest]
        oldest.cancel()
