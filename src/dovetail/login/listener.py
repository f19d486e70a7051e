"""The loopback address a browser is sent back to: one answer is waited for, everything else is turned away.

RFC 8252, section 7.3. Bound to this machine alone; what it answers says nothing about what it received.
"""

import asyncio
import contextlib
import hmac
from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from dovetail.errors import LoginFailed
from dovetail.protocol.http import LOOPBACK

DEFAULT: Final = "http://127.0.0.1:0/callback"
_HEAD: Final = 16 * 1024
_HEAD_TIME: Final = 10.0
_DONE: Final = b"<p>That is all. You can close this window and go back to the program."
_FOREIGN: Final = b"<p>This does not belong to a login that is going on."


class Listener:
    """Listens until the browser has come back."""

    def __init__(self, redirect_uri: str | None = None) -> None:
        parts = urlsplit(redirect_uri or DEFAULT)
        if parts.scheme != "http" or parts.hostname not in LOOPBACK:
            raise LoginFailed("the redirect URI is not on this machine").at(hint="pass paste= to bring its answer back")
        self._host = parts.hostname
        self._port = parts.port or 0
        self._path = parts.path or "/"
        self._state: str | None = None
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._came: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()

    async def open(self) -> str:
        """Begin to listen; the redirect URI."""
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=_HEAD)
        except OSError as exc:
            raise LoginFailed(f"port {self._port} for the browser's answer is taken: {exc.strerror}") from None
        port = self._server.sockets[0].getsockname()[1]
        shown = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{shown}:{port}{self._path}"

    def expect(self, state: str) -> None:
        """Take only what comes with this state; any page can send the browser here with another."""
        self._state = state

    async def answer(self) -> dict[str, str]:
        """The query the browser brought back."""
        return await self._came

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            async with asyncio.timeout(_HEAD_TIME):
                head = await reader.readuntil(b"\r\n\r\n")
            query = self._query(head)
            writer.write(_reply(query is not None, self._ours(query)))
            with contextlib.suppress(OSError):
                await writer.drain()
            if query is not None and self._ours(query) and not self._came.done():
                self._came.set_result(query)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ValueError, OSError):
            pass  # not a browser
        finally:
            self._open.discard(writer)
            writer.close()

    def _query(self, head: bytes) -> dict[str, str] | None:
        """What a request for our path brings; a name that comes twice could be read in two ways."""
        method, target, *_ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        parts = urlsplit(target)
        pairs = parse_qsl(parts.query, keep_blank_values=True, max_num_fields=32)
        query = dict(pairs)
        return query if method == "GET" and parts.path == self._path and len(query) == len(pairs) else None

    def _ours(self, query: dict[str, str] | None) -> bool:
        if query is None or self._state is None or not ("code" in query or "error" in query):
            return False
        return hmac.compare_digest(query.get("state", "").encode(), self._state.encode())

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
        for writer in self._open:
            writer.close()
        if not self._came.done():
            self._came.cancel()


async def listen(known: Sequence[str], redirect_uri: str | None) -> tuple[Listener, str]:
    """A listener and its redirect URI: the one wanted; else one of those known, if it is free; else any."""
    if redirect_uri is None:
        for one in known:
            listener = Listener(one)
            with contextlib.suppress(LoginFailed):
                return listener, await listener.open()
    listener = Listener(redirect_uri)
    return listener, await listener.open()


def _reply(known: bool, ours: bool) -> bytes:
    status = b"200 OK" if ours else b"400 Bad Request" if known else b"404 Not Found"
    body = b"<!doctype html><meta charset=utf-8><title>dovetail</title>" + (_DONE if ours else _FOREIGN)
    return (
        b"HTTP/1.1 %s\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n"
        b"cache-control: no-store\r\nreferrer-policy: no-referrer\r\n"
        b"content-security-policy: default-src 'none'\r\n\r\n%s" % (status, len(body), body)
    )
