"""The recording format: what travelled between a client and a server, one JSON object a line.

The first line is a Heading, every other a Frame, or, where a host records, an Event. The same whoever records: a
client, a server, or something between the two. Secrets are masked on the way in, so a recording may be kept beside the
code.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from dovetail.protocol.channel import Headers
from dovetail.wire.shape import UNSET, Struct, UnsetType, field

FORMAT: Final = 1
EXCHANGE: Final = b":exchange"  # among the headers a tap is told, the number of the HTTP request; no header is so named
MASK: Final = "***"

To: TypeAlias = Literal["server", "client"]

# Told of everything that travels: where to, the bytes, and the headers that go with them.
Tap: TypeAlias = Callable[[To, bytes, Headers], None]


class Heading(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line."""

    recording: int  # the number of the format
    began: str = ""  # the time of day, as RFC 3339 writes it
    server: str = ""  # what the server is called here


class Frame(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message on its way, or a text that is none."""

    at: float  # seconds since the recording began
    to: To
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
    facts: dict[str, Any] = field(default_factory=dict[str, Any])


_heading: Final = msgspec.json.Decoder(Heading)
_frame: Final = msgspec.json.Decoder(Frame)
_event: Final = msgspec.json.Decoder(Event)
_anything: Final = msgspec.json.Decoder()
_BEGINS: Final = b'{"recording"'  # so recordings may follow one another in a file
_HAPPENED: Final = b'{"event"'


def line(part: Heading | Frame | Event) -> bytes:
    """One line of a recording, with its end."""
    return msgspec.json.encode(part) + b"\n"


def read_lines(lines: Iterable[bytes]) -> Iterator[Heading | Frame]:
    """The messages of a recording and its headings; ValueError names the line that is no part of one."""
    for part in read_all(lines):
        if not isinstance(part, Event):
            yield part


def read_all(lines: Iterable[bytes]) -> Iterator[Heading | Frame | Event]:
    """All parts of a recording, events too; ValueError names the line that is none."""
    for number, text in enumerate(lines, 1):
        start = text.lstrip()
        if not start:
            continue
        try:
            if start.startswith(_HAPPENED):
                yield _event.decode(text)
            elif start.startswith(_BEGINS):
                yield _known(_heading.decode(text))
            else:
                yield _frame.decode(text)
        except msgspec.MsgspecError as exc:
            raise ValueError(f"line {number} is not part of a recording: {exc}") from None


def _known(heading: Heading) -> Heading:
    if heading.recording != FORMAT:
        raise ValueError(f"this is a recording of format {heading.recording}; read here is format {FORMAT}")
    return heading


def frame(at: float, to: To, data: bytes, headers: Headers = (), *, states: bool = False) -> Frame:
    """A frame of what was sent as these bytes, secrets masked. `states`: keep what servers seal into `requestState`."""
    shown = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers if name != EXCHANGE}
    number = next((int(value) for name, value in headers if name == EXCHANGE), None)
    given = masked_headers(shown) if shown else None
    try:
        message = _anything.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        text = _BEARER.sub(_hide, data.decode("utf-8", "replace"))
        return Frame(at=at, to=to, text=text, headers=given, exchange=number)
    return Frame(at=at, to=to, message=masked(message, states=states), headers=given, exchange=number)


# What must not be in a recording.

_HEADERS: Final = frozenset(
    {"authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "mcp-session-id", "www-authenticate"}
)
_MEMBERS: Final = frozenset(
    {"authorization", "accesstoken", "refreshtoken", "idtoken", "token", "bearer", "apikey", "password", "secret",
     "clientsecret", "clientassertion", "codeverifier", "privatekey", "cookie"}
)  # fmt: skip
_TELLING: Final = ("auth", "cookie", "key", "secret", "token")  # in the name of a header
_PLAIN: Final = frozenset({"sec-websocket-key", "idempotency-key"})
_PARAMETER: Final = "mcp-param-"  # a header that repeats an argument. spec: streamable-http#schema-extension
_DEEP: Final = 8  # texts within texts
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic) +[\w.~+/=-]{8,}")
_STATE: Final = "requestState"


def masked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers without the values that would let a reader act as someone else."""
    return {name: MASK if _opens(name.lower()) else value for name, value in headers.items()}


def _opens(header: str) -> bool:
    if header.startswith(_PARAMETER):
        return _named_secret(header.removeprefix(_PARAMETER))
    return header in _HEADERS or (header not in _PLAIN and any(word in header for word in _TELLING))


def masked(value: Any, *, states: bool = False) -> Any:
    """A JSON value without secrets: members named as one, credentials within texts, and both in texts that are JSON."""
    return _masked(value, states, 0)


def _masked(value: Any, states: bool, depth: int) -> Any:
    if isinstance(value, str):
        return _BEARER.sub(_hide, _masked_text(value, states, depth))
    if isinstance(value, list):
        return [_masked(one, states, depth) for one in value]
    if isinstance(value, dict):
        return {
            name: MASK if _secret(name, one, states) else _masked(one, states, depth) for name, one in value.items()
        }
    return value


def _masked_text(text: str, states: bool, depth: int) -> str:
    """A text, written anew if it is JSON that holds a secret."""
    if depth >= _DEEP or not text.lstrip().startswith(("{", "[")):
        return text
    try:
        inner = _anything.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return text
    found = _masked(inner, states, depth + 1)
    return text if found == inner else msgspec.json.encode(found).decode()


def _secret(name: str, value: Any, states: bool) -> bool:
    return isinstance(value, str) and (_named_secret(name) or (name == _STATE and not states))


def _named_secret(name: str) -> bool:
    return name.replace("_", "").replace("-", "").lower() in _MEMBERS


def _hide(found: re.Match[str]) -> str:
    return f"{found[1]} {MASK}"
