"""Test the stateless era: required request fields, mirrored headers and result fields."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import (
    HeaderMismatch,
    InternalError,
    InvalidParams,
    MethodNotFound,
    ProtocolError,
    ResourceNotFound,
    UnsupportedProtocolVersion,
)
from dovetail.protocol.exchange import NO_CAPABILITIES, IncomingExchange
from dovetail.protocol.stateless import StatelessProtocol, is_stateless_message
from dovetail.wire.base import EmptyResult
from dovetail.wire.codec import convert
from dovetail.wire.content import TextContent
from dovetail.wire.input_required import InputRequiredResult
from dovetail.wire.lifecycle import TASKS_EXTENSION, Implementation
from dovetail.wire.methods import REQUESTS
from dovetail.wire.revisions import REVISIONS
from dovetail.wire.tools import CallToolResult

VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
CLIENT = "io.modelcontextprotocol/clientInfo"
LEVEL = "io.modelcontextprotocol/logLevel"
SERVER = "io.modelcontextprotocol/serverInfo"
NEWEST = "2026-07-28"

META = {VERSION: NEWEST, CAPABILITIES: {}}
HEADERS = {b"mcp-protocol-version": NEWEST.encode(), b"mcp-method": b"tools/call", b"mcp-name": b"add"}


class Described:
    """A server with a name."""

    def __init__(self, name: str = "calc", title: str | None = None) -> None:
        self.implementation = Implementation(name=name, version="1.2", title=title)
        self.requests = REQUESTS


ERA = StatelessProtocol(Described(title="Calc"), REVISIONS, 1000)


def request(method: str = "tools/call", *, meta: Any = META, id: Any = 1, **params: Any) -> dict[str, Any]:
    if method == "tools/call":
        params = {"name": "add"} | params
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params | ({} if meta is ... else {"_meta": meta})}


def admit(**meta: Any) -> IncomingExchange:
    return ERA.admit(request(meta=META | meta), None)


# Telling the eras apart


@pytest.mark.parametrize(
    ("message", "modern"),
    [
        (request(), True),
        (request(meta={VERSION: "1999"}), True),
        (request(meta={VERSION: None}), True),
        (request(meta={}), False),
        (request(meta=[VERSION]), False),
        (request(meta=VERSION), False),
        (request(meta=...), False),
        ({"method": "ping"}, False),
        ({"method": "ping", "params": None}, False),
        ({"method": "ping", "params": [META]}, False),
    ],
)
def test_a_message_is_of_this_era_by_its_own_account(message: dict[str, Any], modern: bool) -> None:
    assert is_stateless_message(message) == modern


def test_the_era_is_served_if_one_of_its_revisions_is() -> None:
    assert StatelessProtocol(Described(), (NEWEST,), 1).is_served
    assert not StatelessProtocol(Described(), ("2025-11-25", "draft"), 1).is_served


# Admission


def test_an_admitted_request_knows_who_asks() -> None:
    meta = META | {
        CAPABILITIES: {"sampling": {"tools": {}}, "elicitation": {"url": {}}},
        CLIENT: {"name": "chat", "version": "3"},
        LEVEL: "warning",
        "com.example/own": 1,
    }
    exchange = ERA.admit(request(meta=meta, id="x", arguments={"a": 1}), HEADERS, "alice")
    assert (exchange.id, exchange.method, exchange.headers) == ("x", "tools/call", HEADERS)
    assert exchange.params["arguments"] == {"a": 1}
    assert exchange.meta == meta
    caller = exchange.caller
    assert (caller.protocol_version, caller.is_stateless, caller.log_level, caller.principal) == (
        NEWEST,
        True,
        3,
        "alice",
    )
    assert caller.client_info == Implementation(name="chat", version="3")
    assert caller.client_capabilities.sampling is not None
    assert caller.client_capabilities.sampling.tools == {}
    assert caller.client_capabilities.roots is None


def test_a_bare_request_says_nothing_about_its_client() -> None:
    caller = admit().caller
    assert caller.client_capabilities is NO_CAPABILITIES
    assert (caller.client_info, caller.log_level, caller.principal) == (None, None, None)


@pytest.mark.parametrize("meta", [..., None, [], "x", {}, {CAPABILITIES: {}}, {VERSION: 20260728, CAPABILITIES: {}}])
def test_meta_must_name_the_revision(meta: Any) -> None:
    with pytest.raises(InvalidParams, match=VERSION):
        ERA.admit(request(meta=meta), None)


def test_a_long_progress_token_is_refused() -> None:
    meta = {VERSION: NEWEST, CAPABILITIES: {}}
    assert ERA.admit(request(meta=meta | {"progressToken": "x" * 256}), None).progress_token == "x" * 256
    with pytest.raises(InvalidParams, match="progressToken"):
        ERA.admit(request(meta=meta | {"progressToken": "x" * 257}), None)


@pytest.mark.parametrize("params", [{}, None, ...])
def test_a_request_without_parameters_names_no_revision(params: Any) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"} | ({} if params is ... else {"params": params})
    with pytest.raises(InvalidParams, match=VERSION):
        ERA.admit(message, HEADERS)


@pytest.mark.parametrize("revision", ["2025-11-25", "2099-01-01", "draft", "", "x" * 500])
def test_another_revision_is_refused_with_those_that_are_spoken(revision: str) -> None:
    with pytest.raises(UnsupportedProtocolVersion) as caught:
        admit(**{VERSION: revision})
    assert caught.value.code == -32022
    assert caught.value.data == {
        "supported": ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"],
        "requested": revision[:64],
    }


@pytest.mark.parametrize("declared", [None, [], "sampling", {"sampling": 1}, {"roots": {"listChanged": "yes"}}])
def test_capabilities_must_be_declared_and_well_formed(declared: Any) -> None:
    with pytest.raises(InvalidParams, match=CAPABILITIES):
        admit(**{CAPABILITIES: declared})


def test_unknown_capabilities_are_accepted() -> None:
    assert admit(**{CAPABILITIES: {"telepathy": {}}}).caller.client_capabilities == NO_CAPABILITIES


@pytest.mark.parametrize("given", [1, [], {}, {"name": "x"}, {"name": 1, "version": "1"}])
def test_a_client_that_introduces_itself_does_it_properly(given: Any) -> None:
    with pytest.raises(InvalidParams, match=CLIENT):
        admit(**{CLIENT: given})


def test_the_client_info_comes_from_every_request() -> None:
    era = StatelessProtocol(Described(), REVISIONS, 1000)
    for name in ("a", "a", "b", None, "x" * 5000, "x" * 5000, "a"):
        given = {} if name is None else {CLIENT: {"name": name, "version": "1"}}
        client = era.admit(request(meta={VERSION: "2026-07-28", CAPABILITIES: {}, **given}), None).caller.client_info
        assert (client and client.name) == name
    with pytest.raises(InvalidParams, match=CLIENT):
        era.admit(request(meta={VERSION: "2026-07-28", CAPABILITIES: {}, CLIENT: {"name": "a"}}), None)


@pytest.mark.parametrize("extra", [{}, {"icons": [{"src": "https://a.example/i.png"}]}, {"other": {"x": [1]}}])
def test_a_request_cannot_change_the_client_of_the_next_request(extra: dict[str, Any]) -> None:
    def admit_as(name: str) -> IncomingExchange:
        return admit(**{CLIENT: {"name": name, "version": "1"} | json.loads(json.dumps(extra))})

    for _ in range(2):
        exchange = admit_as("ada")
        client = exchange.caller.client_info
        assert client == convert({"name": "ada", "version": "1"} | extra, Implementation)
        (client.icons or []).clear()
        exchange.meta[CLIENT]["name"] = "bob"
    client = admit_as("bob").caller.client_info
    assert client == convert({"name": "bob", "version": "1"} | extra, Implementation)


def test_a_request_cannot_change_the_capabilities_of_the_next_request() -> None:
    declared = {"extensions": {TASKS_EXTENSION: {}}}
    extensions = admit(**{CAPABILITIES: declared}).caller.client_capabilities.extensions
    assert extensions is not None
    extensions[TASKS_EXTENSION]["on"] = extensions["com.example/admin"] = True
    assert admit(**{CAPABILITIES: declared}).caller.client_capabilities.extensions == {TASKS_EXTENSION: {}}


@pytest.mark.parametrize("level", ["loud", "", "INFO", 3, True, [], {}])
def test_a_log_level_is_one_of_eight(level: Any) -> None:
    with pytest.raises(InvalidParams, match=r"debug, info, notice, warning, error, critical, alert, emergency"):
        admit(**{LEVEL: level})


@pytest.mark.parametrize("method", ["initialize", "ping", "resources/subscribe", "tools/fly", "sampling/createMessage"])
def test_methods_of_other_revisions_and_of_clients_do_not_exist(method: str) -> None:
    headers = HEADERS | {b"mcp-method": method.encode()}
    with pytest.raises(MethodNotFound, match=method):
        ERA.admit(request(method), headers)


# Mirrored headers


def mismatch(headers: dict[bytes, bytes], message: dict[str, Any] | None = None) -> str:
    with pytest.raises(HeaderMismatch) as caught:
        ERA.admit(message or request(), headers)
    assert caught.value.code == -32020
    return caught.value.message


@pytest.mark.parametrize("header", HEADERS)
def test_each_header_must_be_there_and_repeat_the_body(header: bytes) -> None:
    ERA.admit(request(), HEADERS)
    assert header.decode() in mismatch({name: value for name, value in HEADERS.items() if name != header})
    assert header.decode() in mismatch(HEADERS | {header: b"other"})
    assert header.decode() in mismatch(HEADERS | {header: b""})
    assert header.decode() in mismatch(HEADERS | {header: HEADERS[header].upper() + b"\xff"})


def test_methods_are_compared_exactly() -> None:
    mismatch(HEADERS | {b"mcp-method": b"Tools/Call"})
    mismatch(HEADERS | {b"mcp-name": b"Add"})


def test_the_headers_are_looked_at_before_the_revision_and_the_method() -> None:
    mismatch(HEADERS, request(meta=META | {VERSION: "1999-01-01"}))
    mismatch(HEADERS, request("tools/fly"))


def test_names_travel_encoded_where_they_must() -> None:
    message = request(name="größe")
    ERA.admit(message, HEADERS | {b"mcp-name": b"=?base64?Z3LDtsOfZQ==?="})
    mismatch(HEADERS | {b"mcp-name": "größe".encode()}, message)
    mismatch(HEADERS | {b"mcp-name": b"=?base64?!!!?="}, message)


def test_only_methods_that_name_something_mirror_a_name() -> None:
    listing = {b"mcp-protocol-version": NEWEST.encode(), b"mcp-method": b"tools/list"}
    assert ERA.admit(request("tools/list"), listing).method == "tools/list"
    reading = listing | {b"mcp-method": b"resources/read", b"mcp-name": b"a:b"}
    assert ERA.admit(request("resources/read", uri="a:b"), reading).params["uri"] == "a:b"
    mismatch(reading, request("resources/read", uri="a:c"))


@pytest.mark.parametrize("name", [None, 1, [], {}])
def test_a_name_that_is_not_text_matches_no_header(name: Any) -> None:
    assert "mcp-name" in mismatch(HEADERS, request(name=name))


def test_a_mismatch_repeats_little_and_nothing_dangerous() -> None:
    said = mismatch(HEADERS | {b"mcp-method": b"\x1b[31m" + b"x" * 5000})
    assert said.isprintable()
    assert len(said) < 400


def test_without_headers_nothing_is_mirrored() -> None:
    assert ERA.admit(request(), None).headers is None


# Results


def sealed(result: Any, **changes: Any) -> dict[str, Any]:
    message = json.loads(ERA.seal(ERA.admit(request(**changes), None), result))
    assert (message["jsonrpc"], message["id"]) == ("2.0", changes.get("id", 1))
    return message["result"]


@pytest.mark.parametrize("result", [EmptyResult(), b"{}"])
def test_the_server_info_of_a_result_follows_the_server(result: Any) -> None:
    server = Described("before")
    era = StatelessProtocol(server, REVISIONS, 1000)
    for name in ("before", "after"):
        server.implementation = Implementation(name=name, version="1")
        assert json.loads(era.seal(era.admit(request(), None), result))["result"]["_meta"][SERVER]["name"] == name


STAMP = {"resultType": "complete", "_meta": {SERVER: {"name": "calc", "version": "1.2", "title": "Calc"}}}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (CallToolResult(content=[TextContent(text="4")]), {"content": [{"type": "text", "text": "4"}]}),
        (CallToolResult(content=[]), {"content": []}),
        (EmptyResult(), {}),
        (b"{}", {}),
        (b'{"tools":[]}', {"tools": []}),
    ],
)
def test_every_result_says_what_it_is_and_who_made_it(result: Any, expected: dict[str, Any]) -> None:
    assert sealed(result) == STAMP | expected
    assert sealed(result, id="é") == STAMP | expected


def test_a_result_keeps_its_own_meta_and_kind() -> None:
    own = CallToolResult(content=[], meta={"com.example/x": 1})
    assert sealed(own) == {**STAMP, "content": [], "_meta": STAMP["_meta"] | {"com.example/x": 1}}
    assert own.meta == {"com.example/x": 1}
    question = InputRequiredResult(result_type="input_required", request_state="s")
    assert sealed(question) == {**STAMP, "resultType": "input_required", "requestState": "s"}


@given(st.text(max_size=20) | st.integers(-(2**63), 2**64 - 1))
def test_any_id_comes_back(id: int | str) -> None:
    assert sealed(EmptyResult(), id=id) == STAMP


@pytest.mark.parametrize("meta", [None, {"com.example/x": 1}])
def test_the_result_of_a_tool_has_a_limit(meta: dict[str, Any] | None) -> None:
    def result(length: int) -> CallToolResult:
        return CallToolResult(content=[TextContent(text="x" * length)], meta=meta)

    sealed(result(800))
    with pytest.raises(InternalError, match="1000"):
        sealed(result(1001))
    with pytest.raises(InternalError, match="1000"):
        ERA.seal(ERA.admit(request(), None), b'{"content":"%s"}' % (b"x" * 1000))


def test_lists_are_not_results_of_tools() -> None:
    listing = ERA.admit(request("tools/list"), None)
    assert len(ERA.seal(listing, b'{"tools":["%s"]}' % (b"x" * 2000))) > 2000


@pytest.mark.parametrize("exc", [ResourceNotFound("a:b"), MethodNotFound("x"), InternalError("y")])
def test_a_refusal_is_the_error_itself(exc: ProtocolError) -> None:
    error = {"code": exc.code, "message": exc.message} | ({} if exc.data is None else {"data": exc.data})
    assert json.loads(ERA.refuse(5, exc)) == {"jsonrpc": "2.0", "id": 5, "error": error}
    assert json.loads(ERA.refuse(None, exc)) == {"jsonrpc": "2.0", "error": error}
