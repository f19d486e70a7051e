"""Test handshake sessions over HTTP: owners, streams, resumption and the end."""

import asyncio
import gc
import json
import logging
import re
import sys
import weakref
from collections.abc import Awaitable, Mapping
from typing import Any

import pytest

from dovetail.errors import ConnectionLost, InvalidParams, RemoteError, ResourceNotFound, ServerBusy
from dovetail.protocol.exchange import IncomingExchange
from dovetail.protocol.handshake import create_implicit_session
from dovetail.protocol.limits import CallerBusy
from dovetail.transports import operator_log
from dovetail.transports.http_server.endpoint import Endpoint
from dovetail.transports.http_server.sessions import memory_sessions
from dovetail.transports.http_server.sessions.handshake_session import HandshakeSession
from support.fake_service import (
    BATCHING,
    DRAFT,
    FIRST,
    INITIALIZED,
    LATEST_HANDSHAKE,
    META,
    NEWEST,
    AsgiRequest,
    FakeService,
    PausedWork,
    create_notification,
    initialize,
    open_session,
    post,
    request,
    run_pending_callbacks,
    start_post,
    stateless_request,
    text_result,
    wait_until,
)

TOOLS, UPDATED = "notifications/tools/list_changed", "notifications/resources/updated"

QUICK_SWEEP = 0.02  # as a replay time: half of it is the longest pause between two sweeps


def endpoint(stand: FakeService | None = None, **options: Any) -> Endpoint:
    return Endpoint(stand or FakeService(), **options)


def text(answer: AsgiRequest) -> str:
    return answer.last["result"]["content"][0]["text"]


def get(app: Any, session: Mapping[str, str], last: str | None = None, **scope: Any) -> AsgiRequest:
    return AsgiRequest(app, "GET", headers=dict(session) | ({} if last is None else {"last-event-id": last}), **scope)


async def principal(headers: Mapping[bytes, bytes]) -> str | None:
    given = headers.get(b"authorization")
    return given.decode() if given else None


# Opening


async def test_a_session_is_opened_and_used() -> None:
    stand = FakeService()
    app = endpoint(stand)
    answer = await post(app, initialize())
    id = answer.headers["mcp-session-id"]
    assert answer.status == 200
    assert len(id) >= 32
    assert id.isascii()
    assert id.isprintable()
    session = {"mcp-session-id": id}
    ready = await post(app, INITIALIZED, session)
    assert (ready.status, ready.body) == (202, b"")
    answer = await post(app, request(id=7, text="hello"), session)
    assert (answer.status, answer.last["id"], text(answer)) == (200, 7, "hello")
    assert "resultType" not in answer.last["result"]
    (exchange,) = stand.seen
    assert (exchange.caller.protocol_version, exchange.headers[b"mcp-session-id"]) == (LATEST_HANDSHAKE, id.encode())


async def test_ids_of_sessions_are_never_alike() -> None:
    app = endpoint()
    ids = {(await open_session(app, ready=False))["mcp-session-id"] for _ in range(20)}
    assert len(ids) == 20
    assert app.stats().sessions == 20


async def test_a_session_is_opened_when_the_description_is_known() -> None:
    stand = FakeService()

    async def refresh() -> None:
        await asyncio.sleep(0)
        stand.instructions = "known"

    stand.refresh_description = refresh
    app = endpoint(stand)
    answer = await post(app, initialize())
    assert answer.last["result"]["instructions"] == "known"
    refused = await post(app, initialize(capabilities=None, id=3))
    assert (refused.status, refused.last["error"]["code"], refused.last["id"]) == (400, -32602, 3)
    assert app.stats().sessions == 1


async def test_a_malformed_introduction_opens_nothing() -> None:
    app = endpoint()
    answer = await post(app, initialize(capabilities=None, id=3))
    assert (answer.status, answer.last["error"]["code"], answer.last["id"]) == (400, -32602, 3)
    assert app.stats().sessions == 0


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream", "application/json, text/event-stream"])
async def test_the_introduction_is_answered_in_what_the_client_takes(accept: str) -> None:
    answer = await post(endpoint(), initialize(), {"accept": accept})
    assert answer.streaming == (accept == "text/event-stream")
    assert answer.last["result"]["protocolVersion"] == LATEST_HANDSHAKE
    assert "mcp-session-id" in answer.headers


# Whose session it is


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 400),
        ({"mcp-session-id": "guessed"}, 404),
        ({"mcp-session-id": ""}, 404),
        ({"mcp-protocol-version": "1999-01-01"}, 400),
        ({"mcp-protocol-version": "\u00e9"}, 400),
    ],
)
@pytest.mark.parametrize("how", ["request", "notice", "response", "batch", "GET", "DELETE"])
async def test_without_a_session_nothing_is_served(headers: dict[str, str], status: int, how: str) -> None:
    stand = FakeService()
    app = endpoint(stand)
    await open_session(app)
    messages = {
        "request": request(),
        "notice": INITIALIZED,
        "response": {"jsonrpc": "2.0", "id": 1, "result": {}},
        "batch": [request()],
    }
    going = start_post(app, messages[how], headers) if how in messages else AsgiRequest(app, how, headers=headers)
    assert (await going.wait_done()).status == status
    assert stand.seen == []
    assert app.stats().sessions == 1


async def test_an_unknown_session_is_explained_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    app = endpoint()
    for _ in range(2):
        answer = await post(app, request(), {"mcp-session-id": "of-another-worker"})
        assert answer.status == 404
    (record,) = [record for record in caplog.records if record.name.startswith("dovetail")]
    assert record.levelname == "WARNING"
    assert "cluster=" in record.getMessage()


async def test_an_ended_session_is_not_explained_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    app = endpoint()
    session = await open_session(app)
    assert (await AsgiRequest(app, "DELETE", headers=session).wait_done()).status == 204
    assert (await post(app, request(), session)).status == 404
    assert caplog.records == []


async def test_only_the_last_ended_sessions_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_sessions, "_MAX_ENDED_IDS", 1)
    app = endpoint()
    sessions = [await open_session(app) for _ in range(3)]
    for session in sessions:
        assert (await AsgiRequest(app, "DELETE", headers=session).wait_done()).status == 204
    remembered = app._sessions._sessions
    assert isinstance(remembered, memory_sessions.MemorySessions)
    assert list(remembered._ended_ids) == [sessions[-1]["mcp-session-id"]]


async def test_a_foreign_session_looks_like_a_missing_one() -> None:
    app = endpoint(authenticate=principal)
    session = await open_session(app, headers={"authorization": "alice"})
    assert (await post(app, request(), session)).status == 200
    for other in ({"authorization": "bob"}, {"authorization": ""}):
        stolen = session | other
        absent = stolen | {"mcp-session-id": "none"}
        refused, missing = await post(app, request(), stolen), await post(app, request(), absent)
        assert (refused.status, refused.body) == (missing.status, missing.body) == (404, missing.body)
        assert (await get(app, stolen).wait_done()).status == 404
        assert (await AsgiRequest(app, "DELETE", headers=stolen).wait_done()).status == 404
    assert (await post(app, request(), session)).status == 200


# Requests


@pytest.mark.parametrize(
    ("message", "status", "code"),
    [
        (request("tools/fly", 5), 200, -32601),
        (request("server/discover", 5), 200, -32601),
        (request("logging/setLevel", 5, level="loud"), 200, -32602),
        ({"jsonrpc": "2.0", "id": 5}, 400, -32600),
        ({"jsonrpc": "1.0", "id": 5, "method": "ping"}, 400, -32600),
    ],
)
async def test_refusals(message: Any, status: int, code: int) -> None:
    app = endpoint()
    answer = await post(app, message, await open_session(app))
    assert (answer.status, answer.last["error"]["code"], answer.last["id"]) == (status, code, 5)


async def test_an_error_has_the_code_of_the_revision() -> None:
    async def work(exchange: IncomingExchange) -> Any:
        raise ResourceNotFound("a:b")

    app = endpoint(FakeService(work))
    answer = await post(app, request(), await open_session(app))
    assert (answer.status, answer.last["error"]["code"]) == (200, -32002)


async def test_a_result_that_cannot_be_sent_is_an_error() -> None:
    async def work(exchange: IncomingExchange) -> Any:
        return object()

    app = endpoint(FakeService(work))
    answer = await post(app, request(id=5), await open_session(app))
    assert (answer.last["error"]["code"], answer.last["error"].keys()) == (-32603, {"code", "message"})


async def test_what_the_session_answers_by_itself() -> None:
    stand = FakeService()
    app = endpoint(stand)
    session = await open_session(app)
    assert (await post(app, request("ping", 1), session)).last["result"] == {}
    assert (await post(app, request("logging/setLevel", 2, level="error"), session)).last["result"] == {}
    await post(app, request(), session)
    assert stand.seen[0].caller.log_level == 4


async def test_a_farewell_ends_the_session() -> None:
    app = endpoint()
    session = await open_session(app)
    answer = await post(app, request("shutdown", 1), session)
    assert (answer.status, answer.last["result"]) == (200, None)
    assert (await post(app, request(), session)).status == 404


async def test_equal_ids_are_answered_each_on_its_own_reply() -> None:
    held = PausedWork()
    app = endpoint(FakeService(held))
    session = await open_session(app)
    first, second = start_post(app, request(id=1, text="a"), session), start_post(app, request(id=1, text="b"), session)
    await wait_until(lambda: len(held.started) == 2)
    held.release("a", "b")
    assert [text(await first.wait_done()), text(await second.wait_done())] == ["a", "b"]


async def test_work_that_finds_no_room_has_a_status_of_its_own() -> None:
    async def work(exchange: IncomingExchange) -> Any:
        raise (CallerBusy if exchange.id == 2 else ServerBusy)("later", 3.0)

    app = endpoint(FakeService(work))
    session = await open_session(app, BATCHING)
    for id, status in ((1, 503), (2, 429)):
        answer = await post(app, request(id=id), session)
        assert (answer.status, answer.headers["retry-after"], answer.last["error"]["code"]) == (status, "3", 429)
    (answer,) = (await post(app, [request(id=1)], session)).last
    assert answer["error"]["code"] == 429


async def test_requests_of_a_session_have_a_limit() -> None:
    held = PausedWork()
    app = endpoint(FakeService(held, max_calls_per_connection=1))
    session = await open_session(app)
    first = start_post(app, request(id=1, text="a"), session)
    await wait_until(lambda: held.started)
    answer = await post(app, request(id=2), session)
    assert (answer.status, answer.last["error"]["code"], answer.headers["retry-after"]) == (429, 429, "1")
    held.release("a")
    await first.wait_done()
    held.release("b")
    assert (await post(app, request(id=2, text="b"), session)).status == 200


@pytest.mark.parametrize("batch", [True, False])
async def test_a_large_meta_is_refused(batch: bool) -> None:
    app = endpoint(FakeService(max_meta_bytes=100))
    message = request(id=5, _meta={"x": "y" * 200})
    answer = await post(app, [message] if batch else message, await open_session(app, BATCHING))
    (error,) = answer.last if batch else [answer.last]
    assert re.search("_meta.*100", error["error"]["message"])


@pytest.mark.parametrize("batch", [True, False])
async def test_an_exchange_knows_its_headers_and_whose_share_it_uses(batch: bool) -> None:
    stand = FakeService()
    app = endpoint(stand)
    session = await open_session(app, BATCHING, client=("10.0.0.9", 5))
    await post(app, [request()] if batch else request(), session, client=("10.0.0.9", 5))
    assert stand.seen[0].origin == "10.0.0.9"
    assert stand.seen[0].headers is not None
    assert stand.seen[0].headers[b"mcp-session-id"]


# Cancellation


@pytest.mark.parametrize("revision", [LATEST_HANDSHAKE, FIRST, DRAFT])
async def test_a_cancelled_request_ends_without_a_result(revision: str) -> None:
    held = PausedWork()
    app = endpoint(FakeService(held))
    session = await open_session(app, revision)
    going = start_post(app, request(id="x", text="a"), session)
    await wait_until(lambda: held.started)
    for wrong in ("y", 5, None, ["x"]):
        assert (await post(app, create_notification("notifications/cancelled", requestId=wrong), session)).status == 202
    await run_pending_callbacks()
    assert held.outcomes == {}
    await post(app, create_notification("notifications/cancelled", requestId="x"), session)
    await going.wait_done()
    assert held.outcomes == {"a": "cancelled"}
    if revision == DRAFT:
        assert going.last["error"]["code"] == -32000
    else:
        assert going.messages == []
    assert going.task.cancelling() == 0


async def test_a_cancel_is_for_the_same_session_only() -> None:
    held = PausedWork()
    app = endpoint(FakeService(held))
    mine, other = await open_session(app), await open_session(app)
    going = start_post(app, request(id=1, text="a"), mine)
    await wait_until(lambda: held.started)
    await post(app, create_notification("notifications/cancelled", requestId=1), other)
    await run_pending_callbacks()
    held.release("a")
    assert text(await going.wait_done()) == "a"


async def test_a_lost_connection_does_not_stop_the_work() -> None:
    held = PausedWork()
    app = endpoint(FakeService(held))
    going = start_post(app, request(text="a"), await open_session(app))
    await wait_until(lambda: held.started)
    going.disconnect()
    await run_pending_callbacks()
    held.release("a")
    await going.wait_done()
    assert held.outcomes == {"a": "done"}


# Streams


async def talking(exchange: IncomingExchange) -> Any:
    await exchange.notify("notifications/message", {"n": 1})
    await exchange.notify("notifications/message", {"n": 2})
    return text_result("done")


@pytest.mark.parametrize(("revision", "primed"), [(LATEST_HANDSHAKE, True), ("2025-06-18", False), (BATCHING, False)])
async def test_messages_before_the_result_can_be_fetched_again(revision: str, primed: bool) -> None:
    app = endpoint(FakeService(talking))
    session = await open_session(app, revision)
    answer = await post(app, request(), session)
    assert answer.streaming
    ids = [event.id for event in answer.events]
    assert len(set(ids)) == len(ids) == (4 if primed else 3)
    assert [event.data for event in answer.events][:1] == ([""] if primed else [answer.events[0].data])
    for place, id in enumerate(ids):
        again = await get(app, session, id).wait_done()
        assert [event.id for event in again.events] == ids[place + 1 :]
        assert [event.data for event in again.events] == [event.data for event in answer.events][place + 1 :]


@pytest.mark.parametrize(
    "last", ["", "1", "-", "1-", "9-1", "1-99", "1--1", "1-x", "0-1", "1-1 x", "1-" + "9" * 13, "\u00b2-1"]
)
async def test_an_event_that_never_was_is_an_error(last: str) -> None:
    app = endpoint(FakeService(talking))
    session = await open_session(app)
    await post(app, request(), session)
    given = {"host": "localhost", **session}
    headers = [(name.encode(), value.encode("latin-1")) for name, value in (given | {"last-event-id": last}).items()]
    assert (await AsgiRequest(app, "GET", headers=headers).wait_done()).status == 400


async def test_a_stream_of_nothing_but_the_result_can_be_fetched_again() -> None:
    app = endpoint(FakeService(), response_mode="sse")
    session = await open_session(app)
    reply = await post(app, request(), session)
    prime, result = reply.events
    assert [prime.id, prime.data, result.id] == ["1-1", "", "1-2"]
    again = await get(app, session, prime.id).wait_done()
    assert [(one.id, one.data) for one in again.events] == [(result.id, result.data)]


async def test_events_of_another_session_are_not_found() -> None:
    app = endpoint(FakeService(talking))
    mine, other = await open_session(app), await open_session(app)
    ids = [event.id for event in (await post(app, request(), mine)).events]
    assert (await get(app, other, ids[0]).wait_done()).status == 400


async def test_events_that_fell_out_of_the_window_are_an_error_and_not_nothing() -> None:
    app = endpoint(FakeService(talking, max_replay_events=1))
    session = await open_session(app)
    ids = [event.id for event in (await post(app, request(), session)).events]
    assert (await get(app, session, ids[0]).wait_done()).status == 400
    assert len((await get(app, session, ids[-2]).wait_done()).events) == 1


async def test_a_client_that_lost_its_connection_comes_back_for_the_rest() -> None:
    held = PausedWork()

    async def work(exchange: IncomingExchange) -> Any:
        await exchange.notify("notifications/message", {"n": 1})
        result = await held(exchange)
        await exchange.notify("notifications/message", {"n": 2})
        return result

    app = endpoint(FakeService(work))
    session = await open_session(app)
    going = start_post(app, request(text="a"), session)
    await wait_until(lambda: held.started)
    seen = [event.id for event in going.events]
    going.disconnect()
    back = get(app, session, seen[-1])
    await wait_until(lambda: back.sent)
    held.release("a")
    await back.wait_done()
    assert [one.get("params", {}).get("n") for one in back.messages] == [2, None]
    assert text(back) == "a"
    await going.wait_done()
    assert len(going.messages) == 1


async def test_a_second_reader_takes_over_and_the_first_is_let_go_at_once() -> None:
    held = PausedWork()

    async def work(exchange: IncomingExchange) -> Any:
        await exchange.notify("notifications/message", {"n": 1})
        return await held(exchange)

    app = endpoint(FakeService(work, keep_alive_interval=1000.0))
    session = await open_session(app)
    going = start_post(app, request(text="a"), session)
    await wait_until(lambda: held.started)
    last = going.events[-1].id
    first = get(app, session, last)
    await wait_until(lambda: first.sent)
    second = get(app, session, last)
    await wait_until(lambda: second.sent)
    await first.wait_done()
    assert first.events == []
    held.release("a")
    assert text(await second.wait_done()) == "a"
    # The reply to the POST was still connected: it ends too, in good order.
    await going.wait_done()
    assert going.complete
    assert len(going.messages) == 1


async def test_a_connection_can_be_let_go_and_the_rest_fetched() -> None:
    held = PausedWork()

    async def work(exchange: IncomingExchange) -> Any:
        assert exchange.close_stream is not None
        await exchange.close_stream(1234)
        await exchange.close_stream(5678)
        await exchange.notify("notifications/message", {"n": 1})
        return await held(exchange)

    app = endpoint(FakeService(work))
    session = await open_session(app)
    going = start_post(app, request(text="a"), session)
    await wait_until(lambda: going.complete)
    assert [(event.data, event.retry) for event in going.events] == [("", None), ("", 1234)]
    back = get(app, session, going.events[-1].id)
    await wait_until(lambda: back.events)
    assert back.last["params"] == {"n": 1}
    held.release("a")
    assert text(await back.wait_done()) == "a"
    await going.wait_done()


async def test_a_finished_unread_stream_is_kept_for_a_while() -> None:
    async def work(exchange: IncomingExchange) -> Any:
        assert exchange.close_stream is not None
        await exchange.close_stream(1)
        return text_result("done")

    app = endpoint(FakeService(work))
    session = await open_session(app)
    going = await post(app, request(), session)
    assert text(await get(app, session, going.events[-1].id).wait_done()) == "done"


@pytest.mark.parametrize("revision", [FIRST, BATCHING, "2025-06-18"])
async def test_older_clients_would_not_come_back(revision: str) -> None:
    stand = FakeService()
    app = endpoint(stand)
    await post(app, request(), await open_session(app, revision))
    assert stand.seen[0].close_stream is None


async def test_nothing_is_sent_after_the_response() -> None:
    stand = FakeService(talking)
    app = endpoint(stand)
    session = await open_session(app)
    answer = await post(app, request(), session)
    sent, ids = len(answer.sent), [event.id for event in answer.events]
    await stand.seen[0].notify("notifications/message", {"late": True})
    assert len(answer.sent) == sent
    assert (await get(app, session, ids[-1]).wait_done()).events == []
    assert (await get(app, session, f"{ids[-1]}").wait_done()).status == 200


async def test_a_client_that_accepts_only_json_gets_no_notifications_or_requests() -> None:
    stand = FakeService(talking)
    app = endpoint(stand)
    answer = await post(app, request(), await open_session(app) | {"accept": "application/json"})
    assert (answer.streaming, text(answer)) == (False, "done")
    assert stand.seen[0].ask is None
    assert stand.seen[0].close_stream is None


# The stream of what the server says unasked


async def test_changes_are_sent_on_the_stream_of_the_session() -> None:
    stand = FakeService()
    app = endpoint(stand)
    session = await open_session(app)
    await post(app, request("resources/subscribe", uri="a:1"), session)
    stream = get(app, session)
    await wait_until(lambda: stream.events)
    assert (stream.status, stream.events[0].data) == (200, "")
    stand.publish(TOOLS)
    stand.publish(UPDATED, "a:1")
    stand.publish(UPDATED, "a:2")
    await wait_until(lambda: len(stream.messages) == 2)
    assert stream.messages == [
        {"jsonrpc": "2.0", "method": TOOLS},
        {"jsonrpc": "2.0", "method": UPDATED, "params": {"uri": "a:1"}},
    ]
    stream.disconnect()
    await stream.wait_done()
    back = get(app, session, stream.events[1].id)
    await wait_until(lambda: len(back.messages) == 1)
    assert back.messages == stream.messages[1:]
    back.disconnect()
    await back.wait_done()


async def test_a_session_gets_no_notification_before_it_is_open() -> None:
    stand = FakeService()
    app = endpoint(stand)
    session = await open_session(app, ready=False)
    assert stand.listeners == []
    for _ in range(2):
        await post(app, INITIALIZED, session)
    assert len(stand.listeners) == 1


async def test_changes_without_a_stream_wait_each_once() -> None:
    stand = FakeService()
    app = endpoint(stand)
    session = await open_session(app)
    for _ in range(1000):
        stand.publish(TOOLS)
        stand.publish("notifications/prompts/list_changed")
    stream = get(app, session)
    await wait_until(lambda: len(stream.messages) == 2)
    await run_pending_callbacks()
    assert [one["method"] for one in stream.messages] == [TOOLS, "notifications/prompts/list_changed"]
    stream.disconnect()
    await stream.wait_done()
    stand.publish(TOOLS)
    again = get(app, session)
    await wait_until(lambda: again.messages)
    assert len(again.messages) == 1
    again.disconnect()
    await again.wait_done()


async def test_a_session_has_one_such_stream() -> None:
    app = endpoint()
    session = await open_session(app)
    first = get(app, session)
    await wait_until(lambda: first.sent)
    assert (await get(app, session).wait_done()).status == 409
    first.disconnect()
    await first.wait_done()
    second = get(app, session)
    await wait_until(lambda: second.sent)
    assert second.status == 200
    second.disconnect()
    await second.wait_done()


async def test_a_stream_needs_a_client_that_takes_one() -> None:
    app = endpoint()
    session = await open_session(app)
    assert (await get(app, session | {"accept": "application/json"}).wait_done()).status == 406


async def test_a_quiet_stream_shows_signs_of_life() -> None:
    app = endpoint(FakeService(keep_alive_interval=0.005))
    session = await open_session(app)
    stream = get(app, session)
    await wait_until(lambda: stream.body.count(b"\n:") >= 2)
    stream.disconnect()
    await stream.wait_done()


async def test_a_stream_with_events_needs_no_signs_of_life() -> None:
    stand = FakeService(keep_alive_interval=0.2)
    app = endpoint(stand)
    session = await open_session(app)
    await post(app, request("resources/subscribe", uri="a:0"), session)
    stream = get(app, session)
    await wait_until(lambda: stream.events)
    loop = asyncio.get_running_loop()
    gaps, last = [0.0], loop.time()
    while len(stream.messages) < 100:  # longer than two intervals
        stand.publish(UPDATED, "a:0")
        await asyncio.sleep(0.005)
        gaps.append(loop.time() - last)
        last = loop.time()
    comments = stream.body.count(b"\n:")
    stream.disconnect()
    await stream.wait_done()
    assert not comments or max(gaps) > 0.19  # a busy machine may make the stream silent


async def test_a_reader_too_slow_for_the_window_is_let_go() -> None:
    stand = FakeService(max_replay_events=2)
    app = endpoint(stand)
    session = await open_session(app)
    stream = get(app, session)
    await wait_until(lambda: stream.events)
    stream.writable.clear()
    await post(app, request("resources/subscribe", uri="a:0"), session)
    for _ in range(10):
        stand.publish(UPDATED, "a:0")
        await run_pending_callbacks(2)
    stream.writable.set()
    await stream.wait_done()
    assert stream.complete
    assert len(stream.messages) < 10


# Questions to the client


async def asking(exchange: IncomingExchange) -> Any:
    assert exchange.ask is not None
    try:
        return text_result(json.dumps(await exchange.ask("roots/list", {"n": exchange.id})))
    except RemoteError as exc:
        return text_result(f"error {exc.code}")
    except ConnectionLost as exc:
        return text_result(str(exc))


async def test_a_question_is_asked_on_the_reply_and_answered_in_a_post() -> None:
    app = endpoint(FakeService(asking))
    session = await open_session(app)
    going = start_post(app, request(id="a"), session)
    await wait_until(lambda: going.messages)
    question = going.last
    assert (question["method"], question["params"]) == ("roots/list", {"n": "a"})
    for stray in ({"id": question["id"] + 1, "result": {}}, {"id": str(question["id"]), "result": {}}):
        assert (await post(app, {"jsonrpc": "2.0"} | stray, session)).status == 202
    accepted = await post(app, {"jsonrpc": "2.0", "id": question["id"], "result": {"x": 1}}, session)
    assert (accepted.status, accepted.body) == (202, b"")
    assert text(await going.wait_done()) == '{"x": 1}'
    assert (await post(app, {"jsonrpc": "2.0", "id": question["id"], "result": {}}, session)).status == 202


async def test_an_error_is_an_answer() -> None:
    app = endpoint(FakeService(asking))
    session = await open_session(app)
    going = start_post(app, request(), session)
    await wait_until(lambda: going.messages)
    error = {"code": -5, "message": "no"}
    await post(app, {"jsonrpc": "2.0", "id": going.last["id"], "error": error}, session)
    assert text(await going.wait_done()) == "error -5"


async def test_another_session_cannot_answer() -> None:
    app = endpoint(FakeService(asking))
    mine, other = await open_session(app), await open_session(app)
    going = start_post(app, request(), mine)
    await wait_until(lambda: going.messages)
    answer = {"jsonrpc": "2.0", "id": going.last["id"], "result": {}}
    assert (await post(app, answer, other)).status == 202
    await run_pending_callbacks()
    assert not going.complete
    await post(app, answer, mine)
    await going.wait_done()


async def test_a_cancelled_request_withdraws_its_question() -> None:
    app = endpoint(FakeService(asking))
    session = await open_session(app)
    going = start_post(app, request(id="a"), session)
    await wait_until(lambda: going.messages)
    question = going.last
    await post(app, create_notification("notifications/cancelled", requestId="a"), session)
    await going.wait_done()
    assert going.messages[1:] in (
        [],
        [{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": question["id"]}}],
    )


# The end of a session


async def test_deleting_a_session_ends_everything_in_it() -> None:
    held = PausedWork()

    async def work(exchange: IncomingExchange) -> Any:
        return await (asking if exchange.id == "asks" else held)(exchange)

    stand = FakeService(work)
    app = endpoint(stand)
    session = await open_session(app)
    stream, going = get(app, session), start_post(app, request(id=1, text="a"), session)
    asks = start_post(app, request(id="asks"), session)
    await wait_until(lambda: held.started and stream.sent and asks.messages)
    answer = await AsgiRequest(app, "DELETE", headers=session).wait_done()
    assert (answer.status, answer.body) == (204, b"")
    for one in (stream, going, asks):
        await one.wait_done()
        assert one.complete
    assert held.outcomes == {"a": "cancelled"}
    assert stand.listeners == []
    assert (await post(app, request(), session)).status == 404
    assert (await AsgiRequest(app, "DELETE", headers=session).wait_done()).status == 404


async def test_closing_ends_all_sessions() -> None:
    stand = FakeService()
    app = endpoint(stand)
    streams = [get(app, await open_session(app)) for _ in range(3)]
    await wait_until(lambda: all(stream.sent for stream in streams))
    await app.close()
    for stream in streams:
        await stream.wait_done()
        assert stream.complete
    assert (app.stats().sessions, stand.listeners) == (0, [])


async def gone(app: Endpoint, session: Mapping[str, str], left: int = 0) -> None:
    await wait_until(lambda: app.stats().sessions == left)
    assert (await post(app, request(), session)).status == 404


async def test_a_session_that_is_never_finished_opening_goes() -> None:
    app = endpoint(FakeService(initialize_timeout=0.01))
    await gone(app, await open_session(app, ready=False))


async def test_an_unused_session_expires() -> None:
    app = endpoint(FakeService(session_idle_timeout=0.01))
    await gone(app, await open_session(app))


async def test_a_session_that_is_over_is_not_served_even_before_it_is_swept_away() -> None:
    app = endpoint(FakeService(session_lifetime=0.01))
    session = await open_session(app)
    await asyncio.sleep(0.02)
    assert app.stats().sessions == 1  # ended sessions are swept away every few seconds
    assert (await post(app, request(), session)).status == 404
    assert app.stats().sessions == 0


async def test_a_session_goes_when_its_time_is_over() -> None:
    held = PausedWork()
    app = endpoint(FakeService(held, session_lifetime=0.05, replay_ttl=QUICK_SWEEP))
    session = await open_session(app)
    stream, going = get(app, session), start_post(app, request(text="a"), session)
    await wait_until(lambda: held.started)
    await asyncio.sleep(0.1)
    assert not stream.complete  # a call has a time of its own
    held.release("a")
    await going.wait_done()
    await stream.wait_done()
    assert stream.complete
    await gone(app, session)


async def test_a_session_at_work_is_in_use() -> None:
    held = PausedWork()
    app = endpoint(FakeService(held, session_idle_timeout=0.02, replay_ttl=QUICK_SWEEP))
    session = await open_session(app)
    going, listening = start_post(app, request(text="a"), session), await open_session(app)
    stream = get(app, listening)
    await wait_until(lambda: held.started and stream.sent)
    await asyncio.sleep(0.06)
    assert app.stats().sessions == 2
    held.release("a")
    await going.wait_done()
    await gone(app, session, left=1)
    stream.disconnect()
    await stream.wait_done()


async def test_events_are_forgotten_after_a_while() -> None:
    app = endpoint(FakeService(talking, replay_ttl=0.01))
    session = await open_session(app)
    last = (await post(app, request(), session)).events[0].id
    await wait_until(lambda: app.stats().replay_bytes == 0)
    assert (await get(app, session, last).wait_done()).status == 400


async def test_the_sweeper_rests_where_there_are_no_sessions() -> None:
    """Its timer would keep the endpoint and the server alive."""
    stand = FakeService(replay_ttl=QUICK_SWEEP)
    app = endpoint(stand)
    session = await open_session(app)
    await AsgiRequest(app, "DELETE", headers=session).wait_done()
    alive = weakref.ref(stand)
    del stand, app

    def collected() -> bool:
        gc.collect()
        return alive() is None

    await wait_until(collected)


# Limits


async def test_a_principal_has_a_share_of_the_sessions() -> None:
    app = endpoint(FakeService(max_sessions_per_principal=2), authenticate=principal)
    for _ in range(2):
        await open_session(app, headers={"authorization": "alice"})
    refused = await post(app, initialize(), {"authorization": "alice"})
    assert (refused.status, refused.headers["retry-after"]) == (429, "60")
    await open_session(app, headers={"authorization": "bob"})


async def test_an_address_has_a_share_of_the_sessions() -> None:
    app = endpoint(FakeService(max_sessions_per_address=2))
    for _ in range(2):
        await open_session(app, client=("10.0.0.9", 5))
    assert (await post(app, initialize(), client=("10.0.0.9", 6))).status == 429
    await open_session(app, client=("10.0.0.8", 5))
    for _ in range(3):
        await open_session(app)


async def test_the_addresses_of_one_ipv6_network_share_their_sessions() -> None:
    app = endpoint(FakeService(max_sessions_per_address=2))
    for address in ("2001:db8::1", "2001:db8::2:3"):
        await open_session(app, client=(address, 5))
    assert (await post(app, initialize(), client=("2001:db8::4", 6))).status == 429
    await open_session(app, client=("2001:db8:0:1::1", 5))
    for _ in range(3):
        await open_session(app, client=("::ffff:127.0.0.1", 5))


async def test_the_longest_unused_session_gives_way() -> None:
    app = endpoint(FakeService(max_sessions=2))
    first, second = await open_session(app), await open_session(app)
    await asyncio.sleep(0.002)
    await post(app, request("ping"), first)
    third = await open_session(app)
    assert [(await post(app, request("ping"), one)).status for one in (first, second, third)] == [200, 404, 200]


async def test_sessions_in_use_do_not_give_way() -> None:
    app = endpoint(FakeService(max_sessions=1))
    stream = get(app, await open_session(app))
    await wait_until(lambda: stream.sent)
    refused = await post(app, initialize())
    assert (refused.status, refused.headers["retry-after"]) == (503, "60")
    stream.disconnect()
    await stream.wait_done()
    await open_session(app)


async def count_steps(work: Awaitable[Any]) -> int:
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    sys.setprofile(count)
    try:
        await work
    finally:
        sys.setprofile(None)
    return steps


@pytest.mark.parametrize("limit", [10_000, 300])
async def test_opening_a_session_costs_the_same_beside_many_sessions(limit: int) -> None:
    app = endpoint(FakeService(max_sessions=limit, max_sessions_per_principal=1000), authenticate=principal)
    alice = {"authorization": "alice"}
    await open_session(app, headers=alice)
    alone = await count_steps(open_session(app, headers=alice))
    for _ in range(300):
        await open_session(app, headers=alice)
    stream = get(app, await open_session(app, headers=alice) | alice)
    await wait_until(lambda: stream.sent)
    assert await count_steps(open_session(app, headers=alice)) < alone + 100
    stream.disconnect()
    await stream.wait_done()


async def test_a_session_whose_call_just_ended_does_not_give_way() -> None:
    held = PausedWork()
    app = endpoint(FakeService(held, max_sessions=2))
    first = await open_session(app)
    going = start_post(app, request(text="a"), first)
    await wait_until(lambda: held.started)
    second = await open_session(app)
    held.release("a")
    await going.wait_done()
    await open_session(app)
    assert [(await post(app, request("ping"), one)).status for one in (first, second)] == [200, 404]


async def test_streams_of_one_caller_have_a_limit() -> None:
    app = endpoint(FakeService(max_streams_per_principal=1))
    client = ("10.0.0.9", 5)
    first, second = await open_session(app, client=client), await open_session(app, client=client)
    stream = get(app, first, client=client)
    await wait_until(lambda: stream.sent)
    assert (await get(app, second, client=client).wait_done()).status == 429
    other = get(app, await open_session(app, client=("10.0.0.8", 5)), client=("10.0.0.8", 5))
    await wait_until(lambda: other.sent)
    assert other.status == 200
    for one in (stream, other):
        one.disconnect()
        await one.wait_done()


# Batches


async def batch(app: Any, session: Any, *messages: Any) -> AsgiRequest:
    return await post(app, list(messages), session)


async def test_a_batch_is_answered_with_an_array() -> None:
    async def work(exchange: IncomingExchange) -> Any:
        if exchange.params["text"] == "error":
            raise InvalidParams("no")
        return text_result(exchange.params["text"])

    app = endpoint(FakeService(work))
    session = await open_session(app, BATCHING)
    answer = await batch(
        app,
        session,
        request(id=1, text="a"),
        create_notification("notifications/whatever"),
        request(id=2, text="error"),
        request("ping", 3),
        {"jsonrpc": "2.0", "id": 4},
        5,
        {"jsonrpc": "2.0", "id": 9, "result": {}},
        request("tools/fly", 6),
    )
    assert answer.status == 200
    by_id = {one.get("id"): one for one in answer.last}
    assert set(by_id) == {1, 2, 3, 4, None, 6}
    assert by_id[1]["result"]["content"][0]["text"] == "a"
    assert [by_id[id]["error"]["code"] for id in (2, 4, None, 6)] == [-32602, -32600, -32600, -32601]


async def test_a_batch_that_needs_no_answer_is_accepted() -> None:
    app = endpoint()
    session = await open_session(app, BATCHING, ready=False)
    answer = await batch(app, session, INITIALIZED, create_notification("notifications/whatever"))
    assert (answer.status, answer.body) == (202, b"")


async def test_messages_of_a_batch_come_before_its_response() -> None:
    app = endpoint(FakeService(talking))
    answer = await batch(app, await open_session(app, BATCHING), request(id=1), request(id=2))
    assert answer.streaming
    assert len(answer.messages) == 5
    assert {one["id"] for one in answer.last} == {1, 2}


async def test_a_cancelled_member_is_left_out() -> None:
    held = PausedWork()
    app = endpoint(FakeService(held))
    session = await open_session(app, BATCHING)
    going = start_post(app, [request(id=1, text="a"), request(id=2, text="b")], session)
    await wait_until(lambda: len(held.started) == 2)
    await post(app, create_notification("notifications/cancelled", requestId=1), session)
    held.release("b")
    await going.wait_done()
    assert [one["id"] for one in going.last] == [2]


async def test_a_batch_of_which_everything_is_cancelled_is_accepted() -> None:
    held = PausedWork()
    app = endpoint(FakeService(held))
    session = await open_session(app, BATCHING)
    going = start_post(app, [request(id=1, text="a")], session)
    await wait_until(lambda: held.started)
    await post(app, create_notification("notifications/cancelled", requestId=1), session)
    assert (await going.wait_done()).status == 202


async def test_members_count_as_requests_of_the_session() -> None:
    held = PausedWork()
    app = endpoint(FakeService(held, max_calls_per_connection=2))
    session = await open_session(app, BATCHING)
    first = start_post(app, request(id=1, text="a"), session)
    await wait_until(lambda: held.started)
    second = start_post(app, [request(id=2, text="b"), request(id=3, text="c")], session)
    await wait_until(lambda: len(held.started) == 2)
    held.release("a", "b")
    await first.wait_done()
    answers = {one["id"]: one for one in (await second.wait_done()).last}
    assert answers[3]["error"]["code"] == 429
    assert "result" in answers[2]


@pytest.mark.parametrize("revision", [FIRST, "2025-06-18", LATEST_HANDSHAKE, DRAFT])
async def test_batches_are_part_of_one_revision_only(revision: str) -> None:
    app = endpoint()
    answer = await batch(app, await open_session(app, revision), request("ping"))
    assert (answer.status, answer.last["error"]["code"]) == (400, -32600)


@pytest.mark.parametrize("count", [0, 4])
async def test_a_batch_has_a_size(count: int) -> None:
    app = endpoint(FakeService(max_calls_per_connection=3))
    answer = await batch(app, await open_session(app, BATCHING), *(request("ping", number) for number in range(count)))
    assert (answer.status, answer.last["error"]["code"]) == (400, -32600)


# Without sessions


async def test_without_sessions_every_request_is_independent() -> None:
    stand = FakeService()
    app = endpoint(stand, sessions=False)
    answer = await post(app, initialize())
    assert (answer.status, "mcp-session-id" in answer.headers) == (200, False)
    assert (await post(app, INITIALIZED)).status == 202
    assert text(await post(app, request(text="a"), {"mcp-protocol-version": LATEST_HANDSHAKE})) == "a"
    assert text(await post(app, request(text="b"))) == "b"
    assert [one.caller.protocol_version for one in stand.seen] == [LATEST_HANDSHAKE, BATCHING]
    assert [one.ask for one in stand.seen] == [None, None]
    assert stand.listeners == []
    assert (await post(app, [request("ping", 1)])).last == [{"jsonrpc": "2.0", "id": 1, "result": {}}]
    assert (await post(app, request(), {"mcp-protocol-version": "1999-01-01"})).status == 400
    for method in ("GET", "DELETE"):
        assert (await AsgiRequest(app, method).wait_done()).status == 405


async def test_a_modern_request_needs_no_session() -> None:
    app = endpoint()
    assert text(await post(app, stateless_request(text="x"), {"mcp-session-id": "whatever"})) == "x"
    assert META["io.modelcontextprotocol/protocolVersion"] == NEWEST


async def test_a_closed_session_cannot_ask_its_client() -> None:
    sent: list[bytes] = []

    async def emit(data: bytes) -> None:
        sent.append(data)

    session = HandshakeSession("s", create_implicit_session(None), None, asyncio.get_running_loop())
    stream: Any = object()
    session.close()
    with pytest.raises(ConnectionLost):
        async with asyncio.timeout(5):
            await session.ask_client(stream, emit, "roots/list", {})
    assert sent == []


async def test_a_rejected_batch_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dovetail")
    monkeypatch.setattr(operator_log, "_rejection_lines", {})
    app = endpoint()
    assert (await post(app, [], await open_session(app))).status == 400
    (record,) = [record for record in caplog.records if record.name == "dovetail"]
    assert isinstance(record.args, tuple)
    assert (record.levelno, *record.args[:2]) == (logging.INFO, "127.0.0.1", 400)
