"""Test client assertions: valid ones are accepted once, all others are refused."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from joserfc import jws, jwt
from joserfc.jwk import ECKey, OctKey

from dovetail.oauth.authorization_server.client_authentication import JWT_BEARER_ASSERTION
from dovetail.oauth.authorization_server.clients import RegisteredClient
from dovetail.oauth.flow import FetchResponse
from dovetail.oauth.login.login_settings import Signer
from dovetail.oauth.proofs import create_client_assertion
from dovetail.wire.codec import encode
from oauth.server_harness import ISSUER, REDIRECT_URI, Browser, ServerHarness, decode_body
from support.fake_issuer import UNREADABLE

DOCUMENT, KEYS = "https://app.example/client.json", "https://app.example/keys.json"
KEY, OTHER = ECKey.generate_key("P-256"), ECKey.generate_key("P-256")


def jwks(*keys: Any) -> dict[str, Any]:
    return {"keys": [{**key.as_dict(private=False), "kid": key.thumbprint()} for key in keys]}


def assertion(desk: ServerHarness, client: str, key: Any = KEY, *, alg: str = "ES256", **changes: Any) -> str:
    claims = {
        "iss": client, "sub": client, "aud": ISSUER, "jti": f"j{desk.now}", "iat": int(desk.now),
        "exp": int(desk.now) + 60,
    } | changes  # fmt: skip
    claims = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode({"alg": alg}, claims, key, algorithms=[alg])


def ask(desk: ServerHarness, client: str, proof: str | None, **fields: str) -> Any:
    """What comes of a code, shown with this proof."""
    browser = Browser(desk)
    form = {
        "grant_type": "authorization_code",
        "code": browser.request_code(client_id=client, redirect_uri=REDIRECT_URI),
        "code_verifier": browser.verifier,
    }
    if proof is not None:
        form |= {"client_assertion_type": JWT_BEARER_ASSERTION, "client_assertion": proof}
    return desk.post("/token", form | fields)


def with_document(**changes: Any) -> ServerHarness:
    desk = ServerHarness()
    about = {
        "client_id": DOCUMENT, "client_name": "App", "redirect_uris": [REDIRECT_URI],
        "token_endpoint_auth_method": "private_key_jwt", "jwks_uri": KEYS,
    } | changes  # fmt: skip
    desk.documents[DOCUMENT] = FetchResponse(200, {}, encode({k: v for k, v in about.items() if v is not None}))
    desk.documents[KEYS] = FetchResponse(200, {}, encode(jwks(KEY)))
    return desk


def known() -> tuple[ServerHarness, str]:
    return ServerHarness(clients=(RegisteredClient("app", redirect_uris=[REDIRECT_URI], public_keys=jwks(KEY)),)), "app"


def registered() -> tuple[ServerHarness, str]:
    desk = ServerHarness()
    about = {"redirect_uris": [REDIRECT_URI], "token_endpoint_auth_method": "private_key_jwt", "jwks": jwks(KEY)}
    made = decode_body(desk.register(about))
    assert "client_secret" not in made
    assert made["jwks"]["keys"]
    return desk, made["client_id"]


def described() -> tuple[ServerHarness, str]:
    return with_document(), DOCUMENT


EVERY_WAY = pytest.mark.parametrize("way", [known, registered, described])


def test_it_is_offered() -> None:
    metadata = decode_body(ServerHarness().send_request("GET", "/.well-known/oauth-authorization-server"))
    assert "private_key_jwt" in metadata["token_endpoint_auth_methods_supported"]
    assert "ES256" in metadata["token_endpoint_auth_signing_alg_values_supported"]
    assert not [one for one in metadata["token_endpoint_auth_signing_alg_values_supported"] if one.startswith("HS")]


@EVERY_WAY
def test_a_client_proves_itself_by_its_key(way: Callable[[], tuple[ServerHarness, str]]) -> None:
    desk, client = way()
    assert ask(desk, client, assertion(desk, client)).status_code == 200
    assert (
        ask(desk, client, assertion(desk, client, jti="2", aud=[ISSUER + "/token"]), client_id=client).status_code
        == 200
    )


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_assertion_that_cannot_be_read(name: str) -> None:
    desk, client = registered()
    payload = UNREADABLE[name]
    if name == "surrogate":
        exp = int(desk.now) + 60
        payload = json.dumps({"iss": client, "sub": client, "aud": ISSUER, "exp": exp, "jti": "\ud800"}).encode()
    proof = jws.serialize_compact({"alg": "ES256"}, payload, KEY, algorithms=["ES256"])
    assert ask(desk, client, proof, client_id=client).status_code == 401


def test_what_our_own_client_sends_is_taken() -> None:
    desk, client = known()
    proof = create_client_assertion(Signer(KEY.as_pem(private=True).decode()), client, ISSUER, desk.now)
    tokens = ask(desk, client, proof)
    assert tokens.status_code == 200
    again = create_client_assertion(Signer(KEY.as_pem(private=True).decode()), client, ISSUER, desk.now)
    form = {"grant_type": "refresh_token", "refresh_token": decode_body(tokens)["refresh_token"]}
    proved = {"client_assertion_type": JWT_BEARER_ASSERTION, "client_assertion": again}
    assert desk.post("/token", form | {"client_id": client}).status_code == 401
    assert desk.post("/token", form | proved).status_code == 200


@EVERY_WAY
@pytest.mark.parametrize(
    "flaw",
    [
        {"aud": "https://other.example"},
        {"aud": [ISSUER, "https://other.example"]},
        {"aud": None},
        {"iss": "somebody"},
        {"exp": None},
        {"exp": 1},
        {"exp": 10**10},
        {"nbf": 10**10},
        {"jti": None},
        {"jti": ""},
        {"jti": "x" * 300},
        {"key": OTHER},
        {"key": OctKey.import_key(str(KEY.as_dict(private=False))), "alg": "HS256"},
    ],
    ids=lambda flaw: "-".join(f"{name}={str(value)[:12]}" for name, value in flaw.items()),
)
def test_a_flawed_assertion_is_not_taken(way: Callable[[], tuple[ServerHarness, str]], flaw: dict[str, Any]) -> None:
    desk, client = way()
    answer = ask(desk, client, assertion(desk, client, **flaw), client_id=client)
    assert (answer.status_code, decode_body(answer)["error"]) == (401, "invalid_client")


@EVERY_WAY
def test_an_assertion_is_good_once(way: Callable[[], tuple[ServerHarness, str]]) -> None:
    desk, client = way()
    proof = assertion(desk, client)
    assert ask(desk, client, proof).status_code == 200
    answer = ask(desk, client, proof)
    assert (answer.status_code, decode_body(answer)["error"]) == (401, "invalid_client")


@EVERY_WAY
def test_without_one_there_is_nothing(way: Callable[[], tuple[ServerHarness, str]]) -> None:
    desk, client = way()
    assert ask(desk, client, None, client_id=client).status_code == 401
    assert ask(desk, client, None, client_id=client, client_secret="x").status_code == 401
    proof = assertion(desk, client)
    assert ask(desk, client, proof, client_secret="x").status_code == 400
    assert ask(desk, client, proof, client_id="editor").status_code in (400, 401)
    assert ask(desk, client, proof, client_assertion_type="x").status_code == 401
    for nonsense in ("", "a.b.c", "x" * 20_000):
        assert ask(desk, client, nonsense, client_id=client).status_code == 401


def test_a_client_without_a_key_cannot_bring_one() -> None:
    desk = ServerHarness()
    assert ask(desk, "editor", assertion(desk, "editor"), client_id="editor").status_code == 401


def test_keys_turn() -> None:
    desk = with_document()
    assert ask(desk, DOCUMENT, assertion(desk, DOCUMENT)).status_code == 200
    assert ask(desk, DOCUMENT, assertion(desk, DOCUMENT, jti="2")).status_code == 200
    assert desk.fetched_urls.count(KEYS) == 1
    desk.documents[KEYS] = FetchResponse(200, {}, encode(jwks(OTHER)))
    assert ask(desk, DOCUMENT, assertion(desk, DOCUMENT, OTHER, jti="3")).status_code == 200
    assert ask(desk, DOCUMENT, assertion(desk, DOCUMENT, KEY, jti="4")).status_code == 401


@pytest.mark.parametrize(
    "answer", [FetchResponse(0), FetchResponse(404), FetchResponse(200, {}, b"[]"), FetchResponse(302)]
)
def test_keys_that_cannot_be_fetched(answer: FetchResponse) -> None:
    desk = with_document()
    desk.documents[KEYS] = answer
    assert ask(desk, DOCUMENT, assertion(desk, DOCUMENT)).status_code == 401


@pytest.mark.parametrize(
    "changes",
    [
        {"jwks_uri": None},
        {"jwks_uri": "http://app.example/keys.json"},
        {"jwks_uri": KEYS, "jwks": jwks(KEY)},
        {"jwks_uri": None, "jwks": {"keys": []}},
        {"jwks_uri": None, "jwks": {"keys": 7}},
        {"jwks_uri": None, "jwks": {"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}},
        {"jwks_uri": None, "jwks": jwks(*[KEY] * 11)},
        {"jwks_uri": None, "jwks": {"keys": [{"kty": "RSA", "n": "x" * 170, "e": "AQAB"}]}},
    ],
    ids=["none", "plain http", "twice", "empty", "no list", "a secret", "too many", "too short"],
)
def test_keys_that_cannot_be_used(changes: dict[str, Any]) -> None:
    desk = with_document(**changes)
    assert Browser(desk).open(client_id=DOCUMENT, redirect_uri=REDIRECT_URI).status_code == 400
    about = {
        "redirect_uris": [REDIRECT_URI],
        "token_endpoint_auth_method": "private_key_jwt",
        "jwks_uri": KEYS,
    } | changes
    assert desk.register({name: value for name, value in about.items() if value is not None}).status_code == 400


def test_private_parts_are_not_kept() -> None:
    desk = ServerHarness()
    about = {"redirect_uris": [REDIRECT_URI], "token_endpoint_auth_method": "private_key_jwt"}
    made = decode_body(desk.register(about | {"jwks": {"keys": [KEY.as_dict(private=True)]}}))
    assert "d" not in made["jwks"]["keys"][0]


def test_a_known_client_has_one_proof() -> None:
    with pytest.raises(ValueError, match=r"client_secret=.*keys="):
        RegisteredClient("x", redirect_uris=[REDIRECT_URI], client_secret="s", public_keys=jwks(KEY))
    with pytest.raises(ValueError, match=r"keys.*JWK"):
        RegisteredClient("x", redirect_uris=[REDIRECT_URI], public_keys="nonsense")


# Many assertions


def revoke(desk: ServerHarness, client: str, number: int, **options: Any) -> int:
    form = {"client_assertion_type": JWT_BEARER_ASSERTION, "token": "x"}
    proof = assertion(desk, client, jti=f"flood {number}", exp=int(desk.now) + 3000, **options)
    return desk.post("/revoke", form | {"client_assertion": proof}).status_code


def test_one_client_does_not_lock_out_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from dovetail.oauth.authorization_server import client_authentication, store

    monkeypatch.setattr(store, "MAX_ENTRIES", 200)
    monkeypatch.setattr(client_authentication, "_MAX_ASSERTIONS", 20)
    registrations = {"redirect_uris": [REDIRECT_URI], "token_endpoint_auth_method": "private_key_jwt"}
    desk = ServerHarness(clients=(RegisteredClient("app", redirect_uris=[REDIRECT_URI], public_keys=jwks(KEY)),))
    mallory = decode_body(desk.register(registrations | {"jwks": jwks(KEY)}))["client_id"]
    statuses = [revoke(desk, mallory, number) for number in range(250)]
    assert statuses.count(200) == 20
    assert set(statuses[20:]) == {429}
    desk.address = "198.51.100.7"
    assert ask(desk, "app", assertion(desk, "app")).status_code == 200
    assert revoke(desk, mallory, 300) == 429  # by client, whatever the address
    desk.now += 60
    assert revoke(desk, mallory, 301) == 200


def test_many_clients_of_one_address_share_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    from dovetail.oauth.authorization_server import client_authentication

    monkeypatch.setattr(client_authentication, "_MAX_ASSERTIONS", 20)
    about = {"redirect_uris": [REDIRECT_URI], "token_endpoint_auth_method": "private_key_jwt", "jwks": jwks(KEY)}
    desk = ServerHarness()
    clients = [decode_body(desk.register(about))["client_id"] for _ in range(5)]
    statuses = [revoke(desk, clients[number % 5], number) for number in range(50)]
    assert statuses.count(200) == 20


def test_an_assertion_is_used_soon_after_it_was_issued() -> None:
    desk, client = known()
    old = assertion(desk, client, exp=int(desk.now) + 3000)
    assert ask(desk, client, old).status_code == 200
    for seconds in (200, 100, 100, 2000):
        desk.now += seconds
        assert ask(desk, client, old).status_code == 401  # first because it was used, then because it is old
    unused = assertion(desk, client, jti="unused", exp=int(desk.now) + 3000)
    desk.now += 400
    assert ask(desk, client, unused).status_code == 401
    assert ask(desk, client, assertion(desk, client, iat=int(desk.now) + 300)).status_code == 401
    without = {"iat": None, "jti": "without"}
    assert ask(desk, client, assertion(desk, client, exp=int(desk.now) + 3000, **without)).status_code == 401
    assert ask(desk, client, assertion(desk, client, exp=int(desk.now) + 200, **without)).status_code == 200


def test_revocations_are_counted_by_client() -> None:
    desk = ServerHarness(max_token_responses_per_minute=5)
    form = {"client_id": "editor", "token": "x"}
    assert [desk.post("/revoke", form).status_code for _ in range(8)] == [200] * 5 + [429] * 3
