"""Log lines for the operator of a server that cannot accept more clients, or that rejects requests.

Without these lines, the operator could not find out why clients are refused.
"""

import logging
from typing import Any, Final

from dovetail.error_context import clip
from dovetail.log import ThrottledLog

_MAX_REASON_CHARS: Final = 200
# These statuses can have a cause in the setup of the server: an unknown host name, or too many clients.
_WARNING_STATUSES: Final = frozenset((421, 429, 503))

_descriptor_warning = ThrottledLog()
_rejection_lines: dict[tuple[int, str], ThrottledLog] = {}  # the log lines of each status and kind


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


def log_rejected_request(status: int, client: str | None, reason: str, *, kind: str = "") -> None:
    """Log that a request was rejected, at most once a minute for each status and kind."""
    line = _rejection_lines.get((status, kind))
    if line is None:
        level = logging.WARNING if status in _WARNING_STATUSES else logging.INFO
        line = _rejection_lines[status, kind] = ThrottledLog(level)
    reason = clip(reason, _MAX_REASON_CHARS)
    line.log("rejected a request from %s with status %d: %s", client or "an unknown address", status, reason)
