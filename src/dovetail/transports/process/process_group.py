"""The process group of a server: signal it, wait for it, and clean up what is left.

A thread keeps each group: it waits for the leader, reaps it, and ends what the leader leaves behind, whether or not an
event loop still turns.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from dovetail.transports.process.reaper import reaper


class PosixProcessGroup:
    """A child that leads a session and group of its own, and whatever stays in that group."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._group = process.pid

    def watch(self) -> None:
        """Have the group ended if this process dies."""
        reaper.add(self._group)

    def wait(self) -> None:
        """Wait for the child to end, and leave it unreaped, so that the number of the group stays taken."""
        if hasattr(os, "waitid"):
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self._group, os.WEXITED | os.WNOWAIT)
        else:
            # Python for macOS has it since 3.13. Without it the number is free for a moment before the group is swept.
            self._process.wait()

    def terminate(self) -> None:
        """Ask them to end."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End them."""
        self._send(signal.SIGKILL)

    def is_running(self) -> bool:
        """Whether one of them still runs, once the child is reaped."""
        return self._send(0) and has_running_member(self._group)

    def close(self) -> None:
        """The group is gone."""
        reaper.remove(self._group)

    def _send(self, signal_number: int) -> bool:
        try:
            os.killpg(self._group, signal_number)
        except (ProcessLookupError, PermissionError):
            return False  # not permitted: only programs of another user are left, or zombies on macOS
        return True


def has_running_member(group: int) -> bool:
    """Whether a group that exists has a member that is not merely unreaped: not every init process reaps."""
    try:
        pids = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        pids = []
    return not pids or any(_is_running_in(pid, group) for pid in pids)


def _is_running_in(pid: str, group: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, _, group_id = file.read().rpartition(b")")[2].split(maxsplit=3)[:3]
    except (OSError, ValueError):
        return False  # gone meanwhile
    return int(group_id) == group and state not in (b"Z", b"X")


if sys.platform == "win32":
    from dovetail.transports.process.windows_job import WindowsJob as Members
else:
    Members = PosixProcessGroup

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
