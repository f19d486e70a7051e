"""Runners call the function of a tool, resource or prompt: a coroutine function, a plain function or a generator.

Coroutine functions run in the task of the request. Plain functions run in a thread, unless registered with
`run_in_thread=False`.
"""

import asyncio
import contextlib
import functools
import inspect
import threading
import typing
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator
from typing import Any, Final
from weakref import WeakKeyDictionary

from dovetail.errors import MCPError, ServerBusy, ToolError
from dovetail.server.context import Context
from dovetail.server.parameters import docstrings
from dovetail.server.parameters.type_hints import UNION_ORIGINS
from dovetail.server.thread_pool import ThreadPool
from dovetail.wire.content import TextContent


class Runner:
    """Calls one registered function."""

    __slots__ = ("function", "is_async", "run_in_thread", "timeout")

    takes_context = False  # True if the context is the first argument
    max_concurrency: int | None = None  # the maximum number of calls at the same time, or None for no limit

    def __init__(
        self, function: Callable[..., Any], *, timeout: float | None = None, run_in_thread: bool = True
    ) -> None:
        if timeout is not None and (isinstance(timeout, str) or not timeout > 0):
            raise ValueError(f"timeout must be a positive number of seconds, not {timeout!r}")
        self.function = function
        self.is_async = _is_async(function)
        self.run_in_thread = run_in_thread
        self.timeout = timeout

    def run(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], thread_pool: ThreadPool, origin: str | None
    ) -> Awaitable[Any]:
        """Call the function and return an awaitable.

        This method is not a coroutine, because a coroutine would make each call slower.
        """
        if self.is_async:
            return self.function(*args, **kwargs)
        if self.run_in_thread:
            return thread_pool.run(self.function, args, kwargs, origin)
        return self._call_inline(args, kwargs)

    async def _call_inline(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.function(*args, **kwargs)


class AwaitingRunner(Runner):
    """Runs a sync function that returns an awaitable, such as a decorated coroutine function."""

    __slots__ = ()

    def run(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], thread_pool: ThreadPool, origin: str | None
    ) -> Awaitable[Any]:
        return self._await_result(super().run(args, kwargs, thread_pool, origin))

    async def _await_result(self, awaitable: Awaitable[Any]) -> Any:
        value = await awaitable
        return await value if inspect.isawaitable(value) else value


class LimitedRunner(Runner):
    """Limits how many calls of a function run at once. The time that a call waits counts toward its timeout."""

    __slots__ = ("_inner", "_semaphores", "max_concurrency", "takes_context")

    def __init__(self, inner: Runner, max_concurrency: int) -> None:
        if max_concurrency < 1:
            raise ValueError(f"max_concurrency must be at least 1, not {max_concurrency}")
        super().__init__(inner.function, timeout=inner.timeout, run_in_thread=inner.run_in_thread)
        self.takes_context = inner.takes_context
        self._inner = inner
        self.max_concurrency = max_concurrency
        self._semaphores: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    def run(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], thread_pool: ThreadPool, origin: str | None
    ) -> Awaitable[Any]:
        return self._run_limited(args, kwargs, thread_pool, origin)

    async def _run_limited(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], thread_pool: ThreadPool, origin: str | None
    ) -> Any:
        loop = asyncio.get_running_loop()
        async with self._semaphores.setdefault(loop, asyncio.Semaphore(self.max_concurrency or 1)):
            return await self._inner.run(args, kwargs, thread_pool, origin)


class ErrorExposingRunner(Runner):
    """Runs a function. The caller sees the messages of exceptions that are listed in `expose_errors=`."""

    __slots__ = ("_exposed_types", "_inner", "takes_context")

    def __init__(self, inner: Runner, exception_types: Collection[type[Exception]]) -> None:
        if not all(isinstance(type_, type) and issubclass(type_, Exception) for type_ in exception_types):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"expose_errors must be exception classes, not {exception_types!r}")
        super().__init__(inner.function, timeout=inner.timeout, run_in_thread=inner.run_in_thread)
        self.takes_context = inner.takes_context
        self._inner = inner
        self._exposed_types = tuple(exception_types)

    def run(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], thread_pool: ThreadPool, origin: str | None
    ) -> Awaitable[Any]:
        return self._run_exposing(args, kwargs, thread_pool, origin)

    async def _run_exposing(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], thread_pool: ThreadPool, origin: str | None
    ) -> Any:
        try:
            return await self._inner.run(args, kwargs, thread_pool, origin)
        except MCPError:
            raise  # The caller always gets the message of an MCPError.
        except self._exposed_types as exc:
            raise ToolError(str(exc) or type(exc).__name__) from exc


def _is_async(function: Callable[..., Any]) -> bool:
    function = _unwrap_partial(function)
    return inspect.iscoroutinefunction(function) or (
        not inspect.isroutine(function) and inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
    )


def may_return_coroutine(function: Callable[..., Any]) -> bool:
    """Return whether a sync function wraps a coroutine function, and so may return a coroutine."""
    return not _is_async(function) and _is_async(inspect.unwrap(_unwrap_partial(function)))


def get_description(function: Callable[..., Any]) -> str | None:
    """Return the description from a function's docstring, without the descriptions of parameters."""
    return docstrings.parse(inspect.getdoc(_unwrap_partial(function))).text or None


def get_function_name(function: Callable[..., Any], default: str | None = None) -> str:
    """Return the name of a function, or the default. Raise TypeError if neither is a usable name."""
    name: str | None = getattr(function, "__name__", None)
    if name is None or not name.isidentifier():  # A lambda does not have a usable name.
        name = default
    if name is None:
        raise TypeError(f"cannot derive a name from this {type(function).__name__}. Pass name=")
    return name


def _unwrap_partial(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


_EXHAUSTED: Final = object()


class ProgressUpdate:
    """A progress report that a tool can yield.

    Args:
        progress: How much is done. It must increase with each report.
        total: The value of `progress` when the work is done, if you know it.
        message: A short description of the current step.
    """

    __slots__ = ("message", "progress", "total")

    def __init__(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        self.progress = progress
        self.total = total
        self.message = message


class StreamingRunner(Runner):
    """Runs a generator function and collects its values in a list. The first argument must be the context."""

    __slots__ = ()

    takes_context = True

    def run(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], thread_pool: ThreadPool, origin: str | None
    ) -> Awaitable[Any]:
        return self._collect(args[0], args[1:], kwargs, thread_pool, origin)

    async def _collect(
        self,
        context: Context[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        thread_pool: ThreadPool,
        origin: str | None,
    ) -> list[Any]:
        parts: list[Any] = []
        counts_parts = True
        source = self.function(*args, **kwargs)
        stream = source if inspect.isasyncgen(source) else _iterate_in_threads(source, thread_pool, origin)
        async with contextlib.aclosing(stream):
            async for part in stream:
                if isinstance(part, ProgressUpdate):
                    # The function reports its own progress, so the number of yielded parts is no longer reported.
                    counts_parts = False
                    await context.progress(part.progress, part.total, part.message)
                    continue
                parts.append(part)
                if counts_parts:
                    await context.progress(len(parts), message=part if isinstance(part, str) else None)
        return parts


async def _iterate_in_threads(
    source: Generator[Any], thread_pool: ThreadPool, origin: str | None
) -> AsyncGenerator[Any]:
    """Iterate over a generator in threads. If the iteration stops early, close the generator in a thread."""
    steps = _GeneratorSteps(source)
    try:
        while (part := await thread_pool.run(steps.next, (), {}, origin)) is not _EXHAUSTED:
            yield part
    finally:
        if steps.abandon() and inspect.getgeneratorstate(source) != inspect.GEN_CLOSED:
            await asyncio.shield(_close_in_thread(source, thread_pool, origin))


async def _close_in_thread(source: Generator[Any], thread_pool: ThreadPool, origin: str | None) -> None:
    try:
        await thread_pool.run(source.close, (), {}, origin)
    except ServerBusy:
        # If no thread is free, the cleanup runs in the event loop.
        source.close()


class _GeneratorSteps:
    """Runs the steps of a generator.

    If the call ends early, the thread that runs a step closes the generator afterwards.
    """

    def __init__(self, source: Generator[Any]) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._running = False
        self._is_abandoned = False

    def next(self) -> Any:
        with self._lock:
            if self._is_abandoned:
                return _EXHAUSTED
            self._running = True
        try:
            return next(self._source, _EXHAUSTED)
        finally:
            with self._lock:
                self._running = False
                is_abandoned = self._is_abandoned
            if is_abandoned:
                self._source.close()

    def abandon(self) -> bool:
        """Prevent further steps of the generator. Return True if no step is running. The caller must then close it."""
        with self._lock:
            self._is_abandoned = True
            return not self._running


def get_collected_type(annotation: Any) -> Any:
    """Return the list type for the values that a generator yields. ProgressUpdate objects are left out."""
    arguments = typing.get_args(annotation)
    part = arguments[0] if arguments else Any
    members = typing.get_args(part) if typing.get_origin(part) in UNION_ORIGINS else (part,)
    part_types = [part_type for part_type in members if part_type is not ProgressUpdate]
    if not part_types or Any in part_types:
        return list[Any]
    if part_types == [str]:
        # If a generator yields only strings, the result is one text block and not a list of values.
        return list[str | TextContent]
    union = part_types[0]
    for part_type in part_types[1:]:
        union = union | part_type
    return list[union]
