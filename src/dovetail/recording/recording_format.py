"""The recording format, which stores the messages between a client and a server as one JSON object per line.

The first line is a header. Every other line is a frame, or an event of a host. Clients, servers and proxies
write the same format. The recorder masks secrets, so you can store a recording with the code.

Format version 2 renamed `began` to `started_at` in headers and `facts` to `data` in events. This module reads both.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from dovetail.errors import UnsupportedFileVersion
from dovetail.protocol.interfaces.client_transport import Headers
from dovetail.protocol.interfaces.message_tap import Receiver
from dovetail.protocol.redaction import mask_headers, mask_secrets, mask_text, strip_url
from dovetail.wire.base import UNSET, Struct, UnsetType, field
from dovetail.wire.codec import encode

FORMAT_VERSION: Final = 2
EXCHANGE_HEADER: Final = (
    # This entry contains the number of the HTTP request. Its name starts with a colon, because it is not a real header.
    b":exchange"
)


class RecordingHeader(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line of a recording."""

    recording: int  # the format version of the recording
    started_at: str = ""  # the date and time in RFC 3339 format
    server: str = ""  # the name of the server in this recording


class Frame(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A recorded message, or the text of an invalid message."""

    at: float  # the seconds since the recording started
    to: Receiver
    message: Any | UnsetType = UNSET
    text: str | None = None
    headers: dict[str, str] | None = None
    status: int | None = None
    server: str = ""  # the name of the server, if the recording has several servers
    exchange: int | None = None  # the number of the HTTP request that contains the message


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call, a decision, a user's answer or a state change in a recording."""

    event: str
    at: float
    server: str = ""
    data: dict[str, Any] = field(default_factory=dict[str, Any])


class _HeaderLine(RecordingHeader, frozen=True, kw_only=True):
    began: str = ""  # Format version 1 used this name for `started_at`.


class _EventLine(Event, frozen=True, kw_only=True):
    facts: dict[str, Any] | None = None  # Format version 1 used this name for `data`.


_header_decoder: Final = msgspec.json.Decoder(_HeaderLine)
_frame_decoder: Final = msgspec.json.Decoder(Frame)
_event_decoder: Final = msgspec.json.Decoder(_EventLine)
_json_decoder: Final = msgspec.json.Decoder()
_HEADER_PREFIX: Final = b'{"recording"'  # Each recording in a file starts with a line with this prefix.
_EVENT_PREFIX: Final = b'{"event"'


def create_header(server: str, started_at: str = "") -> RecordingHeader:
    """Return the first line of a recording. A URL is stored without its user and query, which may be secrets."""
    return RecordingHeader(recording=FORMAT_VERSION, started_at=started_at, server=strip_url(server))


def encode_line(part: RecordingHeader | Frame | Event) -> bytes:
    """Encode an object as one line of a recording."""
    return encode(part) + b"\n"


def read_frames(lines: Iterable[bytes], source: object = "the recording") -> Iterator[RecordingHeader | Frame]:
    """Yield the headers and messages of a recording. Raise the same errors as `read_parts`."""
    for part in read_parts(lines, source):
        if not isinstance(part, Event):
            yield part


def read_parts(lines: Iterable[bytes], source: object = "the recording") -> Iterator[RecordingHeader | Frame | Event]:
    """Yield the headers, messages and events of a recording. Errors contain the file name `source`.

    Raises:
        UnsupportedFileVersion: A newer version of dovetail wrote the recording.
        ValueError: A line is not part of a recording.
    """
    for number, raw_line in enumerate(lines, 1):
        stripped = raw_line.lstrip()
        if not stripped:
            continue
        try:
            if stripped.startswith(_EVENT_PREFIX):
                yield _upgrade_event(_event_decoder.decode(raw_line))
            elif stripped.startswith(_HEADER_PREFIX):
                yield _upgrade_header(_header_decoder.decode(raw_line), source)
            else:
                yield _frame_decoder.decode(raw_line)
        except msgspec.MsgspecError as exc:
            raise ValueError(f"line {number} is not a valid line of a recording: {exc}") from None


def read_version(first_line: bytes, source: object) -> int:
    """Return the format version from the first line of a recording. Without a header, return the current version.

    Raises:
        UnsupportedFileVersion: A newer version of dovetail wrote the recording.
    """
    try:
        header = next(read_parts([first_line], source), None)
    except UnsupportedFileVersion:
        raise
    except ValueError:
        return FORMAT_VERSION
    return header.recording if isinstance(header, RecordingHeader) else FORMAT_VERSION


def _upgrade_header(line: _HeaderLine, source: object) -> RecordingHeader:
    if not 1 <= line.recording <= FORMAT_VERSION:
        raise UnsupportedFileVersion(source, line.recording, FORMAT_VERSION)
    return RecordingHeader(recording=line.recording, started_at=line.started_at or line.began, server=line.server)


def _upgrade_event(line: _EventLine) -> Event:
    data = line.data if line.facts is None else line.facts
    return Event(event=line.event, at=line.at, server=line.server, data=data)


def create_frame(
    at: float, to: Receiver, data: bytes, headers: Headers = (), *, keep_request_state: bool = False
) -> Frame:
    """Create a frame with masked secrets. If `keep_request_state` is True, the `requestState` is not masked."""
    header_values = {
        name.decode("latin-1"): value.decode("latin-1") for name, value in headers if name != EXCHANGE_HEADER
    }
    exchange_number = next((int(value) for name, value in headers if name == EXCHANGE_HEADER), None)
    masked_values = mask_headers(header_values) if header_values else None
    try:
        message = _json_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        text = mask_text(data.decode("utf-8", "replace"))
        return Frame(at=at, to=to, text=text, headers=masked_values, exchange=exchange_number)
    return Frame(
        at=at,
        to=to,
        message=mask_secrets(message, keep_request_state=keep_request_state),
        headers=masked_values,
        exchange=exchange_number,
    )
