"""Notifications about changes on a server: its listeners, and the streams of `subscriptions/listen` requests.

You can call `publish` from any task or thread. The server calls each listener on that listener's event loop. If a slow
listener has not yet received a change, a second change of the same kind is not queued again.
"""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from dovetail.eager_tasks import EagerTaskStarter, EagerWorker
from dovetail.log import log
from dovetail.protocol import subscription_filter as topics
from dovetail.protocol.exchange import ChangeListener, IncomingExchange
from dovetail.protocol.uri_key import uri_key
from dovetail.wire import jsonrpc
from dovetail.wire.codec import as_raw, encode
from dovetail.wire.meta import SUBSCRIPTION_ID
from dovetail.wire.subscriptions import SubscriptionFilter

if TYPE_CHECKING:
    from dovetail.protocol.mountable import ChangeCallback

ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"


class Subscriptions:
    """Listeners that a server notifies about its changes."""

    def __init__(self) -> None:
        self._listeners_by_loop: dict[asyncio.AbstractEventLoop, dict[ChangeListener, None]] = {}
        self._callbacks: list[ChangeCallback] = []

    def __len__(self) -> int:
        return sum(map(len, tuple(self._listeners_by_loop.values())))

    def subscribe(self, listener: ChangeListener) -> Callable[[], None]:
        """Add a listener and return a function that removes it. The current event loop will call the listener."""
        loop = asyncio.get_running_loop()
        listeners = self._listeners_by_loop.get(loop)
        if listeners is None:
            for other_loop in tuple(self._listeners_by_loop):
                if other_loop.is_closed():
                    self._listeners_by_loop.pop(other_loop, None)
            listeners = self._listeners_by_loop[loop] = {}
        listeners[listener] = None

        def stop() -> None:
            listeners.pop(listener, None)

        return stop

    def add_callback(self, callback: "ChangeCallback") -> Callable[[], None]:
        """Call a function immediately at every change, in the thread that publishes the change.

        Returns a function that removes the callback.
        """
        self._callbacks.append(callback)

        def stop() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

        return stop

    def has_listener_on(self, loop: asyncio.AbstractEventLoop) -> bool:
        return bool(self._listeners_by_loop.get(loop))

    def publish(self, method: str, uri: str | None = None) -> None:
        """Send a change to all listeners that subscribed to it. A URI is normalized first.

        Each event loop runs one callback, which delivers the change to all listeners of that loop. The callback runs in
        an empty context, not in the publisher's.
        """
        for callback in tuple(self._callbacks):
            try:
                callback(method, uri)
            except Exception as exc:  # An error must not keep the change from the other callbacks and listeners.
                log.error("could not deliver %s to a callback", method, exc_info=exc)
        key = None if uri is None else uri_key(uri)
        for loop, listeners in tuple(self._listeners_by_loop.items()):
            try:
                loop.call_soon_threadsafe(_deliver, listeners, method, key, context=contextvars.Context())
            except RuntimeError:
                self._listeners_by_loop.pop(loop, None)  # The event loop is closed, so its listeners cannot be called.


def _deliver(listeners: dict[ChangeListener, None], method: str, key: str | None) -> None:
    for listener in tuple(listeners):
        try:
            if listener in listeners and listener.is_subscribed(method, key):
                listener.deliver(method, key)
        except Exception as exc:  # An error must not keep the change from the other listeners.
            log.error("could not deliver %s to a listener", method, exc_info=exc)


class ChangeStream:
    """The notifications of one `subscriptions/listen` request. If the client is slow, each change is queued only once.

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
        # This attribute is None after the acknowledgment was sent.
        self._acknowledged_filter: SubscriptionFilter | None = subscription_filter
        self._worker = EagerWorker(self._send_pending, starter)

    def is_subscribed(self, method: str, uri: str | None) -> bool:
        return uri in self._uris_by_key if method == topics.RESOURCE_UPDATED else method in self._list_methods

    def deliver(self, method: str, uri: str | None) -> None:
        """Send a change to the client, or queue it behind earlier changes."""
        self._pending[method, uri] = None
        self._worker.wake()

    def close(self) -> None:
        """End the stream after all queued changes are sent."""
        self._worker.close()

    def run(self) -> Coroutine[Any, Any, None]:
        """Send the acknowledgment of the subscription, and then send changes until `close` is called."""
        return self._worker.run()

    async def _send_pending(self) -> None:
        if self._acknowledged_filter is not None:
            await self._send(ACKNOWLEDGED, notifications=self._acknowledged_filter)
            self._acknowledged_filter = None
        while self._pending:
            changes, self._pending = self._pending, {}
            for method, key in changes:
                for uri in topics.find_subscribed_uris(self._uris_by_key, key):
                    await (self._send(method) if uri is None else self._send(method, uri=uri))

    async def _send(self, method: str, **params: Any) -> None:
        emit = self._exchange.emit
        if emit is not None:
            await emit(jsonrpc.encode_notification(method, {"_meta": self._meta, **params}))
