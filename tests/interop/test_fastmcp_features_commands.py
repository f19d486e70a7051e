"""Test rows of fastmcp_features.csv about the command line. The commands of both libraries run in this process."""

import asyncio
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastmcp", reason="fastmcp is not installed")

import uvicorn
from fastmcp.cli.cli import app as fast_cli

from dovetail.cli.main import main
from interop.fastmcp_pairs import create_pair, greet, leave

pytestmark = [
    pytest.mark.interop,
    # fastmcp warns about its own dependencies.
    pytest.mark.filterwarnings("ignore::Warning"),
]

RunCommand = Callable[..., tuple[int, Any]]

PROGRAM = """
from {module} import {server}

def create_server():
    server = {server}("made")
    server.tool(lambda: "done", name="work")
    return server

app = {server}("shown")
app.tool(lambda: "done", name="work")
"""


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RunCommand:
    """Run a command of fastmcp or dovetail, and return the exit code and the JSON that it prints."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOVETAIL_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run_command(library: str, *words: str) -> tuple[int, Any]:
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", [library, *words])
        with pytest.raises(SystemExit) as caught:
            fast_cli() if library == "fastmcp" else main()
        output = capfd.readouterr().out
        return int(caught.value.code or 0), json.loads(output) if output.lstrip()[:1] in ("{", "[") else output

    return run_command


def _serve(server: uvicorn.Server, listener: socket.socket) -> None:
    asyncio.run(server.serve([listener]))


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    """An HTTP server of each library."""
    fast, app = create_pair()
    for server in (fast, app):
        server.tool(greet)
        server.resource("note://today", name="today")(lambda: "buy tea")
        server.prompt(leave)
    webs: dict[str, Any] = {"fastmcp": fast.http_app(), "dovetail": app.asgi()}
    listeners = {library: socket.create_server(("127.0.0.1", 0)) for library in webs}
    servers = {library: uvicorn.Server(uvicorn.Config(web, log_level="critical")) for library, web in webs.items()}
    threads = [threading.Thread(target=_serve, args=(servers[library], listeners[library])) for library in webs]
    for thread in threads:
        thread.start()
    yield {library: f"http://127.0.0.1:{listener.getsockname()[1]}/mcp" for library, listener in listeners.items()}
    for server in servers.values():
        server.should_exit = True
    for thread in threads:
        thread.join()


@pytest.fixture
def program(tmp_path: Path) -> dict[str, str]:
    """A file with a server of each library, and with a function that creates a server."""
    files: dict[str, str] = {}
    for library, server in {"fastmcp": "FastMCP", "dovetail": "Server"}.items():
        path = tmp_path / f"{library}_server.py"
        path.write_text(PROGRAM.format(module=library, server=server))
        files[library] = str(path)
    return files


LIBRARIES = ("fastmcp", "dovetail")


def test_list_command(run: RunCommand, urls: dict[str, str]) -> None:
    for library in LIBRARIES:
        code, output = run(library, "list", urls[library], "--json")
        assert code == 0
        assert [(tool["name"], tool["inputSchema"]["required"]) for tool in output["tools"]] == [("greet", ["name"])]


def test_call_command(run: RunCommand, urls: dict[str, str]) -> None:
    for library in LIBRARIES:
        code, output = run(library, "call", urls[library], "greet", "name=Ada", "--json")
        assert (code, output["content"][0]["text"]) == (0, "Hello, Ada!")
        assert run(library, "call", urls[library], "grete", "name=Ada")[0] != 0


def test_help_of_a_tool(run: RunCommand, urls: dict[str, str]) -> None:
    """Only dovetail describes a tool in the help of the command."""
    code, output = run("fastmcp", "call", urls["fastmcp"], "greet", "--help")
    assert code == 0
    assert "Greet somebody." not in output
    code, output = run("dovetail", "call", urls["dovetail"], "greet", "--help")
    assert code == 0
    assert "Greet somebody." in output


def test_read_and_prompt_commands(run: RunCommand, urls: dict[str, str]) -> None:
    code, contents = run("fastmcp", "call", urls["fastmcp"], "note://today", "--json")
    assert (code, contents[0]["text"]) == (0, "buy tea")
    code, result = run("dovetail", "read", urls["dovetail"], "note://today", "--json")
    assert (code, result["contents"][0]["text"]) == (0, "buy tea")
    code, prompt = run("fastmcp", "call", urls["fastmcp"], "leave", "--prompt", "name=Ada", "--json")
    assert (code, prompt["messages"][0]["content"]["text"]) == (0, "Bye, Ada!")
    code, prompt = run("dovetail", "prompt", urls["dovetail"], "leave", "name=Ada", "--json")
    assert (code, prompt["messages"][0]["content"]["text"]) == (0, "Bye, Ada!")


def test_info_command(run: RunCommand, program: dict[str, str], urls: dict[str, str]) -> None:
    """Both describe a server object and a function that creates one. Only dovetail describes a remote server."""
    for entry, name in (("", "shown"), (":app", "shown"), (":create_server", "made")):
        code, output = run("fastmcp", "inspect", f"{program['fastmcp']}{entry}", "--format", "mcp")
        assert (code, output["serverInfo"]["name"]) == (0, name)
        code, output = run("dovetail", "info", f"{program['dovetail']}{entry}", "--json")
        assert (code, output["name"]) == (0, name)
    assert run("fastmcp", "inspect", urls["fastmcp"], "--format", "mcp")[0] != 0
    assert run("dovetail", "info", urls["dovetail"], "--json")[0] == 0


def test_configuration_for_hosts(run: RunCommand, program: dict[str, str]) -> None:
    code, output = run("fastmcp", "install", "mcp-json", program["fastmcp"], "--env", "MODE=test")
    assert code == 0
    (entry,) = output.values()
    assert entry["args"][-1] == program["fastmcp"]
    assert entry["env"] == {"MODE": "test"}
    code, output = run("dovetail", "install", program["dovetail"], "--to", "mcp.json", "--print", "--env", "MODE=test")
    assert code == 0
    (entry,) = output["mcpServers"].values()
    assert entry["args"][-1] == program["dovetail"]
    assert entry["env"] == {"MODE": "test"}


def test_clipboard(run: RunCommand, program: dict[str, str]) -> None:
    """Only fastmcp copies a configuration."""
    assert "--copy" in run("fastmcp", "install", "mcp-json", "--help")[1]
    assert run("dovetail", "install", program["dovetail"], "--to", "mcp.json", "--copy")[0] == 2


def test_configured_servers(run: RunCommand, tmp_path: Path) -> None:
    config = {"mcpServers": {"weather": {"command": "no-such-command", "args": []}}}
    tmp_path.joinpath(".cursor").mkdir()
    tmp_path.joinpath(".cursor", "mcp.json").write_text(json.dumps(config))
    for library, command in (("fastmcp", "discover"), ("dovetail", "servers")):
        code, output = run(library, command, "--json")
        assert "weather" in [server["name"] for server in output], code
