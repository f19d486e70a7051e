"""logging/setLevel and notifications/message, with the eight syslog levels.

Speaks of messages for the peer; the process's own logging is not its business.
"""

from typing import Any, Literal, TypeAlias

from dovetail.wire.base import Params

LoggingLevel: TypeAlias = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]

LEVELS: tuple[LoggingLevel, ...] = (
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
)

_SEVERITY: dict[LoggingLevel, int] = {level: rank for rank, level in enumerate(LEVELS)}


def get_severity(level: LoggingLevel) -> int:
    """Rank of a level: 0 for debug, 7 for emergency."""
    return _SEVERITY[level]


class SetLevelParams(Params):
    """The lowest level a client wants to hear; until 2026-07."""

    level: LoggingLevel


class LoggingMessageNotificationParams(Params):
    """One log entry; `data` is any JSON value, null included."""

    level: LoggingLevel
    data: Any
    logger: str | None = None
