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


class Spotter(Protocol):
    """Cuts one direction of a connection."""

    held: bytes  # what is not complete

    def feed(self, data: bytes) -> Iterator[Piece]:
        """The pieces that are complete with these bytes."""
        ...


class Lines:
    """Newline-delimited messages."""

    def __init__(self) -> None:
        self.held = b""

    def feed(self, data: bytes) -> Iterator[Piece]:
        """One piece for every line."""
        *lines, self.held = (self.held + data).split(b"\n")
        for line in lines:
            yield Piece(line + b"\n", line)


class Http:
    """Requests or replies: a body is a message, and so is every event of a stream."""

    def __init__(self) -> None:
        self.held = b""
        self._body = b""  # of a chunked message, as far as it has come
        self._chunked = self._stream = self._endless = False

    def feed(self, data: bytes) -> Iterator[Piece]:
        """One piece for every message with its head; the head of a stream alone, then one for every event."""
        self.held += data
        while (piece := self._next()) is not None:
            yield piece

    def _next(self) -> Piece | None:
        if self._endless:
            return self._take(len(self.held)) if self.held else None
        return self._chunk() if self._chunked else self._whole()

    def _take(self, size: int, message: bytes | None = None) -> Piece:
        data, self.held = self.held[:size], self.held[size:]
        return Piece(data, message or None)

    def _whole(self) -> Piece | None:
        end = self.held.find(_HEAD_END)
        if end < 0:
            return None
        start = end + len(_HEAD_END)
        first, *lines = self.held[:end].split(b"\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        self._stream = b"event-stream" in headers.get(b"content-type", b"")
        if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            self._chunked, self._body = True, b""
            return self._take(start)
        if b"content-length" not in headers and first.startswith(b"HTTP/") and first.split()[1] not in (b"204", b"304"):
            self._endless = True
            return self._take(start)
        size = start + int(headers.get(b"content-length", b"0"))
        return self._take(size, self.held[start:size]) if len(self.held) >= size else None

    def _chunk(self) -> Piece | None:
        """Chunks are written anew: one for an event, one for a whole body."""
        event = self._event()
        if event is not None:
            return event
        line, found, rest = self.held.partition(b"\r\n")
        size = int(line, 16) if found else 0
        if not found or len(rest) < size + 2:
            return None
        self._body += rest[:size]
        self.held = rest[size + 2 :]
        if size:
            return Piece(b"")
        self._chunked = False
        body, self._body = self._body, b""
        return Piece((_chunk(body) if body else b"") + b"0\r\n\r\n", None if self._stream else body or None)

    def _event(self) -> Piece | None:
        event, found, rest = self._body.partition(b"\n\n")
        if not self._stream or not found:
            return None
        self._body = rest
        data = [line[5:].lstrip() for line in event.split(b"\n") if line.startswith(b"data:")]
        return Piece(_chunk(event + found), b"\n".join(data) or None)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
