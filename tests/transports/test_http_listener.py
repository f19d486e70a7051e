"""Test our HTTP server: limits on connections, and its shutdown."""

import asyncio
import json
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import Unauthorized
from dovetail.protocol.exchange import IncomingExchange
from dovetail.protocol.limits import CallerBusy, ServerLimits
from dovetail.protocol.principal import Authenticator
from dovetail.transports import operator_log
from dovetail.transports.http1.http_listener import HTTPServer, bind_socket
from dovetail.transports.http1.tls_context import create_tls_context
from dovetail.transports.http_server.endpoint import Endpoint
from support.certificates import write_certificate
from support.fake_service import FakeService, PausedWork, mirror_headers, stateless_request, text_result, wait_until


class Site:
    """A running server, and connections to it."""

    def __init__(self, app: Endpoint, server: HTTPServer, port: int) -> None:
        self.app, self.server, self.port = app, server, port
        self.writers: list[asyncio.StreamWriter] = []
        self._stopping: asyncio.Task[None] | None = None

    def stop(self) -> asyncio.Task[None]:
        if self._stopping is None:
            self._stopping = asyncio.create_task(self.server.stop(self.app.close))
        return self._stopping

    async def connect(
        self, host: str = "127.0.0.1", *, small: bool = False
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        raw = socket.socket()
        if small:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, (host, self.port))
        reader, writer = await asyncio.open_connection(sock=raw, limit=4096 if small else 2**16)
        self.writers.append(writer)
        return reader, writer

    @property
    def connections(self) -> int:
        return self.server.connection_count


@asynccontextmanager
async def site(
    stand: FakeService | None = None,
    *,
    host: str = "127.0.0.1",
    authenticate: Authenticator | None = None,
    **options: Any,
) -> AsyncIterator[Site]:
    stand = stand or FakeService(**options)
    app = Endpoint(stand, authenticate=authenticate)
    listener = bind_socket(host, 0)
    server = HTTPServer(app, stand.limits)
    await server.start(listener)
    here = Site(app, server, listener.getsockname()[1])
    try:
        yield here
        for writer in here.writers:
            writer.close()
    finally:
        async with asyncio.timeout(20):
            await here.stop()


def head(message: Any, **extra: str) -> bytes:
    body = json.dumps(message).encode()
    headers = {
        "host": "localhost",
        "content-type": "application/json",
        "content-length": str(len(body)),
        **mirror_headers(message),
        **extra,
    }
    return ("POST /mcp HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())).encode()


def whole(message: Any, **extra: str) -> bytes:
    return head(message, **extra) + b"\r\n" + json.dumps(message).encode()


async def status(reader: asyncio.StreamReader) -> int:
    async with asyncio.timeout(10):
        return int((await reader.readline()).split()[1])


async def answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    found = await status(reader)
    async with asyncio.timeout(10):
        block = await reader.readuntil(b"\r\n\r\n")
        length = next(int(one.split(b":")[1]) for one in block.split(b"\r\n") if one.startswith(b"content-length"))
        return found, json.loads(await reader.readexactly(length) or b"null")


def read_all(client: socket.socket) -> None:
    while client.recv(65536):
        pass


async def closed(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(10):
        try:
            while await reader.read(65536):
                pass
        except ConnectionError:
            return


async def test_requests_follow_each_other_on_one_connection() -> None:
    async with site() as here:
        reader, writer = await here.connect()
        for text in ("a", "b", "c"):
            writer.write(whole(stateless_request(text=text)))
            found, message = await answer(reader)
            assert (found, message["result"]["content"][0]["text"]) == (200, text)


async def test_a_function_cannot_change_the_headers_of_a_request() -> None:
    async def change_headers(exchange: IncomingExchange) -> Any:
        headers: Any = exchange.headers
        with pytest.raises(TypeError):
            headers[b"host"] = b"evil.example"
        return text_result(headers[b"host"].decode())

    async with site(FakeService(change_headers)) as here:
        reader, writer = await here.connect()
        for _ in range(4):
            writer.write(whole(stateless_request(text="a")))
            found, message = await answer(reader)
            assert (found, message["result"]["content"][0]["text"]) == (200, "localhost")


async def test_each_request_with_the_same_headers_is_authenticated() -> None:
    callers: list[str | None] = ["ann", "ann", "ann"]

    async def authenticate(headers: Mapping[bytes, bytes]) -> str | None:
        if not callers:
            raise Unauthorized("the token has expired")
        return callers.pop()

    async with site(authenticate=authenticate) as here:
        reader, writer = await here.connect()
        statuses: list[int] = []
        for _ in range(4):
            writer.write(whole(stateless_request(text="a"), authorization="Bearer token"))
            statuses.append((await answer(reader))[0])
        assert statuses == [200, 200, 200, 401]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/mcp", 200),
        ("http://localhost/mcp", 200),
        ("HTTP://LocalHost/mcp", 200),
        ("http://evil.example/mcp", 400),
        ("http://localhost:1/mcp", 400),
        ("//localhost/mcp", 404),
        ("/%6dcp", 404),
        ("/mcp%2f", 404),
    ],
)
async def test_the_target_has_the_host_of_the_request_and_the_plain_path(target: str, expected: int) -> None:
    async with site() as here:
        reader, writer = await here.connect()
        writer.write(whole(stateless_request()).replace(b"POST /mcp ", f"POST {target} ".encode()))
        assert await status(reader) == expected


@pytest.mark.parametrize(
    ("version", "encoding", "expected"),
    [("1.1", "chunked", 200), ("1.1", "gzip, chunked", 501), ("1.0", "chunked", 400)],
)
async def test_a_chunked_body_has_no_other_encoding(version: str, encoding: str, expected: int) -> None:
    message = stateless_request()
    body = json.dumps(message).encode()
    lines = [one for one in head(message).split(b"\r\n") if one and not one.lower().startswith(b"content-length")]
    lines[0] = lines[0].replace(b"1.1", version.encode())
    lines.append(b"transfer-encoding: " + encoding.encode())
    async with site() as here:
        reader, writer = await here.connect()
        writer.write(b"\r\n".join(lines) + b"\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
        assert await status(reader) == expected


async def test_blanks_at_the_end_of_headers_do_not_count() -> None:
    async with site() as here:
        reader, writer = await here.connect()
        plain, _, body = whole(stateless_request()).partition(b"\r\n\r\n")
        first, *rest = plain.split(b"\r\n")
        writer.write(first + b"\r\n" + b"".join(one + b" \t\r\n" for one in rest) + b"\r\n" + body)
        assert await status(reader) == 200


async def test_a_head_in_many_pieces_is_a_head() -> None:
    async with site() as here:
        reader, writer = await here.connect()
        data = whole(stateless_request(text="a"))
        for start in range(0, len(data), 20):
            writer.write(data[start : start + 20])
            await writer.drain()
            await asyncio.sleep(0)
        assert (await answer(reader))[0] == 200


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"x-fine": "y" * 80}, 200),
        ({"x-long": "y" * 101}, 431),
        ({f"x-{number}": "y" * 80 for number in range(9)}, 431),
    ],
)
async def test_a_head_has_a_size(extra: dict[str, str], expected: int) -> None:
    async with site(max_header_bytes=100, max_header_block_bytes=800) as here:
        reader, writer = await here.connect()
        writer.write(whole(stateless_request(), **extra))
        assert await status(reader) == expected
        if expected != 200:
            await closed(reader)


async def test_a_head_that_never_ends_is_ended() -> None:
    async with site(max_header_block_bytes=1000) as here:
        reader, writer = await here.connect()
        writer.write(b"POST /mcp HTTP/1.1\r\n" + b"x-a: " + b"y" * 2000)
        assert await status(reader) == 431
        await closed(reader)


@pytest.mark.parametrize("sent", [b"", b"P", b"POST /mcp HTTP/1.1\r\nhost: localhost\r\n"])
async def test_a_head_has_a_time(sent: bytes) -> None:
    async with site(header_timeout=0.05) as here:
        reader, writer = await here.connect()
        writer.write(sent)
        assert await status(reader) == 408
        await closed(reader)


async def test_the_next_head_has_a_time_too() -> None:
    async with site(header_timeout=0.05) as here:
        reader, writer = await here.connect()
        writer.write(whole(stateless_request()))
        assert (await answer(reader))[0] == 200
        await asyncio.sleep(0.1)  # This is longer than the time for headers.
        writer.write(whole(stateless_request()))
        assert (await answer(reader))[0] == 200
        writer.write(b"POST /mcp")
        assert await status(reader) == 408


async def test_a_head_behind_a_request_has_a_time() -> None:
    async with site(header_timeout=0.05) as here:
        reader, writer = await here.connect()
        writer.write(whole(stateless_request()) + b"POST /mcp")
        assert (await answer(reader))[0] == 200
        assert await status(reader) == 408


async def test_a_head_behind_a_running_call_has_a_time() -> None:
    held = PausedWork()
    async with site(FakeService(held, header_timeout=0.05)) as here:
        reader, writer = await here.connect()
        writer.write(whole(stateless_request(text="a")))
        await wait_until(lambda: held.started)
        writer.write(b"POST /mcp")
        await asyncio.sleep(0.01)
        held.release("a")
        assert (await answer(reader))[0] == 200
        assert await status(reader) == 408


async def test_a_body_that_the_server_does_not_read_is_not_slow() -> None:
    """While a call runs, the server reads no body of a later request."""
    held = PausedWork()
    async with site(FakeService(held, body_timeout=0.05)) as here:
        reader, writer = await here.connect()
        later = whole(stateless_request(text="b"))
        writer.write(whole(stateless_request(text="a")) + later[:-5])
        await wait_until(lambda: held.started)
        writer.write(later[-5:])
        await asyncio.sleep(0.2)
        held.release("a")
        held.release("b")
        assert [(await answer(reader))[0] for _ in range(2)] == [200, 200]


@pytest.mark.parametrize("part", [0, 5])
async def test_a_body_has_a_time(part: int) -> None:
    async with site(body_timeout=0.05) as here:
        reader, writer = await here.connect()
        data = whole(stateless_request())
        writer.write(data[: data.index(b"\r\n\r\n") + 4 + part])
        assert await status(reader) == 408
        await closed(reader)


async def test_work_that_takes_long_is_not_a_slow_body() -> None:
    held = PausedWork()
    async with site(FakeService(held, body_timeout=0.02, header_timeout=0.02)) as here:
        reader, writer = await here.connect()
        writer.write(whole(stateless_request(text="a")))
        await wait_until(lambda: held.started)
        await asyncio.sleep(0.06)
        held.release("a")
        assert (await answer(reader))[0] == 200


async def test_a_client_that_does_not_read_is_dropped() -> None:
    async def work(exchange: IncomingExchange) -> Any:
        return text_result("x" * 8_000_000)

    async with site(FakeService(work, write_timeout=0.05)) as here:
        _, writer = await here.connect(small=True)
        writer.write(whole(stateless_request()))
        await wait_until(lambda: here.connections == 1)
        await wait_until(lambda: here.connections == 0)


@pytest.mark.parametrize(
    ("size", "write_timeout", "limit"),
    [(8_000_000, 0.04, "0.04 s (write_timeout)"), (300_000, 60.0, "0.05 s (idle_timeout)")],
    ids=["write timeout", "idle time"],
)
async def test_a_client_that_does_not_read_is_reset(
    size: int, write_timeout: float, limit: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(exchange: IncomingExchange) -> Any:
        return text_result("x" * size)

    async with site(FakeService(work, write_timeout=write_timeout, idle_timeout=0.05)) as here:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", here.port))
            client.sendall(whole(stateless_request()))
            await wait_until(lambda: here.connections == 1)
            await wait_until(lambda: here.connections == 0)
            with pytest.raises(ConnectionResetError):
                read_all(client)
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.args == ("127.0.0.1", limit)


async def test_a_client_that_reads_late_gets_its_whole_response() -> None:
    async def work(exchange: IncomingExchange) -> Any:
        return text_result("x" * 2_000_000)

    async with site(FakeService(work, write_timeout=5.0)) as here:
        reader, writer = await here.connect(small=True)
        writer.write(whole(stateless_request()))
        await asyncio.sleep(0.1)
        found, message = await answer(reader)
        assert (found, len(message["result"]["content"][0]["text"])) == (200, 2_000_000)


# Stopping


async def test_what_runs_is_finished_before_the_server_stops() -> None:
    held = PausedWork()
    async with site(FakeService(held)) as here:
        reader, writer = await here.connect()
        writer.write(whole(stateless_request(text="a")))
        await wait_until(lambda: held.started)
        here.stop()
        await asyncio.sleep(0)
        held.release("a")
        assert (await answer(reader))[0] == 200


async def test_a_request_that_is_not_all_here_is_sent_away_when_the_server_stops() -> None:
    async with site() as here:
        reader, writer = await here.connect()
        data = whole(stateless_request())
        writer.write(data[:-3])
        await wait_until(lambda: here.app.stats().buffered_bytes > 0)
        here.stop()
        await asyncio.sleep(0)
        assert await status(reader) == 503
        await closed(reader)


# Sockets


def test_a_port_that_is_taken_is_a_plain_error() -> None:
    with bind_socket("127.0.0.1", 0) as listener:
        with pytest.raises(OSError, match="Address already in use"):
            bind_socket("127.0.0.1", listener.getsockname()[1])
        with socket.create_connection(listener.getsockname(), timeout=10):
            pass  # The connection waits until the server accepts it.


@pytest.mark.usefixtures("ipv6")
def test_addresses_of_both_families() -> None:
    for host, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
        with bind_socket(host, 0) as listener:
            assert listener.family == family


@pytest.mark.usefixtures("ipv6")
@pytest.mark.parametrize(("name", "expected"), [("127.0.0.2", 200), ("127.0.0.3", 421)])
async def test_ipv6_sockets_accept_the_ipv4_address_of_the_connection(name: str, expected: int) -> None:
    async with site(host="::") as here:
        reader, writer = await here.connect("127.0.0.2")
        writer.write(whole(stateless_request(), host=f"{name}:{here.port}"))
        assert await status(reader) == expected


# Addresses of clients


@pytest.mark.parametrize(("proxies", "address"), [("", None), ("127.0.0.1", "203.0.113.9")])
async def test_a_forwarded_address_counts_only_from_a_named_proxy(
    proxies: str, address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", proxies)
    stand = FakeService()
    async with site(stand) as here:
        reader, writer = await here.connect()
        writer.write(whole(stateless_request(), **{"x-forwarded-for": "203.0.113.9"}))
        assert (await reader.readline()).split()[1] == b"200"
        assert (stand.seen[0].origin, stand.seen[0].client_address) == (address, address or "127.0.0.1")


# The rules of RFC 9112


def get(*lines: str, target: str = "/mcp", method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/1.1", "host: localhost", *lines, "", ""]).encode()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"GET /mcp HTTP/1.1\r\n\r\n", 400),
        (get("host: localhost"), 400),
        (get("content-length: 1", "content-length: 1"), 400),
        (get("content-length: 1", "transfer-encoding: chunked"), 400),
        (get("transfer-encoding: chunked", "transfer-encoding: chunked"), 400),
        (get("transfer-encoding: identity"), 501),
        (get("x-folded: a", " b"), 400),
        (get("x-space : a"), 400),
        (get("expect: something"), 417),
        (get(target="/mcp#part"), 400),
        (get(target="localhost:80", method="CONNECT"), 501),
        (get(target="*"), 400),
        (b"GET /mcp HTTP/2.0\r\nhost: localhost\r\n\r\n", 505),
        (b"GET /mcp HTTP/1.1\nhost: localhost\n\n", 400),
        (b"NONSENSE\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
    ],
)
async def test_a_request_that_breaks_the_rules_gets_a_reason_and_the_end(data: bytes, expected: int) -> None:
    async with site() as here:
        reader, writer = await here.connect()
        writer.write(data)
        assert await status(reader) == expected
        async with asyncio.timeout(10):
            headers, reason = (await reader.read()).split(b"\r\n\r\n")
        assert b"content-length: %d" % len(reason) in headers
        assert len(reason) > 20


@pytest.mark.parametrize(
    ("extra", "setting"),
    [("x-large: " + 9000 * "a", b"max_header_bytes"), (20000 * "a: b\r\n" + "a: b", b"max_header_block_bytes")],
)
async def test_headers_that_are_too_large_get_the_limit(extra: str, setting: bytes) -> None:
    async with site() as here:
        reader, writer = await here.connect()
        writer.write(get(extra))
        assert await status(reader) == 431
        async with asyncio.timeout(10):
            assert setting in await reader.read()


async def test_a_slow_head_gets_the_timeout() -> None:
    async with site(header_timeout=0.05) as here:
        reader, writer = await here.connect()
        writer.write(b"GET /mcp HTTP/1.1\r\n")
        assert await status(reader) == 408
        async with asyncio.timeout(10):
            assert b"header_timeout" in await reader.read()


async def refuse_token(headers: Mapping[bytes, bytes]) -> Any:
    raise Unauthorized("unknown token")


@pytest.mark.parametrize(
    ("data", "status_code", "level", "options"),
    [
        (b"NONSENSE\r\n\r\n", 400, logging.INFO, {}),
        (whole(stateless_request())[:-1] + b"x", 400, logging.INFO, {}),
        (whole(stateless_request(), **{"mcp-method": "tools/list"}), 400, logging.INFO, {}),
        (whole(stateless_request()).replace(b"mcp-method:", b"x-method:"), 400, logging.INFO, {}),
        (whole(stateless_request()).replace(b"2026-07-28", b"2031-01-01"), 400, logging.INFO, {}),
        (get(), 401, logging.INFO, {"authenticate": refuse_token}),
        (get("origin: https://attacker.example"), 403, logging.INFO, {}),
        (get(method="PUT"), 405, logging.INFO, {}),
        (b"GET /mcp HTTP/1.1\r\n", 408, logging.INFO, {"header_timeout": 0.05}),
        (head(stateless_request()) + b"\r\n{", 408, logging.INFO, {"body_timeout": 0.05}),
        (whole(stateless_request()), 413, logging.INFO, {"max_body_bytes": 10}),
        (whole(stateless_request(), **{"content-type": "text/plain"}), 415, logging.INFO, {}),
        (get().replace(b"localhost", b"attacker.example"), 421, logging.WARNING, {}),
        (get("x-large: " + 9000 * "a"), 431, logging.INFO, {}),
        (get().replace(b"1.1", b"2.0"), 505, logging.INFO, {}),
    ],
)
async def test_a_rejected_request_is_logged_with_its_address_once_a_minute(
    data: bytes,
    status_code: int,
    level: int,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "dovetail")
    monkeypatch.setattr(operator_log, "_rejection_lines", {})
    async with site(**options) as here:
        for _ in range(2):
            reader, writer = await here.connect()
            writer.write(data)
            assert await status(reader) == status_code
            writer.close()
    (record,) = [record for record in caplog.records if record.name == "dovetail"]
    assert isinstance(record.args, tuple)
    assert (record.levelno, *record.args[:2]) == (level, "127.0.0.1", status_code)


async def test_the_path_of_an_unknown_page_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dovetail")
    monkeypatch.setattr(operator_log, "_rejection_lines", {})
    async with site() as here:
        reader, writer = await here.connect()
        writer.write(get(target="/wp%0A" + 300 * "a"))
        assert (await answer(reader))[0] == 404
    (record,) = caplog.records
    assert isinstance(record.args, tuple)
    assert record.args[3] == "/wp\\n" + 195 * "a" + "\\u2026"


async def test_each_reason_of_a_status_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dovetail")
    monkeypatch.setattr(operator_log, "_rejection_lines", {})
    async with site() as here:
        for data in (get("host: localhost"), whole(stateless_request()).replace(b'"jsonrpc"', b"'jsonrpc'")):
            reader, writer = await here.connect()
            writer.write(data)
            assert await status(reader) == 400
            writer.close()
    assert len({record.args for record in caplog.records}) == 2


def test_the_number_of_logged_reasons_is_limited(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1000.0
    monkeypatch.setattr(operator_log, "_rejection_lines", {})
    monkeypatch.setattr("dovetail.log.time.monotonic", lambda: now)
    for number in range(100):
        operator_log.log_rejected_request(421, None, f"Host {number} is not allowed")
    assert len(caplog.records) == 9  # eight reasons, and one line for all others
    now += 61
    operator_log.log_rejected_request(421, None, "Host new is not allowed")
    assert caplog.records[-1].args == ("an unknown address", 421, "Host new is not allowed")
    assert len(operator_log._rejection_lines[421, ""]) == 1


async def test_a_busy_server_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(operator_log, "_rejection_lines", {})

    async def work(exchange: IncomingExchange) -> Any:
        raise CallerBusy("too many calls")

    async with site(FakeService(work)) as here:
        reader, writer = await here.connect()
        writer.write(whole(stateless_request()))
        assert (await answer(reader))[0] == 429
    (record,) = [record for record in caplog.records if record.name == "dovetail"]
    assert record.args == ("127.0.0.1", 429, "too many calls")


async def test_a_websocket_gets_a_reason() -> None:
    async with site() as here:
        reader, writer = await here.connect()
        writer.write(get("connection: upgrade", "upgrade: WebSocket"))
        found, message = await answer(reader)
        assert (found, "WebSocket" in message["error"]["message"]) == (400, True)


async def test_requests_before_an_invalid_one_are_answered() -> None:
    async with site() as here:
        reader, writer = await here.connect()
        writer.write(whole(stateless_request(text="a")) * 2 + b"NONSENSE\r\n\r\n")
        assert (await answer(reader))[0] == 200
        assert (await answer(reader))[0] == 200
        assert await status(reader) == 400
        await closed(reader)


async def test_pipelined_requests_are_answered_in_order() -> None:
    held = PausedWork()
    async with site(FakeService(held)) as here:
        reader, writer = await here.connect()
        writer.write(b"".join(whole(stateless_request(text=text)) for text in "abc"))
        await wait_until(lambda: held.started)
        for text in "abc":
            held.release(text)
        texts = [(await answer(reader))[1]["result"]["content"][0]["text"] for _ in range(3)]
        assert texts == ["a", "b", "c"]


async def test_thousands_of_upgrades_in_one_read_are_ignored() -> None:
    async with site() as here:
        reader, writer = await here.connect()
        writer.write(get("connection: upgrade", "upgrade: x", target="/live") * 3000 + b"NONSENSE\r\n\r\n")
        async with asyncio.timeout(20):
            response = await reader.read()
        assert response.count(b"HTTP/1.1 404") == 3000
        assert response.count(b"HTTP/1.1 400") == 1


@pytest.mark.parametrize("upgrade", ["h2c", "websocket"])
async def test_an_upgrade_is_ignored_and_the_body_is_read(upgrade: str) -> None:
    async with site() as here:
        reader, writer = await here.connect()
        extra = {"connection": "upgrade", "upgrade": upgrade}
        writer.write(whole(stateless_request(text="a"), **extra) + whole(stateless_request(text="b")))
        assert (await answer(reader))[1]["result"]["content"][0]["text"] == "a"
        assert (await answer(reader))[1]["result"]["content"][0]["text"] == "b"


async def test_a_client_that_expects_to_continue_is_asked_for_the_body() -> None:
    async with site() as here:
        reader, writer = await here.connect()
        data = whole(stateless_request(), expect="100-continue")
        end = data.index(b"\r\n\r\n") + 4
        writer.write(data[:end])
        assert await status(reader) == 100
        assert await reader.readline() == b"\r\n"
        writer.write(data[end:])
        assert (await answer(reader))[0] == 200


async def test_a_refused_expectation_ends_the_connection() -> None:
    async with site() as here:
        reader, writer = await here.connect()
        writer.write(head(stateless_request(), expect="100-continue").replace(b"/mcp", b"/other") + b"\r\n")
        assert await status(reader) == 404
        await closed(reader)


async def test_http_1_0_gets_an_answer_and_the_end() -> None:
    async with site() as here:
        reader, writer = await here.connect()
        writer.write(whole(stateless_request()).replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert (await answer(reader))[0] == 200
        await closed(reader)


async def test_a_head_request_has_no_body() -> None:
    async with site() as here:
        reader, writer = await here.connect()
        writer.write(get(method="HEAD") + whole(stateless_request()))
        assert await status(reader) == 405
        await reader.readuntil(b"\r\n\r\n")
        assert (await answer(reader))[0] == 200


async def test_chunk_extensions_are_limited_in_total() -> None:
    message = stateless_request()
    lines = [line for line in head(message).split(b"\r\n") if line and not line.startswith(b"content-length")]
    async with site(max_header_block_bytes=1000) as here:
        reader, writer = await here.connect()
        writer.write(b"\r\n".join(lines) + b"\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(10):
            writer.write(b"1;" + b"x" * 200 + b"\r\n \r\n")
            await writer.drain()
            await asyncio.sleep(0)
        assert await status(reader) == 431
        await closed(reader)


async def test_an_error_can_be_read_while_the_client_still_sends() -> None:
    async with site(max_header_block_bytes=1000) as here:
        reader, writer = await here.connect()
        writer.write(b"POST /mcp HTTP/1.1\r\nx-a: " + b"y" * 200_000)
        assert await status(reader) == 431


async def test_a_last_response_can_be_read_while_the_client_still_sends() -> None:
    async with site() as here:
        reader, writer = await here.connect()
        writer.write(whole(stateless_request(text="a"), connection="close") + whole(stateless_request(text="b")))
        writer.write(b"x" * 200_000)
        assert (await answer(reader))[0] == 200
        async with asyncio.timeout(10):
            assert await reader.read() == b""  # The connection is closed, and not reset.


async def test_half_a_connection_is_enough_for_an_answer() -> None:
    async with site() as here:
        reader, writer = await here.connect()
        writer.write(whole(stateless_request()))
        writer.write_eof()
        assert (await answer(reader))[0] == 200


async def test_an_idle_connection_is_closed() -> None:
    async with site(idle_timeout=0.02) as here:
        reader, writer = await here.connect()
        writer.write(whole(stateless_request()))
        assert (await answer(reader))[0] == 200
        await closed(reader)


# Other applications


async def close_writer(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def stream_application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    await receive()
    if scope["path"] == "/broken":
        raise ValueError("broken")
    if scope["path"] == "/cancelled":
        raise asyncio.CancelledError
    if scope["path"] == "/invalid":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"a\r\nb: c")]})
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": scope["path"].encode(), "more_body": True})
    if scope["path"] == "/cut":
        raise ValueError("cut")
    await send({"type": "http.response.body", "body": scope["query_string"]})


@asynccontextmanager
async def other_site(tls: Any = None, application: Any = stream_application, **limits: Any) -> AsyncIterator[int]:
    async with other_server(application, tls, **limits) as (_, port):
        yield port


@asynccontextmanager
async def other_server(application: Any, tls: Any = None, **limits: Any) -> AsyncIterator[tuple[HTTPServer, int]]:
    listener = bind_socket("127.0.0.1", 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    server = HTTPServer(application, ServerLimits(**limits), tls)
    await server.start(listener)
    try:
        yield server, listener.getsockname()[1]
    finally:
        await server.abort()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/a?b=c", b"transfer-encoding: chunked\r\n\r\n2\r\n/a\r\n3\r\nb=c\r\n0\r\n\r\n"),
        ("/broken", b"Internal Server Error"),
        ("/invalid", b"Internal Server Error"),
        ("/cancelled", None),
        ("/cut", None),
    ],
)
async def test_any_asgi_application_is_served(path: str, expected: bytes | None) -> None:
    async with other_site() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        async with asyncio.timeout(10):
            try:
                response = await reader.read()
            except ConnectionError:
                response = b""
        if expected is None:  # The response ends without its last chunk.
            assert b"0\r\n\r\n" not in response
        else:
            assert response.endswith(expected)
        await close_writer(writer)


async def test_a_cancelled_request_does_not_affect_other_clients() -> None:
    async with other_site() as port:
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
        for number, (_, writer) in enumerate(clients):  # All requests arrive in one iteration of the event loop.
            writer.write(get(target="/a" if number % 2 else "/cancelled"))
        assert [await status(reader) for reader, _ in clients[1::2]] == [200] * 5
        for reader, _ in clients[::2]:
            await closed(reader)
        for _, writer in clients:
            await close_writer(writer)


async def test_no_continue_is_sent_after_an_error() -> None:
    """A handler that reads the body after the server has rejected the request gets a disconnect."""
    started, may_read, messages = asyncio.Event(), asyncio.Event(), list[Any]()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            started.set()
            await may_read.wait()
            messages.append(await receive())

    async with other_site(application=application) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(get("expect: 100-continue", "transfer-encoding: chunked", method="POST"))
        await started.wait()
        writer.write(b"not a size\r\n")
        assert await status(reader) == 400
        may_read.set()
        await wait_until(lambda: messages)
        assert messages == [{"type": "http.disconnect"}]
        await close_writer(writer)


async def test_tls(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    async with other_site(create_tls_context(certificate, key)) as port:
        context = ssl.create_default_context(cafile=certificate)
        context.set_alpn_protocols(["h2", "http/1.1"])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        writer.write(b"GET /a HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert await status(reader) == 200
        await closed(reader)
        await close_writer(writer)


async def test_a_tls_handshake_has_a_time(tmp_path: Path) -> None:
    tls = create_tls_context(*write_certificate(tmp_path))
    async with other_site(tls, header_timeout=0.05) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await closed(reader)
        await close_writer(writer)


async def test_an_idle_client_over_tls_does_not_delay_a_stop(tmp_path: Path) -> None:
    """A client that keeps an idle connection does not read from it, so it does not answer the end of TLS."""
    certificate, key = write_certificate(tmp_path)
    context = ssl.create_default_context(cafile=certificate)

    def connect(port: int) -> ssl.SSLSocket:
        client = context.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="127.0.0.1")
        client.sendall(get(target="/a"))
        assert client.recv(20).startswith(b"HTTP/1.1 200")
        return client

    async def drain() -> None:
        pass

    tls = create_tls_context(certificate, key)
    async with other_server(stream_application, tls, drain_timeout=600) as (server, port):
        client = await asyncio.to_thread(connect, port)
        async with asyncio.timeout(60):
            await server.stop(drain)
        client.close()


# Clients that read slowly


async def send_large_body(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        size = int(scope["path"][1:])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(size)})


async def connect_small(port: int) -> socket.socket:
    """Return a client that reads only if the test reads."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
    return client


async def test_a_closed_connection_with_a_small_unread_rest_ends() -> None:
    async with other_server(send_large_body, write_timeout=0.05) as (server, port):
        with await connect_small(port) as client:
            await asyncio.get_running_loop().sock_sendall(client, get("connection: close", target="/50000"))
            await wait_until(lambda: server.connection_count == 1)
            await wait_until(lambda: server.connection_count == 0)


async def test_a_large_body_may_take_longer_than_the_write_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, timers = asyncio.get_running_loop(), list[Any]()
    call_later = loop.call_later

    def record_timer(delay: float, callback: Any, *arguments: Any, **options: Any) -> Any:
        timer = call_later(delay, callback, *arguments, **options)
        if delay == 12345.0:
            timers.append((timer, callback, arguments))
        return timer

    monkeypatch.setattr(loop, "call_later", record_timer)
    async with other_server(send_large_body, write_timeout=12345.0) as (server, port):
        with await connect_small(port) as client:
            await loop.sock_sendall(client, get(target="/8000000"))
            for number in range(3):
                await wait_until(lambda number=number: len(timers) > number)
                received = 0
                while received < 1_000_000:
                    received += len(await loop.sock_recv(client, 65536))
                timer, callback, arguments = timers[-1]
                timer.cancel()
                callback(*arguments)  # The timeout has passed.
                assert server.connection_count == 1
            _, callback, arguments = timers[-1]
            callback(*arguments)  # The client has read nothing since the last timeout.
            await wait_until(lambda: server.connection_count == 0)
