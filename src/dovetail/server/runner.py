"""Runner: how a function of the author's is called, whatever it is: a coroutine, a plain function, a method.

Coroutine functions run in the request's own task; plain ones in a thread, unless declared quick with `inline`.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from dovetail.server import docstrings
from dovetail.server.threads import Threads


class Runner:
    """One function, and how to call it."""

    __slots__ = ("function", "inline", "is_async", "timeout")

    def __init__(self, function: Callable[..., Any], *, timeout: float | None = None, inline: bool = False) -> None:
        if timeout is not None and (isinstance(timeout, str) or not timeout > 0):
            raise ValueError(f"timeout must be a positive number of seconds, not {timeout!r}")
        self.function = function
        self.is_async = _is_async(function)
        self.inline = inline
        self.timeout = timeout

    def __call__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], threads: Threads, origin: str | None
    ) -> Awaitable[Any]:
        """Its value, to be awaited. Not a coroutine itself: that would be one more between caller and author."""
        if self.is_async:
            return self.function(*args, **kwargs)
        return self._at_once(args, kwargs) if self.inline else threads.run(self.function, args, kwargs, origin)

    async def _at_once(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.function(*args, **kwargs)


def _is_async(function: Callable[..., Any]) -> bool:
    function = _inner(function)
    return inspect.iscoroutinefunction(function) or (
        not inspect.isroutine(function) and inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
    )


def describe(function: Callable[..., Any]) -> str | None:
    """The function's own words about itself, without those about its parameters."""
    return docstrings.read(inspect.getdoc(_inner(function))).text or None


def own_name(function: Callable[..., Any], otherwise: str | None = None) -> str:
    """The function's own name; if it has none, the other one, or TypeError where there is no other."""
    name: str | None = getattr(function, "__name__", None)
    if name is None or not name.isidentifier():  # such as <lambda>
        name = otherwise
    if name is None:
        raise TypeError(f"a {type(function).__name__} without a name of its own needs name=")
    return name


def _inner(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function
