"""Test that unanswered input requests end and do not block running calls."""

import asyncio
import concurrent.futures
from typing import Any

import pytest

from behaviour.manifest import requirement
from dovetail import Context, ServerLimits
from dovetail.errors import ConnectionLost
from support.controlled_server import ControlledServer, call_params, expect_error, text
from support.driver import Peer, Pending, connect, connect_again
from support.raw_http import TIMEOUT_S

ASKED = {"elicitation": {}}
KINDS = pytest.mark.parametrize("tool", ["ask", "ask_in_a_thread"])


class User:
    """Answers each question, by its message, when the test says so."""

    def __init__(self) -> None:
        self.asked: set[str] = set()
        self._answers: dict[str, asyncio.Event] = {}

    def answers(self, name: str) -> None:
        self._answers.setdefault(name, asyncio.Event()).set()

    async def __call__(self, params: Any) -> Any:
        self.asked.add(params["message"])
        await self._answers.setdefault(params["message"], asyncio.Event()).wait()
        return {"action": "accept", "content": {"value": "Ada"}}


class Asking(ControlledServer):
    """A stage with tools that ask one question each, and how they ended, by the question."""

    def __init__(self, auth: Any = None, **limits: Any) -> None:
        super().__init__(limits=ServerLimits(**limits), auth=auth)
        self.outcomes: dict[str, object] = {}
        self.app.add_tool(self.ask)
        self.app.add_tool(self.ask_in_a_thread)

    async def ask(self, name: str, ctx: Context) -> str:
        try:
            answer = await ctx.elicit(name, str)
        except BaseException as exc:
            self.outcomes[name] = type(exc)
            raise
        self.outcomes[name] = answer
        return answer

    def ask_in_a_thread(self, name: str, ctx: Context) -> str:
        try:
            answer = ctx.wait(ctx.elicit(name, str))
        except BaseException as exc:
            self.outcomes[name] = type(exc)
            raise
        self.outcomes[name] = answer
        return answer

    async def outcome(self, name: str) -> object:
        """Wait until the tool has ended; its answer, or the type of what it raised."""
        return await until(lambda: self.outcomes.get(name), f"the end of {name}")


async def until(look: Any, what: str) -> Any:
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while not (found := look()):  # noqa: ASYNC110 - threads set no event of the loop's
                await asyncio.sleep(0.005)
            return found
    except TimeoutError:
        raise AssertionError(f"did not come: {what}") from None


async def open_question(peer: Peer, user: User, tool: str, name: str) -> Pending:
    """Start a call and wait until its question has reached the user."""
    pending = peer.start("tools/call", call_params(tool, name=name))
    await until(lambda: name in user.asked, f"the question {name}")
    return pending


@requirement("asking.time-limit")
@KINDS
async def test_a_question_without_an_answer_ends_the_call(revision: str, transport: str, tool: str) -> None:
    stage, user = Asking(request_state_ttl=0.1), User()
    async with connect(stage.app, transport, revision, capabilities=ASKED, answer={"elicitation/create": user}) as peer:
        result = await (await open_question(peer, user, tool, "q"))
        assert result["isError"]
        assert await stage.outcome("q") in (asyncio.CancelledError, concurrent.futures.CancelledError)
        if tool == "ask":  # a thread hears of its end only after the reply is complete
            assert await peer.next_notification("notifications/cancelled")  # the question is withdrawn
        assert text(await peer.request("tools/call", call_params("echo", text="hi"))) == "hi"


@requirement("asking.time-limit")
@KINDS
async def test_the_time_a_user_takes_does_not_count(revision: str, transport: str, tool: str) -> None:
    stage, user = Asking(call_timeout=2), User()
    async with connect(stage.app, transport, revision, capabilities=ASKED, answer={"elicitation/create": user}) as peer:
        pending = await open_question(peer, user, tool, "q")
        # A call that begins later and does not ask is stopped, so the question is open for longer than `run_time`.
        assert (await peer.request("tools/call", call_params("wait", name="a")))["isError"]
        user.answers("q")
        assert text(await pending) == "Ada"


@requirement("asking.abandoned")
@KINDS
async def test_a_question_ends_when_its_client_is_gone(revision: str, tool: str) -> None:
    stage, user = Asking(replay_ttl=0.1), User()
    async with connect(stage.app, "http", revision, capabilities=ASKED, answer={"elicitation/create": user}) as peer:
        pending = await open_question(peer, user, tool, "q")
        await pending.disconnect()
        assert await stage.outcome("q") is ConnectionLost
        assert text(await peer.request("tools/call", call_params("echo", text="hi"))) == "hi"


@requirement("asking.abandoned")
async def test_a_question_stays_open_while_a_client_reads_its_stream(revision: str) -> None:
    stage, user = Asking(), User()
    answer = {"elicitation/create": user}
    async with connect(stage.app, "http", revision, capabilities=ASKED, answer=answer, listen=False) as peer:
        here, back = [await open_question(peer, user, "ask", name) for name in ("here", "back")]
        seen = (await back.streaming()).events_seen
        await back.disconnect()
        resumed = await peer.listen(seen[0].id)
        assert not stage.outcomes
        for name in ("here", "back"):
            user.answers(name)
        assert text(await here) == "Ada"
        await peer.wait_until(
            lambda: [one for one in resumed.events_seen if one.data and "Ada" in one.data] or None, "it"
        )
        assert await stage.outcome("back") == "Ada"


@requirement("asking.abandoned")
async def test_only_the_question_whose_stream_is_not_read_ends(revision: str) -> None:
    stage, user = Asking(replay_ttl=0.1), User()
    answer = {"elicitation/create": user}
    async with connect(stage.app, "http", revision, capabilities=ASKED, answer=answer, listen=False) as peer:
        here, gone = [await open_question(peer, user, "ask", name) for name in ("here", "gone")]
        await gone.disconnect()
        assert await stage.outcome("gone") is ConnectionLost
        assert set(stage.outcomes) == {"gone"}
        user.answers("here")
        assert text(await here) == "Ada"


@requirement("asking.abandoned")
async def test_an_answer_counts_although_the_connection_was_lost(revision: str) -> None:
    stage, user = Asking(), User()
    answer = {"elicitation/create": user}
    async with connect(stage.app, "http", revision, capabilities=ASKED, answer=answer, listen=False) as peer:
        pending = await open_question(peer, user, "ask", "q")
        seen = (await pending.streaming()).events_seen
        await pending.disconnect()
        user.answers("q")
        assert await stage.outcome("q") == "Ada"
        rest = await peer.listen(seen[-1].id)
        await peer.wait_until(lambda: [one for one in rest.events_seen if one.data and "Ada" in one.data] or None, "it")


@requirement("asking.abandoned")
@KINDS
async def test_a_session_that_only_waits_for_a_client_that_is_gone_expires(revision: str, tool: str) -> None:
    stage, user = Asking(session_idle_timeout=0.1), User()
    answer = {"elicitation/create": user}
    async with connect(stage.app, "http", revision, capabilities=ASKED, answer=answer, listen=False) as peer:
        pending = await open_question(peer, user, tool, "q")
        await pending.disconnect()
        assert await stage.outcome("q") in (ConnectionLost, asyncio.CancelledError, concurrent.futures.CancelledError)
        error = await expect_error(peer.request("ping"))
        assert error.status_code == 404


@requirement("asking.places")
async def test_a_call_that_waits_for_a_user_is_not_at_work(revision: str) -> None:
    stage, user = Asking(max_calls=2), User()
    async with connect(stage.app, "http", revision, capabilities=ASKED, answer={"elicitation/create": user}) as peer:
        questions = [await open_question(peer, user, "ask", name) for name in ("q", "r")]
        work = [peer.start("tools/call", call_params("wait", name=name)) for name in ("a", "b")]
        for name in ("a", "b"):
            await stage.wait_until_started(name)
        assert (await expect_error(peer.request("tools/call", call_params("echo", text="hi")))).status_code == 503
        for name in ("a", "b"):
            stage.release(name)
            user.answers({"a": "q", "b": "r"}[name])
        assert [text(await one) for one in (*work, *questions)] == ["a is done", "b is done", "Ada", "Ada"]


@requirement("asking.places")
async def test_nor_is_it_counted_among_the_calls_of_its_caller(revision: str) -> None:
    async def authenticate(headers: Any) -> str:
        return headers.get(b"x-user", b"ada").decode()

    stage, user = Asking(auth=authenticate, max_calls_per_principal=1), User()
    answer = {"elicitation/create": user}
    async with connect(stage.app, "http", revision, capabilities=ASKED, answer=answer, listen=False) as peer:
        pending = await open_question(peer, user, "ask", "q")
        assert text(await peer.request("tools/call", call_params("echo", text="hi"))) == "hi"
        work = peer.start("tools/call", call_params("wait", name="a"))
        await stage.wait_until_started("a")
        assert (await expect_error(peer.request("tools/call", call_params("echo", text="hi")))).status_code == 429
        stage.release("a")
        user.answers("q")
        assert [text(await one) for one in (work, pending)] == ["a is done", "Ada"]


@requirement("asking.places")
async def test_a_plain_function_that_waits_for_a_user_lends_its_place(revision: str) -> None:
    stage, user = Asking(max_threads=1, thread_queue_timeout=0.1), User()
    stage.remember_loop()
    answer = {"elicitation/create": user}
    async with connect(stage.app, "http", revision, capabilities=ASKED, answer=answer) as peer:
        names = ["q1", "q2", "q3", "q4"]  # four for each thread at most: the fifth keeps its place
        lent = [await open_question(peer, user, "ask_in_a_thread", name) for name in names]
        async with connect_again(peer, capabilities=ASKED, answer=answer) as other:
            work = other.start("tools/call", call_params("block", name="a"))
            await stage.wait_until_started("a")
            assert (await expect_error(other.request("tools/call", call_params("block", name="b")))).status_code == 503
            stage.release("a")
            assert text(await work) == "a is done"
            kept = await open_question(other, user, "ask_in_a_thread", "q5")
            assert (await expect_error(other.request("tools/call", call_params("block", name="b")))).status_code == 503
            for name in (*names, "q5"):
                user.answers(name)
            assert [text(await one) for one in (*lent, kept)] == ["Ada"] * 5
            # The places are taken back: one function at a time, as before.
            work = other.start("tools/call", call_params("block", name="c"))
            await stage.wait_until_started("c")
            assert (await expect_error(other.request("tools/call", call_params("block", name="d")))).status_code == 503
            stage.release("c")
            assert text(await work) == "c is done"
