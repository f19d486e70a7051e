"""Test the context: the information about a call, and its messages to the caller."""

import asyncio
import concurrent.futures
import threading
from typing import Any

import pytest

from dovetail import Context, ElicitationDeclined, Server, TextContent, testing
from dovetail.errors import MissingClientCapability
from dovetail.protocol.exchange import Caller, IncomingExchange
from dovetail.protocol.request_state import RequestStateSealer
from dovetail.server.input_requests import InputRequests
from dovetail.wire.lifecycle import Implementation
from dovetail.wire.logs import LEVELS
from server.direct_client import LATEST_HANDSHAKE, NEWEST, Client, error_text, text
from support.mentions import mentions


def app_with(function: Any, **options: Any) -> Server:
    app = Server("talker", **options)
    app.add_tool(function, name="run")
    return app


def context(exchange: IncomingExchange) -> Context:
    return Context(exchange, InputRequests(exchange, "talker", RequestStateSealer(), 60, False), "talker", {"db": 1})


# About the call


def test_a_context_tells_about_the_call() -> None:
    caller = Caller(NEWEST, True, principal="alice", client_info=Implementation(name="chat", version="3"))
    exchange = IncomingExchange("x", "tools/call", {}, {"com.example/a": 1}, caller, {b"host": b"h"})
    ctx = context(exchange)
    assert (ctx.request_id, ctx.protocol_version, ctx.principal) == ("x", NEWEST, "alice")
    assert (ctx.client_info, ctx.client_capabilities) == (caller.client_info, caller.client_capabilities)
    assert (ctx.meta, ctx.headers, ctx.lifespan) == ({"com.example/a": 1}, {"host": "h"}, {"db": 1})
    assert (ctx.input_responses, ctx.request_state) == ({}, None)


def test_where_there_are_no_headers_there_are_none() -> None:
    assert context(IncomingExchange(1, "tools/call", {}, {}, Caller(LATEST_HANDSHAKE, False))).headers == {}


# Progress


async def progressing(ctx: Context) -> str:
    for step in (0, 1, 1, 0.5, 2, -1, 2.5):
        await ctx.progress(step, total=3, message=f"at {step}")
    return "done"


@pytest.mark.parametrize("token", ["t", 7, 0])
@pytest.mark.parametrize("revision", [NEWEST, LATEST_HANDSHAKE])
async def test_progress_rises_under_the_callers_token(revision: str, token: Any) -> None:
    client = Client(app_with(progressing), revision)
    result = await client.request("tools/call", {"name": "run"}, progressToken=token)
    assert text(result) == "done"
    assert [one["method"] for one in client.said] == ["notifications/progress"] * 4
    assert [one["params"] for one in client.said] == [
        {"progressToken": token, "progress": step, "total": 3, "message": f"at {step}"} for step in (0, 1, 2, 2.5)
    ]


async def test_without_a_token_progress_goes_nowhere() -> None:
    client = Client(app_with(progressing))
    assert text(await client.call("run")) == "done"
    assert client.said == []


async def test_the_dialect_wants_progress_always_and_in_its_own_shape() -> None:
    client = Client(app_with(progressing), "draft")
    await client.run(client.exchange("tools/call", {"name": "run"}, id="r"))
    assert client.said[1]["params"] == {"requestId": "r", "progress": {"current": 1, "total": 3, "message": "at 1"}}


async def test_a_token_of_another_kind_is_the_callers_mistake() -> None:
    client = Client(app_with(progressing))
    with pytest.raises(Exception, match="progressToken") as caught:
        await client.request("tools/call", {"name": "run"}, progressToken=1.5)
    assert getattr(caught.value, "code", None) == -32602


# Log messages


async def logging(ctx: Context) -> None:
    for level in LEVELS:
        await ctx.log(level, {"level": level})


@pytest.mark.parametrize("wanted", range(8))
async def test_messages_of_the_wanted_level_and_above_are_sent(wanted: int) -> None:
    client = Client(app_with(logging), level=wanted)
    await client.call("run")
    assert [one["method"] for one in client.said] == ["notifications/message"] * (8 - wanted)
    assert [one["params"] for one in client.said] == [
        {"level": level, "logger": "talker", "data": {"level": level}} for level in LEVELS[wanted:]
    ]


async def test_who_wants_no_messages_gets_none() -> None:
    client = Client(app_with(logging), level=None)
    await client.call("run")
    assert client.said == []


async def test_shorthands_and_loggers() -> None:
    async def run(ctx: Context) -> None:
        await ctx.debug("a")
        await ctx.info(None, logger="own")
        await ctx.warning([1])
        await ctx.error({"b": 2})

    client = Client(app_with(run), level=0)
    await client.call("run")
    assert [(one["params"]["level"], one["params"]["data"], one["params"]["logger"]) for one in client.said] == [
        ("debug", "a", "talker"),
        ("info", None, "own"),
        ("warning", [1], "talker"),
        ("error", {"b": 2}, "talker"),
    ]


# Requirements


async def declared(capabilities: dict[str, Any], **wanted: Any) -> Any:
    async def run(ctx: Context) -> str:
        ctx.require_capabilities(**wanted)
        return "fine"

    client = Client(app_with(run), capabilities=capabilities)
    return text(await client.call("run"))


@pytest.mark.parametrize(
    ("capabilities", "wanted"),
    [
        ({}, {}),
        ({"roots": {}}, {"roots": True}),
        ({"roots": {}}, {"roots": {}}),
        ({"sampling": {"tools": {}}, "roots": {}}, {"sampling": {"tools": {}}}),
        ({"elicitation": {"form": {}, "url": {}}}, {"elicitation": {"url": True}}),
        ({"experimental": {"x": {"y": 1}}}, {"experimental": {"x": {}}}),
        ({"roots": {"listChanged": True}}, {"roots": {"listChanged": True}}),
    ],
)
async def test_what_was_declared_may_be_required(capabilities: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert await declared(capabilities, **wanted) == "fine"


@pytest.mark.parametrize(
    ("capabilities", "wanted", "missing"),
    [
        ({}, {"roots": True}, {"roots": {}}),
        ({"sampling": {}}, {"sampling": {"tools": {}}}, {"sampling": {"tools": {}}}),
        ({"roots": {}}, {"roots": True, "sampling": True}, {"sampling": {}}),
        ({"elicitation": {"form": {}}}, {"elicitation": {"url": {}}}, {"elicitation": {"url": {}}}),
    ],
)
async def test_what_was_not_declared_refuses_the_call(
    capabilities: dict[str, Any], wanted: dict[str, Any], missing: dict[str, Any]
) -> None:
    with pytest.raises(MissingClientCapability) as caught:
        await declared(capabilities, **wanted)
    assert caught.value.data == {"requiredCapabilities": missing}


# Streams


async def test_a_stream_is_let_go_where_that_is_possible() -> None:
    async def run(ctx: Context) -> str:
        await ctx.close_sse_stream()
        await ctx.close_sse_stream(retry_ms=5)
        return "done"

    client, waits = Client(app_with(run), LATEST_HANDSHAKE), []

    async def let_go(retry_ms: int) -> None:
        waits.append(retry_ms)

    assert text(await client.call("run")) == "done"
    exchange = client.exchange("tools/call", {"name": "run"})
    exchange.close_stream = let_go
    assert text(await client.run(exchange)) == "done"
    assert waits == [1000, 5]


# Asking one thing


async def test_roots_and_models_are_asked_in_one_line() -> None:
    async def run(ctx: Context) -> str:
        roots = await ctx.list_roots()
        answer = await ctx.sample("Which?", max_tokens=5)
        await ctx.elicit_url("Log in", "https://example.com/login")
        assert answer.content.type == "text"
        return f"{roots[0].uri} {answer.content.text}"

    answers = {
        "roots/list": lambda _: {"roots": [{"uri": "file:///a"}]},
        "sampling/createMessage": lambda params: {
            "role": "assistant",
            "model": "m",
            "content": {"type": "text", "text": str(params["maxTokens"])},
        },
        "elicitation/create": lambda _: {"action": "accept"},
    }
    for revision in (NEWEST, LATEST_HANDSHAKE):
        client = Client(app_with(run), revision, answers=answers)
        assert text(await client.call_with_input_rounds("run")) == "file:///a 5"
        assert [method for method, _ in client.asked] == ["roots/list", "sampling/createMessage", "elicitation/create"]


async def test_an_input_request_without_a_capability_refuses_the_call() -> None:
    async def run(ctx: Context) -> str:
        return str(await ctx.elicit("Sure?", bool))

    with pytest.raises(MissingClientCapability):
        await Client(app_with(run), NEWEST, capabilities={}).call("run")
    assert "elicitation" in error_text(await Client(app_with(run), LATEST_HANDSHAKE, capabilities={}).call("run"))


async def test_an_unserious_log_level_is_the_tools_fault() -> None:
    async def run(ctx: Context) -> None:
        await ctx.log("loud", "x")  # pyright: ignore[reportArgumentType]

    assert mentions(error_text(await Client(app_with(run), level=0).call("run")), "run")


# From a thread


@pytest.mark.parametrize("revision", [NEWEST, LATEST_HANDSHAKE])
async def test_a_plain_function_waits_for_what_others_await(revision: str) -> None:
    def run(ctx: Context) -> str:
        ctx.wait(ctx.progress(1))
        ctx.wait(ctx.info("asking"))
        seats = ctx.wait(ctx.elicit("How many?", int))
        try:
            ctx.wait(ctx.elicit("Sure?", bool))
        except ElicitationDeclined:
            return f"{seats} seats, not sure"
        return "sure"

    def answer(question: Any) -> Any:
        if "many" in question.message:
            return {"value": 3}
        raise ElicitationDeclined

    heard: list[float] = []
    async with testing.connect(app_with(run), protocol_version=revision, elicitation_handler=answer) as client:
        told = await client.call_tool("run", progress_handler=lambda step, *_: heard.append(step))
    assert told.content == [TextContent(text="3 seats, not sure")]
    assert set(heard) == {1}


async def test_a_plain_function_of_a_cancelled_call_is_interrupted_when_it_waits() -> None:
    asked, ended = threading.Event(), threading.Event()
    caught: list[type[BaseException]] = []

    def run(ctx: Context) -> str:
        for _ in range(2):
            try:
                ctx.wait(forever())
            except concurrent.futures.CancelledError as exc:
                caught.append(type(exc))
        ended.set()
        return "unheard"

    async def forever() -> None:
        asked.set()
        await asyncio.Event().wait()

    async with testing.connect(app_with(run)) as client:
        call = asyncio.ensure_future(client.call("run"))
        assert await asyncio.to_thread(asked.wait, 10)
        call.cancel()
        assert await asyncio.to_thread(ended.wait, 10)
    assert caught == [concurrent.futures.CancelledError] * 2


async def test_on_the_loop_one_awaits() -> None:
    async def run(ctx: Context) -> str:
        with pytest.raises(RuntimeError, match="await"):
            ctx.wait(ctx.progress(1))
        return "told"

    assert text(await Client(app_with(run)).call("run")) == "told"
