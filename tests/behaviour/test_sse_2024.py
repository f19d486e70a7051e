"""Test the HTTP+SSE transport of the first protocol version: the event stream and the POST endpoint."""

import asyncio
import json
from collections.abc import Mapping

from behaviour.manifest import requirement
from dovetail import Context, Server, ServerLimits
from support.controlled_server import ControlledServer, call_params, text
from support.driver import connect, serve
from support.raw_http import TIMEOUT_S

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
JSON = {"content-type": "application/json"}


@requirement("sse.endpoint")
async def test_the_first_event_names_the_address_to_post_to() -> None:
    async with serve(ControlledServer().app) as web:
        seen: set[str] = set()
        for path, address in (("/sse", "/messages?"), ("/mcp/sse", "/mcp/messages?")):
            response = await web.open("GET", path, {"accept": "text/event-stream"})
            assert response.status == 200
            assert response.media_type == "text/event-stream"
            assert response.headers["x-accel-buffering"] == "no"
            async with asyncio.timeout(TIMEOUT_S):
                first = await anext(response.events())
            assert first.name == "endpoint"
            assert first.data is not None
            assert first.data.startswith(address)
            seen.add(first.data.partition("=")[2])
            await response.close()
        assert len(seen) == 2
        assert all(len(id) >= 22 for id in seen)


@requirement("sse.messages")
async def test_everything_the_server_says_is_a_message_event(revision: str, transport: str) -> None:
    stage = ControlledServer()

    @stage.app.tool
    async def ask(ctx: Context) -> str:
        await ctx.progress(1)
        await ctx.log("error", "about to ask")
        return (await ctx.list_roots())[0].uri

    answer = {"roots/list": lambda _: {"roots": [{"uri": "file:///r"}]}}
    async with connect(stage.app, transport, revision, capabilities={"roots": {}}, answer=answer) as peer:
        assert text(await peer.request("tools/call", call_params("ask"), progress_token=1)) == "file:///r"
        stage.app.notify_tools_changed()
        await peer.next_notification("notifications/tools/list_changed")
        assert peer.listening is not None
        assert {event.name for event in peer.listening.events_seen} == {"endpoint", "message"}
        assert [method for method, _ in peer.server_requests] == ["roots/list"]


@requirement("sse.post")
async def test_a_post_is_accepted_and_answered_on_the_stream() -> None:
    async with connect(ControlledServer().app, "sse", "2024-11-05") as peer:
        posted = await peer.collect(await peer.http("POST", peer.path, JSON, PING))
        assert (posted.status, posted.messages) == (202, [])
        assert (await peer.next_unmatched())["result"] == {}
        camel = peer.path.replace("session_id", "sessionId")
        assert (await peer.collect(await peer.http("POST", camel, JSON, PING))).status == 202
        assert (await peer.next_unmatched())["result"] == {}


@requirement("sse.refused")
async def test_a_post_that_belongs_nowhere_is_refused() -> None:
    async with connect(ControlledServer(limits=ServerLimits(max_body_bytes=2000)).app, "sse", "2024-11-05") as peer:

        async def status(method: str, path: str, headers: Mapping[str, str] = JSON, body: bytes = PING) -> int:
            response = await peer.http(method, path, headers, body)
            await response.close()
            return response.status

        assert await status("POST", "/messages") == 404
        assert await status("POST", "/messages?session_id=") == 404
        assert await status("POST", peer.path + "x") == 404
        assert await status("GET", peer.path) == 405
        assert await status("POST", "/sse") == 405
        assert await status("DELETE", "/sse") == 405
        assert await status("POST", peer.path, {"content-type": "text/plain"}) == 415
        assert await status("POST", peer.path, JSON, b" " * 2001) == 413
        assert await status("POST", peer.path, JSON | {"host": "evil.example"}) == 421
        assert await status("POST", peer.path, JSON | {"origin": "https://evil.example"}) == 403
        assert await status("GET", "/sse", {"host": "evil.example"}) == 421
        assert await peer.request("ping") == {}


@requirement("sse.leaving")
async def test_who_leaves_the_stream_leaves_the_session() -> None:
    stage = ControlledServer()
    async with connect(stage.app, "sse", "2024-11-05") as peer:
        peer.start("tools/call", call_params("wait", name="w"))
        await stage.wait_until_started("w")
        assert peer.listening is not None
        peer.listening.abort()
        assert await stage.wait_until_ended("w") == "cancelled"
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                response = await peer.http("POST", peer.path, JSON, PING)
                await response.close()
                if response.status == 404:
                    break


@requirement("sse.principal")
async def test_the_address_is_only_for_who_opened_the_stream() -> None:
    async def by_token(headers: Mapping[bytes, bytes]) -> str | None:
        return headers.get(b"authorization", b"").decode() or None

    app = Server("x", auth=by_token)

    @app.tool
    async def who(ctx: Context) -> str:
        return str(ctx.principal)

    async with connect(app, "sse", "2024-11-05", headers={"authorization": "ann"}) as peer:
        assert text(await peer.request("tools/call", call_params("who"))) == "ann"
        for other in ({}, {"authorization": "bob"}):
            response = await peer.http("POST", peer.path, JSON | other, PING)
            assert response.status == 404
            await response.close()


@requirement("sse.several")
async def test_every_stream_is_a_conversation_of_its_own() -> None:
    stage = ControlledServer()
    async with serve(stage.app) as web:
        streams = []
        for number in range(3):
            response = await web.open("GET", "/sse", {"accept": "text/event-stream"})
            events = response.events()
            address = (await anext(events)).data
            assert address is not None
            streams.append((number, events, address))
        for number, _, address in streams:
            body = json.dumps({"jsonrpc": "2.0", "id": number, "method": "ping"}).encode()
            assert (await web.open("POST", address, JSON, body)).status == 202
        for number, events, _ in streams:
            async with asyncio.timeout(TIMEOUT_S):
                assert (await anext(events)).message == {"jsonrpc": "2.0", "id": number, "result": {}}


@requirement("sse.cap")
async def test_streams_are_counted_as_sessions() -> None:
    async with serve(ControlledServer(limits=ServerLimits(max_sessions=2)).app) as web:
        kept = [await web.open("GET", "/sse", {"accept": "text/event-stream"}) for _ in range(2)]
        assert [one.status for one in kept] == [200, 200]
        refused = await web.open("GET", "/sse", {"accept": "text/event-stream"})
        assert refused.status == 503


@requirement("sse.keep-alive")
async def test_a_quiet_stream_carries_comments() -> None:
    async with serve(ControlledServer(limits=ServerLimits(keep_alive_interval=0.02)).app) as web:
        response = await web.open("GET", "/sse", {"accept": "text/event-stream"})
        async with asyncio.timeout(TIMEOUT_S):
            async for _ in response.events():
                if sum(event.comment for event in response.events_seen) == 3:
                    break


@requirement("sse.optional")
async def test_the_old_pair_can_be_left_out() -> None:
    for options in ({"http_sse": False}, {"sessions": False}):
        async with serve(ControlledServer().app, **options) as web:
            for method, path in (("GET", "/sse"), ("POST", "/messages"), ("GET", "/mcp/sse")):
                response = await web.open(method, path, JSON)
                assert response.status == 404, (options, path)
