"""The harness of the reliability tests: a target process measured from outside, and clients that can misbehave.

It does not use dovetail. It encodes messages on sockets and pipes independently.
"""

import collections
import contextlib
import itertools
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
NEWEST = "2026-07-28"
HANDSHAKE = "2025-11-25"
VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
ACCEPT_JSON_AND_SSE = "application/json, text/event-stream"
MiB = 1024 * 1024
TIMEOUT_S = 20.0

StartTarget = Callable[..., "Target"]  # the fixture that starts a target with other options

_ids = itertools.count(1)
_opened: "dict[int, list[Connection]]" = {}  # by port: connections to close with their target


def wait_for(condition: Callable[[], Any], what: str, seconds: float = TIMEOUT_S) -> Any:
    """Wait until a condition is true, and return its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.01)
    return value


def record_measurement(name: str, value: float, unit: str) -> None:
    """Append a figure to the file that RELIABILITY_FIGURES names."""
    if place := os.environ.get("RELIABILITY_FIGURES"):
        with Path(place).open("a", encoding="utf-8") as file:
            file.write(json.dumps([name, round(value, 3), unit]) + "\n")


def measure_cpu_unit(rounds: int = 3) -> float:
    """Return the CPU seconds of a fixed piece of work on this machine (about 12 ms if idle), the unit of all bounds."""

    def once() -> float:
        began = time.thread_time()
        collections.deque((str(number) for number in range(100_000)), maxlen=0)
        return time.thread_time() - began

    return min(once() for _ in range(rounds))


# The process


@dataclass
class Target:
    """A server process, and its measurements from outside."""

    process: subprocess.Popen[bytes]
    log_path: Path
    port: int = 0
    extra: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        self.seen = psutil.Process(self.process.pid)

    @property
    def rss(self) -> int:
        return self.seen.memory_info().rss

    @property
    def descriptors(self) -> int:
        return self.seen.num_fds()

    @property
    def cpu(self) -> float:
        times = self.seen.cpu_times()
        return times.user + times.system

    def reset_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    @property
    def peak(self) -> int:
        """The largest resident size since `forget_peak`."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024

    @property
    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="surrogateescape")

    @property
    def log_size(self) -> int:
        return self.log_path.stat().st_size

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def exit_code(self, seconds: float = TIMEOUT_S) -> int:
        return self.process.wait(seconds)


@contextlib.contextmanager
def run_target(folder: Path, transport: str = "http", **options: Any) -> Iterator[Target]:
    """Run a target. `target.py` reads the options, those of the transport are under `run`."""
    options["transport"] = options.pop("run", {})
    path = folder / f"log-{next(_ids)}.txt"
    # The development mode reports unclosed files and coroutines, but uses memory that is not the server's.
    mode = ["-X", "dev"] if options.get("dev") else []
    command = [sys.executable, *mode, str(HERE / "target.py"), transport, json.dumps(options)]
    with run_program(command, path, transport) as started:
        yield started


@contextlib.contextmanager
def run_program(command: list[str], log_path: Path, transport: str = "http") -> Iterator[Target]:
    """Run a program that serves over this transport."""
    pipe = subprocess.PIPE if transport == "stdio" else subprocess.DEVNULL
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, env=_environment())
    started = Target(process, log_path)
    try:
        if transport == "http":
            found = wait_for(lambda: re.search(r"https?://\S+:(\d+)/", started.log) or _is_dead(started), "the start")
            started.port = int(found[1])
            wait_for(lambda: _is_listening(started.port), "the port")
        yield started
    finally:
        process.kill()
        process.wait()
        close_connections(started)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def close_connections(target: Target) -> None:
    """Close all connections of tests to a target."""
    for connection in _opened.pop(target.port, ()):
        connection.close()


def _environment() -> dict[str, str]:
    # Coverage of child processes would count as memory and time of the target.
    return {name: value for name, value in os.environ.items() if not name.startswith(("COVERAGE", "COV_"))}


def _is_dead(started: Target) -> None:
    assert started.alive, started.log


def _is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


# HTTP


@dataclass(frozen=True)
class Answer:
    """A complete HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def messages(self) -> list[Any]:
        """The JSON-RPC messages in it, from JSON or from events."""
        if "text/event-stream" in self.headers.get("content-type", ""):
            return [json.loads(event["data"]) for event in events(self.body) if event.get("data")]
        return [json.loads(self.body)] if self.body else []

    @property
    def message(self) -> Any:
        """The last message, which is the response."""
        return self.messages[-1] if self.messages else None

    @property
    def text(self) -> str:
        """The text of a tool result."""
        return self.message["result"]["content"][0]["text"]


def events(data: bytes) -> list[dict[str, str]]:
    """Parse a complete event stream."""
    blocks = data.decode().split("\n\n")
    return [parsed for block in blocks if (parsed := _event(block))]


def _event(block: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in block.split("\n"):
        name, _, value = line.partition(":")
        if name:
            value = value.removeprefix(" ")
            found[name] = f"{found[name]}\n{value}" if name in found else value
    return found


class Connection:
    """A TCP connection for HTTP/1.1, with control over every byte."""

    def __init__(self, port: int, timeout: float = TIMEOUT_S, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(timeout)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            self.socket.connect(("127.0.0.1", port))
        except OSError:
            self.socket.close()
            raise
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")
        _opened.setdefault(port, []).append(self)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def has_data(self) -> bool:
        """Return whether unread bytes have arrived."""
        return bool(select.select([self.socket], [], [], 0)[0])

    def head(self) -> tuple[int, dict[str, str]]:
        """Read the status and the headers of a response."""
        line = self.file.readline()
        if not line:
            raise ConnectionError("closed without an answer")
        headers: dict[str, str] = {}
        while (one := self.file.readline().rstrip(b"\r\n")) != b"":
            name, _, value = one.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        return int(line.split()[1]), headers

    def answer(self) -> Answer:
        """Read a whole response."""
        status, headers = self.head()
        if headers.get("transfer-encoding") == "chunked":
            body = b"".join(self.chunks())
        elif "content-length" in headers:
            body = self.file.read(int(headers["content-length"]))
        elif status in (204, 304):
            body = b""
        else:
            body = self.file.read()
        return Answer(status, headers, body)

    def chunks(self) -> Iterator[bytes]:
        """Yield the chunks of a body as they arrive."""
        while True:
            line = self.file.readline()
            if not line:
                raise ConnectionError("closed in the middle of an answer")
            size = int(line, 16)
            piece = self.file.read(size)
            self.file.readline()
            if not size:
                return
            yield piece

    def stream(self) -> Iterator[dict[str, str]]:
        """Yield the events of an event stream as they arrive, without comments."""
        held = b""
        for piece in self.chunks():
            held += piece
            *whole, held = held.split(b"\n\n")
            for block in whole:
                if (found := _event(block.decode())) and found.keys() != {""}:
                    yield found

    def wait_closed(self) -> bool:
        """Wait for the server to close the connection, and return whether it did."""
        try:
            while self.file.read(65536):
                pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True

    def abort(self) -> None:
        """Reset the connection, as a killed client does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.file.close()
        self.socket.close()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def encode_http_request(
    method: str, path: str, headers: dict[str, str] | list[tuple[str, str]], body: bytes | None = None
) -> bytes:
    """Encode a request. Only Content-Length is added."""
    pairs = list(headers.items()) if isinstance(headers, dict) else list(headers)
    if body is not None and not any(name.lower() in ("content-length", "transfer-encoding") for name, _ in pairs):
        pairs.append(("content-length", str(len(body))))
    head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in pairs) + "\r\n"
    return head.encode("utf-8", "surrogateescape") + (body or b"")


def message(method: str, params: dict[str, Any] | None = None, id: Any = None, **more: Any) -> dict[str, Any]:
    """Return a request, or a notification without an id."""
    made: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if id is not None:
        made["id"] = id
    if params is not None:
        made["params"] = params
    return made | more


def stateless_params(params: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    """Return parameters with the `_meta` of stateless requests."""
    given = dict(params or {})
    return given | {"_meta": {VERSION: NEWEST, CAPABILITIES: {}} | meta | given.get("_meta", {})}


def mirror_headers(request: Any) -> dict[str, str]:
    """Return the headers that mirror the body of a stateless request."""
    params = request.get("params") or {}
    headers = {"mcp-protocol-version": NEWEST, "mcp-method": request["method"]}
    name = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}.get(request["method"])
    if name and isinstance(params.get(name), str):
        headers["mcp-name"] = params[name]
    return headers


class Client:
    """A client of the target over HTTP: stateless, or with a handshake session."""

    def __init__(
        self, target: Target, revision: str = NEWEST, *, principal: str | None = None, capabilities: Any = None
    ) -> None:
        self.target = target
        self.revision = revision
        self.session: str | None = None
        self.headers = {
            "host": f"127.0.0.1:{target.port}", "content-type": "application/json", "accept": ACCEPT_JSON_AND_SSE,
        }  # fmt: skip
        if principal is not None:
            self.headers["authorization"] = f"Bearer {principal}"
        self._capabilities = capabilities or {}
        self._connection: Connection | None = None
        if revision != NEWEST:
            self._open()

    def _open(self) -> None:
        about = {"protocolVersion": self.revision, "capabilities": self._capabilities}
        answer = self.request("initialize", about | {"clientInfo": {"name": "lab", "version": "1"}})
        assert answer.status == 200, answer
        self.session = answer.headers["mcp-session-id"]
        self.headers |= {"mcp-session-id": self.session, "mcp-protocol-version": self.revision}
        assert self.post(message("notifications/initialized")).status == 202

    def prepare(self, method: str, params: dict[str, Any] | None = None, id: Any = None, **meta: Any) -> bytes:
        """Return the bytes of a request without sending them."""
        if self.revision == NEWEST:
            params = stateless_params(params, **{CAPABILITIES: self._capabilities}, **meta)
        elif meta:
            params = (params or {}) | {"_meta": meta}
        made = message(method, params, next(_ids) if id is None else id)
        extra = mirror_headers(made) if self.revision == NEWEST else {}
        return encode_http_request("POST", "/mcp", self.headers | extra, json.dumps(made).encode())

    def request(self, method: str, params: dict[str, Any] | None = None, id: Any = None, **meta: Any) -> Answer:
        """Send a request, and wait for the response."""
        return self.exchange(self.prepare(method, params, id, **meta))

    def call(self, tool: str, arguments: dict[str, Any] | None = None, id: Any = None, **meta: Any) -> Answer:
        """Call a tool."""
        return self.request("tools/call", {"name": tool, "arguments": arguments or {}}, id, **meta)

    def post(self, body: Any, **headers: str) -> Answer:
        """POST a message, or raw bytes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.exchange(encode_http_request("POST", "/mcp", self.headers | headers, data))

    def exchange(self, data: bytes) -> Answer:
        """Send bytes on the client's connection, and read one response."""
        fresh = self._connection is None
        connection = self.connection()
        try:
            connection.send(data)
            answer = connection.answer()
        except ConnectionError:
            self.close()
            if fresh:
                raise
            return self.exchange(data)  # the server had closed the idle connection
        if answer.headers.get("connection") == "close":
            self.close()
        return answer

    def connection(self) -> Connection:
        if self._connection is None:
            self._connection = Connection(self.target.port)
        return self._connection

    def send_only(self, data: bytes, **options: Any) -> Connection:
        """Send bytes on a new connection without reading the response."""
        connection = Connection(self.target.port, **options)
        connection.send(data)
        return connection

    def send_call(self, tool: str, arguments: dict[str, Any] | None = None, id: Any = None, **meta: Any) -> Connection:
        """Call a tool on a new connection without reading the response."""
        return self.send_only(self.prepare("tools/call", {"name": tool, "arguments": arguments or {}}, id, **meta))

    def listen(self, last: str | None = None) -> Connection:
        """Open the session's GET stream, or resume one."""
        headers = self.headers | ({"last-event-id": last} if last is not None else {})
        return self.send_only(encode_http_request("GET", "/mcp", headers))

    def end(self) -> Answer:
        """End the session."""
        return self.exchange(encode_http_request("DELETE", "/mcp", self.headers))

    def is_healthy(self) -> bool:
        """Return whether a call has the expected result."""
        return self.call("echo", {"text": "health"}).text == "health"

    def process_stats(self) -> dict[str, int]:
        return self.call("vitals").message["result"]["structuredContent"]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# stdio


class StdioClient:
    """A client of a target on standard streams."""

    def __init__(self, target: Target, revision: str = NEWEST) -> None:
        self.target = target
        self.revision = revision
        assert target.process.stdin is not None
        assert target.process.stdout is not None
        self._in = target.process.stdin
        self._out = target.process.stdout.fileno()
        os.set_blocking(self._out, False)
        self._poll = select.poll()
        self._poll.register(self._out, select.POLLIN)
        self._held = b""
        self._read: list[Any] = []
        if revision != NEWEST:
            about = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "lab", "version": "1"}}
            assert "result" in self.request("initialize", about)
            self.send(message("notifications/initialized"))

    def send(self, body: Any) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._in.write(data + b"\n")
        self._in.flush()

    def raw(self, data: bytes) -> None:
        self._in.write(data)
        self._in.flush()

    def prepare(self, method: str, params: dict[str, Any] | None = None, id: Any = None) -> dict[str, Any]:
        if self.revision == NEWEST:
            params = stateless_params(params)
        return message(method, params, next(_ids) if id is None else id)

    def request(self, method: str, params: dict[str, Any] | None = None, id: Any = None) -> Any:
        """Send a request, and wait for the response. Other messages are kept for `receive`."""
        made = self.prepare(method, params, id)
        self.send(made)
        return self.answer(made["id"])

    def call(self, tool: str, arguments: dict[str, Any] | None = None, id: Any = None) -> Any:
        return self.request("tools/call", {"name": tool, "arguments": arguments or {}}, id)

    def send_call(self, tool: str, arguments: dict[str, Any] | None = None, id: Any = None) -> Any:
        made = self.prepare("tools/call", {"name": tool, "arguments": arguments or {}}, id)
        self.send(made)
        return made["id"]

    def answer(self, id: Any, seconds: float = TIMEOUT_S) -> Any:
        """Wait for the response with this id."""
        kept: list[Any] = []
        try:
            while True:
                found = self.receive(seconds)
                if found.get("id") == id and type(found.get("id")) is type(id) and "method" not in found:
                    return found
                kept.append(found)
        finally:
            self._read[:0] = kept

    def receive(self, seconds: float = TIMEOUT_S) -> Any:
        """Return the next message in order of arrival."""
        end = time.monotonic() + seconds
        while not self._read:
            if not self._poll.poll(max(0.0, end - time.monotonic()) * 1000):
                raise TimeoutError("nothing came")
            data = os.read(self._out, 1 << 20)
            if not data:
                raise ConnectionError("the server closed its output")
            *lines, self._held = (self._held + data).split(b"\n") if b"\n" in data else [self._held + data]
            self._read += [json.loads(line) for line in lines]
        return self._read.pop(0)

    def unread_messages(self) -> list[Any]:
        """Return the messages that were received but not read."""
        kept, self._read = self._read, []
        return kept

    def is_healthy(self) -> bool:
        return self.call("echo", {"text": "health"})["result"]["content"][0]["text"] == "health"

    def process_stats(self) -> dict[str, int]:
        return self.call("vitals")["result"]["structuredContent"]

    def close(self) -> None:
        self._in.close()


# HTTP+SSE


class Sse2024Client:
    """A client of the HTTP+SSE transport of the first protocol version."""

    def __init__(
        self, target: Target, revision: str = "2024-11-05", path: str = "/sse", handshake: bool = True
    ) -> None:
        self.target = target
        self.revision = revision
        self._host = {"host": f"127.0.0.1:{target.port}"}
        self.reading = Connection(target.port)
        self.reading.send(encode_http_request("GET", path, self._host | {"accept": "text/event-stream"}))
        self.status, _ = self.reading.head()
        self._events = self.reading.stream()
        self.address = next(self._events)["data"]
        self._posts = Client(target)
        self._kept: list[Any] = []
        if handshake:
            about = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "lab", "version": "1"}}
            assert "result" in self.request("initialize", about)
            self.send(message("notifications/initialized"))

    def send(self, body: Any) -> Answer:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._posts.exchange(
            encode_http_request("POST", self.address, self._host | {"content-type": "application/json"}, data)
        )

    def receive(self) -> Any:
        return self._kept.pop(0) if self._kept else json.loads(next(self._events)["data"])

    def answer(self, id: Any) -> Any:
        kept: list[Any] = []
        try:
            while True:
                found = self.receive()
                if found.get("id") == id and type(found.get("id")) is type(id):
                    return found
                kept.append(found)
        finally:
            self._kept[:0] = kept

    def request(self, method: str, params: dict[str, Any] | None = None, id: Any = None) -> Any:
        made = message(method, params, next(_ids) if id is None else id)
        assert self.send(made).status == 202
        return self.answer(made["id"])

    def call(self, tool: str, arguments: dict[str, Any] | None = None, id: Any = None) -> Any:
        return self.request("tools/call", {"name": tool, "arguments": arguments or {}}, id)

    def unread_messages(self) -> list[Any]:
        kept, self._kept = self._kept, []
        return kept

    def is_healthy(self) -> bool:
        return self.call("echo", {"text": "health"})["result"]["content"][0]["text"] == "health"

    def close(self) -> None:
        self.reading.close()
        self._posts.close()
