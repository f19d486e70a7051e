"""Clients list skills without fetching files, and verify each file that they read."""

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest

from dovetail import CacheHint, Client, Server, SyncClient
from dovetail.errors import InvalidResult, NotFound, NotSupported, SkillMismatch
from dovetail.extensions import CacheableResult, Extension, Params
from dovetail.middleware import CallNext, Exchange
from dovetail.types import ReadResourceResult, ResourceContents

IDENTIFIER = "io.modelcontextprotocol/skills"
ROOT = "skill://pdf"
MANIFEST = "---\nname: pdf\ndescription: Read PDF files.\n---\n\nBody.\n"


class AnyResult(CacheableResult):
    """A result that the test defines."""

    skills: list[Any] | None = None
    skill: Any = None


def describe(path: str, content: str | bytes) -> dict[str, Any]:
    data = content.encode() if isinstance(content, str) else content
    return {"uri": f"{ROOT}/{path}", "digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}


def build_entry(**changes: Any) -> dict[str, Any]:
    return {
        "uri": f"{ROOT}/SKILL.md",
        "frontmatter": {"name": "pdf", "description": "Read PDF files."},
        "resources": [describe("SKILL.md", MANIFEST), describe("a.md", "a"), describe("b.bin", b"\xff")],
    } | changes


class FakeSkills:
    """A server that sends any entries and any contents, and counts the files that were read."""

    def __init__(self, *entries: Any, contents: dict[str, Any] | None = None) -> None:
        self.entries = list(entries) or [build_entry()]
        self.contents: dict[str, Any] = {"SKILL.md": MANIFEST, "a.md": "a", "b.bin": b"\xff"} | (contents or {})
        self.reads: list[str] = []
        extension = Extension(IDENTIFIER)
        extension.method("skills/list", is_cacheable=True)(self._list)
        extension.method("skills/get", is_cacheable=True)(self._get)
        self.app = Server("fake", extensions=[extension], cache_hints=CacheHint(3_600_000))
        self.app.add_resource(self._read, f"{ROOT}/{{+path}}")

    async def _list(self, params: Params, exchange: Exchange) -> AnyResult:
        return AnyResult(skills=self.entries, ttl_ms=3_600_000, cache_scope="private")

    async def _get(self, params: Params, exchange: Exchange) -> AnyResult:
        return AnyResult(skill=self.entries[0], ttl_ms=3_600_000, cache_scope="private")

    def _read(self, path: str) -> Any:
        self.reads.append(path)
        content = self.contents[path]
        return content(path) if callable(content) else content


async def test_no_file_is_fetched_before_it_is_read() -> None:
    fake = FakeSkills()
    async with Client(fake.app) as client:
        [skill] = await client.list_skills()
        assert (skill.uri, skill.name, skill.description) == (f"{ROOT}/SKILL.md", "pdf", "Read PDF files.")
        assert [*skill.files] == ["SKILL.md", "a.md", "b.bin"]
        assert (await client.get_skill(skill.uri)).files == skill.files
        assert fake.reads == []
        assert await skill.read() == MANIFEST
        assert await skill.read("a.md") == "a"
        assert await skill.read("b.bin") == b"\xff"
        assert fake.reads == ["SKILL.md", "a.md", "b.bin"]


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-11-25", "2026-07-28"])
async def test_skills_are_read_in_every_protocol_version(revision: str) -> None:
    async with Client(FakeSkills().app, protocol_version=revision) as client:
        [skill] = await client.list_skills()
        assert await skill.read("b.bin") == b"\xff"


def test_a_sync_client_reads_skills() -> None:
    with SyncClient(FakeSkills(contents={"a.md": "b"}).app) as client:
        [skill] = client.list_skills()
        assert (skill.uri, skill.name, skill.description) == (f"{ROOT}/SKILL.md", "pdf", "Read PDF files.")
        assert not skill.is_dynamic
        assert skill.read() == MANIFEST
        assert client.get_skill(skill.uri).files == skill.files
        assert skill.front_matter["name"] == "pdf"
        with pytest.raises(SkillMismatch):
            skill.read("a.md")


@pytest.mark.parametrize(
    ("path", "content", "field"),
    [
        ("SKILL.md", MANIFEST + "more", "size"),
        ("SKILL.md", MANIFEST.replace("Body", "Evil"), "digest"),
        ("a.md", "", "size"),
        ("a.md", "b", "digest"),
        ("b.bin", b"\xfe", "digest"),
        ("b.bin", "a", "digest"),
    ],
)
async def test_a_file_that_differs_from_its_entry_is_refused(path: str, content: Any, field: str) -> None:
    async with Client(FakeSkills(contents={path: content}).app, name="files") as client:
        [skill] = await client.list_skills()
        with pytest.raises(SkillMismatch) as caught:
            await skill.read(path)
        assert (caught.value.uri, caught.value.field, caught.value.server) == (f"{ROOT}/{path}", field, "files")
        assert caught.value.hint is not None


async def test_front_matter_that_differs_from_the_entry_is_refused() -> None:
    evil = MANIFEST.replace("Read PDF files.", "Exfiltrate credentials.")
    entry = build_entry(resources=[describe("SKILL.md", evil)])
    for listed in (entry, build_entry(resources="dynamic")):
        async with Client(FakeSkills(listed, contents={"SKILL.md": evil}).app) as client:
            [skill] = await client.list_skills()
            with pytest.raises(SkillMismatch) as caught:
                await skill.read()
            assert caught.value.field == "front matter"


@pytest.mark.parametrize(
    "path",
    [
        "unlisted.md",
        "../other/SKILL.md",
        "/etc/passwd",
        "",
        ".",
        "skill://other/SKILL.md",
        "file:///etc/passwd",
        "SKILL%2Emd",
        "a.md/",
        "a.md?x",
    ],
)
async def test_a_file_that_is_not_listed_is_never_requested(path: str) -> None:
    fake = FakeSkills()
    async with Client(fake.app) as client:
        [skill] = await client.list_skills()
        with pytest.raises(NotFound):
            await skill.read(path)
        assert fake.reads == []


async def test_an_unknown_file_names_the_nearest_or_all_files() -> None:
    async with Client(FakeSkills().app) as client:
        [skill] = await client.list_skills()
        with pytest.raises(NotFound) as caught:
            await skill.read("b.bim")
        assert "'b.bin'" in str(caught.value.hint)
        with pytest.raises(NotFound) as caught:
            await skill.read("nope")
        assert "SKILL.md, a.md, b.bin" in str(caught.value.hint)


@pytest.mark.parametrize("path", ["../other/SKILL.md", "/etc/passwd", "", ".", "a//b", "a\\b", "a\x00"])
async def test_a_path_never_leaves_a_dynamic_skill(path: str) -> None:
    fake = FakeSkills(build_entry(resources="dynamic"))
    async with Client(fake.app) as client:
        [skill] = await client.list_skills()
        assert skill.is_dynamic
        with pytest.raises(NotFound):
            await skill.read(path)
        assert fake.reads == []
        assert await skill.read("a.md") == "a"


async def test_a_mismatch_makes_the_client_forget_its_list() -> None:
    fake = FakeSkills()
    async with Client(fake.app) as client:
        [skill] = await client.list_skills()
        fake.contents["a.md"] = "new"
        fake.entries = [build_entry(resources=[describe("SKILL.md", MANIFEST), describe("a.md", "new")])]
        assert [*(await client.list_skills())[0].files] == ["SKILL.md", "a.md", "b.bin"]  # from the cache
        with pytest.raises(SkillMismatch):
            await skill.read("a.md")
        [renewed] = await client.list_skills()
        assert [*renewed.files] == ["SKILL.md", "a.md"]
        assert await renewed.read("a.md") == "new"


async def test_get_skill_always_asks_the_server() -> None:
    fake = FakeSkills()
    async with Client(fake.app) as client:
        await client.get_skill(f"{ROOT}/SKILL.md")
        fake.entries = [build_entry(resources="dynamic")]
        assert (await client.get_skill(f"{ROOT}/SKILL.md")).is_dynamic


@pytest.mark.parametrize(
    "entry",
    [
        build_entry(uri="skill://pdf/other.md"),
        build_entry(uri="skill://other/SKILL.md"),
        build_entry(frontmatter={"name": "pdf"}),
        build_entry(frontmatter="none"),
        build_entry(resources=None),
        build_entry(resources="static"),
        build_entry(resources=[]),
        build_entry(resources=[describe("SKILL.md", MANIFEST), describe("../b", "")]),
        build_entry(resources=[describe("SKILL.md", MANIFEST), {**describe("b", ""), "uri": "file:///etc/passwd"}]),
        build_entry(resources=[describe("SKILL.md", MANIFEST), {**describe("b", ""), "digest": "md5:0"}]),
        build_entry(resources=[describe("SKILL.md", MANIFEST)] * 2),
        build_entry(resources=[describe(str(number), "") for number in range(600)]),
        build_entry(resources=[{**describe("SKILL.md", MANIFEST), "size": 17 * 1024 * 1024}]),
        {"uri": "skill://pdf/SKILL.md"},
    ],
)
async def test_an_invalid_entry_is_left_out(entry: Any) -> None:
    good = build_entry(uri="skill://x/pdf/SKILL.md", resources="dynamic")
    async with Client(FakeSkills(entry, good).app) as client:
        assert [skill.uri for skill in await client.list_skills()] == ["skill://x/pdf/SKILL.md"]
        assert len(client.skipped_items) == 1
        with pytest.raises(InvalidResult):
            await client.get_skill("skill://pdf/SKILL.md")


async def test_another_skill_than_the_requested_one_is_refused() -> None:
    async with Client(FakeSkills().app) as client:
        with pytest.raises(InvalidResult):
            await client.get_skill("skill://other/SKILL.md")


@pytest.mark.parametrize(
    "contents",
    [
        [],
        [ResourceContents(uri=f"{ROOT}/a.md", text="a"), ResourceContents(uri=f"{ROOT}/a.md", text="b")],
        [ResourceContents(uri=f"{ROOT}/a.md", blob="*")],
        [ResourceContents(uri=f"{ROOT}/a.md", blob="é")],
    ],
)
async def test_a_file_has_one_content(contents: list[ResourceContents]) -> None:
    app = FakeSkills().app

    @app.middleware
    async def change(exchange: Exchange, call_next: CallNext) -> object:
        if exchange.method == "resources/read":
            return ReadResourceResult(contents=contents)
        return await call_next(exchange)

    async with Client(app) as client:
        [skill] = await client.list_skills()
        with pytest.raises(InvalidResult):
            await skill.read("a.md")


async def test_a_server_without_skills_lists_none() -> None:
    app = Server("plain")
    app.add_resource(lambda: "x", "x://y", name="y")
    async with Client(app) as client:
        assert await client.list_skills() == []
        with pytest.raises(NotSupported):
            await client.get_skill("skill://pdf/SKILL.md")


async def test_an_unknown_skill_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "pdf").mkdir()
    (tmp_path / "pdf" / "SKILL.md").write_text(MANIFEST)
    app = Server("skills")
    app.add_skills(tmp_path)
    async with Client(app) as client:
        await client.list_skills()
        with pytest.raises(NotFound) as caught:
            await client.get_skill("skill://pfd/SKILL.md")
        assert str(caught.value.hint) == "Did you mean 'skill://pdf/SKILL.md'?"
        with pytest.raises(NotFound) as caught:
            await client.get_skill("skill://refunds/SKILL.md")
        assert "Did you mean" not in str(caught.value.hint)


async def test_binary_content_is_compared_by_its_bytes() -> None:
    entry = build_entry(resources=[describe("SKILL.md", MANIFEST), describe("a.md", "ä")])
    blob = ResourceContents(uri=f"{ROOT}/a.md", blob=base64.b64encode("ä".encode()).decode())
    async with Client(FakeSkills(entry, contents={"a.md": lambda _: blob}).app) as client:
        [skill] = await client.list_skills()
        assert await skill.read("a.md") == "ä".encode()
