"""Test a guarded HTTP server: accepted requests, refusals and metadata."""

import asyncio
import json
import re
from collections.abc import Collection
from typing import Any

import pytest

from dovetail import Client, Context, Server
from dovetail.auth import (
    AuthorizationServer,
    BearerAuth,
    Guard,
    JWTVerifier,
    Principal,
    StaticTokenVerifier,
    TokenVerifier,
)
from dovetail.errors import InsufficientScope, Unauthorized
from dovetail.oauth.challenge import parse_challenge
from dovetail.protocol.http_checks import build_scope_challenge
from dovetail.transports import operator_log
from support.fake_issuer import Issuer, current_claims
from support.fake_service import (
    INITIALIZED,
    LATEST_HANDSHAKE,
    AsgiRequest,
    initialize,
    open_session,
    request,
    run_pending_callbacks,
    start_post,
    stateless_request,
    wait_until,
)
from support.live_server import serve_app

WELL_KNOWN = "/.well-known/oauth-protected-resource"
LOCAL = "http://localhost:8000/mcp"
TOKENS = StaticTokenVerifier(
    {
        "ada": Principal("ada", scopes=["read", "write"]),
        "bob": Principal("bob", scopes=["read"]),
        "bob-plus": Principal("bob", scopes=["read", "write"]),
    }
)
LED = Guard(TOKENS, authorization_servers=["https://login.example"])


def guarded(auth: Any = TOKENS, **options: Any) -> Server:
    app = Server("x", auth=auth, **options)

    @app.tool
    def who(ctx: Context) -> str:
        assert ctx.principal is not None
        return ctx.principal.subject

    @app.tool(scopes=["write"])
    def write() -> str:
        return "written"

    return app


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def call(endpoint: Any, token: str | None, name: str = "who", **scope: Any) -> AsgiRequest:
    headers = {} if token is None else bearer(token)
    return await start_post(endpoint, stateless_request(name=name, arguments={}), headers, **scope).wait_done()


async def test_a_caller_is_who_the_token_says() -> None:
    endpoint = guarded().asgi()
    answer = await call(endpoint, "ada")
    assert answer.status == 200
    assert answer.last["result"]["content"][0]["text"] == "ada"


class OwnVerifier:
    """A verifier as an author writes it."""

    issuer: str | None = None

    async def verify(self, token: str, resource: Collection[str]) -> Principal | None:
        await asyncio.sleep(0)
        assert list(resource) == [LOCAL]
        return Principal("grace") if token == "own" else None


@pytest.mark.parametrize("auth", [OwnVerifier(), [TOKENS, OwnVerifier()]], ids=["alone", "with another"])
async def test_a_verifier_of_your_own(auth: Any) -> None:
    endpoint = guarded(auth).asgi()
    assert (await call(endpoint, "own")).last["result"]["content"][0]["text"] == "grace"
    answer = await call(endpoint, "other")
    assert (answer.status, parse_challenge(answer.headers["www-authenticate"]).error) == (401, "invalid_token")


async def test_without_a_token_nothing_is_served() -> None:
    """Every route of the application, by every method: only the metadata is for everyone."""
    endpoint = guarded(LED).asgi()
    open_paths = {WELL_KNOWN, WELL_KNOWN + "/mcp"}
    for path in (
        "/mcp",
        "/mcp/",
        "/sse",
        "/messages",
        "/",
        "/live",
        "/ready",
        "/other",
        WELL_KNOWN + "/other",
        *open_paths,
    ):
        for method in ("GET", "POST", "DELETE", "PUT", "HEAD", "OPTIONS"):
            answer = await AsgiRequest(endpoint, method, path).wait_done()
            if path in open_paths:
                assert answer.status == (200 if method in ("GET", "HEAD") else 405), (method, path)
                assert answer.status == 200 or answer.headers["allow"] == "GET, HEAD"
            else:
                assert answer.status == 401, (method, path)
                said = parse_challenge(answer.headers["www-authenticate"])
                assert said.resource_metadata == "http://localhost:8000" + WELL_KNOWN + "/mcp"
                assert said.error is None


async def test_a_token_in_the_query_is_ignored() -> None:
    answer = await AsgiRequest(guarded().asgi(), path="/mcp", query_string=b"access_token=ada").wait_done()
    assert answer.status == 401


async def test_two_authorization_headers_are_none() -> None:
    headers = [
        (b"host", b"localhost:8000"),
        (b"content-type", b"application/json"),
        (b"authorization", b"Bearer bob"),
        (b"authorization", b"Bearer ada"),
    ]
    assert (await AsgiRequest(guarded().asgi(), headers=headers).wait_done()).status == 400


async def test_what_the_metadata_says() -> None:
    app = guarded(Guard(JWTVerifier(issuer="https://login.example"), required_scopes=["read"]))
    answer = await AsgiRequest(app.asgi(), "GET", WELL_KNOWN + "/mcp").wait_done()
    assert answer.headers["content-type"] == "application/json"
    said = json.loads(answer.body)
    assert said["resource"] == LOCAL
    assert said["authorization_servers"] == ["https://login.example"]
    assert said["scopes_supported"] == ["read", "write"]


async def test_the_metadata_names_the_scopes_of_everything_offered() -> None:
    app, inner = guarded(), Server("inner")
    app.restrict(tags=["admin"], scopes=["admin"])
    app.resource("x://y", scopes=["look"])(lambda: "")
    inner.tool(lambda: "", name="far", scopes=["far", "write"])
    app.mount(inner, prefix="in", scopes=["inside"])
    said = json.loads((await AsgiRequest(app.asgi(), "GET", WELL_KNOWN).wait_done()).body)
    assert said["scopes_supported"] == ["write", "look", "admin", "inside", "far"]


@pytest.mark.parametrize(
    ("public_url", "path", "root", "asked", "resource", "metadata"),
    [
        ("https://x.example/mcp", "/mcp", "", WELL_KNOWN + "/mcp", "https://x.example/mcp", ""),
        ("https://x.example", "/mcp", "", WELL_KNOWN, "https://x.example/mcp", ""),
        # A proxy that takes the prefix off, or puts it into root_path; an application mounted in another.
        ("https://x.example/a/mcp", "/mcp", "", WELL_KNOWN + "/mcp", "https://x.example/a/mcp", "/a"),
        ("https://x.example/a/mcp", "/mcp", "/a", "/a" + WELL_KNOWN + "/mcp", "https://x.example/a/mcp", "/a"),
        ("https://x.example/a", "/mcp", "/a", "/a" + WELL_KNOWN, "https://x.example/a/mcp", "/a"),
        # The place the RFC names, if the proxy or the outer application hands it on.
        ("https://x.example/a/mcp", "/mcp", "", WELL_KNOWN + "/a/mcp", "https://x.example/a/mcp", "/a"),
        ("https://x.example/a/mcp", "/mcp", WELL_KNOWN, WELL_KNOWN + "/a/mcp", "https://x.example/a/mcp", "/a"),
    ],
)
async def test_behind_a_proxy(public_url: str, path: str, root: str, asked: str, resource: str, metadata: str) -> None:
    endpoint = guarded(LED).asgi(path=path, public_url=public_url)
    there = {"host": "x.example"}
    document = await AsgiRequest(endpoint, "GET", asked, headers=there, root_path=root).wait_done()
    assert document.status == 200
    assert json.loads(document.body)["resource"] == resource
    at = (root if root != WELL_KNOWN else "") + path
    refused = await AsgiRequest(
        endpoint, "POST", at, headers=there, root_path=root if root != WELL_KNOWN else ""
    ).wait_done()
    assert refused.status == 401
    told = parse_challenge(refused.headers["www-authenticate"]).resource_metadata
    assert told == f"https://x.example{metadata}{WELL_KNOWN}/mcp"


@pytest.mark.parametrize("public_url", [None, "https://files.example/base/mcp"])
async def test_beside_another_application_the_metadata_is_the_servers(public_url: str | None) -> None:
    """Whoever has the other paths knows nothing of it, and without it nobody finds out where to log in."""

    async def other(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 418, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    endpoint = guarded().asgi(fallback=other, public_url=public_url)
    host = {} if public_url is None else {"host": "files.example"}
    for path in (WELL_KNOWN, WELL_KNOWN + "/mcp"):
        assert (await AsgiRequest(endpoint, "GET", path, headers=host).wait_done()).last["resource"] == (
            public_url or LOCAL
        )
    assert (await AsgiRequest(endpoint, "GET", WELL_KNOWN + "/other", headers=host).wait_done()).status == 418
    assert (await AsgiRequest(endpoint, "GET", "/.well-known/else", headers=host).wait_done()).status == 418
    assert (await AsgiRequest(endpoint, "GET", "/mcp", headers=host).wait_done()).status == 401


async def test_the_audience_is_the_public_address() -> None:
    issuer = Issuer()
    auth = JWTVerifier(issuer=issuer.url, public_keys=issuer.jwks())
    endpoint = guarded(auth).asgi(public_url="https://x.example/a/mcp")
    there = {"host": "x.example"}
    for audience, status in (
        ("https://x.example/a/mcp", 200), ("https://x.example/mcp", 401), ("https://x.example", 401), (LOCAL, 401),
    ):  # fmt: skip
        token = issuer.token(aud=audience, **current_claims())
        answer = await start_post(endpoint, stateless_request(name="who"), there | bearer(token)).wait_done()
        assert answer.status == status, audience


async def test_the_request_does_not_choose_its_audience() -> None:
    """Without a public address, what the Host header says of a port is not believed."""
    issuer = Issuer()
    endpoint = guarded(JWTVerifier(issuer=issuer.url, public_keys=issuer.jwks())).asgi()
    mine = issuer.token(aud=LOCAL, **current_claims())
    other = issuer.token(aud="http://localhost:9999/mcp", **current_claims())
    assert (await call(endpoint, mine)).status == 200
    forged = await start_post(
        endpoint, stateless_request(name="who"), bearer(other) | {"host": "localhost:9999"}
    ).wait_done()
    assert forged.status == 401
    with pytest.raises(ValueError, match="public_url"):
        guarded().asgi(allowed_hosts=["x.example"])


@pytest.mark.parametrize("method", ["resources/read", "resources/subscribe"])
async def test_missing_scopes_for_a_resource(method: str) -> None:
    app = guarded(LED)
    app.add_resource(lambda: "kept", uri="file://kept", name="kept", scopes=["write"])
    app.add_resource(lambda: "hidden", uri="file://hidden", name="hidden", visible_to=lambda principal: False)
    endpoint = app.asgi()
    session = await opened(endpoint, "bob")
    answer = await start_post(endpoint, request(method, uri="file://kept"), bearer("bob") | session).wait_done()
    assert answer.status == 403
    said = parse_challenge(answer.headers["www-authenticate"])
    assert (said.error, said.scopes) == ("insufficient_scope", ("write", "read"))
    assert answer.last["error"]["data"] == {"requiredScopes": ["write"]}
    hidden = await start_post(endpoint, request(method, uri="file://hidden"), bearer("bob") | session).wait_done()
    assert (hidden.status, hidden.last["error"]["code"]) == (200, -32002)
    after = await start_post(endpoint, request(method, uri="file://kept"), bearer("bob-plus") | session).wait_done()
    assert (after.status, "result" in after.last) == (200, True)


async def test_missing_scopes_in_both_eras() -> None:
    endpoint = guarded(LED).asgi()
    answer = await call(endpoint, "bob", "write")
    assert answer.status == 403
    said = parse_challenge(answer.headers["www-authenticate"])
    assert (said.error, said.scopes) == ("insufficient_scope", ("write",))
    assert said.resource_metadata == "http://localhost:8000" + WELL_KNOWN + "/mcp"
    assert answer.last["error"]["data"] == {"requiredScopes": ["write"]}
    session = await opened(endpoint, "bob")
    older = await start_post(endpoint, request(name="write", arguments={}), bearer("bob") | session).wait_done()
    assert older.status == 403
    assert parse_challenge(older.headers["www-authenticate"]).scopes == (
        "write",
        "read",
    )  # handshake clients replace theirs
    # The same caller, the same session, with more scopes by now.
    after = await start_post(endpoint, request(name="write", arguments={}), bearer("bob-plus") | session).wait_done()
    assert after.last["result"]["content"][0]["text"] == "written"
    # And what was allowed to one token is not to the next.
    again = await start_post(endpoint, request(name="write", arguments={}), bearer("bob") | session).wait_done()
    assert again.status == 403


@pytest.mark.parametrize(
    ("token", "stateless", "handshake"),
    [
        ("base", {"base", "write"}, {"base", "write"}),
        ("more", {"base", "write"}, {"base", "more", "write"}),
        ("all", {"base", "write"}, {"base", "all", "write"}),
    ],
)
async def test_a_challenge_names_all_that_a_token_needs(token: str, stateless: set[str], handshake: set[str]) -> None:
    tokens = StaticTokenVerifier(
        {
            "base": Principal("eve", scopes=["base"]),
            "more": Principal("eve", scopes=["base", "more"]),
            "all": Principal("eve", scopes=["all"]),
        }
    )
    guard = Guard(tokens, required_scopes=["base"], implied_scopes={"all": ["base", "more"]})
    endpoint = guarded(guard).asgi()
    answer = await call(endpoint, token, "write")
    assert answer.status == 403
    assert {*parse_challenge(answer.headers["www-authenticate"]).scopes} == stateless
    session = await opened(endpoint, token)
    older = await start_post(endpoint, request(name="write", arguments={}), bearer(token) | session).wait_done()
    assert older.status == 403
    assert {*parse_challenge(older.headers["www-authenticate"]).scopes} == handshake


async def test_a_challenge_contains_no_invalid_scope() -> None:
    app = Server("files", auth=StaticTokenVerifier({"t": "bob"}))

    @app.tool
    def write() -> str:
        raise InsufficientScope(["write", 'no", realm="x'])

    answer = await call(app.asgi(), "t", "write")
    assert answer.status == 403
    assert answer.headers["www-authenticate"] == 'Bearer error="insufficient_scope", scope="write"'


def test_a_challenge_is_in_the_scheme_of_what_was_shown() -> None:
    lacking = ("write",)
    assert build_scope_challenge(lacking, None, b"DPoP x") == b'DPoP error="insufficient_scope", scope="write"'
    assert build_scope_challenge(lacking, None, b"Bearer x") == b'Bearer error="insufficient_scope", scope="write"'


async def test_without_an_issuer_a_403_starts_no_login() -> None:
    app = Server("files", auth=StaticTokenVerifier({"t": "bob"}))

    @app.tool(scopes=["write"])
    def write() -> str:
        return "written"

    answer = await call(app.asgi(), "t", "write")
    assert (answer.status, parse_challenge(answer.headers["www-authenticate"]).resource_metadata) == (403, None)


async def opened(endpoint: Any, token: str) -> dict[str, str]:
    first = await start_post(endpoint, initialize(LATEST_HANDSHAKE), bearer(token)).wait_done()
    session = {"mcp-session-id": first.headers["mcp-session-id"], "mcp-protocol-version": LATEST_HANDSHAKE}
    await start_post(endpoint, INITIALIZED, bearer(token) | session).wait_done()
    return session


async def test_a_session_is_its_principals() -> None:
    endpoint = guarded().asgi()
    session = await opened(endpoint, "bob")
    assert (await start_post(endpoint, request(name="who"), bearer("bob") | session).wait_done()).status == 200
    assert (await start_post(endpoint, request(name="who"), bearer("ada") | session).wait_done()).status == 404
    assert (await start_post(endpoint, request(name="who"), session).wait_done()).status == 401


async def test_lists_differ_by_caller_and_are_private() -> None:
    endpoint = guarded().asgi()
    shown = {}
    for token in ("ada", "bob"):
        answer = await start_post(endpoint, stateless_request("tools/list"), bearer(token)).wait_done()
        shown[token] = [one["name"] for one in answer.last["result"]["tools"]]
        assert answer.last["result"]["cacheScope"] == "private"
    assert shown == {"ada": ["who", "write"], "bob": ["who"]}


async def test_a_batch_says_what_is_missing_in_its_place() -> None:
    endpoint = guarded().asgi()
    first = await start_post(endpoint, initialize("2025-03-26"), bearer("bob")).wait_done()
    session = {"mcp-session-id": first.headers["mcp-session-id"]}
    both = [request(name="who", id=1), request(name="write", id=2)]
    answer = await start_post(endpoint, both, bearer("bob") | session).wait_done()
    assert {one["id"]: one.get("error", {}).get("code") for one in answer.last} == {1: None, 2: 403}


async def test_on_other_transports_it_is_an_error() -> None:
    from dovetail import RemoteError

    async with Client(guarded()) as client:
        with pytest.raises(RemoteError, match="write") as refusal:
            await client.call("write")
        assert refusal.value.code == 403


async def test_an_invalid_guard_raises_where_it_is_created() -> None:
    def authenticate(headers: Any) -> str:
        return "ada"

    for wrong, told in (
        ("s3cret", r"str.*StaticTokenVerifier\({token: name}\)"),
        ({"s3cret": "ada"}, "dict.*StaticTokenVerifier"),
        (JWTVerifier, "JWTVerifier"),
        (AuthorizationServer(issuer="http://127.0.0.1:1"), r"AuthorizationServer.*\.verifier\(\)"),
        (authenticate, "async"),
        ([TOKENS, 7], "int"),
        (type("StaticTokenVerifier", (), {"__module__": "other.library"})(), r"other\.library\.StaticTokenVerifier"),
    ):
        with pytest.raises(TypeError, match=f"auth.*StaticTokenVerifier.*{told}") as refused:
            Server("x", auth=wrong)
        assert "s3cret" not in str(refused.value)


async def test_the_log_contains_what_callers_do_not_see(caplog: pytest.LogCaptureFixture) -> None:
    """Two texts that an operator can compare: most trouble with tokens is one of them being a little different."""
    caplog.set_level("DEBUG", "dovetail")
    issuer = Issuer("https://login.example/")
    endpoint = guarded(JWTVerifier(issuer="https://login.example", public_keys=issuer.jwks())).asgi()
    token = issuer.token(**current_claims(aud=LOCAL))
    refused = await call(endpoint, token)
    assert refused.status == 401
    assert re.search(r"https://login\.example/[^\w].*https://login\.example\b", caplog.text)
    assert "login.example" not in refused.body.decode() + refused.headers["www-authenticate"]
    issuer.url = "https://login.example"
    await call(endpoint, issuer.token(**current_claims(aud="https://files.example/x\r\ny")))
    assert re.search(r"https://files\.example/x\\r\\ny.*http://localhost:8000/mcp", caplog.text)
    assert token not in caplog.text
    assert "WARNING" not in caplog.text


USERS = {"Bearer right": "ada", "right": "ada"}


async def look_up_header(headers: Any) -> str:
    try:
        return USERS[headers[b"authorization"].decode()]
    except KeyError as exc:
        raise Unauthorized("unknown user") from exc


class TableVerifier(TokenVerifier):
    async def verify(self, token: str, audience: Collection[str]) -> Principal | None:
        try:
            return Principal(USERS[token])
        except KeyError as exc:
            raise Unauthorized("unknown user") from exc


@pytest.mark.parametrize("auth", [look_up_header, TableVerifier()])
async def test_the_log_does_not_contain_the_cause_of_a_users_error(
    auth: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("DEBUG", "dovetail")
    monkeypatch.setattr(operator_log, "_rejection_lines", {})
    assert (await call(guarded(auth).asgi(), "sk-live-51")).status == 401
    (record,) = [record for record in caplog.records if record.levelname == "INFO"]
    assert record.args == ("127.0.0.1", 401, "unknown user")
    assert "sk-live-51" not in caplog.text


async def test_that_keys_cannot_be_found_is_a_warning_with_its_reason(
    caplog: pytest.LogCaptureFixture, free_port: int
) -> None:
    issuer = Issuer(f"http://127.0.0.1:{free_port}")
    for verifier, why in (
        (JWTVerifier(issuer=issuer.url), "/.well-known/oauth-authorization-server "),
        (JWTVerifier(issuer=issuer.url, jwks_uri=issuer.url + "/keys"), "/keys "),
    ):
        endpoint = guarded(verifier).asgi()
        for _ in range(3):
            answer = await call(endpoint, issuer.token(**current_claims(aud=LOCAL)))
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert caplog.text.count(why) == 1


async def test_a_name_alone_is_a_principal_too() -> None:
    async def authenticate(headers: Any) -> str:
        return "ada"

    app = guarded(authenticate)
    answer = await call(app.asgi(), None)
    assert answer.last["result"]["content"][0]["text"] == "ada"
    refused = await call(app.asgi(), None, "write")
    assert refused.status == 403
    assert parse_challenge(refused.headers["www-authenticate"]).scopes == ("write",)


async def test_keys_are_fetched_once_for_all_who_wait() -> None:
    issuer, asked = Issuer(), 0

    async def web(scope: Any, receive: Any, send: Any) -> None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        body = json.dumps(issuer.jwks()).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    async with serve_app(lambda _: web) as url:
        issuer.url = url
        endpoint = guarded(JWTVerifier(issuer=url, jwks_uri=url + "/jwks")).asgi()
        tokens = [issuer.token(aud=LOCAL, sub=f"user {number}", **current_claims()) for number in range(20)]
        answers = await asyncio.gather(*(call(endpoint, token) for token in tokens))
    assert [one.status for one in answers] == [200] * 20
    assert asked == 1


async def test_an_issuer_that_is_gone_is_not_the_callers_fault() -> None:
    issuer = Issuer("http://127.0.0.1:1")
    endpoint = guarded(JWTVerifier(issuer=issuer.url)).asgi()
    answer = await call(endpoint, issuer.token(aud=LOCAL, **current_claims()))
    assert answer.status == 503
    assert "www-authenticate" not in answer.headers


@pytest.mark.parametrize("auth", ["ada", BearerAuth("ada")], ids=["text", "BearerAuth"])
async def test_a_client_with_a_token(auth: str | BearerAuth) -> None:
    async with serve_app(lambda _: guarded().asgi()) as url, Client(url + "/mcp", auth=auth) as client:
        assert await client.call("who") == "ada"


async def test_a_client_without_a_login_gets_an_error() -> None:
    async with serve_app(lambda _: guarded().asgi()) as url:
        async with Client(url + "/mcp", headers=bearer("ada")) as client:
            assert await client.call("who") == "ada"
        with pytest.raises(Unauthorized):
            async with Client(url + "/mcp") as client:
                await client.call("who")


# Subscriptions


@pytest.mark.parametrize("is_stream_open", [True, False])
async def test_a_stream_gets_no_updates_that_its_token_may_not_read(is_stream_open: bool) -> None:
    app = guarded()
    app.add_resource(lambda: "x", "r://secret", scopes=["write"])
    app.add_resource(lambda: "x", "r://open")
    endpoint = app.asgi()
    session = await open_session(endpoint, headers=bearer("bob-plus"))
    for uri in ("r://secret", "r://open"):
        answer = await start_post(endpoint, request("resources/subscribe", uri=uri), session).wait_done()
        assert answer.status == 200

    def notify() -> None:
        app.notify_resource_updated("r://secret")
        app.notify_resource_updated("r://open")

    async def read(token: str) -> list[str]:
        if not is_stream_open:
            notify()
            await run_pending_callbacks()
        stream = AsgiRequest(endpoint, "GET", headers=session | bearer(token))
        await wait_until(lambda: stream.events)
        if is_stream_open:
            notify()
        await wait_until(lambda: "r://open" in str(stream.messages))
        stream.disconnect()
        await stream.wait_done()
        return [message["params"]["uri"] for message in stream.messages]

    assert await read("bob") == ["r://open"]
    assert await read("bob-plus") == ["r://secret", "r://open"]
