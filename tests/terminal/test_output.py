"""Test that text of a server cannot control a terminal, however it is printed."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.terminal import output

HIDING = "\u200b\u200d\u2060\ufeff\u202e\u2066\u061c\u00ad\u3164\ufe0f\U000e0041\u2028"


def acting(said: str) -> list[str]:
    """Characters that do something other than stand there."""
    return [one for one in said if unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp") and one not in "\n\t"]


@given(st.text(alphabet=st.characters(exclude_categories=["Cn", "Co"])))
def test_what_is_printed_acts_on_nothing(said: str) -> None:
    arabic_numbers = {chr(number) for number in (*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2)}
    left = [one for one in acting(output.escape_text(said)) if one not in arabic_numbers]
    assert not [one for one in left if not 0x110B0 <= ord(one) <= 0x1343F and not 0x1BCA0 <= ord(one) <= 0x1BCA3]
    assert "\n" not in output.escape_line(said)
    assert len(output.format_table([("x", f"{said}x")], ("a", "b")).splitlines()) == 2


@pytest.mark.parametrize("mark", [*HIDING, "\x1b", "\x07", "\r", "\x9b", "\x7f", "\ud800"])
def test_every_dangerous_mark_is_shown_by_its_number(mark: str) -> None:
    assert output.escape_text(f"a{mark}b") == f"a{output.escape_line(mark)}b"
    assert f"{ord(mark):x}" in output.escape_text(mark)
    assert json.loads(output.format_json({"a": mark})) == {"a": mark}
    assert mark not in output.format_json({"a": mark})
    assert mark not in output.format_json_line({"a": mark})


def test_lines_that_end_as_on_windows_are_lines() -> None:
    assert output.escape_text("one\r\ntwo\n\tthree") == "one\ntwo\n\tthree"


def test_a_megabyte_of_a_name_stays_small() -> None:
    assert len(output.format_table([("x" * 1_000_000, "y" * 1_000_000)], ("a", "b"))) < 2000


def test_columns_line_up_with_wide_letters() -> None:
    shown = output.format_table([("日本", "x"), ("ab", "y")], ("n", "m")).splitlines()
    assert shown[1] == "日本  x"
    assert shown[2] == "ab    y"
