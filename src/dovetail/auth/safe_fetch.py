"""HTTP requests of a login, with protection against server-side request forgery (SSRF).

Requests are small and short, follow no redirects, and go only to allowed addresses.

A public server must not direct the client to this machine, its network, or a plain http URL. URLs that the user passes
are not restricted.
"""

import asyncio
import contextlib
import errno
import ipaddress
import re
import socket
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from dovetail.error_context import clip
from dovetail.errors import TransportError
from dovetail.oauth.flow import FetchResponse, FetchUntrusted
from dovetail.oauth.metadata import get_origin, is_secure_url, parse_web_url
from dovetail.protocol.http_checks import NAT64_NETWORK
from dovetail.protocol.interfaces.http_types import HTTPRequest
from dovetail.protocol.limits import FetchLimits
from dovetail.transports.http_client.http_client import HTTPClient

_MAX_DOCUMENT_BYTES: Final = 256 * 1024
_IDLE_TIMEOUT_S: Final = 1.0  # Callers choose these servers, so an idle connection is closed soon.
DOCUMENT_TIMEOUT_S: Final = 5.0
# If a token response is lost, the user must log in again, so the client waits longer than usual.
TOKEN_TIMEOUT_S: Final = 30.0

_PRIVATE_NETWORK_ERROR: Final = "the address is in the local network, which a remote server may not use"
_PRIVATE_NETWORK_HINT: Final = (
    "if you trust it, pass allow_private_network=True, for example OAuth(allow_private_network=True)"
)
_LOCAL_NAMES: Final = ("localhost", "localhost.localdomain")
# Only hosts in local networks have names with these endings.
_LOCAL_SUFFIXES: Final = (
    ".localhost", ".local", ".internal", ".localdomain", ".lan", ".home", ".home.arpa", ".corp", ".intranet",
    ".private",
)  # fmt: skip
_GLOBAL_UNICAST: Final = ipaddress.ip_network("2000::/3")
_HOST_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_NAT64: Final = ipaddress.ip_network(NAT64_NETWORK)


class SafeFetcher:
    """Sends the HTTP requests of one login, but only to allowed addresses."""

    def __init__(
        self,
        url: str,
        allow_private_network: bool | None,
        make_fetcher: Callable[..., HTTPClient],
        # This function creates the HTTP client for requests to the origin of the MCP server.
        make_server_fetcher: Callable[..., HTTPClient] | None = None,
        # The user passed this URL, so its host may have a private address.
        trusted_url: str | None = None,
    ) -> None:
        parts = urlsplit(url)
        self._origin = get_origin(parts)
        self._allows_http = parts.scheme == "http"
        self._allows_private_network = (
            is_local_host(parts.hostname or "") if allow_private_network is None else allow_private_network
        )
        address_filter = None if self._allows_private_network else is_public_address
        self._fetcher = make_fetcher(
            limits=FetchLimits(max_body_bytes=_MAX_DOCUMENT_BYTES), address_filter=address_filter
        )
        self._server_fetcher = (
            make_server_fetcher(limits=FetchLimits(max_body_bytes=_MAX_DOCUMENT_BYTES), address_filter=address_filter)
            if make_server_fetcher
            else self._fetcher
        )
        self._trusted_url = trusted_url
        is_unfiltered = address_filter is None or trusted_url is None
        self._trusted_fetcher = (
            self._fetcher
            if is_unfiltered
            else make_fetcher(limits=FetchLimits(max_body_bytes=_MAX_DOCUMENT_BYTES), address_filter=None)
        )

    async def fetch(self, request: HTTPRequest) -> FetchResponse:
        """Send a request and return the response. If the URL is forbidden or there was no response, the status is 0."""
        parts = parse_web_url(request.url)
        if parts is None:
            return FetchResponse(0, error="the URL is not a valid web URL")
        if not (self._allows_http or is_secure_url(request.url)):
            return FetchResponse(0, error="the URL must be an https URL")
        # A proxy resolves the host name itself, so the name is checked here.
        # IP addresses are checked when the client connects.
        if (
            not self._allows_private_network
            and request.url != self._trusted_url
            and is_local_host(parts.hostname or "")
        ):
            return FetchResponse(0, error=_PRIVATE_NETWORK_ERROR, hint=_PRIVATE_NETWORK_HINT)
        if get_origin(parts) == self._origin:
            return await send_request(self._server_fetcher, request)
        return await send_request(self._trusted_fetcher if request.url == self._trusted_url else self._fetcher, request)

    async def close(self) -> None:
        """Close every connection."""
        await self._fetcher.close()
        await self._server_fetcher.close()
        await self._trusted_fetcher.close()


class ServerFetcher:
    """Sends the HTTP requests of a guard or an authorization server. Event loops do not share connections."""

    def __init__(self, *, max_untrusted_bytes: int = _MAX_DOCUMENT_BYTES) -> None:
        self._max_untrusted_bytes = max_untrusted_bytes
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fetcher: HTTPClient | None = None
        self._filtered_fetcher: HTTPClient | None = None

    async def fetch(self, request: HTTPRequest) -> FetchResponse:
        """Send an HTTP request to a trusted URL, such as the URL of an issuer, and return the response."""
        self._forget_other_loop()
        if self._fetcher is None:
            self._fetcher = HTTPClient(
                limits=FetchLimits(max_body_bytes=_MAX_DOCUMENT_BYTES),
                idle_timeout=_IDLE_TIMEOUT_S,
                trusts_keep_alive=False,
            )
        return await send_request(self._fetcher, request)

    async def fetch_untrusted(self, action: FetchUntrusted) -> FetchResponse:
        """Fetch a document from a URL that a caller sent. Only public addresses are allowed."""
        self._forget_other_loop()
        if self._filtered_fetcher is None:
            # Proxy settings are ignored, because a proxy would also connect to private addresses.
            self._filtered_fetcher = HTTPClient(
                limits=FetchLimits(max_body_bytes=self._max_untrusted_bytes),
                address_filter=is_public_address,
                idle_timeout=_IDLE_TIMEOUT_S,
                trusts_keep_alive=False,
                trust_env=False,
            )
        return await send_request(self._filtered_fetcher, HTTPRequest("GET", action.url))

    async def close(self) -> None:
        """Close every connection."""
        self._forget_other_loop()
        fetchers, self._fetcher, self._filtered_fetcher = (self._fetcher, self._filtered_fetcher), None, None
        for fetcher in fetchers:
            if fetcher is not None:
                await fetcher.close()

    def _forget_other_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._fetcher, self._filtered_fetcher = loop, None, None


async def send_request(fetcher: HTTPClient, request: HTTPRequest) -> FetchResponse:
    """Send a request and return the response. If there was no response, the status is 0 and `error` has the reason."""
    try:
        async with asyncio.timeout(DOCUMENT_TIMEOUT_S if request.method == "GET" else TOKEN_TIMEOUT_S):
            response = await fetcher.send(request)
    except TimeoutError:
        return FetchResponse(0, error="no response in time")
    except (TransportError, ValueError) as exc:
        if isinstance(exc.__cause__, OSError) and exc.__cause__.errno == errno.EACCES:
            return FetchResponse(0, error=_PRIVATE_NETWORK_ERROR, hint=_PRIVATE_NETWORK_HINT)
        return FetchResponse(0, error=clip(str(exc)))
    return FetchResponse(response.status_code, response.headers, response.body)


def is_public_address(address: str) -> bool:
    """Return whether an IP address is public.

    Addresses of this machine, of private networks, and of tunnels to them are not public.
    """
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv4Address):
        return ip.is_global and not ip.is_multicast
    embedded = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
    if embedded is None and ip in _NAT64:
        embedded = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    if embedded is not None:
        return is_public_address(str(embedded))
    return ip in _GLOBAL_UNICAST and ip.is_global


def is_local_host(host: str) -> bool:
    """Return whether a host is on this machine or in a private network."""
    name = _normalize_host(host)
    if name in _LOCAL_NAMES or name.endswith(_LOCAL_SUFFIXES):
        return True
    if ":" in name or _HOST_NUMBER.fullmatch(name.rpartition(".")[2]):
        return not is_public_address(_normalize_address(name))
    return "." not in name


def _normalize_host(host: str) -> str:
    """Return a host name in ASCII and lower case, as a resolver would read it."""
    if ":" in host:
        return host
    with contextlib.suppress(UnicodeError):
        host = host.encode("idna").decode("ascii")
    return host.lower().rstrip(".")


def _normalize_address(name: str) -> str:
    """Convert a short, octal or hexadecimal IP address to its usual form, because resolvers accept all these forms."""
    try:
        return name if ":" in name else socket.inet_ntoa(socket.inet_aton(name))
    except OSError:
        return ""
