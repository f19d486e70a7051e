"""Test the configuration files of twelve hosts: the servers they define and the warnings."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dovetail.host.config.config_files import ConfigProblem, ServerConfig, load_config
from dovetail.host.config.secret_lookup import SecretResolver
from dovetail.host.policy.quotas import ToolLimits
from dovetail.protocol.limits import Timeouts

FOLDER = Path(__file__).parent / "config_formats"
HERE = Path("/srv/here")
ENVIRON = {
    "SENTRY_TOKEN": "sentry-secret", "JIRA_TOKEN": "jira-secret", "WIND_KEY": "wind-secret", "LANG": "C",
    "CLOUD_TOKEN": "cloud-secret", "CLOUD_TEAM": "red", "PY_API_KEY": "py-secret", "MEMORY_TOKEN": "memory-secret",
    "OPEN_TOKEN": "open-secret", "CONTINUE_KEY": "continue-secret", "PORT": "80",
}  # fmt: skip


def process(command: str, *args: str, cwd: str | None = None, **env: str) -> dict[str, Any]:
    return {"command": command, "args": [*args], "env": env, "cwd": cwd}


def address(url: str, **headers: str) -> dict[str, Any]:
    return {"url": url, "headers": {name.replace("_", "-"): value for name, value in headers.items()}}


def golden(folder: Path) -> dict[str, tuple[str, dict[str, dict[str, Any]]]]:
    """For each file: which host writes it, and its servers as a client takes them."""
    return {
        "mcp.json": ("mcp.json", {
            "files": process("npx", "-y", "files-server", f"{folder}/docs", LOG="debug", LEVEL="3", VERBOSE="true"),
            "My-Server-beta": address("https://beta.example/mcp"),
            "mine": process("mine"),
        }),
        "claude_desktop_config.json": ("claude-desktop", {
            "sqlite": process("uvx", "sqlite-server", "--db-path", "/data/test.db"),
            "search": process("npx", "-y", "search-server", SEARCH_API_KEY="literal-search-key"),
        }),
        "claude.json": ("claude-code", {
            "sentry": address("https://sentry.example/mcp", Authorization="Bearer sentry-secret"),
            "local": process("/usr/local/bin/local"),
        }),
        "vscode.json": ("vscode", {
            "github": address("https://github.example/mcp", Authorization="Bearer given-secret"),
            "node": process("node", f"{folder}/server.js", str(Path.home()), PORT="80", FROM_FILE="a b", QUOTED="x=y"),
        }),
        "cursor.json": ("cursor", {
            "figma": address("http://127.0.0.1:3845/sse"),
            "jira": process("jira-server", JIRA_TOKEN="jira-secret"),
        }),
        "windsurf.json": ("windsurf", {"remote": address("https://wind.example/mcp", X_Key="wind-secret")}),
        "codex.toml": ("codex", {
            "docs": process("docs-server", "--stdio", LANG="C", MODE="ro"),
            "cloud": address(
                "https://cloud.example/mcp", X_Region="eu", X_Team="red", Authorization="Bearer cloud-secret"
            ),
        }),
        "gemini.json": ("gemini", {
            "py": process("python", "-m", "server", cwd="./sub", API_KEY="py-secret"),
            "web": address("https://gem.example/mcp"),
        }),
        "goose.yaml": ("goose", {
            "memory": process("npx", "-y", "memory-server", STORE="/data", MEMORY_TOKEN="memory-secret"),
            "far": address("https://goose.example/mcp"),
        }),
        "opencode.json": ("opencode", {
            "local": process("bun", "x", "local-server", TOKEN="open-secret", CERT="certificate"),
            "remote": address("https://open.example/mcp", Authorization="Bearer open-secret"),
        }),
        "zed.json": ("zed", {"old": process("old-server", "-v", A="1"), "new": process("new-server")}),
        "continue.yaml": ("continue", {
            "Browser": process("npx", "browser-server"),
            "Cloud": address("https://continue.example/mcp", X_Key="continue-secret"),
        }),
    }  # fmt: skip


GOLDEN = golden(FOLDER)


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A copy of the files with what they refer to beside them."""
    for one in FOLDER.iterdir():
        (tmp_path / one.name).write_bytes(one.read_bytes())
    (tmp_path / "cert.txt").write_text("certificate\n", encoding="utf-8")
    text = "# variables\n\nexport FROM_FILE=\"a b\"\nQUOTED='x=y'\nPORT=1\nnothing\n"
    (tmp_path / ".env").write_text(text, encoding="utf-8")
    return tmp_path


def entries_of(folder: Path, name: str) -> tuple[dict[str, ServerConfig], list[ConfigProblem]]:
    entries, problems = load_config(folder / name, GOLDEN[name][0], cwd=HERE)
    return {one.name: one for one in entries}, problems


def test_there_is_a_file_of_each_dialect() -> None:
    assert {one.name for one in FOLDER.iterdir()} == GOLDEN.keys()


@pytest.mark.parametrize("name", GOLDEN)
def test_what_is_started_or_reached(beside: Path, name: str) -> None:
    entries, _ = entries_of(beside, name)
    secrets = SecretResolver(ENVIRON, {"github-token": "given-secret"})
    found = {key: one.to_target(secrets=secrets) for key, one in entries.items()}
    assert found == golden(beside)[name][1]


@pytest.mark.parametrize("name", GOLDEN)
def test_no_value_shows_in_a_repr(beside: Path, name: str) -> None:
    entries, problems = entries_of(beside, name)
    assert "literal-search-key" not in repr(entries)
    assert "SECRET" not in repr(entries).upper()
    assert all(one.name in repr(one) for one in entries.values())
    assert not [one for one in problems if "secret" in one.message.partition(":")[2].lower()]


def told(name: str) -> list[tuple[str, bool]]:
    return [(one.message, one.is_error) for one in entries_of(FOLDER, name)[1]]


def test_the_warnings_about_each_file() -> None:
    expected = {
        "mcp.json": [
            ("My Server (beta): .*colour", False),
            ("My Server (beta): .*My-Server-beta", False),
            ("mine: .*trust", False),
            ("broken: .*command.*url", True),
            ("odd: x-dovetail: .*speed", True),
        ],
        "goose.yaml": [("developer: .*goose", False)],
        "gemini.json": [('py: .*"x-dovetail": {"trusted": true}', False)],
    }
    for name, problems in expected.items():
        for (text, severe), (pattern, expected_severe) in zip(told(name), problems, strict=True):
            assert re.match(pattern.replace("(beta)", r"\(beta\)"), text)
            assert severe is expected_severe
    for name in GOLDEN.keys() - {"mcp.json", "goose.yaml", "gemini.json"}:
        assert told(name) == []


def test_what_is_not_understood_is_kept() -> None:
    entry = entries_of(FOLDER, "mcp.json")[0]["My-Server-beta"]
    assert (entry.unknown_keys, entry.original_name) == ({"colour": "blue"}, "My Server (beta)")


def test_settings_of_this_host_and_of_others() -> None:
    files = entries_of(FOLDER, "mcp.json")[0]["files"].settings
    assert (files.roots, files.include_tools, files.exclude_tools) == (["docs"], ["read_*"], ["read_secret"])
    assert (files.timeouts, files.start, files.limits) == (Timeouts(call=12.5), "eager", ToolLimits(rate="60/min"))
    docs = entries_of(FOLDER, "codex.toml")[0]["docs"].settings
    assert (docs.include_tools, docs.exclude_tools) == (["search", "open"], ["open"])
    assert (docs.timeouts, docs.start_timeout) == (Timeouts(call=45.5, initialize=20.0), 20.0)
    gemini = entries_of(FOLDER, "gemini.json")[0]
    assert gemini["py"].settings.timeouts == Timeouts(call=15.0)
    assert gemini["py"].settings.trusted is False  # trusted there is not trusted here
    assert gemini["web"].settings.include_tools == ["safe_*"]
    assert entries_of(FOLDER, "goose.yaml")[0]["memory"].settings.timeouts == Timeouts(call=300.0)


def test_what_is_switched_off() -> None:
    off = {key for name in GOLDEN for key, one in entries_of(FOLDER, name)[0].items() if not one.enabled}
    assert off == {"jira", "cloud", "far"}


def test_what_a_user_must_be_asked_for() -> None:
    entries, _ = entries_of(FOLDER, "vscode.json")
    asked = entries["github"].required_inputs
    assert [(one["id"], one["password"]) for one in asked] == [("github-token", True)]
    assert entries["node"].required_inputs == []
    assert [str(one) for one in entries["node"].references] == ["place:workspaceFolder", "place:userHome", "PORT"]


def test_a_user_may_trust_a_server() -> None:
    entries, problems = load_config(FOLDER / "mcp.json", level="user")
    assert {one.name: one.settings.trusted for one in entries}["mine"] is True
    assert not [one for one in problems if one.message.startswith("mine:")]


def test_identities_are_of_what_is_started() -> None:
    entries = [one for name in GOLDEN for one in entries_of(FOLDER, name)[0].values()]
    assert len({one.identity for one in entries}) == len(entries)
    mine = {one.name: one for one in load_config(FOLDER / "mcp.json", level="user")[0]}
    theirs = entries_of(FOLDER, "mcp.json")[0]
    assert mine["files"].identity != theirs["files"].identity  # another project's words are another server


def written(folder: Path, source: str, **members: Any) -> tuple[ServerConfig, list[str]]:
    """One entry of a host's file, and what is told about it."""
    path = folder / "written.json"
    path.write_text(json.dumps({"mcpServers": {"s": {"command": "x", **members}}}), encoding="utf-8")
    (entry,), problems = load_config(path, source, level="user")
    return entry, [one.message for one in problems]


def set_settings(entry: ServerConfig) -> dict[str, Any]:
    """The settings that a file sets."""
    return {name: getattr(entry.settings, name) for name in entry.settings_keys}


@pytest.mark.parametrize(
    ("source", "members", "expected"),
    [
        ("codex", {"startup_timeout_sec": 120}, {"initialize": 120.0, "start_timeout": 120.0}),
        ("codex", {"startup_timeout_ms": 500}, {"initialize": 0.5, "start_timeout": 0.5}),
        ("mcp.json", {"x-dovetail": {"start_timeout": 90}}, {"initialize": 90.0, "start_timeout": 90.0}),
        ("mcp.json", {"x-dovetail": {"timeouts": {"initialize": 70}}}, {"initialize": 70.0, "start_timeout": 70.0}),
        ("claude-code", {"timeout": 600000}, {"call": 600.0}),
        ("claude-code", {"request_timeout_ms": 90000}, {"call": 90.0}),
        ("mcp.json", {"timeout": 20}, {"call": 20.0}),
    ],
)
def test_times_mean_what_their_host_means(
    tmp_path: Path, source: str, members: dict[str, Any], expected: dict[str, float]
) -> None:
    found = set_settings(written(tmp_path, source, **members)[0])
    times = {name: getattr(found["timeouts"], name) for name in expected if name != "start_timeout"}
    assert times | ({"start_timeout": found["start_timeout"]} if "start_timeout" in found else {}) == expected


@pytest.mark.parametrize(
    ("source", "members", "included", "excluded"),
    [
        ("codex", {"enabled_tools": []}, [], None),
        ("gemini", {"includeTools": []}, [], None),
        ("goose", {"available_tools": []}, None, None),  # which writes so where it means all
        ("mcp.json", {"x-dovetail": {"include_tools": []}}, [], None),
        ("mcp.json", {}, None, None),
        ("gemini", {"excludeTools": ["a"], "x-dovetail": {"exclude_tools": ["b"]}}, None, ["b", "a"]),
        ("gemini", {"includeTools": ["a"], "x-dovetail": {"exclude_tools": ["b"]}}, ["a"], ["b"]),
        ("gemini", {"includeTools": ["a"], "x-dovetail": {"include_tools": ["c"]}}, ["c"], None),
    ],
)
def test_which_tools_are_offered(
    tmp_path: Path, source: str, members: dict[str, Any], included: list[str] | None, excluded: list[str] | None
) -> None:
    found = set_settings(written(tmp_path, source, **members)[0])
    assert (found.get("include_tools"), found.get("exclude_tools")) == (included, excluded)


def test_what_codex_hands_on_and_what_is_not_taken_over(tmp_path: Path) -> None:
    entry, told = written(
        tmp_path, "codex", env_vars=["A", {"name": "B", "source": "local"}, 5], oauth={"client_id": "c"}
    )
    assert entry.env_passthrough == ["A", "B"]
    assert any(re.match(r"s: env_vars: 5\b", one) for one in told)
    assert any(one.startswith("s: oauth ") for one in told)


def test_trust_in_another_format_is_reported(tmp_path: Path) -> None:
    entry, (told,) = written(tmp_path, "mcp.json", trust=True)
    assert not entry.settings.trusted
    assert "trust" in told
    assert written(tmp_path, "mcp.json", trust=False)[1] == []


def test_the_servers_of_this_folder_come_before_the_users_own(tmp_path: Path) -> None:
    local = {str(tmp_path): {"mcpServers": {"s": {"command": "local"}}}}
    path = tmp_path / ".claude.json"
    path.write_text(json.dumps({"mcpServers": {"s": {"command": "wide"}}, "projects": local}), encoding="utf-8")
    entries, _ = load_config(path, "claude-code", level="user", cwd=tmp_path)
    assert [one.command for one in entries] == ["local", "wide"]
