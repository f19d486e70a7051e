"""The state that the workers of one server share. The back ends in `dovetail.cluster` implement this interface.

Names of values, limits and streams may have any length, because a back end stores only their hashes. A sender that gets
no answer sends its message again, so a message that arrives twice must do no harm.
"""

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Literal, Protocol, TypeAlias

from dovetail.protocol.interfaces.state_store import StateStore
from dovetail.protocol.limits import KiB, MiB, ServerLimits
from dovetail.protocol.principal import Principal
from dovetail.wire.base import Struct

MAX_INLINE_BYTES: Final = 256 * KiB  # A larger message or event is stored under a separate key.
MAX_MESSAGE_BYTES: Final = 16 * MiB  # the maximum size of a value, a message or an event
MAX_CHANGE_BYTES: Final = 16 * KiB  # the maximum size of a message in the change log
MAX_CHANGES: Final = 10_000  # The change log keeps at least this many messages.
MAX_READ_CHANGES: Final = 1000  # `read_changes` returns at most this many messages.
MAX_INBOX_MESSAGES: Final = 256  # the maximum number of messages that wait for one worker
MAX_INBOX_BYTES: Final = 64 * MiB  # the maximum size of all messages that wait for one worker
CLOCK_MARGIN_S: Final = 60.0  # the maximum difference between the clocks of two machines

WORKER_LOST: Final = "worker-lost"  # If the worker of a call is lost, the error response has this `reason`.

# The result of `append` is "ended" if another worker has ended the stream.
# The result is "missing" if the stream, or an event with a smaller number, is not stored.
AppendOutcome = Literal["added", "ended", "missing"]


class SharedStateUnavailable(Exception):
    """Raised if the back end cannot be used now, because it does not answer or is full.

    If the back end did not answer in time, the operation may have happened.
    """

    retry_after: float = 1.0  # the number of seconds after which a caller should try again


class HistoryLost(Exception):
    """Raised if an ID may already have been used, because the back end has lost its records.

    The same ID will be refused again, so the caller needs a new ID.
    """


class WorkerLost(Exception):
    """Raised if a worker has ended without ending the stream that it writes."""

    def __init__(self, worker: str, header: bytes) -> None:
        super().__init__(f"worker {worker} ended before its stream")
        self.worker = worker
        self.header = header


class StoredValue(Struct, frozen=True):
    """A value with its version. The version increases with each write."""

    data: bytes
    version: int


class Message(Struct, frozen=True):
    """A message from a worker. `cursor` is None if the message is not in the change log."""

    kind: str
    body: bytes
    sender: str
    cursor: str | None = None


class StreamEvent(Struct, frozen=True):
    """One event of a stream. Events are numbered from 1, without gaps."""

    number: int
    data: bytes
    is_last: bool = False


class StreamPart(Struct, frozen=True):
    """A part of a stream: its writer, its header, and the events after a number."""

    writer: str  # the worker that writes the stream
    header: bytes  # the data that the writer stored when it opened the stream
    events: list[StreamEvent]
    is_ended: bool


class StreamLimits(Struct, frozen=True, kw_only=True):
    """The limits for stored streams: how many events and bytes are stored, and for how long."""

    max_events: int = 1000
    max_bytes: int = 10 * MiB
    # The maximum size of all streams of one worker. The oldest finished streams are deleted first.
    max_total_bytes: int = 32 * MiB
    ttl: float = 300.0  # the time for which a finished stream is stored
    open_ttl: float = 3600.0  # the time for which an open stream is stored after its newest event

    @property
    def max_ttl(self) -> float:
        """Return the longest time for which an event can be read."""
        return self.open_ttl + self.ttl

    def get_ttl(self, *, is_last: bool) -> float:
        """Return the time for which a stream is stored after an event."""
        return self.ttl if is_last else self.open_ttl


DEFAULT_STREAM_LIMITS: Final = StreamLimits()


class SharedStateStatus(Struct, frozen=True, kw_only=True):
    """The state of a back end, for operators."""

    is_available: bool
    problem: str | None = None  # the reason why the back end cannot be used, or a problem with its settings
    worker_count: int = 1  # the number of workers at the last count
    epoch: str = ""  # An ID that changes whenever the back end loses records. It is "" until it is known.


def is_later_cursor(cursor: str, position: str) -> bool:
    """Return whether a cursor of the change log is after a position. Cursors of different epochs count as later."""
    epoch, _, rest = cursor.partition(".")
    other_epoch, _, other_rest = position.partition(".")
    number, other_number = rest.partition(".")[0], other_rest.partition(".")[0]
    if epoch != other_epoch or not number.isdecimal() or not other_number.isdecimal():
        return True
    return int(number) > int(other_number)


class SharedStateListener(Protocol):
    """Receives messages from a back end. All methods run in the event loop that started the back end."""

    def receive(self, message: Message) -> None:
        """Handle a message. The same message may arrive twice."""
        ...

    def handle_gap(self) -> None:
        """Handle a gap in the change log: assume that all data has changed, and store important data again."""
        ...


async def use_with_retry(state: "SharedState", name: str, valid_from: float, ttl: float, epoch: str) -> bool:
    """Record the use of an ID as `SharedState.use_once` does. If the back end does not answer, try once more.

    Without the second attempt, an answer that is lost would use up the ID.
    """
    attempt = secrets.token_hex(8)
    try:
        return await state.use_once(name, valid_from, ttl, attempt=attempt, epoch=epoch)
    except SharedStateUnavailable:
        return await state.use_once(name, valid_from, ttl, attempt=attempt, epoch=epoch)


class SharedStateSource(Protocol):
    """The options of a shared state, such as `Cluster`. They create the back end."""

    @property
    def is_local(self) -> bool:
        """Return whether all workers are on this machine. Then the shared state is deleted with its workers."""
        ...

    def __shared_state__(self, name: str, secret_keys: Sequence[str | bytes]) -> "SharedState":
        """Return a back end for one server."""
        ...


class SharedState(Protocol):
    """A back end. Each method raises SharedStateUnavailable if the back end cannot be used now.

    Times are in seconds. Each value, limit and stream is deleted after its time to live (`ttl`). Call all methods in
    the event loop that started the back end.
    """

    worker: str  # the random name of this worker. `start` sets it

    async def start(self, listener: SharedStateListener) -> None:
        """Open all files and connections, and announce this worker. Call this method after the process was forked."""
        ...

    async def close(self) -> None:
        """Close all files and connections. Other workers learn at once that this worker has ended."""
        ...

    def get_status(self) -> SharedStateStatus:
        """Return whether the back end can be used. This method does no I/O."""
        ...

    async def list_workers(self) -> frozenset[str]:
        """Return the names of all workers that are alive."""
        ...

    # Values, for example sessions and grants.

    async def read(self, name: str) -> StoredValue | None:
        """Return a value, or None if the name has no value.

        Raises:
            SharedStateUnavailable: this worker cannot decrypt or parse the value, for example during a key rotation.
        """
        ...

    async def write(self, name: str, data: bytes, ttl: float, *, expected: int | None = None) -> int | None:
        """Store a value and return its version.

        With `expected`, store the value only if the stored value has this version. 0 means that there is no stored
        value. Otherwise return None. Only one of several concurrent calls with the same `expected` succeeds.
        """
        ...

    async def restore(self, name: str, data: bytes, version: int, ttl: float) -> bool:
        """Store a value with the version that it had before the back end lost it.

        Return False if the stored value has the same or a higher version. It stays as it is.
        """
        ...

    async def delete(self, name: str, *, expected: int | None = None) -> bool:
        """Delete a value. With `expected`, only delete a value of this version. Return whether a value was deleted."""
        ...

    # Limits, for example on the use of an ID or the number of sessions.

    async def use_once(self, name: str, valid_from: float, ttl: float, *, attempt: str = "", epoch: str = "") -> bool:
        """Record the use of an ID. Return True if this is the first use.

        `valid_from` is the earliest time at which the ID can have been used, in seconds since 1970. `ttl` must last
        until the ID expires. The back end adds a margin of `CLOCK_MARGIN_S` to both. If a worker has created the ID,
        pass the epoch of that moment (`SharedStateStatus.epoch`). In the same epoch nothing was lost, so the ID is
        accepted, whatever the clocks say.

        To try again after SharedStateUnavailable, pass the same random `attempt` both times. The same attempt
        returns True again.

        Raises:
            HistoryLost: the back end has lost its records since `valid_from`.
        """
        ...

    async def is_used(self, name: str) -> bool:
        """Return whether the use of an ID is recorded."""
        ...

    async def take(self, name: str, rate: float, burst: float, cost: float = 1.0) -> float:
        """Count an event and return 0. If there are more than `rate` events per second, return the seconds to wait.

        A burst of `burst` events is allowed. An event counts `cost` times, at most `burst`. With the cost 0, nothing
        is counted, and the result is the time to wait for an event of cost 1. A negative cost takes back events that
        were counted.
        """
        ...

    async def acquire(self, name: str, holder: str, limit: int, ttl: float | None) -> bool:
        """Give one of `limit` places to a holder for `ttl` seconds. If the holder already has a place, extend the time.

        With `ttl=None`, the place belongs to this worker. It becomes free when the worker ends. Return False if all
        places are taken. With the limit 1, this is a lock.
        """
        ...

    async def release(self, name: str, holder: str) -> None:
        """Free the place that `acquire` gave to a holder."""
        ...

    # Messages.

    async def send(self, worker: str, kind: str, body: bytes) -> bool:
        """Send a message to one worker. Return False if this worker has ended.

        If too many messages wait for the worker, raise SharedStateUnavailable.
        """
        ...

    async def publish(self, kind: str, body: bytes) -> str:
        """Send a message to all workers through the change log. Return the cursor of the message.

        A cursor begins with the epoch and the number of the message, `epoch.number`. See `is_later_cursor`.

        The sender receives the message, too. The body has at most `MAX_CHANGE_BYTES`.
        """
        ...

    async def get_cursor(self) -> str:
        """Return the cursor of the newest message in the change log."""
        ...

    async def read_changes(self, cursor: str) -> list[Message] | None:
        """Return the messages of the change log after a cursor.

        Return None if some of them were deleted, or if there are more than `MAX_READ_CHANGES`.
        """
        ...

    # Streams. Every worker can read the stored events of a stream, and send them to a client that reconnects.

    async def append(
        self, stream: str, number: int, data: bytes, *, header: bytes | None = None, is_last: bool = False
    ) -> AppendOutcome:
        """Add the event with the next number. With `header`, open the stream first if it does not exist.

        Return "added" if the event is stored. An event that was already added counts as added, so a caller can try
        again after SharedStateUnavailable. Return "ended" if the stream has ended or has another writer: drop the
        event, because a reader has already got another end. Return "missing" if the stream or an earlier event is not
        stored any more: the reply can go on without storage.
        """
        ...

    async def read_stream(self, stream: str, after: int) -> StreamPart | None:
        """Return the events with a number above `after`. Return None if one of them is not stored."""
        ...

    def follow(self, stream: str, after: int, *, writer: str | None = None) -> AsyncGenerator[StreamEvent]:
        """Yield the events with a number above `after`. Wait for new events until the stream ends.

        With `writer`, also wait until this worker opens the stream. Without it, a stream that does not exist has no
        events. Close the generator if you stop early. It also ends if the stream is deleted, or if this reader is too
        slow.

        Raises:
            WorkerLost: the writer has ended before the stream did. Call `end_lost_stream`, and follow again. The
                header is empty if the writer did not open the stream.
        """
        ...

    async def end_lost_stream(self, stream: str, data: bytes) -> bool:
        """End the stream of a lost worker with a last event. Return False if the stream has already ended.

        Only one of several concurrent calls succeeds. If the writer is alive, nothing happens.
        """
        ...

    async def delete_stream(self, stream: str) -> None:
        """Delete a stream and its events."""
        ...


# Receives the key of a connection, the caller, the seconds until the credentials expire, and the body of a message.
MessageReceiver: TypeAlias = Callable[[str, Principal | None, float | None, bytes], None]


class ConnectionRouter(Protocol):
    """Sends the messages of clients to the worker that has their connection. Any worker may receive a message."""

    @property
    def count_stream(self) -> Callable[[Principal | None, str | None], AbstractAsyncContextManager[None]]:
        """A function that counts a stream of a caller or an address while its context is open.

        It raises Refusal if the caller has too many streams at all workers together.
        """
        ...

    def create_id(self, principal: Principal | None) -> tuple[str, str]:
        """Return a key for a new connection of this worker, and its ID for the client."""
        ...

    def read_id(self, id: str, principal: Principal | None) -> tuple[str, str] | None:
        """Return the worker and the key of a connection. Return None if it is not a connection of this caller."""
        ...

    def is_own(self, worker: str) -> bool:
        """Return whether a name is that of this worker."""
        ...

    async def forward(
        self, worker: str, key: str, principal: Principal | None, valid_for: float | None, body: bytes
    ) -> bool:
        """Send a message to the worker of a connection. Return False if this worker has ended."""
        ...


class ChangeLog(Protocol):
    """Sends the changes of one server to the other workers. Any thread may call `publish` and `send_to_session`."""

    last_number: int  # Each change gets another number.

    def start(self) -> None:
        """Send changes from now on."""
        ...

    async def close(self) -> None:
        """Send the waiting changes, and stop."""
        ...

    def publish(self, method: str, uri: str | None) -> None:
        """Send a change to the other workers."""
        ...

    def send_to_session(self, session_id: str, method: str, message: bytes) -> None:
        """Send a notification to the worker that has the GET stream of a session."""
        ...

    async def wait_until_sent(self) -> None:
        """Wait until the other workers can learn of all changes up to now."""
        ...


class EventLimiter(Protocol):
    """Limits how often an event happens at all workers together."""

    async def take(self, key: str, now: float) -> float:
        """Count an event and return 0. If the limit is reached, return the seconds to wait instead."""
        ...


class SharedWorker(SharedStateListener, Protocol):
    """One worker of a server, and the state that it shares with the other workers.

    Call all methods in the event loop that started the worker.
    """

    @property
    def name(self) -> str:
        """The random name of this worker. It is known after `start`."""
        ...

    @property
    def state(self) -> SharedState: ...
    @property
    def secret_keys(self) -> Sequence[str | bytes]:
        """The keys that all workers have."""
        ...

    @property
    def is_started(self) -> bool: ...
    @property
    def parts(self) -> dict[type[Any], Any]:
        """Objects that other packages store here. Each object exists once for each worker."""
        ...

    def create_sessions(self, *args: Any, **options: Any) -> Any:
        """Return the sessions of an endpoint, which all workers share.

        The arguments are those of `SharedSessions`, and the result is a `HandshakeSessions`. This layer cannot import
        their types.
        """
        ...

    def create_server_part(self, server: Any, *, is_owner: bool) -> Any:
        """Return the `ServerPart` that shares the limits and the changes of a server with all workers.

        This layer cannot import their types.

        Args:
            is_owner: Whether the server starts and closes the worker. Servers of one process may share a worker.
        """
        ...

    def create_connection_router(
        self, server_name: str, limits: ServerLimits, receive: MessageReceiver
    ) -> ConnectionRouter:
        """Return a router for connections whose messages can reach any worker."""
        ...

    def create_rate_limiter(
        self, name: str, max_count: float, window_s: float, burst: float | None = None
    ) -> EventLimiter:
        """Return a limit of `max_count` events per `window_s` seconds for all workers, and of `burst` at once."""
        ...

    def create_change_log(self, receive_change: Callable[[str, str | None], None]) -> ChangeLog:
        """Return a log of the changes of a server. It passes the changes of other workers to `receive_change`."""
        ...

    def create_state_store(self) -> StateStore:
        """Return a store for the state that functions keep between calls."""
        ...

    async def start(self) -> None:
        """Join the other workers."""
        ...

    async def close(self) -> None:
        """Call the close handlers, and leave the cluster."""
        ...

    def add_handler(self, kind: str, handler: Callable[[Message], None]) -> Callable[[], None]:
        """Handle all messages of one kind. Messages can arrive twice. Return a function that removes the handler."""
        ...

    def add_gap_handler(self, handler: Callable[[], None]) -> Callable[[], None]:
        """Call a function after each gap in the change log. Return a function that removes the callback."""
        ...

    def add_close_handler(self, handler: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        """Call a function before this worker leaves the cluster. Return a function that removes the callback."""
        ...
