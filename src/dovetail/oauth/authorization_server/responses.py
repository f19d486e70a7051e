"""HTTP requests and responses of the authorization server, with the headers that protect the user's browser."""

import hashlib
import hmac
import math
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from dovetail.oauth.flow import parse_json_object
from dovetail.protocol.interfaces.http_types import HTTPResponse
from dovetail.wire.base import Struct, field, replace
from dovetail.wire.codec import encode

_CSP_SOURCE: Final = re.compile(r"[a-z][a-z0-9+.\-]*:(//[a-z0-9.\-]+(:[0-9]{1,5})?|//\[[0-9a-f:.]+\](:[0-9]{1,5})?)?")
_MAX_FIELDS: Final = 32


class Request(Struct, frozen=True, kw_only=True):
    """An HTTP request to the authorization server. `path` is relative to the issuer. Header names are in lower case."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    address: str = ""

    @property
    def fields(self) -> dict[str, str] | None:
        """Return the query or form fields. Return None if a field is repeated or if there are too many fields."""
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
        if self.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return None
        return parse_json_object(self.body)

    def cookie(self, name: str) -> str | None:
        """Return the value of a cookie, or None if the cookie is missing or repeated."""
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
    # A request must not contain a parameter more than once. RFC 6749, section 3.1
    return fields if len(fields) == len(pairs) else None


def add_headers(response: HTTPResponse, headers: Mapping[str, str]) -> HTTPResponse:
    return replace(response, headers={**response.headers, **headers})


def json_response(content: Mapping[str, Any], status: int = 200, *, is_cacheable: bool = False) -> HTTPResponse:
    """Return a JSON response. Set `is_cacheable` only if the response is the same for every caller."""
    cache_control = "public, max-age=300" if is_cacheable else "no-store"
    return HTTPResponse(status, {"content-type": "application/json", "cache-control": cache_control}, encode(content))


def error_response(error: str, description: str, status: int = 400) -> HTTPResponse:
    """Return an OAuth error response. RFC 6749, section 5.2"""
    return json_response({"error": error, "error_description": description}, status)


def rate_limit_response(wait_s: float, description: str = "too many requests") -> HTTPResponse:
    """Return a response that asks the caller to wait."""
    return add_headers(error_response("slow_down", description, 429), {"retry-after": str(math.ceil(wait_s))})


def html_response(html: str, status: int = 200, *, form_target: str | None = None) -> HTTPResponse:
    """Return an HTML page that cannot load scripts or external resources, and cannot be shown in a frame.

    The form on the page may redirect to `form_target`.
    """
    form_source = "" if form_target is None else " " + csp_source(form_target)
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; form-action 'self'{form_source}; "
        "frame-ancestors 'none'; base-uri 'none'"
    )
    headers = {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": policy,
        "x-frame-options": "DENY",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "cache-control": "no-store",
    }
    return HTTPResponse(status, headers, html.encode())


def redirect_response(url: str, fields: Mapping[str, str | None]) -> HTTPResponse:
    """Return a response that redirects the browser to a URL with these query parameters."""
    query = urlencode({name: value for name, value in fields.items() if value is not None})
    location = url + ("&" if urlsplit(url).query else "?") + query
    return HTTPResponse(303, {"location": location, "cache-control": "no-store", "referrer-policy": "no-referrer"})


def csp_source(url: str) -> str:
    """Return the entry of a content security policy that allows a form to redirect to this URL."""
    parts = urlsplit(url)
    source_expression = (
        f"{parts.scheme}://{parts.netloc.lower()}" if parts.scheme in ("http", "https") else f"{parts.scheme}:"
    )
    return source_expression if _CSP_SOURCE.fullmatch(source_expression) else "'none'"


def hash_secret(secret: str) -> str:
    """Return the hash of a secret. The server stores only hashes of secrets."""
    return hashlib.sha256(secret.encode()).hexdigest()


def is_same_secret(first: str, second: str) -> bool:
    """Return whether two secrets are equal. The comparison takes constant time."""
    return hmac.compare_digest(first.encode(), second.encode())
