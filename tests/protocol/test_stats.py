"""Test that `stats()` of servers, clients and hosts counts open things, and is zero after closing."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client, Context, Host, Policy, Server, SyncClient, rule
from dovetail.host import FileConsent
from dovetail.types import ClientStats, HostStats, ServerStats
from support.controlled_server import ControlledServer, call_params
from support.driver import HANDSHAKE, STATELESS, connect, serve
from support.polling import wait_until


def asking() -> Server:
    app = Server("asking")

    @app.tool
    async def ask(ctx: Context) -> str:
        return await ctx.elicit("Name?", str)

    return app


class Answer:
    """A handler that begins and then waits for the test."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.free = asyncio.Event()

    async def __call__(self, _question: Any) -> dict[str, str]:
        self.begun.set()
        await self.free.wait()
        return {"value": "Ada"}


@pytest.mark.parametrize("revision", [STATELESS, HANDSHAKE[-1]])
async def test_a_running_call_is_counted_on_both_sides(revision: str) -> None:
    stage = ControlledServer()
    client = Client(stage.app, protocol_version=revision)
    async with client:
        assert client.stats() == ClientStats(connections=1)
        running = asyncio.create_task(client.call("wait", name="w"))
        await stage.wait_until_started("w")
        assert stage.app.stats() == ServerStats(running_calls=1)
        assert client.stats() == ClientStats(connections=1, running_requests=1)
        stage.release("w")
        await running
        assert stage.app.stats() == ServerStats()
        assert client.stats() == ClientStats(connections=1)
    assert client.stats() == ClientStats()


async def test_threads_that_run_plain_functions_are_counted() -> None:
    stage = ControlledServer()
    stage.remember_loop()
    async with Client(stage.app) as client:
        running = asyncio.create_task(client.call("block", name="b"))
        await stage.wait_until_started("b")
        assert stage.app.stats() == ServerStats(running_calls=1, busy_threads=1)
        stage.release("b")
        await running
        await wait_until(lambda: stage.app.stats() == ServerStats())


@pytest.mark.parametrize("revision", [STATELESS, HANDSHAKE[-1]])
async def test_open_questions_are_counted(revision: str) -> None:
    app, answer = asking(), Answer()
    async with Client(app, protocol_version=revision, elicitation_handler=answer) as client:
        running = asyncio.create_task(client.call("ask"))
        await answer.begun.wait()
        assert client.stats().open_questions == 1
        waits = int(revision != STATELESS)  # a stateless call has ended while the user is asked
        assert (app.stats().running_calls, app.stats().open_questions) == (waits, waits)
        answer.free.set()
        assert await running == "Ada"
        assert client.stats() == ClientStats(connections=1)
        assert app.stats() == ServerStats()


@pytest.mark.parametrize("revision", [STATELESS, HANDSHAKE[-1]])
async def test_subscriptions_are_counted(revision: str) -> None:
    app = ControlledServer().app
    async with Client(app, protocol_version=revision) as client:
        async with client.listen():
            assert client.stats().subscriptions == 1
            assert app.stats().subscriptions == int(revision == STATELESS)
        assert client.stats() == ClientStats(connections=1)
        await wait_until(lambda: app.stats() == ServerStats())


async def test_callbacks_that_wait_are_counted() -> None:
    app, free = Server("x"), asyncio.Event()

    @app.tool
    async def log(ctx: Context) -> None:
        for number in range(3):
            await ctx.info(str(number))

    async def slow(_message: Any) -> None:
        await free.wait()

    async with Client(app, log_handler=slow) as client:
        await client.call("log")
        await wait_until(lambda: client.stats().queued_callbacks == 2)
        free.set()
        await wait_until(lambda: client.stats().queued_callbacks == 0)


async def test_sessions_and_streams_over_http_are_counted() -> None:
    app = ControlledServer().app
    async with connect(app, "http", HANDSHAKE[-1]) as peer:
        await peer.request("tools/call", call_params("count", to=3) | {"_meta": {"progressToken": 1}})
        await wait_until(lambda: (app.stats().sessions, app.stats().streams) == (1, 1))
        assert app.stats().replay_bytes > 0
        await (await peer.http("DELETE", None, {"mcp-session-id": peer.session})).read()
        await wait_until(lambda: app.stats() == ServerStats())


async def test_clients_of_the_transport_of_2024_are_counted() -> None:
    app = ControlledServer().app
    async with serve(app) as web, Client(f"http://127.0.0.1:{web.port}/sse"):
        assert (app.stats().sessions, app.stats().streams) == (1, 1)
    assert app.stats() == ServerStats()


def test_a_client_without_await_has_the_same_counts() -> None:
    with SyncClient(ControlledServer().app) as client:
        assert client.stats() == ClientStats(connections=1)
    assert client.stats() == ClientStats()


async def test_a_host_counts_servers_calls_and_questions(tmp_path: Path) -> None:
    stage = ControlledServer()
    consent = FileConsent(tmp_path / "inbox.db")
    policy = Policy("ask", [rule("allow", tool="stage.wait")])
    async with Host(policy=policy, consent=consent) as host:
        host.add("stage", stage.app)
        assert host.stats() == HostStats()
        running = asyncio.create_task(host.call("stage.wait", name="w"))
        await stage.wait_until_started("w")
        assert host.stats() == HostStats(connected_servers=1, running_calls=1)
        stage.release("w")
        await running
        waiting = await host.call("stage.echo", {"text": "hi"}, wait=False)
        assert host.stats() == HostStats(connected_servers=1, open_questions=1)
        await host.answer(waiting.ticket, True)
        assert host.stats() == HostStats(connected_servers=1)
    assert host.stats() == HostStats()
    consent.close()
