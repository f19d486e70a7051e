"""Who this client is to an authorization server: as the user says, by its metadata document, or registered on the spot.

spec: client-registration
"""

from collections.abc import Sequence
from typing import Any, Final

from dovetail.auth.documents import AuthorizationServer, secure
from dovetail.auth.flow import Flow, failure, post_json
from dovetail.auth.login import Registered
from dovetail.auth.settings import DeviceLogin, OAuth, signer_of
from dovetail.errors import LoginFailed, clip

# The ways to prove who we are at the token endpoint, best first.
_METHODS: Final = ("client_secret_basic", "client_secret_post", "none")


def identify(
    server: AuthorizationServer,
    settings: OAuth | DeviceLogin,
    known: Registered | None,
    redirect_uri: str,
    scopes: Sequence[str],
    grant: str = "authorization_code",
) -> Flow[Registered]:
    """The identity to use with this server; one registered with another is never used.

    A client whose scopes the server limits, and says so, is registered anew when it wants more.
    """
    if settings.client_id is not None:
        return _given(server, settings, known)
    if settings.client_metadata_url is not None and server.client_id_metadata_document_supported:
        return Registered(
            issuer=server.issuer,
            client_id=settings.client_metadata_url,
            method="none" if signer_of(settings) is None else "private_key_jwt",
            redirect_uris=[redirect_uri],
        )
    if known is not None and _usable(known, server, redirect_uri, scopes):
        return known
    endpoint = server.registration_endpoint
    if endpoint is None or not secure(endpoint):
        raise LoginFailed(f"{clip(server.issuer)} does not let clients register themselves").at(
            hint="register one there by hand and pass auth=OAuth(client_id=...)"
        )
    return (yield from _register(server, endpoint, settings, redirect_uri, scopes, grant))


def _usable(known: Registered, server: AuthorizationServer, redirect_uri: str, scopes: Sequence[str]) -> bool:
    if known.issuer != server.issuer or known.given or known.refused:
        return False
    return redirect_uri in known.redirect_uris and (not known.scopes or set(scopes) <= set(known.scopes))


def _given(server: AuthorizationServer, settings: OAuth | DeviceLogin, known: Registered | None) -> Registered:
    assert settings.client_id is not None
    check_issuer(server, settings.issuer, known)
    wanted = getattr(settings, "token_auth_method", None)
    has_secret = settings.client_secret is not None
    return Registered(
        issuer=server.issuer,
        client_id=settings.client_id,
        client_secret=settings.client_secret,
        method=choose_method(server, has_secret, wanted) if signer_of(settings) is None else "private_key_jwt",
        given=True,
    )


def check_issuer(server: AuthorizationServer, wanted: str | None, known: Registered | None) -> None:
    """What a user has from one issuer is not shown to another: the one they named, else the first it was used with."""
    if wanted is None and known is not None and known.given:
        wanted = known.issuer
    if wanted is not None and wanted != server.issuer:
        raise LoginFailed(
            f"the client was given for {clip(wanted)}, but the server is guarded by {clip(server.issuer)}"
        ).at(hint="if the server moved and you trust that, get a client id there and pass it with its issuer=")


def choose_method(server: AuthorizationServer, has_secret: bool, wanted: str | None = None) -> str:
    """How to prove who we are, of what the server offers; RFC 8414 says Basic where it is silent."""
    if wanted is not None:
        return wanted
    if not has_secret:
        return "none"
    offered = server.token_endpoint_auth_methods_supported or ["client_secret_basic"]
    return next((one for one in _METHODS[:2] if one in offered), "client_secret_basic")


def _register(
    server: AuthorizationServer,
    endpoint: str,
    settings: OAuth | DeviceLogin,
    redirect_uri: str,
    scopes: Sequence[str],
    grant: str,
) -> Flow[Registered]:
    """spec: client-registration#dynamic-client-registration"""
    offered = server.token_endpoint_auth_methods_supported
    wanted = "none" if offered is None or "none" in offered else next((o for o in _METHODS if o in offered), "none")
    document: dict[str, Any] = {
        "client_name": settings.client_name,
        "redirect_uris": [redirect_uri],
        "grant_types": [grant, "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": wanted,
        "application_type": "native" if _local(redirect_uri) else "web",
    }
    if scopes:
        document["scope"] = " ".join(scopes)
    answer = yield from post_json(endpoint, document)
    said = answer.json() or {}
    client_id, secret = said.get("client_id"), said.get("client_secret")
    if answer.status not in (200, 201) or not isinstance(client_id, str):
        raise failure("registration", answer).at(
            hint="register a client there by hand and pass auth=OAuth(client_id=...)"
        )
    given, limit = said.get("token_endpoint_auth_method"), said.get("scope")
    return Registered(
        issuer=server.issuer,
        client_id=client_id,
        client_secret=secret if isinstance(secret, str) else None,
        method=given if isinstance(given, str) else (choose_method(server, True) if secret else "none"),
        redirect_uris=[redirect_uri],
        scopes=limit.split() if isinstance(limit, str) else [],  # RFC 7591, section 3.2.1
    )


def _local(uri: str) -> bool:
    return uri.startswith(("http://127.0.0.1", "http://localhost", "http://[::1]")) or not uri.startswith("http")
