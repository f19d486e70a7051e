"""Test how commands look at terminals of 50, 80 and 200 columns: nothing is too wide, and colours can be off."""

import pytest

from cli.command_process import build_series, split_series
from cli.screen import Screen
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
    (("read", "URL", "format://note"), 0, " • a point"),
]
PLAIN_COMMANDS = [("--help",), ("info", "URL", "add"), ("call", "URL", "add", "a=1", "--json")]


@pytest.fixture(scope="module")
def screens(request: pytest.FixtureRequest, url: str, environment: dict[str, str]) -> list[tuple[int, Screen]]:
    """Run all commands at a terminal with a number of columns. Return each exit code and screen."""
    commands = [[url if word == "URL" else word for word in words] for words, *_ in COMMANDS]
    with open_terminal(environment, command=build_series(commands), columns=request.param) as at:
        return [(code, Screen(request.param).feed(output)) for code, output in split_series(at.read_rest())]


@pytest.mark.parametrize("screens", [50, 80, 200], indirect=True)
@pytest.mark.parametrize("index", range(len(COMMANDS)), ids=[" ".join(words) for words, *_ in COMMANDS])
def test_output_fits_the_terminal(index: int, screens: list[tuple[int, Screen]]) -> None:
    (_, expected_code, text), (code, screen) = COMMANDS[index], screens[index]
    assert code == expected_code, screen.text
    assert text in screen.text
    assert not screen.wrapped
    assert screen.styles


@pytest.mark.parametrize(("variables", "term"), [({"NO_COLOR": "1"}, "xterm"), ({}, "dumb")])
def test_no_escape_sequences_without_colours(
    variables: dict[str, str], term: str, url: str, environment: dict[str, str]
) -> None:
    commands = [[url if word == "URL" else word for word in words] for words in PLAIN_COMMANDS]
    with open_terminal(environment | variables, command=build_series(commands), columns=80, term=term) as at:
        results = split_series(at.read_rest())
    assert [code for code, _ in results] == [0] * len(commands)
    assert all("\x1b" not in output for _, output in results)
