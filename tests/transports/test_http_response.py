"""Test a response: a JSON document unless a message comes before the result, one end, and nothing after it."""

import asyncio
import gc
import json
import logging
import tempfile
import weakref
from pathlib import Path
from typing import Any

import pytest

from dovetail.protocol.sse import SSEParser
from dovetail.transports.http_server.http_request import ASGIRequest, EndpointRequest
from dovetail.transports.http_server.streams import http_response as module
from dovetail.transports.http_server.streams.http_response import ResponseTimers, ResponseWriter
from dovetail.transports.spool import SLICE_BYTES, MemoryBudget, create_spool
from support.fake_service import run_pending_callbacks, wait_until


class Wire:
    """What was sent, and a client that can stop reading."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.reads = asyncio.Event()
        self.reads.set()

    async def __call__(self, message: dict[str, Any]) -> None:
        await self.reads.wait()
        self.sent.append(message)

    @property
    def start(self) -> dict[str, Any]:
        starts = [one for one in self.sent if one["type"] == "http.response.start"]
        assert starts == self.sent[:1]
        return starts[0]

    @property
    def kind(self) -> bytes:
        return dict(self.start["headers"])[b"content-type"]

    @property
    def body(self) -> bytes:
        return b"".join(one["body"] for one in self.sent[1:])

    @property
    def ended(self) -> bool:
        ends = [not one.get("more_body", False) for one in self.sent[1:]]
        assert sum(ends) <= 1
        return bool(ends) and ends[-1]

    @property
    def events(self) -> list[str]:
        return [event.data for event in SSEParser().feed(self.body)]


EXTRA = [(b"x-extra", b"1")]


def create_request(send: Any, mode: Any = "auto") -> EndpointRequest:
    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": []}
    return EndpointRequest(ASGIRequest(scope, asyncio.Future, send), "POST", {}, [], None, response_mode=mode)


def write_response(send: Any, mode: Any, headers: Any, timers: ResponseTimers, budget: MemoryBudget) -> ResponseWriter:
    return ResponseWriter(create_request(send, mode), headers, timers, budget)


def reply(wire: Wire, mode: Any = "auto", keep_alive: float = 60.0, budget: int = 10**9) -> ResponseWriter:
    return write_response(wire, mode, EXTRA, ResponseTimers(keep_alive), MemoryBudget(budget))


async def test_a_result_alone_is_a_document() -> None:
    wire = Wire()
    await reply(wire).finish(b'{"a":1}')
    assert wire.start["status"] == 200
    assert sorted(wire.start["headers"]) == [
        (b"content-length", b"7"),
        (b"content-type", b"application/json"),
        (b"x-extra", b"1"),
    ]
    assert (wire.body, wire.ended, len(wire.sent)) == (b'{"a":1}', True, 2)


async def test_from_the_first_word_on_it_is_a_stream() -> None:
    wire = Wire()
    one = reply(wire)
    await one.emit(b'"first"')
    assert (wire.kind, wire.ended, one.is_streaming) == (b"text/event-stream", False, True)
    assert (b"x-extra", b"1") in wire.start["headers"]
    assert (b"cache-control", b"no-cache, no-transform") in wire.start["headers"]
    await one.emit(b'"second"')
    await one.finish(b'"result"')
    assert wire.events == ['"first"', '"second"', '"result"']
    assert wire.ended


async def test_who_takes_only_documents_hears_only_the_result() -> None:
    wire = Wire()
    one = reply(wire, "json")
    await one.emit(b'"first"')
    await one.finish(b'"result"')
    assert (wire.kind, wire.body) == (b"application/json", b'"result"')


async def test_who_takes_only_streams_gets_a_stream() -> None:
    wire = Wire()
    await reply(wire, "sse").finish(b'"result"')
    assert (wire.kind, wire.events, wire.ended) == (b"text/event-stream", ['"result"'], True)


@pytest.mark.parametrize("mode", ["auto", "json", "sse"])
async def test_a_refusal_has_a_status_even_for_those_who_take_streams(mode: str) -> None:
    wire = Wire()
    await reply(wire, mode).finish(b'"no"', 404, [(b"retry-after", b"1")])
    assert (wire.start["status"], wire.kind, wire.body) == (404, b"application/json", b'"no"')
    assert {(b"x-extra", b"1"), (b"retry-after", b"1")} < set(wire.start["headers"])


async def test_a_refusal_after_the_first_word_is_the_last_event() -> None:
    wire = Wire()
    one = reply(wire)
    await one.emit(b'"first"')
    await one.finish(b'"no"', 404)
    assert (wire.start["status"], wire.events, wire.ended) == (200, ['"first"', '"no"'], True)


@pytest.mark.parametrize("size", [10, SLICE_BYTES + 1])
@pytest.mark.parametrize("mode", ["auto", "json", "sse"])
async def test_nothing_is_sent_after_the_end(mode: str, size: int) -> None:
    wire = Wire()
    one = reply(wire, mode)
    await one.finish(b'"result"')
    before = len(wire.sent)
    await one.emit(b'"late"')
    await one.finish(b"x" * size)
    await one.end()
    assert len(wire.sent) == before


@pytest.mark.parametrize("spoken", [True, False])
@pytest.mark.parametrize("size", [10, SLICE_BYTES + 1])
async def test_a_closed_client_receives_nothing(spoken: bool, size: int) -> None:
    wire, budget = Wire(), MemoryBudget(10**9)
    one = write_response(wire, "auto", [], ResponseTimers(60.0), budget)
    if spoken:
        await one.emit(b'"first"')
    one.abandon()
    before = len(wire.sent)
    await one.emit(b'"late"')
    await one.finish(b"x" * size)
    await one.end()
    assert len(wire.sent) == before
    assert budget.used_bytes == 0


async def test_a_message_that_needs_no_answer_is_accepted() -> None:
    wire = Wire()
    await reply(wire).send_accepted()
    assert (wire.start["status"], wire.body, wire.ended) == (202, b"", True)
    assert (b"content-length", b"0") in wire.start["headers"]


@pytest.mark.parametrize("spoken", [True, False])
async def test_a_cancelled_request_ends_without_a_result(spoken: bool) -> None:
    wire = Wire()
    one = reply(wire)
    if spoken:
        await one.emit(b'"first"')
    await one.end()
    assert (wire.kind, wire.ended) == (b"text/event-stream", True)
    assert wire.events == (['"first"'] if spoken else [])


async def test_the_end_of_a_cancelled_request_follows_the_head_that_silence_began() -> None:
    wire = Wire()
    wire.reads.clear()
    one = reply(wire, keep_alive=0.001)
    one.watch_silence()
    await wait_until(lambda: one.is_streaming)
    await run_pending_callbacks()
    ending = asyncio.create_task(one.end())
    await run_pending_callbacks()
    wire.reads.set()
    await ending
    await run_pending_callbacks()
    assert wire.kind == b"text/event-stream"
    assert wire.ended


async def test_a_cancelled_request_of_one_who_takes_only_documents_has_no_content() -> None:
    wire = Wire()
    one = reply(wire, "json")
    await one.end()
    assert (wire.start["status"], wire.body, wire.ended) == (204, b"", True)


# Keeping quiet streams alive


async def test_a_quiet_stream_shows_signs_of_life_until_its_end() -> None:
    wire = Wire()
    one = reply(wire, keep_alive=0.005)
    await one.emit(b'"first"')
    await wait_until(lambda: wire.body.count(b"\n:") >= 2)
    await one.finish(b'"result"')
    before = len(wire.sent)
    await asyncio.sleep(0.02)
    assert len(wire.sent) == before
    assert wire.events == ['"first"', '"result"']


async def test_an_abandoned_stream_shows_none() -> None:
    wire = Wire()
    one = reply(wire, keep_alive=0.001)
    await one.emit(b'"first"')
    one.abandon()
    before = len(wire.sent)
    await asyncio.sleep(0.01)
    assert len(wire.sent) == before


async def send_stream(timers: ResponseTimers) -> "weakref.ref[Wire]":
    """Send a message before the response counts as silent, and end the stream. Return what the response refers to."""
    wire = Wire()
    one = write_response(wire, "auto", [], timers, MemoryBudget(10**9))
    await one.emit(b'"first"')
    one.watch_silence()
    await wait_until(lambda: wire.body.count(b"\n:") >= 2)
    await one.finish(b'"result"')
    one.watch_silence()
    assert wire.events == ['"first"', '"result"']
    return weakref.ref(wire)


async def test_a_stream_that_has_ended_waits_in_no_timer() -> None:
    timers = ResponseTimers(0.005)
    reference = await send_stream(timers)
    await wait_until(lambda: timers and gc.collect() is not None and reference() is None)


async def test_a_failed_keep_alive_affects_no_caller(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="dovetail")
    tries = []

    async def send(message: dict[str, Any]) -> None:
        if message.get("body", b"").startswith(b":"):
            tries.append(1)
            raise OSError("gone")

    one = write_response(send, "auto", [], ResponseTimers(0.001), MemoryBudget(0))
    await one.emit(b'"first"')
    await wait_until(lambda: len(tries) >= 2)
    one.abandon()
    await run_pending_callbacks()
    assert {record.args[0] for record in caplog.records if isinstance(record.args, tuple)} == {"OSError"}


# Large answers


@pytest.mark.parametrize("budget", [0, 10**9])
@pytest.mark.parametrize("spoken", [True, False])
async def test_a_large_answer_leaves_in_slices(spoken: bool, budget: int) -> None:
    wire, waiting = Wire(), MemoryBudget(budget)
    one = write_response(wire, "auto", [], ResponseTimers(60.0), waiting)
    data = json.dumps("x" * (3 * SLICE_BYTES)).encode()
    if spoken:
        await one.emit(b'"first"')
    await one.finish(data)
    assert wire.ended
    assert max(len(message.get("body", b"")) for message in wire.sent) <= 2 * SLICE_BYTES
    if spoken:
        assert wire.events == ['"first"', data.decode()]
    else:
        assert wire.body == data
        assert dict(wire.start["headers"])[b"content-length"] == b"%d" % len(data)
    assert waiting.used_bytes == 0


@pytest.mark.parametrize(("is_slow", "is_alone"), [(False, True), (True, True), (False, False)])
async def test_slices_grow_while_one_client_keeps_up(is_slow: bool, is_alone: bool) -> None:
    sizes: list[int] = []
    budget = MemoryBudget(10**9)
    other_response = None if is_alone else create_spool(b"data", budget)

    async def send(message: dict[str, Any]) -> None:
        sizes.append(len(message.get("body", b"")))
        if is_slow:
            await asyncio.sleep(0)

    data = b'"%b"' % (b"x" * (32 * SLICE_BYTES))
    await write_response(send, "json", [], ResponseTimers(15.0), budget).finish(data)
    assert sum(sizes) == len(data)
    assert max(sizes) == (8 * SLICE_BYTES if is_alone and not is_slow else SLICE_BYTES)
    assert budget.open_spools == (0 if other_response is None else 1)


async def test_a_large_notice_leaves_in_slices_and_the_stream_goes_on() -> None:
    wire = Wire()
    one = reply(wire)
    await one.emit(b'"%s"' % (b"x" * (2 * SLICE_BYTES)))
    assert not wire.ended
    await one.finish(b'"result"')
    assert len(wire.events) == 2
    assert wire.ended


async def test_who_does_not_read_has_the_rest_laid_on_disk_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPOOL_AFTER_S", 0.005)
    wire, budget = Wire(), MemoryBudget(10**9)
    one = write_response(wire, "auto", [], ResponseTimers(60.0), budget)
    data = bytes(range(256)) * (SLICE_BYTES // 64)
    wire.reads.clear()
    sending = asyncio.create_task(_awaited(one.finish(data)))
    await run_pending_callbacks()
    wire.reads.set()
    await wait_until(lambda: wire.sent)
    wire.reads.clear()
    await wait_until(lambda: budget.used_bytes == 0 or sending.done())
    wire.reads.set()
    await sending
    assert wire.body == data


async def _awaited(work: Any) -> None:
    await work


async def test_whole_answers() -> None:
    wire = Wire()
    await create_request(wire).respond(404, [(b"a", b"b")], b"xy")
    assert wire.sent == [
        {"type": "http.response.start", "status": 404, "headers": [(b"a", b"b"), (b"content-length", b"2")]},
        {"type": "http.response.body", "body": b"xy"},
    ]
    wire = Wire()
    await create_request(wire).respond(204, [])
    assert wire.start["headers"] == []  # no content has no length either
    wire = Wire()
    await create_request(wire).respond_json(400, b"{}", [(b"a", b"b")])
    assert (wire.start["status"], wire.kind, wire.body) == (400, b"application/json", b"{}")


class SlowAfterWriting:
    """A server that writes first and then waits for its client, as some do."""

    def __init__(self) -> None:
        self.written = bytearray()

    async def __call__(self, message: dict[str, Any]) -> None:
        self.written += message.get("body", b"")
        if message["type"] == "http.response.body" and message.get("more_body"):
            await asyncio.sleep(0.02)


async def test_a_slow_client_gets_every_slice_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPOOL_AFTER_S", 0.001)
    send, data = SlowAfterWriting(), bytes(range(256)) * 1024
    await write_response(send, "json", [], ResponseTimers(15.0), MemoryBudget(10**9)).finish(data)
    assert bytes(send.written) == data


async def test_no_keep_alive_comes_between_the_slices_of_an_event() -> None:
    send, data = SlowAfterWriting(), b"x" * 300_000
    answer = write_response(send, "sse", [], ResponseTimers(0.005), MemoryBudget(10**9))
    await answer.emit(data)
    await answer.finish(b"{}")
    assert [event.data for event in SSEParser().feed(bytes(send.written))] == [data.decode(), "{}"]


class StopsReadingTheBody(Wire):
    """A client that reads the head and then nothing, until it may."""

    async def __call__(self, message: dict[str, Any]) -> None:
        await super().__call__(message)
        if message["type"] == "http.response.start":
            self.reads.clear()


@pytest.mark.parametrize("mode", ["json", "sse"])
async def test_a_full_disk_cuts_no_response(mode: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    monkeypatch.setattr(module, "SPOOL_AFTER_S", 0.001)
    wire, budget, data = StopsReadingTheBody(), MemoryBudget(100_000), json.dumps("x" * 300_000).encode()
    other = create_spool(b"x", budget)
    sending = asyncio.create_task(_awaited(write_response(wire, mode, [], ResponseTimers(15.0), budget).finish(data)))
    await wait_until(lambda: budget.retry_disk_at > 0)
    wire.reads.set()
    await sending
    assert (wire.body if mode == "json" else wire.events[0].encode()) == data
    assert wire.ended
    other.close()
    assert budget.used_bytes == 0


async def test_a_slow_client_is_disconnected_if_disk_and_memory_are_full(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    monkeypatch.setattr(module, "SPOOL_AFTER_S", 0.001)
    wire, budget = StopsReadingTheBody(), MemoryBudget(1000)
    writer = write_response(wire, "json", [], ResponseTimers(15.0), budget)
    sending = asyncio.create_task(_awaited(writer.finish(b"x" * 300_000)))
    await asyncio.wait_for(sending, 10)
    assert not wire.ended  # the client sees an incomplete response
    assert not sending.cancelling()
    assert budget.used_bytes == 0
