"""Escape and quote text from servers before the user sees it.

Escaping replaces control characters, escape sequences, and characters that reorder or hide text. Quoting puts a bar
before each line, so that text from a server cannot look like text of dovetail.
"""

import json
import re
import unicodedata
from typing import Final

# Control characters, line separators, surrogates, and characters that reorder, join or hide text.
UNSAFE_CHARS: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def escape_text(text: str) -> str:
    """Escape unsafe characters in a text, and keep its line breaks."""
    return UNSAFE_CHARS.sub(lambda match: _escape_char(match[0]), text.replace("\r\n", "\n"))


def escape_line(text: str, limit: int | None = None) -> str:
    """Escape unsafe characters and line breaks in a text, and shorten it to `limit` characters."""
    shortened = text if limit is None or len(text) <= limit else text[: limit - 1] + "…"
    return escape_text(shortened).replace("\n", "\\n").replace("\t", "\\t")


def escape_json(text: str) -> str:
    """Escape unsafe characters in a JSON text. The text stays valid JSON with the same value."""
    return UNSAFE_CHARS.sub(lambda match: json.dumps(match[0])[1:-1], text)


QUOTE_PREFIX: Final = "  │ "
_CONTINUATION_PREFIX: Final = "    "
_MIN_WRAP_COLUMNS: Final = 20
# A URL is not broken into lines, so that the user can copy it.
# The pattern excludes blanks and brackets, so that a URL cannot look like a prompt.
_WRAP_PIECE_PATTERN: Final = re.compile(r"https?://[A-Za-z0-9._~:/?#@!$&'()*+,;=%-]{1,2000}+(?=\s|$)|.", re.DOTALL)


def quote_lines(text: str) -> list[str]:
    """Escape a text from a server, and return its lines with a bar before each line."""
    return [f"{QUOTE_PREFIX}{line}" for line in escape_text(text).split("\n")]


def wrap_lines(text: str, columns: int) -> str:
    """Break the lines that are too long for a terminal.

    A terminal would continue a long line at its left edge, without the bar.
    """
    width = max(columns, _MIN_WRAP_COLUMNS)
    return "\n".join(row for line in text.split("\n") for row in _wrap_line(line.expandtabs(4), width))


def _wrap_line(line: str, width: int) -> list[str]:
    start = QUOTE_PREFIX if line.startswith(QUOTE_PREFIX) else ""
    text = line.removeprefix(start)
    if len(start) + get_max_width(text) <= width:
        return [line]
    prefix = start or _CONTINUATION_PREFIX
    rows, row, row_width = list[str](), start, len(start)
    for piece in _WRAP_PIECE_PATTERN.findall(text):
        piece_width = get_max_width(piece)
        if row_width + piece_width > width and row not in ("", prefix):
            rows.append(row)
            row, row_width = prefix, len(prefix)
        row += piece
        row_width += piece_width
    return [*rows, row]


def cut_line(line: str, columns: int) -> str:
    """Shorten a line so that it fits into `columns` terminal columns."""
    if get_max_width(line) <= columns:
        return line
    kept, width = "", 2  # The "…" at the end takes up to two columns.
    for char in line:
        width += get_max_width(char)
        if width > columns:
            break
        kept += char
    return f"{kept}…"


def get_text_width(text: str) -> int:
    """Return how many terminal columns a text needs."""
    return sum(
        2 if unicodedata.east_asian_width(char) in "WF" else 0 if unicodedata.combining(char) else 1 for char in text
    )


def get_max_width(text: str) -> int:
    """Return the largest number of columns that a text may need. Terminals disagree about some characters."""
    return len(text) if text.isascii() else len(text) + sum(map(_may_be_wide, text))


_WIDE_CATEGORIES: Final = frozenset(("So", "Co", "Cn"))


def _may_be_wide(char: str) -> bool:
    return unicodedata.east_asian_width(char) in "WFA" or unicodedata.category(char) in _WIDE_CATEGORIES


def _escape_char(char: str) -> str:
    code_point = ord(char)
    return (
        f"\\x{code_point:02x}"
        if code_point < 0x100
        else f"\\u{code_point:04x}"
        if code_point < 0x10000
        else f"\\U{code_point:08x}"
    )
