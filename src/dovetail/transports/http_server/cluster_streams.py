"""The event streams of an endpoint in a cluster: replies that are stored, and the GET streams of sessions.

A client can resume each stream at any worker. The newest reader of a stream replaces the previous one, even at another
worker.
"""

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from dovetail.background_work import BackgroundTasks, repeat_until_available
from dovetail.eager_tasks import EagerTaskStarter
from dovetail.protocol.change_messages import CHANGE, SESSION_NOTICE, Change, encode_body, read_session_notice
from dovetail.protocol.cluster_worker import ClusterWorker
from dovetail.protocol.exchange import Service
from dovetail.protocol.http_checks import Refusal, create_unavailable_refusal
from dovetail.protocol.shared_state import Message, SharedStateUnavailable, StreamPart
from dovetail.protocol.subscription_filter import EVERYTHING
from dovetail.protocol.versioned_codec import VersionedCodec
from dovetail.transports.http_server import notice_stream
from dovetail.transports.http_server.handshake_session import HandshakeSession
from dovetail.transports.http_server.handshake_sessions import LAST_EVENT_HEADER
from dovetail.transports.http_server.http_request import EndpointRequest
from dovetail.transports.http_server.http_response import ResponseTimers
from dovetail.transports.http_server.notice_stream import NoticeStream
from dovetail.transports.http_server.session_record import SessionRecord
from dovetail.transports.http_server.stored_response import StoredResponseWriter, StoredStreamReader
from dovetail.transports.http_server.stored_stream import (
    StreamWriter,
    build_stream_key,
    parse_event_id,
)
from dovetail.transports.spool import MemoryBudget
from dovetail.wire.base import Struct, replace
from dovetail.wire.jsonrpc import RequestId

_READ: Final = "stream-read"  # This kind of message says that a stream has a new reader.
_READER_GONE: Final = "stream-reader-gone"  # the kind of a message that the reader of a stream has left
_CHECK: Final = "stream-check"  # the kind of a question whether a worker still has the reader of a GET stream
_READER_HELD: Final = "stream-reader-held"  # the kind of the answer that the worker has the reader
_READER_TTL_S: Final = 3600.0
_MAX_CLAIM_ATTEMPTS: Final = 5
_MAX_STREAMS_PER_ITERATION: Final = 200
_MAX_WAITING_MESSAGES: Final = 1000  # If more changes wait for the GET streams, everything counts as changed.
_CLOSE_TIMEOUT_S: Final = 1.0
_CHECK_TIMEOUT_S: Final = 1.0
_WORKER_CHECK_INTERVAL_S: Final = 5.0
_CLOSE_POLL_S: Final = 0.005

UpdateRecord: TypeAlias = Callable[
    [HandshakeSession, Callable[[SessionRecord], SessionRecord]], Awaitable[SessionRecord]
]


class ReaderMessage(Struct, frozen=True):
    """A message between workers about the reader of a stream. It is also the record of the reader."""

    stream: str  # the key of the stream
    reader: str  # the name of the reader
    worker: str  # the worker that has the reader


_reader_messages: Final = VersionedCodec(ReaderMessage)


class _Reader(Protocol):
    id: str

    def close(self) -> None: ...


class ClusterStreams:
    """The event streams of one endpoint of one worker."""

    def __init__(
        self,
        service: Service,
        cluster: ClusterWorker,
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
        self._service = service
        self._cluster = cluster
        self._update_record = update_record
        self._readers: dict[str, _Reader] = {}  # the responses to GET requests, by the key of the stream
        self._notice_streams: dict[str, NoticeStream] = {}  # the GET streams by session
        self._endpoint = os.urandom(4).hex()  # part of the names of readers, because a worker can have two endpoints
        self._claimed_readers: set[str] = set()  # the readers that hold a GET stream, or wait for their claim
        self._claiming_streams: dict[str, set[NoticeStream]] = {}  # the GET streams that are about to open, by key
        self._checked_readers: dict[str, asyncio.Future[bool]] = {}  # the readers about which other workers are asked
        self._check_task: asyncio.Task[None] | None = None  # checks whether other workers are lost
        self._stream_count = 0
        self._tasks = BackgroundTasks()
        self._starter: EagerTaskStarter | None = None
        self._messages: deque[Message] = deque()  # the messages that the GET streams have not received yet
        self._remaining: list[NoticeStream] = []  # the streams that have not received `_message` yet
        self._message: Message | None = None
        self._handler_removers: list[Callable[[], None]] = []

    def _start(self) -> None:
        """Receive messages of other workers. An endpoint that was never used, or is closed, receives none."""
        if not self._handler_removers:
            add_handler = self._cluster.add_handler
            self._handler_removers = [
                add_handler(_READ, self._handle_read),
                add_handler(_READER_GONE, self._handle_reader_gone),
                add_handler(_READER_HELD, self._handle_reader_held),
                add_handler(_CHECK, self._handle_check),
                add_handler(CHANGE, self._receive),
                add_handler(SESSION_NOTICE, self._receive),
                self._cluster.add_gap_handler(self._handle_gap),
            ]

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
        """Run a coroutine in a task that ends with the endpoint."""
        self._tasks.start(work)

    async def end_readers(self) -> None:
        """End the responses to GET requests, and store what their clients have received."""
        for reader in tuple(self._readers.values()):
            reader.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                while self._readers:  # noqa: ASYNC110 - the end of a reader sets no event
                    await asyncio.sleep(_CLOSE_POLL_S)

    async def close(self) -> None:
        """End all readers, and store the events that are not stored yet."""
        for reader in tuple(self._readers.values()):
            reader.close()
        if self._check_task is not None:
            self._check_task.cancel()
        await self._tasks.close(_CLOSE_TIMEOUT_S)
        for remove in self._handler_removers:
            remove()
        self._handler_removers = []

    async def handle_get(self, request: EndpointRequest, session: HandshakeSession) -> None:
        """Handle a GET request. It opens or resumes the GET stream of a session, or resumes a reply."""
        self._start()
        event_id = request.headers.get(LAST_EVENT_HEADER, b"").decode("latin-1")
        try:
            if not event_id or notice_stream.parse_event_id(event_id) is not None:
                await self._serve_notices(request, session, notice_stream.parse_event_id(event_id))
            else:
                await self._resume_reply(request, session, event_id)
        except SharedStateUnavailable as exc:
            raise create_unavailable_refusal(exc.retry_after) from None

    # Replies.

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
            reason = "have been deleted" if position.is_stored else "are not stored"
            raise Refusal(400, f"The events after Last-Event-ID {reason}")
        reader = StoredStreamReader(
            self.state,
            position.stream,
            key,
            position.number,
            request.send,
            self.timers.keep_alive,
            self._get_starter(),
        )
        record_version = None if part.is_ended else await self._replace_reader(key, reader.id, part)
        self._add_reader(session, key, reader)
        try:
            await reader.run(request)
        finally:
            self._remove_reader(session, key, reader)
            if not part.is_ended:
                self.run_in_background(self._report_gone(part.writer, key, reader.id, record_version))

    async def _replace_reader(self, key: str, reader: str, part: StreamPart) -> int | None:
        """Record the new reader of a stream, and inform the worker of the previous reader and the writer.

        Return the version of the record.
        """
        body, workers, new_version = self._encode_reader(key, reader), {part.writer}, None
        with suppress(SharedStateUnavailable):  # Two readers are possible while the shared state is not available.
            for _ in range(_MAX_CLAIM_ATTEMPTS):
                stored = await self.state.read(f"reader:{key}")
                version = 0 if stored is None else stored.version
                new_version = await self.state.write(f"reader:{key}", body, _READER_TTL_S, expected=version)
                if new_version is not None:
                    if stored is not None and (previous := _reader_messages.decode(stored.data)) is not None:
                        workers.add(previous.worker)
                    break
        with suppress(SharedStateUnavailable):
            await self._send_to(workers, _READ, body)
        return new_version

    async def _report_gone(self, writer: str, key: str, reader: str, record_version: int | None) -> None:
        """Delete the record of a reader that has left, and inform the writer of the stream."""

        async def report() -> None:
            await self._send_to({writer}, _READER_GONE, self._encode_reader(key, reader))
            if record_version is not None:
                await self.state.delete(f"reader:{key}", expected=record_version)

        await repeat_until_available(report, give_up_after=self.limits.replay_ttl)

    def _encode_reader(self, key: str, reader: str) -> bytes:
        return _reader_messages.encode(ReaderMessage(key, reader, self._cluster.name))

    async def _send_to(self, workers: set[str], kind: str, body: bytes) -> None:
        for worker in workers:
            if worker == self._cluster.name:
                self._cluster.receive(Message(kind, body, worker))
            else:
                await self.state.send(worker, kind, body)

    def _handle_read(self, message: Message) -> None:
        new_reader = _reader_messages.decode(message.body)
        if new_reader is None:
            return
        writer = self.writers.get(new_reader.stream)
        if writer is not None:
            writer.set_remote_reader(new_reader.reader, new_reader.worker)
            if self._check_task is None or self._check_task.done():
                self._check_task = asyncio.get_running_loop().create_task(self._check_workers())
        reader = self._readers.get(new_reader.stream)
        readers: list[_Reader] = [*self._claiming_streams.get(new_reader.stream, ())]
        for other in readers if reader is None else [reader, *readers]:
            if other.id != new_reader.reader:
                other.close()

    async def _check_workers(self) -> None:
        """Notice that a worker with the reader of a stream is lost. A lost worker does not report that."""
        while any(writer.reading_worker is not None for writer in self.writers.values()):
            await asyncio.sleep(_WORKER_CHECK_INTERVAL_S)
            with suppress(SharedStateUnavailable):
                workers = await self.state.list_workers()
                for writer in self.writers.values():
                    if writer.reading_worker is not None and writer.reading_worker not in workers:
                        writer.handle_reader_gone()

    def _handle_reader_gone(self, message: Message) -> None:
        gone_reader = _reader_messages.decode(message.body)
        if gone_reader is None:
            return
        writer = self.writers.get(gone_reader.stream)
        if writer is not None:
            writer.handle_reader_gone(gone_reader.reader)
        self._answer_check(gone_reader, is_gone=True)

    def _handle_reader_held(self, message: Message) -> None:
        reader = _reader_messages.decode(message.body)
        if reader is not None:
            self._answer_check(reader, is_gone=False)

    def _answer_check(self, reader: ReaderMessage, *, is_gone: bool) -> None:
        answer = self._checked_readers.get(reader.reader)
        if answer is not None and not answer.done():
            answer.set_result(is_gone)

    def _handle_check(self, message: Message) -> None:
        """Answer whether this endpoint has the reader of a GET stream. Another endpoint does not know the reader."""
        reader = _reader_messages.decode(message.body)
        if reader is not None and reader.reader.startswith(f"{self._endpoint}."):
            self.run_in_background(self._send_check_answer(reader))

    async def _send_check_answer(self, reader: ReaderMessage) -> None:
        kind = _READER_HELD if reader.reader in self._claimed_readers else _READER_GONE
        with suppress(SharedStateUnavailable):  # The worker that asks then refuses the request of its client.
            await self._send_to({reader.worker}, kind, self._encode_reader(reader.stream, reader.reader))

    async def _is_reader_gone(self, key: str, reader: str, worker: str) -> bool:
        """Ask a worker whether it has a reader of a GET stream. Return False if there is no answer."""
        answer = self._checked_readers.get(reader)
        is_first = answer is None
        if answer is None:
            answer = self._checked_readers[reader] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(_CHECK_TIMEOUT_S):
                if is_first:
                    await self._send_to({worker}, _CHECK, self._encode_reader(key, reader))
                return await asyncio.shield(answer)
        except TimeoutError:
            return False
        finally:
            if is_first:
                del self._checked_readers[reader]

    def _add_reader(self, session: HandshakeSession, key: str, reader: _Reader) -> None:
        previous = self._readers.get(key)
        self._readers[key] = reader
        if session.readers is None:
            session.readers = set()
        session.readers.add(reader)
        if previous is not None:
            previous.close()

    def _remove_reader(self, session: HandshakeSession, key: str, reader: _Reader) -> None:
        if self._readers.get(key) is reader:
            del self._readers[key]
        if session.readers is not None:
            session.readers.discard(reader)

    # GET streams.

    async def _serve_notices(self, request: EndpointRequest, session: HandshakeSession, cursor: str | None) -> None:
        session_id = session.handshake.caller.session_id
        key = f"get:{session_id}"
        stream = NoticeStream(
            session,
            self._service,
            request.principal,
            request.send,
            self.timers.keep_alive,
            self._get_starter(),
            self._cluster.name,
            self._endpoint,
        )
        self._claimed_readers.add(stream.id)
        may_have_claim = True
        try:
            try:
                self._claiming_streams.setdefault(key, set()).add(stream)
                seen, previous_worker = await self._claim(session, key, stream.id, is_resumed=cursor is not None)
            except Refusal:
                may_have_claim = False
                raise
            finally:
                self._claiming_streams[key].discard(stream)
                if not self._claiming_streams[key]:
                    del self._claiming_streams[key]
            self._add_reader(session, key, stream)
            self._notice_streams[session_id] = stream
            if previous_worker not in ("", self._cluster.name):
                await self._send_to({previous_worker}, _READ, self._encode_reader(key, stream.id))
            await self._load(stream, cursor or seen)
            origin = request.principal or request.client_address
            session.start_watching(self._service, request.principal, origin)
            await stream.run(request)
        finally:
            if self._notice_streams.get(session_id) is stream:
                del self._notice_streams[session_id]
                session.stop_watching()
            try:
                if may_have_claim:
                    await self._release(session, stream)
            except SharedStateUnavailable:
                self._tasks.start(self._release_later(session, stream))
            finally:
                self._claimed_readers.discard(stream.id)
                self._remove_reader(session, key, stream)

    async def _release_later(self, session: HandshakeSession, stream: NoticeStream) -> None:
        await repeat_until_available(partial(self._release, session, stream), give_up_after=self.limits.replay_ttl)

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
                previous_worker not in await self.state.list_workers()
                or await self._is_reader_gone(key, previous_reader, previous_worker)
            ):
                raise
            gone_reader = previous_reader
            await self._update_record(session, claim)
        return seen, previous_worker

    async def _load(self, stream: NoticeStream, cursor: str) -> None:
        """Add the changes after a position to a stream. The stream already receives new changes."""
        newest = await self.state.get_cursor()
        messages = [] if not cursor else await self.state.read_changes(cursor)
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

    def _get_starter(self) -> EagerTaskStarter:
        if self._starter is None:
            self._starter = EagerTaskStarter()
        return self._starter

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
            return [*self._notice_streams.values()]
        notice = read_session_notice(message)
        stream = None if notice is None else self._notice_streams.get(notice.session_id)
        return [] if stream is None else [stream]
