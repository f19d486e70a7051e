"""Test client middleware, which wraps requests as on the server."""

from typing import Any

import pytest

from dovetail import CallToolResult, Client, Context, RemoteError, Server, TextContent


def server() -> Server:
    app = Server("around")

    @app.tool
    async def echo(word: str, ctx: Context) -> str:
        return f"{word} {ctx.meta.get('com.example/who', 'nobody')}"

    @app.resource("x:a")
    def resource() -> str:
        return "a"

    @app.prompt
    def prompt() -> str:
        return "p"

    return app


@pytest.fixture(params=["2025-06-18", "2026-07-28"])
def revision(request: pytest.FixtureRequest) -> str:
    return request.param


async def test_it_wraps_every_request_in_order(revision: str) -> None:
    steps: list[str] = []

    def step(name: str) -> Any:
        async def around(exchange: Any, call_next: Any) -> Any:
            assert exchange.is_outgoing
            assert exchange.caller.protocol_version == revision
            steps.append(f"{name} {exchange.method}")
            return await call_next(exchange)

        return around

    async with Client(server(), protocol_version=revision, middleware=[step("outer")], cache=False) as client:
        client.middleware(step("inner"))
        await client.list_tools()
        await client.call("echo", word="a")
        await client.read("x:a")
        await client.get_prompt("prompt")
        with pytest.raises(RemoteError):
            await client.request("x/unknown")
    methods = ["tools/list", "tools/call", "resources/read", "prompts/get", "x/unknown"]
    assert steps == [f"{name} {method}" for method in methods for name in ("outer", "inner")]


async def test_it_may_change_what_is_sent_and_answer_instead(revision: str) -> None:
    async def around(exchange: Any, call_next: Any) -> Any:
        if exchange.method != "tools/call":
            return await call_next(exchange)
        if exchange.params["arguments"]["word"] == "instead":
            return CallToolResult(content=[TextContent(text="not sent")])
        exchange.params["arguments"]["word"] += "!"
        exchange.meta["com.example/who"] = "ada"
        return await call_next(exchange)

    async with Client(server(), protocol_version=revision, middleware=[around]) as client:
        assert await client.call("echo", word="hello") == "hello! ada"
        assert await client.call("echo", word="instead") == "not sent"


async def test_what_is_still_fresh_does_not_come_by() -> None:
    from dovetail import CacheHint

    app = Server("fresh", cache_hints=CacheHint(ttl_ms=60_000))
    app.add_tool(lambda: 1, name="one")
    seen: list[str] = []

    async def around(exchange: Any, call_next: Any) -> Any:
        seen.append(exchange.method)
        return await call_next(exchange)

    async with Client(app, middleware=[around]) as client:
        await client.list_tools()
        await client.list_tools()
    assert seen == ["tools/list"]


async def test_one_that_returns_nothing_is_named() -> None:
    async def forgetful(exchange: Any, call_next: Any) -> Any:
        await call_next(exchange)

    async with Client(server()) as client:
        client.middleware(forgetful)
        with pytest.raises(TypeError, match="forgetful"):
            await client.call("echo", word="a")
