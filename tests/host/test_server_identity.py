"""Test which changes of a server change its identity."""

from pathlib import Path
from typing import Any

from dovetail import Server
from dovetail.host.server_settings import compute_project_server_id, compute_server_id

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
    found = [compute_server_id(one) for one in [ENTRY, *others]]
    assert len(set(found)) == len(found)
    assert (
        compute_project_server_id(ENTRY, "/a/mcp.json")
        != compute_project_server_id(ENTRY, "/b/mcp.json")
        != compute_server_id(ENTRY)
    )


def test_every_spelling_of_an_entry_has_the_identity_of_its_server() -> None:
    for key in ("url", "httpUrl", "serverUrl", "uri"):
        one, other = ({key: f"https://{name}.example/mcp"} for name in "ab")
        assert compute_server_id(one) == compute_server_id("https://a.example/mcp") != compute_server_id(other)
        assert compute_server_id({"mcpServers": {"s": one}}) == compute_server_id(one)
    assert compute_server_id({"servers": {"s": ENTRY}}) == compute_server_id(ENTRY)
    assert compute_server_id({"command": ["npx", "-y", "server"]}) == compute_server_id(["npx", "-y", "server"])
    assert compute_server_id(ENTRY | {"url": "https://a.example/mcp"}) == compute_server_id(ENTRY)


def test_what_is_only_said_otherwise_is_the_same() -> None:
    bare = {"command": "npx", "args": ["-y", "server"]}
    assert (
        compute_server_id(bare)
        == compute_server_id(["npx", "-y", "server"])
        == compute_server_id(bare | {"env": {}, "cwd": None})
    )
    url = "https://a.example/mcp"
    assert (
        compute_server_id(url)
        == compute_server_id({"url": url})
        == compute_server_id({"url": url, "headers": {"Authorization": "x"}})
    )
    assert compute_server_id(Path("server.py")) == compute_server_id("server.py")
    assert compute_server_id(Server("a")) == compute_server_id(Server("a")) != compute_server_id(Server("b"))
    assert compute_server_id([]) != compute_server_id(object())
