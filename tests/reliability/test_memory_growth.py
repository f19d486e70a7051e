"""The memory of sessions, streams and calls, whether repeated rounds leak, and expiry.

The figures are differences of resident memory after a warm-up. `make soak` runs ten times as many.
"""

import json
import os
from collections.abc import Iterator

import harness
import pytest
from harness import (
    HANDSHAKE,
    Client,
    Connection,
    MiB,
    StartTarget,
    Target,
    encode_http_request,
    message,
    record_measurement,
    wait_for,
)

ABOUT = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "lab", "version": "1"}}
MANY = int(os.environ.get("RELIABILITY_SESSIONS", "1500"))
KILO = 1000


class Opener:
    """Opens many sessions over one connection."""

    def __init__(self, target: Target) -> None:
        self.client = Client(target)
        self.plain = dict(self.client.headers)

    def open(self, ready: bool = True) -> str:
        answer = self.client.exchange(self._post(self.plain, message("initialize", ABOUT, 1)))
        assert answer.status == 200, answer
        session = answer.headers["mcp-session-id"]
        if ready:
            assert (
                self.client.exchange(self._post(self.of(session), message("notifications/initialized"))).status == 202
            )
        return session

    def of(self, session: str) -> dict[str, str]:
        return self.plain | {"mcp-session-id": session, "mcp-protocol-version": HANDSHAKE}

    def call(self, session: str, tool: str, arguments: object) -> harness.Answer:
        made = message("tools/call", {"name": tool, "arguments": arguments}, 1)
        return self.client.exchange(self._post(self.of(session), made))

    def end(self, session: str) -> int:
        return self.client.exchange(encode_http_request("DELETE", "/mcp", self.of(session))).status

    def _post(self, headers: dict[str, str], made: object) -> bytes:
        return encode_http_request("POST", "/mcp", headers, json.dumps(made).encode())


@pytest.fixture
def warm(start: StartTarget) -> Iterator[Target]:
    target = start()
    opener = Opener(target)
    for _ in range(100):
        session = opener.open()
        opener.call(session, "chatter", {"count": 1})
        opener.end(session)
    opener.client.process_stats()
    yield target
    assert target.alive


def test_idle_sessions_are_small(warm: Target) -> None:
    """The peers: 42 and 44 kB each."""
    opener = Opener(warm)
    before = warm.rss
    for _ in range(MANY):
        opener.open()
    each = (warm.rss - before) / MANY / KILO
    record_measurement("one session", each, "kB")
    assert each <= 5, f"{each:.1f} kB per session"
    assert opener.client.process_stats()["listeners"] >= MANY


def test_idle_streams_are_small(warm: Target) -> None:
    """The peers: 57 and 59 kB each."""
    opener = Opener(warm)
    sessions = [opener.open() for _ in range(300)]
    opener.client.process_stats()
    before = warm.rss
    held: list[Connection] = []
    for session in sessions:
        connection = Connection(warm.port)
        connection.send(encode_http_request("GET", "/mcp", opener.of(session)))
        assert connection.head()[0] == 200
        held.append(connection)
    each = (warm.rss - before) / len(held) / KILO
    record_measurement("one stream", each, "kB")
    assert each <= 25, f"{each:.1f} kB per stream"


def test_idle_subscriptions_are_small(warm: Target) -> None:
    """The official SDK: 48 kB each."""
    client = Client(warm)
    client.process_stats()
    before = warm.rss
    held = [
        client.send_only(client.prepare("subscriptions/listen", {"notifications": {"toolsListChanged": True}}))
        for _ in range(300)
    ]
    assert all(connection.head()[0] == 200 for connection in held)
    each = (warm.rss - before) / len(held) / KILO
    record_measurement("one subscription", each, "kB")
    assert each <= 25, f"{each:.1f} kB per subscription"


def test_calls_in_flight_are_small(warm: Target) -> None:
    """The peers: 52 and 74 kB each."""
    client = Client(warm)
    client.process_stats()
    before = warm.rss
    held = [client.send_call("wait", {"key": "k"}) for _ in range(300)]
    client.call("until", {"what": "started", "key": "k", "count": 300})
    each = (warm.rss - before) / len(held) / KILO
    record_measurement("one call in flight", each, "kB")
    assert each <= 30, f"{each:.1f} kB per call"
    client.call("release", {"key": "k"})
    assert all(connection.answer().status == 200 for connection in held)


def test_rounds_leave_nothing_behind(warm: Target) -> None:
    """Sessions that open, call with a stream, listen and end."""
    opener = Opener(warm)
    sizes: list[int] = []
    for _ in range(5):
        for number in range(150):
            session = opener.open()
            opener.call(session, "chatter", {"count": 3, "size": 300})
            if number % 10 == 0:
                with Connection(warm.port) as connection:
                    connection.send(encode_http_request("GET", "/mcp", opener.of(session)))
                    connection.head()
            assert opener.end(session) == 204
        sizes.append(warm.rss)
    assert sizes[-1] - sizes[1] < 2 * MiB, [size // KILO for size in sizes]
    assert wait_for(lambda: opener.client.process_stats()["listeners"] == 0, "no listener is left")


def test_stateless_calls_leave_nothing_behind(warm: Target) -> None:
    client = Client(warm)
    sizes: list[int] = []
    for _ in range(4):
        for _ in range(400):
            client.call("echo", {"text": "x" * 1000})
        sizes.append(warm.rss)
    assert sizes[-1] - sizes[1] < MiB


def test_what_is_kept_for_resumption_is_bounded(start: StartTarget) -> None:
    target = start(limits={"max_replay_total_bytes": 4 * MiB})
    opener = Opener(target)
    session = opener.open()
    for _ in range(50):
        opener.call(session, "chatter", {"count": 1, "size": 100_000})
    before = target.rss
    for _ in range(150):
        opener.call(session, "chatter", {"count": 1, "size": 100_000})
    assert target.rss - before < 4 * MiB


def test_short_streams_do_not_pile_up(start: StartTarget) -> None:
    """Each finished stream takes more than its events; it is let go of as a whole."""
    target = start(limits={"max_replay_total_bytes": 64 * 1024})
    opener = Opener(target)
    session = opener.open()
    for _ in range(300):
        opener.call(session, "chatter", {"count": 1})
    before = target.rss
    for _ in range(1500):
        opener.call(session, "chatter", {"count": 1})
    assert target.rss - before < MiB, f"{(target.rss - before) / KILO:.0f} kB"


def test_unused_and_unopened_sessions_expire(start: StartTarget) -> None:
    target = start(limits={"session_idle_timeout": 1.0, "initialize_timeout": 1.0})
    opener = Opener(target)
    sessions = [opener.open() for _ in range(200)]
    unopened = [opener.open(ready=False) for _ in range(50)]
    busy = opener.open()
    watching = Connection(target.port)
    watching.send(encode_http_request("GET", "/mcp", opener.of(busy)))
    assert watching.head()[0] == 200
    wait_for(lambda: opener.client.process_stats()["listeners"] == 1, "all but the one in use have ended")
    assert {opener.call(one, "echo", {"text": "x"}).status for one in [*sessions[:20], *unopened[:20]]} == {404}
    assert opener.call(busy, "echo", {"text": "x"}).status == 200
    assert opener.client.is_healthy()


def test_a_session_has_a_lifetime(start: StartTarget) -> None:
    target = start(limits={"session_lifetime": 1.0})
    opener = Opener(target)
    session = opener.open()
    with Connection(target.port) as watching:
        watching.send(encode_http_request("GET", "/mcp", opener.of(session)))
        assert watching.answer().status == 200  # it ends, although it is in use
    assert opener.call(session, "echo", {"text": "x"}).status == 404


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_ten_thousand_sessions_in_rounds(start: StartTarget) -> None:
    target = start()
    opener = Opener(target)
    sizes: list[int] = []
    for _ in range(10):
        sessions = [opener.open() for _ in range(9000)]
        for session in sessions[::10]:
            opener.call(session, "chatter", {"count": 1})
        for session in sessions:
            opener.end(session)
        opener.client.process_stats()  # collects: what grows after that is kept, not merely not yet collected
        sizes.append(target.rss)
    record_measurement("growth over 63 000 sessions", (sizes[-1] - sizes[2]) / MiB, "MiB")
    record_measurement("after 90 000 sessions", sizes[-1] / MiB, "MiB")
    assert sizes[-1] - sizes[2] < 0.01 * sizes[2] + MiB, [size // MiB for size in sizes]
