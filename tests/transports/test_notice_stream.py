"""Test the GET streams of sessions in a cluster. Event IDs are positions in the change log of all workers."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from dovetail.cluster.change_messages import CHANGE, SESSION_NOTICE, Change, SessionNotice, encode_body
from dovetail.protocol.interfaces.shared_state import Message, SharedStateUnavailable
from dovetail.wire import jsonrpc
from support.fake_service import (
    FIRST,
    AsgiRequest,
    open_session,
    post,
    request,
    run_pending_callbacks,
    start_post,
    wait_until,
)
from transports.worker_cluster import Worker, WorkerCluster, open_cluster

TOOLS, RESOURCES = "notifications/tools/list_changed", "notifications/resources/list_changed"
UPDATED = "notifications/resources/updated"


def start_get(worker: Worker, session: Mapping[str, str], last_event_id: str | None = None) -> AsgiRequest:
    headers = dict(session) | ({} if last_event_id is None else {"last-event-id": last_event_id})
    return AsgiRequest(worker.app, "GET", headers=headers)


async def open_stream(worker: Worker, session: Mapping[str, str], last_event_id: str | None = None) -> AsgiRequest:
    stream = start_get(worker, session, last_event_id)
    await wait_until(lambda: stream.sent)
    assert stream.status == 200
    await run_pending_callbacks()
    return stream


async def close_stream(stream: AsgiRequest) -> None:
    stream.disconnect()
    await stream.wait_done()
    await run_pending_callbacks()


def list_changes(stream: AsgiRequest) -> list[Any]:
    return [(message["method"], (message.get("params") or {}).get("uri")) for message in stream.messages]


async def wait_for_changes(stream: AsgiRequest, count: int) -> list[Any]:
    await wait_until(lambda: len(stream.messages) >= count)
    await run_pending_callbacks()
    return list_changes(stream)


async def subscribe(worker: Worker, session: Mapping[str, str], uri: str) -> None:
    assert "result" in (await post(worker.app, request("resources/subscribe", uri=uri), session)).last


def last_id(stream: AsgiRequest) -> str:
    id = stream._parser.last_event_id
    assert id is not None
    return id


async def test_a_stream_sends_the_changes_of_every_worker_once_and_in_order() -> None:
    async with open_cluster() as cluster:
        session = await open_session(cluster[0].app)
        stream = await open_stream(cluster[0], session)
        await cluster[1].publish(TOOLS)
        await wait_for_changes(stream, 1)
        await cluster[0].publish(RESOURCES)
        assert await wait_for_changes(stream, 2) == [(TOOLS, None), (RESOURCES, None)]
        await close_stream(stream)


async def test_a_subscription_at_another_worker_applies_to_the_next_change() -> None:
    async with open_cluster() as cluster:
        session = await open_session(cluster[0].app)
        stream = await open_stream(cluster[0], session)
        await cluster[1].publish(UPDATED, "x://other")
        await subscribe(cluster[1], session, "X://r")
        await cluster[1].publish(UPDATED, "x://r")
        assert await wait_for_changes(stream, 1) == [(UPDATED, "X://r")]
        await close_stream(stream)


async def test_a_stream_opened_later_sends_what_was_missed_each_change_once() -> None:
    async with open_cluster() as cluster:
        session = await open_session(cluster[0].app)
        await subscribe(cluster[1], session, "x://r")
        for _ in range(3):
            await cluster[0].publish(TOOLS)
            await cluster[1].publish(UPDATED, "x://r")
        await cluster[1].publish(UPDATED, "x://other")
        stream = await open_stream(cluster[1], session)
        assert await wait_for_changes(stream, 2) == [(TOOLS, None), (UPDATED, "x://r")]
        await close_stream(stream)
        second = await open_stream(cluster[0], session)
        await cluster[0].publish(RESOURCES)
        assert await wait_for_changes(second, 1) == [(RESOURCES, None)]
        await close_stream(second)


async def test_changes_before_the_session_are_not_sent() -> None:
    async with open_cluster() as cluster:
        await cluster[0].publish(TOOLS)
        session = await open_session(cluster[0].app)
        stream = await open_stream(cluster[1], session)
        await cluster[0].publish(RESOURCES)
        assert await wait_for_changes(stream, 1) == [(RESOURCES, None)]
        await close_stream(stream)


async def test_a_stream_continues_at_another_worker_after_the_last_event() -> None:
    async with open_cluster(count=3) as cluster:
        session = await open_session(cluster[0].app)
        stream = await open_stream(cluster[0], session)
        await cluster[0].publish(TOOLS)
        await wait_for_changes(stream, 1)
        heard = last_id(stream)
        await cluster[0].kill()
        await cluster[1].publish(RESOURCES)
        resumed = await open_stream(cluster[1], session, heard)
        assert await wait_for_changes(resumed, 1) == [(RESOURCES, None)]
        await cluster[2].publish(TOOLS)
        assert await wait_for_changes(resumed, 2) == [(RESOURCES, None), (TOOLS, None)]
        await close_stream(resumed)
        stream.disconnect()
        await stream.wait_done()


async def test_a_worker_that_receives_changes_late_does_not_send_them_again() -> None:
    async with open_cluster() as cluster:
        session = await open_session(cluster[0].app)
        start = await cluster[0].backend.get_cursor()
        stream = await open_stream(cluster[0], session)
        for method in (TOOLS, RESOURCES):
            await cluster[0].publish(method)
        await wait_for_changes(stream, 2)
        event_id = last_id(stream)
        await close_stream(stream)
        stream = await open_stream(cluster[1], session, event_id)
        for message in await cluster[0].backend.read_changes(start) or []:
            cluster[1].cluster.receive(message)
        await cluster[0].publish(TOOLS)
        assert await wait_for_changes(stream, 1) == [(TOOLS, None)]
        await close_stream(stream)


async def test_the_priming_event_is_a_position_to_resume_from() -> None:
    async with open_cluster() as cluster:
        session = await open_session(cluster[0].app)
        stream = await open_stream(cluster[0], session)
        heard = last_id(stream)
        await cluster[0].publish(TOOLS)
        await wait_for_changes(stream, 1)
        await close_stream(stream)
        resumed = await open_stream(cluster[1], session, heard)
        assert await wait_for_changes(resumed, 1) == [(TOOLS, None)]
        await close_stream(resumed)


@pytest.mark.parametrize("opening_worker", [0, 1])
async def test_a_second_stream_without_an_event_id_is_refused(opening_worker: int) -> None:
    async with open_cluster() as cluster:
        session = await open_session(cluster[0].app)
        stream = await open_stream(cluster[0], session)
        refused = await start_get(cluster[opening_worker], session).wait_done()
        assert refused.status == 409
        await cluster[1].publish(TOOLS)
        assert await wait_for_changes(stream, 1) == [(TOOLS, None)]
        await close_stream(stream)
        await close_stream(await open_stream(cluster[opening_worker], session))


async def test_a_stream_of_a_lost_worker_does_not_block_a_new_one() -> None:
    async with open_cluster() as cluster:
        session = await open_session(cluster[0].app)
        stream = await open_stream(cluster[0], session)
        await cluster[0].kill()
        await close_stream(await open_stream(cluster[1], session))
        stream.disconnect()
        await stream.wait_done()


@pytest.mark.parametrize("opening_worker", [0, 1])
async def test_a_resumed_stream_replaces_the_open_one(opening_worker: int) -> None:
    async with open_cluster() as cluster:
        session = await open_session(cluster[0].app)
        stream = await open_stream(cluster[0], session)
        resumed = await open_stream(cluster[opening_worker], session, last_id(stream))
        await stream.wait_done()
        await cluster[0].publish(TOOLS)
        assert await wait_for_changes(resumed, 1) == [(TOOLS, None)]
        assert stream.messages == []
        assert (await start_get(cluster[0], session).wait_done()).status == 409
        await close_stream(resumed)


async def test_two_streams_that_open_at_the_same_time_get_one_place() -> None:
    async with open_cluster() as cluster:
        session = await open_session(cluster[0].app)
        streams = [start_get(worker, session) for worker in (*cluster.workers, *cluster.workers)]
        await wait_until(lambda: all(stream.sent for stream in streams))
        assert sorted(stream.status for stream in streams) == [200, 409, 409, 409]
        for stream in streams:
            await close_stream(stream)


async def test_an_ended_session_ends_its_stream_at_another_worker() -> None:
    async with open_cluster() as cluster:
        session = await open_session(cluster[0].app)
        stream = await open_stream(cluster[0], session)
        assert (await AsgiRequest(cluster[1].app, "DELETE", headers=dict(session)).wait_done()).status == 204
        await stream.wait_done()


async def test_an_old_client_gets_no_event_without_data() -> None:
    async with open_cluster() as cluster:
        session = await open_session(cluster[0].app, FIRST)
        stream = await open_stream(cluster[0], session)
        assert stream.body == b""
        await cluster[1].publish(TOOLS)
        assert await wait_for_changes(stream, 1) == [(TOOLS, None)]
        await close_stream(stream)


async def test_a_client_that_does_not_read_gets_each_change_once() -> None:
    async with open_cluster() as cluster:
        session = await open_session(cluster[0].app)
        stream = await open_stream(cluster[0], session)
        stream.writable.clear()
        for _ in range(50):
            await cluster[1].publish(TOOLS)
            await cluster[1].publish(RESOURCES)
        await run_pending_callbacks(50)
        stream.writable.set()
        await cluster[1].publish(TOOLS)
        changes = await wait_for_changes(stream, 4)
        assert len(changes) <= 5
        assert changes[-1] == (TOOLS, None)
        await close_stream(stream)


# Gaps and outages


async def test_a_gap_reports_every_list_and_every_subscribed_resource_once() -> None:
    async with open_cluster() as cluster:
        session = await open_session(cluster[0].app)
        await subscribe(cluster[0], session, "x://r")
        stream = await open_stream(cluster[0], session)
        cluster[0].cluster.handle_gap()
        assert await wait_for_changes(stream, 3) == [(RESOURCES, None), (TOOLS, None), (UPDATED, "x://r")]
        await close_stream(stream)


@pytest.mark.parametrize("event_id", ["c-unknown.5", "c-", "c-x"])
async def test_an_event_id_that_is_not_in_the_log_any_more_reports_everything(event_id: str) -> None:
    async with open_cluster() as cluster:
        session = await open_session(cluster[0].app)
        stream = await open_stream(cluster[1], session, event_id)
        expected = [] if event_id == "c-" else [(RESOURCES, None), (TOOLS, None)]
        assert await wait_for_changes(stream, len(expected)) == expected
        await close_stream(stream)


async def test_a_new_stream_is_refused_during_an_outage() -> None:
    async with open_cluster() as cluster:
        session = await open_session(cluster[0].app)
        cluster.set_away(True)
        refused = await start_get(cluster[0], session).wait_done()
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        cluster.set_away(False)
        await close_stream(await open_stream(cluster[0], session))


async def test_a_stream_is_not_blocked_by_a_claim_whose_outcome_was_unknown() -> None:
    async with open_cluster() as cluster:
        session = await open_session(cluster[0].app)
        backend = cluster[0].backend
        write = backend.write

        async def write_without_answer(*args: Any, **options: Any) -> int | None:
            await write(*args, **options)
            backend.is_away = True
            raise SharedStateUnavailable("no answer")

        backend.write = write_without_answer  # type: ignore[method-assign]
        assert (await start_get(cluster[0], session).wait_done()).status == 503
        backend.write = write  # type: ignore[method-assign]
        backend._hub.workers[backend.worker] = backend
        stream = start_get(cluster[1], session)
        await wait_until(lambda: stream.sent)
        assert stream.status == 409  # The other worker cannot answer during its outage.
        backend.is_away = False
        streams = cluster[0].streams
        await wait_until(lambda: not streams._tasks)
        await close_stream(await open_stream(cluster[1], session))


async def test_a_stream_whose_end_was_never_stored_does_not_block_a_new_one() -> None:
    async with open_cluster(replay_ttl=0.0) as cluster:
        session = await open_session(cluster[0].app)
        stream = await open_stream(cluster[0], session)
        cluster.set_away(True)
        await close_stream(stream)
        streams = cluster[0].streams
        await wait_until(lambda: not streams._tasks)
        cluster.set_away(False)
        await close_stream(await open_stream(cluster[1], session))


async def test_a_change_after_an_outage_with_many_changes_is_sent() -> None:
    async with open_cluster() as cluster:
        session = await open_session(cluster[0].app)
        stream = await open_stream(cluster[0], session)
        worker = cluster[0].cluster
        worker.receive(Message(CHANGE, encode_body(Change(TOOLS)), worker.name))
        await wait_for_changes(stream, 1)
        await cluster[0].publish("")  # Too many changes have become one message.
        await wait_for_changes(stream, 3)
        await cluster[0].publish(TOOLS)
        assert (await wait_for_changes(stream, 4))[3:] == [(TOOLS, None)]
        await close_stream(stream)


async def test_a_change_during_an_outage_is_sent_here_at_once_and_not_again() -> None:
    async with open_cluster() as cluster:
        session = await open_session(cluster[0].app)
        stream = await open_stream(cluster[0], session)
        before = last_id(stream)
        worker, body = cluster[0].cluster, encode_body(Change(TOOLS))
        worker.receive(Message(CHANGE, body, worker.name))
        assert await wait_for_changes(stream, 1) == [(TOOLS, None)]
        assert last_id(stream) == before
        await cluster[0].publish(TOOLS)  # The same change, after the outage.
        await cluster[0].publish(RESOURCES)
        await cluster[0].publish(TOOLS)
        assert await wait_for_changes(stream, 3) == [(TOOLS, None), (RESOURCES, None), (TOOLS, None)]
        await close_stream(stream)


async def test_a_stream_that_ends_during_an_outage_can_be_opened_after_it() -> None:
    async with open_cluster() as cluster:
        session = await open_session(cluster[0].app)
        stream = await open_stream(cluster[0], session)
        cluster.set_away(True)
        await close_stream(stream)
        cluster.set_away(False)
        streams = cluster[0].streams
        await wait_until(lambda: not streams._tasks)
        await close_stream(await open_stream(cluster[1], session))


# Notifications for one session


async def notify(cluster: WorkerCluster, session_id: str, number: int) -> None:
    method = "notifications/elicitation/complete"
    notification = jsonrpc.encode_notification(method, {"elicitationId": str(number)}).decode()
    await cluster[1].backend.publish(SESSION_NOTICE, encode_body(SessionNotice(session_id, method, notification)))


async def test_a_notification_for_one_session_reaches_only_this_session() -> None:
    async with open_cluster() as cluster:
        session, other = await open_session(cluster[0].app), await open_session(cluster[0].app)
        await post(cluster[0].app, request(), session)
        session_id = cluster[0].service.seen[0].caller.session_id
        await notify(cluster, session_id, 1)
        stream, other_stream = await open_stream(cluster[0], session), await open_stream(cluster[0], other)
        await notify(cluster, session_id, 2)
        await wait_for_changes(stream, 2)
        assert [message["params"]["elicitationId"] for message in stream.messages] == ["1", "2"]
        assert other_stream.messages == []
        await close_stream(stream)
        await close_stream(other_stream)
        third = await open_stream(cluster[1], session)
        await notify(cluster, session_id, 3)
        await wait_for_changes(third, 1)
        assert [message["params"]["elicitationId"] for message in third.messages] == ["3"]
        await close_stream(third)


async def test_a_notification_that_the_protocol_version_does_not_have_is_not_sent() -> None:
    async with open_cluster() as cluster:
        session = await open_session(cluster[0].app, FIRST)
        await post(cluster[0].app, request(), session)
        stream = await open_stream(cluster[0], session)
        await notify(cluster, cluster[0].service.seen[0].caller.session_id, 1)
        await cluster[1].publish(TOOLS)
        assert await wait_for_changes(stream, 1) == [(TOOLS, None)]
        await close_stream(stream)


async def test_a_message_in_an_unknown_format_is_ignored() -> None:
    async with open_cluster() as cluster:
        session = await open_session(cluster[0].app)
        stream = await open_stream(cluster[0], session)
        for kind in (SESSION_NOTICE, "stream-read", "stream-reader-gone"):
            cluster[0].cluster.receive(Message(kind, b"\x09{}", "other"))
            cluster[0].cluster.receive(Message(kind, b"\x01[]", "other"))
        await cluster[1].publish(TOOLS)
        assert await wait_for_changes(stream, 1) == [(TOOLS, None)]
        await close_stream(stream)


async def test_an_unused_or_closed_endpoint_has_no_handlers() -> None:
    async with open_cluster() as cluster:
        worker = cluster[0].cluster
        assert not any(worker._handlers.values())
        session = await open_session(cluster[0].app)
        await close_stream(await open_stream(cluster[0], session))
        assert worker._handlers[CHANGE]
        assert worker._handlers[SESSION_NOTICE]
        await cluster[0].app.close()
        assert not any(worker._handlers.values())
        assert not worker._gap_handlers


async def test_a_late_answer_does_not_hide_a_newer_subscription() -> None:
    async with open_cluster() as cluster:
        session = await open_session(cluster[0].app)
        await post(cluster[1].app, request(), session)
        backend = cluster[1].backend
        backend.late_answers = asyncio.Event()
        opening = start_get(cluster[1], session)
        await wait_until(lambda: backend.late_writes)  # The record names the new reader, but its worker does not know.
        await subscribe(cluster[0], session, "a://1")
        backend.late_answers.set()
        await wait_until(lambda: opening.sent)
        await cluster[0].publish(UPDATED, "a://1")
        assert await wait_for_changes(opening, 1) == [(UPDATED, "a://1")]
        await close_stream(opening)


async def test_a_repeated_subscription_reaches_the_stream_if_the_first_worker_was_lost() -> None:
    async with open_cluster(count=3) as cluster:
        lost, other, reading = cluster[0], cluster[1], cluster[2]
        session = await open_session(lost.app)
        stream = await open_stream(reading, session)
        lost.backend.late_answers = asyncio.Event()
        first = start_post(lost.app, request("resources/subscribe", uri="a://1"), session)
        await wait_until(lambda: lost.backend.late_writes)  # The record is stored, but `reading` does not know.
        await lost.kill()
        await subscribe(other, session, "a://1")
        await other.publish(UPDATED, "a://1")
        assert await wait_for_changes(stream, 1) == [(UPDATED, "a://1")]
        lost.backend.late_answers.set()
        await first.wait_done()
        await close_stream(stream)


async def test_if_too_many_changes_wait_everything_counts_as_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "dovetail.cluster.sessions.notice_streams"
    monkeypatch.setattr(f"{module}._MAX_STREAMS_PER_ITERATION", 1)
    monkeypatch.setattr(f"{module}._MAX_WAITING_MESSAGES", 3)
    async with open_cluster() as cluster:
        streams: list[AsgiRequest] = []
        for _ in range(2):
            session = await open_session(cluster[0].app)
            await subscribe(cluster[0], session, "x://r")
            streams.append(await open_stream(cluster[0], session))
        for number in range(100):
            cluster[0].cluster.receive(Message(CHANGE, encode_body(Change(UPDATED, f"x://{number}")), "other"))
            assert len(cluster[0].streams._notice_streams._messages) <= 3
        for stream in streams:
            await wait_until(lambda stream=stream: (UPDATED, "x://r") in list_changes(stream))
            await run_pending_callbacks()
        for stream in streams:
            await close_stream(stream)
