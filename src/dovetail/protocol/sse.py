"""Server-sent events: encode single events, and parse a stream incrementally.

Knows nothing of JSON or of MCP. Invariant: however a stream is cut into chunks, the parser yields the same
events, in time linear in the bytes fed and holding no more than a few times `max_event` bytes.
"""

import re
from dataclasses import dataclass

# One message of 4 MiB is also the largest body accepted over POST, so both directions carry the same things.
MAX_EVENT_BYTES = 4 * 1024 * 1024

_LINE_END = re.compile(rb"\r\n?|\n")
_BOM = b"\xef\xbb\xbf"
# Longer waits than 30 000 years are noise, and unbounded digits make int() quadratic.
_MAX_RETRY_DIGITS = 15


class EventTooLarge(ValueError):
    """The stream holds an event larger than the parser may keep; nothing after it can be trusted."""


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One dispatched event; `id` is the last id the stream set, `retry` only what this event itself said."""

    data: str
    event: str = "message"
    id: str | None = None
    retry: int | None = None


def encode_event(payload: bytes, id: str | None = None, *, name: str | None = None, retry: int | None = None) -> bytes:
    """Write one event; an empty payload still makes an event, which is how a stream hands out its first id."""
    # The format cannot tell line ends apart: they all arrive as LF, which JSON reads as the same white space.
    if b"\n" in payload or b"\r" in payload:
        payload = _LINE_END.sub(b"\ndata: ", payload)
    head = b"" if id is None else b"id: %b\n" % _encode_line("id", id)
    if name is not None:
        head += b"event: %b\n" % _encode_line("event", name)
    if retry is not None:
        head += b"retry: %b\n" % _encode_retry(retry)
    return b"".join((head, b"data: ", payload, b"\n\n"))


def encode_comment(text: str = "") -> bytes:
    """Write a comment: bytes that keep a quiet stream alive and mean nothing."""
    # The blank line makes readers that flush by block see it. spec: streamable-http#receiving-messages
    lines = _LINE_END.split(text.encode())
    return b"\n".join(b": " + line if line else b":" for line in lines) + b"\n\n"


def _encode_line(field: str, text: str) -> bytes:
    if "\r" in text or "\n" in text or "\0" in text:
        raise ValueError(f"the {field} field of an event holds no line end and no NUL")
    return text.encode()


def _encode_retry(retry: int) -> bytes:
    if retry < 0:
        raise ValueError("the retry field of an event is not negative")
    return b"%d" % retry


class SSEParser:
    """Bytes in, events out, by the WHATWG rules for an event stream.

    `last_event_id` and `retry` are what a reconnecting client needs: the id as of the last completed block
    (None when none was set or the server cleared it) and the latest waiting time in milliseconds.
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
        self._data = bytearray()  # each line with its newline; a list of short ones would take ten times their size
        self._held_bytes = 0
        self._event_name = ""
        self._id: str | None = None
        self._event_retry: int | None = None
        self._is_first_line = True
        self._ends_with_cr = False
        self._has_failed = False

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Take the next bytes and return the events they complete.

        Events completed before an oversized one are returned; the call after that raises.

        Raises:
            EventTooLarge: at once if nothing was completed by this chunk, and on every later call.
        """
        events: list[ServerSentEvent] = []
        if not self._has_failed:
            self._parse(chunk, events)
        if self._has_failed and not events:
            raise EventTooLarge(f"an event of the stream exceeds {self.max_event_bytes} bytes")
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
        # Only what is kept counts, so a stream of bare keep-alive comments may last for ever.
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
        # A comment has an empty name and falls through with every unknown field.
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
