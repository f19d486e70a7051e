"""Migrate small servers, and use what comes out. The servers are written for this test."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dovetail.types
from cli.command_process import RunCommand
from dovetail import Client, MCPError, Server
from dovetail.cli.migrate.migration import MigratedSource, migrate_files, migrate_source
from dovetail.cli.migrate.names import ERROR_CLASS_BY_CODE, NAMES, NAMES_BY_MODULE, TYPE_NAMES

MCP_1 = '''
from mcp.server.fastmcp import Context, FastMCP, Image
from mcp.server.fastmcp.prompts import base
from mcp.server.session import ServerSession
from mcp.shared.exceptions import McpError
from mcp.types import INVALID_PARAMS, ErrorData, TextContent, ToolAnnotations

mcp = FastMCP("shop", instructions="Sells tea.", host="0.0.0.0", port=9000, stateless_http=True)


@mcp.tool(annotations=ToolAnnotations(readOnlyHint=True))
def price(item: str) -> float:
    """Price of an item."""
    if item == "gold":
        raise ValueError("gold is not sold here")
    if item == "":
        raise McpError(ErrorData(code=INVALID_PARAMS, message="no item"))
    return 2.5


@mcp.tool()
async def pack(item: str, ctx: Context[ServerSession, None]) -> list[TextContent]:
    await ctx.report_progress(1, 2)
    await ctx.info(message="packing")
    return [TextContent(type="text", text=f"{item} packed for {ctx.request_context.lifespan_context}")]


@mcp.tool()
def picture() -> Image:
    return Image(data=b"GIF89a", format="gif")


@mcp.resource("shop://{item}/stock")
def stock(item: str) -> str:
    return f"{item}: 3"


@mcp.prompt()
def sell(item: str) -> list[base.Message]:
    return [base.UserMessage(f"Sell {item}"), base.AssistantMessage("Gladly.")]


if __name__ == "__main__":
    mcp.run(transport="streamable-http")
'''

MCP_1_LOW_LEVEL = """
from mcp.server import Server
from mcp.server.stdio import stdio_server
import mcp.types as types


async def serve() -> None:
    server = Server("low")

    @server.list_tools()
    async def list_tools() -> list[types.Tool]:
        schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        return [types.Tool(name="shout", description="Shout.", inputSchema=schema)]

    @server.call_tool()
    async def call_tool(name: str, arguments: dict) -> list[types.TextContent]:
        return [types.TextContent(type="text", text=f"{name}: {arguments['text'].upper()}")]

    @server.list_prompts()
    async def list_prompts() -> list[types.Prompt]:
        return [types.Prompt(name="ask", arguments=[types.PromptArgument(name="about", required=True)])]

    @server.get_prompt()
    async def get_prompt(name: str, arguments: dict | None) -> types.GetPromptResult:
        content = types.TextContent(type="text", text=f"What about {(arguments or {})['about']}?")
        return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=content)])

    options = server.create_initialization_options()
    async with stdio_server() as (read_stream, write_stream):
        await server.run(read_stream, write_stream, options)
"""

FASTMCP = """
from dataclasses import dataclass

from fastmcp import Client, Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.middleware import Middleware, MiddlewareContext
from fastmcp.tools import ToolResult


class Count(Middleware):
    def __init__(self):
        self.tools = []

    async def on_call_tool(self, context: MiddlewareContext, call_next):
        self.tools.append(context.message.name)
        return await call_next(context)


@dataclass
class Size:
    cups: int


inner = FastMCP("inner")


@inner.tool
def add(a: int, b: int) -> int:
    return a + b


count = Count()
app = FastMCP(name="tea", version=2, middleware=[count], mask_error_details=True)
app.mount(inner, namespace="math")


@app.tool(tags={"hot"})
async def brew(tea: str, ctx: Context) -> str:
    answer = await ctx.elicit("How many cups?", response_type=Size)
    if answer.action == "accept":
        return f"{answer.data.cups} cups of {tea}"
    return "no tea"


@app.tool
def report() -> ToolResult:
    return ToolResult(content="all is well", structured_content={"ok": True}, meta={"n": 1})


@app.tool
def fail():
    raise ToolError("out of tea")


@app.resource(uri="tea://leaves/{path*}")
def leaves(path: str) -> str:
    return path


async def visit() -> list[str]:
    async with Client(app) as client:
        return [tool.name for tool in await client.list_tools()]


async def look() -> list[str]:
    templates = await app.get_resource_templates()
    return [tool.name for tool in await app.list_tools()] + [template.name for template in templates.values()]
"""


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return a function that imports source code."""

    def load_module(text: str) -> ModuleType:
        path = tmp_path / "migrated.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("migrated", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "migrated", module)  # dataclasses look up their module
        spec.loader.exec_module(module)
        return module

    return load_module


def _edits(source: MigratedSource) -> list[str]:
    return [finding.construct for finding in source.findings if finding.kind == "edit"]


async def test_server_of_mcp_1(load: Any):
    source = migrate_source(MCP_1)
    assert _edits(source) == []
    module = load(source.text)
    assert isinstance(module.mcp, Server)
    async with Client(module.mcp) as client:
        tools = {tool.name: tool for tool in await client.list_tools()}
        assert tools["price"].annotations is not None
        assert tools["price"].annotations.read_only_hint
        assert await client.call("price", item="tea") == 2.5
        assert (await client.call_tool("price", {"item": "gold"})).text == "gold is not sold here"
        assert (await client.call_tool("pack", {"item": "tea"})).text == "tea packed for None"
        assert (await client.call_tool("picture")).content[0].type == "image"
        assert await client.read("shop://tea/stock") == "tea: 3"
        messages = (await client.get_prompt("sell", {"item": "tea"})).messages
        assert [message.role for message in messages] == ["user", "assistant"]
    run = source.text[source.text.index("mcp.run") :]
    assert 'run("http", host="0.0.0.0", port=9000, sessions=False, allow_anonymous=True)' in run
    assert [finding.kind for finding in source.findings] == ["check"]


async def test_server_of_fastmcp(load: Any):
    source = migrate_source(FASTMCP)
    assert _edits(source) == []
    module = load(source.text)
    async with Client(module.app, elicitation_handler=lambda question: {"cups": 2}) as client:
        assert await client.call("brew", tea="oolong") == "2 cups of oolong"
        assert await client.call("math_add", a=1, b=2) == 3
        result = await client.call_tool("report")
        assert (result.text, result.structured_content) == ("all is well", {"ok": True})
        assert (await client.call_tool("fail")).text == "out of tea"
        assert await client.read("tea://leaves/green/mint") == "green/mint"
        assert client.server_info is not None
        assert client.server_info.version == "2"
    assert {*module.count.tools} == {"brew", "math_add", "report", "fail"}
    assert sorted(await module.look()) == ["brew", "fail", "leaves", "math_add", "report"]
    assert sorted(await module.visit()) == ["brew", "fail", "math_add", "report"]


async def test_declined_elicitation(load: Any):
    module = load(migrate_source(FASTMCP).text)

    async with Client(module.app, elicitation_handler=lambda question: None) as client:
        assert await client.call("brew", tea="oolong") == "no tea"


async def test_low_level_server(tmp_path: Path):
    source = migrate_source(MCP_1_LOW_LEVEL)
    assert _edits(source) == []
    script = tmp_path / "low.py"
    script.write_text(f"{source.text}\n\nimport asyncio\n\nasyncio.run(serve())\n")
    async with Client([sys.executable, str(script)]) as client:
        assert (await client.call_tool("shout", {"text": "hi"})).text == "shout: HI"
        (message,) = (await client.get_prompt("ask", {"about": "tea"})).messages
        assert message.content.text == "What about tea?"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('mcp.run("sse")', 'mcp.run("http", path="/sse")'),
        ('mcp.run(transport="stdio")', "mcp.run()"),
        ("mcp.run(transport=kind)", 'mcp.run("stdio" if kind == "stdio" else "http")'),
        ("mcp.run(transport=kind, port=1)", '(mcp.run() if kind == "stdio" else mcp.run("http", port=1))'),
        ('await mcp.run_async("http", show_banner=False)', 'await mcp.serve("http")'),
        ("await mcp.run_stdio_async()", "await mcp.serve()"),
        ("mcp.http_app(path='/x', stateless_http=True)", "mcp.asgi(path='/x', sessions=False)"),
        ("mcp.streamable_http_app()", "mcp.asgi()"),
        ("await create(kind).run_stdio_async()", "await create(kind).serve()"),
        ("mcp.add_middleware(m)", "mcp.middleware(m)"),
        ("mcp.middleware.append(m)", "mcp.middleware(m)"),
        ("mcp.custom_route('/x', methods=['GET'])", "mcp.route('/x', methods=['GET'], allow_anonymous=True)"),
        ("await mcp.import_server(other, prefix='a')", "mcp.mount(other, prefix='a')"),
        ("mcp.mount('a', other)", "mcp.mount(other, 'a')"),
        ("mcp.add_tool(Tool.from_function(f, name='g'))", "mcp.add_tool(f, name='g')"),
        ("await ctx.set_state('k', 1)", "await ctx.session_state.set('k', 1)"),
        ("ctx.set_state('k', 1)", "ctx.extra.update({'k': 1})"),
        ("ctx.get_state('k')", "ctx.extra.get('k')"),
        ("await ctx.log('x', level='error')", "await ctx.log('error', 'x')"),
        ("await ctx.info('x', extra={'a': 1})", """await ctx.info({"msg": 'x', "extra": {'a': 1}})"""),
        ("await ctx.info(message='x', extra=None)", "await ctx.info('x')"),
        ("await ctx.log('x', extra=kind)", """await ctx.log("info", {"msg": 'x', "extra": kind})"""),
        ("(await ctx.read_resource('a://b')).contents", "(await ctx.read_resource('a://b')).contents"),
        ("(await ctx.read_resource('a://b'))[0]", "(await ctx.read_resource('a://b')).contents[0]"),
        ("await ctx.session.send_tool_list_changed()", "mcp.notify_tools_changed()"),
        ("ctx.lifespan_context", "ctx.lifespan"),
        ("ctx.fastmcp", "mcp"),
        ("result.structuredContent", "result.structured_content"),
    ],
)
def test_calls(old: str, new: str):
    header = "from fastmcp import FastMCP, Context\nfrom fastmcp.tools import Tool\n\n"
    header += "def create(name) -> FastMCP:\n    return FastMCP(name)\n\n"
    body = "async def main(ctx: Context, kind, m, other, f, result):\n    {}\n"
    source = migrate_source(f'{header}mcp = FastMCP("x")\n\n\n{body.format(old)}')
    assert source.text.splitlines()[-1].strip() == new
    assert _edits(source) == []


def test_aliases_and_conflicts():
    imports = "from fastmcp import FastMCP\nfrom fastmcp.utilities.types import Image as Picture\n"
    text = f"{imports}\n\nclass Server: ...\n\n\nmcp = FastMCP('x')\nPicture(path='a.png')\n"
    new_text = migrate_source(text).text
    assert "from dovetail import Image as Picture, Server as DovetailServer" in new_text
    assert "mcp = DovetailServer('x')\nPicture('a.png')" in new_text


def test_unknown_names_are_kept_and_reported():
    imports = "from fastmcp import FastMCP\nfrom fastmcp.contrib.mixin import Mixin\n"
    text = f"{imports}\nmcp = FastMCP('x')\nMixin(mcp)\nmcp.unheard_of()\n"
    source = migrate_source(text)
    assert "from fastmcp.contrib.mixin import Mixin" in source.text
    assert [(finding.line, finding.kind) for finding in source.findings] == [(2, "edit"), (6, "edit")]
    assert _edits(source) == ["fastmcp.contrib.mixin.Mixin", "mcp.unheard_of"]


def test_handlers_of_low_level_servers_of_mcp_2_are_reported():
    text = (
        "from mcp.server import Server\n\n\nasync def f(ctx, params): ...\n\n\nserver = Server('x', on_list_tools=f)\n"
    )
    assert _edits(migrate_source(text)) == ["on_list_tools="]


def test_files_of_a_folder_know_each_other(tmp_path: Path):
    (tmp_path / "shop.py").write_text("from fastmcp import FastMCP\n\nmcp = FastMCP('x')\n")
    (tmp_path / "main.py").write_text("from shop import mcp\n\nmcp.run(transport='sse')  # mcp\n")
    (tmp_path / "other.py").write_text("print('hello')\n")
    (tmp_path / "broken.py").write_text("import mcp\ndef (:\n")
    files = {file.path.name: file for file in migrate_files([tmp_path])}
    assert sorted(files) == ["broken.py", "main.py", "shop.py"]
    assert 'mcp.run("http", path="/sse")' in files["main.py"].new_text
    assert not files["broken.py"].is_changed
    assert [finding.kind for finding in files["broken.py"].findings] == ["edit"]


@pytest.mark.parametrize(
    "data",
    [
        b"# coding: latin-1\nimport mcp\nx = '\xe9'\n",
        b"import mcp\nx = " + b"(" * 3000 + b")" * 3000 + b"\n",  # libcst crashes
        b"import mcp\nx = " + b"-" * 3000 + b"1\n",
    ],
    ids=["encoding", "parentheses", "operators"],
)
def test_a_file_that_cannot_be_read_does_not_stop_the_others(data: bytes, tmp_path: Path):
    (tmp_path / "a.py").write_bytes(data)
    (tmp_path / "b.py").write_text("from fastmcp import FastMCP\n\nmcp = FastMCP('x')\n")
    unread, migrated = migrate_files([tmp_path])
    assert (unread.is_changed, [finding.kind for finding in unread.findings]) == (False, ["edit"])
    assert migrated.is_changed


def test_the_command_of_a_client():
    text = (
        "from mcp import ClientSession, StdioServerParameters\nfrom mcp.client.stdio import stdio_client\n\n"
        "async def main(args):\n"
        "    first = StdioServerParameters(command='python', args=['a.py', '-x'], env={'A': 'b'}, encoding='utf-8')\n"
        "    second = StdioServerParameters(command='python', args=args)\n"
        "    async with stdio_client(first) as (read, write), ClientSession(read, write) as session:\n"
        "        await session.list_tools()\n"
    )
    source = migrate_source(text)
    assert _edits(source) == []
    lines = [line.strip() for line in source.text.splitlines()]
    assert "first = CommandTarget(['python', 'a.py', '-x'], env={'A': 'b'})" in lines
    assert "second = CommandTarget(['python', *args])" in lines
    assert "async with Client(first) as session:" in lines
    assert "mcp" not in source.text


def test_options_of_clients_are_translated_or_reported():
    text = (
        "from mcp import ClientSession\nfrom mcp.client.streamable_http import streamablehttp_client\n\n"
        "async def main(url, provider, answer):\n"
        "    async with streamablehttp_client(url, {'X': 'y'}, auth=provider, timeout=5) as (read, write, _):\n"
        "        async with ClientSession(read, write, elicitation_callback=answer, message_handler=print) as s:\n"
        "            await s.list_tools()\n"
    )
    source = migrate_source(text)
    assert "async with Client(url, headers={'X': 'y'}, elicitation_handler=answer) as s:" in source.text
    assert _edits(source) == ["auth=", "elicitation_callback=", "message_handler="]


def test_script_metadata():
    script = '# /// script\n# dependencies = ["fastmcp>=2", "httpx"]\n# ///\n'
    text = f'{script}from fastmcp import FastMCP\n\nmcp = FastMCP("x")\n'
    assert '# dependencies = ["dovetail-mcp", "httpx"]' in migrate_source(text).text


def test_migrated_files_are_not_changed_again():
    for text in (MCP_1, MCP_1_LOW_LEVEL, FASTMCP):
        once = migrate_source(text).text
        assert migrate_source(once).text == once


def test_command_prints_a_diff_and_changes_nothing(run_here: RunCommand, tmp_path: Path):
    script = tmp_path / "shop.py"
    script.write_text(MCP_1)
    result = run_here("migrate", script).check_success()
    assert '-mcp = FastMCP("shop"' in result.out
    assert '+mcp = Server("shop", instructions="Sells tea.")' in result.out
    assert f"{script}:" in result.err
    assert script.read_text() == MCP_1
    assert [*tmp_path.iterdir()] == [script]


def test_command_writes_and_keeps_the_old_file(run_here: RunCommand, tmp_path: Path):
    script, backup = tmp_path / "shop.py", tmp_path / "shop.py.bak"
    script.write_text(MCP_1)
    script.chmod(0o755)
    summary = run_here("migrate", tmp_path, "--write", "--json").check_success().json
    (file,) = summary["files"]
    assert (file["path"], file["is_changed"], file["is_written"]) == (str(script), True, True)
    assert file["findings"][0].keys() == {"line", "kind", "construct", "advice"}
    assert "from dovetail import" in script.read_text()
    assert script.stat().st_mode & 0o777 == 0o755
    assert backup.read_text() == MCP_1
    script.write_text(MCP_1)
    assert run_here("migrate", script, "--write").code == 2
    assert script.read_text() == MCP_1


def test_command_exits_with_6_if_something_is_left_to_edit(run_here: RunCommand, tmp_path: Path):
    script = tmp_path / "shop.py"
    script.write_text("from fastmcp import FastMCP\n\nmcp = FastMCP('x')\nmcp.unheard_of()\n")
    assert run_here("migrate", script).code == 6
    assert run_here("migrate", tmp_path / "missing.py").code == 2


def test_command_never_runs_the_file(run_here: RunCommand, tmp_path: Path):
    script = tmp_path / "shop.py"
    script.write_text(f"import mcp\nopen({str(tmp_path / 'trace')!r}, 'w')\n")
    run_here("migrate", script)
    assert not (tmp_path / "trace").exists()


def test_command_names_the_missing_extra(run: RunCommand, tmp_path: Path):
    script = tmp_path / "shop.py"
    script.write_text(MCP_1)
    blocked = tmp_path / "libcst.py"
    blocked.write_text("raise ModuleNotFoundError(\"No module named 'libcst'\", name='libcst')\n")
    result = run("migrate", script, PYTHONPATH=str(tmp_path))
    assert result.code == 2
    assert "dovetail-mcp[migrate]" in result.err


def test_every_new_name_exists():
    assert [*TYPE_NAMES - {*dovetail.types.__all__}] == []
    for full_name in {*NAMES.values(), *NAMES_BY_MODULE.values(), *ERROR_CLASS_BY_CODE.values()} - {""}:
        module, _, name = full_name.rpartition(".")
        assert hasattr(importlib.import_module(module), name), full_name


ROUTES = """
from fastmcp import FastMCP
from starlette.requests import Request
from starlette.responses import PlainTextResponse

mcp = FastMCP("shop")


@mcp.custom_route("/health/", methods=["GET"], name="health", include_in_schema=False)
async def health(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"ok {request.method}")


@mcp.custom_route(path="/orders/{number:int}", methods=["POST"])
async def order(request: Request) -> PlainTextResponse:
    return PlainTextResponse("stored")
"""


def test_routes_need_no_login_after_the_migration() -> None:
    migrated = migrate_source(ROUTES)
    assert '@mcp.route("/health/", methods=["GET"], allow_anonymous=True)' in migrated.text
    assert '@mcp.route("/orders/{number:int}", methods=["POST"], allow_anonymous=True)' in migrated.text
    assert [finding.kind for finding in migrated.findings] == ["check", "edit", "check"]


MIDDLEWARE = """
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.middleware import Middleware, MiddlewareContext

calls = []


class Gate(Middleware):
    async def on_message(self, context: MiddlewareContext, call_next):
        calls.append("message")
        return await call_next(context)

    async def on_request(self, context: MiddlewareContext, call_next):
        calls.append("request")
        message = context.message
        if context.method == "tools/call" and message.name == "secret":
            raise ToolError("no entry")
        return await call_next(context)

    async def on_call_tool(self, ctx: MiddlewareContext, call_next):
        calls.append(("call", getattr(ctx.message, "name", None), ctx.message.arguments or {}))
        await ctx.fastmcp_context.set_state("user", "ada")
        return await call_next(ctx)


class Strict(Gate):
    async def on_read_resource(self, context: MiddlewareContext, call_next):
        calls.append("read")
        return await call_next(context)


mcp = FastMCP("x", middleware=[Strict()])


@mcp.tool
async def who(ctx: Context) -> str:
    return await ctx.get_state("user")


@mcp.tool
def secret() -> str:
    return "gold"


@mcp.resource("a://b")
def res() -> str:
    return "b"
"""


async def test_hooks_of_middleware_are_nested(load: Any):
    source = migrate_source(MIDDLEWARE)
    assert _edits(source) == []
    module = load(source.text)
    async with Client(module.mcp) as client:
        module.calls.clear()
        result = await client.request("tools/call", {"name": "who"})
        assert result["content"][0]["text"] == "ada"
        assert module.calls == ["message", "request", ("call", "who", {})]
        module.calls.clear()
        with pytest.raises(MCPError, match="no entry"):
            await client.call("secret")
        assert module.calls == ["message", "request"]
        module.calls.clear()
        assert await client.read("a://b") == "b"
        assert module.calls == ["message", "request", "read"]


async def test_a_hook_that_filters_a_list_is_reported_and_hides_the_list(load: Any):
    text = (
        "from fastmcp import FastMCP\nfrom fastmcp.server.middleware import Middleware\n\n\n"
        "class Filter(Middleware):\n"
        "    async def on_list_tools(self, context, call_next):\n"
        "        return [tool for tool in await call_next(context) if tool.name != 'secret']\n\n\n"
        "mcp = FastMCP('x', middleware=[Filter()])\n\n\n@mcp.tool\ndef secret() -> str:\n    return 'gold'\n"
    )
    source = migrate_source(text)
    assert [(finding.line, finding.kind) for finding in source.findings] == [(6, "edit")]
    async with Client(load(source.text).mcp) as client:
        with pytest.raises(MCPError):
            await client.list_tools()


@pytest.mark.parametrize(
    ("hook", "body", "findings"),
    [
        ("on_initialize", "return await call_next(context)", [(6, "edit")]),
        ("on_notification", "return await call_next(context)", [(6, "edit")]),
        ("on_call_tool", "return await call_next(context.copy(message=None))", [(7, "edit")]),
        ("on_call_tool", "return await super().on_call_tool(context, call_next)", [(7, "edit")]),
        ("on_call_tool", "print(context.message)", [(7, "check")]),
        ("on_call_tool", "context.message.arguments = {}", []),
        ("on_request", "return await call_next(context)", [(6, "check")]),
    ],
)
def test_findings_in_middleware(hook: str, body: str, findings: list[tuple[int, str]]):
    text = (
        "from fastmcp import FastMCP\nfrom fastmcp.server.middleware import Middleware\n\n\n"
        f"class Filter(Middleware):\n    async def {hook}(self, context, call_next):\n        {body}\n"
    )
    source = migrate_source(text)
    compile(source.text, "migrated.py", "exec")
    assert [(finding.line, finding.kind) for finding in source.findings] == findings


def test_hooks_of_a_class_with_an_unknown_base_are_reported():
    text = (
        "from fastmcp import FastMCP\nfrom base import Gate\n\n\n"
        "class Strict(Gate):\n    async def on_call_tool(self, context, call_next):\n        return None\n"
    )
    assert _edits(migrate_source(text)) == ["Strict.on_call_tool"]


def test_state_of_a_session_is_reported():
    text = (
        "from fastmcp import Context, FastMCP\n\n\nasync def add(ctx: Context):\n"
        "    await ctx.set_state('cart', 1)\n    await ctx.set_state('db', 1, serializable=False)\n"
    )
    source = migrate_source(text)
    assert "    await ctx.session_state.set('cart', 1)\n    ctx.extra.update({'db': 1})" in source.text
    assert [(finding.line, finding.kind) for finding in source.findings] == [(5, "check")]


RESOURCES = """
from fastmcp import Context, FastMCP

mcp = FastMCP("x")


@mcp.resource("a://b")
def letter() -> str:
    return "b"


@mcp.tool
async def read(ctx: Context) -> str:
    result = await ctx.read_resource("a://b")
    return result.contents[0].content


@mcp.tool
async def read_list(ctx: Context) -> str:
    contents = await ctx.read_resource("a://b")
    return contents[0].content
"""


async def test_resources_that_tools_read(load: Any):
    source = migrate_source(RESOURCES)
    assert [finding.kind for finding in source.findings] == ["check", "check"]
    async with Client(load(source.text).mcp) as client:
        assert await client.call("read") == "b"
        assert await client.call("read_list") == "b"


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("fastmcp.server.auth.providers.jwt.StaticTokenVerifier", "StaticTokenVerifier"),
        ("fastmcp.server.auth.providers.jwt.JWTVerifier", "JWTVerifier"),
        ("fastmcp.server.auth.require_scopes", "scopes="),
    ],
)
def test_advice_about_authentication(name: str, word: str):
    module, _, last_name = name.rpartition(".")
    (finding,) = migrate_source(f"from {module} import {last_name}\n\nprint({last_name})\n").findings
    assert (finding.kind, finding.construct) == ("edit", name)
    assert word in finding.advice


async def test_state_and_helpers_of_middleware(load: Any):
    text = (
        "from fastmcp import Context, FastMCP\n"
        "from fastmcp.server.middleware import Middleware, MiddlewareContext\n\n\n"
        "class Auth(Middleware):\n"
        "    async def on_call_tool(self, context: MiddlewareContext, call_next):\n"
        "        ctx = context.fastmcp_context\n"
        "        await ctx.set_state('tool', self.get_name(context))\n"
        "        return await call_next(context)\n\n"
        "    def get_name(self, request: MiddlewareContext) -> str:\n"
        "        return request.message.name\n\n\n"
        "mcp = FastMCP('x', middleware=[Auth()])\n\n\n"
        "@mcp.tool\nasync def show(ctx: Context) -> str:\n    return await ctx.get_state('tool')\n"
    )
    source = migrate_source(text)
    assert _edits(source) == []
    async with Client(load(source.text).mcp) as client:
        assert await client.call("show") == "show"
    unknown = text.replace(
        "return await call_next", "await context.fastmcp_context.fastmcp.unheard_of()\n        return"
    )
    assert _edits(migrate_source(unknown)) == ["context.fastmcp_context.fastmcp.unheard_of"]
