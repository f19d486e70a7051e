"""Test saved logins: a complete round trip, invalid data and hidden secrets."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.oauth.login.login_settings import (
    BearerAuth,
    ClientCredentials,
    DeviceLogin,
    EnterpriseLogin,
    OAuth,
    WorkloadIdentity,
)
from dovetail.oauth.login.saved_login import ClientRegistration, SavedLogin, Token
from dovetail.oauth.metadata import AuthorizationServerMetadata
from oauth.flow_environment import ISSUER, SERVER, server_metadata

LOGIN = SavedLogin(
    resource=SERVER,
    server=AuthorizationServerMetadata(**server_metadata(scopes_supported=["a"])),
    client=ClientRegistration(
        issuer=ISSUER, client_id="c", client_secret="s3cret", redirect_uris=["http://127.0.0.1:1/"]
    ),
    token=Token(access_token="s3cret", expires_at=5.5, refresh_token="s3cret", scope="a"),
    scopes=["a", "b"],
    key={"kty": "EC", "d": "s3cret"},
)


def test_everything_comes_back() -> None:
    assert SavedLogin.load(LOGIN.dump()) == LOGIN


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b"[" * 100_000, LOGIN.dump()[:-9], b'{"resource": 7}'])
def test_something_else_is_nothing(data: bytes) -> None:
    assert SavedLogin.load(data) is None


@given(st.integers(0, 500), st.binary(max_size=4))
def test_a_damaged_one_is_nothing_or_whole(at: int, noise: bytes) -> None:
    data = LOGIN.dump()
    found = SavedLogin.load(data[:at] + noise + data[at:])
    assert found is None or isinstance(found, SavedLogin)


@pytest.mark.parametrize(
    ("expires_at", "now", "fresh"),
    [(None, 1e12, True), (100.0, 69.0, True), (100.0, 70.0, False), (100.0, 200.0, False)],
)
def test_a_token_is_renewed_before_it_ends(expires_at: float | None, now: float, fresh: bool) -> None:
    assert Token(access_token="a", expires_at=expires_at).is_fresh(now) is fresh


def test_a_token_can_be_used_to_its_end() -> None:
    assert Token(access_token="a", expires_at=100.0).is_usable(99.0)
    assert not Token(access_token="a", expires_at=100.0).is_usable(100.0)
    assert Token(access_token="a").is_usable(1e12)


@pytest.mark.parametrize(
    "value",
    [
        LOGIN,
        LOGIN.client,
        LOGIN.token,
        BearerAuth("s3cret"),
        OAuth(client_id="c", client_secret="s3cret"),
        DeviceLogin(client_id="c", client_secret="s3cret"),
        ClientCredentials(client_id="c", private_key="-----BEGIN PRIVATE KEY-----s3cret"),
        EnterpriseLogin(client_id="c", idp_client_id="i", idp_token_endpoint="https://i.example", id_token="s3cret"),
        WorkloadIdentity(assertion="s3cret"),
    ],
)
def test_nothing_of_it_is_shown(value: Any) -> None:
    assert "s3cret" not in f"{value!r}{value!s}"
    assert f"{value!r}" == f"{type(value).__name__}(…)"
