"""Test that every call of a reply gets exactly one result under its own id."""

from dovetail.agent.agent import create_turn
from dovetail.protocol.interfaces.language_model import ModelReply
from dovetail.server.items.tool import build_error_result
from dovetail.wire.content import TextContent, ToolResultContent, ToolUseContent


def call(id: str) -> ToolUseContent:
    return ToolUseContent(id=id, name="t", input={})


def test_ids_are_unlike_all_others_of_the_conversation() -> None:
    taken = {"old"}
    turn = create_turn(ModelReply(content=[call("new"), call("old"), call("")], model="m"), taken)
    first, second, third = (one.id for one in turn.calls)
    assert first == "new"
    assert taken == {"old", "new", second, third}
    assert len(taken) == 4


def test_what_cannot_be_read_is_known_under_the_new_id() -> None:
    turn = create_turn(ModelReply(content=[call("a")], model="m", invalid_calls={"a": "no JSON"}), {"a"})
    assert [*turn.invalid_calls] == [turn.calls[0].id]


def test_an_interrupt_gives_every_call_its_word() -> None:
    turn = create_turn(ModelReply(content=[TextContent(text="now"), *map(call, "abcd")], model="m"), set())
    a, b, c, d = turn.calls
    turn.finish(a, build_error_result("no"))
    turn.started_ids |= {"a", "b"}
    turn.waiting_by_ticket["ticket"] = c
    turn.interrupt()
    assert [*turn.results] == [a.id, b.id, d.id]
    first, second, last = (_text(turn.results[one]) for one in "abd")
    assert first == "no"
    assert "may have run" in second
    assert "may have run" not in last
    turn.finish(turn.waiting_by_ticket.pop("ticket"), build_error_result("late"))
    said, told = turn.to_messages()
    assert said.content == turn.content
    assert [one.tool_use_id for one in told.content if isinstance(one, ToolResultContent)] == [*"abcd"]  # pyright: ignore[reportGeneralTypeIssues]


def test_a_reply_that_holds_nothing_leaves_nothing() -> None:
    assert create_turn(ModelReply(content=[], model="m"), set()).to_messages() == []


def _text(result: ToolResultContent) -> str:
    block = result.content[0]
    assert isinstance(block, TextContent)
    return block.text
