"""notifications/progress and notifications/cancelled.

Tokens and ids are opaque, so code only compares them.
"""

from typing import TypeAlias

from dovetail.wire.base import Params

ProgressToken: TypeAlias = str | int


class ProgressParams(Params):
    """The progress of a request."""

    progress_token: ProgressToken
    progress: int | float  # an int is encoded as a JSON integer
    total: int | float | None = None
    message: str | None = None  # added in protocol version 2025-03


class CancelledParams(Params):
    """The parameters of notifications/cancelled: the request that is no longer needed."""

    request_id: str | int | None = None  # None is allowed only in protocol version 2025-11
    reason: str | None = None
