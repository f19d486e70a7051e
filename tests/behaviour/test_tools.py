"""Test listing and calling tools, refusals and return values."""

from typing import Annotated, Any

import pytest
from msgspec import Meta

from behaviour.manifest import requirement
from behaviour.request_helpers import PNG, WAV, call, error_text, expect_error, list_names, text
from dovetail import (
    Annotations,
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    Icon,
    ImageContent,
    ResourceContents,
    ResourceLink,
    Server,
    TextContent,
    ToolAnnotations,
    ToolError,
)
from dovetail.server.server import get_dispatcher
from support.driver import DRAFT, STATELESS, connect, connect_again
from support.list_capabilities import ONLY_TOOLS

ICON = {"src": "https://example.com/hammer.png", "mimeType": "image/png", "sizes": ["48x48"], "theme": "dark"}
HINTS = {"title": "Hammer!", "readOnlyHint": False, "destructiveHint": True, "idempotentHint": False}

FULL_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "https://example.com/address-book",
    "$comment": "published as it is",
    "type": "object",
    "$defs": {"street": {"$anchor": "street", "type": "string", "minLength": 1}},
    "properties": {
        "name": {"type": "string", "x-unknown": {"kept": True}},
        "street": {"$ref": "#/$defs/street"},
        "tags": {"type": "array", "prefixItems": [{"type": "string"}], "unevaluatedItems": False},
    },
    "dependentRequired": {"street": ["name"]},
    "if": {"required": ["tags"]},
    "then": {"required": ["name"]},
    "unevaluatedProperties": False,
}


def server() -> Server:
    app = Server("tools")

    @app.tool(
        title="Hammer",
        icons=[Icon(src=ICON["src"], mime_type="image/png", sizes=["48x48"], theme="dark")],
        annotations=ToolAnnotations(
            title="Hammer!", read_only_hint=False, destructive_hint=True, idempotent_hint=False
        ),
        meta={"com.example/owner": {"team": "tools"}},
    )
    def hammer(nail: str, blows: Annotated[int, Meta(ge=1, le=9)] = 3) -> dict[str, int]:
        """Hit a nail."""
        return {nail: blows}

    @app.tool
    def bare() -> str:
        return "bare"

    return app


@requirement("tools.declaration")
async def test_a_tool_is_listed_with_all_it_is_described_by(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        hammer, bare = (await peer.request("tools/list"))["tools"]
    assert hammer["name"] == "hammer"
    assert hammer["description"] == "Hit a nail."
    assert hammer["inputSchema"] == {
        "type": "object",
        "properties": {
            "nail": {"type": "string"},
            "blows": {"type": "integer", "minimum": 1, "maximum": 9, "default": 3},
        },
        "required": ["nail"],
        "additionalProperties": False,
    }
    assert hammer.get("annotations") == (None if revision == "2024-11-05" else HINTS)
    since_june = revision not in ("2024-11-05", "2025-03-26")
    assert hammer.get("title") == ("Hammer" if since_june else None)
    assert hammer.get("_meta") == ({"com.example/owner": {"team": "tools"}} if since_june else None)
    assert ("outputSchema" in hammer) == since_june
    assert hammer.get("icons") == ([ICON] if revision in ("2025-11-25", STATELESS, DRAFT) else None)
    assert bare.keys() == {"name", "inputSchema"}


@requirement("items.custom-annotations")
async def test_custom_annotations_of_a_tool_are_listed(revision: str, transport: str) -> None:
    app = Server("custom")
    given = {"audience": ["user"], "priority": 0.9, "custom_field": "value", "title": "Say"}

    @app.tool(annotations=given, read_only=True)
    def say() -> str:
        return "x"

    async with connect(app, transport, revision) as peer:
        (tool,) = (await peer.request("tools/list"))["tools"]
        assert tool["annotations"] == given | {"readOnlyHint": True}


@requirement("tools.capability")
async def test_a_server_says_whether_it_has_tools(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        opened = peer.initialize_result or await peer.request("server/discover")
        assert opened["capabilities"]["tools"] == {"listChanged": True}
    async with connect(Server("none"), transport, revision) as peer:
        opened = peer.initialize_result or await peer.request("server/discover")
        assert "tools" not in opened["capabilities"]
        assert (await expect_error(peer.request("tools/list"))).code == -32601
        assert (await expect_error(call(peer, "bare"))).code == -32601
    outer = Server("outer")
    outer.mount(Server("none"), "none")
    async with connect(outer, transport, revision) as peer:
        assert (await expect_error(call(peer, "none_bare"))).code == -32601


@requirement("tools.empty-list")
async def test_a_server_may_offer_tools_it_does_not_have_yet(revision: str, transport: str) -> None:
    async with connect(Server("later", capabilities=ONLY_TOOLS), transport, revision) as peer:
        opened = peer.initialize_result or await peer.request("server/discover")
        assert opened["capabilities"]["tools"] == {"listChanged": True}
        assert (await peer.request("tools/list"))["tools"] == []
        assert (await expect_error(call(peer, "bare"))).code == (-32003 if revision == DRAFT else -32602)


@requirement("tools.no-parameters")
async def test_a_tool_without_parameters_takes_an_empty_object(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        _, bare = (await peer.request("tools/list"))["tools"]
        assert bare["inputSchema"] == {"type": "object", "properties": {}, "additionalProperties": False}
        assert (await call(peer, "bare", nail="x"))["isError"]


@requirement("tools.verbatim-schema")
async def test_an_authors_schema_is_published_unchanged_and_kept(revision: str, transport: str) -> None:
    app = Server("verbatim")

    @app.tool(input_schema=FULL_SCHEMA)
    def book(arguments: dict[str, Any]) -> str:
        return ",".join(arguments)

    async with connect(app, transport, revision) as peer:
        (listed,) = (await peer.request("tools/list"))["tools"]
        assert listed["inputSchema"] == FULL_SCHEMA
        assert text(await call(peer, "book", name="Ada", street="x", tags=["a"])) == "name,street,tags"
        for wrong in ({"street": "x"}, {"name": "a", "street": ""}, {"name": "a", "tags": ["a", "b"]}, {"other": 1}):
            assert (await call(peer, "book", **wrong))["isError"], wrong


@requirement("tools.dialect")
async def test_a_schema_is_checked_by_the_dialect_it_names(revision: str, transport: str) -> None:
    app = Server("dialects")
    # In draft-07 `items` may be a list and stands for places; in 2020-12 that is `prefixItems`.
    older = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"pair": {"type": "array", "items": [{"type": "string"}, {"type": "integer"}]}},
    }

    @app.tool(input_schema=older)
    def pair(arguments: dict[str, Any]) -> str:
        return "taken"

    async with connect(app, transport, revision) as peer:
        assert text(await call(peer, "pair", pair=["a", 1])) == "taken"
        assert "pair[1]" in error_text(await call(peer, "pair", pair=["a", "b"]))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "nonsense"}}},
        {"type": "object", "properties": {"a": {"pattern": "("}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}},
        {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}},
        {"type": "object", "$schema": "https://example.com/a-dialect-of-nobody"},
        {"type": "array"},
        {},
    ],
)
@requirement("tools.bad-schema")
def test_a_schema_that_cannot_be_kept_is_refused_at_once(schema: dict[str, Any]) -> None:
    app = Server("strict")

    def take(arguments: dict[str, Any]) -> str:
        return "taken"

    with pytest.raises((ValueError, TypeError), match="take"):
        app.add_tool(take, input_schema=schema)
    assert get_dispatcher(app).capabilities().tools is None


@requirement("tools.unknown")
async def test_an_unknown_tool_is_an_error(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        error = await expect_error(call(peer, "saw\x07"))
        assert error.code == (-32003 if revision == DRAFT else -32602)
        assert "saw" in error.message
        assert "\x07" not in error.message
        assert text(await call(peer, "bare")) == "bare"


@requirement("tools.malformed")
async def test_a_malformed_call_is_an_error(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        for params in (
            {},
            {"name": 5},
            {"name": None},
            {"name": "bare", "arguments": []},
            {"name": "bare", "arguments": 0},
        ):
            headers = {"mcp-name": "bare"} if revision == STATELESS else {}
            error = await expect_error(peer.request("tools/call", params, headers=headers))
            # Where a header mirrors the name, a body without one already disagrees with it.
            mirrored = transport == "http" and revision == STATELESS and params.get("name") != "bare"
            assert error.code == (-32020 if mirrored else -32602), params
            if not mirrored:
                assert error.data == {"field": "arguments" if params.get("name") == "bare" else "name"}


@requirement("tools.bad-arguments")
async def test_arguments_that_do_not_fit_are_named_one_by_one(revision: str, transport: str) -> None:
    app = Server("strict")
    ran: list[str] = []

    @app.tool
    def plan(city: str, days: int, unit: str = "C", exact: bool = False) -> str:
        ran.append(city)
        return "planned"

    async with connect(app, transport, revision) as peer:
        said = error_text(result := await call(peer, "plan", days="three", unit=4, exakt=True))
        assert result["isError"] is True
        for field in ("city", "days", "unit", "exakt"):
            assert f"`{field}`" in said, said
        assert "`exact`" in said, "a near miss is worth a hint"
        assert ran == []
        assert text(await call(peer, "plan", city="Oslo", days=3)) == "planned"


@requirement("tools.arguments-omitted")
async def test_arguments_may_be_left_out(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        assert text(await peer.request("tools/call", {"name": "bare"})) == "bare"
        assert text(await peer.request("tools/call", {"name": "bare", "arguments": None})) == "bare"


@requirement("tools.author-error")
async def test_an_authors_error_reaches_the_model(revision: str, transport: str) -> None:
    app = Server("failing")

    @app.tool
    async def fly() -> int:
        raise ToolError("no wings: grow some first")

    async with connect(app, transport, revision) as peer:
        result = await call(peer, "fly")
        assert result["isError"] is True
        assert error_text(result) == "no wings: grow some first"
        assert "structuredContent" not in result


@requirement("tools.content", revisions=("2025-06-18", "2025-11-25", STATELESS, DRAFT))
async def test_a_tool_returns_every_kind_of_content(revision: str, transport: str) -> None:
    app = Server("content")
    link = ResourceLink(uri="file:///a.txt", name="a", title="A", description="first", mime_type="text/plain", size=3)
    image, sound = ImageContent(data=PNG, mime_type="image/png"), AudioContent(data=WAV, mime_type="audio/wav")
    page = ResourceContents(uri="file:///p", mime_type="text/plain", text="page")
    blob = ResourceContents(uri="file:///b", mime_type="application/octet-stream", blob="AAE=")

    @app.tool
    def mixed() -> list[Any]:
        return ["one", image, TextContent(text="two"), sound, link, EmbeddedResource(resource=page), blob]

    @app.tool
    def single() -> ImageContent:
        return image

    @app.tool
    def nothing() -> None:
        return None

    async with connect(app, transport, revision) as peer:
        assert (await call(peer, "mixed"))["content"] == [
            {"type": "text", "text": "one"},
            {"type": "image", "data": PNG, "mimeType": "image/png"},
            {"type": "text", "text": "two"},
            {"type": "audio", "data": WAV, "mimeType": "audio/wav"},
            {
                "type": "resource_link",
                "uri": "file:///a.txt",
                "name": "a",
                "title": "A",
                "description": "first",
                "mimeType": "text/plain",
                "size": 3,
            },
            {"type": "resource", "resource": {"uri": "file:///p", "mimeType": "text/plain", "text": "page"}},
            {
                "type": "resource",
                "resource": {"uri": "file:///b", "mimeType": "application/octet-stream", "blob": "AAE="},
            },
        ]
        assert (await call(peer, "single"))["content"] == [{"type": "image", "data": PNG, "mimeType": "image/png"}]
        assert (await call(peer, "nothing"))["content"] == []


@requirement("tools.annotated-content")
async def test_content_keeps_its_annotations(revision: str, transport: str) -> None:
    app = Server("annotated")
    marks = Annotations(audience=["user", "assistant"], priority=0.5, last_modified="2025-05-03T14:30:00Z")

    @app.tool
    def marked() -> CallToolResult:
        block = TextContent(text="x", annotations=marks, meta={"com.example/line": 3})
        return CallToolResult(content=[block], meta={"com.example/cost": {"tokens": 12}})

    async with connect(app, transport, revision) as peer:
        result = await call(peer, "marked")
        (block,) = result["content"]
        expected: dict[str, Any] = {"audience": ["user", "assistant"], "priority": 0.5}
        if revision not in ("2024-11-05", "2025-03-26"):
            expected["lastModified"] = "2025-05-03T14:30:00Z"
        assert block["annotations"] == expected
        assert block["_meta"] == {"com.example/line": 3}
        assert result["_meta"]["com.example/cost"] == {"tokens": 12}


@requirement("tools.order")
async def test_lists_are_in_the_same_order_every_time(revision: str, transport: str) -> None:
    app = Server("ordered")
    order = ["zebra", "apple", "Mango", "banana_2", "banana_10"]
    for name in order:
        app.add_tool(lambda: "x", name=name)
        app.add_prompt(lambda: "x", name=name)
        app.add_resource(lambda: "x", f"x:{name}", name=name)
        app.add_resource(lambda v: v, f"x:{name}/{{v}}", name=name)
    methods = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")
    async with connect(app, transport, revision) as peer:
        seen = [await list_names(peer, method) for method in methods * 2]
        if transport == "http":
            async with connect_again(peer) as other:
                seen += [await list_names(other, method) for method in methods]
    async with connect(app, transport, revision) as peer:
        seen += [await list_names(peer, method) for method in methods]
    assert seen == [order] * len(seen)


@requirement("tools.names")
async def test_names_are_unique_and_case_sensitive(revision: str, transport: str) -> None:
    app = Server("names")
    app.add_tool(lambda: "lower", name="admin.list-all_2")
    app.add_tool(lambda: "upper", name="Admin.list-all_2")
    with pytest.raises(ValueError, match=r"admin\.list-all_2"):
        app.add_tool(lambda: "again", name="admin.list-all_2")
    async with connect(app, transport, revision) as peer:
        assert text(await call(peer, "admin.list-all_2")) == "lower"
        assert text(await call(peer, "Admin.list-all_2")) == "upper"
