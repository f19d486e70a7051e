"""Test which changes of a server change its identity."""

from pathlib import Path
from typing import Any

from dovetail import Server
from dovetail.host.server_settings import identify_project_server, identify_server

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
    found = [identify_server(one) for one in [ENTRY, *others]]
    assert len(set(found)) == len(found)
    assert (
        identify_project_server(ENTRY, "/a/mcp.json")
        != identify_project_server(ENTRY, "/b/mcp.json")
        != identify_server(ENTRY)
    )


def test_what_is_only_said_otherwise_is_the_same() -> None:
    bare = {"command": "npx", "args": ["-y", "server"]}
    assert (
        identify_server(bare)
        == identify_server(["npx", "-y", "server"])
        == identify_server(bare | {"env": {}, "cwd": None})
    )
    url = "https://a.example/mcp"
    assert (
        identify_server(url)
        == identify_server({"url": url})
        == identify_server({"url": url, "headers": {"Authorization": "x"}})
    )
    assert identify_server(Path("server.py")) == identify_server("server.py")
    assert identify_server(Server("a")) == identify_server(Server("a")) != identify_server(Server("b"))
    assert identify_server([]) != identify_server(object())
