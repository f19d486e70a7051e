"""HTTP calls of a login with SSRF checks: small, short, not redirected, and only to addresses that the server may
name.

Documents are fetched only from places the server itself could be asked to name: never from this machine or network on
behalf of a public server, and never in the clear where the server is not. What the user named is no server's word.
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
from dovetail.oauth.flow import HTTPRequest, HTTPResponse
from dovetail.oauth.metadata import get_origin, is_secure_url, parse_web_url
from dovetail.protocol.limits import FetchLimits
from dovetail.transports.http_client.http_client import HTTPClient

_MAX_DOCUMENT_BYTES: Final = 256 * 1024
DOCUMENT_TIMEOUT_S: Final = 5.0
TOKEN_TIMEOUT_S: Final = 30.0  # a code or a refresh token is spent by asking, so the answer is worth waiting for

_PRIVATE_NETWORK_ERROR: Final = "it is in this network, where a server elsewhere may not send us"
_PRIVATE_NETWORK_HINT: Final = (
    "if you trust it, pass allow_private_network=True, such as OAuth(allow_private_network=True)"
)
_LOCAL_NAMES: Final = ("localhost", "localhost.localdomain")
_LOCAL_SUFFIXES: Final = (".localhost", ".local", ".internal")
_GLOBAL_UNICAST: Final = ipaddress.ip_network("2000::/3")
_HOST_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


class SafeFetcher:
    """The web as far as the server at a URL may send us about in it; for one login."""

    def __init__(
        self,
        url: str,
        allow_private_network: bool | None,
        make_fetcher: Callable[..., HTTPClient],
        make_server_fetcher: Callable[..., HTTPClient] | None = None,  # for calls to the server's own origin
        trusted_url: str | None = None,  # the one address the user named, wherever it is
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

    async def fetch(self, request: HTTPRequest) -> HTTPResponse:
        """The answer; status 0 where there is none, or none may be asked for."""
        parts = parse_web_url(request.url)
        if parts is None:
            return HTTPResponse(0, error="it is no web address")
        if not (self._allows_http or is_secure_url(request.url)):
            return HTTPResponse(0, error="it is not https")
        # Addresses are screened when they are connected to; but a proxy would connect to a name by itself.
        if (
            not self._allows_private_network
            and request.url != self._trusted_url
            and is_local_host(parts.hostname or "")
        ):
            return HTTPResponse(0, error=_PRIVATE_NETWORK_ERROR, hint=_PRIVATE_NETWORK_HINT)
        if get_origin(parts) == self._origin:
            return await send_request(self._server_fetcher, request)
        return await send_request(self._trusted_fetcher if request.url == self._trusted_url else self._fetcher, request)

    async def close(self) -> None:
        """Close every connection."""
        await self._fetcher.close()
        await self._server_fetcher.close()
        await self._trusted_fetcher.close()


async def send_request(fetcher: HTTPClient, request: HTTPRequest) -> HTTPResponse:
    """What comes back for a call; status 0 where nothing does that can be read."""
    headers = [(name.encode("ascii"), value.encode("latin-1", "replace")) for name, value in request.headers.items()]
    try:
        async with asyncio.timeout(DOCUMENT_TIMEOUT_S if request.method == "GET" else TOKEN_TIMEOUT_S):
            response = await fetcher.fetch(request.method, request.url, headers, request.body)
            body = await response.read()
    except TimeoutError:
        return HTTPResponse(0, error="no answer came in time")
    except (TransportError, ValueError) as exc:
        if isinstance(exc.__cause__, OSError) and exc.__cause__.errno == errno.EACCES:
            return HTTPResponse(0, error=_PRIVATE_NETWORK_ERROR, hint=_PRIVATE_NETWORK_HINT)
        return HTTPResponse(0, error=clip(str(exc)))
    response_headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers.items()}
    return HTTPResponse(response.status, response_headers, body)


def is_public_address(address: str) -> bool:
    """Whether an address is of the internet at large: not of this machine, this network, or a tunnel into them."""
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
    """Whether a host is named as one of this machine or network, so that its documents may be there too."""
    name = _normalize_host(host)
    if name in _LOCAL_NAMES or name.endswith(_LOCAL_SUFFIXES):
        return True
    if ":" in name or _HOST_NUMBER.fullmatch(name.rpartition(".")[2]):
        return not is_public_address(_normalize_address(name))
    return "." not in name


def _normalize_host(host: str) -> str:
    """A host as it is looked up: letters and digits of other scripts may stand for plain ones."""
    if ":" in host:
        return host
    with contextlib.suppress(UnicodeError):
        host = host.encode("idna").decode("ascii")
    return host.lower().rstrip(".")


def _normalize_address(name: str) -> str:
    """An address as everyone writes it; resolvers take shorter ones too, and octal and hexadecimal digits."""
    try:
        return name if ":" in name else socket.inet_ntoa(socket.inet_aton(name))
    except OSError:
        return ""
