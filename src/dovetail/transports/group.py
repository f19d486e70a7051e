"""A child process and what it starts: one group, which is signalled, reaped and swept as a whole.

A thread keeps each group: it waits for the leader, reaps it, and ends what the leader leaves behind, whether or not an
event loop still turns.
"""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

if sys.platform == "win32":
    from dovetail.transports.job import WindowsJob as Members
else:
    from dovetail.transports.descendants import PosixProcessGroup as Members

log = logging.getLogger("dovetail")

GRACE_PERIOD_S = 2.0
_POLL_INTERVAL_S = 0.02


class ProcessGroup:
    """A running child and its descendants; signals reach them all, and never a stranger with a reused number."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._members = Members(process)
        self._owner = os.getpid()
        self._lock = threading.RLock()  # a finalizer may come in while its own thread holds it
        self._is_terminated = False
        self._is_gone = False

    def start_watching(self, on_exit: Callable[[int], object], on_gone: Callable[[], object]) -> None:
        """Start the thread that waits; it says when the leader has exited, and when the whole group is gone."""
        name = f"dovetail-child-{self.process.pid}"
        threading.Thread(target=self._watch, args=(on_exit, on_gone), name=name, daemon=True).start()

    def terminate(self) -> None:
        """Ask all to end; once, because many programs take a second signal for impatience."""
        if self._is_owner():
            with self._lock:
                if not (self._is_terminated or self._is_gone):
                    self._is_terminated = True
                    self._members.terminate()

    def kill(self) -> None:
        """End all, now."""
        if self._is_owner():
            with self._lock:
                if not self._is_gone:
                    self._members.kill()

    def _is_owner(self) -> bool:
        return os.getpid() == self._owner  # not in a fork of the process that started it

    def _watch(self, on_exit: Callable[[int], object], on_gone: Callable[[], object]) -> None:
        self._members.watch()
        self._members.wait()
        with self._lock:
            self.terminate()  # while the leader is not reaped, its number is nobody else's
            code = self.process.wait()
        on_exit(code)
        self._end_remaining()
        self._members.close()
        on_gone()

    def _end_remaining(self) -> None:
        for action in (self.kill, self._log_stuck):
            deadline = time.monotonic() + GRACE_PERIOD_S
            while self._members.is_running():
                if time.monotonic() > deadline:
                    action()
                    break
                time.sleep(_POLL_INTERVAL_S)
        with self._lock:
            self._is_gone = True

    def _log_stuck(self) -> None:
        log.warning("process group %d does not end", self.process.pid)
