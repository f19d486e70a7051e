"""The cookies that a server has set, for later requests to the same origin. RFC 6265, section 5

Balancers set a cookie to send all requests of a session to the same machine. A jar belongs to one connection to one
origin, so it ignores the Domain attribute. It is never stored.
"""

import re
import time
from math import inf
from typing import Final, NamedTuple

from dovetail.protocol.headers import FIELD_NAME
from dovetail.transports.http_client.http1_connection import COOKIE_SEPARATOR
from dovetail.transports.http_client.http_client import parse_url

MAX_COOKIES: Final = 20
MAX_TOTAL_BYTES: Final = 4096  # The names, values and paths of all cookies together have at most this size.
_NAME_PATTERN: Final = re.compile(FIELD_NAME.encode())
_VALUE_PATTERN: Final = re.compile(rb"[\x20-\x7e]*")  # A value ends at a semicolon, and cannot end the header.
_MAX_AGE_PATTERN: Final = re.compile(rb"(-?)0*(\d{1,10})")


class Cookie(NamedTuple):
    """The value of a cookie, and the time at which the cookie ends, in seconds since the epoch."""

    value: bytes
    expires_at: float


class CookieJar:
    """The cookies of one origin. If the jar is full, new cookies are ignored, so that those of a load balancer stay."""

    def __init__(self) -> None:
        # The keys are the name and the path. The oldest cookie is first.
        self.cookies: dict[tuple[bytes, bytes], Cookie] = {}

    def store(self, headers: bytes, url: str) -> None:
        """Store the cookies in the Set-Cookie headers of a response from this URL. Ignore invalid cookies."""
        for header in headers.split(COOKIE_SEPARATOR):
            self._store_cookie(header, url)

    def build_header(self, url: str) -> bytes:
        """Return the value of the Cookie header for a request to this URL, or b"" if there are no cookies for it."""
        path, now = _get_path(url), time.time()
        matching = [
            (name, cookie_path, cookie.value)
            for (name, cookie_path), cookie in self.cookies.items()
            if cookie.expires_at > now and _is_inside(path, cookie_path)
        ]
        matching.sort(key=lambda cookie: -len(cookie[1]))  # Cookies with longer paths come first.
        return b"; ".join(b"%b=%b" % (name, value) for name, _, value in matching)

    def _store_cookie(self, header: bytes, url: str) -> None:
        pair, *parts = header.split(b";")
        name, separator, value = (part.strip(b" \t") for part in pair.partition(b"="))
        attributes = {
            key.strip(b" \t").lower(): text.strip(b" \t") for key, _, text in (part.partition(b"=") for part in parts)
        }
        if not separator or not _NAME_PATTERN.fullmatch(name) or not _VALUE_PATTERN.fullmatch(value):
            return
        if b"secure" in attributes and not url.startswith("https:"):
            return
        path = attributes.get(b"path", b"")
        if not path.startswith(b"/"):
            path = _get_path(url).rpartition(b"/")[0] or b"/"
        cookies = self.cookies | {(name, path): Cookie(value, _find_expiry(attributes))}
        now = time.time()
        cookies = {key: cookie for key, cookie in cookies.items() if cookie.expires_at > now}
        if len(cookies) <= MAX_COOKIES and _count_bytes(cookies) <= MAX_TOTAL_BYTES:
            self.cookies = cookies


def _count_bytes(cookies: dict[tuple[bytes, bytes], Cookie]) -> int:
    return sum(len(name) + len(path) + len(cookie.value) for (name, path), cookie in cookies.items())


def _find_expiry(attributes: dict[bytes, bytes]) -> float:
    """Return the time at which a cookie ends, or infinity. Max-Age is more important than Expires."""
    if match := _MAX_AGE_PATTERN.fullmatch(attributes.get(b"max-age", b"")):
        return -inf if match[1] else time.time() + int(match[2])
    from email.utils import mktime_tz, parsedate_tz  # This import is here because few cookies need the module.

    try:
        date = parsedate_tz(attributes.get(b"expires", b"").decode("ascii"))
        return inf if date is None else mktime_tz(date)
    except (ValueError, OverflowError):
        return inf


def _get_path(url: str) -> bytes:
    return parse_url(url)[3].partition("?")[0].encode()


def _is_inside(path: bytes, folder: bytes) -> bool:
    """Return whether a path is equal to another path or below it. RFC 6265, section 5.1.4"""
    return path == folder or path.startswith(folder if folder.endswith(b"/") else folder + b"/")
