"""Authorization code with PKCE: from a challenge to a login. spec: authorization#authorization-flow-steps

Everything that decides where a code or a token may go is checked here: the resource, the issuer, the state.
"""

import hmac
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from dovetail.auth import proofs
from dovetail.auth.challenge import Challenge
from dovetail.auth.documents import (
    AuthorizationServer,
    ProtectedResource,
    assumed_server,
    origin,
    resource_document,
    secure,
    server_document,
    web_address,
)
from dovetail.auth.flow import Flow, RedirectUri, Visit
from dovetail.auth.login import Login, Registered
from dovetail.auth.registration import identify
from dovetail.auth.settings import OAuth, signer_of, words
from dovetail.auth.tokens import request_token
from dovetail.errors import LoginFailed, clip

_FORGOTTEN: Final = (
    "it should be at the same address as the server: if both are yours, serve one beside the other, "
    "app.run(..., otherwise=authority)"
)


def log_in(server_url: str, challenge: Challenge, settings: OAuth, known: Login | None) -> Flow[Login]:
    """A login at the server of this URL; what is known of an earlier one saves registering again."""
    document, server = yield from discover(server_url, challenge, known, settings.issuer)
    _check_code_flow(server)
    earlier = known.client if known is not None else None
    redirect_uri: str = yield RedirectUri(earlier.redirect_uris if earlier is not None else ())
    scopes = choose_scopes(challenge, document, server, settings, known)
    client = yield from identify(server, settings, earlier, redirect_uri, scopes or ())
    key = proof_key(settings.dpop, challenge, document, known)
    resource = document.resource if document is not None else _canonical(server_url)
    code, verifier = yield from _authorize(server, client, redirect_uri, resource, scopes)
    fields = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": redirect_uri,
        "code_verifier": verifier,
        "resource": resource,
    }
    token = yield from request_token(server, client, fields, key=key, signer=signer_of(settings))
    asked = scopes or []
    return Login(resource=resource, server=server, client=client, token=token, scopes=asked, key=key)


def discover(
    server_url: str, challenge: Challenge, known: Login | None, wanted: str | None
) -> Flow[tuple[ProtectedResource | None, AuthorizationServer]]:
    """Who guards the server, found by every rule there is."""
    document = yield from resource_document(server_url, challenge.resource_metadata)
    if document is None:
        return None, (yield from assumed_server(server_url))
    issuer = _choose_issuer(document, known, wanted)
    server = yield from server_document(issuer)
    if server is None:
        raise LoginFailed(f"the authorization server {clip(issuer)} publishes no metadata").at(
            hint=_FORGOTTEN if origin(urlsplit(issuer)) == origin(urlsplit(server_url)) else None
        )
    return document, server


def _choose_issuer(document: ProtectedResource, known: Login | None, wanted: str | None) -> str:
    listed = document.authorization_servers
    if not listed:
        raise LoginFailed("the server's metadata names no authorization server")
    preferred = [wanted, known.server.issuer if known is not None else None]
    issuer = next((one for one in preferred if one in listed), None) or listed[0]
    if web_address(issuer) is None:
        raise LoginFailed(f"the authorization server {clip(issuer)} is no web address")
    return issuer


def _check_code_flow(server: AuthorizationServer) -> None:
    endpoint = server.authorization_endpoint
    if endpoint is None or not secure(endpoint):
        raise LoginFailed("the authorization server names no authorization endpoint that is safe to open")
    # spec: handshake/authorization#authorization-code-protection
    if not server.assumed and "S256" not in (server.code_challenge_methods_supported or ()):
        raise LoginFailed("the authorization server does not offer PKCE with S256, without which codes can be stolen")


def choose_scopes(
    challenge: Challenge,
    document: ProtectedResource | None,
    server: AuthorizationServer,
    settings: Any,
    known: Login | None,
) -> list[str] | None:
    """What to ask for: what the challenge says, else what the resource lists, with all that was asked before.

    spec: authorization#scope-selection-strategy, authorization#step-up-authorization-flow
    """
    if getattr(settings, "only", False):
        return words(settings.scopes) or None
    listed = document.scopes_supported if document is not None else None
    wanted = list(challenge.scopes) if challenge.scope is not None else list(listed or ())
    scopes = [*(known.scopes if known is not None else ()), *wanted, *words(settings.scopes)]
    offline = getattr(settings, "offline", False) and "offline_access" in (server.scopes_supported or ())
    if offline and (scopes or listed is not None or challenge.scope is not None):
        scopes.append("offline_access")
    return list(dict.fromkeys(scopes)) or None


def proof_key(
    wanted: bool | None, challenge: Challenge, document: ProtectedResource | None, known: Login | None
) -> dict[str, Any] | None:
    """The key tokens are to be bound to, if they are: as the user wants it, else as the server does."""
    if wanted is None:
        wanted = challenge.scheme == "dpop" or (document is not None and document.dpop_bound_access_tokens_required)
    if not wanted:
        return None
    return known.key if known is not None and known.key is not None else proofs.new_key()


def _canonical(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(scheme=parts.scheme.lower(), netloc=parts.netloc.lower(), fragment="").geturl()


def _authorize(
    server: AuthorizationServer,
    client: Registered,
    redirect_uri: str,
    resource: str,
    scopes: Sequence[str] | None,
) -> Flow[tuple[str, str]]:
    verifier, challenge = proofs.challenge_pair()
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
    answer: Mapping[str, str] = yield Visit(f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}", state)
    return read_redirect(answer, state, server), verifier


def read_redirect(answer: Mapping[str, str], state: str, server: AuthorizationServer) -> str:
    """The code in what came back by redirect. spec: authorization#authorization-response-validation"""
    if not hmac.compare_digest(answer.get("state", "").encode(), state.encode()):
        raise LoginFailed("the redirect that came back does not belong to this login")
    issuer = answer.get("iss")
    if issuer is None and server.authorization_response_iss_parameter_supported:
        raise LoginFailed("the redirect does not say which authorization server it comes from, though it should")
    if issuer is not None and issuer != server.issuer:
        raise LoginFailed("the redirect comes from another authorization server than the one that was asked")
    if "error" in answer:
        words = answer.get("error_description")
        error = LoginFailed(f"the login was refused: {clip(answer['error'], 64)}{': ' + clip(words) if words else ''}")
        error.reason = answer["error"]
        raise error
    if not answer.get("code"):
        raise LoginFailed("the redirect brought no code")
    return answer["code"]


def bound(login: Login, server_url: str, settings: Any) -> bool:
    """Whether a stored login is for this server, and for the client the user speaks of now."""
    ours, theirs = urlsplit(_canonical(server_url)), web_address(login.resource)
    if theirs is None or origin(ours) != origin(theirs):
        return False
    return all(
        wanted is None or wanted == found
        for wanted, found in (
            (getattr(settings, "client_id", None), login.client.client_id),
            (getattr(settings, "issuer", None), login.server.issuer),
        )
    )
