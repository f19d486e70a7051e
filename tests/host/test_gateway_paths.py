"""Test which gateway a path selects, and that unknown paths are refused."""

from typing import Any

import pytest

from dovetail.host.gateway.gateway import GatewayPaths


class App:
    def __init__(self, name: str) -> None:
        self.name = name
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True


def create_app(mode: str, only_server: str | None, path: str) -> App | None:
    return None if only_server == "gone" else App(f"{mode} {only_server} {path}")


@pytest.mark.parametrize(
    ("path", "root", "name"),
    [
        ("/mcp", "", None),
        ("/search/mcp", "", "search None /search/mcp"),
        ("/search", "", "search None /search/mcp"),
        ("/servers/one/mcp", "", "merged one /servers/one/mcp"),
        ("/servers/one/", "", "merged one /servers/one/mcp"),
        ("/api/servers/one/mcp", "/api", "merged one /servers/one/mcp"),
        ("/.well-known/oauth-protected-resource/servers/one/mcp", "", "merged one /servers/one/mcp"),
        ("/servers/gone/mcp", "", None),
        ("/servers/one/two/mcp", "", None),
        ("/servers/o.e/mcp", "", None),
        ("/servers//mcp", "", None),
        ("/searching/mcp", "", None),
    ],
)
def test_which_is_meant(path: str, root: str, name: str | None) -> None:
    app = GatewayPaths(create_app).find({"type": "http", "path": path, "root_path": root})
    assert (None if app is None else app.name) == name


async def test_each_is_created_once_and_all_are_closed() -> None:
    paths = GatewayPaths(create_app)
    apps: list[Any] = [paths.find({"path": path}) for path in ("/servers/one/mcp", "/servers/one/mcp", "/search/mcp")]
    assert apps[0] is apps[1]
    await paths.close()
    assert all(app.is_closed for app in apps)
