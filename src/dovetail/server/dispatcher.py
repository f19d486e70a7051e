"""Dispatcher: finds and runs the work for an exchange. The `Service` that transports see of a server.

Exchange in, result out, without any transport. A request looks up and runs, because registration has compiled
everything. No author's function can end the server or disturb another call: whatever it raises is contained here.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from dovetail.error_context import clip
from dovetail.errors import (
    InsufficientScope,
    InvalidParams,
    MethodNotFound,
    PromptNotFound,
    ProtocolError,
    RemoteError,
    ResourceNotFound,
    ServerBusy,
    ToolError,
    ToolNotFound,
)
from dovetail.protocol import subscription_filter as topics
from dovetail.protocol.exchange import ChangeListener, Exchange, convert_params
from dovetail.protocol.headers import check_param_headers
from dovetail.protocol.limits import CallerBusy, ServerLimits
from dovetail.protocol.middleware import CallNext, Middleware, compose_middleware, reads_results, validate_middleware
from dovetail.protocol.mountable import NOT_FOUND_ERRORS
from dovetail.protocol.principal import Principal, get_remaining_seconds
from dovetail.protocol.request_state import Sealer
from dovetail.server.change_notices import ChangeQueue
from dovetail.server.completer import build_completion, find_matching
from dovetail.server.context import Context
from dovetail.server.exception_mask import mask_exception, unwrap_group
from dovetail.server.input_requests import InputRequests, InputRequired, InputRoundEnded
from dovetail.server.invocation import Runner
from dovetail.server.item_options import CacheHint
from dovetail.server.lifespan import Lifespan, LifespanRun, LoopState, log_start_failure
from dovetail.server.parameters.signature import InvalidArguments
from dovetail.server.registry import Registry
from dovetail.server.results import build_failure_result, check_read_result, to_prompt_messages, to_resource_contents
from dovetail.server.thread_pool import ThreadPool
from dovetail.server.tool import build_error_result
from dovetail.server.visibility import Visibility
from dovetail.wire.base import Result, replace
from dovetail.wire.completion import CompleteParams, CompleteResult, PromptReference
from dovetail.wire.lifecycle import DiscoverResult, Implementation, ServerCapabilities
from dovetail.wire.meta import SUBSCRIPTION_ID
from dovetail.wire.prompts import GetPromptResult
from dovetail.wire.resources import ReadResourceResult
from dovetail.wire.revisions import DRAFT
from dovetail.wire.subscriptions import ListenParams, ListenResult, SubscriptionFilter

if TYPE_CHECKING:
    from pathlib import Path

    from dovetail.protocol.mountable import ItemKind, Mountable
    from dovetail.protocol.recording_format import Recorder
    from dovetail.protocol.stats import EndpointStats, ServerStats
    from dovetail.server.access_rules import AccessRule
    from dovetail.server.mounts.mounted_servers import MountedServers
    from dovetail.server.mounts.name_map import NameMap

RECORDING_VARIABLE: Final = "DOVETAIL_RECORDING"  # the recording file of every server and client

_SWEEP_INTERVAL_S: Final = 0.5  # how often running calls are looked at, seconds
_MAX_TIMER_TIMEOUT_S: Final = 2.0  # a tool's own limit under this has a timer of its own
_LARGE_MESSAGE_BYTES: Final = 64 * 1024  # bytes of a message worth counting
_ITEM_FIELD_BY_METHOD: Final[dict[str, tuple["ItemKind", str]]] = {
    "tools/call": ("tool", "name"),
    "resources/read": ("resource", "uri"),
    "prompts/get": ("prompt", "name"),
}


class Dispatcher:
    """The requests of one server: handlers, middleware, running calls, limits, and the state of each event loop."""

    def __init__(
        self,
        registry: Registry,
        visibility: Visibility,
        *,
        implementation: Implementation,
        instructions: str | None,
        protocol_versions: tuple[str, ...],
        limits: ServerLimits,
        lifespan: Lifespan | None,
        secret_keys: Sequence[str | bytes],
        recording: "str | Path | None",
        debug: bool,
    ) -> None:
        self.registry = registry
        self.visibility = visibility
        self.implementation = implementation
        self.instructions = instructions
        self.protocol_versions = protocol_versions
        self.limits = limits
        self.mounts: MountedServers | None = None  # once something is mounted
        self._max_calls = limits.max_calls
        self._max_calls_per_principal = limits.max_calls_per_principal
        self._call_timeout = limits.call_timeout
        self._debug = debug
        self._recording = recording
        self._open_recorder: Recorder | None = None
        self._sealer = Sealer(secret_keys)
        self._has_secret_keys = bool(secret_keys)
        self._thread_pool = ThreadPool(limits)
        self._state_by_loop: dict[asyncio.AbstractEventLoop, LoopState] = {}
        self._last_state: LoopState | None = None  # one of them, the last that was looked up
        self._lifespan = lifespan
        self._middleware: list[Middleware] = []
        self._handlers: dict[str, CallNext] = {
            "server/discover": self._discover,
            "tools/list": visibility.list_tools,
            "tools/call": self._call_tool if registry.result_store is None else self._call_and_store,
            "resources/list": visibility.list_resources,
            "resources/templates/list": visibility.list_templates,
            "resources/read": self._read_resource,
            "prompts/list": visibility.list_prompts,
            "prompts/get": self._get_prompt,
            "completion/complete": self._complete,
            "subscriptions/listen": self._listen,
        }
        self._wrapped_handlers: dict[str, CallNext] = self._handlers

    @property
    def name(self) -> str:
        """The name of the server."""
        return self.implementation.name

    @property
    def recorder(self) -> "Recorder | None":
        """The function that records every message, if `recording=` or DOVETAIL_RECORDING names a file."""
        path = self._recording or os.environ.get(RECORDING_VARIABLE)
        if path and self._open_recorder is None:
            from dovetail.recording.trace import RecordingWriter

            self._open_recorder = RecordingWriter(path, self.name).record
        return self._open_recorder

    @property
    def stores_large_results(self) -> bool:
        """Whether this server, or one of this process that is mounted on it, stores large results."""
        mounted_servers = self.mounts.list_local_servers() if self.mounts is not None else ()
        return self.registry.result_store is not None or any(server.stores_large_results for server in mounted_servers)

    @property
    def inspects_results(self) -> bool:
        """Whether results are read here, by middleware or for their size."""
        return self.registry.result_store is not None or any(reads_results(function) for function in self._middleware)

    def add_middleware(self, function: Middleware) -> None:
        """Wrap every request in a function, inside those that were added before."""
        self._middleware.append(validate_middleware(function))
        if callable(getattr(function, "on_change", None)):
            self.registry.subscriptions.add_callback(cast("Any", function).on_change)
        self._wrap_handlers()

    def _wrap_handlers(self) -> None:
        self._wrapped_handlers = {
            method: compose_middleware(self._middleware, handler) for method, handler in self._handlers.items()
        }

    def mount(
        self, target: "Mountable", name_map: "NameMap", access_rule: "AccessRule | None" = None
    ) -> Callable[[], None]:
        """Offer the items of another server. Call the returned function to remove the mount."""
        from dovetail.server.mounts.local_server import LocalServer, contains_server
        from dovetail.server.mounts.mounted_servers import MountedServers

        if isinstance(target, LocalServer) and contains_server(target.server, self):
            raise ValueError(f"{target.name} cannot be mounted on {self.name}, which is part of it")
        if self.mounts is None:
            self.mounts = self.registry.mounted_names = MountedServers(self, self._handlers)
            self._handlers = self.mounts.handlers
            self._wrap_handlers()
        if isinstance(target, LocalServer):
            target.server.use_sealer(self._sealer)  # so that any worker of this server opens what another sealed
        if access_rule is not None:
            self.registry.ensure_access_rules()
        return self.mounts.add(target, name_map, access_rule)

    def use_sealer(self, sealer: Sealer) -> None:
        """Seal request state with the keys of another server, unless this one has its own."""
        if not self._has_secret_keys:
            self._sealer = sealer

    def list_used_scopes(self) -> tuple[str, ...]:
        """Return every scope that an item needs, those of mounted servers of this process included."""
        own_scopes = self.registry.access_rules.scopes if self.registry.access_rules is not None else ()
        return tuple(dict.fromkeys((*own_scopes, *(self.mounts.list_used_scopes() if self.mounts is not None else ()))))

    async def dispatch(self, exchange: Exchange) -> Result | bytes:
        """Return the result of an exchange that another server, which has this one mounted, handles."""
        if not self._middleware:
            return await self._wrapped_handlers[exchange.method](exchange)
        previous_check, exchange.check = exchange.check, self._check_exchange
        try:
            return await self._wrapped_handlers[exchange.method](exchange)
        finally:
            exchange.check = previous_check

    async def _check_exchange(self, exchange: Exchange) -> None:
        kind, field = _ITEM_FIELD_BY_METHOD[exchange.method]
        await self.check_access(kind, exchange.params[field], exchange)

    async def check_access(self, kind: "ItemKind", name: str, exchange: Exchange) -> None:
        """Raise as a request for this item would if the caller may not use it."""
        principal = exchange.caller.principal
        if self.mounts is not None and not self.visibility.has_item(kind, name, principal):
            await self.mounts.resolver.check_access(kind, name, exchange)
            return
        if kind == "resource":
            self.visibility.find_resource(name, principal)
            return
        self.visibility.check_scopes(kind, name, principal)
        if not self.visibility.has_item(kind, name, principal):
            raise NOT_FOUND_ERRORS[kind](name)

    def capabilities(self) -> ServerCapabilities:
        """Return the capabilities of this server and of what is mounted on it."""
        own_capabilities = self.registry.capabilities()
        return own_capabilities if self.mounts is None else self.mounts.capabilities(own_capabilities)

    # Start and stop

    async def start(self, user: object = None) -> None:
        """Open the lifespan in the running event loop, for a user or for the server itself."""
        state = self._get_state()
        while state.is_closing:
            await state.closed_event.wait()
            state = self._get_state()
        state.users.add(self if user is None else user)
        try:
            self.registry.warn_unused_rules()
            if self.mounts is not None:
                await self.mounts.start()
            if self._lifespan is not None:
                await self._get_lifespan_run(state, self._lifespan).wait_until_ready()
        except BaseException:
            await self._release_user(state, self if user is None else user)
            raise

    def _get_lifespan_run(self, state: LoopState, lifespan: Lifespan) -> LifespanRun:
        """The lifespan of this event loop, begun if it is not open."""
        run = state.lifespan_run
        if run is None or not (run.is_open or run.is_starting):
            run = state.lifespan_run = LifespanRun(lifespan, self.name)
        return run

    async def _open_lifespan_for_request(self, state: LoopState, lifespan: Lifespan) -> None:
        """Open the lifespan for a request to a server that was not started. It stays open until `stop`."""
        run = self._get_lifespan_run(state, lifespan)
        try:
            await run.wait_until_ready()
        except BaseException as exc:
            if exc is run.failure:
                raise log_start_failure(self.name, exc) from None
            raise
        state.users.add(self)

    async def stop(self, user: object = None) -> None:
        """End what runs in this event loop. With a `user`, only if no other user and no other caller is left."""
        if user is None:
            await self._close_state(self._get_state())
        elif (state := self._state_by_loop.get(asyncio.get_running_loop())) is not None:
            await self._release_user(state, user)

    async def _release_user(self, state: LoopState, user: object) -> None:
        if user not in state.users:
            return
        state.users.remove(user)
        if state.users:
            return
        if any(
            exchange.verdict is None for exchange in state.running_exchanges
        ) or self.registry.subscriptions.has_listener_on(state.loop):
            state.users.add(self)  # callers that did not start the server still need it, and their end is not reported
        else:
            await self._close_state(state)

    async def _close_state(self, state: LoopState) -> None:
        if state.is_closing:
            await state.closed_event.wait()
            return
        state.is_closing = True
        try:
            for queue in tuple(state.change_queues):
                queue.close()
            await _wait_for_calls(state, self.limits.drain_timeout)
            for exchange in tuple(state.running_exchanges):
                if exchange.task is not asyncio.current_task():
                    exchange.end("shutdown")
            await _wait_for_calls(state, 1.0)
            if state.lifespan_run is not None:
                await state.lifespan_run.close()
            if self.mounts is not None:
                await self.mounts.stop()
        finally:
            if state.lifespan_run is not None:
                state.lifespan_run.end()
            self._state_by_loop.pop(state.loop, None)
            self._last_state = None
            state.closed_event.set()

    def stats(self, endpoints: "Iterable[EndpointStats]") -> "ServerStats":
        """Return what is open or running now, here and at the HTTP endpoints of this server."""
        from dovetail.protocol.stats import ServerStats

        states = tuple(self._state_by_loop.values())
        endpoints = tuple(endpoints)
        return ServerStats(
            running_calls=sum(len(state.running_exchanges) for state in states),
            open_questions=sum(
                len(call.questions or ()) for state in states for call in tuple(state.running_exchanges)
            ),
            subscriptions=sum(len(state.change_queues) for state in states),
            busy_threads=self._thread_pool.busy,
            sessions=sum(endpoint.sessions for endpoint in endpoints),
            streams=sum(endpoint.streams for endpoint in endpoints),
            buffered_bytes=sum(endpoint.buffered_bytes for endpoint in endpoints),
            replay_bytes=sum(endpoint.replay_bytes for endpoint in endpoints),
        )

    def _get_state(self) -> LoopState:
        """The state of the running event loop."""
        loop = asyncio.get_running_loop()
        state = self._last_state
        return state if state is not None and state.loop is loop else self._find_or_create_state(loop)

    def _find_or_create_state(self, loop: asyncio.AbstractEventLoop) -> LoopState:
        state = self._state_by_loop.get(loop)
        if state is None:
            for other_loop in tuple(self._state_by_loop):
                if other_loop.is_closed():
                    self._state_by_loop.pop(other_loop, None)
            state = self._state_by_loop[loop] = LoopState(loop)
        self._last_state = state
        return state

    # Exchanges

    async def handle(self, exchange: Exchange) -> Result | bytes:
        """Return the result of one exchange. Raises only ProtocolError."""
        handler = self._wrapped_handlers.get(exchange.method)
        if handler is None:
            raise MethodNotFound(exchange.method)
        loop = asyncio.get_running_loop()
        state = self._last_state
        if state is None or state.loop is not loop:
            state = self._find_or_create_state(loop)
        if state.is_closing:
            raise ServerBusy("The server is shutting down")
        if self._lifespan is not None and (state.lifespan_run is None or not state.lifespan_run.is_open):
            await self._open_lifespan_for_request(state, self._lifespan)  # what is mounted is started when it is used
            if state.is_closing:  # `stop` was called meanwhile, and does not wait for this request
                raise ServerBusy("The server is shutting down")
        if exchange.method == "subscriptions/listen":
            return await self._handle_subscription(exchange, handler, state)
        running_exchanges = state.running_exchanges
        if (len(running_exchanges) >= self._max_calls and self._is_full(running_exchanges)) or (
            exchange.size > _LARGE_MESSAGE_BYTES and self._is_overloaded(exchange, running_exchanges)
        ):
            raise ServerBusy("Too many calls are at work")
        origin = exchange.origin
        if origin is not None:
            if state.calls_by_origin[origin] >= self._max_calls_per_principal:
                self._check_share(origin, state)
            state.calls_by_origin[origin] += 1
        if exchange.task is None:
            exchange.task = asyncio.current_task(loop)
        exchange.deadline = loop.time() + self._call_timeout
        if not state.is_sweeping:
            state.is_sweeping = True
            loop.call_later(self._get_sweep_interval(), self._sweep_overdue, state)
        running_exchanges.add(exchange)
        if self._middleware:
            exchange.check = self._check_exchange
        try:
            return await handler(exchange)
        except ProtocolError:
            raise
        except BaseException as exc:
            error = unwrap_group(exc)
            if isinstance(error, ProtocolError):
                raise error from None
            if isinstance(error, (ToolError, RemoteError)):
                raise InvalidParams(str(error)) from None
            raise self._mask_exception(exchange, exc, exchange.method) from None
        finally:
            running_exchanges.discard(exchange)
            exchange.emit = None  # what the author left running has lost its ear. spec: progress#implementation-notes
            if origin is not None:
                _release_share(state.calls_by_origin, origin)

    async def _handle_subscription(self, exchange: Exchange, handler: CallNext, state: LoopState) -> Result:
        """A subscription lives as long as its listener: it is not a call at work, and has a share of its own."""
        if exchange.origin is not None:
            if state.subscriptions_by_origin[exchange.origin] >= self.limits.max_subscriptions_per_principal:
                raise _make_share_error(self.limits.max_subscriptions_per_principal)
            state.subscriptions_by_origin[exchange.origin] += 1
        try:
            return await handler(exchange)
        except ProtocolError:
            raise
        except BaseException as exc:
            raise self._mask_exception(exchange, exc, exchange.method) from None
        finally:
            if exchange.origin is not None:
                _release_share(state.subscriptions_by_origin, exchange.origin)

    def _is_full(self, running_exchanges: set[Exchange]) -> bool:
        """Whether there is no room for one more call. Those that wait for a user have as much room as the others."""
        waiting_count = sum(1 for exchange in running_exchanges if exchange.questions)
        return len(running_exchanges) - min(waiting_count, self.limits.max_calls) >= self.limits.max_calls

    def _check_share(self, origin: str, state: LoopState) -> None:
        """Raise Busy if there is no room for one more call of this caller, those that wait for a user apart."""
        limit = self.limits.max_calls_per_principal
        waiting_count = sum(
            1 for exchange in state.running_exchanges if exchange.questions and exchange.origin == origin
        )
        if state.calls_by_origin[origin] - min(waiting_count, limit) >= limit:
            raise _make_share_error(limit)

    def _is_overloaded(self, exchange: Exchange, running_exchanges: set[Exchange]) -> bool:
        """Whether one more large message would be too much; small ones are never held up by large ones."""
        large_bytes = sum(
            running_exchange.size
            for running_exchange in running_exchanges
            if running_exchange.size > _LARGE_MESSAGE_BYTES
        )
        return large_bytes > 0 and large_bytes + exchange.size > self.limits.max_inflight_bytes

    # Tools

    async def _call_tool(self, exchange: Exchange) -> Result:
        params = exchange.params
        name, arguments = params.get("name"), params.get("arguments")
        registry = self.registry
        tool = registry.tools.get(name) if type(name) is str else None
        if tool is None or (
            registry.access_rules is not None and not self.visibility.is_available(exchange, "tool", tool.name)
        ):
            raise ToolNotFound(name) if type(name) is str else InvalidParams("Invalid params: name must be a string")
        if arguments is None:
            arguments = {}
        elif type(arguments) is not dict:
            raise InvalidParams("Invalid params: arguments must be an object")
        if tool.headers and exchange.headers is not None and exchange.caller.is_stateless:
            check_param_headers(tool.headers, arguments, exchange.headers)
        exchange.wraps = tool.wraps
        try:
            return tool.output.to_result(await self._run_function(exchange, tool.runner, tool.signature, arguments))
        except ProtocolError:
            raise
        except BaseException as exc:
            exchange.exception = error = unwrap_group(exc)
            if isinstance(error, ProtocolError):
                raise error from None
            if isinstance(error, (ToolError, RemoteError)):
                return build_failure_result(error)
            return build_error_result(self._mask_exception(exchange, exc, f"tool {tool.name}").message)

    async def _call_and_store(self, exchange: Exchange) -> Result:
        """A call whose result may be too large to travel."""
        result = await self._call_tool(exchange)
        tool = self.registry.tools.get(exchange.params["name"])
        has_output_schema = tool is None or tool.output.schema is not None
        return self.store_large_parts(result, exchange, has_output_schema=has_output_schema)

    def store_large_parts(self, result: Result, exchange: Exchange, *, has_output_schema: bool) -> Result:
        """Return the result of a mounted tool, with links in place of large parts if this server stores them."""
        store = self.registry.result_store
        if store is None:
            return result
        return store.store_large_parts(result, exchange.caller.principal, has_output_schema=has_output_schema)

    def _run_function(
        self, exchange: Exchange, runner: Runner, signature: Any, arguments: dict[str, Any]
    ) -> Awaitable[Any]:
        """Bind and call; what is to be awaited is the author's own coroutine, unless it may ask something."""
        params = exchange.params
        if signature.context is not None or "requestState" in params or "inputResponses" in params:
            return self._run_with_context(exchange, runner, signature, arguments)
        args, kwargs = signature.bind(arguments, None)
        if runner.timeout is not None:
            exchange.deadline = _now() + runner.timeout
            if runner.timeout < _MAX_TIMER_TIMEOUT_S:
                return _run_until_deadline(exchange, runner(args, kwargs, self._thread_pool, exchange.origin))
        return runner(args, kwargs, self._thread_pool, exchange.origin)

    async def _run_with_context(
        self, exchange: Exchange, runner: Runner, signature: Any, arguments: dict[str, Any]
    ) -> Any:
        """Bind, call, and turn a question without an answer into the result that asks it."""
        input_requests = InputRequests(exchange, self._sealer, self.limits.request_state_ttl, self._debug)
        lifespan_run = self._get_state().lifespan_run if self._lifespan is not None else None
        context = Context(exchange, input_requests, self.name, None if lifespan_run is None else lifespan_run.value)
        while True:
            input_requests.begin_round()
            args, kwargs = signature.bind(arguments, context)
            if runner.timeout is not None:
                exchange.deadline = _now() + runner.timeout
            try:
                awaitable = runner(args, kwargs, self._thread_pool, exchange.origin)
                value = await (
                    _run_until_deadline(exchange, awaitable)
                    if (runner.timeout or _MAX_TIMER_TIMEOUT_S) < _MAX_TIMER_TIMEOUT_S
                    else awaitable
                )
            except InputRoundEnded:
                return input_requests.build_required_result()
            except BaseExceptionGroup as group:
                if group.split(InputRoundEnded)[1] is not None:
                    raise
                return input_requests.build_required_result()  # asked side by side, in a task group
            if input_requests.has_unanswered:
                raise RuntimeError(
                    "a question was asked, but an `except:` or `except BaseException:` kept it from the client"
                )
            if not isinstance(value, InputRequired):
                self._check_unreached_requests(input_requests)
                return value
            if exchange.caller.is_stateless:
                return input_requests.build_explicit_result(value)
            await input_requests.ask_explicit(value)

    def _check_unreached_requests(self, input_requests: InputRequests) -> None:
        if self._debug and (unreached_keys := input_requests.list_unreached_keys()):
            raise RuntimeError(
                f"the questions {', '.join(unreached_keys)} were asked in an earlier round but not in the last one: a "
                "function that asks runs again from the top in each round and must ask the same questions"
            )

    # Resources

    async def _read_resource(self, exchange: Exchange) -> Result:
        self.visibility.check_supported(exchange, "resources", self.registry.resources or self.registry.templates)
        uri = exchange.params.get("uri")
        if type(uri) is not str:
            raise InvalidParams("Invalid params: uri must be a string")
        if len(uri) > self.limits.max_uri_bytes:
            raise InvalidParams(f"Invalid params: uri is longer than {self.limits.max_uri_bytes} characters")
        resource, variables = self.visibility.find_resource(uri, exchange.caller.principal)
        try:
            value = await self._run_function(exchange, resource.runner, resource.signature, variables)
        except InvalidArguments:
            raise ResourceNotFound(uri) from None  # a variable of another kind names nothing
        if isinstance(value, Result):
            result = check_read_result(value) if isinstance(value, ReadResourceResult) else value
        else:
            contents = to_resource_contents(value, uri, resource.declaration.mime_type)
            result = ReadResourceResult(contents=contents)
        if isinstance(result, ReadResourceResult) and result.ttl_ms is None:
            cache_hint = resource.cache_hint or self.visibility.get_cache_hint("resources/read")
            if self.registry.access_rules is not None and self.visibility.is_restricted(resource, uri, variables):
                cache_hint = CacheHint(cache_hint.ttl_ms)  # what is not for everyone is not to be shared
            result = replace(result, ttl_ms=cache_hint.ttl_ms, cache_scope=cache_hint.scope)
        return result

    def can_subscribe(self, uri: str, principal: Principal | None) -> bool:
        """Return whether a handshake session may subscribe to a resource. InsufficientScope as for reading it."""
        is_allowed = self.can_receive_updates(uri, principal)
        if not is_allowed:
            self.visibility.check_scopes("resource", uri, principal)
        elif self.mounts is not None:
            self.mounts.watch_resource(uri, principal)
        return is_allowed

    def subscribe(self, listener: ChangeListener) -> Callable[[], None]:
        """Deliver change notices to a listener. Call the returned function to stop."""
        return self.registry.subscriptions.subscribe(listener)

    def can_receive_updates(self, uri: str, principal: Principal | None) -> bool:
        """Return whether this caller may receive updates of a resource.

        Without access rules, every caller may receive those of a resource that does not exist yet.
        """
        try:
            if self.registry.access_rules is not None or self.mounts is not None:
                self.visibility.find_resource(uri, principal)
        except ResourceNotFound:
            return (
                self.registry.access_rules is None
                if self.mounts is None
                else self.mounts.resolver.can_receive_updates(uri, principal)
            )
        except InsufficientScope:
            return False
        return True

    # Prompts

    async def _get_prompt(self, exchange: Exchange) -> Result:
        self.visibility.check_supported(exchange, "prompts", self.registry.prompts)
        name, arguments = exchange.params.get("name"), exchange.params.get("arguments")
        prompt = self.registry.prompts.get(name) if type(name) is str else None
        if prompt is None or not self.visibility.is_available(exchange, "prompt", prompt.declaration.name):
            raise PromptNotFound(name) if type(name) is str else InvalidParams("Invalid params: name must be a string")
        if arguments is not None and type(arguments) is not dict:
            raise InvalidParams("Invalid params: arguments must be an object")
        value = await self._run_function(exchange, prompt.runner, prompt.signature, arguments or {})
        if isinstance(value, Result) and not isinstance(value, GetPromptResult):
            return value
        try:
            messages = to_prompt_messages(value)
        except (TypeError, ValueError) as exc:
            raise TypeError(f"{prompt.signature.where}: {exc}") from exc
        if isinstance(messages, GetPromptResult):
            return messages
        return GetPromptResult(messages=messages, description=prompt.declaration.description)

    # Completion

    async def _complete(self, exchange: Exchange) -> Result:
        if not self.registry.has_completions():
            raise MethodNotFound(exchange.method)
        params = convert_params(exchange, CompleteParams)
        ref_name = params.ref.name if isinstance(params.ref, PromptReference) else params.ref.uri
        item: Any = (self.registry.prompts if isinstance(params.ref, PromptReference) else self.registry.templates).get(
            ref_name
        )
        kind = "prompt" if isinstance(params.ref, PromptReference) else "resource template"
        if item is None or not self.visibility.is_available(exchange, kind, ref_name):
            raise InvalidParams(f"Invalid params: nothing is called {clip(ref_name)}")
        argument, value = params.argument.name, params.argument.value
        if argument not in item.signature.parameters:
            raise InvalidParams(f"Invalid params: {clip(ref_name)} has no argument {clip(argument)}")
        completer = self.registry.completers.get((ref_name, argument))
        if completer is None:
            values: Any = find_matching(item.signature.choices.get(argument, ()), value)
        else:
            other_arguments = (params.context.arguments if params.context else None) or {}
            args = completer.build_arguments(value, other_arguments)
            values = await completer.runner(args, {}, self._thread_pool, exchange.origin)
        return CompleteResult(completion=build_completion(values))

    async def _discover(self, exchange: Exchange) -> Result:
        cache_hint = self.visibility.get_cache_hint(exchange.method)
        return DiscoverResult(
            supported_versions=[revision for revision in reversed(self.protocol_versions) if revision != DRAFT],
            capabilities=self.capabilities(),
            instructions=self.instructions,
            ttl_ms=cache_hint.ttl_ms,
            cache_scope=cache_hint.scope,
        )

    # Listening

    async def _listen(self, exchange: Exchange) -> Result:
        requested_filter = convert_params(exchange, ListenParams).notifications
        if any(len(uri) > self.limits.max_uri_bytes for uri in requested_filter.resource_subscriptions or ()):
            raise InvalidParams(f"Invalid params: uri is longer than {self.limits.max_uri_bytes} characters")
        capabilities = self.capabilities()
        if capabilities.tools is None and capabilities.prompts is None and capabilities.resources is None:
            raise MethodNotFound(exchange.method)
        granted_filter = self._restrict_filter(
            topics.restrict_filter(requested_filter, capabilities), exchange.caller.principal
        )
        meta = {SUBSCRIPTION_ID: exchange.id}
        spellings = topics.group_spellings(granted_filter.resource_subscriptions or ())
        queue = ChangeQueue(topics.create_matcher(granted_filter))
        stop = self.registry.subscriptions.subscribe(queue)
        change_queues = self._get_state().change_queues
        change_queues.add(queue)
        expiry_timer = _call_at_expiry(exchange.caller.principal, queue.close)
        try:
            await exchange.notify(
                "notifications/subscriptions/acknowledged", {"_meta": meta, "notifications": granted_filter}
            )
            while (changes := await queue.take()) is not None:
                for method, changed_key in changes:
                    for uri in topics.find_subscribed_uris(spellings, changed_key):
                        await exchange.notify(method, {"_meta": meta} | ({} if uri is None else {"uri": uri}))
        finally:
            stop()
            change_queues.discard(queue)
            if expiry_timer is not None:
                expiry_timer.cancel()
        return ListenResult(meta=meta)

    def _restrict_filter(
        self, subscription_filter: SubscriptionFilter, principal: Principal | None
    ) -> SubscriptionFilter:
        uris = subscription_filter.resource_subscriptions
        if not uris or (self.registry.access_rules is None and self.mounts is None):
            return subscription_filter
        return replace(
            subscription_filter,
            resource_subscriptions=[uri for uri in uris if self.can_receive_updates(uri, principal)],
        )

    # Containment

    def _get_sweep_interval(self) -> float:
        return min(_SWEEP_INTERVAL_S, self.limits.call_timeout / 4)

    def _sweep_overdue(self, state: LoopState) -> None:
        """Stop the calls whose time is up: one look at all of them is cheaper than a timer for each."""
        loop, running_exchanges = state.loop, state.running_exchanges
        now = loop.time()
        for exchange in tuple(running_exchanges):
            if exchange.questions:
                is_overdue, verdict = now > exchange.questions[0] + self.limits.request_state_ttl, "unanswered"
            else:
                is_overdue, verdict = exchange.deadline is not None and now > exchange.deadline, "timeout"
            if is_overdue:
                exchange.end(verdict)
        if running_exchanges:
            loop.call_later(self._get_sweep_interval(), self._sweep_overdue, state)
        else:
            state.is_sweeping = False

    def _mask_exception(self, exchange: Exchange, exc: BaseException, operation: str) -> ProtocolError:
        return mask_exception(exchange, exc, operation, server=self.name, debug=self._debug)


async def _wait_for_calls(state: LoopState, timeout: float) -> None:
    tasks = [exchange.task for exchange in state.running_exchanges if exchange.task is not asyncio.current_task()]
    if tasks:
        await asyncio.wait(tasks, timeout=timeout)


def _call_at_expiry(principal: Principal | None, callback: Callable[[], None]) -> asyncio.TimerHandle | None:
    """Call back when the credentials of the caller end."""
    remaining_seconds = get_remaining_seconds(principal, time.time())
    return None if remaining_seconds is None else asyncio.get_running_loop().call_later(remaining_seconds, callback)


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _run_until_deadline(exchange: Exchange, awaitable: Awaitable[Any]) -> Any:
    """Do the work, stopped at its deadline and not at the next sweep."""
    deadline = exchange.deadline
    assert deadline is not None
    timer = asyncio.get_running_loop().call_at(deadline, _expire_exchange, exchange, deadline)
    try:
        return await awaitable
    finally:
        timer.cancel()


def _expire_exchange(exchange: Exchange, deadline: float) -> None:
    if exchange.deadline == deadline and not exchange.questions:  # else the sweep sees to what is left
        exchange.end("timeout")


def _make_share_error(limit: int) -> ServerBusy:
    return CallerBusy(f"More than {limit} of your requests are at work")


def _release_share(counter: Counter[str], origin: str) -> None:
    counter[origin] -= 1
    if not counter[origin]:
        del counter[origin]
