"""Middleware ready to use, each in a file of its own and loaded when first named.

All have the one shape, `(exchange, proceed)`, and stand on a server or on a client.
"""

from typing import TYPE_CHECKING

from dovetail.lazy import create_lazy_loader

if TYPE_CHECKING:
    from dovetail.middleware.cache import Caching as Caching
    from dovetail.middleware.error_mask import MaskErrors as MaskErrors
    from dovetail.middleware.rate_limit import RateLimit as RateLimit
    from dovetail.middleware.request_log import LogRequests as LogRequests
    from dovetail.middleware.response_limit import ResponseLimit as ResponseLimit
    from dovetail.middleware.retry import Retry as Retry
    from dovetail.middleware.telemetry import Telemetry as Telemetry
    from dovetail.middleware.timing import Timing as Timing

_MODULE_BY_NAME = {
    "Caching": "dovetail.middleware.cache",
    "LogRequests": "dovetail.middleware.request_log",
    "MaskErrors": "dovetail.middleware.error_mask",
    "RateLimit": "dovetail.middleware.rate_limit",
    "ResponseLimit": "dovetail.middleware.response_limit",
    "Retry": "dovetail.middleware.retry",
    "Telemetry": "dovetail.middleware.telemetry",
    "Timing": "dovetail.middleware.timing",
}

__all__ = [*_MODULE_BY_NAME]  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = create_lazy_loader(__name__, _MODULE_BY_NAME)
