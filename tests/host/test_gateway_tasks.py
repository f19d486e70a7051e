"""Test that a gateway passes the tasks of its servers through."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client, Context, Policy, RemoteError, Server, rule, testing
from dovetail.auth import BearerAuth, Principal, StaticTokenVerifier
from dovetail.errors import ConnectError, InsufficientScope, TaskCancelled, TaskLost
from dovetail.extensions import TaskOptions
from dovetail.host import (
    Allow,
    AllowWithChanges,
    Deny,
    Host,
    ServerSettings,
    ToolLimits,
    argument,
    read_audit_log,
)
from dovetail.host.host_catalog import HostCatalog
from dovetail.mounts.forwarded_tasks import decode_created_task
from dovetail.tasks.task_messages import TASKS_EXTENSION
from dovetail.wire.input_required import InputRequest
from host.task_upstream import TaskRequests, TaskUpstream, create_task
from support.polling import wait_until

ALLOW = Policy("allow")
KEYS = ["0123456789abcdef0123456789abcdef"]
CALLERS = StaticTokenVerifier({"token-of-ada-0000": Principal("ada"), "token-of-bob-0000": Principal("bob")})
FORM = InputRequest(
    method="elicitation/create",
    params={"mode": "form", "message": "Name?", "requestedSchema": {"type": "object", "properties": {}}},
)
SAMPLE = InputRequest(method="sampling/createMessage", params={"messages": [], "maxTokens": 10})
# A client that does not support tasks by itself.
PLAIN: Any = {"tasks": False}
# On a busy machine, a client may take a slow server for one of an older version, which has no tasks.
STATELESS: Any = {"protocol_version": "2026-07-28"}
tasks = TaskRequests()


def caller(gateway: Any, **options: Any) -> Client:
    """Return a client that declares tasks and sends the messages of the extension itself."""
    return Client(gateway, extensions=[tasks.extension], **STATELESS, **PLAIN, **options)


@asynccontextmanager
async def serve_gateway(
    far: Server, policy: Policy = ALLOW, host_options: dict[str, Any] | None = None, **options: Any
) -> AsyncGenerator[Server]:
    """Serve an upstream server over HTTP, and yield the gateway in front of it."""
    async with testing.serve(far, transport="http") as url, Host(policy=policy, **(host_options or {})) as host:
        host.add("far", url, settings=options.pop("settings", None), **STATELESS)
        yield host.as_server(**options)


def text(result: dict[str, Any] | None) -> str:
    assert result is not None
    return result["content"][0]["text"]


def read(result: Any) -> str:
    return result.content[0].text


async def refused(request: Any) -> int:
    with pytest.raises(RemoteError) as caught:
        await request
    return caught.value.code


async def test_a_task_gets_an_id_of_the_gateway() -> None:
    far = TaskUpstream()
    async with serve_gateway(far) as gateway, caller(gateway) as client:
        created = await tasks.start(client, "far__slow", {"text": "x"})
        assert created["resultType"] == "task"
        assert far.last_id not in str(created)
        working = await tasks.get(client, created["taskId"])
        assert (working.status, working.task_id, working.ttl_ms) == ("working", created["taskId"], 60_000)
        far.complete("later")
        ended = await tasks.get(client, created["taskId"])
        assert (ended.status, ended.task_id, text(ended.result)) == ("completed", created["taskId"], "later")
        assert ended.result is not None
        assert ended.result["resultType"] == "complete"
    assert far.capabilities_seen[-1].extensions == {TASKS_EXTENSION: {}}
    assert far.calls[-1]["arguments"] == {"text": "x"}


async def test_the_gateway_declares_the_extension() -> None:
    async with serve_gateway(TaskUpstream()) as gateway, caller(gateway) as client:
        assert (client.server_capabilities.extensions or {})[TASKS_EXTENSION] == {}
    async with serve_gateway(TaskUpstream()) as gateway, Client(gateway, **STATELESS, **PLAIN) as client:
        assert await refused(client.request("tasks/get", {"taskId": "unknown"})) == -32021


async def test_a_gateway_with_another_extension_for_tasks_runs_calls_in_the_foreground() -> None:
    far = TaskUpstream()
    async with serve_gateway(far, tasks=TaskOptions(store=":memory:")) as gateway, caller(gateway) as client:
        assert (await tasks.start(client, "far__slow"))["resultType"] == "complete"


async def test_a_plain_tool_stays_a_call() -> None:
    async with serve_gateway(TaskUpstream()) as gateway, caller(gateway) as client:
        result = await tasks.start(client, "far__plain")
        assert (result["resultType"], text(result)) == ("complete", "foreground ")


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_a_caller_without_the_extension_gets_foreground_execution(version: str) -> None:
    far = TaskUpstream()
    async with serve_gateway(far) as gateway, Client(gateway, protocol_version=version, **PLAIN) as client:
        assert read(await client.call_tool("far__slow", {"text": "now"})) == "foreground now"
    assert far.tasks == {}


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_the_gateway_waits_for_a_task_that_the_caller_cannot_receive(version: str) -> None:
    far = TaskUpstream()
    messages: list[str | None] = []

    def on_progress(progress: float, total: float | None, message: str | None) -> None:
        messages.append(message)
        if message == "half":
            far.complete("waited")

    async with serve_gateway(far) as gateway, Client(gateway, protocol_version=version, **PLAIN) as client:
        call = asyncio.create_task(client.call_tool("far__required", progress_handler=on_progress))
        await wait_until(lambda: bool(far.tasks))
        far.tasks[far.last_id] = create_task(far.last_id, status_message="half")
        result = await call
    assert read(result) == "waited"
    assert "half" in messages


async def test_a_silent_task_keeps_its_caller_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.mounts.forwarded_tasks._REPORT_INTERVAL_S", 0.01)
    far = TaskUpstream()
    progress: list[float] = []

    def on_progress(done: float, total: float | None, message: str | None) -> None:
        progress.append(done)
        if len(progress) == 5:
            far.complete()

    async with serve_gateway(far) as gateway, Client(gateway, **STATELESS, **PLAIN) as client:
        await client.call_tool("far__required", progress_handler=on_progress)
    assert progress[:5] == sorted(set(progress[:5]))


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_questions_of_a_task_reach_a_caller_without_the_extension(version: str) -> None:
    far = TaskUpstream()
    asked: list[str] = []

    async def answer(request: Any) -> dict[str, Any]:
        asked.append(request.message)
        return {"name": "Ada"}

    options: Any = {"protocol_version": version, "elicitation_handler": answer}
    async with serve_gateway(far) as gateway, Client(gateway, **PLAIN, **options) as client:
        call = asyncio.create_task(client.call_tool("far__required"))
        await wait_until(lambda: bool(far.tasks))
        far.ask(q1=FORM)
        await wait_until(lambda: bool(far.answers))
        far.complete("hello")
        result = await call
    assert read(result) == "hello"
    assert asked == ["Name?"]
    assert far.answers == [{"q1": {"action": "accept", "content": {"name": "Ada"}}}]


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_a_failed_task_is_an_error_for_a_caller_without_the_extension(version: str) -> None:
    far = TaskUpstream()
    async with serve_gateway(far) as gateway, Client(gateway, protocol_version=version, **PLAIN) as client:
        call = asyncio.create_task(client.call_tool("far__required"))
        await wait_until(lambda: bool(far.tasks))
        far.fail(-31000, "broken")
        assert await refused(call) == -31000
    assert far.cancelled == []


async def test_a_result_that_the_gateway_waited_for_keeps_unknown_members() -> None:
    far = TaskUpstream()
    async with serve_gateway(far) as gateway, Client(gateway, **STATELESS, **PLAIN) as client:
        call = asyncio.create_task(client.request("tools/call", {"name": "far__required", "arguments": {}}))
        await wait_until(lambda: bool(far.tasks))
        far.complete(later="kept")
        assert (await call)["later"] == "kept"


@pytest.mark.parametrize(
    "text_of_type", ['"resultType":"task"', '"resultType" : "t\\u0061sk"', '"r\\u0065sultType":"task"']
)
def test_a_task_is_recognized_in_every_spelling(text_of_type: str) -> None:
    task = '{"taskId":"x","status":"working","createdAt":"","lastUpdatedAt":"","ttlMs":null,' + text_of_type + "}"
    decoded = decode_created_task(task.encode())
    assert decoded is not None
    assert decoded.task_id == "x"


@pytest.mark.parametrize(
    "result",
    [
        '{"resultType":"complete","content":[{"type":"text","text":"\\"resultType\\":\\"task\\""}]}',
        '{"resultType":"complete","structuredContent":{"resultType":"task","name":"\\u0061"}}',
        '{"content":[]}',
    ],
)
def test_another_result_is_not_a_task(result: str) -> None:
    assert decode_created_task(result.encode()) is None


async def test_a_caller_that_gives_up_cancels_the_task_that_the_gateway_waits_for() -> None:
    far = TaskUpstream()
    async with serve_gateway(far) as gateway, Client(gateway, **STATELESS, **PLAIN) as client:
        call = asyncio.create_task(client.call_tool("far__required"))
        await wait_until(lambda: bool(far.tasks))
        call.cancel()
        await wait_until(lambda: bool(far.cancelled))


async def test_a_handshake_server_cannot_give_tasks() -> None:
    far = TaskUpstream()
    async with testing.serve(far, transport="http") as url, Host(policy=ALLOW) as host:
        host.add("far", url, protocol_version="2025-11-25")
        async with caller(host.as_server()) as client:
            result = await tasks.start(client, "far__slow", {"text": "x"})
            assert (result["resultType"], text(result)) == ("complete", "foreground x")


async def test_two_callers_cannot_use_each_others_tasks() -> None:
    far = TaskUpstream()
    async with serve_gateway(far, auth=CALLERS) as gateway, testing.serve(gateway, transport="http") as url:
        ada = caller(url, auth=BearerAuth("token-of-ada-0000"))
        bob = caller(url, auth=BearerAuth("token-of-bob-0000"))
        async with ada, bob:
            id = (await tasks.start(ada, "far__slow"))["taskId"]
            far.ask(q1=FORM)
            for request in (tasks.get(bob, id), tasks.update(bob, id, q1={"action": "decline"}), tasks.cancel(bob, id)):
                assert await refused(request) == -32602
            assert (far.cancelled, far.answers) == ([], [])
            assert (await tasks.get(ada, id)).status == "input_required"


async def test_an_anonymous_task_belongs_to_whoever_has_its_id_but_to_no_principal() -> None:
    far = TaskUpstream()
    async with serve_gateway(far) as gateway:
        async with caller(gateway) as first, caller(gateway) as second:
            id = (await tasks.start(first, "far__slow"))["taskId"]
            assert (await tasks.get(second, id)).status == "working"
        async with testing.connect(gateway, principal="ada", extensions=[tasks.extension], **STATELESS, **PLAIN) as ada:
            assert await refused(tasks.get(ada, id)) == -32602
            own_id = (await tasks.start(ada, "far__slow"))["taskId"]
        async with caller(gateway) as client:
            assert await refused(tasks.get(client, own_id)) == -32602


async def test_a_task_needs_the_rights_for_its_tool_at_each_request() -> None:
    far = TaskUpstream()
    scopes, readers = {"build"}, {"ada"}
    async with serve_gateway(far) as gateway:
        gateway.restrict("far__slow", scopes=["build"], visible_to=lambda principal: principal in readers)

        def connect() -> Any:
            principal = Principal("ada", scopes=scopes)
            return testing.connect(gateway, principal=principal, extensions=[tasks.extension], **STATELESS, **PLAIN)

        async with connect() as ada:
            id = (await tasks.start(ada, "far__slow"))["taskId"]
            assert (await tasks.get(ada, id)).status == "working"
        scopes.clear()
        async with connect() as ada:
            for request in (tasks.get(ada, id), tasks.update(ada, id, q=1), tasks.cancel(ada, id)):
                assert await refused(request) == InsufficientScope.code
        readers.clear()
        scopes.add("build")
        async with connect() as ada:
            assert await refused(tasks.get(ada, id)) == -32602
    assert far.cancelled == []


@pytest.mark.parametrize("id", ["unknown", "secret-id-1", "", "AQ==", "A" * 10_000, "ü\n"])
async def test_an_unknown_id_is_refused(id: str) -> None:
    far = TaskUpstream()
    async with serve_gateway(far) as gateway, caller(gateway) as client:
        await tasks.start(client, "far__slow")
        for request in (tasks.get(client, id), tasks.update(client, id, q=1), tasks.cancel(client, id)):
            assert await refused(request) == -32602


async def test_a_changed_id_is_refused() -> None:
    async with serve_gateway(TaskUpstream()) as gateway, caller(gateway) as client:
        id: str = (await tasks.start(client, "far__slow"))["taskId"]
        for position in (0, 5, 20, len(id) - 2):
            changed = id[:position] + ("A" if id[position] != "A" else "B") + id[position + 1 :]
            assert await refused(tasks.get(client, changed)) == -32602


async def test_a_task_that_the_server_does_not_know_is_unknown() -> None:
    far = TaskUpstream()
    async with serve_gateway(far) as gateway, caller(gateway) as client:
        id = (await tasks.start(client, "far__slow"))["taskId"]
        far.tasks.clear()
        for request in (tasks.get(client, id), tasks.update(client, id, q=1), tasks.cancel(client, id)):
            assert await refused(request) == -32602


async def test_a_cancellation_reaches_the_server() -> None:
    far = TaskUpstream()
    async with serve_gateway(far) as gateway, caller(gateway) as client:
        id = (await tasks.start(client, "far__slow"))["taskId"]
        await tasks.cancel(client, id)
        assert far.cancelled == [far.last_id]
        assert (await tasks.get(client, id)).status == "cancelled"
        await tasks.cancel(client, id)


async def test_a_failed_task_keeps_its_error() -> None:
    far = TaskUpstream()
    async with serve_gateway(far) as gateway, caller(gateway) as client:
        id = (await tasks.start(client, "far__slow"))["taskId"]
        far.fail(-31000, "broken")
        task = await tasks.get(client, id)
        assert task.status == "failed"
        assert task.error is not None
        assert (task.error.code, task.error.message) == (-31000, "broken")


async def test_questions_and_answers_pass_the_gateway() -> None:
    far = TaskUpstream()
    async with serve_gateway(far) as gateway, caller(gateway) as client:
        id = (await tasks.start(client, "far__slow"))["taskId"]
        far.ask(q1=FORM, q2=FORM)
        task = await tasks.get(client, id)
        assert task.status == "input_required"
        assert task.input_requests == {"q1": FORM, "q2": FORM}
        await tasks.update(client, id, q1={"action": "decline"}, other={"ignored": True})
        assert far.answers == [{"q1": {"action": "decline"}}]
        assert (await tasks.get(client, id)).input_requests == {"q2": FORM}


async def test_the_policy_declines_a_question_of_a_task() -> None:
    far = TaskUpstream()
    policy = Policy("allow", [rule("deny", kind="elicitation.form")])
    async with serve_gateway(far, policy) as gateway, caller(gateway) as client:
        id = (await tasks.start(client, "far__slow"))["taskId"]
        far.ask(q1=FORM, q2=SAMPLE)
        task = await tasks.get(client, id)
        assert task.input_requests == {"q2": SAMPLE}
        assert far.answers == [{"q1": {"action": "decline"}}]
        far.ask(q3=FORM)
        await tasks.update(client, id, q3={"action": "accept", "content": {"name": "Ada"}})
        assert far.answers == [{"q1": {"action": "decline"}}, {"q3": {"action": "decline"}}]
        far.ask(q4=FORM)
        task = await tasks.get(client, id)
        assert (task.status, task.input_requests) == ("working", None)


async def test_a_question_that_cannot_be_declined_cancels_the_task() -> None:
    far = TaskUpstream()
    policy = Policy("allow", [rule("deny", kind="sampling.request")])
    async with serve_gateway(far, policy) as gateway, caller(gateway) as client:
        id = (await tasks.start(client, "far__slow"))["taskId"]
        far.ask(q1=SAMPLE)
        task = await tasks.get(client, id)
        assert (task.status, task.input_requests) == ("working", None)
        assert far.cancelled == [far.last_id]
        assert (await tasks.get(client, id)).status == "cancelled"


async def test_a_denied_call_creates_no_task() -> None:
    far = TaskUpstream()
    policy = Policy("allow", [rule("deny", tool="far.slow")])
    async with serve_gateway(far, policy) as gateway, caller(gateway) as client:
        result = await tasks.start(client, "far__slow")
    assert (result["resultType"], result["isError"]) == ("complete", True)
    assert (far.calls, far.tasks) == ([], {})


async def test_consent_is_needed_before_a_task_is_created() -> None:
    far = TaskUpstream()
    asked: list[str] = []

    async def consent(request: Any) -> Allow | Deny:
        asked.append(request.kind)
        return Allow()

    policy = Policy("ask", [rule("allow", kind="tool.result"), rule("allow", kind="server.start")])
    async with serve_gateway(far, policy, {"consent": consent}) as gateway, caller(gateway) as client:
        id = (await tasks.start(client, "far__slow"))["taskId"]
        assert asked == ["tool.call"]
        far.complete()
        assert (await tasks.get(client, id)).status == "completed"
    assert asked == ["tool.call"]


async def test_a_rate_limit_counts_the_creation_of_tasks() -> None:
    policy = Policy("allow", limits={"far.slow": "1/hour"})
    async with serve_gateway(TaskUpstream(), policy) as gateway, caller(gateway) as client:
        assert (await tasks.start(client, "far__slow"))["resultType"] == "task"
        second = await tasks.start(client, "far__slow")
        assert (second["resultType"], second["isError"]) == ("complete", True)


@pytest.mark.parametrize("limits", [ToolLimits(timeout=30), ToolLimits(max_concurrency=1)])
async def test_a_limit_for_running_calls_prevents_tasks(limits: ToolLimits) -> None:
    far = TaskUpstream()
    async with serve_gateway(far, settings=ServerSettings(limits=limits)) as gateway, caller(gateway) as client:
        assert (await tasks.start(client, "far__slow"))["resultType"] == "complete"
    assert far.tasks == {}


async def test_a_denied_result_is_never_shown() -> None:
    far = TaskUpstream()
    policy = Policy("allow", [rule("deny", kind="tool.result", tool="far.slow")])
    async with serve_gateway(far, policy) as gateway, caller(gateway) as client:
        id = (await tasks.start(client, "far__slow"))["taskId"]
        far.complete("secret text")
        for _ in range(2):
            task = await tasks.get(client, id)
            assert task.status == "completed"
            assert task.result is not None
            assert task.result["isError"] is True
            assert "secret text" not in str(task)


async def test_a_result_is_reviewed_once_and_again_if_it_changes() -> None:
    far = TaskUpstream()
    asked: list[Any] = []

    async def consent(request: Any) -> Any:
        asked.append(request.details["result"][0]["text"])
        return {"first": AllowWithChanges("edited"), "second": Deny("no")}.get(asked[-1], Allow())

    policy = Policy("allow", [rule("ask", kind="tool.result")])
    async with serve_gateway(far, policy, {"consent": consent}) as gateway, caller(gateway) as client:
        id = (await tasks.start(client, "far__slow"))["taskId"]
        shown: list[str] = []
        for result in ("first", "first", "second", "third", "first"):
            far.complete(result)
            shown.append(text((await tasks.get(client, id)).result))
    assert asked == ["first", "second", "third"]
    assert (shown[0], shown[1], shown[3], shown[4]) == ("edited", "edited", "third", "edited")
    assert "second" not in shown[2]


async def test_a_result_is_working_while_a_user_decides_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.host.gateway.gateway_tasks._REVIEW_WAIT_S", 0.01)
    far = TaskUpstream()
    decided = asyncio.Event()

    async def consent(request: Any) -> Allow:
        await decided.wait()
        return Allow()

    policy = Policy("allow", [rule("ask", kind="tool.result")])
    async with serve_gateway(far, policy, {"consent": consent}) as gateway, caller(gateway) as client:
        id = (await tasks.start(client, "far__slow"))["taskId"]
        far.complete("secret text")
        waiting = await tasks.get(client, id)
        assert (waiting.status, waiting.result) == ("working", None)
        decided.set()
        await wait_until(lambda: has_status(client, id, "completed"))


async def test_rules_about_results_see_the_arguments_of_the_call() -> None:
    far = TaskUpstream()
    policy = Policy("allow", [rule("deny", kind="tool.result", when=argument("/text").equals("private"))])
    async with serve_gateway(far, policy) as gateway, caller(gateway) as client:
        for given, is_denied in (("private", True), ("public", False)):
            id = (await tasks.start(client, "far__slow", {"text": given}))["taskId"]
            far.complete()
            result = (await tasks.get(client, id)).result or {}
            assert result.get("isError", False) is is_denied
        large = await tasks.start(client, "far__slow", {"text": "x" * 2000})
        assert large["resultType"] == "complete"  # The arguments do not fit into a task ID.


async def test_a_large_result_is_shortened() -> None:
    far = TaskUpstream()
    settings = ServerSettings(limits=ToolLimits(max_result_bytes=100))
    async with serve_gateway(far, settings=settings) as gateway, caller(gateway) as client:
        id = (await tasks.start(client, "far__slow"))["taskId"]
        far.complete("x" * 1000)
        for _ in range(2):
            result = (await tasks.get(client, id)).result
            assert len(text(result)) == 100


async def test_a_result_is_not_decided_while_the_tools_cannot_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    far = TaskUpstream()
    async with serve_gateway(far) as gateway, caller(gateway) as client:
        id = (await tasks.start(client, "far__slow"))["taskId"]
        far.complete("later")
        with monkeypatch.context() as patch:
            patch.setattr(HostCatalog, "get_record", fail_to_list)
            assert await refused(tasks.get(client, id)) == -32603
        assert text((await tasks.get(client, id)).result) == "later"


async def fail_to_list(*_: Any) -> Any:
    raise ConnectError("the server cannot be reached")


async def test_the_result_of_a_removed_tool_can_be_read() -> None:
    far = TaskUpstream()
    async with serve_gateway(far) as gateway, caller(gateway) as client:
        id = (await tasks.start(client, "far__slow"))["taskId"]
        far.complete("later")
        far.disable("slow")
        assert text((await tasks.get(client, id)).result) == "later"


async def test_links_in_a_result_have_the_uris_of_the_gateway() -> None:
    far = TaskUpstream()
    async with serve_gateway(far) as gateway, caller(gateway) as client:
        id = (await tasks.start(client, "far__slow"))["taskId"]
        link = {"type": "resource_link", "uri": "notes://today", "name": "today"}
        far.tasks[far.last_id] = create_task(far.last_id, "completed", result={"content": [link]})
        result = (await tasks.get(client, id)).result
        assert result is not None
        assert result["content"][0]["uri"] == "far+notes://today"


async def test_a_task_survives_a_restart_of_the_gateway_with_the_same_keys() -> None:
    far = TaskUpstream()
    async with testing.serve(far, transport="http") as url:
        ids: list[str] = []
        for secret_keys in (KEYS, KEYS, ["another key 0123456789"], ["a newer key 0123456789", *KEYS]):
            async with Host(policy=ALLOW) as host:
                host.add("far", url, **STATELESS)
                async with caller(host.as_server(secret_keys=secret_keys)) as client:
                    if not ids:
                        ids.append((await tasks.start(client, "far__slow"))["taskId"])
                    elif KEYS[0] in secret_keys:
                        assert (await tasks.get(client, ids[0])).status == "working"
                    else:
                        assert await refused(tasks.get(client, ids[0])) == -32602


async def test_a_task_survives_a_restart_of_its_server() -> None:
    far = TaskUpstream()
    port = free_port()
    async with Host(policy=ALLOW) as host:
        host.add("far", f"http://127.0.0.1:{port}/mcp", **STATELESS)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(testing.serve(far, transport="http", port=port))
            client = caller(host.as_server())
            id = (await tasks.start(client, "far__slow"))["taskId"]
        async with client:
            assert await refused(tasks.get(client, id)) == -32603
            restarted = TaskUpstream()
            restarted.tasks |= far.tasks
            restarted.complete("after the restart")
            async with testing.serve(restarted, transport="http", port=port):
                await host.restart("far")
                assert text((await tasks.get(client, id)).result) == "after the restart"


async def test_a_server_that_gets_tasks_in_a_new_version_creates_tasks() -> None:
    plain, port = Server("far"), free_port()

    @plain.tool
    async def slow() -> str:
        return "no task"

    async with Host(policy=ALLOW) as host:
        host.add("far", f"http://127.0.0.1:{port}/mcp", **STATELESS)
        gateway = host.as_server()
        async with testing.serve(plain, transport="http", port=port), caller(gateway) as client:
            assert text(await tasks.start(client, "far__slow")) == "no task"
        async with testing.serve(TaskUpstream(), transport="http", port=port), caller(gateway) as client:
            await host.restart("far")
            assert (await tasks.start(client, "far__slow"))["resultType"] == "task"


async def test_a_task_is_lost_if_its_server_was_replaced() -> None:
    far, other = TaskUpstream(), TaskUpstream()
    async with (
        testing.serve(far, transport="http") as url,
        testing.serve(other, transport="http") as other_url,
        Host(policy=ALLOW) as host,
    ):
        host.add("far", url, **STATELESS)
        async with caller(host.as_server(secret_keys=KEYS)) as client:
            id = (await tasks.start(client, "far__slow"))["taskId"]
            other.tasks |= far.tasks
            await host.remove("far")
            host.add("far", other_url, **STATELESS)
            assert await refused(tasks.get(client, id)) == -32602


async def test_a_path_with_one_server_does_not_serve_tasks_of_another_server() -> None:
    async with (
        testing.serve(TaskUpstream(), transport="http") as one,
        testing.serve(TaskUpstream(), transport="http") as two,
        Host(policy=ALLOW) as host,
    ):
        host.add("one", one, **STATELESS)
        host.add("two", two, **STATELESS)
        one_server = host.as_server(server="one", secret_keys=KEYS)
        async with caller(host.as_server(secret_keys=KEYS)) as client, caller(one_server) as one_client:
            first = (await tasks.start(client, "one__slow"))["taskId"]
            second = (await tasks.start(client, "two__slow"))["taskId"]
            assert (await tasks.get(one_client, first)).status == "working"
            assert await refused(tasks.get(one_client, second)) == -32602


async def test_the_search_tool_can_create_a_task() -> None:
    far = TaskUpstream()
    async with testing.serve(far, transport="http") as url, Host(policy=ALLOW) as host:
        host.add("far", url, **STATELESS)
        async with caller(host.as_server("search")) as client:
            arguments = {"name": "far__slow", "arguments": {"text": "x"}}
            created = await tasks.start(client, "call_tool", arguments)
            assert created["resultType"] == "task"
            far.complete()
            assert (await tasks.get(client, created["taskId"])).status == "completed"


async def test_a_server_cannot_change_the_id_of_a_task() -> None:
    far = TaskUpstream()
    async with serve_gateway(far) as gateway, caller(gateway) as client:
        id = (await tasks.start(client, "far__slow"))["taskId"]
        far.tasks[far.last_id] = create_task("an ID of another caller")
        task = await tasks.get(client, id)
        assert task.task_id == id
        assert "another caller" not in str(task)


@pytest.mark.parametrize(
    "task",
    [
        create_task("x", "completed"),
        create_task("x", "failed"),
        create_task("x", "input_required"),
        create_task("x", "finished"),
        create_task("x", "completed", result={"content": "not a list"}),
    ],
)
async def test_an_invalid_task_is_an_error_of_the_server(task: Any) -> None:
    far = TaskUpstream()
    async with serve_gateway(far) as gateway, caller(gateway) as client:
        id = (await tasks.start(client, "far__slow"))["taskId"]
        far.tasks[far.last_id] = task
        assert await refused(tasks.get(client, id)) == -32603


async def test_a_result_in_a_task_that_has_not_ended_is_not_shown() -> None:
    far = TaskUpstream()
    policy = Policy("allow", [rule("deny", kind="tool.result")])
    async with serve_gateway(far, policy) as gateway, caller(gateway) as client:
        id = (await tasks.start(client, "far__slow"))["taskId"]
        secret = {"content": [{"type": "text", "text": "secret text"}]}
        for status in ("working", "cancelled", "input_required"):
            far.tasks[far.last_id] = create_task(
                far.last_id, status, result=secret, input_requests={"q1": FORM}, meta={"leak": "secret text"}
            )
            assert "secret text" not in str(await tasks.get(client, id))


@pytest.mark.parametrize("id", ["", "x" * 5000])
async def test_a_server_cannot_send_an_unusable_task_id(id: str) -> None:
    far = TaskUpstream()
    far._ids = iter([id])  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    async with serve_gateway(far) as gateway, caller(gateway) as client:
        assert await refused(tasks.start(client, "far__slow")) == -32603


async def test_credentials_of_a_caller_are_used_for_its_tasks() -> None:
    far = TaskUpstream()
    async with testing.serve(far, transport="http") as url, Host(policy=ALLOW) as host:
        access = {"ada"}
        host.add("far", url, **STATELESS, credentials=lambda principal: {} if principal in access else None)
        gateway = host.as_server()
        async with testing.connect(gateway, principal="ada", extensions=[tasks.extension], **STATELESS, **PLAIN) as ada:
            id = (await tasks.start(ada, "far__slow"))["taskId"]
            assert (await tasks.get(ada, id)).status == "working"


async def test_the_audit_log_has_the_creation_and_the_outcome(tmp_path: Path) -> None:
    far = TaskUpstream()
    log = tmp_path / "audit.jsonl"
    async with serve_gateway(far, ALLOW, {"audit_log": log}) as gateway, caller(gateway) as client:
        first = (await tasks.start(client, "far__slow"))["taskId"]
        far.complete("done", isError=True)
        for _ in range(3):
            await tasks.get(client, first)
        second = (await tasks.start(client, "far__slow"))["taskId"]
        await tasks.cancel(client, second)
        await tasks.get(client, second)
    entries: list[Any] = [entry for entry in read_audit_log(log) if getattr(entry, "event", "") == "call"]
    assert [entry.data["outcome"] for entry in entries] == ["task", "error", "task", "cancelled"]
    digests = [entry.data["task"] for entry in entries]
    assert digests[0] == digests[1] != digests[2] == digests[3]
    content = log.read_text()
    assert all(id not in content for id in (first, second, *far.tasks))


class Notices:
    """Subscribes to tasks, and records the notifications."""

    def __init__(self) -> None:
        self.tasks: list[dict[str, Any]] = []

    def receive(self, method: str, params: dict[str, Any]) -> None:
        if method == "notifications/tasks":
            self.tasks.append(params)

    def statuses(self, id: str) -> list[str]:
        return [task["status"] for task in self.tasks if task["taskId"] == id]


async def test_changes_of_a_task_are_reported() -> None:
    far, notices = TaskUpstream(), Notices()
    async with serve_gateway(far) as gateway, caller(gateway, notification_handler=notices.receive) as client:
        id = (await tasks.start(client, "far__slow"))["taskId"]
        params = {"notifications": {"taskIds": [id, "unknown"]}}
        listening = asyncio.create_task(client.request("subscriptions/listen", params))
        await wait_until(lambda: notices.statuses(id) == ["working"])
        far.ask(q1=FORM)
        await wait_until(lambda: notices.statuses(id) == ["working", "input_required"])
        assert notices.tasks[-1]["inputRequests"]["q1"]["method"] == "elicitation/create"
        far.complete("later")
        await wait_until(lambda: notices.statuses(id) == ["working", "input_required", "completed"])
        assert text(notices.tasks[-1]["result"]) == "later"
        listening.cancel()
    assert not any(far_id in str(notices.tasks) for far_id in far.tasks)


async def test_a_subscription_obeys_the_policy_and_the_owner() -> None:
    far, notices = TaskUpstream(), Notices()
    policy = Policy("allow", [rule("deny", kind="tool.result")])
    options: Any = {"extensions": [tasks.extension], "notification_handler": notices.receive, **STATELESS, **PLAIN}
    async with (
        serve_gateway(far, policy) as gateway,
        caller(gateway) as anonymous,
        testing.connect(gateway, principal="ada", **options) as ada,
    ):
        foreign = (await tasks.start(anonymous, "far__slow"))["taskId"]
        own = (await tasks.start(ada, "far__slow"))["taskId"]
        far.complete("secret text")
        params = {"notifications": {"taskIds": [foreign, own]}}
        listening = asyncio.create_task(ada.request("subscriptions/listen", params))
        await wait_until(lambda: notices.statuses(own) == ["completed"])
        listening.cancel()
    assert notices.statuses(foreign) == []
    assert "secret text" not in str(notices.tasks)


async def test_a_subscription_needs_the_extension() -> None:
    async with serve_gateway(TaskUpstream()) as gateway, Client(gateway, **STATELESS, **PLAIN) as client:
        params = {"notifications": {"taskIds": ["x"]}}
        assert await refused(client.request("subscriptions/listen", params)) == -32021


# With a server of dovetail behind the gateway.


def create_worker(name: str = "far", **options: Any) -> Server:
    app = Server(name, tasks=TaskOptions(poll_interval=0.05), **options)

    @app.tool(task=True)
    async def build(text: str, ctx: Context) -> str:
        await ctx.progress(1, 2, "half")
        answer = await ctx.elicit("Really?", bool)
        return f"{text} {answer}"

    @app.tool(task="required")
    async def must(text: str) -> str:
        return text

    @app.tool(task=True)
    async def hang() -> None:
        await asyncio.Event().wait()

    return app


async def test_a_task_of_a_real_server_asks_and_ends() -> None:
    async with serve_gateway(create_worker()) as gateway, caller(gateway, elicitation_handler=dict) as client:
        id = (await tasks.start(client, "far__build", {"text": "a"}))["taskId"]
        await wait_until(lambda: has_status(client, id, "input_required"))
        task = await tasks.get(client, id)
        assert task.input_requests is not None
        [key] = task.input_requests
        assert await refused(tasks.update(client, id, **{key: {"action": "unknown"}})) == -32602
        await tasks.update(client, id, **{key: {"action": "accept", "content": {"value": True}}})
        await wait_until(lambda: has_status(client, id, "completed"))
        assert text((await tasks.get(client, id)).result) == "a True"
        assert (await tasks.get(client, id)).status_message == "half"


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_a_required_tool_of_a_real_server_works_for_every_caller(version: str) -> None:
    options: Any = {"protocol_version": version, **PLAIN}
    async with serve_gateway(create_worker()) as gateway, Client(gateway, **options) as client:
        assert await client.call("far__must", text="b") == "b"


async def test_a_running_task_of_a_real_server_is_cancelled() -> None:
    async with serve_gateway(create_worker()) as gateway, caller(gateway) as client:
        id = (await tasks.start(client, "far__hang"))["taskId"]
        await tasks.cancel(client, id)
        await wait_until(lambda: has_status(client, id, "cancelled"))


async def test_a_handle_of_a_client_works_through_a_gateway() -> None:
    async def answer(request: Any) -> dict[str, Any]:
        return {"value": True}

    async with (
        serve_gateway(create_worker()) as gateway,
        Client(gateway, elicitation_handler=answer, **STATELESS) as client,
        Client(gateway, **STATELESS) as other,
    ):
        handle = await client.start_task("far__build", {"text": "c"})
        statuses = [update.status async for update in handle]
        assert statuses[-1] == "completed"
        assert read(await handle) == "c True"
        assert read(await (await other.get_task(handle.reference))) == "c True"
        hanging = await client.start_task("far__hang")
        await hanging.cancel()
        with pytest.raises(TaskCancelled):
            await hanging


async def test_a_handle_does_not_work_for_another_principal() -> None:
    async with (
        serve_gateway(create_worker()) as gateway,
        testing.connect(gateway, principal="ada", **STATELESS) as ada,
        testing.connect(gateway, principal="bob", **STATELESS) as bob,
    ):
        handle = await ada.start_task("far__hang")
        with pytest.raises(TaskLost):
            await bob.get_task(handle.reference)
        await handle.cancel()


async def test_a_gateway_behind_a_gateway_passes_tasks_through() -> None:
    far = TaskUpstream()
    async with serve_gateway(far) as inner, serve_gateway(inner) as outer, caller(outer) as client:
        [tool] = [tool.name for tool in await client.list_tools() if "slow" in tool.name]
        created = await tasks.start(client, tool)
        assert created["resultType"] == "task"
        far.complete("deep")
        assert text((await tasks.get(client, created["taskId"])).result) == "deep"


async def has_status(client: Client, id: str, status: str) -> bool:
    return (await tasks.get(client, id)).status == status


def free_port() -> int:
    from dovetail.transports.http1.http_listener import bind_socket

    with bind_socket("127.0.0.1", 0) as listener:
        return listener.getsockname()[1]
