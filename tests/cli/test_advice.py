"""Advice is given in options of the command line."""

import pytest

from dovetail import MCPError, RequestTimeout
from dovetail.cli.advice import advise, spelled
from dovetail.client.conversation import _LONGER, _LONGER_READ  # pyright: ignore[reportPrivateUsage]
from dovetail.client.knowing import _ASKED_BY  # pyright: ignore[reportPrivateUsage]
from dovetail.transports.command import advice


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        (_LONGER["tools/call"], "--timeout SECONDS gives it longer"),
        (_LONGER_READ, "--timeout SECONDS gives it longer"),
        ("leave out era= and revision=, or name a handshake revision", "leave out --era and --revision, or name"),
        ("leave out revision=, or pass revision='2025-11-25'", "leave out --revision, or give --revision 2025-11-25"),
        (f"what there is, you learn by {_ASKED_BY['resources/list']}", "by dovetail list, with the same target"),
        (advice(1, "TOKEN_HERE is missing", {}, {"TOKEN_HERE": "x"}) or "", "Pass it: --env TOKEN_HERE"),
        (advice(1, "KeyError: 'WANTED'", {}, {}) or "", "give it: --env WANTED=VALUE"),
        ("raise ClientLimits(answer=...)", ""),
        ("give the client a handler for it: sample=", "dovetail chat has a model: --model"),
        ("give the client a handler for it: roots=", "give them in a program of your own: Client(roots=[…])"),
        ("look into the server's log", "look into the server's log"),
    ],
)
def test_as_options(said: str, instead: str) -> None:
    assert instead in spelled(said)
    assert "=..." not in spelled(said)
    assert "()" not in spelled(said)


def test_what_no_option_does_is_not_advised() -> None:
    late: MCPError = RequestTimeout("late").at(hint="raise ClientLimits(items=...)")
    advise(late)
    assert str(late) == "late"


def test_a_lost_call_is_not_told_to_write_python() -> None:
    said = spelled(
        "look whether it took effect before calling again, or use call_tool(..., retry=True) if it may run twice"
    )
    assert said == "look whether it took effect before calling again"
