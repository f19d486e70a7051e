"""What a client knows of tools: learnt from lists, and right again after a reconnect."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import CallToolResult, Client, ClientLimits, Interrupted, ResultError, Tool, ToolAnnotations
from dovetail.client.knowing import Tools
from mentions import mentions, values
from stand_ins import CLOSE, ERAS, Failure, Play, on_socket, text, tool

SOON = ClientLimits(reconnect_after=0.01)
both = pytest.mark.parametrize("era", ERAS)

HEADED = {"type": "object", "properties": {"city": {"type": "string", "x-mcp-header": "City"}}}
BROKEN = {"type": "object", "properties": {"city": {"type": "string", "x-mcp-header": "not a name"}}}


def made(name: str, schema: dict[str, Any] | None = None, **more: Any) -> Tool:
    return Tool(name=name, input_schema=schema or {"type": "object"}, **more)


# A list as it is learnt


def test_what_is_harmless_is_said_by_either_hint() -> None:
    tools = Tools()
    listed = [
        made("reads", annotations=ToolAnnotations(read_only_hint=True)),
        made("puts", annotations=ToolAnnotations(idempotent_hint=True)),
        made("acts", annotations=ToolAnnotations(read_only_hint=False, idempotent_hint=False)),
        made("silent"),
    ]
    tools.usable(listed, "it", mirrors=False)
    assert [known.safe for known in map(tools.get, ("reads", "puts", "acts", "silent")) if known] == [
        True,
        True,
        False,
        False,
    ]


def test_a_broken_header_spoils_a_tool_only_where_headers_are_sent(caplog: pytest.LogCaptureFixture) -> None:
    tools = Tools()
    assert [one.name for one in tools.usable([made("a", BROKEN)], "it", mirrors=False)] == ["a"]
    assert tools.usable([made("a", BROKEN), made("b", HEADED)], "it", mirrors=True) == [made("b", HEADED)]
    assert tools.get("a") is None
    assert mentions(caplog.text, "tool", "a")
    known = tools.get("b")
    assert known is not None
    assert known.mirrored({"city": "Oslo"})
    assert known.mirrored({}) == []


def test_what_is_listed_again_unchanged_is_not_compiled_again() -> None:
    tools = Tools()
    tools.usable([made("a")], "it", mirrors=True)
    first = tools.get("a")
    tools.usable([made("a")], "it", mirrors=True)
    assert tools.get("a") is first
    tools.usable([made("a", HEADED)], "it", mirrors=True)
    assert tools.get("a") is not first


names = st.sampled_from("abc")
steps = st.lists(
    st.tuples(st.just("page"), st.frozensets(names))
    | st.tuples(st.just("all"), st.frozensets(names))
    | st.tuples(st.sampled_from(["outdate", "clear"]), st.none())
)


@given(steps)
def test_what_is_known_outdated_or_unknown(said: list[tuple[str, frozenset[str] | None]]) -> None:
    """Known is what was listed since the last reconnect, outdated what was known before it and not all listed since."""
    tools, known, outdated = Tools(), set[str](), set[str]()
    for step, listed in said:
        if step == "outdate":
            tools.outdate()
            outdated |= known
            known = set()
        elif step == "clear":
            tools.clear()
            known, outdated = set(), set()
        else:
            tools.usable([made(name) for name in listed or ()], "it", mirrors=False)
            known |= listed or frozenset()
            if step == "all":
                tools.up_to_date()
                outdated = set()
        assert {name for name in "abc" if tools.get(name) is not None} == known
        assert {name for name in "abc" if tools.outdated(name)} == outdated


def test_a_result_is_held_against_the_schema_unless_it_says_it_failed() -> None:
    tools = Tools()
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tools.usable([made("a", output_schema=schema)], "it", mirrors=False)
    known = tools.get("a")
    assert known is not None
    known.check(CallToolResult(content=[], structured_content={"n": 1}), "it")
    known.check(CallToolResult(content=[], is_error=True), "it")
    with pytest.raises(ResultError, match=values("n")):
        known.check(CallToolResult(content=[], structured_content={"n": "1"}), "it")
    with pytest.raises(ResultError):
        known.check(CallToolResult(content=[]), "it")


def test_what_a_user_does_to_a_tool_changes_nothing_here() -> None:
    tools = Tools()
    schema: dict[str, Any] = {"type": "object", "required": ["n"]}
    (listed,) = tools.usable([made("a", output_schema=schema)], "it", mirrors=False)
    assert listed.output_schema is not None
    listed.output_schema.clear()
    known = tools.get("a")
    assert known is not None
    with pytest.raises(ResultError):
        known.check(CallToolResult(content=[], structured_content={}), "it")


# After a reconnect


def shaped(kind: str, **more: Any) -> dict[str, Any]:
    """A tool whose results hold one value of a kind."""
    schema = {"type": "object", "properties": {"n": {"type": kind}}, "required": ["n"]}
    return tool("count", outputSchema=schema, **more)


def first(reaction: Any, then: Any) -> Any:
    left = [reaction]
    return lambda _: left.pop() if left else then


@both
async def test_tools_are_listed_again_before_the_next_call_of_one(era: str) -> None:
    play = Play(era, {"tools/list": {"tools": [shaped("integer"), tool("other")]}})
    async with on_socket(play) as at, Client(at, limits=SOON) as one:
        await one.list_tools()
        play.reactions = {
            "tools/list": {"tools": [shaped("string")]},  # another version has come to live there
            "tools/call": first(CLOSE, text(structuredContent={"n": "one"})),
        }
        with pytest.raises(Interrupted):
            await one.call("other")
        assert await one.call("count") == {"n": "one"}
        assert play.count("tools/list") == 2
        play.reactions = {**play.reactions, "tools/call": text(structuredContent={"n": 1})}
        with pytest.raises(ResultError, match=values("n")):
            await one.call("count")
        assert play.count("tools/list") == 2


@both
async def test_a_call_repeated_on_a_new_connection_is_held_against_the_new_schema(era: str) -> None:
    harmless = {"annotations": {"readOnlyHint": True}}
    play = Play(era, {"tools/list": {"tools": [shaped("integer", **harmless)]}})
    async with on_socket(play) as at, Client(at, limits=SOON) as one:
        await one.list_tools()
        play.reactions = {
            "tools/list": {"tools": [shaped("string", **harmless)]},
            "tools/call": first(CLOSE, text(structuredContent={"n": "one"})),
        }
        assert await one.call("count") == {"n": "one"}


@both
async def test_who_never_listed_does_not_list_after_a_reconnect(era: str) -> None:
    play = Play(era, {"tools/call": first(CLOSE, text())})
    async with on_socket(play) as at, Client(at, limits=SOON) as one:
        with pytest.raises(Interrupted):
            await one.call("go")
        assert await one.call("go") == "ok"
        assert play.count("tools/list") == 0


async def test_a_list_that_is_refused_after_a_reconnect_costs_no_call() -> None:
    play = Play("handshake", {"tools/list": {"tools": [shaped("integer")]}})
    async with on_socket(play) as at, Client(at, limits=SOON) as one:
        await one.list_tools()
        play.reactions = {
            "tools/list": Failure(-32000, "not now"),
            "tools/call": first(CLOSE, text(structuredContent={"n": "one"})),
        }
        with pytest.raises(Interrupted):
            await one.call("count")
        assert await one.call("count") == {"n": "one"}
        assert await one.call("count") == {"n": "one"}
        assert play.count("tools/list") == 2
