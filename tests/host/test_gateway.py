"""Test a gateway: its callers, what reaches the servers, its paths and its process."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client, MCPError, Policy, RemoteError, Server, ToolError, rule, testing
from dovetail.auth import BearerAuth, Principal, StaticTokenVerifier
from dovetail.errors import HTTPStatusError
from dovetail.host import ServerSettings
from dovetail.host.config.secret_lookup import get_secret_lookup
from dovetail.host.host import Host, get_parts
from dovetail.transports.http1.http_listener import bind_socket
from dovetail.version import VERSION
from support.polling import wait_until
from support.scripted_http_server import run_scripted_server
from support.sticky_balancer import StickyBalancer
from support.upstream_server import UpstreamServer

ALLOW = Policy("allow")
CALLERS = StaticTokenVerifier({"token-of-ada-0000": Principal("ada"), "token-of-bob-0000": Principal("bob")})


def text(result: Any) -> str:
    return result.content[0].text


SERVING: set[asyncio.Task[None]] = set()


def start_serving(host: Host, **options: Any) -> asyncio.Task[None]:
    task = asyncio.create_task(host.serve("http", **options))
    SERVING.add(task)
    task.add_done_callback(SERVING.discard)
    return task


def free_port() -> int:
    with bind_socket("127.0.0.1", 0) as listener:
        return listener.getsockname()[1]


async def test_a_callers_credentials_stay_with_the_gateway() -> None:
    far = UpstreamServer()
    port = free_port()
    async with testing.serve(far, transport="http") as url, Host(policy=ALLOW) as host:
        host.add("far", url, headers={"Authorization": "Bearer of-the-gateway"})
        serving = start_serving(host, port=port, auth=CALLERS)
        given = {"Cookie": "session=secret-cookie", "X-Api-Key": "secret-key"}
        target = f"http://127.0.0.1:{port}/mcp"
        await wait_until(lambda: reachable(port))
        for era in ("stateless", "handshake"):
            auth = BearerAuth("token-of-ada-0000")
            async with Client(target, auth=auth, headers=given, protocol_version=era) as client:
                await client.call_tool("far__who")
        with pytest.raises(MCPError):
            async with Client(target, auth=BearerAuth("someone-elses-0000")) as client:
                await client.list_tools()
    assert serving.done()  # it ends with the host
    assert len(far.headers) == 2
    for headers in far.headers:
        assert headers["authorization"] == "Bearer of-the-gateway"
        assert b"secret" not in repr(headers).encode()
        assert b"ada" not in repr(headers).encode()


def reachable(port: int) -> bool:
    import socket

    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


async def test_each_caller_has_credentials_of_its_own_upstream() -> None:
    far = UpstreamServer()
    port = free_port()

    def credentials(principal: Principal) -> Any:
        return {"headers": {"Authorization": f"Bearer upstream-{principal.subject}"}} if principal == "ada" else None

    async with testing.serve(far, transport="http") as url, Host(policy=ALLOW) as host:
        host.add("far", url, credentials=credentials)
        host.add("open", UpstreamServer("open"))
        start_serving(host, port=port, auth=CALLERS)
        await wait_until(lambda: reachable(port))
        target = f"http://127.0.0.1:{port}/mcp"
        async with Client(target, auth=BearerAuth("token-of-ada-0000")) as ada:
            assert "far__who" in {tool.name for tool in await ada.list_tools()}
            await ada.call_tool("far__who")
        async with Client(target, auth=BearerAuth("token-of-bob-0000")) as bob:
            names = {tool.name for tool in await bob.list_tools()}
            assert "open__who" in names
            assert "far__who" not in names
            with pytest.raises((ToolError, RemoteError)):
                await bob.call("far__who")
    assert [headers["authorization"] for headers in far.headers] == ["Bearer upstream-ada"]


async def test_each_caller_has_cookies_of_its_own_upstream() -> None:
    port = free_port()
    async with run_scripted_server(StickyBalancer().answer) as far, Host(policy=ALLOW) as host:
        host.add("far", far.url, protocol_version="handshake", credentials=lambda principal: {})
        start_serving(host, port=port, auth=CALLERS)
        await wait_until(lambda: reachable(port))
        target, texts = f"http://127.0.0.1:{port}/mcp", list[tuple[str, str]]()
        auths = BearerAuth("token-of-ada-0000"), BearerAuth("token-of-bob-0000")
        async with Client(target, auth=auths[0]) as ada, Client(target, auth=auths[1]) as bob:
            for _ in range(4):
                texts.append((text(await ada.call_tool("far__where")), text(await bob.call_tool("far__where"))))
    assert len(set(texts)) == 1  # each call reached the machine of its session
    assert texts[0][0] != texts[0][1]
    first_requests = [request for request in far.told if (request.message or {}).get("method") == "initialize"]
    assert all("cookie" not in request.headers for request in first_requests)


async def test_what_one_caller_agreed_to_is_not_agreed_to_by_another() -> None:
    far = UpstreamServer()
    asked: list[str] = []

    def elicit(name: str) -> Any:
        def answer(_: Any) -> Any:
            asked.append(name)
            return {"allow": "session" if name == "ada" else "no"}

        return answer

    port = free_port()
    async with Host() as host:
        host.add("far", far)
        start_serving(host, port=port, auth=CALLERS)
        await wait_until(lambda: reachable(port))
        target = f"http://127.0.0.1:{port}/mcp"
        async with Client(target, auth=BearerAuth("token-of-ada-0000"), elicitation_handler=elicit("ada")) as ada:
            for _ in range(3):
                await ada.call("far__add", a=1)
        async with Client(target, auth=BearerAuth("token-of-bob-0000"), elicitation_handler=elicit("bob")) as bob:
            with pytest.raises(ToolError, match=r"far\.add"):
                await bob.call("far__add", a=1)
    assert asked == ["ada", "bob"]


async def test_paths() -> None:
    port = free_port()
    async with Host(policy=Policy("allow", [rule("hide", tool="one.fail")])) as host:
        host.add("one", UpstreamServer("one"))
        host.add("two", UpstreamServer("two"))
        start_serving(host, port=port)
        await wait_until(lambda: reachable(port))

        async def names(path: str) -> set[str]:
            async with Client(f"http://127.0.0.1:{port}{path}") as client:
                return {tool.name for tool in await client.list_tools()}

        assert {"one__add", "two__add"} < await names("/mcp")
        assert await names("/search/mcp") == {"search_tools", "describe_tool", "call_tool"}
        alone = await names("/servers/one/mcp")
        assert "add" in alone
        assert "fail" not in alone
        async with Client(
            f"http://127.0.0.1:{port}/servers/two/mcp", elicitation_handler=lambda _: {"value": 1}
        ) as client:
            assert await client.call("add", a=1) == 2
            assert await client.read("note:1") == "note 1"
            with pytest.raises(RemoteError):
                await client.call("one__add", a=1)
        with pytest.raises((HTTPStatusError, MCPError)):
            await names("/servers/three/mcp")
        host.add("three", UpstreamServer("three"))
        assert "add" in await names("/servers/three/mcp")


PROGRAM = """
import sys
from dovetail import Policy
from dovetail.host.host import Host
host = Host(policy=Policy("allow"))
host.add("child", [sys.executable, sys.argv[1]])
host.run("stdio")
"""

CHILD = """
import os
from dovetail import Context, Server
app = Server("child")

@app.tool
def pid() -> int:
    return os.getpid()

@app.tool
async def ask(ctx: Context) -> str:
    return await ctx.elicit("Name?", str)

app.run()
"""


@pytest.mark.parametrize("revision", ["2025-06-18", "2026-07-28"])
async def test_a_gateway_on_stdio_leaves_nothing_behind(tmp_path: Path, revision: str) -> None:
    program, child = tmp_path / "gateway_program.py", tmp_path / "child_program.py"
    program.write_text(PROGRAM)
    child.write_text(CHILD)
    command = [sys.executable, str(program), str(child)]
    async with Client(command, protocol_version=revision, elicitation_handler=lambda _: {"value": "Ada"}) as client:
        assert [tool.name for tool in await client.list_tools()] == ["child__pid", "child__ask"]
        pid = int(text(await client.call_tool("child__pid")))
        assert alive(pid)
        assert "Ada" in str((await client.call_tool("child__ask")).content)
    await wait_until(lambda: not alive(pid))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_slow_and_broken_servers_block_no_other_server() -> None:
    async with Host(policy=ALLOW, ready_timeout=0.5) as host:
        host.add("good", UpstreamServer("good"))
        host.add("mute", [sys.executable, "-c", "import time; time.sleep(100)"])
        host.add("gone", [sys.executable, "-c", "raise SystemExit('secret path')"])
        app = host.as_server()
        async with Client(app) as client, asyncio.timeout(20):
            assert "good__add" in {tool.name for tool in await client.list_tools()}
            assert await client.call("good__add", a=1) == 2
            with pytest.raises(RemoteError, match=r"gone.*exit code 1") as caught:
                await client.call("gone__x")
            assert "secret" not in str(caught.value)
        await app.stop()


async def test_a_servers_own_state_is_not_taken_for_the_gateways() -> None:
    """A state the gateway did not seal goes to the server behind as it is, and consent is asked all the same."""
    asked: list[str] = []

    def elicit(question: Any) -> Any:
        asked.append(question.message.splitlines()[0])
        return {"allow": "once"}

    far = UpstreamServer()
    async with Host() as host:
        host.add("far", far)
        app = host.as_server()
        async with Client(app, elicitation_handler=elicit) as client:
            params = {"name": "far__add", "arguments": {"a": 1}, "requestState": "forged", "inputResponses": {}}
            answers = {"dovetail.consent.tool.call": {"action": "accept", "content": {"allow": "once"}}}
            raw = await client.request("tools/call", params | {"inputResponses": answers})
            assert raw["resultType"] == "input_required"  # an answer to a question nobody asked
            assert far.calls == []
        await app.stop()


@pytest.mark.parametrize("mode", ["merged", "search"])
async def test_requests_that_make_no_sense_are_refused_as_such(mode: Any) -> None:
    async with Host(policy=ALLOW) as host:
        host.add("far", UpstreamServer())
        app = host.as_server(mode)
        async with Client(app) as client:
            for method, params in (
                ("tools/call", {"name": "far__add", "arguments": [1]}),
                ("tools/call", {"name": "call_tool", "arguments": [1]}),
                ("tools/call", {"name": 5}),
                ("tools/call", {"name": "search_tools", "arguments": "x"}),
                ("prompts/get", {"name": ["a"]}),
                ("resources/read", {"uri": 5}),
                ("completion/complete", {"ref": "x", "argument": {"name": "a", "value": "b"}}),
            ):
                with pytest.raises(RemoteError) as caught:
                    await client.request(method, params)
                assert caught.value.code in (-32602, -32601), (method, params, caught.value)
        await app.stop()


async def test_the_scheme_of_a_server_is_the_same_in_either_case() -> None:
    """Programs that put addresses in order write schemes small."""
    async with Host(policy=ALLOW) as host:
        host.add("GitHub", UpstreamServer())
        host.add("github", UpstreamServer())
        app = host.as_server()
        async with Client(app) as client:
            uris = [one.uri for one in await client.list_resources()]
            assert len(set(uris)) == 2
            for uri in uris:
                assert uri == uri.lower()
                assert await client.read(uri) == "all"
        await app.stop()


async def test_why_a_server_cannot_be_used_holds_no_secret() -> None:
    async with Host(policy=ALLOW) as host:
        get_secret_lookup(get_parts(host).secrets).remember(["hunter2-hunter2"])
        host.add("gone", ["/no/such/hunter2-hunter2"])
        app = host.as_server()
        async with Client(app) as client:
            with pytest.raises(RemoteError, match=r"gone.*/no/such") as caught:
                await client.call("gone__x")
            assert "hunter2" not in str(caught.value)
        await app.stop()


def test_mistakes() -> None:
    host = Host()
    with pytest.raises(ValueError, match=r"'merged'.*'search'.*'sideways'"):
        host.as_server("sideways")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError):
        Host(patient=3)  # pyright: ignore[reportCallIssue]
    assert isinstance(host.as_server(), Server)


@pytest.mark.parametrize("protocol_version", ["stateless", "handshake"])
@pytest.mark.parametrize("start", ["lazy", "eager"])
async def test_a_gateway_passes_on_instructions_of_its_servers(start: Any, protocol_version: str) -> None:
    host = Host(policy=Policy("allow"), defaults=ServerSettings(start=start))
    for name, instructions in (("a", "Use a."), ("b", "Use b."), ("c", None)):
        host.add(name, Server(name, version="3.1", title="A Title", instructions=instructions))
    async with host:
        merged, single = host.as_server(), host.as_server(server="a")
        own = host.as_server(instructions="Mine.")
        async with Client(own, protocol_version=protocol_version) as client:
            assert client.instructions == "Mine."
            assert start == "eager" or {server.state for server in host.servers} == {"idle"}
        async with Client(merged, protocol_version=protocol_version) as client:
            assert client.instructions == "a: Use a.\n\nb: Use b."
            assert client.server_info is not None
            assert (client.server_info.name, client.server_info.version) == ("gateway", VERSION)
        async with Client(single, protocol_version=protocol_version) as client:
            assert client.instructions == "Use a."
            info = client.server_info
            assert info is not None
            assert (info.name, info.title, info.version) == ("a", "A Title", "3.1")


@pytest.mark.parametrize("protocol_version", ["stateless", "handshake"])
async def test_a_gateway_over_http_passes_on_instructions(protocol_version: str) -> None:
    port = free_port()
    async with Host(policy=ALLOW) as host:
        host.add("a", Server("a", version="3.1", instructions="Use a."))
        serving = start_serving(host, port=port)
        await wait_until(lambda: reachable(port))
        async with Client(f"http://127.0.0.1:{port}/mcp", protocol_version=protocol_version) as client:
            assert client.instructions == "a: Use a."
        async with Client(f"http://127.0.0.1:{port}/servers/a/mcp", protocol_version=protocol_version) as client:
            assert client.instructions == "Use a."
            assert client.server_info is not None
            assert (client.server_info.name, client.server_info.version) == ("a", "3.1")
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@pytest.mark.parametrize("protocol_version", ["stateless", "handshake"])
async def test_a_server_that_starts_slowly_delays_a_caller_only_briefly(
    protocol_version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.server.dispatch.dispatcher._MAX_DESCRIPTION_WAIT_S", 0.1)
    may_start = asyncio.Event()

    @asynccontextmanager
    async def start_slowly() -> AsyncIterator[None]:
        await may_start.wait()
        yield

    async with Host(policy=ALLOW) as host, asyncio.timeout(20):
        host.add("a", Server("a", instructions="Use a."))
        host.add("slow", Server("slow", instructions="Use slow.", lifespan=start_slowly))
        gateway = host.as_server()
        async with Client(gateway, protocol_version=protocol_version) as client:
            assert client.instructions == "a: Use a."
        may_start.set()
        await host.list_tools()
        async with Client(gateway, protocol_version=protocol_version) as client:
            assert client.instructions == "a: Use a.\n\nslow: Use slow."
