"""The input required result and its input requests. Since 2026-07.

A question's parameters stay a plain dict: they are read by whoever knows the method.
"""

from typing import Any

from dovetail.wire.base import Result, WireStruct


class InputRequest(WireStruct):
    """One question: a method of the client and its parameters."""

    method: str
    params: dict[str, Any] | None = None


class InputRequiredResult(Result):
    """Answers are needed before the request can go on."""

    input_requests: dict[str, InputRequest] | None = None
    request_state: str | None = None
