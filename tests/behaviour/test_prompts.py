"""Test listing and getting prompts."""

from datetime import date
from typing import Annotated, Any, Literal

from msgspec import Meta

from behaviour.manifest import requirement
from behaviour.request_helpers import PNG, WAV, expect_error
from dovetail import (
    AudioContent,
    EmbeddedResource,
    Icon,
    ImageContent,
    PromptMessage,
    ResourceContents,
    ResourceLink,
    Server,
    TextContent,
    ToolError,
)
from support.driver import DRAFT, connect


def server() -> Server:
    app = Server("prompts")

    @app.prompt(title="Packing list", icons=[Icon(src="https://example.com/p.png")], meta={"com.example/p": 1})
    def packing(
        city: Annotated[str, Meta(description="Where to", title="City")],
        day: date | None = None,
        bags: int = 1,
        style: Literal["light", "heavy"] = "light",
    ) -> str:
        """What to pack."""
        return f"Pack {bags + 1} bags, {style}, for {city} on {day or 'any day'}."

    @app.prompt
    async def talk() -> list[Any]:
        """A conversation."""
        return ["Hello", PromptMessage(role="assistant", content=TextContent(text="Hi")), TextContent(text="Bye")]

    @app.prompt
    def closed() -> str:
        raise ToolError("closed on Sundays")

    return app


@requirement("prompts.declaration")
async def test_a_prompt_is_listed_with_its_arguments(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        packing, talk, _ = (await peer.request("prompts/list"))["prompts"]
    assert packing["name"] == "packing"
    assert packing["description"] == "What to pack."
    assert [(one["name"], one.get("required", False)) for one in packing["arguments"]] == [
        ("city", True),
        ("day", False),
        ("bags", False),
        ("style", False),
    ]
    assert packing["arguments"][0]["description"] == "Where to"
    titled = revision not in ("2024-11-05", "2025-03-26")
    assert packing.get("title") == ("Packing list" if titled else None)
    assert packing["arguments"][0].get("title") == ("City" if titled else None)
    assert talk == {"name": "talk", "description": "A conversation."}


@requirement("prompts.capability")
async def test_a_server_says_whether_it_has_prompts(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        opened = peer.initialize_result or await peer.request("server/discover")
        assert opened["capabilities"]["prompts"] == {"listChanged": True}
    async with connect(Server("none"), transport, revision) as peer:
        opened = peer.initialize_result or await peer.request("server/discover")
        assert "prompts" not in opened["capabilities"]
        assert (await expect_error(peer.request("prompts/list"))).code == -32601
        assert (await expect_error(peer.request("prompts/get", {"name": "talk"}))).code == -32601


@requirement("prompts.get")
async def test_a_prompt_is_filled_in(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        arguments = {"city": "Oslo", "day": "2025-01-31", "bags": "2", "style": "heavy"}
        result = await peer.request("prompts/get", {"name": "packing", "arguments": arguments})
        assert result["description"] == "What to pack."
        said = "Pack 3 bags, heavy, for Oslo on 2025-01-31."
        assert result["messages"] == [{"role": "user", "content": {"type": "text", "text": said}}]
        few = await peer.request("prompts/get", {"name": "packing", "arguments": {"city": "Rom"}})
        assert few["messages"][0]["content"]["text"] == "Pack 2 bags, light, for Rom on any day."
        talk = (await peer.request("prompts/get", {"name": "talk"}))["messages"]
        assert [(one["role"], one["content"]["text"]) for one in talk] == [
            ("user", "Hello"),
            ("assistant", "Hi"),
            ("user", "Bye"),
        ]


@requirement("prompts.content", revisions=("2025-06-18", "2025-11-25", "2026-07-28", "draft"))
async def test_messages_hold_every_kind_of_content(revision: str, transport: str) -> None:
    app = Server("rich")

    @app.prompt
    def rich() -> list[Any]:
        return [
            ImageContent(data=PNG, mime_type="image/png"),
            AudioContent(data=WAV, mime_type="audio/wav"),
            ResourceLink(uri="file:///a", name="a"),
            EmbeddedResource(resource=ResourceContents(uri="file:///t", mime_type="text/plain", text="t")),
            EmbeddedResource(resource=ResourceContents(uri="file:///b", mime_type="x/y", blob="AAE=")),
        ]

    async with connect(app, transport, revision) as peer:
        messages = (await peer.request("prompts/get", {"name": "rich"}))["messages"]
    assert [one["content"] for one in messages] == [
        {"type": "image", "data": PNG, "mimeType": "image/png"},
        {"type": "audio", "data": WAV, "mimeType": "audio/wav"},
        {"type": "resource_link", "uri": "file:///a", "name": "a"},
        {"type": "resource", "resource": {"uri": "file:///t", "mimeType": "text/plain", "text": "t"}},
        {"type": "resource", "resource": {"uri": "file:///b", "mimeType": "x/y", "blob": "AAE="}},
    ]


@requirement("prompts.unknown")
async def test_an_unknown_prompt_is_an_error(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        error = await expect_error(peer.request("prompts/get", {"name": "Talk"}))
        assert error.code == (-32004 if revision == DRAFT else -32602)
        assert "Talk" in error.message


@requirement("prompts.missing-argument")
async def test_an_argument_that_does_not_fit_is_an_error(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        for arguments, field in (
            (None, "city"),
            ({}, "city"),
            ({"city": "Oslo", "town": "x"}, "town"),
            ({"city": "Oslo", "bags": "many"}, "bags"),
            ({"city": "Oslo", "style": "loud"}, "style"),
        ):
            error = await expect_error(peer.request("prompts/get", {"name": "packing", "arguments": arguments}))
            assert error.code == -32602, arguments
            assert field in error.message, error.message
            assert error.data == {"field": field}
        for broken in ([], "city", 7):
            error = await expect_error(peer.request("prompts/get", {"name": "packing", "arguments": broken}))
            assert error.code == -32602, broken
        assert (await expect_error(peer.request("prompts/get", {"name": "closed"}))).message == "closed on Sundays"
