"""Test the lifespan of a server: entered once, left at the end, and its errors."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from behaviour.manifest import requirement
from behaviour.request_helpers import call, text
from dovetail import Client, Context, Server
from support.driver import STATELESS, Peer, connect, connect_again


def server(steps: list[str]) -> Server:
    @asynccontextmanager
    async def life() -> AsyncIterator[dict[str, int]]:
        task = asyncio.current_task()
        steps.append("enter")
        await asyncio.sleep(0)
        yield {"answer": 42}
        steps.append("leave" if asyncio.current_task() is task else "leave in another task")

    app = Server("alive", lifespan=life)

    @app.tool
    async def look(ctx: Context) -> int:
        steps.append("call")
        return ctx.lifespan["answer"]

    @app.resource("x:life")
    async def read(ctx: Context) -> str:
        return str(ctx.lifespan)

    return app


def first_message(peer: Peer, id: int) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id} | peer.message("tools/call", {"name": "look"})).encode()


@requirement("lifespan.once")
async def test_a_lifespan_is_entered_once_and_left_at_the_end(revision: str, transport: str) -> None:
    steps: list[str] = []
    async with connect(server(steps), transport, revision) as peer:
        assert json.loads(text(await call(peer, "look"))) == 42
        assert json.loads(text(await call(peer, "look"))) == 42
        result = await peer.request("resources/read", {"uri": "x:life"})
        assert result["contents"][0]["text"] == "{'answer': 42}"
        if transport == "http":
            async with connect_again(peer) as other:
                await call(other, "look")
                steps.pop()
        assert steps == ["enter", "call", "call"]
    assert steps == ["enter", "call", "call", "leave"]


@requirement("lifespan.once", transports=("memory",))
async def test_a_server_can_live_again(revision: str, transport: str) -> None:
    steps: list[str] = []
    app = server(steps)
    for _ in range(2):
        async with connect(app, transport, revision) as peer:
            await call(peer, "look")
    assert steps == ["enter", "call", "leave"] * 2


async def answers(app: Server, revision: str, count: int = 3) -> list[Any]:
    """What several requests at once are answered, by a server nobody started."""
    arrived: list[Any] = []
    done = asyncio.Event()

    def take(data: bytes) -> None:
        arrived.append(json.loads(data))
        if len([one for one in arrived if one.get("id") != "open"]) == count:
            done.set()

    peer = Peer("memory", revision, {}, {})
    link = app.open_connection(take)
    if revision != STATELESS:
        hello = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        link.receive(json.dumps({"jsonrpc": "2.0", "id": "open", "method": "initialize", "params": hello}).encode())
        link.receive(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
    for number in range(count):
        link.receive(first_message(peer, number))
    await asyncio.wait_for(done.wait(), 5)
    await link.close()
    return [one for one in arrived if one.get("id") != "open"]


@requirement("lifespan.lazy")
async def test_the_first_request_enters_the_lifespan(revision: str) -> None:
    steps: list[str] = []
    app = server(steps)
    replies = await answers(app, revision)
    assert [json.loads(one["result"]["content"][0]["text"]) for one in replies] == [42, 42, 42]
    assert steps == ["enter", "call", "call", "call"]
    await app.stop()
    assert steps[-1] == "leave"
    await app.stop()
    assert steps.count("leave") == 1


@requirement("lifespan.loops")
def test_a_client_in_each_event_loop(revision: str) -> None:
    steps: list[str] = []
    app = server(steps)

    async def use() -> None:
        async with Client(app, protocol_version=revision) as first, Client(app, protocol_version=revision) as second:
            assert [await client.call("look") for client in (first, second)] == [42, 42]

    for _ in range(2):
        asyncio.run(use())
    assert steps == ["enter", "call", "call", "leave"] * 2


@requirement("lifespan.failure")
async def test_a_lifespan_that_cannot_start_is_an_error(revision: str, caplog: pytest.LogCaptureFixture) -> None:
    @asynccontextmanager
    async def life() -> AsyncIterator[None]:
        raise RuntimeError("password is hunter2")
        yield

    app = Server("stillborn", lifespan=life)
    app.add_tool(lambda: "x", name="look")
    with caplog.at_level(logging.ERROR, "dovetail"):
        replies = await answers(app, revision)
    for reply in replies:
        assert reply["error"]["code"] == -32603
        assert "hunter2" not in json.dumps(reply)
    (record,) = caplog.records
    assert "hunter2" in str(record.exc_text)
    assert record.exc_info is not None
    await app.stop()


@requirement("lifespan.failure")
async def test_a_lifespan_that_fails_at_its_end_is_logged(revision: str, caplog: pytest.LogCaptureFixture) -> None:
    @asynccontextmanager
    async def life() -> AsyncIterator[None]:
        yield
        raise RuntimeError("could not close")

    app = Server("clumsy", lifespan=life)
    app.add_tool(lambda: "x", name="look")
    with caplog.at_level(logging.ERROR, "dovetail"):
        assert all("result" in reply for reply in await answers(app, revision))
        await app.stop()
    (record,) = caplog.records
    assert "could not close" in str(record.exc_text)
