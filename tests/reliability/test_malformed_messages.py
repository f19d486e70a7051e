"""Malformed messages: every method, damaged by grammar and by bytes, over every transport and in both eras.

After each message the server sends the right error with the readable id, exactly one response if one is due, and
answers a health check. A hang, a crash or a silent drop fails the test.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

import harness
import pytest
from harness import CAPABILITIES, HANDSHAKE, NEWEST, VERSION, Client, Sse2024Client, StdioClient, Target
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("RELIABILITY_EXAMPLES", "60"))
relaxed = settings(
    max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

CALL = {"name": "echo", "arguments": {"text": "t"}}
METHODS: dict[str, dict[str, Any] | None] = {
    "initialize": {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}},
    "ping": None,
    "server/discover": {},
    "tools/list": {"cursor": "x"},
    "tools/call": CALL,
    "resources/list": {},
    "resources/templates/list": {},
    "resources/read": {"uri": "note://fixed"},
    "resources/subscribe": {"uri": "note://fixed"},
    "resources/unsubscribe": {"uri": "note://fixed"},
    "prompts/list": {},
    "prompts/get": {"name": "greeting", "arguments": {"name": "ada"}},
    "completion/complete": {
        "ref": {"type": "ref/prompt", "name": "greeting"}, "argument": {"name": "name", "value": "a"},
        "context": {"arguments": {"tone": "warm"}},
    },
    "logging/setLevel": {"level": "info"},
    "sampling/createMessage": {"messages": [], "maxTokens": 1},
    "elicitation/create": {"message": "m", "requestedSchema": {"type": "object", "properties": {}}},
    "roots/list": {},
    "notifications/initialized": None,
    "notifications/cancelled": {"requestId": 1, "reason": "r"},
    "notifications/progress": {"progressToken": 1, "progress": 1},
    "notifications/roots/list_changed": {},
    "no/such/method": {"a": 1},
}  # fmt: skip

ODD: list[Any] = [
    None, True, False, 0, -1, 1.5, 10**30, "", "x" * 300, "\u0000", "\u2028\u202e", [], [[]], {}, {"": None},
    {"__proto__": {}}, [None] * 50, "method", {"jsonrpc": "2.0"},
]  # fmt: skip
odd = st.sampled_from(ODD) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    """A message of some method with one to three things wrong with it, still JSON."""
    method = draw(st.sampled_from(sorted(METHODS)))
    params = METHODS[method]
    made: dict[str, Any] = {"jsonrpc": "2.0", "id": draw(st.integers(10**6, 10**7)), "method": method}
    if method.startswith("notifications/"):
        del made["id"]
    if params is not None:
        made["params"] = json.loads(json.dumps(params))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(_places(made)))
        if draw(st.booleans()):
            place[0][place[1]] = json.loads(json.dumps(draw(odd)))  # a copy: later damage must not reach the sample
        elif place[1] != "id" or draw(st.booleans()):
            place[0].pop(place[1], None)
    if draw(st.booleans()):
        made[draw(st.sampled_from(["result", "error", "extra", "Method", "params\u0000"]))] = json.loads(
            json.dumps(draw(odd))
        )
    return made


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        for key, inner in value.items():
            found += [(value, key), *_places(inner)]
    return found or [({}, "nothing")]


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """The bytes of a good message, cut, flipped, repeated or filled with rubbish; without line ends."""
    method = draw(st.sampled_from(sorted(METHODS)))
    data = bytearray(json.dumps(harness.message(method, METHODS[method], draw(st.integers(10**6, 10**7)))).encode())
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(["flip", "cut", "insert", "repeat", "drop"])):
            case "flip" if data:
                data[place] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[place:]
            case "insert":
                data[place:place] = draw(st.binary(min_size=1, max_size=6) | st.sampled_from(RUBBISH))
            case "repeat":
                data[place:place] = data[place : place + 20]
            case _:
                del data[place : place + draw(st.integers(1, 8))]
    return bytes(data).replace(b"\n", b" ").replace(b"\r", b" ")


RUBBISH = [
    b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\\ud800", b"NaN", b"-Infinity", b"1e999", b"01",
    b"1" * 60, b"[" * 100, b'{"a":' * 100, b"\x00", b"\x1b[31m", b",,", b'"id":1,', b'"method":"ping",', b"//",
]  # fmt: skip


# What is due: an opinion of our own, from the JSON-RPC rules.


def strict(data: bytes) -> Any:
    """The one reading of these bytes; ValueError if there is none."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("twice")
        return dict(pairs)

    def refuse(text: str) -> Any:
        raise ValueError(text)

    def whole(text: str) -> int:
        if len(text.lstrip("-")) > 40:
            raise ValueError("digits")
        return int(text)

    def real(text: str) -> float:
        if float(text) in (float("inf"), float("-inf")) or any(len(run) > 40 for run in text.split(".")):
            raise ValueError("range")
        return float(text)

    value = json.loads(data.decode(), object_pairs_hook=once, parse_constant=refuse, parse_int=whole, parse_float=real)
    json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair has no form
    return value


def due(value: Any) -> tuple[str, Any]:
    """What a decoded message calls for: ("nothing" | "refusal" | "answer", the id that can be read)."""
    id = value.get("id") if isinstance(value, dict) else None
    readable = _readable(id)
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        return "refusal", readable
    if "method" in value:
        method, params = value["method"], value.get("params")
        well = type(method) is str and 0 < len(method) <= 128 and (params is None or type(params) is dict)
        if not well or "result" in value or "error" in value:
            return "refusal", readable
        if "id" not in value:
            return "nothing", None
        return ("answer" if readable is not None else "refusal"), readable
    if ("result" in value) == ("error" in value):
        return "refusal", readable
    error = value.get("error")
    formed = "result" in value or (
        type(error) is dict and type(error.get("code")) is int and type(error.get("message")) is str
    )
    good_id = readable is not None or ("error" in value and id is None)
    return ("nothing", None) if formed and good_id else ("refusal", readable)


def _readable(id: Any) -> Any:
    return id if type(id) is int or (type(id) is str and len(id.encode()) <= 256) else None


def check(data: bytes, got: list[Any], door: "Door") -> None:
    """Whether these messages are what these bytes call for."""
    try:
        value = strict(data)
    except (ValueError, RecursionError):
        assert [one["error"]["code"] for one in got] == [-32700], (data, got)
        assert got[0].get("id") is None
        return
    if _deeper(value, 64):
        assert [one["error"]["code"] for one in got] == [-32700]
        return
    kind, id = due(value)
    if kind == "nothing" and "method" not in value and isinstance(door, HttpDoor) and door.revision == NEWEST:
        kind, id = "refusal", _readable(value.get("id"))  # nobody can have asked: responses have no place there
    if kind == "nothing":
        assert not got, (data, got)
        return
    assert len(got) == 1, (data, got)
    assert got[0].get("id") == id
    assert type(got[0].get("id")) is type(id)
    if kind == "refusal":
        assert got[0]["error"]["code"] == -32600, (data, got)
    else:
        assert ("result" in got[0]) != ("error" in got[0])
        assert got[0].get("error", {}).get("code") != -32603, (data, got)


def _deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper(one, levels - 1) for one in inner)


# The doors: each sends bytes and says which messages came back


class HttpDoor:
    """POST to the endpoint, of either era."""

    def __init__(self, target: Target, revision: str) -> None:
        self.client = Client(target, revision)
        self.revision = revision

    def send(self, data: bytes) -> list[Any]:
        headers = {}
        if self.revision == NEWEST:
            headers = {"mcp-protocol-version": NEWEST} | _mirror(data)
        answer = self.client.post(data, **headers)
        got = answer.messages
        assert (answer.status == 202) == (not got), answer
        assert answer.status in (200, 202, 400, 404), answer
        if got and got[0].get("error", {}).get("code") in (-32700, -32600) and "id" not in got[0]:
            assert answer.status == 400
        return got

    def healthy(self) -> bool:
        return self.client.is_healthy()


class StdioDoor:
    """One line on standard input."""

    def __init__(self, target: Target, revision: str) -> None:
        self.pipe = StdioClient(target, revision)
        self.marks = iter(range(10**9))

    def send(self, data: bytes) -> list[Any]:
        return self._between(data)

    def _between(self, data: bytes) -> list[Any]:
        """What comes back besides the answer to an echo that follows; one more echo lets slower answers arrive."""
        if data.strip() in (b"", b"\r"):
            return [{"error": {"code": -32700}}]  # an empty line is no message
        self.pipe.send(data)
        for _ in range(2):
            mark = f"mark-{next(self.marks)}"
            self.pipe.call("shout", {"text": "x"}, id=mark)
        return self.pipe.unread_messages()

    def healthy(self) -> bool:
        return self.pipe.is_healthy()


class OldDoor:
    """The POST address of the first revision; answers come on the stream."""

    def __init__(self, target: Target, revision: str) -> None:
        self.old = Sse2024Client(target, revision)
        self.marks = iter(range(10**9))

    def send(self, data: bytes) -> list[Any]:
        assert self.old.send(data).status == 202
        for _ in range(2):
            self.old.call("shout", {"text": "x"}, id=f"mark-{next(self.marks)}")
        return self.old.unread_messages()

    def healthy(self) -> bool:
        return self.old.is_healthy()


def _mirror(data: bytes) -> dict[str, str]:
    """The headers an honest client would send with this body, as far as it has any."""
    try:
        value = json.loads(data)
        return {
            name: text for name, text in harness.mirror_headers(value).items() if text.isascii() and text.isprintable()
        }
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return {}


DOORS = {
    "http stateless": (HttpDoor, NEWEST), "http session": (HttpDoor, HANDSHAKE), "stdio stateless": (StdioDoor, NEWEST),
    "stdio session": (StdioDoor, HANDSHAKE), "sse": (OldDoor, "2024-11-05"),
}  # fmt: skip
Door = HttpDoor | StdioDoor | OldDoor


@pytest.fixture(scope="module", params=DOORS)
def door(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    make, revision = DOORS[request.param]
    transport = "stdio" if make is StdioDoor else "http"
    with harness.run_target(tmp_path_factory.mktemp("t01"), transport, dev=True) as one:
        yield make(one, revision)
        assert one.alive
        assert "Traceback" not in one.log, one.log[-4000:]


def _in_era(door: Door, made: dict[str, Any]) -> dict[str, Any]:
    stateless = isinstance(door, HttpDoor | StdioDoor) and _revision(door) == NEWEST
    if stateless and type(made.get("params", {})) is dict:
        params = dict(made.get("params", {}))
        meta = params.get("_meta")
        params["_meta"] = {VERSION: NEWEST, CAPABILITIES: {}} | (meta if isinstance(meta, dict) else {})
        return made | {"params": params}
    return made


def _revision(door: Door) -> str:
    return door.revision if isinstance(door, HttpDoor) else door.pipe.revision if isinstance(door, StdioDoor) else ""


@relaxed
@given(made=damaged())
@example(made={"jsonrpc": "2.0", "id": None, "method": "tools/list"})
@example(made={"jsonrpc": "2.0", "id": True, "method": "tools/list"})
@example(made={"jsonrpc": "2.0", "id": 1.5, "method": "tools/list"})
@example(made={"jsonrpc": "2.0", "id": {}, "method": "tools/list"})
@example(made={"jsonrpc": "2.0", "id": "i" * 257, "method": "tools/list"})
@example(made={"jsonrpc": "2.0", "id": 2**70, "method": "tools/list"})
@example(made={"jsonrpc": "2.0", "method": 7, "id": 3})
@example(made={"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": {"name": ["echo"]}})
@example(made={"jsonrpc": "2.0", "id": 5, "result": {}, "error": {}})
def test_a_damaged_message_is_answered_as_it_deserves(door: Door, made: dict[str, Any]) -> None:
    data = json.dumps(_in_era(door, made)).encode()
    check(data, door.send(data), door)
    assert door.healthy()


@relaxed
@given(data=broken())
@example(data=b"")
@example(data=b"{}")
@example(data=b"null")
@example(data=b"[]")
@example(data=b"\xff\xfe")
@example(data=b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}')
@example(data=b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":' + b"[" * 100_000)
def test_broken_bytes_are_answered_as_they_deserve(door: Door, data: bytes) -> None:
    check(data, door.send(data), door)
    assert door.healthy()


@pytest.mark.soak
@settings(relaxed, max_examples=20_000)
@given(made=damaged(), data=broken())
def test_for_long(door: Door, made: dict[str, Any], data: bytes) -> None:
    for one in (json.dumps(_in_era(door, made)).encode(), data):
        check(one, door.send(one), door)
    assert door.healthy()
