"""Every size limit, just under, at and over it: the status or code, the memory, and health afterwards.

The limits of JSON (depth, members, digits) have no setting and are tested the same way.
"""

import json
from collections.abc import Iterator
from typing import Any

import harness
import pytest
from harness import (
    CAPABILITIES,
    HANDSHAKE,
    NEWEST,
    VERSION,
    Client,
    MiB,
    StartTarget,
    StdioClient,
    Target,
    encode_http_request,
    message,
    record_measurement,
)

from dovetail import ServerLimits

LIMITS = ServerLimits()
MOST = 64 * MiB  # over idle, whatever one peer sends


@pytest.fixture(autouse=True)
def bounded(request: pytest.FixtureRequest) -> Iterator[None]:
    """Around each test: the shared target stays within its memory and healthy."""
    name = next((name for name in ("served", "piped") if name in request.fixturenames), None)
    if name is None:
        yield
        return
    target: Target = request.getfixturevalue(name)
    _door(target)
    idle = target.rss
    target.reset_peak()
    yield
    over = target.peak - idle
    record_measurement(f"{request.node.name[:60]}", over / MiB, "MiB")
    assert over <= MOST, f"{over / MiB:.0f} MiB over idle"
    assert _door(target).is_healthy()
    assert "Traceback" not in target.log


def _door(target: Target) -> Client | StdioClient:
    if "door" not in target.extra:
        target.extra["door"] = Client(target) if target.port else StdioClient(target)
        assert target.extra["door"].is_healthy()  # what is idle has started
    return target.extra["door"]


def sized(size: int, id: Any = 1) -> bytes:
    """A call of exactly this many bytes: a text the tool will not be asked to give back."""
    made = message("tools/call", {"name": "take", "arguments": {"text": ""}}, id)
    made["params"]["_meta"] = {VERSION: NEWEST, CAPABILITIES: {}}
    empty = json.dumps(made).encode()
    made["params"]["arguments"]["text"] = "w" * (size - len(empty))
    data = json.dumps(made).encode()
    assert len(data) == size
    return data


CALL = {"mcp-protocol-version": NEWEST, "mcp-method": "tools/call", "mcp-name": "take"}


@pytest.mark.parametrize(("over", "status"), [(-1, 200), (0, 200), (1, 413), (LIMITS.max_body_bytes, 413)])
def test_body(served: Target, over: int, status: int) -> None:
    assert Client(served).post(sized(LIMITS.max_body_bytes + over), **CALL).status == status


@pytest.mark.parametrize(("over", "status"), [(0, 200), (1, 413)])
def test_body_in_pieces_of_unknown_length(served: Target, over: int, status: int) -> None:
    data = sized(LIMITS.max_body_bytes + over)
    pieces = [data[start : start + 60_000] for start in range(0, len(data), 60_000)]
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    client = Client(served)
    headers = client.headers | CALL | {"transfer-encoding": "chunked"}
    assert client.exchange(encode_http_request("POST", "/mcp", headers) + chunked).status == status


def test_a_declared_length_is_refused_before_it_is_sent(served: Target) -> None:
    client = Client(served)
    for length in (LIMITS.max_body_bytes + 1, 10**11, 10**30):
        with client.send_only(
            encode_http_request("POST", "/mcp", client.headers | {"content-length": str(length)})
        ) as connection:
            assert connection.answer().status in (400, 413)


@pytest.mark.parametrize("length", ["-1", "1e3", "0x10", "+5", "5, 5", " ", "٣"])
def test_a_length_that_is_not_a_number_is_refused(served: Target, length: str) -> None:
    client = Client(served)
    with client.send_only(
        encode_http_request("POST", "/mcp", client.headers | {"content-length": length}, b"{}")
    ) as connection:
        assert connection.answer().status in (400, 413)


@pytest.mark.parametrize(("over", "status"), [(0, 202), (1, 413)])
def test_body_of_the_old_transport(served: Target, over: int, status: int) -> None:
    old = harness.Sse2024Client(served)
    assert old.send(sized(LIMITS.max_body_bytes + over, id="big")).status == status
    if status == 202:
        assert "result" in old.answer("big")
    old.close()


@pytest.mark.parametrize("over", [-1, 0])
def test_line_within_the_limit(piped: Target, over: int) -> None:
    pipe = _door(piped)
    pipe.send(sized(LIMITS.max_message_bytes + over, id=f"line{over}"))
    assert "result" in pipe.answer(f"line{over}")


@pytest.mark.parametrize("size", [LIMITS.max_message_bytes + 1, 3 * LIMITS.max_message_bytes, 100 * MiB])
def test_line_over_the_limit_is_refused_once_and_skipped(piped: Target, size: int) -> None:
    pipe = _door(piped)
    for _ in range(size // MiB):
        pipe.raw(b"x" * MiB)
    pipe.raw(b"x" * (size % MiB) + b"\n")
    refused = pipe.receive()
    assert refused["error"]["code"] == -32600
    assert "id" not in refused or refused["id"] is None
    assert pipe.is_healthy()
    assert not pipe.unread_messages()


def test_a_line_that_never_ends_is_not_kept(piped: Target) -> None:
    pipe = _door(piped)
    for _ in range(200):
        pipe.raw(b"x" * MiB)
    assert pipe.receive()["error"]["code"] == -32600
    pipe.raw(b"\n")


@pytest.mark.parametrize(
    ("over", "status"), [(-1, 200), (0, 200), (1, 431), (LIMITS.max_header_bytes, 431), (60_000, 431)]
)
def test_one_header(served: Target, over: int, status: int) -> None:
    client = Client(served)
    client.headers["x-filler"] = "f" * (LIMITS.max_header_bytes - len("x-filler") + over)
    assert client.request("tools/list").status == status


@pytest.mark.parametrize(("over", "status"), [(-1, 200), (0, 200), (1, 431), (LIMITS.max_header_block_bytes, 431)])
def test_all_headers(served: Target, over: int, status: int) -> None:
    """The block counts the address, and each header with its colon, space and line end."""
    client = Client(served)
    body = json.dumps(message("tools/list", harness.stateless_params(), 1)).encode()
    headers = client.headers | {"mcp-protocol-version": NEWEST, "mcp-method": "tools/list"}
    headers["content-length"] = str(len(body))
    used = len("/mcp") + sum(len(f"{name}: {value}\r\n") for name, value in headers.items())
    left = LIMITS.max_header_block_bytes + over - used
    number = 0
    while left:
        size = left if left < 5000 else 4000  # The last header is never too short for its name.
        name = f"x-{number:06}"
        headers[name] = "f" * max(0, size - len(f"{name}: \r\n"))
        left -= size
        number += 1
    connection = client.connection()
    connection.send(encode_http_request("POST", "/mcp", headers, body))
    assert connection.answer().status == status


@pytest.mark.parametrize("piece", [b"GET /" + b"u" * 100_000, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000])
def test_a_head_that_never_ends_is_refused(served: Target, piece: bytes) -> None:
    with harness.Connection(served.port) as connection:
        connection.send(piece)
        assert connection.answer().status in (400, 431)
        assert connection.wait_closed()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A target with limits that are quickly reached."""
    with harness.run_target(
        tmp_path_factory.mktemp("t03"), "http", limits={"max_uri_bytes": 200, "max_result_bytes": 1000}
    ) as one:
        yield one


@pytest.mark.parametrize(("over", "good"), [(-1, True), (0, True), (1, False), (5000, False)])
@pytest.mark.parametrize("revision", [NEWEST, HANDSHAKE])
def test_uri(small: Target, revision: str, over: int, good: bool) -> None:
    uri = "note://" + "u" * (200 + over - len("note:///text")) + "/text"
    answer = Client(small, revision).request("resources/read", {"uri": uri}).message
    assert ("result" in answer) == good
    assert good or answer["error"]["code"] == -32602


def test_a_subscription_cannot_store_data_on_the_server(served: Target) -> None:
    client = Client(served, HANDSHAKE)
    for number in range(20):
        answer = client.request("resources/subscribe", {"uri": f"note://{number}" + "u" * 3 * MiB})
        assert answer.message["error"]["code"] == -32602
    assert "result" in client.request("resources/subscribe", {"uri": "note://fixed"}).message
    long = {"notifications": {"resourceSubscriptions": ["note://" + "u" * 3 * MiB]}}
    assert Client(served).request("subscriptions/listen", long).message["error"]["code"] == -32602


def test_a_handshake_cannot_store_data_on_the_server(served: Target) -> None:
    client = Client(served, HANDSHAKE)
    about: dict[str, Any] = {
        "protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "", "version": "1"},
    }  # fmt: skip
    spare = LIMITS.max_meta_bytes - len(json.dumps(about, separators=(",", ":")))
    for over, good in ((-1, True), (0, True), (1, False), (3 * MiB, False)):
        about["clientInfo"]["name"] = "n" * (spare + over)
        answer = client.request("initialize", about).message
        assert ("result" in answer) == good
        assert good or answer["error"]["code"] == -32602


def test_cursor(start: StartTarget) -> None:
    first = Client(start(server={"page_size": 1})).request("tools/list").message["result"]
    cursor = first["nextCursor"]
    for over, good in ((0, True), (1, False)):
        target = start(server={"page_size": 1}, limits={"max_cursor_bytes": len(cursor) - over})
        for revision in (NEWEST, HANDSHAKE):
            answer = Client(target, revision).request("tools/list", {"cursor": cursor}).message
            assert ("result" in answer) == good
            assert good or answer["error"]["code"] == -32602


@pytest.mark.parametrize(("over", "good"), [(-1, True), (0, True), (1, False), (MiB, False)])
@pytest.mark.parametrize("revision", [NEWEST, HANDSHAKE])
def test_meta(served: Target, revision: str, over: int, good: bool) -> None:
    client = Client(served, revision)
    frame: dict[str, Any] = {VERSION: NEWEST, CAPABILITIES: {}} if revision == NEWEST else {}
    spare = LIMITS.max_meta_bytes + over - len(json.dumps(frame | {"filler": ""}, separators=(",", ":")))
    answer = client.request("tools/list", None, filler="f" * spare)
    assert ("result" in answer.message) == good
    assert good or answer.message["error"]["code"] == -32602


def test_meta_on_stdio(piped: Target) -> None:
    pipe = _door(piped)
    answer = pipe.request("tools/list", {"_meta": {"filler": "f" * LIMITS.max_meta_bytes}})
    assert answer["error"]["code"] == -32602


@pytest.mark.parametrize("revision", [NEWEST, HANDSHAKE])
def test_result(small: Target, revision: str) -> None:
    empty = len(json.dumps({"content": [{"type": "text", "text": ""}]}, separators=(",", ":")))
    client = Client(small, revision)
    for over, good in ((-1, True), (0, True), (1, False), (100_000, False)):
        answer = client.call("blob", {"size": 1000 - empty + over}).message
        failed = "error" in answer or answer["result"].get("isError", False)
        assert failed != good, over


def test_result_at_the_default(served: Target) -> None:
    client = Client(served)
    assert len(client.call("blob", {"size": LIMITS.max_result_bytes - 1000}).text) == LIMITS.max_result_bytes - 1000
    assert "error" in client.call("blob", {"size": LIMITS.max_result_bytes}).message


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


# A message is one level itself, its params another.
@pytest.mark.parametrize(
    ("value", "good"),
    [
        (nested(60), True), (nested(63), False), (nested(500), False), (nested(200_000), False),
        (b"[" + b"1," * 49_000 + b"1]", True), (b"[" + b"1," * 50_000 + b"1]", False),
        (b"[" + b"[]," * 1_300_000 + b"[]]", False), (b"{" + b'"a":{},' * 400_000 + b'"b":1}', False),
        (b"1" * 19, True), (b"1" * 41, False), (b"1" * 4_000_000, False), (b"1e9999", False),
        (b"0." + b"1" * 3_000_000, False), (b'"' + b"0" * 3_000_000 + b'"', True),
        (b'"' + b"," * 3_000_000 + b'"', True),
        (b'"' + b'\\"' * 1_500_000 + b'"', True), (b'"' + b"\\u0061" * 600_000 + b'"', True),
    ],
    ids=lambda value: f"{value[:8].decode()}…{len(value)}" if isinstance(value, bytes) else str(value),
)  # fmt: skip
def test_json(served: Target, value: bytes, good: bool) -> None:
    client = Client(served)
    made = message("tools/list", harness.stateless_params({"filler": "@"}), 1)
    body = json.dumps(made).encode().replace(b'"@"', value)
    answer = client.post(body, **harness.mirror_headers(made))
    assert answer.status == (200 if good else 400), answer.body[:200]
    if not good:
        assert answer.message["error"]["code"] == -32700
        assert len(answer.body) < 1000


@pytest.mark.parametrize(
    ("made", "code"),
    [
        ({"id": "i" * 256, "method": "tools/list"}, None), ({"id": "i" * 257, "method": "tools/list"}, -32600),
        ({"id": "i" * MiB, "method": "tools/list"}, -32600), ({"id": 1, "method": "m" * 128}, -32601),
        ({"id": 1, "method": "m" * 129}, -32600), ({"id": 1, "method": "m" * MiB}, -32600),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_ids_and_methods(served: Target, made: dict[str, Any], code: int | None) -> None:
    client = Client(served, HANDSHAKE)
    answer = client.post(message(made["method"], None, made["id"]))
    assert answer.message.get("error", {}).get("code") == code
    assert len(answer.body) < 10_000 or code is None


LONG = "n" * (3 * MiB)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": LONG}), ("tools/call", {"name": "echo", "arguments": {LONG: 1}}),
        ("tools/call", {"name": "echo", "arguments": {f"k{n}": n for n in range(45_000)}}),
        ("tools/call", {"name": "change", "arguments": {"what": LONG}}),
        ("prompts/get", {"name": LONG}), ("prompts/get", {"name": "greeting", "arguments": {"name": "a", LONG: "x"}}),
        ("resources/read", {"uri": LONG}), ("tools/list", {"cursor": LONG}), ("logging/setLevel", {"level": LONG}),
        ("completion/complete", {"ref": {"type": LONG, "name": "x"}, "argument": {"name": "x", "value": "y"}}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": LONG}, "argument": {"name": "x", "value": "y"}}),
        ("initialize", {"protocolVersion": LONG, "capabilities": {}, "clientInfo": {"name": LONG[:9], "version": "1"}}),
        ("initialize", {"protocolVersion": "1", "capabilities": LONG, "clientInfo": {"name": "a", "version": "1"}}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_no_answer_is_an_echo(served: Target, method: str, params: dict[str, Any]) -> None:
    """What is refused or corrected is not repeated at length: at most a few kilobytes come back for megabytes."""
    answer = Client(served, HANDSHAKE).request(method, params)
    assert len(answer.body) < 16_384, answer.body[:300]


@pytest.mark.parametrize(("over", "status"), [(-1, 200), (0, 200), (1, 503)])
@pytest.mark.parametrize("revision", [NEWEST, HANDSHAKE])
def test_bytes_of_all_calls_at_work(start: StartTarget, revision: str, over: int, status: int) -> None:
    """Large messages share a budget while they are worked on; small ones are not held up by them."""
    client = Client(start(limits={"max_inflight_bytes": MiB}), revision)

    def waiting(size: int) -> bytes:
        empty = client.prepare("tools/call", {"name": "wait", "arguments": {"key": "k", "text": ""}}, 1)
        spare = size - len(empty.partition(b"\r\n\r\n")[2])
        return client.prepare("tools/call", {"name": "wait", "arguments": {"key": "k", "text": "w" * spare}}, 1)

    with client.send_only(waiting(MiB // 2)) as first, client.send_only(b"") as second:
        client.call("until", {"what": "started", "key": "k"})
        second.send(waiting(MiB // 2 + over))
        if status == 200:
            client.call("until", {"what": "started", "key": "k", "count": 2})
        assert client.is_healthy()
        if status == 503:
            refused = second.answer()
            assert refused.status == 503
            assert "retry-after" in refused.headers
        client.call("release", {"key": "k"})
        assert first.answer().status == 200
        assert status == 503 or second.answer().status == 200
    assert client.exchange(waiting(MiB // 2 + over)).status == 200  # there is room again
