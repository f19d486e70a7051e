"""Test that `dovetail uninstall` removes one entry and changes nothing else."""

from pathlib import Path

import pytest

from cli.command_process import SAMPLE_SERVER, RunCommand
from dovetail.host.config.config_files import parse_config
from dovetail.host.config.host_formats import HOST_FORMATS, get_config_path


@pytest.fixture
def own_home(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


def test_uninstall_undoes_install(run_here: RunCommand, tmp_path: Path, own_home: dict[str, str]) -> None:
    path = tmp_path / ".cursor" / "mcp.json"
    path.parent.mkdir()
    before = '{\n  // mine\n  "mcpServers": {\n    "other": {"command": "x"}\n  }\n}\n'
    path.write_text(before, encoding="utf-8")
    run_here("install", SAMPLE_SERVER, "--to", "cursor", **own_home).check_success()
    printed = run_here("uninstall", SAMPLE_SERVER, "--print", **own_home).check_success()
    assert printed.json["mcpServers"]["sample_server"]["args"][-1] == str(SAMPLE_SERVER)
    assert str(path) in printed.err
    result = run_here("uninstall", "sample_server", **own_home).check_success()
    assert str(path) in result.out
    assert path.read_text(encoding="utf-8") == before
    missing = run_here("uninstall", "sample_server", **own_home)
    assert missing.code == 2
    assert "other" in missing.err
    assert path.read_text(encoding="utf-8") == before


def test_the_configuration_can_be_chosen(run_here: RunCommand, tmp_path: Path, own_home: dict[str, str]) -> None:
    for host in ("codex", "goose"):
        run_here("install", "--to", host, "--name", "near", "--", "program", **own_home).check_success()
    ambiguous = run_here("uninstall", "near", **own_home)
    assert ambiguous.code == 2
    assert "--from codex, --from goose" in ambiguous.err
    run_here("uninstall", "goose:near", **own_home).check_success()
    run_here("uninstall", "near", "--from", "codex", **own_home).check_success()
    for host in ("codex", "goose"):
        path = get_config_path(host, "user", home=tmp_path)
        assert not parse_config(path.read_text(encoding="utf-8"), path.suffix).get(HOST_FORMATS[host].section)


def test_the_file_of_the_project_is_found(run_here: RunCommand, tmp_path: Path, own_home: dict[str, str]) -> None:
    project = tmp_path / "project"
    project.mkdir()
    for options in (("--project",), ()):
        run_here(
            "install", *options, "--to", "cursor", "--name", "x", "--", "p", cwd=project, **own_home
        ).check_success()
    assert "--from cursor, --from cursor --project" in run_here("uninstall", "x", cwd=project, **own_home).err
    run_here("uninstall", "x", "--from", "cursor", cwd=project, **own_home).check_success()
    run_here("uninstall", "x", "--from", "cursor", cwd=project, **own_home).check_success()
    assert run_here("uninstall", "x", "--from", "cursor", cwd=project, **own_home).code == 2


def test_an_unreadable_file_is_named(run_here: RunCommand, tmp_path: Path, own_home: dict[str, str]) -> None:
    path = tmp_path / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text("{", encoding="utf-8")
    result = run_here("uninstall", "x", **own_home)
    assert result.code == 2
    assert str(path) in result.err
