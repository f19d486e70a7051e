"""The cases of the failure table, for two workers that reach Redis through proxies of the test."""

import asyncio
import contextlib
import json
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from cluster.history import History, find_violations
from cluster.load import open_clients
from cluster.raw_client import RawSession, open_session
from cluster.recorder import Recorder
from cluster.server_pool import Address, ServerPool, ServerProcess, run_servers
from dovetail.cluster.change_messages import CHANGE
from dovetail.cluster.redis.redis_backend import RedisBackend
from support.fake_issuer import Issuer
from support.redis_servers import RedisServer

# Cases in which callers see the same as in another case.
EQUAL_CASES = {"clock ahead": "slow", "newer release": "slow", "clock back": "restored", "evicted": "restored"}
SLOW_DELAY_S = 0.2
CLOCK_OFFSET_S = 25.0  # A token is accepted 30 seconds before it was issued, according to the clock of the receiver.
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
                group.create_task(self._copy(reader, server_writer, is_delayed=False))
                group.create_task(self._copy(server_reader, writer, is_delayed=True))
        finally:
            self._writers -= {writer, server_writer}

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_delayed: bool) -> None:
        loop, held = asyncio.get_running_loop(), deque[bytes]()

        def write_oldest() -> None:
            data = held.popleft()
            if not writer.is_closing():
                writer.write(data)

        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                delay = self.delay if is_delayed else 0.0
                if delay or held:  # Data must not overtake earlier data after the delay has ended.
                    held.append(data)
                    loop.call_later(delay, write_oldest)
                else:
                    writer.write(data)
        writer.transport.abort()


class FailingCluster:
    """Two workers of one server. The asker has the calls and streams, the receiver gets requests about them."""

    pool: ServerPool

    def __init__(self, case: str, redis: RedisServer, proxies: list[RedisProxy], folder: Path) -> None:
        self.case = case
        self.redis = redis
        self.proxies = proxies
        self.folder = folder
        self.issuer = Issuer()  # signs the access tokens of the feature "guarded"
        self.secret_keys = [secrets.token_urlsafe(32)]
        self.version_path = folder / "version.txt"  # the content of a cached resource of the feature "guarded"
        self.version_path.write_text("0")
        self.session: RawSession = None  # pyright: ignore[reportAttributeAccessIssue]
        self.began_at = 0.0
        self.ended_at = 0.0
        self._replica: RedisServer | None = None

    @property
    def redis_now(self) -> RedisServer:
        """Return the server that the workers use."""
        return self.proxies[1].server

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

    def get_server_options(self, features: Sequence[str]) -> dict[str, Any]:
        """Return the options of all workers."""
        return {
            "clusters": [proxy.url for proxy in self.proxies],
            "clock_offsets": [CLOCK_OFFSET_S if self.case == "clock ahead" else 0.0, 0.0],
            "secret_keys": self.secret_keys,
            "features": features,
            "jwks": self.issuer.jwks(),
            "version": str(self.version_path),
        }

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
                self.redis.kill()
                for number in range(2):
                    self.move_to_replica(number)
            case "restored":
                self.redis.kill()
                self.redis.start()
            case "killed":
                self.asker_process.kill()
            case "paused":
                self.asker_process.pause()
            case "partitioned":
                self.proxies[0].cut()
            case "clock back":
                self._move_clock_back()
            case "evicted":
                await self._evict_keys()
            case "newer release":
                await self._send_unknown_messages()
            case "clock ahead":
                pass
            case _:
                raise ValueError(self.case)

    async def wait_until_counted(self, prefix: str) -> None:
        """Wait until both workers know of each other: each has sent a heartbeat while the other was there."""
        with self.redis.connect() as connection:

            def read_heartbeats() -> dict[bytes, float]:
                return dict(connection.zrange(f"{{{prefix}}}:workers", 0, -1, withscores=True))

            await wait_until(lambda: len(read_heartbeats()) == 2)
            first = read_heartbeats()
            await wait_until(lambda: all(read_heartbeats()[name] > time for name, time in first.items()))

    def move_to_replica(self, worker: int) -> None:
        """Connect a worker with the replica, which has become a primary."""
        self.proxies[worker].server = self._required_replica
        self.proxies[worker].drop_connections()

    def _move_clock_back(self) -> None:
        """Write what Redis would contain after its clock was set back by an hour."""
        with self.redis.connect() as connection:
            for key in connection.scan_iter("*:epoch"):
                connection.hset(key, mapping={"since": time.time() + 3600, "checked_at": time.time() + 3600})

    async def _evict_keys(self) -> None:
        """Let Redis delete keys to save memory."""
        evicted = int(read_info(self.redis, "stats")["evicted_keys"])
        assert self.redis.execute("CONFIG", "SET", "maxmemory-policy", "allkeys-lru") == b"+OK"
        used = int(read_info(self.redis, "memory")["used_memory"])
        assert self.redis.execute("CONFIG", "SET", "maxmemory", str(used - 20_000)) == b"+OK"
        await wait_until(lambda: int(read_info(self.redis, "stats")["evicted_keys"]) > evicted)
        assert self.redis.execute("CONFIG", "SET", "maxmemory", "0") == b"+OK"

    async def _send_unknown_messages(self) -> None:
        """Send what a worker of the next release may send: kinds and fields that this release does not know."""
        for prefix in ("test", "guarded", "gateway"):
            backend = RedisBackend(self.redis.url, prefix=prefix, secret_keys=self.secret_keys)
            await backend.start(Recorder())
            await backend.publish("next.kind", b"\x00")
            change = {"method": "notifications/resources/updated", "uri": "item://next", "next": [1]}
            await backend.publish(CHANGE, b"\x01" + json.dumps(change).encode())
            for worker in await backend.list_workers():
                await backend.send(worker, "next.kind", b"{}")
            await backend.close()

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
async def run_case(case: str, folder: Path, features: Sequence[str] = ()) -> AsyncGenerator[FailingCluster]:
    """Run two workers with Redis, before the failure. `feature_servers.py` has the features."""
    async with contextlib.AsyncExitStack() as stack:
        redis = stack.enter_context(RedisServer(folder, "valkey", port=_find_port()))
        proxies = [RedisProxy(redis), RedisProxy(redis)]
        for proxy in proxies:
            await proxy.start()
            stack.push_async_callback(proxy.close)
        cluster = FailingCluster(case, redis, proxies, folder)
        servers = run_servers(folder, 2, **cluster.get_server_options(features))
        cluster.pool = await asyncio.to_thread(servers.__enter__)
        stack.callback(servers.__exit__, None, None, None)
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
