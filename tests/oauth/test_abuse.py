"""Test that a client with many requests cannot harm the authorization server or its other users."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey

from dovetail.auth import sqlite_store
from dovetail.auth.shared_store import SharedStateStore
from dovetail.auth.sqlite_store import SQLiteStore
from dovetail.cluster.memory_backend import MemoryBackend
from dovetail.oauth.authorization_server import store as stores
from dovetail.oauth.authorization_server.clients import RegisteredClient
from dovetail.oauth.authorization_server.responses import Request
from dovetail.oauth.authorization_server.store import InMemoryStore, TokenGrant
from dovetail.oauth.flow import FetchResponse, Now, VerifyPassword
from dovetail.oauth.guard.claims import TokenRejected
from dovetail.protocol.rate_limiter import group_address
from dovetail.wire.codec import encode
from oauth.server_harness import (
    ISSUER,
    NOW,
    REDIRECT_URI,
    RESOURCE,
    Browser,
    ServerHarness,
    basic_credentials,
    complete,
    decode_body,
    parse_redirect,
)


def refresh(desk: ServerHarness, token: str, **fields: str) -> Any:
    return desk.token(grant_type="refresh_token", refresh_token=token, **fields)


# Room


def test_refreshing_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MAX_ENTRIES", 5)
    desk = ServerHarness()
    busy, other = Browser(desk).request_tokens(), Browser(desk).request_tokens()
    first = busy["refresh_token"]
    for _ in range(20):
        busy = decode_body(refresh(desk, busy["refresh_token"]))
    other = decode_body(refresh(desk, other["refresh_token"]))
    assert decode_body(refresh(desk, other["refresh_token"]))["access_token"]
    assert Browser(desk).request_tokens()["access_token"]
    # However long ago a token was spent, it gives a thief away.
    assert decode_body(refresh(desk, first))["error"] == "invalid_grant"
    assert decode_body(refresh(desk, busy["refresh_token"]))["error"] == "invalid_grant"


def test_a_full_store_keeps_all_logins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stores, "MAX_ENTRIES", 1)
    monkeypatch.setattr(sqlite_store, "MAX_ENTRIES", 1)
    monkeypatch.setattr(sqlite_store, "PURGE_EVERY_WRITES", 2)
    file = SQLiteStore(tmp_path / "kept.db")
    for store in (InMemoryStore(), file):
        desk = ServerHarness(store=store)
        tokens = Browser(desk).request_tokens()
        for _ in range(4):
            tokens = decode_body(refresh(desk, tokens["refresh_token"]))
            assert tokens["access_token"]
    file.close()


def test_who_saw_an_access_token_cannot_end_its_login() -> None:
    desk = ServerHarness()
    tokens = Browser(desk).request_tokens()
    family, root, fresh = tokens["refresh_token"].split(".")
    for guess in (family, f"{family}.", f"{family}..", f"{family}.x.{fresh}", f"{family}.x.y", f"{family}.{root}.a.b"):
        assert decode_body(refresh(desk, guess))["error"] == "invalid_grant"
    assert decode_body(refresh(desk, tokens["refresh_token"]))["access_token"]


@pytest.mark.parametrize("kind", ["memory", "sqlite", "shared"])
async def test_of_several_who_swap_one_succeeds(kind: str, tmp_path: Path) -> None:
    store: Any = SharedStateStore(MemoryBackend(), ISSUER) if kind == "shared" else InMemoryStore()
    if kind == "sqlite":
        store = SQLiteStore(tmp_path / "kept.db")
    await store.put("a", "k", b"1", NOW + 10, NOW)
    assert await store.swap("a", "k", b"1", b"2", NOW + 10, NOW)
    assert not await store.swap("a", "k", b"1", b"3", NOW + 10, NOW)
    assert not await store.swap("a", "other", b"1", b"3", NOW + 10, NOW)
    assert await store.get("a", "k", NOW) == b"2"
    assert not await store.swap("a", "k", b"2", b"3", NOW + 30, NOW + 20)  # it is over
    assert await store.get("a", "k", NOW + 20) is None
    if isinstance(store, SQLiteStore):
        store.close()


def test_a_refresh_that_meets_another_change_of_the_grant_succeeds() -> None:
    class Busy(InMemoryStore):
        """Somebody else writes between two steps, once."""

        met = False

        async def swap(self, kind: str, key: str, old: bytes, value: bytes, until: float, now: float) -> bool:
            if kind == "family" and not self.met:
                self.met = True
                await super().put(kind, key, old.replace(b'"read"', b'"read","more"'), until, now)
            return await super().swap(kind, key, old, value, until, now)

    desk = ServerHarness(store=Busy())
    assert decode_body(refresh(desk, Browser(desk).request_tokens()["refresh_token"]))["scope"] == "read more"


def test_a_client_gets_so_many_tokens_a_minute() -> None:
    desk = ServerHarness(max_token_responses_per_minute=3)
    tokens = Browser(desk).request_tokens()
    for _ in range(2):
        tokens = decode_body(refresh(desk, tokens["refresh_token"]))
    assert refresh(desk, tokens["refresh_token"]).status_code == 429
    desk.now += 61
    assert refresh(desk, tokens["refresh_token"]).status_code == 200  # being slowed down did not use it up


def test_open_consent_pages_use_no_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MAX_ENTRIES", 3)
    desk = ServerHarness()
    assert {Browser(desk).open().status_code for _ in range(10)} == {200}
    assert Browser(desk).request_tokens()["access_token"]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_documents_of_unknown_clients_block_no_registration(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They can be fetched again, so the oldest make room; those who register have room of their own."""
    monkeypatch.setattr(stores, "MAX_ENTRIES", 3)
    monkeypatch.setattr(sqlite_store, "MAX_ENTRIES", 3)
    monkeypatch.setattr(sqlite_store, "PURGE_EVERY_WRITES", 2)
    store: Any = InMemoryStore() if kind == "memory" else SQLiteStore(tmp_path / "kept.db")
    desk = ServerHarness(store=store)
    for number in range(12):
        place = f"https://a.example/{number}"
        about = {"client_id": place, "client_name": "A", "redirect_uris": [REDIRECT_URI]}
        desk.documents[place] = FetchResponse(200, {"cache-control": "max-age=86400"}, encode(about))
        desk.now += 1
        assert Browser(desk).open(client_id=place).status_code == 200
    documents = [complete(store.get("client document", place, desk.now)) for place in desk.documents]
    assert len([document for document in documents if document is not None]) <= 5
    assert desk.register({"redirect_uris": [REDIRECT_URI]}).status_code == 201
    assert Browser(desk).open(client_id="https://a.example/11").status_code == 200
    assert len(desk.fetched_urls) == 12  # the newest is still known
    if kind == "sqlite":
        store.close()


def test_a_document_that_does_not_fit_the_store_is_fetched_again() -> None:
    class Crowded(InMemoryStore):
        """A store of somebody's own, which drops nothing."""

        async def put(self, kind: str, key: str, value: bytes, until: float, now: float) -> None:
            raise stores.StoreFull(kind)

    desk, place = ServerHarness(store=Crowded()), "https://a.example/c"
    about = {"client_id": place, "client_name": "A", "redirect_uris": [REDIRECT_URI]}
    desk.documents[place] = FetchResponse(200, {}, encode(about))
    assert [Browser(desk).open(client_id=place).status_code for _ in range(2)] == [200, 200]
    assert desk.fetched_urls == [place] * 2


def test_one_address_decides_so_often() -> None:
    desk = ServerHarness(max_decisions_per_minute=2)
    for _ in range(2):
        Browser(desk).request_code()
    browser = Browser(desk)
    browser.open()
    assert browser.submit_consent("deny").status_code == 429
    desk.now += 61
    assert parse_redirect(browser.submit_consent())[1]["code"]


# Guessing


def test_passwords_tried_at_once_are_counted_before_they_are_looked_at() -> None:
    desk = ServerHarness(has_passwords=True)
    browser = Browser(desk)
    browser.open()
    flows: list[Any] = []
    refused: list[int] = []
    reached = 0
    for number in range(50):
        form = "&".join(f"{name}={value}" for name, value in browser.form.items())
        request = Request(
            method="POST",
            path="/consent",
            headers={"content-type": "application/x-www-form-urlencoded", "cookie": browser.cookie or ""},
            body=f"{form}&decision=allow&username=ada&password={number}".encode(),
            address="1.2.3.4",
        )
        flow = desk.authority.handle(request)
        flows.append(flow)
        wish = next(flow)
        try:
            while not isinstance(wish, VerifyPassword):
                wish = flow.send(desk.now if isinstance(wish, Now) else complete(wish.awaitable))
            reached += 1
        except StopIteration as done:
            refused.append(done.value.status_code)
    assert reached == 10
    assert refused == [429] * 40


def test_correct_passwords_are_not_counted() -> None:
    desk = ServerHarness(has_passwords=True)
    for _ in range(15):
        browser = Browser(desk)
        browser.open()
        assert parse_redirect(browser.submit_consent(username="ada", password="pw"))[1]["code"]


def test_a_name_is_one_however_it_is_written() -> None:
    desk = ServerHarness(has_passwords=True)
    browser = Browser(desk)
    browser.open()
    names = ["ada", "Ada", "ADA", "aDa"] * 4
    assert [browser.submit_consent(username=name, password="x").status_code for name in names] == [403] * 10 + [429] * 6


def test_one_address_cannot_try_every_name() -> None:
    desk = ServerHarness(has_passwords=True)
    browser = Browser(desk)
    browser.open()
    statuses = [browser.submit_consent(username=f"user{number}", password="123456").status_code for number in range(60)]
    assert statuses == [403] * 50 + [429] * 10


def test_a_browser_that_has_logged_in_is_not_locked_out_by_strangers_at_its_address() -> None:
    desk = ServerHarness(has_passwords=True)
    home = Browser(desk)
    home.open()
    login = home.submit_consent(username="Ada", password="x"), home.submit_consent(username="ada", password="pw")
    assert [response.status_code for response in login] == [403, 303]
    known = login[1].headers["set-cookie"].partition(";")[0]
    assert "ada" not in known

    stranger = Browser(desk)
    stranger.open()
    guesses = [stranger.submit_consent(username="ada", password="x").status_code for _ in range(70)]
    assert set(guesses[-10:]) == {429}

    home.open()
    home.cookie = f"{home.cookie}; {known}"
    assert parse_redirect(home.submit_consent(username="ada", password="pw"))[1]["code"]


def test_a_browser_that_has_logged_in_guesses_no_faster() -> None:
    desk = ServerHarness(has_passwords=True)
    browser = Browser(desk)
    browser.open()
    known = browser.submit_consent(username="ada", password="pw").headers["set-cookie"].partition(";")[0]
    browser.open()
    browser.cookie = f"{browser.cookie}; {known}"

    def guess(name: str, count: int) -> list[int]:
        return [browser.submit_consent(username=name, password="x").status_code for _ in range(count)]

    assert guess("ada", 12) == [403] * 10 + [429] * 2
    assert guess("eve", 12) == [403] * 10 + [429] * 2  # The cookie is only valid for the user who logged in.


def test_everyone_of_a_network_is_one() -> None:
    desk = ServerHarness(max_registrations_per_hour=3)
    about = {"redirect_uris": [REDIRECT_URI]}
    statuses = [desk.register(about, address=f"2001:db8::{number:x}").status_code for number in range(1, 6)]
    assert statuses == [201] * 3 + [429] * 2
    assert desk.register(about, address="2001:db8:0:1::1").status_code == 201
    assert group_address("1.2.3.4") == group_address("::ffff:1.2.3.4") == "1.2.3.4"
    assert group_address("unix") == "unix"


@pytest.mark.parametrize(("path", "name"), [("/revoke", "nightly"), ("/token", "nightly"), ("/introspect", "files")])
def test_secrets_cannot_be_guessed_anywhere(path: str, name: str) -> None:
    nightly = RegisteredClient("nightly", client_secret="s3cret", scopes="read")
    desk = ServerHarness(clients=(nightly,), introspection_clients={"files": "s3cret"})

    def ask(secret: str) -> int:
        fields = {"token": "x", "grant_type": "client_credentials"}
        return desk.post(path, fields, authorization=basic_credentials(name, secret)).status_code

    assert [ask(str(number)) for number in range(12)] == [401] * 10 + [429] * 2
    assert ask("s3cret") == 429
    desk.now += 61
    assert ask("s3cret") == 200


def test_keys_are_fetched_at_a_pace() -> None:
    desk = ServerHarness(max_failures_per_minute=1000)
    place = "https://victim.example/big"
    about = {"redirect_uris": [REDIRECT_URI], "token_endpoint_auth_method": "private_key_jwt", "jwks_uri": place}
    name = decode_body(desk.register(about))["client_id"]
    unsigned = "eyJhbGciOiJFUzI1NiJ9.e30.AAAA"
    proof = {
        "client_id": name,
        "token": "x",
        "client_assertion": unsigned,
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
    }
    for _ in range(20):
        assert desk.post("/revoke", proof).status_code == 401
    assert desk.fetched_urls == [place]  # what was in vain is not tried again at once
    desk.now += 61
    desk.documents[place] = FetchResponse(200, {}, b'{"keys":[]}')
    for _ in range(20):
        desk.post("/revoke", proof)
    assert len(desk.fetched_urls) == 6


def test_fetching_keys_counts_as_fetching() -> None:
    desk = ServerHarness(max_failures_per_minute=1000, max_fetches_per_minute=3)
    statuses: list[int] = []
    for number in range(5):
        place = f"https://victim.example/{number}"
        about = {"redirect_uris": [REDIRECT_URI], "token_endpoint_auth_method": "private_key_jwt", "jwks_uri": place}
        proof = {
            "client_id": decode_body(desk.register(about))["client_id"],
            "client_assertion": "eyJhbGciOiJFUzI1NiJ9.e30.AAAA",
            "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        }
        statuses.append(desk.post("/revoke", proof).status_code)
    assert statuses == [401] * 3 + [429] * 2


# Users who are gone


def test_a_removed_user_cannot_refresh() -> None:
    desk = ServerHarness()
    tokens = Browser(desk).request_tokens()
    desk.removed_subjects.add("developer")
    assert decode_body(refresh(desk, tokens["refresh_token"]))["error"] == "invalid_grant"
    with pytest.raises(TokenRejected, match="revoked"):
        desk.run_flow(desk.verifier.verify(tokens["access_token"], (RESOURCE,)))


def test_a_login_ends_however_often_it_was_renewed() -> None:
    desk = ServerHarness(login_time=3 * 86400.0)
    tokens = Browser(desk).request_tokens()
    for _ in range(3):
        desk.now += 80_000
        tokens = decode_body(refresh(desk, tokens["refresh_token"]))
    desk.now += 80_000
    assert decode_body(refresh(desk, tokens["refresh_token"]))["error"] == "invalid_grant"


def test_all_logins_of_a_user_end_at_once() -> None:
    desk = ServerHarness()
    browser = Browser(desk)
    tokens, code = Browser(desk).request_tokens(), browser.request_code()
    grant = TokenGrant(family="f", client_id="editor", subject="grace", resource=RESOURCE)
    other = desk.run_flow(desk.issuing.issue_tokens(grant, desk.now, refreshable=True))
    assert desk.run_flow(desk.issuing.revoke_user("developer")) == 2
    assert decode_body(refresh(desk, tokens["refresh_token"]))["error"] == "invalid_grant"
    redeemed = desk.token(grant_type="authorization_code", code=code, code_verifier=browser.verifier)
    assert decode_body(redeemed)["error"] == "invalid_grant"
    assert decode_body(refresh(desk, other["refresh_token"]))["access_token"]


# Waiting


async def test_a_reader_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    store, other = SQLiteStore(path), sqlite3.connect(path, isolation_level=None)
    await store.put("a", "k", b"1", NOW + 10, NOW)
    other.execute("BEGIN IMMEDIATE")
    writer = asyncio.ensure_future(store.put("a", "k", b"2", NOW + 10, NOW))
    for _ in range(1000):
        assert await store.get("a", "k", NOW) == b"1"
        await asyncio.sleep(0)
        assert not writer.done()  # it still waits for the file
    other.execute("COMMIT")
    await writer
    assert await store.get("a", "k", NOW) == b"2"
    store.close()
    other.close()


# Nonsense


@pytest.mark.parametrize("resource", ["http://[", "https://login.example:x/mcp", "x" * 20, ISSUER + "/mcp#part"])
def test_an_invalid_resource_url(resource: str) -> None:
    desk = ServerHarness(resources=())
    assert parse_redirect(Browser(desk).open(resource=resource))[1]["error"] == "invalid_target"


def proof(desk: ServerHarness, about: dict[str, Any] | None = None, **changes: Any) -> str:
    key = ECKey.generate_key("P-256")
    header = {"typ": "dpop+jwt", "alg": "ES256", "jwk": key.as_dict(private=False) | (about or {})}
    claims = {"htm": "POST", "htu": ISSUER + "/token", "iat": int(desk.now), "jti": "one"} | changes
    return jwt.encode(header, claims, key)


@pytest.mark.parametrize("about", [{"key_ops": 5}, {"key_ops": ["sign"]}, {"use": "enc"}, {"kid": 5}], ids=str)
def test_what_a_proof_says_of_its_key_changes_nothing(about: dict[str, Any]) -> None:
    desk = ServerHarness()
    browser = Browser(desk)
    form = {"grant_type": "authorization_code", "client_id": "editor", "code": browser.request_code()}
    response = desk.post("/token", form | {"code_verifier": browser.verifier}, dpop=proof(desk, about))
    assert decode_body(response)["token_type"] == "DPoP"


@pytest.mark.parametrize("moment", [10**400, -(10**400), 10**300, "now", True, None], ids=lambda one: str(one)[:8])
def test_a_proof_of_no_time(moment: Any) -> None:
    desk = ServerHarness()
    response = desk.post("/token", {"grant_type": "refresh_token", "client_id": "editor"}, dpop=proof(desk, iat=moment))
    assert decode_body(response)["error"] == "invalid_dpop_proof"


def test_an_assertion_without_end() -> None:
    key = ECKey.generate_key("P-256")
    desk = ServerHarness(clients=(RegisteredClient("nightly", public_keys=key.as_dict(private=False), scopes="read"),))
    claims = {"iss": "nightly", "sub": "nightly", "aud": ISSUER, "jti": "1", "exp": 10**400}
    fields = {
        "grant_type": "client_credentials",
        "client_assertion": jwt.encode({"alg": "ES256"}, claims, key),
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
    }
    assert decode_body(desk.post("/token", fields))["error"] == "invalid_client"


# What is sealed


def test_a_request_to_one_issuer_is_none_to_another_with_the_same_secret() -> None:
    """Else what one lets clients ask for would be granted by the other, unasked."""
    lax, strict = ServerHarness(issuer="https://lax.example"), ServerHarness(scopes_supported=("read",))
    browser = Browser(lax)
    browser.open(scope="admin")
    browser.harness = strict
    assert browser.submit_consent().status_code == 400


def test_what_cannot_be_asked_for_any_more_is_not_granted() -> None:
    """A page may be open while the server is started anew with other settings."""
    changes: list[dict[str, Any]] = [
        {"scopes_supported": ("other",)},
        {"resources": ("https://elsewhere.example/mcp",)},
        {"clients": ()},
        {"clients": (RegisteredClient("editor", redirect_uris=["https://editor.example/back"]),)},
    ]
    for change in changes:
        browser = Browser(ServerHarness())
        browser.open()
        browser.harness = ServerHarness(**change)
        response = browser.submit_consent()
        assert (response.status_code, b"over" in response.body) == (400, True), change
        browser.harness = ServerHarness()
        assert parse_redirect(browser.submit_consent())[1]["code"]


# How often


def test_none_an_hour_is_none() -> None:
    desk = ServerHarness(max_registrations_per_hour=0)
    assert {desk.register({"redirect_uris": [REDIRECT_URI]}).status_code for _ in range(6)} == {429}
    desk.now += 3601
    assert desk.register({"redirect_uris": [REDIRECT_URI]}).status_code == 429
