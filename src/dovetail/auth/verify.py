"""Verifiers: what makes a principal of a token. By its signature, by asking its issuer, or by a list for tests.

As flows: they yield what is to be fetched and are sent the answer; they read no clock and open no connection. Whatever
cannot be checked is refused.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from dovetail.auth import keys as signing
from dovetail.auth.claims import Rejected, Unavailable, check, principal_of
from dovetail.auth.documents import secure, server_document
from dovetail.auth.flow import Alone, Flow, Now, basic, get, post_form
from dovetail.auth.keys import ASYMMETRIC, Keys
from dovetail.errors import LoginFailed
from dovetail.protocol.principal import Principal

TOKEN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*")  # RFC 6750, section 2.1
SCOPE_CLAIMS: Final = ("scope", "scp")

_TYPES: Final = ("", "jwt", "at+jwt", "application/at+jwt")  # RFC 9068, and what came before it
_PACE: Final = 30.0  # seconds between two looks for a key that is not there
_FRESH: Final = 600.0  # keys are looked at again after
_KEPT: Final = 3600.0  # and not used any more when that failed for
_REMEMBERED: Final = 1024  # tokens found good
_REMEMBERED_FOR: Final = 60.0
_REFUSED_FOR: Final = 5.0  # a token that is not active hardly becomes so


class Verifier(Protocol):
    """What a guard asks about a token."""

    @property
    def issuer(self) -> str | None:
        """Who issues such tokens, if clients can find them there."""
        ...

    def speaks_of(self, token: str) -> bool:
        """Whether a token looks like one of its own."""
        ...

    def verify(self, token: str, resource: Collection[str]) -> Flow[Principal]:
        """Who the token speaks for; Rejected or Unavailable if nobody. The resource is what this server is called."""
        ...


class JwtVerifier:
    """Tokens that are JWTs of one issuer, checked by its public keys.

    issuer: as it stands in the tokens. Its metadata says where its keys are, unless you do.
    audience: what tokens must be for; the server's own address, unless you say otherwise.
    jwks_url, keys: where the keys are, or the keys: a JWK set or PEM texts.
    algorithms: which signatures are accepted; never a shared secret.
    """

    def __init__(
        self,
        *,
        issuer: str,
        audience: str | Sequence[str] | None = None,
        jwks_url: str | None = None,
        keys: Any = None,
        algorithms: Sequence[str] = ASYMMETRIC,
        scope_claims: Sequence[str] = SCOPE_CLAIMS,
        leeway: float = 30.0,
    ) -> None:
        if not isinstance(issuer, str) or not issuer:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError("a JwtVerifier needs the issuer of its tokens")
        if jwks_url is None and keys is None and not secure(issuer):
            raise ValueError(
                f"issuer must be an https URL, as it stands in the tokens, not {issuer!r}: its keys are found there, "
                "unless you give jwks_url= or keys="
            )
        if jwks_url is not None and not secure(jwks_url):
            raise ValueError("jwks_url must be https: whoever can change the keys can make tokens")
        self.issuer = issuer
        self._audience = several(audience)
        self._jwks_url = jwks_url
        self._fixed = None if keys is None else signing.given(keys)
        self._algorithms = signing.allowed(algorithms)
        self._scope_claims = several(scope_claims) or SCOPE_CLAIMS
        self._leeway = leeway
        self._found: Keys = []
        self._found_at: float | None = None
        self._looked_at: float | None = None
        self._trouble: str | None = None  # why the keys were not found
        self._good: dict[bytes, tuple[float, Principal]] = {}

    def speaks_of(self, token: str) -> bool:
        """Whether it says that this issuer made it."""
        return signing.names_issuer(token, self.issuer)

    def verify(self, token: str, resource: Collection[str]) -> Flow[Principal]:
        """Who the token speaks for."""
        now: float = yield Now()
        audience = self._audience or tuple(resource)
        mark = hashlib.sha256("\n".join((token, *audience)).encode()).digest()
        known = self._good.get(mark)
        if known is not None and now < known[0]:
            return known[1]
        header = signing.head(token)
        if str(header.get("typ", "")).lower() not in _TYPES:
            raise Rejected("the token is not an access token")
        signed_by = yield from self._keys(header, now)
        claims = signing.verified(token, signed_by, header["alg"])
        check(claims, issuer=self.issuer, audience=audience, now=now, leeway=self._leeway)
        until = float(claims["exp"]) + self._leeway
        principal = principal_of(claims, self.issuer, self._scope_claims, until)
        if len(self._good) >= _REMEMBERED:
            self._good.clear()
        self._good[mark] = (min(now + _REMEMBERED_FOR, until), principal)
        return principal

    def _keys(self, header: Mapping[str, Any], now: float) -> Flow[Keys]:
        if self._fixed is not None:
            return _some(signing.fitting(self._fixed, header, self._algorithms))
        found = signing.fitting(self._usable(now), header, self._algorithms)
        if found and self._found_at is not None and now < self._found_at + _FRESH:
            return found
        due = self._looked_at is None or now >= self._looked_at + _PACE
        if found and not due:
            return found  # somebody looks, or has looked just now: this key is good until then
        if found:
            self._looked_at = now
        yield Alone()
        if found or self._looked_at is None or now >= self._looked_at + _PACE:
            self._looked_at = now
            yield from self._look(now)
        found = signing.fitting(self._usable(now), header, self._algorithms)
        if not found and self._found_at != self._looked_at:
            raise Unavailable("the keys of the issuer cannot be fetched", self._trouble)
        return _some(found)

    def _usable(self, now: float) -> Keys:
        return self._found if self._found_at is not None and now < self._found_at + _KEPT else []

    def _look(self, now: float) -> Flow[None]:
        """Fetch the keys; what was known before stays, for a while, if that fails."""
        url = self._jwks_url or (yield from self._place())
        if url is None:
            return
        answer = yield from get(url)
        try:
            self._found = signing.read((answer.json() if answer.status == 200 else None) or {})
        except ValueError:
            said = f"status {answer.status}" if answer.status else "nothing"
            self._trouble = f"{url} answers with {said}, not with a JWK set"
            return
        self._found_at = now
        self._good.clear()  # a key that is gone takes its tokens with it

    def _place(self) -> Flow[str | None]:
        try:
            server = yield from server_document(self.issuer)
        except LoginFailed as exc:
            self._trouble = str(exc)
            return None
        url = server.jwks_uri if server is not None else None
        if url is not None and secure(url):
            return url
        self._trouble = f"no metadata of {self.issuer} is found that says where its keys are"
        return None


class IntrospectionVerifier:
    """Tokens that only their issuer understands: it is asked about each. RFC 7662

    A token that was revoked is refused from then on; `remember` saves asking, for that many seconds.
    """

    def __init__(
        self,
        *,
        endpoint: str,
        client_id: str,
        client_secret: str,
        issuer: str | None = None,
        audience: str | Sequence[str] | None = None,
        scope_claims: Sequence[str] = SCOPE_CLAIMS,
        remember: float = 0.0,
        leeway: float = 30.0,
    ) -> None:
        if not secure(endpoint):
            raise ValueError("the endpoint must be https: tokens travel there")
        self.issuer = issuer
        self._endpoint = endpoint
        self._credentials = basic(client_id, client_secret)
        self._audience = several(audience)
        self._scope_claims = several(scope_claims) or SCOPE_CLAIMS
        self._remember = remember
        self._leeway = leeway
        self._good: dict[bytes, tuple[float, Principal]] = {}
        self._refused: dict[bytes, float] = {}

    def speaks_of(self, token: str) -> bool:
        """Any token may be one."""
        return True

    def verify(self, token: str, resource: Collection[str]) -> Flow[Principal]:
        """Who the token speaks for."""
        now: float = yield Now()
        audience = self._audience or tuple(resource)
        mark = hashlib.sha256("\n".join((token, *audience)).encode()).digest()
        known = self._good.get(mark)
        if known is not None and now < known[0]:
            return known[1]
        if now < self._refused.get(mark, 0.0):
            raise Rejected("the token is not active")
        form = {"token": token, "token_type_hint": "access_token"}
        answer = yield from post_form(self._endpoint, form, {"authorization": self._credentials})
        claims = answer.json()
        if answer.status != 200 or claims is None:
            raise Unavailable(
                "the issuer cannot be asked about the token", f"{self._endpoint} answers with status {answer.status}"
            )
        if claims.get("active") is not True:
            if len(self._refused) >= _REMEMBERED:
                self._refused.clear()
            self._refused[mark] = now + _REFUSED_FOR
            raise Rejected("the token is not active")
        # An issuer that says neither who nor until when has still said that the token is active now.
        said = {"exp": now + 1.0, **claims}
        check(said, issuer=self.issuer if "iss" in claims else None, audience=audience, now=now, leeway=self._leeway)
        until = float(said["exp"]) + self._leeway
        who = self.issuer or self._endpoint
        principal = principal_of(claims, who, self._scope_claims, until if "exp" in claims else None)
        if self._remember:
            if len(self._good) >= _REMEMBERED:
                self._good.clear()
            self._good[mark] = (min(now + self._remember, until), principal)
        return principal


class StaticTokens:
    """Tokens written down beforehand, for tests and for a few programs of your own: token to principal, or its name."""

    issuer: str | None = None

    def __init__(self, tokens: Mapping[str, str | Principal]) -> None:
        # Looked up by digest: how long that takes says nothing about a token.
        self._known = {_digest(_shown(token)): _principal(who) for token, who in _table(tokens).items()}

    def speaks_of(self, token: str) -> bool:
        """Whether it is one of them."""
        return _digest(token) in self._known

    def verify(self, token: str, resource: Collection[str]) -> Flow[Principal]:
        """Who the token speaks for."""
        yield Now()
        found = self._known.get(_digest(token))
        if found is None:
            raise Rejected("the token is not known")
        return found


def several(given: str | Iterable[str] | None) -> tuple[str, ...]:
    """One text or many, as many; TypeError if they are none."""
    said: Any = () if given is None else given
    found: tuple[Any, ...] = (said,) if isinstance(said, str) or not isinstance(said, Iterable) else tuple(said)
    if not all(isinstance(one, str) for one in found):
        raise TypeError(f"a text or a list of texts is meant here, not {given!r}")
    return found


def _table(tokens: Any) -> Mapping[Any, Any]:
    if not isinstance(tokens, Mapping):
        raise TypeError("StaticTokens takes a table: {token: name or Principal(...)}")
    return tokens


def _shown(token: Any) -> str:
    if not isinstance(token, str) or not TOKEN.fullmatch(token):
        raise ValueError("a static token must be one that can be shown: letters, digits and -._~+/, with = at its end")
    return token


def _principal(who: Any) -> Principal:
    if not isinstance(who, str):
        raise TypeError(f"a static token stands for a name or a Principal(...), not {type(who).__name__}")
    return who if isinstance(who, Principal) else Principal(who)


def _some(found: Keys) -> Keys:
    if not found:
        raise Rejected("the token is signed with a key its issuer does not have")
    return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
