"""Shutdown in every state takes a bounded time, returns a meaningful exit code, and leaves no client waiting.

The limits are small. All cases run concurrently, because they mostly wait.
"""

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import harness
import pytest
from harness import (
    HANDSHAKE,
    NEWEST,
    Answer,
    Client,
    Connection,
    Sse2024Client,
    StdioClient,
    Target,
    message,
    record_measurement,
    wait_for,
)

DRAIN, HARD = 0.6, 2.0
LIMITS = {"drain_timeout": DRAIN, "shutdown_timeout": HARD}
SLACK = 4.0  # for a busy machine; the figures in the documents are from an idle one
LONG = 30


@dataclass
class Outcome:
    """How one stop went."""

    seconds: float
    code: int | None
    told: list[Any] = field(default_factory=list[Any])
    log: str = ""


# What is going on when the stop comes: each returns the connections whose clients wait


def idle(target: Target) -> list[Connection]:
    assert Client(target).is_healthy()
    return []


def calling(tool: str, revision: str = NEWEST) -> Callable[[Target], list[Connection]]:
    arguments = {"wait": {"key": "k"}, "doze": {"seconds": LONG}, "block": {"seconds": LONG}, "short": {"seconds": 0.3}}

    def begin(target: Target) -> list[Connection]:
        client = Client(target, revision)
        client.is_healthy()
        held = client.send_call("doze" if tool == "short" else tool, arguments[tool])
        if tool == "wait":
            client.call("until", {"what": "started", "key": "k"})
        else:  # there may be nobody to ask: the tool says it where it can be seen from outside
            wait_for(lambda: "in the tool" in target.log, "the tool has begun")
        return [held]

    return begin


def get_stream(target: Target) -> list[Connection]:
    held = Client(target, HANDSHAKE).listen()
    assert held.socket.recv(1, socket.MSG_PEEK)
    return [held]


def listening(target: Target) -> list[Connection]:
    client = Client(target)
    held = client.send_only(client.prepare("subscriptions/listen", {"notifications": {"toolsListChanged": True}}))
    assert held.socket.recv(1, socket.MSG_PEEK)
    return [held]


def old_stream(target: Target) -> list[Connection]:
    target.extra["old"] = Sse2024Client(target)
    return []


def half_a_request(target: Target) -> list[Connection]:
    client = Client(target)
    client.is_healthy()
    held = client.send_only(client.prepare("tools/list")[:-5])
    assert client.is_healthy()  # sent later and answered: the half has been read
    return [held]


def many_sessions(target: Target) -> list[Connection]:
    clients = [Client(target, HANDSHAKE) for _ in range(150)]
    streams = [client.listen() for client in clients[:40]]
    calls = [client.send_call("wait", {"key": "k"}) for client in clients[40:80]]
    clients[0].call("until", {"what": "started", "key": "k", "count": 40})
    assert all(one.socket.recv(1, socket.MSG_PEEK) for one in streams)
    return [*streams, *calls]


def stop(target: Target, prepare: Callable[[Target], list[Connection]], *numbers: int) -> Outcome:
    waiting = prepare(target)
    began = time.monotonic()
    for place, number in enumerate(numbers):
        if place:
            time.sleep(0.2)
        with contextlib.suppress(ProcessLookupError):
            target.signal(number)
    return _ended(target, began, waiting)


def _ended(target: Target, began: float, waiting: list[Connection]) -> Outcome:
    try:
        code: int | None = target.exit_code(HARD + 3 * SLACK)
    except subprocess.TimeoutExpired:
        code = None
    seconds = time.monotonic() - began
    return Outcome(seconds, code, [_told(one) for one in waiting], target.log)


def _told(connection: Connection) -> Answer | ConnectionError:
    try:
        return connection.answer()
    except ConnectionError as exc:
        return exc


TERM, INT = signal.SIGTERM, signal.SIGINT
OVER_HTTP: dict[str, tuple[Callable[[Target], list[Connection]], tuple[int, ...]]] = {
    "idle TERM": (idle, (TERM,)), "idle INT": (idle, (INT,)),
    "call TERM": (calling("wait"), (TERM,)), "call INT": (calling("wait"), (INT,)),
    "session call TERM": (calling("wait", HANDSHAKE), (TERM,)), "thread TERM": (calling("doze"), (TERM,)),
    "short TERM": (calling("short"), (TERM,)), "get TERM": (get_stream, (TERM,)), "get INT": (get_stream, (INT,)),
    "listen TERM": (listening, (TERM,)), "old TERM": (old_stream, (TERM,)), "half TERM": (half_a_request, (TERM,)),
    "sessions TERM": (many_sessions, (TERM,)),
    "blocked TERM": (calling("block"), (TERM,)), "blocked INT": (calling("block"), (INT,)),
    "blocked TERM TERM": (calling("block"), (TERM, TERM)), "blocked INT INT": (calling("block"), (INT, INT)),
    "thread TERM TERM": (calling("doze"), (TERM, TERM)), "call INT INT": (calling("wait"), (INT, INT)),
}  # fmt: skip


# stdio


def stop_stdio(target: Target, tool: str, how: int | None, revision: str) -> Outcome:
    pipe = StdioClient(target, revision)
    pipe.is_healthy()
    if tool == "wait":
        pipe.send_call("wait", {"key": "k"}, id="held")
        pipe.call("until", {"what": "started", "key": "k"})
    elif tool != "idle":
        seconds = 0.3 if tool == "short" else LONG
        pipe.send_call("block" if tool == "block" else "doze", {"seconds": seconds}, id="held")
        wait_for(lambda: "in the tool" in target.log, "the tool has begun")
    began = time.monotonic()
    if how is None:
        pipe.close()
    else:
        target.signal(how)
    told: list[Any] = []
    with contextlib.suppress(ConnectionError):
        while True:
            told.append(pipe.receive(HARD + 2 * SLACK))
    outcome = _ended(target, began, [])
    outcome.told = told
    return outcome


OVER_STDIO: dict[str, tuple[str, int | None, str]] = {
    "idle EOF": ("idle", None, NEWEST), "idle TERM": ("idle", TERM, HANDSHAKE), "idle INT": ("idle", INT, NEWEST),
    "call EOF": ("wait", None, NEWEST), "call TERM": ("wait", TERM, HANDSHAKE), "call INT": ("wait", INT, NEWEST),
    "thread EOF": ("doze", None, HANDSHAKE), "thread TERM": ("doze", TERM, NEWEST),
    "short EOF": ("short", None, NEWEST), "short TERM": ("short", TERM, HANDSHAKE),
    "blocked EOF": ("block", None, NEWEST), "blocked TERM": ("block", TERM, NEWEST),
    "blocked INT": ("block", INT, NEWEST),
}  # fmt: skip


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Outcome]]:
    folder = tmp_path_factory.mktemp("t16")

    def run(name: str) -> Outcome:
        transport, _, case = name.partition(" ")
        with harness.run_target(folder, transport, limits=LIMITS) as target:
            if transport == "stdio":
                return stop_stdio(target, *OVER_STDIO[case])
            prepare, numbers = OVER_HTTP[case]
            return stop(target, prepare, *numbers)

    names = [f"http {case}" for case in OVER_HTTP] + [f"stdio {case}" for case in OVER_STDIO]
    with ThreadPoolExecutor(5) as pool:
        yield dict(zip(names, pool.map(run, names), strict=True))


def bound(case: str) -> float:
    """How long a stop may take: nothing to wait for, running calls, or nothing but the hard stop."""
    if case.count("TERM") + case.count("INT") > 1:
        return 1.2
    if "blocked" in case:
        return HARD + 0.5
    return DRAIN + 1.2 if case.split()[0] in ("call", "session", "thread", "sessions") else 0.8


@pytest.mark.parametrize("case", OVER_HTTP)
def test_over_http_it_ends_in_time(outcomes: dict[str, Outcome], case: str) -> None:
    outcome = outcomes[f"http {case}"]
    record_measurement(f"http {case}", outcome.seconds, "s")
    assert outcome.code is not None
    assert outcome.seconds < bound(case) + SLACK
    cuts_calls = "blocked" in case or case.count("TERM") + case.count("INT") > 1
    assert outcome.code == (75 if cuts_calls else 0)
    if not cuts_calls and len(case.split()) < 3:
        assert "Traceback" not in outcome.log, outcome.log[-2000:]


def is_stopped(message: Any) -> bool:
    """Whether a call failed because the server shuts down."""
    return message["result"]["isError"] and "shut" in message["result"]["content"][0]["text"]


@pytest.mark.parametrize("case", ["call TERM", "call INT", "session call TERM", "thread TERM", "sessions TERM"])
def test_a_call_that_is_stopped_says_so(outcomes: dict[str, Outcome], case: str) -> None:
    """An error that says the same call may be tried again; a stream ends as streams end."""
    assert outcomes[f"http {case}"].told
    for answer in outcomes[f"http {case}"].told:
        assert isinstance(answer, Answer), answer
        if answer.messages:
            assert is_stopped(answer.message), answer
        else:
            assert answer.status == 200


def test_a_call_that_can_finish_does(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["http short TERM"].told[0].text == "done"


@pytest.mark.parametrize("case", ["get TERM", "get INT", "listen TERM"])
def test_streams_are_ended_and_not_cut(outcomes: dict[str, Outcome], case: str) -> None:
    answer = outcomes[f"http {case}"].told[0]
    assert isinstance(answer, Answer), answer  # read to its proper end
    assert answer.status == 200
    if case.startswith("listen"):
        assert answer.message["result"]["resultType"] == "complete"


def test_an_incomplete_request_is_asked_to_retry(outcomes: dict[str, Outcome]) -> None:
    answer = outcomes["http half TERM"].told[0]
    assert (answer.status, answer.headers.get("retry-after")) == (503, "1")


def test_a_blocked_loop_is_named_in_the_log(outcomes: dict[str, Outcome]) -> None:
    assert "in block" in outcomes["http blocked TERM"].log
    assert "time.sleep" in outcomes["http blocked TERM"].log


@pytest.mark.parametrize("case", OVER_STDIO)
def test_over_stdio_it_ends_in_time(outcomes: dict[str, Outcome], case: str) -> None:
    outcome = outcomes[f"stdio {case}"]
    record_measurement(f"stdio {case}", outcome.seconds, "s")
    assert outcome.code == 0
    assert outcome.seconds < 2.5 + SLACK  # the peers: still running after 8 s when a tool or the loop is blocked
    assert "Traceback" not in outcome.log, outcome.log[-2000:]
    if case.startswith("short"):
        assert outcome.told[-1]["id"] == "held"
        assert outcome.told[-1]["result"]["content"][0]["text"] == "done"


def test_while_it_drains_nothing_new_begins(tmp_path: Path) -> None:
    with harness.run_target(tmp_path, "http", limits={"drain_timeout": 20.0, "shutdown_timeout": 30.0}) as target:
        client, other = Client(target), Client(target)
        client.is_healthy()
        other.is_healthy()
        held = client.send_call("wait", {"key": "k", "text": "mine"})
        client.call("until", {"what": "started", "key": "k"})
        target.signal(TERM)
        refused = wait_for(lambda: _refused(other), "new work is refused")
        assert refused.status == 503
        assert "retry-after" in refused.headers
        with pytest.raises(ConnectionError):
            wait_for(lambda: Connection(target.port).close(), "the port is closed", 5)
        held.abort()
        assert target.exit_code() == 0


def _refused(client: Client) -> Answer | None:
    answer = client.request("tools/list")
    return answer if answer.status != 200 else None


def test_an_open_old_stream_hears_the_end(tmp_path: Path) -> None:
    with harness.run_target(tmp_path, "http", limits=LIMITS) as target:
        old = Sse2024Client(target)
        old.send(message("tools/call", {"name": "wait", "arguments": {"key": "k"}}, "held"))
        Client(target).call("until", {"what": "started", "key": "k"})
        target.signal(TERM)
        assert is_stopped(old.answer("held"))
        with pytest.raises(StopIteration):
            old.receive()
        assert target.exit_code() == 0


def test_unix_sockets_stop_like_the_others(tmp_path: Path) -> None:
    place = str(tmp_path / "s")
    with harness.run_target(tmp_path, "unix", run={"path": place}, limits=LIMITS) as target:
        wait_for(lambda: Path(place).exists(), "the socket")
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(harness.TIMEOUT_S)
            peer.connect(place)
            made = message("tools/list", harness.stateless_params(), 1)
            peer.sendall(harness.json.dumps(made).encode() + b"\n")
            assert peer.recv(1)
            began = time.monotonic()
            target.signal(TERM)
            while peer.recv(65536):
                pass
        assert target.exit_code() == 0
        assert time.monotonic() - began < 1 + SLACK
