"""Undoing the compression of a reply in bounded steps, and the two verdicts on a reply that is not one to be read."""

import zlib

from dovetail.errors import TransportError
from dovetail.protocol.limits import FetchLimits

_STEP = 64 * 1024  # of decompressed bytes at a time


class TooLarge(TransportError):
    """The reply is larger than its limit."""


class BadReply(TransportError):
    """What came back is not a well-formed HTTP/1.1 reply."""


class Inflater:
    """Undoes gzip or deflate in steps of bounded size, and refuses what grows out of proportion."""

    __slots__ = ("_given", "_gzip", "_limits", "_made", "_more", "_stream", "_tail")

    def __init__(self, *, gzip: bool, limits: FetchLimits) -> None:
        self._gzip = gzip
        self._limits = limits
        self._stream: zlib._Decompress | None = None  # pyright: ignore[reportPrivateUsage]
        self._tail = b""
        self._more = False
        self._given = 0
        self._made = 0

    def give(self, piece: bytes) -> None:
        """The next piece of what was received; `take` has said before that it needs one."""
        if self._stream is None:
            # Some senders leave the zlib frame away from deflate. Its first byte ends in 8, which a bare stream's,
            # padded with zeros, never does.
            self._stream = zlib.decompressobj(31 if self._gzip else 15 if piece[0] & 15 == 8 else -15)
        self._tail = piece
        self._more = True
        self._given += len(piece)

    def take(self) -> bytes:
        """The next piece of the body, or nothing if more has to be given."""
        stream = self._stream
        if stream is None:
            return b""
        piece = b""
        while self._more and not piece:
            try:
                piece = stream.decompress(self._tail, _STEP)
            except zlib.error:
                raise BadReply("The compressed body of the reply is damaged") from None
            self._tail = stream.unconsumed_tail
            self._more = bool(self._tail) or len(piece) == _STEP
            if stream.unused_data:
                raise BadReply("The compressed body of the reply has something behind its end")
        self._made += len(piece)
        if self._made > self._limits.ratio_from and self._made > self._limits.ratio * (self._given - len(self._tail)):
            raise TooLarge(f"The compressed reply grows more than {self._limits.ratio} times")
        return piece

    def check_end(self) -> None:
        """The body is complete; so must be the stream. An empty body is nobody's stream."""
        if self._stream is not None and not self._stream.eof:
            raise BadReply("The compressed body of the reply is cut off")
