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
            else:
                yield (_heading if start.startswith(_BEGINS) else _frame).decode(text)
        except msgspec.MsgspecError as exc:
            raise ValueError(f"line {number} is not part of a recording: {exc}") from None


def frame(at: float, to: To, data: bytes, headers: Headers = (), *, states: bool = False) -> Frame:
    """A frame of what was sent as these bytes, secrets masked. `states`: keep what servers seal into `requestState`."""
    shown = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    given = masked_headers(shown) if shown else None
    try:
        message = _anything.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        text = _BEARER.sub(_hide, data.decode("utf-8", "replace"))
        return Frame(at=at, to=to, text=text, headers=given)
    return Frame(at=at, to=to, message=masked(message, states=states), headers=given)


# What must not be in a recording.

_HEADERS: Final = frozenset(
    {"authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "mcp-session-id", "www-authenticate"}
)
_MEMBERS: Final = frozenset(
    {"authorization", "accesstoken", "refreshtoken", "idtoken", "token", "bearer", "apikey", "password", "secret",
     "clientsecret", "clientassertion", "codeverifier", "privatekey", "cookie"}
)  # fmt: skip
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic) +[\w.~+/=-]{8,}")
_STATE: Final = "requestState"


def masked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers without the values that would let a reader act as someone else."""
    return {name: MASK if name.lower() in _HEADERS else value for name, value in headers.items()}


def masked(value: Any, *, states: bool = False) -> Any:
    """A JSON value without secrets: members named as one, and credentials within texts."""
    if isinstance(value, str):
        return _BEARER.sub(_hide, value)
    if isinstance(value, list):
        return [masked(one, states=states) for one in value]
    if isinstance(value, dict):
        return {name: MASK if _secret(name, one, states) else masked(one, states=states) for name, one in value.items()}
    return value


def _secret(name: str, value: Any, states: bool) -> bool:
    if not isinstance(value, str):
        return False
    plain = name.replace("_", "").replace("-", "").lower()
    return plain in _MEMBERS or (name == _STATE and not states)


def _hide(found: re.Match[str]) -> str:
    return f"{found[1]} {MASK}"
