"""Test the error messages of the client: the server, the step, the protocol version, its output and a hint."""

import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client, CommandTarget, MCPError, RequestAwaitingInput, Server, SyncClient, Timeouts, ToolError
from dovetail.errors import ConnectError, NotSupported, ProcessStartError, RequestTimeout
from dovetail.protocol.client_messages import create_error
from dovetail.protocol.interfaces.client_transport import describe_request
from dovetail.wire.raw_message import ErrorObject
from support.full_server import NEWEST_HANDSHAKE, STATELESS, connect_client, run_target
from support.mentions import mentions, values
from support.scripted_server import ErrorReply as Refusal
from support.scripted_server import ScriptedServer, serve_on_socket

ERAS = [STATELESS, NEWEST_HANDSHAKE]
QUICK = Timeouts(initialize=0.3, discover=0.1)


@pytest.mark.parametrize(
    ("method", "params", "expected"),
    [
        ("tools/call", {"name": "add", "arguments": {"name": "x"}}, "tools/call add"),
        ("prompts/get", {"name": "packing"}, "prompts/get packing"),
        ("resources/read", {"uri": "note://a"}, "resources/read note://a"),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "p"}}, "completion/complete p"),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "a://{b}"}}, "completion/complete a://{b}"),
        ("tools/list", {}, "tools/list"),
        ("tools/list", None, "tools/list"),
        ("example/odd", {"name": 5}, "example/odd"),
        ("tools/call", {"name": "a\nb"}, "tools/call a\\nb"),
    ],
)
def test_a_step_says_what_it_is_about(method: str, params: Any, expected: str) -> None:
    assert describe_request(method, params) == expected


@pytest.mark.parametrize("revision", ERAS)
@pytest.mark.parametrize("way", ["memory", "http"])
async def test_every_error_of_a_request_names_server_step_and_revision(way: str, revision: str) -> None:
    async with connect_client(way, revision) as client:
        requests = {
            "tools/call nowhere": client.call("nowhere"),
            "tools/call book": client.call("book"),  # asks, and nobody answers
            "prompts/get nowhere": client.get_prompt("nowhere"),
            "resources/read page://99": client.read("page://99"),
            "completion/complete nowhere": client.complete("city", "O", prompt="nowhere"),
            "tools/call wait": client.call_tool("wait", {"name": "a"}, timeout=0.1),
            "example/unknown": client.request("example/unknown"),
        }
        for name, request in requests.items():
            with pytest.raises(MCPError) as caught:
                await request
            assert (caught.value.server, caught.value.step, caught.value.protocol_version) == ("it", name, revision)
            assert str(caught.value).startswith(f"it: {name} ({revision}): ") or isinstance(caught.value, ToolError)


async def test_a_tool_error_is_shown_without_the_version() -> None:
    async with connect_client("memory") as client:
        with pytest.raises(ToolError) as caught:
            await client.call("failing", why="no luck")
    assert str(caught.value) == "it: tools/call failing: no luck"
    assert caught.value.protocol_version == STATELESS


async def test_a_value_of_another_type_names_its_tool() -> None:
    async with connect_client("memory") as client:
        with pytest.raises(MCPError, match=r"it: tools/call echo \(2026-07-28\): "):
            await client.call("echo", into=int, text="x")


# Processes

TALKER = """
import sys, json, time
print("old news", file=sys.stderr, flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "server/discover":
        about = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "resultType": "complete"}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": about}), flush=True)
    elif message.get("method") == "tools/call" and message["params"]["name"] == "loud":
        print("thinking", "hard", sep="\\n", file=sys.stderr, flush=True)
"""


async def test_a_time_out_shows_what_was_said_since_the_request_began() -> None:
    heard: list[str] = []
    async with Client(CommandTarget([sys.executable, "-c", TALKER], stderr=heard.append), name="talker") as client:
        with pytest.raises(RequestTimeout) as quiet:
            await client.call_tool("quiet", timeout=0.1)
        with pytest.raises(RequestTimeout) as loud:
            await client.call_tool("loud", timeout=0.5)
    assert heard == ["old news", "thinking", "hard"]
    assert mentions(quiet.value.hint, "call_tool(..., timeout=seconds)")
    assert quiet.value.stderr is None
    assert loud.value.stderr == "thinking\nhard"


async def test_a_server_that_never_opens_shows_all_it_said() -> None:
    script = "import sys; print('no licence', file=sys.stderr, flush=True); sys.stdin.read()"
    with pytest.raises(RequestTimeout) as caught:
        await Client([sys.executable, "-c", script], timeout=Timeouts(initialize=1.0, discover=0.9)).connect()
    assert caught.value.stderr == "no licence"


JUNK = "print('Welcome to my server!', flush=True); print('ready', flush=True)"


@pytest.mark.parametrize(
    ("script", "kind"),
    [(f"{JUNK}; import sys; sys.stdin.read()", RequestTimeout), (f"{JUNK}; raise SystemExit(2)", ProcessStartError)],
)
async def test_a_program_that_only_prints_is_reported_with_its_output(script: str, kind: type[MCPError]) -> None:
    with pytest.raises(kind) as caught:
        await Client([sys.executable, "-c", script], timeout=QUICK).connect()
    assert "'Welcome to my server!'" in str(caught.value)
    assert mentions(caught.value.hint, "stdout", "stderr")


@pytest.mark.parametrize(
    ("script", "variables", "hint"),
    [
        ("from dovetail import Server; app = Server('a')", {}, "app.run()"),
        ("import os; os.environ['SECRET_KEY']", {"SECRET_KEY": "x"}, "inherit_env=['SECRET_KEY']"),
        ("import os; os.environ['SECRET_KEY']", {}, "env={'SECRET_KEY': ...}"),
        ("raise SystemExit('SECRET_KEY is not set')", {"SECRET_KEY": "x"}, "inherit_env=['SECRET_KEY']"),
        ("import there_is_no_such_module", {}, "there_is_no_such_module"),
        ("raise SystemExit(3)", {}, "terminal"),
        ("raise SystemExit('no')", {}, None),
    ],
)
async def test_a_program_that_ends_at_once_gets_advice(
    script: str, variables: dict[str, str], hint: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SECRET_KEY", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ProcessStartError) as caught:
        await Client([sys.executable, "-c", script]).connect()
    if hint is None:
        assert caught.value.hint is None
    else:
        assert hint in (caught.value.hint or "")


async def test_a_script_without_run_is_explained(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text("from dovetail import Server\n\napp = Server('a')\n")
    with pytest.raises(ProcessStartError) as caught:
        await Client(script).connect()
    assert caught.value.exit_code == 0
    what, advice = str(caught.value).splitlines()
    assert mentions(what, "server.py", "initialize", 0)
    assert mentions(advice, "app.run()")


async def test_a_death_by_signal_is_named() -> None:
    with pytest.raises(ProcessStartError, match=r"9 \(SIGKILL\)"):
        await Client([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]).connect()


async def test_a_server_in_memory_has_its_name() -> None:
    async with Client(Server("weather")) as client:
        with pytest.raises(MCPError, match=r"^weather: tools/call a \(2026-07-28\): "):
            await client.call("a")


# Mistakes of the caller


async def test_arguments_are_given_by_name() -> None:
    async with connect_client("memory") as client:
        with pytest.raises(TypeError, match=r"call\('add', name=value\)"):
            await client.call("add", {"a": 1})  # pyright: ignore[reportCallIssue]
    with SyncClient(Server("a")) as sync, pytest.raises(TypeError, match=r"name=value"):
        sync.call("add", 1)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    ("ask", "kind", "named"),
    [
        (lambda c: c.call("echo", text=object()), TypeError, ("tools/call echo", "JSON")),
        (lambda c: c.call_tool("echo", ["x"]), TypeError, ("arguments=", "list")),
        (lambda c: c.call_tool("echo", "x", allow_input_required=True), TypeError, ("arguments=", "'x'")),
        (lambda c: c.get_prompt("packing", ["x"]), TypeError, ("arguments=", "list")),
        (lambda c: c.call_tool("echo", timeout=0), ValueError, ("timeout=", 0)),
        (lambda c: c.call_tool("echo", timeout="5"), TypeError, ("timeout=", "'5'")),
        (lambda c: c.call_tool("echo", total_timeout=True), TypeError, ("total_timeout=",)),
        (lambda c: c.call_tool("echo", progress_handler=3), TypeError, ("progress_handler=", 3)),
        (lambda c: c.call_tool("echo", meta=[]), TypeError, ("meta=",)),
        (lambda c: c.resume(5, {}), TypeError, ("pending=", "RequestAwaitingInput")),
        (
            lambda c: c.resume(RequestAwaitingInput(method="tools/call", params={}, input_requests={}), []),
            TypeError,
            ("responses=",),
        ),
    ],
)
async def test_what_cannot_be_meant_is_refused(ask: Any, kind: type[Exception], named: tuple[Any, ...]) -> None:
    async with connect_client("memory") as client:
        with pytest.raises(kind, match=values(*named)):
            await ask(client)
        assert await client.call("add", a=1) == 2


async def test_what_is_gone_names_what_to_use_instead() -> None:
    async with connect_client("memory") as client:
        with pytest.raises(NotSupported, match=r"it: resources/subscribe a:b \(2026-07-28\): (.|\n)*listen\(uris="):
            await client.subscribe_resource("a:b")


@pytest.mark.parametrize(
    ("tool", "arguments", "handler"),
    [
        ("book", {}, "elicitation_handler="),
        ("visit", {"url": "https://x"}, "url_elicitation_handler="),
        ("think", {}, "sampling_handler="),
        ("roots", {}, "roots="),
    ],
)
async def test_a_missing_handler_is_named(tool: str, arguments: dict[str, str], handler: str) -> None:
    async with connect_client("memory", "stateless") as client:
        with pytest.raises(MCPError) as caught:
            await client.call_tool(tool, arguments)
    assert mentions(caught.value.hint, handler)


@pytest.mark.parametrize("data", [None, "x", {"requiredCapabilities": 5}, {"requiredCapabilities": {"other": {}}}])
def test_a_missing_handler_that_is_not_named(data: Any) -> None:
    hint = create_error(STATELESS, "tools/call", ErrorObject(-32021, "no", data)).hint
    assert mentions(hint, "elicitation_handler=", "url_elicitation_handler=", "sampling_handler=", "roots=")


async def test_what_knows_no_way_to_begin_is_doubted() -> None:
    scripted = ScriptedServer("handshake", {"initialize": Refusal(-32601, "unknown")})
    async with serve_on_socket(scripted) as at:
        with pytest.raises(MCPError, match="MCP"):
            await Client(at).connect()


async def test_a_web_server_is_recognised_behind_a_socket() -> None:
    async with run_target("http") as at:
        with pytest.raises(MCPError, match=r"'HTTP/1\.1 400 Bad Request'") as caught:
            await Client(at.replace("http://", "tcp://").removesuffix("/mcp"), timeout=QUICK).connect()
    assert "http://" in (caught.value.hint or "")


async def test_a_port_without_a_listener() -> None:
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1.*Connection refused"):
        await Client("tcp://127.0.0.1:1").connect()
