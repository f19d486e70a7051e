"""Test a client and a server connected in memory: every message is encoded, no object is shared."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dovetail import Client, Server
from dovetail.errors import ConnectionLost, ProcessStartError
from dovetail.protocol.interfaces.client_transport import EncodedRequest
from dovetail.transports.memory import MemoryClient


class RecordingInbox:
    """An inbox that keeps what comes."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.junk_seen: list[str] = []
        self.losses: list[Any] = []

    def receive(self, message: Any) -> None:
        self.messages.append(message)

    def record_activity(self, id: Any) -> None: ...

    def record_invalid_message(self, text: str) -> None:
        self.junk_seen.append(text)

    def record_gap(self) -> None: ...

    def handle_connection_lost(self, error: Any) -> None:
        self.losses.append(error)


class Echo:
    """A server's end that does what the test says."""

    def __init__(self, write: Any) -> None:
        self.write = write
        self.heard: list[bytes] = []
        self.closed = 0

    def receive(self, data: bytes) -> None:
        self.heard.append(data)

    async def close(self, grace: float = 0.0) -> None:
        self.closed += 1


async def joined() -> tuple[MemoryClient, Echo, RecordingInbox]:
    ends: list[Echo] = []

    def link(write: Any) -> Echo:
        ends.append(Echo(write))
        return ends[-1]

    channel, inbox = MemoryClient(link), RecordingInbox()
    await channel.open(inbox)
    return channel, ends[0], inbox


async def test_responses_reach_their_requests_in_any_order() -> None:
    channel, server, inbox = await joined()
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(channel.exchange(EncodedRequest(id, "m", b"%d" % id))) for id in (1, 2)]
    await asyncio.sleep(0)
    assert server.heard == [b"1", b"2"]
    server.write(b'{"id":2,"result":"two"}')
    server.write(b'{"id":9,"result":"nobody"}')
    server.write(b'[{"id":1,"result":"one"},{"method":"notifications/x"}]')
    server.write(b"what?")
    server.write(b'{"id":null,"error":{"code":-32700}}')
    assert [bytes(one.result) for one in await asyncio.gather(*tasks)] == [b'"one"', b'"two"']
    assert [one.method for one in inbox.messages] == ["notifications/x"]
    assert len(inbox.junk_seen) == 2
    await channel.close()


async def test_leaving_cancels_tells_and_closes_once() -> None:
    channel, server, inbox = await joined()
    task = asyncio.get_running_loop().create_task(channel.exchange(EncodedRequest(5, "tools/call", b"5")))
    opening = asyncio.get_running_loop().create_task(channel.exchange(EncodedRequest(6, "initialize", b"6")))
    await asyncio.sleep(0)
    await channel.close()
    await channel.close()
    assert [b"notifications/cancelled" in one for one in server.heard] == [False, False, True]  # not the opening
    assert b'"requestId":5' in server.heard[-1]
    assert server.closed == 1
    for left in (task, opening):
        with pytest.raises(ConnectionLost) as caught:
            await left
        assert caught.value.maybe_sent
    with pytest.raises(ConnectionLost) as caught:
        await channel.exchange(EncodedRequest(7, "m", b"7"))
    assert not caught.value.maybe_sent
    with pytest.raises(ConnectionLost):
        await channel.send_message(b"8")
    assert len(inbox.losses) == 1
    assert channel.create_fallback() is None
    assert channel.get_diagnostics() == {}


async def test_a_server_is_started_with_its_first_client() -> None:
    steps: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        steps.append("open")
        yield
        steps.append("close")

    app = Server("life", version="1", lifespan=lifespan)

    @app.tool
    async def one() -> int:
        return 1

    async with Client(app) as client:
        assert steps == ["open"]
        assert await client.call("one") == 1
    assert steps == ["open", "close"]


async def test_a_server_that_cannot_start_says_why() -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        raise ConnectionError("database is down")
        yield

    with pytest.raises(ProcessStartError, match="ConnectionError: database is down") as caught:
        async with Client(Server("life", lifespan=lifespan)):
            pass
    assert isinstance(caught.value.__cause__, ConnectionError)


async def test_an_endless_sender_leaves_time_to_others_and_can_be_cancelled() -> None:
    app, turns = Server("quick"), 0

    @app.tool
    async def echo(text: str) -> str:
        return text

    async def ask() -> None:
        while True:
            await client.call_tool("echo", {"text": "again"})

    async with Client(app) as client:
        asking = asyncio.get_running_loop().create_task(ask())
        for _ in range(5):
            await asyncio.sleep(0)
            turns += 1
        asking.cancel()
        await asyncio.wait([asking], timeout=5)
        assert asking.cancelled()
        assert turns == 5
