"""Test that a worker joins its cluster with the server, and passes messages to their handlers."""

import asyncio

import pytest

from dovetail import Server
from dovetail.cluster.cluster_worker import ClusterWorker
from dovetail.cluster.memory_backend import MemoryBackend
from dovetail.protocol.interfaces.shared_state import Message

KEYS = ["a key with enough bytes"]
TIMEOUT_S = 10.0


def test_a_cluster_requires_secret_keys() -> None:
    with pytest.raises(ValueError, match="secret_keys"):
        Server("test", cluster=MemoryBackend())


async def test_a_server_joins_its_cluster_until_it_stops() -> None:
    backend = MemoryBackend()
    app = Server("test", cluster=backend, secret_keys=KEYS)
    await app.start()
    assert await backend.list_workers() == {backend.worker}
    await backend.publish("unknown", b"")  # The server ignores messages of unknown kinds.
    await app.stop()


async def test_a_server_joins_its_cluster_once() -> None:
    app = Server("test", cluster=MemoryBackend(), secret_keys=KEYS)
    await asyncio.gather(app.start(), app.start("another user"))
    with pytest.raises(RuntimeError, match="event loop"):
        await asyncio.to_thread(asyncio.run, app.start())
    await app.stop()


async def test_a_message_goes_to_the_handler_of_its_kind() -> None:
    worker = ClusterWorker(MemoryBackend(), KEYS)
    received: list[Message] = []
    worker.add_handler("a", received.append)
    await worker.start()
    await worker.state.publish("b", b"1")
    await worker.state.publish("a", b"2")
    await asyncio.sleep(0)
    assert [message.body for message in received] == [b"2"]
    await worker.close()
    assert not worker.is_started


async def test_close_handlers_run_at_the_same_time() -> None:
    worker = ClusterWorker(MemoryBackend(), KEYS)
    barrier = asyncio.Barrier(2)  # Each handler waits for the other one.
    states: list[bool] = []

    async def wait() -> None:
        await barrier.wait()
        await asyncio.sleep(0)
        states.append(worker.is_started)

    async def fail() -> None:
        raise OSError

    for handler in (wait, fail, wait):
        worker.add_close_handler(handler)
    await worker.start()
    with pytest.raises(BaseExceptionGroup) as caught:
        async with asyncio.timeout(TIMEOUT_S):
            await worker.close()
    assert [type(error) for error in caught.value.exceptions] == [OSError]
    assert states == [True, True]
    assert not worker.is_started


def test_all_handlers_of_a_kind_run_even_if_one_fails() -> None:
    worker = ClusterWorker(MemoryBackend(), KEYS)
    received: list[Message] = []

    def fail(message: Message) -> None:
        raise OSError

    worker.add_handler("a", fail)
    worker.add_handler("a", received.append)
    message = Message("a", b"", "sender")
    with pytest.raises(ExceptionGroup):
        worker.receive(message)
    assert received == [message]


def test_a_removed_handler_is_not_called() -> None:
    worker = ClusterWorker(MemoryBackend(), KEYS)
    received: list[Message] = []
    remove = worker.add_handler("a", received.append)
    remove()
    remove()
    worker.receive(Message("a", b"", "sender"))
    assert received == []


def test_a_failing_gap_handler_does_not_stop_the_others() -> None:
    worker = ClusterWorker(MemoryBackend(), KEYS)
    calls: list[int] = []

    def fail() -> None:
        raise OSError

    worker.add_gap_handler(fail)
    remove = worker.add_gap_handler(lambda: calls.append(1))
    with pytest.raises(ExceptionGroup):
        worker.handle_gap()
    remove()
    with pytest.raises(ExceptionGroup):
        worker.handle_gap()
    assert calls == [1]
