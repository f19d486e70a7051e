"""Middleware: the one shape of what stands around a request, on the server's side and on the client's.

Composed when it is registered; where there is none, nothing of this is called.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

from dovetail.protocol.exchange import Exchange

Call: TypeAlias = Callable[[Exchange], Awaitable[Any]]
Middleware: TypeAlias = Callable[[Exchange, Call], Awaitable[Any]]


def around(middleware: Iterable[Middleware], work: Call) -> Call:
    """The work with everything around it; the first stands outermost."""
    for function in reversed([*middleware]):
        work = _link(function, work)
    return work


def _link(function: Middleware, inner: Call) -> Call:
    async def call(exchange: Exchange) -> Any:
        return await function(exchange, inner)

    return call
