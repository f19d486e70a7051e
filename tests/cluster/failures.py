"""The cases of the failure table, for two workers that reach Redis through proxies of the test."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

from cluster.history import History, find_violations
from cluster.load import open_clients
from cluster.raw_client import RawSession, open_session
from cluster.redis_servers import RedisServer
from cluster.server_pool import Address, ServerPool, ServerProcess, run_servers

SLOW_DELAY_S = 0.2
RECOVERY_S = 5.0  # after this time, everything works again
LOST_AFTER_S = 8.0  # after this time, the calls of a lost worker are reported


class RedisProxy:
    """A TCP address of Redis for one worker, which can be slow, refuse connections, or lead to another server."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.delay = 0.0
        self.is_open = True
        self._writers: set[asyncio.StreamWriter] = set()
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        self._listener = await asyncio.start_server(self._handle, "127.0.0.1", 0)

    @property
    def url(self) -> str:
        assert self._listener is not None
        return f"redis://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Close all connections, and refuse new ones."""
        self.is_open = False
        self.drop_connections()

    def drop_connections(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def close(self) -> None:
        assert self._listener is not None
        self._listener.close()
        self.drop_connections()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.is_open:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            server_reader, server_writer = await asyncio.open_unix_connection(self.server.path)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, server_writer}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._copy(reader, server_writer, 0.0))
                group.create_task(self._copy(server_reader, writer, 1.0))
        finally:
            self._writers -= {writer, server_writer}

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_factor: float) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if self.delay and delay_factor:
                    loop.call_later(self.delay, _write, writer, data)
                else:
                    writer.write(data)
        writer.transport.abort()


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    if not writer.is_closing():
        writer.write(data)


class FailingCluster:
    """Two workers of one server. The asker has the calls and streams, the receiver gets requests about them."""

    def __init__(
        self, case: str, redis: RedisServer, proxies: list[RedisProxy], pool: ServerPool, folder: Path
    ) -> None:
        self.case = case
        self.redis = redis
        self.proxies = proxies
        self.pool = pool
        self.folder = folder
        self.session: RawSession = None  # pyright: ignore[reportAttributeAccessIssue]
        self.began_at = 0.0
        self.ended_at = 0.0
        self._replica: RedisServer | None = None

    @property
    def asker_process(self) -> ServerProcess:
        return self.pool.workers[0]

    @property
    def asker(self) -> Address:
        return self.pool.addresses[0]

    @property
    def receiver(self) -> Address:
        return self.pool.addresses[1]

    @contextlib.asynccontextmanager
    async def open_session(self, name: str = "row", *addresses: Address) -> AsyncGenerator[RawSession]:
        """Open a session at random workers, or at one of these addresses."""
        async with open_session(addresses or self.pool.addresses, name) as session:
            yield session

    async def prepare(self) -> None:
        """Start the replica, if the case needs one."""
        if self.case == "failed over":
            folder = self.folder / "replica"
            folder.mkdir()
            self._replica = RedisServer(folder, "valkey")
            assert self._replica.execute("REPLICAOF", "127.0.0.1", str(self.redis.port)) == b"+OK"
            await wait_until(lambda: read_info(self._required_replica, "replication").get("master_link_status") == "up")

    async def take_snapshot(self) -> None:
        """Keep the data of this moment for a replica or a restart. Later writes will be lost."""
        if self.case == "failed over":
            offset = read_info(self.redis, "replication")["master_repl_offset"]
            await wait_until(lambda: read_info(self._required_replica, "replication")["slave_repl_offset"] >= offset)
            assert self._required_replica.execute("REPLICAOF", "NO", "ONE") == b"+OK"
        elif self.case == "restored":
            assert self.redis.execute("SAVE") == b"+OK"

    @property
    def _required_replica(self) -> RedisServer:
        assert self._replica is not None
        return self._replica

    async def begin(self) -> None:
        """Cause the failure."""
        self.began_at = time.monotonic()
        match self.case:
            case "away":
                for proxy in self.proxies:
                    proxy.cut()
            case "slow":
                for proxy in self.proxies:
                    proxy.delay = SLOW_DELAY_S
            case "full":
                assert self.redis.execute("CONFIG", "SET", "maxmemory", "1") == b"+OK"
            case "flushed":
                assert self.redis.execute("FLUSHALL") == b"+OK"
            case "failed over":
                for proxy in self.proxies:
                    proxy.server = self._required_replica
                self.redis.kill()
                for proxy in self.proxies:
                    proxy.drop_connections()
            case "restored":
                self.redis.kill()
                self.redis.start()
            case "killed":
                self.asker_process.kill()
            case "paused":
                self.asker_process.pause()
            case "partitioned":
                self.proxies[0].cut()
            case _:
                raise ValueError(self.case)

    async def end(self) -> None:
        """End the failure."""
        match self.case:
            case "away" | "partitioned":
                for proxy in self.proxies:
                    proxy.is_open = True
            case "slow":
                for proxy in self.proxies:
                    proxy.delay = 0.0
            case "full":
                assert self.redis.execute("CONFIG", "SET", "maxmemory", "0") == b"+OK"
            case "killed":
                await asyncio.to_thread(self.asker_process.restart)
            case "paused":
                self.asker_process.resume()
            case _:
                pass
        self.ended_at = time.monotonic()

    async def wait_for_recovery(self) -> None:
        await asyncio.sleep(max(0.0, self.ended_at + RECOVERY_S - time.monotonic()))

    def close(self) -> None:
        if self._replica is not None:
            self._replica.close()


@contextlib.asynccontextmanager
async def run_case(case: str, folder: Path) -> AsyncGenerator[FailingCluster]:
    """Run two workers with Redis, before the failure."""
    redis = RedisServer(folder, "valkey", port=_find_port())
    proxies = [RedisProxy(redis), RedisProxy(redis)]
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(redis.close)
        for proxy in proxies:
            await proxy.start()
            stack.push_async_callback(proxy.close)
        servers = run_servers(folder, 2, clusters=[proxy.url for proxy in proxies])
        pool = await asyncio.to_thread(servers.__enter__)
        stack.callback(servers.__exit__, None, None, None)
        cluster = FailingCluster(case, redis, proxies, pool, folder)
        stack.callback(cluster.close)
        await cluster.prepare()
        cluster.session = await stack.enter_async_context(cluster.open_session())
        await cluster.take_snapshot()
        yield cluster


def read_info(server: RedisServer, section: str) -> dict[str, str]:
    """Return the values of a section of INFO."""
    return dict(line.split(":", 1) for line in server.read("INFO", section).split("\r\n") if ":" in line)


def _find_port() -> int:
    from cluster.server_pool import find_free_ports

    return find_free_ports(1)[0]


async def check_recovery(cluster: FailingCluster, count: int = 100) -> None:
    """Check that calls, questions and notices succeed at random workers, each at the first attempt."""
    history = History()
    async with open_clients(cluster.pool.addresses, history, 4, repeats=False) as clients:
        for number in range(count):
            client, other = clients[number % 4], clients[(number + 1) % 4]
            await client.echo()
            await client.ask()
            uri = f"item://recovery.{number}"
            await client.subscribe(uri)
            await other.touch(uri)
            assert await client.wait_for_notice(uri), f"notice {number} of {count} did not arrive"
    effects = {key: value for key, value in cluster.pool.read_effects().items() if key[0][0] == "c"}
    assert find_violations(history, effects) == []
    assert history.count("answered") == 4 * count


async def wait_until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def repeat_until(attempt: Callable[[], Awaitable[bool]], seconds: float) -> bool:
    """Repeat an attempt until it succeeds. Return False if it does not within the time."""
    deadline = time.monotonic() + seconds
    while not await attempt():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True
