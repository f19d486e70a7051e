"""Servers serve skills from folders and functions, as resources and with the methods of the extension."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail import CacheHint, Client, Server, ServerLimits
from dovetail.errors import NotFound, RemoteError, SkillMismatch
from dovetail.extensions import Extension
from dovetail.skills import generated_skill, skill_folder, skill_resources, skills_extension
from dovetail.skills.served_skill import ServedSkill
from dovetail.skills.skill import compute_digest
from dovetail.skills.skill_folder import SkillFolder

IDENTIFIER = "io.modelcontextprotocol/skills"
REVISIONS = ("2024-11-05", "2025-06-18", "2025-11-25", "2026-07-28")


def write_skill(folder: Path, path: str, files: dict[str, str] | None = None, description: str = "Do it.") -> Path:
    skill = folder / path
    skill.mkdir(parents=True, exist_ok=True)
    (skill / "SKILL.md").write_text(f"---\nname: {skill.name}\ndescription: {description}\n---\n\nBody.\n")
    for name, content in (files or {}).items():
        (skill / name).parent.mkdir(parents=True, exist_ok=True)
        (skill / name).write_text(content)
    return skill


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_skill(tmp_path, "pdf", {"references/forms.md": "forms", "notes.md": "notes"})
    write_skill(tmp_path, "acme/refunds")
    return tmp_path


@pytest.fixture
def app(folder: Path) -> Server:
    server = Server("skills")
    server.add_skills(folder)
    return server


@pytest.mark.parametrize("revision", REVISIONS)
async def test_skills_exist_in_every_protocol_version(app: Server, revision: str) -> None:
    async with Client(app, protocol_version=revision) as client:
        assert (client.server_capabilities.extensions or {})[IDENTIFIER] == {"directoryRead": True}
        listed = (await client.request("skills/list"))["skills"]
        assert [skill["uri"] for skill in listed] == ["skill://acme/refunds/SKILL.md", "skill://pdf/SKILL.md"]
        assert listed[1]["frontmatter"] == {"name": "pdf", "description": "Do it."}
        for file in listed[1]["resources"]:
            assert len(await client.read(file["uri"])) == file["size"]
        got = await client.request("skills/get", {"uri": "skill://pdf/SKILL.md"})
        assert got["skill"] == listed[1]


async def test_results_have_the_cache_fields_of_the_newest_version(folder: Path) -> None:
    app = Server("skills", cache_hints=CacheHint(60_000, "public"))
    app.add_skills(folder)
    async with Client(app) as client:
        for result in (
            await client.request("skills/list"),
            await client.request("skills/get", {"uri": "skill://pdf/SKILL.md"}),
        ):
            assert (result["resultType"], result["ttlMs"], result["cacheScope"]) == ("complete", 60_000, "public")
    app.restrict("skill://pdf/SKILL.md", scopes=["read"])
    async with Client(app) as client:
        assert (await client.request("skills/list"))["cacheScope"] == "private"


async def test_only_the_manifest_is_listed_as_a_resource(app: Server) -> None:
    async with Client(app) as client:
        resources = {resource.uri: resource for resource in await client.list_resources()}
        assert [*resources] == ["skill://acme/refunds/SKILL.md", "skill://pdf/SKILL.md"]
        manifest = resources["skill://pdf/SKILL.md"]
        assert (manifest.name, manifest.description, manifest.mime_type) == ("pdf", "Do it.", "text/markdown")
        assert [template.uri_template for template in await client.list_resource_templates()] == ["skill://pdf/{+path}"]
        result = await client.read_resource("skill://pdf/references/forms.md")
        assert [(part.uri, part.mime_type, part.text) for part in result.contents] == [
            ("skill://pdf/references/forms.md", "text/markdown", "forms")
        ]


@pytest.mark.parametrize(
    "uri",
    [
        "skill://pdf/missing.md",
        "skill://pdf/../acme/refunds/SKILL.md",
        "skill://pdf/%2e%2e/secret.txt",
        "skill://pdf/..%2f..%2fetc%2fpasswd",
        "skill://pdf//etc/passwd",
        "skill://pdf/references",
        "skill://other/SKILL.md",
        "skill://pdf",
        "file:///etc/passwd",
    ],
)
async def test_other_uris_are_not_found(app: Server, folder: Path, uri: str) -> None:
    (folder / "secret.txt").write_text("secret")
    async with Client(app) as client:
        with pytest.raises(NotFound):
            await client.read(uri)
        with pytest.raises(RemoteError) as caught:
            await client.request("skills/get", {"uri": uri})
        assert caught.value.code == -32602


@pytest.mark.parametrize("revision", REVISIONS)
async def test_unknown_skills_and_directories_are_invalid_parameters(app: Server, revision: str) -> None:
    async with Client(app, protocol_version=revision) as client:
        for method, uri in (
            ("skills/get", "skill://missing/SKILL.md"),
            ("skills/get", "skill://pdf"),
            ("resources/directory/read", "skill://pdf/SKILL.md"),
            ("resources/directory/read", "skill://missing"),
            ("skills/get", "skill://" + "x" * 9000 + "/SKILL.md"),
        ):
            with pytest.raises(RemoteError) as caught:
                await client.request(method, {"uri": uri})
            assert caught.value.code == -32602


async def test_directories_are_listed(app: Server) -> None:
    async with Client(app) as client:
        result = await client.request("resources/directory/read", {"uri": "skill://pdf"})
        children = {child["uri"]: child.get("mimeType") for child in result["resources"]}
        assert children == {
            "skill://pdf/SKILL.md": "text/markdown",
            "skill://pdf/notes.md": "text/markdown",
            "skill://pdf/references": "inode/directory",
        }


async def test_lists_have_pages(folder: Path) -> None:
    for number in range(5):
        write_skill(folder, f"skill-{number}")
    app = Server("skills", page_size=3)
    app.add_skills(folder)
    async with Client(app) as client:
        uris: list[str] = []
        params: dict[str, Any] = {}
        while True:
            page = await client.request("skills/list", params)
            assert len(page["skills"]) <= 3
            uris += [skill["uri"] for skill in page["skills"]]
            if "nextCursor" not in page:
                break
            params = {"cursor": page["nextCursor"]}
        assert len(uris) == len(set(uris)) == 7
        page = await client.request("resources/directory/read", {"uri": "skill://pdf"})
        assert len(page["resources"]) == 3
        for method, more in (("skills/list", {}), ("resources/directory/read", {"uri": "skill://pdf"})):
            with pytest.raises(RemoteError) as caught:
                await client.request(method, {"cursor": "unknown", **more})
            assert caught.value.code == -32602


async def test_a_page_has_a_limit_of_files(folder: Path, app: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skills_extension, "_MAX_FILES_PER_PAGE", 2)
    async with Client(app) as client:
        page = await client.request("skills/list")
        assert [skill["uri"] for skill in page["skills"]] == ["skill://acme/refunds/SKILL.md"]
        # An entry is never split, even if it is larger than a page.
        page = await client.request("skills/list", {"cursor": page["nextCursor"]})
        assert [len(skill["resources"]) for skill in page["skills"]] == [3]


async def test_many_files_in_many_skills_are_served(tmp_path: Path) -> None:
    for number in range(20):
        write_skill(tmp_path, f"skill-{number}", {f"{file}.md": "x" for file in range(100)})
    app = Server("skills")
    app.add_skills(tmp_path)
    async with Client(app) as client:
        skills = await client.list_skills()
        assert [len(skill.files) for skill in skills] == [101] * 20
        assert len(await client.list_resources()) == 20
        assert await skills[-1].read("7.md") == "x"


async def test_two_folders_must_not_have_the_same_skill(folder: Path, app: Server) -> None:
    with pytest.raises(ValueError, match="skill://"):
        app.add_skills(folder)


def test_a_folder_that_cannot_be_served_adds_nothing(tmp_path: Path) -> None:
    app = Server("skills")
    with pytest.raises(ValueError, match="no skills"):
        app.add_skills(tmp_path)
    with pytest.raises(TypeError):
        app.add_skills(3)  # pyright: ignore[reportArgumentType]


# Access rules


async def test_hidden_skills_do_not_exist_for_other_callers(tmp_path: Path) -> None:
    write_skill(tmp_path, "open/public", {"a.md": "a"})
    write_skill(tmp_path, "closed/secret", {"a.md": "a"})
    app = Server("skills")
    app.add_skills(tmp_path / "open")
    app.add_skills(tmp_path / "closed", visible_to=lambda principal: False)
    async with Client(app) as client:
        assert [skill.name for skill in await client.list_skills()] == ["public"]
        assert [resource.name for resource in await client.list_resources()] == ["public"]
        for uri in ("skill://secret/SKILL.md", "skill://secret/a.md"):
            with pytest.raises(NotFound):
                await client.read(uri)
        for method, uri in (("skills/get", "skill://secret/SKILL.md"), ("resources/directory/read", "skill://secret")):
            with pytest.raises(RemoteError) as caught:
                await client.request(method, {"uri": uri})
            assert caught.value.code == -32602


async def test_skills_can_need_scopes(folder: Path) -> None:
    app = Server("skills")
    app.add_skills(folder, scopes=["skills"])
    async with Client(app) as client:
        assert await client.list_skills() == []
        for method, uri in (
            ("skills/get", "skill://pdf/SKILL.md"),
            ("resources/read", "skill://pdf/SKILL.md"),
            ("resources/read", "skill://pdf/notes.md"),
        ):
            with pytest.raises(RemoteError) as caught:
                await client.request(method, {"uri": uri})
            assert caught.value.code == 403


async def check_that_a_skill_is_hidden(app: Server, uri: str) -> None:
    root = uri.removesuffix("/SKILL.md")
    async with Client(app) as client:
        assert uri not in [skill.uri for skill in await client.list_skills()]
        for read_uri in (uri, f"{root}/notes.md"):
            with pytest.raises(NotFound):
                await client.read(read_uri)
        for method, wanted in (("skills/get", uri), ("resources/directory/read", root)):
            with pytest.raises(RemoteError) as caught:
                await client.request(method, {"uri": wanted})
            assert caught.value.code == -32602


def hide(app: Server) -> None:
    app.restrict("skill://pdf/SKILL.md", visible_to=lambda principal: False)


def disable(app: Server) -> None:
    app.disable("skill://pdf/SKILL.md")


def remove(app: Server) -> None:
    app.remove_resource("skill://pdf/SKILL.md")


@pytest.mark.parametrize("hide_skill", [hide, disable, remove])
async def test_without_its_manifest_a_skill_is_hidden_with_all_its_files(
    app: Server, hide_skill: Callable[[Server], None]
) -> None:
    hide_skill(app)
    await check_that_a_skill_is_hidden(app, "skill://pdf/SKILL.md")


@pytest.mark.parametrize("hide_skill", [hide, disable, remove])
async def test_without_its_manifest_a_skill_of_a_function_is_hidden(hide_skill: Callable[[Server], None]) -> None:
    app = Server("skills")
    app.add_skill(lambda: {"SKILL.md": "x", "notes.md": "notes"}, name="pdf", description="Do it.")
    hide_skill(app)
    await check_that_a_skill_is_hidden(app, "skill://pdf/SKILL.md")


async def test_a_disabled_skill_can_be_enabled_again(app: Server) -> None:
    app.disable("skill://pdf/SKILL.md")
    app.enable("skill://pdf/SKILL.md")
    async with Client(app) as client:
        assert "pdf" in [skill.name for skill in await client.list_skills()]
        assert await client.read("skill://pdf/notes.md") == "notes"


async def test_scopes_for_a_manifest_are_needed_for_all_files(app: Server) -> None:
    app.restrict("skill://pdf/SKILL.md", scopes=["skills"])
    async with Client(app) as client:
        for uri in ("skill://pdf/SKILL.md", "skill://pdf/notes.md"):
            with pytest.raises(RemoteError) as caught:
                await client.request("resources/read", {"uri": uri})
            assert caught.value.code == 403


async def test_a_skill_that_appears_in_two_folders_stays_in_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skills_extension, "_MAX_AGE_S", 0.0)
    write_skill(tmp_path, "open/pdf", {"notes.md": "open"})
    write_skill(tmp_path, "open/docx")
    write_skill(tmp_path, "closed/other")
    app = Server("skills")
    app.add_skills(tmp_path / "open")
    app.add_skills(tmp_path / "closed", visible_to=lambda principal: False)
    write_skill(tmp_path, "closed/pdf", {"notes.md": "closed", "secret.md": "closed"}, description="Secret.")
    async with Client(app, cache=False) as client:
        _, skill = await client.list_skills()
        assert (skill.description, [*skill.files]) == ("Do it.", ["SKILL.md", "notes.md"])
        assert "Body." in str(await skill.read())
        assert await skill.read("notes.md") == "open"
        assert (await client.get_skill(skill.uri)).description == "Do it."
        # After the first folder has lost the skill, the access rules of the second folder apply.
        (tmp_path / "open" / "pdf" / "SKILL.md").unlink()
        assert [skill.name for skill in await client.list_skills()] == ["docx"]
    await check_that_a_skill_is_hidden(app, "skill://pdf/SKILL.md")


async def test_a_folder_with_a_name_that_is_taken_adds_nothing(tmp_path: Path, app: Server) -> None:
    write_skill(tmp_path, "more/aaa", {"notes.md": "notes"})
    write_skill(tmp_path, "more/pdf")
    with pytest.raises(ValueError, match="skill://pdf"):
        app.add_skills(tmp_path / "more")
    async with Client(app) as client:
        assert "skill://aaa/SKILL.md" not in [resource.uri for resource in await client.list_resources()]
    await check_that_a_skill_is_hidden(app, "skill://aaa/SKILL.md")


# Changes


async def test_a_removed_resource_does_not_stop_later_changes(
    folder: Path, app: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skills_extension, "_MAX_AGE_S", 0.0)
    app.remove_resource("skill://pdf/SKILL.md")
    app.remove_resource("skill://pdf/{+path}")
    async with Client(app, cache=False) as client:
        write_skill(folder, "pdf", description="Changed.")
        write_skill(folder, "zip")
        assert [skill.name for skill in await client.list_skills()] == ["refunds", "zip"]
        (folder / "pdf" / "SKILL.md").unlink()
        write_skill(folder, "xml")
        assert [skill.name for skill in await client.list_skills()] == ["refunds", "xml", "zip"]
        assert "Body." in str(await client.read("skill://xml/SKILL.md"))


async def test_a_disabled_skill_stays_disabled_when_its_folder_returns(
    folder: Path, app: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skills_extension, "_MAX_AGE_S", 0.0)
    app.disable("skill://pdf/SKILL.md")
    async with Client(app, cache=False) as client:
        for path, target in ((folder / "pdf", folder / ".pdf"), (folder / ".pdf", folder / "pdf")):
            path.rename(target)
            assert [skill.name for skill in await client.list_skills()] == ["refunds"]
        app.enable("skill://pdf/SKILL.md")
        assert [skill.name for skill in await client.list_skills()] == ["refunds", "pdf"]


async def test_a_skill_that_appears_during_an_update_can_be_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class ChangingFolder(SkillFolder):
        """A folder in which a skill appears directly after an update has read the skills."""

        is_update_next = False

        @property
        def skills(self) -> dict[str, ServedSkill]:  # pyright: ignore[reportIncompatibleVariableOverride]
            skills = self._value
            if self.is_update_next:
                self.is_update_next = False
                write_skill(folder, "late")
                super().refresh()
            return skills

        @skills.setter
        def skills(self, skills: dict[str, ServedSkill]) -> None:
            self._value = skills

        def refresh(self, max_age: float = 0.0) -> bool:
            has_changed = super().refresh(max_age)
            self.is_update_next = has_changed and not (folder / "late").exists()
            return has_changed

    monkeypatch.setattr(skills_extension, "_MAX_AGE_S", 0.0)
    monkeypatch.setattr(skill_folder, "SkillFolder", ChangingFolder)
    app = Server("skills")
    app.add_skills(folder)
    async with Client(app, cache=False) as client:
        write_skill(folder, "docx")
        await client.list_skills()
        (folder / "late" / "SKILL.md").unlink()
        await client.list_skills()
        assert sorted(resource.name for resource in await client.list_resources()) == ["docx", "pdf", "refunds"]
    assert caplog.records == []


async def test_a_list_shows_a_change_at_once(folder: Path, app: Server) -> None:
    file = folder / "pdf" / "notes.md"
    async with Client(app, cache=False) as client:
        for text in ("first", "second", "third"):
            file.write_text(text)
            skills = {skill.name: skill for skill in await client.list_skills()}
            assert await skills["pdf"].read("notes.md") == text
            file.write_text(f"{text} again")
            assert await (await client.get_skill("skill://pdf/SKILL.md")).read("notes.md") == f"{text} again"


async def test_lists_at_the_same_time_share_scans(folder: Path, app: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 4
    times: list[float] = []
    have_all_begun = threading.Event()
    scans: list[bool] = []
    refresh = SkillFolder.refresh

    def get_time() -> float:
        times.append(time.monotonic())
        if len(times) > count:  # The first list asks twice: when it arrives, and when its scan begins.
            have_all_begun.set()
        return times[-1]

    def scan(folder: SkillFolder, max_age: float = 0.0) -> bool:
        scans.append(have_all_begun.wait(30))
        return refresh(folder, max_age)

    monkeypatch.setattr(skill_resources, "time", SimpleNamespace(monotonic=get_time))
    monkeypatch.setattr(SkillFolder, "refresh", scan)
    async with Client(app, cache=False) as client:
        await asyncio.gather(*(client.list_skills() for _ in range(count)))
    assert scans in ([True], [True, True])


async def test_a_mistake_that_returns_is_logged_again_if_files_are_only_read(
    folder: Path, app: Server, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = folder / "pdf" / "SKILL.md"
    valid = manifest.read_text()
    async with Client(app, cache=False) as client:
        skill = await client.get_skill("skill://pdf/SKILL.md")
        for count in (1, 2):
            manifest.write_text("no front matter")
            with pytest.raises(SkillMismatch):
                await skill.read()
            assert len(caplog.records) == count
            manifest.write_text(valid)
            assert await skill.read() == valid


async def test_a_content_that_returns_is_noticed_at_each_read(
    folder: Path, app: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skill_folder, "_MAX_CHEAP_ENTRIES", 1)
    file = folder / "pdf" / "notes.md"
    async with Client(app, cache=False) as client:
        for _ in range(2):
            monkeypatch.setattr(skills_extension, "_MAX_AGE_S", 0.0)
            file.write_text("first")
            skill = await client.get_skill("skill://pdf/SKILL.md")
            monkeypatch.setattr(skills_extension, "_MAX_AGE_S", 3600.0)
            file.write_text("second")
            with pytest.raises(SkillMismatch):
                await skill.read("notes.md")
            assert await (await client.get_skill(skill.uri)).read("notes.md") == "second"


async def test_cancelling_the_end_of_the_lifespan_is_not_hidden(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lifespans: list[Any] = []
    monkeypatch.setattr(Extension, "lifespan", lambda _, lifespan: lifespans.append(lifespan))
    Server("skills").add_skills(folder)
    manager = lifespans[0]()
    await manager.__aenter__()
    closing = asyncio.ensure_future(manager.__aexit__(None, None, None))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing


async def test_a_digest_that_changes_between_list_and_read_is_refused_and_refreshed(folder: Path, app: Server) -> None:
    async with Client(app) as client:
        skill = next(skill for skill in await client.list_skills() if skill.name == "pdf")
        (folder / "pdf" / "notes.md").write_text("other")
        with pytest.raises(SkillMismatch) as caught:
            await skill.read("notes.md")
        assert caught.value.field == "digest"
        renewed = await client.get_skill(skill.uri)
        assert await renewed.read("notes.md") == "other"
        with pytest.raises(SkillMismatch):  # The old entry is never changed.
            await skill.read("notes.md")


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_clients_are_notified_of_changes(
    folder: Path, app: Server, revision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skills_extension, "_WATCH_INTERVAL_S", 0.01)
    async with (
        asyncio.timeout(30),
        Client(app, protocol_version=revision) as client,
        client.listen(resources=True, uris=["skill://pdf/notes.md"]) as changes,
    ):
        await client.list_skills()
        (folder / "pdf" / "notes.md").write_text("changed")
        seen = set[tuple[str, str | None]]()
        async for change in changes:
            seen.add((change.kind, change.uri))
            if len(seen) == 2:
                break
        assert seen == {("resources", None), ("resource", "skill://pdf/notes.md")}
        skill = await client.get_skill("skill://pdf/SKILL.md")
        assert await skill.read("notes.md") == "changed"


async def test_a_folder_that_is_added_to_a_running_server_is_watched(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skills_extension, "_WATCH_INTERVAL_S", 0.01)

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        yield

    app = Server("skills", lifespan=lifespan)
    app.add_resource(lambda: "a", "notes://a")
    async with asyncio.timeout(30), Client(app) as client, client.listen(resources=True) as changes:
        assert await client.read("notes://a") == "a"
        app.add_skills(folder)
        async for _ in changes:
            if not (folder / "docx").exists():
                write_skill(folder, "docx")
            elif "skill://docx/SKILL.md" in {resource.uri for resource in await client.list_resources()}:
                break


async def test_added_and_removed_skills_change_the_resources(
    folder: Path, app: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skills_extension, "_MAX_AGE_S", 0.0)
    async with Client(app) as client:
        write_skill(folder, "docx", {"a.md": "a"})
        write_skill(folder, "pdf", description="Read PDF files.")
        (folder / "acme" / "refunds" / "SKILL.md").unlink()
        await client.list_skills()
        assert {resource.name: resource.description for resource in await client.list_resources()} == {
            "pdf": "Read PDF files.",
            "docx": "Do it.",
        }
        assert await client.read("skill://docx/a.md") == "a"
        with pytest.raises(NotFound):
            await client.read("skill://acme/refunds/SKILL.md")
        (folder / "docx" / "a.md").unlink()
        await client.list_skills()
        assert [template.uri_template for template in await client.list_resource_templates()] == ["skill://pdf/{+path}"]


# Functions


async def test_a_function_can_be_a_skill() -> None:
    app = Server("skills")

    @app.skill
    def git_workflow() -> str:
        """Follow the conventions of this team
        for branches and commits.
        """
        return "# Branches\n"

    @app.skill("reports", description='Write: a "report"', front_matter={"license": "MIT", "metadata": {"v": "1"}})
    async def write_reports() -> dict[str, str | bytes]:
        return {"SKILL.md": "# Reports\n", "templates/a.md": "A", "logo.png": b"\x89PNG"}

    assert git_workflow() == "# Branches\n"
    async with Client(app) as client:
        first, second = await client.list_skills()
        assert first.uri == "skill://git-workflow/SKILL.md"
        assert first.description == "Follow the conventions of this team for branches and commits."
        text = await first.read()
        assert isinstance(text, str)
        assert text.endswith("---\n\n# Branches\n")
        assert dict(second.front_matter) == {
            "name": "reports",
            "description": 'Write: a "report"',
            "license": "MIT",
            "metadata": {"v": "1"},
        }
        assert isinstance(await second.read(), str)
        assert await second.read("templates/a.md") == "A"
        assert await second.read("logo.png") == b"\x89PNG"
        assert {resource.name for resource in await client.list_resources()} == {"git-workflow", "reports"}
        directory = await client.request("resources/directory/read", {"uri": "skill://reports/templates"})
        assert [child["name"] for child in directory["resources"]] == ["a.md"]
        with pytest.raises(NotFound):
            await client.read("skill://reports/missing.md")


async def test_a_dynamic_skill_may_change_at_each_read() -> None:
    app = Server("skills")
    reads = 0

    @app.skill(dynamic=True, description="Show a number.")
    def number() -> str:
        nonlocal reads
        reads += 1
        return f"Number {reads}"

    async with Client(app) as client:
        assert (await client.request("skills/list"))["skills"][0]["resources"] == "dynamic"
        [skill] = await client.list_skills()
        assert skill.is_dynamic
        assert not skill.files
        assert await skill.read() != await skill.read()


async def test_a_function_that_fails_does_not_hide_other_skills() -> None:
    app = Server("skills")

    @app.skill(description="Fails.")
    def broken() -> str:
        raise RuntimeError("secret")

    @app.skill(description="Has a wrong result.")
    def wrong() -> int:
        return 1

    @app.skill(description="Works.")
    def working() -> str:
        return "works"

    async with Client(app) as client:
        assert [skill.name for skill in await client.list_skills()] == ["working"]
        with pytest.raises(RemoteError) as caught:
            await client.get_skill("skill://broken/SKILL.md")
        assert caught.value.code == -32603
        assert "secret" not in caught.value.message


async def test_a_slow_function_does_not_hide_other_skills() -> None:
    # A list waits for a function for half of this time.
    app = Server("skills", limits=ServerLimits(call_timeout=2.0))

    @app.skill(description="Never returns.")
    async def slow() -> str:
        return await asyncio.get_running_loop().create_future()

    app.add_skill(lambda: "x", name="fine", description="Works.")
    async with Client(app) as client:
        assert [skill.name for skill in await client.list_skills()] == ["fine"]


async def test_a_function_that_hangs_uses_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skills_extension, "_MAX_FUNCTION_S", 0.1)
    app = Server("skills")
    may_return, runs = threading.Event(), 0

    @app.skill(description="Hangs.")
    def slow() -> str:
        nonlocal runs
        runs += 1
        may_return.wait(30)
        return "x"

    try:
        async with Client(app, cache=False) as client:
            async with asyncio.timeout(30):
                while not runs:
                    assert await client.list_skills() == []
                for _ in range(3):
                    assert await client.list_skills() == []
                assert runs == 1
                may_return.set()
                while not await client.list_skills():
                    pass
    finally:
        may_return.set()


async def test_functions_run_in_the_threads_of_the_server() -> None:
    app = Server("skills", limits=ServerLimits(max_threads=1))
    running, may_return = threading.Event(), threading.Event()

    @app.skill(description="Waits.")
    def slow() -> str:
        running.set()
        may_return.wait(30)
        return "x"

    @app.tool
    def count_threads() -> int:
        return app.stats().busy_threads

    try:
        async with asyncio.timeout(30), Client(app) as client:
            listing = asyncio.create_task(client.list_skills())
            assert await asyncio.to_thread(running.wait, 30)
            assert app.stats().busy_threads == 1
            call = asyncio.create_task(client.call("count_threads"))
            may_return.set()
            assert await call == 1
            assert [skill.name for skill in await listing] == ["slow"]
    finally:
        may_return.set()


async def test_a_function_that_fails_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    app = Server("skills")

    @app.skill(description="Fails.")
    def broken() -> str:
        raise RuntimeError("no database")

    with caplog.at_level(logging.WARNING, "dovetail"):
        async with Client(app, cache=False) as client:
            for _ in range(3):
                await client.list_skills()
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "no database" in caplog.text


async def test_functions_run_only_for_the_skills_that_a_client_asks_for() -> None:
    app = Server("skills", page_size=2)
    runs: list[str] = []

    def add(name: str) -> None:
        def load() -> str:
            runs.append(name)
            return "x"

        app.add_skill(load, name=name, description="x")

    for name in ("a", "b", "c"):
        add(name)
    async with Client(app, cache=False) as client:
        assert len(await client.list_skills()) == 3
        assert sorted(runs) == ["a", "b", "c"]
        runs.clear()
        await client.request("resources/directory/read", {"uri": "skill://b"})
        assert runs == ["b"]


class AsyncObject:
    async def __call__(self) -> str:
        return "x"


async def load_with_option(text: str) -> str:
    return text


@pytest.mark.parametrize("function", [AsyncObject(), partial(load_with_option, "x")])
async def test_every_kind_of_function_can_be_a_skill(function: Any) -> None:
    app = Server("skills")
    app.add_skill(function, name="fine", description="x")
    async with Client(app) as client:
        [skill] = await client.list_skills()
        assert str(await skill.read()).endswith("\nx")


async def test_digests_are_not_computed_in_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def compute(data: bytes) -> str:
        threads.append(threading.current_thread())
        return compute_digest(data)

    monkeypatch.setattr(generated_skill, "compute_digest", compute)
    app = Server("skills")

    @app.skill(description="x")
    async def large() -> dict[str, str]:
        return {"SKILL.md": "x", "a.md": "a"}

    async with Client(app) as client:
        await client.read("skill://large/a.md")
        assert threads == []  # One file is read without the digests of all files.
        await client.list_skills()
        assert len(threads) == 2
        assert threading.current_thread() not in threads


@pytest.mark.parametrize(
    "files",
    [
        {"SKILL.md": "x", "../a": "x"},
        {"SKILL.md": "x", "/a": "x"},
        {"SKILL.md": "x", ".env": "x"},
        {"SKILL.md": "x", "a//b": "x"},
        {"SKILL.md": "x", "a": 1},
        {"SKILL.md": "x", "a": b"x" * (16 * 1024 * 1024)},
        {"SKILL.md": "x", **{str(number): "" for number in range(512)}},
        {"SKILL.md": b"bytes"},
        {"SKILL.md": "---\nname: x\n---\n"},
        {"a.md": "x"},
        None,
    ],
)
async def test_invalid_files_of_a_function_are_not_served(files: Any) -> None:
    app = Server("skills")
    app.add_skill(lambda: files, name="broken", description="x")
    async with Client(app) as client:
        assert await client.list_skills() == []
        with pytest.raises(RemoteError):
            await client.read("skill://broken/SKILL.md")


def test_mistakes_in_the_options_of_a_skill_are_refused() -> None:
    app = Server("skills")

    def without_description() -> str:
        return ""

    def with_parameter(name: str) -> str:
        """Do it."""
        return name

    def fine() -> str:
        """Do it."""
        return ""

    for function in (without_description, with_parameter):
        with pytest.raises(TypeError):
            app.skill(function)
    with pytest.raises(ValueError, match="name"):
        app.add_skill(fine, name="Not Valid")
    with pytest.raises(TypeError):
        app.add_skill(fine, front_matter={"name": "other"})
    with pytest.raises(TypeError):
        app.add_skill(fine, descripton="x")  # pyright: ignore[reportCallIssue]
    app.add_skill(fine)
    with pytest.raises(ValueError, match="fine"):
        app.add_skill(fine)
