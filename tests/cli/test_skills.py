"""Test `dovetail skills`, and `dovetail lint` for skills, against our server and against a hostile one."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from cli.command_process import RunCommand
from cli.hostile_skills_server import CONTENT, FILES, write_manifest
from dovetail.cli.main import cli

HOSTILE_SERVER = Path(__file__).with_name("hostile_skills_server.py")
MANIFEST = """---
name: pdf-forms
description: Fill PDF forms.
license: MIT
---
Read [the fields](references/fields.md).
"""
SERVER = """
from dovetail import Server
app = Server("documents")
app.add_skills("skills")
@app.skill(dynamic=True)
def news() -> str:
    '''Read the news.'''
    return "today"
"""
# The files of these skills are all valid for the client. They are refused because they would be written to a disk.
UNSAFE_ON_DISK = {
    "hidden", "hidden-folder", "device", "stream", "trailing-dot", "reordered", "same-file", "same-folder",
    "file-and-folder", "too-long", "too-deep", "nul",
}  # fmt: skip
WRONG_CONTENT = {"wrong-digest", "wrong-size", "wrong-head", "missing", "two-contents", "surrogate"}

Invoke = Callable[..., tuple[int, str, str]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    skill = tmp_path / "skills" / "pdf-forms"
    (skill / "references").mkdir(parents=True)
    (skill / "SKILL.md").write_text(MANIFEST, encoding="utf-8")
    (skill / "references" / "fields.md").write_text("Dates.\n", encoding="utf-8")
    (skill / "logo.bin").write_bytes(b"\x00\xff")
    (tmp_path / "server.py").write_text(SERVER, encoding="utf-8")
    return tmp_path


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run a command in this process, against the hostile server."""
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))

    def invoke(*args: Any) -> tuple[int, str, str]:
        words = [*map(str, args), "--protocol-version", "2025-11-25"]
        server = [sys.executable, str(HOSTILE_SERVER)]
        result = CliRunner().invoke(cli, words, obj=server, standalone_mode=False)
        if isinstance(result.exception, click.ClickException):
            return 2, result.stdout, result.exception.format_message()
        assert result.exception is None, result.exception
        return result.return_value, result.stdout, result.stderr

    return invoke


def list_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_list_shows_each_skill(run: RunCommand, project: Path) -> None:
    rows = run("skills", "list", "server.py", cwd=project).check_success().out.splitlines()
    assert rows[0].split() == ["skill", "files", "bytes", "description"]
    assert rows[1].split()[:2] == ["pdf-forms", "3"]
    assert rows[2].split()[:2] == ["news", "dynamic"]
    document = run("skills", "list", "server.py", "--json", cwd=project).check_success().json
    assert document["skipped_items"] == []
    skill = document["skills"][0]
    assert skill["front_matter"] == {"name": "pdf-forms", "description": "Fill PDF forms.", "license": "MIT"}
    assert [*skill["files"]] == ["SKILL.md", "logo.bin", "references/fields.md"]
    assert skill["files"]["references/fields.md"]["size"] == 7
    assert [entry["is_dynamic"] for entry in document["skills"]] == [False, True]


def test_show_prints_the_entry_or_a_file(run: RunCommand, project: Path) -> None:
    shown = run("skills", "show", "server.py", "pdf-forms", cwd=project).check_success().out
    assert "license: MIT\n" in shown
    assert "sha256:" in shown
    assert "Read [the fields]" not in shown
    assert run("skills", "show", "server.py", "pdf-forms", "SKILL.md", cwd=project).check_success().out == MANIFEST
    uri = "skill://pdf-forms/SKILL.md"
    blob = run("skills", "show", "server.py", uri, "logo.bin", "--json", cwd=project).check_success().json
    assert blob == {"uri": uri, "file": "logo.bin", "size": 2, "blob": "AP8="}


def test_an_unknown_skill_or_file_names_the_nearest(run: RunCommand, project: Path) -> None:
    unknown_skill = run("skills", "show", "server.py", "pdf-form", cwd=project)
    assert (unknown_skill.code, "'pdf-forms'" in unknown_skill.err) == (2, True)
    unknown_file = run("skills", "show", "server.py", "pdf-forms", "logo.bim", cwd=project)
    assert (unknown_file.code, "'logo.bin'" in unknown_file.err) == (2, True)
    unknown_uri = run("skills", "verify", "server.py", "skill://other/SKILL.md", cwd=project)
    assert (unknown_uri.code, "dovetail skills list" in unknown_uri.err) == (2, True)


def test_verify_reads_every_file(run: RunCommand, project: Path) -> None:
    report = run("skills", "verify", "server.py", "pdf-forms", "--json", cwd=project).check_success().json
    assert report["skills"] == [
        {
            "name": "pdf-forms",
            "uri": "skill://pdf-forms/SKILL.md",
            "files": 3,
            "size": len(MANIFEST) + 9,
            "problems": [],
        }
    ]
    everything = run("skills", "verify", "server.py", "--json", cwd=project)
    assert everything.code == 6  # A dynamic skill has no digests.
    assert [len(skill["problems"]) for skill in everything.json["skills"]] == [0, 1]


def test_verify_checks_a_folder(run: RunCommand, project: Path) -> None:
    for target in ("skills", "./skills", "skills/pdf-forms"):
        assert "verified" in run("skills", "verify", target, cwd=project).check_success().out
    (project / "skills" / "pdf-forms" / ".env").touch()
    report = run("skills", "verify", "skills", "--json", cwd=project)
    assert report.code == 6
    assert ".env" in report.json["skills"][0]["problems"][0]
    assert run("skills", "verify", "skills", "other", cwd=project).code == 2


def test_show_prints_a_skill_in_a_folder(run: RunCommand, project: Path) -> None:
    served = run("skills", "show", "server.py", "pdf-forms", "--json", cwd=project).check_success().json
    for args in (["./skills", "pdf-forms"], ["skills/pdf-forms"], ["./skills", "skill://pdf-forms/SKILL.md"]):
        assert run("skills", "show", *args, "--json", cwd=project).check_success().json == served
    for args in (["./skills", "pdf-forms"], ["skills/pdf-forms"]):
        assert run("skills", "show", *args, "references/fields.md", cwd=project).check_success().out == "Dates.\n"
        assert run("skills", "show", *args, "nope.md", cwd=project).code == 2
    assert "pdf-forms" in run("skills", "show", ".", cwd=project / "skills" / "pdf-forms").check_success().out
    for args in (["./skills"], ["./skills", "pdf-form"], ["./skills", "pdf-forms", "SKILL.md", "surplus"]):
        assert run("skills", "show", *args, cwd=project).code == 2


def test_pull_copies_a_skill_from_a_folder(run: RunCommand, project: Path) -> None:
    run("skills", "pull", "./skills", "pdf-forms", "copies", cwd=project).check_success()
    assert list_files(project / "copies" / "pdf-forms") == list_files(project / "skills" / "pdf-forms")
    assert run("skills", "pull", "./skills", "pdf-forms", "copies", cwd=project).code == 2
    (project / "skills" / "pdf-forms" / "con.md").touch()
    assert run("skills", "pull", "./skills", "pdf-forms", "other", cwd=project).code == 6
    assert not (project / "other").exists()


def test_pull_copies_the_folder_of_one_skill(run: RunCommand, project: Path) -> None:
    run("skills", "pull", "./skills/pdf-forms", "copies", cwd=project).check_success()
    copy = (project / "copies" / "pdf-forms" / "SKILL.md").read_bytes()
    assert copy == (project / "skills" / "pdf-forms" / "SKILL.md").read_bytes()
    assert run("skills", "pull", "./skills/pdf-forms", cwd=project).code == 2


def write_team_skill(project: Path) -> None:
    """Add a skill with the same name as another one, in a subfolder."""
    folder = project / "skills" / "team" / "pdf-forms"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(MANIFEST.partition("Read [")[0], encoding="utf-8")


def test_every_command_calls_a_skill_by_its_path(run: RunCommand, project: Path) -> None:
    write_team_skill(project)
    for command in (["skills", "list"], ["skills", "verify"], ["lint"]):
        rows = run(*command, "./skills", cwd=project).check_success().out.splitlines()
        assert [row.split()[0] for row in rows[1:3]] == ["pdf-forms", "team/pdf-forms"]
    for path in ("pdf-forms", "team/pdf-forms"):
        skill = run("skills", "show", "server.py", path, "--json", cwd=project).check_success().json
        assert skill["uri"] == f"skill://{path}/SKILL.md"
        [report] = run("skills", "verify", "./skills", path, "--json", cwd=project).check_success().json["skills"]
        assert report["uri"] == f"skill://{path}/SKILL.md"


def test_list_shows_a_folder(run: RunCommand, project: Path) -> None:
    served = run("skills", "list", "server.py", "--json", cwd=project).check_success().json["skills"]
    listed = run("skills", "list", "./skills", "--json", cwd=project).check_success().json
    assert listed == {"skills": served[:1], "skipped_items": []}
    (project / "skills" / "pdf-forms" / "SKILL.md").write_text("no front matter", encoding="utf-8")
    invalid = run("skills", "list", "./skills", cwd=project).check_success()
    assert "pdf-forms" not in invalid.out
    assert "pdf-forms" in invalid.err
    assert run("skills", "list", "./skills", "surplus", cwd=project).code == 2
    (project / "empty").mkdir()
    assert run("skills", "list", "./empty", cwd=project).code == 2


def test_a_configured_server_is_preferred_to_a_folder_of_the_same_name(run: RunCommand, project: Path) -> None:
    entry = {"command": sys.executable, "args": [str(HOSTILE_SERVER)]}
    (project / "mcp.json").write_text(json.dumps({"mcpServers": {"skills": entry}}), encoding="utf-8")
    options = ["good", "--protocol-version", "2025-11-25", "--json"]
    assert run("skills", "verify", "skills", *options, cwd=project).check_success().json["skills"][0]["name"] == "good"
    assert run("skills", "verify", "./skills", *options, cwd=project).code == 2


def test_pull_writes_a_folder_that_can_be_served(run: RunCommand, project: Path) -> None:
    (project / "skills" / "pdf-forms" / "logo.bin").chmod(0o755)
    result = run("skills", "pull", "server.py", "pdf-forms", "new/copies", "--json", cwd=project).check_success()
    copy = project / "new" / "copies" / "pdf-forms"
    assert list_files(copy) == list_files(project / "skills" / "pdf-forms")
    assert os.listdir(copy.parent) == ["pdf-forms"]
    assert not (copy / "logo.bin").stat().st_mode & 0o111
    assert result.json == {
        "uri": "skill://pdf-forms/SKILL.md",
        "folder": "new/copies/pdf-forms",
        "files": ["SKILL.md", "logo.bin", "references/fields.md"],
        "size": len(MANIFEST) + 9,
    }
    run("skills", "verify", "new/copies", cwd=project).check_success()


def test_pull_replaces_a_skill_only_with_force(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke("skills", "pull", "good", tmp_path)[0] == 0
    (tmp_path / "good" / "SKILL.md").write_text("mine", encoding="utf-8")
    (tmp_path / "good" / "old.md").touch()
    code, _, error = invoke("skills", "pull", "good", tmp_path)
    assert (code, "--force" in error) == (2, True)
    assert (tmp_path / "good" / "SKILL.md").read_text(encoding="utf-8") == "mine"
    assert invoke("skills", "pull", "good", tmp_path, "--force")[0] == 0
    assert list_files(tmp_path / "good") == {"SKILL.md": write_manifest("good"), "references/a.md": CONTENT}
    assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == ["good"]


@pytest.mark.parametrize("kind", ["folder", "file", "link", "broken link"])
def test_force_replaces_nothing_but_a_skill(invoke: Invoke, tmp_path: Path, kind: str) -> None:
    other, place = tmp_path / "other", tmp_path / "copies" / "good"
    other.mkdir()
    (other / "SKILL.md").touch()
    place.parent.mkdir()
    match kind:
        case "folder":
            place.mkdir()
            (place / "thesis.txt").touch()
        case "file":
            place.touch()
        case "link":
            place.symlink_to(other)
        case _:
            place.symlink_to(tmp_path / "nowhere")
    before = place.lstat()
    assert invoke("skills", "pull", "good", place.parent, "--force")[0] == 2
    assert place.lstat() == before
    assert list_files(other) == {"SKILL.md": b""}
    assert os.listdir(place.parent) == ["good"]
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", [name for name in FILES if name != "good"])
def test_pull_writes_nothing_if_a_skill_is_not_safe(invoke: Invoke, tmp_path: Path, name: str) -> None:
    code, _, error = invoke("skills", "pull", f"skill://{name}/SKILL.md", tmp_path / "a" / "copies")
    assert code == 6, error
    assert not (tmp_path / "a").exists()


def test_pull_needs_a_folder(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert invoke("skills", "pull", "good", tmp_path / "file")[0] == 2
    assert invoke("skills", "pull", "good")[0] == 2
    assert invoke("skills", "pull", "good", tmp_path, "surplus")[0] == 2


def test_verify_reports_every_skill_that_differs(invoke: Invoke) -> None:
    code, out, _ = invoke("skills", "verify", "--json")
    report = json.loads(out)
    failed = {skill["name"] for skill in report["skills"] if skill["problems"]}
    passed = {skill["name"] for skill in report["skills"]} - failed
    assert code == 6
    assert failed == WRONG_CONTENT | {"dynamic"}
    assert passed == UNSAFE_ON_DISK | {"good"}
    assert len(report["skipped_items"]) == len(FILES) - len(failed) - len(passed)


def test_list_notes_the_skills_that_are_left_out(invoke: Invoke) -> None:
    code, out, notes = invoke("skills", "list")
    assert code == 0
    assert "escaped-parent" not in out
    assert "skill://escaped-parent/SKILL.md" in notes


def test_lint_names_what_is_wrong_with_the_skills_of_a_server(invoke: Invoke) -> None:
    code, out, _ = invoke("lint", "--json")
    report = json.loads(out)
    issues = {skill["name"]: skill["issues"] for skill in report["skills"]}
    assert code == 6
    assert issues["good"] == []
    assert all(issues[name] for name in UNSAFE_ON_DISK - {"nul"})
    assert {issue["rule"] for issue_list in issues.values() for issue in issue_list} == {"skill"}
    assert report["skipped_items"]


def test_lint_checks_links(run: RunCommand, project: Path) -> None:
    for target in ("server.py", "skills"):
        report = run("lint", target, "--json", cwd=project).check_success().json
        assert report["skills"][0]["issues"] == []
        assert report["tokens"] > 0
    with (project / "skills" / "pdf-forms" / "SKILL.md").open("a", encoding="utf-8") as file:
        file.write("Then read [this](gone.md).\n")
    for target in ("server.py", "skills"):
        linted = run("lint", target, cwd=project)
        assert linted.code == 6
        assert "gone.md" in linted.out


def test_lint_names_every_problem_of_a_folder(run: RunCommand, project: Path) -> None:
    for name, description in (("Upper", "x"), ("long", "x" * 1025)):
        (project / "skills" / name).mkdir()
        manifest = f"---\nname: {name}\ndescription: {description}\n---\n"
        (project / "skills" / name / "SKILL.md").write_text(manifest, encoding="utf-8")
    for name in (".env", ".netrc"):
        (project / "skills" / "pdf-forms" / name).touch()
    report = run("lint", "skills", "--json", cwd=project)
    assert report.code == 6
    assert {skill["name"]: len(skill["issues"]) for skill in report.json["skills"]} == {
        "Upper": 1, "long": 1, "pdf-forms": 2,
    }  # fmt: skip


def test_lint_does_not_need_to_read_skills_that_require_scopes(run: RunCommand, project: Path) -> None:
    server = SERVER.replace('app.add_skills("skills")', 'app.add_skills("skills", scopes=["read"])')
    (project / "server.py").write_text(server, encoding="utf-8")
    report = run("lint", "server.py", "--json", cwd=project).check_success().json
    assert [skill["name"] for skill in report["skills"]] == ["pdf-forms", "news"]


def test_the_missing_extra_is_named(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    for words in (["verify"], ["pull", "good", tmp_path], ["show", "good", "SKILL.md"]):
        code, _, error = invoke("skills", *words)
        assert (code, "dovetail-mcp[skills]" in error) == (2, True)
    assert invoke("lint")[0] == 2
    assert invoke("skills", "list")[0] == 0
