"""Test our client with tasks of a FastMCP server."""

import base64
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client, SyncClient, ToolError
from dovetail.errors import TaskCancelled, TaskLost
from interop.conftest import ServerProcess

pytest.importorskip("fastmcp_tasks", reason="fastmcp[tasks] is not installed")

pytestmark = [pytest.mark.interop, pytest.mark.timeout(60)]

SCRIPT = str(Path(__file__).with_name("fastmcp_task_server.py"))


COMMAND = [sys.executable, SCRIPT, "stdio"]


@pytest.fixture(scope="module")
def url(free_port: Callable[[], int]) -> Iterator[str]:
    port = free_port()
    server = ServerProcess([sys.executable, SCRIPT, "http", str(port)], url=f"http://127.0.0.1:{port}/mcp")
    try:
        assert server.url is not None
        yield server.url
    finally:
        server.stop()
    assert not server.unexpected_errors()


def answer(request: Any) -> dict[str, bool]:
    assert request.message == "Sure?"
    return {"sure": True}


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_tasks_of_a_fastmcp_server(transport: str, url: str) -> None:
    target = COMMAND if transport == "stdio" else url
    async with Client(target, elicitation_handler=answer) as client:
        await client.list_tools()
        assert await client.call("greet", name="Ada") == "Hello, Ada!"
        messages: list[Any] = []
        result = await client.call_tool(
            "double", {"number": 4}, progress_handler=lambda *values: messages.append(values)
        )
        assert result.structured_content == {"result": 8}
        assert messages == [(1.0, None, "doubling")]
        assert await client.call("confirm") == "confirmed: True"
        with pytest.raises(ToolError, match="broken"):
            await client.call("fail")

        handle = await client.start_task("double", {"number": 5})
        assert [update.status async for update in handle][-1] == "completed"
        again = await client.get_task(handle.reference)
        assert (await again).structured_content == (await handle).structured_content == {"result": 10}

        hanging = await client.start_task("hang")
        await hanging.cancel()
        with pytest.raises(TaskCancelled):
            await hanging


async def test_other_clients_run_the_same_tools_in_the_foreground(url: str) -> None:
    async with Client(url, tasks=False, elicitation_handler=answer) as client:
        assert await client.call("double", number=3) == 6
        assert (await (await client.start_task("double", {"number": 6}))).structured_content == {"result": 12}
    async with Client(url, protocol_version="handshake") as client:
        assert await client.call("double", number=3) == 6
        handle = await client.start_task("double", {"number": 7})
        assert (await handle).structured_content == {"result": 14}


def test_a_sync_client_and_an_unknown_task(url: str) -> None:
    with SyncClient(url) as client:
        handle = client.start_task("double", {"number": 2})
        assert handle.result(timeout=30).structured_content == {"result": 4}
        prefix, _, data = handle.reference.partition(".")
        content = json.loads(base64.urlsafe_b64decode(data + "=="))
        unknown = base64.urlsafe_b64encode(json.dumps(content | {"id": "unknown"}).encode()).decode()
        with pytest.raises(TaskLost):
            client.get_task(f"{prefix}.{unknown.rstrip('=')}")
