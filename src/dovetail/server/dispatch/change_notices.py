"""Notifications about changes on a server: its listeners, and the streams of `subscriptions/listen` requests.

You can call `publish` from any task or thread. The server calls each listener on that listener's event loop. If a slow
listener has not yet received a change, a second change of the same kind is not queued again. A function that publishes
the same change thousands of times without waiting therefore causes one notification, and does not block the event loop.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

from dovetail.callbacks import add_callback, call_all
from dovetail.eager_tasks import EagerTaskStarter, EagerWorker
from dovetail.log import log
from dovetail.protocol import subscription_filter as topics
from dovetail.protocol.exchange import ChangeCallback, ChangeListener, IncomingExchange
from dovetail.protocol.uri_key import uri_key
from dovetail.wire import jsonrpc
from dovetail.wire.codec import as_raw, encode, to_plain
from dovetail.wire.meta import SUBSCRIPTION_ID
from dovetail.wire.subscriptions import SubscriptionFilter

if TYPE_CHECKING:
    from dovetail.protocol.interfaces.shared_state import ChangeLog

ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"

_MAX_LISTENERS_PER_ITERATION: Final = 200
_MAX_QUEUED_CHANGES: Final = 1000  # The publisher waits if more changes than this are queued.


class Subscriptions:
    """The listeners that a server notifies about its changes."""

    def __init__(self) -> None:
        self._listeners_by_loop: dict[asyncio.AbstractEventLoop, _LoopListeners] = {}
        self._callbacks: dict[object, ChangeCallback] = {}
        self.cluster_changes: ChangeLog | None = None  # sends changes to the other workers of a cluster

    def __len__(self) -> int:
        return sum(len(loop_listeners.listeners) for loop_listeners in tuple(self._listeners_by_loop.values()))

    def subscribe(self, listener: ChangeListener) -> Callable[[], None]:
        """Add a listener and return a function that removes it. The listener is called in the current event loop."""
        loop = asyncio.get_running_loop()
        loop_listeners = self._listeners_by_loop.get(loop)
        if loop_listeners is None:
            for other_loop in tuple(self._listeners_by_loop):
                if other_loop.is_closed():
                    self._listeners_by_loop.pop(other_loop, None)
            loop_listeners = self._listeners_by_loop[loop] = _LoopListeners(loop)
        listeners = loop_listeners.listeners
        listeners[listener] = None

        def stop() -> None:
            listeners.pop(listener, None)

        return stop

    def add_callback(self, callback: "ChangeCallback") -> Callable[[], None]:
        """Call a function immediately at every change, in the thread that publishes the change.

        Returns a function that removes the callback.
        """
        return add_callback(self._callbacks, callback)

    def has_listener_on(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether this event loop has a listener."""
        loop_listeners = self._listeners_by_loop.get(loop)
        return loop_listeners is not None and bool(loop_listeners.listeners)

    def publish(self, method: str, uri: str | None = None) -> None:
        """Send a change to all listeners that subscribed to it, in all workers of a cluster. A URI is normalized
        first.
        """
        key = None if uri is None else uri_key(uri)
        call_all(self._callbacks, method, uri)
        self._deliver(method, key)
        if self.cluster_changes is not None:
            self.cluster_changes.publish(method, key)

    def receive(self, method: str, key: str | None) -> None:
        """Tell the listeners in this process about a change that another worker has made.

        The method EVERYTHING means that changes were missed.
        """
        for callback_method in topics.LIST_CHANGED_METHODS.values() if method == topics.EVERYTHING else (method,):
            call_all(self._callbacks, callback_method, key)
        self._deliver(method, key)

    def _deliver(self, method: str, key: str | None) -> None:
        for loop, loop_listeners in tuple(self._listeners_by_loop.items()):
            try:
                loop_listeners.publish(method, key)
            except RuntimeError:
                self._listeners_by_loop.pop(loop, None)  # The event loop is closed, so its listeners cannot be called.

    def send_to_session(self, session_id: str, method: str, params: object) -> None:
        """Send a notification to the client of one handshake session. You can call this method from any thread."""
        message = jsonrpc.encode_notification(method, params)
        for loop, loop_listeners in tuple(self._listeners_by_loop.items()):
            try:
                loop_listeners.send_to_session(session_id, method, message)
            except RuntimeError:
                self._listeners_by_loop.pop(loop, None)  # The event loop is closed, so its listeners cannot be called.
        if self.cluster_changes is not None:
            self.cluster_changes.send_to_session(session_id, method, message)


class _LoopListeners:
    """The listeners of one event loop.

    Other threads may call `publish` and `send_to_session`. The rest runs in the event loop, in an empty context instead
    of the publisher's.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.listeners: dict[ChangeListener, None] = {}
        self._loop = loop
        self._lock = threading.RLock()  # A signal handler may publish while its own thread holds the lock.
        self._batch: dict[tuple[str, str | None], None] | None = None  # changes that the event loop has not seen yet
        self._queue: dict[tuple[str, str | None], None] = {}
        self._remaining: list[ChangeListener] = []  # listeners that have not received `_change` yet, in reverse order
        self._change: tuple[str, str | None] = ("", None)

    def publish(self, method: str, key: str | None) -> None:
        """Deliver a change in the event loop. Raise RuntimeError if the event loop is closed."""
        with self._lock:
            batch = self._batch
            if batch is None:
                batch = {}
                self._loop.call_soon_threadsafe(self._deliver_batch, batch, context=contextvars.Context())
                self._batch = batch
            batch[method, key] = None

    def send_to_session(self, session_id: str, method: str, message: bytes) -> None:
        """Send a notification in the event loop. Raise RuntimeError if the event loop is closed."""
        with self._lock:
            self._batch = None  # Changes that are published after this notification must also arrive after it.
            self._loop.call_soon_threadsafe(
                self._send_to_session, session_id, method, message, context=contextvars.Context()
            )

    def _send_to_session(self, session_id: str, method: str, message: bytes) -> None:
        for listener in tuple(self.listeners):
            if listener.send_to_session(session_id, method, message):
                return

    def _deliver_batch(self, batch: dict[tuple[str, str | None], None]) -> None:
        with self._lock:
            if self._batch is batch:
                self._batch = None
        for change in batch:
            self._deliver(*change)

    def _deliver(self, method: str, key: str | None) -> None:
        """Queue a change for the listeners. Earlier changes are delivered first."""
        is_delivering = bool(self._remaining or self._queue)
        self._queue[method, key] = None
        if not is_delivering or len(self._queue) > _MAX_QUEUED_CHANGES:
            self._deliver_some(schedule_rest=not is_delivering)

    def _deliver_some(self, *, schedule_rest: bool = True) -> None:
        is_overloaded = len(self._queue) > _MAX_QUEUED_CHANGES
        calls_left = len(self.listeners) + 1 if is_overloaded else _MAX_LISTENERS_PER_ITERATION
        while calls_left and (self._remaining or self._queue):
            if not self._remaining:
                self._change = next(iter(self._queue))
                del self._queue[self._change]
                self._remaining = [*self.listeners][::-1]
            while self._remaining and calls_left:
                calls_left -= 1
                self._call_listener(self._remaining.pop(), *self._change)
        if schedule_rest and (self._remaining or self._queue):
            self._loop.call_soon(self._deliver_some)

    def _call_listener(self, listener: ChangeListener, method: str, key: str | None) -> None:
        try:
            if listener not in self.listeners:
                return
            if method == topics.EVERYTHING:
                listener.deliver_all()
            elif listener.is_subscribed(method, key):
                listener.deliver(method, key)
        except Exception as exc:  # Other listeners must get the change despite this error.
            log.error("could not deliver %s to a listener", method or "all changes", exc_info=exc)


class ChangeStream:
    """The notifications of one `subscriptions/listen` request. If the client is slow, equal changes are queued once.

    The stream writes a notification directly if it need not wait for the client. A task for each of thousands of
    streams would cost more than the writes.
    """

    __slots__ = ("_acknowledged_filter", "_exchange", "_list_methods", "_meta", "_pending", "_uris_by_key", "_worker")

    def __init__(
        self, exchange: IncomingExchange, subscription_filter: SubscriptionFilter, starter: EagerTaskStarter
    ) -> None:
        self._exchange = exchange
        self._list_methods = topics.get_list_methods(subscription_filter)
        self._uris_by_key = topics.group_spellings(subscription_filter.resource_subscriptions or ())
        self._meta = as_raw(encode({SUBSCRIPTION_ID: exchange.id}))
        self._pending: dict[tuple[str, str | None], None] = {}
        # This is None after the acknowledgment was sent.
        self._acknowledged_filter: SubscriptionFilter | None = subscription_filter
        self._worker = EagerWorker(self._send_pending, starter)

    def is_subscribed(self, method: str, uri: str | None) -> bool:
        return uri in self._uris_by_key if method == topics.RESOURCE_UPDATED else method in self._list_methods

    def deliver(self, method: str, uri: str | None) -> None:
        """Send a change to the client. If earlier changes are waiting, queue it."""
        self._pending[method, uri] = None
        self._worker.wake()

    def deliver_all(self) -> None:
        """Send every change to which the client has subscribed."""
        for method in topics.LIST_CHANGED_METHODS.values():
            if method in self._list_methods:
                self._pending[method, None] = None
        for key in self._uris_by_key:
            self._pending[topics.RESOURCE_UPDATED, key] = None
        self._worker.wake()

    def send_to_session(self, session_id: str, method: str, message: bytes) -> bool:
        """Return False, because stateless clients have no session."""
        return False

    def close(self) -> None:
        """End the stream after all queued changes are sent."""
        self._worker.close()

    def run(self) -> Coroutine[Any, Any, None]:
        """Acknowledge the subscription, and then send changes until `close` is called."""
        return self._worker.run()

    async def acknowledge(self, extension_filters: Mapping[str, object] | None = None) -> None:
        """Acknowledge the subscription, with the fields that extensions add to the filter."""
        accepted_filter, self._acknowledged_filter = self._acknowledged_filter, None
        notifications = to_plain(accepted_filter) | extension_filters if extension_filters else accepted_filter
        await self.send(ACKNOWLEDGED, notifications=notifications)

    async def _send_pending(self) -> None:
        if self._acknowledged_filter is not None:
            await self.acknowledge()
        while self._pending:
            changes, self._pending = self._pending, {}
            for method, key in changes:
                for uri in topics.find_subscribed_uris(self._uris_by_key, key):
                    await (self.send(method) if uri is None else self.send(method, uri=uri))

    async def send(self, method: str, **params: Any) -> None:
        """Send a notification with the ID of the subscription."""
        emit = self._exchange.emit
        if emit is not None:
            await emit(jsonrpc.encode_notification(method, {"_meta": self._meta, **params}))
