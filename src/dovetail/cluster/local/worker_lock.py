"""Show which workers of a machine are alive. Each worker has a lock on a file in the shared folder.

The lock belongs to the process. The kernel removes it when the process ends, even if a child process that the worker
has forked is still running. A socket or a `flock` would stay open in the child.
"""

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final

from dovetail.cluster.envelope import is_worker_name
from dovetail.cluster.local.wakeup_socket import SOCKET_SUFFIX
from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable

_SUFFIX: Final = ".lock"

# The process that holds each lock of this module. A process must not open its own lock files, because the kernel
# removes its lock when it closes any descriptor of the file.
_holders: Final[dict[str, int]] = {}


class WorkerLock:
    """The lock of one worker, and a check for the locks of others."""

    def __init__(self, folder: Path, worker: str) -> None:
        self._folder = folder
        self._path = self._get_path(worker)
        new_path = str(folder / f"{worker}.new")
        self._descriptor = os.open(new_path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        # A file with the final name and without a lock would look like that of a lost worker.
        os.rename(new_path, self._path)
        _holders[self._path] = os.getpid()

    def _get_path(self, worker: str) -> str:
        return str(self._folder / f"{worker}{_SUFFIX}")

    def is_alive(self, worker: str) -> bool:
        """Return whether a worker is alive. Remove the files of a lost worker."""
        if not is_worker_name(worker):
            return False
        path = self._get_path(worker)
        if _holders.get(path) == os.getpid():
            return True
        try:
            if _is_locked(path):
                return True
            for lost_path in (str(self._folder / f"{worker}{SOCKET_SUFFIX}"), path):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(lost_path)
            return False
        except OSError as exc:  # for example because this process has too many open files
            raise SharedStateUnavailable(f"cannot check whether worker {worker} is alive: {exc}") from exc

    def list_workers(self) -> frozenset[str]:
        """Return the names of the workers that are alive."""
        try:
            names = [name.removesuffix(_SUFFIX) for name in os.listdir(self._folder) if name.endswith(_SUFFIX)]
        except OSError as exc:
            raise SharedStateUnavailable(f"cannot list the workers in {self._folder}: {exc}") from exc
        return frozenset(name for name in names if self.is_alive(name))

    def close(self) -> None:
        """Free the lock and remove the file."""
        _holders.pop(self._path, None)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        os.close(self._descriptor)


def _is_locked(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # Systems differ in the error for a lock of another process.
        return True
    finally:
        os.close(descriptor)
    return False
