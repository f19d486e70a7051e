"""Test tools that run as tasks: creation, results, cancellation, owners, and clients that do not support tasks."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dovetail import Context, Depends, Server, ToolError
from dovetail.errors import InvalidParams, MethodNotFound, MissingClientCapability, ServerBusy
from dovetail.extensions import TaskConfig, TaskOptions
from dovetail.middleware import CallNext, Exchange, RateLimit
from dovetail.protocol.principal import Principal
from server.direct_client import ALL_CAPABILITIES, LATEST_HANDSHAKE, Client, text

TASKS = "io.modelcontextprotocol/tasks"
DECLARED = ALL_CAPABILITIES | {"extensions": {TASKS: {}}}
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
        async with asyncio.timeout(30):
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
    events: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        yield "value"
        events.append("closed")

    async def double(x: int) -> int:
        return 2 * x

    app = Server("app", lifespan=lifespan)

    @app.tool(task=True)
    async def work(x: int, ctx: Context, doubled: int = Depends(double)) -> str:
        return f"{ctx.lifespan} {doubled}"

    @app.tool(task=True)
    async def slow() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            events.append("stopped")

    client = TaskClient(app)
    assert text((await client.finish("work", x=4))["result"]) == "value 8"
    await app.stop()
    assert events == ["closed"]


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


async def test_too_many_tasks_are_refused() -> None:
    app = Server("app", tasks=TaskOptions(max_tasks=2, max_tasks_per_principal=1))

    @app.tool(task=True)
    async def work() -> str:
        return "done"

    alice = TaskClient(app, principal=Principal("alice"))
    await alice.finish("work")
    with pytest.raises(ServerBusy):
        await alice.call("work")
    await TaskClient(app).finish("work")
    with pytest.raises(ServerBusy):
        await TaskClient(app).call("work")
    await app.stop()


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
