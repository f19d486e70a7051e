"""One timer of an event loop for all targets with the same delay.

Targets are due in the order in which they were added, so thousands of streams need only one timer.
"""

import asyncio
import contextvars
from typing import Protocol


class TimerTarget(Protocol):
    """An object that a timer calls after a delay."""

    def handle_timer(self) -> None:
        """Handle the end of the delay. This method must not block."""
        ...


DueTimes = dict[TimerTarget, float]


class SharedTimer:
    """Calls the method `handle_timer` of each target after a fixed delay, in the event loop that added the target."""

    __slots__ = ("_delay", "_due_times_by_loop")

    def __init__(self, delay: float) -> None:
        self._delay = delay
        # An event loop without a running timer has no entry.
        self._due_times_by_loop: dict[asyncio.AbstractEventLoop, DueTimes] = {}

    def add(self, target: TimerTarget, loop: asyncio.AbstractEventLoop | None = None) -> DueTimes:
        """Schedule a call of `target.handle_timer`. To cancel the call, remove the target from the returned dict."""
        if loop is None:
            loop = asyncio.get_running_loop()
        due_at = loop.time() + self._delay
        due_times = self._due_times_by_loop.get(loop)
        if due_times is None:
            due_times = self._start_timer(loop, due_at)
        due_times[target] = due_at
        return due_times

    def _start_timer(self, loop: asyncio.AbstractEventLoop, due_at: float) -> DueTimes:
        self._drop_closed_loops()
        due_times = self._due_times_by_loop[loop] = {}
        # The timer serves all targets, so it must not use the context of the request that starts it.
        loop.call_at(due_at, self._handle_due, loop, due_times, context=contextvars.Context())
        return due_times

    def _drop_closed_loops(self) -> None:
        for loop in tuple(self._due_times_by_loop):
            if loop.is_closed():
                self._due_times_by_loop.pop(loop, None)

    def _handle_due(self, loop: asyncio.AbstractEventLoop, due_times: DueTimes) -> None:
        self._drop_closed_loops()
        now = loop.time()
        while due_times:
            target, due_at = next(iter(due_times.items()))
            if due_at > now:
                loop.call_at(due_at, self._handle_due, loop, due_times)
                return
            del due_times[target]
            target.handle_timer()
        self._due_times_by_loop.pop(loop, None)
