"""Warnings about clients that a server refuses or disconnects, logged at most once a minute for each reason.

Without these warnings, the operator of a server could not find out why clients are refused.
"""

import logging
import time
from typing import Any

from dovetail.log import log

_INTERVAL_S = 60.0


class ThrottledWarning:
    """A warning that is logged at most once a minute, so that clients cannot fill the log."""

    __slots__ = ("_level", "_next_at")

    def __init__(self, level: int = logging.WARNING) -> None:
        self._level = level
        self._next_at = 0.0

    def log(self, message: str, *args: object) -> None:
        """Log the message, unless the warning was logged less than a minute ago."""
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + _INTERVAL_S
            log.log(self._level, message, *args)


_descriptor_warning = ThrottledWarning()


def warn_if_descriptors_run_out(transport: Any) -> None:
    """Warn if only a few file descriptors are free when a connection opens.

    The system assigns the lowest free number, so the number of a new descriptor shows how many are in use. Event loops
    log nothing when no descriptor is free.
    """
    try:
        import resource
    except ImportError:  # Windows does not have this limit.
        return
    connection = transport.get_extra_info("socket")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if connection is not None and limit > 0 and connection.fileno() >= limit - max(4, limit // 20):
        _descriptor_warning.log(
            "nearly all %d file descriptors are in use, and clients are refused when none is left. Raise the limit of "
            "open files with `ulimit -n` or LimitNOFILE=",
            limit,
        )
