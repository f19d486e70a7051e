"""Middleware for OpenTelemetry spans and metrics, according to the semantic conventions for MCP.

The trace context is sent in `_meta`, in the W3C format. `Telemetry` requires the package opentelemetry-api and imports
it when it is created. Without an OpenTelemetry SDK, nothing is recorded.
"""

import asyncio
import time
from typing import Any, Final

from dovetail.error_context import clip
from dovetail.errors import MCPError
from dovetail.log import format_traceback, trim_traceback
from dovetail.middleware.caller_and_outcome import has_failed
from dovetail.protocol.exchange import Ask, Exchange, IncomingExchange
from dovetail.protocol.middleware import CallNext
from dovetail.protocol.redaction import mask_secrets, mask_text
from dovetail.version import VERSION

INSTRUMENTATION_NAME: Final = "dovetail"
DURATION_BUCKETS_S: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TARGET_ATTRIBUTE_BY_METHOD: Final = {
    "tools/call": ("gen_ai.tool.name", "name"),
    "prompts/get": ("gen_ai.prompt.name", "name"),
}
_RESOURCE_METHODS: Final = frozenset({"resources/read", "resources/subscribe", "resources/unsubscribe"})
_MAX_MESSAGE_CHARS: Final = 1000


class Telemetry:
    """Middleware that creates an OpenTelemetry span for each request and measures its duration.

    Requests from a server to its client are included.

    Args:
        tracer_provider: The OpenTelemetry tracer provider. Defaults to the global provider.
        meter_provider: The OpenTelemetry meter provider. Defaults to the global provider.
        include_arguments: Whether to add the arguments of tools to the spans, with secrets masked. Arguments may
            contain private data.
    """

    def __init__(
        self, *, tracer_provider: Any = None, meter_provider: Any = None, include_arguments: bool = False
    ) -> None:
        try:
            from opentelemetry import metrics, propagate, trace
        except ImportError:
            raise ImportError("Telemetry requires opentelemetry-api: pip install opentelemetry-api") from None
        self._trace = trace
        self._propagate = propagate
        self._tracer = trace.get_tracer(INSTRUMENTATION_NAME, VERSION, tracer_provider=tracer_provider)
        meter = metrics.get_meter(INSTRUMENTATION_NAME, VERSION, meter_provider=meter_provider)
        self._durations = {
            side: meter.create_histogram(
                f"mcp.{side}.operation.duration",
                unit="s",
                description=f"Duration of requests, as measured by the {side}",
                explicit_bucket_boundaries_advisory=DURATION_BUCKETS_S,
            )
            for side in ("client", "server")
        }
        self._include_arguments = include_arguments

    async def __call__(self, exchange: Exchange, call_next: CallNext) -> object:
        if exchange.is_outgoing:
            return await self._trace_outgoing(exchange, call_next)
        return await self._trace_incoming(exchange, call_next)

    async def _trace_outgoing(self, exchange: Exchange, call_next: CallNext) -> Any:
        span_attributes, metric_attributes = self._build_attributes(
            exchange.method, exchange.params, exchange.caller.protocol_version
        )
        with self._start_span("client", exchange.method, span_attributes, metric_attributes) as span:
            self._propagate.inject(exchange.meta)
            return await self._run_traced(span, "client", metric_attributes, exchange, call_next)

    async def _trace_incoming(self, exchange: Exchange, call_next: CallNext) -> Any:
        span_attributes, metric_attributes = self._build_attributes(
            exchange.method, exchange.params, exchange.caller.protocol_version
        )
        span_attributes |= {"jsonrpc.request.id": str(exchange.id)} | _build_network_attributes(exchange)
        ambient = self._trace.get_current_span().get_span_context()
        carrier = {name: value for name, value in exchange.meta.items() if isinstance(value, str)}
        parent = self._propagate.extract(carrier)
        remote = self._trace.get_current_span(parent).get_span_context()
        # The span of the client becomes the parent of the new span. The span of the HTTP server becomes a link.
        links = [self._trace.Link(ambient)] if ambient.is_valid and remote.span_id != ambient.span_id else []
        if isinstance(exchange, IncomingExchange) and exchange.ask is not None:
            exchange.ask = self._wrap_ask(exchange.ask, exchange.caller.protocol_version)
        with self._start_span(
            "server", exchange.method, span_attributes, metric_attributes, context=parent, links=links
        ) as span:
            return await self._run_traced(span, "server", metric_attributes, exchange, call_next)

    def _wrap_ask(self, ask: Ask, revision: str) -> Ask:
        async def traced_ask(method: str, params: dict[str, Any]) -> Any:
            span_attributes, metric_attributes = self._build_attributes(method, params, revision)
            with self._start_span("client", method, span_attributes, metric_attributes) as span:
                meta = dict(params.get("_meta") or {})
                self._propagate.inject(meta)
                return await self._record_duration(
                    span, "client", metric_attributes, ask(method, params | ({"_meta": meta} if meta else {}))
                )

        return traced_ask

    def _start_span(
        self, side: str, method: str, span_attributes: dict[str, Any], metric_attributes: dict[str, str], **options: Any
    ) -> Any:
        kind = self._trace.SpanKind.CLIENT if side == "client" else self._trace.SpanKind.SERVER
        target = metric_attributes.get("gen_ai.tool.name") or metric_attributes.get("gen_ai.prompt.name")
        return self._tracer.start_as_current_span(
            f"{method} {target}" if target else method,
            kind=kind,
            attributes=metric_attributes | span_attributes,
            record_exception=False,
            set_status_on_exception=False,
            **options,
        )

    def _build_attributes(
        self, method: str, params: dict[str, Any], revision: str
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the attributes that describe a request, for spans and for metrics.

        In metrics, each attribute must have few different values.
        """
        metric_attributes = {"mcp.method.name": method, "mcp.protocol.version": revision}
        span_attributes: dict[str, Any] = {}
        attribute, field = _TARGET_ATTRIBUTE_BY_METHOD.get(method, ("", ""))
        if attribute and isinstance(params.get(field), str):
            metric_attributes[attribute] = params[field]
        if method == "tools/call":
            metric_attributes["gen_ai.operation.name"] = "execute_tool"
            if self._include_arguments:
                from dovetail.wire.codec import encode

                arguments = mask_secrets(params.get("arguments") or {})
                span_attributes["gen_ai.tool.call.arguments"] = encode(arguments).decode()
        if method in _RESOURCE_METHODS and isinstance(params.get("uri"), str):
            span_attributes["mcp.resource.uri"] = mask_text(params["uri"])
        return span_attributes, metric_attributes

    async def _run_traced(
        self, span: Any, side: str, metric_attributes: dict[str, str], exchange: Exchange, call_next: CallNext
    ) -> Any:
        async def call_and_check() -> Any:
            result = await call_next(exchange)
            if has_failed(result):
                self._mark_failed(span, metric_attributes, "tool_error", "")
                if exchange.exception is not None:
                    _record_exception(span, exchange.exception)
            return result

        return await self._record_duration(span, side, metric_attributes, call_and_check())

    async def _record_duration(self, span: Any, side: str, metric_attributes: dict[str, str], awaitable: Any) -> Any:
        started = time.perf_counter()
        try:
            return await awaitable
        except asyncio.CancelledError:
            self._mark_failed(span, metric_attributes, "cancelled", "")
            raise
        except MCPError as exc:
            code = getattr(exc, "code", None)
            if code is not None:
                span.set_attribute("rpc.response.status_code", str(code))
                metric_attributes["rpc.response.status_code"] = str(code)
            # Leave out names that callers choose, because each new name in a metric needs memory.
            if side == "server":
                for attribute, _ in _TARGET_ATTRIBUTE_BY_METHOD.values():
                    metric_attributes.pop(attribute, None)
            self._mark_failed(
                span,
                metric_attributes,
                str(code) if code is not None else type(exc).__name__,
                mask_text(str(exc.args[0])) if exc.args else "",
            )
            raise
        except BaseException as exc:
            self._mark_failed(span, metric_attributes, type(exc).__name__, "")
            _record_exception(span, exc)
            raise
        finally:
            self._durations[side].record(time.perf_counter() - started, metric_attributes)

    def _mark_failed(self, span: Any, metric_attributes: dict[str, str], error_type: str, message: str) -> None:
        metric_attributes["error.type"] = error_type
        span.set_attribute("error.type", error_type)
        span.set_status(self._trace.StatusCode.ERROR, message or None)


def _build_network_attributes(exchange: Exchange) -> dict[str, str]:
    if exchange.headers is None:
        return {}
    session = exchange.headers.get(b"mcp-session-id")
    attributes = {"network.transport": "tcp", "network.protocol.name": "http"}
    return attributes | ({"mcp.session.id": session.decode("latin-1")} if session else {})


def _record_exception(span: Any, exc: BaseException) -> None:
    """Add an exception to a span. The text is masked and shortened, because it may come from a caller."""
    trace = format_traceback(exc, trim_traceback(exc.__traceback__))
    message = clip(mask_text(str(exc)), _MAX_MESSAGE_CHARS)
    span.record_exception(exc, attributes={"exception.message": message, "exception.stacktrace": mask_text(trace)})
