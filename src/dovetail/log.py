"""The logger of dovetail. A filter makes every log record safe to write.

Values in a record may come from another program. The filter masks the known secrets of hosts, shortens the values and
escapes their control characters. If a record has an exception, its traceback starts with the first frame of the user's
code.
"""

import contextlib
import logging
import os
import time
import traceback
import weakref
from collections.abc import Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

from dovetail.error_context import clip

if TYPE_CHECKING:  # Commands that start no event loop do not need asyncio.
    import asyncio

_MAX_VALUE_CHARS: Final = 1000
_MAX_MASKED_CHARS: Final = 16 * 1024
_MAX_TRACEBACK_CHARS: Final = 8192
_MAX_PART_CHARS: Final = 512  # Maximum length of one frame or one exception message.
# These paths belong to dovetail, or to modules through which dovetail calls the user's functions.
_INTERNAL_PATHS: Final = (
    os.path.join(os.path.dirname(__file__), ""),
    *(
        os.path.join(os.path.dirname(os.__file__), name)
        for name in ("asyncio", "concurrent", "contextlib", "threading")
    ),
)

log: Final = logging.getLogger("dovetail")


_LINE_INTERVAL_S: Final = 60.0


class ThrottledLog:
    """A log line that is written at most once a minute, so that clients cannot fill the log."""

    __slots__ = ("_level", "_next_at", "_skipped")

    def __init__(self, level: int = logging.WARNING) -> None:
        self._level = level
        self._next_at = 0.0
        self._skipped = 0  # the number of messages that were not logged since the last line

    @property
    def is_due(self) -> bool:
        """Whether the next message is logged."""
        return time.monotonic() >= self._next_at

    def log(self, message: str, *args: object, exc_info: BaseException | None = None) -> None:
        """Log the message, unless the line was written less than a minute ago."""
        now = time.monotonic()
        if now < self._next_at:
            self._skipped += 1
            return
        self._next_at = now + _LINE_INTERVAL_S
        if self._skipped:
            message, args = f"{message} (%d similar events since the last line)", (*args, self._skipped)
            self._skipped = 0
        log.log(self._level, message, *args, exc_info=exc_info)


def log_failure(future: "asyncio.Future[Any]") -> None:
    """Log the exception of a future that has ended. Pass this function to `add_done_callback`.

    Use it for work whose callers may be gone. asyncio reports an exception that nobody has read, and would report it
    only when the future is deleted.
    """
    if not future.cancelled() and (exc := future.exception()) is not None:
        _log_swallowed(exc)


@contextlib.contextmanager
def log_and_suppress(*types: type[BaseException]) -> Generator[None]:
    """Log exceptions of these types, and continue after the block."""
    try:
        yield
    except types as exc:
        _log_swallowed(exc)


def _log_swallowed(exc: BaseException) -> None:
    """Log the type and the place of an exception. Its message may contain secrets of a server."""
    place, frame = "unknown place", exc.__traceback__
    while frame is not None:
        place, frame = f"{frame.tb_frame.f_code.co_qualname}:{frame.tb_lineno}", frame.tb_next
    log.debug("continued after an error: %s in %s", type(exc).__name__, place)


class OwnText(str):
    """A log text from dovetail itself. The log filter does not shorten or escape it."""

    __slots__ = ()


class KnownSecrets(Protocol):
    """Secrets that must not appear in the log."""

    def mask_known(self, text: str) -> str:
        """Return the text with its known secrets masked."""
        ...


_known_secrets: Final[list["weakref.ref[KnownSecrets]"]] = []


def mask_in_log(secrets: KnownSecrets) -> None:
    """Mask these secrets in the log from now on. The log keeps only a weak reference to `secrets`."""
    _known_secrets.append(weakref.ref(secrets, _known_secrets.remove))


def trim_traceback(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames before the first frame of the user's code.

    If no frame belongs to the user's code, return all frames.
    """
    frame = trace
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_INTERNAL_PATHS):
        frame = frame.tb_next
    return frame or trace


def format_traceback(exc: BaseException, trace: TracebackType | None) -> str:
    """Format a traceback for the log, with limited length and without control characters.

    The text is indented, so that no line looks like a separate log record.
    """
    # A part is one frame or one exception message, which may contain text from the caller.
    parts = [
        part if len(part) <= _MAX_PART_CHARS else part[:_MAX_PART_CHARS] + "…\n"
        for part in map(_mask, traceback.format_exception(type(exc), exc, trace, limit=30))
    ]
    text = "".join(parts)
    if len(text) > _MAX_TRACEBACK_CHARS:
        # The beginning shows the author's frames, and the end shows the error. The rest is left out.
        text = f"{text[: _MAX_TRACEBACK_CHARS // 2]}\n…\n{text[-_MAX_TRACEBACK_CHARS // 2 :]}"
    return "\n".join(f"  {clip(line, _MAX_PART_CHARS + 1)}" for line in text.splitlines())


def _make_safe(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(map(_clip_value, record.args))
    elif record.args:
        record.args = {name: _clip_value(value) for name, value in record.args.items()}
    if record.exc_info and record.exc_info[1] is not None:
        exc = record.exc_info[1]
        trace = trim_traceback(record.exc_info[2])
        record.exc_info = (type(exc), exc, trace)
        # Log formatters write this text and do not format the exception again.
        record.exc_text = format_traceback(exc, trace)
    return True


def _clip_value(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | OwnText):
        return value
    try:
        text = str(value)
    except Exception as exc:  # Logging must not fail if an exception cannot be printed.
        text = f"<{type(value).__name__} that cannot be printed: {type(exc).__name__}>"
    # Secrets are masked before the text is shortened, because half a secret would not be recognized.
    return clip(_mask(text), _MAX_VALUE_CHARS)


def _mask(text: str) -> str:
    text = text[:_MAX_MASKED_CHARS]
    for reference in tuple(_known_secrets):
        secrets = reference()
        if secrets is not None:
            text = secrets.mask_known(text)
    return text


log.addFilter(_make_safe)
