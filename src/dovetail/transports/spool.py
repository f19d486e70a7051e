"""Spool: buffered bytes, in memory up to a limit and on disk beyond it.

A client that sends or reads slowly keeps its bytes waiting. Many such clients together must not take the memory, and
no one else should have to wait for them: what is too much lies in an unnamed temporary file.
"""

import os
from collections.abc import Iterator
from typing import IO

SLICE_BYTES = 64 * 1024


class MemoryBudget:
    """How many waiting bytes may be in memory, everyone's together."""

    __slots__ = ("max_bytes", "used_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0


class Spool:
    """One sequence of bytes; close it when they have gone on.

    One message, whose size has a limit of its own, may be larger than the budget while nothing else waits.
    """

    __slots__ = ("_budget", "_file", "_passed_bytes", "_passed_pieces", "_pieces", "is_single_message", "size")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._pieces: list[bytes] = []
        self.is_single_message = True
        self._file: IO[bytes] | None = None
        self.size = 0
        self._passed_pieces = self._passed_bytes = (
            0  # how many pieces, and bytes of them, lie before what was read last
        )

    def append(self, data: bytes) -> None:
        """Add bytes at the end."""
        self.size += len(data)
        if self._file is not None:
            self._file.seek(0, os.SEEK_END)  # a slice may have been read meanwhile
            self._file.write(data)
            return
        self._pieces.append(data)
        self._budget.used_bytes += len(data)
        if self._budget.used_bytes > self._budget.max_bytes and not (
            self.is_single_message and self._budget.used_bytes == self.size
        ):
            self.move_to_disk()

    def move_to_disk(self) -> None:
        """Give the memory back."""
        if self._file is None:
            import tempfile  # seldom needed, and slow to load

            self._file = tempfile.TemporaryFile(prefix="dovetail-")  # noqa: SIM115 - lives as long as the spool
            for piece in self._pieces:
                self._file.write(piece)
            self._release()

    def read(self) -> bytes:
        """All the bytes."""
        if self._file is None:
            return b"".join(self._pieces)
        self._file.seek(0)
        return self._file.read()

    def iter_slices(self) -> Iterator[bytes]:
        """The bytes in slices; moving to disk between two of them changes nothing."""
        for start in range(0, self.size, SLICE_BYTES):
            yield self.read_slice(start)

    def read_slice(self, start: int) -> bytes:
        """The slice that starts there; empty at the end."""
        if self._file is not None:
            self._file.seek(start)
            return self._file.read(SLICE_BYTES)
        return self._slice_pieces(start)

    def _slice_pieces(self, start: int) -> bytes:
        """A slice of the pieces, which are not joined for it: that would be one more copy of a large message."""
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
        """Let go of everything."""
        self._release()
        if self._file is not None:
            self._file.close()

    def _release(self) -> None:
        self._budget.used_bytes -= sum(map(len, self._pieces))
        self._pieces = []


def create_spool(data: bytes, budget: MemoryBudget) -> Spool:
    """A spool of these bytes."""
    spool = Spool(budget)
    spool.append(data)
    return spool
