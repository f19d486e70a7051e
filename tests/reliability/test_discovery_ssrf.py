"""A server cannot make its client fetch internal addresses, or open URLs that are not web pages.

The client resolves names with a table. Public addresses lead to a guarded server on loopback, and a connection to any
other address is counted and refused. No packet leaves the machine.
"""

import asyncio
import logging
import os
import shlex
import socket
import ssl
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from harness import record_measurement

from dovetail import Client, HTTPTarget, MCPError
from dovetail.auth import OAuth
from support.guarded_server import GuardedServer, HttpReply, HttpRequest, User, oauth_settings, run_guarded_server
from transports.raw_server import create_tls_contexts

NAME = "mcp.example.com"
PUBLIC = "93.184.216.34"

ADDRESSES = [
    "127.0.0.1", "127.1.2.3", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.0.1", "169.254.169.254", "100.64.0.1",
    "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "[::]", "[::1]", "[fe80::1]", "[fc00::1]", "[fec0::1]",
    "[ff02::1]", "[::ffff:127.0.0.1]", "[::ffff:169.254.169.254]", "[::127.0.0.1]", "[2002:7f00:1::1]",
    "[2002:a9fe:a9fe::]", "[64:ff9b::127.0.0.1]", "[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::10.0.0.1]",
    "[2001:0:4136:e378:8000:63bf:80ff:fffe]", "2130706433", "0x7f000001", "0177.0.0.1", "127.1",
    "0x7f.0.0.1", "0x7f.1", "10.1", "169.254.43518", "127.0.0.1.", "127\u30020\u30020\u30021",
    "\uff11\uff16\uff19.\uff12\uff15\uff14.169.254", "\uff4c\uff4f\uff43\uff41\uff4c\uff48\uff4f\uff53\uff54",
]  # fmt: skip
NAMES = ["localhost", "localhost.", "x.localhost", "intranet", "metadata.google.internal", "printer.local"]
PRIVATE = {  # public names with private addresses
    "loopback.example.net": ["127.0.0.1"],
    "six.example.net": ["::1"],
    "mapped.example.net": ["::ffff:127.0.0.1"],
    "tunnel.example.net": ["2002:7f00:1::1"],
    "translated.example.net": ["64:ff9b::7f00:1"],
    "cloud.example.net": ["169.254.169.254"],
    "office.example.net": ["192.168.1.1", "10.0.0.7"],
    "zoned.example.net": ["fe80::1%lo"],
}
TARGETS = [*ADDRESSES, *NAMES, *PRIVATE]


outside: ContextVar[bool] = ContextVar("outside", default=False)  # whether this is the browser's doing


class Net:
    """What the client takes for the internet."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connected: list[str] = []
        self.looked_up: list[str] = []
        self.names: dict[str, Callable[[], list[str]]] = {NAME: lambda: [PUBLIC]}
        self.names |= {name: lambda found=found: found for name, found in PRIVATE.items()}
        self.names |= {name.rstrip("."): lambda: ["127.0.0.1"] for name in NAMES}
        self.local_ports: set[int] = set()  # of this test's own servers

    @property
    def astray(self) -> list[str]:
        return [address for address in self.connected if address != PUBLIC]

    def lead(self, address: Any) -> tuple[str, int]:
        """Return where a connection to this address leads in this test."""
        if outside.get() or address[1] in self.local_ports:
            return address
        self.connected.append(str(address[0]))
        if self.astray:
            raise ConnectionRefusedError
        return ("127.0.0.1", self.port)

    async def getaddrinfo(self, host: Any, port: int, **_: Any) -> list[Any]:
        self.looked_up.append(str(host))
        # Numbers in odd spellings are the resolver's to understand, as it does outside of this test.
        found = self.names[host]() if host in self.names else [socket.gethostbyname(host)]
        return [(socket.AF_INET6 if ":" in one else socket.AF_INET, 0, 0, "", (one, port)) for one in found]


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[GuardedServer]:
    server, _ = create_tls_contexts(tmp_path, host=NAME)
    async with run_guarded_server(NAME, server) as one:
        yield one


@pytest.fixture
def net(place: GuardedServer, monkeypatch: pytest.MonkeyPatch) -> Net:
    one = Net(place.port)
    sock_connect = asyncio.SelectorEventLoop.sock_connect

    async def connect(loop: Any, sock: socket.socket, address: Any) -> None:
        await sock_connect(loop, sock, one.lead(address))

    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_connect", connect)
    monkeypatch.setattr(
        asyncio.BaseEventLoop, "getaddrinfo", lambda _, *args, **options: one.getaddrinfo(*args, **options)
    )
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    return one


@pytest.fixture
async def user(net: Net, tmp_path: Path) -> AsyncIterator[User]:
    """Someone whose browser knows the same internet."""
    one = Abroad(net, ssl.create_default_context(cafile=str(tmp_path / "certificate.pem")))
    yield one
    await one.close()


class Abroad(User):
    def __init__(self, net: Net, tls: ssl.SSLContext) -> None:
        super().__init__()
        self._net, self._tls = net, tls

    async def open(self, url: str) -> None:
        self.opened.append(url)
        token = outside.set(True)
        try:
            await self._visit(url)
        finally:
            outside.reset(token)

    async def _visit(self, url: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._net.port, ssl=self._tls, server_hostname=NAME)
        path = url.removeprefix(f"https://{NAME}")
        writer.write(f"GET {path} HTTP/1.1\r\nhost: {NAME}\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        writer.close()
        location = next(line.split(": ", 1)[1] for line in head.split("\r\n") if line.startswith("location: "))
        back = location.removeprefix("http://127.0.0.1:")
        port, _, path = back.partition("/")
        _, returning = await asyncio.open_connection("127.0.0.1", int(port))
        returning.write(f"GET /{path} HTTP/1.1\r\n\r\n".encode())
        await returning.drain()
        returning.close()


async def attempt(place: GuardedServer, user: User, tmp_path: Path, **settings: Any) -> MCPError | None:
    """Log in; what ended it."""
    try:
        async with Client(
            HTTPTarget(place.url, verify=tmp_path / "certificate.pem"), auth=oauth_settings(user, **settings)
        ) as client:
            await client.ping()
    except MCPError as error:
        return error
    return None


async def test_a_public_server_is_logged_in_to(place: GuardedServer, net: Net, user: User, tmp_path: Path) -> None:
    """Without this, the tests below would show nothing."""
    assert await attempt(place, user, tmp_path) is None
    assert net.connected
    assert not net.astray


def lead(place: GuardedServer, where: str, url: str) -> None:
    """Have the server's documents lead to a URL."""
    if where == "resource_metadata":
        challenge = {"www-authenticate": f'Bearer resource_metadata="{url}"'}
        place.says["/mcp"] = lambda asked: None if "authorization" in asked.headers else HttpReply(401, None, challenge)
    elif where == "authorization_servers":
        found = {"resource": place.url, "authorization_servers": [url]}
        place.says["/.well-known/oauth-protected-resource/mcp"] = lambda asked: HttpReply(200, found)
    else:
        place.server[where] = url


WAYS = ["resource_metadata", "authorization_servers", "registration_endpoint", "token_endpoint"]


@pytest.mark.parametrize("scheme", ["https", "http"])
@pytest.mark.parametrize("where", WAYS)
async def test_no_document_leads_into_this_network(
    place: GuardedServer, net: Net, user: User, tmp_path: Path, where: str, scheme: str
) -> None:
    for target in TARGETS:
        place.says.clear()
        place.server.clear()
        lead(place, where, f"{scheme}://{target}/x")
        error = await attempt(place, user, tmp_path)
        # What the challenge names is not the only place to look.
        assert (error is None) is (where == "resource_metadata"), (target, error)
    record_measurement("requests that left policy", len(net.astray), f"of {len(TARGETS)} targets")
    assert not net.astray
    assert len([url for url in net.connected if url == PUBLIC]) >= len(TARGETS)


@pytest.mark.parametrize("where", WAYS)
async def test_a_port_of_this_machine_is_not_reached_by_a_redirect(
    place: GuardedServer, net: Net, user: User, tmp_path: Path, where: str
) -> None:
    paths = {
        "resource_metadata": "/.well-known/oauth-protected-resource/mcp",
        "authorization_servers": "/.well-known/oauth-authorization-server",
        "registration_endpoint": "/register",
        "token_endpoint": "/token",
    }
    for status in (301, 302, 303, 307, 308):
        place.says[paths[where]] = lambda asked, status=status: HttpReply(
            status, None, {"location": "http://127.0.0.1:1/x"}
        )
        error = await attempt(place, user, tmp_path)
        assert error is not None
    assert not net.astray


async def test_a_name_that_changes_its_address_gains_nothing(
    place: GuardedServer, net: Net, user: User, tmp_path: Path
) -> None:
    """What was looked at is what is connected to: there is no second look-up to answer otherwise."""
    turns = 0

    def rebinding() -> list[str]:
        nonlocal turns
        turns += 1
        return [["127.0.0.1"], [PUBLIC], ["::1", PUBLIC], [PUBLIC, "10.0.0.1"]][turns % 4]

    net.names["rebind.example.net"] = rebinding
    for where in WAYS:
        for _ in range(8):
            place.says.clear()
            place.server.clear()
            lead(place, where, "https://rebind.example.net/x")
            await attempt(place, user, tmp_path)
    assert turns >= 24
    assert not net.astray


async def test_a_proxy_is_not_asked_for_it_either(
    place: GuardedServer, net: Net, user: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy looks names up by itself: what is plainly local is refused before it is asked."""
    asked: list[str] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readline()).decode())
        writer.close()

    async with await asyncio.start_server(proxy, "127.0.0.1", 0) as listening:
        monkeypatch.setenv("NO_PROXY", NAME)
        port = listening.sockets[0].getsockname()[1]
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        net.local_ports.add(port)
        lead(place, "authorization_servers", "https://login.example.net/x")
        await attempt(place, user, tmp_path)
        assert asked.pop().startswith("CONNECT login.example.net:443")  # or the rest would show nothing
        asked.clear()
        for target in (*ADDRESSES, *NAMES):
            lead(place, "authorization_servers", f"https://{target}/x")
            await attempt(place, user, tmp_path)
    assert not asked


async def test_the_user_can_allow_it(place: GuardedServer, net: Net, user: User, tmp_path: Path) -> None:
    lead(place, "authorization_servers", "https://10.0.0.1/x")
    await attempt(place, user, tmp_path, allow_private_network=True)
    assert set(net.astray) == {"10.0.0.1"}


CANARY = "CANARY-4711"


@pytest.mark.parametrize(
    "path",
    [
        "/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server", "/register", "/token",
    ],
)  # fmt: skip
async def test_what_came_back_is_not_repeated(
    place: GuardedServer, net: Net, user: User, tmp_path: Path, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    bodies: list[Any] = [CANARY, {"x": CANARY}, [CANARY], {"client_id": [CANARY], "access_token": [CANARY]}]
    bodies += [{"resource": 7, "issuer": CANARY}, {"resource": [CANARY], "issuer": [CANARY]}]
    with caplog.at_level(logging.DEBUG):
        for status in (200, 400, 500):
            for body in bodies:
                place.says[path] = lambda asked, status=status, body=body: HttpReply(status, body)
                error = await attempt(place, user, tmp_path)
                told = "".join(traceback.format_exception(error)) if error is not None else ""
                assert CANARY not in told or body.get("issuer") == CANARY, told
    assert CANARY not in caplog.text


# What a browser is asked to open


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)", "JavaScript:alert(1)", "data:text/html,x", "file:///etc/passwd", "vbscript:x",
        "ms-msdt:/id", "http://example.net/", "//example.net/", "https://user@example.net/", "https://example.net/\x00",
        "https://example.net/\n", "https://", "$(touch x)", "-oProxyCommand=x", "",
    ],
)  # fmt: skip
async def test_a_url_that_is_not_a_page_is_not_opened(
    place: GuardedServer, net: Net, user: User, tmp_path: Path, url: str
) -> None:
    place.server["authorization_endpoint"] = url
    assert await attempt(place, user, tmp_path) is not None
    assert not user.opened


OPENING = """
import asyncio, sys
from dovetail import Client, MCPError
from dovetail.auth import OAuth
async def main():
    for _ in range(int(sys.argv[2])):
        try:
            async with Client(sys.argv[1], auth=OAuth(token_store="memory", timeout=0.3)):
                pass
        except MCPError:
            pass
asyncio.run(main())
"""


async def test_an_address_is_never_given_to_a_shell(tmp_path: Path) -> None:
    """A program is started with the address as one argument, whatever is in it; nothing else is started."""
    opened, marker = tmp_path / "opened", tmp_path / "marker"
    browser = tmp_path / "browser"
    browser.write_text(
        f"#!{sys.executable}\nimport sys\nopen({str(opened)!r}, 'a').write(repr(sys.argv[1:]) + '\\n')\n"
    )
    browser.chmod(0o700)
    touch = f"touch$IFS{marker}"
    endpoints = [f"/$({touch})", f"/;{touch};", f"/'&{touch}&'", f"/?a=1&b=$({touch})"]
    refused = [f"/`{touch}`", f"/'|{touch}|'", f'/"&{touch}&"', f"/${{IFS}}{touch}"]  # characters that no URI has
    async with run_guarded_server() as place:
        left = iter([*refused, *endpoints])

        def describe(_: HttpRequest) -> None:
            place.server["authorization_endpoint"] = place.origin + next(left)

        place.says["/.well-known/oauth-authorization-server"] = describe
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", OPENING, place.url, str(len(refused) + len(endpoints))],
            env={**os.environ, "BROWSER": f"{shlex.quote(str(browser))} %s"},
            check=False,
            timeout=60,
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr
    lines = opened.read_text().splitlines()
    assert len(lines) == len(endpoints)
    for line, endpoint in zip(lines, endpoints, strict=True):
        assert repr(f"{place.origin}{endpoint}")[1:-1].split("'")[0] in line
        assert line.count("response_type=code") == 1
    assert not marker.exists()


# Credentials do not travel on


@pytest.mark.parametrize("status", [307, 308])
async def test_a_code_is_not_sent_on(status: int) -> None:
    """A redirect that keeps the method keeps the body, and with it the code or the secret."""
    async with run_guarded_server() as place, run_guarded_server() as other:
        user = User()
        place.says["/token"] = lambda asked: HttpReply(status, None, {"location": f"{other.origin}/token"})
        with pytest.raises(MCPError):
            async with Client(place.url, auth=oauth_settings(user, client_id=None)):
                pass
        await user.close()
        assert not other.asked
        assert place.count("/token") == 1


async def test_what_was_given_for_one_issuer_is_not_shown_to_another() -> None:
    async with run_guarded_server() as place:
        settings = OAuth(
            client_id="c", client_secret="s3cret", issuer="https://login.example.com", token_store="memory"
        )
        with pytest.raises(MCPError, match=r"login\.example\.com"):
            async with Client(place.url, auth=settings):
                pass
        assert not [asked for asked in place.asked if _holds(asked, "s3cret")]


def _holds(asked: HttpRequest, text: str) -> bool:
    return text in f"{asked.path}{asked.query}{asked.headers}{asked.body!r}"
