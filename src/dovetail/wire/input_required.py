"""The input required result and its input requests, added in protocol version 2026-07.

The parameters of an input request stay a plain dict. The code that handles the method decodes them.
"""

from typing import Any

from dovetail.wire.base import Result, WireStruct


class InputRequest(WireStruct):
    """A request to the client for input, with a method and its parameters."""

    method: str
    params: dict[str, Any] | None = None


class InputRequiredResult(Result):
    """A result that asks the client for input before the request can continue."""

    input_requests: dict[str, InputRequest] | None = None
    request_state: str | None = None
