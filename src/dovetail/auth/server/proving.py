"""How a client proves who it is at the token endpoint: not at all, by its secret, or by an assertion it signed.

Each in the one way it registered. An assertion is for this server alone, for a short while, and good once.
RFC 6749, section 2.3; RFC 7523, section 3
"""

import contextlib
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

from dovetail.auth import keys as signing
from dovetail.auth.claims import Rejected, check
from dovetail.auth.flow import Flow, Stranger
from dovetail.auth.keys import ASYMMETRIC, Keys
from dovetail.auth.server.clients import ANY_WAY, BadClient, kept_for
from dovetail.auth.server.store import Client, Full, Store
from dovetail.auth.server.throttle import Throttle
from dovetail.auth.server.web import Request, Response, failure, mark, same
from dovetail.wire.codec import encode
from dovetail.wire.incoming import plain

BY_ASSERTION: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"

_LEEWAY: Final = 30.0
_LONGEST_LIFE: Final = 3600.0  # seconds an assertion may be good for; it is remembered that long
_LONGEST_ID: Final = 256
_LOOKS: Final = 5  # in a minute


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


def refused(error: str, words: str, status: int = 400) -> Refused:
    """OAuth's way to say no."""
    return Refused(failure(error, words, status))


class Proving:
    """The proofs of the clients of one issuer.

    `find` gives a client by its id, or BadClient; `may_fetch` is Refused to an address for which too much was fetched.
    """

    def __init__(
        self,
        issuer: str,
        endpoint: str,
        store: Store,
        find: Callable[[str | None, str, float], Any],
        may_fetch: Callable[[str, float], None],
    ) -> None:
        self._audience = (issuer, endpoint)  # clients differ in which of the two they name
        self._issuer = issuer
        self._store = store
        self._find = find
        self._may_fetch = may_fetch
        self._looks = Throttle(_LOOKS, 60.0)  # at one address of keys
        self._in_vain = Throttle(1, 60.0)

    def client(self, request: Request, fields: Mapping[str, str], now: float) -> Flow[Client]:
        """The client that asks, if it proves to be it in the way it registered; Refused if not."""
        pair, assertion = basic(request), fields.get("client_assertion")
        client_id = claimed(request, fields)
        named = fields.get("client_id", client_id)
        if named != client_id or sum((pair is not None, assertion is not None, "client_secret" in fields)) > 1:
            raise refused("invalid_request", "the client proves who it is in two ways")
        try:
            client: Client = yield from self._find(client_id, request.address, now)
        except BadClient as exc:
            raise refused("invalid_client", str(exc), 401) from None
        if assertion is not None:
            yield from self._check_assertion(client, assertion, request, fields, now)
            return client
        secret = pair[1] if pair is not None else fields.get("client_secret")
        if client.method == "none" and secret in (None, ""):
            return client
        method = "client_secret_basic" if pair is not None else "client_secret_post"
        known = client.secret_mark
        if client.method not in (method, ANY_WAY) or known is None or secret is None or not same(mark(secret), known):
            response = failure("invalid_client", "the client did not prove who it is", 401)
            raise Refused(response.having(("www-authenticate", "Basic")) if pair is not None else response)
        return client

    def _check_assertion(
        self, client: Client, assertion: str, request: Request, fields: Mapping[str, str], now: float
    ) -> Flow[None]:
        if fields.get("client_assertion_type") != BY_ASSERTION or client.method != "private_key_jwt":
            raise refused("invalid_client", "the client did not prove who it is in the way it registered", 401)
        try:
            claims = yield from self._signed(client, assertion, request.address, now)
            check(claims, issuer=client.client_id, audience=self._audience, now=now, leeway=_LEEWAY)
            self._once(client, claims, now)
        except Rejected as exc:
            raise refused("invalid_client", f"the assertion is not accepted: {exc}", 401) from None

    def _signed(self, client: Client, assertion: str, address: str, now: float) -> Flow[dict[str, Any]]:
        """The claims, by a key the client has: as remembered, else as its document says now."""
        header = signing.head(assertion)
        found = signing.fitting(self._remembered(client, now), header, ASYMMETRIC)
        try:
            return signing.verified(assertion, found, header["alg"])
        except Rejected:
            if client.jwks_uri is None:
                raise
        fresh = yield from self._fetched(client, client.jwks_uri, address, now)
        return signing.verified(assertion, signing.fitting(fresh, header, ASYMMETRIC), header["alg"])

    def _remembered(self, client: Client, now: float) -> Keys:
        stored = None if client.jwks_uri is None else self._store.get("client keys", client.client_id, now)
        return signing.read(client.jwks or {"keys": []} if stored is None else plain(stored))

    def _fetched(self, client: Client, url: str, address: str, now: float) -> Flow[Keys]:
        """Fetched at a pace: anyone can name any address as that of their keys."""
        if self._looks.full(url, now) or self._in_vain.full(url, now):
            raise Rejected("the client's keys were looked for just now")
        self._may_fetch(address, now)
        self._looks.count(url, now)
        answer = yield Stranger(url)
        document = answer.json() if answer.status == 200 else None
        try:
            found = signing.read(document or {})
        except ValueError:
            self._in_vain.count(url, now)
            raise Rejected("the client's keys cannot be fetched") from None
        until = now + kept_for(answer.headers)
        with contextlib.suppress(Full):  # then they are fetched again
            self._store.put("client keys", client.client_id, encode({"keys": [key.jwk for key in found]}), until, now)
        return found

    def _once(self, client: Client, claims: Mapping[str, Any], now: float) -> None:
        # An audience of several would let whoever else it is for use it here.
        if claims.get("sub") != client.client_id or (isinstance(claims["aud"], list) and len(claims["aud"]) != 1):
            raise Rejected("it must be by the client, about the client, and for this server alone")
        name = claims.get("jti")
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_ID:
            raise Rejected("it has no usable jti")
        until = float(claims["exp"]) + _LEEWAY
        if until > now + _LONGEST_LIFE:
            raise Rejected("it is good for too long")
        seen = mark(f"{client.client_id} {name}")
        if self._store.add("assertion", seen, b"1", until, now) is not None:
            raise Rejected("it was used before")


def basic(request: Request) -> tuple[str, str] | None:
    """The name and secret of an Authorization header of the Basic kind."""
    scheme, _, pair = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, _, secret = b64decode(pair.strip(), validate=True).decode("utf-8").partition(":")
    except ValueError:
        return "", ""
    return unquote(name), unquote(secret)


def claimed(request: Request, fields: Mapping[str, str]) -> str | None:
    """Who a client says it is, not yet believed."""
    pair = basic(request)
    if pair is not None:
        return pair[0]
    if "client_id" in fields or "client_assertion" not in fields:
        return fields.get("client_id")
    try:
        subject = signing.unverified(fields["client_assertion"]).get("sub")
    except Rejected:
        return None
    return subject if isinstance(subject, str) else None
