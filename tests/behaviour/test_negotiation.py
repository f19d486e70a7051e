"""Test version negotiation and discovery, both eras on one server, and which methods exist in each version."""

import json
from typing import Any

import pytest

from behaviour.manifest import requirement
from dovetail import Server
from dovetail.types import ServerCapabilities
from dovetail.wire.methods import METHODS
from support.controlled_server import ControlledServer, call_params, expect_error, text
from support.driver import DRAFT, HANDSHAKE, REVISIONS, STATELESS, Peer, connect

VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
NEWEST_HANDSHAKE = HANDSHAKE[-1]


def full(**options: Any) -> Server:
    """A server that offers something of everything."""
    app = Server("full", **options)

    @app.tool
    async def t() -> str:
        return "t"

    @app.resource("x://{y}")
    async def r(y: str) -> str:
        return y

    @app.prompt
    async def p(a: str) -> str:
        return a

    @app.completion("p", "a")
    async def suggest(value: str) -> list[str]:
        return [value]

    return app


@requirement("neg.echo")
async def test_a_served_revision_is_agreed_to(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        assert peer.initialize_result["protocolVersion"] == revision


@requirement("neg.counter-offer")
@pytest.mark.parametrize("asked", ["1999-01-01", "2099-12-31", "2026-07-28", "", "DRAFT", "2025-11-25 ", "x" * 5000])
async def test_another_revision_is_answered_with_the_newest(transport: str, asked: str) -> None:
    async with connect(ControlledServer().app, transport, NEWEST_HANDSHAKE, handshake=False) as peer:
        result = await peer.initialize(asked)
        assert result["protocolVersion"] == NEWEST_HANDSHAKE


@requirement("neg.restricted")
@pytest.mark.parametrize(
    ("served", "asked", "given"),
    [
        (["2024-11-05"], "2025-11-25", "2024-11-05"),
        (["2024-11-05", "2025-06-18"], "2025-11-25", "2025-06-18"),
        (["2025-06-18", "2024-11-05"], "2025-03-26", "2025-06-18"),
        (["2025-06-18", "2026-07-28"], "draft", "2025-06-18"),
        (["draft", "2025-03-26"], "2025-11-25", "2025-03-26"),
        (["draft"], "2025-11-25", "draft"),
    ],
)
async def test_a_server_offers_only_the_revisions_it_was_given(
    transport: str, served: list[str], asked: str, given: str
) -> None:
    async with connect(
        ControlledServer(protocol_versions=served).app, transport, NEWEST_HANDSHAKE, handshake=False
    ) as peer:
        assert (await peer.initialize(asked))["protocolVersion"] == given
        await peer.notify("notifications/initialized")
        assert (await peer.request("tools/list"))["tools"]


@requirement("neg.restricted")
def test_revisions_are_checked_when_the_server_is_made() -> None:
    for wrong in ([], ["2025-01-01"], ["2025-11-25", "x"]):
        with pytest.raises(ValueError, match="protocol_versions"):
            Server("x", protocol_versions=wrong)


@requirement("neg.stateless-only-initialize")
async def test_a_stateless_server_names_its_revisions_to_an_old_client(revision: str, transport: str) -> None:
    async with connect(
        ControlledServer(protocol_versions=[STATELESS]).app, transport, revision, handshake=False
    ) as peer:
        exc = await expect_error(peer.initialize())
        assert STATELESS in exc.message
        assert exc.status_code == (400 if transport == "http" else None)
        assert exc.data["supported"] == [STATELESS]


@requirement("neg.stateless-only-http")
async def test_a_server_of_the_stateless_era_has_only_post(transport: str) -> None:
    async with connect(ControlledServer(protocol_versions=[STATELESS]).app, transport, STATELESS) as peer:
        for method in ("GET", "DELETE"):
            response = await peer.http(method, headers={"accept": "text/event-stream", "mcp-session-id": "x"})
            assert response.status == 405, method
            assert response.headers["allow"] == "POST"
            await response.close()
        gone = await peer.http("GET", "/sse", {"accept": "text/event-stream"})
        assert gone.status == 404
        await gone.close()


@requirement("neg.sessionless")
async def test_the_stateless_era_ignores_session_and_event_ids(transport: str) -> None:
    async with connect(ControlledServer().app, transport, STATELESS) as peer:
        headers = {"mcp-session-id": "no-such-session", "last-event-id": "1-1"}
        pending = peer.start("tools/call", call_params("echo", text="hi"), headers=headers)
        assert text(await pending) == "hi"
        assert pending.response is not None
        assert "mcp-session-id" not in pending.response.headers
        streamed = peer.start("tools/call", call_params("count", to=1), headers=headers, progress_token=1)
        await streamed
        assert streamed.response is not None
        assert [event.id for event in streamed.response.events_seen] == [None, None]


@requirement("neg.discover")
async def test_discover_tells_everything_at_once(transport: str) -> None:
    app = full(
        version="2.0",
        title="Full",
        instructions="Do.",
        capabilities=ServerCapabilities(extensions={"com.example/x": {"on": True}}),
    )
    async with connect(app, transport, STATELESS) as peer:
        told = await peer.request("server/discover")
        assert told["resultType"] == "complete"
        assert told["supportedVersions"] == [STATELESS, *reversed(HANDSHAKE)]
        assert told["instructions"] == "Do."
        assert told["_meta"]["io.modelcontextprotocol/serverInfo"] == {
            "name": "full",
            "version": "2.0",
            "title": "Full",
        }
        assert told["capabilities"]["extensions"] == {"com.example/x": {"on": True}}
        assert {"tools", "resources", "prompts", "completions"} <= told["capabilities"].keys()
        assert isinstance(told["ttlMs"], int)
        assert told["cacheScope"] in ("public", "private")


@requirement("neg.discover")
async def test_discover_lists_what_the_server_was_given(transport: str) -> None:
    async with connect(
        ControlledServer(protocol_versions=[STATELESS, "2025-03-26", DRAFT]).app, transport, STATELESS
    ) as peer:
        assert (await peer.request("server/discover"))["supportedVersions"] == [STATELESS, "2025-03-26"]


@requirement("neg.unsupported")
@pytest.mark.parametrize("asked", ["1900-01-01", "v999.0.0", "2025-11-25", "draft", ""])
async def test_a_revision_the_era_does_not_have_is_refused_with_the_list(transport: str, asked: str) -> None:
    async with connect(ControlledServer().app, transport, STATELESS) as peer:
        known = (await peer.request("server/discover"))["supportedVersions"]
        headers = {"mcp-protocol-version": asked} if transport == "http" else {}
        for method in ("tools/list", "server/discover", "no/such"):
            exc = await expect_error(peer.request(method, meta={VERSION: asked}, headers=headers))
            assert exc.code == -32022, method
            assert exc.data["requested"] == asked
            assert STATELESS in exc.data["supported"]
            assert set(exc.data["supported"]) <= set(known)
            assert exc.status_code == (400 if transport == "http" else None)


@requirement("neg.handshake-only")
async def test_a_server_of_the_handshake_era_does_not_pass_for_a_stateless_one(transport: str) -> None:
    async with connect(
        ControlledServer(protocol_versions=["2025-06-18", "2025-11-25"]).app, transport, STATELESS
    ) as peer:
        for method in ("server/discover", "tools/list"):
            exc = await expect_error(peer.request(method))
            assert exc.code not in (-32020, -32021, -32022), "this code would keep the client from falling back"
            assert exc.status_code == (400 if transport == "http" else None)
        assert (await peer.initialize("2025-11-25"))["protocolVersion"] == "2025-11-25"
        await peer.notify("notifications/initialized")
        assert (await peer.request("tools/list"))["tools"]


@requirement("neg.meta-required")
async def test_a_stateless_request_must_say_who_asks(transport: str) -> None:
    async with connect(ControlledServer().app, transport, STATELESS) as peer:
        headers = {"mcp-protocol-version": STATELESS} if transport == "http" else {}
        for meta in (
            {CAPABILITIES: None},
            {CAPABILITIES: []},
            {CAPABILITIES: "all"},
            {CAPABILITIES: {"roots": 5}},
            {"io.modelcontextprotocol/clientInfo": "me"},
            {"io.modelcontextprotocol/clientInfo": {"name": "x"}},
            {"io.modelcontextprotocol/logLevel": "loud"},
            {VERSION: 20260728},
        ):
            exc = await expect_error(peer.request("tools/list", meta=meta, headers=headers))
            assert exc.code == -32602, meta
            assert exc.status_code == (400 if transport == "http" else None), meta
        assert await peer.request("tools/list", meta={"io.modelcontextprotocol/clientInfo": None})


@requirement("neg.header-without-meta")
@pytest.mark.parametrize("params", [None, {}, {"_meta": {}}, {"_meta": {CAPABILITIES: {}}}])
async def test_the_header_alone_makes_a_request_stateless(transport: str, params: Any) -> None:
    async with connect(ControlledServer().app, transport, STATELESS) as peer:
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": 4, "method": "tools/list"}
        if params is not None:
            message["params"] = params
        reply = await peer.raw(json.dumps(message).encode(), headers=peer.headers(message, STATELESS))
        assert (reply.status, reply.code) == (400, -32602)
        assert reply.message["id"] == 4


@requirement("neg.header-mismatch")
async def test_headers_that_disagree_with_the_body_are_refused(transport: str) -> None:
    async with connect(ControlledServer().app, transport, STATELESS) as peer:
        for headers in (
            {"mcp-protocol-version": "2025-11-25"},
            {"mcp-protocol-version": "1900-01-01"},
            {"mcp-protocol-version": None},
            {"mcp-method": "tools/list"},
            {"mcp-method": "Tools/Call"},
            {"mcp-method": None},
            {"mcp-name": "wait"},
            {"mcp-name": None},
        ):
            exc = await expect_error(peer.request("tools/call", call_params("echo", text="x"), headers=headers))
            assert (exc.status_code, exc.code) == (400, -32020), headers
        assert text(await peer.request("tools/call", call_params("echo", text="x"))) == "x"


@requirement("neg.era-by-body")
@pytest.mark.parametrize("method", ["initialize", "ping", "logging/setLevel", "resources/subscribe", "shutdown"])
async def test_a_handshake_method_does_not_exist_in_a_stateless_request(transport: str, method: str) -> None:
    async with connect(full(), transport, STATELESS) as peer:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        exc = await expect_error(peer.request(method, params))
        assert exc.code == -32601
        assert exc.status_code == (404 if transport == "http" else None)


@requirement("neg.interleaved")
async def test_both_eras_are_served_on_one_connection(revision: str, transport: str) -> None:
    stage = ControlledServer()
    async with connect(stage.app, transport, STATELESS) as peer:
        assert STATELESS in (await peer.request("server/discover"))["supportedVersions"]
        await _mix(peer, stage, revision)


async def _mix(peer: Peer, stage: ControlledServer, revision: str) -> None:
    held = peer.start("tools/call", call_params("wait", name="new"))
    await stage.wait_until_started("new")
    await peer.initialize(revision)
    await peer.notify("notifications/initialized")
    old = peer.start("tools/call", call_params("wait", name="old"))
    await stage.wait_until_started("old")
    assert "resultType" not in await peer.request("tools/list")
    again = await peer.request("tools/list", revision=STATELESS)
    assert (again["resultType"], bool(again["ttlMs"] >= 0)) == ("complete", True)
    stage.release("old")
    assert "resultType" not in await old
    stage.release("new")
    assert (await held)["resultType"] == "complete"
    assert await peer.request("ping") == {}
    assert (await expect_error(peer.request("ping", revision=STATELESS))).code == -32601


@requirement("neg.windows")
async def test_a_method_exists_in_its_window_and_nowhere_else(revision: str, transport: str) -> None:
    asked = {
        "initialize": {},
        "tools/call": {"name": "t"},
        "resources/read": {"uri": "x://y"},
        "resources/subscribe": {"uri": "x://y"},
        "resources/unsubscribe": {"uri": "x://y"},
        "prompts/get": {"name": "p", "arguments": {"a": "b"}},
        "completion/complete": {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": "v"}},
        "logging/setLevel": {"level": "info"},
    }
    async with connect(full(), transport, revision) as peer:
        for row in METHODS.values():
            if row.result is None or row.name in ("initialize", "shutdown", "subscriptions/listen"):
                continue
            asks = row.sender == "server"
            exists = row.exists_in(revision) and not asks
            request = peer.request(row.name, asked.get(row.name, {}))
            if exists:
                assert isinstance(await request, dict), row.name
                continue
            exc = await expect_error(request)
            assert exc.code == -32601, row.name
            if transport == "http" and revision == STATELESS:
                assert exc.status_code == 404, row.name


@requirement("neg.windows")
async def test_methods_of_dead_experiments_are_unknown(revision: str, transport: str) -> None:
    async with connect(full(), transport, revision) as peer:
        for method in ("tasks/get", "tasks/result", "tasks/list", "tasks/cancel", "subscriptions/close", "discover"):
            assert (await expect_error(peer.request(method, {"taskId": "x"}))).code == -32601, method


@requirement("neg.http-version-header")
async def test_a_version_header_that_is_not_served_is_refused(revision: str, transport: str) -> None:
    app = ControlledServer(protocol_versions=[one for one in REVISIONS if one != "2025-06-18"]).app
    if revision == "2025-06-18":
        app = ControlledServer().app
    async with connect(app, transport, revision) as peer:
        ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
        wrong = ["2099-01-01", "", "x", "2025-11-25, 2025-11-25"] + ([] if revision == "2025-06-18" else ["2025-06-18"])
        for version in wrong:
            assert (await peer.raw(ping, headers={"mcp-protocol-version": version})).status == 400, version
        assert (await peer.raw(ping)).status == 200


@requirement("neg.http-no-version-header")
async def test_without_the_header_the_session_knows_the_revision(revision: str, transport: str) -> None:
    async with connect(ControlledServer().app, transport, revision) as peer:
        batch = b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]'
        expected = 200 if revision == "2025-03-26" else 400
        assert (await peer.raw(batch, headers={"mcp-protocol-version": None})).status == expected


@requirement("neg.http-unnamed")
async def test_without_session_and_header_the_revision_is_the_one_that_had_no_header() -> None:
    async with connect(ControlledServer().app, "http-stateless", "2025-03-26", handshake=False) as peer:
        batch = b'[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]'
        reply = await peer.raw(batch)
        assert reply.status == 200
        assert reply.message[0]["result"]["tools"]
        assert (await peer.raw(batch, headers={"mcp-protocol-version": "2025-11-25"})).status == 400
