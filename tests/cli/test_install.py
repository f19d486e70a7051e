"""Test that `dovetail install` adds one entry and changes nothing else."""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from cli.command_process import SAMPLE_SERVER, RunCommand
from dovetail.host.config.config_files import parse_config
from dovetail.host.config.host_formats import HOST_FORMATS

PRINT = ("install", "--print", "--to", "mcp.json")
COMMAND = ["-m", "dovetail", "run", str(SAMPLE_SERVER)]


def test_install_and_use_it(run: RunCommand, tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    said = run("install", SAMPLE_SERVER, "--to", "cursor", "--name", "mine", **home).check_success()
    path = tmp_path / ".cursor" / "mcp.json"
    assert str(path) in said.out
    assert json.loads(path.read_text())["mcpServers"]["mine"] == {"command": sys.executable, "args": COMMAND}
    assert run("call", "mine", "add", "a=1", **home).check_success().out == "2\n"
    before = path.read_text()
    assert run("install", SAMPLE_SERVER, "--to", "cursor", "--name", "mine", **home).code == 0
    assert path.read_text() == before
    refused = run("install", "https://x.example/mcp", "--to", "cursor", "--name", "mine", **home)
    assert refused.code == 2
    assert "'mine'" in refused.err
    assert "--force" in refused.err
    assert "'cursor'" in run("install", SAMPLE_SERVER, "--to", "curser", **home).err
    assert path.read_text() == before
    run("install", "https://x.example/mcp", "--to", "cursor", "--name", "mine", "--force", **home).check_success()
    assert json.loads(path.read_text())["mcpServers"] == {"mine": {"url": "https://x.example/mcp"}}


def test_print(run: RunCommand) -> None:
    assert run(*PRINT, SAMPLE_SERVER).check_success().json == {
        "mcpServers": {"sample_server": {"command": sys.executable, "args": COMMAND}}
    }
    words = ["--print", "--to", "codex", "--name", "t", "-e", "A=1", "--", "uvx", "mcp-server-time"]
    codex = run("install", *words).check_success()
    entry: dict[str, Any] = tomllib.loads(codex.out)["mcp_servers"]["t"]
    assert Path(entry["command"]).name == "uvx"
    assert entry["env"] == {"A": "1"}
    desktop = run("install", "https://x.example/mcp", "--print", "--to", "claude-desktop").check_success()
    assert desktop.json["mcpServers"]["x"]["args"][-2:] == ["run", "https://x.example/mcp"]
    code = run(
        "install", "--print", "--to", "vscode", "-e", "KEY", "--", "npx", "-y", "@scope/thing@1.2"
    ).check_success()
    assert code.json["servers"]["thing"]["env"] == {"KEY": "${env:KEY}"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([SAMPLE_SERVER, "--to", "mcp.json", "--name", "a b"], "--name"),
        ([SAMPLE_SERVER, "--to", "claude-desktop", "-e", "KEY"], "KEY=VALUE"),
        (["nobody", "--to", "codex"], "'nobody'"),
        (["nobody.py", "--to", "codex"], "nobody.py"),
        (["--to", "codex"], "server"),
        ([SAMPLE_SERVER], "--to"),
        (["https://x.example/mcp", "-H", "A: b", "--to", "claude-desktop"], "header"),
    ],
)
def test_what_cannot_be_printed_is_explained(run: RunCommand, words: list[str], why: str) -> None:
    said = run("install", "--print", *words)
    assert said.code == 2
    assert why in said.err


def test_options_for_a_known_server_are_written_too(run: RunCommand, tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    run("install", "--to", "cursor", "--name", "near", "-e", "A=1", "--", "uvx", "some-server", **home).check_success()
    run("install", "https://x.example/mcp", "--to", "cursor", "--name", "far", "-H", "A: b", **home).check_success()
    near = run(*PRINT, "near", "-e", "B=2", "--cwd", tmp_path, **home).check_success().json["mcpServers"]["near"]
    assert near["env"] == {"A": "1", "B": "2"}
    assert near["cwd"] == str(tmp_path)
    far = run(*PRINT, "far", "-H", "C: d", **home).check_success().json["mcpServers"]["far"]
    assert far["headers"] == {"A": "b", "C": "d"}
    assert "--header" in run(*PRINT, "near", "-H", "C: d", **home).err
    assert "--env" in run(*PRINT, "far", "-e", "C=d", **home).err
    run("install", "--to", "gemini", "--name", "near", "--", "uvx", "another", **home).check_success()
    assert "cursor:near, gemini:near" in run(*PRINT, "near", **home).err


def test_a_file_named_from_here_is_written_from_the_root(run: RunCommand, tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("", encoding="utf-8")
    for word, name in (("./s.py", ""), ("./s.py:app", ":app")):
        entry = run(*PRINT, word, cwd=tmp_path).check_success().json["mcpServers"]["s"]
        assert entry["args"][-1] == f"{tmp_path / 's.py'}{name}"


def test_a_login_is_not_written(run: RunCommand) -> None:
    assert "unknown option" in run(*PRINT, "https://x.example/mcp", "--auth", "abcdefgh").err


# URLs with the transport of 2024, and references to variables

SSE_URL = "http://127.0.0.1:8765/sse"
BRIDGE = [sys.executable, "-m", "dovetail", "run", SSE_URL]


def installed(run: RunCommand, host: str, *words: str) -> dict[str, Any]:
    said = run("install", "--print", "--to", host, "--name", "x", *words).check_success().out
    suffix = Path(HOST_FORMATS[host].user_file or "x.json").suffix
    return parse_config(said, suffix)[HOST_FORMATS[host].section]["x"]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("claude-code", {"type": "sse", "url": SSE_URL}),
        ("vscode", {"type": "sse", "url": SSE_URL}),
        ("cursor", {"url": SSE_URL}),
        ("gemini", {"url": SSE_URL}),
        ("windsurf", {"serverUrl": SSE_URL}),
        ("cline", {"type": "sse", "url": SSE_URL}),
        ("copilot", {"type": "sse", "url": SSE_URL, "tools": ["*"]}),
        ("codex", {"command": BRIDGE[0], "args": BRIDGE[1:]}),
        ("zed", {"command": BRIDGE[0], "args": BRIDGE[1:]}),
        ("goose", {"cmd": BRIDGE[0], "args": BRIDGE[1:]}),
    ],
)
def test_a_url_of_2024_is_written_as_such(run: RunCommand, host: str, expected: dict[str, Any]) -> None:
    entry = installed(run, host, SSE_URL)
    assert {name: entry.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("claude-code", {"type": "http", "url": "https://x.example/mcp"}),
        ("gemini", {"httpUrl": "https://x.example/mcp"}),
        ("windsurf", {"serverUrl": "https://x.example/mcp"}),
        ("zed", {"url": "https://x.example/mcp"}),
        ("cline", {"type": "streamableHttp", "url": "https://x.example/mcp"}),
        ("lmstudio", {"url": "https://x.example/mcp"}),
        ("copilot", {"type": "http", "url": "https://x.example/mcp", "tools": ["*"]}),
        ("kiro", {"url": "https://x.example/mcp"}),
    ],
)
def test_other_urls_are_streamable_http(run: RunCommand, host: str, expected: dict[str, Any]) -> None:
    assert installed(run, host, "https://x.example/mcp") == expected


def test_the_transport_can_be_chosen(run: RunCommand) -> None:
    assert installed(run, "claude-code", "https://x.example/events", "--transport", "sse")["type"] == "sse"
    assert installed(run, "claude-code", SSE_URL, "--transport", "http")["type"] == "http"
    assert run(*PRINT, SAMPLE_SERVER, "--transport", "sse").code == 2
    assert run("install", SSE_URL, "-H", "A: b", "--to", "codex", "--print").code == 2


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("codex", {"env_vars": ["KEY"]}),
        ("goose", {"env_keys": ["KEY"]}),
        ("windsurf", {"env": {"KEY": "${env:KEY}"}}),
        ("copilot", {"env": {"KEY": "${KEY}"}}),
        ("kiro", {"env": {"KEY": "${KEY}"}}),
    ],
)
def test_a_variable_without_a_value_is_a_reference(run: RunCommand, host: str, expected: dict[str, Any]) -> None:
    entry = installed(run, host, "-e", "KEY", "--", "some-server")
    assert {name: entry.get(name) for name in expected} == expected


def test_headers_may_refer_to_variables(run: RunCommand) -> None:
    words = ("https://x.example/mcp", "-H", "Authorization: Bearer ${TOKEN}", "-H", "X-Team: ${TEAM}", "-H", "A: b")
    assert installed(run, "codex", *words) == {
        "url": "https://x.example/mcp",
        "http_headers": {"A": "b"},
        "env_http_headers": {"X-Team": "TEAM"},
        "bearer_token_env_var": "TOKEN",
    }
    headers = {"Authorization": "Bearer ${env:TOKEN}", "X-Team": "${env:TEAM}", "A": "b"}
    assert installed(run, "vscode", *words)["headers"] == headers
    assert run("install", "--print", "--to", "zed", *words).code == 2
    partial = ("https://x.example/mcp", "-H", "X-Team: team ${TEAM}")
    assert run("install", "--print", "--to", "codex", *partial).code == 2


@pytest.mark.parametrize(
    ("url", "name"),
    [("http://127.0.0.1:9/mcp", "localhost"), ("http://[::1]:9/mcp", "localhost"), ("http://10.0.0.5/mcp", "10-0-0-5")],
)
def test_a_url_with_an_address_gets_a_readable_name(run: RunCommand, url: str, name: str) -> None:
    assert [*run(*PRINT, url).check_success().json["mcpServers"]] == [name]
