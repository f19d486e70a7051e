"""Test the tokens of an authorization server: which ones are valid, and what a second use revokes."""

from typing import Any

import pytest
from joserfc import jwt

from dovetail.oauth.authorization_server.store import AuthorizationCode, TokenGrant
from dovetail.wire.base import replace
from oauth.server_harness import ISSUER, NOW, REDIRECT_URI, RESOURCE, ServerHarness

GRANT = TokenGrant(family="f1", client_id="editor", subject="ada", resource=RESOURCE, scopes=("read",))


@pytest.fixture
def harness() -> ServerHarness:
    return ServerHarness()


def issue(harness: ServerHarness, grant: TokenGrant = GRANT, *, refreshable: bool = True, code: str = "") -> Any:
    return harness.run_flow(harness.issuing.issue_tokens(grant, harness.now, refreshable=refreshable, code=code))


def verify(harness: ServerHarness, token: str, now: float = NOW) -> Any:
    return harness.run_flow(harness.issuing.verify_access_token(token, now))


def sign(harness: ServerHarness, claims: dict[str, Any], typ: str = "at+jwt") -> str:
    key = harness.run_flow(harness.issuing.get_signing_key(NOW))
    return jwt.encode({"alg": "ES256", "typ": typ, "kid": key.kid}, claims, key, algorithms=["ES256"])


def test_an_access_token_is_valid_until_it_expires(harness: ServerHarness) -> None:
    token = issue(harness)["access_token"]
    claims = verify(harness, token)
    assert (claims["iss"], claims["sub"], claims["sid"], claims["exp"]) == (ISSUER, "ada", "f1", NOW + 900)
    assert verify(harness, token, NOW + 899) == claims
    assert verify(harness, token, NOW + 900) is None


def test_only_access_tokens_of_this_issuer_are_valid(harness: ServerHarness) -> None:
    claims = verify(harness, issue(harness)["access_token"])
    assert verify(harness, sign(harness, claims)) == claims
    assert verify(harness, sign(harness, claims, typ="JWT")) is None
    assert verify(harness, sign(harness, claims | {"iss": f"{ISSUER}/"})) is None
    assert verify(harness, sign(harness, {name: claims[name] for name in claims if name != "exp"})) is None
    assert verify(ServerHarness(), sign(harness, claims)) is None
    assert verify(harness, "a.b.c") is None


def test_a_revoked_grant_has_no_valid_token(harness: ServerHarness) -> None:
    tokens = issue(harness)
    assert harness.run_flow(harness.issuing.find_active_grant("f1", NOW)) == GRANT
    harness.run_flow(harness.issuing.revoke_family("f1", NOW))
    assert harness.run_flow(harness.issuing.find_active_grant("f1", NOW)) is None
    assert verify(harness, tokens["access_token"]) is None
    assert harness.run_flow(harness.issuing.renew_tokens(tokens["refresh_token"], NOW)) is None


def test_a_grant_can_be_changed_until_it_is_revoked(harness: ServerHarness) -> None:
    issue(harness)
    changed = replace(GRANT, upstream="sealed")
    assert harness.run_flow(harness.issuing.update_grant(changed, NOW)) is True
    assert harness.run_flow(harness.issuing.find_active_grant("f1", NOW)) == changed
    harness.run_flow(harness.issuing.revoke_family("f1", NOW))
    assert harness.run_flow(harness.issuing.update_grant(GRANT, NOW)) is False
    assert harness.run_flow(harness.issuing.find_active_grant("f1", NOW)) is None


def test_only_the_second_use_of_a_code_revokes_its_tokens(harness: ServerHarness) -> None:
    code = AuthorizationCode(grant=GRANT, redirect_uri=REDIRECT_URI, challenge="c")
    text = harness.run_flow(harness.issuing.issue_code(code, NOW))
    assert harness.run_flow(harness.issuing.redeem_code(text, NOW)) == code
    issue(harness, code=text)
    for wrong in ("f1.guessed", "f1", "f2.guessed", ""):
        assert harness.run_flow(harness.issuing.redeem_code(wrong, NOW)) is None
    assert harness.run_flow(harness.issuing.find_active_grant("f1", NOW)) == GRANT
    assert harness.run_flow(harness.issuing.redeem_code(text, NOW)) is None
    assert harness.run_flow(harness.issuing.find_active_grant("f1", NOW)) is None


def test_a_code_in_use_does_not_revoke_tokens_of_its_grant(harness: ServerHarness) -> None:
    code = AuthorizationCode(grant=GRANT, redirect_uri=REDIRECT_URI, challenge="c")
    text = harness.run_flow(harness.issuing.issue_code(code, NOW))
    issue(harness, code=text)
    assert harness.run_flow(harness.issuing.redeem_code(text, NOW)) == code
    assert harness.run_flow(harness.issuing.find_active_grant("f1", NOW)) == GRANT


def test_a_refresh_token_needs_its_secret_parts(harness: ServerHarness) -> None:
    token = issue(harness)["refresh_token"]
    family, root, secret = token.split(".")
    assert harness.run_flow(harness.issuing.find_grant(token, NOW)) == GRANT
    assert harness.run_flow(harness.issuing.find_grant(f"{family}.{root}.older", NOW)) == GRANT
    for wrong in (f"{family}.x.{secret}", f"f2.{root}.{secret}", f"{token}.x", family, f"{family}..{secret}", ""):
        assert harness.run_flow(harness.issuing.find_grant(wrong, NOW)) is None
        assert harness.run_flow(harness.issuing.renew_tokens(wrong, NOW)) is None
    assert harness.run_flow(harness.issuing.renew_tokens(token, NOW)) is not None


def test_a_grant_without_refresh_tokens_cannot_be_renewed(harness: ServerHarness) -> None:
    assert "refresh_token" not in issue(harness, refreshable=False)
    assert harness.run_flow(harness.issuing.find_grant("f1..", NOW)) is None


def test_a_refresh_token_expires(harness: ServerHarness) -> None:
    token = issue(harness)["refresh_token"]
    assert harness.run_flow(harness.issuing.find_grant(token, NOW + 86399)) == GRANT
    assert harness.run_flow(harness.issuing.find_grant(token, NOW + 86400)) is None


def test_the_second_use_of_a_refresh_token_revokes_its_grant(harness: ServerHarness) -> None:
    first = issue(harness)["refresh_token"]
    renewed = harness.run_flow(harness.issuing.renew_tokens(first, NOW, ["write"]))
    assert (renewed["scope"], renewed["token_type"], renewed["expires_in"]) == ("write", "Bearer", 900)
    assert harness.run_flow(harness.issuing.renew_tokens(first, NOW)) is None
    assert harness.run_flow(harness.issuing.renew_tokens(renewed["refresh_token"], NOW)) is None
    assert harness.run_flow(harness.issuing.find_active_grant("f1", NOW)) is None


def test_a_grant_with_a_proof_key_has_bound_tokens(harness: ServerHarness) -> None:
    tokens = issue(harness, replace(GRANT, jkt="thumb", subject=""))
    claims = verify(harness, tokens["access_token"])
    assert (tokens["token_type"], claims["cnf"], "sub" in claims) == ("DPoP", {"jkt": "thumb"}, False)
