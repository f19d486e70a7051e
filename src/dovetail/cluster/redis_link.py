"""The connection of one worker to Redis. It sends commands and heartbeats, and reconnects if Redis does not answer.

While Redis does not answer, every command fails at once, so that callers do not wait for a timeout. A background task
tries to reach Redis at least every two seconds.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from dovetail.cluster import redis_scripts as scripts
from dovetail.cluster.redis_connection import RedisAddress, RedisAway, close_client, open_client, report_unavailable
from dovetail.cluster.redis_server_check import check_server
from dovetail.log import ThrottledWarning, log
from dovetail.protocol.backoff import compute_backoff
from dovetail.protocol.shared_state import SharedStateUnavailable

HEARTBEAT_TTL_S: Final = 5.0  # A worker counts as lost if it sends no heartbeat for this time.
_HEARTBEATS_PER_TTL: Final = 3.3
_RETRY_DELAY_S: Final = 0.1
_MAX_RETRY_DELAY_S: Final = 2.0
_MAX_COMMANDS: Final = 32  # the maximum number of commands that wait for Redis at once
_REFUSAL_SHOWN_S: Final = 10.0
_NOT_OPEN: Final = "the connection to Redis is not open"

# Called with the ID of a new epoch, the number of the newest change, and the ID of the newest change.
EpochCallback = Callable[[str, int, str], None]


class RedisLink:
    """Sends commands to Redis, and knows whether Redis answers."""

    def __init__(self, address: RedisAddress, prefix: str, timeout: float) -> None:
        self.address = address
        self.problem: str | None = _NOT_OPEN  # why Redis cannot be used, or None
        self.refusal: str | None = (
            None  # why Redis refused a command in the last seconds, for example because it is full
        )
        self.settings_problem: str | None = None
        self.worker_count = 1
        self._prefix = prefix
        self._worker = ""
        self._timeout = timeout
        self._is_server_checked = False
        self._epoch: str | None = None
        self._scripts: dict[str, Any] = {}
        self._refused_at = 0.0
        self._warning = ThrottledWarning()
        self._commands: set[asyncio.Task[Any]] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def epoch(self) -> str:
        """Return the ID of the epoch that Redis reported last, or "" if it is not known."""
        return self._epoch or ""

    async def open(self, worker: str, start_epoch: EpochCallback, *, is_required: bool) -> None:
        """Connect to Redis and announce this worker.

        Raises:
            SharedStateUnavailable: Redis does not answer, or refuses this worker, and `is_required` is set.
        """
        self._worker = worker
        self._start_epoch = start_epoch
        self._epoch = None
        self._scripts.clear()
        self._slots = asyncio.Semaphore(_MAX_COMMANDS)
        self._retry_now = asyncio.Event()
        self._client = open_client(self.address, self._timeout, _MAX_COMMANDS + 1)
        try:
            await self._send_heartbeat()
        except SharedStateUnavailable as exc:
            if is_required:
                await close_client(self._client)
                raise SharedStateUnavailable(f"cannot use {self.address}: {exc}") from exc
            self.report_away(exc)
        self._task = asyncio.get_running_loop().create_task(self._maintain())

    async def close(self) -> None:
        """Tell other workers that this worker has ended, and close the connections."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        self._task = None
        with contextlib.suppress(SharedStateUnavailable):
            await self.run(scripts.LEAVE, self._worker)
        self.problem = _NOT_OPEN
        if self._commands:
            await asyncio.wait(self._commands)
        await close_client(self._client)

    async def run(self, script: str, *args: Any) -> Any:
        """Run a script. Raise SharedStateUnavailable if Redis does not answer or refuses the script."""
        self._check_available()
        return await self._evaluate(script, *args)

    async def execute(self, name: str, *args: Any) -> Any:
        """Run a single command. Raise the same errors as `run`."""
        self._check_available()
        return await self._perform(self._client.execute_command(name, *args))

    def _check_available(self) -> None:
        if self.problem is not None:
            raise SharedStateUnavailable(self.problem)

    async def _evaluate(self, script: str, *args: Any) -> Any:
        registered = self._scripts.get(script)
        if registered is None:
            registered = self._scripts[script] = self._client.register_script(script)
        return await self._perform(registered(keys=[self._prefix], args=(HEARTBEAT_TTL_S, *args)))

    async def _perform(self, command: Coroutine[Any, Any, Any]) -> Any:
        """Run a command in its own task, so that the command finishes even if the caller is cancelled."""
        task = asyncio.get_running_loop().create_task(self._wait_for(command))
        self._commands.add(task)
        task.add_done_callback(self._finish_command)
        return await asyncio.shield(task)

    async def _wait_for(self, command: Coroutine[Any, Any, Any]) -> Any:
        async with self._slots:
            with report_unavailable():
                return await command

    def _finish_command(self, task: asyncio.Task[Any]) -> None:
        self._commands.discard(task)
        exc = None if task.cancelled() else task.exception()
        if isinstance(exc, RedisAway):
            self.report_away(exc)
        elif isinstance(exc, SharedStateUnavailable):
            self._warning.log("%s", exc)
            self.refusal, self._refused_at = str(exc), time.monotonic()

    def report_away(self, exc: SharedStateUnavailable) -> None:
        """Mark Redis as away until the next successful heartbeat."""
        if self.problem is None or self.problem == _NOT_OPEN:
            log.warning("%s is away. This worker continues without shared state: %s", self.address, exc)
            self._retry_now.set()
        self.problem = str(exc)

    async def _maintain(self) -> None:
        failures, task = 0, asyncio.current_task()
        # redis-py sometimes ignores that the task was cancelled.
        while task is not None and not task.cancelling():
            delay = HEARTBEAT_TTL_S / _HEARTBEATS_PER_TTL
            self._retry_now.clear()
            try:
                if self.problem is not None:
                    with report_unavailable():
                        await self._client.connection_pool.disconnect(inuse_connections=False)
                await self._send_heartbeat()
                failures = 0
            except SharedStateUnavailable as exc:
                self.report_away(exc)
                self._retry_now.clear()
                delay = compute_backoff(_RETRY_DELAY_S, failures, _MAX_RETRY_DELAY_S)
                failures += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._retry_now.wait()

    async def _send_heartbeat(self) -> None:
        if not self._is_server_checked:
            self.settings_problem = await self._perform(check_server(self._client))
            self._is_server_checked = True
        reply = await self._evaluate(scripts.BEAT, self._worker, create_id())
        if time.monotonic() - self._refused_at > _REFUSAL_SHOWN_S:
            self.refusal = None
        epoch = reply[0].decode()
        self.worker_count = max(1, reply[3])
        if self.problem is not None:
            if self.problem != _NOT_OPEN:
                log.info("%s answers again", self.address)
            self.problem = None
        if epoch != self._epoch:
            if self._epoch is not None:
                log.warning("%s was emptied, restarted or replaced, and may have lost shared state", self.address)
                self._is_server_checked = False
            self._epoch = epoch
            self._start_epoch(epoch, int(reply[1]), reply[2].decode())


def create_id() -> str:
    """Return a new random ID."""
    return os.urandom(9).hex()
