"""Forwarding: the server behind a client, offered to the callers of another server.

Bytes go through as they came where both sides speak the same revision. Progress, log messages and questions go to the
caller whose request they belong to; where that cannot be told, to nobody.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, TypeAlias

from dovetail.client.input_rounds import INPUT_REQUIRED
from dovetail.client.request_sender import RequestOptions
from dovetail.client.session import Session
from dovetail.errors import (
    InternalError,
    InvalidParams,
    MCPError,
    MethodNotFound,
    NotFound,
    NotSupported,
    ProtocolError,
    RateLimited,
    RemoteError,
    RequestTimeout,
    ResourceNotFound,
    ServerBusy,
    ToolError,
)
from dovetail.protocol import downgrade
from dovetail.protocol.exchange import Exchange, ForwardedResult
from dovetail.protocol.mountable import ChangeCallback, ItemKind
from dovetail.protocol.principal import Principal
from dovetail.protocol.request_state import compute_binding
from dovetail.protocol.subscription_filter import (
    PROMPTS_LIST_CHANGED,
    RESOURCE_UPDATED,
    RESOURCES_LIST_CHANGED,
    TOOLS_LIST_CHANGED,
)
from dovetail.wire.base import Result
from dovetail.wire.codec import to_plain
from dovetail.wire.input_required import InputRequest, InputRequiredResult
from dovetail.wire.lifecycle import ClientCapabilities, ListChangedCapability, ResourcesCapability, ServerCapabilities
from dovetail.wire.logs import LEVELS, get_severity
from dovetail.wire.meta import CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL, PROGRESS_TOKEN, is_reserved
from dovetail.wire.methods import METHODS
from dovetail.wire.progress import ProgressParams
from dovetail.wire.raw_message import decode_body

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
            raise ServerBusy("Too many calls wait for answers")
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


log = logging.getLogger("dovetail")

_NOTICE_METHODS: Final = {
    "tools": TOOLS_LIST_CHANGED,
    "prompts": PROMPTS_LIST_CHANGED,
    "resources": RESOURCES_LIST_CHANGED,
    "resource": RESOURCE_UPDATED,
}
_INPUT_REQUIRED_MARKER: Final = b'"input_required"'

# Before it was ever reached, a server may have anything.
_ASSUMED_CAPABILITIES: Final = ServerCapabilities(
    tools=ListChangedCapability(list_changed=True),
    prompts=ListChangedCapability(list_changed=True),
    resources=ResourcesCapability(subscribe=True, list_changed=True),
    completions={},
)

# Looks at a question before it is put to a caller: the answer to give instead, or None; ProtocolError to refuse it.
InputFilter: TypeAlias = Callable[[str, Mapping[str, Any]], Mapping[str, Any] | None]

_current_exchange: ContextVar[Exchange | None] = ContextVar("dovetail_forwarded", default=None)


class MountedClient:
    """One client as something to mount."""

    is_remote = True

    def __init__(
        self,
        client: Any,
        session: Session,
        *,
        is_shared: bool = False,
        declare_all: bool = True,
        input_filter: InputFilter | None = None,
    ) -> None:
        self.name: str = client.name
        self._client = client
        self._request_sender = session.sender
        self._callbacks = session.callbacks
        self._limits = session.limits
        self._call_timeout = session.timeouts.call
        self._active_exchanges: list[Exchange] = []
        self._parked_calls = ParkedCalls()
        self._input_filter = input_filter
        self._change_listeners: list[ChangeCallback] = []
        self._listen_task: asyncio.Task[None] | None = None
        self._has_no_changes = False  # the server tells of nothing
        self._listen_again_at = 0.0  # is it listened to again
        session.sender.tracks_own_requests = is_shared
        is_own_request = self._is_own_request if is_shared else None
        session.set_relay(self._handle_input_request, self._forward_log, is_own_request, declare_all=declare_all)

    # Life

    async def start(self) -> None:
        """Connect, unless that is done, and listen to what changes."""
        if not self._client.is_connected:
            await self._client.connect()
            self._has_no_changes, self._listen_again_at = False, 0.0
        if self._change_listeners and not self._has_no_changes:
            self._start_listening()

    def _start_listening(self) -> None:
        """Listen, unless that is done; again, a while after it has ended, and then nobody knows what was missed."""
        loop, previous_task = asyncio.get_running_loop(), self._listen_task
        if previous_task is None or (previous_task.done() and loop.time() >= self._listen_again_at):
            self._listen_task = loop.create_task(self._watch_lists(is_repeated=previous_task is not None))

    async def stop(self) -> None:
        """Leave the server."""
        self._parked_calls.clear()
        listen_task, self._listen_task = self._listen_task, None
        if listen_task is not None:
            listen_task.cancel()
            await asyncio.wait([listen_task])
        await self._client.close()

    def capabilities(self) -> ServerCapabilities:
        """What the server declared."""
        return self._client.server_capabilities if self._client.is_connected else _ASSUMED_CAPABILITIES

    # Lists

    async def list_items(self, kind: ItemKind, exchange: Exchange) -> Mapping[str, Any]:
        """What the server lists."""
        client, capabilities = self._client, self.capabilities()
        match kind:
            case "tool":
                return {tool.name: tool for tool in await client.list_tools()} if capabilities.tools is not None else {}
            case "prompt":
                return (
                    {prompt.name: prompt for prompt in await client.list_prompts()}
                    if capabilities.prompts is not None
                    else {}
                )
            case "resource":
                return (
                    {resource.uri: resource for resource in await client.list_resources()}
                    if capabilities.resources is not None
                    else {}
                )
            case _:
                templates = await client.list_resource_templates() if capabilities.resources is not None else ()
                return {template.uri_template: template for template in templates}

    async def has_item(self, kind: ItemKind, name: str, exchange: Exchange) -> bool:
        """Whether the server lists it; what a template may stand for, only the server knows."""
        if name in await self.list_items(kind, exchange):
            return True
        return kind == "resource" and bool(await self.list_items("resource template", exchange))

    # Changes

    def watch_changes(self, callback: ChangeCallback) -> Callable[[], None]:
        """Hear of the server's changes, once it is reached."""
        self._change_listeners.append(callback)

        def stop() -> None:
            if callback in self._change_listeners:
                self._change_listeners.remove(callback)

        return stop

    def can_receive_updates(self, uri: str, principal: Principal | None) -> bool:
        """Whether a caller may hear of a resource: only the server knows."""
        return True

    async def watch_resources(self, uris: list[str], principal: Principal | None) -> Callable[[], None]:
        """Hear of these resources too."""
        await self.start()
        subscription = self._client.listen(tools=False, prompts=False, resources=False, uris=uris)
        with contextlib.suppress(MCPError):
            await subscription.__aenter__()
        task = asyncio.get_running_loop().create_task(self._forward_changes(subscription))
        return task.cancel  # pyright: ignore[reportReturnType]

    async def _watch_lists(self, *, is_repeated: bool) -> None:
        self._has_no_changes = not await self._forward_changes(
            self._client.listen(),
            (TOOLS_LIST_CHANGED, PROMPTS_LIST_CHANGED, RESOURCES_LIST_CHANGED) if is_repeated else (),
        )
        self._listen_again_at = asyncio.get_running_loop().time() + self._limits.max_reconnect_delay

    async def _forward_changes(self, changes: Any, missed: Sequence[str] = ()) -> bool:
        """Pass on what changes until that ends; False if it is not told."""
        try:
            async with changes:
                for notice in missed:
                    self._notify_listeners(notice)
                async for change in changes:
                    self._notify_listeners(_NOTICE_METHODS[change.kind], change.uri)
        except NotSupported:
            return False
        except Exception as exc:
            log.warning("the changes of %s are not heard any more: %s", self.name, exc)
        return True

    def _notify_listeners(self, notice: str, uri: str | None = None) -> None:
        for callback in tuple(self._change_listeners):
            callback(notice, uri)

    # Requests

    async def handle(self, exchange: Exchange, timeout: float | None = None) -> Result | bytes:
        """Have the server answer, in the words it shares with the caller, or translated; `most`: within these seconds.

        People may take their time to answer what it asks.
        """
        send = partial(self._send, timeout=_MAX_CALL_TIMEOUT_S if timeout is None else timeout)
        await self._ensure_started(exchange)
        token = _current_exchange.set(exchange)
        self._active_exchanges.append(exchange)
        try:
            if (
                exchange.caller.is_stateless
                and not self._request_sender.is_stateless
                and METHODS[exchange.method].may_require_input
            ):
                return self._convert_result(exchange, await self._parked_calls.run(exchange, send))
            return self._convert_result(exchange, await self._send_until_complete(exchange, send))
        except MCPError as exc:
            raise self._convert_error(exc, exchange) from None
        finally:
            self._active_exchanges.remove(exchange)
            _current_exchange.reset(token)

    async def _ensure_started(self, exchange: Exchange) -> None:
        try:
            await self.start()
        except MCPError as exc:
            raise self._convert_error(exc, exchange) from None

    async def _send(self, exchange: Exchange, params: dict[str, Any], *, timeout: float) -> Any:
        row = METHODS[exchange.method]
        wants_progress = exchange.progress_token is not None or self._parked_calls.find(exchange) is not None
        progress = self._create_progress_handler(exchange) if wants_progress else None
        options = RequestOptions(progress_handler=progress, meta=self._build_meta(exchange), total_timeout=timeout)
        result = ForwardedResult(await self._request_sender.forward(row, params, options))
        await self._callbacks.flush(self._call_timeout)  # what came on the way goes before the answer
        return result

    async def _send_until_complete(self, exchange: Exchange, send: Send) -> Any:
        """The raw result. A server of the stateless era asks in it: where the caller can be asked, it is."""
        params = {name: value for name, value in exchange.params.items() if name != "_meta"}
        rounds = 0
        while True:
            raw = await send(exchange, params)
            if not self._request_sender.is_stateless or _INPUT_REQUIRED_MARKER not in raw:
                return raw
            input_required = decode_body(raw, InputRequiredResult, f"the result of {exchange.method}")
            if input_required.result_type != INPUT_REQUIRED or rounds >= self._limits.max_input_rounds:
                return raw
            requests = input_required.input_requests or {}
            responses = (
                self._filter_requests(requests)
                if exchange.caller.is_stateless
                else await self._ask_each(exchange, requests)
            )
            if responses is None:
                return raw
            rounds += 1
            params = params | {"inputResponses": responses}
            if input_required.request_state is not None:
                params["requestState"] = input_required.request_state

    async def _ask_each(self, exchange: Exchange, requests: Mapping[str, InputRequest]) -> dict[str, Any]:
        return {
            key: await self._ask_caller(exchange, request.method, request.params or {})
            for key, request in requests.items()
        }

    def _filter_requests(self, requests: Mapping[str, InputRequest]) -> dict[str, Any] | None:
        """The answers to give instead of the caller's; None if it is to be asked, InvalidParams for some of each."""
        if self._input_filter is None:
            return None
        outcomes = {key: self._input_filter(request.method, request.params or {}) for key, request in requests.items()}
        responses = {key: outcome for key, outcome in outcomes.items() if outcome is not None}
        if responses and len(responses) < len(requests):
            raise InvalidParams(f"Not allowed: some of what {self.name} asks at once")
        return responses or None

    def _build_meta(self, exchange: Exchange) -> dict[str, Any]:
        """The caller's own `_meta`, and, to a stateless server, who it is and what it can be asked."""
        meta = {
            name: value for name, value in exchange.meta.items() if name != PROGRESS_TOKEN and not is_reserved(name)
        }
        if not self._request_sender.is_stateless:
            return meta
        caller = exchange.caller
        meta[CLIENT_CAPABILITIES] = caller.client_capabilities
        if caller.client_info is not None:
            meta[CLIENT_INFO] = caller.client_info
        if caller.log_level is not None:
            meta[LOG_LEVEL] = LEVELS[caller.log_level]
        return meta

    def _convert_result(self, exchange: Exchange, raw: Result | ForwardedResult) -> Result | bytes:
        if isinstance(raw, Result):
            return raw
        revision = self._client.protocol_version
        if exchange.caller.protocol_version == revision:
            return raw
        row = METHODS[exchange.method]
        if exchange.caller.is_stateless and self._request_sender.is_stateless and _INPUT_REQUIRED_MARKER in raw:
            return decode_body(raw, InputRequiredResult, f"the result of {row.name}")
        tool = self._request_sender.tool_index.get(str(exchange.params.get("name")))
        if self._request_sender.is_stateless and tool is not None:
            exchange.wraps = downgrade.is_wrapped(tool.tool.output_schema)
        return decode_body(raw, row.result or Result, f"the result of {row.name}")

    def _convert_error(self, exc: MCPError, exchange: Exchange) -> MCPError:
        """The server's refusal as this side's own; what never travels is logged, and only told of."""
        if exchange.method == "resources/read" and (isinstance(exc, NotFound) or _is_resource_not_found(exc)):
            return ResourceNotFound(str(exchange.params.get("uri")))
        if isinstance(exc, RemoteError) and not isinstance(exc, RateLimited):
            error = ProtocolError(exc.message, exc.data)
            error.code = exc.code
            return error
        if isinstance(exc, ProtocolError | ToolError | RateLimited):
            return exc
        if isinstance(exc, RequestTimeout):
            return InternalError(f"{self.name} did not answer in time")
        log.warning("a request for %s failed: %s", self.name, exc)
        return InternalError(f"{self.name} could not answer; the server's log says why")

    # On the way

    def _create_progress_handler(self, exchange: Exchange) -> Any:
        async def progress(done: float, total: float | None, message: str | None) -> None:
            token = exchange.progress_token
            if token is None:
                return
            params = ProgressParams(progress_token=token, progress=done, total=total, message=message)
            await exchange.notify("notifications/progress", params)

        return progress

    def _forward_log(self, params: dict[str, Any]) -> None:
        exchange = self._find_exchange()
        level = params.get("level")
        if exchange is None or exchange.caller.log_level is None or level not in LEVELS:
            return
        if get_severity(level) >= exchange.caller.log_level:
            self._callbacks.call(exchange.notify, "notifications/message", params)

    def _find_exchange(self) -> Exchange | None:
        """Whose request something belongs to: told by the stream it came on, or because there is only one caller."""
        if (current := self._get_active_exchange()) is not None:
            return current
        exchanges = [*self._parked_calls.exchanges, *self._active_exchanges]
        if self._request_sender.own_request_count or not exchanges:
            return None
        last = exchanges[-1]
        return last if all(exchange is last or _is_same_caller(exchange, last) for exchange in exchanges) else None

    def _get_active_exchange(self) -> Exchange | None:
        """The exchange this runs for, if it is not over."""
        current = _current_exchange.get()
        if current is None or current in self._active_exchanges or self._parked_calls.find(current) is not None:
            return current
        return None

    def _is_own_request(self) -> bool:
        """Whether a question is about what the client itself requested."""
        if self._get_active_exchange() is not None:
            return False
        return self._request_sender.is_own_request() or not (self._active_exchanges or self._parked_calls.is_busy)

    async def _handle_input_request(self, method: str, params: dict[str, Any]) -> Any:
        """A handshake server asks: so is the caller, directly or by ending its round."""
        exchange = self._find_exchange()
        if exchange is None:
            raise InvalidParams("Invalid params: it cannot be told whose request the question belongs to")
        call: ParkedCall | None = self._parked_calls.find(exchange)
        if call is None:
            return await self._ask_caller(exchange, method, params)
        if self._input_filter is not None and (response := self._input_filter(method, params)) is not None:
            return response
        if not _has_capability(exchange.caller.client_capabilities, method):
            raise MethodNotFound(method)
        return await call.ask(method, {name: value for name, value in params.items() if name != "_meta"})

    async def _ask_caller(self, exchange: Exchange, method: str, params: dict[str, Any]) -> Any:
        if self._input_filter is not None and (response := self._input_filter(method, params)) is not None:
            return response
        if exchange.ask is None or not _has_capability(exchange.caller.client_capabilities, method):
            raise MethodNotFound(method)
        method, params = downgrade.downgrade_request(exchange.caller.protocol_version, method, params)
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        exchange.pause(asked_at)
        try:
            return await exchange.ask(method, params)
        finally:
            exchange.resume(asked_at, loop.time())


_MAX_CALL_TIMEOUT_S: Final = 86400.0  # the caller's own limits end it


def _is_resource_not_found(exc: MCPError) -> bool:
    """The stateless era has no code for it: it is told by the URI that comes back."""
    return isinstance(exc, RemoteError) and exc.code == InvalidParams.code and "uri" in (exc.data or ())


def _is_same_caller(first: Exchange, second: Exchange) -> bool:
    """Whether two requests are surely of one: an address may be that of many."""
    first_caller, second_caller = first.caller, second.caller
    if first_caller.principal is not None or second_caller.principal is not None:
        return first_caller.principal == second_caller.principal
    return first_caller is second_caller or (
        first_caller.session_id != "" and first_caller.session_id == second_caller.session_id
    )


def _has_capability(capabilities: ClientCapabilities, method: str) -> bool:
    return getattr(capabilities, method.partition("/")[0], None) is not None
