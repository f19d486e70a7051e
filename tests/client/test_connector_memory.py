"""What a client remembers of a server it has met: the era it found out, never one it was told to speak; and what it had
asked for, which is asked for again on a new connection.
"""

import sys
from typing import Any

import pytest

from dovetail import Client, ClientLimits, Timeouts
from dovetail.errors import RequestTimeout
from mentions import mentions
from scripted_server import CLOSE, SILENCE, ErrorReply, ScriptedServer, serve_on_socket, serve_over_http
from transports.fake_service import wait_until

PROGRAM = "from dovetail import Server; Server('both').run()  # {}"
SOON = ClientLimits(reconnect_delay=0.01)


@pytest.mark.parametrize("version", ["handshake", "2025-06-18"])
async def test_a_wish_is_not_a_discovery(version: str) -> None:
    both = [sys.executable, "-c", PROGRAM.format(version)]  # a server not met in another test
    async with Client(both, protocol_version=version) as insisting:
        assert insisting.protocol_version != "2026-07-28"
    async with Client(both) as open_to_anything:
        assert open_to_anything.protocol_version == "2026-07-28"


def subscribing(play: ScriptedServer) -> list[tuple[str, str]]:
    return [
        (message["method"].removeprefix("resources/"), message["params"]["uri"])
        for message in play.received
        if message.get("method", "").endswith("subscribe")
    ]


async def lost(one: Client, play: ScriptedServer) -> None:
    """Lose the connection, and have it opened again."""
    play.reactions = {**play.reactions, "prompts/list": _first(CLOSE, {"prompts": []})}
    assert await one.list_prompts() == []


def _first(reaction: Any, then: Any) -> Any:
    left = [reaction]
    return lambda _: left.pop() if left else then


async def test_subscriptions_are_asked_for_again_until_they_are_taken_back() -> None:
    play = ScriptedServer("handshake")
    async with serve_on_socket(play) as at, Client(at, limits=SOON) as one:
        for uri in ("a", "b", "a"):
            await one.subscribe_resource(uri)
        await one.unsubscribe_resource("b")
        play.received.clear()
        await lost(one, play)
        assert subscribing(play) == [("subscribe", "a")]
        await one.unsubscribe_resource("a")
        play.received.clear()
        await lost(one, play)
        assert subscribing(play) == []


async def test_over_http_the_stream_comes_before_the_subscriptions() -> None:
    play = ScriptedServer("handshake", session="first")
    async with serve_over_http(play) as at, Client(at, limits=SOON) as one:
        await one.subscribe_resource("a")
        play.heads.clear()
        play.received.clear()
        play.reactions = {"tools/list": _first(ErrorReply(-32000, "session not found", status=404), {"tools": []})}
        assert await one.list_tools() == []
        assert subscribing(play) == [("subscribe", "a")]


async def test_a_listener_and_a_subscription_to_the_same_resource_do_not_end_each_other() -> None:
    play = ScriptedServer("handshake")
    async with serve_on_socket(play) as at, Client(at, limits=SOON) as one:
        await one.subscribe_resource("a")
        async with one.listen(uris=["a"]):
            pass
        async with one.listen(uris=["a"]):
            await one.unsubscribe_resource("a")
            assert "unsubscribe" not in dict(subscribing(play))
        await wait_until(lambda: ("unsubscribe", "a") in subscribing(play))


async def test_a_subscription_that_cannot_be_had_again_costs_nothing_but_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    play = ScriptedServer("handshake", {"resources/subscribe": _first({}, ErrorReply(-32002, "gone"))})
    async with serve_on_socket(play) as at, Client(at, limits=SOON, name="it") as one:
        await one.subscribe_resource("a")
        await lost(one, play)
        assert await one.call("go") == "ok"
    assert mentions(caplog.text, "it", "a", "gone")


async def test_the_log_level_is_asked_for_again() -> None:
    play = ScriptedServer("handshake")
    async with serve_on_socket(play) as at, Client(at, limits=SOON, log_handler=lambda _: None) as one:
        await one.set_logging_level("error")
        play.received.clear()
        await lost(one, play)
        assert [m["params"]["level"] for m in play.received if m.get("method") == "logging/setLevel"] == ["error"]


async def test_restoring_is_within_the_limit_of_the_opening() -> None:
    play = ScriptedServer("handshake", {"logging/setLevel": SILENCE})
    limits = Timeouts(initialize=0.3, request=300)
    async with serve_on_socket(play) as at:
        with pytest.raises(RequestTimeout):
            await Client(at, limits=SOON, timeout=limits, log_level="error").connect()
