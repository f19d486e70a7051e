"""Conversion of unexpected exceptions to errors without details. The log has the details."""

import asyncio
import os
from collections.abc import Callable
from typing import Any, Final

from dovetail.error_context import clip
from dovetail.errors import (
    ConnectionLost,
    InternalError,
    InvalidParams,
    ProtocolError,
    RemoteError,
    ServerBusy,
    ToolError,
)
from dovetail.log import log
from dovetail.protocol.exchange import IncomingExchange
from dovetail.protocol.middleware import get_target_name
from dovetail.server.parameters.signature import InvalidArguments

_ERROR_BY_END_REASON: Final[dict[str, Callable[[IncomingExchange], ProtocolError]]] = {
    "timeout": lambda exchange: InternalError(
        f"The call took longer than {exchange.time_limit:g} s and was abandoned. It may have had an effect"
    ),
    "unanswered": lambda _: InternalError("The user did not answer in time and the call was stopped"),
    "shutdown": lambda _: ServerBusy(
        "The server is shutting down and stopped the call. The call may have had an effect"
    ),
}

# The nouns for items in errors and log messages. The keys are request methods.
_ITEM_NOUNS: Final = {"resources/read": "resource", "prompts/get": "prompt", "completion/complete": "completion of"}


class ExceptionMask:
    """Converts the exceptions of one server's requests to errors for the client."""

    def __init__(self, get_server_name: Callable[[], str], *, debug: bool) -> None:
        self._get_server_name = get_server_name
        self._debug = debug

    def convert(self, exchange: IncomingExchange, exc: BaseException) -> ProtocolError:
        """Convert an exception. The client receives the text of errors that are meant for it."""
        error = unwrap_group(exc)
        if isinstance(error, ProtocolError):
            return error
        if isinstance(error, (ToolError, RemoteError)):
            data = {"field": error.field} if isinstance(error, InvalidArguments) and error.field else None
            return InvalidParams(str(error), data)
        return self.mask(exchange, exc)

    def mask(self, exchange: IncomingExchange, exc: BaseException) -> ProtocolError:
        """Convert an exception to an error without details. A cancellation is raised again."""
        operation = f"{_ITEM_NOUNS.get(exchange.method, exchange.method)} {get_target_name(exchange)}".rstrip()
        return mask_exception(exchange, exc, operation, server=self._get_server_name(), debug=self._debug)


def mask_exception(
    exchange: IncomingExchange, exc: BaseException, operation: str, *, server: str, debug: bool
) -> ProtocolError:
    """Convert an exception to the error that the client receives. A cancellation is raised again.

    Most exceptions are written to the log, and the client receives no details.
    """
    task = _get_current_task()
    if isinstance(exc, GeneratorExit) and task is not exchange.task:
        # The event loop has ended, so no client can receive an error.
        raise exc
    if isinstance(exc, asyncio.CancelledError):
        # If the parent request was stopped, its function must receive the cancellation.
        is_parent_stopped = exchange.parent is not None and exchange.parent.verdict is not None
        if task is not None and exchange.verdict in _ERROR_BY_END_REASON and not is_parent_stopped:
            task.uncancel()
            return _ERROR_BY_END_REASON[exchange.verdict](exchange)
        if task is not None and task.cancelling():
            raise exc
    if isinstance(exc, ConnectionLost):
        return InternalError("The client disconnected before it answered")
    reference = os.urandom(4).hex()
    log.error("%s failed [%s]", operation, reference, exc_info=exc)
    if debug:
        return InternalError(f"{clip(operation)} failed: {type(exc).__name__}: {clip(str(exc), 1024)} [{reference}]")
    return InternalError(f"{clip(operation)} failed. The log of {server} has the details under {reference}")


def unwrap_group(exc: BaseException) -> BaseException:
    """If an exception group contains one exception, return it. Return every other exception unchanged."""
    while isinstance(exc, BaseExceptionGroup) and len(exc.exceptions) == 1:
        exc = exc.exceptions[0]
    return exc


def _get_current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
