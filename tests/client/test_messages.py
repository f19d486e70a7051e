"""What a user reads when something goes wrong: which server, which step, which revision, what it said, what to try."""

import sys
from pathlib import Path
from typing import Any

import pytest

from client.world import MODERN, NEWEST_HANDSHAKE, reached
from dovetail import CannotStart, Client, MCPError, RequestTimeout, Server, Timeouts, ToolError
from dovetail.protocol.channel import step

ERAS = [MODERN, NEWEST_HANDSHAKE]
QUICK = Timeouts(initialize=0.3, probe=0.1)


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
    assert step(method, params) == expected


@pytest.mark.parametrize("revision", ERAS)
@pytest.mark.parametrize("way", ["memory", "http"])
async def test_every_error_of_a_request_names_server_step_and_revision(way: str, revision: str) -> None:
    async with reached(way, revision) as client:
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
            assert (caught.value.server, caught.value.step, caught.value.revision) == ("it", name, revision)
            assert str(caught.value).startswith(f"it: {name} ({revision}): ") or isinstance(caught.value, ToolError)


async def test_what_a_tool_says_is_told_without_the_revision() -> None:
    async with reached("memory") as client:
        with pytest.raises(ToolError) as caught:
            await client.call("failing", why="no luck")
    assert str(caught.value) == "it: tools/call failing: no luck"
    assert caught.value.revision == MODERN


async def test_a_value_of_another_type_names_its_tool() -> None:
    async with reached("memory") as client:
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
    async with Client([sys.executable, "-c", TALKER], name="talker", stderr=heard.append) as client:
        with pytest.raises(RequestTimeout) as quiet:
            await client.call_tool("quiet", timeout=0.1)
        with pytest.raises(RequestTimeout) as loud:
            await client.call_tool("loud", timeout=0.5)
    assert heard == ["old news", "thinking", "hard"]
    assert quiet.value.stderr is None
    assert loud.value.stderr == "thinking\nhard"


async def test_a_server_that_never_opens_shows_all_it_said() -> None:
    script = "import sys; print('no licence', file=sys.stderr, flush=True); sys.stdin.read()"
    with pytest.raises(RequestTimeout) as caught:
        await Client([sys.executable, "-c", script], timeouts=Timeouts(initialize=1.0, probe=0.9)).connect()
    assert caught.value.stderr == "no licence"


JUNK = "print('Welcome to my server!', flush=True); print('ready', flush=True)"


@pytest.mark.parametrize(
    ("script", "kind"),
    [(f"{JUNK}; import sys; sys.stdin.read()", RequestTimeout), (f"{JUNK}; raise SystemExit(2)", CannotStart)],
)
async def test_a_program_that_only_prints_is_told_what_it_printed(script: str, kind: type[MCPError]) -> None:
    with pytest.raises(kind) as caught:
        await Client([sys.executable, "-c", script], timeouts=QUICK).connect()
    assert "it wrote 'Welcome to my server!', which is no message" in str(caught.value)
    assert "its stdout must carry nothing but messages: let it print to stderr" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("script", "variables", "hint"),
    [
        ("from dovetail import Server; app = Server('a')", {}, "app.run()"),
        ("import os; os.environ['SECRET_KEY']", {"SECRET_KEY": "x"}, "inherit_env=['SECRET_KEY']"),
        ("import os; os.environ['SECRET_KEY']", {}, "env={'SECRET_KEY': ...}"),
        ("raise SystemExit('SECRET_KEY is not set')", {"SECRET_KEY": "x"}, "inherit_env=['SECRET_KEY']"),
        ("import there_is_no_such_module", {}, "the Python that has there_is_no_such_module installed"),
        ("raise SystemExit(3)", {}, None),
    ],
)
async def test_a_program_that_ends_at_once_gets_advice(
    script: str, variables: dict[str, str], hint: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SECRET_KEY", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CannotStart) as caught:
        await Client([sys.executable, "-c", script]).connect()
    if hint is None:
        assert caught.value.hint is None
    else:
        assert hint in (caught.value.hint or "")


async def test_a_script_without_run_is_explained(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text("from dovetail import Server\n\napp = Server('a')\n")
    with pytest.raises(CannotStart) as caught:
        await Client(script).connect()
    assert str(caught.value).splitlines() == [
        "server.py: initialize: the server's process ended with exit code 0 before it could be used",
        "try: it ended as if all were done: does it serve? A script must call app.run() on its last line",
    ]


async def test_a_death_by_signal_is_named() -> None:
    with pytest.raises(CannotStart, match=r"ended by signal 9 \(SIGKILL\) before"):
        await Client([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]).connect()


async def test_a_server_in_memory_has_its_name() -> None:
    async with Client(Server("weather")) as client:
        with pytest.raises(MCPError, match=r"^weather: tools/call a \(2026-07-28\): "):
            await client.call("a")
