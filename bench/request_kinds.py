"""What the load generator asks for and how an answer is judged: the id, and all of the content, of every one."""

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
_OPENING = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": _CLIENT}
INITIALIZED = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'


class WrongAnswer(Exception):
    """An answer that is not the right one."""


class Text(msgspec.Struct):
    """A content block, or the contents of a resource."""

    text: str = ""


class ListedTool(msgspec.Struct):
    """A listed tool."""

    name: str


class Outcome(msgspec.Struct, rename="camel"):
    """Any result that is asked for here."""

    content: list[Text] = []
    contents: list[Text] = []
    tools: list[ListedTool] = []
    structured_content: Any = None
    is_error: bool = False
    protocol_version: str = ""


class Answer(msgspec.Struct):
    """A response; or, with a method, something else the server says."""

    jsonrpc: str
    id: int | None = None
    result: Outcome | None = None
    method: str | None = None


_decode = msgspec.json.Decoder(Answer).decode


class RequestKind:
    """One kind of request: `write` gives the message of an id, `right` says whether its result is the right one."""

    def __init__(
        self, method: str, name: str, params: Callable[[int], bytes], right: Callable[[int, Outcome], bool]
    ) -> None:
        self.method = method
        self.name = name
        self._params = params
        self._is_correct = right

    def write(self, id: int, era: str) -> bytes:
        """The message."""
        meta = b',"_meta":' + _META if era == STATELESS else b""
        params = self._params(id) + meta
        return b'{"jsonrpc":"2.0","id":%d,"method":"%s","params":{%s}}' % (
            id,
            self.method.encode(),
            params.removeprefix(b","),
        )

    def judge(self, id: int, outcome: Outcome | None) -> None:
        """Wrong, if the result is not what was asked for."""
        if outcome is None or outcome.is_error or not self._is_correct(id, outcome):
            raise WrongAnswer(f"{self.method} {self.name}, id {id}: {str(outcome)[:300]}")


def read(data: bytes) -> Answer:
    """A message of the server."""
    try:
        answer = _decode(data)
    except msgspec.MsgspecError as exc:
        raise WrongAnswer(f"{exc}: {data[:300]!r}") from None
    if answer.jsonrpc != "2.0":
        raise WrongAnswer(f"not JSON-RPC 2.0: {data[:300]!r}")
    return answer


def echo(tool: str = "echo") -> RequestKind:
    """A short text, another in every call."""
    return RequestKind(
        "tools/call",
        tool,
        lambda id: b'"name":"%s","arguments":{"text":"call number %d"}' % (tool.encode(), id),
        lambda id, got: len(got.content) == 1 and got.content[0].text == f"call number {id}",
    )


def echo_large(megabytes: float) -> RequestKind:
    """A long text."""
    long = text(megabytes)
    params = b'"name":"echo","arguments":{"text":%s}' % msgspec.json.encode(long)
    return RequestKind(
        "tools/call", "echo", lambda _: params, lambda _, got: [one.text for one in got.content] == [long]
    )


def add() -> RequestKind:
    """Two numbers, and their sum as structured content."""
    return RequestKind(
        "tools/call",
        "add",
        lambda id: b'"name":"add","arguments":{"a":%d,"b":7}' % id,
        lambda id, got: got.structured_content in (id + 7, {"result": id + 7}) and got.content[0].text == str(id + 7),
    )


def list_tools(extra: int) -> RequestKind:
    """All tools, those that every server has and the extra ones."""
    wanted = {"echo", "add", *(f"extra_{number}" for number in range(extra))}
    return RequestKind("tools/list", "", lambda _: b"", lambda _, got: wanted <= {one.name for one in got.tools})


def read_resource(megabytes: float) -> RequestKind:
    """A long text."""
    long = text(megabytes)
    params = b'"uri":"%s"' % URI.encode()
    return RequestKind(
        "resources/read", URI, lambda _: params, lambda _, got: [one.text for one in got.contents] == [long]
    )


def initialize() -> RequestKind:
    """The opening of a handshake session."""
    params = msgspec.json.encode(_OPENING)[1:-1]
    return RequestKind("initialize", "", lambda _: params, lambda _, got: got.protocol_version == HANDSHAKE)
