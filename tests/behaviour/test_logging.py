"""Test log messages: requested per session or per request, filtered by level, sent on the request's stream."""

import asyncio
from typing import Any

from behaviour.manifest import requirement
from behaviour.request_helpers import call, expect_error
from dovetail import Context, Server
from support.driver import STATELESS, Peer, connect, connect_again

LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
MESSAGE = "notifications/message"


def server() -> Server:
    app = Server("talkative")

    @app.tool
    async def talk(ctx: Context) -> str:
        for level in LEVELS:
            await ctx.log(level, f"said at {level}")  # type: ignore[arg-type]
        return "talked"

    @app.tool
    async def data(ctx: Context) -> str:
        await ctx.warning({"error": "lost", "details": [1, None, {"port": 5432}]}, logger="database")
        await ctx.error(None)
        await ctx.error("text")
        return "logged"

    @app.tool
    async def two_steps(ctx: Context) -> str:
        await ctx.error(f"first of {ctx.request_id}")
        await asyncio.sleep(0)
        await ctx.error(f"second of {ctx.request_id}")
        return "done"

    return app


def levels(peer: Peer) -> list[str]:
    return [params["level"] for method, params in peer.notifications if method == MESSAGE]


@requirement("logging.session-level")
async def test_a_session_hears_what_it_set(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        await call(peer, "talk")
        assert levels(peer) == LEVELS[1:], "until a level is set, everything but debug"
        for place, level in enumerate(LEVELS):
            peer.notifications.clear()
            assert await peer.request("logging/setLevel", {"level": level}) == {}
            await call(peer, "talk")
            assert levels(peer) == LEVELS[place:]


@requirement("logging.session-level", transports=("memory", "http"))
async def test_the_level_of_one_session_is_not_anothers(revision: str, transport: str) -> None:
    app = server()
    async with connect(app, transport, revision) as peer:
        await peer.request("logging/setLevel", {"level": "emergency"})
        async with connect_again(peer) if transport == "http" else connect(app, transport, revision) as other:
            await other.request("logging/setLevel", {"level": "debug"})
            await call(peer, "talk")
            await call(other, "talk")
            assert levels(other) == LEVELS
        assert levels(peer) == ["emergency"]


@requirement("logging.request-level")
async def test_a_request_hears_what_it_names(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        for place, level in enumerate(LEVELS):
            peer.notifications.clear()
            await peer.request("tools/call", {"name": "talk"}, log_level=level)
            assert levels(peer) == LEVELS[place:]
            assert "result" in peer.messages[-1], "the response comes last"


@requirement("logging.request-level", transports=("http",))
async def test_messages_stay_on_the_stream_of_their_request(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        loud = [peer.start("tools/call", {"name": "two_steps"}, log_level="debug") for _ in range(3)]
        quiet = peer.start("tools/call", {"name": "two_steps"})
        await asyncio.gather(*loud, quiet)
        for pending in loud:
            assert pending.response is not None
            said = [event.message["params"]["data"] for event in pending.response.events_seen[:-1]]
            assert said == [f"first of {pending.id}", f"second of {pending.id}"]
        assert quiet.response is not None
        assert quiet.response.media_type == "application/json"


@requirement("logging.silence")
async def test_a_request_without_a_level_hears_nothing(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        await peer.request("tools/call", {"name": "talk"}, log_level="debug")
        peer.notifications.clear()
        await call(peer, "talk")
        await peer.request("tools/call", {"name": "talk"}, progress_token="t")
        assert peer.notifications == []


@requirement("logging.bad-level")
async def test_an_unknown_level_is_an_error(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        wrong: list[Any] = ["verbose", "INFO", "", 3, ["info"], {}, True]
        for level in wrong:
            if revision == STATELESS:
                request = peer.request("tools/call", {"name": "talk"}, log_level=level)
            else:
                request = peer.request("logging/setLevel", {"level": level})
            assert (await expect_error(request)).code == -32602, level
        if revision != STATELESS:
            assert (await expect_error(peer.request("logging/setLevel", {}))).code == -32602
        assert peer.notifications == []


@requirement("logging.message")
async def test_a_message_carries_level_logger_and_data(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        level = "debug" if revision == STATELESS else None
        await peer.request("tools/call", {"name": "data"}, log_level=level)
        assert [params for _, params in peer.notifications] == [
            {
                "level": "warning",
                "logger": "database",
                "data": {"error": "lost", "details": [1, None, {"port": 5432}]},
            },
            {"level": "error", "logger": "talkative", "data": None},
            {"level": "error", "logger": "talkative", "data": "text"},
        ]


@requirement("logging.capability")
async def test_logging_is_declared(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        opened = peer.initialize_result or await peer.request("server/discover")
        assert opened["capabilities"]["logging"] == {}
