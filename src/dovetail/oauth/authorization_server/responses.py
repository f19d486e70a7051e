"""HTTP requests and responses of the authorization server, with the headers that protect the user's browser."""

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from dovetail.wire.base import Struct, field
from dovetail.wire.codec import encode
from dovetail.wire.raw_message import to_plain

_CSP_SOURCE: Final = re.compile(r"[a-z][a-z0-9+.\-]*:(//[a-z0-9.\-]+(:[0-9]{1,5})?|//\[[0-9a-f:.]+\](:[0-9]{1,5})?)?")
_MAX_FIELDS: Final = 32


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
            return _parse_fields(self.query)
        content_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/x-www-form-urlencoded":
            return None
        try:
            return _parse_fields(self.body.decode("utf-8"))
        except UnicodeDecodeError:
            return None

    def json(self) -> dict[str, Any] | None:
        """The object in the body, if there is one."""
        if self.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return None
        try:
            value = to_plain(self.body)
        except Exception:
            return None
        return value if isinstance(value, dict) else None

    def cookie(self, name: str) -> str | None:
        """The cookie of this name; None if there is none, or more than one."""
        values = [
            value
            for part in self.headers.get("cookie", "").split(";")
            for key, _, value in [part.strip().partition("=")]
            if key == name
        ]
        return values[0] if len(values) == 1 else None


def _parse_fields(text: str) -> dict[str, str] | None:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError:
        return None
    fields = dict(pairs)
    # A parameter that stands twice could be read in two ways. RFC 6749, section 3.1
    return fields if len(fields) == len(pairs) else None


class Response(Struct, frozen=True):
    """What is answered."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def with_headers(self, *headers: tuple[str, str]) -> "Response":
        """The same, with more headers."""
        return Response(self.status, self.headers + headers, self.body)


def json_response(content: Mapping[str, Any], status: int = 200, *, is_cacheable: bool = False) -> Response:
    """JSON; not to be kept by anyone unless it is the same for everyone."""
    cache_control = "public, max-age=300" if is_cacheable else "no-store"
    return Response(status, (("content-type", "application/json"), ("cache-control", cache_control)), encode(content))


def error_response(error: str, description: str, status: int = 400) -> Response:
    """An error as OAuth tells it. RFC 6749, section 5.2"""
    return json_response({"error": error, "error_description": description}, status)


def rate_limit_response(retry_after_s: int, description: str = "too many requests") -> Response:
    """Whoever asks too often is asked to wait."""
    return error_response("slow_down", description, 429).with_headers(("retry-after", str(retry_after_s)))


def html_response(html: str, status: int = 200, *, form_target: str | None = None) -> Response:
    """A page nobody can frame, that runs nothing and loads nothing; its form may lead on to one other place."""
    form_source = "" if form_target is None else " " + csp_source(form_target)
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; form-action 'self'{form_source}; "
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


def redirect_response(url: str, fields: Mapping[str, str | None]) -> Response:
    """Send the browser on, with these fields in the query."""
    query = urlencode({name: value for name, value in fields.items() if value is not None})
    location = url + ("&" if urlsplit(url).query else "?") + query
    return Response(303, (("location", location), ("cache-control", "no-store"), ("referrer-policy", "no-referrer")))


def csp_source(url: str) -> str:
    """Where a URL leads, as a content security policy says it: browsers follow a form's redirects only to such."""
    parts = urlsplit(url)
    source_expression = (
        f"{parts.scheme}://{parts.netloc.lower()}" if parts.scheme in ("http", "https") else f"{parts.scheme}:"
    )
    return source_expression if _CSP_SOURCE.fullmatch(source_expression) else "'none'"


def hash_secret(secret: str) -> str:
    """What is kept of a secret that is given out."""
    return hashlib.sha256(secret.encode()).hexdigest()


def is_same_secret(first: str, second: str) -> bool:
    """Whether two secrets are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(first.encode(), second.encode())
