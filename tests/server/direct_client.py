"""Call a server's `handle` directly, as a transport does, for a caller of any protocol version."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from dovetail import Server
from dovetail.protocol import handshake
from dovetail.protocol.exchange import Caller, IncomingExchange
from dovetail.protocol.stateless import StatelessProtocol
from dovetail.server.server import get_dispatcher
from dovetail.wire.codec import convert
from dovetail.wire.lifecycle import ClientCapabilities

NEWEST, LATEST_HANDSHAKE = "2026-07-28", "2025-11-25"
ALL_CAPABILITIES = {"roots": {}, "sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}}
TIMEOUT_S = 10.0

Answers = Mapping[str, Callable[[dict[str, Any]], Any]]


class Client:
    """A caller of a server, and the messages it received."""

    def __init__(
        self,
        app: Server,
        revision: str = NEWEST,
        *,
        capabilities: dict[str, Any] | None = None,
        answers: Answers | None = None,
        level: int | None = None,
        principal: str | None = None,
        origin: str | None = None,
        headers: Mapping[bytes, bytes] | None = None,
    ) -> None:
        declared = convert(ALL_CAPABILITIES if capabilities is None else capabilities, ClientCapabilities)
        self.app = app
        self.caller = Caller(revision, revision == NEWEST, declared, level, principal)
        self.said: list[dict[str, Any]] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answers = answers or {}
        self.origin = origin
        self.headers = headers
        service = get_dispatcher(app)
        self._modern = StatelessProtocol(service, service.protocol_versions, service.limits.max_result_bytes)

    def exchange(self, method: str, params: dict[str, Any] | None = None, *, id: int | str = 1) -> IncomingExchange:
        given = params or {}
        made = IncomingExchange(id, method, given, given.get("_meta") or {}, self.caller)
        made.headers, made.origin = self.headers, self.origin
        made.emit = self._emit
        made.ask = None if self.caller.is_stateless else self._ask
        return made

    async def _emit(self, data: bytes) -> None:
        self.said.append(json.loads(data))

    async def _ask(self, method: str, params: dict[str, Any]) -> Any:
        self.asked.append((method, params))
        return self.answers[method](params)

    async def run(self, exchange: IncomingExchange) -> dict[str, Any]:
        """Return the encoded result, or raise ProtocolError."""
        async with asyncio.timeout(TIMEOUT_S):
            value = await get_dispatcher(self.app).handle(exchange)
        if self.caller.is_stateless:
            return json.loads(self._modern.seal(exchange, value))["result"]
        return json.loads(handshake.seal(exchange, value, get_dispatcher(self.app).limits.max_result_bytes))["result"]

    async def request(self, method: str, params: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
        given = dict(params or {}) | ({"_meta": meta} if meta else {})
        return await self.run(self.exchange(method, given))

    async def call(self, name: str, arguments: dict[str, Any] | None = None, **params: Any) -> dict[str, Any]:
        """Make one round of a tool call."""
        return await self.request("tools/call", {"name": name, "arguments": arguments or {}} | params)

    async def call_with_input_rounds(self, name: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call a tool, and answer its input requests until the result is complete."""
        result = await self.call(name, arguments)
        while result.get("resultType") == "input_required":
            given = {}
            for key, one in (result.get("inputRequests") or {}).items():
                self.asked.append((one["method"], one.get("params") or {}))
                given[key] = self.answers[one["method"]](one.get("params") or {})
            result = await self.call(name, arguments, inputResponses=given, requestState=result["requestState"])
        return result


def text(result: dict[str, Any]) -> str:
    """Return the single text of a tool result."""
    (block,) = result["content"]
    return block["text"]


def error_text(result: dict[str, Any]) -> str:
    """Return the text of a failed result."""
    assert result["isError"] is True
    return text(result)
