"""A provider upstream: consent first, in one browser, for one client; its tokens stay here."""

import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from auth.desk import EDITOR, HOME, ISSUER, RESOURCE, Browser, Desk, place, query_of, said
from auth.issuing import Issuer, drive
from auth.providers import RECORDED
from dovetail.auth.flow import Alone, HttpAnswer, HttpCall, Now, Pause
from dovetail.auth.server.clients import known_client
from dovetail.auth.server.store import Shelf, Store
from dovetail.auth.server.upstream import PRESETS, Provider, Upstream, Vault
from dovetail.auth.verify import JwtVerifier
from dovetail.login.sqlite import SqliteStore
from dovetail.wire.codec import encode

TOKEN, USER = "https://up.example/token", "https://up.example/user"
UP = Provider(
    name="Up",
    issuer="https://up.example",
    authorization_endpoint="https://up.example/authorize",
    token_endpoint=TOKEN,
    userinfo_endpoint=USER,
)


def desk(store: Store | None = None, **options: Any) -> Desk:
    made = Desk(upstream=Upstream(UP, client_id="mine", client_secret="s3cret", **options), store=store)
    made.answers[TOKEN] = {"access_token": "upstream-token", "refresh_token": "upstream-refresh", "expires_in": 100}
    made.answers[USER] = {"sub": "ada", "email": "ada@up.example", "other": {"x": 1}}
    return made


def leave(browser: Browser) -> dict[str, str]:
    """Consent, and go to the provider: what it is asked."""
    browser.open()
    response = browser.decide()
    assert response.status == 200
    found = re.search(r'href="([^"]+)"', response.body.decode())
    assert found is not None
    url = unescape(found[1])
    assert url.startswith("https://up.example/authorize?")
    return query_of(url)


def arrive(browser: Browser, state: str, **fields: str) -> Any:
    return browser.go("/callback", urlencode({"code": "upstream-code", "state": state} | fields))


def test_a_login_through_the_provider() -> None:
    one = desk()
    browser = Browser(one)
    asked = leave(browser)
    assert (asked["client_id"], asked["redirect_uri"]) == ("mine", ISSUER + "/callback")
    assert asked["code_challenge_method"] == "S256"
    target, answer = place(arrive(browser, asked["state"]))
    assert target == HOME
    assert (answer["state"], answer["iss"]) == ("s&1", ISSUER)
    sent = next(call for call in one.called if call.url == TOKEN)
    assert b"client_secret=s3cret" in sent.body
    assert b"code_verifier=" in sent.body
    tokens = said(one.token(grant_type="authorization_code", code=answer["code"], code_verifier=browser.verifier))
    principal = one.drive(one.verifier.verify(tokens["access_token"], (RESOURCE,)))
    assert principal.subject == "Up:ada"
    assert principal.claims["email"] == "ada@up.example"
    assert "upstream" not in encode(tokens).decode()  # neither of the provider's tokens
    assert one.drive(one.authority.upstream_token(principal.claims["sid"], "Up:ada")) == "upstream-token"


def test_nobody_is_sent_upstream_before_they_agreed() -> None:
    one = desk()
    browser = Browser(one)
    shown = browser.open()
    assert shown.status == 200
    assert b"https://up.example/authorize" not in shown.body
    assert b"The Editor" in shown.body
    assert place(browser.decide("deny"))[1]["error"] == "access_denied"
    assert one.called == []


def test_each_client_is_agreed_to_by_itself() -> None:
    """One registration upstream for all clients must not let one ride on the consent given to another."""
    one = Desk(
        upstream=Upstream(UP, client_id="mine", client_secret="s"),
        clients=(EDITOR, known_client("evil", redirect_uris=["https://evil.example/cb"], client_name="Evil")),
    )
    browser = Browser(one)
    leave(browser)
    shown = browser.open(client_id="evil", redirect_uri="https://evil.example/cb")
    assert shown.status == 200
    assert b"Evil" in shown.body
    assert b"evil.example" in shown.body


def test_a_callback_in_another_browser() -> None:
    one = desk()
    mine, theirs = Browser(one), Browser(one)
    state = leave(mine)["state"]
    assert arrive(theirs, state).status == 403  # without any cookie
    theirs.open()
    assert arrive(theirs, state).status == 403  # with a cookie of its own
    assert one.called == []
    assert place(arrive(mine, state))[1]["code"]


def test_a_callback_comes_once_in_time_and_for_a_known_state() -> None:
    one = desk()
    browser = Browser(one)
    state = leave(browser)["state"]
    assert place(arrive(browser, state))[1]["code"]
    assert arrive(browser, state).status == 400
    assert arrive(browser, "guessed").status == 400
    assert browser.go("/callback", "state=a&state=b").status == 400
    late = leave(browser)["state"]
    one.now += 700
    assert arrive(browser, late).status == 400


def test_what_the_provider_says_of_this_server_is_told_to_its_operator() -> None:
    told: list[str] = []
    one = Desk(upstream=Upstream(UP, client_id="mine", client_secret="s3cret"), warn=told.append)
    browser = Browser(one)
    for answer in (
        HttpAnswer(401, {}, b'{"error": "invalid_client"}'),
        HttpAnswer(0),
        {"error": "incorrect_credentials"},
    ):
        one.answers[TOKEN] = answer
        assert place(arrive(browser, leave(browser)["state"]))[1]["error"] == "access_denied"
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


def test_a_provider_that_cannot_be_found_is_told() -> None:
    told: list[str] = []
    up = Upstream(issuer="https://gone.example", client_id="mine", client_secret="s3cret")
    browser = Browser(Desk(upstream=up, warn=told.append))
    browser.open()
    assert browser.decide().status == 503
    assert "https://gone.example" in told[0]


@pytest.mark.parametrize("flaw", ["error", "issuer", "no token", "no user", "no subject", "not allowed"])
def test_a_login_that_fails_upstream(flaw: str) -> None:
    one = desk(allow=lambda user: user["email"].endswith("@other.example")) if flaw == "not allowed" else desk()
    browser = Browser(one)
    state = leave(browser)["state"]
    fields = {"error": {"error": "access_denied"}, "issuer": {"iss": "https://evil.example"}}.get(flaw, {})
    if flaw == "no token":
        del one.answers[TOKEN]
    if flaw == "no user":
        del one.answers[USER]
    if flaw == "no subject":
        one.answers[USER] = {"sub": True}
    target, answer = place(arrive(browser, state, **fields))
    assert target == HOME
    assert (answer["error"], answer["iss"]) == ("access_denied", ISSUER)
    assert "code" not in answer


def test_the_providers_token_is_renewed() -> None:
    one = desk()
    browser = Browser(one)
    state = leave(browser)["state"]
    code = place(arrive(browser, state))[1]["code"]
    tokens = said(one.token(grant_type="authorization_code", code=code, code_verifier=browser.verifier))
    family = one.drive(one.verifier.verify(tokens["access_token"], (RESOURCE,))).claims["sid"]
    one.now += 90
    one.answers[TOKEN] = {"access_token": "second", "expires_in": 1000}
    assert one.drive(one.authority.upstream_token(family, "Up:ada")) == "second"
    one.answers[TOKEN] = {"access_token": "third"}
    assert one.drive(one.authority.upstream_token(family, "Up:ada")) == "second"  # still fresh
    refreshed = said(one.token(grant_type="refresh_token", refresh_token=tokens["refresh_token"]))
    assert refreshed["access_token"]
    assert one.drive(one.authority.upstream_token(family, "Up:ada")) == "second"  # ours turned, theirs stays
    one.now += 2000
    del one.answers[TOKEN]
    assert one.drive(one.authority.upstream_token(family, "Up:ada")) is None
    one.issuing.end(family, one.now)
    assert one.drive(one.authority.upstream_token(family, "Up:ada")) is None


def logged_in(one: Desk) -> tuple[str, dict[str, str]]:
    """The family of a login whose token of the provider's is to be renewed, and ours."""
    browser = Browser(one)
    code = place(arrive(browser, leave(browser)["state"]))[1]["code"]
    tokens = said(one.token(grant_type="authorization_code", code=code, code_verifier=browser.verifier))
    family = one.drive(one.verifier.verify(tokens["access_token"], (RESOURCE,))).claims["sid"]
    one.now += 90
    one.answers[TOKEN] = {"access_token": "second", "refresh_token": "next", "expires_in": 1000}
    return family, tokens


def test_what_is_revoked_while_the_provider_is_asked_stays_revoked() -> None:
    one = desk()
    family, tokens = logged_in(one)
    flow = one.authority.upstream_token(family, "Up:ada")
    wish = next(flow)
    while not isinstance(wish, HttpCall):
        wish = flow.send(one.now if isinstance(wish, Now) else None)
    one.issuing.end(family, one.now)
    assert isinstance(flow.send(HttpAnswer(200, {}, encode(one.answers[TOKEN]))), Now)
    with pytest.raises(StopIteration) as done:
        flow.send(one.now)
    assert done.value.value is None
    assert one.issuing.claims(tokens["access_token"], one.now) is None
    refreshed = one.token(grant_type="refresh_token", refresh_token=tokens["refresh_token"])
    assert said(refreshed)["error"] == "invalid_grant"


def test_one_renews_at_the_provider_and_the_next_finds_it_renewed() -> None:
    one = desk()
    family, _ = logged_in(one)
    late = one.authority.upstream_token(family, "Up:ada")
    assert isinstance(next(late), Now)
    assert isinstance(late.send(one.now), Alone)  # here it waits for the other
    calls = len(one.called)
    assert one.drive(one.authority.upstream_token(family, "Up:ada")) == "second"
    with pytest.raises(StopIteration) as done:
        late.send(None)
    assert done.value.value == "second"
    assert len(one.called) == calls + 1


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_of_two_processes_one_renews_at_the_provider(kind: str, tmp_path: Path) -> None:
    """A second use of a refresh token that turns would end the login at the provider."""
    path = tmp_path / "kept.db"
    stores: list[Any] = [Shelf()] * 2 if kind == "memory" else [SqliteStore(path), SqliteStore(path)]
    one, two = desk(store=stores[0]), desk(store=stores[1])
    family, _ = logged_in(one)
    two.now = one.now
    first, second = (each.authority.upstream_token(family, "Up:ada") for each in (one, two))

    def until(flow: Any, kind: Any, wish: Any = None) -> Any:
        wish = wish or next(flow)
        while not isinstance(wish, kind):
            wish = flow.send(one.now if isinstance(wish, Now) else None)
        return wish

    until(first, HttpCall)
    waiting = until(second, (HttpCall, Pause))
    assert isinstance(waiting, Pause)  # the other is at it
    with pytest.raises(StopIteration) as done:
        until(first, (), first.send(HttpAnswer(200, {}, encode(one.answers[TOKEN]))))
    assert done.value.value == "second"
    with pytest.raises(StopIteration) as done:
        until(second, (), waiting)
    assert done.value.value == "second"
    one.now += 2000
    assert one.drive(one.authority.upstream_token(family, "Up:ada")) == "second"  # nothing is left locked
    for store in stores if kind == "sqlite" else ():
        store.close()


def test_the_providers_token_is_its_users_alone() -> None:
    one = desk()
    family, _ = logged_in(one)
    assert one.drive(one.authority.upstream_token(family, "Up:eve")) is None


def test_the_providers_tokens_are_sealed_where_they_are_stored() -> None:
    one = desk()
    browser = Browser(one)
    code = place(arrive(browser, leave(browser)["state"]))[1]["code"]
    one.token(grant_type="authorization_code", code=code, code_verifier=browser.verifier)
    kept = repr(one.store.__dict__)
    assert "family" in kept
    assert "upstream-token" not in kept
    assert "upstream-refresh" not in kept


def test_a_vault() -> None:
    vault = Vault("a secret of many letters")
    sealed = vault.seal({"a": 1}, "x")
    assert Vault("a secret of many letters").open(sealed, "x") == b'{"a":1}'
    assert vault.open(sealed, "y") is None
    assert Vault("another secret of letters").open(sealed, "x") is None
    assert Vault(None).open(sealed, "x") is None
    assert vault.open("nonsense", "x") is None
    with pytest.raises(ValueError, match="16"):
        Vault("short")


# Providers


def test_every_known_provider_is_recorded() -> None:
    assert set(RECORDED) == set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_what_is_known_of_a_provider_is_what_it_publishes(name: str) -> None:
    recorded = RECORDED[name]
    document = recorded.document
    upstream = Upstream(name, client_id="a", client_secret="b", **recorded.parts)
    provider: Provider = Desk().drive(upstream.provider())
    assert provider.authorization_endpoint == document["authorization_endpoint"]
    assert provider.token_endpoint == document["token_endpoint"]
    assert provider.userinfo_endpoint == document.get("userinfo_endpoint", recorded.userinfo)
    assert provider.issuer == (document["issuer"] if recorded.says_issuer else None)
    assert provider.method in document.get("token_endpoint_auth_methods_supported", [provider.method])
    assert set(provider.scopes) <= set(document.get("scopes_supported", provider.scopes))
    sent = query_of(Desk().drive(upstream.leave("https://x/callback", "s", "c")))
    assert (sent["scope"], sent["code_challenge_method"]) == (" ".join(provider.scopes), "S256")
    assert provider.extra.items() <= sent.items()


@pytest.mark.parametrize("name", [name for name in RECORDED if RECORDED[name].userinfo is None])
def test_a_known_provider_is_found_by_its_issuer_too(name: str) -> None:
    recorded, one = RECORDED[name], Desk()
    one.answers[recorded.where] = recorded.document
    provider = one.drive(Upstream(issuer=recorded.document["issuer"], client_id="a", client_secret="b").provider())
    assert provider.token_endpoint == recorded.document["token_endpoint"]
    assert one.called[-1].url == recorded.where


@pytest.mark.parametrize("name", [name for name in RECORDED if "jwks_uri" in RECORDED[name].document])
def test_the_keys_of_a_known_provider_are_found(name: str) -> None:
    recorded, issuer = RECORDED[name], Issuer(RECORDED[name].document["issuer"])

    def web(call: HttpCall) -> HttpAnswer:
        known = {recorded.where: recorded.document, recorded.document["jwks_uri"]: issuer.jwks()}
        return HttpAnswer(200, {}, encode(known[call.url])) if call.url in known else HttpAnswer(404)

    verifier = JwtVerifier(issuer=issuer.url, audience="files")
    principal = drive(verifier.verify(issuer.token(aud="files"), ()), web)
    assert (principal.subject, principal.issuer) == ("ada", issuer.url)


def test_github_names_itself_in_its_answer() -> None:
    """And so nobody else can come back in its place."""
    for iss, good in (("https://github.com/login/oauth", True), ("https://evil.example", False)):
        one = Desk(upstream=Upstream("github", client_id="a", client_secret="b"))
        one.answers["https://github.com/login/oauth/access_token"] = {"access_token": "t", "token_type": "bearer"}
        one.answers["https://api.github.com/user"] = {"id": 42, "login": "ada"}
        browser = Browser(one)
        browser.open()
        found = re.search(r'href="([^"]+)"', browser.decide().body.decode())
        assert found is not None
        state = query_of(unescape(found[1]))["state"]
        assert ("code" in place(arrive(browser, state, iss=iss))[1]) is good


def test_the_number_of_a_github_user_is_a_subject() -> None:
    one = Desk(upstream=Upstream("github", client_id="a", client_secret="b"))
    one.answers["https://github.com/login/oauth/access_token"] = {"access_token": "t", "token_type": "bearer"}
    one.answers["https://api.github.com/user"] = {"id": 42, "login": "ada"}
    browser = Browser(one)
    browser.open()
    found = re.search(r'href="([^"]+)"', browser.decide().body.decode())
    assert found is not None
    code = place(arrive(browser, query_of(unescape(found[1]))["state"]))[1]["code"]
    tokens = said(one.token(grant_type="authorization_code", code=code, code_verifier=browser.verifier))
    principal = one.drive(one.verifier.verify(tokens["access_token"], (RESOURCE,)))
    assert (principal.subject, principal.claims["login"]) == ("github:42", "ada")


def test_a_provider_by_its_issuer() -> None:
    one = Desk(upstream=Upstream(issuer="https://up.example", client_id="a", client_secret="b"))
    one.answers["https://up.example/.well-known/openid-configuration"] = {
        "issuer": "https://up.example", "authorization_endpoint": "https://up.example/authorize",
        "token_endpoint": TOKEN, "userinfo_endpoint": USER,
    }  # fmt: skip
    one.answers[TOKEN] = {"access_token": "t"}
    one.answers[USER] = {"sub": "ada"}
    browser = Browser(one)
    assert place(arrive(browser, leave(browser)["state"]))[1]["code"]
    sent = next(call for call in one.called if call.url == TOKEN)
    assert sent.headers["authorization"].startswith("Basic ")
    assert b"client_secret" not in sent.body


def test_a_provider_that_cannot_be_found() -> None:
    one = Desk(upstream=Upstream(issuer="https://up.example", client_id="a", client_secret="b"))
    browser = Browser(one)
    browser.open()
    assert browser.decide().status == 503


def test_mistakes() -> None:
    both: dict[str, Any] = {"client_id": "a", "client_secret": "b"}
    with pytest.raises(ValueError, match=r"entra.*tenant="):
        Upstream("entra", **both)
    with pytest.raises(ValueError, match=r"github.*tenant="):
        Upstream("github", **both, tenant="x")
    for domain in ("https://x.okta.com", "x.okta.com/", "x.okta.com/oauth2@evil.example", "a b"):
        with pytest.raises(ValueError, match="domain="):
            Upstream("okta", **both, domain=domain)
    with pytest.raises(ValueError, match=r"github, google, .*'myspace'"):
        Upstream("myspace", **both)
    with pytest.raises(ValueError, match=r"Upstream.*issuer"):
        Upstream(**both)
    with pytest.raises(ValueError, match=r"Upstream.*issuer"):
        Upstream("github", issuer="https://x", **both)


def test_what_an_upstream_cannot_be_made_of() -> None:
    with pytest.raises(TypeError, match="allow"):
        Upstream(UP, client_id="c", client_secret="s", allow=["ada"])  # pyright: ignore[reportArgumentType]
    for issuer in ("up.example", "http://up.example"):
        with pytest.raises(ValueError, match=f"issuer.*https.*{issuer}"):
            Upstream(issuer=issuer, client_id="c", client_secret="s")
