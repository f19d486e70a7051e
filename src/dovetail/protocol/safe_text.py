"""Escape and quote text from servers before the user sees it.

Escaping replaces control characters, escape sequences, and characters that reorder or hide text. Quoting puts a bar
before each line, so that text from a server cannot look like text of dovetail.
"""

import json
import re
import unicodedata
from collections.abc import Iterator
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
_URL_PATTERN: Final = re.compile(r"https?://[A-Za-z0-9._~:/?#@!$&'()*+,;=%-]{1,2000}+(?=\s|$)")
# This pattern matches a command in backticks, a word, or blanks.
_WRAP_PIECE_PATTERN: Final = re.compile(r"[^\s`]*+`dovetail [^`]{1,500}`\S*|\s+|\S+")


def quote_lines(text: str) -> list[str]:
    """Escape a text from a server, and return its lines with a bar before each line."""
    return [f"{QUOTE_PREFIX}{line}" for line in escape_text(text).split("\n")]


def wrap_lines(text: str, columns: int) -> str:
    """Break the lines that are too long for a terminal, between words if possible.

    A terminal would continue a long line at its left edge, without the bar. A command in backticks can still be copied.
    """
    width = max(columns, _MIN_WRAP_COLUMNS)
    return "\n".join(row for line in text.split("\n") for row in _wrap_line(line.expandtabs(4), width))


def _wrap_line(line: str, width: int) -> list[str]:
    start = QUOTE_PREFIX if line.startswith(QUOTE_PREFIX) else ""
    text = line.removeprefix(start)
    if len(start) + get_max_width(text) <= width:
        return [line]
    indent = len(text) - len(text.lstrip(" "))
    prefix = start or " " * max(len(_CONTINUATION_PREFIX), indent if indent <= width // 2 else 0)
    rows = _Rows(start, prefix, width)
    for piece in _list_wrap_pieces(text, width - len(prefix), breaks_commands=not start):
        rows.add(piece)
    return rows.finish()


def _list_wrap_pieces(text: str, row_width: int, *, breaks_commands: bool) -> Iterator[str]:
    """Split a text into words and blanks. A command in backticks is one piece if it fits into a row."""
    for piece in _WRAP_PIECE_PATTERN.findall(text):
        if " " not in piece or piece.isspace() or get_max_width(piece) <= row_width:
            yield piece
        else:
            yield from _break_command(piece, row_width - 2) if breaks_commands else re.findall(r"\s+|\S+", piece)


def _break_command(command: str, row_width: int) -> Iterator[str]:
    """Return the lines of a command, which end with a backslash. A blank follows each line but the last."""
    row = ""
    for word in command.split():
        if row and get_max_width(f"{row} {word}") > row_width:
            yield f"{row} \\"
            yield " "
            row = word
        else:
            row = f"{row} {word}".lstrip()
    yield row


class _Rows:
    """Joins words to rows. A word that does not fit into a row is split, unless it is a URL."""

    def __init__(self, start: str, prefix: str, width: int) -> None:
        self._prefix = prefix
        self._width = width
        self._rows: list[str] = []
        self._row = start
        self._row_width = len(start)
        self._is_empty = True
        self._blanks = ""

    def add(self, piece: str) -> None:
        """Add a word, or the blanks after a word."""
        if piece.isspace():
            self._blanks += piece
        elif self._fits(self._blanks + piece):
            self._append(self._blanks + piece)
        elif get_max_width(piece) <= self._width - len(self._prefix):
            self._start_row()
            self._append(piece)
        else:
            self._add_long_word(piece)

    def finish(self) -> list[str]:
        """Return the rows. Keep the blanks at the end if they fit, because the user may type an answer after them."""
        return [*self._rows, self._row + (self._blanks if self._fits(self._blanks) else "")]

    def _add_long_word(self, word: str) -> None:
        url_match = _URL_PATTERN.search(word)
        url = url_match[0] if url_match and url_match.end() == len(word) else ""
        if self._fits(self._blanks):
            self._append(self._blanks)
        for part in (*word[: len(word) - len(url)], *([url] if url else ())):
            if not self._fits(part):
                self._start_row()
            self._append(part)

    def _fits(self, text: str) -> bool:
        return self._row_width + get_max_width(text) <= self._width

    def _append(self, text: str) -> None:
        self._row += text
        self._row_width += get_max_width(text)
        self._is_empty = self._is_empty and not text.strip()
        self._blanks = ""

    def _start_row(self) -> None:
        if not self._is_empty:
            self._rows.append(self._row.rstrip())
            self._row, self._row_width, self._is_empty = self._prefix, len(self._prefix), True


def cut_line(line: str, columns: int) -> str:
    """Shorten a line so that it fits into `columns` terminal columns."""
    if get_max_width(line) <= columns:
        return line
    kept, width = "", 2  # Leave up to two columns for the "…" at the end.
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
