"""Test Unix sockets and TCP: many connections, each with its own conversation."""

import asyncio
import json
import re
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dovetail.log import ThrottledLog
from dovetail.transports import operator_log, socket_server
from dovetail.transports.socket_server import serve_socket
from support.fake_service import FakeService, PausedWork, initialize, request, stateless_request, wait_until

unixlike = pytest.mark.skipif(sys.platform == "win32", reason="platform: no Unix sockets")
each_kind = pytest.mark.parametrize("kind", ["tcp", pytest.param("unix", marks=unixlike)])


def gone(path: str) -> bool:
    return not Path(path).exists()


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *messages: Any) -> None:
        self.writer.write(b"".join(json.dumps(message).encode() + b"\n" for message in messages))

    async def answer(self) -> Any:
        async with asyncio.timeout(10):
            return json.loads(await self.reader.readline())

    async def ended(self) -> bool:
        async with asyncio.timeout(10):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return


class Environment:
    def __init__(self, kind: str, folder: Path, stand: FakeService) -> None:
        self.kind, self.path, self.stand = kind, str(folder / "s"), stand
        self.server: asyncio.Server | None = None
        self.open: list[Connection] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Environment"]:
        options: Any = {"path": self.path} if self.kind == "unix" else {"host": "127.0.0.1", "port": 0}
        async with serve_socket(self.stand, **options) as self.server:
            yield self
        for connection in self.open:
            await connection.close()

    @asynccontextmanager
    async def connected(self, path: str) -> AsyncIterator[Connection]:
        connection = Connection(*await asyncio.open_unix_connection(path))
        yield connection
        await connection.close()

    async def connect(self) -> Connection:
        assert self.server is not None
        if self.kind == "unix":
            streams = await asyncio.open_unix_connection(self.path)
        else:
            streams = await asyncio.open_connection(*self.server.sockets[0].getsockname()[:2])
        self.open.append(Connection(*streams))
        return self.open[-1]


@each_kind
async def test_connections_do_not_know_each_other(kind: str, tmp_path: Path) -> None:
    async with Environment(kind, tmp_path, FakeService()).serving() as environment:
        first, second = await environment.connect(), await environment.connect()
        first.send(initialize())
        assert (await first.answer())["id"] == 0
        first.send(request(id=1, text="a"))
        second.send(request(id=1, text="b"))
        assert (await first.answer())["result"]["content"][0]["text"] == "a"
        assert (await second.answer())["error"]["code"] == -32600


@each_kind
async def test_a_client_that_leaves_stops_its_work_and_no_other(kind: str, tmp_path: Path) -> None:
    held = PausedWork()
    async with Environment(kind, tmp_path, FakeService(held, drain_timeout=0.01)).serving() as environment:
        first, second = await environment.connect(), await environment.connect()
        first.send(stateless_request(id=1, text="a"))
        second.send(stateless_request(id=1, text="b"))
        await wait_until(lambda: len(held.started) == 2)
        await first.close()
        await wait_until(lambda: "a" in held.outcomes)
        assert held.outcomes == {"a": "gone"}
        held.release("b")
        assert (await second.answer())["result"]["content"][0]["text"] == "b"


@each_kind
async def test_a_client_that_says_no_more_still_hears_its_answers(kind: str, tmp_path: Path) -> None:
    held = PausedWork()
    async with Environment(kind, tmp_path, FakeService(held)).serving() as environment:
        connection = await environment.connect()
        connection.send(stateless_request(id=1, text="a"))
        await wait_until(lambda: len(held.started) == 1)
        connection.writer.write_eof()
        held.release("a")
        assert (await connection.answer())["result"]["content"][0]["text"] == "a"


@each_kind
async def test_what_begins_like_http_is_closed_unheard(kind: str, tmp_path: Path) -> None:
    """A web page could have a browser send this; the body would be a message like any other."""
    stand = FakeService()
    async with Environment(kind, tmp_path, stand).serving() as environment:
        connection = await environment.connect()
        connection.writer.write(b"POST / HTTP/1.1\r\nOrigin: https://evil.example\r\n\r\n")
        connection.send(stateless_request(id=1, text="a"))
        assert await connection.ended()
    assert stand.seen == []


@unixlike
async def test_a_socket_in_use_is_not_taken_over(tmp_path: Path) -> None:
    async with Environment("unix", tmp_path, FakeService()).serving() as environment:
        with pytest.raises(OSError, match=re.escape(str(environment.path))):
            async with serve_socket(FakeService(), path=environment.path):
                pass
        connection = await environment.connect()
        connection.send(stateless_request(id=1, text="a"))
        assert (await connection.answer())["id"] == 1
    assert gone(environment.path)


@each_kind
async def test_a_farewell_closes_the_connection(kind: str, tmp_path: Path) -> None:
    async with Environment(kind, tmp_path, FakeService()).serving() as environment:
        connection = await environment.connect()
        connection.send(initialize(), request("shutdown", 1))
        await connection.answer()
        assert (await connection.answer())["result"] is None
        assert await connection.ended()


@each_kind
async def test_the_end_closes_every_connection(kind: str, tmp_path: Path) -> None:
    held = PausedWork()
    async with Environment(kind, tmp_path, FakeService(held)).serving() as environment:
        connections = [await environment.connect() for _ in range(3)]
        for connection in connections:
            connection.send(stateless_request(text="a"))
        await wait_until(lambda: len(held.started) == 3)
    assert held.outcomes == {"a": "gone"}
    for connection in connections:
        assert await connection.ended()


@each_kind
async def test_one_connection_too_many_is_closed_at_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_server, "MAX_CONNECTIONS", 1)
    held = PausedWork()
    async with Environment(kind, tmp_path, FakeService(held)).serving() as environment:
        first = await environment.connect()
        first.send(stateless_request(text="a"))
        await wait_until(lambda: held.started)
        second = await environment.connect()
        assert await second.ended()
        held.release("a")
        assert "result" in await first.answer()


@each_kind
async def test_the_connection_that_was_silent_longest_gives_way(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(socket_server, "MAX_CONNECTIONS", 3)
    async with Environment(kind, tmp_path, FakeService()).serving() as environment:
        active, silent, incomplete = [await environment.connect() for _ in range(3)]
        incomplete.writer.write(b"{")
        active.send(stateless_request())
        await active.answer()
        for loser in (silent, incomplete):
            newcomer = await environment.connect()
            newcomer.send(stateless_request())
            assert "result" in await newcomer.answer()
            assert await loser.ended()
        active.send(stateless_request())
        assert "result" in await active.answer()
    assert len([record for record in caplog.records if record.name == "dovetail"]) == 1


@each_kind
async def test_a_client_that_sends_no_message_is_disconnected(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Environment(kind, tmp_path, FakeService(header_timeout=0.02)).serving() as environment:
        silent, incomplete = await environment.connect(), await environment.connect()
        incomplete.writer.write(b'{"jsonrpc"')
        assert await silent.ended()
        assert await incomplete.ended()
    assert len([record for record in caplog.records if record.name == "dovetail"]) == 1


@each_kind
async def test_a_client_may_be_silent_after_its_first_message(kind: str, tmp_path: Path) -> None:
    async with Environment(kind, tmp_path, FakeService(header_timeout=0.05)).serving() as environment:
        connection, silent = await environment.connect(), await environment.connect()
        connection.send(stateless_request())
        await connection.answer()
        assert await silent.ended()  # both were connected for the same time
        connection.send(stateless_request())
        assert "result" in await connection.answer()


async def test_the_last_descriptors_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(operator_log, "_descriptor_warning", ThrottledLog())
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (8, 8))
    async with Environment("tcp", tmp_path, FakeService()).serving() as environment:
        for _ in range(3):
            connection = await environment.connect()
            connection.send(stateless_request())
            await connection.answer()
    assert len([record for record in caplog.records if "descriptors" in record.getMessage()]) == 1


@each_kind
async def test_a_client_that_says_no_more_gets_what_was_running(kind: str, tmp_path: Path) -> None:
    held = PausedWork()
    async with Environment(kind, tmp_path, FakeService(held)).serving() as environment:
        connection = await environment.connect()
        connection.send(stateless_request(text="a"))
        connection.writer.write_eof()
        await wait_until(lambda: held.started)
        held.release("a")
        assert (await connection.answer())["result"]["content"][0]["text"] == "a"
        assert await connection.ended()


@each_kind
@pytest.mark.parametrize("first", [b"POST / HTTP/1.1\r\n", b"GET /", b"OPTIONS "])
async def test_a_web_page_gets_nowhere(kind: str, first: bytes, tmp_path: Path) -> None:
    stand = FakeService()
    async with Environment(kind, tmp_path, stand).serving() as environment:
        connection = await environment.connect()
        connection.writer.write(first + b"host: localhost\r\n\r\n" + json.dumps(stateless_request()).encode() + b"\n")
        assert await connection.ended()
    assert stand.seen == []


@each_kind
async def test_only_the_beginning_of_a_connection_is_looked_at_for_web_pages(kind: str, tmp_path: Path) -> None:
    async with Environment(kind, tmp_path, FakeService()).serving() as environment:
        connection = await environment.connect()
        connection.send(stateless_request())
        await connection.answer()
        connection.writer.write(b"GET ready\n")
        assert (await connection.answer())["error"]["code"] == -32700
        connection.send(stateless_request())
        await connection.answer()


@unixlike
async def test_a_path_in_use_is_not_taken_over(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    async with serve_socket(FakeService(), path=path):
        with pytest.raises(OSError, match=re.escape(path)):
            async with serve_socket(FakeService(), path=path):
                pass
        async with Environment("unix", tmp_path, FakeService()).connected(path) as connection:
            connection.send(stateless_request())
            await connection.answer()


@unixlike
async def test_a_path_left_over_is_used_again_and_none_is_left(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as leftover:
        leftover.bind(str(path))
    assert path.exists()
    async with serve_socket(FakeService(), path=str(path)):
        assert path.exists()
    assert not path.exists()


async def test_tcp_listens_on_loopback_by_default() -> None:
    async with serve_socket(FakeService()) as server:
        host, port = server.sockets[0].getsockname()
        assert (host, port > 0) == ("127.0.0.1", True)
