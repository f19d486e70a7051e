"""Test the cookies of a client: which it keeps, where it sends them, and that no other server or user gets them."""

import asyncio
import contextlib
import json
import time
from email.utils import formatdate
from typing import Any

import pytest

from dovetail import Client, HTTPTarget, SyncClient
from dovetail.errors import ConnectionLost, HTTPStatusError
from dovetail.protocol.limits import ClientLimits, Timeouts
from dovetail.transports.http_client import cookies
from dovetail.transports.http_client.cookies import MAX_COOKIES, MAX_TOTAL_BYTES, CookieJar
from dovetail.transports.http_client.remote_server import RemoteServer
from dovetail.transports.http_client.sse_2024_client import SSE2024Client
from dovetail.types import TextContent
from support.scripted_http_server import HttpRequest, ScriptedHttpServer, run_scripted_server
from support.sticky_balancer import StickyBalancer
from transports.raw_server import ServerConnection, plain_reply, run_raw_server
from transports.test_memory import RecordingInbox

URL = "https://example.com/a/mcp"


def keep(*headers: str, url: str = URL) -> CookieJar:
    jar = CookieJar()
    jar.store("\n".join(headers).encode("latin-1"), url)
    return jar


# The jar


@pytest.mark.parametrize(
    ("header", "sent"),
    [
        ("lb=A", b"lb=A"),
        ("lb=A; Path=/; HttpOnly; Secure; SameSite=None", b"lb=A"),
        (' AWSALB = x+/=y" ; Expires=Thu, 26 Sep 2199 22:42:22 GMT; Path=/', b'AWSALB=x+/=y"'),
        ("lb=A; Domain=other.example", b"lb=A"),
        ("lb=a, b c", b"lb=a, b c"),
        ("lb=; path", b"lb="),
        ("lb=A; max-age=10", b"lb=A"),
        ("lb=A; max-age=99999999999999999999", b"lb=A"),
        ("lb=A; max-age=x; expires=soon", b"lb=A"),
        ("lb=A; max-age=10; expires=Thu, 01 Jan 1970 00:00:00 GMT", b"lb=A"),
        ("lb=A; expires=Wed, 09 Jun 99999999999 10:18:14 GMT", b"lb=A"),
        ("lb=A; max-age=0", b""),
        ("lb=A; max-age=-1; expires=Thu, 26 Sep 2199 22:42:22 GMT", b""),
        ("lb=A; expires=Thu, 01-Jan-1970 00:00:10 GMT", b""),
        ("", b""),
        ("lb", b""),
        ("=A", b""),
        ("l b=A", b""),
        ("lb=A\rx: y", b""),
        ("lb=A\x00", b""),
        ("lb=A\tB", b""),
        ("lb=é", b""),
        ("lb=" + "x" * MAX_TOTAL_BYTES, b""),
    ],
)
def test_a_header_becomes_a_cookie_or_is_ignored(header: str, sent: bytes) -> None:
    assert keep(header).build_header(URL) == sent


def test_a_secure_cookie_needs_tls() -> None:
    url = "http://example.com/mcp"
    assert keep("a=1; Secure", "b=2", url=url).build_header(url) == b"b=2"


@pytest.mark.parametrize(
    ("path", "target", "is_sent"),
    [
        ("", "/a/mcp", True),
        ("", "/a", True),
        ("", "/a/b/c?d=/e", True),
        ("", "/ab", False),
        ("", "/", False),
        ("relative", "/a/x", True),
        ("/", "/anything", True),
        ("/a/mcp", "/a/mcp", True),
        ("/a/mcp", "/a/mcp/x", True),
        ("/a/mcp", "/a/mcps", False),
        ("/a/", "/a/x", True),
        ("/a/", "/a", False),
        ("/other", "/a/mcp", False),
    ],
)
def test_a_cookie_is_sent_below_its_path(path: str, target: str, is_sent: bool) -> None:
    jar = keep(f"lb=A; Path={path}" if path else "lb=A")
    assert jar.build_header("https://example.com" + target) == (b"lb=A" if is_sent else b"")


def test_the_longest_path_comes_first_and_a_cookie_is_replaced() -> None:
    jar = keep("a=1; path=/", "b=2; path=/a", "a=3; path=/a/mcp", "b=4; path=/a", "a=5; path=/")
    assert jar.build_header(URL) == b"a=3; b=4; a=5"
    jar.store(b"b=; path=/a; max-age=0", URL)
    assert jar.build_header(URL) == b"a=3; a=5"


def test_a_cookie_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    jar = keep("a=1; max-age=10", f"b=2; expires={formatdate(now + 20, usegmt=True)}", "c=3")
    monkeypatch.setattr(cookies.time, "time", lambda: now + 12)
    assert jar.build_header(URL) == b"b=2; c=3"
    monkeypatch.setattr(cookies.time, "time", lambda: now + 22)
    assert jar.build_header(URL) == b"c=3"


def test_a_full_jar_keeps_its_cookies() -> None:
    jar = keep("lb=A", *(f"c{number}=x" for number in range(MAX_COOKIES - 1)))
    expected = jar.build_header(URL)
    jar.store(b"new=x\nc0=again", URL)
    assert jar.build_header(URL) == expected.replace(b"c0=x", b"c0=again")
    jar.store(b"c0=; max-age=0\nnew=x", URL)
    assert jar.build_header(URL) == expected.replace(b"c0=x; ", b"") + b"; new=x"


def test_the_total_size_of_cookies_is_limited() -> None:
    half = "x" * (MAX_TOTAL_BYTES // 2 - 10)
    jar = keep(f"a={half}", f"b={half}", f"c={half}", "d=x", f"d={half}")
    assert jar.build_header(URL) == f"a={half}; b={half}; d=x".encode()


def test_expired_cookies_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    jar = keep("lb=A", *(f"c{number}=x; max-age=10" for number in range(MAX_COOKIES - 1)))
    now = time.time()
    monkeypatch.setattr(cookies.time, "time", lambda: now + 12)
    jar.store(b"new=x", URL)
    assert jar.build_header(URL) == b"lb=A; new=x"


# Requests


def set_cookie(*cookies: str, status: int = 200, **headers: str) -> bytes:
    lines = "".join(f"set-cookie: {cookie}\r\n" for cookie in cookies)
    lines += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} OK\r\n{lines}content-length: 0\r\n\r\n".encode()


async def send_twice(first: bytes, **options: Any) -> list[str | None]:
    """Send two requests, and return the Cookie header of each request that the server received."""

    async def answer(server: ScriptedHttpServer, _: HttpRequest) -> bytes:
        return first if len(server.told) == 1 else set_cookie()

    async with run_scripted_server(answer) as server:
        options = {"cookie_jar": CookieJar()} | options
        remote = RemoteServer(server.url, max_response_bytes=1000, connect_timeout=5, **options)
        for _ in range(2):
            (await remote.send("POST", [], b"{}")).close()
        await remote.close()
        return [request.headers.get("cookie") for request in server.told]


async def test_cookies_of_a_response_are_in_the_next_request() -> None:
    assert await send_twice(set_cookie("lb=a", "s=b, c; Path=/mcp", "x=y; Path=/other")) == [None, "s=b, c; lb=a"]
    assert await send_twice(set_cookie("lb=a", status=500)) == [None, "lb=a"]
    assert await send_twice(set_cookie("lb=a", status=307, location="/new")) == [None, "lb=a", "lb=a"]


async def test_cookies_are_ignored_without_a_jar_and_with_a_header_of_the_user() -> None:
    assert await send_twice(set_cookie("lb=a"), cookie_jar=None) == [None, None]
    assert await send_twice(set_cookie("lb=a"), headers={"Cookie": "mine=1"}) == ["mine=1", "mine=1"]


async def test_cookies_do_not_follow_a_redirect_to_another_origin() -> None:
    async def redirect(_: ScriptedHttpServer, __: HttpRequest) -> bytes:
        return set_cookie("lb=a", status=307, location=other.url)

    async def accept(_: ScriptedHttpServer, __: HttpRequest) -> bytes:
        return set_cookie()

    async with run_scripted_server(accept) as other, run_scripted_server(redirect) as server:
        remote = RemoteServer(server.url, max_response_bytes=1000, connect_timeout=5, cookie_jar=CookieJar())
        with pytest.raises(HTTPStatusError):
            await remote.send("POST", [], b"{}")
        await remote.close()
        assert other.told == []


# A balancer


async def call(client: Client) -> str:
    result = await client.call_tool("where", retry=False)
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text


async def test_cookies_can_be_turned_off() -> None:
    async with run_scripted_server(StickyBalancer().answer) as server:
        target = HTTPTarget(server.url, cookies=False)
        async with Client(target, headers={"X-Tenant": "north"}, protocol_version="handshake") as client:
            with contextlib.suppress(ConnectionLost):  # The call may reach the other machine.
                await call(client)
        assert len(server.told) > 2
        assert all("cookie" not in request.headers for request in server.told)


async def test_two_users_have_their_own_cookies() -> None:
    async with run_scripted_server(StickyBalancer().answer) as server:
        target = HTTPTarget(server.url)  # Clients may share a target, but not its cookies.
        async with (
            Client(target, protocol_version="handshake") as ada,
            Client(target, protocol_version="handshake") as bob,
        ):
            sessions = [(await call(ada), await call(bob)) for _ in range(5)]
        async with Client(target, protocol_version="handshake") as ada:
            await call(ada)
    assert set(sessions) == {("s0", "s1")}
    first_requests = [request for request in server.told if (request.message or {}).get("method") == "initialize"]
    assert [request.headers.get("cookie") for request in first_requests] == [None, None, None]


async def test_a_sync_client_keeps_cookies() -> None:
    async with run_scripted_server(StickyBalancer().answer) as server:

        def run() -> set[str]:
            with SyncClient(server.url, protocol_version="handshake") as client:
                return {str(client.call_tool("where").content) for _ in range(4)}

        (content,) = await asyncio.to_thread(run)
        assert "s0" in content


async def test_messages_over_http_sse_have_the_cookie_of_the_stream() -> None:
    async def serve(visit: ServerConnection) -> None:
        while request := await visit.request():
            if request[0].startswith(b"GET"):
                visit.send(b"HTTP/1.1 200 OK\r\nset-cookie: lb=a\r\ncontent-type: text/event-stream\r\n\r\n")
                visit.send(b"event: endpoint\ndata: /messages\n\n")
                await visit.wait_closed()
            else:
                visit.send(plain_reply(b""))

    async with run_raw_server(serve) as server:
        client = SSE2024Client(server.url, ClientLimits(), Timeouts())
        await client.open(RecordingInbox())
        await client.send_message(json.dumps({"jsonrpc": "2.0", "method": "notifications/x"}).encode())
        await client.disconnect()
        heads = [head for head, _ in server.requests]
        assert [b"\r\ncookie: lb=a\r\n" in head for head in heads] == [False, True]


@pytest.mark.parametrize("value", ["yes", 1])
def test_the_option_must_be_a_bool(value: Any) -> None:
    with pytest.raises(TypeError, match="cookies="):
        HTTPTarget("https://example.com/mcp", cookies=value)
