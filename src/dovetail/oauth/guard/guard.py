"""Check the credentials of each request to a server. The result is a principal, or an error with a challenge.

The check is a flow, which does no I/O and yields the requests to send. This module also builds the protected resource
metadata.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast
from urllib.parse import urlsplit

from dovetail.error_context import clip
from dovetail.errors import AuthError, Forbidden, Unauthorized
from dovetail.oauth.flow import Flow, Now
from dovetail.oauth.guard.claims import TokenRejected, VerificationUnavailable
from dovetail.oauth.guard.dpop import DPOP_ALGORITHMS, DPoPChecker, NonceRequired, check_confirmation
from dovetail.oauth.guard.keys import read_unverified_claims
from dovetail.oauth.guard.verifiers import (
    TOKEN_PATTERN,
    TokenVerifier,
    as_tuple,
    is_local_verifier,
    run_verifier,
    select_verifiers,
)
from dovetail.oauth.metadata import RESOURCE_METADATA_PATH
from dovetail.protocol.interfaces.shared_state import SharedWorker
from dovetail.protocol.principal import Principal, check_scope, replace_scopes
from dovetail.wire.base import Struct


class RequestHead(Struct, frozen=True, kw_only=True):
    """The method, URLs and headers of a request that a guard checks."""

    method: str
    url: str  # The URL that the client requested.
    authorization: str | None = None
    dpop_proof: str | None = None
    resource: str
    metadata_url: str | None = None  # The URL of the protected resource metadata.


class CredentialChecker:
    """Checks the credentials of requests according to the options of `Guard`."""

    def __init__(
        self,
        verifiers: Sequence[TokenVerifier],
        *,
        required_scopes: Sequence[str],
        implied_scopes: Mapping[str, Sequence[str]] | None,
        authorization_servers: Sequence[str] | None,
        scopes_supported: Sequence[str] | None,
        require_dpop: bool,
        require_dpop_nonce: bool,
        secret_key: str | bytes | None,
        list_restricted: bool,
    ) -> None:
        if not verifiers:
            raise ValueError("a Guard requires at least one verifier, such as JWTVerifier(...)")
        for verifier in verifiers:
            _check_verifier(verifier)
        self.list_restricted = list_restricted
        self._verifiers = verifiers
        self._required_scopes = validate_scopes(required_scopes)
        self._implied_scopes = {scope: validate_scopes(included) for scope, included in (implied_scopes or {}).items()}
        issuers = [verifier.issuer for verifier in verifiers if verifier.issuer is not None]
        self._issuer_urls = list(dict.fromkeys(issuers if authorization_servers is None else authorization_servers))
        self._scopes_supported = None if scopes_supported is None else validate_scopes(scopes_supported)
        self._require_dpop = require_dpop
        self._proof_checker = DPoPChecker(require_nonce=require_dpop_nonce, secret=secret_key)

    @property
    def has_authorization_servers(self) -> bool:
        """Return whether the metadata contains an authorization server."""
        return bool(self._issuer_urls)

    @property
    def is_local(self) -> bool:
        """Return whether the guard accepts tokens that are stored in the memory of this process."""
        return any(is_local_verifier(verifier) for verifier in self._verifiers)

    def authenticate(self, head: RequestHead, cluster: SharedWorker | None = None) -> Flow[Principal]:
        """Return the caller of a request. If the credentials are missing or insufficient, raise AuthError with a
        challenge.

        In a cluster, no worker accepts a DPoP proof that another worker has accepted.
        """
        scheme, token = self._parse_credentials(head)
        now: float = yield Now()
        try:
            if self._require_dpop and scheme != "dpop":
                raise TokenRejected("this server only accepts tokens that are bound to a key (DPoP)")
            principal = yield from self._verify(token, head.resource)
            if scheme == "dpop":
                yield from self._check_proof(head, token, principal, now, cluster)
            else:
                check_confirmation(principal.claims, None)
        except NonceRequired as exc:
            raise self._unauthorized_error(
                head, "use_dpop_nonce", str(exc), "dpop", nonce=self._proof_checker.current_nonce(now, cluster)
            ) from None
        except TokenRejected as exc:
            raise self._unauthorized_error(head, "invalid_token", str(exc), scheme) from exc
        except VerificationUnavailable as exc:
            # The status must not be 401, because the client would then discard a token that may be valid.
            unavailable = AuthError(f"Try again later: {exc}")
            unavailable.status_code = 503
            raise unavailable from exc
        principal = self._add_implied_scopes(principal)
        if not principal.scopes.issuperset(self._required_scopes):
            raise self._unauthorized_error(head, "insufficient_scope", "more scopes are needed", scheme, status=403)
        return principal

    def _check_proof(
        self, head: RequestHead, token: str, principal: Principal, now: float, cluster: SharedWorker | None
    ) -> Flow[None]:
        request: dict[str, Any] = {"method": head.method, "url": head.url, "token": token}
        claims = principal.claims
        if cluster is None:
            self._proof_checker.check(head.dpop_proof, **request, now=now, token_claims=claims)
        else:
            yield from self._proof_checker.check_in_cluster(
                cluster, head.dpop_proof, **request, now=now, token_claims=claims
            )

    def _parse_credentials(self, head: RequestHead) -> tuple[str, str]:
        scheme, _, token = (head.authorization or "").partition(" ")
        scheme, token = scheme.lower(), token.strip()
        if scheme not in ("bearer", "dpop"):
            raise self._unauthorized_error(head)
        if not TOKEN_PATTERN.fullmatch(token):
            raise self._unauthorized_error(head, "invalid_request", "the credentials are malformed", scheme, status=400)
        return scheme, token

    def _verify(self, token: str, resource: str) -> Flow[Principal]:
        candidates = select_verifiers(self._verifiers, token)
        problem: Exception | None = None
        for verifier in candidates:
            try:
                return (yield from run_verifier(verifier, token, resource))
            except TokenRejected as exc:
                problem = problem if isinstance(problem, VerificationUnavailable) else exc
            except VerificationUnavailable as exc:
                problem = exc
        raise problem or self._build_rejection(token)

    def _build_rejection(self, token: str) -> TokenRejected:
        """Return the error for a token that matches no verifier.

        For the log, the error names the issuer. The operator can then compare the issuer with the configuration.
        """
        try:
            actual_issuer = clip(str(read_unverified_claims(token).get("iss")))
        except TokenRejected as exc:
            return exc if self._issuer_urls else TokenRejected("unknown token")
        detail = f"its issuer is {actual_issuer}, expected {', '.join(self._issuer_urls) or 'none'}"
        return TokenRejected("the token is from an unknown issuer" if self._issuer_urls else "unknown token", detail)

    def _add_implied_scopes(self, principal: Principal) -> Principal:
        if not self._implied_scopes:
            return principal
        scopes, pending = set(principal.scopes), list(principal.scopes)
        while pending:
            implied = self._implied_scopes.get(pending.pop(), ())
            pending += [scope for scope in implied if scope not in scopes]
            scopes.update(implied)
        return replace_scopes(principal, scopes)

    def _unauthorized_error(
        self,
        head: RequestHead,
        error: str | None = None,
        description: str | None = None,
        scheme: str = "bearer",
        *,
        status: int = 401,
        nonce: str | None = None,
    ) -> AuthError:
        """Create an error with a challenge for the client.

        spec: authorization#error-handling, authorization#scope-selection-strategy
        """
        use_dpop = self._require_dpop or scheme == "dpop"
        fields = {
            "error": error,
            "error_description": description,
            "scope": " ".join(self._required_scopes) or None,
            "resource_metadata": head.metadata_url
            if self._issuer_urls
            else None,  # Without an authorization server, the metadata is of no use to clients.
            "algs": " ".join(DPOP_ALGORITHMS) if use_dpop else None,
        }
        parameters = ", ".join(f'{name}="{value}"' for name, value in fields.items() if value is not None)
        challenge = f"{'DPoP' if use_dpop else 'Bearer'} {parameters}".strip()
        message = "Authentication is required" if description is None else f"Access denied: {description}"
        if status == 403:
            return Forbidden(message, challenge=challenge)
        unauthorized = Unauthorized(message, challenge=challenge, dpop_nonce=nonce)
        # The status is 400 if the credentials are malformed. RFC 6750, section 3.1
        unauthorized.status_code = status
        return unauthorized

    def scopes_for(self, needed: Iterable[str], granted: Iterable[str] = ()) -> Sequence[str]:
        """Return the scopes that a new token needs: the scopes of the guard, `needed` and `granted`."""
        implied = {included for scope in granted for included in self._implied_scopes.get(scope, ())}
        return tuple(
            dict.fromkeys((*self._required_scopes, *needed, *(scope for scope in granted if scope not in implied)))
        )

    def build_metadata(self, resource: str, needed: Sequence[str] = ()) -> dict[str, Any]:
        """Return the protected resource metadata. RFC 9728, section 2

        `needed` contains the scopes that the server's items require.
        """
        supported = (*self._required_scopes, *needed) if self._scopes_supported is None else self._scopes_supported
        metadata: dict[str, Any] = {"resource": resource, "bearer_methods_supported": ["header"]}
        if self._issuer_urls:
            metadata["authorization_servers"] = self._issuer_urls
        if supported:
            metadata["scopes_supported"] = list(dict.fromkeys(supported))
        metadata["dpop_signing_alg_values_supported"] = list(DPOP_ALGORITHMS)
        if self._require_dpop:
            metadata["dpop_bound_access_tokens_required"] = True
        return metadata


class Guard:
    """Decides which callers may use a server. Pass a guard or a verifier as `Server(auth=...)`.

    verifiers: the objects that check tokens. A token is accepted if one of them accepts it.
    required_scopes: scopes that every caller needs.
    implied_scopes: scopes that include other scopes, such as `{"files": ["files:read", "files:write"]}`.
    authorization_servers: the authorization servers that issue tokens for clients. Defaults to the issuers of the
        verifiers.
    scopes_supported: scopes that the metadata lists. Defaults to `required_scopes` and those of the server's tools,
    resources and prompts.
    require_dpop: whether every token must be bound to a key. Bound tokens are always checked.
    require_dpop_nonce: whether DPoP proofs must contain a nonce from this server.
    secret_key: the key from which nonces are computed, at least 16 bytes. Use the same key in all processes behind one
        address. In a cluster, the secret keys of the server are the default.
    list_restricted: whether callers see tools, resources and prompts for which they lack scopes. A client can request
    the scopes when it calls such an item.
    """

    def __init__(
        self,
        *verifiers: TokenVerifier,
        required_scopes: Sequence[str] = (),
        implied_scopes: Mapping[str, Sequence[str]] | None = None,
        authorization_servers: Sequence[str] | None = None,
        scopes_supported: Sequence[str] | None = None,
        require_dpop: bool = False,
        require_dpop_nonce: bool = False,
        secret_key: str | bytes | None = None,
        list_restricted: bool = False,
    ) -> None:
        self._checker = CredentialChecker(
            verifiers,
            required_scopes=required_scopes,
            implied_scopes=implied_scopes,
            authorization_servers=authorization_servers,
            scopes_supported=scopes_supported,
            require_dpop=require_dpop,
            require_dpop_nonce=require_dpop_nonce,
            secret_key=secret_key,
            list_restricted=list_restricted,
        )


def get_credential_checker(auth: Guard | TokenVerifier | Sequence[TokenVerifier]) -> CredentialChecker:
    """Return the checker for the value of `auth=`. Raise TypeError if the value is invalid."""
    if not isinstance(auth, Guard):
        auth = Guard(*auth) if isinstance(auth, list | tuple) else Guard(cast("TokenVerifier", auth))
    return auth._checker  # pyright: ignore[reportPrivateUsage]


def _check_verifier(verifier: Any) -> None:
    """Raise TypeError if the value is not a verifier. The message does not contain the value, which may be a secret."""
    if not isinstance(verifier, type) and callable(getattr(verifier, "verify", None)) and hasattr(verifier, "issuer"):
        return
    if isinstance(verifier, type):
        description = f"the class {verifier.__name__} itself"
    else:
        # The name includes the module, because other libraries have classes with the same names.
        module, name = type(verifier).__module__, type(verifier).__qualname__
        description = name if module == "builtins" else f"{module}.{name}"
    if isinstance(verifier, str | Mapping):
        description += ". Use StaticTokenVerifier({token: name}) for a table of tokens"
    elif callable(getattr(verifier, "verifier", None)):
        description += ". Pass the result of `.verifier()`"
    elif callable(verifier) and not isinstance(verifier, type):
        description += ". A function that identifies callers must be async and the only value of auth="
    raise TypeError(
        "auth must be Guard(...), JWTVerifier(...), IntrospectionVerifier(...), StaticTokenVerifier(...) or a list of "
        f"verifiers, not {description}"
    )


def validate_scopes(scopes: str | Iterable[str]) -> tuple[str, ...]:
    """Return the scopes as a tuple. Raise ValueError if a scope contains invalid characters."""
    scope_list = as_tuple(scopes)
    for scope in scope_list:
        check_scope(scope)
    return tuple(dict.fromkeys(scope_list))


_DEFAULT_PORTS: Final = {"https": 443, "http": 80}


class ServerLocation(Struct, frozen=True):
    """The URLs of a server and of its metadata."""

    base_url: str  # The URL of the application.
    path: str  # The path of the MCP endpoint, relative to `base_url`.

    @property
    def resource(self) -> str:
        """Return the URL that identifies the server in tokens and metadata. spec: authorization#canonical-server-uri"""
        return self.url_for(self.path)

    @property
    def metadata_url(self) -> str:
        """Return the URL of the metadata.

        The URL starts with `base_url`, because another application may serve the root of the host.
        """
        return self.url_for(RESOURCE_METADATA_PATH + ("" if self.path == "/" else self.path))

    def url_for(self, path: str) -> str:
        return self.base_url + ("" if path == "/" else path)


def location_from_public_url(public_url: str, path: str) -> ServerLocation:
    """Return the location of a server. `public_url` may include the path of the endpoint."""
    parts = urlsplit(public_url)
    origin = f"{parts.scheme.lower()}://{parts.netloc.rpartition('@')[2].lower()}"
    prefix = parts.path.rstrip("/")
    if prefix.endswith(path):
        prefix = prefix.removesuffix(path)
    return ServerLocation(origin + prefix, path)


def location_from_request(scheme: str, host: str, port: int | None, root_path: str, path: str) -> ServerLocation:
    """Derive the URLs of a server from the URL of a request. The argument `host` must not contain a port."""
    host_part = f"[{host}]" if ":" in host else host
    port_suffix = "" if port is None or port == _DEFAULT_PORTS.get(scheme) else f":{port}"
    return ServerLocation(f"{scheme}://{host_part}{port_suffix}{root_path.rstrip('/')}", path)


def is_metadata_path(path: str, prefix: str, mcp_path: str) -> bool:
    """Return whether `path` serves the metadata of the MCP endpoint at `mcp_path`.

    The path follows RFC 9728, or is below the path prefix of the application.
    """
    resource_path = prefix if mcp_path == "/" else prefix + mcp_path
    return path in (
        RESOURCE_METADATA_PATH,
        RESOURCE_METADATA_PATH + resource_path,
        RESOURCE_METADATA_PATH + mcp_path,
    )


def parse_host_name(header: Any) -> str:
    text = header.decode("latin-1").lower()
    return text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]
