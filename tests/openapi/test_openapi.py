"""Test servers made from OpenAPI: the HTTP requests match the arguments."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dovetail import Client, Context, Server, ToolError
from dovetail.types import HTTPRequest, HTTPResponse
from support.mentions import mentions, values


def spec(paths: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {"title": "Shop"},
        "servers": [{"url": "https://shop.example/v1/"}],
        "paths": paths,
    } | more


def path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


class Web:
    """Notes what is sent and answers with what it is told to."""

    def __init__(self, status: int = 200, body: Any = None, kind: str = "application/json") -> None:
        self.sent: list[HTTPRequest] = []
        self.reply = HTTPResponse(
            status, {"Content-Type": kind}, body if isinstance(body, bytes) else json.dumps(body).encode()
        )

    async def __call__(self, request: HTTPRequest) -> HTTPResponse:
        self.sent.append(request)
        return self.reply


async def sent(document: dict[str, Any], tool: str, /, **arguments: Any) -> HTTPRequest:
    web = Web()
    async with Client(Server.from_openapi(document, client=web)) as client:
        await client.call(tool, **arguments)
    (request,) = web.sent
    return request


# Places


ITEM = spec({"/items/{id}/parts": {"get": {"operationId": "part", "parameters": [path_parameter("id")]}}})


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("7", "7"),
        ("a?x=1#y", "a%3Fx%3D1%23y"),
        ("%2e%2e", "%252e%252e"),
        ("ü", "%C3%BC"),
        ("a\r\nHost: x", "a%0D%0AHost%3A%20x"),
        ("...", "..."),
    ],
)
async def test_a_value_stays_in_its_segment(value: str, path: str) -> None:
    request = await sent(ITEM, "part", id=value)
    assert request.url == f"https://shop.example/v1/items/{path}/parts"


@pytest.mark.parametrize("value", [".", "..", "", " .. ", "a/b", "1/secret", "a\\b", "/"])
async def test_no_value_walks_up_or_vanishes(value: str) -> None:
    with pytest.raises(ToolError, match="Invalid arguments"):
        await sent(ITEM, "part", id=value)


async def test_segments_of_two_values_walk_nowhere() -> None:
    document = spec(
        {"/a/{x}{y}": {"get": {"operationId": "get", "parameters": [path_parameter("x"), path_parameter("y")]}}}
    )
    with pytest.raises(ToolError):
        await sent(document, "get", x=".", y=".")


async def test_query_header_and_cookie() -> None:
    schema = {"schema": {}}
    document = spec(
        {
            "/find": {
                "parameters": [{"name": "X-Mode", "in": "header", **schema}],
                "get": {
                    "operationId": "find",
                    "parameters": [
                        {"name": "q", "in": "query", **schema},
                        {"name": "tag", "in": "query", **schema},
                        {"name": "ids", "in": "query", "explode": False, **schema},
                        {"name": "filter", "in": "query", "style": "deepObject", **schema},
                        {"name": "session", "in": "cookie", **schema},
                        {"name": "Authorization", "in": "header", **schema},
                    ],
                },
            }
        }
    )
    request = await sent(
        document,
        "find",
        q="a&b=c d",
        tag=["x", "y"],
        ids=[1, 2],
        filter={"from": 1, "on": True},
        session="s;x=1",
        **{"X-Mode": "fast"},
    )
    query = request.url.partition("?")[2]
    assert query == "q=a%26b%3Dc%20d&tag=x&tag=y&ids=1%2C2&filter%5Bfrom%5D=1&filter%5Bon%5D=true"
    assert request.headers["X-Mode"] == "fast"
    assert request.headers["Cookie"] == "session=s%3Bx%3D1"
    with pytest.raises(ToolError, match="header"):
        await sent(document, "find", **{"X-Mode": "a\r\nEvil: 1"})
    with pytest.raises(ToolError, match="Authorization"):
        await sent(document, "find", Authorization="Bearer mine")


def body(schema: Any, media: str = "application/json") -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {media: {"schema": schema}}}}


ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "readOnly": True},
        "item": {"type": "string"},
        "count": {"type": "integer"},
    },
    "required": ["item"],
}


async def test_members_of_a_body_are_arguments() -> None:
    document = spec({"/orders": {"post": {"operationId": "order", **body(ORDER)}}})
    app = Server.from_openapi(document, client=Web())
    async with Client(app) as client:
        (tool,) = await client.list_tools()
    assert set(tool.input_schema["properties"]) == {"item", "count"}
    assert tool.input_schema["required"] == ["item"]
    assert tool.annotations is not None
    assert tool.annotations.read_only_hint is None
    request = await sent(document, "order", item="tea")
    assert (request.method, json.loads(request.body)) == ("POST", {"item": "tea"})
    assert request.headers["Content-Type"] == "application/json"


PHOTO = {
    "type": "object",
    "properties": {"photo": {"type": "string", "format": "binary"}, "title": {"type": "string"}},
}


async def test_an_object_in_the_query_cannot_pass_for_another_parameter() -> None:
    parameters = [
        {"name": "more", "in": "query", "schema": {"type": "object"}},
        {"name": "role", "in": "query", "schema": {"enum": ["reader"]}},
    ]
    document = spec({"/x": {"get": {"operationId": "x", "parameters": parameters}}})
    assert (await sent(document, "x", more={"a": 1}, role="reader")).url.endswith("/x?a=1&role=reader")
    with pytest.raises(ToolError, match=values("more")):
        await sent(document, "x", more={"role": "admin"})


async def test_other_bodies() -> None:
    document = spec(
        {
            "/many": {"post": {"operationId": "many", **body({"type": "array", "items": {"type": "string"}})}},
            "/form": {"post": {"operationId": "form", **body(ORDER, "application/x-www-form-urlencoded")}},
            "/text": {"post": {"operationId": "text", **body({"type": "string"}, "text/plain")}},
            "/files": {
                "post": {
                    "operationId": "files",
                    **body({"type": "object", "properties": {"f": {}}}, "multipart/form-data"),
                }
            },
            "/photos": {"post": {"operationId": "upload", **body(PHOTO, "multipart/form-data")}},
            "/items/{item}": {"post": {"operationId": "both", "parameters": [path_parameter("item")], **body(ORDER)}},
        }
    )
    assert json.loads((await sent(document, "many", body=["a", "b"])).body) == ["a", "b"]
    assert (await sent(document, "form", item="a&b", count=1)).body == b"item=a%26b&count=1"
    assert (await sent(document, "text", body="hello")).body == b"hello"
    request = await sent(document, "files", f={"filename": 'a".txt', "data": "aGk="})
    assert b'name="f"; filename="a%22.txt"' in request.body
    assert b"\r\n\r\nhi\r\n" in request.body
    request = await sent(document, "upload", photo="aGk=", title="a")
    assert b'name="photo"; filename="file"\r\nContent-Type: application/octet-stream\r\n\r\nhi\r\n' in request.body
    with pytest.raises(ToolError, match=values("photo", "base64")):
        await sent(document, "upload", photo="?")
    request = await sent(document, "both", item="one", item_body="two")
    assert request.url.endswith("/items/one")
    assert json.loads(request.body) == {"item": "two"}


# Replies


async def reply(status: int, content: Any, kind: str = "application/json", **options: Any) -> Any:
    document = spec({"/x": {"get": {"operationId": "x"}}})
    async with Client(Server.from_openapi(document, client=Web(status, content, kind), **options)) as client:
        return await client.call("x")


async def test_a_picture_is_a_picture() -> None:
    document = spec({"/x": {"get": {"operationId": "x"}}})
    async with Client(Server.from_openapi(document, client=Web(200, b"GIF89a", "image/gif"))) as client:
        (block,) = (await client.call_tool("x")).content
    assert (block.type, getattr(block, "mime_type", None)) == ("image", "image/gif")


async def test_replies() -> None:
    assert await reply(200, {"a": [1, None]}) == {"a": [1, None]}
    assert await reply(200, b"hello", "text/plain; charset=utf-8") == "hello"
    assert "204" in await reply(204, b"")
    with pytest.raises(ToolError, match=r"404.*no such item"):
        await reply(404, {"detail": "no such item"})
    with pytest.raises(ToolError, match="10"):
        await reply(200, b"x" * 11, "text/plain", max_response_bytes=10)
    with pytest.raises(ToolError, match="JSON"):
        await reply(200, b"<html>")


async def test_credentials_of_each_call() -> None:
    web = Web()

    async def credentials(ctx: Context) -> dict[str, str]:
        return {"Authorization": f"Bearer {ctx.meta['com.example/who']}"}

    document = spec({"/x": {"get": {"operationId": "x"}}})
    async with Client(Server.from_openapi(document, client=web, headers=credentials)) as client:
        for who in ("ada", "bob"):
            await client.call_tool("x", meta={"com.example/who": who})
    assert [one.headers["Authorization"] for one in web.sent] == ["Bearer ada", "Bearer bob"]


async def test_a_header_of_the_authors_is_not_the_callers() -> None:
    parameters = [{"name": name, "in": "header", "schema": {}} for name in ("x-tenant", "Host", "X-Mode", "x-mode")]
    document = spec({"/x": {"get": {"operationId": "x", "parameters": parameters}}})
    web = Web()
    async with Client(Server.from_openapi(document, client=web, headers={"X-Tenant": "mine"})) as client:
        (tool,) = await client.list_tools()
        assert [*tool.input_schema["properties"]] == ["x-mode"]
    async with Client(Server.from_openapi(document, client=web, headers=lambda _: {"X-Tenant": "mine"})) as client:
        await client.call("x", **{"x-tenant": "other"})
    (request,) = web.sent
    assert {name: value for name, value in request.headers.items() if "tenant" in name.lower()} == {"X-Tenant": "mine"}


@pytest.mark.parametrize("status", [302, 307, 304])
async def test_a_redirect_is_not_a_success(status: int) -> None:
    with pytest.raises(ToolError, match=str(status)):
        await reply(status, b"")


# Documents


async def test_schemas_that_refer_to_themselves() -> None:
    node = {
        "type": "object",
        "properties": {"value": {"$ref": "#/components/schemas/Value"}, "next": {"$ref": "#/components/schemas/Node"}},
    }
    value = {"type": "integer", "nullable": True, "minimum": 1, "exclusiveMinimum": True}
    document = spec(
        {"/tree": {"post": {"operationId": "tree", **body({"$ref": "#/components/schemas/Node"})}}},
        components={"schemas": {"Node": node, "Value": value}},
    )
    app = Server.from_openapi(document, client=Web())
    async with Client(app) as client:
        (tool,) = await client.list_tools()
        properties = tool.input_schema["properties"]
        assert properties["value"] == {"type": ["integer", "null"], "exclusiveMinimum": 1}
        assert properties["next"] == {"$ref": "#/$defs/Node"}
        assert "Node" in tool.input_schema["$defs"]
        await client.call("tree", value=2, next={"value": 3, "next": {}})
        with pytest.raises(ToolError):
            await client.call("tree", next={"value": "x"})


async def test_schemas_that_would_explode_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    schemas = {
        f"S{n}": {"type": "object", "properties": {key: {"$ref": f"#/components/schemas/S{n + 1}"} for key in "abcd"}}
        for n in range(30)
    }
    document = spec(
        {
            "/x": {
                "post": {"operationId": "x", **body({"$ref": "#/components/schemas/S0"})},
                "get": {"operationId": "y"},
            }
        },
        components={"schemas": schemas},
    )
    async with Client(Server.from_openapi(document, client=Web())) as client:
        assert [tool.name for tool in await client.list_tools()] == ["y"]
    assert "POST /x" in caplog.text


async def test_references_to_elsewhere_are_not_followed() -> None:
    document = spec({"/x": {"post": {"operationId": "x", **body({"$ref": "https://evil.example/schema.json"})}}})
    assert (await sent(document, "x", body=1)).body == b"1"


async def test_choosing_and_naming() -> None:
    paths = {
        "/a": {"get": {"tags": ["one"]}, "post": {}},
        "/b/{x}": {"delete": {"operationId": "remove b", "parameters": [path_parameter("x")]}},
        "/c": {"get": {"operationId": "remove b"}},
    }

    async def tools(**options: Any) -> dict[str, Any]:
        async with Client(Server.from_openapi(spec(paths), client=Web(), **options)) as client:
            return {tool.name: tool for tool in await client.list_tools()}

    found = await tools()
    assert list(found) == ["get_a", "post_a", "remove_b", "remove_b_2"]
    assert found["remove_b"].annotations.destructive_hint is True
    assert found["get_a"].annotations.read_only_hint is True
    assert list(await tools(include="^GET")) == ["get_a", "remove_b_2"]
    assert list(await tools(include=lambda operation: operation.path == "/a")) == ["get_a", "post_a"]
    assert "look" in await tools(tool_names={"get_a": "look"})


def test_documents_that_are_none() -> None:
    for document, why in [
        ({"swagger": "2.0"}, "OpenAPI 3"),
        ("openapi: 3.0.0", "JSON"),
        ({"openapi": "3.0.0", "paths": {}}, "url="),
        (spec({f"/{n}": {"get": {}} for n in range(1001)}), "1000"),
    ]:
        with pytest.raises(ValueError, match=why):
            Server.from_openapi(document)
    with pytest.raises(TypeError, match="client="):
        Server.from_openapi(spec({}), client=object())


# Over the network, and without one


async def test_with_the_clients_own_http() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        text = json.dumps({"asked": head.split(b"\r\n")[0].decode()}).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(text) + text
        )
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Client(Server.from_openapi(ITEM, base_url=url)) as client:
            assert await client.call("part", id="a b") == {"asked": "GET /items/a%20b/parts HTTP/1.1"}
        async with Client(Server.from_openapi(ITEM, base_url="http://127.0.0.1:9")) as client:
            with pytest.raises(ToolError, match=values("Shop", "part")):
                await client.call("part", id="a")


async def test_an_httpx_client() -> None:
    httpx = pytest.importorskip("httpx")

    def answer(request: Any) -> Any:
        return httpx.Response(200, json={"url": str(request.url)})

    web = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    async with web, Client(Server.from_openapi(ITEM, client=web)) as client:
        assert await client.call("part", id="7") == {"url": "https://shop.example/v1/items/7/parts"}


async def test_a_fastapi_application_of_this_process() -> None:
    fastapi = pytest.importorskip("fastapi")
    steps: list[str] = []

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        steps.append("begun")
        yield
        steps.append("ended")

    web = fastapi.FastAPI(title="Shelf", lifespan=lifespan)

    @web.get("/books/{title}", operation_id="book")
    async def book(title: str, pages: int = 10) -> dict[str, Any]:
        """One book."""
        return {"title": title, "pages": pages}

    @web.post("/books", operation_id="add_book")
    async def add_book(title: str = fastapi.Body(embed=True)) -> str:
        if title == "bad":
            raise RuntimeError("secret")
        return f"added {title}"

    app = Server.from_asgi(web)
    assert app.name == "Shelf"
    async with Client(app) as client:
        assert [tool.name for tool in await client.list_tools()] == ["book", "add_book"]
        assert await client.call("book", title="a b", pages=3) == {"title": "a b", "pages": 3}
        assert await client.call("add_book", title="Emma") == "added Emma"
        with pytest.raises(ToolError, match=values("add_book", "Shelf")) as failed:
            await client.call("add_book", title="bad")
        assert "secret" not in str(failed.value)
    await app.stop()
    assert steps == ["begun", "ended"]


async def test_an_application_of_this_process_gets_the_state_of_its_lifespan() -> None:
    fastapi = pytest.importorskip("fastapi")

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[dict[str, str]]:
        yield {"pool": "the pool"}

    async def pool(request: Any) -> str:
        return request.state.pool

    pool.__annotations__["request"] = fastapi.Request
    web = fastapi.FastAPI(lifespan=lifespan)
    web.get("/pool", operation_id="pool")(pool)
    app = Server.from_asgi(web)
    async with Client(app) as client:
        assert await client.call("pool") == "the pool"
    await app.stop()


async def test_names_that_do_not_fit_are_refused() -> None:
    document = spec({"/a": {"get": {"operationId": "alpha"}, "post": {"operationId": "beta"}}})
    for names, words in (
        ({"alfa": "a"}, values("tool_names", "alfa", "alpha")),
        ({"alpha": "beta"}, values("tool_names", "alpha", "beta", "beta")),
        ({"alpha": "x", "beta": "x"}, values("tool_names", "x")),
    ):
        with pytest.raises(ValueError, match=words):
            Server.from_openapi(document, client=Web(), tool_names=names)
    app = Server.from_openapi(document, client=Web(), tool_names={"alpha": "beta", "beta": "x"}, include="GET")
    async with Client(app) as client:
        assert [tool.name for tool in await client.list_tools()] == ["beta"]


def failing(*, after: bool = False, exc: Exception | None = None) -> Any:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if after:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"done"})
        raise exc or ValueError("the shelf is on fire")

    return application


BURNING = spec({"/burn": {"post": {"operationId": "burn"}}})


async def test_an_exception_of_an_application_is_logged_once_and_masked(caplog: pytest.LogCaptureFixture) -> None:
    async with Client(Server.from_asgi(failing(), BURNING)) as client:
        with pytest.raises(ToolError) as failed:
            await client.call("burn")
    (record,) = [record for record in caplog.records if record.exc_info and "on fire" in str(record.exc_info[1])]
    assert "Traceback" in (record.exc_text or "")
    assert "on fire" not in str(failed.value)
    reference = str(failed.value).rpartition(" ")[2]
    assert f"[{reference}]" in record.getMessage()


async def test_debug_shows_an_exception_of_an_application() -> None:
    async with Client(Server.from_asgi(failing(), BURNING, debug=True)) as client:
        with pytest.raises(ToolError, match="ValueError: the shelf is on fire"):
            await client.call("burn")


async def test_an_error_for_models_inside_an_application_is_masked_too() -> None:
    async with Client(Server.from_asgi(failing(exc=ToolError("secret")), BURNING)) as client:
        with pytest.raises(ToolError, match=values("burn")) as failed:
            await client.call("burn")
    assert "secret" not in str(failed.value)


async def test_an_application_that_fails_after_its_answer_has_answered(caplog: pytest.LogCaptureFixture) -> None:
    async with Client(Server.from_asgi(failing(after=True), BURNING)) as client:
        assert await client.call("burn") == "done"
    (record,) = [one for one in caplog.records if mentions(one.getMessage(), "POST /burn")]
    assert record.exc_info


async def test_a_litestar_application_of_this_process() -> None:
    litestar = pytest.importorskip("litestar")

    from litestar.params import FromPath

    async def book(title: FromPath[str]) -> dict[str, str]:
        return {"title": title}

    web = litestar.Litestar([litestar.get("/books/{title:str}", operation_id="book")(book)])
    async with Client(Server.from_asgi(web)) as client:
        assert await client.call("book", title="Emma") == {"title": "Emma"}


# Where it is, and what comes back


class AtHome:
    """A client with an address and credentials of its own, as httpx's may have them."""

    def __init__(self, base_url: str = "") -> None:
        self.base_url = base_url
        self.asked: list[str] = []

    async def request(self, method: str, url: str, **_: Any) -> Any:
        self.asked.append(url)
        return type("Reply", (), {"status_code": 200, "headers": {"content-type": "application/json"}, "content": b"1"})


BOOKS: dict[str, Any] = {"/books": {"get": {"operationId": "books"}}}


@pytest.mark.parametrize(
    ("servers", "home", "url", "asked"),
    [
        (["https://shop.example/v1"], "", None, "https://shop.example/v1/books"),
        (["https://evil.example/v1"], "https://own.example/api/", None, "https://own.example/api/books"),
        (["//evil.example/v1"], "https://own.example/", None, "https://own.example/books"),
        (["/v2"], "https://own.example/", None, "https://own.example/v2/books"),
        (["v2/"], "https://own.example/api", None, "https://own.example/api/v2/books"),
        (["/"], "https://own.example/api", None, "https://own.example/api/books"),
        ([], "https://own.example", None, "https://own.example/books"),
        (["/v2"], "https://own.example", "https://third.example/x", "https://third.example/x/books"),
    ],
)
async def test_a_clients_own_address_goes_before_the_documents(
    servers: list[str], home: str, url: str | None, asked: str
) -> None:
    web = AtHome(home)
    document = spec(BOOKS, servers=[{"url": one} for one in servers])
    async with Client(Server.from_openapi(document, web, base_url=url)) as client:
        await client.call("books")
    assert web.asked == [asked]


def test_somebody_has_to_say_where_the_service_is() -> None:
    with pytest.raises(ValueError, match=r"url=.*base_url"):
        Server.from_openapi(spec(BOOKS, servers=[{"url": "/v2"}]), AtHome())


def answering(schema: Any, *, code: str = "200", media: str = "application/json", **more: Any) -> dict[str, Any]:
    responses: dict[str, Any] = {code: {"content": {media: {"schema": schema}}}, "404": {}, "default": {}} | more
    return spec({"/b": {"get": {"operationId": "b", "responses": responses}}})


BOOK = {
    "title": "Book",
    "type": "object",
    "properties": {
        "title": {"title": "Title", "type": "string"},
        "by": {"allOf": [{"type": "string"}], "nullable": True},
    },
    "required": ["title"],
}


async def test_results_have_the_schema_of_the_document() -> None:
    document = answering(BOOK)
    kept, broken = Web(body={"title": "Emma", "by": None}), Web(body={"name": "Emma"})
    async with Client(Server.from_openapi(document, kept)) as client:
        (tool,) = await client.list_tools()
        assert tool.output_schema == {
            "type": "object",
            "properties": {
                "title": {"type": "string"},
                "by": {"anyOf": [{"allOf": [{"type": "string"}]}, {"type": "null"}]},
            },
            "required": ["title"],
        }
        assert await client.call("b") == {"title": "Emma", "by": None}
    async with Client(Server.from_openapi(document, broken)) as client:
        with pytest.raises(ToolError, match=values("b")):
            await client.call("b")
    async with Client(Server.from_openapi(document, Web(body=b"", kind="text/plain"))) as client:
        with pytest.raises(ToolError, match="JSON"):
            await client.call("b")
    async with Client(Server.from_openapi(document, broken, validate_output=False)) as client:
        assert (await client.list_tools())[0].output_schema is None
        assert await client.call("b") == {"name": "Emma"}


@pytest.mark.parametrize("revision", ["2025-06-18", "2026-07-28"])
async def test_lists_are_promised_as_results_of_functions_are(revision: str) -> None:
    document = answering({"type": "array", "items": {"type": "string"}}, code="2XX", media="application/hal+json")
    async with Client(Server.from_openapi(document, Web(body=["a", "b"])), protocol_version=revision) as client:
        assert (await client.list_tools())[0].output_schema is not None
        assert await client.call("b") == ["a", "b"]


@pytest.mark.parametrize(
    "document",
    [
        answering(BOOK, **{"201": {}}),
        answering(BOOK, media="text/html"),
        answering(
            {"type": "object", "properties": {"key": {"type": "string", "writeOnly": True}}, "required": ["key"]}
        ),
        answering({"type": "string", "pattern": "(?=x)"}),
        answering(None),
    ],
    ids=["two", "text", "written only", "unchecked", "none"],
)
async def test_what_is_not_clear_is_not_promised(document: dict[str, Any]) -> None:
    async with Client(Server.from_openapi(document, Web(body=1))) as client:
        (tool,) = await client.list_tools()
        assert tool.output_schema is None
        assert await client.call("b") == 1
