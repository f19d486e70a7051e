"""A folder of skills serves exactly the files of its skills, and refuses everything that does not belong there."""

import errno
import importlib.util
import logging
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail.skills import skill_folder as module
from dovetail.skills.served_skill import SkillProblem, build_contents, list_directory
from dovetail.skills.skill import SkillFile, check_entry, compute_digest
from dovetail.skills.skill_folder import SkillFolder

HEAD = "---\nname: {name}\ndescription: Do {name}.\n---\n\nBody.\n"


def write_skill(folder: Path, path: str = "pdf", files: dict[str, str | bytes] | None = None) -> Path:
    skill = folder / path
    skill.mkdir(parents=True, exist_ok=True)
    (skill / "SKILL.md").write_text(HEAD.format(name=skill.name))
    for name, content in (files or {}).items():
        (skill / name).parent.mkdir(parents=True, exist_ok=True)
        (skill / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return skill


def list_files(folder: SkillFolder, uri: str) -> dict[str, SkillFile]:
    return check_entry(folder.skills[uri].entry)


def test_each_folder_with_a_manifest_is_a_skill(tmp_path: Path) -> None:
    write_skill(tmp_path, "pdf", {"references/my file.md": "forms", "logo.png": b"\x89PNG\x00"})
    write_skill(tmp_path, "acme/billing/refunds")
    (tmp_path / "README.md").write_text("Not a part of a skill.")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("[core]")
    folder = SkillFolder(tmp_path)
    assert [*folder.skills] == ["skill://acme/billing/refunds/SKILL.md", "skill://pdf/SKILL.md"]
    files = list_files(folder, "skill://pdf/SKILL.md")
    assert [*files] == ["SKILL.md", "logo.png", "references/my file.md"]
    assert files["references/my file.md"].uri == "skill://pdf/references/my%20file.md"
    assert folder.skills["skill://pdf/SKILL.md"].entry.frontmatter == {"name": "pdf", "description": "Do pdf."}
    for file in files.values():
        data = folder.read(file.uri)
        assert data is not None
        assert (compute_digest(data), len(data)) == (file.digest, file.size)


def test_the_folder_itself_can_be_a_skill(tmp_path: Path) -> None:
    folder = SkillFolder(write_skill(tmp_path, "pdf", {"a.md": "a"}))
    assert [*folder.skills] == ["skill://pdf/SKILL.md"]
    assert folder.read("skill://pdf/a.md") == b"a"


def test_a_nested_skill_is_a_skill_and_a_part_of_the_outer_one(tmp_path: Path) -> None:
    write_skill(tmp_path, "outer/inner", {"a.md": "a"})
    write_skill(tmp_path, "outer")
    folder = SkillFolder(tmp_path)
    assert [*list_files(folder, "skill://outer/SKILL.md")] == ["SKILL.md", "inner/SKILL.md", "inner/a.md"]
    assert [*list_files(folder, "skill://outer/inner/SKILL.md")] == ["SKILL.md", "a.md"]


@pytest.mark.parametrize(
    "uri",
    [
        "skill://pdf/../secret.txt",
        "skill://pdf/%2e%2e/secret.txt",
        "skill://pdf/..%2fsecret.txt",
        "skill://pdf//etc/passwd",
        "skill://pdf/\x00",
        "skill://../secret.txt",
        "skill://secret.txt",
        "file:///etc/passwd",
        "/etc/passwd",
        "skill://other/SKILL.md",
        "skill://pdf",
        "skill://pdf/",
        "",
    ],
)
def test_a_uri_never_becomes_a_path(tmp_path: Path, uri: str) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    write_skill(tmp_path, "skills/pdf")
    (tmp_path / "skills" / "secret.txt").write_text("secret")
    assert SkillFolder(tmp_path / "skills").read(uri) is None


def add_link_out(skill: Path) -> None:
    (skill / "passwd").symlink_to("/etc/passwd")


def add_relative_link_out(skill: Path) -> None:
    (skill.parents[1] / "secret.txt").write_text("secret")
    (skill / "secret.txt").symlink_to("../../secret.txt")


def add_folder_link_out(skill: Path) -> None:
    (skill / "etc").symlink_to("/etc")


def add_folder_link_inside(skill: Path) -> None:
    (skill / "again").symlink_to(skill)


def add_broken_link(skill: Path) -> None:
    (skill / "gone").symlink_to("nothing")


def add_link_loop(skill: Path) -> None:
    (skill / "loop").symlink_to("loop")


def add_link_to_hidden_file(skill: Path) -> None:
    (skill.parent / ".env").write_text("KEY=1")
    (skill / "env").symlink_to("../.env")


def replace_manifest_by_link(skill: Path) -> None:
    (skill / "SKILL.md").rename(skill / "real.md")
    (skill / "SKILL.md").symlink_to("real.md")


def add_pipe(skill: Path) -> None:
    os.mkfifo(skill / "pipe")


def add_socket(skill: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        current = os.open(".", os.O_RDONLY)
        try:
            os.chdir(skill)  # The path of a socket must be short.
            listener.bind("socket")
        finally:
            os.fchdir(current)
            os.close(current)


def add_same_name_in_capitals(skill: Path) -> None:
    (skill / "a.md").write_text("a")
    (skill / "A.md").write_text("A")


def add_same_name_in_unicode(skill: Path) -> None:
    (skill / "\u00e9.md").write_text("a")
    (skill / "e\u0301.md").write_text("b")


def add_name_with_backslash(skill: Path) -> None:
    (skill / "sub\\..\\evil.md").write_text("x")


def add_name_with_newline(skill: Path) -> None:
    (skill / "a\nb.md").write_text("x")


def add_name_that_is_not_utf8(skill: Path) -> None:
    (Path(os.fsdecode(os.fsencode(skill) + b"/\xff.md"))).write_text("x")


def add_many_files(skill: Path) -> None:
    for number in range(512):
        (skill / f"{number}.md").touch()


def add_large_file(skill: Path) -> None:
    with (skill / "large.bin").open("wb") as file:
        file.truncate(16 * 1024 * 1024 + 1)


def add_large_sum(skill: Path) -> None:
    for number in range(3):
        with (skill / f"{number}.bin").open("wb") as file:
            file.truncate(6 * 1024 * 1024)


def add_deep_folder(skill: Path) -> None:
    (skill / "/".join("d" * 20)).mkdir(parents=True)


def rename_skill(skill: Path) -> None:
    skill.rename(skill.with_name("other"))


def remove_front_matter(skill: Path) -> None:
    (skill / "SKILL.md").write_text("# PDF\n")


def break_description(skill: Path) -> None:
    (skill / "SKILL.md").write_text("---\nname: pdf\ndescription: 1\n---\n")


def rename_manifest(skill: Path) -> None:
    (skill / "SKILL.md").rename(skill / "skill.md")


def replace_manifest_by_folder(skill: Path) -> None:
    (skill / "SKILL.md").unlink()
    (skill / "SKILL.md").mkdir()


MISTAKES: list[Callable[[Path], None]] = [
    add_link_out,
    add_relative_link_out,
    add_folder_link_out,
    add_folder_link_inside,
    add_broken_link,
    add_link_loop,
    add_link_to_hidden_file,
    replace_manifest_by_link,
    add_pipe,
    add_socket,
    add_same_name_in_capitals,
    add_same_name_in_unicode,
    add_name_with_backslash,
    add_name_with_newline,
    add_name_that_is_not_utf8,
    add_many_files,
    add_large_file,
    add_large_sum,
    add_deep_folder,
    rename_skill,
    remove_front_matter,
    break_description,
    rename_manifest,
    replace_manifest_by_folder,
]


@pytest.mark.parametrize("make_mistake", MISTAKES)
def test_a_skill_with_a_file_that_cannot_be_served_is_refused(
    tmp_path: Path, make_mistake: Callable[[Path], None]
) -> None:
    skill = write_skill(tmp_path, "skills/pdf")
    SkillFolder(skill.parent)
    make_mistake(skill)
    with pytest.raises(SkillProblem) as caught:
        SkillFolder(skill.parent)
    message = str(caught.value)
    assert "skills" in message  # The message names the place.
    assert message.isprintable()


@pytest.mark.parametrize("make_mistake", [mistake for mistake in MISTAKES if mistake is not rename_skill])
def test_a_mistake_while_the_server_runs_changes_nothing_that_is_served(
    tmp_path: Path, make_mistake: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    skill = write_skill(tmp_path, "skills/pdf", {"guide.md": "guide"})
    folder = SkillFolder(skill.parent)
    before = folder.skills
    make_mistake(skill)
    with caplog.at_level(logging.WARNING, "dovetail"):
        assert folder.refresh() is False
        assert folder.refresh() is False
    assert folder.skills == before
    assert len(caplog.records) == 1  # The problem is logged once.
    assert folder.read("skill://pdf/guide.md") == b"guide"
    for uri in ("skill://pdf/passwd", "skill://pdf/.env", "skill://pdf/etc/passwd", "skill://pdf/secret.txt"):
        assert folder.read(uri) is None


def test_hidden_files_are_left_out_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    skill = write_skill(tmp_path, "pdf", {"a.md": "one", ".git/config": "x", ".DS_Store": "x"})
    with caplog.at_level(logging.WARNING, "dovetail"):
        folder = SkillFolder(tmp_path)
        # An editor writes such a file while it changes another file.
        (skill / ".a.md.swp").write_text("x")
        (skill / "a.md").write_text("two")
        assert folder.refresh() is True
    assert [*list_files(folder, "skill://pdf/SKILL.md")] == ["SKILL.md", "a.md"]
    assert folder.is_listed("skill://pdf/a.md", b"two")
    assert folder.read("skill://pdf/.git/config") is None
    assert len(caplog.records) == 1


def test_a_problem_that_returns_is_logged_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    skill = write_skill(tmp_path)
    folder = SkillFolder(tmp_path)
    with caplog.at_level(logging.WARNING, "dovetail"):
        for _ in range(2):
            add_link_out(skill)
            folder.refresh()
            folder.refresh()
            (skill / "passwd").unlink()
            folder.refresh()
    assert len(caplog.records) == 2


def add_stray_manifest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "docs").mkdir()
    (folder / "docs" / "Skill.md").write_text("A page about skills.")
    (folder / "skill.md").write_text("Another page.")


def add_deep_folder_outside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "/".join("d" * 20)).mkdir(parents=True)


def add_unreadable_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "lost").mkdir()
    refuse_to_open(monkeypatch, "lost")


def refuse_to_open(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    real_open = os.open

    def open_file(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if Path(path).name == name:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real_open(path, flags, *args, **options)

    monkeypatch.setattr(module.os, "open", open_file)


@pytest.mark.parametrize("add_stray", [add_stray_manifest, add_deep_folder_outside, add_unreadable_folder])
def test_a_problem_outside_of_skills_does_not_stop_other_skills(
    tmp_path: Path,
    add_stray: Callable[[Path, pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write_skill(tmp_path, "pdf")
    folder = SkillFolder(tmp_path)
    add_stray(tmp_path, monkeypatch)
    write_skill(tmp_path, "docx")
    with caplog.at_level(logging.WARNING, "dovetail"):
        assert folder.refresh() is True
    assert [*folder.skills] == ["skill://docx/SKILL.md", "skill://pdf/SKILL.md"]
    assert caplog.records
    (tmp_path / "pdf" / "SKILL.md").unlink()
    assert folder.refresh() is True
    assert [*SkillFolder(tmp_path).skills] == [*folder.skills] == ["skill://docx/SKILL.md"]


def test_a_misnamed_manifest_of_the_folder_itself_changes_nothing(tmp_path: Path) -> None:
    write_skill(tmp_path, "pdf/inner")
    skill = write_skill(tmp_path, "pdf", {"a.md": "a"})
    folder = SkillFolder(skill)
    before = folder.skills
    rename_manifest(skill)
    assert folder.refresh() is False
    assert folder.skills == before
    assert folder.read("skill://pdf/a.md") == b"a"


def test_skills_in_a_folder_that_becomes_unreadable_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_skill(tmp_path, "acme/pdf", {"a.md": "a"})
    write_skill(tmp_path, "docx")
    folder = SkillFolder(tmp_path)
    before = folder.skills
    refuse_to_open(monkeypatch, "acme")
    assert folder.refresh() is False
    assert folder.skills == before
    monkeypatch.undo()
    assert folder.read("skill://acme/pdf/a.md") == b"a"


def test_a_folder_that_cannot_be_read_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_skill(tmp_path / "skills")
    folder = SkillFolder(tmp_path / "skills")
    refuse_to_open(monkeypatch, "skills")
    assert folder.refresh() is False
    with pytest.raises(SkillProblem, match="skills"):
        SkillFolder(tmp_path / "skills")


def test_a_link_that_changes_during_a_scan_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shared.md").write_text("shared")
    skill = write_skill(tmp_path)
    (skill / "link.md").symlink_to("../shared.md")
    real_realpath, calls = os.path.realpath, 0

    def realpath(path: str) -> str:
        nonlocal calls
        calls += 1
        return real_realpath(path) if calls == 1 else "/etc/passwd"

    folder = SkillFolder(tmp_path)
    monkeypatch.setattr(module.os.path, "realpath", realpath)
    assert folder.refresh() is True
    assert [*list_files(folder, "skill://pdf/SKILL.md")] == ["SKILL.md"]


def test_an_inner_skill_with_the_name_of_the_folder_is_another_skill(tmp_path: Path) -> None:
    write_skill(tmp_path, "pdf/pdf", {"b.md": "inner"})
    folder = SkillFolder(write_skill(tmp_path, "pdf", {"a.md": "outer"}))
    assert [*folder.skills] == ["skill://pdf/SKILL.md", "skill://pdf/pdf/SKILL.md"]
    assert [*list_files(folder, "skill://pdf/SKILL.md")] == ["SKILL.md", "a.md", "pdf/SKILL.md", "pdf/b.md"]
    assert [*list_files(folder, "skill://pdf/pdf/SKILL.md")] == ["SKILL.md", "b.md"]
    assert folder.read("skill://pdf/pdf/b.md") == b"inner"


def test_without_the_functions_of_posix_only_folders_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"):
        monkeypatch.delattr(os, name)
    monkeypatch.setattr(sys, "platform", "win32")
    assert module.__file__ is not None
    spec = importlib.util.spec_from_file_location("skill_folder_on_windows", module.__file__)
    assert spec is not None
    assert spec.loader is not None
    copy: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    write_skill(tmp_path)
    with pytest.raises(SkillProblem, match="Windows"):
        copy.SkillFolder(tmp_path)


def test_a_folder_without_skills_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SkillProblem, match="no skills"):
        SkillFolder(tmp_path)
    with pytest.raises(SkillProblem, match="not a folder"):
        SkillFolder(tmp_path / "missing")
    (tmp_path / "file").touch()
    with pytest.raises(SkillProblem, match="not a folder"):
        SkillFolder(tmp_path / "file")


def test_a_link_to_a_file_in_the_folder_is_served(tmp_path: Path) -> None:
    (tmp_path / "shared.md").write_text("shared")
    skill = write_skill(tmp_path)
    (skill / "shared.md").symlink_to("../shared.md")
    folder = SkillFolder(tmp_path)
    assert folder.read("skill://pdf/shared.md") == b"shared"


def test_a_file_that_becomes_a_link_is_not_followed(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "skills", "pdf", {"a.md": "a", "deep/b.md": "b"})
    (tmp_path / "b.md").write_text("secret")
    folder = SkillFolder(tmp_path / "skills")
    (skill / "a.md").unlink()
    (skill / "a.md").symlink_to(tmp_path / "b.md")
    (skill / "deep").rename(tmp_path / "moved")
    (skill / "deep").symlink_to(tmp_path)
    assert folder.read("skill://pdf/a.md") is None
    assert folder.read("skill://pdf/deep/b.md") is None


def test_a_file_that_becomes_a_pipe_is_not_opened(tmp_path: Path) -> None:
    skill = write_skill(tmp_path, "pdf", {"a.md": "a"})
    folder = SkillFolder(tmp_path)
    (skill / "a.md").unlink()
    os.mkfifo(skill / "a.md")
    assert folder.read("skill://pdf/a.md") is None


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skill = write_skill(tmp_path, "pdf", {"a.log": "a"})
    folder = SkillFolder(tmp_path)
    real_read, chunks = os.read, 0

    def read_growing(descriptor: int, size: int) -> bytes:
        nonlocal chunks
        chunks += 1
        data = real_read(descriptor, size)
        with (skill / "a.log").open("ab") as file:
            file.write(b"x" * 1024 * 1024)
        return data

    monkeypatch.setattr(module.os, "read", read_growing)
    assert folder.read("skill://pdf/a.log") is None
    assert 16 <= chunks <= 20  # It stops at the limit.
    monkeypatch.undo()
    with pytest.raises(SkillProblem):
        SkillFolder(tmp_path)


def test_a_changed_file_has_a_new_digest(tmp_path: Path) -> None:
    skill = write_skill(tmp_path, "pdf", {"a.md": "one"})
    folder = SkillFolder(tmp_path)
    before = list_files(folder, "skill://pdf/SKILL.md")
    assert folder.refresh() is False
    stat = (skill / "a.md").stat()
    (skill / "a.md").write_text("two")
    # The size is the same, and so is the time of the change.
    os.utime(skill / "a.md", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert folder.read("skill://pdf/a.md") == b"two"
    assert not folder.is_listed("skill://pdf/a.md", b"two")
    assert folder.refresh() is True
    after = list_files(folder, "skill://pdf/SKILL.md")
    assert after["a.md"].digest == compute_digest(b"two") != before["a.md"].digest
    assert after["SKILL.md"] == before["SKILL.md"]
    assert folder.is_listed("skill://pdf/a.md", b"two")


def test_added_and_removed_skills_and_files_are_noticed(tmp_path: Path) -> None:
    write_skill(tmp_path, "pdf")
    folder = SkillFolder(tmp_path)
    write_skill(tmp_path, "docx")
    (tmp_path / "pdf" / "new.md").write_text("new")
    assert folder.refresh() is True
    assert [*folder.skills] == ["skill://docx/SKILL.md", "skill://pdf/SKILL.md"]
    assert folder.read("skill://pdf/new.md") == b"new"
    (tmp_path / "pdf" / "SKILL.md").unlink()
    assert folder.refresh() is True
    assert [*folder.skills] == ["skill://docx/SKILL.md"]
    assert folder.read("skill://pdf/new.md") is None


def test_a_path_that_is_not_a_folder_is_shown_with_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SkillProblem) as caught:
        SkillFolder("missing")
    assert str(tmp_path / "missing") in str(caught.value)
    assert "working directory" in str(caught.value)
    with pytest.raises(SkillProblem) as caught:
        SkillFolder(tmp_path / "missing")
    assert "working directory" not in str(caught.value)


def test_a_recent_scan_of_a_large_folder_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_skill(tmp_path)
    folder = SkillFolder(tmp_path)
    folder.refresh()
    write_skill(tmp_path, "xlsx")
    assert folder.refresh(max_age=3600) is True
    monkeypatch.setattr(module, "_MAX_CHEAP_ENTRIES", 1)
    write_skill(tmp_path, "docx")
    assert folder.refresh(max_age=3600) is False
    assert folder.refresh() is True


def test_unchanged_files_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_skill(tmp_path, "pdf", {"a.md": "a"})
    for file in (tmp_path / "pdf").iterdir():
        os.utime(file, ns=(0, 0))
    # A file counts as unchanged if its time stamps are much older than its digest.
    monkeypatch.setattr(module.time, "time_ns", lambda: 2**63 - 1)
    folder = SkillFolder(tmp_path)
    monkeypatch.setattr(module, "_read_all", lambda _: pytest.fail("the file was read again"))
    assert folder.refresh() is False


def test_a_skill_with_10000_files_is_refused_before_any_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skill = write_skill(tmp_path)
    for number in range(10_000):
        os.close(os.open(skill / str(number), os.O_CREAT | os.O_WRONLY))
    monkeypatch.setattr(module, "_read_all", lambda _: pytest.fail("a file was read"))
    with pytest.raises(SkillProblem, match="512"):
        SkillFolder(tmp_path)


def test_a_folder_with_too_many_entries_is_refused_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_ENTRIES", 20)
    write_skill(tmp_path)
    for number in range(30):
        (tmp_path / str(number)).touch()
    with pytest.raises(SkillProblem, match="20"):
        SkillFolder(tmp_path)


def test_the_children_of_a_directory_are_listed(tmp_path: Path) -> None:
    write_skill(tmp_path, "acme/pdf", {"a b/c.md": "c", "a b/d/e.md": "e", "z.md": "z"})
    write_skill(tmp_path, "acme/docx")
    skills = SkillFolder(tmp_path).skills.values()

    def list_names(uri: str) -> dict[str, str | None] | None:
        children = list_directory(skills, uri)
        return None if children is None else {child.name: child.mime_type for child in children}

    folder = "inode/directory"
    assert list_names("skill://acme") == {"docx": folder, "pdf": folder}
    assert list_names("skill://acme/pdf") == {"a b": folder, "pdf": "text/markdown", "z.md": "text/markdown"}
    assert list_names("skill://acme/pdf/a%20b") == {"c.md": "text/markdown", "d": folder}
    assert list_names("SKILL://ACME/pdf/a%20b/d") == {"e.md": "text/markdown"}
    assert [child.uri for child in list_directory(skills, "skill://acme/pdf/a%20b") or ()] == [
        "skill://acme/pdf/a%20b/c.md",
        "skill://acme/pdf/a%20b/d",
    ]


@pytest.mark.parametrize(
    "uri",
    [
        "skill://pdf/SKILL.md",
        "skill://pdf/",
        "skill://pdf/a/",
        "skill://pdf/a/..",
        "skill://pdf/x",
        "skill://pd",
        "skill://",
        "skill:/",
        "skill:",
        "",
        "file:///",
        "/",
    ],
)
def test_other_uris_are_not_directories(tmp_path: Path, uri: str) -> None:
    write_skill(tmp_path, "pdf", {"a/b.md": "b"})
    assert list_directory(SkillFolder(tmp_path).skills.values(), uri) is None


@pytest.mark.parametrize(
    ("name", "data", "mime_type", "is_text"),
    [
        ("a.md", b"text", "text/markdown", True),
        ("a.py", "ä".encode(), "text/x-python", True),
        ("a.png", b"\x89PNG", "image/png", False),
        ("a.unknown", b"text", "text/plain", True),
        ("a.unknown", b"\xff", "application/octet-stream", False),
        ("a.unknown", b"a\x00b", "application/octet-stream", False),
        ("Makefile", b"all:", "text/plain", True),
    ],
)
def test_contents_are_text_if_they_are_utf8(
    tmp_path: Path, name: str, data: bytes, mime_type: str, is_text: bool
) -> None:
    write_skill(tmp_path, "pdf", {name: data})
    resource = SkillFolder(tmp_path).skills["skill://pdf/SKILL.md"].files[name]
    contents: Any = build_contents(resource, data)
    assert contents.mime_type == mime_type
    assert (contents.text is not None, contents.blob is not None) == (is_text, not is_text)
