"""Subscriptions to changes: who may receive updates of resources, and the requests `subscriptions/listen`."""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol

from dovetail.errors import MethodNotFound, ServerBusy
from dovetail.protocol import subscription_filter as topics
from dovetail.protocol.exchange import IncomingExchange
from dovetail.protocol.limits import ServerLimits
from dovetail.protocol.principal import Principal, get_remaining_seconds
from dovetail.server.dispatch.change_notices import ChangeStream, Subscriptions
from dovetail.server.dispatch.handler_table import HandlerTable
from dovetail.server.dispatch.item_source import ItemSource
from dovetail.server.dispatch.lifecycle import Lifecycle
from dovetail.wire.base import Result, replace
from dovetail.wire.meta import SUBSCRIPTION_ID
from dovetail.wire.subscriptions import ListenResult, SubscriptionFilter

if TYPE_CHECKING:  # Few servers have extensions.
    from dovetail.protocol.interfaces.extension import ExtensionSubscription

_URIS_PER_SLICE: Final = 20  # While URIs are checked, other tasks can run after each group of this size.


class ListeningServer(Protocol):
    """What listening needs of a server. A server may get another item source while it runs."""

    @property
    def items(self) -> ItemSource: ...


class Listening:
    """Handles the requests `subscriptions/listen` of one server."""

    def __init__(
        self,
        server: ListeningServer,
        subscriptions: Subscriptions,
        handler_table: HandlerTable,
        lifecycle: Lifecycle,
        limits: ServerLimits,
    ) -> None:
        self._server = server
        self._subscriptions = subscriptions
        self._handler_table = handler_table
        self._lifecycle = lifecycle
        self._limits = limits

    async def listen(self, exchange: IncomingExchange) -> Result:
        """Send changes until the client, the server or the caller's credentials end the subscription."""
        granted_filter = await self._grant_filter(exchange)
        opened: dict[str, ExtensionSubscription] = {}
        for part in self._handler_table.parts:
            opened |= await part.open_subscriptions(exchange)
        state = self._lifecycle.find_running_state()
        # If the server has stopped in the meantime, it would never close a new stream.
        if state is None or state.is_closing:
            raise ServerBusy("The server is shutting down")
        stream = ChangeStream(exchange, granted_filter, state.starter)
        stop = self._subscriptions.subscribe(stream)
        state.change_streams.add(stream)
        expiry_timer = _call_at_expiry(exchange.caller.principal, stream.close)
        try:
            if opened:
                from dovetail.server.dispatch.extension_handlers import forward_notifications

                async with forward_notifications(stream, opened):
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
        items = self._server.items
        requested_filter = topics.read_filter(exchange.params, self._limits.max_uri_bytes)
        capabilities = items.capabilities()
        if capabilities.tools is None and capabilities.prompts is None and capabilities.resources is None:
            raise MethodNotFound(exchange.method)
        granted_filter = topics.restrict_filter(requested_filter, capabilities)
        uris = granted_filter.resource_subscriptions
        if not uris:
            return granted_filter
        return replace(
            granted_filter, resource_subscriptions=await list_receivable(items, uris, exchange.caller.principal)
        )


async def list_receivable(items: ItemSource, uris: Iterable[str], principal: Principal | None) -> list[str]:
    """Return the URIs whose updates this caller may receive. Other tasks can run while many URIs are checked."""
    receivable: list[str] = []
    for index, uri in enumerate(uris, 1):
        if items.can_receive_updates(uri, principal):
            receivable.append(uri)
        if index % _URIS_PER_SLICE == 0:
            await asyncio.sleep(0)
    return receivable


def _call_at_expiry(principal: Principal | None, callback: Callable[[], None]) -> asyncio.TimerHandle | None:
    remaining_seconds = get_remaining_seconds(principal, time.time())
    return None if remaining_seconds is None else asyncio.get_running_loop().call_later(remaining_seconds, callback)
