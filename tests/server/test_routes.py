"""Test HTTP routes beside the MCP endpoint: access, requests, responses, limits and mounts."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pytest
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse

from dovetail import (
    Client,
    Context,
    RouteRequest,
    RouteResponse,
    Server,
    ServerLimits,
    ToolError,
    current_principal,
    get_context,
)
from dovetail.auth import Guard, Principal, StaticTokenVerifier
from dovetail.errors import RemoteError
from dovetail.middleware import CallNext, Exchange
from support.fake_service import AsgiRequest, post, request, stateless_request
from support.live_server import serve_app
from support.raw_http import HttpServerAddress

TOKENS = StaticTokenVerifier(
    {"ada": Principal("ada", scopes=["read", "write"]), "bob": Principal("bob", scopes=["read"])}
)
ADA, BOB = {"authorization": "Bearer ada"}, {"authorization": "Bearer bob"}


async def send(
    app: Any, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b"", **scope: Any
) -> AsgiRequest:
    return await AsgiRequest(app, method, path, body, headers or {}, **scope).wait_done()


async def test_a_webhook_gets_the_request() -> None:
    app = Server("x")
    seen: list[RouteRequest] = []

    @app.route("/webhook", methods=["POST"])
    async def receive(request: RouteRequest) -> None:
        seen.append(request)

    answer = await send(
        app.asgi(), "POST", "/webhook", {"x-signature": "abc"}, b'{"id": 7}', query_string=b"a=1&a=2&b=%20"
    )
    assert (answer.status, answer.body) == (204, b"")
    (received,) = seen
    assert (received.method, received.path, received.principal) == ("POST", "/webhook", None)
    assert received.client_address == "127.0.0.1"
    assert received.headers["x-signature"] == received.headers["X-Signature"] == "abc"
    assert (received.query, received.query_string) == ({"a": "2", "b": " "}, "a=1&a=2&b=%20")
    assert (received.body, received.text, received.json()) == (b'{"id": 7}', '{"id": 7}', {"id": 7})


class Item(BaseModel):
    n: int


@dataclass
class Order:
    id: int


@pytest.mark.parametrize(
    ("value", "status", "content_type", "body"),
    [
        ("héllo", 200, "text/plain; charset=utf-8", "héllo".encode()),
        (b"\x00", 200, "application/octet-stream", b"\x00"),
        ({"a": [1]}, 200, "application/json", b'{"a":[1]}'),
        ({"who": Principal("ada")}, 200, "application/json", b'{"who":"ada"}'),
        ([Item(n=1)], 200, "application/json", b'[{"n":1}]'),
        (Order(3), 200, "application/json", b'{"id":3}'),
        (RouteResponse({"error": "gone"}, 410), 410, "application/json", b'{"error":"gone"}'),
        (RouteResponse("<p>", headers={"Content-Type": "text/html"}), 200, "text/html", b"<p>"),
        (RouteResponse(status_code=302, headers={"location": "/x"}), 302, None, b""),
        (PlainTextResponse("ok", 201), 201, "text/plain; charset=utf-8", b"ok"),
        (StreamingResponse(iter([b"a", b"b"])), 200, None, b"ab"),
    ],
)
async def test_responses(value: object, status: int, content_type: str | None, body: bytes) -> None:
    app = Server("x")

    @app.route("/page")
    def page() -> object:
        return value

    answer = await send(app.asgi(), "GET", "/page")
    assert (answer.status, answer.headers.get("content-type"), answer.body) == (status, content_type, body)


@pytest.mark.parametrize("headers", [{"x": "a\r\nset-cookie: b"}, {"a b": "c"}])
async def test_a_value_cannot_add_other_headers(headers: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    app = Server("x")

    @app.route("/page")
    def page() -> RouteResponse:
        return RouteResponse("text", headers=headers)

    answer = await send(app.asgi(), "GET", "/page")
    assert answer.status == 500
    assert "set-cookie" not in answer.headers
    assert caplog.records


async def test_functions_written_for_starlette_work() -> None:
    app = Server("x")

    @app.route("/orders/{id}", methods=["POST"])
    async def order(request: Request) -> PlainTextResponse:
        body = await request.json()
        return PlainTextResponse(f"{request.path_params['id']} {body['n']} {request.query_params['q']}")

    answer = await send(app.asgi(), "POST", "/orders/a7", {}, b'{"n": 2}', query_string=b"q=z")
    assert answer.body == b"a7 2 z"


async def test_routes_need_the_credentials_of_the_endpoint() -> None:
    app = Server("x", auth=TOKENS)

    @app.route("/me")
    def me(request: RouteRequest) -> str:
        return f"{request.principal} {current_principal()}"

    @app.route("/admin", scopes=["write"])
    def admin() -> str:
        return "admin"

    @app.route("/webhook", methods=["POST"], allow_anonymous=True)
    def webhook(request: RouteRequest) -> dict[str, object]:
        return {"principal": request.principal}

    endpoint = app.asgi()
    assert (await send(endpoint, "GET", "/me")).status == 401
    assert (await send(endpoint, "POST", "/me")).status == 401
    assert (await send(endpoint, "GET", "/nothing")).status == 401
    assert (await send(endpoint, "GET", "/me", {"authorization": "Bearer wrong"})).status == 401
    assert (await send(endpoint, "GET", "/me", ADA)).body == b"ada ada"
    refused = await send(endpoint, "GET", "/admin", BOB)
    assert refused.status == 403
    assert 'error="insufficient_scope", scope="write' in refused.headers["www-authenticate"]
    assert (await send(endpoint, "GET", "/admin", ADA)).body == b"admin"
    assert (await send(endpoint, "POST", "/webhook", {"authorization": "Bearer wrong"})).body == b'{"principal":null}'
    assert (await send(endpoint, "GET", "/webhook")).status == 405


async def test_the_metadata_lists_the_scopes_of_routes() -> None:
    app = Server("x", auth=Guard(TOKENS, authorization_servers=["https://login.example"]))
    app.route("/admin", scopes=["write"])(lambda: "admin")
    answer = await send(app.asgi(), "GET", "/.well-known/oauth-protected-resource/mcp")
    assert json.loads(answer.body)["scopes_supported"] == ["write"]


async def test_an_authenticate_function_decides_about_routes() -> None:
    async def authenticate(headers: Any) -> str | None:
        return headers[b"x-user"].decode()

    app = Server("x", auth=authenticate)
    app.route("/me")(lambda request: request.principal)
    endpoint = app.asgi()
    assert (await send(endpoint, "GET", "/me", {"x-user": "eve"})).body == b"eve"
    assert (await send(endpoint, "GET", "/me")).status == 500


@pytest.mark.parametrize("anonymous", [False, True])
@pytest.mark.parametrize(
    ("headers", "status"),
    [({"host": "evil.example"}, 421), ({"origin": "https://evil.example"}, 403), ({"origin": "http://localhost"}, 200)],
)
async def test_host_and_origin_are_checked(anonymous: bool, headers: dict[str, str], status: int) -> None:
    app = Server("x")
    app.route("/page", allow_anonymous=anonymous)(lambda: "text")
    assert (await send(app.asgi(), "GET", "/page", headers)).status == status


async def test_a_preflight_lists_the_methods_of_the_route() -> None:
    app = Server("x", auth=TOKENS)
    app.route("/item/{id}", methods=["PUT"])(lambda: "x")
    headers = {"origin": "https://site.example", "access-control-request-method": "PUT"}
    answer = await send(app.asgi(cors_origins=["https://site.example"]), "OPTIONS", "/item/1", headers)
    assert (answer.status, answer.headers["access-control-allow-methods"]) == (204, "PUT")


async def test_unknown_methods_and_paths() -> None:
    app = Server("x")
    app.route("/page", methods=["POST"])(lambda: "posted")
    app.route("/page", methods=["GET"])(lambda: "read")
    endpoint = app.asgi()
    assert (await send(endpoint, "GET", "/page")).body == b"read"
    assert (await send(endpoint, "POST", "/page/")).body == b"posted"
    app.route("/folder/")(lambda: "listed")
    assert (await send(endpoint, "GET", "/folder")).body == b"listed"
    refused = await send(endpoint, "PUT", "/page")
    assert (refused.status, refused.headers["allow"]) == (405, "POST, GET, HEAD")
    assert (await send(endpoint, "GET", "/page/more")).status == 404
    assert (await send(endpoint, "GET", "/page", raw_path=b"/%70age")).status == 404


@pytest.mark.parametrize(("part", "reason"), [("a%2Fb", "%2F"), ("a%2fb", "%2F"), ("%61", "unnecessary")])
async def test_an_encoded_slash_is_explained(part: str, reason: str) -> None:
    app = Server("x")

    @app.route("/orders/{id}")
    def show(request: RouteRequest) -> str:
        return request.path_params["id"]

    answer = await send(app.asgi(), "GET", unquote(f"/orders/{part}"), raw_path=f"/orders/{part}".encode())
    assert answer.status == 404
    assert reason in answer.last["error"]["message"]


async def test_a_plain_path_precedes_a_placeholder() -> None:
    app = Server("x")
    app.route("/orders/{id}")(lambda request: request.path_params["id"])
    app.route("/orders/new")(lambda: "form")
    endpoint = app.asgi()
    assert (await send(endpoint, "GET", "/orders/new")).body == b"form"
    assert (await send(endpoint, "GET", "/orders/7")).body == b"7"
    assert (await send(endpoint, "GET", "/orders/a/b")).status == 404


async def test_a_placeholder_cannot_hide_paths_of_the_endpoint() -> None:
    app = Server("x", auth=Guard(TOKENS, authorization_servers=["https://login.example"]))
    app.route("/{a}", allow_anonymous=True)(lambda: "mine")
    app.route("/{a}/{b}", allow_anonymous=True)(lambda: "mine")
    endpoint = app.asgi(health=True)
    assert (await send(endpoint, "GET", "/live")).body == b"ok"
    assert (await send(endpoint, "GET", "/sse")).status == 401
    assert (await send(endpoint, "GET", "/mcp")).status == 401
    assert b"login.example" in (await send(endpoint, "GET", "/.well-known/oauth-protected-resource")).body
    assert (await send(endpoint, "GET", "/other")).body == b"mine"


@pytest.mark.parametrize(
    ("path", "options"), [("/mcp", {}), ("/x", {"path": "/x"}), ("/sse", {}), ("/ready", {"health": True})]
)
def test_paths_of_the_endpoint_are_refused(path: str, options: dict[str, Any]) -> None:
    app = Server("x")
    app.route(path)(lambda: "mine")
    with pytest.raises(ValueError, match=path):
        app.asgi(**options)


@pytest.mark.parametrize("path", ["webhook", "/a//b", "/a?b", "/a{b}", "/{a-b}", "/%41", "/{a+}"])
def test_invalid_paths(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        Server("x").route(path)(lambda: "x")


def test_invalid_options() -> None:
    app = Server("x")
    with pytest.raises(TypeError):
        app.route(lambda: "x")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        app.route("/a", methods="POST")(lambda: "x")
    with pytest.raises(ValueError, match="methods"):
        app.route("/a", methods=[])(lambda: "x")
    with pytest.raises(ValueError, match="scopes"):
        app.route("/a", scopes=["a"], allow_anonymous=True)(lambda: "x")
    with pytest.raises(TypeError):
        app.route("/a")(lambda request, other: "x")
    app.route("/a")(lambda: "x")
    with pytest.raises(ValueError, match="/a"):
        app.route("/a")(lambda: "x")


async def test_errors_do_not_show_details(caplog: pytest.LogCaptureFixture) -> None:
    app = Server("x")

    @app.route("/fail")
    def fail() -> str:
        raise RuntimeError("secret")

    @app.route("/refuse")
    def refuse() -> str:
        raise ToolError("no such order")

    @app.route("/order", methods=["POST"])
    def order(request: RouteRequest) -> int:
        return request.json(Order).id

    endpoint = app.asgi()
    failed = await send(endpoint, "GET", "/fail")
    assert failed.status == 500
    assert b"secret" not in failed.body
    assert "secret" in str(caplog.records[0].exc_info)
    refused = await send(endpoint, "GET", "/refuse")
    assert (refused.status, json.loads(refused.body)["error"]["message"]) == (400, "no such order")
    assert [(await send(endpoint, "POST", "/order", {}, body)).status for body in (b"{", b'{"id": "x"}', b"\xff")] == [
        400,
        400,
        400,
    ]
    assert (await send(endpoint, "POST", "/order", {}, b'{"id": 4}')).body == b"4"


async def test_limits_of_calls_apply() -> None:
    app = Server("x", limits=ServerLimits(max_calls=1, call_timeout=30, max_body_bytes=100))
    entered, may_end = asyncio.Event(), asyncio.Event()

    @app.route("/slow")
    async def slow() -> str:
        entered.set()
        await may_end.wait()
        return "done"

    app.route("/upload", methods=["POST"])(lambda: "stored")
    endpoint = app.asgi()
    running = AsgiRequest(endpoint, "GET", "/slow")
    await entered.wait()
    assert app.stats().running_calls == 1
    busy = await send(endpoint, "GET", "/slow")
    assert busy.status == 503
    assert int(busy.headers["retry-after"]) >= 1
    may_end.set()
    assert (await running.wait_done()).body == b"done"
    assert (await send(endpoint, "POST", "/upload", {"content-length": "101"}, b"")).status == 413
    many_fields = b"&".join([b"a=1"] * 2000)
    assert (await send(endpoint, "POST", "/upload", query_string=many_fields)).status == 400


async def test_the_timeout_of_calls_applies() -> None:
    app = Server("x", limits=ServerLimits(call_timeout=0.05))

    @app.route("/slow")
    async def slow() -> None:
        await asyncio.Event().wait()

    assert (await send(app.asgi(), "GET", "/slow")).status == 500


async def test_a_route_can_use_the_server() -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncGenerator[str]:
        yield "database"

    app = Server("x", auth=TOKENS, lifespan=lifespan)
    seen: list[str] = []

    @app.middleware
    async def note(exchange: Exchange, call_next: CallNext) -> object:
        seen.append(exchange.method)
        return await call_next(exchange)

    @app.tool(scopes=["write"])
    async def add(count: int, ctx: Context[str]) -> str:
        await ctx.user_state.set("count", count)
        return ctx.lifespan

    @app.route("/add", methods=["POST"])
    async def add_by_http(request: RouteRequest) -> object:
        ctx = get_context()
        result = await ctx.call_tool("add", {"count": request.json()})
        return [result.text, await ctx.user_state.get("count"), ctx.lifespan]

    endpoint = app.asgi()
    assert (await send(endpoint, "POST", "/add", ADA, b"3")).body == b'["database",3,"database"]'
    assert (await send(endpoint, "POST", "/add", BOB, b"3")).status == 403
    assert seen == ["tools/call", "tools/call"]
    await app.stop()


async def test_no_client_can_send_the_method_of_routes() -> None:
    app = Server("x")
    app.route("/page")(lambda: "mine")
    app.tool(lambda: "x", name="a")
    async with Client(app) as client:
        with pytest.raises(RemoteError, match="-32601"):
            await client.request("http route", {})
    answer = await post(app.asgi(), stateless_request("http route"))
    assert answer.status == 404
    assert (await post(app.asgi(sessions=False), request("http route"))).last["error"]["code"] == -32601


async def test_routes_of_mounted_servers() -> None:
    shop, app = Server("shop"), Server("x", auth=TOKENS)
    shop.route("/stock")(lambda: "3")
    shop.route("/hook", allow_anonymous=True)(lambda: get_context().principal or "anyone")
    app.mount(shop, "shop")
    app.mount(shop, scopes=["write"])
    endpoint = app.asgi()
    assert (await send(endpoint, "GET", "/shop/stock")).status == 401
    assert (await send(endpoint, "GET", "/shop/stock", BOB)).body == b"3"
    assert (await send(endpoint, "GET", "/shop/hook")).body == b"anyone"
    # The second mount needs a scope, also for the anonymous route.
    assert (await send(endpoint, "GET", "/hook")).status == 401
    assert (await send(endpoint, "GET", "/hook", BOB)).status == 403
    assert (await send(endpoint, "GET", "/hook", ADA)).body == b"ada"
    assert (await send(endpoint, "GET", "/shopstock", ADA)).status == 404


async def test_a_mounted_server_stops_with_the_outer_server() -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncGenerator[str]:
        events.append("open")
        yield "database"
        events.append("closed")

    shop, middle, app = Server("shop", lifespan=lifespan), Server("middle"), Server("x")
    shop.route("/stock")(lambda: get_context().lifespan)
    await app.start()
    middle.mount(shop)
    app.mount(middle, "shop")
    assert (await send(app.asgi(), "GET", "/shop/stock")).body == b"database"
    assert events == ["open"]
    await app.stop()
    assert events == ["open", "closed"]


async def test_a_mount_with_a_function_hides_routes() -> None:
    shop, app = Server("shop"), Server("x", auth=TOKENS)
    shop.route("/stock")(lambda: "3")
    app.mount(shop, visible_to=lambda principal: principal == "ada")
    endpoint = app.asgi()
    assert (await send(endpoint, "GET", "/stock", BOB)).status == 404
    assert (await send(endpoint, "GET", "/stock", ADA)).status == 200


async def test_a_fallback_gets_all_other_paths() -> None:
    app = Server("x")
    app.route("/page")(lambda: "mine")
    endpoint = app.asgi(fallback=PlainTextResponse("other"))
    assert (await send(endpoint, "GET", "/page")).body == b"mine"
    assert (await send(endpoint, "GET", "/else")).body == b"other"


async def test_routes_are_relative_to_the_mounted_application() -> None:
    app = Server("x")
    app.route("/page")(lambda request: request.path)
    assert (await send(app.asgi(), "GET", "/tools/page", root_path="/tools")).body == b"/page"


async def test_a_real_server_answers_head_requests() -> None:
    app = Server("x")
    app.route("/page")(lambda: "text")
    async with serve_app(lambda _: app.asgi()) as url:
        server = HttpServerAddress(int(url.rpartition(":")[2]))
        response = await server.open("HEAD", "/page")
        assert (response.status, response.headers["content-length"], await response.read()) == (200, "4", b"")
        assert await (await server.open("GET", "/page")).read() == b"text"
