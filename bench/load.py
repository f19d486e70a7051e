"""The load generator: raw bytes on pipes and loopback sockets, nobody's client. Every answer is checked.

A run is bounded in calls and in time, and tells what it cost this process; above some 25 000 calls a second this
process, not the server, is the limit, so what counts is the server's CPU time per call.
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

TIMEOUT_S = 30.0  # for one answer, in seconds
_CHUNK = 1 << 18


class RunResult(NamedTuple):
    """One run, seen from here."""

    calls: int
    seconds: float
    cpu: float
    p50: float | None  # seconds, when one call at a time was made


class Bounds(NamedTuple):
    """How long a run may be: whichever comes first."""

    calls: int
    seconds: float


class Meter:
    """Counts a run."""

    def __init__(self, bounds: Bounds, *, timing: bool) -> None:
        self.calls = 0
        self._most = bounds.calls
        self._started = time.perf_counter()
        self._until = self._started + bounds.seconds
        self._cpu = time.process_time()
        self._timing = timing
        self._times: list[float] = []
        self._last = self._started

    def count_answer(self) -> bool:
        """One more; whether there is to be another."""
        self.calls += 1
        now = time.perf_counter()
        if self._timing:
            self._times.append(now - self._last)
            self._last = now
        return now < self._until and self.calls < self._most

    def tally(self) -> RunResult:
        """The run is over."""
        p50 = median(self._times) if self._times else None
        return RunResult(self.calls, time.perf_counter() - self._started, time.process_time() - self._cpu, p50)


class Pipes:
    """A server on the other end of two pipes."""

    def __init__(self, stdin: IO[bytes], stdout: IO[bytes], era: str) -> None:
        self._in = stdin.fileno()
        self._out = stdout.fileno()
        self._poll = select.poll()
        self._poll.register(self._out, select.POLLIN)
        self._held: list[bytes] = []
        self._era = era
        self._id = 0

    def open(self) -> None:
        """Shake hands, in the era that does."""
        if self._era == HANDSHAKE:
            self.run(request_kinds.initialize(), 1, Bounds(1, TIMEOUT_S))
            self._send(INITIALIZED + b"\n")

    def run(self, ask: RequestKind, depth: int, bounds: Bounds) -> RunResult:
        """Keep so many requests in flight until the bounds are met; then wait for those still out."""
        meter = Meter(bounds, timing=depth == 1)
        flying: set[int] = set()
        self._ask(ask, depth, flying)
        more = True
        while flying:
            settled = 0
            for line in self._lines():
                answer = request_kinds.read(line)
                if answer.method is not None:
                    continue  # something the server says by itself
                if answer.id not in flying:
                    raise WrongAnswer(f"nobody asked: {line[:300]!r}")
                flying.remove(answer.id)
                ask.judge(answer.id, answer.result)
                settled += 1
                more = meter.count_answer() and more
            if more and settled:
                self._ask(ask, settled, flying)
        return meter.tally()

    def _ask(self, ask: RequestKind, count: int, flying: set[int]) -> None:
        ids = range(self._id + 1, self._id + 1 + count)
        self._id += count
        flying.update(ids)
        self._send(b"".join([ask.write(id, self._era) + b"\n" for id in ids]))

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._in, view) :]

    def _lines(self) -> list[bytes]:
        if not self._poll.poll(TIMEOUT_S * 1000):
            raise WrongAnswer(f"no answer within {TIMEOUT_S:g} s")
        data = os.read(self._out, _CHUNK)
        if not data:
            raise WrongAnswer("the server closed its output")
        *lines, rest = data.split(b"\n")
        if lines and self._held:
            lines[0] = b"".join([*self._held, lines[0]])
            self._held.clear()
        if rest:
            self._held.append(rest)
        return lines


class Web:
    """A server on a loopback port: so many connections, one request at a time on each."""

    def __init__(self, port: int, era: str, connections: int) -> None:
        self._era = era
        self._port = port
        self._id = 0
        self.connections = [Connection(port) for _ in range(connections)]

    def open(self) -> None:
        """A session for each connection, in the era that has them."""
        if self._era == HANDSHAKE:
            for one in self.connections:
                self.open_session(one)

    def open_session(self, connection: "Connection") -> None:
        """Shake hands; what is sent on this connection from here on belongs to the new session."""
        connection.session = None
        opening = request_kinds.initialize()
        head, body = self._exchange(connection, opening)
        _judge(opening, self._id, head, body)
        connection.session = _header(head, b"mcp-session-id")
        connection.send(self._request(connection, "", "", INITIALIZED))
        status = connection.receive()[0][9:12]
        if status != b"202":
            raise WrongAnswer(f"initialized was answered with {status!r}")

    def close(self) -> None:
        """Hang up."""
        for one in self.connections:
            one.close()

    def run(self, ask: RequestKind, bounds: Bounds) -> RunResult:
        """Keep every connection busy until the bounds are met."""
        if len(self.connections) == 1:
            return self._run_one(ask, bounds)
        meter = Meter(bounds, timing=False)
        poll = select.poll()
        flying: dict[int, tuple[Connection, int]] = {}
        for one in self.connections:
            poll.register(one.fileno(), select.POLLIN)
            flying[one.fileno()] = one, self._ask(one, ask)
        while flying:
            ready = poll.poll(TIMEOUT_S * 1000)
            if not ready:
                raise WrongAnswer(f"no answer within {TIMEOUT_S:g} s")
            for descriptor, _ in ready:
                one, id = flying[descriptor]
                found = one.feed()
                if found is None:
                    continue
                _judge(ask, id, *found)
                if meter.count_answer():
                    flying[descriptor] = one, self._ask(one, ask)
                else:
                    del flying[descriptor]
        return meter.tally()

    def _run_one(self, ask: RequestKind, bounds: Bounds) -> RunResult:
        connection = self.connections[0]
        meter = Meter(bounds, timing=True)
        while True:
            head, body = self._exchange(connection, ask)
            _judge(ask, self._id, head, body)
            if not meter.count_answer():
                return meter.tally()

    def _exchange(self, connection: "Connection", ask: RequestKind) -> tuple[bytes, bytes]:
        self._ask(connection, ask)
        return connection.receive()

    def _ask(self, connection: "Connection", ask: RequestKind) -> int:
        self._id += 1
        connection.send(self._request(connection, ask.method, ask.name, ask.write(self._id, self._era)))
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
    """One kept-alive connection; the kernel keeps the time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setblocking(True)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        limit = struct.pack("ll", int(TIMEOUT_S), 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._held = bytearray()
        self._wanted = 0
        self.session: bytes | None = None
        self.fileno = self._socket.fileno
        self.send = self._socket.sendall
        self.close = self._socket.close

    def receive(self) -> tuple[bytes, bytes]:
        """Wait for a response: its head and its body."""
        while True:
            found = self.feed()
            if found is not None:
                return found

    def feed(self) -> tuple[bytes, bytes] | None:
        """Read once; the response, if that completed it."""
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            raise WrongAnswer(f"no answer within {TIMEOUT_S:g} s") from None
        if not data:
            raise WrongAnswer("the server closed the connection")
        self._held += data
        if len(self._held) < self._wanted:
            return None
        held = bytes(self._held)
        end = held.find(b"\r\n\r\n")
        if end < 0:
            return None
        head, start = held[: end + 2], end + 4
        length = _header(head, b"content-length")
        if length is not None:
            self._wanted = start + int(length)
            if len(held) < self._wanted:
                return None
            body = held[start:]
        elif not held.endswith(b"0\r\n\r\n"):
            return None
        else:
            body = _join_chunks(held, start)
        self._held.clear()
        self._wanted = 0
        return head, body


def _judge(ask: RequestKind, id: int, head: bytes, body: bytes) -> None:
    if head[9:12] != b"200":
        raise WrongAnswer(f"status {head[9:12]!r}: {body[:300]!r}")
    message = body if body.startswith(b"{") else _event(body)
    answer = request_kinds.read(message)
    if answer.id != id:
        raise WrongAnswer(f"id {answer.id} answers {id}")
    ask.judge(id, answer.result)


def _header(head: bytes, name: bytes) -> bytes | None:
    """The value of a header, wherever upper case is used."""
    at = head.lower().find(b"\r\n" + name + b":")
    if at < 0:
        return None
    at += len(name) + 3
    return head[at : head.index(b"\r\n", at)].strip()


def _join_chunks(data: bytes, at: int) -> bytes:
    """The chunks of a chunked body, put together."""
    pieces: list[bytes] = []
    while True:
        end = data.index(b"\r\n", at)
        size = int(data[at:end], 16)
        if size == 0:
            return b"".join(pieces)
        pieces.append(data[end + 2 : end + 2 + size])
        at = end + 4 + size


def _event(body: bytes) -> bytes:
    """The response in an event stream: the last event that carries anything."""
    for event in reversed(body.replace(b"\r\n", b"\n").split(b"\n\n")):
        found = b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
        if found:
            return found
    raise WrongAnswer(f"no event: {body[:300]!r}")
