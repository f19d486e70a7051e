"""Text of servers made safe for a terminal, and what is printed: tables for people, one JSON document for programs.

Nothing a server says reaches a terminal unescaped: no control, no escape sequence, no mark that reorders or hides.
"""

import json
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, Final

import click

from dovetail.wire.codec import plain

# Controls (C0, C1), and marks that reorder text, join or hide it, or end a line somewhere else.
_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff]"
)


def safe(text: str) -> str:
    """A text of several lines, made visible where it would act."""
    return _UNSAFE.sub(lambda found: _shown(found[0]), text)


def line(text: str) -> str:
    """A text that must stay on one line, as a name in a table."""
    return safe(text).replace("\n", "\\n").replace("\t", "\\t")


def _shown(mark: str) -> str:
    number = ord(mark)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def width(text: str) -> int:
    """How many columns a text takes in a terminal."""
    return sum(
        2 if unicodedata.east_asian_width(one) in "WF" else 0 if unicodedata.combining(one) else 1 for one in text
    )


def table(rows: Iterable[Sequence[str]], heads: Sequence[str]) -> str:
    """Columns for people; the last one is cut to what the terminal has."""
    cells = [[line(cell) for cell in row] for row in rows]
    if not cells:
        return ""
    sizes = [max(width(row[i]) for row in [[*heads], *cells]) for i in range(len(heads))]
    room = max(20, terminal_width() - sum(sizes[:-1]) - 2 * (len(sizes) - 1))
    lines = [_row(heads, sizes, room, bold=True)] + [_row(row, sizes, room) for row in cells]
    return "\n".join(lines)


def _row(cells: Sequence[str], sizes: Sequence[int], room: int, *, bold: bool = False) -> str:
    *inner, last = cells
    padded = [cell + " " * (size - width(cell)) for cell, size in zip(inner, sizes, strict=False)]
    last = last if width(last) <= room or not sys.stdout.isatty() else last[: room - 1] + "…"
    text = "  ".join([*padded, last]).rstrip()
    return click.style(text, bold=True) if bold and sys.stdout.isatty() else text


def terminal_width() -> int:
    """Columns of the terminal."""
    import shutil

    return shutil.get_terminal_size((100, 24)).columns


def document(value: Any) -> str:
    """One JSON document; spelled so that nothing in it acts on a terminal."""
    return json.dumps(plain(value), indent=2, ensure_ascii=not _utf8(), default=str).translate(_JSON_SAFE)


_JSON_SAFE: Final = {
    number: f"\\u{number:04x}" for number in range(0x10000) if _UNSAFE.fullmatch(chr(number)) and number > 0x1F
}


def _utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def fail(text: str) -> None:
    """A message for people, on stderr."""
    click.echo(click.style("error: ", fg="red", bold=True) + safe(text), err=True)


def note(text: str) -> None:
    """A remark for people, on stderr."""
    click.echo(click.style(safe(text), dim=True), err=True)
