"""Test the built-in middleware on a server and on a client."""

import itertools
import json
import logging
from typing import Any

import pytest

from dovetail import CallToolResult, Client, Context, RemoteError, Server, TextContent, ToolError, testing
from dovetail.auth import Principal
from dovetail.errors import InsufficientScope, InternalError, ProtocolError, ServerBusy
from dovetail.middleware import (
    LogRequests,
    MaskErrors,
    RateLimit,
    ResponseCache,
    ResponseLimit,
    Retry,
    Timing,
    rate_limit,
)
from dovetail.middleware import cache as response_cache
from dovetail.protocol.exchange import Caller, Exchange, IncomingExchange
from dovetail.protocol.middleware import mark_ignores_results
from dovetail.server.server import get_dispatcher
from dovetail.wire.revisions import NEWEST_REVISION
from support.mentions import mentions


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def server(*middleware: Any) -> Server:
    app = Server("batteries", middleware=middleware)
    runs = itertools.count(1)

    @app.tool
    async def count(word: str = "") -> str:
        return f"{word}{next(runs)}"

    @app.tool
    async def flaky(failures: int) -> int:
        run = next(runs)
        if run <= failures:
            raise ConnectionError("upstream is away")
        return run

    @app.tool
    async def fail(password: str) -> str:
        raise ToolError("the database at db.internal said no")

    @app.tool(output_schema=None)
    async def long(size: int, structured: bool = False) -> Any:
        return {"text": "é" * size} if structured else "é" * size

    return app


def exchange(subject: str | None = None, method: str = "tools/call") -> Exchange:
    principal = None if subject is None else Principal(subject)
    return Exchange(1, method, {"name": "count"}, {}, Caller("2026-07-28", True, principal=principal))


# Logging


async def test_each_request_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "dovetail.requests"):
        async with Client(server(LogRequests(include_arguments=True))) as client:
            await client.call("count", word="a")
            await client.call_tool("fail", {"password": "hunter2"})
            with pytest.raises(RemoteError):
                await client.call("nothing")
    lines = [one.getMessage() for one in caplog.records if "tools/call" in one.getMessage()]
    assert lines[0].startswith("tools/call count ok ")
    assert lines[0].endswith('{"word":"a"}')
    assert lines[1].startswith("tools/call fail failed ")
    assert "hunter2" not in caplog.text
    assert lines[2].startswith("tools/call nothing refused -32602 ")


async def test_lines_of_json(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "own"):
        async with Client(server(LogRequests("own", json=True))) as client:
            await client.call("count")
    record = caplog.records[-1]
    found = json.loads(record.getMessage())
    assert {name: found[name] for name in ("method", "about", "caller", "outcome")} == {
        "method": "tools/call",
        "about": "count",
        "caller": "",
        "outcome": "ok",
    }
    assert vars(record)["request"]["ms"] == found["ms"]


@pytest.mark.parametrize(
    ("principal", "address", "end"),
    [
        (None, None, "2001:db8::/64"),
        (None, "2001:db8::7", "2001:db8::7"),
        ("ada", "127.0.0.1", "ada 127.0.0.1"),
        ("ada", "\x1b[1m", "ada \\x1b[1m"),
    ],
)
async def test_a_line_has_the_complete_address(
    principal: str | None, address: str | None, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(exchange: Exchange) -> object:
        return None

    caller = Caller(NEWEST_REVISION, is_stateless=True, principal=None if principal is None else Principal(principal))
    exchange = IncomingExchange(1, "ping", {}, {}, caller, client_address=address, origin="2001:db8::/64")
    with caplog.at_level(logging.INFO, "dovetail.requests"):
        await LogRequests()(exchange, work)
    assert caplog.records[-1].getMessage().endswith(f" ms {end}")


# Timing


async def test_durations_are_counted_on_both_sides() -> None:
    theirs, ours = Timing(), Timing()
    async with Client(server(theirs), middleware=[ours]) as client:
        for _ in range(3):
            await client.call("count")
        await client.call_tool("fail", {"password": ""})
    for timing in (theirs, ours):
        seen = timing["tools/call", "count"]
        assert (seen.count, seen.failures) == (3, 0)
        assert 0 < seen.mean <= seen.slowest
        assert seen.percentile(50) <= seen.percentile(100) <= seen.slowest
        assert timing["tools/call", "fail"].failures == 1
    assert ours["tools/call", "nothing"].count == 0


async def test_names_made_up_by_callers_do_not_fill_memory() -> None:
    timing = Timing()

    async def call_next(exchange: Exchange) -> None: ...

    for number in range(1500):
        one = exchange()
        one.params["name"] = f"made-up-{number}"
        await timing(one, call_next)
    assert len(timing.stats) == 1001
    assert timing["tools/call", "(others)"].count == 500


# Rate limit


async def test_each_principal_has_its_own_share(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(rate_limit, "monotonic", clock)
    limit = RateLimit(2, per=10.0)

    async def call_next(exchange: Exchange) -> str:
        return "done"

    for _ in range(2):
        assert await limit(exchange("ada"), call_next) == "done"
    with pytest.raises(ServerBusy) as refused:
        await limit(exchange("ada"), call_next)
    assert refused.value.retry_after == pytest.approx(5.0)
    assert await limit(exchange("bob"), call_next) == "done"
    assert await limit(exchange("ada", "tools/list"), call_next) == "done"  # does not count
    clock.now += 5.0
    assert await limit(exchange("ada"), call_next) == "done"
    with pytest.raises(ServerBusy):
        await limit(exchange("ada"), call_next)


async def test_each_connection_to_a_socket_has_its_own_share() -> None:
    app = server(RateLimit(2, per=600.0))
    async with testing.serve(app, transport="unix") as target, Client(target) as ada, Client(target) as bob:
        assert [await ada.call("count") for _ in range(2)] == ["1", "2"]
        with pytest.raises(RemoteError):
            await ada.call("count")
        assert await bob.call("count") == "3"


async def test_a_client_waits_for_its_turn() -> None:
    async with Client(server(), middleware=[RateLimit(200, burst=1)]) as client:
        assert [await client.call("count") for _ in range(3)] == ["1", "2", "3"]


def test_a_burst_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="burst"):
        RateLimit(5, burst=0)


# What another server answered


async def test_results_of_a_server_elsewhere_are_seen() -> None:
    far = Server("far")

    @far.tool
    async def fail() -> str:
        raise ToolError("password is hunter2")

    @far.tool
    async def big() -> str:
        return "x" * 10_000

    @far.tool
    async def which(ctx: Context) -> str:
        return await ctx.elicit("Which?", str)

    @far.resource("big:all")
    def everything() -> str:
        return "x" * 10_000

    timing = Timing()
    app = Server("near", middleware=[MaskErrors(), timing, ResponseLimit(1000)])
    app.mount(Client(far))
    async with Client(app, elicitation_handler=lambda _: {"value": "this"}) as client:
        result = await client.call_tool("fail", {})
        assert result.is_error
        assert "hunter2" not in str(result.content)
        assert timing["tools/call", "fail"].failures == 1
        assert len(str((await client.call_tool("big", {})).content)) < 1200
        with pytest.raises(RemoteError):
            await client.read("big:all")
        assert await client.call("which") == "this"


async def test_middleware_that_does_not_look_leaves_them_as_they_came() -> None:
    @mark_ignores_results
    async def passing(exchange: Exchange, call_next: Any) -> Any:
        found.append(await call_next(exchange))
        return found[-1]

    found: list[Any] = []
    far = Server("far")
    far.add_tool(lambda: "x", name="x")
    app = Server("near", middleware=[passing])
    app.mount(Client(far))
    async with Client(app) as client:
        await client.call("x")
    assert isinstance(found[-1], bytes)


# Retry


async def test_a_name_that_is_none_is_refused_as_ever() -> None:
    async with Client(server(Retry(["flaky"]))) as client:
        with pytest.raises(RemoteError, match="name"):
            await client.request("tools/call", {"name": {}})


async def test_what_failed_for_a_passing_reason_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL, "dovetail"):
        async with Client(server(Retry(["flaky"], delay=0.001))) as client:
            assert await client.call("flaky", failures=2) == 3
        async with Client(server(Retry(["flaky"], max_retries=1, delay=0.001))) as client:
            with pytest.raises(ToolError):
                await client.call("flaky", failures=2)
        app = server(Retry(delay=0.001))  # nobody said that the tool may run twice
        async with Client(app) as client:
            with pytest.raises(ToolError):
                await client.call("flaky", failures=1)
            assert await client.call("flaky", failures=1) == 2
        app = server(Retry(["fail"], delay=0.001))
        timing = Timing()
        app.middleware(timing)
        async with Client(app) as client:
            await client.call_tool("fail", {"password": ""})
        assert timing["tools/call", "fail"].count == 1  # what an author meant to say is no passing reason


# Size


async def test_long_texts_are_cut_and_say_so() -> None:
    async with Client(server(ResponseLimit(1000))) as client:
        assert await client.call("long", size=300) == "é" * 300
        result = await client.call_tool("long", {"size": 5000})
        text = result.content[0].text  # pyright: ignore[reportAttributeAccessIssue]
        assert len(text.encode()) <= 1000
        assert text.startswith("é" * 100)
        assert mentions(text, 5000)
        result = await client.call_tool("long", {"size": 5000, "structured": True})
        assert result.is_error
        assert mentions(result.content, 1000)


# Caching


async def test_results_are_kept_for_a_while_and_for_one_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(response_cache, "monotonic", clock)
    cache = ResponseCache(["count"], ttl=60)
    async with Client(server(cache)) as client:
        assert [await client.call("count", word=word) for word in "aabb"] == ["a1", "a1", "b2", "b2"]
        clock.now += 61
        assert await client.call("count", word="a") == "a3"
        cache.clear()
        assert await client.call("count", word="a") == "a4"

    async def call_next(one: Exchange) -> Any:
        return CallToolResult(content=[TextContent(text=str(one.caller.principal))])

    for principal in ("ada", "bob"):
        assert await cache(exchange(principal), call_next) == CallToolResult(content=[TextContent(text=principal)])
    shared = ResponseCache(["count"], shared=True)
    for principal in ("ada", "bob"):
        assert await shared(exchange(principal), call_next) == CallToolResult(content=[TextContent(text="ada")])


async def test_failures_and_other_tools_are_not_kept() -> None:
    with pytest.raises(TypeError, match=r"\["):
        ResponseCache("count")
    app = server(ResponseCache(["flaky"]))
    async with Client(app) as client:
        with pytest.raises(ToolError):
            await client.call("flaky", failures=1)
        assert await client.call("flaky", failures=1) == 2
        assert await client.call("count") != await client.call("count")


# Masking


async def test_what_the_protocol_says_is_not_masked() -> None:
    app = server(MaskErrors())

    @app.tool(scopes=["admin"])
    async def locked() -> str:
        return ""

    one = IncomingExchange(1, "tools/call", {"name": "locked"}, {}, Caller(NEWEST_REVISION, is_stateless=True))
    with pytest.raises(InsufficientScope):
        await get_dispatcher(app).handle(one)


async def test_an_error_of_another_server_is_masked() -> None:
    async def call_next(_: Exchange) -> Any:
        raise ProtocolError("hunter2")

    with pytest.raises(InternalError) as caught:
        await MaskErrors()(exchange("ada"), call_next)
    assert "hunter2" not in caught.value.message


async def test_failures_say_nothing_but_a_reference(caplog: pytest.LogCaptureFixture) -> None:
    async with Client(server(MaskErrors("No luck."))) as client:
        result = await client.call_tool("fail", {"password": ""})
        text = result.content[0].text  # pyright: ignore[reportAttributeAccessIssue]
        assert text.startswith("No luck. [")
        reference = text.removeprefix("No luck. [").removesuffix("]")
        assert f"[{reference}]: the database at db.internal said no" in caplog.text
        result = await client.call_tool("count", {"wrod": 1})
        assert "wrod" in str(result.content)  # what a model can repair it is told
        with pytest.raises(RemoteError, match="Unknown tool"):
            await client.call("nothing")
    async with Client(server(MaskErrors(allow=(ToolError,)))) as client:
        assert "db.internal" in str((await client.call_tool("fail", {"password": ""})).content)
