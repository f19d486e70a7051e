"""Test listing and reading resources, as text and as bytes, and their errors."""

import logging
from typing import Any

import pytest

from behaviour.manifest import requirement
from behaviour.request_helpers import call, expect_error, list_names, text
from dovetail import Annotations, Context, Icon, ResourceContents, Server, ServerLimits, ToolError
from dovetail.errors import NotSupported, ResourceNotFound
from support.driver import STATELESS, connect

ANNOTATIONS = {"audience": ["user"], "priority": 1.0, "lastModified": "2025-01-12T15:00:58Z"}


def server() -> Server:
    app = Server("shelf", limits=ServerLimits(max_uri_bytes=200))

    @app.resource(
        "file:///notes.txt",
        name="notes",
        title="Notes",
        mime_type="text/plain",
        size=5,
        icons=[Icon(src="https://example.com/n.png")],
        annotations=Annotations(audience=["user"], priority=1.0, last_modified="2025-01-12T15:00:58Z"),
        meta={"com.example/shelf": 2},
    )
    def notes() -> str:
        """What was noted."""
        return "hello"

    @app.resource("x:plain")
    async def plain() -> str:
        return "h\u00e9llo \U0001f642"

    @app.resource("x:image", mime_type="image/png")
    def image() -> bytes:
        return b"\x89PNG\x00\xff"

    @app.resource("x:record")
    def record() -> dict[str, Any]:
        return {"a": [1, None]}

    @app.resource("x:folder", mime_type="text/plain")
    def folder() -> list[Any]:
        page = ResourceContents(uri="x:folder/1", mime_type="text/markdown", text="# one", meta={"com.example/n": 1})
        return [page, "two", b"three"]

    @app.resource("x:empty-folder")
    def empty() -> str:
        return ""

    @app.resource("x:gone")
    def gone() -> str:
        raise ResourceNotFound("x:gone")

    @app.resource("x:closed")
    def closed() -> str:
        raise ToolError("closed on Sundays")

    @app.resource("x:broken")
    def broken() -> str:
        raise RuntimeError("password is hunter2")

    return app


@requirement("resources.declaration")
async def test_a_resource_is_listed_with_all_it_is_described_by(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        notes, plain, *_ = (await peer.request("resources/list"))["resources"]
    expected: dict[str, Any] = {
        "uri": "file:///notes.txt",
        "name": "notes",
        "description": "What was noted.",
        "mimeType": "text/plain",
        "size": 5,
        "annotations": ANNOTATIONS,
    }
    if revision not in ("2024-11-05", "2025-03-26"):
        expected |= {"title": "Notes", "_meta": {"com.example/shelf": 2}}
    else:
        expected["annotations"] = {name: ANNOTATIONS[name] for name in ("audience", "priority")}
    if revision not in ("2024-11-05", "2025-03-26", "2025-06-18"):
        expected["icons"] = [{"src": "https://example.com/n.png"}]
    assert notes == expected
    assert plain == {"uri": "x:plain", "name": "plain"}


@requirement("items.custom-annotations")
async def test_custom_annotations_of_a_resource_are_listed(revision: str, transport: str) -> None:
    app = Server("custom")
    given = {"audience": ["user"], "priority": 0.9, "custom_field": "value"}
    app.add_resource(lambda: "x", "x:fixed", annotations=given)
    app.add_resource(lambda name: name, "x:{name}", annotations=given)
    with pytest.raises(TypeError, match="priority"):
        app.add_resource(lambda: "x", "x:other", annotations={"priorty": 1})

    async with connect(app, transport, revision) as peer:
        (resource,) = (await peer.request("resources/list"))["resources"]
        (template,) = (await peer.request("resources/templates/list"))["resourceTemplates"]
        assert resource["annotations"] == template["annotations"] == given


@requirement("resources.capability")
async def test_a_server_says_whether_it_has_resources(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        opened = peer.initialize_result or await peer.request("server/discover")
        assert opened["capabilities"]["resources"] == {"subscribe": True, "listChanged": True}
    only_templates = Server("templates")
    only_templates.add_resource(lambda a: a, "x:{a}")
    async with connect(only_templates, "memory", revision) as peer:
        opened = peer.initialize_result or await peer.request("server/discover")
        assert "resources" in opened["capabilities"]
        assert (await peer.request("resources/list"))["resources"] == []
    async with connect(Server("none"), transport, revision) as peer:
        opened = peer.initialize_result or await peer.request("server/discover")
        assert "resources" not in opened["capabilities"]
        for method in ("resources/list", "resources/templates/list"):
            assert (await expect_error(peer.request(method))).code == -32601
        assert (await expect_error(peer.request("resources/read", {"uri": "x:plain"}))).code == -32601


@requirement("resources.text")
async def test_text_is_read_as_text(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        notes = await peer.request("resources/read", {"uri": "file:///notes.txt"})
        assert notes["contents"] == [{"uri": "file:///notes.txt", "mimeType": "text/plain", "text": "hello"}]
        plain = await peer.request("resources/read", {"uri": "x:plain"})
        assert plain["contents"] == [{"uri": "x:plain", "text": "h\u00e9llo \U0001f642"}]
        empty = await peer.request("resources/read", {"uri": "x:empty-folder"})
        assert empty["contents"] == [{"uri": "x:empty-folder", "text": ""}]
        record = await peer.request("resources/read", {"uri": "x:record"})
        assert record["contents"] == [{"uri": "x:record", "mimeType": "application/json", "text": '{"a":[1,null]}'}]


@requirement("resources.blob")
async def test_bytes_are_read_as_base64(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        result = await peer.request("resources/read", {"uri": "x:image"})
        assert result["contents"] == [{"uri": "x:image", "mimeType": "image/png", "blob": "iVBORwD/"}]


@requirement("resources.several")
async def test_one_read_gives_several_contents(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        result = await peer.request("resources/read", {"uri": "x:folder"})
        assert result["contents"] == [
            {"uri": "x:folder/1", "mimeType": "text/markdown", "text": "# one", "_meta": {"com.example/n": 1}},
            {"uri": "x:folder", "mimeType": "text/plain", "text": "two"},
            {"uri": "x:folder", "mimeType": "text/plain", "blob": "dGhyZWU="},
        ]


@requirement("resources.not-found")
async def test_what_is_not_there_is_not_found(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        for uri in ("x:missing", "X:PLAIN", "x:plain/", "", "not a uri", "file:///notes.txt?x=1"):
            error = await expect_error(peer.request("resources/read", {"uri": uri}))
            assert error.code == (-32602 if revision == STATELESS else -32002), uri
            assert error.data == {"uri": uri}
        assert "notes" in await list_names(peer, "resources/list")


@requirement("resources.bad-uri")
async def test_a_uri_is_a_string_of_bounded_length(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        for params in ({}, {"uri": 5}, {"uri": None}, {"uri": ["x:plain"]}, {"uri": "x:" + "a" * 200}):
            assert (await expect_error(peer.request("resources/read", params))).code == -32602, params


@requirement("resources.author-errors")
async def test_a_resource_that_fails_is_an_error(
    revision: str, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(server(), transport, revision) as peer:
        gone = await expect_error(peer.request("resources/read", {"uri": "x:gone"}))
        assert gone.code == (-32602 if revision == STATELESS else -32002)
        closed = await expect_error(peer.request("resources/read", {"uri": "x:closed"}))
        assert closed.message == "closed on Sundays"
        with caplog.at_level(logging.ERROR, "dovetail"):
            broken = await expect_error(peer.request("resources/read", {"uri": "x:broken"}))
        assert broken.code == -32603
        assert "hunter2" not in broken.message
        assert "hunter2" in caplog.text


@requirement("resources.own")
async def test_a_tool_reads_resources_of_its_server(revision: str, transport: str) -> None:
    app, shelf = server(), Server("mounted")
    methods: list[str] = []

    @app.middleware
    async def note(exchange: Any, call_next: Any) -> Any:
        methods.append(exchange.method)
        return await call_next(exchange)

    @shelf.resource("mounted:note")
    def mounted_note() -> str:
        return "from the mounted server"

    @shelf.tool
    async def own(ctx: Context) -> str:
        return (await ctx.read_resource("mounted:note")).contents[0].text or ""

    @shelf.resource("mounted:question")
    async def question(ctx: Context) -> str:
        return str(await ctx.elicit("Sure?", bool))

    @app.tool
    async def show(uri: str, ctx: Context) -> str:
        try:
            return (await ctx.read_resource(uri)).contents[0].text or ""
        except (ResourceNotFound, NotSupported) as exc:
            return type(exc).__name__

    app.mount(shelf)
    capabilities = {"elicitation": {"form": {}}}
    answer = {"elicitation/create": lambda params: {"action": "accept", "content": {"value": True}}}
    async with connect(app, transport, revision, capabilities=capabilities, answer=answer) as peer:
        assert text(await call(peer, "show", uri="file:///notes.txt")) == "hello"
        assert methods == ["tools/call", "resources/read"]
        assert text(await call(peer, "show", uri="mounted:note")) == "from the mounted server"
        assert text(await call(peer, "own")) == "from the mounted server"
        assert text(await call(peer, "show", uri="file:///other.txt")) == "ResourceNotFound"
        if revision in ("2025-06-18", "2025-11-25"):
            assert text(await call(peer, "show", uri="mounted:question")) == "True"
        if revision == STATELESS:
            assert text(await call(peer, "show", uri="mounted:question")) == "NotSupported"
