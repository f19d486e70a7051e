"""Handle an HTTP request to a route: create the request object for the function, and send the response."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol, cast
from urllib.parse import parse_qsl

import msgspec

from dovetail.errors import InsufficientScope, ProtocolError, ResourceNotFound
from dovetail.protocol.exchange import Caller, IncomingExchange
from dovetail.protocol.http_checks import Refusal, get_http_status
from dovetail.protocol.interfaces.http_types import Headers as HeaderMapping
from dovetail.protocol.interfaces.routes import ROUTE_METHOD, RouteRequest, RouteResponse
from dovetail.protocol.principal import Principal
from dovetail.transports.http1.server_request import Headers
from dovetail.transports.http_server.http_request import EndpointRequest
from dovetail.wire.revisions import NEWEST_REVISION

_TEXT_TYPE: Final = b"text/plain; charset=utf-8"
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_MAX_QUERY_FIELDS: Final = 1000
_NO_BODY_STATUSES: Final = (204, 304)


class MatchedRoute(Protocol):
    """A route that matches the path of a request."""

    @property
    def path_params(self) -> dict[str, str]: ...
    @property
    def handle(self) -> Callable[[IncomingExchange], Awaitable[Any]]:
        """The function that runs the exchange of a request."""
        ...

    @property
    def allowed_methods(self) -> tuple[str, ...]: ...
    @property
    def is_anonymous(self) -> bool:
        """Whether callers need no credentials."""
        ...

    def check_access(self, principal: Principal | None) -> None:
        """Raise InsufficientScope or ResourceNotFound unless this caller may use the route."""
        ...


FindRoute = Callable[[str, str], MatchedRoute | None]  # The arguments are a path and an HTTP method.


class RouteCall:
    """Runs one request to a route. The caller is already authenticated."""

    def __init__(self, match: MatchedRoute, path: str, request: EndpointRequest) -> None:
        self._match = match
        self._path = path
        self._request = request
        self._query_string: str = request.scope.get("query_string", b"").decode("latin-1")
        self._body = b""
        self._is_body_received = False  # True after a Starlette request has read the body
        self._is_answered = False

    def check(self) -> None:
        """Raise Refusal unless the caller may use the route with this method."""
        request, match = self._request, self._match
        try:
            match.check_access(request.principal)
        except InsufficientScope as exc:
            raise Refusal(403, str(exc), request.build_error_headers(exc)) from None
        except ResourceNotFound:
            raise Refusal(404, "Not found") from None
        if request.method not in match.allowed_methods:
            allow = ", ".join(match.allowed_methods).encode()
            raise Refusal(405, f"Method {request.method} is not allowed", [(b"allow", allow)])
        if self._query_string.count("&") >= _MAX_QUERY_FIELDS:
            raise Refusal(400, f"The query has more than {_MAX_QUERY_FIELDS} parameters")

    async def run(self, body: bytes) -> None:
        """Run the function of the route and send its response. Raise Refusal if the function fails."""
        request = self._request
        self._body = body
        exchange = IncomingExchange(
            0,
            ROUTE_METHOD,
            {"name": self._path, "match": self._match, "call": self},
            {},
            Caller(NEWEST_REVISION, is_stateless=True, principal=request.principal),
            request.headers,
            client_address=request.http.client_host,
            size=len(body),
            origin=request.principal or request.client_address,
        )
        try:
            await self._match.handle(exchange)
        except ProtocolError as exc:
            if self._is_answered:  # The server closes the connection, which signals the error to the client.
                raise
            status = get_http_status(exc)
            raise Refusal(500 if status == 200 else status, str(exc), request.build_error_headers(exc)) from None
        finally:
            exchange.params.clear()  # This breaks the reference cycle between the exchange and this object.

    def create_request(self, request_type: type[Any]) -> Any:
        """Return a `RouteRequest` or a Starlette request for the route function."""
        request = self._request
        if request_type is not RouteRequest:
            return request_type(request.scope | {"path_params": self._match.path_params}, self._receive)
        return RouteRequest(
            method=request.method,
            path=self._path,
            headers=HeaderMapping(request.headers),
            query=_parse_query(self._query_string),
            query_string=self._query_string,
            path_params=self._match.path_params,
            body=self._body,
            principal=request.principal,
            client_address=request.http.client_host,
        )

    async def _receive(self) -> dict[str, Any]:
        """Return the complete body in the first call. In later calls, wait until the client disconnects."""
        if not self._is_body_received:
            self._is_body_received = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        return await self._request.receive()

    async def respond(self, value: object) -> None:
        """Send the value that the route function returned. If it is an ASGI response, call it."""
        request = self._request
        if callable(value):
            self._is_answered = True
            await cast("Callable[..., Awaitable[None]]", value)(request.scope, self._receive, request.send)
            return
        response = value if isinstance(value, RouteResponse) else RouteResponse(value)
        status, headers, body = _encode_response(response)
        self._is_answered = True
        if status not in _NO_BODY_STATUSES:
            headers.append((b"content-length", b"%d" % len(body)))
        await request.send({"type": "http.response.start", "status": status, "headers": headers + request.cors_headers})
        has_body = request.method != "HEAD" and status not in _NO_BODY_STATUSES
        await request.send({"type": "http.response.body", "body": body if has_body else b""})


def _parse_query(query_string: str) -> dict[str, str]:
    return dict(parse_qsl(query_string, keep_blank_values=True))


def _encode_response(response: RouteResponse) -> tuple[int, Headers, bytes]:
    """Return the status code, the headers and the body of a response."""
    match response.body:
        case None:
            content_type, body = None, b""
        case str() as text:
            content_type, body = _TEXT_TYPE, text.encode()
        case bytes() as body:
            content_type = b"application/octet-stream"
        case value:
            content_type, body = b"application/json", msgspec.json.encode(value, enc_hook=_to_json)
    headers = _encode_headers(response.headers)
    names = {name for name, _ in headers}
    if content_type is not None and b"content-type" not in names:
        headers.append((b"content-type", content_type))
    if b"x-content-type-options" not in names:  # A browser must not interpret a text response as HTML.
        headers.append((b"x-content-type-options", b"nosniff"))
    status = response.status_code
    return (204 if status == 200 and response.body is None else status), headers, body


def _encode_headers(headers: Mapping[str, str]) -> Headers:
    """Encode headers. Raise ValueError for invalid characters, which could inject other headers."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise ValueError(f"invalid header {name!r} in the response of a route: {value!r}")
    return [
        (name.lower().encode(), value.encode("latin-1"))
        for name, value in headers.items()
        if name.lower() not in ("content-length", "transfer-encoding", "connection")
    ]


def _to_json(value: Any) -> Any:
    if callable(dump := getattr(value, "model_dump", None)):  # a pydantic model
        return dump(mode="json")
    if isinstance(value, str):  # for example a Principal
        return str(value)
    raise TypeError(f"a route cannot return a {type(value).__name__}. Return text, bytes, JSON or a RouteResponse")
