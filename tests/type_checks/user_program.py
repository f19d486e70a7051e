"""A program as a user writes it, with every public module. Type checkers must accept it in strict mode."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dovetail import (
    CallToolResult,
    Client,
    Context,
    Depends,
    Host,
    Policy,
    ProgressUpdate,
    Server,
    ServerLimits,
    SyncClient,
    TextContent,
    Timeouts,
    ToolError,
    argument,
    rule,
)
from dovetail.auth import BearerAuth, Guard, Principal, StaticTokenVerifier
from dovetail.errors import MCPError, PolicyError
from dovetail.extensions import Extension, ExtensionClient, Params, Result
from dovetail.host import Allow, CallAwaitingConsent, ConsentAnswer, ConsentRequest, Deny, HostEvent, ServerSettings
from dovetail.middleware import CallNext, Exchange, LogRequests, RateLimit
from dovetail.testing import ScriptedModel, connect, connect_sync, record_traffic, tool_call
from dovetail.types import ElicitRequestParams, ElicitResult, LoggingMessageNotificationParams


@dataclass
class Forecast:
    city: str
    degrees: float


@dataclass
class Confirmation:
    confirmed: bool


@asynccontextmanager
async def lifespan() -> AsyncGenerator[dict[str, float]]:
    yield {"Oslo": -3.5}


verifier = StaticTokenVerifier({"secret": Principal("ada", scopes="weather:read")})
app = Server(
    "weather",
    version="1.0",
    lifespan=lifespan,
    auth=Guard(verifier, required_scopes=["weather:read"]),
    limits=ServerLimits(call_timeout=10),
    middleware=[LogRequests(), RateLimit(10, per=1.0)],
)


def find_unit() -> str:
    return "C"


@app.tool(title="Forecast", read_only=True, tags=["weather"])
async def forecast(city: str, ctx: Context[dict[str, float]], unit: Annotated[str, Depends(find_unit)]) -> Forecast:
    await ctx.info(f"asked for {city} in {unit}")
    await ctx.progress(1, total=2)
    if city not in ctx.lifespan:
        raise ToolError(f"no forecast for {city}")
    return Forecast(city, ctx.lifespan[city])


def count_clouds(city: str) -> int:
    return len(city)


clouds: int = app.tool(count_clouds, title="Clouds")("Oslo")


@app.tool
async def warn(city: str, ctx: Context) -> AsyncGenerator[ProgressUpdate | str]:
    yield ProgressUpdate(1, total=2)
    answer = await ctx.elicit(f"Warn everyone in {city}?", Confirmation)
    yield "warned" if answer.confirmed else "not warned"


@app.resource("weather://{city}", mime_type="text/plain")
def read_weather(city: str) -> str:
    return f"{city}: cold"


@app.prompt("ask", description="Ask about a city")
def ask_about(city: str) -> str:
    return f"How is the weather in {city}?"


@app.middleware
async def add_note(exchange: Exchange, call_next: CallNext) -> object:
    exchange.extra["principal"] = exchange.caller.principal
    result = await call_next(exchange)
    if isinstance(result, CallToolResult):
        result.content.append(TextContent(text=f"answer to {exchange.method}"))
    return result


async def answer_form(request: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="accept", content={"confirmed": bool(request.message)})


def print_log(message: LoggingMessageNotificationParams) -> None:
    print(message.level, message.data)


def print_progress(progress: float, total: float | None, message: str | None) -> None:
    print(progress, total, message)


async def ask_user(request: ConsentRequest) -> ConsentAnswer:
    print(request.text)
    return Allow("session") if request.trusted else Deny("not trusted")


policy = Policy(
    rules=[
        rule("allow", server="weather", read_only=True),
        rule("deny", tool="warn", unless=argument("/city").equals("Oslo"), reason="only Oslo"),
    ]
)


class CountParams(Params):
    city: str


class CountResult(Result):
    count: int


class TicketResult(Result):
    ticket: str


counter = Extension("com.example/counter", settings={"unit": "C"}, requires_client=True)


@counter.method("com.example/counter/get", since="2025-06-18")
async def get_count(params: CountParams, exchange: Exchange) -> CountResult:
    await exchange.notify("notifications/com.example/counted", params)
    return CountResult(count=len(params.city) if counter.get_client_settings(exchange) is not None else 0)


@counter.client_notification("notifications/com.example/counted")
async def print_city(params: CountParams) -> None:
    print(params.city)


async def collect(result: TicketResult, client: ExtensionClient) -> CallToolResult:
    counted = await client.request(get_count, CountParams(city=result.ticket))
    return CallToolResult(content=[TextContent(text=str(counted.count))])


counter.add_result_type("tools/call", "ticket", TicketResult, collect)
counter.client_middleware(add_note)


async def use_extension() -> int:
    async with Client(Server("counter", extensions=[counter]), extensions=[counter]) as client:
        result = await client.request(get_count, CountParams(city="Oslo"))
        with SyncClient(app, extensions=[counter]) as sync_client:
            print(sync_client.request(get_count, CountParams(city="Oslo")).count)
        return result.count


async def use_client() -> float:
    async with Client(
        app, elicitation_handler=answer_form, log_handler=print_log, timeout=Timeouts(call=5), middleware=[add_note]
    ) as client:
        tools = [tool.name for tool in await client.list_tools()]
        report = await client.call("forecast", into=Forecast, city="Oslo")
        result = await client.call_tool("warn", {"city": "Oslo"}, progress_handler=print_progress, retry=False)
        print(tools, result.structured_content, await client.read("weather://Oslo"))
        async with client.listen(tools=True) as changes:
            async for change in changes:
                print(change.kind, change.uri)
                break
        return report.degrees


async def use_host(state: Path) -> CallToolResult | CallAwaitingConsent:
    def print_event(event: HostEvent) -> None:
        print(event.kind, event.server)

    async with Host(policy=policy, consent=ask_user, state_dir=state, defaults=ServerSettings(trusted=True)) as host:
        host.on("server.*", print_event)
        host.add("weather", app, timeout=5.0)
        host.add("remote", "https://example.com/mcp", auth=BearerAuth("secret"), trusted=False)
        catalog = await host.catalog(max_tokens=2000)
        print(catalog.to_openai(), [entry.full_name for entry in catalog.search("weather")])
        try:
            done = await host.call("weather.forecast", city="Oslo")
            print(done.content)
            return await host.call("weather.warn", {"city": "Oslo"}, wait=False)
        except PolicyError as error:
            print(error.action, error.hint)
            raise


async def test_forecast() -> None:
    async with connect(app, transport="http", protocol_version="handshake", auth=BearerAuth("secret")) as client:
        with record_traffic(client) as traffic:
            await client.call("forecast", city="Oslo")
        traffic.assert_sent("tools/call", times=1, name="forecast")
    with connect_sync(app, principal="ada") as sync_client:
        print(sync_client.call("forecast", into=Forecast, city="Oslo").degrees)
    model = ScriptedModel(tool_call("weather.forecast", city="Oslo"), "It is cold.")
    print(model.requests)


def main() -> None:
    try:
        with SyncClient("https://example.com/mcp", auth=BearerAuth("secret"), timeout=5.0) as client:
            print(client.server_info, client.stats().connections)
        asyncio.run(use_client())
    except MCPError as error:
        print(error.hint)
    app.run("http", port=8000, allowed_hosts=["example.com"], ssl_certfile=Path("cert.pem"))


if __name__ == "__main__":
    main()
