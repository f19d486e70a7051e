"""notifications/progress and notifications/cancelled.

Tokens and ids are opaque, so code only compares them.
"""

from typing import TypeAlias

from dovetail.wire.base import Params

ProgressToken: TypeAlias = str | int


class ProgressParams(Params):
    """The progress of a request."""

    progress_token: ProgressToken
    progress: int | float  # an int stays an integer in JSON
    total: int | float | None = None
    message: str | None = None  # added in protocol version 2025-03


class CancelledParams(Params):
    """The parameters of notifications/cancelled. The request is no longer needed."""

    request_id: str | int | None = None  # may be None in protocol version 2025-11
    reason: str | None = None
