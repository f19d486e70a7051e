"""Test the agent loop with a scripted model: events, refusals, budgets, search and pauses."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dovetail import Policy, Server, ToolError, rule
from dovetail.agent.agent import (
    Agent,
    AgentEvent,
    FinishedEvent,
    PausedEvent,
    TextEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from dovetail.errors import ModelError, NotSupported
from dovetail.host import Deny, FileConsent
from dovetail.host.host import Host
from dovetail.protocol.interfaces.language_model import ModelReply, Usage
from dovetail.testing.scripted_model import ModelRequest, ScriptedModel, tool_call
from dovetail.wire.content import TextContent, ToolResultContent, ToolUseContent

OPEN = Policy("allow")


def numbers() -> Server:
    app = Server("numbers")

    @app.tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @app.tool
    def broken() -> str:
        """Always fails."""
        raise ToolError("out of order")

    return app


def notes() -> Server:
    app = Server("notes")

    @app.tool
    def write(text: str) -> str:
        """Write a note."""
        return f"wrote {text}"

    return app


def host(policy: Policy = OPEN, **options: Any) -> Host:
    made = Host(policy=policy, **options)
    made.add("numbers", numbers())
    made.add("notes", notes())
    return made


async def ran(agent: Agent, prompt: str = "go") -> list[AgentEvent]:
    return [event async for event in agent.run(prompt)]


def results(events: list[AgentEvent]) -> list[str]:
    return [one.result.content[0].text for one in events if isinstance(one, ToolResultEvent)]  # pyright: ignore[reportAttributeAccessIssue]


def done(events: list[AgentEvent]) -> FinishedEvent:
    assert isinstance(events[-1], FinishedEvent)
    assert sum(isinstance(one, FinishedEvent) for one in events) == 1
    return events[-1]


async def test_a_call_and_an_answer() -> None:
    model = ScriptedModel(["I add.", tool_call("numbers__add", a=1, b=2)], "It is 3.")
    async with host() as opened:
        events = await ran(Agent(opened, model, system_prompt="Be brief."), "1 + 2?")
    said, called, answered, last, end = events
    assert said == TextEvent(text="I add.")
    assert called == ToolCallEvent(id="call-1-1", tool="numbers.add", arguments={"a": 1, "b": 2})
    assert isinstance(answered, ToolResultEvent)
    assert (answered.id, answered.tool, answered.denied_reason) == ("call-1-1", "numbers.add", None)
    assert last == TextEvent(text="It is 3.")
    assert isinstance(end, FinishedEvent)
    assert (end.reason, end.text) == ("completed", "It is 3.")
    assert (end.usage.turns, end.usage.total_tokens, end.usage.tool_calls) == (2, 4, {"numbers.add": 1})
    assert model.requests[0].options["system_prompt"] == "Be brief."
    assert [one.name for one in model.requests[0].tools] == ["notes__write", "numbers__add", "numbers__broken"]
    held = model.requests[1].messages[-1].content
    assert isinstance(held, list)
    assert isinstance(held[0], ToolResultContent)
    assert held[0].tool_use_id == "call-1-1"


async def test_the_conversation_goes_on() -> None:
    model = ScriptedModel("Hello.", "You said hi.")
    async with host() as opened:
        agent = Agent(opened, model)
        await ran(agent, "hi")
        assert done(await ran(agent, "what did I say?")).text == "You said hi."
    assert [one.role for one in model.requests[1].messages] == ["user", "assistant", "user"]


async def test_the_model_reads_what_was_refused_or_failed() -> None:
    policy = Policy("allow", [rule("deny", tool="write", reason="read only today")])
    calls = [
        tool_call("notes__write", text="x"),
        tool_call("numbers__broken"),
        tool_call("numbers__add", a="one", b=2),
        tool_call("nothing"),
    ]
    model = ScriptedModel(calls, "I see.")
    async with host(policy) as opened:
        events = await ran(Agent(opened, model))
    refused, failed, wrong, unknown = results(events)
    assert "read only today" in refused
    assert "out of order" in failed
    assert "a" in wrong
    assert "'nothing'" in unknown
    denied = [one.denied_reason for one in events if isinstance(one, ToolResultEvent)]
    assert denied[0] is not None
    assert denied[1:] == [None, None, None]
    assert all(one.result.is_error for one in events if isinstance(one, ToolResultEvent))
    held = model.requests[1].messages[-1].content
    assert isinstance(held, list)
    assert all(isinstance(one, ToolResultContent) and one.is_error for one in held)


async def test_the_user_is_asked_and_may_say_no() -> None:
    def no(_: object) -> Deny:
        return Deny("not now")

    async with host(Policy("ask"), consent=no) as opened:
        events = await ran(Agent(opened, ScriptedModel(tool_call("numbers.add", a=1, b=2), "Fine.")))
    assert "not now" in results(events)[0]


async def test_only_some_servers() -> None:
    model = ScriptedModel(tool_call("numbers__add", a=1, b=2), "no")
    async with host() as opened:
        events = await ran(Agent(opened, model, servers=["notes"]))
    assert [one.name for one in model.requests[0].tools] == ["notes__write"]
    (answer,) = [one for one in events if isinstance(one, ToolResultEvent)]
    assert answer.result.is_error
    assert "numbers__add" in results(events)[0]
    with pytest.raises(TypeError, match=r"\['notes'\]"):
        Agent(opened, model, servers="notes")


async def test_search_where_the_tools_take_too_much() -> None:
    model = ScriptedModel(
        tool_call("host__search_tools", query="add numbers"),
        tool_call("host__describe_tool", name="numbers__add"),
        tool_call("host__call_tool", name="numbers__add", arguments={"a": 1, "b": 2}),
        [tool_call("host__call_tool", name="notes__write", arguments={"text": "x"}), tool_call("host__call_tool")],
        "It is 3.",
    )
    policy = Policy("allow", [rule("deny", server="numbers", tool="broken")])
    async with host(policy) as opened:
        events = await ran(Agent(opened, model, max_catalog_tokens=10, servers=["numbers"]))
    found, described, three, elsewhere, wrong = results(events)
    assert "numbers__add" in found
    assert "notes__write" not in found
    assert "Add two numbers" in described
    assert three == "3"
    assert "notes__write" in elsewhere  # a server that is not one of this agent's stays out of reach by this way too
    assert "call_tool" in wrong
    assert [one.result.is_error for one in events if isinstance(one, ToolResultEvent)][3:] == [True, True]
    assert [one.name for one in model.requests[0].tools] == [
        "host__call_tool",
        "host__describe_tool",
        "host__search_tools",
    ]
    assert done(events).usage.tool_calls == {"numbers.add": 1}
    assert [one.tool for one in events if isinstance(one, ToolCallEvent)][2] == "numbers.add"


@pytest.mark.parametrize(
    ("limits", "reason", "turns"),
    [
        ({"max_turns": 2}, "max_turns", 2),
        ({"budget_tokens": 25_000}, "token_budget", 3),
        ({"budget_usd": 0.05}, "cost_budget", 5),
    ],
)
async def test_budgets(limits: dict[str, Any], reason: str, turns: int) -> None:
    price = Usage(input_tokens=9_000, output_tokens=1_000, cost_usd=0.01)
    model = ScriptedModel(*(tool_call("numbers__add", a=1, b=2) for _ in range(9)), usage=price)
    async with host() as opened:
        agent = Agent(opened, model, **limits)
        end = done(await ran(agent))
        assert (end.reason, end.usage.turns) == (reason, turns)
        assert len(model.requests) == turns
        if reason != "max_turns":
            assert done(await ran(agent)).usage.turns == turns  # a budget is for the agent's whole life


async def test_no_reply_may_be_longer_than_what_is_left() -> None:
    """Of the tokens: what is put to the model counts before it is put."""
    model = ScriptedModel(tool_call("numbers__add", a=1, b=2), "3", usage=Usage(input_tokens=900, output_tokens=100))
    async with host() as opened:
        await ran(Agent(opened, model, budget_tokens=3_000, max_tokens=1_950))
    first, second = (one.options["max_tokens"] for one in model.requests)
    assert first == 1_950
    assert 1_500 < second < 1_950


async def test_no_reply_may_cost_more_than_what_is_left() -> None:
    model = ScriptedModel("dear", price=(0.0, 1_000.0))  # a tenth of a cent each token
    async with host() as opened:
        await ran(Agent(opened, model, budget_usd=0.1))
    assert model.requests[0].options["max_tokens"] == 100


async def test_a_prompt_beyond_the_budget_is_not_sent() -> None:
    prompt = "word " * 4_000
    async with host() as opened:
        assert done(await ran(Agent(opened, ScriptedModel(), budget_tokens=1_000), prompt)).reason == "token_budget"
        dear = ScriptedModel(price=(1_000.0, 0.0))
        assert done(await ran(Agent(opened, dear, budget_usd=1.0), prompt)).reason == "cost_budget"


async def test_money_cannot_be_counted_without_a_price() -> None:
    model = ScriptedModel("3", usage=Usage(input_tokens=1, output_tokens=1))
    with pytest.raises(ModelError, match="price"):
        Agent(host(), model, budget_usd=1.0)
    assert not model.requests


async def test_a_reply_that_does_not_say_what_it_took_is_estimated() -> None:
    model = ScriptedModel(ModelReply(content=[TextContent(text="x" * 4_000)], model="m"), price=(0.0, 1.0))
    async with host() as opened:
        spent = done(await ran(Agent(opened, model, budget_usd=1.0))).usage
    assert spent.output_tokens >= 1_000
    assert spent.input_tokens > 10  # the prompt, and the tools
    assert spent.cost_usd == pytest.approx(spent.output_tokens / 1_000_000)


async def test_turns_are_counted_through_pauses(tmp_path: Path) -> None:
    model = ScriptedModel(*(tool_call("notes__write", text="a") for _ in range(9)))
    async with host(Policy("ask"), consent=FileConsent(tmp_path / "inbox.db")) as opened:
        agent = Agent(opened, model, max_turns=2)
        events = await ran(agent)
        while (wait := next((one for one in events if isinstance(one, PausedEvent)), None)) is not None:
            events = [event async for event in agent.resume(wait.ticket, True)]
        assert done(events).reason == "max_turns"
    assert len(model.requests) == 2


async def test_a_call_that_cannot_be_read_is_not_made() -> None:
    call = ToolUseContent(id="c1", name="notes__write", input={})
    lines = (
        ModelReply(content=[call], model="m", invalid_calls={"c1": "the arguments are not JSON"}),
        ModelReply(content=[call], model="m", stop_reason="maxTokens"),
        ModelReply(content=[TextContent(text="so")], model="m", stop_reason="maxTokens"),
    )
    async with host() as opened:
        events = await ran(Agent(opened, ScriptedModel(*lines)))
    assert "the arguments are not JSON" in results(events)[0]
    assert all(one.result.is_error for one in events if isinstance(one, ToolResultEvent))
    assert not done(events).usage.tool_calls
    assert done(events).reason == "max_tokens"


async def test_nothing_said_leaves_no_empty_message() -> None:
    async with host() as opened:
        agent = Agent(opened, ScriptedModel(ModelReply(content=[], model="m", stop_reason="endTurn"), "hello"))
        await ran(agent)
        assert [one.role for one in agent.messages] == ["user"]


async def test_calls_that_wait_for_somebody(tmp_path: Path) -> None:
    policy = Policy("ask", [rule("allow", tool="add")])
    model = ScriptedModel(
        [tool_call("notes__write", text="a"), tool_call("numbers__add", a=1, b=2), tool_call("notes__write", text="b")],
        lambda asked: ModelReply(content=[TextContent(text=told(asked))], model="m"),
    )
    async with host(policy, consent=FileConsent(tmp_path / "inbox.db")) as opened:
        agent = Agent(opened, model)
        events = await ran(agent)
        waits = [one for one in events if isinstance(one, PausedEvent)]
        assert [one.tool for one in waits] == ["notes.write", "notes.write"]
        assert done(events).reason == "paused"
        with pytest.raises(RuntimeError, match="resume"):
            await ran(agent)
        with pytest.raises(NotSupported):
            await anext(agent.resume("other", True))
        with pytest.raises(TypeError):
            await anext(agent.resume(waits[0].ticket, object()))  # no answer at all: the question still waits
        first = [event async for event in agent.resume(waits[0].ticket, True)]
        assert results(first) == ["wrote a"]
        assert done(first).reason == "paused"
        rest = [event async for event in agent.resume(waits[1].ticket, False)]
        wrote, added, refused = done(rest).text.split(" | ")
        assert (wrote, added) == ("wrote a", "3")
        assert "notes.write" in refused
        assert [one.denied_reason is None for one in rest if isinstance(one, ToolResultEvent)] == [False]


def told(asked: ModelRequest) -> str:
    held = asked.messages[-1].content
    assert isinstance(held, list)
    return " | ".join(one.content[0].text for one in held if isinstance(one, ToolResultContent))  # pyright: ignore[reportAttributeAccessIssue]


async def test_a_conversation_left_in_the_middle_can_go_on() -> None:
    """No call is ever in it without its result: a maker would refuse the whole conversation."""
    model = ScriptedModel([tool_call("numbers__add", a=1, b=2), tool_call("numbers__add", a=3, b=4)], read_back)
    async with host() as opened:
        agent = Agent(opened, model)
        run = agent.run("go")
        async for event in run:
            if isinstance(event, ToolResultEvent):
                break  # and the run is not even closed
        said = done(await ran(agent, "again")).text
        await run.aclose()
    first, second = said.split(" | ")
    assert first == "3"
    assert "interrupted" in second
    assert [one.role for one in agent.messages] == ["user", "assistant", "user", "user", "assistant"]


async def test_what_ran_before_an_interrupt_is_not_forgotten() -> None:
    """Else the model would do it again."""
    began, paid = asyncio.Event(), 0
    shop = Server("shop")

    @shop.tool
    def pay() -> str:
        nonlocal paid
        paid += 1
        return "paid"

    @shop.tool
    async def ship() -> str:
        began.set()
        await asyncio.Event().wait()
        return "shipped"

    model = ScriptedModel([tool_call("shop__pay"), tool_call("shop__ship"), tool_call("shop__pay")], read_back)
    async with Host(policy=OPEN) as opened:
        opened.add("shop", shop)
        agent = Agent(opened, model)
        running = asyncio.create_task(ran(agent))
        await began.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        first, second, third = done(await ran(agent, "and now?")).text.split(" | ")
    assert (paid, first) == (1, "paid")
    assert "may have run" in second
    assert "may have run" not in third


def read_back(asked: ModelRequest) -> str:
    """The results the model was told last."""
    held = [one for message in asked.messages if isinstance(message.content, list) for one in message.content]
    return " | ".join(one.content[0].text for one in held if isinstance(one, ToolResultContent))  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("ids", [("x", "x"), ("", "")])
async def test_each_call_keeps_its_own_result_whatever_its_id(ids: tuple[str, str]) -> None:
    calls = [ToolUseContent(id=id, name="notes__write", input={"text": f"{at}"}) for at, id in enumerate(ids)]
    model = ScriptedModel(ModelReply(content=[*calls], model="m"), ModelReply(content=[*calls], model="m"), read_back)
    async with host() as opened:
        agent = Agent(opened, model)
        events = await ran(agent)
    assert done(events).text == "wrote 0 | wrote 1 | wrote 0 | wrote 1"
    said = [one for message in agent.messages if isinstance(message.content, list) for one in message.content]
    asked = [one.id for one in said if isinstance(one, ToolUseContent)]
    assert len({*asked}) == 4
    assert all(asked)
    assert [one.tool_use_id for one in said if isinstance(one, ToolResultContent)] == asked
    assert [one.id for one in events if isinstance(one, ToolResultEvent)] == asked


async def test_a_script_that_ends() -> None:
    async with host() as opened:
        with pytest.raises(ModelError):
            await ran(Agent(opened, ScriptedModel()))
