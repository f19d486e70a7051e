"""HTTP requests to the URL of an MCP server, and errors with hints for its refusals.

Redirects are followed only within the origin, so that credentials never reach another. One that a POST is given for
good moves what comes after it, any other only the request that met it.
"""

import asyncio
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from dovetail.error_context import add_context, clip
from dovetail.errors import (
    ConnectError,
    ConnectionLost,
    Forbidden,
    HTTPStatusError,
    InvalidResult,
    MCPError,
    NotMCPServer,
    ParseError,
    TransportError,
    Unauthorized,
)
from dovetail.protocol.client_transport import Authorizer, Headers, MessageReceiver
from dovetail.protocol.http_checks import parse_media_type
from dovetail.protocol.limits import FetchLimits
from dovetail.transports.http_client.http1_connection import (
    ClientResponse,
    ConnectionBroken,
    InvalidHTTPResponse,
    ResponseTooLarge,
)
from dovetail.transports.http_client.http_client import HostUnreachable, HTTPClient, parse_url
from dovetail.wire.raw_message import RawMessage, read_messages

_MAX_REDIRECTS: Final = 5
_FOLLOWED_STATUS_CODES: Final = (307, 308)
_PERMANENT_REDIRECT: Final = 308
_MAX_EXCERPT_CHARS: Final = 300


class RemoteServer:
    """One URL, with what every request to it carries."""

    def __init__(
        self,
        url: str,
        *,
        max_response_bytes: int,
        connect_timeout: float,
        headers: Mapping[str, str] | None = None,
        cert: str | Path | tuple[str | Path, str | Path] | None = None,
        verify: bool | str | Path | ssl.SSLContext = True,
        proxy: str | None = None,
        authorizer: Authorizer | None = None,
    ) -> None:
        self.url = url
        self.receiver: MessageReceiver | None = None
        self._authorizer = authorizer
        self._login_tasks: set[asyncio.Task[bool]] = set()
        self._headers = [(name.lower().encode("latin-1"), value.encode()) for name, value in (headers or {}).items()]
        self._http_client = create_http_client(
            cert, verify, proxy, connect_timeout, limits=FetchLimits(max_body_bytes=max_response_bytes)
        )

    @property
    def address(self) -> str:
        """Where it is, as a user knows it."""
        return _get_address(self.url)

    async def send(self, method: str, headers: Headers, body: bytes = b"") -> ClientResponse:
        """The reply to a request, with credentials if they are asked for. A refused request was not acted upon."""
        authorizer, auth_headers = self._authorizer, ()
        redirects = refusals = 0
        url, is_permanent = self.url, method == "POST"
        while True:
            if authorizer is not None:
                auth_headers = await authorizer.get_headers(method, url)
            response = await self._fetch(method, url, [*self._headers, *auth_headers, *headers], body)
            if response.status in _FOLLOWED_STATUS_CODES and redirects < _MAX_REDIRECTS:
                redirects += 1
                url = self._follow_redirect(response)
                is_permanent = is_permanent and response.status == _PERMANENT_REDIRECT
                if is_permanent:
                    self.url = url
            elif authorizer is None or response.status not in (401, 403) or method == "DELETE":
                return response  # nobody logs in to leave
            else:
                refusals += 1
                if not await self._handle_challenge(authorizer, response, auth_headers, refusals):
                    return response
                response.close()

    async def _handle_challenge(
        self, authorizer: Authorizer, response: ClientResponse, auth_headers: Headers, attempt: int
    ) -> bool:
        challenge = response.headers.get(b"www-authenticate", b"").decode("latin-1")
        nonce = response.headers.get(b"dpop-nonce", b"").decode("latin-1") or None
        token = auth_headers[0][1].decode("ascii").partition(" ")[2] if auth_headers else None
        if self.receiver is not None:
            self.receiver.pause_timeouts()
        login = authorizer.handle_challenge(response.status, challenge, nonce, token, attempt)
        login_task = asyncio.get_running_loop().create_task(login)
        self._login_tasks.add(login_task)
        try:
            await asyncio.wait([login_task])
            if login_task.cancelled():
                raise ConnectionLost("the client was closed during a login")
            return login_task.result()
        except BaseException:
            response.close()
            raise
        finally:
            self._login_tasks.discard(login_task)
            login_task.cancel()
            if self.receiver is not None:
                self.receiver.resume_timeouts()

    async def _fetch(self, method: str, url: str, headers: Headers, body: bytes) -> ClientResponse:
        try:
            return await self._http_client.fetch(method, url, headers, body)
        except TransportError as exc:
            raise convert_error(exc, url) from None

    def _follow_redirect(self, response: ClientResponse) -> str:
        """Where a redirect leads, if it stays here."""
        response.close()
        location = _get_location(response)
        if not location:
            raise _redirect_error(response)
        target = self._resolve_same_origin(location, response.url)
        if target is None:
            raise add_context(
                HTTPStatusError(f"the server sends its callers elsewhere: {clip(location)}"),
                status_code=response.status,
                hint="use that URL if you trust it; credentials are never sent on",
            )
        return target

    def resolve_endpoint(self, location: str, base_url: str) -> str:
        """A URL the server names on a page of its own, which must be of its own origin."""
        target = self._resolve_same_origin(location, base_url)
        if target is None:
            raise NotMCPServer(f"the server names an address that is not its own: {clip(location)}")
        return target

    def _resolve_same_origin(self, location: str, base_url: str) -> str | None:
        """A location as a URL, if it is of the same origin and one that can be asked."""
        try:
            target = urljoin(base_url, location)
            return target if parse_url(target)[:3] == parse_url(self.url)[:3] else None
        except ValueError:
            return None

    async def close(self) -> None:
        """Close every connection, and wait for no login."""
        for login_task in self._login_tasks:
            login_task.cancel()
        await self._http_client.close()
        if self._authorizer is not None:
            await self._authorizer.close()


async def read_body(response: ClientResponse, url: str) -> bytes:
    """The whole body of a reply."""
    try:
        return await response.read()
    except TransportError as exc:
        raise convert_error(exc, url) from None


async def read_refusal(response: ClientResponse, url: str) -> RawMessage | MCPError:
    """What a status of 300 or more means: the error response it carries, or an exception that tells it."""
    status = response.status
    text = await read_body(response, url)
    challenge = response.headers.get(b"www-authenticate", b"").decode("latin-1")
    if status == 401 or (status == 403 and _INSUFFICIENT_SCOPE in challenge):
        return _credentials_error(status, challenge, _quote_body(response, text))
    failure = _find_error_response(text)
    if failure is not None:
        return failure
    if status == 403:
        return _credentials_error(status, challenge, _quote_body(response, text))
    if status < 400:
        return _redirect_error(response)
    excerpt = _excerpt(text)
    shown = "a web page" if _is_html(response) else repr(excerpt) if excerpt else "nothing"
    error = add_context(
        HTTPStatusError(f"the server answered with status {status} and {shown}"),
        status_code=status,
        hint=_STATUS_HINTS.get(status),
    )
    error.body = excerpt
    error.retry_after = _parse_seconds(response.headers.get(b"retry-after"))
    return error


def _is_html(response: ClientResponse) -> bool:
    return b"html" in parse_media_type(response.headers.get(b"content-type"))


def _excerpt(text: bytes) -> str:
    return clip(" ".join(text[: _MAX_EXCERPT_CHARS * 4].decode("utf-8", "replace").split()), _MAX_EXCERPT_CHARS)


def _quote_body(response: ClientResponse, text: bytes) -> str:
    excerpt = "" if _is_html(response) else _excerpt(text)
    return f" and {excerpt!r}" if excerpt else ""


def _get_location(response: ClientResponse) -> str:
    return response.headers.get(b"location", b"").decode("latin-1")


def _redirect_error(response: ClientResponse) -> HTTPStatusError:
    """A redirect that cannot be followed: it leads nowhere, or lets a request be sent on as one that has no body."""
    location = _get_location(response)
    if not location:
        error = HTTPStatusError(
            f"the server answered with status {response.status}, a redirect that does not say where to"
        )
        return add_context(error, status_code=response.status, hint="is the URL right, down to the last slash?")
    error = HTTPStatusError(f"the server answered with status {response.status}, a redirect to {clip(location, 200)}")
    return add_context(
        error, status_code=response.status, hint="use that URL if it is the server's; if it is a login page, give auth="
    )


_INSUFFICIENT_SCOPE: Final = "insufficient_scope"
_CHALLENGE_PARAM_PATTERN: Final = re.compile(
    r'\b(error|error_description|scope)="([^"\\]*)"'
)  # enough to tell a user, not to act upon
_CONNECT_HINT: Final = "is the server running, and is that its address?"
_PLAIN_HTTP_HINT: Final = "it does not answer in TLS: is its address http:// rather than https://?"
_STATUS_HINTS: Final = {
    404: "is the path right? MCP servers are often at /mcp",
    405: "is the path right? MCP servers are often at /mcp",
    429: "these are too many requests for the server; try again later, or less often",
    421: "the server does not know itself by this host name; its allowed_hosts or public_url says which it does",
    500: "look into the server's log",
    502: "is the server behind the proxy running?",
    503: "the server is busy or starting; try again in a moment",
    504: "the proxy gave up waiting for the server",
}


def _find_error_response(text: bytes) -> RawMessage | None:
    try:
        for message in read_messages(text):
            if message.error is not None:
                return message
    except ParseError:
        pass
    return None


def _credentials_error(status: int, challenge: str, body_quote: str) -> MCPError:
    """What a 401 or 403 says of the credentials that were sent, or were not. RFC 6750, section 3.1"""
    params = {name: clip(value) for name, value in _CHALLENGE_PARAM_PATTERN.findall(challenge)}
    description = params.get("error_description") or params.get("error")
    can_log_in = not challenge or "resource_metadata=" in challenge  # whether there is somewhere to log in, or may be
    detail = f": {description}" if description else f" (status {status}{body_quote})"
    if _INSUFFICIENT_SCOPE in challenge:
        error = Forbidden(f"the credentials lack the scope {params.get('scope', 'this takes')}")
        hint = 'auth="oauth" asks the user for it; a token of your own must be issued with it'
    elif status == 403:
        error = Forbidden(f"the server refuses these credentials or this caller{detail}")
        hint = "check what the token is for, or the server's allowed hosts and origins"
    elif description:
        error = Unauthorized(f"the server does not take these credentials: {description}")
        hint = "get a fresh token" + (', or log in: auth="oauth"' if can_log_in else " from whoever runs the server")
    else:
        error = Unauthorized(f"the server asks for credentials{detail}")
        hint = ('log in: auth="oauth"; or ' if can_log_in else "") + 'give a token you have: auth=BearerAuth("…")'
    error.challenge, error.status_code = challenge, status
    return add_context(error, hint=hint)


def _parse_seconds(value: bytes | None) -> float | None:
    return float(value) if value is not None and value.isdigit() and len(value) < 6 else None


def convert_error(exc: TransportError, url: str) -> MCPError:
    """A failure of the HTTP client in the client's own words."""
    match exc:
        case HostUnreachable():
            return add_context(
                ConnectError(exc.reason),
                hint=_PLAIN_HTTP_HINT if "wrong version number" in exc.reason.lower() else _CONNECT_HINT,
            )
        case ConnectionBroken():
            error = ConnectionLost("the connection was lost before the answer came")
            error.maybe_sent = exc.sent
            return error
        case ResponseTooLarge():
            return add_context(
                InvalidResult(f"the answer is too large: {exc.args[0]}"),
                hint="raise ClientLimits(max_response_bytes=...)",
            )
        case InvalidHTTPResponse():
            return NotMCPServer(f"what {_get_address(url)} answers is not HTTP as it should be: {exc.args[0]}")
        case _:
            return exc


def _get_address(url: str) -> str:
    return clip(urlsplit(url).netloc.rpartition("@")[2])


def create_http_client(
    cert: str | Path | tuple[str | Path, str | Path] | None,
    verify: bool | str | Path | ssl.SSLContext,
    proxy: str | None,
    connect_timeout: float,
    **client_options: Any,
) -> HTTPClient:
    """Create an HTTP client with a user's settings."""
    return HTTPClient(
        tls=_create_tls_context(verify, cert), proxy=proxy, connect_timeout=connect_timeout, **client_options
    )


def check_certificate_files(verify: object, cert: object) -> None:
    """Raise FileNotFoundError unless the files of certificates exist."""
    for option, paths in (("verify", verify), ("cert", cert)):
        for path in paths if isinstance(paths, tuple) else (paths,):
            if isinstance(path, str | Path) and not Path(path).is_file():
                raise FileNotFoundError(f"{option}= names a file that does not exist: {str(path)!r}")


def _create_tls_context(verify: bool | str | Path | ssl.SSLContext, cert: Any) -> ssl.SSLContext | None:
    if isinstance(verify, ssl.SSLContext):
        return verify
    if verify is True and cert is None:
        return None
    check_certificate_files(verify, cert)
    context = ssl.create_default_context(cafile=None if isinstance(verify, bool) else str(verify))
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if cert is not None:
        certificate, key = cert if isinstance(cert, tuple) else (cert, None)
        context.load_cert_chain(str(certificate), str(key) if key is not None else None)
    return context
