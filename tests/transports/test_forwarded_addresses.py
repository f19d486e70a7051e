"""Test which address and scheme a request has behind proxies."""

import pytest

from dovetail.transports.http1 import forwarded_addresses
from dovetail.transports.http1.forwarded_addresses import TrustedProxies

PEER = ("10.0.0.1", 5000)


@pytest.mark.parametrize(
    ("proxies", "forwarded", "expected"),
    [
        ("10.0.0.1", [], PEER),
        ("10.0.0.1", [""], PEER),
        ("10.0.0.2", ["203.0.113.9"], PEER),
        ("10.0.0.1", ["203.0.113.9"], ("203.0.113.9", 0)),
        ("10.0.0.0/8", ["203.0.113.9"], ("203.0.113.9", 0)),
        ("10.0.0.1", ["198.51.100.1, 203.0.113.9"], ("203.0.113.9", 0)),
        ("10.0.0.1", ["198.51.100.1", "203.0.113.9"], ("203.0.113.9", 0)),
        ("10.0.0.1, 203.0.113.9", ["198.51.100.1, 203.0.113.9"], ("198.51.100.1", 0)),
        ("10.0.0.0/8", ["10.0.0.3, 10.0.0.2"], ("10.0.0.3", 0)),
        ("*", ["198.51.100.1, 203.0.113.9"], ("198.51.100.1", 0)),
        ("10.0.0.1", ["203.0.113.9:4000"], ("203.0.113.9", 4000)),
        ("10.0.0.1", ["2001:db8::1"], ("2001:db8::1", 0)),
        ("10.0.0.1", ["[2001:db8::1]:4000"], ("2001:db8::1", 4000)),
        ("10.0.0.1", ["[2001:db8::1"], PEER),
        ("10.0.0.1", ["unknown"], PEER),
        ("10.0.0.1", ["203.0.113.9, unknown"], PEER),
        ("10.0.0.1", ["fe80::1%x y"], PEER),
        ("10.0.0.1", ["1" * 5000], PEER),
        ("*", ["unknown, 203.0.113.9"], PEER),
        ("10.0.0.1", [f"198.51.100.1:{'9' * 5000}, 203.0.113.9"], ("203.0.113.9", 0)),
        ("10.0.0.1", [f"[2001:db8::1]:{'9' * 5000}"], ("2001:db8::1", 0)),
    ],
)
def test_the_address_of_a_client(proxies: str, forwarded: list[str], expected: tuple[str, int]) -> None:
    headers = [(b"x-forwarded-for", value.encode()) for value in forwarded]
    assert TrustedProxies(proxies).find_client(PEER, headers) == expected


@pytest.mark.parametrize("proxies", ["localhost", "127.0.0.1 10.0.0.1", "10.0.0.0/99", "*,10.0.0.1"])
def test_a_wrong_list_of_proxies_is_an_error(proxies: str) -> None:
    with pytest.raises(ValueError, match="FORWARDED_ALLOW_IPS"):
        TrustedProxies(proxies)


@pytest.mark.parametrize("peer", ["10.0.0.1", "::ffff:10.0.0.1", "::ffff:a00:1"])
@pytest.mark.parametrize(
    ("proxies", "is_trusted"),
    [
        ("10.0.0.1", True),
        ("10.0.0.0/8", True),
        ("::ffff:10.0.0.1", True),
        ("::ffff:a00:1", True),
        ("::ffff:10.0.0.0/104", True),
        ("::ffff:0:0/96", True),
        ("::ffff:10.0.0.2", False),
        ("::ffff:11.0.0.0/104", False),
        ("::1", False),
    ],
)
def test_a_proxy_with_an_ipv4_address_in_either_form(proxies: str, peer: str, is_trusted: bool) -> None:
    headers = [(b"x-forwarded-for", b"203.0.113.9")]
    expected = ("203.0.113.9", 0) if is_trusted else (peer, 5000)
    assert TrustedProxies(proxies).find_client((peer, 5000), headers) == expected


def test_an_ipv6_network_that_contains_all_ipv4_addresses() -> None:
    trusted = TrustedProxies("::/0")
    assert (trusted.trusts("::ffff:10.0.0.1"), trusted.trusts("10.0.0.1")) == (True, False)


def test_a_known_header_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    trusted = TrustedProxies("10.0.0.1")
    headers = [(b"x-forwarded-for", b"203.0.113.9")]
    assert trusted.find_client(PEER, headers) == ("203.0.113.9", 0)
    monkeypatch.setattr(forwarded_addresses, "_parse_address", None)
    assert trusted.find_client(PEER, headers) == ("203.0.113.9", 0)
    assert trusted.find_client(("10.0.0.2", 5000), headers) == ("10.0.0.2", 5000)


@pytest.mark.parametrize("proxies", ["10.0.0.1", "*"])
def test_a_client_without_an_address_is_trusted_only_if_all_are(proxies: str) -> None:
    expected = ("203.0.113.9", 0) if proxies == "*" else None
    assert TrustedProxies(proxies).find_client(None, [(b"x-forwarded-for", b"203.0.113.9")]) == expected


@pytest.mark.parametrize(
    ("proxies", "forwarded", "expected"),
    [
        ("10.0.0.1", [], "http"),
        ("10.0.0.1", ["https"], "https"),
        ("10.0.0.1", ["http", "https"], "https"),
        ("10.0.0.1", ["javascript"], "http"),
        ("10.0.0.2", ["https"], "http"),
    ],
)
def test_the_scheme_of_a_request(proxies: str, forwarded: list[str], expected: str) -> None:
    headers = [(b"x-forwarded-proto", value.encode()) for value in forwarded]
    assert TrustedProxies(proxies).find_scheme(PEER, headers, "http") == expected
