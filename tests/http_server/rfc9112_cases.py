"""Byte streams for an HTTP/1.1 server and the outcome of each, in the order of RFC 9112 and RFC 9110.

Where the RFCs leave a choice, the stricter one is expected, because a lenient server and a proxy may disagree on where
a request ends.
"""

from dataclasses import dataclass
from typing import Final

from http_server.raw_connection import Request

HOST: Final = b"host: localhost\r\n"
MAX_HEADER: Final = 8 * 1024
MAX_BLOCK: Final = 32 * 1024
FLOOD: Final = 600_000  # more than the server reads at once
CHUNKED: Final = b"transfer-encoding: chunked\r\n"
BAD_REQUEST: Final = frozenset({400})
UNSUPPORTED_VERSION: Final = frozenset({400, 505})
UNSUPPORTED_METHOD: Final = frozenset({400, 405, 501})
UNSUPPORTED_CODING: Final = frozenset({400, 501})
TOO_LARGE: Final = frozenset({400, 413, 414, 431})


@dataclass(frozen=True)
class Case:
    """A byte stream and its outcome.

    The server reads `requests`. Then it rejects the stream with one of the statuses in `rejection`, or closes the
    connection, or waits for more.
    """

    section: str
    name: str
    data: bytes
    requests: tuple[Request, ...] = ()
    rejection: frozenset[int] = frozenset()
    closes: bool = False
    is_incomplete: bool = False  # The server waits for more bytes.
    header: tuple[str, str] | None = None  # a header that the application must see
    missing_header: str | None = None  # a header that the application must not see

    @property
    def id(self) -> str:
        return f"{self.section}: {self.name}"


def get(target: bytes = b"/a", headers: bytes = HOST, version: bytes = b"HTTP/1.1", method: bytes = b"GET") -> bytes:
    return method + b" " + target + b" " + version + b"\r\n" + headers + b"\r\n"


def post(headers: bytes, body: bytes = b"", target: bytes = b"/a", version: bytes = b"HTTP/1.1") -> bytes:
    return get(target, HOST + headers, version, b"POST") + body


GET_A: Final = Request("GET", "/a", b"")
NEXT: Final = get(b"/next")
GET_NEXT: Final = Request("GET", "/next", b"")


def _posted(body: bytes) -> Request:
    return Request("POST", "/a", body)


def accept(
    section: str, name: str, data: bytes, *requests: Request, closes: bool = False, header: tuple[str,
    str] | None = None,
    missing_header: str | None = None,
) -> Case:  # fmt: skip
    return Case(section, name, data, requests or (GET_A,), closes=closes, header=header, missing_header=missing_header)


def reject(section: str, name: str, data: bytes, *after: Request, status: frozenset[int] = BAD_REQUEST) -> Case:
    return Case(section, name, data, after, status, closes=True)


def wait(section: str, name: str, data: bytes, *after: Request) -> Case:
    return Case(section, name, data, after, is_incomplete=True)


def _header(line: bytes) -> bytes:
    return get(headers=HOST + line)


def _chunked(body: bytes) -> bytes:
    return post(CHUNKED, body)


def _length(value: bytes, body: bytes = b"hello") -> bytes:
    return post(b"content-length: " + value + b"\r\n", body)


def _coding(line: bytes, body: bytes = b"5\r\nhello\r\n0\r\n\r\n") -> bytes:
    return post(line + b"\r\n", body)


_MESSAGE_PARSING = [
    accept("9112-2.2", "an empty line before the request", b"\r\n" + get()),
    reject("9112-2.2", "lines that end with LF", b"GET /a HTTP/1.1\nhost: localhost\n\n"),
    reject("9112-2.2", "a request line that ends with LF", b"GET /a HTTP/1.1\nhost: localhost\r\n\r\n"),
    reject("9112-2.2", "a header that ends with LF", b"GET /a HTTP/1.1\r\nhost: localhost\nx: y\r\n\r\n"),
    reject("9112-2.2", "a head that ends with LF", b"GET /a HTTP/1.1\r\nhost: localhost\r\n\n"),
    reject("9112-2.2", "a head that ends with LF LF", b"GET /a HTTP/1.1\r\nhost: localhost\n\n"),
    reject("9112-2.2", "a bare CR in the request line", b"GET /a\rb HTTP/1.1\r\n" + HOST + b"\r\n"),
    reject("9112-2.2", "a bare CR after the request line", b"GET /a HTTP/1.1\r" + HOST + b"\r\n"),
    reject("9112-2.2", "a bare CR in a header value", _header(b"x: a\rb\r\n")),
    reject("9112-2.2", "a bare CR that hides a header", _header(b"x: a\rtransfer-encoding: chunked\r\n")),
    reject("9112-2.2", "two CRs before LF", _header(b"x: a\r\r\n")),
    reject("9112-2.2", "a space before the first header", get(headers=b" " + HOST)),
    reject("9112-2.2", "a tab before the first header", get(headers=b"\tx: y\r\n" + HOST)),
    reject("9112-2.2", "a space before the method", b" " + get()),
    reject("9112-2.2", "a line with a space before the request", b" \r\n" + get()),
    accept("9112-2.2", "line ends before the request", b"\r\n\r\n\n" + get()),
    reject("9112-2.2", "NUL before the request", b"\0" + get()),
    reject("9112-2.2", "a TLS handshake", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x5a" * 40),
    reject("9112-2.2", "another protocol", b"SSH-2.0-OpenSSH_9.6\r\n"),
    reject("9112-2.2", "a response", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
    wait("9112-2.2", "half a method", b"GE"),
    wait("9112-2.2", "half a request line", b"GET /a HT"),
    wait("9112-2.2", "half a head", b"GET /a HTTP/1.1\r\nhost: local"),
    wait("9112-2.2", "a head without its last line", b"GET /a HTTP/1.1\r\n" + HOST),
]

_VERSION = [
    accept("9112-2.3", "HTTP/1.0", get(version=b"HTTP/1.0"), closes=True),
    accept("9112-2.3", "HTTP/1.0 without Host", get(headers=b"", version=b"HTTP/1.0"), closes=True),
    *(
        reject("9112-2.3", f"the version {version.decode()!r}", get(version=version), status=UNSUPPORTED_VERSION)
        for version in (
            b"HTTP/0.9", b"HTTP/1.2", b"HTTP/1.9", b"HTTP/2.0", b"HTTP/3.0", b"HTTP/2", b"HTTP/1", b"HTTP/01.1",
            b"HTTP/1.10",
            b"HTTP/1.1.1", b"HTTP/1,1", b"http/1.1", b"Http/1.1", b"HTTP /1.1", b"HTTP/ 1.1", b"HTTP/1. 1",
            b"HTTPS/1.1",
            b"ICE/1.0", b"HTTP/-1.1", b"HTTP/1.1x", b"HTTP/", b"X",
        )
    ),
    # The parser reads this version as HTTP/1.0. Nothing is read after the request.
    accept("9112-2.3", "the version of RTSP", get(version=b"RTSP/1.0") + NEXT, closes=True),
    reject("9112-2.3", "no version", b"GET /a\r\n" + HOST + b"\r\n", status=UNSUPPORTED_VERSION),
    reject("9112-2.3", "a request of HTTP/0.9", b"GET /a\r\n\r\n", status=UNSUPPORTED_VERSION),
    reject(
        "9113-3.4", "the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0",
        status=UNSUPPORTED_VERSION | UNSUPPORTED_METHOD,
    ),
]  # fmt: skip

_REQUEST_LINE = [
    *(
        reject("9112-3", name, line + b"\r\n" + HOST + b"\r\n")
        for name, line in {
            "a tab before the target": b"GET\t/a HTTP/1.1",
            "a tab after the target": b"GET /a\tHTTP/1.1",
            "a vertical tab as separator": b"GET\x0b/a HTTP/1.1",
            "a form feed as separator": b"GET /a\x0cHTTP/1.1",
            "a space at the end": b"GET /a HTTP/1.1 ",
            "a tab at the end": b"GET /a HTTP/1.1\t",
            "a fourth word": b"GET /a HTTP/1.1 x",
            "a space in the target": b"GET /a b HTTP/1.1",
            "no target": b"GET HTTP/1.1",
            "an empty target": b"GET  HTTP/1.1",
            "NUL in the target": b"GET /a\0b HTTP/1.1",
            "NUL in the version": b"GET /a HTTP/1.1\0",
        }.items()
    ),
    accept("9112-3", "several spaces in the request line", b"GET  /a   HTTP/1.1\r\n" + HOST + b"\r\n"),
    reject("9112-3", "no method", b"/a HTTP/1.1\r\n" + HOST + b"\r\n", status=UNSUPPORTED_METHOD),
    reject("9112-3", "a target that is too long", get(b"/" + b"a" * MAX_BLOCK), status=TOO_LARGE),
    reject("9112-3", "a target without an end", b"GET /" + b"a" * (MAX_BLOCK + 1024), status=TOO_LARGE),
    reject("9112-3", "a method without an end", b"A" * (MAX_BLOCK + 1024), status=TOO_LARGE | UNSUPPORTED_METHOD),
    *(
        accept("9112-3.1", method, get(method=method.encode()), Request(method, "/a", b""))
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH")
    ),
    accept("9112-3.1", "HEAD", get(method=b"HEAD"), Request("HEAD", "/a", b"")),
    *(
        reject("9112-3.1", f"the method {method.decode('latin-1')!r}", get(method=method), status=UNSUPPORTED_METHOD)
        for method in (
            b"FOO", b"get", b"Get", b"GETT", b"GE(T", b"GE\0T", b"G\xc4T", b"X" * 1000, b'"GET"', b"GET,POST", b"GE/T",
        )
    ),
    reject("9112-3.1", "CONNECT", get(b"localhost:80", method=b"CONNECT"), status=UNSUPPORTED_METHOD),
    reject("9112-3.1", "CONNECT with a path", get(method=b"CONNECT"), status=UNSUPPORTED_METHOD),
]  # fmt: skip

_TARGETS = [
    *(
        accept("9112-3.2.1", f"the target {target}", get(target.encode()), Request("GET", target, b""))
        for target in ("/a?b=c", "/a?b?c", "/a%20b", "/a//b", "//a", "/a/../b", "/a;b=c", "/a:b@c!$&'()*+,=~",
            "/a?b=/%2f")
    ),
    reject("9112-3.2.1", "a fragment", get(b"/a#b")),
    reject("9112-3.2.1", "no slash", get(b"a")),
    reject("9112-3.2.1", "only a query", get(b"?a")),
    reject("9112-3.2.1", "letters that are not ASCII", get(b"/\xc3\xa4")),
    reject("9112-3.2.1", "an invalid UTF-8 byte", get(b"/a\xff")),
    reject("9112-3.2.1", "DEL", get(b"/a\x7f")),
    reject("9112-3.2.1", "a control character", get(b"/a\x01b")),
    accept("9112-3.2.2", "an absolute target", get(b"http://localhost/a")),
    accept("9112-3.2.2", "an absolute target in upper case", get(b"HTTP://LOCALHOST/a")),
    reject("9112-3.2.2", "an absolute target with another host", get(b"http://other.example/a")),
    reject("9112-3.2.2", "an absolute target with another port", get(b"http://localhost:1/a")),
    reject("9112-3.2.2", "an absolute target with a user", get(b"http://user@localhost/a")),
    reject("9112-3.2.2", "an absolute target without a host", get(b"http:///a")),
    reject("9112-3.2.2", "an absolute target with a bracket in its host", get(b"http://local[host/a")),
    reject("9112-3.2.2", "an absolute target with one slash", get(b"http:/a")),
    reject("9112-3.2.2", "an absolute target with another scheme", get(b"ftp://localhost/a")),
    reject("9112-3.2.2", "an absolute target with a fragment", get(b"http://localhost/a#b")),
    reject("9112-3.2.2", "an absolute target with a backslash", get(b"http://localhost\\@other.example/a")),
    reject("9112-3.2.3", "an authority without CONNECT", get(b"localhost:80")),
    reject("9112-3.2.3", "a host without CONNECT", get(b"localhost")),
    accept("9112-3.2.4", "OPTIONS *", get(b"*", method=b"OPTIONS"), Request("OPTIONS", "*", b"")),
    reject("9112-3.2.4", "GET *", get(b"*")),
    reject("9112-3.2.4", "two asterisks", get(b"**", method=b"OPTIONS")),
]  # fmt: skip

_HOST = [
    reject("9112-3.2", "no Host", get(headers=b"")),
    reject("9112-3.2", "Host twice", get(headers=HOST + b"host: other.example\r\n")),
    reject("9112-3.2", "the same Host twice", get(headers=HOST + HOST)),
    reject("9112-3.2", "Host in a header with an underscore", get(headers=b"ho_st: localhost\r\n")),
    *(
        accept("9112-3.2", f"the host {host.decode()}", get(headers=b"host: " + host + b"\r\n"))
        for host in (b"localhost:8000", b"127.0.0.1", b"[::1]", b"[::1]:8000", b"a-b.example", b"LOCALHOST")
    ),
    *(
        reject("9112-3.2", f"the host {host.decode('latin-1')!r}", get(headers=b"host: " + host + b"\r\n"))
        for host in (
            b"a b", b"a/b", b"a,b", b"a@b", b"a?b", b"a#b", b"a\\b", b"[::1", b"::1", b"a:b", b"a:1:2", b"http://a",
            b"a\xe4",
            b"a\tb", b'"a"', b"a:-1", b"[a", b"[]", b"a<b>", b"a;b", b"a:99999999",
        )
    ),
]  # fmt: skip

_FIELDS = [
    accept("9112-5.1", "no space after the colon", _header(b"x:y\r\n"), header=("x", "y")),
    accept("9112-5.1", "spaces around the value", _header(b"x: \t y \t \r\n"), header=("x", "y")),
    accept("9112-5.1", "an empty value", _header(b"x:\r\n"), header=("x", "")),
    accept("9112-5.1", "a value of spaces", _header(b"x:   \r\n"), header=("x", "")),
    accept("9112-5.1", "a tab inside the value", _header(b"x: a\tb\r\n"), header=("x", "a\tb")),
    accept("9112-5.1", "a colon in the value", _header(b"x: a:b: c\r\n"), header=("x", "a:b: c")),
    accept("9112-5.1", "bytes above 127 in the value", _header(b"x: \xe4\xf6\r\n"), header=("x", "\xe4\xf6")),
    accept("9112-5.1", "a name in upper case", _header(b"X-Y: z\r\n"), header=("x-y", "z")),
    accept("9112-5.1", "all characters of a token", _header(b"!#$%&'*+-.^_`|~09az: y\r\n"),
        header=("!#$%&'*+-.^_`|~09az", "y")),
    *(
        reject("9112-5.1", f"the line {line.decode('latin-1')!r}", _header(line + b"\r\n"))
        for line in (
            b"x : y", b"x\t: y", b"x \t : y", b"x", b": y", b":", b" x: y", b"x y: z", b"x(y): z", b"x\0: y",
                b"x\x7f: y",
            b"x\xe4: y", b'"x": y', b"x,y: z", b"x/y: z", b"x@y: z", b"[x]: y", b"{x}: y", b"x\x0b: y", b"x\x0c: y",
            b"x=y",
        )
    ),
    *(
        reject("9110-5.5", f"the value {value.decode('latin-1')!r}", _header(b"x: " + value + b"\r\n"))
        for value in (b"a\0b", b"\0", b"a\x01b", b"a\x08b", b"a\x0bb", b"a\x0cb", b"a\x1bb", b"a\x7fb", b"\x0b",
            b"a\x1f")
    ),
    reject("9112-5.2", "a folded value", _header(b"x: a\r\n b\r\n")),
    reject("9112-5.2", "a value folded with a tab", _header(b"x: a\r\n\tb\r\n")),
    reject("9112-5.2", "a value that begins on the next line", _header(b"x:\r\n b\r\n")),
    reject("9112-5.2", "a folded empty line", _header(b"x: a\r\n \r\n")),
    reject("9112-5.2", "a folded transfer coding", _coding(b"transfer-encoding:\r\n chunked")),
    reject("9112-5.2", "a folded length", post(b"content-length:\r\n 5\r\n", b"hello")),
    accept("9110-5.4", "a header close to the limit", _header(b"x: " + b"a" * (MAX_HEADER - 200) + b"\r\n")),
    reject("9110-5.4", "a header over the limit", _header(b"x: " + b"a" * MAX_HEADER + b"\r\n"), status=TOO_LARGE),
    reject("9110-5.4", "a header name over the limit", _header(b"x" * (MAX_HEADER + 1) + b": y\r\n"), status=TOO_LARGE),
    accept("9110-5.4", "headers close to the limit", _header(b"".join(b"x%d: %s\r\n" % (n,
        b"a" * 5000) for n in range(6)))),
    reject(
        "9110-5.4", "headers over the limit", _header(b"".join(b"x%d: %s\r\n" % (n, b"a" * 5000) for n in range(7))),
        status=TOO_LARGE,
    ),
    reject("9110-5.4", "short headers over the limit", _header(b"x: y\r\n" * 6000), status=TOO_LARGE),
    reject("9110-5.4", "headers without an end", get()[:-2] + b"x: " + b"a" * (MAX_BLOCK + 1024), status=TOO_LARGE),
]  # fmt: skip

_TRANSFER_ENCODING = [
    accept("9112-6.1", "chunked", _coding(b"transfer-encoding: chunked"), _posted(b"hello")),
    accept("9112-6.1", "chunked in upper case", _coding(b"Transfer-Encoding: CHUNKED"), _posted(b"hello")),
    accept("9112-6.1", "spaces before chunked", _coding(b"transfer-encoding: \t chunked"), _posted(b"hello")),
    *(
        reject("9112-6.1", f"the coding {coding.decode('latin-1')!r}", _coding(b"transfer-encoding: " + coding),
            status=status)
        for codings, status in (
            ((b"gzip, chunked", b"gzip", b"identity", b"identity, chunked", b"xchunked", b"chunkedx", b"x"),
                UNSUPPORTED_CODING),
            (
                (
                    b"chunked, chunked", b"chunked, gzip", b"chunked, identity", b"", b",chunked", b"chunked,",
                    b"chunked, ",
                    b"chunked;q=1", b"chunked; x=y", b'"chunked"', b"'chunked'", b"chun\tked", b"chun ked",
                    b"chunked chunked",
                    b"\x0bchunked", b"chunked\x0b", b"\0chunked", b"chunked\0", b"chunked\x0c", b"\xa0chunked",
                    b"[chunked]",
                    b"chunked\x85", b",", b"chunked,,chunked", b"c", b"chunke", b"chunkeD chunked",
                ),
                UNSUPPORTED_CODING,
            ),
        )
        for coding in codings
    ),
    *(
        reject("9112-6.1", name, _coding(lines), status=UNSUPPORTED_CODING)
        for name, lines in {
            "chunked twice": b"transfer-encoding: chunked\r\ntransfer-encoding: chunked",
            "gzip and chunked in two headers": b"transfer-encoding: gzip\r\ntransfer-encoding: chunked",
            "chunked and gzip in two headers": b"transfer-encoding: chunked\r\ntransfer-encoding: gzip",
            "chunked and identity in two headers": b"transfer-encoding: chunked\r\ntransfer-encoding: identity",
            "an empty header and chunked": b"transfer-encoding:\r\ntransfer-encoding: chunked",
            "a space before the colon": b"transfer-encoding : chunked",
            "a length before chunked": b"content-length: 5\r\ntransfer-encoding: chunked",
            "a length after chunked": b"transfer-encoding: chunked\r\ncontent-length: 5",
            "the length 0 and chunked": b"content-length: 0\r\ntransfer-encoding: chunked",
            "a length and another coding": b"content-length: 5\r\ntransfer-encoding: x",
            "a length and an empty coding": b"content-length: 5\r\ntransfer-encoding:",
        }.items()
    ),
    reject("9112-6.1", "chunked in HTTP/1.0", post(CHUNKED, b"0\r\n\r\n", version=b"HTTP/1.0"),
        status=UNSUPPORTED_CODING),
    reject(
        "9112-6.1", "chunked and a length in HTTP/1.0",
        post(CHUNKED + b"content-length: 5\r\n", b"0\r\n\r\n", version=b"HTTP/1.0"), status=UNSUPPORTED_CODING,
    ),
    accept("9112-6.1", "GET with chunks", get(headers=HOST + CHUNKED) + b"5\r\nhello\r\n0\r\n\r\n", Request("GET",
        "/a", b"hello")),
    accept("9112-6.1", "a name with an underscore", _header(b"transfer_encoding: chunked\r\n")),
    reject("9112-6.1", "GET with an unknown coding", get(headers=HOST + b"transfer-encoding: x\r\n"),
        status=UNSUPPORTED_CODING),
]  # fmt: skip

_LENGTH = [
    accept("9112-6.2", "a length", _length(b"5"), _posted(b"hello")),
    accept("9112-6.2", "the length 0", _length(b"0", b""), _posted(b"")),
    accept("9112-6.2", "leading zeros", _length(b"0005"), _posted(b"hello")),
    accept("9112-6.2", "spaces around the length", _length(b" \t5 \t"), _posted(b"hello")),
    accept("9112-6.2", "GET with a body", get(headers=HOST + b"content-length: 5\r\n") + b"hello", Request("GET", "/a",
        b"hello")),
    accept("9112-6.2", "a body of line ends", _length(b"8", b"\r\n\r\n\r\n\r\n"), _posted(b"\r\n\r\n\r\n\r\n")),
    accept("9112-6.2", "a request as body", _length(b"%d" % len(NEXT), NEXT), _posted(NEXT)),
    accept("9112-6.2", "every byte", _length(b"256", bytes(range(256))), _posted(bytes(range(256)))),
    *(
        reject("9112-6.2", f"the length {length.decode('latin-1')!r}", _length(length), status=TOO_LARGE)
        for length in (
            b"+5", b"-5", b"-0", b"5 5", b"5,5", b"5, 5", b"5;", b"0x5", b"5.0", b"5e0", b"five", b"", b" ", b"5_0",
            b"\xb25", b"\x005",
            b"5\x00", b"5\x0b", b"\x0b5", b"5a", b"a5", b'"5"', b"18446744073709551616", b"18446744073709551621",
            b"4294967301x",
            b"99999999999999999999", b"9" * 100, b"5\r\n 5", b"\xef\xbc\x95", b"0b1", b"0o5", b"5 ,", b",5",
        )
    ),
    *(
        reject("9112-6.3", name, post(lines, b"hello"))
        for name, lines in {
            "two lengths": b"content-length: 5\r\ncontent-length: 6\r\n",
            "the same length twice": b"content-length: 5\r\ncontent-length: 5\r\n",
            "two lengths with a header between": b"content-length: 5\r\nx: y\r\nContent-Length: 0\r\n",
            "two equal lengths, written differently": b"content-length: 5\r\ncontent-length: 05\r\n",
            "a length with a space before the colon": b"content-length : 5\r\n",
        }.items()
    ),
    accept("9112-6.3", "POST without a length", post(b""), _posted(b"")),
    accept("9112-6.3", "a request after POST without a length", post(b"") + NEXT, _posted(b""), GET_NEXT),
    accept("9112-6.3", "a request after a body", _length(b"5") + NEXT, _posted(b"hello"), GET_NEXT),
    reject("9112-6.3", "a body that is longer than its length", _length(b"5", b"hello!!") + NEXT, _posted(b"hello"),
        status=BAD_REQUEST),
    wait("9112-8", "a body that is too short", _length(b"6")),
    wait("9112-8", "no body", _length(b"6", b"")),
    wait("9112-8", "chunks without an end", _chunked(b"5\r\nhello\r\n")),
    wait("9112-8", "half a chunk", _chunked(b"5\r\nhel")),
    wait("9112-8", "a chunk size without its end", _chunked(b"5")),
    wait("9112-8", "a last chunk without its end", _chunked(b"0\r\n")),
    wait("9112-8", "trailers without an end", _chunked(b"0\r\nx: y\r\n")),
    wait("9112-8", "a complete request and half of the next one", get() + NEXT[:20], GET_A),
]  # fmt: skip

_LAST = b"0\r\n\r\n"
_CHUNKS = [
    *(
        accept("9112-7.1", name, _chunked(body), _posted(b"hello"))
        for name, body in {
            "a chunk": b"5\r\nhello\r\n" + _LAST,
            "two chunks": b"2\r\nhe\r\n3\r\nllo\r\n" + _LAST,
            "chunks of one byte": b"".join(b"1\r\n%c\r\n" % letter for letter in b"hello") + _LAST,
            "zeros before the size": b"0005\r\nhello\r\n" + _LAST,
            "zeros as the last chunk": b"5\r\nhello\r\n000\r\n\r\n",
        }.items()
    ),
    accept("9112-7.1", "sizes with letters",
        _chunked(b"A\r\n" + b"x" * 10 + b"\r\nb\r\n" + b"y" * 11 + b"\r\n" + _LAST), _posted(b"x" * 10 + b"y" * 11)),
    accept("9112-7.1", "no chunk", _chunked(_LAST), _posted(b"")),
    accept("9112-7.1", "line ends as data", _chunked(b"4\r\n\r\n\r\n\r\n" + _LAST), _posted(b"\r\n\r\n")),
    accept("9112-7.1", "a request after chunks", _chunked(b"5\r\nhello\r\n" + _LAST) + NEXT, _posted(b"hello"),
        GET_NEXT),
    *(
        reject("9112-7.1", f"the size {size.decode('latin-1')!r}", _chunked(size + b"\r\nhello\r\n" + _LAST),
            status=TOO_LARGE)
        for size in (
            b"", b" 5", b"\t5", b"+5", b"-5", b"-0", b"0x5", b"5x", b"g", b"5_0", b"5 5", b"5,", b"5\0", b"\x005",
            b"5\x0b", b"5.0", b"\xb25",
            b"10000000000000005", b"100000000000000000000000000000005", b"fffffffffffffffff", b'"5"', b"5\r", b"5\n",
            b"\r\n5",
        )
    ),
    reject("9112-7.1", "a size that ends with LF", _chunked(b"5\nhello\r\n" + _LAST)),
    reject("9112-7.1", "data that ends with LF", _chunked(b"5\r\nhello\n" + _LAST)),
    reject("9112-7.1", "data without its end", _chunked(b"5\r\nhello" + _LAST)),
    reject("9112-7.1", "data that is too long", _chunked(b"5\r\nhello!\r\n" + _LAST)),
    reject("9112-7.1", "data that is too short", _chunked(b"6\r\nhello\r\n" + _LAST)),
    reject("9112-7.1", "two other bytes after the data", _chunked(b"5\r\nhelloXX" + _LAST)),
    reject("9112-7.1", "a last chunk that ends with LF", _chunked(b"5\r\nhello\r\n0\n\r\n")),
    reject("9112-7.1", "a last line that ends with LF", _chunked(b"5\r\nhello\r\n0\r\n\n")),
    reject("9112-7.1", "a bare CR after the size", _chunked(b"5\rhello\r\n" + _LAST)),
    *(
        accept("9112-7.1.1", f"the extension {extension.decode()!r}",
            _chunked(b"5" + extension + b"\r\nhello\r\n" + _LAST), _posted(b"hello"))
        for extension in (b";a", b";a=b", b';a="b"', b";a=b;c=d", b';a="b;c=d"')
    ),
    accept("9112-7.1.1", "an extension of the last chunk", _chunked(b"5\r\nhello\r\n0;a=b\r\n\r\n"), _posted(b"hello")),
    *(
        reject("9112-7.1.1", f"the extension {extension.decode('latin-1')!r}",
            _chunked(b"5" + extension + b"\r\nhello\r\n" + _LAST))
        for extension in (b";a\0", b";a\nb", b";a\rb", b";\x01", b";a=\x7f", b"\n;a", b';a="\n"')
    ),
    reject("9112-7.1.1", "an extension that is too long",
        _chunked(b"5;" + b"a" * FLOOD + b"\r\nhello\r\n" + _LAST), status=TOO_LARGE),
    reject("9112-7.1.1", "an extension without an end", _chunked(b"5;" + b"a" * FLOOD), status=TOO_LARGE),
    accept("9112-7.1.2", "a trailer", _chunked(b"5\r\nhello\r\n0\r\nx: y\r\n\r\n"), _posted(b"hello"),
        missing_header="x"),
    *(
        accept(
            "9112-7.1.2", f"the trailer {trailer.decode()!r}",
                _chunked(b"5\r\nhello\r\n0\r\n" + trailer + b"\r\n\r\n") + NEXT,
            _posted(b"hello"), GET_NEXT, missing_header="authorization",
        )
        for trailer in (b"authorization: Bearer x", b"x-forwarded-for: 1.2.3.4")
    ),
    *(
        reject("9112-7.1.2", f"the trailer {trailer.decode('latin-1')!r}",
            _chunked(b"5\r\nhello\r\n0\r\n" + trailer + b"\r\n\r\n"))
        for trailer in (b"x : y", b"x", b" x: y", b"x: a\0b", b"x: a\rb", b"x: a\nb", b"x y: z", b": y", b"x: a\r\n b",
            b"x\0: y")
    ),
    reject(
        "9112-7.1.2", "trailers that are too long", _chunked(b"0\r\n" + b"".join(b"x%d: %s\r\n" % (n,
            b"a" * 5000) for n in range(FLOOD // 5000)) + b"\r\n"),
        status=TOO_LARGE,
    ),
    reject("9112-7.1.2", "a trailer without an end", _chunked(b"0\r\nx: " + b"a" * FLOOD),
        status=TOO_LARGE),
]  # fmt: skip

_CONNECTIONS = [
    accept("9112-9.3", "two requests at once", get() + NEXT, GET_A, GET_NEXT),
    accept("9112-9.3.2", "ten requests at once", get() * 10, *([GET_A] * 10)),
    accept("9112-9.3.2", "bodies in a row", _length(b"5") * 3 + _chunked(b"2\r\nhi\r\n" + _LAST),
        *([_posted(b"hello")] * 3), _posted(b"hi")),
    accept("9112-9.3.2", "empty lines between requests", get() + b"\r\n" + NEXT, GET_A, GET_NEXT),
    reject("9112-9.3.2", "an invalid request after a valid one", get() + b"GET\r\n\r\n" + NEXT, GET_A,
        status=UNSUPPORTED_VERSION),
    reject("9112-9.3.2", "a request without a host after a valid one", get() + get(headers=b"") + NEXT, GET_A),
    *(
        accept("9112-9.6", f"the connection option {option.decode()!r}",
            _header(b"connection: " + option + b"\r\n") + NEXT, closes=True)
        for option in (b"close", b"Close", b"CLOSE", b"close, x", b"x,close", b"keep-alive, close",
            b"close, keep-alive", b" close ")
    ),
    accept("9112-9.6", "close in the second header", _header(b"connection: x\r\nconnection: close\r\n") + NEXT,
        closes=True),
    accept("9112-9.6", "close in the first header", _header(b"connection: close\r\nconnection: keep-alive\r\n") + NEXT,
        closes=True),
    *(
        accept("9112-9.3", f"the connection option {option.decode()!r}",
            _header(b"connection: " + option + b"\r\n") + NEXT, GET_A, GET_NEXT)
        for option in (b"keep-alive", b"closed", b"x-close", b"te", b"")
    ),
    accept("9112-9.3", "HTTP/1.0 and another request", get(version=b"HTTP/1.0") + NEXT, closes=True),
    accept("9112-9.3", "HTTP/1.0 with close", get(headers=HOST + b"connection: close\r\n", version=b"HTTP/1.0") + NEXT,
        closes=True),
]  # fmt: skip

_EXTENSIONS = [
    accept("9110-7.8", "an upgrade to a WebSocket", _header(b"connection: upgrade\r\nupgrade: websocket\r\n") + NEXT,
        GET_A, GET_NEXT),
    accept(
        "9110-7.8", "an upgrade to HTTP/2",
        _header(b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n") + NEXT,
        GET_A, GET_NEXT,
    ),
    accept(
        "9110-7.8", "an upgrade with a body", post(b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 5\r\n",
            b"hello") + NEXT,
        _posted(b"hello"), GET_NEXT,
    ),
    accept(
        "9110-7.8", "an upgrade with chunks", post(b"connection: upgrade\r\nupgrade: x\r\n" + CHUNKED,
            b"5\r\nhello\r\n" + _LAST) + NEXT,
        _posted(b"hello"), GET_NEXT,
    ),
    accept("9110-7.8", "an upgrade without a connection option", _header(b"upgrade: websocket\r\n") + NEXT, GET_A,
        GET_NEXT),
    accept("9110-7.8", "an upgrade and close", _header(b"connection: upgrade, close\r\nupgrade: h2c\r\n") + NEXT,
        closes=True),
]  # fmt: skip

CASES: Final = [
    *_MESSAGE_PARSING,
    *_VERSION,
    *_REQUEST_LINE,
    *_TARGETS,
    *_HOST,
    *_FIELDS,
    *_TRANSFER_ENCODING,
    *_LENGTH,
    *_CHUNKS,
    *_CONNECTIONS,
    *_EXTENSIONS,
]
