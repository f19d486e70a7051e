"""Test encoding requests with the `_meta` of their era, and mapping errors to exceptions."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import InvalidResult, NotFound, RateLimited, RemoteError, ToolError, Unauthorized
from dovetail.protocol.client_messages import RequestEncoder, create_error, encode_initialize, parse_progress
from dovetail.protocol.headers import decode_value
from dovetail.wire.lifecycle import ClientCapabilities, Implementation, RootsCapability
from dovetail.wire.meta import CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL, PROTOCOL_VERSION
from dovetail.wire.methods import METHODS
from dovetail.wire.raw_message import ErrorObject
from dovetail.wire.revisions import DRAFT, HANDSHAKE_REVISIONS, NEWEST_REVISION

CLIENT = Implementation(name='the "client"', version="1")
ABLE = ClientCapabilities(roots=RootsCapability(list_changed=True))

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
params = st.dictionaries(st.text(min_size=1).filter(lambda key: key != "_meta"), values, max_size=4)
metas = st.none() | st.dictionaries(st.text(min_size=1, max_size=8), values, max_size=3)


@given(id=st.integers(1) | st.text(), own=params, meta=metas, method=st.sampled_from(sorted(METHODS)))
def test_a_stateless_request_says_who_speaks(id: Any, own: dict[str, Any], meta: Any, method: str) -> None:
    message = json.loads(RequestEncoder(NEWEST_REVISION, CLIENT, ABLE, "warning").encode_request(id, method, own, meta))
    said = message["params"].pop("_meta")
    assert message == {"jsonrpc": "2.0", "id": id, "method": method, "params": own}
    assert said.pop("progressToken") == id
    expected = {
        PROTOCOL_VERSION: NEWEST_REVISION,
        CLIENT_INFO: {"name": 'the "client"', "version": "1"},
        CLIENT_CAPABILITIES: {"roots": {"listChanged": True}},
        LOG_LEVEL: "warning",
    }
    assert said == expected | {key: value for key, value in (meta or {}).items() if key != "progressToken"}


@given(id=st.integers(1) | st.text(), own=params, meta=metas, revision=st.sampled_from([*HANDSHAKE_REVISIONS, DRAFT]))
def test_a_handshake_request_carries_only_its_token(id: Any, own: dict[str, Any], meta: Any, revision: str) -> None:
    message = json.loads(RequestEncoder(revision, CLIENT, ABLE, "warning").encode_request(id, "tools/call", own, meta))
    said = message["params"].pop("_meta")
    assert message["params"] == own
    assert said.pop("progressToken") == id
    assert said == {key: value for key, value in (meta or {}).items() if key != "progressToken"}


@given(uri=st.text(max_size=200))
def test_names_survive_their_header(uri: str) -> None:
    headers = dict(RequestEncoder(NEWEST_REVISION, CLIENT, ABLE).build_headers("resources/read", {"uri": uri}))
    assert headers[b"mcp-method"] == b"resources/read"
    assert headers[b"mcp-protocol-version"] == NEWEST_REVISION.encode()
    name = headers[b"mcp-name"]
    assert not set(name) & {0, 10, 13}
    assert decode_value(name.decode("ascii")) == uri


def test_what_has_no_name_has_no_header_for_it() -> None:
    speaker = RequestEncoder(NEWEST_REVISION, CLIENT, ABLE)
    assert b"mcp-name" not in dict(speaker.build_headers("tools/list", {}))
    assert b"mcp-name" not in dict(speaker.build_headers("none/such", {"name": "x"}))
    assert b"mcp-name" not in dict(speaker.build_headers("tools/call", {"name": 5}))


def test_the_opening() -> None:
    message = json.loads(encode_initialize(HANDSHAKE_REVISIONS[-1], CLIENT, ABLE, 1))
    assert message["params"] == {
        "protocolVersion": HANDSHAKE_REVISIONS[-1],
        "capabilities": {"roots": {"listChanged": True}},
        "clientInfo": {"name": 'the "client"', "version": "1"},
    }


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({"progressToken": 1, "progress": 2, "total": 3, "message": "x"}, (1, 2, 3, "x")),
        ({"progressToken": "a", "progress": 0.5}, ("a", 0.5, None, None)),
        ({"requestId": 4, "progress": {"current": 1, "total": 2, "message": "m"}}, (4, 1, 2, "m")),
        ({"progressToken": 1, "progress": 2, "total": "3", "message": ["x"]}, (1, 2, None, None)),
    ],
)
def test_progress(said: Any, meant: Any) -> None:
    assert parse_progress(json.dumps(said).encode()) == meant


@given(values)
def test_progress_that_is_none_is_refused_and_nothing_else_happens(said: Any) -> None:
    try:
        parse_progress(json.dumps(said).encode())
    except InvalidResult:
        return
    assert isinstance(said, dict)


@pytest.mark.parametrize(
    ("revision", "method", "code", "kind"),
    [
        (HANDSHAKE_REVISIONS[-1], "resources/read", -32002, NotFound),
        (HANDSHAKE_REVISIONS[-1], "resources/read", -32001, NotFound),
        (NEWEST_REVISION, "tools/call", -32602, RemoteError),
        (HANDSHAKE_REVISIONS[0], "tools/call", -32003, Unauthorized),
        (HANDSHAKE_REVISIONS[0], "tools/call", -32004, RateLimited),
        (NEWEST_REVISION, "tools/call", 429, RateLimited),
        (NEWEST_REVISION, "tools/call", -32003, RemoteError),
        (NEWEST_REVISION, "tools/list", -32004, RemoteError),
        (NEWEST_REVISION, "resources/read", -32001, RemoteError),
        (NEWEST_REVISION, "resources/read", -32002, NotFound),
        (HANDSHAKE_REVISIONS[0], "tools/call", -32002, ToolError),
        (DRAFT, "tools/call", -32003, NotFound),
        (DRAFT, "prompts/get", -32004, NotFound),
        (None, "initialize", -32603, RemoteError),
    ],
)
def test_codes_have_kinds(revision: str | None, method: str, code: int, kind: type[Exception]) -> None:
    error = create_error(revision, method, ErrorObject(code, "no"))
    assert isinstance(error, kind)
    if kind is RemoteError:
        assert type(error) is RemoteError


@pytest.mark.parametrize("revision", [NEWEST_REVISION, HANDSHAKE_REVISIONS[-1]])
def test_a_meta_of_the_caller_is_sent_once(revision: str) -> None:
    """A name that occurs twice in one object is refused by careful servers."""
    speaker = RequestEncoder(revision, CLIENT, ClientCapabilities())

    def said(own: dict[str, Any], meta: dict[str, Any] | None) -> Any:
        def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            assert len(dict(pairs)) == len(pairs)
            return dict(pairs)

        return json.loads(speaker.encode_request(7, "x", own, meta), object_pairs_hook=once)["params"]["_meta"]

    plain = said({}, None)
    assert said({}, {"progressToken": "mine"}) == plain
    own = {"_meta": {"a/b": 1, "progressToken": 3}}
    assert said(own, {"c/d": 2}) == plain | {"a/b": 1, "c/d": 2}
    assert own == {"_meta": {"a/b": 1, "progressToken": 3}}
    assert said({"_meta": None}, None) == plain
