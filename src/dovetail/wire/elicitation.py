"""The types of elicitation/create, and of the notification that a URL elicitation is complete.

Elicitation was added in protocol version 2025-06. Form mode uses `requested_schema`, and URL mode uses `url`.
"""

from typing import Any, Literal

from dovetail.wire.base import Params, Result


class ElicitRequestParams(Params):
    """The parameters of elicitation/create. They contain a message for the user, and a form or a URL."""

    message: str
    mode: Literal["form", "url"] = "form"  # added in protocol version 2025-11
    requested_schema: dict[str, Any] | None = None
    url: str | None = None  # added in protocol version 2025-11
    elicitation_id: str | None = None  # only in protocol version 2025-11, where url mode requires it

    def __post_init__(self) -> None:
        if self.mode == "form" and self.requested_schema is None:
            raise ValueError("an elicitation in form mode must have `requestedSchema`")
        if self.mode == "url" and self.url is None:
            raise ValueError("an elicitation in url mode must have `url`")


class ElicitResult(Result):
    """The result of elicitation/create, with the user's action and the values that the user entered."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None


class ElicitationCompleteParams(Params):
    """The parameters of notifications/elicitation/complete. Only in protocol version 2025-11."""

    elicitation_id: str
