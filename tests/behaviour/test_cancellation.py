"""Stopping a request: by notice, by leaving, or not at all, as the revision and the transport have it."""

import asyncio
import json
from typing import Any

import pytest

from behaviour.manifest import requirement
from behaviour.stage import Stage, call, refused, text
from dovetail import Context
from dovetail.errors import Disconnected
from driver import CLIENT, DRAFT, MODERN, Peer, Pending, connect
from rawhttp import PATIENCE


async def barrier(peer: Peer) -> None:
    """Everything the server had to say before is here once this is."""
    assert text(await peer.request("tools/call", call("echo", text="x"))) == "x"


async def unanswered(peer: Peer, pending: Pending) -> None:
    """The request was ended without a result: on a duplex connection silently, over HTTP by the end of its reply."""
    if peer.transport == "http":
        with pytest.raises(Disconnected):
            await pending
    await barrier(peer)
    assert not [message for message in peer.messages if message.get("id") == pending.id]


async def stop(peer: Peer, pending: Pending, reason: str | None = None) -> None:
    """Cancel a request the way its revision has it on its transport."""
    if peer.transport == "http" and peer.revision == MODERN:
        await pending.disconnect()
    else:
        assert await peer.cancel(pending.id, reason) == (202 if peer.transport == "http" else None)


@requirement("cancel.notice")
async def test_a_notice_stops_the_work_and_it_is_not_answered(revision: str, transport: str) -> None:
    stage = Stage()
    async with connect(stage.app, transport, revision) as peer:
        for id, tool in ((50, "wait"), ("fifty", "talk")):
            pending = peer.start("tools/call", call(tool, name=tool), id=id, progress_token=tool)
            await stage.begun(tool)
            await stop(peer, pending, "changed my mind")
            assert await stage.ended(tool) == "cancelled"
            await unanswered(peer, pending)


@requirement("cancel.silence")
async def test_nothing_is_said_about_a_cancelled_request(revision: str, transport: str) -> None:
    stage = Stage()

    @stage.app.tool
    async def stubborn(ctx: Context) -> str:
        await ctx.progress(1)
        try:
            await stage.play("first")
        except asyncio.CancelledError:
            await ctx.progress(2)
            await ctx.log("error", "still talking")
        await stage.play("second")
        await ctx.progress(3)
        stage.over("all")
        stage.ends["all"] = "finished"
        return "too late"

    async with connect(stage.app, transport, revision) as peer:
        level = {"log_level": "debug"} if revision == MODERN else {}
        pending = peer.start("tools/call", call("stubborn"), id=50, progress_token="t", **level)
        await stage.begun("first")
        await peer.next_notice("notifications/progress")
        await stop(peer, pending)
        await stage.begun("second")
        await barrier(peer)
        stage.release("second")
        await stage.ended("all")
        await unanswered(peer, pending)
        assert len(peer.notices) == 1, peer.notices


@requirement("cancel.id-free")
async def test_the_id_of_a_cancelled_request_can_be_used_again(revision: str, transport: str) -> None:
    stage = Stage()

    @stage.app.tool
    async def stubborn() -> str:
        try:
            await stage.play("first")
        except asyncio.CancelledError:
            await stage.play("second")
        return "too late"

    async with connect(stage.app, transport, revision) as peer:
        pending = peer.start("tools/call", call("stubborn"), id=50)
        await stage.begun("first")
        await stop(peer, pending)
        await stage.begun("second")
        assert text(await peer.request("tools/call", call("echo", text="new"), id=50)) == "new"
        stage.release("second")
        await stage.ended("second")
        await barrier(peer)
        answers = [message for message in peer.messages if message.get("id") == 50]
        assert len(answers) == 1


@requirement("cancel.invalid")
async def test_a_cancel_that_fits_nothing_is_ignored(revision: str, transport: str) -> None:
    stage = Stage()
    async with connect(stage.app, transport, revision) as peer:
        pending = peer.start("tools/call", call("wait", name="w"), id=1)
        await stage.begun("w")
        before = len(peer.messages)
        for id in (2, "1", True, 1.0, None, [1], {"id": 1}, "x" * 10_000):
            await peer.cancel(id)
        for params in (None, {}, {"reason": "none"}, {"id": 1}):
            await peer.notify("notifications/cancelled", params)
        await peer.request("tools/list")
        assert len(peer.messages) == before + 1
        stage.release("w")
        assert text(await pending) == "w is done"
        await peer.cancel(1)
        await barrier(peer)


@requirement("cancel.late")
async def test_a_cancel_that_comes_too_late_changes_nothing(revision: str, transport: str) -> None:
    async with connect(Stage().app, transport, revision) as peer:
        for id in range(100, 110):
            pending = peer.start("tools/call", call("echo", text=str(id)), id=id)
            assert text(await pending) == str(id)
            await peer.cancel(id)
        await barrier(peer)
        answered = [message["id"] for message in peer.messages if message.get("id") in range(100, 110)]
        assert answered == list(range(100, 110))


@requirement("cancel.initialize")
async def test_initialize_is_not_cancelled(revision: str, transport: str) -> None:
    async with connect(Stage().app, transport, revision, handshake=False) as peer:
        params = {"protocolVersion": revision, "capabilities": {}, "clientInfo": CLIENT}
        opening = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        cancel = json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 0}})
        if transport == "pipe":
            await peer.send_raw(f"{opening}\n{cancel}".encode())
        else:
            await peer.send_raw(opening.encode())
            await peer.send_raw(cancel.encode())
        answer = await peer.next_stray()
        assert answer["result"]["protocolVersion"] == revision


@requirement("cancel.thread")
async def test_a_function_in_a_thread_is_left_to_itself(revision: str, transport: str) -> None:
    stage = Stage()
    stage.here()
    async with connect(stage.app, transport, revision) as peer:
        pending = peer.start("tools/call", call("block", name="b"), id=50)
        await stage.begun("b")
        await stop(peer, pending)
        await unanswered(peer, pending)
        stage.release("b")
        await stage.ended("b")
        await unanswered(peer, pending)


@requirement("cancel.question")
async def test_a_question_nobody_needs_answered_is_withdrawn(revision: str, transport: str) -> None:
    stage = Stage()
    asked, late = asyncio.Event(), asyncio.Event()

    async def slow(_: Any) -> Any:
        asked.set()
        await late.wait()
        return {"roots": []}

    @stage.app.tool
    async def ask(ctx: Context) -> str:
        return str(await ctx.roots())

    async with connect(stage.app, transport, revision, capabilities={"roots": {}}, answer={"roots/list": slow}) as peer:
        pending = peer.start("tools/call", call("ask"), id=50)
        await asyncio.wait_for(asked.wait(), PATIENCE)
        question = next(message["id"] for message in peer.messages if message.get("method") == "roots/list")
        await peer.cancel(50)
        assert (await peer.next_notice("notifications/cancelled"))["requestId"] == question
        late.set()
        await unanswered(peer, pending)


@requirement("cancel.json-reply")
async def test_a_reply_that_may_not_be_a_stream_ends_empty() -> None:
    stage = Stage()
    async with connect(stage.app, "http", "2025-11-25") as peer:
        message = {"jsonrpc": "2.0", "id": 50} | peer.message("tools/call", call("wait", name="w"))
        headers = peer.headers(message, peer.revision) | {"accept": "application/json"}
        waiting = asyncio.get_running_loop().create_task(peer.raw(json.dumps(message).encode(), headers=headers))
        await stage.begun("w")
        await peer.cancel(50)
        reply = await asyncio.wait_for(waiting, PATIENCE)
        assert (reply.status, reply.messages, reply.body) == (204, [], b"")


@requirement("cancel.disconnect")
async def test_leaving_is_cancelling(transport: str) -> None:
    stage = Stage()
    async with connect(stage.app, transport, MODERN) as peer:
        for tool in ("wait", "talk"):  # before anything was said, and on an open stream
            pending = peer.start("tools/call", call(tool, name=tool), progress_token=1)
            await stage.begun(tool)
            if tool == "talk":
                await peer.next_notice("notifications/progress")
            await pending.disconnect()
            assert await stage.ended(tool) == "cancelled"
        await barrier(peer)


@requirement("cancel.disconnect")
async def test_leaving_stops_only_what_one_left(transport: str) -> None:
    stage = Stage()
    async with connect(stage.app, transport, MODERN) as peer:
        left = peer.start("tools/call", call("wait", name="left"), id=1)
        kept = peer.start("tools/call", call("wait", name="kept"), id=1)
        await stage.begun("left")
        await stage.begun("kept")
        await left.disconnect()
        assert await stage.ended("left") == "cancelled"
        stage.release("kept")
        assert text(await kept) == "kept is done"


@requirement("cancel.disconnect")
async def test_leaving_during_the_question_of_a_proxy_is_noticed_too(transport: str) -> None:
    """A client may close its connection in the same moment as it sends the request."""
    stage = Stage()
    async with connect(stage.app, transport, MODERN) as peer:
        assert peer.web is not None
        message = {"jsonrpc": "2.0", "id": 1} | peer.message("tools/call", call("wait", name="w"))
        headers = peer.headers(message, MODERN) | {"host": "localhost"}
        body = json.dumps(message).encode()
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        _, writer = await asyncio.open_connection(peer.web.host, peer.web.port)
        writer.write(f"POST /mcp HTTP/1.1\r\n{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        await stage.begun("w")
        writer.close()
        await writer.wait_closed()
        assert await stage.ended("w") == "cancelled"


@requirement("cancel.notice-modern-http")
async def test_over_http_the_stateless_era_has_no_such_notice(transport: str) -> None:
    stage = Stage()
    async with connect(stage.app, transport, MODERN) as peer:
        pending = peer.start("tools/call", call("wait", name="w"), id=5)
        await stage.begun("w")
        assert await peer.cancel(5) == 202
        await barrier(peer)
        stage.release("w")
        assert text(await pending) == "w is done"


@requirement("cancel.not-by-disconnect")
async def test_a_lost_connection_does_not_stop_the_work(revision: str, transport: str) -> None:
    stage = Stage()
    async with connect(stage.app, transport, revision) as peer:
        for tool in ("wait", "talk"):
            pending = peer.start("tools/call", call(tool, name=tool), progress_token=1)
            await stage.begun(tool)
            await pending.disconnect()
            await barrier(peer)
            stage.release(tool)
            assert await stage.ended(tool) == "finished"
        await barrier(peer)


@requirement("cancel.draft")
async def test_the_draft_answers_a_cancelled_request(transport: str) -> None:
    stage = Stage()
    async with connect(stage.app, transport, DRAFT) as peer:
        for tool in ("wait", "talk"):
            pending = peer.start("tools/call", call(tool, name=tool), id=tool)
            await stage.begun(tool)
            await peer.cancel(tool)
            exc = await refused(pending)
            assert exc.code == -32000
            assert await stage.ended(tool) == "cancelled"
        await barrier(peer)
        assert len([message for message in peer.messages if message.get("id") in ("wait", "talk")]) == 2


@requirement("cancel.connection")
async def test_a_closed_connection_stops_everything_on_it(revision: str, transport: str) -> None:
    stage = Stage()
    async with connect(stage.app, transport, revision) as peer:
        for name in ("a", "b"):
            peer.start("tools/call", call("wait", name=name))
            await stage.begun(name)
        assert peer.writer is not None
        peer.writer.close()
        assert [await stage.ended(name) for name in ("a", "b")] == ["cancelled", "cancelled"]
