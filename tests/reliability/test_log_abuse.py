"""What a peer can make the server write to its log, and its cost for other clients.

An event contains at most 1 KiB from the peer, no control characters except the newline, and no line that looks like
another record. Other clients are not affected.
"""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from harness import (
    HANDSHAKE,
    NEWEST,
    Client,
    Connection,
    MiB,
    StartTarget,
    StdioClient,
    Target,
    encode_http_request,
    message,
    mirror_headers,
    record_measurement,
)

EVENT = 1024
FORGED = "\nERROR dovetail forged record"
NASTY = "\x1b]0;title\x07\x1b[31m\u202e\u2028\x85\r" + FORGED
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
LONG = "Z" * (3 * MiB)


def call(name: str, arguments: Any) -> Callable[[Target], None]:
    return lambda target: (Client(target, HANDSHAKE).call(name, arguments), None)[1]


def ask(method: str, params: Any) -> Callable[[Target], None]:
    return lambda target: (Client(target, HANDSHAKE).request(method, params), None)[1]


def headers(**given: str) -> Callable[[Target], None]:
    def send(target: Target) -> None:
        client = Client(target)
        request = message("tools/list", {}, 1)
        named = {name.replace("_", "-"): value for name, value in given.items()}
        with client.send_only(
            encode_http_request("POST", "/mcp", client.headers | mirror_headers(request) | named, b"{}")
        ) as connection:
            connection.answer()

    return send


def raw(data: bytes) -> Callable[[Target], None]:
    def send(target: Target) -> None:
        with Connection(target.port) as connection:
            connection.send(data)
            connection.wait_closed()

    return send


ESC = "a\x1b[31mb"
EVENTS: dict[str, Callable[[Target], None]] = {
    "long uri": ask("resources/read", {"uri": "note://" + LONG}),
    "uri at the limit": ask("resources/read", {"uri": "note://" + "Z" * 8000}),
    "nasty uri": ask("resources/read", {"uri": f"note://{NASTY}/text"}),
    "long tool": call(LONG, {}),
    "nasty tool": call(NASTY, {}),
    "nasty arguments": call("echo", {NASTY: NASTY, "text": 1}),
    "nasty prompt": ask("prompts/get", {"name": NASTY}),
    "nasty method": ask("x" + NASTY, {}),
    "nasty level": ask("logging/setLevel", {"level": NASTY}),
    "nasty cursor": ask("tools/list", {"cursor": NASTY}),
    "nasty cancel": lambda target: (
        Client(target, HANDSHAKE).post(message("notifications/cancelled", {"requestId": NASTY, "reason": NASTY})), None
    )[1],
    "nasty client": ask("initialize", {
        "protocolVersion": NASTY, "capabilities": {}, "clientInfo": {"name": NASTY, "version": NASTY},
    }),
    "host": headers(host=ESC),
    "origin": headers(origin=f"http://{ESC}"),
    "session": headers(mcp_session_id=ESC, mcp_protocol_version=HANDSHAKE),
    "version": headers(mcp_protocol_version=ESC),
    "name": headers(mcp_name=ESC),
    "last event": headers(last_event_id=ESC),
    "long host": headers(host="Z" * 8000),
    "path": raw(b"GET /%1b%5b31m%0aERROR%20dovetail HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"),
    "long path": raw(b"GET /" + b"Z" * 20_000 + b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"),
    "no http": raw(b"\x16\x03\x01" + b"Z" * 5000 + b"\r\n\r\n"),
    "bad method": raw(b"\x1b[31mGET / HTTP/1.1\r\n\r\n"),
    "upgrade": raw(b"GET /mcp HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade, close\r\nupgrade: websocket\r\n\r\n"),
    "deliberate": call("refuse", {"text": LONG}),
}  # fmt: skip


def logged(target: Target, event: Callable[[Target], None]) -> str:
    before = target.log_size
    event(target)
    assert Client(target).is_healthy()  # whatever was to be logged has been
    return target.log_path.read_bytes()[before:].decode("utf-8", "surrogateescape")


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_costs_little_log_and_no_control_characters(served: Target, name: str) -> None:
    text = logged(served, EVENTS[name])
    record_measurement(f"log bytes, {name}", len(text.encode("utf-8", "surrogateescape")), "B")
    assert len(text.encode("utf-8", "surrogateescape")) <= EVENT
    assert not CONTROL.search(text)
    assert FORGED not in text


@pytest.mark.parametrize("words", [LONG, "Z\n" * MiB, NASTY * 1000, "\x1b" * 500_000, "\ufdfa" * 500_000])
def test_an_exception_with_the_callers_words(served: Target, words: str) -> None:
    """The traceback of the author's code is logged whole; of the caller's words, no more than 1 KiB."""
    text = logged(served, call("complain", {"text": words}))
    assert "in complain" in text  # the place is not lost behind the words
    assert text.count("Z") <= EVENT
    assert len(text.encode("utf-8", "surrogateescape")) <= 8 * EVENT
    assert not CONTROL.search(text)
    records = [line for line in text.splitlines() if line and not line.startswith("  ")]
    # Nothing can pose as a record. On a busy machine, the watchdog of the event loop adds one.
    assert len([line for line in records if "event loop has been blocked" not in line]) == 1


def test_others_do_not_wait_for_the_log(served: Target) -> None:
    """While one client makes the server log as much as it can, another's echo stays quick."""
    noisy, quiet = Client(served), Client(served)
    data = noisy.prepare("tools/call", {"name": "complain", "arguments": {"text": LONG}})
    quiet.is_healthy()
    before, cpu = served.log_size, served.cpu
    slowest = 0.0
    for _ in range(10):
        noisy.connection().send(data)
        cpu_before = served.cpu
        assert quiet.is_healthy()
        slowest = max(slowest, served.cpu - cpu_before)
        noisy.connection().answer()
    record_measurement("CPU before the slowest echo beside a 3 MB exception text", slowest * 1000, "ms")
    assert slowest < 1.0  # the peers: 8 to 11 s for one such event
    assert served.cpu - cpu < 5.0
    assert served.log_size - before <= 10 * 8 * EVENT


def test_on_stdio_too(start: StartTarget) -> None:
    target = start("stdio")
    pipe = StdioClient(target, HANDSHAKE)
    pipe.is_healthy()
    before = target.log_size
    for line in (
        NASTY.encode("utf-8").replace(b"\n", b" "),
        b"\x1b" * 100_000,
        LONG.encode(),
        json.dumps(NASTY).encode(),
    ):
        pipe.send(line)
    pipe.request("resources/read", {"uri": NASTY})
    pipe.call(NASTY)
    assert pipe.is_healthy()
    assert target.log_size - before <= EVENT


def test_the_era_does_not_matter(served: Target) -> None:
    client = Client(served, NEWEST)
    text = logged(served, lambda _: (client.call("complain", {"text": NASTY}), None)[1])
    assert "in complain" in text
    assert not CONTROL.search(text)
