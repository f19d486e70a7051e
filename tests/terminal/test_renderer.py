"""Test the layout for terminals: nothing is too wide, and no text of a server is markup, a link or a sequence."""

import io
import json
import re
import shlex
import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.screen import Screen
from dovetail.terminal import output
from dovetail.terminal.live import ProgressBar

MARKUP = "[bold red]x[/] [link=https://evil.example]y[/link] :smile: {z}"
WIDTHS = [50, 80, 200]
at_all_widths = pytest.mark.parametrize("columns", WIDTHS)


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def format_at(columns: int, function: Callable[[], str], **variables: str) -> str:
    """Call a function while stdout is a terminal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", Terminal())
        patch.delenv("NO_COLOR", raising=False)
        for name, value in ({"COLUMNS": str(columns), "TERM": "xterm"} | variables).items():
            patch.setenv(name, value)
        return function()


def show(text: str, columns: int) -> Screen:
    """Check that the text contains only own sequences, and that no row is too wide."""
    screen = Screen(columns).feed(text.replace("\n", "\r\n"))
    assert not screen.wrapped
    return screen


@at_all_widths
@pytest.mark.parametrize(
    "function",
    [
        lambda: output.format_table([(MARKUP, "x")], ("name", "text"), is_last_cut=False),
        lambda: output.format_page(MARKUP, "", "", []),
        lambda: output.format_page("x", "", MARKUP, []),
        lambda: output.format_page("x", "", "", [("Arguments", [("x", "y", "z", MARKUP)])]),
        lambda: output.format_page("x", "", "", [("Example", MARKUP)]),
        lambda: output.format_markdown(MARKUP),
    ],
)
def test_text_is_never_markup(function: Callable[[], str], columns: int) -> None:
    shown = show(format_at(columns, function), columns)
    assert re.sub(r"\s+", "", MARKUP) in re.sub(r"\s+", "", shown.text)


@at_all_widths
def test_markdown_has_no_links_and_no_entities(columns: int) -> None:
    text = "# Head\n\nSee [here](https://a.example/&#x202e;) &#x202e;&#27;[2J ![i](https://b.example) <u>h</u>\n\n---\n"
    shown = show(format_at(columns, lambda: output.format_markdown(text)), columns).text
    assert shown.startswith("Head")
    assert "https://a.example/" in shown.replace("\n", "")
    assert "&#x202e;" in shown
    assert "<u>h</u>" in shown


@pytest.mark.parametrize("state", ["ready", "failed", "working", "disabled", "completed (error)"])
def test_states_have_colours(state: str) -> None:
    text = format_at(80, lambda: output.format_table([("a", state)], ("server", "state")))
    assert re.search(rf"\x1b\[\d+m{re.escape(state)} *\x1b\[0m", text)
    plain = format_at(80, lambda: output.format_table([("a", state)], ("server", "state")), NO_COLOR="1")
    assert plain == f"server  state\na       {state}"


@at_all_widths
def test_a_wide_table_becomes_blocks_in_a_narrow_terminal(columns: int) -> None:
    rows = [("forecast", "city [days]", "Weather for a city, with sun, wind and rain for each of the next ten days.")]
    text = format_at(columns, lambda: output.format_table(rows, ("tool", "arguments", "description")))
    screen = show(text, columns)
    assert screen.rows[0].split() == ["tool", "arguments", "description"][: 1 if columns < 60 else 3]
    assert any(row.endswith("…") for row in screen.rows) == (columns == 80)


def test_a_table_that_would_break_a_name_becomes_blocks() -> None:
    rows = [("search_products_in_the_catalogue", "query maximum_price [category]", "Search the products. " * 3)]
    table = format_at(80, lambda: output.format_table(rows, ("tool", "arguments", "description")), NO_COLOR="1")
    heading, name, *lines = table.split("\n")
    assert (heading, name) == ("tool", rows[0][0])
    assert [line.split()[0] for line in lines[:2]] == ["arguments", "description"]


def test_a_long_command_can_be_copied() -> None:
    words = ["dovetail", "call", "store.py", "ship", '\'address:={"street": "a b", "town": "text"}\'', "'items:={}'"]
    command = format_at(40, lambda: output.wrap_command(words))
    assert max(map(len, command.split("\n"))) <= 38
    assert [" ".join(word.split()) for word in shlex.split(command.replace("\\\n", ""))] == [
        word.strip("'") for word in words
    ]


def test_json_has_colours_and_can_be_copied() -> None:
    value = {"a": [1, -2.5e3, True, None, 'say "x"\\'], "b: c": {"d\x1b": "e" * 300}}
    text = format_at(50, lambda: output.format_json(value))
    assert json.loads(re.sub(r"\x1b\[[\d;]*m", "", text)) == value
    assert text.count("\x1b[36m") == 3


@pytest.mark.parametrize(
    ("text", "mime_type", "is_formatted"),
    [
        ('{"a": 1}', None, True),
        ("# Title\n\n**bold**\n", None, True),
        ("# Title\n", "text/markdown", True),
        ("# Title\n", "text/Markdown; charset=utf-8", True),
        ("# Title\n\n**bold**\n", "text/plain", False),
        ('{"a": 1}', "application/feed+json", True),
        ('{"a": 1}', "text/x-python", False),
        ("# a comment\nx = 1\n", None, False),
        ("- a\n- b\n", None, False),
        ("[not json\n", None, False),
        ("{'a': 1}\n", None, False),
    ],
)
def test_content_is_formatted_if_it_is_json_or_markdown(text: str, mime_type: str | None, is_formatted: bool) -> None:
    assert (format_at(80, lambda: output.format_content(text, mime_type)) != text) == is_formatted


@pytest.mark.parametrize(
    "text",
    ["[" * 19_000, "*a_" * 6_000, "> " * 9_000, "- " * 9_000, "`" * 19_000, f"{'|a' * 4_000}\n{'|-' * 4_000}\n|1"],
    ids=["brackets", "emphasis", "quotes", "lists", "code", "columns"],
)
@pytest.mark.timeout(30)
def test_hostile_markdown_neither_fails_nor_takes_long(text: str) -> None:
    show(format_at(50, lambda: output.format_markdown(text)), 50)


@settings(max_examples=30)
@given(st.lists(st.text(max_size=120), min_size=1, max_size=4), st.sampled_from(WIDTHS))
def test_any_text_fits(cells: list[str], columns: int) -> None:
    headers = [f"column {number}" for number in range(len(cells))]
    sections = [("A", [tuple(cells)]), ("B", cells[0])]
    for text in (
        format_at(columns, lambda: output.format_table([cells] * 2, headers)),
        format_at(columns, lambda: output.format_table([cells] * 2, headers, is_last_cut=False)),
        format_at(columns, lambda: output.format_page(cells[0], cells[-1], "\n".join(cells), sections)),
    ):
        rows = re.sub(r"\x1b\[[\d;]*m", "", text).split("\n")
        assert all(len(row) <= columns and not UNSAFE.search(row) for row in rows)


UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def test_text_that_is_slow_to_search() -> None:
    text = "[" * 199_000
    assert format_at(80, lambda: output.format_content(text)) == text


@pytest.mark.parametrize(("done", "total"), [(1e308, 1e308), (1.0, 5e-324), (1.0, 0.0), (1.0, -1.0)])
def test_any_progress_can_be_drawn(done: float, total: float, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    progress_bar = ProgressBar()
    progress_bar.draw(done, total)
    progress_bar.clear()
    assert f"{done:g} of {total:g}" in stream.getvalue()
