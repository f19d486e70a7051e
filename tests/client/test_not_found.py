"""Test that missing items raise NotFound in every protocol version, with suggestions."""

from typing import Any

import pytest

from dovetail import Client, RemoteError, Server, ToolError
from dovetail.errors import NotFound, NotSupported
from dovetail.protocol.client_messages import create_error
from dovetail.wire.raw_message import ErrorObject
from support.full_server import NEWEST_HANDSHAKE, STATELESS, connect_client
from support.mentions import mentions, values
from support.scripted_server import ErrorReply as Refusal
from support.scripted_server import ScriptedServer, serve_on_socket

URI = "note://nowhere"


@pytest.mark.parametrize(
    ("revision", "code", "data", "kind"),
    [
        ("2026-07-28", -32602, {"uri": URI}, NotFound),
        ("2025-11-25", -32602, {"uri": URI}, NotFound),
        ("2025-11-25", -32002, None, NotFound),
        ("2026-07-28", -32602, None, RemoteError),
        ("2026-07-28", -32602, "uri", RemoteError),
        ("2026-07-28", -32603, {"uri": URI}, RemoteError),
    ],
)
def test_a_resource_that_is_not_there(revision: str, code: int, data: Any, kind: type[RemoteError]) -> None:
    told = create_error(revision, "resources/read", ErrorObject(code, "no such thing", data))
    assert type(told) is kind
    assert isinstance(told, RemoteError)
    assert (told.code, told.data) == (code, data)


def test_only_of_resources() -> None:
    assert type(create_error("2026-07-28", "tools/call", ErrorObject(-32602, "no", {"uri": URI}))) is RemoteError


@pytest.mark.parametrize(
    ("method", "code", "words", "kind"),
    [
        ("tools/call", -32602, "Unknown tool: fly", NotFound),
        ("tools/call", -32602, "Unknown tool: 'fly'", NotFound),
        ("tools/call", -32602, "Tool fly not found", NotFound),
        ("tools/call", -32602, "MCP error -32602: Tool fly not found", NotFound),
        ("tools/call", -32603, "No such tool", NotFound),
        ("prompts/get", 0, "Unknown prompt: fly", NotFound),
        ("prompts/get", -32602, "Prompt fly not found", NotFound),
        ("completion/complete", -32602, "Prompt fly not found", NotFound),
        ("completion/complete", -32602, "Resource template a://{b} not found", NotFound),
        ("completion/complete", -32602, "Unknown tool: fly", RemoteError),
        ("resources/read", -32602, "Resource not found", NotFound),
        ("resources/read", -32602, "Resource test://a/b not found", NotFound),
        ("tools/call", -32602, "Unknown prompt: fly", RemoteError),
        ("tools/call", -32602, "the city was not found, Unknown tool", RemoteError),
        ("tools/call", -31000, "Unknown tool: fly", RemoteError),
        ("tools/list", -32602, "Unknown tool: fly", RemoteError),
        ("tools/call", -32602, "tools not found", RemoteError),
    ],
)
def test_the_message_decides_without_an_error_code(method: str, code: int, words: str, kind: type[RemoteError]) -> None:
    assert type(create_error("2025-11-25", method, ErrorObject(code, words, None))) is kind


@pytest.mark.parametrize("way", ["memory", "http"])
@pytest.mark.parametrize("revision", [STATELESS, NEWEST_HANDSHAKE])
async def test_a_missing_item_is_reported_with_the_existing_ones(way: str, revision: str) -> None:
    async with connect_client(way, revision) as client:
        for ask, listing in (
            (lambda: client.call("ecko", text="x"), ("list_tools()",)),
            (lambda: client.get_prompt("paking"), ("list_prompts()",)),
            (lambda: client.read("page://10"), ("list_resources()", "list_resource_templates()")),
        ):
            with pytest.raises(NotFound) as before:
                await ask()
            assert mentions(before.value.hint, *listing)
        await client.list_tools()
        await client.list_prompts()
        await client.list_resources()
        for request, meant in (
            (client.call("ecko", text="x"), "echo"),
            (client.call_tool("ad"), "add"),
            (client.get_prompt("paking"), "packing"),
            (client.get_prompt("zzz"), "packing"),
            (client.read("page://10"), "page://1"),
        ):
            with pytest.raises(NotFound) as after:
                await request
            assert mentions(after.value.hint, meant)


async def test_only_some_of_many_names_are_listed() -> None:
    app = Server("many")
    for number in range(12):
        app.add_tool(lambda: "x", name=f"tool_{number}")
    async with Client(app) as client:
        await client.list_tools()
        with pytest.raises(NotFound, match=values("tool_0", "tool_9", 2)):
            await client.call("qqqqqq")
    empty = ScriptedServer(
        "stateless", {"prompts/list": {"prompts": []}, "prompts/get": Refusal(-32602, "Unknown prompt: x")}
    )
    async with serve_on_socket(empty) as at, Client(at) as client:
        await client.list_prompts()
        with pytest.raises(NotFound):
            await client.get_prompt("x")


@pytest.mark.parametrize("revision", [STATELESS, NEWEST_HANDSHAKE])
async def test_a_server_without_a_feature_is_named_as_such(revision: str) -> None:
    async with Client(Server("bare"), protocol_version=revision) as client:
        for request, said in (
            (client.get_prompt("x"), "prompts"),
            (client.read("a://x"), "resources"),
            (client.complete("a", "b", prompt="x"), "arguments"),
        ):
            with pytest.raises(NotSupported) as caught:
                await request
            assert said in (caught.value.hint or "")


def _failed(words: str) -> Any:
    return {"content": [{"type": "text", "text": words}], "isError": True}


@pytest.mark.parametrize("era", ["stateless", "handshake"])
async def test_some_servers_say_it_in_a_result(era: Any) -> None:
    script = ScriptedServer(era, {"tools/call": _failed("Unknown tool: fly")})
    async with serve_on_socket(script) as at, Client(at, name="it") as client:
        with pytest.raises(NotFound, match=r"it: tools/call fly \(.*\): Unknown tool: fly"):
            await client.call("fly")
        assert (await client.call_tool("fly")).is_error
        with pytest.raises(ToolError):  # it speaks of another tool
            await client.call("book")
