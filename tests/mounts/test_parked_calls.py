"""Test calls that wait for input: each has a ticket for its caller and its request, and none is left behind."""

import asyncio
from typing import Any

import pytest

from dovetail.errors import InvalidParams
from dovetail.mounts import mounted_client
from dovetail.mounts.mounted_client import ParkedCalls
from dovetail.protocol.exchange import Caller, IncomingExchange
from dovetail.wire.input_required import InputRequiredResult
from support.fake_service import run_pending_callbacks

CALL = "tools/call"
MADE: list[IncomingExchange] = []


def exchange(id: int = 1, *, principal: Any = None, **params: Any) -> IncomingExchange:
    caller = Caller(protocol_version="2026-07-28", is_stateless=True, principal=principal)
    made = IncomingExchange(id=id, method=CALL, params={"name": "go", **params}, meta={}, caller=caller)
    MADE.append(made)
    return made


def back(asked: InputRequiredResult, answer: Any = "yes", **options: Any) -> IncomingExchange:
    """The caller comes again, with the ticket and what was asked for."""
    return exchange(2, requestState=asked.request_state, inputResponses={"q": answer}, **options)


class Server:
    """What a call meets: it asks so often, then gives back what it was answered."""

    def __init__(self, questions: int = 1) -> None:
        self.parking = ParkedCalls()
        self.sent: list[dict[str, Any]] = []
        self.ended: list[str] = []
        self.stuck = False
        self._questions = questions

    async def send(self, exchange: IncomingExchange, params: dict[str, Any]) -> Any:
        self.sent.append(params)
        answers: list[Any] = []
        try:
            for number in range(self._questions):
                parked = self.parking.find(exchange)
                assert parked is not None
                answers.append(await parked.ask("elicitation/create", {"message": str(number)}))
            if self.stuck:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        return answers

    async def asks(self, one: IncomingExchange) -> InputRequiredResult:
        found = await self.parking.run(one, self.send)
        assert isinstance(found, InputRequiredResult)
        return found

    async def left(self) -> tuple[int, bool]:
        """How many calls are still known, and whether one has a ticket."""
        await run_pending_callbacks()
        return sum(self.parking.find(one) is not None for one in MADE), self.parking.is_busy


async def test_a_call_goes_on_where_it_stood() -> None:
    server, first = Server(2), exchange()
    asked = await server.asks(first)
    assert asked.input_requests is not None
    assert asked.input_requests["q"].params == {"message": "0"}
    assert server.parking.exchanges == [first]
    again = await server.asks(back(asked, "a"))
    assert again.request_state != asked.request_state
    assert await server.parking.run(back(again, "b"), server.send) == ["a", "b"]
    assert server.sent == [{"name": "go"}]
    assert await server.left() == (0, False)


async def test_a_call_that_asks_nothing_is_not_parked() -> None:
    server = Server(0)
    assert await server.parking.run(exchange(), server.send) == []
    assert await server.left() == (0, False)


async def test_what_the_server_raises_is_raised() -> None:
    async def send(*_: Any) -> Any:
        raise InvalidParams("no")

    place = ParkedCalls()
    with pytest.raises(InvalidParams, match="no"):
        await place.run(exchange(), send)


async def test_a_ticket_is_good_for_one_caller_one_request_and_once() -> None:
    server = Server()
    asked = await server.asks(exchange())
    refused = pytest.raises(InvalidParams, match="requestState")
    with refused:
        await server.parking.run(back(asked, principal="somebody"), server.send)
    with refused:
        await server.parking.run(back(asked, arguments={"a": 1}), server.send)
    with refused:
        await server.parking.run(exchange(requestState="made up"), server.send)
    assert await server.parking.run(back(asked), server.send) == ["yes"]
    with refused:
        await server.parking.run(back(asked), server.send)


async def test_progress_goes_to_the_currently_waiting_request() -> None:
    server, first = Server(), exchange()
    again = back(await server.asks(first))

    async def emit(_: bytes) -> None: ...

    again.emit, again.meta = emit, {"progressToken": 7}
    await server.parking.run(again, server.send)
    assert (first.emit, first.meta) == (emit, {"progressToken": 7})


@pytest.mark.parametrize("rounds", [0, 1, 2])
async def test_a_caller_who_gives_up_leaves_nothing_behind(rounds: int) -> None:
    server, current = Server(rounds), exchange()
    server.stuck = True
    for _ in range(rounds):
        current = back(await server.asks(current))
    waiting = asyncio.get_running_loop().create_task(server.parking.run(current, server.send))
    await run_pending_callbacks()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert await server.left() == (0, False)
    assert server.ended == ["cancelled"]


async def test_no_wait_is_endless_and_all_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounted_client, "ANSWER_TIMEOUT_S", 0.0)
    server = Server()
    await server.asks(exchange())
    assert await server.left() == (0, False)
    monkeypatch.undo()
    await server.asks(exchange())
    server.parking.clear()
    assert await server.left() == (0, False)
    assert server.ended == ["cancelled", "cancelled"]


async def test_the_caller_with_the_most_waiting_calls_loses_its_oldest() -> None:
    server = Server()
    ada = await server.asks(exchange(principal="ada"))
    oldest, second, *_ = [await server.asks(exchange(principal="mallory")) for _ in range(255)]
    bob = await server.asks(exchange(principal="bob"))
    with pytest.raises(InvalidParams, match="requestState"):
        await server.parking.run(back(oldest, principal="mallory"), server.send)
    for asked, name in ((ada, "ada"), (second, "mallory"), (bob, "bob")):
        assert await server.parking.run(back(asked, principal=name), server.send) == ["yes"]
    server.parking.clear()
    assert await server.left() == (0, False)
