"""Requests and responses as values, and the rules about them that keep a browser from being used against its user."""

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from dovetail.wire.codec import encode
from dovetail.wire.incoming import plain
from dovetail.wire.shape import Struct, field

_SOURCE: Final = re.compile(r"[a-z][a-z0-9+.\-]*:(//[a-z0-9.\-]+(:[0-9]{1,5})?|//\[[0-9a-f:.]+\](:[0-9]{1,5})?)?")
_MOST_FIELDS: Final = 32


class Request(Struct, frozen=True, kw_only=True):
    """What came; the path is relative to the issuer, header names are lower case."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    address: str = ""

    @property
    def fields(self) -> dict[str, str] | None:
        """The fields of the query, or of the form that was sent; None if one stands twice or there are too many."""
        if self.method != "POST":
            return _fields(self.query)
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            return None
        try:
            return _fields(self.body.decode("utf-8"))
        except UnicodeDecodeError:
            return None

    def json(self) -> dict[str, Any] | None:
        """The object in the body, if there is one."""
        if self.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return None
        try:
            found = plain(self.body)
        except Exception:
            return None
        return found if isinstance(found, dict) else None

    def cookie(self, name: str) -> str | None:
        """The cookie of this name; None if there is none, or more than one."""
        found = [
            value
            for part in self.headers.get("cookie", "").split(";")
            for key, _, value in [part.strip().partition("=")]
            if key == name
        ]
        return found[0] if len(found) == 1 else None


def _fields(text: str) -> dict[str, str] | None:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        return None
    found = dict(pairs)
    # A parameter that stands twice could be read in two ways. RFC 6749, section 3.1
    return found if len(found) == len(pairs) else None


class Response(Struct, frozen=True):
    """What is answered."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def having(self, *headers: tuple[str, str]) -> "Response":
        """The same, with more headers."""
        return Response(self.status, self.headers + headers, self.body)


def document(content: Mapping[str, Any], status: int = 200, *, kept: bool = False) -> Response:
    """JSON; not to be kept by anyone unless it is the same for everyone."""
    keeping = "public, max-age=300" if kept else "no-store"
    return Response(status, (("content-type", "application/json"), ("cache-control", keeping)), encode(content))


def failure(error: str, words: str, status: int = 400) -> Response:
    """An error as OAuth tells it. RFC 6749, section 5.2"""
    return document({"error": error, "error_description": words}, status)


def slow(seconds: int, words: str = "too many requests") -> Response:
    """Whoever asks too often is asked to wait."""
    return failure("slow_down", words, 429).having(("retry-after", str(seconds)))


def page(html: str, status: int = 200, *, leads_to: str | None = None) -> Response:
    """A page nobody can frame, that runs nothing and loads nothing; its form may lead on to one other place."""
    target = "" if leads_to is None else " " + source(leads_to)
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; form-action 'self'{target}; "
        "frame-ancestors 'none'; base-uri 'none'"
    )
    return Response(
        status,
        (
            ("content-type", "text/html; charset=utf-8"),
            ("content-security-policy", policy),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "no-referrer"),
            ("x-content-type-options", "nosniff"),
            ("cache-control", "no-store"),
        ),
        html.encode(),
    )


def redirect(url: str, fields: Mapping[str, str | None]) -> Response:
    """Send the browser on, with these fields in the query."""
    query = urlencode({name: value for name, value in fields.items() if value is not None})
    place = url + ("&" if urlsplit(url).query else "?") + query
    return Response(303, (("location", place), ("cache-control", "no-store"), ("referrer-policy", "no-referrer")))


def source(url: str) -> str:
    """Where a URL leads, as a content security policy says it: browsers follow a form's redirects only to such."""
    parts = urlsplit(url)
    said = f"{parts.scheme}://{parts.netloc.lower()}" if parts.scheme in ("http", "https") else f"{parts.scheme}:"
    return said if _SOURCE.fullmatch(said) else "'none'"


def mark(secret: str) -> str:
    """What is kept of a secret that is given out."""
    return hashlib.sha256(secret.encode()).hexdigest()


def same(one: str, other: str) -> bool:
    """Whether two secrets are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(one.encode(), other.encode())
