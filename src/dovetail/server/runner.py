"""Runner: how a function of the author's is called, whatever it is: a coroutine, a plain function, a method.

Coroutine functions run in the request's own task; plain ones in a thread, unless declared quick with `inline`.
"""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Collection
from typing import Any
from weakref import WeakKeyDictionary

from dovetail.errors import MCPError, ToolError
from dovetail.server import docstrings
from dovetail.server.threads import Threads


class Runner:
    """One function, and how to call it."""

    __slots__ = ("function", "inline", "is_async", "timeout")

    takes_context = False  # whether the first argument is the context, for the runner itself

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


class Resolving(Runner):
    """Runs a plain function that stands around a coroutine function, as decorators do, and awaits what it gives."""

    __slots__ = ()

    def __call__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], threads: Threads, origin: str | None
    ) -> Awaitable[Any]:
        return self._resolved(super().__call__(args, kwargs, threads, origin))

    async def _resolved(self, given: Awaitable[Any]) -> Any:
        value = await given
        return await value if inspect.isawaitable(value) else value


class Limited(Runner):
    """Runs a function a few times at once; further calls wait for their turn, within their time."""

    __slots__ = ("_inner", "_limit", "_places", "takes_context")

    def __init__(self, inner: Runner, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        super().__init__(inner.function, timeout=inner.timeout, inline=inner.inline)
        self.takes_context = inner.takes_context
        self._inner = inner
        self._limit = limit
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    def __call__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], threads: Threads, origin: str | None
    ) -> Awaitable[Any]:
        return self._in_turn(args, kwargs, threads, origin)

    async def _in_turn(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], threads: Threads, origin: str | None
    ) -> Any:
        loop = asyncio.get_running_loop()
        async with self._places.setdefault(loop, asyncio.Semaphore(self._limit)):
            return await self._inner(args, kwargs, threads, origin)


class Revealing(Runner):
    """Runs a function some of whose exceptions are meant for the caller: their text is told instead of masked."""

    __slots__ = ("_inner", "_kinds", "takes_context")

    def __init__(self, inner: Runner, kinds: Collection[type[Exception]]) -> None:
        if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"reveal takes classes of exceptions, not {kinds!r}")
        super().__init__(inner.function, timeout=inner.timeout, inline=inner.inline)
        self.takes_context = inner.takes_context
        self._inner = inner
        self._kinds = tuple(kinds)

    def __call__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], threads: Threads, origin: str | None
    ) -> Awaitable[Any]:
        return self._told(args, kwargs, threads, origin)

    async def _told(self, args: tuple[Any, ...], kwargs: dict[str, Any], threads: Threads, origin: str | None) -> Any:
        try:
            return await self._inner(args, kwargs, threads, origin)
        except MCPError:
            raise  # speaks for itself
        except self._kinds as exc:
            raise ToolError(str(exc) or type(exc).__name__) from exc


def _is_async(function: Callable[..., Any]) -> bool:
    function = _inner(function)
    return inspect.iscoroutinefunction(function) or (
        not inspect.isroutine(function) and inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
    )


def may_give_coroutine(function: Callable[..., Any]) -> bool:
    """Whether a plain function says that it stands for a coroutine function."""
    return not _is_async(function) and _is_async(inspect.unwrap(_inner(function)))


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
