"""Test cancellation, by notification and by disconnecting, in each protocol version and transport."""

import asyncio
import json
from typing import Any

import pytest

from behaviour.manifest import requirement
from dovetail import Context, ServerLimits
from dovetail.errors import ConnectionLost
from support.controlled_server import ControlledServer, call_params, expect_error, text
from support.driver import CLIENT, DRAFT, STATELESS, Peer, Pending, connect
from support.raw_http import TIMEOUT_S


async def barrier(peer: Peer) -> None:
    """Everything the server had to say before is here once this is."""
    assert text(await peer.request("tools/call", call_params("echo", text="x"))) == "x"


async def unanswered(peer: Peer, pending: Pending) -> None:
    """The request was ended without a result: on a duplex connection silently, over HTTP by the end of its reply."""
    if peer.transport == "http":
        with pytest.raises(ConnectionLost):
            await pending
    await barrier(peer)
    assert not [message for message in peer.messages if message.get("id") == pending.id]


async def stop(peer: Peer, pending: Pending, reason: str | None = None) -> None:
    """Cancel a request the way its revision has it on its transport."""
    if peer.transport == "http" and peer.revision == STATELESS:
        await pending.disconnect()
    else:
        assert await peer.cancel(pending.id, reason) == (202 if peer.transport == "http" else None)


@requirement("cancel.notice")
async def test_a_notice_stops_the_work_and_it_is_not_answered(revision: str, transport: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, transport, revision) as peer:
        for id, tool in ((50, "wait"), ("fifty", "talk")):
            pending = peer.start("tools/call", call_params(tool, name=tool), id=id, progress_token=tool)
            await stage.wait_until_started(tool)
            await stop(peer, pending, "changed my mind")
            assert await stage.wait_until_ended(tool) == "cancelled"
            await unanswered(peer, pending)


@requirement("cancel.silence")
async def test_nothing_is_sent_about_a_cancelled_request(revision: str, transport: str) -> None:
    stage = ControlledServer()

    @stage.app.tool
    async def stubborn(ctx: Context) -> str:
        await ctx.progress(1)
        try:
            await stage.run_until_released("first")
        except asyncio.CancelledError:
            await ctx.progress(2)
            await ctx.log("error", "still talking")
        await stage.run_until_released("second")
        await ctx.progress(3)
        stage.over("all")
        stage.outcomes["all"] = "finished"
        return "too late"

    async with connect(stage.app, transport, revision) as peer:
        level = {"log_level": "debug"} if revision == STATELESS else {}
        pending = peer.start("tools/call", call_params("stubborn"), id=50, progress_token="t", **level)
        await stage.wait_until_started("first")
        await peer.next_notification("notifications/progress")
        await stop(peer, pending)
        await stage.wait_until_started("second")
        await barrier(peer)
        stage.release("second")
        await stage.wait_until_ended("all")
        await unanswered(peer, pending)
        assert len(peer.notifications) == 1, peer.notifications


@requirement("cancel.id-free")
async def test_the_id_of_a_cancelled_request_can_be_used_again(revision: str, transport: str) -> None:
    stage = ControlledServer()

    @stage.app.tool
    async def stubborn() -> str:
        try:
            await stage.run_until_released("first")
        except asyncio.CancelledError:
            await stage.run_until_released("second")
        return "too late"

    async with connect(stage.app, transport, revision) as peer:
        pending = peer.start("tools/call", call_params("stubborn"), id=50)
        await stage.wait_until_started("first")
        await stop(peer, pending)
        await stage.wait_until_started("second")
        assert text(await peer.request("tools/call", call_params("echo", text="new"), id=50)) == "new"
        stage.release("second")
        await stage.wait_until_ended("second")
        await barrier(peer)
        answers = [message for message in peer.messages if message.get("id") == 50]
        assert len(answers) == 1


@requirement("cancel.invalid")
async def test_a_cancel_that_fits_nothing_is_ignored(revision: str, transport: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, transport, revision) as peer:
        pending = peer.start("tools/call", call_params("wait", name="w"), id=1)
        await stage.wait_until_started("w")
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
    async with connect(ControlledServer().app, transport, revision) as peer:
        for id in range(100, 110):
            pending = peer.start("tools/call", call_params("echo", text=str(id)), id=id)
            assert text(await pending) == str(id)
            await peer.cancel(id)
        await barrier(peer)
        answered = [message["id"] for message in peer.messages if message.get("id") in range(100, 110)]
        assert answered == list(range(100, 110))


@requirement("cancel.initialize")
async def test_initialize_is_not_cancelled(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision, handshake=False) as peer:
        params = {"protocolVersion": revision, "capabilities": {}, "clientInfo": CLIENT}
        opening = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        cancel = json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 0}})
        if transport == "pipe":
            await peer.send_raw(f"{opening}\n{cancel}".encode())
        else:
            await peer.send_raw(opening.encode())
            await peer.send_raw(cancel.encode())
        answer = await peer.next_unmatched()
        assert answer["result"]["protocolVersion"] == revision


@requirement("cancel.thread")
async def test_a_function_in_a_thread_is_left_to_itself(revision: str, transport: str) -> None:
    stage = ControlledServer()
    stage.remember_loop()
    async with connect(stage.app, transport, revision) as peer:
        pending = peer.start("tools/call", call_params("block", name="b"), id=50)
        await stage.wait_until_started("b")
        await stop(peer, pending)
        await unanswered(peer, pending)
        stage.release("b")
        await stage.wait_until_ended("b")
        await unanswered(peer, pending)


@requirement("cancel.question")
async def test_an_input_request_of_a_cancelled_call_is_withdrawn(revision: str, transport: str) -> None:
    stage = ControlledServer()
    asked, late = asyncio.Event(), asyncio.Event()

    async def slow(_: Any) -> Any:
        asked.set()
        await late.wait()
        return {"roots": []}

    @stage.app.tool
    async def ask(ctx: Context) -> str:
        return str(await ctx.list_roots())

    async with connect(stage.app, transport, revision, capabilities={"roots": {}}, answer={"roots/list": slow}) as peer:
        pending = peer.start("tools/call", call_params("ask"), id=50)
        await asyncio.wait_for(asked.wait(), TIMEOUT_S)
        question = next(message["id"] for message in peer.messages if message.get("method") == "roots/list")
        await peer.cancel(50)
        assert (await peer.next_notification("notifications/cancelled"))["requestId"] == question
        late.set()
        await unanswered(peer, pending)


@requirement("cancel.json-reply")
async def test_a_reply_that_may_not_be_a_stream_ends_empty() -> None:
    stage = ControlledServer()
    async with connect(stage.app, "http", "2025-11-25") as peer:
        message = {"jsonrpc": "2.0", "id": 50} | peer.message("tools/call", call_params("wait", name="w"))
        headers = peer.headers(message, peer.revision) | {"accept": "application/json"}
        waiting = asyncio.get_running_loop().create_task(peer.raw(json.dumps(message).encode(), headers=headers))
        await stage.wait_until_started("w")
        await peer.cancel(50)
        reply = await asyncio.wait_for(waiting, TIMEOUT_S)
        assert (reply.status, reply.messages, reply.body) == (204, [], b"")


@requirement("cancel.disconnect")
async def test_leaving_is_cancelling(transport: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, transport, STATELESS) as peer:
        for tool in ("wait", "talk"):  # before anything was said, and on an open stream
            pending = peer.start("tools/call", call_params(tool, name=tool), progress_token=1)
            await stage.wait_until_started(tool)
            if tool == "talk":
                await peer.next_notification("notifications/progress")
            await pending.disconnect()
            assert await stage.wait_until_ended(tool) == "cancelled"
        await barrier(peer)


@requirement("cancel.disconnect")
async def test_leaving_stops_only_what_one_left(transport: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, transport, STATELESS) as peer:
        left = peer.start("tools/call", call_params("wait", name="left"), id=1)
        kept = peer.start("tools/call", call_params("wait", name="kept"), id=1)
        await stage.wait_until_started("left")
        await stage.wait_until_started("kept")
        await left.disconnect()
        assert await stage.wait_until_ended("left") == "cancelled"
        stage.release("kept")
        assert text(await kept) == "kept is done"


@requirement("cancel.disconnect")
async def test_leaving_during_the_question_of_a_proxy_is_noticed_too(transport: str) -> None:
    """A client may close its connection in the same moment as it sends the request."""
    stage = ControlledServer()
    async with connect(stage.app, transport, STATELESS) as peer:
        assert peer.web is not None
        message = {"jsonrpc": "2.0", "id": 1} | peer.message("tools/call", call_params("wait", name="w"))
        headers = peer.headers(message, STATELESS) | {"host": "localhost"}
        body = json.dumps(message).encode()
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        _, writer = await asyncio.open_connection(peer.web.host, peer.web.port)
        writer.write(f"POST /mcp HTTP/1.1\r\n{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        await stage.wait_until_started("w")
        writer.close()
        await writer.wait_closed()
        assert await stage.wait_until_ended("w") == "cancelled"


@requirement("cancel.notice-stateless-http")
async def test_over_http_the_stateless_era_has_no_such_notice(transport: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, transport, STATELESS) as peer:
        pending = peer.start("tools/call", call_params("wait", name="w"), id=5)
        await stage.wait_until_started("w")
        assert await peer.cancel(5) == 202
        await barrier(peer)
        stage.release("w")
        assert text(await pending) == "w is done"


@requirement("cancel.not-by-disconnect")
async def test_a_lost_connection_does_not_stop_the_work(revision: str, transport: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, transport, revision) as peer:
        for tool in ("wait", "talk"):
            pending = peer.start("tools/call", call_params(tool, name=tool), progress_token=1)
            await stage.wait_until_started(tool)
            await pending.disconnect()
            await barrier(peer)
            stage.release(tool)
            assert await stage.wait_until_ended(tool) == "finished"
        await barrier(peer)


@requirement("cancel.draft")
async def test_the_draft_answers_a_cancelled_request(transport: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, transport, DRAFT) as peer:
        for tool in ("wait", "talk"):
            pending = peer.start("tools/call", call_params(tool, name=tool), id=tool)
            await stage.wait_until_started(tool)
            await peer.cancel(tool)
            exc = await expect_error(pending)
            assert exc.code == -32000
            assert await stage.wait_until_ended(tool) == "cancelled"
        await barrier(peer)
        assert len([message for message in peer.messages if message.get("id") in ("wait", "talk")]) == 2


@requirement("cancel.connection")
async def test_a_closed_connection_stops_everything_on_it(revision: str, transport: str) -> None:
    stage = ControlledServer(limits=ServerLimits(drain_timeout=0.1))
    async with connect(stage.app, transport, revision) as peer:
        for name in ("a", "b"):
            peer.start("tools/call", call_params("wait", name=name))
            await stage.wait_until_started(name)
        assert peer.writer is not None
        peer.writer.close()
        assert [await stage.wait_until_ended(name) for name in ("a", "b")] == ["cancelled", "cancelled"]
