"""The recording format: the messages between a client and a server, one JSON object per line.

The first line is a header. Every other line is a frame, or an event if a host records. Clients, servers and proxies
write the same format. The recorder masks secrets, so you can store a recording with the code.

Format 2 renamed `began` to `started_at` in headers and `facts` to `data` in events. This module still reads format 1.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from dovetail.errors import UnsupportedFileVersion
from dovetail.protocol.client_transport import Headers
from dovetail.wire.base import UNSET, Struct, UnsetType, field

FORMAT_VERSION: Final = 2
EXCHANGE_HEADER: Final = b":exchange"  # Holds the number of the HTTP request. No real header can have this name.
MASK: Final = "***"

Receiver: TypeAlias = Literal["server", "client"]

# Called with the receiver, the bytes and the headers of each message.
Recorder: TypeAlias = Callable[[Receiver, bytes, Headers], None]


class RecordingHeader(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line of a recording."""

    recording: int  # the format version
    started_at: str = ""  # date and time in RFC 3339
    server: str = ""  # the name of the server in this recording


class Frame(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One recorded message, or a text that is not a valid message."""

    at: float  # seconds since the recording started
    to: Receiver
    message: Any | UnsetType = UNSET
    text: str | None = None
    headers: dict[str, str] | None = None
    status: int | None = None
    server: str = ""  # name of the server, if the recording has several
    exchange: int | None = None  # number of the HTTP request that contains the message


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something in a recording that is not a message: a call, a decision, a user's answer or a state change."""

    event: str
    at: float
    server: str = ""
    data: dict[str, Any] = field(default_factory=dict[str, Any])


class _HeaderLine(RecordingHeader, frozen=True, kw_only=True):
    began: str = ""  # the name of `started_at` in version 1


class _EventLine(Event, frozen=True, kw_only=True):
    facts: dict[str, Any] | None = None  # the name of `data` in version 1


_header_decoder: Final = msgspec.json.Decoder(_HeaderLine)
_frame_decoder: Final = msgspec.json.Decoder(Frame)
_event_decoder: Final = msgspec.json.Decoder(_EventLine)
_json_decoder: Final = msgspec.json.Decoder()
_HEADER_PREFIX: Final = b'{"recording"'  # how a header line starts. A file can contain several recordings
_EVENT_PREFIX: Final = b'{"event"'


def encode_line(part: RecordingHeader | Frame | Event) -> bytes:
    """Encode one line of a recording."""
    return msgspec.json.encode(part) + b"\n"


def read_frames(lines: Iterable[bytes], source: object = "the recording") -> Iterator[RecordingHeader | Frame]:
    """Yield the messages of a recording. Raises the same errors as `read_parts`."""
    for part in read_parts(lines, source):
        if not isinstance(part, Event):
            yield part


def read_parts(lines: Iterable[bytes], source: object = "the recording") -> Iterator[RecordingHeader | Frame | Event]:
    """Yield everything in a recording, including events. Errors mention the file name `source`.

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
    """Read the format version from the first line of a recording. Without a header, it is the current version.

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
    """Create a frame with masked secrets. `keep_request_state` keeps the encrypted `requestState`."""
    header_values = {
        name.decode("latin-1"): value.decode("latin-1") for name, value in headers if name != EXCHANGE_HEADER
    }
    exchange_number = next((int(value) for name, value in headers if name == EXCHANGE_HEADER), None)
    masked_values = mask_headers(header_values) if header_values else None
    try:
        message = _json_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        text = _CREDENTIALS.sub(_mask_match, data.decode("utf-8", "replace"))
        return Frame(at=at, to=to, text=text, headers=masked_values, exchange=exchange_number)
    return Frame(
        at=at,
        to=to,
        message=mask_secrets(message, keep_request_state=keep_request_state),
        headers=masked_values,
        exchange=exchange_number,
    )


# These headers are never recorded.

_SECRET_HEADERS: Final = frozenset(
    {"authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "mcp-session-id", "www-authenticate"}
)
_SECRET_MEMBERS: Final = frozenset(
    {"authorization", "accesstoken", "refreshtoken", "idtoken", "token", "bearer", "apikey", "password", "secret",
     "clientsecret", "clientassertion", "codeverifier", "privatekey", "cookie"}
)  # fmt: skip
# A JSON text without any of these words contains no secrets. Underscores and dashes are ignored.
_SECRET_WORDS: Final = re.compile("|".join((*_SECRET_MEMBERS, "basic", "requeststate")).encode())
# A header whose name contains one of these words is secret.
_SECRET_HEADER_WORDS: Final = ("auth", "cookie", "key", "secret", "token")
_SAFE_HEADERS: Final = frozenset({"sec-websocket-key", "idempotency-key"})
# Headers with this prefix repeat a tool argument. spec: streamable-http#schema-extension
_PARAM_HEADER_PREFIX: Final = "mcp-param-"
_MAX_NESTED_TEXTS: Final = 8  # how deep to search JSON inside JSON strings
_CREDENTIALS: Final = re.compile(r"(?i)\b(bearer|basic) +[\w.~+/=-]{8,}")
_REQUEST_STATE_KEY: Final = "requestState"


def mask_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Mask the values of headers that contain credentials."""
    return {name: MASK if _is_secret_header(name.lower()) else value for name, value in headers.items()}


def _is_secret_header(header: str) -> bool:
    if header.startswith(_PARAM_HEADER_PREFIX):
        return _is_secret_name(header.removeprefix(_PARAM_HEADER_PREFIX))
    return header in _SECRET_HEADERS or (
        header not in _SAFE_HEADERS and any(word in header for word in _SECRET_HEADER_WORDS)
    )


def mask_secrets(value: Any, *, keep_request_state: bool = False) -> Any:
    """Mask the secrets in a JSON value: members with secret names, and credentials in texts."""
    return _mask_value(value, keep_request_state, 0)


def may_hold_secrets(encoded_value: bytes) -> bool:
    """Return False if this encoded JSON value certainly contains no secrets."""
    # Escapes could hide a secret word, so search the decoded value.
    if b"\\" in encoded_value or not encoded_value.isascii():
        return True
    normalized = encoded_value.translate(None, b"_-").lower()
    return _SECRET_WORDS.search(normalized) is not None


def _mask_value(value: Any, keep_request_state: bool, depth: int) -> Any:
    if isinstance(value, str):
        return _CREDENTIALS.sub(_mask_match, _mask_text(value, keep_request_state, depth))
    if isinstance(value, list):
        return [_mask_value(item, keep_request_state, depth) for item in value]
    if isinstance(value, dict):
        return {
            name: MASK
            if _is_secret_member(name, item, keep_request_state)
            else _mask_value(item, keep_request_state, depth)
            for name, item in value.items()
        }
    return value


def _mask_text(text: str, keep_request_state: bool, depth: int) -> str:
    """Mask the secrets in a text. If the text is JSON, mask the secrets inside."""
    if depth >= _MAX_NESTED_TEXTS or not text.lstrip().startswith(("{", "[")):
        return text
    try:
        inner = _json_decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return text
    masked_value = _mask_value(inner, keep_request_state, depth + 1)
    return text if masked_value == inner else msgspec.json.encode(masked_value).decode()


def _is_secret_member(name: str, value: Any, keep_request_state: bool) -> bool:
    return isinstance(value, str) and (_is_secret_name(name) or (name == _REQUEST_STATE_KEY and not keep_request_state))


def _is_secret_name(name: str) -> bool:
    return name.replace("_", "").replace("-", "").lower() in _SECRET_MEMBERS


def _mask_match(match: re.Match[str]) -> str:
    return f"{match[1]} {MASK}"
