"""Test that a misspelt command, file, URL or server name is answered with the right one."""

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.command_process import SAMPLE_SERVER, RunCommand, RunSeries
from dovetail import Client
from dovetail.cli.main import COMMAND_SUMMARIES
from dovetail.cli.suggestions import suggest_command, suggest_file
from dovetail.client.targets import guess_url


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("localhost:8000/mcp", "http://localhost:8000/mcp"),
        ("localhost", "http://localhost/mcp"),
        ("127.0.0.1:8000", "http://127.0.0.1:8000/mcp"),
        ("[::1]:8000/x", "http://[::1]:8000/x"),
        ("api:8000", "http://api:8000/mcp"),
        ("htps://example.com/mcp", "https://example.com/mcp"),
        ("htp://example.com/mcp", "http://example.com/mcp"),
        ("http:/example.com/mcp", "http://example.com/mcp"),
        ("https:example.com", "https://example.com/mcp"),
        ("ws://example.com/mcp", "http://example.com/mcp"),
        ("wss://example.com/mcp", "https://example.com/mcp"),
        ("cursor:hello", None),
        ("hello", None),
        ("folder/hello.py", None),
    ],
)
def test_urls_are_guessed(text: str, url: str | None) -> None:
    assert guess_url(text) == url
    if url is not None:
        with pytest.raises(ValueError, match="invalid URL") as caught:
            Client(text)
        assert repr(url) in str(caught.value)


def test_unknown_options(run_here: RunCommand) -> None:
    refused = run_here("list", "--jsn")
    assert refused.code == 2
    assert "'--json'" in refused.err
    assert "--env" not in refused.err


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("serve", "`dovetail run`"),
        ("login", "`dovetail auth login`"),
        ("version", "`dovetail --version`"),
        ("instal", "'install'"),
        ("zzzzzz", None),
    ],
)
def test_unknown_commands_list_all_commands(name: str, command: str | None) -> None:
    hint = suggest_command(name, COMMAND_SUMMARIES)
    assert (command is not None and command in hint) or (command is None and "Did you mean" not in hint)
    assert hint.rpartition("commands: ")[2].split(", ") == [*COMMAND_SUMMARIES]


def test_a_synonym_of_a_missing_command_is_not_suggested() -> None:
    assert "Did you mean" not in suggest_command("serve", ["call"])


def test_a_misspelt_command_ends_with_usage(run_here: RunCommand) -> None:
    result = run_here("serve", SAMPLE_SERVER)
    assert (result.code, result.out) == (2, "")
    assert "`dovetail run`" in result.err
    assert all(name in result.err for name in COMMAND_SUMMARIES)


def test_help_is_a_command(run_here: RunCommand) -> None:
    assert run_here("help", "run").check_success().out == run_here("run", "--help").check_success().out


def test_similar_files_are_suggested(run_here: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "hello.py").touch()
    (tmp_path / "hello.txt").touch()
    for arguments in (("list", "helo.py"), ("run", "helo.py:app"), ("list", "hello"), ("list", "helo")):
        result = run_here(*arguments, cwd=tmp_path)
        assert result.code == 2
        assert "Did you mean 'hello.py'?" in result.err
    assert suggest_file(tmp_path / "no-folder" / "hello.py") == ""


def test_servers_are_suggested_with_their_source(run_here: RunCommand, at_home: dict[str, str], tmp_path: Path) -> None:
    for host in ("cursor", "gemini"):
        run_here("install", "--to", host, "--name", "hello", "--", "some-program", **at_home).check_success()
    run_here("install", "--to", "cursor", "--name", "clock", "--", "some-program", **at_home).check_success()
    assert "'clock'" in run_here("list", "clok", **at_home).err
    assert "'cursor:hello'" in run_here("list", "cursr:hello", **at_home).err
    assert "cursor:hello, gemini:hello" in run_here("list", "hello", **at_home).err
    assert "clock, cursor:hello, gemini:hello" in run_here("list", "zzzzzz", **at_home).err
    config = tmp_path / "two.json"
    config.write_text(json.dumps({"mcpServers": {"near": {"command": "a"}, "far": {"command": "b"}}}))
    assert f"{config}:near" in run_here("list", f"{config}:neer", **at_home).err
    assert f"{config}:near, {config}:far" in run_here("list", config, **at_home).err


@pytest.fixture
def web_server() -> Iterator[str]:
    """Serve files over HTTP. This server answers a POST request with status 501 and a web page."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/mcp"
        server.shutdown()


def test_a_web_server_is_recognized(run: RunCommand, web_server: str) -> None:
    result = run("list", web_server, "--json")
    document = json.loads(result.err)
    assert document["status_code"] == 501
    assert "not an MCP server" in document["hint"]


def test_a_used_port_hints_at_a_free_one(run_series: RunSeries, tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    config.write_text('{"mcpServers": {}}')
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        targets = (("run", SAMPLE_SERVER), ("dev", SAMPLE_SERVER), ("gateway", config))
        results = run_series(*((*target, "--http", "--port", port) for target in targets))
    for result in results:
        assert result.code == 2
        assert f"127.0.0.1:{port}" in result.err
        assert "--port 0" in result.err
        assert "Errno" not in result.err
