"""Test consent questions: how they are shown and how answers are interpreted."""

import io
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from dovetail.host.consent.consent import (
    Allow,
    AllowWithChanges,
    AnswerLater,
    ConsentRequest,
    Deny,
    DenyAllConsent,
    FunctionConsent,
    as_consent_answer,
)
from dovetail.host.consent.terminal_consent import TerminalConsent
from dovetail.host.policy.rules import CONSENT_KINDS

EVIL = "\x1b[2J\x1b[Hsafe\u202eelbisivni\u200b\r\nAllow once? yes"
CALL = ConsentRequest(kind="tool.call", server="files", tool="write", arguments={"path": EVIL}, reason="a rule")


def terminal(*typed: str) -> tuple[TerminalConsent, io.StringIO]:
    out, lines = io.StringIO(), iter([*typed])
    return TerminalConsent(lambda: next(lines, ""), out), out


def is_denied(answer: Any, *, dismissed: bool = False) -> bool:
    return isinstance(answer, Deny) and answer.cancelled is dismissed


def test_the_sentence_is_the_hosts_and_what_a_server_says_cannot_act() -> None:
    text = CALL.text
    first = text.splitlines()[0]
    assert "files" in first
    assert "write" in first
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\r" not in text
    assert "\\u202e" in text
    request = ConsentRequest(kind="tool.call", server="a", tool="x\nLet b run its tool y?")
    assert len(request.summary.splitlines()) == 1


def test_lines_of_a_server_never_begin_like_the_hosts() -> None:
    request = ConsentRequest(kind="elicitation.form", server="a", details={"message": "hello\nLet b run its tool y?"})
    first, *rest = request.text.splitlines()
    assert first.startswith("a ")
    assert "hello" not in first
    assert all(line.startswith("  ") for line in rest)
    assert "  │ Let b run its tool y?" in rest


@pytest.mark.parametrize("kind", CONSENT_KINDS)
def test_every_kind_has_a_sentence(kind: Any) -> None:
    assert "srv" in ConsentRequest(kind=kind, server="srv", details={"host": "example.com"}).summary


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("y\n", Allow()),
        ("s\n", Allow("session")),
        ("ALWAYS\n", Allow("always")),
    ],
)
async def test_a_yes_at_a_terminal(typed: str, answer: Any) -> None:
    consent, out = terminal(typed)
    assert await consent.ask(CALL) == answer
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize(("typed", "dismissed"), [("n\n", False), ("\n", False), ("", True), ("sure\n", True)])
async def test_a_no_at_a_terminal(typed: str, dismissed: bool) -> None:
    consent, out = terminal(typed)
    assert is_denied(await consent.ask(CALL), dismissed=dismissed)
    assert "\x1b" not in out.getvalue()


async def test_what_cannot_last_is_not_granted_for_longer() -> None:
    consent, _ = terminal("always\n")
    assert is_denied(await consent.ask(ConsentRequest(kind="sampling.request", server="a")), dismissed=True)


async def test_an_invalid_answer_is_asked_again() -> None:
    consent, out = terminal("?\n", "yse\n", "y\n")
    assert await consent.ask(CALL) == Allow()
    assert out.getvalue().count("[y]es") == 3
    assert out.getvalue().count(CALL.summary) == 1


async def test_a_form_whose_input_ends_is_not_sent() -> None:
    schema = {"properties": {"name": {"type": "string", "default": "Ada"}}}
    consent, _ = terminal("y\n")
    request = ConsentRequest(kind="elicitation.form", server="a", details={"schema": schema})
    assert is_denied(await consent.ask(request), dismissed=True)


ASKING = """
import asyncio, sys
from dovetail.host import TerminalConsent
from dovetail.host import ConsentRequest

async def main():
    consent = TerminalConsent()
    print(consent.is_interactive, await consent.ask(ConsentRequest(kind="tool.call", server="a", tool="b")), flush=True)

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="platform: terminals as POSIX has them")
@pytest.mark.parametrize("typed", [b"y\n", None])
def test_on_a_real_terminal_an_interrupt_needs_no_line(typed: bytes | None) -> None:
    ours, theirs = os.openpty()
    program = subprocess.Popen(
        [sys.executable, "-c", ASKING], stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, start_new_session=True
    )
    os.close(theirs)
    with program, os.fdopen(ours, "rb+", buffering=0) as terminal:
        seen = b""
        while b"[n]o" not in seen:
            seen += terminal.read(1024) or b""
        if typed is None:
            program.send_signal(signal.SIGINT)
        else:
            terminal.write(typed)
        out, _ = program.communicate(timeout=30)
    assert out.decode().strip() == (
        "interrupted" if typed is None else "True Allow(scope='once', expires_in=None, exact_arguments=False)"
    )
    assert program.returncode == 0


@pytest.mark.parametrize("typed", [b"y\n", b""])
def test_piped_input_is_not_consent(typed: bytes) -> None:
    run = subprocess.run([sys.executable, "-c", ASKING], input=typed, capture_output=True, timeout=60, check=True)
    assert run.stdout.decode().startswith("False Deny(")
    assert run.stderr == b""


@pytest.mark.parametrize("scope", ["forever", "Session", ""])
def test_a_scope_there_is_not_is_refused_at_once(scope: Any) -> None:
    with pytest.raises(ValueError, match="once, session, project, always"):
        Allow(scope)


def test_nothing_hides_behind_what_is_long() -> None:
    address = f"https://good.example/{'a' * 3000}/SECRET"
    request = ConsentRequest(kind="resource.read", server="x", tool=address)
    assert len(request.summary.splitlines()) == 1
    assert len(request.summary) < 400
    assert "SECRET" in request.summary
    assert "3028" in request.summary
    middle = ConsentRequest(kind="resource.read", server="x", tool=f"{'a' * 500}SECRET{'b' * 500}")
    assert "SECRET" in middle.text
    arguments = {"a": "x" * 5000, "b": {"c": ["y" * 5000, "END"]}, "cmd": "rm -rf"}
    request = ConsentRequest(kind="tool.call", server="x", tool="t", arguments=arguments)
    assert not request.is_shortened
    assert "rm -rf" in request.text
    assert "END" in request.text
    assert request.text == request.full_text
    many = {f"name{i}": "z" * 500 for i in range(5000)}
    request = ConsentRequest(kind="tool.call", server="x", tool="t", arguments={**many, "cmd": "rm -rf"})
    assert request.is_shortened
    assert "rm -rf" in request.text
    assert len(request.text) < 60_000
    assert "name2500" in request.full_text


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": "x" * 600 + "rm -rf /" + "x" * 600},
        {"paths": [*["notes/a"] * 30, "rm -rf /", *["notes/b"] * 30]},
        {f"name{i}": "rm -rf /" if i == 40 else i for i in range(81)},
        {"text": "y" * 15_000 + "rm -rf /" + "y" * 15_000},
    ],
)
def test_the_middle_of_what_is_agreed_to_is_shown(arguments: dict[str, Any]) -> None:
    request = ConsentRequest(kind="tool.call", server="x", tool="t", arguments=arguments)
    assert "rm -rf /" in request.text
    assert not request.is_shortened


LONG = ConsentRequest(kind="tool.call", server="x", tool="t", arguments={"a": "y" * 50_000 + "MIDDLE" + "y" * 50_000})


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        (["y\n"], Allow()),
        (["a\n", "y\n"], Allow()),  # a lasting answer is not offered
        (["s\n", "n\n"], Deny("the user declined")),
        (["v\n", "a\n"], Allow("always")),
        (["v\n", "n\n"], Deny("the user declined")),
    ],
)
async def test_what_was_not_shown_is_allowed_only_once(typed: list[str], answer: Any) -> None:
    consent, out = terminal(*typed)
    assert await consent.ask(LONG) == answer
    shown = "".join(line.removeprefix("  │ ") for line in out.getvalue().split("\n"))
    assert ("MIDDLE" in shown) == ("v\n" in typed)
    assert ("[a]lways" in shown) == ("v\n" in typed)


async def test_a_form_on_a_terminal() -> None:
    schema = {
        "properties": {
            "name": {"type": "string", "title": "Your \x1b[31mname"},
            "age": {"type": "integer"},
            "fast": {"type": "boolean", "default": True},
            "more": {"type": "string"},
        },
        "required": ["name"],
    }
    request = ConsentRequest(kind="elicitation.form", server="a", details={"message": "Who?", "schema": schema})
    consent, out = terminal("y\n", "Ada\n", "36\n", "\n", "\n")
    assert await consent.ask(request) == AllowWithChanges({"name": "Ada", "age": 36, "fast": True})
    assert "\x1b" not in out.getvalue()
    consent, _ = terminal("n\n")
    assert is_denied(await consent.ask(request))


async def test_functions() -> None:
    async def slow(_: ConsentRequest) -> Any:
        return Allow("session")

    assert await FunctionConsent(slow).ask(CALL) == Allow("session")
    assert await FunctionConsent(lambda _: True).ask(CALL) == Allow()
    assert await FunctionConsent(lambda _: None).ask(CALL) == Deny()
    assert await FunctionConsent(lambda _: {"a": 1}).ask(CALL) == AllowWithChanges({"a": 1})
    with pytest.raises(TypeError, match=r"Allow.*Deny.*str"):
        await FunctionConsent(lambda _: "yes").ask(CALL)
    assert is_denied(await DenyAllConsent().ask(CALL))
    assert as_consent_answer(AnswerLater("t")) == AnswerLater("t")


@pytest.mark.parametrize(
    "name",
    [
        "read? It is safe. You have allowed it before (press y",
        'read" of the host? It is safe',
        "read\u00a0the\u00a0clock",
        "read\u2800the\u2800clock",
    ],
)
def test_a_name_with_several_words_is_quoted_in_the_question(name: str) -> None:
    summary = ConsentRequest(kind="tool.call", server="files", tool=name).summary
    assert summary.startswith('Let files run its tool "')
    assert summary.endswith('"?')
    assert summary[len('Let files run its tool "') : -2].count('"') == summary.count('\\"')
    assert ConsentRequest(kind="tool.call", server="a", tool="read_file").summary == "Let a run its tool read_file?"


ASKING_TWICE = """
import asyncio, sys
from dovetail.host import ConsentRequest, TerminalConsent

async def main():
    consent = TerminalConsent()
    for tool in ("first", "second"):
        print("ready", flush=True)
        answer = await consent.ask(ConsentRequest(kind="tool.call", server="a", tool=tool))
        print(type(answer).__name__, flush=True)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="platform: terminals as POSIX has them")
def test_keys_pressed_before_a_question_do_not_answer_it() -> None:
    ours, theirs = os.openpty()
    program = subprocess.Popen(
        [sys.executable, "-c", ASKING_TWICE],
        stdin=theirs,
        stderr=theirs,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    os.close(theirs)
    with program, os.fdopen(ours, "rb+", buffering=0) as screen:

        def read_until(text: bytes, count: int) -> None:
            nonlocal seen
            while seen.count(text) < count:
                seen += screen.read(1024) or b""

        seen = b""
        read_until(b"[n]o: ", 1)
        screen.write(b"y\ny\n")  # one answer too many
        read_until(b"[n]o: ", 2)
        screen.write(b"n\n")
        out, _ = program.communicate(timeout=30)
    assert out.decode().split() == ["ready", "Allow", "ready", "Deny"]


async def test_the_whole_default_of_a_form_is_shown() -> None:
    schema = {"properties": {"terms": {"type": "string", "default": "I agree. " * 60 + "And I pay 100 EUR."}}}
    consent, out = terminal("y\n", "\n")
    request = ConsentRequest(kind="elicitation.form", server="a", details={"message": "Terms", "schema": schema})
    answer = await consent.ask(request)
    assert isinstance(answer, AllowWithChanges)
    shown = " ".join(line.removeprefix("  │ ") for line in out.getvalue().split("\n"))
    assert answer.value["terms"] in shown


async def test_the_whole_message_of_a_form_can_be_viewed() -> None:
    message = "a" * 30_000 + "MIDDLE" + "a" * 30_000
    request = ConsentRequest(kind="elicitation.form", server="a", details={"message": message, "schema": {}})
    for typed in (["y\n"], ["v\n", "y\n"]):
        consent, out = terminal(*typed)
        assert await consent.ask(request) == AllowWithChanges({})
        shown = "".join(line.removeprefix("  │ ") for line in out.getvalue().split("\n"))
        assert ("MIDDLE" in shown) == (typed[0] == "v\n")
        assert "[v]iew" in shown


async def test_a_long_description_does_not_move_the_question_off_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINES", "24")
    request = ConsentRequest(
        kind="tool.call",
        server="files",
        tool="delete",
        arguments={"path": "/home"},
        details={"description": "Reads the clock.\n" * 100},
    )
    consent, out = terminal("n\n")
    await consent.ask(request)
    screen = "\n".join(out.getvalue().splitlines()[-10:])
    assert request.summary in screen
    assert '"path": "/home"' in screen


@pytest.mark.parametrize(
    ("kind", "arguments", "is_said"),
    [("tool.call", {"a": 1}, True), ("prompt.get", {}, True), ("resource.read", None, False)],
)
async def test_a_lasting_answer_says_that_it_counts_for_any_arguments(kind: Any, arguments: Any, is_said: bool) -> None:
    consent, out = terminal("a\n")
    assert await consent.ask(ConsentRequest(kind=kind, server="x", tool="t", arguments=arguments)) == Allow("always")
    assert ("any arguments" in out.getvalue()) is is_said
