"""Test reading the configuration formats of all hosts, and that a mistake affects only its entry."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dovetail.host.config.config_files import ConfigProblem, ServerConfig, discover_configs, load_config
from dovetail.host.config.secret_lookup import SecretResolver

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
    ((entry,), problems) = (
        discover_configs(home=tmp_path, cwd=tmp_path)[0][:1],
        discover_configs(home=tmp_path, cwd=tmp_path)[1],
    )
    assert not problems
    assert entry.name == "time"
    assert entry.display_target == "uvx mcp-server-time"
    assert entry.to_target({"A": "1"}) == {
        "command": "uvx",
        "args": ["mcp-server-time"],
        "env": {"A": "1"},
        "cwd": None,
    }


def test_addresses_and_headers(tmp_path: Path) -> None:
    remote = {"type": "http", "url": "https://x/${B:-y}", "headers": {"Authorization": "Bearer ${env:T}"}}
    entries, _ = load_config(write(tmp_path / "mcp.json", json.dumps({"mcpServers": {"far": remote}})))
    assert entries[0].to_target({"T": "t"}) == {"url": "https://x/y", "headers": {"Authorization": "Bearer t"}}
    with pytest.raises(KeyError, match="T"):
        entries[0].to_target({})


def test_a_bad_entry_spoils_itself_only(tmp_path: Path) -> None:
    servers = {"good": STDIO, "bad": {}, "worse": 7}
    entries, problems = load_config(write(tmp_path / "mcp.json", json.dumps({"mcpServers": servers})))
    assert [one.name for one in entries] == ["good"]
    assert [one.message.partition(":")[0] for one in problems] == ["bad", "worse"]
    entries, problems = load_config(write(tmp_path / "broken.json", "{"))
    assert not entries
    assert problems[0].is_unreadable


def test_text_in_strings_is_not_a_comment(tmp_path: Path) -> None:
    text = '{"mcpServers": {"a": {"url": "https://x//y", /* z */ "headers": {"q": "/* ,} */"}}}}'
    entries, _ = load_config(write(tmp_path / "mcp.json", text))
    assert entries[0].url == "https://x//y"
    assert entries[0].headers == {"q": "/* ,} */"}


def test_references() -> None:
    assert SecretResolver({"A": "a"}).resolve("${A}-${B:-b}-${env:A}-$A") == "a-b-a-$A"


def test_whose_a_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(here)
    content = json.dumps({"mcpServers": {"time": STDIO}})
    cases = [
        (home / ".gemini" / "settings.json", "gemini", "user"),
        (here / ".gemini" / "settings.json", "gemini", "project"),
        (tmp_path / "else" / ".gemini" / "settings.json", "gemini", "project"),
        (home / ".claude.json", "claude-code", "user"),
        (here / "mcp.json", "mcp.json", "project"),
        (here / "any.json", "mcp.json", "project"),
    ]
    for path, source, level in cases:
        ((entry,), _) = load_config(write(path, content))
        assert (entry.source, entry.level) == (source, level)
    ((entry,), _) = load_config(here / "any.json", "mine", level="user")
    assert (entry.source, entry.level) == ("mine", "user")
    assert {one.level for one in discover_configs(home=home, cwd=home)[0]} == {"user"}


def test_a_home_that_is_also_the_project_is_read_once(tmp_path: Path) -> None:
    write(tmp_path / ".cursor" / "mcp.json", json.dumps({"mcpServers": {"time": STDIO}}))
    assert [one.name for one in discover_configs(home=tmp_path, cwd=tmp_path)[0]] == ["time"]


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"command": "x", "args": "y"}, "args"),
        ({"command": "x", "env": ["A"]}, "env"),
        ({"command": "x", "cwd": 5}, "cwd"),
        ({"url": "http://x", "headers": "A: b"}, "headers"),
        ({"command": "x", "x-dovetail": {"timeouts": {"call": -1}}}, "x-dovetail"),
        ({"command": "x", "x-dovetail": {"timeouts": {"lunch": 1}}}, "x-dovetail"),
        ({"command": "x", "x-dovetail": {"limits": {"rate": "often"}}}, "x-dovetail"),
        ({"command": "x", "x-dovetail": {"start": "soon"}}, "x-dovetail"),
        ({"command": "x", "x-dovetail": 5}, "x-dovetail"),
    ],
)
def test_mistakes_in_an_entry_are_reported(tmp_path: Path, entry: dict[str, Any], text: str) -> None:
    path = write(tmp_path / "mcp.json", json.dumps({"mcpServers": {"bad": entry, "good": STDIO}}))
    entries, (problem,) = load_config(path)
    assert [one.name for one in entries] == ["good"]
    assert problem.message.startswith("bad: ")
    assert text in problem.message
    assert problem.is_error


def test_two_names_that_become_the_same_are_reported(tmp_path: Path) -> None:
    path = write(tmp_path / "mcp.json", json.dumps({"mcpServers": {"a.b": STDIO, "a b": STDIO}}))
    entries, problems = load_config(path)
    assert [(one.name, one.original_name) for one in entries] == [("a-b", "a.b")]
    (problem,) = [one.message for one in problems if one.is_error]
    assert all(name in problem for name in ("a b", "a-b", "'a.b'"))


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("x.json", "[1]", ""),
        ("x.json", '{"mcpServers": 5}', "mcpServers"),
        ("x.json", "null", ""),
        ("x.yaml", "- a", ""),
        ("x.json", '{"projects": []}', ""),
        ("x.json", '{"mcpServer": {"a": {"command": "x"}}}', "mcpServer.*mcpServers"),
        ("x.json", '{"mcpservers": {"a": {"command": "x"}}}', "mcpservers.*mcpServers"),
    ],
)
def test_a_file_without_servers_has_none(tmp_path: Path, name: str, content: str, told: str) -> None:
    entries, (problem,) = load_config(write(tmp_path / name, content))
    assert not entries
    assert re.search(told, problem.message)
    assert problem.is_error


def test_a_file_of_a_host_need_not_have_servers(tmp_path: Path) -> None:
    write(tmp_path / ".gemini" / "settings.json", '{"theme": "dark"}')
    write(tmp_path / ".claude.json", '{"projects": {}, "mcpServers": {}}')
    assert discover_configs(home=tmp_path, cwd=tmp_path) == ([], [])
    write(tmp_path / ".gemini" / "settings.json", '{"mcpServer": {}}')
    assert "mcpServers" in discover_configs(home=tmp_path, cwd=tmp_path)[1][0].message
    assert load_config(write(tmp_path / "empty.json", '{"mcpServers": {}}')) == ([], [])


def test_a_duplicate_name_is_reported(tmp_path: Path) -> None:
    text = '{"mcpServers": {"a": {"command": "first"}, "a": {"command": "last", "env": {"X": "1", "X": "2"}}}}'
    (entry,), problems = load_config(write(tmp_path / "mcp.json", text))
    assert entry.command == "last"
    assert [name in one.message for name, one in zip(("'X'", "'a'"), problems, strict=True)] == [True, True]


def test_a_level_is_one_of_two(tmp_path: Path) -> None:
    path = write(tmp_path / "mcp.json", json.dumps({"mcpServers": {"time": STDIO}}))
    wrong: Any = "Project"
    with pytest.raises(ValueError, match=r"'user'.*'project'.*'Project'"):
        load_config(path, level=wrong)


def test_invalid_yaml_is_reported(tmp_path: Path) -> None:
    entries, (problem,) = load_config(write(tmp_path / "x.yaml", "a: [b"))
    assert not entries
    assert problem.is_error


def test_inputs_may_stand_beside_the_servers(tmp_path: Path) -> None:
    servers = {"a": {"command": "x", "env": {"T": "${input:t}"}}}
    document = {"mcp": {"inputs": [{"id": "t", "description": "T"}], "servers": servers}}
    ((entry,), _) = load_config(write(tmp_path / "settings.json", json.dumps(document)))
    assert entry.required_inputs == [{"id": "t", "description": "T"}]


def _load(path: Path, document: dict[str, Any], source: str) -> tuple[list[ServerConfig], list[ConfigProblem]]:
    path.write_text(json.dumps(document))
    return load_config(path, source)


@pytest.mark.parametrize("key", ["disabledTools", "disabled_tools", "excludeTools"])
def test_tools_that_another_host_turned_off_are_off(tmp_path: Path, key: str) -> None:
    servers = {"mcpServers": {"a": {"command": "x", key: ["wipe"]}}}
    (entry,), problems = _load(tmp_path / "mcp.json", servers, "windsurf")
    assert entry.settings.exclude_tools == ["wipe"]
    assert not problems


@pytest.mark.parametrize(("tools", "included"), [(["*"], ["*"]), ("*", ["*"]), (["read"], ["read"]), ([], [])])
def test_the_tools_of_copilot_are_a_filter(tmp_path: Path, tools: Any, included: list[str]) -> None:
    servers = {"mcpServers": {"a": {"type": "local", "command": "x", "tools": tools}}}
    (entry,), problems = _load(tmp_path / "mcp-config.json", servers, "copilot")
    assert entry.settings.include_tools == included
    assert not problems


@pytest.mark.parametrize(
    ("settings", "enabled"),
    [({"excluded": ["b"]}, {"a"}), ({"allowed": ["b"]}, {"b"}), ({"allowed": ["a", "b"], "excluded": ["a"]}, {"b"})],
)
def test_servers_that_gemini_does_not_use_are_off(
    tmp_path: Path, settings: dict[str, list[str]], enabled: set[str]
) -> None:
    document = {"mcp": settings, "mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}}}
    entries, problems = _load(tmp_path / "settings.json", document, "gemini")
    assert {entry.name for entry in entries if entry.enabled} == enabled
    assert len(entries) == 2
    assert not problems


def test_the_settings_of_gemini_are_not_servers(tmp_path: Path) -> None:
    document = {"mcp": {"allowed": ["a"], "excluded": []}}
    assert _load(tmp_path / "settings.json", document, "gemini") == ([], [])


@pytest.mark.parametrize("entry", [{"source": "extension", "settings": {}}, {"settings": {"key": 1}}])
def test_an_extension_of_zed_is_skipped_without_an_error(tmp_path: Path, entry: dict[str, Any]) -> None:
    entries, problems = _load(tmp_path / "settings.json", {"context_servers": {"a": entry}}, "zed")
    assert not entries
    assert [problem.is_error for problem in problems] == [False]


@pytest.mark.parametrize(
    ("source", "place", "level"),
    [
        ("copilot", ".copilot/mcp-config.json", "user"),
        ("kiro", ".kiro/settings/mcp.json", "user"),
        ("amazon-q", ".aws/amazonq/mcp.json", "user"),
        ("lmstudio", ".lmstudio/mcp.json", "user"),
        ("cline", ".config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json", "user"),
        ("roo", ".config/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json", "user"),
        ("copilot", "project/.github/mcp.json", "project"),
        ("kiro", "project/.kiro/settings/mcp.json", "project"),
        ("roo", "project/.roo/mcp.json", "project"),
        ("amazon-q", "project/.amazonq/mcp.json", "project"),
    ],
)
def test_files_of_more_hosts_are_found(
    tmp_path: Path, source: str, place: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"mcpServers": {"a": {"command": "x"}}}))
    (entry,), problems = discover_configs(tmp_path, tmp_path / "project")
    assert (entry.source, entry.level) == (source, level)
    assert not problems
    if level == "project":
        assert entry.project_dir == tmp_path / "project"


@pytest.mark.parametrize(
    ("source", "entry", "transport"),
    [
        ("claude-code", {"type": "sse", "url": "https://x.example"}, "sse"),
        ("claude-code", {"type": "http", "url": "https://x.example"}, "http"),
        ("gemini", {"url": "https://x.example"}, "sse"),
        ("gemini", {"url": "https://x.example", "type": "http"}, "http"),
        ("gemini", {"httpUrl": "https://x.example"}, "http"),
        ("cursor", {"url": "https://x.example"}, "http"),
    ],
)
def test_the_transport_of_a_url_is_read(tmp_path: Path, source: str, entry: dict[str, Any], transport: str) -> None:
    ((found,), _) = _load(tmp_path / "mcp.json", {"mcpServers": {"a": entry}}, source)
    assert found.transport == transport


@pytest.mark.parametrize("variable", ["XDG_CONFIG_HOME", "APPDATA"])
def test_a_relative_directory_of_the_user_is_ignored(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    write(project / "mine" / "opencode" / "opencode.json", json.dumps({"mcp": {"time": STDIO}}))
    write(project / "mine" / "Claude" / "claude_desktop_config.json", json.dumps({"mcpServers": {"time": STDIO}}))
    monkeypatch.chdir(project)
    monkeypatch.setenv(variable, "mine")
    assert [entry for entry in discover_configs(home=tmp_path)[0] if entry.level == "user"] == []
