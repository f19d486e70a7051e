"""Test JSON-RPC batches, which only one protocol version allows."""

import asyncio
import json
from typing import Any

from behaviour.manifest import requirement
from dovetail import ServerLimits
from support.controlled_server import ControlledServer, call_params, text
from support.driver import STATELESS, Peer, connect
from support.raw_http import TIMEOUT_S


def member(id: int | str | None, method: str, params: Any = None) -> dict[str, Any]:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if id is not None:
        message["id"] = id
    return message if params is None else message | {"params": params}


async def send(peer: Peer, *messages: Any) -> Any:
    """Send an array; the array (or single error) that comes back."""
    return await peer.raw(json.dumps(list(messages)).encode())


async def send_silently(peer: Peer, *messages: Any) -> None:
    """Send an array that is not to be answered."""
    data = json.dumps(list(messages)).encode()
    if peer.transport == "http":
        reply = await peer.raw(data)
        assert (reply.status, reply.body) == (202, b"")
    else:
        await peer.send_raw(data)


@requirement("batch.answered")
async def test_all_requests_of_a_batch_are_answered_in_one_array(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        reply = await send(
            peer,
            member(1, "tools/call", call_params("echo", text="one")),
            member(None, "notifications/unknown"),
            member("two", "ping"),
            member(3, "tools/list"),
            {"jsonrpc": "2.0", "id": 99, "result": {}},
        )
        assert reply.status in (None, 200)
        answers = {answer["id"]: answer["result"] for answer in reply.message}
        assert len(reply.message) == 3
        assert text(answers[1]) == "one"
        assert answers["two"] == {}
        assert answers[3]["tools"]


@requirement("batch.errors")
async def test_what_is_wrong_in_a_batch_is_answered_by_itself(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        reply = await send(
            peer,
            member(1, "no/such"),
            member(2, "tools/call", call_params("echo", text="two")),
            member(3, "tools/call", {"name": "no-such"}),
            5,
            {"jsonrpc": "2.0", "id": None, "method": "ping"},
            {"jsonrpc": "1.0", "id": 4, "method": "ping"},
            [member(6, "ping")],
            member(7, "initialize", {"protocolVersion": revision, "capabilities": {}, "clientInfo": {}}),
        )
        codes = [(answer.get("id"), answer.get("error", {}).get("code")) for answer in reply.message]
        assert sorted(codes, key=repr) == sorted(
            [
                (1, -32601),
                (2, None),
                (3, -32602),
                (None, -32600),
                (None, -32600),
                (4, -32600),
                (None, -32600),
                (7, -32600),
            ],
            key=repr,
        )


@requirement("batch.silent")
async def test_a_batch_without_requests_is_not_answered(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        before = len(peer.messages)
        await send_silently(peer, member(None, "notifications/unknown"), {"jsonrpc": "2.0", "id": 1, "result": {}})
        assert await peer.request("ping") == {}
        assert len(peer.messages) == before + 1


@requirement("batch.empty")
async def test_an_empty_batch_is_an_error(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        reply = await send(peer)
        assert reply.status in (None, 400)
        assert reply.code == -32600


@requirement("batch.parallel")
async def test_the_members_of_a_batch_run_side_by_side(revision: str, transport: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, transport, revision) as peer:
        names = ("a", "b", "c")
        sending = asyncio.get_running_loop().create_task(
            send(peer, *(member(name, "tools/call", call_params("wait", name=name)) for name in names))
        )
        for name in names:
            await stage.wait_until_started(name)
        if transport != "http":
            assert await peer.request("ping") == {}, "and others are served meanwhile"
        for name in reversed(names):
            stage.release(name)
        reply = await asyncio.wait_for(sending, TIMEOUT_S)
        assert {answer["id"] for answer in reply.message} == set(names)


@requirement("batch.cancelled")
async def test_a_cancelled_batch_member_does_not_delay_the_others(revision: str, transport: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, transport, revision) as peer:
        sending = asyncio.get_running_loop().create_task(
            send(
                peer,
                member(1, "tools/call", call_params("wait", name="gone")),
                member(2, "tools/call", call_params("wait", name="stays")),
            )
        )
        await stage.wait_until_started("gone")
        await stage.wait_until_started("stays")
        await peer.cancel(1)
        assert await stage.wait_until_ended("gone") == "cancelled"
        stage.release("stays")
        reply = await asyncio.wait_for(sending, TIMEOUT_S)
        assert [answer["id"] for answer in reply.message] == [2]


@requirement("batch.progress")
async def test_what_a_member_says_on_the_way_comes_before_the_array(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        params = call_params("count", to=2) | {"_meta": {"progressToken": "p"}}
        data = json.dumps([member(1, "tools/call", params), member(2, "ping")]).encode()
        if transport == "http":
            reply = await peer.raw(data)
            *notices, last = reply.messages
        else:
            last = (await peer.raw(data)).message
            notices = [{"method": method} for method, _ in peer.notifications]
        assert [one["method"] for one in notices] == ["notifications/progress"] * 2
        assert {answer["id"] for answer in last} == {1, 2}


@requirement("batch.limit")
async def test_a_batch_does_not_bypass_the_limit(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        reply = await send(peer, *(member(number, "ping") for number in range(257)))
        assert reply.code == -32600
        assert await peer.request("ping") == {}


@requirement("batch.limit")
async def test_members_count_as_requests_in_flight(revision: str, transport: str) -> None:
    stage = ControlledServer(limits=ServerLimits(max_calls_per_connection=2))
    async with connect(stage.app, transport, revision) as peer:
        held = [peer.start("tools/call", call_params("wait", name=name)) for name in ("a", "b")]
        for name in ("a", "b"):
            await stage.wait_until_started(name)
        reply = await send(peer, member("c", "tools/call", call_params("wait", name="c")))
        assert [answer["error"]["code"] for answer in reply.message] == [429]
        for name, pending in zip(("a", "b"), held, strict=True):
            stage.release(name)
            await pending


@requirement("batch.refused")
async def test_other_revisions_have_no_batches(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        batch = [{"jsonrpc": "2.0", "id": 1} | peer.message("tools/list", {})]
        for sent in (batch, batch * 2, []):
            headers = {"mcp-protocol-version": revision, "mcp-method": "tools/list"} if revision == STATELESS else {}
            reply = await peer.raw(json.dumps(sent).encode(), headers=headers)
            assert reply.status == (400 if transport == "http" else None)
            assert reply.code == -32600
        assert (await peer.request("tools/list"))["tools"]


@requirement("batch.first")
async def test_a_session_is_not_opened_within_a_batch(revision: str, transport: str) -> None:
    params = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    async with connect(ControlledServer().app, transport, revision, handshake=False) as peer:
        reply = await send(peer, member(1, "initialize", params), member(2, "tools/list"))
        assert reply.status in (None, 400)
        assert reply.code == -32600
        await peer.open()
        assert (await peer.request("tools/list"))["tools"]
