"""Test handshake sessions over HTTP: their ids, owners and end."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from behaviour.manifest import requirement
from dovetail import Context, Server, ServerLimits
from dovetail.errors import ConnectionLost
from dovetail.server.server import get_dispatcher
from support.controlled_server import ControlledServer, call_params, expect_error, text
from support.driver import CLIENT, DRAFT, HANDSHAKE, STATELESS, Peer, connect, connect_again
from support.raw_http import TIMEOUT_S

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


async def by_token(headers: Mapping[bytes, bytes]) -> str | None:
    """Whoever carries a token is who the token says."""
    token = headers.get(b"authorization", b"").decode()
    return token.removeprefix("Bearer ") or None


async def status(peer: Peer, method: str = "POST", **headers: str | None) -> int:
    """The status of a ping, or of another request with the session's headers."""
    given: dict[str, str | None] = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-session-id": peer.session,
    }
    given |= {name.replace("_", "-"): value for name, value in headers.items()} | peer.extra_headers
    response = await peer.http(method, None, given, PING if method == "POST" else b"")
    await response.close()
    return response.status


@requirement("session.id")
async def test_ids_are_visible_unique_and_long(revision: str) -> None:
    async with connect(ControlledServer().app, "http", revision, handshake=False) as peer:
        seen: set[str] = set()
        for _ in range(50):
            await peer.initialize()
            assert peer.session is not None
            seen.add(peer.session)
        assert len(seen) == 50
        for id in seen:
            assert all(0x21 <= ord(letter) <= 0x7E for letter in id)
            assert len(id) >= 22  # 128 bits in base64
        starts = {id[:8] for id in seen}
        assert len(starts) == 50, "ids that begin alike can be guessed"


@requirement("session.required")
async def test_a_request_without_the_id_is_bad(revision: str) -> None:
    async with connect(ControlledServer().app, "http", revision) as peer:
        assert await status(peer, mcp_session_id=None) == 400
        for method in ("GET", "DELETE"):
            assert await status(peer, method, mcp_session_id=None) == 400, method
        assert await status(peer) == 200


@requirement("session.unknown")
async def test_an_unknown_id_is_not_found(revision: str) -> None:
    async with connect(ControlledServer().app, "http", revision) as peer:
        assert peer.session is not None
        for wrong in ("x", peer.session[:-1], peer.session + "x", peer.session.swapcase(), ""):
            for method in ("POST", "GET", "DELETE"):
                assert await status(peer, method, mcp_session_id=wrong) == 404, (method, wrong)
        assert await status(peer) == 200


@requirement("session.delete")
async def test_a_session_ends_on_the_clients_wish(revision: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, "http", revision) as peer:
        running = peer.start("tools/call", call_params("wait", name="w"))
        await stage.wait_until_started("w")
        response = await peer.http("DELETE", None, {"mcp-session-id": peer.session})
        assert (response.status, await response.read()) == (204, b"")
        assert "content-length" not in response.headers
        for method in ("POST", "GET", "DELETE"):
            assert await status(peer, method) == 404, method
        assert await stage.wait_until_ended("w") == "cancelled"
        with pytest.raises(ConnectionLost):
            await running
        assert peer.listening is not None
        # Its stream ends too.
        await asyncio.wait_for(peer.wait_streams_ended(), TIMEOUT_S)


@requirement("session.delete")
async def test_deleting_a_session_leaves_the_others_alone(revision: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, "http", revision) as peer, connect_again(peer) as other:
        running = other.start("tools/call", call_params("wait", name="w"))
        await stage.wait_until_started("w")
        await (await peer.http("DELETE", None, {"mcp-session-id": peer.session})).read()
        stage.release("w")
        assert text(await running) == "w is done"


@requirement("session.principal")
async def test_a_session_belongs_to_who_opened_it(revision: str) -> None:
    app = Server("x", auth=by_token)

    @app.tool
    async def who(ctx: Context) -> str:
        return str(ctx.principal)

    ann, bob = {"authorization": "Bearer ann"}, {"authorization": "Bearer bob"}
    async with connect(app, "http", revision, headers=ann) as peer:
        assert text(await peer.request("tools/call", call_params("who"))) == "ann"
        async with connect_again(peer, headers=bob) as other:
            assert text(await other.request("tools/call", call_params("who"))) == "bob"
            for method in ("POST", "GET", "DELETE"):
                response = await peer.http(method, None, bob | {"mcp-session-id": peer.session} | _post_headers(), PING)
                assert response.status == 404, method
                await response.close()
                response = await peer.http(method, None, {"mcp-session-id": peer.session} | _post_headers(), PING)
                assert response.status == 404, f"{method} of somebody without a name"
                await response.close()
        assert text(await peer.request("tools/call", call_params("who"))) == "ann"


def _post_headers() -> dict[str, str]:
    return {"content-type": "application/json", "accept": "application/json, text/event-stream"}


@requirement("session.get-once")
async def test_a_session_has_one_stream(revision: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, "http", revision) as peer:
        assert await status(peer, "GET") == 409
        assert peer.listening is not None
        peer.listening.abort()
        async with asyncio.timeout(TIMEOUT_S):
            while (await _listen_again(peer)) == 409:
                pass
        stage.app.notify_tools_changed()
        await peer.next_notification("notifications/tools/list_changed")


async def _listen_again(peer: Peer) -> int:
    headers = {"accept": "text/event-stream", "mcp-session-id": peer.session}
    response = await peer.http("GET", None, headers)
    if response.status == 200:
        peer.read_stream(response)
    else:
        await response.close()
    return response.status


@requirement("session.get-accept")
async def test_the_stream_must_be_acceptable(revision: str) -> None:
    async with connect(ControlledServer().app, "http", revision, listen=False) as peer:
        assert await status(peer, "GET", accept="application/json") == 406
        assert await status(peer, "GET", accept="text/event-stream") == 200


@requirement("session.notices-wait")
async def test_a_change_waits_for_the_stream_to_be_opened(revision: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, "http", revision, listen=False) as peer:
        for _ in range(3):
            stage.app.notify_tools_changed()
        assert await peer.request("ping") == {}
        await peer.listen()
        await peer.next_notification("notifications/tools/list_changed")
        stage.app.notify_prompts_changed()
        await peer.next_notification("notifications/prompts/list_changed")
        assert [method for method, _ in peer.notifications].count("notifications/tools/list_changed") == 1


@requirement("session.notices-own")
async def test_every_session_hears_of_a_change_once(revision: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, "http", revision) as peer, connect_again(peer) as other:
        running = peer.start("tools/call", call_params("talk", name="t"), progress_token=1)
        await stage.wait_until_started("t")
        stage.app.notify_tools_changed()
        for one in (peer, other):
            await one.next_notification("notifications/tools/list_changed")
        stage.release("t")
        await running
        assert running.response is not None
        told = [event.message.get("method") for event in running.response.events_seen if event.data]
        assert "notifications/tools/list_changed" not in told
        for one in (peer, other):
            assert [method for method, _ in one.notifications].count("notifications/tools/list_changed") == 1


@requirement("session.isolation")
async def test_answers_do_not_cross_between_sessions(revision: str) -> None:
    app = Server("x")

    @app.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.list_roots())[0].uri

    def roots(name: str) -> Any:
        return {"roots/list": lambda _: {"roots": [{"uri": f"file:///{name}"}]}}

    async with (
        connect(app, "http", revision, capabilities={"roots": {}}, answer=roots("a")) as peer,
        connect_again(peer, capabilities={"roots": {}}, answer=roots("b")) as other,
    ):
        results = await asyncio.gather(
            *(one.request("tools/call", call_params("ask"), id=7) for one in (peer, other) for _ in range(5))
        )
        assert [text(result) for result in results] == ["file:///a"] * 5 + ["file:///b"] * 5


@requirement("session.isolation")
async def test_a_session_cannot_answer_for_another() -> None:
    app = Server("x")
    asked = asyncio.Event()
    go_on = asyncio.Event()

    @app.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.list_roots())[0].uri

    async def honest(_: Any) -> Any:
        asked.set()
        await go_on.wait()
        return {"roots": [{"uri": "file:///honest"}]}

    async with (
        connect(app, "http", "2025-11-25", capabilities={"roots": {}}, answer={"roots/list": honest}) as peer,
        connect_again(peer) as thief,
    ):
        pending = peer.start("tools/call", call_params("ask"))
        await asyncio.wait_for(asked.wait(), TIMEOUT_S)
        for id in range(20):
            forged = {"jsonrpc": "2.0", "id": id, "result": {"roots": [{"uri": "file:///forged"}]}}
            assert (await thief.raw(json.dumps(forged).encode())).status == 202
        go_on.set()
        assert text(await pending) == "file:///honest"


@requirement("session.isolation")
async def test_a_session_cannot_cancel_for_another() -> None:
    stage = ControlledServer()
    async with connect(stage.app, "http", "2025-11-25") as peer, connect_again(peer) as thief:
        pending = peer.start("tools/call", call_params("wait", name="w"), id=5)
        await stage.wait_until_started("w")
        assert await thief.cancel(5) == 202
        stage.release("w")
        assert text(await pending) == "w is done"


@requirement("session.idle")
async def test_an_unused_session_expires(revision: str) -> None:
    async with connect(
        ControlledServer(limits=ServerLimits(session_idle_timeout=0.4)).app, "http", revision, listen=False
    ) as peer:
        assert await status(peer) == 200
        await asyncio.sleep(0.6)
        assert await status(peer) == 404


@requirement("session.idle")
async def test_a_session_at_work_or_listening_does_not_expire(revision: str) -> None:
    stage = ControlledServer(limits=ServerLimits(session_idle_timeout=0.4))
    async with connect(stage.app, "http", revision) as peer:
        await asyncio.sleep(0.6)
        assert await status(peer) == 200
        async with connect_again(peer, listen=False) as other:
            pending = other.start("tools/call", call_params("wait", name="w"))
            await stage.wait_until_started("w")
            await asyncio.sleep(0.6)
            assert await status(other) == 200
            stage.release("w")
            await pending


@requirement("session.idle")
async def test_what_expired_is_swept_away() -> None:
    app = ControlledServer(limits=ServerLimits(session_idle_timeout=0.3, session_lifetime=1.0)).app
    endpoint = app.asgi()
    from support.driver import serve_asgi

    async with serve_asgi(endpoint, get_dispatcher(app).limits) as web:
        peer = Peer("http", "2025-11-25", {}, {})
        peer.web = web
        await peer.open()
        unused = Peer("http", "2025-11-25", {}, {})
        unused.web = web
        await unused.open(listen=False)
        async with asyncio.timeout(TIMEOUT_S):
            await peer.wait_streams_ended()  # a listener's stream ends with its session's lifetime
        assert app.stats().sessions == 0
        assert await status(unused) == 404
        await peer.stop()


@requirement("session.lifetime")
async def test_no_session_lives_longer_than_its_lifetime(revision: str) -> None:
    async with connect(ControlledServer(limits=ServerLimits(session_lifetime=0.6)).app, "http", revision) as peer:
        assert await status(peer) == 200
        await asyncio.sleep(0.8)
        assert await status(peer) == 404


@requirement("session.opening")
async def test_a_session_that_is_never_opened_fully_expires(revision: str) -> None:
    async with connect(
        ControlledServer(limits=ServerLimits(initialize_timeout=0.4)).app, "http", revision, handshake=False
    ) as peer:
        await peer.initialize()
        await asyncio.sleep(0.6)
        assert await status(peer) == 404
        await peer.open(listen=False)
        await asyncio.sleep(0.6)
        assert await status(peer) == 200


@requirement("session.cap")
async def test_the_longest_unused_session_gives_way(revision: str) -> None:
    async with connect(ControlledServer(limits=ServerLimits(max_sessions=3)).app, "http", revision) as peer:
        ids: list[str | None] = []
        for _ in range(2):
            await _open_another(peer, ids)
        assert await status(peer, mcp_session_id=ids[0]) == 200  # so ids[1] is the longest unused
        await _open_another(peer, ids)
        assert [await status(peer, mcp_session_id=id) for id in ids] == [200, 404, 200]
        assert await status(peer) == 200, "the one that listens is in use"


@requirement("session.cap")
async def test_without_idle_sessions_a_new_one_is_refused(revision: str) -> None:
    app = ControlledServer(limits=ServerLimits(max_sessions=2)).app
    async with connect(app, "http", revision) as peer, connect_again(peer) as other:
        response = await peer.http("POST", None, _post_headers(), json.dumps(_initialize(revision)).encode())
        assert response.status == 503
        assert int(response.headers["retry-after"]) > 0
        await response.close()
        assert other.listening is not None
        other.listening.abort()
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                response = await peer.http("POST", None, _post_headers(), json.dumps(_initialize(revision)).encode())
                await response.close()
                if response.status == 200:
                    break


@requirement("session.cap")
async def test_one_principal_has_its_share() -> None:
    limits = ServerLimits(max_sessions_per_principal=2)
    ann = {"authorization": "Bearer ann"}
    async with (
        connect(ControlledServer(limits=limits, auth=by_token).app, "http", "2025-11-25", headers=ann) as peer,
        connect_again(peer, headers=ann),
        connect_again(peer, headers={"authorization": "Bearer bob"}),
    ):
        data = json.dumps(_initialize("2025-11-25")).encode()
        response = await peer.http("POST", None, _post_headers() | ann, data)
        assert response.status == 429
        assert int(response.headers["retry-after"]) > 0
        await response.close()


def _initialize(revision: str) -> dict[str, Any]:
    params = {"protocolVersion": revision, "capabilities": {}, "clientInfo": CLIENT}
    return {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}


async def _open_another(peer: Peer, ids: list[str | None]) -> None:
    response = await peer.http("POST", None, _post_headers(), json.dumps(_initialize(peer.revision)).encode())
    assert response.status == 200
    ids.append(response.headers["mcp-session-id"])
    await response.read()
    await asyncio.sleep(0.002)  # the loop's clock tells them apart
    assert await status(peer, mcp_session_id=ids[-1]) == 200
    await asyncio.sleep(0.002)


@requirement("session.reinitialize")
async def test_initialize_always_opens_a_new_session(revision: str) -> None:
    async with connect(ControlledServer().app, "http", revision) as peer:
        first = peer.session
        message = json.dumps(_initialize(revision)).encode()
        reply = await peer.raw(message, headers={"mcp-session-id": first, "mcp-protocol-version": None})
        assert reply.status == 200
        assert reply.headers["mcp-session-id"] != first
        gone = await peer.raw(message, headers={"mcp-session-id": "gone", "mcp-protocol-version": None})
        assert gone.status == 200
        assert await status(peer) == 200


@requirement("session.version")
async def test_a_version_header_must_name_the_version_of_the_session(revision: str) -> None:
    async with connect(ControlledServer().app, "http", revision) as peer:
        for version in (*HANDSHAKE, DRAFT, "2023-01-01"):
            reply = await peer.raw(PING, headers={"mcp-protocol-version": version})
            assert reply.status == (200 if version == revision else 400)
            if version != revision:
                assert "Unsupported protocol version" in reply.message["error"]["message"]
        assert (await peer.raw(PING, headers={"mcp-protocol-version": None})).status == 200
        assert await status(peer, "GET", accept="text/event-stream", mcp_protocol_version="2023-01-01") == 400


@requirement("session.none-stateless")
async def test_the_stateless_era_opens_no_session() -> None:
    app = ControlledServer().app
    endpoint = app.asgi()
    from support.driver import serve_asgi

    async with serve_asgi(endpoint, get_dispatcher(app).limits) as web:
        peer = Peer("http", STATELESS, {}, {})
        peer.web = web
        for _ in range(3):
            pending = peer.start("tools/call", call_params("count", to=2), progress_token=1)
            await pending
            assert pending.response is not None
            assert "mcp-session-id" not in pending.response.headers
        assert app.stats().sessions == 0
        exc = await expect_error(peer.request("tools/call", {"name": "none"}))
        assert "mcp-session-id" not in exc.headers
        await peer.stop()
