"""HTTPRequest and HTTPResponse: HTTP as values, for whoever sends it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from dovetail.wire.base import Struct


class HTTPRequest(Struct, frozen=True):
    """A request to be sent."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes = b""


class HTTPResponse(Struct, frozen=True):
    """What came back."""

    status_code: int
    headers: Mapping[str, str]
    body: bytes


SendRequest: TypeAlias = Callable[[HTTPRequest], Awaitable[HTTPResponse]]
