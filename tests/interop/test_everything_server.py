"""Test our client with server-everything, the official example of every feature, over its three transports."""

import asyncio
import base64
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail import (
    Client,
    ElicitationCancelled,
    ElicitationDeclined,
    EmbeddedResource,
    ImageContent,
    RemoteError,
    ResourceLink,
    Timeouts,
    ToolError,
)
from dovetail.errors import InputRequestError, RequestTimeout
from dovetail.types import CreateMessageRequestParams, ElicitRequestParams

pytestmark = [pytest.mark.interop, pytest.mark.timeout(60)]

PATHS = {"sse": "/sse", "streamableHttp": "/mcp"}
TEXT = "demo://resource/dynamic/text/{}"
HANDSHAKE = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
Connect = Callable[..., Client]


@pytest.fixture(scope="module", params=["stdio", *PATHS])
def target(
    request: pytest.FixtureRequest,
    npm_server: Callable[..., list[str]],
    start: Callable[..., Any],
    free_port: Callable[[], int],
) -> Any:
    transport: str = request.param
    command = npm_server("everything", transport)
    if transport == "stdio":
        return command
    port = free_port()
    url = f"http://127.0.0.1:{port}{PATHS[transport]}"
    # Node knows nothing to do when told to stop, so the signal ends it.
    return start(command, os.environ | {"PORT": str(port)}, url=url, leaves=-signal.SIGTERM).url


@pytest.fixture
def connect(target: Any) -> Connect:
    """A client for the server, not yet connected."""
    return lambda **options: Client(target, **options)


# Opening


async def test_opening(connect: Connect) -> None:
    async with connect() as client:
        assert client.protocol_version == "2025-11-25"
        assert client.server_info is not None
        assert (client.server_info.name, client.server_info.title) == (
            "mcp-servers/everything",
            "Everything Reference Server",
        )
        assert client.instructions is not None
        assert client.instructions.startswith("# Everything Server")
        assert client.server_capabilities.resources is not None
        assert client.server_capabilities.resources.subscribe is True
        await client.ping()


@pytest.mark.parametrize("revision", HANDSHAKE)
async def test_every_revision_it_speaks(connect: Connect, revision: str) -> None:
    async with connect(protocol_version=revision) as client:
        assert client.protocol_version == revision
        assert await client.call("echo", message=revision) == f"Echo: {revision}"


# Tools


async def test_calls(connect: Connect) -> None:
    async with connect() as client:
        tools = {tool.name: tool for tool in await client.list_tools()}
        assert {"echo", "get-sum", "get-structured-content"} <= tools.keys()
        assert tools["get-sum"].input_schema["required"] == ["a", "b"]
        results = await asyncio.gather(*(client.call("get-sum", a=n, b=1) for n in range(20)))
        assert results == [f"The sum of {n} and 1 is {n + 1}." for n in range(20)]
        assert await client.call("echo", message="é" * 200_000) == "Echo: " + "é" * 200_000


async def test_what_a_tool_returns(connect: Connect) -> None:
    async with connect() as client:
        await client.list_tools()
        weather = {"temperature": 36, "conditions": "Light rain / drizzle", "humidity": 82}
        assert await client.call("get-structured-content", location="Chicago") == weather
        _, picture, _ = await client.call("get-tiny-image")
        assert isinstance(picture, ImageContent)
        assert base64.b64decode(picture.data).startswith(b"\x89PNG")
        _, *links = await client.call("get-resource-links", count=2)
        assert [type(link) for link in links] == [ResourceLink, ResourceLink]
        _, resource, _ = await client.call("get-resource-reference", resourceType="Text", resourceId=3)
        assert isinstance(resource, EmbeddedResource)
        assert resource.resource.uri == TEXT.format(3)
        annotated = await client.call_tool("get-annotated-message", {"messageType": "error"})
        assert annotated.content[0].annotations is not None
        assert annotated.content[0].annotations.audience == ["user", "assistant"]


async def test_a_call_that_fails(connect: Connect) -> None:
    async with connect() as client:
        with pytest.raises(ToolError, match="expected number"):
            await client.call("get-sum", a="one", b=1)
        assert (await client.call_tool("get-sum", {"a": "one", "b": 1})).is_error
        with pytest.raises(RemoteError) as refused:
            await client.request("no/such/method")
        assert refused.value.code == -32601
        assert await client.call("echo", message="still here") == "Echo: still here"


async def test_progress(connect: Connect, inbox: Any) -> None:
    async with connect() as client:
        result = await client.call_tool(
            "trigger-long-running-operation",
            {"duration": 0.2, "steps": 4},
            progress_handler=lambda *told: inbox.put(told),
        )
        assert result.content[0].text.startswith("Long running operation completed")
        assert inbox.rest() == [(step, 4, None) for step in (1, 2, 3, 4)]


async def test_a_call_that_is_given_up(connect: Connect, inbox: Any) -> None:
    endless = {"duration": 30, "steps": 600}
    async with connect() as client:
        call = asyncio.create_task(
            client.call_tool("trigger-long-running-operation", endless, progress_handler=lambda *told: inbox.put(told))
        )
        await inbox.take()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(RequestTimeout):
            await client.call_tool("trigger-long-running-operation", endless, total_timeout=0.2)
        assert await client.call("echo", message="still here") == "Echo: still here"


# Resources, prompts, completion


async def test_resources(connect: Connect) -> None:
    async with connect() as client:
        documents = {one.name: one for one in await client.list_resources()}
        text = await client.read(documents["features.md"].uri)
        assert text.startswith("# Everything Server")
        templates = [one.uri_template for one in await client.list_resource_templates()]
        assert TEXT.format("{resourceId}") in templates
        assert (await client.read(TEXT.format(7))).startswith("Resource 7: This is a plaintext resource")
        assert (await client.read("demo://resource/dynamic/blob/8")).startswith(b"Resource 8: This is a base64 blob")
        with pytest.raises(RemoteError):
            await client.read("demo://resource/nowhere")


async def test_prompts(connect: Connect) -> None:
    async with connect() as client:
        names = [prompt.name for prompt in await client.list_prompts()]
        assert names == ["simple-prompt", "args-prompt", "completable-prompt", "resource-prompt"]
        prompt = await client.get_prompt("args-prompt", {"city": "Oslo"})
        assert prompt.messages[0].content.text == "What's weather in Oslo?"
        _, embedded = (await client.get_prompt("resource-prompt", {"resourceType": "Text", "resourceId": "5"})).messages
        assert embedded.content.resource.uri == TEXT.format(5)


async def test_completion(connect: Connect) -> None:
    async with connect() as client:
        departments = await client.complete("department", "S", prompt="completable-prompt")
        assert departments.values == ["Sales", "Support"]
        names = await client.complete("name", "", prompt="completable-prompt", context={"department": "Sales"})
        assert names.values == ["David", "Eve", "Frank"]
        ids = await client.complete("resourceId", "12", template=TEXT.format("{resourceId}"))
        assert ids.values == ["12"]


# Questions


async def test_a_form(connect: Connect) -> None:
    asked: list[str] = []

    def answer(question: ElicitRequestParams) -> dict[str, Any]:
        asked.append(question.message)
        return {"name": "Ada", "integer": 7}

    async with connect(elicitation_handler=answer) as client:
        *_, raw = (await client.call_tool("trigger-elicitation-request")).content
        sent = json.loads(raw.text.partition("Raw result: ")[2])
        assert sent["action"] == "accept"
        content = sent["content"]
        assert (content["name"], content["integer"], content["number"]) == ("Ada", 7, 3.14)  # the last by default
        assert content["untitledMultipleSelectEnum"] == ["Guitar"]
    assert asked == ["Please provide inputs for the following fields:"]


@pytest.mark.parametrize(
    ("exception", "words"), [(ElicitationDeclined, "declined to provide"), (ElicitationCancelled, "cancelled the")]
)
async def test_a_form_not_filled_in(connect: Connect, exception: type[Exception], words: str) -> None:
    def refuse(question: ElicitRequestParams) -> None:
        raise exception

    async with connect(elicitation_handler=refuse) as client:
        first, *_ = (await client.call_tool("trigger-elicitation-request")).content
        assert words in first.text


async def test_a_form_filled_in_wrongly(connect: Connect) -> None:
    async with connect(elicitation_handler=lambda question: {"name": 5}) as client:
        with pytest.raises(InputRequestError, match="name"):
            await client.call_tool("trigger-elicitation-request")


async def test_a_visit(connect: Connect) -> None:
    shown: list[str | None] = []

    def visit(question: ElicitRequestParams) -> bool:
        shown.append(question.url)
        return True

    arguments = {"url": "https://example.com/pay"}
    async with connect(
        url_elicitation_handler=visit, timeout=Timeouts(request=2)
    ) as client:  # it never says that a visit is over
        first, *_ = (await client.call_tool("trigger-url-elicitation", arguments)).content
        assert "completed the URL elicitation" in first.text
        first, *_ = (await client.call_tool("trigger-url-elicitation", arguments | {"errorPath": True})).content
        assert "completed the URL elicitation" in first.text
        result = await client.call_tool("trigger-url-elicitation", {"url": "ftp://example.com/"})
        assert result.is_error  # never shown
    pay, before = "https://example.com/pay", "https://modelcontextprotocol.io"
    assert shown == [pay, before, pay]


async def test_a_sample(connect: Connect) -> None:
    async def think(question: CreateMessageRequestParams) -> str:
        assert question.system_prompt == "You are a helpful test server."
        return "forty-two"

    async with connect(sampling_handler=think) as client:
        (block,) = (await client.call_tool("trigger-sampling-request", {"prompt": "the answer?"})).content
        assert '"text": "forty-two"' in block.text


async def test_roots(connect: Connect, tmp_path: Path, inbox: Any) -> None:
    roots = [tmp_path]
    async with connect(roots=lambda: roots, log_handler=lambda message: inbox.put(message.data)) as client:
        assert await inbox.take() == "Roots updated: 1 root(s) received from client"
        assert tmp_path.as_uri() in (await client.call_tool("get-roots-list")).content[0].text
        roots.append(tmp_path / "more")
        await client.send_roots_list_changed()
        assert await inbox.take() == "Roots updated: 2 root(s) received from client"
        assert (tmp_path / "more").as_uri() in (await client.call_tool("get-roots-list")).content[0].text


async def test_no_handler(connect: Connect) -> None:
    async with connect() as client:
        assert "trigger-sampling-request" not in {tool.name for tool in await client.list_tools()}


# Changes and logs


async def test_a_resource_changes(connect: Connect) -> None:
    uri = TEXT.format(1)
    async with connect() as client, asyncio.timeout(20):
        listening = client.listen(tools=False, prompts=False, resources=False, uris=[uri])
        async with listening as changes:
            await client.call("toggle-subscriber-updates")
            change = await anext(aiter(changes))
            assert (change.kind, change.uri, change.maybe_missed) == ("resource", uri, False)
            await client.call("toggle-subscriber-updates")


async def test_a_list_changes(connect: Connect) -> None:
    data = "data:text/plain;base64," + base64.b64encode(b"hello").decode()
    async with connect() as client, asyncio.timeout(20):
        before = await client.list_resources()
        async with client.listen(tools=False, prompts=False) as changes:
            await client.call("gzip-file-as-resource", name="hello.gz", data=data)
            assert (await anext(aiter(changes))).kind == "resources"
        uri = "demo://resource/session/hello.gz"
        assert {one.uri for one in await client.list_resources()} == {one.uri for one in before} | {uri}
        assert (await client.read(uri)).startswith(b"\x1f\x8b")


async def test_logs(connect: Connect, inbox: Any) -> None:
    async with connect(log_handler=inbox.put, log_level="info") as client:
        await client.subscribe_resource(TEXT.format(2))
        message = await inbox.take()
        assert message.level == "info"
        assert message.data.startswith(f"Received Subscribe Resource request for URI: {TEXT.format(2)}")
        await client.set_logging_level("error")
        await client.unsubscribe_resource(TEXT.format(2))
        await client.ping()
        assert inbox.rest() == []
