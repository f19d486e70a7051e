"""Test requests to the client (forms, URLs, sampling and roots) with the same server code in both eras."""

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta

from behaviour.manifest import requirement
from behaviour.request_helpers import PNG, call, error_text, expect_error, text
from dovetail import (
    CallToolResult,
    Context,
    Elicit,
    ElicitationCancelled,
    ElicitationDeclined,
    ElicitURL,
    ImageContent,
    InputRequired,
    ListRoots,
    RemoteError,
    Sample,
    Server,
    TextContent,
)
from dovetail.errors import URLElicitationRequired
from dovetail.wire.content import ToolResultContent, ToolUseContent
from dovetail.wire.sampling import ModelHint, ModelPreferences, SamplingMessage, ToolChoice
from dovetail.wire.tools import Tool
from support.driver import DRAFT, STATELESS, connect
from support.mentions import mentions

ALL = {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}, "context": {}}, "roots": {"listChanged": True}}
MODEL = {"role": "assistant", "model": "m-1", "stopReason": "endTurn"}


@dataclass
class Seat:
    row: int
    letter: Literal["A", "B"] = "A"


def accept(**content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


def server(**options: Any) -> Server:
    app = Server("asking", **options)

    @app.tool
    async def book(flight: str, ctx: Context) -> str:
        seat = await ctx.elicit("Which seat?", Seat)
        assert isinstance(seat, Seat)
        return f"{flight} {seat.row}{seat.letter}"

    @app.prompt
    async def greet(ctx: Context) -> str:
        return f"Hello {await ctx.elicit('Your name?', str)}"

    @app.resource("x:{kind}/secret")
    async def secret(kind: str, ctx: Context) -> str:
        return f"{kind} {await ctx.elicit('How many?', int)}"

    return app


@requirement("asking.elicit")
async def test_tools_prompts_and_resources_ask_the_user(revision: str, transport: str) -> None:
    replies = iter([accept(row=7, letter="B"), accept(value="Ada"), accept(value=3)])
    answer = {"elicitation/create": lambda params: next(replies)}
    async with connect(server(), transport, revision, capabilities=ALL, answer=answer) as peer:
        assert text(await call(peer, "book", flight="SK1")) == "SK1 7B"
        prompt = await peer.call("prompts/get", {"name": "greet"})
        assert prompt["messages"][0]["content"]["text"] == "Hello Ada"
        resource = await peer.call("resources/read", {"uri": "x:deep/secret"})
        assert resource["contents"][0]["text"] == "deep 3"
        assert peer.rounds == (2 if revision == STATELESS else 1)
        asked = [method for method, _ in peer.server_requests]
        name = "elicitation/createDialog" if revision == DRAFT else "elicitation/create"
        assert asked == ([] if revision == STATELESS else [name] * 3)


class Color(Enum):
    RED = "r"
    DARK_BLUE = "db"


@dataclass
class Wide:
    name: Annotated[str, Meta(min_length=1, max_length=20, title="Name", description="Yours")]
    email: Annotated[str, Meta(extra_json_schema={"format": "email"})]
    age: Annotated[int, Meta(ge=0, le=150)]
    born: date
    color: Color
    colors: list[Color]
    tags: Annotated[list[Literal["a", "b"]], Meta(min_length=1)]
    note: str | None
    score: float = 9.5
    agreed: bool = True
    size: Literal["S", "M"] = "M"
    nick: str | None = None
    picks: list[Literal["x", "y"]] = field(default_factory=lambda: ["x"])


WIDE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20, "title": "Name", "description": "Yours"},
        "email": {"type": "string", "format": "email"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "born": {"type": "string", "format": "date"},
        "color": {"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "db", "title": "Dark blue"}]},
        "colors": {
            "type": "array",
            "items": {"anyOf": [{"const": "r", "title": "Red"}, {"const": "db", "title": "Dark blue"}]},
        },
        "tags": {"type": "array", "minItems": 1, "items": {"type": "string", "enum": ["a", "b"]}},
        "note": {"type": "string"},
        "score": {"type": "number", "default": 9.5},
        "agreed": {"type": "boolean", "default": True},
        "size": {"type": "string", "enum": ["S", "M"], "default": "M"},
        "nick": {"type": "string"},
        "picks": {"type": "array", "items": {"type": "string", "enum": ["x", "y"]}, "default": ["x"]},
    },
    "required": ["name", "email", "age", "born", "color", "colors", "tags"],
}


@requirement("asking.form-schema")
async def test_a_form_holds_every_kind_of_field(revision: str, transport: str) -> None:
    app = Server("forms")
    got: list[Wide] = []

    @app.tool
    async def fill(ctx: Context) -> str:
        got.append(await ctx.elicit("Fill in", Wide))
        return "filled"

    seen: list[Any] = []

    def answer(params: Any) -> Any:
        seen.append(params)
        return accept(
            name="Ada", email="a@b.c", age=36.0, born="1815-12-10", color="db", colors=["r", "db"], tags=["b"], size="S"
        )

    async with connect(app, transport, revision, capabilities=ALL, answer={"elicitation/create": answer}) as peer:
        assert text(await call(peer, "fill")) == "filled"
    assert seen == [{"mode": "form", "message": "Fill in", "requestedSchema": WIDE}]
    assert got == [
        Wide(
            "Ada",
            "a@b.c",
            36,
            date(1815, 12, 10),
            Color.DARK_BLUE,
            [Color.RED, Color.DARK_BLUE],
            ["b"],
            None,
            9.5,
            True,
            "S",
            None,
            ["x"],
        )
    ]


@requirement("asking.form-schema-june")
async def test_the_june_revision_spells_choices_its_own_way(revision: str, transport: str) -> None:
    app = Server("forms")

    @app.tool
    async def one(ctx: Context) -> str:
        return (await ctx.elicit("Which?", Color)).name

    @app.tool
    async def many(ctx: Context) -> str:
        return str(await ctx.elicit("Which?", list[Color]))

    seen: list[Any] = []

    def answer(params: Any) -> Any:
        seen.append(params)
        return accept(value="r")

    async with connect(
        app, transport, revision, capabilities={"elicitation": {}}, answer={"elicitation/create": answer}
    ) as peer:
        assert text(await call(peer, "one")) == "RED"
        titled = {"type": "string", "enum": ["r", "db"], "enumNames": ["Red", "Dark blue"]}
        schema = {"type": "object", "properties": {"value": titled}, "required": ["value"]}
        assert seen == [{"message": "Which?", "requestedSchema": schema}]
        assert (await call(peer, "many"))["isError"]
        assert len(seen) == 1


@requirement("asking.declined")
async def test_declining_and_dismissing_are_different(revision: str, transport: str) -> None:
    app = server()

    @app.tool
    async def careful(ctx: Context) -> str:
        try:
            return await ctx.elicit("Sure?", str)
        except ElicitationDeclined:
            return "declined"
        except ElicitationCancelled:
            return "dismissed"

    for action, said, error in (
        ("decline", "declined", ElicitationDeclined),
        ("cancel", "dismissed", ElicitationCancelled),
    ):
        answer = {"elicitation/create": lambda params, action=action: {"action": action}}
        async with connect(app, transport, revision, capabilities=ALL, answer=answer) as peer:
            assert text(await call(peer, "careful")) == said
            result = await call(peer, "book", flight="SK1")
            assert result["isError"] is True
            assert str(error()) in error_text(result)
            for request in (
                peer.call("prompts/get", {"name": "greet"}),
                peer.call("resources/read", {"uri": "x:a/secret"}),
            ):
                assert str(error()) in (await expect_error(request)).message


@pytest.mark.parametrize(
    "reply",
    [
        accept(),
        accept(row="seven"),
        accept(row=7, letter="C"),
        accept(row=None),
        {"action": "accept"},
        {"action": "accept", "content": [7]},
        {"action": "perhaps", "content": {"row": 7}},
        {"content": {"row": 7}},
        {},
        [],
        7,
        None,
    ],
)
@requirement("asking.invalid-answer")
async def test_an_answer_that_does_not_fit_never_reaches_the_author(reply: Any, revision: str, transport: str) -> None:
    answer = {"elicitation/create": lambda params: reply}
    async with connect(server(), transport, revision, capabilities=ALL, answer=answer) as peer:
        error = await expect_error(call(peer, "book", flight="SK1"))
        assert error.code == -32602
        assert (await expect_error(peer.request("tools/call", {"name": "none"}))).code in (-32602, -32003)


@requirement("asking.client-error")
async def test_a_client_that_answers_with_an_error_fails_only_the_question(revision: str, transport: str) -> None:
    app = Server("rejected")

    @app.tool
    async def careless(ctx: Context) -> str:
        return str(await ctx.sample("hi"))

    @app.tool
    async def careful(ctx: Context) -> str:
        try:
            return str(await ctx.list_roots())
        except RemoteError as exc:
            return f"{exc.code} {exc.message}"

    def reject(params: Any) -> Any:
        raise RemoteError(-1, "User rejected sampling request")

    answer = {"sampling/createMessage": reject, "roots/list": reject}
    async with connect(app, transport, revision, capabilities=ALL, answer=answer) as peer:
        result = await call(peer, "careless")
        assert result["isError"] is True
        assert "User rejected sampling request" in error_text(result)
        assert text(await call(peer, "careful")) == "-1 User rejected sampling request"


@requirement("asking.url")
async def test_a_user_is_sent_to_a_page(revision: str, transport: str) -> None:
    app = Server("pages")

    @app.tool
    async def login(ctx: Context) -> str:
        await ctx.elicit_url("Please log in", "https://example.com/login?state=1")
        return "on their way"

    seen: list[Any] = []

    def answer(params: Any) -> Any:
        seen.append(params)
        return {"action": "accept"} if len(seen) < 3 else {"action": "decline"}

    async with connect(app, transport, revision, capabilities=ALL, answer={"elicitation/create": answer}) as peer:
        assert text(await call(peer, "login")) == "on their way"
        assert text(await call(peer, "login")) == "on their way"
        assert (await call(peer, "login"))["isError"]
    ids = [params.pop("elicitationId", None) for params in seen]
    assert seen == [{"mode": "url", "message": "Please log in", "url": "https://example.com/login?state=1"}] * 3
    if revision == STATELESS:
        assert ids == [None] * 3
    else:
        assert len(set(ids)) == 3
        assert all(isinstance(id, str) and len(id) >= 16 for id in ids)


@requirement("asking.sample")
async def test_tools_prompts_and_resources_ask_the_model(revision: str, transport: str) -> None:
    app = Server("sampling")

    async def said(ctx: Context, question: str) -> str:
        answer = await ctx.sample(question, max_tokens=50)
        assert isinstance(answer.content, TextContent)
        return f"{answer.model} {answer.stop_reason} {answer.role}: {answer.content.text}"

    @app.tool
    async def tool(ctx: Context) -> str:
        return await said(ctx, "tool?")

    @app.prompt
    async def prompt(ctx: Context) -> str:
        return await said(ctx, "prompt?")

    @app.resource("x:sampled")
    async def resource(ctx: Context) -> str:
        return await said(ctx, "resource?")

    @app.tool
    async def full(ctx: Context) -> str:
        preferences = ModelPreferences(hints=[ModelHint(name="m")], cost_priority=0.1, intelligence_priority=1.0)
        answer = await ctx.sample(
            [
                "first",
                SamplingMessage(role="assistant", content=TextContent(text="second")),
                SamplingMessage(role="user", content=ImageContent(data=PNG, mime_type="image/png")),
            ],
            max_tokens=9,
            system_prompt="Be brief.",
            temperature=0.2,
            stop_sequences=["."],
            model_preferences=preferences,
            metadata={"k": 1},
        )
        assert isinstance(answer.content, ImageContent)
        return answer.content.mime_type

    seen: list[Any] = []

    def model(params: Any) -> Any:
        seen.append(params)
        last = params["messages"][-1]["content"]
        if last["type"] == "image":
            return MODEL | {"content": last}
        return MODEL | {"content": {"type": "text", "text": f"re {last['text']}"}}

    async with connect(app, transport, revision, capabilities=ALL, answer={"sampling/createMessage": model}) as peer:
        assert text(await call(peer, "tool")) == "m-1 endTurn assistant: re tool?"
        prompt_result = await peer.call("prompts/get", {"name": "prompt"})
        assert prompt_result["messages"][0]["content"]["text"] == "m-1 endTurn assistant: re prompt?"
        resource_result = await peer.call("resources/read", {"uri": "x:sampled"})
        assert resource_result["contents"][0]["text"] == "m-1 endTurn assistant: re resource?"
        assert text(await call(peer, "full")) == "image/png"
    assert seen[0] == {
        "messages": [{"role": "user", "content": {"type": "text", "text": "tool?"}}],
        "maxTokens": 50,
    }
    assert seen[-1] == {
        "messages": [
            {"role": "user", "content": {"type": "text", "text": "first"}},
            {"role": "assistant", "content": {"type": "text", "text": "second"}},
            {"role": "user", "content": {"type": "image", "data": PNG, "mimeType": "image/png"}},
        ],
        "maxTokens": 9,
        "systemPrompt": "Be brief.",
        "temperature": 0.2,
        "stopSequences": ["."],
        "modelPreferences": {"hints": [{"name": "m"}], "costPriority": 0.1, "intelligencePriority": 1.0},
        "metadata": {"k": 1},
    }


@requirement("asking.sample-tools")
async def test_a_model_uses_tools(revision: str, transport: str) -> None:
    app = Server("agent")
    weather = Tool(name="weather", input_schema={"type": "object", "properties": {"city": {"type": "string"}}})

    @app.tool
    async def ask(ctx: Context) -> str:
        messages: list[Any] = ["Weather in Oslo and Rome?"]
        for _ in range(3):
            answer = await ctx.sample(messages, tools=[weather], tool_choice=ToolChoice(mode="auto"))
            blocks = answer.content if isinstance(answer.content, list) else [answer.content]
            used = [block for block in blocks if isinstance(block, ToolUseContent)]
            if not used:
                return "".join(block.text for block in blocks if isinstance(block, TextContent))
            messages.append(SamplingMessage(role="assistant", content=blocks))
            results: list[Any] = [
                ToolResultContent(tool_use_id=one.id, content=[TextContent(text=f"{one.input['city']}: sun")])
                for one in used
            ]
            messages.append(SamplingMessage(role="user", content=results))
        raise AssertionError

    seen: list[Any] = []

    def model(params: Any) -> Any:
        seen.append(params)
        if len(seen) == 1:
            uses = [
                {"type": "tool_use", "id": f"u{n}", "name": "weather", "input": {"city": city}}
                for n, city in enumerate(("Oslo", "Rome"))
            ]
            return MODEL | {"content": uses, "stopReason": "toolUse"}
        results = [block["content"][0]["text"] for block in params["messages"][-1]["content"]]
        return MODEL | {"content": {"type": "text", "text": ", ".join(results)}}

    async with connect(app, transport, revision, capabilities=ALL, answer={"sampling/createMessage": model}) as peer:
        assert text(await call(peer, "ask")) == "Oslo: sun, Rome: sun"
    assert [len(params["messages"]) for params in seen] == [1, 3]
    assert seen[0]["tools"][0]["name"] == "weather"
    assert [block["toolUseId"] for block in seen[1]["messages"][2]["content"]] == ["u0", "u1"]


@requirement("asking.sample-context")
async def test_context_is_requested_only_where_it_is_supported(revision: str, transport: str) -> None:
    app = Server("context")

    @app.tool
    async def ask(ctx: Context) -> str:
        await ctx.sample("hi", include_context="thisServer")
        return "asked"

    seen: list[Any] = []

    def model(params: Any) -> Any:
        seen.append(params.get("includeContext"))
        return MODEL | {"content": {"type": "text", "text": "ok"}}

    for capabilities in ({"sampling": {"context": {}}}, {"sampling": {}}):
        answer = {"sampling/createMessage": model}
        async with connect(app, transport, revision, capabilities=capabilities, answer=answer) as peer:
            assert text(await call(peer, "ask")) == "asked"
    is_optional = revision in ("2024-11-05", "2025-03-26", "2025-06-18")
    assert seen == ["thisServer", "thisServer" if is_optional else None]


@requirement("asking.sample-progress")
async def test_a_client_reports_the_progress_of_sampling(revision: str, transport: str) -> None:
    app = Server("progress")
    reports: list[Any] = []

    @app.tool
    async def ask(ctx: Context) -> str:
        await ctx.sample("hi", progress_handler=lambda *report: reports.append(report))
        return "asked"

    tokens: list[str] = []

    def build_progress(token: str, current: Any, **details: Any) -> dict[str, Any]:
        if revision == DRAFT:
            # The request has the ID 1, because the server has sent no other request in this session.
            request_id = 1 if token == tokens[0] else 99
            return {"requestId": request_id, "progress": {"current": current} | details}
        return {"progressToken": token, "progress": current} | details

    async def model(params: Any) -> Any:
        tokens.append(params["_meta"]["progressToken"])
        await peer.notify("notifications/progress", build_progress(tokens[0], 1, total=2))
        await peer.notify("notifications/progress", build_progress(tokens[0], 2, message="more"))
        await peer.notify("notifications/progress", build_progress(tokens[0], "invalid"))
        await peer.notify("notifications/progress", build_progress("unknown", 3))
        return MODEL | {"content": {"type": "text", "text": "ok"}}

    answer = {"sampling/createMessage": model}
    async with connect(app, transport, revision, capabilities=ALL, answer=answer) as peer:
        assert text(await call(peer, "ask")) == "asked"
        await peer.notify("notifications/progress", build_progress(tokens[0], 4))
        await peer.request("ping")
    assert reports == [(1, 2, None), (2, None, "more")]


@requirement("asking.sample-blocks")
async def test_several_blocks_become_several_messages(revision: str, transport: str) -> None:
    app = Server("blocks")

    @app.tool
    async def ask(ctx: Context) -> str:
        blocks: list[Any] = [TextContent(text="one"), TextContent(text="two")]
        await ctx.sample([SamplingMessage(role="user", content=blocks)])
        return "asked"

    seen: list[Any] = []

    def model(params: Any) -> Any:
        seen.append(params["messages"])
        return MODEL | {"content": {"type": "text", "text": "ok"}}

    async with connect(app, transport, revision, capabilities=ALL, answer={"sampling/createMessage": model}) as peer:
        assert text(await call(peer, "ask")) == "asked"
    assert seen == [[{"role": "user", "content": {"type": "text", "text": one}} for one in ("one", "two")]]


@requirement("asking.roots")
async def test_the_clients_roots_are_asked_for(revision: str, transport: str) -> None:
    app = Server("roots")

    @app.tool
    async def look(ctx: Context) -> str:
        return ", ".join(f"{root.name or '?'}={root.uri}" for root in await ctx.list_roots())

    given = {"roots": [{"uri": "file:///srv/a", "name": "A"}, {"uri": "file:///tmp"}]}
    answer = {"roots/list": lambda params: given}
    async with connect(app, transport, revision, capabilities=ALL, answer=answer) as peer:
        assert text(await call(peer, "look")) == "A=file:///srv/a, ?=file:///tmp"
        given["roots"] = []
        assert text(await call(peer, "look")) == ""


@requirement("asking.together")
async def test_questions_asked_together_go_out_together(revision: str, transport: str) -> None:
    app = Server("together")

    @app.tool
    async def survey(ctx: Context) -> str:
        said = await ctx.request_inputs(name=Elicit("Name?", str), joke=Sample("A joke"), where=ListRoots())
        return f"{said['name']} {said['joke'].content.text} {said['where'][0].uri}"

    out = 0
    all_out = asyncio.Event()

    async def wait(result: Any) -> Any:
        # Nobody answers before everyone was asked: a server that asks one after the other would wait for ever.
        nonlocal out
        out += 1
        if out == 3:
            all_out.set()
        if revision != STATELESS:
            await asyncio.wait_for(all_out.wait(), 5)
        return result

    answer = {
        "elicitation/create": lambda params: wait(accept(value="Ada")),
        "sampling/createMessage": lambda params: wait(MODEL | {"content": {"type": "text", "text": "haha"}}),
        "roots/list": lambda params: wait({"roots": [{"uri": "file:///r"}]}),
    }
    async with connect(app, transport, revision, capabilities=ALL, answer=answer) as peer:
        assert text(await call(peer, "survey")) == "Ada haha file:///r"
        assert peer.rounds == (2 if revision == STATELESS else 1)
        assert out == 3


@requirement("asking.side-by-side")
async def test_questions_may_be_asked_in_tasks(revision: str, transport: str) -> None:
    app = Server("tasks")

    @app.tool
    async def gathered(ctx: Context) -> str:
        return " ".join(await asyncio.gather(*(ctx.elicit(f"Name {n}?", str, key=f"n{n}") for n in range(3))))

    @app.tool
    async def grouped(ctx: Context) -> str:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.elicit(f"Name {n}?", str, key=f"n{n}")) for n in range(3)]
        return " ".join(task.result() for task in tasks)

    answer = {"elicitation/create": lambda params: accept(value=params["message"][5])}
    async with connect(app, transport, revision, capabilities=ALL, answer=answer) as peer:
        for tool in ("gathered", "grouped"):
            assert text(await call(peer, tool)) == "0 1 2"
            assert peer.rounds <= 4


@requirement("asking.one-fails")
async def test_when_one_fails_the_others_are_withdrawn(revision: str, transport: str) -> None:
    app = Server("failing")
    asked = asyncio.Event()

    @app.tool
    async def both(ctx: Context) -> str:
        await ctx.request_inputs(name=Elicit("Name?", str), where=ListRoots())
        return "both"

    async def fail(params: Any) -> Any:
        await asyncio.wait_for(asked.wait(), 5)
        raise RemoteError(-1, "no roots today")

    async def never(params: Any) -> Any:
        asked.set()
        await asyncio.Event().wait()

    answer = {"elicitation/create": never, "roots/list": fail}
    async with connect(app, transport, revision, capabilities=ALL, answer=answer) as peer:
        result = await call(peer, "both")
        assert "no roots today" in error_text(result)
        (form,) = [one for one in peer.messages if str(one.get("method")).startswith("elicitation/")]
        assert (await peer.next_notification("notifications/cancelled"))["requestId"] == form["id"]


@requirement("asking.rounds")
async def test_a_function_asks_again_and_again(revision: str, transport: str) -> None:
    app = Server("rounds")
    runs: list[int] = []

    @app.tool
    async def guess(ctx: Context) -> str:
        runs.append(1)
        count = await ctx.elicit("How many?", int)
        names = [await ctx.elicit(f"Name {place}?", str) for place in range(count)]
        if await ctx.elicit(f"Are they {names}?", bool, key="sure"):
            return " ".join(names)
        return "no"

    asked: list[str] = []

    def answer(params: Any) -> Any:
        asked.append(params["message"])
        match params["message"].split():
            case ["How", *_]:
                return accept(value=2)
            case ["Name", place]:
                return accept(value=f"name-{place[:-1]}")
            case _:
                return accept(value=True)

    async with connect(app, transport, revision, capabilities=ALL, answer={"elicitation/create": answer}) as peer:
        assert text(await call(peer, "guess")) == "name-0 name-1"
        assert asked == ["How many?", "Name 0?", "Name 1?", "Are they ['name-0', 'name-1']?"]
        assert len(runs) == peer.rounds == (5 if revision == STATELESS else 1)


@requirement("asking.once")
async def test_a_step_runs_once_across_rounds(revision: str, transport: str) -> None:
    app = Server("once")
    paid: list[str] = []
    tokens = iter(range(100))

    @app.tool
    async def buy(item: str, ctx: Context) -> str:
        ticket = await ctx.once("ticket", lambda: {"n": next(tokens), "at": [1.5, None]})
        await ctx.elicit("Sure?", bool)

        async def pay() -> Seat:
            paid.append(item)
            return Seat(row=len(paid))

        first = await ctx.once("pay", pay, Seat)
        await ctx.elicit("Again?", bool)
        second = await ctx.once("pay", pay, Seat)
        await ctx.elicit("Really?", bool)
        assert first == second
        assert isinstance(first, Seat)
        return f"{item} {first.row} {ticket}"

    answer = {"elicitation/create": lambda params: accept(value=True)}
    async with connect(app, transport, revision, capabilities=ALL, answer=answer) as peer:
        assert text(await call(peer, "buy", item="tea")) == "tea 1 {'n': 0, 'at': [1.5, None]}"
        assert text(await call(peer, "buy", item="milk")) == "milk 2 {'n': 1, 'at': [1.5, None]}"
        assert paid == ["tea", "milk"]


@requirement("asking.explicit")
async def test_an_author_drives_the_rounds(revision: str, transport: str) -> None:
    app = Server("explicit")

    @app.tool
    async def steps(ctx: Context) -> str | InputRequired:
        match ctx.request_state:
            case None:
                return InputRequired({"name": Elicit("Name?", str), "roots": ListRoots()}, request_state="asked once")
            case "asked once":
                assert ctx.input_responses["roots"]["roots"] == [{"uri": "file:///r"}]
                return InputRequired({"color": Elicit("Color?", str)}, request_state="asked \u00fc twice")
            case state:
                given = [ctx.input_responses[key]["content"]["value"] for key in ("name", "color")]
                return f"{state}: {given}"

    answer = {
        "elicitation/create": lambda params: accept(value=params["message"].lower()),
        "roots/list": lambda params: {"roots": [{"uri": "file:///r"}]},
    }
    async with connect(app, transport, revision, capabilities=ALL, answer=answer) as peer:
        assert text(await call(peer, "steps")) == "asked \u00fc twice: ['name?', 'color?']"
        assert peer.rounds == (3 if revision == STATELESS else 1)


@requirement("asking.state-only")
async def test_a_round_may_ask_for_nothing(revision: str, transport: str) -> None:
    app = Server("state")

    @app.tool
    async def slowly(ctx: Context) -> CallToolResult | InputRequired:
        done = int(ctx.request_state or 0)
        if done < 3:
            return InputRequired(request_state=str(done + 1))
        return CallToolResult(content=[TextContent(text=f"after {done}")])

    async with connect(app, transport, revision) as peer:
        assert text(await call(peer, "slowly")) == "after 3"
        if revision == STATELESS:
            assert peer.rounds == 4
            (first,) = [one["result"] for one in peer.messages[:1]]
            assert "inputRequests" not in first
            assert isinstance(first["requestState"], str)


def needy() -> Server:
    app = Server("needy")
    questions = {"form": Elicit("?", str), "page": ElicitURL("?", "https://example.com"), "model": Sample("?")}
    questions |= {"roots": ListRoots(), "tools": Sample("?", tools=[Tool(name="t", input_schema={"type": "object"})])}

    @app.tool
    async def ask(what: list[str], ctx: Context) -> str:
        await ctx.request_inputs(**{one: questions[one] for one in what})
        return "asked"

    @app.tool
    async def explicit(what: list[str], ctx: Context) -> str | InputRequired:
        if ctx.input_responses:
            return "asked"
        return InputRequired({one: questions[one] for one in what})

    @app.tool
    def require(ctx: Context) -> str:
        ctx.require_capabilities(sampling=True, roots={}, elicitation={"url": {}})
        return "able"

    return app


async def _expect_missing(request: Awaitable[Any], revision: str, transport: str, wanted: dict[str, Any]) -> None:
    """Expect that a call fails, because these capabilities are missing."""
    if revision == STATELESS:
        error = await expect_error(request)
        assert error.code == -32021
        assert error.data == {"requiredCapabilities": wanted}
        if transport == "http":
            assert error.status_code == 400  # type: ignore[attr-defined]
        return
    result = await request
    assert result["isError"] is True
    assert all(name in error_text(result) for name in wanted)


@requirement("asking.missing-capability")
async def test_what_was_not_declared_is_not_asked(revision: str, transport: str) -> None:
    async with connect(needy(), transport, revision) as peer:
        wanted = {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}
        for tool in ("ask", "explicit"):
            await _expect_missing(call(peer, tool, what=["form", "model", "roots"]), revision, transport, wanted)
        wanted = {"sampling": {}, "roots": {}, "elicitation": {"url": {}}}
        await _expect_missing(call(peer, "require"), revision, transport, wanted)
        assert peer.server_requests == []
    async with connect(needy(), transport, revision, capabilities=ALL) as peer:
        assert text(await call(peer, "require")) == "able"


@requirement("asking.sub-capabilities")
async def test_modes_and_tools_need_their_own_word(revision: str, transport: str) -> None:
    cases: list[tuple[dict[str, Any], list[str], dict[str, Any] | None]] = [
        ({"elicitation": {}}, ["form"], None),
        ({"elicitation": {"form": {}}}, ["form"], None),
        ({"elicitation": {"url": {}}}, ["form"], {"elicitation": {"form": {}}}),
        ({"elicitation": {}}, ["page"], {"elicitation": {"url": {}}}),
        ({"elicitation": {"form": {}}}, ["page"], {"elicitation": {"url": {}}}),
        ({"elicitation": {"url": {}}}, ["page"], None),
        ({"elicitation": {"url": {}, "form": {}}}, ["page", "form"], None),
        ({"sampling": {}}, ["tools"], {"sampling": {"tools": {}}}),
        ({"sampling": {"tools": {}}}, ["tools"], None),
        ({"sampling": {"context": {}}}, ["model"], None),
        ({}, ["form", "page"], {"elicitation": {"form": {}, "url": {}}}),
        ({}, ["page", "form"], {"elicitation": {"form": {}, "url": {}}}),
        ({}, ["tools", "model"], {"sampling": {"tools": {}}}),
        ({}, ["model", "tools"], {"sampling": {"tools": {}}}),
    ]
    answer = {
        "elicitation/create": lambda params: {"action": "accept", "content": {"value": "x"}},
        "sampling/createMessage": lambda params: MODEL | {"content": {"type": "text", "text": "x"}},
    }
    for declared, what, missing in cases:
        async with connect(needy(), transport, revision, capabilities=declared, answer=answer) as peer:
            for tool in ("ask", "explicit"):
                if missing is None:
                    assert text(await call(peer, tool, what=what)) == "asked", (declared, what)
                else:
                    await _expect_missing(call(peer, tool, what=what), revision, transport, missing)


@requirement("asking.sample-balance")
async def test_unbalanced_tool_results_are_not_sent(
    revision: str, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    use = ToolUseContent(id="1", name="t", input={})
    result = ToolResultContent(tool_use_id="1", content=[])
    words = TextContent(text="x")
    asks = SamplingMessage(role="assistant", content=[use])
    refused: list[list[SamplingMessage]] = [
        [asks],
        [asks, SamplingMessage(role="user", content=words)],
        [asks, SamplingMessage(role="user", content=[result, words])],
        [asks, SamplingMessage(role="user", content=[ToolResultContent(tool_use_id="2", content=[])])],
        [SamplingMessage(role="user", content=result)],
        [asks, SamplingMessage(role="assistant", content=result)],
    ]
    app = Server("sampler")

    @app.tool
    async def sample(index: int, ctx: Context) -> str:
        messages = [*refused, [asks, SamplingMessage(role="user", content=[result])]]
        await ctx.sample(messages[index], tools=[Tool(name="t", input_schema={"type": "object"})])
        return "asked"

    answer = {"sampling/createMessage": lambda params: MODEL | {"content": {"type": "text", "text": "x"}}}
    async with connect(app, transport, revision, capabilities=ALL, answer=answer) as peer:
        with caplog.at_level(logging.CRITICAL, "dovetail"):
            for index in range(len(refused)):
                assert (await call(peer, "sample", index=index))["isError"], index
        assert peer.server_requests == []
        assert text(await call(peer, "sample", index=len(refused))) == "asked"


@requirement("asking.flat-schema")
@pytest.mark.parametrize(
    "field",
    [
        {"type": "object", "properties": {}},
        {"type": "array", "items": {"type": "object"}},
        {"type": "array", "items": {"type": "string"}},
        {"type": "array"},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"$ref": "#/$defs/x"},
        {"type": "string", "oneOf": [{"type": "string"}]},
        {"type": ["string", "null"]},
        "text",
    ],
)
async def test_a_schema_that_is_not_flat_is_not_sent(
    revision: str, transport: str, field: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = Server("forms")

    @app.tool
    async def ask(ctx: Context) -> str:
        return str(await ctx.elicit("?", {"type": "object", "properties": {"one": field}}))

    async with connect(app, transport, revision, capabilities=ALL) as peer:
        with caplog.at_level(logging.CRITICAL, "dovetail"):
            assert (await call(peer, "ask"))["isError"]
        assert peer.server_requests == []


@requirement("asking.not-yet")
async def test_what_a_revision_does_not_have_is_not_asked(revision: str, transport: str) -> None:
    app = needy()
    refusals = [["page"], ["tools"]] + ([["form"]] if revision != "2025-06-18" else [])
    async with connect(app, transport, revision, capabilities=ALL) as peer:
        for what in refusals:
            for tool in ("ask", "explicit"):
                assert (await call(peer, tool, what=what))["isError"], what
        assert peer.server_requests == []


@requirement("asking.no-way", transports=("http",))
async def test_an_answer_of_plain_json_cannot_ask(revision: str, transport: str) -> None:
    async with connect(needy(), transport, revision, capabilities=ALL, options={"response_mode": "json"}) as peer:
        for tool in ("ask", "explicit"):
            result = await call(peer, tool, what=["form"])
            assert result["isError"] is True
            assert "no session or no event stream" in error_text(result)


@requirement("asking.no-way", transports=("http-stateless",))
async def test_without_a_session_no_client_is_asked(revision: str, transport: str) -> None:
    async with connect(needy(), transport, revision, capabilities=ALL) as peer:
        for tool in ("ask", "explicit"):
            result = await call(peer, tool, what=["form"])
            assert result["isError"] is True
            assert "elicitation" in error_text(result)


@requirement("asking.partial")
async def test_missing_answers_are_asked_for_again(revision: str, transport: str) -> None:
    async with connect(needy(), transport, revision, capabilities=ALL) as peer:
        params: dict[str, Any] = {"name": "ask", "arguments": {"what": ["form", "model"]}}
        first = await peer.request("tools/call", params)
        assert first["inputRequests"].keys() == {"form", "model"}
        stray = {"elsewhere": {"anything": 1}}
        given = {"requestState": first["requestState"], "inputResponses": stray | {"form": accept(value="x")}}
        second = await peer.request("tools/call", params | given)
        assert second["inputRequests"] == {"model": first["inputRequests"]["model"]}
        model = {"model": MODEL | {"content": {"type": "text", "text": "x"}}}
        given = {"requestState": second["requestState"], "inputResponses": model}
        assert text(await peer.request("tools/call", params | given)) == "asked"
        nothing = await peer.request("tools/call", params | {"requestState": second["requestState"]})
        assert nothing["inputRequests"].keys() == {"model"}


@requirement("asking.malformed")
async def test_malformed_answers_are_an_error(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision, capabilities=ALL) as peer:
        params = {"name": "book", "arguments": {"flight": "x"}}
        for given in (
            {"inputResponses": []},
            {"inputResponses": "q1"},
            {"inputResponses": 5},
            {"requestState": 5},
            {"requestState": {}},
            {"requestState": ["x"], "inputResponses": {}},
        ):
            assert (await expect_error(peer.request("tools/call", params | given))).code == -32602, given


@requirement("asking.no-requests")
async def test_questions_stand_in_the_result(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision, capabilities=ALL) as peer:
        result = await peer.request("tools/call", {"name": "book", "arguments": {"flight": "x"}}, progress_token="t")
        assert result["resultType"] == "input_required"
        ((key, question),) = result["inputRequests"].items()
        assert isinstance(key, str)
        assert question["method"] == "elicitation/create"
        assert question["params"]["message"] == "Which seat?"
        assert isinstance(result["requestState"], str)
        assert peer.server_requests == []
        assert not any("method" in message for message in peer.messages)


@requirement("asking.own-time")
async def test_the_users_time_is_not_the_tools(revision: str, transport: str) -> None:
    app = Server("patient")

    @app.tool(timeout=0.05)
    async def ask(hang: bool, ctx: Context) -> str:
        await ctx.elicit("Sure?", bool)
        if hang:
            await asyncio.Event().wait()
        return "sure"

    async def slowly(params: Any) -> Any:
        await asyncio.sleep(0.3)
        return accept(value=True)

    async with connect(app, transport, revision, capabilities=ALL, answer={"elicitation/create": slowly}) as peer:
        assert text(await call(peer, "ask", hang=False)) == "sure"
        assert error_text(await call(peer, "ask", hang=True))


@requirement("asking.withdrawn")
async def test_a_question_of_a_cancelled_call_is_withdrawn(revision: str, transport: str) -> None:
    asked: asyncio.Queue[Any] = asyncio.Queue()

    async def never(params: Any) -> Any:
        await asked.put(params)
        await asyncio.Event().wait()

    answer = {"elicitation/create": never}
    async with connect(server(), transport, revision, capabilities={"elicitation": {}}, answer=answer) as peer:
        pending = peer.start("tools/call", {"name": "book", "arguments": {"flight": "x"}})
        await asyncio.wait_for(asked.get(), 5)
        (question,) = [one for one in peer.messages if one.get("method") == "elicitation/create"]
        await peer.cancel(pending.id)
        assert (await peer.next_notification("notifications/cancelled"))["requestId"] == question["id"]
        await peer.request("ping")
        assert not [one for one in peer.messages if one.get("id") == pending.id and "result" in one]


def fickle(debug: bool) -> Server:
    app = Server("fickle", debug=debug)
    runs = iter(range(100))

    @app.tool
    async def reword(ctx: Context) -> str:
        run = next(runs)
        return await ctx.elicit("Delete nothing?" if run == 0 else "Delete everything?", str)

    @app.tool
    async def skip(ctx: Context) -> str:
        if next(runs) == 0:
            await ctx.elicit("First?", str)
        return "skipped"

    return app


@requirement("asking.changed-mind")
async def test_an_answer_belongs_to_its_question(revision: str, transport: str) -> None:
    asked: list[str] = []

    def answer(params: Any) -> Any:
        asked.append(params["message"])
        return accept(value=params["message"])

    async with connect(
        fickle(False), transport, revision, capabilities=ALL, answer={"elicitation/create": answer}
    ) as peer:
        assert text(await call(peer, "reword")) == "Delete everything?"
        assert asked == ["Delete nothing?", "Delete everything?"]


@requirement("asking.changed-mind")
async def test_debug_mode_finds_a_function_that_asks_otherwise(
    revision: str, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = {"elicitation/create": lambda params: accept(value="yes")}
    for tool in ("reword", "skip"):
        async with connect(fickle(True), transport, revision, capabilities=ALL, answer=answer) as peer:
            with caplog.at_level(logging.CRITICAL, "dovetail"):
                result = await call(peer, tool)
            assert result["isError"] is True
            assert mentions(error_text(result), "q1")


@requirement("asking.url-complete", revisions=("2025-11-25", STATELESS, DRAFT))
async def test_the_client_learns_that_a_page_is_done(revision: str, transport: str) -> None:
    app = Server("pages")

    @app.tool
    async def link(ctx: Context) -> str:
        await ctx.elicit_url("Sign in", "https://example.com/in", elicitation_id="e-1")
        await ctx.notify_elicitation_complete("e-1")
        return "linked"

    def accept(params: Any) -> Any:
        assert params.get("elicitationId") == (None if revision == STATELESS else "e-1")
        return {"action": "accept"}

    answer = {"elicitation/create": accept, "elicitation/createDialog": accept}
    async with connect(app, transport, revision, capabilities=ALL, answer=answer) as peer:
        assert text(await call(peer, "link")) == "linked"
        expected = [("notifications/elicitation/complete", {"elicitationId": "e-1"})]
        assert peer.notifications == ([] if revision == STATELESS else expected)


@requirement("asking.url-complete-later")
async def test_the_client_learns_that_a_page_is_done_after_the_call(revision: str, transport: str) -> None:
    app = Server("pages")
    asked: list[str] = []

    @app.tool
    async def link(ctx: Context) -> str:
        asked.append(ctx.session_id)
        raise URLElicitationRequired("Sign in first", "https://example.com/in", "e-1")

    async with (
        connect(app, transport, revision, capabilities=ALL) as peer,
        connect(app, transport, revision, capabilities=ALL) as other,
    ):
        await expect_error(peer.request("tools/call", {"name": "link"}))
        await asyncio.to_thread(app.notify_elicitation_complete, "e-1", asked[0])
        app.notify_tools_changed()  # comes after the notice of the completion
        for client in (peer, other):
            await client.next_notification("notifications/tools/list_changed")
        notice = ("notifications/elicitation/complete", {"elicitationId": "e-1"})
        assert (notice in peer.notifications) == (revision in ("2025-11-25", DRAFT))
        assert notice not in other.notifications


@requirement("asking.url-required")
async def test_a_request_can_require_a_url_elicitation(revision: str, transport: str) -> None:
    app = Server("pages")

    @app.tool
    async def link() -> str:
        raise URLElicitationRequired("Sign in first", "https://example.com/in", "e-1")

    async with connect(app, transport, revision, capabilities=ALL) as peer:
        error = await expect_error(peer.request("tools/call", {"name": "link"}))
    assert error.code == (-32042 if revision in ("2025-11-25", DRAFT) else -32602)
    elicitation = {
        "mode": "url",
        "message": "Sign in first",
        "url": "https://example.com/in",
        "elicitationId": "e-1",
    }
    assert error.data == {"elicitations": [elicitation]}
