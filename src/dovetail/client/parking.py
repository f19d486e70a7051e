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
from dovetail.protocol.state import compute_binding
from dovetail.wire.codec import to_plain
from dovetail.wire.inputs import InputRequest, InputRequiredResult

Send: TypeAlias = Callable[[Exchange, dict[str, Any]], Coroutine[Any, Any, Any]]

ANSWER_TIMEOUT_S: Final = 600.0  # seconds an answer may take
_MAX_PARKED_CALLS: Final = 256
_REQUEST_KEY: Final = "q"


class ParkedCall:
    """One call at work at the server, whoever comes for its result."""

    def __init__(self, exchange: Exchange, send: Send) -> None:
        self.exchange = exchange
        self.binding_key = compute_binding(exchange.caller.principal, exchange.method, exchange.params)
        self.input_request: InputRequest | None = None
        self._response: asyncio.Future[Any] | None = None
        self._ask_lock = asyncio.Lock()
        self._wakeup = asyncio.Event()
        params = {name: value for name, value in exchange.params.items() if name not in _ROUND_PARAMS}
        self.task = asyncio.get_running_loop().create_task(send(exchange, params))
        self.task.add_done_callback(lambda _: self._wakeup.set())

    async def ask(self, method: str, params: dict[str, Any]) -> Any:
        """Put a question to whoever waits, one at a time."""
        async with self._ask_lock:
            self._response = asyncio.get_running_loop().create_future()
            self.input_request = InputRequest(method=method, params=params or None)
            self._wakeup.set()
            try:
                return await self._response
            finally:
                self.input_request = None

    def set_response(self, response: Any) -> None:
        """The caller came back with it."""
        if self._response is not None and not self._response.done():
            self.input_request = None
            self._response.set_result(response)

    async def wait_next(self) -> Any:
        """The result, or the question that is open."""
        while not self.task.done():
            if self.input_request is not None:
                return self.input_request
            self._wakeup.clear()
            await self._wakeup.wait()
        return self.task.result()


_ROUND_PARAMS: Final = frozenset({"_meta", "inputResponses", "requestState"})


class ParkedCalls:
    """The parked calls of one client."""

    def __init__(self) -> None:
        self._tickets: dict[str, ParkedCall] = {}
        self._calls_by_exchange: dict[int, ParkedCall] = {}

    def find(self, exchange: Exchange) -> ParkedCall | None:
        """The call that works for an exchange."""
        return self._calls_by_exchange.get(id(exchange))

    @property
    def is_busy(self) -> bool:
        """Whether a call waits."""
        return bool(self._tickets)

    @property
    def exchanges(self) -> list[Exchange]:
        """Those of the calls that wait."""
        return [call.exchange for call in self._tickets.values()]

    async def run(self, exchange: Exchange, send: Send) -> Any:
        """The raw result of an exchange, or the result that asks what the server wants to know."""
        if "requestState" in exchange.params:
            call = self._resume(exchange)
        elif len(self._tickets) < _MAX_PARKED_CALLS:
            call = ParkedCall(exchange, send)
        else:
            raise Busy("Too many calls wait for answers")
        self._calls_by_exchange[id(exchange)] = self._calls_by_exchange[id(call.exchange)] = call
        try:
            outcome = await call.wait_next()
        except asyncio.CancelledError:
            self._cancel(call)
            raise
        finally:
            self._calls_by_exchange.pop(id(exchange), None)
            if call.task.done():
                self._calls_by_exchange.pop(id(call.exchange), None)
        if isinstance(outcome, InputRequest):
            self._calls_by_exchange[id(call.exchange)] = call
            return self._park(call, outcome)
        return outcome

    def _park(self, call: ParkedCall, input_request: InputRequest) -> InputRequiredResult:
        ticket = secrets.token_urlsafe(24)
        self._tickets[ticket] = call
        asyncio.get_running_loop().call_later(ANSWER_TIMEOUT_S, self._expire, ticket)
        return InputRequiredResult(
            result_type="input_required", input_requests={_REQUEST_KEY: input_request}, request_state=ticket
        )

    def _resume(self, exchange: Exchange) -> ParkedCall:
        call = self._tickets.get(str(exchange.params["requestState"]))
        if call is None or call.binding_key != compute_binding(
            exchange.caller.principal, exchange.method, exchange.params
        ):
            raise InvalidParams("Invalid params: requestState is not valid for this request")
        del self._tickets[exchange.params["requestState"]]
        responses: Any = exchange.params.get("inputResponses")
        if type(responses) is dict and _REQUEST_KEY in responses:
            call.set_response(to_plain(responses[_REQUEST_KEY]))
        # What is said from here on goes to the request that is waiting now.
        call.exchange.emit, call.exchange.meta = exchange.emit, exchange.meta
        return call

    def _expire(self, ticket: str) -> None:
        call = self._tickets.pop(ticket, None)
        if call is not None:
            self._cancel(call)

    def _cancel(self, call: ParkedCall) -> None:
        self._calls_by_exchange.pop(id(call.exchange), None)
        call.task.cancel()

    def clear(self) -> None:
        """Give up everything."""
        for call in self._tickets.values():
            self._cancel(call)
        self._tickets.clear()
