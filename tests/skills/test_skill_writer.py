"""Test that a skill is written completely or not at all, and never outside of its folder."""

import errno
import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from dovetail.skills import skill_writer
from dovetail.skills.served_skill import SkillProblem
from dovetail.skills.skill_writer import SkillExists, check_paths, write_skill

FILES = {"SKILL.md": b"one", "a/b.md": b"two"}


@pytest.mark.parametrize(
    "path",
    [
        "", ".", "..", "../a", "a/../b", "a//b", "/a", "a/", "a\\b", "C:\\a", "C:a", "a\x00b", "a\nb", "\x1b[2J",
        "\ud800", "\u00e4" * 101,
        ".a", "a/.b", ".git/config", "~/.a", "a.", "a ", " a", "a/b./c", "a\u200bb", "a\u202eb", "a\u2028b", "\ufeffa",
        "con", "CON", "Con.txt", "aux.tar.gz", "a/nul/b", "com1", "LPT9.md", "com\u00b9", "conin$", "con .txt",
        "a:b", "a?", "a*", "a|b", "<a>", 'a"b', "a" * 201, "/".join("a" * 17), "/".join(["a" * 150] * 7),
    ],
)  # fmt: skip
def test_an_unsafe_path_is_refused(path: str) -> None:
    with pytest.raises(SkillProblem):
        check_paths([path])


@pytest.mark.parametrize(
    "path", ["a", "a/b/c.md", "a b.md", "\u00e4\u6f22.md", "console.md", "a..b", "%2e%2e", "com", "-rf"]
)
def test_an_ordinary_path_is_accepted(path: str) -> None:
    check_paths(["SKILL.md", path])


@pytest.mark.parametrize(
    "paths",
    [
        ["a", "A"], ["\u00e4", "a\u0308"], ["stra\u00dfe", "STRASSE"], ["a/b", "A/c"], ["a", "a/b"], ["A/b", "a"],
        ["x/a/b", "x/A"],
    ],
)  # fmt: skip
def test_paths_that_are_the_same_on_some_systems_are_refused(paths: list[str]) -> None:
    for ordered in (paths, paths[::-1]):
        with pytest.raises(SkillProblem):
            check_paths(ordered)


def test_a_skill_is_written_into_a_new_folder(tmp_path: Path) -> None:
    folder = write_skill(tmp_path / "x" / "y", "one", FILES)
    assert folder == tmp_path / "x" / "y" / "one"
    assert {path: (folder / path).read_bytes() for path in FILES} == FILES
    assert os.listdir(folder.parent) == ["one"]


def test_a_skill_is_written_without_the_functions_of_posix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"):
        monkeypatch.delattr(os, name)
    assert skill_writer.__file__ is not None
    spec = importlib.util.spec_from_file_location("skill_writer_on_windows", skill_writer.__file__)
    assert spec is not None
    assert spec.loader is not None
    copy: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    folder: Path = copy.write_skill(tmp_path, "one", FILES)
    assert {path: (folder / path).read_bytes() for path in FILES} == FILES


def test_the_mode_of_a_file_follows_the_umask_and_is_not_executable(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        folder = write_skill(tmp_path, "one", FILES)
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o750
    assert (folder / "a" / "b.md").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", ["", ".", "..", "../one", "/one", "a/b", ".one", "One", "con", "com1", "a" * 65])
def test_an_unsafe_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"name|invalid"):
        write_skill(tmp_path / "x", name, FILES)
    assert not (tmp_path / "x").exists()


def test_an_empty_folder_is_not_replaced_without_force(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    for force in (False, True):
        with pytest.raises(SkillExists):
            write_skill(tmp_path, "one", FILES, force=force)
    assert os.listdir(tmp_path / "one") == []


def test_a_link_inside_of_a_replaced_skill_is_not_followed(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "copies" / "one"
    outside.mkdir()
    (outside / "b.md").write_bytes(b"mine")
    folder.mkdir(parents=True)
    (folder / "SKILL.md").touch()
    (folder / "a").symlink_to(outside)
    write_skill(folder.parent, "one", FILES, force=True)
    assert (outside / "b.md").read_bytes() == b"mine"
    assert not (folder / "a").is_symlink()


def test_a_folder_that_is_a_link_is_the_choice_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    write_skill(tmp_path / "link", "one", FILES)
    assert (tmp_path / "real" / "one" / "SKILL.md").read_bytes() == b"one"


@pytest.mark.parametrize("has_old", [False, True])
def test_nothing_changes_if_a_file_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_old: bool
) -> None:
    if has_old:
        write_skill(tmp_path, "one", {"SKILL.md": b"old"})
    calls: list[int] = []

    def fail(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == len(FILES):
            raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="full"):
        write_skill(tmp_path, "one", FILES, force=True)
    assert os.listdir(tmp_path) == (["one"] if has_old else [])
    if has_old:
        assert (tmp_path / "one" / "SKILL.md").read_bytes() == b"old"


def test_the_old_skill_comes_back_if_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_skill(tmp_path, "one", {"SKILL.md": b"old"})
    rename = os.rename
    calls: list[object] = []

    def fail_second(source: Path, destination: Path) -> None:
        calls.append(source)
        if len(calls) == 2:
            raise OSError(errno.EIO, "broken")
        rename(source, destination)

    monkeypatch.setattr(os, "rename", fail_second)
    with pytest.raises(OSError, match="broken"):
        write_skill(tmp_path, "one", FILES, force=True)
    assert os.listdir(tmp_path) == ["one"]
    assert (tmp_path / "one" / "SKILL.md").read_bytes() == b"old"


def test_a_folder_that_appears_while_files_are_written_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def create(descriptor: int) -> None:
        (tmp_path / "one").mkdir(exist_ok=True)
        (tmp_path / "one" / "mine").touch()

    monkeypatch.setattr(skill_writer.os, "fsync", create)
    with pytest.raises(SkillExists):
        write_skill(tmp_path, "one", FILES)
    assert os.listdir(tmp_path) == ["one"]
    assert os.listdir(tmp_path / "one") == ["mine"]
