"""Test the loopback redirect listener: the expected response and all other requests."""

import asyncio
import re
import socket
from contextlib import closing

import pytest

from dovetail.auth.loopback_listener import LoopbackListener, open_listener
from dovetail.errors import LoginFailed
from support.guarded_server import http_get


async def opened(redirect_uri: str | None = None, state: str | None = "s") -> tuple[LoopbackListener, str]:
    listener = LoopbackListener(redirect_uri)
    uri = await listener.open()
    if state is not None:
        listener.expect_state(state)
    return listener, uri


async def expect_good(listener: LoopbackListener, uri: str) -> None:
    """Fail if the listener took another request for its answer before, since the first one counts."""
    assert (await http_get(f"{uri}?code=good&state=s"))[0] == 200
    assert (await listener.wait_for_redirect())["code"] == "good"
    listener.close()


async def test_what_a_browser_brings_back() -> None:
    listener, uri = await opened()
    assert uri.startswith("http://127.0.0.1:")
    assert uri.endswith("/callback")
    status, headers, body = await http_get(f"{uri}?code=a%2Bb&state=s&iss=&x=1")
    assert await listener.wait_for_redirect() == {"code": "a+b", "state": "s", "iss": "", "x": "1"}
    assert status == 200
    assert b"<p>" in body
    assert headers["content-security-policy"] == "default-src 'none'"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    listener.close()


async def test_an_error_is_an_answer_too() -> None:
    listener, uri = await opened()
    _, _, body = await http_get(f"{uri}?error=access_denied&state=s")
    assert await listener.wait_for_redirect() == {"error": "access_denied", "state": "s"}
    assert body != (await http_get(f"{uri}?code=x&state=s"))[2]
    listener.close()


async def test_nothing_that_came_is_shown() -> None:
    """A page that repeats what it was sent runs what it was sent."""
    listener, uri = await opened()
    for query in ("?error=%3Cscript%3E&error_description=%3Cscript%3E&state=s", "?%3Cscript%3E", "/%3Cscript%3E"):
        _, _, body = await http_get(uri + query)
        assert b"script" not in body
    listener.close()


@pytest.mark.parametrize(
    ("after", "status"),
    [
        ("?code=x&state=wrong", 400),
        ("?code=x&state=", 400),
        ("?code=x", 400),
        ("?error=x", 400),
        ("?error=x&state=wrong", 400),
        ("?state=s", 400),
        ("", 400),
        ("?code=a&code=b&state=s", 404),
        ("?code=a&state=s&state=t", 404),
        ("/?code=a&state=s", 404),
        ("x?code=a&state=s", 404),
        ("/../callback?code=a&state=s", 404),
    ],
)
async def test_strangers_are_turned_away(after: str, status: int) -> None:
    listener, uri = await opened()
    assert (await http_get(uri + after))[0] == status
    await expect_good(listener, uri)


async def test_other_paths_are_not_ours() -> None:
    listener, uri = await opened()
    origin = uri.removesuffix("/callback")
    for path in ("/", "/favicon.ico", "/Callback?code=x&state=s", "//callback?code=x&state=s"):
        assert (await http_get(origin + path))[0] == 404
    await expect_good(listener, uri)


async def test_the_first_answer_counts() -> None:
    listener, uri = await opened()
    await http_get(f"{uri}?code=first&state=s")
    await http_get(f"{uri}?code=second&state=s")
    assert (await listener.wait_for_redirect())["code"] == "first"
    listener.close()


async def test_before_a_state_is_known_nothing_counts() -> None:
    listener, uri = await opened(state=None)
    assert (await http_get(f"{uri}?code=x&state="))[0] == 400
    assert (await http_get(f"{uri}?code=x&state=s"))[0] == 400
    listener.expect_state("s")
    await expect_good(listener, uri)


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /callback?code=x&state=s HTTP/1.1\r\n\r\n",
        b"HEAD /callback?code=x&state=s HTTP/1.1\r\n\r\n",
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET //[::1 HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET /callback?" + b"&".join(b"a%d=1" % n for n in range(99)) + b" HTTP/1.1\r\n\r\n",
        b"GET /callback?code=x&state=s HTTP/1.1\r\n" + b"x: y\r\n" * 9999 + b"\r\n",
        b"GET /callback?code=x&state=s HTTP/1.1\r\n",
        b"",
    ],
)
async def test_garbage_disturbs_nothing(sent: bytes) -> None:
    listener, uri = await opened()
    port = int(uri.split(":")[2].split("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with closing(writer):
        writer.write(sent)
        writer.write_eof()
        async with asyncio.timeout(10):
            try:
                said = await reader.read()
            except ConnectionError:
                said = b""
        assert b"200 OK" not in said
    await expect_good(listener, uri)


async def test_a_browser_that_connects_ahead_is_let_go_at_the_end() -> None:
    listener, uri = await opened()
    port = int(uri.split(":")[2].split("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with closing(writer):
        await http_get(f"{uri}?code=x&state=s")
        listener.close()
        async with asyncio.timeout(5):
            assert await reader.read() == b""
    with pytest.raises(OSError, match=r"."):
        await asyncio.open_connection("127.0.0.1", port)


async def test_only_this_machine_reaches_it() -> None:
    listener, uri = await opened()
    port = int(uri.split(":")[2].split("/")[0])
    with pytest.raises(OSError, match=r"."):  # a listener on all addresses would answer here, too
        await asyncio.open_connection("127.0.0.2", port)
    await expect_good(listener, uri)


@pytest.mark.parametrize(
    "uri",
    [
        "https://localhost/x", "https://127.0.0.1/x", "http://127.0.0.1.example/x", "http://example.com/x",
        "http://0.0.0.0/x", "myapp://x", "x", "http://127.0.0.1:port/x", "http://127.0.0.1:99999/x", "http://[::1/x",
    ],
)  # fmt: skip
async def test_a_redirect_that_leads_elsewhere_is_not_listened_for(uri: str) -> None:
    with pytest.raises(LoginFailed, match=rf"(?s){re.escape(uri)}.*paste_redirect="):
        LoopbackListener(uri)


async def test_a_port_in_use_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LoginFailed, match=rf"(?s)127\.0\.0\.1:{port}.*redirect_uri="):
            await opened(f"http://127.0.0.1:{port}/callback")


async def test_the_query_of_the_redirect_uri_is_kept() -> None:
    listener, uri = await opened("http://127.0.0.1:0/back?tenant=a")
    assert uri.endswith("/back?tenant=a")
    assert (await http_get(f"{uri}&code=x&state=s"))[0] == 200
    assert await listener.wait_for_redirect() == {"tenant": "a", "code": "x", "state": "s"}
    listener.close()


async def test_localhost_has_the_same_port_on_both_addresses() -> None:
    listener, uri = await opened("http://localhost:0/back")
    port = int(uri.split(":")[2].split("/")[0])
    assert uri == f"http://localhost:{port}/back"
    for host in ("127.0.0.1", "[::1]") if _has_ipv6_loopback() else ("127.0.0.1",):
        assert (await http_get(f"http://{host}:{port}/back?code=x&state=s"))[0] == 200
    listener.close()


def _has_ipv6_loopback() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


async def test_a_port_of_another_address_family() -> None:
    if not socket.has_ipv6:
        pytest.skip("platform: no IPv6")
    listener, uri = await opened("http://[::1]:0/back")
    assert uri.startswith("http://[::1]:")
    assert (await http_get(f"{uri}?code=x&state=s"))[0] == 200
    listener.close()


async def test_a_known_port_is_taken_again_if_it_is_free() -> None:
    first, uri = await open_listener((), None)
    second, other = await open_listener([uri], None)
    assert other != uri
    first.close()
    second.close()
    third, again = await open_listener([uri], None)
    assert again == uri
    third.close()


async def test_a_registered_uri_on_another_machine_is_skipped() -> None:
    listener, uri = await open_listener(["https://my.app/back", "http://127.0.0.1:0/registered"], None)
    assert uri.endswith("/registered")
    listener.close()
    listener, uri = await open_listener(["https://my.app/back"], None)
    assert uri.startswith("http://127.0.0.1:")
    listener.close()


async def test_a_fixed_address_is_used_whatever_is_known() -> None:
    first, uri = await open_listener((), None)
    first.close()
    second, other = await open_listener([uri], "http://127.0.0.1:0/fixed")
    assert other.endswith("/fixed")
    second.close()
