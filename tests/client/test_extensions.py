"""Test that a client sends the requests of extensions, and handles their notifications and results."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dovetail import Client, Server, SyncClient
from dovetail.errors import InvalidResult, NotSupported, RemoteError
from dovetail.extensions import CacheableResult, Extension, ExtensionClient, Params, Result
from dovetail.middleware import CallNext, Exchange, Retry
from dovetail.recording.playback import Playback
from dovetail.recording.recording_format import read_frames
from dovetail.testing import serve
from dovetail.types import CallToolResult, ClientCapabilities, TextContent

HELLO = "com.example/hello"
ERAS = ["stateless", "handshake"]


class HelloParams(Params):
    first_name: str


class HelloResult(Result):
    greeting_text: str


class HeardParams(Params):
    listener_count: int


hello = Extension(HELLO, settings={"a": 1}, client_settings={"b": 2})
strict = Extension("com.example/strict", requires_client=True)
heard: list[int] = []


@hello.method("com.example/hello/say", name_parameter="firstName")
async def say(params: HelloParams, exchange: Exchange) -> HelloResult:
    await exchange.notify("notifications/com.example/heard", {"listenerCount": "many"})
    await exchange.notify("notifications/com.example/heard", HeardParams(listener_count=len(params.first_name)))
    return HelloResult(greeting_text=f"Hello {params.first_name}")


@hello.method("com.example/hello/settings")
async def read_settings(params: Params, exchange: Exchange) -> HelloResult:
    return HelloResult(greeting_text=repr(hello.get_client_settings(exchange)))


@hello.method("com.example/hello/old", until="2025-06-18")
async def old(params: Params, exchange: Exchange) -> HelloResult:
    return HelloResult(greeting_text="old")


@hello.client_notification("notifications/com.example/heard")
def receive(params: HeardParams) -> None:
    heard.append(params.listener_count)


@strict.method("com.example/strict/say")
async def say_strictly(params: Params, exchange: Exchange) -> HelloResult:
    return HelloResult(greeting_text="strict")


def create_server(**options: Any) -> Server:
    return Server("greeter", extensions=[hello, strict], **options)


PROGRAM = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from client.test_extensions import create_server
create_server().run()
"""


@asynccontextmanager
async def connect(transport: str, era: str, **options: Any) -> AsyncIterator[Client]:
    if transport == "http":
        async with (
            serve(create_server(), transport="http") as url,
            Client(url, protocol_version=era, **options) as client,
        ):
            yield client
        return
    target = create_server() if transport == "memory" else [sys.executable, "-c", PROGRAM]
    async with Client(target, protocol_version=era, **options) as client:
        yield client


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("transport", ["memory", "http", "stdio"])
async def test_a_client_calls_the_methods_of_an_extension(transport: str, era: Any) -> None:
    heard.clear()
    async with connect(transport, era, extensions=[hello, strict]) as client:
        assert client.server_capabilities.extensions == {HELLO: {"a": 1}, "com.example/strict": {}}
        result = await client.request(say, HelloParams(first_name="Zoë"))
        assert type(result) is HelloResult
        assert result.greeting_text == "Hello Zoë"
        assert (await client.request(read_settings)).greeting_text == "{'b': 2}"
        assert (await client.request(say_strictly, timeout=30)).greeting_text == "strict"
    assert heard == [3]  # the invalid notification is ignored


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_does_not_declare_the_extension(era: Any) -> None:
    """It can call methods that do not require the declaration. The error of the others names the option."""
    async with connect("memory", era) as client:
        assert (await client.request(read_settings)).greeting_text == "None"
        with pytest.raises(RemoteError) as caught:
            await client.request(say_strictly)
    assert caught.value.code == (-32021 if era == "stateless" else -32602)
    assert caught.value.data == {"requiredCapabilities": {"extensions": {"com.example/strict": {}}}}
    assert caught.value.hint is not None
    assert "extensions=" in caught.value.hint


@pytest.mark.parametrize("era", ERAS)
async def test_a_server_without_the_extension_gets_no_request(era: Any) -> None:
    requests: list[str] = []

    async def watch(exchange: Exchange, call_next: CallNext) -> object:
        requests.append(exchange.method)
        return await call_next(exchange)

    async with Client(Server("plain", middleware=[watch]), protocol_version=era, extensions=[hello]) as client:
        with pytest.raises(NotSupported, match=HELLO):
            await client.request(say, HelloParams(first_name="Ada"))
        with pytest.raises(RemoteError) as caught:
            await client.request("com.example/hello/say", {"firstName": "Ada"})  # a string is not checked
        assert caught.value.code == -32601
    assert "com.example/hello/say" not in requests


@pytest.mark.parametrize("era", ERAS)
async def test_a_method_of_another_version_is_not_sent(era: Any) -> None:
    async with connect("memory", era) as client:
        with pytest.raises(NotSupported):
            await client.request(old)
    async with connect("memory", "2025-03-26") as client:
        assert (await client.request(old)).greeting_text == "old"


async def test_without_discovery_the_extension_is_assumed() -> None:
    async with Client(create_server(), protocol_version="2026-07-28", discover_result=False) as client:
        assert (await client.request(say, HelloParams(first_name="Ada"))).greeting_text == "Hello Ada"


async def test_parameters_have_the_type_of_the_method() -> None:
    async with connect("memory", "stateless") as client:
        for params in ({"firstName": "Ada"}, Params(), None):
            with pytest.raises(TypeError):
                await client.request(say, params)  # type: ignore[call-overload] # pyright: ignore[reportArgumentType, reportCallIssue]
        with pytest.raises(ValueError, match="timeout"):
            await client.request(say, HelloParams(first_name="Ada"), timeout=0)


async def test_a_wrong_result_is_invalid() -> None:
    other = Extension(HELLO)

    @other.method("com.example/hello/say")
    async def say_differently(params: HelloParams, exchange: Exchange) -> Result:
        return Result()

    async with Client(Server("other", extensions=[other])) as client:
        with pytest.raises(InvalidResult):
            await client.request(say, HelloParams(first_name="Ada"))


def test_a_sync_client_calls_the_methods_of_an_extension() -> None:
    with SyncClient(create_server(), extensions=[hello]) as client:
        result = client.request(say, HelloParams(first_name="Ada"))
        assert result.greeting_text == "Hello Ada"
        assert client.request("com.example/hello/settings", {})["greetingText"] == "{'b': 2}"


@pytest.mark.parametrize("era", ERAS)
async def test_other_extensions_can_still_be_declared(era: Any) -> None:
    capabilities = ClientCapabilities(extensions={"com.example/strict": {}})
    async with connect("memory", era, extensions=[hello], capabilities=capabilities) as client:
        assert (await client.request(say_strictly)).greeting_text == "strict"
        assert (await client.request(read_settings)).greeting_text == "{'b': 2}"


def test_an_extension_is_declared_once() -> None:
    with pytest.raises(ValueError, match=HELLO):
        Client(Server("a"), extensions=[hello], capabilities=ClientCapabilities(extensions={HELLO: {}}))


def test_two_extensions_cannot_share_a_notification_or_a_result_type() -> None:
    for add in (
        lambda extension: extension.client_notification("notifications/heard")(receive),
        lambda extension: extension.add_result_type("tools/call", "later", LaterResult),
    ):
        extensions = [Extension(HELLO), Extension("com.example/other")]
        for extension in extensions:
            add(extension)
        with pytest.raises(ValueError, match="other"):
            Client(Server("a"), extensions=extensions)


async def test_notifications_without_a_function_reach_the_notification_handler() -> None:
    received: list[tuple[str, Any]] = []
    other = Extension("com.example/other")
    async with connect(
        "memory", "stateless", extensions=[other], notification_handler=lambda *event: received.append(event)
    ) as client:
        await client.request(say, HelloParams(first_name="Ada"))
    assert received[-1] == ("notifications/com.example/heard", {"listenerCount": 3})


@pytest.mark.parametrize("era", ERAS)
async def test_the_middleware_of_the_client_is_outside(era: Any) -> None:
    steps: list[str] = []
    extension = Extension("com.example/steps")

    @extension.client_middleware
    async def inside(exchange: Exchange, call_next: CallNext) -> object:
        steps.append(f"inside {exchange.method}")
        exchange.params["firstName"] = "Eve"
        return await call_next(exchange)

    async def outside(exchange: Exchange, call_next: CallNext) -> object:
        steps.append(f"outside {exchange.method}")
        result = await call_next(exchange)
        assert isinstance(result, HelloResult)
        return result

    async with connect("http", era, extensions=[extension, hello], middleware=[outside]) as client:
        assert (await client.request(say, HelloParams(first_name="Ada"))).greeting_text == "Hello Eve"
    assert steps == ["outside com.example/hello/say", "inside com.example/hello/say"]


@pytest.mark.parametrize("is_server", [True, False])
async def test_a_request_of_an_extension_is_not_repeated(is_server: bool) -> None:
    extension, calls = Extension("com.example/once"), [0]

    @extension.method("com.example/once/run")
    async def run(params: Params, exchange: Exchange) -> Result:
        calls[0] += 1
        raise OSError("no disk")

    retry = Retry(retry_on=(OSError, RemoteError), delay=0.001)
    app = Server("once", extensions=[extension], middleware=[retry] if is_server else [])
    async with Client(app, extensions=[extension], middleware=[] if is_server else [retry]) as client:
        with pytest.raises(RemoteError):
            await client.request(run)
    assert calls == [1]


@pytest.mark.parametrize("era", ERAS)
async def test_requests_of_extensions_are_recorded_and_played_back(era: Any, tmp_path: Path) -> None:
    recording = tmp_path / "hello.jsonl"
    async with connect("memory", era, extensions=[hello], recording=recording) as client:
        await client.request(say, HelloParams(first_name="Ada"))
    playback: Any = Playback(read_frames(recording.read_bytes().splitlines()))
    async with Client(playback, protocol_version=era, extensions=[hello]) as client:
        assert (await client.request(say, HelloParams(first_name="Ada"))).greeting_text == "Hello Ada"
        with pytest.raises(RemoteError):
            await client.request(say, HelloParams(first_name="Eve"))


# Caching


class CountResult(CacheableResult):
    count: int


async def test_cacheable_results_are_cached_until_the_server_reports_a_change() -> None:
    extension, calls = Extension("com.example/count"), [0]

    @extension.method("com.example/count/get", is_cacheable=True)
    async def get(params: Params, exchange: Exchange) -> CountResult:
        calls[0] += 1
        return CountResult(count=calls[0], ttl_ms=60_000, cache_scope="public")

    app = Server("counter", extensions=[extension])

    @app.tool
    def first() -> None: ...

    async with Client(app) as client, client.listen() as changes:
        assert [(await client.request(get)).count for _ in range(3)] == [1, 1, 1]
        assert (await client.request(get, timeout=30)).count == 2  # with options, the request is sent
        app.remove_tool("first")
        async with asyncio.timeout(10):
            await anext(aiter(changes))
        assert (await client.request(get)).count == 3


# Result types


class LaterResult(Result):
    ticket: str


class TicketParams(Params):
    ticket: str


class TicketResult(Result):
    text: str


def create_later(*, has_hook: bool = True) -> Extension:
    """Create an extension that answers a tool call with a ticket, which the client exchanges for the result."""
    extension = Extension("com.example/later", requires_client=True)

    @extension.method("com.example/later/collect", since="2026-07-28", name_parameter="ticket")
    async def collect(params: TicketParams, exchange: Exchange) -> TicketResult:
        return TicketResult(text=f"result of {params.ticket}")

    async def wait_for_result(result: LaterResult, client: ExtensionClient) -> CallToolResult:
        collected = await client.request(collect, TicketParams(ticket=result.ticket))
        return CallToolResult(content=[TextContent(text=collected.text)])

    extension.add_result_type("tools/call", "later", LaterResult, wait_for_result if has_hook else None)

    @extension.middleware
    async def give_ticket(exchange: Exchange, call_next: CallNext) -> object:
        is_accepted = extension.get_client_settings(exchange) is not None and exchange.caller.is_stateless
        if exchange.method == "tools/call" and is_accepted:
            return LaterResult(ticket="T1")
        return await call_next(exchange)

    return extension


def create_slow_server(extension: Extension) -> Server:
    app = Server("slow", extensions=[extension])

    @app.tool
    async def work() -> str:
        return "done"

    return app


@pytest.mark.parametrize("transport", ["memory", "http"])
async def test_a_client_completes_an_added_result(transport: str) -> None:
    extension = create_later()
    steps: list[object] = []

    async def watch(exchange: Exchange, call_next: CallNext) -> object:
        result = await call_next(exchange)
        steps.append((exchange.method, type(result)))
        return result

    app = create_slow_server(extension)
    options: Any = {"protocol_version": "stateless", "extensions": [extension], "middleware": [watch]}
    if transport == "memory":
        async with Client(app, **options) as client:
            assert await client.call("work") == "result of T1"
    else:
        async with serve(app, transport="http") as url, Client(url, **options) as client:
            assert await client.call("work") == "result of T1"
    assert ("com.example/later/collect", TicketResult) in steps
    assert steps[-1] == ("tools/call", CallToolResult)


async def test_other_clients_get_the_ordinary_result() -> None:
    extension = create_later()
    app = create_slow_server(extension)
    async with Client(app, protocol_version="stateless") as client:
        assert await client.call("work") == "done"
    async with Client(app, protocol_version="handshake", extensions=[extension]) as client:
        assert await client.call("work") == "done"
        assert client.server_capabilities.extensions is None


async def test_a_result_type_that_the_client_does_not_know_is_invalid() -> None:
    app = create_slow_server(create_later())
    declared = ClientCapabilities(extensions={"com.example/later": {}})
    async with Client(app, protocol_version="stateless", capabilities=declared) as client:
        with pytest.raises(InvalidResult):
            await client.call("work")
    async with Client(app, protocol_version="stateless", extensions=[create_later(has_hook=False)]) as client:
        with pytest.raises(InvalidResult, match="later"):
            await client.call("work")


async def test_a_final_result_has_the_type_of_the_method() -> None:
    extension = Extension("com.example/later")

    async def forget(result: LaterResult, client: ExtensionClient) -> Result:
        return result

    extension.add_result_type("tools/call", "later", LaterResult, forget)
    app = create_slow_server(create_later())
    async with Client(app, protocol_version="stateless", extensions=[extension]) as client:
        with pytest.raises(TypeError, match="later"):
            await client.call("work")


async def test_an_extension_sees_the_options_of_the_request() -> None:
    extension = Extension("com.example/later")
    timeouts: list[Any] = []

    async def finish(result: LaterResult, client: ExtensionClient) -> CallToolResult:
        timeouts.append((client.timeout, client.total_timeout))
        client.report_progress(1, 2, "half")
        client.report_progress(2)
        return CallToolResult(content=[])

    extension.add_result_type("tools/call", "later", LaterResult, finish)
    progress: list[Any] = []
    async with Client(create_slow_server(create_later()), extensions=[extension]) as client:
        await client.call_tool("work")
        await client.call_tool(
            "work", timeout=50, total_timeout=100, progress_handler=lambda *values: progress.append(values)
        )
    assert [timeout for timeout, _ in timeouts] == [None, 50]
    assert 500 < timeouts[0][1] <= 600
    assert 0 < timeouts[1][1] <= 100
    assert progress == [(1, 2, "half"), (2, None, None)]


# Mounted servers


async def test_a_mounted_client_does_not_pass_extensions_through() -> None:
    extension = create_later()
    outer = Server("outer")
    outer.mount(Client(create_slow_server(extension), protocol_version="stateless"))
    async with Client(outer, protocol_version="stateless", extensions=[extension]) as client:
        assert await client.call("work") == "done"
        assert client.server_capabilities.extensions is None


async def test_required_parameters_are_named() -> None:
    async with Client(create_server(), extensions=[hello]) as client:
        with pytest.raises(TypeError) as caught:
            await client.request(say)
    for name in ("com.example/hello/say", "HelloParams", "first_name"):
        assert name in str(caught.value)


async def test_an_invalid_notification_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with Client(create_server(), extensions=[hello]) as client:
        for _ in range(3):
            await client.request(say, HelloParams(first_name="Ada"))
    [record] = [record for record in caplog.records if "notifications/com.example/heard" in record.getMessage()]
    assert record.levelname == "WARNING"


async def test_the_function_for_a_notification_starts_before_the_result_if_it_is_not_async() -> None:
    order: list[str] = []
    radio = Extension("com.example/radio")

    @radio.method("com.example/radio/send")
    async def send(params: Params, exchange: Exchange) -> Result:
        for name in ("first", "second"):
            await exchange.notify(f"notifications/com.example/radio/{name}")
        return Result()

    def receive_first(params: Params) -> None:
        order.append("first")

    async def receive_second(params: Params) -> None:
        order.append("second")

    radio.client_notification("notifications/com.example/radio/first")(receive_first)
    radio.client_notification("notifications/com.example/radio/second")(receive_second)
    async with Client(Server("radio", extensions=[radio]), extensions=[radio]) as client:
        await client.request(send)
        assert order[0] == "first"
    assert order == ["first", "second"]


async def test_a_notification_has_the_prefix_of_notifications() -> None:
    errors: list[Exception] = []
    radio = Extension("com.example/radio")

    @radio.method("com.example/radio/send")
    async def send(params: Params, exchange: Exchange) -> Result:
        try:
            await exchange.notify("com.example/radio/heard")
        except ValueError as exc:
            errors.append(exc)
        return Result()

    async with Client(Server("radio", extensions=[radio]), extensions=[radio]) as client:
        await client.request(send)
    assert len(errors) == 1


async def test_a_client_that_does_not_declare_the_extension_gets_its_notifications() -> None:
    seen: list[str] = []

    async with Client(create_server(), notification_handler=lambda method, params: seen.append(method)) as client:
        await client.request("com.example/hello/say", {"firstName": "Ada"})
    assert seen == ["notifications/com.example/heard"] * 2
