"""Test that middleware wraps every request in order and can answer instead."""

import logging
from typing import Any

import pytest

from behaviour.manifest import requirement
from behaviour.request_helpers import call, expect_error, text
from dovetail import CallToolResult, Context, Server, TextContent, ToolError
from dovetail.errors import InvalidParams
from support.driver import STATELESS, connect
from support.list_capabilities import ALL_LISTS


def server(**options: Any) -> Server:
    app = Server("around", capabilities=ALL_LISTS, **options)

    @app.tool
    async def tool(word: str = "") -> str:
        return f"tool {word}"

    @app.prompt
    def prompt(kind: str) -> str:
        return kind

    @app.resource("x:a")
    def resource() -> str:
        return "a"

    @app.completion("prompt", "kind")
    def kinds(value: str) -> list[str]:
        return [value]

    return app


@requirement("middleware.order")
async def test_the_first_registered_is_outermost(revision: str, transport: str) -> None:
    app = server()
    steps: list[str] = []

    def around(name: str) -> Any:
        async def step(exchange: Any, call_next: Any) -> Any:
            steps.append(f"{name} in")
            try:
                return await call_next(exchange)
            finally:
                steps.append(f"{name} out")

        return step

    outer = around("outer")
    assert app.middleware(outer) is outer
    app.middleware(around("inner"))
    async with connect(app, transport, revision) as peer:
        steps.clear()
        assert text(await call(peer, "tool")) == "tool "
        assert steps == ["outer in", "inner in", "inner out", "outer out"]
        steps.clear()
        await expect_error(call(peer, "none"))
        assert steps == ["outer in", "inner in", "inner out", "outer out"]


@requirement("middleware.result")
async def test_middleware_that_returns_nothing_is_named_in_the_log(
    revision: str, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = server()

    @app.middleware
    async def forgetful(exchange: Any, call_next: Any) -> Any:
        result = await call_next(exchange)
        return None if exchange.method == "tools/call" else result

    async with connect(app, transport, revision) as peer:
        error = await expect_error(call(peer, "tool"))
    assert error.code == -32603
    assert "forgetful" not in error.message
    (record,) = [record for record in caplog.records if record.exc_info and "forgetful" in str(record.exc_info[1])]
    assert record.levelno == logging.ERROR


@requirement("middleware.short-circuit")
async def test_middleware_may_answer_instead(revision: str, transport: str, caplog: pytest.LogCaptureFixture) -> None:
    app = server()
    ran: list[str] = []

    @app.tool
    async def guarded(word: str) -> str:
        ran.append(word)
        return word

    @app.middleware
    async def guard(exchange: Any, call_next: Any) -> Any:
        if exchange.params.get("name") != "guarded":
            return await call_next(exchange)
        match exchange.params["arguments"]["word"]:
            case "answer":
                return CallToolResult(content=[TextContent(text="instead")])
            case "refuse":
                raise InvalidParams("not you")
            case "tool error":
                raise ToolError("not now")
            case "break":
                raise RuntimeError("password is hunter2")
            case "change":
                exchange.params["arguments"]["word"] = "changed"
        result = await call_next(exchange)
        assert isinstance(result, CallToolResult)
        return result

    async with connect(app, transport, revision) as peer:
        assert text(await call(peer, "guarded", word="answer")) == "instead"
        assert (await expect_error(call(peer, "guarded", word="refuse"))).message == "not you"
        assert (await expect_error(call(peer, "guarded", word="tool error"))).message == "not now"
        with caplog.at_level(logging.CRITICAL, "dovetail"):
            error = await expect_error(call(peer, "guarded", word="break"))
        assert error.code == -32603
        assert "hunter2" not in error.message
        assert ran == []
        assert text(await call(peer, "guarded", word="change")) == "changed"
        assert text(await call(peer, "guarded", word="go on")) == "go on"


@requirement("middleware.sees")
async def test_middleware_sees_who_asks_for_what(revision: str, transport: str) -> None:
    app = server()
    seen: list[Any] = []

    @app.middleware
    async def look(exchange: Any, call_next: Any) -> Any:
        seen.append(exchange)
        return await call_next(exchange)

    async with connect(app, transport, revision, capabilities={"roots": {}}) as peer:
        params = {"name": "tool", "arguments": {"word": "w"}}
        await peer.request("tools/call", params, id="the id", headers={"x-trace": "abc"}, progress_token="t")
    (exchange,) = [one for one in seen if one.method == "tools/call"]
    assert exchange.id == "the id"
    assert exchange.params["name"] == "tool"
    assert exchange.params["arguments"] == {"word": "w"}
    assert exchange.meta["progressToken"] == "t"
    assert exchange.caller.protocol_version == revision
    assert exchange.caller.is_stateless == (revision == STATELESS)
    assert exchange.caller.client_capabilities.roots is not None
    assert exchange.caller.client_info.name == "driver"
    assert exchange.caller.principal is None
    if transport == "http":
        assert exchange.headers[b"x-trace"] == b"abc"


@requirement("middleware.everything")
async def test_middleware_wraps_every_method(revision: str, transport: str) -> None:
    app = server()
    seen: list[str] = []

    @app.middleware
    async def look(exchange: Any, call_next: Any) -> Any:
        seen.append(exchange.method)
        return await call_next(exchange)

    requests: list[tuple[str, dict[str, Any]]] = [
        ("tools/list", {}),
        ("tools/call", {"name": "tool"}),
        ("resources/list", {}),
        ("resources/templates/list", {}),
        ("resources/read", {"uri": "x:a"}),
        ("prompts/list", {}),
        ("prompts/get", {"name": "prompt", "arguments": {"kind": "k"}}),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "prompt"}, "argument": {"name": "kind", "value": ""}},
        ),
    ]
    if revision == STATELESS:
        requests.append(("server/discover", {}))
    async with connect(app, transport, revision) as peer:
        seen.clear()
        for method, params in requests:
            await peer.request(method, params)
        if revision == STATELESS:
            peer.start("subscriptions/listen", {"notifications": {}})
            await peer.next_notification("notifications/subscriptions/acknowledged")
            requests.append(("subscriptions/listen", {}))
        assert seen == [method for method, _ in requests]


@requirement("context.tells")
async def test_the_context_tells_about_the_call(revision: str, transport: str) -> None:
    async def authenticate(headers: Any) -> str | None:
        return headers.get(b"authorization", b"").decode() or None

    app = server(auth=authenticate)
    seen: list[Context] = []

    @app.tool
    async def look(ctx: Context) -> str:
        seen.append(ctx)
        return "looked"

    capabilities = {"roots": {}, "experimental": {"x": {}}, "extensions": {"com.example/unknown": {"a": 1}}}
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with connect(app, transport, revision, capabilities=capabilities, headers={"authorization": "ada"}) as peer:
        meta = {"traceparent": trace, "com.example/own": [1]}
        await peer.request("tools/call", {"name": "look"}, id="the id", meta=meta)
    (ctx,) = seen
    assert ctx.request_id == "the id"
    assert ctx.protocol_version == revision
    assert ctx.client_info is not None
    assert (ctx.client_info.name, ctx.client_info.version) == ("driver", "1")
    assert ctx.client_capabilities.roots is not None
    assert ctx.client_capabilities.sampling is None
    assert ctx.client_capabilities.extensions == {"com.example/unknown": {"a": 1}}
    assert ctx.meta["traceparent"] == trace
    assert ctx.meta["com.example/own"] == [1]
    assert ctx.principal == ("ada" if transport == "http" else None)
    assert ctx.headers.get("Authorization") == ("ada" if transport == "http" else None)
