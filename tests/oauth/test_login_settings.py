"""Test login settings: impossible ones are refused at once."""

from collections.abc import Callable
from typing import Any

import pytest

from dovetail.oauth.login.login_settings import (
    BearerAuth,
    ClientCredentials,
    DeviceLogin,
    EnterpriseLogin,
    OAuth,
    Signer,
    WorkloadIdentity,
    get_signer,
    split_scopes,
)

PEM = "-----BEGIN PRIVATE KEY-----\n…"
ENTERPRISE: dict[str, Any] = {
    "client_id": "c",
    "idp_client_id": "i",
    "idp_token_endpoint": "https://idp.example/token",
    "id_token": "t",
}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: BearerAuth(""), "token"),
        (lambda: BearerAuth("Bearer abc"), "'Bearer'"),
        (lambda: BearerAuth("a\r\nX-Admin: 1"), "token"),
        (lambda: BearerAuth(7), "token"),  # pyright: ignore[reportArgumentType]
        (lambda: OAuth(client_secret="s"), "client_secret=.*client_id="),
        (lambda: OAuth(private_key="k"), "private_key=.*client_id=.*client_metadata_url="),
        (lambda: OAuth(client_id="c", client_secret="s", private_key="k"), "client_secret=.*private_key="),
        (lambda: OAuth(client_metadata_url="http://my.app/client.json"), "client_metadata_url.*https"),
        (lambda: OAuth(client_metadata_url="https://my.app/"), "client_metadata_url.*https"),
        (lambda: OAuth(redirect_uri="https://my.app/back"), "redirect_uri.*https://my.app/back.*paste_redirect="),
        (
            lambda: OAuth(redirect_uri="http://192.168.0.1/back"),
            "redirect_uri.*http://192.168.0.1/back.*paste_redirect=",
        ),
        (
            lambda: OAuth(client_id="c", token_endpoint_auth_method="basic"),
            "token_endpoint_auth_method.*none, .*'basic'",
        ),
        (lambda: DeviceLogin(client_secret="s"), "client_secret=.*client_id="),
        (lambda: ClientCredentials(client_id="c"), "client_secret=.*private_key="),
        (lambda: ClientCredentials(client_id="c", client_secret="s", private_key="k"), "client_secret=.*private_key="),
        (lambda: OAuth(client_id="c", private_key="garbage"), "in PEM"),
        (lambda: ClientCredentials(client_id="c", private_key="/etc/key.pem"), "private_key.*PEM"),
        (lambda: OAuth(issuer="login.example.com"), "issuer.*'login.example.com'"),
        (lambda: DeviceLogin(issuer="http://login.example.com"), "issuer.*https"),
        (lambda: ClientCredentials(client_id="c", client_secret="s", issuer="x"), "issuer.*https"),
        (lambda: WorkloadIdentity(assertion="t", issuer="x"), "issuer.*https"),
        (lambda: EnterpriseLogin(**ENTERPRISE | {"issuer": "x"}), "issuer.*https"),
        (
            lambda: EnterpriseLogin(**ENTERPRISE | {"idp_token_endpoint": "http://idp.example/"}),
            "idp_token_endpoint",
        ),
    ],
)
def test_what_cannot_work_is_refused(make: Callable[[], Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make()


@pytest.mark.parametrize(
    ("kind", "options", "why"),
    [
        (OAuth, {"paste_redirect": True}, "paste_redirect.*True"),
        (OAuth, {"open_browser": "firefox"}, "open_browser.*'firefox'"),
        (DeviceLogin, {"show_code": True}, "show_code.*True"),
        (OAuth, {"scopes": 5}, "scopes.*5"),
        (OAuth, {"scopes": [5]}, "scopes.*5"),
        (ClientCredentials, {"client_id": "c", "client_secret": "s", "scopes": 5}, "scopes.*5"),
    ],
)
def test_what_is_of_another_kind_is_refused(kind: Any, options: dict[str, Any], why: str) -> None:
    with pytest.raises(TypeError, match=why):
        kind(**options)


@pytest.mark.parametrize("token", [None, "", 7])
def test_a_token_is_a_text_or_a_function(token: Any) -> None:
    with pytest.raises(TypeError, match="assertion"):
        WorkloadIdentity(assertion=token)
    with pytest.raises(TypeError, match="id_token"):
        EnterpriseLogin(**ENTERPRISE | {"id_token": token})


def test_what_can_work_is_not() -> None:
    assert OAuth(redirect_uri="https://my.app/back", paste_redirect=input).redirect_uri == "https://my.app/back"
    assert OAuth(redirect_uri="http://[::1]:7000/back").redirect_uri
    assert OAuth(client_metadata_url="https://my.app/client.json", private_key=PEM).private_key == PEM
    assert WorkloadIdentity(assertion=lambda: "t").issuer is None


def test_scopes_may_be_one_text() -> None:
    assert (
        split_scopes("files:read files:write")
        == split_scopes(["files:read", "files:write"])
        == ["files:read", "files:write"]
    )
    assert split_scopes(()) == split_scopes("") == []


def test_a_private_key_signs() -> None:
    assert get_signer(OAuth()) is None
    assert get_signer(DeviceLogin()) is None
    assert get_signer(ClientCredentials(client_id="c", private_key=PEM, signing_algorithm="ES384")) == Signer(
        PEM, "ES384"
    )
