"""Test that a client learns tools from lists, and again after a reconnect."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import CallToolResult, Client, ClientLimits, ToolAnnotations
from dovetail.client.tool_index import ToolIndex
from dovetail.errors import InvalidResult, OutcomeUnknown
from dovetail.types import Tool
from support.mentions import mentions, values
from support.scripted_server import (
    CLOSE,
    ERAS,
    ErrorReply,
    ScriptedServer,
    serve_on_socket,
    text_result,
    tool_definition,
)

SOON = ClientLimits(reconnect_delay=0.01)
both = pytest.mark.parametrize("era", ERAS)

HEADED = {"type": "object", "properties": {"city": {"type": "string", "x-mcp-header": "City"}}}
BROKEN = {"type": "object", "properties": {"city": {"type": "string", "x-mcp-header": "not a name"}}}


def made(name: str, schema: dict[str, Any] | None = None, **more: Any) -> Tool:
    return Tool(name=name, input_schema=schema or {"type": "object"}, **more)


# A list as it is learnt


def test_either_hint_marks_a_tool_as_harmless() -> None:
    tools = ToolIndex()
    listed = [
        made("reads", annotations=ToolAnnotations(read_only_hint=True)),
        made("puts", annotations=ToolAnnotations(idempotent_hint=True)),
        made("acts", annotations=ToolAnnotations(read_only_hint=False, idempotent_hint=False)),
        made("silent"),
    ]
    tools.add_listed(listed, "it", sends_headers=False)
    assert [known.can_repeat for known in map(tools.entries.get, ("reads", "puts", "acts", "silent")) if known] == [
        True,
        True,
        False,
        False,
    ]


def test_a_broken_header_spoils_a_tool_only_where_headers_are_sent(caplog: pytest.LogCaptureFixture) -> None:
    tools = ToolIndex()
    assert [one.name for one in tools.add_listed([made("a", BROKEN)], "it", sends_headers=False)] == ["a"]
    assert tools.add_listed([made("a", BROKEN), made("b", HEADED)], "it", sends_headers=True) == [made("b", HEADED)]
    assert tools.entries.get("a") is None
    assert mentions(caplog.text, "tool", "a")
    known = tools.entries.get("b")
    assert known is not None
    assert known.build_headers({"city": "Oslo"})
    assert known.build_headers({}) == []


def test_what_is_listed_again_unchanged_is_not_compiled_again() -> None:
    tools = ToolIndex()
    tools.add_listed([made("a")], "it", sends_headers=True)
    first = tools.entries.get("a")
    tools.add_listed([made("a")], "it", sends_headers=True)
    assert tools.entries.get("a") is first
    tools.add_listed([made("a", HEADED)], "it", sends_headers=True)
    assert tools.entries.get("a") is not first


names = st.sampled_from("abc")
steps = st.lists(
    st.tuples(st.just("page"), st.frozensets(names))
    | st.tuples(st.just("all"), st.frozensets(names))
    | st.tuples(st.sampled_from(["outdate", "clear"]), st.none())
)


@given(steps)
def test_what_is_known_outdated_or_unknown(said: list[tuple[str, frozenset[str] | None]]) -> None:
    """Known is what was listed since the last reconnect, outdated what was known before it and not all listed since."""
    tools, known, outdated = ToolIndex(), set[str](), set[str]()
    for step, listed in said:
        if step == "outdate":
            tools.mark_stale()
            outdated |= known
            known = set()
        elif step == "clear":
            tools.clear()
            known, outdated = set(), set()
        else:
            is_complete = step == "all"
            tools.add_listed([made(name) for name in listed or ()], "it", sends_headers=False, is_complete=is_complete)
            known |= listed or frozenset()
            if is_complete:
                outdated = set()
        assert {name for name in "abc" if tools.entries.get(name) is not None} == known
        assert {name for name in "abc" if name in tools.stale_names} == outdated


def test_a_result_is_held_against_the_schema_unless_it_says_it_failed() -> None:
    tools = ToolIndex()
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tools.add_listed([made("a", output_schema=schema)], "it", sends_headers=False)
    known = tools.entries.get("a")
    assert known is not None
    known.validate_result(CallToolResult(content=[], structured_content={"n": 1}), "it")
    known.validate_result(CallToolResult(content=[], is_error=True), "it")
    with pytest.raises(InvalidResult, match=values("n")):
        known.validate_result(CallToolResult(content=[], structured_content={"n": "1"}), "it")
    with pytest.raises(InvalidResult):
        known.validate_result(CallToolResult(content=[]), "it")


def test_what_a_user_does_to_a_tool_changes_nothing_here() -> None:
    tools = ToolIndex()
    schema: dict[str, Any] = {"type": "object", "required": ["n"]}
    (listed,) = tools.add_listed([made("a", output_schema=schema)], "it", sends_headers=False)
    assert listed.output_schema is not None
    listed.output_schema.clear()
    known = tools.entries.get("a")
    assert known is not None
    with pytest.raises(InvalidResult):
        known.validate_result(CallToolResult(content=[], structured_content={}), "it")


# After a reconnect


def shaped(kind: str, **more: Any) -> dict[str, Any]:
    """A tool whose results hold one value of a kind."""
    schema = {"type": "object", "properties": {"n": {"type": kind}}, "required": ["n"]}
    return tool_definition("count", outputSchema=schema, **more)


def first(reaction: Any, then: Any) -> Any:
    left = [reaction]
    return lambda _: left.pop() if left else then


@both
async def test_tools_are_listed_again_before_the_next_call_of_one(era: str) -> None:
    script = ScriptedServer(era, {"tools/list": {"tools": [shaped("integer"), tool_definition("other")]}})
    async with serve_on_socket(script) as at, Client(at, limits=SOON) as one:
        await one.list_tools()
        script.reactions = {
            "tools/list": {"tools": [shaped("string")]},  # another version has come to live there
            "tools/call": first(CLOSE, text_result(structuredContent={"n": "one"})),
        }
        with pytest.raises(OutcomeUnknown):
            await one.call("other")
        assert await one.call("count") == {"n": "one"}
        assert script.count("tools/list") == 2
        script.reactions = {**script.reactions, "tools/call": text_result(structuredContent={"n": 1})}
        with pytest.raises(InvalidResult, match=values("n")):
            await one.call("count")
        assert script.count("tools/list") == 2


@both
async def test_a_call_repeated_on_a_new_connection_is_held_against_the_new_schema(era: str) -> None:
    harmless = {"annotations": {"readOnlyHint": True}}
    script = ScriptedServer(era, {"tools/list": {"tools": [shaped("integer", **harmless)]}})
    async with serve_on_socket(script) as at, Client(at, limits=SOON) as one:
        await one.list_tools()
        script.reactions = {
            "tools/list": {"tools": [shaped("string", **harmless)]},
            "tools/call": first(CLOSE, text_result(structuredContent={"n": "one"})),
        }
        assert await one.call("count") == {"n": "one"}


@both
async def test_who_never_listed_does_not_list_after_a_reconnect(era: str) -> None:
    script = ScriptedServer(era, {"tools/call": first(CLOSE, text_result())})
    async with serve_on_socket(script) as at, Client(at, limits=SOON) as one:
        with pytest.raises(OutcomeUnknown):
            await one.call("go")
        assert await one.call("go") == "ok"
        assert script.count("tools/list") == 0


async def test_a_list_that_is_refused_after_a_reconnect_costs_no_call() -> None:
    script = ScriptedServer("handshake", {"tools/list": {"tools": [shaped("integer")]}})
    async with serve_on_socket(script) as at, Client(at, limits=SOON) as one:
        await one.list_tools()
        script.reactions = {
            "tools/list": ErrorReply(-32000, "not now"),
            "tools/call": first(CLOSE, text_result(structuredContent={"n": "one"})),
        }
        with pytest.raises(OutcomeUnknown):
            await one.call("count")
        assert await one.call("count") == {"n": "one"}
        assert await one.call("count") == {"n": "one"}
        assert script.count("tools/list") == 2
