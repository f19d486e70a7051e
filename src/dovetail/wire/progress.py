"""notifications/progress and notifications/cancelled.

Tokens and ids are opaque: they are compared, never read.
"""

from typing import TypeAlias

from dovetail.wire.base import Params

ProgressToken: TypeAlias = str | int


class ProgressParams(Params):
    """How far a request has come."""

    progress_token: ProgressToken
    progress: int | float  # a whole number stays whole on the wire
    total: int | float | None = None
    message: str | None = None  # since 2025-03


class CancelledParams(Params):
    """A request is no longer wanted."""

    request_id: str | int | None = None  # may be absent in 2025-11 only
    reason: str | None = None
