"""Test the line protocol: any chunks, the limit of a line, and a peer that does not read."""

import asyncio
import json
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.transports import line_splitter as module
from dovetail.transports.duplex_client import OversizedMessage
from dovetail.transports.line_protocol import LineProtocol, serve_connection
from dovetail.transports.line_splitter import LineSplitter
from dovetail.transports.spool import SLICE_BYTES, MemoryBudget
from support.fake_service import (
    FakeService,
    PausedWork,
    initialize,
    request,
    run_pending_callbacks,
    stateless_request,
    text_result,
    wait_until,
)

LIMIT = 8
fragments = st.sampled_from([b"\n", b"\r\n", b"\r", b"a", b"{}", b"\xc3\xa9", b"x" * LIMIT, b"x" * (LIMIT + 1), b" "])
streams = st.lists(fragments | st.binary(max_size=6), max_size=25).map(b"".join)


def hide_prefixes(lines: list[bytes | OversizedMessage]) -> list[bytes | None]:
    """Write None for each line that was too long."""
    return [None if isinstance(line, OversizedMessage) else line for line in lines]


def expected(stream: bytes) -> list[bytes | None]:
    """What a framer of the simplest kind would give."""
    whole = stream.split(b"\n")[:-1]
    kept = [None if len(line) > LIMIT else line for line in whole if line not in (b"", b"\r")]
    rest = stream.rpartition(b"\n")[2]
    return [*kept, *([None] if len(rest) > LIMIT else [])]


@given(streams, st.data(), st.sampled_from([3, 4096]))
def test_any_way_to_cut_a_stream_gives_the_same_lines(stream: bytes, data: st.DataObject, large: int) -> None:
    framer, lines, place = LineSplitter(LIMIT), [], 0
    original, module.MIN_PIECE_BYTES = module.MIN_PIECE_BYTES, large
    try:
        for cut in [*sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12))), len(stream)]:
            lines += framer.feed(stream[place:cut])
            place = cut
    finally:
        module.MIN_PIECE_BYTES = original
    assert hide_prefixes(lines) == expected(stream)


@given(streams)
def test_byte_by_byte(stream: bytes) -> None:
    framer = LineSplitter(LIMIT)
    assert hide_prefixes([line for byte in stream for line in framer.feed(bytes([byte]))]) == expected(stream)


@pytest.mark.parametrize("cut", [1, 7, LIMIT + 1])
def test_a_line_at_the_limit_passes_and_one_over_it_is_reported_once(cut: int) -> None:
    stream = b"x" * LIMIT + b"\n" + b"y" * (LIMIT + 1) + b"\n" + b"z" * 1000 + b"\nok\n"
    framer, lines = LineSplitter(LIMIT), []
    for start in range(0, len(stream), cut):
        lines += framer.feed(stream[start : start + cut])
    assert hide_prefixes(lines) == [b"x" * LIMIT, None, None, b"ok"]
    assert [line.prefix[:1] for line in lines if isinstance(line, OversizedMessage)] == [b"y", b"z"]


def test_a_line_over_the_limit_is_not_kept() -> None:
    framer = LineSplitter(100)
    tracemalloc.start()
    try:
        for _ in range(1000):
            framer.feed(b"x" * 1000)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert framer.feed(b"\nok\n") == [b"ok"]


def took(count: int, size: int) -> float:
    framer, piece = LineSplitter(10**9), b"x" * size
    began = time.thread_time()
    for _ in range(count):
        framer.feed(piece)
    framer.feed(b"\n")
    return time.thread_time() - began


def test_time_is_linear_in_the_bytes_however_they_are_cut() -> None:
    """A framer that looks at what it holds again and again would need hundreds of times as long."""
    short, long = min(took(2_000, 64) for _ in range(3)), min(took(40_000, 64) for _ in range(3))
    assert long < 20 * short * 8 + 0.05


# Lines


class Pipe:
    """A transport in the hand."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.paused = False
        self.closed = False
        self.aborted = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written.append(data)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    @property
    def messages(self) -> list[Any]:
        return [json.loads(line) for line in b"".join(self.written).splitlines()]


def line(message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"


def connected(stand: FakeService | None = None, **limits: Any) -> tuple[LineProtocol, Pipe]:
    lines, pipe = LineProtocol(stand or FakeService(**limits)), Pipe()
    lines.connection_made(pipe)
    return lines, pipe


async def test_answers_of_one_turn_leave_in_one_write() -> None:
    lines, pipe = connected()
    lines.data_received(b"".join(line(stateless_request(id=number, text=str(number))) for number in range(50)))
    await wait_until(lambda: len(pipe.messages) == 50)
    assert len(pipe.written) == 1
    assert {message["id"] for message in pipe.messages} == set(range(50))
    assert all(one.endswith(b"\n") for one in pipe.written)
    await lines.close(0)


async def test_a_last_line_may_lack_its_newline() -> None:
    lines, pipe = connected()
    lines.data_received(line(stateless_request(text="last")).rstrip(b"\n"))
    lines.eof_received()
    await lines.close(5.0)
    assert [message["result"]["content"][0]["text"] for message in pipe.messages] == ["last"]


async def test_a_line_too_long_is_answered_and_the_next_one_served() -> None:
    lines, pipe = connected(max_message_bytes=400)
    lines.data_received(line({"x": "y" * 1000}) + line(stateless_request(text="next")))
    await wait_until(lambda: len(pipe.messages) == 2)
    refused, served = pipe.messages
    assert refused["error"]["code"] == -32600
    assert "400" in refused["error"]["message"]
    assert "id" not in refused
    assert served["result"]["content"][0]["text"] == "next"
    await lines.close(0)


async def test_empty_lines_are_no_messages() -> None:
    lines, pipe = connected()
    for piece in (b"\n", b"\r\n", b"\r", b"\n", b"\n\n", line(stateless_request())):
        lines.data_received(piece)
    await wait_until(lambda: pipe.messages)
    assert len(pipe.messages) == 1
    await lines.close(0)


async def test_carriage_returns_before_the_end_are_white_space() -> None:
    lines, pipe = connected()
    lines.data_received(line(stateless_request(text="a"))[:-1] + b"\r\n")
    await wait_until(lambda: pipe.messages)
    assert "result" in pipe.messages[0]
    await lines.close(0)


async def test_a_peer_that_does_not_read_is_not_read_from() -> None:
    lines, pipe = connected()
    lines.pause_writing()
    assert pipe.paused
    lines.resume_writing()
    assert not pipe.paused
    await lines.close(0)


async def test_messages_wait_for_a_peer_that_does_not_read() -> None:
    steps = []

    async def work(exchange: Any) -> Any:
        await exchange.notify("notifications/message", {})
        steps.append("said")
        return b"{}"

    lines, pipe = connected(FakeService(work))
    lines.pause_writing()
    lines.data_received(line(stateless_request()))
    await run_pending_callbacks()
    assert steps == []
    lines.resume_writing()
    await wait_until(lambda: len(pipe.messages) == 2)
    assert steps == ["said"]
    await lines.close(0)


async def test_a_large_answer_leaves_in_slices_as_the_peer_reads() -> None:
    class Slow(Pipe):
        """Takes one slice, then says that it is full."""

        def write(self, data: bytes) -> None:
            assert len(data) <= SLICE_BYTES
            super().write(data)
            lines.pause_writing()

    async def work(exchange: Any) -> Any:
        return text_result("x" * (3 * SLICE_BYTES))

    budget = MemoryBudget(1000)
    lines, pipe = LineProtocol(FakeService(work), budget=budget), Slow()
    lines.connection_made(pipe)
    lines.data_received(line(stateless_request(id=1)))
    await wait_until(lambda: pipe.written)
    for count in (1, 2, 3):
        assert (pipe.paused, len(pipe.written)) == (True, count)
        lines.write(b'{"small":%d}' % count)
        lines.flush()
        assert len(pipe.written) == count
        lines.resume_writing()
    for _ in range(5):
        lines.resume_writing()
    large, *small = pipe.messages
    assert len(large["result"]["content"][0]["text"]) == 3 * SLICE_BYTES
    assert small == [{"small": 1}, {"small": 2}, {"small": 3}]
    assert budget.used_bytes == 0
    await lines.close(0)


async def test_what_is_held_when_the_connection_closes_is_still_given_to_the_channel() -> None:
    lines, pipe = connected()
    lines.pause_writing()
    lines.write(b'{"a":1}')
    lines.flush()
    assert pipe.written == []
    await lines.close(0)
    assert pipe.messages == [{"a": 1}]


async def test_large_messages_of_one_turn_do_not_wait_together_in_memory() -> None:
    budget = MemoryBudget(0)
    lines, pipe = LineProtocol(FakeService(), budget=budget), Pipe()
    lines.connection_made(pipe)
    for _ in range(3):
        lines.write(b"x" * (SLICE_BYTES + 1))
        assert b"".join(pipe.written).count(b"x") == SLICE_BYTES + 1
        pipe.written.clear()
    await lines.close(0)


@pytest.mark.parametrize("is_seen", ["before", "after", "as the end of the data"])
async def test_a_peer_that_neither_sends_nor_reads_is_dropped_soon(is_seen: str) -> None:
    lines, pipe = connected(write_timeout=60.0, drain_timeout=0.005)
    ended = is_seen == "before"
    lines.has_input_ended = lambda: ended
    lines.pause_writing()
    if is_seen == "after":
        ended = True
    elif is_seen != "before":
        lines.eof_received()
    await wait_until(lambda: pipe.aborted)
    await lines.close(0)


async def test_a_peer_that_sent_everything_and_reads_again_gets_its_answers() -> None:
    lines, pipe = connected(drain_timeout=5.0)
    lines.pause_writing()
    lines.write(b'{"a":1}')
    lines.eof_received()
    await run_pending_callbacks()
    lines.resume_writing()
    await lines.close(0)
    assert (pipe.messages, pipe.aborted) == ([{"a": 1}], False)


async def test_a_full_disk_cuts_no_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    budget = MemoryBudget(SLICE_BYTES)
    lines, pipe = LineProtocol(FakeService(), budget=budget), Pipe()
    lines.connection_made(pipe)
    lines.pause_writing()
    for number in range(4):
        lines.write(json.dumps({"number": number, "text": "x" * SLICE_BYTES}).encode())
    await wait_until(lambda: budget.retry_disk_at > 0)
    lines.resume_writing()
    assert [message["number"] for message in pipe.messages] == [0, 1, 2, 3]
    assert budget.used_bytes == 0
    await lines.close(0)


async def test_a_peer_that_does_not_read_is_dropped_if_disk_and_memory_are_full(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    lines, pipe = LineProtocol(FakeService(), budget=MemoryBudget(1000)), Pipe()
    lines.connection_made(pipe)
    lines.pause_writing()
    for _ in range(3):
        lines.write(b"x" * (SLICE_BYTES + 1))
    await wait_until(lambda: pipe.aborted)
    await lines.close(0)


async def test_a_peer_that_never_reads_again_is_dropped() -> None:
    lines, pipe = connected(write_timeout=0.005)
    lines.pause_writing()
    async with asyncio.timeout(10):
        await lines.done
    assert pipe.aborted
    await lines.close(0)


async def test_both_halves_of_a_dropped_peer_are_let_go() -> None:
    lines, reading, writing = LineProtocol(FakeService(write_timeout=0.005)), Pipe(), Pipe()
    lines.set_writer(writing)
    lines.connection_made(reading)
    lines.pause_writing()
    async with asyncio.timeout(10):
        await lines.done
    assert writing.aborted
    assert reading.closed
    await lines.close(0)


async def test_no_write_waits_for_a_closed_peer() -> None:
    steps = []

    async def work(exchange: Any) -> Any:
        lines.pause_writing()
        await exchange.notify("notifications/message", {})
        steps.append("said")
        return b"{}"

    lines, _ = connected(FakeService(work))
    lines.data_received(line(stateless_request()))
    await run_pending_callbacks()
    lines.connection_lost(None)
    await wait_until(lambda: steps)
    await lines.close(0)


async def test_lines_that_came_together_are_taken_only_while_their_answers_are_read() -> None:
    """A few bytes that ask for a lot must not make a lot of answers that nobody reads."""
    stand = FakeService()
    lines, pipe = connected(stand)
    lines.pause_writing()
    lines.data_received(b"".join(line(stateless_request(id=number)) for number in range(5)))
    await run_pending_callbacks()
    assert not stand.seen
    lines.resume_writing()
    await wait_until(lambda: b"".join(pipe.written).count(b"\n") == 5)
    assert [exchange.id for exchange in stand.seen] == list(range(5))
    await lines.close(0)


async def test_a_large_answer_leaves_before_the_next_line_is_taken() -> None:
    async def work(exchange: Any) -> Any:
        return b'{"text":"%s"}' % (b"x" * 100_000)

    stand = FakeService(work)
    lines, pipe = connected(stand)
    asyncio.get_running_loop().call_soon(lines.data_received, line(stateless_request(id=0)))
    await wait_until(lambda: pipe.written and not lines.duplex.running_count)
    pipe.written.clear()
    write = pipe.write

    def write_and_pause(data: bytes) -> None:
        write(data)
        lines.pause_writing()

    pipe.write = write_and_pause  # type: ignore[method-assign]
    asyncio.get_running_loop().call_soon(
        lines.data_received, line(stateless_request(id=1)) + line(stateless_request(id=2))
    )
    await run_pending_callbacks()
    assert [exchange.id for exchange in stand.seen] == [0, 1]
    await lines.close(0)


@pytest.mark.parametrize("after", ["many lines", "a client that did not read"])
async def test_a_failure_while_lines_wait_ends_the_connection(after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, pipe = connected()
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))

    def fail(_: bytes) -> None:
        raise RuntimeError("broken")

    if after == "many lines":
        lines.data_received(line(stateless_request("ping")) * 1000)
        monkeypatch.setattr(lines.duplex, "receive", fail)
        await wait_until(lambda: failures)
    else:
        lines.pause_writing()
        lines.data_received(line(stateless_request()))
        monkeypatch.setattr(lines.duplex, "receive", fail)
        with pytest.raises(RuntimeError):
            lines.resume_writing()
    assert pipe.aborted
    async with asyncio.timeout(20):
        await lines.done
    await lines.close(0)


async def test_an_end_that_comes_with_the_last_lines_waits_until_they_are_taken() -> None:
    stand = FakeService()
    lines, pipe = connected(stand)
    lines.pause_writing()
    lines.data_received(line(stateless_request(id=1)))
    lines.eof_received()
    await run_pending_callbacks()
    assert not lines.done.done()
    lines.resume_writing()
    await lines.done
    await lines.close(1)
    assert b'"id":1' in b"".join(pipe.written)


async def test_a_peer_that_reads_again_is_not() -> None:
    lines, pipe = connected(write_timeout=0.005)
    lines.pause_writing()
    lines.resume_writing()
    await asyncio.sleep(0.02)
    assert not pipe.aborted
    assert not lines.done.done()
    await lines.close(0)


async def test_reading_is_not_resumed_on_what_is_closing() -> None:
    lines, pipe = connected()
    lines.pause_writing()
    pipe.close()
    lines.resume_writing()
    assert pipe.paused
    await lines.close(0)


@pytest.mark.parametrize("end", ["eof_received", "shutdown"])
async def test_the_end_lets_what_runs_finish_within_the_grace(end: str) -> None:
    held = PausedWork()
    stand = FakeService(held)
    lines, pipe = connected(stand)
    serving = asyncio.create_task(serve_connection(lines, 5.0))
    lines.data_received(line(stateless_request(id="a", text="a")))
    await wait_until(lambda: held.started)
    if end == "eof_received":
        assert lines.eof_received() is True
    else:
        lines.data_received(line(initialize()) + line(request("shutdown", 9)))
    await run_pending_callbacks()
    assert not serving.done()
    held.release("a")
    await serving
    assert held.outcomes == {"a": "done"}
    assert pipe.closed
    if end == "shutdown":
        assert {"jsonrpc": "2.0", "id": 9, "result": None} in pipe.messages


async def test_a_peer_that_is_gone_gets_no_grace() -> None:
    held = PausedWork()
    lines, pipe = connected(FakeService(held))
    serving = asyncio.create_task(serve_connection(lines, 60.0))
    lines.data_received(line(stateless_request(text="a")))
    await wait_until(lambda: held.started)
    lines.connection_lost(None)
    async with asyncio.timeout(10):
        await serving
    assert held.outcomes == {"a": "gone"}
    assert pipe.messages == []


async def test_without_a_grace_what_runs_is_stopped() -> None:
    held = PausedWork()
    lines, pipe = connected(FakeService(held))
    lines.data_received(line(stateless_request(text="a")))
    await wait_until(lambda: held.started)
    await lines.close(0)
    assert held.outcomes == {"a": "gone"}
    assert pipe.closed
    assert pipe.messages == []


async def test_responses_go_to_the_given_writer() -> None:
    lines, reading, writing = LineProtocol(FakeService()), Pipe(), Pipe()
    lines.set_writer(writing)
    lines.connection_made(reading)
    lines.data_received(line(stateless_request()))
    await wait_until(lambda: writing.messages)
    assert not reading.written
    await lines.close(0)
    assert reading.closed
    assert writing.closed
