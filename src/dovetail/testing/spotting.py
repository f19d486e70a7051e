"""Finding messages in passing bytes: what goes on is cut so that each piece holds at most one message, at its end.

Forwarding the pieces forwards the bytes. Knows HTTP as the two ends of dovetail write it, not as the world does.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

_HEAD_END = b"\r\n\r\n"


class Piece(NamedTuple):
    """Bytes to pass on, and the message that is complete with them."""

    data: bytes
    message: bytes | None = None


class MessageSplitter(Protocol):
    """Cuts one direction of a connection."""

    buffer: bytes  # what is not complete

    def feed(self, data: bytes) -> Iterator[Piece]:
        """The pieces that are complete with these bytes."""
        ...


class LineMessageSplitter:
    """Newline-delimited messages."""

    def __init__(self) -> None:
        self.buffer = b""

    def feed(self, data: bytes) -> Iterator[Piece]:
        """One piece for every line."""
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            yield Piece(line + b"\n", line)


class HTTPMessageSplitter:
    """Requests or replies: a body is a message, and so is every event of a stream."""

    def __init__(self) -> None:
        self.buffer = b""
        self._body = b""  # of a chunked message, as far as it has come
        self._is_chunked = self._is_stream = self._is_endless = False

    def feed(self, data: bytes) -> Iterator[Piece]:
        """One piece for every message with its head; the head of a stream alone, then one for every event."""
        self.buffer += data
        while (piece := self._next()) is not None:
            yield piece

    def _next(self) -> Piece | None:
        if self._is_endless:
            return self._take(len(self.buffer)) if self.buffer else None
        return self._read_chunk() if self._is_chunked else self._read_message()

    def _take(self, size: int, message: bytes | None = None) -> Piece:
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return Piece(data, message or None)

    def _read_message(self) -> Piece | None:
        end = self.buffer.find(_HEAD_END)
        if end < 0:
            return None
        start = end + len(_HEAD_END)
        first, *lines = self.buffer[:end].split(b"\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        self._is_stream = b"event-stream" in headers.get(b"content-type", b"")
        if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            self._is_chunked, self._body = True, b""
            return self._take(start)
        if b"content-length" not in headers and first.startswith(b"HTTP/") and first.split()[1] not in (b"204", b"304"):
            self._is_endless = True
            return self._take(start)
        size = start + int(headers.get(b"content-length", b"0"))
        return self._take(size, self.buffer[start:size]) if len(self.buffer) >= size else None

    def _read_chunk(self) -> Piece | None:
        """Chunks are written anew: one for an event, one for a whole body."""
        event = self._read_event()
        if event is not None:
            return event
        line, separator, rest = self.buffer.partition(b"\r\n")
        size = int(line, 16) if separator else 0
        if not separator or len(rest) < size + 2:
            return None
        self._body += rest[:size]
        self.buffer = rest[size + 2 :]
        if size:
            return Piece(b"")
        self._is_chunked = False
        body, self._body = self._body, b""
        return Piece((_encode_chunk(body) if body else b"") + b"0\r\n\r\n", None if self._is_stream else body or None)

    def _read_event(self) -> Piece | None:
        event, separator, rest = self._body.partition(b"\n\n")
        if not self._is_stream or not separator:
            return None
        self._body = rest
        data = [line[5:].lstrip() for line in event.split(b"\n") if line.startswith(b"data:")]
        return Piece(_encode_chunk(event + separator), b"\n".join(data) or None)


def _encode_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
