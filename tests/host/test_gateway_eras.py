"""Test all four pairs of eras on the two sides of the gateway, for every feature."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dovetail import Client, Policy, RemoteError, ResourceLink, Server, ToolError, rule, testing
from dovetail.errors import NotFound
from dovetail.host.host import Host
from dovetail.host.qualified_names import make_model_name
from support.polling import TIMEOUT_S, wait_until
from support.upstream_server import UpstreamServer

OLDEST, OLD, NEW = "2024-11-05", "2025-11-25", "2026-07-28"
ERAS = [(above, below) for above in (OLD, NEW) for below in (OLD, NEW)]
IDS = [f"{above} before {below}" for above, below in ERAS]
LONG = "a.name/that is_much__too long for any model to take, and then some"


@pytest.fixture(params=ERAS, ids=IDS)
def eras(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


@asynccontextmanager
async def gateway(eras: tuple[str, str], *, policy: Policy | None = None, **options: Any) -> AsyncIterator[Any]:
    """A client of a gateway before two servers, each side speaking its own revision."""
    above, below = eras
    far, other = UpstreamServer(), UpstreamServer("other")
    async with Host(policy=policy or Policy("allow")) as host:
        host.add("far", far, protocol_version=below)
        host.add("other_one", other, protocol_version=below)
        app = host.as_server()
        async with Client(app, protocol_version=above, **options) as client:
            yield client, far, host
        await app.stop()


def bare(value: Any) -> Any:
    """A handshake server puts what is no object under `result`, and its schema says so: that is passed on."""
    return value["result"] if isinstance(value, dict) else value


async def test_tools(eras: tuple[str, str]) -> None:
    async with gateway(eras) as (client, _, host):
        tools = {tool.name: tool for tool in await client.list_tools()}
        assert set(tools) == {tool.model_name for tool in await host.list_tools()}
        assert [tool.name for tool in await client.list_tools()] == list(tools)
        assert tools["far__add"].description == "Add two numbers."
        assert tools["far__add"].annotations is not None
        assert bare(await client.call("far__add", a=1, b=2)) == 3
        assert bare(await client.call("other_one__add", a=1)) == 2
        (long,) = [tool.model_name for tool in await host.list_tools() if tool.full_name == f"far.{LONG}"]
        assert len(long) <= 64
        assert bare(await client.call(long)) == "long"


async def test_a_name_that_was_cut_is_known_before_anything_was_listed(eras: tuple[str, str]) -> None:
    async with gateway(eras) as (client, _, _):
        long = "greet in a way that is much too long for the name of anything at all, really"
        assert "long kind" in str(await client.get_prompt(make_model_name("far", long), {"kind": "kind"}))
    async with gateway(eras) as (client, _, _):
        assert bare(await client.call(make_model_name("far", LONG))) == "long"


async def test_refusals(eras: tuple[str, str]) -> None:
    async with gateway(eras) as (client, _, _):
        with pytest.raises(ToolError, match="not today"):
            await client.call("far__fail")
        for wrong in ("far__nothing", "nothing", "add", "far.add"):
            with pytest.raises(NotFound):
                await client.call(wrong)
        with pytest.raises(NotFound):
            await client.read("far+note:x")
        with pytest.raises(RemoteError):
            await client.read("note:1")


async def test_resources_and_links(eras: tuple[str, str]) -> None:
    async with gateway(eras) as (client, _, _):
        uris = [one.uri for one in await client.list_resources()]
        assert uris[0] == "far+note:all"
        assert len(set(uris)) == 2
        assert await client.read(uris[1]) == "all"
        templates = [one.uri_template for one in await client.list_resource_templates()]
        assert templates[0] == "far+note:{number}"
        result = await client.read_resource("far+note:7")
        assert (result.contents[0].uri, result.contents[0].text) == ("far+note:7", "note 7")
        (block,) = (await client.call_tool("far__point")).content
        assert isinstance(block, ResourceLink)
        assert await client.read(block.uri) == "note 1"


async def test_prompts_and_completion(eras: tuple[str, str]) -> None:
    async with gateway(eras) as (client, _, _):
        assert {"far__greet", "other_one__greet"} < {one.name for one in await client.list_prompts()}
        assert "be kind" in str(await client.get_prompt("far__greet", {"kind": "kind"}))
        assert (await client.complete("kind", "x", prompt="far__greet")).values == ["x!"]


async def test_progress_logs_and_meta(eras: tuple[str, str]) -> None:
    heard: list[Any] = []
    logs: list[Any] = []
    async with gateway(eras, log_handler=logs.append) as (client, _, _):
        result = await client.call_tool("far__work", progress_handler=lambda *told: heard.append(told))
        assert "done" in str(result.content)
        assert heard == [(1, 2, "half")]
        assert [one.data for one in logs] == ["on the way"]
        assert "ada" in str((await client.call_tool("far__who", meta={"com.example/who": "ada"})).content)


async def test_cancellation(eras: tuple[str, str]) -> None:
    begun = asyncio.Event()
    async with gateway(eras) as (client, far, _), asyncio.timeout(TIMEOUT_S):
        call = asyncio.create_task(client.call_tool("far__hang", progress_handler=lambda *_: begun.set()))
        await begun.wait()
        call.cancel()
        await far.stopped.wait()


async def test_elicitation(eras: tuple[str, str]) -> None:
    asked: list[str] = []

    def elicit(question: Any) -> Any:
        asked.append(question.message)
        return {"value": "Ada" if question.message == "Name?" else 36}

    async with gateway(eras, elicitation_handler=elicit) as (client, far, _):
        assert bare(await client.call("far__ask")) == "Ada 36"
        assert asked == ["Name?", "Age?"]
        assert far.calls == ["ask"]


async def test_sampling(eras: tuple[str, str]) -> None:
    async with gateway(eras, sampling_handler=lambda question: f"echo {question.messages[0].content.text}") as (
        client,
        _,
        _,
    ):
        assert bare(await client.call("far__think")) == "echo hello"


async def test_roots(eras: tuple[str, str]) -> None:
    async with gateway(eras, roots=["file:///srv/here"]) as (client, _, _):
        assert bare(await client.call("far__where")) == "file:///srv/here"


async def test_a_caller_who_cannot_be_asked(eras: tuple[str, str]) -> None:
    async with gateway(eras) as (client, _, _):
        for tool in ("far__ask", "far__think", "far__where"):
            with pytest.raises((RemoteError, ToolError)):
                await client.call(tool)
        assert bare(await client.call("far__add", a=1)) == 2


async def test_lists_that_change(eras: tuple[str, str]) -> None:
    async with gateway(eras) as (client, far, _), asyncio.timeout(TIMEOUT_S):
        await client.list_tools()
        async with client.listen() as changes:
            feed = aiter(changes)
            far.add_tool(lambda: 1, name="later")
            assert (await anext(feed)).kind == "tools"
        assert "far__later" in {tool.name for tool in await client.list_tools()}


async def test_a_server_that_joins_and_leaves(eras: tuple[str, str]) -> None:
    async with gateway(eras) as (client, _, host), asyncio.timeout(TIMEOUT_S):
        before = {tool.name for tool in await client.list_tools()}
        async with client.listen() as changes:
            feed = aiter(changes)
            late = Server("late")
            late.add_tool(lambda: "hello", name="hi")
            host.add("late", late, protocol_version=eras[1])
            assert (await anext(feed)).kind in ("tools", "resources", "prompts")
            assert {tool.name for tool in await client.list_tools()} == before | {"late__hi"}
            assert bare(await client.call("late__hi")) == "hello"
            await host.remove("late")
            with pytest.raises(RemoteError):
                await client.call("late__hi")


async def test_a_resource_that_changes(eras: tuple[str, str]) -> None:
    wanted: dict[str, Any] = {"tools": False, "prompts": False, "resources": False, "uris": ["far+note:1"]}
    async with gateway(eras) as (client, far, _), client.listen(**wanted) as changes:
        news = asyncio.ensure_future(anext(aiter(changes)))

        def told() -> bool:
            far.notify_resource_updated("note:1")  # what a handshake session wants is known far away a moment later
            return news.done()

        await wait_until(told)
        assert news.result().uri == "far+note:1"


def is_consent(message: str, server: str, tool: str) -> bool:
    """Whether the first line of a question names the tool that is to run."""
    return {server, tool} <= set(re.findall(r"\w+", message.splitlines()[0]))


async def test_consent_is_asked_of_the_callers_user(eras: tuple[str, str]) -> None:
    asked: list[str] = []
    answers = ["once", "no", "session"]

    def elicit(question: Any) -> Any:
        asked.append(question.message)
        return {"allow": answers.pop(0)}

    async with gateway(eras, policy=Policy("ask"), elicitation_handler=elicit) as (client, far, _):
        assert bare(await client.call("far__add", a=1)) == 2
        assert is_consent(asked[0], "far", "add")
        with pytest.raises(ToolError, match=r"far\.add"):
            await client.call("far__add", a=1)
        assert bare(await client.call("far__add", a=2)) == 3
        assert bare(await client.call("far__add", a=3)) == 4
        assert len(asked) == 3
        assert far.calls == ["add"] * 3


async def test_consent_and_then_questions_of_the_server_itself(eras: tuple[str, str]) -> None:
    asked: list[str] = []

    def elicit(question: Any) -> Any:
        asked.append(question.message.splitlines()[0])
        return (
            {"allow": "once"}
            if "allow" in str(question.requested_schema)
            else {"value": 36 if "Age" in asked[-1] else "Ada"}
        )

    async with gateway(eras, policy=Policy("ask"), elicitation_handler=elicit) as (client, far, _):
        assert bare(await client.call("far__ask")) == "Ada 36"
        assert is_consent(asked[0], "far", "ask")
        assert asked[1:] == ["Name?", "Age?"]
        assert far.calls == ["ask"]


async def test_without_a_way_to_ask_the_answer_is_no(eras: tuple[str, str]) -> None:
    async with gateway(eras, policy=Policy("ask")) as (client, far, _):
        with pytest.raises(ToolError, match="elicitation"):
            await client.call("far__add", a=1)
        with pytest.raises(RemoteError, match=r"resource\.read"):
            await client.read("far+note:1")
        assert far.calls == []


async def test_what_the_policy_hides_and_denies(eras: tuple[str, str]) -> None:
    policy = Policy(
        "allow",
        [rule("hide", tool="far.add"), rule("deny", tool="*.fail", reason="no"), rule("hide", server="other_*")],
    )
    async with gateway(eras, policy=policy) as (client, _, _):
        names = {tool.name for tool in await client.list_tools()}
        assert "far__add" not in names
        assert not [name for name in names if name.startswith("other_one")]
        for hidden in ("far__add", "other_one__add"):
            with pytest.raises(NotFound):
                await client.call(hidden, a=1)
        with pytest.raises(ToolError, match=r"\*\.fail"):
            await client.call("far__fail")


async def test_search_mode(eras: tuple[str, str]) -> None:
    above, below = eras
    asked: list[str] = []

    def elicit(question: Any) -> Any:
        asked.append(question.message.splitlines()[0])
        return (
            {"allow": "once"}
            if "allow" in str(question.requested_schema)
            else {"value": 36 if "Age" in asked[-1] else "Ada"}
        )

    far = UpstreamServer()
    async with Host(policy=Policy("ask")) as host:
        host.add("far", far, protocol_version=below)
        app = host.as_server("search")
        async with Client(app, protocol_version=above, elicitation_handler=elicit) as client:
            assert [tool.name for tool in await client.list_tools()] == ["search_tools", "describe_tool", "call_tool"]
            found = await client.call_tool("search_tools", {"query": "add numbers"})
            assert "far__add" in str(found.content)
            assert "Add two numbers" in str((await client.call_tool("describe_tool", {"name": "far__add"})).content)
            called = await client.call_tool("call_tool", {"name": "far__ask", "arguments": {}})
            assert "Ada 36" in str(called.content)
            assert is_consent(asked[0], "far", "ask")
            assert asked[1:] == ["Name?", "Age?"]
        await app.stop()


@pytest.mark.parametrize("below", [OLD, NEW])
@pytest.mark.parametrize("above", [OLDEST, "2025-03-26", "2025-06-18"])
async def test_older_callers_over_http(above: str, below: str) -> None:
    far = UpstreamServer()
    async with testing.serve(far, transport="http") as url, Host(policy=Policy("allow")) as host:
        host.add("far", url, protocol_version=below)
        app = host.as_server()
        async with testing.connect(app, transport="http", protocol_version=above, roots=["file:///here"]) as client:
            assert "3" in str((await client.call_tool("far__add", {"a": 2})).content)
            assert "file:///here" in str((await client.call_tool("far__where")).content)
            assert await client.read("far+note:1") == "note 1"
        await app.stop()
