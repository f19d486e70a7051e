"""Test listing and calling tools, over HTTP and in memory, in both eras."""

from base64 import b64encode
from dataclasses import dataclass

import pytest

from core.library_server import PNG
from dovetail import Client, Context, ImageContent, RemoteError, Server, SyncClient, TextContent, ToolError
from dovetail.errors import Forbidden, InvalidParams, NotFound, ToolNotFound


@dataclass
class Loan:
    book: str
    days: int


async def test_the_list_has_schemas_and_hides_tools_of_others(client: Client) -> None:
    tools = {tool.name: tool for tool in await client.list_tools()}
    assert {"echo", "find", "lend"} <= tools.keys()
    assert "burn" not in tools
    assert tools["find"].description == "Find a book, in a thread."
    assert tools["find"].annotations is not None
    assert tools["find"].annotations.read_only_hint is True
    assert tools["find"].input_schema["properties"] == {"number": {"type": "integer"}}
    assert tools["lend"].input_schema["properties"]["days"] == {
        "type": "integer",
        "default": 14,
        "description": "At most 28",
    }
    assert tools["lend"].output_schema is not None
    assert tools["lend"].output_schema["required"] == ["book"]


async def test_calls_return_text_structs_and_bare_values(client: Client) -> None:
    assert await client.call("echo", text="å") == "å"
    assert await client.call("find", number=1) == "Emma"
    assert await client.call("lend", into=Loan, number=2) == Loan("Dracula", 14)
    assert await client.call("count_books") == 2
    assert (await client.call_tool("count_books")).structured_content == {"result": 2}


async def test_content_blocks_keep_their_types(client: Client) -> None:
    text, image = (await client.call_tool("show_cover")).content
    assert isinstance(text, TextContent)
    assert text.text == "the cover"
    assert isinstance(image, ImageContent)
    assert (image.data, image.mime_type) == (b64encode(PNG).decode(), "image/png")


async def test_an_error_of_a_tool_is_a_result(client: Client) -> None:
    result = await client.call_tool("find", {"number": 3})
    assert (result.is_error, result.text) == (True, "there is no book 3")
    with pytest.raises(ToolError, match="there is no book 3"):
        await client.call("find", number=3)


async def test_other_exceptions_are_masked(client: Client) -> None:
    result = await client.call_tool("break_down")
    assert result.is_error
    assert "secret" not in result.text


async def test_invalid_arguments_are_explained(client: Client) -> None:
    result = await client.call_tool("find", {"number": "one"})
    assert result.is_error
    assert "number" in result.text


async def test_an_unknown_tool_is_not_found(client: Client) -> None:
    with pytest.raises(NotFound) as caught:
        await client.call("unknown")
    assert caught.value.code == InvalidParams.code


async def test_a_tool_with_a_scope_is_refused(client: Client) -> None:
    with pytest.raises((RemoteError, Forbidden), match="books:burn"):
        await client.call("burn")


async def test_tools_call_each_other(client: Client) -> None:
    assert await client.call("find_twice", number=2) == ["Dracula", "Dracula"]
    assert await client.call("recommend") == "Emma: 2 messages"


async def test_a_missing_tool_raises_its_own_error_inside_a_server() -> None:
    app = Server("s")

    @app.tool
    async def look(ctx: Context) -> str:
        with pytest.raises(ToolNotFound):
            await ctx.call_tool("unknown")
        return "looked"

    async with Client(app) as client:
        assert await client.call("look") == "looked"
    await app.stop()


def test_calls_without_await(http_url: str) -> None:
    with SyncClient(http_url) as client:
        assert client.call("echo", text="hi") == "hi"
        assert [tool.name for tool in client.list_tools()][:2] == ["echo", "find"]
