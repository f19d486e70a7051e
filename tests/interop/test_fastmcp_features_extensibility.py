"""Test rows of fastmcp_features.csv about middleware, extensions, skills, telemetry and OpenAPI."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest

pytest.importorskip("fastmcp", reason="fastmcp is not installed")

import httpx2
import mcp_types as types
import opentelemetry.trace
from fastmcp import Client as FastClient
from fastmcp import Context as FastContext
from fastmcp import FastMCP
from fastmcp.dependencies import CallArgument
from fastmcp.dependencies import Depends as FastDepends
from fastmcp.exceptions import ToolError as FastToolError
from fastmcp.server.extensions import MethodBinding, ServerExtension
from fastmcp.server.lifespan import lifespan as fast_lifespan
from fastmcp.server.middleware import Middleware as FastMiddleware
from fastmcp.server.middleware.caching import ResponseCachingMiddleware
from fastmcp.server.middleware.error_handling import RetryMiddleware
from fastmcp.server.middleware.logging import LoggingMiddleware
from fastmcp.server.middleware.rate_limiting import SlidingWindowRateLimitingMiddleware
from fastmcp.server.middleware.response_limiting import ResponseLimitingMiddleware
from fastmcp.server.middleware.timing import TimingMiddleware
from fastmcp.server.providers.skills import SkillsDirectoryProvider
from fastmcp.skills import SkillsClientExtension
from fastmcp.skills.extension import SkillsExtension
from mcp import MCPError as SdkError
from mcp.client import advertise
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dovetail import Client, Context, Depends, Server, ToolError
from dovetail.errors import RateLimited, RemoteError
from dovetail.extensions import Extension, Params, Result
from dovetail.middleware import (
    Exchange,
    LogRequests,
    RateLimit,
    ResponseCache,
    ResponseLimit,
    Retry,
    Telemetry,
    Timing,
)
from interop.fastmcp_pairs import call, connect, create_pair, greet, leave

pytestmark = [
    pytest.mark.interop,
    # fastmcp warns about its own dependencies.
    pytest.mark.filterwarnings("ignore::Warning"),
]


# Middleware


async def test_custom_middleware() -> None:
    """Middleware changes arguments and results, refuses calls, and passes values to the function."""

    class FastRules(FastMiddleware):
        async def on_call_tool(self, context: Any, call_next: Any) -> Any:
            if context.message.name == "leave":
                raise FastToolError("denied")
            context.message.arguments["name"] = context.message.arguments["name"].strip()
            await context.fastmcp_context.set_state("user", "ada")
            result = await call_next(context)
            result.structured_content["checked"] = True
            return result

    async def rules(exchange: Exchange, call_next: Any) -> Any:
        if exchange.method != "tools/call":
            return await call_next(exchange)
        if exchange.params["name"] == "leave":
            raise ToolError("denied")
        exchange.params["arguments"]["name"] = exchange.params["arguments"]["name"].strip()
        exchange.extra["user"] = "ada"
        result = await call_next(exchange)
        result.structured_content["checked"] = True
        return result

    fast, app = FastMCP("x", middleware=[FastRules()]), Server("x", middleware=[rules])

    @fast.tool(name="who")
    async def fast_who(name: str, ctx: FastContext) -> dict[str, Any]:
        return {"name": name, "user": await ctx.get_state("user")}

    @app.tool
    async def who(name: str, ctx: Context) -> dict[str, Any]:
        return {"name": name, "user": ctx.extra["user"]}

    for server in (fast, app):
        server.tool(leave)
        result = await call(server, "who", {"name": " Bo "})
        assert result.structured_content == {"name": "Bo", "user": "ada", "checked": True}
    assert (await call(fast, "leave", {"name": "Bo"})).is_error
    with pytest.raises(RemoteError):
        await call(app, "leave", {"name": "Bo"})


async def test_caching_middleware() -> None:
    fast: Any = FastMCP("x", middleware=[ResponseCachingMiddleware()])
    app: Any = Server("x", middleware=[ResponseCache(["count"])])
    calls: list[str] = []

    def count() -> int:
        calls.append("call")
        return len(calls)

    for server in (fast, app):
        calls.clear()
        server.tool(count)
        async with connect(server) as client:
            assert [(await client.call_tool("count", {})).content[0].text for _ in range(2)] == ["1", "1"]


async def _call_often(client: Any) -> None:
    for _ in range(5):
        await client.call_tool("greet", {"name": "Ada"})


async def test_rate_limits() -> None:
    fast = FastMCP("x", middleware=[SlidingWindowRateLimitingMiddleware(max_requests=3, window_minutes=1)])
    app = Server("x", middleware=[RateLimit(3, per=60.0)])
    for server, error in ((fast, SdkError), (app, RateLimited)):
        server.tool(greet)
        async with connect(server) as client:
            with pytest.raises(error):
                await _call_often(client)


async def test_response_limits() -> None:
    fast: Any = FastMCP("x", middleware=[ResponseLimitingMiddleware(max_size=500)])
    app: Any = Server("x", middleware=[ResponseLimit(500)])
    for server in (fast, app):
        server.tool(lambda: "x" * 5_000, name="long")
        assert 0 < len((await call(server, "long")).content[0].text) <= 500


async def test_retries() -> None:
    retry = RetryMiddleware(max_retries=2, base_delay=0.001, retry_exceptions=(ConnectionError,))
    fast: Any = FastMCP("x", middleware=[retry])
    app: Any = Server("x", middleware=[Retry(["fetch"], max_retries=2, retry_on=(ConnectionError,), delay=0.001)])
    attempts: list[Any] = []

    def fetch() -> str:
        attempts.append("attempt")
        if len(attempts) == 1:
            raise ConnectionError
        return "done"

    for server in (fast, app):
        attempts.clear()
        server.tool(fetch)
        assert (await call(server, "fetch")).content[0].text == "done"
        assert len(attempts) == 2


async def test_logging_and_timing_middleware(caplog: pytest.LogCaptureFixture) -> None:
    timing = Timing()
    fast = FastMCP("x", middleware=[LoggingMiddleware(), TimingMiddleware()])
    app = Server("x", middleware=[LogRequests(), timing])
    caplog.set_level("INFO")
    for server in (fast, app):
        caplog.clear()
        server.tool(greet)
        await call(server, "greet", {"name": "Ada"})
        assert [record for record in caplog.records if "tools/call" in record.getMessage()]
    assert timing["tools/call", "greet"].count == 1


# Dependencies and lifespans


async def test_dependencies() -> None:
    """Dependencies are cached, are closed, can be nested, and get arguments of the call."""
    events: list[str] = []

    @asynccontextmanager
    async def fast_open() -> AsyncGenerator[str, None]:
        events.append("open")
        yield "db"
        events.append("close")

    def fast_account(user: str = CallArgument(), db: str = FastDepends(fast_open)) -> str:
        return f"{user} in {db}"

    def open_database() -> Iterator[str]:
        events.append("open")
        yield "db"
        events.append("close")

    def account(user: str, db: Annotated[str, Depends(open_database)]) -> str:
        return f"{user} in {db}"

    fast, app = create_pair()

    @fast.tool(name="show")
    def fast_show(
        user: str,
        account: str = FastDepends(fast_account),
        db: str = FastDepends(fast_open),
    ) -> str:
        return f"{account}, {db}"

    @app.tool
    def show(user: str, account: Annotated[str, Depends(account)], db: Annotated[str, Depends(open_database)]) -> str:
        return f"{account}, {db}"

    for server in (fast, app):
        events.clear()
        assert (await call(server, "show", {"user": "ada"})).content[0].text == "ada in db, db"
        assert events == ["open", "close"]
        async with connect(server) as client:
            (definition,) = await client.list_tools()
        assert list(definition.input_schema["properties"]) == ["user"]


async def test_lifespans() -> None:
    events: list[str] = []

    @fast_lifespan
    async def fast_run(server: Any) -> AsyncGenerator[dict[str, Any], None]:
        events.append("start")
        yield {"rate": 2}
        events.append("stop")

    @asynccontextmanager
    async def run() -> AsyncGenerator[dict[str, Any], None]:
        events.append("start")
        yield {"rate": 2}
        events.append("stop")

    fast, app = FastMCP("x", lifespan=fast_run), Server("x", lifespan=run)

    @fast.tool(name="rate")
    def fast_rate(ctx: FastContext) -> int:
        return ctx.lifespan_context["rate"]

    @app.tool
    def rate(ctx: Context) -> int:
        return ctx.lifespan["rate"]

    await app.start()
    for server in (fast, app):
        assert (await call(server, "rate")).structured_content == {"result": 2}
    await app.stop()
    assert sorted(events) == ["start", "start", "stop", "stop"]


# Extensions


class FastHello(ServerExtension):
    identifier = "com.example/hello"

    def __init__(self) -> None:
        self.calls: list[str] = []

    def settings(self) -> dict[str, Any]:
        return {"languages": ["en"]}

    def methods(self) -> list[MethodBinding]:
        return [MethodBinding(method="com.example/hello/say", params_type=types.RequestParams, handler=self.say)]

    async def say(self, ctx: Any, params: Any) -> dict[str, Any]:
        return {"greeting": "Hello!"}

    async def intercept_tool_call(self, params: Any, context: Any, call_next: Any) -> Any:
        self.calls.append(params.name)
        return await call_next()


class FastHelloResult(types.Result):
    greeting: str


class HelloResult(Result):
    greeting: str


async def test_extension_settings_and_calls() -> None:
    """An extension declares settings on both sides, and wraps calls of tools."""
    fast_hello, hello = FastHello(), Extension("com.example/hello", settings={"languages": ["en"]})
    calls: list[str] = []

    @hello.method("com.example/hello/say")
    async def say(params: Params, exchange: Exchange) -> HelloResult:
        return HelloResult(greeting="Hello!")

    @hello.middleware
    async def note(exchange: Exchange, call_next: Any) -> Any:
        if exchange.method == "tools/call":
            calls.append(exchange.params["name"])
        return await call_next(exchange)

    fast, app = FastMCP("x"), Server("x", extensions=[hello])
    fast.add_extension(fast_hello)
    for server, extension in ((fast, advertise("com.example/hello")), (app, hello)):
        server.tool(greet)
        async with connect(server, extensions=[extension]) as client:
            assert client.server_capabilities.extensions["com.example/hello"] == {"languages": ["en"]}
            await client.call_tool("greet", {"name": "Ada"})
    assert fast_hello.calls == calls == ["greet"]
    async with Client(app, extensions=[hello]) as client:
        assert (await client.request(say)).greeting == "Hello!"
    async with FastClient(fast, extensions=[advertise("com.example/hello")]) as client:
        request: Any = types.Request(method="com.example/hello/say", params=types.RequestParams())
        assert (await client.session.send_request(request, FastHelloResult)).greeting == "Hello!"


# Skills


async def test_skills(tmp_path: Path) -> None:
    folder = tmp_path / "pdf-forms"
    folder.mkdir()
    folder.joinpath("SKILL.md").write_text("---\nname: pdf-forms\ndescription: Fill in forms.\n---\n# Forms\n")
    fast, app = create_pair()
    provider = SkillsDirectoryProvider(tmp_path, experimental_skills=True)
    fast.add_provider(provider)
    fast.add_extension(SkillsExtension(providers=[provider]))
    app.add_skills(tmp_path)
    async with FastClient(fast, extensions=[SkillsClientExtension()]) as client:
        (fast_skill,) = await client.list_skills()
        assert fast_skill.uri == "skill://pdf-forms/SKILL.md"
        assert fast_skill.frontmatter.description == "Fill in forms."
    async with Client(app) as client:
        (skill,) = await client.list_skills()
        assert skill.uri == "skill://pdf-forms/SKILL.md"
        assert skill.description == "Fill in forms."
        assert "# Forms" in str(await client.read(skill.uri))


# Telemetry


async def test_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """fastmcp traces if a provider is set. A server and a client of dovetail need the middleware `Telemetry`."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(opentelemetry.trace, "_TRACER_PROVIDER", provider)

    def fail() -> str:
        raise ValueError("no")

    fast, app, traced = FastMCP("x"), Server("x"), Server("x", middleware=[Telemetry()])
    traces: list[Any] = []
    for server, options in ((fast, {}), (app, {}), (traced, {"middleware": [Telemetry()]})):
        exporter.clear()
        server.tool(greet)
        server.tool(fail)
        async with connect(server, **options) as client:
            await client.call_tool("greet", {"name": "Ada"})
            await client.call_tool("fail", {}, **({"raise_on_error": False} if server is fast else {}))
        spans = [span for span in exporter.get_finished_spans() if span.name.startswith("tools/call ")]
        traces.append({(span.name, span.kind.name, span.status.is_ok) for span in spans})
        assert all((span.attributes or {})["mcp.method.name"] == "tools/call" for span in spans)
        greetings = [span.context for span in spans if span.name == "tools/call greet"]
        assert len({context.trace_id for context in greetings if context}) == (0 if server is app else 1)
    expected = {
        ("tools/call greet", "SERVER", True),
        ("tools/call greet", "CLIENT", True),
        ("tools/call fail", "SERVER", False),
    }
    assert not traces[1]
    for found in (traces[0], traces[2]):
        assert expected <= found


# OpenAPI and FastAPI

DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "Shelf", "version": "1"},
    "servers": [{"url": "https://shelf.example"}],
    "paths": {
        "/books/{title}": {
            "get": {
                "operationId": "find_book",
                "summary": "Find a book.",
                "parameters": [
                    {"name": "title", "in": "path", "required": True, "schema": {"type": "string"}},
                    {"name": "year", "in": "query", "schema": {"type": "integer"}},
                ],
                "responses": {"200": {"description": "A book."}},
            }
        }
    },
}


async def test_openapi() -> None:
    urls: list[str] = []

    def respond(request: Any, library: Any) -> Any:
        urls.append(str(request.url))
        return library.Response(200, json={"shelf": 3})

    fast_http = httpx2.AsyncClient(
        transport=httpx2.MockTransport(lambda request: respond(request, httpx2)), base_url="https://shelf.example"
    )
    http = httpx.AsyncClient(transport=httpx.MockTransport(lambda request: respond(request, httpx)))
    fast = FastMCP.from_openapi(DOCUMENT, client=fast_http)
    app = Server.from_openapi(DOCUMENT, http)
    for server in (fast, app):
        async with connect(server) as client:
            (definition,) = await client.list_tools()
        assert definition.name == "find_book"
        assert set(definition.input_schema["properties"]) == {"title", "year"}
        assert definition.input_schema["required"] == ["title"]
        result = await call(server, "find_book", {"title": "War & Peace", "year": 1869})
        assert result.structured_content == {"shelf": 3}
    assert urls == ["https://shelf.example/books/War%20%26%20Peace?year=1869"] * 2
    await fast_http.aclose()
    await http.aclose()


async def test_fastapi() -> None:
    fastapi = pytest.importorskip("fastapi")
    web = fastapi.FastAPI(title="Shelf")

    @web.get("/books/{title}", operation_id="find_book")
    async def find_book(title: str, year: int = 0) -> dict[str, Any]:
        return {"title": title, "year": year}

    fast, app = FastMCP.from_fastapi(web), Server.from_asgi(web, web.openapi())
    for server in (fast, app):
        result = await call(server, "find_book", {"title": "Emma", "year": 1815})
        assert result.structured_content == {"title": "Emma", "year": 1815}
