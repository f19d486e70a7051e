"""Read one worker's messages from Redis. One blocking command reads the inbox and the change log.

Handled messages are deleted from the inbox, so the inbox is always read from its start. The change log is read from the
last position. Its messages are numbered without gaps, so a missing number shows that messages were deleted.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from dovetail.cluster import redis_scripts as scripts
from dovetail.cluster.envelope import Envelope, unpack_message
from dovetail.cluster.redis_connection import close_client, report_unavailable
from dovetail.cluster.stream_follower import StreamFollowers
from dovetail.log import log
from dovetail.protocol.backoff import compute_backoff
from dovetail.protocol.shared_state import Message, SharedStateListener, SharedStateUnavailable

READ_BLOCK_S: Final = 1.0  # how long one command waits for messages
_BATCH: Final = 100
_RETRY_DELAY_S: Final = 0.1
_MAX_RETRY_DELAY_S: Final = 2.0


class RedisReader:
    """Delivers messages to the listener of this worker."""

    def __init__(
        self,
        client: Any,
        prefix: str,
        worker: str,
        envelope: Envelope,
        listener: SharedStateListener,
        followers: StreamFollowers,
        report_away: Callable[[SharedStateUnavailable], None],
    ) -> None:
        self._client = client
        self._delete_messages = client.register_script(scripts.DELETE_MESSAGES)
        self._prefix = prefix
        self._worker = worker
        self._inbox = f"{prefix}inbox:{worker}"
        self._changes = f"{prefix}changes"
        self._envelope = envelope
        self._listener = listener
        self._followers = followers
        self._report_away = report_away
        self._position = "0-0"  # the ID of the newest change that was read
        self._number = 0  # the number of the newest change that was read
        self._epoch = ""

    def start_epoch(self, epoch: str, number: int, position: str) -> None:
        """Continue at a new position. Report a gap, because Redis may have lost messages."""
        is_first, self._epoch = not self._epoch, epoch
        self._number, self._position = number, position
        if not is_first:
            self._listener.handle_gap()

    async def run(self) -> None:
        """Read and deliver messages until this task is cancelled."""
        failures, task = 0, asyncio.current_task()
        try:
            # redis-py sometimes ignores the cancellation of a task, so each round of the loop checks for it.
            while task is not None and not task.cancelling():
                try:
                    await self._read()
                    failures = 0
                except SharedStateUnavailable as exc:
                    self._report_away(exc)
                    await asyncio.sleep(compute_backoff(_RETRY_DELAY_S, failures, _MAX_RETRY_DELAY_S))
                    failures += 1
                    self._followers.wake_all()
        finally:
            await close_client(self._client)

    async def _read(self) -> None:
        epoch = self._epoch
        with report_unavailable():
            positions = {self._inbox: "0-0", self._changes: self._position}
            reply: Any = await self._client.xread(positions, count=_BATCH, block=int(READ_BLOCK_S * 1000))
        for key, entries in reply:
            if key == self._inbox.encode():
                await self._handle_inbox(entries)
            elif epoch == self._epoch:  # A new epoch was reported as a gap, so older messages are ignored.
                self._handle_changes(entries)

    async def _handle_inbox(self, entries: list[tuple[bytes, dict[bytes, bytes]]]) -> None:
        for _, fields in entries:
            if b"wake" in fields:
                self._followers.wake(fields[b"wake"].decode())
                continue
            data = fields.get(b"data")
            if data is None:
                with report_unavailable():
                    data = await self._client.getdel(f"{self._prefix}large:{fields[b'large'].decode()}")
            decoded = None if data is None else self._envelope.decode(data, f"inbox {self._worker}")
            if decoded is not None:
                self._deliver(unpack_message(decoded))
        size = sum(int(fields[b"size"]) for _, fields in entries)
        with report_unavailable():
            await self._delete_messages(keys=[self._prefix], args=[0, self._worker, size, *(id for id, _ in entries)])

    def _handle_changes(self, entries: list[tuple[bytes, dict[bytes, bytes]]]) -> None:
        for id, fields in entries:
            number = int(fields[b"number"])
            decoded = self._envelope.decode(fields[b"data"], "changes")
            if number != self._number + 1 or decoded is None:
                self._listener.handle_gap()
            self._number, self._position = number, id.decode()
            if decoded is not None:
                self._deliver(unpack_message(decoded, f"{self._epoch}.{number}.{self._position}"))

    def _deliver(self, message: Message) -> None:
        try:
            self._listener.receive(message)
        except Exception as exc:  # An error of the listener must not stop other messages.
            log.error("could not handle a message of kind %s", message.kind, exc_info=exc)
