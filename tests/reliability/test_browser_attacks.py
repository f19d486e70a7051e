"""A web page cannot reach a server on the visitor's machine, with the default configuration.

The test requests every path of the server under every host name a page could use. A refusal must not run or open
anything, and must not allow the page to read it.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from configured_target import run_target_with
from harness import (
    ACCEPT_JSON_AND_SSE,
    HANDSHAKE,
    Answer,
    Client,
    Connection,
    Sse2024Client,
    Target,
    encode_http_request,
    message,
    record_measurement,
)

FOREIGN_HOSTS = [
    "evil.example", "evil.example:{port}", "localhost.evil.example:{port}", "127.0.0.1.evil.example",
    "127.0.0.1.nip.io", "user@localhost:{port}", "localhost:{port}@evil.example", "127.0.0.1:x@evil.example",
    "localhost@evil.example", "localhost.:{port}", "localhost.", "127.0.0.1.", "0.0.0.0:{port}", "[::]:{port}",
    "[::ffff:127.0.0.1]:{port}", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.0.0.2",
    "127.0.0.1%00.evil.example", "localhost:{port}:{port}", "localhost:", "localhost:99999999", "localhost:-1",
    "localhost:+80", "localhost:\uff18\uff10", "localhost/evil.example", "localhost#evil.example",
    "localhost?evil.example", "localhost\\evil.example", "local host", "localhost evil.example",
    "localhost,evil.example", "localhost;evil.example", "[::1", "::1", "::1]", "[::1]evil.example",
    "[::1].evil.example", "[[::1]]", "[localhost]:{port}", "l\u043ecalhost", "\uff4cocalhost",
    "localhost\t.evil.example", "*", "",
]  # fmt: skip
OWN_HOSTS = ["localhost", "LOCALHOST:{port}", "LocalHost:1", "127.0.0.1", "127.0.0.1:{port}", "[::1]", "[::1]:{port}"]

FOREIGN_ORIGINS = [
    "http://evil.example", "https://evil.example", "HTTP://EVIL.EXAMPLE", "http://evil.example:{port}", "null",
    "NULL", "", "http://localhost.evil.example", "http://localhost:1.evil.example",
    "http://localhost:80@evil.example", "http://localhost@evil.example", "http://evil.example@localhost",
    "http://evil.example/http://localhost", "http://evil.example#http://localhost",
    "http://evil.example?http://localhost", "http://localhost/../evil.example", "http://localhost.",
    "http://127.0.0.1.nip.io", "http://0.0.0.0:{port}", "http://[::]", "http://[::ffff:127.0.0.1]", "http://127.1",
    "http://2130706433", "localhost", "//localhost", "localhost:{port}", "http:localhost", "http:/localhost",
    "http:///localhost", "file://", "file://localhost", "ws://localhost", "javascript://localhost",
    "chrome-extension://localhost", "data:text/html,localhost", "http://localhost, http://evil.example",
    "http://localhost http://evil.example", "http://evil.example http://localhost",
    "http://localhost\thttp://evil.example", "http://l\u043ecalhost", "https://", "*",
]  # fmt: skip
OWN_ORIGINS = [
    "http://localhost",
    "http://localhost:3000",
    "https://127.0.0.1",
    "HTTP://LOCALHOST:{port}",
    "http://[::1]",
]

SIMPLE_TYPES = [
    "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/json-evil",
    "application/jsonx", "application/json5", "text/plain; application/json", "text/plain, application/json",
    "application/json, text/plain", "text/json", "application /json", "json", "*/*", "", None,
]  # fmt: skip

REACHED = "reached"  # the key of the calls that must never arrive


def call_body(target: Target) -> bytes:
    client = Client(target)
    return client.prepare("tools/call", {"name": "wait", "arguments": {"key": REACHED}}).partition(b"\r\n\r\n")[2]


def requests(
    target: Target, session: Client, old: Sse2024Client
) -> dict[str, tuple[str, str, dict[str, str], bytes | None]]:
    """One request for each address and method, each of which would be served if it came from this machine."""
    posted = {"content-type": "application/json", "accept": ACCEPT_JSON_AND_SSE}
    mirrors = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "wait"}
    held = {"mcp-session-id": session.session or "", "mcp-protocol-version": HANDSHAKE}
    legacy = json.dumps(message("tools/call", {"name": "wait", "arguments": {"key": REACHED}}, 1)).encode()
    opening = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "page", "version": "1"}}
    upgrade = {
        "connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==", "sec-websocket-protocol": "mcp",
    }  # fmt: skip
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "content-type,mcp-method"}
    stream = {"accept": "text/event-stream"}
    return {
        "stateless call": ("POST", "/mcp", posted | mirrors, call_body(target)),
        "with a slash": ("POST", "/mcp/", posted | mirrors, call_body(target)),
        "initialize": ("POST", "/mcp", posted, json.dumps(message("initialize", opening, 1)).encode()),
        "session call": ("POST", "/mcp", posted | held, legacy),
        "session stream": ("GET", "/mcp", stream | held, None),
        "session end": ("DELETE", "/mcp", held, None),
        "preflight": ("OPTIONS", "/mcp", asked, None),
        "head": ("HEAD", "/mcp", {}, None),
        "old stream": ("GET", "/sse", stream, None),
        "old stream below": ("GET", "/mcp/sse", stream, None),
        "old call": ("POST", old.address, posted, legacy),
        "old call below": ("POST", "/mcp" + old.address, posted, legacy),
        "old preflight": ("OPTIONS", old.address, asked, None),
        "upgrade": ("GET", "/mcp", upgrade, None),
        "old upgrade": ("GET", "/sse", upgrade, None),
        "live": ("GET", "/live", {}, None),
        "ready": ("GET", "/ready", {}, None),
        "root": ("GET", "/", {}, None),
    }


def ask(target: Target, method: str, path: str, headers: list[tuple[str, str]], body: bytes | None) -> Answer:
    with Connection(target.port) as connection:
        connection.send(encode_http_request(method, path, headers, body))
        status, found = connection.head()
        return Answer(status, found, b"")  # a stream that is open has no end to wait for


def judged(answer: Answer) -> int:
    """The status of a refusal, which says nothing a page could use."""
    assert not [name for name in answer.headers if name.startswith("access-control-")]
    assert "mcp-session-id" not in answer.headers
    assert "upgrade" not in answer.headers
    return answer.status


@pytest.fixture(scope="module")
def http_requests(served: Target) -> dict[str, tuple[str, str, dict[str, str], bytes | None]]:
    client = Client(served)
    client.call("release", {"key": REACHED})
    return requests(served, Client(served, HANDSHAKE), Sse2024Client(served))


def nothing_ran(target: Target) -> bool:
    return Client(target).call("count", {"what": "started", "key": REACHED}).text == "0"


ADDRESSES = [
    "stateless call", "with a slash", "initialize", "session call", "session stream", "session end", "preflight",
    "head", "old stream", "old stream below", "old call", "old call below", "old preflight", "upgrade", "old upgrade",
    "live", "ready", "root",
]  # fmt: skip


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_page_reaches_it(served: Target, http_requests: Any, address: str) -> None:
    method, path, headers, body = http_requests[address]
    wrong: list[tuple[str, str, int]] = []
    for foreign in FOREIGN_HOSTS:
        host = foreign.format(port=served.port)
        for origin in ([], [("origin", f"http://{host}")], [("origin", "http://evil.example")]):
            status = judged(ask(served, method, path, [("host", host), *origin, *headers.items()], body))
            if status not in (400, 403, 421):
                wrong.append((host, str(origin), status))
    for foreign in FOREIGN_ORIGINS:
        for host in ("localhost", f"127.0.0.1:{served.port}"):
            named = [("host", host), ("origin", foreign.format(port=served.port))]
            status = judged(ask(served, method, path, [*named, *headers.items()], body))
            if status != 403:
                wrong.append((host, foreign, status))
    record_measurement(f"reachable by {address}", len(wrong), "")
    assert not wrong
    assert nothing_ran(served)


@pytest.mark.parametrize("address", ADDRESSES)
def test_names_that_two_readers_could_read_differently(served: Target, http_requests: Any, address: str) -> None:
    method, path, headers, body = http_requests[address]
    here, there = ("host", f"localhost:{served.port}"), ("host", "evil.example")
    own, foreign = ("origin", "http://localhost"), ("origin", "http://evil.example")
    for named in ([], [here, there], [there, here], [here, own, foreign], [here, foreign, own], [here, here]):
        assert judged(ask(served, method, path, [*named, *headers.items()], body)) in (400, 403, 421), named
    assert nothing_ran(served)


@pytest.mark.parametrize("host", OWN_HOSTS)
def test_this_machine_reaches_it(served: Target, host: str) -> None:
    """The counter-check: the same requests are served under our own names."""
    client = Client(served)
    client.headers["host"] = host.format(port=served.port)
    assert client.is_healthy()
    for origin in OWN_ORIGINS:
        client.headers["origin"] = origin.format(port=served.port)
        answer = client.call("echo", {"text": origin})
        assert answer.text == origin
        judged(answer)


@pytest.mark.parametrize("address", ["stateless call", "session call", "initialize", "old call", "old call below"])
@pytest.mark.parametrize("content_type", SIMPLE_TYPES)
def test_what_a_form_can_send_is_refused(
    served: Target, http_requests: Any, address: str, content_type: str | None
) -> None:
    """Without an Origin too: a request that needs no preflight runs nothing."""
    method, path, headers, body = http_requests[address]
    kept = [("host", "localhost"), *((name, value) for name, value in headers.items() if name != "content-type")]
    typed = [] if content_type is None else [("content-type", content_type)]
    assert judged(ask(served, method, path, kept + typed, body)) == 415
    if content_type is not None:
        assert judged(ask(served, method, path, [*kept, *typed, ("content-type", "application/json")], body)) == 400
    assert nothing_ran(served)


def test_json_with_parameters_is_json(served: Target) -> None:
    client = Client(served)
    for spelled in ("application/json; charset=utf-8", "Application/JSON", " application/json ;x=y"):
        client.headers["content-type"] = spelled
        assert client.is_healthy()


def test_health_says_only_that(tmp_path: Path) -> None:
    """A probe comes under any name, so health answers all; it is one word, and no page may read it."""
    with run_target_with(tmp_path, health=True) as target:
        for path in ("/live", "/ready"):
            with Connection(target.port) as connection:
                connection.send(encode_http_request("GET", path, {"host": "10.0.0.7", "origin": "http://evil.example"}))
                answer = connection.answer()
            assert (judged(answer), answer.body) == (200, b"ok")


def test_an_origin_that_is_let_in_lets_in_no_other(tmp_path: Path) -> None:
    page = "https://app.example"
    with run_target_with(tmp_path, cors_origins=[page]) as target:
        client = Client(target)
        client.headers["origin"] = page
        answer = client.call("echo", {"text": "x"})
        assert (answer.text, answer.headers["access-control-allow-origin"]) == ("x", page)
        assert answer.headers["vary"] == "origin"
        assert "access-control-allow-credentials" not in answer.headers
        for foreign in (
            "https://app.example.evil.example", "https://evil.example", "https://xapp.example", "http://app.example",
            "https://app.example:444", "https://app.example@evil.example", "https://app.exampl", "null",
            "https://sub.app.example",
        ):  # fmt: skip
            client.headers["origin"] = foreign
            assert judged(client.call("echo", {"text": "x"})) == 403
        client.headers |= {"origin": page, "host": "evil.example"}
        assert client.call("echo", {"text": "x"}).status == 421


def test_any_host_is_not_any_origin(tmp_path: Path) -> None:
    with run_target_with(tmp_path, allowed_hosts=["*"]) as target:
        client = Client(target)
        client.headers["host"] = "anything.example"
        assert client.is_healthy()
        for origin in ("http://anything.example", "http://evil.example", "null"):
            client.headers["origin"] = origin
            assert judged(client.call("echo", {"text": "x"})) == 403


def test_an_address_others_reach_is_not_served_to_everyone(tmp_path: Path) -> None:
    with run_target_with(tmp_path, host="0.0.0.0") as target:
        assert target.exit_code() != 0
        assert "0.0.0.0" in target.log
        assert "anonymous=True" in target.log
