"""Runner: how a function of the author's is called, whatever it is: a coroutine, a plain function, a method.

Coroutine functions run in the request's own task; plain ones in a thread, unless registered with `run_in_thread=False`.
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
from dovetail.server.parameters.annotations import UNION_ORIGINS
from dovetail.server.thread_pool import ThreadPool
from dovetail.wire.content import TextContent


class Runner:
    """One function, and how to call it."""

    __slots__ = ("function", "is_async", "run_in_thread", "timeout")

    takes_context = False  # whether the first argument is the context, for the runner itself

    def __init__(
        self, function: Callable[..., Any], *, timeout: float | None = None, run_in_thread: bool = True
    ) -> None:
        if timeout is not None and (isinstance(timeout, str) or not timeout > 0):
            raise ValueError(f"timeout must be a positive number of seconds, not {timeout!r}")
        self.function = function
        self.is_async = _is_async(function)
        self.run_in_thread = run_in_thread
        self.timeout = timeout

    def __call__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], thread_pool: ThreadPool, origin: str | None
    ) -> Awaitable[Any]:
        """Its value, to be awaited. Not a coroutine itself: that would be one more between caller and author."""
        if self.is_async:
            return self.function(*args, **kwargs)
        if self.run_in_thread:
            return thread_pool.run(self.function, args, kwargs, origin)
        return self._call_inline(args, kwargs)

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
            raise ValueError(f"max_concurrency must be at least 1, not {max_concurrency}")
        super().__init__(inner.function, timeout=inner.timeout, run_in_thread=inner.run_in_thread)
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
            raise TypeError(f"expose_errors must be exception classes, not {exception_types!r}")
        super().__init__(inner.function, timeout=inner.timeout, run_in_thread=inner.run_in_thread)
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


_EXHAUSTED: Final = object()


class Progress:
    """Yielded by a tool: how far the work is."""

    __slots__ = ("message", "progress", "total")

    def __init__(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        self.progress = progress
        self.total = total
        self.message = message


class StreamingRunner(Runner):
    """Runs a generator function; its value is the list of what was yielded. The first argument is the context."""

    __slots__ = ()

    takes_context = True

    def __call__(
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
                if isinstance(part, Progress):
                    counts_parts = False  # from here on the numbers are the author's
                    await context.progress(part.progress, part.total, part.message)
                    continue
                parts.append(part)
                if counts_parts:
                    await context.progress(len(parts), message=part if isinstance(part, str) else None)
        return parts


async def _iterate_in_threads(
    source: Generator[Any], thread_pool: ThreadPool, origin: str | None
) -> AsyncGenerator[Any]:
    """A plain generator, each step in a thread, and so is its end, if it is left before."""
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
        source.close()  # better late on the loop than never


class _GeneratorSteps:
    """A generator that may be left in the middle of a step: then the thread that is at it closes it."""

    def __init__(self, source: Generator[Any]) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._running = False
        self._is_abandoned = False

    def next(self) -> Any:
        """One step."""
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
        """No more steps; whether nobody is at one, so that it can be closed here."""
        with self._lock:
            self._is_abandoned = True
            return not self._running


def get_collected_type(annotation: Any) -> Any:
    """The annotation of what a generator comes to: a list of its parts, without the progress among them."""
    arguments = typing.get_args(annotation)
    part = arguments[0] if arguments else Any
    members = typing.get_args(part) if typing.get_origin(part) in UNION_ORIGINS else (part,)
    part_types = [part_type for part_type in members if part_type is not Progress]
    if not part_types or Any in part_types:
        return list[Any]
    if part_types == [str]:
        return list[str | TextContent]  # texts in pieces, not a list of values
    union = part_types[0]
    for part_type in part_types[1:]:
        union = union | part_type
    return list[union]
