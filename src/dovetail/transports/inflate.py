"""Undoing the compression of a reply in bounded steps, and the two verdicts on a reply that is not one to be read."""

import zlib

from dovetail.errors import TransportError
from dovetail.protocol.limits import FetchLimits

_STEP_BYTES = 64 * 1024  # of decompressed bytes at a time


class ResponseTooLarge(TransportError):
    """The reply is larger than its limit."""


class InvalidHTTPResponse(TransportError):
    """What came back is not a well-formed HTTP/1.1 reply."""


class Decompressor:
    """Undoes gzip or deflate in steps of bounded size, and refuses what grows out of proportion."""

    __slots__ = ("_has_more", "_input_bytes", "_is_gzip", "_limits", "_output_bytes", "_stream", "_tail")

    def __init__(self, *, is_gzip: bool, limits: FetchLimits) -> None:
        self._is_gzip = is_gzip
        self._limits = limits
        self._stream: zlib._Decompress | None = None  # pyright: ignore[reportPrivateUsage]
        self._tail = b""
        self._has_more = False
        self._input_bytes = 0
        self._output_bytes = 0

    def feed(self, piece: bytes) -> None:
        """The next piece of what was received; `take` has said before that it needs one."""
        if self._stream is None:
            # Some senders leave the zlib frame away from deflate. Its first byte ends in 8, which a bare stream's,
            # padded with zeros, never does.
            self._stream = zlib.decompressobj(31 if self._is_gzip else 15 if piece[0] & 15 == 8 else -15)
        self._tail = piece
        self._has_more = True
        self._input_bytes += len(piece)

    def read(self) -> bytes:
        """The next piece of the body, or nothing if more has to be given."""
        stream = self._stream
        if stream is None:
            return b""
        piece = b""
        while self._has_more and not piece:
            try:
                piece = stream.decompress(self._tail, _STEP_BYTES)
            except zlib.error:
                raise InvalidHTTPResponse("The compressed body of the reply is damaged") from None
            self._tail = stream.unconsumed_tail
            self._has_more = bool(self._tail) or len(piece) == _STEP_BYTES
            if stream.unused_data:
                raise InvalidHTTPResponse("The compressed body of the reply has something behind its end")
        self._output_bytes += len(piece)
        if self._output_bytes > self._limits.ratio_check_bytes and self._output_bytes > self._limits.max_ratio * (
            self._input_bytes - len(self._tail)
        ):
            raise ResponseTooLarge(f"The compressed reply grows more than {self._limits.max_ratio} times")
        return piece

    def check_end(self) -> None:
        """The body is complete; so must be the stream. An empty body is nobody's stream."""
        if self._stream is not None and not self._stream.eof:
            raise InvalidHTTPResponse("The compressed body of the reply is cut off")
