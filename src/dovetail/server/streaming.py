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
from dovetail.server.schema import UNIONS
from dovetail.server.threads import Threads
from dovetail.wire.content import TextContent

_END: Final = object()


class Progress:
    """Yielded by a tool: how far the work is."""

    __slots__ = ("message", "progress", "total")

    def __init__(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        self.progress = progress
        self.total = total
        self.message = message


class Streaming(Runner):
    """Runs a generator function; its value is the list of what was yielded. The first argument is the context."""

    __slots__ = ()

    takes_context = True

    def __call__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], threads: Threads, origin: str | None
    ) -> Awaitable[Any]:
        return self._gathered(args[0], args[1:], kwargs, threads, origin)

    async def _gathered(
        self, context: Context[Any], args: tuple[Any, ...], kwargs: dict[str, Any], threads: Threads, origin: str | None
    ) -> list[Any]:
        parts: list[Any] = []
        counting = True
        source = self.function(*args, **kwargs)
        stream = source if inspect.isasyncgen(source) else _stepped(source, threads, origin)
        async with contextlib.aclosing(stream):
            async for part in stream:
                if isinstance(part, Progress):
                    counting = False  # from here on the numbers are the author's
                    await context.progress(part.progress, part.total, part.message)
                    continue
                parts.append(part)
                if counting:
                    await context.progress(len(parts), message=part if isinstance(part, str) else None)
        return parts


async def _stepped(source: Generator[Any], threads: Threads, origin: str | None) -> AsyncGenerator[Any]:
    """A plain generator, each step in a thread, and so is its end, if it is left before."""
    steps = _Steps(source)
    try:
        while (part := await threads.run(steps.next, (), {}, origin)) is not _END:
            yield part
    finally:
        if steps.leave() and inspect.getgeneratorstate(source) != inspect.GEN_CLOSED:
            await asyncio.shield(_closed(source, threads, origin))


async def _closed(source: Generator[Any], threads: Threads, origin: str | None) -> None:
    try:
        await threads.run(source.close, (), {}, origin)
    except Busy:
        source.close()  # better late on the loop than never


class _Steps:
    """A generator that may be left in the middle of a step: then the thread that is at it closes it."""

    def __init__(self, source: Generator[Any]) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._running = False
        self._left = False

    def next(self) -> Any:
        """One step."""
        with self._lock:
            if self._left:
                return _END
            self._running = True
        try:
            return next(self._source, _END)
        finally:
            with self._lock:
                self._running = False
                left = self._left
            if left:
                self._source.close()

    def leave(self) -> bool:
        """No more steps; whether nobody is at one, so that it can be closed here."""
        with self._lock:
            self._left = True
            return not self._running


def gathered(annotation: Any) -> Any:
    """The annotation of what a generator comes to: a list of its parts, without the progress among them."""
    arguments = typing.get_args(annotation)
    part = arguments[0] if arguments else Any
    members = typing.get_args(part) if typing.get_origin(part) in UNIONS else (part,)
    kept = [one for one in members if one is not Progress]
    if not kept or Any in kept:
        return list[Any]
    if kept == [str]:
        return list[str | TextContent]  # texts in pieces, not a list of values
    union = kept[0]
    for one in kept[1:]:
        union = union | one
    return list[union]
