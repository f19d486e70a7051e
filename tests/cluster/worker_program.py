"""A worker process for tests. It starts a back end and calls its methods for commands from standard input.

Arguments: the kind of the back end, its address, and the lifetime of a heartbeat. Each command and each reply is one
line of JSON.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from dovetail.cluster.local.local_backend import LocalBackend
from dovetail.cluster.redis import redis_link
from dovetail.cluster.redis.redis_backend import RedisBackend
from dovetail.protocol.interfaces.shared_state import Message, SharedStateUnavailable


class Listener:
    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.gaps = 0
        self.events: Any = None

    def receive(self, message: Message) -> None:
        self.bodies.append(message.body.decode("latin-1"))

    def handle_gap(self) -> None:
        self.gaps += 1


def fork_child() -> int:
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    return child


async def call(backend: Any, listener: Listener, method: str, args: list[Any], options: dict[str, Any]) -> Any:
    if method == "listener":
        return {"bodies": listener.bodies, "gaps": listener.gaps}
    if method == "use_many":  # Use the same IDs as other workers, as fast as possible.
        return [name for name in args[0] if await backend.use_once(name, args[1], 60)]
    if method == "fork":  # Leave a child process that outlives this worker, and has all its open files.
        return fork_child()
    if method == "read_first":  # Follow a stream, and return the number of its first event.
        listener.events = backend.follow(args[0], 0)
        return (await anext(listener.events)).number
    if method == "hold_place":
        return await backend.acquire(args[0], backend.worker, args[1], None)
    if method == "hold_lock":
        backend._database._connection.execute("PRAGMA busy_timeout = 10000")
        backend._database._connection.execute("BEGIN IMMEDIATE")
        return True
    args = [arg.encode("latin-1") if isinstance(arg, str) and index else arg for index, arg in enumerate(args)]
    options = {name: value.encode() if isinstance(value, str) else value for name, value in options.items()}
    try:
        result = await getattr(backend, method)(*args, **options)
    except SharedStateUnavailable as exc:
        return {"error": type(exc).__name__}
    return result if isinstance(result, bool | int | float | str | None) else repr(result)


async def main(kind: str, address: str, heartbeat_ttl: str) -> None:
    redis_link.HEARTBEAT_TTL_S = float(heartbeat_ttl)
    backend: Any = LocalBackend(Path(address)) if kind == "local" else RedisBackend(address, prefix="test")
    listener = Listener()
    await backend.start(listener)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2**20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    sys.stdout.write(json.dumps(backend.worker) + "\n")
    sys.stdout.flush()
    while line := await reader.readline():
        method, args, options = json.loads(line)
        sys.stdout.write(json.dumps(await call(backend, listener, method, args, options)) + "\n")
        sys.stdout.flush()
    await backend.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
