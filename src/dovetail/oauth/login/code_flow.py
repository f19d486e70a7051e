"""Authorization code flow with PKCE, from a challenge to a saved login.

The flow checks every value that decides where a code or a token is sent: the resource, the issuer and the state.
spec: authorization#authorization-flow-steps
"""

import hmac
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from dovetail.error_context import add_context, clip
from dovetail.errors import LoginFailed
from dovetail.oauth import proofs
from dovetail.oauth.challenge import Challenge
from dovetail.oauth.flow import Flow, OpenBrowser, ReserveRedirectURI
from dovetail.oauth.login.client_registration import identify_client
from dovetail.oauth.login.login_settings import OAuth, get_signer, split_scopes
from dovetail.oauth.login.saved_login import ClientRegistration, SavedLogin
from dovetail.oauth.metadata import (
    AuthorizationServerMetadata,
    ProtectedResourceMetadata,
    discover_fallback_server,
    fetch_resource_metadata,
    fetch_server_metadata,
    get_origin,
    is_secure_url,
    parse_web_url,
)
from dovetail.oauth.pkce import create_pkce_pair
from dovetail.oauth.token_request import request_token

_SAME_ORIGIN_HINT: Final = (
    "the authorization server should have the same address as the server. If you run both servers, "
    "serve them together: app.run(..., fallback=authority)"
)


def log_in(server_url: str, challenge: Challenge, settings: OAuth, saved_login: SavedLogin | None) -> Flow[SavedLogin]:
    """Log in to the server with this URL. Reuse the client registration of a saved login."""
    document, server = yield from discover(server_url, challenge, saved_login, settings.issuer)
    _check_code_flow(server)
    saved_client = saved_login.client if saved_login is not None else None
    redirect_uri: str = yield ReserveRedirectURI(saved_client.redirect_uris if saved_client is not None else ())
    scopes = choose_scopes(challenge, document, server, settings, saved_login)
    client = yield from identify_client(server, settings, saved_client, redirect_uri, scopes or ())
    key = choose_proof_key(settings.dpop, challenge, document, saved_login)
    resource = document.resource if document is not None else _canonicalize_url(server_url)
    code, verifier = yield from _authorize(server, client, redirect_uri, resource, scopes)
    fields = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": redirect_uri,
        "code_verifier": verifier,
        "resource": resource,
    }
    token = yield from request_token(server, client, fields, key=key, signer=get_signer(settings))
    requested_scopes = scopes or []
    return SavedLogin(resource=resource, server=server, client=client, token=token, scopes=requested_scopes, key=key)


def discover(
    server_url: str, challenge: Challenge, saved_login: SavedLogin | None, preferred_issuer: str | None
) -> Flow[tuple[ProtectedResourceMetadata | None, AuthorizationServerMetadata]]:
    """Fetch the resource metadata of an MCP server and the metadata of its authorization server."""
    document = yield from fetch_resource_metadata(server_url, challenge.resource_metadata)
    if document is None:
        return None, (yield from discover_fallback_server(server_url))
    issuer = _choose_issuer(document, saved_login, preferred_issuer)
    server = yield from fetch_server_metadata(issuer)
    if server is None:
        raise add_context(
            LoginFailed(f"the authorization server {clip(issuer)} publishes no metadata"),
            hint=_SAME_ORIGIN_HINT if get_origin(urlsplit(issuer)) == get_origin(urlsplit(server_url)) else None,
        )
    return document, server


def _choose_issuer(
    document: ProtectedResourceMetadata, saved_login: SavedLogin | None, preferred_issuer: str | None
) -> str:
    issuers = document.authorization_servers
    if not issuers:
        raise LoginFailed("the metadata of the server does not name an authorization server")
    candidates = [preferred_issuer, saved_login.server.issuer if saved_login is not None else None]
    issuer = next((candidate for candidate in candidates if candidate in issuers), None) or issuers[0]
    if parse_web_url(issuer) is None:
        raise LoginFailed(f"the authorization server {clip(issuer)} is not a valid URL")
    return issuer


def _check_code_flow(server: AuthorizationServerMetadata) -> None:
    endpoint = server.authorization_endpoint
    if endpoint is None or not is_secure_url(endpoint):
        raise LoginFailed("the authorization server has no authorization endpoint that is safe to open")
    # Authorization servers must announce that they support PKCE.
    # spec: handshake/authorization#authorization-code-protection
    if not server.assumed and "S256" not in (server.code_challenge_methods_supported or ()):
        raise LoginFailed(
            "the authorization server does not support PKCE with S256, so an attacker could use a stolen code"
        )


def choose_scopes(
    challenge: Challenge,
    document: ProtectedResourceMetadata | None,
    server: AuthorizationServerMetadata,
    settings: Any,
    saved_login: SavedLogin | None,
) -> list[str] | None:
    """Choose the scopes to request: those that the server asks for, and those that earlier logins requested.

    spec: authorization#scope-selection-strategy, authorization#step-up-authorization-flow
    """
    if getattr(settings, "exact_scopes", False):
        return split_scopes(settings.scopes) or None
    supported = document.scopes_supported if document is not None else None
    requested = list(challenge.scopes) if challenge.scope is not None else list(supported or ())
    scopes = [*(saved_login.scopes if saved_login is not None else ()), *requested, *split_scopes(settings.scopes)]
    wants_offline = getattr(settings, "offline_access", False) and "offline_access" in (server.scopes_supported or ())
    if wants_offline and (scopes or supported is not None or challenge.scope is not None):
        scopes.append("offline_access")
    return list(dict.fromkeys(scopes)) or None


def choose_proof_key(
    is_required: bool | None,
    challenge: Challenge,
    document: ProtectedResourceMetadata | None,
    saved_login: SavedLogin | None,
) -> dict[str, Any] | None:
    """Return the DPoP key for tokens. Return None if neither the user nor the server requires DPoP."""
    if is_required is None:
        is_required = challenge.scheme == "dpop" or (
            document is not None and document.dpop_bound_access_tokens_required
        )
    if not is_required:
        return None
    return saved_login.key if saved_login is not None and saved_login.key is not None else proofs.generate_key()


def _canonicalize_url(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(scheme=parts.scheme.lower(), netloc=parts.netloc.lower(), fragment="").geturl()


def _authorize(
    server: AuthorizationServerMetadata,
    client: ClientRegistration,
    redirect_uri: str,
    resource: str,
    scopes: Sequence[str] | None,
) -> Flow[tuple[str, str]]:
    verifier, challenge = create_pkce_pair()
    state = secrets.token_urlsafe(24)
    query = {
        "response_type": "code",
        "client_id": client.client_id,
        "redirect_uri": redirect_uri,
        "state": state,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
        "resource": resource,
    }
    if scopes:
        query["scope"] = " ".join(scopes)
        if "offline_access" in scopes:
            query["prompt"] = "consent"
    endpoint = server.authorization_endpoint or ""
    redirect_params: Mapping[str, str] = yield OpenBrowser(
        f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}", state
    )
    return read_redirect(redirect_params, state, server), verifier


def read_redirect(params: Mapping[str, str], state: str, server: AuthorizationServerMetadata) -> str:
    """Return the authorization code from a redirect. spec: authorization#authorization-response-validation"""
    if not hmac.compare_digest(params.get("state", "").encode(), state.encode()):
        raise LoginFailed("the redirect does not belong to this login")
    issuer = params.get("iss")
    if issuer is None and server.authorization_response_iss_parameter_supported:
        raise LoginFailed("the redirect has no `iss` parameter, so its authorization server is unknown")
    if issuer is not None and issuer != server.issuer:
        raise LoginFailed("the redirect comes from a different authorization server")
    if "error" in params:
        description = params.get("error_description")
        error = LoginFailed(
            f"the login was refused: {clip(params['error'], 64)}{': ' + clip(description) if description else ''}"
        )
        error.oauth_error = params["error"]
        raise error
    if not params.get("code"):
        raise LoginFailed("the redirect contains no authorization code")
    return params["code"]


def is_login_for(login: SavedLogin, server_url: str, settings: Any) -> bool:
    """Return whether a saved login belongs to this server and to the client in the settings."""
    server_parts, resource_parts = urlsplit(_canonicalize_url(server_url)), parse_web_url(login.resource)
    if resource_parts is None or get_origin(server_parts) != get_origin(resource_parts):
        return False
    return all(
        expected is None or expected == actual
        for expected, actual in (
            (getattr(settings, "client_id", None), login.client.client_id),
            (getattr(settings, "issuer", None), login.server.issuer),
        )
    )
