"""One client that floods the server is limited, and other clients are not affected.

The flooding client has its own principal and far exceeds its share, while another principal works as usual. Only the
flooding client gets 429, with a time to retry.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from harness import (
    HANDSHAKE,
    NEWEST,
    Answer,
    Client,
    Connection,
    Sse2024Client,
    StartTarget,
    Target,
    encode_http_request,
    record_measurement,
    wait_for,
)

from dovetail import ServerLimits
from dovetail.errors import ServerBusy
from dovetail.protocol.limits import CallerBusy
from dovetail.server.thread_pool import ThreadPool

TRIES = 60


def told_to_wait(answer: Answer) -> bool:
    return answer.status == 429 and int(answer.headers["retry-after"]) >= 1


def statuses(connections: list[Connection]) -> Counter[int]:
    return Counter(one.head()[0] for one in connections)


def unaffected(target: Target, tries: int = TRIES) -> float:
    """The share of another principal's calls that succeed, in both eras, with and without a thread."""
    good = 0
    for revision in (NEWEST, HANDSHAKE):
        with Client(target, revision, principal="other") as client:
            for number in range(tries // 2):
                answer = client.call("shout" if number % 2 else "echo", {"text": str(number)})
                good += answer.status == 200 and answer.text == str(number)
    return good / (tries // 2 * 2)


def check_others(target: Target, what: str) -> None:
    share = unaffected(target)
    record_measurement(f"success of others beside a flood of {what}", share * 100, "%")
    assert share >= 0.99


@pytest.mark.parametrize("revision", [NEWEST, HANDSHAKE])
def test_a_flood_of_calls(start: StartTarget, revision: str) -> None:
    target = start(principals=True)
    greedy, other = Client(target, revision, principal="greedy"), Client(target, principal="other")
    share = 256
    held = [greedy.send_call("wait", {"key": "k"}) for _ in range(share)]
    other.call("until", {"what": "started", "key": "k", "count": share})
    refused = [greedy.send_call("wait", {"key": "k"}) for _ in range(50)]
    answers = [one.answer() for one in refused]
    assert all(map(told_to_wait, answers))
    check_others(target, f"calls, {revision}")
    other.call("release", {"key": "k"})
    assert statuses(held) == {200: share}
    assert greedy.is_healthy()


def test_a_flood_of_calls_over_several_sessions(start: StartTarget) -> None:
    """A principal has one share, however many sessions it opens."""
    target = start(principals=True, limits={"max_calls_per_principal": 20})
    other = Client(target, principal="other")
    clients = [Client(target, HANDSHAKE, principal="greedy") for _ in range(10)]
    held = [one.send_call("wait", {"key": "k"}) for one in clients for _ in range(2)]
    other.call("until", {"what": "started", "key": "k", "count": 20})
    assert all(told_to_wait(one.call("echo", {"text": "x"})) for one in clients)
    check_others(target, "calls over sessions")
    other.call("release", {"key": "k"})
    assert statuses(held) == {200: 20}


def test_a_flood_of_synchronous_calls(start: StartTarget) -> None:
    """The threads are not one principal's, however quickly its calls come."""
    target = start(principals=True, limits={"max_threads": 8, "max_thread_queue": 64})
    greedy = Client(target, principal="greedy")
    data = [greedy.prepare("tools/call", {"name": "doze", "arguments": {"seconds": 3.0}}, n) for n in range(100)]
    connections = [Connection(target.port) for _ in data]
    for connection, one in zip(connections, data, strict=True):
        connection.send(one)
    check_others(target, "synchronous calls")
    answers = [one.answer() for one in connections]
    assert Counter(one.status for one in answers) == {200: 4, 429: 96}
    assert all(one.status == 200 or told_to_wait(one) for one in answers)


async def test_a_burst_in_one_turn_takes_no_more_than_half_the_threads() -> None:
    """Calls that come at once count before a thread has taken the first of them."""
    threads, release = ThreadPool(ServerLimits(max_threads=8)), threading.Event()
    calls = [threads.run(release.wait, (10.0,), {}, "greedy") for _ in range(100)]
    tasks = [asyncio.ensure_future(one) for one in calls]
    refused = [one async for one in _busy(tasks[4:])]
    assert all(isinstance(one, CallerBusy) for one in refused)
    assert await threads.run(str, (7,), {}, "other") == "7"
    release.set()
    assert await asyncio.gather(*tasks[:4]) == [True] * 4
    assert await threads.run(str, (7,), {}, "greedy") == "7"


async def _busy(tasks: list[Any]) -> AsyncIterator[ServerBusy]:
    for task in tasks:
        with pytest.raises(ServerBusy) as found:
            await task
        yield found.value


def test_a_flood_of_sessions(start: StartTarget) -> None:
    target = start(principals=True)
    for _ in range(100):
        Client(target, HANDSHAKE, principal="greedy").close()
    opening = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "lab", "version": "1"}}
    fresh = Client(target, principal="greedy")
    fresh.revision = HANDSHAKE
    assert all(told_to_wait(fresh.request("initialize", opening)) for _ in range(20))
    check_others(target, "sessions")


def test_a_flood_of_anonymous_sessions_blocks_no_caller(start: StartTarget) -> None:
    """On loopback all look the same: the session longest unused gives way, one with a stream never does."""
    target = start(limits={"max_sessions": 40})
    steady = Client(target, HANDSHAKE)
    stream = steady.listen()
    assert stream.head()[0] == 200
    for _ in range(200):
        Client(target, HANDSHAKE).close()
    assert steady.is_healthy()
    late = Client(target, HANDSHAKE)
    assert late.is_healthy()
    record_measurement("sessions opened over the limit without a lock-out", 160, "")


@contextmanager
def streams(kind: str, target: Target) -> Iterator[Callable[[], Connection]]:
    """A way to open one more event stream of the flooder's."""
    opened: list[Connection] = []
    greedy = Client(target, principal="greedy")

    def open_one() -> Connection:
        if kind == "listen":
            data = greedy.prepare("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        elif kind == "session":
            session = Client(target, HANDSHAKE, principal="greedy")
            data = encode_http_request("GET", "/mcp", session.headers)
        else:
            data = encode_http_request("GET", "/sse", greedy.headers | {"accept": "text/event-stream"})
        connection = greedy.send_only(data)
        opened.append(connection)
        return connection

    yield open_one
    for connection in opened:
        connection.close()


@pytest.mark.parametrize(("kind", "limits"), [
    ("listen", {"max_subscriptions_per_principal": 10}),
    ("session", {"max_streams_per_principal": 10}),
    ("old", {"max_streams_per_principal": 10}),
])  # fmt: skip
def test_a_flood_of_streams(start: StartTarget, kind: str, limits: dict[str, Any]) -> None:
    target = start(principals=True, limits=limits)
    with streams(kind, target) as open_one:
        assert [open_one().head()[0] for _ in range(10)] == [200] * 10
        for _ in range(10):
            refused = open_one()
            assert told_to_wait(refused.answer())
        with Client(target, HANDSHAKE, principal="other") as other, other.listen() as stream:
            assert stream.head()[0] == 200
        check_others(target, f"streams, {kind}")
    # What is closed is given back.
    with streams(kind, target) as open_one:
        wait_for(lambda: open_one().head()[0] == 200, "room again")


def test_calls_over_the_old_transport_count_too(start: StartTarget) -> None:
    """One share, whichever transport the calls come by."""
    target = start(principals=True, limits={"max_calls_per_principal": 10})
    greedy, other = Client(target, principal="greedy"), Client(target, principal="other")
    old = [OldPrincipal(target, "greedy") for _ in range(3)]
    for number in range(9):
        old[number % 3].begin("wait", {"key": "k"}, number)
    other.call("until", {"what": "started", "key": "k", "count": 9})
    held = greedy.send_call("wait", {"key": "k"})
    other.call("until", {"what": "started", "key": "k", "count": 10})
    assert told_to_wait(greedy.call("echo", {"text": "x"}))
    old[0].begin("echo", {"text": "x"}, 99)
    assert old[0].answer(99)["error"]["code"] == 429
    check_others(target, "calls over the old transport")
    other.call("release", {"key": "k"})
    assert held.answer().status == 200


class OldPrincipal(Sse2024Client):
    """A client of the old transport that says who it is."""

    def __init__(self, target: Target, principal: str) -> None:
        about = {"authorization": f"Bearer {principal}"}
        self.target = target
        self._host = {"host": f"127.0.0.1:{target.port}"} | about
        self.reading = Connection(target.port)
        self.reading.send(encode_http_request("GET", "/sse", self._host | {"accept": "text/event-stream"}))
        self.status, _ = self.reading.head()
        self._events = self.reading.stream()
        self.address = next(self._events)["data"]
        self._posts = Client(target)
        self._kept = []
        opening = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "lab", "version": "1"}}
        assert "result" in self.request("initialize", opening)
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def begin(self, tool: str, arguments: dict[str, Any], id: int) -> None:
        call = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
        assert self.send(call).status == 202


def test_when_the_whole_server_is_full(start: StartTarget) -> None:
    """Everyone's limit is nobody's fault: 503, and room again as soon as a call ends."""
    target = start(principals=True, limits={"max_calls": 12})
    first = Client(target, principal="p0")
    held = [Client(target, principal=f"p{number}").send_call("wait", {"key": "k"}) for number in range(11)]
    first.call("until", {"what": "started", "key": "k", "count": 11})
    held.append(Client(target, principal="last").send_call("wait", {"key": "k2"}))
    answer = wait_for(lambda: _full(first), "a full server")
    assert int(answer.headers["retry-after"]) >= 1
    held[-1].abort()
    wait_for(lambda: first.call("echo", {"text": "x"}).status == 200, "room")
    first.call("release", {"key": "k"})
    assert statuses(held[:-1]) == {200: 11}


def _full(client: Client) -> Answer | None:
    answer = client.call("echo", {"text": "x"})
    return answer if answer.status == 503 else None


def test_a_flood_that_is_refused_costs_little(start: StartTarget) -> None:
    """Four clients over their share, as fast as they can, while another works."""
    target = start(principals=True, limits={"max_calls_per_principal": 1})
    other = Client(target, principal="other")
    held = [Client(target, principal=f"greedy{number}").send_call("wait", {"key": "k"}) for number in range(4)]
    other.call("until", {"what": "started", "key": "k", "count": 4})
    over = threading.Event()
    counted: Counter[int] = Counter()

    def flood(number: int) -> None:
        with Client(target, principal=f"greedy{number}") as client:
            for _ in range(20_000):  # an end in any case
                if over.is_set():
                    return
                counted[client.call("echo", {"text": "x"}).status] += 1

    floods = [threading.Thread(target=flood, args=(number,)) for number in range(4)]
    for thread in floods:
        thread.start()
    try:
        check_others(target, "refused calls")
    finally:
        over.set()
        for thread in floods:
            thread.join()
    record_measurement("calls refused meanwhile", counted[429], "")
    assert counted.keys() == {429}
    other.call("release", {"key": "k"})
    assert statuses(held) == {200: 4}
