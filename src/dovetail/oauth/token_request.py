"""Requests to the token endpoint, and the meaning of its responses."""

import re
from collections.abc import Mapping
from typing import Any, Final

from dovetail.errors import LoginFailed
from dovetail.oauth import proofs
from dovetail.oauth.flow import Flow, HTTPResponse, Now, build_basic_auth, login_error, post_form
from dovetail.oauth.login.login_settings import Signer
from dovetail.oauth.login.saved_login import RENEW_MARGIN_S, ClientRegistration, SavedLogin, Token
from dovetail.oauth.metadata import AuthorizationServerMetadata, is_secure_url
from dovetail.wire.base import replace

UNKNOWN_CLIENT_ERRORS: Final = ("invalid_client", "unauthorized_client")  # what is said of a client nobody knows
_TOKEN_PATTERN: Final = re.compile(r"[\x21-\x7e]+")
_MAX_TTL_S: Final = 10 * 365 * 86400.0  # what lives longer need not be watched


def request_token(
    server: AuthorizationServerMetadata,
    client: ClientRegistration,
    fields: Mapping[str, str],
    *,
    key: dict[str, Any] | None = None,
    signer: Signer | None = None,
) -> Flow[Token]:
    """A token for this grant; with a DPoP key, one bound to it. The signer proves who a client is that has a key."""
    endpoint = server.token_endpoint
    if endpoint is None or not is_secure_url(endpoint):
        raise LoginFailed("the authorization server names no token endpoint that is safe to use")
    form, headers = yield from _authenticate_form(server, client, fields, signer)
    response, _ = yield from post_token_request(endpoint, form, headers, key)
    if response.status != 200:
        raise login_error("token", response)
    now: float = yield Now()
    return parse_issued_token(response, now, key)


def post_token_request(
    endpoint: str,
    form: Mapping[str, str],
    headers: dict[str, str],
    key: dict[str, Any] | None,
    nonce: str | None = None,
) -> Flow[tuple[HTTPResponse, str | None]]:
    """What the endpoint answers, and the nonce its next proof repeats; asked once more where it wants another."""
    response = yield from _post_with_proof(endpoint, form, headers, key, nonce)
    new_nonce = response.headers.get("dpop-nonce")
    if key is not None and new_nonce and (response.json() or {}).get("error") == "use_dpop_nonce":
        response = yield from _post_with_proof(endpoint, form, headers, key, new_nonce)
    return response, response.headers.get("dpop-nonce") or new_nonce or nonce


def parse_issued_token(response: HTTPResponse, now: float, key: dict[str, Any] | None) -> Token:
    """The token in a response, bound to the key if there is one."""
    token = parse_token(response, now)
    # RFC 9449, section 5: a token that is not bound to the key was not issued as it was asked for.
    if (token.token_type == "DPoP") != (key is not None):
        raise LoginFailed(f"the token is of type {token.token_type}, which is not what was asked for")
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
) -> Flow[HTTPResponse]:
    if key is None:
        return (yield from post_form(endpoint, form, headers))
    now: float = yield Now()
    proof = proofs.create_dpop_proof(key, "POST", endpoint, now, nonce=nonce)
    return (yield from post_form(endpoint, form, headers | {"dpop": proof}))


def add_client_authentication(
    client: ClientRegistration, fields: Mapping[str, str], assertion: str | None = None
) -> tuple[dict[str, str], dict[str, str]]:
    """The form and headers of a request to the token endpoint, by the client's way of proving who it is."""
    form = dict(fields)
    match client.method:
        case "client_secret_basic" if client.client_secret is not None:
            # Servers of the official SDK look the client up by the form, however it proves who it is.
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


def parse_token(response: HTTPResponse, now: float) -> Token:
    """The token in a response; LoginFailed if there is none that can be used."""
    data = response.json() or {}
    access_token, token_type = data.get("access_token"), data.get("token_type", "Bearer")
    if not isinstance(access_token, str) or not _TOKEN_PATTERN.fullmatch(access_token):
        raise LoginFailed("the token response holds no access token that can be used")
    if not isinstance(token_type, str) or token_type.lower() not in ("bearer", "dpop"):
        raise LoginFailed("the token is of a type this client does not know")
    lifetime, refresh_token, scope = parse_seconds(data.get("expires_in")), data.get("refresh_token"), data.get("scope")
    return Token(
        access_token=access_token,
        token_type="DPoP" if token_type.lower() == "dpop" else "Bearer",
        expires_at=None if lifetime is None else now + lifetime,
        refresh_token=refresh_token if isinstance(refresh_token, str) else None,
        scope=scope if isinstance(scope, str) else None,
        early=RENEW_MARGIN_S if lifetime is None else min(RENEW_MARGIN_S, lifetime / 2),
    )


def parse_seconds(value: Any) -> float | None:
    """A time span in a response, within reason; some servers write it as a string."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value[:12])
    if not isinstance(value, int | float) or value != value:
        return None
    return float(max(0.0, min(value, _MAX_TTL_S)))


def refresh_login(login: SavedLogin, signer: Signer | None = None) -> Flow[SavedLogin]:
    """The login with a fresh token, or without any if the server wants a new login.

    A rotated refresh token replaces the old. A client the server no longer knows is not to be used again.
    """
    token = login.token
    if token is None or token.refresh_token is None:
        return login
    fields = {"grant_type": "refresh_token", "refresh_token": token.refresh_token, "resource": login.resource}
    try:
        new_token = yield from request_token(login.server, login.client, fields, key=login.key, signer=signer)
    except LoginFailed as exc:
        if exc.oauth_error in UNKNOWN_CLIENT_ERRORS:
            return replace(login, token=None, client=replace(login.client, refused=True))
        if exc.oauth_error == "invalid_grant":
            return replace(login, token=None)
        raise
    refresh_token = new_token.refresh_token or token.refresh_token
    return replace(login, token=replace(new_token, refresh_token=refresh_token, scope=new_token.scope or token.scope))


def revoke_login(login: SavedLogin, signer: Signer | None = None) -> Flow[bool]:
    """Tell the authorization server that the token is not used any more; whether it was told. RFC 7009."""
    token, endpoint = login.token, login.server.revocation_endpoint
    if token is None or endpoint is None or not is_secure_url(endpoint):
        return False
    # The refresh token first: with it, what came of it ends too.
    token_type_hint = "access_token" if token.refresh_token is None else "refresh_token"
    fields = {"token": token.refresh_token or token.access_token, "token_type_hint": token_type_hint}
    form, headers = yield from _authenticate_form(login.server, login.client, fields, signer)
    response = yield from post_form(endpoint, form, headers)
    return response.status == 200
