"""What a flow can ask its runner for: an HTTP call, a visit by the user, the time, a pause.

A flow is a generator: it yields one of these and is sent the answer. It opens no connection, reads no clock, starts no
browser; so every flow can be tested with values alone.
"""

from base64 import b64encode
from collections.abc import Awaitable, Generator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from dovetail.error_context import add_context, clip
from dovetail.errors import LoginFailed
from dovetail.wire.base import Struct, field
from dovetail.wire.codec import encode
from dovetail.wire.raw_message import to_plain

T = TypeVar("T")

FORM_CONTENT_TYPE = "application/x-www-form-urlencoded"
JSON_MEDIA_TYPE = "application/json"

_RETRYABLE_STATUS_CODES = frozenset(
    {408, 421, 423, 425, 429}
)  # of those that blame the request, the ones about this moment alone


class HTTPRequest(Struct, frozen=True, kw_only=True):
    """Make this request; the answer is an HttpAnswer. Redirects are not followed."""

    method: str = "GET"
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class HTTPResponse(Struct, frozen=True):
    """What came back; header names are lower case. Status 0: nothing did, and why."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    error: str = ""
    hint: str | None = None  # what to try then

    @property
    def is_absent(self) -> bool:
        """Whether it says that what was asked for is not there, or not to be had: later it would say the same."""
        return 400 <= self.status < 500 and self.status not in _RETRYABLE_STATUS_CODES

    def json(self) -> dict[str, Any] | None:
        """The object in the body, if it is one."""
        try:
            value = to_plain(self.body)
        except Exception:
            return None
        return value if isinstance(value, dict) else None


class OpenBrowser(Struct, frozen=True):
    """Send the user to this URL; the answer is the query of the redirect that comes back with this state, as a dict."""

    url: str
    state: str


class ShowCode(Struct, frozen=True):
    """Show the user where to go and what to enter there; the answer is None."""

    url: str
    code: str
    complete_url: str | None = None


class ReserveRedirectURI(Struct, frozen=True):
    """Which redirect URI will reach us? The answer is a string, one of those known if that can be; we listen from then
    on."""

    registered_uris: Sequence[str] = ()


class Now(Struct, frozen=True):
    """What time is it? The answer is seconds since the epoch."""


class Pause(Struct, frozen=True):
    """Wait for some seconds."""

    seconds: float


class AcquireLock(Struct, frozen=True):
    """Go on only when no other flow of the same owner is past this point; until this one ends, none will be."""


class FetchUntrusted(Struct, frozen=True):
    """Fetch a document whose address somebody unknown named; the answer is an HttpAnswer. Never from this network."""

    url: str


class VerifyPassword(Struct, frozen=True):
    """Is this a user, and is this their password? The answer is their subject, or None."""

    name: str
    password: str


class CheckUserActive(Struct, frozen=True):
    """Is there still a user of this subject? The answer is True, or False."""

    subject: str


class Await(Struct, frozen=True):
    """Await what an author's function returned; the answer is its result."""

    awaitable: Awaitable[Any]


FlowAction = (
    HTTPRequest
    | OpenBrowser
    | ShowCode
    | ReserveRedirectURI
    | Now
    | Pause
    | AcquireLock
    | FetchUntrusted
    | VerifyPassword
    | CheckUserActive
    | Await
)
Flow = Generator[FlowAction, Any, T]


def fetch(url: str, headers: Mapping[str, str] | None = None) -> Flow[HTTPResponse]:
    """Fetch a document."""
    return (yield HTTPRequest(url=url, headers={"accept": JSON_MEDIA_TYPE, **(headers or {})}))


def post_form(url: str, fields: Mapping[str, str], headers: Mapping[str, str] | None = None) -> Flow[HTTPResponse]:
    """Send a form."""
    return (
        yield HTTPRequest(
            method="POST",
            url=url,
            headers={"content-type": FORM_CONTENT_TYPE, "accept": JSON_MEDIA_TYPE, **(headers or {})},
            body=urlencode(fields).encode(),
        )
    )


def build_basic_auth(name: str, secret: str) -> str:
    """What an Authorization header says of a name and a secret. RFC 6749, section 2.3.1"""
    credentials = f"{quote(name, safe='')}:{quote(secret, safe='')}"
    return "Basic " + b64encode(credentials.encode()).decode("ascii")


def post_json(url: str, document: Any) -> Flow[HTTPResponse]:
    """Send a document."""
    headers = {"content-type": JSON_MEDIA_TYPE, "accept": JSON_MEDIA_TYPE}
    return (yield HTTPRequest(method="POST", url=url, headers=headers, body=encode(document)))


def login_error(step: str, response: HTTPResponse) -> LoginFailed:
    """What an authorization server's refusal says; its code and words, never the whole body."""
    data = response.json() or {}
    error_code, description = data.get("error"), data.get("error_description")
    if response.status == 0:
        reason = f": {response.error}" if response.error else ""
        return add_context(
            LoginFailed(f"{step}: the authorization server cannot be reached{reason}"), hint=response.hint
        )
    message = f"{step}: the authorization server answered with status {response.status}"
    if isinstance(error_code, str):
        message += f", {clip(error_code, 64)}"
    if isinstance(description, str):
        message += f": {clip(description, 200)}"
    error = add_context(LoginFailed(message), status_code=response.status)
    error.oauth_error = error_code if isinstance(error_code, str) else None
    return error
