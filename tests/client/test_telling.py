"""What a client says without being asked a question: notifications, and nothing a revision does not let it say."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dovetail import Client

FOUND = {"supportedVersions": ["2026-07-28"], "capabilities": {}, "ttlMs": 0, "cacheScope": "private"}


class Recorder:
    """A stateless server over HTTP that writes down what it is told, and asks when it should not."""

    def __init__(self) -> None:
        self.heard: list[tuple[dict[str, str], Any]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := (await reader.readuntil(b"\r\n\r\n")).decode():
            headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
            message = json.loads(await reader.readexactly(int(headers["content-length"])))
            self.heard.append((headers, message))
            writer.write(self.reply(message))

    def reply(self, message: Any) -> bytes:
        if "id" not in message:
            return b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
        question = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": {"resultType": "complete", **FOUND}}
        said = (question, answer) if len(self.heard) > 1 else (answer,)  # only once it is known what is spoken
        events = "".join(f"data: {json.dumps(one)}\n\n" for one in said).encode()
        return (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(events) + events
        )


@pytest.fixture
async def recorder() -> AsyncIterator[tuple[Recorder, str]]:
    recorder = Recorder()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await recorder.serve(reader, writer)
        except asyncio.IncompleteReadError:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield recorder, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"


async def test_a_notification_is_mirrored_in_headers(recorder: tuple[Recorder, str]) -> None:
    server, url = recorder
    async with Client(url) as client:
        await client.notify("notifications/example.com/moved", {"to": "Oslo"})
    headers, message = server.heard[-1]
    assert message == {"jsonrpc": "2.0", "method": "notifications/example.com/moved", "params": {"to": "Oslo"}}
    assert headers["mcp-method"] == "notifications/example.com/moved"
    assert headers["mcp-protocol-version"] == "2026-07-28"


async def test_a_stateless_server_that_asks_is_not_answered(
    recorder: tuple[Recorder, str], caplog: pytest.LogCaptureFixture
) -> None:
    server, url = recorder
    with caplog.at_level(logging.WARNING, "dovetail"):
        async with Client(url) as client:
            await client.ping()
            await client.ping()
    assert [message["method"] for _, message in server.heard] == ["server/discover"] * 3
    assert "the request ping, which is not for servers in this revision" in caplog.text
