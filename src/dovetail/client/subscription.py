"""Subscriptions to changes on a server. They work in every protocol version, and continue after a lost connection.

After a lost connection, the subscription reports each subscribed list and resource once, because changes may have been
missed.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from math import inf
from typing import Any, Literal, Protocol, Self

from dovetail.backoff import compute_backoff
from dovetail.client.connection import TRANSIENT_STATUS_CODES, Connection
from dovetail.client.deadlines import RequestDeadline
from dovetail.client.reconnect import Reconnector
from dovetail.error_context import add_context
from dovetail.errors import (
    ConnectError,
    ConnectionLost,
    HTTPStatusError,
    InvalidResult,
    MCPError,
    MethodNotFound,
    NotMCPServer,
    NotSupported,
    ProcessStartError,
    RemoteError,
    RequestTimeout,
)
from dovetail.log import log_and_suppress, log_failure
from dovetail.protocol.client_messages import RequestEncoder
from dovetail.protocol.interfaces.client_transport import EncodedRequest
from dovetail.protocol.limits import ClientLimits
from dovetail.protocol.subscription_filter import (
    PROMPTS_LIST_CHANGED,
    RESOURCE_UPDATED,
    RESOURCES_LIST_CHANGED,
    TOOLS_LIST_CHANGED,
    create_matcher,
    find_subscribed_uris,
    group_spellings,
    restrict_filter,
)
from dovetail.wire.base import Params, Struct
from dovetail.wire.jsonrpc import RequestId
from dovetail.wire.meta import SUBSCRIPTION_ID
from dovetail.wire.raw_message import decode_body
from dovetail.wire.subscriptions import AcknowledgedParams, SubscriptionFilter

ChangeKind = Literal["tools", "prompts", "resources", "resource"]

CHANGE_KINDS: dict[str, ChangeKind] = {
    TOOLS_LIST_CHANGED: "tools",
    PROMPTS_LIST_CHANGED: "prompts",
    RESOURCES_LIST_CHANGED: "resources",
    RESOURCE_UPDATED: "resource",
}
CHANGE_METHODS: dict[ChangeKind, str] = {kind: method for method, kind in CHANGE_KINDS.items()}
SUBSCRIPTION_ACKNOWLEDGED = "notifications/subscriptions/acknowledged"

# After one of these errors, the next attempt may succeed.
_TRANSIENT_ERRORS = (ConnectionLost, ConnectError, ProcessStartError, HTTPStatusError, RequestTimeout, NotMCPServer)


class ChangeEvent(Struct, frozen=True):
    """A notice that a list or the resource at `uri` has changed."""

    kind: ChangeKind  # "tools", "prompts" or "resources" for a list, and "resource" for one resource.
    uri: str | None = None  # The URI of the resource, or None if a list changed.
    # True if the server did not report the change, but it may have happened while the connection was lost.
    maybe_missed: bool = False


class ChangeNotice(Params):
    uri: str | None = None


class Subscription(Protocol):
    """An async iterator of changes: `async for change in client.listen(...)`.

    Use `async with` to wait until the subscription is active. The subscription continues after a reconnect.
    """

    @property
    def acknowledged_filter(self) -> SubscriptionFilter | None:
        """Return the kinds of changes that the server will report, or None if the subscription is not active yet."""
        ...

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *_: object) -> None: ...
    def __aiter__(self) -> AsyncIterator[ChangeEvent]: ...

    async def aclose(self) -> None:
        """Stop listening."""
        ...


class ReconnectingSubscription:
    def __init__(
        self,
        reconnector: Reconnector,
        subscription_filter: SubscriptionFilter,
        limits: ClientLimits,
        timeout: float,
        subscriptions: "set[ReconnectingSubscription]",
        run_on_loop: Callable[..., Awaitable[Any]],
        invalidate: Callable[[str], None],
    ) -> None:
        self._reconnector = reconnector
        self._filter = subscription_filter
        self._limits = limits
        self._timeout = timeout
        self._subscriptions = subscriptions
        self._run_on_loop = run_on_loop
        # This function is called for each change that may have been missed.
        self._invalidate = invalidate
        self._matches_filter = create_matcher(subscription_filter)
        self._uris_by_key = group_spellings(subscription_filter.resource_subscriptions or ())
        self._changes: dict[tuple[ChangeKind, str | None], ChangeEvent] = {}
        self._wakeup = asyncio.Event()
        self._started: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self._subscription_id: RequestId | None = None
        self._acknowledge_timeout: asyncio.Timeout | None = None
        self._acknowledged_at = inf  # the time at which the server accepted the subscription
        self._is_entered = False
        self._is_closed = False
        self._is_client_closing = False
        self._notice_count = 0
        self.acknowledged_filter: SubscriptionFilter | None = None

    async def __aenter__(self) -> Self:
        self._is_entered = True
        await self._run_on_loop(self._start)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def __aiter__(self) -> AsyncIterator[ChangeEvent]:
        try:
            await self._run_on_loop(self._start)
            while (change := await self._run_on_loop(self._next)) is not None:
                yield change
        finally:
            if not self._is_entered:
                await self.aclose()

    async def _next(self) -> ChangeEvent | None:
        while not self._changes and not self._is_closed:
            if self._error is not None:
                raise self._error
            self._wakeup.clear()
            await self._wakeup.wait()
        return self._changes.pop(next(iter(self._changes))) if self._changes else None

    async def aclose(self) -> None:
        """Stop listening."""
        await self._run_on_loop(self._close)

    async def _close(self) -> None:
        task = self._stop()
        if task is not None:
            await asyncio.wait([task], timeout=self._timeout)

    def close_for_client(self) -> asyncio.Task[None] | None:
        """Stop the subscription without an unsubscribe request, because the client is closing."""
        self._is_client_closing = True
        return self._stop()

    def abandon(self) -> None:
        """End the subscription, because its event loop is closed."""
        self._is_closed = True
        self._task = None

    def _stop(self) -> asyncio.Task[None] | None:
        self._is_closed = True
        self._wakeup.set()
        self._subscriptions.discard(self)
        task, self._task = self._task, None
        if task is None or task.done():
            return None
        task.cancel()
        return task

    async def _start(self) -> None:
        if self._started is None:
            loop = asyncio.get_running_loop()
            self._started = loop.create_future()
            self._started.add_done_callback(log_failure)
            self._subscriptions.add(self)
            self._task = loop.create_task(self._run())
        await asyncio.shield(self._started)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        failed_attempts = graceful_ends = 0
        while not self._is_closed:
            notice_count, self._acknowledged_at = self._notice_count, inf
            cause: MCPError | None = None
            has_ended_gracefully = False
            try:
                has_ended_gracefully = await self._listen(await self._reconnector.get_connection())
            except _TRANSIENT_ERRORS as exc:
                if self.acknowledged_filter is None or (
                    isinstance(exc, HTTPStatusError) and exc.status_code not in TRANSIENT_STATUS_CODES
                ):
                    self._fail(exc)
                    return
                cause = exc
            except MCPError as exc:
                self._fail(_to_not_supported(exc) if isinstance(exc, RemoteError) else exc)
                return
            except Exception as exc:
                # The error is raised in the task that waits for changes.
                self._fail(exc)
                return
            # Proxies close idle streams, so a stream that ends after several minutes has not failed.
            was_stable = loop.time() - self._acknowledged_at >= self._limits.max_reconnect_delay
            failed_attempts = 0 if was_stable or self._notice_count != notice_count else failed_attempts + 1
            # A server with too many open streams may end a stream that still carries notifications.
            # spec: subscriptions#graceful-closure
            graceful_ends = graceful_ends + 1 if has_ended_gracefully and not was_stable else 0
            if failed_attempts > self._limits.max_reconnects:
                error = ConnectionLost(
                    f"the server closed the stream {failed_attempts} times without sending a notification"
                )
                error.__cause__ = cause
                self._fail(error)
                return
            attempts = max(failed_attempts, graceful_ends - 1)
            delay = compute_backoff(self._limits.reconnect_delay, attempts, self._limits.max_reconnect_delay)
            await asyncio.sleep(delay * random.uniform(1.0, 1.2))

    def _fail(self, exc: Exception) -> None:
        self._error = exc
        self._wakeup.set()
        if self._started is not None and not self._started.done():
            self._started.set_exception(exc)

    def handle_notification(self, method: str, params: Any) -> None:
        """Handle a notification if it belongs to this subscription."""
        try:
            if method == SUBSCRIPTION_ACKNOWLEDGED:
                acknowledged = decode_body(params, AcknowledgedParams, method)
                if (acknowledged.meta or {}).get(SUBSCRIPTION_ID) == self._subscription_id:
                    if self._acknowledge_timeout is not None and not self._acknowledge_timeout.expired():
                        self._acknowledge_timeout.reschedule(None)
                    self._handle_acknowledged(acknowledged.notifications)
                return
            notice = decode_body(params, ChangeNotice, method)
        except InvalidResult:
            return
        id = (notice.meta or {}).get(SUBSCRIPTION_ID)
        if id == self._subscription_id if id is not None else self._matches_filter(method, notice.uri):
            self._notice_count += 1
            # In handshake versions, the server may send another spelling of the subscribed URI.
            uris = [notice.uri] if id is not None else find_subscribed_uris(self._uris_by_key, notice.uri)
            for uri in uris:
                self._add_change(ChangeEvent(CHANGE_KINDS[method], uri))

    def handle_gap(self) -> None:
        """Report all subscribed lists and resources as changed, because notifications may have been lost."""
        if self.acknowledged_filter is not None:
            self._add_missed_changes()

    def _handle_acknowledged(self, accepted_filter: SubscriptionFilter) -> None:
        is_resumed = self.acknowledged_filter is not None
        self.acknowledged_filter = accepted_filter
        self._acknowledged_at = asyncio.get_running_loop().time()
        if self._started is not None and not self._started.done():
            self._started.set_result(None)
        if is_resumed:
            self._add_missed_changes()

    def _add_missed_changes(self) -> None:
        for method, kind in CHANGE_KINDS.items():
            if self._matches_filter(method, None):
                self._invalidate(method)
                self._add_change(ChangeEvent(kind, maybe_missed=True))
        for uri in self._filter.resource_subscriptions or ():
            self._invalidate(RESOURCE_UPDATED)
            self._add_change(ChangeEvent("resource", uri, maybe_missed=True))

    def _add_change(self, change: ChangeEvent) -> None:
        """Add a change to the queue, unless the queue already contains it. If the queue is full, drop the oldest
        change.
        """
        if not change.maybe_missed or (change.kind, change.uri) not in self._changes:
            # A change that the server reported replaces a change that the client only assumed.
            self._changes[change.kind, change.uri] = change
        if len(self._changes) > self._limits.max_queued_notifications:
            del self._changes[next(iter(self._changes))]
        self._wakeup.set()

    async def _listen(self, connection: Connection) -> bool:
        """Listen until the stream ends. Return whether the server ended the stream with a result."""
        if connection.encoder is not None and connection.encoder.is_stateless:
            await self._listen_stateless(connection, connection.encoder)
            return True
        await self._listen_handshake(connection)
        return False

    async def _listen_stateless(self, connection: Connection, encoder: RequestEncoder) -> None:
        method, params = "subscriptions/listen", {"notifications": self._filter}
        self._subscription_id = id = connection.next_id()
        request = EncodedRequest(
            id, method, encoder.encode_request(id, method, params), encoder.build_headers(method, params), True
        )
        try:
            # The server must acknowledge the subscription immediately. spec: subscriptions#acknowledgment
            async with asyncio.timeout(self._timeout) as self._acknowledge_timeout:
                await connection.exchange(request, RequestDeadline())
        except TimeoutError:
            message = f"the server did not acknowledge the subscription within {self._timeout:g} s"
            raise add_context(RequestTimeout(message), server=connection.name, step=method) from None
        finally:
            self._acknowledge_timeout = None

    async def _listen_handshake(self, connection: Connection) -> None:
        """Listen for changes on a server with a handshake protocol version.

        Such a server always reports list changes. It reports resource changes only after a subscription.
        """
        accepted_filter = restrict_filter(self._filter, connection.server_capabilities)
        uris = accepted_filter.resource_subscriptions or []
        if self._filter.resource_subscriptions and not uris:
            raise add_context(
                NotSupported("the server does not support subscriptions to resources"), server=connection.name
            )
        if not await connection.transport.wait_until_listening():
            raise add_context(
                NotSupported("the server does not support a stream for notifications"), server=connection.name
            )
        subscribed_uris: list[str] = []
        try:
            for uri in uris:
                subscribed_uris.append(uri)
                await self._send_request(connection, "resources/subscribe", connection.add_subscriber(uri))
            self._handle_acknowledged(accepted_filter)
            await connection.lost_event.wait()
        finally:
            for uri in subscribed_uris:
                known_uri = connection.remove_subscriber(uri)
                if known_uri is not None and connection.lost_error is None and not self._is_client_closing:
                    with log_and_suppress(MCPError):
                        await self._send_request(connection, "resources/unsubscribe", known_uri)

    async def _send_request(self, connection: Connection, method: str, uri: str) -> None:
        await connection.request(method, {"uri": uri}, RequestDeadline(self._timeout, self._timeout))


def _to_not_supported(exc: RemoteError) -> MCPError:
    if exc.code != MethodNotFound.code:
        return exc
    return add_context(NotSupported("the server does not support subscriptions"), server=exc.server, step=exc.step)
