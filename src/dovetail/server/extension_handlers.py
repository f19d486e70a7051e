"""Handlers for the methods, notifications and result types that an extension adds to a server."""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from dovetail.errors import MissingClientCapability
from dovetail.protocol.exchange import IncomingExchange, convert_params
from dovetail.protocol.extension import (
    AddedResultType,
    ExtensionLifespan,
    ExtensionMethod,
    NotificationFunction,
)
from dovetail.protocol.handshake import EMPTY_RESULT
from dovetail.protocol.middleware import Handler
from dovetail.server.lifespan import Lifespan
from dovetail.wire.base import Params, Result, replace
from dovetail.wire.methods import Method

Requests = Mapping[str, Mapping[str, Method]]


def add_requests(requests: Requests, rows: Collection[Method]) -> Requests:
    """Return a copy of a table of requests, with the requests of an extension added."""
    return {
        revision: {**table, **{row.name: row for row in rows if row.exists_in(revision)}}
        for revision, table in requests.items()
    }


def create_request_handler(method: ExtensionMethod[Params, Result]) -> Handler:
    """Return a handler that checks the client's declaration, and then calls the function of the extension."""
    extension, function, params_type = method.extension, method.handler, method.row.params
    result_type = method.row.result or Result
    requires_client = method.requires_client

    async def handle(exchange: IncomingExchange) -> Result:
        if requires_client and extension.get_client_settings(exchange) is None:
            raise MissingClientCapability({"extensions": {extension.identifier: {}}})
        result = await function(convert_params(exchange, params_type), exchange)
        if not isinstance(result, result_type):
            raise TypeError(f"{method.name} returned {type(result).__qualname__} instead of {result_type.__qualname__}")
        return result

    return handle


def create_notification_handler(notification: NotificationFunction) -> Handler:
    """Return a handler that calls the function of an extension for a notification of the client."""

    async def handle(exchange: IncomingExchange) -> Result:
        if not exchange.mount_path:  # Extensions of a mounted server are not passed through.
            await notification.function(convert_params(exchange, notification.params), exchange)
        return EMPTY_RESULT

    return handle


def create_result_check(added_types: Collection[AddedResultType], call_next: Handler) -> Handler:
    """Return a handler that sets `resultType` for the result types of an extension. The client must accept them."""
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


def combine_lifespans(outer: Sequence[ExtensionLifespan], inner: Lifespan | None) -> Lifespan:
    """Return a lifespan that opens the lifespans of the extensions, and then the lifespan of the server.

    Its value is the value of the server's lifespan.
    """

    @asynccontextmanager
    async def lifespan() -> AsyncGenerator[object]:
        async with AsyncExitStack() as stack:
            for extension_lifespan in outer:
                await stack.enter_async_context(extension_lifespan())
            yield None if inner is None else await stack.enter_async_context(inner())

    return lifespan
