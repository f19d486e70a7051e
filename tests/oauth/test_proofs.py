"""Test signed proofs by verifying them with joserfc."""

import hashlib
import re
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from joserfc import jwt
from joserfc.errors import BadSignatureError
from joserfc.jwk import ECKey, OKPKey, RSAKey

from dovetail.errors import LoginFailed
from dovetail.oauth import proofs
from dovetail.oauth.login.login_settings import Signer
from dovetail.oauth.pkce import create_pkce_pair

URL = "https://mcp.example.com/mcp?x=1#y"


def s256(text: str) -> str:
    return urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def test_a_pkce_pair_is_by_the_book() -> None:
    verifier, challenge = create_pkce_pair()
    assert re.fullmatch(r"[A-Za-z0-9\-._~]{43,128}", verifier)
    assert challenge == s256(verifier)
    assert len({create_pkce_pair()[0] for _ in range(100)}) == 100


def test_a_proof_names_its_request_and_its_key() -> None:
    key = proofs.generate_key()
    proof = jwt.decode(proofs.create_dpop_proof(key, "POST", URL, 1234.9), ECKey.import_key(key), algorithms=["ES256"])
    assert proof.header["typ"] == "dpop+jwt"
    assert proof.header["alg"] == "ES256"
    assert proof.claims | {"jti": ""} == {"jti": "", "htm": "POST", "htu": "https://mcp.example.com/mcp", "iat": 1234}


def test_a_proof_shows_the_public_key_alone() -> None:
    key = proofs.generate_key()
    proof = jwt.decode(proofs.create_dpop_proof(key, "GET", URL, 0.0), ECKey.import_key(key))
    shown: dict[str, Any] = proof.header["jwk"]
    assert "d" in key
    assert {"kty": shown["kty"], "crv": shown["crv"], "x": shown["x"], "y": shown["y"]} == {
        "kty": "EC", "crv": "P-256", "x": key["x"], "y": key["y"],
    }  # fmt: skip
    assert "d" not in shown


def test_a_proof_of_a_token_holds_its_digest() -> None:
    key = proofs.generate_key()
    claims = jwt.decode(
        proofs.create_dpop_proof(key, "GET", URL, 0.0, nonce="n", token="tok"), ECKey.import_key(key)
    ).claims
    assert (claims["nonce"], claims["ath"]) == ("n", s256("tok"))


def test_no_two_proofs_are_the_same() -> None:
    key = proofs.generate_key()
    signer = ECKey.import_key(key)
    assert (
        len({jwt.decode(proofs.create_dpop_proof(key, "GET", URL, 0.0), signer).claims["jti"] for _ in range(50)}) == 50
    )


def test_a_proof_is_of_one_key() -> None:
    with pytest.raises(BadSignatureError):
        jwt.decode(
            proofs.create_dpop_proof(proofs.generate_key(), "GET", URL, 0.0), ECKey.import_key(proofs.generate_key())
        )


@pytest.mark.parametrize(
    ("said", "algorithm", "key"),
    [
        (None, "ES256", ECKey.generate_key("P-256")),
        (None, "ES384", ECKey.generate_key("P-384")),
        ("ES512", "ES512", ECKey.generate_key("P-521")),
        (None, "RS256", RSAKey.generate_key(2048)),
        ("PS256", "PS256", RSAKey.generate_key(2048)),
        (None, "Ed25519", OKPKey.generate_key("Ed25519")),
    ],
)
def test_an_assertion_says_who_for_whom_and_how_long(said: str | None, algorithm: str, key: Any) -> None:
    pem = key.as_pem(private=True).decode()
    signed = proofs.create_client_assertion(Signer(pem, said), "me", "https://login.example.com", 1000.0)
    claims = jwt.decode(signed, key, algorithms=[algorithm]).claims
    assert claims | {"jti": ""} == {
        "iss": "me", "sub": "me", "aud": "https://login.example.com", "iat": 1000, "exp": 1300, "jti": "",
    }  # fmt: skip
    assert len(claims["jti"]) >= 16


@pytest.mark.parametrize(
    ("pem", "algorithm", "why"),
    [
        ("no key", None, "PEM"),
        (ECKey.generate_key("P-256").as_pem(private=False).decode(), None, "PEM"),
        (ECKey.generate_key("P-256").as_pem(private=True).decode(), "RS256", "RS256"),
        (RSAKey.generate_key(2048).as_pem(private=True).decode(), "HS256", "HS256"),
    ],
)
def test_an_unusable_key_is_reported(pem: str, algorithm: str | None, why: str) -> None:
    with pytest.raises(LoginFailed, match=why):
        proofs.create_client_assertion(Signer(pem, algorithm), "me", "https://login.example.com", 1000.0)
