"""Test large results: stored, linked, fetched and removed."""

from typing import Any

import pytest

from dovetail import Client as RealClient
from dovetail import Image, LargeResultSettings, Server
from dovetail.errors import ResourceNotFound
from dovetail.types import CallToolResult, TextContent
from dovetail.wire.codec import encode
from server.direct_client import LATEST_HANDSHAKE, Client, text
from support.mentions import mentions

PNG = b"\x89PNG\r\n\x1a\n"


def server(**policy: Any) -> Server:
    app = Server(
        "x",
        large_results=LargeResultSettings(
            **{"max_text_chars": 100, "max_base64_chars": 100, "preview_chars": 10} | policy
        ),
    )

    @app.tool
    def long(n: int) -> str:
        return "x" * n

    @app.tool
    def rows(n: int) -> list[int]:
        return list(range(n))

    @app.tool
    def untold(n: int) -> Any:
        return {"rows": list(range(n))}

    @app.tool
    def picture(n: int) -> list[str | Image]:
        return ["Look:", Image(PNG + b"\0" * n)]

    return app


async def test_small_results_travel_as_ever() -> None:
    client = Client(server())
    assert text(await client.call("long", {"n": 100})) == "x" * 100
    assert (await client.call("rows", {"n": 3}))["structuredContent"] == {"result": [0, 1, 2]}
    assert [one["type"] for one in (await client.call("picture", {"n": 3}))["content"]] == ["text", "image"]


async def test_a_long_text_becomes_its_beginning_and_a_link() -> None:
    client = Client(server())
    told, link = (await client.call("long", {"n": 200}))["content"]
    assert told["text"].startswith(f"{'x' * 10}…")
    assert mentions(told["text"], 190, link["uri"])
    assert (link["type"], link["mimeType"], link["size"]) == ("resource_link", "text/plain", 200)
    (contents,) = (await client.request("resources/read", {"uri": link["uri"]}))["contents"]
    assert contents == {"uri": link["uri"], "mimeType": "text/plain", "text": "x" * 200}


async def test_a_published_schema_is_kept_and_an_unpublished_value_is_not_sent_twice() -> None:
    client = Client(server())
    published = await client.call("rows", {"n": 100})
    assert published["structuredContent"] == {"result": list(range(100))}
    assert published["content"][1]["mimeType"] == "application/json"
    assert "structuredContent" not in await client.call("untold", {"n": 100})


async def test_pictures_too() -> None:
    client = Client(server())
    told, link = (await client.call("picture", {"n": 300}))["content"]
    assert told["text"] == "Look:"
    assert link["mimeType"] == "image/png"
    (contents,) = (await client.request("resources/read", {"uri": link["uri"]}))["contents"]
    assert contents["blob"].startswith("iVBORw0KGgo")


@pytest.mark.parametrize("policy", [{"ttl": 0}, {"max_stored_chars": 250}])
async def test_it_is_forgotten_after_a_while_or_for_lack_of_room(policy: dict[str, Any]) -> None:
    client = Client(server(**policy))
    _, first = (await client.call("long", {"n": 200}))["content"]
    _, second = (await client.call("long", {"n": 201}))["content"]
    with pytest.raises(ResourceNotFound):
        await client.request("resources/read", {"uri": first["uri"]})
    if "max_stored_chars" in policy:
        assert await client.request("resources/read", {"uri": second["uri"]})


async def test_one_caller_cannot_remove_the_results_of_others() -> None:
    app = server(max_stored_chars=2000)
    ada, mallory = Client(app, principal="ada"), Client(app, principal="mallory")
    _, kept = (await ada.call("long", {"n": 200}))["content"]
    links = [(await mallory.call("long", {"n": 200}))["content"][1] for _ in range(20)]
    assert await ada.request("resources/read", {"uri": kept["uri"]})
    assert await mallory.request("resources/read", {"uri": links[-1]["uri"]})
    for uri in (links[0]["uri"], kept["uri"]):
        with pytest.raises(ResourceNotFound):
            await mallory.request("resources/read", {"uri": uri})


async def test_failures_and_older_revisions() -> None:
    app = server()

    @app.tool
    def fail() -> str:
        raise ValueError("y" * 1000)

    assert (await Client(app).call("fail"))["isError"]
    old = await Client(app, LATEST_HANDSHAKE).call("long", {"n": 200})
    assert [one["type"] for one in old["content"]] == ["text", "resource_link"]


def build_similar_result() -> CallToolResult:
    """Return an object that looks like a wrapped value: its text is only the value of its field."""
    value = [*range(100)]
    return CallToolResult(content=[TextContent(text=encode(value).decode())], structured_content={"result": value})


@pytest.mark.parametrize("is_listed", [True, False])
async def test_a_value_whose_text_is_kept_back_arrives_as_it_was_returned(is_listed: bool) -> None:
    app = server()
    app.add_tool(lambda: {"result": [*range(100)]}, name="object", output_schema={"type": "object"})
    app.add_tool(build_similar_result, name="similar", output_schema={"type": "object"})
    async with RealClient(app) as client:
        if is_listed:
            await client.list_tools()
        assert await client.call("rows", n=100) == [*range(100)]
        assert await client.call("object") == {"result": [*range(100)]}
        assert await client.call("similar") == {"result": [*range(100)]}


async def test_a_text_that_cannot_be_stored_is_sent_in_full() -> None:
    app = Server("x", large_results=LargeResultSettings(max_text_chars=10, max_stored_chars=50))

    @app.tool
    def write(size: int) -> str:
        """Write a text."""
        return "x" * size

    (block,) = (await Client(app).call("write", {"size": 60}))["content"]
    assert block["text"] == "x" * 60
