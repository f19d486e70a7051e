"""Log lines for the operator of a server that cannot accept more clients, or that rejects requests.

Without these lines, the operator could not find out why clients are refused.
"""

import logging
import sys
from typing import Any, Final

from dovetail.error_context import clip
from dovetail.log import ThrottledLog

_MAX_REASON_CHARS: Final = 300
_MAX_PATH_CHARS: Final = 200
# For each status and kind, at most this many reasons have separate lines. The others share one line.
_MAX_REASONS: Final = 8
# These statuses can have a cause in the setup of the server: an unknown host name, or too many clients.
_WARNING_STATUSES: Final = frozenset((421, 429, 503))

_descriptor_warning = ThrottledLog()
# The keys are the status and the kind, and then the reason.
_rejection_lines: dict[tuple[int, str], dict[str, ThrottledLog]] = {}


def warn_if_descriptors_run_out(transport: Any) -> None:
    """Warn if only a few file descriptors are free when a connection opens.

    The system assigns the lowest free number, so the number of a new descriptor shows how many are in use. Event loops
    log nothing when no descriptor is free.
    """
    if sys.platform == "win32":  # Windows does not have this limit.
        return
    import resource

    connection = transport.get_extra_info("socket")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if connection is not None and limit > 0 and connection.fileno() >= limit - max(4, limit // 20):
        _descriptor_warning.log(
            "nearly all %d file descriptors are in use, and clients are refused when none is left. Raise the limit of "
            "open files with `ulimit -n` or LimitNOFILE=",
            limit,
        )


def log_rejected_request(
    status: int, client: str | None, reason: str, *, kind: str = "", path: str | None = None
) -> None:
    """Log that a request was rejected, at most once a minute for each status, kind and reason."""
    reason = clip(reason, _MAX_REASON_CHARS)
    message, args = "rejected a request from %s with status %d: %s", (client or "an unknown address", status, reason)
    if path is not None:
        message, args = f"{message} (path %s)", (*args, clip(path, _MAX_PATH_CHARS))
    _find_rejection_line(status, kind, reason).log(message, *args)


def _find_rejection_line(status: int, kind: str, reason: str) -> ThrottledLog:
    lines = _rejection_lines.setdefault((status, kind), {})
    if reason not in lines and len(lines) >= _MAX_REASONS:
        # A reason may contain text of a client, such as a host name, so there can be any number of reasons.
        for known_reason in [known_reason for known_reason, line in lines.items() if line.is_due]:
            del lines[known_reason]
        reason = reason if len(lines) < _MAX_REASONS else ""
    if reason not in lines:
        lines[reason] = ThrottledLog(logging.WARNING if status in _WARNING_STATUSES else logging.INFO)
    return lines[reason]
