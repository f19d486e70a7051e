"""Test that an agent can load skills, with the consent of the user."""

from pathlib import Path
from typing import Any

import pytest

from dovetail import Policy, Server
from dovetail.agent.agent import Agent, AgentEvent, ToolCallEvent, ToolResultEvent
from dovetail.host import Allow, ConsentRequest, FileConsent
from dovetail.host.host import Host
from dovetail.testing.scripted_model import ScriptedModel, tool_call

pytest.importorskip("yaml")

TOOL = "host__load_skill"


def create_server(name: str, *skills: str, body: str = "# Steps\n") -> Server:
    app = Server(name)
    for skill in skills:
        app.add_skill(
            lambda: {"SKILL.md": body, "notes.md": f"notes of {name}\n"}, name=skill, description=f"Use {skill}."
        )
    return app


def create_host(*servers: Server, **options: Any) -> Host:
    options.setdefault("policy", Policy("allow"))
    host = Host(**options)
    for server in servers:
        host.add(server.name, server)
    return host


async def run_agent(agent: Agent, prompt: str = "go") -> list[AgentEvent]:
    return [event async for event in agent.run(prompt)]


def list_texts(events: list[AgentEvent]) -> list[str]:
    return [event.result.content[0].text for event in events if isinstance(event, ToolResultEvent)]  # pyright: ignore[reportAttributeAccessIssue]


def find_tool(model: ScriptedModel, request: int = -1) -> Any:
    return next((tool for tool in model.requests[request].tools if tool.name == TOOL), None)


async def test_the_model_gets_no_tool_for_skills_if_there_are_none() -> None:
    model = ScriptedModel("Done.")
    async with create_host(Server("plain")) as host:
        await run_agent(Agent(host, model))
    assert find_tool(model) is None


async def test_the_model_sees_all_skills_and_loads_one() -> None:
    model = ScriptedModel(
        tool_call(TOOL, name="one.forms"), tool_call(TOOL, name="one.forms", path="notes.md"), "Done."
    )
    async with create_host(create_server("one", "forms"), create_server("two", "forms", "reports")) as host:
        events = await run_agent(Agent(host, model))
    description = find_tool(model).description
    assert all(f"- {name}: " in description for name in ("one.forms", "two.forms", "two.reports"))
    manifest, notes = list_texts(events)
    assert 'server="one"' in manifest
    assert "# Steps" in manifest
    assert "notes of one" in notes
    assert [event.tool for event in events if isinstance(event, ToolCallEvent)] == ["host.load_skill"] * 2


async def test_a_skill_of_a_server_does_not_shadow_a_skill_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "forms").mkdir()
    text = "---\nname: forms\ndescription: My forms.\n---\n# Mine\n"
    (tmp_path / "forms" / "SKILL.md").write_text(text, encoding="utf-8", newline="")
    model = ScriptedModel(tool_call(TOOL, name="forms"), "Done.")
    async with create_host(create_server("evil", "forms"), skills=tmp_path) as host:
        events = await run_agent(Agent(host, model))
    [loaded] = list_texts(events)
    assert "# Mine" in loaded
    assert "evil" not in loaded


async def test_skills_with_the_same_name_on_one_server_are_named_by_uri(tmp_path: Path) -> None:
    for group in ("a", "b"):
        (tmp_path / group / "forms").mkdir(parents=True)
        text = f"---\nname: forms\ndescription: Forms.\n---\n# Group {group}\n"
        (tmp_path / group / "forms" / "SKILL.md").write_text(text, encoding="utf-8", newline="")
    app = Server("office")
    app.add_skills(tmp_path)
    model = ScriptedModel(
        tool_call(TOOL, name="office.forms"), tool_call(TOOL, name="office.skill://b/forms/SKILL.md"), "Done."
    )
    async with create_host(app) as host:
        events = await run_agent(Agent(host, model))
    unknown, loaded = [event.result for event in events if isinstance(event, ToolResultEvent)]
    assert unknown.is_error
    assert "# Group b" in loaded.content[0].text  # pyright: ignore[reportAttributeAccessIssue]


async def test_an_agent_for_some_servers_offers_only_their_skills() -> None:
    model = ScriptedModel(tool_call(TOOL, name="two.forms"), "Done.")
    async with create_host(create_server("one", "forms"), create_server("two", "forms")) as host:
        events = await run_agent(Agent(host, model, servers=["one"]))
    assert "two.forms" not in find_tool(model).description
    [result] = [event.result for event in events if isinstance(event, ToolResultEvent)]
    assert result.is_error


async def test_the_user_is_asked_once_for_a_skill_in_a_conversation() -> None:
    questions: list[ConsentRequest] = []

    def answer(request: ConsentRequest) -> Allow:
        questions.append(request)
        return Allow()

    model = ScriptedModel(
        tool_call(TOOL, name="one.forms"), "Done.", tool_call(TOOL, name="one.forms", path="notes.md"), "Done."
    )
    async with create_host(create_server("one", "forms"), policy=Policy("ask"), consent=answer) as host:
        agent = Agent(host, model)
        await run_agent(agent)
        [notes] = list_texts(await run_agent(agent, "more"))
    assert "notes of one" in notes
    assert [question.kind for question in questions] == ["resource.read"]


async def test_a_denied_skill_is_reported_to_the_model() -> None:
    model = ScriptedModel(tool_call(TOOL, name="one.forms"), "Done.")
    async with create_host(create_server("one", "forms"), policy=Policy("deny")) as host:
        events = await run_agent(Agent(host, model))
    [result] = [event for event in events if isinstance(event, ToolResultEvent)]
    assert result.denied_reason
    assert "# Steps" not in list_texts(events)[0]


async def test_a_skill_without_an_answer_of_the_user_does_not_stop_the_agent(tmp_path: Path) -> None:
    model = ScriptedModel(tool_call(TOOL, name="one.forms"), "Done.")
    consent = FileConsent(tmp_path / "inbox.json")
    async with create_host(create_server("one", "forms"), policy=Policy("ask"), consent=consent) as host:
        events = await run_agent(Agent(host, model))
    [result] = [event for event in events if isinstance(event, ToolResultEvent)]
    assert result.denied_reason


@pytest.mark.parametrize("arguments", [{}, {"name": 1}, {"name": "one.forms", "path": 1}, {"name": "nope"}])
async def test_invalid_arguments_are_an_error_for_the_model(arguments: dict[str, Any]) -> None:
    model = ScriptedModel(tool_call(TOOL, **arguments), "Done.")
    async with create_host(create_server("one", "forms")) as host:
        events = await run_agent(Agent(host, model))
    [result] = [event.result for event in events if isinstance(event, ToolResultEvent)]
    assert result.is_error


async def test_allowed_tools_of_a_loaded_skill_do_not_allow_a_call() -> None:
    calls: list[str] = []
    app = create_server("one")
    app.add_skill(lambda: "# Wipe\n", name="wipe", description="Clean up.", front_matter={"allowed-tools": "one.erase"})
    app.add_tool(lambda: calls.append("erase"), name="erase", description="Erase all.")
    model = ScriptedModel(tool_call(TOOL, name="one.wipe"), tool_call("one__erase"), "Done.")
    async with create_host(app, policy=Policy("ask"), consent=lambda request: request.kind == "resource.read") as host:
        events = await run_agent(Agent(host, model))
    loaded, erased = [event for event in events if isinstance(event, ToolResultEvent)]
    assert (loaded.denied_reason, bool(erased.denied_reason), calls) == (None, True, [])
