"""What a user says about logging in: what cannot work is refused when it is said."""

from collections.abc import Callable
from typing import Any

import pytest

from dovetail.auth.settings import (
    Bearer,
    ClientCredentials,
    DeviceLogin,
    EnterpriseLogin,
    OAuth,
    Signer,
    WorkloadIdentity,
    signer_of,
    words,
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
        (lambda: Bearer(""), "the token alone"),
        (lambda: Bearer("Bearer abc"), "without 'Bearer'"),
        (lambda: Bearer("a\r\nX-Admin: 1"), "the token alone"),
        (lambda: Bearer(7), "the token alone"),  # pyright: ignore[reportArgumentType]
        (lambda: OAuth(client_secret="s"), "give its client_id="),
        (lambda: OAuth(private_key="k"), "give its client_id= or client_metadata_url="),
        (lambda: OAuth(client_id="c", client_secret="s", private_key="k"), "not by both"),
        (lambda: OAuth(client_metadata_url="http://my.app/client.json"), "must be an https URL with a path"),
        (lambda: OAuth(client_metadata_url="https://my.app/"), "must be an https URL with a path"),
        (lambda: OAuth(redirect_uri="https://my.app/back"), "nothing here would hear of another"),
        (lambda: OAuth(redirect_uri="http://192.168.0.1/back"), "nothing here would hear of another"),
        (lambda: OAuth(client_id="c", token_auth_method="basic"), "must be one of none, client_secret_basic"),
        (lambda: DeviceLogin(client_secret="s"), "give its client_id="),
        (lambda: ClientCredentials(client_id="c"), "one proof: client_secret= or private_key="),
        (lambda: ClientCredentials(client_id="c", client_secret="s", private_key="k"), "one proof"),
        (lambda: OAuth(client_id="c", private_key="garbage"), "in PEM"),
        (lambda: ClientCredentials(client_id="c", private_key="/etc/key.pem"), "not its path"),
        (lambda: OAuth(issuer="login.example.com"), "must be an https URL"),
        (lambda: DeviceLogin(issuer="http://login.example.com"), "must be an https URL"),
        (lambda: ClientCredentials(client_id="c", client_secret="s", issuer="x"), "must be an https URL"),
        (lambda: WorkloadIdentity(assertion="t", issuer="x"), "must be an https URL"),
        (lambda: EnterpriseLogin(**ENTERPRISE | {"issuer": "x"}), "must be an https URL"),
        (lambda: EnterpriseLogin(**ENTERPRISE | {"idp_token_endpoint": "http://idp.example/"}), "must be https"),
    ],
)
def test_what_cannot_work_is_refused(make: Callable[[], Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make()


@pytest.mark.parametrize(
    ("kind", "options", "why"),
    [
        (OAuth, {"paste": True}, "paste must be a function"),
        (OAuth, {"open_browser": "firefox"}, "open_browser must be a function"),
        (DeviceLogin, {"show": True}, "show must be a function"),
        (OAuth, {"scopes": 5}, "scopes must be a text or a list"),
        (OAuth, {"scopes": [5]}, "scopes must be a text or a list"),
        (ClientCredentials, {"client_id": "c", "client_secret": "s", "scopes": 5}, "scopes must be a text or a list"),
    ],
)
def test_what_is_of_another_kind_is_refused(kind: Any, options: dict[str, Any], why: str) -> None:
    with pytest.raises(TypeError, match=why):
        kind(**options)


@pytest.mark.parametrize("token", [None, "", 7])
def test_a_token_is_a_text_or_a_function(token: Any) -> None:
    with pytest.raises(TypeError, match="assertion must be a token, or a function"):
        WorkloadIdentity(assertion=token)
    with pytest.raises(TypeError, match="id_token must be a token, or a function"):
        EnterpriseLogin(**ENTERPRISE | {"id_token": token})


def test_what_can_work_is_not() -> None:
    assert OAuth(redirect_uri="https://my.app/back", paste=input).redirect_uri == "https://my.app/back"
    assert OAuth(redirect_uri="http://[::1]:7000/back").redirect_uri
    assert OAuth(client_metadata_url="https://my.app/client.json", private_key=PEM).private_key == PEM
    assert WorkloadIdentity(assertion=lambda: "t").issuer is None


def test_scopes_may_be_one_text() -> None:
    assert words("files:read files:write") == words(["files:read", "files:write"]) == ["files:read", "files:write"]
    assert words(()) == words("") == []


def test_a_private_key_signs() -> None:
    assert signer_of(OAuth()) is None
    assert signer_of(DeviceLogin()) is None
    assert signer_of(ClientCredentials(client_id="c", private_key=PEM, algorithm="ES384")) == Signer(PEM, "ES384")
