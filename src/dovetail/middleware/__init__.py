"""Built-in middleware for servers and clients, and the types for custom middleware.

Each name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from dovetail.lazy import create_lazy_loader as _create_lazy_loader

if TYPE_CHECKING:
    from dovetail.middleware.cache import ResponseCache as ResponseCache
    from dovetail.middleware.error_mask import MaskErrors as MaskErrors
    from dovetail.middleware.rate_limit import RateLimit as RateLimit
    from dovetail.middleware.request_log import LogRequests as LogRequests
    from dovetail.middleware.response_limit import ResponseLimit as ResponseLimit
    from dovetail.middleware.retry import Retry as Retry
    from dovetail.middleware.telemetry import Telemetry as Telemetry
    from dovetail.middleware.timing import Timing as Timing
    from dovetail.middleware.timing import TimingStats as TimingStats
    from dovetail.protocol.exchange import Caller as Caller
    from dovetail.protocol.exchange import Exchange as Exchange
    from dovetail.protocol.middleware import CallNext as CallNext
    from dovetail.protocol.middleware import Middleware as Middleware

_MODULE_BY_NAME = {
    "CallNext": "dovetail.protocol.middleware",
    "Caller": "dovetail.protocol.exchange",
    "Exchange": "dovetail.protocol.exchange",
    "LogRequests": "dovetail.middleware.request_log",
    "MaskErrors": "dovetail.middleware.error_mask",
    "Middleware": "dovetail.protocol.middleware",
    "RateLimit": "dovetail.middleware.rate_limit",
    "ResponseCache": "dovetail.middleware.cache",
    "ResponseLimit": "dovetail.middleware.response_limit",
    "Retry": "dovetail.middleware.retry",
    "Telemetry": "dovetail.middleware.telemetry",
    "Timing": "dovetail.middleware.timing",
    "TimingStats": "dovetail.middleware.timing",
}

__all__ = [*_MODULE_BY_NAME]  # pyright: ignore[reportUnsupportedDunderAll]

__getattr__, __dir__ = _create_lazy_loader(__name__, _MODULE_BY_NAME)
