"""What all middleware wants to know of an exchange: what it is about, who asks, and whether it failed."""

from typing import Any

from dovetail.errors import clip
from dovetail.protocol.exchange import Exchange
from dovetail.wire.tools import CallToolResult


def get_target_name(exchange: Exchange) -> str:
    """The tool or prompt called, or the resource read; empty where there is none."""
    for field in ("name", "uri"):
        value = exchange.params.get(field)
        if type(value) is str:
            return clip(value, 200)
    return ""


def get_caller_key(exchange: Exchange) -> str:
    """Who asks: the principal, else whatever tells callers apart here, else nobody in particular."""
    return exchange.caller.principal or exchange.origin or ""


def has_failed(result: Any) -> bool:
    """Whether a tool's result says that the tool failed."""
    return isinstance(result, CallToolResult) and result.is_error


def is_subscription(exchange: Exchange) -> bool:
    """Whether it lasts as long as its listener, so that its duration says nothing."""
    return exchange.method == "subscriptions/listen"
