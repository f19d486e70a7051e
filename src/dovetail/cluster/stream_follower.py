"""Follow a stream: read its stored events, and wait for new events until the stream ends or its writer is lost."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

from dovetail.protocol.interfaces.shared_state import StreamEvent, StreamPart, WorkerLost

_CHECK_INTERVAL_S: Final = 1.0  # If no events arrive, a reader checks at this interval whether the writer is alive.


class StreamFollowers:
    """The readers of each stream in this worker."""

    def __init__(self) -> None:
        self._wakeups: dict[str, set[asyncio.Event]] = {}

    @property
    def streams(self) -> tuple[str, ...]:
        """Return the streams with a reader."""
        return tuple(self._wakeups)

    def wake(self, stream: str) -> None:
        """Wake the readers of a stream."""
        for wakeup in self._wakeups.get(stream, ()):
            wakeup.set()

    def wake_all(self) -> None:
        """Wake all readers."""
        for stream in self._wakeups:
            self.wake(stream)

    def add(self, stream: str, wakeup: asyncio.Event) -> bool:
        """Add a reader. Return whether it is the first reader of the stream."""
        is_first = stream not in self._wakeups
        self._wakeups.setdefault(stream, set()).add(wakeup)
        return is_first

    def remove(self, stream: str, wakeup: asyncio.Event) -> bool:
        """Remove a reader. Return whether the stream has no reader any more."""
        wakeups = self._wakeups.get(stream, set())
        wakeups.discard(wakeup)
        return not wakeups and self._wakeups.pop(stream, None) is not None


async def follow_stream(
    after: int,
    wakeup: asyncio.Event,
    *,
    read: Callable[[int], Awaitable[StreamPart | None]],
    is_lost: Callable[[str], Awaitable[bool]],
    exists: Callable[[], Awaitable[bool]],
    writer: str | None,
) -> AsyncGenerator[StreamEvent]:
    """Yield the events with a number above `after` until the stream ends. `is_lost` checks whether a worker is lost.

    With `writer`, wait while `exists` returns False and this worker is alive.
    """
    loop = asyncio.get_running_loop()
    check_at = loop.time() + _CHECK_INTERVAL_S
    is_writer_lost = False
    while True:
        wakeup.clear()
        is_awaited = writer is not None and not await exists()
        part = await read(after)
        if part is not None:
            for event in part.events:
                yield event
                after = event.number
            if part.is_ended:
                return
            lost = WorkerLost(part.writer, part.header)
            writer = None
            if part.events:
                check_at = loop.time() + _CHECK_INTERVAL_S
                is_writer_lost = False
                continue
        elif is_awaited and writer is not None:
            lost = WorkerLost(writer, b"")
        else:
            return
        if is_writer_lost:
            raise lost
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(check_at):
                await wakeup.wait()
        # Other streams may wake this reader all the time, so the check does not wait for a time without wake-ups.
        if loop.time() >= check_at:
            # Read the stream once more, because a lost writer may have added events before it ended.
            is_writer_lost = await is_lost(lost.worker)
            check_at = loop.time() + _CHECK_INTERVAL_S
