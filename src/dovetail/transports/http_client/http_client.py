"""An HTTP/1.1 client with a connection pool. It does not depend on MCP or JSON.

A request is sent at most once, and only on a connection that looks alive. Every error therefore states whether part
of the request may have been sent. The client does not follow redirects.
"""

import asyncio
import contextlib
import os
import re
import socket
import ssl
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import IPv6Address
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from dovetail.errors import TransportError
from dovetail.protocol.headers import FIELD_NAME
from dovetail.protocol.interfaces.http_types import HTTPRequest, HTTPResponse
from dovetail.protocol.limits import FetchLimits
from dovetail.transports.http_client import proxy_settings
from dovetail.transports.http_client.dialer import AddressFilter, dial
from dovetail.transports.http_client.http1_connection import (
    ClientResponse,
    ConnectionBroken,
    HTTP1Connection,
    InvalidHTTPResponse,
    ResponseTooLarge,
)
from dovetail.transports.http_client.proxy_settings import Proxy

__all__ = [
    "ClientResponse",
    "ConnectionBroken",
    "FetchLimits",
    "HTTPClient",
    "HostUnreachable",
    "InvalidHTTPResponse",
    "ResponseTooLarge",
]

_TOKEN_PATTERN = re.compile(FIELD_NAME.encode())
_HOST_PATTERN = re.compile(r"[a-z0-9_.-]+")
_FORBIDDEN_PATTERN = re.compile(r"[\x00-\x20\x7f]")
# Only the client itself sets these headers. Callers cannot pass them.
# A second Content-Length could split a request, and Proxy-Authorization could reach the server.
RESERVED_HEADERS = {
    b"accept-encoding", b"connection", b"content-length", b"expect", b"host", b"proxy-authorization", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
}  # fmt: skip
# The number of idle connections to an origin that stay open for as long as the server promises.
_MAX_LONG_IDLE_CONNECTIONS = 8
_MAX_IDLE_TIMEOUT_S = 300.0
# This clock also runs while the machine is suspended, because servers close idle connections in the meantime.
_get_time: Callable[[], float] = (
    partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
    if sys.platform != "win32"
    else time.monotonic
)
_MAX_CACHED_ROUTES = 256  # the size of the caches for routes and header names


class HostUnreachable(TransportError):
    """Raised if the client could not connect to the host. `reason` explains the failure. No data was sent."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Origin(NamedTuple):
    """The target of a connection. Requests to the same origin can share an idle connection."""

    scheme: str
    host: str
    port: int
    proxy: Proxy | None

    @property
    def address(self) -> str:
        """Return the host and port for CONNECT requests and error messages."""
        return f"{_format_host(self.host)}:{self.port}"


class Route(NamedTuple):
    """The origin and the encoded request head for one method and URL."""

    origin: Origin
    head: bytes


class HTTPClient:
    """Sends HTTP requests. All requests of a client must run in the same event loop."""

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        proxy: str | None = None,
        trust_env: bool = True,
        connect_timeout: float = 10.0,
        # Idle connections are closed after this time, because uvicorn and Node would close them after five seconds.
        # A server can promise another time. A longer time than this is used only with `trusts_keep_alive`.
        idle_timeout: float = 4.0,
        trusts_keep_alive: bool = True,
        limits: FetchLimits | None = None,
        address_filter: AddressFilter
        # A function that returns whether an address is allowed.
        # It is not called for proxies, because the user chose them.
        | None = None,
    ) -> None:
        self._tls = tls
        self._address_filter = address_filter
        self._proxy = proxy_settings.parse_proxy(proxy) if proxy else None
        self._trust_env = trust_env
        self._connect_timeout = connect_timeout
        self._idle_timeout = idle_timeout
        self._trusts_keep_alive = trusts_keep_alive
        self._limits = limits or FetchLimits()
        self._routes: dict[tuple[str, str], Route] = {}
        self._valid_header_names: set[bytes] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle_connections: dict[Origin, list[HTTP1Connection]] = {}
        self._origins: dict[HTTP1Connection, Origin] = {}
        self._opening_count = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._sweep_at = 0.0  # when the timer removes idle connections next
        self._is_closed = False
        self._all_closed: asyncio.Future[None] | None = None

    async def fetch(
        self, method: str, url: str, headers: Sequence[tuple[bytes, bytes]], body: bytes = b""
    ) -> ClientResponse:
        """Send a request and wait for the headers of the response. Cancelling the task closes the connection.

        Raises:
            HostUnreachable: no connection could be opened, so nothing was sent.
            ConnectionBroken: the connection was lost. `sent` says whether anything may have been sent.
            ResponseTooLarge, InvalidHTTPResponse: the response cannot be read.
        """
        route = self._routes.get((method, url)) or self._build_route(method, url)
        header_lines = self._encode_headers(headers)
        if body or method not in ("GET", "HEAD", "DELETE", "OPTIONS"):
            header_lines += b"content-length: %d\r\n" % len(body)
        connection = self._take_idle_connection(route.origin) or await self._get_connection(route.origin)
        return await connection.send(
            b"".join((route.head, header_lines, b"\r\n", body)), url, has_no_body=method == "HEAD"
        )

    async def send(self, request: HTTPRequest) -> HTTPResponse:
        """Send a request and return the response with its body. Raise the same errors as `fetch` and
        `ClientResponse.read`.
        """
        headers = [(name.lower().encode("ascii"), value.encode("latin-1")) for name, value in request.headers.items()]
        response = await self.fetch(request.method, request.url, headers, request.body)
        body = await response.read()
        response_headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers.items()}
        return HTTPResponse(response.status, response_headers, body)

    async def close(self) -> None:
        """Close every connection. Running requests fail."""
        self._is_closed = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        for connection in tuple(self._origins):
            connection.drop("was closed by this client")
        while self._waiters:
            self._wake_waiter()
        if self._origins:
            self._all_closed = self._all_closed or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._all_closed)

    def _build_route(self, method: str, url: str) -> Route:
        if not _TOKEN_PATTERN.fullmatch(method.encode()):
            raise ValueError("the HTTP method must be one word")
        scheme, host, port, path = parse_url(url)
        proxy = self._proxy or self._find_environment_proxy(scheme, host, port)
        authority = _format_host(host.partition("%")[0])
        if port != (443 if scheme == "https" else 80):
            authority += f":{port}"
        head = f"{method} {path} HTTP/1.1\r\nhost: {authority}\r\naccept-encoding: gzip, deflate\r\n".encode()
        if proxy is not None and scheme == "http":
            head = head.replace(b" ", f" http://{authority}".encode(), 1)
            if proxy.authorization:
                head += b"proxy-authorization: " + proxy.authorization + b"\r\n"
        route = Route(Origin(scheme, host, port, proxy), head)
        if len(self._routes) >= _MAX_CACHED_ROUTES:
            self._routes.clear()
        self._routes[method, url] = route
        return route

    def _find_environment_proxy(self, scheme: str, host: str, port: int) -> Proxy | None:
        proxy_url = proxy_settings.find_proxy_url(scheme, host, port, os.environ) if self._trust_env else ""
        try:
            return proxy_settings.parse_proxy(proxy_url) if proxy_url else None
        except ValueError as unfit:
            raise HostUnreachable(
                f"The proxy for {host} in the environment variables cannot be used: {unfit}"
            ) from None

    def _encode_headers(self, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        lines = b"".join([b"%b: %b\r\n" % header for header in headers])
        if not lines.count(b"\r") == lines.count(b"\n") == len(headers) or b"\0" in lines:
            raise ValueError("a header contains a line break or a NUL")
        for name, _ in headers:
            if name not in self._valid_header_names:
                self._check_header_name(name)
        return lines

    def _check_header_name(self, name: bytes) -> None:
        if not _TOKEN_PATTERN.fullmatch(name):
            raise ValueError("a header name must be one word")
        if name.lower() in RESERVED_HEADERS:
            raise ValueError(f"the header {name.decode()} cannot be passed, because the client sets it")
        if len(self._valid_header_names) < _MAX_CACHED_ROUTES:
            self._valid_header_names.add(name)

    def _take_idle_connection(self, origin: Origin) -> HTTP1Connection | None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise RuntimeError("this HTTP client was used in another event loop. Create a client for each loop")
            self._loop = loop
        idle = self._idle_connections.get(origin)
        while idle:
            connection = idle.pop()
            if _get_time() < connection.idle_until and not connection.is_dead:
                return connection
            connection.abort()
        return None

    async def _get_connection(self, origin: Origin) -> HTTP1Connection:
        assert self._loop is not None
        is_first = True
        while not self._is_closed:
            if len(self._origins) + self._opening_count < self._limits.max_connections:
                return await self._open_connection(origin)
            self._close_one_idle()
            waiter: asyncio.Future[None] = self._loop.create_future()
            # A new request waits at the end of the queue.
            # A request that found no free connection waits at the front again.
            self._waiters.append(waiter) if is_first else self._waiters.appendleft(waiter)
            is_first = False
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.cancelled():
                    with contextlib.suppress(ValueError):  # A waiter that was already woken is no longer in the queue.
                        self._waiters.remove(waiter)
                else:
                    self._wake_waiter()
                raise
            if connection := self._take_idle_connection(origin):
                return connection
        raise HostUnreachable("The client is closed")

    async def _open_connection(self, origin: Origin) -> HTTP1Connection:
        assert self._loop is not None
        connection = HTTP1Connection(self._loop, self._limits, self._release, self._forget)
        # Loading certificates takes time, which should not count toward the connect timeout.
        tls = self._get_tls_context() if origin.scheme == "https" else None
        timeout = asyncio.timeout(self._connect_timeout)
        self._opening_count += 1
        try:
            async with timeout:
                await self._connect(origin, connection, tls)
        except OSError as fault:
            if timeout.expired():
                raise HostUnreachable(
                    f"connecting to {origin.address} timed out after {self._connect_timeout:g} s"
                ) from None
            raise HostUnreachable(_describe_failure(origin, fault)) from fault
        finally:
            self._opening_count -= 1
            if connection not in self._origins:
                self._wake_waiter()
        if self._is_closed:
            connection.abort()
            raise HostUnreachable("The client is closed")
        return connection

    async def _connect(self, origin: Origin, connection: HTTP1Connection, tls: ssl.SSLContext | None) -> None:
        loop, proxy = asyncio.get_running_loop(), origin.proxy
        # TLS does not allow a trailing dot or a zone such as "%eth0" in a server name.
        server_name = origin.host.partition("%")[0].rstrip(".") if tls else None
        sock = (
            await dial(proxy.host, proxy.port) if proxy else await dial(origin.host, origin.port, self._address_filter)
        )
        if proxy is None or tls is None:
            await loop.create_connection(lambda: connection, sock=sock, ssl=tls, server_hostname=server_name)
        else:
            tunnel = await self._open_tunnel(sock, origin, proxy)
            try:
                transport = await loop.start_tls(tunnel.transport, connection, tls, server_hostname=server_name)
                if transport is None:
                    raise ConnectionResetError("the server closed the connection immediately")
            except BaseException:
                tunnel.abort()
                raise
            connection.connection_made(transport)
        if connection.transport.is_closing():
            raise ConnectionResetError("the server closed the connection immediately")
        self._origins[connection] = origin

    async def _open_tunnel(self, sock: socket.socket, origin: Origin, proxy: Proxy) -> HTTP1Connection:
        loop, target = asyncio.get_running_loop(), origin.address
        request = f"CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n".encode()
        if proxy.authorization:
            request += b"proxy-authorization: " + proxy.authorization + b"\r\n"
        tunnel = HTTP1Connection(loop, self._limits, lambda connection, reusable: None, lambda connection: None)
        await loop.create_connection(lambda: tunnel, sock=sock)
        proxy_name = f"the proxy {_format_host(proxy.host)}:{proxy.port}"
        try:
            response = await tunnel.send(request + b"\r\n", target, has_no_body=True)
        except TransportError as fault:
            tunnel.abort()
            raise HostUnreachable(f"cannot connect to {target}: {proxy_name} did not answer ({fault})") from None
        if not 200 <= response.status < 300:
            tunnel.abort()
            raise HostUnreachable(f"cannot connect to {target}: {proxy_name} answered with status {response.status}")
        # A TLS server waits for the client, so data that has already arrived comes from the proxy.
        if tunnel.is_dead:
            tunnel.abort()
            raise HostUnreachable(f"cannot connect to {target}: {proxy_name} closed the tunnel or sent unexpected data")
        return tunnel

    def _get_tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls

    def _release(self, connection: HTTP1Connection, is_reusable: bool) -> None:
        if not is_reusable or self._is_closed:
            connection.abort()
            return
        assert self._loop is not None
        idle = self._idle_connections.setdefault(self._origins[connection], [])
        timeout = self._idle_timeout
        if connection.idle_limit_s is not None:
            is_kept_longer = self._trusts_keep_alive and len(idle) < _MAX_LONG_IDLE_CONNECTIONS
            timeout = min(connection.idle_limit_s, _MAX_IDLE_TIMEOUT_S if is_kept_longer else timeout)
        connection.idle_until = _get_time() + timeout
        idle.append(connection)
        if self._sweep_timer is None or connection.idle_until < self._sweep_at:
            self._schedule_sweep(connection.idle_until)
        if self._waiters:
            self._wake_waiter()

    def _forget(self, connection: HTTP1Connection) -> None:
        origin = self._origins.pop(connection, None)
        if origin is not None:
            idle = self._idle_connections.get(origin, [])
            if connection in idle:
                idle.remove(connection)
            if not idle:
                self._idle_connections.pop(origin, None)
        self._wake_waiter()
        if self._all_closed is not None and not self._origins and not self._all_closed.done():
            self._all_closed.set_result(None)

    def _wake_waiter(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _close_one_idle(self) -> None:
        for idle in self._idle_connections.values():
            if idle:
                idle.pop(0).abort()
                return

    def _schedule_sweep(self, sweep_at: float) -> None:
        assert self._loop is not None
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._sweep_at = sweep_at
        self._sweep_timer = self._loop.call_later(max(0.0, sweep_at - _get_time()), self._close_expired)

    def _close_expired(self) -> None:
        self._sweep_timer = None
        now = _get_time()
        next_times: list[float] = []
        for idle in self._idle_connections.values():
            for connection in tuple(idle):
                if connection.idle_until <= now:
                    idle.remove(connection)
                    connection.abort()
            next_times += [connection.idle_until for connection in idle]
        if next_times:
            self._schedule_sweep(min(next_times))


def parse_url(url: str) -> tuple[str, str, int, str]:
    """Split a URL into scheme, host, port and path. Reject ambiguous URLs, such as a URL with spaces."""
    if _FORBIDDEN_PATTERN.search(url):
        raise ValueError("the URL contains a space or a control character")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise ValueError("the URL must start with http:// or https://")
    if "@" in parts.netloc:
        raise ValueError("the URL contains a user name or a password. Pass them as a header or with auth=")
    port = parts.port if parts.port is not None else 443 if parts.scheme == "https" else 80
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    if parts.query:
        path += "?" + quote(parts.query, safe="/?%:@!$&'()*+,;=~-._[]")
    return parts.scheme, _parse_host(parts.hostname or ""), port, path


def _parse_host(host: str) -> str:
    if ":" in host:
        literal = host.replace("%25", "%")
        IPv6Address(literal)
        return literal
    try:
        name = host.encode("idna").decode().lower()
    except UnicodeError:
        name = ""
    if not _HOST_PATTERN.fullmatch(name):
        raise ValueError("the URL has no valid host")
    return name


def _format_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _describe_failure(origin: Origin, error: OSError) -> str:
    address = origin.address
    if origin.proxy is not None:
        address += f" through the proxy {_format_host(origin.proxy.host)}:{origin.proxy.port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"The certificate of {address} is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"cannot open a TLS connection to {address}: {(error.reason or str(error)).replace('_', ' ').lower()}"
    if isinstance(error, socket.gaierror):
        return f"cannot connect to {address}: unknown host name ({error.strerror})"
    if isinstance(error, ConnectionRefusedError):
        return f"connection refused by {address}"
    if isinstance(error, ConnectionError) and origin.scheme == "https":
        return f"cannot open a TLS connection to {address}: the server closed it during the handshake"
    return f"cannot connect to {address}: {error.strerror or error}"
