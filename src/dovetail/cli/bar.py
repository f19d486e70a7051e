"""Progress on a terminal: one line that is written over, and gone when the work is done."""

import sys

from dovetail.cli import text

_LENGTH = 24


class Bar:
    """A bar on stderr; nothing at all where nobody looks."""

    def __init__(self) -> None:
        self._seen = sys.stderr.isatty()
        self._drawn = False

    def show(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Draw how far it is."""
        if not self._seen:
            return
        filled = int(_LENGTH * min(1.0, max(0.0, done / total))) if total else 0
        bar = f"[{'#' * filled}{'.' * (_LENGTH - filled)}] " if total else ""
        share = f"{done:g} of {total:g}" if total else f"{done:g}"
        told = f"{bar}{share} {text.line(message or '')}".rstrip()
        sys.stderr.write(f"\r\x1b[K{told[: text.terminal_width() - 1]}")
        sys.stderr.flush()
        self._drawn = True

    def clear(self) -> None:
        """Leave the line as it was."""
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = False
