"""Test that a skill gets the tools it asks for only if the user allows them, and never more than that."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail import Policy, Server, rule
from dovetail.agent.agent import Agent, ToolResultEvent
from dovetail.host import (
    Allow,
    AllowWithChanges,
    ConsentRequest,
    Deny,
    FileConsent,
    GrantStore,
    PinStore,
    argument,
    read_audit_log,
)
from dovetail.host.host import Host
from dovetail.host.skill_permissions import parse_allowed_tools
from dovetail.recording.recording_format import Event
from dovetail.testing.scripted_model import ScriptedModel, tool_call

pytest.importorskip("yaml")

URI = "skill://clean/SKILL.md"
ASK_TOOLS = Policy("allow", [rule("ask", kind="tool.call")])
LOAD = tool_call("host__load_skill", name="docs.clean")
WIPE = tool_call("docs__wipe", path="a")


class User:
    """A user who answers by kind of question. Each other question is denied."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {kind.replace("_", "."): answer for kind, answer in answers.items()}
        self.requests: list[ConsentRequest] = []

    def __call__(self, request: ConsentRequest) -> Any:
        self.requests.append(request)
        return self.answers.get(request.kind, False)

    @property
    def kinds(self) -> list[str]:
        return [request.kind for request in self.requests]


class CleanServer:
    """A server with tools, and a skill that asks for them."""

    def __init__(self, allowed_tools: Any = "wipe", name: str = "docs", **options: Any) -> None:
        self.calls: list[str] = []
        self.files = {"SKILL.md": "# Clean\n", "inner/SKILL.md": "---\nallowed-tools: drop\n---\n"}
        self.app = Server(name)
        self.add_tool("wipe")
        self.add_tool("drop")
        front_matter = {"allowed-tools": allowed_tools} if allowed_tools is not None else {}
        options.setdefault("front_matter", front_matter)
        self.app.add_skill(lambda: dict(self.files), name="clean", description="Clean up.", **options)

    def add_tool(self, name: str, description: str = "Remove a file.") -> None:
        def run(path: str = "") -> str:
            self.calls.append(name)
            return "done"

        self.app.add_tool(run, name=name, description=description)


def create_host(*servers: CleanServer, consent: Any, policy: Policy = ASK_TOOLS, **options: Any) -> Host:
    host = Host(policy=policy, consent=consent, **options)
    for server in servers:
        host.add(server.app.name, server.app)
    return host


async def wait_for_tool(host: Host, description: str) -> None:
    async with asyncio.timeout(30):
        while description not in str(await host.list_tools()):
            await host.restart("docs")


async def run(host: Host, *replies: Any) -> list[str | None]:
    """Run an agent, and return why each of its calls was denied, or None."""
    return await run_again(Agent(host, ScriptedModel(*replies, "Done.")))


async def run_again(agent: Agent) -> list[str | None]:
    return [event.denied_reason async for event in agent.run("go") if isinstance(event, ToolResultEvent)]


async def test_the_user_allows_the_tools_of_a_skill_once_for_a_run() -> None:
    server, user = CleanServer(), User(skill_tools=Allow())
    async with create_host(server, consent=user) as host:
        assert await run(host, LOAD, WIPE, LOAD, WIPE) == [None] * 4
    assert (user.kinds, server.calls) == (["skill.tools"], ["wipe", "wipe"])
    [request] = user.requests
    assert (request.server, request.tool) == ("docs", URI)
    assert request.details == {"skill": "clean", "description": "Clean up.", "tools of docs": ["wipe"]}
    assert "wipe" in request.text


async def test_a_permission_for_once_ends_with_the_run() -> None:
    server, user = CleanServer(), User(skill_tools=Allow())
    async with create_host(server, consent=user) as host:
        agent = Agent(host, ScriptedModel(LOAD, WIPE, "Done.", WIPE, "Done."))
        assert await run_again(agent) == [None, None]
        assert (await run_again(agent))[0] is not None
    assert (user.kinds, server.calls) == (["skill.tools", "tool.call"], ["wipe"])


async def test_a_grant_also_applies_to_the_next_prompts_of_the_conversation() -> None:
    server, user = CleanServer(), User(skill_tools=Allow("session"))
    async with create_host(server, consent=user) as host:
        agent = Agent(host, ScriptedModel(LOAD, WIPE, "Done.", WIPE, "Done."))
        assert await run_again(agent) == [None, None]
        assert await run_again(agent) == [None]
    assert (user.kinds, server.calls) == (["skill.tools"], ["wipe", "wipe"])


@pytest.mark.parametrize("change", ["skill", "grant", "tool"])
async def test_a_change_between_two_prompts_ends_the_permission(change: str) -> None:
    server, user, grants = CleanServer(), User(skill_tools=Allow("session")), GrantStore()
    async with create_host(server, consent=user, grants=grants) as host:
        agent = Agent(host, ScriptedModel(LOAD, WIPE, "Done.", WIPE, "Done."))
        assert await run_again(agent) == [None, None]
        match change:
            case "skill":
                server.files["extra.md"] = "x"
            case "grant":
                grants.revoke(server="docs", tool=URI)
            case _:
                server.app.remove_tool("wipe")
                server.add_tool("wipe", "Remove a file, and all others.")
                await wait_for_tool(host, "others")
                user.answers["definition.changed"] = True
        assert (await run_again(agent))[0] is not None
    assert server.calls == ["wipe"]


async def test_a_no_to_more_tools_ends_the_earlier_permission() -> None:
    server, user = CleanServer("wipe mail.wipe"), User(skill_tools=Allow("session"))
    async with create_host(server, consent=user) as host:
        agent = Agent(host, ScriptedModel(LOAD, WIPE, "Done.", LOAD, WIPE, "Done."))
        assert await run_again(agent) == [None, None]
        host.add("mail", CleanServer(name="mail").app)
        user.answers = {}
        assert (await run_again(agent))[1] is not None
    assert (user.kinds, server.calls) == (["skill.tools", "skill.tools", "tool.call"], ["wipe"])


async def test_a_call_before_the_skill_is_loaded_needs_a_question() -> None:
    server, user = CleanServer(), User(skill_tools=Allow("always"))
    async with create_host(server, consent=user) as host:
        assert [reason is None for reason in await run(host, WIPE, LOAD, WIPE)] == [False, True, True]
    assert user.kinds == ["tool.call", "skill.tools"]


async def test_a_lasting_answer_applies_to_later_runs_and_to_no_other_use_of_the_tool(tmp_path: Path) -> None:
    user = User(skill_tools=Allow("always"))
    for _ in range(2):
        server = CleanServer()
        async with create_host(server, consent=user, state_dir=tmp_path) as host:
            assert await run(host, LOAD, WIPE) == [None, None]
    assert user.kinds == ["skill.tools"]
    async with create_host(CleanServer(), consent=user, state_dir=tmp_path) as host:
        assert (await run(host, WIPE))[0] is not None  # This agent has not loaded the skill.
    [grant] = GrantStore(tmp_path / "grants.json").list()
    assert (grant.kind, grant.server, grant.tool, grant.scope) == ("skill.tools", "docs", URI, "always")


@pytest.mark.parametrize("answer", [False, Deny("no"), AllowWithChanges({"tools": ["drop"]})])
async def test_without_permission_each_call_is_asked_about(answer: Any) -> None:
    server, user = CleanServer(), User(skill_tools=answer, tool_call=True)
    async with create_host(server, consent=user) as host:
        assert await run(host, LOAD, WIPE, LOAD, WIPE) == [None] * 4
    assert user.kinds == ["skill.tools", "tool.call", "tool.call"]  # The user is not asked again for the tools.


async def test_a_deny_rule_wins() -> None:
    server, user = CleanServer("wipe drop"), User(skill_tools=Allow("always"))
    rules = [
        rule("ask", kind="tool.call"),
        rule("deny", tool="docs.drop"),
        rule("deny", tool="wipe", when=argument("/path").equals("a")),
    ]
    async with create_host(server, consent=user, policy=Policy("allow", rules)) as host:
        other = tool_call("docs__wipe", path="b")
        denied = await run(host, LOAD, other, WIPE, tool_call("docs__drop"))
    assert [reason is None for reason in denied] == [True, True, False, False]
    assert user.requests[0].details["tools of docs"] == ["wipe"]
    assert (user.kinds, server.calls) == (["skill.tools"], ["wipe"])


@pytest.mark.parametrize(
    "deny", [rule("deny", kind="skill.tools"), rule("deny", kind="skill.*", tool="skill://clean/*")]
)
async def test_a_rule_can_deny_the_question(deny: Any) -> None:
    server, user = CleanServer(), User(skill_tools=Allow("always"))
    policy = Policy("allow", [rule("ask", kind="tool.call"), deny])
    async with create_host(server, consent=user, policy=policy) as host:
        assert (await run(host, LOAD, WIPE))[1] is not None
    assert user.kinds == ["tool.call"]


@pytest.mark.parametrize(
    "allow", [rule("allow", kind="skill.tools"), rule("allow", server="docs"), rule("allow", kind="*")]
)
async def test_a_rule_cannot_answer_for_the_user(allow: Any) -> None:
    server, user = CleanServer(), User()
    async with create_host(server, consent=user, policy=Policy("allow", [rule("ask", tool="wipe"), allow])) as host:
        assert (await run(host, LOAD, WIPE))[1] is not None
    assert (user.kinds, server.calls) == (["skill.tools", "tool.call"], [])


@pytest.mark.parametrize("non_interactive", ["allow", "deny"])
async def test_without_a_user_there_is_no_permission(non_interactive: Any) -> None:
    server = CleanServer()
    policy = Policy("allow", [rule("ask", kind="tool.call")], non_interactive=non_interactive)
    async with create_host(server, consent=None, policy=policy) as host:
        denied = await run(host, LOAD, WIPE)
    assert (denied[1] is None) == (non_interactive == "allow")  # The policy decides about the call, as always.


async def test_tools_that_need_no_question_are_not_asked_about() -> None:
    server, user = CleanServer("wipe drop"), User(skill_tools=Allow())
    policy = Policy("allow", [rule("ask", tool="drop", kind="tool.call")])
    async with create_host(server, consent=user, policy=policy) as host:
        await run(host, LOAD, WIPE)
    assert [request.details["tools of docs"] for request in user.requests] == [["drop"]]
    async with create_host(CleanServer(), consent=user, policy=Policy("allow")) as host:
        await run(host, LOAD, WIPE)
    assert len(user.requests) == 1


@pytest.mark.parametrize(
    "allowed_tools",
    [None, "", "*", "w*", "docs.*", "WIPE", "wipe(path:*)", "docs__wipe", "/wipe", ["w?pe"], {"wipe": True}, 5, True,
     [["wipe"]], "drop", " ".join(f"t{number}" for number in range(60)) + " wipe"],
)  # fmt: skip
async def test_only_exact_names_count(allowed_tools: Any) -> None:
    server, user = CleanServer(allowed_tools), User(skill_tools=Allow("always"))
    async with create_host(server, consent=user) as host:
        assert (await run(host, LOAD, WIPE))[1] is not None
    assert server.calls == []


async def test_a_question_that_cannot_show_all_tools_is_not_asked() -> None:
    names = [f"{number}{'x' * 1000}" for number in range(42)]
    server, user = CleanServer(" ".join([*names[:21], "wipe", *names[21:]])), User(skill_tools=Allow())
    for name in names:
        server.add_tool(name)
    async with create_host(server, consent=user) as host:
        assert (await run(host, LOAD, WIPE))[1] is not None
    assert (user.kinds, server.calls) == (["tool.call"], [])


@pytest.mark.parametrize(
    ("value", "names"),
    [("a b", ["a", "b"]), ("a, b,c", ["a", "b", "c"]), (["a b", "c"], ["a", "b", "c"]), ("a a", ["a"]), (None, [])],
)
def test_the_field_is_a_text_or_a_list(value: Any, names: list[str]) -> None:
    assert parse_allowed_tools(value) == names


async def test_a_name_without_a_server_means_the_server_of_the_skill() -> None:
    server, mail, user = CleanServer("send wipe"), CleanServer(name="mail"), User(skill_tools=Allow("always"))
    mail.add_tool("send")
    async with create_host(server, mail, consent=user) as host:
        denied = await run(host, LOAD, tool_call("mail__send"), tool_call("mail__wipe"), WIPE)
    assert [reason is None for reason in denied] == [True, False, False, True]
    assert user.requests[0].details["tools of docs"] == ["wipe"]
    assert mail.calls == []


async def test_a_tool_of_another_server_must_be_qualified_and_is_shown_as_such() -> None:
    server, mail, user = CleanServer("wipe mail.wipe"), CleanServer(name="mail"), User(skill_tools=Allow())
    async with create_host(server, mail, consent=user) as host:
        assert await run(host, LOAD, tool_call("mail__wipe"), WIPE) == [None, None, None]
    details = user.requests[0].details
    assert (details["tools of docs"], details["tools of other servers"]) == (["wipe"], ["mail.wipe"])
    assert (mail.calls, user.kinds) == (["wipe"], ["skill.tools"])


async def test_behind_a_gateway_only_the_names_of_the_gateway_count() -> None:
    server, mail, user = CleanServer("wipe mail.wipe mail__drop"), CleanServer(name="mail", allowed_tools=None), User()
    user.answers = {"skill.tools": Allow()}
    async with create_host(server, mail, consent=None, policy=Policy("allow")) as inner:
        gateway = inner.as_server()
        async with Host(policy=ASK_TOOLS, consent=user) as host:
            host.add("gw", gateway)
            names = {entry.name: entry.model_name for entry in (await host.catalog()).tools}
            load = tool_call("host__load_skill", name="gw.docs+skill://clean/SKILL.md")
            calls = [tool_call(names[name]) for name in ("mail__drop", "docs__wipe", "mail__wipe")]
            denied = await run(host, load, *calls)
        await gateway.stop()
    assert [reason is None for reason in denied] == [True, True, False, False]
    assert user.requests[0].details["tools of gw"] == ["mail__drop"]
    assert (mail.calls, server.calls) == (["drop"], [])


async def test_a_server_that_is_added_later_needs_a_new_question(tmp_path: Path) -> None:
    user = User(skill_tools=Allow("always"))
    async with create_host(CleanServer("wipe mail.wipe"), consent=user, state_dir=tmp_path) as host:
        await run(host, LOAD)
        host.add("mail", CleanServer(name="mail").app)
        user.answers = {}
        assert (await run(host, LOAD, tool_call("mail__wipe")))[1] is not None
    assert user.kinds == ["skill.tools", "skill.tools", "tool.call"]


async def test_a_tool_name_with_a_dot_does_not_reach_another_server() -> None:
    server, mail, user = CleanServer("mail.wipe"), CleanServer(name="mail"), User(skill_tools=Allow())
    server.add_tool("mail.wipe")
    async with create_host(server, mail, consent=user) as host:
        denied = await run(host, LOAD, tool_call("mail__wipe"))
    assert denied[1] is not None
    assert user.requests[0].details["tools of docs"] == ["mail.wipe"]
    assert mail.calls == []


@pytest.mark.parametrize(
    "change",
    [
        lambda files: files.update({"SKILL.md": "# Clean\n\nWipe everything.\n"}),
        lambda files: files.update({"extra.md": "x"}),
        lambda files: files.pop("inner/SKILL.md"),
    ],
)
async def test_a_changed_skill_loses_the_permission(change: Callable[[dict[str, str]], object], tmp_path: Path) -> None:
    server, user = CleanServer(), User(skill_tools=Allow("always"))
    async with create_host(server, consent=user, state_dir=tmp_path) as host:
        assert await run(host, LOAD, WIPE) == [None, None]
        change(server.files)
        user.answers = {"definition.changed": True}
        assert (await run(host, LOAD, WIPE))[1] is not None
    assert user.kinds == ["skill.tools", "definition.changed", "skill.tools", "tool.call"]
    assert (server.calls, GrantStore(tmp_path / "grants.json").list()) == (["wipe"], [])


@pytest.mark.parametrize("allowed_tools", ["wipe", "wipe drop"])
async def test_another_version_of_a_skill_has_no_permission_even_without_a_pin(
    allowed_tools: str, tmp_path: Path
) -> None:
    user = User(skill_tools=Allow("always"))
    async with create_host(CleanServer(), consent=user, state_dir=tmp_path) as host:
        await run(host, LOAD)
    user.answers = {}
    server = CleanServer(allowed_tools)
    server.files["extra.md"] = "x"
    async with create_host(server, consent=user, state_dir=tmp_path, pins=PinStore()) as host:
        denied = await run(host, LOAD, WIPE, tool_call("docs__drop"))
    assert [reason is None for reason in denied] == [True, False, False]
    assert user.kinds == ["skill.tools", "skill.tools", "tool.call", "tool.call"]


async def test_a_skill_that_changes_during_a_run_loses_the_permission() -> None:
    server, user = CleanServer(), User(skill_tools=Allow())

    class Model(ScriptedModel):
        async def create_message(self, *args: Any, **options: Any) -> Any:
            if len(self.requests) == 2:
                server.files["inner/SKILL.md"] = "changed"
            return await super().create_message(*args, **options)

    inner = tool_call("host__load_skill", name="docs.clean", path="inner/SKILL.md")
    async with create_host(server, consent=user) as host:
        denied = await run_again(Agent(host, Model(LOAD, WIPE, inner, WIPE, "Done.")))
    assert (denied[1], denied[3] is None) == (None, False)
    assert (server.calls, user.kinds) == (["wipe"], ["skill.tools", "tool.call"])


async def test_a_tool_with_another_definition_needs_a_question() -> None:
    server, user = CleanServer(), User(skill_tools=Allow("always"))
    async with create_host(server, consent=user) as host:
        await run(host, LOAD)
        server.app.remove_tool("wipe")
        server.add_tool("wipe", "Remove a file, and all others.")
        await wait_for_tool(host, "others")
        user.answers = {"definition.changed": True}
        assert (await run(host, LOAD, WIPE))[1] is not None
    assert (user.kinds, server.calls) == (["skill.tools", "skill.tools", "tool.call"], [])


async def test_a_tool_that_changes_during_a_run_needs_a_question() -> None:
    server, user = CleanServer(), User(skill_tools=Allow())

    class Model(ScriptedModel):
        async def create_message(self, *args: Any, **options: Any) -> Any:
            if len(self.requests) == 1:
                server.app.remove_tool("wipe")
                server.add_tool("wipe", "Remove a file, and all others.")
                await wait_for_tool(host, "others")
            return await super().create_message(*args, **options)

    async with create_host(server, consent=user) as host:
        assert (await run_again(Agent(host, Model(LOAD, WIPE, "Done."))))[1] is not None
    assert (user.kinds, server.calls) == (["skill.tools", "tool.call"], [])


async def test_a_changed_tool_is_shown_although_the_skill_has_a_permission() -> None:
    server, user = CleanServer(), User(skill_tools=Allow(), tool_call=True)
    async with create_host(server, consent=user) as host:
        await run(host, WIPE)  # The definition is pinned.
        server.app.remove_tool("wipe")
        server.add_tool("wipe", "Remove a file, and all others.")
        await wait_for_tool(host, "others")
        assert (await run(host, LOAD, WIPE))[1] is not None
    assert user.kinds == ["tool.call", "skill.tools", "definition.changed"]


async def test_a_grant_that_the_user_revokes_ends_at_once() -> None:
    server, grants = CleanServer(), GrantStore()
    user = User(skill_tools=Allow("session"))

    class Model(ScriptedModel):
        async def create_message(self, *args: Any, **options: Any) -> Any:
            if len(self.requests) == 2:
                assert grants.revoke(server="docs", tool=URI) == 1
            return await super().create_message(*args, **options)

    async with create_host(server, consent=user, grants=grants) as host:
        denied = await run_again(Agent(host, Model(LOAD, WIPE, WIPE, "Done.")))
    assert (denied[1], denied[2] is None) == (None, False)


async def test_the_same_skill_on_another_server_has_no_permission() -> None:
    server, other, user = CleanServer(), CleanServer(name="evil"), User(skill_tools=Allow("always"))
    async with create_host(server, other, consent=user) as host:
        await run(host, LOAD)
        user.answers = {}
        load = tool_call("host__load_skill", name="evil.clean")
        denied = await run(host, load, tool_call("evil__wipe"), WIPE)
    assert [reason is None for reason in denied] == [True, False, False]


async def test_a_dynamic_skill_gets_no_tools() -> None:
    server, user = CleanServer(dynamic=True), User(skill_tools=Allow("always"))
    async with create_host(server, consent=user) as host:
        assert (await run(host, LOAD, WIPE))[1] is not None
    assert user.kinds == ["tool.call"]


async def test_a_skill_of_the_user_gets_no_tools(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    text = "---\nname: mine\ndescription: Mine.\nallowed-tools: docs.wipe\n---\n# Mine\n"
    (tmp_path / "mine" / "SKILL.md").write_text(text, encoding="utf-8", newline="")
    server, user = CleanServer(), User(skill_tools=Allow("always"))
    async with create_host(server, consent=user, skills=tmp_path) as host:
        assert (await run(host, tool_call("host__load_skill", name="mine"), WIPE))[1] is not None
    assert user.kinds == ["tool.call"]


async def test_a_nested_skill_file_asks_for_nothing() -> None:
    server, user = CleanServer(), User(skill_tools=Allow("always"))
    inner = tool_call("host__load_skill", name="docs.clean", path="inner/SKILL.md")
    async with create_host(server, consent=user) as host:
        denied = await run(host, inner, WIPE, tool_call("docs__drop"))
    assert [reason is None for reason in denied] == [True, False, False]
    assert user.kinds == ["tool.call", "tool.call"]


async def test_a_refused_skill_asks_for_nothing() -> None:
    server, user = CleanServer(), User(skill_tools=Allow("always"))
    async with create_host(server, consent=user, policy=Policy("ask")) as host:
        denied = await run(host, LOAD, WIPE)
    assert [reason is None for reason in denied] == [False, False]
    assert user.kinds == ["resource.read", "tool.call"]


async def test_an_agent_for_some_servers_asks_for_their_tools_only() -> None:
    server, mail, user = CleanServer("wipe mail.wipe"), CleanServer(name="mail"), User(skill_tools=Allow())
    async with create_host(server, mail, consent=user) as host:
        await run_again(Agent(host, ScriptedModel(LOAD, "Done."), servers=["docs"]))
    assert "tools of other servers" not in user.requests[0].details


async def test_answers_that_come_later_are_not_requested(tmp_path: Path) -> None:
    server = CleanServer()
    async with create_host(server, consent=FileConsent(tmp_path / "inbox.db")) as host:
        assert await run(host, LOAD, WIPE) == [None]  # The call waits for an answer.
        assert [pending.request.kind async for pending in host.list_pending()] == ["tool.call"]
    assert server.calls == []


async def test_the_audit_log_names_the_skill(tmp_path: Path) -> None:
    server, user = CleanServer(), User(skill_tools=Allow())
    async with create_host(server, consent=user, state_dir=tmp_path) as host:
        await run(host, LOAD, WIPE)
    decisions = [
        part.data
        for part in read_audit_log(tmp_path / "audit.jsonl")
        if isinstance(part, Event) and part.data.get("tool") == "wipe" and part.data.get("action") == "allow"
    ]
    assert any(URI in str(decision.get("reason")) for decision in decisions)
