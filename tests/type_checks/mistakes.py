"""Mistakes that a type checker must report. Each line with one ends in `# error`, and no other line has one."""

from dovetail import Client, Context, Host, Policy, Server, SyncClient, rule
from dovetail.auth import Guard
from dovetail.extensions import Extension, Params, Result
from dovetail.host import ConsentRequest
from dovetail.middleware import CallNext, Exchange, RateLimit
from dovetail.testing import connect

app = Server("weather", verison="1.0")  # error
app.run("http", prot=8000)  # error
app.run("stdio", port=8000)  # error
app.asgi(allowed_host=["example.com"])  # error
app.middleware(lambda exchange: exchange)  # error


@app.tool
def warn(city: str) -> str:
    return city


warn("Oslo", 3)  # error
app.tool(warn, nmae="x")  # error


@app.tool(read_onyl=True)  # error
def forecast(city: str) -> str:
    return city


@app.resource("weather://{city}", mime="text/plain")  # error
def read_weather(city: str, ctx: Context) -> str:
    return f"{city} {ctx.no_such_member}"  # error


@app.route("/page", method=["GET"])  # error
def show_page() -> str:
    return "text"


@app.tool
async def charge(ctx: Context) -> int:
    receipt = await ctx.once("charge", lambda: "R1")
    return receipt + 1  # error


async def add_note(exchange: Exchange, call_next: CallNext) -> object:
    exchange.task.cancel()  # error
    result = await call_next(exchange)
    return result.content  # error


def ask_user(request: ConsentRequest) -> str:
    return request.text


async def use_client() -> None:
    client = Client(app, timeot=5)  # error
    degrees: float = await client.call_tool("forecast")  # error
    text: str = await client.call("forecast", into=int)  # error
    print(degrees, text, SyncClient(app, header={}))  # error
    client.listen().handle_gap()  # error
    stock: int = await client.read("weather://Oslo")  # error
    print(stock)


class CountParams(Params):
    city: str


class CountResult(Result):
    count: int


counter = Extension("com.example/counter")


@counter.method("com.example/counter/get")
async def get_count(params: CountParams, exchange: Exchange) -> CountResult:
    return CountResult(count=exchange.none)  # error


async def use_extension() -> None:
    client = Client(app, extensions=[5])  # error
    result = await client.request(get_count, CountParams(city="Oslo"))
    print(result.counts)  # error
    await client.request(get_count, CountParams(town="Oslo"))  # error
    await client.request(get_count, Params())  # error


async def use_host() -> None:
    policy = Policy(rules=[rule("allowed", tool="forecast")])  # error
    host = Host(policy=policy, consent=ask_user)  # error
    print(Host(polcy=policy))  # error
    host.add("weather", app, trust=True)  # error
    host.as_server(page_sizes=3)  # error
    result = await host.call("weather.forecast")
    print(result.ticket)  # error


async def test_forecast() -> None:
    async with connect(app, transprot="http") as client:  # error
        print(client, Guard(required_scope=["a"]), RateLimit("many"))  # error
