"""The connections of one worker to Redis: one for commands, one for large commands, and one for heartbeats.

While Redis does not answer, every command fails at once, so that callers do not wait for a timeout. A background task
tries to reach Redis at least every two seconds. Heartbeats have their own connection, so a worker with many commands
never counts as lost.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from dovetail.backoff import compute_backoff
from dovetail.cluster.envelope import NO_KEY_ID
from dovetail.cluster.redis import redis_scripts as scripts
from dovetail.cluster.redis.redis_channel import RedisChannel
from dovetail.cluster.redis.redis_connection import RedisAddress, RedisAway, close_client, open_client
from dovetail.cluster.redis.redis_server_check import (
    MAX_CLOCK_STEP_S,
    ClockReading,
    check_clock,
    check_server,
    compute_clock_step,
)
from dovetail.log import ThrottledLog, log
from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable
from dovetail.protocol.limits import KiB

HEARTBEAT_TTL_S: Final = 5.0  # A worker counts as lost if it sends no heartbeat for this time.
_HEARTBEATS_PER_TTL: Final = 3.3
_RETRY_DELAY_S: Final = 0.1
_MAX_RETRY_DELAY_S: Final = 2.0
_LARGE_BYTES: Final = 64 * KiB  # Other commands do not wait until a command above this size was sent.
_REFUSAL_SHOWN_S: Final = 10.0
_NOT_OPEN: Final = "the connection to Redis is not open"

# Called with the ID of a new epoch, the number of the newest change, and the ID of the newest change.
EpochCallback = Callable[[str, int, str], None]


class RedisLink:
    """Sends commands to Redis, and knows whether Redis answers."""

    def __init__(self, address: RedisAddress, prefix: str, timeout: float) -> None:
        self.address = address
        self.problem: str | None = _NOT_OPEN  # why Redis cannot be used, or None
        # why Redis refused a command in the last seconds, for example because it is full
        self.refusal: str | None = None
        self.settings_problem: str | None = None
        self.clock_problem: str | None = None
        self.key_problem: str | None = None  # why this worker cannot read the data of some workers
        self.worker_count = 1
        self._prefix = prefix
        self._key_ids: Sequence[str] = ()
        self._worker = ""
        self._timeout = timeout
        self._is_server_checked = False
        self._epoch: str | None = None
        self._refused_command = ""
        self._refused_at = 0.0
        self._warning = ThrottledLog()
        self._clock_warning = ThrottledLog()
        self._key_warning = ThrottledLog()
        self._task: asyncio.Task[None] | None = None

    @property
    def epoch(self) -> str:
        """Return the ID of the epoch that Redis reported last, or "" if it is not known."""
        return self._epoch or ""

    def create_client(self) -> None:
        """Create the object that opens connections. Each process and each event loop needs another one."""
        self._client = open_client(self.address, self._timeout)

    def create_channel(self, block_time: float = 0.0) -> RedisChannel:
        """Return another connection. Redis may wait for `block_time` before it replies to a command."""
        return RedisChannel(self._client, self._timeout + block_time, self.report_away)

    async def open(self, worker: str, key_ids: Sequence[str], start_epoch: EpochCallback, *, is_required: bool) -> None:
        """Connect to Redis and announce this worker. `key_ids` are the IDs of its secret keys, newest first.

        Raises:
            SharedStateUnavailable: Redis does not answer, or refuses this worker, and `is_required` is set.
        """
        self._worker = worker
        self._key_ids = key_ids
        self._start_epoch = start_epoch
        self._epoch = None
        self._last_beat: ClockReading | None = None
        self._retry_now = asyncio.Event()
        self._epoch_started = asyncio.Event()  # set and replaced when a new epoch starts
        self._commands, self._large_commands, self._heartbeats = (self.create_channel() for _ in range(3))
        try:
            await self._connect()
        except SharedStateUnavailable as exc:
            if is_required:
                await self._close_connections()
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
        if self.problem is None:
            # Redis handles this command after the last heartbeat, because both have the same connection.
            with contextlib.suppress(SharedStateUnavailable):
                await self.evaluate(self._heartbeats, scripts.LEAVE, self._worker)
        self.problem = _NOT_OPEN
        await self._close_connections()

    async def _close_connections(self) -> None:
        for channel in (self._commands, self._large_commands, self._heartbeats):
            await channel.close()
        await close_client(self._client)

    async def run(self, script: str, *args: Any) -> Any:
        """Run a script. Raise SharedStateUnavailable if Redis does not answer or refuses the script."""
        if self.problem is not None:
            raise SharedStateUnavailable(self.problem)
        channel = self._commands
        for arg in args:
            if arg.__class__ is bytes and len(arg) > _LARGE_BYTES:
                channel = self._large_commands
        try:
            reply = await self.evaluate(channel, script, *args)
        except SharedStateUnavailable as exc:
            self._report_failure(exc, script)
            raise
        if self.refusal is not None and self._refused_command == script:
            self.refusal = None
        return reply

    async def execute(self, *words: str | bytes | float) -> Any:
        """Run a single command. Raise the same errors as `run`."""
        if self.problem is not None:
            raise SharedStateUnavailable(self.problem)
        try:
            return await self._commands.send(*words)
        except SharedStateUnavailable as exc:
            self._report_failure(exc, "")
            raise

    def evaluate(self, channel: RedisChannel, script: str, *args: Any) -> Awaitable[Any]:
        """Run a script on a connection, even if Redis counts as away."""
        return channel.evaluate(script, self._prefix, HEARTBEAT_TTL_S, *args)

    def _report_failure(self, exc: SharedStateUnavailable, command: str) -> None:
        if isinstance(exc, RedisAway):
            self.report_away(exc)
        else:
            self._warning.log("%s", exc)
            self.refusal, self._refused_command, self._refused_at = str(exc), command, time.monotonic()

    def report_away(self, exc: SharedStateUnavailable) -> None:
        """Mark Redis as away until the next successful heartbeat."""
        if self.problem is None or self.problem == _NOT_OPEN:
            log.warning("%s is away. This worker continues without shared state: %s", self.address, exc)
            self._retry_now.set()
        self.problem = str(exc)

    def request_heartbeat(self) -> None:
        """Send the next heartbeat now. Its reply shows whether there is a new epoch."""
        self._retry_now.set()

    async def wait_for_epoch(self, epoch: str) -> None:
        """Wait until this worker knows an epoch that Redis has reported, at most as long as for a reply."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout):
                while epoch != self._epoch:
                    self.request_heartbeat()
                    await self._epoch_started.wait()

    async def _maintain(self) -> None:
        failures, task = 0, asyncio.current_task()
        # redis-py sometimes ignores that the task was cancelled.
        while task is not None and not task.cancelling():
            interval = HEARTBEAT_TTL_S / _HEARTBEATS_PER_TTL
            delay = interval if self.problem is None else compute_backoff(_RETRY_DELAY_S, failures, _MAX_RETRY_DELAY_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._retry_now.wait()
            self._retry_now.clear()
            try:
                await self._connect()
                failures = 0
            except Exception as exc:  # Without heartbeats, other workers would count this worker as lost.
                if not isinstance(exc, SharedStateUnavailable):
                    log.error("could not send a heartbeat to %s", self.address, exc_info=exc)
                    exc = SharedStateUnavailable(f"could not send a heartbeat: {exc!r}")
                self.report_away(exc)
                self._retry_now.clear()
                failures += 1

    async def _connect(self) -> None:
        """Open all connections if one of them was lost, and send a heartbeat."""
        channels = self._heartbeats, self._commands, self._large_commands
        if self.problem is not None:
            # After a failover, all of them must find the new primary.
            for error in await asyncio.gather(*(channel.open() for channel in channels), return_exceptions=True):
                if error is not None:
                    raise error
        if not self._is_server_checked:
            self.settings_problem = await check_server(self._heartbeats)
            self._is_server_checked = True
        epoch, number, position = await self._send_heartbeat()
        # A firewall may have dropped a connection that is not in use.
        await asyncio.gather(*(channel.send("PING") for channel in channels if not channel.is_busy))
        if self.problem is not None:
            if self.problem != _NOT_OPEN:
                log.info("%s answers again", self.address)
            self.problem = None
        self._update_epoch(epoch, number, position)  # Those who hear of a new epoch need Redis at once.

    async def _send_heartbeat(self) -> tuple[str, int, str]:
        """Return the epoch, the number of the newest change, and its ID."""
        sent_at = time.monotonic()
        checked = "" if self._last_beat is None else f"{self._last_beat.redis_time:.6f}"
        reply = await self.evaluate(
            self._heartbeats, scripts.BEAT, self._worker, create_id(), checked, self._key_ids[0]
        )
        beat = ClockReading(sent_at, time.monotonic(), float(reply[4]))
        step = 0.0 if self._last_beat is None else compute_clock_step(self._last_beat, beat)
        self._last_beat = beat
        if step > MAX_CLOCK_STEP_S:  # The jump made keys expire too early.
            log.warning("the clock of %s was set forward by %.0f seconds", self.address, step)
            await self.evaluate(self._heartbeats, scripts.START_EPOCH, create_id(), checked)
            reply = await self.evaluate(
                self._heartbeats, scripts.BEAT, self._worker, create_id(), reply[4], self._key_ids[0]
            )
        self.clock_problem = check_clock(beat.redis_time)
        if self.clock_problem is not None:
            self._clock_warning.log("%s", self.clock_problem)
        if time.monotonic() - self._refused_at > _REFUSAL_SHOWN_S:
            self.refusal = None
        self.worker_count = max(1, reply[3])
        self._check_keys({key_id.decode() for key_id in reply[5]})
        return reply[0].decode(), int(reply[1]), reply[2].decode()

    def _check_keys(self, key_ids: set[str]) -> None:
        """Compare the keys with which all workers encrypt with the keys of this worker."""
        unknown = key_ids.difference(self._key_ids)
        if not unknown:
            self.key_problem = None
            return
        if NO_KEY_ID in (*unknown, *self._key_ids):
            problem = "some workers have secret keys and others do not"
        else:
            problem = "another worker encrypts with a secret key that this worker does not have"
        self.key_problem = f"{problem}. Use the same secret keys on all machines"
        self._key_warning.log("%s: %s", self.address, self.key_problem)

    def _update_epoch(self, epoch: str, number: int, position: str) -> None:
        if epoch == self._epoch:
            return
        if self._epoch is not None:
            log.warning("%s was emptied, restarted or replaced, and may have lost shared state", self.address)
            self._is_server_checked = False
        self._epoch = epoch
        self._start_epoch(epoch, number, position)
        self._epoch_started.set()
        self._epoch_started = asyncio.Event()


def create_id() -> str:
    """Return a new random ID."""
    return os.urandom(9).hex()
