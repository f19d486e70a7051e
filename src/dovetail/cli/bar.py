"""Progress on a terminal: one line that is written over, and gone when the work is done."""

import sys

from dovetail.cli import text

_BAR_CHARS = 24


class ProgressBar:
    """A bar on stderr; nothing at all where nobody looks."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._is_drawn = False

    def draw(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Draw how far it is."""
        if not self._is_terminal:
            return
        filled = int(_BAR_CHARS * min(1.0, max(0.0, done / total))) if total else 0
        bar = f"[{'#' * filled}{'.' * (_BAR_CHARS - filled)}] " if total else ""
        progress = f"{done:g} of {total:g}" if total else f"{done:g}"
        status = f"{bar}{progress} {text.escape_line(message or '')}".rstrip()
        sys.stderr.write(f"\r\x1b[K{status[: text.get_terminal_width() - 1]}")
        sys.stderr.flush()
        self._is_drawn = True

    def clear(self) -> None:
        """Leave the line as it was."""
        if self._is_drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._is_drawn = False
