"""A web server on the loopback address that receives the redirect of one login.

The server listens only on this machine, and its response reveals nothing about the redirect. RFC 8252, section 7.3
"""

import asyncio
import contextlib
import hmac
from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from dovetail.error_context import add_context
from dovetail.errors import LoginFailed
from dovetail.protocol.http_checks import LOOPBACK

DEFAULT_REDIRECT_URI: Final = "http://127.0.0.1:0/callback"
_MAX_HEAD_BYTES: Final = 16 * 1024
_HEAD_TIMEOUT_S: Final = 10.0
_SUCCESS_HTML: Final = b"<p>That is all. You can close this window and go back to the program."
_UNKNOWN_HTML: Final = b"<p>This does not belong to a login that is going on."


class LoopbackListener:
    """A small HTTP server that waits for the redirect at the end of a browser login."""

    def __init__(self, redirect_uri: str | None = None) -> None:
        parts = urlsplit(redirect_uri or DEFAULT_REDIRECT_URI)
        if parts.scheme != "http" or parts.hostname not in LOOPBACK:
            raise add_context(
                LoginFailed("the redirect URI must be on this machine"),
                hint="pass paste_redirect= to enter the URL of the redirect",
            )
        self._host = parts.hostname
        self._port = parts.port or 0
        self._path = parts.path or "/"
        self._state: str | None = None
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._redirect: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()

    async def open(self) -> str:
        """Start listening and return the redirect URI."""
        try:
            self._server = await asyncio.start_server(
                self._handle_connection, self._host, self._port, limit=_MAX_HEAD_BYTES
            )
        except OSError as exc:
            raise LoginFailed(f"cannot use port {self._port} for the login redirect: {exc.strerror}") from None
        port = self._server.sockets[0].getsockname()[1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{port}{self._path}"

    def expect_state(self, state: str) -> None:
        """Accept only a redirect with this state, because any web page can open this address."""
        self._state = state

    async def wait_for_redirect(self) -> dict[str, str]:
        """Wait for the redirect and return its query parameters."""
        return await self._redirect

    async def _handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            async with asyncio.timeout(_HEAD_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            query = self._parse_query(head)
            writer.write(_build_response(query is not None, self._is_expected(query)))
            with contextlib.suppress(OSError):
                await writer.drain()
            if query is not None and self._is_expected(query) and not self._redirect.done():
                self._redirect.set_result(query)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ValueError, OSError):
            # The request is not valid HTTP, so it is not from the browser.
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _parse_query(self, head: bytes) -> dict[str, str] | None:
        """Return the query parameters of a redirect. Return None for another path or a repeated parameter."""
        method, target, *_ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        parts = urlsplit(target)
        pairs = parse_qsl(parts.query, keep_blank_values=True, max_num_fields=32)
        query = dict(pairs)
        return query if method == "GET" and parts.path == self._path and len(query) == len(pairs) else None

    def _is_expected(self, query: dict[str, str] | None) -> bool:
        if query is None or self._state is None or not ("code" in query or "error" in query):
            return False
        return hmac.compare_digest(query.get("state", "").encode(), self._state.encode())

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.close()
        if not self._redirect.done():
            self._redirect.cancel()


async def open_listener(registered_uris: Sequence[str], redirect_uri: str | None) -> tuple[LoopbackListener, str]:
    """Open a listener and return it with its redirect URI.

    The URI is `redirect_uri` if it is set, or else a free registered URI, or else a URI with any free port.
    """
    if redirect_uri is None:
        for uri in registered_uris:
            listener = LoopbackListener(uri)
            with contextlib.suppress(LoginFailed):
                return listener, await listener.open()
    listener = LoopbackListener(redirect_uri)
    return listener, await listener.open()


def _build_response(is_known_path: bool, is_expected: bool) -> bytes:
    status = b"200 OK" if is_expected else b"400 Bad Request" if is_known_path else b"404 Not Found"
    body = b"<!doctype html><meta charset=utf-8><title>dovetail</title>" + (
        _SUCCESS_HTML if is_expected else _UNKNOWN_HTML
    )
    return (
        b"HTTP/1.1 %s\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n"
        b"cache-control: no-store\r\nreferrer-policy: no-referrer\r\n"
        b"content-security-policy: default-src 'none'\r\n\r\n%s" % (status, len(body), body)
    )
