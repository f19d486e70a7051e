"""Verifiers find the principal of a token: by its signature, by introspection, or in a fixed list.

Verifiers are flows. They yield requests and receive responses, but open no connections. A token that cannot be
checked is rejected.
"""

import hashlib
import re
from collections.abc import Awaitable, Collection, Generator, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from dovetail.errors import LoginFailed
from dovetail.oauth.flow import AcquireLock, Await, Flow, Now, build_basic_auth, fetch, post_form
from dovetail.oauth.guard import keys as signing
from dovetail.oauth.guard.claims import TokenRejected, VerificationUnavailable, build_principal, check_claims
from dovetail.oauth.guard.keys import ASYMMETRIC_ALGORITHMS, PublicKeys
from dovetail.oauth.metadata import fetch_server_metadata, is_secure_url
from dovetail.protocol.principal import Principal, as_principal, check_issuer

T = TypeVar("T")

TOKEN_PATTERN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*")  # A bearer token has this syntax. RFC 6750, section 2.1
SCOPE_CLAIMS: Final = ("scope", "scp")

# RFC 9068 defines `at+jwt` and `application/at+jwt`. Older issuers use `jwt` or no type.
_ACCESS_TOKEN_TYPES: Final = ("", "jwt", "at+jwt", "application/at+jwt")
# Tokens with unknown key IDs cause at most one key fetch in this many seconds.
_KEY_FETCH_INTERVAL_S: Final = 30.0
_KEY_REFRESH_INTERVAL_S: Final = 600.0  # Keys are fetched again after this many seconds.
_KEY_TTL_S: Final = 3600.0  # Keys are used for at most this many seconds after they were fetched.
_MAX_CACHED_TOKENS: Final = 1024
_TOKEN_CACHE_TTL_S: Final = 60.0
_INACTIVE_TOKEN_TTL_S: Final = 5.0  # The result for an inactive token is cached for this many seconds.


class _TokenCache(Generic[T]):
    """A cache for the results of token checks. When the cache is full, all entries are removed."""

    def __init__(self) -> None:
        self._entries: dict[bytes, tuple[float, T]] = {}

    def get(self, key: bytes, now: float) -> T | None:
        entry = self._entries.get(key)
        return entry[1] if entry is not None and now < entry[0] else None

    def put(self, key: bytes, value: T, expires_at: float) -> None:
        if len(self._entries) >= _MAX_CACHED_TOKENS:
            self._entries.clear()
        self._entries[key] = expires_at, value

    def clear(self) -> None:
        self._entries.clear()


def _build_cache_key(token: str, audience: Sequence[str]) -> bytes:
    """Return a hash of the token, so that the cache contains no tokens."""
    return hashlib.sha256("\n".join((token, *audience)).encode()).digest()


class TokenVerifier(Protocol):
    """Checks access tokens for a `Guard`. A custom verifier needs `async def verify(self, token, resource)`.

    `verify` returns a `Principal`, or None to reject the token.
    """

    @property
    def issuer(self) -> str | None:
        """The URL of the authorization server where clients log in, or None if there is no such server."""
        ...

    def verify(self, token: str, resource: Collection[str]) -> Flow[Principal] | Awaitable[Principal | None]:
        """Return the caller that the token identifies. `resource` is the URL of this server."""
        ...


class BuiltInVerifier:
    def _may_accept(self, token: str) -> bool:
        return True

    def _is_local(self) -> bool:
        return False


class JWTVerifier(BuiltInVerifier):
    """Accepts JWTs from one issuer, and verifies them with the issuer's public keys.

    Args:
        issuer: The `iss` claim of the tokens. By default, the URL of the keys is in the issuer's metadata.
        audience: The accepted `aud` claims. Defaults to the URL of this server.
        jwks_uri: The URL of the issuer's public keys.
        public_keys: The public keys of the issuer, as a JWK set or PEM strings.
        algorithms: The accepted signature algorithms. Shared secrets are never accepted.
        scope_claims: The claims that contain scopes. The scopes of all these claims are combined.
        leeway: The number of seconds by which the clocks of the issuer and this server may differ.
    """

    def __init__(
        self,
        *,
        issuer: str,
        audience: str | Sequence[str] | None = None,
        jwks_uri: str | None = None,
        public_keys: Mapping[str, object] | str | Sequence[Mapping[str, object] | str] | None = None,
        algorithms: Sequence[str] = ASYMMETRIC_ALGORITHMS,
        scope_claims: Sequence[str] = SCOPE_CLAIMS,
        leeway: float = 30.0,
    ) -> None:
        if not isinstance(issuer, str) or not issuer:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError("JWTVerifier requires the issuer of the tokens")
        check_issuer(issuer)
        if jwks_uri is None and public_keys is None and not is_secure_url(issuer):
            raise ValueError(
                f"issuer must be an https URL, exactly as in the tokens, not {issuer!r}. If the issuer does not "
                "publish its keys, pass jwks_uri= or public_keys="
            )
        if jwks_uri is not None and not is_secure_url(jwks_uri):
            raise ValueError("jwks_uri must be https, because an attacker who replaces the keys could create tokens")
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
        self._fetch_failure: str | None = None  # The error of the last fetch of the keys.
        self._verified_tokens = _TokenCache[Principal]()

    def _may_accept(self, token: str) -> bool:
        return signing.has_issuer(token, self.issuer)

    def verify(self, token: str, resource: Collection[str]) -> Flow[Principal]:
        """Return the caller that the token identifies."""
        now: float = yield Now()
        audience = self._audience or tuple(resource)
        cache_key = _build_cache_key(token, audience)
        principal = self._verified_tokens.get(cache_key, now)
        if principal is not None:
            return principal
        header = signing.read_header(token)
        if str(header.get("typ", "")).lower() not in _ACCESS_TOKEN_TYPES:
            raise TokenRejected("the token is not an access token")
        keys = yield from self._select_keys(header, now)
        claims = signing.verify_signature(token, keys, header["alg"])
        check_claims(claims, issuer=self.issuer, audience=audience, now=now, leeway=self._leeway)
        expires_at = float(claims["exp"]) + self._leeway
        principal = build_principal(claims, self.issuer, self._scope_claims, expires_at)
        self._verified_tokens.put(cache_key, principal, min(now + _TOKEN_CACHE_TTL_S, expires_at))
        return principal

    def _select_keys(self, header: Mapping[str, Any], now: float) -> Flow[PublicKeys]:
        if self._fixed_keys is not None:
            return _require_keys(signing.select_keys(self._fixed_keys, header, self._algorithms))
        self._handle_clock_change(now)
        keys = signing.select_keys(self._usable_keys(now), header, self._algorithms)
        if keys and self._fetched_at is not None and now < self._fetched_at + _KEY_REFRESH_INTERVAL_S:
            return keys
        is_fetch_due = self._fetch_tried_at is None or now >= self._fetch_tried_at + _KEY_FETCH_INTERVAL_S
        if keys and not is_fetch_due:
            # Another request has fetched the keys in the meantime, or is fetching them now.
            return keys
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

    def _handle_clock_change(self, now: float) -> None:
        """If the clock was set back, allow the keys to be fetched again."""
        if self._fetch_tried_at is not None and self._fetch_tried_at > now + _KEY_FETCH_INTERVAL_S:
            self._fetch_tried_at = None
        if self._fetched_at is not None and self._fetched_at > now + _KEY_FETCH_INTERVAL_S:
            self._fetched_at = now - _KEY_REFRESH_INTERVAL_S

    def _usable_keys(self, now: float) -> PublicKeys:
        return self._fetched_keys if self._fetched_at is not None and now < self._fetched_at + _KEY_TTL_S else []

    def _fetch_keys(self, now: float) -> Flow[None]:
        """Fetch the keys of the issuer. If the fetch fails, keep the keys of the last fetch."""
        url = self._jwks_url or (yield from self._discover_jwks_uri())
        if url is None:
            return
        response = yield from fetch(url)
        try:
            self._fetched_keys = signing.parse_jwks((response.json() if response.status_code == 200 else None) or {})
        except ValueError:
            outcome = f"status {response.status_code}" if response.status_code else "nothing"
            self._fetch_failure = f"{url} responds with {outcome}, not with a JWK set"
            return
        self._fetched_at = now
        # Tokens that were signed with a removed key must not stay valid.
        self._verified_tokens.clear()

    def _discover_jwks_uri(self) -> Flow[str | None]:
        try:
            server = yield from fetch_server_metadata(self.issuer)
        except LoginFailed as exc:
            self._fetch_failure = str(exc)
            return None
        url = server.jwks_uri if server is not None else None
        if url is not None and is_secure_url(url):
            return url
        self._fetch_failure = f"found no metadata of {self.issuer} that contains the URL of its keys"
        return None


class IntrospectionVerifier(BuiltInVerifier):
    """Asks the issuer whether a token is active (RFC 7662). Revoked tokens are rejected immediately.

    Args:
        introspection_endpoint: The URL of the introspection endpoint.
        client_id: The ID of this server at the issuer.
        client_secret: The secret of this server at the issuer.
        issuer: The issuer that tokens must have. If None, any issuer is accepted.
        audience: The accepted audiences. Defaults to the URL of this server.
        scope_claims: The claims that contain scopes. The scopes of all these claims are combined.
        cache_ttl: Seconds for which a response of the issuer is reused. If 0, the verifier asks the issuer every time.
        leeway: The number of seconds by which the clocks of the issuer and this server may differ.
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
            raise ValueError("introspection_endpoint must be https, because tokens are sent to it")
        check_issuer(introspection_endpoint if issuer is None else issuer)
        self.issuer = issuer
        self._endpoint = introspection_endpoint
        self._credentials = build_basic_auth(client_id, client_secret)
        self._audience = as_tuple(audience)
        self._scope_claims = as_tuple(scope_claims) or SCOPE_CLAIMS
        self._cache_ttl = cache_ttl
        self._leeway = leeway
        self._verified_tokens = _TokenCache[Principal]()
        self._inactive_tokens = _TokenCache[bool]()

    def verify(self, token: str, resource: Collection[str]) -> Flow[Principal]:
        """Return the caller that the token identifies."""
        now: float = yield Now()
        audience = self._audience or tuple(resource)
        cache_key = _build_cache_key(token, audience)
        principal = self._verified_tokens.get(cache_key, now)
        if principal is not None:
            return principal
        if self._inactive_tokens.get(cache_key, now):
            raise TokenRejected("the token is not active")
        form = {"token": token, "token_type_hint": "access_token"}
        response = yield from post_form(self._endpoint, form, {"authorization": self._credentials})
        claims = response.json()
        if response.status_code != 200 or claims is None:
            raise VerificationUnavailable(
                "the issuer cannot check the token at the moment",
                f"{self._endpoint} responds with status {response.status_code}",
            )
        if claims.get("active") is not True:
            self._inactive_tokens.put(cache_key, True, now + _INACTIVE_TOKEN_TTL_S)
            raise TokenRejected("the token is not active")
        # The issuer says that the token is active, so an expiry time is not required.
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
            self._verified_tokens.put(cache_key, principal, min(now + self._cache_ttl, expires_at))
        return principal


class StaticTokenVerifier(BuiltInVerifier):
    """Accepts a fixed list of tokens. Use it for tests or for a small number of programs.

    Args:
        tokens: A dict from each token to its principal, or to the name of the principal.
    """

    issuer: str | None = None

    def __init__(self, tokens: Mapping[str, str | Principal]) -> None:
        # The keys of the dict are hashes, because the time of a lookup could reveal parts of a token.
        self._principals = {
            _hash_token(_check_token(token)): as_principal(principal)
            for token, principal in _check_mapping(tokens).items()
        }

    def _may_accept(self, token: str) -> bool:
        return _hash_token(token) in self._principals

    def verify(self, token: str, resource: Collection[str]) -> Flow[Principal]:
        """Return the caller that the token identifies."""
        yield Now()
        principal = self._principals.get(_hash_token(token))
        if principal is None:
            raise TokenRejected("unknown token")
        return principal


def select_verifiers(verifiers: Sequence[TokenVerifier], token: str) -> list[TokenVerifier]:
    """Return the verifiers that may accept a token."""
    candidates = [
        verifier
        for verifier in verifiers
        if not isinstance(verifier, BuiltInVerifier) or verifier._may_accept(token)  # pyright: ignore[reportPrivateUsage]
    ]
    if any(verifier.issuer is not None and signing.has_issuer(token, verifier.issuer) for verifier in candidates):
        # The token names a configured issuer, so it must not be sent to another issuer.
        candidates = [
            verifier
            for verifier in candidates
            if (verifier.issuer is None and not isinstance(verifier, IntrospectionVerifier))
            or (verifier.issuer is not None and signing.has_issuer(token, verifier.issuer))
        ]
    return candidates


def run_verifier(verifier: TokenVerifier, token: str, resource: str) -> Flow[Principal]:
    result = verifier.verify(token, (resource,))
    principal = (yield from result) if isinstance(result, Generator) else (yield Await(result))
    if principal is None:
        raise TokenRejected("unknown token")
    return principal


def is_local_verifier(verifier: TokenVerifier) -> bool:
    """Return whether a verifier accepts tokens that are stored in the memory of this process."""
    return isinstance(verifier, BuiltInVerifier) and verifier._is_local()  # pyright: ignore[reportPrivateUsage]


def as_tuple(values: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return one or several strings as a tuple. Raise TypeError for other values."""
    value: Any = () if values is None else values
    texts: tuple[Any, ...] = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(f"expected a string or a list of strings, not {values!r}")
    return texts


def _check_mapping(tokens: Any) -> Mapping[Any, Any]:
    if not isinstance(tokens, Mapping):
        raise TypeError("StaticTokenVerifier requires a dict: {token: name or Principal(...)}")
    return tokens


def _check_token(token: Any) -> str:
    if not isinstance(token, str) or not TOKEN_PATTERN.fullmatch(token):
        raise ValueError("invalid static token: use letters, digits and -._~+/, with = only at the end")
    return token


def _require_keys(keys: PublicKeys) -> PublicKeys:
    if not keys:
        raise TokenRejected("the token is signed with an unknown key")
    return keys


def _hash_token(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
