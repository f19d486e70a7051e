"""Test that untrusted text is escaped: it cannot control a terminal, and every character stays visible."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.protocol.safe_text import (
    cut_line,
    escape_line,
    escape_text,
    get_max_width,
    get_text_width,
    quote_lines,
    wrap_lines,
)

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


def test_a_bar_is_before_each_line_of_a_server() -> None:
    assert quote_lines("a\nb\x1b") == ["  │ a", "  │ b\\x1b"]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("short", ["short"]),
        ("one two three four five", ["one two three four", "    five"]),
        ("one two three four fiv", ["one two three four", "    fiv"]),
        ("one two three four f", ["one two three four f"]),
        ("a\tb", ["a   b"]),
        ("  │ one two three four", ["  │ one two three", "  │ four"]),
        ("      one two three four", ["      one two three", "      four"]),
        ("x" * 25, ["x" * 20, "    " + "x" * 5]),
        ("see https://example.com/a/long/path", ["see", "    https://example.com/a/long/path"]),
        ("see (https://example.com/a/long/path", ["see (", "    https://example.com/a/long/path"]),
        ("https://example.com/a|b/c", ["https://example.com/", "    a|b/c"]),
        ("please `dovetail lst`", ["please", "    `dovetail lst`"]),
        (
            "run `dovetail call other name=value`",
            ["run `dovetail call \\", "    other \\", "    name=value`"],
        ),
        ("  │ `dovetail call other name`", ["  │ `dovetail call", "  │ other name`"]),
        ("東京東京東京東京東京東", ["東京東京東京東京東京", "    東"]),
        ("question with answer: ", ["question with", "    answer: "]),
    ],
)
def test_lines_are_broken_at_twenty_columns(text: str, rows: list[str]) -> None:
    assert wrap_lines(text, 20).split("\n") == rows
    assert wrap_lines(text, 5) == wrap_lines(text, 20)


def test_the_width_of_a_text() -> None:
    assert [get_text_width(text) for text in ("", "abc", "東", "n\u0308", "é")] == [0, 3, 2, 1, 1]
    assert [get_max_width(text) for text in ("", "abc", "東", "§", "🎉", "é")] == [0, 3, 2, 2, 2, 2]


def test_a_line_is_cut_at_the_edge_of_the_terminal() -> None:
    assert cut_line("abcdef", 6) == "abcdef"
    assert cut_line("abcdefg", 6) == "abcd…"
    assert cut_line("東京東京", 6) == "東京…"
