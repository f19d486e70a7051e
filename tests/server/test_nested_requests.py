"""Test requests that a function makes to its own server: `ctx.read_resource` and its limits."""

import asyncio
from typing import Any

import pytest

from dovetail import Client as RealClient
from dovetail import Context, Server, ServerLimits
from dovetail.errors import InternalError, NotSupported
from dovetail.middleware import Exchange
from dovetail.server.server import get_dispatcher
from server.direct_client import LATEST_HANDSHAKE, NEWEST, TIMEOUT_S, Client, error_text, text


def reader(uri: str = "x:inner", **limits: Any) -> Server:
    """Return a server with the tool `read`, which returns the text of a resource."""
    app = Server("nested", limits=ServerLimits(**limits))

    @app.tool
    async def read(ctx: Context) -> str:
        return (await ctx.read_resource(uri)).contents[0].text or ""

    return app


class Hanging:
    """A resource function that never returns."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.is_cancelled = False

    async def __call__(self, ctx: Context) -> str:
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise
        return "never"


def accept(params: dict[str, Any]) -> Any:
    return {"action": "accept", "content": {"value": True}}


# Time limits


async def test_the_timeout_of_a_resource_stops_only_the_read() -> None:
    app, hanging = Server("nested"), Hanging()
    app.add_resource(hanging, "x:inner", timeout=0.02)

    @app.tool
    async def read(ctx: Context) -> str:
        try:
            await ctx.read_resource("x:inner")
        except InternalError:
            await asyncio.sleep(0)  # The function of the tool is not cancelled.
            return "an older copy"
        return "never"

    assert text(await Client(app).call("read")) == "an older copy"
    assert hanging.is_cancelled


async def test_a_long_timeout_of_a_resource_is_checked_periodically(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.server.dispatch.item_handlers._MAX_TIMER_TIMEOUT_S", 0)
    monkeypatch.setattr("dovetail.server.dispatch.lifecycle._SWEEP_INTERVAL_S", 0.01)
    app, hanging = reader(), Hanging()
    app.add_resource(hanging, "x:inner", timeout=0.02)
    with pytest.raises(InternalError):
        await Client(app).call("read")
    assert hanging.is_cancelled


async def test_a_resource_of_a_mounted_server_keeps_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.server.dispatch.item_handlers._MAX_TIMER_TIMEOUT_S", 0)
    monkeypatch.setattr("dovetail.server.dispatch.lifecycle._SWEEP_INTERVAL_S", 0.01)
    outer, inner, hanging = Server("outer"), reader(), Hanging()
    inner.add_resource(hanging, "x:inner", timeout=0.02)
    outer.mount(inner)
    with pytest.raises(InternalError):
        await Client(outer).call("read")
    assert hanging.is_cancelled


async def test_a_function_that_is_stopped_stops_its_read() -> None:
    app, hanging = reader(), Hanging()
    app.add_resource(hanging, "x:inner")
    client = Client(app)
    exchange = client.exchange("tools/call", {"name": "read"})
    call = asyncio.create_task(client.run(exchange))
    await hanging.started.wait()
    exchange.end("cancelled")
    with pytest.raises(asyncio.CancelledError):
        await call
    assert hanging.is_cancelled


async def test_the_timeout_of_the_function_includes_its_reads() -> None:
    app, hanging = Server("nested"), Hanging()
    app.add_resource(hanging, "x:inner", timeout=60)

    @app.tool(timeout=0.02)
    async def read(ctx: Context) -> str:
        return (await ctx.read_resource("x:inner")).contents[0].text or ""

    assert error_text(await Client(app).call("read"))
    assert hanging.is_cancelled


async def test_the_users_time_does_not_count_for_the_function_that_reads() -> None:
    app, deadlines = Server("nested"), list[float]()

    @app.middleware
    async def keep_exchange(exchange: Exchange, call_next: Any) -> Any:
        exchange.extra.setdefault("call", exchange)
        return await call_next(exchange)

    @app.resource("x:inner")
    async def inner(ctx: Context) -> str:
        return "yes" if await ctx.elicit("Sure?", bool) else "no"

    @app.tool
    async def read(ctx: Context) -> str:
        deadlines.append(ctx.extra["call"].deadline)
        answer = (await ctx.read_resource("x:inner")).contents[0].text or ""
        deadlines.append(ctx.extra["call"].deadline)
        return answer

    open_questions: list[int] = []

    class SlowUser(Client):
        async def _ask(self, method: str, params: dict[str, Any]) -> Any:
            open_questions.append(app.stats().open_questions)
            await asyncio.sleep(0.01)
            return accept(params)

    assert text(await SlowUser(app, LATEST_HANDSHAKE).call("read")) == "yes"
    assert open_questions == [1]
    assert deadlines[1] - deadlines[0] > 0.005
    assert app.stats().open_questions == 0


# Values and messages


async def test_a_resource_gets_the_extra_values_of_the_function_that_reads_it() -> None:
    app, seen = Server("nested"), dict[str, Any]()

    @app.middleware
    async def add_values(exchange: Exchange, call_next: Any) -> Any:
        if exchange.method == "tools/call":
            exchange.extra["tenant"] = "acme"
        exchange.extra["method"] = exchange.method
        return await call_next(exchange)

    @app.resource("x:inner")
    async def inner(ctx: Context) -> str:
        seen["inner"] = dict(ctx.extra)
        return "read"

    @app.tool
    async def read(ctx: Context) -> str:
        await ctx.read_resource("x:inner")
        seen["outer"] = dict(ctx.extra)
        return "done"

    assert text(await Client(app).call("read")) == "done"
    assert seen == {
        "inner": {"tenant": "acme", "method": "resources/read"},
        "outer": {"tenant": "acme", "method": "tools/call"},
    }


async def test_a_resource_does_not_change_the_extra_values_of_the_function_that_reads_it() -> None:
    app = Server("nested")

    @app.resource("x:inner")
    async def inner(ctx: Context) -> str:
        ctx.extra["inner"] = True
        return "read"

    @app.tool
    async def read(ctx: Context) -> bool:
        is_empty = not ctx.extra
        await ctx.read_resource("x:inner")
        return is_empty and not ctx.extra

    assert text(await Client(app).call("read")) == "true"


@pytest.mark.parametrize("threads", [1, 2])
async def test_plain_functions_read_resources_of_plain_functions(threads: int) -> None:
    app = Server("nested", limits=ServerLimits(max_threads=threads, thread_queue_timeout=TIMEOUT_S))

    @app.resource("x:inner")
    def inner(ctx: Context) -> str:
        ctx.wait(ctx.info("reading"))
        return "read"

    @app.tool
    def read(ctx: Context) -> str:
        return ctx.wait(ctx.read_resource("x:inner")).contents[0].text or ""

    client = Client(app, level=0)
    assert text(await client.call("read")) == "read"
    assert [message["params"]["data"] for message in client.said] == ["reading"]


async def test_a_read_reports_no_progress_for_the_call() -> None:
    app = reader()

    @app.resource("x:inner")
    async def inner(ctx: Context) -> str:
        await ctx.progress(1)
        return "read"

    for revision in ("draft", NEWEST):
        client = Client(app, revision)
        assert text(await client.request("tools/call", {"name": "read"}, progressToken=7)) == "read"
        assert client.said == []


async def test_a_read_that_outlives_its_call_sends_nothing() -> None:
    app, go, tasks = Server("nested"), asyncio.Event(), list[asyncio.Task[Any]]()

    @app.resource("x:inner")
    async def inner(ctx: Context) -> str:
        await go.wait()
        await ctx.info("too late")
        return "read"

    @app.tool
    async def read(ctx: Context) -> str:
        tasks.append(asyncio.create_task(ctx.read_resource("x:inner")))
        await asyncio.sleep(0)
        return "done"

    client = Client(app, level=0)
    assert text(await client.call("read")) == "done"
    go.set()
    await tasks[0]
    assert client.said == []


async def test_functions_that_read_each_other_end_with_an_error() -> None:
    app = reader("x:0")
    depths: list[int] = []

    @app.resource("x:{n}")
    async def inner(n: int, ctx: Context) -> str:
        depths.append(n)
        return (await ctx.read_resource(f"x:{n + 1}")).contents[0].text or ""

    assert error_text(await Client(app).call("read"))
    assert 8 <= len(depths) <= 64


# Input requests


@pytest.mark.parametrize("is_remote", [False, True])
async def test_a_read_cannot_ask_a_stateless_caller_for_input(is_remote: bool) -> None:
    inner = Server("inner")

    @inner.resource("x:inner")
    async def ask(ctx: Context) -> str:
        return "yes" if await ctx.elicit("Sure?", bool) else "no"

    app, errors = Server("outer"), list[NotSupported]()

    @app.tool
    async def read(ctx: Context) -> str:
        with pytest.raises(NotSupported) as caught:
            await ctx.read_resource("x:inner")
        errors.append(caught.value)
        return "done"

    async with RealClient(inner) as upstream:
        app.mount(upstream if is_remote else inner)
        assert text(await Client(app).call("read")) == "done"
    assert len(errors) == 1


# Other items


async def test_the_same_path_serves_tools_and_prompts() -> None:
    app, exchanges = Server("nested"), list[Any]()

    @app.middleware
    async def keep_exchange(exchange: Exchange, call_next: Any) -> Any:
        exchanges.append(exchange)
        return await call_next(exchange)

    @app.prompt
    async def greet(name: str) -> str:
        return f"Hello {name}"

    @app.tool
    async def double(n: int) -> int:
        return 2 * n

    @app.tool
    async def combine() -> list[Any]:
        nested_calls, outer = get_dispatcher(app).nested_calls, exchanges[0]
        doubled: Any = await nested_calls.handle(outer, "tools/call", {"name": "double", "arguments": {"n": 4}})
        greeting: Any = await nested_calls.handle(outer, "prompts/get", {"name": "greet", "arguments": {"name": "Ada"}})
        return [doubled.structured_content, greeting.messages[0].content.text]

    result = await Client(app).call("combine")
    assert result["structuredContent"] == {"result": [{"result": 8}, "Hello Ada"]}
    assert [(exchange.method, exchange.parent) for exchange in exchanges] == [
        ("tools/call", None),
        ("tools/call", exchanges[0]),
        ("prompts/get", exchanges[0]),
    ]
