"""Test the client's features over every transport and in every protocol version."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dovetail import (
    ClientLimits,
    ElicitationCancelled,
    ElicitationDeclined,
    MCPError,
    RemoteError,
    Timeouts,
    ToolError,
)
from dovetail.errors import ConnectionLost, InputRequestError, NotFound, NotSupported, RequestTimeout
from dovetail.types import CreateMessageRequestParams, ElicitRequestParams
from support.fake_service import wait_until
from support.full_server import (
    DRAFT,
    ERA_CASES,
    FAST_TRANSPORT_CASES,
    NEWEST_HANDSHAKE,
    SLOW_TRANSPORT_CASES,
    STATELESS,
    TRANSPORTS,
    Seat,
    connect_client,
    wait_for_record,
)
from support.mentions import values

everywhere = pytest.mark.parametrize(("way", "revision"), FAST_TRANSPORT_CASES)
eras = pytest.mark.parametrize(("way", "revision"), ERA_CASES)


@everywhere
async def test_a_client_finds_out_or_insists_and_knows_its_server(way: str, revision: str) -> None:
    async with connect_client(way, revision) as client:
        assert client.is_connected
        assert client.protocol_version == revision
        assert client.instructions == "Try it all."
        assert client.server_info is not None
        assert (client.server_info.name, client.server_info.version) == ("everything", "1.2")
        assert client.server_capabilities.tools is not None
        await client.ping()
        assert revision in (await client.discover()).supported_versions
    assert not client.is_connected
    assert client.protocol_version is None


@pytest.mark.parametrize("way", TRANSPORTS)
async def test_left_alone_it_speaks_the_newest_the_transport_has(way: str) -> None:
    timeouts = Timeouts(discover=30)  # a busy machine may take long to start the server
    async with connect_client(way, timeout=timeouts) as client:
        assert client.protocol_version == (STATELESS if way != "sse" else NEWEST_HANDSHAKE)
        assert await client.call("add", a=2, b=3) == 5


@everywhere
async def test_calls_give_values(way: str, revision: str) -> None:
    async with connect_client(way, revision) as client:
        assert await client.call("echo", text="grüß dich\n") == "grüß dich\n"
        assert await client.call("add", into=int, a=2) == 3
        assert await client.call("point", into=Seat) == Seat(7)
        result = await client.call_tool("failing", {"why": "no luck"})
        assert result.is_error
        with pytest.raises(ToolError, match=r"it: tools/call failing: no luck") as caught:
            await client.call("failing", why="no luck")
        assert caught.value.result == result
        with pytest.raises(MCPError) as unknown:
            await client.call("nothing")
        assert isinstance(unknown.value, NotFound if revision == DRAFT else RemoteError)
        assert unknown.value.step == "tools/call nothing"


@everywhere
async def test_lists_are_whole_and_pages_are_to_be_had(way: str, revision: str) -> None:
    async with connect_client(way, revision) as client:
        names = [one.name for one in await client.list_tools()]
        assert len(names) == len(set(names)) > 8
        assert {"echo", "roots"} <= set(names)
        page = await client.list_tools_page()
        assert [one.name for one in page.tools] == names[:4]
        second = await client.list_tools_page(page.next_cursor)
        assert [one.name for one in second.tools] == names[4:8]
        assert len(await client.list_resources()) == 10
        assert (await client.list_resources_page()).next_cursor is not None
        assert [one.uri_template for one in await client.list_resource_templates()] == ["note://{name}"]
        assert len((await client.list_resource_templates_page()).resource_templates) == 1
        assert [one.name for one in await client.list_prompts()] == ["packing"]
        assert [one.name for one in (await client.list_prompts_page()).prompts] == ["packing"]


@everywhere
async def test_resources_prompts_and_completions(way: str, revision: str) -> None:
    async with connect_client(way, revision) as client:
        assert await client.read("note://trees") == "about trees"
        assert await client.read("file:///logo") == b"\x00\x01"
        assert (await client.read_resource("page://3", timeout=5)).contents[0].text == "text 3"
        with pytest.raises(RemoteError) as missing:
            await client.read("missing://x")
        assert missing.value.step == "resources/read missing://x"
        prompt = await client.get_prompt("packing", {"city": "Oslo"})
        content: Any = prompt.messages[0].content
        assert content.text == "What to pack for Oslo?"
        assert (await client.complete("city", "Os", prompt="packing")).values == ["Oslo", "Osaka"]
        with pytest.raises(ValueError, match=r"prompt=.*template="):
            await client.complete("city", "Os")


@everywhere
async def test_progress_is_reported_in_order_and_before_the_result(way: str, revision: str) -> None:
    told: list[Any] = []

    async def tell(done: float, total: float | None, text: str | None) -> None:
        await asyncio.sleep(0)
        told.append((done, total, text))

    async with connect_client(way, revision) as client:
        assert (await client.call_tool("count", {"to": 3}, progress_handler=tell)).is_error is not True
        expected = [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]
        # The first revision's progress has no words.
        assert told == (expected if revision != "2024-11-05" else [(*one[:2], None) for one in expected])


@eras
async def test_progress_extends_one_limit_and_not_the_other(way: str, revision: str) -> None:
    async with connect_client(way, revision) as client:
        await client.call("echo", text="warm")
        result = await client.call_tool("count", {"to": 8, "pause": 0.1}, timeout=0.4)
        assert not result.is_error
        with pytest.raises(RequestTimeout, match="total limit") as caught:
            await client.call_tool("count", {"to": 1000, "pause": 0.05}, timeout=5, total_timeout=0.3)
        assert caught.value.server == "it"
        assert await client.call("echo", text="still here") == "still here"


@pytest.mark.parametrize(("way", "revision"), FAST_TRANSPORT_CASES + SLOW_TRANSPORT_CASES)
async def test_a_time_out_reaches_the_server(way: str, revision: str) -> None:
    async with connect_client(way, revision) as client:
        with pytest.raises(RequestTimeout, match=values("it", "tools/call wait", "0.2 s")):
            await client.call_tool("wait", {"name": "a"}, timeout=0.2)
        assert await wait_for_record(client, "a cancelled") == 1


@pytest.mark.parametrize(("way", "revision"), FAST_TRANSPORT_CASES + SLOW_TRANSPORT_CASES)
async def test_a_cancelled_call_reaches_the_server(way: str, revision: str) -> None:
    async with connect_client(way, revision) as client:
        task = asyncio.get_running_loop().create_task(client.call("wait", name="b"))
        await wait_for_record(client, "b begun")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await wait_for_record(client, "b cancelled") == 1


@eras
async def test_leaving_cancels_what_is_running(way: str, revision: str) -> None:
    async with connect_client(way, revision) as client:
        task = asyncio.get_running_loop().create_task(client.call("wait", name="c"))
        await wait_for_record(client, "c begun")
        await client.close()
        with pytest.raises(MCPError):
            await asyncio.wait_for(task, 5)
        with pytest.raises(ConnectionLost):
            await client.call("echo", text="x")
        await client.connect()
        assert await client.call("echo", text="again") == "again"
        if way != "stdio":  # where the process is another one now
            await wait_for_record(client, "c cancelled")


@everywhere
async def test_log_messages_arrive_at_their_level(way: str, revision: str) -> None:
    heard: list[Any] = []
    async with connect_client(way, revision, log_handler=heard.append, log_level="warning") as client:
        assert await client.call("speak") == "said"
        await wait_until(lambda: heard)
        assert [(one.level, one.data) for one in heard] == [("warning", {"loud": True})]
        heard.clear()
        await client.set_logging_level("debug")
        await client.call("speak")
        await wait_until(lambda: len(heard) > 1)
        assert [one.level for one in heard] == ["debug", "warning"]


# Questions

ASKS = [(way, revision) for way, revision in FAST_TRANSPORT_CASES if revision not in ("2024-11-05", "2025-03-26")]
asking = pytest.mark.parametrize(("way", "revision"), ASKS)


@asking
async def test_a_form_is_answered_with_its_defaults(way: str, revision: str) -> None:
    asked: list[ElicitRequestParams] = []

    def answer(question: ElicitRequestParams) -> dict[str, Any]:
        asked.append(question)
        return {"row": 12}

    async with connect_client(way, revision, elicitation_handler=answer) as client:
        assert await client.call("book") == "row 12, window, none"
        assert asked[0].message == "Which seat?"
        assert set((asked[0].requested_schema or {})["properties"]) == {"row", "window", "meal"}


@asking
@pytest.mark.parametrize(
    ("no", "as_if"),
    [
        (ElicitationDeclined, ElicitationDeclined),
        (ElicitationCancelled, ElicitationCancelled),
        (None, ElicitationDeclined),
    ],
)
async def test_a_user_may_say_no(way: str, revision: str, no: type[Exception] | None, as_if: type[Exception]) -> None:
    async def refuse(question: ElicitRequestParams) -> None:
        if no is not None:
            raise no

    async with connect_client(way, revision, elicitation_handler=refuse) as client:
        with pytest.raises(ToolError, match=str(as_if())):
            await client.call("book")


@asking
async def test_a_wrong_answer_never_leaves(way: str, revision: str) -> None:
    async with connect_client(way, revision, elicitation_handler=lambda _: {"row": "twelve"}) as client:
        with pytest.raises(InputRequestError, match=values("it", "tools/call book", "row")):
            await client.call("book")
        assert await client.call("echo", text="fine") == "fine"


@asking
async def test_a_handler_that_fails_fails_the_call_and_nothing_else(way: str, revision: str) -> None:
    def broken(_: ElicitRequestParams) -> dict[str, Any]:
        raise ZeroDivisionError("mine")

    async with connect_client(way, revision, elicitation_handler=broken) as client:
        with pytest.raises(
            InputRequestError, match=values("it", "tools/call book", "elicitation_handler", "ZeroDivisionError: mine")
        ) as e:
            await client.call_tool("book")
        assert isinstance(e.value.__cause__, ZeroDivisionError)
        assert await client.call("echo", text="fine") == "fine"


@everywhere
@pytest.mark.parametrize(("handler", "tool"), [("sampling_handler", "think"), ("roots", "roots")])
async def test_the_handler_that_failed_is_named(way: str, revision: str, handler: str, tool: str) -> None:
    def broken(*_: Any) -> Any:
        raise LookupError

    async with connect_client(way, revision, **{handler: broken}) as client:
        with pytest.raises(InputRequestError, match=values(handler, "LookupError")):
            await client.call(tool)
        assert await client.call("echo", text="fine") == "fine"


@everywhere
async def test_an_unanswered_request_is_an_error_on_both_sides(way: str, revision: str) -> None:
    async with connect_client(way, revision) as client:
        with pytest.raises((MCPError, ToolError)):
            await client.call("book")
        with pytest.raises((MCPError, ToolError)):
            await client.call("think")
        assert await client.call("echo", text="fine") == "fine"


@everywhere
async def test_a_model_is_asked(way: str, revision: str) -> None:
    asked: list[CreateMessageRequestParams] = []

    def think(question: CreateMessageRequestParams) -> str:
        asked.append(question)
        return "forty-two"

    async with connect_client(way, revision, sampling_handler=think) as client:
        assert await client.call("think") == "forty-two"
        assert asked[0].max_tokens == 10


@everywhere
async def test_roots_are_sent(way: str, revision: str, tmp_path: Path) -> None:
    async with connect_client(way, revision, roots=[tmp_path, "file:///x"]) as client:
        assert await client.call("roots", into=list[str]) == [tmp_path.as_uri(), "file:///x"]
        await client.send_roots_list_changed()


URLS = [(way, revision) for way, revision in FAST_TRANSPORT_CASES if revision in (STATELESS, NEWEST_HANDSHAKE, DRAFT)]


@pytest.mark.parametrize(("way", "revision"), URLS)
async def test_a_url_is_handed_on_only_if_it_is_harmless(way: str, revision: str) -> None:
    shown: list[str | None] = []

    def visit(question: ElicitRequestParams) -> None:
        shown.append(question.url)

    async with connect_client(way, revision, url_elicitation_handler=visit) as client:
        assert await client.call("visit", url="https://pay.example/1") == "paid"
        for url in ("javascript:alert(1)", "file:///etc/passwd", "http://pay.example", "https://u@pay.example"):
            with pytest.raises((MCPError, ToolError)):
                await client.call("visit", url=url)
        assert shown == ["https://pay.example/1"]


@asking
async def test_the_time_of_a_user_counts_for_no_limit(way: str, revision: str) -> None:
    async def slowly(question: ElicitRequestParams) -> dict[str, Any]:
        await asyncio.sleep(0.5)
        return {"row": 1}

    async with connect_client(way, revision, elicitation_handler=slowly) as client:
        await client.call("echo", text="warm")
        result = await client.call_tool("book", timeout=0.3, total_timeout=0.4)
        assert not result.is_error
        with pytest.raises(RequestTimeout):  # and afterwards the limits count again
            await client.call_tool("wait", {"name": "d"}, timeout=0.2)


@pytest.mark.parametrize("way", ["memory", "http"])
async def test_rounds_are_limited(way: str) -> None:
    options: dict[str, Any] = {"elicitation_handler": lambda _: {"row": 1}, "limits": ClientLimits(max_input_rounds=3)}
    async with connect_client(way, STATELESS, **options) as client:
        assert await client.call("stubborn", rounds=3) == "satisfied"
        with pytest.raises(InputRequestError, match=values(3)):
            await client.call("stubborn", rounds=4)


# Changes


@everywhere
async def test_changes_are_heard(way: str, revision: str) -> None:
    async with connect_client(way, revision) as client, client.listen(tools=True, uris=["page://1"]) as changes:
        assert changes.acknowledged_filter is not None
        await client.call("change", uri="page://1")
        await client.call("change", uri="page://2")
        await client.call("change")
        heard: list[Any] = []
        async with asyncio.timeout(5):
            async for change in changes:
                heard.append((change.kind, change.uri, change.maybe_missed))
                if change.kind == "tools":
                    break
        assert heard == [("resource", "page://1", False), ("tools", None, False)]


@pytest.mark.parametrize(
    ("named", "tools", "prompts", "resources"),
    [
        ({}, True, True, True),
        ({"tools": True}, True, False, False),
        ({"prompts": False}, True, False, True),
        ({"uris": ["page://1"]}, False, False, False),
        ({"uris": "page://1"}, False, False, False),
        ({"uris": ["page://1"], "resources": True}, False, False, True),
        ({"uris": ["page://1"], "tools": False}, False, False, False),
    ],
)
async def test_what_is_named_is_heard(named: Any, tools: bool, prompts: bool, resources: bool) -> None:
    async with connect_client("memory") as client, client.listen(**named) as changes:
        agreed = changes.acknowledged_filter
    assert agreed is not None
    flags = (agreed.tools_list_changed, agreed.prompts_list_changed, agreed.resources_list_changed)
    assert [bool(flag) for flag in flags] == [tools, prompts, resources]
    assert agreed.resource_subscriptions == (["page://1"] if "uris" in named else None)


@eras
async def test_listening_ends_with_the_client(way: str, revision: str) -> None:
    async with connect_client(way, revision) as client:
        listening = client.listen()
        async with listening as changes:
            task = asyncio.get_running_loop().create_task(_all_of(changes))
            await asyncio.sleep(0)
            await client.close()
            assert await asyncio.wait_for(task, 5) == []


async def _all_of(changes: Any) -> list[Any]:
    return [change async for change in changes]


@eras
async def test_many_calls_at_once_get_their_own_answers(way: str, revision: str) -> None:
    async with connect_client(way, revision) as client:
        answers = await asyncio.gather(*(client.call("echo", text=str(number)) for number in range(100)))
        assert answers == [str(number) for number in range(100)]


@eras
async def test_a_large_answer_arrives(way: str, revision: str) -> None:
    async with connect_client(way, revision) as client:
        text = "ü" * 1_500_000
        assert await client.call("echo", text=text) == text


@pytest.mark.parametrize(("way", "revision"), SLOW_TRANSPORT_CASES)
async def test_something_of_everything(way: str, revision: str, tmp_path: Path) -> None:
    """What the tests above show for other transports, in one conversation: starting a process takes its time."""
    heard: list[Any] = []
    answers: dict[str, Any] = {
        "elicitation_handler": lambda _: {"row": 2},
        "sampling_handler": lambda _: "forty-two",
        "roots": [tmp_path],
    }
    async with connect_client(way, revision, log_handler=heard.append, log_level="warning", **answers) as client:
        assert client.protocol_version == revision
        assert client.instructions == "Try it all."
        await client.ping()
        assert len(await client.list_tools()) > 8
        assert len(await client.list_resources()) == 10
        assert await client.call("point", into=Seat) == Seat(7)
        assert await client.read("file:///logo") == b"\x00\x01"
        assert (await client.complete("city", "Os", prompt="packing")).values == ["Oslo", "Osaka"]
        assert (await client.get_prompt("packing", {"city": "Oslo"})).messages
        await client.call("speak")
        await wait_until(lambda: heard)
        assert await client.call("book") == "row 2, window, none"
        assert await client.call("think") == "forty-two"
        assert await client.call("roots") == [tmp_path.as_uri()]
        async with client.listen(uris=["page://1"]) as changes:
            await client.call("change", uri="page://1")
            async with asyncio.timeout(5):
                assert (await anext(aiter(changes))).uri == "page://1"


@eras
async def test_structured_content_is_held_against_the_schema(way: str, revision: str) -> None:
    """Our server promises what it keeps; a result that fits passes, listed or not."""
    async with connect_client(way, revision) as client:
        await client.list_tools()
        assert await client.call("point") == {"row": 7, "window": True, "meal": "none"}


@eras
async def test_extensions_have_their_way(way: str, revision: str) -> None:
    async with connect_client(way, revision) as client:
        assert (await client.request("prompts/list"))["prompts"][0]["name"] == "packing"
        with pytest.raises(RemoteError) as caught:
            await client.request("none/such", {"a": 1}, timeout=5)
        assert caught.value.code == -32601
        assert caught.value.step == "none/such"


@pytest.mark.parametrize(("way", "revision"), [one for one in ERA_CASES if one[1] != STATELESS])
async def test_what_only_sessions_have(way: str, revision: str) -> None:
    async with connect_client(way, revision) as client:
        await client.subscribe_resource("page://1")
        await client.unsubscribe_resource("page://1")
        await client.notify("notifications/none", {"a": 1})
        await client.shutdown()
        assert not client.is_connected


async def test_what_only_sessions_have_is_refused_elsewhere_without_a_word() -> None:
    async with connect_client("memory", STATELESS) as client:
        for work in (client.subscribe_resource("page://1"), client.unsubscribe_resource("page://1"), client.shutdown()):
            with pytest.raises(NotSupported, match=STATELESS):
                await work
        assert client.is_connected
