"""Test which proxy is chosen, and which settings are refused."""

import pytest

from dovetail.transports.http_client.proxy_settings import Proxy, find_proxy_url, parse_proxy

PROXY = {"http_proxy": "http://one:1", "https_proxy": "http://two:2"}


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("http://proxy:3128", Proxy("proxy", 3128, b"")),
        ("proxy:3128", Proxy("proxy", 3128, b"")),
        ("http://proxy", Proxy("proxy", 80, b"")),
        ("http://[::1]:3128/", Proxy("::1", 3128, b"")),
        ("http://me:p%40ss@proxy:1", Proxy("proxy", 1, b"Basic bWU6cEBzcw==")),
        ("http://me@proxy:1", Proxy("proxy", 1, b"Basic bWU6")),
    ],
)
def test_a_proxy_by_url(url: str, proxy: Proxy) -> None:
    assert parse_proxy(url) == proxy


@pytest.mark.parametrize(
    "url", ["socks5://me:secret@proxy:1", "https://me:secret@proxy:1", "http://", "http://me:secret@"]
)
def test_unfit_proxies_are_refused_without_repeating_the_password(url: str) -> None:
    with pytest.raises(ValueError, match="proxy") as caught:
        parse_proxy(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "environment", "found"),
    [
        ("http", PROXY, "http://one:1"),
        ("https", PROXY, "http://two:2"),
        ("http", {"HTTP_PROXY": "a"}, "a"),
        ("http", {"HTTP_PROXY": "a", "http_proxy": "b"}, "b"),
        ("https", {"HTTP_PROXY": "a"}, ""),
        ("https", {"ALL_PROXY": "a"}, "a"),
        ("https", {"all_proxy": "a", "HTTPS_PROXY": "b"}, "b"),
        ("http", {"HTTP_PROXY": "a", "REQUEST_METHOD": "GET"}, ""),
        ("http", {"http_proxy": "a", "REQUEST_METHOD": "GET"}, "a"),
        ("https", {"HTTPS_PROXY": "a", "REQUEST_METHOD": "GET"}, "a"),
        ("http", {}, ""),
    ],
)
def test_the_environment_names_a_proxy(scheme: str, environment: dict[str, str], found: str) -> None:
    assert find_proxy_url(scheme, "example.com", 80, environment) == found


@pytest.mark.parametrize(
    ("host", "exceptions", "direct"),
    [
        ("example.com", "*", True),
        ("example.com", "example.com", True),
        ("example.com", " other.org , Example.com ", True),
        ("api.example.com", "example.com", True),
        ("api.example.com", ".example.com", True),
        ("api.example.com", "*.example.com", True),
        ("badexample.com", "example.com", False),
        ("example.com", "api.example.com", False),
        ("example.com", "example.com:80", True),
        ("example.com", "example.com:81", False),
        ("10.1.2.3", "10.0.0.0/8", True),
        ("11.1.2.3", "10.0.0.0/8", False),
        ("10.1.2.3", "10.1.2.3", True),
        ("fd00::1", "fd00::/8", True),
        ("fd00::1", "[fd00::1]", True),
        ("example.com", "", False),
        ("example.com", ",", False),
        ("localhost", "", True),
        ("a.localhost", "", True),
        ("127.0.0.2", "", True),
        ("::1", "", True),
    ],
)
def test_who_is_reached_directly(host: str, exceptions: str, direct: bool) -> None:
    found = find_proxy_url("http", host, 80, {"HTTP_PROXY": "http://proxy:1", "NO_PROXY": exceptions})
    assert found == ("" if direct else "http://proxy:1")
