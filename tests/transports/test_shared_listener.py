"""Test how several workers share the connections of one socket. Here, the workers run in one event loop."""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.transports.http1 import shared_listener
from dovetail.transports.http1.http_listener import bind_socket
from dovetail.transports.http1.shared_listener import SharedListener
from dovetail.transports.http1.tls_context import create_tls_context
from support.certificates import write_certificate
from support.fake_service import wait_until

CLIENTS = 40


class Greeter(asyncio.Protocol):
    """Sends the name of its worker."""

    def __init__(self, name: bytes) -> None:
        self._name = name

    def connection_made(self, transport: Any) -> None:
        transport.write(self._name)
        transport.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with bind_socket("127.0.0.1", 0) as listener:
        yield listener


def start_worker(listener: socket.socket, name: bytes, **tls_options: Any) -> SharedListener:
    return SharedListener(listener.dup(), lambda: Greeter(name), tls_options)


async def read_name(port: int, **options: Any) -> bytes:
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, **options)
        name = await reader.read()
        writer.close()
        return name


async def test_workers_share_a_burst_of_connections(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(CLIENTS)]
    workers = [start_worker(listener, name) for name in (b"a", b"b")]
    names = [(await asyncio.to_thread(client.recv, 10)) for client in clients]
    assert {*names} == {b"a", b"b"}
    assert min(names.count(b"a"), names.count(b"b")) >= CLIENTS // 4
    for client in clients:
        client.close()
    for worker in workers:
        worker.close()


async def test_a_closed_listener_leaves_connections_to_the_others(listener: socket.socket) -> None:
    first, second = (start_worker(listener, name) for name in (b"a", b"b"))
    first.close()
    first.close()
    port = listener.getsockname()[1]
    assert [await read_name(port) for _ in range(5)] == [b"b"] * 5
    second.close()


async def test_a_listener_continues_after_the_system_had_no_file_descriptors(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_listener, "_RETRY_DELAY_S", 0.01)
    failures = [errno.EMFILE, errno.ENFILE]

    class FullSocket(socket.socket):
        def accept(self) -> Any:
            if failures:
                raise OSError(failures.pop(), "too many open files")
            return super().accept()

    port = listener.getsockname()[1]
    worker = SharedListener(FullSocket(fileno=listener.detach()), lambda: Greeter(b"a"), {})
    assert await read_name(port) == b"a"
    assert failures == []
    worker.close()


async def test_a_failed_tls_handshake_does_not_stop_the_listener(
    listener: socket.socket, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = write_certificate(tmp_path)
    worker = start_worker(listener, b"a", ssl=create_tls_context(certificate, key))
    port = listener.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        client.setblocking(False)
        await wait_until(lambda: is_closed(client))
    assert await read_name(port, ssl=ssl.create_default_context(cafile=certificate)) == b"a"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    worker.close()


def is_closed(client: socket.socket) -> bool:
    try:
        while client.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True
