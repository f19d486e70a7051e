"""Test parsing WWW-Authenticate in all spellings and in linear time."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dovetail.oauth.challenge import Challenge, parse_challenge

URL = "https://a.example/.well-known/oauth-protected-resource"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", Challenge()),
        ("Bearer", Challenge()),
        ("bearer", Challenge()),
        ("DPoP", Challenge("dpop")),
        ('Bearer scope="a b"', Challenge(scope="a b")),
        ("Bearer scope=a", Challenge(scope="a")),
        ('Bearer scope=""', Challenge(scope="")),
        (f'Bearer resource_metadata="{URL}"', Challenge(resource_metadata=URL)),
        (f"Bearer resource_metadata={URL}", Challenge(resource_metadata=URL)),
        (f'Bearer Error="x" , SCOPE = "a" ,resource_metadata="{URL}"', Challenge("bearer", "a", "x", URL)),
        ('Bearer realm="x\\"y, scope=evil", scope="a\\\\b"', Challenge(scope="a\\b")),
        ('Basic realm="r", Bearer scope="a"', Challenge(scope="a")),
        ('Basic realm="r, Bearer scope=evil"', Challenge()),
        ("Negotiate YIIabc==, Bearer scope=a", Challenge(scope="a")),
        ('Bearer scope="a", Basic scope="b"', Challenge(scope="a")),
        ('Digest scope="b", nonce="c"', Challenge()),
        (f'DPoP algs="ES256", Bearer resource_metadata="{URL}"', Challenge("dpop", resource_metadata=URL)),
        ('Bearer scope="a", DPoP scope="b", error="e"', Challenge(scope="a", error="e")),
        ('Bearer, DPoP algs="ES256"', Challenge()),
        ('Bearer scope="a", scope="b"', Challenge(scope="a")),
        ('scope="a"', Challenge(scope="a")),
        ('Bearer scope="a', Challenge(scope="")),
    ],
)
def test_a_header_is_understood(header: str, expected: Challenge) -> None:
    assert parse_challenge(header) == expected


def test_scopes_are_listed_once_and_in_order() -> None:
    assert parse_challenge('Bearer scope="b  a b"').scopes == ("b", "a")
    assert parse_challenge("Bearer").scopes == ()


def test_the_nonce_comes_with_it() -> None:
    assert parse_challenge("DPoP", "n").nonce == "n"


SAID = st.text(st.characters(codec="latin-1", exclude_characters='"\\'))


@given(SAID, SAID, st.sampled_from(["Bearer", "DPoP", "BEARER"]))
def test_what_is_quoted_comes_through(scope: str, error: str, scheme: str) -> None:
    found = parse_challenge(f'{scheme} scope="{scope}", error="{error}"')
    assert (found.scheme, found.scope, found.error) == (scheme.lower(), scope, error)


@given(st.text())
@example('Bearer scope="\\')
@example("=")
def test_nothing_is_too_odd(header: str) -> None:
    assert parse_challenge(header).scheme in ("bearer", "dpop")


PIECES = ("a", "a ", "a=", 'a="', "a,", 'a="\\"', ", ", " ", "=", '"', "\\", 'a="b",', "Bearer ", 'Bearer a="\\')


@pytest.mark.parametrize("piece", PIECES)
def test_time_grows_with_the_length(piece: str) -> None:
    def cost(size: int) -> float:
        header = (piece * size)[:size]
        best = float("inf")
        for _ in range(3):
            begun = time.process_time()
            for _ in range(10):
                parse_challenge(header)
            best = min(best, time.process_time() - begun)
        return best

    # Eight times the length; a quadratic reader would take sixty-four times as long.
    assert cost(16_000) <= 24 * max(cost(2_000), 0.002)


def test_the_rest_of_an_endless_header_is_not_read() -> None:
    assert parse_challenge("Bearer " + " " * 20_000 + "scope=a") == Challenge()
