"""Test our server with the official client: every feature, over stdio and HTTP, in both eras."""

import asyncio
import base64
import json
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

pytest.importorskip("mcp", reason="mcp, the official SDK, is not installed")

import anyio
import mcp_types as types
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.subscriptions import PromptsListChanged, ResourcesListChanged, ResourceUpdated, ToolsListChanged

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(60),
    # The peer warns of whatever the newest revision has deprecated.
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]

NEWEST = {"auto": "2026-07-28", "legacy": "2025-11-25"}
Connect = Callable[..., Client]


@pytest.fixture(params=["auto", "legacy"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["stdio", "http"])
def connect(request: pytest.FixtureRequest, mode: str, stdio_command: list[str]) -> Connect:
    """A client for the server, not yet connected; options are the client's own."""
    if request.param == "http":
        server: Any = request.getfixturevalue("http_url")
    else:
        server = StdioServerParameters(command=stdio_command[0], args=stdio_command[1:])
    return lambda **options: Client(server, mode=mode, **options)


# Opening


async def test_opening(connect: Connect, mode: str) -> None:
    async with connect() as client:
        assert client.protocol_version == NEWEST[mode]
        info = client.server_info
        assert info is not None
        assert (info.name, info.version, info.title) == ("everything", "1.2.3", "Everything")
        assert (info.description, info.website_url) == ("One of everything.", "https://example.com/everything")
        assert info.icons is not None
        assert info.icons[0].sizes == ["48x48"]
        assert client.instructions == "Try anything."
        offered = client.server_capabilities
        assert offered.tools is not None
        assert offered.tools.list_changed
        assert offered.prompts is not None
        assert offered.prompts.list_changed
        assert offered.resources is not None
        assert (offered.resources.list_changed, offered.resources.subscribe) == (True, True)
        assert offered.completions is not None
        assert offered.logging is not None


async def test_ping(connect: Connect, mode: str) -> None:
    async with connect() as client:
        if mode == "legacy":
            assert await client.send_ping() == types.EmptyResult()
        else:  # the stateless revision has none
            with pytest.raises(MCPError) as refused:
                await client.send_ping()
            assert refused.value.code == types.METHOD_NOT_FOUND


async def test_who_calls(connect: Connect, mode: str) -> None:
    async with connect(client_info=types.Implementation(name="visitor", version="7")) as client:
        result = await client.call_tool("caller", meta={"example.com/trace": "abc"})
        assert result.structured_content == {
            "client": "visitor",
            "revision": NEWEST[mode],
            "meta": {"example.com/trace": "abc"},
        }


# Lists


async def test_pages(connect: Connect) -> None:
    async with connect() as client:
        pages = [await client.list_tools()]
        while cursor := pages[-1].next_cursor:
            pages.append(await client.list_tools(cursor=cursor))
        names = [tool.name for page in pages for tool in page.tools]
        assert len(pages) > 2
        assert [len(page.tools) for page in pages[:-1]] == [10] * (len(pages) - 1)
        assert len(names) == len(set(names))
        assert names[:3] == ["greet", "add", "forecast"]
        with pytest.raises(MCPError) as refused:
            await client.list_tools(cursor="no such page")
        assert refused.value.code == types.INVALID_PARAMS


async def test_tool_declarations(connect: Connect, mode: str) -> None:
    async with connect() as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    greet, add, forecast = tools["greet"], tools["add"], tools["forecast"]
    assert greet.description == "Greet somebody."
    assert greet.input_schema["properties"]["name"]["description"] == "Who is greeted, in any script."
    assert greet.output_schema is None
    assert add.title == "Addition"
    assert add.annotations is not None
    assert (add.annotations.read_only_hint, add.annotations.idempotent_hint) == (True, True)
    assert add.icons is not None
    assert add.icons[0].mime_type == "image/svg+xml"
    assert add.meta == {"example.com/cost": 1}
    assert add.input_schema["required"] == ["a"]
    assert forecast.output_schema is not None
    assert set(forecast.output_schema["properties"]) == {"city", "days"}
    assert add.output_schema is not None
    assert add.output_schema["properties"] == {"result": {"type": "integer"}}


async def test_resource_and_prompt_declarations(connect: Connect) -> None:
    async with connect() as client:
        resources = {one.uri: one for one in (await client.list_resources()).resources}
        templates = {one.uri_template: one for one in (await client.list_resource_templates()).resource_templates}
        prompts = {one.name: one for one in (await client.list_prompts()).prompts}
    welcome = resources["note://welcome"]
    assert (welcome.name, welcome.title, welcome.size, welcome.mime_type) == ("welcome", "A welcome", 8, "text/plain")
    assert welcome.annotations is not None
    assert welcome.annotations.priority == 1
    assert templates["city://{name}/profile"].mime_type == "application/json"
    packing = prompts["packing_list"]
    assert packing.title == "Packing list"
    assert [(one.name, one.description, bool(one.required)) for one in packing.arguments or []] == [
        ("city", "Where to.", True),
        ("season", "When.", True),
        ("street", "Where exactly.", False),
    ]


# Tools: what they return


async def test_text(connect: Connect) -> None:
    async with connect() as client:
        for name in ("Ada", "Ωmega \N{SNOWMAN} 😀", "", "line\nbreak\u2028and\x00nul", "x" * 300_000):
            result = await client.call_tool("greet", {"name": name})
            assert result.content == [types.TextContent(type="text", text=f"Hello, {name}!")]
            assert result.structured_content is None
            assert not result.is_error


async def test_structured(connect: Connect) -> None:
    async with connect() as client:
        result = await client.call_tool("forecast", {"city": "Oslo", "days": 1})
        weather = {"city": "Oslo", "days": [{"day": 0, "sky": "clear", "celsius": 20.5}]}
        assert result.structured_content == weather
        assert json.loads(_text(result)) == weather
        total = await client.call_tool("add", {"a": 2, "b": 40})
        numbers = await client.call_tool("primes", {"below": 8})
        assert total.structured_content == {"result": 42}
        assert numbers.structured_content == {"result": [2, 3, 5, 7]}
        assert (_text(total), _text(numbers)) == ("42", "[2,3,5,7]")


async def test_any_json_value(connect: Connect) -> None:
    async with connect() as client:
        for value in (None, True, -7, 1.5, "", "é", [], {}, [1, [2, {"a": None}]], 2**53):
            result = await client.call_tool("mirror", {"value": value})
            assert result.structured_content == {"value": value}


async def test_blocks(connect: Connect) -> None:
    async with connect() as client:
        picture = (await client.call_tool("picture")).content[0]
        sound = (await client.call_tool("sound")).content[0]
        report = (await client.call_tool("report")).content[0]
        pointer = (await client.call_tool("pointer")).content[0]
        mixture = (await client.call_tool("mixture")).content
        nothing = await client.call_tool("nothing")
    assert isinstance(picture, types.ImageContent)
    assert base64.b64decode(picture.data).startswith(b"\x89PNG")
    assert picture.annotations is not None
    assert (picture.annotations.audience, picture.annotations.priority) == (["user"], 0.5)
    assert isinstance(sound, types.AudioContent)
    assert sound.mime_type == "audio/wav"
    assert isinstance(report, types.EmbeddedResource)
    assert isinstance(report.resource, types.TextResourceContents)
    assert (report.resource.uri, report.resource.text) == ("report://today", "# All is well")
    assert isinstance(pointer, types.ResourceLink)
    assert (pointer.uri, pointer.title, pointer.size) == ("note://welcome", "A welcome", 8)
    assert [block.type for block in mixture] == ["text", "image", "resource_link"]
    assert nothing.content == []


async def test_meta_of_a_result(connect: Connect) -> None:
    async with connect() as client:
        result = await client.call_tool("stamped")
        assert result.meta is not None
        assert result.meta["example.com/stamp"] == "blue"
        assert result.structured_content == {"ok": True}


async def test_errors_of_a_tool(connect: Connect) -> None:
    async with connect() as client:
        failed = await client.call_tool("fail")
        assert failed.is_error
        assert _text(failed) == "The kettle is empty."
        crashed = await client.call_tool("crash")
        assert crashed.is_error
        assert "swordfish" not in _text(crashed)
        wrong = await client.call_tool("forecast", {"days": 11, "town": "Oslo"})
        assert wrong.is_error
        assert all(name in _text(wrong) for name in ("city", "days", "town"))


async def test_unknown_names(connect: Connect, mode: str) -> None:
    async with connect() as client:
        assert await _code(client.call_tool("no_such_tool")) == types.INVALID_PARAMS
        assert await _code(client.get_prompt("no_such_prompt")) == types.INVALID_PARAMS
        missing = -32002 if mode == "legacy" else types.INVALID_PARAMS
        assert await _code(client.read_resource("no://such/resource")) == missing


async def test_argument_in_a_header(connect: Connect) -> None:
    async with connect() as client:
        for where in ("north", "Übersee", "=?base64?x?=", ""):
            assert _text(await client.call_tool("region", {"where": where})) == f"In {where}."


async def test_many_at_once(connect: Connect) -> None:
    async with connect() as client:
        results = await asyncio.gather(*(client.call_tool("add", {"a": n, "b": n}) for n in range(50)))
        assert [_text(result) for result in results] == [str(2 * n) for n in range(50)]


# Tools: what they say while they work


async def test_progress(connect: Connect, inbox: Any) -> None:
    async def heard(progress: float, total: float | None, message: str | None) -> None:
        inbox.put((progress, total, message))

    async with connect() as client:
        result = await client.call_tool("climb", {"steps": 3}, progress_callback=heard)
        assert _text(result) == "At the top."
        assert await inbox.take_many(3) == [(n, 3, f"step {n}") for n in (1, 2, 3)]
        assert _text(await client.call_tool("climb", {"steps": 3})) == "At the top."
    assert inbox.rest() == []


async def test_logging(connect: Connect, mode: str, inbox: Any) -> None:
    async with connect(logging_callback=_putting(inbox), log_level="info") as client:
        await client.call_tool("narrate")
        fact, worry = await inbox.take_many(2)
        assert (fact.level, fact.data, fact.logger) == ("info", {"event": "a fact"}, "everything")
        assert (worry.level, worry.data, worry.logger) == ("warning", "a worry", "nerves")
        if mode == "legacy":
            await client.set_logging_level("warning")
            await client.call_tool("narrate")
            assert (await inbox.take()).data == "a worry"
            await client.set_logging_level("debug")
            await client.call_tool("narrate")
            assert (await inbox.take()).data == "a detail"
            await inbox.take_many(2)
    assert inbox.rest() == []


async def test_no_log_messages_unless_asked_for(connect: Connect, mode: str, inbox: Any) -> None:
    async with connect(logging_callback=_putting(inbox)) as client:
        await client.call_tool("narrate")
        if mode == "legacy":  # where a client that never chose a level hears from `info` upward
            assert [message.level for message in await inbox.take_many(2)] == ["info", "warning"]
    assert inbox.rest() == []


async def test_cancellation(connect: Connect, mode: str, inbox: Any, request: pytest.FixtureRequest) -> None:
    label = request.node.name

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        inbox.put(message)

    async with connect() as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.call_tool("hang", {"label": label}, progress_callback=heard))
            assert await inbox.take() == "hanging"
            tasks.cancel_scope.cancel()
        assert _text(await client.call_tool("await_stopped", {"label": label})) == f"{label} was stopped"


async def test_a_timeout_of_the_client_stops_the_work(connect: Connect, request: pytest.FixtureRequest) -> None:
    label = request.node.name
    async with connect() as client:
        with pytest.raises(MCPError) as refused:
            await client.call_tool("hang", {"label": label}, read_timeout_seconds=0.3)
        assert refused.value.code == types.REQUEST_TIMEOUT
        assert _text(await client.call_tool("await_stopped", {"label": label})) == f"{label} was stopped"


async def test_a_connection_let_go(connect: Connect, inbox: Any) -> None:
    async def heard(progress: float, total: float | None, message: str | None) -> None:
        inbox.put(progress)

    async with connect() as client:
        assert _text(await client.call_tool("pause", progress_callback=heard)) == "Back again."
        assert await inbox.take_many(2) == [1, 2]


# Tools: what they ask


async def test_elicitation(connect: Connect, inbox: Any) -> None:
    answer = {"seat": "window", "meals": 2, "quiet": False, "name": "Ada"}

    async def fill_in(context: Any, params: types.ElicitRequestFormParams) -> types.ElicitResult:
        inbox.put(params)
        return types.ElicitResult(action="accept", content=answer)

    async with connect(elicitation_callback=fill_in) as client:
        result = await client.call_tool("book", {"flight": "DV1"})
        assert result.structured_content == answer
    asked = await inbox.take()
    assert asked.message == "Where do you want to sit on DV1?"
    properties = asked.requested_schema["properties"]
    assert properties["seat"]["enum"] == ["aisle", "window"]
    assert (properties["meals"]["minimum"], properties["meals"]["maximum"]) == (0, 3)
    assert (properties["quiet"]["default"], properties["name"]["default"]) == (True, "nobody")
    assert asked.requested_schema["required"] == ["seat", "meals"]


@pytest.mark.parametrize(
    ("action", "default", "caught"),
    [
        ("decline", "declined", "You declined."),
        ("cancel", "dismissed", "You went away."),
    ],
)
async def test_elicitation_refused(connect: Connect, action: Any, default: str, caught: str) -> None:
    async def refuse(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action=action)

    async with connect(elicitation_callback=refuse) as client:
        result = await client.call_tool("book", {"flight": "DV1"})
        assert result.is_error
        assert default in _text(result)
        assert _text(await client.call_tool("persist")) == caught


async def test_an_answer_that_does_not_fit(connect: Connect) -> None:
    async def fill_in(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"seat": "wing", "meals": 1})

    async with connect(elicitation_callback=fill_in) as client:
        assert await _code(client.call_tool("book", {"flight": "DV1"})) == types.INVALID_PARAMS


async def test_elicitation_by_url(connect: Connect, mode: str, inbox: Any) -> None:
    async def visit(context: Any, params: types.ElicitRequestURLParams) -> types.ElicitResult:
        inbox.put(params)
        return types.ElicitResult(action="accept")

    async with connect(elicitation_callback=visit) as client:
        assert _text(await client.call_tool("pay")) == "On the way."
    asked = await inbox.take()
    assert (asked.mode, asked.message, asked.url) == ("url", "Please pay.", "https://example.com/pay")


async def test_sampling(connect: Connect, inbox: Any) -> None:
    async def complete(context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        inbox.put(params)
        return _completion("house")

    async with connect(sampling_callback=complete) as client:
        assert _text(await client.call_tool("rhyme", {"word": "mouse"})) == "small-model: house"
    asked = await inbox.take()
    assert asked.messages[0].content == types.TextContent(type="text", text="What rhymes with mouse?")
    assert (asked.max_tokens, asked.system_prompt, asked.temperature) == (20, "Be brief.", 0.5)


async def test_sampling_refused(connect: Connect, mode: str) -> None:
    async def refuse(context: Any, params: Any) -> types.ErrorData:
        return types.ErrorData(code=-1, message="The user said no.")

    async with connect(sampling_callback=refuse) as client:
        if mode == "legacy":
            result = await client.call_tool("rhyme", {"word": "mouse"})
            assert result.is_error
            assert "The user said no." in _text(result)
        else:  # the client gives up by itself, the server is not told
            assert await _code(client.call_tool("rhyme", {"word": "mouse"})) == -1


async def test_roots(connect: Connect) -> None:
    async with connect(list_roots_callback=_roots) as client:
        result = await client.call_tool("folders")
        assert result.structured_content == {"result": ["file:///srv/one", "file:///srv/two"]}


async def test_all_questions_at_once(connect: Connect) -> None:
    async def fill_in(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"value": "fine"})

    async def complete(context: Any, params: Any) -> types.CreateMessageResult:
        return _completion("la la la")

    options = {"elicitation_callback": fill_in, "sampling_callback": complete, "list_roots_callback": _roots}
    async with connect(**options) as client:
        assert _text(await client.call_tool("survey")) == "fine; la la la; 2"


async def test_a_step_between_questions_runs_once(connect: Connect, request: pytest.FixtureRequest) -> None:
    async def fill_in(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"value": 2 if "more" in params.message else 40})

    async with connect(elicitation_callback=fill_in) as client:
        result = await client.call_tool("order", {"label": request.node.name})
        assert result.structured_content == {"items": 42, "charges": 1}


async def test_asking_in_prompts_and_resources(connect: Connect) -> None:
    async def fill_in(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"value": "Ada"})

    async with connect(elicitation_callback=fill_in) as client:
        prompt = await client.get_prompt("personal")
        assert prompt.messages[0].content == types.TextContent(type="text", text="Write to Ada.")
        assert _contents(await client.read_resource("vault://box")) == ["box opened with Ada"]


async def test_asking_a_client_that_cannot_answer(connect: Connect, mode: str) -> None:
    async with connect() as client:
        for name, arguments in (
            ("book", {"flight": "DV1"}),
            ("rhyme", {"word": "mouse"}),
            ("folders", {}),
            ("pay", {}),
        ):
            if mode == "legacy":  # only the newest version has a code for this, so the model reads the error
                assert (await client.call_tool(name, arguments)).is_error
            else:
                assert await _code(client.call_tool(name, arguments)) == types.MISSING_REQUIRED_CLIENT_CAPABILITY


# Resources, prompts, completion


async def test_resources(connect: Connect) -> None:
    async with connect() as client:
        welcome = (await client.read_resource("note://welcome")).contents[0]
        pixel = (await client.read_resource("pixel://one")).contents[0]
        profile = (await client.read_resource("city://Oslo/profile")).contents[0]
    assert isinstance(welcome, types.TextResourceContents)
    assert (welcome.text, welcome.mime_type, welcome.uri) == ("Welcome!", "text/plain", "note://welcome")
    assert isinstance(pixel, types.BlobResourceContents)
    assert base64.b64decode(pixel.blob) == b"\x00\xff\x10\x80"
    assert isinstance(profile, types.TextResourceContents)
    assert (json.loads(profile.text), profile.mime_type) == ({"city": "Oslo"}, "application/json")


@pytest.mark.parametrize("uri", ["city://Zürich/profile", "city://Z%C3%BCrich/profile"])
async def test_a_uri_beyond_ascii(connect: Connect, uri: str) -> None:
    async with connect() as client:
        result = await client.read_resource(uri)
        assert result.contents[0].uri == uri
        assert [json.loads(text) for text in _contents(result)] == [{"city": "Zürich"}]


async def test_prompts(connect: Connect) -> None:
    async with connect() as client:
        hello = await client.get_prompt("hello")
        assert hello.description == "Say hello."
        assert [(one.role, one.content) for one in hello.messages] == [
            ("user", types.TextContent(type="text", text="Say hello."))
        ]
        packing = await client.get_prompt("packing_list", {"city": "Oslo", "season": "winter"})
        assert [one.role for one in packing.messages] == ["user", "assistant"]
        greetings = await client.get_prompt("grüße")
        assert [one.content.type for one in greetings.messages] == ["text", "image", "resource"]
        assert await _code(client.get_prompt("packing_list", {"city": "Oslo"})) == types.INVALID_PARAMS
        wrong = {"city": "Oslo", "season": "never"}
        assert await _code(client.get_prompt("packing_list", wrong)) == types.INVALID_PARAMS


async def test_completion(connect: Connect) -> None:
    packing = types.PromptReference(type="ref/prompt", name="packing_list")
    city = types.ResourceTemplateReference(type="ref/resource", uri="city://{name}/profile")
    async with connect() as client:
        found = (await client.complete(packing, {"name": "city", "value": "Os"})).completion
        assert (found.values, found.total) == (["Oslo", "Osaka", "Ostrava"], 3)
        found = (await client.complete(packing, {"name": "season", "value": "s"})).completion
        assert found.values == ["spring", "summer"]
        found = (await client.complete(city, {"name": "name", "value": "Z"})).completion
        assert found.values == ["Zürich"]
        found = (await client.complete(packing, {"name": "street", "value": "Main"}, {"city": "Oslo"})).completion
        assert found.values == ["Main in Oslo"]
        unknown = client.complete(packing, {"name": "color", "value": ""})
        assert await _code(unknown) == types.INVALID_PARAMS


# Changes


async def test_changes_of_lists(connect: Connect, mode: str, inbox: Any, request: pytest.FixtureRequest) -> None:
    name = "".join(letter if letter.isalnum() else "_" for letter in request.node.name)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(message_handler=_putting(inbox)))
        if mode == "legacy":
            take, kinds = inbox.take, _LEGACY_KINDS
        else:
            wanted = {"tools_list_changed": True, "prompts_list_changed": True, "resources_list_changed": True}
            subscription = await stack.enter_async_context(client.listen(**wanted))
            assert subscription.honored.tools_list_changed
            take, kinds = subscription.__anext__, _MODERN_KINDS
        await _heard_of_all(take, kinds, client.call_tool("learn", {"name": name}))
        assert name in await _all_tools(client)
        assert _text(await client.call_tool(name)) == f"{name} performed."
        await _heard_of_all(take, kinds, client.call_tool("forget", {"name": name}))
        assert name not in await _all_tools(client)


_LEGACY_KINDS = {
    types.ToolListChangedNotification,
    types.PromptListChangedNotification,
    types.ResourceListChangedNotification,
}
_MODERN_KINDS = {ToolsListChanged, PromptsListChanged, ResourcesListChanged}


async def _heard_of_all(take: Callable[[], Any], kinds: set[type], call: Any) -> None:
    await call
    async with asyncio.timeout(20):
        assert {type(await take()) for _ in kinds} == kinds


async def test_updates_of_resources(connect: Connect, mode: str, inbox: Any) -> None:
    uri = f"city://{mode}/profile"
    async with connect(message_handler=_putting(inbox)) as client:
        if mode == "legacy":
            await client.subscribe_resource(uri)
            await client.call_tool("touch", {"name": "elsewhere"})
            await client.call_tool("touch", {"name": mode})
            told = await inbox.take()
            assert isinstance(told, types.ResourceUpdatedNotification)
            assert told.params.uri == uri
            await client.unsubscribe_resource(uri)
            await client.call_tool("touch", {"name": mode})
            await client.call_tool("add", {"a": 1})
            assert inbox.rest() == []
        else:
            async with client.listen(resource_subscriptions=[uri]) as subscription:
                assert subscription.honored.resource_subscriptions == [uri]
                await client.call_tool("touch", {"name": "elsewhere"})
                await client.call_tool("touch", {"name": mode})
                async with asyncio.timeout(20):
                    assert await anext(subscription) == ResourceUpdated(uri=uri)


async def test_changes_without_a_listener_are_not_sent(connect: Connect, mode: str, inbox: Any) -> None:
    async with connect(message_handler=_putting(inbox)) as client:
        await client.call_tool("touch", {"name": "Oslo"})
        if mode == "auto":
            await client.call_tool("learn", {"name": "unheard"})
            await client.call_tool("forget", {"name": "unheard"})
        await client.call_tool("add", {"a": 1})
    assert inbox.rest() == []


# The transport of 2024


@pytest.mark.parametrize("place", ["/sse", "/mcp/sse"])
async def test_the_transport_of_2024(http_url: str, place: str, inbox: Any) -> None:
    async def fill_in(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"value": True})

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    steps: list[float] = []
    address = http_url.removesuffix("/mcp") + place
    options = {"elicitation_callback": fill_in, "message_handler": _putting(inbox)}
    async with Client(sse_client(address), mode="legacy", **options) as client:
        assert _text(await client.call_tool("greet", {"name": "1" * 300_000})) == f"Hello, {'1' * 300_000}!"
        assert _text(await client.call_tool("persist")) == "You said True."
        await client.call_tool("climb", {"steps": 2}, progress_callback=heard)
        assert [type(one) for one in await inbox.take_many(2)] == [types.ProgressNotification] * 2
        assert steps == [1, 2]
        await client.subscribe_resource("city://Oslo/profile")
        await client.call_tool("touch", {"name": "Oslo"})
        assert isinstance(await inbox.take(), types.ResourceUpdatedNotification)
        assert await client.send_ping() == types.EmptyResult()


# A client that pins the newest revision without asking


async def test_a_pinned_revision(http_url: str) -> None:
    async with Client(http_url, mode="2026-07-28") as client:
        assert _text(await client.call_tool("add", {"a": 1})) == "2"


# Older revisions, offered by a server that speaks nothing newer


@pytest.fixture(params=["stdio", "http"])
def connect_at(request: pytest.FixtureRequest, stdio_command: list[str], start: Any) -> Connect:
    """A client for a server of one revision."""

    def connect_at(revision: str, **options: Any) -> Client:
        only = {"ONLY_REVISION": revision}
        command, script, _ = stdio_command
        if request.param == "http":
            server: Any = start([command, script, "http"], os.environ | only).url
        else:
            server = StdioServerParameters(command=command, args=[script, "stdio"], env=only)
        return Client(server, **options)

    return connect_at


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18"])
async def test_an_older_revision(connect_at: Connect, revision: str, inbox: Any) -> None:
    async def heard(progress: float, total: float | None, message: str | None) -> None:
        inbox.put(progress)

    async def complete(context: Any, params: Any) -> types.CreateMessageResult:
        return _completion("house")

    async def fill_in(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"value": True})

    options = {"sampling_callback": complete, "elicitation_callback": fill_in, "list_roots_callback": _roots}
    async with connect_at(revision, **options) as client:
        assert client.protocol_version == revision
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        new = revision >= "2025-06-18"
        assert (tools["add"].title, tools["add"].output_schema is not None) == ("Addition" if new else None, new)
        assert (tools["add"].annotations is not None) == (revision >= "2025-03-26")
        assert (await client.call_tool("add", {"a": 1})).structured_content == ({"result": 2} if new else None)
        # What a revision cannot say is said as text.
        link, sound = (await client.call_tool("pointer")).content[0], (await client.call_tool("sound")).content[0]
        assert link.type == ("resource_link" if new else "text")
        assert sound.type == ("audio" if revision >= "2025-03-26" else "text")
        await client.call_tool("climb", {"steps": 2}, progress_callback=heard)
        assert await inbox.take_many(2) == [1, 2]
        assert _text(await client.call_tool("rhyme", {"word": "mouse"})) == "small-model: house"
        assert len(json.loads(_text(await client.call_tool("folders")))) == 2
        if new:
            assert _text(await client.call_tool("persist")) == "You said True."
        else:
            assert (await client.call_tool("persist")).is_error
        assert (await client.call_tool("pay")).is_error
        assert _text(await client.call_tool("pause")) == "Back again."
        assert _contents(await client.read_resource("note://welcome")) == ["Welcome!"]
        assert (await client.get_prompt("hello")).messages[0].role == "user"
        reference = types.PromptReference(type="ref/prompt", name="packing_list")
        found = await client.complete(reference, {"name": "city", "value": "Z"})
        assert found.completion.values == ["Zürich"]


# Small parts


def _text(result: types.CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text


def _contents(result: types.ReadResourceResult) -> list[str]:
    return [one.text for one in result.contents if isinstance(one, types.TextResourceContents)]


async def _code(call: Any) -> int:
    with pytest.raises(MCPError) as refused:
        await call
    return refused.value.code


def _putting(inbox: Any) -> Any:
    async def put(message: Any) -> None:
        inbox.put(message)

    return put


def _completion(text: str) -> types.CreateMessageResult:
    return types.CreateMessageResult(
        role="assistant", content=types.TextContent(type="text", text=text), model="small-model", stop_reason="endTurn"
    )


async def _roots(context: Any) -> types.ListRootsResult:
    return types.ListRootsResult(
        roots=[types.Root(uri="file:///srv/one", name="one"), types.Root(uri="file:///srv/two")]
    )


async def _all_tools(client: Client) -> list[str]:
    page = await client.list_tools(cache_mode="refresh")
    names = [tool.name for tool in page.tools]
    while page.next_cursor:
        page = await client.list_tools(cursor=page.next_cursor)
        names += [tool.name for tool in page.tools]
    return names
