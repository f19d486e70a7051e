"""Wait for a task on a server. This module works with every client and transport.

The server reports changes of the task if it accepts a subscription. Otherwise the task is polled. A lost connection is
retried. The server is not trusted: all waits and the number of its questions are limited.
"""

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from dovetail.backoff import compute_backoff
from dovetail.client.connection import TRANSIENT_STATUS_CODES
from dovetail.error_context import clip
from dovetail.errors import (
    ConnectError,
    ConnectionLost,
    HTTPStatusError,
    InputRequestError,
    InternalError,
    InvalidParams,
    InvalidResult,
    MCPError,
    NotMCPServer,
    ProcessStartError,
    RateLimited,
    RemoteError,
    RequestTimeout,
)
from dovetail.log import log_failure
from dovetail.protocol.limits import ClientLimits
from dovetail.tasks.task_messages import DetailedTask, Task
from dovetail.tasks.task_record import is_final
from dovetail.wire.codec import encode_canonical
from dovetail.wire.input_required import InputRequest

# Many tasks are short, so the first polls are sent quickly. Later, the client uses the server's interval.
_FIRST_POLL_S: Final = 0.05
_MIN_POLL_S: Final = 0.05
_DEFAULT_POLL_S: Final = 1.0
_MAX_POLL_S: Final = 60.0
# A server may stop sending notifications without closing the stream, so the task is polled now and then.
_SUBSCRIBED_POLL_S: Final = 30.0
_MAX_RETRY_DELAY_S: Final = 5.0

# After one of these errors, the next attempt may succeed.
_TRANSIENT_ERRORS: Final = (ConnectionLost, ConnectError, ProcessStartError, RequestTimeout, NotMCPServer, RateLimited)

AnswerRequests = Callable[[Mapping[str, InputRequest]], Awaitable[dict[str, Any]]]
OnChange = Callable[[Task], None]


class TaskServer(Protocol):
    """Sends requests about a task to its server. All these requests are safe to repeat."""

    @property
    def is_closed(self) -> bool:
        """Return whether the client was closed. Then no request can succeed."""
        ...

    async def get_task(self, id: str) -> DetailedTask:
        """Send tasks/get. Raise TaskLost if the server does not know the task."""
        ...

    async def update_task(self, id: str, responses: Mapping[str, Any]) -> None:
        """Send tasks/update."""
        ...

    async def cancel_task(self, id: str) -> None:
        """Send tasks/cancel."""
        ...

    async def listen(self, task: "RemoteTask") -> None:
        """Subscribe to a task with subscriptions/listen. Call the task's `handle_...` methods until the stream ends.

        Raise NotSupported if the server does not accept the subscription.
        """
        ...


class RemoteTask:
    """A task that runs on a server. This object stores the last known state and digests of the server's questions."""

    def __init__(
        self, task: Task, server: TaskServer, answer: AnswerRequests, *, limits: ClientLimits, contact_timeout: float
    ) -> None:
        self.id = task.task_id
        self.state = task
        self._server = server
        self._answer = answer
        self._limits = limits
        # If the server does not answer, a request is retried for this many seconds.
        self._contact_timeout = contact_timeout
        self._fingerprints: dict[str, bytes] = {}  # Maps the key of each question to its digest.
        self._answered_keys: set[str] = set()
        self._round_count = 0
        self._poll_count = 0  # the number of polls since the last change of the task
        self._notified_state: DetailedTask | None = None
        self._is_subscribed = False
        self._wakeup = asyncio.Event()
        if isinstance(task, DetailedTask):
            self._check(task)

    async def wait(self, on_change: OnChange) -> DetailedTask:
        """Wait until the task has ended, and answer its questions meanwhile. Call `on_change` after each change.

        Raises:
            TaskLost: the server does not know the task.
            InputRequestError: a question could not be answered, or the server has asked too many questions.
            InvalidResult: the server violates the protocol.
        """
        listener: asyncio.Task[None] | None = None
        self._poll_count = 0
        self._wakeup = asyncio.Event()  # Another call of this method may run in another event loop.
        try:
            while True:
                state = self.state
                if isinstance(state, DetailedTask):
                    if is_final(state.status):
                        return state
                    if state.input_requests:
                        await self._answer_requests(state.input_requests)
                    if listener is None:
                        listener = asyncio.get_running_loop().create_task(self._listen())
                        listener.add_done_callback(log_failure)
                if self._accept(await self._wait_for_state()):
                    on_change(self.state)
        finally:
            if listener is not None:
                listener.cancel()

    async def fetch(self) -> Task:
        """Return the state of the task as it is now, without waiting for a change."""
        if not (isinstance(self.state, DetailedTask) and is_final(self.state.status)):
            self._accept(await self._retry(lambda: self._server.get_task(self.id)))
        return self.state

    async def cancel(self) -> None:
        """Ask the server to cancel the task."""
        if not is_final(self.state.status):
            await self._retry(lambda: self._server.cancel_task(self.id))

    # `TaskServer.listen` calls these functions.

    def handle_subscribed(self) -> None:
        """Handle the acknowledgement of the subscription. Poll once, because earlier changes were not reported."""
        self._is_subscribed = True
        self._wakeup.set()

    def handle_state(self, state: DetailedTask) -> None:
        """Handle a notification with the state of the task. Only the newest state matters."""
        self._notified_state = state
        self._wakeup.set()

    def wake(self) -> None:
        """Poll the server now and not later, for example to notice that the client was closed."""
        self._wakeup.set()

    async def _wait_for_state(self) -> DetailedTask:
        """Wait for a notification or for the next poll, and return the state of the task."""
        # If the task has already ended, fetch its result without waiting.
        if not is_final(self.state.status):
            try:
                async with asyncio.timeout(self._get_poll_delay()):
                    await self._wakeup.wait()
            except TimeoutError:
                pass
        self._wakeup.clear()
        state, self._notified_state = self._notified_state, None
        if state is not None:
            return state
        self._poll_count += 1
        return await self._retry(lambda: self._server.get_task(self.id))

    def _get_poll_delay(self) -> float:
        if self._is_subscribed:
            return _SUBSCRIBED_POLL_S
        interval_ms = self.state.poll_interval_ms
        # A JSON integer may be too large for a float.
        interval = _DEFAULT_POLL_S if interval_ms is None else min(interval_ms, _MAX_POLL_S * 1000) / 1000
        return max(_MIN_POLL_S, compute_backoff(_FIRST_POLL_S, self._poll_count, interval))

    async def _retry(self, send: Callable[[], Awaitable[Any]]) -> Any:
        loop = asyncio.get_running_loop()
        gives_up_at, attempt = loop.time() + self._contact_timeout, 0
        while True:
            try:
                return await send()
            except MCPError as exc:
                delay = compute_backoff(self._limits.reconnect_delay, attempt, _MAX_RETRY_DELAY_S)
                if isinstance(exc, RateLimited | HTTPStatusError) and exc.retry_after is not None:
                    delay = min(max(exc.retry_after, _MIN_POLL_S), _MAX_POLL_S)
                if not _is_transient(exc) or self._server.is_closed or loop.time() + delay > gives_up_at:
                    raise
            attempt += 1
            await asyncio.sleep(delay * random.uniform(0.8, 1.0))

    def _accept(self, state: DetailedTask) -> bool:
        """Check and store a state from the server. Return whether something has changed."""
        self._check(state)
        previous, self.state = self.state, state
        has_changed = _get_progress(previous) != _get_progress(state)
        if has_changed and previous.status != state.status:
            self._poll_count = 0
        return has_changed

    def _check(self, state: DetailedTask) -> None:
        if state.task_id != self.id:
            raise InvalidResult("the server sent the state of another task")
        if state.status == "completed" and state.result is None:
            raise InvalidResult("the task is completed, but it has no result")
        if state.status == "failed" and state.error is None:
            raise InvalidResult("the task has failed, but it has no error")
        requests = state.input_requests or {}
        if len(requests) > self._limits.max_input_requests:
            raise InputRequestError(
                f"the server sent {len(requests)} input requests at once, more than the limit of "
                f"{self._limits.max_input_requests}"
            )
        for key, request in requests.items():
            # The specification forbids using a key for two questions.
            if self._fingerprints.get(key, fingerprint := _compute_fingerprint(request)) != fingerprint:
                raise InvalidResult(f"the server changed the input request {clip(key)!r} of a task")

    async def _answer_requests(self, requests: Mapping[str, InputRequest]) -> None:
        open_requests = {key: request for key, request in requests.items() if key not in self._answered_keys}
        if not open_requests:
            return
        self._round_count += 1
        if self._round_count > self._limits.max_input_rounds:
            raise InputRequestError(f"the server asked for input more than {self._limits.max_input_rounds} times")
        responses: dict[str, Any] = {}
        failure: InputRequestError | None = None
        for key, request in open_requests.items():
            self._fingerprints[key] = _compute_fingerprint(request)
            try:
                responses |= await self._answer({key: request})
            except InputRequestError as exc:
                failure = exc
                break
        # Send the user's answers even if another question failed.
        if responses:
            await self._send_answers(responses)
        if failure is not None:
            raise failure
        self._poll_count = 0

    async def _send_answers(self, responses: Mapping[str, Any]) -> None:
        try:
            await self._retry(lambda: self._server.update_task(self.id, responses))
        except RemoteError as exc:
            if exc.code != InvalidParams.code:
                raise
            # Either the task is unknown or an answer is invalid. `get_task` raises TaskLost if the task is unknown.
            await self._server.get_task(self.id)
            raise InputRequestError(f"the server refused an answer: {clip(exc.message, 300)}") from exc
        self._answered_keys.update(responses)

    async def _listen(self) -> None:
        """Subscribe to the task until it ends. Return early if the server does not support subscriptions."""
        for attempt in range(self._limits.max_reconnects + 1):
            try:
                await self._server.listen(self)
            except MCPError as exc:
                if not _is_transient(exc):
                    return
            finally:
                if self._is_subscribed:
                    self._is_subscribed = False
                    self._wakeup.set()
            delay = compute_backoff(self._limits.reconnect_delay, attempt, self._limits.max_reconnect_delay)
            await asyncio.sleep(delay * random.uniform(1.0, 1.2))


def _get_progress(task: Task) -> tuple[object, ...]:
    """Return the fields that show progress. `lastUpdatedAt` is left out, because some servers always change it."""
    return task.status, task.status_message


def _is_transient(exc: MCPError) -> bool:
    # A server that is stopping answers with status 503 and a JSON-RPC error.
    # An internal error may be temporary. For example, the server cannot reach its database.
    return (
        isinstance(exc, _TRANSIENT_ERRORS)
        or exc.status_code in TRANSIENT_STATUS_CODES
        or (isinstance(exc, RemoteError) and exc.code == InternalError.code)
    )


def _compute_fingerprint(request: InputRequest) -> bytes:
    return hashlib.sha256(encode_canonical(request)).digest()
