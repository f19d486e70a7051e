"""Authenticate a client at the token endpoint: as a public client, by its secret, or by a signed assertion.

A client must use the method that it registered. An assertion is valid only for this server, for a short time, and
only once. RFC 6749, section 2.3 and RFC 7523, section 3
"""

import contextlib
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

from dovetail.keys import build_key
from dovetail.oauth.authorization_server.clients import ANY_SECRET_METHOD, InvalidClient, get_document_ttl
from dovetail.oauth.authorization_server.responses import (
    Request,
    add_headers,
    error_response,
    hash_secret,
    is_same_secret,
    rate_limit_response,
)
from dovetail.oauth.authorization_server.store import MAX_ENTRIES, AuthorizationStore, ClientRecord, StoreFull
from dovetail.oauth.flow import FetchUntrusted, Flow, wait_for
from dovetail.oauth.guard import keys as signing
from dovetail.oauth.guard.claims import TokenRejected, check_claims, parse_timestamp
from dovetail.oauth.guard.keys import ASYMMETRIC_ALGORITHMS, PublicKeys
from dovetail.protocol.interfaces.http_types import HTTPResponse
from dovetail.protocol.rate_limiter import RateLimiter
from dovetail.wire.codec import encode
from dovetail.wire.raw_message import to_plain

JWT_BEARER_ASSERTION: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"

_LEEWAY_S: Final = 30.0
_MAX_ASSERTION_TTL_S: Final = 3600.0  # The lifetime of an assertion may be at most this many seconds.
# An assertion must be used within this many seconds after it was issued.
_MAX_ASSERTION_AGE_S: Final = 300.0
# A client or an address can use at most this many assertions within `_MAX_ASSERTION_AGE_S` seconds.
_MAX_ASSERTIONS: Final = MAX_ENTRIES // 20
_MAX_JTI_CHARS: Final = 256
_MAX_KEY_FETCHES_PER_MINUTE: Final = 5  # The maximum number of fetches for each key URL.


class OAuthError(Exception):
    """Ends a request with an OAuth error response."""

    def __init__(self, response: HTTPResponse) -> None:
        super().__init__(response.status_code)
        self.response = response


def create_oauth_error(error: str, description: str, status: int = 400) -> OAuthError:
    return OAuthError(error_response(error, description, status))


class ClientAuthenticator:
    """Authenticates clients at the token endpoint.

    `find_client` returns a client by its ID, or raises InvalidClient. `check_fetch_limit` raises an error if an address
    has caused too many fetches.
    """

    def __init__(
        self,
        issuer: str,
        endpoint: str,
        store: AuthorizationStore,
        find_client: Callable[[str | None, str, float], Any],
        check_fetch_limit: Callable[[str, float], None],
    ) -> None:
        self._audience = (issuer, endpoint)  # An assertion may be for the issuer or for the token endpoint.
        self._issuer = issuer
        self._store = store
        self._find_client = find_client
        self._check_fetch_limit = check_fetch_limit
        self._key_fetch_limiter = RateLimiter(_MAX_KEY_FETCHES_PER_MINUTE, 60.0)
        self._failed_fetch_limiter = RateLimiter(1, 60.0)
        self._assertion_limiter = RateLimiter(_MAX_ASSERTIONS, _MAX_ASSERTION_AGE_S)

    def authenticate(self, request: Request, fields: Mapping[str, str], now: float) -> Flow[ClientRecord]:
        """Return the client if it authenticates with the method that it registered.

        Raises:
            OAuthError: the client did not authenticate.
        """
        credentials, assertion = parse_basic_auth(request), fields.get("client_assertion")
        client_id = read_claimed_client_id(request, fields)
        named_client_id = fields.get("client_id", client_id)
        if (
            named_client_id != client_id
            or sum((credentials is not None, assertion is not None, "client_secret" in fields)) > 1
        ):
            raise create_oauth_error("invalid_request", "the client uses two authentication methods at once")
        try:
            client: ClientRecord = yield from self._find_client(client_id, request.address, now)
        except InvalidClient as exc:
            raise create_oauth_error("invalid_client", str(exc), 401) from None
        if assertion is not None:
            yield from self._check_assertion(client, assertion, request, fields, now)
            return client
        secret = credentials[1] if credentials is not None else fields.get("client_secret")
        if client.method == "none" and secret in (None, ""):
            return client
        method = "client_secret_basic" if credentials is not None else "client_secret_post"
        secret_hash = client.secret_mark
        if (
            client.method not in (method, ANY_SECRET_METHOD)
            or secret_hash is None
            or secret is None
            or not is_same_secret(hash_secret(secret), secret_hash)
        ):
            response = error_response("invalid_client", "the client did not authenticate", 401)
            raise OAuthError(response if credentials is None else add_headers(response, {"www-authenticate": "Basic"}))
        return client

    def _check_assertion(
        self, client: ClientRecord, assertion: str, request: Request, fields: Mapping[str, str], now: float
    ) -> Flow[None]:
        if fields.get("client_assertion_type") != JWT_BEARER_ASSERTION or client.method != "private_key_jwt":
            raise create_oauth_error(
                "invalid_client", "the client did not use the authentication method that it registered", 401
            )
        try:
            claims = yield from self._verify_assertion(client, assertion, request.address, now)
            check_claims(claims, issuer=client.client_id, audience=self._audience, now=now, leeway=_LEEWAY_S)
            yield from self._check_unused(client, claims, request.address, now)
        except TokenRejected as exc:
            raise create_oauth_error("invalid_client", f"invalid client assertion: {exc}", 401) from None

    def _verify_assertion(self, client: ClientRecord, assertion: str, address: str, now: float) -> Flow[dict[str, Any]]:
        """Return the claims of a client assertion. If the cached keys do not match, fetch the keys again."""
        header = signing.read_header(assertion)
        cached_keys = yield from self._load_keys(client, now)
        keys = signing.select_keys(cached_keys, header, ASYMMETRIC_ALGORITHMS)
        try:
            return signing.verify_signature(assertion, keys, header["alg"])
        except TokenRejected:
            if client.jwks_uri is None:
                raise
        fetched_keys = yield from self._fetch_keys(client, client.jwks_uri, address, now)
        return signing.verify_signature(
            assertion, signing.select_keys(fetched_keys, header, ASYMMETRIC_ALGORITHMS), header["alg"]
        )

    def _load_keys(self, client: ClientRecord, now: float) -> Flow[PublicKeys]:
        stored: bytes | None = None
        if client.jwks_uri is not None:
            stored = yield from wait_for(self._store.get("client keys", client.client_id, now))
        return signing.parse_jwks(client.jwks or {"keys": []} if stored is None else to_plain(stored))

    def _fetch_keys(self, client: ClientRecord, url: str, address: str, now: float) -> Flow[PublicKeys]:
        """Fetch the public keys of a client. The number of fetches is limited, because a client can choose any URL."""
        if self._key_fetch_limiter.compute_wait(url, now) or self._failed_fetch_limiter.compute_wait(url, now):
            raise TokenRejected("the client's keys were fetched too often")
        self._check_fetch_limit(address, now)
        self._key_fetch_limiter.take(url, now)
        response = yield FetchUntrusted(url)
        document = response.json() if response.status_code == 200 else None
        try:
            keys = signing.parse_jwks(document or {})
        except ValueError:
            self._failed_fetch_limiter.take(url, now)
            raise TokenRejected("the client's keys cannot be fetched") from None
        expires_at = now + get_document_ttl(response.headers)
        # If the store is full, the keys are not stored. The next request then fetches the keys again.
        with contextlib.suppress(StoreFull):
            value = encode({"keys": [key.jwk for key in keys]})
            yield from wait_for(self._store.put("client keys", client.client_id, value, expires_at, now))
        return keys

    def _take_share(self, client: ClientRecord, address: str, now: float) -> None:
        """Count a client's assertion against the rate limits.

        Raise OAuthError if the client or the address has sent too many assertions.
        """
        keys = (f"client {client.client_id}", f"address {address}")
        if wait_s := max(self._assertion_limiter.compute_wait(key, now) for key in keys):
            raise OAuthError(rate_limit_response(wait_s))
        for key in keys:
            self._assertion_limiter.take(key, now)

    def _check_unused(self, client: ClientRecord, claims: Mapping[str, Any], address: str, now: float) -> Flow[None]:
        # An assertion must have only one audience. If it had two, one of them could use the assertion at the other.
        if claims.get("sub") != client.client_id or (isinstance(claims["aud"], list) and len(claims["aud"]) != 1):
            raise TokenRejected(
                "the assertion's issuer and subject must be the client ID, and its only audience must be this server"
            )
        assertion_id = claims.get("jti")
        if not isinstance(assertion_id, str) or not 0 < len(assertion_id) <= _MAX_JTI_CHARS:
            raise TokenRejected("the assertion has no valid `jti` claim")
        expires_at = float(claims["exp"]) + _LEEWAY_S
        issued_at = parse_timestamp(claims, "iat")
        max_ttl_s = _MAX_ASSERTION_AGE_S if issued_at is None else _MAX_ASSERTION_TTL_S
        if expires_at > now + max_ttl_s + _LEEWAY_S:
            raise TokenRejected("the lifetime of the assertion is too long")
        if issued_at is not None:
            expires_at = min(expires_at, issued_at + _MAX_ASSERTION_AGE_S + _LEEWAY_S)
            if expires_at <= now or issued_at > now + _LEEWAY_S:
                raise TokenRejected("the assertion was issued too long ago, or in the future")
        self._take_share(client, address, now)
        assertion_hash = hash_secret(build_key(client.client_id, assertion_id))
        # An assertion without an issue time may be used until it expires.
        since = (expires_at - _MAX_ASSERTION_AGE_S if issued_at is None else issued_at) - _LEEWAY_S
        if not (yield from wait_for(self._store.use_once("assertion", assertion_hash, since, expires_at, now))):
            raise TokenRejected("the assertion was already used")


def parse_basic_auth(request: Request) -> tuple[str, str] | None:
    """Return the client ID and the secret from a Basic Authorization header."""
    scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, _, secret = b64decode(encoded.strip(), validate=True).decode("utf-8").partition(":")
    except ValueError:
        return "", ""
    return unquote(name), unquote(secret)


def read_claimed_client_id(request: Request, fields: Mapping[str, str]) -> str | None:
    """Return the client ID in a request. The ID is not verified yet."""
    credentials = parse_basic_auth(request)
    if credentials is not None:
        return credentials[0]
    if "client_id" in fields or "client_assertion" not in fields:
        return fields.get("client_id")
    try:
        subject = signing.read_unverified_claims(fields["client_assertion"]).get("sub")
    except TokenRejected:
        return None
    return subject if isinstance(subject, str) else None
