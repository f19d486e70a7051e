"""Test adding an entry to a host's configuration file without changing the rest."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.host.config.config_files import ServerConfig, load_config, parse_config
from dovetail.host.config.editor import add_entry, delete_entry, format_document, insert_entry, remove_entry
from dovetail.host.config.host_formats import HOST_FORMATS, get_config_path

LOCAL = ServerConfig(name="time", source="", path=Path(), command="uvx", args=["mcp-server-time"], env={"A": 'b"\\ü'})
REMOTE = ServerConfig(name="far", source="", path=Path(), url="https://x.example/mcp", headers={"X-Key": "k"})


@pytest.mark.parametrize("host", HOST_FORMATS)
@pytest.mark.parametrize("entry", [LOCAL, REMOTE], ids=lambda one: one.name)
def test_what_is_written_is_read_again(host: str, entry: ServerConfig, tmp_path: Path) -> None:
    if entry.url is not None and HOST_FORMATS[host].url_key is None:
        with pytest.raises(ValueError, match="Claude Desktop"):
            format_document(host, entry)
        return
    path = tmp_path / "folder" / Path(HOST_FORMATS[host].user_file or HOST_FORMATS[host].project_file or "").name
    add_entry(host, path, entry)
    add_entry(host, path, entry)
    (found,), problems = load_config(path)
    assert not problems
    assert found.to_target({}) == entry.to_target({})
    assert path.stat().st_mode & 0o777 == 0o600


COMMENTED = """{
  // what I use
  "mcpServers": {
    "old": {"command": "x", "args": ["{", "}", "//"]}, /* keep */
  },
  "theme": "dark",
}
"""


def test_comments_and_spacing_stay(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text(COMMENTED, encoding="utf-8")
    os.chmod(path, 0o640)
    add_entry("gemini", path, LOCAL)
    text = path.read_text(encoding="utf-8")
    for line in COMMENTED.splitlines():
        assert line in text
    assert parse_config(text, ".json")["theme"] == "dark"
    assert path.stat().st_mode & 0o777 == 0o640
    with pytest.raises(ValueError, match="'old'"):
        add_entry("gemini", path, _named(REMOTE, "old"))
    add_entry("gemini", path, _named(REMOTE, "old"), replace=True)
    text = path.read_text(encoding="utf-8")
    assert "// what I use" in text
    assert "/* keep */" in text
    assert parse_config(text, ".json")["mcpServers"].keys() == {"old", "time"}


def _named(entry: ServerConfig, name: str) -> ServerConfig:
    return ServerConfig(name=name, source="", path=Path(), url=entry.url, headers=entry.headers)


@pytest.mark.parametrize("host", HOST_FORMATS)
def test_removing_an_entry_undoes_adding_it(host: str, tmp_path: Path) -> None:
    path = tmp_path / Path(HOST_FORMATS[host].user_file or HOST_FORMATS[host].project_file or "").name
    other = ServerConfig(name="other", source="", path=Path(), command="uvx", args=["a"], env={"A": "}, #"})
    add_entry(host, path, other)
    before = path.read_bytes()
    os.chmod(path, 0o640)
    add_entry(host, path, LOCAL)
    remove_entry(host, path, LOCAL.name)
    assert path.read_bytes() == before
    assert path.stat().st_mode & 0o777 == 0o640
    with pytest.raises(ValueError, match="'time'"):
        remove_entry(host, path, LOCAL.name)
    assert path.read_bytes() == before
    remove_entry(host, path, "other")
    assert not load_config(path)[0]
    add_entry(host, path, LOCAL)
    assert [entry.name for entry in load_config(path)[0]] == ["time"]


ONE_LINE = '{"a": {}, "mcpServers": {"x": {"command": "a,}"}, "y": {}, "z": {"b": [{}]}}}'


@pytest.mark.parametrize(
    ("host", "old", "name", "new"),
    [
        ("mcp.json", ONE_LINE, "x", '{"a": {}, "mcpServers": {"y": {}, "z": {"b": [{}]}}}'),
        ("mcp.json", ONE_LINE, "y", '{"a": {}, "mcpServers": {"x": {"command": "a,}"}, "z": {"b": [{}]}}}'),
        ("mcp.json", ONE_LINE, "z", '{"a": {}, "mcpServers": {"x": {"command": "a,}"}, "y": {} }}'),
        (
            "gemini",
            COMMENTED,
            "old",
            COMMENTED.replace('    "old": {"command": "x", "args": ["{", "}", "//"]}, /* keep */', "    /* keep */"),
        ),
        (
            "mcp.json",
            '{\r\n  "mcpServers": {\r\n    "x": {}, // first\r\n    // second\r\n    "y": {}\r\n  }\r\n}\r\n',
            "y",
            '{\r\n  "mcpServers": {\r\n    "x": {} // first\r\n    // second\r\n  }\r\n}\r\n',
        ),
        (
            "codex",
            "[mcp_servers.x]\na = 1\n\n# of y\n[mcp_servers.y]\nb = 1\n[mcp_servers.y.env]\nC = '1'\n\n# of z\n[z]\n",
            "y",
            "[mcp_servers.x]\na = 1\n\n# of y\n\n# of z\n[z]\n",
        ),
        ("codex", "[mcp_servers.x]\na = 1\n\n[mcp_servers.y]\nb = 1\n", "y", "[mcp_servers.x]\na = 1\n"),
        (
            "goose",
            "# mine\nextensions:\n  x:\n    cmd: a\n    args:\n      - b\n  # of y\n  y: {cmd: c}\nother: 1\n",
            "x",
            "# mine\nextensions:\n  # of y\n  y: {cmd: c}\nother: 1\n",
        ),
        ("goose", "extensions: {x: {cmd: a}, y: {cmd: b}}\n", "x", "extensions: {y: {cmd: b}}\n"),
        ("goose", "extensions: {x: {cmd: a}, y: {cmd: b}}\n", "y", "extensions: {x: {cmd: a}}\n"),
        ("goose", "extensions:\n  x:\n    cmd: a\n# end\nother: 1\n", "x", "extensions:\n  {}\n# end\nother: 1\n"),
    ],
)
def test_only_the_entry_is_removed(host: str, old: str, name: str, new: str) -> None:
    assert delete_entry(host, old, name) == new


def test_an_entry_that_cannot_be_removed_stays() -> None:
    for old in ("mcp_servers.x = {a = 1}\n", "[mcp_servers]\nx = {a = 1}\n"):
        with pytest.raises(ValueError, match="losing data"):
            delete_entry("codex", old, "x")
    with pytest.raises(ValueError, match="'x'"):
        delete_entry("codex", "", "x")


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "mcp.json"
    real.write_text("{}", encoding="utf-8")
    link.symlink_to(real)
    add_entry("mcp.json", link, LOCAL)
    assert link.is_symlink()
    assert "time" in json.loads(real.read_text(encoding="utf-8"))["mcpServers"]


TOML = '# mine\nmodel = "x"\n\n[mcp_servers.time]\ncommand = "old"\n[mcp_servers.time.env]\nB = "1"\n\n[other]\na = 1\n'


def test_toml(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'time'"):
        insert_entry("codex", TOML, "time", {"command": "new"})
    text = insert_entry("codex", TOML, "time", {"command": "new"}, replace=True)
    assert parse_config(text, ".toml") == {"model": "x", "other": {"a": 1}, "mcp_servers": {"time": {"command": "new"}}}
    assert text.startswith("# mine\n")


def test_yaml() -> None:
    old = "# mine\nextensions:\n    developer:\n        enabled: true\nmode: auto\n"
    text = insert_entry("goose", old, "time", {"cmd": "uvx"})
    assert parse_config(text, ".yaml") == {
        "extensions": {"developer": {"enabled": True}, "time": {"cmd": "uvx"}},
        "mode": "auto",
    }
    assert text.startswith("# mine\n")
    assert parse_config(insert_entry("goose", "mode: auto\n", "time", {"cmd": "uvx"}), ".yaml")["extensions"]["time"]


def test_without_the_yaml_library_it_can_still_be_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert format_document("goose", LOCAL).startswith("extensions:\n")
    (tmp_path / "config.yaml").write_text("mode: auto\n", encoding="utf-8")
    with pytest.raises(ValueError, match="pip install pyyaml"):
        add_entry("goose", tmp_path / "config.yaml", LOCAL)


@pytest.mark.parametrize("text", ["[1]", "{", '{"mcpServers": 7}', "nothing"])
def test_a_file_that_is_something_else_is_left_alone(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r".+"):
        add_entry("mcp.json", path, LOCAL)
    assert path.read_text(encoding="utf-8") == text


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(), values, max_size=3),
    st.dictionaries(st.text(), values, max_size=3) | st.none(),
    st.text(min_size=1),
    st.sampled_from([None, 0, 2, "\t"]),
)
def test_any_file_keeps_what_it_says(
    more: dict[str, Any], servers: dict[str, Any] | None, name: str, indent: Any
) -> None:
    whole = more | ({} if servers is None else {"mcpServers": servers})
    old = json.dumps(whole, indent=indent)
    new = insert_entry("mcp.json", old, name, {"command": "x"}, replace=True)
    known = whole.get("mcpServers") or {}
    if isinstance(known, dict):
        assert json.loads(new) == whole | {"mcpServers": known | {name: {"command": "x"}}}


def test_where_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert get_config_path("codex", "user", home=tmp_path) == tmp_path / ".codex" / "config.toml"
    assert get_config_path("vscode", "project", cwd=tmp_path) == tmp_path / ".vscode" / "mcp.json"
    with pytest.raises(ValueError, match=r"goose.*project"):
        get_config_path("goose", "project", cwd=tmp_path)


EMPTY = ["{}", "{ }", "null", "~", "", "{} # mine", "\n# mine"]


@pytest.mark.parametrize("said", EMPTY)
@pytest.mark.parametrize("key", ["extensions", '"extensions"'])
@pytest.mark.parametrize("more", ["mode: auto\n", ""])
def test_an_empty_section_is_filled_in_place(said: str, key: str, more: str) -> None:
    text = insert_entry("goose", f"a: 1\n{key}: {said}\n{more}", "time", {"cmd": "uvx"})
    assert text.count("extensions") == 1
    assert ("# mine" in text) == ("# mine" in said)
    assert parse_config(text, ".yaml") == {"a": 1, "extensions": {"time": {"cmd": "uvx"}}} | (
        {"mode": "auto"} if more else {}
    )


def test_a_section_on_one_line_and_one_of_nothing_but_comments() -> None:
    text = insert_entry("goose", "extensions: {a: {cmd: x}}\n", "time", {"cmd": "uvx"})
    assert parse_config(text, ".yaml") == {"extensions": {"a": {"cmd": "x"}, "time": {"cmd": "uvx"}}}
    assert insert_entry("goose", "# mine\n", "time", {"cmd": "uvx"}).startswith("# mine\nextensions:\n")


@pytest.mark.parametrize("old", ["extensions: {}\nextensions:\n  a: {cmd: x}\n", "extensions: &x\n  a: 1\n---\nb: 1\n"])
def test_a_file_of_which_only_a_part_is_read_is_refused(old: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        insert_entry("goose", old, "time", {"cmd": "uvx"})


CRLF = {
    "mcp.json": '{\r\n  "a": 1,\n  "mcpServers": {\r\n    "old": {}\r\n  }\r\n}\r\n',
    "codex": "# mine\r\na = 1\n\r\n[b]\r\nc = 2\r\n",
    "goose": "# mine\r\nextensions:\r\n  old:\r\n    cmd: x\n",
}


@pytest.mark.parametrize("host", CRLF)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "BOM"])
def test_lines_end_as_they_did(host: str, mark: bytes, tmp_path: Path) -> None:
    path = tmp_path / Path(HOST_FORMATS[host].user_file or HOST_FORMATS[host].project_file or "").name
    old = mark + CRLF[host].encode()
    path.write_bytes(old)
    add_entry(host, path, LOCAL)
    new = path.read_bytes()
    lines, kept = new.splitlines(keepends=True), old.splitlines(keepends=True)
    assert new.startswith(mark)
    found, problems = load_config(path)
    assert {one.name for one in found} >= {"time"}
    assert not [one for one in problems if one.is_unreadable]
    assert [one for one in lines if one in kept and one.strip()] == [one for one in kept if one.strip()]
    added_lines = [one for one in lines if one not in kept]
    assert added_lines
    assert all(one.endswith(b"\r\n") for one in added_lines)


@given(st.text(min_size=1), st.text(), st.dictionaries(st.text(), st.text(), max_size=2))
def test_any_text_is_written_so_that_it_is_read_again(name: str, word: str, env: dict[str, str]) -> None:
    entry = {"command": word, "args": [word, "\U0001f600\x7f"]} | ({"env": env} if env else {})
    for host, suffix in (("codex", ".toml"), ("goose", ".yaml"), ("mcp.json", ".json")):
        for old in ("", insert_entry(host, "", "other", {"command": "x"})):
            found = parse_config(insert_entry(host, old, name, entry, replace=True), suffix)
            assert found[HOST_FORMATS[host].section][name] == entry


REMARKS = """[mcp_servers.time] # mine
command = "old"
# of the next
[other] # too
a = 1
"""


def test_comments_of_the_next_table_stay() -> None:
    with pytest.raises(ValueError, match="'time'"):
        insert_entry("codex", REMARKS, "time", {"command": "new"})
    text = insert_entry("codex", REMARKS, "time", {"command": "new"}, replace=True)
    assert text == '[mcp_servers.time]\ncommand = "new"\n# of the next\n[other] # too\na = 1\n'
    last = insert_entry(
        "codex", 'a = 1\n[mcp_servers."time"]\ncommand = "old"\n\n# the end\n', "time", {"b": 1}, replace=True
    )
    assert last == "a = 1\n[mcp_servers.time]\nb = 1\n\n# the end\n"
    with pytest.raises(ValueError, match="file"):
        insert_entry("codex", "mcp_servers = { a = { b = 1 } }\n", "time", {"command": "new"})


def test_null_is_an_empty_section_of_json_too() -> None:
    text = insert_entry("mcp.json", '{"mcpServers": null, "a": 1}', "time", {"command": "x"})
    assert json.loads(text) == {"mcpServers": {"time": {"command": "x"}}, "a": 1}
