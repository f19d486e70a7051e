"""Test the driver and the oracle: an invalid message fails the test, even if the test does not read it."""

from typing import Any

import pytest

from dovetail import Server
from dovetail.errors import RemoteError
from support import oracle
from support.driver import HANDSHAKE, STATELESS, Peer, connect, header_value
from support.list_capabilities import ONLY_TOOLS
from support.official_schemas import each_schema, needs_schema

OLD = "2025-11-25"


def result(value: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "result": value}


@each_schema([*HANDSHAKE, STATELESS])
def test_good_messages_are_let_through(revision: str) -> None:
    stamp = {"resultType": "complete"} if revision == STATELESS else {}
    cached = {"ttlMs": 0, "cacheScope": "private"} if revision == STATELESS else {}
    tool = {"name": "x", "inputSchema": {"type": "object"}}
    oracle.check_result(revision, "tools/list", result({"tools": [tool]} | stamp | cached))
    oracle.check_result(revision, "tools/call", result({"content": [{"type": "text", "text": "x"}]} | stamp))
    oracle.check_error(revision, {"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "no"}})
    oracle.check_notification(revision, {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {}})


@each_schema([*HANDSHAKE, STATELESS])
def test_bad_messages_are_not(revision: str) -> None:
    stamp = {"resultType": "complete"} if revision == STATELESS else {}
    for method, value in (
        ("tools/list", {"tools": [{"name": "x"}]}),
        ("tools/call", {"content": [{"type": "text"}]}),
        ("tools/call", {"content": [{"type": "carrier-pigeon"}]}),
        ("resources/read", {}),
        ("no/such", {}),
    ):
        with pytest.raises(AssertionError):
            oracle.check_result(revision, method, result(value | stamp))
    with pytest.raises(AssertionError):
        oracle.check_notification(revision, {"jsonrpc": "2.0", "method": "notifications/unheard-of"})
    with pytest.raises(AssertionError):
        oracle.check_notification(revision, {"jsonrpc": "2.0", "method": "notifications/progress", "params": {}})
    with pytest.raises(AssertionError):
        oracle.check_error(revision, {"jsonrpc": "2.0", "id": 1, "error": {"code": "x", "message": "no"}})
    with pytest.raises(AssertionError):
        oracle.check_server_request(revision, {"jsonrpc": "2.0", "id": 1, "method": "tools/list"})


@pytest.mark.parametrize("code", [-32000, -32001, -32002, -32003, -32019, -32023, -32042, -32099])
def test_codes_the_stateless_era_does_not_have_are_not(code: int) -> None:
    with pytest.raises(AssertionError, match="is not a code"):
        oracle.check_error(STATELESS, {"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": "no"}})


def test_the_stateless_era_must_say_what_a_result_is() -> None:
    with pytest.raises(AssertionError):
        oracle.check_result(STATELESS, "tools/call", result({"content": []}))


@needs_schema(OLD)
async def test_an_unread_violation_fails_the_test() -> None:
    async def careless() -> None:
        async with connect(Server("x"), "memory", OLD) as peer:
            peer.receive(b'{"jsonrpc":"2.0","method":"notifications/unheard-of"}', None)

    with pytest.raises(AssertionError, match="unheard-of"):
        await careless()


@pytest.mark.parametrize(
    "data", [b"not json", b'{"jsonrpc":"2.0","method":"x",\n"params":{}}', b'{"jsonrpc":"2.0","x":NaN}']
)
async def test_what_is_not_one_line_of_json_is_a_violation(data: bytes) -> None:
    peer = Peer("memory", STATELESS, {}, {})
    peer.receive(data, None)
    assert peer.violations


async def test_an_answer_given_twice_is_a_violation() -> None:
    app = Server("x", capabilities=ONLY_TOOLS)
    async with connect(app, "memory", OLD) as peer:
        pending = peer.start("tools/list")
        await pending
        peer.settle(result({"tools": []}) | {"id": pending.id}, pending, None)
        assert "second response" in str(peer.violations.pop())


async def test_an_error_is_raised_with_all_it_says() -> None:
    async with connect(Server("x"), "http", STATELESS) as peer:
        with pytest.raises(RemoteError) as caught:
            await peer.request("no/such")
        assert (caught.value.code, caught.value.status_code) == (-32601, 404)  # type: ignore[attr-defined]


def test_header_values_are_encoded_where_they_must_be() -> None:
    assert header_value("plain name") == "plain name"
    assert header_value("h\u00e9") == "=?base64?aMOp?="
    assert header_value(" x") == "=?base64?IHg=?="
    assert header_value("=?base64?x?=") == "=?base64?PT9iYXNlNjQ/eD89?="
