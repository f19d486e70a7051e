"""Many clients with the same ids at the same time. Each sends a unique marker, and none may see another's."""

import itertools
import os
import random
import threading
from collections.abc import Callable
from typing import Any

import harness
import pytest
from harness import HANDSHAKE, NEWEST, Client, Sse2024Client, StartTarget, Target, message, record_measurement

CLIENTS = int(os.environ.get("RELIABILITY_CLIENTS", "24"))
DELIVERIES = int(os.environ.get("RELIABILITY_DELIVERIES", "1000000"))
CALLS = int(os.environ.get("RELIABILITY_CALLS", "60"))


_runs = itertools.count()


def crowd(target: Target, kinds: list[Callable[[Target, str, int], int]], calls: int) -> int:
    """Run one client of some kind per thread; the number of deliveries, all of them right."""
    run = next(_runs)  # a key that was used before would be taken for started
    right: list[int] = []
    wrong: list[BaseException] = []

    def live(number: int) -> None:
        try:
            right.append(kinds[number % len(kinds)](target, f"marker-{run}-{number}-", calls))
        except BaseException as exc:
            wrong.append(exc)

    threads = [threading.Thread(target=live, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]
    return sum(right)


def over_http(revision: str) -> Callable[[Target, str, int], int]:
    def live(target: Target, marker: str, calls: int) -> int:
        chance = random.Random(marker)
        right = 0
        with Client(target, revision) as client:
            for id in range(1, calls + 1):
                what = chance.choice(["echo", "shout", "chatter", "abandon", "cancel", "read"])
                right += WAYS[what](client, f"{marker}{id}", id)
        return right

    return live


def simply(tool: str) -> Callable[[Client, str, int], int]:
    def call(client: Client, marker: str, id: int) -> int:
        answer = client.call(tool, {"text": marker}, id=id)
        assert (answer.text, answer.message["id"]) == (marker, id)
        return 1

    return call


def chatter(client: Client, marker: str, id: int) -> int:
    answer = client.call("chatter", {"count": 3, "mark": f"{marker}:"}, id=id, **{harness.LOG_LEVEL: "error"})
    *notices, result = answer.messages
    assert [one["params"]["data"].split(":")[:2] for one in notices] == [[marker, str(n)] for n in range(3)]
    assert (result["id"], result["result"]["content"][0]["text"]) == (id, f"{marker}:end")
    return 4


def abandon(client: Client, marker: str, id: int) -> int:
    """Leave before the answer; the next request with the same id gets its own."""
    client.send_call("wait", {"key": marker, "text": "nobody's"}, id=id).abort()
    client.call("release", {"key": marker})
    return simply("echo")(client, marker, id)


def cancel(client: Client, marker: str, id: int) -> int:
    """Cancel an id: only one's own is meant, whoever else uses it."""
    if client.revision == NEWEST:
        return simply("echo")(client, marker, id)
    with client.send_call("wait", {"key": marker}, id=id) as held:
        client.call("until", {"what": "started", "key": marker})
        client.post(message("notifications/cancelled", {"requestId": id}))
        assert not held.answer().messages
    return simply("shout")(client, marker, id)


def read(client: Client, marker: str, id: int) -> int:
    answer = client.request("resources/read", {"uri": f"note://{marker}/text"}, id=id)
    assert answer.message["result"]["contents"][0]["text"] == f"note {marker}"
    return 1


WAYS = {
    "echo": simply("echo"), "shout": simply("shout"), "chatter": chatter, "abandon": abandon, "cancel": cancel,
    "read": read,
}  # fmt: skip


def over_old_stream(target: Target, marker: str, calls: int) -> int:
    old = Sse2024Client(target)
    for id in range(1, calls + 1):
        found: Any = old.call("echo" if id % 2 else "shout", {"text": f"{marker}{id}"}, id=id)
        assert found["result"]["content"][0]["text"] == f"{marker}{id}"
    old.close()
    return calls


KINDS = [over_http(NEWEST), over_http(HANDSHAKE), over_http("2025-06-18"), over_old_stream]


def test_no_answer_goes_astray(served: Target) -> None:
    record_measurement("right deliveries", crowd(served, KINDS, CALLS), "")
    assert Client(served).is_healthy()


def test_no_principal_is_taken_for_another(start: StartTarget) -> None:
    target = start(principals=True)

    def live(target: Target, marker: str, calls: int) -> int:
        for revision in (NEWEST, HANDSHAKE):
            with Client(target, revision, principal=marker) as client:
                for id in range(calls // 2):
                    assert client.call("whoami", id=id).text == marker
        return calls

    crowd(target, [live], 20)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_for_long(served: Target) -> None:
    total = 0
    while total < DELIVERIES:
        total += crowd(served, KINDS, 2000)
    record_measurement("right deliveries, long", total, "")
