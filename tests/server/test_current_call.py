"""Test `get_context` and `current_principal`, and calls of a function to its own server."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dovetail import Client, Context, Server, ToolError, current_principal, get_context
from dovetail.errors import PromptNotFound, ToolNotFound
from dovetail.extensions import TaskConfig
from dovetail.testing import connect

ERAS = ["2025-11-25", "2026-07-28"]
each_era = pytest.mark.parametrize("era", ERAS)


def test_outside_a_call_there_is_no_context() -> None:
    with pytest.raises(RuntimeError, match="get_context"):
        get_context()
    with pytest.raises(RuntimeError, match="current_principal"):
        current_principal()


@each_era
async def test_a_helper_reads_the_context_of_its_call(era: str) -> None:
    app = Server("test")

    def describe() -> list[Any]:
        ctx = get_context()
        assert ctx is get_context()
        return [ctx.protocol_version, current_principal()]

    @app.tool
    def in_thread() -> list[Any]:
        return describe()

    @app.tool
    async def in_loop() -> list[Any]:
        return await asyncio.get_running_loop().create_task(asyncio.to_thread(describe))

    @app.tool
    async def with_parameter(ctx: Context) -> bool:
        return ctx is get_context()

    @app.resource("it://text")
    def read() -> str:
        return str(describe())

    @app.prompt
    def ask() -> str:
        return str(describe())

    async with connect(app, protocol_version=era) as client:
        assert await client.call("in_thread") == [era, None]
        assert await client.call("in_loop") == [era, None]
        assert await client.call("with_parameter") is True
        assert era in str(await client.read("it://text"))
        assert era in str((await client.get_prompt("ask")).messages[0].content)


async def test_concurrent_calls_have_their_own_context() -> None:
    app = Server("test")
    gate = asyncio.Barrier(3)

    @app.tool
    async def name(value: str) -> list[str]:
        get_context().extra["value"] = value
        await gate.wait()
        return [value, get_context().extra["value"]]

    async with Client(app) as client:
        assert await asyncio.gather(*(client.call("name", value=text) for text in "abc")) == [[t, t] for t in "abc"]
    with pytest.raises(RuntimeError):
        get_context()


async def test_after_the_call_there_is_no_context() -> None:
    app = Server("test")
    gate = asyncio.Event()
    tasks: list[asyncio.Task[Any]] = []

    async def work() -> None:
        get_context()
        await gate.wait()
        get_context()

    @app.tool
    async def start() -> None:
        tasks.append(asyncio.get_running_loop().create_task(work()))
        await asyncio.sleep(0)

    async with Client(app) as client:
        await client.call("start")
        gate.set()
        with pytest.raises(RuntimeError, match="ended"):
            await tasks[0]


@each_era
@pytest.mark.parametrize("in_group", [False, True])
async def test_a_function_without_ctx_asks_the_user(era: str, in_group: bool) -> None:
    app = Server("test")

    async def confirm() -> bool:
        if not in_group:
            return await get_context().elicit("Sure?", bool)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(get_context().elicit("Sure?", bool))
        return task.result()

    @app.tool
    async def delete() -> str:
        return "deleted" if await confirm() else "kept"

    @app.resource("it://text")
    async def read() -> str:
        return str(await confirm())

    @app.prompt
    async def ask() -> str:
        return str(await confirm())

    async with connect(app, protocol_version=era, elicitation_handler=lambda _: {"value": True}) as client:
        assert await client.call("delete") == "deleted"
        assert "True" in str(await client.read("it://text"))
        assert "True" in str((await client.get_prompt("ask")).messages[0].content)


async def test_a_mounted_server_has_its_own_context() -> None:
    @asynccontextmanager
    async def outer_lifespan() -> AsyncGenerator[str]:
        yield "outer"

    @asynccontextmanager
    async def inner_lifespan() -> AsyncGenerator[str]:
        yield "inner"

    inner, outer = Server("inner", lifespan=inner_lifespan), Server("outer", lifespan=outer_lifespan)
    seen: list[Any] = []

    @inner.tool
    def where() -> str:
        return get_context().lifespan

    async def watch(exchange: Any, call_next: Any) -> Any:
        seen.append(get_context().lifespan)
        result = await call_next(exchange)
        seen.append(get_context().lifespan)
        return result

    outer.middleware(watch)
    outer.mount(inner, prefix="in")
    async with Client(outer) as client:
        assert await client.call("in_where") == "inner"
    assert set(seen) == {"outer"}


@each_era
async def test_a_call_that_becomes_a_task_keeps_its_context(era: str) -> None:
    app = Server("test")
    gate = asyncio.Event()

    @app.tool(task=TaskConfig(after=0.01))
    async def slow() -> str:
        before = get_context()
        await gate.wait()
        assert get_context() is before
        return "sure" if await get_context().elicit("Sure?", bool) else "no"

    async with connect(app, protocol_version=era, elicitation_handler=lambda _: {"value": True}) as client:
        call = asyncio.get_running_loop().create_task(client.call("slow"))
        await asyncio.sleep(0.05)
        gate.set()
        assert await call == "sure"


@each_era
async def test_a_function_calls_tools_and_prompts_of_its_server(era: str) -> None:
    app = Server("test")
    seen: list[str] = []

    async def watch(exchange: Any, call_next: Any) -> Any:
        seen.append(f"{exchange.method} {exchange.params.get('name')}")
        return await call_next(exchange)

    app.middleware(watch)

    @app.tool
    def add(a: int, b: int) -> int:
        return a + b

    @app.tool
    def fail() -> None:
        raise ToolError("broken")

    @app.prompt
    def greet(name: str) -> str:
        return f"Hello {name}"

    @app.tool
    async def use(ctx: Context) -> list[Any]:
        total = await ctx.call_tool("add", {"a": 1, "b": 2})
        failed = await ctx.call_tool("fail")
        prompt = await ctx.get_prompt("greet", {"name": "Ada"})
        return [total.structured_content, failed.is_error, prompt.messages[0].content.text]  # type: ignore[union-attr]

    @app.tool
    async def misuse(ctx: Context, kind: str) -> str:
        try:
            if kind == "tool":
                await ctx.call_tool("unknown")
            elif kind == "prompt":
                await ctx.get_prompt("unknown")
            else:
                return str((await ctx.call_tool("add", {"a": "x", "b": 2})).is_error)
        except (ToolNotFound, PromptNotFound) as exc:
            return type(exc).__name__
        return "no error"

    async with connect(app, protocol_version=era) as client:
        assert await client.call("use") == [{"result": 3}, True, "Hello Ada"]
        assert seen.count("tools/call add") == 1
        assert seen.count("prompts/get greet") == 1
        assert await client.call("misuse", kind="tool") == "ToolNotFound"
        assert await client.call("misuse", kind="prompt") == "PromptNotFound"
        assert await client.call("misuse", kind="arguments") == "True"


async def test_a_tool_that_calls_itself_without_end_fails() -> None:
    app = Server("test")

    @app.tool
    async def loop(ctx: Context) -> str:
        return str(await ctx.call_tool("loop"))

    async with Client(app) as client:
        result = await client.call_tool("loop")
        assert "RecursionError" not in str(result)


@each_era
async def test_a_question_without_await_does_not_continue(era: str) -> None:
    app = Server("test", debug=True)
    deleted: list[str] = []

    @app.tool
    async def delete(ctx: Context) -> None:
        if ctx.elicit("Sure?", bool):
            deleted.append("all")

    async with connect(app, protocol_version=era, elicitation_handler=lambda _: {"value": True}) as client:
        with pytest.raises(ToolError, match=r"`await`.+ or use Context\.wait"):
            await client.call("delete")
    assert not deleted


async def test_a_question_that_is_dropped_warns() -> None:
    app = Server("test")

    @app.tool
    async def delete(ctx: Context) -> None:
        ctx.elicit("Sure?", bool)  # type: ignore[unused-coroutine]

    async with Client(app) as client:
        with pytest.warns(RuntimeWarning, match="elicit"):
            await client.call("delete")


@each_era
async def test_questions_work_in_tasks_groups_and_threads(era: str) -> None:
    app = Server("test")

    @app.tool
    async def together(ctx: Context) -> list[bool]:
        loop = asyncio.get_running_loop()
        first = loop.create_task(ctx.elicit("Sure?", bool, key="first"))
        return [*await asyncio.gather(first, ctx.elicit("Really?", bool, key="second"))]

    @app.tool
    def in_thread(ctx: Context) -> bool:
        return ctx.wait(ctx.elicit("Sure?", bool))

    async with connect(app, protocol_version=era, elicitation_handler=lambda _: {"value": True}) as client:
        assert await client.call("together") == [True, True]
        assert await client.call("in_thread") is True


def test_a_context_without_annotation_is_refused() -> None:
    app = Server("test")

    def short(a: int, ctx):  # type: ignore[no-untyped-def]
        pass

    def long(context):  # type: ignore[no-untyped-def]
        pass

    with pytest.raises(TypeError, match="ctx: Context"):
        app.tool(short)
    with pytest.raises(TypeError, match="context: Context"):
        app.prompt(long)
