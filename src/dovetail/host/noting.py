"""Noting what happens: each call with how it ended and how long it took, told as events and written into a journal."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from dovetail.host.deciding import DecisionDetails
from dovetail.host.events import Event
from dovetail.host.journal import Journal
from dovetail.host.policy import Question
from dovetail.wire.codec import encode
from dovetail.wire.shape import Struct


class CallOutcome(Struct, frozen=True, kw_only=True):
    """How a call ended."""

    request: Question
    outcome: str  # "ok", "error", or the kind of exception
    duration_ms: float
    error: str = ""
    result_bytes: int | None = None


@contextmanager
def report_call(request: Question, emit: Callable[[Event], None]) -> Generator[Callable[[Any], None]]:
    """Tell of a call before and after; what is yielded takes its result."""
    started_at = time.perf_counter()
    result: Any = None

    def set_result(value: Any) -> None:
        nonlocal result
        result = value

    def emit_result(outcome: str, error: str = "") -> None:
        duration_ms = (time.perf_counter() - started_at) * 1000
        result_bytes = None if result is None else len(result) if isinstance(result, bytes) else len(encode(result))
        call_outcome = CallOutcome(
            request=request, outcome=outcome, duration_ms=duration_ms, error=error, result_bytes=result_bytes
        )
        emit(Event(kind="result", server=request.server, new=request.tool, reason=outcome, details=call_outcome))

    emit(Event(kind="call", server=request.server, new=request.tool, details=request))
    try:
        yield set_result
    except BaseException as exc:
        emit_result(type(exc).__name__, str(exc))
        raise
    emit_result("error" if getattr(result, "is_error", False) else "ok")


def create_audit_listener(audit_log: Journal) -> Callable[[Event], None]:
    """A listener that writes into a journal."""

    def write_event(event: Event) -> None:
        match event.kind:
            case "server.state":
                audit_log.state(event.server, event.old or "", event.new or "", event.reason)
            case "decision":
                decision_details: DecisionDetails = event.details
                audit_log.decision(decision_details.request, decision_details.decision)
            case "consent":
                audit_log.consent(event.details, event.new or "", reason=event.reason)
            case "result":
                call_outcome: CallOutcome = event.details
                audit_log.call(
                    call_outcome.request,
                    call_outcome.outcome,
                    call_outcome.duration_ms,
                    error=call_outcome.error,
                    result_bytes=call_outcome.result_bytes,
                )
            case "server.added" | "server.removed" | "problem" | "definitions.changed":
                audit_log.event(event.kind, event.server, new=event.new, reason=event.reason)
            case _:
                pass

    return write_event
