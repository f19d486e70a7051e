"""Test that calls become tasks, which a client can read, answer, cancel and subscribe to."""

import asyncio
from typing import Any

from behaviour.manifest import requirement
from behaviour.request_helpers import expect_error
from dovetail import Context, Server
from dovetail.extensions import TaskOptions
from support.driver import STATELESS, connect

TASKS = "io.modelcontextprotocol/tasks"
DECLARED: dict[str, Any] = {"extensions": {TASKS: {}}, "elicitation": {}}
FINAL = ("completed", "failed", "cancelled")
TIMEOUT_S = 30.0


def create_app(ran: list[str] | None = None) -> Server:
    app = Server("app", tasks=TaskOptions(store=":memory:"))

    @app.tool(task=True)
    async def double(x: int) -> int:
        return 2 * x

    @app.tool(task="required")
    async def required() -> str:
        if ran is not None:
            ran.append("required")
        return "done"

    @app.tool(task=True)
    async def ask(ctx: Context) -> str:
        return await ctx.elicit("Name?", str)

    @app.tool(task=True)
    async def sleep() -> None:
        await asyncio.sleep(60)

    return app


async def start(peer: Any, name: str, arguments: dict[str, Any] | None = None) -> str:
    created = await peer.request("tools/call", {"name": name, "arguments": arguments or {}})
    assert created["resultType"] == "task"
    return created["taskId"]


async def request(peer: Any, method: str, id: str, **params: Any) -> dict[str, Any]:
    return await peer.request(method, {"taskId": id} | params, headers={"mcp-name": id})


async def wait(peer: Any, id: str, *statuses: str) -> dict[str, Any]:
    async with asyncio.timeout(TIMEOUT_S):
        while (task := await request(peer, "tasks/get", id))["status"] not in (statuses or FINAL):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return task


@requirement("tasks.created")
async def test_a_call_becomes_a_task(revision: str, transport: str) -> None:
    async with connect(create_app(), transport, revision, capabilities=DECLARED) as peer:
        id = await start(peer, "double", {"x": 21})
        assert (await request(peer, "tasks/get", id))["taskId"] == id
        task = await wait(peer, id)
        assert (task["status"], task["result"]["structuredContent"]) == ("completed", {"result": 42})


@requirement("tasks.foreground")
async def test_other_clients_get_the_result(revision: str, transport: str) -> None:
    capabilities = {} if revision == STATELESS else DECLARED
    async with connect(create_app(), transport, revision, capabilities=capabilities) as peer:
        result = await peer.request("tools/call", {"name": "double", "arguments": {"x": 21}})
        assert result["content"][0]["text"] == "42"
        if revision != STATELESS:
            error = await expect_error(peer.request("tasks/get", {"taskId": "x"}))
            assert error.code == -32601


@requirement("tasks.required")
async def test_a_tool_can_require_tasks(revision: str, transport: str) -> None:
    ran: list[str] = []
    async with connect(create_app(ran), transport, revision) as peer:
        call = peer.request("tools/call", {"name": "required", "arguments": {}})
        if revision == STATELESS:
            error = await expect_error(call)
            assert error.code == -32021
            assert error.data == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
            assert not ran
        else:
            assert (await call)["content"][0]["text"] == "done"


@requirement("tasks.input")
async def test_a_task_asks_its_client(revision: str, transport: str) -> None:
    async with connect(create_app(), transport, revision, capabilities=DECLARED) as peer:
        id = await start(peer, "ask")
        [(key, question)] = (await wait(peer, id, "input_required"))["inputRequests"].items()
        assert question["method"] == "elicitation/create"
        await request(peer, "tasks/update", id, inputResponses={"unknown": {"ignored": True}})
        assert [*(await request(peer, "tasks/get", id))["inputRequests"]] == [key]
        answers = {key: {"action": "accept", "content": {"value": "Ann"}}}
        acknowledged = await request(peer, "tasks/update", id, inputResponses=answers)
        assert acknowledged.keys() <= {"resultType", "_meta"}
        assert (await wait(peer, id))["result"]["content"][0]["text"] == "Ann"


@requirement("tasks.cancelled")
async def test_a_task_is_cancelled(revision: str, transport: str) -> None:
    async with connect(create_app(), transport, revision, capabilities=DECLARED) as peer:
        id = await start(peer, "sleep")
        assert (await request(peer, "tasks/cancel", id)).keys() <= {"resultType", "_meta"}
        assert (await wait(peer, id))["status"] == "cancelled"
        finished = await start(peer, "double", {"x": 1})
        task = await wait(peer, finished)
        await request(peer, "tasks/cancel", finished)
        assert await request(peer, "tasks/get", finished) == task


@requirement("tasks.unknown")
async def test_an_unknown_task_has_invalid_parameters(revision: str, transport: str) -> None:
    for capabilities, code in ((DECLARED, -32602), ({}, -32021)):
        async with connect(create_app(), transport, revision, capabilities=capabilities) as peer:
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                error = await expect_error(request(peer, method, "unknown", inputResponses={}))
                assert error.code == code


@requirement("tasks.name-header")
async def test_the_header_is_the_id_of_the_task(revision: str, transport: str) -> None:
    async with connect(create_app(), transport, revision, capabilities=DECLARED) as peer:
        id = await start(peer, "double", {"x": 1})
        error = await expect_error(peer.request("tasks/get", {"taskId": id}, headers={"mcp-name": "other"}))
        assert (error.code, error.status_code) == (-32020, 400)


@requirement("tasks.subscribed")
async def test_a_subscription_reports_the_changes_of_a_task(revision: str, transport: str) -> None:
    async with connect(create_app(), transport, revision, capabilities=DECLARED) as peer:
        id = await start(peer, "ask")
        task = await wait(peer, id, "input_required")
        peer.start("subscriptions/listen", {"notifications": {"taskIds": [id, "unknown"]}}, id="s")
        acknowledged = await peer.next_notification("notifications/subscriptions/acknowledged")
        assert acknowledged["notifications"] == {"taskIds": [id]}
        notice = await peer.next_notification("notifications/tasks")
        assert (notice["taskId"], notice["inputRequests"]) == (id, task["inputRequests"])
        answers = {"q1": {"action": "accept", "content": {"value": "Ann"}}}
        await request(peer, "tasks/update", id, inputResponses=answers)
        while notice["status"] != "completed":
            notice = await peer.next_notification("notifications/tasks")
        assert notice["result"]["content"][0]["text"] == "Ann"
        assert notice["_meta"] == {"io.modelcontextprotocol/subscriptionId": "s"}
