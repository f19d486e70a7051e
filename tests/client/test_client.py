"""Test the client against scripted servers: lists, headers, schemas, rounds, caches, opening and closing."""

import asyncio
import contextlib
import gc
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest

from dovetail import (
    Client,
    ClientLimits,
    HTTPTarget,
    MCPError,
    RemoteError,
    RequestAwaitingInput,
    Server,
    Timeouts,
    ToolError,
)
from dovetail.errors import (
    ConnectError,
    ConnectionLost,
    InputRequestError,
    InvalidResult,
    NotSupported,
    RateLimited,
    RequestTimeout,
    VersionNegotiationError,
)
from dovetail.transports.duplex_client import DuplexClient
from dovetail.transports.process.reaper import reaper
from dovetail.types import ClientCapabilities
from support.fake_service import run_pending_callbacks, wait_until
from support.full_server import (
    NEWEST_HANDSHAKE,
    STATELESS,
    TESTS,
    connect_client,
    create_full_server,
    run_target,
    server_command,
)
from support.mentions import mentions, values
from support.scripted_server import (
    ERAS,
    SILENCE,
    ErrorReply,
    Messages,
    ScriptedServer,
    create_notification,
    encode_http_reply,
    serve_on_socket,
    serve_over_http,
    text_result,
    tool_definition,
)

QUICK = Timeouts(connect=2, discover=0.3, initialize=3, call=3, request=3)
both = pytest.mark.parametrize("era", ERAS)


def client(at: Any, **options: Any) -> Client:
    return Client(at, name="it", **({"timeout": QUICK} | options))


# Lists


@both
async def test_a_list_that_goes_in_circles_is_found_out(era: str) -> None:
    script = ScriptedServer(era, {"tools/list": {"tools": [tool_definition()], "nextCursor": "again"}})
    async with serve_on_socket(script) as at, client(at) as one:
        with pytest.raises(InvalidResult):
            await one.list_tools()
        assert script.count("tools/list") == 2
        page = await one.list_tools_page()  # a page at a time it can still be read
        assert page.next_cursor == "again"


@both
async def test_an_empty_cursor_must_not_repeat_either(era: str) -> None:
    script = ScriptedServer(era, {"tools/list": {"tools": [tool_definition()], "nextCursor": ""}})
    async with serve_on_socket(script) as at, client(at) as one:
        with pytest.raises(InvalidResult, match="cursor"):
            await one.list_tools()
        assert script.count("tools/list") == 2


async def test_pages_and_items_are_limited() -> None:
    numbers = iter(range(10_000))
    endless = ScriptedServer(
        "handshake", {"tools/list": lambda _: {"tools": [tool_definition()] * 7, "nextCursor": str(next(numbers))}}
    )
    async with serve_on_socket(endless) as at:
        async with client(at, limits=ClientLimits(max_pages=5)) as one:
            with pytest.raises(InvalidResult, match=values(5, "pages")):
                await one.list_tools()
            assert endless.count("tools/list") == 5
        async with client(at, limits=ClientLimits(max_items=20)) as one:
            with pytest.raises(InvalidResult, match=values(20, "items")):
                await one.list_tools()


@both
async def test_a_malformed_item_is_left_out_and_reported(era: str, caplog: pytest.LogCaptureFixture) -> None:
    broken: list[Any] = [{"name": 5, "inputSchema": {}}, "tool", {"inputSchema": {"type": "object"}}]
    script = ScriptedServer(era, {"tools/list": {"tools": [tool_definition("a"), *broken, tool_definition("b")]}})
    async with serve_on_socket(script) as at, client(at) as one:
        with caplog.at_level(logging.WARNING, "dovetail"):
            assert [found.name for found in await one.list_tools()] == ["a", "b"]
        for record, number in zip(caplog.records, (1, 2, 3), strict=True):
            assert mentions(record.getMessage(), "it", number, "tools")


async def test_a_list_that_is_none_is_an_error() -> None:
    async with serve_on_socket(ScriptedServer("handshake", {"tools/list": {"tools": "many"}})) as at, client(at) as one:
        with pytest.raises(InvalidResult, match="tools/list") as caught:
            await one.list_tools()
        assert (caught.value.server, caught.value.step) == ("it", "tools/list")


# Headers

REGION = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}


async def test_a_call_is_mirrored_in_headers() -> None:
    script = ScriptedServer("stateless", {"tools/list": {"tools": [tool_definition("go", inputSchema=REGION)]}})
    async with serve_over_http(script) as at, client(at) as one:
        await one.list_tools()
        await one.call("go", region="Ægir")
        await one.call("go", region="north")
        _, first = script.heads[-2]
        assert (first["mcp-protocol-version"], first["mcp-method"], first["mcp-name"]) == (
            STATELESS,
            "tools/call",
            "go",
        )
        assert first["mcp-param-region"].startswith("=?base64?")
        assert script.heads[-1][1]["mcp-param-region"] == "north"


async def test_a_mismatch_of_headers_is_mended_by_listing_again() -> None:
    script = ScriptedServer("stateless")

    def called(message: dict[str, Any]) -> Any:
        mirrored = "mcp-param-region" in script.heads[-1][1]
        return text_result() if mirrored else ErrorReply(-32020, "headers differ", status=400)

    script.reactions = {"tools/list": {"tools": [tool_definition("go", inputSchema=REGION)]}, "tools/call": called}
    async with serve_over_http(script) as at, client(at) as one:
        assert await one.call("go", region="north") == "ok"
        assert [one["method"] for one in script.received[1:]] == ["tools/call", "tools/list", "tools/call"]
        script.reactions = {"tools/call": ErrorReply(-32020, "headers differ", status=400)}
        with pytest.raises(RemoteError) as caught:
            await one.call("go", region="north")
        assert (caught.value.code, caught.value.status_code) == (-32020, 400)


async def test_a_definition_with_a_broken_header_is_left_out_where_headers_are_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad = tool_definition(
        "bad", inputSchema={"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": "a b"}}}
    )
    script = ScriptedServer("stateless", {"tools/list": {"tools": [bad, tool_definition("good")]}})
    async with serve_over_http(script) as at, client(at) as one:
        with caplog.at_level(logging.WARNING, "dovetail"):
            assert [found.name for found in await one.list_tools()] == ["good"]
            assert [found.name for found in (await one.list_tools_page()).tools] == ["good"]
        assert mentions(caplog.text, "bad")
    async with serve_on_socket(script) as at, client(at) as one:
        assert [found.name for found in await one.list_tools()] == ["bad", "good"]


# Results


@both
async def test_a_result_must_keep_the_promise_of_its_schema(era: str) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    script = ScriptedServer(era, {"tools/list": {"tools": [tool_definition("go", outputSchema=schema)]}})
    async with serve_on_socket(script) as at, client(at) as one:
        script.reactions = {**script.reactions, "tools/call": text_result("x", structuredContent={"n": "x"})}
        await one.call("go")  # nothing was promised to one who has not looked
        await one.list_tools()
        with pytest.raises(InvalidResult, match=values("n")) as caught:
            await one.call("go")
        assert (caught.value.server, caught.value.step) == ("it", "tools/call go")
        script.reactions = {**script.reactions, "tools/call": text_result("x")}
        with pytest.raises(InvalidResult):
            await one.call("go")
        script.reactions = {**script.reactions, "tools/call": text_result("x", isError=True)}
        with pytest.raises(ToolError, match="x"):
            await one.call("go")
        script.reactions = {**script.reactions, "tools/call": text_result("x", structuredContent={"n": 1})}
        assert await one.call("go") == {"n": 1}
    async with serve_on_socket(script) as at, client(at, validate_results=False) as one:
        await one.list_tools()
        script.reactions = {**script.reactions, "tools/call": text_result("x", structuredContent={"n": "x"})}
        assert await one.call("go") == {"n": "x"}


@both
async def test_a_result_of_the_wrong_shape_is_reported(era: str) -> None:
    script = ScriptedServer(
        era, {"tools/call": {"content": "text"}, "resources/read": {"contents": [{"uri": "a", "blob": "%"}]}}
    )
    async with serve_on_socket(script) as at, client(at) as one:
        with pytest.raises(InvalidResult, match="tools/call"):
            await one.call("go")
        with pytest.raises(InvalidResult, match="base64"):
            await one.read("a")
        script.reactions = {"tools/call": text_result(resultType="later")}
        with pytest.raises(InvalidResult):
            await one.call("go")


# Questions, driven by hand

SEAT = {"type": "object", "properties": {"row": {"type": "integer"}}, "required": ["row"]}


def asking(state: str | None = None, **questions: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"resultType": "input_required", "inputRequests": questions}
    return asked | ({"requestState": state} if state is not None else {})


FORM = {"method": "elicitation/create", "params": {"mode": "form", "message": "Seat?", "requestedSchema": SEAT}}


async def test_a_question_can_be_stored_and_answered_by_another_client() -> None:
    state = '\u00e9"\\/\u2028 +=&%00'

    def called(message: dict[str, Any]) -> Any:
        return text_result("12") if "inputResponses" in message["params"] else asking(state, seat=FORM)

    script = ScriptedServer("stateless", {"tools/call": called})
    async with serve_over_http(script) as at:
        async with client(at) as one:
            pending = await one.call_tool("book", {"flight": "SK"}, allow_input_required=True)
            assert isinstance(pending, RequestAwaitingInput)
            stored = pending.dump()
        async with client(at) as other:
            loaded = RequestAwaitingInput.load(stored)
            assert loaded == pending
            assert loaded.input_requests["seat"].params == FORM["params"]
            answer = {"action": "accept", "content": {"row": 12}}
            result = await other.resume(loaded, {"seat": answer})
            assert result.content[0].text == "12"
        sent = script.received[-1]["params"]
        assert sent["requestState"] == state
        assert sent["inputResponses"] == {"seat": answer}
        assert (sent["name"], sent["arguments"]) == ("book", {"flight": "SK"})


RESUME = """
import sys
from dovetail import RequestAwaitingInput, SyncClient
pending = RequestAwaitingInput.load(sys.stdin.buffer.read())
(key,) = pending.input_requests
with SyncClient(sys.argv[1]) as client:
    result = client.resume(pending, {key: {"action": "accept", "content": {"row": 3}}})
    print(result.content[0].text)
"""


async def test_a_stored_question_is_answered_by_another_process() -> None:
    async with run_target("http") as at, client(at) as one:
        pending = await one.call_tool("book", allow_input_required=True)
        assert isinstance(pending, RequestAwaitingInput)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", RESUME, at, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await process.communicate(pending.dump())
        assert said.decode().strip() == "row 3, window, none"


async def test_without_handlers_everything_may_be_asked_and_comes_back() -> None:
    async with connect_client("memory") as one:
        for tool, arguments, method in (
            ("book", {}, "elicitation/create"),
            ("visit", {"url": "https://example.com/pay"}, "elicitation/create"),
            ("think", {}, "sampling/createMessage"),
            ("roots", {}, "roots/list"),
        ):
            pending = await one.call_tool(tool, arguments, meta={"example.com/a": 1}, allow_input_required=True)
            assert isinstance(pending, RequestAwaitingInput)
            assert [question.method for question in pending.input_requests.values()] == [method]
        with pytest.raises(MCPError, match="elicitation_handler="):
            await one.call("book")  # nobody is there who could answer


async def test_with_handlers_what_they_stand_for_may_be_asked() -> None:
    async with connect_client("memory", roots=["/"]) as one:
        with pytest.raises(MCPError, match="elicitation_handler="):
            await one.call_tool("book", allow_input_required=True)


async def test_extensions_are_declared_with_what_may_be_asked() -> None:
    script = ScriptedServer("stateless", {"tools/call": text_result("x")})
    extensions = ClientCapabilities(extensions={"example.com/x": {}})
    async with serve_over_http(script) as at, client(at, capabilities=extensions) as one:
        await one.call_tool("go", allow_input_required=True)
    told = script.received[-1]["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
    assert told["extensions"] == {"example.com/x": {}}
    assert {"elicitation", "sampling", "roots"} <= set(told)


async def test_a_handshake_server_asks_the_handlers_even_then() -> None:
    async with connect_client("memory", NEWEST_HANDSHAKE, elicitation_handler=lambda _: {"row": 2}) as one:
        result = await one.call_tool("book", allow_input_required=True)
        assert not isinstance(result, RequestAwaitingInput)
        assert result.content[0].text == "row 2, window, none"  # pyright: ignore[reportAttributeAccessIssue]


async def test_what_does_not_hold_pendings_is_refused() -> None:
    with pytest.raises(ValueError, match=r"."):
        RequestAwaitingInput.load(b'{"method": 1}')


async def test_rounds_without_questions_or_with_too_many_are_bounded() -> None:
    script = ScriptedServer("stateless", {"tools/call": asking("s")})
    limits = ClientLimits(max_input_rounds=3, reconnect_delay=0.01, max_input_requests=2)
    async with (
        serve_on_socket(script) as at,
        client(at, limits=limits, elicitation_handler=lambda _: {"row": 1}) as one,
    ):
        with pytest.raises(InputRequestError, match=values(3)):
            await one.call("go")
        assert script.count("tools/call") == 4
        script.reactions = {"tools/call": asking(a=FORM, b=FORM, c=FORM)}
        with pytest.raises(InputRequestError, match=values(3)):
            await one.call("go")


async def test_an_unanswered_request_names_the_missing_handler() -> None:
    script = ScriptedServer("stateless", {"tools/call": asking(a=FORM)})
    async with serve_on_socket(script) as at, client(at) as one:
        with pytest.raises(InputRequestError, match="elicitation/create") as caught:
            await one.call("go")
        assert mentions(caught.value.hint, "elicitation_handler=")
        sampling = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}}
        script.reactions = {"tools/call": asking(a=sampling)}
        with pytest.raises(InputRequestError) as caught:
            await one.call("go")
        assert mentions(caught.value.hint, "sampling_handler=")


async def test_a_ping_during_a_question_does_not_stop_the_clocks_for_ever() -> None:
    """The limits stand still while a user is asked, and go on afterwards, whatever else the server said."""
    question = {"id": "q", "method": "elicitation/create", "params": FORM["params"]}
    ping = {"id": "p", "method": "ping"}
    script = ScriptedServer("handshake", {"tools/call": Messages([question, ping])})

    async def answer(_: Any) -> dict[str, int]:
        return {"row": 1}

    async with serve_on_socket(script) as at, client(at, elicitation_handler=answer) as one:
        with pytest.raises(RequestTimeout):
            async with asyncio.timeout(5):
                await one.call_tool("go", timeout=0.3)


# What is kept


async def test_a_subscription_that_is_not_supported_waits_for_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait_until_listening(_: object) -> bool:
        raise AssertionError("the client waited for the stream")

    monkeypatch.setattr(DuplexClient, "wait_until_listening", wait_until_listening)
    async with Client(Server("plain"), protocol_version="handshake") as client:
        with pytest.raises(NotSupported):
            await client.subscribe_resource("x:1")


async def test_a_result_is_cached_for_its_lifetime_and_dropped_on_notification() -> None:
    script = ScriptedServer(
        "stateless", {"tools/list": {"tools": [tool_definition()], "ttlMs": 60_000, "cacheScope": "private"}}
    )
    async with serve_on_socket(script) as at, client(at) as one:
        for _ in range(3):
            assert len(await one.list_tools()) == 1
        assert script.count("tools/list") == 1
        changed = create_notification("notifications/tools/list_changed")
        script.reactions = {**script.reactions, "tools/call": Messages([changed, text_result()])}
        await one.call("go")
        await one.list_tools()
        assert script.count("tools/list") == 2
    async with serve_on_socket(script) as at, client(at, cache=False) as one:
        await one.list_tools()
        await one.list_tools()
        assert script.count("tools/list") == 4


@pytest.mark.parametrize("lifetime", [0, -5, 10**400])
async def test_odd_lifetimes_do_no_harm(lifetime: int) -> None:
    script = ScriptedServer("stateless", {"tools/list": {"tools": [tool_definition()], "ttlMs": lifetime}})
    async with serve_on_socket(script) as at, client(at) as one:
        assert len(await one.list_tools()) == 1
        assert len(await one.list_tools()) == 1


async def test_what_many_want_at_once_is_asked_for_once() -> None:
    release = asyncio.Event()

    async def read(_: Any) -> Any:
        await release.wait()
        return {"contents": [{"uri": "a", "text": "x"}]}

    script = ScriptedServer("handshake", {"resources/read": read})
    async with serve_on_socket(script) as at, client(at) as one:
        tasks = [asyncio.get_running_loop().create_task(one.read("a")) for _ in range(20)]
        await wait_until(lambda: script.count("resources/read"))
        tasks[0].cancel()  # who asked first gives up; the others still want it
        await wait_until(lambda: script.count("resources/read") == 2)
        release.set()
        assert await asyncio.gather(*tasks[1:]) == ["x"] * 19
        assert script.count("resources/read") == 2


# What is open


@both
async def test_a_busy_server_is_asked_again_only_where_that_is_safe(era: str) -> None:
    calls = {"n": 0}

    def busy(_: Any) -> Any:
        calls["n"] += 1
        return ErrorReply(429, "busy", {"retryAfterMs": 10}) if calls["n"] % 2 else {"tools": []}

    script = ScriptedServer(era, {"tools/list": busy, "tools/call": ErrorReply(429, "busy", {"retryAfterMs": 10**500})})
    async with serve_on_socket(script) as at, client(at, cache=False) as one:
        assert await one.list_tools() == []
        assert calls["n"] == 2
        with pytest.raises(RateLimited) as caught:
            await one.call("go")
        assert script.count("tools/call") == 1
        assert caught.value.retry_after is not None


async def test_eras_are_remembered_and_asked_for_again_when_they_are_wrong() -> None:
    script = ScriptedServer("handshake")
    async with serve_on_socket(script) as at:
        for _ in range(2):
            async with client(at):
                pass
        assert [one["method"] for one in script.received if "id" in one] == [
            "server/discover",
            "initialize",
            "initialize",
        ]
        script.era = "stateless"  # another server has come to live there
        clients = [client(at) for _ in range(4)]
        await asyncio.gather(*(one.connect() for one in clients))
        assert {one.protocol_version for one in clients} == {STATELESS}
        for one in clients:
            await one.close()


async def test_a_wish_that_cannot_be_met_says_so() -> None:
    async with serve_on_socket(ScriptedServer("handshake")) as at:
        with pytest.raises(VersionNegotiationError, match="stateless"):
            await client(at, protocol_version="stateless").connect()
        with pytest.raises(VersionNegotiationError, match=values("2025-11-25", "2025-03-26")) as caught:
            await client(at, protocol_version="2025-03-26").connect()
        assert caught.value.hint is not None
    async with serve_on_socket(ScriptedServer("stateless")) as at:
        with pytest.raises(MCPError):
            await client(at, protocol_version="handshake").connect()
    for version in ("1999-01-01", "iron"):
        with pytest.raises(ValueError, match=version):
            client("tcp://127.0.0.1:1", protocol_version=version)


async def test_versions_offered_in_return_are_taken() -> None:
    offered = ErrorReply(-32602, "other", {"supported": ["2024-11-05", "1999-01-01"]})

    def initialize(message: dict[str, Any]) -> Any:
        asked = message["params"]["protocolVersion"]
        result = {"protocolVersion": asked, "capabilities": {}, "serverInfo": {"name": "a", "version": "1"}}
        return result if asked == "2024-11-05" else offered

    async with serve_on_socket(ScriptedServer("handshake", {"initialize": initialize})) as at, client(at) as one:
        assert one.protocol_version == "2024-11-05"


async def test_a_refused_log_level_does_not_cost_the_server() -> None:
    script = ScriptedServer("handshake", {"logging/setLevel": ErrorReply(-32603, "no logs here")})
    async with serve_on_socket(script) as at, client(at, log_handler=print) as one:
        assert one.is_connected


async def test_closing_while_connecting_raises_in_every_waiter() -> None:
    script = ScriptedServer("handshake", {"server/discover": SILENCE, "initialize": SILENCE})
    async with serve_on_socket(script) as at:
        one = client(at)
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(one.connect()), *(loop.create_task(one.call("go")) for _ in range(3))]
        await wait_until(lambda: script.count("server/discover"))
        await one.close()
        told = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in told] == [ConnectionLost] * 4


async def test_closed_while_connecting_with_one_waiter() -> None:
    script = ScriptedServer("handshake", {"server/discover": SILENCE, "initialize": SILENCE})
    async with serve_on_socket(script) as at:
        one = client(at)
        task = asyncio.get_running_loop().create_task(one.connect())
        await wait_until(lambda: script.count("server/discover"))
        await one.close()
        with pytest.raises(ConnectionLost):
            await task


async def test_cancelled_while_connecting_leaves_nothing_and_can_be_tried_again() -> None:
    script = ScriptedServer("handshake", {"server/discover": SILENCE, "initialize": SILENCE})
    async with serve_on_socket(script) as at:
        one = client(at)
        task = asyncio.get_running_loop().create_task(one.connect())
        await wait_until(lambda: script.count("server/discover"))
        task.cancel()
        script.reactions = {}
        await one.connect()  # at once, while the first attempt is still being cleared away
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await one.call("go") == "ok"
        await one.close()
    assert not [left for left in asyncio.all_tasks() if "Keeper" in repr(left)]


async def test_cancelling_one_who_waits_does_not_stop_the_others() -> None:
    release = asyncio.Event()

    async def slow(_: Any) -> Any:
        await release.wait()
        return ErrorReply(-32601)

    script = ScriptedServer("handshake", {"server/discover": slow})
    async with serve_on_socket(script) as at:
        one = client(at)
        loop = asyncio.get_running_loop()
        first, second = loop.create_task(one.call("go")), loop.create_task(one.call("go"))
        await wait_until(lambda: script.count("server/discover"))
        first.cancel()
        release.set()
        assert await second == "ok"
        assert script.connections == 1
        await one.close()


async def test_the_first_request_opens_and_any_task_may_close() -> None:
    async with run_target("http") as at:
        one = client(at)
        assert await asyncio.get_running_loop().create_task(one.call("add", a=1)) == 2
        await asyncio.get_running_loop().create_task(one.close())
        await one.close()
        with pytest.raises(ConnectionLost):
            await one.ping()
        await one.connect()
        assert await one.call("add", a=2) == 3
        await one.close()


@pytest.mark.parametrize("way", ["memory", "http", "unix"])
async def test_clients_may_be_closed_in_any_order(way: str) -> None:
    async with run_target(way) as at:
        first, second = client(at), client(at)
        await first.__aenter__()
        await second.__aenter__()
        await first.__aexit__(None, None, None)
        assert await second.call("add", a=1) == 2
        await second.__aexit__(None, None, None)


@pytest.mark.parametrize("way", ["http", "tcp"])
async def test_a_client_serves_the_loops_of_other_threads(way: str) -> None:
    failures: list[BaseException] = []

    def elsewhere(one: Client) -> None:
        async def work() -> None:
            assert await one.call("add", a=1) == 2
            async with one.listen(uris=["page://1"]) as changes:
                await one.call("change", uri="page://1")
                async for change in changes:
                    assert change.uri == "page://1"
                    break

        try:
            asyncio.run(asyncio.wait_for(work(), 5))
        except BaseException as exc:
            failures.append(exc)

    async with run_target(way) as at, client(at) as one:
        threads = [threading.Thread(target=elsewhere, args=(one,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))
        assert not failures
        assert await one.call("add", a=2) == 3


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_client_of_a_closed_loop_starts_again() -> None:
    one = client(create_full_server())
    assert asyncio.run(one.call("add", a=1)) == 2
    assert asyncio.run(one.call("add", a=2)) == 3
    asyncio.run(one.close())
    gc.collect()


def test_a_stopped_loop_does_not_block_the_client() -> None:
    one = client(create_full_server())
    loop = asyncio.new_event_loop()
    loop.run_until_complete(one.connect())
    with pytest.raises(RuntimeError):
        asyncio.run(one.call("add", a=1))
    loop.run_until_complete(one.close())
    loop.close()


async def test_a_word_said_just_before_leaving_is_sent() -> None:
    script = ScriptedServer("handshake")
    async with serve_on_socket(script) as at, client(at) as one:
        await one.notify("notifications/farewell", {"a": 1})
        await one.close()
        await wait_until(lambda: script.count("notifications/farewell"))


@pytest.mark.parametrize("option", ["verify", "cert"])
async def test_a_certificate_file_that_is_not_there_is_named(option: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pem"):
        HTTPTarget("https://127.0.0.1:1/mcp", **{option: "nowhere.pem"})


async def test_a_failed_opening_is_not_repeated_without_a_pause() -> None:
    script = ScriptedServer(
        "handshake",
        {"server/discover": encode_http_reply(b"", status=500), "initialize": encode_http_reply(b"", status=500)},
    )
    async with serve_over_http(script) as at:
        one = client(at, limits=ClientLimits(reconnect_delay=0.2))
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(3):
            with pytest.raises(MCPError):
                await one.connect()
        assert loop.time() - began > 0.5  # 0.2 and 0.4
        await one.close()


async def test_nothing_listens() -> None:
    with pytest.raises(ConnectError, match=values("127.0.0.1:9")):
        await client("tcp://127.0.0.1:9").connect()


@pytest.mark.parametrize("revision", ["2026-07-28", "2025-11-25"])
async def test_a_server_without_resources_and_prompts_has_none(revision: str) -> None:
    app = Server("tools only")

    @app.tool
    def one() -> int:
        return 1

    async with Client(app, protocol_version=revision) as client:
        assert [tool.name for tool in await client.list_tools()] == ["one"]
        assert await client.list_resources() == []
        assert await client.list_resource_templates() == []
        assert await client.list_prompts() == []


# Closing that takes its time


@asynccontextmanager
async def slow_to_leave() -> AsyncIterator[tuple[Client, ScriptedServer, asyncio.Event]]:
    """A client, connected, that gets away from its server only when the event is set."""
    gate = asyncio.Event()

    async def left(_: Any) -> bytes:
        await gate.wait()
        return encode_http_reply(b"", status=204)

    script = ScriptedServer("handshake", session="s", http_delete_reaction=left)
    async with serve_over_http(script) as at, Client(at, timeout=Timeouts(close=60)) as one:
        yield one, script, gate
        gate.set()


def _left(script: ScriptedServer) -> int:
    return sum(verb == "DELETE" for verb, _ in script.heads)


def _elsewhere(one: Client) -> Any:
    """A call from another loop."""

    async def call() -> Any:
        return await one.call("go")

    return asyncio.run(call())


async def test_a_connect_while_the_client_closes_succeeds_afterwards() -> None:
    async with slow_to_leave() as (one, script, gate), asyncio.timeout(10):
        closing = [asyncio.create_task(one.close()) for _ in range(2)]
        await wait_until(lambda: _left(script))
        connecting = asyncio.create_task(one.connect())
        await run_pending_callbacks()
        assert not connecting.done()
        assert not any(task.done() for task in closing)
        gate.set()
        await asyncio.gather(connecting, *closing)
        assert _left(script) == 1
        assert one.is_connected
        assert await asyncio.to_thread(_elsewhere, one) == "ok"


async def test_a_cancelled_close_does_not_wait_for_the_server() -> None:
    async with slow_to_leave() as (one, script, _), asyncio.timeout(10):
        closing = asyncio.create_task(one.close())
        await wait_until(lambda: _left(script))
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()
        assert not one.is_connected
        await one.connect()
        assert await one.call("go") == "ok"


async def test_a_closing_that_is_cancelled_before_it_began_closes_nothing_by_half() -> None:
    async with slow_to_leave() as (one, _, gate), asyncio.timeout(10):
        gate.set()
        closing = asyncio.create_task(one.close())
        closing.cancel()
        await asyncio.wait([closing])
        await asyncio.sleep(0)
        closing = asyncio.create_task(one.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        await one.connect()
        assert await one.call("go") == "ok"


async def test_a_server_that_asks_for_nothing_is_called_once() -> None:
    script = ScriptedServer("stateless", {"tools/call": {"resultType": "input_required"}})
    async with serve_on_socket(script) as at, client(at) as one:
        with pytest.raises(InvalidResult):
            await one.call_tool("x")
    assert script.count("tools/call") == 1


async def test_codes_without_a_meaning_are_not_retried() -> None:
    script = ScriptedServer("stateless", {"resources/read": ErrorReply(-32004, "no such thing")})
    async with serve_on_socket(script) as at, client(at) as one:
        with pytest.raises(RemoteError) as caught:
            await one.read("a://t")
    assert type(caught.value) is RemoteError
    assert script.count("resources/read") == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what a closed loop leaves behind
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_client_whose_loop_is_gone_owes_nothing_to_what_waited_there() -> None:
    _close_a_loop_under_a_client()
    gc.collect()  # here, where what was left behind is expected


def _close_a_loop_under_a_client() -> None:
    env = {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    handled = list[object]()

    async def on_log(_: object) -> None:
        await asyncio.Event().wait()

    async def progress(*told: object) -> None:
        handled.append(told)

    one = Client(server_command(), env=env, protocol_version=NEWEST_HANDSHAKE, log_handler=on_log)
    listener = one.listen()

    async def first() -> None:
        await listener.__aenter__()
        await one.call("speak")

    async def second() -> None:
        async with asyncio.timeout(20):
            await one.call_tool("count", {"to": 3}, progress_handler=progress)
            assert len(handled) == 3
            assert [change async for change in listener] == []
            await one.close()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(first())
    loop.close()
    lost = [child for child in psutil.Process().children() if "full_server.py" in " ".join(child.cmdline())]
    asyncio.run(second())
    for child in lost:  # nobody is left to stop it before this program ends
        reaper.remove(child.pid)
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
            child.wait()
