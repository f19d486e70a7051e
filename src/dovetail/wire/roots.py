"""The types of roots/list, with which a client lists the folders for a server.

A root is only a name and grants no access.
"""

from typing import Any

from dovetail.wire.base import Result, WireStruct, field


class Root(WireStruct):
    """A folder or file on the client's machine, as a file URI."""

    uri: str
    name: str | None = None
    meta: dict[str, Any] | None = field(name="_meta", default=None)  # added in protocol version 2025-06


class ListRootsResult(Result):
    """The result of roots/list, with all roots."""

    roots: list[Root]
