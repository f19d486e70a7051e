"""Test progress: the caller's token, rising values, the request's stream, and none after the response."""

import asyncio
from typing import Any

import pytest

from behaviour.manifest import requirement
from behaviour.request_helpers import call, expect_error
from dovetail import Context, Server
from support.driver import DRAFT, STATELESS, connect

PROGRESS = "notifications/progress"


def server() -> Server:
    app = Server("working")

    @app.tool
    async def work(ctx: Context, steps: list[float] = [1, 2.5, 3]) -> str:  # noqa: B006
        for step in steps:
            await ctx.progress(step, total=3, message=f"step {step}")
            await asyncio.sleep(0)
        return "worked"

    @app.prompt
    async def think(ctx: Context) -> str:
        await ctx.progress(0.5)
        return "thought"

    @app.resource("x:slow")
    async def slow(ctx: Context) -> str:
        await ctx.progress(7)
        return "slow"

    return app


@pytest.mark.parametrize("token", ["abc", "", 0, 7, -1, 2**53])
@requirement("progress.reported")
async def test_progress_comes_under_the_callers_token(token: Any, revision: str) -> None:
    async with connect(server(), "memory", revision) as peer:
        await peer.request("tools/call", {"name": "work"}, progress_token=token, id="the call")
        assert [method for method, _ in peer.notifications] == [PROGRESS] * 3
        assert "result" in peer.messages[-1]
        if revision == DRAFT:
            assert [params["requestId"] for _, params in peer.notifications] == ["the call"] * 3
            return
        for _, params in peer.notifications:
            assert params["progressToken"] == token
            assert type(params["progressToken"]) is type(token)


@requirement("progress.reported")
async def test_tools_prompts_and_resources_report_progress(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        await peer.request("tools/call", {"name": "work"}, progress_token="t")
        await peer.request("prompts/get", {"name": "think"}, progress_token="p")
        await peer.request("resources/read", {"uri": "x:slow"}, progress_token=5)
        heard = [params for _, params in peer.notifications]
        if revision == DRAFT:
            assert [one["progress"]["current"] for one in heard] == [1, 2.5, 3, 0.5, 7]
            return
        assert [(one["progressToken"], one["progress"], one.get("total")) for one in heard] == [
            ("t", 1, 3),
            ("t", 2.5, 3),
            ("t", 3, 3),
            ("p", 0.5, None),
            (5, 7, None),
        ]
        assert heard[0].get("message") == (None if revision == "2024-11-05" else "step 1")


@requirement("progress.rises")
async def test_progress_only_rises(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        arguments = {"steps": [0, 0, 1, 0.5, 1, 1.0, 2, -3, 2.25]}
        await peer.request("tools/call", {"name": "work", "arguments": arguments}, progress_token="t")
        told = [params["progress"] for _, params in peer.notifications]
        assert [one["current"] if revision == DRAFT else one for one in told] == [0, 1, 2, 2.25]


@requirement("progress.no-token")
async def test_without_a_token_no_progress_is_sent(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        await call(peer, "work")
        assert peer.notifications == []


@requirement("progress.bad-token")
async def test_a_token_of_another_type_is_refused(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        for token in (1.5, True, [1], {"a": 1}):
            error = await expect_error(peer.request("tools/call", {"name": "work"}, meta={"progressToken": token}))
            assert error.code == -32602, token
        assert peer.notifications == []


@requirement("progress.stops")
async def test_nothing_is_sent_after_the_response(revision: str, transport: str) -> None:
    app = Server("leftover")
    go = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    @app.tool
    async def leave(ctx: Context) -> str:
        async def late() -> None:
            await go.wait()
            await ctx.progress(2)
            await ctx.error("too late")

        await ctx.progress(1)
        tasks.append(asyncio.get_running_loop().create_task(late()))
        return "left"

    async with connect(app, transport, revision) as peer:
        level = "debug" if revision == STATELESS else None
        await peer.request("tools/call", {"name": "leave"}, progress_token="t", log_level=level)
        go.set()
        await asyncio.wait(tasks)
        await peer.request("tools/list")
        assert [method for method, _ in peer.notifications] == [PROGRESS]
        assert [task.exception() for task in tasks] == [None]


@requirement("progress.own-stream")
async def test_each_request_hears_only_of_itself(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        pendings = [peer.start("tools/call", {"name": "work"}, progress_token=f"token {n}", id=n) for n in range(4)]
        await asyncio.gather(*pendings)
        for n, pending in enumerate(pendings):
            assert pending.response is not None
            events = [event.message for event in pending.response.events_seen if event.data]
            assert [one.get("method", "result") for one in events] == [PROGRESS] * 3 + ["result"]
            owners = [one["params"].get("progressToken", one["params"].get("requestId")) for one in events[:-1]]
            assert owners == [n if revision == DRAFT else f"token {n}"] * 3
        if peer.listening is not None:
            assert [event for event in peer.listening.events_seen if event.data] == []


@requirement("progress.draft")
async def test_the_draft_dialect_reports_by_request(revision: str, transport: str) -> None:
    async with connect(server(), transport, revision) as peer:
        await peer.request("tools/call", {"name": "work", "arguments": {"steps": [1, 2]}}, id="job")
        assert [params for _, params in peer.notifications] == [
            {"requestId": "job", "progress": {"current": 1, "total": 3, "message": "step 1.0"}},
            {"requestId": "job", "progress": {"current": 2, "total": 3, "message": "step 2.0"}},
        ]
