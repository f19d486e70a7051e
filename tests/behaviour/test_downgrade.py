"""Test that older protocol versions receive only what they define."""

from typing import Any

from behaviour.manifest import requirement
from behaviour.request_helpers import PNG, WAV, call
from dovetail import AudioContent, Icon, ImageContent, PromptMessage, ResourceLink, Server
from support.driver import DRAFT, STATELESS, connect

ICONS = [Icon(src="https://example.com/i.png")]
LINK = ResourceLink(uri="file:///a.txt", name="a", title="The letter A", icons=ICONS)


def server() -> Server:
    app = Server(
        "old", version="1.2.3", title="Old Server", description="Speaks all", website_url="https://example.com"
    )

    @app.tool
    def everything() -> list[Any]:
        return [ImageContent(data=PNG, mime_type="image/png"), AudioContent(data=WAV, mime_type="audio/wav"), LINK]

    @app.prompt(title="P", icons=ICONS, meta={"com.example/a": 1})
    def prompt(topic: str) -> list[Any]:
        """Prompt."""
        sound = AudioContent(data=WAV, mime_type="audio/wav")
        return [PromptMessage(role="assistant", content=sound), LINK]

    @app.resource("x:fixed", title="F", icons=ICONS, meta={"com.example/a": 1})
    def fixed() -> str:
        return "fixed"

    @app.resource("x:{name}/t", title="T", icons=ICONS, meta={"com.example/a": 1})
    def template(name: str) -> str:
        return name

    return app


@requirement("downgrade.content")
async def test_content_unknown_to_a_version_becomes_text(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        image, sound, link = (await call(peer, "everything"))["content"]
        messages = (await peer.request("prompts/get", {"name": "prompt", "arguments": {"topic": "x"}}))["messages"]
    assert image["type"] == "image"
    assert messages[0]["role"] == "assistant"
    for block in (sound, messages[0]["content"]):
        if revision == "2024-11-05":
            assert block["type"] == "text"
            assert "audio/wav" in block["text"]
            assert WAV not in block["text"]
        else:
            assert block == {"type": "audio", "data": WAV, "mimeType": "audio/wav"}
    for block in (link, messages[1]["content"]):
        if revision in ("2024-11-05", "2025-03-26"):
            assert block == {"type": "text", "text": "The letter A: file:///a.txt"}
        else:
            assert block["type"] == "resource_link"
            assert ("icons" in block) == (revision == "2025-11-25")


@requirement("downgrade.descriptions")
async def test_descriptions_hold_only_what_the_revision_knows(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        (prompt,) = (await peer.request("prompts/list"))["prompts"]
        (fixed,) = (await peer.request("resources/list"))["resources"]
        (template,) = (await peer.request("resources/templates/list"))["resourceTemplates"]
    for listed in (prompt, fixed, template):
        assert ("title" in listed) == ("_meta" in listed) == (revision not in ("2024-11-05", "2025-03-26")), listed
        assert ("icons" in listed) == (revision in ("2025-11-25", STATELESS, DRAFT)), listed


@requirement("downgrade.identity")
async def test_the_server_introduces_itself_in_the_words_of_the_revision(revision: str, transport: str) -> None:
    known = {"name": "old", "version": "1.2.3"}
    if revision not in ("2024-11-05", "2025-03-26"):
        known["title"] = "Old Server"
    if revision in ("2025-11-25", STATELESS, DRAFT):
        known |= {"description": "Speaks all", "websiteUrl": "https://example.com"}
    async with connect(server(), transport, revision) as peer:
        if revision == STATELESS:
            result = await peer.request("server/discover")
            assert result["_meta"]["io.modelcontextprotocol/serverInfo"] == known
        else:
            assert peer.initialize_result["serverInfo"] == known


@requirement("downgrade.stamps")
async def test_results_say_what_they_are_only_where_that_is_known(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        results = [await peer.request(method) for method in ("tools/list", "resources/list", "prompts/list")]
        results += [await call(peer, "everything"), await peer.request("resources/read", {"uri": "x:fixed"})]
        results.append(await peer.request("prompts/get", {"name": "prompt", "arguments": {"topic": "x"}}))
    for result in results:
        if revision == STATELESS:
            assert result["resultType"] == "complete"
            assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "old"
        else:
            assert "resultType" not in result
            assert "_meta" not in result
