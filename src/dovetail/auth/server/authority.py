"""Authority: the endpoints of an authorization server, each a flow from a request to a response.

Codes only with PKCE by S256, redirects only to registered places, a user's consent for every grant, nothing remembered
of it: a client that is allowed today asks again tomorrow. spec: authorization, client-registration
"""

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from dovetail.auth import keys as signing
from dovetail.auth import proofs
from dovetail.auth.claims import Rejected, Unavailable
from dovetail.auth.flow import Flow, Now, SignIn, Stranger
from dovetail.auth.guard import checked_scopes
from dovetail.auth.keys import ASYMMETRIC
from dovetail.auth.login import Token
from dovetail.auth.possession import ALGORITHMS, Possession
from dovetail.auth.server import clients, pages
from dovetail.auth.server.clients import BadClient
from dovetail.auth.server.issuing import Issuing
from dovetail.auth.server.proving import Proving, Refused, basic, claimed, refused
from dovetail.auth.server.store import Asked, Client, Code, Full, Grant, Store, Trip, pack, unpack
from dovetail.auth.server.throttle import Throttle
from dovetail.auth.server.upstream import Upstream, Vault
from dovetail.auth.server.web import Request, Response, document, failure, mark, page, redirect, same
from dovetail.auth.settings import words
from dovetail.errors import LoginFailed, clip
from dovetail.wire.shape import Struct, field, replace

METADATA: Final = "/.well-known/oauth-authorization-server"
CODE_FLOW: Final = "authorization_code"
PROGRAM: Final = "client_credentials"

_PENDING: Final = 600.0  # for a user to decide
_CLIENT: Final = 90 * 86400.0  # since it was last used
_CHALLENGE: Final = re.compile(r"[A-Za-z0-9_-]{43}")
_VERIFIER: Final = re.compile(r"[A-Za-z0-9\-._~]{43,128}")
_LONGEST: Final = 4096  # of a state, a scope, a resource
# What the scripts of any page may call: nothing there goes by a cookie.
_FOR_PROGRAMS: Final = frozenset({METADATA, "/jwks", "/token", "/register", "/revoke"})
_PREFLIGHT: Final = (
    ("access-control-allow-methods", "GET, POST"),
    ("access-control-allow-headers", "authorization, content-type, dpop, mcp-protocol-version"),
    ("access-control-max-age", "600"),
)


class Settings(Struct, frozen=True, kw_only=True):
    """What an operator decides."""

    issuer: str
    name: str
    resources: tuple[str, ...] = ()  # what tokens may be for; empty: servers of the issuer's own origin
    scopes: tuple[str, ...] = ()  # what may be asked for; empty: anything
    clients: tuple[Client, ...] = ()
    registration: bool = True
    registrations: int = 10  # of one address in an hour
    failures: int = 10  # of one client, or of one user, in a minute
    fetches: int = 30  # of documents of clients for one address, in a minute
    trusts: Callable[[str], bool] | None = None  # which hosts may describe clients by their documents
    passwords: bool = False  # whether users prove who they are here
    user: str | None = None  # everyone, in development
    askers: dict[str, str] = field(
        default_factory=dict
    )  # who may ask about tokens: resource servers, with their secrets
    warn: Callable[[str], None] | None = None  # tells the operator


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
        self._known = {one.client_id: one for one in settings.clients}
        self._possession = Possession()
        self._registrations = Throttle(settings.registrations, 3600.0)
        self._told = Throttle(1, 3600.0)
        self._proving = Proving(settings.issuer, self._at("/token"), store, self._client)
        self._fetches = Throttle(settings.fetches, 60.0)
        self._failures = Throttle(settings.failures, 60.0)  # of one client or user, from one address
        self._attacks = Throttle(settings.failures * 10, 60.0)  # of one user, from anywhere
        https = settings.issuer.startswith("https://")
        self._cookie = "__Host-dovetail" if https else "dovetail"
        self._cookie_rules = "; Path=/; HttpOnly; SameSite=Lax" + ("; Secure" if https else "")
        parts = urlsplit(settings.issuer)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._routes: dict[tuple[str, str], Callable[[Request], Flow[Response]]] = {
            ("GET", METADATA): self._metadata,
            ("GET", "/jwks"): self._jwks,
            ("GET", "/authorize"): self._authorize,
            ("POST", "/consent"): self._consent,
            ("POST", "/token"): self._token,
            ("POST", "/revoke"): self._revoke,
        }
        if settings.registration:
            self._routes["POST", "/register"] = self._register
        if settings.askers:
            self._routes["POST", "/introspect"] = self._introspect
        if upstream is not None:
            self._routes["GET", "/callback"] = self._callback

    def serves(self, path: str) -> bool:
        """Whether something is at this path."""
        return any(path == known for _, known in self._routes)

    def handle(self, request: Request) -> Flow[Response]:
        """The response to a request."""
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
            "authorization_endpoint": self._at("/authorize"),
            "token_endpoint": self._at("/token"),
            "revocation_endpoint": self._at("/revoke"),
            "jwks_uri": self._at("/jwks"),
            "response_types_supported": ["code"],
            "response_modes_supported": ["query"],
            "grant_types_supported": [*clients.GRANTS, *([PROGRAM] if any(map(_acts, settings.clients)) else [])],
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
            said["registration_endpoint"] = self._at("/register")
        if settings.askers:
            said["introspection_endpoint"] = self._at("/introspect")
        return document(said, kept=True)

    def _jwks(self, request: Request) -> Flow[Response]:
        now: float = yield Now()
        return document(self._issuing.jwks(now), kept=True)

    def _at(self, path: str) -> str:
        return self._settings.issuer.rstrip("/") + path

    # Clients

    def _register(self, request: Request) -> Flow[Response]:
        """spec: client-registration#dynamic-client-registration"""
        now: float = yield Now()
        if self._registrations.full(request.address, now):
            self._tell_full(request.address, now)
            return _slow(self._registrations.wait, f"this address may register {self._settings.registrations} an hour")
        said = request.json()
        if said is None:
            return failure("invalid_client_metadata", "the body must be a JSON object")
        self._registrations.count(request.address, now)
        try:
            client, secret = clients.registered(said)
        except BadClient as exc:
            return failure(exc.error, str(exc))
        self._store.put("client", client.client_id, pack(client), now + _CLIENT, now)
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
        stored = unpack(self._store.get("client", client_id, now), Client)
        if stored is not None:
            return stored
        if not clients.names_document(client_id):
            raise BadClient("this client is not known here", "invalid_client")
        host, trusts = urlsplit(client_id).hostname or "", self._settings.trusts
        if trusts is not None and not trusts(host):
            raise BadClient("clients of this host are not accepted here", "invalid_client")
        if self._fetches.full(address, now):
            raise Refused(_slow(self._fetches.wait))
        self._fetches.count(address, now)
        answer = yield Stranger(client_id)
        client = clients.described(client_id, answer)
        self._store.put("client", client_id, pack(client), now + clients.kept_for(answer.headers), now)
        return client

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
        resource, scopes = self._resource(fields), self._scopes(fields)
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
        )
        key = secrets.token_urlsafe(24)
        self._store.put("asked", key, pack(asked), now + _PENDING, now)
        response = self._page(client, asked, key)
        return response.having(("set-cookie", f"{self._cookie}={browser}{self._cookie_rules}")) if fresh else response

    def _problem(self, fields: Mapping[str, str]) -> tuple[str, str] | None:
        if fields.get("response_type") != "code":
            return "unsupported_response_type", "response_type must be code"
        # Without PKCE a code can be stolen on its way. spec: security-considerations#authorization-code-protection
        if fields.get("code_challenge_method") != "S256" or not _CHALLENGE.fullmatch(fields.get("code_challenge", "")):
            return "invalid_request", "code_challenge with the method S256 is required"
        if self._resource(fields) is None:
            return "invalid_target", "resource must name a server this one issues tokens for"
        if fields.get("prompt") == "none":
            return "interaction_required", "a user has to agree"
        return None

    def _resource(self, fields: Mapping[str, str]) -> str | None:
        """What the tokens will be for: exactly what was asked, if it is served here. RFC 8707"""
        asked, known = fields.get("resource"), self._settings.resources
        if asked is None:
            return known[0] if len(known) == 1 else None
        if known:
            return next((one for one in known if one.rstrip("/") == asked.rstrip("/")), None)
        parts = urlsplit(asked)
        local = f"{parts.scheme}://{parts.netloc}" == self._origin and not parts.fragment and parts.username is None
        return asked if local else None

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
            action=self._at("/consent"),
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
        asked = unpack(self._store.get("asked", key, now), Asked)
        if asked is None:
            return _trouble("This request is over", "Start again from the application.")
        if not self._by_its_browser(request, asked.browser) or not same(fields.get("csrf", ""), asked.csrf):
            return _trouble("This was not asked by this browser", "Start again from the application.", status=403)
        if not self._from_here(request):
            return _trouble("This came from another page", "Start again from the application.", status=403)
        if fields.get("decision") != "allow":
            self._store.take("asked", key, now)
            said = {"error": "access_denied", "error_description": "the user said no", "state": asked.state}
            return redirect(asked.redirect_uri, said | {"iss": self._settings.issuer})
        if self._upstream is not None:
            return (yield from self._leave(asked, key, now))
        subject = self._settings.user
        if self._settings.passwords:
            name = fields.get("username", "")
            subject = yield from self._signed_in(name, fields.get("password", ""), request.address, now)
            if subject is None:
                client = yield from self._client(asked.client_id, request.address, now)
                return self._page(client, asked, key, "That name and password do not belong together.")
        if subject is None or self._store.take("asked", key, now) is None:
            return _trouble("This request is over", "Start again from the application.")
        return self._granted(asked, subject, now)

    def _by_its_browser(self, request: Request, browser: str) -> bool:
        cookie = request.cookie(self._cookie)
        return cookie is not None and same(mark(cookie), browser)

    def _from_here(self, request: Request) -> bool:
        """A page without referrer says `null` for its origin, also to its own server; another's name is another's."""
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
        return origin in (None, "null", self._origin) and site in (None, "same-origin")

    def _signed_in(self, name: str, password: str, address: str, now: float) -> Flow[str | None]:
        name = name[:128]
        here = f"user {name} {address}"
        if self._failures.full(here, now) or self._attacks.full(name, now):
            raise Refused(_trouble("Too many attempts", "Wait a minute, then try again.", status=429))
        subject: str | None = yield SignIn(name, password)
        if subject is None:
            self._failures.count(here, now)
            self._attacks.count(name, now)
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
        if self._store.take("asked", key, now) is None:
            return _trouble("This request is over", "Start again from the application.")
        verifier, challenge = proofs.challenge_pair()
        state = secrets.token_urlsafe(24)
        try:
            place = yield from self._upstream.leave(self._at("/callback"), state, challenge)
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
            subject, claims, token = yield from self._upstream.arrive(fields, self._at("/callback"), trip.verifier)
        except LoginFailed as exc:
            self._tell_trouble(exc)
            said = {"error": "access_denied", "error_description": str(exc), "state": asked.state}
            return redirect(asked.redirect_uri, said | {"iss": self._settings.issuer})
        family = secrets.token_urlsafe(16)
        sealed = self._vault.seal(token, family)
        return self._granted(asked, subject, now, family=family, claims=claims, upstream=sealed)

    def upstream_token(self, family: str) -> Flow[str | None]:
        """The provider's own token for a grant, fresh; for the server's use, never for a client's."""
        now: float = yield Now()
        grant = self._issuing.living(family, now)
        if grant is None or grant.upstream is None or self._upstream is None:
            return None
        token = unpack(self._vault.open(grant.upstream, family), Token)
        if token is None or token.fresh(now):
            return None if token is None else token.access_token
        try:
            fresh = yield from self._upstream.renew(token)
        except LoginFailed as exc:
            self._tell_trouble(exc)
            fresh = None
        if fresh is None:
            return None
        sealed = self._vault.seal(fresh, family)
        self._issuing.keep(replace(grant, upstream=sealed), now + self._issuing.family_time, now)
        return fresh.access_token

    def _tell_trouble(self, exc: LoginFailed) -> None:
        """What users are not told: what the provider said of this server. What it says of a user is no trouble."""
        if exc.__cause__ is not None:
            self._warn(f"{exc}: {exc.__cause__}")

    # Tokens

    def _token(self, request: Request) -> Flow[Response]:
        now: float = yield Now()
        fields = request.fields
        if fields is None:
            return failure("invalid_request", "the body must be a form without repeated fields")
        here = f"client {(claimed(request, fields) or '')[:_LONGEST]} {request.address}"
        if self._failures.full(here, now):
            return _slow(self._failures.wait)
        try:
            client = yield from self._proving.client(request, fields, now)
            jkt = self._proved(request, now)
            match fields.get("grant_type"):
                case "authorization_code":
                    return document(self._by_code(client, fields, jkt, now))
                case "refresh_token":
                    return document(self._by_refresh(client, fields, jkt, now))
                case "client_credentials" if _acts(client):
                    return document(self._by_itself(client, fields, jkt, now))
                case "client_credentials":
                    raise refused("unauthorized_client", "only a program that is known here gets tokens for itself")
                case _:
                    return failure("unsupported_grant_type", f"grant_type must be one of {', '.join(clients.GRANTS)}")
        except Refused:
            self._failures.count(here, now)
            raise

    def _proved(self, request: Request, now: float) -> str | None:
        """The key the tokens are to be bound to, if the client shows one. RFC 9449, section 5"""
        proof = request.headers.get("dpop")
        if proof is None:
            return None
        try:
            return self._possession.check(proof, method="POST", url=self._at("/token"), token=None, now=now)
        except (Rejected, Unavailable) as exc:
            raise refused("invalid_dpop_proof", str(exc)) from None

    def _by_code(self, client: Client, fields: Mapping[str, str], jkt: str | None, now: float) -> dict[str, Any]:
        code = self._issuing.redeem(fields.get("code", ""), now)
        if code is None or code.grant.client_id != client.client_id:
            raise refused("invalid_grant", "the code is not good, or not any more")
        verifier = fields.get("code_verifier", "")
        if not _VERIFIER.fullmatch(verifier) or not same(proofs.digest(verifier), code.challenge):
            raise refused("invalid_grant", "the code_verifier does not belong to the code")
        if fields.get("redirect_uri", code.redirect_uri) != code.redirect_uri:
            raise refused("invalid_grant", "the redirect_uri is not the one of the code")
        self._check_resource(fields, code.grant.resource)
        grant = replace(code.grant, jkt=jkt)
        self._use(client, now)
        return self._issuing.tokens(grant, now, refreshable="refresh_token" in client.grant_types)

    def _by_refresh(self, client: Client, fields: Mapping[str, str], jkt: str | None, now: float) -> dict[str, Any]:
        text = fields.get("refresh_token", "")
        known = self._issuing.known(text, now)
        if known is not None and known.client_id != client.client_id:
            raise refused("invalid_grant", "the refresh token is another client's")
        if known is not None and known.jkt is not None and known.jkt != jkt:
            raise refused("invalid_grant", "the refresh token is bound to a key, of which there is no proof")
        if known is not None:
            self._check_resource(fields, known.resource)
            wanted = tuple(dict.fromkeys(fields["scope"].split())) if "scope" in fields else None
            if wanted is not None and not set(wanted) <= set(known.scopes):
                raise refused("invalid_scope", "more is asked for than was granted")
        else:
            wanted = None
        grant = self._issuing.refresh(text, now)
        if grant is None:
            raise refused("invalid_grant", "the refresh token is not good, or not any more")
        current = self._issuing.living(grant.family, now) or grant
        self._use(client, now)
        return self._issuing.tokens(current, now, refreshable=True, scopes=wanted)

    def _by_itself(self, client: Client, fields: Mapping[str, str], jkt: str | None, now: float) -> dict[str, Any]:
        """Tokens of a program that acts for no user; of what it asks for, what it may have. RFC 6749, section 4.4"""
        resource = self._resource(fields)
        if resource is None:
            raise refused("invalid_target", "resource must name a server this one issues tokens for")
        wanted = fields["scope"].split() if "scope" in fields else client.scopes
        # Without a subject: a program's id may be the name of a user. RFC 9068, section 5
        grant = Grant(
            family=secrets.token_urlsafe(16),
            client_id=client.client_id,
            subject="",
            resource=resource,
            scopes=tuple(one for one in dict.fromkeys(wanted) if one in client.scopes),
            jkt=jkt,
        )
        return self._issuing.tokens(grant, now, refreshable=False)

    def _check_resource(self, fields: Mapping[str, str], granted: str) -> None:
        if fields.get("resource", granted).rstrip("/") != granted.rstrip("/"):
            raise refused("invalid_target", "the resource is not the one that was granted")

    def _use(self, client: Client, now: float) -> None:
        if client.client_id not in self._known and not client.by_document:
            self._store.put("client", client.client_id, pack(client), now + _CLIENT, now)

    def _revoke(self, request: Request) -> Flow[Response]:
        """RFC 7009: whatever is told, the answer is the same."""
        now: float = yield Now()
        fields = request.fields or {}
        client = yield from self._proving.client(request, fields, now)
        token = fields.get("token", "")
        found = self._issuing.known(token, now)
        claims = None if found is not None else self._issuing.claims(token, now)
        if found is not None and found.client_id == client.client_id:
            self._issuing.end(found.family, now)
        elif claims is not None and claims.get("client_id") == client.client_id:
            self._issuing.end(str(claims["sid"]), now)
        return Response(200, (("cache-control", "no-store"),))

    def _introspect(self, request: Request) -> Flow[Response]:
        """RFC 7662, for the resource servers that were named."""
        now: float = yield Now()
        name, secret = basic(request) or ("", "")
        known = self._settings.askers.get(name)
        if known is None or not same(secret, known):
            return failure("invalid_client", "who asks is not known", 401).having(("www-authenticate", "Basic"))
        claims = self._issuing.claims((request.fields or {}).get("token", ""), now)
        return document({"active": False} if claims is None else claims | {"active": True})


def _turned_away(fields: Mapping[str, str]) -> LoginFailed:
    turned = LoginFailed("the provider did not log the user in")
    if fields["error"] != "access_denied":
        turned.__cause__ = LoginFailed(f"{clip(fields['error'], 64)}, {clip(fields.get('error_description', ''), 200)}")
    return turned


def _slow(seconds: int, words: str = "too many requests") -> Response:
    return failure("slow_down", words, 429).having(("retry-after", str(seconds)))


def _trouble(title: str, *words: str, status: int = 400) -> Response:
    return page(pages.trouble(title, words), status)


def known_client(
    client_id: str,
    *,
    redirect_uris: Sequence[str] = (),
    client_name: str = "",
    client_secret: str | None = None,
    keys: Any = None,
    scopes: str | Sequence[str] = (),
) -> Client:
    """A client written down beforehand; with a secret, or with its public keys: a JWK set or PEM texts.

    Without redirect_uris it is a program, which acts for itself and not for users, with these scopes.
    """
    if not redirect_uris and client_secret is None and keys is None:
        raise ValueError("a client has redirect_uris=; a program, which has none, client_secret= or keys=")
    if redirect_uris and scopes:
        raise ValueError("scopes= are those of a program, which has no redirect_uris=: users decide on all others")
    if client_secret is not None and keys is not None:
        raise ValueError("a client proves who it is by client_secret= or by keys=, not by both")
    return Client(
        client_id=client_id,
        client_name=client_name or client_id,
        redirect_uris=tuple(clients.check_redirect(one) for one in redirect_uris),
        method="private_key_jwt" if keys is not None else "none" if client_secret is None else "client_secret_basic",
        secret_mark=None if client_secret is None else mark(client_secret),
        jwks=None if keys is None else {"keys": [key.jwk for key in signing.given(keys)]},
        grant_types=clients.GRANTS if redirect_uris else (PROGRAM,),
        scopes=checked_scopes(words(scopes)),
    )


def _acts(client: Client) -> bool:
    """Whether a client gets tokens for itself."""
    return PROGRAM in client.grant_types
