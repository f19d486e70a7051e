"""Test that mistakes of server authors are found early and explained."""

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import pytest
from annotated_types import Ge

from dovetail import (
    CacheHint,
    Context,
    InputRequired,
    RemoteError,
    ResourceContents,
    Server,
    ServerLimits,
    TextContent,
    ToolError,
    tool,
)
from dovetail import Client as AnyClient
from dovetail.auth import StaticTokenVerifier
from dovetail.middleware import LogRequests, RateLimit, ResponseLimit
from dovetail.server.server import get_dispatcher
from dovetail.wire.resources import ReadResourceResult
from server.direct_client import LATEST_HANDSHAKE, NEWEST, Client, error_text, text
from support.mentions import mentions, values

ONE = {"elicitation/create": lambda _: {"action": "accept", "content": {"value": 1}}}
GUARDED = Server("guarded", auth=StaticTokenVerifier({"token": "ada"}))
ERAS = pytest.mark.parametrize("revision", [NEWEST, LATEST_HANDSHAKE])


@ERAS
async def test_two_questions_with_one_key_are_refused(revision: str) -> None:
    app = Server("x", debug=True)

    @app.tool
    async def twice(ctx: Context) -> int:
        return await ctx.elicit("a", int, key="k") + await ctx.elicit("b", int, key="k")

    assert mentions(error_text(await Client(app, revision, answers=ONE).call_with_input_rounds("twice")), "k")


async def test_a_swallowed_input_request_is_explained() -> None:
    app = Server("x", debug=True)

    @app.tool
    async def greedy(ctx: Context) -> str:
        try:
            return str(await ctx.elicit("a", int))
        except BaseException:
            return "fallback"

    assert mentions(error_text(await Client(app).call("greedy")), "except BaseException")


async def test_progress_of_a_function_that_runs_again_goes_on_rising() -> None:
    app = Server("x")

    @app.tool
    async def rounds(ctx: Context) -> str | InputRequired:
        await ctx.progress(1)
        await ctx.progress(2)
        return "done" if ctx.request_state else InputRequired(request_state="seen")

    client = Client(app, LATEST_HANDSHAKE)
    result = await client.request("tools/call", {"name": "rounds", "arguments": {}}, progressToken=7)
    assert text(result) == "done"
    assert [one["params"]["progress"] for one in client.said] == [1, 2]


async def test_people_may_take_their_time_with_questions_asked_side_by_side() -> None:
    """The first answer does not start the clock again while the second is still awaited."""
    app = Server("x", limits=ServerLimits(call_timeout=0.05))
    let_go = asyncio.Event()

    @app.tool
    async def both(ctx: Context) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.elicit("quick", int))
            group.create_task(ctx.elicit("slow", int))
        return "done"

    @app.tool
    async def hang() -> str:
        await asyncio.Event().wait()
        return "never"

    client = Client(app, LATEST_HANDSHAKE)
    exchange = client.exchange("tools/call", {"name": "both"})
    exchange.ask = lambda _, params: answer(params["message"])
    answered = asyncio.Event()

    async def answer(message: str) -> Any:
        if message == "slow":
            await let_go.wait()
        else:
            answered.set()
        return {"action": "accept", "content": {"value": 1}}

    asking = asyncio.create_task(client.run(exchange))
    await answered.wait()
    assert (await client.call("hang"))["isError"]  # began later, and was stopped by its time limit
    let_go.set()
    assert text(await asking) == "done"


async def test_arguments_changed_by_their_tool_do_not_spoil_its_state() -> None:
    app = Server("x")

    @app.tool(input_schema={"type": "object"})
    async def changes(arguments: dict[str, Any], ctx: Context) -> str:
        arguments["more"] = True
        return str(await ctx.elicit("a", int))

    assert text(await Client(app, answers=ONE).call_with_input_rounds("changes", {"y": 1})) == "1"


def wrong(**options: Any) -> Callable[[Server], None]:
    return lambda app: app.add_tool(lambda: "x", name="t", **options)


def named() -> str:
    return "x"


def asking(city: str) -> str:
    return city


DOCUMENT: dict[str, Any] = {"openapi": "3.1.0", "servers": [{"url": "https://shop.example"}], "paths": {}}


class Waits:
    """A client that holds up its caller, as httpx.Client does."""

    def request(self, method: str, url: str, **options: Any) -> Any: ...
    def close(self) -> None: ...


def plain_middleware(exchange: Any, call_next: Any) -> Any:
    return call_next(exchange)


class PlainMiddleware:
    def __call__(self, exchange: Any, call_next: Any) -> Any:
        return call_next(exchange)

    def wrap(self, exchange: Any, call_next: Any) -> Any:
        return call_next(exchange)


class MiddlewareClass:
    def __init__(self, first: Any, second: Any) -> None: ...


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (wrong(icons=["a.png"]), "icons="),
        (wrong(icons=[None]), "icons=.*None"),
        (wrong(tags="a"), r"tags=\['a'\]"),
        (wrong(max_concurrency=True), "max_concurrency=.*True"),
        (lambda _: CacheHint(-5), "-5"),
        (lambda _: CacheHint(scope="shared"), "shared"),  # pyright: ignore[reportArgumentType]
        (wrong(title=3), "title="),
        (wrong(timeout=-3), "timeout"),
        (wrong(timeout="3"), "timeout="),
        (lambda app: app.resource(lambda: "x"), "URI"),
        (lambda app: app.asgi(response_mode="stream"), "'auto', 'json'.*'sse'"),
        (lambda _: Server("x", auth=lambda _: "ada"), "auth.*async"),
        (lambda app: app.asgi(respons_mode="json"), values("respons_mode", "response_mode")),
        (wrong(timout=3), values("timout", "timeout")),
        (wrong(cache_hint=CacheHint(3)), "middleware.ResponseCache"),
        (lambda app: app.prompt(read_only=True)(named), values("prompt", "read_only")),
        (lambda app: app.resource("x://y", mimetype="a/b")(named), values("mimetype", "mime_type")),
        (lambda app: app.resource("x://{y}", size=3)(lambda y: y), "x://{y}"),
        (lambda app: app.resource("notes")(named), values("URI", "notes")),
        (lambda app: app.resource("/notes/{y}")(lambda y: y), values("URI", "/notes/{y}")),
        (lambda _: tool(timout=3)(named), values("timout", "timeout")),
        (lambda app: app.completion("nobody", "x")(named), values("nobody")),
        (lambda app: (app.prompt(asking), app.completion("askin", "city")), values("askin", "asking")),
        (lambda app: (app.prompt(asking), app.completion("asking", "ciy")), values("ciy", "city")),
        (lambda app: app.mount("http://far.example/mcp"), values("Server", "Client", "http://far.example/mcp")),
        (lambda app: app.mount(app, "x"), values("x", "x")),
        (lambda app: app.middleware(plain_middleware), "plain_middleware.*async def"),
        (lambda app: app.middleware(functools.partial(plain_middleware)), "async def"),
        (lambda app: app.middleware(PlainMiddleware()), "PlainMiddleware.*async def"),
        (lambda app: app.middleware(PlainMiddleware().wrap), "PlainMiddleware.wrap.*async def"),
        (lambda app: app.middleware(MiddlewareClass), "MiddlewareClass.*async def"),
        (lambda app: app.middleware(lambda exchange: None), "exchange"),
        (lambda _: AnyClient("http://far.example", middleware=[plain_middleware]), "plain_middleware.*async def"),
        (lambda _: Server("x", cache_hints={"tools": CacheHint(3)}), "tools.*tools/list"),
        (lambda app: app.run("unix"), "path"),
        (lambda app: app.run("tcp"), "port"),
        (lambda app: app.run(port=8000), r'app.run\("http", port=...\)'),
        (lambda app: app.run("http", prot=8000), values("prot", "port")),
        (lambda app: app.run("http", port="8000"), values(0, 65535)),
        (lambda app: app.run("http", port=80000), values(0, 65535)),
        (lambda app: app.run("streamable-http"), values("streamable-http", "http")),
        (lambda app: app.run("http", workers=0), values("workers", 1)),
        (lambda app: app.run("tcp", host="0.0.0.0", port=0), "allow_anonymous=True"),
        (lambda _: GUARDED.run("tcp", port=0), "auth=.*HTTP.*allow_anonymous=True"),
        (lambda _: GUARDED.run("unix", path="/nowhere/s"), "auth=.*HTTP.*allow_anonymous=True"),
        (lambda _: ServerLimits(call_timeout=-3), "call_timeout"),
        (lambda _: Server(5), "name=.*5"),  # pyright: ignore[reportArgumentType]
        (lambda _: Server("x", version=1), "version="),  # pyright: ignore[reportArgumentType]
        (lambda _: Server("x", limits=5), "limits=.*Limits"),  # pyright: ignore[reportArgumentType]
        (lambda _: Server("x", page_size="5"), "page_size="),  # pyright: ignore[reportArgumentType]
        (lambda _: Server("x", middleware=LogRequests()), "middleware="),  # pyright: ignore[reportArgumentType]
        (lambda app: app.mount(Server("y"), 5), "prefix="),
        (lambda app: app.tool(5), values("name", 5)),
        (lambda app: app.add_tool(named, name=5), "name="),
        (lambda app: app.add_resource(named, 5), values("URI", 5)),
        (lambda app: (app.add_tool(named), app.remove_tool("name")), values("name", "named")),
        (lambda _: RateLimit("5"), "requests.*'5'"),  # pyright: ignore[reportArgumentType]
        (lambda _: RateLimit(5, per="1"), "per"),  # pyright: ignore[reportArgumentType]
        (lambda _: RateLimit(5, methods="tools/call"), "methods"),
        (lambda _: ResponseLimit("5"), "max_bytes"),  # pyright: ignore[reportArgumentType]
        (lambda _: Server.from_openapi(DOCUMENT, include=["GET"]), 'include=.*"GET /path"'),
        (lambda _: Server.from_openapi(DOCUMENT, include="(("), r"include=.*\(\("),
        (lambda _: Server.from_openapi(DOCUMENT, tool_names=["a"]), "names="),  # pyright: ignore[reportArgumentType]
        (lambda _: Server.from_openapi(DOCUMENT, client=Waits()), "Waits"),
        (lambda _: Server.from_openapi("shop/doc.json"), "'shop/doc.json'"),
        (lambda _: Server.from_openapi("https://shop.example/openapi"), "https://shop.example/openapi"),
        (lambda _: Server.from_openapi(5), values("dict", "JSON", "int")),
    ],
)
def test_a_mistake_raises_where_it_is_made(mistake: Callable[[Server], Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        mistake(Server("x"))


def test_a_constraint_that_is_never_checked_is_refused() -> None:
    app = Server("x")

    class Kept(msgspec.Struct):
        amount: Annotated[int, Ge(1)]

    def typed(a: Kept) -> int:
        return a.amount

    with pytest.raises(TypeError, match=values("a", "Kept.amount", "msgspec.Meta")):
        app.add_tool(typed)


def test_servers_cannot_be_part_of_each_other() -> None:
    first, second, third = Server("first"), Server("second"), Server("third")
    first.mount(second)
    second.mount(third)
    with pytest.raises(ValueError, match=values("first", "third")):
        third.mount(first)
    third.add_tool(lambda: 1, name="one")  # and all of them still work
    first.mount(third, "again")


async def test_a_result_that_was_not_awaited_is_reported_with_a_fix(caplog: pytest.LogCaptureFixture) -> None:
    app = Server("x")

    @app.tool
    def forgets(ctx: Context) -> Any:
        return ctx.elicit("What?", int)

    await Client(app).call("forgets")
    assert mentions(caplog.text, "Context.elicit", "await")


@pytest.mark.parametrize("name", ["bad name!", "a,b", "a/b", "ä", "a" * 129])
def test_a_name_that_clients_may_refuse_is_reported(name: str, caplog: pytest.LogCaptureFixture) -> None:
    Server("x").add_tool(named, name=name)
    assert repr(name) in caplog.text


@pytest.mark.parametrize("name", ["a", "Get-user_2.list", "a" * 128])
def test_a_name_of_the_specification_is_not(name: str, caplog: pytest.LogCaptureFixture) -> None:
    Server("x").add_tool(named, name=name)
    assert not caplog.text


def test_a_method_without_its_object_is_refused() -> None:
    app = Server("x")
    with pytest.raises(TypeError, match=values("self", "dovetail.tool")):

        class Shop:
            @app.tool
            def sell(self, what: str) -> str:
                return what

    for decorate in (app.tool, app.tool("y"), app.prompt):
        with pytest.raises(TypeError, match=values("classmethod", "app.include(object)")):
            decorate(classmethod(lambda cls, what: what))  # pyright: ignore[reportArgumentType, reportCallIssue]

    @app.tool
    def honest(self: str) -> str:
        return self

    assert list(get_dispatcher(app).registry.list_registered("tool")) == ["honest"]


async def test_middleware_that_returns_no_result_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async def chatty(exchange: Any, call_next: Any) -> Any:
        return "text" if exchange.method == "tools/call" else await call_next(exchange)

    app = Server("x", middleware=[chatty])
    app.add_tool(lambda: "y", name="y")
    async with AnyClient(app) as client:
        assert [one.name for one in await client.list_tools()] == ["y"]
        with pytest.raises(RemoteError, match="tools/call"):
            await client.call("y")
    assert mentions(caplog.text, "chatty", "str")


def inject_limit(function: Callable[[Any, Any, int], Any]) -> Callable[[Any, Any], Any]:
    @functools.wraps(function)
    async def wrapper(exchange: Any, call_next: Any) -> Any:
        result = function(exchange, call_next, 3)
        return await result if asyncio.iscoroutine(result) else await call_next(exchange)

    return wrapper


def pass_on(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @functools.wraps(function)
    def wrapper(exchange: Any, call_next: Any) -> Any:
        return function(exchange, call_next)

    return wrapper


class AsyncMiddleware:
    async def __call__(self, exchange: Any, call_next: Any) -> Any:
        return await call_next(exchange)

    async def wrap(self, exchange: Any, call_next: Any) -> Any:
        return await call_next(exchange)


@inject_limit
def sync_with_three_arguments(exchange: Any, call_next: Any, limit: int) -> None: ...


@inject_limit
async def async_with_three_arguments(exchange: Any, call_next: Any, limit: int) -> Any:
    return await call_next(exchange)


@pytest.mark.parametrize(
    "middleware",
    [
        sync_with_three_arguments,
        async_with_three_arguments,
        pass_on(AsyncMiddleware().wrap),
        AsyncMiddleware(),
        AsyncMiddleware().wrap,
        functools.partial(AsyncMiddleware().wrap),
        lambda exchange, call_next: call_next(exchange),
    ],
    ids=["sync", "async", "decorated", "object", "method", "partial", "lambda"],
)
async def test_middleware_is_checked_as_it_is_called(middleware: Any) -> None:
    app = Server("x", middleware=[middleware])
    app.add_tool(lambda: "y", name="y")
    async with AnyClient(app) as client:
        assert await client.call("y") == "y"


async def test_middleware_hands_things_to_the_function() -> None:
    async def knowing(exchange: Any, call_next: Any) -> Any:
        exchange.extra["who"] = exchange.meta.get("who", "nobody")
        return await call_next(exchange)

    app = Server("x", middleware=[knowing])

    @app.tool
    def whose(ctx: Context) -> str:
        return str(ctx.extra)

    inner = Server("inner")
    inner.add_tool(whose)
    app.mount(inner, "in")
    async with AnyClient(app) as client:
        assert await client.call("whose") == await client.call("in_whose") == "{'who': 'nobody'}"
    async with AnyClient(inner) as client:
        assert await client.call("whose") == "{}"


async def test_a_prompt_that_cannot_be_sent_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    app = Server("x")

    @app.prompt
    def stern() -> Any:
        return {"role": "system", "content": "x"}

    @app.resource("x:1")
    def odd() -> Any:
        return ReadResourceResult(contents=[ResourceContents(uri="x:1", text=3)])  # pyright: ignore[reportArgumentType]

    async with AnyClient(app) as client:
        with pytest.raises(RemoteError, match="prompts/get"):
            await client.get_prompt("stern")
        with pytest.raises(RemoteError, match="resources/read"):
            await client.read("x:1")
    assert "stern" in caplog.text
    assert "'system'" in caplog.text
    assert mentions(caplog.text, "ResourceContents")


async def test_an_error_of_the_author_is_shown_however_it_is_wrapped() -> None:
    app = Server("x")

    @app.tool
    async def grouped() -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
        return "never"

    @app.prompt
    async def asked() -> str:
        return await grouped()

    async def fail() -> None:
        raise ToolError("told")

    @app.tool
    def shown() -> str:
        raise ToolError([TextContent(text="look"), "here"])

    @app.tool
    async def several() -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            group.create_task(fail())
        return "never"

    client = Client(app)
    assert error_text(await client.call("grouped")) == "told"
    shown_result: Any = await client.call("shown")
    assert shown_result["isError"]
    assert [one["text"] for one in shown_result["content"]] == ["look", "here"]
    assert mentions(error_text(await client.call("several")), "several")
    async with AnyClient(app) as other:
        with pytest.raises(RemoteError, match="told"):
            await other.get_prompt("asked")


def test_a_list_instead_of_a_single_text_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    app = Server("x")
    app.add_resource(lambda path: path, "a://{/path*}")

    @app.resource("b://{/path*}")
    def several(path: list[str]) -> str:
        return str(path)

    assert not caplog.records

    @app.resource("c://{path*}")
    def one(path: str) -> str:
        return path

    assert "{+path}" in caplog.text


@pytest.mark.parametrize("log_level", [None, "debug"])
async def test_an_unknown_log_level_is_an_error_for_every_client(log_level: Any) -> None:
    app = Server("x", debug=True)

    @app.tool
    async def chatty(ctx: Context) -> str:
        await ctx.log("verbose", "x")  # pyright: ignore[reportArgumentType]
        return "done"

    async with AnyClient(app, log_level=log_level, log_handler=(lambda _: None) if log_level else None) as client:
        result = await client.call_tool("chatty")
    assert result.is_error
    assert "verbose" in str(result.content[0])
    assert "warning" in str(result.content[0])


@pytest.mark.parametrize("kind", [str, bytes])
async def test_a_resource_without_a_return_is_an_error(kind: type) -> None:
    app = Server("x")

    def empty() -> Any:
        return None

    empty.__annotations__["return"] = kind
    app.add_resource(empty, "memo:empty")
    async with AnyClient(app) as client:
        with pytest.raises(RemoteError) as caught:
            await client.read_resource("memo:empty")
    assert caught.value.code == -32603


async def test_a_resource_may_be_null_if_it_says_so() -> None:
    app = Server("x")

    @app.resource("memo:empty")
    def empty() -> dict[str, int] | None:
        return None

    async with AnyClient(app) as client:
        assert (await client.read_resource("memo:empty")).contents[0].text == "null"


async def test_a_question_after_the_call_is_explained() -> None:
    app = Server("x")
    tasks: list[asyncio.Task[int]] = []
    has_returned = asyncio.Event()

    @app.tool
    async def hasty(ctx: Context) -> str:
        async def ask() -> int:
            await has_returned.wait()
            return await ctx.elicit("sure?", int)

        tasks.append(asyncio.create_task(ask()))
        return "done"

    async with AnyClient(app, elicitation_handler=lambda _: {"value": 1}, protocol_version=NEWEST) as client:
        assert await client.call("hasty") == "done"
        has_returned.set()
        with pytest.raises(RuntimeError, match="ended"):
            await tasks[0]


@pytest.mark.parametrize("is_plain", [True, False])
async def test_a_timeout_names_its_limit(is_plain: bool) -> None:
    app = Server("x")
    may_end = threading.Event()

    def plain() -> None:
        may_end.wait(10)

    async def patient() -> None:
        await asyncio.sleep(10)

    app.add_tool(plain if is_plain else patient, name="slow", timeout=0.05)
    try:
        async with AnyClient(app) as client:
            result = await client.call_tool("slow")
    finally:
        may_end.set()
    assert result.is_error
    assert "0.05 s" in str(result.content[0])


async def test_a_timeout_of_the_server_names_its_limit() -> None:
    app = Server("x", limits=ServerLimits(call_timeout=0.05))

    @app.tool
    async def slow() -> None:
        await asyncio.sleep(10)

    async with AnyClient(app) as client:
        assert "0.05 s" in str((await client.call_tool("slow")).content[0])
