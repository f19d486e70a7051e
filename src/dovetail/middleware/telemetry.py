"""Telemetry: OpenTelemetry spans and durations by the MCP semantic conventions, on either side.

The context travels as W3C says, in `_meta`. Needs the package opentelemetry-api, which is loaded when a Telemetry is
made; without an SDK behind it everything here does nothing.
"""

import asyncio
import time
from typing import Any, Final

from dovetail.errors import MCPError
from dovetail.middleware.seeing import failed
from dovetail.protocol.around import Call
from dovetail.protocol.exchange import Ask, Exchange
from dovetail.version import VERSION

NAME: Final = "dovetail"
BOUNDS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_HELD: Final = {"tools/call": ("gen_ai.tool.name", "name"), "prompts/get": ("gen_ai.prompt.name", "name")}
_URIS: Final = frozenset({"resources/read", "resources/subscribe", "resources/unsubscribe"})


class Telemetry:
    """A span and a measured duration for each request, and for each question a server asks its client.

    Providers are the global ones unless given. `arguments=True` puts the arguments of tools into the spans: they may
    hold what should not be kept.
    """

    def __init__(self, *, tracer_provider: Any = None, meter_provider: Any = None, arguments: bool = False) -> None:
        try:
            from opentelemetry import metrics, propagate, trace
        except ImportError:
            raise ImportError("Telemetry needs opentelemetry-api: pip install opentelemetry-api") from None
        self._trace = trace
        self._propagate = propagate
        self._tracer = trace.get_tracer(NAME, VERSION, tracer_provider=tracer_provider)
        meter = metrics.get_meter(NAME, VERSION, meter_provider=meter_provider)
        self._durations = {
            side: meter.create_histogram(
                f"mcp.{side}.operation.duration",
                unit="s",
                description=f"How long requests took, as the {side} saw it",
                explicit_bucket_boundaries_advisory=BOUNDS,
            )
            for side in ("client", "server")
        }
        self._arguments = arguments

    async def __call__(self, exchange: Exchange, proceed: Call) -> Any:
        if exchange.outgoing:
            return await self._sent(exchange, proceed)
        return await self._received(exchange, proceed)

    async def _sent(self, exchange: Exchange, proceed: Call) -> Any:
        noted, low = self._attributes(exchange.method, exchange.params, exchange.caller.revision)
        with self._span("client", exchange.method, noted, low) as span:
            self._propagate.inject(exchange.meta)
            return await self._followed(span, "client", low, exchange, proceed)

    async def _received(self, exchange: Exchange, proceed: Call) -> Any:
        noted, low = self._attributes(exchange.method, exchange.params, exchange.caller.revision)
        noted |= {"jsonrpc.request.id": str(exchange.id)} | _network(exchange)
        ambient = self._trace.get_current_span().get_span_context()
        carrier = {name: value for name, value in exchange.meta.items() if isinstance(value, str)}
        parent = self._propagate.extract(carrier)
        remote = self._trace.get_current_span(parent).get_span_context()
        # The transport's own span is another story than the client's: it is linked, not followed.
        links = [self._trace.Link(ambient)] if ambient.is_valid and remote.span_id != ambient.span_id else []
        if exchange.ask is not None:
            exchange.ask = self._asking(exchange.ask, exchange.caller.revision)
        with self._span("server", exchange.method, noted, low, context=parent, links=links) as span:
            return await self._followed(span, "server", low, exchange, proceed)

    def _asking(self, ask: Ask, revision: str) -> Ask:
        """Questions of a server are requests it sends."""

        async def traced(method: str, params: dict[str, Any]) -> Any:
            noted, low = self._attributes(method, params, revision)
            with self._span("client", method, noted, low) as span:
                meta = dict(params.get("_meta") or {})
                self._propagate.inject(meta)
                return await self._timed(span, "client", low, ask(method, params | ({"_meta": meta} if meta else {})))

        return traced

    def _span(self, side: str, method: str, noted: dict[str, Any], low: dict[str, str], **options: Any) -> Any:
        kind = self._trace.SpanKind.CLIENT if side == "client" else self._trace.SpanKind.SERVER
        target = low.get("gen_ai.tool.name") or low.get("gen_ai.prompt.name")
        return self._tracer.start_as_current_span(
            f"{method} {target}" if target else method,
            kind=kind,
            attributes=low | noted,
            record_exception=False,
            set_status_on_exception=False,
            **options,
        )

    def _attributes(self, method: str, params: dict[str, Any], revision: str) -> tuple[dict[str, Any], dict[str, str]]:
        """What is noted of one request, and what few enough requests share to be counted by."""
        low = {"mcp.method.name": method, "mcp.protocol.version": revision}
        noted: dict[str, Any] = {}
        attribute, field = _HELD.get(method, ("", ""))
        if attribute and isinstance(params.get(field), str):
            low[attribute] = params[field]
        if method == "tools/call":
            low["gen_ai.operation.name"] = "execute_tool"
            if self._arguments:
                from dovetail.wire.codec import encode

                noted["gen_ai.tool.call.arguments"] = encode(params.get("arguments") or {}).decode()
        if method in _URIS and isinstance(params.get("uri"), str):
            noted["mcp.resource.uri"] = params["uri"]
        return noted, low

    async def _followed(self, span: Any, side: str, low: dict[str, str], exchange: Exchange, proceed: Call) -> Any:
        async def work() -> Any:
            result = await proceed(exchange)
            if failed(result):
                self._failed(span, low, "tool_error", "")
                if exchange.fault is not None:
                    span.record_exception(exchange.fault)
            return result

        return await self._timed(span, side, low, work())

    async def _timed(self, span: Any, side: str, low: dict[str, str], work: Any) -> Any:
        started = time.perf_counter()
        try:
            return await work
        except asyncio.CancelledError:
            self._failed(span, low, "cancelled", "")
            raise
        except MCPError as exc:
            code = getattr(exc, "code", None)
            if code is not None:
                span.set_attribute("rpc.response.status_code", str(code))
                low["rpc.response.status_code"] = str(code)
            if (
                side == "server"
            ):  # nobody may have such a thing: names are the caller's to choose, and series cost memory
                for attribute, _ in _HELD.values():
                    low.pop(attribute, None)
            self._failed(
                span, low, str(code) if code is not None else type(exc).__name__, exc.args[0] if exc.args else ""
            )
            raise
        except BaseException as exc:
            self._failed(span, low, type(exc).__name__, "")
            span.record_exception(exc)
            raise
        finally:
            self._durations[side].record(time.perf_counter() - started, low)

    def _failed(self, span: Any, low: dict[str, str], kind: str, message: str) -> None:
        low["error.type"] = kind
        span.set_attribute("error.type", kind)
        span.set_status(self._trace.StatusCode.ERROR, message or None)


def _network(exchange: Exchange) -> dict[str, str]:
    if exchange.headers is None:
        return {}
    session = exchange.headers.get(b"mcp-session-id")
    found = {"network.transport": "tcp", "network.protocol.name": "http"}
    return found | ({"mcp.session.id": session.decode("latin-1")} if session else {})
