"""Test JSON-RPC messages on every transport: ids, kinds and refusals."""

import asyncio
import json
from typing import Any

import pytest

from behaviour.manifest import requirement
from dovetail import ServerLimits
from dovetail.errors import RemoteError
from support.controlled_server import ControlledServer, call_params, text
from support.driver import DRAFT, STATELESS, Peer, connect

NOT_JSON = {
    "cut-off": b'{"jsonrpc":"2.0","id":1,"method":"ping"',
    "trailing": b'{"jsonrpc":"2.0","id":1,"method":"ping"} {}',
    "words": b"hello",
    "not-utf8": b'{"jsonrpc":"2.0","id":1,"method":"\xff\xfe"}',
    "utf16": '{"jsonrpc":"2.0","id":1,"method":"ping"}'.encode("utf-16-le"),
    "overlong": b'{"jsonrpc":"2.0","id":1,"method":"\xc0\xaf"}',
    "nan": b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":NaN}}',
    "infinity": b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":-Infinity}}',
    "bom": b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"ping"}',
    "deep": b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":' + b"[" * 65 + b"]" * 65 + b"}}",
    "very-deep": b"[" * 100_000 + b"]" * 100_000,
    "twice": b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}',
    "twice-escaped": b'{"jsonrpc":"2.0","id":1,"method":"ping","m\\u0065thod":"tools/list"}',
    "twice-inside": b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","name":"wait"}}',
    "digits": b'{"jsonrpc":"2.0","id":' + b"9" * 41 + b',"method":"ping"}',
    "control": b'{"jsonrpc":"2.0","id":1,"method":"pi\x01ng"}',
    "surrogate": b'{"jsonrpc":"2.0","id":1,"method":"\\ud800"}',
}

NO_MESSAGE: dict[str, tuple[Any, Any]] = {  # what is sent, and the id an answer can carry
    "string": ("hello", None),
    "number": (7, None),
    "null": (None, None),
    "no-version": ({"id": 5, "method": "ping"}, 5),
    "other-version": ({"jsonrpc": "1.0", "id": 5, "method": "ping"}, 5),
    "version-as-number": ({"jsonrpc": 2.0, "id": 5, "method": "ping"}, 5),
    "nothing-in-it": ({"jsonrpc": "2.0"}, None),
    "only-an-id": ({"jsonrpc": "2.0", "id": 5}, 5),
    "result-and-error": ({"jsonrpc": "2.0", "id": 5, "result": {}, "error": {"code": 1, "message": "x"}}, 5),
    "method-and-result": ({"jsonrpc": "2.0", "id": 5, "method": "ping", "result": {}}, 5),
    "method-and-error": ({"jsonrpc": "2.0", "id": 5, "method": "ping", "error": {"code": 1, "message": "x"}}, 5),
    "method-not-a-string": ({"jsonrpc": "2.0", "id": 5, "method": 1}, 5),
    "method-empty": ({"jsonrpc": "2.0", "id": 5, "method": ""}, 5),
    "method-endless": ({"jsonrpc": "2.0", "id": 5, "method": "x" * 129}, 5),
    "params-a-list": ({"jsonrpc": "2.0", "id": 5, "method": "tools/list", "params": []}, 5),
    "params-a-string": ({"jsonrpc": "2.0", "id": 5, "method": "tools/list", "params": "x"}, 5),
    "error-without-code": ({"jsonrpc": "2.0", "id": 5, "error": {"message": "x"}}, 5),
    "error-a-string": ({"jsonrpc": "2.0", "id": 5, "error": "x"}, 5),
    "result-without-id": ({"jsonrpc": "2.0", "result": {}}, None),
}


def headers_of(peer: Peer, method: str = "tools/list") -> dict[str, str | None]:
    return peer.headers({"method": method}, peer.revision)


async def still_serves(peer: Peer) -> None:
    """The connection is as good as before."""
    assert text(await peer.request("tools/call", call_params("echo", text="alive"))) == "alive"


@requirement("msg.id-echo")
async def test_an_answer_carries_the_very_id_of_its_request(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        for id in (0, -1, 2**53, 10**39, "", "0", "a b", "\u00e9\u4e16", "x" * 256):
            assert text(await peer.request("tools/call", call_params("echo", text="hi"), id=id)) == "hi"
            with pytest.raises(RemoteError):
                await peer.request("no/such", id=id)
            assert [message["id"] for message in peer.messages[-2:]] == [id, id]


@requirement("msg.id-refused")
async def test_an_id_of_another_kind_is_refused(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        for id in (None, True, False, 1.5, {}, [1], "x" * 257):
            message = {"jsonrpc": "2.0", "id": id} | peer.message("tools/list", {})
            reply = await peer.raw(json.dumps(message).encode(), headers=headers_of(peer))
            assert reply.status == (400 if transport == "http" else None), id
            assert reply.code == -32600, id
            assert "id" not in reply.message, id
            await still_serves(peer)


@requirement("msg.id-type")
async def test_a_number_and_its_digits_are_two_ids(revision: str, transport: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, transport, revision) as peer:
        number = peer.start("tools/call", call_params("wait", name="number"), id=71)
        await stage.wait_until_started("number")
        string = peer.start("tools/call", call_params("wait", name="string"), id="71")
        await stage.wait_until_started("string")
        stage.release("string")
        assert text(await string) == "string is done"
        assert not number.done
        stage.release("number")
        assert text(await number) == "number is done"


@requirement("msg.id-in-flight")
async def test_an_id_in_flight_cannot_be_used_again(revision: str, transport: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, transport, revision) as peer:
        first = peer.start("tools/call", call_params("wait", name="first"), id=9)
        await stage.wait_until_started("first")
        peer.ignore(9)  # so that the refusal is not taken for the answer
        second = {"jsonrpc": "2.0", "id": 9} | peer.message("tools/call", call_params("echo", text="x"))
        reply = await peer.raw(json.dumps(second).encode())
        assert reply.code == (-32001 if revision == DRAFT else -32600)
        assert reply.message["id"] == 9
        peer.expect(first)
        stage.release("first")
        assert text(await first) == "first is done"
        assert text(await peer.request("tools/call", call_params("echo", text="again"), id=9)) == "again"


@requirement("msg.id-in-flight", revisions=("2025-11-25", DRAFT))
async def test_a_ping_cannot_use_an_id_in_flight(revision: str, transport: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, transport, revision) as peer:
        first = peer.start("tools/call", call_params("wait", name="first"), id=9)
        await stage.wait_until_started("first")
        peer.ignore(9)
        reply = await peer.raw(b'{"jsonrpc":"2.0","id":9,"method":"ping"}')
        assert reply.code == (-32001 if revision == DRAFT else -32600)
        peer.expect(first)
        stage.release("first")
        assert text(await first) == "first is done"
        assert await peer.request("ping", id=9) == {}


@requirement("msg.meta-object")
async def test_a_meta_that_is_not_an_object_is_refused(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        for meta in ("x", 5, [], True):
            message = {"method": "tools/call", "params": call_params("echo", text="x") | {"_meta": meta}}
            reply = await peer.raw(json.dumps({"jsonrpc": "2.0", "id": 5} | message).encode())
            assert reply.code == -32602
            assert reply.message["id"] == 5
        await still_serves(peer)


@requirement("msg.id-own-reply")
async def test_over_http_each_request_is_answered_on_its_own_reply(revision: str, transport: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, transport, revision) as peer:
        first = peer.start("tools/call", call_params("talk", name="first"), id=9, progress_token="a")
        await stage.wait_until_started("first")
        second = peer.start("tools/call", call_params("wait", name="second"), id=9)
        await stage.wait_until_started("second")
        stage.release("first")
        assert text(await first) == "first is done"
        assert not second.done
        stage.release("second")
        assert text(await second) == "second is done"


@requirement("msg.invalid")
async def test_an_invalid_message_is_refused(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        for case, (sent, id) in NO_MESSAGE.items():
            if revision == STATELESS and isinstance(sent, dict) and "params" not in sent:
                sent = sent | {"params": peer.message("tools/list", {})["params"]}
            reply = await peer.raw(json.dumps(sent).encode(), headers=headers_of(peer))
            assert reply.status == (400 if transport == "http" else None), case
            assert reply.code == -32600, case
            assert reply.message.get("id") == id, case
            await still_serves(peer)


@requirement("msg.parse")
async def test_what_is_not_json_is_refused(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        for case, data in NOT_JSON.items():
            reply = await peer.raw(data, headers=headers_of(peer))
            assert reply.status == (400 if transport == "http" else None), case
            assert reply.code == -32700, case
            assert "id" not in reply.message, case
            await still_serves(peer)


@requirement("msg.parse")
async def test_an_empty_body_is_not_json(revision: str) -> None:
    async with connect(ControlledServer().app, "http", revision) as peer:
        reply = await peer.raw(b"", headers=headers_of(peer))
        assert (reply.status, reply.code) == (400, -32700)


@requirement("msg.depth")
async def test_nesting_up_to_the_limit_is_read(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        deep: Any = "x"
        for _ in range(60):
            deep = [deep]
        assert await peer.request("tools/list", {"ignored": deep})


@requirement("msg.unknown-fields")
async def test_unknown_members_are_ignored(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        params = call_params("echo", text="hi") | {"future": {"a": [1]}}
        message = {"jsonrpc": "2.0", "id": 31, "extra": True, "x": None} | peer.message("tools/call", params)
        message["params"].setdefault("_meta", {})["com.example/unknown"] = {"deep": [None]}
        reply = await peer.raw(json.dumps(message).encode(), headers=peer.headers(message, revision))
        assert text(reply.message["result"]) == "hi"


@requirement("msg.parallel")
async def test_requests_run_side_by_side_and_are_answered_as_they_finish(revision: str, transport: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, transport, revision) as peer:
        names = [f"call-{number}" for number in range(8)]
        started = {name: peer.start("tools/call", call_params("wait", name=name)) for name in names}
        for name in names:
            await stage.wait_until_started(name)
        for name in reversed(names):
            stage.release(name)
            assert text(await started[name]) == f"{name} is done"


@requirement("msg.parallel")
async def test_a_blocked_thread_does_not_delay_other_requests(revision: str, transport: str) -> None:
    stage = ControlledServer()
    stage.remember_loop()
    async with connect(stage.app, transport, revision) as peer:
        blocked = peer.start("tools/call", call_params("block", name="b"))
        await stage.wait_until_started("b")
        await still_serves(peer)
        assert not blocked.done
        stage.release("b")
        assert text(await blocked) == "b is done"


@requirement("msg.notice-silent")
async def test_a_notice_is_never_answered(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        before = len(peer.messages)
        for method in ("notifications/unknown", "x", "notifications/roots/list_changed", "tools/list"):
            for params in (None, {}, {"progressToken": "nobody", "progress": 1}, {"requestId": {}}):
                assert await peer.notify(method, params) == (202 if transport == "http" else None)
        await still_serves(peer)
        assert len(peer.messages) == before + 1


@requirement("msg.stray-response")
async def test_an_unexpected_response_is_ignored(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        before = len(peer.messages)
        for stray in (
            {"id": 99, "result": {}},
            {"id": "1", "result": {}},
            {"id": 99, "error": {"code": -1, "message": "no"}},
            {"error": {"code": -32700, "message": "no id"}},
        ):
            data = json.dumps({"jsonrpc": "2.0"} | stray).encode()
            if transport == "http":
                reply = await peer.raw(data)
                assert (reply.status, reply.body) == (202, b"")
            else:
                await peer.send_raw(data)
        await still_serves(peer)
        assert len(peer.messages) == before + 1


@requirement("msg.response-stateless-http")
async def test_the_stateless_era_takes_no_answers_over_http(revision: str) -> None:
    async with connect(ControlledServer().app, "http", revision) as peer:
        reply = await peer.raw(b'{"jsonrpc":"2.0","id":1,"result":{}}', headers=headers_of(peer))
        assert (reply.status, reply.code) == (400, -32600)


@requirement("msg.method-not-found")
async def test_an_unknown_method_is_refused_with_its_id(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        with pytest.raises(RemoteError) as caught:
            await peer.request("no/such/method", {"x": 1}, id="mine")
        assert caught.value.code == -32601
        assert peer.messages[-1]["id"] == "mine"
        if transport == "http" and revision == STATELESS:
            assert caught.value.status_code == 404  # type: ignore[attr-defined]
        await still_serves(peer)


@requirement("msg.framing")
async def test_lines_may_end_in_crlf_and_empty_ones_mean_nothing(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        data = json.dumps({"jsonrpc": "2.0", "id": 5} | peer.message("tools/list", {})).encode()
        await peer.send_raw(b"\n\r\n\n" + data + b"\r")
        assert (await peer.next_unmatched())["id"] == 5
        await peer.send_raw(data + b"\n" + data.replace(b'"id": 5', b'"id": 6') + b"\n\n")
        assert {(await peer.next_unmatched())["id"] for _ in range(2)} == {5, 6}


@requirement("msg.framing")
async def test_bytes_may_come_one_by_one(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        message = {"jsonrpc": "2.0", "id": 5} | peer.message(
            "tools/call", call_params("echo", text="h\u00e9llo\n\u4e16")
        )
        data = json.dumps(message, ensure_ascii=False).encode() + b"\n"
        writer = peer.writer
        assert writer is not None
        for place in range(len(data)):
            writer.write(data[place : place + 1])
            await asyncio.sleep(0)
        assert text((await peer.next_unmatched())["result"]) == "h\u00e9llo\n\u4e16"


@requirement("msg.framing")
async def test_no_text_breaks_the_framing(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        for inside in ("a\nb", "a\r\nb", "\u2028\u2029", "\x00\x7f", "\U0001f600", '"\\'):
            assert text(await peer.request("tools/call", call_params("echo", text=inside))) == inside


@requirement("msg.line-limit")
async def test_a_line_over_the_limit_is_skipped_and_said_so(revision: str, transport: str) -> None:
    async with connect(ControlledServer(limits=ServerLimits(max_message_bytes=2000)).app, transport, revision) as peer:
        reply = await peer.raw(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "x" * 5000}).encode())
        assert reply.code == -32600
        assert "2000" in reply.message["error"]["message"]
        await still_serves(peer)
        assert peer.writer is not None
        before = len(peer.messages)
        for _ in range(10):  # in pieces each over the limit, so that it is known to be too long before it ends
            peer.writer.write(b"x" * 50_000)
            await peer.writer.drain()
            await asyncio.sleep(0)
        assert (await peer.raw(b"the end of it")).code == -32600
        await still_serves(peer)
        assert len(peer.messages) == before + 2, "said once"


@requirement("msg.large")
async def test_a_message_of_megabytes_passes(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        large = "0123456789" * 300_000
        assert text(await peer.request("tools/call", call_params("echo", text=large))) == large


@requirement("msg.flood")
async def test_a_connection_has_a_number_of_requests_in_flight(revision: str, transport: str) -> None:
    stage = ControlledServer(limits=ServerLimits(max_calls_per_connection=2))
    async with connect(stage.app, transport, revision) as peer:
        held = [peer.start("tools/call", call_params("wait", name=name)) for name in ("a", "b")]
        for name in ("a", "b"):
            await stage.wait_until_started(name)
        with pytest.raises(RemoteError) as caught:
            await peer.request("tools/call", call_params("echo", text="x"))
        assert caught.value.code == 429
        assert caught.value.data["retryAfterMs"] > 0
        if transport == "http":
            assert caught.value.status_code == 429  # type: ignore[attr-defined]
            assert int(caught.value.headers["retry-after"]) > 0  # type: ignore[attr-defined]
        stage.release("a")
        stage.release("b")
        for one in held:
            await one
        await still_serves(peer)
