"""Splits a stream of bytes into lines. The run time is linear in the number of bytes. spec: stdio"""

from typing import final

from dovetail.wire.base import Struct

_PREFIX_BYTES = 256
MIN_PIECE_BYTES = 4096  # Chunks of a line below this size are joined.


@final
class OversizedMessage(Struct, frozen=True):
    """A placeholder for a message that is too large. The transport has skipped the message."""

    prefix: bytes  # the start of the message
    description: str


class LineSplitter:
    """Splits a stream of bytes into lines. A line that is too long is skipped and reported once."""

    __slots__ = ("_held_bytes", "_is_skipping", "_pieces", "max_line_bytes")

    def __init__(self, max_line_bytes: int) -> None:
        self.max_line_bytes = max_line_bytes
        self._pieces: list[bytes | bytearray] = []  # the chunks of an incomplete line
        self._held_bytes = 0
        self._is_skipping = False

    def feed(self, data: bytes) -> list[bytes | OversizedMessage]:
        """Add bytes from the stream and return the complete lines.

        A line that is too long becomes an `OversizedMessage`.
        """
        lines: list[bytes | OversizedMessage] = []
        # Searching for a newline is faster than splitting, and most data contains no newline.
        *complete_pieces, rest = data.split(b"\n") if b"\n" in data else (data,)
        for piece in complete_pieces:
            if self._is_skipping:
                self._is_skipping = False
            elif self._held_bytes + len(piece) > self.max_line_bytes:
                self._add_piece(piece[:_PREFIX_BYTES])
                self._drop_line(lines)
            else:
                if self._pieces:
                    piece = b"".join((*self._pieces, piece))
                    self._pieces.clear()
                    self._held_bytes = 0
                if piece and piece != b"\r":
                    lines.append(piece)
        if rest and not self._is_skipping:
            self._add_piece(rest)
            if self._held_bytes > self.max_line_bytes:
                self._drop_line(lines)
                self._is_skipping = True
        return lines

    def _add_piece(self, piece: bytes) -> None:
        """Store a chunk of a line. Small chunks are joined, because each bytes object needs extra memory."""
        self._held_bytes += len(piece)
        last = self._pieces[-1] if self._pieces else None
        if len(piece) >= MIN_PIECE_BYTES:
            self._pieces.append(piece)
        elif type(last) is bytearray and len(last) < MIN_PIECE_BYTES:
            last += piece
        else:
            self._pieces.append(bytearray(piece))

    def _drop_line(self, lines: list[bytes | OversizedMessage]) -> None:
        prefix = b"".join(piece[:_PREFIX_BYTES] for piece in self._pieces[:_PREFIX_BYTES])[:_PREFIX_BYTES]
        self._pieces.clear()
        self._held_bytes = 0
        lines.append(OversizedMessage(prefix, f"a line of more than {self.max_line_bytes} bytes"))
