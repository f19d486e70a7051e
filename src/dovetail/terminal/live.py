"""Live displays below the output of a command: progress bars, spinners and changing tables.

A display is visible only if stderr is a terminal that can move its cursor. `print_above` writes other output above the
display. The display escapes text from servers, and draws a bar before each line of this text.
"""

import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from dovetail.protocol.safe_text import QUOTE_PREFIX, cut_line, escape_line
from dovetail.terminal.line_reader import LineReader
from dovetail.terminal.style import has_cursor, is_styled

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

__all__ = ["LiveDisplay", "ProgressBar", "print_above"]

_FRAMES_PER_S: Final = 8
_START_DELAY_S: Final = 0.4  # A command that ends before this delay shows no progress.
_ELAPSED_AFTER_S: Final = 2.0
_MAX_BAR_COLUMNS: Final = 32
_MIN_COLUMNS: Final = 20
_MAX_MESSAGE_CHARS: Final = 300

_lock = threading.RLock()
_visible_displays: list["LiveDisplay"] = []  # the display that is on the screen, or None


def print_above(text: str) -> bool:
    """Write a text above the display. Return False if no display is visible. The caller must escape the text."""
    with _lock:
        for display in _visible_displays:
            display.write_above(text)
        return bool(_visible_displays)


class LiveDisplay:
    """Draws the result of `build`, and redraws it in each frame. `build` takes the width of the terminal."""

    def __init__(self, build: "Callable[[int], RenderableType]", *, is_kept: bool = False) -> None:
        self._build = build
        self._is_kept = is_kept  # True if the last frame stays on the screen at the end
        self._live: Live | None = None

    def show(self) -> None:
        """Draw the display. A visible display shows changes in its next frame."""
        with _lock:
            if self._live is None:
                self._start()

    def hide(self) -> None:
        """Remove the display from the screen."""
        with _lock:
            if self._live is not None:
                live, self._live = self._live, None
                _visible_displays.remove(self)
                live.stop()

    def write_above(self, text: str) -> None:
        """Write a text above the display."""
        if self._live is not None:
            from rich.text import Text

            self._live.console.print(Text.from_ansi(text), soft_wrap=True)

    def _start(self) -> None:
        from rich.live import Live

        from dovetail.terminal.renderer import SafeLayout, create_console

        lines = LineReader()
        console = create_console(sys.stderr, lines.get_columns(), is_styled=is_styled(err=True))

        def build() -> Any:
            columns = max(_MIN_COLUMNS, lines.get_columns())
            console.size = (columns, console.size.height)  # The user may have changed the size of the terminal.
            return SafeLayout(self._build(columns))

        self._live = Live(
            console=console,
            get_renderable=build,
            transient=not self._is_kept,
            refresh_per_second=_FRAMES_PER_S,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        _visible_displays.append(self)
        self._live.start(refresh=True)


class ProgressBar:
    """The progress of a command on stderr. It is invisible if stderr is not a terminal."""

    def __init__(self) -> None:
        self._is_terminal = has_cursor(err=True)
        self._display = LiveDisplay(self._render)
        self._timer: threading.Timer | None = None
        self._is_hidden = False
        self._started_at = time.monotonic()
        self._title = ""
        self._done: float | None = None
        self._total: float | None = None
        self._message = ""
        self._unit = ""
        self._detail = ""

    def start(self, title: str) -> None:
        """Show a title and a spinner after `_START_DELAY_S`, unless the command ends earlier."""
        if self._is_terminal and not self._title:
            self._title, self._started_at = escape_line(title, _MAX_MESSAGE_CHARS), time.monotonic()
            self._timer = threading.Timer(_START_DELAY_S, self._show)
            self._timer.daemon = True
            self._timer.start()

    def draw(
        self,
        done: float,
        total: float | None = None,
        message: str | None = None,
        *,
        unit: str = "",
        detail: str = "",
    ) -> None:
        """Draw the current progress. `detail` is text from dovetail, and `message` is untrusted text from a server."""
        self._done, self._total, self._unit, self._detail = done, total, unit, detail
        self._message = escape_line(message or "", _MAX_MESSAGE_CHARS)
        self._show()

    def set_progress(self, done: float, total: float, *, detail: str = "") -> None:
        """Set the progress, but do not show the progress bar. `start` shows the bar after a delay."""
        self._done, self._total, self._detail = done, total, detail

    def draw_message(self, message: str) -> None:
        """Draw a message instead of numbers."""
        self._done, self._message = None, escape_line(message, _MAX_MESSAGE_CHARS)
        self._show()

    def clear(self) -> None:
        """Remove the progress bar."""
        if self._timer is not None:
            self._timer.cancel()
        with _lock:
            self._display.hide()
            self._title, self._message, self._done = "", "", None

    @contextmanager
    def hidden(self) -> Generator[None]:
        """Remove the progress bar while the context is open, for example while the user answers a question."""
        with _lock:
            self._is_hidden = True
            self._display.hide()
        try:
            yield
        finally:
            self._is_hidden = False

    def _show(self) -> None:
        with _lock:
            if self._is_terminal and not self._is_hidden and (self._title or self._done is not None or self._message):
                self._display.show()

    def _render(self, columns: int) -> "RenderableType":
        from rich.console import Group
        from rich.padding import Padding
        from rich.text import Text

        lines: list[RenderableType] = [self._render_bar(columns)]
        if self._detail:
            lines.append(Padding(Text(self._detail, "quiet"), (0, 0, 0, 2)))
        if self._message:
            lines.append(Text(cut_line(f"{QUOTE_PREFIX}{self._message}", columns - 1), no_wrap=True))
        return Group(*lines)

    def _render_bar(self, columns: int) -> "RenderableType":
        from rich.progress_bar import ProgressBar as Bar
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        elapsed_s = time.monotonic() - self._started_at
        title = cut_line(self._title, max(8, columns // 3))
        cells: list[RenderableType] = []
        if self._total is None or self._done is None:
            cells.append(Spinner("line" if not _is_utf8() else "dots", style="name"))
        if self._title:
            cells.append(Text(title, no_wrap=True, overflow="ellipsis"))
        if self._total is not None and self._done is not None:
            width = min(_MAX_BAR_COLUMNS, columns // 4)
            # A server may send very large numbers, which rich cannot draw. So pass the completed fraction, from 0 to 1.
            part = min(max(0.0, self._done / self._total), 1.0) if self._total > 0 else 0.0
            cells.append(Bar(1.0, part, width=width, complete_style="name", finished_style="green"))
        if self._done is not None:
            numbers = f"{self._done:g}" + (f" of {self._total:g}" if self._total is not None else "")
            cells.append(Text(f"{numbers} {self._unit}".rstrip(), no_wrap=True))
        if elapsed_s >= _ELAPSED_AFTER_S and not self._unit:
            cells.append(Text(f"{elapsed_s:.0f} s", "quiet", no_wrap=True))
        grid = Table.grid(padding=(0, 1, 0, 0))
        for cell in cells:
            # If the line is too wide, rich shortens the title and keeps the numbers.
            grid.add_column(min_width=len(cell) if isinstance(cell, Text) and cell.plain != title else None)
        grid.add_row(*cells)
        return grid


def _is_utf8() -> bool:
    return (sys.stderr.encoding or "").lower().replace("-", "") == "utf8"
