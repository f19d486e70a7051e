"""Test the form of the command line and of consent: valid values, choices and repeated questions."""

import io
from collections.abc import Iterator
from typing import Any

import pytest

from dovetail.host import ConsentRequest, TerminalConsent
from dovetail.host.consent.consent import AllowWithChanges
from dovetail.terminal.form import choose, confirm, fill_form
from dovetail.terminal.line_reader import LineReader

SCHEMA: dict[str, Any] = {
    "properties": {
        "age": {"type": "integer", "title": "Age\x1b[2J", "description": "In years.\nLet files run?"},
        "size": {"enum": ["small", "large"], "default": "small"},
        "note": {"type": "string"},
    },
    "required": ["age"],
}


def open_reader(*typed: str) -> tuple[LineReader, io.StringIO]:
    lines: Iterator[str] = iter(f"{line}\n" for line in typed)
    output = io.StringIO()
    return LineReader(lambda: next(lines, ""), output), output


def test_values_are_converted_and_asked_again_until_they_fit() -> None:
    lines, output = open_reader("old", "", "36", "huge", "large", "")
    assert fill_form(lines, SCHEMA) == {"age": 36, "size": "large"}
    assert output.getvalue().count("Age\\x1b[2J: ") == 3
    assert all(row.startswith("  ") for row in output.getvalue().splitlines())


def test_fields_with_an_answer_are_not_asked_for() -> None:
    lines, output = open_reader("", "")
    assert fill_form(lines, SCHEMA, {"age": 7}) == {"age": 7, "size": "small"}
    assert "Age" not in output.getvalue()


async def test_consent_fills_in_the_same_form() -> None:
    typed = iter(["y\n", "old\n", "36\n", "large\n", "\n"])
    consent = TerminalConsent(lambda: next(typed, ""), io.StringIO())
    request = ConsentRequest(kind="elicitation.form", server="a", details={"message": "Who?", "schema": SCHEMA})
    assert await consent.ask(request) == AllowWithChanges({"age": 36, "size": "large"})


def test_choices() -> None:
    lines, output = open_reader("maybe", "YES")
    assert choose(lines, "? ", {"yes": 1, "no": 2}, "yes or no\n") == 1
    assert output.getvalue() == "? yes or no\n? "
    assert confirm(open_reader("")[0], "Send?", default=True) is True
    assert confirm(open_reader("x", "n")[0], "Send?", default=True) is False
    with pytest.raises(EOFError):
        confirm(open_reader()[0], "Send?", default=True)
