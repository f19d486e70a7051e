"""Escape text from servers before a person sees it: control characters, escape sequences, reordering and hidden
marks.
"""

import json
import re
from typing import Final

# Control characters, surrogates, and characters that reorder, join or hide text or end a line
UNSAFE_CHARS: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def escape_text(text: str) -> str:
    """Escape unsafe characters in a text of several lines."""
    return UNSAFE_CHARS.sub(lambda match: _escape_char(match[0]), text.replace("\r\n", "\n"))


def escape_line(text: str, limit: int | None = None) -> str:
    """Escape unsafe characters and line breaks, and shorten the text to `limit` characters."""
    shortened = text if limit is None or len(text) <= limit else text[: limit - 1] + "…"
    return escape_text(shortened).replace("\n", "\\n").replace("\t", "\\t")


def escape_json(text: str) -> str:
    """Escape unsafe characters of a JSON text. The text stays valid JSON with the same value."""
    return UNSAFE_CHARS.sub(lambda match: json.dumps(match[0])[1:-1], text)


def _escape_char(char: str) -> str:
    code_point = ord(char)
    return (
        f"\\x{code_point:02x}"
        if code_point < 0x100
        else f"\\u{code_point:04x}"
        if code_point < 0x10000
        else f"\\U{code_point:08x}"
    )
