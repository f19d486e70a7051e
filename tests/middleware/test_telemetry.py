"""Test spans and metrics with a real OpenTelemetry SDK."""

from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")

from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dovetail import Client, Context, RemoteError, Server, ToolError
from dovetail.middleware import Telemetry
from dovetail.types import ElicitResult


class Kept:
    """One side's telemetry, kept in memory."""

    def __init__(self, **options: Any) -> None:
        self._spans = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        meters = MeterProvider([self._reader])
        self.middleware = Telemetry(tracer_provider=self.tracers, meter_provider=meters, **options)

    @property
    def spans(self) -> dict[str, Any]:
        return {span.name: span for span in self._spans.get_finished_spans()}

    def points(self) -> dict[str, list[Any]]:
        found = self._reader.get_metrics_data()
        assert found is not None
        return {
            metric.name: list(metric.data.data_points)
            for resource in found.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


def server(kept: Kept) -> Server:
    app = Server("traced", middleware=[kept.middleware])
    tracer = kept.tracers.get_tracer("author")

    @app.tool
    def work(word: str) -> str:
        with tracer.start_as_current_span("inside"):
            return word

    @app.tool
    async def broken() -> str:
        raise ToolError("no")

    @app.tool
    async def ask(ctx: Context) -> str:
        return await ctx.elicit("Which?", str)

    @app.resource("x:{name}")
    def resource(name: str) -> str:
        return name

    @app.prompt
    def greet() -> str:
        return "hello"

    return app


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_one_trace_from_the_client_into_the_tool(revision: str) -> None:
    theirs, ours = Kept(), Kept()
    async with Client(server(theirs), protocol_version=revision, middleware=[ours.middleware]) as client:
        await client.call("work", word="w")
        await client.read("x:a")
        await client.get_prompt("greet")
    sent, received, inside = ours.spans["tools/call work"], theirs.spans["tools/call work"], theirs.spans["inside"]
    assert sent.kind is trace.SpanKind.CLIENT
    assert received.kind is trace.SpanKind.SERVER
    assert received.parent.span_id == sent.context.span_id
    assert inside.parent.span_id == received.context.span_id  # though the function ran in a thread
    assert sent.context.trace_id == received.context.trace_id == inside.context.trace_id
    for span in (sent, received):
        assert span.attributes["mcp.method.name"] == "tools/call"
        assert span.attributes["gen_ai.tool.name"] == "work"
        assert span.attributes["gen_ai.operation.name"] == "execute_tool"
        assert span.attributes["mcp.protocol.version"] == revision
        assert "gen_ai.tool.call.arguments" not in span.attributes
        assert span.status.status_code is trace.StatusCode.UNSET
    assert "jsonrpc.request.id" in received.attributes
    assert theirs.spans["resources/read"].attributes["mcp.resource.uri"] == "x:a"
    assert theirs.spans["prompts/get greet"].attributes["gen_ai.prompt.name"] == "greet"


async def test_failures_by_their_kind() -> None:
    theirs, ours = Kept(), Kept(include_arguments=True)
    async with Client(server(theirs), middleware=[ours.middleware]) as client:
        await client.call_tool("broken", {})
        with pytest.raises(RemoteError):
            await client.call("nothing", x=1)
    for kept in (theirs, ours):
        broken, nothing = kept.spans["tools/call broken"], kept.spans["tools/call nothing"]
        assert broken.attributes["error.type"] == "tool_error"
        assert nothing.attributes["error.type"] == "-32602"
        assert nothing.attributes["rpc.response.status_code"] == "-32602"
        for span in (broken, nothing):
            assert span.status.status_code is trace.StatusCode.ERROR
        assert "Unknown tool" in nothing.status.description
    (event,) = theirs.spans["tools/call broken"].events
    assert event.attributes["exception.message"] == "no"
    assert ours.spans["tools/call nothing"].attributes["gen_ai.tool.call.arguments"] == '{"x":1}'


async def test_questions_are_requests_of_the_server() -> None:
    theirs = Kept()
    seen: list[Any] = []

    async def elicit(question: Any) -> ElicitResult:
        seen.append(question)
        return ElicitResult(action="accept", content={"value": "this"})

    async with Client(server(theirs), protocol_version="2025-11-25", elicitation_handler=elicit) as client:
        assert await client.call("ask") == "this"
    asked, call = theirs.spans["elicitation/create"], theirs.spans["tools/call ask"]
    assert asked.kind is trace.SpanKind.CLIENT
    assert asked.parent.span_id == call.context.span_id
    (question,) = seen
    assert question.meta["traceparent"].split("-")[2] == f"{asked.context.span_id:016x}"


async def test_an_ambient_span_is_linked_not_followed() -> None:
    theirs = Kept()
    app = server(theirs)
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

    async def transport(exchange: Any, call_next: Any) -> Any:
        with theirs.tracers.get_tracer("web").start_as_current_span("POST /mcp"):
            return await call_next(exchange)

    outer = Server("outer", middleware=[transport, theirs.middleware])
    outer.add_tool(lambda: 1, name="one")
    del app
    async with Client(outer) as client:
        await client.call_tool("one", meta={"traceparent": parent, "tracestate": "a=b"})
    call, web = theirs.spans["tools/call one"], theirs.spans["POST /mcp"]
    assert f"{call.parent.span_id:016x}" == "00f067aa0ba902b7"
    assert call.context.trace_state.get("a") == "b"
    assert [link.context.span_id for link in call.links] == [web.context.span_id]


async def test_durations_are_histograms() -> None:
    theirs, ours = Kept(), Kept()
    async with Client(server(theirs), middleware=[ours.middleware]) as client:
        for _ in range(3):
            await client.call("work", word="w")
        await client.call_tool("broken", {})
    for kept, name in ((theirs, "mcp.server.operation.duration"), (ours, "mcp.client.operation.duration")):
        points = {point.attributes.get("gen_ai.tool.name"): point for point in kept.points()[name]}
        assert points["work"].count == 3
        assert points["work"].explicit_bounds[0] == 0.01
        assert points["work"].attributes["mcp.method.name"] == "tools/call"
        assert points["broken"].attributes["error.type"] == "tool_error"


async def test_unknown_names_are_not_metric_attributes() -> None:
    kept = Kept()
    async with Client(server(kept)) as client:
        for number in range(20):
            with pytest.raises(RemoteError):
                await client.call(f"invented{number}")
    points = kept.points()["mcp.server.operation.duration"]
    (refused,) = [point for point in points if point.attributes["mcp.method.name"] == "tools/call"]
    assert refused.count == 20
    assert refused.attributes["error.type"] == "-32602"
    assert "tools/call invented7" in kept.spans


async def test_over_http_the_transport_is_recorded() -> None:
    from dovetail import testing

    theirs = Kept()
    async with testing.connect(server(theirs), transport="http", protocol_version="2025-11-25") as client:
        await client.call("work", word="w")
    attributes = theirs.spans["tools/call work"].attributes
    assert attributes["network.protocol.name"] == "http"
    assert attributes["mcp.session.id"]


async def test_secrets_are_masked_in_spans() -> None:
    theirs, ours = Kept(include_arguments=True), Kept(include_arguments=True)
    app = server(theirs)

    @app.tool
    def fail(password: str) -> str:
        raise RuntimeError(f"login failed: password={password}")

    async with Client(app, middleware=[ours.middleware]) as client:
        await client.call_tool("fail", {"password": "s3cret"})
        with pytest.raises(RemoteError):
            await client.read_resource("x:b?token=s3cret")
    for kept in (theirs, ours):
        for span in kept.spans.values():
            assert "s3cret" not in span.to_json()
    assert "***" in theirs.spans["tools/call fail"].attributes["gen_ai.tool.call.arguments"]
