"""The types of notifications/progress and notifications/cancelled.

Tokens and IDs are opaque values, which are only compared.
"""

from typing import TypeAlias

from dovetail.wire.base import Params

ProgressToken: TypeAlias = str | int


class ProgressParams(Params):
    """The parameters of notifications/progress, with the progress of a request."""

    progress_token: ProgressToken
    progress: int | float  # An int stays an integer in JSON.
    total: int | float | None = None
    message: str | None = None  # added in protocol version 2025-03


class CancelledParams(Params):
    """The parameters of notifications/cancelled, with the ID of the request that is no longer needed."""

    request_id: str | int | None = None  # None is only valid in protocol version 2025-11
    reason: str | None = None
