"""Print text, tables and JSON. Text from servers is escaped for the terminal.

Text from a server never reaches a terminal with control characters, escape sequences, or characters that
reorder or hide text. The content of a tool or a resource is written unchanged to a file or a pipe.
"""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import click

from dovetail.protocol import safe_text
from dovetail.protocol.safe_text import escape_text, get_text_width, quote_lines
from dovetail.terminal.line_reader import LineReader

_MAX_CELL_CHARS: Final = 300


def escape_line(text: str) -> str:
    """Escape and shorten a text for one line, such as a name in a table."""
    return safe_text.escape_line(text, _MAX_CELL_CHARS)


def escape_full_line(text: str) -> str:
    """Escape a text for one line, such as a URL. The text is not shortened."""
    return safe_text.escape_line(text)


def escape_for_stdout(text: str) -> str:
    """Escape text if stdout is a terminal. If stdout is a file or a pipe, return the text unchanged."""
    return escape_text(text) if sys.stdout.isatty() else text


def is_interactive() -> bool:
    """Return whether a user can answer questions on the terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


# Programs read the output of these functions.


def format_json(value: Any) -> str:
    """Return formatted JSON without characters that are unsafe in a terminal."""
    return _dump_json(value, indent=2)


def format_json_line(value: Any) -> str:
    """Return JSON on one line."""
    return _dump_json(value, indent=None)


def _dump_json(value: Any, indent: int | None) -> str:
    from dovetail.wire.codec import to_plain

    text = json.dumps(to_plain(value), indent=indent, ensure_ascii=not _is_stdout_utf8(), default=str)
    return safe_text.escape_json(text)


def _is_stdout_utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


# Users read the output of these functions.


def style(text: str, *, err: bool = False, **styles: Any) -> str:
    """Add styles to a text if the stream is a terminal and NO_COLOR is not set."""
    stream = sys.stderr if err else sys.stdout
    return click.style(text, **styles) if stream.isatty() and "NO_COLOR" not in os.environ else text


def format_table(rows: Iterable[Sequence[str]], headers: Sequence[str]) -> str:
    """Format a table. In a terminal, the last column is shortened to fit."""
    cells = [[escape_line(cell) for cell in row] for row in rows]
    if not cells:
        return ""
    widths = [max(get_text_width(row[column]) for row in [[*headers], *cells]) for column in range(len(headers))]
    last_width = max(20, get_terminal_width() - sum(widths[:-1]) - 2 * (len(widths) - 1))
    return "\n".join(
        [
            style(_format_row(headers, widths, last_width), bold=True),
            *(_format_row(row, widths, last_width) for row in cells),
        ]
    )


def _format_row(cells: Sequence[str], widths: Sequence[int], last_width: int) -> str:
    *leading, last = cells
    padded = [
        cell + " " * (column_width - get_text_width(cell)) for cell, column_width in zip(leading, widths, strict=False)
    ]
    if not sys.stdout.isatty():
        return "  ".join([*padded, last]).rstrip()
    return fit_to_stdout("  ".join([*padded, safe_text.cut_line(last, last_width)]).rstrip())


def get_terminal_width() -> int:
    """Return the number of columns of the terminal."""
    import shutil

    return shutil.get_terminal_size((100, 24)).columns


def print_error(text: str) -> None:
    """Print an error to stderr."""
    label = style("error: ", err=True, fg="red", bold=True)
    first_row, *rows = _fit_to_stderr(f"error: {escape_text(text)}").split("\n")
    click.echo("\n".join([label + first_row.removeprefix("error: "), *rows]), err=True)


def fit_to_stdout(text: str) -> str:
    """Break lines that are too long for the terminal.

    A terminal would continue a long line at its left edge, where text of a server would look like a line of dovetail.
    """
    return safe_text.wrap_lines(text, get_terminal_width()) if sys.stdout.isatty() else text


def _fit_to_stderr(text: str) -> str:
    return safe_text.wrap_lines(text, LineReader().get_columns()) if sys.stderr.isatty() else text


def refuse_overwriting(file: str, force: bool) -> None:
    """Raise UsageError if the file exists and --force is not set."""
    if os.path.isfile(file) and not force:
        raise click.UsageError(f"{file} already exists. Use --force to overwrite it")


def get_stderr_target() -> Any:
    """Return the target for the stderr of a child process.

    In a terminal, the output is escaped, with a bar before each line. Otherwise the child process inherits stderr.
    """
    return print_quoted if sys.stderr.isatty() else "inherit"


def write_content(content: str | bytes) -> None:
    """Write text or bytes to stdout. In a terminal, escape text, and show only the size of bytes."""
    if sys.stdout.isatty():
        click.echo(escape_text(content) if isinstance(content, str) else f"[{len(content)} bytes]")
    elif isinstance(content, str):
        sys.stdout.write(content)
        sys.stdout.flush()
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)


def print_note(text: str) -> None:
    """Print a note to stderr."""
    click.echo(style(_fit_to_stderr(escape_text(text)), err=True, dim=True), err=True)


def print_quoted(text: str) -> None:
    """Print text from a server to stderr, with a bar before each line."""
    if sys.stderr.isatty():
        LineReader().write_quoted(text)  # `write_quoted` breaks long lines.
    else:
        click.echo("\n".join(quote_lines(text)), err=True)


_BAR_CHARS = 24


class ProgressBar:
    """A progress bar on stderr. It is invisible if stderr is not a terminal."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._is_drawn = False

    def draw(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Draw the current progress."""
        if not self._is_terminal:
            return
        filled = int(_BAR_CHARS * min(1.0, max(0.0, done / total))) if total else 0
        bar = f"[{'#' * filled}{'.' * (_BAR_CHARS - filled)}] " if total else ""
        progress = f"{done:g} of {total:g}" if total else f"{done:g}"
        self._write(f"{bar}{progress}{f' │ {escape_line(message)}' if message else ''}")

    def draw_message(self, message: str) -> None:
        """Draw a message instead of numbers."""
        if self._is_terminal:
            self._write(f"│ {escape_line(message)}")

    def _write(self, status: str) -> None:
        sys.stderr.write(f"\r\x1b[K{safe_text.cut_line(status, LineReader().get_columns() - 1)}")
        sys.stderr.flush()
        self._is_drawn = True

    def clear(self) -> None:
        """Clear the line of the progress bar."""
        if self._is_drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._is_drawn = False
