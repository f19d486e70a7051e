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
from dovetail.server.threads import ThreadPool


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
        self, args: tuple[Any, ...], kwargs: dict[str, Any], thread_pool: ThreadPool, origin: str | None
    ) -> Awaitable[Any]:
        """Its value, to be awaited. Not a coroutine itself: that would be one more between caller and author."""
        if self.is_async:
            return self.function(*args, **kwargs)
        return self._call_inline(args, kwargs) if self.inline else thread_pool.run(self.function, args, kwargs, origin)

    async def _call_inline(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.function(*args, **kwargs)


class AwaitingRunner(Runner):
    """Runs a plain function that stands around a coroutine function, as decorators do, and awaits what it gives."""

    __slots__ = ()

    def __call__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], thread_pool: ThreadPool, origin: str | None
    ) -> Awaitable[Any]:
        return self._await_result(super().__call__(args, kwargs, thread_pool, origin))

    async def _await_result(self, awaitable: Awaitable[Any]) -> Any:
        value = await awaitable
        return await value if inspect.isawaitable(value) else value


class LimitedRunner(Runner):
    """Runs a function a few times at once; further calls wait for their turn, within their time."""

    __slots__ = ("_inner", "_max_concurrency", "_semaphores", "takes_context")

    def __init__(self, inner: Runner, max_concurrency: int) -> None:
        if max_concurrency < 1:
            raise ValueError(f"limit must be at least 1, not {max_concurrency}")
        super().__init__(inner.function, timeout=inner.timeout, inline=inner.inline)
        self.takes_context = inner.takes_context
        self._inner = inner
        self._max_concurrency = max_concurrency
        self._semaphores: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    def __call__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], thread_pool: ThreadPool, origin: str | None
    ) -> Awaitable[Any]:
        return self._run_limited(args, kwargs, thread_pool, origin)

    async def _run_limited(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], thread_pool: ThreadPool, origin: str | None
    ) -> Any:
        loop = asyncio.get_running_loop()
        async with self._semaphores.setdefault(loop, asyncio.Semaphore(self._max_concurrency)):
            return await self._inner(args, kwargs, thread_pool, origin)


class ErrorExposingRunner(Runner):
    """Runs a function some of whose exceptions are meant for the caller: their text is told instead of masked."""

    __slots__ = ("_exposed_types", "_inner", "takes_context")

    def __init__(self, inner: Runner, exception_types: Collection[type[Exception]]) -> None:
        if not all(isinstance(type_, type) and issubclass(type_, Exception) for type_ in exception_types):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"reveal takes classes of exceptions, not {exception_types!r}")
        super().__init__(inner.function, timeout=inner.timeout, inline=inner.inline)
        self.takes_context = inner.takes_context
        self._inner = inner
        self._exposed_types = tuple(exception_types)

    def __call__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], thread_pool: ThreadPool, origin: str | None
    ) -> Awaitable[Any]:
        return self._run_exposing(args, kwargs, thread_pool, origin)

    async def _run_exposing(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], thread_pool: ThreadPool, origin: str | None
    ) -> Any:
        try:
            return await self._inner(args, kwargs, thread_pool, origin)
        except MCPError:
            raise  # speaks for itself
        except self._exposed_types as exc:
            raise ToolError(str(exc) or type(exc).__name__) from exc


def _is_async(function: Callable[..., Any]) -> bool:
    function = _unwrap_partial(function)
    return inspect.iscoroutinefunction(function) or (
        not inspect.isroutine(function) and inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
    )


def may_return_coroutine(function: Callable[..., Any]) -> bool:
    """Whether a plain function says that it stands for a coroutine function."""
    return not _is_async(function) and _is_async(inspect.unwrap(_unwrap_partial(function)))


def get_description(function: Callable[..., Any]) -> str | None:
    """The function's own words about itself, without those about its parameters."""
    return docstrings.parse(inspect.getdoc(_unwrap_partial(function))).text or None


def get_function_name(function: Callable[..., Any], default: str | None = None) -> str:
    """The function's own name; if it has none, the other one, or TypeError where there is no other."""
    name: str | None = getattr(function, "__name__", None)
    if name is None or not name.isidentifier():  # such as <lambda>
        name = default
    if name is None:
        raise TypeError(f"a {type(function).__name__} without a name of its own needs name=")
    return name


def _unwrap_partial(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function
