"""Test the server of the HTTP+SSE transport: one event stream and one POST address."""

import asyncio
import json
from typing import Any

import pytest

from dovetail.protocol.exchange import IncomingExchange
from dovetail.transports.http_server.endpoint import Endpoint
from support.fake_service import (
    FIRST,
    INITIALIZED,
    LATEST_HANDSHAKE,
    NEWEST,
    AsgiRequest,
    FakeService,
    PausedWork,
    initialize,
    post,
    request,
    run_pending_callbacks,
    stateless_request,
    text_result,
    wait_until,
)


def endpoint(stand: FakeService | None = None, **options: Any) -> Endpoint:
    return Endpoint(stand or FakeService(), **options)


@pytest.mark.parametrize(
    ("path", "public_url", "root", "expected"),
    [
        ("/sse", None, "", "/messages"),
        ("/sse", "http://localhost/mcp", "", "/messages"),
        ("/sse", "http://localhost/tools/mcp", "", "/tools/messages"),
        ("/mcp/sse", "http://localhost/tools/mcp/", "", "/tools/mcp/messages"),
        ("/app/sse", "http://localhost/tools/app/mcp", "/app", "/tools/app/messages"),
        ("/app/sse", None, "/app", "/app/messages"),
    ],
)
async def test_the_address_is_below_the_public_url(path: str, public_url: Any, root: str, expected: str) -> None:
    pair = Pair(endpoint(public_url=public_url), path, root_path=root)
    assert (await pair.address()).partition("?")[0] == expected
    pair.stream.disconnect()
    await pair.stream.wait_done()


class Pair:
    """One client: its stream, and the address it was told."""

    def __init__(self, app: Endpoint, path: str = "/sse", headers: Any = None, **scope: Any) -> None:
        self.app = app
        self.headers = headers or {}
        self.scope = scope
        self.stream = AsgiRequest(app, "GET", path, headers=self.headers, **scope)

    async def address(self) -> str:
        await wait_until(lambda: self.stream.sent and self.stream.events)
        assert self.stream.events[0].event == "endpoint"
        return self.stream.events[0].data

    async def send(self, message: Any, **changes: Any) -> AsgiRequest:
        path, _, query = (await self.address()).partition("?")
        scope = {"path": path, "query_string": query.encode()} | self.scope | changes
        return await post(self.app, message, self.headers, **scope)

    @property
    def heard(self) -> list[Any]:
        return [json.loads(event.data) for event in self.stream.events[1:] if event.event == "message"]

    async def hears(self, count: int) -> list[Any]:
        await wait_until(lambda: len(self.heard) >= count)
        return self.heard

    async def open(self, revision: str = FIRST) -> "Pair":
        assert (await self.send(initialize(revision))).status == 202
        assert (await self.hears(1))[0]["result"]["protocolVersion"] == revision
        await self.send(INITIALIZED)
        return self

    async def leave(self) -> None:
        self.stream.disconnect()
        await self.stream.wait_done()


async def test_a_request_has_the_address_of_its_client() -> None:
    stand = FakeService()
    pair = await Pair(endpoint(stand), client=("203.0.113.9", 5000)).open()
    await pair.send(request("tools/call", 1, name="echo"))
    await pair.hears(2)
    assert [exchange.client_address for exchange in stand.seen] == ["203.0.113.9"]
    await pair.leave()


@pytest.mark.parametrize(
    ("path", "options", "root", "address"),
    [
        ("/sse", {}, "", "/messages"),
        ("/mcp/sse", {}, "", "/mcp/messages"),
        ("/tools/sse", {"path": "/tools/"}, "", "/tools/messages"),
        ("/app/sse", {}, "/app", "/app/messages"),
    ],
)
async def test_the_first_event_tells_where_to_send(path: str, options: Any, root: str, address: str) -> None:
    pair = Pair(endpoint(**options), path, root_path=root)
    told = await pair.address()
    assert pair.stream.status == 200
    assert pair.stream.streaming
    assert told.partition("?")[0] == address
    assert told.partition("?session_id=")[2]
    accepted = await pair.send(request("ping"))
    assert (accepted.status, accepted.body) == (202, b"")
    assert (await pair.hears(1))[0]["result"] == {}
    await pair.leave()


@pytest.mark.parametrize("revision", [FIRST, "2025-03-26", LATEST_HANDSHAKE])
async def test_a_conversation(revision: str) -> None:
    stand = FakeService()
    pair = await Pair(endpoint(stand)).open(revision)
    await pair.send(request(id=5, text="hello"))
    answer = (await pair.hears(2))[1]
    assert (answer["id"], answer["result"]["content"][0]["text"]) == (5, "hello")
    assert stand.seen[0].caller.protocol_version == revision
    await pair.leave()


async def test_modern_requests_pass_too() -> None:
    pair = Pair(endpoint())
    await pair.send(stateless_request(text="x"))
    assert (await pair.hears(1))[0]["result"]["resultType"] == "complete"
    await pair.leave()


async def test_questions_changes_and_words_on_the_way_come_on_the_stream() -> None:
    async def work(exchange: IncomingExchange) -> Any:
        assert exchange.ask is not None
        await exchange.notify("notifications/message", {"n": 1})
        return text_result(json.dumps(await exchange.ask("roots/list", {})))

    stand = FakeService(work)
    pair = await Pair(endpoint(stand)).open()
    await pair.send(request(id=5))
    question = (await pair.hears(3))[2]
    await pair.send({"jsonrpc": "2.0", "id": question["id"], "result": {"x": 1}})
    assert (await pair.hears(4))[3]["result"]["content"][0]["text"] == '{"x": 1}'
    stand.publish("notifications/tools/list_changed")
    assert (await pair.hears(5))[4]["method"] == "notifications/tools/list_changed"
    await pair.leave()


@pytest.mark.parametrize("raw", [b"{", b"", b"5"])
async def test_an_invalid_message_is_refused_on_the_stream(raw: bytes) -> None:
    pair = Pair(endpoint())
    path, _, query = (await pair.address()).partition("?")
    accepted = await AsgiRequest(pair.app, "POST", path, raw, query_string=query.encode()).wait_done()
    assert accepted.status == 202
    assert (await pair.hears(1))[0]["error"]["code"] in (-32700, -32600)
    await pair.leave()


# Who may send


@pytest.mark.parametrize("query", [b"", b"session_id=", b"session_id=guessed", b"sessionId=x", b"\xff"])
async def test_an_unissued_address_is_not_found(query: bytes) -> None:
    stand = FakeService()
    pair = Pair(endpoint(stand))
    await pair.address()
    assert (await post(pair.app, stateless_request(), path="/messages", query_string=query)).status == 404
    assert stand.seen == []
    await pair.leave()


async def test_both_spellings_of_the_parameter_are_read() -> None:
    pair = Pair(endpoint())
    id = (await pair.address()).partition("session_id=")[2]
    assert (
        await post(pair.app, request("ping"), path="/messages", query_string=f"sessionId={id}".encode())
    ).status == 202
    await pair.hears(1)
    await pair.leave()


async def test_an_address_is_valid_only_for_its_principal() -> None:
    async def principal(headers: Any) -> str | None:
        return headers.get(b"authorization", b"").decode() or None

    stand = FakeService()
    pair = Pair(endpoint(stand, authenticate=principal), headers={"authorization": "alice"})
    assert (await pair.send(stateless_request())).status == 202
    assert stand.seen[0].caller.principal == "alice"
    path, _, query = (await pair.address()).partition("?")
    for other in ({"authorization": "bob"}, {}):
        assert (await post(pair.app, stateless_request(), other, path=path, query_string=query.encode())).status == 404
    assert len(stand.seen) == 1
    await pair.leave()


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("POST", "/sse", 405, "GET"),
        ("DELETE", "/sse", 405, "GET"),
        ("GET", "/messages", 405, "POST"),
        ("DELETE", "/messages", 405, "POST"),
    ],
)
async def test_each_address_has_its_method(method: str, path: str, status: int, allow: str) -> None:
    answer = await AsgiRequest(endpoint(), method, path, b"{}").wait_done()
    assert (answer.status, answer.headers["allow"]) == (status, allow)


async def test_the_head_is_screened_as_everywhere() -> None:
    app = endpoint()
    for path in ("/sse", "/messages"):
        assert (await AsgiRequest(app, "GET", path, headers={"host": "attacker.example"}).wait_done()).status == 421
        assert (
            await AsgiRequest(app, "GET", path, headers={"origin": "http://attacker.example"}).wait_done()
        ).status == 403


@pytest.mark.parametrize(("kind", "size", "status"), [("text/plain", 2, 415), ("application/json", 101, 413)])
async def test_a_body_is_screened_as_everywhere(kind: str, size: int, status: int) -> None:
    pair = Pair(endpoint(FakeService(max_body_bytes=100)))
    path, _, query = (await pair.address()).partition("?")
    headers = {"content-type": kind}
    answer = await AsgiRequest(pair.app, "POST", path, b"x" * size, headers, query_string=query.encode()).wait_done()
    assert answer.status == status
    await pair.leave()


@pytest.mark.parametrize("options", [{"http_sse": False}, {"sessions": False}])
async def test_it_can_be_left_out(options: dict[str, Any]) -> None:
    assert (await AsgiRequest(endpoint(**options), "GET", "/sse").wait_done()).status == 404
    assert (
        await AsgiRequest(endpoint(FakeService(protocol_versions=(NEWEST,))), "GET", "/sse").wait_done()
    ).status == 404


async def test_pages_that_are_named_may_read() -> None:
    app = endpoint(cors_origins=["https://app.example"])
    stream = AsgiRequest(app, "GET", "/sse", headers={"origin": "https://app.example"})
    await wait_until(lambda: stream.sent)
    assert stream.headers["access-control-allow-origin"] == "https://app.example"
    stream.disconnect()
    await stream.wait_done()


# The end


async def test_a_client_that_leaves_stops_its_work() -> None:
    held = PausedWork()
    stand = FakeService(held)
    pair = await Pair(endpoint(stand)).open()
    await pair.send(request(id=5, text="a"))
    await wait_until(lambda: held.started)
    await pair.leave()
    assert held.outcomes == {"a": "gone"}
    assert stand.listeners == []
    assert pair.app.stats().sessions == 0
    assert (await pair.send(request("ping"))).status == 404


async def test_a_farewell_ends_the_stream_after_its_answer() -> None:
    pair = await Pair(endpoint()).open()
    await pair.send(request("shutdown", 9))
    await pair.stream.wait_done()
    assert pair.stream.complete
    assert pair.heard[-1] == {"jsonrpc": "2.0", "id": 9, "result": None}
    await run_pending_callbacks()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_closing_ends_all_streams() -> None:
    app = endpoint()
    pairs = [await Pair(app).open() for _ in range(3)]
    await app.close()
    for pair in pairs:
        await pair.stream.wait_done()
        assert pair.stream.complete


async def test_clients_have_a_limit() -> None:
    app = endpoint(FakeService(max_sessions=1))
    pair = Pair(app)
    await pair.address()
    refused = await AsgiRequest(app, "GET", "/sse").wait_done()
    assert (refused.status, refused.headers["retry-after"]) == (503, "60")
    await pair.leave()
    again = Pair(app)
    await again.address()
    await again.leave()


async def test_a_quiet_stream_shows_signs_of_life() -> None:
    pair = Pair(endpoint(FakeService(keep_alive_interval=0.005)))
    await wait_until(lambda: pair.stream.sent and pair.stream.body.count(b"\n:") >= 2)
    await pair.leave()


async def test_messages_wait_for_a_client_that_does_not_read() -> None:
    count = 0

    async def work(exchange: IncomingExchange) -> Any:
        nonlocal count
        for _ in range(100):
            await exchange.notify("notifications/message", {"x": "y" * 100_000})
            count += 1
        return text_result("done")

    pair = await Pair(endpoint(FakeService(work))).open()
    pair.stream.writable.clear()
    sending = asyncio.create_task(pair.send(request(id=5)))
    await run_pending_callbacks(200)
    assert 0 < count < 50
    pair.stream.writable.set()
    await sending
    await pair.hears(102)
    assert count == 100
    await pair.leave()
