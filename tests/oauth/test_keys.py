"""Test which keys may verify a token, and what is read from a token."""

from typing import Any

import pytest
from joserfc import jws
from joserfc.jwk import ECKey

from dovetail.oauth.guard.claims import TokenRejected
from dovetail.oauth.guard.keys import (
    MAX_TOKEN_CHARS,
    PublicKey,
    has_issuer,
    load_keys,
    parse_jwks,
    read_unverified_claims,
    select_keys,
    verify_signature,
)

KEY = ECKey.generate_key("P-256")


def sign(payload: str, key: ECKey = KEY) -> str:
    return jws.serialize_compact({"alg": "ES256"}, payload.encode(), key, algorithms=["ES256"])


@pytest.mark.parametrize(
    ("jwk", "is_strong"),
    [
        ({"kty": "RSA", "n": "x" * 340}, True),
        ({"kty": "RSA", "n": "x" * 339}, False),
        ({"kty": "RSA"}, False),
        ({"kty": "RSA", "n": ["x"] * 340}, False),
        ({"kty": "EC"}, True),
        ({"kty": "OKP"}, True),
        ({"kty": "oct"}, False),
    ],
)
def test_rsa_keys_need_2048_bits(jwk: dict[str, Any], is_strong: bool) -> None:
    assert PublicKey(jwk).is_strong is is_strong
    assert len(parse_jwks({"keys": [jwk]})) == is_strong


def test_a_key_keeps_no_private_part() -> None:
    assert "d" not in PublicKey(KEY.as_dict(private=True)).jwk


def test_keys_for_encryption_are_ignored() -> None:
    public = KEY.as_dict(private=False)
    assert len(parse_jwks({"keys": [public, public | {"use": "sig"}, public | {"use": "enc"}, "x"]})) == 2
    with pytest.raises(ValueError, match="`keys` must be a list"):
        parse_jwks({"keys": {}})


@pytest.mark.parametrize(
    ("change", "key_id", "is_selected"),
    [
        ({}, None, True),
        ({"kid": "a"}, None, True),
        ({"kid": "a"}, "a", True),
        ({"kid": "a"}, "b", False),
        ({}, "a", False),
        ({"alg": "ES256"}, None, True),
        ({"alg": "ES384"}, None, False),
        ({"crv": "P-384"}, None, False),
        ({"kty": "OKP"}, None, False),
    ],
)
def test_only_keys_that_fit_the_header_are_tried(change: dict[str, Any], key_id: str | None, is_selected: bool) -> None:
    keys = [PublicKey({"kty": "EC", "crv": "P-256"} | change)]
    header = {"alg": "ES256"} if key_id is None else {"alg": "ES256", "kid": key_id}
    assert select_keys(keys, header, ("ES256",)) == (keys if is_selected else [])


@pytest.mark.parametrize("algorithm", ["none", "HS256", "ES384", None, 5])
def test_the_token_does_not_choose_the_algorithm(algorithm: Any) -> None:
    with pytest.raises(TokenRejected, match="algorithm"):
        select_keys([PublicKey(KEY.as_dict(private=False))], {"alg": algorithm}, ("ES256",))


def test_the_key_that_has_signed_is_found_among_others() -> None:
    keys = load_keys([ECKey.generate_key("P-256").as_dict(private=False), KEY.as_dict(private=False)])
    assert verify_signature(sign('{"sub": "ada"}'), keys, "ES256") == {"sub": "ada"}
    with pytest.raises(TokenRejected, match="signature is invalid"):
        verify_signature(sign('{"sub": "ada"}'), keys[:1], "ES256")


@pytest.mark.parametrize(("payload", "problem"), [("[1]", "no claims"), ("{", "are invalid"), ("", "are invalid")])
def test_a_signed_token_without_claims_is_rejected(payload: str, problem: str) -> None:
    with pytest.raises(TokenRejected, match=problem):
        verify_signature(sign(payload), load_keys(KEY.as_dict(private=False)), "ES256")


def test_the_issuer_is_read_without_verification() -> None:
    token = sign('{"iss": "https://a.example"}')
    assert has_issuer(token, "https://a.example")
    assert not has_issuer(token, "https://b.example")
    assert not has_issuer("opaque", "https://a.example")


@pytest.mark.parametrize("token", ["a.b", "a.b.c.d", "..", "e30.W10.x", f"e30.e30.{'x' * MAX_TOKEN_CHARS}", "e30.=.x"])
def test_what_is_not_a_signed_token_has_no_claims(token: str) -> None:
    with pytest.raises(TokenRejected, match="not a signed JWT"):
        read_unverified_claims(token)


def test_a_token_of_the_largest_size_is_read() -> None:
    assert read_unverified_claims(f"e30.e30.{'x' * (MAX_TOKEN_CHARS - 8)}") == {}
