"""Check the tokens of requests to one endpoint, and serve the metadata of the protected resource."""

from collections.abc import Callable, Collection, Sequence
from urllib.parse import urlsplit

from dovetail.auth.flow_runner import FlowRunner
from dovetail.auth.safe_fetch import ServerFetcher
from dovetail.errors import AuthError
from dovetail.log import ThrottledLog, log
from dovetail.oauth.guard.claims import AuthenticationFailed
from dovetail.oauth.guard.guard import (
    CredentialChecker,
    Guard,
    RequestHead,
    ServerLocation,
    get_credential_checker,
    is_metadata_path,
    location_from_public_url,
    location_from_request,
    parse_host_name,
)
from dovetail.oauth.guard.verifiers import TokenVerifier
from dovetail.oauth.metadata import RESOURCE_METADATA_PATH
from dovetail.protocol.exchange import Service
from dovetail.protocol.http_checks import Refusal
from dovetail.protocol.interfaces.http_types import HTTPRequest
from dovetail.protocol.principal import Principal
from dovetail.transports.http1.server_request import Scope
from dovetail.transports.http_server.http_request import EndpointRequest
from dovetail.wire.codec import encode


class ASGIGuard:
    """Checks the tokens of requests to one HTTP endpoint."""

    def __init__(
        self,
        checker: CredentialChecker,
        path: str,
        public_url: str | None,
        get_used_scopes: Callable[[], Sequence[str]],
        fetcher: ServerFetcher,
        unavailable_warning: ThrottledLog,
        service: Service,
    ) -> None:
        self._checker = checker
        self._service = service
        # Returns all scopes that the server's tools, resources and prompts require.
        self._get_used_scopes = get_used_scopes
        self._path = "/" + path.strip("/")
        self._public_url = public_url
        self._location = None if public_url is None else location_from_public_url(public_url, self._path)
        self._fetcher = fetcher
        self._flow_runner = FlowRunner({HTTPRequest: fetcher.fetch})
        self._unavailable_warning = unavailable_warning

    def has_document(self, path: str, scope: Scope) -> bool:
        """Return whether clients expect the protected resource metadata at this path."""
        full_path: str = scope["path"]
        if RESOURCE_METADATA_PATH not in full_path:
            return False
        location = self._location
        prefix = (scope.get("root_path") or "").rstrip("/") if location is None else urlsplit(location.base_url).path
        return any(is_metadata_path(candidate, prefix, self._path) for candidate in (path, "/" + full_path.strip("/")))

    def get_document(self, path: str, request: EndpointRequest) -> bytes | None:
        """Return the protected resource metadata if clients expect it at this path. Otherwise return None."""
        if not self.has_document(path, request.scope):
            return None
        if request.method not in ("GET", "HEAD"):
            raise Refusal(405, f"Method {request.method} is not allowed", [(b"allow", b"GET, HEAD")])
        return encode(self._checker.build_metadata(self._get_location(request).resource, self._get_used_scopes()))

    def at_path(self, path: str) -> "ASGIGuard":
        """Return the guard for another MCP path of the same server."""
        return ASGIGuard(
            self._checker,
            path,
            self._public_url,
            self._get_used_scopes,
            self._fetcher,
            self._unavailable_warning,
            self._service,
        )

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
            return await self._flow_runner.run(self._checker.authenticate(head, self._service.cluster))
        except AuthError as error:
            self._log_denial(error)
            raise

    def _log_denial(self, error: AuthError) -> None:
        """Log why a request was denied, because the response to the client does not contain the reason."""
        cause = error.__cause__
        # Only this exception has a `detail` that is safe to log. The text of other exceptions may contain the token.
        reason = f"{cause}: {cause.detail}" if isinstance(cause, AuthenticationFailed) and cause.detail else str(error)
        if error.status_code == 503:  # The token could not be checked.
            self._unavailable_warning.log("authentication failed: %s", reason)
        else:
            log.debug("authentication failed: %s", reason)

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
        """Close the connections to authorization servers."""
        await self._fetcher.close()


def create_asgi_guard(
    auth: Guard | TokenVerifier | Sequence[TokenVerifier],
    path: str,
    public_url: str | None,
    allowed_hosts: Collection[str],
    get_used_scopes: Callable[[], Sequence[str]],
    service: Service,
) -> ASGIGuard:
    if public_url is None and allowed_hosts:
        raise ValueError(
            "auth= needs the URL of this server to check the audience of tokens. Pass public_url= instead of "
            "allowed_hosts=, or pass both"
        )
    checker = get_credential_checker(auth)
    return ASGIGuard(checker, path, public_url, get_used_scopes, ServerFetcher(), ThrottledLog(), service)


def _decode_header(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")
