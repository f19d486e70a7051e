"""The caller of an exchange, and whether its tool failed. Several middleware need them."""

from typing import TypeGuard

from dovetail.protocol.exchange import Exchange, IncomingExchange
from dovetail.wire.tools import CallToolResult


def get_caller_key(exchange: Exchange) -> str:
    """Return the principal or address of the caller, or an empty string if both are unknown."""
    origin = exchange.origin if isinstance(exchange, IncomingExchange) else None
    return exchange.caller.principal or origin or ""


def has_failed(result: object) -> TypeGuard[CallToolResult]:
    """Return whether a tool result is an error."""
    return isinstance(result, CallToolResult) and result.is_error
