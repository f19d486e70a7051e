"""Verifiers turn a token into a principal: by its signature, by introspection, or from a list for tests.

As flows: they yield what is to be fetched and are sent the answer; they read no clock and open no connection. Whatever
cannot be checked is refused.
"""

import hashlib
import re
from collections.abc import Awaitable, Collection, Generator, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from dovetail.errors import LoginFailed
from dovetail.oauth.flow import AcquireLock, Await, Flow, Now, build_basic_auth, fetch, post_form
from dovetail.oauth.guard import keys as signing
from dovetail.oauth.guard.claims import TokenRejected, VerificationUnavailable, build_principal, check_claims
from dovetail.oauth.guard.keys import ASYMMETRIC_ALGORITHMS, PublicKeys
from dovetail.oauth.metadata import fetch_server_metadata, is_secure_url
from dovetail.protocol.principal import Principal

TOKEN_PATTERN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*")  # RFC 6750, section 2.1
SCOPE_CLAIMS: Final = ("scope", "scp")

_ACCESS_TOKEN_TYPES: Final = ("", "jwt", "at+jwt", "application/at+jwt")  # RFC 9068, and what came before it
_KEY_FETCH_INTERVAL_S: Final = 30.0  # seconds between two looks for a key that is not there
_KEY_REFRESH_INTERVAL_S: Final = 600.0  # keys are looked at again after
_KEY_TTL_S: Final = 3600.0  # and not used any more when that failed for
_MAX_CACHED_TOKENS: Final = 1024  # tokens found good
_TOKEN_CACHE_TTL_S: Final = 60.0
_INACTIVE_TOKEN_TTL_S: Final = 5.0  # a token that is not active hardly becomes so


class TokenVerifier(Protocol):
    """Checks access tokens for a `Guard`. In your own class, write `async def verify(self, token, resource)`.

    It returns a `Principal`, or None to reject the token.
    """

    @property
    def issuer(self) -> str | None:
        """URL of the authorization server that issues the tokens. None if clients cannot get tokens by a login."""
        ...

    def verify(self, token: str, resource: Collection[str]) -> Flow[Principal] | Awaitable[Principal | None]:
        """Return the caller that the token is for. `resource` is the URL of this server."""
        ...


class BuiltInVerifier:
    """What a guard asks of our own verifiers only."""

    def _may_accept(self, token: str) -> bool:
        """Return whether a token looks like one of this verifier."""
        return True

    def _is_local(self) -> bool:
        """Return whether other processes would not know its tokens."""
        return False


class JWTVerifier(BuiltInVerifier):
    """Accepts JWTs of one issuer and checks them with its public keys.

    issuer: the `iss` claim of the tokens. The keys are found through the issuer's metadata by default.
    audience: the accepted `aud` claims. Defaults to the server's own URL.
    jwks_uri: URL of the keys.
    public_keys: the keys themselves: a JWK set or PEM texts.
    algorithms: the accepted signature algorithms. Shared secrets are never accepted.
    """

    def __init__(
        self,
        *,
        issuer: str,
        audience: str | Sequence[str] | None = None,
        jwks_uri: str | None = None,
        public_keys: Mapping[str, Any] | str | Sequence[Mapping[str, Any] | str] | None = None,
        algorithms: Sequence[str] = ASYMMETRIC_ALGORITHMS,
        scope_claims: Sequence[str] = SCOPE_CLAIMS,
        leeway: float = 30.0,
    ) -> None:
        if not isinstance(issuer, str) or not issuer:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError("a JWTVerifier needs the issuer of its tokens")
        if jwks_uri is None and public_keys is None and not is_secure_url(issuer):
            raise ValueError(
                f"issuer must be an https URL, as it stands in the tokens, not {issuer!r}: its keys are found there, "
                "unless you pass jwks_uri= or public_keys="
            )
        if jwks_uri is not None and not is_secure_url(jwks_uri):
            raise ValueError("jwks_uri must be https: who changes the keys can create tokens")
        self.issuer = issuer
        self._audience = as_tuple(audience)
        self._jwks_url = jwks_uri
        self._fixed_keys = None if public_keys is None else signing.load_keys(public_keys)
        self._algorithms = signing.check_algorithms(algorithms)
        self._scope_claims = as_tuple(scope_claims) or SCOPE_CLAIMS
        self._leeway = leeway
        self._fetched_keys: PublicKeys = []
        self._fetched_at: float | None = None
        self._fetch_tried_at: float | None = None
        self._fetch_failure: str | None = None  # why the keys were not found
        self._verified_tokens: dict[bytes, tuple[float, Principal]] = {}

    def _may_accept(self, token: str) -> bool:
        return signing.has_issuer(token, self.issuer)

    def verify(self, token: str, resource: Collection[str]) -> Flow[Principal]:
        """Return the caller that the token is for."""
        now: float = yield Now()
        audience = self._audience or tuple(resource)
        cache_key = hashlib.sha256("\n".join((token, *audience)).encode()).digest()
        cached = self._verified_tokens.get(cache_key)
        if cached is not None and now < cached[0]:
            return cached[1]
        header = signing.read_header(token)
        if str(header.get("typ", "")).lower() not in _ACCESS_TOKEN_TYPES:
            raise TokenRejected("the token is not an access token")
        keys = yield from self._select_keys(header, now)
        claims = signing.verify_signature(token, keys, header["alg"])
        check_claims(claims, issuer=self.issuer, audience=audience, now=now, leeway=self._leeway)
        expires_at = float(claims["exp"]) + self._leeway
        principal = build_principal(claims, self.issuer, self._scope_claims, expires_at)
        if len(self._verified_tokens) >= _MAX_CACHED_TOKENS:
            self._verified_tokens.clear()
        self._verified_tokens[cache_key] = (min(now + _TOKEN_CACHE_TTL_S, expires_at), principal)
        return principal

    def _select_keys(self, header: Mapping[str, Any], now: float) -> Flow[PublicKeys]:
        if self._fixed_keys is not None:
            return _require_keys(signing.select_keys(self._fixed_keys, header, self._algorithms))
        keys = signing.select_keys(self._usable_keys(now), header, self._algorithms)
        if keys and self._fetched_at is not None and now < self._fetched_at + _KEY_REFRESH_INTERVAL_S:
            return keys
        is_fetch_due = self._fetch_tried_at is None or now >= self._fetch_tried_at + _KEY_FETCH_INTERVAL_S
        if keys and not is_fetch_due:
            return keys  # somebody looks, or has looked just now: this key is good until then
        if keys:
            self._fetch_tried_at = now
        yield AcquireLock()
        if keys or self._fetch_tried_at is None or now >= self._fetch_tried_at + _KEY_FETCH_INTERVAL_S:
            self._fetch_tried_at = now
            yield from self._fetch_keys(now)
        keys = signing.select_keys(self._usable_keys(now), header, self._algorithms)
        if not keys and self._fetched_at != self._fetch_tried_at:
            raise VerificationUnavailable("the keys of the issuer cannot be fetched", self._fetch_failure)
        return _require_keys(keys)

    def _usable_keys(self, now: float) -> PublicKeys:
        return self._fetched_keys if self._fetched_at is not None and now < self._fetched_at + _KEY_TTL_S else []

    def _fetch_keys(self, now: float) -> Flow[None]:
        """Fetch the keys; what was known before stays, for a while, if that fails."""
        url = self._jwks_url or (yield from self._discover_jwks_uri())
        if url is None:
            return
        response = yield from fetch(url)
        try:
            self._fetched_keys = signing.parse_jwks((response.json() if response.status == 200 else None) or {})
        except ValueError:
            outcome = f"status {response.status}" if response.status else "nothing"
            self._fetch_failure = f"{url} answers with {outcome}, not with a JWK set"
            return
        self._fetched_at = now
        self._verified_tokens.clear()  # a key that is gone takes its tokens with it

    def _discover_jwks_uri(self) -> Flow[str | None]:
        try:
            server = yield from fetch_server_metadata(self.issuer)
        except LoginFailed as exc:
            self._fetch_failure = str(exc)
            return None
        url = server.jwks_uri if server is not None else None
        if url is not None and is_secure_url(url):
            return url
        self._fetch_failure = f"no metadata of {self.issuer} is found that says where its keys are"
        return None


class IntrospectionVerifier(BuiltInVerifier):
    """Asks the issuer about each token. RFC 7662

    A revoked token is refused at once. With `cache_ttl`, an answer is reused for that many seconds.
    """

    def __init__(
        self,
        *,
        introspection_endpoint: str,
        client_id: str,
        client_secret: str,
        issuer: str | None = None,
        audience: str | Sequence[str] | None = None,
        scope_claims: Sequence[str] = SCOPE_CLAIMS,
        cache_ttl: float = 0.0,
        leeway: float = 30.0,
    ) -> None:
        if not is_secure_url(introspection_endpoint):
            raise ValueError("introspection_endpoint must be https: tokens are sent there")
        self.issuer = issuer
        self._endpoint = introspection_endpoint
        self._credentials = build_basic_auth(client_id, client_secret)
        self._audience = as_tuple(audience)
        self._scope_claims = as_tuple(scope_claims) or SCOPE_CLAIMS
        self._cache_ttl = cache_ttl
        self._leeway = leeway
        self._verified_tokens: dict[bytes, tuple[float, Principal]] = {}
        self._inactive_tokens: dict[bytes, float] = {}

    def verify(self, token: str, resource: Collection[str]) -> Flow[Principal]:
        """Return the caller that the token is for."""
        now: float = yield Now()
        audience = self._audience or tuple(resource)
        cache_key = hashlib.sha256("\n".join((token, *audience)).encode()).digest()
        cached = self._verified_tokens.get(cache_key)
        if cached is not None and now < cached[0]:
            return cached[1]
        if now < self._inactive_tokens.get(cache_key, 0.0):
            raise TokenRejected("the token is not active")
        form = {"token": token, "token_type_hint": "access_token"}
        response = yield from post_form(self._endpoint, form, {"authorization": self._credentials})
        claims = response.json()
        if response.status != 200 or claims is None:
            raise VerificationUnavailable(
                "the issuer cannot be asked about the token", f"{self._endpoint} answers with status {response.status}"
            )
        if claims.get("active") is not True:
            if len(self._inactive_tokens) >= _MAX_CACHED_TOKENS:
                self._inactive_tokens.clear()
            self._inactive_tokens[cache_key] = now + _INACTIVE_TOKEN_TTL_S
            raise TokenRejected("the token is not active")
        # An issuer that says neither who nor until when has still said that the token is active now.
        checked_claims = {"exp": now + 1.0, **claims}
        check_claims(
            checked_claims,
            issuer=self.issuer if "iss" in claims else None,
            audience=audience,
            now=now,
            leeway=self._leeway,
        )
        expires_at = float(checked_claims["exp"]) + self._leeway
        issuer = self.issuer or self._endpoint
        principal = build_principal(claims, issuer, self._scope_claims, expires_at if "exp" in claims else None)
        if self._cache_ttl:
            if len(self._verified_tokens) >= _MAX_CACHED_TOKENS:
                self._verified_tokens.clear()
            self._verified_tokens[cache_key] = (min(now + self._cache_ttl, expires_at), principal)
        return principal


class StaticTokenVerifier(BuiltInVerifier):
    """Tokens written down beforehand, for tests and for a few programs of your own: token to principal, or its name."""

    issuer: str | None = None

    def __init__(self, tokens: Mapping[str, str | Principal]) -> None:
        # Looked up by digest: how long that takes says nothing about a token.
        self._principals = {
            _hash_token(_check_token(token)): _as_principal(principal)
            for token, principal in _check_mapping(tokens).items()
        }

    def _may_accept(self, token: str) -> bool:
        return _hash_token(token) in self._principals

    def verify(self, token: str, resource: Collection[str]) -> Flow[Principal]:
        """Return the caller that the token is for."""
        yield Now()
        principal = self._principals.get(_hash_token(token))
        if principal is None:
            raise TokenRejected("the token is not known")
        return principal


def select_verifiers(verifiers: Sequence[TokenVerifier], token: str) -> list[TokenVerifier]:
    """Return the verifiers that may accept a token."""
    candidates = [
        verifier
        for verifier in verifiers
        if not isinstance(verifier, BuiltInVerifier) or verifier._may_accept(token)  # pyright: ignore[reportPrivateUsage]
    ]
    if any(verifier.issuer is not None and signing.has_issuer(token, verifier.issuer) for verifier in candidates):
        # A token that names one of the issuers is not shown to other issuers.
        candidates = [
            verifier
            for verifier in candidates
            if (verifier.issuer is None and not isinstance(verifier, IntrospectionVerifier))
            or (verifier.issuer is not None and signing.has_issuer(token, verifier.issuer))
        ]
    return candidates


def run_verifier(verifier: TokenVerifier, token: str, resource: str) -> Flow[Principal]:
    """Return the caller that a verifier, ours or the author's, finds in a token."""
    result = verifier.verify(token, (resource,))
    principal = (yield from result) if isinstance(result, Generator) else (yield Await(result))
    if principal is None:
        raise TokenRejected("the token is not known")
    return principal


def is_local_verifier(verifier: TokenVerifier) -> bool:
    """Return whether other processes would not know the tokens of a verifier."""
    return isinstance(verifier, BuiltInVerifier) and verifier._is_local()  # pyright: ignore[reportPrivateUsage]


def as_tuple(values: str | Iterable[str] | None) -> tuple[str, ...]:
    """One text or many, as many; TypeError if they are none."""
    value: Any = () if values is None else values
    texts: tuple[Any, ...] = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(f"a text or a list of texts is meant here, not {values!r}")
    return texts


def _check_mapping(tokens: Any) -> Mapping[Any, Any]:
    if not isinstance(tokens, Mapping):
        raise TypeError("StaticTokenVerifier takes a table: {token: name or Principal(...)}")
    return tokens


def _check_token(token: Any) -> str:
    if not isinstance(token, str) or not TOKEN_PATTERN.fullmatch(token):
        raise ValueError("a static token must be one that can be shown: letters, digits and -._~+/, with = at its end")
    return token


def _as_principal(principal: Any) -> Principal:
    if not isinstance(principal, str):
        raise TypeError(f"a static token stands for a name or a Principal(...), not {type(principal).__name__}")
    return principal if isinstance(principal, Principal) else Principal(principal)


def _require_keys(keys: PublicKeys) -> PublicKeys:
    if not keys:
        raise TokenRejected("the token is signed with a key its issuer does not have")
    return keys


def _hash_token(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
