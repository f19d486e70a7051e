"""Logins without a browser on this machine.

They use client credentials, an enterprise identity provider, a workload identity or another device.
"""

from typing import Any, Final
from urllib.parse import urlsplit

from dovetail.error_context import add_context, clip
from dovetail.errors import LoginFailed
from dovetail.oauth.challenge import Challenge
from dovetail.oauth.flow import Flow, Now, Pause, ShowCode, login_error, post_form
from dovetail.oauth.login.client_registration import check_issuer, choose_auth_method, identify_client
from dovetail.oauth.login.code_flow import choose_proof_key, choose_scopes, discover
from dovetail.oauth.login.login_settings import (
    ClientCredentials,
    DeviceLogin,
    EnterpriseLogin,
    WorkloadIdentity,
    get_signer,
)
from dovetail.oauth.login.saved_login import ClientRegistration, SavedLogin, Token
from dovetail.oauth.metadata import AuthorizationServerMetadata, get_origin, is_secure_url
from dovetail.oauth.token_request import (
    add_client_authentication,
    parse_issued_token,
    parse_seconds,
    post_token_request,
    request_token,
)
from dovetail.protocol.http_checks import LOOPBACK

JWT_BEARER_GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_TOKEN_EXCHANGE_GRANT: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_DEVICE_CODE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_ID_TOKEN_TYPE: Final = "urn:ietf:params:oauth:token-type:id_token"
_ID_JAG_TYPE: Final = "urn:ietf:params:oauth:token-type:id-jag"


def log_in_with_credentials(
    server_url: str, challenge: Challenge, settings: ClientCredentials, saved_login: SavedLogin | None
) -> Flow[SavedLogin]:
    """Log in as a program, with a secret or a private key. spec: extensions/oauth-client-credentials"""
    document, server = yield from discover(server_url, challenge, saved_login, settings.issuer)
    check_issuer(server, settings.issuer, _get_saved_client(saved_login))
    if settings.client_secret is not None:
        _check_issuer_named(server, server_url, settings.issuer, "client_secret=")
    scopes = choose_scopes(challenge, document, server, settings, saved_login)
    resource = document.resource if document is not None else server_url
    method = (
        "private_key_jwt"
        if settings.private_key
        else choose_auth_method(server, True, settings.token_endpoint_auth_method)
    )
    client = _build_client(server, settings.client_id, settings.client_secret, method)
    fields = {"grant_type": "client_credentials", "resource": resource} | _scope_field(scopes)
    key = choose_proof_key(settings.dpop, challenge, document, saved_login)
    token = yield from request_token(server, client, fields, key=key, signer=get_signer(settings))
    return SavedLogin(resource=resource, server=server, client=client, token=token, scopes=scopes or [], key=key)


def log_in_with_enterprise_idp(
    server_url: str, challenge: Challenge, settings: EnterpriseLogin, saved_login: SavedLogin | None, id_token: str
) -> Flow[SavedLogin]:
    """Exchange an ID token from the identity provider for a grant at the authorization server. spec: SEP-990"""
    document, server = yield from discover(server_url, challenge, saved_login, settings.issuer)
    check_issuer(server, settings.issuer, _get_saved_client(saved_login))
    _check_issuer_named(server, server_url, settings.issuer, "client_secret= and id_token=")
    scopes = choose_scopes(challenge, document, server, settings, saved_login)
    resource = document.resource if document is not None else server_url
    form = {
        "grant_type": _TOKEN_EXCHANGE_GRANT,
        "requested_token_type": _ID_JAG_TYPE,
        "audience": server.issuer,
        "resource": resource,
        "subject_token": id_token,
        "subject_token_type": _ID_TOKEN_TYPE,
        "client_id": settings.idp_client_id,
    } | _scope_field(scopes)
    if settings.idp_client_secret is not None:
        form["client_secret"] = settings.idp_client_secret
    response = yield from post_form(settings.idp_token_endpoint, form)
    data = response.json() or {}
    grant = data.get("access_token")
    if response.status_code != 200 or not isinstance(grant, str):
        raise login_error("identity provider", response)
    if data.get("issued_token_type") != _ID_JAG_TYPE:
        raise LoginFailed("the identity provider issued a token of a type that was not requested")
    method = choose_auth_method(server, settings.client_secret is not None)
    client = _build_client(server, settings.client_id, settings.client_secret, method)
    fields = {"grant_type": JWT_BEARER_GRANT, "assertion": grant, "resource": resource} | _scope_field(scopes)
    key = choose_proof_key(settings.dpop, challenge, document, saved_login)
    token = yield from request_token(server, client, fields, key=key)
    return SavedLogin(resource=resource, server=server, client=client, token=token, scopes=scopes or [], key=key)


def log_in_with_workload_identity(
    server_url: str, challenge: Challenge, settings: WorkloadIdentity, saved_login: SavedLogin | None, assertion: str
) -> Flow[SavedLogin]:
    """Log in with the platform's token.

    If the server refuses the token, the login fails, because other credentials would be another identity.
    """
    document, server = yield from discover(server_url, challenge, saved_login, settings.issuer)
    check_issuer(server, settings.issuer, _get_saved_client(saved_login))
    _check_issuer_named(server, server_url, settings.issuer, "assertion=")
    scopes = choose_scopes(challenge, document, server, settings, saved_login)
    resource = document.resource if document is not None else server_url
    client = _build_client(server, settings.client_id or "", None, "none")
    fields = {"grant_type": JWT_BEARER_GRANT, "assertion": assertion, "resource": resource} | _scope_field(scopes)
    key = choose_proof_key(settings.dpop, challenge, document, saved_login)
    token = yield from request_token(server, client, fields, key=key)
    return SavedLogin(resource=resource, server=server, client=client, token=token, scopes=scopes or [], key=key)


def log_in_with_device_code(
    server_url: str, challenge: Challenge, settings: DeviceLogin, saved_login: SavedLogin | None
) -> Flow[SavedLogin]:
    """Log in with a code that the user enters on another device. RFC 8628"""
    document, server = yield from discover(server_url, challenge, saved_login, settings.issuer)
    endpoint, token_endpoint = server.device_authorization_endpoint, server.token_endpoint
    if endpoint is None or token_endpoint is None or not (is_secure_url(endpoint) and is_secure_url(token_endpoint)):
        raise LoginFailed("the authorization server does not support the device authorization grant")
    scopes = choose_scopes(challenge, document, server, settings, saved_login)
    client = yield from identify_client(
        server, settings, _get_saved_client(saved_login), "http://127.0.0.1/", scopes or (), _DEVICE_CODE_GRANT
    )
    resource = document.resource if document is not None else server_url
    form, headers = add_client_authentication(client, {"resource": resource} | _scope_field(scopes))
    response = yield from post_form(endpoint, form | {"client_id": client.client_id}, headers)
    data = response.json() or {}
    if response.status_code != 200 or not isinstance(data.get("device_code"), str):
        raise login_error("device login", response)
    complete_url = data.get("verification_uri_complete")
    yield ShowCode(
        str(data.get("verification_uri")),
        clip(str(data.get("user_code"))),
        complete_url if isinstance(complete_url, str) else None,
    )
    fields = {"grant_type": _DEVICE_CODE_GRANT, "device_code": data["device_code"], "resource": resource}
    key = choose_proof_key(settings.dpop, challenge, document, saved_login)
    token = yield from _poll_for_token(token_endpoint, client, fields, data, settings.timeout, key)
    return SavedLogin(resource=resource, server=server, client=client, token=token, scopes=scopes or [], key=key)


def _poll_for_token(
    endpoint: str,
    client: ClientRegistration,
    fields: dict[str, str],
    device_response: dict[str, Any],
    timeout: float,
    key: dict[str, Any] | None,
) -> Flow[Token]:
    interval = max(1.0, min(parse_seconds(device_response.get("interval")) or 5.0, 60.0))
    lifetime = parse_seconds(device_response.get("expires_in")) or timeout
    nonce: str | None = None
    started_at: float = yield Now()
    while True:
        yield Pause(interval)
        now: float = yield Now()
        if now - started_at > min(timeout, lifetime):
            raise LoginFailed("the user did not enter the code in time")
        form, headers = add_client_authentication(client, fields)
        response, nonce = yield from post_token_request(endpoint, form, headers, key, nonce)
        if response.status_code == 200:
            return parse_issued_token(response, now, key)
        error = login_error("device login", response)
        if error.oauth_error == "slow_down":
            interval += 5.0
        elif response.status_code == 0:
            # If the server does not respond, the client polls less often. RFC 8628, section 3.5
            interval = min(interval * 2, 60.0)
        elif error.oauth_error != "authorization_pending":
            raise error


def _check_issuer_named(server: AuthorizationServerMetadata, server_url: str, issuer: str | None, option: str) -> None:
    """Raise LoginFailed if the user did not pass `issuer=`, and the issuer has another origin than the MCP server."""
    server_parts, issuer_parts = urlsplit(server_url), urlsplit(server.issuer)
    is_local = server_parts.hostname in LOOPBACK and issuer_parts.hostname in LOOPBACK
    if issuer is None and not is_local and get_origin(server_parts) != get_origin(issuer_parts):
        raise add_context(
            LoginFailed(
                f"this login would send the value of {option} to the authorization server {clip(server.issuer)}"
            ),
            hint=f"if you trust that issuer with the value, pass issuer={clip(server.issuer)!r}",
        )


def _get_saved_client(saved_login: SavedLogin | None) -> ClientRegistration | None:
    return saved_login.client if saved_login is not None else None


def _build_client(
    server: AuthorizationServerMetadata, client_id: str, secret: str | None, method: str
) -> ClientRegistration:
    return ClientRegistration(
        issuer=server.issuer, client_id=client_id, client_secret=secret, method=method, is_configured=True
    )


def _scope_field(scopes: list[str] | None) -> dict[str, str]:
    return {"scope": " ".join(scopes)} if scopes else {}
