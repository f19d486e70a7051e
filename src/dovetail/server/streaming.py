"""Streaming: tools that yield. Progress is told on the way, every other value is a part of the one result.

No revision has results in pieces, so parts are also announced as progress, to whoever asked for that.
"""

import asyncio
import contextlib
import inspect
import threading
import typing
from collections.abc import AsyncGenerator, Awaitable, Generator
from typing import Any, Final

from dovetail.errors import Busy
from dovetail.server.context import Context
from dovetail.server.runner import Runner
from dovetail.server.schema import UNION_ORIGINS
from dovetail.server.threads import ThreadPool
from dovetail.wire.content import TextContent

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
    except Busy:
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
