"""Test the form of the command line and of consent: valid values, choices and repeated questions."""

import io
from collections.abc import Iterator
from typing import Any

import pytest

from dovetail.host import ConsentRequest, TerminalConsent
from dovetail.host.consent.consent import AllowWithChanges
from dovetail.protocol.safe_text import quote_lines, wrap_lines
from dovetail.terminal.form import choose, coerce, confirm, fill_form
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
    assert all(row.startswith("  │ ") for row in output.getvalue().splitlines())


@pytest.mark.parametrize(
    ("field", "typed", "value"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 40}, ["99", "0", "7"], 7),
        ({"type": "number", "exclusiveMinimum": 0}, ["0", "0.5"], 0.5),
        ({"type": "string", "pattern": "^[A-Z]{3}$"}, ["osl", "OSL"], "OSL"),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["a", "abcd", "abc"], "abc"),
        ({"type": "string", "format": "email"}, ["ada", "ada@example.com"], "ada@example.com"),
        ({"type": "string", "format": "date"}, ["today", "2026-07-28"], "2026-07-28"),
        ({"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 2}, ["1,2,3", "1,c"], ["a", "c"]),
        ({"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1}, ["", "x", "b"], ["b"]),
        ({"enum": ["red", "blue"]}, ["3", "0", "", "2"], "blue"),
        ({"enum": ["red", "blue"]}, ["BLUE"], "blue"),
        ({"enum": ["10", "2"]}, ["1", "2"], "2"),  # the value 2, not the second value
        ({"oneOf": [{"const": "a", "title": "First"}, {"const": "b", "title": "Second"}]}, ["second"], "b"),
        ({"type": "boolean"}, [""], False),
        ({"type": "boolean"}, ["perhaps", "y"], True),
        ({"type": "boolean", "default": True}, [""], True),
        ({"type": "integer", "default": 99, "maximum": 40}, ["", "7"], 7),
    ],
)
def test_a_wrong_answer_is_asked_again(field: dict[str, Any], typed: list[str], value: Any) -> None:
    lines, output = open_reader(*typed)
    assert fill_form(lines, {"properties": {"x": field}, "required": ["x"]}) == {"x": value}
    assert output.getvalue().count(": ") >= len(typed)
    assert all(row.startswith("  │ ") for row in output.getvalue().splitlines())


def test_fields_that_do_not_fit_together_are_asked_again() -> None:
    schema = {"properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "dependentRequired": {"a": ["b"]}}
    lines, _ = open_reader("x", "", "x", "y")
    assert fill_form(lines, schema) == {"a": "x", "b": "y"}


@pytest.mark.parametrize(
    ("field", "is_required", "letters"),
    [
        ({}, True, "[y/N]"),
        ({"default": False}, False, "[y/N]"),
        ({"default": True}, True, "[Y/n]"),
        ({}, False, "[y/n]"),
    ],
)
def test_yes_or_no_shows_what_an_empty_line_means(field: dict[str, Any], is_required: bool, letters: str) -> None:
    lines, output = open_reader("y")
    fill_form(lines, {"properties": {"x": {"type": "boolean", **field}}, "required": ["x"] * is_required})
    assert letters in output.getvalue()


FORGED = "Let files run its tool delete_all?\n[y]es once, for this [s]ession or [a]lways, [n]o: "


@pytest.mark.parametrize(
    "field",
    [
        {"type": f"x\n{FORGED}"},
        {"type": "integer", "default": f"1\n{FORGED}"},
        {"type": "integer", "title": f"t\n{FORGED}"},
        {"type": "integer", "description": f"d\n{FORGED}"},
        {"enum": ["1", f"2\n{FORGED}"]},
        {"type": "integer", "title": "t" + " " * 95 + FORGED},  # a terminal would break this line by itself
    ],
)
async def test_every_line_of_a_form_is_marked_as_text_of_the_server(
    field: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    schema = {"properties": {f"n\n{FORGED}": field}, "required": [f"n\n{FORGED}"]}
    typed, output = iter(["y\n", "wrong\n", "1\n"]), io.StringIO()
    message = f"Who?\n{FORGED}" + " " * 95 + FORGED
    request = ConsentRequest(kind="elicitation.form", server="a", details={"message": message, "schema": schema})
    await TerminalConsent(lambda: next(typed, ""), output).ask(request)
    summary, *rows = output.getvalue().splitlines()
    assert summary == request.summary
    assert all(row.startswith(("  │ ", "  message:", "[y]es to answer, [n]o to decline: ")) for row in rows)
    assert max(map(len, rows)) <= 120


def test_a_line_that_is_too_long_continues_after_a_bar() -> None:
    url = f"https://a.example/{'x' * 60}"
    text = "\n".join(["short", *quote_lines("a" * 30 + "\n" + "語" * 12 + f"\n\tto {url} now"), "y" * 30])
    assert wrap_lines(text, 24).split("\n") == [
        "short",
        "  │ " + "a" * 20,
        "  │ " + "a" * 10,
        "  │ " + "語" * 10,
        "  │ " + "語" * 2,
        "  │     to",
        f"  │ {url}",  # in one piece, to be copied
        "  │ now",
        "y" * 24,
        "    " + "y" * 6,
    ]


def test_long_lines_are_broken_between_words() -> None:
    command = "`dovetail auth login https://a.example/mcp --scope read`"
    text = f"error: no token, and no way to log in\n      try: run {command}, or go"
    assert wrap_lines(text, 30).split("\n") == [
        "error: no token, and no way to",
        "    log in",
        "      try: run",
        "      `dovetail auth login \\",  # can be copied
        "      https://a.example/mcp \\",
        "      --scope read`, or go",
    ]
    assert wrap_lines(text, 65).split("\n")[1:] == ["      try: run", f"      {command},", "      or go"]
    assert wrap_lines("  │ got `int` here", 17) == "  │ got `int` here"
    assert wrap_lines("  │ a text, got `int` here", 20).split("\n") == ["  │ a text, got", "  │ `int` here"]


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


@pytest.mark.parametrize(
    "filler",
    ["─", "\u03b1", "\U0001fae8", "\U0001f1e6", "䷀", "☰", "\ue000", "…"],
    ids=["line", "greek", "new emoji", "flag", "hexagram", "trigram", "private", "dots"],
)
def test_characters_that_a_terminal_may_show_wide_do_not_push_text_to_the_left_edge(filler: str) -> None:
    rows = wrap_lines("\n".join(quote_lines(filler * 70 + FORGED)), 80).split("\n")
    assert all(row.startswith("  │ ") for row in rows)
    for row in rows:
        text = row.removeprefix("  │ ")
        assert len(text) + text.count(filler) <= 76


@pytest.mark.parametrize(
    "text",
    [
        f"https://a.example/{'x' * 58}[y]es_once,_[n]o:",
        f"https://a.example/{'x' * 58}error:|sudo",
        f"https://a.example/{'x' * 5000}",
    ],
)
def test_only_a_plain_url_stays_in_one_piece(text: str) -> None:
    rows = wrap_lines("\n".join(quote_lines(text)), 80).split("\n")
    assert all(row.startswith("  │ ") and len(row) <= 80 for row in rows)


def test_a_schema_that_grows_with_each_level() -> None:
    root: dict[str, Any] = {
        "$defs": {f"d{level}": {"anyOf": [{"$ref": f"#/$defs/d{level + 1}"} for _ in range(20)]} for level in range(12)}
    }
    root["$defs"]["d12"] = {"type": "integer"}
    assert coerce("a", "3", {"$ref": "#/$defs/d0"}, root) == 3
    loop = {"$defs": {"loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"type": "null"}]}}}
    assert coerce("a", "null", {"$ref": "#/$defs/loop"}, loop) is None
