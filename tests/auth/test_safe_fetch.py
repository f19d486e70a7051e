"""Test the HTTP requests of a login: headers, limits and blocked addresses."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dovetail.auth import safe_fetch
from dovetail.auth.safe_fetch import SafeFetcher, is_local_host, is_public_address
from dovetail.protocol.interfaces.http_types import HTTPRequest
from dovetail.transports.http_client.http_client import HTTPClient
from support.guarded_server import GuardedServer, HttpReply


class Recorder:
    """Makes fetchers that write down what they are asked for, and ask nobody."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.screen: Callable[[str], bool] | None = None

    def __call__(self, *, address_filter: Callable[[str], bool] | None, **_: Any) -> HTTPClient:
        self.screen = address_filter
        recorder = self

        class Silent(HTTPClient):
            async def fetch(self, method: str, url: str, headers: Any, body: bytes = b"") -> Any:
                recorder.urls.append(url)
                raise TimeoutError

        return Silent()


async def tried(server: str, url: str, local: bool | None = None) -> bool:
    """Whether a fetch is tried for a server."""
    recorder = Recorder()
    one = SafeFetcher(server, local, recorder)
    assert (await one.fetch(HTTPRequest("GET", url=url))).status_code == 0
    await one.close()
    assert recorder.urls in ([], [url])
    return bool(recorder.urls)


PUBLIC = "https://mcp.example.com/mcp"


@pytest.mark.parametrize(
    "url",
    [
        "http://login.example.com/x", "https://localhost/x", "https://localhost./x", "http://127.0.0.1/x",
        "https://127.0.0.1/x", "https://10.0.0.1/x", "https://169.254.169.254/x", "https://[::1]/x",
        "https://[::ffff:127.0.0.1]/x", "https://[fe80::1]/x", "https://intranet/x", "https://db.internal/x",
        "https://printer.local/x", "https://x.localhost/x", "https://2130706433/x", "ftp://login.example.com/x",
        "file:///etc/passwd", "gopher://login.example.com/", "https://", "https://[::1", "https://a:b/", "", "/x",
    ],
)  # fmt: skip
async def test_a_public_server_cannot_send_us_just_anywhere(url: str) -> None:
    assert not await tried(PUBLIC, url)


async def test_a_public_server_can_send_us_to_the_public_web() -> None:
    assert await tried(PUBLIC, "https://login.example.com/x")


@pytest.mark.parametrize("server", ["http://127.0.0.1:8000/mcp", "http://localhost/mcp", "http://10.1.2.3/mcp"])
@pytest.mark.parametrize("url", ["http://127.0.0.1:9000/x", "http://intranet/x", "https://login.example.com/x"])
async def test_a_server_of_this_network_can_send_us_about_in_it(server: str, url: str) -> None:
    assert await tried(server, url)


async def test_the_user_can_say_where_a_server_is() -> None:
    assert await tried(PUBLIC, "https://login.internal/x", local=True)
    assert not await tried("http://127.0.0.1:8000/mcp", "http://127.0.0.1:9000/x", local=False)


async def test_addresses_are_screened_for_public_servers_only() -> None:
    for server, screened in ((PUBLIC, True), ("http://localhost/mcp", False)):
        recorder = Recorder()
        await SafeFetcher(server, None, recorder).close()
        assert (recorder.screen is is_public_address) is screened


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "2002:0101:0101::1", "64:ff9b::1.1.1.1"]
)
def test_public_addresses(address: str) -> None:
    assert is_public_address(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.255.255.254", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254",
        "100.64.0.1", "0.0.0.0", "255.255.255.255", "224.0.0.1", "240.0.0.1", "192.0.2.1", "198.18.0.1", "198.51.100.1",
        "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "ff0e::1", "2001:db8::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "::ffff:0:127.0.0.1", "2002:7f00:0001::1",
        "2002:0a00:0001::", "2002:a9fe:a9fe::1", "64:ff9b::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::169.254.169.254",
        "64:ff9b:1::10.0.0.1", "2001:0:4136:e378:8000:63bf:80ff:fffe", "100::1", "4000::1", "", "localhost", "1.1.1",
        "0x7f.1",
    ],
)  # fmt: skip
def test_addresses_that_are_not(address: str) -> None:
    assert not is_public_address(address)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST.", "x.localhost", "a.local", "b.internal", "intranet", "10.0.0.1", "::1",
             "127.1", "0177.0.0.1", "0x7f.0.0.1", "0X7F.1", "10.1", "169.254.43518", "127.0.0.1.", "2130706433",
             "\uff11\uff16\uff19.254.\uff11\uff16\uff19.254", "127\u30020.0.1", "loc\uff41lhost", "127.0.0.1.2", "a.0x",
             "nas.lan", "nas.home", "nas.home.arpa", "wiki.corp", "wiki.intranet", "db.private", "x.localdomain"]
)  # fmt: skip
def test_names_of_this_network(host: str) -> None:
    assert is_local_host(host)


@pytest.mark.parametrize(
    "host",
    [
        "example.com", "localhost.evil.example", "1.1.1.1", "1.1.1.1.", "1.65793", "2606:4700::1111",
        "internal.evil.com", "lan.example", "home.example", "b\u00fccher.example", "a.b1",
    ],
)  # fmt: skip
def test_names_that_are_not(host: str) -> None:
    assert not is_local_host(host)


# Against a real server


def real(place: GuardedServer) -> SafeFetcher:
    return SafeFetcher(place.url, None, HTTPClient)


async def test_a_redirect_is_an_answer(place: GuardedServer) -> None:
    place.says["/x"] = lambda asked: HttpReply(302, None, {"location": place.origin + "/y"})
    one = real(place)
    assert (await one.fetch(HTTPRequest("GET", url=f"{place.origin}/x"))).status_code == 302
    await one.close()
    assert [asked.path for asked in place.asked] == ["/x"]


async def test_a_document_that_is_too_large_is_none(place: GuardedServer) -> None:
    place.says["/fit"] = lambda asked: HttpReply(200, "x" * 200_000)
    place.says["/large"] = lambda asked: HttpReply(200, "x" * 300_000)
    one = real(place)
    assert (await one.fetch(HTTPRequest("GET", url=f"{place.origin}/fit"))).status_code == 200
    assert (await one.fetch(HTTPRequest("GET", url=f"{place.origin}/large"))).status_code == 0
    await one.close()


@pytest.mark.parametrize(("method", "limit"), [("GET", "DOCUMENT_TIMEOUT_S"), ("POST", "TOKEN_TIMEOUT_S")])
async def test_an_answer_that_takes_too_long_is_none(
    place: GuardedServer, monkeypatch: pytest.MonkeyPatch, method: str, limit: str
) -> None:
    monkeypatch.setattr(safe_fetch, limit, 0.1)
    place.says["/x"] = lambda asked: asyncio.sleep(3600)
    one = real(place)
    assert (await one.fetch(HTTPRequest(method=method, url=f"{place.origin}/x"))).status_code == 0
    await one.close()


async def test_a_refused_connection_has_status_zero(free_port: int) -> None:
    one = SafeFetcher("http://127.0.0.1/mcp", None, HTTPClient)
    assert (await one.fetch(HTTPRequest("GET", url=f"http://127.0.0.1:{free_port}/x"))).status_code == 0
    await one.close()


async def test_an_invalid_header_is_not_sent(place: GuardedServer) -> None:
    one = real(place)
    assert (await one.fetch(HTTPRequest("GET", url=f"{place.origin}/x", headers={"x": "a\r\nb: c"}))).status_code == 0
    await one.close()
    assert not place.asked


async def test_settings_for_the_server_do_not_apply_to_other_hosts() -> None:
    own, others = Recorder(), Recorder()
    one = SafeFetcher(PUBLIC, None, others, own)
    for url in ("https://mcp.example.com/x", "https://mcp.example.com:443/y", "https://login.example.com/x"):
        await one.fetch(HTTPRequest("GET", url=url))
    await one.fetch(HTTPRequest("GET", url="https://mcp.example.com:8443/z"))
    assert own.urls == ["https://mcp.example.com/x", "https://mcp.example.com:443/y"]
    assert others.urls == ["https://login.example.com/x", "https://mcp.example.com:8443/z"]
    assert own.screen is others.screen is is_public_address
    await one.close()


async def test_what_the_user_named_may_be_in_this_network(place: GuardedServer) -> None:
    place.says["/idp"] = lambda asked: HttpReply(200, {})
    named = f"{place.origin}/idp"
    one = SafeFetcher(PUBLIC, None, HTTPClient, trusted_url=named)
    assert (await one.fetch(HTTPRequest(method="POST", url=named))).status_code == 200
    for other in (f"{place.origin}/other", f"{named}?x=1", f"{named}/..", "https://idp.internal/idp"):
        refused = await one.fetch(HTTPRequest("GET", url=other))
        assert refused.status_code == 0
        assert "allow_private_network=True" in (refused.hint or "")
    await one.close()
    assert [asked.path for asked in place.asked] == ["/idp"]


async def test_a_public_name_the_user_named_may_lead_into_this_network() -> None:
    screens: dict[str, Any] = {}

    def recording(*, address_filter: Any, **_: Any) -> HTTPClient:
        class Silent(HTTPClient):
            async def fetch(self, method: str, url: str, headers: Any, body: bytes = b"") -> Any:
                screens[url] = address_filter
                raise TimeoutError

        return Silent()

    named, other = "https://idp.example.com/token", "https://idp.example.com/other"
    one = SafeFetcher(PUBLIC, None, recording, trusted_url=named)
    for url in (named, other):
        await one.fetch(HTTPRequest(method="POST", url=url))
    await one.close()
    assert screens == {named: None, other: is_public_address}


async def test_why_nothing_came(free_port: int) -> None:
    public = SafeFetcher(PUBLIC, None, Recorder())
    answer = await public.fetch(HTTPRequest("GET", url="https://login.corp.internal/x"))
    assert answer.status_code == 0
    assert "allow_private_network=True" in (answer.hint or "")
    unsafe = await public.fetch(HTTPRequest("GET", url="http://login.example.com/x"))
    assert unsafe.status_code == 0
    assert "https" in unsafe.error
    silent = await public.fetch(HTTPRequest("GET", url="https://login.example.com/x"))
    assert silent.status_code == 0
    assert silent.error
    assert "https" not in silent.error
    await public.close()
    screened = HTTPClient(address_filter=is_public_address)
    answer = await safe_fetch.send_request(screened, HTTPRequest("GET", url=f"http://127.0.0.1:{free_port}/x"))
    assert answer.status_code == 0
    assert "allow_private_network=True" in (answer.hint or "")
    await screened.close()
    here = SafeFetcher("http://127.0.0.1/mcp", None, HTTPClient)
    answer = await here.fetch(HTTPRequest("GET", url=f"http://127.0.0.1:{free_port}/x"))
    assert answer.error
    assert answer.hint is None
    await here.close()
