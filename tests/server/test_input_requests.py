"""Test requests for input, sent directly or in rounds: the same questions and answers."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from dovetail import (
    CallToolResult,
    Context,
    Elicit,
    ElicitationCancelled,
    ElicitationDeclined,
    ElicitURL,
    InputRequired,
    ListRoots,
    RemoteError,
    Sample,
    Server,
    ServerLimits,
    TextContent,
)
from dovetail.errors import InvalidParams, MissingClientCapability
from dovetail.server.input_requests import (
    AnyInputRequest,
    InputRoundEnded,
    build_input_request,
    find_missing_capabilities,
    read_input_response,
)
from dovetail.server.server import get_dispatcher
from dovetail.wire.codec import convert
from dovetail.wire.input_required import InputRequest
from dovetail.wire.lifecycle import ClientCapabilities
from dovetail.wire.roots import Root
from dovetail.wire.sampling import SamplingMessage, ToolChoice
from dovetail.wire.tools import Tool
from server.direct_client import LATEST_HANDSHAKE, NEWEST, Client, error_text, text
from support.mentions import mentions

BOTH = pytest.mark.parametrize("revision", [NEWEST, LATEST_HANDSHAKE])


@dataclass
class Seat:
    row: int
    window: bool = False


def accept(content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


def app_with(function: Any, **options: Any) -> Server:
    app = Server("asker", **options)
    app.add_tool(function, name="run")
    return app


def declaring(capabilities: dict[str, Any]) -> ClientCapabilities:
    return convert(capabilities, ClientCapabilities)


# Questions


@pytest.mark.parametrize(
    ("question", "method", "params"),
    [
        (
            Elicit("Seat?", Seat),
            "elicitation/create",
            {
                "mode": "form",
                "message": "Seat?",
                "requestedSchema": {
                    "type": "object",
                    "properties": {"row": {"type": "integer"}, "window": {"type": "boolean", "default": False}},
                    "required": ["row"],
                },
            },
        ),
        (ElicitURL("Go", "https://a"), "elicitation/create", {"mode": "url", "message": "Go", "url": "https://a"}),
        (ListRoots(), "roots/list", None),
        (
            Sample("Hello", max_tokens=9, system_prompt="Be kind", temperature=0.5, stop_sequences=["."]),
            "sampling/createMessage",
            {
                "messages": [{"role": "user", "content": {"type": "text", "text": "Hello"}}],
                "maxTokens": 9,
                "systemPrompt": "Be kind",
                "temperature": 0.5,
                "stopSequences": ["."],
            },
        ),
    ],
)
def test_a_question_as_it_is_sent(question: AnyInputRequest, method: str, params: Any) -> None:
    assert build_input_request(question) == InputRequest(method=method, params=params)


def test_what_can_be_put_to_a_model() -> None:
    block, message = TextContent(text="a"), SamplingMessage(role="assistant", content=TextContent(text="b"))
    assert build_input_request(Sample(block)).params["messages"] == [
        {"role": "user", "content": {"type": "text", "text": "a"}}
    ]
    assert build_input_request(Sample(["a", message])).params["messages"] == [
        {"role": "user", "content": {"type": "text", "text": "a"}},
        {"role": "assistant", "content": {"type": "text", "text": "b"}},
    ]
    assert build_input_request(Sample("a")).params["maxTokens"] == 1024


FORM, URL = Elicit("?", Seat), ElicitURL("?", "https://a")
PLAIN, WITH_CHOICE = Sample("?"), Sample("?", tool_choice=ToolChoice())
WITH_TOOLS = Sample("?", tools=[Tool(name="t", input_schema={"type": "object"})])


@pytest.mark.parametrize(
    ("question", "declared", "missing"),
    [
        (FORM, {}, {"elicitation": {"form": {}}}),
        (FORM, {"elicitation": {}}, {}),
        (FORM, {"elicitation": {"form": {}}}, {}),
        (FORM, {"elicitation": {"url": {}}}, {"elicitation": {"form": {}}}),
        (FORM, {"elicitation": {"form": {}, "url": {}}}, {}),
        (URL, {}, {"elicitation": {"url": {}}}),
        (URL, {"elicitation": {}}, {"elicitation": {"url": {}}}),
        (URL, {"elicitation": {"url": {}}}, {}),
        (PLAIN, {}, {"sampling": {}}),
        (PLAIN, {"sampling": {}}, {}),
        (WITH_TOOLS, {}, {"sampling": {"tools": {}}}),
        (WITH_TOOLS, {"sampling": {}}, {"sampling": {"tools": {}}}),
        (WITH_TOOLS, {"sampling": {"tools": {}}}, {}),
        (WITH_CHOICE, {"sampling": {}}, {"sampling": {"tools": {}}}),
        (WITH_CHOICE, {"sampling": {"tools": {}}}, {}),
        (ListRoots(), {}, {"roots": {}}),
        (ListRoots(), {"roots": {}}, {}),
    ],
)
def test_what_a_client_must_have_declared(question: AnyInputRequest, declared: Any, missing: Any) -> None:
    assert find_missing_capabilities(question, declaring(declared)) == missing


def test_what_comes_back_is_read_as_what_was_asked_for() -> None:
    assert read_input_response(FORM, accept({"row": 3})) == Seat(3)
    assert read_input_response(Elicit("?", int), accept({"value": 5})) == 5
    assert read_input_response(URL, {"action": "accept"}) is None
    assert read_input_response(ListRoots(), {"roots": [{"uri": "file:///a"}]}) == [Root(uri="file:///a")]
    sampled = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "yes"}}
    answer = read_input_response(PLAIN, sampled)
    assert (answer.model, answer.content) == ("m", TextContent(text="yes"))


@pytest.mark.parametrize("question", [FORM, URL])
def test_a_no_is_not_an_answer(question: AnyInputRequest) -> None:
    with pytest.raises(ElicitationDeclined):
        read_input_response(question, {"action": "decline"})
    with pytest.raises(ElicitationCancelled):
        read_input_response(question, {"action": "cancel"})


@pytest.mark.parametrize(
    ("question", "raw"),
    [
        (FORM, accept({"row": "three"})),
        (FORM, accept({})),
        (FORM, accept(None)),
        (FORM, {"action": "maybe"}),
        (FORM, {}),
        (FORM, None),
        (FORM, []),
        (URL, {"content": {}}),
        (PLAIN, {"role": "assistant"}),
        (PLAIN, accept({})),
        (ListRoots(), {"roots": "all"}),
        (ListRoots(), None),
    ],
)
def test_an_answer_that_does_not_fit_is_the_clients_mistake(question: AnyInputRequest, raw: Any) -> None:
    with pytest.raises(InvalidParams, match="Invalid"):
        read_input_response(question, raw)


# One question, both eras


async def book(flight: str, ctx: Context) -> str:
    seat = await ctx.elicit(f"Seat on {flight}?", Seat)
    return f"{flight} row {seat.row}"


@BOTH
async def test_a_question_in_one_line(revision: str) -> None:
    client = Client(app_with(book), revision, answers={"elicitation/create": lambda _: accept({"row": 3})})
    assert text(await client.call_with_input_rounds("run", {"flight": "OS1"})) == "OS1 row 3"
    ((method, params),) = client.asked
    assert (method, params["message"]) == ("elicitation/create", "Seat on OS1?")


@BOTH
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_no_reaches_the_model_unless_the_author_catches_it(revision: str, action: str) -> None:
    client = Client(app_with(book), revision, answers={"elicitation/create": lambda _: {"action": action}})
    assert error_text(await client.call_with_input_rounds("run", {"flight": "OS1"}))


@BOTH
async def test_an_answer_that_does_not_fit_refuses_the_call(revision: str) -> None:
    client = Client(app_with(book), revision, answers={"elicitation/create": lambda _: accept({"row": "x"})})
    with pytest.raises(InvalidParams, match="row"):
        await client.call_with_input_rounds("run", {"flight": "OS1"})


@BOTH
async def test_several_questions_at_once_are_one_round(revision: str) -> None:
    async def run(ctx: Context) -> str:
        got = await ctx.request_inputs(seat=Elicit("Seat?", Seat), sure=Elicit("Sure?", bool), roots=ListRoots())
        return f"{got['seat'].row} {got['sure']} {len(got['roots'])}"

    answers = {
        "elicitation/create": lambda params: accept({"value": True} if "Sure" in params["message"] else {"row": 7}),
        "roots/list": lambda _: {"roots": []},
    }
    client = Client(app_with(run), revision, answers=answers)
    if revision == NEWEST:
        first = await client.call("run")
        assert set(first["inputRequests"]) == {"seat", "sure", "roots"}
        assert first["inputRequests"]["roots"] == {"method": "roots/list"}
    assert text(await client.call_with_input_rounds("run")) == "7 True 0"


@BOTH
async def test_questions_asked_side_by_side(revision: str) -> None:
    async def run(ctx: Context) -> str:
        left, right = await asyncio.gather(ctx.elicit("Left?", int), ctx.elicit("Right?", int))
        return f"{left} {right}"

    answers = {"elicitation/create": lambda params: accept({"value": 1 if params["message"] == "Left?" else 2})}
    client = Client(app_with(run), revision, answers=answers)
    assert text(await client.call_with_input_rounds("run")) == "1 2"
    assert len(client.asked) == 2


@BOTH
@pytest.mark.parametrize("fault", [True, False])
async def test_questions_asked_in_a_task_group(revision: str, fault: bool) -> None:
    async def run(ctx: Context) -> str:
        async with asyncio.TaskGroup() as group:
            left, right = group.create_task(ctx.elicit("Left?", int)), group.create_task(ctx.elicit("Right?", int))
            if fault:
                group.create_task(failing())
        return f"{left.result()} {right.result()}"

    async def failing() -> None:
        raise ValueError("of the author's")

    answers = {"elicitation/create": lambda params: accept({"value": 1 if params["message"] == "Left?" else 2})}
    client = Client(app_with(run), revision, answers=answers)
    result = await client.call_with_input_rounds("run")
    if fault:
        assert mentions(error_text(result), "run")
    else:
        assert text(result) == "1 2"


@BOTH
async def test_questions_in_resources_and_prompts(revision: str) -> None:
    app = Server("asker")

    @app.prompt
    async def greet(ctx: Context) -> str:
        return f"Hello {await ctx.elicit('Name?', str)}"

    @app.resource("a:b")
    async def read(ctx: Context) -> str:
        return f"Hello {await ctx.elicit('Name?', str)}"

    for method, params in (("prompts/get", {"name": "greet"}), ("resources/read", {"uri": "a:b"})):
        client = Client(app, revision, answers={"elicitation/create": lambda _: accept({"value": "Ann"})})
        result = await client.request(method, params)
        if revision == NEWEST:
            assert result["resultType"] == "input_required"
            given = {"inputResponses": {"q1": accept({"value": "Ann"})}, "requestState": result["requestState"]}
            result = await client.request(method, params | given)
        assert "Hello Ann" in str(result)


@BOTH
async def test_every_capability_a_set_of_questions_needs_is_named(revision: str) -> None:
    async def run(ctx: Context) -> None:
        await ctx.request_inputs(seat=Elicit("?", Seat), roots=ListRoots(), model=Sample("?"))

    client = Client(app_with(run), revision, capabilities={"roots": {}})
    if revision == LATEST_HANDSHAKE:
        result = await client.call("run")
        assert result["isError"]
        assert all(name in error_text(result) for name in ("elicitation.form", "sampling"))
    else:
        with pytest.raises(MissingClientCapability) as caught:
            await client.call("run")
        assert caught.value.data == {"requiredCapabilities": {"elicitation": {"form": {}}, "sampling": {}}}
    assert client.asked == []


async def test_an_unanswered_question_is_not_an_ordinary_exception() -> None:
    async def run(ctx: Context) -> str:
        try:
            return await ctx.elicit("?", str)
        except Exception:
            return "caught"

    assert not issubclass(InputRoundEnded, Exception)
    assert (await Client(app_with(run)).call("run"))["resultType"] == "input_required"


async def test_a_question_an_author_swallowed_all_the_same_is_a_fault() -> None:
    async def run(ctx: Context) -> str:
        try:
            return await ctx.elicit("?", str)
        except BaseException:
            return "caught"

    assert mentions(error_text(await Client(app_with(run)).call("run")), "run")


# Rounds


class Steps:
    """A tool that asks twice, and counts how often each of its steps ran."""

    def __init__(self) -> None:
        self.runs = 0
        self.paid = 0

    async def __call__(self, ctx: Context) -> str:
        """Book."""
        self.runs += 1
        seat = await ctx.elicit("Seat?", Seat)
        receipt = await ctx.once("pay", self._pay)
        name = await ctx.elicit("Name?", str, key="name")
        return f"{seat.row} {receipt['number']} {name}"

    async def _pay(self) -> dict[str, int]:
        self.paid += 1
        return {"number": self.paid}


async def test_each_round_runs_from_the_top_and_brings_the_earlier_answers() -> None:
    steps = Steps()
    client = Client(app_with(steps))
    first = await client.call("run")
    assert (first["resultType"], list(first["inputRequests"])) == ("input_required", ["q1"])
    second = await client.call("run", requestState=first["requestState"], inputResponses={"q1": accept({"row": 3})})
    assert list(second["inputRequests"]) == ["name"]
    third = await client.call(
        "run", requestState=second["requestState"], inputResponses={"name": accept({"value": "Ann"})}
    )
    assert (third["resultType"], text(third)) == ("complete", "3 1 Ann")
    assert (steps.runs, steps.paid) == (3, 1)


async def test_where_the_client_is_asked_directly_there_is_one_run() -> None:
    steps = Steps()
    answers = {
        "elicitation/create": lambda params: accept({"value": "Ann"} if "Name" in params["message"] else {"row": 3})
    }
    assert text(await Client(app_with(steps), LATEST_HANDSHAKE, answers=answers).call("run")) == "3 1 Ann"
    assert (steps.runs, steps.paid) == (1, 1)


async def test_a_round_without_an_answer_asks_again() -> None:
    client = Client(app_with(book))
    first = await client.call("run", {"flight": "OS1"})
    again = await client.call("run", {"flight": "OS1"}, requestState=first["requestState"])
    assert again["inputRequests"] == first["inputRequests"]
    more = await client.call("run", {"flight": "OS1"}, requestState=again["requestState"], inputResponses={"q9": {}})
    assert more["inputRequests"] == first["inputRequests"]


async def test_answers_are_taken_without_a_state() -> None:
    client = Client(app_with(book))
    result = await client.call("run", {"flight": "OS1"}, inputResponses={"q1": accept({"row": 3})})
    assert text(result) == "OS1 row 3"


@pytest.mark.parametrize("change", [{"arguments": {"flight": "OS2"}}, {"name": "other"}])
async def test_a_state_is_for_the_same_call(change: dict[str, Any]) -> None:
    app = app_with(book)
    app.add_tool(book, name="other")
    client = Client(app)
    state = (await client.call("run", {"flight": "OS1"}))["requestState"]
    params = {"name": "run", "arguments": {"flight": "OS1"}} | change
    with pytest.raises(InvalidParams, match="requestState"):
        await client.request("tools/call", params | {"requestState": state})


async def test_a_state_is_for_the_same_caller_and_server() -> None:
    app = app_with(book)
    state = (await Client(app, principal="alice").call("run", {"flight": "OS1"}))["requestState"]
    for stranger in (Client(app, principal="bob"), Client(app), Client(app_with(book), principal="alice")):
        with pytest.raises(InvalidParams, match="requestState"):
            await stranger.call("run", {"flight": "OS1"}, requestState=state)


async def test_servers_with_one_secret_take_each_others_states() -> None:
    secrets = ["a secret of many bytes"]
    state = (await Client(app_with(book, secret_keys=secrets)).call("run", {"flight": "OS1"}))["requestState"]
    other = Client(app_with(book, secret_keys=["a newer secret of bytes", *secrets]))
    result = await other.call("run", {"flight": "OS1"}, requestState=state, inputResponses={"q1": accept({"row": 3})})
    assert text(result) == "OS1 row 3"


async def test_a_state_expires() -> None:
    client = Client(app_with(book, limits=ServerLimits(request_state_ttl=0.0)))
    state = (await client.call("run", {"flight": "OS1"}))["requestState"]
    with pytest.raises(InvalidParams, match="requestState"):
        await client.call("run", {"flight": "OS1"}, requestState=state)


@pytest.mark.parametrize(
    "params",
    [
        {"requestState": 5},
        {"requestState": {}},
        {"requestState": "junk"},
        {"inputResponses": []},
        {"inputResponses": "x"},
    ],
)
@pytest.mark.parametrize("asks", [True, False])
async def test_malformed_answers_are_refused_even_without_a_question(params: dict[str, Any], asks: bool) -> None:
    async def quiet(flight: str) -> str:
        return flight

    client = Client(app_with(book if asks else quiet))
    with pytest.raises(InvalidParams):
        await client.call("run", {"flight": "OS1"}, **params)


async def test_an_answer_to_another_question_is_asked_again() -> None:
    prices = iter([100, 200, 200])

    async def run(ctx: Context) -> str:
        price = next(prices)
        sure = await ctx.elicit(f"Pay {price}?", bool)
        await ctx.elicit("Name?", str)
        return f"{price} {sure}"

    client = Client(app_with(run))
    first = await client.call("run")
    second = await client.call(
        "run", requestState=first["requestState"], inputResponses={"q1": accept({"value": True})}
    )
    assert second["inputRequests"]["q1"]["params"]["message"] == "Pay 200?"


async def test_in_debug_mode_another_question_is_a_fault() -> None:
    prices = iter([100, 200])

    async def run(ctx: Context) -> str:
        return str(await ctx.elicit(f"Pay {next(prices)}?", bool))

    client = Client(app_with(run, debug=True))
    first = await client.call("run")
    result = await client.call("run", requestState=first["requestState"], inputResponses={})
    assert mentions(error_text(result), "q1")


async def test_in_debug_mode_a_question_left_out_is_a_fault() -> None:
    runs = []

    async def run(ctx: Context) -> str:
        runs.append(1)
        return "quick" if len(runs) > 1 else await ctx.elicit("Name?", str)

    client = Client(app_with(run, debug=True))
    first = await client.call("run")
    result = await client.call("run", requestState=first["requestState"], inputResponses={})
    assert mentions(error_text(result), "q1")


# Once


@pytest.mark.parametrize("kind", ["a function", "a coroutine", "a future"])
async def test_a_step_runs_once_whatever_it_is(kind: str) -> None:
    made: list[int] = []

    async def later() -> list[int]:
        made.append(1)
        return made

    def step() -> Any:
        if kind == "a function":
            made.append(1)
            return made
        return later() if kind == "a coroutine" else asyncio.ensure_future(later())

    async def run(ctx: Context) -> str:
        first, again = await ctx.once("k", step), await ctx.once("k", step)
        await ctx.elicit("?", str)
        return f"{first} {again}"

    client = Client(app_with(run), answers={"elicitation/create": lambda _: accept({"value": ""})})
    assert text(await client.call_with_input_rounds("run")) == "[1] [1]"
    assert made == [1]


async def test_a_remembered_value_comes_back_as_its_type() -> None:
    seen = []

    async def run(ctx: Context) -> str:
        seen.append((await ctx.once("a", lambda: Seat(3)), await ctx.once("b", lambda: Seat(4), Seat)))
        await ctx.elicit("?", str)
        return "done"

    client = Client(app_with(run), answers={"elicitation/create": lambda _: accept({"value": ""})})
    await client.call_with_input_rounds("run")
    assert seen == [({"row": 3, "window": False}, Seat(4))] * 2


async def test_a_step_that_fails_is_not_remembered() -> None:
    attempts = []

    def step() -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("not yet")
        return "now"

    async def run(ctx: Context) -> str:
        try:
            return await ctx.once("k", step)
        except ValueError:
            return await ctx.once("k", step)

    assert text(await Client(app_with(run)).call("run")) == "now"


# Directly


async def test_an_error_of_the_client_reaches_the_model() -> None:
    def refuse(_: Any) -> Any:
        raise RemoteError(-1, "Nobody is there")

    client = Client(app_with(book), LATEST_HANDSHAKE, answers={"elicitation/create": refuse})
    assert "Nobody is there" in error_text(await client.call("run", {"flight": "OS1"}))


async def test_when_one_question_fails_the_others_are_withdrawn() -> None:
    ends: list[str] = []

    async def run(ctx: Context) -> None:
        await ctx.request_inputs(seat=Elicit("Seat?", Seat), where=ListRoots())

    async def ask(method: str, params: dict[str, Any]) -> Any:
        if method == "roots/list":
            raise RemoteError(-1, "no roots")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("withdrawn")
            raise

    client = Client(app_with(run), LATEST_HANDSHAKE)
    exchange = client.exchange("tools/call", {"name": "run"})
    exchange.ask = ask
    assert "no roots" in error_text(await client.run(exchange))
    assert ends == ["withdrawn"]


async def test_each_question_has_its_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, passed = asyncio.get_running_loop(), 0.0
    real_time = loop.time
    monkeypatch.setattr(loop, "time", lambda: real_time() + passed)
    answers = {name: loop.create_future() for name in ("first", "second", "third")}
    asked = {name: asyncio.Event() for name in answers}
    ask_next = {name: asyncio.Event() for name in answers}

    async def run(ctx: Context) -> None:
        async def put(name: str) -> None:
            await ask_next[name].wait()
            await ctx.elicit(name, str)

        await asyncio.gather(*(put(name) for name in answers))

    async def ask(method: str, params: dict[str, Any]) -> Any:
        asked[params["message"]].set()
        return await answers[params["message"]]

    async def pass_time(seconds: float) -> None:
        nonlocal passed
        passed += seconds
        for _ in range(20):
            await asyncio.sleep(0)

    client = Client(app_with(run, limits=ServerLimits(request_state_ttl=600)), LATEST_HANDSHAKE)
    exchange = client.exchange("tools/call", {"name": "run"})
    exchange.ask = ask
    call = asyncio.create_task(get_dispatcher(client.app).handle(exchange))
    for name, before in (("first", None), ("second", "first"), ("third", "second")):
        ask_next[name].set()
        await asked[name].wait()
        if before is not None:
            answers[before].set_result(accept({"value": "Ada"}))
        await pass_time(0)
        await pass_time(400)
        assert not call.done()
    await pass_time(400)  # the third has waited for 800 seconds
    result = await call
    assert isinstance(result, CallToolResult)
    assert result.is_error


async def test_questions_are_asked_in_the_words_of_the_revision() -> None:
    client = Client(app_with(book), "2025-06-18", answers={"elicitation/create": lambda _: accept({"row": 3})})
    assert text(await client.call("run", {"flight": "OS1"})) == "OS1 row 3"
    assert "mode" not in client.asked[0][1]
    draft = Client(app_with(book), "draft", answers={"elicitation/createDialog": lambda _: accept({"row": 3})})
    assert text(await draft.call("run", {"flight": "OS1"})) == "OS1 row 3"
    assert (await Client(app_with(book), "2025-03-26").call("run", {"flight": "OS1"}))["isError"]


@pytest.mark.parametrize("explicit", [True, False])
async def test_a_handshake_client_that_cannot_be_asked_gets_an_error_and_no_result_it_does_not_know(
    explicit: bool,
) -> None:
    """As over HTTP, where a client takes only plain JSON: there is no stream to ask on."""

    async def run(flight: str, ctx: Context) -> Any:
        return InputRequired({"seat": FORM}) if explicit else await book(flight, ctx)

    client = Client(app_with(run), LATEST_HANDSHAKE)
    exchange = client.exchange("tools/call", {"name": "run", "arguments": {"flight": "OS1"}})
    exchange.ask = None
    assert "no event stream" in error_text(await client.run(exchange))


# Authors who drive the rounds themselves


async def driven(ctx: Context) -> Any:
    if ctx.request_state is None:
        return InputRequired({"seat": FORM, "where": ListRoots()}, request_state="one")
    if ctx.request_state == "one":
        row = ctx.input_responses["seat"]["content"]["row"]
        return InputRequired({"name": Elicit("Name?", str)}, request_state=f"two {row}")
    return f"{ctx.request_state} {ctx.input_responses['name']['content']['value']}"


ANSWERS = {
    "elicitation/create": lambda params: accept({"value": "Ann"} if params["message"] == "Name?" else {"row": 3}),
    "roots/list": lambda _: {"roots": []},
}


@BOTH
async def test_an_author_may_drive_the_rounds(revision: str) -> None:
    client = Client(app_with(driven), revision, answers=ANSWERS)
    assert text(await client.call_with_input_rounds("run")) == "two 3 Ann"
    assert [method for method, _ in client.asked] == ["elicitation/create", "roots/list", "elicitation/create"]


async def test_a_round_may_only_want_to_be_called_again() -> None:
    async def run(ctx: Context) -> Any:
        return "done" if ctx.request_state else InputRequired(request_state="once more")

    client = Client(app_with(run))
    first = await client.call("run")
    assert "inputRequests" not in first
    assert "once more" not in first["requestState"]
    assert text(await client.call("run", requestState=first["requestState"])) == "done"
    assert text(await Client(app_with(run), LATEST_HANDSHAKE).call("run")) == "done"


@BOTH
async def test_what_an_author_asks_for_must_have_been_declared(revision: str) -> None:
    client = Client(app_with(driven), revision, capabilities={"roots": {}}, answers=ANSWERS)
    if revision == LATEST_HANDSHAKE:
        assert (await client.call("run"))["isError"]
        return
    with pytest.raises(MissingClientCapability):
        await client.call("run")


def test_to_need_nothing_is_a_mistake() -> None:
    for nothing in ((), ({},)):
        with pytest.raises(ValueError, match="state"):
            InputRequired(*nothing)
    assert InputRequired(request_state="").request_state == ""


# Answers of earlier rounds


async def pay(ctx: Context) -> str:
    amount = await ctx.elicit("How much?", int, key="amount")
    await ctx.once("checked", lambda: amount <= 5)
    await ctx.elicit("Sure?", bool, key="sure")
    return f"paid {amount}"


async def test_an_answer_of_an_earlier_round_cannot_be_replaced() -> None:
    client = Client(app_with(pay))
    first = await client.call("run")
    second = await client.call(
        "run", requestState=first["requestState"], inputResponses={"amount": accept({"value": 5})}
    )
    answers = {"sure": accept({"value": True}), "amount": accept({"value": 1_000_000})}
    result = await client.call("run", requestState=second["requestState"], inputResponses=answers)
    assert text(result) == "paid 5"


async def test_a_function_that_asks_again_gets_the_new_answer() -> None:
    async def pick(ctx: Context) -> Any:
        answer = ctx.input_responses.get("number")
        if answer is None or answer["content"]["value"] < 3:
            return InputRequired({"number": Elicit("At least 3?", int)})
        return f"{answer['content']['value']}"

    client = Client(app_with(pick))
    result = await client.call("run")
    for number in (1, 2, 7):
        assert result["resultType"] == "input_required"
        responses = {"number": accept({"value": number})}
        result = await client.call("run", requestState=result["requestState"], inputResponses=responses)
    assert text(result) == "7"


# States of other servers


def shop(name: str, **options: Any) -> Server:
    app = Server(name, **options)

    @app.tool
    async def buy(ctx: Context) -> str:
        paid = await ctx.once("paid", lambda: name)
        await ctx.elicit("Sure?", bool, key="sure")
        return f"{name} sells, paid at {paid}"

    @app.prompt("buy")
    async def buy_prompt(ctx: Context) -> str:
        await ctx.elicit("Sure?", bool, key="sure")
        return name

    return app


SURE = {"sure": accept({"value": True})}


async def buy(app: Server, tool: str, state: str | None = None) -> dict[str, Any]:
    params = {} if state is None else {"requestState": state, "inputResponses": SURE}
    return await Client(app).call(tool, **params)


@pytest.mark.parametrize(
    ("sealed_by", "sent_to"),
    [("cheap_buy", "dear_buy"), ("cheap_buy", "buy"), ("buy", "cheap_buy"), ("twin_buy", "dear_buy")],
)
async def test_a_state_of_a_mounted_server_is_refused_by_other_servers(sealed_by: str, sent_to: str) -> None:
    app = shop("mall")
    app.mount(shop("cheap"), "cheap")
    app.mount(shop("dear"), "dear")
    app.mount(shop("dear"), "twin")
    state = (await buy(app, sealed_by))["requestState"]
    with pytest.raises(InvalidParams):
        await buy(app, sent_to, state)
    name = {"cheap_buy": "cheap", "twin_buy": "dear"}.get(sealed_by, "mall")
    assert text(await buy(app, sealed_by, state)) == f"{name} sells, paid at {name}"


async def test_a_state_of_a_mounted_prompt_is_valid_for_its_mount_only() -> None:
    app = Server("mall")
    app.mount(shop("cheap"), "cheap")
    app.mount(shop("dear"), "dear")
    state = (await Client(app).request("prompts/get", {"name": "cheap_buy"}))["requestState"]
    params = {"requestState": state, "inputResponses": SURE}
    with pytest.raises(InvalidParams):
        await Client(app).request("prompts/get", params | {"name": "dear_buy"})
    result = await Client(app).request("prompts/get", params | {"name": "cheap_buy"})
    assert result["messages"][0]["content"]["text"] == "cheap"


async def test_a_state_is_refused_by_another_server_with_the_same_secret() -> None:
    keys = ["correct horse battery staple"]
    state = (await buy(shop("cheap", secret_keys=keys), "buy"))["requestState"]
    with pytest.raises(InvalidParams):
        await buy(shop("dear", secret_keys=keys), "buy", state)
    assert text(await buy(shop("cheap", secret_keys=keys), "buy", state)) == "cheap sells, paid at cheap"


async def test_two_mounts_deep_a_state_opens_and_only_there() -> None:
    app, middle = Server("outer"), Server("middle")
    middle.mount(shop("cheap"), "a")
    app.mount(middle, "m")
    app.mount(shop("cheap"), "m.a")
    state = (await buy(app, "m_a_buy"))["requestState"]
    with pytest.raises(InvalidParams):
        await buy(app, "m.a_buy", state)
    assert text(await buy(app, "m_a_buy", state)) == "cheap sells, paid at cheap"
