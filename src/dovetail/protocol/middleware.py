"""Middleware of servers and clients: its types, its checks, and its composition around a handler.

Composed when it is registered; where there is none, nothing of this is called.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias, TypeVar

from dovetail.error_context import clip
from dovetail.protocol.exchange import Exchange
from dovetail.wire.base import Result
from dovetail.wire.methods import METHODS
from dovetail.wire.tools import CallToolResult

CallNext: TypeAlias = Callable[[Exchange], Awaitable[Any]]
Middleware: TypeAlias = Callable[[Exchange, CallNext], Awaitable[Any]]

F = TypeVar("F", bound=Callable[..., Any])

_RESULT_TYPES: Final = (Result, bytes)


def compose_middleware(middleware: Iterable[Middleware], handler: CallNext) -> CallNext:
    """The work with everything around it; the first stands outermost."""
    for function in reversed([*middleware]):
        handler = _wrap_handler(function, handler)
    return handler


def ignores_results(function: F) -> F:
    """Mark middleware that does not look at results, so that those of other servers may go through as they came."""
    function.__dict__["ignores_results"] = True
    return function


def reads_results(function: Middleware) -> bool:
    """Whether middleware may look at results."""
    return not getattr(function, "ignores_results", False)


def validate_middleware(function: Middleware) -> Middleware:
    """The function, if it can stand around a request; otherwise every single one would fail."""
    unwrapped = inspect.unwrap(function) if callable(function) else function
    try:
        inspect.signature(unwrapped).bind(None, None)
    except (TypeError, ValueError):
        raise TypeError(f"{function!r} is no middleware: it takes two arguments, (exchange, call_next)") from None
    is_named = inspect.isfunction(unwrapped) and unwrapped.__name__ != "<lambda>"  # which may pass on what is awaited
    if is_named and not inspect.iscoroutinefunction(unwrapped):
        raise TypeError(
            f"{unwrapped.__qualname__} is no middleware: it has to be `async def`, and await call_next(exchange)"
        )
    return function


def _wrap_handler(function: Middleware, call_next: CallNext) -> CallNext:
    async def call(exchange: Exchange) -> Any:
        result = await function(exchange, call_next)
        if result is None and exchange.method in METHODS:  # of which none has such a result
            raise TypeError(
                f"the middleware {_function_name(function)} returned nothing: let it return await call_next(exchange)"
            )
        if not isinstance(result, _RESULT_TYPES) and not exchange.is_outgoing and exchange.method in METHODS:
            type_name = type(result).__qualname__
            raise TypeError(
                f"the middleware {_function_name(function)} returned {type_name}, which is no result: "
                "let it return what "
                "`await call_next(exchange)` gave, or a result such as CallToolResult"
            )
        return result

    return call


def _function_name(function: Middleware) -> str:
    unwrapped = inspect.unwrap(function)
    return getattr(unwrapped, "__qualname__", type(unwrapped).__qualname__)


def get_target_name(exchange: Exchange) -> str:
    """The tool or prompt called, or the resource read; empty where there is none."""
    for field in ("name", "uri"):
        value = exchange.params.get(field)
        if type(value) is str:
            return clip(value, 200)
    return ""


def get_caller_key(exchange: Exchange) -> str:
    """Who asks: the principal, else whatever tells callers apart here, else nobody in particular."""
    return exchange.caller.principal or exchange.origin or ""


def has_failed(result: Any) -> bool:
    """Whether a tool's result says that the tool failed."""
    return isinstance(result, CallToolResult) and result.is_error


def is_subscription(exchange: Exchange) -> bool:
    """Whether it lasts as long as its listener, so that its duration says nothing."""
    return exchange.method == "subscriptions/listen"
