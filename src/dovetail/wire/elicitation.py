"""elicitation/create in both modes, and the notification that a URL elicitation is complete. Since 2025-06.

One struct holds both modes: `requested_schema` belongs to a form, `url` to a visit.
"""

from typing import Any, Literal

from dovetail.wire.base import Params, Result


class ElicitRequestParams(Params):
    """What a person is asked."""

    message: str
    mode: Literal["form", "url"] = "form"  # since 2025-11
    requested_schema: dict[str, Any] | None = None
    url: str | None = None  # since 2025-11
    elicitation_id: str | None = None  # 2025-11 only, required there in url mode

    def __post_init__(self) -> None:
        if self.mode == "form" and self.requested_schema is None:
            raise ValueError("an elicitation in form mode needs `requestedSchema`")
        if self.mode == "url" and self.url is None:
            raise ValueError("an elicitation in url mode needs `url`")


class ElicitResult(Result):
    """What the person did, and what they filled in."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None


class ElicitationCompleteParams(Params):
    """A visit to a URL is over; 2025-11 only."""

    elicitation_id: str
