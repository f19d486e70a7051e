"""Test that the load generator accepts correct responses and stops at a wrong one."""

import os
import socket
import threading
from collections.abc import Callable, Generator
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

Respond = Callable[[dict[str, Any]], Any]


def answer_correctly(request: dict[str, Any]) -> Any:
    text = request["params"]["arguments"]["text"]
    return {"jsonrpc": "2.0", "id": request["id"], "result": {"content": [{"type": "text", "text": text}]}}


def _with(request: dict[str, Any], **changes: Any) -> Any:
    return answer_correctly(request) | changes


WRONG_ANSWERS: dict[str, Respond] = {
    "another id": lambda request: _with(request, id=request["id"] + 1000),
    "another text": lambda request: _with(request, result={"content": [{"type": "text", "text": "call number 0"}]}),
    "no content": lambda request: _with(request, result={}),
    "two contents": lambda request: _with(
        request, result={"content": answer_correctly(request)["result"]["content"] * 2}
    ),
    "an error result": lambda request: _with(request, result=answer_correctly(request)["result"] | {"isError": True}),
    "an error": lambda request: {"jsonrpc": "2.0", "id": request["id"], "error": {"code": 1, "message": "no"}},
    "another protocol": lambda request: _with(request, jsonrpc="1.0"),
    "not an object": lambda request: 7,
}


class PipeServer:
    """Two pipes, with a server that answers line by line in a thread."""

    def __init__(self, answer: Respond) -> None:
        source, to_server = os.pipe()
        from_server, sink = os.pipe()
        self.stdin = os.fdopen(to_server, "wb", 0)
        self.stdout = os.fdopen(from_server, "rb", 0)
        self._thread = threading.Thread(target=self._serve, args=(source, sink, answer))
        self._thread.start()

    def _serve(self, source: int, sink: int, answer: Respond) -> None:
        with os.fdopen(source, "rb") as lines, os.fdopen(sink, "wb", 0) as out:
            for line in lines:
                out.write(msgspec.json.encode(answer(msgspec.json.decode(line))) + b"\n")

    def close(self) -> None:
        self.stdin.close()
        self._thread.join(10)
        self.stdout.close()


@pytest.fixture
def start_pipe_server() -> Generator[Callable[[Respond], PipeServer]]:
    servers: list[PipeServer] = []

    def start(answer: Respond) -> PipeServer:
        servers.append(PipeServer(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def web() -> Generator[Callable[[Callable[[Any], bytes]], int]]:
    """Start a server for one kept-alive connection. The test passes the function that returns its responses."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def serve(respond: Callable[[Any], bytes]) -> None:
        connection, _ = listener.accept()
        with connection:
            received = b""
            while data := connection.recv(65536):
                received += data
                head, _, body = received.partition(b"\r\n\r\n")
                length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
                if len(body) == length:
                    received = b""
                    connection.sendall(respond(msgspec.json.decode(body)))

    def start(respond: Callable[[Any], bytes]) -> int:
        threads.append(threading.Thread(target=serve, args=(respond,)))
        threads[0].start()
        return listener.getsockname()[1]

    yield start
    for thread in threads:
        thread.join(10)
    listener.close()


def _json(message: Any, status: bytes = b"200 OK") -> bytes:
    body = msgspec.json.encode(message)
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


def _stream(message: Any) -> bytes:
    event = b"event: message\r\ndata: %s\r\n\r\n" % msgspec.json.encode(message)
    cut = len(event) // 2
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in (b": hi\r\n\r\n", event[:cut], event[cut:]))
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


@pytest.mark.parametrize("depth", [1, 8])
def test_right_answers_are_counted_on_pipes(bench: Any, start_pipe_server: Any, depth: int) -> None:
    load, request_kinds = bench("load"), bench("request_kinds")
    pipe_server = start_pipe_server(answer_correctly)
    pipes = load.Pipes(pipe_server.stdin, pipe_server.stdout, request_kinds.STATELESS)
    result = pipes.run(request_kinds.echo(), depth, load.Bounds(40, 10))
    assert 40 <= result.calls < 40 + depth
    assert (result.p50 is None) == (depth > 1)


@pytest.mark.parametrize("case", WRONG_ANSWERS)
def test_a_wrong_answer_on_pipes_ends_the_run(bench: Any, start_pipe_server: Any, case: str) -> None:
    load, request_kinds = bench("load"), bench("request_kinds")
    pipe_server = start_pipe_server(
        lambda request: (WRONG_ANSWERS[case] if request["id"] == 7 else answer_correctly)(request)
    )
    pipes = load.Pipes(pipe_server.stdin, pipe_server.stdout, request_kinds.STATELESS)
    with pytest.raises(request_kinds.WrongAnswer):
        pipes.run(request_kinds.echo(), 1, load.Bounds(40, 10))


@pytest.mark.parametrize("respond", [_json, _stream])
def test_right_answers_are_counted_over_http(bench: Any, web: Any, respond: Any) -> None:
    load, request_kinds = bench("load"), bench("request_kinds")
    client = load.Web(web(lambda request: respond(answer_correctly(request))), request_kinds.STATELESS, 1)
    assert client.run(request_kinds.echo(), load.Bounds(20, 10)).calls == 20
    client.close()


@pytest.mark.parametrize("respond", [_json, _stream])
@pytest.mark.parametrize("case", WRONG_ANSWERS)
def test_a_wrong_answer_over_http_ends_the_run(bench: Any, web: Any, case: str, respond: Any) -> None:
    load, request_kinds = bench("load"), bench("request_kinds")
    client = load.Web(web(lambda request: respond(WRONG_ANSWERS[case](request))), request_kinds.STATELESS, 1)
    with pytest.raises(request_kinds.WrongAnswer):
        client.run(request_kinds.echo(), load.Bounds(1, 10))
    client.close()


def test_another_status_ends_the_run(bench: Any, web: Any) -> None:
    load, request_kinds = bench("load"), bench("request_kinds")
    client = load.Web(web(lambda request: _json(answer_correctly(request), b"500 No")), request_kinds.STATELESS, 1)
    with pytest.raises(request_kinds.WrongAnswer):
        client.run(request_kinds.echo(), load.Bounds(1, 10))
    client.close()


@pytest.mark.parametrize("era", ["handshake", "stateless"])
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_our_own_server_passes(bench: Any, transport: str, era: str) -> None:
    request_kinds, load = bench("request_kinds"), bench("load")
    server_process, scenarios = bench("server_process"), bench("scenarios")
    server = server_process.ServerProcess("dovetail", server_process.ServerSettings(transport, tools=3, megabytes=0.1))
    try:
        revision = scenarios.ERAS[era]
        client = server.pipes(revision) if transport == "stdio" else server.web(revision, 2)
        client.open()
        at_once = (4,) if transport == "stdio" else ()
        for kind in (
            request_kinds.echo(),
            request_kinds.add(),
            request_kinds.list_tools(3),
            request_kinds.read_resource(0.1),
            request_kinds.echo_large(0.1),
        ):
            assert client.run(kind, *at_once, load.Bounds(8, 10)).calls >= 8
        assert server.cpu() > 0
        assert server.rss() > 0
        if transport == "http":
            client.close()
    finally:
        server.stop()


def test_the_picture_is_well_formed(bench: Any) -> None:
    drawn = bench("report").draw_chart(
        {"stdio-x64-stateless": {"dovetail": {"cpu_us": 10.0}, "mcp": {"cpu_us": 800.0}}}
    )
    assert "800.0" in {element.text for element in ElementTree.fromstring(drawn).iter()}
