"""Test the HTTP endpoint: statuses, headers, response types, mounting and running."""

import asyncio
import contextlib
import json
import os
import re
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from behaviour import programs
from behaviour.manifest import requirement
from dovetail import Context, Server, ServerLimits
from dovetail.errors import InsufficientScope, ProtocolError, ServerBusy
from support.certificates import write_certificate
from support.controlled_server import ControlledServer, call_params, expect_error, text
from support.driver import DRAFT, JSON_AND_STREAM, STATELESS, Peer, connect, serve, serve_asgi, spawn, stop_process
from support.raw_http import TIMEOUT_S, HttpServerAddress, Response


async def post(peer: Peer, message: dict[str, Any], **headers: str | None) -> Any:
    """Post a message with the usual headers and changes to them."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    data = json.dumps({"jsonrpc": "2.0"} | message).encode()
    return await peer.raw(data, headers=peer.headers(message, peer.revision) | named)


def echo(peer: Peer, id: int = 1) -> dict[str, Any]:
    return {"id": id} | peer.message("tools/call", call_params("echo", text="hi"))


def comments(response: Response) -> int:
    return sum(event.comment for event in response.events_seen)


@requirement("http.notice")
async def test_a_notice_is_accepted_with_nothing(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        reply = await post(peer, peer.message("notifications/cancelled", {"requestId": 99}))
        assert (reply.status, reply.body) == (202, b"")
        assert reply.headers.get("content-length", "0") == "0"


@requirement("http.content-type")
async def test_the_body_must_be_declared_as_json(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        for wrong in ("text/plain", "application/jsonx", "application/x-www-form-urlencoded", "", None):
            reply = await post(peer, echo(peer), content_type=wrong)
            assert (reply.status, reply.code) == (415, -32600), wrong
            assert "id" not in reply.message
        for right in ("application/json; charset=utf-8", "Application/JSON"):
            assert (await post(peer, echo(peer), content_type=right)).status == 200, right


@requirement("http.accept")
@pytest.mark.parametrize(
    ("accept", "plain", "streamed"),
    [
        (JSON_AND_STREAM, "application/json", "text/event-stream"),
        ("text/event-stream, application/json;q=0.9", "application/json", "text/event-stream"),
        ("*/*", "application/json", "text/event-stream"),
        ("application/*, text/*", "application/json", "text/event-stream"),
        (None, "application/json", "text/event-stream"),
        ("Application/JSON, Text/Event-Stream", "application/json", "text/event-stream"),
        ("application/json", "application/json", "application/json"),
        ("application/json, text/event-stream;q=0", "application/json", "application/json"),
        ("text/event-stream", "text/event-stream", "text/event-stream"),
    ],
)
async def test_a_reply_is_of_a_kind_the_client_takes(
    revision: str, transport: str, accept: str | None, plain: str, streamed: str
) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        quick = peer.start("tools/call", call_params("echo", text="hi"), headers={"accept": accept})
        assert text(await quick) == "hi"
        assert quick.response is not None
        assert quick.response.media_type == plain
        telling = peer.start("tools/call", call_params("count", to=3), headers={"accept": accept}, progress_token="p")
        assert text(await telling) == "counted to 3"
        assert telling.response is not None
        assert telling.response.media_type == streamed
        assert len(peer.notifications) == (0 if streamed == "application/json" else 3)


@requirement("http.not-acceptable")
async def test_a_client_that_accepts_neither_type_gets_406(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        for accept in ("text/html", "image/*", "application/json;q=0, text/event-stream;q=0", "x"):
            reply = await post(peer, echo(peer), accept=accept)
            assert (reply.status, reply.code) == (406, -32600), accept


@requirement("http.streaming")
async def test_a_stream_ends_with_the_result(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        pending = peer.start("tools/call", call_params("count", to=3), progress_token=7)
        await pending
        response = await pending.streaming()
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["x-accel-buffering"] == "no"
        assert "no-cache" in response.headers["cache-control"]
        assert pending.task is not None
        await asyncio.wait_for(pending.task, TIMEOUT_S)  # the server closes the stream
        messages = [event.message for event in response.events_seen if event.data]
        assert [one.get("method") for one in messages] == ["notifications/progress"] * 3 + [None]
        assert messages[-1]["id"] == pending.id


@requirement("http.one-stream")
async def test_messages_about_a_request_are_sent_only_on_its_response(revision: str, transport: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, transport, revision) as peer:
        calls = {
            name: peer.start("tools/call", call_params("talk", name=name), progress_token=name) for name in ("a", "b")
        }
        for name in calls:
            await stage.wait_until_started(name)
            stage.release(name)
        for name, pending in calls.items():
            await pending
            assert pending.response is not None
            told = [event.message for event in pending.response.events_seen if event.data]
            tokens = [one["params"].get("progressToken") for one in told if "method" in one]
            if revision == DRAFT:
                tokens = [one["params"]["progress"]["message"] for one in told if "method" in one]
            assert tokens == [name, name]
        if peer.listening is not None:
            assert [event for event in peer.listening.events_seen if event.data] == []


@requirement("http.keep-alive")
async def test_a_quiet_stream_is_kept_alive_by_comments(revision: str, transport: str) -> None:
    stage = ControlledServer(limits=ServerLimits(keep_alive_interval=0.02))
    async with connect(stage.app, transport, revision) as peer:
        pending = peer.start("tools/call", call_params("talk", name="t"), progress_token=1)
        response = await pending.streaming()
        await peer.wait_until(lambda: comments(response) >= 3 or None, "a comment")
        stage.release("t")
        assert text(await pending) == "t is done"


@requirement("http.keep-alive")
async def test_the_stream_of_a_session_is_kept_alive_too() -> None:
    stage = ControlledServer(limits=ServerLimits(keep_alive_interval=0.02))
    async with connect(stage.app, "http", "2025-11-25") as peer:
        stream = peer.listening
        assert stream is not None
        await peer.wait_until(lambda: comments(stream) >= 3 or None, "a comment")


@requirement("http.silent")
async def test_a_silent_call_becomes_a_stream_with_comments(revision: str, transport: str) -> None:
    stage = ControlledServer(limits=ServerLimits(keep_alive_interval=0.02))
    async with connect(stage.app, transport, revision) as peer:
        pending = peer.start("tools/call", call_params("wait", name="s"))
        response = await pending.streaming()
        assert (response.status, response.media_type) == (200, "text/event-stream")
        await peer.wait_until(lambda: comments(response) >= 3 or None, "comments")
        assert not pending.done
        stage.release("s")
        assert text(await pending) == "s is done"


@requirement("http.silent")
async def test_a_silent_call_in_a_thread_becomes_a_stream_too(revision: str, transport: str) -> None:
    stage = ControlledServer(limits=ServerLimits(keep_alive_interval=0.02))
    stage.remember_loop()
    async with connect(stage.app, transport, revision) as peer:
        pending = peer.start("tools/call", call_params("block", name="s"))
        assert (await pending.streaming()).media_type == "text/event-stream"
        stage.release("s")
        assert text(await pending) == "s is done"


@requirement("http.silent")
async def test_where_streams_are_preferred_they_begin_at_once(revision: str, transport: str) -> None:
    """The times are the defaults: a stream that began only with the first comment would be too late for the driver."""
    stage = ControlledServer()
    async with connect(stage.app, transport, revision, options={"response_mode": "sse"}) as peer:
        pending = peer.start("tools/call", call_params("wait", name="s"))
        assert (await pending.streaming()).media_type == "text/event-stream"
        assert not pending.done
        stage.release("s")
        assert text(await pending) == "s is done"


@requirement("http.silent")
@pytest.mark.parametrize(("option", "accept"), [("json", JSON_AND_STREAM), ("auto", "application/json")])
async def test_where_json_is_wanted_a_silent_call_stays_json(
    revision: str, transport: str, option: str, accept: str
) -> None:
    stage = ControlledServer(limits=ServerLimits(keep_alive_interval=0.02))
    async with (
        connect(stage.app, transport, revision, options={"response_mode": option}) as peer,
        connect(stage.app, transport, revision) as other,
    ):
        pending = peer.start("tools/call", call_params("wait", name="s"), headers={"accept": accept})
        await stage.wait_until_started("s")
        later = other.start("tools/call", call_params("wait", name="t"))
        response = await later.streaming()
        await other.wait_until(lambda: comments(response) >= 3 or None, "comments")
        assert not pending.head_received.is_set()
        for name in ("s", "t"):
            stage.release(name)
        assert text(await pending) == "s is done"
        assert pending.response is not None
        assert pending.response.media_type == "application/json"


@requirement("http.silent")
@pytest.mark.parametrize("fault", [ServerBusy("Later"), InsufficientScope(["a"]), ProtocolError("no")])
async def test_an_error_after_the_stream_began_is_its_last_event(
    revision: str, transport: str, fault: ProtocolError
) -> None:
    stage = ControlledServer(limits=ServerLimits(keep_alive_interval=0.02))

    @stage.app.tool
    async def fail(name: str) -> str:
        await stage.run_until_released(name)
        raise fault

    async with connect(stage.app, transport, revision) as peer:
        pending = peer.start("tools/call", call_params("fail", name="s"))
        response = await pending.streaming()
        stage.release("s")
        error = await expect_error(pending)
        assert response.status == 200
        assert response.events_seen[-1].message["error"]["code"] == error.code


@requirement("http.responses")
async def test_a_server_can_be_set_to_json_only(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision, options={"response_mode": "json"}) as peer:
        pending = peer.start("tools/call", call_params("count", to=3), progress_token=1)
        assert text(await pending) == "counted to 3"
        assert pending.response is not None
        assert pending.response.media_type == "application/json"
        assert peer.notifications == []


@requirement("http.responses")
async def test_a_server_can_be_set_to_streams_only(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision, options={"response_mode": "sse"}) as peer:
        pending = peer.start("tools/call", call_params("echo", text="hi"))
        assert text(await pending) == "hi"
        assert pending.response is not None
        assert pending.response.media_type == "text/event-stream"


@requirement("http.idle-timeout")
async def test_a_response_names_the_idle_timeout(revision: str, transport: str) -> None:
    app = ControlledServer(limits=ServerLimits(idle_timeout=620)).app
    async with connect(app, transport, revision) as peer:
        pending = peer.start("tools/call", call_params("echo", text="hi"))
        await pending
        assert pending.response is not None
        headers = pending.response.headers
        assert (headers["connection"], headers["keep-alive"]) == ("keep-alive", "timeout=620")


@requirement("http.methods")
async def test_other_methods_are_not_allowed(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        for method in ("PUT", "PATCH", "OPTIONS", "TRACE"):
            response = await peer.http(method)
            assert response.status == 405, method
            assert response.headers["allow"] == "POST, GET, DELETE"
            await response.close()


@requirement("http.path")
async def test_the_endpoint_is_at_its_path_and_nowhere_else(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision, options={"path": "/deep/er"}) as peer:
        assert text(await peer.request("tools/call", call_params("echo", text="hi"))) == "hi"
        peer.path = "/deep/er/"
        assert text(await peer.request("tools/call", call_params("echo", text="hi"))) == "hi"
        peer.path = "/deep/er?x=1"
        assert text(await peer.request("tools/call", call_params("echo", text="hi"))) == "hi"
        for path in ("/", "/mcp", "/deep", "/deep/er/x", "/deep/ER", "/deep/er%2f..", "//deep//er"):
            response = await peer.http("POST", path, peer.headers(echo(peer), revision), b"{}")
            assert response.status == 404, path
            await response.close()


@requirement("http.body-limit")
async def test_a_body_over_the_limit_is_refused_before_it_is_read(revision: str, transport: str) -> None:
    async with connect(ControlledServer(limits=ServerLimits(max_body_bytes=5000)).app, transport, revision) as peer:
        headers = peer.headers(echo(peer), revision)
        large = json.dumps(echo(peer) | {"pad": "x" * 5000}).encode()
        for changed in ({}, {"content-length": None, "transfer-encoding": "chunked"}):
            reply = await peer.raw(large, headers=headers | changed)
            assert (reply.status, reply.code) == (413, -32600), changed
        assert text(await peer.request("tools/call", call_params("echo", text="hi"))) == "hi"


@requirement("http.body-limit")
async def test_a_length_that_is_announced_is_enough_to_be_refused(revision: str, transport: str) -> None:
    async with connect(ControlledServer(limits=ServerLimits(max_body_bytes=5000)).app, transport, revision) as peer:
        assert peer.web is not None
        reader, writer = await asyncio.open_connection(peer.web.host, peer.web.port)
        writer.write(
            b"POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99999\r\n\r\n{"
        )
        async with asyncio.timeout(TIMEOUT_S):
            assert (await reader.readline()).split()[1] == b"413"
        writer.close()
        await writer.wait_closed()


@requirement("http.chunked")
async def test_a_body_may_come_in_chunks(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        headers = peer.headers(echo(peer), revision) | {"content-length": None, "transfer-encoding": "chunked"}
        reply = await peer.raw(json.dumps({"jsonrpc": "2.0"} | echo(peer)).encode(), headers=headers)
        assert text(reply.message["result"]) == "hi"


def with_trailers(peer: Peer, message: Any, trailers: bytes, *, leave_out: str | None = None) -> list[bytes]:
    """A chunked request with trailers: its head, its body, the trailers, the end."""
    headers = peer.headers(message, peer.revision) | {"host": "localhost", "transfer-encoding": "chunked"}
    lines = [f"{name}: {value}\r\n" for name, value in headers.items() if value is not None and name != leave_out]
    body = json.dumps({"jsonrpc": "2.0"} | message).encode()
    head = f"POST {peer.path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode()
    return [head, b"%x\r\n%s\r\n0\r\n" % (len(body), body), trailers, b"\r\n"]


async def deliver(peer: Peer, pieces: list[bytes], *, in_one_read: bool) -> tuple[int, Any]:
    """Send pieces of one request in one read or in several; status and message of the answer."""
    assert peer.web is not None
    reader, writer = await asyncio.open_connection(peer.web.host, peer.web.port)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            for piece in [b"".join(pieces)] if in_one_read else pieces:
                writer.write(piece)
                await writer.drain()
                # The server runs in this loop: after a few turns it has read the piece.
                for _ in range(0 if in_one_read else 20):
                    await asyncio.sleep(0)
            status = int((await reader.readline()).split()[1])
            head = await reader.readuntil(b"\r\n\r\n")
            found = re.search(rb"content-length: (\d+)", head)
            body = await reader.readexactly(int(found[1]) if found else 0)
            return status, json.loads(body) if b"application/json" in head else None
    finally:
        writer.close()


@requirement("http.trailers")
@pytest.mark.parametrize("in_one_read", [True, False])
async def test_trailers_are_dropped(revision: str, transport: str, in_one_read: bool) -> None:
    seen: list[set[bytes]] = []

    async def authenticate(headers: Any) -> str | None:
        seen.append(set(headers))
        return headers.get(b"x-user")

    stage = ControlledServer(auth=authenticate)

    @stage.app.tool
    async def header_names(ctx: Context) -> list[str]:
        return [*ctx.headers]

    async with connect(stage.app, transport, revision) as peer:
        message = {"id": 1} | peer.message("tools/call", call_params("header_names"))
        pieces = with_trailers(peer, message, b"X-User: admin\r\nAuthorization: Bearer x\r\n")
        status, message = await deliver(peer, pieces, in_one_read=in_one_read)
        assert status == 200, message
        assert not {"x-user", "authorization"} & set(json.loads(text(message["result"])))
        assert all(not {b"x-user", b"authorization"} & names for names in seen)


@requirement("http.trailers", revisions=[STATELESS])
@pytest.mark.parametrize("in_one_read", [True, False])
async def test_a_header_sent_as_a_trailer_is_missing(revision: str, transport: str, in_one_read: bool) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        pieces = with_trailers(peer, echo(peer), b"Mcp-Name: echo\r\n", leave_out="mcp-name")
        status, message = await deliver(peer, pieces, in_one_read=in_one_read)
        assert (status, message["error"]["code"]) == (400, -32020)


@requirement("http.trailers")
@pytest.mark.parametrize("in_one_read", [True, False])
@pytest.mark.parametrize("trailers", [b"x-a: b\r\n" * 2000, b"x-a: " + b"b" * 10_000 + b"\r\n"])
async def test_trailers_over_the_limit_are_refused(
    revision: str, transport: str, in_one_read: bool, trailers: bytes
) -> None:
    stage = ControlledServer(limits=ServerLimits(max_header_block_bytes=5000, max_header_bytes=4000))
    ran: list[str] = []

    @stage.app.middleware
    async def note(exchange: Any, call_next: Any) -> Any:
        ran.append(exchange.method)
        return await call_next(exchange)

    async with connect(stage.app, transport, revision) as peer:
        ran.clear()
        status, _ = await deliver(peer, with_trailers(peer, echo(peer), trailers), in_one_read=in_one_read)
        assert status == 431
        assert ran == []
        assert text(await peer.request("tools/call", call_params("echo", text="hi"))) == "hi"


@requirement("http.trailers")
@pytest.mark.parametrize("piece", [b"x-a: b\r\n" * 1000, b"x" * 8000])
async def test_trailers_without_end_are_not_read_on(revision: str, transport: str, piece: bytes) -> None:
    """Counts what the server accepts: bytes that leave here, with little room for them on the way."""
    async with connect(ControlledServer().app, transport, revision) as peer:
        assert peer.web is not None
        reader, writer = await asyncio.open_connection(peer.web.host, peer.web.port)
        writer.write(b"".join(with_trailers(peer, echo(peer), b"")[:2]))
        sent = 0
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(TIMEOUT_S):
                while sent < 60_000_000 and not reader.at_eof():
                    writer.write(piece)
                    await writer.drain()
                    sent += len(piece)
                    await asyncio.sleep(0)
        assert sent < 8_000_000
        writer.close()


@requirement("http.host")
async def test_a_request_for_another_host_is_misdirected(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        assert peer.web is not None
        port = peer.web.port
        for wrong in (
            "evil.example",
            f"evil.example:{port}",
            f"127.0.0.1.evil.example:{port}",
            f"localhost.evil.example:{port}",
            f"127.0.0.2:{port}",
        ):
            reply = await post(peer, echo(peer), host=wrong)
            assert (reply.status, reply.code) == (421, -32600), wrong
        for malformed in (f"localhost:{port}@evil.example", "localhost:x", "[::1"):
            assert (await post(peer, echo(peer), host=malformed)).status == 400, malformed
        for right in (f"127.0.0.1:{port}", f"localhost:{port}", f"LOCALHOST:{port}", "localhost", f"[::1]:{port}"):
            assert (await post(peer, echo(peer), host=right)).status == 200, right


@requirement("http.host")
async def test_a_host_may_be_named(revision: str, transport: str) -> None:
    options = {"allowed_hosts": ["a.example"], "public_url": "https://b.example/mcp"}
    async with connect(ControlledServer().app, transport, revision, options=options) as peer:
        for right in ("a.example", "A.example", "b.example"):
            assert (await post(peer, echo(peer), host=right)).status == 200, right
        assert (await post(peer, echo(peer), host="c.example")).status == 421


@requirement("http.origin")
async def test_a_page_of_another_origin_is_forbidden(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        for wrong in (
            "https://evil.example",
            "http://localhost.evil.example",
            "http://127.0.0.1@evil.example",
            "http://evil.example:80",
            "null",
            "",
            "file://",
            "chrome-extension://localhost",
            "http://localhost, http://evil.example",
        ):
            reply = await post(peer, echo(peer), origin=wrong)
            assert (reply.status, reply.code) == (403, -32600), wrong
            assert "id" not in reply.message
            assert "access-control-allow-origin" not in reply.headers
        for right in ("http://localhost:6274", "http://127.0.0.1", "https://localhost", "http://[::1]:3000"):
            assert (await post(peer, echo(peer), origin=right)).status == 200, right


@requirement("http.origin")
async def test_the_origin_is_checked_on_every_address(transport: str) -> None:
    async with connect(ControlledServer().app, transport, "2025-11-25") as peer:
        for method, path in (("GET", "/mcp"), ("DELETE", "/mcp"), ("GET", "/sse"), ("POST", "/messages")):
            headers = {"origin": "https://evil.example", "accept": "text/event-stream", "mcp-session-id": peer.session}
            response = await peer.http(method, path, headers)
            assert response.status == 403, (method, path)
            await response.close()
        assert await peer.request("ping") == {}


@requirement("http.origin")
async def test_an_origin_may_be_named(revision: str, transport: str) -> None:
    options = {"allowed_origins": ["https://App.example/"], "public_url": "https://b.example"}
    async with connect(ControlledServer().app, transport, revision, options=options) as peer:
        for right in ("https://app.example", "https://b.example"):
            assert (await post(peer, echo(peer), origin=right)).status == 200, right
        for wrong in ("http://app.example", "https://app.example:444", "https://c.example"):
            assert (await post(peer, echo(peer), origin=wrong)).status == 403, wrong


@requirement("http.once")
async def test_a_header_that_decides_may_stand_only_once(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        given = [(name, value) for name, value in peer.headers(echo(peer), revision).items() if value is not None]
        body = json.dumps({"jsonrpc": "2.0"} | echo(peer)).encode()
        for twice in (("content-type", "application/json"), ("origin", "http://localhost"), ("mcp-method", "x")):
            extra = [twice] if any(name == twice[0] for name, _ in given) else [twice, twice]
            response = await peer.http("POST", None, given + extra, body)
            assert response.status == 400, twice
            await response.close()


@requirement("http.cors")
async def test_no_page_may_read_replies_unless_it_was_named(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        reply = await post(peer, echo(peer), origin="http://localhost")
        assert reply.status == 200
        assert not [name for name in reply.headers if name.startswith("access-control")]


@requirement("http.cors")
async def test_a_named_page_may_call_and_read(revision: str, transport: str) -> None:
    page = "https://app.example"
    async with connect(ControlledServer().app, transport, revision, options={"cors_origins": [page]}) as peer:
        asked = {
            "origin": page,
            "access-control-request-method": "POST",
            "access-control-request-headers": "content-type, mcp-protocol-version, mcp-param-region",
        }
        allowed = await peer.collect(await peer.http("OPTIONS", None, asked))
        assert allowed.status == 204
        assert allowed.headers["access-control-allow-origin"] == page
        assert {"POST", "GET", "DELETE"} <= set(allowed.headers["access-control-allow-methods"].split(", "))
        names = set(allowed.headers["access-control-allow-headers"].split(", "))
        wanted = {"content-type", "mcp-protocol-version", "mcp-session-id", "mcp-param-region", "authorization"}
        assert wanted <= names
        reply = await post(peer, echo(peer), origin=page)
        assert reply.status == 200
        assert reply.headers["access-control-allow-origin"] == page
        assert reply.headers["vary"] == "origin"
        assert "mcp-session-id" in reply.headers["access-control-expose-headers"]
        error = await post(peer, {"id": 1, "method": ""}, origin=page)
        assert error.status == 400
        assert error.headers["access-control-allow-origin"] == page
        other = await post(peer, echo(peer), origin="https://other.example")
        assert other.status == 403
        assert "access-control-allow-origin" not in other.headers


@requirement("http.status")
async def test_errors_have_the_status_of_their_kind(transport: str) -> None:
    app = ControlledServer().app

    @app.tool
    async def failing() -> str:
        raise RuntimeError("secret")

    @app.tool
    async def asking(ctx: Context) -> str:
        return str(await ctx.list_roots())

    async with connect(app, transport, STATELESS) as peer:
        for method, params, status, code in (
            ("no/such", {}, 404, -32601),
            ("tools/call", {"name": "no-such"}, 400, -32602),
            ("tools/call", {"name": "echo", "arguments": []}, 400, -32602),
            ("tools/list", {"cursor": "nonsense"}, 400, -32602),
            ("tools/call", {"name": "asking"}, 400, -32021),
        ):
            exc = await expect_error(peer.request(method, params))
            assert (exc.status_code, exc.code) == (status, code), (method, params)
        pending = peer.start("tools/call", {"name": "failing"})
        assert (await pending)["isError"] is True
        assert pending.response is not None
        assert pending.response.status == 200


@requirement("http.handshake-status")
async def test_an_error_within_a_session_is_a_reply_like_any_other(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        for method, params, code in (
            ("no/such", {}, -32601),
            ("tools/call", {"name": "no-such"}, -32003 if revision == DRAFT else -32602),
            ("tools/list", {"cursor": "nonsense"}, -32602),
        ):
            exc = await expect_error(peer.request(method, params))
            assert (exc.status_code, exc.code) == (200, code), method


@requirement("http.stateless-handshake")
async def test_handshake_clients_can_be_served_without_sessions(revision: str, transport: str) -> None:
    app = ControlledServer().app

    @app.tool
    async def asking(ctx: Context) -> str:
        return str(await ctx.list_roots())

    async with connect(app, transport, revision, capabilities={"roots": {}}) as peer:
        assert peer.session is None
        assert text(await peer.request("tools/call", call_params("echo", text="hi"))) == "hi"
        assert text(await peer.request("tools/call", call_params("count", to=2), progress_token=1)) == "counted to 2"
        assert len(peer.notifications) == 2
        assert await peer.request("ping") == {}
        # There is no way to ask: the answer could come to any process.
        assert (await peer.request("tools/call", call_params("asking")))["isError"]
        assert peer.server_requests == []
        for method in ("GET", "DELETE"):
            response = await peer.http(method, headers={"accept": "text/event-stream"})
            assert response.status == 405, method
            assert response.headers["allow"] == "POST"
            await response.close()


@requirement("http.stateless-only-post")
async def test_a_stateless_server_refuses_handshake_requests_it_is_sent(transport: str) -> None:
    for options in ({}, {"sessions": False}):
        async with connect(
            ControlledServer(protocol_versions=[STATELESS]).app, transport, STATELESS, options=options
        ) as peer:
            body = b'{"jsonrpc":"2.0","id":5,"method":"tools/list"}'
            bare = await peer.raw(body)
            assert (bare.status, bare.code) == (400, -32020)
            old = await peer.raw(body, headers={"mcp-protocol-version": "2025-11-25"})
            assert (old.status, old.code) == (400, -32022)
            assert old.message["error"]["data"]["supported"] == [STATELESS]
            assert (await peer.raw(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')).status == 400
            assert (await peer.raw(b"[]")).status == 400


@requirement("http.stateless-only-post")
async def test_a_server_without_the_unnamed_revision_wants_it_named() -> None:
    async with connect(ControlledServer(protocol_versions=["2025-11-25"]).app, "http-stateless", "2025-11-25") as peer:
        body = b'{"jsonrpc":"2.0","id":5,"method":"tools/list"}'
        assert (await peer.raw(body, headers={"mcp-protocol-version": None})).status == 400
        assert (await peer.raw(body)).status == 200


@requirement("http.mount")
async def test_two_servers_stand_side_by_side_under_prefixes(revision: str) -> None:
    apps = {"/one": Server("one"), "/two": Server("two")}
    for name, app in apps.items():
        app.add_tool(lambda name=name: name, name="name")
    endpoints = {prefix: app.asgi() for prefix, app in apps.items()}

    async def router(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        prefix = "/" + scope["path"].split("/")[1]
        await endpoints[prefix](scope | {"root_path": prefix}, receive, send)

    async with serve_asgi(router, ServerLimits()) as web:
        for prefix in apps:
            peer = Peer("http", revision, {}, {})
            peer.web, peer.path = web, f"{prefix}/mcp"
            if revision != STATELESS:
                await peer.open()
            assert text(await peer.request("tools/call", {"name": "name"})) == prefix
            old = await web.open("GET", f"{prefix}/sse", {"accept": "text/event-stream"})
            first = await anext(old.events())
            assert first.data is not None
            assert first.data.startswith(f"{prefix}/messages?")
            await old.close()
            missing = await web.open("POST", f"{prefix}/other", {"content-type": "application/json"}, b"{}")
            assert missing.status == 404
            await missing.close()
            await peer.stop()
            assert peer.violations == []


@requirement("http.mount")
async def test_a_mounted_server_needs_no_lifespan_of_its_host(transport: str) -> None:
    begun: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        begun.append("in")
        yield "value"
        begun.append("out")

    app = Server("x", lifespan=lifespan)

    @app.tool
    async def value(ctx: Context) -> str:
        return ctx.lifespan

    endpoint = app.asgi()

    async def router(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] != "lifespan" or (await receive())["type"]
        if scope["type"] == "lifespan":
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
        else:
            await endpoint(scope, receive, send)

    async with serve_asgi(router, ServerLimits()) as web:
        peer = Peer("http", STATELESS, {}, {})
        peer.web = web
        assert begun == []
        assert text(await peer.request("tools/call", {"name": "value"})) == "value"
        assert begun == ["in"]
        await peer.stop()
    await app.stop()
    assert begun == ["in", "out"]


@requirement("http.health")
async def test_health_is_served_if_enabled() -> None:
    async with connect(ControlledServer().app, "http", STATELESS, options={"health": True}) as peer:
        for path in ("/live", "/ready"):
            response = await peer.http("GET", path, {"host": "anything.example"})
            assert (response.status, await response.read()) == (200, b"ok")
    async with connect(ControlledServer().app, "http", STATELESS) as peer:
        assert (await peer.collect(await peer.http("GET", "/live"))).status == 404


# Real processes


async def listening_at(process: asyncio.subprocess.Process) -> int:
    """The port a process says it serves on."""
    assert process.stderr is not None
    async with asyncio.timeout(TIMEOUT_S):
        while line := await process.stderr.readline():
            if found := re.search(rb"https?://127.0.0.1:(\d+)/mcp", line):
                return int(found[1])
    raise AssertionError("the process ended without serving")


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    process = await spawn(programs.plain, "http", port=0, **options)
    try:
        yield process, await listening_at(process)
    finally:
        await stop_process(process)


def client_of(port: int, revision: str, tls: ssl.SSLContext | None = None) -> Peer:
    peer = Peer("http-stateless", revision, {}, {})
    peer.web = HttpServerAddress(port, tls=tls)
    return peer


@requirement("http.run")
async def test_a_process_serves_until_a_signal_comes() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        async with running() as (process, port):
            peer = client_of(port, STATELESS)
            assert text(await peer.request("tools/call", call_params("echo", text="hi"))) == "hi"
            await peer.stop()
            process.send_signal(number)
            async with asyncio.timeout(5):
                assert await process.wait() == 0


@requirement("http.tls")
async def test_a_process_serves_tls(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    async with running(ssl_certfile=str(certificate), ssl_keyfile=str(key)) as (_, port):
        trust = ssl.create_default_context(cafile=str(certificate))
        peer = client_of(port, STATELESS, trust)
        assert text(await peer.request("tools/call", call_params("echo", text="hi"))) == "hi"
        await peer.stop()
        with pytest.raises(ConnectionError):
            await client_of(port, STATELESS).request("tools/list")


@requirement("http.workers")
async def test_several_processes_share_the_work_and_are_replaced() -> None:
    async with running(workers=2, sessions=False) as (process, port):
        old = client_of(port, "2025-11-25")
        await old.open()
        seen: set[int] = set()
        async with asyncio.timeout(TIMEOUT_S):
            while len(seen) < 2:
                for peer in (old, client_of(port, STATELESS)):
                    seen.add(int(text(await peer.request("tools/call", call_params("pid")))))
        assert process.pid not in seen
        victim = seen.pop()
        os.kill(victim, signal.SIGKILL)
        async with asyncio.timeout(TIMEOUT_S):
            while len(seen) < 2:
                with contextlib.suppress(ConnectionError, AssertionError):  # this one may have met the one that died
                    seen.add(int(text(await client_of(port, STATELESS).request("tools/call", call_params("pid")))))
                seen.discard(victim)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(5):
            assert await process.wait() == 0
        for pid in seen:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


@requirement("http.run")
def test_an_unknown_transport_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'stdio', 'http', 'unix'.*'tcp'"):
        Server("x").run("carrier-pigeon")


@requirement("http.run")
async def test_a_port_in_use_is_a_plain_error() -> None:
    async with serve(Server("x")) as web:
        with pytest.raises(OSError, match="in use"):
            await Server("y").serve("http", port=web.port)
