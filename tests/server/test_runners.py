"""Test running a server over each transport, in its own process, and how that process exits."""

import asyncio
import contextlib
import gc
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dovetail import Client, Server, ServerLimits
from dovetail.errors import MCPError
from dovetail.server.dispatch import lifecycle
from dovetail.server.runners import run_in_process
from dovetail.transports.duplex_server import DuplexServer
from dovetail.transports.http_server.endpoint import Endpoint
from support.mentions import values
from support.processes import run_process

PATIENCE = 30.0
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}

PROGRAM = """
import asyncio, json, os, sys, time
from contextlib import asynccontextmanager
from dovetail import Client, Server, ServerLimits
from dovetail.errors import MCPError
from dovetail.server.dispatch import lifecycle

@asynccontextmanager
async def lifespan():
    if "no-start" in sys.argv:
        raise ValueError("no database")
    sys.stderr.write("entered\\n")  # in one piece, for workers share it
    yield
    sys.stderr.write("left\\n")

short, long = dict(drain_timeout=0.2, shutdown_timeout=1.0), dict(drain_timeout=60.0, shutdown_timeout=120.0)
limits = ServerLimits(**(long if "patient" in sys.argv else short))
app = Server("served", lifespan=lifespan, limits=limits)

@app.tool
async def echo(text: str) -> str:
    print("a word in between")
    return text

@app.tool
async def forever() -> str:
    sys.stderr.write("waiting\\n")
    await asyncio.Event().wait()
    return "never"

@app.tool(run_in_thread=False)
def block() -> str:
    print("blocking", file=sys.stderr, flush=True)
    time.sleep(60)
    return "never"

@app.tool(run_in_thread=False)
def pid() -> int:
    return os.getpid()

@app.tool(run_in_thread=False)
def crash() -> None:
    os._exit(9)

async def within():
    await app.serve(sys.argv[1], **json.loads(sys.argv[2]))
    print("went on", file=sys.stderr, flush=True)

if "within" in sys.argv:
    asyncio.run(within())
else:
    app.run(sys.argv[1], **json.loads(sys.argv[2]))
"""


def call(name: str, id: Any = 1, **arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments, "_meta": META}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}


def line(message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"


def text(answer: Any) -> str:
    return answer["result"]["content"][0]["text"]


class Child:
    """A server in a process of its own."""

    def __init__(self, transport: str, *more: str, **options: Any) -> None:
        command = [sys.executable, "-c", PROGRAM, transport, json.dumps(options), *more]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
        self.heard: list[str] = []
        self._news = threading.Condition()
        self.ear = threading.Thread(target=self._listen, daemon=True)
        self.ear.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for raw in self.process.stderr:
            with self._news:
                self.heard.append(raw.decode().rstrip())
                self._news.notify_all()
        with self._news:
            self.heard.append("")
            self._news.notify_all()

    def hears(self, words: str) -> str:
        """The first line on stderr with these words."""
        found: list[str] = []

        def there() -> bool:
            found[:] = [one for one in self.heard if words in one]
            return bool(found) or self.heard[-1:] == [""]

        with self._news:
            assert self._news.wait_for(there, PATIENCE)
        assert found, self.heard
        return found[0]

    def send(self, *messages: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(map(line, messages)))
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def ends(self) -> int:
        return self.process.wait(PATIENCE)


@contextlib.contextmanager
def running(transport: str, *more: str, **options: Any) -> Iterator[Child]:
    child = Child(transport, *more, **options)
    try:
        yield child
    finally:
        child.process.kill()
        child.process.wait()
        child.ear.join(PATIENCE)
        for stream in (child.process.stdin, child.process.stdout, child.process.stderr):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


# Standard streams


def test_standard_streams_until_the_client_closes_them() -> None:
    with running("stdio") as child:
        child.send(call("echo", text="hello"))
        assert text(child.answer()) == "hello"
        child.hears("a word in between")
        child.close()
        assert child.ends() == 0
        child.hears("left")


def test_in_a_terminal_it_says_what_it_is_waiting_for() -> None:
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", PROGRAM, "stdio", "{}"]
    with run_process(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert b"MCP" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_standard_streams_until_a_signal_comes(number: signal.Signals) -> None:
    with running("stdio") as child:
        child.send(call("echo", text="hello"), call("forever", 2))
        assert text(child.answer()) == "hello"
        child.process.send_signal(number)
        assert child.ends() == 0
        child.hears("left")


@pytest.mark.parametrize("end", ["close", "signal"])
def test_a_blocked_server_ends_all_the_same(end: str) -> None:
    with running("stdio") as child:
        child.send(call("block"))
        child.hears("blocking")
        if end == "close":
            child.close()
        else:
            child.process.terminate()
        assert child.ends() == 0


def test_a_server_that_cannot_start_says_so() -> None:
    with running("stdio", "no-start") as child:
        assert child.ends() != 0
        child.hears("ValueError: no database")
        assert sum(one.startswith("Traceback") for one in child.heard) == 1


# HTTP


def address(child: Child) -> tuple[str, int]:
    told = child.hears("http://")
    host, _, port = told.split("//")[1].split("/")[0].partition(":")
    return host, int(port)


def post(child: Child, message: Any) -> Any:
    connection = http.client.HTTPConnection(*address(child), timeout=PATIENCE)
    headers = {
        "content-type": "application/json",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": message["method"],
        "mcp-name": message["params"]["name"],
    }
    try:
        connection.request("POST", "/mcp", json.dumps(message), headers)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def test_http_until_a_signal_comes() -> None:
    with running("http", port=0) as child:
        assert text(post(child, call("echo", text="hello"))) == "hello"
        assert address(child)[0] == "127.0.0.1"
        child.process.terminate()
        assert child.ends() == 0
        child.hears("left")


def test_a_blocked_http_server_ends_within_its_limit() -> None:
    with running("http", port=0) as child:
        blocked = threading.Thread(target=_quietly, args=(child,))
        blocked.start()
        child.hears("blocking")
        child.process.terminate()
        assert child.ends() == 75
        blocked.join(PATIENCE)


def _quietly(child: Child) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        post(child, call("block"))


@pytest.mark.parametrize("workers", [1, 2])
def test_an_http_server_that_cannot_start_says_so_and_ends(workers: int) -> None:
    options = {"workers": workers, "sessions": False} if workers > 1 else {}
    with running("http", "no-start", port=0, **options) as child:
        assert child.ends() not in (0, -signal.SIGKILL)
        child.hears("ValueError: no database")
        assert 1 <= sum(one.startswith("Traceback") for one in child.heard) <= workers
        assert not any("http://" in one for one in child.heard)


def test_several_workers_share_a_port_and_one_that_dies_is_replaced() -> None:
    with running("http", port=0, workers=2, sessions=False) as child:
        assert text(post(child, call("echo", text="hello"))) == "hello"
        before = workers_of(child, 2)
        assert int(text(post(child, call("pid")))) in before
        with contextlib.suppress(OSError, http.client.HTTPException):
            post(child, call("crash"))
        after = workers_of(child, 2, other_than=before)
        assert len(before & after) == 1
        (dead,), (new,) = before - after, after - before
        told = child.hears("code 9")
        assert str(dead) in told
        assert str(new) in told
        assert text(post(child, call("echo", text="still here"))) == "still here"
        child.process.terminate()
        assert child.ends() == 0
        assert not any(map(psutil.pid_exists, before | after))


def workers_of(child: Child, count: int, other_than: frozenset[int] = frozenset()) -> frozenset[int]:
    """The processes at work, once there are so many of them and they are others than before."""
    pause = threading.Event()
    for _ in range(1000):
        found = frozenset(one.pid for one in psutil.Process(child.process.pid).children())
        if len(found) == count and found != other_than:
            return found
        pause.wait(0.01)
    raise TimeoutError("the workers did not come")


# In a loop that is there already


def test_standard_streams_are_served_in_a_running_loop() -> None:
    with running("stdio", "within") as child:
        child.send(call("echo", text="hello"))
        assert text(child.answer()) == "hello"
        child.close()
        child.hears("left")
        child.hears("went on")
        assert child.ends() == 0


@pytest.mark.parametrize("transport", ["stdio", "http", "tcp"])
def test_a_signal_ends_what_is_served_in_a_running_loop(transport: str) -> None:
    with running(transport, "within", **({} if transport == "stdio" else {"port": 0})) as child:
        if transport == "http":
            assert text(post(child, call("echo", text="hello"))) == "hello"
        child.hears("entered" if transport == "stdio" else "127.0.0.1")
        if transport == "stdio":
            child.send(call("echo", text="hello"))
            assert text(child.answer()) == "hello"
        child.process.terminate()
        child.hears("left")
        child.hears("went on")
        assert child.ends() == 0


@pytest.mark.parametrize("transport", ["http", "tcp"])
async def test_serving_ends_when_it_is_cancelled(transport: str, capsys: pytest.CaptureFixture[str]) -> None:
    steps: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan() -> AsyncGenerator[None]:
        steps.append("entered")
        yield
        steps.append("left")

    app = Server("x", lifespan=lifespan)
    work = asyncio.create_task(app.serve(transport, port=0))
    async with asyncio.timeout(PATIENCE):
        while not steps or not (told := capsys.readouterr().err):  # noqa: ASYNC110 - it is announced to a person
            await asyncio.sleep(0.01)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    assert steps == ["entered", "left"]
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", int(told.rpartition(":")[2].partition("/")[0]))) != 0


async def test_a_failed_start_is_raised_by_serve(capsys: pytest.CaptureFixture[str]) -> None:
    @contextlib.asynccontextmanager
    async def lifespan() -> AsyncGenerator[None]:
        raise ValueError("no database")
        yield

    with pytest.raises(ValueError, match="no database"):
        await Server("x", lifespan=lifespan).serve("http", port=0)
    assert capsys.readouterr().err == ""


async def test_running_in_a_running_loop_says_what_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    for transport in ("stdio", "http"):
        with pytest.raises(RuntimeError, match=f'await app.serve\\("{transport}"'):
            Server("x").run(transport)
    assert capsys.readouterr().err == ""
    with pytest.raises(TypeError, match=values("serve", "workers")):
        await Server("x").serve("http", workers=2)
    with pytest.raises(ValueError, match="transport"):
        await Server("x").serve("sse")


# Sockets


@pytest.mark.skipif(sys.platform == "win32", reason="platform: no Unix sockets")
def test_a_unix_socket_until_a_signal_comes(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with running("unix", path=path) as child:
        child.hears("entered")
        with contextlib.closing(_connected(path)) as client:
            client.sendall(line(call("echo", text="hello")))
            assert text(json.loads(client.makefile("rb").readline())) == "hello"
            child.process.terminate()
            assert child.ends() == 0
            assert client.recv(10) == b""


def _connected(path: str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(PATIENCE)
    pause = threading.Event()
    for _ in range(1000):
        try:
            client.connect(path)
        except OSError:
            pause.wait(0.01)
        else:
            return client
    raise TimeoutError(path)


def test_a_tcp_port_until_a_signal_comes() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with running("tcp", port=port) as child:
        child.hears("entered")
        client = _dialled(port)
        with contextlib.closing(client):
            client.sendall(line(call("echo", text="hello")))
            assert text(json.loads(client.makefile("rb").readline())) == "hello"
        child.process.terminate()
        assert child.ends() == 0


def _dialled(port: int) -> socket.socket:
    pause = threading.Event()
    for _ in range(1000):
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        except OSError:
            pause.wait(0.01)
    raise TimeoutError(port)


# A second signal


def send_call_without_result(child: Child, transport: str, client: socket.socket) -> None:
    """Start a call that never ends."""
    body = json.dumps(call("forever"))
    if transport == "http":
        headers = (
            "host: localhost\r\ncontent-type: application/json\r\nmcp-protocol-version: 2026-07-28\r\n"
            f"mcp-method: tools/call\r\nmcp-name: forever\r\ncontent-length: {len(body)}\r\n"
        )
        client.sendall(f"POST /mcp HTTP/1.1\r\n{headers}\r\n{body}".encode())
    else:
        client.sendall(f"{body}\n".encode())
    child.hears("waiting")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("transport", ["http", "tcp", "unix"])
def test_a_second_signal_ends_the_calls(transport: str, number: signal.Signals, tmp_path: Path) -> None:
    options: dict[str, Any] = {"path": str(tmp_path / "s")} if transport == "unix" else {"port": 0}
    with running(transport, "patient", **options) as child:
        announcement = child.hears("served is at ")
        if transport == "unix":
            client = _connected(options["path"])
        else:
            client = _dialled(int(announcement.rpartition(":")[2].partition("/")[0]))
        with client:
            send_call_without_result(child, transport, client)
            child.process.send_signal(number)
            assert "second signal" in child.hears("is stopping")
            child.process.send_signal(number)
            assert child.ends() == 75
            child.hears("left")
            assert not any(one.startswith("Traceback") for one in child.heard)


@pytest.mark.parametrize("transport", ["http", "tcp"])
def test_a_second_signal_ends_the_calls_in_a_running_loop(transport: str) -> None:
    with running(transport, "patient", "within", port=0) as child:
        announcement = child.hears("served is at ")
        with _dialled(int(announcement.rpartition(":")[2].partition("/")[0])) as client:
            send_call_without_result(child, transport, client)
            child.process.terminate()
            assert "second signal" in child.hears("is stopping")
            child.process.terminate()
            child.hears("went on")
            assert child.ends() == 0


async def test_a_server_without_signal_handlers_does_not_mention_a_second_signal(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_QUIET_DRAIN_S", 0.01)
    app = Server("x", limits=ServerLimits(drain_timeout=0.02))
    started = asyncio.Event()

    @app.tool
    async def forever() -> None:
        started.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(PATIENCE), Client(app) as client:
        call_task = asyncio.create_task(client.call("forever"))
        await started.wait()
        await app.stop()
        with pytest.raises(MCPError):
            await call_task
    texts = [record.getMessage() for record in caplog.records if "is stopping" in record.getMessage()]
    assert len(texts) == 1
    assert f"(process {os.getpid()})" in texts[0]
    assert "signal" not in texts[0]


# In this process


@pytest.mark.parametrize("transport", ["", "carrier pigeon", "STDIO"])
def test_an_unknown_transport(transport: str) -> None:
    with pytest.raises(ValueError, match=r"'stdio', 'http', 'unix'.*'tcp'"):
        Server("any").run(transport)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.20", "example.com"])
def test_the_world_is_not_served_by_accident(host: str) -> None:
    with pytest.raises(ValueError, match="allow_anonymous=True"):
        Server("any").run("http", host=host)


def test_an_unknown_option_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="colour"):
        Server("any").run("stdio", colour="red")
    with pytest.raises(TypeError, match="colour"):
        Server("any").asgi(colour="red")  # pyright: ignore[reportCallIssue]


async def test_a_link_is_a_connection_over_anything() -> None:
    app, written = Server("any"), asyncio.Queue[bytes]()

    @app.tool
    async def echo(text: str) -> str:
        return text

    link = app.open_connection(written.put_nowait, principal="alice")
    assert isinstance(link, DuplexServer)
    link.receive(json.dumps(call("echo", text="hello")).encode())
    async with asyncio.timeout(PATIENCE):
        assert text(json.loads(await written.get())) == "hello"
    await link.close()


async def test_an_asgi_application_starts_and_stops_its_server() -> None:
    steps: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan() -> Any:
        steps.append("entered")
        yield
        steps.append("left")

    app = Server("any", lifespan=lifespan, limits=ServerLimits()).asgi(path="/tools")
    assert isinstance(app, Endpoint)
    coming = ["lifespan.startup", "lifespan.shutdown"]

    async def receive() -> dict[str, Any]:
        return {"type": coming.pop(0)}

    async def send(message: dict[str, Any]) -> None:
        steps.append(message["type"])

    await app({"type": "lifespan"}, receive, send)
    assert steps == ["entered", "lifespan.startup.complete", "left", "lifespan.shutdown.complete"]


async def test_a_signal_ends_serving_and_its_handler_is_put_back(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    work = asyncio.create_task(Server("x").serve("tcp", port=0))
    async with asyncio.timeout(PATIENCE):
        while not capsys.readouterr().err:  # noqa: ASYNC110 - it is announced to a person
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        await work
    assert signal.getsignal(signal.SIGTERM) is before


async def test_in_another_thread_signals_are_somebody_elses(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)

    async def inner() -> None:
        work = asyncio.create_task(Server("x").serve("tcp", port=0))
        async with asyncio.timeout(PATIENCE):
            while not capsys.readouterr().err:  # noqa: ASYNC110 - it is announced to a person
                await asyncio.sleep(0.01)
        assert signal.getsignal(signal.SIGTERM) is before
        work.cancel()
        await asyncio.wait([work])

    await asyncio.to_thread(asyncio.run, inner())
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(("first", "while_serving"), [(700, 5000), (2000, 5000), (50_000, 50_000), (0, 0)])
def test_garbage_is_collected_less_often_while_a_process_serves(first: int, while_serving: int) -> None:
    thresholds: list[tuple[int, int, int]] = []

    async def serve(*, watchdog: Any) -> None:
        thresholds.append(gc.get_threshold())

    previous = gc.get_threshold()
    try:
        gc.set_threshold(first, 10, 10)
        run_in_process(serve)
        assert thresholds[0][0] == while_serving
        assert gc.get_threshold()[0] == first
    finally:
        gc.set_threshold(*previous)
