"""Test the user's input handlers: capabilities, validation, defaults and allowed URLs."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import Client, Context, Server
from dovetail.client.handlers import InputHandlers
from dovetail.errors import ElicitationCancelled, ElicitationDeclined, InputRequestError, InvalidParams, MethodNotFound
from dovetail.protocol.http_checks import is_safe_url
from dovetail.wire.codec import to_plain
from dovetail.wire.elicitation import ElicitResult
from dovetail.wire.input_required import InputRequest
from dovetail.wire.roots import Root
from support.mentions import mentions

SCHEMA = {
    "type": "object",
    "properties": {"row": {"type": "integer", "default": 4}, "name": {"type": "string"}},
    "required": ["name"],
}
FORM = {"mode": "form", "message": "?", "requestedSchema": SCHEMA}


async def elicited(given: Any, params: dict[str, Any] | None = None) -> Any:
    async def answer(_: Any) -> Any:
        if isinstance(given, type):
            raise given
        return given

    return to_plain(
        await InputHandlers(elicitation_handler=answer, url_elicitation_handler=answer).answer(
            "elicitation/create", params or FORM
        )
    )


def test_what_is_declared_is_what_can_be_answered() -> None:
    def declared(**handlers: Any) -> Any:
        return to_plain(InputHandlers(**handlers).capabilities())

    assert declared() == {}
    assert declared(elicitation_handler=print) == {"elicitation": {"form": {}}}
    assert declared(url_elicitation_handler=print) == {"elicitation": {"url": {}}}
    assert declared(sampling_handler=print, roots=[]) == {"sampling": {"tools": {}}, "roots": {"listChanged": True}}


async def test_answers_to_a_form() -> None:
    accepted = {"action": "accept", "content": {"name": "a", "row": 4}}
    assert await elicited({"name": "a"}) == accepted
    assert await elicited(ElicitResult(action="accept", content={"name": "a"})) == accepted
    assert await elicited({"name": "a", "row": 5}) == {"action": "accept", "content": {"name": "a", "row": 5}}
    assert (await elicited(None))["action"] == "decline"
    assert (await elicited(ElicitationDeclined))["action"] == "decline"
    assert (await elicited(ElicitationCancelled))["action"] == "cancel"
    assert (await elicited(ElicitResult(action="cancel")))["action"] == "cancel"
    for wrong in ({}, {"name": 5}, {"name": "a", "row": "x"}):
        with pytest.raises(InputRequestError, match=r"name|row"):
            await elicited(wrong)
    with pytest.raises(InputRequestError, match=r"elicit.*str"):
        await elicited("a")


async def test_a_form_whose_schema_is_a_trap_is_answered_unchecked() -> None:
    trap = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=(a+))\\1$"}}}
    assert (await elicited({"a": "b"}, FORM | {"requestedSchema": trap}))["content"] == {"a": "b"}


async def test_plain_functions_callables_and_coroutines_answer() -> None:
    class Callable:
        async def __call__(self, question: Any) -> dict[str, str]:
            return {"name": "a"}

    for handler in (lambda _: {"name": "a"}, Callable()):
        answer = await InputHandlers(elicitation_handler=handler).answer("elicitation/create", FORM)
        assert to_plain(answer)["content"]["name"] == "a"


async def test_visits() -> None:
    visit = {"mode": "url", "message": "?", "url": "https://a.example/", "elicitationId": "1"}
    assert await elicited(None, visit) == {"action": "accept"}
    assert await elicited(False, visit) == {"action": "decline"}
    with pytest.raises(InvalidParams, match=r"url.*https"):
        await elicited(None, visit | {"url": "javascript:alert(1)"})
    with pytest.raises(InvalidParams):
        await InputHandlers(elicitation_handler=print).answer("elicitation/create", visit)
    with pytest.raises(MethodNotFound):
        await InputHandlers().answer("elicitation/create", visit)


async def test_samples_and_roots(tmp_path: Path) -> None:
    asked = {"messages": [], "maxTokens": 5}
    answering = InputHandlers(
        sampling_handler=lambda _: "text", roots=lambda: [tmp_path, "file:///a", str(tmp_path), Root(uri="FILE:///b")]
    )
    sampled = to_plain(await answering.answer("sampling/createMessage", asked))
    assert sampled["content"] == {"type": "text", "text": "text"}
    listed = to_plain(await answering.answer("roots/list", {}))
    assert [one["uri"] for one in listed["roots"]] == [tmp_path.as_uri(), "file:///a", tmp_path.as_uri(), "FILE:///b"]
    with pytest.raises(InputRequestError, match="int"):
        await InputHandlers(sampling_handler=lambda _: 5).answer("sampling/createMessage", asked)
    with pytest.raises(InputRequestError, match="int"):
        await InputHandlers(roots=lambda: [5]).answer("roots/list", {})
    for method in ("sampling/createMessage", "roots/list", "none/such"):
        with pytest.raises(MethodNotFound):
            await InputHandlers().answer(method, {})


async def test_all_questions_of_a_round() -> None:
    answering = InputHandlers(elicitation_handler=lambda question: {"name": question.message})
    questions = {key: InputRequest(method="elicitation/create", params=FORM | {"message": key}) for key in ("b", "a")}
    answers = await answering.answer_all(questions)
    assert [(key, answer["content"]["name"]) for key, answer in answers.items()] == [("b", "b"), ("a", "a")]
    with pytest.raises(InputRequestError) as caught:
        await answering.answer_all(
            {
                "x": InputRequest(
                    method="elicitation/create", params={"mode": "url", "message": "", "url": "https://a.example"}
                )
            }
        )
    assert mentions(caught.value.hint, "url_elicitation_handler=")
    with pytest.raises(InputRequestError):
        await answering.answer_all({"x": InputRequest(method="elicitation/create", params={"message": 5})})


@pytest.mark.parametrize(
    "url", ["https://a.example/x?y=1#z", "http://localhost:3000/", "http://127.0.0.1/", "http://[::1]:1/"]
)
def test_urls_to_show(url: str) -> None:
    assert is_safe_url(url)


@pytest.mark.parametrize(
    "url",
    ["javascript:alert(1)", "file:///etc/passwd", "http://a.example/", "https://user@a.example/", "https://", "", "//a",
     "data:text/html,x", "https://a.example/\u202etxt", "https://a.example/\n", "http://[::1", "vbscript:x", "ftp://a/",
     "http://127.0.0.1.a.example/", "http://localhost@a.example/", "https://evil.example\\.good.example/",
     "https://evil.example\\@good.example/", "https://g\u043e\u043ed.example/", "https://a.example/ x", "https://a.example/<"],
)  # fmt: skip
def test_urls_not_to_show(url: str) -> None:
    assert not is_safe_url(url)


@given(st.text())
def test_any_text_is_judged_without_a_fault(text: str) -> None:
    assert is_safe_url(text) in (True, False)


@pytest.mark.parametrize("method", ["elicitation/create", "sampling/createMessage"])
async def test_a_question_without_parameters_is_none(method: str) -> None:
    answering = InputHandlers(elicitation_handler=print, sampling_handler=print)
    with pytest.raises(InputRequestError, match="message"):
        await answering.answer_all({"a": InputRequest(method=method)})


def raising() -> Any:
    yield "file:///a"
    raise OSError("gone")


SAMPLE = {"messages": [], "maxTokens": 1}


@pytest.mark.parametrize(
    ("handlers", "method", "params", "said"),
    [
        ({"elicitation_handler": lambda _: {"name": object()}}, "elicitation/create", FORM, "elicitation_handler"),
        ({"elicitation_handler": lambda _: {"name": "\ud800"}}, "elicitation/create", FORM, "elicitation_handler"),
        (
            {"elicitation_handler": lambda _: ElicitResult(action="decline", content={"a": object()})},
            "elicitation/create",
            FORM,
            "elicitation_handler",
        ),
        ({"sampling_handler": lambda _: "\ud800"}, "sampling/createMessage", SAMPLE, "sampling_handler"),
        ({"roots": lambda: 5}, "roots/list", {}, "roots.*int"),
        ({"roots": lambda: None}, "roots/list", {}, "roots"),
        ({"roots": lambda: "https://\ud800"}, "roots/list", {}, "roots"),
        ({"roots": raising}, "roots/list", {}, "roots.*OSError: gone"),
    ],
)  # fmt: skip
async def test_an_answer_that_cannot_be_sent_names_the_handler(
    handlers: Any, method: str, params: Any, said: str
) -> None:
    with pytest.raises(InputRequestError, match=said):
        await InputHandlers(**handlers).answer(method, params)


@pytest.mark.parametrize("revision", ["2025-06-18", "2026-07-28"])
@pytest.mark.parametrize("tool", ["ask", "where"])
async def test_an_answer_that_cannot_be_sent_is_reported_to_the_caller(tool: str, revision: str) -> None:
    app = Server("it")

    @app.tool
    async def ask(context: Context) -> str:
        return str(await context.elicit("?", SCHEMA))

    @app.tool
    async def where(context: Context) -> str:
        return str(await context.list_roots())

    def elicit(_: Any) -> Any:
        return {"name": object()}

    async with (
        asyncio.timeout(20),
        Client(app, protocol_version=revision, elicitation_handler=elicit, roots=lambda: 5) as client,
    ):
        with pytest.raises(InputRequestError, match=r"elicit|roots"):
            await client.call_tool(tool)
