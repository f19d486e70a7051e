"""The loopback address a browser is sent back to: one request is waited for, everything else is turned away.

RFC 8252, section 7.3. Bound to 127.0.0.1 alone; what it answers says nothing about what it received.
"""

import asyncio
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from dovetail.errors import LoginFailed

_HEAD: Final = 16 * 1024
_PAGE: Final = (
    b"<!doctype html><meta charset=utf-8><title>dovetail</title>"
    b"<p>That is all. You can close this window and go back to the program."
)


class Listener:
    """Listens until the browser has come back."""

    def __init__(self, redirect_uri: str | None = None) -> None:
        parts = urlsplit(redirect_uri or "http://127.0.0.1:0/callback")
        if parts.scheme != "http" or parts.hostname not in ("127.0.0.1", "localhost", "::1"):
            raise LoginFailed("the redirect URI is not on this machine").at(hint="pass paste= to bring its answer back")
        self._host = parts.hostname
        self._port = parts.port or 0
        self._path = parts.path or "/"
        self._server: asyncio.Server | None = None
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

    async def answer(self) -> dict[str, str]:
        """The query the browser brought back."""
        return await self._came

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(10):
                head = await reader.readuntil(b"\r\n\r\n")
            method, target, *_ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
            parts = urlsplit(target)
            query = parse_qsl(parts.query, keep_blank_values=True, max_num_fields=32)
            good = method == "GET" and parts.path == self._path and len(dict(query)) == len(query)
            if good and ("code" in dict(query) or "error" in dict(query)) and not self._came.done():
                self._came.set_result(dict(query))
            writer.write(_reply(b"200 OK", _PAGE) if good else _reply(b"404 Not Found", b""))
            await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ValueError, OSError):
            pass  # not a browser
        finally:
            writer.close()

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
        if not self._came.done():
            self._came.cancel()


def _reply(status: bytes, body: bytes) -> bytes:
    return (
        b"HTTP/1.1 %s\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n"
        b"cache-control: no-store\r\nreferrer-policy: no-referrer\r\n"
        b"content-security-policy: default-src 'none'\r\n\r\n%s" % (status, len(body), body)
    )
