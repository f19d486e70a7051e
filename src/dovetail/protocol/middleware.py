"""Types, checks and composition for the middleware of servers and clients, and the target name that it logs.

Middleware is composed when it is registered, so there is no overhead without middleware.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias, TypeVar

from dovetail.error_context import clip
from dovetail.protocol.exchange import Exchange, IncomingExchange
from dovetail.wire.base import Result
from dovetail.wire.methods import METHODS

# A function that passes a request to the next middleware or to the handler, and returns the result.
CallNext: TypeAlias = Callable[[Exchange], Awaitable[object]]
# An async function, or an object with an async `__call__`. It returns the result of `call_next`, or another result.
Middleware: TypeAlias = Callable[[Exchange, CallNext], Awaitable[object]]

# Handles one request method of a server, after all middleware.
Handler: TypeAlias = Callable[[IncomingExchange], Awaitable[Any]]

F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", bound=Exchange)

_RESULT_TYPES: Final = (Result, bytes)


def compose_middleware(
    middleware: Iterable[Middleware], handler: Callable[[E], Awaitable[Any]]
) -> Callable[[E], Awaitable[Any]]:
    """Wrap a handler in middleware. The first middleware is the outermost."""
    call_next: Any = handler  # Any, because type checkers cannot infer the type of the exchange
    for function in reversed([*middleware]):
        call_next = _wrap_handler(function, call_next)
    return call_next


def mark_ignores_results(function: F) -> F:
    """Mark middleware that does not read results, so that results of mounted servers can be forwarded unchanged."""
    function.__dict__["ignores_results"] = True
    return function


def reads_results(function: Middleware) -> bool:
    """Return whether middleware may read results."""
    return not getattr(function, "ignores_results", False)


def validate_middleware(function: Middleware) -> Middleware:
    """Return the function if it is valid middleware. Otherwise raise TypeError.

    Without this check, every request would fail.
    """
    try:
        inspect.signature(function, follow_wrapped=False).bind(None, None)
    except (TypeError, ValueError):
        raise TypeError(f"invalid middleware {function!r}: it must take two arguments, (exchange, call_next)") from None
    if not _may_return_awaitable(function):
        raise TypeError(
            f"invalid middleware {_function_name(function)}: it must be `async def` and await call_next(exchange)"
        )
    return function


def _may_return_awaitable(function: Middleware) -> bool:
    called: Any = function
    while isinstance(called, functools.partial):
        called = called.func
    if inspect.isclass(called):
        return False  # A class is not middleware, because calling it only creates an object.
    unwrapped = inspect.unwrap(called)
    if not inspect.isroutine(called):
        called = type(called).__call__
    # A sync lambda may return the awaitable of another function.
    # Decorated async functions and functions that are not written in Python can also return an awaitable.
    return (
        any(map(inspect.iscoroutinefunction, (function, called, unwrapped)))
        or not hasattr(called, "__code__")
        or called.__name__ == "<lambda>"
    )


def _wrap_handler(function: Middleware, call_next: CallNext) -> CallNext:
    async def call(exchange: Exchange) -> object:
        result = await function(exchange, call_next)
        if result is None and (not exchange.is_outgoing or exchange.method in METHODS):  # No method returns None.
            raise TypeError(
                f"the middleware {_function_name(function)} returned None. It must return the result of `await "
                "call_next(exchange)`"
            )
        if not isinstance(result, _RESULT_TYPES) and not exchange.is_outgoing:
            type_name = type(result).__qualname__
            raise TypeError(
                f"the middleware {_function_name(function)} returned {type_name}. It must return the result of "
                "`await call_next(exchange)` or another result, for example CallToolResult"
            )
        return result

    return call


def _function_name(function: Middleware) -> str:
    unwrapped = inspect.unwrap(function)
    return getattr(unwrapped, "__qualname__", type(unwrapped).__qualname__)


def get_target_name(exchange: Exchange) -> str:
    """Return the name of the requested tool or prompt, or the URI of the resource. Other requests have an empty name.

    For a completion, the name is that of the prompt or the resource template.
    """
    reference = exchange.params.get("ref")
    for members in (exchange.params, reference if type(reference) is dict else {}):
        for field in ("name", "uri"):
            value = members.get(field)
            if type(value) is str:
                return clip(value, 200)
    return ""
