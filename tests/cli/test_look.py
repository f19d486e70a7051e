"""Test how commands look at terminals of 50, 80 and 200 columns: nothing is too wide, and colours can be off."""

import pytest

from cli.command_process import TIMEOUT_S
from cli.terminal import open_terminal

# Each row is a command, its exit code, and what a user must see.
COMMANDS = [
    (("--help",), 0, "Write a server"),
    (("record", "--help"), 0, "--steps-file"),
    (("list", "URL"), 0, "Add two numbers."),
    (("info", "URL"), 0, "listChanged"),
    (("info", "URL", "echo"), 0, "dovetail call"),
    (("doctor", "URL"), 6, "ok  "),
    (("call", "URL", "nothing"), 2, "unknown tool"),
]


@pytest.mark.parametrize("columns", [50, 80, 200])
@pytest.mark.parametrize(("words", "code", "text"), COMMANDS, ids=[" ".join(words) for words, *_ in COMMANDS])
def test_output_fits_the_terminal(
    words: tuple[str, ...], code: int, text: str, columns: int, url: str, environment: dict[str, str]
) -> None:
    with open_terminal(environment, *(url if word == "URL" else word for word in words), columns=columns) as at:
        screen = at.read_screen()
        assert at.process.wait(TIMEOUT_S) == code, screen.text
    assert text in screen.text
    assert not screen.wrapped
    assert screen.styles


@pytest.mark.parametrize(("variables", "term"), [({"NO_COLOR": "1"}, "xterm"), ({}, "dumb")])
@pytest.mark.parametrize("words", [("--help",), ("info", "URL", "add"), ("call", "URL", "add", "a=1", "--json")])
def test_no_escape_sequences_without_colours(
    variables: dict[str, str], term: str, words: tuple[str, ...], url: str, environment: dict[str, str]
) -> None:
    arguments = [url if word == "URL" else word for word in words]
    with open_terminal(environment | variables, *arguments, columns=80, term=term) as at:
        assert "\x1b" not in at.read_rest()
