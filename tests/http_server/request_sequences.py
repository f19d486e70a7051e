"""Hypothesis strategies for the requests of several callers on one connection, and the expected parts of the responses.

The requests go to the MCP endpoint, to a route and to the application behind the endpoint. Some of them repeat headers,
and the server refuses some of them without closing the connection. Sequences often repeat a request, because the server
recognizes heads that it has read before.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

from http_server.mcp_calls import encode_call
from http_server.raw_connection import Response

CALLERS: Final = [None, "ada", "bob"]
TARGETS: Final = ["endpoint", "route", "fallback", "missing"]
_REPEATED: Final = {
    "none": b"",
    "tag": b"x-tag: first\r\nx-tag: second\r\n",
    "accept": b"accept: text/html\r\n",
    "address": b"x-forwarded-for: 192.0.2.1\r\nx-forwarded-for: 192.0.2.2\r\n",
    "encoding": b"content-encoding: gzip\r\ncontent-encoding: gzip\r\n",
    "origin": b"origin: https://one.example\r\norigin: https://two.example\r\n",
    "authorization": b"authorization: Bearer eve\r\nauthorization: Bearer mallory\r\n",
}


@dataclass(frozen=True)
class CallerRequest:
    """One request of one caller."""

    caller: str | None
    target: str
    repeated: str
    size: int = 1  # of the text in the request
    is_chunked: bool = False

    @property
    def text(self) -> str:
        """The text that the server returns."""
        return "x" * self.size

    @property
    def is_plain(self) -> bool:
        """Return whether every proxy forwards this request unchanged."""
        return self.repeated == "none" and self.target != "missing"

    @property
    def head(self) -> bytes:
        """The headers that depend on the caller."""
        token = b"" if self.caller is None else b"authorization: Bearer %b\r\n" % self.caller.encode()
        return token + b"x-caller: %b\r\n" % str(self.caller).encode() + _REPEATED[self.repeated]

    def encode(self) -> bytes:
        """Return the bytes of the request."""
        if self.target == "endpoint":
            chunk = max(1, len(self.text)) if self.is_chunked else 0
            return encode_call("inspect", {"text": self.text}, headers=self.head, chunk=chunk)
        path = {"route": b"/route?a=b", "fallback": b"/any", "missing": b"/mcp/missing"}[self.target]
        body = self.text.encode()
        length = b"content-length: %d\r\n\r\n%b" % (len(body), body)
        if self.is_chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            length = b"transfer-encoding: chunked\r\n\r\n%b0\r\n\r\n" % chunk
        return b"POST %b HTTP/1.1\r\nhost: localhost\r\n%b%b" % (path, self.head, length)

    def check_response(self, response: Response) -> None:
        """Check that the server has answered this request, and not a mixture with another one."""
        assert response.status == 200, response
        answer = read_answer(response)
        headers = {name.lower(): value for name, value in dict(answer["headers"]).items()}
        assert headers.get("x-caller") == str(self.caller)
        assert headers.get("authorization") == (None if self.caller is None else f"Bearer {self.caller}")
        assert answer.get("caller", self.caller) == self.caller
        assert answer.get("text", answer.get("body")) == self.text


def read_answer(response: Response) -> dict[str, Any]:
    """Return what the server has seen of a request."""
    answer = json.loads(response.body)
    return json.loads(answer["result"]["content"][0]["text"]) if "result" in answer else answer


def summarize(response: Response) -> tuple[int, Any, dict[str, str]]:
    """Return everything in a response that depends on its request only."""
    headers = {name: value for name, value in response.headers.items() if name not in ("date", "connection")}
    if response.status != 200:
        return response.status, response.body, headers
    headers.pop("content-length")  # The port of the client is part of the body.
    return 200, read_answer(response) | {"client": None}, headers


_sizes: Final = st.one_of(st.sampled_from([0, 1, 2, 70_000]), st.integers(1, 9000))
caller_requests: Final = st.builds(
    CallerRequest,
    st.sampled_from(CALLERS),
    st.sampled_from(TARGETS),
    st.sampled_from(["none"] * 4 + list(_REPEATED)),
    _sizes,
    st.sampled_from([False, False, False, True]),
)


@st.composite
def sequences(draw: st.DrawFn) -> list[CallerRequest]:
    """Generate the requests of one connection. Requests occur several times."""
    choices = draw(st.lists(caller_requests, min_size=1, max_size=3))
    return draw(st.lists(st.sampled_from(choices), min_size=2, max_size=8))


@st.composite
def cut_sequences(draw: st.DrawFn) -> tuple[list[CallerRequest], tuple[bytes, ...]]:
    """Generate the requests of one connection, and their bytes cut at random places."""
    sequence = draw(sequences())
    data = b"".join(request.encode() for request in sequence)
    cuts = sorted(draw(st.sets(st.integers(0, len(data)), max_size=6)))
    return sequence, tuple(data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True))
