"""Middleware: the one shape of what stands around a request, on the server's side and on the client's.

Composed when it is registered; where there is none, nothing of this is called.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias, TypeVar

from dovetail.protocol.exchange import Exchange
from dovetail.wire.methods import METHODS
from dovetail.wire.shape import Result

Call: TypeAlias = Callable[[Exchange], Awaitable[Any]]
Middleware: TypeAlias = Callable[[Exchange, Call], Awaitable[Any]]

F = TypeVar("F", bound=Callable[..., Any])

_RESULTS: Final = (Result, bytes)


def around(middleware: Iterable[Middleware], work: Call) -> Call:
    """The work with everything around it; the first stands outermost."""
    for function in reversed([*middleware]):
        work = _link(function, work)
    return work


def unseeing(function: F) -> F:
    """Mark middleware that does not look at results, so that those of other servers may go through as they came."""
    function.__dict__["unseeing"] = True
    return function


def sees(function: Middleware) -> bool:
    """Whether middleware may look at results."""
    return not getattr(function, "unseeing", False)


def checked(function: Middleware) -> Middleware:
    """The function, if it can stand around a request; otherwise every single one would fail."""
    plain = inspect.unwrap(function) if callable(function) else function
    try:
        inspect.signature(plain).bind(None, None)
    except (TypeError, ValueError):
        raise TypeError(f"{function!r} is no middleware: it takes two arguments, (exchange, proceed)") from None
    named = inspect.isfunction(plain) and plain.__name__ != "<lambda>"  # which may pass on what is awaited
    if named and not inspect.iscoroutinefunction(plain):
        raise TypeError(f"{plain.__qualname__} is no middleware: it has to be `async def`, and await proceed(exchange)")
    return function


def _link(function: Middleware, inner: Call) -> Call:
    async def call(exchange: Exchange) -> Any:
        found = await function(exchange, inner)
        if found is None and exchange.method in METHODS:  # of which none has such a result
            raise TypeError(f"the middleware {_name(function)} returned nothing: let it return await proceed(exchange)")
        if not isinstance(found, _RESULTS) and not exchange.outgoing and exchange.method in METHODS:
            kind = type(found).__qualname__
            raise TypeError(
                f"the middleware {_name(function)} returned {kind}, which is no result: let it return what "
                "`await proceed(exchange)` gave, or a result such as CallToolResult"
            )
        return found

    return call


def _name(function: Middleware) -> str:
    plain = inspect.unwrap(function)
    return getattr(plain, "__qualname__", type(plain).__qualname__)
