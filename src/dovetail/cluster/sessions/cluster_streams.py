"""The event streams of an endpoint in a cluster: replies that are stored, and the GET streams of sessions.

A client can resume each stream at any worker.
"""

import contextvars
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from dovetail.background_tasks import BackgroundTasks
from dovetail.cluster.background_work import wait_until_empty
from dovetail.cluster.sessions import notice_stream
from dovetail.cluster.sessions.notice_streams import NoticeStreams, UpdateRecord
from dovetail.cluster.sessions.stored_response import StoredResponseWriter, StoredStreamReader
from dovetail.cluster.sessions.stored_stream import StreamWriter, build_stream_key, parse_event_id
from dovetail.cluster.sessions.stream_readers import CLOSE_TIMEOUT_S, StreamReaders
from dovetail.eager_tasks import EagerTaskStarter
from dovetail.protocol.exchange import Service
from dovetail.protocol.headers import LAST_EVENT_HEADER
from dovetail.protocol.http_checks import Refusal, create_unavailable_refusal
from dovetail.protocol.interfaces.shared_state import SharedStateUnavailable, SharedWorker
from dovetail.transports.http_server.http_request import EndpointRequest
from dovetail.transports.http_server.sessions.handshake_session import HandshakeSession
from dovetail.transports.http_server.streams.http_response import ResponseTimers
from dovetail.transports.spool import MemoryBudget
from dovetail.wire.jsonrpc import RequestId


class ClusterStreams:
    """The event streams of one endpoint of one worker."""

    def __init__(
        self,
        service: Service,
        cluster: SharedWorker,
        timers: ResponseTimers,
        budget: MemoryBudget,
        update_record: UpdateRecord,
    ) -> None:
        self.state = cluster.state
        self.limits = service.limits
        self.timers = timers
        self.budget = budget
        self.writers: dict[str, StreamWriter] = {}
        self.unstored_bytes = 0
        self._cluster = cluster
        self._stream_count = 0
        self._tasks = BackgroundTasks()
        self._starter: EagerTaskStarter | None = None
        self._readers = StreamReaders(cluster, self.writers, self._tasks)
        self._notice_streams = NoticeStreams(
            service, cluster, self._readers, timers.keep_alive, self._tasks, update_record
        )
        self._handler_removers: list[Callable[[], None]] = []

    def _start(self) -> None:
        """Receive messages of other workers. An endpoint that was never used, or is closed, receives none."""
        if not self._handler_removers:
            self._handler_removers = [*self._readers.start(), *self._notice_streams.start()]

    def create_stream_name(self) -> str:
        """Return the name of a new stream."""
        self._stream_count += 1
        return f"{self._cluster.name}.{self._stream_count}"

    def create_writer(
        self, request: EndpointRequest, session: HandshakeSession, ids: Sequence[RequestId]
    ) -> StoredResponseWriter:
        """Create the response for a request, or for a batch of requests."""
        self._start()
        return StoredResponseWriter(self, request, session, ids)

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in a task. When the endpoint closes, it cancels the task after a timeout."""
        self._tasks.start(work)

    async def end_readers(self) -> None:
        """End the responses to GET requests, and store what their clients have received."""
        self._readers.close()
        await self._readers.wait_closed()

    async def store_replies(self) -> None:
        """Store the events that are not stored yet. No call runs any more."""
        await wait_until_empty(self.writers, CLOSE_TIMEOUT_S)
        self._readers.stop_checks()
        await self._tasks.close(CLOSE_TIMEOUT_S)

    async def close(self) -> None:
        """End all readers, and store the events that are not stored yet."""
        self._readers.close()
        self._readers.stop_checks()
        await self._tasks.close(CLOSE_TIMEOUT_S if self._cluster.is_started else 0.0)
        for remove in self._handler_removers:
            remove()
        self._handler_removers = []

    async def handle_get(self, request: EndpointRequest, session: HandshakeSession) -> None:
        """Handle a GET request. It opens or resumes the GET stream of a session, or resumes a reply."""
        self._start()
        event_id = request.headers.get(LAST_EVENT_HEADER, b"").decode("latin-1")
        try:
            if not event_id or notice_stream.parse_event_id(event_id) is not None:
                cursor = notice_stream.parse_event_id(event_id)
                await self._notice_streams.serve(request, session, cursor, self._get_starter())
            else:
                await self._resume_reply(request, session, event_id)
        except SharedStateUnavailable as exc:
            raise create_unavailable_refusal(exc.retry_after) from None

    async def _resume_reply(self, request: EndpointRequest, session: HandshakeSession, event_id: str) -> None:
        position = parse_event_id(event_id)
        if position is None:
            raise Refusal(400, "Last-Event-ID is not the ID of an event in this session")
        key = build_stream_key(session.handshake.caller.session_id, position.stream)
        try:
            part = await self.state.read_stream(key, position.number)
        except SharedStateUnavailable:
            if position.is_stored:
                raise
            part = None
        if part is None:
            if position.is_stored:
                raise Refusal(400, "The events after Last-Event-ID have been deleted")
            raise Refusal(400, "The events after Last-Event-ID are not stored")
        reader = StoredStreamReader(
            self.state,
            position.stream,
            key,
            position.number,
            request.send,
            self.timers.keep_alive,
            self._get_starter(),
        )
        record_version = None if part.is_ended else await self._readers.replace(key, reader.id, part)
        self._readers.add(session, key, reader)
        try:
            await reader.run(request)
        finally:
            self._readers.remove(session, key, reader)
            if not part.is_ended:
                report = self._readers.report_gone(
                    part.writer, key, reader.id, record_version, give_up_after=self.limits.replay_ttl
                )
                self.run_in_background(report)

    def _get_starter(self) -> EagerTaskStarter:
        if self._starter is None:
            self._starter = EagerTaskStarter(contextvars.Context())
        return self._starter
