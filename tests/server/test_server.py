"""Test the server: registration, the result of an exchange, and that errors of the author stay contained."""

import asyncio
import contextlib
import gc
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal

import pytest

from dovetail import (
    PROTOCOL_VERSIONS,
    CallToolResult,
    Context,
    ProtocolError,
    RemoteError,
    Server,
    ServerLimits,
    TextContent,
    ToolError,
)
from dovetail.errors import (
    InternalError,
    InvalidParams,
    MethodNotFound,
    PromptNotFound,
    ResourceNotFound,
    ServerBusy,
    ToolNotFound,
)
from dovetail.protocol.exchange import IncomingExchange
from dovetail.protocol.limits import CallerBusy
from dovetail.server.server import get_dispatcher
from dovetail.types import ListChangedCapability, ServerCapabilities
from dovetail.wire.input_required import InputRequiredResult
from dovetail.wire.prompts import GetPromptResult
from server.direct_client import LATEST_HANDSHAKE, NEWEST, TIMEOUT_S, Client, error_text, text
from support.list_capabilities import ALL_LISTS, ONLY_RESOURCES, ONLY_TOOLS
from support.mentions import mentions, values

TOOLS, UPDATED = "notifications/tools/list_changed", "notifications/resources/updated"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


@pytest.fixture
async def only_short_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timers of more than a tenth of a second never go off."""
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def call_if_short(delay: float, *args: Any, **options: Any) -> asyncio.TimerHandle:
        return call_later(delay if delay < 0.1 else 3600.0, *args, **options)

    monkeypatch.setattr(loop, "call_later", call_if_short)


class Pause:
    """A tool that says when it began and waits to be let go."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.go = asyncio.Event()
        self.ended: str | None = None

    async def __call__(self) -> str:
        """Wait."""
        self.began.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        self.ended = "done"
        return "done"


def pausing(**options: Any) -> tuple[Server, Pause]:
    app, pause = Server("pausing", **options), Pause()
    app.add_tool(pause, name="pause")
    return app, pause


async def began(pause: Pause) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        await pause.began.wait()


# Registration


def one_of(value: str) -> list[str]:
    return [value]


def test_every_spelling_registers_and_leaves_the_function_alone() -> None:
    app = Server("any")

    def one() -> int:
        return 1

    def zero() -> int:
        return 0

    assert app.tool()(zero) is zero
    assert app.tool(one) is one
    assert app.tool("two")(one) is one
    assert app.tool(name="three", title="Three")(one) is one
    assert app.prompt(one) is one
    assert app.prompt(name="three")(one) is one
    assert app.prompt("two")(one) is one
    assert app.resource("a:b")(one) is one
    assert app.prompt("asks")(one_of) is one_of
    assert app.completion("asks", "value")(one_of) is one_of
    assert one() == 1
    assert list(get_dispatcher(app).registry.list_registered("tool")) == ["zero", "one", "two", "three"]
    assert list(get_dispatcher(app).registry.list_registered("prompt")) == ["one", "three", "two", "asks"]
    assert get_dispatcher(app).registry.list_registered("tool")["three"].title == "Three"


def test_a_name_is_given_once() -> None:
    app = Server("any")
    for add, args in (
        (app.add_tool, ()),
        (app.add_prompt, ()),
        (app.add_resource, ("a:b",)),
        (app.add_resource, ("a:{x}",)),
    ):
        function = (lambda x: x) if args == ("a:{x}",) else (lambda: 1)
        add(function, *args, name="n")
        with pytest.raises(ValueError, match=values(args[0] if args else "n")):
            add(function, *args, name="n")


def test_what_is_removed_may_come_again() -> None:
    app = Server("any")
    app.add_tool(lambda: 1, name="n")
    app.remove_tool("n")
    app.add_tool(lambda: 2, name="n")
    app.add_prompt(lambda: "1", name="n")
    app.remove_prompt("n")
    for remove in (app.remove_prompt, app.remove_resource):
        with pytest.raises(ValueError, match=values("n")):
            remove("n")


@pytest.mark.parametrize(
    "options",
    [
        {"protocol_versions": []},
        {"protocol_versions": ["2099-01-01"]},
        {"capabilities": ServerCapabilities(extensions={"no/good/key": {}})},
        {"secret_keys": ["short"]},
        {"page_size": 0},
    ],
)
def test_a_server_that_makes_no_sense_is_not_made(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        Server("any", **options)


@pytest.mark.parametrize("add", ["add_tool", "add_prompt"])
def test_keys_of_meta_have_a_form(add: str) -> None:
    with pytest.raises(ValueError, match="_meta key"):
        getattr(Server("any"), add)(lambda: 1, name="n", meta={"-bad": 1})


@pytest.mark.parametrize("add", ["add_tool", "add_prompt"])
@pytest.mark.parametrize("key", ["io.modelcontextprotocol/x", "dev.mcp/x", "mcp/x"])
def test_keys_of_meta_with_a_reserved_prefix_are_refused(add: str, key: str) -> None:
    with pytest.raises(ValueError, match="reserves"):
        getattr(Server("any"), add)(lambda: 1, name="n", meta={key: 1})


def test_extensions_of_the_protocol_may_be_declared() -> None:
    Server("any", capabilities=ServerCapabilities(extensions={"io.modelcontextprotocol/tasks": {}}))


def test_supported_versions_are_public_and_newest_first() -> None:
    assert PROTOCOL_VERSIONS[0] == NEWEST
    app = Server("any", protocol_versions=PROTOCOL_VERSIONS)
    assert set(get_dispatcher(app).protocol_versions) == set(PROTOCOL_VERSIONS)
    assert Server("any", version="1.2").version == "1.2"


def test_declared_capabilities_are_kept_and_lists_notify() -> None:
    declared = ServerCapabilities(completions={}, tools=ListChangedCapability(), experimental={"x": {}})
    capabilities = get_dispatcher(Server("any", capabilities=declared)).capabilities()
    assert (capabilities.completions, capabilities.experimental, capabilities.prompts) == ({}, {"x": {}}, None)
    assert capabilities.tools == ListChangedCapability(list_changed=True)
    with pytest.raises(TypeError, match="experimental"):
        Server("any", capabilities=ServerCapabilities(experimental=[1]))  # pyright: ignore[reportArgumentType]


def test_revisions_are_kept_in_order() -> None:
    app = Server("any", protocol_versions=[NEWEST, "2024-11-05"])
    assert get_dispatcher(app).protocol_versions == ("2024-11-05", NEWEST)


# What is offered


def test_capabilities_follow_what_is_registered() -> None:
    app = Server("any", capabilities=ServerCapabilities(experimental={"x": {}}, extensions={"com.example/x": {}}))
    assert get_dispatcher(app).capabilities().tools is None
    assert get_dispatcher(app).capabilities().prompts is None
    assert get_dispatcher(app).capabilities().resources is None
    assert get_dispatcher(app).capabilities().completions is None
    assert get_dispatcher(app).capabilities().experimental == {"x": {}}
    assert get_dispatcher(app).capabilities().extensions == {"com.example/x": {}}
    app.add_tool(lambda: 1, name="n")
    app.add_resource(lambda x: x, "a:{x}")
    app.add_prompt(lambda: "x", name="n")
    offered = get_dispatcher(app).capabilities()
    assert offered.tools is not None
    assert offered.tools.list_changed
    assert offered.resources is not None
    assert offered.resources.subscribe
    assert offered.prompts is not None
    assert offered.completions is None
    app.completion("a:{x}", "x")(lambda value: [])
    assert get_dispatcher(app).capabilities().completions == {}
    app.remove_tool("n")
    assert get_dispatcher(app).capabilities().tools is None


def test_choices_are_completions_for_free() -> None:
    app = Server("any")

    @app.prompt
    def run(size: Literal["s", "l"]) -> str:
        return size

    assert get_dispatcher(app).capabilities().completions == {}


@pytest.mark.parametrize("name", ["tools", "resources", "prompts"])
async def test_what_is_always_offered_may_be_empty(name: str) -> None:
    for method in [f"{name}/list"] if name != "resources" else ["resources/list", "resources/templates/list"]:
        (items,) = (
            value
            for value in (await Client(Server("any", capabilities=ALL_LISTS)).request(method)).values()
            if value == []
        )
        assert items == []
        with pytest.raises(MethodNotFound):
            await Client(Server("any")).request(method)


@pytest.mark.parametrize("uri", ["a:b", "a:{x}"])
async def test_resources_of_one_kind_are_enough_to_list_both(uri: str) -> None:
    app = Server("any")
    app.add_resource((lambda x: x) if "{" in uri else (lambda: "x"), uri)
    client = Client(app)
    fixed, templates = await client.request("resources/list"), await client.request("resources/templates/list")
    assert (len(fixed["resources"]), len(templates["resourceTemplates"])) == ((0, 1) if "{" in uri else (1, 0))


async def test_discovery_tells_it_all() -> None:
    app = Server("any", instructions="Ask.", capabilities=ONLY_TOOLS, protocol_versions=["2024-11-05", NEWEST, "draft"])
    found = await Client(app).request("server/discover")
    assert found["supportedVersions"] == [NEWEST, "2024-11-05"]
    assert found["instructions"] == "Ask."
    assert found["capabilities"] == {"logging": {}, "tools": {"listChanged": True}}
    assert (found["ttlMs"], found["cacheScope"]) == (0, "private")


@pytest.mark.parametrize("revision", [NEWEST, LATEST_HANDSHAKE])
async def test_lists_come_in_pages(revision: str) -> None:
    app = Server("any", page_size=2)
    for number in range(5):
        app.add_tool(lambda: 1, name=f"t{number}")
    client, cursor, pages = Client(app, revision), None, []
    while True:
        page = await client.request("tools/list", {} if cursor is None else {"cursor": cursor})
        pages.append([tool["name"] for tool in page["tools"]])
        cursor = page.get("nextCursor")
        if cursor is None:
            break
    assert pages == [["t0", "t1"], ["t2", "t3"], ["t4"]]


async def test_a_list_is_always_current() -> None:
    app = Server("any", capabilities=ONLY_TOOLS)
    client = Client(app)
    for expected in (["a"], ["a", "b"]):
        app.add_tool(lambda: 1, name=expected[-1])
        for _ in range(2):
            assert [tool["name"] for tool in (await client.request("tools/list"))["tools"]] == expected


# Calls


def calculator(**options: Any) -> Server:
    app = Server("calculator", **options)

    @app.tool
    def add(a: int, b: int = 1) -> int:
        return a + b

    @app.prompt
    def ask(a: str) -> str:
        return a

    return app


@pytest.mark.parametrize(
    ("params", "kind", "words"),
    [
        ({"name": "fly"}, ToolNotFound, values("fly")),
        ({"name": "\x1b[31m" + "x" * 500}, ToolNotFound, "xxx"),
        ({}, InvalidParams, values("name")),
        ({"name": 5}, InvalidParams, values("name")),
        ({"name": ["add"]}, InvalidParams, values("name")),
        ({"name": "add", "arguments": [1]}, InvalidParams, values("arguments")),
        ({"name": "add", "arguments": "a=1"}, InvalidParams, values("arguments")),
    ],
)
async def test_a_call_that_names_no_tool(params: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        await Client(calculator()).request("tools/call", params)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("params", "kind"),
    [
        ({"name": "fly"}, PromptNotFound),
        ({}, InvalidParams),
        ({"name": 5}, InvalidParams),
        ({"name": "ask", "arguments": [1]}, InvalidParams),
    ],
)
async def test_a_request_that_names_no_prompt(params: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        await Client(calculator()).request("prompts/get", params)


async def test_invalid_arguments_are_explained_to_the_model() -> None:
    client = Client(calculator())
    assert text(await client.call("add", {"a": 1})) == "2"
    for arguments in (None, {}, {"a": "one"}, {"a": 1, "c": 2}):
        assert error_text(await client.request("tools/call", {"name": "add", "arguments": arguments}))


@pytest.mark.parametrize("method", ["tools/fly", "ping", "initialize", "", "notifications/initialized"])
async def test_an_unknown_method(method: str) -> None:
    with pytest.raises(MethodNotFound):
        await Client(calculator()).request(method)


async def test_a_whole_result_is_taken_as_it_is() -> None:
    app = Server("any")
    app.add_tool(
        lambda: CallToolResult(content=[TextContent(text="x")], structured_content=[1], meta={"a": 1}), name="tool"
    )
    app.add_prompt(lambda: GetPromptResult(messages=[], description="own"), name="prompt")
    client = Client(app)
    result = await client.call("tool")
    assert (result["structuredContent"], result["_meta"]["a"]) == ({"result": [1]}, 1)
    assert (await client.request("prompts/get", {"name": "prompt"}))["description"] == "own"
    question = InputRequiredResult(result_type="input_required", request_state="s")
    app.add_tool(lambda: question, name="question")
    assert (await client.call("question"))["requestState"] == "s"


# Containment


class Odd(BaseException):
    """Not an Exception."""


FAULTS = {
    "Exception": lambda: ValueError("secret"),
    "BaseException": lambda: Odd("secret"),
    "SystemExit": lambda: SystemExit("secret"),
    "KeyboardInterrupt": lambda: KeyboardInterrupt("secret"),
    "RecursionError": lambda: RecursionError("secret"),
    "MemoryError": lambda: MemoryError("secret"),
    "StopIteration": lambda: StopIteration("secret"),
    "StopAsyncIteration": lambda: StopAsyncIteration("secret"),
    "TimeoutError": lambda: TimeoutError("secret"),
    "a cancellation of its own": lambda: asyncio.CancelledError("secret"),
    "a group": lambda: ExceptionGroup("secret", [ValueError("secret")]),
    "a text with control characters": lambda: ValueError("secret\x1b[31m\r\nforged line"),
}


@pytest.mark.parametrize("kind", ["async", "thread", "inline"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_whatever_a_tool_raises_is_masked_and_logged(
    fault: Callable[[], BaseException], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def plain() -> None:
        raise fault()

    async def waiting() -> None:
        raise fault()

    app = Server("faulty")
    app.add_tool(waiting if kind == "async" else plain, name="run", run_in_thread=kind != "inline")
    said = error_text(await Client(app).call("run"))
    assert mentions(said, "run", "faulty")
    assert "secret" not in said
    reference = said.rsplit(" ", 1)[1]
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("dovetail", logging.ERROR)
    assert f"[{reference}]" in record.getMessage()
    assert "\x1b" not in record.getMessage()
    assert "\r" not in record.getMessage()
    assert len(record.getMessage()) < 10_000


async def test_in_debug_mode_the_exception_is_shown() -> None:
    app = Server("faulty", debug=True)
    app.add_tool(lambda: 1 / 0, name="run")
    assert "ZeroDivisionError: division by zero" in error_text(await Client(app).call("run"))


@pytest.mark.parametrize("exc", [ToolError("plain words"), RemoteError(-5, "plain words")])
async def test_words_meant_for_the_model_reach_it(exc: Exception, caplog: pytest.LogCaptureFixture) -> None:
    def run() -> None:
        raise exc

    app = Server("faulty")
    app.add_tool(run)
    assert "plain words" in error_text(await Client(app).call("run"))
    assert not caplog.records


@pytest.mark.parametrize("exc", [InvalidParams("no"), ResourceNotFound("a:b"), ServerBusy("later")])
async def test_a_protocol_error_of_the_authors_is_one(exc: ProtocolError) -> None:
    def run() -> None:
        raise exc

    app = Server("faulty")
    app.add_tool(run)
    app.add_resource(run, "a:b")
    app.add_prompt(run)
    for method, params in (
        ("tools/call", {"name": "run"}),
        ("resources/read", {"uri": "a:b"}),
        ("prompts/get", {"name": "run"}),
    ):
        with pytest.raises(type(exc)) as caught:
            await Client(app).request(method, params)
        assert caught.value is exc


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_faults_elsewhere_are_errors_without_details(fault: Callable[[], BaseException]) -> None:
    async def run() -> str:
        raise fault()

    app = Server("faulty")
    app.add_resource(run, "a:b")
    app.add_prompt(run)

    @app.prompt
    def other(x: str) -> str:
        return x

    @app.completion("other", "x")
    async def suggest(value: str) -> list[str]:
        raise fault()

    completing = {"ref": {"type": "ref/prompt", "name": "other"}, "argument": {"name": "x", "value": ""}}
    for method, params, operation in (
        ("resources/read", {"uri": "a:b"}, "a:b"),
        ("prompts/get", {"name": "run"}, "run"),
        ("completion/complete", completing, "other"),
    ):
        with pytest.raises(InternalError, match=values(operation, "faulty")) as caught:
            await Client(app).request(method, params)
        assert "secret" not in caught.value.message


async def test_a_result_that_cannot_be_shaped_is_the_tools_fault() -> None:
    app = Server("faulty")
    app.add_tool(lambda: object(), name="object")
    app.add_tool(lambda: float("nan"), name="nan")
    for name in ("object", "nan"):
        assert mentions(error_text(await Client(app).call(name)), name)


async def test_a_server_goes_on_after_anything() -> None:
    app = calculator(limits=ServerLimits(max_calls=1))
    app.add_tool(lambda: exit(), name="leave")
    client = Client(app)
    for _ in range(3):
        error_text(await client.call("leave"))
        assert text(await client.call("add", {"a": 1})) == "2"


def test_a_call_whose_loop_is_gone_ends_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    app, pause = pausing(limits=ServerLimits(max_calls=1))
    loop = asyncio.new_event_loop()
    task: Any = loop.create_task(get_dispatcher(app).handle(Client(app).exchange("tools/call", {"name": "pause"})))
    loop.run_until_complete(began(pause))
    task._log_destroy_pending = False
    loop.close()
    task.get_coro().close()
    assert pause.ended is None
    assert not caplog.records
    pause.go.set()
    assert text(asyncio.run(Client(app).call("pause"))) == "done"


async def test_an_author_who_raises_what_ends_generators_is_contained() -> None:
    async def run() -> None:
        raise GeneratorExit

    app = Server("faulty")
    app.add_tool(run)
    assert mentions(error_text(await Client(app).call("run")), "run")


@pytest.mark.parametrize("end", ["answered", "refused", "failed"])
async def test_what_an_author_left_running_has_lost_its_ear(end: str) -> None:
    app, kept = Server("any"), []

    @app.tool
    async def run(ctx: Context) -> None:
        kept.append(ctx)
        await ctx.progress(1)
        if end == "refused":
            raise InvalidParams("no")
        if end == "failed":
            raise ValueError

    client = Client(app)
    with contextlib.suppress(InvalidParams):
        await client.request("tools/call", {"name": "run"}, progressToken=1)
    await kept[0].progress(2)
    assert len(client.said) == 1


# Cancellation and time


async def test_a_cancelled_call_is_cancelled() -> None:
    app, pause = pausing(limits=ServerLimits(max_calls=1, max_calls_per_principal=1))
    client = Client(app, origin="alice")
    call = asyncio.create_task(client.call("pause"))
    await began(pause)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert pause.ended == "cancelled"
    pause.go.set()
    assert text(await client.call("pause")) == "done"


@pytest.mark.parametrize("where", ["server", "tool"])
async def test_a_call_has_a_time_limit(where: str) -> None:
    app, pause = Server("slow", limits=ServerLimits(call_timeout=0.02 if where == "server" else 60)), Pause()
    app.add_tool(pause, name="pause", timeout=0.02 if where == "tool" else None)
    client = Client(app)
    assert error_text(await client.call("pause"))
    assert pause.ended == "cancelled"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.usefixtures("only_short_timers")
@pytest.mark.parametrize("asking", [False, True])
async def test_a_short_limit_of_a_tool_does_not_wait_for_the_sweep(asking: bool) -> None:
    app, ended = Server("slow"), list[str]()

    async def pause() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")
        return "never"

    async def asking_pause(ctx: Context) -> str:
        return await pause()

    app.add_tool(asking_pause if asking else pause, name="pause", timeout=0.05)
    async with asyncio.timeout(TIMEOUT_S):
        assert error_text(await Client(app).call("pause"))
    assert ended == ["cancelled"]


async def test_a_short_limit_leaves_no_timer_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, timers = asyncio.get_running_loop(), list[asyncio.TimerHandle]()
    call_at = loop.call_at

    def remember(*args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        timer = call_at(*args, **kwargs)
        if 1.0 < args[0] - loop.time() <= 1.5:
            timers.append(timer)
        return timer

    monkeypatch.setattr(loop, "call_at", remember)
    app = Server("quick")
    app.add_tool(lambda: "done", name="quick", run_in_thread=False, timeout=1.5)
    assert text(await Client(app).call("quick")) == "done"
    assert [one.cancelled() for one in timers] == [True]


@pytest.mark.usefixtures("only_short_timers")
async def test_a_short_limit_of_the_server_is_swept_for_often() -> None:
    app, pause = Server("slow", limits=ServerLimits(call_timeout=0.05)), Pause()
    app.add_tool(pause, name="pause")
    async with asyncio.timeout(TIMEOUT_S):
        assert error_text(await Client(app).call("pause"))


async def test_other_requests_have_a_time_limit_too() -> None:
    app, pause = Server("slow", limits=ServerLimits(call_timeout=0.02)), Pause()
    app.add_resource(pause, "a:b")
    with pytest.raises(InternalError):
        await Client(app).request("resources/read", {"uri": "a:b"})
    assert pause.ended == "cancelled"


async def test_a_thread_that_takes_too_long_is_left_behind() -> None:
    go = threading.Event()
    app = Server("slow", limits=ServerLimits(call_timeout=0.02))
    app.add_tool(lambda: go.wait(TIMEOUT_S), name="run")
    assert error_text(await Client(app).call("run"))
    go.set()


async def test_the_watch_over_running_calls_rests_when_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    app, pause = pausing()
    loop, looks = asyncio.get_running_loop(), list[Callable[[], None]]()
    call_later = loop.call_later

    def record(delay: float, act: Callable[..., None], *args: Any, **options: Any) -> asyncio.TimerHandle:
        if delay >= 1:  # not that of the watch
            return call_later(delay, act, *args, **options)
        looks.append(partial(act, *args))  # the test looks itself, so no clock decides when
        return call_later(delay, int)

    monkeypatch.setattr(loop, "call_later", record)
    call = asyncio.create_task(Client(app).call("pause"))
    await began(pause)
    looks.pop()()
    assert len(looks) == 1  # a call is running, so there will be another look
    pause.go.set()
    assert text(await call) == "done"
    looks.pop()()
    assert not looks
    assert text(await Client(app).call("pause")) == "done"
    assert len(looks) == 1  # the next call wakes the watch


# Limits


async def test_calls_have_a_limit() -> None:
    app, pause = pausing(limits=ServerLimits(max_calls=2))
    client = Client(app)
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(client.call("pause"))
        await began(pause)
        with pytest.raises(ServerBusy) as caught:
            await client.call("pause")
        assert not isinstance(caught.value, CallerBusy)
        pause.go.set()
    assert text(await client.call("pause")) == "done"


async def test_a_caller_has_a_share_of_the_calls() -> None:
    app, pause = pausing(limits=ServerLimits(max_calls_per_principal=1))
    alice, bob, nobody = Client(app, origin="alice"), Client(app, origin="bob"), Client(app)
    async with asyncio.TaskGroup() as group:
        group.create_task(alice.call("pause"))
        await began(pause)
        with pytest.raises(ServerBusy) as caught:
            await alice.call("pause")
        assert isinstance(caught.value, CallerBusy)
        for other in (bob, nobody, nobody):
            group.create_task(other.call("pause"))
        await asyncio.sleep(0)
        pause.go.set()
    assert text(await alice.call("pause")) == "done"
    assert text(await alice.call("pause")) == "done"


async def test_large_messages_at_work_have_a_limit_together() -> None:
    app, pause = pausing(limits=ServerLimits(max_inflight_bytes=3_000_000))
    client = Client(app)

    def sized(size: int) -> IncomingExchange:
        exchange = client.exchange("tools/call", {"name": "pause"})
        exchange.size = size
        return exchange

    async with asyncio.TaskGroup() as group:
        group.create_task(client.run(sized(2_000_000)))
        await began(pause)
        with pytest.raises(ServerBusy):
            await client.run(sized(2_000_000))
        group.create_task(client.run(sized(1_000_000)))
        group.create_task(client.run(sized(100)))
        await asyncio.sleep(0)
        pause.go.set()
    assert text(await client.run(sized(5_000_000))) == "done"


async def test_a_caller_has_a_share_of_the_large_messages() -> None:
    app, pause = pausing(limits=ServerLimits(max_inflight_bytes=4_000_000))
    alice, bob = Client(app, origin="alice"), Client(app, origin="bob")

    def sized(client: Client) -> IncomingExchange:
        exchange = client.exchange("tools/call", {"name": "pause"})
        exchange.size = 2_000_000
        return exchange

    async with asyncio.TaskGroup() as group:
        group.create_task(alice.run(sized(alice)))
        await began(pause)
        with pytest.raises(CallerBusy):
            await alice.run(sized(alice))
        other = group.create_task(bob.run(sized(bob)))
        await asyncio.sleep(0)
        assert not other.done()
        pause.go.set()


async def test_a_uri_has_a_limit() -> None:
    app = Server("any", limits=ServerLimits(max_uri_bytes=10))
    app.add_resource(lambda x: x, "a:{x}")
    assert await Client(app).request("resources/read", {"uri": "a:" + "x" * 8})
    with pytest.raises(InvalidParams, match="10"):
        await Client(app).request("resources/read", {"uri": "a:" + "x" * 9})


# Middleware


async def test_middleware_wraps_every_request_in_order() -> None:
    app, seen = calculator(), []

    def around(name: str) -> Any:
        async def middle(exchange: IncomingExchange, call_next: Callable[[IncomingExchange], Awaitable[Any]]) -> Any:
            seen.append((name, exchange.method))
            try:
                return await call_next(exchange)
            finally:
                seen.append((name, "end"))

        return middle

    outer = around("outer")
    assert app.middleware(outer) is outer
    app.middleware(around("inner"))
    assert text(await Client(app).call("add", {"a": 1})) == "2"
    assert seen == [("outer", "tools/call"), ("inner", "tools/call"), ("inner", "end"), ("outer", "end")]
    seen.clear()
    await Client(app).request("tools/list")
    assert [name for name, _ in seen] == ["outer", "inner", "inner", "outer"]


async def test_middleware_may_answer_change_or_refuse() -> None:
    app = calculator()

    @app.middleware
    async def guard(exchange: IncomingExchange, call_next: Callable[[IncomingExchange], Awaitable[Any]]) -> Any:
        match exchange.params.get("arguments"):
            case {"a": 1}:
                return CallToolResult(content=[TextContent(text="one")])
            case {"a": 2}:
                raise InvalidParams("not two")
            case {"a": 3}:
                exchange.params["arguments"]["b"] = 100
            case {"a": 4}:
                raise ToolError("not four")
            case {"a": 5}:
                raise ValueError("secret")
        return await call_next(exchange)

    client = Client(app)
    assert text(await client.call("add", {"a": 1})) == "one"
    with pytest.raises(InvalidParams, match="not two"):
        await client.call("add", {"a": 2})
    assert text(await client.call("add", {"a": 3})) == "103"
    with pytest.raises(InvalidParams, match="not four"):
        await client.call("add", {"a": 4})
    with pytest.raises(InternalError, match="tools/call") as caught:
        await client.call("add", {"a": 5})
    assert "secret" not in caught.value.message


# Completion


def completing() -> Server:
    app = Server("completing")

    @app.prompt
    def trip(city: str, size: Literal["small", "large", "huge"] = "small", free: str = "") -> str:
        return city

    @app.resource("city://{name}/{part}")
    def city(name: str, part: str) -> str:
        return name

    @app.completion("trip", "city")
    def cities(value: str) -> list[str]:
        return [one for one in ("Oslo", "Ostrava", "Rome") if one.startswith(value)]

    @app.completion("city://{name}/{part}", "part")
    async def parts(value: str, others: dict[str, str]) -> list[str]:
        return [f"{others.get('name', '?')}-{value}"]

    return app


async def complete(ref: dict[str, Any], argument: str, value: str, **context: Any) -> Any:
    params = {"ref": ref, "argument": {"name": argument, "value": value}} | ({"context": context} if context else {})
    return (await Client(completing()).request("completion/complete", params))["completion"]


PROMPT = {"type": "ref/prompt", "name": "trip"}
TEMPLATE = {"type": "ref/resource", "uri": "city://{name}/{part}"}


async def test_completions_come_from_functions_and_from_choices() -> None:
    assert await complete(PROMPT, "city", "Os") == {"values": ["Oslo", "Ostrava"], "total": 2, "hasMore": False}
    assert (await complete(PROMPT, "size", "la"))["values"] == ["large"]
    assert (await complete(PROMPT, "size", "g"))["values"] == ["large", "huge"]
    assert (await complete(PROMPT, "free", "x"))["values"] == []
    assert (await complete(TEMPLATE, "part", "x", arguments={"name": "oslo"}))["values"] == ["oslo-x"]
    assert (await complete(TEMPLATE, "part", "x"))["values"] == ["?-x"]
    assert (await complete(TEMPLATE, "name", "x"))["values"] == []


@pytest.mark.parametrize(
    ("ref", "argument"),
    [
        ({"type": "ref/prompt", "name": "none"}, "city"),
        ({"type": "ref/resource", "uri": "a:b"}, "x"),
        ({"type": "ref/other", "name": "trip"}, "city"),
        ({"type": "ref/prompt"}, "city"),
        (PROMPT, "nothing"),
    ],
)
async def test_completions_for_nothing_are_refused(ref: dict[str, Any], argument: str) -> None:
    with pytest.raises(InvalidParams):
        await complete(ref, argument, "")


async def test_a_server_that_completes_nothing_has_no_such_method() -> None:
    with pytest.raises(MethodNotFound):
        await Client(calculator()).request("completion/complete", {})


# Listening


async def listening(client: Client, **filter: Any) -> asyncio.Task[Any]:
    """A subscription that has been acknowledged."""
    task = asyncio.create_task(client.run(client.exchange("subscriptions/listen", {"notifications": filter}, id="s")))
    async with asyncio.timeout(TIMEOUT_S):
        while not client.said and not task.done():  # noqa: ASYNC110 - a list sets no event
            await asyncio.sleep(0)
    return task


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_listener_hears_what_it_asked_for_until_the_server_stops() -> None:
    app = calculator()
    app.add_resource(lambda: "x", "a:b")
    client = Client(app)
    task = await listening(client, toolsListChanged=True, resourceSubscriptions=["a:b"])
    app.notify_tools_changed()
    app.notify_prompts_changed()
    app.notify_resource_updated("a:c")
    app.notify_resource_updated("a:b")
    await settled()
    await app.stop()
    result = await task
    meta = {SUBSCRIPTION: "s"}
    assert [one["method"] for one in client.said] == [
        "notifications/subscriptions/acknowledged",
        TOOLS,
        UPDATED,
    ]
    assert client.said[0]["params"] == {
        "_meta": meta,
        "notifications": {"toolsListChanged": True, "resourceSubscriptions": ["a:b"]},
    }
    assert [one["params"] for one in client.said[1:]] == [{"_meta": meta}, {"_meta": meta, "uri": "a:b"}]
    assert result["_meta"][SUBSCRIPTION] == "s"
    assert len(get_dispatcher(app).registry.subscriptions) == 0


async def test_only_what_is_offered_is_acknowledged() -> None:
    app = calculator()
    client = Client(app)
    task = await listening(
        client,
        toolsListChanged=True,
        resourcesListChanged=True,
        resourceSubscriptions=["a:b"],
        promptsListChanged=False,
    )
    assert client.said[0]["params"]["notifications"] == {"toolsListChanged": True}
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(get_dispatcher(app).registry.subscriptions) == 0


async def test_where_nothing_is_offered_nothing_is_listened_to() -> None:
    with pytest.raises(MethodNotFound):
        await Client(Server("any")).request("subscriptions/listen", {"notifications": {}})
    with pytest.raises(InvalidParams):
        await Client(calculator()).request("subscriptions/listen", {"notifications": 5})


async def test_a_uri_listened_to_has_a_limit() -> None:
    app = Server("any", capabilities=ONLY_RESOURCES, limits=ServerLimits(max_uri_bytes=10))
    filter = {"resourceSubscriptions": ["a:" + "x" * 9]}
    with pytest.raises(InvalidParams, match="10"):
        await Client(app).request("subscriptions/listen", {"notifications": filter})


async def test_listeners_are_no_calls_but_have_a_limit_of_their_own() -> None:
    app = Server("any", capabilities=ONLY_TOOLS, limits=ServerLimits(max_calls=1, max_subscriptions_per_principal=1))
    client = Client(app, origin="alice")
    task = await listening(client, toolsListChanged=True)
    assert await client.request("tools/list")
    with pytest.raises(ServerBusy) as caught:
        await Client(app, origin="alice").request("subscriptions/listen", {"notifications": {}})
    assert isinstance(caught.value, CallerBusy)
    other = await listening(Client(app, origin="bob"), toolsListChanged=True)
    await app.stop()
    await asyncio.gather(task, other)
    again = await listening(Client(app, origin="alice"), toolsListChanged=True)
    await app.stop()
    await again


# Life


async def test_a_lifespan_is_entered_once_and_left_in_its_own_task() -> None:
    steps: list[Any] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        steps.append(asyncio.current_task())
        yield "database"
        steps.append(asyncio.current_task())

    app = Server("alive", lifespan=lifespan)

    @app.tool
    async def run(ctx: Context) -> str:
        return ctx.lifespan

    client = Client(app)
    results = await asyncio.gather(*(client.call("run") for _ in range(3)))
    assert [text(one) for one in results] == ["database"] * 3
    assert len(steps) == 1
    await app.stop()
    assert len(steps) == 2
    assert steps[0] is steps[1]
    assert text(await client.call("run")) == "database"
    await app.stop()
    assert len(steps) == 4


async def test_a_lifespan_that_fails_refuses_every_call_and_tells_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        raise ValueError("secret")
        yield

    app = Server("ill", lifespan=lifespan)
    app.add_tool(lambda: 1, name="run")
    for _ in range(2):
        with pytest.raises(InternalError) as caught:
            await Client(app).call("run")
        assert "secret" not in caught.value.message
    assert "secret" in caplog.text
    await app.stop()


async def test_a_lifespan_that_fails_at_its_end_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        yield
        raise ValueError("too late")

    app = Server("ill", lifespan=lifespan)
    await app.start()
    await app.stop()
    assert "too late" in caplog.text


async def test_stopping_waits_for_what_runs_and_takes_nothing_new() -> None:
    app, pause = pausing()
    client = Client(app)
    call = asyncio.create_task(client.call("pause"))
    await began(pause)
    stopping = asyncio.create_task(app.stop())
    await settled()
    assert not stopping.done()
    with pytest.raises(ServerBusy):
        await client.call("pause")
    pause.go.set()
    await stopping
    assert text(await call) == "done"
    assert text(await client.call("pause")) == "done"


async def test_a_call_over_its_time_limit_is_cancelled_and_reported() -> None:
    app, pause = pausing(limits=ServerLimits(drain_timeout=0.01))
    client = Client(app)
    call = asyncio.create_task(client.call("pause"))
    await began(pause)
    await app.stop()
    assert pause.ended == "cancelled"
    assert error_text(await call)


async def test_a_server_stopped_from_within_a_call_does_not_wait_for_itself() -> None:
    app = Server("suicidal")

    @app.tool
    async def run() -> str:
        await app.stop()
        return "stopped"

    assert await Client(app).call("run")


async def test_nothing_of_a_call_is_kept() -> None:
    app = calculator()
    client = Client(app, origin="alice")
    for _ in range(50):
        await client.call("add", {"a": 1})
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, IncomingExchange) and one.caller is client.caller]


@pytest.mark.parametrize(
    "method", ["tools/list", "notifications/cancelled", "notifications/message", "notifications/initialized"]
)
def test_only_notifications_of_clients_can_be_handled(method: str) -> None:
    with pytest.raises(ValueError, match=method):
        Server("x").on_notification(method)(print)


def test_a_notification_has_one_function() -> None:
    app = Server("x")
    app.on_notification("notifications/roots/list_changed")(print)
    with pytest.raises(ValueError, match="roots/list_changed"):
        app.on_notification("notifications/roots/list_changed")(print)
    with pytest.raises(TypeError):
        app.on_notification(print)  # pyright: ignore[reportArgumentType]


async def test_a_notification_that_fails_again_and_again_is_logged_once_for_each_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app, method = Server("x"), "notifications/roots/list_changed"

    @app.on_notification(method)
    async def refuse(params: dict[str, Any], ctx: Context) -> None:
        raise ServerBusy("later") if params.get("busy") else InvalidParams("wrong")

    for params in ({}, {}, {"busy": True}, {}, {"busy": True}):
        exchange = Client(app, LATEST_HANDSHAKE).exchange(method, params)
        get_dispatcher(app).receive_notification(exchange)
        await exchange.task
    assert len([record for record in caplog.records if method in record.getMessage()]) == 2


@pytest.mark.parametrize("is_stopped", [True, False])
async def test_a_subscription_is_refused_if_the_server_stops_before_it_begins(is_stopped: bool) -> None:
    app = calculator()
    entered, release, held = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.tool
    async def hold() -> None:
        await held.wait()

    @app.middleware
    async def wait(exchange: Any, call_next: Any) -> Any:
        if exchange.method == "subscriptions/listen":
            entered.set()
            await release.wait()
        return await call_next(exchange)

    async with asyncio.timeout(20):
        await app.start()
        params = {"notifications": {"toolsListChanged": True}}
        listening = asyncio.create_task(Client(app).request("subscriptions/listen", params))
        holding = asyncio.create_task(Client(app).call("hold"))
        await entered.wait()
        if is_stopped:
            held.set()
            await holding
            await app.stop()
            release.set()
            with pytest.raises(ServerBusy):
                await listening
        else:
            stopping = asyncio.create_task(app.stop())
            await asyncio.sleep(0)
            release.set()
            with pytest.raises(ServerBusy):
                await listening
            held.set()
            await asyncio.gather(holding, stopping)
