"""Test that faults affect the intended messages on every transport, and leave a usable client."""

import asyncio
import contextlib
from typing import Any

import pytest

from dovetail import ClientLimits, MCPError, testing
from dovetail.errors import ConnectError, ConnectionLost, OutcomeUnknown, RequestTimeout
from dovetail.testing.fault_proxy import FaultyMemoryClient
from dovetail.testing.faults import corrupt_message, get_plan
from support.calculator import app

TRANSPORTS = ["memory", "stdio", "http", "sse", "unix", "tcp"]
QUICK = ClientLimits(reconnect_delay=0.01)


def connected(transport: Any, faults: testing.Faults, **options: Any) -> Any:
    return testing.connect(app, transport=transport, faults=faults, limits=QUICK, **options)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_answer_that_is_dropped(transport: str) -> None:
    faults = testing.Faults()
    drop = faults.drop(method="tools/call", nth=2)
    async with connected(transport, faults) as client:
        assert await client.call("add", a=1, b=2) in (3, "3")
        with pytest.raises(OutcomeUnknown):
            await client.call("add", a=1, b=2)
        assert drop.count == 1
        assert await client.call("add", a=1, b=2) in (3, "3")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_request_that_is_dropped(transport: str) -> None:
    faults = testing.Faults()
    drop = faults.drop(to="server", method="tools/call", when=lambda message: message["params"]["arguments"]["a"] == 7)
    async with connected(transport, faults) as client:
        assert await client.call("add", a=1, b=2) in (3, "3")
        with pytest.raises(ConnectionLost):
            await client.call("add", a=7, b=2)
        assert drop.count == 1
        assert await client.call("add", a=7, b=2) in (9, "9")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_server_that_is_killed_comes_back(transport: str) -> None:
    faults = testing.Faults()
    kill = faults.kill(method="tools/call")
    async with connected(transport, faults) as client:
        with pytest.raises(OutcomeUnknown) as told:
            await client.call("add", a=1, b=2)
        assert kill.count == 1
        assert told.value.exit_code == (-9 if transport == "stdio" else None)
        assert await client.call("add", a=1, b=2) in (3, "3")


@pytest.mark.parametrize("transport", ["http", "unix", "tcp"])
async def test_a_server_that_is_killed_for_good(transport: str) -> None:
    faults = testing.Faults()
    faults.kill(method="tools/call", restart=False)
    async with connected(transport, faults) as client:
        with pytest.raises(OutcomeUnknown):
            await client.call("add", a=1, b=2)
        with pytest.raises(ConnectError):
            await client.call("add", a=1, b=2)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("to", ["client", "server"])
async def test_a_message_that_is_corrupted(transport: str, to: Any) -> None:
    faults = testing.Faults()
    corrupt = faults.corrupt(to=to, method="tools/call")
    async with connected(transport, faults) as client:
        with pytest.raises(MCPError):
            await client.call_tool("add", {"a": 1, "b": 2}, timeout=0.3)
        assert corrupt.count == 1
        assert await client.call("add", a=1, b=2) in (3, "3")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_answer_that_is_late(transport: str) -> None:
    faults = testing.Faults()
    faults.delay(30, method="tools/call", times=1)
    async with connected(transport, faults) as client:
        with pytest.raises(RequestTimeout):
            await client.call_tool("add", {"a": 1, "b": 2}, timeout=0.2)


async def test_a_delay_passes() -> None:
    faults = testing.Faults()
    delay = faults.delay(0.05)
    async with connected("memory", faults) as client:
        assert await client.call("add", a=1, b=2) == 3
    assert delay.count == 2  # the opening, too


async def test_faults_can_be_cleared() -> None:
    faults = testing.Faults()
    faults.drop(method="tools/call")
    async with connected("memory", faults) as client:
        faults.clear()
        assert await client.call("add", a=1, b=2) == 3


def test_counting() -> None:
    faults = testing.Faults()
    fault = faults.drop(nth=2, times=2, method="a")
    happened = [bool(get_plan(faults).find_due("client", b'{"method": "a"}')) for _ in range(5)]
    assert happened == [False, True, True, False, False]
    assert fault.count == 2
    assert not get_plan(faults).find_due("server", b'{"method": "a"}')
    assert not get_plan(faults).find_due("client", b'{"method": "b"}')
    assert not get_plan(faults).find_due("client", b"[1")
    assert not get_plan(faults).find_due("client", b"[1]")


def test_an_answer_belongs_to_the_method_it_answers() -> None:
    faults = testing.Faults()
    faults.drop(method="tools/call", times=9)
    get_plan(faults).find_due("server", b'{"id": 1, "method": "tools/call"}')
    get_plan(faults).find_due("server", b'{"id": 2, "method": "tools/list"}')
    get_plan(faults).find_due("client", b'{"id": 2, "method": "tools/call"}')  # a question of the server's is another 2
    assert get_plan(faults).find_due("client", b'{"id": 1, "result": {}}')
    assert not get_plan(faults).find_due("client", b'{"id": 2, "result": {}}')


@pytest.mark.parametrize("wrong", [{"nth": 0}, {"times": 0}, {"to": "nobody"}])
def test_what_makes_no_sense_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        testing.Faults().drop(**wrong)


def test_a_corrupted_message_has_its_size() -> None:
    spoilt = corrupt_message(b'HEAD{"a":1}\n', b'{"a":1}')
    assert len(spoilt) == 12
    assert spoilt.startswith(b"HEAD\xff")
    assert spoilt.endswith(b"\n")


async def adding(joined: Any, *expected: type[Exception]) -> None:
    """Add once, in the context of a client; what is expected to be raised is taken."""
    async with asyncio.timeout(30), joined as client:
        with contextlib.suppress(*expected):
            await client.call("add", a=1, b=2)


def goes_wrong() -> testing.Faults:
    faults = testing.Faults()
    faults.drop(to="server", method="tools/call", when=lambda message: message["nowhere"])
    return faults


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_fault_that_goes_wrong_ends_the_connection_and_the_test(transport: str) -> None:
    with pytest.raises(KeyError, match="nowhere") as told:
        await adding(connected(transport, goes_wrong()))
    assert isinstance(told.value.__context__, ConnectionLost)


async def test_a_failing_fault_is_reported_even_if_the_test_passes() -> None:
    with pytest.raises(KeyError, match="nowhere"):
        await adding(connected("memory", goes_wrong()), ConnectionLost)


async def test_a_server_that_is_not_the_tests_own_cannot_be_killed() -> None:
    faults = testing.Faults()
    faults.kill(method="tools/call")
    async with testing.serve(app, transport="tcp") as target:
        with pytest.raises(RuntimeError):
            await adding(testing.connect(target, faults=faults, limits=QUICK))


async def test_what_is_cut_in_memory_can_be_cancelled_while_it_ends() -> None:
    class Reluctant:
        """A server's end that never finishes closing."""

        name = "reluctant"

        def __init__(self) -> None:
            self.closing = asyncio.Event()

        async def start(self, user: object = None) -> None:
            return

        async def stop(self, user: object = None) -> None:
            return

        def open_connection(self, _: Any) -> Any:
            return self

        def receive(self, data: bytes) -> None:
            return

        async def close(self, grace: float = 0.0) -> None:
            self.closing.set()
            await asyncio.Event().wait()

    faults, server = testing.Faults(), Reluctant()
    faults.drop(to="server")
    one = FaultyMemoryClient(server, get_plan(faults))
    before = asyncio.all_tasks()
    await one.connect()
    tasks = asyncio.all_tasks() - before
    one.write(b'{"method":"x"}')
    await asyncio.wait_for(server.closing.wait(), 10)
    (closing,) = [task for task in tasks if not task.done() and not task.cancelling()]
    closing.cancel()
    await asyncio.wait([closing], timeout=10)
    assert closing.cancelled()


async def test_faults_need_something_to_stand_before() -> None:
    with pytest.raises(TypeError, match="faults"):
        async with testing.connect("https://example.com/mcp", faults=testing.Faults()):
            pass
