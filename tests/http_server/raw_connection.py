"""Server processes, and connections to them that send bytes in given pieces and read all responses.

A test never waits for a fixed time. `RunningServer.settle` makes round trips on another connection instead: the event
loop of the server has then read and answered everything that was sent before.
"""

import contextlib
import fcntl
import json
import re
import select
import socket
import ssl
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, unquote_to_bytes

START_TIMEOUT_S = 20.0
TIMEOUT_S = 20.0
_QUIET_ROUND_TRIPS = 3
_MAX_DELIVERY_ROUND_TRIPS = 100
_PING = b"GET /ping HTTP/1.1\r\nhost: localhost\r\n\r\n"
_URL = re.compile(r"https?://\S+?:(\d+)/")
_BODILESS_STATUSES = (100, 204, 304)
PROGRAM = Path(__file__).with_name("server_program.py")


class Response(NamedTuple):
    """A response of a server."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def request(self) -> "Request | None":
        """The request as the server read it, if the recording application answered."""
        if self.status != 200 or "x-method" not in self.headers:
            return None
        if "x-body" in self.headers:
            body = unquote_to_bytes(self.headers["x-body"])
        else:
            body = json.loads(self.body)["body"].encode("latin-1")
        return Request(self.headers["x-method"], unquote(self.headers["x-target"]), body)


class Request(NamedTuple):
    """The parts of a request that two parsers must agree on."""

    method: str
    target: str
    body: bytes


class Outcome(NamedTuple):
    """The responses to a byte stream, and whether the connection is still open."""

    responses: tuple[Response, ...]
    is_open: bool
    rest: bytes = b""  # the part of a response that is incomplete

    @property
    def statuses(self) -> tuple[int, ...]:
        return tuple(response.status for response in self.responses)

    @property
    def requests(self) -> tuple[Request, ...]:
        return tuple(response.request for response in self.responses if response.request is not None)


def parse_responses(data: bytes) -> tuple[tuple[Response, ...], bytes]:
    """Return the complete responses, and the rest."""
    responses: list[Response] = []
    while True:
        head, separator, rest = data.partition(b"\r\n\r\n")
        if not separator:
            return tuple(responses), data
        status_line, *lines = head.decode("latin-1").split("\r\n")
        assert re.fullmatch(r"HTTP/1\.1 \d{3} [ -~]*", status_line), status_line
        status = int(status_line.split(" ")[1])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if status in _BODILESS_STATUSES or headers.get("x-method") == "HEAD":
            body = b""
        elif headers.get("transfer-encoding") == "chunked":
            chunks = _join_chunks(rest)
            if chunks is None:
                return tuple(responses), data
            body, rest = chunks
        else:
            length = int(headers["content-length"])
            if len(rest) < length:
                return tuple(responses), data
            body, rest = rest[:length], rest[length:]
        responses.append(Response(status, headers, body))
        data = rest


def _join_chunks(data: bytes) -> tuple[bytes, bytes] | None:
    body = b""
    while True:
        line, separator, data = data.partition(b"\r\n")
        if not separator or len(data) < int(line, 16) + 2:
            return None
        size = int(line, 16)
        body += data[:size]
        assert data[size : size + 2] == b"\r\n"
        data = data[size + 2 :]
        if size == 0:
            return body, data


class RawConnection:
    """A connection that sends any bytes, and collects everything that the server sends."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        connection = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection if tls is None else tls.wrap_socket(connection, server_hostname="127.0.0.1")
        self._received = bytearray()
        self.is_open = True

    def send(self, data: bytes) -> None:
        """Send bytes. The server may have closed the connection."""
        with contextlib.suppress(ConnectionError):
            self._socket.settimeout(TIMEOUT_S)
            self._socket.sendall(data)

    def is_delivered(self) -> bool:
        """Return whether the kernel of the server has everything that was sent. Only Linux can tell."""
        if not self.is_open or sys.platform != "linux":
            return True
        return fcntl.ioctl(self._socket, termios.TIOCOUTQ, bytes(4)) == bytes(4)

    def end_sending(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def receive(self) -> bool:
        """Read everything that has arrived, and return whether something has arrived."""
        if not self.is_open:
            return False
        self._socket.settimeout(0)
        size = len(self._received)
        try:
            while data := self._socket.recv(1 << 18):
                self._received += data
            self.is_open = False
        except (BlockingIOError, ssl.SSLWantReadError):
            return len(self._received) > size
        except ConnectionError:
            self.is_open = False
        return True

    def receive_until(self, count: int) -> Outcome:
        """Wait for this number of responses."""
        deadline = time.monotonic() + TIMEOUT_S
        while len((outcome := self.outcome()).responses) < count and self.is_open:
            assert time.monotonic() < deadline, f"no response: {outcome}"
            select.select([self._socket], [], [], TIMEOUT_S)
            self.receive()
        return outcome

    def outcome(self) -> Outcome:
        responses, rest = parse_responses(bytes(self._received))
        return Outcome(responses, self.is_open, rest)

    def close(self) -> None:
        self._socket.close()


@dataclass
class RunningServer:
    """A server process."""

    process: subprocess.Popen[bytes]
    log_path: Path
    port: int = 0
    tls: ssl.SSLContext | None = None  # of its clients
    _pinger: RawConnection | None = field(default=None, repr=False)

    @property
    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def settle(self, connections: Sequence[RawConnection]) -> None:
        """Wait until the server has read and answered everything that was sent."""
        # The kernel may deliver a ping before data that was sent earlier on another connection. If a server has paused
        # reading, it never gets all data.
        for _ in range(_MAX_DELIVERY_ROUND_TRIPS):
            if all(connection.is_delivered() for connection in connections):
                break
            self._ping()
        quiet = 0
        while quiet < _QUIET_ROUND_TRIPS:
            self._ping()
            arrived = [connection.receive() for connection in connections]
            quiet = 0 if any(arrived) else quiet + 1

    def _ping(self) -> None:
        for _ in range(2):  # The server closes connections that were idle for long.
            if self._pinger is None:
                self._pinger = RawConnection(self.port, self.tls)
            count = len(self._pinger.outcome().responses)
            self._pinger.send(_PING)
            outcome = self._pinger.receive_until(count + 1)
            if len(outcome.responses) > count:
                self._pinger._received.clear()
                return
            self._pinger.close()
            self._pinger = None
        raise AssertionError(f"the server does not answer: {self.log[-2000:]}")

    def exchange_all(self, streams: Sequence[Sequence[bytes]]) -> list[Outcome]:
        """Send each stream on its own connection. The server reads each piece before the next one is sent."""
        with self.send_all(streams) as connections:
            return [connection.outcome() for connection in connections]

    @contextlib.contextmanager
    def send_all(self, streams: Sequence[Sequence[bytes]]) -> Iterator[list[RawConnection]]:
        """Send each stream on its own connection, and yield the connections after the server has read everything."""
        connections = [RawConnection(self.port, self.tls) for _ in streams]
        last = max(map(len, streams), default=0) - 1
        try:
            for number in range(last + 1):
                for connection, pieces in zip(connections, streams, strict=True):
                    if number < len(pieces):
                        connection.send(pieces[number])
                if number < last:
                    self._ping()
                    for connection in connections:
                        connection.receive()
            self.settle(connections)
            yield connections
        finally:
            for connection in connections:
                connection.close()

    def exchange(self, *pieces: bytes) -> Outcome:
        (outcome,) = self.exchange_all([pieces])
        return outcome

    def read_recorded(self) -> list[dict[str, Any]]:
        """Return the requests that the server has read since the last call."""
        (response,) = self.exchange(b"GET /recorded HTTP/1.1\r\nhost: localhost\r\n\r\n").responses
        return json.loads(response.body)

    def close(self) -> None:
        if self._pinger is not None:
            self._pinger.close()


@contextlib.contextmanager
def run_server(folder: Path, kind: str = "dovetail", **options: Any) -> Iterator[RunningServer]:
    """Run a server in another process. It must not log an exception."""
    log_path = folder / f"{kind}.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), kind, json.dumps(options)], stdin=subprocess.DEVNULL, stderr=log
        )
    server = RunningServer(process, log_path)
    if "ssl_certfile" in options:
        server.tls = ssl.create_default_context(cafile=options["ssl_certfile"])
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (match := _URL.search(server.log)):
            assert process.poll() is None, server.log
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.01)
        server.port = int(match[1])
        yield server
        assert "Traceback" not in server.log, server.log[-3000:]
    finally:
        server.close()
        process.kill()
        process.wait()
