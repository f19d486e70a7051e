"""Check the headers of an HTTP request, and reject an invalid request with a status code.

The Host and Origin checks prevent web pages from calling a server on the user's machine. Results are cached by the raw
header bytes, because nearly all requests send the same headers.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from dovetail.error_context import clip
from dovetail.errors import InvalidParams, ProtocolError, ServerBusy, URLElicitationRequired
from dovetail.protocol.limits import CallerBusy

_URI_CHARS: Final = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+")
# The usual names of this machine. Checks that protect users accept only these: Host and Origin headers, and OAuth URLs.
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
NAT64_NETWORK: Final = "64:ff9b::/96"  # IPv6 addresses that contain an IPv4 address. RFC 6052

# Each JSON-RPC error code has an HTTP status.
# spec: streamable-http#protocol-version-header, streamable-http#server-validation
STATUS_BY_ERROR_CODE: Final = {
    -32700: 400,
    -32600: 400,
    -32601: 404,
    -32602: 400,
    -32002: 400,  # This error is sent with the code -32602, so it has the same status.
    -32020: 400,
    -32021: 400,
    -32022: 400,
    403: 403,
}


def get_http_status(exc: ProtocolError) -> int:
    """Return the HTTP status for an error response."""
    if isinstance(exc, ServerBusy):
        return 429 if isinstance(exc, CallerBusy) else 503
    # Stateless versions send URLElicitationRequired with the code of InvalidParams.
    code = InvalidParams.code if isinstance(exc, URLElicitationRequired) else exc.code
    return STATUS_BY_ERROR_CODE.get(code, 200)


def build_retry_header(exc: ProtocolError) -> list[tuple[bytes, bytes]]:
    """Return a Retry-After header if the error says when to retry. Otherwise return no headers."""
    return [(b"retry-after", b"%d" % max(1, int(exc.retry_after)))] if isinstance(exc, ServerBusy) else []


def build_scope_challenge(scopes: Iterable[str], metadata: str | None, authorization: bytes = b"") -> bytes:
    """Return the value of a WWW-Authenticate header with the missing scopes.

    spec: authorization#runtime-insufficient-scope-errors
    """
    scheme = "DPoP" if authorization[:5].lower() == b"dpop " else "Bearer"
    challenge = f'{scheme} error="insufficient_scope", scope="{" ".join(scopes)}"'
    return (challenge if metadata is None else f'{challenge}, resource_metadata="{metadata}"').encode()


JSON_MEDIA_TYPE: Final = b"application/json"
SSE_MEDIA_TYPE: Final = b"text/event-stream"

# These headers must not be repeated. Otherwise a proxy and the server could read different values.
_SINGLE_VALUE_HEADERS: Final = (
    b"host",
    b"origin",
    b"content-type",
    b"content-length",
    b"last-event-id",
    b"authorization",
    b"dpop",
)
_MAX_CACHED_DECISIONS: Final = 256
_ZERO_QUALITY: Final = re.compile(rb"\s*q=0(?:\.0*)?\s*", re.IGNORECASE)


class Refusal(Exception):
    """Raised to reject an HTTP request with an error status before its body is read."""

    def __init__(self, status: int, message: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = list(headers)


def create_unavailable_refusal(retry_after: float) -> Refusal:
    """Create the error for a request that needs the shared state of a cluster while it is not available."""
    headers = [(b"retry-after", b"%d" % max(1, round(retry_after)))]
    return Refusal(503, "The shared state of the server is not available. Try again", headers)


def collect_headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the headers by lower-case name. Raise Refusal if a header that must be unique is repeated.

    Spaces around a value are removed. Some HTTP servers keep the spaces at the end. RFC 9110, section 5.5
    """
    header_list = list(pairs)
    headers: dict[bytes, bytes] = {}
    for name, value in header_list:
        headers[name] = value.strip(b" \t")
    if len(headers) == len(header_list):
        return headers
    seen: set[bytes] = set()
    for name, _ in header_list:
        if name in seen and (name in _SINGLE_VALUE_HEADERS or name.startswith(b"mcp-")):
            raise Refusal(400, f"Header mismatch: {name.decode('latin-1')} was sent more than once")
        seen.add(name)
    joined: dict[bytes, bytes] = {}
    for name, value in header_list:
        stripped = value.strip(b" \t")
        joined[name] = joined[name] + b", " + stripped if name in joined else stripped
    return joined


class HostFilter:
    """Decides which Host and Origin headers are accepted."""

    def __init__(self, hosts: Iterable[str], origins: Iterable[str], public_url: str | None) -> None:
        self._hosts = {host.lower() for host in hosts}
        for host in self._hosts:
            if "/" in host:
                raise ValueError(f"allowed_hosts must contain host names such as 'example.com', not URLs: {host!r}")
            _check_no_pattern("allowed_hosts", host)
        self._origins = {origin.lower().rstrip("/") for origin in origins}
        for origin in self._origins:
            _check_no_pattern("allowed_origins", origin)
        if public_url is not None:
            from urllib.parse import urlsplit  # This import is here because servers on stdio do not need the module.

            parts = urlsplit(public_url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"public_url must be an http or https URL, not {public_url!r}")
            # A canonical server URL has no query or fragment. spec: authorization#canonical-server-uri
            if "?" in public_url or "#" in public_url:
                raise ValueError(f"public_url must not have a query or a fragment: {public_url!r}")
            self._hosts.add(parts.netloc.rpartition("@")[2].lower())
            self._origins.add(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}".lower())
        self._allowed_cache: dict[tuple[bytes | None, bytes | None, str | None], bool] = {}

    def check(self, headers: Mapping[bytes, bytes], bound_host: str | None) -> None:
        """Reject an unknown Origin with status 403, and an unknown Host with status 421.

        spec: streamable-http#security-endpoint
        """
        key = (headers.get(b"host"), headers.get(b"origin"), bound_host)
        if key in self._allowed_cache:
            return
        host, origin = key[0], key[1]
        if origin is not None and not self._is_origin_allowed(origin.decode("latin-1").lower(), bound_host):
            raise Refusal(
                403,
                f"Origin {clip(origin.decode('latin-1'))} is not allowed. To allow it, add it to allowed_origins",
            )
        if host is None or not self._is_host_allowed(host.decode("latin-1").lower(), bound_host):
            raise Refusal(
                421,
                f"Host {clip((host or b'(none)').decode('latin-1'))} is not allowed. Add it to allowed_hosts "
                "(--allowed-host), or set public_url (--public-url)",
            )
        if len(self._allowed_cache) < _MAX_CACHED_DECISIONS:
            self._allowed_cache[key] = True

    def _is_host_allowed(self, host: str, bound_host: str | None) -> bool:
        if "*" in self._hosts or host in self._hosts:
            return True
        name = _parse_hostname(host)
        return name is not None and (name in LOOPBACK or name in self._hosts or name == bound_host)

    def _is_origin_allowed(self, origin: str, bound_host: str | None) -> bool:
        if "*" in self._origins or origin in self._origins:
            return True
        scheme, separator, host = origin.partition("://")
        # allowed_hosts="*" does not allow web pages from other servers. Only allowed_origins can allow them.
        name = _parse_hostname(host) if separator and scheme in ("http", "https") else None
        return name is not None and (name in LOOPBACK or name == bound_host)


def _check_no_pattern(option: str, name: str) -> None:
    if "*" in name and name != "*":
        raise ValueError(f"{option} must not contain patterns: {name!r}. List each name, or write '*' to accept all")


def _parse_hostname(host: str) -> str | None:
    if host.startswith("["):
        name, bracket, rest = host[1:].partition("]")
        if not bracket or ":" not in name:  # Only IPv6 addresses have brackets.
            return None
        colon, port = rest[:1], rest[1:]
    else:
        name, colon, port = host.partition(":")
        rest = colon + port
    if rest and (colon != ":" or not (port.isascii() and port.isdecimal() and len(port) <= 5)):
        return None
    return name if name and not any(delimiter in name for delimiter in "/@\\?# ") else None


def parse_media_type(value: bytes | None) -> bytes:
    """Return the media type of a Content-Type header, without its parameters."""
    return (value or b"").partition(b";")[0].strip().lower()


_accept_cache: dict[bytes, tuple[bool, bool]] = {}


def parse_accept(value: bytes | None) -> tuple[bool, bool]:
    """Return whether an Accept header allows JSON, and whether it allows an event stream."""
    if value is None:
        return True, True
    accepts = _accept_cache.get(value)
    if accepts is None:
        accepts = (
            _accepts_type(value, JSON_MEDIA_TYPE, b"application/*"),
            _accepts_type(value, SSE_MEDIA_TYPE, b"text/*"),
        )
        if len(_accept_cache) < _MAX_CACHED_DECISIONS:
            _accept_cache[value] = accepts
    return accepts


def _accepts_type(value: bytes, full_type: bytes, type_range: bytes) -> bool:
    for part in value.split(b","):
        name, _, parameters = part.partition(b";")
        if name.strip().lower() in (full_type, type_range, b"*/*") and not any(
            map(_ZERO_QUALITY.fullmatch, parameters.split(b";"))
        ):
            return True
    return False


def is_safe_url(url: str) -> bool:
    """Return whether a URL is safe to show to a user. It must be https, or http on this machine.

    The URL may contain only the characters of RFC 3986. A browser reads a backslash as a slash, and would then open
    another host than the one that the user sees.
    """
    if not _URI_CHARS.fullmatch(url):
        return False
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    if not host or parts.username is not None:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and host in LOOPBACK)


def is_on_this_machine(host: str) -> bool:
    """Return whether only this machine can reach a host.

    This includes `localhost`, names that end with `.localhost`, all addresses that start with 127, and `::1`.
    """
    if host in LOOPBACK:
        return True
    from ipaddress import ip_address  # This import is here because few servers need the module.

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.endswith(".localhost")


def is_loopback_uri(uri: str) -> bool:
    """Return whether a URI is an http URI on this machine."""
    try:
        parts = urlsplit(uri)
        _ = parts.port  # If the port is not a number or too large, this expression raises ValueError.
    except ValueError:
        return False
    return parts.scheme == "http" and parts.hostname in LOOPBACK
