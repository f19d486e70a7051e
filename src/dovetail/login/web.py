"""The HTTP calls of a login: small, soon over, never redirected, and within what the server's place allows.

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

from dovetail.auth.documents import origin, secure, web_address
from dovetail.auth.flow import HttpAnswer, HttpCall
from dovetail.errors import TransportError, clip
from dovetail.protocol.limits import FetchLimits
from dovetail.transports.fetch import Fetcher

_DOCUMENT: Final = 256 * 1024
DOCUMENT_TIMEOUT_S: Final = 5.0
TOKEN_TIMEOUT_S: Final = 30.0  # a code or a refresh token is spent by asking, so the answer is worth waiting for

_INSIDE: Final = "it is in this network, where a server elsewhere may not send us"
_LOCAL: Final = "if it is yours, say so: local=True in what auth= is, such as OAuth(local=True)"
_LOCAL_NAMES: Final = ("localhost", "localhost.localdomain")
_LOCAL_ENDINGS: Final = (".localhost", ".local", ".internal")
_GLOBAL_UNICAST: Final = ipaddress.ip_network("2000::/3")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


class Web:
    """The web as far as the server at a URL may send us about in it; for one login."""

    def __init__(
        self,
        url: str,
        local: bool | None,
        make_fetcher: Callable[..., Fetcher],
        make_own: Callable[..., Fetcher] | None = None,  # for calls to the server's own origin
        named: str | None = None,  # the one address the user named, wherever it is
    ) -> None:
        parts = urlsplit(url)
        self._origin = origin(parts)
        self._clear = parts.scheme == "http"
        self._local = is_local(parts.hostname or "") if local is None else local
        screen = None if self._local else is_public
        self._fetcher = make_fetcher(limits=FetchLimits(body=_DOCUMENT), screen=screen)
        self._own = make_own(limits=FetchLimits(body=_DOCUMENT), screen=screen) if make_own else self._fetcher
        self._named = named
        free = screen is None or named is None
        self._trusting = self._fetcher if free else make_fetcher(limits=FetchLimits(body=_DOCUMENT), screen=None)

    async def call(self, call: HttpCall) -> HttpAnswer:
        """The answer; status 0 where there is none, or none may be asked for."""
        parts = web_address(call.url)
        if parts is None:
            return HttpAnswer(0, why="it is no web address")
        if not (self._clear or secure(call.url)):
            return HttpAnswer(0, why="it is not https")
        # Addresses are screened when they are connected to; but a proxy would connect to a name by itself.
        if not self._local and call.url != self._named and is_local(parts.hostname or ""):
            return HttpAnswer(0, why=_INSIDE, hint=_LOCAL)
        if origin(parts) == self._origin:
            return await answered(self._own, call)
        return await answered(self._trusting if call.url == self._named else self._fetcher, call)

    async def close(self) -> None:
        """Close every connection."""
        await self._fetcher.close()
        await self._own.close()
        await self._trusting.close()


async def answered(fetcher: Fetcher, call: HttpCall) -> HttpAnswer:
    """What comes back for a call; status 0 where nothing does that can be read."""
    headers = [(name.encode("ascii"), value.encode("latin-1", "replace")) for name, value in call.headers.items()]
    try:
        async with asyncio.timeout(DOCUMENT_TIMEOUT_S if call.method == "GET" else TOKEN_TIMEOUT_S):
            reply = await fetcher.fetch(call.method, call.url, headers, call.body)
            body = await reply.read()
    except TimeoutError:
        return HttpAnswer(0, why="no answer came in time")
    except (TransportError, ValueError) as exc:
        if isinstance(exc.__cause__, OSError) and exc.__cause__.errno == errno.EACCES:
            return HttpAnswer(0, why=_INSIDE, hint=_LOCAL)
        return HttpAnswer(0, why=clip(str(exc)))
    found = {name.decode("latin-1"): value.decode("latin-1") for name, value in reply.headers.items()}
    return HttpAnswer(reply.status, found, body)


def is_public(address: str) -> bool:
    """Whether an address is of the internet at large: not of this machine, this network, or a tunnel into them."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv4Address):
        return ip.is_global and not ip.is_multicast
    inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
    if inner is None and ip in _NAT64:
        inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    if inner is not None:
        return is_public(str(inner))
    return ip in _GLOBAL_UNICAST and ip.is_global


def is_local(host: str) -> bool:
    """Whether a host is named as one of this machine or network, so that its documents may be there too."""
    name = _spelled(host)
    if name in _LOCAL_NAMES or name.endswith(_LOCAL_ENDINGS):
        return True
    if ":" in name or _NUMBER.fullmatch(name.rpartition(".")[2]):
        return not is_public(_number(name))
    return "." not in name


def _spelled(host: str) -> str:
    """A host as it is looked up: letters and digits of other scripts may stand for plain ones."""
    if ":" in host:
        return host
    with contextlib.suppress(UnicodeError):
        host = host.encode("idna").decode("ascii")
    return host.lower().rstrip(".")


def _number(name: str) -> str:
    """An address as everyone writes it; resolvers take shorter ones too, and octal and hexadecimal digits."""
    try:
        return name if ":" in name else socket.inet_ntoa(socket.inet_aton(name))
    except OSError:
        return ""
