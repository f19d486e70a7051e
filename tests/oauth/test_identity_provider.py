"""Test an upstream identity provider: consent first, in one browser, for one client, and its tokens stay private."""

import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from dovetail.auth.sqlite_store import SQLiteStore
from dovetail.oauth.authorization_server.clients import RegisteredClient
from dovetail.oauth.authorization_server.identity_provider import (
    PROVIDER_PRESETS,
    ProviderMetadata,
    UpstreamProvider,
    get_identity_provider,
)
from dovetail.oauth.authorization_server.store import AuthorizationStore, InMemoryStore
from dovetail.oauth.flow import AcquireLock, Await, FetchResponse, Now, Pause
from dovetail.oauth.guard.verifiers import JWTVerifier
from dovetail.protocol.interfaces.http_types import HTTPRequest
from dovetail.wire.codec import encode
from oauth.provider_metadata import RECORDED_METADATA
from oauth.server_harness import (
    EDITOR,
    ISSUER,
    REDIRECT_URI,
    RESOURCE,
    Browser,
    ServerHarness,
    complete,
    decode_body,
    parse_query,
    parse_redirect,
)
from support.fake_issuer import Issuer, run_flow

TOKEN, USER = "https://up.example/token", "https://up.example/user"
UP = ProviderMetadata(
    name="Up",
    issuer="https://up.example",
    authorization_endpoint="https://up.example/authorize",
    token_endpoint=TOKEN,
    userinfo_endpoint=USER,
)


def desk(store: AuthorizationStore | None = None, **options: Any) -> ServerHarness:
    made = ServerHarness(
        upstream=UpstreamProvider(UP, client_id="mine", client_secret="s3cret", **options), store=store
    )
    made.answers[TOKEN] = {"access_token": "upstream-token", "refresh_token": "upstream-refresh", "expires_in": 100}
    made.answers[USER] = {"sub": "ada", "email": "ada@up.example", "other": {"x": 1}}
    return made


def leave(browser: Browser) -> dict[str, str]:
    """Consent, and go to the provider: what it is asked."""
    browser.open()
    response = browser.submit_consent()
    assert response.status_code == 200
    found = re.search(r'href="([^"]+)"', response.body.decode())
    assert found is not None
    url = unescape(found[1])
    assert url.startswith("https://up.example/authorize?")
    return parse_query(url)


def arrive(browser: Browser, state: str, **fields: str) -> Any:
    return browser.get_page("/callback", urlencode({"code": "upstream-code", "state": state} | fields))


def test_a_login_through_the_provider() -> None:
    one = desk()
    browser = Browser(one)
    asked = leave(browser)
    assert (asked["client_id"], asked["redirect_uri"]) == ("mine", ISSUER + "/callback")
    assert asked["code_challenge_method"] == "S256"
    target, answer = parse_redirect(arrive(browser, asked["state"]))
    assert target == REDIRECT_URI
    assert (answer["state"], answer["iss"]) == ("s&1", ISSUER)
    sent = next(call for call in one.http_calls if call.url == TOKEN)
    assert b"client_secret=s3cret" in sent.body
    assert b"code_verifier=" in sent.body
    tokens = decode_body(
        one.token(grant_type="authorization_code", code=answer["code"], code_verifier=browser.verifier)
    )
    principal = one.run_flow(one.verifier.verify(tokens["access_token"], (RESOURCE,)))
    assert principal.subject == "Up:ada"
    assert principal.claims["email"] == "ada@up.example"
    assert "upstream" not in encode(tokens).decode()  # neither of the provider's tokens
    assert one.run_flow(one.authority.upstream_token(principal.claims["sid"], "Up:ada")) == "upstream-token"


def test_no_user_is_sent_upstream_before_consent() -> None:
    one = desk()
    browser = Browser(one)
    shown = browser.open()
    assert shown.status_code == 200
    assert b"https://up.example/authorize" not in shown.body
    assert b"The Editor" in shown.body
    assert parse_redirect(browser.submit_consent("deny"))[1]["error"] == "access_denied"
    assert one.http_calls == []


def test_each_client_is_agreed_to_by_itself() -> None:
    """One registration upstream for all clients must not let one ride on the consent given to another."""
    one = ServerHarness(
        upstream=UpstreamProvider(UP, client_id="mine", client_secret="s"),
        clients=(EDITOR, RegisteredClient("evil", redirect_uris=["https://evil.example/cb"], client_name="Evil")),
    )
    browser = Browser(one)
    leave(browser)
    shown = browser.open(client_id="evil", redirect_uri="https://evil.example/cb")
    assert shown.status_code == 200
    assert b"Evil" in shown.body
    assert b"evil.example" in shown.body


def test_a_callback_in_another_browser() -> None:
    one = desk()
    mine, theirs = Browser(one), Browser(one)
    state = leave(mine)["state"]
    assert arrive(theirs, state).status_code == 403  # without any cookie
    theirs.open()
    assert arrive(theirs, state).status_code == 403  # with a cookie of its own
    assert one.http_calls == []
    assert parse_redirect(arrive(mine, state))[1]["code"]


def test_a_callback_comes_once_in_time_and_for_a_known_state() -> None:
    one = desk()
    browser = Browser(one)
    state = leave(browser)["state"]
    assert parse_redirect(arrive(browser, state))[1]["code"]
    assert arrive(browser, state).status_code == 400
    assert arrive(browser, "guessed").status_code == 400
    assert browser.get_page("/callback", "state=a&state=b").status_code == 400
    late = leave(browser)["state"]
    one.now += 700
    assert arrive(browser, late).status_code == 400


def test_the_error_of_the_provider_is_logged_for_the_operator() -> None:
    told: list[str] = []
    one = ServerHarness(upstream=UpstreamProvider(UP, client_id="mine", client_secret="s3cret"), warn=told.append)
    browser = Browser(one)
    for answer in (
        FetchResponse(401, {}, b'{"error": "invalid_client"}'),
        FetchResponse(0),
        {"error": "incorrect_credentials"},
    ):
        one.answers[TOKEN] = answer
        assert parse_redirect(arrive(browser, leave(browser)["state"]))[1]["error"] == "access_denied"
    refused, unreachable, odd = told
    assert re.search(r"https://up\.example/token.*401.*invalid_client", refused)
    assert "https://up.example/token" in unreachable
    assert "401" not in unreachable
    assert "incorrect_credentials" in odd
    arrive(browser, leave(browser)["state"], error="invalid_request", error_description="no such redirect_uri")
    assert "no such redirect_uri" in told[3]
    arrive(browser, leave(browser)["state"], error="access_denied")
    assert len(told) == 4  # a user may say no
    assert "s3cret" not in repr(told)


def test_a_missing_provider_is_reported() -> None:
    told: list[str] = []
    up = UpstreamProvider(issuer="https://gone.example", client_id="mine", client_secret="s3cret")
    browser = Browser(ServerHarness(upstream=up, warn=told.append))
    browser.open()
    assert browser.submit_consent().status_code == 503
    assert "https://gone.example" in told[0]


@pytest.mark.parametrize("flaw", ["error", "issuer", "no token", "no user", "no subject", "not allowed"])
def test_a_login_that_fails_upstream(flaw: str) -> None:
    one = desk(allow_user=lambda user: user["email"].endswith("@other.example")) if flaw == "not allowed" else desk()
    browser = Browser(one)
    state = leave(browser)["state"]
    fields = {"error": {"error": "access_denied"}, "issuer": {"iss": "https://evil.example"}}.get(flaw, {})
    if flaw == "no token":
        del one.answers[TOKEN]
    if flaw == "no user":
        del one.answers[USER]
    if flaw == "no subject":
        one.answers[USER] = {"sub": True}
    target, answer = parse_redirect(arrive(browser, state, **fields))
    assert target == REDIRECT_URI
    assert (answer["error"], answer["iss"]) == ("access_denied", ISSUER)
    assert "code" not in answer


def test_the_providers_token_is_renewed() -> None:
    one = desk()
    browser = Browser(one)
    state = leave(browser)["state"]
    code = parse_redirect(arrive(browser, state))[1]["code"]
    tokens = decode_body(one.token(grant_type="authorization_code", code=code, code_verifier=browser.verifier))
    family = one.run_flow(one.verifier.verify(tokens["access_token"], (RESOURCE,))).claims["sid"]
    one.now += 90
    one.answers[TOKEN] = {"access_token": "second", "expires_in": 1000}
    assert one.run_flow(one.authority.upstream_token(family, "Up:ada")) == "second"
    one.answers[TOKEN] = {"access_token": "third"}
    assert one.run_flow(one.authority.upstream_token(family, "Up:ada")) == "second"  # still fresh
    refreshed = decode_body(one.token(grant_type="refresh_token", refresh_token=tokens["refresh_token"]))
    assert refreshed["access_token"]
    assert one.run_flow(one.authority.upstream_token(family, "Up:ada")) == "second"  # ours turned, theirs stays
    one.now += 2000
    del one.answers[TOKEN]
    assert one.run_flow(one.authority.upstream_token(family, "Up:ada")) is None
    one.run_flow(one.issuing.revoke_family(family, one.now))
    assert one.run_flow(one.authority.upstream_token(family, "Up:ada")) is None


def perform(one: ServerHarness, wish: Any) -> Any:
    """Perform the action of a flow: read the clock or the store, or do nothing."""
    if isinstance(wish, Await):
        return complete(wish.awaitable)
    return one.now if isinstance(wish, Now) else None


def finish(one: ServerHarness, flow: Any, wish: Any) -> Any:
    """Run a flow to its end, after it has asked for an action, and return its result."""
    try:
        while True:
            wish = flow.send(perform(one, wish))
    except StopIteration as done:
        return done.value


def logged_in(one: ServerHarness) -> tuple[str, dict[str, str]]:
    """The family of a login whose token of the provider's is to be renewed, and ours."""
    browser = Browser(one)
    code = parse_redirect(arrive(browser, leave(browser)["state"]))[1]["code"]
    tokens = decode_body(one.token(grant_type="authorization_code", code=code, code_verifier=browser.verifier))
    family = one.run_flow(one.verifier.verify(tokens["access_token"], (RESOURCE,))).claims["sid"]
    one.now += 90
    one.answers[TOKEN] = {"access_token": "second", "refresh_token": "next", "expires_in": 1000}
    return family, tokens


def test_what_is_revoked_while_the_provider_is_asked_stays_revoked() -> None:
    one = desk()
    family, tokens = logged_in(one)
    flow = one.authority.upstream_token(family, "Up:ada")
    wish = next(flow)
    while not isinstance(wish, HTTPRequest):
        wish = flow.send(perform(one, wish))
    one.run_flow(one.issuing.revoke_family(family, one.now))
    wish = flow.send(FetchResponse(200, {}, encode(one.answers[TOKEN])))
    assert finish(one, flow, wish) is None
    assert one.run_flow(one.issuing.verify_access_token(tokens["access_token"], one.now)) is None
    refreshed = one.token(grant_type="refresh_token", refresh_token=tokens["refresh_token"])
    assert decode_body(refreshed)["error"] == "invalid_grant"


def test_one_renews_at_the_provider_and_the_next_finds_it_renewed() -> None:
    one = desk()
    family, _ = logged_in(one)
    late = one.authority.upstream_token(family, "Up:ada")
    wish = next(late)
    while not isinstance(wish, AcquireLock):  # here it waits for the other
        wish = late.send(perform(one, wish))
    calls = len(one.http_calls)
    assert one.run_flow(one.authority.upstream_token(family, "Up:ada")) == "second"
    assert finish(one, late, wish) == "second"
    assert len(one.http_calls) == calls + 1


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_of_two_processes_one_renews_at_the_provider(kind: str, tmp_path: Path) -> None:
    """A second use of a refresh token that turns would end the login at the provider."""
    path = tmp_path / "kept.db"
    stores: list[Any] = [InMemoryStore()] * 2 if kind == "memory" else [SQLiteStore(path), SQLiteStore(path)]
    one, two = desk(store=stores[0]), desk(store=stores[1])
    family, _ = logged_in(one)
    two.now = one.now
    first, second = (each.authority.upstream_token(family, "Up:ada") for each in (one, two))

    def until(flow: Any, kind: Any, wish: Any = None) -> Any:
        wish = wish or next(flow)
        while not isinstance(wish, kind):
            wish = flow.send(perform(one, wish))
        return wish

    until(first, HTTPRequest)
    waiting = until(second, (HTTPRequest, Pause))
    assert isinstance(waiting, Pause)  # the other is at it
    with pytest.raises(StopIteration) as done:
        until(first, (), first.send(FetchResponse(200, {}, encode(one.answers[TOKEN]))))
    assert done.value.value == "second"
    with pytest.raises(StopIteration) as done:
        until(second, (), waiting)
    assert done.value.value == "second"
    one.now += 2000
    assert one.run_flow(one.authority.upstream_token(family, "Up:ada")) == "second"  # nothing is left locked
    for store in stores if kind == "sqlite" else ():
        store.close()


def test_the_providers_token_is_its_users_alone() -> None:
    one = desk()
    family, _ = logged_in(one)
    assert one.run_flow(one.authority.upstream_token(family, "Up:eve")) is None


def test_the_providers_tokens_are_sealed_where_they_are_stored() -> None:
    one = desk()
    browser = Browser(one)
    code = parse_redirect(arrive(browser, leave(browser)["state"]))[1]["code"]
    one.token(grant_type="authorization_code", code=code, code_verifier=browser.verifier)
    kept = repr(one.store.__dict__)
    assert "family" in kept
    assert "upstream-token" not in kept
    assert "upstream-refresh" not in kept


# Providers


def test_every_known_provider_is_recorded() -> None:
    assert set(RECORDED_METADATA) == set(PROVIDER_PRESETS)


@pytest.mark.parametrize("name", PROVIDER_PRESETS)
def test_what_is_known_of_a_provider_is_what_it_publishes(name: str) -> None:
    recorded = RECORDED_METADATA[name]
    document = recorded.document
    upstream = get_identity_provider(UpstreamProvider(name, client_id="a", client_secret="b", **recorded.parts))
    provider: ProviderMetadata = ServerHarness().run_flow(upstream.get_metadata())
    assert provider.authorization_endpoint == document["authorization_endpoint"]
    assert provider.token_endpoint == document["token_endpoint"]
    assert provider.userinfo_endpoint == document.get("userinfo_endpoint", recorded.userinfo)
    assert provider.issuer == (document["issuer"] if recorded.has_issuer else None)
    assert provider.token_endpoint_auth_method in document.get(
        "token_endpoint_auth_methods_supported", [provider.token_endpoint_auth_method]
    )
    assert set(provider.scopes) <= set(document.get("scopes_supported", provider.scopes))
    sent = parse_query(ServerHarness().run_flow(upstream.build_authorization_url("https://x/callback", "s", "c")))
    assert (sent["scope"], sent["code_challenge_method"]) == (" ".join(provider.scopes), "S256")
    assert provider.extra_params.items() <= sent.items()


@pytest.mark.parametrize("name", [name for name in RECORDED_METADATA if RECORDED_METADATA[name].userinfo is None])
def test_a_known_provider_is_found_by_its_issuer_too(name: str) -> None:
    recorded, one = RECORDED_METADATA[name], ServerHarness()
    one.answers[recorded.metadata_url] = recorded.document
    upstream = UpstreamProvider(issuer=recorded.document["issuer"], client_id="a", client_secret="b")
    provider = one.run_flow(get_identity_provider(upstream).get_metadata())
    assert provider.token_endpoint == recorded.document["token_endpoint"]
    assert one.http_calls[-1].url == recorded.metadata_url


@pytest.mark.parametrize("name", [name for name in RECORDED_METADATA if "jwks_uri" in RECORDED_METADATA[name].document])
def test_the_keys_of_a_known_provider_are_found(name: str) -> None:
    recorded, issuer = RECORDED_METADATA[name], Issuer(RECORDED_METADATA[name].document["issuer"])

    def web(call: HTTPRequest) -> FetchResponse:
        known = {recorded.metadata_url: recorded.document, recorded.document["jwks_uri"]: issuer.jwks()}
        return FetchResponse(200, {}, encode(known[call.url])) if call.url in known else FetchResponse(404)

    verifier = JWTVerifier(issuer=issuer.url, audience="files")
    principal = run_flow(verifier.verify(issuer.token(aud="files"), ()), web)
    assert (principal.subject, principal.issuer) == ("ada", issuer.url)


def test_github_names_itself_in_its_answer() -> None:
    """And so nobody else can come back in its place."""
    for iss, good in (("https://github.com/login/oauth", True), ("https://evil.example", False)):
        one = ServerHarness(upstream=UpstreamProvider("github", client_id="a", client_secret="b"))
        one.answers["https://github.com/login/oauth/access_token"] = {"access_token": "t", "token_type": "bearer"}
        one.answers["https://api.github.com/user"] = {"id": 42, "login": "ada"}
        browser = Browser(one)
        browser.open()
        found = re.search(r'href="([^"]+)"', browser.submit_consent().body.decode())
        assert found is not None
        state = parse_query(unescape(found[1]))["state"]
        assert ("code" in parse_redirect(arrive(browser, state, iss=iss))[1]) is good


def test_the_number_of_a_github_user_is_a_subject() -> None:
    one = ServerHarness(upstream=UpstreamProvider("github", client_id="a", client_secret="b"))
    one.answers["https://github.com/login/oauth/access_token"] = {"access_token": "t", "token_type": "bearer"}
    one.answers["https://api.github.com/user"] = {"id": 42, "login": "ada"}
    browser = Browser(one)
    browser.open()
    found = re.search(r'href="([^"]+)"', browser.submit_consent().body.decode())
    assert found is not None
    code = parse_redirect(arrive(browser, parse_query(unescape(found[1]))["state"]))[1]["code"]
    tokens = decode_body(one.token(grant_type="authorization_code", code=code, code_verifier=browser.verifier))
    principal = one.run_flow(one.verifier.verify(tokens["access_token"], (RESOURCE,)))
    assert (principal.subject, principal.claims["login"]) == ("github:42", "ada")


def test_a_provider_by_its_issuer() -> None:
    one = ServerHarness(upstream=UpstreamProvider(issuer="https://up.example", client_id="a", client_secret="b"))
    one.answers["https://up.example/.well-known/openid-configuration"] = {
        "issuer": "https://up.example", "authorization_endpoint": "https://up.example/authorize",
        "token_endpoint": TOKEN, "userinfo_endpoint": USER,
    }  # fmt: skip
    one.answers[TOKEN] = {"access_token": "t"}
    one.answers[USER] = {"sub": "ada"}
    browser = Browser(one)
    assert parse_redirect(arrive(browser, leave(browser)["state"]))[1]["code"]
    sent = next(call for call in one.http_calls if call.url == TOKEN)
    assert sent.headers["authorization"].startswith("Basic ")
    assert b"client_secret" not in sent.body


def test_a_provider_that_cannot_be_found() -> None:
    one = ServerHarness(upstream=UpstreamProvider(issuer="https://up.example", client_id="a", client_secret="b"))
    browser = Browser(one)
    browser.open()
    assert browser.submit_consent().status_code == 503


def test_mistakes() -> None:
    both: dict[str, Any] = {"client_id": "a", "client_secret": "b"}
    with pytest.raises(ValueError, match=r"entra.*tenant="):
        UpstreamProvider("entra", **both)
    with pytest.raises(ValueError, match=r"tenant=.*github"):
        UpstreamProvider("github", **both, tenant="x")
    for domain in ("https://x.okta.com", "x.okta.com/", "x.okta.com/oauth2@evil.example", "a b"):
        with pytest.raises(ValueError, match="domain="):
            UpstreamProvider("okta", **both, domain=domain)
    with pytest.raises(ValueError, match=r"github, google, .*'myspace'"):
        UpstreamProvider("myspace", **both)
    with pytest.raises(ValueError, match=r"Upstream.*issuer"):
        UpstreamProvider(**both)
    with pytest.raises(ValueError, match=r"Upstream.*issuer"):
        UpstreamProvider("github", issuer="https://x", **both)
    with pytest.raises(ValueError, match="domain="):
        UpstreamProvider(issuer="https://x.example", **both, domain="x.example")


def test_what_an_upstream_cannot_be_made_of() -> None:
    with pytest.raises(TypeError, match="allow_user"):
        UpstreamProvider(UP, client_id="c", client_secret="s", allow_user=["ada"])  # pyright: ignore[reportArgumentType]
    for issuer in ("up.example", "http://up.example"):
        with pytest.raises(ValueError, match=f"issuer.*https.*{issuer}"):
            UpstreamProvider(issuer=issuer, client_id="c", client_secret="s")
