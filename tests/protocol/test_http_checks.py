"""Test the checks of an HTTP request's head: host, origin, content types and headers."""

import ipaddress
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import (
    HeaderMismatch,
    InternalError,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    MissingClientCapability,
    ParseError,
    ProtocolError,
    ResourceNotFound,
    ServerBusy,
    UnsupportedProtocolVersion,
)
from dovetail.protocol.http_checks import (
    HostFilter,
    Refusal,
    build_retry_header,
    collect_headers,
    get_http_status,
    is_safe_url,
    parse_accept,
    parse_media_type,
)
from dovetail.protocol.limits import CallerBusy

LOCAL = HostFilter((), (), None)
NAMED = HostFilter(["MCP.example.com", "10.0.0.7:9000"], ["https://app.example.com/"], None)
PUBLIC = HostFilter((), (), "https://user@Mcp.Example.com:8443/mcp")
OPEN = HostFilter(["*"], ["*"], None)
BOUND = "192.168.1.20"


def verdict(
    gate: HostFilter, host: bytes | None = b"localhost", origin: bytes | None = None, bound: str | None = None
) -> int:
    """200 or the status of the refusal."""
    headers = {name: value for name, value in ((b"host", host), (b"origin", origin)) if value is not None}
    try:
        gate.check(headers, bound)
    except Refusal as refusal:
        return refusal.status
    return 200


OWN_HOSTS = [
    b"localhost",
    b"localhost:8000",
    b"LOCALHOST:8000",
    b"127.0.0.1",
    b"127.0.0.1:1",
    b"127.0.0.1:65535",
    b"[::1]",
    b"[::1]:8000",
]
FOREIGN_HOSTS = [
    None,
    b"",
    b"example.com",
    b"attacker.example:8000",
    b"localhost.attacker.example",
    b"attacker.example/localhost",
    b"localhost@attacker.example",
    b"attacker.example@localhost",
    b"attacker.example#localhost",
    b"attacker.example?localhost",
    b"attacker.example\\localhost",
    b"localhost attacker.example",
    b" localhost",
    b"localhost ",
    b"localhost.",
    b"localhost:",
    b"localhost:http",
    b"localhost:80:80",
    b"localhost:-1",
    b"localhost:+80",
    b"localhost:8000/",
    b"localhost:123456",
    b"localhost:\xb2",
    b"localhost\x00",
    b"localhost, attacker.example",
    b"127.0.0.2",
    b"127.1",
    b"0x7f000001",
    b"2130706433",
    b"127.0.0.1.nip.io",
    b"0.0.0.0",
    b"::1",
    b"::1:8000",
    b"[::1",
    b"[::1]x",
    b"[::1]:",
    b"[::1]:x",
    b"[::2]",
    b"[]",
    b"[::1]@attacker.example",
    b"[::ffff:127.0.0.1]",
    b"http://localhost",
    b"\xff\xfe",
]
OWN_ORIGINS = [
    None,
    b"http://localhost",
    b"http://localhost:3000",
    b"https://LocalHost:3000",
    b"http://127.0.0.1:6274",
    b"http://[::1]:8000",
]
FOREIGN_ORIGINS = [
    b"",
    b"null",
    b"http://",
    b"http://example.com",
    b"https://attacker.example:8000",
    b"http://localhost.attacker.example",
    b"http://attacker.example/localhost",
    b"http://localhost@attacker.example",
    b"http://attacker.example@localhost",
    b"http://localhost/",
    b"http://localhost:8000/",
    b"http://localhost:8000#",
    b"http:localhost",
    b"http:/localhost",
    b"//localhost",
    b"localhost",
    b"localhost:8000",
    b"file://localhost",
    b"ftp://localhost",
    b"ws://localhost",
    b"chrome-extension://localhost",
    b"javascript://localhost",
    b"http://localhost http://attacker.example",
    b"http://attacker.example http://localhost",
    b"http://localhost, http://attacker.example",
    b"http://127.1",
    b"http://[::1",
    b"http://0.0.0.0:8000",
    b"http://\xff",
    b"http://http://localhost",
]


@pytest.mark.parametrize("host", OWN_HOSTS)
def test_this_machine_may_be_called_by_its_own_names(host: bytes) -> None:
    assert verdict(LOCAL, host) == 200


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
@pytest.mark.parametrize("gate", [LOCAL, NAMED, PUBLIC], ids=["local", "named", "public"])
def test_no_other_host_passes(gate: HostFilter, host: bytes | None) -> None:
    assert verdict(gate, host) == 421
    assert verdict(gate, host, bound=BOUND) == 421


@pytest.mark.parametrize("origin", OWN_ORIGINS)
def test_pages_of_this_machine_may_call(origin: bytes | None) -> None:
    assert verdict(LOCAL, origin=origin) == 200


@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
@pytest.mark.parametrize(
    "gate", [LOCAL, NAMED, PUBLIC, HostFilter(["*"], (), None)], ids=["local", "named", "public", "any host"]
)
def test_no_other_page_may_call(gate: HostFilter, origin: bytes) -> None:
    assert verdict(gate, origin=origin) == 403
    assert verdict(gate, origin=origin, bound=BOUND) == 403


def test_the_origin_is_judged_before_the_host() -> None:
    assert verdict(LOCAL, b"attacker.example", b"http://attacker.example") == 403


def test_the_address_a_connection_came_in_on_is_ours() -> None:
    assert verdict(LOCAL, b"192.168.1.20:8000") == 421
    assert verdict(LOCAL, b"192.168.1.20:8000", bound=BOUND) == 200
    assert verdict(LOCAL, b"192.168.1.20", b"http://192.168.1.20:3000", BOUND) == 200
    assert verdict(LOCAL, b"192.168.1.21", bound=BOUND) == 421
    assert verdict(LOCAL, b"attacker.example", bound=BOUND) == 421


def test_named_hosts_and_origins() -> None:
    assert verdict(NAMED, b"mcp.example.com") == 200
    assert verdict(NAMED, b"Mcp.Example.Com:443") == 200
    assert verdict(NAMED, b"10.0.0.7:9000") == 200
    assert verdict(NAMED, b"10.0.0.7:9001") == 421
    assert verdict(NAMED, b"10.0.0.7") == 421
    assert verdict(NAMED, b"sub.mcp.example.com") == 421
    assert verdict(NAMED, b"mcp.example.com", b"https://app.example.com") == 200
    assert verdict(NAMED, b"mcp.example.com", b"HTTPS://APP.example.com") == 200
    assert verdict(NAMED, b"mcp.example.com", b"http://app.example.com") == 403
    assert verdict(NAMED, b"mcp.example.com", b"https://app.example.com:444") == 403
    assert verdict(NAMED, b"mcp.example.com", b"https://mcp.example.com") == 403


def test_a_public_url_names_host_and_origin() -> None:
    assert verdict(PUBLIC, b"mcp.example.com:8443") == 200
    assert verdict(PUBLIC, b"mcp.example.com:8443", b"https://mcp.example.com:8443") == 200
    assert verdict(PUBLIC, b"mcp.example.com") == 421
    assert verdict(PUBLIC, b"mcp.example.com:8443", b"http://mcp.example.com:8443") == 403
    plain = HostFilter((), (), "https://mcp.example.com/mcp")
    assert verdict(plain, b"mcp.example.com", b"https://mcp.example.com") == 200


@pytest.mark.parametrize(
    "url",
    [
        "mcp.example.com",
        "ftp://mcp.example.com",
        "https://",
        "/mcp",
        "",
        "https://a.example/mcp?x=1",
        "https://a.example/#x",
    ],
)
def test_a_public_url_is_a_web_address(url: str) -> None:
    with pytest.raises(ValueError, match="public_url"):
        HostFilter((), (), url)


@pytest.mark.parametrize(
    ("hosts", "origins", "option"),
    [(["*.example.com"], (), "allowed_hosts"), ((), ["https://*.example.com"], "allowed_origins")],
)
def test_patterns_are_an_error(hosts: Iterable[str], origins: Iterable[str], option: str) -> None:
    with pytest.raises(ValueError, match=option):
        HostFilter(hosts, origins, None)


def test_everyone_means_everyone() -> None:
    assert verdict(OPEN, b"anything.example", b"https://anything.example") == 200
    assert verdict(OPEN, b"anything.example", b"null") == 200
    assert verdict(OPEN, None) == 421


def test_a_verdict_once_given_is_for_the_same_headers_only() -> None:
    gate = HostFilter((), (), None)
    assert [verdict(gate, b"localhost", b"http://localhost") for _ in range(3)] == [200] * 3
    assert verdict(gate, b"localhost", b"http://attacker.example") == 403
    assert verdict(gate, b"attacker.example", b"http://localhost") == 421
    assert verdict(gate, b"192.168.1.20", bound=BOUND) == 200
    assert verdict(gate, b"192.168.1.20", bound="192.168.1.21") == 421


def test_verdicts_do_not_pile_up() -> None:
    gate = HostFilter((), (), None)
    tracemalloc.start()
    try:
        for port in range(1, 20_000):
            assert verdict(gate, b"localhost:%d" % port) == 200
        assert tracemalloc.get_traced_memory()[0] < 300_000
    finally:
        tracemalloc.stop()


def test_a_refusal_names_the_offender_safely() -> None:
    with pytest.raises(Refusal) as caught:
        LOCAL.check({b"host": b"localhost", b"origin": b"http://\x1b[31m" + b"x" * 5000}, None)
    assert len(caught.value.message) < 300
    assert caught.value.message.isprintable()
    assert "allowed_origins" in caught.value.message
    with pytest.raises(Refusal, match="allowed_hosts"):
        LOCAL.check({}, None)


@given(st.text(st.characters(codec="latin-1"), max_size=30))
def test_whatever_passes_as_a_host_is_loopback_and_a_port(host: str) -> None:
    if verdict(LOCAL, host.encode("latin-1")) == 200:
        name = host.lower()
        rest = next(name.removeprefix(own) for own in ("localhost", "127.0.0.1", "[::1]") if name.startswith(own))
        assert not rest or (rest[0] == ":" and 0 <= int(rest[1:]) <= 99999)


@given(st.ip_addresses())
def test_only_the_two_loopback_addresses_pass(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    host = f"[{address}]" if address.version == 6 else str(address)
    assert (verdict(LOCAL, host.encode()) == 200) == (str(address) in ("127.0.0.1", "::1"))


# Headers


def test_headers_that_decide_nothing_are_joined() -> None:
    assert collect_headers([(b"a", b"1"), (b"b", b"2")]) == {b"a": b"1", b"b": b"2"}
    assert collect_headers([(b"accept", b"a"), (b"x", b"1"), (b"accept", b"b"), (b"accept", b"c")]) == {
        b"accept": b"a, b, c",
        b"x": b"1",
    }
    assert collect_headers([(b"host", b"h"), (b"accept", b"a"), (b"accept", b"b"), (b"mcp-name", b"n")]) == {
        b"host": b"h",
        b"accept": b"a, b",
        b"mcp-name": b"n",
    }


@pytest.mark.parametrize(
    "name",
    [
        b"host",
        b"origin",
        b"content-type",
        b"content-length",
        b"last-event-id",
        b"authorization",
        b"dpop",
        b"mcp-session-id",
        b"mcp-protocol-version",
        b"mcp-method",
        b"mcp-name",
        b"mcp-param-region",
    ],
)
def test_a_duplicate_decisive_header_is_refused(name: bytes) -> None:
    with pytest.raises(Refusal, match=name.decode()) as caught:
        collect_headers([(name, b"1"), (b"x", b"1"), (name, b"1")])
    assert caught.value.status == 400


# Types


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, b""),
        (b"application/json", b"application/json"),
        (b" Application/JSON ; charset=utf-8", b"application/json"),
        (b"text/plain; x=application/json", b"text/plain"),
        (b"application/json, text/plain", b"application/json, text/plain"),
    ],
)
def test_media_types(value: bytes | None, expected: bytes) -> None:
    assert parse_media_type(value) == expected


@pytest.mark.parametrize(
    ("value", "json", "stream"),
    [
        (None, True, True),
        (b"application/json, text/event-stream", True, True),
        (b"text/event-stream,APPLICATION/json", True, True),
        (b"application/json", True, False),
        (b"text/event-stream", False, True),
        (b"*/*", True, True),
        (b"application/*;q=0.5, text/html", True, False),
        (b"text/*", False, True),
        (b"text/html", False, False),
        (b"", False, False),
        (b"application/json;q=0", False, False),
        (b"application/json; q=0.0, text/event-stream ;q=0.000", False, False),
        (b"application/json;Q=0 , text/event-stream;q=0.001", False, True),
        (b"application/json;charset=utf-8;q=1", True, False),
        (b"application/json2, xtext/event-stream", False, False),
    ],
)
def test_accept(value: bytes | None, json: bool, stream: bool) -> None:
    assert parse_accept(value) == (json, stream)
    assert parse_accept(value) == (json, stream)


def test_accept_verdicts_do_not_pile_up() -> None:
    for number in range(1000):
        assert parse_accept(b"application/json;v=%d" % number) == (True, False)


# Status


@pytest.mark.parametrize(
    ("exc", "status"),
    [
        (ParseError("x"), 400),
        (InvalidRequest("x"), 400),
        (MethodNotFound("x"), 404),
        (InvalidParams("x"), 400),
        (ResourceNotFound("x"), 400),
        (HeaderMismatch("x"), 400),
        (MissingClientCapability({}), 400),
        (UnsupportedProtocolVersion("x", ()), 400),
        (InternalError("x"), 200),
        (ServerBusy("x"), 503),
        (CallerBusy("x"), 429),
    ],
)
def test_the_status_of_an_error(exc: ProtocolError, status: int) -> None:
    assert get_http_status(exc) == status
    assert bool(build_retry_header(exc)) == isinstance(exc, ServerBusy)


@pytest.mark.parametrize(("seconds", "said"), [(0.0, b"1"), (0.9, b"1"), (5.0, b"5"), (60.5, b"60")])
def test_when_to_come_back_is_at_least_a_second(seconds: float, said: bytes) -> None:
    assert build_retry_header(ServerBusy("x", seconds)) == [(b"retry-after", said)]


@pytest.mark.parametrize(
    ("url", "is_safe"),
    [
        ("https://example.com/form", True),
        ("http://127.0.0.1:8000/form", True),
        ("http://localhost/form", True),
        ("http://example.com/form", False),
        ("ftp://127.0.0.1/form", False),
        ("javascript:alert(1)", False),
        ("https://user@example.com/", False),
        ("https:///form", False),
        ("https://[::1", False),
    ],
)
def test_a_user_opens_only_pages_with_tls_or_of_this_machine(url: str, is_safe: bool) -> None:
    assert is_safe_url(url) is is_safe
