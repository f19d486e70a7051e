"""The readers of streams at one endpoint of a cluster, and the messages about readers between workers.

A reader is the response to a GET request. The newest reader of a stream replaces the previous one, even at another
worker.
"""

import asyncio
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, Protocol

from dovetail.background_tasks import BackgroundTasks
from dovetail.cluster.background_work import repeat_until_available, wait_until_empty
from dovetail.cluster.sessions.stored_stream import StreamWriter
from dovetail.protocol.interfaces.shared_state import Message, SharedStateUnavailable, SharedWorker, StreamPart
from dovetail.protocol.versioned_codec import VersionedCodec
from dovetail.transports.http_server.sessions.handshake_session import HandshakeSession
from dovetail.wire.base import Struct

_READ: Final = "stream-read"  # This kind of message says that a stream has a new reader.
_READER_GONE: Final = "stream-reader-gone"  # the kind of a message that the reader of a stream has left
_CHECK: Final = "stream-check"  # This kind of message asks a worker whether it still has a reader.
_READER_HELD: Final = "stream-reader-held"  # the kind of the answer that the worker has the reader
_READER_TTL_S: Final = 3600.0
_MAX_CLAIM_ATTEMPTS: Final = 5
_CHECK_TIMEOUT_S: Final = 1.0
_WORKER_CHECK_INTERVAL_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 1.0  # how long an endpoint that closes waits for its streams


class ReaderMessage(Struct, frozen=True):
    """A message between workers about the reader of a stream. It is also the record of the reader."""

    stream: str  # the key of the stream
    reader: str  # the name of the reader
    worker: str  # the worker that has the reader


_reader_messages: Final = VersionedCodec(ReaderMessage)


class Reader(Protocol):
    """The response to a GET request that sends a stream."""

    id: str

    def close(self) -> None:
        """End the response."""
        ...


class StreamReaders:
    """The readers of one endpoint."""

    def __init__(self, cluster: SharedWorker, writers: Mapping[str, StreamWriter], tasks: BackgroundTasks) -> None:
        self.endpoint = os.urandom(4).hex()  # part of the names of readers, because a worker can have two endpoints
        self._cluster = cluster
        self._state = cluster.state
        self._writers = writers  # the responses that write a stream, by the key of the stream
        self._tasks = tasks
        self._readers: dict[str, Reader] = {}  # by the key of the stream
        self._claimed_names: set[str] = set()  # the readers that hold a GET stream, or wait for their claim
        self._claiming_readers: dict[str, set[Reader]] = {}  # the readers of GET streams that are about to open, by key
        self._checks: dict[str, asyncio.Future[bool]] = {}  # the readers about which other workers are asked
        self._check_task: asyncio.Task[None] | None = None  # checks whether other workers are lost

    def start(self) -> list[Callable[[], None]]:
        """Register the message handlers. Return the functions that remove the handlers."""
        add_handler = self._cluster.add_handler
        return [
            add_handler(_READ, self._handle_read),
            add_handler(_READER_GONE, self._handle_reader_gone),
            add_handler(_READER_HELD, self._handle_reader_held),
            add_handler(_CHECK, self._handle_check),
        ]

    def close(self) -> None:
        """End all readers of this endpoint."""
        for reader in tuple(self._readers.values()):
            reader.close()

    def stop_checks(self) -> None:
        """Stop checking whether other workers are lost."""
        if self._check_task is not None:
            self._check_task.cancel()

    async def wait_closed(self) -> None:
        """Wait for a short time until all readers have ended."""
        await wait_until_empty(self._readers, CLOSE_TIMEOUT_S)

    def add(self, session: HandshakeSession, key: str, reader: Reader) -> None:
        """Add a reader. It replaces the previous reader of the stream at this endpoint."""
        previous = self._readers.get(key)
        self._readers[key] = reader
        if session.readers is None:
            session.readers = set()
        session.readers.add(reader)
        if previous is not None:
            previous.close()

    def remove(self, session: HandshakeSession, key: str, reader: Reader) -> None:
        """Remove a reader that has ended."""
        if self._readers.get(key) is reader:
            del self._readers[key]
        if session.readers is not None:
            session.readers.discard(reader)

    # The claims of GET streams.

    @contextmanager
    def hold(self, reader: Reader) -> Generator[None]:
        """If another worker asks for this reader of a GET stream, answer that it is here."""
        self._claimed_names.add(reader.id)
        try:
            yield
        finally:
            self._claimed_names.discard(reader.id)

    @contextmanager
    def wait_for_claim(self, key: str, reader: Reader) -> Generator[None]:
        """Close a reader that is about to open if another reader replaces it."""
        self._claiming_readers.setdefault(key, set()).add(reader)
        try:
            yield
        finally:
            self._claiming_readers[key].discard(reader)
            if not self._claiming_readers[key]:
                del self._claiming_readers[key]

    async def announce(self, worker: str, key: str, reader: str) -> None:
        """Inform another worker that its reader of a GET stream is replaced."""
        if worker not in ("", self._cluster.name):
            await self._send_to({worker}, _READ, self._encode_reader(key, reader))

    async def is_gone(self, key: str, reader: str, worker: str) -> bool:
        """Ask a worker whether it has a reader of a GET stream. Return False if there is no answer."""
        answer = self._checks.get(reader)
        is_first = answer is None
        if answer is None:
            answer = self._checks[reader] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(_CHECK_TIMEOUT_S):
                if is_first:
                    await self._send_to({worker}, _CHECK, self._encode_reader(key, reader))
                return await asyncio.shield(answer)
        except TimeoutError:
            return False
        finally:
            if is_first:
                del self._checks[reader]

    # The readers of replies.

    async def replace(self, key: str, reader: str, part: StreamPart) -> int | None:
        """Record the new reader of a stream, and inform the worker of the previous reader and the writer.

        Return the version of the record.
        """
        body, workers, new_version = self._encode_reader(key, reader), {part.writer}, None
        with suppress(SharedStateUnavailable):  # Two readers are possible while the shared state is not available.
            for _ in range(_MAX_CLAIM_ATTEMPTS):
                stored = await self._state.read(f"reader:{key}")
                version = 0 if stored is None else stored.version
                new_version = await self._state.write(f"reader:{key}", body, _READER_TTL_S, expected=version)
                if new_version is not None:
                    if stored is not None and (previous := _reader_messages.decode(stored.data)) is not None:
                        workers.add(previous.worker)
                    break
        with suppress(SharedStateUnavailable):
            await self._send_to(workers, _READ, body)
        return new_version

    async def report_gone(
        self, writer: str, key: str, reader: str, record_version: int | None, *, give_up_after: float
    ) -> None:
        """Delete the record of a reader that has left, and inform the writer of the stream."""

        async def report() -> None:
            await self._send_to({writer}, _READER_GONE, self._encode_reader(key, reader))
            if record_version is not None:
                await self._state.delete(f"reader:{key}", expected=record_version)

        await repeat_until_available(report, give_up_after=give_up_after)

    # Messages.

    def _encode_reader(self, key: str, reader: str) -> bytes:
        return _reader_messages.encode(ReaderMessage(key, reader, self._cluster.name))

    async def _send_to(self, workers: set[str], kind: str, body: bytes) -> None:
        for worker in workers:
            if worker == self._cluster.name:
                self._cluster.receive(Message(kind, body, worker))
            else:
                await self._state.send(worker, kind, body)

    def _handle_read(self, message: Message) -> None:
        new_reader = _reader_messages.decode(message.body)
        if new_reader is None:
            return
        writer = self._writers.get(new_reader.stream)
        if writer is not None:
            writer.set_remote_reader(new_reader.reader, new_reader.worker)
            if self._check_task is None or self._check_task.done():
                self._check_task = self._tasks.start(self._check_workers())
        reader = self._readers.get(new_reader.stream)
        readers: list[Reader] = [*self._claiming_readers.get(new_reader.stream, ())]
        for other in readers if reader is None else [reader, *readers]:
            if other.id != new_reader.reader:
                other.close()

    async def _check_workers(self) -> None:
        """Notice that a worker with the reader of a stream is lost. A lost worker does not report that."""
        while any(writer.reading_worker is not None for writer in self._writers.values()):
            await asyncio.sleep(_WORKER_CHECK_INTERVAL_S)
            with suppress(SharedStateUnavailable):
                workers = await self._state.list_workers()
                for writer in self._writers.values():
                    if writer.reading_worker is not None and writer.reading_worker not in workers:
                        writer.handle_reader_gone()

    def _handle_reader_gone(self, message: Message) -> None:
        gone_reader = _reader_messages.decode(message.body)
        if gone_reader is None:
            return
        writer = self._writers.get(gone_reader.stream)
        if writer is not None:
            writer.handle_reader_gone(gone_reader.reader)
        self._answer_check(gone_reader, is_gone=True)

    def _handle_reader_held(self, message: Message) -> None:
        reader = _reader_messages.decode(message.body)
        if reader is not None:
            self._answer_check(reader, is_gone=False)

    def _answer_check(self, reader: ReaderMessage, *, is_gone: bool) -> None:
        answer = self._checks.get(reader.reader)
        if answer is not None and not answer.done():
            answer.set_result(is_gone)

    def _handle_check(self, message: Message) -> None:
        """Answer another worker whether a reader still exists. Ignore the readers of other endpoints."""
        reader = _reader_messages.decode(message.body)
        if reader is not None and reader.reader.startswith(f"{self.endpoint}."):
            self._tasks.start(self._send_check_answer(reader))

    async def _send_check_answer(self, reader: ReaderMessage) -> None:
        kind = _READER_HELD if reader.reader in self._claimed_names else _READER_GONE
        with suppress(SharedStateUnavailable):  # The worker that asks then refuses the request of its client.
            await self._send_to({reader.worker}, kind, self._encode_reader(reader.stream, reader.reader))
