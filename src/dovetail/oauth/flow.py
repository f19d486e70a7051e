"""Flows, and the actions that they request: for example an HTTP request, a browser visit by the user, or a pause.

A flow is a generator. It yields an action, and the code that runs the flow sends it the result of the action. A flow
does no I/O and reads no clock, so tests can run it with plain values.
"""

from base64 import b64encode
from collections.abc import Awaitable, Generator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from dovetail.error_context import add_context, clip
from dovetail.errors import LoginFailed
from dovetail.protocol.interfaces.http_types import HTTPRequest, HTTPResponse
from dovetail.wire.base import Struct
from dovetail.wire.codec import encode
from dovetail.wire.raw_message import to_plain

T = TypeVar("T")

FORM_CONTENT_TYPE = "application/x-www-form-urlencoded"
JSON_MEDIA_TYPE = "application/json"

_RETRYABLE_STATUS_CODES = frozenset({408, 421, 423, 425, 429})  # After one of these status codes, a retry may succeed.


class FetchResponse(HTTPResponse, frozen=True):
    """Response to an HTTP request of an OAuth flow.

    If there was no response, `status_code` is 0 and `error` contains the reason.
    """

    error: str = ""
    hint: str | None = None

    @property
    def is_absent(self) -> bool:
        """Return True if the document does not exist, or False if the error may be temporary."""
        return 400 <= self.status_code < 500 and self.status_code not in _RETRYABLE_STATUS_CODES

    def json(self) -> dict[str, Any] | None:
        return parse_json_object(self.body)


def parse_json_object(body: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a body, or None if the body is not a JSON object."""
    try:
        value = to_plain(body)
    except Exception:
        return None
    return value if isinstance(value, dict) else None


class OpenBrowser(Struct, frozen=True):
    """Action: open a URL in the user's browser. The result is a dict with the parameters of the redirect."""

    url: str
    state: str


class ShowCode(Struct, frozen=True):
    """Action: show the user a URL, and a code to enter there. The result is None."""

    url: str
    code: str
    complete_url: str | None = None


class ReserveRedirectURI(Struct, frozen=True):
    """Action: listen on a redirect URI, preferably one of `registered_uris`. The result is the URI."""

    registered_uris: Sequence[str] = ()


class Now(Struct, frozen=True):
    """Action: get the current time. The result is the number of seconds since the epoch."""


class Pause(Struct, frozen=True):
    """Action: wait for this number of seconds."""

    seconds: float


class AcquireLock(Struct, frozen=True):
    """Action: acquire the lock of a client or a server. Only one flow can hold the lock at a time.

    The flow holds the lock until it ends.
    """


class FetchUntrusted(Struct, frozen=True):
    """Action: fetch a document from a URL that an untrusted caller sent. A URL in a private network is rejected.

    The result is a FetchResponse.
    """

    url: str


class VerifyPassword(Struct, frozen=True):
    """Action: check a user's password. The result is the user's subject, or None if the password is wrong."""

    name: str
    password: str


class CheckUserActive(Struct, frozen=True):
    """Action: check whether the user `subject` still exists. The result is True or False."""

    subject: str


class Await(Struct, frozen=True):
    """Action: await an awaitable, for example of a store. The result is the awaited value.

    An exception of the awaitable is raised in the flow.
    """

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


def wait_for(awaitable: Awaitable[T]) -> Flow[T]:
    """Await an object in a flow, and return the result. If the awaitable raises an exception, raise it in the flow."""
    return (yield Await(awaitable))


def fetch(url: str, headers: Mapping[str, str] | None = None) -> Flow[FetchResponse]:
    return (yield HTTPRequest("GET", url, {"accept": JSON_MEDIA_TYPE, **(headers or {})}))


def post_form(url: str, fields: Mapping[str, str], headers: Mapping[str, str] | None = None) -> Flow[FetchResponse]:
    return (
        yield HTTPRequest(
            method="POST",
            url=url,
            headers={"content-type": FORM_CONTENT_TYPE, "accept": JSON_MEDIA_TYPE, **(headers or {})},
            body=urlencode(fields).encode(),
        )
    )


def build_basic_auth(name: str, secret: str) -> str:
    """Build a Basic Authorization header. RFC 6749, section 2.3.1"""
    credentials = f"{quote(name, safe='')}:{quote(secret, safe='')}"
    return "Basic " + b64encode(credentials.encode()).decode("ascii")


def post_json(url: str, document: Any) -> Flow[FetchResponse]:
    headers = {"content-type": JSON_MEDIA_TYPE, "accept": JSON_MEDIA_TYPE}
    return (yield HTTPRequest(method="POST", url=url, headers=headers, body=encode(document)))


def login_error(step: str, response: FetchResponse) -> LoginFailed:
    """Return an exception for an error response of an authorization server.

    The message contains the error code and the description, but not the body.
    """
    data = response.json() or {}
    error_code, description = data.get("error"), data.get("error_description")
    if response.status_code == 0:
        reason = f": {response.error}" if response.error else ""
        return add_context(
            LoginFailed(f"{step}: the authorization server cannot be reached{reason}"), hint=response.hint
        )
    message = f"{step}: the authorization server responded with status {response.status_code}"
    if isinstance(error_code, str):
        message += f", {clip(error_code, 64)}"
    if isinstance(description, str):
        message += f": {clip(description, 200)}"
    error = add_context(LoginFailed(message), status_code=response.status_code)
    error.oauth_error = error_code if isinstance(error_code, str) else None
    return error
