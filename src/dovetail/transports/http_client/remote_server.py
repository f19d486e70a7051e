"""Send HTTP requests to the URL of an MCP server, and explain rejected requests with errors and hints.

The client follows redirects only to the same origin, so credentials never reach another origin. A permanent redirect of
a POST applies to later requests, too. Any other redirect applies to one request.
"""

import asyncio
import re
import ssl
from collections.abc import AsyncIterable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar
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
from dovetail.protocol.http_checks import parse_media_type
from dovetail.protocol.interfaces.client_transport import Authorizer, Headers, MessageReceiver
from dovetail.protocol.limits import FetchLimits
from dovetail.protocol.sse import ServerSentEvent, SSEParser, split_chunk
from dovetail.transports.http_client.cookies import CookieJar
from dovetail.transports.http_client.http1_connection import (
    ClientResponse,
    ConnectionBroken,
    InvalidHTTPResponse,
    ResponseTooLarge,
)
from dovetail.transports.http_client.http_client import HostUnreachable, HTTPClient, parse_url
from dovetail.version import VERSION
from dovetail.wire.raw_message import RawMessage, read_messages

_USER_AGENT: Final = (b"user-agent", f"dovetail/{VERSION}".encode())
_MAX_REDIRECTS: Final = 5
_FOLLOWED_STATUS_CODES: Final = (307, 308)
_PERMANENT_REDIRECT: Final = 308
_MAX_EXCERPT_CHARS: Final = 300
_EVENTS_PER_ITERATION: Final = 50

T = TypeVar("T")


class RemoteServer:
    """A server's URL, with the headers, credentials and cookies for every request.

    Args:
        cookie_jar: The cookies of the server, or None to ignore cookies. A Cookie header in `headers` replaces them.
    """

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
        cookie_jar: CookieJar | None = None,
    ) -> None:
        self.url = url
        self.receiver: MessageReceiver | None = None
        self._authorizer = authorizer
        self._has_answered = False  # True after the server has sent an HTTP response.
        self._login_tasks: set[asyncio.Task[bool]] = set()
        self._headers = [(name.lower().encode("latin-1"), value.encode()) for name, value in (headers or {}).items()]
        names = {name for name, _ in self._headers}
        self._cookie_jar = None if b"cookie" in names else cookie_jar
        if b"user-agent" not in names:
            self._headers.append(_USER_AGENT)
        self._http_client = create_http_client(
            cert, verify, proxy, connect_timeout, limits=FetchLimits(max_body_bytes=max_response_bytes)
        )

    @property
    def address(self) -> str:
        """Return the address of the server for error messages."""
        return _get_address(self.url)

    async def send(self, method: str, headers: Headers, body: bytes = b"") -> ClientResponse:
        """Send a request to the server. If the server asks for credentials, log in and send the request again.

        Sending again is safe, because the server did not execute the rejected request.
        """
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
                return response  # The client does not log in only to end a session.
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

    async def _fetch(self, method: str, url: str, headers: list[tuple[bytes, bytes]], body: bytes) -> ClientResponse:
        """Send a request to a URL of this server's origin."""
        cookie_jar = self._cookie_jar
        if cookie_jar is not None and cookie_jar.cookies and (cookies := cookie_jar.build_header(url)):
            headers.append((b"cookie", cookies))
        try:
            response = await self._http_client.fetch(method, url, headers, body)
        except TransportError as exc:
            error = convert_error(exc, url)
            # A TLS server closes the connection or sends a TLS alert after a plain request.
            is_plain = url.startswith("http:") and isinstance(exc, ConnectionBroken | InvalidHTTPResponse)
            raise add_context(error, hint=_TLS_HINT if is_plain and not self._has_answered else None) from None
        self._has_answered = True
        if cookie_jar is not None and (cookies := response.headers.get(b"set-cookie")):
            cookie_jar.store(cookies, url)
        return response

    def _follow_redirect(self, response: ClientResponse) -> str:
        """Return the target of a redirect. Raise HTTPStatusError if the target has another origin."""
        response.close()
        location = _get_location(response)
        if not location:
            raise _redirect_error(response)
        target = self._resolve_same_origin(location, response.url)
        if target is None:
            raise add_context(
                HTTPStatusError(f"the server redirects to another origin, which is not allowed: {_quote(location)}"),
                status_code=response.status,
                hint="connect to the new URL if you trust it. Credentials are never sent to another origin",
            )
        return target

    def resolve_endpoint(self, location: str, base_url: str) -> str:
        """Resolve an endpoint URL from the server. Raise NotMCPServer if it has another origin."""
        target = self._resolve_same_origin(location, base_url)
        if target is None:
            raise NotMCPServer(f"the server sent an endpoint URL with another origin: {_quote(location)}")
        return target

    def _resolve_same_origin(self, location: str, base_url: str) -> str | None:
        try:
            target = urljoin(base_url, location)
            return target if parse_url(target)[:3] == parse_url(self.url)[:3] else None
        except ValueError:
            return None

    async def close(self) -> None:
        """Close every connection and cancel pending logins."""
        for login_task in self._login_tasks:
            login_task.cancel()
        await self._http_client.close()
        if self._authorizer is not None:
            await self._authorizer.close()


async def read_body(response: ClientResponse, url: str) -> bytes:
    """Read the body of a response, and return it as bytes."""
    try:
        return await response.read()
    except TransportError as exc:
        raise convert_error(exc, url) from None


async def read_events(
    response: AsyncIterable[bytes], parser: SSEParser, handle: Callable[[ServerSentEvent], T | None]
) -> T | None:
    """Call `handle` for each event of a stream until `handle` returns a value. Return the value.

    Return None if the stream ends first. Other tasks run after a limited number of events, because a stream with many
    events may arrive in one chunk.
    """
    event_count = 0
    async for chunk in response:
        for piece in split_chunk(chunk):
            for event in parser.feed(piece):
                value = handle(event)
                if value is not None:
                    return value
                event_count += 1
                if event_count % _EVENTS_PER_ITERATION == 0:
                    await asyncio.sleep(0)
    return None


async def read_refusal(response: ClientResponse, url: str) -> RawMessage | MCPError:
    """Return the JSON-RPC error in a failed HTTP response. If the response has none, return an exception."""
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
        hint=_STATUS_HINTS.get(status, _WEB_PAGE_HINT if _is_html(response) else None),
    )
    error.body = excerpt
    error.retry_after = _parse_seconds(response.headers.get(b"retry-after"))
    return error


def _is_html(response: ClientResponse) -> bool:
    return b"html" in parse_media_type(response.headers.get(b"content-type"))


def _excerpt(text: bytes) -> str:
    return _quote(" ".join(text[: _MAX_EXCERPT_CHARS * 4].decode("utf-8", "replace").split()), _MAX_EXCERPT_CHARS)


def _quote_body(response: ClientResponse, text: bytes) -> str:
    failure = _find_error_response(text)
    message = failure.error.message if failure is not None and failure.error is not None else None
    excerpt = "" if _is_html(response) else _excerpt(text) if message is None else _quote(message)
    return f" and {excerpt!r}" if excerpt else ""


def _quote(text: str, max_chars: int = 200) -> str:
    """Quote a server's text in an error message.

    The text may repeat the client's URL with a secret, so secrets are masked.
    """
    from dovetail.protocol.redaction import mask_text  # This import is here because only errors need the module.

    return clip(mask_text(text), max_chars)


def _get_location(response: ClientResponse) -> str:
    return response.headers.get(b"location", b"").decode("latin-1")


def _redirect_error(response: ClientResponse) -> HTTPStatusError:
    location = _get_location(response)
    if not location:
        error = HTTPStatusError(f"the server answered with status {response.status}, a redirect without a target")
        return add_context(error, status_code=response.status, hint="check the URL, including a slash at the end")
    error = HTTPStatusError(f"the server answered with status {response.status}, a redirect to {_quote(location)}")
    return add_context(
        error,
        status_code=response.status,
        hint="if the new URL is the server's, connect to it. If it is a login page, pass auth=",
    )


_INSUFFICIENT_SCOPE: Final = "insufficient_scope"
# This pattern misses some valid headers. The matches are used only in error messages.
_CHALLENGE_PARAM_PATTERN: Final = re.compile(r'\b(error|error_description|scope)="([^"\\]*)"')
_CONNECT_HINT: Final = "is the server running, and is the address correct?"
_CERTIFICATE_HINT: Final = (
    "for a private certificate, set SSL_CERT_FILE to its CA file, or pass HTTPTarget(url, verify='ca.pem')"
)
_NAME_HINT: Final = "the certificate is for another host. Use a host name of the certificate in the URL"
# Hints for the error codes of OpenSSL. All other problems of a certificate have the hint about private certificates.
_HINTS_BY_VERIFY_CODE: Final = {
    9: "the certificate of the server is not valid yet. Check the clock of this machine",
    10: "the certificate of the server has expired. Its operator must renew it. Also check the clock of this machine",
    62: _NAME_HINT,
    64: _NAME_HINT,  # The host of the URL is an IP address, not a name.
}
_PLAIN_HTTP_HINT: Final = "the server does not use TLS. Did you mean http:// instead of https://?"
_TLS_HINT: Final = "does the server use TLS? Then use https:// instead of http://"
_WEB_PAGE_HINT: Final = "this is probably a web site and not an MCP server. Check the host, the port and the path"
_STATUS_HINTS: Final = {
    404: "is the path right? MCP servers are often at /mcp",
    405: "is the path right? MCP servers are often at /mcp",
    429: "the server received too many requests. Try again later, or less often",
    421: "the server does not accept this host name. Check its allowed_hosts or public_url",
    501: "this is probably a web server for files and not an MCP server. Check the host, the port and the path",
    500: "check the server's log",
    502: "is the server behind the proxy running?",
    503: "the server is busy or starting. Try again in a moment",
    504: "the proxy timed out waiting for the server",
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
    """Return the error for status 401 or 403, with details from the WWW-Authenticate header. RFC 6750, section 3.1"""
    params = {name: clip(value) for name, value in _CHALLENGE_PARAM_PATTERN.findall(challenge)}
    description = params.get("error_description") or params.get("error")
    can_log_in = not challenge or "resource_metadata=" in challenge  # True if a login may help
    detail = f": {description}" if description else f" (status {status}{body_quote})"
    if _INSUFFICIENT_SCOPE in challenge:
        scopes = f": {params['scope']}" if "scope" in params else ""
        # Servers also list the scopes that the token already has, because older clients need the full list.
        error = Forbidden(f"the credentials do not have every scope that this request needs{scopes}")
        hint = "pass a token that has these scopes" + (', or log in: auth="oauth"' if can_log_in else "")
    elif status == 403:
        error = Forbidden(f"the server rejected the credentials or the caller{detail}")
        hint = "check the scopes and audience of the token, or the server's allowed hosts and origins"
    elif description:
        error = Unauthorized(f"the server rejected the credentials: {description}")
        hint = "get a new token" + (', or log in: auth="oauth"' if can_log_in else " from the operator of the server")
    else:
        error = Unauthorized(f"the server requires credentials{detail}")
        hint = ('log in: auth="oauth", or ' if can_log_in else "") + 'pass a token: auth=BearerAuth("…")'
    error.challenge, error.status_code = challenge, status
    return add_context(error, hint=hint)


def _parse_seconds(value: bytes | None) -> float | None:
    return float(value) if value is not None and value.isdigit() and len(value) < 6 else None


def _suggest_fix(exc: HostUnreachable) -> str:
    if isinstance(exc.__cause__, ssl.SSLCertVerificationError):
        return _HINTS_BY_VERIFY_CODE.get(exc.__cause__.verify_code, _CERTIFICATE_HINT)
    return _PLAIN_HTTP_HINT if "wrong version number" in exc.reason.lower() else _CONNECT_HINT


def convert_error(exc: TransportError, url: str) -> MCPError:
    """Convert an error of the HTTP client to an MCPError."""
    match exc:
        case HostUnreachable():
            return add_context(ConnectError(exc.reason), hint=_suggest_fix(exc))
        case ConnectionBroken():
            error = ConnectionLost("the connection was lost before the response arrived")
            error.maybe_sent = exc.sent
            return error
        case ResponseTooLarge():
            return add_context(
                InvalidResult(f"the response is too large: {exc.args[0]}"),
                hint="raise ClientLimits(max_response_bytes=...)",
            )
        case InvalidHTTPResponse():
            return NotMCPServer(f"{_get_address(url)} sent an invalid HTTP response: {exc.args[0]}")
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
    """Create an HTTP client with the TLS, proxy and timeout options of the user."""
    return HTTPClient(
        tls=_create_tls_context(verify, cert), proxy=proxy, connect_timeout=connect_timeout, **client_options
    )


def check_certificate_files(verify: object, cert: object) -> None:
    """Raise FileNotFoundError if a certificate file does not exist."""
    for option, paths in (("verify", verify), ("cert", cert)):
        for path in paths if isinstance(paths, tuple) else (paths,):
            if isinstance(path, str | Path) and not Path(path).is_file():
                raise FileNotFoundError(f"the file in {option}= does not exist: {str(path)!r}")


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
