"""The connections of one event loop to the Redis task store: one for commands, and one that listens for changes.

Each changed task has a channel. The listener subscribes to the channels of the tasks that this event loop watches.
After a lost connection, it reports all watched tasks, because it may have missed changes.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection
from typing import Any, Final

from dovetail.backoff import compute_backoff
from dovetail.cluster.envelope import hash_name
from dovetail.cluster.redis.redis_channel import RedisChannel
from dovetail.cluster.redis.redis_connection import (
    RedisAddress,
    RedisAway,
    close_client,
    convert_error,
    open_client,
)
from dovetail.cluster.redis.redis_server_check import check_server, find_clock_problem
from dovetail.log import ThrottledLog, log, log_and_suppress
from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable
from dovetail.tasks.task_record import TaskStoreUnavailable, TaskUnreadable
from dovetail.tasks.task_store import TaskStoreFull

_MAX_COMMANDS: Final = 500  # At most this many commands wait for a reply. Other commands wait for their turn.
# If Redis cannot be reached, commands fail for this long without a new attempt to connect.
_REOPEN_DELAY_S: Final = 0.2
_RETRY_DELAY_S: Final = 0.1
_MAX_RETRY_DELAY_S: Final = 2.0
_READ_TIMEOUT_S: Final = 10.0  # how long one read waits for a message
_FORMAT_ERROR: Final = "TASKFORMAT "
_FULL_ERROR: Final = "maxmemory"

# A function that takes the ID of a task and its version. The version is None if the task was deleted or is not known.
ReportChange = Callable[[str, int | None], None]


class RedisTaskLink:
    """Runs the commands of one event loop, and listens for changes of watched tasks."""

    def __init__(self, address: RedisAddress, prefix: str, timeout: float, report: ReportChange) -> None:
        self._prefix = prefix
        self._client = open_client(address, timeout)
        self._channel = RedisChannel(self._client, timeout, self._handle_loss)
        self._slots = asyncio.Semaphore(_MAX_COMMANDS)
        self._open_lock = asyncio.Lock()
        self._is_open = False
        self._is_server_checked = False
        # The time and the error of the last failed connection.
        self._failure: tuple[float, SharedStateUnavailable] | None = None
        self._listener = _ChangeListener(self._client, prefix, report)

    async def run(self, script: str, *args: Any) -> Any:
        """Run a script.

        Raises:
            TaskStoreUnavailable: Redis does not answer, or has a newer format.
            TaskStoreFull: Redis is full.
        """
        async with self._use_channel() as channel:
            return await channel.evaluate(script, self._prefix, *args)

    async def execute(self, *words: Any) -> Any:
        """Run a Redis command. Raise the same errors as `run`."""
        async with self._use_channel() as channel:
            return await channel.send(*words)

    def watch(self, ids: Collection[str]) -> None:
        """Listen for changes of tasks."""
        self._listener.add(ids)

    def unwatch(self, ids: Collection[str]) -> None:
        """Stop listening for changes. Call it once for each call of `watch`."""
        self._listener.remove(ids)

    async def close(self) -> None:
        """Close all connections."""
        await self._listener.close()
        self._is_open = False
        await self._channel.close()
        await close_client(self._client)

    @contextlib.asynccontextmanager
    async def _use_channel(self) -> AsyncGenerator[RedisChannel]:
        """Open the connection if needed, and convert errors."""
        try:
            async with self._slots:
                if not self._is_open:
                    await self._open()
                yield self._channel
        except SharedStateUnavailable as exc:
            raise _convert_error(str(exc)) from exc

    async def _open(self) -> None:
        async with self._open_lock:
            if self._is_open:
                return
            if self._failure is not None and time.monotonic() - self._failure[0] < _REOPEN_DELAY_S:
                raise self._failure[1]
            try:
                await self._channel.open()
                await self._check_server()
            except SharedStateUnavailable as exc:
                self._failure = (time.monotonic(), exc)
                raise
            self._failure, self._is_open = None, True

    async def _check_server(self) -> None:
        if self._is_server_checked:
            return
        await check_server(self._channel)
        problem = await find_clock_problem(self._channel)
        if problem is not None:
            log.warning("%s", problem)
        self._is_server_checked = True

    def _handle_loss(self, _: RedisAway) -> None:
        # The next command opens a new connection.
        self._is_open = self._is_server_checked = False


def _convert_error(message: str) -> Exception:
    if _FORMAT_ERROR in message:
        version = message.partition(_FORMAT_ERROR)[2].split()[0]
        return TaskUnreadable(
            f"the tasks in Redis have the format version {version}, which this version of dovetail does not support. "
            "Update dovetail"
        )
    return TaskStoreFull("Redis is full") if _FULL_ERROR in message else TaskStoreUnavailable(message)


class _ChangeListener:
    def __init__(self, client: Any, prefix: str, report: ReportChange) -> None:
        self._client = client
        self._channel_start = f"{prefix}changed:"
        self._report = report
        self._watch_counts: Counter[str] = Counter()
        self._ids: dict[str, str] = {}  # Maps the name of each watched task to the task's ID.
        self._subscribed_names: set[str] = set()
        self._pubsub: Any = None
        self._listen_task: asyncio.Task[None] | None = None
        self._subscribe_task: asyncio.Task[None] | None = None
        self._has_news = asyncio.Event()
        self._warning = ThrottledLog()

    def add(self, ids: Collection[str]) -> None:
        self._watch_counts.update(ids)
        self._ids |= {hash_name(id): id for id in ids}
        self._update()

    def remove(self, ids: Collection[str]) -> None:
        self._watch_counts.subtract(ids)
        for id in ids:
            if self._watch_counts[id] <= 0:
                del self._watch_counts[id]
                self._ids.pop(hash_name(id), None)
        self._update()

    async def close(self) -> None:
        tasks = [task for task in (self._listen_task, self._subscribe_task) if task is not None]
        self._listen_task = self._subscribe_task = None
        self._has_news.set()
        if self._pubsub is not None:
            # In redis-py, a read may ignore the cancellation of its task. Closing the connection ends the read.
            with log_and_suppress(Exception):
                await self._pubsub.connection.disconnect(nowait=True)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _update(self) -> None:
        loop = asyncio.get_running_loop()
        if self._listen_task is None:
            self._listen_task = loop.create_task(self._listen())
            self._subscribe_task = loop.create_task(self._keep_subscribed())
        self._has_news.set()

    async def _listen(self) -> None:
        """Read the changes of watched tasks. After an error, connect again."""
        failures, task = 0, asyncio.current_task()
        while task is self._listen_task:
            try:
                async with self._client.pubsub() as pubsub:
                    self._subscribed_names.clear()
                    # A connection must always have a subscription, so subscribe to a channel without messages.
                    await pubsub.subscribe(self._channel_start)
                    self._pubsub = pubsub
                    self._has_news.set()
                    failures = 0
                    while task is self._listen_task:
                        message = await pubsub.get_message(timeout=_READ_TIMEOUT_S)
                        if message is not None:
                            self._receive(message)
            except Exception as exc:
                if task is self._listen_task:
                    self._warning.log("cannot listen for changes of tasks: %s", convert_error(exc))
                    await asyncio.sleep(compute_backoff(_RETRY_DELAY_S, failures, _MAX_RETRY_DELAY_S))
                    failures += 1
            finally:
                self._pubsub = None

    def _receive(self, message: dict[str, Any]) -> None:
        id = self._ids.get(message["channel"].decode().removeprefix(self._channel_start))
        if id is None:
            return
        if message["type"] == "message":
            self._report(id, int(message["data"]) if message["data"] else None)
        elif message["type"] == "subscribe":
            # The task may have changed before the subscription began.
            self._report(id, None)

    async def _keep_subscribed(self) -> None:
        task = asyncio.current_task()
        while task is self._subscribe_task:
            await self._has_news.wait()
            self._has_news.clear()
            pubsub, wanted_names = self._pubsub, set(self._ids)
            if pubsub is None:
                continue
            added, removed = wanted_names - self._subscribed_names, self._subscribed_names - wanted_names
            self._subscribed_names = wanted_names
            # If the connection is lost, the listener connects and subscribes again.
            with log_and_suppress(Exception):
                if added:
                    await pubsub.subscribe(*(self._channel_start + name for name in added))
                if removed:
                    await pubsub.unsubscribe(*(self._channel_start + name for name in removed))
