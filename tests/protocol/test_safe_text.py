"""Test that untrusted text is escaped: it cannot control a terminal, and every character stays visible."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from dovetail.protocol.safe_text import escape_line, escape_text

ACTING = ("Cc", "Cf", "Cs", "Zl", "Zp")
VISIBLE = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"  # formats, yet seen


@given(st.text())
def test_nothing_acts(text: str) -> None:
    shown = escape_text(text)
    assert not [
        one for one in shown if one not in "\n\t" and unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    ]
    assert "\n" not in escape_line(text)


def test_what_acts_is_seen() -> None:
    assert escape_text("a\x1b[2J\u202eb\U000e0041\ud800\r\nc\r") == "a\\x1b[2J\\u202eb\\U000e0041\\ud800\nc\\x0d"
    assert escape_line("a\nb\tc") == "a\\nb\\tc"
    assert escape_line("x" * 100, 10) == "x" * 9 + "…"
    assert escape_text("é 東 🎉 n̈") == "é 東 🎉 n̈"
