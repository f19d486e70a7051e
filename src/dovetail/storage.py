"""Files of the user: where they are, and a JSON document that several processes share.

The document is read at any time, changed by one process at a time, and never seen half written.

Readable and writable by its user alone; one that others may write is refused, since it could be forged.
"""

import contextlib
import copy
import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final, TypeVar

from dovetail.wire.codec import encode


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


log = logging.getLogger("dovetail")

_LOCK_TIMEOUT_S: Final = 10.0  # for another process, which needs milliseconds
_LOCK_POLL_INTERVAL_S: Final = 0.005
_GROUP_OTHER_WRITE_MODE: Final = 0o022

T = TypeVar("T")
Document = dict[str, Any]


class SharedDocument:
    """One document; without a path, in memory."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else None
        self._lock = threading.Lock()  # for moments
        self._change_lock = threading.Lock()  # for as long as another process takes, which keeps nobody from reading
        self._cached_stat: tuple[int, int, int] | None = None
        self._cached_document: Document = {}

    def read(self) -> Document:
        """The document as it is now; not to be changed. PermissionError if others could have written it."""
        with self._lock:
            return self._load()

    def change(self, edit: Callable[[Document], T]) -> T:
        """Let a function change the document; what it returns. TimeoutError if another process does not let go."""
        with self._change_lock:
            if self.path is None:
                return edit(self._cached_document)
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with lock_path(self.path):
                self._move_damaged()
                document: Document = copy.deepcopy(self.read())  # a copy: the edit may fail half way
                result = edit(document)
                replace_file(self.path, encode(document))
                with self._lock:
                    self._cached_stat = None
                return result

    def _load(self) -> Document:
        if self.path is None:
            return self._cached_document
        try:
            with self.path.open("rb") as file:
                file_stat = os.fstat(file.fileno())
                if os.name != "nt" and file_stat.st_mode & _GROUP_OTHER_WRITE_MODE:
                    raise PermissionError(f"{self.path} can be written by others; chmod 600 it if it is yours")
                stat_key = (file_stat.st_ino, file_stat.st_mtime_ns, file_stat.st_size)
                if stat_key != self._cached_stat:
                    self._cached_document, self._cached_stat = _parse_document(file.read()) or {}, stat_key
        except FileNotFoundError:
            self._cached_document, self._cached_stat = {}, None
        return self._cached_document

    def _move_damaged(self) -> None:
        assert self.path is not None
        with contextlib.suppress(FileNotFoundError):
            if _parse_document(self.path.read_bytes()) is None:
                log.warning("%s is damaged; it is kept as %s.damaged", self.path, self.path.name)
                os.replace(self.path, self.path.with_name(f"{self.path.name}.damaged"))


def get_data_dir() -> Path:
    """Return the directory for stored data: tokens, grants, pins."""
    return _get_user_dir("XDG_DATA_HOME", ".local/share")


def get_cache_dir() -> Path:
    """Return the directory for files that can be created again."""
    return _get_user_dir("XDG_CACHE_HOME", ".cache")


def _get_user_dir(xdg_variable: str, default: str) -> Path:
    """Return `DOVETAIL_HOME` if it is set, else the platform's directory for the user."""
    if home := os.environ.get("DOVETAIL_HOME"):
        return Path(home).expanduser()
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "dovetail"
    return Path(os.environ.get(xdg_variable) or Path.home() / default) / "dovetail"


@contextlib.contextmanager
def lock_path(path: Path) -> Generator[None]:
    """Held by one process at a time; let go of when the process ends, however it does."""
    lock_descriptor = open_lock_file(path)
    try:
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while not try_lock(lock_descriptor):
            if time.monotonic() > deadline:
                raise TimeoutError(f"another process holds {path} for too long")
            time.sleep(_LOCK_POLL_INTERVAL_S)
        yield
    finally:
        os.close(lock_descriptor)


def _parse_document(data: bytes) -> Document | None:
    try:
        document = json.loads(data)  # not the codec, whose limits are those of one message
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
