"""Encode server-sent events, and parse a stream of them incrementally.

The parser yields the same events for any split of the stream into chunks. It takes linear time and keeps at most a few
times `max_event_bytes` in memory. This module does not depend on JSON or MCP.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

# The body of a POST request has the same maximum size.
MAX_EVENT_BYTES = 4 * 1024 * 1024

_LINE_END = re.compile(rb"\r\n?|\n")
_BOM = b"\xef\xbb\xbf"
# Longer numbers are ignored, because converting them to int would be slow.
_MAX_RETRY_DIGITS = 15
_PIECE_BYTES = 8 * 1024


class EventTooLarge(ValueError):
    """Raised if an event is larger than the limit. The rest of the stream cannot be read."""


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """A server-sent event. `id` is the last event ID of the stream, and `retry` is a new reconnect delay in ms."""

    data: str
    event: str = "message"
    id: str | None = None
    retry: int | None = None


def encode_event(payload: bytes, id: str | None = None, *, name: str | None = None, retry: int | None = None) -> bytes:
    """Encode one event. If the payload is empty, the event only sets the ID of the stream."""
    # Each line of the payload needs its own data field. The client joins the lines with LF.
    if payload.find(b"\n") >= 0 or payload.find(b"\r") >= 0:  # For bytes, `in` is slower than `find`.
        payload = _LINE_END.sub(b"\ndata: ", payload)
    if id is not None and name is None and retry is None:  # This is the most frequent kind of event.
        return b"id: %b\ndata: %b\n\n" % (_encode_line("id", id), payload)
    head = b"" if id is None else b"id: %b\n" % _encode_line("id", id)
    if name is not None:
        head += b"event: %b\n" % _encode_line("event", name)
    if retry is not None:
        head += b"retry: %b\n" % _encode_retry(retry)
    return b"".join((head, b"data: ", payload, b"\n\n"))


def encode_comment(text: str = "") -> bytes:
    """Encode a comment. Comments keep an idle stream open."""
    # Some clients wait for a blank line, so a blank line follows the comment.
    # spec: streamable-http#receiving-messages
    lines = _LINE_END.split(text.encode())
    return b"\n".join(b": " + line if line else b":" for line in lines) + b"\n\n"


def _encode_line(field: str, text: str) -> bytes:
    if "\r" in text or "\n" in text or "\0" in text:
        raise ValueError(f"the {field} field of an event must not contain line ends or NUL")
    return text.encode()


def _encode_retry(retry: int) -> bytes:
    if retry < 0:
        raise ValueError("the retry field of an event must not be negative")
    return b"%d" % retry


def split_chunk(chunk: bytes) -> Sequence[bytes]:
    """Split a large chunk of a stream into pieces, so that the reader can parse the chunk step by step."""
    if len(chunk) <= _PIECE_BYTES:
        return (chunk,)
    return [chunk[start : start + _PIECE_BYTES] for start in range(0, len(chunk), _PIECE_BYTES)]


class SSEParser:
    """Parses server-sent events by the WHATWG rules.

    To reconnect, a client needs `last_event_id` and `retry`. `last_event_id` is the ID after the last complete event,
    or None if the stream never set or has cleared it. `retry` is the latest delay in milliseconds.
    """

    __slots__ = (
        "_data",
        "_ends_with_cr",
        "_event_name",
        "_event_retry",
        "_has_failed",
        "_held_bytes",
        "_id",
        "_is_first_line",
        "_line",
        "last_event_id",
        "max_event_bytes",
        "retry",
    )

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.max_event_bytes = max_event_bytes
        self.last_event_id: str | None = None
        self.retry: int | None = None
        self._line = bytearray()
        self._data = bytearray()  # This is one buffer, because a list of short lines would need ten times the memory.
        self._held_bytes = 0
        self._event_name = ""
        self._id: str | None = None
        self._event_retry: int | None = None
        self._is_first_line = True
        self._ends_with_cr = False
        self._has_failed = False

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Parse the next bytes of the stream, and return the events that are complete.

        If an event is too large, return the events before it. The next call raises EventTooLarge.

        Raises:
            EventTooLarge: An event is too large, and all events before it were returned.
        """
        events: list[ServerSentEvent] = []
        if not self._has_failed:
            self._parse(chunk, events)
        if self._has_failed and not events:
            raise EventTooLarge(f"an event in the stream is larger than {self.max_event_bytes} bytes")
        return events

    def _parse(self, chunk: bytes, events: list[ServerSentEvent]) -> None:
        start = 1 if self._ends_with_cr and chunk.startswith(b"\n") else 0
        if chunk:
            self._ends_with_cr = chunk.endswith(b"\r")
        for end in _LINE_END.finditer(chunk, start):
            if not self._append_piece(chunk[start : end.start()]):
                return
            start = end.end()
            self._end_line(events)
        self._append_piece(chunk[start:])

    def _append_piece(self, piece: bytes) -> bool:
        # Comments are not stored, so they do not count toward the limit.
        if self._held_bytes + len(self._line) + len(piece) > self.max_event_bytes:
            self._has_failed = True
            self._line.clear()
            self._data.clear()
            return False
        self._line += piece
        return True

    def _end_line(self, events: list[ServerSentEvent]) -> None:
        line = bytes(self._line)
        self._line.clear()
        if self._is_first_line:
            self._is_first_line = False
            line = line.removeprefix(_BOM)
        if line:
            name, _, value = line.partition(b":")
            self._handle_field(name, value.removeprefix(b" "))
        else:
            self._dispatch(events)

    def _handle_field(self, name: bytes, value: bytes) -> None:
        # A comment has an empty field name. It is ignored, like any unknown field.
        if name == b"data":
            self._data += value
            self._data += b"\n"
            self._held_bytes += len(value) + 1
        elif name == b"event":
            self._event_name = value.decode("utf-8", "replace")
        elif name == b"id":
            if b"\0" not in value:
                self._id = value.decode("utf-8", "replace") or None
        elif name == b"retry" and value.isdigit() and len(value) <= _MAX_RETRY_DIGITS:
            self._event_retry = self.retry = int(value)

    def _dispatch(self, events: list[ServerSentEvent]) -> None:
        self.last_event_id = self._id
        if self._data:
            data = self._data[:-1].decode("utf-8", "replace")
            events.append(ServerSentEvent(data, self._event_name or "message", self._id, self._event_retry))
        self._data.clear()
        self._held_bytes = 0
        self._event_name = ""
        self._event_retry = None
