"""Authority: the endpoints of an authorization server, each a flow from a request to a response.

Codes only with PKCE by S256, redirects only to registered places, a user's consent for every grant, nothing remembered
of it: a client that is allowed today asks again tomorrow. spec: authorization, client-registration
"""

import contextlib
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from dovetail.auth import proofs
from dovetail.auth.flow import Alone, Flow, Now, Pause, SignIn, Stranger
from dovetail.auth.keys import ASYMMETRIC
from dovetail.auth.login import Token
from dovetail.auth.possession import ALGORITHMS
from dovetail.auth.server import clients, pages
from dovetail.auth.server.clients import BadClient, acts
from dovetail.auth.server.granting import Granting
from dovetail.auth.server.issuing import Issuing
from dovetail.auth.server.proving import Proving, Refused
from dovetail.auth.server.settings import Settings
from dovetail.auth.server.store import Asked, Client, Code, Full, Grant, Store, Trip, pack, unpack
from dovetail.auth.server.throttle import Throttle, neighbours
from dovetail.auth.server.upstream import Upstream, Vault
from dovetail.auth.server.web import Request, Response, document, failure, mark, page, redirect, same, slow
from dovetail.errors import LoginFailed, clip
from dovetail.wire.shape import replace

METADATA: Final = "/.well-known/oauth-authorization-server"

_RENEWAL: Final = 40.0  # seconds one process has for it
_RENEWAL_PAUSE: Final = 0.2
_RENEWAL_LOOKS: Final = 50
_PENDING: Final = 600.0  # for a user to decide
_CHALLENGE: Final = re.compile(r"[A-Za-z0-9_-]{43}")
_LONGEST: Final = 4096  # of a state, a scope, a resource
# What the scripts of any page may call: nothing there goes by a cookie.
_FOR_PROGRAMS: Final = frozenset({METADATA, "/jwks", "/token", "/register", "/revoke"})
_PREFLIGHT: Final = (
    ("access-control-allow-methods", "GET, POST"),
    ("access-control-allow-headers", "authorization, content-type, dpop, mcp-protocol-version"),
    ("access-control-max-age", "600"),
)


class Authority:
    """One authorization server."""

    def __init__(
        self, settings: Settings, store: Store, issuing: Issuing, upstream: Upstream | None, vault: Vault
    ) -> None:
        self._settings = settings
        self._store = store
        self._issuing = issuing
        self._upstream = upstream
        self._vault = vault
        self._about_request = f"authorization request of {settings.issuer}"  # others may seal with the same secret
        self._known = {one.client_id: one for one in settings.clients}
        self._registrations = Throttle(settings.registrations, 3600.0)
        self._told = Throttle(1, 3600.0)
        proving = Proving(settings.issuer, settings.at("/token"), store, self._client, self._may_fetch)
        self._granting = Granting(settings, store, issuing, proving)
        self._fetches = Throttle(settings.fetches, 60.0)
        self._failures = Throttle(settings.failures, 60.0)  # of one user, from one address
        self._guesses = Throttle(settings.failures * 5, 60.0)  # of all users, from one address
        self._attacks = Throttle(settings.failures * 10, 60.0)  # of one user, from anywhere
        self._decisions = Throttle(settings.decisions, 60.0)  # from one address
        https = settings.issuer.startswith("https://")
        self._cookie = "__Host-dovetail" if https else "dovetail"
        self._cookie_rules = "; Path=/; HttpOnly; SameSite=Lax" + ("; Secure" if https else "")
        self._routes: dict[tuple[str, str], Callable[[Request], Flow[Response]]] = {
            ("GET", METADATA): self._metadata,
            ("GET", "/jwks"): self._jwks,
            ("GET", "/authorize"): self._authorize,
            ("POST", "/consent"): self._consent,
            ("POST", "/token"): self._granting.token,
            ("POST", "/revoke"): self._granting.revoke,
        }
        if settings.registration:
            self._routes["POST", "/register"] = self._register
        if settings.askers:
            self._routes["POST", "/introspect"] = self._granting.introspect
        if upstream is not None:
            self._routes["GET", "/callback"] = self._callback

    def serves(self, path: str) -> bool:
        """Whether something is at this path."""
        return any(path == known for _, known in self._routes)

    def handle(self, request: Request) -> Flow[Response]:
        """The response to a request."""
        request = replace(request, address=neighbours(request.address))
        response = yield from self._answered(request)
        if request.path not in _FOR_PROGRAMS:
            return response
        return response.having(("access-control-allow-origin", "*"))

    def _answered(self, request: Request) -> Flow[Response]:
        if request.method == "OPTIONS" and request.path in _FOR_PROGRAMS and self.serves(request.path):
            return Response(204, _PREFLIGHT)
        work = self._routes.get((request.method, request.path))
        if work is None:
            allowed = ", ".join(method for method, path in self._routes if path == request.path)
            if not allowed:
                return failure("invalid_request", "nothing is here", 404)
            return failure("invalid_request", f"only {allowed} is served here", 405).having(("allow", allowed))
        try:
            return (yield from work(request))
        except Refused as refused:
            return refused.response
        except Full:
            return failure("temporarily_unavailable", "there is no room for more", 503).having(("retry-after", "60"))

    # What everyone may know

    def _metadata(self, request: Request) -> Flow[Response]:
        """RFC 8414. The issuer is said exactly as it was given."""
        yield Now()
        issuer, settings = self._settings.issuer, self._settings
        said: dict[str, Any] = {
            "issuer": issuer,
            "authorization_endpoint": self._settings.at("/authorize"),
            "token_endpoint": self._settings.at("/token"),
            "revocation_endpoint": self._settings.at("/revoke"),
            "jwks_uri": self._settings.at("/jwks"),
            "response_types_supported": ["code"],
            "response_modes_supported": ["query"],
            "grant_types_supported": [
                *clients.GRANTS,
                *([clients.PROGRAM] if any(map(acts, settings.clients)) else []),
            ],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": list(clients.METHODS),
            "revocation_endpoint_auth_methods_supported": list(clients.METHODS),
            "authorization_response_iss_parameter_supported": True,
            "client_id_metadata_document_supported": True,
            "token_endpoint_auth_signing_alg_values_supported": list(ASYMMETRIC),
            "revocation_endpoint_auth_signing_alg_values_supported": list(ASYMMETRIC),
            "dpop_signing_alg_values_supported": list(ALGORITHMS),
        }
        if settings.scopes:
            said["scopes_supported"] = list(settings.scopes)
        if settings.registration:
            said["registration_endpoint"] = self._settings.at("/register")
        if settings.askers:
            said["introspection_endpoint"] = self._settings.at("/introspect")
        return document(said, kept=True)

    def _jwks(self, request: Request) -> Flow[Response]:
        now: float = yield Now()
        return document(self._issuing.jwks(now), kept=True)

    # Clients

    def _register(self, request: Request) -> Flow[Response]:
        """spec: client-registration#dynamic-client-registration"""
        now: float = yield Now()
        if self._registrations.full(request.address, now):
            self._tell_full(request.address, now)
            return slow(self._registrations.wait, f"this address may register {self._settings.registrations} an hour")
        said = request.json()
        if said is None:
            return failure("invalid_client_metadata", "the body must be a JSON object")
        self._registrations.count(request.address, now)
        try:
            client, secret = clients.registered(said)
        except BadClient as exc:
            return failure(exc.error, str(exc))
        self._store.put("client", client.client_id, pack(client), now + clients.UNUSED, now)
        return document(clients.told(client, secret, now), 201)

    def _tell_full(self, address: str, now: float) -> None:
        if not self._told.full(address, now):
            self._told.count(address, now)
            self._warn(
                f"{address or 'somebody'} registered {self._settings.registrations} clients within an hour, which is "
                "the most: registrations= says how many may be"
            )

    def _warn(self, words: str) -> None:
        if self._settings.warn is not None:
            self._settings.warn(words)

    def _client(self, client_id: str | None, address: str, now: float) -> Flow[Client]:
        """The client of this id; BadClient if there is none. Whoever asks for many documents in vain is slowed down."""
        if client_id is None:
            raise BadClient("client_id is missing", "invalid_request")
        if client_id in self._known:
            return self._known[client_id]
        by_document = clients.names_document(client_id)
        kind = "client document" if by_document else "client"
        stored = unpack(self._store.get(kind, client_id, now), Client)
        if stored is not None:
            return stored
        if not by_document:
            raise BadClient("this client is not known here", "invalid_client")
        host, trusts = urlsplit(client_id).hostname or "", self._settings.trusts
        if trusts is not None and not trusts(host):
            raise BadClient("clients of this host are not accepted here", "invalid_client")
        self._may_fetch(address, now)
        answer = yield Stranger(client_id)
        client = clients.described(client_id, answer)
        with contextlib.suppress(Full):  # then it is fetched again
            self._store.put(kind, client_id, pack(client), now + clients.kept_for(answer.headers), now)
        return client

    def _may_fetch(self, address: str, now: float) -> None:
        """Refused where too much was fetched for this address already."""
        if self._fetches.full(address, now):
            raise Refused(slow(self._fetches.wait))
        self._fetches.count(address, now)

    # Authorization

    def _authorize(self, request: Request) -> Flow[Response]:
        """spec: authorization#authorization-flow-steps"""
        now: float = yield Now()
        fields = request.fields
        if fields is None or any(len(value) > _LONGEST for value in fields.values()):
            return _trouble("This request cannot be read", "A parameter is given twice, or is too long.")
        try:
            client = yield from self._client(fields.get("client_id"), request.address, now)
        except BadClient as exc:
            return _trouble("This application cannot ask for access", str(exc).capitalize() + ".")
        target = clients.redirect_of(client, fields.get("redirect_uri"))
        if target is None:
            # Never redirected: it may be anyone's address. spec: security-considerations#open-redirection
            return _trouble("This application cannot ask for access", "The address to return to is not registered.")
        problem = self._problem(fields)
        if problem is not None:
            return self._sent_back(target, fields.get("state"), *problem)
        resource, scopes = self._settings.resource_of(fields), self._scopes(fields)
        assert resource is not None
        browser = request.cookie(self._cookie)
        fresh = browser is None or not 20 <= len(browser) <= 64
        browser = secrets.token_urlsafe(24) if fresh or browser is None else browser
        asked = Asked(
            client_id=client.client_id,
            redirect_uri=target,
            state=fields.get("state"),
            challenge=fields["code_challenge"],
            resource=resource,
            scopes=scopes,
            browser=mark(browser),
            csrf=secrets.token_urlsafe(24),
            until=now + _PENDING,
        )
        # The page itself holds the request: whoever only asks takes up no room here.
        response = self._page(client, asked, self._vault.seal(asked, self._about_request))
        return response.having(("set-cookie", f"{self._cookie}={browser}{self._cookie_rules}")) if fresh else response

    def _problem(self, fields: Mapping[str, str]) -> tuple[str, str] | None:
        if fields.get("response_type") != "code":
            return "unsupported_response_type", "response_type must be code"
        # Without PKCE a code can be stolen on its way. spec: security-considerations#authorization-code-protection
        if fields.get("code_challenge_method") != "S256" or not _CHALLENGE.fullmatch(fields.get("code_challenge", "")):
            return "invalid_request", "code_challenge with the method S256 is required"
        if self._settings.resource_of(fields) is None:
            return "invalid_target", "resource must name a server this one issues tokens for"
        if fields.get("prompt") == "none":
            return "interaction_required", "a user has to agree"
        return None

    def _scopes(self, fields: Mapping[str, str]) -> tuple[str, ...]:
        wanted = dict.fromkeys(fields.get("scope", "").split())
        known = self._settings.scopes
        return tuple(one for one in wanted if not known or one in known)

    def _sent_back(self, target: str, state: str | None, error: str, words: str) -> Response:
        """An error the client is to hear of. Anyone can register: a user is not led to a strange site unseen.

        spec: security-considerations#open-redirection
        """
        if not clients.is_local(target):
            return _trouble("This application asked in a way that cannot be answered", f"{error}: {words}.")
        said = {"error": error, "error_description": words, "state": state, "iss": self._settings.issuer}
        return redirect(target, said)

    def _page(self, client: Client, asked: Asked, key: str, problem: str | None = None) -> Response:
        html = pages.consent(
            client,
            asked,
            action=self._settings.at("/consent"),
            key=key,
            server=self._settings.name,
            passwords=self._settings.passwords,
            user=self._settings.user,
            upstream=None if self._upstream is None else self._upstream.name,
            problem=problem,
        )
        return page(html, 200 if problem is None else 403, leads_to=asked.redirect_uri)

    def _consent(self, request: Request) -> Flow[Response]:
        """What the user decided, by the same browser that was asked."""
        now: float = yield Now()
        fields = request.fields or {}
        key = fields.get("request", "")
        asked = unpack(self._vault.open(key, self._about_request), Asked)
        if asked is None or now >= asked.until or self._store.get("decided", mark(key), now) is not None:
            return _trouble("This request is over", "Start again from the application.")
        if not self._by_its_browser(request, asked.browser) or not same(fields.get("csrf", ""), asked.csrf):
            return _trouble("This was not asked by this browser", "Start again from the application.", status=403)
        if not self._from_here(request):
            return _trouble("This came from another page", "Start again from the application.", status=403)
        if self._decisions.full(request.address, now):
            return _trouble("Too many requests", "Wait a minute, then try again.", status=429)
        self._decisions.count(request.address, now)
        if fields.get("decision") != "allow":
            self._first(key, asked, now)
            said = {"error": "access_denied", "error_description": "the user said no", "state": asked.state}
            return redirect(asked.redirect_uri, said | {"iss": self._settings.issuer})
        if not (yield from self._still(asked, request.address, now)):
            return _trouble("This request is over", "What it asks for has changed: start again from the application.")
        if self._upstream is not None:
            return (yield from self._leave(asked, key, now))
        subject = self._settings.user
        if self._settings.passwords:
            name = fields.get("username", "")
            subject = yield from self._signed_in(name, fields.get("password", ""), request.address, now)
            if subject is None:
                client = yield from self._client(asked.client_id, request.address, now)
                return self._page(client, asked, key, "That name and password do not belong together.")
        if subject is None or not self._first(key, asked, now):
            return _trouble("This request is over", "Start again from the application.")
        return self._granted(asked, subject, now)

    def _still(self, asked: Asked, address: str, now: float) -> Flow[bool]:
        """Whether what was asked for would be asked for now: by the same client, for the same place, for no less."""
        try:
            client = yield from self._client(asked.client_id, address, now)
        except BadClient:
            return False
        known = self._settings.scopes
        return (
            clients.redirect_of(client, asked.redirect_uri) is not None
            and self._settings.resource_of({"resource": asked.resource}) == asked.resource
            and all(not known or one in known for one in asked.scopes)
        )

    def _first(self, key: str, asked: Asked, now: float) -> bool:
        """Whether a request is decided only now."""
        return self._store.add("decided", mark(key), b"1", asked.until, now) is None

    def _by_its_browser(self, request: Request, browser: str) -> bool:
        cookie = request.cookie(self._cookie)
        return cookie is not None and same(mark(cookie), browser)

    def _from_here(self, request: Request) -> bool:
        """A page without referrer says `null` for its origin, also to its own server; another's name is another's."""
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
        return origin in (None, "null", self._settings.origin) and site in (None, "same-origin")

    def _signed_in(self, name: str, password: str, address: str, now: float) -> Flow[str | None]:
        """Who it is; counted as a failure until that is known, for many may try at once."""
        name = name[:128]
        user = name.casefold()  # whoever keeps the users may not care how a name is written
        limits = ((self._failures, f"{user} {address}"), (self._guesses, address), (self._attacks, user))
        if any(limit.full(key, now) for limit, key in limits):
            raise Refused(_trouble("Too many attempts", "Wait a minute, then try again.", status=429))
        for limit, key in limits:
            limit.count(key, now)
        subject: str | None = yield SignIn(name, password)
        if subject is not None:
            for limit, key in limits:
                limit.forgive(key)
        return subject

    def _granted(
        self,
        asked: Asked,
        subject: str,
        now: float,
        *,
        family: str | None = None,
        claims: dict[str, Any] | None = None,
        upstream: str | None = None,
    ) -> Response:
        grant = Grant(
            family=family or secrets.token_urlsafe(16),
            client_id=asked.client_id,
            subject=subject,
            resource=asked.resource,
            scopes=asked.scopes,
            claims=claims or {},
            upstream=upstream,
        )
        code = Code(grant=grant, redirect_uri=asked.redirect_uri, challenge=asked.challenge)
        said = {"code": self._issuing.code(code, now), "state": asked.state, "iss": self._settings.issuer}
        return redirect(asked.redirect_uri, said)

    # The provider upstream

    def _leave(self, asked: Asked, key: str, now: float) -> Flow[Response]:
        """Only now, with this user's consent for this client, does the browser go on to the provider.

        spec: security-considerations#confused-deputy-problem
        """
        assert self._upstream is not None
        if not self._first(key, asked, now):
            return _trouble("This request is over", "Start again from the application.")
        verifier, challenge = proofs.challenge_pair()
        state = secrets.token_urlsafe(24)
        try:
            place = yield from self._upstream.leave(self._settings.at("/callback"), state, challenge)
        except LoginFailed as exc:
            self._tell_trouble(exc)
            return _trouble("The login cannot be started", str(exc).capitalize() + ".", status=503)
        self._store.put("trip", mark(state), pack(Trip(asked=asked, verifier=verifier)), now + _PENDING, now)
        # Not a redirect: browsers hold the answer to a form, and all its redirects, to the form's own policy.
        return page(pages.onward(self._upstream.name, place))

    def _callback(self, request: Request) -> Flow[Response]:
        """Back from the provider, in the browser that consented and in no other."""
        now: float = yield Now()
        assert self._upstream is not None
        fields = request.fields or {}
        name = mark(fields.get("state", ""))
        trip = unpack(self._store.get("trip", name, now), Trip)
        if trip is None:
            return _trouble("This login is over", "Start again from the application.")
        if not self._by_its_browser(request, trip.asked.browser):
            return _trouble("This login was begun in another browser", "Start again from the application.", status=403)
        if self._store.take("trip", name, now) is None:
            return _trouble("This login is over", "Start again from the application.")
        asked = trip.asked
        try:
            if "error" in fields:
                raise _turned_away(fields)
            subject, claims, token = yield from self._upstream.arrive(
                fields, self._settings.at("/callback"), trip.verifier
            )
        except LoginFailed as exc:
            self._tell_trouble(exc)
            said = {"error": "access_denied", "error_description": str(exc), "state": asked.state}
            return redirect(asked.redirect_uri, said | {"iss": self._settings.issuer})
        family = secrets.token_urlsafe(16)
        sealed = self._vault.seal(token, family)
        return self._granted(asked, subject, now, family=family, claims=claims, upstream=sealed)

    def upstream_token(self, family: str, subject: str) -> Flow[str | None]:
        """The provider's own token for a grant of this user, fresh; for the server's use, never for a client's."""
        now: float = yield Now()
        grant, token = self._upstream_of(family, subject, now)
        if grant is not None and token is not None and not token.fresh(now):
            yield Alone()  # a provider's refresh token may be good once
            grant, token = self._upstream_of(family, subject, now)
        if grant is None or token is None or token.fresh(now):
            return None if token is None else token.access_token
        return (yield from self._renewed(grant, now))

    def _upstream_of(self, family: str, subject: str, now: float) -> tuple[Grant | None, Token | None]:
        grant = self._issuing.living(family, now)
        if grant is None or grant.upstream is None or grant.subject != subject:
            return None, None
        return grant, unpack(self._vault.open(grant.upstream, family), Token)

    def _renewed(self, grant: Grant, now: float) -> Flow[str | None]:
        """By one process at a time: a provider may take a second use of its refresh token for a theft."""
        name, subject = grant.family, grant.subject
        for _ in range(_RENEWAL_LOOKS):
            first = self._store.add("renewal", name, b"1", now + _RENEWAL, now) is None
            found, newest = self._upstream_of(name, subject, now)
            if first and found is not None and newest is not None and not newest.fresh(now):
                try:
                    return (yield from self._renewed_alone(found, newest, now))
                finally:
                    self._store.take("renewal", name, now)
            if first:
                self._store.take("renewal", name, now)
            if newest is None or newest.fresh(now):
                return None if newest is None else newest.access_token
            yield Pause(_RENEWAL_PAUSE)
            now = yield Now()
        return None

    def _renewed_alone(self, grant: Grant, token: Token, now: float) -> Flow[str | None]:
        if self._upstream is None:
            return None
        try:
            fresh = yield from self._upstream.renew(token)
        except LoginFailed as exc:
            self._tell_trouble(exc)
            fresh = None
        if fresh is None:
            return None
        sealed = self._vault.seal(fresh, grant.family)
        # Revoked while the provider was asked, it stays revoked.
        return fresh.access_token if self._issuing.keep(replace(grant, upstream=sealed), now) else None

    def _tell_trouble(self, exc: LoginFailed) -> None:
        """What users are not told: what the provider said of this server. What it says of a user is no trouble."""
        if exc.__cause__ is not None:
            self._warn(f"{exc}: {exc.__cause__}")


def _turned_away(fields: Mapping[str, str]) -> LoginFailed:
    turned = LoginFailed("the provider did not log the user in")
    if fields["error"] != "access_denied":
        turned.__cause__ = LoginFailed(f"{clip(fields['error'], 64)}, {clip(fields.get('error_description', ''), 200)}")
    return turned


def _trouble(title: str, *words: str, status: int = 400) -> Response:
    return page(pages.trouble(title, words), status)
