"""Check the tokens of requests to one endpoint, and serve the metadata of the protected resource."""

import copy
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from dovetail.auth.flow_runner import FlowRunner
from dovetail.auth.safe_fetch import ServerFetcher
from dovetail.errors import AuthError
from dovetail.log import log
from dovetail.oauth.guard.claims import AuthenticationFailed
from dovetail.oauth.guard.guard import (
    CredentialChecker,
    Guard,
    RequestHead,
    ServerLocation,
    get_credential_checker,
    location_from_public_url,
    location_from_request,
    parse_host_name,
)
from dovetail.oauth.guard.verifiers import TokenVerifier
from dovetail.protocol.http_checks import Refusal
from dovetail.protocol.http_types import HTTPRequest
from dovetail.protocol.principal import Principal
from dovetail.transports.http_server.http_request import EndpointRequest, Scope
from dovetail.wire.codec import encode

_WELL_KNOWN_PATH: Final = "/.well-known/"
_WARNING_INTERVAL_S: Final = 60.0  # Two warnings are at least this many seconds apart.


class ASGIGuard:
    """Checks the tokens of requests to one HTTP endpoint."""

    def __init__(
        self,
        checker: CredentialChecker,
        path: str,
        public_url: str | None,
        get_used_scopes: Callable[[], Sequence[str]],
    ) -> None:
        self._checker = checker
        # A function that returns the scopes that the server's tools, resources and prompts require.
        self._get_used_scopes = get_used_scopes
        self._path = "/" + path.strip("/")
        self._public_url = public_url
        self._location = None if public_url is None else location_from_public_url(public_url, self._path)
        self._fetcher = ServerFetcher()
        self._flow_runner = FlowRunner({HTTPRequest: self._fetcher.fetch})
        self._warned_at = -_WARNING_INTERVAL_S

    def has_document(self, path: str, scope: Scope) -> bool:
        """Return whether clients expect the protected resource metadata at this path."""
        root_path = scope.get("root_path") or ""
        if _WELL_KNOWN_PATH not in scope["path"] and _WELL_KNOWN_PATH not in root_path:
            return False
        # The host does not matter here, because only the path is compared.
        location = self._location or location_from_request("http", "here", None, root_path, self._path)
        return location.serves_metadata_at(path) or location.serves_metadata_at("/" + scope["path"].strip("/"))

    def get_document(self, path: str, request: EndpointRequest) -> bytes | None:
        """Return the protected resource metadata if clients expect it at this path. Otherwise return None."""
        if not self.has_document(path, request.scope):
            return None
        if request.method not in ("GET", "HEAD"):
            raise Refusal(405, f"method {request.method} is not allowed", [(b"allow", b"GET")])
        return encode(self._checker.build_metadata(self._get_location(request).resource, self._get_used_scopes()))

    def at_path(self, path: str) -> "ASGIGuard":
        """Return the guard for another MCP path of the same server."""
        guard = copy.copy(self)
        guard._path = path
        guard._location = None if self._public_url is None else location_from_public_url(self._public_url, path)
        return guard

    async def authenticate(self, path: str, request: EndpointRequest) -> Principal:
        """Return the caller of a request. Raise AuthError if the credentials are missing or invalid."""
        location = self._get_location(request)
        request.metadata_url = location.metadata_url if self._checker.has_authorization_servers else None
        request.guard_scopes = self._checker.scopes_for
        head = RequestHead(
            method=request.method,
            url=location.url_for(path),
            authorization=_decode_header(request.headers.get(b"authorization")),
            dpop_proof=_decode_header(request.headers.get(b"dpop")),
            resource=location.resource,
            metadata_url=location.metadata_url,
        )
        try:
            return await self._flow_runner.run(self._checker.authenticate(head))
        except AuthError as denied:
            self._log_denial(denied)
            raise

    def _log_denial(self, denied: AuthError) -> None:
        """Log why a request was denied, so that the operator can fix the settings. The response does not contain the
        reason.
        """
        cause, now = denied.__cause__, time.monotonic()
        reason = (
            f"{cause}: {cause.detail}"
            if isinstance(cause, AuthenticationFailed) and cause.detail
            else str(cause or denied)
        )
        if denied.status_code != 503:
            log.debug("authentication failed: %s", reason)
        elif now >= self._warned_at + _WARNING_INTERVAL_S:
            self._warned_at = now
            log.warning("authentication failed: %s", reason)

    def _get_location(self, request: EndpointRequest) -> ServerLocation:
        if self._location is not None:
            return self._location
        scope = request.scope
        server = scope.get("server") or (None, None)
        host = parse_host_name(request.headers.get(b"host", b""))
        return location_from_request(
            scope.get("scheme", "http"), host, server[1], scope.get("root_path") or "", self._path
        )

    async def close(self) -> None:
        await self._fetcher.close()


def create_asgi_guard(
    auth: Guard | TokenVerifier | Sequence[TokenVerifier],
    path: str,
    public_url: str | None,
    allowed_hosts: Collection[str],
    get_used_scopes: Callable[[], Sequence[str]] = tuple,
) -> ASGIGuard:
    if public_url is None and allowed_hosts:
        raise ValueError(
            "auth= needs the URL of this server to check the audience of tokens. Pass public_url=, which can "
            "replace allowed_hosts="
        )
    return ASGIGuard(get_credential_checker(auth), path, public_url, get_used_scopes)


def _decode_header(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")
