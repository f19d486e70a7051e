"""Test servers that forward requests: mounts, `dovetail run URL` and gateways, in front of servers of every version."""

import asyncio
import base64
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import pytest
from msgspec import Meta

from behaviour.manifest import PUBLISHED, requirement
from behaviour.request_helpers import expect_error, text
from dovetail import (
    ArgTransform,
    AudioContent,
    CacheHint,
    CallToolResult,
    Client,
    Context,
    EmbeddedResource,
    Host,
    Icon,
    ImageContent,
    Policy,
    ResourceContents,
    ResourceLink,
    Server,
    ToolError,
    Transform,
    rule,
)
from dovetail.mounts import mounted_client
from support.driver import STATELESS, Peer, connect, serve, stop_process
from support.raw_http import TIMEOUT_S, HttpServerAddress
from support.scripted_server import ErrorReply, ScriptedServer, serve_over_http, tool_definition

SERVER_INFO = "io.modelcontextprotocol/serverInfo"
REGION = {"type": "string", "x-mcp-header": "Region"}


def mirrored(name: str) -> Meta:
    return Meta(extra_json_schema={"x-mcp-header": name})


def coded(value: str) -> str:
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


# The servers that forward


def regions(ran: list[str]) -> Server:
    app = Server("regions")

    @app.tool
    def run(region: Annotated[str, mirrored("Region")] = "", plain: str = "") -> str:
        ran.append(region)
        return f"ran in {region or 'no region'}"

    return app


@asynccontextmanager
async def forwarding(kind: str, upstream: Any, **client_options: Any) -> AsyncIterator[Server]:
    """A server that forwards requests to the server of a client target."""
    app = Server("outer")
    match kind:
        case "mount":
            app.mount(Client(upstream, **client_options), "x")
        case "mount without prefix":
            app.mount(Client(upstream, **client_options))
        case "gateway" | "gateway of one server":
            async with Host(policy=Policy("allow")) as host:
                host.add("x", upstream, **client_options)
                yield host.as_server(server="x" if kind == "gateway of one server" else None)
            return
    yield app
    await app.stop()


REMOTE = ("mount", "mount without prefix", "gateway", "gateway of one server")


@asynccontextmanager
async def proxy(url: str, home: Path) -> AsyncIterator[Peer]:
    """A client of `dovetail run URL`."""
    command = [sys.executable, "-m", "dovetail", "run", url, "--http", "--port", "0"]
    environment = os.environ | {"HOME": str(home), "COLUMNS": "100"}
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE, env=environment)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            urls = {url}  # The name of the proxy is the URL of its server.
            while urls <= {url}:
                line = (await process.stderr.readline()).decode()
                assert line, "the proxy ended"
                urls = {*re.findall(r"http://127\.0\.0\.1:\d+/mcp", line)}
        peer = Peer("http", STATELESS, {}, {})
        (own_url,) = urls - {url}
        peer.web = HttpServerAddress(urlsplit(own_url).port)
        yield peer
        await peer.stop()
        peer.web.close_connections()
    finally:
        await stop_process(process)


@asynccontextmanager
async def client_of(target: str, ran: list[str], home: Path) -> AsyncIterator[Peer]:
    """A client of a server that has the tool, or that forwards the call."""
    async with AsyncExitStack() as stack:
        app = regions(ran)
        match target:
            case "direct":
                pass
            case "mounted server":
                app = Server("outer")
                app.mount(regions(ran), "x")
            case _:
                web = await stack.enter_async_context(serve(app))
                url = f"http://127.0.0.1:{web.port}/mcp"
                if target == "dovetail run URL":
                    yield await stack.enter_async_context(proxy(url, home))
                    return
                app = await stack.enter_async_context(forwarding(target, url))
        yield await stack.enter_async_context(connect(app, "http"))


async def call_with(peer: Peer, name: str, arguments: dict[str, Any], header: str | None) -> Any:
    headers = {} if header is None else {"mcp-param-region": header}
    return await peer.request("tools/call", {"name": name, "arguments": arguments}, headers=headers)


async def find_tool(peer: Peer) -> str:
    """The name of the only tool. It must declare the header."""
    (tool,) = (await peer.request("tools/list"))["tools"]
    assert tool["inputSchema"]["properties"]["region"]["x-mcp-header"] == "Region"
    return tool["name"]


async def expect_mismatch(call: Any) -> None:
    error: Any = await expect_error(call)
    assert (error.code, error.status_code) == (-32020, 400)


# Headers


@requirement("forward.headers")
@pytest.mark.parametrize(
    "target", ["direct", "mounted server", "mount", "mount without prefix", "gateway", "dovetail run URL"]
)
async def test_headers_of_a_forwarded_call_must_agree(target: str, tmp_path: Path) -> None:
    ran: list[str] = []
    async with client_of(target, ran, tmp_path) as peer:
        name = await find_tool(peer)
        for arguments, header in (
            ({"region": "eu"}, "eu"),
            ({"region": "eu"}, coded("eu")),
            ({"region": "a\nb"}, coded("a\nb")),
            ({"plain": "x"}, None),
            ({}, None),
        ):
            result = await call_with(peer, name, arguments, header)
            assert text(result) == f"ran in {arguments.get('region', 'no region')}", (arguments, header)
        assert ran == ["eu", "eu", "a\nb", "", ""]
        for arguments, header in (
            ({"region": "eu"}, "us"),
            ({"region": "eu"}, None),
            ({"region": "eu"}, "=?base64?!!?="),
            ({"region": "eu"}, coded("us")),
            ({}, "eu"),
        ):
            await expect_mismatch(call_with(peer, name, arguments, header))
    assert len(ran) == 5, "a call with other headers must not run"


@requirement("forward.headers")
@pytest.mark.parametrize("target", ["mount", "gateway"])
async def test_a_client_that_never_listed_is_checked_too(target: str, tmp_path: Path) -> None:
    ran: list[str] = []
    name = {"mount": "x_run", "gateway": "x__run"}[target]
    async with client_of(target, ran, tmp_path) as peer:
        await expect_mismatch(call_with(peer, name, {"region": "eu"}, "us"))
        assert text(await call_with(peer, name, {"region": "eu"}, "eu")) == "ran in eu"
    assert ran == ["eu"]


@requirement("forward.headers")
@pytest.mark.parametrize("upstream", ["2025-11-25", STATELESS])
@pytest.mark.parametrize("target", REMOTE)
async def test_the_transport_of_the_server_does_not_matter(target: str, upstream: str) -> None:
    """A server without headers, or of a version without them, still publishes the annotation."""
    ran: list[str] = []
    async with (
        forwarding(target, regions(ran), protocol_version=upstream) as app,
        connect(app, "http") as peer,
    ):
        name = await find_tool(peer)
        await expect_mismatch(call_with(peer, name, {"region": "eu"}, "us"))
        await expect_mismatch(call_with(peer, name, {"region": "eu"}, None))
        assert text(await call_with(peer, name, {"region": "eu"}, "eu")) == "ran in eu"
    assert ran == ["eu"]


@requirement("forward.headers")
@pytest.mark.parametrize("is_remote", [False, True], ids=["local", "remote"])
async def test_headers_repeat_the_arguments_that_a_transform_shows(is_remote: bool) -> None:
    """A caller cannot send a header for an argument with a fixed value, and knows the new name of another one."""
    inner, app = Server("inner"), Server("outer")

    @inner.tool
    def run(region: Annotated[str, mirrored("Region")], zone: Annotated[str, mirrored("Zone")] = "") -> str:
        return f"{region} {zone}"

    arguments = {"region": ArgTransform(name="place"), "zone": ArgTransform(value="z")}
    app.mount(Client(inner) if is_remote else inner, "x", transforms={"run": Transform(arguments=arguments)})
    middle = Server("middle")
    middle.mount(app)
    for mounting in (app, middle):
        async with connect(mounting, "http") as peer:
            (tool,) = (await peer.request("tools/list"))["tools"]
            assert tool["inputSchema"]["properties"] == {"place": REGION}
            assert text(await call_with(peer, "x_run", {"place": "eu"}, "eu")) == "eu z"
            await expect_mismatch(call_with(peer, "x_run", {"place": "eu"}, "us"))
            await expect_mismatch(call_with(peer, "x_run", {"place": "eu"}, None))


@requirement("forward.headers")
@pytest.mark.parametrize("transforms", [None, {"run": Transform(arguments={"plain": ArgTransform(value="x")})}])
@pytest.mark.parametrize("is_remote", [False, True], ids=["local", "remote"])
async def test_each_attempt_of_middleware_is_checked(transforms: Any, is_remote: bool) -> None:
    """Middleware may call a tool again with other arguments, which the headers do not repeat."""
    ran: list[str] = []
    inner, app = regions(ran), Server("outer")
    app.mount(Client(inner) if is_remote else inner, "x", transforms=transforms)

    @app.middleware
    async def call_twice(exchange: Any, call_next: Any) -> Any:
        if exchange.method == "tools/call":
            await call_next(exchange)
            exchange.params = exchange.params | {"arguments": {"region": "us"}}
        return await call_next(exchange)

    async with connect(app, "http") as peer:
        await expect_mismatch(call_with(peer, "x_run", {"region": "eu"}, "eu"))
    assert ran == ["eu"]


@requirement("forward.headers")
@pytest.mark.parametrize("target", ["mount", "gateway"])
async def test_a_changed_definition_applies_to_the_next_call(target: str) -> None:
    upstream = Server("changing")
    upstream.add_tool(lambda region="": region, name="run", input_schema={"type": "object"})
    async with forwarding(target, upstream) as app, connect(app, "http") as peer:
        (tool,) = (await peer.request("tools/list"))["tools"]
        assert not (await call_with(peer, tool["name"], {"region": "eu"}, None)).get("isError")
        listening = peer.start("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        await peer.next_notification("notifications/subscriptions/acknowledged")
        upstream.remove_tool("run")
        upstream.add_tool(_run_in_region, name="run")
        await peer.next_notification("notifications/tools/list_changed")
        await expect_mismatch(call_with(peer, tool["name"], {"region": "eu"}, None))
        if target == "mount":  # A gateway refuses the changed definition until its user accepts it.
            assert text(await call_with(peer, tool["name"], {"region": "eu"}, "eu")) == "eu"
        await listening.disconnect()


def _run_in_region(region: Annotated[str, mirrored("Region")]) -> str:
    return region


@requirement("forward.headers")
@pytest.mark.parametrize("target", ["mount", "mount without prefix"])
async def test_a_call_fails_if_the_definition_cannot_be_read(target: str) -> None:
    """Without the definition, the server cannot know which headers must agree."""
    script = ScriptedServer(reactions={"tools/list": ErrorReply(-32603, "broken")})
    async with serve_over_http(script) as url, forwarding(target, url) as app, connect(app, "http") as peer:
        name = {"mount": "x_echo"}.get(target, "echo")
        assert (await expect_error(peer.request("tools/call", {"name": name}))).code == -32603
    assert script.count("tools/call") == 0


@requirement("forward.headers")
async def test_a_call_of_an_unlisted_tool_is_forwarded() -> None:
    """A tool without a published definition has no headers."""
    script = ScriptedServer(reactions={"tools/list": {"tools": [], "resultType": "complete"}})
    async with serve_over_http(script) as url, forwarding("mount", url) as app, connect(app, "http") as peer:
        assert text(await call_with(peer, "x_hidden", {"region": "eu"}, "us")) == "ok"


@requirement("forward.headers")
@pytest.mark.parametrize("target", ["mount", "gateway"])
async def test_many_calls_need_one_list(target: str) -> None:
    """Callers can invent names, so calls of unknown and unusable tools must not cause more lists."""
    listed = tool_definition(inputSchema={"type": "object", "properties": {"region": REGION}})
    invalid = tool_definition(
        "invalid", inputSchema={"type": "object", "properties": {"a": REGION | {"type": "array"}}}
    )
    script = ScriptedServer(reactions={"tools/list": {"tools": [listed, invalid], "resultType": "complete"}})
    async with serve_over_http(script) as url, forwarding(target, url) as app, connect(app, "http") as peer:
        prefix = {"mount": "x_", "gateway": "x__"}[target]
        for number in range(5):
            assert text(await call_with(peer, f"{prefix}echo", {"region": "eu"}, "eu")) == "ok"
            await expect_mismatch(call_with(peer, f"{prefix}echo", {"region": "eu"}, "us"))
            for name in ("invalid", "hidden", f"hidden{number}"):
                call = call_with(peer, prefix + name, {}, None)
                if target == "mount":
                    assert text(await call) == "ok"
                else:
                    assert (await expect_error(call)).code == -32602
    assert script.count("tools/call") == (20 if target == "mount" else 5)
    assert script.count("tools/list") == 1
    assert [headers["mcp-param-region"] for _, headers in script.heads if "mcp-param-region" in headers] == ["eu"] * 5


@requirement("forward.headers")
async def test_a_tool_that_was_added_without_a_notification_is_checked_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounted_client, "_UNKNOWN_TOOL_LIST_S", 0.0)
    tools: list[Any] = []
    script = ScriptedServer("handshake", {"tools/list": lambda _: {"tools": tools}})
    async with serve_over_http(script) as url, forwarding("mount", url) as app, connect(app, "http") as peer:
        assert text(await call_with(peer, "x_new", {"region": "eu"}, "us")) == "ok"
        tools.append(tool_definition("new", inputSchema={"type": "object", "properties": {"region": REGION}}))
        await expect_mismatch(call_with(peer, "x_new", {"region": "eu"}, "us"))
        assert text(await call_with(peer, "x_new", {"region": "eu"}, "eu")) == "ok"
    assert script.count("tools/list") == 2


@requirement("forward.headers")
async def test_an_invalid_annotation_declares_no_header() -> None:
    """Clients ignore a tool with such an annotation, so no client can send the header."""
    schema = {"type": "object", "properties": {"region": REGION, "list": {"type": "array", "x-mcp-header": "List"}}}
    script = ScriptedServer("handshake", {"tools/list": {"tools": [tool_definition(inputSchema=schema)]}})
    async with serve_over_http(script) as url, forwarding("mount", url) as app, connect(app, "http") as peer:
        assert text(await call_with(peer, "x_echo", {"region": "eu"}, "us")) == "ok"


@requirement("forward.headers")
async def test_other_calls_have_no_headers_to_check(tmp_path: Path) -> None:
    """A search tool, a call inside a call, and callers of older versions repeat no arguments."""
    ran: list[str] = []
    async with Host(policy=Policy("allow")) as host:
        host.add("x", regions(ran))
        app = host.as_server("search")

        @app.tool
        async def relay(ctx: Context) -> str:
            return (await ctx.call_tool("x__run", {"region": "nested"})).text

        inner = {"name": "x__run", "arguments": {"region": "eu"}}
        async with connect(app, "http") as peer:
            await peer.request("tools/call", {"name": "call_tool", "arguments": inner})
            await peer.request("tools/call", {"name": "relay"})
            await expect_mismatch(peer.request("tools/call", inner))
        async with connect(app, "http", "2025-11-25") as peer:
            await peer.request("tools/call", inner)
        async with connect(app, "memory") as peer:
            await peer.request("tools/call", inner)
    assert ran == ["eu", "nested", "eu", "eu"]


@requirement("forward.headers")
async def test_a_hidden_tool_is_not_revealed_by_its_headers() -> None:
    async with Host(policy=Policy("allow", [rule("hide", tool="x.run")])) as host:
        host.add("x", regions([]))
        async with connect(host.as_server(), "http") as peer:
            for name in ("x__run", "x__none"):
                error = await expect_error(call_with(peer, name, {"region": "eu"}, "us"))
                assert error.code == -32602


@requirement("forward.headers")
async def test_a_user_is_not_asked_about_a_call_with_other_headers() -> None:
    asked: list[Any] = []
    ran: list[str] = []

    def answer(params: Any) -> Any:
        asked.append(params)
        return {"action": "accept", "content": {"allow": "once"}}

    async with Host(policy=Policy("ask")) as host:
        host.add("x", regions(ran))
        capabilities, answers = {"elicitation": {}}, {"elicitation/create": answer}
        async with connect(host.as_server(), "http", capabilities=capabilities, answer=answers) as peer:
            call = {"name": "x__run", "arguments": {"region": "eu"}}
            await expect_mismatch(peer.call("tools/call", call, headers={"mcp-param-region": "us"}))
            assert asked == []
            assert text(await peer.call("tools/call", call, headers={"mcp-param-region": "eu"})) == "ran in eu"
    assert len(asked) == 1
    assert ran == ["eu"]


# Results


def everything(revision: str) -> Server:
    """A server of one version, with every kind of item and content."""
    icons = [Icon(src="https://example.com/i.png")]
    app = Server("everything", title="Everything", icons=icons, protocol_versions=[revision])

    @app.tool(title="T", read_only=True, icons=icons, meta={"example.com/a": 1})
    def record(a: int = 1) -> dict[str, int]:
        return {"a": a}

    @app.tool
    def numbers() -> list[int]:
        return [1, 2]

    @app.tool
    def blocks() -> list[Any]:
        return [
            "text",
            ImageContent(data="AAAA", mime_type="image/png"),
            AudioContent(data="AAAA", mime_type="audio/wav"),
            ResourceLink(uri="a://t", name="n", icons=icons),
            EmbeddedResource(resource=ResourceContents(uri="a://t", text="x")),
        ]

    @app.tool
    def fails() -> str:
        raise ToolError("no")

    @app.resource("a://t", title="R", icons=icons, annotations={"audience": ["user"]})
    def fixed() -> str:
        return "x"

    @app.resource("b://{id}")
    def templated(id: str) -> bytes:
        return id.encode()

    @app.prompt(title="P")
    def greet(language: str) -> list[Any]:
        return ["hello", ResourceLink(uri="a://t", name="n")]

    @app.completion("greet", "language")
    def languages(value: str) -> list[str]:
        return ["python"]

    return app


@requirement("forward.schema")
@pytest.mark.parametrize("upstream", PUBLISHED)
@pytest.mark.parametrize("target", REMOTE)
async def test_every_result_is_valid_in_the_version_of_the_caller(target: str, upstream: str, revision: str) -> None:
    """The driver compares each message with the official schema of the caller's version."""
    async with (
        forwarding(target, everything(upstream)) as app,
        connect(app, revision=revision) as peer,
    ):
        tools = [tool["name"] for tool in (await peer.request("tools/list"))["tools"]]
        assert len(tools) == 4
        for name in tools:
            assert (await peer.request("tools/call", {"name": name}))["content"]
        (resource,) = (await peer.request("resources/list"))["resources"]
        (template,) = (await peer.request("resources/templates/list"))["resourceTemplates"]
        for uri in (resource["uri"], template["uriTemplate"].replace("{id}", "5")):
            (content,) = (await peer.request("resources/read", {"uri": uri}))["contents"]
            assert content["uri"] == uri
        (prompt,) = (await peer.request("prompts/list"))["prompts"]
        await peer.request("prompts/get", {"name": prompt["name"], "arguments": {"language": "x"}})
        reference = {"ref": {"type": "ref/prompt", "name": prompt["name"]}}
        await peer.request("completion/complete", reference | {"argument": {"name": "language", "value": ""}})
        code = -32602 if revision == STATELESS else -32002
        assert (await expect_error(peer.request("resources/read", {"uri": resource["uri"] + "z"}))).code == code


async def read_hints(peer: Peer) -> tuple[Any, Any]:
    (resource,) = (await peer.request("resources/list"))["resources"]
    result = await peer.request("resources/read", {"uri": resource["uri"]})
    return result["ttlMs"], result["cacheScope"]


HINTS: list[tuple[dict[str, Any], tuple[int, str]]] = [
    ({}, (0, "private")),
    ({"ttlMs": 5}, (5, "private")),
    ({"cacheScope": "private"}, (0, "private")),
    ({"ttlMs": 5, "cacheScope": "private"}, (5, "private")),
    ({"ttlMs": 5, "cacheScope": "public"}, (5, "private")),
]
INVALID_HINTS: list[dict[str, Any]] = [
    {"ttlMs": "5"},
    {"ttlMs": -1},
    {"ttlMs": 5.5},
    {"cacheScope": "all"},
    {"ttlMs": None},
]


@requirement("forward.hints")
@pytest.mark.parametrize("target", REMOTE)
async def test_missing_hints_are_added_and_nothing_is_public(target: str) -> None:
    """Other callers may not be allowed to read what this caller reads, so shared caches must not store it."""
    hints: dict[str, Any] = {}
    contents = [{"uri": "a://t", "text": 'a "ttlMs" and a "cacheScope"', "_meta": {"ttlMs": 1, "cacheScope": "public"}}]
    reactions = {
        "resources/list": {"resources": [{"uri": "a://t", "name": "t"}], "resultType": "complete"},
        "resources/read": lambda _: {"contents": contents, "resultType": "complete", **hints},
    }
    async with (
        serve_over_http(ScriptedServer(reactions=reactions)) as url,
        forwarding(target, url) as app,
        connect(app) as peer,
    ):
        for hints, expected in HINTS:
            assert await read_hints(peer) == expected, hints


@requirement("forward.hints")
@pytest.mark.parametrize("target", ["mount without prefix", "gateway of one server"])
async def test_invalid_hints_are_replaced_and_unknown_members_stay(target: str) -> None:
    result: dict[str, Any] = {}
    reactions = {
        "resources/list": {"resources": [{"uri": "a://t", "name": "t"}], "resultType": "complete"},
        "resources/read": lambda _: result,
    }
    async with (
        serve_over_http(ScriptedServer(reactions=reactions)) as url,
        forwarding(target, url) as app,
        connect(app) as peer,
    ):
        for hints in INVALID_HINTS:
            contents = [{"uri": "a://t", "text": "x", "later": [1]}]
            result = {"contents": contents, "resultType": "complete", "later": {"a": 1}} | hints
            answer = await peer.request("resources/read", {"uri": "a://t"})
            assert (answer["ttlMs"], answer["cacheScope"]) == (0, "private"), hints
            assert answer["contents"] == contents
            assert answer["later"] == {"a": 1}


@requirement("forward.hints")
@pytest.mark.parametrize("upstream", ["2025-11-25", STATELESS])
async def test_hints_of_the_forwarding_server_apply_to_servers_without_hints(upstream: str) -> None:
    inner = everything(upstream)
    app = Server("outer", cache_hints={"resources/read": CacheHint(7, "public")})
    app.mount(Client(inner), "x")
    async with connect(app) as peer:
        assert await read_hints(peer) == ((0 if upstream == STATELESS else 7), "private")


@requirement("forward.hints")
async def test_a_public_resource_of_a_mounted_server_is_private_behind_an_access_rule() -> None:
    inner = Server("inner", cache_hints=CacheHint(5, "public"))
    inner.add_resource(lambda: "x", "a://t", name="t")
    for options, scope in (({}, "public"), ({"visible_to": lambda _: True}, "private")):
        app = Server("outer")
        app.mount(inner, "x", **options)
        async with connect(app) as peer:
            assert await read_hints(peer) == (5, scope)


@requirement("forward.meta")
@pytest.mark.parametrize("target", REMOTE)
async def test_keys_of_stateless_versions_are_removed_for_older_clients(target: str, revision: str) -> None:
    upstream = Server("upstream")

    @upstream.tool
    def tag() -> CallToolResult:
        return CallToolResult(content=[], meta={"example.com/a": 1})

    upstream.add_resource(lambda: "x", "a://t", name="t")
    upstream.add_prompt(lambda: "hello", name="greet")
    async with forwarding(target, upstream) as app, connect(app, revision=revision) as peer:
        (tool,) = (await peer.request("tools/list"))["tools"]
        (resource,) = (await peer.request("resources/list"))["resources"]
        (prompt,) = (await peer.request("prompts/list"))["prompts"]
        result = await peer.request("tools/call", {"name": tool["name"]})
        assert result["_meta"] == {"example.com/a": 1}
        assert "_meta" not in await peer.request("resources/read", {"uri": resource["uri"]})
        assert "_meta" not in await peer.request("prompts/get", {"name": prompt["name"]})
