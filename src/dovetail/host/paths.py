"""Paths: one address for a gateway in several forms. All servers together, searching, or each of them alone.

`/mcp` is what the gateway was made for; `/search/mcp` searches; `/s/NAME/mcp` is one server under its own names.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from dovetail.transports.asgi import Endpoint

_ALONE: Final = re.compile(r"/s/([A-Za-z0-9_-]{1,64})(/mcp)?/?")
_SEARCH: Final = re.compile(r"/search(/mcp)?/?")
_DOCUMENT: Final = "/.well-known/oauth-protected-resource"


class Paths:
    """An ASGI application that chooses the gateway by the path."""

    def __init__(self, first: Endpoint, make: Callable[[str, str | None, str], Any | None]) -> None:
        self._first = first
        self._make = make  # from a mode, the name of a server and a path
        self._made: dict[str, Any] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI."""
        chosen = self._first if scope["type"] != "http" else self._chosen(scope)
        await chosen(scope, receive, send)

    async def close(self) -> None:
        """Let what runs come to its end."""
        for one in (self._first, *self._made.values()):
            await one.close()

    def _chosen(self, scope: Any) -> Any:
        path = scope["path"].removeprefix(scope.get("root_path") or "").removeprefix(_DOCUMENT)
        if found := _SEARCH.fullmatch(path):
            return self._of("search", None, "/search/mcp") or self._first
        if found := _ALONE.fullmatch(path):
            return self._of("merged", found[1], f"/s/{found[1]}/mcp") or self._first
        return self._first

    def _of(self, mode: str, only: str | None, path: str) -> Any | None:
        if path not in self._made and (made := self._make(mode, only, path)) is not None:
            self._made[path] = made
        return self._made.get(path)
