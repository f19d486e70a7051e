"""Process groups on POSIX systems. A helper process ends them if this process is killed."""

import contextlib
import os
import signal
import subprocess

from dovetail.transports.process.reaper import reaper


class PosixProcessGroup:
    """A child process and all other processes in its process group."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._group = process.pid

    def watch(self) -> None:
        """Start a helper that ends the group if this process dies."""
        reaper.add(self._group)

    def wait(self) -> None:
        """Wait until the child has exited. Keep its process ID reserved, so that the group ID is not reused."""
        if hasattr(os, "waitid"):
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self._group, os.WEXITED | os.WNOWAIT)
        else:
            # On macOS, os.waitid exists only since Python 3.13.
            # Without os.waitid, the system could reuse the group ID before the group is killed.
            self._process.wait()

    def terminate(self) -> None:
        """Send SIGTERM to the group."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the group."""
        self._send(signal.SIGKILL)

    def is_running(self) -> bool:
        """Return whether a process of the group is running."""
        return self._send(0) and has_running_member(self._group)

    def close(self) -> None:
        """Stop watching the group."""
        reaper.remove(self._group)

    def _send(self, signal_number: int) -> bool:
        try:
            os.killpg(self._group, signal_number)
        except (ProcessLookupError, PermissionError):
            return False  # The group contains only processes of other users or, on macOS, zombies.
        return True


def has_running_member(group: int) -> bool:
    """Return whether a process of the group is running. Zombies are ignored, because some systems never remove them."""
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
        return False  # The process has exited.
    return int(group_id) == group and state not in (b"Z", b"X")
