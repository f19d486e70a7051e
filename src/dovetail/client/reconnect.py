"""The connection of a client, which all callers share.

After a loss, the connection is opened again. Any caller may close it.

This module also decides which requests are sent again. A request that may have run is sent again only if it is safe to
repeat. Otherwise the caller gets OutcomeUnknown.
"""

import asyncio
import contextvars
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from dovetail.backoff import compute_backoff
from dovetail.client.connection import TRANSIENT_STATUS_CODES, Connection
from dovetail.client.deadlines import DeadlineTimer, ProgressHandler, RequestDeadline
from dovetail.error_context import add_context
from dovetail.errors import (
    ConnectError,
    ConnectionLost,
    HTTPStatusError,
    MCPError,
    OutcomeUnknown,
    RateLimited,
    RequestTimeout,
    TransportError,
)
from dovetail.log import log_and_suppress, log_failure
from dovetail.protocol.client_messages import RequestEncoder, create_unsupported_error
from dovetail.protocol.interfaces.client_transport import Headers, describe_request
from dovetail.protocol.limits import ClientLimits
from dovetail.wire.base import Struct

_FIRST_RETRY_DELAY_S: Final = 0.2
_MAX_RETRY_DELAY_S: Final = 5.0
_PROXY_LOSS_STATUS_CODES: Final = (502, 504)
_CLEANUP_TIMEOUT_S: Final = 10.0  # Ten seconds are enough to kill a child process.

OpenConnection = Callable[[], Any]


class SendOptions(Struct, frozen=True, kw_only=True):
    idle_timeout: float
    total_timeout: float
    progress_handler: ProgressHandler | None = None
    meta: Mapping[str, Any] | None = None
    can_repeat: bool = False  # True if it is safe to run the request twice
    # If True, the request is sent even if the server did not declare the required capability.
    ignore_capabilities: bool = False


class Reconnector:
    """Stores the connection of a client, and opens a new connection when needed."""

    def __init__(self, name: str, open_connection: OpenConnection, limits: ClientLimits) -> None:
        self._name = name
        self._open_connection = open_connection
        self._limits = limits
        self._connection: Connection | None = None
        self._open_task: asyncio.Task[Connection] | None = None
        # Cancelled attempts to connect. Some may still be stopping a process.
        self._abandoned_tasks: set[asyncio.Task[Connection]] = set()
        self._waiter_count = 0
        self._failure_count = 0
        self._retry_at = 0.0
        self._is_closed = False
        # The connection lives longer than the request that opens it, so it must not use the request's context.
        self._context = contextvars.copy_context()
        self._deadlines: DeadlineTimer | None = None
        self.open_count = 0

    @property
    def current(self) -> Connection | None:
        connection = self._connection
        return connection if connection is not None and connection.lost_error is None else None

    @property
    def is_closed(self) -> bool:
        """Return whether the client was closed. Requests of a closed client do not open a connection."""
        return self._is_closed

    @property
    def encoder(self) -> RequestEncoder | None:
        """Return the request encoder for the open connection, or None."""
        connection = self._connection
        return connection.encoder if connection is not None and connection.lost_error is None else None

    @property
    def deadlines(self) -> DeadlineTimer:
        """Return the timer that limits how long callers wait for a connection."""
        if self._deadlines is None or self._deadlines.loop is not asyncio.get_running_loop():
            self._deadlines = DeadlineTimer()
        return self._deadlines

    async def get_connection(self, deadline: RequestDeadline | None = None) -> Connection:
        """Return an open connection. Callers share one attempt to connect, and each caller waits until its deadline."""
        connection = self._connection
        if connection is not None and connection.lost_error is None:
            return connection
        if self._is_closed:
            raise self._closed_error()
        open_task = self._open_task
        if open_task is None or open_task.done():
            open_task = self._open_task = asyncio.get_running_loop().create_task(
                self._open_again(), context=self._context.copy()
            )
            open_task.add_done_callback(log_failure)
        try:
            return await self._wait_for_open(open_task, deadline)
        except asyncio.CancelledError:
            # The event loop may close soon, so this caller waits until the cancelled attempt has ended.
            if open_task in self._abandoned_tasks:
                await asyncio.wait([open_task], timeout=_CLEANUP_TIMEOUT_S)
            raise

    async def _wait_for_open(self, open_task: asyncio.Task[Connection], deadline: RequestDeadline | None) -> Connection:
        self._waiter_count += 1
        if deadline is not None:
            self.deadlines.start(deadline, deadline)
        try:
            return await asyncio.shield(open_task)
        except asyncio.CancelledError:
            # Only this caller timed out. The attempt continues for the other callers.
            if deadline is not None and deadline.is_cancel_cause():
                raise RequestTimeout(
                    f"{deadline.describe_timeout()} while waiting for the connection to open"
                ) from None
            task = asyncio.current_task()
            if open_task.cancelled() and task is not None and not task.cancelling():
                # Another caller closed the client.
                raise self._closed_error() from None
            if self._waiter_count == 1 and self._open_task is open_task:
                # No other caller waits for this attempt, so the attempt is cancelled.
                self._abandon_open(open_task)
            raise
        finally:
            self._waiter_count -= 1
            if deadline is not None:
                self.deadlines.stop(deadline)

    def _abandon_open(self, open_task: asyncio.Task[Connection]) -> None:
        self._open_task = None
        if not open_task.done():
            self._abandoned_tasks.add(open_task)
            open_task.add_done_callback(self._abandoned_tasks.discard)
            open_task.cancel()

    def _closed_error(self) -> ConnectionLost:
        error = add_context(
            ConnectionLost("the client is closed"), server=self._name, hint="call connect() to open it again"
        )
        error.maybe_sent = False
        return error

    async def _open_again(self) -> Connection:
        loop = asyncio.get_running_loop()
        previous, self._connection = self._connection, None
        if previous is not None:
            with log_and_suppress(MCPError):
                await previous.close()
        await asyncio.sleep(max(0.0, self._retry_at - loop.time()))
        try:
            connection = await self._open_connection()
        except MCPError:
            self._failure_count += 1
            delay = compute_backoff(self._limits.reconnect_delay, self._failure_count - 1, _MAX_RETRY_DELAY_S)
            self._retry_at = loop.time() + delay
            raise
        self._failure_count = 0
        self._retry_at = loop.time() + self._limits.reconnect_delay
        self._connection = connection
        self.open_count += 1
        return connection

    async def request(self, method: str, params: Any, options: SendOptions, headers: Headers = ()) -> Any:
        """Send a request and return its result, which is not decoded yet.

        If the connection is lost or the server is busy, the request is sent again if that is safe.
        """
        # One deadline covers all attempts and delays.
        deadline = RequestDeadline(options.idle_timeout, options.total_timeout, options.progress_handler)
        attempt = 0
        while True:
            connection = self._connection
            try:
                if connection is None or connection.lost_error is not None:
                    connection = await self.get_connection(deadline)
                if method in connection.unsupported_methods and not options.ignore_capabilities:
                    raise add_context(
                        create_unsupported_error(method),
                        server=self._name,
                        step=describe_request(method, params),
                        protocol_version=connection.revision,
                    )
                return await connection.request(method, params, deadline, meta=options.meta, headers=headers)
            except (TransportError, RateLimited) as exc:
                attempt += 1
                delay = self._get_retry_delay(exc, attempt, options.can_repeat)
                if delay is None or deadline.is_due_within(delay):
                    raise _to_outcome_unknown(
                        add_context(exc, server=self._name, step=describe_request(method, params)), options.can_repeat
                    ) from exc.__cause__
            await asyncio.sleep(delay)

    def _get_retry_delay(self, exc: MCPError, attempt: int, can_repeat: bool) -> float | None:
        if attempt > self._limits.max_retries or isinstance(exc, RequestTimeout) or self._is_closed:
            return None
        if isinstance(exc, ConnectionLost):
            return _compute_backoff(attempt) if can_repeat or not exc.maybe_sent else None
        if isinstance(exc, ConnectError):
            # The server was reachable earlier, so it may be restarting.
            return _compute_backoff(attempt) if self.open_count else None
        if can_repeat and (isinstance(exc, RateLimited) or exc.status_code in TRANSIENT_STATUS_CODES):
            retry_after = exc.retry_after if isinstance(exc, RateLimited | HTTPStatusError) else None
            return _compute_backoff(attempt) if retry_after is None else min(retry_after, _MAX_RETRY_DELAY_S)
        return None

    async def close(self) -> None:
        """Close the connection. The client does not connect again until `allow_reopen` is called."""
        self._is_closed = True
        if not self._failure_count:
            # After an intentional close, the next connection needs no delay.
            self._retry_at = 0.0
        if self._open_task is not None:
            self._abandon_open(self._open_task)
        try:
            if self._abandoned_tasks:
                await asyncio.wait(self._abandoned_tasks)
        finally:
            if self._deadlines is not None:
                self._deadlines.close()
            current, self._connection = self._connection, None
            if current is not None:
                await current.close()

    def allow_reopen(self) -> None:
        """Let a closed client connect again, without a delay."""
        if self._is_closed:
            self._is_closed = False
            self._retry_at = 0.0

    def abandon(self) -> None:
        """Drop the connection without closing it, because its event loop is closed."""
        self._connection = self._open_task = self._deadlines = None
        self._abandoned_tasks.clear()
        self._waiter_count = 0


def _compute_backoff(attempt: int) -> float:
    # Many clients may lose their connections at once, so the delay is random.
    return compute_backoff(_FIRST_RETRY_DELAY_S, attempt - 1, _MAX_RETRY_DELAY_S) * random.uniform(0.5, 1.0)


def _to_outcome_unknown(exc: MCPError, can_repeat: bool) -> MCPError:
    """Convert an error to OutcomeUnknown if the server may have run the request."""
    if can_repeat or isinstance(exc, OutcomeUnknown):
        return exc
    is_lost = isinstance(exc, ConnectionLost) and exc.maybe_sent
    # A proxy sends these codes if it has lost its connection to the server, perhaps after it passed the request on.
    is_lost_behind_proxy = isinstance(exc, HTTPStatusError) and exc.status_code in _PROXY_LOSS_STATUS_CODES
    if not is_lost and not is_lost_behind_proxy:
        return exc
    return create_outcome_unknown(
        exc,
        f"{exc.args[0]}. The request was sent and may have run, so it was not repeated",
        exc.hint
        or "check whether the request took effect before you call again, or use call_tool(..., retry=True) "
        "if it may run twice",
    )


def create_outcome_unknown(cause: MCPError, message: str, hint: str) -> OutcomeUnknown:
    """Return an OutcomeUnknown with the context of the error that caused it."""
    return add_context(
        OutcomeUnknown(message),
        server=cause.server,
        step=cause.step,
        protocol_version=cause.protocol_version,
        status_code=cause.status_code,
        exit_code=cause.exit_code,
        stderr=cause.stderr,
        hint=hint,
    )
