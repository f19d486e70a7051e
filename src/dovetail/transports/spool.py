"""Spool: bytes on their way in or out, in memory while all that waits fits there, on disk otherwise.

A client that sends or reads slowly keeps its bytes waiting. Many such clients together must not take the memory, and
no one else should have to wait for them: what is too much lies in an unnamed temporary file.
"""

import os
from collections.abc import Iterator
from typing import IO

SLICE = 64 * 1024


class Budget:
    """How many waiting bytes may be in memory, everyone's together."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0


class Spool:
    """One sequence of bytes; close it when they have gone on.

    One message, whose size has a limit of its own, may be larger than the budget while nothing else waits.
    """

    __slots__ = ("_budget", "_file", "_passed", "_pieces", "_skipped", "one_message", "size")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._pieces: list[bytes] = []
        self.one_message = True
        self._file: IO[bytes] | None = None
        self.size = 0
        self._passed = self._skipped = 0  # how many pieces, and bytes of them, lie before what was read last

    def append(self, data: bytes) -> None:
        """Add bytes at the end."""
        self.size += len(data)
        if self._file is not None:
            self._file.seek(0, os.SEEK_END)  # a slice may have been read meanwhile
            self._file.write(data)
            return
        self._pieces.append(data)
        self._budget.used += len(data)
        if self._budget.used > self._budget.limit and not (self.one_message and self._budget.used == self.size):
            self.to_disk()

    def to_disk(self) -> None:
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

    def slices(self) -> Iterator[bytes]:
        """The bytes in slices; moving to disk between two of them changes nothing."""
        for start in range(0, self.size, SLICE):
            yield self.part(start)

    def part(self, start: int) -> bytes:
        """The slice that starts there; empty at the end."""
        if self._file is not None:
            self._file.seek(start)
            return self._file.read(SLICE)
        return self._cut(start)

    def _cut(self, start: int) -> bytes:
        """A slice of the pieces, which are not joined for it: that would be one more copy of a large message."""
        pieces = self._pieces
        if start < self._skipped:
            self._passed = self._skipped = 0
        while self._passed < len(pieces) and start >= self._skipped + len(pieces[self._passed]):
            self._skipped += len(pieces[self._passed])
            self._passed += 1
        found: list[bytes] = []
        at, wanted = start - self._skipped, SLICE
        for place in range(self._passed, len(pieces)):
            found.append(pieces[place][at : at + wanted])
            wanted -= len(found[-1])
            at = 0
            if not wanted:
                break
        return found[0] if len(found) == 1 else b"".join(found)

    def close(self) -> None:
        """Let go of everything."""
        self._release()
        if self._file is not None:
            self._file.close()

    def _release(self) -> None:
        self._budget.used -= sum(map(len, self._pieces))
        self._pieces = []


def spooled(data: bytes, budget: Budget) -> Spool:
    """A spool of these bytes."""
    spool = Spool(budget)
    spool.append(data)
    return spool
