"""How h11 reads a byte stream, and how the readings of two parsers are compared.

Two servers must agree on the requests in a stream, or ours must reject it. If they disagreed, a client could hide a
request from one of them.
"""

import re
from typing import Final, Literal, NamedTuple
from urllib.parse import urlsplit

import h11

from http_server.raw_connection import Outcome, Request

_REQUEST_LINE: Final = re.compile(rb"\A([A-Z-]+) +([!-~]+) +(?:HTTP|RTSP|ICE)/(1\.[01])(?=\r\n)")
End = Literal["waits", "rejects", "closes"]


class Reading(NamedTuple):
    """The complete requests in a stream, and what happens after them."""

    requests: tuple[Request, ...]
    end: End


def read_outcome(outcome: Outcome) -> Reading:
    """Return how a running server has read a stream."""
    last = outcome.responses[-1].status if outcome.responses else 200
    end: End = "waits" if outcome.is_open else "rejects" if last >= 400 or not outcome.responses else "closes"
    return Reading(outcome.requests, end)


def read_with_h11(data: bytes) -> Reading:
    """Return how h11 reads a stream, after removing the three differences that our server may have.

    - Line ends before a request are ignored (RFC 9112, section 2.2), also if CR or LF is missing. They belong to no
      message.
    - Several spaces may separate the parts of the request line (RFC 9112, section 3).
    - httptools reads RTSP/1.x and ICE/1.x as HTTP/1.x, and does not report the name of the protocol.
    """
    requests: list[Request] = []
    while True:
        data = _REQUEST_LINE.sub(rb"\1 \2 HTTP/\3", data.lstrip(b"\r\n"), count=1)
        if not data:
            return Reading(tuple(requests), "waits")
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=100_000)
        connection.receive_data(data)
        try:
            request = _read_request(connection)
        except h11.RemoteProtocolError:
            return Reading(tuple(requests), "rejects")
        if request is None:
            return Reading(tuple(requests), "waits")
        requests.append(request)
        if connection.our_state is not h11.DONE:
            return Reading(tuple(requests), "closes")
        data, _ = connection.trailing_data


def _read_request(connection: h11.Connection) -> Request | None:
    """Read a request and answer it. Return None if the request is incomplete."""
    line, body = None, b""
    while (event := connection.next_event()) is not h11.NEED_DATA:
        if isinstance(event, h11.Request):
            line = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        else:
            assert isinstance(event, h11.EndOfMessage), event
            assert line is not None
            connection.send(h11.Response(status_code=404, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            return Request(line.method.decode(), _normalize_target(line.target.decode("latin-1")), body)
    return None


def _normalize_target(target: str) -> str:
    """Return the path and query of an absolute target, without an empty query."""
    if "://" in target and not target.startswith("/"):
        try:
            parts = urlsplit(target)
        except ValueError:
            return target  # The authority is invalid, such as `http://local[host/`. Our server must reject this.
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    path, _, query = target.partition("?")
    return f"{path}?{query}" if query else path


def find_difference(ours: Reading, other: Reading) -> str | None:
    """Return how our reading differs from another one. Return None if they agree, or if ours is stricter."""
    for number, (request, other_request) in enumerate(zip(ours.requests, other.requests, strict=False)):
        if request != other_request:
            return f"request {number}: {request} and {other_request}"
    if len(ours.requests) > len(other.requests):
        return f"request {ours.requests[len(other.requests)]}, but the other {other.end}"
    if len(ours.requests) < len(other.requests) and ours.end == "waits":
        return f"waits, but the other has read {other.requests[len(ours.requests)]}"
    return None
