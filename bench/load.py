"""The load generator. It writes raw bytes to pipes and loopback sockets without an MCP client, and checks every
response.

A run ends after a number of calls or seconds. It also reports the CPU time of this process. Above about 25,000 calls a
second, this process is the bottleneck and not the server. The benchmarks therefore compare the CPU time of the server
per call.
"""

import os
import select
import socket
import struct
import time
from statistics import median
from typing import IO, NamedTuple

import request_kinds
from request_kinds import HANDSHAKE, INITIALIZED, STATELESS, RequestKind, WrongAnswer

TIMEOUT_S = 30.0  # for one response
_CHUNK = 1 << 18


class RunResult(NamedTuple):
    """The figures of one run, measured by the load generator."""

    calls: int
    seconds: float
    cpu: float
    p50: float | None  # seconds, only for runs with one call at a time


class Bounds(NamedTuple):
    """The limits of a run. The first one that is reached ends it."""

    calls: int
    seconds: float


class Meter:
    """Counts and times the calls of a run."""

    def __init__(self, bounds: Bounds, *, timing: bool) -> None:
        self.calls = 0
        self._max_calls = bounds.calls
        self._started = time.perf_counter()
        self._deadline = self._started + bounds.seconds
        self._cpu = time.process_time()
        self._timing = timing
        self._times: list[float] = []
        self._last = self._started

    def count_answer(self) -> bool:
        """Count a response, and return whether to send another request."""
        self.calls += 1
        now = time.perf_counter()
        if self._timing:
            self._times.append(now - self._last)
            self._last = now
        return now < self._deadline and self.calls < self._max_calls

    def result(self) -> RunResult:
        """Return the figures of the run."""
        p50 = median(self._times) if self._times else None
        return RunResult(self.calls, time.perf_counter() - self._started, time.process_time() - self._cpu, p50)


class Pipes:
    """The pipes to a stdio server."""

    def __init__(self, stdin: IO[bytes], stdout: IO[bytes], era: str) -> None:
        self._in = stdin.fileno()
        self._out = stdout.fileno()
        self._poll = select.poll()
        self._poll.register(self._out, select.POLLIN)
        self._buffer: list[bytes] = []
        self._era = era
        self._id = 0

    def open(self) -> None:
        """Initialize the session, if the era has sessions."""
        if self._era == HANDSHAKE:
            self.run(request_kinds.initialize(), 1, Bounds(1, TIMEOUT_S))
            self._send(INITIALIZED + b"\n")

    def run(self, kind: RequestKind, depth: int, bounds: Bounds) -> RunResult:
        """Keep `depth` requests in flight until a bound is reached, then wait for the remaining responses."""
        meter = Meter(bounds, timing=depth == 1)
        in_flight: set[int] = set()
        self._send_requests(kind, depth, in_flight)
        more = True
        while in_flight:
            answered = 0
            for line in self._read_lines():
                answer = request_kinds.parse_message(line)
                if answer.method is not None:
                    continue  # a notification or a request of the server
                if answer.id not in in_flight:
                    raise WrongAnswer(f"response to an unknown request: {line[:300]!r}")
                in_flight.remove(answer.id)
                kind.check(answer.id, answer.result)
                answered += 1
                more = meter.count_answer() and more
            if more and answered:
                self._send_requests(kind, answered, in_flight)
        return meter.result()

    def _send_requests(self, kind: RequestKind, count: int, in_flight: set[int]) -> None:
        ids = range(self._id + 1, self._id + 1 + count)
        self._id += count
        in_flight.update(ids)
        self._send(b"".join([kind.write(id, self._era) + b"\n" for id in ids]))

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._in, view) :]

    def _read_lines(self) -> list[bytes]:
        if not self._poll.poll(TIMEOUT_S * 1000):
            raise WrongAnswer(f"no answer within {TIMEOUT_S:g} s")
        data = os.read(self._out, _CHUNK)
        if not data:
            raise WrongAnswer("the server closed its output")
        *lines, rest = data.split(b"\n")
        if lines and self._buffer:
            lines[0] = b"".join([*self._buffer, lines[0]])
            self._buffer.clear()
        if rest:
            self._buffer.append(rest)
        return lines


class Web:
    """Connections to an HTTP server on a loopback port, each with one request at a time."""

    def __init__(self, port: int, era: str, connections: int) -> None:
        self._era = era
        self._port = port
        self._id = 0
        self.connections = [Connection(port) for _ in range(connections)]

    def open(self) -> None:
        """Open a session for each connection, if the era has sessions."""
        if self._era == HANDSHAKE:
            for connection in self.connections:
                self.open_session(connection)

    def open_session(self, connection: "Connection") -> None:
        """Initialize a new session and use it for this connection from now on."""
        connection.session = None
        kind = request_kinds.initialize()
        head, body = self._exchange(connection, kind)
        _check(kind, self._id, head, body)
        connection.session = _header(head, b"mcp-session-id")
        connection.send(self._request(connection, "", "", INITIALIZED))
        status = connection.receive()[0][9:12]
        if status != b"202":
            raise WrongAnswer(f"notifications/initialized was answered with status {status!r}")

    def close(self) -> None:
        """Close all connections."""
        for connection in self.connections:
            connection.close()

    def run(self, kind: RequestKind, bounds: Bounds) -> RunResult:
        """Keep every connection busy until a bound is reached."""
        if len(self.connections) == 1:
            return self._run_single(kind, bounds)
        meter = Meter(bounds, timing=False)
        poll = select.poll()
        in_flight: dict[int, tuple[Connection, int]] = {}
        for connection in self.connections:
            poll.register(connection.fileno(), select.POLLIN)
            in_flight[connection.fileno()] = connection, self.send_request(connection, kind)
        while in_flight:
            ready = poll.poll(TIMEOUT_S * 1000)
            if not ready:
                raise WrongAnswer(f"no answer within {TIMEOUT_S:g} s")
            for descriptor, _ in ready:
                connection, id = in_flight[descriptor]
                response = connection.feed()
                if response is None:
                    continue
                _check(kind, id, *response)
                if meter.count_answer():
                    in_flight[descriptor] = connection, self.send_request(connection, kind)
                else:
                    del in_flight[descriptor]
        return meter.result()

    def _run_single(self, kind: RequestKind, bounds: Bounds) -> RunResult:
        connection = self.connections[0]
        meter = Meter(bounds, timing=True)
        while True:
            head, body = self._exchange(connection, kind)
            _check(kind, self._id, head, body)
            if not meter.count_answer():
                return meter.result()

    def _exchange(self, connection: "Connection", kind: RequestKind) -> tuple[bytes, bytes]:
        self.send_request(connection, kind)
        return connection.receive()

    def send_request(self, connection: "Connection", kind: RequestKind) -> int:
        """Send a request and return its id."""
        self._id += 1
        connection.send(self._request(connection, kind.method, kind.name, kind.write(self._id, self._era)))
        return self._id

    def _request(self, connection: "Connection", method: str, name: str, body: bytes) -> bytes:
        lines = [
            b"POST /mcp HTTP/1.1",
            b"host: 127.0.0.1:%d" % self._port,
            b"accept: application/json, text/event-stream",
            b"content-type: application/json",
            b"content-length: %d" % len(body),
        ]
        if self._era == STATELESS:
            lines += [b"mcp-protocol-version: " + STATELESS.encode(), b"mcp-method: " + method.encode()]
            if name:
                lines.append(b"mcp-name: " + name.encode())
        elif connection.session is not None:
            lines += [b"mcp-protocol-version: " + HANDSHAKE.encode(), b"mcp-session-id: " + connection.session]
        return b"\r\n".join(lines) + b"\r\n\r\n" + body


class Connection:
    """A kept-alive connection. The socket's own timeouts apply."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setblocking(True)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        limit = struct.pack("ll", int(TIMEOUT_S), 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._buffer = bytearray()
        self._expected_size = 0
        self.session: bytes | None = None
        self.fileno = self._socket.fileno
        self.send = self._socket.sendall
        self.recv = self._socket.recv
        self.close = self._socket.close

    def receive(self) -> tuple[bytes, bytes]:
        """Wait for a response, and return its head and body."""
        while True:
            response = self.feed()
            if response is not None:
                return response

    def feed(self) -> tuple[bytes, bytes] | None:
        """Read once, and return the response if it is complete."""
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            raise WrongAnswer(f"no answer within {TIMEOUT_S:g} s") from None
        if not data:
            raise WrongAnswer("the server closed the connection")
        self._buffer += data
        if len(self._buffer) < self._expected_size:
            return None
        data = bytes(self._buffer)
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return None
        head, start = data[: end + 2], end + 4
        length = _header(head, b"content-length")
        if length is not None:
            self._expected_size = start + int(length)
            if len(data) < self._expected_size:
                return None
            body = data[start:]
        elif not data.endswith(b"0\r\n\r\n"):
            return None
        else:
            body = _join_chunks(data, start)
        self._buffer.clear()
        self._expected_size = 0
        return head, body


def _check(kind: RequestKind, id: int, head: bytes, body: bytes) -> None:
    if head[9:12] != b"200":
        raise WrongAnswer(f"status {head[9:12]!r}: {body[:300]!r}")
    message = body if body.startswith(b"{") else _last_event(body)
    answer = request_kinds.parse_message(message)
    if answer.id != id:
        raise WrongAnswer(f"id {answer.id} answers {id}")
    kind.check(id, answer.result)


def _header(head: bytes, name: bytes) -> bytes | None:
    """Return the value of a header, in any case, or None."""
    at = head.lower().find(b"\r\n" + name + b":")
    if at < 0:
        return None
    at += len(name) + 3
    return head[at : head.index(b"\r\n", at)].strip()


def _join_chunks(data: bytes, at: int) -> bytes:
    """Join the chunks of a chunked body."""
    pieces: list[bytes] = []
    while True:
        end = data.index(b"\r\n", at)
        size = int(data[at:end], 16)
        if size == 0:
            return b"".join(pieces)
        pieces.append(data[end + 2 : end + 2 + size])
        at = end + 4 + size


def _last_event(body: bytes) -> bytes:
    """Return the last event with data, which is the response."""
    for event in reversed(body.replace(b"\r\n", b"\n").split(b"\n\n")):
        message = b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
        if message:
            return message
    raise WrongAnswer(f"no event: {body[:300]!r}")
