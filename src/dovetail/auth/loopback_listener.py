"""A web server on the loopback address that receives the redirect of one login.

The server listens only on this machine, and its response reveals nothing about the redirect. RFC 8252, section 7.3
"""

import asyncio
import contextlib
import errno
import hmac
from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from dovetail.error_context import add_context
from dovetail.errors import LoginFailed
from dovetail.protocol.http_checks import is_loopback_uri

DEFAULT_REDIRECT_URI: Final = "http://127.0.0.1:0/callback"
_MAX_HEAD_BYTES: Final = 16 * 1024
_HEAD_TIMEOUT_S: Final = 10.0
_SUCCESS_HTML: Final = b"<p>Login finished. You can close this window."
_FAILURE_HTML: Final = b"<p>Login failed. Return to the program."
_UNKNOWN_HTML: Final = b"<p>Unknown or expired login."


class LoopbackListener:
    """A small HTTP server that waits for the redirect at the end of a browser login."""

    def __init__(self, redirect_uri: str | None = None) -> None:
        uri = redirect_uri or DEFAULT_REDIRECT_URI
        if not is_loopback_uri(uri):
            raise add_context(
                LoginFailed(f"the redirect URI must be http:// on localhost, 127.0.0.1 or ::1, not {uri!r}"),
                hint="pass paste_redirect= to enter the URL of the redirect",
            )
        parts = urlsplit(uri)
        self._host = parts.hostname or ""
        self._port = parts.port or 0
        self._path = parts.path or "/"
        self._query = parts.query
        self._state: str | None = None
        self._servers: list[asyncio.Server] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._redirect: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()

    async def open(self) -> str:
        """Start listening and return the redirect URI."""
        # A browser may connect to the IPv4 or the IPv6 address of localhost, so both need the same port.
        first_host, *other_hosts = ("127.0.0.1", "::1") if self._host == "localhost" else (self._host,)
        port = self._port
        try:
            port = await self._listen(first_host, port)
            for host in other_hosts:
                try:
                    await self._listen(host, port)
                except OSError as exc:
                    if exc.errno == errno.EADDRINUSE:
                        raise
        except OSError as exc:
            self.close()
            where = f"{self._host}:{port}" if port else self._host
            raise add_context(
                LoginFailed(f"cannot listen on {where} for the login redirect: {exc.strerror}"),
                hint="pass another redirect_uri=",
            ) from None
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{port}{self._path}" + (f"?{self._query}" if self._query else "")

    def expect_state(self, state: str) -> None:
        """Set the state that the redirect must contain. Redirects from other web pages do not contain it."""
        self._state = state

    async def wait_for_redirect(self) -> dict[str, str]:
        """Wait for the redirect and return its query parameters."""
        return await self._redirect

    def close(self) -> None:
        """Stop listening."""
        for server in self._servers:
            server.close()
        for writer in self._writers:
            writer.close()
        if not self._redirect.done():
            self._redirect.cancel()

    async def _listen(self, host: str, port: int) -> int:
        server = await asyncio.start_server(self._handle_connection, host, port, limit=_MAX_HEAD_BYTES)
        self._servers.append(server)
        return server.sockets[0].getsockname()[1] if server.sockets else port  # Without IPv6, `sockets` may be empty.

    async def _handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            async with asyncio.timeout(_HEAD_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            query = self._read_request(head)
            is_expected = query is not None and self._is_expected(query)
            writer.write(_build_response(query, is_expected=is_expected))
            with contextlib.suppress(OSError):
                await writer.drain()
            if query is not None and is_expected and not self._redirect.done():
                self._redirect.set_result(query)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ValueError, OSError):
            # A browser sends valid HTTP, so this request is not from a browser.
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _read_request(self, head: bytes) -> dict[str, str] | None:
        method, target, *_ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        parts = urlsplit(target)
        return parse_redirect_query(parts.query) if method == "GET" and parts.path == self._path else None

    def _is_expected(self, query: dict[str, str]) -> bool:
        if self._state is None or not ("code" in query or "error" in query):
            return False
        return hmac.compare_digest(query.get("state", "").encode(), self._state.encode())


async def open_listener(registered_uris: Sequence[str], redirect_uri: str | None) -> tuple[LoopbackListener, str]:
    """Open a listener and return it with its redirect URI.

    The URI is `redirect_uri` if it is set, or else a free registered URI, or else a URI with any free port.
    """
    if redirect_uri is None:
        for uri in registered_uris:
            # In an earlier login, the user may have pasted the redirect, so a registered URI may be on another machine.
            with contextlib.suppress(LoginFailed):
                listener = LoopbackListener(uri)
                return listener, await listener.open()
    listener = LoopbackListener(redirect_uri)
    return listener, await listener.open()


def parse_redirect_query(query: str) -> dict[str, str] | None:
    """Parse the query of a redirect. Return None if a parameter is repeated.

    Raise ValueError if there are too many parameters.
    """
    pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=32)
    params = dict(pairs)
    return params if len(params) == len(pairs) else None


def _build_response(query: dict[str, str] | None, *, is_expected: bool) -> bytes:
    status = b"200 OK" if is_expected else b"404 Not Found" if query is None else b"400 Bad Request"
    text = _UNKNOWN_HTML
    if query is not None and is_expected:
        text = _FAILURE_HTML if "error" in query else _SUCCESS_HTML
    body = b"<!doctype html><meta charset=utf-8><title>dovetail</title>" + text
    return (
        b"HTTP/1.1 %s\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n"
        b"cache-control: no-store\r\nreferrer-policy: no-referrer\r\n"
        b"content-security-policy: default-src 'none'\r\n\r\n%s" % (status, len(body), body)
    )
