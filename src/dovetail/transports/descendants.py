"""A child and its descendants on POSIX: signalled together through the process group that the child leads."""

import contextlib
import os
import signal
import subprocess

from dovetail.transports.guardian import reaper


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
