"""Test docs/compared.md. Rows of its tables name the tests that assert them, here or in `test_fastmcp_features_*.py`.

The servers and clients of dovetail, mcp and fastmcp do the same, each with its own API. If a new version of a library
behaves differently, a test fails, and the page must be corrected.
"""

import asyncio
import importlib.metadata
import inspect
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args

import httpx
import pytest

pytest.importorskip("mcp", reason="mcp, the official SDK, is not installed")
pytest.importorskip("fastmcp", reason="fastmcp is not installed")
pytest.importorskip("fastmcp_tasks", reason="fastmcp[tasks] is not installed")

import fastmcp
import fastmcp_tasks
import fastmcp_tasks.settings
import mcp
import mcp_types as types
import uvicorn
from fastmcp import Client as FastClient
from fastmcp import Context as FastContext
from fastmcp import FastMCP
from fastmcp.client.transports import StdioTransport
from fastmcp.dependencies import Depends as FastDepends
from fastmcp.exceptions import ToolError as FastToolError
from fastmcp.server.dependencies import get_context
from fastmcp.server.server import Transport as FastTransport
from mcp import Client as SdkClient
from mcp import ClientSessionGroup, MCPError, StdioServerParameters
from mcp.server import MCPServer
from mcp.server.mcpserver import Context as SdkContext
from mcp.server.mcpserver import Elicit as SdkElicit
from mcp.server.mcpserver import Resolve
from mcp.server.mcpserver import Sample as SdkSample
from packaging.requirements import Requirement
from pydantic import BaseModel

import dovetail
from dovetail import Client, Context, Depends, Elicit, InputRequired, Server, ToolError
from dovetail.errors import ConnectionLost, PolicyError
from dovetail.server.server_options import Transport
from interop.test_fastmcp_features import list_feature_tests

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(90),
    # The official SDK warns about features that 2026-07-28 deprecates.
    pytest.mark.filterwarnings("ignore::Warning"),
]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "compared.md"
HERE = Path(__file__).parent
TIMEOUT_S = 30.0

HANDSHAKE, STATELESS = "2025-11-25", "2026-07-28"
MODES = {HANDSHAKE: "legacy", STATELESS: "auto"}
PUBLISHED = {"2024-11-05", "2025-03-26", "2025-06-18", HANDSHAKE, STATELESS}

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


class Seat(BaseModel):
    row: int


FAILED = "failed"  # the outcome of a call that ended with an error


async def call_mcp(server: MCPServer, tool: str, version: str) -> str:
    """Call a tool with the client of the official SDK, and return its text."""

    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"row": 3})

    async def sample(context: Any, params: Any) -> types.CreateMessageResult:
        text = types.TextContent(type="text", text="row 3")
        return types.CreateMessageResult(role="assistant", content=text, model="test")

    mode: Any = MODES[version]
    async with SdkClient(server, mode=mode, elicitation_callback=elicit, sampling_callback=sample) as client:
        assert client.protocol_version == version
        try:
            result: Any = await client.call_tool(tool, {})
        except MCPError:
            return FAILED
        return FAILED if result.is_error else result.content[0].text


async def call_fastmcp(server: FastMCP, tool: str, version: str) -> str:
    """Call a tool with the client of fastmcp, and return its text."""

    async def elicit(_message: Any, _response_type: Any, _params: Any, _context: Any) -> Any:
        return {"row": 3}

    async def sample(_messages: Any, _params: Any, _context: Any) -> str:
        return "row 3"

    mode: Any = MODES[version]
    async with FastClient(server, mode=mode, elicitation_handler=elicit, sampling_handler=sample) as client:
        assert client.protocol_version == version
        try:
            result: Any = await client.call_tool(tool, {})
        except (FastToolError, MCPError):
            return FAILED
        return result.content[0].text


async def call_dovetail(server: Server, tool: str, version: str) -> str:
    """Call a tool with the client of dovetail, and return its text."""
    async with Client(
        server,
        protocol_version=version,
        elicitation_handler=lambda _question: {"row": 3},
        sampling_handler=lambda _question: "row 3",
    ) as client:
        try:
            return await client.call(tool)
        except ToolError:
            return FAILED


# Asking for input


async def test_elicit_in_a_function() -> None:
    sdk, fast, app = MCPServer("sdk"), FastMCP("fast"), Server("app")

    @sdk.tool("book")
    async def book_mcp(ctx: SdkContext) -> str:
        answer: Any = await ctx.elicit("Which row?", Seat)
        return f"row {answer.data.row}"

    @fast.tool(name="book")
    async def book_fastmcp(ctx: FastContext) -> str:
        answer: Any = await ctx.elicit("Which row?", Seat)
        return f"row {answer.data.row}"

    @app.tool
    async def book(ctx: Context) -> str:
        return f"row {(await ctx.elicit('Which row?', Seat)).row}"

    assert await call_mcp(sdk, "book", HANDSHAKE) == "row 3"
    assert await call_mcp(sdk, "book", STATELESS) == FAILED
    assert await call_fastmcp(fast, "book", HANDSHAKE) == "row 3"
    assert await call_fastmcp(fast, "book", STATELESS) == FAILED
    assert await call_dovetail(app, "book", HANDSHAKE) == "row 3"
    assert await call_dovetail(app, "book", STATELESS) == "row 3"


async def test_elicit_with_a_returned_request() -> None:
    sdk, fast, app = MCPServer("sdk"), FastMCP("fast"), Server("app")

    def create_request() -> types.InputRequiredResult:
        params = types.ElicitRequestFormParams(message="Which row?", requested_schema=Seat.model_json_schema())
        return types.InputRequiredResult(input_requests={"seat": types.ElicitRequest(params=params)})

    def read_row(responses: Any) -> str:
        return f"row {responses['seat'].content['row']}"

    @sdk.tool("book")
    async def book_mcp(ctx: SdkContext) -> str | types.InputRequiredResult:
        return read_row(ctx.input_responses) if ctx.input_responses else create_request()

    @fast.tool(name="book")
    async def book_fastmcp(ctx: FastContext) -> str | types.InputRequiredResult:
        return read_row(ctx.input_responses) if ctx.input_responses else create_request()

    @app.tool
    async def book(ctx: Context) -> str | InputRequired:
        if ctx.request_state is None:
            return InputRequired({"seat": Elicit("Which row?", Seat)}, request_state="asked")
        return f"row {ctx.input_responses['seat']['content']['row']}"

    assert await call_mcp(sdk, "book", HANDSHAKE) == FAILED
    assert await call_mcp(sdk, "book", STATELESS) == "row 3"
    assert await call_fastmcp(fast, "book", HANDSHAKE) == FAILED
    assert await call_fastmcp(fast, "book", STATELESS) == "row 3"
    assert await call_dovetail(app, "book", HANDSHAKE) == "row 3"
    assert await call_dovetail(app, "book", STATELESS) == "row 3"


async def ask_with_mcp() -> SdkElicit[Seat]:
    return SdkElicit("Which row?", Seat)


async def ask_with_fastmcp() -> Seat:
    answer: Any = await get_context().elicit("Which row?", Seat)
    return answer.data


async def ask_with_dovetail(ctx: Context) -> Seat:
    return await ctx.elicit("Which row?", Seat)


async def test_elicit_with_a_dependency() -> None:
    sdk, fast, app = MCPServer("sdk"), FastMCP("fast"), Server("app")

    @sdk.tool("book")
    async def book_mcp(seat: Annotated[Seat, Resolve(ask_with_mcp)]) -> str:
        return f"row {seat.row}"

    @fast.tool(name="book")
    async def book_fastmcp(seat: Any = FastDepends(ask_with_fastmcp)) -> str:  # noqa: B008 - the API of fastmcp
        return f"row {seat.row}"

    @app.tool
    async def book(seat: Annotated[Seat, Depends(ask_with_dovetail)]) -> str:
        return f"row {seat.row}"

    for version in (HANDSHAKE, STATELESS):
        assert await call_mcp(sdk, "book", version) == "row 3"
        assert await call_dovetail(app, "book", version) == "row 3"
    assert await call_fastmcp(fast, "book", HANDSHAKE) == "row 3"
    assert await call_fastmcp(fast, "book", STATELESS) == FAILED


MESSAGE = types.SamplingMessage(role="user", content=types.TextContent(type="text", text="Which row?"))


async def sample_with_mcp() -> SdkSample:
    return SdkSample([MESSAGE], max_tokens=9)


async def test_sampling() -> None:
    sdk, fast, app = MCPServer("sdk"), FastMCP("fast"), Server("app")

    @sdk.tool("guess")
    async def guess_mcp(ctx: SdkContext) -> str:
        session: Any = ctx.session  # the method is deprecated
        reply = await session.create_message(messages=[MESSAGE], max_tokens=9)
        return reply.content.text

    @sdk.tool("resolve")
    async def resolve_mcp(reply: Annotated[types.CreateMessageResult, Resolve(sample_with_mcp)]) -> str:
        content: Any = reply.content
        return content.text

    @fast.tool(name="guess")
    async def guess_fastmcp(ctx: FastContext) -> str:
        session: Any = ctx.session  # the method is deprecated
        reply = await session.create_message(messages=[MESSAGE], max_tokens=9)
        return reply.content.text

    def create_request() -> types.InputRequiredResult:
        params = types.CreateMessageRequestParams(messages=[MESSAGE], max_tokens=9)
        return types.InputRequiredResult(input_requests={"reply": types.CreateMessageRequest(params=params)})

    @sdk.tool("return")
    async def return_mcp(ctx: SdkContext) -> str | types.InputRequiredResult:
        responses: Any = ctx.input_responses
        return responses["reply"].content.text if responses else create_request()

    @fast.tool(name="return")
    async def return_fastmcp(ctx: FastContext) -> str | types.InputRequiredResult:
        responses: Any = ctx.input_responses
        return responses["reply"].content.text if responses else create_request()

    @app.tool
    async def guess(ctx: Context) -> str:
        reply: Any = await ctx.sample("Which row?", max_tokens=9)
        return reply.content.text

    assert not hasattr(SdkContext, "sample")
    assert not hasattr(FastContext, "sample")
    assert await call_mcp(sdk, "guess", HANDSHAKE) == "row 3"
    assert await call_mcp(sdk, "guess", STATELESS) == FAILED
    assert await call_mcp(sdk, "resolve", HANDSHAKE) == "row 3"
    assert await call_mcp(sdk, "resolve", STATELESS) == "row 3"
    assert await call_mcp(sdk, "return", STATELESS) == "row 3"
    assert await call_fastmcp(fast, "guess", HANDSHAKE) == "row 3"
    assert await call_fastmcp(fast, "guess", STATELESS) == FAILED
    assert await call_fastmcp(fast, "return", STATELESS) == "row 3"
    assert await call_dovetail(app, "guess", HANDSHAKE) == "row 3"
    assert await call_dovetail(app, "guess", STATELESS) == "row 3"


# Running functions


async def test_plain_functions_run_in_threads() -> None:
    sdk, fast, app = MCPServer("sdk"), FastMCP("fast"), Server("app")
    loop_thread, threads = threading.current_thread(), list[threading.Thread]()

    def note_thread() -> str:
        threads.append(threading.current_thread())
        return "noted"

    sdk.tool()(note_thread)
    fast.tool(note_thread)
    app.tool(note_thread)
    await call_mcp(sdk, "note_thread", STATELESS)
    await call_fastmcp(fast, "note_thread", STATELESS)
    await call_dovetail(app, "note_thread", STATELESS)
    assert len(threads) == 3
    assert loop_thread not in threads


def raise_secret() -> str:
    raise RuntimeError("the password is swordfish")


async def test_unexpected_exceptions() -> None:
    sdk, fast, app = MCPServer("sdk"), FastMCP("fast"), Server("app")
    sdk.tool("fail")(raise_secret)
    fast.tool(raise_secret, name="fail")
    app.add_tool(raise_secret, name="fail")
    async with SdkClient(sdk) as client:
        result: Any = await client.call_tool("fail", {})
        assert "swordfish" not in result.content[0].text
    async with FastClient(fast) as client:
        with pytest.raises(FastToolError, match="swordfish"):
            await client.call_tool("fail", {})
    masked = FastMCP("fast", mask_error_details=True)
    masked.tool(raise_secret, name="fail")
    async with FastClient(masked) as client:
        with pytest.raises(FastToolError) as masked_error:
            await client.call_tool("fail", {})
        assert "swordfish" not in str(masked_error.value)
    async with Client(app) as client:
        with pytest.raises(ToolError) as caught:
            await client.call("fail")
        assert "swordfish" not in str(caught.value)


def double(number: int) -> int:
    return 2 * number


async def test_unknown_arguments() -> None:
    sdk, fast, app = MCPServer("sdk"), FastMCP("fast"), Server("app")
    sdk.tool()(double)
    fast.tool(double)
    app.tool(double)
    arguments = {"number": 2, "nmber": 3}
    async with SdkClient(sdk) as client:
        result: Any = await client.call_tool("double", arguments)
        assert result.content[0].text == "4"
    async with FastClient(fast) as client:
        with pytest.raises(FastToolError):
            await client.call_tool("double", arguments)
    async with Client(app) as client:
        with pytest.raises(ToolError):
            await client.call("double", **arguments)


# HTTP


@pytest.fixture(scope="module")
def urls(start: Callable[..., Any], free_port: Callable[[], int]) -> dict[str, str]:
    """One HTTP server of each library, with its defaults."""
    found: dict[str, str] = {}
    for name, script in {"mcp": "official_sdk_server.py", "fastmcp": "fastmcp_server.py"}.items():
        port = free_port()
        url = f"http://127.0.0.1:{port}/mcp"
        start([sys.executable, str(HERE / script), "http", str(port)], url=url, leaves=-signal.SIGTERM)
        found[name] = url
    found["dovetail"] = str(start([sys.executable, str(HERE / "dovetail_server.py"), "http"]).url)
    return found


@pytest.mark.parametrize("library", ["mcp", "fastmcp", "dovetail"])
async def test_protocol_versions(library: str, urls: dict[str, str]) -> None:
    served = set[str]()
    for version in PUBLISHED:
        async with Client(urls[library], protocol_version=version) as client:
            await client.list_tools()
            served.add(str(client.protocol_version))
    assert served == PUBLISHED


@pytest.mark.parametrize(
    ("library", "host_status", "origin_status"), [("mcp", 421, 403), ("fastmcp", 200, 200), ("dovetail", 421, 403)]
)
def test_foreign_hosts_and_origins(library: str, host_status: int, origin_status: int, urls: dict[str, str]) -> None:
    assert _post(urls[library], {}) == 200
    assert _post(urls[library], {"host": "evil.example"}) == host_status
    assert _post(urls[library], {"origin": "http://evil.example"}) == origin_status


def _post(url: str, headers: dict[str, str]) -> int:
    accept = {"accept": "application/json, text/event-stream"}
    return httpx.post(url, json=INITIALIZE, headers=accept | headers, timeout=TIMEOUT_S).status_code


def test_unauthenticated_public_address(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[str] = []

    async def serve(self: uvicorn.Server, sockets: Any = None) -> None:
        served.append(self.config.host)

    monkeypatch.setattr(uvicorn.Server, "serve", serve)
    MCPServer("sdk").run("streamable-http", host="0.0.0.0", port=0)
    FastMCP("fast").run("http", host="0.0.0.0", port=0, show_banner=False)
    assert served == ["0.0.0.0", "0.0.0.0"]
    with pytest.raises(ValueError, match="allow_anonymous"):
        Server("app").run("http", host="0.0.0.0", port=0)


def test_transports() -> None:
    parameters = inspect.signature(MCPServer.run, eval_str=True).parameters
    assert set(get_args(parameters["transport"].annotation)) == {"stdio", "sse", "streamable-http"}
    assert set(get_args(FastTransport)) == {"stdio", "http", "sse", "streamable-http"}
    assert set(get_args(Transport)) == {"stdio", "http", "unix", "tcp"}


# Clients


async def test_pages_of_lists() -> None:
    server = FastMCP("paged", list_page_size=1)
    for name in ("one", "two", "three"):
        server.tool(double, name=name)
    async with FastClient(server) as client:
        assert len(await client.list_tools()) == 3
    inner: Any = server  # the server of the official SDK inside is not public
    async with SdkClient(inner._mcp_server) as client:
        assert len((await client.list_tools()).tools) == 1
    app = Server("app", page_size=1)
    for name in ("one", "two", "three"):
        app.add_tool(double, name=name)
    async with Client(app) as client:
        assert len(await client.list_tools()) == 3


PID_SERVER = """
import os
from dovetail import Server
app = Server("pid")
@app.tool
def pid() -> int:
    return os.getpid()
app.run()
"""
COMMAND = [sys.executable, "-c", PID_SERVER]


async def test_restart_of_a_server() -> None:
    async with Client(COMMAND) as client:
        first = await client.call("pid")
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(TIMEOUT_S):
            while (second := await _call_again(client)) is None:
                pass
        assert second != first
    async with SdkClient(StdioServerParameters(command=COMMAND[0], args=COMMAND[1:])) as client:
        result: Any = await client.call_tool("pid", {})
        os.kill(int(result.content[0].text), signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(MCPError):
                await client.call_tool("pid", {})
    async with FastClient(StdioTransport(COMMAND[0], COMMAND[1:])) as client:
        result = await client.call_tool("pid", {})
        os.kill(int(result.content[0].text), signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(MCPError):
                await client.call_tool("pid", {})


async def _call_again(client: Client) -> int | None:
    """Return the process id, or None if the call met the end of the old process."""
    try:
        return await client.call("pid")
    except ConnectionLost:
        return None


async def test_result_of_a_call() -> None:
    sdk, fast, app = MCPServer("sdk"), FastMCP("fast"), Server("app")
    sdk.tool()(double)
    fast.tool(double)
    app.tool(double)
    async with SdkClient(sdk) as client:
        assert (await client.call_tool("double", {"number": 2})).structured_content == {"result": 4}
    async with FastClient(fast) as client:
        assert (await client.call_tool("double", {"number": 2})).data == 4
    async with Client(app) as client:
        assert await client.call("double", number=2) == 4


def test_client_without_await() -> None:
    app = Server("app")
    app.tool(double)
    with dovetail.SyncClient(app) as client:
        assert client.call("double", number=2) == 4
    assert inspect.iscoroutinefunction(SdkClient.call_tool)
    assert inspect.iscoroutinefunction(FastClient.call_tool)
    assert not [name for name in (*vars(mcp), *vars(fastmcp)) if "Sync" in name]


async def test_several_servers() -> None:
    entry = {"command": sys.executable, "args": [str(ROOT / "examples" / "hello.py")]}
    config = {"mcpServers": {"a": entry, "b": entry}}
    async with FastClient(config) as client:
        assert {tool.name for tool in await client.list_tools()} == {"a_greet", "b_greet"}
    assert {"connect_to_server", "call_tool"} <= set(dir(ClientSessionGroup))
    app = Server("app")
    app.tool(double)
    async with dovetail.Host(policy=dovetail.Policy("deny")) as host:
        host.add("a", app)
        host.add("b", app)
        assert {tool.full_name for tool in await host.list_tools()} == {"a.double", "b.double"}
        with pytest.raises(PolicyError):
            await host.call("a.double", {"number": 2})


# Everything else


def test_composition() -> None:
    assert not {"mount", "from_openapi", "from_fastapi", "from_asgi"} & set(dir(MCPServer))
    assert {"mount", "from_openapi", "from_fastapi"} <= set(dir(FastMCP))
    assert {"mount", "from_openapi", "from_asgi"} <= set(dir(Server))


def test_extensions() -> None:
    assert "add_extension" in dir(FastMCP)
    assert "extensions" in inspect.signature(MCPServer).parameters
    assert "extensions" in inspect.signature(Server).parameters


def create_task_server(function: Callable[..., Any]) -> FastMCP:
    app = FastMCP("tasks")
    app.add_extension(fastmcp_tasks.TasksExtension())
    app.tool(function, task=True)
    return app


async def greet(name: str) -> str:
    return f"Hello, {name}!"


def read_text(result: Any) -> str:
    return result.content[0].text


async def test_tasks() -> None:
    app = Server("tasks")
    app.tool(greet, task=True)
    async with Client(app) as client:
        handle = await client.start_task("greet", {"name": "Ada"})
        assert read_text(await handle) == "Hello, Ada!"
    async with FastClient(create_task_server(greet)) as client:
        task = await fastmcp_tasks.call_tool_task(client, "greet", {"name": "Ada"})
        assert (await task.result()).data == "Hello, Ada!"
    assert "task" not in inspect.signature(MCPServer.tool).parameters


async def test_tasks_with_plain_functions() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    app = Server("tasks")
    app.tool(add, task=True)
    async with Client(app) as client:
        assert (await (await client.start_task("add", {"a": 1, "b": 2}))).structured_content == {"result": 3}
    with pytest.raises(ValueError, match="async"):
        create_task_server(add)


async def test_elicit_in_a_task() -> None:
    async def ask(ctx: Context) -> str:
        return await ctx.elicit("Name?", str)

    async def ask_fast(ctx: FastContext) -> str:
        return str(await ctx.elicit("Name?", str))

    async def answer(*_: Any) -> dict[str, Any]:
        return {"value": "Ada"}

    app = Server("tasks")
    app.tool(ask, task=True)
    async with Client(app, elicitation_handler=answer) as client:
        assert read_text(await (await client.start_task("ask"))) == "Ada"
    async with FastClient(create_task_server(ask_fast), elicitation_handler=answer) as client:
        with pytest.raises(FastToolError, match="not supported inside a background task"):
            await client.call_tool("ask_fast", {})


async def test_stored_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_HOME", str(tmp_path))
    app = Server("tasks")
    app.tool(greet, task=True)
    await app.start()
    async with Client(app) as client:
        await (await client.start_task("greet", {"name": "Ada"}))
    await app.stop()
    assert (tmp_path / "tasks" / "tasks.sqlite").exists()
    assert fastmcp_tasks.settings.DocketSettings().url == "memory://"


async def test_references_of_tasks() -> None:
    app = Server("tasks")
    app.tool(greet, task=True)
    async with Client(app) as client, Client(app) as other:
        handle = await client.start_task("greet", {"name": "Ada"})
        assert read_text(await (await other.get_task(handle.reference))) == "Hello, Ada!"
    assert not {"reference", "dump"} & set(dir(fastmcp_tasks.ToolTask))


def test_state_of_a_session() -> None:
    assert {"get_state", "set_state"} <= set(dir(FastContext))
    assert not {"get_state", "set_state", "session_state"} & set(dir(SdkContext))
    assert "session_state" in dir(Context)


async def test_only_in_others() -> None:
    def greet() -> str:
        return "hello"

    fast, app = FastMCP("x"), Server("x")
    for version in ("1", "2"):
        fast.tool(greet, version=version)
    async with FastClient(fast) as client:
        assert [tool.name for tool in await client.list_tools()] == ["greet"]
    app.add_tool(greet, version="1")
    with pytest.raises(ValueError, match="greet"):
        app.add_tool(greet, version="2")


def test_installed_distributions() -> None:
    counts = {name: len(_list_distributions(name)) for name in ("dovetail-mcp", "mcp", "fastmcp")}
    assert counts["dovetail-mcp"] <= 16
    assert counts["mcp"] >= 25
    assert counts["fastmcp"] >= 50


def _list_distributions(name: str, extras: frozenset[str] = frozenset()) -> set[str]:
    """Return what `pip install name` installs, as far as it is installed here."""
    pending, seen = [(name, extras)], set[tuple[str, frozenset[str]]]()
    while pending:
        item = pending.pop()
        if item in seen:
            continue
        seen.add(item)
        for text in importlib.metadata.requires(item[0]) or []:
            requirement = Requirement(text)
            environments = [{"extra": extra} for extra in (*item[1], "")]
            marker = requirement.marker
            if marker is None or any(marker.evaluate(environment) for environment in environments):
                pending.append((requirement.name, frozenset(requirement.extras)))
    return {re.sub(r"[-_.]+", "-", distribution).lower() for distribution, _ in seen}


def test_the_page_names_every_test() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text(encoding="utf-8")))
    tests = {name for name, value in globals().items() if name.startswith("test_") and callable(value)}
    assert tests - named == {test_the_page_names_every_test.__name__}
    assert named - tests <= set(list_feature_tests())
