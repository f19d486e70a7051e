"""Failures of the Redis server: it is away, paused, emptied or full."""

import asyncio
import contextlib
import time
from pathlib import Path

import pytest

from cluster.conftest import LIFETIME_S, Start
from cluster.recorder import Recorder, wait_for, wait_until
from dovetail.cluster.envelope import hash_name
from dovetail.cluster.redis.redis_backend import RedisBackend
from dovetail.protocol.interfaces.shared_state import (
    CLOCK_MARGIN_S,
    MAX_INLINE_BYTES,
    HistoryLost,
    SharedState,
    SharedStateUnavailable,
    StreamLimits,
)
from support.redis_servers import RedisServer, make_epoch_older

RECOVERY_S = 5.0  # the promise: the back end works this long after Redis answers again


async def check_works(backend: SharedState, recorder: Recorder) -> bool:
    """Return whether every kind of operation works."""
    count = len(recorder.messages)
    with contextlib.suppress(SharedStateUnavailable):
        await backend.write("a", b"value", 60)
        value = await backend.read("a")
        await backend.take("caller", 1000, 1000)
        await backend.publish("change", b"")
        await backend.append(f"stream {count} {time.monotonic()}", 1, b"", header=b"", is_last=True)
        assert value is not None
        await wait_until(lambda: len(recorder.messages) > count, RECOVERY_S)
        return await backend.send(backend.worker, "answer", b"")
    return False


async def assert_away(backend: SharedState) -> None:
    """Assert that the back end notices within its timeout that Redis is away, and then fails at once."""
    with pytest.raises(SharedStateUnavailable):
        await backend.write("a", b"x", 60)
    await wait_until(lambda: not backend.get_status().is_available)
    assert backend.get_status().problem
    started = time.monotonic()
    with pytest.raises(SharedStateUnavailable):
        await backend.use_once("id", time.time() + 3600, 60)
    assert time.monotonic() - started < 0.1


async def test_a_killed_server_is_used_again_when_it_is_back(start: Start, redis_server: RedisServer) -> None:
    backend, recorder = await start()
    redis_server.kill()
    await assert_away(backend)
    redis_server.start()
    await wait_for(lambda: check_works(backend, recorder), RECOVERY_S)
    assert backend.get_status().is_available
    assert recorder.gaps == 1  # The server has lost the change log.


async def test_a_paused_server_is_used_again_when_it_is_back(start: Start, redis_server: RedisServer) -> None:
    (backend, recorder), (other, received) = await start(), await start()
    assert await check_works(backend, recorder)
    count = len(received.messages)
    redis_server.pause()
    await assert_away(backend)
    redis_server.resume()
    await wait_for(lambda: check_works(backend, recorder), RECOVERY_S)
    await wait_for(lambda: check_works(other, received), RECOVERY_S)
    assert recorder.gaps == received.gaps == 0  # Nothing was lost.
    assert len(received.messages) > count


async def test_no_worker_counts_as_lost_after_a_long_pause_of_the_server(
    start: Start, redis_server: RedisServer
) -> None:
    """All heartbeats have expired, and one worker sends its heartbeat before the other."""
    (backend, _), (other, _) = await start(), await start()
    await other.append("stream", 1, b"", header=b"")
    redis_server.pause()
    await asyncio.sleep(LIFETIME_S + 0.2)
    redis_server.resume()
    for _ in range(20):
        with contextlib.suppress(SharedStateUnavailable):
            assert await backend.send(other.worker, "answer", b"")
            assert not await backend.end_lost_stream("stream", b"lost")
        await asyncio.sleep(0.1)
    assert await backend.send(other.worker, "answer", b"")


async def test_an_emptied_server_is_a_gap(start: Start, redis_server: RedisServer) -> None:
    (backend, recorder), (other, received) = await start(), await start()
    await backend.write("a", b"x", 60)
    cursor = await backend.publish("change", b"")
    redis_server.execute("FLUSHALL")
    assert await backend.read("a") is None
    assert await backend.read_changes(cursor) is None
    await wait_until(lambda: recorder.gaps == received.gaps == 1, RECOVERY_S)
    assert await check_works(backend, recorder)
    assert await check_works(other, received)
    assert await backend.list_workers() == {backend.worker, other.worker}


async def test_no_worker_counts_as_lost_after_the_server_was_emptied(start: Start, redis_server: RedisServer) -> None:
    (backend, _), (other, _) = await start(), await start()
    redis_server.execute("FLUSHALL")
    for _ in range(20):
        with contextlib.suppress(SharedStateUnavailable):
            assert await backend.send(other.worker, "answer", b"")
        await asyncio.sleep(0.1)
    assert await backend.send(other.worker, "answer", b"")


@pytest.mark.parametrize("loss", ["emptied", "restarted"])
async def test_ids_from_before_a_loss_are_refused(start: Start, redis_server: RedisServer, loss: str) -> None:
    backend, _ = await start()
    make_epoch_older(redis_server)
    issued_at, epoch = time.time(), backend.get_status().epoch
    assert await backend.use_once("id", issued_at, 60)
    assert await backend.use_once("ticket", issued_at, 60, epoch=epoch)
    if loss == "emptied":
        redis_server.execute("FLUSHALL")
    else:
        redis_server.kill()
        redis_server.start()
        await wait_for(lambda: _can_read(backend), RECOVERY_S)
    with pytest.raises(HistoryLost):
        await backend.use_once("id", issued_at, 60)
    with pytest.raises(HistoryLost):
        await backend.use_once("ticket", issued_at, 60, epoch=epoch)

    async def has_new_epoch() -> bool:
        return backend.get_status().epoch not in ("", epoch)

    await wait_for(has_new_epoch, RECOVERY_S)
    assert await backend.use_once("new ticket", time.time(), 60, epoch=backend.get_status().epoch)
    with pytest.raises(HistoryLost):  # The clocks of two machines may differ.
        await backend.use_once("later id", time.time() + CLOCK_MARGIN_S - 30, 60)
    assert await backend.use_once("later id", time.time() + CLOCK_MARGIN_S + 1, 60)


async def test_a_used_id_is_stored_longer_than_it_is_valid(start: Start, redis_server: RedisServer) -> None:
    """The worker with the slowest clock must still find it."""
    backend, _ = await start()
    await backend.use_once("id", time.time() + 3600, 10)
    remaining_ms = int((redis_server.execute("PTTL", f"{{test}}:used:{hash_name('id')}") or b"").strip(b":"))
    assert CLOCK_MARGIN_S < remaining_ms / 1000 <= CLOCK_MARGIN_S + 10


async def test_a_new_worker_also_refuses_ids_from_before_a_loss(start: Start, redis_server: RedisServer) -> None:
    backend, _ = await start()
    make_epoch_older(redis_server)
    issued_at = time.time()
    assert await backend.use_once("id", issued_at, 60)
    await backend.close()
    redis_server.execute("FLUSHALL")
    successor, _ = await start()
    with pytest.raises(HistoryLost):
        await successor.use_once("id", issued_at, 60)


async def _can_read(backend: SharedState) -> bool:
    with contextlib.suppress(SharedStateUnavailable):
        await backend.read("a")
        return True
    return False


async def test_a_full_server_refuses_writes_and_keeps_its_workers(start: Start, redis_server: RedisServer) -> None:
    (backend, recorder), (other, _) = await start(), await start()
    await backend.write("a", b"x", 60)
    redis_server.execute("CONFIG", "SET", "maxmemory", "1")
    for operation in (
        lambda: backend.write("a", b"y", 60),
        lambda: backend.use_once("id", time.time() + 3600, 60),
        lambda: backend.publish("change", b""),
        lambda: backend.append("stream", 1, b"", header=b""),
        lambda: backend.send(other.worker, "answer", b""),
    ):
        with pytest.raises(SharedStateUnavailable):
            await operation()
    problem = backend.get_status().problem
    assert problem is not None
    assert "maxmemory" in problem
    value = await backend.read("a")
    assert value is not None
    assert value.data == b"x"
    await asyncio.sleep(LIFETIME_S + 0.2)  # Heartbeats are still stored, so nobody counts as lost.
    assert await backend.list_workers() == {backend.worker, other.worker}
    assert backend.get_status().is_available
    redis_server.execute("CONFIG", "SET", "maxmemory", "0")
    assert await check_works(backend, recorder)


async def test_a_trimmed_change_log_is_a_gap(start: Start, redis_server: RedisServer) -> None:
    backend, recorder = await start()
    cursor = await backend.publish("change", b"one")
    await wait_until(lambda: recorder.messages)
    redis_server.execute("INCR", "{test}:change_count")  # A message that nobody has read is gone.
    assert await backend.read_changes(cursor) is None
    await backend.publish("change", b"three")
    await wait_until(lambda: recorder.bodies == [b"one", b"three"])
    await wait_until(lambda: recorder.gaps == 1)


async def test_a_cancelled_caller_is_cancelled(start: Start, redis_server: RedisServer) -> None:
    backend, _ = await start()
    redis_server.pause()
    task = asyncio.get_running_loop().create_task(backend.write("a", b"x", 60))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    redis_server.resume()
    await wait_for(lambda: _can_read(backend), RECOVERY_S)


async def test_a_required_server_that_is_away_is_an_error(tmp_path: Path) -> None:
    backend = RedisBackend(f"unix://{tmp_path}/missing.sock")
    with pytest.raises(SharedStateUnavailable, match=r"missing\.sock"):
        await backend.start(Recorder())
    await backend.close()


async def test_a_server_that_is_not_required_may_start_later(start: Start, redis_server: RedisServer) -> None:
    redis_server.kill()
    backend, recorder = await start(is_required=False)
    assert not backend.get_status().is_available
    redis_server.start()
    await wait_for(lambda: check_works(backend, recorder), RECOVERY_S)


async def test_a_server_that_deletes_keys_is_reported(start: Start, redis_server: RedisServer) -> None:
    redis_server.execute("CONFIG", "SET", "maxmemory", "100mb")
    redis_server.execute("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    backend, _ = await start()
    problem = backend.get_status().problem
    assert problem is not None
    assert "allkeys-lru" in problem
    assert backend.get_status().is_available


async def test_every_key_expires_or_is_one_of_the_deployment(start: Start, redis_server: RedisServer) -> None:
    backend, recorder = await start()
    await check_works(backend, recorder)
    await backend.use_once("id", time.time() + 3600, 60)
    await backend.acquire("place", "a", 1, 60)
    await backend.send(backend.worker, "answer", bytes(1_000_000))
    await backend.append("stream", 1, bytes(1_000_000), header=b"")
    with redis_server.connect() as client:
        for key in client.scan_iter():
            assert key.startswith(b"{test}:")
            assert client.ttl(key) > 0 or not client.exists(key), key


async def test_large_events_are_deleted_with_their_stream(start: Start, redis_server: RedisServer) -> None:
    backend, _ = await start(stream_limits=StreamLimits(ttl=1.0, max_events=2))
    large = bytes(MAX_INLINE_BYTES + 1)

    def count() -> int:
        with redis_server.connect() as client:
            return sum(client.hlen(key) for key in client.keys("{test}:large:*"))

    for number in (1, 2, 3, 3, 7):  # One event is dropped, one is repeated, and one is refused.
        await backend.append("stream", number, large, header=b"")
    assert count() == 2
    await backend.delete_stream("stream")
    assert count() == 0
    with pytest.raises(SharedStateUnavailable):  # Just after the start, nobody knows which workers there are.
        await backend.send("0" * 12, "answer", large)
    assert count() == 0
    await backend.append("another stream", 1, large, header=b"")
    await backend.append("another stream", 2, b"", is_last=True)
    assert count() == 1
    await wait_until(lambda: count() == 0)


async def test_encrypted_data_does_not_show_in_the_server(start: Start, redis_server: RedisServer) -> None:
    backend, _ = await start(secret_keys=["k" * 16])
    await backend.write("name of a user", b"secret value", 60)
    await backend.append("name of a stream", 1, b"secret event", header=b"secret header")
    await backend.publish("change", b"secret change")
    with redis_server.connect() as client:
        dumps = [key + (client.dump(key) or b"") for key in client.scan_iter()]
    assert len(dumps) > 4
    assert not [dump for dump in dumps if b"secret" in dump or b"name of" in dump]


async def test_no_message_is_missed_or_reordered_while_connections_break(
    start: Start, redis_server: RedisServer
) -> None:
    (publisher, _), (_, received) = await start(), await start()
    published: list[bytes] = []
    for number in range(200):
        body = str(number).encode()
        if number % 40 == 20:
            redis_server.execute("CLIENT", "KILL", "TYPE", "normal")

        async def is_published(body: bytes = body) -> bool:
            with contextlib.suppress(SharedStateUnavailable):
                await publisher.publish("change", body)
                return True
            return False

        await wait_for(is_published, RECOVERY_S)
        published.append(body)
    await wait_until(lambda: received.bodies[-1:] == published[-1:])
    assert list(dict.fromkeys(received.bodies)) == published  # A repeated message is allowed.
    assert received.gaps == 0
