"""The changes of a server in a cluster. Each worker hears the changes of all workers, in the order of the change log.

Listeners in the worker that publishes a change hear it at once. The other workers hear it through the change log. If
the log is not available, they hear it later. A call that publishes a change is answered after the log has the change.
"""

import asyncio
import contextvars
import itertools
from collections.abc import Callable
from typing import Final

from dovetail.backoff import compute_backoff
from dovetail.cluster.change_messages import CHANGE, SESSION_NOTICE, Change, SessionNotice, encode_body, read_change
from dovetail.log import ThrottledLog
from dovetail.protocol.interfaces.shared_state import MAX_CHANGE_BYTES, Message, SharedStateUnavailable, SharedWorker
from dovetail.protocol.subscription_filter import EVERYTHING

_MAX_PENDING: Final = 1000  # If more messages wait for the change log, they become one message that everything changed.
_FIRST_RETRY_DELAY_S: Final = 0.1
_MAX_RETRY_DELAY_S: Final = 2.0
_CLOSE_TIMEOUT_S: Final = 1.0

_EVERYTHING: Final = (CHANGE, encode_body(Change(EVERYTHING)))
_large_notice_warning: Final = ThrottledLog()


class ClusterChanges:
    """Shares the changes of one server with the other workers of its cluster.

    `receive_change` is called for each change of another worker, with the method and the URI.
    """

    def __init__(self, cluster: SharedWorker, receive_change: Callable[[str, str | None], None]) -> None:
        self._cluster = cluster
        self._receive_change = receive_change
        self._loop: asyncio.AbstractEventLoop | None = None
        # Messages that wait for the change log: kind and body. The same change waits only once.
        self._pending: dict[tuple[str, bytes], None] = {}
        self._is_failing = False
        self._send_task: asyncio.Task[None] | None = None
        self._waiters: list[asyncio.Future[None]] = []  # calls that wait until the change log has their changes
        self._numbers = itertools.count(1)
        self.last_number = 0  # the number of the newest change. A call compares it with an older value
        cluster.add_handler(CHANGE, self._receive)
        cluster.add_gap_handler(self._handle_gap)

    def start(self) -> None:
        """Send changes from now on. Earlier changes have no listeners in other workers."""
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        """Send the waiting changes, and stop."""
        self._loop = None
        if self._send_task is not None and not self._send_task.done():
            if not self._is_failing:
                await asyncio.wait([self._send_task], timeout=_CLOSE_TIMEOUT_S)
            self._send_task.cancel()
        self._pending.clear()

    def publish(self, method: str, uri: str | None) -> None:
        """Send a change to the other workers. Any thread may call this method."""
        self._send_soon(CHANGE, encode_body(Change(method, uri)))

    def send_to_session(self, session_id: str, method: str, message: bytes) -> None:
        """Send a notification to the worker that has the GET stream of a session. Any thread may call this method."""
        self._send_soon(SESSION_NOTICE, encode_body(SessionNotice(session_id, method, message.decode())))

    def _send_soon(self, kind: str, body: bytes) -> None:
        if len(body) > MAX_CHANGE_BYTES:
            if kind == SESSION_NOTICE:
                _large_notice_warning.log("a notification for one session is larger than %d bytes", MAX_CHANGE_BYTES)
                return
            kind, body = _EVERYTHING
        loop = self._loop
        if loop is not None:
            self.last_number = next(self._numbers)
            try:
                loop.call_soon_threadsafe(self._enqueue, kind, body, context=contextvars.Context())
            except RuntimeError:
                self._loop = None  # The event loop is closed.

    def _enqueue(self, kind: str, body: bytes) -> None:
        if self._loop is None:
            return  # The server has left the cluster meanwhile.
        self._pending[kind, body] = None
        if len(self._pending) > _MAX_PENDING:
            notices = [key for key in self._pending if key[0] == SESSION_NOTICE]
            self._pending = dict.fromkeys([_EVERYTHING, *notices[-_MAX_PENDING // 2 :]])
        if self._is_failing:
            self._deliver_early(kind, body)
        if self._send_task is None or self._send_task.done():
            self._send_task = self._loop.create_task(self._send_pending())

    async def wait_until_sent(self) -> None:
        """Wait until the change log has all changes up to now. Do not wait while the log is not available.

        A call that has changed something waits before its answer. Otherwise the change would be lost if the worker is
        killed after the answer.
        """
        await asyncio.sleep(0)  # Let `_enqueue` run.
        loop, is_sending = asyncio.get_running_loop(), self._send_task is not None and not self._send_task.done()
        if is_sending and not self._is_failing and loop is self._loop:
            is_sent = loop.create_future()
            self._waiters.append(is_sent)
            await is_sent

    async def _send_pending(self) -> None:
        failed_attempts = 0
        try:
            while self._pending or self._waiters:
                # The changes of these calls are in `_pending` now, or in the change log already.
                waiters, self._waiters = self._waiters, []
                try:
                    is_sent = await self._send_messages(len(self._pending))
                finally:
                    _wake(waiters)
                if is_sent:
                    failed_attempts = 0
                else:
                    _wake(self._waiters)
                    await asyncio.sleep(compute_backoff(_FIRST_RETRY_DELAY_S, failed_attempts, _MAX_RETRY_DELAY_S))
                    failed_attempts += 1
        finally:
            _wake(self._waiters)

    async def _send_messages(self, count: int) -> bool:
        """Send the first messages. Return False if the change log is not available."""
        while count and self._pending:
            count -= 1
            # Remove the message first. An equal change during `publish` is a new change, so it needs another message.
            kind, body = next(iter(self._pending))
            del self._pending[kind, body]
            try:
                await self._cluster.state.publish(kind, body)
                self._is_failing = False
            except SharedStateUnavailable:
                waiting = [*self._pending]
                self._pending = {(kind, body): None, **self._pending}
                if not self._is_failing:
                    self._is_failing = True
                    for early_kind, early_body in [(kind, body), *waiting]:
                        self._deliver_early(early_kind, early_body)
                return False
        return True

    def _deliver_early(self, kind: str, body: bytes) -> None:
        """Pass a message to the GET streams of this worker, because the change log is not available."""
        self._cluster.receive(Message(kind, body, self._cluster.name))

    def _receive(self, message: Message) -> None:
        if message.sender != self._cluster.name:  # The listeners in this worker have heard its changes already.
            change = read_change(message)
            self._receive_change(change.method, change.uri)

    def _handle_gap(self) -> None:
        self._receive_change(EVERYTHING, None)


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
