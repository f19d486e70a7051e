"""A small helper process that ends the servers of this process if this process is killed.

The helper reads a pipe whose other end only this process holds. When this process dies for any reason, the pipe closes,
and the helper terminates and then kills the groups it watches. The helper runs only while there are groups to watch.
Windows does not need a helper, because a job object ends with its last handle.
"""

import os
import subprocess
import sys
import threading
from typing import IO

from dovetail.log import log

SHELL = "/bin/sh"
GRACE_PERIOD_S = 2.0
_POLL_INTERVAL_S = 0.1

# This script runs in any POSIX shell. A shell starts in 1 ms and needs little memory.
# Before each signal, the script checks the group, because a process ID may be reused.
# The script uses `kill -s NAME --`, because dash does not accept `--` after `-NAME`.
_SCRIPT = """
trap '' HUP INT QUIT TERM PIPE TSTP
groups=' '
while read -r verb group; do
  case $verb in
    add) groups="$groups$group " ;;
    remove) case $groups in *" $group "*) groups="${groups%% $group *} ${groups#* $group }" ;; esac ;;
  esac
done
living() {
  left=' '
  for group in $groups; do kill -s 0 -- "-$group" 2>/dev/null && left="$left$group "; done
  groups=$left
}
for group in $groups; do kill -s TERM -- "-$group" 2>/dev/null; done
steps=$1
living
while [ "$groups" != ' ' ] && [ "$steps" -gt 0 ]; do
  sleep "$2" || break
  steps=$((steps - 1))
  living
done
for group in $groups; do kill -s KILL -- "-$group" 2>/dev/null; done
"""


class Reaper:
    """A helper process that kills all running servers if dovetail's own process dies. The class is thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Return the process ID of the helper, or None if it is not running."""
        return None if self._process is None else self._process.pid

    @property
    def watched(self) -> int:
        """Return the number of watched process groups."""
        return len(self._groups)

    def add(self, group: int) -> None:
        """Watch a process group."""
        with self._lock:
            self._groups.add(group)
            if self._process is None or not self._send_command("add", group):
                self._start()

    def remove(self, group: int) -> None:
        """Stop watching a group that has ended, because its ID may be reused."""
        with self._lock:
            self._groups.discard(group)
            if not self._groups:
                self._stop()
            elif self._process is not None and not self._send_command("remove", group):
                self._start()

    def reset_after_fork(self) -> None:
        """Forget the helper in a forked process. The helper belongs to the parent process."""
        process, self._process = self._process, None
        self._lock = threading.RLock()
        self._groups.clear()
        if process is not None:
            _get_stdin(process).close()
            process.returncode = 0  # The helper is a child of the parent process, so this process cannot wait for it.

    def _start(self) -> None:
        self._stop()
        try:
            self._process = subprocess.Popen(
                [
                    SHELL,
                    "-c",
                    _SCRIPT,
                    "dovetail-guardian",
                    str(round(GRACE_PERIOD_S / _POLL_INTERVAL_S)),
                    str(_POLL_INTERVAL_S),
                ],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={"PATH": os.environ.get("PATH", os.defpath)},
                start_new_session=True,
            )
        except OSError as error:
            log.debug(
                "cannot start the clean-up helper, so servers may keep running if this process is killed: %s", error
            )
            return
        for group in self._groups:
            self._send_command("add", group)

    def _send_command(self, verb: str, group: int) -> bool:
        try:
            _get_stdin(self._process).write(b"%s %d\n" % (verb.encode(), group))
        except OSError:
            return False  # The helper was killed.
        return True

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            _get_stdin(process).close()


def _get_stdin(process: subprocess.Popen[bytes] | None) -> IO[bytes]:
    assert process is not None
    assert process.stdin is not None
    return process.stdin


reaper = Reaper()
if sys.platform != "win32":
    os.register_at_fork(after_in_child=reaper.reset_after_fork)
