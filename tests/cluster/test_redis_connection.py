"""Addresses of Redis servers, and connections with passwords, TLS, Sentinel and a bad network."""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from cluster.conftest import LIFETIME_S, Start
from cluster.recorder import wait_for, wait_until
from dovetail.cluster.redis.redis_connection import RedisAddress, parse_redis_url
from dovetail.protocol.interfaces.shared_state import MAX_MESSAGE_BYTES, HistoryLost, SharedStateUnavailable
from support.certificates import write_certificate
from support.redis_servers import VALKEY, RedisServer, make_epoch_older

RECOVERY_S = 5.0


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://host", RedisAddress(hosts=(("host", 6379),))),
        ("redis://host:1/2", RedisAddress(hosts=(("host", 1),), database=2)),
        ("redis://[::1]:1", RedisAddress(hosts=(("::1", 1),))),
        (
            "rediss://user:p%40ss@host?ca_file=/ca.pem",
            RedisAddress(hosts=(("host", 6379),), username="user", password="p@ss", uses_tls=True, ca_file="/ca.pem"),
        ),
        ("unix:///run/redis.sock?db=3", RedisAddress(path="/run/redis.sock", database=3)),
        ("unix://:pass@/run/redis.sock", RedisAddress(path="/run/redis.sock", password="pass")),
        (
            "redis+sentinel://:pass@a,b:7/main/1?sentinel_password=word",
            RedisAddress(
                hosts=(("a", 26379), ("b", 7)),
                password="pass",
                database=1,
                sentinel_service="main",
                sentinel_password="word",
            ),
        ),
    ],
)
def test_a_url_is_parsed(url: str, address: RedisAddress) -> None:
    assert parse_redis_url(url) == address


@pytest.mark.parametrize(
    "url",
    [
        "http://:secret@host",
        "redis://:secret@",
        "redis://:secret@host/name",
        "redis://:secret@host?timeout=1",
        "redis+sentinel://:secret@host",
        "redis://:secret@host:port",
    ],
)
def test_an_invalid_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        parse_redis_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("port", ["port", "99999", "-1"])
def test_an_invalid_port_is_named(port: str) -> None:
    with pytest.raises(ValueError, match=f"Redis URL.*'{port}'"):
        parse_redis_url(f"redis://:secret@host:{port}")


def test_the_text_of_an_address_has_no_password() -> None:
    assert str(parse_redis_url("rediss://user:secret@host:1/0")) == "rediss://host:1"
    assert str(parse_redis_url("redis+sentinel://:secret@a,b/main?sentinel_password=secret")).endswith("/main")


async def test_a_password_is_needed(start: Start, redis_server: RedisServer) -> None:
    redis_server.execute("CONFIG", "SET", "requirepass", "open sesame")
    with pytest.raises(SharedStateUnavailable):
        await start()
    backend, _ = await start(redis_server.url.replace("unix://", "unix://:open%20sesame@"))
    await backend.write("a", b"x", 60)


class Proxy:
    """A TCP server in front of a Redis server, which can delay or drop everything, and can add TLS."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.delay = 0.0
        self.is_cut = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, tls: ssl.SSLContext | None = None) -> int:
        self._server = await asyncio.start_server(self._handle, "127.0.0.1", 0, ssl=tls)
        return self._server.sockets[0].getsockname()[1]

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        server_reader, server_writer = await asyncio.open_unix_connection(self._path)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._copy(reader, server_writer, self.delay))
            group.create_task(self._copy(server_reader, writer, 0.0))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if self.delay:
                    await asyncio.sleep(delay)
                if not self.is_cut:
                    writer.write(data)
                    await writer.drain()
        writer.close()

    async def close(self) -> None:
        """Stop. The connections end with their clients."""
        self._server.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
async def proxy(redis_server: RedisServer) -> AsyncGenerator[Proxy]:
    proxy = Proxy(redis_server.path)
    yield proxy
    await proxy.close()


async def test_tls_needs_a_known_certificate(start: Start, proxy: Proxy, tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    port = await proxy.open(tls)
    with pytest.raises(SharedStateUnavailable):
        await start(f"rediss://127.0.0.1:{port}")
    with pytest.raises(SharedStateUnavailable):  # The certificate is for another name.
        await start(f"rediss://localhost:{port}?ca_file={certificate}")
    backend, recorder = await start(f"rediss://127.0.0.1:{port}?ca_file={certificate}", timeout=5)
    await backend.publish("change", b"x")
    await wait_until(lambda: recorder.bodies == [b"x"])
    await backend.close()


async def test_a_slow_server_is_only_slow(start: Start, proxy: Proxy) -> None:
    port = await proxy.open()
    proxy.delay = 0.2
    backend, recorder = await start(f"redis://127.0.0.1:{port}", timeout=2)
    started = time.monotonic()
    assert await backend.write("a", b"x", 60) is not None
    assert time.monotonic() - started >= 0.2
    await asyncio.gather(*(backend.take("caller", 1000, 1000) for _ in range(20)))
    await backend.publish("change", b"")
    await wait_until(lambda: recorder.messages)
    assert backend.get_status().is_available
    await backend.close()


async def test_a_busy_worker_with_a_slow_server_is_not_lost(start: Start, proxy: Proxy) -> None:
    port = await proxy.open()
    proxy.delay = 0.2
    (backend, recorder), (observer, _) = await start(f"redis://127.0.0.1:{port}", timeout=2), await start()
    reads: list[asyncio.Task[object]] = []
    started = time.monotonic()
    while time.monotonic() - started < LIFETIME_S + 0.5:
        reads += [asyncio.ensure_future(backend.read("a")) for _ in range(25)]  # 500 in a second
        await asyncio.sleep(0.05)
        assert backend.worker in await observer.list_workers()
    assert set(await asyncio.gather(*reads)) == {None}
    assert recorder.gaps == 0
    await backend.close()


async def test_many_commands_wait_until_redis_has_answered_the_earlier_ones(start: Start) -> None:
    backend, _ = await start(timeout=5)
    assert set(await asyncio.gather(*(backend.read("a") for _ in range(4000)))) == {None}


async def test_commands_that_wait_too_long_fail(start: Start, proxy: Proxy) -> None:
    port = await proxy.open()
    backend, _ = await start(f"redis://127.0.0.1:{port}", timeout=1)
    proxy.is_cut = True
    started = time.monotonic()
    reads = [asyncio.ensure_future(backend.read("a")) for _ in range(3000)]
    await asyncio.wait(reads)
    assert time.monotonic() - started < 2.5
    assert all(isinstance(read.exception(), SharedStateUnavailable) for read in reads)
    proxy.is_cut = False
    await wait_until(lambda: backend.get_status().is_available, RECOVERY_S)
    assert await backend.read("a") is None
    await backend.close()


async def test_commands_with_too_many_bytes_are_refused_at_once(start: Start, redis_server: RedisServer) -> None:
    backend, _ = await start(timeout=5)
    redis_server.pause()
    writes = [asyncio.ensure_future(backend.write("a", bytes(MAX_MESSAGE_BYTES), 60)) for _ in range(5)]
    await asyncio.wait(writes, timeout=0.5)
    assert [write.done() for write in writes] == [False, False, False, True, True]
    assert isinstance(writes[-1].exception(), SharedStateUnavailable)
    redis_server.resume()
    assert None not in await asyncio.gather(*writes[:3])


@pytest.mark.parametrize("steps", [0, 1])
async def test_a_blocked_event_loop_does_not_make_the_server_away(start: Start, steps: int) -> None:
    """The commands could not be sent, or the replies are there, but nobody could read them."""
    backend, _ = await start(timeout=0.2)
    reads = [asyncio.ensure_future(backend.read("a")) for _ in range(3)]
    for _ in range(steps):
        await asyncio.sleep(0)
    time.sleep(1.3)  # noqa: ASYNC251
    assert await asyncio.gather(*reads) == [None, None, None]
    await asyncio.sleep(1.3)
    assert backend.get_status().problem is None


async def test_a_partitioned_worker_misses_nothing(start: Start, proxy: Proxy) -> None:
    port = await proxy.open()
    (backend, recorder), (other, _) = await start(f"redis://127.0.0.1:{port}"), await start()
    assert await other.send(backend.worker, "answer", b"before")
    await wait_until(lambda: recorder.messages)
    proxy.is_cut = True
    await wait_until(lambda: not backend.get_status().is_available)
    await other.publish("change", b"during")
    proxy.is_cut = False
    await wait_until(lambda: b"during" in recorder.bodies, RECOVERY_S)
    await wait_until(lambda: backend.get_status().is_available, RECOVERY_S)
    assert recorder.gaps == 0
    await backend.close()


def find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def replicated(tmp_path: Path) -> Generator[tuple[RedisServer, RedisServer, int]]:
    """Yield a primary, its replica, and the port of a Sentinel that watches both."""
    folders = [tmp_path / name for name in ("p", "r", "s")]
    for folder in folders:
        folder.mkdir()
    primary_port, sentinel_port = find_port(), find_port()
    config = folders[2] / "sentinel.conf"
    config.write_text(
        f"port {sentinel_port}\nbind 127.0.0.1\ndir {folders[2]}\nunixsocket {folders[2]}/redis.sock\n"
        f"sentinel monitor main 127.0.0.1 {primary_port} 1\nsentinel down-after-milliseconds main 300\n"
        "sentinel failover-timeout main 2000\n",
        encoding="utf-8",
    )
    with (
        RedisServer(folders[0], "valkey", "--repl-diskless-sync-delay", "0", port=primary_port) as primary,
        RedisServer(folders[1], "valkey", "--replicaof", f"127.0.0.1 {primary_port}", port=find_port()) as replica,
        RedisServer(folders[2], command=[VALKEY, str(config), "--sentinel"]),
    ):
        yield primary, replica, sentinel_port


async def test_a_failover_keeps_data_and_distrusts_old_ids(
    start: Start, replicated: tuple[RedisServer, RedisServer, int]
) -> None:
    primary, replica, sentinel_port = replicated
    backend, recorder = await start(f"redis+sentinel://127.0.0.1:{sentinel_port}/main")
    make_epoch_older(primary)
    issued_at = time.time()
    assert await backend.use_once("id", issued_at, 60)
    assert await backend.write("a", b"x", 60) is not None
    await wait_until(lambda: replica.execute("EXISTS", "{test}:epoch") == b":1")
    await wait_until(lambda: (replica.execute("DBSIZE") or b"") >= b":4")
    primary.kill()
    await wait_until(lambda: not backend.get_status().is_available)
    await wait_until(lambda: backend.get_status().is_available, 20)
    value = await backend.read("a")
    assert value is not None
    assert value.data == b"x"
    with pytest.raises(HistoryLost):
        await backend.use_once("another old id", issued_at, 60)
    await wait_until(lambda: recorder.gaps == 1)
    await backend.publish("change", b"after")
    await wait_for(lambda: _has(recorder.bodies, b"after"))


async def test_a_silent_sentinel_does_not_delay_a_worker(
    start: Start, replicated: tuple[RedisServer, RedisServer, int]
) -> None:
    _, _, sentinel_port = replicated
    with socket.socket() as silent:  # It accepts connections, and never answers.
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        started = time.monotonic()
        hosts = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:1,127.0.0.1:{sentinel_port}"
        backend, _ = await start(f"redis+sentinel://{hosts}/main", timeout=2)
        assert await backend.read("a") is None
        assert time.monotonic() - started < RECOVERY_S
        await backend.close()


async def test_replicas_without_a_required_number_are_reported(
    start: Start, replicated: tuple[RedisServer, RedisServer, int]
) -> None:
    primary, replica, _ = replicated
    await wait_until(lambda: count_replicas(primary, "connected_slaves") == 1)
    backend, _ = await start(primary.url)
    assert "min-replicas-to-write" in (backend.get_status().problem or "")
    await backend.close()
    primary.execute("CONFIG", "SET", "min-replicas-to-write", "1")
    primary.execute("CONFIG", "SET", "min-replicas-max-lag", "1")
    await wait_until(lambda: count_replicas(primary, "min_slaves_good_slaves") == 1)
    backend, _ = await start(primary.url)
    assert backend.get_status().problem is None
    assert await backend.use_once("id", time.time() + 3600, 60)
    replica.pause()  # The primary cannot know whether a replica has taken over.

    async def is_refused() -> bool:
        with contextlib.suppress(SharedStateUnavailable):
            await backend.use_once(str(time.time()), time.time() + 3600, 60)
            return False
        return True

    await wait_for(is_refused)
    await wait_until(lambda: not backend.get_status().is_available)
    await backend.close()


def count_replicas(server: RedisServer, field: str) -> int:
    with server.connect() as client:
        return client.info("replication").get(field, 0)


async def _has(bodies: list[bytes], body: bytes) -> bool:
    return body in bodies
