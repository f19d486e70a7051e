"""The routes of the authorization server, its metadata, and the endpoints that a browser visits.

Authorization codes require PKCE with S256, and redirects go only to registered URIs. The user must consent to every
grant, and the server does not remember consent. spec: authorization, client-registration
"""

import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from dovetail.error_context import clip
from dovetail.errors import LoginFailed
from dovetail.oauth.authorization_server import clients, pages
from dovetail.oauth.authorization_server.client_authentication import ClientAuthenticator, OAuthError
from dovetail.oauth.authorization_server.client_directory import ClientDirectory
from dovetail.oauth.authorization_server.clients import InvalidClient, can_use_client_credentials
from dovetail.oauth.authorization_server.identity_provider import IdentityProvider
from dovetail.oauth.authorization_server.limiters import StoreLimiter
from dovetail.oauth.authorization_server.responses import (
    Request,
    add_headers,
    error_response,
    hash_secret,
    html_response,
    is_same_secret,
    json_response,
    redirect_response,
)
from dovetail.oauth.authorization_server.settings import AuthorizationServerSettings
from dovetail.oauth.authorization_server.store import (
    AuthorizationCode,
    AuthorizationRequest,
    AuthorizationStore,
    ClientRecord,
    ProviderLogin,
    StoreFull,
    StoreUnavailable,
    TokenGrant,
    decode_record,
    encode_record,
)
from dovetail.oauth.authorization_server.token_endpoint import TokenEndpoint
from dovetail.oauth.authorization_server.token_issuer import OAuthTokenIssuer
from dovetail.oauth.flow import AcquireLock, Flow, Now, Pause, VerifyPassword, wait_for
from dovetail.oauth.guard.dpop import DPOP_ALGORITHMS
from dovetail.oauth.guard.keys import ASYMMETRIC_ALGORITHMS
from dovetail.oauth.login.saved_login import Token
from dovetail.oauth.pkce import create_pkce_pair, is_challenge
from dovetail.protocol.interfaces.http_types import HTTPResponse
from dovetail.protocol.rate_limiter import build_limiter_key, group_address
from dovetail.protocol.sealer import Sealer, UnsealError
from dovetail.wire.base import Struct, replace

T = TypeVar("T")

METADATA_PATH: Final = "/.well-known/oauth-authorization-server"

_RENEWAL_LOCK_TTL_S: Final = 40.0  # A process that renews a token holds the lock for at most this many seconds.
_RENEWAL_POLL_INTERVAL_S: Final = 0.2
_MAX_RENEWAL_POLLS: Final = 50
_KNOWN_BROWSER_TTL_S: Final = 180 * 86400.0  # A browser counts as known for this many seconds after a login.
_PENDING_REQUEST_TTL_S: Final = 600.0  # The user has this many seconds to decide.
_MAX_PARAMETER_CHARS: Final = 4096  # Maximum length of the parameters `state`, `scope` and `resource`.
# Scripts on any web page may call these endpoints, because the endpoints do not use cookies.
_CORS_PATHS: Final = frozenset({METADATA_PATH, "/jwks", "/token", "/register", "/revoke"})
_PREFLIGHT_HEADERS: Final = {
    "access-control-allow-methods": "GET, POST",
    "access-control-allow-headers": "authorization, content-type, dpop, mcp-protocol-version",
    "access-control-max-age": "600",
}


class AuthorizationEndpoints:
    """The routes of the authorization server, and the endpoints that a user's browser opens.

    The token endpoint and the registration of clients are in `TokenEndpoint` and `ClientDirectory`.
    """

    def __init__(
        self,
        settings: AuthorizationServerSettings,
        store: AuthorizationStore,
        token_issuer: OAuthTokenIssuer,
        identity_provider: IdentityProvider | None,
        sealer: Sealer,
    ) -> None:
        self._settings = settings
        self._store = store
        self._token_issuer = token_issuer
        self._identity_provider = identity_provider
        self._sealer = sealer
        self._request_seal_context = (
            # The encryption context contains the issuer, because several servers may share a secret key.
            f"authorization request of {settings.issuer}"
        )
        self._known_browser_seal_context = f"known browser of {settings.issuer}".encode()
        self._clients = ClientDirectory(settings, store)
        client_authenticator = ClientAuthenticator(
            settings.issuer, settings.url_for("/token"), store, self._clients.find, self._clients.check_fetch_limit
        )
        self._token_endpoint = TokenEndpoint(settings, store, token_issuer, client_authenticator)
        # This limiter counts failed logins per user and address.
        max_failures = settings.max_failures_per_minute
        self._login_failure_limiter = StoreLimiter(store, "failed logins", max_failures, 60.0, is_strict=True)
        # This limiter counts failed logins per address, for all users.
        self._address_failure_limiter = StoreLimiter(
            store, "failed logins by address", max_failures * 5, 60.0, is_strict=True
        )
        # This limiter counts failed logins per user, from any address.
        self._user_failure_limiter = StoreLimiter(
            store, "failed logins by user", max_failures * 10, 60.0, is_strict=True
        )
        # This limiter counts consent decisions per address.
        self._decision_limiter = StoreLimiter(store, "decisions", settings.max_decisions_per_minute, 60.0)
        is_https = settings.issuer.startswith("https://")
        self._cookie_name = "__Host-dovetail" if is_https else "dovetail"
        self._cookie_attributes = "; Path=/; HttpOnly; SameSite=Lax" + ("; Secure" if is_https else "")
        self._routes: dict[tuple[str, str], Callable[[Request], Flow[HTTPResponse]]] = {
            ("GET", METADATA_PATH): self._serve_metadata,
            ("GET", "/jwks"): self._serve_jwks,
            ("GET", "/authorize"): self._authorize,
            ("POST", "/consent"): self._handle_consent,
            ("POST", "/token"): self._token_endpoint.handle_token,
            ("POST", "/revoke"): self._token_endpoint.handle_revocation,
        }
        if settings.allow_registration:
            self._routes["POST", "/register"] = self._clients.register
        if settings.introspection_clients:
            self._routes["POST", "/introspect"] = self._token_endpoint.handle_introspection
        if identity_provider is not None:
            self._routes["GET", "/callback"] = self._handle_callback

    def has_route(self, path: str) -> bool:
        return any(path == route_path for _, route_path in self._routes)

    def handle(self, request: Request) -> Flow[HTTPResponse]:
        request = replace(request, address=group_address(request.address))
        response = yield from self._dispatch(request)
        if request.path not in _CORS_PATHS:
            return response
        return add_headers(response, {"access-control-allow-origin": "*"})

    def _dispatch(self, request: Request) -> Flow[HTTPResponse]:
        if request.method == "OPTIONS" and request.path in _CORS_PATHS and self.has_route(request.path):
            return HTTPResponse(204, _PREFLIGHT_HEADERS)
        handler = self._routes.get((request.method, request.path))
        if handler is None:
            allowed_methods = ", ".join(method for method, path in self._routes if path == request.path)
            if not allowed_methods:
                return error_response("invalid_request", "not found", 404)
            response = error_response("invalid_request", f"the method must be {allowed_methods}", 405)
            return add_headers(response, {"allow": allowed_methods})
        try:
            return (yield from handler(request))
        except OAuthError as refused:
            return refused.response
        except StoreFull:
            response = error_response("temporarily_unavailable", "the server's store is full", 503)
            return add_headers(response, {"retry-after": "60"})
        except StoreUnavailable as exc:
            if self._settings.warn is not None:
                self._settings.warn(f"the store cannot be used: {exc}")
            response = error_response("temporarily_unavailable", "the server's store cannot be used now", 503)
            return add_headers(response, {"retry-after": "5"})

    def _serve_metadata(self, request: Request) -> Flow[HTTPResponse]:
        """Serve the metadata of the authorization server, with the issuer exactly as configured. RFC 8414"""
        yield Now()
        return json_response(_build_metadata(self._settings), is_cacheable=True)

    def _serve_jwks(self, request: Request) -> Flow[HTTPResponse]:
        now: float = yield Now()
        return json_response((yield from self._token_issuer.build_jwks(now)), is_cacheable=True)

    def _warn(self, message: str) -> None:
        if self._settings.warn is not None:
            self._settings.warn(message)

    def _authorize(self, request: Request) -> Flow[HTTPResponse]:
        """Handle an authorization request. spec: authorization#authorization-flow-steps"""
        now: float = yield Now()
        fields = request.fields
        if fields is None or any(len(value) > _MAX_PARAMETER_CHARS for value in fields.values()):
            return _error_page("Invalid request", "A parameter is repeated or too long.")
        try:
            client = yield from self._clients.find(fields.get("client_id"), request.address, now)
        except InvalidClient as exc:
            return _error_page("This application cannot request access", str(exc).capitalize() + ".")
        redirect_uri = clients.match_redirect_uri(client, fields.get("redirect_uri"))
        if redirect_uri is None:
            # The server must not redirect to an unregistered URI, because the URI may belong to an attacker.
            # spec: security-considerations#open-redirection
            return _error_page("This application cannot request access", "The redirect URI is not registered.")
        problem = self._find_problem(fields)
        if problem is not None:
            return self._redirect_error(redirect_uri, fields.get("state"), *problem)
        resource, scopes = self._settings.select_resource(fields), self._select_scopes(fields)
        assert resource is not None
        browser = request.cookie(self._cookie_name)
        is_new_browser = browser is None or not 20 <= len(browser) <= 64
        browser = secrets.token_urlsafe(24) if is_new_browser or browser is None else browser
        authorization_request = AuthorizationRequest(
            client_id=client.client_id,
            redirect_uri=redirect_uri,
            state=fields.get("state"),
            challenge=fields["code_challenge"],
            resource=resource,
            scopes=scopes,
            browser=hash_secret(browser),
            csrf=secrets.token_urlsafe(24),
            until=now + _PENDING_REQUEST_TTL_S,
        )
        # The server does not store the authorization request. The consent page contains the request in encrypted form.
        response = self._render_consent(
            client,
            authorization_request,
            self._seal(authorization_request, self._request_seal_context, authorization_request.until),
        )
        cookie = f"{self._cookie_name}={browser}{self._cookie_attributes}"
        return add_headers(response, {"set-cookie": cookie}) if is_new_browser else response

    def _find_problem(self, fields: Mapping[str, str]) -> tuple[str, str] | None:
        if fields.get("response_type") != "code":
            return "unsupported_response_type", "response_type must be 'code'"
        # Without PKCE, an attacker could use a stolen code. spec: security-considerations#authorization-code-protection
        if fields.get("code_challenge_method") != "S256" or not is_challenge(fields.get("code_challenge", "")):
            return "invalid_request", "a code_challenge with the method S256 is required"
        if self._settings.select_resource(fields) is None:
            return "invalid_target", "resource must be a server for which this authorization server issues tokens"
        if fields.get("prompt") == "none":
            return "interaction_required", "the user must consent"
        return None

    def _select_scopes(self, fields: Mapping[str, str]) -> tuple[str, ...]:
        requested = dict.fromkeys(fields.get("scope", "").split())
        supported = self._settings.scopes_supported
        return tuple(scope for scope in requested if not supported or scope in supported)

    def _redirect_error(self, redirect_uri: str, state: str | None, error: str, description: str) -> HTTPResponse:
        """Send an error to the client with a redirect, but only if the redirect URI is on the user's machine.

        Otherwise show the error to the user, because anyone can register a client with a malicious site.

        spec: security-considerations#open-redirection
        """
        if not clients.is_local_redirect(redirect_uri):
            return _error_page("This application sent an invalid request", f"{error}: {description}.")
        params = {"error": error, "error_description": description, "state": state, "iss": self._settings.issuer}
        return redirect_response(redirect_uri, params)

    def _render_consent(
        self,
        client: ClientRecord,
        authorization_request: AuthorizationRequest,
        sealed_request: str,
        problem: str | None = None,
    ) -> HTTPResponse:
        html = pages.render_consent(
            client,
            authorization_request,
            action=self._settings.url_for("/consent"),
            sealed_request=sealed_request,
            server_name=self._settings.name,
            asks_password=self._settings.has_passwords,
            user=self._settings.development_user,
            provider_name=None if self._identity_provider is None else self._identity_provider.name,
            problem=problem,
        )
        return html_response(html, 200 if problem is None else 403, form_target=authorization_request.redirect_uri)

    def _handle_consent(self, request: Request) -> Flow[HTTPResponse]:
        """Handle the user's consent decision. The decision must come from the browser that opened the consent page."""
        now: float = yield Now()
        fields = request.fields or {}
        sealed_request = fields.get("request", "")
        authorization_request = self._open(sealed_request, self._request_seal_context, AuthorizationRequest, now)
        if authorization_request is None or (yield from self._is_decided(authorization_request, now)):
            return _error_page("This request has ended", "Start again from the application.")
        if not self._is_same_browser(request, authorization_request.browser) or not is_same_secret(
            fields.get("csrf", ""), authorization_request.csrf
        ):
            return _error_page(
                "This request belongs to another browser", "Start again from the application.", status=403
            )
        if not self._is_same_origin(request):
            return _error_page("This form came from another page", "Start again from the application.", status=403)
        username = fields.get("username", "")[:128]
        is_known_browser = self._is_known_browser(request, username, now)
        # A browser that has logged in before has a separate limit, so that other users of its address cannot lock it
        # out.
        source = build_limiter_key("known browser", username.casefold()) if is_known_browser else request.address
        if (yield from self._decision_limiter.take(source, now)):
            return _error_page("Too many requests", "Wait a minute, then try again.", status=429)
        if fields.get("decision") != "allow":
            yield from self._mark_decided(authorization_request, now)
            params = {
                "error": "access_denied",
                "error_description": "the user denied access",
                "state": authorization_request.state,
            }
            return redirect_response(authorization_request.redirect_uri, params | {"iss": self._settings.issuer})
        if not (yield from self._is_still_valid(authorization_request, request.address, now)):
            return _error_page(
                "This request has expired", "The requested access has changed. Start again from the application."
            )
        if self._identity_provider is not None:
            return (yield from self._redirect_to_provider(authorization_request, now))
        subject = self._settings.development_user
        if self._settings.has_passwords:
            subject = yield from self._sign_in(
                username, fields.get("password", ""), source, now, is_known_browser=is_known_browser
            )
            if subject is None:
                client = yield from self._clients.find(authorization_request.client_id, request.address, now)
                return self._render_consent(client, authorization_request, sealed_request, "Wrong name or password.")
        if subject is None or not (yield from self._mark_decided(authorization_request, now)):
            return _error_page("This request has expired", "Start again from the application.")
        response = yield from self._redirect_with_code(authorization_request, subject, now)
        if not self._settings.has_passwords or is_known_browser:
            return response
        return add_headers(response, {"set-cookie": self._build_known_browser_cookie(username, now)})

    def _is_known_browser(self, request: Request, username: str, now: float) -> bool:
        cookie = request.cookie(f"{self._cookie_name}-known")
        if cookie is None:
            return False
        try:
            known_user = self._sealer.open_text(cookie, self._known_browser_seal_context, now)
        except UnsealError:
            return False
        return known_user == _encode_user(username)

    def _build_known_browser_cookie(self, username: str, now: float) -> str:
        sealed = self._sealer.seal_text(
            _encode_user(username), self._known_browser_seal_context, now + _KNOWN_BROWSER_TTL_S
        )
        max_age = f"; Max-Age={int(_KNOWN_BROWSER_TTL_S)}"
        return f"{self._cookie_name}-known={sealed}{self._cookie_attributes}{max_age}"

    def _is_still_valid(self, authorization_request: AuthorizationRequest, address: str, now: float) -> Flow[bool]:
        try:
            client = yield from self._clients.find(authorization_request.client_id, address, now)
        except InvalidClient:
            return False
        supported = self._settings.scopes_supported
        return (
            clients.match_redirect_uri(client, authorization_request.redirect_uri) is not None
            and self._settings.select_resource({"resource": authorization_request.resource})
            == authorization_request.resource
            and all(not supported or scope in supported for scope in authorization_request.scopes)
        )

    def _is_decided(self, authorization_request: AuthorizationRequest, now: float) -> Flow[bool]:
        csrf_hash = hash_secret(authorization_request.csrf)
        return (yield from wait_for(self._store.get("decided", csrf_hash, now))) is not None

    def _mark_decided(self, authorization_request: AuthorizationRequest, now: float) -> Flow[bool]:
        csrf_hash, until = hash_secret(authorization_request.csrf), authorization_request.until
        return (yield from wait_for(self._store.add("decided", csrf_hash, b"1", until, now))) is None

    def _is_same_browser(self, request: Request, browser_hash: str) -> bool:
        cookie = request.cookie(self._cookie_name)
        return cookie is not None and is_same_secret(hash_secret(cookie), browser_hash)

    def _is_same_origin(self, request: Request) -> bool:
        """Return whether the form comes from a page of this server. Some browsers send the origin `null` for it."""
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
        return origin in (None, "null", self._settings.origin) and site in (None, "same-origin")

    def _sign_in(
        self, name: str, password: str, source: str, now: float, *, is_known_browser: bool
    ) -> Flow[str | None]:
        """Check the password and return the user's subject.

        Many attempts can run at once, so an attempt counts as failed until it succeeds.
        """
        # The user database may ignore case, so all spellings of a name count as one user.
        user = name.casefold()
        limiters = [(self._login_failure_limiter, build_limiter_key(user, source))]
        if not is_known_browser:
            limiters += [(self._address_failure_limiter, source), (self._user_failure_limiter, build_limiter_key(user))]
        for index, (limiter, key) in enumerate(limiters):
            if (yield from limiter.take(key, now)):
                for counted_limiter, counted_key in limiters[:index]:
                    yield from counted_limiter.undo(counted_key)
                raise OAuthError(_error_page("Too many attempts", "Wait a minute, then try again.", status=429))
        subject: str | None = yield VerifyPassword(name, password)
        if subject is not None:
            for limiter, key in limiters:
                yield from limiter.undo(key)
        return subject

    def _redirect_with_code(
        self,
        authorization_request: AuthorizationRequest,
        subject: str,
        now: float,
        *,
        family: str | None = None,
        claims: dict[str, Any] | None = None,
        sealed_token: str | None = None,
    ) -> Flow[HTTPResponse]:
        grant = TokenGrant(
            family=family or secrets.token_urlsafe(16),
            client_id=authorization_request.client_id,
            subject=subject,
            resource=authorization_request.resource,
            scopes=authorization_request.scopes,
            claims=claims or {},
            upstream=sealed_token,
        )
        code = AuthorizationCode(
            grant=grant, redirect_uri=authorization_request.redirect_uri, challenge=authorization_request.challenge
        )
        params = {
            "code": (yield from self._token_issuer.issue_code(code, now)),
            "state": authorization_request.state,
            "iss": self._settings.issuer,
        }
        return redirect_response(authorization_request.redirect_uri, params)

    def _redirect_to_provider(self, authorization_request: AuthorizationRequest, now: float) -> Flow[HTTPResponse]:
        """Redirect the browser to the upstream provider. Call this only after the user has allowed the client.

        spec: security-considerations#confused-deputy-problem
        """
        assert self._identity_provider is not None
        if not (yield from self._mark_decided(authorization_request, now)):
            return _error_page("This request has expired", "Start again from the application.")
        verifier, challenge = create_pkce_pair()
        state = secrets.token_urlsafe(24)
        try:
            provider_url = yield from self._identity_provider.build_authorization_url(
                self._settings.url_for("/callback"), state, challenge
            )
        except LoginFailed as exc:
            self._warn_provider_failure(exc)
            return _error_page("The login cannot be started", str(exc).capitalize() + ".", status=503)
        record = encode_record(ProviderLogin(asked=authorization_request, verifier=verifier))
        until = now + _PENDING_REQUEST_TTL_S
        yield from wait_for(self._store.put("trip", hash_secret(state), record, until, now))
        # The form policy of the consent page would block a redirect, so the server sends a page with a link.
        return html_response(pages.render_provider_redirect(self._identity_provider.name, provider_url))

    def _handle_callback(self, request: Request) -> Flow[HTTPResponse]:
        """Handle the redirect from the upstream provider. The redirect must come from the browser in which the user
        consented.
        """
        now: float = yield Now()
        assert self._identity_provider is not None
        fields = request.fields or {}
        state_hash = hash_secret(fields.get("state", ""))
        pending_login = decode_record((yield from wait_for(self._store.get("trip", state_hash, now))), ProviderLogin)
        if pending_login is None:
            return _error_page("This login has expired", "Start again from the application.")
        if not self._is_same_browser(request, pending_login.asked.browser):
            return _error_page(
                "This login was started in another browser", "Start again from the application.", status=403
            )
        if (yield from wait_for(self._store.take("trip", state_hash, now))) is None:
            return _error_page("This login has expired", "Start again from the application.")
        authorization_request = pending_login.asked
        try:
            if "error" in fields:
                raise _provider_error(fields)
            subject, claims, token = yield from self._identity_provider.finish_login(
                fields, self._settings.url_for("/callback"), pending_login.verifier
            )
        except LoginFailed as exc:
            self._warn_provider_failure(exc)
            params = {"error": "access_denied", "error_description": str(exc), "state": authorization_request.state}
            return redirect_response(authorization_request.redirect_uri, params | {"iss": self._settings.issuer})
        family = secrets.token_urlsafe(16)
        sealed_token = self._seal(token, family)
        return (
            yield from self._redirect_with_code(
                authorization_request, subject, now, family=family, claims=claims, sealed_token=sealed_token
            )
        )

    def upstream_token(self, family: str, subject: str) -> Flow[str | None]:
        """Return a valid token of the upstream provider for a user. The token must never be sent to a client."""
        now: float = yield Now()
        grant, token = yield from self._load_upstream_token(family, subject, now)
        if grant is not None and token is not None and not token.is_fresh(now):
            # Only one request may renew the token, because some providers accept a refresh token only once.
            yield AcquireLock()
            grant, token = yield from self._load_upstream_token(family, subject, now)
        if grant is None or token is None or token.is_fresh(now):
            return None if token is None else token.access_token
        return (yield from self._renew_upstream_token(grant, now))

    def _load_upstream_token(
        self, family: str, subject: str, now: float
    ) -> Flow[tuple[TokenGrant | None, Token | None]]:
        grant = yield from self._token_issuer.find_active_grant(family, now)
        if grant is None or grant.upstream is None or grant.subject != subject:
            return None, None
        return grant, self._open(grant.upstream, family, Token, now)

    def _renew_upstream_token(self, grant: TokenGrant, now: float) -> Flow[str | None]:
        """Renew the provider's token. Only one process at a time may renew it.

        Some providers treat a second use of the refresh token as theft.
        """
        family, subject = grant.family, grant.subject
        for _ in range(_MAX_RENEWAL_POLLS):
            until = now + _RENEWAL_LOCK_TTL_S
            has_lock = (yield from wait_for(self._store.add("renewal", family, b"1", until, now))) is None
            current_grant, current_token = yield from self._load_upstream_token(family, subject, now)
            if has_lock and current_grant is not None and current_token is not None and not current_token.is_fresh(now):
                # If this flow is closed during the renewal, the lock expires.
                try:
                    access_token = yield from self._renew_with_provider(current_grant, current_token, now)
                except Exception:
                    yield from wait_for(self._store.take("renewal", family, now))
                    raise
                yield from wait_for(self._store.take("renewal", family, now))
                return access_token
            if has_lock:
                yield from wait_for(self._store.take("renewal", family, now))
            if current_token is None or current_token.is_fresh(now):
                return None if current_token is None else current_token.access_token
            yield Pause(_RENEWAL_POLL_INTERVAL_S)
            now = yield Now()
        return None

    def _renew_with_provider(self, grant: TokenGrant, token: Token, now: float) -> Flow[str | None]:
        if self._identity_provider is None:
            return None
        try:
            new_token = yield from self._identity_provider.renew_token(token)
        except LoginFailed as exc:
            self._warn_provider_failure(exc)
            new_token = None
        if new_token is None:
            return None
        sealed_token = self._seal(new_token, grant.family)
        # If the grant was revoked during the renewal, it must stay revoked.
        is_stored = yield from self._token_issuer.update_grant(replace(grant, upstream=sealed_token), now)
        return new_token.access_token if is_stored else None

    def _seal(self, record: Struct, context: str, expires_at: float | None = None) -> str:
        return self._sealer.seal_text(encode_record(record), context.encode(), expires_at)

    def _open(self, sealed: str, context: str, record_type: type[T], now: float) -> T | None:
        try:
            return decode_record(self._sealer.open_text(sealed, context.encode(), now), record_type)
        except UnsealError:
            return None

    def _warn_provider_failure(self, exc: LoginFailed) -> None:
        """Log a provider error that the operator must fix. Do not log errors that concern only one user."""
        if exc.__cause__ is not None:
            self._warn(f"{exc}: {exc.__cause__}")


def _build_metadata(settings: AuthorizationServerSettings) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "issuer": settings.issuer,
        "authorization_endpoint": settings.url_for("/authorize"),
        "token_endpoint": settings.url_for("/token"),
        "revocation_endpoint": settings.url_for("/revoke"),
        "jwks_uri": settings.url_for("/jwks"),
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": [
            *clients.GRANT_TYPES,
            *([clients.CLIENT_CREDENTIALS] if any(map(can_use_client_credentials, settings.clients)) else []),
        ],
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": list(clients.AUTH_METHODS),
        "revocation_endpoint_auth_methods_supported": list(clients.AUTH_METHODS),
        "authorization_response_iss_parameter_supported": True,
        "client_id_metadata_document_supported": True,
        "token_endpoint_auth_signing_alg_values_supported": list(ASYMMETRIC_ALGORITHMS),
        "revocation_endpoint_auth_signing_alg_values_supported": list(ASYMMETRIC_ALGORITHMS),
        "dpop_signing_alg_values_supported": list(DPOP_ALGORITHMS),
    }
    if settings.scopes_supported:
        metadata["scopes_supported"] = list(settings.scopes_supported)
    if settings.allow_registration:
        metadata["registration_endpoint"] = settings.url_for("/register")
    if settings.introspection_clients:
        metadata["introspection_endpoint"] = settings.url_for("/introspect")
    return metadata


def _encode_user(username: str) -> bytes:
    return hash_secret(username.casefold()).encode()


def _provider_error(fields: Mapping[str, str]) -> LoginFailed:
    error = LoginFailed("the provider did not log the user in")
    if fields["error"] != "access_denied":
        error.__cause__ = LoginFailed(f"{clip(fields['error'], 64)}, {clip(fields.get('error_description', ''), 200)}")
    return error


def _error_page(title: str, *paragraphs: str, status: int = 400) -> HTTPResponse:
    return html_response(pages.render_error(title, paragraphs), status)
