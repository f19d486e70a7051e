"""Test the notifications a client sends and receives, as each protocol version allows."""

import asyncio
import logging
import sys

import pytest

from dovetail import Client, Timeouts
from dovetail.client.client import get_session
from support.fake_service import wait_until
from support.mentions import mentions
from support.scripted_http_server import (
    ACCEPTED,
    EVENTS,
    REFUSED,
    STREAM,
    HttpRequest,
    ScriptedHttpServer,
    create_result_response,
    encode_reply,
    run_scripted_server,
)
from support.scripted_server import Messages, ScriptedServer, serve_on_socket, text_result

URI = "city://Oslo"


# The stateless era


async def stateless(server: ScriptedHttpServer, told: HttpRequest) -> bytes:
    """Ask where no server may ask, once it is known what is spoken."""
    if "id" not in told.message:
        return ACCEPTED
    found = create_result_response(told, resultType="complete", supportedVersions=["2026-07-28"], capabilities={})
    question = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
    return encode_reply(question, found, kind=EVENTS) if len(server.told) > 1 else encode_reply(found)


async def test_a_notification_is_mirrored_in_headers() -> None:
    async with run_scripted_server(stateless) as server, Client(server.url) as client:
        await client.notify("notifications/example.com/moved", {"to": "Oslo"})
        _, headers, message, *_ = server.told[-1]
    assert message == {"jsonrpc": "2.0", "method": "notifications/example.com/moved", "params": {"to": "Oslo"}}
    assert headers["mcp-method"] == "notifications/example.com/moved"
    assert headers["mcp-protocol-version"] == "2026-07-28"


async def test_a_stateless_server_that_asks_is_not_answered(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "dovetail"):
        async with run_scripted_server(stateless) as server, Client(server.url) as client:
            await client.ping()
            await client.ping()
    assert [told.message["method"] for told in server.told] == ["server/discover"] * 3
    assert mentions(caplog.text, "ping")


# The handshake era: what is said unasked comes on a stream of its own


class Slow:
    """A server that takes its time to open the stream, or never says that it is open."""

    def __init__(self, *, opens: bool) -> None:
        self._opens = opens
        self.done: list[str] = []

    async def answer(self, _: ScriptedHttpServer, told: HttpRequest) -> bytes:
        if told.verb != "POST":
            await asyncio.sleep(0.1 if self._opens else 3600)
            self.done.append("stream")
            return STREAM
        method = told.message["method"]
        self.done.append(method)
        if method != "initialize":
            return encode_reply(create_result_response(told)) if "id" in told.message else ACCEPTED
        offered = {"resources": {"subscribe": True}}
        about = {"name": "slow", "version": "1"}
        return encode_reply(
            create_result_response(told, protocolVersion="2025-11-25", capabilities=offered, serverInfo=about)
        )


async def test_nothing_is_subscribed_before_it_could_be_heard() -> None:
    slow = Slow(opens=True)
    async with run_scripted_server(slow.answer) as server, Client(server.url, protocol_version="handshake") as client:
        async with client.listen(uris=[URI]):
            pass
        await client.subscribe_resource(URI)
    assert slow.done[:4] == ["initialize", "notifications/initialized", "stream", "resources/subscribe"]


async def test_a_stream_that_never_opens_is_not_waited_for() -> None:
    slow = Slow(opens=False)
    limits = Timeouts(discover=0.05)
    async with (
        run_scripted_server(slow.answer) as server,
        Client(server.url, protocol_version="handshake", timeout=limits) as client,
    ):
        await client.subscribe_resource(URI)
    assert slow.done[-1] == "resources/subscribe"


class Unavailable:
    """A server that asks a question, and refuses or drops the first answers, as a cluster without shared state does."""

    def __init__(self) -> None:
        self.answers = 0

    async def answer(self, _: ScriptedHttpServer, told: HttpRequest) -> bytes:
        if told.verb != "POST":
            return REFUSED
        method = told.message.get("method")
        if method == "initialize":
            about = {"name": "unavailable", "version": "1"}
            fields = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": about}
            return encode_reply(create_result_response(told, **fields))
        if method == "tools/call":
            question = {"jsonrpc": "2.0", "id": "q", "method": "roots/list"}
            return encode_reply(question, create_result_response(told, content=[]), kind=EVENTS)
        if "result" in told.message:
            self.answers += 1
            if self.answers == 1:
                error = {"jsonrpc": "2.0", "error": {"code": -32600, "message": "not available"}}
                return encode_reply(error, status="503 Service Unavailable")
            if self.answers == 2:
                raise ConnectionResetError
        return ACCEPTED


async def test_an_answer_is_sent_until_it_arrives(caplog: pytest.LogCaptureFixture) -> None:
    unavailable = Unavailable()
    async with (
        run_scripted_server(unavailable.answer) as server,
        Client(server.url, protocol_version="handshake", roots=["/"]) as client,
    ):
        await client.call_tool("ask")
        await wait_until(lambda: unavailable.answers == 3)
        await client.call_tool("ask")
        await wait_until(lambda: unavailable.answers == 4)
    assert caplog.text == ""


# Leaving

LATE = """
import sys, json
asked = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "roots/list"})
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        about = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "late", "version": "1"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": about}), flush=True)
print(asked, flush=True)
"""


async def test_a_request_after_closing_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "dovetail"):
        async with Client([sys.executable, "-c", LATE], protocol_version="handshake", roots=["/"]):
            pass
    assert caplog.text == ""


async def test_a_server_that_reads_no_answers_gets_no_more_of_them(caplog: pytest.LogCaptureFixture) -> None:
    """Each would stay in memory, and asking costs the server less than that costs us."""
    pings = b"".join(b'{"jsonrpc":"2.0","id":%d,"method":"ping"}\n' % number for number in range(5000))
    script = ScriptedServer("handshake", {"tools/call": Messages([pings, text_result()])})
    async with serve_on_socket(script) as at, Client(at) as one:
        # Private: a server that reads nothing takes megabytes before the system holds an answer back.
        conversation = get_session(one).current
        assert conversation is not None
        stuck = asyncio.Event()
        conversation.transport.drain = stuck.wait  # pyright: ignore[reportAttributeAccessIssue]
        assert await one.call("go") == "ok"
        waiting = len(asyncio.all_tasks())
        assert waiting < 1000
        assert mentions(caplog.text, "ping")
        stuck.set()
