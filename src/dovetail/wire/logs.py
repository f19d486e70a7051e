"""The types of logging/setLevel and notifications/message, with the eight syslog levels.

These messages go to the client, not to the `logging` module of Python.
"""

from typing import Any, Literal, TypeAlias

from dovetail.wire.base import Params

# The levels of RFC 5424, lowest first.
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
    """Return the severity of a log level as a number, from 0 for "debug" to 7 for "emergency".

    Raise ValueError if the level is unknown.
    """
    try:
        return _SEVERITY[level]
    except KeyError:
        raise ValueError(f"unknown log level {level!r}. Use one of: {', '.join(LEVELS)}") from None


class SetLevelParams(Params):
    """The parameters of logging/setLevel, with the minimum level of the log messages to send.

    Only in protocol versions before 2026-07.
    """

    level: LoggingLevel


class LoggingMessageNotificationParams(Params):
    """The parameters of notifications/message, which contain a log message. `data` is any JSON value, including
    null.
    """

    level: LoggingLevel
    data: Any
    logger: str | None = None
