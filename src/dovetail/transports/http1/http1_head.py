"""The head of an HTTP/1.1 request: its target and headers, and the checks of RFC 9112.

Most clients send the same head with each request. A connection keeps the last head as a `KnownHead`, so that it need
not parse and check the same bytes again.
"""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote

from msgspec import Struct

from dovetail.protocol.limits import ServerLimits

Header = tuple[bytes, bytes]

_MAX_KNOWN_HOSTS: Final = 256
_MAX_KNOWN_HEAD_BYTES: Final = 8 * 1024  # A connection does not keep a larger head.
_HEADER_OVERHEAD_BYTES: Final = 4  # the colon, a space and the line end of each header
_HOST: Final = re.compile(rb"(?:[A-Za-z0-9._~%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
_MAX_SHOWN_BYTES: Final = 64  # the maximum length of a header name in an error message
_AUTHORITY_END: Final = re.compile(rb"[/?]")
_METHODS: Final = {name.encode(): name for name in ("POST", "GET", "DELETE", "OPTIONS", "HEAD")}


class BadRequest(Exception):
    """Raised if a request is invalid or exceeds a limit."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = f"Invalid HTTP request: {reason}" if status == 400 else reason


class RequestHead(Struct, frozen=True):
    """The request line and headers of a request, after all checks. Equal requests on a connection share one object.

    A head never changes, so that no request can change another one.
    """

    method: str
    path: str  # the decoded path
    raw_path: bytes
    query: bytes
    fields: Mapping[bytes, bytes]  # the last value of each header, with names in lower case
    repeated_headers: tuple[Header, ...] | None  # all headers if a name occurs more than once, otherwise None
    http_version: str
    keep_alive: bool

    @property
    def headers(self) -> list[Header]:
        """A new list of all headers. Equal names are in the order in which they arrived."""
        return list(self.fields.items() if self.repeated_headers is None else self.repeated_headers)

    def get_framing(self) -> bytes:
        """Return the header lines that determine the length of the body."""
        names = (b"content-length", b"transfer-encoding")
        return b"".join(b"%b: %b\r\n" % (name, self.fields[name]) for name in names if name in self.fields)

    def has_expectation(self) -> bool:
        """Return whether the client waits for status 100 before it sends the body. RFC 9110, section 10.1.1"""
        if self.http_version != "1.1":
            return False
        if self.fields[b"expect"].lower() != b"100-continue":
            raise BadRequest(417, "Expect must be 100-continue")
        return True


class KnownHead(Struct, frozen=True):
    """A head that the client probably sends again on the same connection, with a body of the same length."""

    head: RequestHead
    data: bytes  # the bytes of the head
    message_bytes: int  # the size of the head and the body


class HeadChecker:
    """Checks the heads of all requests to a server."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._known_hosts: set[bytes] = set()  # valid Host headers of earlier requests

    def check(
        self,
        request_line: tuple[bytes, bytes, str],
        headers: Sequence[Header],
        *,
        size: int | None,
        keep_alive: bool,
    ) -> RequestHead:
        """Check a head. Raise BadRequest if the head is invalid or too large.

        Args:
            request_line: The method, the target and the HTTP version.
            headers: All headers, with names in lower case.
            size: The maximum size of all headers in bytes, or None if it is unknown.
        """
        method_name, target, version = request_line
        # If all headers together are smaller than the limit for one header, no check is needed.
        if size is None or size > self._limits.max_header_bytes:
            self.check_sizes(target, headers)
        fields = dict(headers)
        method = _METHODS.get(method_name) or method_name.decode()
        if method == "CONNECT":
            raise BadRequest(501, "The method CONNECT is not supported")
        host = fields.get(b"host")
        if host is not None and host not in self._known_hosts:
            self._check_host(host)
        has_repeated_names = len(fields) != len(headers)
        if version != "1.1" or host is None or has_repeated_names or b"transfer-encoding" in fields:
            _check_framing(version, fields, headers)
        if target[:1] != b"/":
            target = _resolve_target(method, target, fields)
        if not target.isascii() or b"#" in target:
            raise BadRequest(400, "the target contains a fragment or a character that is not ASCII")
        raw_path, _, query = target.partition(b"?")
        path = raw_path.decode("ascii")
        return RequestHead(
            method,
            unquote(path) if "%" in path else path,
            raw_path,
            query,
            MappingProxyType(fields),
            tuple(headers) if has_repeated_names else None,
            version,
            version == "1.1" and keep_alive,
        )

    def check_sizes(self, target: bytes, headers: Sequence[Header]) -> None:
        """Reject a header that is too large, and too many headers."""
        limits = self._limits
        sizes = [len(name) + len(value) for name, value in headers]
        block_bytes = len(target) + sum(sizes) + _HEADER_OVERHEAD_BYTES * len(sizes)
        if block_bytes > limits.max_header_block_bytes:
            raise self.create_block_error()
        if max(sizes, default=0) > limits.max_header_bytes:
            name = headers[sizes.index(max(sizes))][0][:_MAX_SHOWN_BYTES].decode("latin-1")
            raise BadRequest(
                431, f"The header {name} is too large. The limit is {limits.max_header_bytes} bytes (max_header_bytes)"
            )

    def check_trailer(self, name: bytes, value: bytes, total_bytes: int) -> None:
        """Reject a trailer that is too large. `total_bytes` is the size of all trailers so far."""
        if total_bytes > self._limits.max_header_block_bytes:
            raise self.create_block_error()
        if len(name) + len(value) > self._limits.max_header_bytes:
            self.check_sizes(b"", [(name, value)])

    def create_block_error(self) -> BadRequest:
        """Return the error for a head that is too large."""
        limit = self._limits.max_header_block_bytes
        return BadRequest(
            431, f"The URL and the headers are too large. The limit is {limit} bytes (max_header_block_bytes)"
        )

    def _check_host(self, host: bytes) -> None:
        """Reject an invalid Host header. RFC 9112, section 3.2"""
        if _HOST.fullmatch(host) is None:
            raise BadRequest(400, "the Host header is invalid")
        if len(self._known_hosts) < _MAX_KNOWN_HOSTS:
            self._known_hosts.add(host)


def explain_unreadable(data: bytes, problem: object) -> BadRequest:
    """Return the error for data that the parser cannot read.

    Args:
        data: The received data, of which the parser could not read a part.
        problem: The description of the parser.
    """
    if data.startswith(b"PRI * HTTP/2"):
        return BadRequest(505, "The server does not support HTTP/2. Use HTTP/1.1, or put a proxy in front of it")
    if data.startswith(b"\x16\x03"):  # the first bytes of a TLS handshake
        return BadRequest(400, "the client sent TLS data to a port without TLS. Use http:// in the URL")
    return BadRequest(400, f"{problem}")


def remember_head(data: bytes, head: RequestHead, body: bytes) -> KnownHead | None:
    """Return the head of a request, to compare the next request with it. `data` contains only this request.

    Return None for a request that needs the parser, such as a request to close the connection.
    """
    fields = head.fields
    end = data.find(b"\r\n\r\n") + 4
    if (
        end > _MAX_KNOWN_HEAD_BYTES
        or end + len(body) != len(data)
        or b"content-length" not in fields
        or not head.keep_alive
        or head.repeated_headers is not None
        or not {b"transfer-encoding", b"expect", b"upgrade"}.isdisjoint(fields)
    ):
        return None
    return KnownHead(head, data[:end], len(data))


def _check_framing(version: str, fields: Mapping[bytes, bytes], headers: Sequence[Header]) -> None:
    """Reject headers that a proxy could interpret differently. RFC 9112, sections 2.3, 3.2 and 6"""
    if version not in ("1.0", "1.1"):
        raise BadRequest(505, f"The server does not support HTTP/{version}. Use HTTP/1.1")
    if version == "1.1" and b"host" not in fields:
        raise BadRequest(400, "the Host header is missing")
    names = [name for name, _ in headers]
    if any(names.count(name) > 1 for name in (b"host", b"content-length", b"transfer-encoding")):
        raise BadRequest(400, "Host, Content-Length or Transfer-Encoding is repeated")
    if b"transfer-encoding" in fields:
        if version == "1.0" or b"content-length" in fields:
            raise BadRequest(400, "Transfer-Encoding must not occur in HTTP/1.0 or together with Content-Length")
        if fields[b"transfer-encoding"].lower() != b"chunked":
            raise BadRequest(501, "Transfer-Encoding must be chunked")


def _resolve_target(method: str, target: bytes, fields: Mapping[bytes, bytes]) -> bytes:
    """Return the path and the query of a target that does not begin with a slash. RFC 9112, section 3.2

    The host in an absolute target must equal the Host header, because a proxy may have checked only the Host header.
    """
    if target == b"*" and method == "OPTIONS":
        return target
    scheme, separator, rest = target.partition(b"://")
    authority = _AUTHORITY_END.split(rest, maxsplit=1)[0]
    if (
        not separator
        or scheme.lower() not in (b"http", b"https")
        or fields.get(b"host", b"").lower() != authority.lower()
    ):
        raise BadRequest(400, "the target must be a path, or a URL whose host equals the Host header")
    path = rest[len(authority) :]
    return path if path[:1] == b"/" else b"/" + path
