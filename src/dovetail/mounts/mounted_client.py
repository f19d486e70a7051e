"""Forward requests to the server of a client that is mounted on another server.

If both sides use the same protocol version, results are forwarded as bytes. Progress, log messages and input requests
are sent to the caller whose request caused them. If that caller is unknown, notifications are dropped and input
requests are rejected.
"""

import asyncio
import contextvars
import secrets
import weakref
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from dovetail.callbacks import add_callback, call_all
from dovetail.client.input_rounds import URL_ELICITATION_REQUIRED
from dovetail.client.item_lists import KEY_ATTRIBUTES, list_by_kind
from dovetail.client.request_sender import RequestOptions
from dovetail.client.session import Session
from dovetail.client.subscription import CHANGE_METHODS
from dovetail.errors import (
    InternalError,
    InvalidParams,
    MCPError,
    MethodNotFound,
    MissingClientCapability,
    NotFound,
    NotSupported,
    ProtocolError,
    RemoteError,
    RequestTimeout,
    ResourceNotFound,
    ToolError,
)
from dovetail.log import log
from dovetail.mounts.mountable import ResourceWatch
from dovetail.mounts.question_slots import QuestionSlots, find_largest_owner, get_question_owner
from dovetail.protocol import downgrade
from dovetail.protocol.client_messages import ASSUMED_CAPABILITIES
from dovetail.protocol.exchange import Caller, ChangeCallback, Emit, ForwardedResult, IncomingExchange
from dovetail.protocol.headers import HeaderPath
from dovetail.protocol.item_kinds import ItemKind
from dovetail.protocol.principal import Principal
from dovetail.protocol.request_state import compute_binding
from dovetail.protocol.subscription_filter import PROMPTS_LIST_CHANGED, RESOURCES_LIST_CHANGED, TOOLS_LIST_CHANGED
from dovetail.wire.base import Result, replace
from dovetail.wire.codec import encode, to_plain
from dovetail.wire.input_required import InputRequest, InputRequiredResult
from dovetail.wire.lifecycle import ClientCapabilities, ServerCapabilities
from dovetail.wire.logs import LEVELS, get_severity
from dovetail.wire.meta import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    LOG_LEVEL,
    PROGRESS_TOKEN,
    PROTOCOL_VERSION,
    is_reserved,
)
from dovetail.wire.methods import METHODS
from dovetail.wire.progress import ProgressParams
from dovetail.wire.raw_message import (
    decode_body,
    decode_input_required,
    drop_repeated_members,
    may_ask_for_input,
)

if TYPE_CHECKING:
    from dovetail.mounts.parked_call_router import Continuation, ParkedCallRouter
    from dovetail.protocol.interfaces.shared_state import SharedWorker
    from dovetail.tasks.client_tasks import ClientTasks
    from dovetail.tasks.task_messages import CreateTaskResult

Send: TypeAlias = Callable[[IncomingExchange, dict[str, Any]], Coroutine[Any, Any, Any]]

ANSWER_TIMEOUT_S: Final = 600.0  # A caller must answer within this many seconds.
# The server may still ask questions about a cancelled call. For this many seconds after the cancellation,
# such questions are not sent to other callers.
_ABANDONED_CALL_S: Final = 60.0
_MAX_PARKED_CALLS: Final = 256
# Callers can invent names, so unknown names cause at most one list in this many seconds. If a server adds a tool
# without a notification, calls of the tool are forwarded without a check of their headers until the next list.
_UNKNOWN_TOOL_LIST_S: Final = 60.0
_REQUEST_KEY: Final = "q"
_BINDING_CHARS: Final = 64  # the length of a digest in hexadecimal digits


class ParkedCall:
    """A call that stays open on the server while its caller answers an input request."""

    def __init__(self, exchange: IncomingExchange, send: Send) -> None:
        self.exchange = exchange
        self.binding_key = _compute_binding(exchange)
        self.input_request: InputRequest | None = None
        self.expiry_timer: asyncio.TimerHandle | None = None  # runs while the call waits for its caller
        self._response: asyncio.Future[Any] | None = None
        self._ask_lock = asyncio.Lock()
        self._wakeup = asyncio.Event()
        params = {name: value for name, value in exchange.params.items() if name not in _ROUND_PARAMS}
        self.task = asyncio.get_running_loop().create_task(send(exchange, params))
        self.task.add_done_callback(lambda _: self._wakeup.set())

    async def ask(self, method: str, params: dict[str, Any]) -> Any:
        """Send an input request to the caller and return the answer. Only one input request can be open at a time."""
        async with self._ask_lock:
            self._response = asyncio.get_running_loop().create_future()
            self.input_request = InputRequest(method=method, params=params or None)
            self._wakeup.set()
            try:
                return await self._response
            finally:
                self.input_request = None

    def set_response(self, response: Any) -> None:
        if self._response is not None and not self._response.done():
            self.input_request = None
            self._response.set_result(response)

    def cancel(self) -> None:
        """Cancel the call and its open input request."""
        self.task.cancel()
        if self._response is not None:
            self._response.cancel()

    async def wait_next(self) -> Any:
        """Wait until the call has a result or needs more input."""
        while not self.task.done():
            if self.input_request is not None:
                return self.input_request
            self._wakeup.clear()
            await self._wakeup.wait()
        return self.task.result()


_ROUND_PARAMS: Final = frozenset({"_meta", "inputResponses", "requestState"})


def _compute_binding(exchange: IncomingExchange) -> bytes:
    # Each mounted client stores only its own calls, so the server does not need to be part of the key.
    return compute_binding(exchange.caller.principal, (), exchange.method, exchange.params)


def _create_random_ticket() -> str:
    return secrets.token_urlsafe(24)


class ParkedCalls:
    """The calls of a mounted client that are paused until their callers answer."""

    def __init__(self) -> None:
        self._tickets: dict[str, ParkedCall] = {}
        self._calls_by_exchange: dict[int, ParkedCall] = {}
        # In a cluster, these functions create and remove the tickets, because a ticket must name this worker.
        self._create_ticket: Callable[[], str] = _create_random_ticket
        self._forget_ticket: Callable[[str], None] | None = None

    def use_tickets(self, create_ticket: Callable[[], str], forget_ticket: Callable[[str], None]) -> None:
        """Use these functions to create and remove tickets."""
        self._create_ticket, self._forget_ticket = create_ticket, forget_ticket

    def find(self, exchange: IncomingExchange) -> ParkedCall | None:
        """Return the paused call that the request continues, or None."""
        return self._calls_by_exchange.get(id(exchange))

    def has_ticket(self, exchange: IncomingExchange) -> bool:
        """Return whether the `requestState` of a request refers to a waiting call."""
        return str(exchange.params.get("requestState")) in self._tickets

    @property
    def is_busy(self) -> bool:
        return bool(self._tickets)

    @property
    def exchanges(self) -> list[IncomingExchange]:
        return [call.exchange for call in self._tickets.values()]

    async def run(self, exchange: IncomingExchange, send: Send) -> Any:
        """Start or continue a call. Return its encoded result, or a result that asks for input."""
        if "requestState" in exchange.params:
            call = self.find_ticket(str(exchange.params["requestState"]), _compute_binding(exchange))
            self._resume(call, exchange)
        else:
            if len(self._tickets) >= _MAX_PARKED_CALLS:
                self._drop_call()
            call = ParkedCall(exchange, send)
        return await self._wait(call, exchange)

    async def continue_call(self, call: ParkedCall, exchange: IncomingExchange) -> Any:
        """Continue a call that `find_ticket` returned. Return its encoded result, or a result that asks for input."""
        self._resume(call, exchange)
        return await self._wait(call, exchange)

    async def _wait(self, call: ParkedCall, exchange: IncomingExchange) -> Any:
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
        ticket = self._create_ticket()
        self._tickets[ticket] = call
        call.expiry_timer = asyncio.get_running_loop().call_later(ANSWER_TIMEOUT_S, self._expire, ticket)
        return InputRequiredResult(
            result_type="input_required", input_requests={_REQUEST_KEY: input_request}, request_state=ticket
        )

    def find_ticket(self, ticket: str, binding: bytes) -> ParkedCall:
        """Return the call with this ticket. Raise InvalidParams if it belongs to another caller or request."""
        call = self._tickets.get(ticket)
        if call is None or call.binding_key != binding:
            raise InvalidParams("Invalid params: requestState is not valid for this request")
        return call

    def _resume(self, call: ParkedCall, exchange: IncomingExchange) -> None:
        self._remove_ticket(exchange.params["requestState"])
        responses: Any = exchange.params.get("inputResponses")
        if type(responses) is dict and _REQUEST_KEY in responses:
            call.set_response(to_plain(responses[_REQUEST_KEY]))
        # The call continues in a new request, which receives all further notifications.
        call.exchange.emit, call.exchange.meta = exchange.emit, exchange.meta

    def _remove_ticket(self, ticket: str) -> ParkedCall | None:
        if self._forget_ticket is not None:
            self._forget_ticket(ticket)
        call = self._tickets.pop(ticket, None)
        if call is not None and call.expiry_timer is not None:
            call.expiry_timer.cancel()
        return call

    def _expire(self, ticket: str) -> None:
        call = self._remove_ticket(ticket)
        if call is not None:
            self._cancel(call)

    def _drop_call(self) -> None:
        owners = {ticket: get_question_owner(call.exchange) for ticket, call in self._tickets.items()}
        largest_owner = find_largest_owner(owners.values())
        self._expire(next(ticket for ticket, owner in owners.items() if owner == largest_owner))

    def _cancel(self, call: ParkedCall) -> None:
        self._calls_by_exchange.pop(id(call.exchange), None)
        call.cancel()

    def clear(self) -> None:
        """Cancel all waiting calls."""
        for ticket in tuple(self._tickets):
            self._expire(ticket)


class AbandonedCalls:
    """Remembers the callers of cancelled and timed-out calls. The server may still ask questions about these calls."""

    def __init__(self) -> None:
        self._last_caller: Caller | None = None
        self._is_last_unknown = False
        self._has_several_callers = False
        self._ends_at = 0.0

    def add(self, exchange: IncomingExchange) -> None:
        """Remember the caller of an abandoned call for a while."""
        self._has_several_callers = not self.are_only_of(exchange)
        self._last_caller, self._is_last_unknown = exchange.caller, _is_unknown(exchange)
        self._ends_at = asyncio.get_running_loop().time() + _ABANDONED_CALL_S

    @contextmanager
    def watching(self, exchange: IncomingExchange) -> Generator[None]:
        """Remember the caller if the call is cancelled or times out within this context."""
        try:
            yield
        except (asyncio.CancelledError, RequestTimeout):
            self.add(exchange)
            raise

    def are_only_of(self, exchange: IncomingExchange) -> bool:
        """Return whether this request has the same caller as all recently abandoned calls.

        Anonymous callers on this machine count as one.
        """
        if self._last_caller is None or asyncio.get_running_loop().time() >= self._ends_at:
            return True
        if self._has_several_callers:
            return False
        return _is_same_caller(self._last_caller, exchange.caller) or (self._is_last_unknown and _is_unknown(exchange))


def _is_unknown(exchange: IncomingExchange) -> bool:
    return exchange.origin is None and exchange.caller.principal is None and not exchange.caller.session_id


# An input filter checks an input request before the caller sees it.
# The filter returns an answer, or None to ask the caller. To reject the request, it raises ProtocolError.
InputFilter: TypeAlias = Callable[[str, Mapping[str, Any]], Mapping[str, Any] | None]

# The reference is weak, because timers and tasks keep the context in which they were created.
_current_exchange: ContextVar["weakref.ref[IncomingExchange] | None"] = ContextVar("dovetail_forwarded", default=None)


class ServerChanges:
    """The changes that the server of a mounted client reports, and the functions that are called for each change."""

    def __init__(self, client: Any, max_reconnect_delay: float) -> None:
        self.callbacks: dict[object, ChangeCallback] = {}
        self.tool_change_count = 0  # the number of times that the server has reported a change of its tools
        self._client = client
        self._max_reconnect_delay = max_reconnect_delay
        self._context = contextvars.copy_context()  # A request may start to listen, but must not pass on its context.
        self._task: asyncio.Task[None] | None = None
        self._is_unsupported = False  # True if the server does not report changes
        self._listen_again_at = 0.0  # the earliest time for the next attempt to listen

    def reset(self) -> None:
        """Allow the next attempt to listen, because the client has a new connection."""
        self._is_unsupported, self._listen_again_at = False, 0.0

    def listen(self) -> None:
        """Start to listen for changes of lists, unless a task already listens.

        Each attempt after the first one reports all lists as changed.
        """
        loop, previous_task = asyncio.get_running_loop(), self._task
        if not self._is_unsupported and (
            previous_task is None or (previous_task.done() and loop.time() >= self._listen_again_at)
        ):
            self._task = loop.create_task(
                self._watch_lists(is_repeated=previous_task is not None), context=self._context.copy()
            )

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def watch_resources(self, uris: list[str]) -> ResourceWatch:
        """Listen for updates of resources. Raise MCPError if the server refuses all of them."""
        subscription = self._client.listen(tools=False, prompts=False, resources=False, uris=uris)
        await subscription.__aenter__()
        accepted_filter = subscription.acknowledged_filter
        accepted_uris = (accepted_filter.resource_subscriptions if accepted_filter is not None else None) or ()
        if not accepted_uris:
            await subscription.aclose()
            raise NotSupported("the server refused the subscription to these resources")
        task = asyncio.get_running_loop().create_task(self._forward(subscription), context=self._context.copy())
        return ResourceWatch(accepted_uris, task.cancel)  # pyright: ignore[reportArgumentType]

    async def _watch_lists(self, *, is_repeated: bool) -> None:
        self._is_unsupported = not await self._forward(
            self._client.listen(),
            (TOOLS_LIST_CHANGED, PROMPTS_LIST_CHANGED, RESOURCES_LIST_CHANGED) if is_repeated else (),
        )
        self._listen_again_at = asyncio.get_running_loop().time() + self._max_reconnect_delay

    async def _forward(self, changes: Any, missed: Sequence[str] = ()) -> bool:
        try:
            async with changes:
                for notice in missed:
                    self._report(notice, None)
                async for change in changes:
                    self._report(CHANGE_METHODS[change.kind], change.uri)
        except NotSupported:
            return False
        except Exception as exc:
            log.warning("the subscription to changes of %s ended: %s", self._client.name, exc)
        return True

    def _report(self, method: str, uri: str | None) -> None:
        if method == TOOLS_LIST_CHANGED:
            self.tool_change_count += 1
        call_all(self.callbacks, method, uri)


class MountedClient:
    """A client whose server can be mounted on another server."""

    is_remote = True

    def __init__(
        self,
        client: Any,
        session: Session,
        get_tasks: "Callable[[], ClientTasks]",
        *,
        is_shared: bool = False,
        declare_all: bool = True,
        input_filter: InputFilter | None = None,
    ) -> None:
        self.name: str = client.name
        self._client = client
        self._get_tasks = get_tasks
        self._request_sender = session.sender
        self._reconnector = session.reconnector
        self._callbacks = session.callbacks
        self._limits = session.limits
        self._call_timeout = session.timeouts.call
        self._active_exchanges: list[IncomingExchange] = []
        # Tracks whether requests came from several callers. All anonymous callers on this machine count as one caller.
        self._has_local_callers = False
        self._other_caller: Caller | None = None
        self._has_several_callers = False
        self._abandoned_calls = AbandonedCalls()
        self._parked_calls = ParkedCalls()
        self._router: ParkedCallRouter | None = None  # None if the mounting server is not in a cluster
        self._mount = ""  # identifies this mount at all workers
        # This limit is one below the limit of the connection. So an old input request is dropped
        # before the connection refuses a new input request.
        self._question_slots = QuestionSlots(max(1, session.limits.max_input_requests - 1))
        self._input_filter = input_filter
        self._changes = ServerChanges(client, session.limits.max_reconnect_delay)
        self._listed_change_count = 0  # the number of changes before the tools were listed for `find_header_paths`
        self._list_again_at = 0.0  # the earliest time to list the tools because of an unknown name
        session.sender.tracks_own_requests = is_shared
        is_own_request = self._is_own_request if is_shared else None
        session.set_relay(self._handle_input_request, self._forward_log, is_own_request, declare_all=declare_all)

    def join_cluster(self, cluster: "SharedWorker", path: str) -> None:
        """Continue parked calls of other workers, and let them continue the calls of this worker.

        `path` identifies this mount at all workers.
        """
        from dovetail.mounts.parked_call_router import get_router  # Few servers are in a cluster.

        self._router, self._mount = get_router(cluster), path
        self._parked_calls.use_tickets(
            partial(self._router.create_ticket, self._continue_call), self._router.remove_ticket
        )

    async def _continue_call(self, continuation: "Continuation", emit: Emit) -> Result | bytes:
        """Continue a parked call with an answer that another worker received."""
        binding, mount = continuation.binding[:_BINDING_CHARS], continuation.binding[_BINDING_CHARS:]
        if mount != self._mount:
            raise InvalidParams("Invalid params: requestState is not valid for this request")
        call = self._parked_calls.find_ticket(continuation.ticket, bytes.fromhex(binding))
        params: dict[str, Any] = {"requestState": continuation.ticket, "inputResponses": continuation.responses}
        original = call.exchange
        exchange = IncomingExchange(
            original.id, original.method, params, continuation.meta, original.caller, origin=original.origin, emit=emit
        )
        self._active_exchanges.append(exchange)
        try:
            result = await self._parked_calls.continue_call(call, exchange)
            encoder = self._reconnector.encoder
            is_same_version = encoder is not None and original.caller.protocol_version == encoder.revision
            return result if is_same_version else self._convert_result(original, result)
        except MCPError as exc:
            raise self._convert_error(exc, original) from None
        finally:
            self._active_exchanges.remove(exchange)

    def _find_other_worker(self, exchange: IncomingExchange) -> str | None:
        """Return the worker that holds the parked call of a request. Return None if this worker may hold it."""
        ticket = exchange.params.get("requestState")
        return None if self._router is None or ticket is None else self._router.find_other_worker(ticket)

    async def start(self) -> None:
        """Connect if necessary, and listen for changes."""
        if not self._client.is_connected:
            await self._client.connect()
            self._changes.reset()
        if self._changes.callbacks:
            self._changes.listen()

    async def stop(self) -> None:
        self._parked_calls.clear()
        await self._changes.stop()
        await self._client.close()

    def capabilities(self) -> ServerCapabilities:
        return self._client.server_capabilities if self._client.is_connected else ASSUMED_CAPABILITIES

    async def list_items(self, kind: ItemKind, exchange: IncomingExchange) -> Mapping[str, Any]:
        items = await list_by_kind(self._client, kind, self.capabilities())
        return {getattr(item, KEY_ATTRIBUTES[kind]): item for item in items}

    async def has_item(self, kind: ItemKind, name: str, exchange: IncomingExchange) -> bool:
        """Return whether the server may have an item. With resource templates, a server may have any resource."""
        if name in await self.list_items(kind, exchange):
            return True
        return kind == "resource" and bool(await self.list_items("resource template", exchange))

    async def find_header_paths(self, name: str, exchange: IncomingExchange) -> Sequence[HeaderPath]:
        """Return the headers that repeat arguments of a tool. List the tools if the definition may be outdated."""
        index, change_count = self._request_sender.tool_index, self._changes.tool_change_count
        if (
            not index.is_complete
            or change_count != self._listed_change_count
            or (name not in index.entries and asyncio.get_running_loop().time() >= self._list_again_at)
        ):
            try:
                await self.start()
                await self.list_items("tool", exchange)
            except MCPError as exc:
                raise self._convert_error(exc, exchange) from None
            self._listed_change_count = change_count
            self._list_again_at = asyncio.get_running_loop().time() + _UNKNOWN_TOOL_LIST_S
        entry = index.entries.get(name)
        return () if entry is None else entry.get_declared_paths()

    def watch_changes(self, callback: ChangeCallback) -> Callable[[], None]:
        """Call `callback` for each change while the client is connected. Return a function to stop the calls."""
        return add_callback(self._changes.callbacks, callback)

    def can_receive_updates(self, uri: str, principal: Principal | None) -> bool:
        """Return True, because only the remote server can check who may receive updates."""
        return True

    async def watch_resources(self, uris: list[str], principal: Principal | None) -> ResourceWatch:
        """Listen for updates of additional resources. Raise MCPError if the server refuses all of them."""
        await self.start()
        return await self._changes.watch_resources(uris)

    async def handle(
        self, exchange: IncomingExchange, timeout: float | None = None, *, accepts_task: bool = False
    ) -> Result | bytes:
        """Forward a request. If both sides use the same protocol version, return the result as bytes.

        `timeout` is the number of seconds for each attempt. Time that users need to answer the server does not count.
        If `accepts_task` is True, the result of a call may be a `CreateTaskResult` with the ID of the server. Otherwise
        the server runs the call in the foreground. If the server refuses this, wait for its task.
        """
        timeout = _MAX_CALL_TIMEOUT_S if timeout is None else timeout
        token = _current_exchange.set(weakref.ref(exchange))
        self._active_exchanges.append(exchange)
        if exchange.origin is None and self._other_caller is None:
            self._has_local_callers = True
        elif not self._has_several_callers:
            self._note_caller(exchange)
        try:
            encoder = self._reconnector.encoder
            if encoder is None or self._changes.callbacks:
                await self.start()
                encoder = self._reconnector.encoder
            is_stateless_server = encoder is not None and encoder.is_stateless
            if (
                exchange.caller.is_stateless
                and (not is_stateless_server or "requestState" in exchange.params)
                and self._must_park(exchange, is_stateless_server=is_stateless_server)
            ):
                result = await self._run_parked(exchange, timeout)
            else:
                wants_progress = exchange.progress_token is not None
                params, options = self._build_request(
                    exchange, exchange.params, timeout, wants_progress=wants_progress, accepts_task=accepts_task
                )
                try:
                    result = ForwardedResult(
                        await self._request_sender.forward(METHODS[exchange.method], params, options)
                    )
                except (asyncio.CancelledError, RequestTimeout):
                    self._abandoned_calls.add(exchange)
                    raise
                except RemoteError as exc:
                    if exc.code != MissingClientCapability.code or accepts_task:
                        raise
                    result = await self._wait_for_required_task(exc, exchange, params, timeout)
                result = await self._finish_forwarding(exchange, params, result, timeout, accepts_task=accepts_task)
            encoder = self._reconnector.encoder
            if encoder is not None and exchange.caller.protocol_version == encoder.revision:
                return result
            return self._convert_result(exchange, result)
        except MCPError as exc:
            raise self._convert_error(exc, exchange) from None
        finally:
            self._active_exchanges.remove(exchange)
            _current_exchange.reset(token)

    def _must_park(self, exchange: IncomingExchange, *, is_stateless_server: bool) -> bool:
        """Return whether a call must stay open at the server while its caller sends the request again with answers."""
        return METHODS[exchange.method].may_require_input and (not is_stateless_server or self._has_ticket(exchange))

    async def _run_parked(self, exchange: IncomingExchange, timeout: float) -> Any:
        """Start or continue a call that waits for answers of its caller, at the worker that holds the call."""
        with self._abandoned_calls.watching(exchange):
            if self._router is not None and (worker := self._find_other_worker(exchange)) is not None:
                return await self._router.continue_elsewhere(worker, exchange, _compute_binding(exchange), self._mount)
            return await self._parked_calls.run(exchange, partial(self._send, timeout=timeout))

    async def _finish_forwarding(
        self,
        exchange: IncomingExchange,
        params: dict[str, Any],
        result: Any,
        timeout: float,
        *,
        accepts_task: bool,
    ) -> Any:
        """Wait for notifications, and answer the input requests in a result. Return the final result, or its task."""
        # All notifications must be sent before the response.
        await self._callbacks.flush(self._call_timeout)
        encoder = self._reconnector.encoder
        is_stateless = encoder is not None and encoder.is_stateless
        if is_stateless and type(result) is ForwardedResult and may_ask_for_input(result):
            result = await self._send_until_complete(exchange, params, result, timeout, accepts_task=accepts_task)
        if accepts_task and isinstance(result, bytes) and (task := _decode_task(result)) is not None:
            return task
        return result

    def _has_ticket(self, exchange: IncomingExchange) -> bool:
        return self._parked_calls.has_ticket(exchange) or self._find_other_worker(exchange) is not None

    def _note_caller(self, exchange: IncomingExchange) -> None:
        caller, other_caller = exchange.caller, self._other_caller
        self._has_several_callers = self._has_local_callers or (
            other_caller is not None and not _is_same_caller(caller, other_caller)
        )
        self._other_caller = caller

    async def _send(
        self, exchange: IncomingExchange, params: dict[str, Any], *, timeout: float, accepts_task: bool = False
    ) -> ForwardedResult:
        wants_progress = exchange.progress_token is not None or self._parked_calls.find(exchange) is not None
        params, options = self._build_request(
            exchange, params, timeout, wants_progress=wants_progress, accepts_task=accepts_task
        )
        with self._abandoned_calls.watching(exchange):
            result = ForwardedResult(await self._request_sender.forward(METHODS[exchange.method], params, options))
        # All notifications must be sent before the response.
        await self._callbacks.flush(self._call_timeout)
        return result

    async def _send_until_complete(
        self,
        exchange: IncomingExchange,
        params: dict[str, Any],
        raw: ForwardedResult,
        timeout: float,
        *,
        accepts_task: bool,
    ) -> ForwardedResult | InputRequiredResult:
        rounds = 0
        can_ask = not exchange.caller.is_stateless or self._parked_calls.find(exchange) is not None
        while self._request_sender.is_stateless:
            raw = ForwardedResult(drop_repeated_members(raw))
            input_required = decode_input_required(raw, exchange.method)
            if input_required is None:
                break
            if rounds >= self._limits.max_input_rounds:
                raise InternalError(f"{self.name} asked for input in more than {rounds} rounds")
            requests = input_required.input_requests or {}
            responses = await self._ask_each(exchange, requests) if can_ask else self._filter_requests(requests)
            if responses is None:
                return input_required
            rounds += 1
            params = params | {"inputResponses": responses}
            if input_required.request_state is not None:
                params["requestState"] = input_required.request_state
            raw = await self._send(exchange, params, timeout=timeout, accepts_task=accepts_task)
        return raw

    async def _ask_each(self, exchange: IncomingExchange, requests: Mapping[str, InputRequest]) -> dict[str, Any]:
        return {
            key: await self._answer_input_request(exchange, request.method, request.params or {})
            for key, request in requests.items()
        }

    async def _wait_for_required_task(
        self, error: RemoteError, exchange: IncomingExchange, params: dict[str, Any], timeout: float
    ) -> ForwardedResult | InputRequiredResult:
        """Send a call again as a task, because the server refused to run the tool without a task. Wait for the task.

        A caller in a stateless version answers the task's questions by sending its request again.
        """
        from dovetail.mounts.forwarded_tasks import requires_tasks

        if not requires_tasks(error):
            raise error
        with self._abandoned_calls.watching(exchange):
            if exchange.caller.is_stateless:
                return await self._parked_calls.run(exchange, partial(self._run_task, timeout=timeout))
            return await self._run_task(exchange, params, timeout=timeout)

    async def _run_task(
        self, exchange: IncomingExchange, params: dict[str, Any], *, timeout: float
    ) -> ForwardedResult | InputRequiredResult:
        from dovetail.mounts.forwarded_tasks import wait_for_task

        raw = await self._send(exchange, params, timeout=timeout, accepts_task=True)
        result = await self._send_until_complete(exchange, params, raw, timeout, accepts_task=True)
        if isinstance(result, InputRequiredResult) or (task := _decode_task(result)) is None:
            return result
        outcome = await wait_for_task(
            self._get_tasks(),
            task,
            partial(self._ask_each, exchange),
            self._create_progress_handler(exchange),
            timeout,
        )
        return ForwardedResult(encode({**outcome, "resultType": "complete"}))

    def _filter_requests(self, requests: Mapping[str, InputRequest]) -> dict[str, Any] | None:
        if self._input_filter is None:
            return None
        outcomes = {key: self._input_filter(request.method, request.params or {}) for key, request in requests.items()}
        responses = {key: outcome for key, outcome in outcomes.items() if outcome is not None}
        if responses and len(responses) < len(requests):
            raise InvalidParams(
                f"Not allowed: {self.name} sent several input requests together, and the policy "
                "allows only some of them"
            )
        return responses or None

    def _build_request(
        self,
        exchange: IncomingExchange,
        params: dict[str, Any],
        timeout: float,
        *,
        wants_progress: bool,
        accepts_task: bool,
    ) -> tuple[dict[str, Any], RequestOptions]:
        """Return the parameters and the options for a forwarded request. The options have the caller's `_meta`.

        In protocol versions without a handshake, they also contain the caller's identity.
        """
        if "_meta" in params:
            params = {name: value for name, value in params.items() if name != "_meta"}
        meta = {
            name: value for name, value in exchange.meta.items() if name not in _REPLACED_META and not is_reserved(name)
        }
        encoder, caller = self._reconnector.encoder, exchange.caller
        if encoder is not None and encoder.is_stateless:
            # Of the mounted server's extensions, the mounting server supports only tasks.
            if accepts_task:
                meta[CLIENT_CAPABILITIES] = _add_tasks(caller.client_capabilities)
            else:
                meta[CLIENT_CAPABILITIES] = (
                    caller.client_capabilities
                    if caller.client_capabilities.extensions is None
                    else replace(caller.client_capabilities, extensions=None)
                )
            if caller.client_info is not None:
                meta[CLIENT_INFO] = caller.client_info
            if caller.log_level is not None:
                meta[LOG_LEVEL] = LEVELS[caller.log_level]
        progress_handler = self._create_progress_handler(exchange) if wants_progress else None
        return params, RequestOptions(progress_handler=progress_handler, meta=meta, total_timeout=timeout)

    def _convert_result(self, exchange: IncomingExchange, raw: Result | ForwardedResult) -> Result | bytes:
        if isinstance(raw, Result):
            return raw
        row = METHODS[exchange.method]
        if exchange.caller.is_stateless and self._request_sender.is_stateless:
            input_required = decode_input_required(raw, row.name)
            if input_required is not None:
                return input_required
        tool = self._request_sender.tool_index.entries.get(str(exchange.params.get("name")))
        if self._request_sender.is_stateless and tool is not None:
            exchange.wraps = downgrade.must_wrap(tool.tool.output_schema)
        return decode_body(raw, row.result or Result, f"the result of {row.name}")

    def _convert_error(self, exc: MCPError, exchange: IncomingExchange) -> MCPError:
        if exchange.method == "resources/read" and (isinstance(exc, NotFound) or _is_resource_not_found(exc)):
            return ResourceNotFound(str(exchange.params.get("uri")))
        if isinstance(exc, RemoteError):
            if exc.code == URL_ELICITATION_REQUIRED and self._denies_pages():
                return InvalidParams(f"Not allowed: {self.name} asks for a page, and the policy denies this")
            error = ProtocolError(exc.message, exc.data)
            error.code = exc.code
            return error
        if isinstance(exc, ProtocolError | ToolError):
            return exc
        if isinstance(exc, NotSupported):
            return MethodNotFound(exchange.method)
        if isinstance(exc, RequestTimeout):
            return InternalError(f"{self.name} did not respond in time")
        log.warning("a request to %s failed: %s", self.name, exc)
        return InternalError(f"{self.name} could not handle the request. See the server's log for the reason")

    def _denies_pages(self) -> bool:
        return self._input_filter is not None and self._input_filter("elicitation/create", {"mode": "url"}) is not None

    def _create_progress_handler(self, exchange: IncomingExchange) -> Any:
        async def progress(done: float, total: float | None, message: str | None) -> None:
            token = exchange.progress_token
            if token is None:
                return
            params = ProgressParams(progress_token=token, progress=done, total=total, message=message)
            await exchange.notify("notifications/progress", params)

        return progress

    def _forward_log(self, params: dict[str, Any]) -> None:
        exchange = self._get_active_exchange()
        if exchange is None and not self._has_several_callers:
            # All calls come from one caller, so that caller may receive the message.
            exchange = self._find_exchange()
        level = params.get("level")
        if exchange is None or exchange.caller.log_level is None or level not in LEVELS:
            return
        if get_severity(level) >= exchange.caller.log_level:
            self._callbacks.call(exchange.notify, "notifications/message", params)

    def _find_exchange(self) -> IncomingExchange | None:
        """Find the request to which the server's message belongs. Return None if the request cannot be determined."""
        if (current := self._get_active_exchange()) is not None:
            return current
        exchanges = [*self._parked_calls.exchanges, *self._active_exchanges]
        if self._request_sender.own_request_count or not exchanges:
            return None
        last = exchanges[-1]
        is_certain = self._abandoned_calls.are_only_of(last) and all(
            exchange is last or _is_same_caller(exchange.caller, last.caller) for exchange in exchanges
        )
        return last if is_certain else None

    def _get_active_exchange(self) -> IncomingExchange | None:
        reference = _current_exchange.get()
        current = None if reference is None else reference()
        if current is None or current in self._active_exchanges or self._parked_calls.find(current) is not None:
            return current
        return None

    def _is_own_request(self) -> bool:
        if self._get_active_exchange() is not None:
            return False
        return self._request_sender.is_own_request() or not (self._active_exchanges or self._parked_calls.is_busy)

    async def _handle_input_request(self, method: str, params: dict[str, Any]) -> Any:
        exchange = self._find_exchange()
        if exchange is None:
            raise InvalidParams("Invalid params: it is unclear which call needs the input")
        return await self._question_slots.run(
            get_question_owner(exchange), self._answer_input_request(exchange, method, params)
        )

    async def _answer_input_request(self, exchange: IncomingExchange, method: str, params: dict[str, Any]) -> Any:
        call: ParkedCall | None = self._parked_calls.find(exchange)
        if call is None:
            return await self._ask_caller(exchange, method, params)
        if self._input_filter is not None and (response := self._input_filter(method, params)) is not None:
            return response
        if not _has_capability(exchange.caller.client_capabilities, method):
            raise MethodNotFound(method)
        return await call.ask(method, {name: value for name, value in params.items() if name != "_meta"})

    async def _ask_caller(self, exchange: IncomingExchange, method: str, params: dict[str, Any]) -> Any:
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


_MAX_CALL_TIMEOUT_S: Final = 86400.0  # One day. The caller's own timeout is usually shorter.
_REPLACED_META: Final = frozenset({PROGRESS_TOKEN, PROTOCOL_VERSION, CLIENT_INFO, CLIENT_CAPABILITIES, LOG_LEVEL})


def _add_tasks(capabilities: ClientCapabilities) -> ClientCapabilities:
    from dovetail.mounts.forwarded_tasks import add_tasks  # Few calls become tasks.

    return add_tasks(capabilities)


def _decode_task(raw: bytes) -> "CreateTaskResult | None":
    from dovetail.mounts.forwarded_tasks import decode_created_task

    return decode_created_task(raw)


def _is_resource_not_found(exc: MCPError) -> bool:
    """Return whether an error means that a resource does not exist.

    Protocol version 2026-07 has no error code for this, but its error contains the URI.
    """
    return isinstance(exc, RemoteError) and exc.code == InvalidParams.code and "uri" in (exc.data or ())


def _is_same_caller(first: Caller, second: Caller) -> bool:
    """Return whether two requests certainly come from the same caller.

    An equal address is not enough, because many callers may share an address.
    """
    if first.principal is not None or second.principal is not None:
        return first.principal == second.principal
    return first is second or (first.session_id != "" and first.session_id == second.session_id)


def _has_capability(capabilities: ClientCapabilities, method: str) -> bool:
    return getattr(capabilities, method.partition("/")[0], None) is not None
