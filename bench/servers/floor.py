"""The least Python that could answer: an envelope, its parameters, the arguments and a typed result, by msgspec.

No header is checked, no session kept, nothing cancelled, timed or limited: a bound for small messages, no competitor.
"""

from typing import Any

import msgspec
from workload import URI, ServerOptions


class Envelope(msgspec.Struct):
    """A message."""

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
    """What a resource holds."""

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
_OPENED = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}, "resources": {}},
    "serverInfo": {"name": "floor", "version": "1"},
}
_DISCOVERED = {
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
    """Answers one message after another."""

    def __init__(self, order: ServerOptions) -> None:
        names = ["echo", "add", *(f"extra_{number}" for number in range(order.tools))]
        self._list = _encode({"tools": [{"name": name, "inputSchema": _SCHEMA} for name in names]})
        self._contents = order.contents

    async def answer(self, data: bytes) -> bytes | None:
        """The response to a message; None for a notification."""
        message = _envelope.decode(data)
        if message.id is None:
            return None
        match message.method:
            case "tools/call":
                body = _encode(await self._called(_call.decode(message.params)))
            case "tools/list":
                body = self._list
            case "resources/read":
                uri = _read.decode(message.params).uri
                assert uri == URI
                body = _encode(ReadResult([Contents(uri, self._contents)]))
            case "server/discover":
                body = _encode(_DISCOVERED)
            case _:
                body = _encode(_OPENED)
        return b'{"jsonrpc":"2.0","id":%s,"result":%s}' % (_encode(message.id), body)

    async def _called(self, call: CallParams) -> CallResult:
        if call.name == "add":
            numbers = _add.decode(call.arguments)
            total = await _add_tool(numbers.a, numbers.b)
            return CallResult([Text(str(total))], {"result": total})
        return CallResult([Text(await _echo_tool(_echo.decode(call.arguments).text))])


class StampedFloor(Floor):
    """The same for clients, who insist on what the newest revision stamps on its results."""

    async def answer(self, data: bytes) -> bytes | None:
        """The response, stamped."""
        answer = await super().answer(data)
        return answer and answer.replace(
            b'"result":{', b'"result":{"resultType":"complete","ttlMs":0,"cacheScope":"private",', 1
        )


def create_floor(order: ServerOptions) -> Floor:
    """The floor that was ordered."""
    return StampedFloor(order) if order.stamped else Floor(order)
