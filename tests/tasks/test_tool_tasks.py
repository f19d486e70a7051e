"""Test tools that run as tasks: creation, results, cancellation, owners, and clients that do not support tasks."""

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client as RealClient
from dovetail import Context, Depends, Server, ToolError
from dovetail.errors import (
    ElicitationDeclined,
    InsufficientScope,
    InternalError,
    InvalidParams,
    MethodNotFound,
    MissingClientCapability,
    ServerBusy,
)
from dovetail.extensions import SQLiteTaskStore, TaskConfig, TaskOptions
from dovetail.middleware import CallNext, Exchange, RateLimit
from dovetail.protocol.limits import ServerLimits
from dovetail.protocol.principal import Principal
from dovetail.tasks import task_call, task_worker
from dovetail.tasks.local_engine import LocalEngine
from dovetail.tasks.task_record import TaskRecord, TaskStoreUnavailable
from dovetail.tasks.task_store import DEFAULT_LIMITS, RunTask, StopSignal, TaskLimits
from dovetail.tasks.task_worker import WorkerOptions
from server.direct_client import ALL_CAPABILITIES, LATEST_HANDSHAKE, NEWEST, Client, text

TASKS = "io.modelcontextprotocol/tasks"
DECLARED = ALL_CAPABILITIES | {"extensions": {TASKS: {}}}
TIMEOUT_S = 30.0
FINAL = ("completed", "failed", "cancelled")


class TaskClient(Client):
    """A client that declares the tasks extension."""

    def __init__(self, app: Server, **options: Any) -> None:
        super().__init__(app, capabilities=DECLARED, **options)

    async def get(self, id: str) -> dict[str, Any]:
        return await self.request("tasks/get", {"taskId": id})

    async def start(self, name: str, **arguments: Any) -> str:
        result = await self.call(name, arguments)
        assert result["resultType"] == "task"
        return result["taskId"]

    async def wait(self, id: str, *statuses: str) -> dict[str, Any]:
        async with asyncio.timeout(TIMEOUT_S):
            while (task := await self.get(id))["status"] not in (statuses or FINAL):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        return task

    async def finish(self, name: str, **arguments: Any) -> dict[str, Any]:
        return await self.wait(await self.start(name, **arguments))

    async def answer(self, id: str, **contents: Any) -> None:
        responses = {key: {"action": "accept", "content": content} for key, content in contents.items()}
        await self.request("tasks/update", {"taskId": id, "inputResponses": responses})

    async def cancel(self, id: str) -> dict[str, Any]:
        return await self.request("tasks/cancel", {"taskId": id})


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.fixture
async def app() -> AsyncIterator[Server]:
    app = Server("app")
    yield app
    await app.stop()


# Creation and results


async def test_a_call_becomes_a_task_and_its_result_can_be_read(app: Server) -> None:
    started = asyncio.Event()

    @app.tool(task=True)
    async def work(x: int) -> int:
        await started.wait()
        return 2 * x

    client = TaskClient(app)
    created = await client.call("work", {"x": 21})
    assert created["resultType"] == "task"
    assert created["status"] == "working"
    assert created["ttlMs"] == 3_600_000
    assert created["pollIntervalMs"] == 1000
    assert not {"result", "error", "inputRequests", "requestState", "task"} & created.keys()
    task = await client.get(created["taskId"])
    assert (task["resultType"], task["status"], task["taskId"]) == ("complete", "working", created["taskId"])
    started.set()
    task = await client.wait(created["taskId"])
    assert task["status"] == "completed"
    assert task["result"]["structuredContent"] == {"result": 42}
    assert task["result"]["resultType"] == "complete"


async def test_a_tool_without_the_option_returns_its_result(app: Server) -> None:
    @app.tool(task=True)
    async def other() -> str:
        return "other"

    @app.tool
    async def plain() -> str:
        return "plain"

    @app.tool(task=False)
    async def also_plain() -> str:
        return "plain"

    result = await TaskClient(app).call("plain", task={"ttl": 1})
    assert (result["resultType"], text(result)) == ("complete", "plain")
    assert text(await TaskClient(app).call("also_plain")) == "plain"


async def test_a_sync_function_runs_in_a_thread(app: Server) -> None:
    @app.tool(task=True)
    def work() -> bool:
        return threading.current_thread() is threading.main_thread()

    task = await TaskClient(app).finish("work")
    assert task["result"]["structuredContent"] == {"result": False}


async def test_a_tool_error_is_a_result_and_a_protocol_error_fails_the_task(app: Server) -> None:
    @app.tool(task=True)
    async def fail(protocol: bool) -> str:
        raise InvalidParams("wrong", {"field": "x"}) if protocol else ToolError("no")

    task = await TaskClient(app).finish("fail", protocol=False)
    assert (task["status"], task["result"]["isError"], text(task["result"])) == ("completed", True, "no")
    task = await TaskClient(app).finish("fail", protocol=True)
    assert (task["status"], task["error"]) == (
        "failed",
        {"code": -32602, "message": "wrong", "data": {"field": "x"}},
    )
    assert "result" not in task


async def test_wrong_arguments_are_refused_without_a_task(app: Server) -> None:
    @app.tool(task=True)
    async def work(x: int) -> int:
        return x

    result = await TaskClient(app).call("work", {"x": "many"})
    assert result["resultType"] == "complete"
    assert result["isError"]


async def test_dependencies_and_the_lifespan_work_in_a_task() -> None:
    events, started = list[str](), asyncio.Event()

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        yield "value"
        events.append("closed")

    async def double(x: int) -> int:
        return 2 * x

    app = Server("app", lifespan=lifespan, limits=ServerLimits(drain_timeout=0.05))

    @app.tool(task=True)
    async def work(x: int, ctx: Context, doubled: int = Depends(double)) -> str:
        return f"{ctx.lifespan} {doubled}"

    @app.tool(task=True)
    async def slow() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            events.append("stopped")

    client = TaskClient(app)
    assert text((await client.finish("work", x=4))["result"]) == "value 8"
    await client.start("slow")
    await started.wait()
    await app.stop()
    # The lifespan is open as long as a task runs.
    assert events == ["stopped", "closed"]


# Clients that do not support tasks


async def test_a_client_without_the_extension_gets_the_result(app: Server) -> None:
    @app.tool(task=True)
    async def work(ctx: Context) -> int:
        return ctx.attempt

    assert (await Client(app).call("work"))["structuredContent"] == {"result": 1}
    assert (await Client(app, LATEST_HANDSHAKE).call("work"))["structuredContent"] == {"result": 1}


async def test_a_required_task_refuses_stateless_clients_without_the_extension(app: Server) -> None:
    ran: list[int] = []

    @app.tool(task="required")
    async def work() -> str:
        ran.append(1)
        return "done"

    with pytest.raises(MissingClientCapability) as error:
        await Client(app).call("work")
    assert error.value.data == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
    assert not ran
    assert text(await Client(app, LATEST_HANDSHAKE).call("work")) == "done"


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_the_methods_require_the_extension_before_they_look_up_the_task(app: Server, method: str) -> None:
    @app.tool(task=True)
    async def work() -> str:
        return "done"

    params = {"taskId": "unknown", "inputResponses": {}}
    with pytest.raises(MissingClientCapability) as error:
        await Client(app).request(method, params)
    assert error.value.code == -32021
    with pytest.raises(InvalidParams):
        await TaskClient(app).request(method, params)


async def test_there_is_no_list_of_tasks(app: Server) -> None:
    @app.tool(task=True)
    async def work() -> str:
        return "done"

    for method in ("tasks/list", "tasks/result"):
        with pytest.raises(MethodNotFound):
            await TaskClient(app).request(method, {})


async def test_a_mounted_tool_runs_in_the_foreground(app: Server) -> None:
    inner = Server("inner")

    @inner.tool(task="required")
    async def work() -> str:
        return "done"

    app.mount(inner, "in")
    assert text(await TaskClient(app).call("in_work")) == "done"


# Owners


async def test_a_task_belongs_to_its_principal(app: Server) -> None:
    @app.tool(task=True)
    async def work(ctx: Context) -> str:
        return f"{ctx.principal} {sorted(ctx.principal.scopes) if ctx.principal else ''}"

    alice = TaskClient(app, principal=Principal("alice", scopes=["read"]))
    id = await alice.start("work")
    assert text((await alice.wait(id))["result"]) == "alice ['read']"
    for other in (TaskClient(app, principal=Principal("bob")), TaskClient(app)):
        for request in (other.get(id), other.cancel(id), other.answer(id)):
            with pytest.raises(InvalidParams):
                await request
    own = await TaskClient(app).start("work")
    with pytest.raises(InvalidParams):
        await alice.get(own)


async def test_a_task_can_be_read_with_the_scopes_of_its_tool(app: Server) -> None:
    @app.tool(task=True, scopes=["reports"])
    async def work() -> str:
        return "done"

    client = TaskClient(app, principal=Principal("ann", scopes=["reports"]))
    id = await client.start("work")
    assert text((await client.wait(id))["result"]) == "done"
    other = TaskClient(app, principal=Principal("ann"))
    for request in (other.get(id), other.cancel(id), other.answer(id)):
        with pytest.raises(InsufficientScope):
            await request
    app.remove_tool("work")
    assert (await client.get(id))["status"] == "completed"


async def test_too_many_tasks_are_refused() -> None:
    app = Server("app", tasks=TaskOptions(max_tasks=2, max_tasks_per_principal=1))

    @app.tool(task=True)
    async def work() -> str:
        return "done"

    @app.tool(task=True)
    async def sleep() -> None:
        await asyncio.sleep(60)

    alice = TaskClient(app, principal=Principal("alice"))
    id = await alice.start("sleep")
    with pytest.raises(ServerBusy):
        await alice.call("work")
    await alice.cancel(id)
    await alice.wait(id)
    # Tasks that have ended count only for the total.
    await alice.finish("work")
    with pytest.raises(ServerBusy):
        await TaskClient(app).call("work")
    await app.stop()


class SlowStore(SQLiteTaskStore):
    """A store that stores a record and then takes its time."""

    def __init__(self) -> None:
        super().__init__(":memory:")
        self.created: list[str] = []

    async def create(self, record: TaskRecord, limits: TaskLimits = DEFAULT_LIMITS) -> None:
        await super().create(record, limits)
        self.created.append(record.id)
        await asyncio.Event().wait()


@pytest.mark.parametrize("after", [None, 0.0])
async def test_a_request_that_is_cancelled_while_its_task_is_stored_leaves_no_task(after: float | None) -> None:
    store = SlowStore()
    app = Server("app", tasks=TaskOptions(store=store))

    @app.tool(task=TaskConfig(after=after, max_retries=3))
    async def work() -> None:
        await asyncio.sleep(60)

    client = TaskClient(app)
    request = asyncio.ensure_future(client.call("work"))
    await until(lambda: bool(store.created))
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert (await client.get(store.created[0]))["status"] == "cancelled"
    await app.stop()
    await store.close()


# Cancellation


async def test_cancel_stops_a_coroutine_at_once_and_can_be_repeated(app: Server) -> None:
    events: list[str] = []
    started = asyncio.Event()

    @app.tool(task=True)
    async def work() -> str:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            events.append("stopped")
        return "done"

    client = TaskClient(app)
    id = await client.start("work")
    await started.wait()
    assert (await client.cancel(id)).keys() == {"_meta", "resultType"}
    task = await client.wait(id)
    assert task["status"] == "cancelled"
    assert "result" not in task
    assert events == ["stopped"]
    assert (await client.cancel(id))["resultType"] == "complete"
    assert (await client.get(id))["status"] == "cancelled"


async def test_cancel_does_not_wait_for_a_thread(app: Server) -> None:
    started, release = threading.Event(), threading.Event()

    @app.tool(task=True)
    def work() -> None:
        started.set()
        release.wait(TIMEOUT_S)

    client = TaskClient(app)
    id = await client.start("work")
    await asyncio.to_thread(started.wait, TIMEOUT_S)
    await client.cancel(id)
    assert (await client.wait(id))["status"] == "cancelled"
    release.set()


async def test_tasks_do_not_use_the_threads_of_other_calls() -> None:
    app = Server("app", limits=ServerLimits(max_threads=2, max_thread_queue=1, thread_queue_timeout=0.05))
    release = threading.Event()

    @app.tool(task=True)
    def work() -> str:
        release.wait(TIMEOUT_S)
        return "done"

    @app.tool
    def plain() -> str:
        return "plain"

    client = TaskClient(app, principal=Principal("ann"))
    ids = [await client.start("work") for _ in range(6)]
    assert text(await client.call("plain")) == "plain"
    await asyncio.sleep(0.1)
    release.set()
    assert [text((await client.wait(id))["result"]) for id in ids] == ["done"] * 6
    await app.stop()


# Middleware


async def test_middleware_wraps_the_creation_and_the_run(app: Server) -> None:
    seen: list[tuple[bool, str]] = []

    @app.middleware
    async def record(exchange: Exchange, call_next: CallNext) -> object:
        exchange.extra["user"] = "ann"
        result = await call_next(exchange)
        if exchange.method == "tools/call":
            seen.append((exchange.is_task, type(result).__name__))
        return result

    app.middleware(RateLimit(2, per=60.0))

    @app.tool(task=True)
    async def work(ctx: Context) -> str:
        return ctx.extra["user"]

    client = TaskClient(app)
    assert text((await client.finish("work"))["result"]) == "ann"
    assert sorted(seen) == [(False, "CreateTaskResult"), (True, "CallToolResult")]
    # The run does not count for a rate limit, because the request was counted.
    await client.finish("work")
    with pytest.raises(ServerBusy):
        await client.call("work")


async def test_middleware_that_refuses_a_call_prevents_the_task(app: Server) -> None:
    @app.middleware
    async def refuse(exchange: Exchange, call_next: CallNext) -> object:
        if exchange.method == "tools/call":
            raise InvalidParams("refused")
        return await call_next(exchange)

    @app.tool(task=True)
    async def work() -> str:
        return "done"

    with pytest.raises(InvalidParams):
        await TaskClient(app).call("work")


# Questions


async def test_a_task_asks_its_client(app: Server) -> None:
    runs: list[int] = []

    @app.tool(task=True)
    async def work(ctx: Context) -> str:
        runs.append(1)
        name = await ctx.elicit("Name?", str)
        city = await ctx.elicit("City?", str)
        return f"{name} in {city}"

    client = TaskClient(app)
    id = await client.start("work")
    task = await client.wait(id, "input_required")
    assert [*task["inputRequests"]] == ["q1"]
    await client.answer(id, q1={"value": "Ann"}, unknown=1)
    while [*(task := await client.wait(id, "input_required"))["inputRequests"]] == ["q1"]:
        pass
    assert [*task["inputRequests"]] == ["q2"]
    await client.answer(id, q2={"value": "Rome"})
    task = await client.wait(id)
    assert text(task["result"]) == "Ann in Rome"
    assert runs == [1]


async def test_a_task_that_asks_several_questions_shows_those_that_are_open(app: Server) -> None:
    from dovetail import Elicit

    @app.tool(task=True)
    async def work(ctx: Context) -> str:
        answers = await ctx.request_inputs(name=Elicit("Name?", str), city=Elicit("City?", str))
        return f"{answers['name']} in {answers['city']}"

    client = TaskClient(app)
    id = await client.start("work")
    assert {*(await client.wait(id, "input_required"))["inputRequests"]} == {"name", "city"}
    await client.answer(id, name={"value": "Ann"})
    task = await client.get(id)
    assert (task["status"], [*task["inputRequests"]]) == ("input_required", ["city"])
    await client.answer(id, city={"value": "Rome"})
    assert text((await client.wait(id))["result"]) == "Ann in Rome"


async def test_a_question_stays_open_if_the_answer_does_not_match_its_form(app: Server) -> None:
    @app.tool(task=True)
    async def work(ctx: Context) -> int:
        return await ctx.elicit("Age?", int)

    client = TaskClient(app)
    id = await client.start("work")
    await client.wait(id, "input_required")
    for wrong in ({"value": "old"}, {}, {"value": None}):
        with pytest.raises(InvalidParams) as error:
            await client.answer(id, q1=wrong)
        assert error.value.data == {"field": "inputResponses.q1"}
        assert (await client.get(id))["status"] == "input_required"
    await client.answer(id, q1={"value": 7, "other": 1})
    assert (await client.wait(id))["result"]["structuredContent"] == {"result": 7}


@pytest.mark.usefixtures("patient")
async def test_a_question_that_the_function_gives_up_is_withdrawn(tmp_path: Path) -> None:
    path, release, ran = tmp_path / "tasks.sqlite", asyncio.Event(), list[str]()
    app = Server("app", tasks=TaskOptions(store=path))

    @app.tool(task=True)
    async def work(ctx: Context) -> str:
        ran.append("started")
        try:
            async with asyncio.timeout(0.05):
                await ctx.elicit("Name?", str)
        except TimeoutError:
            ran.append("given up")
        await release.wait()
        return "done"

    client = TaskClient(app)
    id = await client.start("work")
    await until(lambda: "given up" in ran)
    task = await client.wait(id, "working")
    assert "inputRequests" not in task
    record = await read_record(path, id)
    assert record.phase == "running"
    # An answer comes too late, and does not start the function again.
    await client.answer(id, q1={"value": "Ann"})
    release.set()
    assert text((await client.wait(id))["result"]) == "done"
    assert ran == ["started", "given up"]
    await app.stop()


def write_text(path: Path, text: str) -> None:
    path.write_text(text)


async def read_only_record(path: Path) -> TaskRecord:
    """Read the record of the only task in a file."""
    store = SQLiteTaskStore(path)
    [id] = await store.list_ids()
    await store.close()
    return await read_record(path, id)


async def read_record(path: Path, id: str) -> TaskRecord:
    store = SQLiteTaskStore(path)
    record = await store.get(id)
    await store.close()
    assert record is not None
    return record


async def test_the_user_can_decline_in_a_task(app: Server) -> None:
    @app.tool(task=True)
    async def work(ctx: Context) -> str:
        try:
            return await ctx.elicit("Name?", str)
        except ElicitationDeclined:
            return "declined"

    client = TaskClient(app)
    id = await client.start("work")
    await client.wait(id, "input_required")
    await client.request("tasks/update", {"taskId": id, "inputResponses": {"q1": {"action": "decline"}}})
    assert text((await client.wait(id))["result"]) == "declined"


# Options


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ("always", TypeError),
        (1, TypeError),
        (lambda: TaskConfig(after=-1), ValueError),
        (lambda: TaskConfig(ttl=0), ValueError),
        (lambda: TaskConfig(max_retries=-1), ValueError),
        (lambda: TaskConfig(timeout="1"), TypeError),  # pyright: ignore[reportArgumentType]
        (lambda: TaskOptions(max_tasks=0), ValueError),
        (lambda: TaskOptions(store=5), TypeError),  # pyright: ignore[reportArgumentType]
    ],
)
def test_wrong_options_are_refused(option: Any, error: type[Exception]) -> None:
    app = Server("app")
    with pytest.raises(error):
        app.tool(task=option() if callable(option) else option)(lambda: "x")


def test_a_server_declares_tasks_only_if_a_tool_has_the_option() -> None:
    from dovetail.server.server import get_dispatcher

    app = Server("app")
    app.add_tool(lambda: 1, name="plain")
    assert get_dispatcher(app).capabilities().extensions is None
    app.add_tool(lambda: 1, name="task", task=True)
    assert get_dispatcher(app).capabilities().extensions == {TASKS: {}}
    assert get_dispatcher(Server("x", tasks=TaskOptions())).capabilities().extensions == {TASKS: {}}


# Calls that start in the foreground


async def test_a_call_that_ends_in_time_does_not_become_a_task(app: Server) -> None:
    @app.tool(task=TaskConfig(after=30.0))
    async def work(ctx: Context) -> str:
        return f"attempt {ctx.attempt}"

    result = await TaskClient(app).call("work")
    assert (result["resultType"], text(result)) == ("complete", "attempt 1")


async def test_a_call_becomes_a_task_when_it_takes_too_long(app: Server) -> None:
    release, runs = asyncio.Event(), list[bool]()

    @app.middleware
    async def record(exchange: Exchange, call_next: CallNext) -> object:
        result = await call_next(exchange)
        if exchange.method == "tools/call":
            runs.append(exchange.is_task)
        return result

    @app.tool(task=TaskConfig(after=0.01))
    async def work() -> str:
        await release.wait()
        return "done"

    client = TaskClient(app)
    id = await client.start("work")
    assert (await client.get(id))["status"] == "working"
    assert not runs
    release.set()
    assert text((await client.wait(id))["result"]) == "done"
    # Middleware wraps the whole call once.
    assert runs == [True]


async def test_questions_before_the_task_are_rounds_and_those_after_it_belong_to_the_task(app: Server) -> None:
    runs: list[int] = []

    @app.tool(task=TaskConfig(after=0.01, required=True))
    async def work(ctx: Context) -> str:
        name = await ctx.elicit("Name?", str)
        await ctx.once("step", lambda: runs.append(1))
        await until(lambda: ctx._exchange.is_task)  # pyright: ignore[reportPrivateUsage]
        city = await ctx.elicit("City?", str)
        return f"{name} in {city}"

    client = TaskClient(app)
    first = await client.call("work")
    assert (first["resultType"], [*first["inputRequests"]]) == ("input_required", ["q1"])
    answers = {"q1": {"action": "accept", "content": {"value": "Ann"}}}
    created = await client.call("work", inputResponses=answers, requestState=first["requestState"])
    assert created["resultType"] == "task"
    assert "requestState" not in created
    task = await client.wait(created["taskId"], "input_required")
    assert [*task["inputRequests"]] == ["q2"]
    await client.answer(created["taskId"], q2={"value": "Rome"})
    assert text((await client.wait(created["taskId"]))["result"]) == "Ann in Rome"
    assert runs == [1]


async def test_a_call_that_became_a_task_can_be_cancelled(app: Server) -> None:
    @app.tool(task=TaskConfig(after=0.0))
    async def work() -> None:
        await asyncio.sleep(60)

    client = TaskClient(app)
    id = await client.start("work")
    await client.cancel(id)
    assert (await client.wait(id))["status"] == "cancelled"


async def test_a_call_in_the_foreground_stops_with_its_request(app: Server) -> None:
    stopped = asyncio.Event()
    started = asyncio.Event()

    @app.tool(task=TaskConfig(after=60.0))
    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    request = asyncio.ensure_future(TaskClient(app).call("work"))
    await started.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await asyncio.wait_for(stopped.wait(), 10)


async def test_a_call_stays_in_the_foreground_if_no_task_can_be_stored() -> None:
    app = Server("app", tasks=TaskOptions(max_tasks=1))

    @app.tool(task=TaskConfig(after=0.0))
    async def work() -> str:
        await asyncio.sleep(0.02)
        return "done"

    client = TaskClient(app)
    await client.finish("work")
    assert text(await client.call("work")) == "done"
    await app.stop()


async def test_a_call_in_the_foreground_sends_progress(app: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_call, "_HEARTBEAT_INTERVAL_S", 0.001)
    client = Client(app)

    @app.tool(task=True)
    async def work(ctx: Context) -> str:
        await until(lambda: len(client.said) >= 2)
        await ctx.progress(1, 2, "half")
        await until(lambda: len(client.said) >= 5)
        return "done"

    await client.request("tools/call", {"name": "work", "arguments": {}}, progressToken="t")
    messages = [message["params"] for message in client.said]
    values = [params["progress"] for params in messages]
    assert values == sorted({*values})
    assert [params for params in messages if params.get("message") == "half"]
    count = len(client.said)
    await asyncio.sleep(0.01)
    assert len(client.said) == count


# Progress


async def test_progress_is_the_status_message(app: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_call, "_PROGRESS_INTERVAL_S", 0.01)
    release = asyncio.Event()

    @app.tool(task=True)
    async def work(ctx: Context) -> None:
        for step in range(100):
            await ctx.progress(step, 100, f"step {step}")
        await ctx.progress(100, 100)
        await release.wait()

    client = TaskClient(app)
    id = await client.start("work")
    messages = set[str]()
    async with asyncio.timeout(TIMEOUT_S):
        while "100 of 100" not in messages:
            messages.add((await client.get(id)).get("statusMessage", ""))
            await asyncio.sleep(0.001)
    assert len(messages) < 50
    release.set()
    await client.wait(id)


# Semantics


class NoEngine:
    """An engine that runs nothing, like a worker that is lost."""

    async def submit(self, id: str) -> None: ...

    async def serve(self, run: Any, stop: Any) -> None:
        await stop.wait()


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers find lost tasks soon, and park functions soon."""
    options = WorkerOptions(lease_seconds=30.0, due_interval=0.01, park_after=0.01)
    monkeypatch.setattr(task_worker, "DEFAULT_OPTIONS", options)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let functions wait for answers, and try failed changes again soon."""
    monkeypatch.setattr(task_worker, "_STORE_RETRY_DELAY_S", 0.01)


def create_app(path: Path, max_retries: int = 0, engine: Any = None, **options: Any) -> tuple[Server, list[int]]:
    """Create a server with a tool that counts its runs, and asks in the first one."""
    app, runs = Server("app", tasks=TaskOptions(store=path, engine=engine), **options), list[int]()

    @app.tool(task=TaskConfig(max_retries=max_retries))
    async def work(ctx: Context, ask: bool = False) -> str:
        runs.append(ctx.attempt)
        number = await ctx.once("number", lambda: len(runs))
        name = await ctx.elicit("Name?", str) if ask else "nobody"
        return f"{name} {number} {ctx.attempt}"

    return app, runs


async def lose_worker(path: Path, id: str, **options: Any) -> None:
    """Claim a task as a worker does, and let the lease expire."""
    store = SQLiteTaskStore(path, **options)
    claimed = await store.claim(id, "lost worker", time.time(), 0.001)
    assert claimed is not None
    await store.close()


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("max_retries", [0, 1])
async def test_a_lost_task_starts_again_only_if_that_is_allowed(tmp_path: Path, max_retries: int) -> None:
    path = tmp_path / "tasks.sqlite"
    app, _ = create_app(path, max_retries, NoEngine())
    id = await TaskClient(app).start("work")
    await lose_worker(path, id)
    await app.stop()
    app, runs = create_app(path, max_retries)
    task = await TaskClient(app).wait(id)
    if max_retries:
        assert text(task["result"]) == "nobody 1 2"
        assert runs == [2]
    else:
        assert (task["status"], task["error"]["code"]) == ("failed", -32603)
        assert not runs
    await app.stop()


@pytest.mark.usefixtures("fast")
async def test_a_task_that_was_created_but_not_started_runs_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "tasks.sqlite"
    app, _ = create_app(path, engine=NoEngine())
    id = await TaskClient(app).start("work")
    await app.stop()
    app, runs = create_app(path)
    assert text((await TaskClient(app).wait(id))["result"]) == "nobody 1 1"
    assert runs == [1]
    await app.stop()


@pytest.mark.usefixtures("fast")
async def test_a_parked_task_continues_in_another_process_without_a_retry(tmp_path: Path) -> None:
    path = tmp_path / "tasks.sqlite"
    app, runs = create_app(path)
    client = TaskClient(app)
    id = await client.start("work", ask=True)
    await client.wait(id, "input_required")
    await app.stop()
    assert runs == [1]
    app, runs = create_app(path)
    client = TaskClient(app)
    assert (await client.get(id))["status"] == "input_required"
    assert not runs
    await client.answer(id, q1={"value": "Ann"})
    # The step is not repeated, and the continuation is not a new attempt.
    assert text((await client.wait(id))["result"]) == "Ann 1 1"
    assert runs == [1]
    await app.stop()


@pytest.mark.usefixtures("fast")
async def test_an_explicit_input_request_continues_with_its_state(app: Server) -> None:
    from dovetail import Elicit, InputRequired

    @app.tool(task=True)
    async def work(ctx: Context) -> str | InputRequired:
        answers = [*filter(None, (ctx.request_state or "").split(","))]
        if "name" in ctx.input_responses:
            answers.append(ctx.input_responses["name"]["content"]["value"])
        if len(answers) < 2:
            return InputRequired({"name": Elicit("Name?", str)}, ",".join(answers))
        return " and ".join(answers)

    client = TaskClient(app)
    id = await client.start("work")
    await client.wait(id, "input_required")
    await client.answer(id, name={"value": "Ann"})
    while "name" in (task := await client.wait(id, "input_required"))["inputRequests"]:
        pass
    # The same question gets a new key, because the first one was answered.
    assert [*task["inputRequests"]] == ["name-2"]
    await client.answer(id, **{"name-2": {"value": "Bob"}})
    assert text((await client.wait(id))["result"]) == "Ann and Bob"


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("change", ["removed", "arguments"])
async def test_a_task_of_a_changed_tool_fails(tmp_path: Path, change: str) -> None:
    path = tmp_path / "tasks.sqlite"
    app, _ = create_app(path, engine=NoEngine())
    id = await TaskClient(app).start("work")
    await app.stop()
    app, ran = Server("app", tasks=TaskOptions(store=path)), list[int]()

    @app.tool("work" if change == "arguments" else "other", task=True)
    async def work(ask: int = 0) -> None:
        ran.append(ask)

    task = await TaskClient(app).wait(id)
    assert (task["status"], task["error"]["code"]) == ("failed", -32603)
    assert "work" in task["error"]["message"]
    assert not ran
    await app.stop()


@pytest.mark.usefixtures("fast")
async def test_a_stopping_server_hands_over_what_may_run_again_and_fails_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "tasks.sqlite"
    limits = ServerLimits(drain_timeout=0.05)
    ids: dict[str, str] = {}

    def create() -> Server:
        app = Server("app", tasks=TaskOptions(store=path), limits=limits)

        async def work(ctx: Context) -> str:
            started.set()
            if ctx.attempt == 1:
                await asyncio.sleep(60)
            return f"attempt {ctx.attempt}"

        for name, config in {
            "once": TaskConfig(),
            "retried": TaskConfig(max_retries=1),
            "switched": TaskConfig(after=0.0),
        }.items():
            app.add_tool(work, name=name, task=config)
        return app

    started = asyncio.Event()
    app = create()
    for name in ("once", "retried", "switched"):
        started.clear()
        ids[name] = await TaskClient(app).start(name)
        await started.wait()
    await app.stop()
    client = TaskClient(app := create())
    for name in ("once", "switched"):
        task = await client.get(ids[name])
        assert (task["status"], task["error"]["code"]) == ("failed", -32603)
    assert text((await client.wait(ids["retried"]))["result"]) == "attempt 2"
    await app.stop()


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_task_that_waits_for_a_thread_or_its_tool_has_not_started(tmp_path: Path, is_async: bool) -> None:
    path, release, ran = tmp_path / "tasks.sqlite", threading.Event(), list[int]()
    limits = ServerLimits(max_threads=1, drain_timeout=0.05)

    def create(timeout: float) -> Server:
        app = Server("app", tasks=TaskOptions(store=path), limits=limits)
        config = TaskConfig(timeout=timeout)

        async def work(number: int) -> int:
            ran.append(number)
            while not release.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            return number

        def work_in_thread(number: int) -> int:
            ran.append(number)
            release.wait(TIMEOUT_S)
            return number

        if is_async:
            app.add_tool(work, task=config, max_concurrency=1)
        else:
            app.add_tool(work_in_thread, name="work", task=config)
        return app

    client = TaskClient(app := create(60.0))
    ids = [await client.start("work", number=number) for number in range(3)]
    await until(lambda: ran == [0])
    await app.stop()
    release.set()
    client = TaskClient(app := create(60.0))
    assert (await client.get(ids[0]))["status"] == "failed"
    for number in (1, 2):
        task = await client.wait(ids[number])
        assert task["result"]["structuredContent"] == {"result": number}
    assert ran == [0, 1, 2]
    await app.stop()


async def test_the_time_in_a_queue_does_not_count_for_the_timeout() -> None:
    app, release = Server("app", limits=ServerLimits(max_threads=1)), threading.Event()

    @app.tool(task=True)
    def block() -> None:
        release.wait(TIMEOUT_S)

    @app.tool(task=TaskConfig(timeout=1.0))
    def work() -> str:
        return "done"

    client = TaskClient(app)
    await client.start("block")
    id = await client.start("work")
    await asyncio.sleep(1.3)
    release.set()
    assert text((await client.wait(id))["result"]) == "done"
    await app.stop()


class FailingStore(SQLiteTaskStore):
    """A store whose driver raises an error of its own."""

    failures = 0

    async def list_due(self, server: str, now: float, limit: int) -> list[str]:
        if self.failures < 3:
            self.failures += 1
            raise ConnectionResetError("gone")
        return await super().list_due(server, now, limit)


class FailingEngine(LocalEngine):
    """An engine that fails when it starts for the first time."""

    starts = 0

    async def serve(self, run: RunTask, stop: StopSignal) -> None:
        self.starts += 1
        if self.starts == 1:
            raise ConnectionResetError("gone")
        await super().serve(run, stop)


@pytest.mark.usefixtures("patient")
async def test_an_outcome_that_cannot_be_stored_fails_the_task(app: Server) -> None:
    starts: list[int] = []

    @app.tool(task=TaskConfig(max_retries=2))
    async def work() -> str:
        starts.append(1)
        raise InvalidParams("bad", {"x": object()})

    task = await TaskClient(app).finish("work")
    assert (task["status"], task["error"]["code"]) == ("failed", -32603)
    assert starts == [1]


class BusyStore(SQLiteTaskStore):
    """A store that cannot be changed for a moment, whenever a test says so."""

    failures = 0

    async def change(self, record: TaskRecord) -> TaskRecord:
        if self.failures:
            self.failures -= 1
            raise TaskStoreUnavailable("busy")
        return await super().change(record)


@pytest.mark.usefixtures("patient")
async def test_steps_and_questions_wait_for_a_store_that_is_busy() -> None:
    store, steps = BusyStore(":memory:"), list[int]()
    app = Server("app", tasks=TaskOptions(store=store))

    @app.tool(task=True)
    async def work(ctx: Context) -> str:
        store.failures = 2
        await ctx.once("step", lambda: steps.append(1))
        store.failures = 2
        await ctx.progress(1)
        store.failures = 2
        return await ctx.elicit("Name?", str)

    client = TaskClient(app)
    id = await client.start("work")
    await client.wait(id, "input_required")
    await client.answer(id, q1={"value": "Ann"})
    assert text((await client.wait(id))["result"]) == "Ann"
    assert steps == [1]
    await app.stop()
    await store.close()


class SlowEngine(NoEngine):
    """An engine whose broker does not answer."""

    def __init__(self) -> None:
        self.submitted: list[str] = []

    async def submit(self, id: str) -> None:
        self.submitted.append(id)
        await asyncio.Event().wait()


async def test_a_request_that_is_cancelled_while_its_task_is_submitted_leaves_no_task() -> None:
    engine = SlowEngine()
    app = Server("app", tasks=TaskOptions(engine=engine))

    @app.tool(task=True)
    async def work() -> None: ...

    client = TaskClient(app)
    request = asyncio.ensure_future(client.call("work"))
    await until(lambda: bool(engine.submitted))
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert (await client.get(engine.submitted[0]))["status"] == "cancelled"
    await app.stop()


async def test_an_id_that_no_task_can_have_is_unknown(app: Server) -> None:
    @app.tool(task=True)
    async def work() -> None: ...

    for id in ("", "x" * 10_000, "\udc80", "\0", "é"):
        with pytest.raises(InvalidParams):
            await TaskClient(app).get(id)


def test_a_call_cannot_stay_in_the_foreground_longer_than_a_call() -> None:
    app = Server("app", limits=ServerLimits(call_timeout=10.0))
    with pytest.raises(ValueError, match="call_timeout"):
        app.add_tool(lambda: 1, name="work", task=TaskConfig(after=10.0))


@pytest.mark.usefixtures("fast")
async def test_a_worker_survives_errors_of_its_store_and_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_worker, "_ENGINE_RESTART_DELAY_S", 0.01)
    store, engine = FailingStore(":memory:"), FailingEngine()
    app = Server("app", tasks=TaskOptions(store=store, engine=engine))

    @app.tool(task=True)
    async def work() -> str:
        return "done"

    await app.start()
    client = TaskClient(app)
    id = await client.start("work")
    await until(lambda: store.failures == 3)
    assert text((await client.wait(id))["result"]) == "done"
    assert text((await client.finish("work"))["result"]) == "done"
    await app.stop()
    await store.close()


async def test_a_server_that_had_only_local_clients_uses_a_file_when_it_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOVETAIL_HOME", str(tmp_path))
    app = Server("app")

    @app.tool(task=True)
    async def work() -> str:
        return "done"

    await TaskClient(app).finish("work")
    await app.stop()
    assert not list_files_with(tmp_path, b"")
    await app.start()
    await TaskClient(app).finish("work")
    await app.stop()
    assert (tmp_path / "tasks" / "app.sqlite").exists()


STDIO_PROGRAM = """
import asyncio, sys
from dovetail import Server
from dovetail.extensions import TaskConfig, TaskOptions

app = Server("app", tasks=TaskOptions(store=sys.argv[1]))

@app.tool(task=TaskConfig(max_retries=1))
async def work() -> None:
    await asyncio.sleep(60)

app.run()
"""


async def test_a_server_over_stdio_hands_over_its_tasks_when_its_client_leaves(tmp_path: Path) -> None:
    path, program = tmp_path / "tasks.sqlite", tmp_path / "server.py"
    write_text(program, STDIO_PROGRAM)
    async with RealClient([sys.executable, str(program), str(path)], protocol_version=NEWEST) as client:
        handle = await client.start_task("work")
        assert handle.status == "working"
        async with asyncio.timeout(TIMEOUT_S):
            while (await read_only_record(path)).phase != "running":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    record = await read_only_record(path)
    assert (record.phase, record.lease, record.status) == ("queued", None, "working")
    # Another short process does not take the task over.
    async with RealClient([sys.executable, str(program), str(path)], protocol_version=NEWEST) as client:
        await client.list_tools()
    assert (await read_only_record(path)).attempt == 1


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("outlives_clients", [True, False])
async def test_only_a_server_that_outlives_its_clients_searches_for_tasks(
    tmp_path: Path, outlives_clients: bool
) -> None:
    path = tmp_path / "tasks.sqlite"
    app, _ = create_app(path, engine=NoEngine())
    id = await TaskClient(app).start("work")
    await app.stop()
    app, runs = create_app(path)
    if outlives_clients:
        await app.start()
        await until(lambda: runs == [1])
    else:
        await TaskClient(app).request("tools/list")
        await asyncio.sleep(0.1)
        assert not runs
        # It runs the task when its client asks for it.
        await TaskClient(app).wait(id)
        assert runs == [1]
    await app.stop()


async def test_a_task_with_another_key_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "tasks.sqlite"
    app, _ = create_app(path, secret_keys=["a" * 32])
    id = await TaskClient(app).start("work")
    await app.stop()
    for keys in (["b" * 32], []):
        app, _ = create_app(path, secret_keys=keys)
        with pytest.raises(InternalError, match="secret key"):
            await TaskClient(app).get(id)
        await app.stop()


async def test_a_task_that_waits_does_not_seem_to_expire(app: Server) -> None:
    @app.tool(task=TaskConfig(ttl=0.2))
    async def work(ctx: Context) -> str:
        return await ctx.elicit("Name?", str)

    client = TaskClient(app)
    id = await client.start("work")
    created = await client.wait(id, "input_required")
    await asyncio.sleep(0.4)
    task = await client.get(id)
    assert task["status"] == "input_required"
    assert task["ttlMs"] > created["ttlMs"]


async def test_a_stopping_server_waits_for_running_tasks(tmp_path: Path) -> None:
    app, started = Server("app", tasks=TaskOptions(store=tmp_path / "tasks.sqlite")), asyncio.Event()

    @app.tool(task=True)
    async def work() -> str:
        started.set()
        await asyncio.sleep(0.02)
        return "done"

    client = TaskClient(app)
    id = await client.start("work")
    await started.wait()
    await app.stop()
    assert (await client.get(id))["status"] == "completed"
    await app.stop()


async def test_a_run_may_take_as_long_as_its_timeout(app: Server) -> None:
    @app.tool(task=TaskConfig(timeout=0.05), timeout=60)
    async def work() -> None:
        await asyncio.sleep(60)

    task = await TaskClient(app).finish("work")
    assert (task["status"], task["result"]["isError"]) == ("completed", True)


async def test_a_task_expires_after_its_ttl(app: Server) -> None:
    @app.tool(task=TaskConfig(ttl=0.05))
    async def work() -> str:
        return "done"

    client = TaskClient(app)
    created = await client.call("work")
    assert created["ttlMs"] == 50
    with pytest.raises(InvalidParams):
        await client.wait(created["taskId"], "expired")


def list_files_with(folder: Path, data: bytes) -> list[Path]:
    return [file for file in folder.iterdir() if data in file.read_bytes()]


@pytest.mark.usefixtures("fast")
async def test_records_are_encrypted_with_the_keys_of_the_server(tmp_path: Path) -> None:
    path = tmp_path / "tasks.sqlite"
    app = Server("app", tasks=TaskOptions(store=path), secret_keys=["a" * 32])

    @app.tool(task=True)
    async def work(secret: str) -> str:
        return secret

    client = TaskClient(app)
    id = await client.start("work", secret="plain-text-secret")
    assert text((await client.wait(id))["result"]) == "plain-text-secret"
    await app.stop()
    assert not list_files_with(tmp_path, b"plain-text-secret")


# Subscriptions


async def test_a_subscription_reports_each_change_of_a_task(app: Server) -> None:
    @app.tool(task=True)
    async def work(ctx: Context) -> str:
        return await ctx.elicit("Name?", str)

    client = TaskClient(app)
    id = await client.start("work")
    await client.wait(id, "input_required")
    foreign = await TaskClient(app, principal=Principal("bob")).start("work")
    params = {"notifications": {"taskIds": [id, foreign, "unknown"], "toolsListChanged": True}}
    request = asyncio.ensure_future(client.run(client.exchange("subscriptions/listen", params, id="s")))
    await until(lambda: len(client.said) >= 2)
    await client.answer(id, q1={"value": "Ann"})
    await until(lambda: client.said[-1]["params"].get("status") == "completed")
    acknowledged, *notices = client.said
    assert acknowledged["params"]["notifications"] == {"toolsListChanged": True, "taskIds": [id]}
    assert {notice["method"] for notice in notices} == {"notifications/tasks"}
    assert {notice["params"]["taskId"] for notice in notices} == {id}
    assert notices[0]["params"]["status"] == "input_required"
    assert [*notices[0]["params"]["inputRequests"]] == ["q1"]
    last = notices[-1]["params"]
    assert last.pop("_meta") == {"io.modelcontextprotocol/subscriptionId": "s"}
    task = await client.get(id)
    assert last == {name: value for name, value in task.items() if name not in ("_meta", "resultType")}
    request.cancel()
    await asyncio.wait([request])


class AwayStore(SQLiteTaskStore):
    """A store that cannot be read for a moment, after a client has the acknowledgment of its subscription."""

    client: "TaskClient"
    refused = 0

    async def get(self, id: str) -> TaskRecord | None:
        if self.client.said and self.refused < 3:
            self.refused += 1
            raise TaskStoreUnavailable("away")
        return await super().get(id)


async def test_a_subscription_continues_after_an_outage_of_the_store() -> None:
    store = AwayStore(":memory:")
    app = Server("app", tasks=TaskOptions(store=store))
    release = asyncio.Event()

    @app.tool(task=True)
    async def work() -> str:
        await release.wait()
        return "done"

    client = store.client = TaskClient(app)
    id = await client.start("work")
    params = {"notifications": {"taskIds": [id]}}
    request = asyncio.ensure_future(client.run(client.exchange("subscriptions/listen", params, id="s")))
    await until(lambda: len(client.said) >= 2)
    assert store.refused == 3
    release.set()
    await until(lambda: client.said[-1]["params"].get("status") == "completed")
    request.cancel()
    await asyncio.wait([request])
    await app.stop()


async def test_a_subscription_to_tasks_requires_the_extension(app: Server) -> None:
    @app.tool(task=True)
    async def work() -> str:
        return "done"

    with pytest.raises(MissingClientCapability):
        await Client(app).request("subscriptions/listen", {"notifications": {"taskIds": ["x"]}})
    for ids in ("x", [1], [*map(str, range(1001))], ["x" * 7000], [str(number) * 1000 for number in range(300)]):
        with pytest.raises(InvalidParams):
            await TaskClient(app).request("subscriptions/listen", {"notifications": {"taskIds": ids}})
