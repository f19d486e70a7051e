"""Test connecting to the address that answers first."""

import asyncio
import socket
from typing import Any

import pytest

from dovetail.transports.http_client.dialer import Address, dial
from support.fake_service import wait_until
from transports.raw_server import ServerConnection, run_raw_server

BOTH_LOOPS = True
SILENT = (socket.AF_INET, ("192.0.2.1", 1))


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def stay(visit: ServerConnection) -> None:
    await visit.wait_closed()


class Silence:
    """An address that never answers, and the addresses of every name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self.asked = self.left = 0
        self.addresses: list[Address] = []
        self._connect, self._resolve = loop.sock_connect, loop.getaddrinfo
        monkeypatch.setattr(loop, "sock_connect", self.connect)
        monkeypatch.setattr(loop, "getaddrinfo", self.resolve)

    async def resolve(self, host: Any, port: Any, **options: Any) -> list[Any]:
        if host != "name":
            return await self._resolve(host, port, **options)
        return [(family, socket.SOCK_STREAM, 0, "", address) for family, address in self.addresses]

    async def connect(self, one: socket.socket, address: Any) -> None:
        if address != SILENT[1]:
            return await self._connect(one, address)
        self.asked += 1
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.left += 1


@pytest.fixture
async def silence(monkeypatch: pytest.MonkeyPatch) -> Silence:
    return Silence(monkeypatch)


async def test_a_literal_and_a_name() -> None:
    async with run_raw_server(stay) as here:
        for host in ("127.0.0.1", "localhost"):
            one = await dial(host, here.port)
            assert one.getpeername() == ("127.0.0.1", here.port)
            assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            one.close()


async def test_refused() -> None:
    for host in ("127.0.0.1", "localhost"):
        with pytest.raises(ConnectionRefusedError):
            await dial(host, unused_port())


async def test_the_next_address_is_tried_when_one_is_silent(silence: Silence) -> None:
    async with run_raw_server(stay) as here:
        silence.addresses = [SILENT, (socket.AF_INET, ("127.0.0.1", here.port))]
        one = await dial("name", here.port)
        assert one.getpeername() == ("127.0.0.1", here.port)
        assert silence.asked == silence.left == 1
        one.close()


async def test_a_later_address_is_not_asked_when_the_first_answers(silence: Silence) -> None:
    async with run_raw_server(stay) as here:
        silence.addresses = [(socket.AF_INET, ("127.0.0.1", here.port)), SILENT]
        one = await dial("name", here.port)
        assert not silence.asked
        one.close()


async def test_a_refusal_is_followed_at_once_and_named_when_all_refuse(silence: Silence) -> None:
    refusing: Address = (socket.AF_INET, ("127.0.0.1", unused_port()))
    async with run_raw_server(stay) as here:
        silence.addresses = [refusing, (socket.AF_INET, ("127.0.0.1", here.port))]
        (await dial("name", here.port)).close()
    silence.addresses = [refusing, refusing]
    with pytest.raises(ConnectionRefusedError):
        await dial("name", 1)


async def test_cancelling_leaves_nothing_open(silence: Silence) -> None:
    silence.addresses = [SILENT, SILENT]
    task = asyncio.create_task(dial("name", 1))
    await wait_until(lambda: silence.asked == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert silence.left == 2
