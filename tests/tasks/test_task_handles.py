"""Test handles of tasks: references, iteration, cancellation, other processes, and servers without tasks."""

import asyncio
import base64
import json
import signal
import sys
import threading
from typing import Any

import pytest

from dovetail import Client, ClientLimits, Context, Server, SyncClient, Timeouts
from dovetail.errors import (
    ConnectionLost,
    InputRequestError,
    InvalidResult,
    NotSupported,
    RemoteError,
    TaskCancelled,
    TaskLost,
    ToolNotFound,
)
from dovetail.extensions import SyncTaskHandle, TaskHandle, TaskUpdate
from dovetail.middleware import CallNext, Exchange
from dovetail.testing import serve
from dovetail.types import CallToolResult, TextContent
from support.scripted_server import (
    CLOSE,
    ErrorReply,
    Messages,
    ScriptedServer,
    create_notification,
    serve_on_socket,
    serve_over_http,
    text_result,
)
from tasks.task_script import (
    TASK_ID,
    TASKS,
    ask,
    complete,
    create_script,
    create_state,
    fail,
    get_declared,
    get_params,
)

WORKING = create_state()


def get_text(result: CallToolResult) -> str:
    block = result.content[0]
    assert isinstance(block, TextContent)
    return block.text


async def test_a_handle_is_returned_at_once() -> None:
    script = create_script([create_state(statusMessage="a"), complete()])
    async with serve_on_socket(script) as target, Client(target) as client:
        handle = await client.start_task("echo", {"text": "x"}, meta={"com.example/a": 1})
        assert isinstance(handle, TaskHandle)
        assert (handle.status, handle.is_task, script.count("tasks/get")) == ("working", True, 0)
        assert get_text(await handle) == "done"
        assert handle.status == "completed"
        assert get_text(await handle) == "done"
    assert get_params(script, "tools/call") == [{"name": "echo", "arguments": {"text": "x"}}]
    assert script.received[1]["params"]["_meta"]["com.example/a"] == 1
    assert get_declared(script, "tools/call") == [{TASKS: {}}]


@pytest.mark.parametrize("tasks", [True, False])
async def test_a_client_can_start_tasks_without_the_option(tasks: bool) -> None:
    """Only requests about tasks declare the extension then."""
    script = create_script([complete()])
    async with serve_on_socket(script) as target, Client(target, tasks=tasks) as client:
        await (await client.start_task("echo"))
        await client.list_tools()
    assert get_declared(script, "tasks/get") == [{TASKS: {}}]
    assert get_declared(script, "tools/list") == [{TASKS: {}} if tasks else None]


async def test_a_server_may_answer_without_a_task() -> None:
    script = create_script([WORKING], tools_call=text_result("direct"))
    async with serve_on_socket(script) as target, Client(target) as client:
        handle = await client.start_task("echo")
        assert (handle.status, handle.is_task) == ("completed", False)
        assert get_text(await handle) == "direct"
        assert [update async for update in handle] == [TaskUpdate(status="completed")]
        assert (await handle.refresh()).status == "completed"
        await handle.cancel()
        with pytest.raises(NotSupported):
            _ = handle.reference
    assert script.count("tasks/cancel") == 0


async def test_an_error_of_the_server_is_raised_by_start_task() -> None:
    script = create_script([WORKING], tools_call=ErrorReply(-32603, "no"))
    async with serve_on_socket(script) as target, Client(target) as client:
        with pytest.raises(RemoteError):
            await client.start_task("echo")
        with pytest.raises(TypeError):
            await client.start_task("echo", [])  # type: ignore[arg-type]


async def test_middleware_sees_the_task() -> None:
    results: list[str] = []

    async def watch(exchange: Exchange, call_next: CallNext) -> object:
        result = await call_next(exchange)
        results.append(type(result).__name__)
        return result

    script = create_script([complete()])
    async with serve_on_socket(script) as target, Client(target, middleware=[watch]) as client:
        await (await client.start_task("echo"))
    assert results == ["CreateTaskResult", "DetailedTask"]


# Updates


async def test_a_handle_yields_each_change() -> None:
    states = [create_state(statusMessage="a"), create_state(statusMessage="a"), ask("k"), complete()]
    script = create_script(states)
    async with serve_on_socket(script) as target, Client(target, elicitation_handler=lambda _: {}) as client:
        handle = await client.start_task("echo")
        updates = [update async for update in handle]
        assert [(update.status, update.message) for update in updates] == [
            ("working", None),
            ("working", "a"),
            ("input_required", None),
            ("completed", None),
        ]
        assert updates[-1].is_final
        assert updates[0].ttl == 60.0
        polls = script.count("tasks/get")
        assert [update.status async for update in handle] == ["completed"]
        assert script.count("tasks/get") == polls


async def test_iteration_ends_normally_if_the_task_fails() -> None:
    script = create_script([fail(-32603)])
    async with serve_on_socket(script) as target, Client(target) as client:
        handle = await client.start_task("echo")
        assert [update.status async for update in handle] == ["working", "failed"]
        with pytest.raises(RemoteError):
            await handle


async def test_a_task_can_be_awaited_after_an_iteration_that_ended_early() -> None:
    script = create_script([complete()])
    async with serve_on_socket(script) as target, Client(target) as client:
        reference = (await client.start_task("echo")).reference
        handle = await client.get_task(reference)
        assert [update.status async for update in handle] == ["completed"]
        assert get_text(await handle) == "done"
        started = await client.start_task("echo")
        async for _ in started:
            break
        assert get_text(await started) == "done"


async def test_iteration_raises_if_the_task_is_lost() -> None:
    script = create_script([ErrorReply(-32602, "gone")])
    async with serve_on_socket(script) as target, Client(target) as client:
        handle = await client.start_task("echo")
        with pytest.raises(TaskLost):
            _ = [update async for update in handle]


async def test_all_waiters_share_one_watcher() -> None:
    asked: list[Any] = []

    async def answer(request: Any) -> Any:
        asked.append(request)
        await asyncio.sleep(0.05)
        return {"sure": True}

    async def collect(handle: TaskHandle) -> list[str]:
        return [update.status async for update in handle]

    script = create_script([ask("k"), complete()])
    async with serve_on_socket(script) as target, Client(target, elicitation_handler=answer) as client:
        handle = await client.start_task("echo")
        results = await asyncio.gather(handle, handle, collect(handle), collect(handle))
    assert results[0] == results[1]
    assert results[2] == results[3] == ["working", "input_required", "completed"]
    assert len(asked) == 1
    assert script.count("tasks/get") == 2


async def test_nobody_polls_if_nobody_waits() -> None:
    script = create_script([WORKING])
    async with serve_on_socket(script) as target, Client(target) as client:
        handle = await client.start_task("echo")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await handle
        async for update in handle:
            assert update.status == "working"
            break
        await handle.refresh()  # The server answers in order, so it has answered all earlier polls.
        polls = script.count("tasks/get")
        await asyncio.sleep(0.3)
        assert script.count("tasks/get") == polls
    assert script.count("tasks/cancel") == 0


async def test_refresh_asks_the_server_and_answers_no_questions() -> None:
    script = create_script([ask("k"), complete()])
    async with serve_on_socket(script) as target, Client(target) as client:
        handle = await client.start_task("echo")
        assert (await handle.refresh()).status == handle.status == "input_required"
        assert (await handle.refresh()).status == handle.status == "completed"
    assert script.count("tasks/update") == 0


async def test_a_question_that_failed_is_asked_again() -> None:
    """The task still waits for the answer, so the caller may await the handle again."""
    script, asked = create_script([ask("k"), ask("k"), complete()]), list[Any]()

    def answer(request: Any) -> Any:
        asked.append(request)
        if len(asked) == 1:
            raise RuntimeError
        return {"sure": True}

    async with serve_on_socket(script) as target, Client(target, elicitation_handler=answer) as client:
        handle = await client.start_task("echo")
        with pytest.raises(InputRequestError):
            await handle
        assert handle.status == "input_required"
        assert get_text(await handle) == "done"
    assert len(asked) == 2
    assert script.count("tasks/cancel") == 0


async def test_a_handle_can_be_awaited_again_after_a_lost_connection() -> None:
    states = iter([CLOSE, complete()])
    script = create_script([lambda _: next(states)])
    limits = ClientLimits(max_retries=0)
    async with serve_on_socket(script) as target, Client(target, timeout=Timeouts(call=0), limits=limits) as client:
        handle = await client.start_task("echo", timeout=10)
        with pytest.raises(ConnectionLost):
            await handle
        assert get_text(await handle) == "done"
    assert script.count("tools/call") == 1


async def test_closing_the_client_ends_the_wait() -> None:
    polls: list[Any] = []
    is_polling = asyncio.Event()

    def get(_: Any) -> Any:
        polls.append(0)
        if len(polls) == 4:
            is_polling.set()  # The next poll comes after a long time.
        return create_state(pollIntervalMs=60_000)

    async with serve_on_socket(create_script([get])) as target:
        client = Client(target)
        call = asyncio.create_task(client.call("echo"))
        await is_polling.wait()
        await client.close()
        async with asyncio.timeout(10):
            with pytest.raises(ConnectionLost):
                await call


async def test_a_handle_works_in_another_event_loop() -> None:
    script = create_script([WORKING, complete()])
    async with serve_on_socket(script) as target, Client(target) as client:
        handle = await client.start_task("echo")

        async def wait() -> tuple[str, list[str]]:
            return get_text(await handle), [update.status async for update in handle]

        assert await asyncio.to_thread(asyncio.run, wait()) == ("done", ["completed"])


# Cancellation


async def test_cancel_asks_the_server() -> None:
    script = create_script([create_state("cancelled")])
    async with serve_on_socket(script) as target, Client(target) as client:
        handle = await client.start_task("echo")
        await handle.cancel()
        assert handle.status == "working"
        with pytest.raises(TaskCancelled):
            await handle
        assert handle.status == "cancelled"
        await handle.cancel()
    assert get_params(script, "tasks/cancel") == [{"taskId": TASK_ID}]


async def test_cancelling_an_unknown_task_raises_an_error() -> None:
    script = create_script([WORKING], tasks_cancel=ErrorReply(-32602, "gone"))
    async with serve_on_socket(script) as target, Client(target) as client:
        with pytest.raises(TaskLost):
            await (await client.start_task("echo")).cancel()


# References


def decode_reference(reference: str) -> Any:
    prefix, data = reference.split(".")
    assert prefix == "task1"
    return json.loads(base64.urlsafe_b64decode(data + "=" * (-len(data) % 4)))


async def test_a_reference_finds_the_task_in_another_client() -> None:
    script = create_script([ask("k"), complete()])
    async with serve_on_socket(script) as target:
        async with Client(target) as client:
            reference = (await client.start_task("echo", {"password": "x"})).reference
        assert decode_reference(reference) == {"server": "stand-in", "tool": "echo", "id": TASK_ID}
        async with Client(target, elicitation_handler=lambda _: {"sure": True}) as client:
            handle = await client.get_task(f" {reference}\n")
            assert handle.status == "input_required"
            assert handle.reference == reference
            assert get_text(await handle) == "done"
    assert script.count("tasks/update") == 1
    assert script.count("tools/call") == 1


async def test_an_unknown_or_expired_task_is_lost() -> None:
    script = create_script([WORKING])
    async with serve_on_socket(script) as target, Client(target) as client:
        reference = (await client.start_task("echo")).reference
    async with serve_on_socket(create_script([ErrorReply(-32602, "Expired")])) as target, Client(target) as client:
        with pytest.raises(TaskLost) as caught:
            await client.get_task(reference)
    assert caught.value.step == "tasks/get"
    assert TASK_ID not in str(caught.value)


def encode_reference(content: Any, version: str = "1") -> str:
    return f"task{version}." + base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "reference",
    [
        "",
        "task1.",
        "task1",
        "taskx.YQ",
        "nothing",
        "task1.%%%",
        "task1.YQ",
        encode_reference([]),
        encode_reference({"server": 1, "tool": "echo", "id": TASK_ID}),
        encode_reference({"server": "stand-in", "tool": "echo"}),
        encode_reference({"server": "stand-in", "tool": "echo", "id": TASK_ID}, version="2"),
        encode_reference({"server": "another", "tool": "echo", "id": TASK_ID}),
        encode_reference({"server": "stand-in", "tool": "x" * 20_000, "id": TASK_ID}),
    ],
)
async def test_a_wrong_reference_is_refused(reference: str) -> None:
    script = create_script([WORKING])
    async with serve_on_socket(script) as target, Client(target) as client:
        with pytest.raises(ValueError, match="reference") as caught:
            await client.get_task(reference)
        assert TASK_ID not in str(caught.value)
        with pytest.raises(TypeError):
            await client.get_task(7)  # type: ignore[arg-type]
    assert script.count("tasks/get") == 0


async def test_a_server_that_sends_another_task_is_refused() -> None:
    reference = encode_reference({"server": None, "tool": "echo", "id": TASK_ID})
    script = create_script([create_state(taskId="another")])
    async with serve_on_socket(script) as target, Client(target) as client:
        with pytest.raises(InvalidResult):
            await client.get_task(reference)


@pytest.mark.parametrize("era", ["stateless", "handshake"])
async def test_a_server_without_tasks_has_no_references(era: str) -> None:
    reference = encode_reference({"server": None, "tool": "echo", "id": TASK_ID})
    async with serve_on_socket(ScriptedServer(era)) as target, Client(target) as client:
        with pytest.raises(NotSupported):
            await client.get_task(reference)


PROGRAM = """
import asyncio, sys
from dovetail import Client

async def main(url):
    async with Client(url) as client:
        handle = await client.start_task("echo")
        print(handle.reference, flush=True)
        await handle

asyncio.run(main(sys.argv[1]))
"""


async def test_a_second_process_gets_the_result_after_the_first_was_killed() -> None:
    is_killed = False
    script = create_script([lambda _: complete() if is_killed else WORKING])
    async with serve_over_http(script) as url:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, url, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        reference = (await process.stdout.readline()).decode()
        process.kill()
        assert await process.wait() == -signal.SIGKILL
        is_killed = True
        async with Client(url) as client:
            assert get_text(await (await client.get_task(reference))) == "done"
    assert script.count("tools/call") == 1


# Servers without tasks


def create_server() -> Server:
    app = Server("plain")

    @app.tool
    async def work(ctx: Context) -> str:
        await ctx.progress(1, message="first")
        return "worked"

    @app.tool
    async def hang() -> None:
        await asyncio.Event().wait()

    return app


@pytest.mark.parametrize("era", ["stateless", "handshake"])
@pytest.mark.parametrize("transport", ["memory", "http"])
async def test_a_call_to_a_server_without_tasks_runs_in_the_background(transport: Any, era: Any) -> None:
    async with (
        serve(create_server(), transport=transport) as target,
        Client(target, protocol_version=era) as client,
    ):
        handle = await client.start_task("work")
        assert handle.status == "working"
        with pytest.raises(NotSupported):
            _ = handle.reference
        updates = [(update.status, update.message) async for update in handle]
        assert updates[0] == ("working", None)
        assert updates[-1][0] == "completed"
        assert get_text(await handle) == "worked"
        assert get_text(await handle) == "worked"
        hanging = await client.start_task("hang")
        await hanging.cancel()
        with pytest.raises(TaskCancelled):
            await hanging
        assert hanging.status == "cancelled"
        unknown = await client.start_task("unknown")
        with pytest.raises((RemoteError, ToolNotFound)):
            await unknown
        assert unknown.status == "failed"


async def test_a_background_call_continues_without_waiters() -> None:
    script = ScriptedServer("handshake")
    async with serve_on_socket(script) as target, Client(target) as client:
        handle = await client.start_task("echo")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await handle
        assert get_text(await handle) == "ok"
    assert script.count("tools/call") == 1
    assert script.count("notifications/cancelled") == 0


async def test_a_background_call_ends_with_the_client() -> None:
    client = Client(create_server(), protocol_version="handshake")
    handle = await client.start_task("hang")
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(ConnectionLost):
        await handle
    assert handle.status == "failed"


async def test_a_handshake_client_gets_no_tasks() -> None:
    script = ScriptedServer("handshake", {"tools/call": lambda _: create_state(resultType="task")})
    async with serve_on_socket(script) as target, Client(target) as client:
        with pytest.raises(InvalidResult):
            await client.call("echo")


async def test_notifications_about_tasks_go_to_the_handler_of_clients_without_tasks() -> None:
    notice = create_notification("notifications/tasks", a=1)
    received: list[Any] = []
    script = ScriptedServer("stateless", {"tools/call": Messages([notice, text_result()])})
    async with (
        serve_on_socket(script) as target,
        Client(target, notification_handler=lambda *values: received.append(values)) as client,
    ):
        await client.call("echo")
    assert received == [("notifications/tasks", {"a": 1})]


# Clients without await


def run_scripted(script: ScriptedServer) -> tuple[str, Any]:
    """Serve a script in a thread. Return its URL, and a function that stops it."""
    ready, stop = threading.Event(), threading.Event()
    targets: list[str] = []

    async def run() -> None:
        async with serve_on_socket(script) as target:
            targets.append(target)
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    ready.wait(60)

    def finish() -> None:
        stop.set()
        thread.join(60)

    return targets[0], finish


def test_a_sync_client_waits_for_tasks() -> None:
    script = create_script([create_state(statusMessage="a"), ask("k"), complete()])
    target, finish = run_scripted(script)
    try:
        with SyncClient(target, elicitation_handler=lambda _: {"sure": True}) as client:
            assert client.call("echo") == "done"
            handle = client.start_task("echo")
            assert isinstance(handle, SyncTaskHandle)
            assert get_text(client.get_task(handle.reference).result(timeout=60)) == "done"
            assert handle.refresh().status == handle.status == "completed"
            assert [update.status for update in handle] == ["completed"]
            assert get_text(handle.result()) == "done"
    finally:
        finish()


def test_a_sync_handle_can_be_left_and_cancelled() -> None:
    script = create_script([WORKING])
    target, finish = run_scripted(script)
    try:
        with SyncClient(target) as client:
            handle = client.start_task("echo")
            assert repr(handle) == "<SyncTaskHandle working>"
            assert handle.is_task
            with pytest.raises(TimeoutError):
                handle.result(timeout=0.1)
            for update in handle:
                assert update.status == "working"
                break
            assert script.count("tasks/cancel") == 0
            handle.cancel()
            assert script.count("tasks/cancel") == 1
    finally:
        finish()
