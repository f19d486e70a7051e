"""Where an MCP server is on the web: requests to one URL, and what its refusals mean in words a user can act on.

Redirects are followed only within the origin, so that credentials never reach another. One that a POST is given for
good moves what comes after it, any other only the request that met it.
"""

import asyncio
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from dovetail.errors import (
    CannotConnect,
    Disconnected,
    Forbidden,
    HttpError,
    MCPError,
    NeedsLogin,
    NotMCP,
    ParseError,
    ResultError,
    TransportError,
    clip,
)
from dovetail.protocol.channel import Authorizer, Headers, Inbox
from dovetail.protocol.http import media_type
from dovetail.protocol.limits import FetchLimits
from dovetail.transports.fetch import Fetcher, Unreachable, parse_url
from dovetail.transports.http1 import BadReply, Broken, Reply, TooLarge
from dovetail.wire.incoming import Incoming, read

_REDIRECTS: Final = 5
_SAME_METHOD: Final = (307, 308)
_FOR_GOOD: Final = 308
_SHOWN: Final = 300


class Door:
    """One URL, with what every request to it carries."""

    def __init__(
        self,
        url: str,
        *,
        answer: int,
        connect_time: float,
        headers: Mapping[str, str] | None = None,
        ca_file: str | Path | None = None,
        cert: str | Path | tuple[str | Path, str | Path] | None = None,
        verify: bool = True,
        proxy: str | None = None,
        authorizer: Authorizer | None = None,
    ) -> None:
        self.url = url
        self.inbox: Inbox | None = None
        self._authorizer = authorizer
        self._asking: set[asyncio.Task[bool]] = set()
        self._headers = [(name.lower().encode("latin-1"), value.encode()) for name, value in (headers or {}).items()]
        self._fetcher = fetcher(ca_file, cert, verify, proxy, connect_time, limits=FetchLimits(body=answer))

    @property
    def address(self) -> str:
        """Where it is, as a user knows it."""
        return _address(self.url)

    async def send(self, method: str, headers: Headers, body: bytes = b"") -> Reply:
        """The reply to a request, with credentials if they are asked for. A refused request was not acted upon."""
        authorizer, own = self._authorizer, ()
        redirects = refusals = 0
        url, for_good = self.url, method == "POST"
        while True:
            if authorizer is not None:
                own = await authorizer.headers(method, url)
            reply = await self._send(method, url, [*self._headers, *own, *headers], body)
            if reply.status in _SAME_METHOD and redirects < _REDIRECTS:
                redirects += 1
                url = self._elsewhere(reply)
                for_good = for_good and reply.status == _FOR_GOOD
                if for_good:
                    self.url = url
            elif authorizer is None or reply.status not in (401, 403) or method == "DELETE":
                return reply  # nobody logs in to leave
            else:
                refusals += 1
                if not await self._challenged(authorizer, reply, own, refusals):
                    return reply
                reply.close()

    async def _challenged(self, authorizer: Authorizer, reply: Reply, own: Headers, tries: int) -> bool:
        challenge = reply.headers.get(b"www-authenticate", b"").decode("latin-1")
        nonce = reply.headers.get(b"dpop-nonce", b"").decode("latin-1") or None
        sent = own[0][1].decode("ascii").partition(" ")[2] if own else None
        if self.inbox is not None:
            self.inbox.hold()
        work = authorizer.challenged(reply.status, challenge, nonce, sent, tries)
        asking = asyncio.get_running_loop().create_task(work)
        self._asking.add(asking)
        try:
            await asyncio.wait([asking])
            if asking.cancelled():
                raise Disconnected("the client was closed during a login")
            return asking.result()
        except BaseException:
            reply.close()
            raise
        finally:
            self._asking.discard(asking)
            asking.cancel()
            if self.inbox is not None:
                self.inbox.go_on()

    async def _send(self, method: str, url: str, headers: Headers, body: bytes) -> Reply:
        try:
            return await self._fetcher.fetch(method, url, headers, body)
        except TransportError as exc:
            raise told(exc, url) from None

    def _elsewhere(self, reply: Reply) -> str:
        """Where a redirect leads, if it stays here."""
        reply.close()
        location = _location(reply)
        if not location:
            raise _astray(reply)
        target = self._here(location, reply.url)
        if target is None:
            raise HttpError(f"the server sends its callers elsewhere: {clip(location)}").at(
                status=reply.status, hint="use that URL if you trust it; credentials are never sent on"
            )
        return target

    def at(self, location: str, page: str) -> str:
        """A URL the server names on a page of its own, which must be of its own origin."""
        target = self._here(location, page)
        if target is None:
            raise NotMCP(f"the server names an address that is not its own: {clip(location)}")
        return target

    def _here(self, location: str, page: str) -> str | None:
        """A location as a URL, if it is of the same origin and one that can be asked."""
        try:
            target = urljoin(page, location)
            return target if parse_url(target)[:3] == parse_url(self.url)[:3] else None
        except ValueError:
            return None

    async def close(self) -> None:
        """Close every connection, and wait for no login."""
        for asking in self._asking:
            asking.cancel()
        await self._fetcher.close()
        if self._authorizer is not None:
            await self._authorizer.close()


async def body_of(reply: Reply, url: str) -> bytes:
    """The whole body of a reply."""
    try:
        return await reply.read()
    except TransportError as exc:
        raise told(exc, url) from None


async def refusal(reply: Reply, url: str) -> Incoming | MCPError:
    """What a status of 300 or more means: the error response it carries, or an exception that tells it."""
    status = reply.status
    text = await body_of(reply, url)
    challenge = reply.headers.get(b"www-authenticate", b"").decode("latin-1")
    if status == 401 or (status == 403 and _LACKING in challenge):
        return _credentials(status, challenge, _quoted(reply, text))
    failure = _failure(text)
    if failure is not None:
        return failure
    if status == 403:
        return _credentials(status, challenge, _quoted(reply, text))
    if status < 400:
        return _astray(reply)
    words = _words(text)
    said = "a web page" if _is_page(reply) else repr(words) if words else "nothing"
    error = HttpError(f"the server answered with status {status} and {said}").at(status=status, hint=_HINTS.get(status))
    error.body = words
    error.retry_after = _seconds(reply.headers.get(b"retry-after"))
    return error


def _is_page(reply: Reply) -> bool:
    return b"html" in media_type(reply.headers.get(b"content-type"))


def _words(text: bytes) -> str:
    return clip(" ".join(text[: _SHOWN * 4].decode("utf-8", "replace").split()), _SHOWN)


def _quoted(reply: Reply, text: bytes) -> str:
    words = "" if _is_page(reply) else _words(text)
    return f" and {words!r}" if words else ""


def _location(reply: Reply) -> str:
    return reply.headers.get(b"location", b"").decode("latin-1")


def _astray(reply: Reply) -> HttpError:
    """A redirect that cannot be followed: it leads nowhere, or lets a request be sent on as one that has no body."""
    where = _location(reply)
    if not where:
        error = HttpError(f"the server answered with status {reply.status}, a redirect that does not say where to")
        return error.at(status=reply.status, hint="is the URL right, down to the last slash?")
    error = HttpError(f"the server answered with status {reply.status}, a redirect to {clip(where, 200)}")
    return error.at(status=reply.status, hint="use that URL if it is the server's; if it is a login page, give auth=")


_LACKING: Final = "insufficient_scope"
_SAID: Final = re.compile(r'\b(error|error_description|scope)="([^"\\]*)"')  # enough to tell a user, not to act upon
_AWAY: Final = "is the server running, and is that its address?"
_PLAIN: Final = "it does not answer in TLS: is its address http:// rather than https://?"
_HINTS: Final = {
    404: "is the path right? MCP servers are often at /mcp",
    405: "is the path right? MCP servers are often at /mcp",
    429: "these are too many requests for the server; try again later, or less often",
    421: "the server does not know itself by this host name; its allowed_hosts or public_url says which it does",
    500: "look into the server's log",
    502: "is the server behind the proxy running?",
    503: "the server is busy or starting; try again in a moment",
    504: "the proxy gave up waiting for the server",
}


def _failure(text: bytes) -> Incoming | None:
    try:
        for message in read(text):
            if message.error is not None:
                return message
    except ParseError:
        pass
    return None


def _credentials(status: int, challenge: str, quoted: str) -> MCPError:
    """What a 401 or 403 says of the credentials that were sent, or were not. RFC 6750, section 3.1"""
    said = {name: clip(value) for name, value in _SAID.findall(challenge)}
    words = said.get("error_description") or said.get("error")
    leads = not challenge or "resource_metadata=" in challenge  # whether there is somewhere to log in, or may be
    tells = f": {words}" if words else f" (status {status}{quoted})"
    if _LACKING in challenge:
        error = Forbidden(f"the credentials lack the scope {said.get('scope', 'this takes')}")
        hint = 'auth="oauth" asks the user for it; a token of your own must be issued with it'
    elif status == 403:
        error = Forbidden(f"the server refuses these credentials or this caller{tells}")
        hint = "check what the token is for, or the server's allowed hosts and origins"
    elif words:
        error = NeedsLogin(f"the server does not take these credentials: {words}")
        hint = "get a fresh token" + (', or log in: auth="oauth"' if leads else " from whoever runs the server")
    else:
        error = NeedsLogin(f"the server asks for credentials{tells}")
        hint = ('log in: auth="oauth"; or ' if leads else "") + 'give a token you have: auth=Bearer("…")'
    error.challenge = challenge
    return error.at(status=status, hint=hint)


def _seconds(value: bytes | None) -> float | None:
    return float(value) if value is not None and value.isdigit() and len(value) < 6 else None


def told(exc: TransportError, url: str) -> MCPError:
    """A failure of the HTTP client in the client's own words."""
    match exc:
        case Unreachable():
            return CannotConnect(exc.why).at(hint=_PLAIN if "wrong version number" in exc.why.lower() else _AWAY)
        case Broken():
            error = Disconnected("the connection was lost before the answer came")
            error.sent = exc.sent
            return error
        case TooLarge():
            return ResultError(f"the answer is too large: {exc.args[0]}").at(hint="raise ClientLimits(answer=...)")
        case BadReply():
            return NotMCP(f"what {_address(url)} answers is not HTTP as it should be: {exc.args[0]}")
        case _:
            return exc


def _address(url: str) -> str:
    return clip(urlsplit(url).netloc.rpartition("@")[2])


def fetcher(
    ca_file: str | Path | None,
    cert: str | Path | tuple[str | Path, str | Path] | None,
    verify: bool,
    proxy: str | None,
    connect_time: float,
    **more: Any,
) -> Fetcher:
    """An HTTP client with a user's plain settings."""
    return Fetcher(tls=_tls(ca_file, cert, verify), proxy=proxy, connect_time=connect_time, **more)


def check_files(ca_file: Any, cert: Any) -> None:
    """FileNotFoundError unless the files of certificates are there."""
    for option, given in (("ca_file", ca_file), ("cert", cert)):
        for file in given if isinstance(given, tuple) else (given,):
            if file is not None and not Path(file).is_file():
                raise FileNotFoundError(f"{option}= names a file that is not there: {str(file)!r}")


def _tls(ca_file: Any, cert: Any, verify: bool) -> ssl.SSLContext | None:
    if ca_file is None and cert is None and verify:
        return None
    check_files(ca_file, cert)
    context = ssl.create_default_context(cafile=str(ca_file) if ca_file is not None else None)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if cert is not None:
        chain, key = cert if isinstance(cert, tuple) else (cert, None)
        context.load_cert_chain(str(chain), str(key) if key is not None else None)
    return context
