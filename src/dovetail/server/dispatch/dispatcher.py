"""The dispatcher finds and runs the handler of each request. Transports use it as the `Service` of a server.

The dispatcher does not depend on a transport. It consists of a table of handlers, the admission of requests, the
lifecycle of the server in each event loop, subscriptions and nested calls, each in a file of this folder. An exception
in an author's function cannot stop the server or affect another call: the dispatcher catches all exceptions that the
handlers do not.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from dovetail.errors import MethodNotFound, MissingClientCapability, ProtocolError
from dovetail.log import ThrottledLog, log
from dovetail.protocol.exchange import LARGE_RESULT_BYTES, ChangeListener, IncomingExchange, estimate_size
from dovetail.protocol.item_kinds import ItemKind
from dovetail.protocol.limits import ServerLimits
from dovetail.protocol.principal import Principal
from dovetail.server.context import CURRENT_CALL
from dovetail.server.dispatch.admission import Admission
from dovetail.server.dispatch.handler_table import HandlerTable
from dovetail.server.dispatch.item_handlers import ItemHandlers
from dovetail.server.dispatch.item_source import ItemSource, OwnItems
from dovetail.server.dispatch.lifecycle import Lifecycle, LoopState
from dovetail.server.dispatch.lifespan import Lifespan
from dovetail.server.dispatch.listening import Listening
from dovetail.server.dispatch.nested_calls import NestedCalls
from dovetail.server.dispatch.state_store_part import StateStorePart
from dovetail.server.exception_mask import ExceptionMask, unwrap_group
from dovetail.server.invocation import Runner
from dovetail.server.items.registry import Registry
from dovetail.server.items.tool import build_error_result
from dovetail.server.items.visibility import Visibility
from dovetail.server.thread_pool import ThreadPool
from dovetail.wire.base import Result
from dovetail.wire.lifecycle import DiscoverResult, Implementation, ServerCapabilities
from dovetail.wire.methods import Method
from dovetail.wire.revisions import DRAFT

if TYPE_CHECKING:
    from pathlib import Path

    from dovetail.protocol.exchange import ResponseBuffer
    from dovetail.protocol.interfaces.extension import Extension
    from dovetail.protocol.interfaces.message_tap import Recorder
    from dovetail.protocol.interfaces.shared_state import SharedWorker
    from dovetail.protocol.interfaces.state_store import StateStore
    from dovetail.protocol.middleware import Handler
    from dovetail.protocol.stats import EndpointStats, ServerStats
    from dovetail.server.routes import RouteMatch

_MAX_DESCRIPTION_WAIT_S: Final = 2.0  # the seconds that a new client waits for mounted servers
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
        find_recorder: "Callable[[], Recorder | None]",
        debug: bool,
    ) -> None:
        self.registry = registry
        self.visibility = visibility
        self.items: ItemSource = OwnItems(registry, visibility)
        self.implementation = implementation
        self.instructions = instructions
        # An optional function that updates the name, version and instructions before a client reads them.
        self.refresh_description: Callable[[], Awaitable[None]] | None = None
        self.protocol_versions = protocol_versions
        self.limits = limits
        self.cluster: SharedWorker | None = None  # This attribute is None if the server runs in one process.
        self.thread_pool = ThreadPool(limits)
        self.handler_table = table = HandlerTable(registry)
        self.requests: Mapping[str, Mapping[str, Method]] = table.requests
        self.lifecycle = Lifecycle(registry, table, limits, lifespan, self._get_name)
        self.admission = Admission(limits, self.lifecycle)
        self._exception_mask = ExceptionMask(self._get_name, debug=debug)
        self.nested_calls = NestedCalls(self.dispatch, self.lifecycle, self._exception_mask)
        self._find_recorder = find_recorder
        # One warning for each method and kind of error, so that clients cannot fill the log.
        self._notification_warnings: dict[tuple[str, type[ProtocolError]], ThrottledLog] = {}
        state_store = StateStorePart(state, self._get_cluster)
        self.item_handlers = items = ItemHandlers(
            registry,
            visibility,
            server_name=implementation.name,
            limits=limits,
            thread_pool=self.thread_pool,
            secret_keys=secret_keys,
            get_lifespan_value=None if lifespan is None else self.lifecycle.get_lifespan_value,
            handle_nested=self.nested_calls.handle,
            get_state_store=state_store.open,
            debug=debug,
        )
        self._create_context = items.create_context
        listening = Listening(self, registry.subscriptions, table, self.lifecycle, limits)
        table.set_own_handlers(
            {
                "server/discover": self._discover,
                "tools/list": visibility.list_tools,
                "tools/call": items.call_tool if registry.result_store is None else items.call_and_store,
                "resources/list": visibility.list_resources,
                "resources/templates/list": visibility.list_templates,
                "resources/read": items.read_resource,
                "prompts/list": visibility.list_prompts,
                "prompts/get": items.get_prompt,
                "completion/complete": items.complete,
                "subscriptions/listen": listening.listen,
            }
        )
        if state is not None:
            table.add_part(state_store)

    @property
    def name(self) -> str:
        return self.implementation.name

    def _get_name(self) -> str:
        return self.implementation.name

    def _get_cluster(self) -> "SharedWorker | None":
        return self.cluster

    @property
    def recorder(self) -> "Recorder | None":
        """Return the function that records all messages. Return None if recording is not enabled."""
        return self._find_recorder()

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

    def add_extension(self, extension: "Extension") -> None:
        """Serve the methods of an extension, and declare it. Raise ValueError if a name is already in use.

        The middleware of an extension is inside the middleware of the server.
        """
        lifespan = self.handler_table.add_extension(extension)
        self.requests = self.handler_table.requests
        if lifespan is not None:
            self.lifecycle.add_lifespan(lifespan)

    def add_notification_handler(self, method: str, function: Callable[..., Any]) -> None:
        """Call a function for each notification with this method. Raise ValueError if the method cannot be handled."""
        handler = self.item_handlers.create_notification_handler(Runner(function))
        self.handler_table.add_notification_handler(method, handler)

    def use_cluster(self, cluster: "SharedWorker", *, is_owner: bool = True) -> None:
        """Make this process a worker of a cluster. Call this method at most once, before the server starts."""
        self.cluster = cluster
        self.handler_table.add_part(cluster.create_server_part(self, is_owner=is_owner))

    def report_local_change(self) -> None:
        """Report to the parts that the author has changed the items of this server."""
        for part in self.handler_table.parts:
            part.on_local_change()

    def find_route(self, path: str, method: str) -> "RouteMatch | None":
        """Return the route of a path, on this server or on a mounted server in this process."""
        matches = (part.find_route(path, method) for part in self.handler_table.parts)
        return next((match for match in matches if match is not None), None)

    def receive_notification(self, exchange: IncomingExchange) -> None:
        """Call the functions that are registered for a notification from a client. Mounted servers receive it, too."""
        if exchange.method == "notifications/progress":
            self.item_handlers.progress_handlers.receive(exchange)
        elif exchange.method in self.handler_table.notification_handlers:
            exchange.task = asyncio.get_running_loop().create_task(self._handle_notification(exchange))
        for part in self.handler_table.parts:
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

    def list_used_scopes(self) -> tuple[str, ...]:
        """Return all scopes that items require, on this server and on mounted servers in this process."""
        own_scopes = self.registry.access_rules.scopes if self.registry.access_rules is not None else ()
        part_scopes = [scope for part in self.handler_table.parts for scope in part.list_used_scopes()]
        return tuple(dict.fromkeys((*own_scopes, *part_scopes)))

    def capabilities(self) -> ServerCapabilities:
        return self.items.capabilities()

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
        stops = (part.watch_resource(uri, principal, origin) for part in self.handler_table.parts)
        return next((stop for stop in stops if stop is not None), None)

    def subscribe(self, listener: ChangeListener) -> Callable[[], None]:
        """Call a listener after each change of this server. Return a function that removes the listener."""
        return self.registry.subscriptions.subscribe(listener)

    def can_receive_updates(self, uri: str, principal: Principal | None) -> bool:
        """Return whether this caller may receive updates of a resource."""
        return self.items.can_receive_updates(uri, principal)

    def stats(self, endpoints: "Iterable[EndpointStats]") -> "ServerStats":
        """Return the number of open calls, input requests, subscriptions, threads, sessions and streams."""
        from dovetail.protocol.stats import ServerStats

        states = self.lifecycle.list_states()
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

    async def handle(self, exchange: IncomingExchange) -> Result | bytes:
        """Handle one request and return its result. Convert every exception to a ProtocolError."""
        handler = self.handler_table.handlers.get(exchange.method)
        if handler is None:
            raise MethodNotFound(exchange.method)
        loop = exchange.loop or asyncio.get_running_loop()
        state = self.lifecycle.last_state
        if state is None or state.loop is not loop:
            state = self.lifecycle.find_or_create_state(loop)
        run = state.lifespan_run
        if state.is_closing or (self.lifecycle.has_lifespan and (run is None or not run.is_open)):
            await self.lifecycle.ensure_open(state)
        if exchange.method == "subscriptions/listen":
            return await self._handle_subscription(exchange, handler, state)
        admission = self.admission
        if admission.shared_calls is None:
            admission.begin(exchange, state)
        else:
            await admission.begin_shared(exchange, state)
        if self.handler_table.has_middleware:
            exchange.check = self._check_exchange
        current_call = [exchange, self._create_context]
        CURRENT_CALL.set(current_call)  # Each request has its own context, so the variable need not be reset.
        try:
            result = await handler(exchange)
            buffer = exchange.buffer
            if buffer is not None and buffer.is_crowded:
                await _wait_for_turn(buffer, result)
            return result
        except BaseException as exc:
            return self._report_failure(exchange, exc)
        finally:
            current_call.clear()
            admission.end(exchange, state)

    def _report_failure(self, exchange: IncomingExchange, exc: BaseException) -> Result:
        """Return the error result for an exception of a call, or raise a ProtocolError."""
        error = unwrap_group(exc)
        # Handshake versions have no error code for a missing capability, so the model must learn of it.
        is_for_model = exchange.method == "tools/call" and not exchange.caller.is_stateless
        if is_for_model and isinstance(error, MissingClientCapability):
            return build_error_result(error.message)
        if isinstance(exc, ProtocolError):
            raise exc
        raise self._exception_mask.convert(exchange, exc) from None

    async def dispatch(self, exchange: IncomingExchange) -> Result | bytes:
        """Handle a nested request.

        For example, a mounting server forwards a request, or a function reads a resource.
        """
        previous_check, previous_context = exchange.check, exchange.context
        if self.handler_table.has_middleware:
            exchange.check = self._check_exchange
        exchange.context = None  # The context of a mounting server has another lifespan.
        current_call = [exchange, self._create_context]
        token = CURRENT_CALL.set(current_call)
        try:
            return await self.handler_table.handlers[exchange.method](exchange)
        finally:
            CURRENT_CALL.reset(token)
            current_call.clear()
            exchange.check, exchange.context = previous_check, previous_context

    async def _check_exchange(self, exchange: IncomingExchange) -> None:
        kind, field = _ITEM_FIELD_BY_METHOD[exchange.method]
        await self.items.check_access(kind, exchange.params[field], exchange)

    async def _handle_subscription(self, exchange: IncomingExchange, handler: "Handler", state: LoopState) -> Result:
        """Handle a `subscriptions/listen` request within the limit `max_subscriptions_per_principal`."""
        await self.admission.begin_subscription(exchange.origin, state)
        try:
            return await handler(exchange)
        except ProtocolError:
            raise
        except BaseException as exc:
            raise self._exception_mask.mask(exchange, exc) from None
        finally:
            self.admission.end_subscription(exchange.origin, state)


async def _wait_for_turn(buffer: "ResponseBuffer", result: Result | bytes) -> None:
    """Wait until a large result may be encoded. Many large responses must not be in memory at once."""
    size = estimate_size(result)
    if size >= LARGE_RESULT_BYTES:
        await buffer.wait_for_turn(size)
