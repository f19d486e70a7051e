"""Test that a gateway passes the skills of its servers through."""

from typing import Any

import pytest

from dovetail import Client, Server
from dovetail.errors import MCPError, NotFound, RemoteError, SkillMismatch
from dovetail.extensions import Extension, Params, Result
from dovetail.host import Host, Policy, rule
from dovetail.middleware import Exchange

pytest.importorskip("yaml")

OUTER = "one+skill://forms/SKILL.md"


def create_server(name: str, files: dict[str, str] | None = None, skill: str = "forms") -> Server:
    app = Server(name)
    current = {"SKILL.md": f"# {name}\n", "refs/notes.md": f"notes of {name}\n"} if files is None else files
    app.add_skill(lambda: dict(current), name=skill, description=f"Forms of {name}.")
    return app


def create_host(*servers: Server, policy: Policy | None = None) -> Host:
    host = Host(policy=policy or Policy("allow"), ready_timeout=2.0)
    for server in servers:
        host.add(server.name, server)
    return host


@pytest.mark.parametrize("version", ["2025-06-18", "2026-07-28"])
async def test_skills_of_all_servers_are_listed_and_verified(version: str) -> None:
    host = create_host(create_server("one"), create_server("two"))
    async with host, Client(host.as_server(), protocol_version=version) as client:
        skills = await client.list_skills()
        assert [skill.uri for skill in skills] == [OUTER, "two+skill://forms/SKILL.md"]
        assert [sorted(skill.files) for skill in skills] == [["SKILL.md", "refs/notes.md"]] * 2
        assert await skills[1].read("refs/notes.md") == "notes of two\n"
        assert "# one" in str(await skills[0].read())
        assert (await client.get_skill(OUTER)).description == "Forms of one."


async def test_a_path_with_one_server_keeps_its_uris() -> None:
    host = create_host(create_server("one"), create_server("two"))
    async with host, Client(host.as_server(server="two")) as client:
        [skill] = await client.list_skills()
        assert skill.uri == "skill://forms/SKILL.md"
        assert await skill.read("refs/notes.md") == "notes of two\n"


@pytest.mark.parametrize(
    "uri", ["one+skill://reports/SKILL.md", "skill://forms/SKILL.md", "three+skill://forms/SKILL.md"]
)
async def test_a_skill_of_another_server_is_not_found(uri: str) -> None:
    host = create_host(create_server("one"), create_server("two", skill="reports"))
    async with host, Client(host.as_server()) as client:
        with pytest.raises(NotFound):
            await client.get_skill(uri)


async def test_servers_without_skills_and_failing_servers_are_skipped() -> None:
    host = create_host(create_server("one"), Server("plain"))
    host.add("broken", ["/nonexistent/server"])
    async with host, Client(host.as_server()) as client:
        assert [skill.uri for skill in await client.list_skills()] == [OUTER]
        with pytest.raises(NotFound):
            await client.get_skill("plain+skill://forms/SKILL.md")


async def test_a_directory_is_read_with_the_uris_of_the_gateway() -> None:
    host = create_host(create_server("one"), create_server("two"))
    async with host, Client(host.as_server()) as client:
        result: Any = await client.request("resources/directory/read", {"uri": "two+skill://forms"})
        assert [child["uri"] for child in result["resources"]] == [
            "two+skill://forms/SKILL.md",
            "two+skill://forms/refs",
        ]
        for uri in (OUTER, "one+skill://nope", "nope"):
            with pytest.raises(RemoteError) as caught:
                await client.request("resources/directory/read", {"uri": uri})
            assert caught.value.code == -32602


async def test_a_server_that_does_not_declare_directories_is_not_asked_for_them() -> None:
    extension, requests = Extension("io.modelcontextprotocol/skills"), list[Params]()

    @extension.method("resources/directory/read")
    async def read_directory(params: Params, exchange: Exchange) -> Result:
        requests.append(params)
        return Result()

    host = create_host(Server("one", extensions=[extension]))
    async with host, Client(host.as_server()) as client:
        with pytest.raises(RemoteError) as caught:
            await client.request("resources/directory/read", {"uri": "one+skill://forms"})
    assert (caught.value.code, requests) == (-32602, [])


async def test_what_the_policy_hides_does_not_exist() -> None:
    policy = Policy("allow", [rule("hide", kind="resource.read", tool="one.skill://forms*")])
    host = create_host(create_server("one"), create_server("two"), policy=policy)
    async with host, Client(host.as_server()) as client:
        assert [skill.uri for skill in await client.list_skills()] == ["two+skill://forms/SKILL.md"]
        with pytest.raises(NotFound):
            await client.get_skill(OUTER)
        with pytest.raises(RemoteError) as caught:
            await client.request("resources/directory/read", {"uri": "one+skill://forms"})
        assert caught.value.code == -32602


async def test_a_hidden_file_is_neither_listed_nor_read() -> None:
    policy = Policy("allow", [rule("hide", kind="resource.read", tool="skill://forms/refs*")])
    host = create_host(create_server("one"), policy=policy)
    async with host, Client(host.as_server()) as client:
        [skill] = await client.list_skills()
        assert [*skill.files] == ["SKILL.md"]
        result: Any = await client.request("resources/directory/read", {"uri": "one+skill://forms"})
        assert [child["uri"] for child in result["resources"]] == [OUTER]
        with pytest.raises(MCPError):
            await client.read_resource("one+skill://forms/refs/notes.md")


async def test_a_denied_file_is_listed_but_not_read() -> None:
    policy = Policy("allow", [rule("deny", kind="resource.read", tool="skill://forms/refs*")])
    host = create_host(create_server("one"), policy=policy)
    async with host, Client(host.as_server()) as client:
        [skill] = await client.list_skills()
        with pytest.raises(RemoteError):
            await skill.read("refs/notes.md")


async def test_a_file_that_changes_after_the_list_is_noticed_by_the_caller() -> None:
    files = {"SKILL.md": "# one\n"}
    host = create_host(create_server("one", files))
    async with host, Client(host.as_server()) as client:
        [skill] = await client.list_skills()
        files["SKILL.md"] = "# two\n"
        with pytest.raises(SkillMismatch):
            await skill.read()
        assert "# two" in str(await (await client.get_skill(OUTER)).read())


async def test_many_skills_are_listed_in_pages() -> None:
    app = Server("one")
    for number in range(120):
        app.add_skill(lambda: "# Text\n", name=f"skill-{number}", description="One of many.")
    host = create_host(app)
    async with host, Client(host.as_server()) as client:
        assert len(await client.list_skills()) == 120
        page: Any = await client.request("skills/list", {})
        assert len(page["skills"]) == 100


async def test_a_host_behind_a_gateway_loads_skills_with_consent() -> None:
    inner = create_host(create_server("one"))
    async with inner, Host(policy=Policy("allow")) as outer:
        outer.add("gate", inner.as_server())
        content = await outer.load_skill("gate", OUTER, "refs/notes.md")
    assert (content.server, content.content) == ("gate", "notes of one\n")
