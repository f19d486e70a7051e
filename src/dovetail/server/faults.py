"""Faults: what an exception nobody meant for the caller becomes, and what the log says of it."""

import asyncio
import logging
import os
import traceback
from collections.abc import Callable
from typing import Any, Final

from dovetail.errors import Busy, Disconnected, InternalError, ProtocolError, clip
from dovetail.protocol.exchange import Exchange

log = logging.getLogger("dovetail")

_TRACE: Final = 8192  # characters of a traceback in the log
_PART: Final = 512

_ENDED: Final[dict[str, Callable[[], ProtocolError]]] = {
    "timeout": lambda: InternalError("The call took too long and was stopped"),
    "unanswered": lambda: InternalError("The question to the user was not answered in time and the call was stopped"),
    "shutdown": lambda: Busy("The server is shutting down; the call was stopped, perhaps after it had an effect"),
}


def contained(exchange: Exchange, exc: BaseException, what: str, *, server: str, debug: bool) -> ProtocolError:
    """The error to answer with; genuine cancellation is raised again, everything else is logged and masked."""
    task = _current_task()
    if isinstance(exc, GeneratorExit) and task is not exchange.task:
        raise exc  # its loop is gone, and nobody waits for an answer
    if isinstance(exc, asyncio.CancelledError):
        if task is not None and exchange.verdict in _ENDED:
            task.uncancel()
            return _ENDED[exchange.verdict]()
        if task is not None and task.cancelling():
            raise exc
    if isinstance(exc, Disconnected):
        return InternalError("The client left before it answered")
    reference = os.urandom(4).hex()
    log.error("%s failed [%s]\n%s", clip(what), reference, trace(exc))
    if debug:
        return InternalError(f"{what} failed: {type(exc).__name__}: {clip(str(exc), 1024)} [{reference}]")
    return InternalError(f"{what} failed; the log of {server} has the details under {reference}")


def alone(exc: BaseException) -> BaseException:
    """What a task group of one failed task raised, without the group around it."""
    while isinstance(exc, BaseExceptionGroup) and len(exc.exceptions) == 1:
        exc = exc.exceptions[0]
    return exc


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def trace(exc: BaseException) -> str:
    """A traceback fit for a log: bounded, no control characters, and no line that could pose as a record of its own."""
    # A part is a frame or the words of an exception, which may be the caller's.
    parts = [part if len(part) <= _PART else part[:_PART] + "…\n" for part in traceback.format_exception(exc, limit=30)]
    return "\n".join(f"  {clip(line, _PART + 1)}" for line in "".join(parts)[-_TRACE:].splitlines())
