"""The extensions of a server: their methods, notifications, result types and middleware."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from dovetail.errors import MissingClientCapability
from dovetail.log import log
from dovetail.protocol.exchange import IncomingExchange, convert_params
from dovetail.protocol.handshake import EMPTY_RESULT
from dovetail.protocol.interfaces.extension import (
    AddedResultType,
    Extension,
    ExtensionParts,
    ExtensionSubscription,
    NotificationFunction,
    RequestFunction,
    SubscriptionFunction,
    check_new_extension,
    freeze_extension,
    get_parts,
)
from dovetail.protocol.middleware import Handler, Middleware, compose_middleware
from dovetail.server.dispatch.change_notices import ChangeStream
from dovetail.server.dispatch.parts import Handlers, Position, ServerPart
from dovetail.server.items.registry import Registry
from dovetail.wire.base import Result, replace
from dovetail.wire.codec import to_plain
from dovetail.wire.methods import REQUESTS, Method

Requests = Mapping[str, Mapping[str, Method]]


class ServerExtensions(ServerPart):
    """Everything that the extensions of one server add to it."""

    position = Position.EXTENSIONS

    def __init__(self, registry: Registry) -> None:
        self.requests: Requests = REQUESTS
        self.handlers: dict[str, Handler] = {}
        self.notification_handlers: dict[str, Handler] = {}
        self.middleware: Sequence[Middleware] = ()
        self._registry = registry
        self._result_types: dict[tuple[str, str], AddedResultType] = {}
        self._subscriptions: dict[str, tuple[Extension, SubscriptionFunction]] = {}

    def add(self, extension: Extension, used_names: Collection[str]) -> ExtensionParts:
        """Add and declare an extension. Return its parts. Raise ValueError if one of its names is already in use."""
        parts, declared = get_parts(extension), self._registry.declared_capabilities
        added_names = (*parts.methods, *parts.notifications)
        identifiers = declared.extensions or {}
        check_new_extension(extension, "server", identifiers, added_names, used_names, self._result_types)
        freeze_extension(extension)
        self._registry.declared_capabilities = replace(
            declared, extensions={**identifiers, extension.identifier: dict(extension.settings)}
        )
        self.requests = _add_requests(self.requests, [method.row for method in parts.methods.values()])
        for name, method in parts.methods.items():
            self.handlers[name] = _create_request_handler(extension, method)
        for name, notification in parts.notifications.items():
            self.notification_handlers[name] = _create_notification_handler(notification)
        self.middleware = (*self.middleware, *parts.middleware)
        self._result_types |= parts.result_types
        for name, subscription in parts.subscriptions.items():
            self._subscriptions[name] = (extension, subscription)
        return parts

    async def open_subscriptions(self, exchange: IncomingExchange) -> dict[str, ExtensionSubscription]:
        """Open the subscriptions that extensions handle. The keys are fields of the subscription filter."""
        requested: dict[str, Any] = exchange.params["notifications"]
        opened: dict[str, ExtensionSubscription] = {}
        for name, (extension, subscription) in self._subscriptions.items():
            if requested.get(name) is not None:
                if subscription.requires_client and extension.get_client_settings(exchange) is None:
                    raise MissingClientCapability({"extensions": {extension.identifier: {}}})
                opened[name] = await subscription.function(requested[name], exchange)
        return opened

    def wrap(self, handlers: Handlers) -> Handlers:
        """Add the handlers of all extensions. Wrap all handlers in their middleware, and check added result types."""
        return {
            method: self._wrap_handler(method, handler) for method, handler in {**handlers, **self.handlers}.items()
        }

    def _wrap_handler(self, method: str, handler: Handler) -> Handler:
        if self.middleware:
            handler = compose_middleware(self.middleware, handler)
        added_types = [added for added in self._result_types.values() if added.method == method]
        return _create_result_check(added_types, handler) if added_types else handler


@asynccontextmanager
async def forward_notifications(
    stream: ChangeStream, subscriptions: Mapping[str, ExtensionSubscription]
) -> AsyncGenerator[None]:
    """Acknowledge a subscription, and send the notifications of extensions while the context is open."""
    await stream.acknowledge({name: subscription.accepted for name, subscription in subscriptions.items()})
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(_forward(stream, subscription)) for subscription in subscriptions.values()]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _forward(stream: ChangeStream, subscription: ExtensionSubscription) -> None:
    try:
        async with aclosing(subscription.notifications) as notifications:
            async for method, params in notifications:
                await stream.send(method, **to_plain(params))
    except Exception as exc:
        # The client notices that the stream is closed, and can subscribe again.
        log.error("the subscription of an extension failed", exc_info=exc)
        stream.close()


def _add_requests(requests: Requests, rows: Collection[Method]) -> Requests:
    return {
        revision: {**table, **{row.name: row for row in rows if row.exists_in(revision)}}
        for revision, table in requests.items()
    }


def _create_request_handler(extension: Extension, method: RequestFunction) -> Handler:
    row, function, requires_client = method.row, method.function, method.requires_client
    assert function is not None, f"{extension.identifier} is only for clients"
    params_type, result_type = row.params, row.result or Result

    async def handle(exchange: IncomingExchange) -> Result:
        if requires_client and extension.get_client_settings(exchange) is None:
            raise MissingClientCapability({"extensions": {extension.identifier: {}}})
        result = await function(convert_params(exchange, params_type), exchange)
        if not isinstance(result, result_type):
            raise TypeError(f"{row.name} returned {type(result).__qualname__} instead of {result_type.__qualname__}")
        return result

    return handle


def _create_notification_handler(notification: NotificationFunction) -> Handler:
    async def handle(exchange: IncomingExchange) -> Result:
        if not exchange.is_forwarded:  # Extensions of a mounted server get no forwarded messages.
            await notification.function(convert_params(exchange, notification.params), exchange)
        return EMPTY_RESULT

    return handle


def _create_result_check(added_types: Collection[AddedResultType], call_next: Handler) -> Handler:
    structs = tuple(added.struct for added in added_types)

    async def handle(exchange: IncomingExchange) -> Result | bytes:
        result = await call_next(exchange)
        if not isinstance(result, structs):
            return result
        added = next(added for added in added_types if isinstance(result, added.struct))
        if not exchange.caller.is_stateless or added.extension.get_client_settings(exchange) is None:
            raise TypeError(
                f"{added.extension.identifier} returned a result of type {added.name!r} for {exchange.method}, but the "
                "client did not declare the extension. Check get_client_settings(exchange) first"
            )
        return replace(result, result_type=added.name)

    return handle
