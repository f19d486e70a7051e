"""The dispatcher finds and runs the handler of each request. Transports use it as the `Service` of a server.

The dispatcher does not depend on a transport. It applies middleware, limits and deadlines, and stores the state of each
event loop. `item_handlers` handles requests for tools, resources and prompts. An exception in an author's function
cannot stop the server or affect another call: the dispatcher catches all exceptions that the handlers do not.
"""

import asyncio
import contextvars
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from dovetail.errors import (
    InvalidParams,
    MethodNotFound,
    MissingClientCapability,
    ProtocolError,
    RemoteError,
    ServerBusy,
    ToolError,
)
from dovetail.keys import build_key
from dovetail.log import ThrottledLog, log
from dovetail.protocol import subscription_filter as topics
from dovetail.protocol.exchange import LARGE_RESULT_BYTES, ChangeListener, IncomingExchange, estimate_size
from dovetail.protocol.item_kinds import ItemKind
from dovetail.protocol.limits import CallerBusy, ServerLimits
from dovetail.protocol.middleware import (
    Handler,
    Middleware,
    compose_middleware,
    get_target_name,
    reads_results,
    validate_middleware,
)
from dovetail.protocol.principal import Principal, get_remaining_seconds
from dovetail.protocol.request_state import RequestStateSealer
from dovetail.server.context import CURRENT_CALL, get_input_requests
from dovetail.server.dispatch.change_notices import ChangeStream
from dovetail.server.dispatch.item_handlers import ItemHandlers
from dovetail.server.dispatch.item_source import ItemSource, OwnItems
from dovetail.server.dispatch.lifespan import Lifespan, LifespanRun, LoopState, log_start_failure
from dovetail.server.dispatch.parts import Handlers, ServerPart
from dovetail.server.exception_mask import mask_exception, unwrap_group
from dovetail.server.invocation import Runner
from dovetail.server.items.registry import Registry
from dovetail.server.items.tool import build_error_result
from dovetail.server.items.visibility import Visibility
from dovetail.server.parameters.signature import InvalidArguments
from dovetail.server.thread_pool import ThreadPool, lend_current_slot
from dovetail.wire.base import Result, replace
from dovetail.wire.lifecycle import DiscoverResult, Implementation, ServerCapabilities
from dovetail.wire.meta import SUBSCRIPTION_ID
from dovetail.wire.methods import METHODS, REQUESTS, Method
from dovetail.wire.revisions import DRAFT
from dovetail.wire.subscriptions import ListenResult, SubscriptionFilter

if TYPE_CHECKING:
    from pathlib import Path

    from dovetail.cluster.call_places import CallPlaces
    from dovetail.protocol.interfaces.extension import Extension
    from dovetail.protocol.interfaces.message_tap import Recorder
    from dovetail.protocol.interfaces.shared_state import SharedWorker
    from dovetail.protocol.interfaces.state_store import StateStore
    from dovetail.protocol.stats import EndpointStats, ServerStats
    from dovetail.server.dispatch.extension_handlers import ServerExtensions
    from dovetail.server.routes import RouteMatch

# This environment variable sets the recording file of all servers and clients.
RECORDING_VARIABLE: Final = "DOVETAIL_RECORDING"

_MAX_DESCRIPTION_WAIT_S: Final = 2.0  # the seconds that a new client waits for mounted servers
_SWEEP_INTERVAL_S: Final = 0.5  # Seconds between two checks for calls that take too long.
_LARGE_MESSAGE_BYTES: Final = 64 * 1024  # Messages above this size count toward `max_inflight_bytes`.
_URIS_PER_SLICE: Final = 20  # While URIs are checked, other tasks can run after each group of this size.
_QUIET_DRAIN_S: Final = 0.5  # A stop that takes longer is logged.
_MAX_NESTED_REQUESTS: Final = 16  # The maximum depth of requests that functions make to their own server.
# Maps a request method to the word for its item in errors and logs.
_ITEM_NOUNS: Final = {"resources/read": "resource", "prompts/get": "prompt", "completion/complete": "completion of"}
# The transports handle these notifications.
_SESSION_NOTIFICATIONS: Final = frozenset(
    {"notifications/cancelled", "notifications/initialized", "notifications/progress"}
)
_ITEM_FIELD_BY_METHOD: Final[dict[str, tuple["ItemKind", str]]] = {
    "tools/call": ("tool", "name"),
    "resources/read": ("resource", "uri"),
    "prompts/get": ("prompt", "name"),
}


class Dispatcher:
    """Handles the requests of one server, and applies middleware and limits."""

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
        state: "StateStore | str | Path | None",
        recording: "str | Path | None",
        debug: bool,
    ) -> None:
        self._state_option = state
        self._state_store: StateStore | None = None  # This attribute is None until a function uses its state.
        self.cluster: SharedWorker | None = None  # This attribute is None if the server runs in one process.
        self.stops_on_second_signal = False
        self.owns_cluster = True  # False if another dispatcher of this process starts and closes the cluster worker
        self._cluster_loop: asyncio.AbstractEventLoop | None = None
        self._cluster_lock = asyncio.Lock()
        self._context = contextvars.copy_context()  # the context of a lifespan that a request opens
        self._warns_of_local_changes = self._has_warned_of_local_change = False
        # These attributes are None if the server is not in a cluster.
        self._call_places: CallPlaces | None = None
        self._subscription_places: CallPlaces | None = None
        self._shared_limits: tuple[SharedWorker, str] | None = None  # also set if a mounting server is in a cluster
        self.registry = registry
        self.visibility = visibility
        self.items: ItemSource = OwnItems(registry, visibility)
        self.implementation = implementation
        self.instructions = instructions
        # An optional function that updates the name, version and instructions before a client reads them.
        self.refresh_description: Callable[[], Awaitable[None]] | None = None
        self.protocol_versions = protocol_versions
        self.requests: Mapping[str, Mapping[str, Method]] = REQUESTS
        self.limits = limits
        self._parts: tuple[ServerPart, ...] = ()  # from the innermost to the outermost
        self._max_calls = limits.max_calls
        self._max_calls_per_principal = limits.max_calls_per_principal
        self._call_timeout = limits.call_timeout
        self._debug = debug
        self._recording = recording
        self._open_recorder: Recorder | None = None
        self._has_secret_keys = bool(secret_keys)
        self.thread_pool = ThreadPool(limits)
        self._state_by_loop: dict[asyncio.AbstractEventLoop, LoopState] = {}
        self._last_state: LoopState | None = None
        self._lifespan = lifespan
        self._extension_lifespans: list[Lifespan] = []
        self._has_lifespan = lifespan is not None
        self._items = items = ItemHandlers(
            registry,
            visibility,
            server_name=implementation.name,
            limits=limits,
            thread_pool=self.thread_pool,
            sealer=RequestStateSealer(secret_keys),
            get_lifespan_value=None if lifespan is None else self._get_lifespan_value,
            handle_nested=self.handle_nested,
            get_state_store=self._get_state_store,
            debug=debug,
        )
        self._create_context = items.create_context
        self._middleware: list[Middleware] = []
        self._extensions: ServerExtensions | None = None  # This attribute is None until an extension is added.
        self.inspects_results = registry.result_store is not None
        self._handlers: dict[str, Handler] = {
            "server/discover": self._discover,
            "tools/list": visibility.list_tools,
            "tools/call": items.call_tool if registry.result_store is None else items.call_and_store,
            "resources/list": visibility.list_resources,
            "resources/templates/list": visibility.list_templates,
            "resources/read": items.read_resource,
            "prompts/list": visibility.list_prompts,
            "prompts/get": items.get_prompt,
            "completion/complete": items.complete,
            "subscriptions/listen": self._listen,
        }
        self._wrapped_handlers: Handlers = self._handlers
        self._has_middleware = False
        self._notification_handlers: dict[str, Handler] = {}
        # One warning for each method and kind of error, so that clients cannot fill the log.
        self._notification_warnings: dict[tuple[str, type[ProtocolError]], ThrottledLog] = {}

    @property
    def name(self) -> str:
        return self.implementation.name

    @property
    def recorder(self) -> "Recorder | None":
        """Return the function that records all messages. Return None if recording is not enabled."""
        path = self._recording or os.environ.get(RECORDING_VARIABLE)
        if path and self._open_recorder is None:
            from dovetail.recording.trace import RecordingWriter

            self._open_recorder = RecordingWriter(path, self.name).record
        return self._open_recorder

    def set_description_source(self, describe: Callable[[], Awaitable[None]]) -> None:
        """Set a function that updates the server's name, version and instructions before a client reads them.

        The client waits at most two seconds.
        """

        async def refresh_description() -> None:
            try:
                async with asyncio.timeout(_MAX_DESCRIPTION_WAIT_S):
                    await describe()
            except TimeoutError:
                pass  # The client gets the old description.
            except Exception as exc:
                log.warning("the description of %s could not be updated: %s", self.name, exc)

        self.refresh_description = refresh_description

    def add_middleware(self, function: Middleware) -> None:
        """Wrap all requests in a middleware function. The function that was added first is the outermost."""
        self._middleware.append(validate_middleware(function))
        self._connect_middleware(function)
        self._wrap_handlers()
        self.connect_cluster()

    def _connect_middleware(self, function: Middleware) -> None:
        self.inspects_results = self.inspects_results or reads_results(function)
        if callable(getattr(function, "on_change", None)):
            self.registry.subscriptions.add_callback(cast("Any", function).on_change)

    def add_part(self, part: ServerPart) -> None:
        """Add a part. Its position decides which parts are inside it."""
        self._parts = tuple(sorted((*self._parts, part), key=lambda part: part.position))
        self._wrap_handlers()

    def _wrap_handlers(self) -> None:
        extensions, handlers = self._extensions, self._handlers
        for part in self._parts:
            handlers = part.wrap(handlers)
        if extensions is not None:
            handlers = {method: extensions.wrap(method, handler) for method, handler in handlers.items()}
        self._has_middleware = bool(self._middleware or (extensions is not None and extensions.middleware))
        handlers = {method: compose_middleware(self._middleware, handler) for method, handler in handlers.items()}
        handlers |= self._notification_handlers
        for part in self._parts:
            handlers = part.rewrite(handlers)
        self._wrapped_handlers = handlers

    def add_extension(self, extension: "Extension") -> None:
        """Serve the methods of an extension, and declare it. Raise ValueError if a name is already in use.

        The middleware of an extension is inside the middleware of the server.
        """
        if self._extensions is None:
            from dovetail.server.dispatch.extension_handlers import ServerExtensions

            self._extensions = ServerExtensions(self.registry)
        extensions = self._extensions
        parts = extensions.add(extension, (*self._handlers, *self._notification_handlers))
        self.requests = extensions.requests
        self._handlers |= extensions.handlers
        self._notification_handlers |= extensions.notification_handlers
        for function in parts.middleware:
            self._connect_middleware(function)
        self._wrap_handlers()
        self.connect_cluster()
        if parts.lifespan is not None:
            self._add_lifespan(parts.lifespan)

    def add_notification_handler(self, method: str, function: Callable[..., Any]) -> None:
        """Call a function for each notification with this method. Raise ValueError if the method cannot be handled."""
        row = METHODS.get(method)
        if method in _SESSION_NOTIFICATIONS or not method.startswith("notifications/"):
            raise ValueError(
                f"on_notification() cannot handle {method!r}. The method must start with 'notifications/', and must "
                "not be a notification that dovetail handles itself"
            )
        if row is not None and (row.result is not None or row.sender == "server"):
            raise ValueError(f"on_notification() cannot handle {method!r}, because clients do not send it")
        if method in self._notification_handlers:
            raise ValueError(f"on_notification() already has a function for {method!r}")
        self._notification_handlers[method] = self._items.create_notification_handler(Runner(function))
        self._wrap_handlers()

    def find_route(self, path: str, method: str) -> "RouteMatch | None":
        """Return the route of a path, on this server or on a mounted server in this process."""
        matches = (part.find_route(path, method) for part in self._parts)
        return next((match for match in matches if match is not None), None)

    def receive_notification(self, exchange: IncomingExchange) -> None:
        """Call the functions that are registered for a notification from a client. Mounted servers receive it, too."""
        if exchange.method == "notifications/progress":
            self._items.progress_handlers.receive(exchange)
        elif exchange.method in self._notification_handlers:
            exchange.task = asyncio.get_running_loop().create_task(self._handle_notification(exchange))
        for part in self._parts:
            part.receive_notification(exchange)

    async def _handle_notification(self, exchange: IncomingExchange) -> None:
        try:
            await self.handle(exchange)
        except ProtocolError as exc:
            key = exchange.method, type(exc)
            warning = self._notification_warnings.get(key)
            if warning is None:
                warning = self._notification_warnings[key] = ThrottledLog()
            warning.log("could not handle %s from a client: %s", exchange.method, exc)

    def share_limits(self, cluster: "SharedWorker", path: str) -> None:
        """Share large results, the limits of middleware, and the open calls of mounted servers, with all workers.

        `path` identifies this server at all workers, because the same cluster may have several servers.
        """
        self._shared_limits = cluster, path
        self.connect_cluster()

    def connect_cluster(self) -> None:
        if self._shared_limits is None:
            return
        cluster, path = self._shared_limits
        if self.registry.result_store is not None:
            self.registry.result_store.share(cluster.state, path)
        functions = (*self._middleware, *(() if self._extensions is None else self._extensions.middleware))
        for index, function in enumerate(functions):
            if callable(join_cluster := getattr(function, "_join_cluster", None)):
                join_cluster(cluster, build_key("rate", path, str(index)))
        for part in self._parts:
            part.share_limits(cluster, path)

    @property
    def sealer(self) -> RequestStateSealer:
        """Encrypts the states of requests."""
        return self._items.sealer

    def use_sealer(self, sealer: RequestStateSealer) -> None:
        """Use the mounting server's keys for request states, unless this server has secret keys."""
        if not self._has_secret_keys:
            self._items.sealer = sealer

    def use_cluster(self, cluster: "SharedWorker") -> None:
        """Make this process a worker of a cluster. Call this method at most once, before the server starts."""
        self.cluster = cluster

    def list_used_scopes(self) -> tuple[str, ...]:
        """Return all scopes that items require, on this server and on mounted servers in this process."""
        own_scopes = self.registry.access_rules.scopes if self.registry.access_rules is not None else ()
        part_scopes = [scope for part in self._parts for scope in part.list_used_scopes()]
        return tuple(dict.fromkeys((*own_scopes, *part_scopes)))

    async def dispatch(self, exchange: IncomingExchange) -> Result | bytes:
        """Handle a nested request.

        For example, a mounting server forwards a request, or a function reads a resource.
        """
        previous_check, previous_context = exchange.check, exchange.context
        if self._has_middleware:
            exchange.check = self._check_exchange
        exchange.context = None  # The context of a mounting server has another lifespan.
        current_call = [exchange, self._create_context]
        token = CURRENT_CALL.set(current_call)
        try:
            return await self._wrapped_handlers[exchange.method](exchange)
        finally:
            CURRENT_CALL.reset(token)
            current_call.clear()
            exchange.check, exchange.context = previous_check, previous_context

    def _get_state_store(self) -> "StateStore":
        store = self._state_store
        if store is None:
            from dovetail.server.state_stores import create_state_store

            store = self._state_store = create_state_store(self._state_option, self.cluster)
        return store

    async def handle_nested(self, parent: IncomingExchange, method: str, params: dict[str, Any]) -> Result | bytes:
        """Handle a request from a function to its own server. `parent` is the request that runs the function.

        The nested request has the rights of the caller. It runs in a separate task, so that the timeout of its item
        stops only the nested request. It counts as part of its parent, so limits on running calls do not apply.

        Raises:
            RecursionError: the functions call each other without end.
        """
        exchange = parent.create_nested(method, params)
        _check_nesting(exchange)
        state = self._get_state()
        exchange.task = state.loop.create_task(self._run_nested(exchange))
        state.nested_exchanges.add(exchange)
        self._start_sweeping(state)
        try:
            with lend_current_slot():
                return await exchange.task
        finally:
            state.nested_exchanges.discard(exchange)
            exchange.emit = None

    async def handle_in_background(self, exchange: IncomingExchange) -> Result | bytes:
        """Handle a request for which no client waits, for example a task. Limits on running calls do not apply."""
        state = self._get_state()
        if self._has_lifespan:
            await self._get_lifespan_run(state).wait_until_ready()
        exchange.task = asyncio.current_task()
        state.nested_exchanges.add(exchange)
        self._start_sweeping(state)
        try:
            return await self.dispatch(exchange)
        except ProtocolError:
            raise
        except BaseException as exc:
            raise self._convert_exception(exchange, exc) from None
        finally:
            state.nested_exchanges.discard(exchange)

    async def _run_nested(self, exchange: IncomingExchange) -> Result | bytes:
        try:
            return await self.dispatch(exchange)
        except asyncio.CancelledError as exc:
            # Only cancellations are converted. The function that made the request receives other exceptions unchanged.
            raise self._mask_exception(exchange, exc) from None

    async def _check_exchange(self, exchange: IncomingExchange) -> None:
        kind, field = _ITEM_FIELD_BY_METHOD[exchange.method]
        await self.items.check_access(kind, exchange.params[field], exchange)

    def capabilities(self) -> ServerCapabilities:
        return self.items.capabilities()

    async def start(self, user: object = None, context: contextvars.Context | None = None) -> None:
        """Open the lifespan in the running event loop. Call `stop` with the same `user` to close it.

        The lifespan runs in `context`, or else in the context of this call.
        """
        state = self._get_state()
        while state.is_closing:
            await state.closed_event.wait()
            state = self._get_state()
        state.users.add(self if user is None else user)
        try:
            self.registry.warn_unused_rules()
            if self.cluster is not None:
                await self._join_cluster(self.cluster)
            if self._state_option is not None:
                self._get_state_store()  # Fail now, not in the first call, if the file cannot be used.
            for part in reversed(self._parts):
                await part.start()
            if self._has_lifespan:
                await self._get_lifespan_run(state, context or contextvars.copy_context()).wait_until_ready()
        except BaseException:
            await self._release_user(state, self if user is None else user)
            raise
        # Each worker runs the lifespan, so all workers have the items that were added until now.
        self._warns_of_local_changes = self.cluster is not None and not self._has_warned_of_local_change

    def warn_local_change(self) -> None:
        """Log a warning once if the author changes items after this worker has joined a cluster."""
        if self._warns_of_local_changes:
            self._warns_of_local_changes, self._has_warned_of_local_change = False, True
            log.warning(
                "%s changed its tools, resources or prompts at run time. Other workers of the cluster do not have this "
                "change, so clients see it only sometimes. Make such changes before the server starts or in its "
                "lifespan, or at each worker",
                self.name,
            )

    async def _join_cluster(self, cluster: "SharedWorker") -> None:
        loop = asyncio.get_running_loop()
        if self._cluster_loop not in (None, loop):
            raise RuntimeError("a server with cluster= can only run in one event loop")
        self._cluster_loop = loop
        async with self._cluster_lock:
            if not cluster.is_started:
                await cluster.start()
            if self._call_places is None:
                self._create_places(cluster)
                self.share_limits(cluster, self.name)
            self.registry.join_cluster(cluster)

    def _create_places(self, cluster: "SharedWorker") -> None:
        from dovetail.cluster.call_places import CallPlaces

        limits = self.limits
        self._call_places = CallPlaces(cluster, build_key("calls", self.name), limits.max_calls_per_principal)
        self._subscription_places = CallPlaces(
            cluster, build_key("subscriptions", self.name), limits.max_subscriptions_per_principal
        )

    def _get_lifespan_run(self, state: LoopState, context: contextvars.Context | None = None) -> LifespanRun:
        """Return the open lifespan, or open it. A lifespan lives longer than a request, so it has another context."""
        run = state.lifespan_run
        if run is None or not (run.is_open or run.is_starting):
            run = state.lifespan_run = LifespanRun(
                self._lifespan, self._extension_lifespans, self.name, self._context if context is None else context
            )
        return run

    def _add_lifespan(self, lifespan: Lifespan) -> None:
        """Add the lifespan of an extension. If the server is running, open it."""
        self._extension_lifespans.append(lifespan)
        self._has_lifespan = True
        running_loop = _find_running_loop()
        for state in tuple(self._state_by_loop.values()):
            if state.loop is running_loop:
                self._open_added_lifespans(state)
            elif not state.loop.is_closed():
                state.loop.call_soon_threadsafe(self._open_added_lifespans, state)

    def _open_added_lifespans(self, state: LoopState) -> None:
        # A server without users is not running yet. It opens all lifespans at its first request.
        if state.users and not state.is_closing:
            self._get_lifespan_run(state).open_added()

    def _get_lifespan_value(self, exchange: IncomingExchange) -> Any:
        # `get_context` may be called in a thread.
        loop = asyncio.get_running_loop() if exchange.task is None else exchange.task.get_loop()
        run = self._find_or_create_state(loop).lifespan_run
        return None if run is None else run.value

    async def _open_lifespan_for_request(self, state: LoopState) -> None:
        run = self._get_lifespan_run(state)
        try:
            await run.wait_until_ready()
        except BaseException as exc:
            if exc is run.failure:
                raise log_start_failure(self.name, exc) from None
            raise
        if not state.users:  # The first request opened the lifespan. It stays open until `stop` is called.
            state.users.add(self)

    async def stop(self, user: object = None) -> None:
        """Stop the server in this event loop. If `user` is passed, the server keeps running for other users."""
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
            # Requests or listeners still use the server, and no event reports when they end.
            # The lifespan therefore stays open, with the dispatcher as its user.
            state.users.add(self)
        else:
            await self._close_state(state)

    def end_subscriptions(self) -> None:
        """Send the result of each open `subscriptions/listen` in this event loop."""
        if (state := self._state_by_loop.get(asyncio.get_running_loop())) is not None:
            for stream in tuple(state.change_streams):
                stream.close()

    def end_calls(self) -> int:
        """End the running calls in this event loop at once, and return their number."""
        state = self._state_by_loop.get(asyncio.get_running_loop())
        exchanges = () if state is None else tuple(call for call in state.running_exchanges if call.verdict is None)
        if exchanges:
            log.warning("%s stops running calls at once: %d", self.name, len(exchanges))
        for exchange in exchanges:
            exchange.end("shutdown")
        return len(exchanges)

    async def _close_state(self, state: LoopState) -> None:
        if state.is_closing:
            await state.closed_event.wait()
            return
        state.is_closing = True
        try:
            self.end_subscriptions()
            await self._drain(state)
            for exchange in tuple(state.running_exchanges):
                if exchange.task is not asyncio.current_task():
                    exchange.end("shutdown")
            await _wait_for_calls(state, 1.0)
            if state.lifespan_run is not None:
                await state.lifespan_run.close()
            for part in self._parts:
                await part.stop()
        finally:
            if state.lifespan_run is not None:
                state.lifespan_run.end()
            if self.cluster is not None and self._cluster_loop is state.loop:
                self._cluster_loop = None
                await self.registry.leave_cluster()
                if self.owns_cluster:
                    await self.cluster.close()
            self._state_by_loop.pop(state.loop, None)
            self._last_state = None
            state.closed_event.set()

    async def _drain(self, state: LoopState) -> None:
        """Wait for the running calls. If they do not end soon, log for what the server waits."""
        timeout = self.limits.drain_timeout
        quiet_time = min(_QUIET_DRAIN_S, timeout)
        await _wait_for_calls(state, quiet_time)
        count = _count_calls(state)
        if count and timeout > quiet_time:
            hint = ". A second signal stops them at once" if self.stops_on_second_signal else ""
            log.warning(
                "%s (process %d) is stopping and waits up to %g s for running calls (%d)%s",
                *(self.name, os.getpid(), timeout, count, hint),
            )
            await _wait_for_calls(state, timeout - quiet_time)
            count = _count_calls(state)
        if count:
            log.warning(
                "%s (process %d) stops calls that did not end within %g s (drain_timeout): %d",
                *(self.name, os.getpid(), timeout, count),
            )

    def stats(self, endpoints: "Iterable[EndpointStats]") -> "ServerStats":
        """Return the number of open calls, input requests, subscriptions, threads, sessions and streams."""
        from dovetail.protocol.stats import ServerStats

        states = tuple(self._state_by_loop.values())
        endpoints = tuple(endpoints)
        return ServerStats(
            running_calls=sum(len(state.running_exchanges) for state in states),
            open_questions=sum(
                len(call.questions or ()) for state in states for call in tuple(state.running_exchanges)
            ),
            subscriptions=sum(len(state.change_streams) for state in states),
            busy_threads=self.thread_pool.busy,
            sessions=sum(endpoint.sessions for endpoint in endpoints),
            streams=sum(endpoint.streams for endpoint in endpoints),
            buffered_bytes=sum(endpoint.buffered_bytes for endpoint in endpoints),
            replay_bytes=sum(endpoint.replay_bytes for endpoint in endpoints),
        )

    def _get_state(self) -> LoopState:
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

    async def handle(self, exchange: IncomingExchange) -> Result | bytes:
        """Handle one request and return its result. Convert every exception to a ProtocolError."""
        handler = self._wrapped_handlers.get(exchange.method)
        if handler is None:
            raise MethodNotFound(exchange.method)
        loop = exchange.loop or asyncio.get_running_loop()
        state = self._last_state
        if state is None or state.loop is not loop:
            state = self._find_or_create_state(loop)
        if state.is_closing:
            raise ServerBusy("The server is shutting down")
        if self._has_lifespan and (state.lifespan_run is None or not state.lifespan_run.is_open):
            # A mounted server is not started explicitly. Its first request opens the lifespan.
            await self._open_lifespan_for_request(state)
            # While this request waited for the lifespan, `stop` may have been called.
            if state.is_closing:
                raise ServerBusy("The server is shutting down")
        if exchange.method == "subscriptions/listen":
            return await self._handle_subscription(exchange, handler, state)
        running_exchanges = state.running_exchanges
        if len(running_exchanges) >= self._max_calls and self._is_full(state):
            raise ServerBusy("Too many calls are running")
        if exchange.size > _LARGE_MESSAGE_BYTES:
            self._check_large_messages(exchange, state)
        origin = exchange.origin
        if origin is not None:
            if self._call_places is not None:
                await self._take_place(self._call_places, origin, state)
            elif state.calls_by_origin[origin] >= self._max_calls_per_principal:
                self._check_share(origin, state)
            state.calls_by_origin[origin] += 1
        if exchange.task is None:
            exchange.task = asyncio.current_task(loop)
        exchange.deadline = loop.time() + self._call_timeout
        if not state.is_sweeping:
            self._start_sweeping(state)
        running_exchanges.add(exchange)
        exchange.waiting_calls = state.waiting_calls
        if exchange.size > _LARGE_MESSAGE_BYTES:
            state.large_bytes_by_origin[origin] += exchange.size
        if self._has_middleware:
            exchange.check = self._check_exchange
        current_call = [exchange, self._create_context]
        CURRENT_CALL.set(current_call)  # Each request has its own context, so the variable need not be reset.
        try:
            if self.cluster is None:
                result = await handler(exchange)
            else:
                result = await self._handle_in_cluster(exchange, handler)
            buffer = exchange.buffer
            if buffer is not None and buffer.is_crowded and (size := estimate_size(result)) >= LARGE_RESULT_BYTES:
                await buffer.wait_for_turn(size)
            return result
        except ProtocolError as exc:
            if isinstance(exc, MissingClientCapability) and _reports_to_model(exchange):
                return build_error_result(exc.message)
            raise
        except BaseException as exc:
            error = unwrap_group(exc)
            if isinstance(error, MissingClientCapability) and _reports_to_model(exchange):
                return build_error_result(error.message)
            raise self._convert_exception(exchange, exc) from None
        finally:
            current_call.clear()
            if exchange.context is not None:
                get_input_requests(exchange.context).is_ended = True
                exchange.context = None
            running_exchanges.discard(exchange)
            if exchange.questions:
                state.waiting_calls.remove(origin)
            exchange.waiting_calls = None
            if exchange.size > _LARGE_MESSAGE_BYTES:
                _release_share(state.large_bytes_by_origin, origin, exchange.size)
            # After a call has ended, its background tasks must not send messages. spec: progress#implementation-notes
            exchange.emit = None
            if origin is not None:
                _release_share(state.calls_by_origin, origin)
                if self._call_places is not None:
                    self._call_places.release(origin, self._count_running(origin, state))

    async def _handle_in_cluster(self, exchange: IncomingExchange, handler: Handler) -> Result | bytes:
        """Run a handler. If something has changed meanwhile, wait until the other workers can learn of it."""
        changes = self.registry.subscriptions.cluster_changes
        if changes is None:
            return await handler(exchange)
        last_number = changes.last_number
        try:
            return await handler(exchange)
        finally:
            if changes.last_number != last_number:
                await changes.wait_until_sent()

    async def _take_place(self, places: "CallPlaces", origin: str, state: LoopState) -> None:
        """Raise CallerBusy if too many calls of this caller are running at all workers together."""
        if not await places.acquire(origin, self._count_running(origin, state)):
            raise _make_share_error(self.limits.max_calls_per_principal)
        if state.is_closing:
            places.release(origin, self._count_running(origin, state))
            raise ServerBusy("The server is shutting down")

    async def _handle_subscription(self, exchange: IncomingExchange, handler: Handler, state: LoopState) -> Result:
        """Handle a `subscriptions/listen` request within the limit `max_subscriptions_per_principal`."""
        if exchange.origin is not None:
            running, limit = state.subscriptions_by_origin[exchange.origin], self.limits.max_subscriptions_per_principal
            is_allowed = (
                running < limit
                if self._subscription_places is None
                else await self._subscription_places.acquire(exchange.origin, running)
            )
            if not is_allowed:
                raise _make_share_error(limit)
            state.subscriptions_by_origin[exchange.origin] += 1
        try:
            return await handler(exchange)
        except ProtocolError:
            raise
        except BaseException as exc:
            raise self._mask_exception(exchange, exc) from None
        finally:
            if exchange.origin is not None:
                _release_share(state.subscriptions_by_origin, exchange.origin)
                if self._subscription_places is not None:
                    running = state.subscriptions_by_origin[exchange.origin]
                    self._subscription_places.release(exchange.origin, running)

    def _is_full(self, state: LoopState) -> bool:
        """Return whether too many calls are running.

        Up to `max_calls` calls that wait for the user are not counted.
        """
        running_count = len(state.running_exchanges) - min(state.waiting_calls.total, self.limits.max_calls)
        return running_count >= self.limits.max_calls

    def _check_share(self, origin: str, state: LoopState) -> None:
        """Raise CallerBusy if too many calls of this caller are running.

        Calls that wait for user input do not count, up to `max_calls_per_principal`.
        """
        if self._count_running(origin, state) >= self.limits.max_calls_per_principal:
            raise _make_share_error(self.limits.max_calls_per_principal)

    def _count_running(self, origin: str, state: LoopState) -> int:
        waiting_count = min(state.waiting_calls.by_origin[origin], self.limits.max_calls_per_principal)
        return state.calls_by_origin[origin] - waiting_count

    def _check_large_messages(self, exchange: IncomingExchange, state: LoopState) -> None:
        """Raise ServerBusy if the large messages of all running calls exceed `max_inflight_bytes`.

        Raise CallerBusy if the messages of this caller exceed half of this limit. One caller must not use all of it.
        """
        limit, large_bytes = self.limits.max_inflight_bytes, state.large_bytes_by_origin.total()
        if large_bytes > 0 and large_bytes + exchange.size > limit:
            raise ServerBusy("Too many calls are running")
        own_bytes = state.large_bytes_by_origin[exchange.origin]
        if exchange.origin is not None and own_bytes > 0 and own_bytes + exchange.size > limit // 2:
            raise CallerBusy("You have too many running calls with large messages")

    async def _discover(self, exchange: IncomingExchange) -> Result:
        if self.refresh_description is not None:
            await self.refresh_description()
        cache_hint = self.visibility.get_cache_hint(exchange.method)
        return DiscoverResult(
            supported_versions=[revision for revision in reversed(self.protocol_versions) if revision != DRAFT],
            capabilities=self.capabilities(),
            instructions=self.instructions,
            ttl_ms=cache_hint.ttl_ms,
            cache_scope=cache_hint.scope,
        )

    def can_subscribe(self, uri: str, principal: Principal | None) -> bool:
        """Return whether a client may subscribe to a resource, in protocol versions up to 2025-11.

        If only scopes are missing, raise InsufficientScope.
        """
        is_allowed = self.items.can_receive_updates(uri, principal)
        if not is_allowed:
            self.visibility.check_scopes("resource", uri, principal)
        return is_allowed

    def watch_resource(self, uri: str, principal: Principal | None, origin: str | None) -> Callable[[], None] | None:
        """Forward updates of a resource from mounted servers to a client.

        Return a function that stops the updates, or None.
        """
        stops = (part.watch_resource(uri, principal, origin) for part in self._parts)
        return next((stop for stop in stops if stop is not None), None)

    def subscribe(self, listener: ChangeListener) -> Callable[[], None]:
        """Call a listener after each change of this server. Return a function that removes the listener."""
        return self.registry.subscriptions.subscribe(listener)

    def can_receive_updates(self, uri: str, principal: Principal | None) -> bool:
        """Return whether this caller may receive updates of a resource."""
        return self.items.can_receive_updates(uri, principal)

    async def _listen(self, exchange: IncomingExchange) -> Result:
        granted_filter = await self._grant_filter(exchange)
        subscriptions = None if self._extensions is None else await self._extensions.open_subscriptions(exchange)
        state = self._state_by_loop.get(asyncio.get_running_loop())
        # If the server has stopped in the meantime, it would never close a new stream.
        if state is None or state.is_closing:
            raise ServerBusy("The server is shutting down")
        stream = ChangeStream(exchange, granted_filter, state.starter)
        stop = self.registry.subscriptions.subscribe(stream)
        state.change_streams.add(stream)
        expiry_timer = _call_at_expiry(exchange.caller.principal, stream.close)
        try:
            if subscriptions:
                from dovetail.server.dispatch.extension_handlers import forward_notifications

                async with forward_notifications(stream, subscriptions):
                    await stream.run()
            else:
                await stream.run()
        finally:
            stop()
            state.change_streams.discard(stream)
            if expiry_timer is not None:
                expiry_timer.cancel()
        return ListenResult(meta={SUBSCRIPTION_ID: exchange.id})

    async def _grant_filter(self, exchange: IncomingExchange) -> SubscriptionFilter:
        requested_filter = topics.read_filter(exchange.params, self.limits.max_uri_bytes)
        capabilities = self.capabilities()
        if capabilities.tools is None and capabilities.prompts is None and capabilities.resources is None:
            raise MethodNotFound(exchange.method)
        granted_filter = topics.restrict_filter(requested_filter, capabilities)
        uris = granted_filter.resource_subscriptions
        if not uris:
            return granted_filter
        return replace(
            granted_filter, resource_subscriptions=await self.list_receivable(uris, exchange.caller.principal)
        )

    async def list_receivable(self, uris: Iterable[str], principal: Principal | None) -> list[str]:
        """Return the URIs whose updates this caller may receive. Other tasks can run while many URIs are checked."""
        receivable: list[str] = []
        for index, uri in enumerate(uris, 1):
            if self.items.can_receive_updates(uri, principal):
                receivable.append(uri)
            if index % _URIS_PER_SLICE == 0:
                await asyncio.sleep(0)
        return receivable

    def _get_sweep_interval(self) -> float:
        return min(_SWEEP_INTERVAL_S, self.limits.call_timeout / 4)

    def _start_sweeping(self, state: LoopState) -> None:
        if not state.is_sweeping:
            state.is_sweeping = True
            state.loop.call_later(self._get_sweep_interval(), self._sweep_overdue, state, context=contextvars.Context())

    def _sweep_overdue(self, state: LoopState) -> None:
        """Stop all calls that take too long.

        This check runs periodically, because one timer per call would cost more.
        """
        now = state.loop.time()
        exchanges = (*state.running_exchanges, *state.nested_exchanges)
        for exchange in exchanges:
            if exchange.questions:
                is_overdue, verdict = now > exchange.questions[0] + self.limits.request_state_ttl, "unanswered"
            else:
                is_overdue, verdict = exchange.deadline is not None and now > exchange.deadline, "timeout"
            if is_overdue:
                if exchange.time_limit is None:
                    exchange.time_limit = self.limits.call_timeout
                exchange.end(verdict)
        state.is_sweeping = False
        if exchanges:
            self._start_sweeping(state)

    def _convert_exception(self, exchange: IncomingExchange, exc: BaseException) -> ProtocolError:
        error = unwrap_group(exc)
        if isinstance(error, ProtocolError):
            return error
        if isinstance(error, (ToolError, RemoteError)):
            data = {"field": error.field} if isinstance(error, InvalidArguments) and error.field else None
            return InvalidParams(str(error), data)
        return self._mask_exception(exchange, exc)

    def _mask_exception(self, exchange: IncomingExchange, exc: BaseException) -> ProtocolError:
        operation = f"{_ITEM_NOUNS.get(exchange.method, exchange.method)} {get_target_name(exchange)}".rstrip()
        return mask_exception(exchange, exc, operation, server=self.name, debug=self._debug)


def _find_running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop of this thread, or None if the thread has no running event loop."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _count_calls(state: LoopState) -> int:
    current_task = asyncio.current_task()
    return sum(exchange.task is not current_task for exchange in state.running_exchanges)


async def _wait_for_calls(state: LoopState, timeout: float) -> None:
    tasks = [exchange.task for exchange in state.running_exchanges if exchange.task is not asyncio.current_task()]
    if tasks:
        await asyncio.wait(tasks, timeout=timeout)


def _check_nesting(exchange: IncomingExchange) -> None:
    """Raise RecursionError if a nested request has too many parents.

    Each request has a separate task, so Python does not detect the recursion.
    """
    depth, ancestor = 0, exchange.parent
    while ancestor is not None:
        depth, ancestor = depth + 1, ancestor.parent
    if depth > _MAX_NESTED_REQUESTS:
        raise RecursionError(
            f"{exchange.method} is nested more than {_MAX_NESTED_REQUESTS} levels deep. A function may call itself"
        )


def _call_at_expiry(principal: Principal | None, callback: Callable[[], None]) -> asyncio.TimerHandle | None:
    remaining_seconds = get_remaining_seconds(principal, time.time())
    return None if remaining_seconds is None else asyncio.get_running_loop().call_later(remaining_seconds, callback)


def _reports_to_model(exchange: IncomingExchange) -> bool:
    """Return whether a missing client capability is reported to the model as an error result.

    Some protocol versions have no error code for a missing capability.
    """
    return exchange.method == "tools/call" and not exchange.caller.is_stateless


def _make_share_error(limit: int) -> ServerBusy:
    return CallerBusy(f"More than {limit} of your requests are running")


def _release_share(counter: Counter[Any], origin: str | None, count: int = 1) -> None:
    counter[origin] -= count
    if not counter[origin]:
        del counter[origin]
