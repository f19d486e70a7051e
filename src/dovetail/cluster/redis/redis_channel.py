"""One connection to Redis that sends commands without waiting for the replies to earlier ones.

Commands of the same step of the event loop are sent together. Redis replies in the order of the commands. If many
commands wait for replies, later ones wait in a queue. A command that was sent finishes even if its caller is cancelled.
"""

import asyncio
import functools
import hashlib
from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import Any, Final, NamedTuple

from dovetail.cluster.redis.redis_connection import RedisAway, ScriptMissing, convert_error
from dovetail.log import log_and_suppress, log_failure
from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable
from dovetail.protocol.limits import KiB, MiB

_MAX_SENT_COMMANDS: Final = 1000  # If more commands wait for a reply, new ones are sent later.
_MAX_WAITING_BYTES: Final = 64 * MiB  # If more bytes wait to be sent or for a reply, new commands are refused.
_COMMAND_OVERHEAD_BYTES: Final = 1 * KiB  # the memory that a waiting command needs besides its words
_MAX_LATENESS_S: Final = 0.1


class _Command(NamedTuple):
    packed: bytes
    reply: asyncio.Future[Any]
    deadline: float

    @property
    def size(self) -> int:
        return len(self.packed) + _COMMAND_OVERHEAD_BYTES


class RedisChannel:
    """Sends commands on one connection.

    Args:
        client: The redis-py client that creates the connection.
        timeout: Seconds that a caller waits for a reply, including the time in the queue. Redis is away if no reply at
            all arrives in this time.
        report_away: Called once when an open connection is lost.
    """

    def __init__(self, client: Any, timeout: float, report_away: Callable[[RedisAway], None]) -> None:
        self._client = client
        self._timeout = timeout
        self._report_away = report_away
        self._connection: Any = None
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._timer: asyncio.TimerHandle | None = None
        self._queue: deque[_Command] = deque()  # commands that were not sent, oldest first
        self._sent: deque[_Command] = deque()  # commands without a reply, oldest first
        self._waiting_bytes = 0
        self._waiting_since = 0.0  # when Redis got the oldest command without a reply, or sent its last reply

    @property
    def is_busy(self) -> bool:
        """Return whether a command waits for its reply."""
        return bool(self._sent or self._queue)

    async def open(self) -> None:
        """Connect to Redis. Raise RedisAway if this is not possible."""
        await self.close()
        connection = self._client.connection_pool.make_connection()
        try:
            await connection.connect()
        except BaseException as exc:
            await _disconnect(connection)
            if isinstance(exc, Exception):
                raise RedisAway(str(convert_error(exc))) from exc
            raise
        # This class has its own timeout, which includes the time that a command waits for earlier ones.
        connection.socket_timeout = None
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._has_outgoing = asyncio.Event()
        self._tasks = (
            self._loop.create_task(self._write_commands(connection)),
            self._loop.create_task(self._read_replies(connection)),
        )

    async def close(self) -> None:
        """Close the connection. Commands without a reply fail."""
        self._lose("the connection to Redis was closed", is_reported=False)
        if self._tasks:
            await asyncio.wait(self._tasks)
            self._tasks = ()

    def send(self, *words: str | bytes | float) -> asyncio.Future[Any]:
        """Send a command, and return a future of its reply.

        The future raises SharedStateUnavailable if Redis refuses the command, or RedisAway if it does not answer.

        Raises:
            SharedStateUnavailable: the connection is not open, or too many commands wait for a reply.
        """
        if self._connection is None:
            raise RedisAway("the connection to Redis was lost")
        command = _Command(_pack(words), self._loop.create_future(), self._loop.time() + self._timeout)
        if self._waiting_bytes + command.size > _MAX_WAITING_BYTES and self.is_busy:
            raise SharedStateUnavailable(f"Redis is too slow: {len(self._sent) + len(self._queue)} commands wait")
        self._waiting_bytes += command.size
        self._queue.append(command)
        self._has_outgoing.set()
        if self._timer is None:
            self._timer = self._loop.call_at(command.deadline, self._check_deadlines, command.deadline)
        return command.reply

    async def evaluate(self, script: str, *args: Any) -> Any:
        """Run a script with one key, which is the first argument. Send its text only if Redis does not know it.

        Raise the same errors as `send`.
        """
        try:
            return await self.send("EVALSHA", _hash_script(script), 1, *args)
        except ScriptMissing:
            return await self.send("EVAL", script, 1, *args)

    async def _write_commands(self, connection: Any) -> None:
        try:
            while connection is self._connection:
                await self._has_outgoing.wait()
                self._has_outgoing.clear()
                if packed := self._take_commands():
                    await connection.send_packed_command(packed, check_health=False)
        except Exception as exc:
            self._lose_connection(connection, exc)

    def _take_commands(self) -> list[bytes]:
        packed: list[bytes] = []
        if not self._sent:
            self._waiting_since = self._loop.time()
        while self._queue and len(self._sent) < _MAX_SENT_COMMANDS:
            command = self._queue.popleft()
            if command.reply.done():  # The caller has left, or its time is over.
                self._waiting_bytes -= command.size
            else:
                self._sent.append(command)
                packed.append(command.packed)
        return packed

    async def _read_replies(self, connection: Any) -> None:
        from redis.exceptions import ResponseError

        try:
            while connection is self._connection:
                try:
                    reply, error = await connection.read_response(disable_decoding=True), None
                except ResponseError as exc:
                    reply, error = None, convert_error(exc)
                if connection is not self._connection:
                    return
                command = self._sent.popleft()
                self._waiting_bytes -= command.size
                self._waiting_since = self._loop.time()
                if self._queue:
                    self._has_outgoing.set()
                if error is not None:
                    _fail(command.reply, error)
                    if isinstance(error, RedisAway):
                        raise error
                elif not command.reply.done():
                    command.reply.set_result(reply)
        except Exception as exc:
            self._lose_connection(connection, exc)

    def _check_deadlines(self, due_at: float) -> None:
        self._timer = None
        if not self.is_busy:
            return
        now = self._loop.time()
        if now - due_at > _MAX_LATENESS_S:
            # The event loop was busy, so commands may wait to be sent, and replies may wait to be read.
            self._timer = self._loop.call_at(now + self._timeout, self._check_deadlines, now + self._timeout)
            return
        if self._sent and now - self._waiting_since >= self._timeout:
            self._lose(f"Redis does not answer: no reply for {self._timeout:g} seconds")
            return
        # Redis answers, but slowly. The replies to these commands are ignored when they arrive.
        next_deadline = now + self._timeout
        for command in chain(self._sent, self._queue):
            if command.deadline > now:
                next_deadline = command.deadline
                break
            _fail(command.reply, SharedStateUnavailable(f"Redis did not answer within {self._timeout:g} seconds"))
        self._timer = self._loop.call_at(next_deadline, self._check_deadlines, next_deadline)

    def _lose_connection(self, connection: Any, exc: Exception) -> None:
        if connection is self._connection:
            self._lose(str(convert_error(exc)))

    def _lose(self, reason: str, *, is_reported: bool = True) -> None:
        """Forget the connection, and fail all commands without a reply."""
        connection, self._connection = self._connection, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting = [*self._sent, *self._queue]
        self._sent.clear()
        self._queue.clear()
        self._waiting_bytes = 0
        for command in waiting:
            _fail(command.reply, RedisAway(reason))
        if connection is None:
            return
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        self._tasks = (*self._tasks, self._loop.create_task(_disconnect(connection)))
        if is_reported:
            self._report_away(RedisAway(reason))


@functools.cache
def _hash_script(script: str) -> str:
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


def _fail(future: asyncio.Future[Any], exc: Exception) -> None:
    if not future.done():
        future.set_exception(exc)
        log_failure(future)  # The caller may have been cancelled.


async def _disconnect(connection: Any) -> None:
    writer = getattr(connection, "_writer", None)
    if writer is not None:  # redis-py would wait until Redis has read everything that was sent.
        writer.transport.abort()
    with log_and_suppress(Exception):  # Closing a broken connection may fail.
        await connection.disconnect(nowait=True)


def _pack(words: tuple[str | bytes | float, ...]) -> bytes:
    parts: list[bytes] = [b"*%d\r\n" % len(words)]
    for word in words:
        encoded = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n" % len(encoded))
        parts.append(encoded)
        parts.append(b"\r\n")
    return b"".join(parts)
