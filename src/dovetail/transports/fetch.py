"""The HTTP/1.1 client: requests over connections that are kept, given back and reused. Knows neither MCP nor JSON.

A request is written at most once, and only to a connection that shows no sign of an end: whoever catches an error knows
whether anything of it may have left. Redirects are the caller's to follow.
"""

import asyncio
import contextlib
import os
import re
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from ipaddress import IPv6Address
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from dovetail.errors import TransportError
from dovetail.protocol.limits import FetchLimits
from dovetail.transports import proxies
from dovetail.transports.dial import Screen, dial
from dovetail.transports.http1 import Broken, Connection, Reply
from dovetail.transports.inflate import BadReply, TooLarge
from dovetail.transports.proxies import Proxy

__all__ = ["BadReply", "Broken", "FetchLimits", "Fetcher", "Reply", "TooLarge", "Unreachable"]

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_NAME = re.compile(r"[a-z0-9_.-]+")
_UNFIT = re.compile(r"[\x00-\x20\x7f]")
# A second opinion on these could make one request look like two, or tell the target what is for the proxy.
OWN_HEADERS = {
    b"accept-encoding", b"connection", b"content-length", b"expect", b"host", b"proxy-authorization", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
}  # fmt: skip
_REMEMBERED = 256  # routes, and names of headers


class Unreachable(TransportError):
    """No connection came about, so nothing was sent; `why` says it in a sentence."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Origin(NamedTuple):
    """Where connections lead: those to the same origin are interchangeable."""

    scheme: str
    host: str
    port: int
    proxy: Proxy | None

    @property
    def address(self) -> str:
        """Host and port, as CONNECT and messages name them."""
        return f"{_bracketed(self.host)}:{self.port}"


class Route(NamedTuple):
    """What is the same for all requests of a method to a URL."""

    origin: Origin
    start: bytes


class Fetcher:
    """Sends requests. Belongs to the loop it is first used on; close it to close its connections."""

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        proxy: str | None = None,
        trust_env: bool = True,
        connect_time: float = 10.0,
        idle_time: float = 4.0,  # below the five seconds after which uvicorn and Node close a quiet connection
        limits: FetchLimits | None = None,
        screen: Screen | None = None,  # which addresses may be connected to; a proxy is the user's own choice
    ) -> None:
        self._tls = tls
        self._screen = screen
        self._proxy = proxies.parse(proxy) if proxy else None
        self._trust_env = trust_env
        self._connect_time = connect_time
        self._idle_time = idle_time
        self._limits = limits or FetchLimits()
        self._routes: dict[tuple[str, str], Route] = {}
        self._names: set[bytes] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: dict[Origin, list[Connection]] = {}
        self._origins: dict[Connection, Origin] = {}
        self._opening = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False
        self._gone: asyncio.Future[None] | None = None

    async def fetch(self, method: str, url: str, headers: Sequence[tuple[bytes, bytes]], body: bytes = b"") -> Reply:
        """Send a request and return as soon as the head of the reply is there. Cancelling drops the connection.

        Raises:
            Unreachable: no connection; nothing was sent.
            Broken: the connection died; `sent` says whether anything may have been sent.
            TooLarge, BadReply: the reply is not one to be read.
        """
        route = self._routes.get((method, url)) or self._route(method, url)
        lines = self._lines(headers)
        if body or method not in ("GET", "HEAD", "DELETE", "OPTIONS"):
            lines += b"content-length: %d\r\n" % len(body)
        connection = self._reusable(route.origin) or await self._connection(route.origin)
        return await connection.send(b"".join((route.start, lines, b"\r\n", body)), url, bodiless=method == "HEAD")

    async def close(self) -> None:
        """Close every connection; requests in flight fail."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in tuple(self._origins):
            connection.drop("was closed by this side")
        while self._waiting:
            self._wake()
        if self._origins:
            self._gone = self._gone or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._gone)

    # The request.

    def _route(self, method: str, url: str) -> Route:
        if not _TOKEN.fullmatch(method.encode()):
            raise ValueError("the method is not a word")
        scheme, host, port, path = parse_url(url)
        proxy = self._proxy or self._proxy_from_environment(scheme, host, port)
        authority = _bracketed(host.partition("%")[0])
        if port != (443 if scheme == "https" else 80):
            authority += f":{port}"
        start = f"{method} {path} HTTP/1.1\r\nhost: {authority}\r\naccept-encoding: gzip, deflate\r\n".encode()
        if proxy is not None and scheme == "http":
            start = start.replace(b" ", f" http://{authority}".encode(), 1)
            if proxy.authorization:
                start += b"proxy-authorization: " + proxy.authorization + b"\r\n"
        route = Route(Origin(scheme, host, port, proxy), start)
        if len(self._routes) >= _REMEMBERED:
            self._routes.clear()
        self._routes[method, url] = route
        return route

    def _proxy_from_environment(self, scheme: str, host: str, port: int) -> Proxy | None:
        found = proxies.from_environment(scheme, host, port, os.environ) if self._trust_env else ""
        try:
            return proxies.parse(found) if found else None
        except ValueError as unfit:
            raise Unreachable(f"The proxy that the environment names for {host} cannot be used: {unfit}") from None

    def _lines(self, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        lines = b"".join([b"%b: %b\r\n" % header for header in headers])
        if not lines.count(b"\r") == lines.count(b"\n") == len(headers) or b"\0" in lines:
            raise ValueError("a header has a line break or a NUL in it")
        for name, _ in headers:
            if name not in self._names:
                self._learn(name)
        return lines

    def _learn(self, name: bytes) -> None:
        if not _TOKEN.fullmatch(name):
            raise ValueError("the name of a header is not a word")
        if name.lower() in OWN_HEADERS:
            raise ValueError(f"the client writes the header {name.decode()} itself")
        if len(self._names) < _REMEMBERED:
            self._names.add(name)

    # The connections.

    def _reusable(self, origin: Origin) -> Connection | None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise RuntimeError("this client belongs to another event loop")
            self._loop = loop
        idle = self._idle.get(origin)
        oldest = loop.time() - self._idle_time
        while idle:
            connection = idle.pop()
            if connection.idle_since > oldest and not connection.dead:
                return connection
            connection.abort()
        return None

    async def _connection(self, origin: Origin) -> Connection:
        assert self._loop is not None
        first = True
        while not self._closed:
            if len(self._origins) + self._opening < self._limits.connections:
                return await self._open(origin)
            self._make_room()
            turn: asyncio.Future[None] = self._loop.create_future()
            # Who was woken and found someone quicker does not go to the end of the line again.
            self._waiting.append(turn) if first else self._waiting.appendleft(turn)
            first = False
            try:
                await turn
            except asyncio.CancelledError:
                if turn.cancelled():
                    with contextlib.suppress(ValueError):  # whoever wakes the next takes it out, too
                        self._waiting.remove(turn)
                else:
                    self._wake()
                raise
            if connection := self._reusable(origin):
                return connection
        raise Unreachable("The client is closed")

    async def _open(self, origin: Origin) -> Connection:
        assert self._loop is not None
        connection = Connection(self._loop, self._limits, self._done, self._lost)
        # Loading the certificates of this machine, once, takes time that is not the server's.
        tls = self._context() if origin.scheme == "https" else None
        time = asyncio.timeout(self._connect_time)
        self._opening += 1
        try:
            async with time:
                await self._reach(origin, connection, tls)
        except OSError as fault:
            if time.expired():
                raise Unreachable(f"No connection to {origin.address} in {self._connect_time:g} s") from None
            raise Unreachable(_why(origin, fault)) from fault
        finally:
            self._opening -= 1
            if connection not in self._origins:
                self._wake()
        if self._closed:
            connection.abort()
            raise Unreachable("The client is closed")
        return connection

    async def _reach(self, origin: Origin, connection: Connection, tls: ssl.SSLContext | None) -> None:
        loop, proxy = asyncio.get_running_loop(), origin.proxy
        # TLS knows host names without the zone of a link-local address and without the dot of the root.
        name = origin.host.partition("%")[0].rstrip(".") if tls else None
        raw = await dial(proxy.host, proxy.port) if proxy else await dial(origin.host, origin.port, self._screen)
        if proxy is None or tls is None:
            await loop.create_connection(lambda: connection, sock=raw, ssl=tls, server_hostname=name)
        else:
            tunnel = await self._tunnel(raw, origin, proxy)
            try:
                transport = await loop.start_tls(tunnel.transport, connection, tls, server_hostname=name)
                if transport is None:
                    raise ConnectionResetError("it was closed at once")
            except BaseException:
                tunnel.abort()
                raise
            connection.connection_made(transport)
        if connection.transport.is_closing():
            raise ConnectionResetError("it was closed at once")
        self._origins[connection] = origin

    async def _tunnel(self, raw: socket.socket, origin: Origin, proxy: Proxy) -> Connection:
        loop, where = asyncio.get_running_loop(), origin.address
        request = f"CONNECT {where} HTTP/1.1\r\nhost: {where}\r\n".encode()
        if proxy.authorization:
            request += b"proxy-authorization: " + proxy.authorization + b"\r\n"
        tunnel = Connection(loop, self._limits, lambda connection, reusable: None, lambda connection: None)
        await loop.create_connection(lambda: tunnel, sock=raw)
        named = f"the proxy {_bracketed(proxy.host)}:{proxy.port}"
        try:
            reply = await tunnel.send(request + b"\r\n", where, bodiless=True)
        except TransportError as fault:
            tunnel.abort()
            raise Unreachable(f"No connection to {where}: {named} gave no answer ({fault})") from None
        if not 200 <= reply.status < 300:
            tunnel.abort()
            raise Unreachable(f"No connection to {where}: {named} answered {reply.status}")
        # The target speaks second in TLS: what is here already did not come from it.
        if tunnel.dead:
            tunnel.abort()
            raise Unreachable(f"No connection to {where}: {named} closed the tunnel or spoke in the target's place")
        return tunnel

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls

    def _done(self, connection: Connection, reusable: bool) -> None:
        if not reusable or self._closed:
            connection.abort()
            return
        assert self._loop is not None
        connection.idle_since = self._loop.time()
        self._idle.setdefault(self._origins[connection], []).append(connection)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(self._idle_time, self._sweep)
        if self._waiting:
            self._wake()

    def _lost(self, connection: Connection) -> None:
        origin = self._origins.pop(connection, None)
        if origin is not None:
            idle = self._idle.get(origin, [])
            if connection in idle:
                idle.remove(connection)
            if not idle:
                self._idle.pop(origin, None)
        self._wake()
        if self._gone is not None and not self._origins and not self._gone.done():
            self._gone.set_result(None)

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _make_room(self) -> None:
        for idle in self._idle.values():
            if idle:
                idle.pop(0).abort()
                return

    def _sweep(self) -> None:
        """Close what has been idle too long; come again when the next one will be."""
        assert self._loop is not None
        self._sweeper = None
        oldest = self._loop.time() - self._idle_time
        for idle in self._idle.values():
            while idle and idle[0].idle_since <= oldest:
                idle.pop(0).abort()
        since = min((idle[0].idle_since for idle in self._idle.values() if idle), default=None)
        if since is not None:
            self._sweeper = self._loop.call_at(since + self._idle_time, self._sweep)


def parse_url(url: str) -> tuple[str, str, int, str]:
    """Scheme, host, port and path of a URL; refused where two readers could disagree about it."""
    if _UNFIT.search(url):
        raise ValueError("the URL has a space or a control character in it")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise ValueError("the URL begins neither with http:// nor with https://")
    if "@" in parts.netloc:
        raise ValueError("the URL holds a user name or a password; give them as a header or by auth")
    port = parts.port if parts.port is not None else 443 if parts.scheme == "https" else 80
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    if parts.query:
        path += "?" + quote(parts.query, safe="/?%:@!$&'()*+,;=~-._[]")
    return parts.scheme, _host(parts.hostname or ""), port, path


def _host(host: str) -> str:
    if ":" in host:
        literal = host.replace("%25", "%")
        IPv6Address(literal)
        return literal
    try:
        name = host.encode("idna").decode().lower()
    except UnicodeError:
        name = ""
    if not _NAME.fullmatch(name):
        raise ValueError("the URL has no host, or one that no machine can have")
    return name


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _why(origin: Origin, fault: OSError) -> str:
    where = origin.address
    if origin.proxy is not None:
        where += f" by the proxy {_bracketed(origin.proxy.host)}:{origin.proxy.port}"
    if isinstance(fault, ssl.SSLCertVerificationError):
        return f"The certificate of {where} is not trusted: {fault.verify_message}"
    if isinstance(fault, ssl.SSLError):
        return f"No TLS connection to {where}: {(fault.reason or str(fault)).replace('_', ' ').lower()}"
    if isinstance(fault, socket.gaierror):
        return f"No connection to {where}: the name is unknown ({fault.strerror})"
    if isinstance(fault, ConnectionRefusedError):
        return f"No connection to {where}: it was refused"
    if isinstance(fault, ConnectionError) and origin.scheme == "https":
        return f"No TLS connection to {where}: it was closed during the handshake"
    return f"No connection to {where}: {fault.strerror or fault}"
