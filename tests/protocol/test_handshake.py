"""Test the handshake era: negotiation, methods a session answers itself, results and errors."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.errors import (
    InternalError,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    MissingClientCapability,
    PromptNotFound,
    ProtocolError,
    ResourceNotFound,
    ToolNotFound,
    UnsupportedProtocolVersion,
)
from dovetail.protocol import handshake
from dovetail.protocol.exchange import Caller, Service
from dovetail.protocol.handshake import (
    SESSION_METHODS,
    HandshakeState,
    encode_introduction,
    negotiate_revision,
    open_session,
)
from dovetail.protocol.limits import ServerLimits
from dovetail.wire.base import EmptyResult
from dovetail.wire.content import Icon, TextContent
from dovetail.wire.lifecycle import Implementation, ListChangedCapability, ResourcesCapability, ServerCapabilities
from dovetail.wire.methods import REQUESTS
from dovetail.wire.revisions import DRAFT, HANDSHAKE_REVISIONS, PUBLISHED_REVISIONS, REVISIONS
from dovetail.wire.tools import CallToolResult

NEWEST, LAST, FIRST = "2026-07-28", "2025-11-25", "2024-11-05"
TOOLS = "notifications/tools/list_changed"
UPDATED = "notifications/resources/updated"
LONGEST = ServerLimits().max_uri_bytes
EVERYTHING = ServerCapabilities(
    logging={},
    completions={},
    tools=ListChangedCapability(list_changed=True),
    resources=ResourcesCapability(subscribe=True, list_changed=True),
    extensions={"com.example/x": {}},
)


def service(capabilities: ServerCapabilities = EVERYTHING, revisions: tuple[str, ...] = REVISIONS) -> Any:
    ours = Implementation(
        name="calc",
        version="1.2",
        title="Calc",
        description="Counts.",
        website_url="https://c",
        icons=[Icon(src="a:b")],
    )
    return SimpleNamespace(
        implementation=ours,
        instructions="Count.",
        protocol_versions=revisions,
        requests=REQUESTS,
        capabilities=lambda: capabilities,
        limits=ServerLimits(max_meta_bytes=1000),
        can_subscribe=lambda uri, principal: True,
        watch_resource=lambda uri, principal, origin: None,
    )


def initialize(revision: Any = LAST, **changes: Any) -> dict[str, Any]:
    params = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "chat", "version": "3"}}
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params | changes}


def opened(
    revision: str = LAST, behind: Service | None = None, **changes: Any
) -> tuple[HandshakeState, dict[str, Any]]:
    behind = behind or service()
    session = open_session(initialize(revision, **changes), behind, "alice")
    message = json.loads(encode_introduction(1, session, behind))
    assert (message["jsonrpc"], message["id"]) == ("2.0", 1)
    return session, message["result"]


def request(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 5, "method": method, "params": params}


# Agreement


@pytest.mark.parametrize("asked", [*HANDSHAKE_REVISIONS, DRAFT])
def test_a_revision_that_is_served_is_spoken(asked: str) -> None:
    assert negotiate_revision(asked, REVISIONS) == asked


@pytest.mark.parametrize("asked", [NEWEST, "2099-01-01", "1999-01-01", "", "x" * 1000])
def test_for_any_other_the_newest_handshake_revision_is_offered(asked: str) -> None:
    assert negotiate_revision(asked, REVISIONS) == LAST
    assert negotiate_revision(asked, (FIRST, "2025-03-26", NEWEST)) == "2025-03-26"
    assert negotiate_revision(asked, (FIRST, DRAFT)) == FIRST
    assert negotiate_revision(asked, (DRAFT,)) == DRAFT


def test_a_server_without_handshake_revisions_says_what_it_speaks() -> None:
    with pytest.raises(UnsupportedProtocolVersion) as caught:
        negotiate_revision(LAST, (NEWEST,))
    assert caught.value.data == {"supported": [NEWEST], "requested": LAST}


# Opening


def test_a_session_remembers_who_opened_it() -> None:
    session, _ = opened(capabilities={"roots": {"listChanged": True}})
    caller = session.caller
    assert (caller.protocol_version, caller.is_stateless, caller.principal) == (LAST, False, "alice")
    assert caller.client_info == Implementation(name="chat", version="3")
    assert caller.client_capabilities.roots is not None
    assert caller.log_level == 1
    assert not session.is_ready


WHO = {"name": "calc", "version": "1.2"}
FULL = {"title": "Calc", "description": "Counts.", "websiteUrl": "https://c", "icons": [{"src": "a:b"}]}


@pytest.mark.parametrize(
    ("revision", "who", "completions"),
    [
        (FIRST, WHO, False),
        ("2025-03-26", WHO, True),
        ("2025-06-18", WHO | {"title": "Calc"}, True),
        (LAST, WHO | FULL, True),
        (DRAFT, WHO | FULL, True),
    ],
)
def test_the_answer_is_in_the_words_of_the_revision(revision: str, who: dict[str, Any], completions: bool) -> None:
    _, result = opened(revision)
    assert result == {
        "protocolVersion": revision,
        "serverInfo": who,
        "instructions": "Count.",
        "capabilities": {
            "logging": {},
            "tools": {"listChanged": True},
            "resources": {"subscribe": True, "listChanged": True},
        }
        | ({"completions": {}} if completions else {}),
    }


@pytest.mark.parametrize(
    "change",
    [
        {"protocolVersion": 5},
        {"protocolVersion": None},
        {"capabilities": None},
        {"capabilities": []},
        {"clientInfo": None},
        {"clientInfo": {"name": "x"}},
        {"capabilities": {"roots": {"listChanged": "yes"}}},
    ],
)
def test_a_malformed_introduction_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidParams, match=r"\$"):
        open_session(initialize(**change), service())


@pytest.mark.parametrize("params", [None, {}])
def test_an_empty_introduction_is_refused(params: Any) -> None:
    with pytest.raises(InvalidParams):
        open_session({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}, service())


def test_what_is_kept_of_an_introduction_has_a_size() -> None:
    open_session(initialize(clientInfo={"name": "x" * 700, "version": "1"}), service())
    with pytest.raises(InvalidParams, match="1000"):
        open_session(initialize(clientInfo={"name": "x" * 1000, "version": "1"}), service())


# Admission


def test_an_exchange_within_a_session_has_its_caller() -> None:
    session, _ = opened()
    exchange = session.admit(request("tools/call", name="add", _meta={"progressToken": 1}), REQUESTS)
    assert exchange.caller is session.caller
    assert (exchange.id, exchange.method, exchange.meta) == (5, "tools/call", {"progressToken": 1})
    assert exchange.params["name"] == "add"


@pytest.mark.parametrize("meta", [[], 5, "x"])
def test_a_meta_that_is_not_an_object_is_refused(meta: Any) -> None:
    session, _ = opened()
    with pytest.raises(InvalidParams) as caught:
        session.admit(request("tools/call", _meta=meta), REQUESTS)
    assert caught.value.data == {"field": "_meta"}


def test_a_meta_or_params_of_null_is_like_none() -> None:
    session, _ = opened()
    assert session.admit(request("tools/call", _meta=None), REQUESTS).meta == {}
    assert session.admit({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": None}, REQUESTS).params == {}


@pytest.mark.parametrize("revision", [*HANDSHAKE_REVISIONS, DRAFT])
def test_a_session_knows_the_methods_of_its_revision_and_no_other(revision: str) -> None:
    session, _ = opened(revision)
    for method in {method for table in REQUESTS.values() for method in table} - {"initialize"}:
        if method in REQUESTS[revision]:
            assert session.admit(request(method), REQUESTS).method == method
        else:
            with pytest.raises(MethodNotFound):
                session.admit(request(method), REQUESTS)


def test_a_session_is_opened_once() -> None:
    session, _ = opened()
    with pytest.raises(InvalidRequest):
        session.admit(initialize(), REQUESTS)


def test_only_one_revision_sends_batches() -> None:
    assert [one for one in REVISIONS if HandshakeState(Caller(one, False)).allows_batches] == ["2025-03-26"]


# What a session answers by itself


def own(session: HandshakeState, method: str, behind: Service | None = None, **params: Any) -> Any:
    return session.handle_session_request(session.admit(request(method, **params), REQUESTS), behind or service())


def test_pings_and_farewells_are_answered_at_once() -> None:
    session, _ = opened()
    assert own(session, "ping") == EmptyResult()
    assert own(session, "shutdown") == EmptyResult()


@pytest.mark.parametrize("method", ["tools/call", "tools/list", "resources/read", "completion/complete"])
def test_everything_else_is_the_servers(method: str) -> None:
    assert method not in SESSION_METHODS


def test_a_log_level_holds_for_the_session() -> None:
    session, _ = opened()
    assert own(session, "logging/setLevel", level="error") == EmptyResult()
    assert session.caller.log_level == 4
    with pytest.raises(InvalidParams):
        own(session, "logging/setLevel", level="loud")
    with pytest.raises(InvalidParams):
        own(session, "logging/setLevel")
    assert session.caller.log_level == 4


@pytest.mark.parametrize("method", ["logging/setLevel", "resources/subscribe", "resources/unsubscribe"])
def test_what_is_not_offered_does_not_exist(method: str) -> None:
    session, _ = opened()
    bare = service(ServerCapabilities(resources=ResourcesCapability()))
    for behind in (bare, service(ServerCapabilities())):
        with pytest.raises(MethodNotFound, match=method):
            own(session, method, behind, uri="a:b", level="info")


def test_the_bytes_of_subscriptions_are_limited() -> None:
    session, _ = opened()
    uris = [f"a:{number}" + "x" * 8000 for number in range(1000)]
    with pytest.raises(InvalidRequest):
        [own(session, "resources/subscribe", uri=uri) for uri in uris]
    assert session.subscriptions is not None
    assert 10 < len(session.subscriptions) < 100
    own(session, "resources/unsubscribe", uri=session.subscriptions[next(iter(session.subscriptions))][0])
    own(session, "resources/subscribe", uri="a:small")


def test_a_long_progress_token_is_refused() -> None:
    session, _ = opened()
    for token in ("x" * 256, 10**30):
        session.admit(request("tools/list", _meta={"progressToken": token}), REQUESTS)
    with pytest.raises(InvalidParams, match="progressToken"):
        session.admit(request("tools/list", _meta={"progressToken": "x" * 257}), REQUESTS)


def test_a_session_hears_of_lists_and_of_the_resources_it_subscribed_to() -> None:
    session, _ = opened()
    own(session, "resources/subscribe", uri="a:1")
    assert not session.is_subscribed(TOOLS, None)  # it has not finished opening
    session.is_ready = True
    assert session.is_subscribed(TOOLS, None)
    assert session.is_subscribed(UPDATED, "a:1")
    assert not session.is_subscribed(UPDATED, "a:2")
    own(session, "resources/unsubscribe", uri="a:1")
    own(session, "resources/unsubscribe", uri="a:never")
    assert not session.is_subscribed(UPDATED, "a:1")


def test_a_session_without_subscriptions_hears_of_no_resource() -> None:
    session, _ = opened()
    session.is_ready = True
    assert not session.is_subscribed(UPDATED, "a:1")
    with pytest.raises(InvalidParams, match="uri"):
        own(session, "resources/subscribe")


def test_a_uri_has_a_limit() -> None:
    session, _ = opened()
    own(session, "resources/subscribe", uri="a:" + "x" * (LONGEST - 2))
    for method in ("resources/subscribe", "resources/unsubscribe"):
        with pytest.raises(InvalidParams, match=f"uri.*{LONGEST}"):
            own(session, method, uri="a:" + "x" * LONGEST)


def test_subscriptions_have_a_limit_and_repeating_one_is_free() -> None:
    session, _ = opened()
    for number in range(1000):
        own(session, "resources/subscribe", uri=f"a:{number}")
    with pytest.raises(InvalidRequest, match="1000"):
        own(session, "resources/subscribe", uri="a:1000")
    assert own(session, "resources/subscribe", uri="a:7") == EmptyResult()
    own(session, "resources/unsubscribe", uri="a:0")
    assert own(session, "resources/subscribe", uri="a:1000") == EmptyResult()


def test_a_caller_who_never_shook_hands() -> None:
    session = handshake.create_implicit_session("2025-03-26", "alice")
    assert (session.caller.protocol_version, session.caller.principal, session.is_ready) == (
        "2025-03-26",
        "alice",
        True,
    )
    assert session.caller.client_capabilities.sampling is None
    assert handshake.create_implicit_session(None).caller.protocol_version == LAST


# Results and errors


def test_results_are_worded_for_the_revision() -> None:
    value = CallToolResult(content=[TextContent(text="[4]")], structured_content=[4])
    bodies = {}
    for revision in HANDSHAKE_REVISIONS:
        session, _ = opened(revision)
        message = json.loads(handshake.seal(session.admit(request("tools/call"), REQUESTS), value, 1000))
        assert (message["jsonrpc"], message["id"]) == ("2.0", 5)
        bodies[revision] = message["result"]
    text = {"content": [{"type": "text", "text": "[4]"}]}
    assert bodies[FIRST] == bodies["2025-03-26"] == text
    assert bodies["2025-06-18"] == bodies[LAST] == text | {"structuredContent": {"result": [4]}}


def test_what_is_encoded_already_passes_through() -> None:
    session, _ = opened()
    listing = session.admit(request("tools/list"), REQUESTS)
    assert json.loads(handshake.seal(listing, b'{"tools":["%s"]}' % (b"x" * 2000), 1000))["result"]["tools"]


def test_the_result_of_a_tool_has_a_limit() -> None:
    session, _ = opened()
    call = session.admit(request("tools/call"), REQUESTS)
    handshake.seal(call, CallToolResult(content=[TextContent(text="x" * 900)]), 1000)
    with pytest.raises(InternalError, match="1000"):
        handshake.seal(call, CallToolResult(content=[TextContent(text="x" * 1000)]), 1000)


def test_a_farewell_is_answered_with_null() -> None:
    session, _ = opened()
    message = json.loads(handshake.seal(session.admit(request("shutdown"), REQUESTS), EmptyResult(), 1000))
    assert message == {"jsonrpc": "2.0", "id": 5, "result": None}


@pytest.mark.parametrize(
    ("exc", "plain", "dialect"),
    [
        (ResourceNotFound("a:b"), -32002, -32002),
        (ToolNotFound("x"), -32602, -32003),
        (PromptNotFound("x"), -32602, -32004),
        (MissingClientCapability({"roots": {}}), -32602, -32602),
        (InvalidParams("x"), -32602, -32602),
        (MethodNotFound("x"), -32601, -32601),
        (InternalError("x"), -32603, -32603),
    ],
)
def test_errors_have_the_code_of_the_revision(exc: ProtocolError, plain: int, dialect: int) -> None:
    for revision in HANDSHAKE_REVISIONS:
        error = json.loads(handshake.refuse(revision, 5, exc))["error"]
        assert (error["code"], error["message"], error.get("data")) == (plain, exc.message, exc.data)
    assert json.loads(handshake.refuse(DRAFT, None, exc))["error"]["code"] == dialect


def test_every_published_revision_is_of_one_era() -> None:
    assert {*HANDSHAKE_REVISIONS, NEWEST} == set(PUBLISHED_REVISIONS)
