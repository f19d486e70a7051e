"""Test clients with tasks of a real server, over all transports."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client, Context, SyncClient
from dovetail.errors import ConnectError, RemoteError, TaskCancelled, TaskLost, ToolError
from dovetail.middleware import CallNext, Exchange
from dovetail.testing import serve
from dovetail.types import CallToolResult, TextContent
from tasks.task_server import create_server

TRANSPORTS = ["memory", "stdio", "http", "unix", "tcp"]
SCRIPT = Path(__file__).with_name("task_server.py")


@contextlib.asynccontextmanager
async def connect(transport: Any, **options: Any) -> AsyncIterator[Client]:
    if transport == "stdio":
        async with Client([sys.executable, str(SCRIPT)], **options) as client:
            yield client
        return
    async with serve(create_server(), transport=transport) as target, Client(target, **options) as client:
        yield client


def get_value(result: CallToolResult) -> Any:
    """Return the value of a tool."""
    assert isinstance(result.structured_content, dict)
    return result.structured_content["result"]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_calls_and_handles(transport: str) -> None:
    asked: list[str] = []

    def answer(request: Any) -> Any:
        asked.append(request.message)
        return {"value": request.message == "First?"}

    async with connect(transport, elicitation_handler=answer) as client:
        await client.list_tools()
        messages: list[Any] = []
        result = await client.call_tool(
            "double", {"number": 21}, progress_handler=lambda *values: messages.append(values[2])
        )
        assert get_value(result) == 42
        assert messages == ["doubling"]
        assert await client.call("quick") == "quick"
        assert await client.call("confirm") == "True False"
        assert asked == ["First?", "Second?"]
        with pytest.raises(ToolError, match="broken"):
            await client.call("fail", protocol=False)
        with pytest.raises(RemoteError) as caught:
            await client.call("fail", protocol=True)
        assert (caught.value.code, caught.value.data) == (-32602, {"field": "x"})

        handle = await client.start_task("double", {"number": 4})
        updates = [(update.status, update.message) async for update in handle]
        assert updates[0] == ("working", None)
        assert updates[-1][0] == "completed"
        assert get_value(await handle) == 8
        other = await client.get_task(handle.reference)
        assert (other.status, get_value(await other)) == ("completed", 8)

        hanging = await client.start_task("hang")
        await hanging.cancel()
        with pytest.raises(TaskCancelled):
            await hanging
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.call("hang")


@pytest.mark.parametrize("transport", ["memory", "http", "tcp"])
async def test_a_subscription_replaces_polling(transport: Any) -> None:
    app, methods, messages = create_server(), list[str](), list[Any]()
    ended = asyncio.Event()

    @app.tool(task=True)
    async def count(ctx: Context) -> str:
        for number in range(5):
            await ctx.progress(number, message=f"step {number}")
            await asyncio.sleep(0.1)
        await ended.wait()
        return "counted"

    async def watch(exchange: Exchange, call_next: CallNext) -> object:
        methods.append(exchange.method)
        return await call_next(exchange)

    def handle_progress(_progress: float, _total: float | None, message: str | None) -> None:
        messages.append(message)
        if message == "step 4":
            ended.set()

    async with serve(app, transport=transport) as target, Client(target, middleware=[watch]) as client:
        result = await client.call_tool("count", progress_handler=handle_progress)
        assert result.content == [TextContent(text="counted")]
        assert messages[-1] == "step 4"
        # The first requests come before the acknowledgement. Without a subscription, there are more than ten.
        assert methods.count("tasks/get") <= 5


@pytest.mark.parametrize("era", ["handshake", "stateless"])
async def test_a_client_without_tasks_gets_foreground_calls(era: Any) -> None:
    async with Client(
        create_server(), tasks=False, protocol_version=era, elicitation_handler=lambda _: {"value": True}
    ) as client:
        assert await client.call("double", number=3) == 6
        if era == "handshake":
            assert await client.call("confirm") == "True True"
            assert get_value(await (await client.start_task("double", {"number": 5}))) == 10
        else:
            with pytest.raises(RemoteError) as caught:
                await client.call("confirm")
            assert caught.value.code == -32021
            assert caught.value.hint == "pass tasks=True to the client"
            assert get_value(await (await client.start_task("double", {"number": 5}))) == 10


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_sync_client(transport: str) -> None:
    def use(target: Any) -> None:
        with SyncClient(target, elicitation_handler=lambda _: {"value": True}) as client:
            assert client.call("confirm") == "True True"
            handle = client.start_task("double", {"number": 2})
            assert [update.status for update in handle][-1] == "completed"
            assert get_value(handle.result(timeout=30)) == 4

    async def run_http() -> None:
        async with serve(create_server(), transport="http") as url:
            await asyncio.to_thread(use, url)

    if transport == "stdio":
        use([sys.executable, str(SCRIPT)])
    else:
        asyncio.run(run_http())


async def test_a_server_that_restarts_continues_the_task(tmp_path: Path) -> None:
    """The call is sent once. The second server has the same store and address."""
    store, attempts = tmp_path / "tasks.sqlite", list[int]()
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(contextlib.AsyncExitStack())
        url = await first.enter_async_context(serve(create_server(store, attempts), transport="http"))
        client = await stack.enter_async_context(Client(url))
        handle = await client.start_task("restart")
        call = asyncio.create_task(client.call("restart"))
        watch = asyncio.ensure_future(handle)
        async with asyncio.timeout(30):
            while attempts != [1, 1]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await first.aclose()
        port = int(str(url).split(":")[2].split("/")[0])
        await stack.enter_async_context(serve(create_server(store, attempts), transport="http", port=port))
        assert get_value(await watch) == 2
        assert await call == 2
    assert sorted(attempts) == [1, 1, 2, 2]


async def test_a_task_that_the_server_does_not_keep_is_lost() -> None:
    async with serve(create_server(), transport="http") as url, Client(url) as client:
        reference = (await client.start_task("hang")).reference
    async with serve(create_server(), transport="http") as url, Client(url) as client:
        with pytest.raises(TaskLost):
            await client.get_task(reference)


async def test_an_orderly_stop_does_not_end_the_wait(tmp_path: Path) -> None:
    """The server answers polls with an error while it stops. The client waits for the next server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, str(SCRIPT), str(port), str(tmp_path / "tasks.sqlite")]
    first = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
    second: asyncio.subprocess.Process | None = None
    try:
        async with asyncio.timeout(90), connect_to(f"http://127.0.0.1:{port}/mcp") as client:
            handle = await client.start_task("restart")
            waiting = [asyncio.create_task(client.call("restart")), asyncio.ensure_future(handle)]
            # Both attempts have started when the next task has ended.
            assert await client.call("double", number=1) == 2
            first.terminate()
            await first.wait()
            second = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
            assert await waiting[0] == 2
            assert get_value(await waiting[1]) == 2
    finally:
        for process in (first, second):
            if process is not None and process.returncode is None:
                process.kill()
                await process.wait()


@contextlib.asynccontextmanager
async def connect_to(url: str) -> AsyncIterator[Client]:
    """Connect to a server that is starting."""
    while True:
        try:
            client = Client(url)
            await client.connect()
        except ConnectError:
            await asyncio.sleep(0.05)
        else:
            break
    async with client:
        yield client
