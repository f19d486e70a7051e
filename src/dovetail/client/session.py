"""State of a client that outlives its connections.

A session opens and closes connections, and stores handlers, subscriptions, cached results and middleware. All of its
code runs in one event loop. Different tasks may open, use and close the session, even from threads with other event
loops. The session creates transports with a function and does not depend on the kind of transport.
"""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from dovetail.client.callback_queue import CallbackQueue
from dovetail.client.connection import Connection
from dovetail.client.connector import ClientIdentity, Connector
from dovetail.client.handlers import (
    ALL_CAPABILITIES,
    ElicitationHandler,
    InputHandlers,
    InputRelay,
    LogHandler,
    NotificationHandler,
    RootsProvider,
    SamplingHandler,
)
from dovetail.client.option_checks import check_callable, check_log_level, check_middleware, check_roots
from dovetail.client.reconnect import Reconnector
from dovetail.client.request_sender import RequestSender
from dovetail.client.subscription import CHANGE_KINDS, SUBSCRIPTION_ACKNOWLEDGED, ReconnectingSubscription
from dovetail.error_context import check_type
from dovetail.errors import InvalidResult, TransportError
from dovetail.log import ThrottledLog, log_failure
from dovetail.protocol.exchange import Caller
from dovetail.protocol.interfaces.client_transport import ClientTransport
from dovetail.protocol.limits import ClientLimits, Timeouts
from dovetail.protocol.middleware import Middleware, validate_middleware
from dovetail.protocol.stats import ClientStats
from dovetail.wire.base import replace
from dovetail.wire.elicitation import ElicitationCompleteParams
from dovetail.wire.lifecycle import TASKS_EXTENSION, ClientCapabilities, DiscoverResult, Implementation
from dovetail.wire.logs import LoggingLevel, LoggingMessageNotificationParams
from dovetail.wire.raw_message import decode_body, to_plain

if TYPE_CHECKING:  # Few programs need these modules.
    from dovetail.client.client_extensions import ClientExtensions
    from dovetail.protocol.interfaces.message_tap import Recorder

T = TypeVar("T")

TASK_CHANGED = "notifications/tasks"
ELICITATION_COMPLETE = "notifications/elicitation/complete"


class TaskListener(Protocol):
    """The part of a client that waits for tasks of the server."""

    def handle_acknowledged(self, params: Any) -> None: ...
    def handle_notification(self, method: str, params: Any) -> None: ...
    def wake(self) -> None: ...
    def abandon(self) -> None: ...


class Session:
    """State that `Client` and `MountedClient` share."""

    def __init__(
        self,
        create_transport: Callable[[], ClientTransport],
        *,
        name: str,
        key: str | None,
        client_info: Implementation,
        protocol_version: str | None = None,
        discover_result: DiscoverResult | Literal[False] | None = None,
        elicitation_handler: ElicitationHandler | None = None,
        url_elicitation_handler: ElicitationHandler | None = None,
        sampling_handler: SamplingHandler | None = None,
        roots: RootsProvider | None = None,
        log_handler: LogHandler | None = None,
        log_level: LoggingLevel | None = None,
        notification_handler: NotificationHandler | None = None,
        capabilities: ClientCapabilities | None = None,
        timeouts: Timeouts | None = None,
        limits: ClientLimits | None = None,
        cache: bool = True,
        validate_results: bool = True,
        middleware: Sequence[Middleware] = (),
        extensions: Sequence[Any] = (),
        tasks: bool = False,
    ) -> None:
        for option, function in (
            ("elicitation_handler", elicitation_handler),
            ("url_elicitation_handler", url_elicitation_handler),
            ("sampling_handler", sampling_handler),
            ("log_handler", log_handler),
            ("notification_handler", notification_handler),
        ):
            check_callable(option, function)
        check_log_level("log_level=", log_level)
        check_roots(roots)
        check_middleware(middleware)
        check_type("client_info=", client_info, Implementation, "an Implementation(name=..., version=...)")
        check_type("capabilities=", capabilities, ClientCapabilities, "a ClientCapabilities(...)")
        if discover_result is not False:
            check_type("discover_result=", discover_result, DiscoverResult, "the result of discover(), or False")
        check_type("cache=", cache, bool, "True or False")
        check_type("validate_results=", validate_results, bool, "True or False")
        self.name = name
        self.timeouts = timeouts or Timeouts()
        self.limits = limits or ClientLimits()
        self.log_relay: Callable[[dict[str, Any]], None] | None = None
        self.recorders: list[Recorder] = []  # Each recorder is called with every message.
        # Called with None when a connection opens, and with the error when the connection is lost.
        self.on_connection: Callable[[TransportError | None], None] | None = None
        self._log_handler = log_handler
        self._notification_handler = notification_handler
        self._invalid_notification_warning = ThrottledLog()
        self.handlers = InputHandlers(
            elicitation_handler=elicitation_handler,
            url_elicitation_handler=url_elicitation_handler,
            sampling_handler=sampling_handler,
            roots=roots,
        )
        extra_capabilities = capabilities or ClientCapabilities()
        self.extensions = _combine_extensions(extensions, extra_capabilities)
        declared = extra_capabilities.extensions if self.extensions is None else self.extensions.declared
        # If the user passes an extension for tasks, it replaces the built-in extension.
        self.handles_tasks = tasks and TASKS_EXTENSION not in (declared or {})
        if self.handles_tasks:
            declared = {**(declared or {}), TASKS_EXTENSION: {}}
        identity = ClientIdentity(
            client_info=client_info,
            capabilities=replace(
                self.handlers.capabilities(),
                experimental=extra_capabilities.experimental,
                extensions=declared,
            ),
            log_level=log_level or ("info" if log_handler is not None else None),
        )
        self.connector = Connector(
            create_transport,
            self._create_connection,
            identity,
            self.timeouts,
            key=key,
            protocol_version=protocol_version,
            discover_result=discover_result,
        )
        self.callbacks = CallbackQueue(self.limits.max_queued_notifications)
        self.subscriptions: set[ReconnectingSubscription] = set()
        self.task_listener: TaskListener | None = None  # set by clients that use tasks
        self._loop: asyncio.AbstractEventLoop | None = None
        self._close_task: asyncio.Task[None] | None = None
        self._loop_pid = 0
        self.reconnector = Reconnector(name, self._open_connection, self.limits)
        self._last_connection: Connection | None = None
        self.sender = RequestSender(
            name,
            self.reconnector,
            self.handlers,
            self.timeouts,
            self.limits,
            cache=cache,
            validate_results=validate_results,
        )
        if self.extensions is not None and self.extensions.result_types:
            self.extensions.call_handler = self.callbacks.call
            self.sender.extensions = self.extensions
        self._middleware: list[Middleware] = []
        self._set_middleware()
        for function in middleware:
            self.add_middleware(function)

    def add_middleware(self, function: Middleware) -> None:
        self._middleware.append(validate_middleware(function))
        self._set_middleware()

    def _set_middleware(self) -> None:
        # The middleware of extensions runs innermost, so that other middleware sees final results.
        inner = [] if self.extensions is None else self.extensions.middleware
        if self._middleware or inner:
            self.sender.set_middleware([*self._middleware, *inner], self._create_caller)

    def set_extension_client(self, client: Any) -> None:
        """Set the client that functions of extensions can use."""
        if self.extensions is not None:
            self.extensions.client = client

    def set_relay(
        self,
        input_relay: InputRelay,
        relay_log: Callable[[dict[str, Any]], None],
        is_own_request: Callable[[], bool] | None,
        *,
        declare_all: bool,
    ) -> None:
        """Forward input requests and log messages from the mounted server to the callers of the mounting server.

        Args:
            is_own_request: Returns True if a message belongs to a request of this client. The client's handlers answer
                such messages.
            declare_all: Whether to declare all capabilities in the handshake.
        """
        self.handlers.relay = input_relay
        if self._log_handler is None or is_own_request is not None:
            self.log_relay = relay_log
        identity = self.connector.identity
        if is_own_request is not None:
            self.handlers.is_own_request = is_own_request
            if declare_all:
                log_level = identity.log_level or "info"
                self.connector.identity = replace(
                    identity, log_level=log_level, handshake_capabilities=ALL_CAPABILITIES
                )
            return
        log_level = identity.log_level or ("info" if self._log_handler is None else None)
        own_capabilities = identity.capabilities
        handler_capabilities = self.handlers.capabilities()
        self.connector.identity = replace(
            identity,
            log_level=log_level,
            capabilities=replace(
                handler_capabilities, experimental=own_capabilities.experimental, extensions=own_capabilities.extensions
            ),
        )

    def _create_caller(self) -> Caller:
        return Caller(
            self.protocol_version or "",
            self.sender.is_stateless,
            self.connector.identity.capabilities,
            client_info=self.connector.identity.client_info,
        )

    async def connect(self) -> None:
        """Open a connection unless one is open. A closed session can be opened again."""
        # This is a loop because another task may close the session again during the wait.
        while self._close_task is not None:
            await self.run_on_loop(self._wait_closed)
        self.reconnector.allow_reopen()
        await self.run_on_loop(self.reconnector.get_connection)

    async def close(self) -> None:
        """Close the connection. Any task or thread may call this method, even several times."""
        await self.run_on_loop(self._close_once)

    async def _wait_closed(self) -> None:
        if self._close_task is not None:
            await asyncio.wait([self._close_task])

    async def _close_once(self) -> None:
        """Close the session in one task. All callers of `close` wait for this task.

        If a caller is cancelled, the task is cancelled, too.
        """
        close_task = self._close_task
        if close_task is None:
            close_task = self._close_task = asyncio.get_running_loop().create_task(self._close())
            close_task.add_done_callback(log_failure)
        try:
            # Let the task start. If it were cancelled before it starts, its cleanup would not run.
            await asyncio.sleep(0)
            await asyncio.wait([close_task])
        except asyncio.CancelledError:
            if not close_task.cancelling():
                close_task.cancel()
                await asyncio.wait([close_task], timeout=self.timeouts.close)
            raise
        if not close_task.cancelled():
            close_task.result()

    async def _close(self) -> None:
        try:
            tasks = [
                task
                for subscription in tuple(self.subscriptions)
                if (task := subscription.close_for_client()) is not None
            ]
            if tasks:
                await asyncio.wait(tasks, timeout=self.timeouts.close)
        finally:
            try:
                await self.reconnector.close()
            finally:
                if self.task_listener is not None:
                    self.task_listener.wake()
                self.callbacks.close()
                self.sender.clear()
                self._loop = self._close_task = None

    def run_on_loop(self, function: Callable[..., Awaitable[T]], *args: Any) -> Awaitable[T]:
        """Call a function in the event loop of the session. Return an awaitable for the result.

        This method is not a coroutine, because a coroutine would add a frame to every request.
        """
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return function(*args)
        pid = os.getpid()
        if self._loop is None or self._loop.is_closed() or self._loop_pid != pid:
            if self._loop is not None:
                self._abandon()
            self._loop, self._loop_pid = loop, pid
            return function(*args)
        if not self._loop.is_running():
            raise RuntimeError(
                "this client was opened in another event loop, which is not running. Close the client "
                "in that event loop"
            )
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_await_call(function, args), self._loop))

    def _abandon(self) -> None:
        self.reconnector.abandon()
        self.callbacks.abandon()
        for subscription in self.subscriptions:
            subscription.abandon()
        self.subscriptions.clear()
        if self.task_listener is not None:
            self.task_listener.abandon()
        self.sender.clear()
        self._close_task = None

    async def _open_connection(self) -> Connection:
        connection = await self.connector.open(self.reconnector.deadlines)
        self.sender.mark_stale()
        self._last_connection = connection
        if self.on_connection is not None:
            self.on_connection(None)
        return connection

    def _handle_connection_lost(self, connection: Connection) -> None:
        if self.on_connection is not None and connection is self._last_connection:
            self.on_connection(connection.lost_error)

    def _create_connection(self, transport: ClientTransport) -> Connection:
        return Connection(
            transport,
            self.name,
            self.handlers,
            self.callbacks,
            max_input_requests=self.limits.max_input_requests,
            on_notification=self._handle_notification,
            on_gap=self._handle_gap,
            open_deadlines=self.reconnector.deadlines,
            recorders=self.recorders,
            on_lost=self._handle_connection_lost,
        )

    def _handle_notification(self, method: str, params: Any) -> None:
        """Handle a notification that does not belong to a request."""
        if method in CHANGE_KINDS or method == SUBSCRIPTION_ACKNOWLEDGED:
            self.sender.invalidate(method)
            for subscription in tuple(self.subscriptions):
                subscription.handle_notification(method, params)
            if self.task_listener is not None and method == SUBSCRIPTION_ACKNOWLEDGED:
                self.task_listener.handle_acknowledged(params)
        elif method == TASK_CHANGED and self.task_listener is not None:
            self.task_listener.handle_notification(method, params)
        elif method == ELICITATION_COMPLETE:
            with contextlib.suppress(InvalidResult):
                self.sender.url_elicitations.mark_complete(
                    decode_body(params, ElicitationCompleteParams, method).elicitation_id
                )
            self._call_notification_handler(method, params)
        elif method == "notifications/message":
            with contextlib.suppress(InvalidResult):
                if self.log_relay is not None and type(log_message := to_plain(params)) is dict:
                    self.log_relay(log_message)
                if self._log_handler is not None:
                    self.callbacks.call(
                        self._log_handler, decode_body(params, LoggingMessageNotificationParams, method)
                    )
        elif self.extensions is not None and method in self.extensions.notifications:
            notification = self.extensions.notifications[method]
            try:
                notification_params = decode_body(params, notification.params, method)
            except InvalidResult as exc:
                self._invalid_notification_warning.log(
                    "ignored an invalid notification %s from %s: %s", method, self.name, exc
                )
            else:
                self.callbacks.call(notification.function, notification_params)
        else:
            self._call_notification_handler(method, params)

    def _call_notification_handler(self, method: str, params: Any) -> None:
        if self._notification_handler is not None:
            with contextlib.suppress(InvalidResult):
                if type(plain_params := to_plain(params)) is dict:
                    self.callbacks.call(self._notification_handler, method, plain_params)

    def _handle_gap(self) -> None:
        """Clear the caches and notify the subscriptions, because notifications may have been lost."""
        for method in CHANGE_KINDS:
            self.sender.invalidate(method)
        for subscription in tuple(self.subscriptions):
            subscription.handle_gap()

    def stats(self) -> ClientStats:
        """Return the number of open connections, requests and other resources. Any thread may call this method."""
        current = self.reconnector.current
        return ClientStats(
            connections=0 if current is None else 1,
            running_requests=0 if current is None else current.running,
            open_questions=self.handlers.open,
            subscriptions=len(self.subscriptions),
            queued_callbacks=self.callbacks.queued,
        )

    @property
    def current(self) -> Connection | None:
        return self.reconnector.current

    @property
    def protocol_version(self) -> str | None:
        current = self.reconnector.current
        return None if current is None else current.revision


async def _await_call(function: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> T:
    return await function(*args)


def _combine_extensions(extensions: Sequence[Any], capabilities: ClientCapabilities) -> "ClientExtensions | None":
    if not extensions:
        return None
    from dovetail.client.client_extensions import combine_extensions  # Few clients have extensions.

    return combine_extensions(extensions, capabilities.extensions)
