"""Test the proxy between a client and a server: it never changes bytes, and sends credentials only to their target."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from dovetail.protocol.interfaces.message_tap import Recorder
from dovetail.recording.recording_format import Frame, create_frame
from dovetail.recording.recording_proxy import RecordingProxy, proxy_streams
from dovetail.transports.http1.http_listener import bind_socket

pytestmark = pytest.mark.timeout(60)

Seen = list[tuple[str, dict[str, str]]]


@asynccontextmanager
async def served(application: Any) -> AsyncGenerator[int]:
    listener = bind_socket("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(application, log_level="critical", lifespan="off", ws="none"))
    task = asyncio.create_task(server.serve([listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def between(seen: Seen, tap: Recorder, query: str = "") -> AsyncGenerator[int]:
    async def far(scope: Any, receive: Any, send: Any) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        asked = scope["query_string"].decode()
        seen.append((scope["path"] + (f"?{asked}" if asked else ""), headers))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": b'{"far":1}'})

    async with served(far) as port:
        passing = RecordingProxy(f"http://127.0.0.1:{port}/mcp{query}", tap, [(b"authorization", b"Bearer mine")])
        try:
            async with served(passing) as here:
                yield here
        finally:
            await passing.close()


async def post(port: int, path: str, **headers: str) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    own = {"host": f"127.0.0.1:{port}", "content-type": "application/json", "content-length": "2"} | headers
    head = "".join(f"{name}: {value}\r\n" for name, value in own.items())
    writer.write(f"POST {path} HTTP/1.1\r\n{head}connection: close\r\n\r\n{{}}".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return int(answer.split(b" ", 2)[1]), answer.partition(b"\r\n\r\n")[2]


def ignore(*_: object) -> None:
    """Nothing is noted."""


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"host": "evil.example"}, 421), ({"origin": "http://evil.example"}, 403), ({"origin": "null"}, 403)],
)
async def test_a_foreign_page_does_not_get_through(headers: dict[str, str], status: int) -> None:
    seen: Seen = []
    async with between(seen, ignore) as port:
        assert (await post(port, "/mcp", **headers))[0] == status
        assert (await post(port, "/other", **headers))[0] == status
        assert (await post(port, "/mcp", origin=f"http://127.0.0.1:{port}"))[0] == 200
    assert len(seen) == 1


async def test_credentials_go_to_their_path_alone() -> None:
    seen: Seen = []
    async with between(seen, ignore, "?team=a") as port:
        await post(port, "/mcp", authorization="Bearer theirs")
        await post(port, "/mcp?team=b")
        await post(port, "/admin", authorization="Bearer theirs")
        await post(port, "/admin")
    assert [(path, headers.get("authorization")) for path, headers in seen] == [
        ("/mcp?team=a", "Bearer mine"),
        ("/mcp?team=b", "Bearer mine"),
        ("/admin", "Bearer theirs"),
        ("/admin", None),
    ]


async def test_cookies_of_the_server_stay_separate() -> None:
    cookies = [(b"set-cookie", b"a=1, 2"), (b"set-cookie", b"b=3")]

    async def far(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": cookies})
        await send({"type": "http.response.body"})

    async with served(far) as port:
        passing, sent = RecordingProxy(f"http://127.0.0.1:{port}/mcp", ignore), list[Any]()

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            if sent:
                await asyncio.Event().wait()
            return {"type": "http.request"}

        headers = [(b"host", b"127.0.0.1")]
        scope = {"type": "http", "method": "POST", "path": "/mcp", "query_string": b"", "headers": headers}
        await passing(scope, receive, send)
        await passing.close()
    assert [header for header in sent[0]["headers"] if header[0] == b"set-cookie"] == cookies


async def test_each_request_has_a_number_with_its_reply() -> None:
    told: list[Frame] = []
    async with between([], lambda to, data, headers: told.append(create_frame(0, to, data, headers))) as port:
        await asyncio.gather(post(port, "/mcp"), post(port, "/mcp"))
        await post(port, "/other")
    assert sorted((one.exchange or 0, one.to) for one in told) == [
        (1, "client"),
        (1, "server"),
        (2, "client"),
        (2, "server"),
    ]


async def test_streams_pass_from_what_cannot_be_polled(tmp_path: Any) -> None:
    told: list[tuple[str, bytes]] = []

    def note(to: str, data: bytes, _: object) -> None:
        told.append((to, data))

    (tmp_path / "said").write_bytes(b"one\ntwo\n")
    program = "import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)"
    source = os.open(tmp_path / "said", os.O_RDONLY)
    sink = os.open(tmp_path / "heard", os.O_WRONLY | os.O_CREAT)
    try:
        assert await proxy_streams([sys.executable, "-c", program], source, sink, note) == 0
    finally:
        os.close(source)
        os.close(sink)
    assert (tmp_path / "heard").read_bytes() == b"ONE\nTWO\n"
    assert told == [("server", b"one"), ("server", b"two"), ("client", b"ONE"), ("client", b"TWO")]


async def test_a_body_that_is_too_large_is_refused_before_it_is_read() -> None:
    seen: Seen = []
    async with between(seen, ignore) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head.encode())
        piece = b"100000\r\n" + bytes(0x100000) + b"\r\n"
        for _ in range(5):  # the body has no end
            writer.write(piece)
        assert (await reader.readline()).split()[1] == b"413"
        writer.close()
    assert not seen
