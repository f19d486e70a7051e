"""Test our client with the official reference servers, one typical task each."""

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client, ToolError
from dovetail.errors import NotSupported, VersionNegotiationError
from support.outside_programs import get_program, needs

pytestmark = [pytest.mark.interop, pytest.mark.timeout(60)]

Command = Callable[..., list[str]]
ERAS = {"stateless": "2026-07-28", "handshake": "2025-11-25"}


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> Any:
    return request.param


# From npm


async def test_filesystem(npm_server: Command, tmp_path: Path) -> None:
    async with Client(npm_server("filesystem", str(tmp_path))) as files:
        assert files.protocol_version == ERAS["handshake"]
        assert len(await files.list_tools()) == 14
        path = str(tmp_path / "notes.txt")
        await files.call("write_file", path=path, content="one\ntwo\nthree\n")
        assert await files.call("read_text_file", path=path, head=2) == {"content": "one\ntwo"}
        edits = [{"oldText": "two", "newText": "2"}]
        assert "+2" in (await files.call("edit_file", path=path, edits=edits))["content"]
        assert (tmp_path / "notes.txt").read_text() == "one\n2\nthree\n"
        await files.call("move_file", source=path, destination=str(tmp_path / "moved.txt"))
        assert await files.call("list_directory", path=str(tmp_path)) == {"content": "[FILE] moved.txt"}
        with pytest.raises(ToolError, match="Access denied"):
            await files.call("read_text_file", path="/etc/hostname")


async def test_filesystem_within_the_roots(npm_server: Command, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    roots = [first]

    async def allowed(files: Client, name: str) -> None:
        """The server asks for the roots when it likes to; until then nothing is allowed."""
        async with asyncio.timeout(20):
            while not str((await files.call_tool("list_allowed_directories")).content[0].text).endswith(name):
                await files.ping()

    async with Client(npm_server("filesystem"), roots=lambda: roots) as files:
        await allowed(files, "first")
        await files.call("write_file", path=str(first / "a.txt"), content="a")
        with pytest.raises(ToolError):
            await files.call("write_file", path=str(second / "a.txt"), content="a")
        roots[:] = [second]
        await files.send_roots_list_changed()
        await allowed(files, "second")
        await files.call("write_file", path=str(second / "a.txt"), content="a")


async def test_memory(npm_server: Command, tmp_path: Path) -> None:
    store = {"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}
    graph = "memory://knowledge-graph"
    ada = {"name": "Ada", "entityType": "person", "observations": ["writes programs"]}
    async with Client(npm_server("memory"), env=store) as memory:
        assert len(await memory.list_tools()) == 9
        listening = memory.listen(tools=False, prompts=False, resources=False, uris=[graph])
        async with listening as changes, asyncio.timeout(20):
            assert await memory.call("create_entities", entities=[ada]) == {"entities": [ada]}
            assert (await anext(aiter(changes))).uri == graph
    async with Client(npm_server("memory"), env=store) as memory:
        found = await memory.call("search_nodes", query="program")
        assert found == {"entities": [ada], "relations": []}
        assert json.loads(await memory.read(graph))["entities"] == [ada]


# From PyPI


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git = [get_program("git"), "-c", "user.name=Ada", "-c", "user.email=ada@example.com", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "--quiet", "--initial-branch=main"], check=True)
    for name, value in (("user.name", "Ada"), ("user.email", "ada@example.com")):
        subprocess.run([*git, "config", name, value], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message=begin"], check=True)
    return tmp_path


@needs("git")
async def test_git(pypi_server: Command, repository: Path, era: Any) -> None:
    (repository / "notes.txt").write_text("one\n")
    at = {"repo_path": str(repository)}
    async with Client(pypi_server("mcp-server-git", "--repository", str(repository)), protocol_version=era) as git:
        assert git.protocol_version == ERAS[era]
        assert len(await git.list_tools()) == 12
        assert "notes.txt" in await git.call("git_status", **at)
        await git.call("git_add", **at, files=["notes.txt"])
        assert "+one" in await git.call("git_diff_staged", **at)
        assert "committed" in await git.call("git_commit", **at, message="notes")
        logged = await git.call("git_log", **at, max_count=1)
        assert "notes" in logged
        assert "begin" not in logged
        with pytest.raises(ToolError):
            await git.call("git_show", **at, revision="no-such-revision")


async def test_time(pypi_server: Command, era: Any) -> None:
    async with Client(pypi_server("mcp-server-time", "--local-timezone", "Europe/Oslo"), protocol_version=era) as clock:
        assert clock.protocol_version == ERAS[era]
        assert [tool.name for tool in await clock.list_tools()] == ["get_current_time", "convert_time"]
        told = await clock.call(
            "convert_time", source_timezone="Asia/Tokyo", time="12:00", target_timezone="Asia/Kolkata"
        )
        assert told["target"]["datetime"].endswith("T08:30:00+05:30")
        with pytest.raises(ToolError):
            await clock.call("get_current_time", timezone="Atlantis")


async def test_sqlite(pypi_server: Command, tmp_path: Path) -> None:
    command = pypi_server("mcp-server-sqlite", "--db-path", str(tmp_path / "cities.db"))
    async with Client(command) as sqlite:
        assert sqlite.protocol_version == ERAS["handshake"]
        assert len(await sqlite.list_tools()) == 6
        await sqlite.call("create_table", query="create table cities (name text, people integer)")
        assert await sqlite.call("write_query", query="insert into cities values ('Oslo', 717710)") == (
            "[{'affected_rows': 1}]"
        )
        assert await sqlite.call("read_query", query="select * from cities") == "[{'name': 'Oslo', 'people': 717710}]"
        await sqlite.call("append_insight", insight="Oslo is the largest")
        assert "Oslo is the largest" in await sqlite.read("memo://insights")
        (prompt,) = await sqlite.list_prompts()
        filled = await sqlite.get_prompt(prompt.name, {"topic": "weather"})
        assert "weather" in filled.messages[0].content.text
        with pytest.raises(NotSupported):
            async with sqlite.listen(uris=["memo://insights"]):
                pass


async def test_the_newer_era_is_not_there(pypi_server: Command, npm_server: Command, tmp_path: Path) -> None:
    for command in (pypi_server("mcp-server-sqlite", "--db-path", str(tmp_path / "x.db")), npm_server("memory")):
        with pytest.raises(VersionNegotiationError, match="stateless"):
            async with Client(
                command, protocol_version="stateless", env={"MEMORY_FILE_PATH": str(tmp_path / "x.jsonl")}
            ):
                pass
