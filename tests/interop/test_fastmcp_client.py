"""Test our server with the fastmcp client: every feature, over stdio and HTTP, in both eras."""

import asyncio
import base64
import json
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

pytest.importorskip("fastmcp", reason="fastmcp is not installed")

import mcp_types as types
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.messages import MessageHandler
from fastmcp.client.transports import SSETransport, StdioTransport, StreamableHttpTransport
from fastmcp.exceptions import ToolError
from fastmcp.server import create_proxy
from mcp import MCPError
from mcp.client.subscriptions import ResourceUpdated, ToolsListChanged, listen

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(60),
    # The peer warns of whatever the newest revision has deprecated.
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]

NEWEST = {"auto": "2026-07-28", "legacy": "2025-11-25"}
Connect = Callable[..., Client[Any]]


@pytest.fixture(params=["auto", "legacy"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["stdio", "http"])
def connect(request: pytest.FixtureRequest, mode: str, stdio_command: list[str]) -> Connect:
    """A client for the server, not yet connected; options are the client's own."""
    if request.param == "http":
        url = request.getfixturevalue("http_url")
        return lambda **options: Client(StreamableHttpTransport(url), mode=mode, **options)
    command, *arguments = stdio_command
    return lambda **options: Client(StdioTransport(command, arguments, keep_alive=False), mode=mode, **options)


async def test_opening(connect: Connect, mode: str) -> None:
    async with connect() as client:
        assert client.protocol_version == NEWEST[mode]
        assert client.server_info is not None
        assert (client.server_info.name, client.instructions) == ("everything", "Try anything.")
        if mode == "legacy":
            assert await client.ping()


async def test_lists_across_pages(connect: Connect) -> None:
    async with connect() as client:
        tools = [tool.name for tool in await client.list_tools()]
        assert len(tools) == len(set(tools)) > 20
        assert {"greet", "touch"} <= set(tools)
        assert "note://welcome" in {str(one.uri) for one in await client.list_resources()}
        assert [one.uri_template for one in await client.list_resource_templates()] == [
            "city://{name}/profile",
            "vault://{box}",
        ]
        assert {"hello", "packing_list", "grüße"} <= {one.name for one in await client.list_prompts()}


async def test_values(connect: Connect) -> None:
    """`data` is what the client makes of the structured content with the help of our output schema."""
    async with connect() as client:
        assert (await client.call_tool("greet", {"name": "Ada"})).content[0].text == "Hello, Ada!"
        weather = (await client.call_tool("forecast", {"city": "Oslo", "days": 1})).data
        assert (weather.city, weather.days[0].sky, weather.days[0].celsius) == ("Oslo", "clear", 20.5)
        total = (await client.call_tool("add", {"a": 2, "b": 40})).data
        numbers = (await client.call_tool("primes", {"below": 8})).data
        assert total == 42
        assert numbers == [2, 3, 5, 7]


async def test_blocks(connect: Connect) -> None:
    async with connect() as client:
        blocks = [
            (await client.call_tool(name)).content[0] for name in ("picture", "sound", "report", "pointer", "stamped")
        ]
        assert [block.type for block in blocks] == ["image", "audio", "resource", "resource_link", "text"]
        assert base64.b64decode(blocks[0].data).startswith(b"\x89PNG")
        mixture = (await client.call_tool("mixture")).content
        assert [block.type for block in mixture] == ["text", "image", "resource_link"]


async def test_errors(connect: Connect) -> None:
    async with connect() as client:
        with pytest.raises(ToolError, match=r"^The kettle is empty\.$"):
            await client.call_tool("fail")
        with pytest.raises(ToolError) as crashed:
            await client.call_tool("crash")
        assert "swordfish" not in str(crashed.value)
        with pytest.raises(ToolError, match="days"):
            await client.call_tool("forecast", {"city": "Oslo", "days": "many"})
        with pytest.raises(MCPError, match="no_such_tool"):
            await client.call_tool("no_such_tool")
        with pytest.raises(MCPError):
            await client.read_resource("no://such/resource")
        with pytest.raises(MCPError, match="no_such_prompt"):
            await client.get_prompt("no_such_prompt")


async def test_argument_in_a_header(connect: Connect) -> None:
    async with connect() as client:
        await client.list_tools()  # from the schema it learns which header to send
        for where in ("north", "Übersee"):
            assert (await client.call_tool("region", {"where": where})).content[0].text == f"In {where}."


async def test_progress_and_logging(connect: Connect, mode: str, inbox: Any) -> None:
    async def progress(progress: float, total: float | None, message: str | None) -> None:
        inbox.put((progress, total, message))

    async def log(message: Any) -> None:
        inbox.put((message.level, message.data))

    async with connect(progress_handler=progress, log_handler=log) as client:
        await client.call_tool("climb", {"steps": 2})
        assert await inbox.take_many(2) == [(1, 2, "step 1"), (2, 2, "step 2")]
        if mode == "legacy":
            await client.set_logging_level("debug")
        await client.call_tool("narrate")
        assert await inbox.take_many(3) == [
            ("debug", "a detail"),
            ("info", {"event": "a fact"}),
            ("warning", "a worry"),
        ]


async def test_cancellation(connect: Connect, inbox: Any, request: pytest.FixtureRequest) -> None:
    label = f"fastmcp {request.node.name}"

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        inbox.put(message)

    async with connect(progress_handler=progress) as client:
        call = asyncio.create_task(client.call_tool("hang", {"label": label}))
        assert await inbox.take() == "hanging"
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await client.call_tool("await_stopped", {"label": label})).content[0].text == f"{label} was stopped"


async def test_elicitation(connect: Connect, inbox: Any) -> None:
    async def fill_in(message: str, kind: Any, params: Any, context: Any) -> Any:
        inbox.put((message, kind))
        return kind(seat="window", meals=2, quiet=False, name="Ada")

    async with connect(elicitation_handler=fill_in) as client:
        booked = (await client.call_tool("book", {"flight": "DV1"})).structured_content
        assert booked == {"seat": "window", "meals": 2, "quiet": False, "name": "Ada"}
        message, kind = await inbox.take()
        assert message == "Where do you want to sit on DV1?"
        assert kind(seat="aisle", meals=0).quiet is True  # the client read our defaults


@pytest.mark.parametrize(("action", "said"), [("decline", "You declined."), ("cancel", "You went away.")])
async def test_elicitation_refused(connect: Connect, action: Any, said: str) -> None:
    async def refuse(message: str, kind: Any, params: Any, context: Any) -> Any:
        return ElicitResult(action=action)

    async with connect(elicitation_handler=refuse) as client:
        assert (await client.call_tool("persist")).content[0].text == said
        with pytest.raises(ToolError):
            await client.call_tool("book", {"flight": "DV1"})


async def test_sampling_and_roots(connect: Connect) -> None:
    def complete(messages: Any, params: Any, context: Any) -> str:
        return f"{messages[0].content.text} {params.system_prompt}"

    async with connect(sampling_handler=complete, roots=["file:///srv/one"]) as client:
        rhyme = (await client.call_tool("rhyme", {"word": "mouse"})).content[0].text
        assert rhyme.endswith(": What rhymes with mouse? Be brief.")
        folders = await client.call_tool("folders")
        assert folders.structured_content == {"result": ["file:///srv/one"]}
        assert folders.data == ["file:///srv/one"]


@pytest.mark.parametrize("kind", ["proxy", "several servers"])
async def test_values_pass_through_a_proxy(http_url: str, mode: str, kind: str) -> None:
    """A proxy of fastmcp accepts only objects as structured content."""
    if kind == "proxy":
        target, prefix = create_proxy(Client(StreamableHttpTransport(http_url), mode=mode)), ""
    else:
        target, prefix = {"mcpServers": {"one": {"url": http_url}, "two": {"url": http_url}}}, "one_"
    async with Client(target) as client:
        assert (await client.call_tool(f"{prefix}add", {"a": 2, "b": 40})).data == 42
        assert (await client.call_tool(f"{prefix}primes", {"below": 8})).data == [2, 3, 5, 7]
        assert (await client.call_tool(f"{prefix}maybe", {"number": None})).data is None
        assert (await client.call_tool(f"{prefix}tomorrow")).data == date(2026, 7, 29)


async def test_several_rounds(connect: Connect, request: pytest.FixtureRequest) -> None:
    async def fill_in(message: str, kind: Any, params: Any, context: Any) -> Any:
        if kind is None:  # a page to visit
            return {}
        return {"value": {"How many?": 40, "How many more?": 2}.get(message, "Ada")}

    async with connect(elicitation_handler=fill_in) as client:
        ordered = await client.call_tool("order", {"label": f"fastmcp {request.node.name}"})
        assert ordered.structured_content == {"items": 42, "charges": 1}
        prompt = await client.get_prompt("personal")
        assert prompt.messages[0].content.text == "Write to Ada."
        assert (await client.read_resource("vault://box"))[0].text == "box opened with Ada"
        assert (await client.call_tool("pay")).content[0].text == "On the way."


async def test_resources(connect: Connect) -> None:
    async with connect() as client:
        assert (await client.read_resource("note://welcome"))[0].text == "Welcome!"
        assert base64.b64decode((await client.read_resource("pixel://one"))[0].blob) == b"\x00\xff\x10\x80"
        assert json.loads((await client.read_resource("city://Zürich/profile"))[0].text) == {"city": "Zürich"}


async def test_prompts_and_completion(connect: Connect) -> None:
    async with connect() as client:
        packing = await client.get_prompt("packing_list", {"city": "Oslo", "season": "winter"})
        assert [one.role for one in packing.messages] == ["user", "assistant"]
        greetings = await client.get_prompt("grüße")
        assert [one.content.type for one in greetings.messages] == ["text", "image", "resource"]
        reference = types.PromptReference(type="ref/prompt", name="packing_list")
        assert (await client.complete(reference, {"name": "city", "value": "Os"})).values == [
            "Oslo",
            "Osaka",
            "Ostrava",
        ]
        street = await client.complete(reference, {"name": "street", "value": "Main"}, {"city": "Oslo"})
        assert street.values == ["Main in Oslo"]


class Listening(MessageHandler):
    """What changed, by the client's own hooks."""

    def __init__(self, inbox: Any) -> None:
        self._inbox = inbox

    async def on_tool_list_changed(self, message: Any) -> None:
        self._inbox.put("tools")

    async def on_resource_updated(self, message: Any) -> None:
        self._inbox.put(message.params.uri)


async def test_changes(connect: Connect, mode: str, inbox: Any) -> None:
    name, uri = f"fastmcp_{mode}", f"city://fastmcp-{mode}/profile"
    async with connect(message_handler=Listening(inbox)) as client:
        if mode == "legacy":
            await client.session.subscribe_resource(uri)
            await _change(client, name)
            assert await inbox.take() == "tools"
            await client.call_tool("touch", {"name": f"fastmcp-{mode}"})
            while (told := await inbox.take()) != uri:
                assert told == "tools"
        else:  # the client has no word for it yet, its session does
            wanted = {"tools_list_changed": True, "resource_subscriptions": [uri]}
            async with listen(client.session, **wanted) as subscription, asyncio.timeout(20):
                await _change(client, name)
                assert await anext(subscription) == ToolsListChanged()
                await client.call_tool("touch", {"name": f"fastmcp-{mode}"})
                while (told := await anext(subscription)) != ResourceUpdated(uri=uri):
                    assert told == ToolsListChanged()


async def _change(client: Client[Any], name: str) -> None:
    await client.call_tool("learn", {"name": name})
    assert name in {tool.name for tool in await client.list_tools()}
    await client.call_tool("forget", {"name": name})


async def test_the_transport_of_2024(http_url: str) -> None:
    async with Client(SSETransport(http_url.removesuffix("/mcp") + "/sse")) as client:
        assert client.protocol_version == "2025-11-25"
        assert (await client.call_tool("greet", {"name": "Ada"})).content[0].text == "Hello, Ada!"
        assert await client.ping()


async def test_a_kept_process_serves_the_next_connection(stdio_command: list[str]) -> None:
    command, *arguments = stdio_command
    client = Client(StdioTransport(command, arguments, keep_alive=True))
    try:
        for name in ("first", "second"):
            async with client:
                assert (await client.call_tool("greet", {"name": name})).content[0].text == f"Hello, {name}!"
    finally:
        await client.close()
