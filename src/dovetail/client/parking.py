"""Parking: calls that wait at a handshake server for an answer, while their caller, who is stateless, fetches it.

The caller gets the question and a ticket; when it comes back with both, the call goes on where it stood. Tickets are
good for one caller and one request, for a while, in this process.
"""

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

from dovetail.errors import Busy, InvalidParams
from dovetail.protocol.exchange import Exchange
from dovetail.protocol.state import binding
from dovetail.wire.codec import plain
from dovetail.wire.inputs import InputRequest, InputRequiredResult

Send: TypeAlias = Callable[[Exchange, dict[str, Any]], Coroutine[Any, Any, Any]]

PATIENCE: Final = 600.0  # seconds an answer may take
_MOST: Final = 256
_KEY: Final = "q"


class Parked:
    """One call at work at the server, whoever comes for its result."""

    def __init__(self, exchange: Exchange, send: Send) -> None:
        self.exchange = exchange
        self.bound = binding(exchange.caller.principal, exchange.method, exchange.params)
        self.question: InputRequest | None = None
        self._answer: asyncio.Future[Any] | None = None
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()
        params = {name: value for name, value in exchange.params.items() if name not in _ROUND}
        self.task = asyncio.get_running_loop().create_task(send(exchange, params))
        self.task.add_done_callback(lambda _: self._news.set())

    async def ask(self, method: str, params: dict[str, Any]) -> Any:
        """Put a question to whoever waits, one at a time."""
        async with self._turn:
            self._answer = asyncio.get_running_loop().create_future()
            self.question = InputRequest(method=method, params=params or None)
            self._news.set()
            try:
                return await self._answer
            finally:
                self.question = None

    def answer(self, given: Any) -> None:
        """The caller came back with it."""
        if self._answer is not None and not self._answer.done():
            self.question = None
            self._answer.set_result(given)

    async def next(self) -> Any:
        """The result, or the question that is open."""
        while not self.task.done():
            if self.question is not None:
                return self.question
            self._news.clear()
            await self._news.wait()
        return self.task.result()


_ROUND: Final = frozenset({"_meta", "inputResponses", "requestState"})


class Parking:
    """The parked calls of one client."""

    def __init__(self) -> None:
        self._tickets: dict[str, Parked] = {}
        self._working: dict[int, Parked] = {}

    def of(self, exchange: Exchange) -> Parked | None:
        """The call that works for an exchange."""
        return self._working.get(id(exchange))

    @property
    def busy(self) -> bool:
        """Whether a call waits."""
        return bool(self._tickets)

    @property
    def exchanges(self) -> list[Exchange]:
        """Those of the calls that wait."""
        return [parked.exchange for parked in self._tickets.values()]

    async def run(self, exchange: Exchange, send: Send) -> Any:
        """The raw result of an exchange, or the result that asks what the server wants to know."""
        if "requestState" in exchange.params:
            parked = self._back(exchange)
        elif len(self._tickets) < _MOST:
            parked = Parked(exchange, send)
        else:
            raise Busy("Too many calls wait for answers")
        self._working[id(exchange)] = self._working[id(parked.exchange)] = parked
        try:
            found = await parked.next()
        except asyncio.CancelledError:
            self._end(parked)
            raise
        finally:
            self._working.pop(id(exchange), None)
            if parked.task.done():
                self._working.pop(id(parked.exchange), None)
        if isinstance(found, InputRequest):
            self._working[id(parked.exchange)] = parked
            return self._park(parked, found)
        return found

    def _park(self, parked: Parked, question: InputRequest) -> InputRequiredResult:
        ticket = secrets.token_urlsafe(24)
        self._tickets[ticket] = parked
        asyncio.get_running_loop().call_later(PATIENCE, self._expire, ticket)
        return InputRequiredResult(result_type="input_required", input_requests={_KEY: question}, request_state=ticket)

    def _back(self, exchange: Exchange) -> Parked:
        parked = self._tickets.get(str(exchange.params["requestState"]))
        if parked is None or parked.bound != binding(exchange.caller.principal, exchange.method, exchange.params):
            raise InvalidParams("Invalid params: requestState is not valid for this request")
        del self._tickets[exchange.params["requestState"]]
        answers: Any = exchange.params.get("inputResponses")
        if type(answers) is dict and _KEY in answers:
            parked.answer(plain(answers[_KEY]))
        # What is said from here on goes to the request that is waiting now.
        parked.exchange.emit, parked.exchange.meta = exchange.emit, exchange.meta
        return parked

    def _expire(self, ticket: str) -> None:
        parked = self._tickets.pop(ticket, None)
        if parked is not None:
            self._end(parked)

    def _end(self, parked: Parked) -> None:
        self._working.pop(id(parked.exchange), None)
        parked.task.cancel()

    def clear(self) -> None:
        """Give up everything."""
        for parked in self._tickets.values():
            self._end(parked)
        self._tickets.clear()
