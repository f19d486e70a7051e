"""The least Python that can answer: decode the message, its parameters and the arguments with msgspec, and encode the
result.

It checks no headers, keeps no sessions, and does not cancel, time or limit anything. This is a lower bound for small
messages, not a competitor.
"""

from typing import Any

import msgspec
from workload import URI, ServerOptions


class Envelope(msgspec.Struct):
    """A JSON-RPC message."""

    method: str
    id: int | str | None = None
    params: msgspec.Raw = msgspec.Raw(b"{}")


class CallParams(msgspec.Struct):
    """The parameters of tools/call."""

    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class EchoArguments(msgspec.Struct):
    """The arguments of echo."""

    text: str


class AddArguments(msgspec.Struct):
    """The arguments of add."""

    a: int
    b: int


class ReadParams(msgspec.Struct):
    """The parameters of resources/read."""

    uri: str


class Text(msgspec.Struct):
    """A content block."""

    text: str
    type: str = "text"


class CallResult(msgspec.Struct, omit_defaults=True):
    """The result of tools/call."""

    content: list[Text]
    structuredContent: Any = None  # noqa: N815


class Contents(msgspec.Struct):
    """The contents of a resource."""

    uri: str
    text: str
    mimeType: str = "text/plain"  # noqa: N815


class ReadResult(msgspec.Struct):
    """The result of resources/read."""

    contents: list[Contents]


_envelope = msgspec.json.Decoder(Envelope)
_call = msgspec.json.Decoder(CallParams)
_echo = msgspec.json.Decoder(EchoArguments)
_add = msgspec.json.Decoder(AddArguments)
_read = msgspec.json.Decoder(ReadParams)
_encode = msgspec.json.Encoder().encode

_SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
_INITIALIZE_RESULT = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}, "resources": {}},
    "serverInfo": {"name": "floor", "version": "1"},
}
_DISCOVER_RESULT = {
    "resultType": "complete",
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {}, "resources": {}},
    "ttlMs": 0,
    "cacheScope": "private",
    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "floor", "version": "1"}},
}


async def _echo_tool(text: str) -> str:
    return text


async def _add_tool(a: int, b: int) -> int:
    return a + b


class Floor:
    """Answers requests one at a time."""

    def __init__(self, options: ServerOptions) -> None:
        names = ["echo", "add", *(f"extra_{number}" for number in range(options.tools))]
        self._list = _encode({"tools": [{"name": name, "inputSchema": _SCHEMA} for name in names]})
        self._contents = options.contents

    async def answer(self, data: bytes) -> bytes | None:
        """Return the response to a message, or None for a notification."""
        message = _envelope.decode(data)
        if message.id is None:
            return None
        match message.method:
            case "tools/call":
                body = _encode(await self._call_tool(_call.decode(message.params)))
            case "tools/list":
                body = self._list
            case "resources/read":
                uri = _read.decode(message.params).uri
                assert uri == URI
                body = _encode(ReadResult([Contents(uri, self._contents)]))
            case "server/discover":
                body = _encode(_DISCOVER_RESULT)
            case _:
                body = _encode(_INITIALIZE_RESULT)
        return b'{"jsonrpc":"2.0","id":%s,"result":%s}' % (_encode(message.id), body)

    async def _call_tool(self, call: CallParams) -> CallResult:
        if call.name == "add":
            numbers = _add.decode(call.arguments)
            total = await _add_tool(numbers.a, numbers.b)
            return CallResult([Text(str(total))], {"result": total})
        return CallResult([Text(await _echo_tool(_echo.decode(call.arguments).text))])


class StampedFloor(Floor):
    """A floor for clients, which require the result fields of the newest protocol version."""

    async def answer(self, data: bytes) -> bytes | None:
        """Return the response with the required fields."""
        answer = await super().answer(data)
        return answer and answer.replace(
            b'"result":{', b'"result":{"resultType":"complete","ttlMs":0,"cacheScope":"private",', 1
        )


def create_floor(options: ServerOptions) -> Floor:
    """Create the floor that the options ask for."""
    return StampedFloor(options) if options.stamped else Floor(options)
