"""The recording format: the messages between a client and a server, one JSON object per line.

The first line is a header. Every other line is a frame, or an event if a host records. Clients, servers and proxies
write the same format. Secrets are masked when they are recorded, so a recording can be stored with the code.

Format 2 renamed `began` to `started_at` in headers and `facts` to `data` in events. Format 1 is still read.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from dovetail.protocol.client_transport import Headers
from dovetail.wire.base import UNSET, Struct, UnsetType, field

FORMAT_VERSION: Final = 2
_READABLE_VERSIONS: Final = (1, 2)
EXCHANGE_HEADER: Final = (
    b":exchange"  # among the headers a tap is told, the number of the HTTP request; no header is so named
)
MASK: Final = "***"

Receiver: TypeAlias = Literal["server", "client"]

# Told of everything that travels: where to, the bytes, and the headers that go with them.
Recorder: TypeAlias = Callable[[Receiver, bytes, Headers], None]


class RecordingHeader(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line."""

    recording: int  # the number of the format
    started_at: str = ""  # a date and time of RFC 3339
    server: str = ""  # what the server is called here


class Frame(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message on its way, or a text that is none."""

    at: float  # seconds since the recording began
    to: Receiver
    message: Any | UnsetType = UNSET
    text: str | None = None
    headers: dict[str, str] | None = None
    status: int | None = None
    server: str = ""  # which one, where a recording is of several
    exchange: int | None = None  # over HTTP: which request it is, or is said in reply to


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened, and was no message: a call, a decision, an answer of the user, another state."""

    event: str
    at: float
    server: str = ""
    data: dict[str, Any] = field(default_factory=dict[str, Any])


class _HeaderLine(RecordingHeader, frozen=True, kw_only=True):
    began: str = ""  # format 1


class _EventLine(Event, frozen=True, kw_only=True):
    facts: dict[str, Any] | None = None  # format 1


_header_decoder: Final = msgspec.json.Decoder(_HeaderLine)
_frame_decoder: Final = msgspec.json.Decoder(Frame)
_event_decoder: Final = msgspec.json.Decoder(_EventLine)
_json_decoder: Final = msgspec.json.Decoder()
_HEADER_PREFIX: Final = b'{"recording"'  # so recordings may follow one another in a file
_EVENT_PREFIX: Final = b'{"event"'


def encode_line(part: RecordingHeader | Frame | Event) -> bytes:
    """One line of a recording, with its end."""
    return msgspec.json.encode(part) + b"\n"


def read_frames(lines: Iterable[bytes]) -> Iterator[RecordingHeader | Frame]:
    """The messages of a recording and its headings; ValueError names the line that is no part of one."""
    for part in read_parts(lines):
        if not isinstance(part, Event):
            yield part


def read_parts(lines: Iterable[bytes]) -> Iterator[RecordingHeader | Frame | Event]:
    """All parts of a recording, events too; ValueError names the line that is none."""
    for number, raw_line in enumerate(lines, 1):
        stripped = raw_line.lstrip()
        if not stripped:
            continue
        try:
            if stripped.startswith(_EVENT_PREFIX):
                yield _upgrade_event(_event_decoder.decode(raw_line))
            elif stripped.startswith(_HEADER_PREFIX):
                yield _upgrade_header(_header_decoder.decode(raw_line))
            else:
                yield _frame_decoder.decode(raw_line)
        except msgspec.MsgspecError as exc:
            raise ValueError(f"line {number} is not part of a recording: {exc}") from None


def _upgrade_header(line: _HeaderLine) -> RecordingHeader:
    if line.recording not in _READABLE_VERSIONS:
        versions = " and ".join(map(str, _READABLE_VERSIONS))
        raise ValueError(f"cannot read recording format {line.recording}: this version of dovetail reads {versions}")
    return RecordingHeader(recording=line.recording, started_at=line.started_at or line.began, server=line.server)


def _upgrade_event(line: _EventLine) -> Event:
    data = line.data if line.facts is None else line.facts
    return Event(event=line.event, at=line.at, server=line.server, data=data)


def create_frame(
    at: float, to: Receiver, data: bytes, headers: Headers = (), *, keep_request_state: bool = False
) -> Frame:
    """A frame of what was sent as these bytes, secrets masked. `states`: keep what servers seal into `requestState`."""
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


# What must not be in a recording.

_SECRET_HEADERS: Final = frozenset(
    {"authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "mcp-session-id", "www-authenticate"}
)
_SECRET_MEMBERS: Final = frozenset(
    {"authorization", "accesstoken", "refreshtoken", "idtoken", "token", "bearer", "apikey", "password", "secret",
     "clientsecret", "clientassertion", "codeverifier", "privatekey", "cookie"}
)  # fmt: skip
_SECRET_HEADER_WORDS: Final = ("auth", "cookie", "key", "secret", "token")  # in the name of a header
_SAFE_HEADERS: Final = frozenset({"sec-websocket-key", "idempotency-key"})
_PARAM_HEADER_PREFIX: Final = "mcp-param-"  # a header that repeats an argument. spec: streamable-http#schema-extension
_MAX_NESTED_TEXTS: Final = 8  # texts within texts
_CREDENTIALS: Final = re.compile(r"(?i)\b(bearer|basic) +[\w.~+/=-]{8,}")
_REQUEST_STATE_KEY: Final = "requestState"


def mask_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers without the values that would let a reader act as someone else."""
    return {name: MASK if _is_secret_header(name.lower()) else value for name, value in headers.items()}


def _is_secret_header(header: str) -> bool:
    if header.startswith(_PARAM_HEADER_PREFIX):
        return _is_secret_name(header.removeprefix(_PARAM_HEADER_PREFIX))
    return header in _SECRET_HEADERS or (
        header not in _SAFE_HEADERS and any(word in header for word in _SECRET_HEADER_WORDS)
    )


def mask_secrets(value: Any, *, keep_request_state: bool = False) -> Any:
    """A JSON value without secrets: members named as one, credentials within texts, and both in texts that are JSON."""
    return _mask_value(value, keep_request_state, 0)


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
    """A text, written anew if it is JSON that holds a secret."""
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
