"""Endpoints that issue, revoke and introspect tokens.

Every caller must authenticate first, and the number of failures is limited.
"""

import secrets
from collections.abc import Mapping
from typing import Any

from dovetail.oauth.authorization_server import clients
from dovetail.oauth.authorization_server.client_authentication import (
    ClientAuthenticator,
    OAuthError,
    create_oauth_error,
    parse_basic_auth,
    read_claimed_client_id,
)
from dovetail.oauth.authorization_server.clients import can_use_client_credentials
from dovetail.oauth.authorization_server.limiters import StoreLimiter
from dovetail.oauth.authorization_server.responses import (
    Request,
    add_headers,
    error_response,
    is_same_secret,
    json_response,
    rate_limit_response,
)
from dovetail.oauth.authorization_server.settings import AuthorizationServerSettings
from dovetail.oauth.authorization_server.store import AuthorizationStore, ClientRecord, RegisteredClient, TokenGrant
from dovetail.oauth.authorization_server.token_issuer import OAuthTokenIssuer
from dovetail.oauth.flow import CheckUserActive, Flow, Now, wait_for
from dovetail.oauth.guard.claims import TokenRejected, VerificationUnavailable
from dovetail.oauth.guard.dpop import DPoPChecker
from dovetail.oauth.pkce import matches_challenge
from dovetail.protocol.interfaces.http_types import HTTPResponse
from dovetail.protocol.rate_limiter import build_limiter_key
from dovetail.wire.base import replace


class TokenEndpoint:
    """Token, revocation and introspection endpoints of the authorization server."""

    def __init__(
        self,
        settings: AuthorizationServerSettings,
        store: AuthorizationStore,
        token_issuer: OAuthTokenIssuer,
        client_authenticator: ClientAuthenticator,
    ) -> None:
        self._settings = settings
        self._store = store
        self._token_issuer = token_issuer
        self._client_authenticator = client_authenticator
        self._proof_checker = DPoPChecker()
        # This limiter counts failed attempts per client and address.
        self._failure_limiter = StoreLimiter(
            store, "failed clients", settings.max_failures_per_minute, 60.0, is_strict=True
        )
        self._issue_limiter = StoreLimiter(store, "tokens", settings.max_token_responses_per_minute, 60.0)

    def handle_token(self, request: Request) -> Flow[HTTPResponse]:
        """Handle a token request. Return tokens or an error. OAuth 2.1, section 3.2"""
        now: float = yield Now()
        fields = request.fields
        if fields is None:
            return error_response("invalid_request", "the body must be a form without repeated fields")
        limiter_key = _limiter_key(request, fields)
        client = yield from self._authenticate(request, fields, now)
        if wait_s := (yield from self._issue_limiter.compute_wait(limiter_key, now)):
            return rate_limit_response(wait_s)
        try:
            token_response = yield from self._grant_tokens(client, request, fields, now)
        except OAuthError:
            yield from self._failure_limiter.take(limiter_key, now)
            raise
        yield from self._issue_limiter.take(limiter_key, now)
        return json_response(token_response)

    def _authenticate(self, request: Request, fields: Mapping[str, str], now: float) -> Flow[ClientRecord]:
        """Authenticate the client.

        Attempts can run in parallel, so each attempt counts as failed until it succeeds.
        """
        limiter_key = _limiter_key(request, fields)
        if wait_s := (yield from self._failure_limiter.take(limiter_key, now)):
            raise OAuthError(rate_limit_response(wait_s))
        client = yield from self._client_authenticator.authenticate(request, fields, now)
        yield from self._failure_limiter.undo(limiter_key)
        return client

    def _grant_tokens(
        self, client: ClientRecord, request: Request, fields: Mapping[str, str], now: float
    ) -> Flow[dict[str, Any]]:
        jkt = self._check_proof(request, now)
        match fields.get("grant_type"):
            case "authorization_code":
                return (yield from self._redeem_code(client, fields, jkt, now))
            case "refresh_token":
                return (yield from self._refresh_tokens(client, fields, jkt, now))
            case "client_credentials" if can_use_client_credentials(client):
                return (yield from self._grant_client_credentials(client, fields, jkt, now))
            case "client_credentials":
                raise create_oauth_error(
                    "unauthorized_client", "only registered programs can get tokens for themselves"
                )
            case _:
                raise create_oauth_error(
                    "unsupported_grant_type", f"grant_type must be one of {', '.join(clients.GRANT_TYPES)}"
                )

    def _check_proof(self, request: Request, now: float) -> str | None:
        """Check the client's DPoP proof and return the thumbprint of its key. RFC 9449, section 5

        The tokens are bound to this key. Without a proof, return None.
        """
        proof = request.headers.get("dpop")
        if proof is None:
            return None
        try:
            return self._proof_checker.check(
                proof, method="POST", url=self._settings.url_for("/token"), token=None, now=now
            )
        except (TokenRejected, VerificationUnavailable) as exc:
            raise create_oauth_error("invalid_dpop_proof", str(exc)) from None

    def _redeem_code(
        self, client: ClientRecord, fields: Mapping[str, str], jkt: str | None, now: float
    ) -> Flow[dict[str, Any]]:
        code = yield from self._token_issuer.redeem_code(fields.get("code", ""), now)
        if code is None or code.grant.client_id != client.client_id:
            raise create_oauth_error("invalid_grant", "the code is invalid or expired")
        if not matches_challenge(fields.get("code_verifier", ""), code.challenge):
            raise create_oauth_error("invalid_grant", "the code_verifier does not match the code")
        if fields.get("redirect_uri", code.redirect_uri) != code.redirect_uri:
            raise create_oauth_error("invalid_grant", "the redirect_uri does not match the code")
        self._check_resource(fields, code.grant.resource)
        grant = replace(code.grant, jkt=jkt)
        yield from self._extend_registration(client, now)
        refreshable = "refresh_token" in client.grant_types
        return (yield from self._token_issuer.issue_tokens(grant, now, refreshable=refreshable, code=fields["code"]))

    def _refresh_tokens(
        self, client: ClientRecord, fields: Mapping[str, str], jkt: str | None, now: float
    ) -> Flow[dict[str, Any]]:
        refresh_token = fields.get("refresh_token", "")
        grant = yield from self._token_issuer.find_grant(refresh_token, now)
        if grant is not None and grant.client_id != client.client_id:
            raise create_oauth_error("invalid_grant", "the refresh token belongs to another client")
        if grant is not None and grant.jkt is not None and grant.jkt != jkt:
            raise create_oauth_error(
                "invalid_grant", "the refresh token is bound to a key, but the request has no proof of the key"
            )
        if grant is not None:
            self._check_resource(fields, grant.resource)
            requested_scopes = tuple(dict.fromkeys(fields["scope"].split())) if "scope" in fields else None
            if requested_scopes is not None and not set(requested_scopes) <= set(grant.scopes):
                raise create_oauth_error("invalid_scope", "the requested scopes exceed the granted scopes")
        else:
            requested_scopes = None
        if grant is not None and grant.subject and (yield CheckUserActive(grant.subject)) is not True:
            yield from self._token_issuer.revoke_family(grant.family, now)
        token_response = yield from self._token_issuer.renew_tokens(refresh_token, now, requested_scopes)
        if token_response is None:
            raise create_oauth_error("invalid_grant", "the refresh token is invalid or expired")
        yield from self._extend_registration(client, now)
        return token_response

    def _grant_client_credentials(
        self, client: ClientRecord, fields: Mapping[str, str], jkt: str | None, now: float
    ) -> Flow[dict[str, Any]]:
        """Issue tokens to a program without a user. RFC 6749, section 4.4

        The tokens have the requested scopes, except those that the program may not have.
        """
        resource = self._settings.select_resource(fields)
        if resource is None:
            raise create_oauth_error(
                "invalid_target", "resource must be a server for which this authorization server issues tokens"
            )
        requested_scopes = fields["scope"].split() if "scope" in fields else client.scopes
        # The token has no subject. If the client ID were the subject, it could equal the name of a user.
        # RFC 9068, section 5
        grant = TokenGrant(
            family=secrets.token_urlsafe(16),
            client_id=client.client_id,
            subject="",
            resource=resource,
            scopes=tuple(scope for scope in dict.fromkeys(requested_scopes) if scope in client.scopes),
            jkt=jkt,
        )
        return (yield from self._token_issuer.issue_tokens(grant, now, refreshable=False))

    def _check_resource(self, fields: Mapping[str, str], granted: str) -> None:
        if fields.get("resource", granted).rstrip("/") != granted.rstrip("/"):
            raise create_oauth_error("invalid_target", "the resource does not match the grant")

    def _extend_registration(self, client: ClientRecord, now: float) -> Flow[None]:
        if isinstance(client, RegisteredClient):
            until = now + clients.UNUSED_CLIENT_TTL_S
            yield from wait_for(self._store.put("client", client.client_id, client.stored_value, until, now))

    def handle_revocation(self, request: Request) -> Flow[HTTPResponse]:
        """Revoke a token. If the token is unknown, send the same response. RFC 7009"""
        now: float = yield Now()
        fields = request.fields or {}
        limiter_key = _limiter_key(request, fields)
        client = yield from self._authenticate(request, fields, now)
        if wait_s := (yield from self._issue_limiter.take(limiter_key, now)):
            return rate_limit_response(wait_s)
        token = fields.get("token", "")
        grant = yield from self._token_issuer.find_grant(token, now)
        claims = None if grant is not None else (yield from self._token_issuer.verify_access_token(token, now))
        if grant is not None and grant.client_id == client.client_id:
            yield from self._token_issuer.revoke_family(grant.family, now)
        elif claims is not None and claims.get("client_id") == client.client_id:
            yield from self._token_issuer.revoke_family(str(claims["sid"]), now)
        return HTTPResponse(200, {"cache-control": "no-store"})

    def handle_introspection(self, request: Request) -> Flow[HTTPResponse]:
        """Answer a resource server that asks whether a token is active. RFC 7662"""
        now: float = yield Now()
        client_id, secret = parse_basic_auth(request) or ("", "")
        limiter_key = build_limiter_key("introspection", client_id, request.address)
        if wait_s := (yield from self._failure_limiter.compute_wait(limiter_key, now)):
            return rate_limit_response(wait_s)
        expected_secret = self._settings.introspection_clients.get(client_id)
        if expected_secret is None or not is_same_secret(secret, expected_secret):
            yield from self._failure_limiter.take(limiter_key, now)
            response = error_response("invalid_client", "the resource server did not authenticate", 401)
            return add_headers(response, {"www-authenticate": "Basic"})
        claims = yield from self._token_issuer.verify_access_token((request.fields or {}).get("token", ""), now)
        return json_response({"active": False} if claims is None else claims | {"active": True})


def _limiter_key(request: Request, fields: Mapping[str, str]) -> str:
    return build_limiter_key("client", read_claimed_client_id(request, fields) or "", request.address)
