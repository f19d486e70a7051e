"""Middleware ready to use, each in a file of its own and loaded when first named.

All have the one shape, `(exchange, proceed)`, and stand on a server or on a client.
"""

from typing import TYPE_CHECKING

from dovetail.exports import create_lazy_loader

if TYPE_CHECKING:
    from dovetail.middleware.caching import Caching as Caching
    from dovetail.middleware.journal import LogRequests as LogRequests
    from dovetail.middleware.limiting import RateLimit as RateLimit
    from dovetail.middleware.masking import MaskErrors as MaskErrors
    from dovetail.middleware.retrying import Retry as Retry
    from dovetail.middleware.sizing import ResponseLimit as ResponseLimit
    from dovetail.middleware.telemetry import Telemetry as Telemetry
    from dovetail.middleware.timing import Timing as Timing

_MODULE_BY_NAME = {
    "Caching": "dovetail.middleware.caching",
    "LogRequests": "dovetail.middleware.journal",
    "MaskErrors": "dovetail.middleware.masking",
    "RateLimit": "dovetail.middleware.limiting",
    "ResponseLimit": "dovetail.middleware.sizing",
    "Retry": "dovetail.middleware.retrying",
    "Telemetry": "dovetail.middleware.telemetry",
    "Timing": "dovetail.middleware.timing",
}

__all__ = [*_MODULE_BY_NAME]  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = create_lazy_loader(__name__, _MODULE_BY_NAME)
