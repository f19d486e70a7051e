"""Test the HTTP+SSE transport of 2024 in a cluster, where a POST can reach another worker than the stream."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from dovetail.protocol.exchange import IncomingExchange
from dovetail.transports.http_server.endpoint import Endpoint
from support.fake_service import (
    FIRST,
    INITIALIZED,
    AsgiRequest,
    PausedWork,
    create_notification,
    initialize,
    post,
    request,
    text_result,
    wait_until,
)
from transports.worker_cluster import WorkerCluster, authenticate


@pytest.fixture
async def cluster() -> AsyncGenerator[WorkerCluster]:
    cluster = WorkerCluster()
    yield cluster
    await cluster.close()


class Stream:
    """The stream of one client, and the messages on it."""

    def __init__(self, app: Endpoint, **headers: str) -> None:
        self.headers = headers
        self.request = AsgiRequest(app, "GET", "/sse", headers=headers)

    async def send(self, app: Endpoint, message: Any, **headers: str) -> int:
        await wait_until(lambda: self.request.sent and self.request.events)
        path, _, query = self.request.events[0].data.partition("?")
        answer = await post(app, message, self.headers | headers, path=path, query_string=query.encode())
        return answer.status

    @property
    def messages(self) -> list[Any]:
        return [json.loads(event.data) for event in self.request.events[1:] if event.event == "message"]

    async def wait_for(self, count: int) -> list[Any]:
        await wait_until(lambda: len(self.messages) >= count)
        return self.messages

    async def close(self) -> None:
        self.request.disconnect()
        await self.request.wait_done()


async def test_messages_can_reach_any_worker(cluster: WorkerCluster) -> None:
    first, second = await cluster.open()
    stream = Stream(first)
    assert await stream.send(second, initialize(FIRST)) == 202
    assert (await stream.wait_for(1))[0]["result"]["protocolVersion"] == FIRST
    assert await stream.send(second, INITIALIZED) == 202
    for number, app in enumerate([first, second, second, first], 1):
        assert await stream.send(app, request(id=number, text=f"call {number}")) == 202
        message = (await stream.wait_for(number + 1))[-1]
        assert (message["id"], message["result"]["content"][0]["text"]) == (number, f"call {number}")
    await stream.close()


async def test_messages_of_a_client_keep_their_order(cluster: WorkerCluster) -> None:
    first, second = await cluster.open()
    stream = Stream(first)
    await stream.send(first, initialize(FIRST))
    await stream.wait_for(1)
    for number in range(40):
        assert await stream.send((first, second)[number % 3 % 2], request(id=number)) == 202
    assert [message["id"] for message in (await stream.wait_for(41))[1:]] == [*range(40)]
    await stream.close()


async def test_a_question_is_answered_at_another_worker(cluster: WorkerCluster) -> None:
    async def ask(exchange: IncomingExchange) -> Any:
        assert exchange.ask is not None
        return text_result(str(await exchange.ask("roots/list", {})))

    first, second = await cluster.open(ask)
    stream = Stream(first)
    await stream.send(second, initialize(FIRST))
    await stream.wait_for(1)
    await stream.send(second, request(id=7))
    question = (await stream.wait_for(2))[-1]
    await stream.send(second, {"jsonrpc": "2.0", "id": question["id"], "result": {"roots": []}})
    assert (await stream.wait_for(3))[-1]["id"] == 7
    await stream.close()


async def test_a_call_is_cancelled_from_another_worker(cluster: WorkerCluster) -> None:
    work = PausedWork()
    first, second = await cluster.open(work)
    stream = Stream(first)
    await stream.send(first, initialize(FIRST))
    await stream.wait_for(1)
    await stream.send(first, request(id=7, text="call"))
    await wait_until(lambda: work.started)
    await stream.send(second, create_notification("notifications/cancelled", requestId=7))
    await wait_until(lambda: work.outcomes == {"call": "cancelled"})
    await stream.close()


async def test_invalid_json_gets_an_error_on_the_stream(cluster: WorkerCluster) -> None:
    first, second = await cluster.open()
    stream = Stream(first)
    await wait_until(lambda: stream.request.sent and stream.request.events)
    path, _, query = stream.request.events[0].data.partition("?")
    headers = {"content-type": "application/json"}
    sent = AsgiRequest(second, "POST", path, b"{nothing\n\n", headers, query_string=query.encode())
    assert (await sent.wait_done()).status == 202
    assert (await stream.wait_for(1))[0]["error"]["code"] == -32700
    await stream.close()


async def test_another_principal_cannot_send_messages(cluster: WorkerCluster) -> None:
    first, second = await cluster.open(options={"authenticate": authenticate})
    stream = Stream(first, authorization="alice")
    for app in (first, second):
        assert await stream.send(app, request("ping"), authorization="bob") == 404
        assert await stream.send(app, request("ping", id=1), authorization="alice") == 202
    await stream.wait_for(2)
    await stream.close()


async def test_a_closed_stream_is_unknown_at_its_worker(cluster: WorkerCluster) -> None:
    first, second = await cluster.open()
    stream = Stream(first)
    await stream.send(first, initialize(FIRST))
    await stream.close()
    assert await stream.send(first, request("ping")) == 404
    assert await stream.send(second, request("ping")) == 202  # The other worker cannot know it.


async def test_a_stream_of_a_lost_worker_is_unknown(cluster: WorkerCluster) -> None:
    first, second = await cluster.open()
    stream = Stream(first)
    await stream.send(first, initialize(FIRST))
    await cluster.workers[0].cluster.close()
    assert await stream.send(second, request("ping")) == 404
    await stream.close()


async def test_a_worker_without_shared_state_serves_its_own_streams(cluster: WorkerCluster) -> None:
    first, second = await cluster.open()
    stream = Stream(first)
    await stream.send(first, initialize(FIRST))
    await stream.wait_for(1)
    cluster.set_away(True)
    assert await stream.send(first, request("ping", id=1)) == 202
    assert await stream.send(second, request("ping", id=2)) == 503
    cluster.set_away(False)
    assert await stream.send(second, request("ping", id=3)) == 202
    assert [message["id"] for message in await stream.wait_for(3)] == [0, 1, 3]
    await stream.close()


async def test_streams_of_a_principal_are_limited_at_all_workers_together(cluster: WorkerCluster) -> None:
    first, second = await cluster.open(options={"authenticate": authenticate}, max_streams_per_principal=2)
    streams = [Stream(app, authorization="alice") for app in (first, second)]
    await asyncio.gather(*(stream.send(first, initialize(FIRST)) for stream in streams))
    for app in (first, second):
        assert (await AsgiRequest(app, "GET", "/sse", headers={"authorization": "alice"}).wait_done()).status == 429
    other = Stream(second, authorization="bob")
    assert await other.send(first, initialize(FIRST)) == 202
    await streams.pop().close()
    third = Stream(first, authorization="alice")
    assert await third.send(second, initialize(FIRST)) == 202
    for stream in (*streams, other, third):
        await stream.close()


async def test_a_client_that_does_not_read_cannot_fill_the_memory(cluster: WorkerCluster) -> None:
    first, second = await cluster.open(max_body_bytes=300_000)
    stream = Stream(first)
    await stream.send(first, initialize(FIRST))
    await stream.wait_for(1)
    stream.request.writable.clear()
    statuses = [await stream.send(second, request(id=number, text="x" * 250_000)) for number in range(20)]
    assert {*statuses} == {202}
    stream.request.writable.set()
    await stream.request.wait_done()  # The connection ended.
    assert len(stream.messages) < 12
    assert await stream.send(first, request("ping")) == 404
