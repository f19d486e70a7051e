"""roots/list: the folders that a client opens to a server.

A root grants nothing by itself; the struct only names it.
"""

from typing import Any

from dovetail.wire.base import Result, WireStruct, field


class Root(WireStruct):
    """One folder or file, as a file URI."""

    uri: str
    name: str | None = None
    meta: dict[str, Any] | None = field(name="_meta", default=None)  # since 2025-06


class ListRootsResult(Result):
    """All roots."""

    roots: list[Root]
