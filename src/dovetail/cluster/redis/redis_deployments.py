"""Read the deployments in a Redis server for operators.

A deployment is the group of workers that share a prefix and a server name.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import unquote

from dovetail.cluster.redis import redis_scripts as scripts
from dovetail.cluster.redis.redis_channel import RedisChannel
from dovetail.cluster.redis.redis_connection import (
    RedisAddress,
    build_deployment_prefix,
    close_client,
    import_redis,
    open_client,
)
from dovetail.cluster.redis.redis_link import HEARTBEAT_TTL_S
from dovetail.cluster.redis.redis_server_check import find_clock_problem, find_settings_problems
from dovetail.wire.base import Struct

_SCAN_COUNT: Final = 10_000  # the number of keys that Redis looks at in one step


class Deployment(Struct, frozen=True, kw_only=True):
    """The state of a server in Redis, with all its workers."""

    server: str  # the name of the server
    worker_count: int  # the number of workers that are alive
    epoch: str  # an ID that changes whenever Redis loses records
    since: float  # the Unix time at which `epoch` last changed
    is_confirmed: bool  # whether an operator has run `confirm-loss` since this epoch began


class RedisDeployments:
    """Reads and changes the deployments of one prefix."""

    def __init__(self, channel: RedisChannel, prefix: str) -> None:
        self._channel = channel
        self._prefix = prefix

    async def list_all(self) -> list[Deployment]:
        """Return all deployments, sorted by name. Redis scans all keys, which takes about a second per million keys."""
        prefix, servers, cursor = build_deployment_prefix(self._prefix, ""), set[str](), b"0"
        pattern = f"{{{_escape_pattern(prefix)}*}}:epoch"
        while True:
            cursor, keys = await self._channel.send("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT)
            names = [key.decode(errors="replace")[len(prefix) + 1 : -len("}:epoch")] for key in keys]
            servers.update(map(unquote, names))
            if cursor == b"0":
                break
        deployments = [await self.read(server) for server in sorted(servers)]
        return [deployment for deployment in deployments if deployment is not None]

    async def read(self, server: str) -> Deployment | None:
        """Return a deployment, or None if it does not exist."""
        epoch, since, confirmed, worker_count = await self._run(server, scripts.READ_DEPLOYMENT)
        if epoch is None:
            return None
        return Deployment(
            server=server,
            worker_count=worker_count,
            epoch=epoch.decode(),
            since=float(since or 0),
            is_confirmed=confirmed == epoch,
        )

    async def confirm_loss(self, deployment: Deployment) -> bool:
        """Accept single-use IDs from before the epoch of a deployment. Return False if a newer epoch has started."""
        return bool(await self._run(deployment.server, scripts.CONFIRM_LOSS, deployment.epoch))

    async def find_problems(self) -> list[str]:
        """Return a message for each problem with the settings or the clock of Redis."""
        problems = await find_settings_problems(self._channel)
        clock_problem = await find_clock_problem(self._channel)
        return problems if clock_problem is None else [*problems, clock_problem]

    async def _run(self, server: str, script: str, *args: Any) -> Any:
        key_prefix = f"{{{build_deployment_prefix(self._prefix, server)}}}:"
        return await self._channel.evaluate(script, key_prefix, HEARTBEAT_TTL_S, *args)


@asynccontextmanager
async def open_deployments(address: RedisAddress, prefix: str, timeout: float) -> AsyncGenerator[RedisDeployments]:
    """Connect to Redis.

    Raises:
        SharedStateUnavailable: Redis does not answer, or refuses a command.
        ImportError: redis-py is not installed.
    """
    await asyncio.to_thread(import_redis)
    client = open_client(address, timeout)
    channel = RedisChannel(client, timeout, lambda _: None)
    try:
        await channel.open()
        yield RedisDeployments(channel, prefix)
    finally:
        await channel.close()
        await close_client(client)


def _escape_pattern(text: str) -> str:
    """Return a pattern for SCAN that matches only this text."""
    return "".join(f"\\{character}" if character in "*?[]\\^-" else character for character in text)
