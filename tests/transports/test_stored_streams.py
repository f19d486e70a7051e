"""Test replies that the workers of a cluster store. A client can read the rest of a reply at any worker."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from dovetail.cluster import stream_follower
from dovetail.cluster.sessions import stored_response, stream_readers
from dovetail.protocol.exchange import IncomingExchange
from dovetail.wire import jsonrpc
from dovetail.wire.base import Result
from support.fake_service import (
    BATCHING,
    AsgiRequest,
    create_notification,
    open_session,
    post,
    request,
    start_post,
    text_result,
    wait_until,
)
from transports.worker_cluster import Worker, open_cluster


@pytest.fixture(autouse=True)
def _notice_lost_workers_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_follower, "_CHECK_INTERVAL_S", 0.02)
    monkeypatch.setattr(stored_response, "_END_RETRY_DELAY_S", 0.05)


class SteppedWork:
    """A call that sends a progress message for each step that the test allows, and then its result."""

    def __init__(self, steps: int = 3) -> None:
        self._steps = steps
        self._allowed = asyncio.Semaphore(0)
        self.calls = 0

    def allow(self, steps: int = 1) -> None:
        for _ in range(steps):
            self._allowed.release()

    async def __call__(self, exchange: IncomingExchange) -> Result:
        self.calls += 1
        for step in range(self._steps):
            await self._allowed.acquire()
            assert exchange.emit is not None
            await exchange.emit(progress(step))
        await self._allowed.acquire()
        return text_result("done")


def progress(step: int) -> bytes:
    return jsonrpc.encode_notification("notifications/progress", {"progress": step})


def start_get(worker: Worker, session: Mapping[str, str], last_event_id: str | None = None) -> AsgiRequest:
    headers = dict(session) | ({} if last_event_id is None else {"last-event-id": last_event_id})
    return AsgiRequest(worker.app, "GET", headers=headers)


def list_steps(answer: AsgiRequest) -> list[Any]:
    """Return the steps, and the text or the error code of the result."""
    return [
        message["params"]["progress"]
        if "method" in message
        else message["result"]["content"][0]["text"]
        if "result" in message
        else message["error"]["code"]
        for message in answer.messages
    ]


def last_id(answer: AsgiRequest) -> str:
    id = answer._parser.last_event_id
    assert id is not None
    return id


async def wait_for_steps(answer: AsgiRequest, count: int) -> None:
    await wait_until(lambda: answer.sent and len(answer.messages) >= count)


async def test_a_cut_reply_continues_at_another_worker() -> None:
    work = SteppedWork()
    async with open_cluster(work) as cluster:
        session = await open_session(cluster[0].app)
        call = start_post(cluster[0].app, request(), session)
        work.allow(2)
        await wait_for_steps(call, 2)
        call.disconnect()
        heard_id = last_id(call)
        resumed = start_get(cluster[1], session, heard_id)
        work.allow(2)
        await resumed.wait_done()
        assert (resumed.status, list_steps(resumed)) == (200, [2, "done"])
        again = await start_get(cluster[0], session, heard_id).wait_done()
        assert [event.id for event in again.events] == [event.id for event in resumed.events]
        assert work.calls == 1


async def test_a_reply_can_be_read_before_its_first_event() -> None:
    work = SteppedWork()
    async with open_cluster(work, response_mode="sse") as cluster:
        session = await open_session(cluster[0].app)
        call = start_post(cluster[0].app, request(), session)
        await wait_until(lambda: call.sent and call._parser.last_event_id)
        resumed = start_get(cluster[1], session, last_id(call))
        work.allow(4)
        await resumed.wait_done()
        assert list_steps(resumed) == [0, 1, 2, "done"]


async def test_a_finished_stream_can_be_read_again_at_every_worker() -> None:
    async with open_cluster(response_mode="sse") as cluster:
        session = await open_session(cluster[0].app)
        call = await post(cluster[0].app, request(text="hello"), session)
        assert call.streaming
        first_id = call.body.split(b"\n", 1)[0].removeprefix(b"id: ").decode()
        for worker in cluster.workers:
            again = await start_get(worker, session, first_id).wait_done()
            assert again.messages == call.messages
            nothing = await start_get(worker, session, last_id(call)).wait_done()
            assert (nothing.status, nothing.messages) == (200, [])


async def test_a_json_reply_is_not_stored() -> None:
    async with open_cluster() as cluster:
        session = await open_session(cluster[0].app)
        answer = await post(cluster[0].app, request(text="hello"), session)
        assert not answer.streaming
        assert not cluster[0].backend._hub.streams._entries


async def test_a_session_cannot_read_the_stream_of_another_session() -> None:
    async with open_cluster(response_mode="sse") as cluster:
        session, other = await open_session(cluster[0].app), await open_session(cluster[0].app)
        call = await post(cluster[0].app, request(text="secret"), session)
        refused = await start_get(cluster[1], other, last_id(call).rpartition("-")[0] + "-0").wait_done()
        assert refused.status == 400
        assert b"secret" not in refused.body


@pytest.mark.parametrize("event_id", ["", "0-1", "x", "-", "a-b", "a-1~~", "a--1", "a-9999999999999", "a-1"])
async def test_an_unknown_event_id_is_refused(event_id: str) -> None:
    async with open_cluster() as cluster:
        session = await open_session(cluster[0].app)
        refused = start_get(cluster[0], session, event_id)
        if event_id:
            assert (await refused.wait_done()).status == 400
        else:
            await wait_until(lambda: refused.sent)
            assert refused.status == 200  # An empty ID opens the GET stream.
            refused.disconnect()


async def test_the_reader_of_a_lost_worker_gets_one_error_with_the_id_of_the_request() -> None:
    work = SteppedWork()
    async with open_cluster(work, count=3) as cluster:
        session = await open_session(cluster[0].app)
        call = start_post(cluster[0].app, request(id="mine"), session)
        work.allow()
        await wait_for_steps(call, 1)
        readers = [start_get(worker, session, last_id(call)) for worker in cluster.workers[1:]]
        await wait_until(lambda: all(reader.sent for reader in readers))
        await cluster[0].kill()
        for reader in readers:
            await reader.wait_done()
        replaced, newest = readers if not readers[0].messages else readers[::-1]
        assert replaced.messages == []
        (message,) = newest.messages
        assert (message["id"], message["error"]["code"]) == ("mine", -32603)
        assert message["error"]["data"] == {"reason": "worker-lost"}
        again = await start_get(cluster[1], session, last_id(call)).wait_done()
        assert again.messages == [message]
        # The late result of the worker is dropped.
        cluster[0].backend._hub.workers[cluster[0].backend.worker] = cluster[0].backend
        work.allow(3)
        await call.wait_done()
        assert list_steps(call) == [0]
        assert (await start_get(cluster[1], session, last_id(call)).wait_done()).messages == [message]


async def test_the_reader_of_a_lost_worker_gets_an_error_even_if_it_cannot_be_stored() -> None:
    work = SteppedWork()
    async with open_cluster(work) as cluster:
        session = await open_session(cluster[0].app)
        call = start_post(cluster[0].app, request(id="mine"), session)
        work.allow()
        await wait_for_steps(call, 1)
        reader = start_get(cluster[1], session, last_id(call))
        await wait_until(lambda: reader.sent)
        cluster[1].backend.is_full = True
        await cluster[0].kill()
        await reader.wait_done()
        (message,) = reader.messages
        assert (message["id"], message["error"]["code"]) == ("mine", -32603)
        assert last_id(reader).endswith("~")


async def test_a_batch_of_a_lost_worker_gets_one_error_for_each_request() -> None:
    work = SteppedWork()
    async with open_cluster(work) as cluster:
        session = await open_session(cluster[0].app, BATCHING)
        batch = [request(id=1), request(id="two"), create_notification("notifications/initialized")]
        call = start_post(cluster[0].app, batch, session)
        work.allow()
        await wait_for_steps(call, 1)
        reader = start_get(cluster[1], session, last_id(call))
        await wait_until(lambda: reader.sent)
        await cluster[0].kill()
        await reader.wait_done()
        ((first, second),) = reader.messages
        assert {first["id"], second["id"]} == {1, "two"}
        assert {first["error"]["code"], second["error"]["code"]} == {-32603}


async def test_the_newest_reader_replaces_the_previous_one() -> None:
    work = SteppedWork()
    async with open_cluster(work, count=3) as cluster:
        session = await open_session(cluster[0].app)
        call = start_post(cluster[0].app, request(), session)
        work.allow()
        await wait_for_steps(call, 1)
        first = start_get(cluster[1], session, last_id(call))
        # The response of the POST ends, because the client reads the stream elsewhere.
        await wait_until(lambda: call.complete)
        second = start_get(cluster[2], session, last_id(call))
        await first.wait_done()
        work.allow(3)
        await second.wait_done()
        assert (list_steps(call), list_steps(first), list_steps(second)) == ([0], [], [1, 2, "done"])


async def test_a_stream_is_unread_only_while_no_worker_reads_it() -> None:
    async def ask(exchange: IncomingExchange) -> Result:
        assert exchange.ask is not None
        return text_result(str(await exchange.ask("elicitation/create", {"message": "name?"})))

    async with open_cluster(ask) as cluster:
        session = await open_session(cluster[0].app)
        call = start_post(cluster[0].app, request(), session)
        await wait_for_steps_of_question(call)
        (writer,) = cluster[0].streams.writers.values()
        call.disconnect()
        await wait_until(lambda: writer._stream.unread_since is not None)
        reader = start_get(cluster[1], session, last_id(call))
        await wait_until(lambda: writer._stream.unread_since is None)
        reader.disconnect()
        await wait_until(lambda: writer._stream.unread_since is not None)
        reader = start_get(cluster[1], session, last_id(call))
        await wait_until(lambda: writer._stream.unread_since is None)
        answer = {"jsonrpc": "2.0", "id": call.messages[0]["id"], "result": {"action": "accept"}}
        assert (await post(cluster[1].app, answer, session)).status == 202
        await reader.wait_done()
        assert reader.last["result"]["content"][0]["text"] == "{'action': 'accept'}"


async def wait_for_steps_of_question(call: AsgiRequest) -> None:
    await wait_until(lambda: call.sent and call.messages and call.messages[0].get("method") == "elicitation/create")


async def test_a_stream_is_unread_after_the_worker_that_reads_it_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_readers, "_WORKER_CHECK_INTERVAL_S", 0.01)

    async def ask(exchange: IncomingExchange) -> Result:
        assert exchange.ask is not None
        return text_result(str(await exchange.ask("elicitation/create", {"message": "name?"})))

    async with open_cluster(ask) as cluster:
        session = await open_session(cluster[0].app)
        call = start_post(cluster[0].app, request(), session)
        await wait_for_steps_of_question(call)
        (writer,) = cluster[0].streams.writers.values()
        reader = start_get(cluster[1], session, last_id(call))
        await wait_until(lambda: writer.reading_worker is not None)
        assert writer._stream.unread_since is None
        await cluster[1].kill()
        await wait_until(lambda: writer._stream.unread_since is not None)
        reader.disconnect()
        await reader.wait_done()


async def test_a_released_connection_continues_at_another_worker() -> None:
    async def release(exchange: IncomingExchange) -> Result:
        assert exchange.close_stream is not None
        await exchange.close_stream(10)
        assert exchange.emit is not None
        await exchange.emit(progress(1))
        return text_result("done")

    async with open_cluster(release) as cluster:
        session = await open_session(cluster[0].app)
        call = await post(cluster[0].app, request(), session)
        assert call.messages == []
        resumed = await start_get(cluster[1], session, last_id(call)).wait_done()
        assert list_steps(resumed) == [1, "done"]


async def test_a_cancelled_call_ends_its_stream_without_a_result() -> None:
    work = SteppedWork()
    async with open_cluster(work) as cluster:
        session = await open_session(cluster[0].app)
        call = start_post(cluster[0].app, request(id=5), session)
        work.allow()
        await wait_for_steps(call, 1)
        reader = start_get(cluster[1], session, last_id(call))
        await wait_until(lambda: call.complete)
        notification = create_notification("notifications/cancelled", requestId=5)
        assert (await post(cluster[1].app, notification, session)).status == 202
        await reader.wait_done()
        assert reader.messages == []


# The shared state is not available.


async def test_a_reply_continues_without_storage_and_is_stored_later() -> None:
    work = SteppedWork()
    async with open_cluster(work) as cluster:
        session = await open_session(cluster[0].app)
        call = start_post(cluster[0].app, request(), session)
        work.allow()
        await wait_for_steps(call, 1)
        stored_id = last_id(call)
        cluster.set_away(True)
        work.allow()
        await wait_for_steps(call, 2)
        unstored_id = last_id(call)
        assert unstored_id.endswith("~")
        assert (await start_get(cluster[1], session, unstored_id).wait_done()).status == 400
        away = await start_get(cluster[1], session, stored_id).wait_done()
        assert (away.status, away.headers["retry-after"]) == (503, "1")
        cluster.set_away(False)
        resumed = start_get(cluster[1], session, stored_id)
        work.allow(2)
        await resumed.wait_done()
        assert list_steps(resumed) == [1, 2, "done"]
        again = await start_get(cluster[1], session, unstored_id).wait_done()
        assert list_steps(again) == [2, "done"]


async def test_the_result_of_a_released_call_is_stored_after_the_outage() -> None:
    work = SteppedWork()
    async with open_cluster(work) as cluster:
        session = await open_session(cluster[0].app)
        call = start_post(cluster[0].app, request(), session)
        work.allow()
        await wait_for_steps(call, 1)
        reader = start_get(cluster[1], session, last_id(call))
        await wait_until(lambda: call.complete)
        cluster.set_away(True)
        work.allow(3)
        await wait_until(lambda: not cluster[0].streams.writers)
        cluster.set_away(False)
        await reader.wait_done()
        assert list_steps(reader) == [1, 2, "done"]


async def test_a_worker_stores_the_result_of_a_call_before_it_leaves() -> None:
    work = SteppedWork()
    async with open_cluster(work) as cluster:
        session = await open_session(cluster[0].app)
        call = start_post(cluster[0].app, request(), session)
        work.allow()
        await wait_for_steps(call, 1)
        heard_id = last_id(call)
        call.disconnect()
        cluster.set_away(True)
        work.allow(3)
        await wait_until(lambda: not cluster[0].streams.writers)
        cluster.set_away(False)
        await cluster[0].cluster.close()
        resumed = await start_get(cluster[1], session, heard_id).wait_done()
        assert list_steps(resumed) == [1, 2, "done"]


async def test_a_worker_that_leaves_waits_for_the_reply_of_a_call_that_has_ended() -> None:
    work = SteppedWork()
    async with open_cluster(work) as cluster:
        session = await open_session(cluster[0].app)
        call = start_post(cluster[0].app, request(), session)
        work.allow()
        await wait_for_steps(call, 1)
        heard_id = last_id(call)
        call.disconnect()
        work.allow(3)
        await cluster[0].cluster.close()
        resumed = await start_get(cluster[1], session, heard_id).wait_done()
        assert list_steps(resumed) == [1, 2, "done"]


async def test_a_worker_that_was_cut_off_drops_its_result_if_a_reader_got_an_error() -> None:
    work = SteppedWork()
    async with open_cluster(work) as cluster:
        session = await open_session(cluster[0].app)
        call = start_post(cluster[0].app, request(), session)
        work.allow()
        await wait_for_steps(call, 1)
        reader_id = last_id(call)
        workers = cluster[0].backend._hub.workers
        cluster[0].backend.is_away = True
        del workers[cluster[0].backend.worker]  # The other worker considers this one lost.
        work.allow()
        await wait_for_steps(call, 2)
        reader = await start_get(cluster[1], session, reader_id).wait_done()
        assert list_steps(reader) == [-32603]
        cluster[0].backend.is_away = False
        workers[cluster[0].backend.worker] = cluster[0].backend
        streams = cluster[0].streams
        await wait_until(lambda: not streams._tasks)
        work.allow(2)
        await call.wait_done()
        assert list_steps(call) == [0, 1]
        assert list_steps(await start_get(cluster[0], session, reader_id).wait_done()) == [-32603]


async def test_a_deleted_stream_cannot_be_resumed_and_its_reply_continues() -> None:
    work = SteppedWork()
    async with open_cluster(work) as cluster:
        session = await open_session(cluster[0].app)
        call = start_post(cluster[0].app, request(), session)
        work.allow()
        await wait_for_steps(call, 1)
        first_id = last_id(call)
        for name in [*cluster[0].backend._hub.streams._entries]:
            await cluster[0].backend.delete_stream(name)
        work.allow(3)
        await call.wait_done()
        assert list_steps(call) == [0, 1, 2, "done"]
        for event_id in (first_id, last_id(call)):
            assert (await start_get(cluster[1], session, event_id).wait_done()).status == 400


async def test_a_stream_that_waits_for_storage_too_long_is_deleted() -> None:
    work = SteppedWork(10)
    async with open_cluster(work, max_replay_events=3) as cluster:
        session = await open_session(cluster[0].app)
        call = start_post(cluster[0].app, request(), session)
        work.allow()
        await wait_for_steps(call, 1)
        first_id = last_id(call)
        cluster.set_away(True)
        work.allow(10)
        await call.wait_done()
        assert list_steps(call) == [*range(10), "done"]
        cluster.set_away(False)
        streams = cluster[0].streams
        await wait_until(lambda: not streams._tasks)
        assert (await start_get(cluster[1], session, first_id).wait_done()).status == 400
        assert streams.unstored_bytes == 0
