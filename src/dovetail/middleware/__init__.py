"""Middleware ready to use, each in a file of its own and loaded when first named.

All have the one shape, `(exchange, proceed)`, and stand on a server or on a client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.middleware.caching import Caching as Caching
    from dovetail.middleware.journal import LogRequests as LogRequests
    from dovetail.middleware.limiting import RateLimit as RateLimit
    from dovetail.middleware.masking import MaskErrors as MaskErrors
    from dovetail.middleware.retrying import Retry as Retry
    from dovetail.middleware.sizing import ResponseLimit as ResponseLimit
    from dovetail.middleware.telemetry import Telemetry as Telemetry
    from dovetail.middleware.timing import Timing as Timing

_HOMES = {
    "Caching": "caching",
    "LogRequests": "journal",
    "MaskErrors": "masking",
    "RateLimit": "limiting",
    "ResponseLimit": "sizing",
    "Retry": "retrying",
    "Telemetry": "telemetry",
    "Timing": "timing",
}

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'dovetail.middleware' has no attribute {name!r}")
    return getattr(import_module(f"dovetail.middleware.{home}"), name)
