"""A buffer for bytes, which are in memory up to a limit and on disk above it.

Clients that send or read slowly leave bytes in buffers. Many slow clients must not fill the memory or delay other
clients, so bytes over the limit go to an unnamed temporary file. A thread writes the file, so the event loop does not
wait for the disk unless many bytes wait for the thread. Bytes stay in memory until the disk has all of them, so a full
disk loses nothing.
"""

import asyncio
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import IO

from dovetail.log import ThrottledLog

SLICE_BYTES = 64 * 1024
# One loop iteration encodes at most this many bytes of large responses.
MAX_BYTES_PER_ITERATION = 4 * 1024 * 1024
# Results wait only while their total size is below this multiple of the memory limit.
_MAX_WAITING_RESULTS = 64
_DISK_RETRY_S = 1.0  # After a failed write, the disk is not used for this many seconds.
# Above this multiple of the memory limit, the event loop writes to disk, instead of a thread.
# The disk thread may be too slow if many large results arrive at once.
_MAX_WAITING_FOR_DISK = 4
# If the disk is full and memory use exceeds this multiple of the limit, slow clients are disconnected.
_MAX_OVERCOMMIT = 16


class MemoryBudget:
    """The memory limit for buffered bytes, which several `Spool` objects share."""

    __slots__ = (
        "_disk_warning",
        "_iteration_bytes",
        "_scheduled_loop",
        "_waiters",
        "_waiting_bytes",
        "is_crowded",
        "max_bytes",
        "open_spools",
        "retry_disk_at",
        "used_bytes",
    )

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self.open_spools = 0
        self.retry_disk_at = 0.0
        # True if more results must wait for a later iteration of the event loop.
        self.is_crowded = False
        self._iteration_bytes = 0  # the bytes of large responses that were encoded in this iteration of the event loop
        # The event loop that will call `_start_iteration`.
        self._scheduled_loop: asyncio.AbstractEventLoop | None = None
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._waiting_bytes = 0  # The total size of the waiting results.
        self._disk_warning = ThrottledLog(logging.ERROR)

    @property
    def is_exhausted(self) -> bool:
        """Return whether so much memory is used that slow clients must be disconnected."""
        return self.used_bytes > self.max_bytes * _MAX_OVERCOMMIT

    def count_encoded(self, size: int) -> None:
        """Count the bytes of a large response.

        After too many bytes in one loop iteration, other results wait for a later iteration.
        """
        self._iteration_bytes += size
        if self._iteration_bytes > MAX_BYTES_PER_ITERATION and not self.is_crowded:
            self._schedule_iteration(asyncio.get_running_loop())

    async def wait_for_turn(self, size: int) -> None:
        """Wait until a large result may be encoded. Each loop iteration lets one waiting result continue.

        Waiting results use memory. If they are too large together, further results do not wait.
        """
        if self._waiting_bytes + size > self.max_bytes * _MAX_WAITING_RESULTS:
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.append(waiter)
        # An earlier event loop may have ended before it called `_start_iteration`.
        if self._scheduled_loop is not loop:
            self._schedule_iteration(loop)
        self._waiting_bytes += size
        try:
            await waiter
        finally:
            self._waiting_bytes -= size

    def _schedule_iteration(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_crowded, self._scheduled_loop = True, loop
        loop.call_soon(self._start_iteration, loop)

    def _start_iteration(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_crowded, self._scheduled_loop = False, None
        self._iteration_bytes = 0
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break
        if self._waiters:  # Each loop iteration wakes one waiter.
            self._schedule_iteration(loop)

    def handle_disk_error(self, error: OSError, now: float) -> None:
        """Stop using the disk for a while, and log the error."""
        self.retry_disk_at = now + _DISK_RETRY_S
        self._disk_warning.log(
            "cannot write buffered messages to the temporary directory: %s. They stay in memory. Free some disk space, "
            "or set TMPDIR to a directory on another disk",
            error.strerror or error,
        )


class _SpoolFile:
    """An unnamed temporary file. A thread may append bytes while the event loop reads earlier bytes."""

    __slots__ = ("_file", "_lock")

    def __init__(self) -> None:
        import tempfile  # This import is here because the module is slow to import and rarely needed.

        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="dovetail-", buffering=0)  # noqa: SIM115
        self._lock = threading.Lock()

    def write_at(self, position: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            count = self._write_some(position, view)
            position += count
            view = view[count:]

    def _write_some(self, position: int, view: memoryview) -> int:
        if sys.platform != "win32":
            return os.pwrite(self._file.fileno(), view, position)
        with self._lock:
            self._file.seek(position)
            return self._file.write(view)

    def read_at(self, position: int, size: int) -> bytes:
        if sys.platform != "win32":
            return os.pread(self._file.fileno(), size, position)
        with self._lock:
            self._file.seek(position)
            return self._file.read(size)

    def close(self) -> None:
        self._file.close()

    def __del__(self) -> None:
        # If the event loop ends early, nothing else closes the file.
        if hasattr(self, "_file"):
            self._file.close()


class Spool:
    """A buffer that stores bytes in memory or on disk. Close it after use.

    A single message has a separate size limit, and may exceed the memory limit while nothing else is buffered.
    """

    __slots__ = (
        "_budget",
        "_file",
        "_file_bytes",
        "_is_closed",
        "_is_moving",
        "_passed_bytes",
        "_passed_pieces",
        "_pieces",
        "is_disk_full",
        "is_single_message",
        "on_exhausted",
        "size",
    )

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        budget.open_spools += 1
        self._pieces: list[bytes] = []  # the newest bytes, which are not in the file yet
        self.is_single_message = True
        self.is_disk_full = False
        # A function that disconnects a slow client if disk and memory are full.
        self.on_exhausted: Callable[[], None] | None = None
        self._file: _SpoolFile | None = None
        self._file_bytes = 0
        self._is_moving = False
        self._is_closed = False
        self.size = 0
        self._passed_pieces = self._passed_bytes = 0

    @property
    def is_only_one(self) -> bool:
        """Return whether the memory budget has no other open buffer."""
        return self._budget.open_spools == 1

    def append(self, data: bytes) -> None:
        """Add bytes at the end of the buffer."""
        self.size += len(data)
        self._pieces.append(data)
        self._budget.used_bytes += len(data)
        if self._budget.used_bytes > self._budget.max_bytes and not (
            self.is_single_message and self._budget.used_bytes == self.size
        ):
            self.move_to_disk()

    def move_to_disk(self) -> None:
        """Start to move the bytes to a temporary file. When all bytes are in the file, the memory is freed."""
        if self._is_moving or self._is_closed or not self._pieces:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._budget.retry_disk_at:
            self._handle_full_disk()
            return
        self._is_moving = True
        if self._budget.used_bytes > self._budget.max_bytes * _MAX_WAITING_FOR_DISK:
            self._finish_move(*self._write_pieces())
        else:
            _get_disk_thread().submit(self._write_in_thread, loop)

    def _write_in_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        file, piece_count, error = self._write_pieces()
        try:
            loop.call_soon_threadsafe(self._finish_move, file, piece_count, error)
        except RuntimeError:  # The event loop is closed, so no task reads the buffer.
            if file is not None:
                file.close()

    def _write_pieces(self) -> tuple[_SpoolFile | None, int, OSError | None]:
        # A copy is needed, because the event loop may append chunks during the write.
        file, position, pieces, error = self._file, self._file_bytes, tuple(self._pieces), None
        try:
            if file is None:
                file = _SpoolFile()
            for piece in pieces:
                file.write_at(position, piece)
                position += len(piece)
        except OSError as exc:
            error = exc
        return file, len(pieces), error

    def _finish_move(self, file: _SpoolFile | None, piece_count: int, error: OSError | None) -> None:
        self._is_moving = False
        if file is not None and (self._is_closed or (error is not None and file is not self._file)):
            file.close()
        if error is not None:
            self._budget.handle_disk_error(error, asyncio.get_running_loop().time())
        if self._is_closed:
            return
        if error is not None:
            self._handle_full_disk()
            return
        self._file, self.is_disk_full = file, False
        moved_bytes = sum(map(len, self._pieces[:piece_count]))
        del self._pieces[:piece_count]
        self._passed_pieces = self._passed_bytes = 0
        self._file_bytes += moved_bytes
        self._budget.used_bytes -= moved_bytes
        if self._budget.used_bytes > self._budget.max_bytes:
            self.move_to_disk()

    def _handle_full_disk(self) -> None:
        self.is_disk_full = True
        if self.on_exhausted is not None and self._budget.is_exhausted:
            self.on_exhausted()

    def read(self) -> bytes:
        """Return all bytes of the buffer."""
        return b"".join(self.iter_slices()) if self._file is not None else b"".join(self._pieces)

    def iter_slices(self) -> Iterator[bytes]:
        """Yield the bytes of the buffer in slices. The buffer may move to disk between two slices."""
        start = 0
        while start < self.size:
            part = self.read_slice(start)
            start += len(part)
            yield part

    def read_slice(self, start: int, max_bytes: int | None = None) -> bytes:
        """Return a slice from this position, or b"" at the end of the buffer."""
        max_bytes = max_bytes or SLICE_BYTES
        if self._file is not None and start < self._file_bytes:
            return self._file.read_at(start, min(max_bytes, self._file_bytes - start))
        return self._slice_pieces(start - self._file_bytes, max_bytes)

    def _slice_pieces(self, start: int, max_bytes: int) -> bytes:
        pieces = self._pieces
        if start < self._passed_bytes:
            self._passed_pieces = self._passed_bytes = 0
        while self._passed_pieces < len(pieces) and start >= self._passed_bytes + len(pieces[self._passed_pieces]):
            self._passed_bytes += len(pieces[self._passed_pieces])
            self._passed_pieces += 1
        parts: list[bytes] = []
        offset, remaining = start - self._passed_bytes, max_bytes
        for index in range(self._passed_pieces, len(pieces)):
            parts.append(pieces[index][offset : offset + remaining])
            remaining -= len(parts[-1])
            offset = 0
            if not remaining:
                break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Free the memory and delete the file."""
        if not self._is_closed:
            self._is_closed = True
            self._budget.open_spools -= 1
        self._budget.used_bytes -= sum(map(len, self._pieces))
        self._pieces = []
        # If bytes are still being moved to the file, the file is closed after that.
        if self._file is not None and not self._is_moving:
            self._file.close()


_disk_thread: Executor | None = None


def _get_disk_thread() -> Executor:
    global _disk_thread
    if _disk_thread is None:
        # This import is here because the thread pool is rarely needed.
        from concurrent.futures import ThreadPoolExecutor

        _disk_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dovetail-spool")
    return _disk_thread


def create_spool(data: bytes, budget: MemoryBudget) -> Spool:
    """Create a buffer that contains these bytes."""
    spool = Spool(budget)
    spool.append(data)
    return spool
