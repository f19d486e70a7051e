"""WebRequest and WebReply: HTTP as values, for whoever sends it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from dovetail.wire.base import Struct


class WebRequest(Struct, frozen=True):
    """A request to be sent."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes = b""


class WebReply(Struct, frozen=True):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes


SendRequest: TypeAlias = Callable[[WebRequest], Awaitable[WebReply]]
