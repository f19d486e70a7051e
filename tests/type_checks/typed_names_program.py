"""Decorated functions keep their types, and calls have the types they are given."""

from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, assert_type

from dovetail import (
    ArgTransform,
    CacheHint,
    CallToolResult,
    Client,
    Context,
    Depends,
    Host,
    RouteRequest,
    RouteResponse,
    Server,
    ServerLimits,
    SyncClient,
    ToolError,
    Transform,
    prompt,
    testing,
    tool,
)
from dovetail.host import CallAwaitingConsent
from dovetail.middleware import (
    LogRequests,
    MaskErrors,
    Middleware,
    RateLimit,
    ResponseCache,
    ResponseLimit,
    Retry,
    Telemetry,
    Timing,
)
from dovetail.types import JSONValue


@dataclass
class Day:
    day: int
    sky: str


@dataclass
class Pool:
    size: int


@asynccontextmanager
async def lifespan() -> AsyncGenerator[Pool]:
    yield Pool(3)


hint = CacheHint(1000)
app = Server("typed", limits=ServerLimits(), cache_hints=hint, lifespan=lifespan, middleware=[Timing(), LogRequests()])
middleware: list[Middleware] = [ResponseCache(["x"]), MaskErrors(), RateLimit(1), ResponseLimit(1000), Retry()]
for function in middleware:
    app.middleware(function)
other = Server("other", middleware=[Telemetry()])
transform = Transform(name="b", arguments={"c": ArgTransform(value=1)})
unmount = app.mount(other, "x", transforms={"a": transform}, tags=["t"])
assert_type(unmount, Callable[[], None])


def rate(ctx: Context[Pool]) -> float:
    assert_type(ctx.lifespan, Pool)
    return 1.1 * ctx.lifespan.size


@app.tool
async def plain(city: str, days: int = 3) -> list[Day]:
    return [Day(days, city)]


@app.tool("named", title="Named", read_only=True, tags=["a"])
def named(city: str, rate: Annotated[float, Depends(rate)]) -> str:
    raise ToolError(city)


@app.resource("city://{name}", cache_hint=CacheHint(5))
def city(name: str) -> str:
    return name


@app.prompt
def packing(city: str) -> str:
    return city


@app.completion("packing", "city")
def cities(value: str) -> list[str]:
    return [value]


class Books:
    @tool(name="find")
    def find(self, title: str) -> int:
        return len(title)

    @prompt
    def write(self, title: str) -> str:
        return title


assert_type(named("a", 1.0), str)
assert_type(city("a"), str)
assert_type(packing("a"), str)
assert_type(cities("a"), list[str])
assert_type(Books().find("a"), int)
app.include(Books())


@app.tool
async def ask(ctx: Context) -> str:
    day = await ctx.elicit("Which?", Day)
    assert_type(day, Day)
    return day.sky


@app.tool
def wait(ctx: Context) -> int:
    seats = ctx.wait(ctx.elicit("How many?", int))
    assert_type(seats, int)
    assert_type(ctx.headers.get("X-Tenant"), str | None)
    return seats


async def find_day() -> Day:
    return Day(1, "clear")


async def send_mail() -> str:
    return "M1"


@app.tool
async def steps(ctx: Context) -> str:
    assert_type(await ctx.once("count", lambda: 3), int)
    assert_type(await ctx.once("mail", send_mail), str)
    assert_type(await ctx.once("day", find_day, Day), Day)
    assert_type(await ctx.once("plain day", find_day), JSONValue)
    return await ctx.once("names", lambda: ["a"], str)


async def use_host(host: Host) -> None:
    assert_type(await host.call("weather.plain", city="Oslo"), CallToolResult)
    assert_type(await host.call("weather.plain", {"city": "Oslo"}, wait=False), CallToolResult | CallAwaitingConsent)


@app.route("/days/{id}", methods=["POST"], allow_anonymous=True)
async def receive_day(request: RouteRequest) -> RouteResponse:
    assert_type(request.json(Day), Day)
    assert_type(request.path_params["id"], str)
    return RouteResponse({"stored": request.text}, 201)


assert_type(Server("many", search=True, resource_tools=True, prompt_tools=True), Server)
app.restrict("named", tags=["a"], visible_to=lambda principal: principal is not None)
with testing.override(rate, lambda: 2.0):
    app.run("http", port=8000, sessions=False)


async def use() -> None:
    assert_type(await plain("Oslo"), list[Day])
    async with Client(app, middleware=[Timing()]) as client:
        assert_type(client, Client)
        assert_type(await client.call("plain", into=list[Day], city="Oslo"), list[Day])
        assert_type(await client.call("count", into=int), int)
        anything = await client.call("plain", city="Oslo")
        print(anything)
        assert_type(await client.read("city://Oslo"), str | bytes | list[str | bytes])
        assert_type((await client.read_resource("city://Oslo")).text, str)


def use_sync() -> None:
    with SyncClient(app) as client:
        assert_type(client.call("plain", into=Day, city="Oslo"), Day)


work: Coroutine[Any, Any, list[Day]] = plain("Oslo")
work.close()
