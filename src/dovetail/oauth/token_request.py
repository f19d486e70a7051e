"""Send requests to the token endpoint, and parse its responses."""

from collections.abc import Mapping
from typing import Any, Final

from dovetail.errors import LoginFailed
from dovetail.oauth import proofs
from dovetail.oauth.flow import FetchResponse, Flow, Now, build_basic_auth, login_error, post_form
from dovetail.oauth.login.login_settings import TOKEN_CHARACTERS, Signer
from dovetail.oauth.login.saved_login import RENEW_MARGIN_S, ClientRegistration, SavedLogin, Token
from dovetail.oauth.metadata import AuthorizationServerMetadata, is_secure_url
from dovetail.wire.base import replace

# An authorization server sends one of these errors if it does not know the client.
UNKNOWN_CLIENT_ERRORS: Final = ("invalid_client", "unauthorized_client")
_MAX_TTL_S: Final = 10 * 365 * 86400.0  # A token with a lifetime above this limit counts as a token that never expires.


def request_token(
    server: AuthorizationServerMetadata,
    client: ClientRegistration,
    fields: Mapping[str, str],
    *,
    key: dict[str, Any] | None = None,
    signer: Signer | None = None,
) -> Flow[Token]:
    """Request a token.

    If `key` is set, the token is bound to this DPoP key. If `signer` is set, the client authenticates with a private
    key.
    """
    endpoint = server.token_endpoint
    if endpoint is None or not is_secure_url(endpoint):
        raise LoginFailed("the authorization server has no token endpoint with an https URL")
    form, headers = yield from _authenticate_form(server, client, fields, signer)
    response, _ = yield from post_token_request(endpoint, form, headers, key)
    if response.status_code != 200:
        raise login_error("token", response)
    now: float = yield Now()
    return parse_issued_token(response, now, key)


def post_token_request(
    endpoint: str,
    form: Mapping[str, str],
    headers: dict[str, str],
    key: dict[str, Any] | None,
    nonce: str | None = None,
) -> Flow[tuple[FetchResponse, str | None]]:
    """Send a token request. Return the response and the nonce for the next DPoP proof.

    If the server asks for another nonce, the request is sent once more.
    """
    response = yield from _post_with_proof(endpoint, form, headers, key, nonce)
    new_nonce = response.headers.get("dpop-nonce")
    if key is not None and new_nonce and (response.json() or {}).get("error") == "use_dpop_nonce":
        response = yield from _post_with_proof(endpoint, form, headers, key, new_nonce)
    return response, response.headers.get("dpop-nonce") or new_nonce or nonce


def parse_issued_token(response: FetchResponse, now: float, key: dict[str, Any] | None) -> Token:
    """Return the token in a response. Raise LoginFailed if the token is missing or is not bound to the key."""
    token = parse_token(response, now)
    # The token type must be DPoP if the client has a key, and Bearer otherwise. RFC 9449, section 5
    if (token.token_type == "DPoP") != (key is not None):
        raise LoginFailed(f"the server issued a token of type {token.token_type}, which was not requested")
    return token


def _authenticate_form(
    server: AuthorizationServerMetadata, client: ClientRegistration, fields: Mapping[str, str], signer: Signer | None
) -> Flow[tuple[dict[str, str], dict[str, str]]]:
    if client.method != "private_key_jwt" or signer is None:
        return add_client_authentication(client, fields)
    now: float = yield Now()
    return add_client_authentication(
        client, fields, proofs.create_client_assertion(signer, client.client_id, server.issuer, now)
    )


def _post_with_proof(
    endpoint: str, form: Mapping[str, str], headers: dict[str, str], key: dict[str, Any] | None, nonce: str | None
) -> Flow[FetchResponse]:
    if key is None:
        return (yield from post_form(endpoint, form, headers))
    now: float = yield Now()
    proof = proofs.create_dpop_proof(key, "POST", endpoint, now, nonce=nonce)
    return (yield from post_form(endpoint, form, headers | {"dpop": proof}))


def add_client_authentication(
    client: ClientRegistration, fields: Mapping[str, str], assertion: str | None = None
) -> tuple[dict[str, str], dict[str, str]]:
    """Add the client's credentials to the form and headers of a token request."""
    form = dict(fields)
    match client.method:
        case "client_secret_basic" if client.client_secret is not None:
            # Servers with the official SDK expect the client ID in the form, even with Basic authentication.
            form["client_id"] = client.client_id
            return form, {"authorization": build_basic_auth(client.client_id, client.client_secret)}
        case "client_secret_post" if client.client_secret is not None:
            return form | {"client_id": client.client_id, "client_secret": client.client_secret}, {}
        case "private_key_jwt" if assertion is not None:
            assertion_type = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
            return form | {
                "client_id": client.client_id,
                "client_assertion_type": assertion_type,
                "client_assertion": assertion,
            }, {}
        case _ if client.client_id:
            return form | {"client_id": client.client_id}, {}
        case _:
            return form, {}


def parse_token(response: FetchResponse, now: float) -> Token:
    """Return the token in a response. Raise LoginFailed if there is no valid token."""
    data = response.json() or {}
    access_token, token_type = data.get("access_token"), data.get("token_type", "Bearer")
    if not isinstance(access_token, str) or not TOKEN_CHARACTERS.fullmatch(access_token):
        raise LoginFailed("the token response contains no valid access token")
    if not isinstance(token_type, str) or token_type.lower() not in ("bearer", "dpop"):
        raise LoginFailed("the token has an unknown type")
    lifetime, refresh_token, scope = parse_seconds(data.get("expires_in")), data.get("refresh_token"), data.get("scope")
    return Token(
        access_token=access_token,
        token_type="DPoP" if token_type.lower() == "dpop" else "Bearer",
        expires_at=None if lifetime is None else now + lifetime,
        refresh_token=refresh_token if isinstance(refresh_token, str) else None,
        scope=scope if isinstance(scope, str) else None,
        renew_margin_s=RENEW_MARGIN_S if lifetime is None else min(RENEW_MARGIN_S, lifetime / 2),
    )


def parse_seconds(value: Any) -> float | None:
    """Parse a lifetime in seconds. Some servers send the number as a string."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:12])
    if not isinstance(value, int | float) or value != value:
        return None
    return float(max(0.0, min(value, _MAX_TTL_S)))


def refresh_login(login: SavedLogin, signer: Signer | None = None) -> Flow[SavedLogin]:
    """Renew the token of a login. If the user must log in again, return the login without a token.

    A new refresh token replaces the old one. If the server no longer knows the client, the client is marked as refused.
    """
    token = login.token
    if token is None or token.refresh_token is None:
        return login
    fields = {"grant_type": "refresh_token", "refresh_token": token.refresh_token, "resource": login.resource}
    try:
        new_token = yield from request_token(login.server, login.client, fields, key=login.key, signer=signer)
    except LoginFailed as exc:
        if exc.oauth_error in UNKNOWN_CLIENT_ERRORS:
            return replace(login, token=None, client=replace(login.client, is_rejected=True))
        if exc.oauth_error == "invalid_grant":
            return replace(login, token=None)
        raise
    refresh_token = new_token.refresh_token or token.refresh_token
    return replace(login, token=replace(new_token, refresh_token=refresh_token, scope=new_token.scope or token.scope))


def revoke_login(login: SavedLogin, signer: Signer | None = None) -> Flow[bool]:
    """Revoke the token at the authorization server. Return True if the request succeeded. RFC 7009"""
    token, endpoint = login.token, login.server.revocation_endpoint
    if token is None or endpoint is None or not is_secure_url(endpoint):
        return False
    # Revoke the refresh token if there is one, because the server then also revokes the access token.
    token_type_hint = "access_token" if token.refresh_token is None else "refresh_token"
    fields = {"token": token.refresh_token or token.access_token, "token_type_hint": token_type_hint}
    form, headers = yield from _authenticate_form(login.server, login.client, fields, signer)
    response = yield from post_form(endpoint, form, headers)
    return response.status_code == 200
