"""Test tools that yield: progress during the call, and parts of the result."""

import asyncio
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from dovetail import Context, Depends, Image, ProgressUpdate, Server, ToolError
from server.direct_client import Client, error_text

PNG = b"\x89PNG\r\n\x1a\n"


@dataclass
class Row:
    n: int


def said(client: Client) -> list[tuple[float, Any]]:
    return [(one["params"]["progress"], one["params"].get("message")) for one in client.said]


async def test_parts_are_blocks_and_are_announced() -> None:
    app = Server("x")

    @app.tool
    async def story(words: int) -> AsyncIterator[str | Image]:
        """Tell."""
        for n in range(words):
            yield f"word {n}"
        yield Image(PNG)

    client = Client(app)
    (tool,) = (await client.request("tools/list"))["tools"]
    assert "outputSchema" not in tool
    result = await client.request("tools/call", {"name": "story", "arguments": {"words": 2}}, progressToken="t")
    assert [block.get("text") for block in result["content"]] == ["word 0", "word 1", None]
    assert said(client) == [(1, "word 0"), (2, "word 1"), (3, None)]
    quiet = Client(app)
    assert (await quiet.call("story", {"words": 1}))["content"][0]["text"] == "word 0"
    assert quiet.said == []


async def test_progress_is_reported_and_not_part_of_the_result() -> None:
    app = Server("x")

    @app.tool
    async def rows(ctx: Context) -> AsyncIterator[ProgressUpdate | Row]:
        yield ProgressUpdate(1, 2, "first")
        yield Row(1)
        yield ProgressUpdate(2, 2)
        yield Row(2)

    client = Client(app)
    (tool,) = (await client.request("tools/list"))["tools"]
    assert tool["outputSchema"]["properties"]["result"]["type"] == "array"
    result = await client.request("tools/call", {"name": "rows"}, progressToken="t")
    assert result["structuredContent"] == {"result": [{"n": 1}, {"n": 2}]}
    assert said(client) == [(1, "first"), (2, None)]


async def test_plain_generators_run_in_threads() -> None:
    app = Server("x")
    threads: list[bool] = []
    closed: list[bool] = []

    @app.tool
    def count(n: int) -> Generator[int, None, None]:
        try:
            for one in range(n):
                threads.append(threading.current_thread() is threading.main_thread())
                yield one
            if n > 2:
                raise ToolError("too many")
        finally:
            closed.append(True)

    @app.tool
    def untold() -> Iterator[Any]:
        yield from ({"a": 1}, {"a": 2})

    @app.tool
    def nothing() -> Iterator[str]:
        yield from ()

    client = Client(app)
    assert (await client.call("count", {"n": 2}))["structuredContent"] == {"result": [0, 1]}
    assert threads == [False, False]
    assert error_text(await client.call("count", {"n": 3})) == "too many"
    assert closed == [True, True]
    assert (await client.call("untold"))["structuredContent"] == {"result": [{"a": 1}, {"a": 2}]}
    assert (await client.call("nothing"))["content"] == []


async def test_a_generator_is_closed_when_the_call_ends_early() -> None:
    app = Server("x")
    closed = asyncio.Event()
    inside = asyncio.Event()

    def held() -> Iterator[int]:
        yield 7

    @app.tool(max_concurrency=1)
    async def endless(n: Annotated[int, Depends(held)]) -> AsyncIterator[int]:
        try:
            yield n
            inside.set()
            await asyncio.Event().wait()
        finally:
            closed.set()

    task = asyncio.get_running_loop().create_task(Client(app).call("endless"))
    await asyncio.wait_for(inside.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed.is_set()


async def test_prompts_and_resources_may_yield_too() -> None:
    app = Server("x")

    @app.prompt
    def two() -> Iterator[str]:
        yield "a"
        yield "b"

    @app.resource("x://r")
    async def parts() -> AsyncIterator[str]:
        yield "c"
        yield "d"

    client = Client(app)
    got = await client.request("prompts/get", {"name": "two"})
    assert [one["content"]["text"] for one in got["messages"]] == ["a", "b"]
    read = await client.request("resources/read", {"uri": "x://r"})
    assert [one["text"] for one in read["contents"]] == ["c", "d"]


async def test_a_plain_generator_left_during_a_step_is_closed_by_its_thread() -> None:
    app = Server("x")
    began, go, closed = threading.Event(), threading.Event(), threading.Event()
    closers: list[threading.Thread] = []

    @app.tool
    def steps() -> Iterator[str]:
        try:
            yield "a"
            began.set()
            go.wait(20)
            yield "b"
        finally:
            closers.append(threading.current_thread())
            closed.set()

    call = asyncio.ensure_future(Client(app).call("steps"))
    assert await asyncio.to_thread(began.wait, 20)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not closed.is_set()
    go.set()
    assert await asyncio.to_thread(closed.wait, 20)
    assert closers[0] is not threading.main_thread()


async def test_a_plain_generator_left_between_steps_is_closed_in_a_thread() -> None:
    app, closers, told = Server("x"), list[threading.Thread](), asyncio.Event()

    @app.tool
    def steps() -> Generator[str]:
        try:
            yield "a"
            yield "b"
        finally:
            closers.append(threading.current_thread())

    class Stalled(Client):
        """A client that reads the first part and no more."""

        async def _emit(self, data: bytes) -> None:
            told.set()
            await asyncio.Event().wait()

    params = {"name": "steps", "arguments": {}}
    call = asyncio.ensure_future(Stalled(app).request("tools/call", params, progressToken="t"))
    await asyncio.wait_for(told.wait(), 20)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    (closer,) = closers
    assert closer is not threading.main_thread()
