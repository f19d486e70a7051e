"""The requests of the load generator, and the checks of their responses: the id and all of the content."""

from collections.abc import Callable
from typing import Any

import msgspec
from servers.workload import URI, text

HANDSHAKE = "2025-11-25"
STATELESS = "2026-07-28"

_CLIENT = {"name": "bench", "version": "1"}
_META = msgspec.json.encode(
    {
        "io.modelcontextprotocol/protocolVersion": STATELESS,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": _CLIENT,
    }
)
_INITIALIZE_PARAMS = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": _CLIENT}
INITIALIZED = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'


class WrongAnswer(Exception):
    """A response is wrong or missing."""


class Text(msgspec.Struct):
    """A content block, or the contents of a resource."""

    text: str = ""


class ListedTool(msgspec.Struct):
    """A listed tool."""

    name: str


class Outcome(msgspec.Struct, rename="camel"):
    """The fields of all results that the load generator requests."""

    content: list[Text] = []
    contents: list[Text] = []
    tools: list[ListedTool] = []
    structured_content: Any = None
    is_error: bool = False
    protocol_version: str = ""


class Answer(msgspec.Struct):
    """A response. With a method, it is a notification or a request of the server."""

    jsonrpc: str
    id: int | None = None
    result: Outcome | None = None
    method: str | None = None


_decode_answer = msgspec.json.Decoder(Answer).decode


class RequestKind:
    """One kind of request. `params` returns the parameters for an id, `is_correct` checks the result."""

    def __init__(
        self, method: str, name: str, params: Callable[[int], bytes], is_correct: Callable[[int, Outcome], bool]
    ) -> None:
        self.method = method
        self.name = name
        self._params = params
        self._is_correct = is_correct

    def write(self, id: int, era: str) -> bytes:
        """Return the encoded request."""
        meta = b',"_meta":' + _META if era == STATELESS else b""
        params = self._params(id) + meta
        return b'{"jsonrpc":"2.0","id":%d,"method":"%s","params":{%s}}' % (
            id,
            self.method.encode(),
            params.removeprefix(b","),
        )

    def check(self, id: int, outcome: Outcome | None) -> None:
        """Raise `WrongAnswer` if the result is not the expected one."""
        if outcome is None or outcome.is_error or not self._is_correct(id, outcome):
            raise WrongAnswer(f"{self.method} {self.name}, id {id}: {str(outcome)[:300]}")


def parse_message(data: bytes) -> Answer:
    """Parse a message of the server."""
    try:
        answer = _decode_answer(data)
    except msgspec.MsgspecError as exc:
        raise WrongAnswer(f"{exc}: {data[:300]!r}") from None
    if answer.jsonrpc != "2.0":
        raise WrongAnswer(f"not JSON-RPC 2.0: {data[:300]!r}")
    return answer


def echo(tool: str = "echo") -> RequestKind:
    """Echo a short text, a different one in each call."""
    return RequestKind(
        "tools/call",
        tool,
        lambda id: b'"name":"%s","arguments":{"text":"call number %d"}' % (tool.encode(), id),
        lambda id, outcome: len(outcome.content) == 1 and outcome.content[0].text == f"call number {id}",
    )


def echo_large(megabytes: float) -> RequestKind:
    """Echo a large text."""
    expected = text(megabytes)
    params = b'"name":"echo","arguments":{"text":%s}' % msgspec.json.encode(expected)
    return RequestKind(
        "tools/call",
        "echo",
        lambda _: params,
        lambda _, outcome: [block.text for block in outcome.content] == [expected],
    )


def add() -> RequestKind:
    """Add two numbers. The result has structured content."""

    def is_correct(id: int, outcome: Outcome) -> bool:
        total = id + 7
        return outcome.structured_content in (total, {"result": total}) and outcome.content[0].text == str(total)

    return RequestKind(
        "tools/call",
        "add",
        lambda id: b'"name":"add","arguments":{"a":%d,"b":7}' % id,
        is_correct,
    )


def list_tools(extra: int) -> RequestKind:
    """List the common tools and the extra ones."""
    expected = {"echo", "add", *(f"extra_{number}" for number in range(extra))}
    return RequestKind(
        "tools/list", "", lambda _: b"", lambda _, outcome: expected <= {tool.name for tool in outcome.tools}
    )


def read_resource(megabytes: float) -> RequestKind:
    """Read a large text."""
    expected = text(megabytes)
    params = b'"uri":"%s"' % URI.encode()
    return RequestKind(
        "resources/read",
        URI,
        lambda _: params,
        lambda _, outcome: [contents.text for contents in outcome.contents] == [expected],
    )


def initialize() -> RequestKind:
    """Initialize a handshake session."""
    params = msgspec.json.encode(_INITIALIZE_PARAMS)[1:-1]
    return RequestKind("initialize", "", lambda _: params, lambda _, outcome: outcome.protocol_version == HANDSHAKE)


def listen() -> RequestKind:
    """Subscribe to changes of the tool list. No result arrives."""
    return RequestKind(
        "subscriptions/listen", "", lambda _: b'"notifications":{"toolsListChanged":true}', lambda _, outcome: False
    )
