"""Paths: one address for a gateway in several forms. All servers together, searching, or each of them alone.

`/mcp` is what the gateway was made for; `/search/mcp` searches; `/s/NAME/mcp` is one server under its own names.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from dovetail.transports.asgi import Endpoint

_SERVER_PATH: Final = re.compile(r"/s/([A-Za-z0-9_-]{1,64})(/mcp)?/?")
_SEARCH_PATH: Final = re.compile(r"/search(/mcp)?/?")
_METADATA_PREFIX: Final = "/.well-known/oauth-protected-resource"


class GatewayRouter:
    """An ASGI application that chooses the gateway by the path."""

    def __init__(self, default_app: Endpoint, create_app: Callable[[str, str | None, str], Any | None]) -> None:
        self._default_app = default_app
        self._create_app = create_app  # from a mode, the name of a server and a path
        self._apps: dict[str, Any] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI."""
        app = self._default_app if scope["type"] != "http" else self._choose_app(scope)
        await app(scope, receive, send)

    async def close(self) -> None:
        """Let what runs come to its end."""
        for app in (self._default_app, *self._apps.values()):
            await app.close()

    def _choose_app(self, scope: Any) -> Any:
        path = scope["path"].removeprefix(scope.get("root_path") or "").removeprefix(_METADATA_PREFIX)
        if match := _SEARCH_PATH.fullmatch(path):
            return self._get_app("search", None, "/search/mcp") or self._default_app
        if match := _SERVER_PATH.fullmatch(path):
            return self._get_app("merged", match[1], f"/s/{match[1]}/mcp") or self._default_app
        return self._default_app

    def _get_app(self, mode: str, server_name: str | None, path: str) -> Any | None:
        if path not in self._apps and (app := self._create_app(mode, server_name, path)) is not None:
            self._apps[path] = app
        return self._apps.get(path)
