"""Guard: the resource's side of authorization. From a request's credentials to a principal, or to a challenge.

Pure: a flow that yields what is to be fetched. Also what the server says of itself to those who ask who guards it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dovetail.auth.claims import Rejected, Unavailable
from dovetail.auth.flow import Flow, Now
from dovetail.auth.keys import names_issuer, unverified
from dovetail.auth.possession import ALGORITHMS, Possession, UseNonce, confirmed
from dovetail.auth.verify import TOKEN, IntrospectionVerifier, Verifier, several
from dovetail.errors import Denied, clip
from dovetail.protocol.principal import SCOPE, Principal
from dovetail.wire.shape import Struct


class Head(Struct, frozen=True, kw_only=True):
    """What a guard looks at: a request without its body, and what this server is called."""

    method: str
    url: str  # as the client sees it
    authorization: str | None = None
    dpop: str | None = None
    resource: str
    metadata: str | None = None  # where the metadata of the resource can be fetched


class Guard:
    """Who is served, given as `Server(auth=...)`. A verifier alone is a guard with nothing else said.

    verifiers: what knows tokens; one that knows the token is enough.
    scopes: what every caller needs.
    implied: scopes that include others, such as `{"files": ["files:read", "files:write"]}`.
    authorization_servers: where clients get tokens; the verifiers' issuers unless you say otherwise.
    scopes_supported: what the metadata names, and a login may ask for: `scopes` and those of the server's tools,
        resources and prompts, unless you say otherwise.
    dpop: True if every token must be bound to a key. Tokens that are bound are always checked.
    dpop_nonces: whether proofs must repeat a nonce of ours.
    secret: what the nonces are made of, at least 16 bytes; the same in every process behind one address.
    show_locked: whether tools, resources and prompts are listed to callers who lack their scopes, so that a client can
        ask for these by calling.
    """

    def __init__(
        self,
        *verifiers: Verifier,
        scopes: Sequence[str] = (),
        implied: Mapping[str, Sequence[str]] | None = None,
        authorization_servers: Sequence[str] | None = None,
        scopes_supported: Sequence[str] | None = None,
        dpop: bool = False,
        dpop_nonces: bool = False,
        secret: str | bytes | None = None,
        show_locked: bool = False,
    ) -> None:
        if not verifiers:
            raise ValueError("a Guard needs at least one verifier: JwtVerifier(...), IntrospectionVerifier(...)")
        for one in verifiers:
            _check_verifier(one)
        self.show_locked = show_locked
        self._verifiers = verifiers
        self._scopes = checked_scopes(scopes)
        self._implied = {scope: checked_scopes(inner) for scope, inner in (implied or {}).items()}
        issuers = [one.issuer for one in verifiers if one.issuer is not None]
        self._servers = list(dict.fromkeys(issuers if authorization_servers is None else authorization_servers))
        self._supported = None if scopes_supported is None else checked_scopes(scopes_supported)
        self._dpop = dpop
        self._possession = Possession(nonces=dpop_nonces, secret=secret)

    @property
    def leads(self) -> bool:
        """Whether its metadata leads to somebody who issues tokens."""
        return bool(self._servers)

    @property
    def alone(self) -> bool:
        """Whether it takes tokens that another process would not know."""
        return any(getattr(one, "alone", False) for one in self._verifiers)

    def admit(self, head: Head) -> Flow[Principal]:
        """Who is calling; Denied, with a challenge, if that is not known or not enough."""
        scheme, token = self._credentials(head)
        now: float = yield Now()
        try:
            if self._dpop and scheme != "dpop":
                raise Rejected("only tokens bound to a key are accepted here")
            principal = yield from self._verify(token, head.resource)
            confirmed(principal.claims, self._prover(head, token, now) if scheme == "dpop" else None)
        except UseNonce as exc:
            raise self._denied(head, "use_dpop_nonce", str(exc), "dpop", nonce=self._possession.nonce(now)) from None
        except Rejected as exc:
            raise self._denied(head, "invalid_token", str(exc), scheme) from exc
        except Unavailable as exc:
            # Not 401: the client would throw away a token that may well be good.
            raise Denied(f"Try again later: {exc}", status=503) from exc
        principal = self._with_implied(principal)
        if not principal.scopes.issuperset(self._scopes):
            raise self._denied(head, "insufficient_scope", "more scopes are needed", scheme, status=403)
        return principal

    def _prover(self, head: Head, token: str, now: float) -> str:
        return self._possession.check(head.dpop, method=head.method, url=head.url, token=token, now=now)

    def _credentials(self, head: Head) -> tuple[str, str]:
        scheme, _, token = (head.authorization or "").partition(" ")
        scheme, token = scheme.lower(), token.strip()
        if scheme not in ("bearer", "dpop"):
            raise self._denied(head)
        if not TOKEN.fullmatch(token):
            raise self._denied(head, "invalid_request", "the credentials are malformed", scheme, status=400)
        return scheme, token

    def _verify(self, token: str, resource: str) -> Flow[Principal]:
        """By the verifier whose token it seems to be; where several may be asked, one that knows it is enough."""
        asked = [one for one in self._verifiers if one.speaks_of(token)]
        if any(one.issuer is not None and names_issuer(token, one.issuer) for one in asked):
            # Whom it names knows it, or nobody does: it is not shown to others to be asked about.
            asked = [one for one in asked if one.issuer is None or names_issuer(token, one.issuer)]
            asked = [one for one in asked if not isinstance(one, IntrospectionVerifier) or one.issuer is not None]
        problem: Exception = Rejected(
            "the token is from nobody known here", self._strange(token) if not asked else None
        )
        for verifier in asked:
            try:
                return (yield from verifier.verify(token, (resource,)))
            except Rejected as exc:
                problem = problem if isinstance(problem, Unavailable) else exc
            except Unavailable as exc:
                problem = exc
        raise problem

    def _strange(self, token: str) -> str | None:
        """Whose token it says it is, to be compared with whose are taken: to the letter, down to the last slash."""
        try:
            said = clip(str(unverified(token).get("iss")))
        except Rejected:
            return None
        return f"it is from {said}, taken are those of {', '.join(self._servers) or 'no issuer'}"

    def _with_implied(self, principal: Principal) -> Principal:
        if not self._implied:
            return principal
        found, new = set(principal.scopes), list(principal.scopes)
        while new:
            inner = self._implied.get(new.pop(), ())
            new += [one for one in inner if one not in found]
            found.update(inner)
        return principal.with_scopes(found)

    def _denied(
        self,
        head: Head,
        error: str | None = None,
        words: str | None = None,
        scheme: str = "bearer",
        *,
        status: int = 401,
        nonce: str | None = None,
    ) -> Denied:
        """spec: authorization#error-handling, authorization#scope-selection-strategy"""
        bound = self._dpop or scheme == "dpop"
        said = {
            "error": error,
            "error_description": words,
            "scope": " ".join(self._scopes) or None,
            "resource_metadata": head.metadata if self._servers else None,  # else it leads to nobody who issues tokens
            "algs": " ".join(ALGORITHMS) if bound else None,
        }
        named = ", ".join(f'{name}="{value}"' for name, value in said.items() if value is not None)
        challenge = f"{'DPoP' if bound else 'Bearer'} {named}".strip()
        message = "Authentication is required" if words is None else f"Not served: {words}"
        return Denied(message, status=status, challenge=challenge, nonce=nonce)

    def scopes_for(self, needed: Iterable[str], held: Iterable[str] = ()) -> Sequence[str]:
        """Return the scopes a token needs for a request: those of every request, `needed`, and those that it has."""
        implied = {inner for scope in held for inner in self._implied.get(scope, ())}
        return tuple(dict.fromkeys((*self._scopes, *needed, *(scope for scope in held if scope not in implied))))

    def document(self, resource: str, needed: Sequence[str] = ()) -> dict[str, Any]:
        """What this server says of itself, with the scopes of what it offers. RFC 9728, section 2"""
        supported = (*self._scopes, *needed) if self._supported is None else self._supported
        said: dict[str, Any] = {"resource": resource, "bearer_methods_supported": ["header"]}
        if self._servers:
            said["authorization_servers"] = self._servers
        if supported:
            said["scopes_supported"] = list(dict.fromkeys(supported))
        said["dpop_signing_alg_values_supported"] = list(ALGORITHMS)
        if self._dpop:
            said["dpop_bound_access_tokens_required"] = True
        return said


def guard_for(auth: Any) -> Guard:
    """The guard an author means: one, a verifier, or several of these."""
    if isinstance(auth, Guard):
        return auth
    return Guard(*auth) if isinstance(auth, list | tuple) else Guard(auth)


def _check_verifier(one: Any) -> None:
    """Whatever looks like a verifier is one; what people give instead is told apart without being shown."""
    if not isinstance(one, type) and callable(getattr(one, "verify", None)) and hasattr(one, "issuer"):
        return
    told = f"the class {one.__name__} itself" if isinstance(one, type) else type(one).__name__
    if isinstance(one, str | Mapping):
        told += ": a table of tokens is StaticTokens({token: name})"
    elif callable(getattr(one, "verifier", None)):
        told += ": pass its .verifier()"
    elif callable(one) and not isinstance(one, type):
        told += ": a function that identifies callers is asgi(authenticate=...)"
    raise TypeError(
        "auth must be Guard(...), JwtVerifier(...), IntrospectionVerifier(...), StaticTokens(...) or a list of "
        f"verifiers, not {told}"
    )


def checked_scopes(scopes: str | Iterable[str]) -> tuple[str, ...]:
    """Scopes as an author gives them, each one a word that can stand in a challenge."""
    found = several(scopes)
    for one in found:
        if not SCOPE.fullmatch(one):
            raise ValueError(f"{one!r} is not a scope: one word, without quotes or backslashes")
    return tuple(dict.fromkeys(found))
