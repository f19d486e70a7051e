"""Hypothesis strategies for byte streams: valid requests, mutations of them, and random bytes, cut at random places."""

from typing import Final

from hypothesis import strategies as st

_METHODS: Final = [b"GET", b"POST", b"PUT", b"DELETE", b"HEAD", b"OPTIONS"]
_TARGETS: Final = [b"/a", b"/b?c=d", b"/", b"http://localhost/a", b"*", b"/a%20b"]
_HEADERS: Final = [
    b"x: y",
    b"X-Long: " + b"z" * 60,
    b"accept: */*",
    b"connection: keep-alive",
    b"connection: close",
    b"upgrade: h2c",
    b"connection: upgrade",
    b"expect: 100-continue",
    b"te: trailers",
    b"trailer: x",
]
_VERSIONS: Final = [b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0"]
# Pieces that have a meaning for a parser.
_TOKENS: Final = [
    b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"\n\n", b"\0", b" ", b"\t", b"\x0b", b":", b",", b";", b"=", b'"', b"0", b"1",
    b"5", b"f", b"-", b"+",
    b"\x80", b"\xff", b"\x7f", b"/", b"*", b"#", b"chunked", b"identity", b"HTTP/1.1", b"HTTP/2.0",
    b"GET /b HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"content-length: 5\r\n", b"content-length: 0\r\n", b"transfer-encoding: chunked\r\n",
    b"Transfer-Encoding : chunked\r\n",
    b"transfer-encoding: gzip, chunked\r\n", b"host: localhost\r\n", b"\r\n folded", b"0\r\n\r\n", b"5\r\nhello\r\n",
    b";x=y", b"ffffffffffffffff",
]  # fmt: skip

_lengths = st.binary(max_size=30)
_chunk_extensions = st.sampled_from([b"", b"", b"", b";a", b";a=b", b';a="b;c"'])


@st.composite
def _chunked_bodies(draw: st.DrawFn) -> bytes:
    chunks = draw(st.lists(st.binary(min_size=1, max_size=20), max_size=3))
    body = b"".join(b"%x%s\r\n%s\r\n" % (len(chunk), draw(_chunk_extensions), chunk) for chunk in chunks)
    trailer = draw(st.sampled_from([b"", b"", b"x: y\r\n", b"content-length: 9\r\n"]))
    return body + b"0" + draw(_chunk_extensions) + b"\r\n" + trailer + b"\r\n"


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Generate a request that is valid in most cases."""
    lines = [
        b" ".join((draw(st.sampled_from(_METHODS)), draw(st.sampled_from(_TARGETS)), draw(st.sampled_from(_VERSIONS))))
    ]
    lines += draw(st.permutations([b"Host: localhost", *draw(st.lists(st.sampled_from(_HEADERS), max_size=3))]))
    framing = draw(st.sampled_from(["none", "length", "chunked"]))
    body = b""
    if framing == "length":
        body = draw(_lengths)
        lines.insert(draw(st.integers(1, len(lines))), b"Content-Length: %d" % len(body))
    elif framing == "chunked":
        body = draw(_chunked_bodies())
        lines.insert(draw(st.integers(1, len(lines))), b"Transfer-Encoding: chunked")
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


@st.composite
def _mutations(draw: st.DrawFn) -> bytes:
    data = b"".join(draw(st.lists(requests(), min_size=1, max_size=3)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["insert", "replace", "delete", "repeat", "byte"])):
            case "insert":
                data = data[:at] + draw(st.sampled_from(_TOKENS)) + data[at:]
            case "replace":
                token = draw(st.sampled_from(_TOKENS))
                data = data[:at] + token + data[at + len(token) :]
            case "delete":
                data = data[:at] + data[at + draw(st.integers(1, 4)) :]
            case "repeat":
                end = at + draw(st.integers(1, 40))
                data = data[:end] + data[at:end] + data[end:]
            case _:
                data = data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]
    return data


_lines = st.lists(st.sampled_from([*_TOKENS, b"GET ", b"POST ", b"/a ", b"Host:", b"localhost"]), max_size=25)

streams: Final = st.one_of(
    _mutations(),
    _mutations(),
    st.lists(requests(), min_size=1, max_size=4).map(b"".join),
    _lines.map(b"".join),
    st.binary(max_size=200),
)


@st.composite
def cut_streams(draw: st.DrawFn) -> tuple[bytes, ...]:
    """Generate a stream as pieces. The first piece may be the whole stream."""
    data = draw(streams)
    cuts = sorted(draw(st.sets(st.integers(0, len(data)), max_size=5)))
    return tuple(data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True))
