"""Test that `run` and `serve` accept the same options and make the same checks, for every transport."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import pytest

from dovetail import Server
from dovetail.auth import StaticTokenVerifier
from dovetail.server.runners import ExposedAddress, check_exposure
from dovetail.server.server_options import ASGIOptions, HTTPServerOptions, Transport

ENTRY_POINTS = ("run", "serve")
EVERYWHERE = "0.0.0.0"


async def other_app(scope: Any, receive: Any, send: Any) -> None:
    """An application for other paths."""


# A value that is accepted, by transport and option. What a transport requires is added.
ACCEPTED: Mapping[str, Mapping[str, Any]] = {
    "stdio": {},
    "http": {
        "path": "/here",
        "public_url": "https://example.com/mcp",
        "allowed_hosts": ["example.com"],
        "allowed_origins": ["https://example.com"],
        "cors_origins": ["https://example.com"],
        "response_mode": "json",
        "sessions": False,
        "health": True,
        "http_sse": False,
        "fallback": other_app,
        "host": "localhost",
        "port": 0,
        "workers": 1,
        "ssl_certfile": None,
        "ssl_keyfile": None,
        "allow_anonymous": True,
    },
    "unix": {"path": "a.sock", "allow_anonymous": True},
    "tcp": {"host": "localhost", "port": 0, "allow_anonymous": True},
}
REQUIRED: Mapping[str, Mapping[str, Any]] = {
    "stdio": {},
    "http": {"port": 0},
    "unix": {"path": "s"},
    "tcp": {"port": 0},
}
PAIRS = [(transport, option) for transport, options in ACCEPTED.items() for option in options]


def test_only_other_addresses_than_those_of_this_machine_need_authentication() -> None:
    for host in ("localhost", "127.0.0.1", "127.0.0.2", "127.255.255.254", "::1", "app.localhost"):
        check_exposure(host, is_allowed=False)
    for host in ("", "0.0.0.0", "::", "10.0.0.1", "127.example", "localhost.example", "128.0.0.1", "::2"):
        check_exposure(host, is_allowed=True)
        with pytest.raises(ExposedAddress):
            check_exposure(host, is_allowed=False)


REFUSED: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("http", {"host": EVERYWHERE}, ValueError, "allow_anonymous=True"),
    ("http", {"port": 65536}, ValueError, "port must be"),
    ("http", {"ssl_certfile": "missing.pem"}, FileNotFoundError, "missing.pem"),
    ("http", {"ssl_keyfile": "key.pem"}, ValueError, "ssl_certfile"),
    ("http", {"host": "[::1]"}, ValueError, "'::1'"),
    ("http", {"log_level": "info"}, TypeError, "basicConfig"),
    ("http", {"allowed_hosts": ["https://x.example/"]}, ValueError, "allowed_hosts"),
    ("http", {"response_mode": "xml"}, ValueError, "response_mode must be"),
    ("tcp", {"host": EVERYWHERE}, ValueError, "allow_anonymous=True"),
    ("tcp", {"port": -1}, ValueError, "port must be"),
    ("unix", {"port": 1}, TypeError, "'unix' has no option `port`"),
    ("stdio", {"path": "x"}, TypeError, "'stdio' has no option `path`"),
    *((transport, {"colour": "red"}, TypeError, "has no option `colour`") for transport in ACCEPTED),
]


class StartedError(Exception):
    """Raised by the lifespan: everything was accepted."""


@asynccontextmanager
async def lifespan() -> AsyncGenerator[None]:
    raise StartedError
    yield


class RecordingServer(Server):
    """A server that cannot start, and keeps the options of its application."""

    def __init__(self, **options: Any) -> None:
        super().__init__("any", lifespan=lifespan, **options)
        self.asgi_options: list[dict[str, Any]] = []

    def asgi(self, **options: Any) -> Any:
        self.asgi_options.append(options)
        return super().asgi(**options)


def enter(entry_point: str, server: Server, transport: str, options: Mapping[str, Any]) -> None:
    entry: Any = getattr(server, entry_point)
    if entry_point == "run":
        entry(transport, **options)
    else:
        asyncio.run(entry(transport, **options))


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_transport_and_every_option_is_covered_here() -> None:
    assert set(get_args(Transport)) == ACCEPTED.keys()
    assert set(HTTPServerOptions.__annotations__) == ACCEPTED["http"].keys()


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
@pytest.mark.parametrize("transport", ACCEPTED)
def test_a_server_starts_without_options(entry_point: str, transport: str) -> None:
    with pytest.raises(StartedError):
        enter(entry_point, RecordingServer(), transport, REQUIRED[transport])


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
@pytest.mark.parametrize(("transport", "option"), PAIRS)
def test_an_option_is_accepted_and_reaches_the_application(entry_point: str, transport: str, option: str) -> None:
    server, value = RecordingServer(), ACCEPTED[transport][option]
    if (entry_point, option) == ("serve", "workers"):
        with pytest.raises(TypeError, match="serve\\(\\) has no option `workers`"):
            enter(entry_point, server, transport, {option: value})
        return
    with pytest.raises(StartedError):
        enter(entry_point, server, transport, {**REQUIRED[transport], option: value})
    if transport == "http":
        expected = {option: value} if option in ASGIOptions.__annotations__ else {}
        assert server.asgi_options
        assert all(options == expected for options in server.asgi_options)


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
@pytest.mark.parametrize(("transport", "options", "error", "message"), REFUSED)
def test_a_wrong_option_is_refused(
    entry_point: str, transport: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        enter(entry_point, RecordingServer(), transport, {**REQUIRED[transport], **options})


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
@pytest.mark.parametrize(("transport", "option"), [("unix", "path"), ("tcp", "port")])
def test_a_missing_option_is_named(entry_point: str, transport: str, option: str) -> None:
    with pytest.raises(TypeError, match=f"{transport}. requires `{option}`: app.{entry_point}"):
        enter(entry_point, RecordingServer(), transport, {})


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
@pytest.mark.parametrize(("transport", "host"), [("http", EVERYWHERE), ("tcp", EVERYWHERE), ("unix", None)])
@pytest.mark.parametrize("guarded", [False, True])
def test_anonymous_callers_are_served_only_if_that_is_allowed(
    *, entry_point: str, transport: str, host: str | None, guarded: bool
) -> None:
    server = RecordingServer(auth=StaticTokenVerifier({"t": "ada"}) if guarded else None)
    options = {**REQUIRED[transport], **({} if host is None else {"host": host})}
    # HTTP checks credentials, sockets cannot, and a Unix socket cannot be reached from other machines.
    is_served = {"http": guarded, "tcp": False, "unix": not guarded}[transport]
    with pytest.raises(StartedError if is_served else ValueError):
        enter(entry_point, server, transport, options)
    with pytest.raises(StartedError):
        enter(entry_point, server, transport, {**options, "allow_anonymous": True})
