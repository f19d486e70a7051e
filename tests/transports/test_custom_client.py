"""Test clients over a transport of the user."""

import asyncio
from collections.abc import Callable

import pytest

from dovetail import Client, CustomTarget, Server, Timeouts
from dovetail.errors import ConnectError, ConnectionLost, OutcomeUnknown

INITIALIZE_TIMEOUT_S = 0.05

app = Server("custom")


@app.tool
async def double(n: int) -> int:
    return 2 * n


class Link:
    """A connection to the server in this process."""

    def __init__(self, receive: Callable[[bytes], None], lose: Callable[[str], None]) -> None:
        self.server = app.open_connection(receive)
        self.lose = lose
        self.fails = False
        self.closed = 0

    def send(self, data: bytes) -> None:
        if self.fails:
            raise OSError("gone")
        self.server.receive(data)

    async def close(self) -> None:
        self.closed += 1
        await self.server.close()


class Links(list[Link]):
    async def open(self, receive: Callable[[bytes], None], lose: Callable[[str], None]) -> Link:
        self.append(Link(receive, lose))
        return self[-1]


@pytest.mark.parametrize("era", ["stateless", "handshake"])
async def test_a_client_calls_a_server_over_any_transport(era: str) -> None:
    links = Links()
    async with Client(CustomTarget(links.open, name="mine"), protocol_version=era) as client:
        assert client.name == "mine"
        assert await client.call("double", n=4) == 8
    assert [link.closed for link in links] == [1]


async def test_the_client_connects_again_after_a_loss() -> None:
    links = Links()
    async with Client(CustomTarget(links.open)) as client:
        links[-1].lose("the cable was cut")
        assert await client.call("double", n=4) == 8
    assert [link.closed for link in links] == [1, 1]


async def test_a_transport_that_cannot_send_loses_the_connection() -> None:
    links = Links()
    async with Client(CustomTarget(links.open)) as client:
        links[-1].fails = True
        with pytest.raises(OutcomeUnknown, match="gone"):
            await client.call("double", n=4)
        assert await client.call("double", n=4) == 8


async def test_an_async_method_for_sending_loses_the_connection() -> None:
    class AsyncLink(Link):
        async def send(self, data: bytes) -> None:  # type: ignore[override]
            self.server.receive(data)

    async def open_link(receive: Callable[[bytes], None], lose: Callable[[str], None]) -> AsyncLink:
        return AsyncLink(receive, lose)

    async with asyncio.timeout(20):
        with pytest.raises(ConnectionLost, match="send"):
            await Client(CustomTarget(open_link)).connect()


async def test_a_transport_that_cannot_connect_is_a_connect_error() -> None:
    async def fail(receive: Callable[[bytes], None], lose: Callable[[str], None]) -> Link:
        raise OSError("no route")

    with pytest.raises(ConnectError, match="no route"):
        await Client(CustomTarget(fail)).connect()


def test_the_options_are_checked() -> None:
    with pytest.raises(TypeError, match="open_connection="):
        CustomTarget("x")  # pyright: ignore[reportArgumentType]


async def test_a_deadline_that_passes_while_closing_does_not_hide_the_first_error() -> None:
    class EndedLink:
        def __init__(self, lose: Callable[[str], None]) -> None:
            self._lose = lose

        def send(self, data: bytes) -> None:
            self._lose("it has ended")

        async def close(self) -> None:
            await asyncio.sleep(4 * INITIALIZE_TIMEOUT_S)

    async def open_link(_: Callable[[bytes], None], lose: Callable[[str], None]) -> EndedLink:
        return EndedLink(lose)

    client = Client(
        CustomTarget(open_link), protocol_version="stateless", timeout=Timeouts(initialize=INITIALIZE_TIMEOUT_S)
    )
    with pytest.raises(ConnectionLost, match="it has ended"):
        await client.connect()
