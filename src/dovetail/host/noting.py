"""Noting what happens: each call with how it ended and how long it took, told as events and written into a journal."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from dovetail.host.deciding import Decided
from dovetail.host.events import Event
from dovetail.host.journal import Journal
from dovetail.host.policy import Question
from dovetail.wire.codec import encode
from dovetail.wire.shape import Struct


class Outcome(Struct, frozen=True, kw_only=True):
    """How a call ended."""

    question: Question
    outcome: str  # "ok", "error", or the kind of exception
    ms: float
    error: str = ""
    size: int | None = None


@contextmanager
def noted(question: Question, tell: Callable[[Event], None]) -> Generator[Callable[[Any], None]]:
    """Tell of a call before and after; what is yielded takes its result."""
    began = time.perf_counter()
    result: Any = None

    def note(given: Any) -> None:
        nonlocal result
        result = given

    def over(outcome: str, error: str = "") -> None:
        ms = (time.perf_counter() - began) * 1000
        size = None if result is None else len(result) if isinstance(result, bytes) else len(encode(result))
        told = Outcome(question=question, outcome=outcome, ms=ms, error=error, size=size)
        tell(Event(kind="result", server=question.server, new=question.tool, reason=outcome, details=told))

    tell(Event(kind="call", server=question.server, new=question.tool, details=question))
    try:
        yield note
    except BaseException as exc:
        over(type(exc).__name__, str(exc))
        raise
    over("error" if getattr(result, "is_error", False) else "ok")


def journaling(journal: Journal) -> Callable[[Event], None]:
    """A listener that writes into a journal."""

    def write(event: Event) -> None:
        match event.kind:
            case "server.state":
                journal.state(event.server, event.old or "", event.new or "", event.reason)
            case "decision":
                decided: Decided = event.details
                journal.decision(decided.question, decided.decision)
            case "consent":
                journal.consent(event.details, event.new or "", reason=event.reason)
            case "result":
                told: Outcome = event.details
                journal.call(told.question, told.outcome, told.ms, error=told.error, result_bytes=told.size)
            case "server.added" | "server.removed" | "problem" | "definitions.changed":
                journal.event(event.kind, event.server, new=event.new, reason=event.reason)
            case _:
                pass

    return write
