"""Test the token endpoint: client authentication, token responses and refresh with rotation."""

import json
from base64 import b64decode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import ECKey

from dovetail.errors import LoginFailed
from dovetail.oauth import proofs
from dovetail.oauth.flow import FetchResponse
from dovetail.oauth.login.saved_login import ClientRegistration, SavedLogin, Token
from dovetail.oauth.metadata import AuthorizationServerMetadata
from dovetail.oauth.token_request import (
    add_client_authentication,
    parse_seconds,
    parse_token,
    refresh_login,
    request_token,
    revoke_login,
)
from dovetail.protocol.interfaces.http_types import HTTPRequest
from dovetail.wire.base import replace
from oauth.flow_environment import ISSUER, SERVER, FlowEnvironment, Reply, json_answer, parse_form, server_metadata

TOKEN = f"{ISSUER}/token"
GOOD = {"access_token": "new", "token_type": "Bearer", "expires_in": 60}
DESCRIBED = AuthorizationServerMetadata(**server_metadata())


def client(method: str = "none", secret: str | None = None) -> ClientRegistration:
    return ClientRegistration(issuer=ISSUER, client_id="me:1", client_secret=secret, method=method)


# Who we are


def test_by_basic_authentication_each_half_is_encoded_by_itself() -> None:
    fields, headers = add_client_authentication(client("client_secret_basic", "p/w d:é"), {"a": "b"})
    assert fields == {"a": "b", "client_id": "me:1"}
    scheme, _, value = headers["authorization"].partition(" ")
    assert (scheme, b64decode(value)) == ("Basic", b"me%3A1:p%2Fw%20d%3A%C3%A9")


def test_by_the_form() -> None:
    assert add_client_authentication(client("client_secret_post", "s"), {}) == (
        {"client_id": "me:1", "client_secret": "s"},
        {},
    )


def test_by_an_assertion() -> None:
    kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
    expected = {"client_id": "me:1", "client_assertion_type": kind, "client_assertion": "jwt"}
    assert add_client_authentication(client("private_key_jwt"), {}, "jwt") == (expected, {})


@pytest.mark.parametrize("method", ["none", "client_secret_basic", "client_secret_post", "private_key_jwt", "odd"])
def test_without_a_secret_only_by_name(method: str) -> None:
    assert add_client_authentication(client(method), {}) == ({"client_id": "me:1"}, {})


# What comes back


def token(**said: Any) -> Token:
    return parse_token(json_answer(said), 1000.0)


def test_a_whole_response() -> None:
    said = token(access_token="a", token_type="bearer", expires_in=60, refresh_token="r", scope="x y")
    assert said == Token(access_token="a", expires_at=1060.0, refresh_token="r", scope="x y")


def test_a_short_lived_token_is_not_renewed_at_once() -> None:
    assert token(access_token="a", expires_in=10).is_fresh(1004.0)
    assert not token(access_token="a", expires_in=10).is_fresh(1005.0)


def test_the_least_a_response_may_say() -> None:
    assert token(access_token="a") == Token(access_token="a")
    assert token(access_token="a", token_type="dpop").token_type == "DPoP"
    assert token(access_token="a", refresh_token=7, scope=["x"]) == Token(access_token="a")


@pytest.mark.parametrize("access", [None, 7, "", " ", "a b", "a\r\nx: y", "é", "a\x00", ["a"]])
def test_a_token_that_cannot_travel_in_a_header_is_none(access: Any) -> None:
    with pytest.raises(LoginFailed, match="access token"):
        token(access_token=access)


@pytest.mark.parametrize("kind", ["mac", "", 7, None])
def test_a_token_of_another_type_is_none(kind: Any) -> None:
    with pytest.raises(LoginFailed):
        token(access_token="a", token_type=kind)


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>secret", b"\xff"])
def test_a_response_that_is_not_a_document_is_ignored(body: bytes) -> None:
    with pytest.raises(LoginFailed) as refused:
        parse_token(FetchResponse(200, {}, body), 0.0)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (60, 60.0), ("60", 60.0), (0.5, 0.5), (-5, 0.0), (0, 0.0), (None, None), ("soon", None), ("²", None),
        ("", None), ([60], None), (10**400, 315360000.0), ("9" * 400, 315360000.0), (float("nan"), None),
        (float("inf"), 315360000.0),
    ],
)  # fmt: skip
def test_how_long_is_long(said: Any, meant: float | None) -> None:
    assert parse_seconds(said) == meant


@given(
    st.dictionaries(
        st.sampled_from(["access_token", "token_type", "expires_in", "refresh_token"]), st.from_type(object)
    )
)
def test_no_response_is_too_odd(said: dict[str, Any]) -> None:
    try:
        body = json.dumps(said | {"access_token": "a", "token_type": "Bearer"}, default=str).encode()
        found = parse_token(FetchResponse(200, {}, body), 0.0)
    except LoginFailed:
        return
    assert found.expires_at is None or found.expires_at >= 0


# Asking


def asked(world: FlowEnvironment, **options: Any) -> Token:
    return world.run_flow(request_token(DESCRIBED, client(), {"grant_type": "x"}, **options))


def test_a_refusal_is_reported_with_its_code() -> None:
    with pytest.raises(LoginFailed, match=r"invalid_grant.*too late") as refused:
        asked(FlowEnvironment({TOKEN: json_answer({"error": "invalid_grant", "error_description": "too late"}, 400)}))
    assert refused.value.oauth_error == "invalid_grant"


@pytest.mark.parametrize("status", [201, 301, 302, 307, 308, 500])
def test_only_200_brings_a_token(status: int) -> None:
    world = FlowEnvironment({TOKEN: json_answer(GOOD, status, {"location": "https://evil.example/"})})
    with pytest.raises(LoginFailed, match=str(status)):
        asked(world)
    assert world.urls == [TOKEN]


def test_a_bound_token_is_asked_for_with_a_proof_and_the_nonce_on_demand() -> None:
    key = proofs.generate_key()
    sent: list[dict[str, Any]] = []

    def endpoint(call: HTTPRequest) -> FetchResponse:
        sent.append(jwt.decode(call.headers["dpop"], ECKey.import_key(key)).claims)
        if len(sent) == 1:
            return json_answer({"error": "use_dpop_nonce"}, 400, {"dpop-nonce": "n1"})
        return json_answer(GOOD | {"token_type": "DPoP"})

    world = FlowEnvironment({TOKEN: endpoint})
    assert asked(world, key=key).token_type == "DPoP"
    assert [claims.get("nonce") for claims in sent] == [None, "n1"]
    assert all(claims["htu"] == TOKEN and claims["htm"] == "POST" and claims["iat"] == 1000 for claims in sent)
    assert sent[0]["jti"] != sent[1]["jti"]
    assert "ath" not in sent[0]


def test_a_nonce_is_followed_once() -> None:
    world = FlowEnvironment({TOKEN: json_answer({"error": "use_dpop_nonce"}, 400, {"dpop-nonce": "n"})})
    with pytest.raises(LoginFailed, match="use_dpop_nonce"):
        asked(world, key=proofs.generate_key())
    assert len(world.calls) == 2


@pytest.mark.parametrize(("kind", "with_key"), [("Bearer", True), ("DPoP", False)])
def test_a_token_bound_otherwise_than_asked_is_not_used(kind: str, with_key: bool) -> None:
    with pytest.raises(LoginFailed, match=kind):
        asked(FlowEnvironment({TOKEN: GOOD | {"token_type": kind}}), key=proofs.generate_key() if with_key else None)


# Renewal


def held(**changes: Any) -> SavedLogin:
    fields: dict[str, Any] = {"access_token": "old", "refresh_token": "r1", "scope": "a", "expires_at": 5.0} | changes
    return SavedLogin(resource=SERVER, server=DESCRIBED, client=client(), token=Token(**fields), scopes=["a"])


def renewed(said: Reply, login: SavedLogin | None = None) -> tuple[SavedLogin, FlowEnvironment]:
    world = FlowEnvironment({TOKEN: said})
    return world.run_flow(refresh_login(login or held())), world


def test_a_rotated_refresh_token_replaces_the_old() -> None:
    login, world = renewed(GOOD | {"refresh_token": "r2", "scope": "b"})
    assert login.token == Token(access_token="new", expires_at=1060.0, refresh_token="r2", scope="b")
    assert parse_form(world.calls[0]) == {
        "grant_type": "refresh_token", "refresh_token": "r1", "resource": SERVER, "client_id": "me:1",
    }  # fmt: skip


def test_one_that_is_not_replaced_is_kept() -> None:
    login, _ = renewed(GOOD)
    assert login.token is not None
    assert (login.token.refresh_token, login.token.scope) == ("r1", "a")
    assert login.scopes == ["a"]


def test_without_a_refresh_token_nothing_is_asked() -> None:
    login, world = renewed(GOOD, held(refresh_token=None))
    assert login == held(refresh_token=None)
    assert not world.calls


def test_a_grant_that_is_gone_takes_the_token_with_it() -> None:
    login, _ = renewed(json_answer({"error": "invalid_grant"}, 400))
    assert (login.token, login.client.is_rejected, login.scopes) == (None, False, ["a"])


@pytest.mark.parametrize("code", ["invalid_client", "unauthorized_client"])
def test_a_client_that_is_forgotten_is_not_used_again(code: str) -> None:
    login, _ = renewed(json_answer({"error": code}, 401))
    assert (login.token, login.client.is_rejected) == (None, True)


@pytest.mark.parametrize(
    "said", [FetchResponse(0), json_answer({}, 503), json_answer({"error": "temporarily_unavailable"}, 400)]
)
def test_a_passing_fault_costs_no_login(said: FetchResponse) -> None:
    with pytest.raises(LoginFailed):
        renewed(said)


# The end of it

LOGIN = SavedLogin(resource=SERVER, server=DESCRIBED, client=client())


def test_a_login_is_ended_by_its_refresh_token() -> None:
    world = FlowEnvironment({f"{ISSUER}/revoke": json_answer({})})
    server_known = replace(LOGIN.server, revocation_endpoint=f"{ISSUER}/revoke")
    for token, said in (
        (Token(access_token="a", refresh_token="r"), {"token": "r", "token_type_hint": "refresh_token"}),
        (Token(access_token="a"), {"token": "a", "token_type_hint": "access_token"}),
    ):
        assert world.run_flow(revoke_login(replace(LOGIN, server=server_known, token=token)))
        assert parse_form(world.calls[-1]).items() >= said.items()


@pytest.mark.parametrize("endpoint", [None, "http://login.example.com/revoke"])
def test_a_revocation_is_never_sent_unencrypted(endpoint: str | None) -> None:
    world = FlowEnvironment()
    known = replace(LOGIN.server, revocation_endpoint=endpoint)
    assert not world.run_flow(revoke_login(replace(LOGIN, server=known, token=Token(access_token="a"))))
    assert not world.run_flow(revoke_login(replace(LOGIN, token=None)))
    assert not world.calls
