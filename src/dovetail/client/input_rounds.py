"""Requests that wait for input from the client, and the parameters that continue them.

Such a request can be stored, and another process can answer it.
spec: mrtr#client-requirements-basic-workflow
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from dovetail.client.handlers import InputHandlers, UndeclaredMode
from dovetail.error_context import add_context
from dovetail.errors import (
    ElicitationCancelled,
    ElicitationDeclined,
    InputRequestError,
    InvalidResult,
    MCPError,
    MethodNotFound,
    ProtocolError,
    RemoteError,
)
from dovetail.protocol.limits import ClientLimits
from dovetail.wire.base import Result, Struct
from dovetail.wire.codec import convert, encode, to_plain
from dovetail.wire.elicitation import ElicitRequestParams
from dovetail.wire.input_required import InputRequest, InputRequiredResult
from dovetail.wire.methods import Method
from dovetail.wire.raw_message import decode_body, decode_input_required

if TYPE_CHECKING:
    from dovetail.client.client_extensions import ClientExtensions

COMPLETE = "complete"
TASK = "task"

# A function that returns the client's extensions. It imports the code for tasks only when it is called.
LoadExtensions: TypeAlias = "Callable[[], ClientExtensions]"


class RequestAwaitingInput(Struct, frozen=True, kw_only=True):
    """A request that needs input before it can continue. Answer its `input_requests` with `Client.resume`."""

    method: str  # The method of the request.
    params: dict[str, Any]  # The parameters of the request.
    input_requests: dict[str, InputRequest]  # The server's input requests, each under its key.
    request_state: str | None = None  # A value that the client sends back to the server unchanged.
    round: int = 1  # How many times the server has asked for input, including this time.

    def dump(self) -> bytes:
        """Return this object as JSON. Store the JSON as safely as a token, because it may contain secrets of the
        server.
        """
        return encode(self)

    @classmethod
    def load(cls, data: bytes | str) -> "RequestAwaitingInput":
        """Load the output of `dump`. Raise ValueError for other data."""
        return msgspec.json.decode(data, type=cls)


def build_resume_params(pending: RequestAwaitingInput, responses: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that continue a request, including the input responses and the request state."""
    params = dict(pending.params)
    if pending.input_requests:
        params["inputResponses"] = {key: to_plain(value) for key, value in responses.items()}
    if pending.request_state is not None:
        params["requestState"] = pending.request_state
    return params


def decode_result(
    raw: Any,
    row: Method,
    params: dict[str, Any],
    rounds: int = 0,
    extensions: "ClientExtensions | LoadExtensions | None" = None,
) -> Any:
    """Return the typed result of a request. If the server needs input, return a RequestAwaitingInput.

    `extensions` may add result types. If it is a function, it is called only for a task.
    """
    assert row.result is not None
    try:
        result: Result = decode_body(raw, row.result, f"the result of {row.name}")
    except InvalidResult:
        if extensions is not None and (added := _decode_added(raw, row, extensions)) is not None:
            return added
        if not row.may_require_input or (input_required := decode_input_required(raw, row.name)) is None:
            raise
        return _build_pending(input_required, row, params, rounds)
    if result.result_type in (None, COMPLETE):
        return result
    if row.may_require_input and (input_required := decode_input_required(raw, row.name)) is not None:
        return _build_pending(input_required, row, params, rounds)
    if extensions is not None and (added := _decode_added(raw, row, extensions)) is not None:
        return added
    # spec: basic#resulttype
    raise InvalidResult(f"the result of {row.name} has an unknown resultType")


def _decode_added(raw: Any, row: Method, extensions: "ClientExtensions | LoadExtensions") -> Result | None:
    label = f"the result of {row.name}"
    try:
        result_type = decode_body(raw, Result, label).result_type
    except InvalidResult:
        return None
    if callable(extensions):
        if result_type != TASK:
            return None
        extensions = extensions()
    added = extensions.result_types.get((row.name, result_type or ""))
    return None if added is None else decode_body(raw, added.struct, label)


def _build_pending(
    input_required: InputRequiredResult, row: Method, params: dict[str, Any], rounds: int
) -> RequestAwaitingInput:
    request_params = {name: value for name, value in params.items() if name not in ("inputResponses", "requestState")}
    return RequestAwaitingInput(
        method=row.name,
        params=request_params,
        input_requests=input_required.input_requests or {},
        request_state=input_required.request_state,
        round=rounds + 1,
    )


URL_ELICITATION_REQUIRED: Final = -32042

_MISSING_HANDLER_HINT: Final = "pass url_elicitation_handler= to the client, because the user must open a URL first"


class URLElicitations:
    """Asks the user to open URLs that the server sends in an error, and then repeats the request."""

    def __init__(self, name: str, handlers: InputHandlers, limits: ClientLimits, completion_timeout: float) -> None:
        self._name = name
        self._handlers = handlers
        self._limits = limits
        self._completion_timeout = completion_timeout
        self._pending_events: dict[str, asyncio.Event] = {}

    def mark_complete(self, id: str) -> None:
        event = self._pending_events.get(id)
        if event is not None:
            event.set()

    async def elicit_and_retry(self, error: RemoteError, step: str, send: Callable[[], Awaitable[Any]]) -> Any:
        """Ask the user to open the URLs in an error, and retry the request until the server accepts it."""
        accepted_ids: set[str] = set()
        for _ in range(self._limits.max_input_rounds):
            try:
                await self._elicit_all(error, accepted_ids)
            except MCPError as exc:
                raise add_context(exc, server=self._name, step=step) from exc.__cause__
            try:
                return await send()
            except RemoteError as again:
                if again.code != URL_ELICITATION_REQUIRED:
                    raise
                error = again
        raise add_context(
            InputRequestError(
                f"the server asked the user to open URLs in more than {self._limits.max_input_rounds} rounds"
            ),
            server=self._name,
            step=step,
        )

    async def _elicit_all(self, error: RemoteError, accepted_ids: set[str]) -> None:
        elicitations = _read_elicitations(error)
        if len(elicitations) > self._limits.max_input_requests:
            raise InputRequestError(
                f"the server sent {len(elicitations)} input requests at once, more than the "
                f"limit of {self._limits.max_input_requests}"
            )
        # The events are created before the handlers run. An elicitation may be complete before its handler returns.
        events = {
            elicitation.elicitation_id: asyncio.Event()
            for elicitation in elicitations
            if elicitation.elicitation_id is not None
        }
        self._pending_events |= events
        try:
            for elicitation in elicitations:
                if elicitation.elicitation_id not in accepted_ids:
                    await self._elicit(elicitation, error)
            accepted_ids.update(events)
            # Some servers never report that an elicitation is complete.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._completion_timeout):
                    for event in events.values():
                        await event.wait()
        finally:
            for id in events:
                self._pending_events.pop(id, None)

    async def _elicit(self, elicitation: ElicitRequestParams, error: RemoteError) -> None:
        try:
            result = await self._handlers.elicit(elicitation)
        except (MethodNotFound, UndeclaredMode):
            raise add_context(error, hint=_MISSING_HANDLER_HINT) from None
        except ProtocolError as exc:
            raise InputRequestError(exc.message) from None
        if result.action != "accept":
            raise ElicitationDeclined() if result.action == "decline" else ElicitationCancelled()


def _read_elicitations(error: RemoteError) -> list[ElicitRequestParams]:
    try:
        items: Any = error.data["elicitations"]
        elicitations = [convert(item, ElicitRequestParams) for item in items]
    except (TypeError, KeyError, ValueError, msgspec.ValidationError, MCPError):
        raise error from None
    if not elicitations or any(elicitation.mode != "url" for elicitation in elicitations):
        raise error
    return elicitations
