"""Identify the client to an authorization server: by a client ID, a metadata document, or dynamic registration.

spec: client-registration
"""

from collections.abc import Sequence
from typing import Any, Final

from dovetail.error_context import add_context, clip
from dovetail.errors import LoginFailed
from dovetail.oauth.flow import Flow, login_error, post_json
from dovetail.oauth.login.login_settings import DeviceLogin, OAuth, get_signer
from dovetail.oauth.login.saved_login import ClientRegistration
from dovetail.oauth.metadata import AuthorizationServerMetadata, is_secure_url
from dovetail.protocol.http_checks import is_loopback_uri

# Authentication methods for the token endpoint, best first.
_AUTH_METHODS: Final = ("client_secret_basic", "client_secret_post", "none")


def identify_client(
    server: AuthorizationServerMetadata,
    settings: OAuth | DeviceLogin,
    saved_client: ClientRegistration | None,
    redirect_uri: str,
    scopes: Sequence[str],
    grant_type: str = "authorization_code",
) -> Flow[ClientRegistration]:
    """Return the client ID and credentials for this authorization server. Never use the credentials for another server.

    If the server limits the scopes of a client and the login needs more scopes, register a new client.
    """
    if settings.client_id is not None:
        return _use_given_client(server, settings, saved_client)
    if settings.client_metadata_url is not None and server.client_id_metadata_document_supported:
        return ClientRegistration(
            issuer=server.issuer,
            client_id=settings.client_metadata_url,
            method="none" if get_signer(settings) is None else "private_key_jwt",
            redirect_uris=[redirect_uri],
        )
    if saved_client is not None and _is_usable(saved_client, server, redirect_uri, scopes):
        return saved_client
    endpoint = server.registration_endpoint
    if endpoint is None or not is_secure_url(endpoint):
        raise add_context(
            LoginFailed(f"{clip(server.issuer)} does not support dynamic client registration"),
            hint="register a client at that server by hand and pass auth=OAuth(client_id=...)",
        )
    return (yield from _register(server, endpoint, settings, redirect_uri, scopes, grant_type))


def _is_usable(
    saved_client: ClientRegistration, server: AuthorizationServerMetadata, redirect_uri: str, scopes: Sequence[str]
) -> bool:
    if saved_client.issuer != server.issuer or saved_client.is_configured or saved_client.is_rejected:
        return False
    return redirect_uri in saved_client.redirect_uris and (
        not saved_client.scopes or set(scopes) <= set(saved_client.scopes)
    )


def _use_given_client(
    server: AuthorizationServerMetadata, settings: OAuth | DeviceLogin, saved_client: ClientRegistration | None
) -> ClientRegistration:
    assert settings.client_id is not None
    check_issuer(server, settings.issuer, saved_client)
    auth_method = getattr(settings, "token_endpoint_auth_method", None)
    has_secret = settings.client_secret is not None
    return ClientRegistration(
        issuer=server.issuer,
        client_id=settings.client_id,
        client_secret=settings.client_secret,
        method=choose_auth_method(server, has_secret, auth_method)
        if get_signer(settings) is None
        else "private_key_jwt",
        is_configured=True,
    )


def check_issuer(
    server: AuthorizationServerMetadata, expected_issuer: str | None, saved_client: ClientRegistration | None
) -> None:
    """Raise LoginFailed if the issuer is not the expected issuer. No other issuer may get the credentials.

    The expected issuer is `issuer=`, or else the issuer of the saved client.
    """
    if expected_issuer is None and saved_client is not None and saved_client.is_configured:
        expected_issuer = saved_client.issuer
    if expected_issuer is not None and expected_issuer != server.issuer:
        raise add_context(
            LoginFailed(
                f"the client ID belongs to the issuer {clip(expected_issuer)}, but the server uses the issuer "
                f"{clip(server.issuer)}"
            ),
            hint="if the server moved and you trust the new issuer, get a client id from it and pass it with issuer=",
        )


def choose_auth_method(
    server: AuthorizationServerMetadata, has_secret: bool, preferred_method: str | None = None
) -> str:
    """Choose an authentication method that the server supports. The default is Basic (RFC 8414)."""
    if preferred_method is not None:
        return preferred_method
    if not has_secret:
        return "none"
    supported = server.token_endpoint_auth_methods_supported or ["client_secret_basic"]
    return next((method for method in _AUTH_METHODS[:2] if method in supported), "client_secret_basic")


def _register(
    server: AuthorizationServerMetadata,
    endpoint: str,
    settings: OAuth | DeviceLogin,
    redirect_uri: str,
    scopes: Sequence[str],
    grant_type: str,
) -> Flow[ClientRegistration]:
    """Register the client at the authorization server. spec: client-registration#dynamic-client-registration"""
    supported = server.token_endpoint_auth_methods_supported
    auth_method = (
        "none"
        if supported is None or "none" in supported
        else next((method for method in _AUTH_METHODS if method in supported), "none")
    )
    client_metadata: dict[str, Any] = {
        "client_name": settings.client_name,
        "redirect_uris": [redirect_uri],
        "grant_types": [grant_type, "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": auth_method,
        "application_type": "native" if _is_local(redirect_uri) else "web",
    }
    if scopes:
        client_metadata["scope"] = " ".join(scopes)
    response = yield from post_json(endpoint, client_metadata)
    data = response.json() or {}
    client_id, secret = data.get("client_id"), data.get("client_secret")
    if response.status_code not in (200, 201) or not isinstance(client_id, str):
        raise add_context(
            login_error("registration", response),
            hint="register a client at that server by hand and pass auth=OAuth(client_id=...)",
        )
    granted_method, granted_scope = data.get("token_endpoint_auth_method"), data.get("scope")
    if not isinstance(granted_method, str):
        granted_method = choose_auth_method(server, True) if secret else "none"
    # The server may register other metadata than the client sent, so check the response. RFC 7591, section 3.2.1
    if granted_method not in _AUTH_METHODS or (granted_method != "none" and not isinstance(secret, str)):
        raise add_context(
            LoginFailed(
                f"{clip(server.issuer)} registered this client for the authentication method {clip(granted_method)}, "
                "but the client has no credentials for it"
            ),
            hint="register a client at that server by hand and pass auth=OAuth(client_id=...)",
        )
    return ClientRegistration(
        issuer=server.issuer,
        client_id=client_id,
        client_secret=secret if isinstance(secret, str) else None,
        method=granted_method,
        redirect_uris=[redirect_uri],
        # The server may have changed the requested scopes. RFC 7591, section 3.2.1
        scopes=granted_scope.split() if isinstance(granted_scope, str) else [],
    )


def _is_local(uri: str) -> bool:
    return is_loopback_uri(uri) or uri.partition(":")[0].lower() not in ("http", "https")
