"""The GET streams of sessions at one endpoint of a cluster.

A session has one GET stream. The record of the session names its worker and its reader. Each stream gets the changes
of the change log, in the order of the log.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias

from dovetail.background_tasks import BackgroundTasks
from dovetail.cluster.background_work import repeat_until_available
from dovetail.cluster.change_messages import CHANGE, SESSION_NOTICE, Change, encode_body, read_session_notice
from dovetail.cluster.sessions.notice_stream import NoticeStream
from dovetail.cluster.sessions.session_record import SessionRecord
from dovetail.cluster.sessions.stream_readers import StreamReaders
from dovetail.eager_tasks import EagerTaskStarter
from dovetail.protocol.exchange import Service
from dovetail.protocol.http_checks import Refusal
from dovetail.protocol.interfaces.shared_state import Message, SharedStateUnavailable, SharedWorker
from dovetail.protocol.subscription_filter import EVERYTHING
from dovetail.transports.http_server.http_request import EndpointRequest
from dovetail.transports.http_server.sessions.handshake_session import HandshakeSession
from dovetail.transports.http_server.streams.shared_timer import SharedTimer
from dovetail.wire.base import replace

_MAX_STREAMS_PER_ITERATION: Final = 200
_MAX_WAITING_MESSAGES: Final = 1000  # If more changes wait for the GET streams, everything counts as changed.

UpdateRecord: TypeAlias = Callable[
    [HandshakeSession, Callable[[SessionRecord], SessionRecord]], Awaitable[SessionRecord]
]


class NoticeStreams:
    """The GET streams of one endpoint."""

    def __init__(
        self,
        service: Service,
        cluster: SharedWorker,
        readers: StreamReaders,
        keep_alive: SharedTimer,
        tasks: BackgroundTasks,
        update_record: UpdateRecord,
    ) -> None:
        self._service = service
        self._cluster = cluster
        self._state = cluster.state
        self._readers = readers
        self._keep_alive = keep_alive
        self._tasks = tasks
        self._update_record = update_record
        self._streams: dict[str, NoticeStream] = {}  # by session
        self._messages: deque[Message] = deque()  # the messages that the streams have not received yet
        self._remaining: list[NoticeStream] = []  # the streams that have not received `_message` yet
        self._message: Message | None = None

    def start(self) -> list[Callable[[], None]]:
        """Receive changes. Return the functions that end this."""
        return [
            self._cluster.add_handler(CHANGE, self._receive),
            self._cluster.add_handler(SESSION_NOTICE, self._receive),
            self._cluster.add_gap_handler(self._handle_gap),
        ]

    async def serve(
        self, request: EndpointRequest, session: HandshakeSession, cursor: str | None, starter: EagerTaskStarter
    ) -> None:
        """Send the GET stream of a session until it ends. `cursor` is the last position that the client knows."""
        key = f"get:{session.handshake.caller.session_id}"
        stream = NoticeStream(
            session,
            self._service,
            request.principal,
            request.send,
            self._keep_alive,
            starter,
            self._cluster.name,
            self._readers.endpoint,
        )
        with self._readers.hold(stream):
            may_have_claim = True
            try:
                try:
                    with self._readers.wait_for_claim(key, stream):
                        seen, previous_worker = await self._claim(
                            session, key, stream.id, is_resumed=cursor is not None
                        )
                except Refusal:
                    may_have_claim = False
                    raise
                self._readers.add(session, key, stream)
                self._streams[session.handshake.caller.session_id] = stream
                await self._readers.announce(previous_worker, key, stream.id)
                await self._load(stream, cursor or seen)
                origin = request.principal or request.client_address
                session.start_watching(self._service, request.principal, origin)
                await stream.run(request)
            finally:
                await self._end(session, key, stream, may_have_claim=may_have_claim)

    async def _end(self, session: HandshakeSession, key: str, stream: NoticeStream, *, may_have_claim: bool) -> None:
        session_id = session.handshake.caller.session_id
        if self._streams.get(session_id) is stream:
            del self._streams[session_id]
            session.stop_watching()
        try:
            if may_have_claim:
                await self._release(session, stream)
        except SharedStateUnavailable:
            self._tasks.start(self._release_later(session, stream))
        finally:
            self._readers.remove(session, key, stream)

    async def _release_later(self, session: HandshakeSession, stream: NoticeStream) -> None:
        await repeat_until_available(
            partial(self._release, session, stream), give_up_after=self._service.limits.replay_ttl
        )

    async def _claim(self, session: HandshakeSession, key: str, reader: str, *, is_resumed: bool) -> tuple[str, str]:
        """Record that a reader has the GET stream. Return the position of the client, and the previous worker."""
        gone_reader = seen = previous_worker = previous_reader = ""

        def claim(record: SessionRecord) -> SessionRecord:
            nonlocal seen, previous_worker, previous_reader
            seen, previous_worker, previous_reader = record.seen, record.stream_worker, record.stream_reader
            if previous_reader not in ("", gone_reader) and not is_resumed:
                raise Refusal(409, "This session already has an open GET stream")
            return replace(record, stream_worker=self._cluster.name, stream_reader=reader)

        try:
            await self._update_record(session, claim)
        except Refusal:
            if not previous_reader or not (
                previous_worker not in await self._state.list_workers()
                or await self._readers.is_gone(key, previous_reader, previous_worker)
            ):
                raise
            gone_reader = previous_reader
            await self._update_record(session, claim)
        return seen, previous_worker

    async def _load(self, stream: NoticeStream, cursor: str) -> None:
        """Add the changes after a position to a stream. The stream already receives new changes."""
        newest = await self._state.get_cursor()
        messages = [] if not cursor else await self._state.read_changes(cursor)
        stream.start_at(newest if messages is None or not cursor else cursor)
        stream.load(messages)

    async def _release(self, session: HandshakeSession, stream: NoticeStream) -> None:
        """Record that the GET stream has ended, and what the client has received."""

        def release(record: SessionRecord) -> SessionRecord:
            if record.stream_reader != stream.id:
                return record
            return replace(record, stream_worker="", stream_reader="", seen=stream.position or record.seen)

        if not session.is_closed:
            with suppress(Refusal):  # The session has ended.
                await self._update_record(session, release)

    # Delivery of changes.

    def _receive(self, message: Message) -> None:
        """Pass a message of the change log to the GET streams, in the order of the log."""
        is_delivering = bool(self._messages or self._remaining)
        if len(self._messages) >= _MAX_WAITING_MESSAGES:
            # One message that everything has changed replaces those that wait. Notices to one session are lost.
            self._messages.clear()
            self._messages.append(Message(CHANGE, encode_body(Change(EVERYTHING)), "", message.cursor))
            return
        self._messages.append(message)
        if not is_delivering:
            self._deliver_some()

    def _handle_gap(self) -> None:
        self._receive(Message(CHANGE, encode_body(Change(EVERYTHING)), ""))

    def _deliver_some(self) -> None:
        calls_left = _MAX_STREAMS_PER_ITERATION
        while calls_left and (self._remaining or self._messages):
            if not self._remaining:
                self._message = message = self._messages.popleft()
                self._remaining = self._list_receivers(message)
            while self._remaining and calls_left and self._message is not None:
                calls_left -= 1
                self._remaining.pop().receive(self._message)
        if self._remaining or self._messages:
            asyncio.get_running_loop().call_soon(self._deliver_some)

    def _list_receivers(self, message: Message) -> list[NoticeStream]:
        if message.kind == CHANGE:
            return [*self._streams.values()]
        notice = read_session_notice(message)
        stream = None if notice is None else self._streams.get(notice.session_id)
        return [] if stream is None else [stream]
