"""Files that several processes share: replaced whole, and changed under a lock that ends with its process."""

import contextlib
import os
import tempfile
from pathlib import Path


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Put a file in its place; a crash leaves the old one or the new one, never half of one."""
    handle, temporary_path = tempfile.mkstemp(dir=path.parent, prefix=".new-")  # which nobody else can read
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary_path, mode)
        os.replace(temporary_path, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary_path)
        raise


def open_lock_file(path: Path) -> int:
    """The open file beside another that stands for it; closing it lets go of its lock."""
    return os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


if os.name == "nt":  # pragma: no cover

    def try_lock(handle: int) -> bool:
        """Whether this process has the lock of an open file now; False while another has it."""
        import msvcrt

        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:

    def try_lock(handle: int) -> bool:
        """Whether this process has the lock of an open file now; False while another has it."""
        import fcntl

        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
