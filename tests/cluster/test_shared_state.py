"""The contract of all back ends of shared state. The same tests run with each back end."""

import asyncio
import time
from contextlib import aclosing

import pytest

from cluster.conftest import StartWorker, each_backend, each_encrypting_backend
from cluster.recorder import wait_for, wait_until
from dovetail.protocol.interfaces.shared_state import (
    CLOCK_MARGIN_S,
    MAX_CHANGE_BYTES,
    MAX_INBOX_MESSAGES,
    MAX_INLINE_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_READ_CHANGES,
    HistoryLost,
    SharedStateUnavailable,
    StreamEvent,
    StreamLimits,
    WorkerLost,
)


@pytest.fixture
def fast_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let readers check often whether the writer of their stream is alive."""
    monkeypatch.setattr("dovetail.cluster.stream_follower._CHECK_INTERVAL_S", 0.02)


def get_valid_from() -> float:
    """Return a time after the start of every server."""
    return time.time() + 3600.0


@each_backend
async def test_a_value_can_be_read_until_it_expires(start_worker: StartWorker) -> None:
    backend, _ = await start_worker()
    assert await backend.read("a") is None
    version = await backend.write("a", b"one", 0.2)
    value = await backend.read("a")
    assert value is not None
    assert (value.data, value.version) == (b"one", version)

    async def is_gone() -> bool:
        return await backend.read("a") is None

    await wait_for(is_gone)
    assert not await backend.delete("a")


@each_backend
async def test_a_write_with_another_version_is_refused(start_worker: StartWorker) -> None:
    backend, _ = await start_worker()
    first = await backend.write("a", b"one", 60, expected=0)
    assert first is not None
    assert await backend.write("a", b"two", 60, expected=0) is None
    second = await backend.write("a", b"two", 60, expected=first)
    assert second is not None
    assert second > first
    assert await backend.write("a", b"three", 60, expected=first) is None
    value = await backend.read("a")
    assert value is not None
    assert value.data == b"two"


@each_backend
async def test_a_deleted_value_never_gets_an_old_version_again(start_worker: StartWorker) -> None:
    backend, _ = await start_worker()
    first = await backend.write("a", b"one", 60)
    assert first is not None
    assert not await backend.delete("a", expected=first + 1)
    assert await backend.delete("a", expected=first)
    second = await backend.write("a", b"two", 60, expected=0)
    assert second is not None
    assert second > first


@each_backend
async def test_only_one_of_several_concurrent_writes_succeeds(start_worker: StartWorker) -> None:
    workers = [(await start_worker())[0] for _ in range(3)]
    versions = await asyncio.gather(
        *(worker.write("a", worker.worker.encode(), 60, expected=0) for worker in workers * 5)
    )
    assert sum(version is not None for version in versions) == 1
    values = [await worker.read("a") for worker in workers]
    assert len({value.data for value in values if value is not None}) == 1


@each_backend
async def test_a_restored_value_keeps_its_version(start_worker: StartWorker) -> None:
    """After a loss, a worker with an old copy cannot overwrite the copy of a worker that knows a newer version."""
    (first, _), (second, _) = await start_worker(), await start_worker()
    old = await first.write("a", b"subscribed", 60)
    assert old is not None
    new = await second.write("a", b"ended", 60)
    assert new is not None
    await first.delete("a")
    assert await first.restore("a", b"subscribed", old, 60)
    assert await second.restore("a", b"ended", new, 60)
    assert not await first.restore("a", b"subscribed", old, 60)
    assert not await second.restore("a", b"ended", new, 60)
    value = await first.read("a")
    assert value is not None
    assert (value.data, value.version) == (b"ended", new)
    newest = await first.write("a", b"newest", 60, expected=new)
    assert newest is not None
    assert newest > new


@each_backend
async def test_a_restored_value_expires(start_worker: StartWorker) -> None:
    backend, _ = await start_worker()
    assert await backend.restore("a", b"one", 5, 0.2)

    async def is_gone() -> bool:
        return await backend.read("a") is None

    await wait_for(is_gone)


@each_backend
async def test_an_id_is_used_once(start_worker: StartWorker) -> None:
    (first, _), (second, _) = await start_worker(), await start_worker()
    assert not await second.is_used("id")
    assert await first.use_once("id", get_valid_from(), 60)
    assert not await second.use_once("id", get_valid_from(), 60)
    assert await second.is_used("id")
    assert not await second.is_used("another id")


@each_backend
async def test_an_id_from_before_the_start_is_refused(start_worker: StartWorker) -> None:
    """The margin is for clocks that differ. Nothing is recorded about a refused ID."""
    backend, _ = await start_worker()
    for valid_from in (0.0, time.time() - 3600.0, time.time(), time.time() + CLOCK_MARGIN_S - 30.0):
        with pytest.raises(HistoryLost):
            await backend.use_once("id", valid_from, 60)
    assert not await backend.is_used("id")


@each_backend
async def test_an_id_of_this_epoch_is_accepted_whatever_the_clocks_say(start_worker: StartWorker) -> None:
    (first, _), (second, _) = await start_worker(), await start_worker()
    epoch = first.get_status().epoch
    assert epoch
    assert epoch == second.get_status().epoch
    assert await second.use_once("id", 0.0, 60, epoch=epoch)
    assert not await first.use_once("id", 0.0, 60, epoch=epoch)
    with pytest.raises(HistoryLost):
        await first.use_once("another id", 0.0, 60, epoch="another epoch")


@pytest.mark.parametrize("start_worker", ["memory", "local"], indirect=True)
async def test_a_used_id_is_stored_longer_than_it_is_valid(
    start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("memory_backend", "local.local_statements"):
        monkeypatch.setattr(f"dovetail.cluster.{module}.CLOCK_MARGIN_S", 0.2)
    backend, _ = await start_worker()
    assert await backend.use_once("id", get_valid_from(), 0.0)
    assert not await backend.use_once("id", get_valid_from(), 0.0)

    async def is_forgotten() -> bool:
        return not await backend.is_used("id")

    await wait_for(is_forgotten)
    assert await backend.use_once("id", get_valid_from(), 60)


@each_backend
async def test_only_the_same_attempt_can_use_an_id_again(start_worker: StartWorker) -> None:
    (first, _), (second, _) = await start_worker(), await start_worker()
    assert await first.use_once("id", get_valid_from(), 60, attempt="one")
    assert await second.use_once("id", get_valid_from(), 60, attempt="one")
    assert not await first.use_once("id", get_valid_from(), 60, attempt="two")
    assert not await first.use_once("id", get_valid_from(), 60)
    assert await first.use_once("other", get_valid_from(), 60)
    assert not await first.use_once("other", get_valid_from(), 60)


@each_backend
async def test_a_rate_allows_a_burst_and_then_waits(start_worker: StartWorker) -> None:
    backend, _ = await start_worker()
    waits = [await backend.take("caller", 0.1, 3) for _ in range(5)]
    assert waits[:3] == [0, 0, 0]
    assert all(9 < wait <= 10 for wait in waits[3:])
    assert await backend.take("another caller", 0.1, 3) == 0


@each_backend
async def test_all_workers_count_toward_the_same_rate(start_worker: StartWorker) -> None:
    workers = [(await start_worker())[0] for _ in range(2)]
    waits = [await worker.take("caller", 0.1, 3) for worker in workers * 3]
    assert [wait == 0 for wait in waits] == [True, True, True, False, False, False]


@each_backend
async def test_a_look_at_a_rate_counts_nothing(start_worker: StartWorker) -> None:
    backend, _ = await start_worker()
    for _ in range(3):
        assert await backend.take("caller", 0.1, 1, cost=0) == 0
    assert await backend.take("caller", 0.1, 1) == 0
    assert 9 < await backend.take("caller", 0.1, 1, cost=0) <= 10


@each_backend
async def test_a_counted_event_can_be_taken_back(start_worker: StartWorker) -> None:
    backend, _ = await start_worker()
    assert await backend.take("caller", 0.1, 5, cost=5) == 0
    assert 19 < await backend.take("caller", 0.1, 5, cost=2) <= 20
    assert await backend.take("caller", 0.1, 5, cost=-2) == 0
    assert await backend.take("caller", 0.1, 5, cost=2) == 0
    assert await backend.take("another caller", 0.1, 1, cost=-9) == 0  # This gives no additional burst.
    assert await backend.take("another caller", 0.1, 1) == 0
    assert await backend.take("another caller", 0.1, 1) > 0


@each_backend
@pytest.mark.parametrize(("rate", "burst", "cost"), [(0, 1, 1), (-1, 1, 1), (1, 2, 3), (1, 0, 2)])
async def test_a_rate_that_never_allows_an_event_is_refused(
    start_worker: StartWorker, rate: float, burst: float, cost: float
) -> None:
    backend, _ = await start_worker()
    with pytest.raises(ValueError, match=r"rate|cost"):
        await backend.take("caller", rate, burst, cost)


@each_backend
async def test_a_place_can_end_with_its_worker(start_worker: StartWorker) -> None:
    (first, _), (second, _) = await start_worker(), await start_worker()
    assert await first.acquire("places", "a", 2, None)
    assert await second.acquire("places", "b", 2, None)
    assert not await second.acquire("places", "c", 2, None)
    await first.close()
    assert await second.acquire("places", "c", 2, None)
    assert not await second.acquire("places", "d", 2, 60)
    await second.release("places", "b")
    assert await second.acquire("places", "d", 2, 60)


@each_backend
async def test_places_are_limited_and_expire(start_worker: StartWorker) -> None:
    backend, _ = await start_worker()
    assert await backend.acquire("places", "a", 2, 60)
    assert await backend.acquire("places", "b", 2, 0.2)
    assert not await backend.acquire("places", "c", 2, 60)
    assert await backend.acquire("places", "a", 2, 60)  # The holder extends its time.

    async def can_be_acquired() -> bool:
        return await backend.acquire("places", "c", 2, 60)

    await wait_for(can_be_acquired)
    assert not await backend.acquire("places", "b", 2, 60)
    await backend.release("places", "a")
    assert await backend.acquire("places", "b", 2, 60)
    await backend.release("places", "unknown")


@each_backend
async def test_only_one_worker_gets_a_lock(start_worker: StartWorker) -> None:
    workers = [(await start_worker())[0] for _ in range(3)]
    locks = await asyncio.gather(*(worker.acquire("lock", worker.worker, 1, 60) for worker in workers))
    assert sum(locks) == 1


@each_backend
async def test_a_worker_gets_its_own_messages(start_worker: StartWorker) -> None:
    backend, recorder = await start_worker()
    assert await backend.send(backend.worker, "answer", b"body")
    await wait_until(lambda: recorder.messages)
    message = recorder.messages[0]
    assert (message.kind, message.body, message.sender, message.cursor) == ("answer", b"body", backend.worker, None)


@each_backend
async def test_messages_arrive_in_order_at_one_worker_only(start_worker: StartWorker) -> None:
    (sender, sent), (receiver, received) = await start_worker(), await start_worker()
    for number in range(150):
        assert await sender.send(receiver.worker, "answer", str(number).encode())
    await wait_until(lambda: len(received.messages) == 150)
    assert [int(body) for body in received.bodies] == list(range(150))
    assert not sent.messages


@each_backend
async def test_large_messages_arrive(start_worker: StartWorker) -> None:
    (sender, _), (receiver, received) = await start_worker(), await start_worker()
    body = bytes(range(256)) * (4 * MAX_INLINE_BYTES // 256)
    assert await sender.send(receiver.worker, "answer", body)
    await wait_until(lambda: received.messages)
    assert received.bodies == [body]


@each_backend
async def test_too_large_data_is_refused(start_worker: StartWorker) -> None:
    backend, _ = await start_worker()
    too_large = bytes(MAX_MESSAGE_BYTES + 1)
    with pytest.raises(ValueError, match="maximum"):
        await backend.send(backend.worker, "answer", too_large)
    with pytest.raises(ValueError, match="maximum"):
        await backend.write("a", too_large, 60)
    with pytest.raises(ValueError, match="maximum"):
        await backend.publish("change", bytes(MAX_CHANGE_BYTES + 1))
    with pytest.raises(ValueError, match="one line"):
        await backend.publish("two\nlines", b"")


@each_backend
async def test_messages_arrive_before_a_later_change(start_worker: StartWorker) -> None:
    (sender, _), (receiver, recorder) = await start_worker(), await start_worker()
    bodies = [b"%d" % number for number in range(200)]
    await asyncio.gather(
        *(sender.send(receiver.worker, "message", body) for body in bodies), sender.publish("change", b"")
    )
    await wait_until(lambda: len(recorder.messages) == 201)
    assert recorder.bodies == [*bodies, b""]


@each_backend
async def test_a_message_to_a_closed_worker_is_refused_at_once(start_worker: StartWorker) -> None:
    (sender, _), (receiver, _) = await start_worker(), await start_worker()
    assert await sender.list_workers() == {sender.worker, receiver.worker}
    await receiver.close()
    assert await sender.list_workers() == {sender.worker}
    assert not await sender.send(receiver.worker, "answer", b"body")


@each_backend
@pytest.mark.parametrize("name", ["", "x", "0" * 13, "../../../../../tmp/x", "00000000000G", "a" * 5000, "}{"])
async def test_a_message_to_a_name_that_is_not_a_worker_is_refused(start_worker: StartWorker, name: str) -> None:
    backend, _ = await start_worker()
    assert await backend.send(name, "answer", b"") is False


@each_backend
async def test_every_worker_gets_every_change(start_worker: StartWorker) -> None:
    workers = [await start_worker() for _ in range(3)]
    for number, (backend, _) in enumerate(workers * 2):
        await backend.publish("change", str(number).encode())
    for _, recorder in workers:
        await wait_until(lambda recorder=recorder: len(recorder.messages) == 6)
        assert recorder.bodies == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert recorder.gaps == 0


@each_backend
async def test_changes_can_be_read_after_a_cursor(start_worker: StartWorker) -> None:
    backend, recorder = await start_worker()
    start = await backend.get_cursor()
    cursors = [await backend.publish("change", str(number).encode()) for number in range(3)]
    assert await backend.get_cursor() == cursors[-1]
    messages = await backend.read_changes(start)
    assert messages is not None
    assert [(message.body, message.cursor) for message in messages] == [
        (b"0", cursors[0]),
        (b"1", cursors[1]),
        (b"2", cursors[2]),
    ]
    later = await backend.read_changes(cursors[1])
    assert later is not None
    assert [message.body for message in later] == [b"2"]
    assert await backend.read_changes(cursors[2]) == []
    await wait_until(lambda: len(recorder.messages) == 3)
    assert [message.cursor for message in recorder.messages] == cursors


@each_backend
@pytest.mark.parametrize("cursor", ["", "x", "999999", "0.1.1-1", "1" * 100, "a.1.b-c", "\u0661"])
async def test_an_unknown_cursor_has_no_changes(start_worker: StartWorker, cursor: str) -> None:
    backend, _ = await start_worker()
    await backend.publish("change", b"")
    assert await backend.read_changes(cursor) is None


@each_backend
async def test_more_changes_than_can_be_read_at_once_are_a_gap(start_worker: StartWorker) -> None:
    backend, _ = await start_worker()
    start = await backend.get_cursor()
    first = await backend.publish("change", b"")
    for _ in range(MAX_READ_CHANGES):
        await backend.publish("change", b"")
    assert await backend.read_changes(start) is None
    messages = await backend.read_changes(first)
    assert messages is not None
    assert len(messages) == MAX_READ_CHANGES


@each_backend
async def test_a_stream_stores_events_in_order(start_worker: StartWorker) -> None:
    backend, _ = await start_worker()
    assert await backend.append("stream", 1, b"one") == "missing"  # The stream is not open.
    assert await backend.append("stream", 2, b"two", header=b"request 7") == "missing"
    assert await backend.append("stream", 1, b"one", header=b"request 7") == "added"
    assert await backend.append("stream", 2, b"two") == "added"
    assert await backend.append("stream", 2, b"two") == "added"  # A repeated event counts once.
    assert await backend.append("stream", 4, b"four") == "missing"
    assert await backend.append("stream", 3, b"three", is_last=True) == "added"
    assert await backend.append("stream", 3, b"three", is_last=True) == "added"
    assert await backend.append("stream", 4, b"four") == "ended"
    part = await backend.read_stream("stream", 0)
    assert part is not None
    assert (part.writer, part.header, part.is_ended) == (backend.worker, b"request 7", True)
    assert part.events == [StreamEvent(1, b"one"), StreamEvent(2, b"two"), StreamEvent(3, b"three", True)]
    part = await backend.read_stream("stream", 3)
    assert part is not None
    assert (part.events, part.is_ended) == ([], True)
    assert await backend.read_stream("stream", 4) is None
    assert await backend.read_stream("another stream", 0) is None
    await backend.delete_stream("stream")
    assert await backend.read_stream("stream", 0) is None


@each_backend
async def test_only_its_writer_can_add_to_a_stream(start_worker: StartWorker) -> None:
    (writer, _), (other, _) = await start_worker(), await start_worker()
    await writer.append("stream", 1, b"one", header=b"")
    assert await other.append("stream", 1, b"other", header=b"") == "ended"
    assert await other.append("stream", 2, b"other", is_last=True) == "ended"
    assert await writer.append("stream", 2, b"two") == "added"
    part = await other.read_stream("stream", 0)
    assert part is not None
    assert (part.writer, part.is_ended) == (writer.worker, False)
    assert [event.data for event in part.events] == [b"one", b"two"]


@each_backend
@pytest.mark.usefixtures("fast_checks")
async def test_the_stream_of_a_lost_worker_gets_one_last_event(start_worker: StartWorker) -> None:
    (writer, _), (reader, _) = await start_worker(), await start_worker()
    await writer.append("stream", 1, b"one", header=b"request 7")
    await writer.close()
    with pytest.raises(WorkerLost) as caught:
        [event async for event in reader.follow("stream", 1)]
    assert (caught.value.worker, caught.value.header) == (writer.worker, b"request 7")
    outcomes = await asyncio.gather(*(reader.end_lost_stream("stream", b"lost") for _ in range(3)))
    assert sorted(outcomes) == [False, False, True]
    assert [event async for event in reader.follow("stream", 1)] == [StreamEvent(2, b"lost", True)]


@each_backend
async def test_a_reader_can_wait_until_a_stream_is_opened(start_worker: StartWorker) -> None:
    (writer, _), (reader, _) = await start_worker(), await start_worker()
    assert [event async for event in reader.follow("stream", 0)] == []

    async def read() -> list[bytes]:
        return [event.data async for event in reader.follow("stream", 0, writer=writer.worker)]

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        reading = group.create_task(read())
        await asyncio.sleep(0.05)
        await writer.append("stream", 1, b"one", header=b"")
        await writer.append("stream", 2, b"two", is_last=True)
    assert await reading == [b"one", b"two"]


@each_backend
async def test_a_reader_does_not_wait_for_a_stream_whose_start_was_deleted(start_worker: StartWorker) -> None:
    backend, _ = await start_worker(stream_limits=StreamLimits(max_events=1))
    for number in (1, 2):
        await backend.append("stream", number, b"", header=b"")
    async with asyncio.timeout(10):
        assert [event async for event in backend.follow("stream", 0, writer=backend.worker)] == []


@each_backend
@pytest.mark.usefixtures("fast_checks")
async def test_a_reader_learns_that_a_worker_is_lost_before_it_opened_its_stream(start_worker: StartWorker) -> None:
    (writer, _), (reader, _) = await start_worker(), await start_worker()
    await writer.close()
    async with asyncio.timeout(10):
        with pytest.raises(WorkerLost) as caught:
            [event async for event in reader.follow("stream", 0, writer=writer.worker)]
    assert (caught.value.worker, caught.value.header) == (writer.worker, b"")


@each_backend
async def test_a_stream_keeps_its_newest_events(start_worker: StartWorker) -> None:
    backend, _ = await start_worker(stream_limits=StreamLimits(max_events=3, max_bytes=10_000))
    for number in range(1, 6):
        await backend.append("many", number, b"event", header=b"")
    assert await backend.read_stream("many", 1) is None
    part = await backend.read_stream("many", 2)
    assert part is not None
    assert [event.number for event in part.events] == [3, 4, 5]
    for number in range(1, 4):
        await backend.append("large", number, bytes(4_500), header=b"")
    part = await backend.read_stream("large", 1)
    assert part is not None
    assert [event.number for event in part.events] == [2, 3]


@each_backend
async def test_a_worker_deletes_its_oldest_finished_streams(start_worker: StartWorker) -> None:
    backend, _ = await start_worker(stream_limits=StreamLimits(max_total_bytes=1000))
    await backend.append("open", 1, bytes(400), header=b"")
    await backend.append("first", 1, bytes(400), header=b"", is_last=True)
    await backend.append("second", 1, bytes(400), header=b"", is_last=True)
    assert await backend.read_stream("first", 0) is None
    assert await backend.read_stream("second", 0) is not None
    assert await backend.read_stream("open", 0) is not None
    with pytest.raises(SharedStateUnavailable):
        await backend.append("third", 1, bytes(700), header=b"")


@each_backend
async def test_a_repeated_last_event_counts_once(start_worker: StartWorker) -> None:
    backend, _ = await start_worker(stream_limits=StreamLimits(max_total_bytes=1000))
    await backend.append("stream", 1, bytes(300), header=b"")
    for _ in range(8):
        assert await backend.append("stream", 2, bytes(300), is_last=True) == "added"
    assert await backend.append("another stream", 1, bytes(400), header=b"") == "added"
    assert await backend.read_stream("stream", 0) is not None


@each_backend
async def test_a_finished_stream_expires(start_worker: StartWorker) -> None:
    backend, _ = await start_worker(stream_limits=StreamLimits(ttl=0.2))
    await backend.append("stream", 1, b"one", header=b"", is_last=True)

    async def is_gone() -> bool:
        return await backend.read_stream("stream", 0) is None

    await wait_for(is_gone)


@each_backend
async def test_a_reader_follows_a_stream_to_its_end(start_worker: StartWorker) -> None:
    backend, _ = await start_worker()
    await backend.append("stream", 1, b"1", header=b"")
    events: list[StreamEvent] = []

    async def read() -> None:
        events.extend([event async for event in backend.follow("stream", 0)])

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(read())
        for number in range(2, 250):
            await backend.append("stream", number, str(number).encode())
        await backend.append("stream", 250, b"250", is_last=True)
    assert [int(event.data) for event in events] == list(range(1, 251))
    assert events[-1].is_last


@each_backend
async def test_a_reader_in_another_worker_hears_of_new_events_quickly(start_worker: StartWorker) -> None:
    (writer, _), (reader, _) = await start_worker(), await start_worker()
    await writer.append("stream", 1, b"1", header=b"request")
    async with asyncio.timeout(10), aclosing(reader.follow("stream", 0)) as events:
        assert (await anext(events)).number == 1
        for number in range(2, 12):  # With the check each second instead of a message, this would take ten seconds.
            waiting = asyncio.get_running_loop().create_task(anext(events))
            await asyncio.sleep(0)
            await writer.append("stream", number, bytes(2 * MAX_INLINE_BYTES), is_last=number == 11)
            assert (await waiting).number == number
        with pytest.raises(StopAsyncIteration):
            await anext(events)


@each_backend
async def test_a_reader_stops_if_its_stream_is_deleted(start_worker: StartWorker) -> None:
    (writer, _), (reader, _) = await start_worker(), await start_worker()
    await writer.append("stream", 1, b"1", header=b"")
    async with asyncio.timeout(10), aclosing(reader.follow("stream", 0)) as events:
        assert (await anext(events)).number == 1
        await writer.delete_stream("stream")
        with pytest.raises(StopAsyncIteration):
            await anext(events)


@each_backend
async def test_the_stream_of_a_living_worker_cannot_be_ended(start_worker: StartWorker) -> None:
    (writer, _), (reader, _) = await start_worker(), await start_worker()
    await writer.append("stream", 1, b"1", header=b"")
    assert not await reader.end_lost_stream("stream", b"lost")
    assert not await reader.end_lost_stream("unknown", b"lost")
    assert await writer.append("stream", 2, b"2") == "added"


@each_backend
async def test_a_back_end_that_starts_again_is_another_worker(start_worker: StartWorker) -> None:
    backend, recorder = await start_worker()
    first = backend.worker
    await backend.close()
    await backend.start(recorder)
    assert backend.worker != first
    assert await backend.list_workers() == {backend.worker}
    assert not await backend.send(first, "answer", b"")


@each_backend
async def test_an_inbox_has_a_maximum_size(start_worker: StartWorker) -> None:
    (sender, _), (receiver, received) = await start_worker(), await start_worker()
    outcomes = await asyncio.gather(
        *(sender.send(receiver.worker, "answer", bytes(MAX_MESSAGE_BYTES)) for _ in range(5)), return_exceptions=True
    )
    assert all(outcome is True or isinstance(outcome, SharedStateUnavailable) for outcome in outcomes)
    await wait_until(lambda: len(received.messages) == outcomes.count(True))
    for _ in range(2):  # Messages that were read make room.
        assert await sender.send(receiver.worker, "answer", bytes(MAX_MESSAGE_BYTES))
        await wait_until(lambda: len(received.messages) == outcomes.count(True) + 1)
        received.messages.pop()


@each_encrypting_backend
async def test_workers_with_the_same_keys_read_encrypted_data(start_worker: StartWorker) -> None:
    old, new = "o" * 16, "n" * 16
    (first, _), (second, received) = await start_worker(secret_keys=[old]), await start_worker(secret_keys=[new, old])
    await first.write("a", b"secret", 60)
    await first.append("stream", 1, b"secret", header=b"secret", is_last=True)
    await first.publish("change", b"secret")
    assert await first.send(second.worker, "answer", b"secret")
    value, part = await second.read("a"), await second.read_stream("stream", 0)
    assert value is not None
    assert part is not None
    assert (value.data, part.header, part.events[0].data) == (b"secret", b"secret", b"secret")
    await wait_until(lambda: len(received.messages) == 2)
    assert received.bodies.count(b"secret") == 2


@each_encrypting_backend
async def test_data_with_another_key_is_not_read(start_worker: StartWorker, caplog: pytest.LogCaptureFixture) -> None:
    (first, _), (second, received) = (
        await start_worker(secret_keys=["o" * 16]),
        await start_worker(secret_keys=["n" * 16]),
    )
    await first.write("a", b"secret", 60)
    await first.append("stream", 1, b"secret", header=b"", is_last=True)
    with pytest.raises(SharedStateUnavailable):  # A value that cannot be read must not look like no value.
        await second.read("a")
    assert await second.read_stream("stream", 0) is None
    await first.publish("change", b"secret")
    await wait_until(lambda: received.gaps)  # The worker knows that something has changed, but not what.
    assert not received.messages


@each_backend
async def test_a_closed_back_end_can_be_closed_again(start_worker: StartWorker) -> None:
    backend, _ = await start_worker()
    assert backend.get_status().is_available
    await backend.close()
    await backend.close()


@each_backend
async def test_a_closed_back_end_is_unavailable(start_worker: StartWorker) -> None:
    backend, _ = await start_worker()
    await backend.close()
    assert not backend.get_status().is_available
    with pytest.raises(SharedStateUnavailable):
        await backend.read("a")


@each_backend
async def test_a_full_inbox_refuses_messages(start_worker: StartWorker) -> None:
    """The event loop of the receiver is busy, because it is that of the sender, which does not wait in between."""
    (sender, _), (receiver, received) = await start_worker(), await start_worker()
    outcomes = await asyncio.gather(
        *(sender.send(receiver.worker, "answer", b"") for _ in range(3 * MAX_INBOX_MESSAGES)), return_exceptions=True
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, SharedStateUnavailable)]
    assert len(refused) + outcomes.count(True) == len(outcomes)
    await wait_until(lambda: len(received.messages) == outcomes.count(True))
    assert await sender.send(receiver.worker, "answer", b"")
