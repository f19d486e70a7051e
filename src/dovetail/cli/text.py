"""Text of servers made safe for a terminal, and what is printed: tables for people, one JSON document for programs.

Nothing a server says reaches a terminal unescaped: no control, no escape sequence, no mark that reorders or hides. What
a tool or a resource holds goes into a file or a pipe as it is.
"""

import json
import os
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, Final

import click

from dovetail.host import escaping
from dovetail.host.escaping import safe

_CELL: Final = 300  # more of a name or a line helps nobody, and would push the other columns away


def line(text: str) -> str:
    """A text that must stay on one line, as a name in a table."""
    return escaping.line(text, _CELL)


def whole(text: str) -> str:
    """A text on one line, never cut: an address somebody has to copy."""
    return escaping.line(text)


def shown(text: str) -> str:
    """What a tool or a resource holds, for stdout: safe for a terminal, and for a file or a pipe as it is."""
    return safe(text) if sys.stdout.isatty() else text


def somebody() -> bool:
    """Whether a person is there to be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


# For programs


def document(value: Any) -> str:
    """One JSON document; spelled so that nothing in it acts on a terminal."""
    return _json(value, indent=2)


def record(value: Any) -> str:
    """One JSON document on one line, for what comes piece by piece."""
    return _json(value, indent=None)


def _json(value: Any, indent: int | None) -> str:
    from dovetail.wire.codec import plain

    text = json.dumps(plain(value), indent=indent, ensure_ascii=not _utf8(), default=str)
    return escaping.UNSAFE.sub(lambda found: json.dumps(found[0])[1:-1], text)


def _utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


# For people


def style(text: str, *, err: bool = False, **how: Any) -> str:
    """Text with a colour where somebody can see it and did not ask for none."""
    stream = sys.stderr if err else sys.stdout
    return click.style(text, **how) if stream.isatty() and "NO_COLOR" not in os.environ else text


def width(text: str) -> int:
    """How many columns a text takes in a terminal."""
    return sum(
        2 if unicodedata.east_asian_width(one) in "WF" else 0 if unicodedata.combining(one) else 1 for one in text
    )


def table(rows: Iterable[Sequence[str]], heads: Sequence[str]) -> str:
    """Columns; on a terminal the last one is cut to the room there is."""
    cells = [[line(cell) for cell in row] for row in rows]
    if not cells:
        return ""
    sizes = [max(width(row[at]) for row in [[*heads], *cells]) for at in range(len(heads))]
    room = max(20, terminal_width() - sum(sizes[:-1]) - 2 * (len(sizes) - 1))
    return "\n".join([style(_row(heads, sizes, room), bold=True), *(_row(row, sizes, room) for row in cells)])


def _row(cells: Sequence[str], sizes: Sequence[int], room: int) -> str:
    *inner, last = cells
    padded = [cell + " " * (size - width(cell)) for cell, size in zip(inner, sizes, strict=False)]
    last = last if width(last) <= room or not sys.stdout.isatty() else last[: room - 1] + "…"
    return "  ".join([*padded, last]).rstrip()


def terminal_width() -> int:
    """Columns of the terminal."""
    import shutil

    return shutil.get_terminal_size((100, 24)).columns


def fail(text: str) -> None:
    """What went wrong, on stderr."""
    click.echo(style("error: ", err=True, fg="red", bold=True) + safe(text), err=True)


def refuse_overwriting(file: str, force: bool) -> None:
    """UsageError if a file is there that nobody said may be written over; what is no plain file keeps nothing."""
    if os.path.isfile(file) and not force:
        raise click.UsageError(f"{file} is there already; --force writes over it")


def overheard() -> Any:
    """Where a child's stderr goes that is shown as it comes: escaped on a terminal, else as it is."""
    return note if sys.stderr.isatty() else "inherit"


def pour(text: str) -> None:
    """What a tool or a resource holds, to stdout: into a file or a pipe as it is, and nothing more."""
    if sys.stdout.isatty():
        click.echo(safe(text))
    else:
        sys.stdout.write(text)
        sys.stdout.flush()


def note(text: str) -> None:
    """A remark, on stderr."""
    click.echo(style(safe(text), err=True, dim=True), err=True)
