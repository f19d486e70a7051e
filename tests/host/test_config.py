"""Every host's dialect is read as one shape; what is wrong spoils itself only."""

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.host.config import read_file, read_known, resolve

STDIO: dict[str, Any] = {"command": "uvx", "args": ["mcp-server-time"], "env": {"A": "${A}"}}


def write(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("place", "content"),
    [
        (".mcp.json", json.dumps({"mcpServers": {"time": STDIO}})),
        (".vscode/mcp.json", '{ // comments\n "servers": {"time": ' + json.dumps(STDIO) + ",}, }"),
        (".gemini/settings.json", json.dumps({"theme": "x", "mcpServers": {"time": STDIO}})),
        (
            ".codex/config.toml",
            '[mcp_servers.time]\ncommand = "uvx"\nargs = ["mcp-server-time"]\nenv = { A = "${A}" }\n',
        ),
        (
            "opencode.json",
            json.dumps({"mcp": {"time": {"command": ["uvx", "mcp-server-time"], "environment": {"A": "${A}"}}}}),
        ),
        (
            ".config/goose/config.yaml",
            "extensions:\n  time:\n    cmd: uvx\n    args: [mcp-server-time]\n    envs: {A: '${A}'}\n",
        ),
    ],
)
def test_dialects(tmp_path: Path, place: str, content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    write(tmp_path / place, content)
    ((entry,), problems) = read_known(home=tmp_path, here=tmp_path)[0][:1], read_known(home=tmp_path, here=tmp_path)[1]
    assert not problems
    assert entry.name == "time"
    assert entry.spelled() == "uvx mcp-server-time"
    assert entry.target({"A": "1"}) == {"command": "uvx", "args": ["mcp-server-time"], "env": {"A": "1"}, "cwd": None}


def test_addresses_and_headers(tmp_path: Path) -> None:
    remote = {"type": "http", "url": "https://x/${B:-y}", "headers": {"Authorization": "Bearer ${env:T}"}}
    entries, _ = read_file(write(tmp_path / "mcp.json", json.dumps({"mcpServers": {"far": remote}})))
    assert entries[0].target({"T": "t"}) == {"url": "https://x/y", "headers": {"Authorization": "Bearer t"}}
    with pytest.raises(KeyError, match="T"):
        entries[0].target({})


def test_a_bad_entry_spoils_itself_only(tmp_path: Path) -> None:
    servers = {"good": STDIO, "bad": {}, "worse": 7}
    entries, problems = read_file(write(tmp_path / "mcp.json", json.dumps({"mcpServers": servers})))
    assert [one.name for one in entries] == ["good"]
    assert [one.text.partition(":")[0] for one in problems] == ["bad", "worse"]
    entries, problems = read_file(write(tmp_path / "broken.json", "{"))
    assert not entries
    assert "cannot be read" in problems[0].text


def test_what_is_in_strings_is_no_comment(tmp_path: Path) -> None:
    text = '{"mcpServers": {"a": {"url": "https://x//y", /* z */ "headers": {"q": "/* ,} */"}}}}'
    entries, _ = read_file(write(tmp_path / "mcp.json", text))
    assert entries[0].url == "https://x//y"
    assert entries[0].headers == {"q": "/* ,} */"}


def test_references() -> None:
    assert resolve("${A}-${B:-b}-${env:A}-$A", {"A": "a"}) == "a-b-a-$A"
