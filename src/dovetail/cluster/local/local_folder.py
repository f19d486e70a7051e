"""The private folders in which the workers of one machine keep their shared state, and the keys in these folders.

Each user has one folder for all servers with `cluster="local"`. A program that starts its own workers creates another
folder for them, and removes it at the end.
"""

import contextlib
import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Final

from dovetail.keys import build_key
from dovetail.storage import lock_path

_KEY_BYTES: Final = 32
_KEY_FILE: Final = "key"
_WORKERS_PREFIX: Final = "workers-"
_BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")


def open_server_folder(prefix: str, server_name: str) -> Path:
    """Return the folder of a server of this user. All its workers on this machine use the same folder."""
    # The times in the folder are those of a clock that starts again with the machine.
    boot_id = _BOOT_ID_FILE.read_text() if _BOOT_ID_FILE.exists() else ""
    digest = hashlib.sha256(build_key(boot_id, prefix, server_name).encode()).hexdigest()
    folder = _open_user_folder() / digest[:16]
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def read_user_key() -> bytes:
    """Return the key of all servers of this user. The first call on this machine creates it."""
    return read_key(_open_user_folder())


def read_key(folder: Path) -> bytes:
    """Return the key of a folder. The first call creates it."""
    path = folder / _KEY_FILE
    if not path.exists():
        # Another process never reads an incomplete key, because the link appears after the key was written.
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".") as file, contextlib.suppress(FileExistsError):
            file.write(os.urandom(_KEY_BYTES))
            file.flush()
            os.link(file.name, path)
    return path.read_bytes()


@contextlib.contextmanager
def create_workers_folder() -> Generator[Path]:
    """Create a folder for the workers of this process, and remove it at the end.

    Folders of processes that were killed are removed, too.
    """
    import fcntl

    user_folder = _open_user_folder()
    with lock_path(user_folder / "lock"):
        for abandoned in user_folder.glob(f"{_WORKERS_PREFIX}*"):
            _remove_unused(abandoned)
        folder = Path(tempfile.mkdtemp(prefix=_WORKERS_PREFIX, dir=user_folder))
        # Workers lock the folder, too. So a locked folder is in use.
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_SH)
    try:
        yield folder
    finally:
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)


def _remove_unused(folder: Path) -> None:
    import fcntl

    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


def _open_user_folder() -> Path:
    """Return the folder of this user. Raise PermissionError if other users can use it."""
    if sys.platform == "win32":
        raise ValueError("the workers of one machine need Unix sockets. On Windows, use a cluster on Redis")
    runtime_folder = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    if runtime_folder.is_absolute() and runtime_folder.is_dir():
        folder = runtime_folder / "dovetail"
    else:
        folder = Path(tempfile.gettempdir()) / f"dovetail-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(
            f"{folder} must be a folder that only you can use. Remove it, or set TMPDIR to another folder"
        )
    return folder
