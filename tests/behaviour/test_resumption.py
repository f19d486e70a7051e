"""Test resuming streams of handshake sessions without lost, duplicate or foreign events."""

import asyncio
from typing import Any

import pytest

from behaviour.manifest import requirement
from dovetail import Context, ServerLimits
from support.controlled_server import ControlledServer, call_params, text
from support.driver import Peer, Pending, connect, connect_again
from support.raw_http import TIMEOUT_S, Event, Response


def numbers(events: list[Event]) -> list[Any]:
    """The progress told by events, and "result" for the response."""
    told: list[Any] = []
    for event in events:
        if event.data:
            params = event.message.get("params")
            draft = isinstance(params, dict) and isinstance(params["progress"], dict)
            told.append("result" if params is None else (params["progress"] if draft else params)["message"])
    return told


def stepping(stage: ControlledServer) -> None:
    """A tool that reports 0 to 9 and waits for the test after each."""

    @stage.app.tool
    async def steps(name: str, ctx: Context) -> str:
        for step in range(10):
            await ctx.progress(step, message=f"{name}{step}")
            await stage.run_until_released(f"{name}{step}")
        return f"{name} is done"


async def resume(peer: Peer, last: str | None, session: str | None = None) -> Response:
    headers = {"accept": "text/event-stream", "mcp-session-id": session or peer.session, "last-event-id": last}
    return await peer.http("GET", None, headers)


async def all_events(response: Response) -> list[Event]:
    assert response.status == 200
    async with asyncio.timeout(TIMEOUT_S):
        return [event async for event in response.events()]


async def drop(pending: Pending) -> list[Event]:
    """Lose the connection of a request; what had arrived on it."""
    response = await pending.streaming()
    await pending.disconnect()
    return response.events_seen


async def cut_after(peer: Peer, stage: ControlledServer, name: str, step: int) -> tuple[Pending, list[Event]]:
    """Start the stepping tool and lose its connection once a step has been told."""
    pending = peer.start("tools/call", call_params("steps", name=name), progress_token=name)
    for number in range(step):
        stage.release(f"{name}{number}")
    response = await pending.streaming()
    await peer.wait_until(lambda: f"{name}{step}" in numbers(response.events_seen) or None, "the step")
    return pending, await drop(pending)


@requirement("resume.silent")
@pytest.mark.parametrize("preferred", ["auto", "sse"])
@pytest.mark.parametrize("early", [True, False])
async def test_the_result_of_a_silent_call_can_be_fetched_later(revision: str, preferred: str, early: bool) -> None:
    stage = ControlledServer(limits=ServerLimits(keep_alive_interval=0.02))
    async with connect(stage.app, "http", revision, options={"response_mode": preferred}) as peer:
        pending = peer.start("tools/call", call_params("wait", name="s"))
        response = await pending.streaming()
        await peer.wait_until(lambda: response.events_seen or None, "an event")
        await pending.disconnect()
        first = response.events_seen[0]
        assert (first.id is not None, first.data) == (True, "")
        if early:  # the client is back before the result
            rest = await resume(peer, first.id)
            stage.release("s")
        else:
            stage.release("s")
            await stage.wait_until_ended("s")
            rest = await resume(peer, first.id)
        events = [event for event in await all_events(rest) if event.data]
        assert [text(event.message["result"]) for event in events] == ["s is done"]


@requirement("resume.rest")
@pytest.mark.parametrize("cut", [0, 4, 9])
async def test_a_broken_stream_goes_on_where_it_broke(revision: str, cut: int) -> None:
    stage = ControlledServer()
    stepping(stage)
    async with connect(stage.app, "http", revision) as peer:
        _, seen = await cut_after(peer, stage, "a", cut)
        rest = await resume(peer, seen[-1].id)
        for number in range(10):
            stage.release(f"a{number}")
        events = await all_events(rest)
        assert numbers(seen) + numbers(events) == [f"a{number}" for number in range(10)] + ["result"]
        assert text(events[-1].message["result"]) == "a is done"
        ids = [event.id for event in seen + events if event.data]
        assert len(set(ids)) == len(ids)


@requirement("resume.rest")
async def test_messages_without_a_listener_are_kept(revision: str) -> None:
    stage = ControlledServer()
    stepping(stage)
    async with connect(stage.app, "http", revision) as peer:
        _, seen = await cut_after(peer, stage, "a", 3)
        for number in range(10):
            stage.release(f"a{number}")
        await stage.wait_until_ended("a9")
        events = await all_events(await resume(peer, seen[-1].id))
        assert numbers(events) == [f"a{number}" for number in range(4, 10)] + ["result"]


@requirement("resume.rest")
async def test_any_event_seen_can_be_the_last(revision: str) -> None:
    async with connect(ControlledServer().app, "http", revision) as peer:
        pending = peer.start("tools/call", call_params("count", to=5), progress_token=1)
        await pending
        assert pending.response is not None
        seen = [event for event in pending.response.events_seen if event.data]
        for place, event in enumerate(seen):
            again = await all_events(await resume(peer, event.id))
            assert [one.data for one in again if one.data] == [one.data for one in seen[place + 1 :]]


@requirement("resume.rest")
async def test_a_stream_may_break_again_and_again(revision: str) -> None:
    stage = ControlledServer()
    stepping(stage)
    async with connect(stage.app, "http", revision) as peer:
        _, seen = await cut_after(peer, stage, "a", 1)
        told = numbers(seen)
        last = seen[-1].id
        for number in range(2, 10):
            response = await resume(peer, last)
            stage.release(f"a{number - 1}")
            async with asyncio.timeout(TIMEOUT_S):
                async for event in response.events():
                    if event.data:
                        break
            told += numbers([event])
            last = event.id
            await response.close()
        stage.release("a9")
        told += numbers(await all_events(await resume(peer, last)))
        assert told == [f"a{number}" for number in range(10)] + ["result"]


@requirement("resume.own-stream")
async def test_only_the_stream_of_the_event_is_replayed(revision: str) -> None:
    stage = ControlledServer()
    stepping(stage)
    async with connect(stage.app, "http", revision) as peer:
        _, first = await cut_after(peer, stage, "a", 2)
        _, second = await cut_after(peer, stage, "b", 2)
        for number in range(10):
            stage.release(f"a{number}")
            stage.release(f"b{number}")
        stage.app.notify_tools_changed()
        await peer.next_notification("notifications/tools/list_changed")
        for name, seen in (("a", first), ("b", second)):
            told = numbers(await all_events(await resume(peer, seen[-1].id)))
            assert told == [f"{name}{number}" for number in range(3, 10)] + ["result"]


@requirement("resume.ids")
async def test_event_ids_are_unique_in_a_session(revision: str) -> None:
    async with connect(ControlledServer().app, "http", revision) as peer:
        ids: list[str | None] = []
        for _ in range(3):
            pending = peer.start("tools/call", call_params("count", to=3), progress_token=1)
            await pending
            assert pending.response is not None
            ids += [event.id for event in pending.response.events_seen]
        peer.answer = {}
        assert peer.listening is not None
        ids += [event.id for event in peer.listening.events_seen]
        assert None not in ids
        assert len(set(ids)) == len(ids)


@requirement("resume.unknown")
async def test_an_event_that_never_was_cannot_be_resumed(revision: str) -> None:
    async with connect(ControlledServer().app, "http", revision, listen=False) as peer:
        pending = peer.start("tools/call", call_params("count", to=3), progress_token=1)
        await pending
        assert pending.response is not None
        last = pending.response.events_seen[-1].id
        assert last is not None
        name, _, number = last.rpartition("-")
        for wrong in (
            "x",
            "",
            "-",
            "1",
            f"{name}-{int(number) + 1}",
            f"{name}-x",
            f"99-{number}",
            f"{name}--1",
            "9" * 99,
        ):
            response = await resume(peer, wrong)
            assert response.status == 400, wrong
            await response.close()


@requirement("resume.other-session")
async def test_an_event_of_another_session_is_refused(revision: str) -> None:
    stage = ControlledServer()
    stepping(stage)
    async with connect(stage.app, "http", revision, listen=False) as peer, connect_again(peer, listen=False) as thief:
        _, seen = await cut_after(peer, stage, "a", 2)
        response = await resume(thief, seen[-1].id)
        assert response.status == 400
        await response.close()
        for number in range(10):
            stage.release(f"a{number}")
        assert numbers(await all_events(await resume(peer, seen[-1].id)))[-1] == "result"


@requirement("resume.window")
async def test_a_dropped_event_is_an_error_and_not_a_gap(revision: str) -> None:
    stage = ControlledServer(limits=ServerLimits(max_replay_events=3))
    async with connect(stage.app, "http", revision, listen=False) as peer:
        pending = peer.start("tools/call", call_params("count", to=10), progress_token=1)
        await pending
        assert pending.response is not None
        seen = [event for event in pending.response.events_seen if event.data]
        early = await resume(peer, seen[2].id)
        assert early.status == 400
        await early.close()
        late = await all_events(await resume(peer, seen[-3].id))
        assert [event.data for event in late if event.data] == [event.data for event in seen[-2:]]


@requirement("resume.window")
async def test_streams_that_ended_are_forgotten_after_a_while(revision: str) -> None:
    async with connect(
        ControlledServer(limits=ServerLimits(replay_ttl=0.1)).app, "http", revision, listen=False
    ) as peer:
        pending = peer.start("tools/call", call_params("count", to=3), progress_token=1)
        await pending
        assert pending.response is not None
        first = pending.response.events_seen[0].id
        assert (await all_events(await resume(peer, first)))[-1].data
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                response = await resume(peer, first)
                await response.close()
                if response.status == 400:
                    break
                await asyncio.sleep(0.02)


@requirement("resume.priming")
async def test_a_stream_begins_with_an_id_to_come_back_with(revision: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, "http", revision) as peer:
        pending = peer.start("tools/call", call_params("talk", name="t"), progress_token=1)
        response = await pending.streaming()
        await peer.wait_until(lambda: response.events_seen or None, "an event")
        first = response.events_seen[0]
        assert first.id
        assert first.data == ""
        assert peer.listening is not None
        stream = peer.listening
        await peer.wait_until(lambda: stream.events_seen or None, "an event")
        assert stream.events_seen[0].id
        assert stream.events_seen[0].data == ""
        await pending.disconnect()
        stage.release("t")
        events = await all_events(await resume(peer, first.id))
        assert numbers(events) == ["t", "t", "result"]


@requirement("resume.no-priming")
async def test_older_clients_are_spared_events_without_data(revision: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, "http", revision) as peer:
        pending = peer.start("tools/call", call_params("count", to=2), progress_token=1)
        await pending
        assert pending.response is not None
        assert all(event.data for event in pending.response.events_seen)
        stage.app.notify_tools_changed()
        await peer.next_notification("notifications/tools/list_changed")
        assert peer.listening is not None
        assert all(event.data for event in peer.listening.events_seen)


@requirement("resume.close-stream")
async def test_a_tool_may_let_go_of_the_connection(revision: str) -> None:
    stage = ControlledServer()

    @stage.app.tool
    async def slow(ctx: Context) -> str:
        await ctx.progress(1, message="first")
        await ctx.close_sse_stream(retry_ms=20)
        await ctx.progress(2, message="second")
        await stage.run_until_released("slow")
        return "late"

    async with connect(stage.app, "http", revision) as peer:
        pending = peer.start("tools/call", call_params("slow"), progress_token=1)
        response = await pending.streaming()
        assert pending.task is not None
        await asyncio.wait_for(pending.task, TIMEOUT_S)  # the server ended the connection
        assert numbers(response.events_seen) == ["first"]
        goodbye = response.events_seen[-1]
        assert (goodbye.retry, goodbye.data) == (20, "")
        assert goodbye.id
        rest = await resume(peer, goodbye.id)
        stage.release("slow")
        events = await all_events(rest)
        assert numbers(events) == ["second", "result"]
        assert text(events[-1].message["result"]) == "late"
        again = await all_events(await resume(peer, events[-1].id))
        assert numbers(again) == [], "the result is delivered once"


@requirement("resume.close-stream")
async def test_a_result_without_a_reader_can_be_fetched_later(revision: str) -> None:
    stage = ControlledServer()

    @stage.app.tool
    async def slow(ctx: Context) -> str:
        await ctx.close_sse_stream()
        return "late"

    async with connect(stage.app, "http", revision) as peer:
        pending = peer.start("tools/call", call_params("slow"))
        response = await pending.streaming()
        assert pending.task is not None
        await asyncio.wait_for(pending.task, TIMEOUT_S)
        events = await all_events(await resume(peer, response.events_seen[-1].id))
        assert [text(event.message["result"]) for event in events if event.data] == ["late"]


@requirement("resume.close-stream-elsewhere")
async def test_close_stream_does_nothing_if_the_client_cannot_resume(revision: str, transport: str) -> None:
    stage = ControlledServer()

    @stage.app.tool
    async def slow(ctx: Context) -> str:
        await ctx.close_sse_stream()
        return "at once"

    async with connect(stage.app, transport, revision) as peer:
        assert text(await peer.request("tools/call", call_params("slow"))) == "at once"


@requirement("resume.take-over")
async def test_who_resumes_takes_the_stream_over(revision: str) -> None:
    stage = ControlledServer()
    stepping(stage)
    async with connect(stage.app, "http", revision) as peer:
        _, seen = await cut_after(peer, stage, "a", 2)
        first = await resume(peer, seen[-1].id)
        second = await resume(peer, seen[-1].id)
        for number in range(10):
            stage.release(f"a{number}")
        assert numbers(await all_events(second)) == [f"a{number}" for number in range(3, 10)] + ["result"]
        assert "result" not in numbers(await all_events(first)), "a message goes to one stream"


@requirement("resume.listening")
async def test_the_stream_of_a_session_can_be_resumed(revision: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, "http", revision) as peer:
        stage.app.notify_tools_changed()
        await peer.next_notification("notifications/tools/list_changed")
        stream = peer.listening
        assert stream is not None
        last = stream.events_seen[-1].id
        assert last is not None
        stage.app.notify_prompts_changed()
        await peer.next_notification("notifications/prompts/list_changed")
        stream.abort()
        resumed = await peer.listen(last)  # as if the second one had been lost
        await peer.next_notification("notifications/prompts/list_changed")
        stage.app.notify_resources_changed()
        await peer.next_notification("notifications/resources/list_changed")
        told = [event.message["method"] for event in resumed.events_seen if event.data]
        assert told == ["notifications/prompts/list_changed", "notifications/resources/list_changed"]
