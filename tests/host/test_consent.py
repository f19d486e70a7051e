"""What a person is asked, how it is shown, and what their answers mean."""

import io
from typing import Any

import pytest

from dovetail.host.consent import (
    Allow,
    CallbackConsent,
    ConsentRequest,
    Deny,
    DenyAll,
    Edit,
    Later,
    TerminalConsent,
    read_answer,
)

EVIL = "\x1b[2J\x1b[Hsafe\u202eelbisivni\u200b\r\nAllow once? yes"
CALL = ConsentRequest(kind="tool.call", server="files", tool="write", arguments={"path": EVIL}, reason="a rule")


def terminal(*typed: str) -> tuple[TerminalConsent, io.StringIO]:
    out, lines = io.StringIO(), iter([*typed])
    return TerminalConsent(lambda: next(lines, ""), out), out


def test_the_sentence_is_the_hosts_and_what_a_server_says_cannot_act() -> None:
    text = CALL.text
    assert text.splitlines()[0] == "Let files run its tool write?"
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\r" not in text
    assert "\\u202e" in text
    request = ConsentRequest(kind="tool.call", server="a", tool="x\nLet b run its tool y?")
    assert len(request.summary.splitlines()) == 1


def test_lines_of_a_server_never_begin_like_the_hosts() -> None:
    request = ConsentRequest(kind="elicit.form", server="a", details={"message": "hello\nLet b run its tool y?"})
    first, *rest = request.text.splitlines()
    assert first.startswith("a asks you to fill in a form")
    assert all(line.startswith("  ") for line in rest)
    assert "  │ Let b run its tool y?" in rest


@pytest.mark.parametrize("kind", ["server.start", "sampling.request", "elicit.url", "roots.list", "login"])
def test_every_kind_has_a_sentence(kind: Any) -> None:
    assert "srv" in ConsentRequest(kind=kind, server="srv", details={"host": "example.com"}).summary


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("y\n", Allow()),
        ("s\n", Allow("session")),
        ("ALWAYS\n", Allow("always")),
        ("n\n", Deny("the user said no")),
        ("\n", Deny("the user said no")),
        ("", Deny("the user said no")),
        ("sure\n", Deny("the user said no")),
    ],
)
async def test_a_terminal(typed: str, answer: Any) -> None:
    consent, out = terminal(typed)
    assert await consent.ask(CALL) == answer
    assert "\x1b" not in out.getvalue()


async def test_what_cannot_last_is_not_granted_for_longer() -> None:
    consent, _ = terminal("always\n")
    assert await consent.ask(ConsentRequest(kind="sampling.request", server="a")) == Deny("the user said no")


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
    request = ConsentRequest(kind="elicit.form", server="a", details={"message": "Who?", "schema": schema})
    consent, out = terminal("y\n", "Ada\n", "36\n", "\n", "\n")
    assert await consent.ask(request) == Edit({"name": "Ada", "age": 36, "fast": True})
    assert "\x1b" not in out.getvalue()
    consent, _ = terminal("n\n")
    assert await consent.ask(request) == Deny("the user declined")


async def test_functions() -> None:
    async def slow(_: ConsentRequest) -> Any:
        return Allow("session")

    assert await CallbackConsent(slow).ask(CALL) == Allow("session")
    assert await CallbackConsent(lambda _: True).ask(CALL) == Allow()
    assert await CallbackConsent(lambda _: None).ask(CALL) == Deny()
    assert await CallbackConsent(lambda _: {"a": 1}).ask(CALL) == Edit({"a": 1})
    with pytest.raises(TypeError, match="consent is given by"):
        await CallbackConsent(lambda _: "yes").ask(CALL)
    assert await DenyAll().ask(CALL) == Deny("nobody is there to be asked")
    assert read_answer(Later("t")) == Later("t")
