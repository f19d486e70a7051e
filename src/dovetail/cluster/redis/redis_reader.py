"""Read one worker's messages from Redis. One blocking command reads the inbox, the wake-ups and the change log.

Handled messages are deleted from the inbox, so the inbox is always read from its start. The change log is read from the
last position. Its messages are numbered without gaps, so a missing number shows that messages were deleted. Wake-ups
are a set of streams with new events, and a short stream that only shows that the set is not empty.
"""

import asyncio
from typing import Final

from dovetail.backoff import compute_backoff
from dovetail.cluster.envelope import Envelope, unpack_message
from dovetail.cluster.guarded_listener import GuardedListener
from dovetail.cluster.redis import redis_scripts as scripts
from dovetail.cluster.redis.redis_link import RedisLink
from dovetail.cluster.stream_follower import StreamFollowers
from dovetail.log import ThrottledLog, log
from dovetail.protocol.interfaces.shared_state import MAX_INBOX_MESSAGES, Message, SharedStateUnavailable

READ_BLOCK_S: Final = 1.0  # how long one command waits for messages
# One command reads the whole inbox, so no message arrives after a change that was published later.
_BATCH: Final = MAX_INBOX_MESSAGES
_EPOCH_WAIT_S: Final = 2.0
_RETRY_DELAY_S: Final = 0.1
_MAX_RETRY_DELAY_S: Final = 2.0

# An entry of a Redis stream: its ID, and its fields by name. A newer release may add fields.
_Entry = tuple[str, dict[bytes, bytes]]


class RedisReader:
    """Delivers messages to the listener of this worker."""

    def __init__(
        self,
        link: RedisLink,
        prefix: str,
        worker: str,
        envelope: Envelope,
        listener: GuardedListener,
        followers: StreamFollowers,
    ) -> None:
        self.problem: str | None = None  # why messages cannot be handled, or None
        self._link = link
        self._channel = link.create_channel(READ_BLOCK_S)
        self._prefix = prefix
        self._worker = worker
        self._inbox = f"{prefix}inbox:{worker}"
        self._wakeups = f"{prefix}wakeups:{worker}"
        self._changes = f"{prefix}changes"
        self._envelope = envelope
        self._listener = listener
        self._followers = followers
        self._warning = ThrottledLog()
        self._must_reconnect = True
        self._position = "0-0"  # the ID of the newest change that was read
        self._number = 0  # the number of the newest change that was read
        self._epoch = ""

    def start_epoch(self, epoch: str, number: int, position: str) -> None:
        """Continue at a new position. Report a gap, because Redis may have lost messages."""
        is_first, self._epoch = not self._epoch, epoch
        self._number, self._position = number, position
        if not is_first:
            self._must_reconnect = True  # The connection may lead to a primary that was replaced.
            self._listener.report_gap()

    async def run(self) -> None:
        """Read and deliver messages until this task is cancelled."""
        failures, task = 0, asyncio.current_task()
        try:
            # redis-py sometimes ignores the cancellation of a task, so each round of the loop checks for it.
            while task is not None and not task.cancelling():
                try:
                    if self._must_reconnect:
                        await self._channel.open()
                        self._must_reconnect = False
                    await self._read()
                    failures, self.problem = 0, None
                except Exception as exc:  # A worker that reads no messages would look healthy to others.
                    if not isinstance(exc, SharedStateUnavailable):
                        log.error("could not read messages from Redis", exc_info=exc)
                    self.problem = f"could not read messages from Redis: {exc}"
                    self._must_reconnect = True
                    await asyncio.sleep(compute_backoff(_RETRY_DELAY_S, failures, _MAX_RETRY_DELAY_S))
                    failures += 1
                    self._followers.wake_all()
        finally:
            await self._channel.close()

    async def _read(self) -> None:
        epoch = self._epoch
        names = self._inbox, self._wakeups, self._changes
        block_ms = int(READ_BLOCK_S * 1000)
        positions = "0-0", "0-0", self._position
        reply = await self._channel.send("XREAD", "COUNT", _BATCH, "BLOCK", block_ms, "STREAMS", *names, *positions)
        for key, raw_entries in reply or ():
            name, entries = key.decode(), [parse_entry(*raw_entry) for raw_entry in raw_entries]
            if name == self._inbox:
                await self._handle_inbox(entries)
            elif name == self._wakeups:
                await self._wake_followers()
            elif epoch == self._epoch:  # A new epoch was reported as a gap, so older messages are ignored.
                self._handle_changes(entries)

    async def _wake_followers(self) -> None:
        for stream in await self._link.evaluate(self._channel, scripts.TAKE_WAKEUPS, self._worker):
            self._followers.wake(stream.decode())

    async def _handle_inbox(self, entries: list[_Entry]) -> None:
        size = 0
        for id, fields in entries:
            try:
                size += int(fields.get(b"size", 0))
                data = fields.get(b"data")
                if data is None and b"large" in fields:
                    data = await self._channel.send("HGET", f"{self._prefix}large:{self._worker}", id)
                decoded = None if data is None else self._envelope.decode(data, f"inbox {self._worker}")
                message = None if decoded is None else unpack_message(decoded)
            except ValueError as exc:
                self._warning.log("ignored a message that cannot be read: %s", exc)
                continue
            if message is None:
                self._warning.log("ignored a message that cannot be read")
            else:
                self._listener.deliver(message)
        ids = [id for id, _ in entries]
        await self._link.evaluate(self._channel, scripts.DELETE_MESSAGES, self._worker, size, *ids)

    def _handle_changes(self, entries: list[_Entry]) -> None:
        has_gap, messages = False, list[Message]()
        for id, fields in entries:
            try:
                number, decoded = int(fields[b"number"]), self._envelope.decode(fields[b"data"], "changes")
                message = None if decoded is None else unpack_message(decoded, f"{self._epoch}.{number}.{id}")
            except (KeyError, ValueError) as exc:
                self._warning.log("ignored a change that cannot be read: %r", exc)
                number, message = self._number + 1, None
            if number <= self._number:
                self._handle_lost_counter()
            else:
                has_gap = has_gap or number != self._number + 1
            has_gap = has_gap or message is None
            self._number, self._position = number, id
            if message is not None:
                messages.append(message)
        if has_gap:  # Everything counts as changed. One report is enough for all messages.
            self._listener.report_gap()
        for message in messages:
            self._listener.deliver(message)

    def _handle_lost_counter(self) -> None:
        """Find out why the numbers start again. The usual reason is a new epoch, which is reported as a gap."""
        epoch = self._epoch
        self._link.request_heartbeat()

        def report_gap() -> None:
            if epoch == self._epoch:
                self._listener.report_gap()

        asyncio.get_running_loop().call_later(_EPOCH_WAIT_S, report_gap)


def parse_entry(id: bytes, words: list[bytes]) -> _Entry:
    """Return the ID and the fields of an entry of a Redis stream."""
    return id.decode(), dict(zip(words[::2], words[1::2], strict=True))
