"""Failures of Redis that a worker must survive: broken entries, full memory, deleted keys, a wrong clock, replicas."""

import asyncio
import contextlib
import time

import pytest

from cluster.conftest import LIFETIME_S, Start
from cluster.recorder import Recorder, wait_for, wait_until
from cluster.worker_process import WorkerProcess
from dovetail.cluster import stream_follower
from dovetail.cluster.envelope import hash_name
from dovetail.cluster.redis import redis_backend, redis_link
from dovetail.cluster.redis.redis_backend import RedisBackend
from dovetail.cluster.redis.redis_server_check import ClockReading, compute_clock_step
from dovetail.protocol.interfaces.shared_state import (
    MAX_INBOX_MESSAGES,
    MAX_INLINE_BYTES,
    HistoryLost,
    SharedStateUnavailable,
    StreamEvent,
)
from support.redis_servers import RedisServer, make_epoch_older

HOUR_S = 3600.0


class FailingListener(Recorder):
    """A listener with errors."""

    def receive(self, message: object) -> None:
        raise RuntimeError("this listener always fails")

    def handle_gap(self) -> None:
        self.gaps += 1
        raise RuntimeError("this listener always fails")


async def is_alive(observer: RedisBackend, worker: str) -> bool:
    with contextlib.suppress(SharedStateUnavailable):
        return worker in await observer.list_workers()
    return False


# Entries that a worker cannot read.


@pytest.mark.parametrize("words", [("field_of_a_newer_release", "x"), ("data", "x", "size", "none"), ("large", "1")])
async def test_a_message_that_cannot_be_read_does_not_stop_later_ones(
    start: Start, redis_server: RedisServer, words: tuple[str, ...]
) -> None:
    backend, recorder = await start()
    redis_server.execute("XADD", f"{{test}}:inbox:{backend.worker}", "*", *words)
    assert await backend.send(backend.worker, "answer", b"x")
    await wait_until(lambda: recorder.bodies == [b"x"])
    await wait_until(lambda: redis_server.execute("XLEN", f"{{test}}:inbox:{backend.worker}") == b":0")


async def test_changes_that_cannot_be_read_are_one_gap(start: Start, redis_server: RedisServer) -> None:
    backend, recorder = await start()
    with redis_server.connect() as client, client.pipeline() as pipeline:
        for _ in range(50):
            pipeline.xadd("{test}:changes", {"field_of_a_newer_release": "x"})
        pipeline.incrby("{test}:change_count", 50)
        pipeline.execute()
    await backend.publish("change", b"x")
    await wait_until(lambda: recorder.bodies == [b"x"])
    await wait_until(lambda: recorder.gaps)
    assert recorder.gaps == 1


async def test_a_flush_before_a_change_is_one_gap(start: Start, redis_server: RedisServer) -> None:
    (backend, recorder), (_, other) = await start(), await start()
    await backend.publish("change", b"before")
    await wait_until(lambda: recorder.messages and other.messages)
    redis_server.execute("FLUSHALL")
    await backend.publish("change", b"after")
    await wait_until(lambda: recorder.gaps and other.gaps)
    await asyncio.sleep(LIFETIME_S / 2)
    assert recorder.gaps == other.gaps == 1


async def test_a_lost_counter_of_changes_is_a_gap(start: Start, redis_server: RedisServer) -> None:
    backend, recorder = await start()
    await backend.publish("change", b"one")
    await wait_until(lambda: recorder.messages)
    redis_server.execute("DEL", "{test}:change_count")
    await backend.publish("change", b"two")
    await wait_until(lambda: recorder.gaps)


async def test_a_failing_listener_stops_neither_heartbeats_nor_messages(
    redis_server: RedisServer, start: Start
) -> None:
    observer, _ = await start()
    backend, listener = RedisBackend(redis_server.url, prefix="test", timeout=0.5), FailingListener()
    await backend.start(listener)
    redis_server.execute("FLUSHALL")
    await wait_until(lambda: listener.gaps)
    await asyncio.sleep(LIFETIME_S + 0.2)
    assert await is_alive(observer, backend.worker)
    assert await observer.send(backend.worker, "answer", b"")
    await wait_until(lambda: redis_server.execute("XLEN", f"{{test}}:inbox:{backend.worker}") == b":0")
    await backend.close()


async def test_a_key_of_another_type_is_reported_and_heartbeats_go_on(start: Start, redis_server: RedisServer) -> None:
    (backend, recorder), (observer, _) = await start(), await start()
    redis_server.execute("SET", f"{{test}}:inbox:{backend.worker}", "not a stream")
    await wait_until(lambda: backend.get_status().problem)
    assert await is_alive(observer, backend.worker)
    redis_server.execute("DEL", f"{{test}}:inbox:{backend.worker}")
    assert await observer.send(backend.worker, "answer", b"x")
    await wait_until(lambda: recorder.bodies == [b"x"])
    await wait_until(lambda: backend.get_status().problem is None)


# Streams and wake-ups.


async def test_wake_ups_do_not_fill_the_inbox(start: Start, redis_server: RedisServer) -> None:
    backend, _ = await start()
    reader = WorkerProcess("redis", redis_server.url, LIFETIME_S)
    try:
        await backend.append("stream", 1, b"", header=b"")
        reader.send("read_first", "stream")
        assert reader.receive() == 1
        reader.pause()
        for number in range(2, MAX_INBOX_MESSAGES + 50):
            await backend.append("stream", number, b"")
        assert redis_server.execute("XLEN", f"{{test}}:inbox:{reader.worker}") == b":0"
        assert redis_server.execute("XLEN", f"{{test}}:wakeups:{reader.worker}") in (b":0", b":1")
    finally:
        reader.close()


async def test_a_reader_is_woken_by_each_event(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_follower, "_CHECK_INTERVAL_S", HOUR_S)  # Without a wake-up, the reader waits.
    (writer, _), (reader, _) = await start(), await start()
    await writer.append("stream", 1, b"1", header=b"")
    events = reader.follow("stream", 0)
    assert (await anext(events)).number == 1
    for number in range(2, 12):
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.01)
        await writer.append("stream", number, b"")
        async with asyncio.timeout(10):
            assert (await waiting).number == number
    await events.aclose()


async def test_an_open_stream_is_kept_while_its_writer_is_alive(
    start: Start, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The streams of a worker that was killed are deleted soon, because nobody renews them."""
    monkeypatch.setattr(redis_backend, "OPEN_STREAM_TTL_S", 2.0)
    backend, _ = await start()
    await backend.append("stream", 1, bytes(MAX_INLINE_BYTES + 1), header=b"")
    for key in ("stream", "events", "large"):
        assert 0 < get_ttl(redis_server, f"{{test}}:{key}:{hash_name('stream')}") <= 2.0
    await asyncio.sleep(2.2)
    part = await backend.read_stream("stream", 0)
    assert part is not None
    assert len(part.events) == 1
    assert await backend.append("stream", 2, b"", is_last=True) == "added"
    assert get_ttl(redis_server, f"{{test}}:stream:{hash_name('stream')}") > 200


def get_ttl(server: RedisServer, key: str) -> float:
    return int((server.execute("PTTL", key) or b"").strip(b":")) / 1000


async def test_a_large_event_with_an_unknown_outcome_is_stored_once(start: Start, redis_server: RedisServer) -> None:
    backend, _ = await start()
    large = bytes(MAX_INLINE_BYTES + 1)
    await backend.append("stream", 1, b"", header=b"")
    for _ in range(2):
        redis_server.pause()
        with pytest.raises(SharedStateUnavailable):
            await backend.append("stream", 2, large)
        redis_server.resume()
        await wait_until(lambda: backend.get_status().is_available)
    assert await backend.append("stream", 2, large) == "added"
    with redis_server.connect() as client:
        assert [client.hlen(key) for key in client.scan_iter("{test}:large:*")] == [1]
    part = await backend.read_stream("stream", 1)
    assert part is not None
    assert part.events == [StreamEvent(2, large)]


async def test_large_messages_arrive_while_connections_break(start: Start, redis_server: RedisServer) -> None:
    (sender, _), (receiver, received) = await start(), await start()
    for number in range(10):
        body = bytes([number]) * (MAX_INLINE_BYTES + 1)

        async def is_sent(body: bytes = body) -> bool:
            with contextlib.suppress(SharedStateUnavailable):
                return await sender.send(receiver.worker, "answer", body)
            return False

        await wait_for(is_sent)
        redis_server.execute("CLIENT", "KILL", "TYPE", "normal")
    await wait_until(lambda: {body[0] for body in received.bodies} == set(range(10)))
    with redis_server.connect() as client:
        await wait_until(lambda: not list(client.scan_iter("{test}:large:*")))


# Full memory.


async def test_a_full_server_still_serves_readers_of_streams(start: Start, redis_server: RedisServer) -> None:
    backend, recorder = await start()
    await backend.append("stream", 1, b"one", header=b"")
    await backend.append("stream", 2, b"two", is_last=True)
    assert await backend.send(backend.worker, "answer", b"")
    redis_server.execute("CONFIG", "SET", "maxmemory", "1")
    assert [event.data async for event in backend.follow("stream", 0)] == [b"one", b"two"]
    await wait_until(lambda: recorder.messages)
    await wait_until(lambda: redis_server.execute("XLEN", f"{{test}}:inbox:{backend.worker}") == b":0")
    await backend.delete_stream("stream")
    assert await backend.read_stream("stream", 0) is None
    assert backend.get_status().problem is None


async def test_a_lost_stream_can_be_ended_while_the_server_is_full(start: Start, redis_server: RedisServer) -> None:
    (backend, _), (writer, _) = await start(), await start()
    await writer.append("stream", 1, b"one", header=b"")
    await writer.close()
    redis_server.execute("CONFIG", "SET", "maxmemory", "1")
    assert await backend.end_lost_stream("stream", b"lost")
    assert [event.data async for event in backend.follow("stream", 0)] == [b"one", b"lost"]


async def test_a_reader_registers_again_if_the_server_was_full(start: Start, redis_server: RedisServer) -> None:
    (backend, _), (writer, _) = await start(), await start()
    await writer.append("stream", 1, b"one", header=b"")
    redis_server.execute("CONFIG", "SET", "maxmemory", "1")
    events = backend.follow("stream", 0)
    assert (await anext(events)).data == b"one"
    waiting = asyncio.ensure_future(anext(events))
    redis_server.execute("CONFIG", "SET", "maxmemory", "0")
    await wait_until(lambda: redis_server.execute("SCARD", f"{{test}}:followers:{hash_name('stream')}") == b":1")
    await writer.append("stream", 2, b"two")
    assert (await waiting).data == b"two"
    await events.aclose()


async def test_the_status_has_no_problem_after_the_first_write_that_succeeds(
    start: Start, redis_server: RedisServer
) -> None:
    backend, _ = await start()
    redis_server.execute("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(SharedStateUnavailable):
        await backend.write("a", b"x", 60)
    assert backend.get_status().problem
    redis_server.execute("CONFIG", "SET", "maxmemory", "0")
    await backend.write("a", b"x", 60)
    assert backend.get_status().problem is None


OLD_KEY, NEW_KEY = "the old key of the cluster", "the new key of the cluster"


@pytest.mark.parametrize("other_keys", [[NEW_KEY], []])
async def test_workers_report_that_they_have_different_keys(
    start: Start, redis_server: RedisServer, caplog: pytest.LogCaptureFixture, other_keys: list[str]
) -> None:
    backend, _ = await start(secret_keys=[OLD_KEY])
    other, _ = await start(secret_keys=other_keys)
    assert "key" in (other.get_status().problem or "")  # It knows that at once.
    await wait_until(lambda: backend.get_status().problem)
    assert backend.get_status().is_available
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    await other.close()
    await wait_until(lambda: backend.get_status().problem is None)
    stored = redis_server.execute("ZRANGE", "{test}:key_ids", "0", "-1")
    assert OLD_KEY.encode() not in stored


async def test_a_rotation_of_keys_is_not_a_problem(start: Start) -> None:
    backends = [(await start(secret_keys=keys))[0] for keys in ([OLD_KEY], [OLD_KEY, NEW_KEY])]
    await backends.pop(0).close()  # All workers know the new key, so they may encrypt with it.
    backends += [(await start(secret_keys=keys))[0] for keys in ([NEW_KEY, OLD_KEY], [NEW_KEY, OLD_KEY])]
    await wait_until(lambda: all(backend.get_status().worker_count == len(backends) for backend in backends))
    assert [backend.get_status().problem for backend in backends] == [None] * len(backends)


async def test_places_are_counted_while_the_server_is_full(start: Start, redis_server: RedisServer) -> None:
    (backend, _), (other, _) = await start(), await start()
    redis_server.execute("CONFIG", "SET", "maxmemory", "1")
    assert await backend.acquire("calls", "a", 1, None)
    assert not await other.acquire("calls", "b", 1, None)
    await backend.release("calls", "a")
    assert await other.acquire("calls", "b", 1, None)


# Single use.


async def test_a_worker_that_refuses_an_id_knows_the_new_epoch(start: Start, redis_server: RedisServer) -> None:
    backend, _ = await start()
    epoch = backend.get_status().epoch
    redis_server.execute("FLUSHALL")
    with pytest.raises(HistoryLost):
        await backend.use_once("id", time.time(), 60, epoch=epoch)
    new_epoch = backend.get_status().epoch
    assert new_epoch != epoch
    assert await backend.use_once("new id", time.time(), 60, epoch=new_epoch)


# Deleted keys.


async def test_keys_that_redis_deletes_to_save_memory_are_a_loss(start: Start, redis_server: RedisServer) -> None:
    backend, recorder = await start()
    make_epoch_older(redis_server)
    issued_at = time.time()
    assert await backend.use_once("id", issued_at, 60)
    with redis_server.connect() as client:
        for number in range(200):  # Redis deletes keys of others first, because they are many.
            client.set(f"other:{number}", bytes(10_000))
        client.config_set("maxmemory-policy", "allkeys-random")
        client.config_set("maxmemory", client.info("memory")["used_memory"] - 50_000)
        client.set("other", "x")
        assert client.info("stats")["evicted_keys"] > 0
        client.config_set("maxmemory", 0)
        with pytest.raises(HistoryLost):
            await backend.use_once("another id", issued_at, 60)
    await wait_until(lambda: recorder.gaps == 1)


async def test_a_stream_without_its_events_has_ended(start: Start, redis_server: RedisServer) -> None:
    backend, _ = await start()
    await backend.append("stream", 1, b"one", header=b"")
    await backend.append("stream", 2, b"two", is_last=True)
    redis_server.execute("DEL", f"{{test}}:events:{hash_name('stream')}")
    assert await backend.read_stream("stream", 0) is None
    async with asyncio.timeout(5):
        assert [event async for event in backend.follow("stream", 0)] == []


# The clock. Tests cannot set it, so they write the times that a wrong clock leaves behind.


async def test_a_heartbeat_from_the_future_is_not_valid(start: Start, redis_server: RedisServer) -> None:
    backend, _ = await start()
    redis_server.execute("ZADD", "{test}:workers", str(time.time() + HOUR_S), "deaddeaddead")
    assert await backend.list_workers() == {backend.worker}
    with pytest.raises(SharedStateUnavailable):  # Just after the start, nobody knows which workers there are.
        await backend.send("deaddeaddead", "answer", b"")


async def test_a_worker_is_not_lost_after_the_clock_was_set_back(start: Start, redis_server: RedisServer) -> None:
    (backend, _), (other, _) = await start(), await start()
    for worker in (backend.worker, other.worker):
        redis_server.execute("ZADD", "{test}:workers", str(time.time() + HOUR_S), worker)
    redis_server.execute("HSET", "{test}:epoch", "since", str(time.time() + HOUR_S))
    for _ in range(20):
        with contextlib.suppress(SharedStateUnavailable):
            assert await backend.send(other.worker, "answer", b"")
        await asyncio.sleep(0.05)
    assert await backend.send(other.worker, "answer", b"")


@pytest.mark.parametrize("field", ["since", "checked_at"])
async def test_an_epoch_from_the_future_is_replaced(start: Start, redis_server: RedisServer, field: str) -> None:
    backend, recorder = await start()
    redis_server.execute("HSET", "{test}:epoch", field, str(time.time() + HOUR_S))
    with pytest.raises(HistoryLost):
        await backend.use_once("id", time.time(), 60)
    assert await backend.use_once("later id", time.time() + 61, 60)
    await wait_until(lambda: recorder.gaps == 1)


def test_a_step_of_the_clock_is_the_time_that_no_delay_explains() -> None:
    earlier = ClockReading(sent_at=10.0, received_at=11.0, redis_time=1000.0)
    assert compute_clock_step(earlier, ClockReading(12.0, 12.5, 1002.5)) <= 0
    assert compute_clock_step(earlier, ClockReading(12.0, 40.0, 1030.0)) <= 0  # Redis was paused.
    assert compute_clock_step(earlier, ClockReading(12.0, 12.5, 1102.5)) == 100.0


async def test_a_clock_that_was_set_forward_is_a_loss(
    start: Start, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (backend, recorder), (_, other) = await start(), await start()
    make_epoch_older(redis_server)
    steps = [HOUR_S, HOUR_S]
    monkeypatch.setattr(redis_link, "compute_clock_step", lambda *readings: steps.pop() if steps else 0.0)
    await wait_until(lambda: recorder.gaps and other.gaps and not steps)
    with pytest.raises(HistoryLost):
        await backend.use_once("id", time.time(), 60)
    await asyncio.sleep(LIFETIME_S / 2)
    assert recorder.gaps == other.gaps == 1


async def test_ids_are_refused_until_a_worker_has_checked_the_clock(start: Start, redis_server: RedisServer) -> None:
    backend, _ = await start()
    redis_server.execute("HSET", "{test}:epoch", "checked_at", str(time.time() - HOUR_S))
    with pytest.raises(HistoryLost):
        await backend.use_once("id", time.time() + HOUR_S, 60)

    async def can_be_used() -> bool:
        with contextlib.suppress(HistoryLost):
            return await backend.use_once("id", time.time() + HOUR_S, 60)
        return False

    await wait_for(can_be_used)


# Workers that start and end, and other releases.


async def test_a_worker_that_closes_is_never_alive_again(start: Start, redis_server: RedisServer) -> None:
    observer, _ = await start()
    for _ in range(10):
        backend = RedisBackend(redis_server.url, prefix="test")
        await backend.start(Recorder())
        await asyncio.gather(backend.close(), backend.close())
        assert await observer.list_workers() == {observer.worker}


async def test_a_place_is_free_after_its_worker_was_lost(start: Start, redis_server: RedisServer) -> None:
    backend, _ = await start()
    lost = WorkerProcess("redis", redis_server.url, LIFETIME_S)
    try:
        assert lost.call("hold_place", "place", 1)
        assert not await backend.acquire("place", "b", 1, None)
        lost.kill()

        async def is_free() -> bool:
            return await backend.acquire("place", "b", 1, None)

        await wait_for(is_free, 2 * LIFETIME_S + 2)
    finally:
        lost.close()


async def test_a_worker_does_not_join_a_deployment_with_another_layout(start: Start, redis_server: RedisServer) -> None:
    backend, _ = await start()
    redis_server.execute("HSET", "{test}:epoch", "layout", "2")
    with pytest.raises(SharedStateUnavailable, match="LAYOUT 2"):
        await start()
    await wait_until(lambda: not backend.get_status().is_available)


async def test_fields_of_a_newer_release_are_ignored(start: Start, redis_server: RedisServer) -> None:
    backend, recorder = await start()
    worker, stream, value = backend.worker, hash_name("stream"), hash_name("a")
    cursor = await backend.get_cursor()
    await backend.write("a", b"x", 60)
    await backend.append("stream", 1, b"one", header=b"")
    with redis_server.connect() as client:
        for key in ("epoch", f"value:{value}", f"stream:{stream}"):
            client.hset(f"{{test}}:{key}", "new", "1")
        for key, number in ((f"inbox:{worker}", None), ("changes", 1), (f"events:{stream}", 2)):
            plain = bytes([1, 0]) + int(time.time() + 60).to_bytes(8)
            message = plain + f"kind\n{worker}\nbody".encode()
            fields = {"new": "1", "data": message, "size": "1", "newer": "2"} | (
                {} if number is None else {"number": number}
            )
            client.xadd(f"{{test}}:{key}", fields, id="2-0" if number == 2 else "*")
        client.hset(f"{{test}}:stream:{stream}", "last", 2)
        client.incr("{test}:change_count")
    assert (await backend.read("a")) is not None
    part = await backend.read_stream("stream", 0)
    assert part is not None
    assert [event.number for event in part.events] == [1, 2]
    assert await backend.append("stream", 3, b"three", is_last=True) == "added"
    await wait_until(lambda: recorder.bodies == [b"body", b"body"])
    changes = await backend.read_changes(cursor)
    assert changes is not None
    assert [message.body for message in changes] == [b"body"]
    assert recorder.gaps == 0


async def test_data_of_the_first_layout_can_be_read(start: Start, redis_server: RedisServer) -> None:
    """If this test fails, workers of this release and the previous one cannot run at the same time."""
    backend, _ = await start()
    plain = bytes([1, 0]) + int(time.time() + 60).to_bytes(8)
    stream = hash_name("stream")
    with redis_server.connect() as client:
        client.hset(f"{{test}}:value:{hash_name('a')}", mapping={"version": "7", "data": plain + b"x"})
        client.set(f"{{test}}:used:{hash_name('id')}", "attempt", ex=60)
        client.set(f"{{test}}:rate:{hash_name('caller')}", f"{time.time() + 30:.6f}", ex=60)
        client.zadd(f"{{test}}:places:{hash_name('place')}", {"holder": time.time() + 60})
        meta = {"writer": "0123456789ab", "header": plain + b"header", "first": 1, "last": 2, "bytes": 2}
        client.hset(f"{{test}}:stream:{stream}", mapping=meta | {"ended_by": "0123456789ab"})
        client.xadd(f"{{test}}:events:{stream}", {"data": plain + b"one", "size": 1, "last": "0"}, id="1-0")
        client.xadd(f"{{test}}:events:{stream}", {"large": "1", "size": 1, "last": "1"}, id="2-0")
        client.hset(f"{{test}}:large:{stream}", "2", plain + b"two")
    value = await backend.read("a")
    assert value is not None
    assert (value.data, value.version) == (b"x", 7)
    assert await backend.is_used("id")
    assert await backend.take("caller", 0.1, 3) > 0
    assert not await backend.acquire("place", "another holder", 1, 60)
    part = await backend.read_stream("stream", 0)
    assert part is not None
    assert (part.writer, part.header, part.is_ended) == ("0123456789ab", b"header", True)
    assert part.events == [StreamEvent(1, b"one"), StreamEvent(2, b"two", True)]
