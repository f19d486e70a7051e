"""Test requests to a remote server: redirects and credentials stay on it, and refusals are explained."""

import json
import re
import ssl
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client
from dovetail.errors import (
    ConnectError,
    ConnectionLost,
    Forbidden,
    HTTPStatusError,
    InvalidResult,
    MCPError,
    NotMCPServer,
    TransportError,
    Unauthorized,
)
from dovetail.transports.http_client.http1_connection import ConnectionBroken, InvalidHTTPResponse, ResponseTooLarge
from dovetail.transports.http_client.http_client import HostUnreachable
from dovetail.transports.http_client.remote_server import (
    RemoteServer,
    check_certificate_files,
    convert_error,
    read_body,
    read_refusal,
)
from dovetail.version import VERSION
from dovetail.wire.raw_message import RawMessage
from support.certificates import write_certificate
from support.scripted_http_server import HttpRequest, ScriptedHttpServer, run_scripted_server
from transports.raw_server import ServerConnection, reply_to_each, run_raw_server


def said(status: int, body: bytes = b"", **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} Said\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body


def saying(*replies: bytes) -> Any:
    """A server that gives these replies in turn, the last of them for ever."""

    async def answer(server: ScriptedHttpServer, _: HttpRequest) -> bytes:
        return replies[min(len(server.told), len(replies)) - 1]

    return answer


def door(url: str, **options: Any) -> RemoteServer:
    return RemoteServer(url, max_response_bytes=100_000, connect_timeout=5, **options)


@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize("location", ["/elsewhere", "elsewhere", "?a=b"])
async def test_a_redirect_within_the_origin_is_followed_with_all_it_carried(status: int, location: str) -> None:
    async with run_scripted_server(saying(said(status, location=location), said(200, b"here"))) as server:
        one = door(server.url, headers={"Authorization": "Bearer x"})
        reply = await one.send("POST", [(b"content-type", b"application/json")], b"{}")
        assert await read_body(reply, one.url) == b"here"
        assert [asked.headers["authorization"] for asked in server.told] == ["bearer x"] * 2
        assert (one.url != server.url) == (status == 308)  # the next request goes there at once
        await one.close()


async def asked(*sent: str, replies: tuple[bytes, ...]) -> list[str]:
    """The paths a server was asked for, by requests of these methods one after the other."""
    async with run_scripted_server(saying(*replies)) as server:
        one = door(server.url)
        for method in sent:
            (await one.send(method, [], b"")).close()
        await one.close()
        return [told.target for told in server.told]


FINE = said(200)


async def test_a_redirect_for_now_moves_only_the_request_that_met_it() -> None:
    moved = said(307, location="/busy")
    assert await asked("POST", "POST", replies=(moved, FINE)) == ["/mcp", "/busy", "/mcp"]
    assert await asked("POST", "POST", replies=(moved, said(308, location="/far"), FINE)) == [
        "/mcp", "/busy", "/far", "/mcp",
    ]  # fmt: skip


async def test_a_redirect_for_good_moves_what_comes_after_it() -> None:
    moved = said(308, location="/new")
    assert await asked("POST", "POST", "GET", replies=(moved, FINE)) == ["/mcp", "/new", "/new", "/new"]
    now = said(307, location="/busy")
    assert await asked("POST", "POST", replies=(moved, now, FINE)) == ["/mcp", "/new", "/busy", "/new"]


async def test_an_address_is_read_as_of_the_page_that_names_it() -> None:
    one = door("http://127.0.0.1:9/mcp")
    assert one.resolve_endpoint("post", "http://127.0.0.1:9/stream/") == "http://127.0.0.1:9/stream/post"
    await one.close()


async def test_a_redirect_of_a_stream_does_not_move_the_requests() -> None:
    moved = said(308, location="/stream")
    assert await asked("GET", "POST", "DELETE", replies=(moved, FINE)) == ["/mcp", "/stream", "/mcp", "/mcp"]


@pytest.mark.parametrize(
    "location", ["http://127.0.0.1:1/mcp", "https://127.0.0.1/mcp", "http://example.com/mcp", "file:///etc", "http://["]
)
async def test_a_redirect_to_another_place_is_not(location: str) -> None:
    async with run_scripted_server(saying(said(307, location=location))) as server:
        one = door(server.url)
        with pytest.raises(HTTPStatusError, match=re.escape(location)) as caught:
            await one.send("POST", [], b"{}")
        assert caught.value.status_code == 307
        assert len(server.told) == 1
        with pytest.raises(NotMCPServer, match=re.escape(location)):
            one.resolve_endpoint(location, server.url)
        await one.close()


async def test_a_server_that_leads_in_circles_is_left() -> None:
    async with run_scripted_server(saying(said(307, location="/again"))) as server:
        one = door(server.url)
        reply = await one.send("POST", [], b"{}")
        assert reply.status == 307
        assert len(server.told) == 6
        await one.close()


async def test_a_redirect_that_would_change_the_method_is_not_followed() -> None:
    async with run_scripted_server(saying(said(302, location="/login"))) as server:
        one = door(server.url)
        assert (await one.send("POST", [], b"{}")).status == 302
        assert len(server.told) == 1
        await one.close()


async def refused(status: int, body: bytes = b"", **headers: str) -> RawMessage | MCPError:
    async with run_scripted_server(saying(said(status, body, **headers))) as server:
        one = door(server.url)
        found = await read_refusal(await one.send("POST", [], b"{}"), one.url)
        await one.close()
        return found


ERROR = json.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "no"}}).encode()


@pytest.mark.parametrize("status", [400, 403, 404, 500])
async def test_an_error_response_counts_more_than_its_status(status: int) -> None:
    found = await refused(status, ERROR)
    assert isinstance(found, RawMessage)
    assert found.error is not None
    assert found.error.code == -32602


async def test_a_401_is_unauthorized_whatever_its_body() -> None:
    found = await refused(401, ERROR, www_authenticate='Bearer realm="x"')
    assert isinstance(found, Unauthorized)
    assert (found.status_code, found.challenge) == (401, 'Bearer realm="x"')


async def test_a_forbidden_caller_gets_an_error() -> None:
    assert isinstance(await refused(403, b"no"), Forbidden)


@pytest.mark.parametrize(
    ("status", "body", "headers", "words"),
    [
        (404, b"<html>not here", {"content_type": "text/html"}, "404"),
        (500, b"", {}, "500"),
        (503, b"in  a\nminute", {"retry_after": "7"}, "'in a minute'"),
        (418, b"\x1b[31m" + b"x" * 1000, {}, "418"),
    ],
)
async def test_other_refusals_say_status_and_words(status: int, body: bytes, headers: Any, words: str) -> None:
    found = await refused(status, body, **headers)
    assert isinstance(found, HTTPStatusError)
    assert words in str(found)
    assert "\x1b" not in str(found)
    assert len(found.body) < 400
    assert (found.status_code, found.retry_after) == (status, 7.0 if "retry_after" in headers else None)


@pytest.mark.parametrize("value", ["soon", "-1", "1e9", "9" * 30])
async def test_a_time_to_wait_that_is_none_is_passed_over(value: str) -> None:
    found = await refused(503, b"", retry_after=value)
    assert isinstance(found, HTTPStatusError)
    assert found.retry_after is None


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (HostUnreachable("refused"), ConnectError),
        (ConnectionBroken("cut", sent=True, has_head=False), ConnectionLost),
        (ResponseTooLarge("much"), InvalidResult),
        (InvalidHTTPResponse("nonsense"), NotMCPServer),
    ],
)
def test_an_error_of_the_connection_hides_secrets_in_the_url(fault: TransportError, kind: type[MCPError]) -> None:
    found = convert_error(fault, "https://user:secret@example.com/mcp?token=secret")
    assert isinstance(found, kind)
    assert "secret" not in str(found)


def test_a_lost_connection_tells_whether_anything_was_sent() -> None:
    for sent in (True, False):
        found = convert_error(ConnectionBroken("cut", sent=sent, has_head=False), "http://example.com")
        assert isinstance(found, ConnectionLost)
        assert found.maybe_sent is sent


@pytest.mark.parametrize(
    ("host", "hours", "word"),
    [("127.0.0.1", -1, "expired"), ("other.example", 1, "host name"), ("10.9.8.7", 1, "host name")],
)
async def test_the_hint_about_a_certificate_fits_its_problem(host: str, hours: int, word: str, tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path, host, hours=hours)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    async with run_raw_server(reply_to_each(said(200)), tls=tls) as server:
        with pytest.raises(ConnectError) as caught:
            await door(server.url, verify=certificate).send("POST", [], b"{}")
    assert word in str(caught.value.hint)
    assert "SSL_CERT_FILE" not in str(caught.value.hint)


@pytest.mark.parametrize(("headers", "expected"), [({}, f"dovetail/{VERSION}"), ({"User-Agent": "mine/1"}, "mine/1")])
async def test_the_user_agent_is_sent_once(headers: dict[str, str], expected: str) -> None:
    async with run_raw_server(reply_to_each(said(200))) as server:
        remote = door(server.url, headers=headers)
        await read_body(await remote.send("POST", [], b"{}"), remote.url)
        await remote.close()
    ((head, _),) = server.requests
    assert re.findall(rb"^user-agent: (.*)\r$", head, re.MULTILINE | re.IGNORECASE) == [expected.encode()]


async def test_a_plain_request_to_a_tls_server_suggests_https(tmp_path: Path) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*write_certificate(tmp_path))
    async with run_raw_server(reply_to_each(said(200)), tls=tls) as server:
        with pytest.raises(ConnectionLost) as caught:
            await door(server.url.replace("https:", "http:")).send("POST", [], b"{}")
    assert "https://" in str(caught.value.hint)


async def test_a_connection_that_is_lost_after_a_response_suggests_nothing() -> None:
    async def answer_once(connection: ServerConnection) -> None:
        await connection.request()
        if connection.number == 1:
            connection.send(said(200, connection="close"))

    async with run_raw_server(answer_once) as server:
        remote = door(server.url)
        await read_body(await remote.send("POST", [], b"{}"), remote.url)
        with pytest.raises(ConnectionLost) as caught:
            await remote.send("POST", [], b"{}")
    assert caught.value.hint is None


def test_files_of_certificates_that_are_not_there_are_named(tmp_path: Path) -> None:
    there = tmp_path / "there.pem"
    there.touch()
    check_certificate_files(None, None)
    check_certificate_files(there, (there, str(there)))
    for verify, cert, said in (
        ("no.pem", None, r"verify= .*'no\.pem'"),
        (None, "no.pem", "cert= "),
        (None, (there, "key"), "cert= .*'key'"),
    ):
        with pytest.raises(FileNotFoundError, match=said):
            check_certificate_files(verify, cert)
        with pytest.raises(FileNotFoundError, match=said):
            door("https://127.0.0.1:9/mcp", verify=verify, cert=cert)


@pytest.mark.parametrize(
    "reply",
    [
        said(307, location="https://login.example/?next=%2F&api_key=s3cret"),
        said(404, b"Cannot POST /mcp?api_key=s3cret"),
        said(401, b"no access for /mcp?api_key=s3cret"),
    ],
    ids=["redirect", "page", "refusal"],
)
async def test_an_error_does_not_repeat_the_secrets_in_a_url(reply: bytes) -> None:
    async with run_scripted_server(saying(reply)) as server:
        client = Client(f"{server.url}?api_key=s3cret")
        with pytest.raises(MCPError) as caught:
            await client.connect()
        await client.close()
    assert "s3cret" not in str(caught.value)
