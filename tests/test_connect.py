"""Targets: what may be given to a client, what becomes of it, and what is refused at once."""

import sys
from pathlib import Path
from typing import Any

import pytest

from client.world import TESTS, everything, target
from dovetail import Client, Server

MORTAL = str(TESTS / "client" / "mortal.py")


def test_names_are_what_a_reader_recognises() -> None:
    assert Client("https://mcp.example.com:8443/mcp").name == "mcp.example.com"
    assert Client("tcp://127.0.0.1:4000").name == "tcp://127.0.0.1:4000"
    assert Client("unix:/run/a.sock").name == "/run/a.sock"
    assert Client("unix:///run/a.sock").name == "/run/a.sock"
    assert Client(Server("weather")).name == "weather"
    assert Client(["uvx", "a b"]).name == "uvx 'a b'"
    assert len(Client(["x" * 100]).name) == 60
    assert Client(["x"], name="mine").name == "mine"


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (5, TypeError),
        ([], TypeError),
        (["a", 5], TypeError),
        (None, TypeError),
        ("uvx mcp-server-time", ValueError),
        ("http://", ValueError),
        ("tcp://host", ValueError),
        ("nowhere.py", FileNotFoundError),
        (Path("nowhere.py"), FileNotFoundError),
        ({}, ValueError),
        ({"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}}}, ValueError),
        ({"mcpServers": {}}, ValueError),
    ],
)
def test_what_is_no_target_is_refused_at_once(given: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        Client(given)


def test_a_command_as_a_text_is_explained() -> None:
    with pytest.raises(ValueError, match=r"\['uvx', 'mcp-server-time'\]"):
        Client("uvx mcp-server-time")


@pytest.mark.parametrize(
    "option", [{"headers": {"a": "b"}}, {"ca_file": "x"}, {"verify": False}, {"proxy": "http://x"}]
)
def test_options_for_a_url_are_refused_elsewhere(option: Any) -> None:
    with pytest.raises(TypeError, match="only for a URL"):
        Client(["x"], **option)


async def test_a_script_is_run_with_this_python(tmp_path: Path) -> None:
    for given in (MORTAL, Path(MORTAL)):
        async with Client(given) as client:
            assert await client.call("echo", text="x") == "x"


async def test_entries_of_a_configuration(tmp_path: Path) -> None:
    script = "import os, sys; sys.argv[1:] = ['x']; sys.path.insert(0, os.environ['AT']); import mortal; mortal.main()"
    command = {"command": sys.executable, "args": ["-c", script], "env": {"AT": str(TESTS / "client")}}
    async with Client({"mcpServers": {"one": command}}) as client:
        assert await client.call("echo", text="x") == "x"
    async with Client(command | {"env": {"AT": "elsewhere"}}, env={"AT": str(TESTS / "client")}) as client:
        assert await client.call("echo", text="y") == "y"
    app = everything()
    async with target("http", app) as at:
        for entry in ({"url": at}, {"serverUrl": at, "headers": {"x-a": "1"}}, {"servers": {"a": {"httpUrl": at}}}):
            async with Client(entry) as client:
                assert await client.call("add", a=1) == 2


async def test_headers_of_an_entry_and_of_the_call_come_together() -> None:
    from stand_ins import Play, on_web

    play = Play()
    async with on_web(play) as at:
        given = {"url": at, "headers": {"Authorization": "old", "x-b": "2"}}
        async with Client(given, headers={"Authorization": "Bearer new"}) as client:
            await client.ping()
    for _, head in play.heads:
        assert (head["authorization"], head["x-b"]) == ("Bearer new", "2")


async def test_environment_and_folder_reach_the_process(tmp_path: Path) -> None:
    script = """
import json, os, sys
for line in sys.stdin:
    m = json.loads(line)
    if "id" in m:
        r = {"supportedVersions": ["2026-07-28"], "capabilities": {}, "resultType": "complete",
             "instructions": json.dumps([os.getcwd(), os.environ.get("GIVEN"), os.environ.get("SECRET_TOKEN")])}
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}), flush=True)
"""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECRET_TOKEN", "hidden")
        async with Client([sys.executable, "-c", script], cwd=tmp_path, env={"GIVEN": "here"}) as client:
            assert client.instructions == f'["{tmp_path}", "here", null]'
        async with Client([sys.executable, "-c", script], inherit_env=["SECRET_*"]) as client:
            assert '"hidden"' in (client.instructions or "")


async def test_what_a_process_says_on_stderr_can_be_had() -> None:
    heard: list[str] = []
    async with Client([sys.executable, MORTAL, "/dev/null"], stderr=heard.append) as client:
        with pytest.raises(Exception, match="about to die"):
            await client.call("die", name="x")
    assert heard == ["about to die"]
