"""A JSON document that several processes share: read at any time, changed by one at a time, never seen half written.

Readable and writable by its user alone; one that others may write is refused, since it could be forged.
"""

import contextlib
import copy
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final, TypeVar

from dovetail.login.files import lock_file, replace, taken
from dovetail.wire.codec import encode

log = logging.getLogger("dovetail")

_PATIENCE: Final = 10.0  # for another process, which needs milliseconds
_PAUSE: Final = 0.005
_OTHERS_WRITE: Final = 0o022

T = TypeVar("T")
Document = dict[str, Any]


class Ledger:
    """One document; without a path, in memory."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else None
        self._lock = threading.Lock()  # for moments
        self._changing = threading.Lock()  # for as long as another process takes, which keeps nobody from reading
        self._seen: tuple[int, int, int] | None = None
        self._kept: Document = {}

    def read(self) -> Document:
        """The document as it is now; not to be changed. PermissionError if others could have written it."""
        with self._lock:
            return self._current()

    def change(self, edit: Callable[[Document], T]) -> T:
        """Let a function change the document; what it returns. TimeoutError if another process does not let go."""
        with self._changing:
            if self.path is None:
                return edit(self._kept)
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(self.path):
                self._set_damaged_aside()
                document: Document = copy.deepcopy(self.read())  # a copy: the edit may fail half way
                result = edit(document)
                replace(self.path, encode(document))
                with self._lock:
                    self._seen = None
                return result

    def _current(self) -> Document:
        if self.path is None:
            return self._kept
        try:
            with self.path.open("rb") as file:
                state = os.fstat(file.fileno())
                if os.name != "nt" and state.st_mode & _OTHERS_WRITE:
                    raise PermissionError(f"{self.path} can be written by others; chmod 600 it if it is yours")
                now = (state.st_ino, state.st_mtime_ns, state.st_size)
                if now != self._seen:
                    self._kept, self._seen = _document(file.read()) or {}, now
        except FileNotFoundError:
            self._kept, self._seen = {}, None
        return self._kept

    def _set_damaged_aside(self) -> None:
        assert self.path is not None
        with contextlib.suppress(FileNotFoundError):
            if _document(self.path.read_bytes()) is None:
                log.warning("%s is damaged; it is kept as %s.damaged", self.path, self.path.name)
                os.replace(self.path, self.path.with_name(f"{self.path.name}.damaged"))


def state_folder() -> Path:
    """Where a user's programs keep what they remember."""
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "dovetail"
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "dovetail"


@contextlib.contextmanager
def locked(path: Path) -> Generator[None]:
    """Held by one process at a time; let go of when the process ends, however it does."""
    handle = lock_file(path)
    try:
        end = time.monotonic() + _PATIENCE
        while not taken(handle):
            if time.monotonic() > end:
                raise TimeoutError(f"another process holds {path} for too long")
            time.sleep(_PAUSE)
        yield
    finally:
        os.close(handle)


def _document(data: bytes) -> Document | None:
    try:
        found = json.loads(data)  # not the codec, whose limits are those of one message
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
