"""Spool: buffered bytes, in memory up to a limit and on disk beyond it.

Clients that send or read slowly leave bytes in buffers. Many slow clients must not fill the memory or delay other
clients, so bytes over the limit go to an unnamed temporary file.
"""

import os
from collections.abc import Iterator
from typing import IO

SLICE_BYTES = 64 * 1024


class MemoryBudget:
    """The memory limit for buffered bytes. All spools share it."""

    __slots__ = ("max_bytes", "used_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0


class Spool:
    """Buffers bytes in memory or on disk. Close the spool after use.

    A single message has its own size limit, and may exceed the budget while nothing else is buffered.
    """

    __slots__ = ("_budget", "_file", "_passed_bytes", "_passed_pieces", "_pieces", "is_single_message", "size")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._pieces: list[bytes] = []
        self.is_single_message = True
        self._file: IO[bytes] | None = None
        self.size = 0
        # How many pieces and bytes come before the last read position
        self._passed_pieces = self._passed_bytes = 0

    def append(self, data: bytes) -> None:
        """Add bytes at the end."""
        self.size += len(data)
        if self._file is not None:
            self._file.seek(0, os.SEEK_END)  # a read may have moved the file position
            self._file.write(data)
            return
        self._pieces.append(data)
        self._budget.used_bytes += len(data)
        if self._budget.used_bytes > self._budget.max_bytes and not (
            self.is_single_message and self._budget.used_bytes == self.size
        ):
            self.move_to_disk()

    def move_to_disk(self) -> None:
        """Move the bytes to a temporary file and free the memory."""
        if self._file is None:
            import tempfile  # imported here, because tempfile is slow to import and rarely needed

            self._file = tempfile.TemporaryFile(prefix="dovetail-")  # noqa: SIM115 - lives as long as the spool
            for piece in self._pieces:
                self._file.write(piece)
            self._release()

    def read(self) -> bytes:
        """Return all bytes."""
        if self._file is None:
            return b"".join(self._pieces)
        self._file.seek(0)
        return self._file.read()

    def iter_slices(self) -> Iterator[bytes]:
        """Yield the bytes in slices. The spool may move to disk in between."""
        for start in range(0, self.size, SLICE_BYTES):
            yield self.read_slice(start)

    def read_slice(self, start: int) -> bytes:
        """Return the slice at this position, or empty bytes at the end."""
        if self._file is not None:
            self._file.seek(start)
            return self._file.read(SLICE_BYTES)
        return self._slice_pieces(start)

    def _slice_pieces(self, start: int) -> bytes:
        """Return a slice without joining all pieces, because that would copy a large message."""
        pieces = self._pieces
        if start < self._passed_bytes:
            self._passed_pieces = self._passed_bytes = 0
        while self._passed_pieces < len(pieces) and start >= self._passed_bytes + len(pieces[self._passed_pieces]):
            self._passed_bytes += len(pieces[self._passed_pieces])
            self._passed_pieces += 1
        parts: list[bytes] = []
        offset, remaining = start - self._passed_bytes, SLICE_BYTES
        for index in range(self._passed_pieces, len(pieces)):
            parts.append(pieces[index][offset : offset + remaining])
            remaining -= len(parts[-1])
            offset = 0
            if not remaining:
                break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Free the memory and delete the file."""
        self._release()
        if self._file is not None:
            self._file.close()

    def _release(self) -> None:
        self._budget.used_bytes -= sum(map(len, self._pieces))
        self._pieces = []


def create_spool(data: bytes, budget: MemoryBudget) -> Spool:
    """Create a spool with these bytes."""
    spool = Spool(budget)
    spool.append(data)
    return spool
