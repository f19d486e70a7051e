"""Test that a client waits for calls that the server runs as tasks. The server is scripted, and may be hostile."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dovetail import Client, ClientLimits, RequestAwaitingInput, Timeouts
from dovetail.errors import (
    InputRequestError,
    InvalidResult,
    MCPError,
    NotFound,
    OutcomeUnknown,
    RateLimited,
    RemoteError,
    RequestTimeout,
    TaskCancelled,
    TaskLost,
    ToolError,
)
from dovetail.middleware import CallNext, Exchange
from dovetail.types import CallToolResult
from support.scripted_server import (
    CLOSE,
    RST,
    ErrorReply,
    Messages,
    ScriptedServer,
    encode_http_reply,
    serve_on_socket,
    serve_over_http,
    text_result,
    tool_definition,
)
from tasks.task_script import (
    OK,
    QUESTION,
    TASK_ID,
    TASKS,
    acknowledge,
    ask,
    complete,
    create_script,
    create_state,
    fail,
    get_declared,
    get_params,
    notify,
)

TRANSPORTS = [serve_on_socket, serve_over_http]
WORKING = create_state()
SUBSCRIBE = "subscriptions_listen"


async def call(script: ScriptedServer, *, serve: Any = serve_on_socket, **options: Any) -> Any:
    """Call a tool that becomes a task, and return its value."""
    async with serve(script) as target, Client(target, **options) as client:
        return await client.call("echo")


def count_updates(script: ScriptedServer) -> list[dict[str, Any]]:
    return [params["inputResponses"] for params in get_params(script, "tasks/update")]


@pytest.mark.parametrize("serve", TRANSPORTS)
async def test_a_call_waits_for_its_task(serve: Any) -> None:
    script = create_script([WORKING, WORKING, complete()])
    assert await call(script, serve=serve) == "done"
    assert script.count("tools/call") == 1
    assert get_params(script, "tasks/get") == [{"taskId": TASK_ID}] * 3
    declared = get_declared(script, "tools/call") + get_declared(script, "tasks/get")
    assert declared == [{TASKS: {}}] * 4


async def test_requests_about_a_task_repeat_its_id_in_a_header() -> None:
    script = create_script([ask("a"), complete()])
    assert await call(script, serve=serve_over_http, elicitation_handler=lambda _: {"sure": True}) == "done"
    headers = [head for _, head in script.heads if head.get("mcp-method", "").startswith("tasks/")]
    assert {head["mcp-method"] for head in headers} == {"tasks/get", "tasks/update"}
    assert {head["mcp-name"] for head in headers} == {TASK_ID}


async def test_a_client_without_tasks_refuses_them() -> None:
    script = create_script([complete()])
    async with serve_on_socket(script) as target, Client(target, tasks=False) as client:
        with pytest.raises(InvalidResult):
            await client.call("echo")
    assert get_declared(script, "tools/call") == [None]
    assert script.count("tasks/get") == 0


@pytest.mark.parametrize("method", ["prompts/get", "resources/read"])
async def test_only_calls_may_become_tasks(method: str) -> None:
    script = create_script([complete()], **{method.replace("/", "_"): create_state(resultType="task")})
    async with serve_on_socket(script) as target, Client(target) as client:
        with pytest.raises(InvalidResult):
            await (client.get_prompt("a") if method == "prompts/get" else client.read("a://b"))
    assert script.count("tasks/get") == 0


async def test_messages_of_a_task_go_to_the_progress_handler() -> None:
    states = [create_state(statusMessage=text) for text in ("b", "b", "c")]
    script = create_script([*states, complete()], tools_call=create_state(resultType="task", statusMessage="a"))
    progress: list[Any] = []

    async def handle_progress(*values: Any) -> None:
        await asyncio.sleep(0.01)
        progress.append(values)

    async with serve_on_socket(script) as target, Client(target) as client:
        await client.call_tool("echo", progress_handler=handle_progress)
        assert progress == [(1.0, None, "a"), (2.0, None, "b"), (3.0, None, "c")]


async def test_middleware_sees_the_final_result() -> None:
    results: list[Any] = []

    async def watch(exchange: Exchange, call_next: CallNext) -> object:
        result = await call_next(exchange)
        results.append((exchange.method, type(result).__name__))
        return result

    assert await call(create_script([complete()]), middleware=[watch]) == "done"
    assert results == [("tasks/get", "DetailedTask"), ("tools/call", "CallToolResult")]


# Questions


async def test_each_question_is_asked_once() -> None:
    states = [ask("a"), ask("a"), ask("a", "b"), ask("b"), WORKING, complete()]
    script, asked = create_script(states), list[str]()

    def answer(request: Any) -> Any:
        asked.append(request.message)
        return {"sure": len(asked) == 1}

    assert await call(script, elicitation_handler=answer) == "done"
    assert asked == ["Sure?", "Sure?"]
    assert count_updates(script) == [
        {"a": {"action": "accept", "content": {"sure": True}}},
        {"b": {"action": "accept", "content": {"sure": False}}},
    ]


async def test_a_call_may_ask_before_it_becomes_a_task() -> None:
    def handle_call(message: dict[str, Any]) -> Any:
        if "inputResponses" in message["params"]:
            return create_state(resultType="task")
        return {"resultType": "input_required", "inputRequests": {"a": QUESTION}, "requestState": "s"}

    # The same key may be used again in the task.
    script = create_script([ask("a"), complete()], tools_call=handle_call)
    assert await call(script, elicitation_handler=lambda _: {"sure": True}) == "done"
    assert [params.get("requestState") for params in get_params(script, "tools/call")] == [None, "s"]
    assert len(count_updates(script)) == 1


async def test_a_question_without_a_handler_fails_and_cancels_the_task() -> None:
    script = create_script([ask("a")])
    with pytest.raises(InputRequestError):
        await call(script)
    assert get_params(script, "tasks/cancel") == [{"taskId": TASK_ID}]


async def test_answers_are_sent_even_if_the_next_question_fails() -> None:
    script, asked = create_script([ask("a", "b")]), list[Any]()

    def answer(request: Any) -> Any:
        asked.append(request)
        if len(asked) == 2:
            raise RuntimeError
        return None

    with pytest.raises(InputRequestError):
        await call(script, elicitation_handler=answer)
    assert count_updates(script) == [{"a": {"action": "decline"}}]


async def test_the_server_cannot_change_a_question() -> None:
    changed = {"method": "elicitation/create", "params": {**QUESTION["params"], "message": "Really?"}}
    script = create_script([ask("a"), ask(a=changed)])
    with pytest.raises(InvalidResult):
        await call(script, elicitation_handler=lambda _: {"sure": True})
    assert len(count_updates(script)) == 1
    assert script.count("tasks/cancel") == 1


async def test_the_number_of_questions_is_limited() -> None:
    script = create_script([*(ask(str(number)) for number in range(20))])
    with pytest.raises(InputRequestError):
        await call(script, elicitation_handler=lambda _: {}, limits=ClientLimits(max_input_rounds=3))
    assert len(count_updates(script)) == 3
    script = create_script([ask(*map(str, range(5)))])
    with pytest.raises(InputRequestError):
        await call(script, elicitation_handler=lambda _: {}, limits=ClientLimits(max_input_requests=4))
    assert count_updates(script) == []


async def test_an_answer_that_the_server_refuses_is_an_error() -> None:
    refused = create_script([ask("a")], tasks_update=ErrorReply(-32602, "bad answer"))
    with pytest.raises(InputRequestError, match="bad answer"):
        await call(refused, elicitation_handler=lambda _: {})
    assert refused.count("tasks/cancel") == 1
    unknown = ErrorReply(-32602, "unknown")
    with pytest.raises(TaskLost):
        await call(create_script([ask("a"), unknown], tasks_update=unknown), elicitation_handler=lambda _: {})


# Outcomes


@pytest.mark.parametrize(
    ("code", "message", "data", "expected"),
    [
        (-32603, "broken", {"a": 1}, RemoteError),
        (-32602, "Unknown tool: echo", None, NotFound),
        (429, "later", {"retryAfterMs": 5000}, RateLimited),
    ],
)
async def test_a_failed_task_raises_the_error_of_the_call(code: int, message: str, data: Any, expected: Any) -> None:
    errors: list[Any] = []
    direct = create_script([WORKING], tools_call=ErrorReply(code, message, data))
    for script in (direct, create_script([fail(code, message, data)])):
        with pytest.raises(RemoteError) as caught:
            await call(script)
        errors.append((type(caught.value), caught.value.code, caught.value.message, caught.value.data))
        assert caught.value.step == "tools/call echo"
    assert errors == [(expected, code, message, data)] * 2


async def test_the_error_of_a_tool_is_a_result() -> None:
    script = create_script([complete("no", isError=True)])
    with pytest.raises(ToolError, match="no"):
        await call(script)
    async with serve_on_socket(script) as target, Client(target) as client:
        assert (await client.call_tool("echo")).is_error


async def test_results_of_tasks_are_validated() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    tools = {"tools": [tool_definition("echo", outputSchema=schema)], "resultType": "complete"}
    script = create_script([complete(structuredContent={"a": "x"})], tools_list=tools)
    async with serve_on_socket(script) as target, Client(target) as client:
        await client.list_tools()
        with pytest.raises(InvalidResult):
            await client.call_tool("echo")
        with pytest.raises(InvalidResult):
            await (await client.start_task("echo"))


async def test_a_cancelled_task_raises_an_error() -> None:
    with pytest.raises(TaskCancelled) as caught:
        await call(create_script([create_state("cancelled")]))
    assert caught.value.step == "tools/call echo"


async def test_an_unknown_task_is_lost() -> None:
    script = create_script([WORKING, ErrorReply(-32602, "Task not found")])
    with pytest.raises(TaskLost) as caught:
        await call(script)
    assert TASK_ID not in str(caught.value)
    assert script.count("tasks/cancel") == 0


@pytest.mark.parametrize(
    "state",
    [
        create_state(taskId="another"),
        create_state("completed"),
        create_state("failed"),
        create_state("done"),
        create_state(pollIntervalMs=0),
        create_state(pollIntervalMs="soon"),
        create_state(statusMessage=7),
        create_state("completed", result=[]),
        create_state("completed", result={"content": 1}),
        create_state("completed", result={"content": [], "resultType": "task"}),
        create_state("failed", error={"code": "x", "message": "y"}),
        create_state("input_required", inputRequests=[]),
        create_state(resultType="task"),
        {"resultType": "complete"},
        [],
    ],
)
async def test_an_invalid_state_is_refused(state: Any) -> None:
    script = create_script([state])
    with pytest.raises(InvalidResult):
        await call(script)
    assert script.count("tools/call") == 1


async def test_a_task_that_ends_at_once_is_fetched() -> None:
    script = create_script([complete()], tools_call=create_state("completed", resultType="task"))
    assert await call(script) == "done"
    assert script.count("tasks/get") == 1


@pytest.mark.parametrize("interval", [1, 10**12, 10**40])
async def test_the_poll_interval_is_limited(interval: int) -> None:
    """An interval of one millisecond does not flood the server, and a huge one does not hide a short task."""
    states = [create_state(pollIntervalMs=interval)] * 3
    script = create_script([*states, complete()])
    started_at = asyncio.get_running_loop().time()
    assert await call(script) == "done"
    assert asyncio.get_running_loop().time() - started_at >= 4 * 0.05


# Lost connections


@pytest.mark.parametrize("loss", [CLOSE, RST])
@pytest.mark.parametrize("serve", TRANSPORTS)
async def test_a_lost_connection_does_not_end_the_wait(serve: Any, loss: Any) -> None:
    script = create_script([WORKING, loss, loss, WORKING, complete()])
    assert await call(script, serve=serve, limits=ClientLimits(reconnect_delay=0.01)) == "done"
    assert script.count("tools/call") == 1


async def test_a_busy_server_does_not_end_the_wait() -> None:
    busy = encode_http_reply(b"", status=503)
    late = ErrorReply(429, "later", {"retryAfterMs": 10})
    stopping = ErrorReply(-32600, "The server is shutting down", status=503)
    states = [busy, busy, busy, busy, late, ErrorReply(-32603, "no store"), stopping, stopping, complete()]
    script = create_script(states)
    assert await call(script, serve=serve_over_http, limits=ClientLimits(reconnect_delay=0.01)) == "done"


async def test_an_answer_survives_a_lost_connection() -> None:
    updates = iter([CLOSE, OK])
    script = create_script([ask("a"), ask("a"), complete()], tasks_update=lambda _: next(updates))
    asked: list[Any] = []
    handler: Callable[[Any], Any] = lambda request: asked.append(request) or {"sure": True}  # noqa: E731
    assert await call(script, elicitation_handler=handler, limits=ClientLimits(reconnect_delay=0.01)) == "done"
    assert len(asked) == 1
    assert [*count_updates(script)[0]] == [*count_updates(script)[1]] == ["a"]


async def test_a_server_cannot_make_the_client_poll_without_a_pause() -> None:
    script = create_script([WORKING, ErrorReply(429, "later", {"retryAfterMs": -1000})])
    started_at = asyncio.get_running_loop().time()
    with pytest.raises(OutcomeUnknown):
        await call(script, timeout=Timeouts(call=0.5), limits=ClientLimits(max_retries=0))
    assert script.count("tasks/get") <= 2 + (asyncio.get_running_loop().time() - started_at) / 0.04


@pytest.mark.parametrize(
    "reply",
    [
        CLOSE,
        encode_http_reply(b"", status=503),
        encode_http_reply(b"", status=401),
        ErrorReply(429, "later", {"retryAfterMs": 10}),
        ErrorReply(-32603, "no store"),
        ErrorReply(-32601, "no method"),
        ErrorReply(-32021, "not declared"),
    ],
)
async def test_an_error_of_the_wait_is_not_that_of_the_call(reply: Any) -> None:
    """Otherwise the caller would call again, and the tool would run twice."""
    script = create_script([WORKING, reply])
    limits = ClientLimits(reconnect_delay=0.01, max_retries=0)
    with pytest.raises(OutcomeUnknown) as caught:
        await call(script, serve=serve_over_http, timeout=Timeouts(call=0.5), limits=limits)
    assert caught.value.__cause__ is not None
    assert script.count("tools/call") == 1
    assert script.count("tasks/cancel") >= 1


# Timeouts


async def test_a_call_without_progress_times_out_and_cancels_the_task() -> None:
    times = (f"2026-10-01T12:00:{number:02}Z" for number in range(60))
    script = create_script([lambda _: create_state(lastUpdatedAt=next(times))])
    async with serve_on_socket(script) as target, Client(target) as client:
        with pytest.raises(RequestTimeout) as caught:
            await client.call_tool("echo", timeout=0.2)
    assert caught.value.step == "tools/call echo"
    assert caught.value.hint is not None
    assert get_params(script, "tasks/cancel") == [{"taskId": TASK_ID}]


async def test_messages_of_a_task_restart_the_timeout() -> None:
    states = [create_state(statusMessage=str(number)) for number in range(20)]
    script = create_script([*states, complete()])
    async with serve_on_socket(script) as target, Client(target) as client:
        started_at = asyncio.get_running_loop().time()
        assert not (await client.call_tool("echo", timeout=0.5)).is_error
        assert asyncio.get_running_loop().time() - started_at > 0.5


async def test_the_total_timeout_ends_a_call_with_progress() -> None:
    numbers = iter(range(10_000))
    script = create_script([lambda _: create_state(statusMessage=str(next(numbers)))])
    async with serve_on_socket(script) as target, Client(target) as client:
        with pytest.raises(RequestTimeout):
            await client.call_tool("echo", total_timeout=0.3)
    assert script.count("tasks/cancel") == 1


async def test_without_a_timeout_of_the_call_a_silent_task_may_take_longer() -> None:
    """The server confirms in each answer that the task still works. Only the total timeout applies."""
    script = create_script([*[WORKING] * 30, complete()])
    assert await call(script, timeout=Timeouts(call=1.0)) == "done"


async def test_the_time_of_the_user_does_not_count() -> None:
    async def answer(_: Any) -> Any:
        await asyncio.sleep(2.5)
        return {"sure": True}

    script = create_script([ask("a"), complete()])
    async with serve_on_socket(script) as target, Client(target, elicitation_handler=answer) as client:
        assert not (await client.call_tool("echo", timeout=2, total_timeout=2)).is_error


@pytest.mark.parametrize("serve", TRANSPORTS)
async def test_cancelling_a_call_cancels_its_task(serve: Any) -> None:
    polled = asyncio.Event()

    def get(_: Any) -> Any:
        polled.set()
        return WORKING

    script = create_script([get])
    async with serve(script) as target, Client(target) as client:
        waiting = asyncio.create_task(client.call("echo"))
        await polled.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert get_params(script, "tasks/cancel") == [{"taskId": TASK_ID}]


# Subscriptions


async def test_a_subscription_replaces_polling() -> None:
    listened: list[Any] = []

    def listen(message: dict[str, Any]) -> Any:
        listened.append(message)
        return Messages([acknowledge(message, TASK_ID)])

    def get(_: Any) -> Any:
        # The first state starts the subscription. The second request follows the acknowledgement.
        id = listened[0]["id"] if listened else 0
        wrong_task = notify(id, create_state("cancelled", taskId="another"))
        wrong_stream = notify(id + 1000, create_state("cancelled"))
        invalid = notify(id, create_state("completed", result=7))
        if not listened:
            return WORKING
        return Messages([wrong_task, wrong_stream, invalid, notify(id, complete("by notice")), WORKING])

    script = create_script([get], subscriptions_listen=listen)
    assert await call(script) == "by notice"
    assert listened[0]["params"]["notifications"] == {"taskIds": [TASK_ID]}
    assert get_declared(script, "subscriptions/listen") == [{TASKS: {}}]
    assert script.count("tasks/get") == 2


async def test_questions_arrive_by_subscription() -> None:
    ids: list[Any] = []

    def listen(message: dict[str, Any]) -> Any:
        ids.append(message["id"])
        return Messages([acknowledge(message, TASK_ID), notify(message["id"], ask("a"))])

    script = create_script(
        [WORKING], subscriptions_listen=listen, tasks_update=lambda _: Messages([notify(ids[0], complete()), OK])
    )
    assert await call(script, elicitation_handler=lambda _: {"sure": True}) == "done"
    assert len(count_updates(script)) == 1


async def test_a_subscription_that_the_server_does_not_accept_is_closed() -> None:
    script = create_script(
        [*[WORKING] * 5, complete()], subscriptions_listen=lambda message: Messages([acknowledge(message)])
    )
    assert await call(script) == "done"
    assert script.count("subscriptions/listen") == 1
    assert script.count("notifications/cancelled") == 1
    assert script.count("tasks/get") == 6


async def test_a_lost_subscription_is_opened_again() -> None:
    listened: list[Any] = []

    def listen(message: dict[str, Any]) -> Any:
        listened.append(message["id"])
        return Messages([acknowledge(message, TASK_ID)]) if len(listened) < 3 else ErrorReply(-32601)

    def get(_: Any) -> Any:
        return CLOSE if 0 < len(listened) < 3 else complete() if listened else WORKING

    script = create_script([get], subscriptions_listen=listen)
    assert await call(script, limits=ClientLimits(reconnect_delay=0.01)) == "done"
    assert len(listened) >= 2


async def test_few_tasks_have_a_subscription() -> None:
    """Further tasks are polled, because each subscription needs a stream."""
    polls: dict[str, int] = {}
    release = asyncio.Event()

    def handle_call(message: dict[str, Any]) -> Any:
        return create_state(taskId=f"task-{message['id']}", resultType="task")

    async def get(message: dict[str, Any]) -> Any:
        id = message["params"]["taskId"]
        polls[id] = polls.get(id, 0) + 1
        if len(polls) == 12 and min(polls.values()) > 1:
            release.set()
        return create_state(taskId=id) | ({"status": "completed", "result": text_result()} if release.is_set() else {})

    script = create_script([WORKING], tools_call=handle_call, subscriptions_listen=lambda message: Messages([]))
    script.reactions = {**script.reactions, "tasks/get": get}
    async with serve_on_socket(script) as target, Client(target) as client:
        assert await asyncio.gather(*(client.call("echo") for _ in range(12))) == ["ok"] * 12
    assert script.count("subscriptions/listen") == 8


async def test_a_final_state_does_not_change() -> None:
    def listen(message: dict[str, Any]) -> Any:
        states = [complete("first"), fail(-32603), complete("second")]
        return Messages([acknowledge(message, TASK_ID), *(notify(message["id"], state) for state in states)])

    script = create_script([WORKING, fail(-32603)], subscriptions_listen=listen)
    async with serve_on_socket(script) as target, Client(target) as client:
        handle = await client.start_task("echo")
        try:
            first: CallToolResult | str = await handle
        except MCPError as exc:
            first = str(exc)
        polls = script.count("tasks/get")
        try:
            second: CallToolResult | str = await handle
        except MCPError as exc:
            second = str(exc)
        assert first == second
        assert (await handle.refresh()).is_final
        assert script.count("tasks/get") == polls


# Calls whose caller answers the questions


@pytest.mark.parametrize("handler", [None, lambda _: {"sure": True}])
async def test_a_call_whose_caller_answers_does_not_become_a_task(handler: Any) -> None:
    """The handlers would answer the questions of a task, but the caller wants to answer them."""
    asked = {"resultType": "input_required", "inputRequests": {"a": QUESTION}}
    script = create_script([WORKING], tools_call=asked)
    async with serve_on_socket(script) as target, Client(target, elicitation_handler=handler, roots=["/"]) as client:
        pending = await client.call_tool("echo", allow_input_required=True)
        assert isinstance(pending, RequestAwaitingInput)
        await client.resume(pending, {"a": {"action": "decline"}})
        await client.list_tools()
    assert get_declared(script, "tools/call") == [None, None]
    assert get_declared(script, "tools/list") == [{TASKS: {}}]
