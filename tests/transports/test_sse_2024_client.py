"""Test the client of the HTTP+SSE transport: the POST address, its end, and the errors."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dovetail.errors import ConnectionLost, HTTPStatusError, InvalidResult, MCPError, NotMCPServer
from dovetail.protocol.interfaces.client_transport import EncodedRequest
from dovetail.protocol.limits import ClientLimits, Timeouts
from dovetail.transports.http_client.sse_2024_client import SSE2024Client
from support.fake_service import wait_until
from support.scripted_server import STREAM_HEAD, ScriptedServer, encode_event, encode_http_reply, serve_over_http
from transports.test_memory import RecordingInbox

ACCEPTED = encode_http_reply(b"", status=202)
END = b""


class Old:
    """A server of 2024: what is put into `events` goes out on the stream, END ends it."""

    def __init__(self, address: str = "/post?session=1", **reactions: Any) -> None:
        self.events: asyncio.Queue[bytes] = asyncio.Queue()
        if address:
            self.events.put_nowait(encode_event(address.encode(), event="endpoint"))
        self.script = ScriptedServer("handshake", reactions, http_get_reaction=self._stream)

    async def _stream(self) -> AsyncIterator[bytes]:
        return self._sent()

    async def _sent(self) -> AsyncIterator[bytes]:
        yield STREAM_HEAD
        while (one := await self.events.get()) != END:
            yield one

    def say(self, message: Any) -> None:
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.events.put_nowait(encode_event(data, event="message"))

    def answering(self, message: dict[str, Any]) -> bytes:
        """A reaction: the answer comes on the stream."""
        self.say({"jsonrpc": "2.0", "id": message["id"], "result": {"echo": message["method"]}})
        return ACCEPTED


def caller(at: str, **times: float) -> SSE2024Client:
    return SSE2024Client(at, ClientLimits(max_response_bytes=5000), Timeouts(**times))


def asked(id: int, method: str = "go") -> EncodedRequest:
    return EncodedRequest(id, method, json.dumps({"jsonrpc": "2.0", "id": id, "method": method}).encode())


async def test_answers_come_on_the_stream_each_to_its_request() -> None:
    old, inbox = Old(), RecordingInbox()
    old.script.reactions = {"a": old.answering, "b": old.answering}
    async with serve_over_http(old.script) as at:
        one = caller(at)
        await one.open(inbox)
        found = await asyncio.gather(one.exchange(asked(1, "a")), one.exchange(asked(2, "b")))
        assert [json.loads(bytes(answer.result))["echo"] for answer in found] == ["a", "b"]  # pyright: ignore[reportArgumentType]
        old.say({"jsonrpc": "2.0", "method": "notifications/x"})
        await wait_until(lambda: inbox.messages)
        assert inbox.messages[0].method == "notifications/x"
        await one.close()


@pytest.mark.parametrize("address", ["http://example.com/post", "//example.com/post", "http://[", "file:///etc"])
async def test_an_address_of_another_origin_is_not_posted_to(address: str) -> None:
    old = Old(address)
    async with serve_over_http(old.script) as at:
        one = caller(at)
        with pytest.raises(NotMCPServer, match=re.escape(address)):
            await one.open(RecordingInbox())
        assert not old.script.received
        await one.close()


async def test_a_stream_that_names_no_address_is_not_waited_for() -> None:
    old = Old("")
    async with serve_over_http(old.script) as at:
        one = caller(at, connect=0.1)
        with pytest.raises(NotMCPServer):
            await one.open(RecordingInbox())
        await one.close()


async def test_a_stream_that_ends_before_it_names_one() -> None:
    old = Old("")
    old.events.put_nowait(END)
    async with serve_over_http(old.script) as at:
        one = caller(at)
        with pytest.raises(NotMCPServer):
            await one.open(RecordingInbox())
        await one.close()


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (encode_http_reply(b"no", status=404), HTTPStatusError),
        (encode_http_reply(b"<html>", kind="text/html"), NotMCPServer),
        (encode_http_reply(b"{}"), NotMCPServer),
    ],
)
async def test_a_response_that_is_not_a_stream_is_reported(reply: bytes, kind: type[MCPError]) -> None:
    async with serve_over_http(ScriptedServer("handshake", http_get_reaction=reply)) as at:
        one = caller(at)
        with pytest.raises(kind):
            await one.open(RecordingInbox())
        await one.close()


async def test_the_end_of_the_stream_reaches_current_and_later_waiters() -> None:
    old, inbox = Old(go=ACCEPTED), RecordingInbox()
    async with serve_over_http(old.script) as at:
        one = caller(at)
        await one.open(inbox)
        waiting = asyncio.create_task(one.exchange(asked(1)))
        await wait_until(lambda: old.script.count("go"))
        old.events.put_nowait(END)
        with pytest.raises(ConnectionLost) as sent:
            await waiting
        assert sent.value.maybe_sent
        with pytest.raises(ConnectionLost) as unsent:
            await one.exchange(asked(2))
        assert not unsent.value.maybe_sent
        assert len(inbox.losses) == 1
        await one.close()
    assert old.script.count("go") == 1


async def test_a_post_that_is_refused_fails_its_request_and_no_other() -> None:
    refusal = json.dumps({"jsonrpc": "2.0", "error": {"code": -1, "message": "not today"}}).encode()
    old = Old(bad=encode_http_reply(refusal, status=400), worse=encode_http_reply(b"", status=500))
    old.script.reactions = {**old.script.reactions, "good": old.answering}
    async with serve_over_http(old.script) as at:
        one = caller(at)
        await one.open(RecordingInbox())
        with pytest.raises(InvalidResult, match="not today"):
            await one.exchange(asked(1, "bad"))
        with pytest.raises(HTTPStatusError):
            await one.exchange(asked(2, "worse"))
        assert (await one.exchange(asked(3, "good"))).id == 3
        await one.close()


async def test_a_malformed_answer_fails_its_request_at_once() -> None:
    old = Old()

    def broken(message: dict[str, Any]) -> bytes:
        old.say(b'{"jsonrpc":"2.0","id":%d,"error":"no"}' % message["id"])
        return ACCEPTED

    old.script.reactions = {"go": broken}
    async with serve_over_http(old.script) as at:
        one = caller(at)
        await one.open(RecordingInbox())
        async with asyncio.timeout(10):
            with pytest.raises(InvalidResult, match=r"\$\.error"):
                await one.exchange(asked(1))
        await one.close()


async def test_something_too_large_ends_it() -> None:
    old, inbox = Old(), RecordingInbox()
    async with serve_over_http(old.script) as at:
        one = caller(at)
        await one.open(inbox)
        old.say(b"x" * 6000)
        await wait_until(lambda: inbox.losses)
        (loss,) = inbox.losses
        assert "5000" in str(loss)
        await one.close()
