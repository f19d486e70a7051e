"""Paths: which gateway an address means; what means none goes to the first, which refuses it."""

from typing import Any

import pytest

from dovetail.host.gateway.gateway import GatewayRouter


class Door:
    def __init__(self, name: str) -> None:
        self.name = name
        self.heard: list[str] = []
        self.closed = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.heard.append(scope.get("path", scope["type"]))

    async def close(self) -> None:
        self.closed = True


def paths() -> tuple[GatewayRouter, dict[str, Door]]:
    doors = {"first": Door("first")}

    def make(mode: str, only: str | None, path: str) -> Door | None:
        if only == "gone":
            return None
        return doors.setdefault(path, Door(f"{mode} {only}"))

    first: Any = doors["first"]
    return GatewayRouter(first, make), doors


@pytest.mark.parametrize(
    ("path", "root", "door", "name"),
    [
        ("/mcp", "", "first", "first"),
        ("/search/mcp", "", "/search/mcp", "search None"),
        ("/search", "", "/search/mcp", "search None"),
        ("/servers/one/mcp", "", "/servers/one/mcp", "merged one"),
        ("/servers/one/", "", "/servers/one/mcp", "merged one"),
        ("/api/servers/one/mcp", "/api", "/servers/one/mcp", "merged one"),
        ("/.well-known/oauth-protected-resource/servers/one/mcp", "", "/servers/one/mcp", "merged one"),
        ("/servers/gone/mcp", "", "first", "first"),
        ("/servers/one/two/mcp", "", "first", "first"),
        ("/servers/o.e/mcp", "", "first", "first"),
        ("/servers//mcp", "", "first", "first"),
        ("/searching/mcp", "", "first", "first"),
    ],
)
async def test_which_is_meant(path: str, root: str, door: str, name: str) -> None:
    made, doors = paths()
    await made({"type": "http", "path": path, "root_path": root}, None, None)
    assert [one for one, met in doors.items() if met.heard] == [door]
    assert doors[door].name == name


async def test_each_is_made_once_and_all_are_closed() -> None:
    made, doors = paths()
    for path in ("/servers/one/mcp", "/servers/one/mcp", "/search/mcp"):
        await made({"type": "http", "path": path}, None, None)
    await made({"type": "lifespan"}, None, None)
    assert {name: len(door.heard) for name, door in doors.items()} == {
        "first": 1,
        "/servers/one/mcp": 2,
        "/search/mcp": 1,
    }
    await made.close()
    assert all(door.closed for door in doors.values())
