"""Continue parked calls at the worker that holds them.

In a cluster, a caller's answer may reach any worker. The ticket of a parked call names the worker that holds the open
call. The worker that gets the answer sends it to that worker, and follows the stream into which that worker writes
notifications and the result.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import msgspec

from dovetail.background_tasks import BackgroundTasks
from dovetail.cluster.background_work import repeat_until_available, wait_before_retry
from dovetail.cluster.sessions.routed_id import RoutedIds
from dovetail.errors import InternalError, InvalidParams, ProtocolError, ServerBusy
from dovetail.log import log
from dovetail.protocol.exchange import Emit, ForwardedResult, IncomingExchange
from dovetail.protocol.interfaces.shared_state import (
    MAX_MESSAGE_BYTES,
    Message,
    SharedStateUnavailable,
    SharedWorker,
    WorkerLost,
)
from dovetail.protocol.versioned_codec import VersionedCodec
from dovetail.wire.base import Result, Struct
from dovetail.wire.codec import encode, to_plain
from dovetail.wire.input_required import InputRequiredResult
from dovetail.wire.methods import METHODS
from dovetail.wire.raw_message import decode_body

_TICKET_PURPOSE: Final = "parked call 1"  # the purpose and format version of tickets
_CONTINUE: Final = "parked.continue"
_CANCEL: Final = "parked.cancel"
_MAX_REMEMBERED_STREAMS: Final = 1024  # A message that arrives twice must not continue a call twice.
_MAX_STORE_TIME_S: Final = 300.0  # This is as long as a call may take by default.
_CLOSE_TIMEOUT_S: Final = 1.0


class Continuation(Struct, frozen=True, kw_only=True):
    """The next round of a parked call, as one worker sends it to another."""

    ticket: str
    stream: str  # the stream into which the other worker writes notifications and the outcome
    binding: str  # the digest of the request and its principal, which must match those of the parked call
    responses: dict[str, Any] | None
    meta: dict[str, Any]


class _Cancellation(Struct, frozen=True, kw_only=True):
    stream: str


class _Outcome(Struct, frozen=True, kw_only=True):
    """The last event of a stream.

    The kind is "encoded" for a result in the protocol version of the caller, and "result" for a result in the newest
    version.
    """

    kind: Literal["encoded", "result", "input required", "error"]
    value: msgspec.Raw


_continuations: Final = VersionedCodec(Continuation)
_cancellations: Final = VersionedCodec(_Cancellation)
_outcomes: Final = VersionedCodec(_Outcome)


class _Error(Struct, frozen=True, kw_only=True):
    code: int
    message: str
    data: Any = None


# Continues a call of this worker. `emit` sends notifications to the caller.
ContinueCall: TypeAlias = Callable[[Continuation, Emit], Awaitable[Result | bytes]]


class ParkedCallRouter:
    """Connects the parked calls of all workers. There is one router for each cluster worker."""

    def __init__(self, cluster: SharedWorker) -> None:
        self._cluster = cluster
        self._ids = RoutedIds(cluster.secret_keys)
        self._holders: dict[str, ContinueCall] = {}  # the holders of this worker's parked calls, by ticket
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by stream
        self._seen_streams: OrderedDict[str, None] = OrderedDict()
        self._background_tasks = BackgroundTasks()
        cluster.add_handler(_CONTINUE, self._receive_continuation)
        cluster.add_handler(_CANCEL, self._receive_cancellation)
        cluster.add_close_handler(partial(self._background_tasks.close, _CLOSE_TIMEOUT_S))

    def create_ticket(self, holder: ContinueCall) -> str:
        """Return a new ticket for a call of this worker."""
        ticket = self._ids.create(self._cluster.name, _TICKET_PURPOSE, secrets.token_urlsafe(18))
        self._holders[ticket] = holder
        return ticket

    def remove_ticket(self, ticket: str) -> None:
        self._holders.pop(ticket, None)

    def find_other_worker(self, ticket: Any) -> str | None:
        """Return the worker that holds a call. Return None if it is this worker, or if the ticket is invalid.

        A caller cannot forge a ticket, so it cannot send messages to a worker of its choice.
        """
        named = self._ids.read(ticket, _TICKET_PURPOSE)
        return None if named is None or named[0] == self._cluster.name else named[0]

    async def continue_elsewhere(
        self, worker: str, exchange: IncomingExchange, binding: bytes, mount: str
    ) -> Result | bytes:
        """Continue a call at the worker that holds it, and return the result for the caller of `exchange`."""
        state, stream = self._cluster.state, f"parked:{secrets.token_hex(16)}"
        params = exchange.params
        continuation = Continuation(
            ticket=params["requestState"],
            stream=stream,
            binding=binding.hex() + mount,
            responses=to_plain(params.get("inputResponses")),
            meta=to_plain(exchange.meta),
        )
        try:
            if not await state.send(worker, _CONTINUE, _continuations.encode(continuation)):
                raise _invalid_ticket()
        except SharedStateUnavailable as exc:
            raise ServerBusy(
                "The worker that runs this call cannot be reached now. Send the same request again",
                retry_after=exc.retry_after,
            ) from exc
        try:
            outcome = await self._follow(stream, worker, exchange)
        except asyncio.CancelledError:
            self._run_in_background(state.send(worker, _CANCEL, _cancellations.encode(_Cancellation(stream=stream))))
            raise
        self._run_in_background(state.delete_stream(stream))
        return _read_outcome(outcome, exchange)

    async def _follow(self, stream: str, worker: str, exchange: IncomingExchange) -> _Outcome:
        after, failures = 0, 0
        while True:
            try:
                async with aclosing(self._cluster.state.follow(stream, after, writer=worker)) as events:
                    async for event in events:
                        after, failures = event.number, 0
                        if event.is_last:
                            return _decode_outcome(event.data)
                        if exchange.emit is not None:
                            await exchange.emit(event.data)
            except SharedStateUnavailable:
                await wait_before_retry(failures)
                failures += 1
                continue
            except WorkerLost:
                raise _invalid_ticket() from None
            raise _lost_result()

    def _receive_continuation(self, message: Message) -> None:
        continuation = _continuations.decode(message.body)
        if continuation is None or continuation.stream in self._seen_streams:
            return
        self._seen_streams[continuation.stream] = None
        if len(self._seen_streams) > _MAX_REMEMBERED_STREAMS:
            self._seen_streams.popitem(last=False)
        task = self._background_tasks.start(self._continue_here(continuation))
        self._tasks[continuation.stream] = task
        task.add_done_callback(lambda _: self._tasks.pop(continuation.stream, None))

    def _receive_cancellation(self, message: Message) -> None:
        cancellation = _cancellations.decode(message.body)
        task = None if cancellation is None else self._tasks.get(cancellation.stream)
        if task is not None:
            task.cancel()

    async def _continue_here(self, continuation: Continuation) -> None:
        writer = _OutcomeWriter(self._cluster, continuation.stream)
        holder = self._holders.get(continuation.ticket)
        try:
            if holder is None:
                raise _invalid_ticket()
            result = await holder(continuation, writer.write)
        except ProtocolError as exc:
            outcome = _build_outcome("error", encode(_Error(code=exc.code, message=exc.message, data=exc.data)))
        except Exception as exc:
            log.error("a parked call failed: %s", type(exc).__name__, exc_info=exc)
            outcome = _build_outcome("error", encode(_Error(code=InternalError.code, message="Internal error")))
        else:
            if isinstance(result, bytes):
                outcome = _build_outcome("encoded", result)
            else:
                is_question = isinstance(result, InputRequiredResult)
                outcome = _build_outcome("input required" if is_question else "result", encode(result))
        data = _outcomes.encode(outcome)
        if len(data) > MAX_MESSAGE_BYTES:
            message = f"The result is larger than {MAX_MESSAGE_BYTES} bytes, so another worker cannot send it"
            data = _outcomes.encode(_build_outcome("error", encode(_Error(code=InternalError.code, message=message))))
        await writer.write(data, is_last=True)

    def _run_in_background(self, operation: Awaitable[Any]) -> None:
        async def run() -> None:
            with suppress(SharedStateUnavailable):  # The stream expires, and the call ends at its timeout.
                await operation

        self._background_tasks.start(run())


class _OutcomeWriter:
    """Writes the notifications and the outcome of a call to a stream, in order."""

    def __init__(self, cluster: SharedWorker, stream: str) -> None:
        self._state = cluster.state
        self._stream = stream
        self._number = 0
        self._is_broken = False  # True after an event could not be stored
        self._lock = asyncio.Lock()

    async def write(self, data: bytes, *, is_last: bool = False) -> None:
        async with self._lock:
            if self._is_broken:
                return
            self._number += 1
            store = partial(self._store, self._number, data, is_last=is_last)
            if not await repeat_until_available(store, give_up_after=_MAX_STORE_TIME_S):
                self._is_broken = True

    async def _store(self, number: int, data: bytes, *, is_last: bool) -> None:
        # An event that was already stored is not stored again, so the attempt can be repeated.
        if await self._state.append(self._stream, number, data, header=b"", is_last=is_last) != "added":
            # The stream was lost. Deleting it ends the reader, which reports the loss to the caller.
            await self._state.delete_stream(self._stream)
            self._is_broken = True


def _build_outcome(kind: Literal["encoded", "result", "input required", "error"], value: bytes) -> _Outcome:
    return _Outcome(kind=kind, value=msgspec.Raw(value))


def _decode_outcome(data: bytes) -> _Outcome:
    outcome = _outcomes.decode(data)
    if outcome is None:  # A newer release has written it.
        raise _lost_result()
    return outcome


def _lost_result() -> InternalError:
    return InternalError("The result of the call was lost. The call may have had an effect")


def _read_outcome(outcome: _Outcome, exchange: IncomingExchange) -> Result | bytes:
    value = bytes(outcome.value)
    match outcome.kind:
        case "encoded":
            return ForwardedResult(value)
        case "input required":
            return decode_body(value, InputRequiredResult, "the questions of a parked call")
        case "result":
            row = METHODS[exchange.method]
            return decode_body(value, row.result or Result, f"the result of {row.name}")
        case "error":
            problem = msgspec.json.decode(value, type=_Error)
            error = ProtocolError(problem.message, problem.data)
            error.code = problem.code
            raise error


def _invalid_ticket() -> InvalidParams:
    return InvalidParams("Invalid params: requestState is not valid for this request")


def get_router(cluster: SharedWorker) -> ParkedCallRouter:
    """Return the router of a cluster worker."""
    router = cluster.parts.get(ParkedCallRouter)
    if router is None:
        router = cluster.parts[ParkedCallRouter] = ParkedCallRouter(cluster)
    return router
