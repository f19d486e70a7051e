"""What a flow asks of whoever drives it: an HTTP call, a visit by the user, the time, a pause.

A flow is a generator: it yields one of these and is sent the answer. It opens no connection, reads no clock, starts no
browser; so every flow can be tested with values alone.
"""

from base64 import b64encode
from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from dovetail.errors import LoginFailed, clip
from dovetail.wire.codec import encode
from dovetail.wire.incoming import plain
from dovetail.wire.shape import Struct, field

T = TypeVar("T")

FORM = "application/x-www-form-urlencoded"
JSON = "application/json"

_LATER = frozenset({408, 421, 423, 425, 429})  # of those that blame the request, the ones about this moment alone


class HttpCall(Struct, frozen=True, kw_only=True):
    """Make this request; the answer is an HttpAnswer. Redirects are not followed."""

    method: str = "GET"
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class HttpAnswer(Struct, frozen=True):
    """What came back; header names are lower case. Status 0: nothing did, and why."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    why: str = ""
    hint: str | None = None  # what to try then

    @property
    def absent(self) -> bool:
        """Whether it says that what was asked for is not there, or not to be had: later it would say the same."""
        return 400 <= self.status < 500 and self.status not in _LATER

    def json(self) -> dict[str, Any] | None:
        """The object in the body, if it is one."""
        try:
            found = plain(self.body)
        except Exception:
            return None
        return found if isinstance(found, dict) else None


class Visit(Struct, frozen=True):
    """Send the user to this URL; the answer is the query of the redirect that comes back with this state, as a dict."""

    url: str
    state: str


class ShowCode(Struct, frozen=True):
    """Show the user where to go and what to enter there; the answer is None."""

    url: str
    code: str
    complete: str | None = None


class RedirectUri(Struct, frozen=True):
    """Which redirect URI will reach us? The answer is a string, one of those known if that can be; we listen from then
    on."""

    known: Sequence[str] = ()


class Now(Struct, frozen=True):
    """What time is it? The answer is seconds since the epoch."""


class Pause(Struct, frozen=True):
    """Wait for some seconds."""

    seconds: float


class Alone(Struct, frozen=True):
    """Go on only when no other flow of the same owner is past this point; until this one ends, none will be."""


class Stranger(Struct, frozen=True):
    """Fetch a document whose address somebody unknown named; the answer is an HttpAnswer. Never from this network."""

    url: str


class SignIn(Struct, frozen=True):
    """Is this a user, and is this their password? The answer is their subject, or None."""

    name: str
    password: str


class StillUser(Struct, frozen=True):
    """Is there still a user of this subject? The answer is True, or False."""

    subject: str


Wish = HttpCall | Visit | ShowCode | RedirectUri | Now | Pause | Alone | Stranger | SignIn | StillUser
Flow = Generator[Wish, Any, T]


def get(url: str, headers: Mapping[str, str] | None = None) -> Flow[HttpAnswer]:
    """Fetch a document."""
    return (yield HttpCall(url=url, headers={"accept": JSON, **(headers or {})}))


def post_form(url: str, fields: Mapping[str, str], headers: Mapping[str, str] | None = None) -> Flow[HttpAnswer]:
    """Send a form."""
    return (
        yield HttpCall(
            method="POST",
            url=url,
            headers={"content-type": FORM, "accept": JSON, **(headers or {})},
            body=urlencode(fields).encode(),
        )
    )


def basic(name: str, secret: str) -> str:
    """What an Authorization header says of a name and a secret. RFC 6749, section 2.3.1"""
    pair = f"{quote(name, safe='')}:{quote(secret, safe='')}"
    return "Basic " + b64encode(pair.encode()).decode("ascii")


def post_json(url: str, document: Any) -> Flow[HttpAnswer]:
    """Send a document."""
    headers = {"content-type": JSON, "accept": JSON}
    return (yield HttpCall(method="POST", url=url, headers=headers, body=encode(document)))


def failure(step: str, answer: HttpAnswer) -> LoginFailed:
    """What an authorization server's refusal says; its code and words, never the whole body."""
    said = answer.json() or {}
    code, words = said.get("error"), said.get("error_description")
    if answer.status == 0:
        why = f": {answer.why}" if answer.why else ""
        return LoginFailed(f"{step}: the authorization server cannot be reached{why}").at(hint=answer.hint)
    text = f"{step}: the authorization server answered with status {answer.status}"
    if isinstance(code, str):
        text += f", {clip(code, 64)}"
    if isinstance(words, str):
        text += f": {clip(words, 200)}"
    error = LoginFailed(text).at(status=answer.status)
    error.reason = code if isinstance(code, str) else None
    return error
