"""Call the listener of a worker. An error of the listener must not stop other messages or a background task."""

import asyncio
import time
from typing import Final

from dovetail.log import log
from dovetail.protocol.interfaces.shared_state import Message, SharedStateListener

_GAP_INTERVAL_S: Final = 1.0  # A gap is expensive, so several gaps in this time are reported as one.


class GuardedListener:
    """Delivers messages and gaps. Create it in the event loop of the listener."""

    def __init__(self, listener: SharedStateListener) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._gap_timer: asyncio.TimerHandle | None = None
        self._last_gap_at = float("-inf")
        self._is_closed = False

    def deliver(self, message: Message) -> None:
        """Call `receive` with a message."""
        if self._is_closed:
            return
        try:
            self._listener.receive(message)
        except Exception as exc:
            log.error("could not handle a message of kind %s", message.kind, exc_info=exc)

    def report_gap(self) -> None:
        """Call `handle_gap` soon, and at most once per second."""
        if self._gap_timer is None and not self._is_closed:
            delay = max(0.0, self._last_gap_at + _GAP_INTERVAL_S - time.monotonic())
            self._gap_timer = self._loop.call_later(delay, self._handle_gap)

    def _handle_gap(self) -> None:
        self._gap_timer = None
        self._last_gap_at = time.monotonic()
        try:
            self._listener.handle_gap()
        except Exception as exc:
            log.error("could not handle a gap in the change log", exc_info=exc)

    def close(self) -> None:
        """Deliver nothing from now on."""
        self._is_closed = True
        if self._gap_timer is not None:
            self._gap_timer.cancel()
