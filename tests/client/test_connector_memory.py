"""Test what a client remembers about a server: its era, and the subscriptions to repeat after a reconnect."""

import sys
from typing import Any

import pytest

from dovetail import Client, ClientLimits, Timeouts
from dovetail.errors import RequestTimeout
from support.fake_service import wait_until
from support.mentions import mentions
from support.scripted_server import CLOSE, SILENCE, ErrorReply, ScriptedServer, serve_on_socket, serve_over_http

PROGRAM = "from dovetail import Server; Server('both').run()  # {}"
SOON = ClientLimits(reconnect_delay=0.01)


@pytest.mark.parametrize("version", ["handshake", "2025-06-18"])
async def test_a_wish_is_not_a_discovery(version: str) -> None:
    both = [sys.executable, "-c", PROGRAM.format(version)]  # a server not met in another test
    async with Client(both, protocol_version=version) as insisting:
        assert insisting.protocol_version != "2026-07-28"
    async with Client(both) as open_to_anything:
        assert open_to_anything.protocol_version == "2026-07-28"


def subscribing(script: ScriptedServer) -> list[tuple[str, str]]:
    return [
        (message["method"].removeprefix("resources/"), message["params"]["uri"])
        for message in script.received
        if message.get("method", "").endswith("subscribe")
    ]


async def lost(one: Client, script: ScriptedServer) -> None:
    """Lose the connection, and have it opened again."""
    script.reactions = {**script.reactions, "prompts/list": _first(CLOSE, {"prompts": []})}
    assert await one.list_prompts() == []


def _first(reaction: Any, then: Any) -> Any:
    left = [reaction]
    return lambda _: left.pop() if left else then


async def test_subscriptions_are_asked_for_again_until_they_are_taken_back() -> None:
    script = ScriptedServer("handshake")
    async with serve_on_socket(script) as at, Client(at, limits=SOON) as one:
        for uri in ("a", "b", "a"):
            await one.subscribe_resource(uri)
        await one.unsubscribe_resource("b")
        script.received.clear()
        await lost(one, script)
        assert subscribing(script) == [("subscribe", "a")]
        await one.unsubscribe_resource("a")
        script.received.clear()
        await lost(one, script)
        assert subscribing(script) == []


async def test_over_http_the_stream_comes_before_the_subscriptions() -> None:
    script = ScriptedServer("handshake", session="first")
    async with serve_over_http(script) as at, Client(at, limits=SOON) as one:
        await one.subscribe_resource("a")
        script.heads.clear()
        script.received.clear()
        script.reactions = {"tools/list": _first(ErrorReply(-32000, "session not found", status=404), {"tools": []})}
        assert await one.list_tools() == []
        assert subscribing(script) == [("subscribe", "a")]


async def test_a_listener_and_a_subscription_to_the_same_resource_do_not_end_each_other() -> None:
    script = ScriptedServer("handshake")
    async with serve_on_socket(script) as at, Client(at, limits=SOON) as one:
        await one.subscribe_resource("a")
        async with one.listen(uris=["a"]):
            pass
        async with one.listen(uris=["a"]):
            await one.unsubscribe_resource("a")
            assert "unsubscribe" not in dict(subscribing(script))
        await wait_until(lambda: ("unsubscribe", "a") in subscribing(script))


async def test_a_subscription_that_cannot_be_had_again_costs_nothing_but_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = ScriptedServer("handshake", {"resources/subscribe": _first({}, ErrorReply(-32002, "gone"))})
    async with serve_on_socket(script) as at, Client(at, limits=SOON, name="it") as one:
        await one.subscribe_resource("a")
        await lost(one, script)
        assert await one.call("go") == "ok"
    assert mentions(caplog.text, "it", "a", "gone")


async def test_the_log_level_is_asked_for_again() -> None:
    script = ScriptedServer("handshake")
    async with serve_on_socket(script) as at, Client(at, limits=SOON, log_handler=lambda _: None) as one:
        await one.set_logging_level("error")
        script.received.clear()
        await lost(one, script)
        assert [m["params"]["level"] for m in script.received if m.get("method") == "logging/setLevel"] == ["error"]


async def test_restoring_is_within_the_limit_of_the_opening() -> None:
    script = ScriptedServer("handshake", {"logging/setLevel": SILENCE})
    limits = Timeouts(initialize=0.3, request=300)
    async with serve_on_socket(script) as at:
        with pytest.raises(RequestTimeout):
            await Client(at, limits=SOON, timeout=limits, log_level="error").connect()
