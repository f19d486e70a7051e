"""The response to a GET request that sends an event stream.

All stream readers use this response. The reader provides the events. The response decides when to end, and when to send
a comment. Comments keep proxies from closing the connection.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from dovetail.eager_tasks import EagerTaskStarter, EagerWorker
from dovetail.protocol import sse
from dovetail.transports.http1.server_request import Send
from dovetail.transports.http_server.http_request import EndpointRequest
from dovetail.transports.http_server.streams.http_response import STREAM_HEADERS, wait_for_disconnect
from dovetail.transports.http_server.streams.shared_timer import DueTimes, SharedTimer


class StreamResponse:
    """Sends the events of one reader until the client disconnects, its credentials expire, or the reader ends.

    Args:
        send_events: Passes all pending events to `write`. The response calls it at the start and after each `wake`.
        encode_comment: Returns the comment that the response sends after a time without events.
    """

    __slots__ = (
        "_due_times",
        "_encode_comment",
        "_is_comment_due",
        "_is_disconnected",
        "_keep_alive",
        "_send",
        "_send_events",
        "_worker",
        "is_open",
    )

    def __init__(
        self,
        send: Send,
        keep_alive: SharedTimer,
        starter: EagerTaskStarter,
        send_events: Callable[[], Coroutine[Any, Any, None]],
        encode_comment: Callable[[], bytes] = sse.encode_comment,
    ) -> None:
        self._send = send
        self._keep_alive = keep_alive
        self._send_events = send_events
        self._encode_comment = encode_comment
        self._due_times: DueTimes = {}
        self._is_comment_due = False
        self._is_disconnected = False
        self.is_open = True  # False after the client disconnected, or after `close`
        self._worker = EagerWorker(self._work, starter)

    def wake(self) -> None:
        """Send the pending events."""
        if self.is_open:
            self._worker.wake()

    def close(self) -> None:
        """End the response after the current event."""
        self.is_open = False
        self._worker.close()

    async def write(self, data: bytes) -> None:
        """Send one event, and restart the timer for the next comment."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._is_comment_due = False
        self._due_times.pop(self, None)
        if self.is_open:
            self._due_times = self._keep_alive.add(self)

    async def run(self, request: EndpointRequest, first_event: bytes = b"") -> None:
        """Send the headers, `first_event`, and then all events. Return when the response has ended."""
        headers = [*STREAM_HEADERS, *request.cors_headers]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        loop = asyncio.get_running_loop()
        watch_task = loop.create_task(self._watch_disconnect(request))
        expiry_timer = None if request.valid_for is None else loop.call_later(request.valid_for, self.close)
        self._due_times = self._keep_alive.add(self)
        try:
            if first_event:
                await self.write(first_event)
            await self._worker.run()
        finally:
            self.is_open = False
            watch_task.cancel()
            self._due_times.pop(self, None)
            if expiry_timer is not None:
                expiry_timer.cancel()
        if not self._is_disconnected:
            await self._send({"type": "http.response.body", "body": b""})

    async def _work(self) -> None:
        await self._send_events()
        while self._is_comment_due and self.is_open:
            self._is_comment_due = False
            await self._send({"type": "http.response.body", "body": self._encode_comment(), "more_body": True})
            await self._send_events()  # Send the events that arrived while the comment was sent.

    def handle_timer(self) -> None:
        """Send a comment to keep the stream open."""
        self._due_times = self._keep_alive.add(self)
        self._is_comment_due = True
        self._worker.wake()

    async def _watch_disconnect(self, request: EndpointRequest) -> None:
        await wait_for_disconnect(request.receive)
        self._is_disconnected = True
        self.close()
