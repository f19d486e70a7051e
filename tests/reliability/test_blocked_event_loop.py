"""The log names a tool that blocks the event loop. Tools in threads block no other call, and callers get an error
if all threads are busy.
"""

import time
from collections import Counter

from harness import HANDSHAKE, Client, Sse2024Client, StartTarget, StdioClient, Target, record_measurement, wait_for

BLOCKED_LINE = "time.sleep(seconds)"  # of the tool, in the stack that is reported


def reported_after(target: Target, began: float) -> float:
    """Return the time until the report. Its stack shows that the tool was still blocked."""
    wait_for(lambda: BLOCKED_LINE in target.log, "a report")
    return time.monotonic() - began


def check_report(target: Target) -> None:
    assert "in block" in target.log
    assert len(target.log.encode()) < 12_000


def test_a_blocked_loop_is_reported_with_its_stack(start: StartTarget) -> None:
    target = start()
    client = Client(target)
    client.is_healthy()
    began = time.monotonic()
    with client.send_call("block", {"seconds": 2.2}) as held:
        after = reported_after(target, began)
        check_report(target)
        assert held.answer().text == "done"
    record_measurement("blocked loop reported after", after, "s")
    assert client.is_healthy()


def test_on_stdio_too(start: StartTarget) -> None:
    target = start("stdio")
    pipe = StdioClient(target)
    pipe.is_healthy()
    id = pipe.send_call("block", {"seconds": 2.2})
    wait_for(lambda: BLOCKED_LINE in target.log, "a report")
    check_report(target)
    assert pipe.answer(id)["result"]["content"][0]["text"] == "done"
    assert pipe.is_healthy()


def test_a_loop_that_turns_is_not_reported(start: StartTarget) -> None:
    """Nor one that is held up for less than anyone would notice, however often."""
    target = start()
    client = Client(target)
    for _ in range(10):
        client.call("block", {"seconds": 0.1})
    with client.send_call("doze", {"seconds": 1.5}) as held:
        assert held.answer().text == "done"
    assert BLOCKED_LINE not in target.log


def test_a_loop_blocked_again_and_again_does_not_fill_the_log(start: StartTarget) -> None:
    target = start()
    client = Client(target)
    for _ in range(2):
        client.call("block", {"seconds": 1.5})
    assert target.log.count(BLOCKED_LINE) == 1


def test_sixty_synchronous_tools_block_no_other_call(served: Target) -> None:
    """The peers have 40 threads: there the sixty-first client waited more than seven seconds."""
    sleeper, other, old = Client(served), Client(served), Sse2024Client(served)
    session = Client(served, HANDSHAKE)
    for client in (other, session, old):
        client.is_healthy()
    held = [sleeper.send_call("doze", {"seconds": 4.0}) for _ in range(60)]
    slowest: dict[str, float] = {}
    for _ in range(10):
        for name, call in (
            ("async", lambda: other.call("echo", {"text": "x"}).text),
            ("sync", lambda: other.call("shout", {"text": "x"}).text),
            ("session", lambda: session.call("echo", {"text": "x"}).text),
            ("old", lambda: old.call("shout", {"text": "x"})["result"]["content"][0]["text"]),
        ):
            before = time.monotonic()
            assert call() == "x"
            slowest[name] = max(slowest.get(name, 0.0), time.monotonic() - before)
    assert not any(one.has_data() for one in held)  # They are all still asleep.
    for name, seconds in slowest.items():
        record_measurement(f"slowest {name} call beside 60 sleeping tools", seconds * 1000, "ms")
    assert [one.answer().text for one in held] == ["done"] * 60


def test_when_all_threads_are_busy_callers_get_an_error(start: StartTarget) -> None:
    target = start(limits={"max_threads": 4, "max_thread_queue": 6, "thread_queue_timeout": 0.3})
    client = Client(target)
    client.call("shout", {"text": "x"})
    held = [client.send_call("doze", {"seconds": 2.0}) for _ in range(4)]
    more = [client.send_call("shout", {"text": "x"}) for _ in range(12)]
    assert client.call("echo", {"text": "free"}).text == "free"
    answers = [one.answer() for one in more]
    assert {one.status for one in answers} == {503}
    assert all(int(one.headers["retry-after"]) >= 1 for one in answers)
    said = Counter(one.message["error"]["message"] for one in answers)
    # Six may wait, and give up after a while; more than that are refused at once.
    assert len(said) == 2
    assert min(said.values()) <= 6
    assert [one.answer().text for one in held] == ["done"] * 4
    assert client.call("shout", {"text": "again"}).text == "again"


def test_a_tool_that_blocks_one_client_delays_others_no_longer_than_it_blocks(start: StartTarget) -> None:
    """Nothing can run beside a blocked loop; what matters is that nothing is lost."""
    target = start()
    blocker, others = Client(target), [Client(target) for _ in range(10)]
    for one in others:
        one.is_healthy()
    held = blocker.send_call("block", {"seconds": 1.0})
    data = [one.prepare("tools/call", {"name": "echo", "arguments": {"text": str(n)}}) for n, one in enumerate(others)]
    for one, sent in zip(others, data, strict=True):
        one.connection().send(sent)
    assert [one.connection().answer().text for one in others] == [str(n) for n in range(10)]
    assert held.answer().text == "done"
