"""A client checks each entry of a skill, and each file that it reads."""

from typing import Any

import pytest

from dovetail.errors import InvalidResult, SkillMismatch
from dovetail.skills.skill import (
    MAX_FILES,
    MAX_SKILL_BYTES,
    SkillEntry,
    SkillFile,
    check_entry,
    compute_digest,
    verify_file,
    verify_front_matter,
)

ROOT = "skill://acme/refunds"
DIGEST = "sha256:" + "0" * 64
MANIFEST = b"---\nname: refunds\ndescription: Process refunds.\n---\nBody.\n"


def entry(*uris: str, uri: str = f"{ROOT}/SKILL.md", name: Any = "refunds", size: int = 1) -> SkillEntry:
    files = [SkillFile(uri=file, digest=DIGEST, size=size) for file in (f"{ROOT}/SKILL.md", *uris)]
    return SkillEntry(uri=uri, frontmatter={"name": name, "description": "Process refunds."}, resources=files)


def test_the_files_of_an_entry_are_found_by_path() -> None:
    files = check_entry(entry(f"{ROOT}/references/my%20file.md", f"{ROOT}/a.b/%C3%A4.txt"))
    assert [*files] == ["SKILL.md", "references/my file.md", "a.b/ä.txt"]


def test_a_dynamic_entry_lists_no_files() -> None:
    dynamic = SkillEntry(
        uri=f"{ROOT}/SKILL.md", frontmatter={"name": "refunds", "description": "x"}, resources="dynamic"
    )
    assert check_entry(dynamic) == {}


@pytest.mark.parametrize(
    "uri",
    [
        f"{ROOT}/../other/SKILL.md",
        f"{ROOT}/%2e%2e/secret",
        f"{ROOT}/%2E%2E%2Fsecret",
        f"{ROOT}/%252e%252e/secret",
        f"{ROOT}/a%2fb",
        f"{ROOT}/./a",
        f"{ROOT}/a//b",
        f"{ROOT}//etc/passwd",
        f"{ROOT}/a\\..\\b",
        f"{ROOT}/a%5c..%5cb",
        f"{ROOT}/a%00.md",
        f"{ROOT}/a\n.md",
        f"{ROOT}/%ff",
        f"{ROOT}/",
        f"{ROOT}/a?b",
        f"{ROOT}/a#b",
        ROOT,
        f"{ROOT}x/a.md",
        "skill://acme/other/a.md",
        "file:///etc/passwd",
        "/etc/passwd",
        f"{ROOT}/SKILL.md",
        f"{ROOT}/SKILL%2Emd",
    ],
)
def test_a_file_outside_of_the_skill_or_listed_twice_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        check_entry(entry(uri))


@pytest.mark.parametrize(
    "changes",
    [
        {"uri": "skill://acme/refunds"},
        {"uri": "skill://SKILL.md"},
        {"uri": "skill:///SKILL.md"},
        {"uri": "skill://acme/other/SKILL.md"},
        {"uri": "skill://acme/../refunds/SKILL.md"},
        {"uri": "skill://acme/refunds/skill.md"},
        {"uri": "skill://acme/refunds/SKILL.md?x"},
        {"uri": "refunds/SKILL.md"},
        {"name": "Refunds"},
        {"name": "../refunds"},
        {"name": None},
        {"size": -1},
        {"size": MAX_SKILL_BYTES + 1},
    ],
)
def test_an_invalid_entry_is_refused(changes: dict[str, Any]) -> None:
    check_entry(entry())
    with pytest.raises(ValueError, match=r"\w"):
        check_entry(entry(**changes))


def test_an_entry_without_its_own_file_is_refused() -> None:
    listed = SkillEntry(uri=f"{ROOT}/SKILL.md", frontmatter=entry().frontmatter, resources=[])
    with pytest.raises(ValueError, match=r"SKILL\.md"):
        check_entry(listed)


def test_an_entry_may_have_as_many_files_and_bytes_as_the_limits_allow() -> None:
    uris = [f"{ROOT}/{number}" for number in range(MAX_FILES - 1)]
    assert len(check_entry(entry(*uris, size=MAX_SKILL_BYTES // MAX_FILES))) == MAX_FILES
    with pytest.raises(ValueError, match="512"):
        check_entry(entry(*uris, f"{ROOT}/more"))


@pytest.mark.parametrize(
    "digest", ["sha256:" + "A" * 64, "sha256:" + "0" * 63, "0" * 64, "md5:" + "0" * 64, DIGEST + "\n"]
)
def test_an_invalid_digest_is_refused(digest: str) -> None:
    file = SkillFile(uri=f"{ROOT}/SKILL.md", digest=digest, size=1)
    with pytest.raises(ValueError, match="digest"):
        check_entry(SkillEntry(uri=file.uri, frontmatter=entry().frontmatter, resources=[file]))


def test_a_file_must_have_its_size_and_its_digest() -> None:
    file = SkillFile(uri=f"{ROOT}/a", digest=compute_digest(b"abc"), size=3)
    verify_file(file, b"abc")
    with pytest.raises(SkillMismatch) as caught:
        verify_file(file, b"abcd")
    assert (caught.value.uri, caught.value.field, caught.value.expected, caught.value.actual) == (
        file.uri,
        "size",
        3,
        4,
    )
    with pytest.raises(SkillMismatch) as caught:
        verify_file(file, b"abd")
    assert (caught.value.field, caught.value.expected) == ("digest", file.digest)
    assert isinstance(caught.value, InvalidResult)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "refunds", "description": "Process refunds"},
        {"name": "refunds", "description": "Process refunds.", "allowed-tools": "Bash"},
        {"name": "refunds"},
    ],
)
def test_the_front_matter_must_be_the_same_in_every_field(fields: dict[str, Any]) -> None:
    verify_front_matter("skill://x", {"name": "refunds", "description": "Process refunds."}, MANIFEST)
    with pytest.raises(SkillMismatch) as caught:
        verify_front_matter("skill://x", fields, MANIFEST)
    assert caught.value.field == "front matter"


def test_front_matter_that_cannot_be_parsed_is_a_mismatch() -> None:
    with pytest.raises(SkillMismatch):
        verify_front_matter("skill://x", {"name": "refunds"}, b"No front matter")
