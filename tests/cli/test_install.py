"""Test that `dovetail install` adds one entry and changes nothing else."""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from cli.command_process import SAMPLE_SERVER, RunCommand

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
        ([SAMPLE_SERVER, "--to", "codex", "-e", "KEY"], "KEY=VALUE"),
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
    assert "No such option" in run(*PRINT, "https://x.example/mcp", "--auth", "abcdefgh").err
