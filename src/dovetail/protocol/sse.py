"""Event streams: a writer of single events and an incremental parser of any stream.

Knows nothing of JSON or of MCP. Invariant: however a stream is cut into chunks, the parser yields the same
events, in time linear in the bytes fed and holding no more than a few times `max_event` bytes.
"""

import re
from dataclasses import dataclass

# One message of 4 MiB is also the largest body accepted over POST, so both directions carry the same things.
MAX_EVENT = 4 * 1024 * 1024

_LINE_END = re.compile(rb"\r\n?|\n")
_BOM = b"\xef\xbb\xbf"
# Longer waits than 30 000 years are noise, and unbounded digits make int() quadratic.
_MAX_RETRY_DIGITS = 15


class EventTooLarge(ValueError):
    """The stream holds an event larger than the parser may keep; nothing after it can be trusted."""


@dataclass(frozen=True, slots=True)
class Event:
    """One dispatched event; `id` is the last id the stream set, `retry` only what this event itself said."""

    data: str
    event: str = "message"
    id: str | None = None
    retry: int | None = None


def event(payload: bytes, id: str | None = None, *, name: str | None = None, retry: int | None = None) -> bytes:
    """Write one event; an empty payload still makes an event, which is how a stream hands out its first id."""
    # The format cannot tell line ends apart: they all arrive as LF, which JSON reads as the same white space.
    if b"\n" in payload or b"\r" in payload:
        payload = _LINE_END.sub(b"\ndata: ", payload)
    head = b"" if id is None else b"id: %b\n" % _one_line("id", id)
    if name is not None:
        head += b"event: %b\n" % _one_line("event", name)
    if retry is not None:
        head += b"retry: %b\n" % _digits(retry)
    return b"".join((head, b"data: ", payload, b"\n\n"))


def comment(text: str = "") -> bytes:
    """Write a comment: bytes that keep a quiet stream alive and mean nothing."""
    # The blank line makes readers that flush by block see it. spec: streamable-http#receiving-messages
    lines = _LINE_END.split(text.encode())
    return b"\n".join(b": " + line if line else b":" for line in lines) + b"\n\n"


def _one_line(field: str, text: str) -> bytes:
    if "\r" in text or "\n" in text or "\0" in text:
        raise ValueError(f"the {field} field of an event holds no line end and no NUL")
    return text.encode()


def _digits(retry: int) -> bytes:
    if retry < 0:
        raise ValueError("the retry field of an event is not negative")
    return b"%d" % retry


class Parser:
    """Bytes in, events out, by the WHATWG rules for an event stream.

    `last_event_id` and `retry` are what a reconnecting client needs: the id as of the last completed block
    (None when none was set or the server cleared it) and the latest waiting time in milliseconds.
    """

    __slots__ = (
        "_after_cr",
        "_data",
        "_failed",
        "_first",
        "_held",
        "_id",
        "_line",
        "_name",
        "_wait",
        "last_event_id",
        "max_event",
        "retry",
    )

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        self.max_event = max_event
        self.last_event_id: str | None = None
        self.retry: int | None = None
        self._line = bytearray()
        self._data = bytearray()  # each line with its newline; a list of short ones would take ten times their size
        self._held = 0
        self._name = ""
        self._id: str | None = None
        self._wait: int | None = None
        self._first = True
        self._after_cr = False
        self._failed = False

    def feed(self, chunk: bytes) -> list[Event]:
        """Take the next bytes and return the events they complete.

        Events completed before an oversized one are returned; the call after that raises.

        Raises:
            EventTooLarge: at once if nothing was completed by this chunk, and on every later call.
        """
        events: list[Event] = []
        if not self._failed:
            self._read(chunk, events)
        if self._failed and not events:
            raise EventTooLarge(f"an event of the stream exceeds {self.max_event} bytes")
        return events

    def _read(self, chunk: bytes, events: list[Event]) -> None:
        start = 1 if self._after_cr and chunk.startswith(b"\n") else 0
        if chunk:
            self._after_cr = chunk.endswith(b"\r")
        for end in _LINE_END.finditer(chunk, start):
            if not self._extend(chunk[start : end.start()]):
                return
            start = end.end()
            self._end_line(events)
        self._extend(chunk[start:])

    def _extend(self, piece: bytes) -> bool:
        # Only what is kept counts, so a stream of bare keep-alive comments may last for ever.
        if self._held + len(self._line) + len(piece) > self.max_event:
            self._failed = True
            self._line.clear()
            self._data.clear()
            return False
        self._line += piece
        return True

    def _end_line(self, events: list[Event]) -> None:
        line = bytes(self._line)
        self._line.clear()
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if line:
            name, _, value = line.partition(b":")
            self._field(name, value.removeprefix(b" "))
        else:
            self._dispatch(events)

    def _field(self, name: bytes, value: bytes) -> None:
        # A comment has an empty name and falls through with every unknown field.
        if name == b"data":
            self._data += value
            self._data += b"\n"
            self._held += len(value) + 1
        elif name == b"event":
            self._name = value.decode("utf-8", "replace")
        elif name == b"id":
            if b"\0" not in value:
                self._id = value.decode("utf-8", "replace") or None
        elif name == b"retry" and value.isdigit() and len(value) <= _MAX_RETRY_DIGITS:
            self._wait = self.retry = int(value)

    def _dispatch(self, events: list[Event]) -> None:
        self.last_event_id = self._id
        if self._data:
            data = self._data[:-1].decode("utf-8", "replace")
            events.append(Event(data, self._name or "message", self._id, self._wait))
        self._data.clear()
        self._held = 0
        self._name = ""
        self._wait = None
