"""A reply that this worker writes to the shared state of its cluster, so that any worker can send the rest of it.

Each event is stored before it is sent. The event ID is the name of the stream and a number. If the shared state is not
available, the reply continues, and the ID of each event that is not stored ends with a mark. These events are stored
later, unless the outage lasts too long.
"""

from collections import deque
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Final, Protocol

from dovetail.cluster.background_work import repeat_until_available, wait_before_retry
from dovetail.errors import InternalError
from dovetail.protocol import handshake as handshake_protocol
from dovetail.protocol.interfaces.shared_state import (
    MAX_MESSAGE_BYTES,
    WORKER_LOST,
    AppendOutcome,
    SharedState,
    SharedStateUnavailable,
    StreamEvent,
)
from dovetail.protocol.limits import ServerLimits
from dovetail.protocol.versioned_codec import VersionedCodec
from dovetail.transports.http_server.streams.http_response import ResponseTimers
from dovetail.transports.spool import MemoryBudget
from dovetail.wire.base import Struct
from dovetail.wire.jsonrpc import RequestId

_UNSTORED_MARK: Final = "~"
_MAX_NUMBER_DIGITS: Final = 12
_LOSS_MESSAGE: Final = "The worker was lost. The call may have had an effect"
_SIZE_MESSAGE: Final = f"The result is larger than {MAX_MESSAGE_BYTES} bytes, so it cannot be read again"


class StreamEnded(Exception):
    """Raised if a stream has ended. Another worker ends it if it considers this worker lost."""


class StreamHeader(Struct, frozen=True, omit_defaults=True):
    """The requests that a stream answers. With this header, any worker can end the stream with an error."""

    ids: list[RequestId]
    protocol_version: str
    is_batch: bool = False


_headers: Final = VersionedCodec(StreamHeader)


def encode_header(ids: Sequence[RequestId], protocol_version: str, *, is_batch: bool) -> bytes:
    """Encode the header of a stream, with the version of its format."""
    return _headers.encode(StreamHeader([*ids], protocol_version, is_batch))


def encode_loss(encoded_header: bytes) -> bytes:
    """Return the error response for the requests of a stream whose worker is lost."""
    return _encode_error(encoded_header, InternalError(_LOSS_MESSAGE, {"reason": WORKER_LOST}))


def _encode_error(encoded_header: bytes, error: InternalError) -> bytes:
    header = _headers.decode(encoded_header)
    if header is None:
        return b""  # A newer release has written the stream.
    errors = [handshake_protocol.refuse(header.protocol_version, id, error) for id in header.ids]
    return b"[" + b",".join(errors) + b"]" if header.is_batch else b"".join(errors[:1])


def build_stream_key(session_id: str, name: str) -> str:
    """Return the name of a stream in the shared state. A session can only read its own streams."""
    return f"stream:{session_id}:{name}"


class EventPosition(Struct, frozen=True):
    """The position of an event in a stored stream."""

    stream: str  # the name of the stream in the session
    number: int
    is_stored: bool = True

    def __str__(self) -> str:
        return f"{self.stream}-{self.number}{'' if self.is_stored else _UNSTORED_MARK}"


def parse_event_id(event_id: str) -> EventPosition | None:
    """Return the position that an event ID of a stored stream names. Return None if the ID is invalid."""
    name, _, number = event_id.removesuffix(_UNSTORED_MARK).rpartition("-")
    if not name or not number.isascii() or not number.isdecimal() or len(number) > _MAX_NUMBER_DIGITS:
        return None
    return EventPosition(name, int(number), not event_id.endswith(_UNSTORED_MARK))


class StreamOwner(Protocol):
    """The part of an endpoint that a stored stream uses."""

    state: SharedState
    limits: ServerLimits
    timers: ResponseTimers
    budget: MemoryBudget
    writers: "dict[str, StreamWriter]"  # the responses that write a stream, by the key of the stream
    unstored_bytes: int  # the size of all events of the endpoint that wait for the shared state

    def create_stream_name(self) -> str:
        """Return the name of a new stream."""
        ...

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in a task. When the endpoint closes, it cancels the task after a timeout."""
        ...


class StreamWriter(Protocol):
    """The response of the POST whose reply is stored."""

    @property
    def reading_worker(self) -> str | None:
        """Return the worker that has a reader of the stream, or None if the client reads this response or nothing."""
        ...

    def set_remote_reader(self, reader: str, worker: str) -> None:
        """Stop sending, because the client reads the stream at another connection."""
        ...

    def handle_reader_gone(self, reader: str | None = None) -> None:
        """Note that a reader at another worker has left. If `reader` is None, that worker is lost."""
        ...


class StoredStream:
    """One reply that this worker writes to the shared state."""

    __slots__ = (
        "_is_given_up",
        "_last_number",
        "_owner",
        "_unstored",
        "_unstored_bytes",
        "header",
        "is_done",
        "key",
        "name",
        "remote_reader",
        "unread_since",
    )

    def __init__(self, name: str, session_id: str, header: bytes, owner: StreamOwner) -> None:
        self.name = name
        self.key = build_stream_key(session_id, name)
        self.is_done = False
        self.remote_reader: str | None = None  # the name of the reader at another connection or worker, or None
        self.unread_since: float | None = None  # the time when the last reader left, or None if there is a reader
        self.header = header
        self._owner = owner
        self._last_number = 0
        self._unstored: deque[StreamEvent] = deque()  # the events that wait until the shared state is available
        self._unstored_bytes = 0
        self._is_given_up = False

    async def append(self, data: bytes, *, is_last: bool = False) -> str:
        """Store an event and return its ID. Do not call this method again before it returns.

        Raises:
            StreamEnded: the stream has ended, so the event must not be sent.
        """
        if self.is_done:
            raise StreamEnded
        self._last_number += 1
        self.is_done = is_last
        event = StreamEvent(self._last_number, data, is_last)
        is_stored = False
        if len(data) > MAX_MESSAGE_BYTES:
            # A client that reads this event again gets an error.
            error = _encode_error(self.header, InternalError(_SIZE_MESSAGE))
            event = StreamEvent(self._last_number, error if is_last else b"", is_last)
        if not self._is_given_up and not self._unstored:
            try:
                is_stored = self._check_outcome(await self._store(event)) and len(data) <= MAX_MESSAGE_BYTES
            except SharedStateUnavailable:
                self._store_later(event)
        elif not self._is_given_up:
            self._store_later(event)
        return str(EventPosition(self.name, event.number, is_stored))

    async def _store(self, event: StreamEvent) -> AppendOutcome:
        header = self.header if event.number == 1 else None
        return await self._owner.state.append(self.key, event.number, event.data, header=header, is_last=event.is_last)

    def _check_outcome(self, outcome: AppendOutcome) -> bool:
        """Return whether an event was stored."""
        if outcome == "ended":
            self.is_done = self._is_given_up = True
            raise StreamEnded
        if outcome == "missing":
            self._give_up()
            self._owner.run_in_background(self._delete())
        return outcome == "added"

    def _store_later(self, event: StreamEvent) -> None:
        limits, is_first = self._owner.limits, not self._unstored
        self._unstored.append(event)
        self._count_bytes(len(event.data))
        if (
            len(self._unstored) > limits.max_replay_events
            or self._unstored_bytes > limits.max_replay_bytes
            or self._owner.unstored_bytes > limits.max_replay_total_bytes
        ):
            self._give_up()  # The running task deletes the stream.
        if is_first:
            self._owner.run_in_background(self._store_unstored())

    async def _store_unstored(self) -> None:
        try:
            await wait_before_retry(0)
            if not await repeat_until_available(self._store_waiting, give_up_after=self._owner.limits.replay_ttl):
                self._give_up()
            if self._is_given_up:
                await self._delete()
        except StreamEnded:
            self._give_up()
        finally:
            self._count_bytes(-self._unstored_bytes)

    async def _store_waiting(self) -> None:
        while self._unstored:
            self._check_outcome(await self._store(self._unstored[0]))
            if self._unstored:  # The stream may have been given up meanwhile.
                self._count_bytes(-len(self._unstored.popleft().data))

    def _give_up(self) -> None:
        """Continue the reply without storing it."""
        self._is_given_up = True
        self._unstored.clear()
        self._count_bytes(-self._unstored_bytes)

    async def _delete(self) -> None:
        """Delete the stream, so that readers do not wait for events that are not stored."""
        delete = partial(self._owner.state.delete_stream, self.key)
        await repeat_until_available(delete, give_up_after=self._owner.limits.replay_ttl)

    def _count_bytes(self, size: int) -> None:
        self._unstored_bytes += size
        self._owner.unstored_bytes += size
