"""roots/list: the folders that a client shares with a server.

A root is only a name and grants no access.
"""

from typing import Any

from dovetail.wire.base import Result, WireStruct, field


class Root(WireStruct):
    """One folder or file, as a file URI."""

    uri: str
    name: str | None = None
    meta: dict[str, Any] | None = field(name="_meta", default=None)  # added in protocol version 2025-06


class ListRootsResult(Result):
    """All roots."""

    roots: list[Root]
