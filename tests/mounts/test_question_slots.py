"""Test that one caller's unanswered questions do not stop the questions of others."""

import asyncio
from typing import Any

import pytest

from dovetail import Client, Context, Server, testing
from dovetail.errors import ServerBusy
from dovetail.mounts.question_slots import QuestionOwner, QuestionSlots
from server import direct_client
from support.fake_service import run_pending_callbacks


async def test_the_caller_with_the_most_questions_loses_its_oldest() -> None:
    slots, answers = QuestionSlots(4), [asyncio.Event() for _ in range(6)]

    async def ask(number: int) -> int:
        await answers[number].wait()
        return number

    names = ["mallory", "ada", "mallory", "mallory", "bob", "mallory"]
    owners = [QuestionOwner(name, name) for name in names]
    tasks = [asyncio.create_task(slots.run(owner, ask(number))) for number, owner in enumerate(owners)]
    await run_pending_callbacks()
    assert [task.done() for task in tasks] == [True, False, True, False, False, False]
    for event in answers:
        event.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ServerBusy, int, ServerBusy, int, int, int]


async def test_at_one_address_the_session_with_the_most_questions_loses_its_oldest() -> None:
    slots, answer = QuestionSlots(4), asyncio.Event()
    owners = [
        QuestionOwner("10.0.0.1", "ada"),
        QuestionOwner("10.0.0.1", "mallory"),
        QuestionOwner("10.0.0.1", "mallory"),
        QuestionOwner("10.0.0.2", "bob"),
        QuestionOwner("10.0.0.1", "mallory"),
    ]
    tasks = [asyncio.create_task(slots.run(owner, answer.wait())) for owner in owners]
    await run_pending_callbacks()
    answer.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [bool, ServerBusy, bool, bool, bool]


async def test_a_cancelled_question_frees_its_slot() -> None:
    slots = QuestionSlots(1)
    waiting = asyncio.create_task(slots.run(QuestionOwner("ada"), asyncio.Event().wait()))
    await run_pending_callbacks()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await slots.run(QuestionOwner("bob"), asyncio.sleep(0, "answer")) == "answer"


async def test_unanswered_questions_of_one_caller_do_not_stop_those_of_others() -> None:
    far, app = Server("far"), Server("app")

    @far.tool
    async def ask(ctx: Context) -> str:
        return await ctx.elicit("Name?", str)

    def caller(name: str) -> Any:
        return direct_client.Client(app, origin=name, principal=name)

    async with testing.serve(far, transport="http") as url, asyncio.timeout(20):
        app.mount(Client(url, protocol_version="handshake"), "far")
        mallory, ada = caller("mallory"), caller("ada")
        asked = await asyncio.gather(*(mallory.call("far_ask") for _ in range(40)), return_exceptions=True)
        assert any(isinstance(result, dict) and "requestState" in result for result in asked)
        result = await ada.call("far_ask")
        assert result["resultType"] == "input_required"
        answers = {key: {"action": "accept", "content": {"value": "Ada"}} for key in result["inputRequests"]}
        done = await ada.call("far_ask", requestState=result["requestState"], inputResponses=answers)
        assert direct_client.text(done) == "Ada"
        await app.stop()
