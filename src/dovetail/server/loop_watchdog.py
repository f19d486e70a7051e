"""A watchdog thread that monitors the event loop.

The watchdog logs the stack of an event loop that is blocked. It also ends the process if the server does not stop in
time.
"""

import asyncio
import os
import select
import sys
import threading
import time
import traceback
from typing import Self

from dovetail.log import OwnText, log

_HANG_UP_GRACE_S = 0.5


class LoopWatchdog:
    """Watches the event loop in which `start` was called.

    Args:
        interval: Seconds between two checks.
        blocked_after: Seconds after which an event loop that does not run counts as blocked.
        report_every: Seconds between two log messages about the same blocked loop.
    """

    def __init__(self, *, interval: float = 0.25, blocked_after: float = 1.0, report_every: float = 10.0) -> None:
        self._interval = interval
        self._blocked_after = blocked_after
        self._report_every = report_every
        self._loop: asyncio.AbstractEventLoop | None = None
        self._input_fd: int | None = None
        self._last_tick_at = time.monotonic()
        self._loop_thread_id = threading.get_ident()
        self._exit_at: float | None = None
        self._exit_code = 0
        self._stopped = threading.Event()
        self._last_report_at = 0.0
        self._thread = threading.Thread(target=self._watch, name="dovetail-watchdog", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def last_turn(self) -> float:
        """Return the time of the last iteration of the event loop, as a `time.monotonic` value."""
        return self._last_tick_at

    def start(self, input_fd: int | None = None) -> None:
        """Watch the running event loop.

        If `input_fd` is closed while the loop is blocked, the client has disconnected, so the process ends.
        """
        self._loop = asyncio.get_running_loop()
        self._input_fd = input_fd
        self._loop_thread_id = threading.get_ident()
        self._tick()
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()

    def exit_within(self, seconds: float, exit_code: int) -> None:
        """End the process after this many seconds, even if the event loop is blocked.

        Signal handlers may call this method.
        """
        exit_at = time.monotonic() + seconds
        if self._exit_at is None or exit_at < self._exit_at:
            self._exit_at, self._exit_code = exit_at, exit_code

    def _tick(self) -> None:
        self._last_tick_at = time.monotonic()
        if self._loop is not None and not self._stopped.is_set():
            self._loop.call_later(self._interval, self._tick)

    def _watch(self) -> None:
        while not self._stopped.wait(self._interval):
            now = time.monotonic()
            if self._exit_at is not None and now >= self._exit_at:
                os._exit(self._exit_code)
            if now - self._last_tick_at > self._blocked_after:
                self._report(now)
                if self._input_fd is not None and hung_up(self._input_fd):
                    self.exit_within(_HANG_UP_GRACE_S, 0)

    def _report(self, now: float) -> None:
        if now - self._last_report_at < self._report_every:
            return
        self._last_report_at = now
        frame = sys._current_frames().get(self._loop_thread_id)  # pyright: ignore[reportPrivateUsage]
        stack = "".join(traceback.format_stack(frame, limit=12)) if frame is not None else "(no stack)"
        log.error(
            "the event loop has been blocked for %.1f seconds at\n%s", now - self._last_tick_at, OwnText(stack[-4096:])
        )


def hung_up(descriptor: int) -> bool:
    """Return whether one of the two ends of a pipe or a terminal was closed."""
    if sys.platform == "win32":  # Windows cannot poll pipes.
        return False
    poll = select.poll()
    try:
        poll.register(descriptor, select.POLLHUP)
        return any(event & (select.POLLHUP | select.POLLNVAL | select.POLLERR) for _, event in poll.poll(0))
    except OSError:
        return True
