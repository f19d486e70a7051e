"""Watchdog: a thread that looks at the event loop from outside.

It reports a loop that does not turn, with the stack that holds it up, and ends the process when a stop that was asked
for does not come about in time, whatever blocks it.
"""

import asyncio
import logging
import os
import select
import sys
import threading
import time
import traceback
from typing import Self

log = logging.getLogger("dovetail")

_BEAT = 0.25
_LATE = 1.0
_GONE_GRACE = 0.5
_REPORT_EVERY = 10.0


class Watchdog:
    """Watches the loop it is started on."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._source: int | None = None
        self._beat = time.monotonic()
        self._main = threading.get_ident()
        self._stop_at: float | None = None
        self._exit_code = 0
        self._done = threading.Event()
        self._reported = 0.0
        self._thread = threading.Thread(target=self._watch, name="dovetail-watchdog", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, source: int | None = None) -> None:
        """Watch the running loop; `source` is a descriptor whose hang-up means nobody needs us any more."""
        self._loop = asyncio.get_running_loop()
        self._source = source
        self._main = threading.get_ident()
        self._tick()
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._done.set()

    def end_within(self, seconds: float, exit_code: int) -> None:
        """Whatever happens, the process ends within this time. Safe to call from a signal."""
        at = time.monotonic() + seconds
        if self._stop_at is None or at < self._stop_at:
            self._stop_at, self._exit_code = at, exit_code

    def _tick(self) -> None:
        self._beat = time.monotonic()
        if self._loop is not None and not self._done.is_set():
            self._loop.call_later(_BEAT, self._tick)

    def _watch(self) -> None:
        while not self._done.wait(_BEAT):
            now = time.monotonic()
            if self._stop_at is not None and now >= self._stop_at:
                os._exit(self._exit_code)
            if now - self._beat > _LATE:
                self._report(now)
                if self._source is not None and _hung_up(self._source):
                    self.end_within(_GONE_GRACE, 0)

    def _report(self, now: float) -> None:
        if now - self._reported < _REPORT_EVERY:
            return
        self._reported = now
        frame = sys._current_frames().get(self._main)  # pyright: ignore[reportPrivateUsage]
        stack = "".join(traceback.format_stack(frame, limit=12)) if frame is not None else "(no stack)"
        log.error("the event loop has been blocked for %.1f s; it is at\n%s", now - self._beat, stack[-4096:])


def _hung_up(descriptor: int) -> bool:
    if not hasattr(select, "poll"):
        return False
    poll = select.poll()
    try:
        poll.register(descriptor, select.POLLHUP)
        return any(event & (select.POLLHUP | select.POLLNVAL | select.POLLERR) for _, event in poll.poll(0))
    except OSError:
        return True
