"""The identity of a server: what makes it another one, and what does not."""

from pathlib import Path
from typing import Any

from dovetail import Server
from dovetail.host.managed_server import identity_of

ENTRY: dict[str, Any] = {"command": "npx", "args": ["-y", "server"], "env": {"TOKEN": "${TOKEN}"}, "cwd": None}


def test_what_is_started_makes_the_identity() -> None:
    others = [
        ENTRY | {"command": "npm"},
        ENTRY | {"args": ["-y", "server@2"]},
        ENTRY | {"args": ["-y server"]},
        ENTRY | {"env": {"TOKEN": "${TOKEN}", "NODE_OPTIONS": "--require x"}},
        ENTRY | {"env": {"TOKEN": "${OTHER}"}},
        ENTRY | {"cwd": "/tmp"},
        {"url": "https://a.example/mcp"},
        {"url": "https://b.example/mcp"},
        {"url": "http://a.example/mcp"},
    ]
    found = [identity_of(one) for one in [ENTRY, *others]]
    assert len(set(found)) == len(found)
    assert identity_of(ENTRY, origin="/a/mcp.json") != identity_of(ENTRY, origin="/b/mcp.json") != identity_of(ENTRY)


def test_what_is_only_said_otherwise_is_the_same() -> None:
    bare = {"command": "npx", "args": ["-y", "server"]}
    assert identity_of(bare) == identity_of(["npx", "-y", "server"]) == identity_of(bare | {"env": {}, "cwd": None})
    url = "https://a.example/mcp"
    assert identity_of(url) == identity_of({"url": url}) == identity_of({"url": url, "headers": {"Authorization": "x"}})
    assert identity_of(Path("server.py")) == identity_of("server.py")
    assert identity_of(Server("a")) == identity_of(Server("a")) != identity_of(Server("b"))
    assert identity_of([]) != identity_of(object())
