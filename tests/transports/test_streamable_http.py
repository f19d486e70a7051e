"""Test the client of Streamable HTTP: responses, sessions, streams, redirects and the fallback to HTTP+SSE."""

import asyncio
import gzip
import json
import re
from typing import Any

import pytest

from dovetail import Client, ClientLimits, MCPError, RemoteError, Timeouts
from dovetail.errors import (
    ConnectError,
    ConnectionLost,
    Forbidden,
    HTTPStatusError,
    InvalidResult,
    NotMCPServer,
    OutcomeUnknown,
    Unauthorized,
)
from support.fake_service import wait_until
from support.scripted_http_server import (
    ACCEPTED,
    REFUSED,
    HttpRequest,
    ScriptedHttpServer,
    create_result_response,
    encode_reply,
    run_scripted_server,
)
from support.scripted_server import (
    LATEST_HANDSHAKE,
    SILENCE,
    STREAM_HEAD,
    ErrorReply,
    Messages,
    ScriptedServer,
    create_notification,
    create_response,
    encode_event,
    encode_http_reply,
    encode_message,
    serve_over_http,
    text_result,
)
from transports.raw_server import ServerConnection, run_raw_server

QUICK = Timeouts(connect=2, discover=1, initialize=3, call=3, request=3)
PAGE = b"<html><h1>Welcome \x1b[31m</h1></html>"


def client(at: str, **options: Any) -> Client:
    limits = options.pop("limits", ClientLimits(reconnect_delay=0.01))
    return Client(at, name="it", timeout=QUICK, limits=limits, **options)


async def opened(reply: Any, **options: Any) -> MCPError:
    """What opening says when everything is answered with this."""
    script = ScriptedServer("handshake", {"server/discover": reply, "initialize": reply}, http_get_reaction=reply)
    async with serve_over_http(script) as at:
        with pytest.raises(MCPError) as caught:
            await client(at, **options).connect()
    assert caught.value.server == "it"
    assert "\x1b" not in str(caught.value)
    return caught.value


async def test_a_server_that_wants_to_know_who_asks() -> None:
    challenge = 'Bearer resource_metadata="https://a.example"'
    error = await opened(encode_http_reply(b"", status=401, www_authenticate=challenge))
    assert isinstance(error, Unauthorized)
    assert (error.status_code, error.challenge) == (401, challenge)
    assert re.search('auth="oauth".*auth=Bearer', error.hint or "")


@pytest.mark.parametrize(("challenge", "hint"), [("Bearer", "auth=Bearer"), ('Bearer error="invalid_token"', "token")])
async def test_a_server_without_logins_is_not_logged_in_at(challenge: str, hint: str) -> None:
    error = await opened(encode_http_reply(b"", status=401, www_authenticate=challenge))
    assert hint in (error.hint or "")
    assert "oauth" not in (error.hint or "")


async def test_a_server_that_refuses_who_asks() -> None:
    error = await opened(encode_http_reply(b"no", status=403, kind="text/plain"))
    assert isinstance(error, Forbidden)
    assert error.status_code == 403


@pytest.mark.parametrize(
    ("status", "challenge", "kind", "told"),
    [
        (401, 'Bearer error="invalid_token", error_description="it has expired"', Unauthorized, "expired"),
        (401, 'Bearer error="invalid_token"', Unauthorized, "invalid_token"),
        (403, 'Bearer error="insufficient_scope", scope="a b"', Forbidden, "a b"),
        (403, 'Bearer error="insufficient_scope"', Forbidden, "scope"),
        (403, 'Bearer error="access_denied", error_description="not you"', Forbidden, "not you"),
    ],
)
async def test_the_reason_of_an_authentication_error_is_shown(
    status: int, challenge: str, kind: type[MCPError], told: str
) -> None:
    body = b'{"jsonrpc":"2.0","id":null,"error":{"code":403,"message":"x"}}' if "insufficient" in challenge else b""
    error = await opened(encode_http_reply(body, status=status, kind="application/json", www_authenticate=challenge))
    assert type(error) is kind
    assert told in str(error)
    assert (error.status_code, error.challenge) == (status, challenge)
    assert error.hint is not None
    assert "oauth" not in error.hint  # The server does not name a service to log in to.


@pytest.mark.parametrize("status", [404, 405, 410, 500, 502, 503])
async def test_a_status_is_reported_with_a_hint(status: int) -> None:
    error = await opened(encode_http_reply(b"what \x1b[31m?", status=status, kind="text/plain"))
    assert isinstance(error, HTTPStatusError)
    assert error.status_code == status
    assert str(status) in str(error)
    assert "what" in error.body
    if status in (404, 405):
        assert "/mcp" in (error.hint or "")


async def test_a_web_page_is_not_a_server() -> None:
    error = await opened(encode_http_reply(PAGE, kind="text/html; charset=utf-8"))
    assert isinstance(error, NotMCPServer)
    assert "<html>" not in str(error)
    error = await opened(encode_http_reply(PAGE, status=404, kind="text/html"))
    assert isinstance(error, HTTPStatusError)
    assert "<html>" not in str(error)


@pytest.mark.parametrize(
    "reply",
    [
        encode_http_reply(b"{", kind="application/json"),
        encode_http_reply(b""),
        encode_http_reply(b"x", kind="text/plain"),
    ],
)
async def test_other_things_that_are_no_server(reply: bytes) -> None:
    assert isinstance(await opened(reply), NotMCPServer)


async def test_what_is_not_even_http() -> None:
    assert isinstance(await opened(b"SSH-2.0-OpenSSH\r\n\r\nconnection: close"), NotMCPServer)


async def test_nothing_there() -> None:
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:9") as caught:
        await client("http://127.0.0.1:9/mcp").connect()
    assert caught.value.hint


async def test_an_answer_within_a_refusal_is_an_answer() -> None:
    script = ScriptedServer("stateless", {"tools/call": ErrorReply(-32602, "wrong", {"a": 1}, status=400)})
    async with serve_over_http(script) as at, client(at) as one:
        with pytest.raises(RemoteError) as caught:
            await one.call("go")
        assert (caught.value.code, caught.value.status_code, caught.value.data) == (-32602, 400, {"a": 1})


async def test_a_reply_that_answers_something_else() -> None:
    other = encode_http_reply(b'{"jsonrpc":"2.0","id":999,"result":{}}')
    async with serve_over_http(ScriptedServer("stateless", {"tools/call": other})) as at, client(at) as one:
        with pytest.raises(InvalidResult):
            await one.call("go")


async def test_notices_on_the_way_extend_the_limit_and_junk_is_skipped() -> None:
    heard: list[Any] = []
    log = create_notification("notifications/message", level="info", data="x")
    script = ScriptedServer(
        "stateless",
        {"tools/call": Messages([b": hello\n\n", log, b"data: junk\n\n", b"event: x\ndata: y\n\n", text_result()])},
    )
    async with serve_over_http(script) as at, client(at, log_handler=heard.append) as one:
        assert await one.call("go") == "ok"
        assert [one.data for one in heard] == ["x"]


async def test_a_stream_without_an_answer() -> None:
    script = ScriptedServer("stateless", {"tools/call": Messages([b": hello\n\n"])})
    async with serve_over_http(script) as at, client(at) as one:
        with pytest.raises(OutcomeUnknown):
            await one.call("go")
        assert script.count("tools/call") == 1


# Sessions


async def test_a_session_is_kept_named_and_ended() -> None:
    script = ScriptedServer("handshake", session="secret")
    async with serve_over_http(script) as at:
        async with client(at) as one:
            await one.call("go")
            await wait_until(lambda: any(method == "GET" for method, _ in script.heads))
        methods = [method for method, _ in script.heads]
        assert methods[-1] == "DELETE"
        _, last = script.heads[-1]
        assert (last["mcp-session-id"], last["mcp-protocol-version"]) == ("secret", LATEST_HANDSHAKE)
        called = next(head for method, head in script.heads[3:] if method == "POST")
        assert called["mcp-session-id"] == "secret"


async def test_notifications_on_the_get_stream_are_received() -> None:
    changed = encode_event(encode_message(create_notification("notifications/tools/list_changed")), id="1")
    script = ScriptedServer("handshake", session="s")

    async def stream() -> Any:
        return [STREAM_HEAD, changed] if script.heads[-1][1].get("last-event-id") is None else SILENCE

    script.http_get_reaction = stream
    async with serve_over_http(script) as at, client(at) as one, one.listen() as changes:
        async with asyncio.timeout(5):
            assert (await anext(aiter(changes))).kind == "tools"
        await wait_until(lambda: any(head.get("last-event-id") == "1" for _, head in script.heads))


async def test_a_server_that_stays_away_is_given_up() -> None:
    """Whoever listens must learn of it, though nobody calls."""
    script = ScriptedServer("handshake", session="s", http_get_reaction=SILENCE)
    limits = ClientLimits(reconnect_delay=0.01, max_reconnect_delay=0.05, max_reconnects=2)
    async with serve_over_http(script) as at:
        one = client(at, limits=limits)
        await one.connect()
        await wait_until(lambda: any(method == "GET" for method, _ in script.heads))
    await wait_until(lambda: not one.is_connected)
    await one.close()


async def test_a_server_may_ask_on_the_stream_of_a_call() -> None:
    question = {"id": "q1", "method": "roots/list"}

    async def called(message: dict[str, Any]) -> Any:
        return Messages([question, b": wait\n\n", text_result()])

    script = ScriptedServer("handshake", {"tools/call": called}, session="s")
    async with serve_over_http(script) as at, client(at, roots=["file:///a"]) as one:
        assert await one.call("go") == "ok"
        await wait_until(lambda: [one for one in script.received if one.get("id") == "q1"])
        (reply,) = [one for one in script.received if one.get("id") == "q1"]
        assert reply["result"]["roots"] == [{"uri": "file:///a"}]


# Redirects


async def test_a_redirect_within_the_origin_is_followed() -> None:
    script = ScriptedServer("stateless")
    moved = [
        encode_http_reply(b"", status=307, location="/elsewhere"),
        encode_http_reply(b"", status=308, location="/there"),
    ]
    script.reactions = {"server/discover": lambda message: moved.pop() if moved else _discovered(message)}
    async with serve_over_http(script) as at, client(at) as one:
        assert await one.call("go") == "ok"


def _discovered(message: Any) -> Any:
    return {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}


@pytest.mark.parametrize(
    "location",
    ["http://127.0.0.1:9/x", "https://evil.example/", "//evil.example/", "ftp://a/", "http://[", "//a:99999/", "/a b"],
)
async def test_a_redirect_elsewhere_is_not(location: str) -> None:
    error = await opened(encode_http_reply(b"", status=307, location=location), headers={"Authorization": "Bearer x"})
    assert isinstance(error, HTTPStatusError)
    assert error.status_code == 307
    assert location in str(error)


async def test_a_redirect_in_circles_ends() -> None:
    error = await opened(encode_http_reply(b"", status=307, location="/mcp"))
    assert error.status_code == 307


# Sizes


async def test_an_answer_beyond_the_limit() -> None:
    big = text_result("x" * 200_000)
    limits = ClientLimits(max_response_bytes=100_000)

    def zipped(message: Any) -> bytes:
        data = gzip.compress(encode_message(create_response(message, big)))
        return encode_http_reply(data, content_encoding="gzip")

    def chunked(message: Any) -> bytes:
        data = encode_message(create_response(message, big))
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        return head + b"%x\r\n" % len(data) + data + b"\r\n0\r\n\r\n"

    for reaction in (big, zipped, chunked, Messages([big]), lambda m: encode_http_reply(json.dumps(big).encode())[:-5]):
        script = ScriptedServer("stateless", {"tools/call": reaction})
        async with serve_over_http(script) as at, client(at, limits=limits) as one:
            with pytest.raises(InvalidResult, match=r"\b100000\b") as caught:
                await one.call("go")
            assert "ClientLimits(max_response_bytes=" in (caught.value.hint or "")
            assert await one.list_tools()
            assert script.count("tools/call") == 1


async def test_a_bomb_in_a_stream_is_named_and_not_taken_for_a_loss() -> None:
    def bomb(_: Any) -> Any:
        data = gzip.compress(b": " + b"x" * 30_000_000 + b"\n\n")
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n"
        return head + b"content-length: %d\r\n\r\n" % len(data) + data

    script = ScriptedServer("stateless", {"tools/list": bomb})
    async with serve_over_http(script) as at, client(at) as one:
        with pytest.raises(InvalidResult, match=r"ClientLimits\(max_response_bytes="):
            await one.list_tools()
        assert script.count("tools/list") == 1


# The transport of 2024


def old_script(first: bytes) -> ScriptedServer:
    refused = encode_http_reply(b"", status=405)
    return ScriptedServer(
        "handshake", {"server/discover": refused, "initialize": refused}, http_get_reaction=[STREAM_HEAD, first]
    )


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (b"event: endpoint\ndata: http://evil.example/post\n\n", "405"),
        (b"event: other\ndata: x\n\n", "405"),
        (b"", "405"),
    ],
)
async def test_an_old_server_that_names_no_address_of_its_own(first: bytes, said: str) -> None:
    async with serve_over_http(old_script(first)) as at:
        with pytest.raises(MCPError, match=said):
            await client(at).connect()


async def test_a_connection_closed_before_sending_is_replaced() -> None:
    """A kept connection the server has closed meanwhile: the call is sent over another."""
    script = ScriptedServer(
        "stateless",
        {
            "tools/call": lambda m: encode_http_reply(
                encode_message(create_response(m, text_result())), connection="close"
            )
        },
    )
    async with serve_over_http(script) as at, client(at) as one:
        for _ in range(5):
            assert await one.call("go") == "ok"
        assert script.count("tools/call") == 5


async def test_closing_does_not_wait_for_a_server_that_does_not_answer() -> None:
    script = ScriptedServer("handshake", {"tools/call": SILENCE}, session="s", http_get_reaction=SILENCE)
    async with serve_over_http(script) as at:
        one = client(at)
        await one.connect()
        task = asyncio.get_running_loop().create_task(one.call("go"))
        await wait_until(lambda: script.count("tools/call"))
        async with asyncio.timeout(5):
            await one.close()
            with pytest.raises(ConnectionLost):
                await task


async def test_how_long_leaving_may_take_is_a_setting() -> None:
    async def never(_: Any) -> None:
        await asyncio.Event().wait()

    script = ScriptedServer("handshake", session="s", http_get_reaction=SILENCE, http_delete_reaction=never)
    async with serve_over_http(script) as at:
        one = Client(at, timeout=Timeouts(close=0.05))
        await one.connect()
        async with asyncio.timeout(1.5):
            await one.close()


async def test_an_invalid_address_is_reported() -> None:
    stream = [STREAM_HEAD, encode_event(b"http://[", event="endpoint")]
    refused = encode_http_reply(b"", status=405)
    script = ScriptedServer(
        "handshake", {"server/discover": refused, "initialize": refused}, http_get_reaction=lambda: stream
    )
    async with serve_over_http(script) as at:
        with pytest.raises(MCPError):
            await client(at).connect()


async def test_closing_completes_even_if_it_is_not_awaited() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()
    about = {"protocolVersion": LATEST_HANDSHAKE, "capabilities": {}, "serverInfo": {"name": "a", "version": "1"}}

    async def serve(visit: ServerConnection) -> None:
        while (found := await visit.request()) is not None:
            head, body = found
            if head.startswith(b"GET"):
                visit.send(STREAM_HEAD)
                begun.set()
                await visit.wait_closed()
                ended.set()
            elif head.startswith(b"DELETE"):
                await visit.wait_closed()  # without an answer
            elif (id := json.loads(body).get("id")) is None:
                visit.send(encode_http_reply(b"", status=202))
            else:
                answer = json.dumps({"jsonrpc": "2.0", "id": id, "result": about}).encode()
                visit.send(encode_http_reply(answer, mcp_session_id="s"))

    async with run_raw_server(serve) as here:
        one = client(here.url, protocol_version="handshake")
        await one.connect()
        async with asyncio.timeout(10):
            await begun.wait()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(one.close(), 0.05)
            await ended.wait()
        assert one.stats().connections == 0


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_broken_redirect_is_reported(status: int) -> None:
    error = await opened(encode_http_reply(b"<html>moved</html>", status=status, kind="text/html"))
    assert error.status_code == status
    assert "URL" in (error.hint or "")


@pytest.mark.parametrize("status", [301, 302, 303])
async def test_a_redirect_that_would_lose_the_message_is_not_followed(status: int) -> None:
    error = await opened(encode_http_reply(b"", status=status, location="/mcp/"))
    assert (error.status_code, "/mcp/" in str(error)) == (status, True)
    assert error.hint


async def test_how_long_leaving_may_take_is_an_option() -> None:
    async def answer(_: ScriptedHttpServer, told: HttpRequest) -> bytes:
        if told.verb == "DELETE":
            await asyncio.Event().wait()
        if told.verb != "POST" or "id" not in told.message:
            return ACCEPTED if told.verb == "POST" else REFUSED
        found = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "a", "version": "1"}}
        return encode_reply(create_result_response(told, **found)).replace(
            b"\r\n\r\n", b"\r\nmcp-session-id: s\r\n\r\n", 1
        )

    async with run_scripted_server(answer) as server:
        one = Client(server.url, protocol_version="handshake", timeout=Timeouts(close=0.5))
        await one.connect()
        async with asyncio.timeout(20):
            await one.close()
        assert server.told[-1].verb == "DELETE"


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (encode_http_reply(b'{"hello": 1}'), "'{\"hello\": 1}'"),
        (encode_http_reply(b"[]"), "'[]'"),
        (encode_http_reply(b""), "empty"),
        (encode_http_reply(b"", kind="text/plain", status=202), "empty"),
    ],
)
async def test_a_response_that_is_not_a_message_is_shown(reply: bytes, says: str) -> None:
    error = await opened(reply)
    assert isinstance(error, NotMCPServer)
    assert says in str(error)
    assert "/mcp" in (error.hint or "")


@pytest.mark.parametrize("status", [401, 403])
async def test_the_message_of_a_refusal_is_shown(status: int) -> None:
    error = await opened(encode_http_reply(b'{"detail": "key \x1b expired"}', status=status))
    assert str(status) in str(error)
    assert "expired" in str(error)
    page = await opened(encode_http_reply(b"<html>", status=status, kind="text/html"))
    assert str(status) in str(page)
    assert "<html>" not in str(page)


async def test_a_stream_of_something_else_is_doubted() -> None:
    error = await opened(encode_http_reply(b"data: hello\n\n", kind="text/event-stream"))
    assert "'hello'" in str(error)
    assert "MCP server" in (error.hint or "")


async def test_a_server_without_tls_is_detected() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as door:
        port = door.sockets[0].getsockname()[1]
        with pytest.raises(ConnectError, match=r"http://.*https://"):
            await client(f"https://127.0.0.1:{port}/mcp").connect()
