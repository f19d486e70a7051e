"""Test sessions that several workers share. Each test runs two workers in one process."""

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from dovetail.cluster.sessions.session_record import decode_record
from dovetail.errors import RemoteError
from dovetail.protocol.exchange import IncomingExchange
from dovetail.transports.http_server.endpoint import Endpoint
from dovetail.wire.base import Result
from support.fake_service import (
    BATCHING,
    DRAFT,
    INITIALIZED,
    LATEST_HANDSHAKE,
    AsgiRequest,
    FakeService,
    PausedWork,
    create_notification,
    echo,
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
from transports.worker_cluster import Clock, WorkerCluster, authenticate

RESTORE_TIME = "dovetail.cluster.sessions.session_records._RESTORE_TIME_S"
REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "draft")


@pytest.fixture
async def cluster() -> AsyncGenerator[WorkerCluster]:
    cluster = WorkerCluster()
    yield cluster
    await cluster.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("shared_sessions", "session_records", "session_record_saver"):
        monkeypatch.setattr(f"dovetail.cluster.sessions.{module}.time", clock)
    monkeypatch.setattr("dovetail.cluster.memory_backend.time", clock)
    monkeypatch.setattr(RESTORE_TIME, 0.0)
    return clock


def text(answer: AsgiRequest) -> str:
    return answer.last["result"]["content"][0]["text"]


async def ask(exchange: IncomingExchange) -> Result:
    assert exchange.ask is not None
    try:
        answer = await exchange.ask("elicitation/create", {"message": "name?"})
    except RemoteError as exc:
        return text_result(f"error {exc.code}")
    return text_result(f"{answer}")


# Session IDs


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_session_works_at_every_worker(cluster: WorkerCluster, revision: str) -> None:
    first, second = await cluster.open()
    session = await open_session(first, revision)
    for number, app in zip(range(6), itertools.cycle([second, first]), strict=False):
        answer = await post(app, request(id=number, text=f"call {number}"), session)
        assert (answer.status, answer.last["id"], text(answer)) == (200, number, f"call {number}")
    callers = [exchange.caller for worker in cluster.workers for exchange in worker.service.seen]
    assert len({caller.session_id for caller in callers}) == 1
    assert {caller.protocol_version for caller in callers} == {revision}
    assert {caller.client_info.name for caller in callers if caller.client_info is not None} == {"test"}


async def test_a_worker_that_starts_later_knows_the_session(cluster: WorkerCluster) -> None:
    (first,) = await cluster.open(count=1)
    session = await open_session(first)
    (_, second) = await cluster.open(count=1)
    assert (await post(second, request(text="hello"), session)).status == 200


async def test_a_session_survives_the_worker_that_opened_it(cluster: WorkerCluster) -> None:
    first, second = await cluster.open()
    session = await open_session(first)
    await first.close()
    await cluster.workers[0].cluster.close()
    assert text(await post(second, request(text="hello"), session)) == "hello"


async def test_a_session_id_is_short_visible_text_without_secrets(cluster: WorkerCluster) -> None:
    first, _ = await cluster.open(options={"authenticate": authenticate})
    session = await open_session(first, headers={"authorization": "alice"})
    id = session["mcp-session-id"]
    assert id.isascii()
    assert id.isprintable()
    assert len(id) < 600
    assert "alice" not in id


async def test_large_capabilities_are_stored(cluster: WorkerCluster) -> None:
    first, second = await cluster.open()
    experimental = {"large": {"text": "x" * 5000}}
    session = await open_session(first, capabilities={"experimental": experimental})
    assert len(session["mcp-session-id"]) < 600
    assert (await post(second, request(), session)).status == 200
    (exchange,) = cluster.workers[1].service.seen
    assert exchange.caller.client_capabilities.experimental == experimental


@pytest.mark.parametrize("principal", ["bob", None])
async def test_another_principal_cannot_use_a_session(cluster: WorkerCluster, principal: str | None) -> None:
    first, second = await cluster.open(options={"authenticate": authenticate})
    session = await open_session(first, headers={"authorization": "alice"})
    stolen = {"mcp-session-id": session["mcp-session-id"]} | ({"authorization": principal} if principal else {})
    for app in (first, second):
        assert (await post(app, request(), stolen)).status == 404
        assert (await AsgiRequest(app, "DELETE", headers=stolen).wait_done()).status == 404
    assert (await post(second, request(), session)).status == 200
    assert (await post(second, request(), stolen)).status == 404


async def test_an_anonymous_session_cannot_be_used_with_credentials(cluster: WorkerCluster) -> None:
    first, second = await cluster.open(options={"authenticate": authenticate})
    session = await open_session(first)
    assert (await post(second, request(), session | {"authorization": "alice"})).status == 404


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "end": lambda id: id[:-2] + b"AA",
    "short": lambda id: id[:40],
    "empty": lambda id: b"",
    "not ASCII": lambda id: b"\xe9" + id,
    "long": lambda id: id * 50,
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_changed_session_id_is_unknown(cluster: WorkerCluster, change: str) -> None:
    first, second = await cluster.open()
    session = await open_session(first)
    changed = CHANGES[change](session["mcp-session-id"].encode())
    headers = [(b"host", b"localhost:8000"), (b"accept", b"application/json, text/event-stream")]
    headers += [(b"content-type", b"application/json"), (b"mcp-session-id", changed)]
    answer = await AsgiRequest(second, body=b'{"jsonrpc":"2.0","id":1,"method":"ping"}', headers=headers).wait_done()
    assert answer.status == 404


async def test_a_session_of_another_server_is_unknown(cluster: WorkerCluster) -> None:
    first, second = await cluster.open()
    other = FakeService()
    other.implementation = cluster.workers[0].service.implementation.__class__(name="other", version="1")
    other.cluster = cluster.workers[0].cluster
    session = await open_session(Endpoint(other))
    assert (await post(second, request(), session)).status == 404
    assert (await post(first, request(), session)).status == 404


async def test_a_session_ends_after_its_lifetime(cluster: WorkerCluster, clock: Clock) -> None:
    first, second = await cluster.open(session_lifetime=1000.0)
    session = await open_session(first)
    clock.now += 900
    for app in (first, second):
        assert (await post(app, request(), session)).status == 200
    clock.now += 200
    for app in (first, second):
        assert (await post(app, request(), session)).status == 404


async def test_a_request_needs_a_session_id(cluster: WorkerCluster) -> None:
    first, _ = await cluster.open()
    assert (await post(first, request())).status == 400


async def test_a_request_in_another_version_is_refused(cluster: WorkerCluster) -> None:
    first, second = await cluster.open()
    session = await open_session(first) | {"mcp-protocol-version": BATCHING}
    assert (await post(second, request(), session)).status == 400
    assert (await post(second, request(), session | {"mcp-protocol-version": "1999-01-01"})).status == 400


# Records


async def test_a_request_reads_the_record_once(cluster: WorkerCluster) -> None:
    first, second = await cluster.open()
    session = await open_session(first)
    await post(second, request(), session)
    backend = cluster.workers[1].backend
    reads = backend.reads
    await post(second, request(), session)
    assert backend.reads == reads + 1


async def test_a_stateless_request_reads_nothing(cluster: WorkerCluster) -> None:
    first, _ = await cluster.open()
    assert (await post(first, stateless_request())).status == 200
    assert cluster.workers[0].backend.reads == 0


async def test_the_log_level_applies_at_every_worker(cluster: WorkerCluster) -> None:
    first, second = await cluster.open()
    session = await open_session(first)
    await post(second, request(), session)
    answer = await post(first, request("logging/setLevel", level="error"), session)
    assert answer.last["result"] == {}
    await post(second, request(), session)
    assert [exchange.caller.log_level for exchange in cluster.workers[1].service.seen][-1] == 4


async def test_subscriptions_of_several_workers_are_kept_together(cluster: WorkerCluster) -> None:
    first, second = await cluster.open()
    session = await open_session(first)
    uris = [f"a://{number}" for number in range(20)]
    calls = [
        post(app, request("resources/subscribe", uri=uri), session)
        for app, uri in zip(itertools.cycle([first, second]), uris, strict=False)
    ]
    assert all("result" in answer.last for answer in await asyncio.gather(*calls))
    await post(first, request("resources/unsubscribe", uri="a://3"), session)
    await post(first, request(), session)
    key = cluster.workers[0].service.seen[-1].caller.session_id
    stored = await cluster.workers[0].backend.read(f"session {key}")
    assert stored is not None
    subscriptions = decode_record(stored.data).subscriptions or {}
    assert {spelling for spellings in subscriptions.values() for spelling in spellings} == {*uris} - {"a://3"}


async def test_a_deleted_session_is_unknown_at_every_worker(cluster: WorkerCluster) -> None:
    work = PausedWork()
    first, second = await cluster.open(work)
    session = await open_session(first)
    call = start_post(second, request(text="call"), session)
    await wait_until(lambda: work.started)
    assert (await AsgiRequest(first, "DELETE", headers=session).wait_done()).status == 204
    await call.wait_done()
    assert work.outcomes == {"call": "cancelled"}
    for app in (first, second):
        assert (await post(app, request(), session)).status == 404
        assert (await AsgiRequest(app, "DELETE", headers=session).wait_done()).status == 404


# Questions


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25"])
async def test_an_answer_arrives_at_another_worker(cluster: WorkerCluster, revision: str) -> None:
    first, second = await cluster.open(ask)
    session = await open_session(first, revision)
    call = start_post(first, request(id=5), session)
    await wait_until(lambda: call.messages)
    question = call.last
    assert question["method"] == "elicitation/create"
    assert type(question["id"]) is str
    answer = await post(second, {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept"}}, session)
    assert answer.status == 202
    await call.wait_done()
    assert (call.last["id"], text(call)) == (5, "{'action': 'accept'}")


async def test_an_error_arrives_at_another_worker(cluster: WorkerCluster) -> None:
    first, second = await cluster.open(ask)
    session = await open_session(first)
    call = start_post(first, request(), session)
    await wait_until(lambda: call.messages)
    error = {"code": -1, "message": "no"}
    assert (await post(second, {"jsonrpc": "2.0", "id": call.last["id"], "error": error}, session)).status == 202
    assert text(await call.wait_done()) == "error -1"


async def test_an_answer_arrives_at_the_worker_that_asked(cluster: WorkerCluster) -> None:
    first, _ = await cluster.open(ask)
    session = await open_session(first)
    call = start_post(first, request(), session)
    await wait_until(lambda: call.messages)
    cluster.set_away(True)
    assert (await post(first, {"jsonrpc": "2.0", "id": call.last["id"], "result": {}}, session)).status == 202
    assert text(await call.wait_done()) == "{}"


async def test_another_session_cannot_answer(cluster: WorkerCluster) -> None:
    first, second = await cluster.open(ask)
    session = await open_session(first)
    call = start_post(first, request(), session)
    await wait_until(lambda: call.messages)
    answer = {"jsonrpc": "2.0", "id": call.last["id"], "result": {}}
    for app in (first, second):
        other = await open_session(app)
        for sender in (first, second):
            assert (await post(sender, answer, other)).status == 202
    await run_pending_callbacks()
    assert not call.task.done()
    assert [worker.backend.sent for worker in cluster.workers] == [[], []]
    assert (await post(second, answer, session)).status == 202
    await call.wait_done()


@pytest.mark.parametrize("id", [1, "x", "", "a.b.c", None, "0" * 12 + ".1." + "A" * 16])
async def test_an_answer_to_an_unknown_question_is_ignored(cluster: WorkerCluster, id: Any) -> None:
    first, second = await cluster.open()
    session = await open_session(first)
    assert (await post(second, {"jsonrpc": "2.0", "id": id, "result": {}}, session)).status in (202, 400)


async def test_ids_of_questions_are_never_used_again(cluster: WorkerCluster) -> None:
    first, second = await cluster.open(ask, max_sessions=1)
    session = await open_session(first)
    ids: list[str] = []
    for _ in range(3):
        call = start_post(first, request(), session)
        await wait_until(lambda call=call: call.messages)
        ids.append(call.last["id"])
        for id in ids:  # Repeated answers to earlier questions change nothing.
            assert (await post(second, {"jsonrpc": "2.0", "id": id, "result": {"id": id}}, session)).status == 202
        assert ids[-1] in text(await call.wait_done())
        await open_session(first)  # This worker drops its copy of the first session.
    assert len(set(ids)) == 3


async def test_an_answer_to_a_lost_worker_is_accepted(cluster: WorkerCluster) -> None:
    first, second = await cluster.open(ask)
    session = await open_session(first)
    call = start_post(first, request(), session)
    await wait_until(lambda: call.messages)
    id = call.last["id"]
    await cluster.workers[0].cluster.close()
    assert (await post(second, {"jsonrpc": "2.0", "id": id, "result": {}}, session)).status == 202


async def ask_with_progress(exchange: IncomingExchange) -> Result:
    assert exchange.ask is not None
    params = {"messages": [], "maxTokens": 1, "_meta": {"progressToken": "abc"}}
    return text_result(f"{await exchange.ask('sampling/createMessage', params)}")


@pytest.mark.parametrize("revision", [LATEST_HANDSHAKE, DRAFT])
@pytest.mark.parametrize("place", [0, 1])
async def test_progress_of_a_question_arrives_at_any_worker(cluster: WorkerCluster, revision: str, place: int) -> None:
    apps = await cluster.open(ask_with_progress)
    session = await open_session(apps[0], revision)
    received: list[list[IncomingExchange]] = [[], []]
    for worker, exchanges in zip(cluster.workers, received, strict=True):
        worker.service.receive_notification = exchanges.append  # type: ignore[method-assign]
    call = start_post(apps[0], request(), session)
    await wait_until(lambda: call.messages)
    question = call.last
    token = question["params"]["_meta"]["progressToken"]
    params = (
        {"requestId": question["id"], "progress": {"current": 1}}
        if revision == DRAFT
        else {"progressToken": token, "progress": 1}
    )
    assert (await post(apps[place], create_notification("notifications/progress", **params), session)).status == 202
    await wait_until(lambda: received[0])
    assert received[0][0].params == {"progressToken": "abc", "progress": 1}
    assert received[1] == []
    # Another session cannot report progress for this question.
    other = await open_session(apps[1], revision)
    for app in apps:
        await post(app, create_notification("notifications/progress", **params), other)
    await run_pending_callbacks()
    assert len(received[0]) == 1
    await post(apps[1], {"jsonrpc": "2.0", "id": question["id"], "result": {}}, session)
    await call.wait_done()


# Cancellation


@pytest.mark.parametrize("id", [7, "seven"])
async def test_a_call_is_cancelled_from_another_worker(cluster: WorkerCluster, id: Any) -> None:
    work = PausedWork()
    first, second = await cluster.open(work)
    session = await open_session(first)
    call = start_post(first, request(id=id, text="call"), session)
    other = start_post(first, request(id=8, text="other"), session)
    await wait_until(lambda: len(work.started) == 2)
    assert (await post(second, create_notification("notifications/cancelled", requestId=id), session)).status == 202
    await call.wait_done()
    assert work.outcomes == {"call": "cancelled"}
    work.release("other")
    assert text(await other.wait_done()) == "other"


async def test_another_session_cannot_cancel_a_call(cluster: WorkerCluster) -> None:
    work = PausedWork()
    first, second = await cluster.open(work)
    session = await open_session(first)
    call = start_post(first, request(id=7, text="call"), session)
    await wait_until(lambda: work.started)
    other = await open_session(second)
    for app in (first, second):
        await post(app, create_notification("notifications/cancelled", requestId=7), other)
    await run_pending_callbacks()
    work.release("call")
    assert text(await call.wait_done()) == "call"


async def test_cancellations_of_unknown_calls_are_limited(cluster: WorkerCluster) -> None:
    first, _ = await cluster.open()
    session = await open_session(first)
    backend = cluster.workers[0].backend
    cursor, sent = await backend.get_cursor(), len(backend.sent)
    for number in range(50):
        await post(first, create_notification("notifications/cancelled", requestId=number), session)
    assert 10 <= len(backend.sent) - sent <= 30
    assert await backend.get_cursor() == cursor  # Clients cannot fill the change log.


@pytest.mark.parametrize("id", ["x" * 20_000, 1.5, None, [], True])
async def test_a_cancellation_with_an_invalid_id_is_ignored(cluster: WorkerCluster, id: Any) -> None:
    first, second = await cluster.open()
    session = await open_session(first)
    for app in (first, second):
        answer = await post(app, create_notification("notifications/cancelled", requestId=id), session)
        assert answer.status == 202


# Batches


async def test_a_batch_works_at_every_worker(cluster: WorkerCluster) -> None:
    first, second = await cluster.open()
    session = await open_session(first, BATCHING)
    batch = [request(id=1, text="a"), request(id=2, text="b"), request("logging/setLevel", id=3, level="error")]
    answer = await post(second, batch, session)
    assert [response["id"] for response in answer.last] == [1, 2, 3]
    await post(first, request(), session)
    assert cluster.workers[0].service.seen[-1].caller.log_level == 4


async def test_a_batch_answers_a_question_of_another_worker(cluster: WorkerCluster) -> None:
    async def work(exchange: IncomingExchange) -> Result:
        return await (ask(exchange) if exchange.params.get("text") == "ask" else echo(exchange))

    first, second = await cluster.open(work)
    session = await open_session(first, BATCHING)
    call = start_post(first, request(id=5, text="ask"), session)
    await wait_until(lambda: call.messages)
    await post(second, [{"jsonrpc": "2.0", "id": call.last["id"], "result": {}}, request(text="b")], session)
    assert text(await call.wait_done()) == "{}"


# Readiness and the end of a worker


async def get_ready(app: Endpoint) -> tuple[int, bytes]:
    answer = await AsgiRequest(app, "GET", "/ready").wait_done()
    return answer.status, answer.body


async def test_a_worker_without_shared_state_is_degraded(cluster: WorkerCluster) -> None:
    first, _ = await cluster.open(options={"health": True})
    assert await get_ready(first) == (200, b"ok")
    await cluster.workers[0].cluster.close()
    status, body = await get_ready(first)
    assert (status, body.startswith(b"degraded: ")) == (200, True)
    assert (await AsgiRequest(first, "GET", "/live").wait_done()).body == b"ok"


async def test_a_draining_worker_serves_old_and_new_sessions(cluster: WorkerCluster) -> None:
    first, second = await cluster.open(options={"health": True})
    session = await open_session(second)
    first.begin_drain()
    assert (await get_ready(first))[0] == 503
    new_session = await open_session(first)
    assert text(await post(second, request(text="hello"), new_session)) == "hello"
    refused = await AsgiRequest(first, "GET", "/sse").wait_done()  # Its session would end with the worker.
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert text(await post(first, request(text="hello"), session)) == "hello"
    assert (await post(first, stateless_request())).status == 200
    assert (await post(second, initialize())).status == 200


async def test_a_closed_worker_finishes_its_calls_and_releases_its_streams(cluster: WorkerCluster) -> None:
    work = PausedWork()
    work.release("other")

    async def stop() -> None:
        """Wait for running calls, as a server does."""
        work.release("call")
        await wait_until(lambda: work.outcomes.get("call"))

    first, second = await cluster.open(work, options={"on_stop": stop})
    session = await open_session(first)
    stream = AsgiRequest(first, "GET", headers=session)
    await wait_until(lambda: stream.sent)
    call = start_post(first, request(text="call"), session)
    await wait_until(lambda: work.started)
    assert (await AsgiRequest(second, "GET", headers=session).wait_done()).status == 409
    await first.close()
    assert (await stream.wait_done()).complete
    assert text(await call.wait_done()) == "call"
    assert (await post(first, request(text="other"), session)).status == 503
    assert text(await post(second, request(text="other"), session)) == "other"
    stream = AsgiRequest(second, "GET", headers=session)
    await wait_until(lambda: stream.sent)
    assert stream.status == 200
    stream.disconnect()
    await stream.wait_done()


async def test_sessions_and_questions_survive_a_rotation_of_keys(cluster: WorkerCluster) -> None:
    """The new key comes second everywhere, then first everywhere, and then the old key is removed."""
    old, new = "the old key of the cluster", "the new key of the cluster"
    apps = await cluster.open(ask, keys=[[old], [old, new], [new, old], [new]])
    for asking, answering in [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)]:
        session = await open_session(apps[asking])
        call = start_post(apps[asking], request(), session)
        await wait_until(lambda call=call: call.messages)
        answer = {"jsonrpc": "2.0", "id": call.last["id"], "result": {}}
        assert (await post(apps[answering], answer, session)).status == 202
        assert text(await call.wait_done()) == "{}"
    forgotten = await open_session(apps[0])
    assert (await post(apps[3], request(), forgotten)).status == 404


async def test_only_the_worker_with_the_get_stream_watches_resources(cluster: WorkerCluster) -> None:
    first, second = await cluster.open()
    watched: list[tuple[int, str]] = []
    stopped: list[tuple[int, str]] = []

    for place, worker in enumerate(cluster.workers):

        def watch(uri: str, principal: Any, origin: Any, place: int = place) -> Callable[[], None]:
            watched.append((place, uri))
            return lambda: stopped.append((place, uri))

        worker.service.watch_resource = watch  # type: ignore[method-assign, assignment]
    session = await open_session(first)
    await post(first, request("resources/subscribe", uri="a://1"), session)
    assert watched == []
    stream = AsgiRequest(second, "GET", headers=session)
    await wait_until(lambda: stream.sent)
    assert watched == [(1, "a://1")]
    await post(first, request("resources/subscribe", uri="a://2"), session)
    assert watched == [(1, "a://1"), (1, "a://2")]
    await post(first, request("resources/unsubscribe", uri="a://1"), session)
    assert stopped == [(1, "a://1")]
    stream.disconnect()
    await stream.wait_done()
    assert stopped == [(1, "a://1"), (1, "a://2")]


# Limits and expiry


async def test_places_of_streams_are_free_again_after_an_outage(
    cluster: WorkerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.cluster.background_work._FIRST_DELAY_S", 0.001)
    first, second = await cluster.open(options={"authenticate": authenticate}, max_streams_per_principal=1)
    headers = {"authorization": "alice"}
    stream = AsgiRequest(first, "GET", "/sse", headers=headers)
    await wait_until(lambda: stream.sent)
    cluster.set_away(True)
    stream.disconnect()
    await stream.wait_done()
    cluster.set_away(False)

    async def open_stream() -> bool:
        stream = AsgiRequest(second, "GET", "/sse", headers=headers)
        await wait_until(lambda: stream.sent)
        stream.disconnect()
        await stream.wait_done()
        return stream.status == 200

    async with asyncio.timeout(10):
        while not await open_stream():
            pass


@pytest.mark.parametrize(("headers", "client"), [({"authorization": "alice"}, "127.0.0.1"), ({}, "192.0.2.7")])
async def test_sessions_of_a_caller_are_limited_at_all_workers_together(
    cluster: WorkerCluster, headers: dict[str, str], client: str
) -> None:
    first, second = await cluster.open(
        options={"authenticate": authenticate}, max_sessions_per_principal=3, max_sessions_per_address=3
    )
    scope = {"client": (client, 1)}
    sessions = [await open_session(app, headers=headers, **scope) for app in (first, second, first)]
    for app in (first, second):
        refused = await post(app, initialize(), headers, **scope)
        assert (refused.status, refused.headers["retry-after"]) == (429, "60")
    assert (await post(second, initialize(), {"authorization": "bob"})).status == 200
    assert (await AsgiRequest(second, "DELETE", headers=sessions[0]).wait_done()).status == 204
    assert (await post(first, initialize(), headers, **scope)).status == 200


async def test_a_worker_without_shared_state_allows_its_share_of_sessions(cluster: WorkerCluster) -> None:
    first, second = await cluster.open(options={"authenticate": authenticate}, max_sessions_per_principal=4)
    cluster.set_away(True)
    headers = {"authorization": "alice"}
    for app in (first, second):
        statuses = [(await post(app, initialize(), headers)).status for _ in range(3)]
        assert statuses == [200, 200, 429]


async def test_ended_and_foreign_sessions_do_not_count_toward_the_share_of_a_worker(cluster: WorkerCluster) -> None:
    first, second = await cluster.open(options={"authenticate": authenticate}, max_sessions_per_principal=4)
    headers = {"authorization": "alice"}
    sessions = [await open_session(first, headers=headers) for _ in range(3)]
    for session in sessions[:2]:
        assert (await post(second, request(), session)).status == 200  # The second worker gets a copy of the session.
        assert (await AsgiRequest(first, "DELETE", headers=session).wait_done()).status == 204
    assert (await post(second, request(), sessions[2])).status == 200
    cluster.set_away(True)
    # The share of each worker is 2. The first one has opened one of the sessions that are open.
    assert [(await post(first, initialize(), headers)).status for _ in range(2)] == [200, 429]
    assert [(await post(second, initialize(), headers)).status for _ in range(3)] == [200, 200, 429]


async def test_a_session_that_is_not_used_expires(cluster: WorkerCluster, clock: Clock) -> None:
    first, second = await cluster.open(session_idle_timeout=1000.0)
    session = await open_session(first)
    for number in range(8):
        clock.now += 500
        assert (await post((first, second)[number % 2], request(), session)).status == 200
    clock.now += 1500
    for app in (second, first):
        assert (await post(app, request(), session)).status == 404


async def test_a_session_without_initialized_expires(cluster: WorkerCluster, clock: Clock) -> None:
    first, _ = await cluster.open(initialize_timeout=30.0)
    session = await open_session(first, ready=False)
    clock.now += 20
    assert (await post(first, request(), session)).status == 200
    clock.now += 40
    assert (await post(first, request(), session)).status == 404


async def test_a_running_call_keeps_its_session_alive(cluster: WorkerCluster, clock: Clock) -> None:
    work = PausedWork()
    work.release("other")
    # A quarter of the idle time is the longest pause between two sweeps.
    first, second = await cluster.open(work, session_idle_timeout=0.04)
    session = await open_session(first)
    call = start_post(first, request(text="call"), session)
    await wait_until(lambda: work.started)
    name = f"session {cluster.workers[0].service.seen[0].caller.session_id}"
    for _ in range(8):
        clock.now += 0.03
        await wait_until(lambda: cluster.find_expiry(name) > clock.now + 0.03)
    assert (await post(second, request(text="other"), session)).status == 200
    work.release("call")
    assert text(await call.wait_done()) == "call"


async def test_a_full_worker_drops_its_copy_of_an_idle_session(cluster: WorkerCluster) -> None:
    first, second = await cluster.open(max_sessions=2)
    sessions = [await open_session(app) for app in (first, second, first, second, first)]
    for session in sessions * 2:
        for app in (first, second):
            assert (await post(app, request(), session)).status == 200
    assert first.stats().sessions == 2


async def test_a_full_worker_keeps_sessions_with_questions(cluster: WorkerCluster) -> None:
    first, second = await cluster.open(ask, max_sessions=1)
    sessions = [await open_session(second) for _ in range(3)]
    calls = [start_post(first, request(), session) for session in sessions[:2]]
    await wait_until(lambda: all(call.messages for call in calls))
    assert (await post(first, initialize())).status == 503
    assert (await post(first, request(), sessions[2])).status == 503
    for call, session in zip(calls, sessions, strict=False):
        await post(second, {"jsonrpc": "2.0", "id": call.last["id"], "result": {}}, session)
        assert text(await call.wait_done()) == "{}"
    cluster.workers[0].service.work = echo
    assert (await post(first, request(), sessions[2])).status == 200


# A back end that is away, or has lost its data


async def test_requests_are_answered_while_the_back_end_is_away(cluster: WorkerCluster) -> None:
    first, second = await cluster.open()
    session = await open_session(first)
    await post(first, request("logging/setLevel", level="error"), session)
    cluster.set_away(True)
    for app in (first, second):
        assert (await post(app, request(), session)).status == 200
    assert cluster.workers[0].service.seen[-1].caller.log_level == 4
    assert cluster.workers[1].service.seen[-1].caller.log_level == 1  # the default, because it never read the record


async def test_a_worker_stores_what_it_could_not_store_before_it_leaves(cluster: WorkerCluster) -> None:
    first, _ = await cluster.open()
    session = await open_session(first, ready=False)
    cluster.set_away(True)
    assert (await post(first, INITIALIZED, session)).status == 202
    cluster.set_away(False)
    await cluster.workers[0].cluster.close()
    (name,) = cluster.list_values("session ")
    stored = await cluster.workers[1].backend.read(name)
    assert stored is not None
    assert decode_record(stored.data).is_ready


@pytest.mark.parametrize("method", ["logging/setLevel", "resources/subscribe", "resources/unsubscribe", "DELETE"])
async def test_changes_are_refused_while_the_back_end_is_away(cluster: WorkerCluster, method: str) -> None:
    first, second = await cluster.open()
    session = await open_session(first)
    if method == "resources/unsubscribe":
        await post(first, request("resources/subscribe", uri="a://b"), session)
    cluster.set_away(True)
    for app in (first, second):
        answer = await (
            AsgiRequest(app, "DELETE", headers=session).wait_done()
            if method == "DELETE"
            else post(app, request(method, level="error", uri="a://b"), session)
        )
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    cluster.set_away(False)
    for app in (first, second):
        assert (await post(app, request(), session)).status == 200
    assert {worker.service.seen[-1].caller.log_level for worker in cluster.workers} == {1}


async def test_a_session_can_be_opened_while_the_back_end_is_away(cluster: WorkerCluster) -> None:
    first, second = await cluster.open()
    cluster.set_away(True)
    session = await open_session(first)
    assert (await post(second, request(), session)).status == 200
    cluster.set_away(False)
    for app in (first, second):
        assert (await post(app, request("resources/subscribe", uri="a://b"), session)).last["result"] == {}


async def test_a_handshake_is_completed_while_the_back_end_is_away(cluster: WorkerCluster, clock: Clock) -> None:
    first, second = await cluster.open()
    session = await open_session(first, ready=False)
    cluster.set_away(True)
    assert (await post(second, INITIALIZED, session)).status == 202
    cluster.set_away(False)
    (name,) = cluster.list_values("session ")
    await wait_until(lambda: cluster.find_expiry(name) > clock.now + 1000)
    clock.now += 100
    for app in (first, second):
        assert (await post(app, request(), session)).status == 200


async def test_an_answer_for_another_worker_waits_until_the_back_end_is_back(cluster: WorkerCluster) -> None:
    first, second = await cluster.open(ask)
    session = await open_session(first)
    call = start_post(first, request(), session)
    await wait_until(lambda: call.messages)
    answer = {"jsonrpc": "2.0", "id": call.last["id"], "result": {}}
    cluster.set_away(True)
    refused = await post(second, answer, session)
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    cluster.set_away(False)
    assert (await post(second, answer, session)).status == 202
    assert text(await call.wait_done()) == "{}"


async def test_a_lost_record_is_restored_by_the_worker_that_knows_it(cluster: WorkerCluster) -> None:
    first, second = await cluster.open()
    session = await open_session(first)
    await post(first, request("logging/setLevel", level="error"), session)
    cluster.lose_data()
    cluster.report_gap()
    await run_pending_callbacks()
    assert (await post(second, request(), session)).status == 200
    assert cluster.workers[1].service.seen[-1].caller.log_level == 4


async def test_a_request_restores_a_lost_record(cluster: WorkerCluster, clock: Clock) -> None:
    first, second = await cluster.open()
    session = await open_session(first)
    await post(first, request("logging/setLevel", level="error"), session)
    clock.now += 100
    cluster.lose_data()
    assert (await post(second, request(), session)).status == 503
    assert (await post(first, request(), session)).status == 200
    assert (await post(second, request(), session)).status == 200
    assert cluster.workers[1].service.seen[-1].caller.log_level == 4


async def test_a_new_session_without_a_record_is_served(
    cluster: WorkerCluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RESTORE_TIME, 5.0)
    first, second = await cluster.open()
    clock.now += 4  # Nothing that was stored since the start can be lost.
    cluster.workers[0].backend.is_full = True  # Only this worker cannot store anything.
    session = await open_session(first)
    assert (await post(second, request(), session)).status == 200
    answer = await post(second, request("logging/setLevel", level="error"), session)
    assert answer.last["result"] == {}
    cluster.workers[0].backend.is_full = False
    assert (await post(first, request(), session)).status == 200
    assert cluster.workers[0].service.seen[-1].caller.log_level == 4


async def test_a_new_session_is_not_invented_again_after_a_loss(
    cluster: WorkerCluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RESTORE_TIME, 5.0)
    first, second = await cluster.open()
    clock.now += 100
    ended, session = await open_session(first), await open_session(first)
    await post(first, request("logging/setLevel", level="error"), session)
    assert (await AsgiRequest(first, "DELETE", headers=ended).wait_done()).status == 204
    cluster.lose_data()
    for headers in (ended, session):
        assert (await post(second, request(), headers)).status == 503
    cluster.report_gap()
    await run_pending_callbacks()
    clock.now += 6
    for app in (second, first):
        assert (await post(app, request(), ended)).status == 404
        assert (await post(app, request(), session)).status == 200
    assert {worker.service.seen[-1].caller.log_level for worker in cluster.workers} == {4}


async def test_a_session_can_be_opened_while_the_back_end_is_full(cluster: WorkerCluster, clock: Clock) -> None:
    first, second, third = await cluster.open(count=3)
    for worker in cluster.workers:
        worker.backend.is_full = True
    session = await open_session(first, ready=False)
    assert (await post(second, INITIALIZED, session)).status == 202
    for _ in range(3):
        for app in (first, second):
            assert (await post(app, request(), session)).status == 200
        clock.now += 40
    assert (await post(third, request(), session)).status == 200
    answer = await post(third, request("resources/subscribe", uri="a://b"), session)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")


async def test_the_newest_copy_of_a_lost_record_wins(cluster: WorkerCluster) -> None:
    first, second = await cluster.open()
    session = await open_session(first)
    await post(second, request(), session)
    assert (await AsgiRequest(first, "DELETE", headers=session).wait_done()).status == 204
    await run_pending_callbacks()
    cluster.lose_data()
    for worker in cluster.workers[::-1]:
        worker.cluster.handle_gap()
        await run_pending_callbacks()
    for app in (second, first):
        assert (await post(app, request(), session)).status == 404


async def test_a_session_that_no_worker_knows_ends(
    cluster: WorkerCluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await cluster.open()
    session = await open_session(first)
    await first.close()
    await cluster.workers[0].cluster.close()
    cluster.lose_data()
    clock.now += 100
    assert (await post(second, request(), session)).status == 503  # This worker has not noticed the loss yet.
    monkeypatch.setattr(RESTORE_TIME, 5.0)
    cluster.report_gap()
    clock.now += 4
    assert (await post(second, request(), session)).status == 503
    clock.now += 2
    assert (await post(second, request(), session)).status == 404


async def test_large_capabilities_are_restored(cluster: WorkerCluster) -> None:
    first, second = await cluster.open()
    experimental = {"large": {"text": "x" * 5000}}
    session = await open_session(first, capabilities={"experimental": experimental})
    cluster.lose_data()
    assert (await post(second, request(), session)).status == 503
    assert (await post(first, request(), session)).status == 200
    assert (await post(second, request(), session)).status == 200
    assert cluster.workers[1].service.seen[-1].caller.client_capabilities.experimental == experimental


# Rolling deployments


async def test_a_change_keeps_what_a_newer_release_has_stored(cluster: WorkerCluster) -> None:
    first, _ = await cluster.open()
    session = await open_session(first)
    (name,) = cluster.list_values("session ")
    backend = cluster.workers[0].backend
    stored = await backend.read(name)
    assert stored is not None
    assert await backend.write(name, stored.data[:-1] + b',"added":{"later":1}}', 1000, expected=stored.version)
    await post(first, request("logging/setLevel", level="error"), session)
    stored = await backend.read(name)
    assert stored is not None
    assert json.loads(stored.data[1:])["added"] == {"later": 1}
    assert decode_record(stored.data).log_level == 4


@pytest.mark.parametrize("body", [b"", b"\x02{}", b"\x01{}", b"\x01["])
async def test_messages_in_an_unknown_format_are_ignored(cluster: WorkerCluster, body: bytes) -> None:
    first, second = await cluster.open()
    session = await open_session(first)
    await post(second, request(), session)
    for kind in ("answer", "progress", "cancel", "changed", "applied", "ended"):
        worker = cluster.workers[1].cluster.name
        assert await cluster.workers[0].backend.send(worker, f"session-{kind}", body)
    await run_pending_callbacks()
    assert (await post(second, request(), session)).status == 200


async def test_a_change_at_another_worker_keeps_what_a_newer_release_has_stored(cluster: WorkerCluster) -> None:
    first, second = await cluster.open()
    session = await open_session(first)
    stream = AsgiRequest(second, "GET", headers=session)
    await wait_until(lambda: stream.sent)
    (name,) = cluster.list_values("session ")
    backend = cluster.workers[0].backend
    stored = await backend.read(name)
    assert stored is not None
    assert await backend.write(name, stored.data[:-1] + b',"added":1}', 1000, expected=stored.version)
    # The second worker gets the record as a message, because it has the GET stream.
    await post(first, request("resources/subscribe", uri="a://1"), session)
    await post(second, request("logging/setLevel", level="error"), session)
    stored = await backend.read(name)
    assert stored is not None
    assert json.loads(stored.data[1:])["added"] == 1
    assert decode_record(stored.data).subscriptions == {"a://1": ["a://1"]}
    stream.disconnect()
    await stream.wait_done()


async def test_a_description_of_a_client_in_an_unknown_format_is_not_used(cluster: WorkerCluster) -> None:
    first, second = await cluster.open()
    session = await open_session(first, capabilities={"experimental": {"a": {"b": "c" * 4000}}})
    (name,) = cluster.list_values("client of session ")
    backend = cluster.workers[0].backend
    stored = await backend.read(name)
    assert stored is not None
    await backend.write(name, b"\x02" + stored.data[1:], 1000)
    assert (await post(first, request(), session)).status == 200
    assert (await post(second, request(), session)).status == 503
    await backend.write(name, stored.data, 1000)
    assert (await post(second, request(), session)).status == 200


async def test_many_gaps_restore_records_one_round_at_a_time(cluster: WorkerCluster) -> None:
    first, _ = await cluster.open()
    await open_session(first)
    backend = cluster.workers[0].backend
    restored: list[str] = []
    may_continue = asyncio.Event()
    restore = backend.restore

    async def restore_late(name: str, *args: Any) -> bool:
        restored.append(name)
        await may_continue.wait()
        return await restore(name, *args)

    backend.restore = restore_late  # type: ignore[method-assign, assignment]
    for _ in range(5):
        cluster.report_gap()
        await run_pending_callbacks()
    assert len(restored) == 1
    may_continue.set()
    await run_pending_callbacks()
    assert len(restored) == 2


async def test_a_request_does_not_drop_the_next_copy_of_its_session(cluster: WorkerCluster) -> None:
    first, _ = await cluster.open()
    session = await open_session(first)
    await post(first, request(), session)
    copies = cluster.workers[0].app._sessions._sessions._copies  # pyright: ignore[reportAttributeAccessIssue]
    (old_copy,) = copies
    copies.drop(old_copy)
    assert (await post(first, request(), session)).status == 200
    (new_copy,) = copies
    copies.drop(old_copy)
    assert [*copies] == [new_copy]
