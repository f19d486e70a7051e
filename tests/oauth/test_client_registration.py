"""Test how a client identifies itself to an authorization server, and that its credentials stay there."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from joserfc.jwk import ECKey

from dovetail.errors import LoginFailed
from dovetail.oauth.login.client_registration import check_issuer, choose_auth_method, identify_client
from dovetail.oauth.login.login_settings import DeviceLogin, OAuth
from dovetail.oauth.login.saved_login import ClientRegistration
from dovetail.oauth.metadata import AuthorizationServerMetadata
from oauth.flow_environment import ISSUER, REDIRECT, FlowEnvironment, json_answer, server_metadata

DOCUMENT = "https://my.app/client.json"
EARLIER = ClientRegistration(issuer=ISSUER, client_id="earlier", redirect_uris=[REDIRECT])


def described(**changes: Any) -> AuthorizationServerMetadata:
    return AuthorizationServerMetadata(**server_metadata(**changes))


def found(
    settings: OAuth | DeviceLogin,
    known: ClientRegistration | None = None,
    world: FlowEnvironment | None = None,
    redirect: str = REDIRECT,
    scopes: Sequence[str] = (),
    **changes: Any,
) -> tuple[ClientRegistration, list[dict[str, Any]]]:
    world = world or FlowEnvironment({f"{ISSUER}/register": json_answer({"client_id": "new"}, 201)})
    client = world.run_flow(identify_client(described(**changes), settings, known, redirect, scopes))
    return client, [json.loads(call.body) for call in world.calls]


def test_what_the_user_says_comes_first() -> None:
    settings = OAuth(client_id="mine", client_secret="s", client_metadata_url=DOCUMENT)
    client, sent = found(settings, EARLIER, client_id_metadata_document_supported=True)
    assert (client.client_id, client.client_secret, client.issuer, client.is_configured) == ("mine", "s", ISSUER, True)
    assert not sent


def test_then_the_metadata_document_where_it_is_taken() -> None:
    settings = OAuth(client_metadata_url=DOCUMENT)
    assert found(settings, EARLIER, client_id_metadata_document_supported=True)[0].client_id == DOCUMENT
    assert found(settings, EARLIER)[0].client_id == "earlier"


def test_then_an_earlier_registration() -> None:
    assert found(OAuth(), EARLIER) == (EARLIER, [])


@pytest.mark.parametrize(
    "other",
    [
        ClientRegistration(issuer="https://other.example", client_id="x", redirect_uris=[REDIRECT]),
        ClientRegistration(issuer=ISSUER + "/", client_id="x", redirect_uris=[REDIRECT]),
        ClientRegistration(issuer=ISSUER, client_id="x", redirect_uris=["http://127.0.0.1:1/callback"]),
        ClientRegistration(issuer=ISSUER, client_id="x", redirect_uris=[REDIRECT], is_rejected=True),
        ClientRegistration(issuer=ISSUER, client_id="x", redirect_uris=[REDIRECT], is_configured=True),
        None,
    ],
)
def test_else_a_new_one(other: ClientRegistration | None) -> None:
    client, sent = found(OAuth(client_name="me"), other, scopes=["a", "b"])
    assert client == ClientRegistration(issuer=ISSUER, client_id="new", redirect_uris=[REDIRECT])
    assert sent == [
        {
            "client_name": "me",
            "redirect_uris": [REDIRECT],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
            "application_type": "native",
            "scope": "a b",
        }
    ]


def test_a_client_that_needs_more_scopes_than_it_registered_is_registered_again() -> None:
    known = ClientRegistration(issuer=ISSUER, client_id="earlier", redirect_uris=[REDIRECT], scopes=["a", "b"])
    assert found(OAuth(), known, scopes=["b"])[0].client_id == "earlier"
    client, sent = found(OAuth(), known, scopes=["b", "c"])
    assert (client.client_id, sent[0]["scope"]) == ("new", "b c")
    assert "scope" not in found(OAuth())[1][0]
    limiting = FlowEnvironment({f"{ISSUER}/register": json_answer({"client_id": "new", "scope": "b c"}, 201)})
    assert found(OAuth(), known, limiting, scopes=["b", "c"])[0].scopes == ["b", "c"]


def test_a_client_without_registered_scopes_asks_for_more_without_registering() -> None:
    assert found(OAuth(), EARLIER, scopes=["b", "c"]) == (EARLIER, [])


def test_a_client_on_the_web_says_so() -> None:
    assert found(OAuth(), redirect="https://my.app/back")[1][0]["application_type"] == "web"
    assert found(OAuth(), redirect="http://[::1]:9/back")[1][0]["application_type"] == "native"
    assert found(OAuth(), redirect="http://127.0.0.1.example/back")[1][0]["application_type"] == "web"
    assert found(OAuth(), redirect="my.app:/back")[1][0]["application_type"] == "native"


def test_a_client_given_for_another_issuer_is_not_shown() -> None:
    with pytest.raises(LoginFailed, match=r"https://other\.example.*https://login\.example\.com"):
        found(OAuth(client_id="mine", client_secret="s", issuer="https://other.example"))


@pytest.mark.parametrize("endpoint", [None, "http://login.example.com/register", "javascript:x", "https://[::1/"])
def test_without_a_safe_place_to_register_there_is_a_hint(endpoint: str | None) -> None:
    with pytest.raises(LoginFailed, match=ISSUER) as refused:
        found(OAuth(), registration_endpoint=endpoint)
    assert "client_id" in str(refused.value)


@pytest.mark.parametrize(
    "said",
    [
        json_answer({"error": "invalid_redirect_uri"}, 400),
        json_answer({}, 201),
        json_answer({"client_id": 7}),
        json_answer([], 500),
    ],
)
def test_a_refused_registration_says_so(said: Any) -> None:
    with pytest.raises(LoginFailed, match="registration"):
        found(OAuth(), world=FlowEnvironment({f"{ISSUER}/register": said}))


@pytest.mark.parametrize(
    ("offered", "wanted"),
    [
        (None, "none"),
        (["none", "client_secret_basic"], "none"),
        (["client_secret_post", "client_secret_basic"], "client_secret_basic"),
        (["client_secret_post"], "client_secret_post"),
        (["tls_client_auth"], "none"),
    ],
)
def test_how_a_new_client_wants_to_prove_itself(offered: list[str] | None, wanted: str) -> None:
    assert found(OAuth(), token_endpoint_auth_methods_supported=offered)[1][0]["token_endpoint_auth_method"] == wanted


@pytest.mark.parametrize(
    ("said", "method"),
    [
        ({"client_id": "c", "client_secret": "s"}, "client_secret_basic"),
        (
            {"client_id": "c", "client_secret": "s", "token_endpoint_auth_method": "client_secret_post"},
            "client_secret_post",
        ),
        ({"client_id": "c"}, "none"),
        ({"client_id": "c", "token_endpoint_auth_method": 7}, "none"),
    ],
)
def test_a_new_client_uses_the_registered_authentication_method(said: dict[str, Any], method: str) -> None:
    assert found(OAuth(), world=FlowEnvironment({f"{ISSUER}/register": json_answer(said, 201)}))[0].method == method


@pytest.mark.parametrize(
    ("offered", "has_secret", "wanted", "method"),
    [
        (None, True, None, "client_secret_basic"),
        (["client_secret_post"], True, None, "client_secret_post"),
        (["client_secret_post", "client_secret_basic"], True, None, "client_secret_basic"),
        (["private_key_jwt"], True, None, "client_secret_basic"),
        (["client_secret_basic"], False, None, "none"),
        (["client_secret_basic"], True, "client_secret_post", "client_secret_post"),
    ],
)
def test_how_a_given_client_proves_itself(
    offered: list[str] | None, has_secret: bool, wanted: str | None, method: str
) -> None:
    assert choose_auth_method(described(token_endpoint_auth_methods_supported=offered), has_secret, wanted) == method


@pytest.mark.parametrize(
    "answer",
    [
        {"client_id": "c", "token_endpoint_auth_method": "private_key_jwt"},
        {"client_id": "c", "token_endpoint_auth_method": "tls_client_auth"},
        {"client_id": "c", "token_endpoint_auth_method": "client_secret_basic"},
    ],
)
def test_a_registration_with_an_unusable_authentication_method_fails_at_once(answer: dict[str, Any]) -> None:
    with pytest.raises(LoginFailed, match=answer["token_endpoint_auth_method"]) as caught:
        found(OAuth(), world=FlowEnvironment({f"{ISSUER}/register": json_answer(answer, 201)}))
    assert caught.value.hint is not None


@pytest.mark.parametrize(
    ("expected", "saved", "refused"),
    [
        (None, None, False),
        (ISSUER, None, False),
        ("https://other.example", None, True),
        (None, ClientRegistration(issuer=ISSUER, client_id="x", is_configured=True), False),
        (None, ClientRegistration(issuer="https://other.example", client_id="x", is_configured=True), True),
        (None, ClientRegistration(issuer="https://other.example", client_id="x"), False),
        (ISSUER, ClientRegistration(issuer="https://other.example", client_id="x", is_configured=True), False),
    ],
)
def test_no_other_issuer_gets_the_credentials(
    expected: str | None, saved: ClientRegistration | None, refused: bool
) -> None:
    if refused:
        with pytest.raises(LoginFailed, match=r"belongs to the issuer https://other\.example"):
            check_issuer(described(), expected, saved)
    else:
        check_issuer(described(), expected, saved)


def test_a_client_of_a_document_signs_only_with_a_key() -> None:
    key = ECKey.generate_key("P-256").as_pem(private=True).decode()
    for settings, method in (
        (OAuth(client_metadata_url=DOCUMENT), "none"),
        (OAuth(client_metadata_url=DOCUMENT, private_key=key), "private_key_jwt"),
    ):
        assert found(settings, client_id_metadata_document_supported=True)[0].method == method
