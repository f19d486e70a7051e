"""Send signals to the process group of a server, wait for it, and clean up the remaining processes.

One thread per group waits for the leader, reaps it and ends the remaining processes. The thread does not need an event
loop.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from dovetail.log import log

if sys.platform == "win32":
    from dovetail.transports.process.windows_job import WindowsJob as Members
else:
    from dovetail.transports.process.posix_group import PosixProcessGroup as Members

GRACE_PERIOD_S = 2.0
_POLL_INTERVAL_S = 0.02


class ProcessGroup:
    """A running child process and its descendants.

    Signals only reach these processes, even if the system reuses an ID.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._members = Members(process)
        self._owner = os.getpid()
        self._lock = threading.RLock()  # The lock is reentrant, because a finalizer may need it in the same thread.
        self._is_terminated = False
        self._is_gone = False

    def start_watching(self, on_exit: Callable[[int], object], on_gone: Callable[[], object]) -> None:
        """Start a thread that waits for the process group to end.

        The thread calls `on_exit` when the child has exited, and `on_gone` when all processes are gone.
        """
        name = f"dovetail-child-{self.process.pid}"
        threading.Thread(target=self._watch, args=(on_exit, on_gone), name=name, daemon=True).start()

    def terminate(self) -> None:
        """Send SIGTERM to all processes of the group, but only once. Many programs abort on a second signal."""
        if self._is_owner():
            with self._lock:
                if not (self._is_terminated or self._is_gone):
                    self._is_terminated = True
                    self._members.terminate()

    def kill(self) -> None:
        """Kill all processes of the group."""
        if self._is_owner():
            with self._lock:
                if not self._is_gone:
                    self._members.kill()

    def _is_owner(self) -> bool:
        return os.getpid() == self._owner  # A forked process does not own the group.

    def _watch(self, on_exit: Callable[[int], object], on_gone: Callable[[], object]) -> None:
        self._members.watch()
        self._members.wait()
        with self._lock:
            self.terminate()  # The signal must be sent before the system can reuse the child's process ID.
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
        log.warning("process group %d is still running", self.process.pid)
