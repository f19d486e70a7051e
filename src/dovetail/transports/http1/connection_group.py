"""The connections of one HTTP server, the batch of data that they have received, and the search for slow clients.

The server handles the data of all connections once per event loop iteration. It handles all requests first, and then
writes all responses. A write between two requests would slow down the second request, because a write is a system call
and wakes the client process.
"""

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from dovetail.eager_tasks import EagerTaskStarter
from dovetail.log import ThrottledLog, log
from dovetail.protocol.limits import ServerLimits
from dovetail.transports.http1.forwarded_addresses import TrustedProxies
from dovetail.transports.http1.http1_head import HeadChecker
from dovetail.transports.http1.http1_request import HTTP1Request

_MAX_SWEEP_INTERVAL_S: Final = 1.0  # the time between two searches for slow connections
_MIN_SWEEP_INTERVAL_S: Final = 0.01
# In one loop iteration, the connections with new data get this time together, and so do those that wait for a turn.
_MAX_BATCH_S: Final = 0.01
_LONE_READS: Final = 8  # After this many batches with only one read, the server stops batching.
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class GroupedConnection(Protocol):
    """The part of a connection that the group uses."""

    deadline: float  # the time at which `handle_timeout` is called
    is_done: bool  # True if the server has sent its last response, and does not wait for this connection to close

    @property
    def is_waiting(self) -> bool:
        """Return whether the server waits for data from the client."""
        ...

    def handle_data(self, data: bytes) -> None:
        """Parse requests and start them, up to the limits of one turn."""
        ...

    def defer_data(self, data: bytes) -> None:
        """Keep data for a turn in the next loop iteration."""
        ...

    def take_turn(self) -> None:
        """Continue with the data and the requests that wait for a turn."""
        ...

    def handle_timeout(self) -> None:
        """End a connection that is idle or too slow."""
        ...

    def flush(self) -> None:
        """Send the held data."""
        ...

    def shut_down(self) -> None:
        """Close the connection if it is idle. Otherwise close it after the response."""
        ...

    def abort(self) -> None:
        """Close the connection at once, and discard the data that was not sent."""
        ...


class ConnectionGroup:
    """The connections of one server, and what they share: settings, the batch of received data, and the sweep timer."""

    def __init__(
        self, handle: Callable[[HTTP1Request], Awaitable[None]], limits: ServerLimits, proxies: TrustedProxies | None
    ) -> None:
        self.handle = handle
        self.limits = limits
        self.proxies = proxies
        self.loop = asyncio.get_running_loop()
        self.context = contextvars.copy_context()  # the context variables with which each request starts
        self.starter = EagerTaskStarter(self.context)
        self.connections: set[GroupedConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()  # the tasks of requests that have not ended
        self.head_checker = HeadChecker(limits)
        self.stall_warning = ThrottledLog()
        self.closes_connections = False  # True if each response closes its connection
        self.is_stopped = False  # True if the server no longer accepts connections, and its application has ended
        self.is_in_batch = False
        self._batch: list[tuple[GroupedConnection, bytes]] = []
        self._first_turns: deque[GroupedConnection] = deque()  # the connections whose data waits for its first turn
        self._turns: deque[GroupedConnection] = deque()  # the connections that wait for another turn
        self._has_scheduled_turns = False
        self._was_first_turn = False
        self._unflushed: list[GroupedConnection] = []
        self._lone_reads = 0
        # Only uvloop has the same time during a whole iteration, so that reads of the same iteration can be recognized.
        self._has_iteration_time = self.loop.time() == self.loop.time()
        self.lone_reader: GroupedConnection | None = None  # the connection whose data is handled at once
        self._last_read_at = -1.0
        # A client learns how long an idle connection stays open. Connection names the header, so that proxies drop it.
        seconds = int(limits.idle_timeout)
        self.keep_alive = b"connection: keep-alive\r\nkeep-alive: timeout=%d\r\n" % seconds if seconds else b""
        self._set_date()
        timeouts = (limits.header_timeout, limits.body_timeout, limits.idle_timeout)
        self._sweep_interval = max(_MIN_SWEEP_INTERVAL_S, min(_MAX_SWEEP_INTERVAL_S, *timeouts))
        self._is_sweep_scheduled = False

    def receive(self, connection: GroupedConnection, data: bytes) -> None:
        """Add data to the batch of this loop iteration. If only one client is active, handle the data at once."""
        if self._lone_reads >= _LONE_READS:
            now = self.loop.time()  # This is the time at which the loop iteration began.
            if now != self._last_read_at:
                self.lone_reader, self._last_read_at = connection, now
                connection.handle_data(data)
                return
            self._lone_reads = 0
        self.lone_reader = None
        if not self._batch:
            self.loop.call_soon(self.run_batch)
        self._batch.append((connection, data))

    def run_batch(self) -> None:
        """Handle the data of all connections, and then write their responses."""
        batch, self._batch = self._batch, []
        if not batch:
            return
        self._lone_reads = self._lone_reads + 1 if len(batch) == 1 and self._has_iteration_time else 0
        self.is_in_batch = True
        end = time.monotonic() + _MAX_BATCH_S
        try:
            for connection, data in batch:
                try:
                    if time.monotonic() < end:
                        connection.handle_data(data)
                    else:
                        connection.defer_data(data)
                except Exception as exc:  # Continue with the data of the other connections.
                    self._handle_failure(connection, exc)
        finally:
            self.is_in_batch = False
            self._flush()

    def add_turn(self, connection: GroupedConnection, *, is_first: bool = False) -> None:
        """Call `take_turn` of a connection after the other connections had their turns.

        Args:
            is_first: If True, the connection had no turn for this data yet. It waits only for others of this kind.
        """
        (self._first_turns if is_first else self._turns).append(connection)
        self._schedule_turns()

    def _schedule_turns(self) -> None:
        if not self._has_scheduled_turns:
            self._has_scheduled_turns = True
            self.loop.call_soon(self._run_turns)

    def _run_turns(self) -> None:
        self._has_scheduled_turns = False
        end = time.monotonic() + _MAX_BATCH_S
        first_turns, turns = self._first_turns, self._turns
        self.is_in_batch = True
        try:
            for _ in range(len(first_turns) + len(turns)):
                if time.monotonic() >= end:
                    break
                # Both kinds of turns alternate, so that neither waits for ever.
                self._was_first_turn = bool(first_turns) and not (self._was_first_turn and turns)
                connection = (first_turns if self._was_first_turn else turns).popleft()
                try:
                    connection.take_turn()
                except Exception as exc:
                    self._handle_failure(connection, exc)
        finally:
            self.is_in_batch = False
            self._flush()
        if first_turns or turns:
            self._schedule_turns()

    def _handle_failure(self, connection: GroupedConnection, exc: Exception) -> None:
        log.error("a connection failed", exc_info=exc)
        connection.abort()

    def flush_later(self, connection: GroupedConnection) -> None:
        """Write the held data of a connection at the end of the batch. Without a batch, write after this iteration."""
        if not self._unflushed and not self.is_in_batch:
            self.loop.call_soon(self._flush)
        self._unflushed.append(connection)

    def _flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, []
        for connection in unflushed:
            connection.flush()

    def add_connection(self, connection: GroupedConnection) -> None:
        """Watch a new connection."""
        self.connections.add(connection)
        if not self._is_sweep_scheduled:
            self._schedule_sweep()

    def _set_date(self) -> None:
        self.date = _format_date(time.gmtime())  # the Date header of responses. RFC 9110, section 6.6.1
        self.date_and_keep_alive = self.date + self.keep_alive

    def _schedule_sweep(self) -> None:
        self._is_sweep_scheduled = True
        self._set_date()
        self.loop.call_later(self._sweep_interval, self._sweep)

    def _sweep(self) -> None:
        self._is_sweep_scheduled = False
        self.run_batch()  # A connection with a request in the batch is not idle.
        now = self.loop.time()
        for connection in tuple(self.connections):
            if now >= connection.deadline:
                connection.handle_timeout()
        if self.connections:
            self._schedule_sweep()


def _format_date(moment: time.struct_time) -> bytes:
    """Return a Date header in English. `strftime` would use the locale of the process."""
    day, month = _DAYS[moment.tm_wday], _MONTHS[moment.tm_mon - 1]
    clock = f"{moment.tm_hour:02}:{moment.tm_min:02}:{moment.tm_sec:02}"
    return f"date: {day}, {moment.tm_mday:02} {month} {moment.tm_year} {clock} GMT\r\n".encode()
